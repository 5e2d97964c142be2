"""
Runs side by side: seeds together, and compared with a baseline by the rule of lab/table.py.

    python -m lab.compare out/modulo_*                     # two Markdown tables, out/compare.png
    python -m lab.compare out/modulo_* --baseline attention=rope rope_base=100
    python -m lab.compare out/modulo_* --file eval_crystal.json

Runs that differ in nothing but the seed are an arm. Each option that differs between runs is a
column, and so is how they were measured. Options are those of each config.json, yours too.
Lengths are those of measure.json, if every run has it, or of eval.json.
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
from lab.runs import options_of, read_runs
from lab.table import (best_loss, column, count, groups_of, listed, quartiles, show, solved,
                       spread, table, updates)
from model import UserError

NOT_COMPARED = {'log_interval'}  # it changes no result
MEASURED = ('override', 'split', 'n')


def differing(rows):
    """The columns that tell arms apart: task, attention, and each option that differs."""
    names = dict.fromkeys(name for row in rows for name in options_of(row))
    others = [name for name in (*names, *MEASURED)
              if name not in NOT_COMPARED and len({row.get(name) for row in rows}) > 1]
    return list(dict.fromkeys(['task', 'attention', *others]))


def find_file(folders):
    """The file of results that these runs have; None if none of them has one."""
    if all((folder / 'measure.json').exists() for folder in folders):
        return 'measure.json'
    if any((folder / 'eval.json').exists() for folder in folders):
        return 'eval.json'
    return None


def find_baselines(rows, by, words):
    """
    {task: key of the one arm with these options}, of words key=value. Raises UserError if no arm
    has them, and where several of one task have them.
    """
    wanted = dict(word.partition('=')[::2] for word in words)
    found = {}
    for key, group in groups_of(rows, by).items():
        if all(show(group[0].get(name), '.6g') == text for name, text in wanted.items()):
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
    print(table(rows, by, cells, against))


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


def draw(plt, rows, by):
    """
    The figure of these runs, a column for each task. Above: validation loss while training, the
    median and every seed. Below: accuracy by length, the mean and every seed.
    """
    arms = groups_of(rows, by)
    tasks = {task: list(keys) for task, keys in itertools.groupby(arms, lambda key: key[0])}
    lines = max(map(len, tasks.values()))  # of the longest legend
    figure, panels = plt.subplots(2, len(tasks), squeeze=False,
                                  figsize=(3.9 * len(tasks) + 0.4, 7 + 0.2 * lines))
    for (above, below), (task, keys) in zip(panels.T, tasks.items()):
        colors = itertools.cycle(plot.MORE_COLORS)
        attentions = [key[1] for key in keys]
        for key in keys:
            color = plot.COLORS.get(key[1])
            if color is None or attentions.count(key[1]) > 1:
                color = next(colors)
            draw_losses(above, arms[key], color)
            draw_lengths(below, arms[key], color, name_of(by, key))
        above.set_title(plot.plain(f'{task}: loss while training'))
        below.set_title(plot.plain(f'{task}: accuracy by length'))
        below.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), fontsize='small')
    for above in panels[0, 1:]:
        above.set_ylabel('')
    return figure


def draw_losses(axes, rows, color):
    """The validation losses of each run of an arm, thin, and their median."""
    losses = {}
    for row in rows:
        log = {line['iter']: line['val_loss']
               for line in read_log(row['folder']) if 'val_loss' in line}
        plot.plot_losses(axes, list(log), list(log.values()), color, None,
                         alpha=0.3, linewidth=0.8)
        for iteration, loss in log.items():
            losses.setdefault(iteration, []).append(loss)
    shared = sorted(it for it, values in losses.items() if len(values) == len(rows))
    medians = [statistics.median(losses[it]) for it in shared]
    plot.plot_losses(axes, shared, medians, color, None)


def draw_lengths(axes, rows, color, label):
    """The accuracy by length of each run of an arm, as dots, and their mean, as a line."""
    lengths = sorted(int(name.partition('@')[2]) for name in rows[0]
                     if name.startswith('headline@') and all(name in row for row in rows))
    values = [[100 * row[f'headline@{length}'] for row in rows] for length in lengths]
    axes.plot(lengths, list(map(statistics.fmean, values)), color=color,
              label=plot.plain(textwrap.shorten(label, 50)))
    for length, shares in zip(lengths, values):
        axes.plot([length] * len(shares), shares, 'o', color=color, markersize=4, alpha=0.6)
    if lengths:
        axes.axhline(100 * rows[0]['chance'], color='grey', linestyle=':', linewidth=1)
    axes.set(xscale='log', xlabel=f'tokens (trained at {rows[0]["block_size"]}); dotted: chance',
             ylabel='right answers (%)', ylim=(-3, 103))
    axes.set_xticks(lengths, map(str, lengths))
    axes.minorticks_off()


def main(arguments=None):
    """Compare the runs that the command line `arguments` (default: sys.argv) name."""
    parser = make_parser('lab.compare', __doc__)
    add = parser.add_argument
    add('runs', nargs='+', metavar='DIR', type=Path, help='folders of runs')
    add('--file', help='the results in each (default: measure.json or eval.json)')
    add('--figure', type=Path, default=Path('out/compare.png'), help='default: %(default)s')
    add('--baseline', nargs='+', metavar='KEY=VALUE',
        help='the arm to compare with, by its options (default: attention=rope, if it is one arm)')
    given = parser.parse_args(arguments)
    rows = read_runs(given.runs, given.file or find_file(given.runs))
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
        plot.save(plt, draw(plt, rows, by), given.figure, dpi=130)
        print(f'wrote {given.figure}', file=sys.stderr)


if __name__ == '__main__':
    with one_line_errors():
        main()
