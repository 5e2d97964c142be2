"""
The rows behind every table: study/results/NAME.csv, a row for each run and each way to measure it.

    python -m study.rows crystal out/study/crystal/*    # finished runs into crystal.csv
    python -m study.rows map --commands 'task=dyck' 'attention=rope' 'seed=23'

study/run.py appends rows. The first form above gathers what lab/runs.py reads of the folders of
runs. The second prints the commands that repeat rows.
"""

import argparse
import csv
import functools
import re
import shlex
import sys
from pathlib import Path

import train
from configurator import one_line_errors
from lab import runs
from lab.runs import IDENTITY, read_run
from lab.table import show
from model import UserError

RESULTS = Path(__file__).resolve().parent / 'results'
NOT_OPTIONS = {'out_dir', 'overwrite', 'device'}  # they do not change a result
# columns with text, also where it looks like a number
TEXTS = {'study', 'name', 'override', 'task', 'commit', 'date', 'processor', 'threads', 'torch',
         'checkpoint', 'split', 'spectrum'}


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


def read(name):
    """The rows of study/results/NAME.csv as a list of dicts."""
    return [dict(row) for row in read_file(RESULTS / f'{name}.csv')]


@functools.cache
def read_file(path):
    """The rows of a CSV; `best_loss` has its name in all of them."""
    if not path.exists():
        names = ', '.join(sorted(other.stem for other in RESULTS.glob('*.csv')))
        raise UserError(f'{path} does not exist: there are {names}')
    with open(path, newline='') as file:
        return [{column.replace('best_val_', 'best_'): parse(column, text)
                 for column, text in cells.items()} for cells in csv.DictReader(file)]


def options_of(row):
    """The options of train.py in a row, {name: value}; study/run.py ends them at `solved_at`."""
    if 'study' in row:
        return runs.options_of(row)
    names = list(row)
    return {name: row[name] for name in names[:names.index('solved_at')] if name != 'seed'}


def write(name, rows):
    """Write study/results/NAME.csv: options first, empty columns left out, 7 digits."""
    options = dict.fromkeys(option for row in rows for option in options_of(row))
    results = dict.fromkeys(column for row in rows for column, value in row.items()
                            if value is not None and column != 'folder')
    rest = [column for column in results if column not in {*IDENTITY, *options}]
    rest.sort(key=lambda column: column != 'commit')  # the options end at the commit
    RESULTS.mkdir(parents=True, exist_ok=True)
    with open(RESULTS / f'{name}.csv', 'w', newline='') as file:
        writer = csv.DictWriter(file, [*IDENTITY, *options, *rest], lineterminator='\n',
                                extrasaction='ignore')
        writer.writeheader()
        for row in rows:
            writer.writerow({column: value if column in options else shorter(value)
                             for column, value in row.items()})
    read_file.cache_clear()


def shorter(value):
    """A measured number with 7 digits; float32 has no more."""
    return float(f'{value:.7g}') if isinstance(value, float) else value


def gather(name, folders):
    """Put the rows of finished runs into NAME.csv in place of their old ones; their number."""
    found = []
    for folder in map(Path, folders):
        files = sorted(path.name for path in folder.glob('eval*.json'))
        for file in files or ['eval.json']:
            try:
                row = read_run(folder, file)
                found.append({name: row[name] for name in row if name not in NOT_OPTIONS})
            except UserError as error:
                print(f'skipped {error}', file=sys.stderr)
    replaced = {key(row) for row in found}
    old = read(name) if (RESULTS / f'{name}.csv').exists() else []
    write(name, [row for row in old if key(row) not in replaced] + found)
    return len(found)


def key(row):
    """What tells rows apart."""
    return tuple(row[column] for column in IDENTITY)


def command(row):
    """The command that repeats the run of a row."""
    words = [f'--{name}={value}' for name, value in options_of(row).items()]
    words = ['python', 'train.py', *words, f'--seed={row["seed"]}', '--out_dir=out/again']
    return shlex.join(words)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('name', help='of the CSV')
    parser.add_argument('folders', nargs='*', type=Path, help='runs')
    parser.add_argument('--commands', nargs='+', metavar='COLUMN=VALUE', help='of these rows')
    given = parser.parse_args(arguments)
    if given.folders:
        n = gather(given.name, filter(Path.is_dir, given.folders))
        print(f'{given.name}: {n} rows gathered')
    wanted = [word.split('=', 1) for word in given.commands or ()]
    for row in read(given.name) if wanted else ():
        if all(re.fullmatch(value, show(row.get(column), '.6g')) for column, value in wanted):
            print(command(row))


if __name__ == '__main__':
    with one_line_errors():
        main()
