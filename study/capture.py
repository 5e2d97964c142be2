"""
How near must a frequency start? One pair is placed some circles over the string from a harmonic,
and no other pair fits. study/bifocal.md has the commands.

    python -m study.capture out/capture/*    # where the pair went, into study/results/capture.json
"""

import math
import statistics
from pathlib import Path

import numpy as np

import train
from configurator import one_line_errors
from lab.options import make_parser
from lab.runs import read_run, read_validations
from lab.table import best_loss, count, crosstab, groups_of, solved
from model import GPTConfig, find_frequencies
from study import claims, read, read_json, write_json
from tasks import make_task

PAIR = 1  # the one that is usually placed
EARLY = 30  # updates: the landscape in which the pair sets out


def circles(frequency, T, period):
    """How many circles over T tokens a frequency is away from 2 pi / period."""
    return (frequency - 2 * math.pi / period) * T / (2 * math.pi)


def frequency_at(circles, T, period):
    """The frequency that is so many circles away: the inverse of `circles`."""
    return 2 * math.pi * (1 / period + circles / T)


def contrast(frequency, T, period):
    """
    How much higher a pair of this frequency can score the right letters than the others, in the
    mean over the blanks of Bio-Rotation, |on - off|: the mean arrow at their distances, and at the
    others'.
    """
    blank, letter = np.arange(1 + period, T)[:, None], np.arange(period)
    right = (blank - 1 - period) % period == letter  # (blanks, letters)
    arrows = np.exp(1j * frequency * (blank - 1 - letter))
    return abs(arrows[right].mean() - arrows[~right].mean())


def first_valley(T, period):
    """How many circles from the harmonic the contrast is least, before it rises again."""
    steps = np.arange(0, 2, 0.01)
    found = [contrast(frequency_at(step, T, period), T, period) for step in steps]
    return steps[np.flatnonzero(np.diff(found) > 0)[0]]


def placement(row):
    """What the option frequencies=placed of a row gives: {'pair': number, 'at': number}."""
    names = 'n_embd', 'n_head', 'frequencies'
    _, given = find_frequencies(GPTConfig(vocab_size=1, **{name: row[name] for name in names}))
    return given


def path(folder):
    """
    Where the placed pair of a run is at its validations: lists `updates` (validations,), and
    `circles` away (heads, validations).
    """
    row, lines = read_run(folder), read_validations(folder)
    pair = int(placement(row)['pair'])
    Omega = np.array([line['Omega'][0] for line in lines])  # (validations, heads, P)
    away = circles(Omega[:, :, pair], row['block_size'], make_task(row['task']).period)
    return dict(updates=[line['iter'] for line in lines], circles=away.T.round(2).tolist())


def main(arguments=None):
    """Keep the paths of the runs that the command line `arguments` (default: sys.argv) name."""
    parser = make_parser('study.capture', __doc__)
    parser.add_argument('out_dir', nargs='+', type=Path)
    found = read_json('capture')
    for folder in parser.parse_args(arguments).out_dir:
        found[folder.name] = path(folder)
    write_json('capture', found)


def setting_of(row, period, pair):
    """'L = 64', and what else is not usual."""
    words = [f'L = {row["block_size"]}']
    if period != 10:
        words.append(f'period {period}')
    if pair != PAIR:
        words.append(f'pair {pair:g}')
    if row['optimizer'] == 'muon':
        words.append('Muon')
    if row['positional_lr'] != train.positional_lr:
        words.append(f"Ω's rate at {row['positional_lr']:g}")
    return ', '.join(words)


def rows():
    """The rows, with the columns arm, setting, start and away: signed and unsigned, in circles."""
    found = read('capture')
    for row in found:
        given, period = placement(row), make_task(row['task']).period
        row['arm'] = claims.ATTENTIONS[row['attention']]
        row['setting'] = setting_of(row, period, given['pair'])
        row['start'] = round(circles(given['at'], row['block_size'], period), 2)
        row['away'] = abs(row['start'])
    return sorted(found, key=lambda row: (row['arm'], row['block_size'], row['setting'],
                                          row['start']))


def by_column(rows, name, measure):
    """{value of a column: the measure of the rows that have it}, by size."""
    return {value: measure(group) for (value,), group in sorted(groups_of(rows, [name]).items())}


def share_solved(rows):
    return 100 * statistics.mean(map(solved, rows))


def early_loss(rows):
    return statistics.median(map(best_loss, rows))


def ridge_of(rows):
    """The start of the greatest early loss: '1.25'; '≥ 1.5' if none that is farther ran."""
    heights = by_column(rows, 'away', early_loss)
    highest = max(heights, key=heights.get)
    return f'≥ {highest:g}' if highest == max(heights) else f'{highest:g}'


def capture():
    """
    How many runs solve the task, by how many circles away the pair starts; where the contrast has
    its valley, and RoPE's early loss its ridge.
    """
    found = rows()
    for _, group in groups_of(found, ['setting']).items():
        valley = first_valley(group[0]['block_size'], make_task(group[0]['task']).period)
        early = [row for row in group if row['max_iters'] == EARLY and row['arm'] == 'RoPE']
        ridge = ridge_of(early) if early else ''
        for row in group:
            row.update(valley=f'{valley:.2f}', ridge=ridge)
    whole = [row for row in found if row['max_iters'] != EARLY]
    starts = sorted({row['away'] for row in whole})
    return crosstab(whole, ['setting', 'arm', 'valley', 'ridge'], 'away', starts, count(solved))


TABLES = dict(capture=capture)


if __name__ == '__main__':
    with one_line_errors():
        main()
