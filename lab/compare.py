"""
Runs side by side: seeds together, and their differences to a baseline.

    python -m lab.compare out/modulo_*                     # two Markdown tables, out/compare.png
    python -m lab.compare out/modulo_* --baseline attention=rope rope_base=100
    python -m lab.compare out/modulo_* --file eval_crystal.json

Runs that differ in nothing but the seed are an arm. Each option that differs between runs is a
column, and so is how they were measured. Options are those of each config.json, yours too.
"""

import argparse
import dataclasses
import itertools
import math
import statistics
import sys
import textwrap
from pathlib import Path

import numpy as np

from checkpoint import read_log
from configurator import UserError, one_line_errors
from eval import LOCKED, plain
from lab import plot
from lab.runs import count, number, printable, read_json, reading

SOLVED = 0.01  # nats
LEAST = 1e-9  # nats; a logarithm has no 0, so a smaller loss counts as this
# options that change no result, or have a column of their own
NOT_COMPARED = {'seed', 'out_dir', 'overwrite', 'device', 'log_interval'}


@dataclasses.dataclass
class Run:
    """A finished run, as its files tell it."""

    folder: Path
    options: dict  # of train.py, and how it was measured
    seed: int
    block_size: int  # T, the training length in tokens
    losses: dict  # {iteration: validation loss in nats}
    accuracy: dict  # {tokens: headline accuracy of strings of this length}
    beyond: dict  # {tokens: the same of the targets beyond the first T}; {} if not measured
    chance: float
    locked: int | None  # learned pairs near a harmonic of the task's period; None: no such pairs
    lock_in: int | None  # the iteration from which the first of them stays there

    @property
    def best_loss(self):
        return min(self.losses.values())

    @property
    def solved_at(self):
        """The first iteration with a validation loss of at most SOLVED, or None."""
        return next((it for it, loss in self.losses.items() if loss <= SOLVED), None)

    @property
    def log_loss(self):
        return math.log10(max(LEAST, self.best_loss))

    @property
    def reach(self):
        """The mean accuracy beyond the training length, over all lengths; NaN if not measured."""
        return statistics.fmean(self.beyond.values()) if self.beyond else math.nan


def read_run(folder, name='eval.json'):
    """The Run in a folder. Raises UserError if it has not ended, was not measured or is broken."""
    folder = Path(folder)
    with reading(folder):
        config = read_json(folder / 'config.json')
        log = read_log(folder)
        result = read_json(folder / name)
        options = dict(config['options'], task=config['task'])
        for key in ('checkpoint', 'split', 'n'):
            options[f'measured {key}'] = result.get(key)
        for key, value in result.get('overrides', {}).items():
            options[f'measured {key}'] = value
        options = {printable(key): scalar(value) for key, value in options.items()}
        last = max((count(line['iter'], 'iter', 0) for line in log), default=0)
        if last < options['max_iters']:
            raise UserError(f'{folder}: it stopped at iteration {last} of {options["max_iters"]}')

        T = count(options['block_size'], 'block_size')
        lines = [line for line in log if 'val_loss' in line]
        lengths = {count(int(length), 'length'): cells
                   for length, cells in result['lengths'].items()}
        if not (lines and lengths):
            raise ValueError('there is no validation, or no length')
        longer = {length: cells for length, cells in lengths.items() if length > T}
        beyond = {}
        if all('headline_beyond' in cells for cells in longer.values()):
            beyond = {length: number(cells['headline_beyond'], 'headline_beyond')
                      for length, cells in longer.items()}
        pairs = result.get('frequencies', [])
        locked = None
        if pairs and 'locked' in pairs[0]:
            locked = sum(bool(pair['locked']) for pair in pairs)
        return Run(
            folder, options, count(options['seed'], 'seed', 0), T,
            losses={line['iter']: number(line['val_loss'], 'val_loss') for line in lines},
            accuracy={length: number(cells['headline'], 'headline')
                      for length, cells in lengths.items()},
            beyond=beyond, chance=number(result['chance'], 'chance'), locked=locked,
            lock_in=find_lock_in(lines, result.get('period')))


def scalar(value):
    """A value that an option may have, or None. Raises ValueError or OverflowError for others."""
    if type(value) is str:
        return printable(value)
    if value is not None:
        float(value)  # also refuses integers that are too long to print
    return value


def find_lock_in(lines, period):
    """
    The first iteration from which some pair stays locked to a harmonic of the period to the end,
    by the validations of a log. None if no pair does, or without period or learned frequencies.
    """
    lines = [line for line in lines if 'Omega' in line]
    if not period or not lines:
        return None
    omega = np.abs([np.ravel(line['Omega']) for line in lines])  # (validations, pairs)
    j = np.round(omega * period / (2 * math.pi))
    near = np.abs(omega - 2 * math.pi * j / period) < LOCKED
    locked = near & (j % period != 0)
    stays = np.cumprod(locked[::-1], axis=0).sum(axis=0)  # of each pair: the last ones locked
    if stays.max() == 0:
        return None
    return lines[len(lines) - stays.max()]['iter']


def read_runs(folders, name):
    """The Runs in folders. Others are left out with a line on stderr. UserError if none is left."""
    runs = []
    for folder in dict.fromkeys(Path(folder).resolve() for folder in folders):
        try:
            runs.append(read_run(folder, name))
        except UserError as error:
            print(f'skipped {error}', file=sys.stderr)
    if not runs:
        raise UserError(f'none of these is a finished run with {name}: measure each of them '
                        'with eval.py first')
    return runs


@dataclasses.dataclass
class Arm:
    """The runs that differ in nothing but the seed, by seed."""

    options: dict  # those that differ between arms; None where a run does not have it
    task: str
    attention: str
    runs: list

    @property
    def name(self):
        words = [f'{key}={show(value)}' for key, value in self.options.items()
                 if key not in ('attention', 'task')]
        return ' '.join([self.attention, *words])


def make_arms(runs):
    """The Arms of these runs, by task, in the order of the folders."""
    names = dict.fromkeys(name for run in runs for name in run.options)
    differing = [name for name in names if name not in NOT_COMPARED
                 and len({run.options.get(name) for run in runs}) > 1]
    groups = {}
    for run in runs:
        values = tuple(run.options.get(name) for name in differing)
        groups.setdefault(values, []).append(run)
    arms = []
    for values, group in groups.items():
        options = group[0].options
        arms.append(Arm(dict(zip(differing, values)), options['task'], options['attention'],
                        sorted(group, key=lambda run: run.seed)))
    return sorted(arms, key=lambda arm: arm.task)


def find_baselines(arms, words):
    """
    {task: the one arm with these options}, of words key=value. Raises UserError if no arm has
    them, and where several of one task have them.
    """
    found = {}
    for arm in arms:
        options = arm.runs[0].options
        wanted = dict(word.partition('=')[::2] for word in words)
        if all(show(options.get(key)) == text for key, text in wanted.items()):
            found.setdefault(arm.task, []).append(arm)
    line = ' '.join(words)
    if not found:
        raise UserError(f'--baseline {line}: no run has that')
    for same in found.values():
        if len(same) > 1:
            names = '; '.join(arm.name for arm in same)
            raise UserError(f'--baseline {line}: {len(same)} arms have that: {names}')
    return {task: same[0] for task, same in found.items()}


def paired(ours, theirs):
    """
    The mean of the differences of two lists of numbers, and the half-width of its 95 % interval
    (Student's t): NaN for a single difference, and without scipy.
    """
    differences = np.subtract(ours, theirs)
    half = math.nan
    if len(differences) > 1:
        try:
            from scipy import stats
        except ImportError:
            print('no intervals: they need scipy (pip install scipy)', file=sys.stderr)
        else:
            quantile = stats.t.ppf(0.975, len(differences) - 1)
            half = float(quantile * stats.sem(differences))
    return float(differences.mean()), half


def against(arm, baseline, measure, digits):
    """'+12.3 ± 4.5': a measure of runs less that of the baseline's runs of the same seeds."""
    if baseline is None or arm is baseline:
        return ''
    theirs = {run.seed: measure(run) for run in baseline.runs}
    pairs = [(measure(run), theirs[run.seed]) for run in arm.runs if run.seed in theirs]
    pairs = [pair for pair in pairs if not math.isnan(sum(pair))]
    if not pairs:
        return ''
    mean, half = paired(*zip(*pairs))
    if math.isnan(half):
        return f'{mean:+.{digits}f}'
    return f'{mean:+.{digits}f} ± {half:.{digits}f}'


def show(value):
    """A value for a table; '-' for None."""
    if value is None:
        return '-'
    return f'{value:.6g}' if isinstance(value, float) else str(value)


def quartiles(values):
    """'median [quartiles]' of numbers, or the only one."""
    low, median, high = (f'{value:.3g}' for value in np.quantile(values, [0.25, 0.5, 0.75]))
    return median if len(values) == 1 else f'{median} [{low}, {high}]'


def mean_and_sd(shares):
    """'mean ± standard deviation' of shares, in %; '' if one is missing (None or NaN)."""
    percent = [100 * share for share in shares if share is not None]
    if len(percent) < len(shares) or math.isnan(sum(percent)):
        return ''
    mean = f'{statistics.fmean(percent):.1f}'
    return mean if len(percent) == 1 else f'{mean} ± {statistics.stdev(percent):.1f}'


def print_table(header, rows):
    """A Markdown table."""
    print('| ' + ' | '.join(header) + ' |')
    print('|' + '---|' * len(header))
    for row in rows:
        cells = (str(cell).replace('|', r'\|') for cell in row)
        print('| ' + ' | '.join(cells) + ' |')


def print_losses(arms, baselines, named):
    """A row for each arm: validation losses, when they were reached, and locked frequencies."""
    learned = any(run.locked is not None for arm in arms for run in arm.runs)
    rows = []
    for arm in arms:
        losses = [run.best_loss for run in arm.runs]
        row = [*first_cells(arm, arms), ', '.join(str(run.seed) for run in arm.runs),
               ', '.join(f'{loss:.3g}' for loss in losses), quartiles(losses),
               against(arm, baselines.get(arm.task), lambda run: run.log_loss, 2),
               ', '.join(show(run.solved_at) for run in arm.runs)]
        if learned:
            row += [', '.join(show(run.locked) for run in arm.runs),
                    ', '.join(show(run.lock_in) for run in arm.runs)]
        rows.append(row)
    header = [*first_header(arms), 'seeds', 'best validation loss (nats)', 'median [quartiles]',
              f'log10 against {named}', f'iterations to {SOLVED:g}']
    if learned:
        header += ['locked pairs', 'locked from iteration']
    print_table(header, rows)


def print_lengths(arms, baselines, named):
    """A row for each arm: accuracy by length, in training lengths, and beyond the first of them."""
    every = [run for arm in arms for run in arm.runs]
    multiples = sorted({length / run.block_size for run in every for length in run.accuracy})
    beyond = any(run.beyond for run in every)
    rows = []
    for arm in arms:
        row = [*first_cells(arm, arms), len(arm.runs)]
        for multiple in multiples:
            row.append(mean_and_sd([run.accuracy.get(round(multiple * run.block_size))
                                    for run in arm.runs]))
        if beyond:
            row += [mean_and_sd([run.reach for run in arm.runs]),
                    against(arm, baselines.get(arm.task), lambda run: 100 * run.reach, 1)]
        rows.append(row)
    header = [*first_header(arms), 'n', *(f'accuracy at {m:g}x (%)' for m in multiples)]
    if beyond:
        header += ['accuracy beyond 1x (%)', f'beyond 1x against {named}']
    print_table(header, rows)
    if not beyond and max(multiples) > 1:
        print('(accuracies of long strings count their first part, too; python -m lab.measure '
              'also counts the targets beyond it alone)', file=sys.stderr)


def first_header(arms):
    return [*dict.fromkeys(['task', 'attention', *arms[0].options])]


def first_cells(arm, arms):
    options = arm.runs[0].options
    return [show(options.get(name)) for name in first_header(arms)]


def draw(plt, arms):
    """
    The figure of these arms, a column for each task. Above: validation loss while training, the
    median and every seed. Below: accuracy by length, the mean and every seed.
    """
    tasks = {task: list(group) for task, group in itertools.groupby(arms, lambda arm: arm.task)}
    lines = max(map(len, tasks.values()))  # of the longest legend
    figure, panels = plt.subplots(2, len(tasks), squeeze=False,
                                  figsize=(3.9 * len(tasks) + 0.4, 7 + 0.2 * lines))
    for (above, below), (task, group) in zip(panels.T, tasks.items()):
        colors = itertools.cycle(plot.MORE_COLORS)
        attentions = [arm.attention for arm in group]
        for arm in group:
            color = plot.COLORS.get(arm.attention)
            if color is None or attentions.count(arm.attention) > 1:
                color = next(colors)
            draw_losses(above, arm, color)
            draw_lengths(below, arm, color)
        above.set_title(plain(f'{task}: loss while training'))
        below.set_title(plain(f'{task}: accuracy by length'))
        below.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), fontsize='small')
    for above in panels[0, 1:]:
        above.set_ylabel('')
    return figure


def draw_losses(axes, arm, color):
    """The validation losses of each run of an arm, thin, and their median."""
    losses = {}
    for run in arm.runs:
        plot.plot_losses(axes, list(run.losses), list(run.losses.values()), color, None,
                         alpha=0.3, linewidth=0.8)
        for iteration, loss in run.losses.items():
            losses.setdefault(iteration, []).append(loss)
    shared = sorted(it for it, values in losses.items() if len(values) == len(arm.runs))
    medians = [statistics.median(losses[it]) for it in shared]
    plot.plot_losses(axes, shared, medians, color, None)


def draw_lengths(axes, arm, color):
    """The accuracy by length of each run of an arm, as dots, and their mean, as a line."""
    lengths = sorted(set.intersection(*(set(run.accuracy) for run in arm.runs)))
    values = [[100 * run.accuracy[length] for run in arm.runs] for length in lengths]
    means = [statistics.fmean(shares) for shares in values]
    axes.plot(lengths, means, color=color, label=plain(textwrap.shorten(arm.name, 50)))
    for length, shares in zip(lengths, values):
        axes.plot([length] * len(shares), shares, 'o', color=color, markersize=4, alpha=0.6)
    first = arm.runs[0]
    axes.axhline(100 * first.chance, color='grey', linestyle=':', linewidth=1)
    axes.set(xscale='log', xlabel=f'tokens (trained at {first.block_size}); dotted: chance',
             ylabel='right answers (%)', ylim=(-3, 103))
    axes.set_xticks(lengths, map(str, lengths))
    axes.minorticks_off()


def main(arguments=None):
    """Compare the runs that the command line `arguments` (default: sys.argv) name."""
    parser = argparse.ArgumentParser(
        prog='python -m lab.compare', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('runs', nargs='+', metavar='DIR', help='folders of measured runs')
    add('--file', default='eval.json', help='the results in each (default: %(default)s)')
    add('--figure', type=Path, default=Path('out/compare.png'), help='default: %(default)s')
    add('--baseline', nargs='+', metavar='KEY=VALUE',
        help='the arm to take differences to, by its options (default: attention=rope, if it is '
        'one arm)')
    options = parser.parse_args(arguments)
    arms = make_arms(read_runs(options.runs, options.file))
    words = options.baseline or ['attention=rope']
    try:
        baselines = find_baselines(arms, words)
    except UserError:
        if options.baseline:
            raise
        baselines = {}  # several such arms, or none: no differences
    named = ' '.join(words).removeprefix('attention=')
    print_losses(arms, baselines, named)
    print()
    print_lengths(arms, baselines, named)
    plt = plot.pyplot()
    if plt:
        plot.save(plt, draw(plt, arms), options.figure, dpi=130)
        print(f'wrote {options.figure}', file=sys.stderr)


if __name__ == '__main__':
    with one_line_errors():
        main()
