"""
Runs side by side: seeds of an arm together, paired differences to a baseline.

    python -m lab.compare out/dyck3_*                        # two Markdown tables, and a figure
    python -m lab.compare out/dyck3_* --file eval_log_scale=64.json

An arm is the runs that differ in the seed alone. A run is a row of lab/results.py, read from a folder or from a CSV.
"""

import argparse
import itertools
import math
import statistics
import sys
from pathlib import Path

import numpy as np

from lab import figures
from lab.results import DEFAULTS, SOLVED, at_lengths, read_run

BUDGET = ('max_iters', 'batch_size', 'gradient_accumulation_steps', 'block_size')
MEASUREMENT = ('checkpoint', 'split', 'n')
OPTIMIZERS = {'adamw': 'AdamW', 'muon': 'Muon'}
NO_ARM = ('init_from', 'log_interval', 'eval_interval', 'task', 'attention', 'learning_rate')  # make no other arm


# ----------------------------------------------------------------------------------------------------------------------
# Statistics


def t_probability(t, df):
    """P(|T| < t) of Student's t with `df` degrees of freedom, a whole number: the finite series in the angle."""
    angle = math.atan(t / math.sqrt(df))
    cosine, term, total = math.cos(angle), 1.0, 0.0
    if df % 2 == 0:  # sin (1 + 1/2 cos^2 + 1 3 / (2 4) cos^4 + ...), df / 2 terms
        for k in range(1, df // 2 + 1):
            total += term
            term *= (2 * k - 1) / (2 * k) * cosine**2
        return math.sin(angle) * total
    for k in range(1, df // 2 + 1):  # 2 / pi (angle + sin cos (1 + 2/3 cos^2 + 2 4 / (3 5) cos^4 + ...))
        total += term
        term *= 2 * k / (2 * k + 1) * cosine**2
    return 2 / math.pi * (angle + math.sin(angle) * cosine * total)


def t_quantile(df, probability=0.95):
    """The t for which P(|T| < t) is `probability`, by bisection of the angle atan(t / sqrt(df))."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if t_probability(math.tan(middle) * math.sqrt(df), df) < probability:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(df)


def sign_flips(differences, exact_up_to=16, samples=2**16):
    """
    The two-sided p of the sign-flip test: under the null a difference may as well be negative.

    Of all 2^n ways to give the n differences signs, the share whose sum is at least as large in size as the observed
    one; so p is at least 2 / 2^n. Beyond `exact_up_to` differences the ways are `samples` random ones, always the same
    for the same n, and the observed one.
    """
    differences, n = np.asarray(differences, dtype=float), len(differences)
    if n <= exact_up_to:
        signs = np.array(list(itertools.product((1, -1), repeat=n)))  # (2^n, n)
    else:
        signs = np.random.default_rng(0).choice((1, -1), (samples, n))
        signs = np.concatenate([np.ones((1, n)), signs])
    sums = np.abs(signs @ differences)
    return float(np.mean(sums >= abs(differences.sum()) * (1 - 1e-9)))


def paired(ours, theirs):
    """
    Two arms on the same seeds, two lists of numbers in the same order.

    Returns the mean of the differences, the half-width of its 95 % interval (Student's t) and the p of `sign_flips`.
    For one seed the last two are nan.
    """
    differences = [a - b for a, b in zip(ours, theirs)]
    n, mean = len(differences), statistics.mean(differences)
    if n < 2:
        return mean, math.nan, math.nan
    half = t_quantile(n - 1) * statistics.stdev(differences) / math.sqrt(n)
    return mean, half, sign_flips(differences)


def t_test(ours, theirs):
    """The two-sided p of Student's t for the differences of two lists: below 0.05 where the interval excludes zero."""
    differences = [a - b for a, b in zip(ours, theirs)]
    deviation = statistics.stdev(differences) / math.sqrt(len(differences))
    return 1 - t_probability(abs(statistics.mean(differences)) / deviation, len(differences) - 1)


def holm(p_values):
    """p of several tests, adjusted so that one false alarm among them is as rare as in a single test (Holm 1979)."""
    order, adjusted, largest = sorted(range(len(p_values)), key=lambda i: p_values[i]), [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def difference(ours, theirs, digits=1):
    """'+12.3 ± 4.5, p 0.06': what `paired` says, for a table."""
    mean, half, p = paired(ours, theirs)
    return f'{mean:+.{digits}f} ± {half:.{digits}f}, p {p:.2g}'


def same_seeds(ours, theirs):
    """Two lists of rows, of the seeds that both arms have, in the order of `ours`."""
    other = {row['seed']: row for row in theirs or ()}
    both = [row for row in ours if row['seed'] in other]
    return both, [other[row['seed']] for row in both]


def against(rows, baseline, measure, digits=1, scale=1.0):
    """`difference` of a measure, a function of a row, to the baseline's; '' for itself or with fewer than two seeds."""
    ours, theirs = same_seeds(rows, baseline)
    if rows is baseline or len(ours) < 2:
        return ''
    return difference([scale * measure(row) for row in ours], [scale * measure(row) for row in theirs], digits)


def spread(values, scale=1.0, digits=1):
    """'mean ± sd', or the value of a single run."""
    values = [scale * v for v in values]
    mean = f'{statistics.mean(values):.{digits}f}'
    return mean if len(values) == 1 else f'{mean} ± {statistics.stdev(values):.{digits}f}'


def quartiles(values, form='.2g'):
    """'median [quartiles]' of numbers, where None is worse than any; a single value as it is."""
    values = sorted(math.inf if v is None else v for v in values)
    show = lambda v: '-' if math.isinf(v) or math.isnan(v) else format(v, form)
    if len(values) == 1:
        return show(values[0])

    def at(place):  # between two values in proportion
        low, share = math.floor(place), place % 1
        return values[low] if share == 0 else values[low] + share * (values[low + 1] - values[low])

    low, median, high = (at(share * (len(values) - 1)) for share in (0.25, 0.5, 0.75))
    return f'{show(median)} [{show(low)}, {show(high)}]'


# ----------------------------------------------------------------------------------------------------------------------
# Measures of a row


def best_loss(row):
    """The least validation loss, in nats."""
    return row['best_loss']


def log_loss(row):
    """log10 of the least validation loss."""
    return math.log10(row['best_loss'])


def solved(row):
    """Was the validation loss at or below SOLVED?"""
    return row['best_loss'] <= SOLVED


def trained_with(row):
    """'Muon 0.01': the optimiser of the weights, and its learning rate."""
    rate = row['muon_lr'] if row['optimizer'] == 'muon' else row['learning_rate']
    return f'{OPTIMIZERS[row["optimizer"]]} {rate:g}'


def extrapolation(row):
    """The mean headline accuracy over the lengths beyond the training length; nan if there is none."""
    beyond = [value for length, value in at_lengths(row, 'headline').items() if length > row['block_size']]
    return statistics.mean(beyond) if beyond else math.nan


# ----------------------------------------------------------------------------------------------------------------------
# Arms


def arm_name(row, differing):
    """The name of a row's arm: its attention and those of the options `differing` that are not at their defaults."""
    name, words = row['attention'], [key for key in differing if row[key] != DEFAULTS[key]]
    grid = row['rope'].partition(':')[0]
    if name == 'rope' and grid in ('resonance', 'harmonic'):
        name = {'resonance': 'resonance', 'harmonic': 'oracle'}[grid]
        words = [key for key in words if key != 'rope']
    return ' '.join([name, *(f'{key}={row[key]}' for key in words)])


def check_alike(rows):
    """Raises ValueError for rows of different tasks, budgets or ways of measuring."""
    kinds = (('tasks', lambda row: row['task']),
             ('budgets', lambda row: ', '.join(f'{key}={row[key]}' for key in BUDGET)),
             ('measurements', lambda row: ', '.join([*(f'{key}={row[key]}' for key in MEASUREMENT), 'lengths '
                                                     + ' '.join(map(str, sorted(at_lengths(row, 'headline'))))])))
    for what, kind_of in kinds:
        examples = {kind_of(row): f'{row["name"]}-{row["seed"]}' for row in rows}
        if len(examples) > 1:
            raise ValueError(f'different {what}: ' + '; '.join(f'{kind} ({name})' for kind, name in examples.items())
                             + '. Compare them with --force, if you know what you do')


def make_arms(rows, force=False):
    """
    {task: {arm: [rows, by seed]}}: the rows of an arm differ in the seed alone.

    Raises ValueError, unless `force`, for rows of different tasks, budgets or ways of measuring.
    """
    if not force:
        check_alike(rows)
    values, rates, arms = {}, {}, {}
    for row in rows:
        for option in DEFAULTS:
            values.setdefault((row['task'], row['attention'], option), set()).add(row[option])
    named = []
    for row in sorted(rows, key=lambda row: row['seed']):
        differing = [option for option in DEFAULTS
                     if option not in NO_ARM and len(values[row['task'], row['attention'], option]) > 1]
        name = arm_name(row, differing)
        rates.setdefault((row['task'], name), set()).add(row['learning_rate'])
        named.append((row, name))
    for row, name in named:
        if len(rates[row['task'], name]) > 1:
            name += f' learning_rate={row["learning_rate"]}'
        arms.setdefault(row['task'], {}).setdefault(name, []).append(row)
    order = {name: i for i, name in enumerate(figures.COLORS)}  # others come last
    place = lambda name: order.get(name.split()[0], len(order))
    return {task: {name: arms[task][name] for name in sorted(arms[task], key=place)} for task in sorted(arms)}


def read_arms(folders, name='eval.json', force=False):
    """
    The arms of run folders, as `make_arms` has them; runs that are not whole are skipped with a word on stderr.

    Raises ValueError if none is left.
    """
    folders = dict.fromkeys(Path(folder).resolve() for folder in folders)  # one named twice counts once
    rows = [row for row in (read_run(folder, name) for folder in folders) if row]
    if not rows:
        raise ValueError(f'none of these is a finished run with {name}: `python eval.py DIR` each of them first')
    return make_arms(rows, force)


# ----------------------------------------------------------------------------------------------------------------------
# Tables


def print_table(header, rows):
    """A Markdown table."""
    print('| ' + ' | '.join(header) + ' |\n' + '|' + '---|' * len(header))
    for row in rows:
        print('| ' + ' | '.join(map(str, row)) + ' |')


def listed(values):
    """'a, b, c' of a value for each seed; '-' for None."""
    show = lambda v: '-' if v is None else format(v, '.2g') if isinstance(v, float) else str(v)
    return ', '.join(map(show, values))


def print_losses(arms, baseline):
    """
    A row an arm: every seed's best validation loss, median and quartiles, the paired difference of log10 to the
    baseline; iterations to SOLVED; pairs locked and the iteration of the lock-in.
    """
    rows = []
    for task, group in arms.items():
        for name, runs in group.items():
            learns = runs[0]['locked'] is not None
            rows.append([task, name, trained_with(runs[0]), listed(run['seed'] for run in runs),
                         listed(map(best_loss, runs)), quartiles(map(best_loss, runs)),
                         against(runs, group.get(baseline), log_loss, 2), listed(run['solved_at'] for run in runs),
                         listed(run['locked'] for run in runs) if learns else '',
                         listed(run['lock_in'] for run in runs) if learns else ''])
    print_table(['task', 'arm', 'optimiser, rate', 'seeds', 'best validation loss (nats)', 'median [quartiles]',
                 f'log10 against {baseline}', f'iterations to {SOLVED:g}', 'locked pairs', 'lock-in (iteration)'], rows)


def print_lengths(arms, baseline):
    """A row an arm: the headline accuracy at each length, the extrapolation score, its difference to the baseline."""
    every = [run for group in arms.values() for runs in group.values() for run in runs]
    multiples = sorted({length / run['block_size'] for run in every for length in at_lengths(run, 'headline')})
    rows = []
    for task, group in arms.items():
        for name, runs in group.items():
            columns = [[run.get(f'headline@{round(m * run["block_size"])}') for run in runs] for m in multiples]
            rows.append([task, name, len(runs), *('' if None in column else spread(column, 100) for column in columns),
                         spread(map(extrapolation, runs), 100),
                         against(runs, group.get(baseline), extrapolation, scale=100)])
    print_table(['task', 'arm', 'n', *(f'accuracy at {m:g}x (%)' for m in multiples), 'extrapolation (%)',
                 f'extrapolation against {baseline}'], rows)


def print_arms(arms, baseline='rope'):
    """The two tables of arms: losses, then accuracies by length."""
    print_losses(arms, baseline)
    print()
    print_lengths(arms, baseline)


def main(arguments=None):
    """Compares and draws the runs that the command line `arguments` (default: sys.argv) name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('runs', nargs='+', metavar='DIR', help='folders of evaluated runs')
    parser.add_argument('--file', default='eval.json', help='the evaluation in each of them (default: %(default)s)')
    parser.add_argument('--figure', type=Path, default=Path('out/compare.png'), help='default: %(default)s')
    parser.add_argument('--baseline', default='rope', help='the arm to take differences to (default: %(default)s)')
    parser.add_argument('--force', action='store_true', help='compare runs of different tasks or budgets all the same')
    options = parser.parse_args(arguments)
    try:
        arms = read_arms(options.runs, options.file, options.force)
    except ValueError as error:
        sys.exit(f'error: {error}')
    print_arms(arms, options.baseline)
    if plt := figures.pyplot():
        figures.save(plt, figures.draw_arms(plt, arms), options.figure, dpi=130)
        print(f'drew {options.figure}', file=sys.stderr)


if __name__ == '__main__':
    main()
