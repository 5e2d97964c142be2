"""
The tables of questions.md: a question has the rows of questions.csv and answers.csv whose name
begins with its own.

    python -m study.questions gap out/questions/gap-*     # what only it measures, into their rows
    python -m study.questions corrupt out/answers/start-* # other starts, from a run's first state
"""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import torch

import eval as page
import study
from checkpoint import load_checkpoint, write_files
from configurator import choose_hardware, one_line_errors
from lab import analysis, pair_use, runs
from lab.crystallise import pack
from lab.options import make_parser
from lab.table import (best_loss, column, count, crosstab, groups_of, listed, markdown, median,
                       merit, quartiles, solved, spread, table_of_arms, updates)
from study import claims, text
from study.claims import MULTIPLES, TUNED, beyond, setting, spelled
from study.relay import by_turn
from study.sizes import arm_of
from tasks import make_rng, make_task

FINAL = {'solved': count(solved), 'updates until solved': quartiles(updates, '.0f'),
         'loss at the end (nats)': quartiles(column('final_loss'), '.2g')}
BEST = {'solved': count(solved), 'updates until solved': quartiles(updates, '.0f'),
        'loss (nats)': quartiles(best_loss, '.2g'), 'right (%)': quartiles(claims.right, '.1f')}
REACH = {'beyond L at 2L, 4L, 8L (%)': median(*map(beyond, MULTIPLES))}
PERPLEXITY = {text.times(n): spread(text.perplexity(n), 2) for n in text.MULTIPLES}
DEPTHS = range(1, 17)
STILL = 0.05  # radians: a smaller Phi has hardly moved
NOISE = 0.5  # of a corrupted Omega, as a share of it
# two questions share runs, and differ from them in these options alone
VARIED = dict(parts=['task', 'learn'], rate=['task', 'positional_lr'])
SHARED = dict(learn='frequency,amplitude,phase', attention='spectral', frequencies='geometric',
              positional_lr=0.01)
NAMES = dict(extensions=['english', 'light'], brackets=['dyck']) | dict.fromkeys(VARIED, VARIED)
LENGTHS = (64, 128, 256, 512, 1024)  # tokens: of strings that trained_longer's runs have read
AGAINST = {f'against {claims.PLAIN}, in loss': best_loss,
           f'against {claims.PLAIN}, in right answers': claims.right}
SEARCHED = (40, 41, 42)  # seeds of the search for their rates


# ----------------------------------------------------------------------------------------------
# Rows


def rows_of(question):
    """Its rows in order, with the columns arm and setting."""
    rows = [row for row in study.read('questions') + study.read('answers')
            if answers(row, question)]
    for row in rows:
        attention, optimizer = row['attention'], claims.OPTIMIZERS[row['optimizer']]
        row['arm'] = claims.ATTENTIONS.get(attention, attention)
        if attention == 'rope':  # it has two settings
            row['arm'] = f'RoPE, base {row["rope_base"]:g}, {optimizer}'
        if row['task'].startswith('text') and attention == 'rope' and row['rope_base'] <= 10000:
            row['arm'] = text.PAPER if row['optimizer'] == 'adamw' else TUNED
        row.update(setting=spelled(setting(row)), sha256=(row.get('sha256') or '')[:12])
    order = VARIED.get(question, ['task', 'arm'])
    return sorted(rows, key=lambda row: [row[name] for name in order])


def answers(row, question):
    """Whether a row answers a question."""
    varied = VARIED.get(question, SHARED)
    same = all(row[name] == value for name, value in SHARED.items() if name not in varied)
    return same and re.split('[-,]', row['name'])[0] in NAMES.get(question, [question])


def best_settings(rows):
    """The rows of the best setting of each attention on each task, by the rule of the map."""
    groups = groups_of(rows, ['task', 'attention', 'setting'])
    best = {key[:2]: key for key in sorted(groups, key=lambda key: merit(groups[key]))}
    return [row for key, group in groups.items() if best[key[:2]] == key for row in group]


def learned_runs(measured):
    """The verdicts' rows in which lab.measure has put a column; lock_in: infinite is never."""
    return [dict(row, lock_in=math.inf if row['lock_in'] is None else row['lock_in'])
            for row in claims.runs() if row.get(measured) is not None]


def structured():
    """The rows of the question, and those of the map on Dyck-3 that were searched alike."""
    rows = [row for row in study.read('map') if row['task'] == 'dyck'
            and row['attention'] in ('rope', 'spectral') and row['muon_lr'] == 0.01
            and row['optimizer'] == 'muon' and row['rope_base'] in (100, 1000, 10000)]
    rows.sort(key=lambda row: row['attention'])
    return [row | dict(arm=claims.ATTENTIONS[row['attention']], setting=spelled(setting(row)))
            for row in rows] + rows_of('structure')


def one_layer():
    """The rows of the relay with one layer of Spectral, and the column start."""
    return [row | dict(start='as RoPE') for row in study.read('relay')
            if (row['attention'], row['n_layer']) == ('spectral', 1)]


def corrupted():
    """Those, and the rows of the same seeds from other starts."""
    names = dict(A='A = 2', Phi='Φ uniform', Omega='Ω with noise', all='all three')
    return one_layer() + [row | dict(start=names[row['name'].removeprefix('corrupt-')])
                          for row in rows_of('corrupt')]


def larger_weights():
    """Modulo with AdamW: the verdicts' rows, and those of the same seeds with larger weights."""
    rows = [row for row in claims.runs('adamw') if row['task'] == 'modulo'
            and row['arm'] in (claims.PLAIN, claims.TUNED, 'Spectral')]
    rows += [row for row in rows_of('init') if row['seed'] in claims.SEEDS]
    return [row | dict(arm=arm_of(row), setting=spelled(setting(row))) for row in rows]


def whole_turns():
    """Bio-Rotation with one layer, on strings of several lengths, with the column turns."""
    verdicts = [row for optimizer in ('adamw', 'muon') for row in claims.runs(optimizer)
                if row['task'] == 'bio_rotation' and row['arm'] in (claims.PLAIN, 'Spectral')]
    rows = [row | dict(arm=arm_of(row), setting=spelled(setting(row)),
                       turns=(row['block_size'] - 1 - 10) / 10)  # of ten letters
            for row in rows_of('whole_turns') + verdicts]
    return sorted(rows, key=lambda row: [row['attention'], row['optimizer'], row['turns']])


def extended(rows):
    """Rows on text as they were measured, with the column training."""
    for row in rows:
        row |= dict(word.split('=', 1) for word in row['override'].split())
        row.update(frequencies=row['frequencies'].partition(',original')[0],
                   rope_base=float(row['rope_base']),
                   training='as trained' if row['init_from'] == 'scratch' else 'tuned at 4L')
    return [row for row in rows if row['arm'] in (text.PAPER, TUNED, 'TAPA')]


def trained_longer(searched):
    """
    Rows of runs at L = 64 and at 8 L, with the columns stage and rates: of the seeds of the search
    for their rates, or of the others.
    """
    rows = [row for row in rows_of('mixed') if (row['seed'] in SEARCHED) == searched]
    for row in rows:
        _, optimizer, rate = setting(row)
        row['rates'] = spelled((None, optimizer, rate))
        if row['attention'] != 'rope':
            row['rates'] += f', Ω {row["positional_lr"]:g}'
        if row['warmup_iters'] == 20:
            row['rates'] += ', warm-up 20'
        if row['attention'] == 'spectral' and 'rope' in row['init_from']:
            row['arm'] = 'RoPE made Spectral'
        row['stage'] = f'{row["max_iters"]} updates at '
        row['stage'] += 'L' if row['block_size'] == LENGTHS[0] else '8L'
        if row['init_from'] != 'scratch':
            row['stage'] = f'then {row["stage"]}'
    return rows


def verdict_of_turns(rows):
    """A line for each arm and setting; Spectral's words for whole turns against each RoPE."""
    cells = BEST | REACH
    groups = groups_of(rows, ['optimizer', 'arm', 'setting'])
    ropes = {key: group for key, group in groups.items() if group[0]['attention'] == 'rope'}
    spectral = {key[0]: group for key, group in groups.items() if key not in ropes}
    tests = claims.as_family({key: claims.gain(spectral[key[0]], group)
                              for key, group in ropes.items()})
    lines = [[*key[1:], *(cell(group) for cell in cells.values()),
              claims.words(tests.get(key))] for key, group in groups.items()]
    return markdown(['arm', 'setting', *cells, 'Spectral with this optimizer against it'], lines)


def same_rate(key):
    """Of an arm and its setting, the RoPE from base 10000 at the same rate."""
    rate = key[1].rpartition(', ')[2]
    return f'{claims.PLAIN}, AdamW', f'base 10000, {rate}'


# ----------------------------------------------------------------------------------------------
# Tables: {question: function of its rows}


def spans(*names):
    """Some columns of a single row, 'a, b, c'."""
    return lambda rows: ', '.join(f'{rows[0][name]:.2f}' for name in names)


def by_depth(rows, name, scale, form):
    """Cells {d: median and quartiles} of the columns NAME@d that there are."""
    return {str(d): quartiles(column(f'{name}@{d}', scale), form) for d in DEPTHS
            if rows[0].get(f'{name}@{d}') is not None}


def seed_by_seed(rows):
    """How each seed of an arm and a setting ended."""
    return table_of_arms(rows, ['arm', 'setting'], {
        'solved': count(solved), 'updates until solved': listed(updates),
        'loss (nats)': listed(best_loss, '.2g')})


QUESTIONS = dict(
    parts=lambda rows: table_of_arms(rows, ['task', 'learn'], FINAL | REACH),
    lock_in=lambda rows: table_of_arms(rows, ['claim', 'arm'], {
        'locked': count(lambda row: row['lock_in'] < math.inf),
        'from': quartiles(column('lock_in'), '.0f'), 'solved at': quartiles(updates, '.0f'),
        'locked before it is solved': count(lambda row: row['lock_in'] < updates(row) < math.inf),
        'at once or after': count(lambda row: updates(row) <= row['lock_in'] < math.inf),
        'and never solved': count(lambda row: row['lock_in'] < updates(row) == math.inf)}),
    structure=lambda rows: table_of_arms(best_settings(rows), ['task', 'arm', 'setting'], FINAL),
    eyes=lambda rows: table_of_arms(rows, ['claim', 'arm'], {
        name: quartiles(column(f'{key}@64', 100)) for name, key in (
            ('both open (%)', 'headline'), ('geometric closed', 'closed_geometric'),
            ('spectral closed', 'closed_spectral'))}),
    gap=lambda rows: table_of_arms(rows, ['arm'], by_depth(rows, 'depth', 100, '.0f')),
    deep=lambda rows: table_of_arms(rows, ['arm'], by_depth(rows, 'cosine', 1, '.2f')),
    learned=lambda rows: table_of_arms(rows, ['task', 'seed'], {
        'A: least, median, most': spans('A_0', 'A_50', 'A_100'),
        'mean A of pairs near a harmonic': quartiles(column('A_near'), '.2f'),
        'of the others': quartiles(column('A_far'), '.2f'),
        '|Φ|: median, most': spans('Phi_50', 'Phi_100'),
        f'|Φ| below {STILL} (%)': quartiles(column('still', 100), '.0f'),
        'near a harmonic': lambda rows: f'{rows[0]["near"]} of {rows[0]["pairs"]}',
        'which': lambda rows: str(rows[0]['harmonics'])}),
    corrupt=lambda rows: table_of_arms(rows, ['start'], {
        'updates until solved': listed(updates), 'loss at the end (nats)': listed(
            column('final_loss'), '.2g')} | REACH),
    strongest=lambda rows: table_of_arms(rows, ['arm'], {
        f'{i}: {name}': quartiles(column(f'{key}@{i}', scale)) for i in range(1, 5)
        for name, key, scale in (('tokens a circle', 'period', 1), ('fits (%)', 'fits', 100))}),
    rate=lambda rows: table_of_arms(rows, ['task', 'positional_lr'], FINAL | REACH),
    english=lambda rows: table_of_arms([row for row in rows if not row['override']],
                                       ['sha256', 'arm', 'setting'], PERPLEXITY),
    tapa=lambda rows: crosstab(rows, ['attention', 'tapa_scale', 'tapa_alpha'], 'tapa_theta',
                               sorted({row['tapa_theta'] for row in rows}),
                               listed(best_loss, '.3f')),
    extensions=lambda rows: table_of_arms(
        extended(rows), ['arm', 'rope_base', 'frequencies', 'training'], PERPLEXITY),
    brackets=lambda rows: table_of_arms(rows, ['arm', 'setting'], BEST, {
        f'against {claims.PLAIN}, at the same rate': same_rate}),
    brackets_weights=lambda rows: table_of_arms(rows, ['arm', 'max_iters'], BEST, {
        f'against {claims.PLAIN}': lambda key: (f'{claims.PLAIN}, AdamW', key[1])}),
    init=lambda rows: table_of_arms(
        rows, ['init_std', 'arm'], {'setting': lambda rows: rows[0]['setting']} | BEST,
        dict.fromkeys(AGAINST, lambda key: (key[0], claims.PLAIN)), AGAINST),
    weights=lambda rows: table_of_arms(rows, ['arm', 'setting'], BEST),
    clock=lambda rows: table_of_arms(rows, ['max_iters', 'setting'], BEST),
    mixed=lambda rows: table_of_arms(rows, ['arm', 'stage'], {
        f'right at {T} (%)': quartiles(column(f'accuracy@{T}', 100), '.0f') for T in LENGTHS}),
    mixed_rates=lambda rows: table_of_arms(rows, ['task', 'arm', 'stage', 'rates'], {
        f'right at {T} (%)': listed(column(f'accuracy@{T}', 100), '.0f') for T in (64, 512, 1024)}),
    turns=lambda rows: table_of_arms(rows, ['arm', 'setting'], {
        f'turn {i}': quartiles(column(f'turn@{i}', 100), '.0f') for i in range(1, 7)}),
    whole_turns=lambda rows: crosstab(rows, ['arm', 'setting'], 'block_size',
                                      sorted({row['block_size'] for row in rows}), count(solved)),
    more_updates=seed_by_seed,
    turns_search=seed_by_seed,
    turns_verdict=verdict_of_turns,
    keys=lambda rows: table_of_arms(rows, ['task', 'arm', 'setting'], FINAL | {
        f'found at {multiple}L (%)': quartiles(column(f'exact@{64 * multiple}', 100))
        for multiple in (1, *MULTIPLES)}))
SOURCES = dict(structure=structured, corrupt=corrupted, init=larger_weights,
               whole_turns=whole_turns,
               mixed=lambda: trained_longer(searched=False),
               mixed_rates=lambda: trained_longer(searched=True),
               learned=lambda: sorted(
                   [row for row in one_layer() + rows_of('learned') if row.get('A_50')],
                   key=lambda row: (row['task'], row['seed'])),
               lock_in=lambda: learned_runs('locked'),
               eyes=lambda: learned_runs('closed_spectral@64'),
               strongest=lambda: rows_of('deep'))


def of_question(name):
    """The function that makes the table of a question."""
    return lambda: QUESTIONS[name](SOURCES.get(name, lambda: rows_of(name))())


TABLES = {name: of_question(name) for name in QUESTIONS}


# ----------------------------------------------------------------------------------------------
# What only a question measures, {column: value}


def gap(model, task, T, hardware):
    """The share of right closers after a closer, by depth, in strings that go deeper."""
    deep = make_task(f'dyck:max_depth={DEPTHS[-1]},p_open=0.8')
    _, (x, y, right) = page.measure(model, deep, T, 512, hardware)
    depth = np.where(deep.headline(x, y), analysis.depth(deep, x), 0)
    return {f'depth@{d}': float(right[depth == d].mean()) for d in DEPTHS if (depth == d).any()}


@torch.no_grad()
def bridges(model, task, T, hardware):
    """
    The cosine of the mean last state at depth d and at d + 1, centred. Of the pairs that are used
    most: tokens a circle, and the share of openers that are whole circles behind the query.
    """
    x, y = task.sample(make_rng('test', str(task), 'bridges'), 512, T, 'test')
    state = model.embedding(torch.from_numpy(x).to(hardware.device))
    for block in model.blocks:
        state = block(state)  # (n, T, C)
    depth = torch.from_numpy(analysis.depth(task, x)).to(hardware.device)
    means = {d: state[depth == d].mean(0) - state.mean((0, 1))
             for d in DEPTHS if (depth == d).any()}
    found = {f'cosine@{d}': torch.cosine_similarity(means[d], means[d + 1], dim=0).item()
             for d in means if d + 1 in means}
    back = analysis.opener_distance(task, x)[task.headline(x, y)] - 1  # from the query
    pairs = pair_use.of_run(model, torch.from_numpy(x).to(hardware.device))
    for i, pair in zip(range(1, 5), sorted(pairs, key=lambda pair: -pair['use'])):
        period = 2 * math.pi / max(abs(pair['frequency']), 1e-9)
        turns = back / period
        fits = (np.abs(turns - np.round(turns)) <= 1 / 8) & (turns > 1 / 2)
        found |= {f'period@{i}': period, f'fits@{i}': float(fits.mean())}
    return found


def bias(model, task, T, hardware):
    """The mean score by distance from L to 8L, in half octaves, over all heads."""
    layers = analysis.score_by_distance(model, task, 9 * T, 4, hardware.device)
    mean = np.concatenate(np.array(layers, dtype=float)).mean(axis=0)  # (distances,)
    return {f'score@{a}': float(mean[a:b].mean()) for a, b in itertools.pairwise(octaves(T))}


def octaves(T):
    """The distances from T to 8T in half octaves: the ends of the bins of `bias`."""
    return np.round(T * 2 ** (np.arange(7) / 2)).astype(int)


def learned(model, task, T, hardware):
    """
    What became of A and Phi, which start at 1 and 0. near: pairs near a harmonic of the period at
    the training length, and which harmonics these are.
    """
    pairs = analysis.frequency_table(model, task.period)
    near = [pair for pair in pairs if analysis.is_near(pair, task.period, T)]
    harmonics = sorted({pair['harmonic'] for pair in near})
    turned = [abs(pair['Phi']) for pair in pairs]
    found = {f'A_{share}': float(np.quantile([pair['A'] for pair in pairs], share / 100))
             for share in (0, 50, 100)}
    found |= {f'Phi_{share}': float(np.quantile(turned, share / 100)) for share in (50, 100)}
    return found | dict(
        A_near=float(np.mean([pair['A'] for pair in near])) if near else None,
        A_far=float(np.mean([pair['A'] for pair in pairs if pair not in near])),
        still=float(np.mean(np.array(turned) < STILL)), near=len(near),
        harmonics=', '.join(map(str, harmonics)))


def turns(model, task, T, hardware):
    """The share of right letters in each turn of Bio-Rotation."""
    shares = by_turn(model, task, T, hardware, n=512)
    return {f'turn@{i}': share for i, share in enumerate(shares, 1)}


MEASURED = dict(gap=gap, bridges=bridges, bias=bias, learned=learned, turns=turns)


def corrupt(folder):
    """Of a run's first state, beside it: one with A = 2, one with Phi uniform, one with another
    Omega, and one with all three."""
    saved = load_checkpoint(folder / '0.pt')
    rng = make_rng(saved['options']['seed'], 'corrupt')
    changes = dict(A=lambda value: 0 * value + 2,
                   Phi=lambda value: rng.uniform(-math.pi, math.pi, value.shape),
                   Omega=lambda value: value * (1 + NOISE * rng.standard_normal(value.shape)))
    for name in (*changes, 'all'):
        weights = dict(saved['model'])
        for key, value in weights.items():
            part = key.rpartition('.')[2]
            if part in changes and name in (part, 'all'):
                weights[key] = torch.as_tensor(changes[part](value.numpy()), dtype=value.dtype)
        write_files(folder, {f'{name}.pt': pack(saved | dict(model=weights))})


def keep(row):
    """Put a row into its CSV. What is known of it stays, and the commit of its sweep."""
    path = study.RESULTS / f'{row["study"]}.csv'
    old = {runs.identity(row): row for row in runs.read_table(path, missing=[])}
    known = old.get(runs.identity(row), {})
    runs.add_rows(path, [known | row | dict(commit=known.get('commit', row['commit']))])


def main(arguments=None):
    """Measure runs as the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('study.questions', __doc__)
    parser.add_argument('question', choices=[*MEASURED, 'corrupt'])
    parser.add_argument('out_dir', nargs='+', type=Path)
    given = parser.parse_args(arguments)
    hardware = choose_hardware()
    for folder in given.out_dir:
        if given.question == 'corrupt':
            corrupt(folder)
        else:
            model, task, saved = page.load_run(folder, 'best.pt', hardware.device)
            found = MEASURED[given.question](model, task, saved['options']['block_size'], hardware)
            keep(runs.read_run(folder) | found)


if __name__ == '__main__':
    with one_line_errors():
        main()
