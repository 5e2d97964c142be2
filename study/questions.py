"""
The tables of questions.md: a question has the rows of questions.csv whose name begins with its own.

    python -m study.questions gap out/questions/gap-*   # what only it measures: a row of each run
"""

import argparse
import re
from pathlib import Path

import numpy as np
import torch

import eval as page
import study
from configurator import one_line_errors
from device import this_process
from lab import analysis, runs
from lab.table import (best_loss, column, count, crosstab, groups_of, listed, median, quartiles,
                       solved, spread, table, updates)
from model import GPT, GPTConfig
from study import claims
from study.claims import MULTIPLES, beyond, setting, spelled
from tasks import make_rng, make_task

NOT_RUN = 'Not run yet: the commands above make the rows.\n'
FINAL = {'solved': count(solved), 'updates until solved': quartiles(updates, '.0f'),
         'loss at the end (nats)': quartiles(column('final_loss'), '.2g')}
REACH = {'beyond L at 2L, 4L, 8L (%)': median(*map(beyond, MULTIPLES))}
DEPTHS = range(1, 17)
NEEDED = dict(gap='depth@1', bridges='cosine@1', bias='slope@512')  # what `main` measures


# ----------------------------------------------------------------------------------------------
# Rows


def rows_of(question):
    """Its rows, with the columns arm, setting, start and, of a state along a run, update."""
    name = dict(bias='english', extensions='english').get(question, question)
    needed = NEEDED.get(question, 'seed')
    if not (study.RESULTS / 'questions.csv').exists():
        return []
    rows = [row for row in study.read('questions')
            if re.split('[-,]', row['name'])[0] == name and row.get(needed) is not None]
    for row in rows:
        row.update(arm=arm_of(row), setting=spelled(setting(row)),
                   start=row['frequencies'].partition(':')[0])
        state = re.search(r'checkpoint=(\d+)\.pt', row['override'])
        row['update'] = state and int(state[1])
    return rows


def arm_of(row):
    """The arm whose chosen setting a row has, else the name of its attention."""
    task = row['task'].partition(':')[0]
    for arm, attention in claims.ARMS.items():
        if task in claims.TASKS and row['attention'] == attention:
            if claims.choose(task, arm)[0] == setting(row):
                return arm
    return claims.ATTENTIONS.get(row['attention'], row['attention'])


def along(rows, by, measure, form):
    """A line for each group of rows, a column for each update at which they were measured."""
    rows = [row for row in rows if row['update'] is not None]
    return crosstab(rows, by, 'update', sorted({row['update'] for row in rows}),
                    listed(measure, form))


def best_settings(rows):
    """The rows of the best setting of each attention on each task, by the rule of the map."""
    best = {}
    for key, group in groups_of(rows, ['task', 'attention', 'setting']).items():
        if key[:2] not in best or claims.merit(group) > claims.merit(best[key[:2]]):
            best[key[:2]] = group
    return [row for group in best.values() for row in group]


def learned_runs():
    """The verdicts' rows with learned frequencies, if lab.measure has seen these runs."""
    rows = [row for row in claims.runs() if row['attention'] in ('spectral', 'bifocal')]
    return rows if any(row.get('locked') is not None for row in rows) else []


def percent(name, form='.3g'):
    return quartiles(column(name, 100), form)


def is_locked(row):
    return row['lock_in'] is not None


def step_against_rope(rows):
    """Seconds an update, as a ratio to RoPE's in the same table."""
    ropes = [row['seconds'] / row['iter'] for row in rows if row['attention'] == 'rope']
    return lambda row: row['seconds'] / row['iter'] / float(np.median(ropes))


def parameters(row):
    """The measure: how many numbers a model learns."""
    names = GPTConfig.__dataclass_fields__.keys() & runs.options_of(row).keys()
    with torch.device('meta'):
        model = GPT(GPTConfig(len(make_task(row['task']).symbols), **{n: row[n] for n in names}))
    return sum(p.numel() for p in model.parameters())


# ----------------------------------------------------------------------------------------------
# Tables


FURTHER = {f'at {multiple}L': lambda row, multiple=multiple:
           row.get(f'perplexity@{multiple * row["block_size"]}') for multiple in (1, *MULTIPLES)}
PERPLEXITY = {name: spread(measure, 2) for name, measure in FURTHER.items()}
QUESTIONS = dict(
    frozen=lambda rows: along(rows, ['attention'], column('loss@64'), '.5f'),
    parts=lambda rows: table(rows, ['task', 'learn'], FINAL | REACH),
    structure=lambda rows: table(best_settings(rows), ['task', 'arm', 'setting'], FINAL | REACH),
    gap=lambda rows: table(rows, ['arm'], {
        f'depth {d}': percent(f'depth@{d}')
        for d in DEPTHS if rows[0].get(f'depth@{d}') is not None}),
    furthest=lambda rows: along(rows, ['task', 'arm', 'setting'], beyond(8), '.0f'),
    bridges=lambda rows: table(rows, ['arm'], {
        f'{d}, {d + 1}': quartiles(column(f'cosine@{d}'), '.2f')
        for d in DEPTHS if rows[0].get(f'cosine@{d}') is not None}),
    starts=lambda rows: table(rows, ['task', 'attention', 'start'], FINAL | REACH),
    rate=lambda rows: table(rows, ['task', 'positional_lr'], FINAL | REACH),
    cost=lambda rows: table(rows, ['attention'], {
        'learned numbers': listed(parameters),
        "a training step, RoPE's is 1": listed(step_against_rope(rows), '.2f')}),
    english=lambda rows: table([row for row in rows if not row['override']],
                               ['sha256', 'arm'], PERPLEXITY),
    bias=lambda rows: table(rows, ['arm', 'setting'], {
        'score, a doubling of the distance': spread(column('slope@512'), 3),
        'its sd over heads': spread(column('heads@512'), 3)}),
    tapa=lambda rows: crosstab(rows, ['attention', 'tapa_scale', 'tapa_alpha'], 'tapa_theta',
                               sorted({row['tapa_theta'] for row in rows}),
                               listed(best_loss, '.3f')),
    extensions=lambda rows: table(rows, ['arm', 'setting', 'override'], PERPLEXITY),
    keys=lambda rows: table(rows, ['task', 'arm'], FINAL | {
        f'found at {multiple}L (%)': percent(f'exact@{64 * multiple}')
        for multiple in (1, *MULTIPLES)}))


def lock_in():
    """Whether a pair locks to a harmonic before its run is solved, or after."""
    rows = [row for row in learned_runs() if make_task(row['task']).period]
    return table(rows, ['claim', 'arm'], {
        'locked': count(is_locked), 'from update': listed(column('lock_in')),
        'solved at': listed(updates, '.0f'),
        'locked before': count(lambda row: is_locked(row) and row['lock_in'] < updates(row)),
        'locked after': count(lambda row: is_locked(row) and row['lock_in'] > updates(row)),
    }) if rows else NOT_RUN


def eyes():
    """What Bifocal does with both kinds of eyes, and with one closed."""
    rows = [row for row in learned_runs() if row['attention'] == 'bifocal']
    return table(rows, ['claim'], {
        'both open (%)': percent('headline@64'),
        'geometric closed (%)': percent('closed_geometric@64'),
        'spectral closed (%)': percent('closed_spectral@64')}) if rows else NOT_RUN


def of_question(name):
    def question():
        rows = rows_of(name)
        return QUESTIONS[name](rows) if rows else NOT_RUN
    return question


TABLES = {name: of_question(name) for name in QUESTIONS} | dict(lock_in=lock_in, eyes=eyes)


# ----------------------------------------------------------------------------------------------
# What only a question measures, {column: value}


def gap(model, task, T, process):
    """The share of right closers after a closer, by depth, in strings that go deeper."""
    deep = make_task(f'dyck:max_depth={DEPTHS[-1]},p_open=0.8')
    _, (x, y, right) = page.measure(model, deep, T, 512, process)
    depth = np.where(deep.headline(x, y), analysis.depth(deep, x), 0)
    return {f'depth@{d}': float(right[depth == d].mean()) for d in DEPTHS if (depth == d).any()}


@torch.no_grad()
def bridges(model, task, T, process):
    """The cosine of the mean last state at depth d and at d + 1, centred."""
    x, _ = task.sample(make_rng('test', str(task), 'bridges'), 512, T, 'test')
    state = model.embedding(torch.from_numpy(x).to(process.device))
    for block in model.blocks:
        state = block(state)  # (n, T, C)
    depth = torch.from_numpy(analysis.depth(task, x)).to(process.device)
    means = {d: state[depth == d].mean(0) - state.mean((0, 1))
             for d in DEPTHS if (depth == d).any()}
    return {f'cosine@{d}': torch.cosine_similarity(means[d], means[d + 1], dim=0).item()
            for d in means if d + 1 in means}


def bias(model, task, T, process):
    """By how much the mean score changes where the distance doubles, from T to 2T; and its sd."""
    profile = analysis.score_by_distance(model, task, 2 * T, 8, process.device, 'test')
    far = np.arange(T, 2 * T)
    slopes = [np.polyfit(np.log2(far), np.array(head)[far], 1)[0]
              for layer in profile for head in layer]
    return {f'slope@{2 * T}': float(np.mean(slopes)), f'heads@{2 * T}': float(np.std(slopes))}


MEASURED = dict(gap=gap, bridges=bridges, bias=bias)


def main(arguments=None):
    """Measure runs as the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('question', choices=MEASURED)
    parser.add_argument('out_dir', nargs='+', type=Path)
    given = parser.parse_args(arguments)
    path, process = study.RESULTS / 'questions.csv', this_process()
    for folder in given.out_dir:
        model, task, saved = page.load_run(folder, 'best.pt', process.device)
        found = MEASURED[given.question](model, task, saved['options']['block_size'], process)
        row = runs.read_run(folder)
        known = {runs.identity(old): old for old in runs.read(path, missing=[])}
        runs.add(path, [known.get(runs.identity(row), row) | found], replace=True)


if __name__ == '__main__':
    with one_line_errors():
        main()
