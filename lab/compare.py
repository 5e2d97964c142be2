"""
Runs side by side: seeds together, and compared with a baseline by the rule of lab/table.py.

    python -m lab.compare out/modulo_*                     # two Markdown tables, out/compare.png
    python -m lab.compare out/modulo_* --baseline attention=rope rope_base=100

Runs that differ in nothing but the seed are an arm. Each option that differs between runs is a
column. Options are those of each config.json, yours too. Lengths are of the runs that have
measure.json, which lab.measure writes.
"""

import itertools
import statistics
import textwrap
from pathlib import Path

from checkpoint import read_log
from configurator import one_line_errors
from lab import plot
from lab.options import make_parser
from lab.runs import has, options_of, read_folder
from lab.table import (best_loss, column, count, groups_of, listed, quartiles, show, solved,
                       spread, table_of_arms, updates)
from model import UserError

FIGURE = Path('out/compare.png')


def differing(rows):
    """The columns that tell arms apart: task, attention, and each option that differs."""
    names = dict.fromkeys(name for row in rows for name in options_of(row))
    others = [name for name in names if len({row.get(name) for row in rows}) > 1]
    return list(dict.fromkeys(['task', 'attention', *others]))


def find_baselines(rows, by, words):
    """{task: the arm whose options are these words key=value}; {} if a task has several."""
    arms = [key for key, group in groups_of(rows, by).items() if has(group[0], words)]
    found = {key[0]: key for key in arms}
    return found if len(found) == len(arms) else {}


def name_of(by, key):
    """'rope rope_base=100' of the values of an arm."""
    _, attention, *values = key
    return ' '.join([attention, *(f'{name}={show(value, ".6g")}'
                                  for name, value in zip(by[2:], values))])


def reach(row):
    """The mean accuracy (%) beyond the training length, over all lengths; None: not measured."""
    shares = [value for name, value in row.items() if name.startswith('beyond@')]
    return 100 * statistics.fmean(shares) if shares else None


def print_losses(rows, by, baseline, arms):
    """
    A row for each arm: when it was solved, and its losses. `arms` are {task: the one to compare
    with}, and `baseline` names them.
    """
    cells = {'seeds': listed(column('seed')), 'solved': count(solved),
             'updates until solved': quartiles(updates, '.0f'),
             'loss (nats): median [quartiles]': quartiles(best_loss)}
    # a low loss is one thing, to reach it soon another
    measures = {f'loss, against {baseline}': best_loss, f'updates, against {baseline}': updates}
    against = dict.fromkeys(measures, lambda key: arms.get(key[0])) if arms else {}
    print(table_of_arms(rows, by, cells, against, measures))


def print_lengths(rows, by):
    """A row for each arm: its headline (%) by length, and beyond the training length."""
    lengths = {int(name.partition('@')[2]) for row in rows for name in row
               if name.startswith('headline@')}
    cells = {'n': len}
    for length in sorted(lengths):
        cells[f'headline at {length} tokens (%)'] = spread(column(f'headline@{length}', 100))
    if any(reach(row) is not None for row in rows):
        cells['headline beyond (%)'] = spread(reach)
    print(table_of_arms(rows, by, cells))


def draw_runs(plt, rows, by):
    """The validation loss while training: a panel a task, a colour an arm, a line a run."""
    tasks = groups_of(rows, ['task'])
    figure, panels = plt.subplots(1, len(tasks), squeeze=False, figsize=(5 * len(tasks), 5))
    for axes, ((task,), group) in zip(panels[0], tasks.items()):
        colors = itertools.cycle([*plot.COLORS.values(), *plot.MORE_COLORS])
        for (key, arm), color in zip(groups_of(group, by).items(), colors):
            for row in arm:
                plot.plot_losses(axes, read_log(row['folder']), color=color, alpha=0.7)
            axes.plot([], [], color=color, label=plot.plain(textwrap.shorten(name_of(by, key), 50)))
        axes.set_title(plot.plain(task))
        axes.legend(fontsize='small')
    return figure


def main(arguments=None):
    """Compare the runs that the command line `arguments` (default: sys.argv) name."""
    parser = make_parser('lab.compare', __doc__)
    add = parser.add_argument
    add('runs', nargs='+', metavar='DIR', type=Path, help='folders of runs')
    add('--baseline', nargs='+', metavar='KEY=VALUE',
        help='the arm to compare with, by its options (default: attention=rope, if it is one arm)')
    given = parser.parse_args(arguments)
    folders = dict.fromkeys(folder.resolve() for folder in given.runs)
    rows = [row for folder in folders for row in read_folder(folder, 'measure.json')]
    if not rows:
        raise UserError('none of these is a finished run')
    rows.sort(key=lambda row: row['task'])
    by, words = differing(rows), given.baseline or ['attention=rope']
    arms = find_baselines(rows, by, words)
    if given.baseline and not arms:
        raise UserError(f'--baseline {" ".join(words)}: no run has that, or several arms of a task')
    print_losses(rows, by, ' '.join(words).removeprefix('attention='), arms)
    with_lengths = [row for row in rows if 'n' in row]
    if with_lengths:
        print_lengths(with_lengths, by)
    plt = plot.pyplot()
    if plt:
        plot.save(draw_runs(plt, rows, by), FIGURE, dpi=130)


if __name__ == '__main__':
    with one_line_errors():
        main()
