"""
How near must a frequency start? One pair is placed some turns over the string from a harmonic, and
no other pair fits. study/bifocal.md has the commands.

    python -m study.capture out/capture/*    # where the pair went, into study/results/capture.json
"""

import math
from pathlib import Path

import numpy as np

from configurator import one_line_errors
from lab.options import make_parser
from lab.runs import read_run, read_validations
from lab.table import count, crosstab, solved
from model import GPTConfig, find_grid
from study import read, read_json, write_json
from tasks import make_task

PAIR = 1  # the one that is placed


def turns(frequency, T, period):
    """How many turns over T tokens a frequency is away from 2 pi / period."""
    return (frequency - 2 * math.pi / period) * T / (2 * math.pi)


def path(folder):
    """
    Of a run, by validation: its updates, its losses (nats), and with learned frequencies where the
    pair is in each head, in turns: lists (validations,), and `turns` (heads, validations).
    """
    row, lines = read_run(folder), read_validations(folder)
    found = dict(updates=[line['iter'] for line in lines],
                 losses=[float(f'{line["val_loss"]:.3g}') for line in lines])
    if 'Omega' in lines[0]:
        pair = np.array([line['Omega'][0] for line in lines])[:, :, PAIR]  # (validations, heads)
        period = make_task(row['task']).period
        found['turns'] = turns(pair, row['block_size'], period).T.round(2).tolist()
    return found


def main(arguments=None):
    """Keep the paths of the runs that the command line `arguments` (default: sys.argv) name."""
    parser = make_parser('study.capture', __doc__)
    parser.add_argument('out_dir', nargs='+', type=Path)
    found = read_json('capture')
    for folder in parser.parse_args(arguments).out_dir:
        found[folder.name] = path(folder)
    write_json('capture', found)


def rows():
    """
    The rows, with the columns `of` (T and what else is not usual), `start`: how many turns the pair
    starts away, and `path`: what `path` found, or None.
    """
    found, paths = read('capture'), read_json('capture')
    for row in found:
        T, period = row['block_size'], make_task(row['task']).period
        grid, given = find_grid(GPTConfig(1, frequencies=row['frequencies'], n_embd=64))
        row['start'] = round(turns(given['at'], T, period), 2)
        words = [f'T = {T}'] + ['Muon'] * (row['optimizer'] == 'muon')
        row['of'] = ', '.join(words + [f'period {period}'] * (period != 10))
        row['path'] = paths.get(f'{row["name"]}-{row["seed"]}')
    return sorted(found, key=lambda row: (row['attention'], row['of'], row['start']))


def capture():
    """How many runs solve the task, by how far the pair starts, on either side."""
    found = [row | dict(away=f'{abs(row["start"]):g}') for row in rows()]
    away = sorted({row['away'] for row in found}, key=float)
    return crosstab(found, ['attention', 'of'], 'away', away, count(solved))


TABLES = dict(capture=capture)


if __name__ == '__main__':
    with one_line_errors():
        main()
