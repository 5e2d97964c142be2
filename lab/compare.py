"""
Runs side by side: seeds together, and compared with a baseline by the rule of lab/table.py.

    python -m lab.compare out/modulo_*                     # two Markdown tables, out/compare.png
    python -m lab.compare out/modulo_* --baseline attention=rope rope_base=100
    python -m lab.compare out/modulo_* --file measure_crystal.json

Runs that differ in nothing but the seed are an arm. Each option that differs between runs is a
column, and so is how they were measured. Options are those of each config.json, yours too.
Lengths are those of measure.json, which lab.measure writes, if every run has it.
"""

import itertools
import statistics
import sys
import textwrap
from pathlib import Path

from checkpoint import read_log
from configurator import one_line_errors
from lab import plot
from lab.options import make_parser
from lab.runs import options_of, read_runs, texts_of
from lab.table import (best_loss, column, count, groups_of, listed, quartiles, show, solved,
                       spread, table, updates)
from model import UserError

NOT_COMPARED = {'log_interval'}  # it changes no result
MEASURED = ('override', 'n')


def differing(rows):
    """The columns that tell arms apart: task, attention, and each option that differs."""
    names = dict.fromkeys(name for row in rows for name in options_of(row))
    others = [name for name in (*names, *MEASURED)
              if name not in NOT_COMPARED and len({row.get(name) for row in rows}) > 1]
    return list(dict.fromkeys(['task', 'attention', *others]))


def find_baselines(rows, by, words):
    """
    {task: key of the one arm with these options}, of words key=value. Raises UserError if no arm
    has them, and where several of one task have them.
    """
    wanted = dict(word.partition('=')[::2] for word in words)
    found = {}
    for key, group in groups_of(rows, by).items():
        if all(text in texts_of(group[0].get(name)) for name, text in wanted.items()):
            found.setdefault(group[0]['task'], []).append(key)
    line = ' '.join(words)
    if not found:
        raise UserError(f'--baseline {line}: no run has that')
    for keys in found.values():
        if len(keys) > 1:
            names = '; '.join(name_of(by, key) for key in keys)
            raise UserError(f'--baseline {line}: {len(keys)} arms have that: {names}')
    return {task: keys[0] for task, keys in found.items()}


def name_of(by, key):
    """'rope rope_base=100' of the values of an arm."""
    _, attention, *values = key
    return ' '.join([attention, *(f'{name}={show(value, ".6g")}'
                                  for name, value in zip(by[2:], values))])


def reach(row):
    """The mean accuracy (%) beyond the training length, over all lengths; None: not measured."""
    shares = [value for name, value in row.items() if name.startswith('beyond@')]
    return 100 * statistics.fmean(shares) if shares else None


def print_losses(rows, by, against):
    """A row for each arm: when it was solved, its losses, and its locked frequencies."""
    cells = {'seeds': listed(column('seed')), 'solved': count(solved),
             'updates until solved': quartiles(updates, '.0f'),
             'loss (nats): median [quartiles]': quartiles(best_loss)}
    if any(row.get('locked') is not None for row in rows):
        cells |= {'locked pairs': listed(column('locked')),
                  'locked from iteration': listed(column('lock_in'))}
    # a low loss is one thing, to reach it soon another
    compared, measures = {}, {}
    for header, baseline in against.items():
        for what, measure in dict(loss=best_loss, updates=updates).items():
            compared[f'{what}, {header}'] = baseline
            measures[f'{what}, {header}'] = measure
    print(table(rows, by, cells, compared, measures))


def print_lengths(rows, by):
    """A row for each arm: its headline by length, in training lengths, and beyond the first."""
    lengths = {(int(name.partition('@')[2]), row['block_size'])
               for row in rows for name in row if name.startswith('headline@')}
    multiples = sorted({length / T for length, T in lengths})
    cells = {'n': len}
    for multiple in multiples:
        def at(row, multiple=multiple):
            share = row.get(f'headline@{round(multiple * row["block_size"])}')
            return share if share is None else 100 * share
        cells[f'headline at {multiple:g}x (%)'] = spread(at)
    if any(reach(row) is not None for row in rows):
        cells['headline beyond 1x (%)'] = spread(reach)
    print(table(rows, by, cells))


def draw_runs(plt, rows, by):
    """
    The figure: a column a task, a colour an arm, a line a run. Above the validation loss while
    training, below the accuracy by length, if it was measured.
    """
    arms = groups_of(rows, by)
    tasks = list(dict.fromkeys(key[0] for key in arms))
    figure, panels = plt.subplots(2, len(tasks), squeeze=False,
                                  figsize=(4 * len(tasks), 7 + 0.2 * len(arms)))
    for (above, below), task in zip(panels.T, tasks):
        own, others = dict(plot.COLORS), itertools.cycle(plot.MORE_COLORS)
        for key in (key for key in arms if key[0] == task):
            color = own.pop(key[1], None) or next(others)  # an attention's second arm has another
            for row in arms[key]:
                log = [line for line in read_log(row['folder']) if 'val_loss' in line]
                plot.plot_losses(above, [line['iter'] for line in log],
                                 [line['val_loss'] for line in log], color, None, alpha=0.7)
                lengths = sorted(int(name.partition('@')[2]) for name in row
                                 if name.startswith('headline@'))
                right = [100 * row[f'headline@{length}'] for length in lengths]
                below.plot(lengths, right, 'o-', color=color, alpha=0.7)
            label = plot.plain(textwrap.shorten(name_of(by, key), 50))
            below.plot([], [], color=color, label=label)
        above.set_title(plot.plain(task))
        below.set(xscale='log', xlabel='tokens', ylabel='right answers (%)', ylim=(-3, 103))
        below.set_xticks(lengths, map(str, lengths))
        below.minorticks_off()
        below.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), fontsize='small')
    return figure


def main(arguments=None):
    """Compare the runs that the command line `arguments` (default: sys.argv) name."""
    parser = make_parser('lab.compare', __doc__)
    add = parser.add_argument
    add('runs', nargs='+', metavar='DIR', type=Path, help='folders of runs')
    add('--file', help='what lab.measure wrote in each (default: measure.json, if all have it)')
    add('--figure', type=Path, default=Path('out/compare.png'), help='default: %(default)s')
    add('--baseline', nargs='+', metavar='KEY=VALUE',
        help='the arm to compare with, by its options (default: attention=rope, if it is one arm)')
    given = parser.parse_args(arguments)
    file = given.file
    if file is None and all((folder / 'measure.json').exists() for folder in given.runs):
        file = 'measure.json'
    rows = read_runs(given.runs, file)
    rows.sort(key=lambda row: row['task'])
    by, words = differing(rows), given.baseline or ['attention=rope']
    try:
        baselines = find_baselines(rows, by, words)
    except UserError:
        if given.baseline:
            raise
        baselines = {}  # several such arms, or none: nothing is compared
    named = ' '.join(words).removeprefix('attention=')
    against = {f'against {named}': lambda key: baselines.get(key[0])} if baselines else {}
    print_losses(rows, by, against)
    if any('chance' in row for row in rows):
        print_lengths(rows, by)
    plt = plot.pyplot()
    if plt:
        plot.save(plt, draw_runs(plt, rows, by), given.figure, dpi=130)
        print(f'wrote {given.figure}', file=sys.stderr)


if __name__ == '__main__':
    with one_line_errors():
        main()
