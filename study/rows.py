"""
The rows behind every table: study/results/NAME.csv, a row for each run and each way to measure it.

    python -m study.rows claims out/study/confirm/*     # finished runs into claims.csv

A run is a folder with config.json, log.jsonl and at least one eval*.json. Its row has:

    study, name, seed  the folder is out/study/STUDY/NAME-SEED
    override           what was measured, if not best.pt as it is, such as checkpoint=crystal.pt
    every option       of train.py, so that `command` writes what repeats the run
    commit ... torch   what the run was made with; of a resumed run, each session's
    best_loss          the least validation loss (nats); final_loss is the last one
    solved_at          the first iteration with a validation loss of at most 0.01
    lock_in            the iteration from which some pair stays within 0.001 of a harmonic
    MEASURE@LENGTH     of the evaluation, at a length in tokens
"""

import argparse
import csv
import functools
import json
import math
import re
import statistics
import sys
from pathlib import Path

import numpy as np

import train
from checkpoint import read_log
from configurator import UserError, configure, one_line_errors
from lab.runs import find_lock_in
from tasks import make_task

RESULTS = Path(__file__).resolve().parent / 'results'
RUNS = 'out/study'
SOLVED = 0.01  # nats of validation loss

IDENTITY = ('study', 'name', 'seed', 'override')
NO_OPTIONS = ('out_dir', 'seed', 'overwrite', 'device')  # where a run was made, not what it is
GONE = ('amplitude_decay',)  # options of older code; the rows have nothing but their defaults
TEXTS = ('study', 'name', 'override', 'task', 'commit', 'date', 'processor', 'threads', 'torch',
         'harmonics', 'checkpoint', 'split', 'scored', 'measured_commit', 'measured_date',
         'measured_processor', 'spectrum')


# ----------------------------------------------------------------------------------------------
# Rows and commands


def options(row):
    """The options of train.py in a row, {name: value}: the columns before the commit."""
    names = list(row)
    names = names[len(IDENTITY):names.index('commit')]
    return {name: row[name] for name in names if row[name] is not None}


def folder(row):
    """Where the run of a row lies after it is repeated."""
    return f'{RUNS}/{row["study"]}/{row["name"]}-{row["seed"]}'


def command(row):
    """The words, after `python`, that repeat the run of a row."""
    words = [f'--{name}={value}' for name, value in options(row).items()]
    return ['train.py', *words, f'--seed={row["seed"]}', f'--out_dir={folder(row)}']


def at_lengths(row, measure, ending=''):
    """{length in tokens: value} of the columns MEASURE@LENGTH of a row; `ending` follows them."""
    pattern = re.compile(rf'{measure}@(\d+){re.escape(ending)}')
    found = {pattern.fullmatch(column): value for column, value in row.items()}
    return {int(match[1]): value for match, value in found.items() if match and value is not None}


# ----------------------------------------------------------------------------------------------
# The CSVs


def parse(column, text):
    """The value of a cell; None for an empty one."""
    if column == 'override':
        return text
    if text in ('', 'True', 'False'):
        return {'': None, 'True': True, 'False': False}[text]
    if column not in TEXTS:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                pass
    return text


def read(name, *studies):
    """The rows of study/results/NAME.csv as a list of dicts, or only those of some studies."""
    rows = read_file(RESULTS / f'{name}.csv')
    return [row for row in rows if not studies or row['study'] in studies]


@functools.cache
def read_file(path):
    if not path.exists():
        raise UserError(f'{path} does not exist: there are {names()}')
    with open(path, newline='') as file:
        return [{column: parse(column, text) for column, text in cells.items()}
                for cells in csv.DictReader(file)]


def names():
    """The names of the CSVs, for people."""
    return ', '.join(sorted(path.stem for path in RESULTS.glob('*.csv')))


def key(row):
    """What tells rows apart."""
    return tuple(row[column] for column in IDENTITY)


def length_of(column):
    """The length in a column MEASURE@LENGTH, 0 of others: by it such columns are sorted."""
    match = re.search(r'@(\d+)', column)
    return int(match[1]) if match else 0


def write(name, rows):
    """Write study/results/NAME.csv: options first, empty columns left out, 7 digits."""
    rows = sorted(rows, key=key)
    named = {option: None for row in rows for option in options(row)}
    results = {column: None for row in rows for column in row if row[column] is not None}
    rest = [column for column in results if column not in {*IDENTITY, *named}]
    rest.sort(key=length_of)
    # `options` ends at the commit
    rest.sort(key=lambda column: column != 'commit')
    RESULTS.mkdir(parents=True, exist_ok=True)
    with open(RESULTS / f'{name}.csv', 'w', newline='') as file:
        writer = csv.DictWriter(file, [*IDENTITY, *named, *rest], lineterminator='\n',
                                extrasaction='ignore')
        writer.writeheader()
        for row in rows:
            exact = {*IDENTITY, *named}
            writer.writerow({column: value if column in exact else shorter(value)
                             for column, value in row.items()})
    read_file.cache_clear()


def shorter(value):
    """A measured number with 7 digits; float32 has no more."""
    return float(f'{value:.7g}') if isinstance(value, float) else value


# ----------------------------------------------------------------------------------------------
# From a folder to rows


def read_run(path, study=None):
    """
    The rows of the run in a folder, one for each of its eval*.json. Of a run that is not finished
    there is none, and stderr says why.
    """
    path = Path(path)
    files = sorted(file.name for file in path.glob('eval*.json'))
    missing = [file for file in ('config.json', 'log.jsonl') if not (path / file).exists()]
    missing += [] if files else ['eval.json']
    if missing:
        print(f'skipped {path}: it has no {", ".join(missing)}', file=sys.stderr)
        return []
    config, log = json.loads((path / 'config.json').read_text()), read_log(path)
    last, end = max(line['iter'] for line in log), config['options']['max_iters']
    if last < end:
        print(f'skipped {path}: it stopped at iteration {last} of {end}', file=sys.stderr)
        return []
    results = [json.loads((path / file).read_text()) for file in files]
    return [make_row(path, study or path.parent.name, config, log, result) for result in results]


def make_row(path, study, config, log, result):
    """The row of a run as one of its evaluations measured it, {column: value}."""
    given = dict(config['options'])
    for name in GONE:
        if given.pop(name, 0):
            raise UserError(f'{path}: {name} is an option that is gone: no command repeats this')
    every = configure(dict(vars(train)), []) | given
    seed = every['seed']
    task = None  # a text in tokens is not opened, because a stranger's run may name it
    if 'encoding=' not in every['task']:
        task = make_task(every['task'])
        every['task'] = str(task)  # its shortest spelling
    period = getattr(task, 'period', None)

    row = dict(study=study, name=path.name.removesuffix(f'-{seed}'), seed=seed,
               override=override_of(result))
    row |= {name: value for name, value in every.items() if name not in NO_OPTIONS}
    for column in ('commit', 'date', 'processor', 'threads', 'torch'):
        values = dict.fromkeys(str(session[column]) for session in config['sessions'])
        row[column] = '; '.join(values)
    row |= of_training(log, period) | of_frequencies(result, row, log)
    row |= dict(period=period, chance=result['chance'], checkpoint=result['checkpoint'],
                split=result['split'], n=result['n'])
    row['scored'] = ' '.join(reversed(result.get('headline') or ['all targets']))
    row |= {f'measured_{name}': result.get(name) for name in ('commit', 'date', 'processor')}
    row |= of_lengths(result) | of_states(result)
    return row | of_text(result, row) | of_crystal(path, result)


def override_of(result):
    """What tells the evaluations of a run apart, such as 'checkpoint=crystal.pt log_scale=64'."""
    words = dict(result.get('overrides', {}))
    if result['checkpoint'] != 'best.pt':
        words = dict(checkpoint=result['checkpoint']) | words
    if result.get('held_shares'):
        words['held_shares'] = True
    spelled = {name: f'{value:g}' if isinstance(value, float) else value
               for name, value in words.items()}
    return ' '.join(f'{name}={value}' for name, value in spelled.items())


def of_training(log, period):
    """Of a log: the time (seconds), losses (nats) and when things happened (iterations)."""
    lines = [line for line in log if 'val_loss' in line]
    solved = [line['iter'] for line in lines if line['val_loss'] <= SOLVED]
    return dict(seconds=log[-1]['seconds'], iterations=log[-1]['iter'],
                best_loss=min(line['val_loss'] for line in lines),
                final_loss=lines[-1]['val_loss'],
                solved_at=min(solved, default=None), lock_in=find_lock_in(lines, period))


def of_frequencies(result, row, log):
    """Learned pairs: how many locked, onto which harmonics, how far they moved, how many slow."""
    pairs = result.get('frequencies', [])
    columns = {}
    if pairs and 'locked' in pairs[0]:
        locked = [pair for pair in pairs if pair['locked']]
        harmonics = sorted({pair['harmonic'] for pair in locked})
        columns.update(locked=len(locked), pairs=len(pairs),
                       harmonics=','.join(map(str, harmonics)) or None)
    moves = [abs(pair['Omega'] / pair['theta'] - 1) for pair in pairs if pair.get('theta')]
    if moves:
        columns['median_move'] = statistics.median(moves)  # as a share of theta
    omegas = [pair['Omega'] for pair in pairs]
    if not pairs and row['attention'] == 'rope' and row['rope'] == 'geometric':
        size = row['n_embd'] // row['n_head']
        omegas = row['rope_base'] ** (-np.arange(0, size, 2) / size)
    if len(omegas):  # the share of pairs that do not turn once within the training length
        slow = np.abs(omegas) * row['block_size'] < 2 * math.pi
        columns['slow_pairs'] = float(np.mean(slow))
    return columns


def of_lengths(result):
    """The columns MEASURE@LENGTH: accuracies as shares of 1. Variants of the task have a label."""
    columns = {}
    measured = {'': result['lengths']} | result.get('variants', {})
    for label, lengths in measured.items():
        for length, cells in lengths.items():
            for measure in ('accuracy', 'headline', 'exact'):
                columns[f'{measure}@{length} {label}'.strip()] = cells[measure]
            # of the targets beyond the first training length
            columns[f'beyond@{length} {label}'.strip()] = cells.get('headline_beyond')
    for way, lengths in result.get('perplexity', {}).items():
        if way in ('sliding', 'same targets'):
            for length, cells in lengths.items():
                columns[f'perplexity@{length} {way}'] = cells['perplexity']
    for label, cells in result.get('eyes', {}).items():  # heads of one kind give nothing
        columns[f'headline@{result["block_size"]} without {label}'] = cells['headline']
    return columns


def of_states(result):
    """On dyck: cosines of the mean states of depths 10 and 11 after the last layer."""
    layers = result.get('state_similarity') or [{}]
    cosine, centred = layers[-1].get('10') or (None, None)
    return {'cosine of depths 10, 11': cosine, 'centred cosine of depths 10, 11': centred}


def of_text(result, row):
    """
    On text: how much more a near key scores, in standard deviations; closing brackets. The head
    that looks one token back most: the share of its attention one and two tokens back.
    """
    layers = result.get('distance_bias', {}).get('trained', [])
    if not layers:
        return {}
    columns = dict(bias=statistics.mean(abs(one['mean']) / one['sd'] for one in layers))
    cells = result['lengths'].get(str(row['block_size']), {}).get('breakdown', {})
    if 'closing brackets' in cells:
        columns['brackets'] = cells['closing brackets']['right kind'][0]
    heads = [head for layer in result.get('shares_by_distance', []) for head in layer]
    if heads:
        _, columns['one_back'], columns['two_back'], _ = max(heads, key=lambda head: head[1])
    return columns


def of_crystal(path, result):
    """
    Of lab.crystallise: the period that was found (None: none was, or it was given), the q, the
    loss at the training length (nats), and the spectrum: the loss as trained, then for q = 2, ...
    """
    place = (path / result['checkpoint']).parent
    record = (place.parent if place.name == 'settled' else place) / 'crystal.json'
    if not record.exists():
        return {}
    record = json.loads(record.read_text())
    found = None if record['given'] else record['period']
    loss = result['lengths'][str(result['block_size'])]['loss']
    columns = dict(found=found, q=record['q'], loss=loss)
    if not override_of(result):
        losses = [record['trained'], *(loss for loss, _ in record['spectrum'].values())]
        columns['spectrum'] = ' '.join(f'{loss:.4g}' for loss in losses)
    return columns


def gather(name, folders, study=None, prefix=''):
    """
    Put the rows of finished runs into NAME.csv in place of their old ones. Returns them. The
    names of the runs lose the prefix.
    """
    found = [row for path in folders for row in read_run(path, study)]
    for row in found:
        row['name'] = row['name'].removeprefix(prefix)
    replaced = {key(row)[:3] for row in found}
    old = read(name) if (RESULTS / f'{name}.csv').exists() else []
    kept = [row for row in old if key(row)[:3] not in replaced]
    if found:
        write(name, kept + found)
    return found


def main(arguments=None):
    """Gather what the command line `arguments` (default: sys.argv) name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('name', help='of the CSV')
    parser.add_argument('folders', nargs='+', type=Path, help='runs')
    parser.add_argument('--study', help="the column `study` (default: the folder's parent)")
    parser.add_argument('--prefix', default='', help='left out of the names of the folders')
    given = parser.parse_args(arguments)
    folders = [path for path in given.folders if path.is_dir()]
    found = gather(given.name, folders, given.study, given.prefix)
    runs = {key(row)[:3] for row in found}
    print(f'{given.name}: {len(runs)} runs gathered, {len(found)} rows')


if __name__ == '__main__':
    with one_line_errors():
        main()
