"""
Tables of rows: one function groups them, and small ones say what stands in a cell.

A column is a function from the rows of a group to its text. A comparison is a function from the
rows of a group and those of its baseline, seed by seed. A measure is a function of one row.
"""

import functools
import math
import statistics

import numpy as np
from scipy import stats

from study.rows import SOLVED, at_lengths
from tasks import make_task

ALIKE = 1e-3  # nats: below it every target is right, and the rest measures the size of logits


# ----------------------------------------------------------------------------------------------
# The table


def groups_of(rows, by):
    """{values of the columns `by`: rows by seed}, in the order of the rows."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in by), []).append(row)
    return {key: sorted(group, key=lambda row: row['seed']) for key, group in groups.items()}


def table(rows, by, columns, baseline=None, against=None):
    """
    A Markdown table, a line for each group of rows that agree in the columns `by`.

    `columns` are {header: function of the rows of a group}. `against` are {header: function of
    the rows and of those of the baseline, on the seeds that both have}. The baseline of a group
    has other values in some of `by`: `baseline`, such as dict(arm='rope').
    """
    against = against or {}
    groups = groups_of(rows, by)
    lines = []
    for key, group in groups.items():
        other = tuple((baseline or {}).get(column, value) for column, value in zip(by, key))
        ours, theirs = same_seeds(group, groups.get(other, ()))
        compared = [''] * len(against)
        if other != key and len(ours) > 1:
            compared = [cell(ours, theirs) for cell in against.values()]
        lines.append([*key, *(cell(group) for cell in columns.values()), *compared])
    return markdown([*by, *columns, *against], lines)


def markdown(header, lines):
    """The text of a Markdown table."""
    lines = ['| ' + ' | '.join(map(str, line)) + ' |' for line in [header, *lines]]
    lines.insert(1, '|' + '---|' * len(header))
    return '\n'.join(lines) + '\n'


def same_seeds(ours, theirs):
    """Two lists of rows on the seeds that both have, in the order of `ours`."""
    other = {row['seed']: row for row in theirs}
    both = [row for row in ours if row['seed'] in other]
    return both, [other[row['seed']] for row in both]


# ----------------------------------------------------------------------------------------------
# Measures of a row


def best_loss(row):
    """The least validation loss, in nats."""
    return row['best_loss']


def log_loss(row):
    """log10 of the least validation loss. Losses below ALIKE count alike."""
    return math.log10(max(row['best_loss'], ALIKE))


def solved(row):
    return row['best_loss'] <= SOLVED


def log_perplexity(multiple, way='sliding'):
    """The measure: ln of the perplexity at a multiple of the training length."""
    return lambda row: math.log(row[f'perplexity@{round(multiple * row["block_size"])} {way}'])


def beyond(multiple):
    """
    The measure: the accuracy (%) at the positions beyond the training length, in strings of a
    multiple of it. Rows that lack it have two accuracies from which it follows, for the first
    tokens of a longer string are like a string of that length. Not so on dyck, where the place
    of a target depends on the string: there it is the accuracy of whole strings.
    """
    def measure(row):
        short, long = row['block_size'], multiple * row['block_size']
        if row.get(f'beyond@{long}') is not None:
            return 100 * row[f'beyond@{long}']
        if row['task'].partition(':')[0] in ('dyck', 'spacing'):
            return 100 * row[f'headline@{long}']
        n, m = scored(row['task'], short), scored(row['task'], long)
        right = m * row[f'accuracy@{long}'] - n * row[f'accuracy@{short}']
        return 100 * right / (m - n)
    return measure


@functools.cache
def scored(spec, length):
    """How many targets a string of a task has."""
    _, y = make_task(spec).sample(np.random.default_rng(0), 1, length)
    return int((y != -1).sum())


def at_length(measure, length, ending='', scale=100):
    """The measure in the column MEASURE@LENGTH."""
    return lambda row: scale * row[f'{measure}@{length}{ending}']


def lengths(rows, measure, ending=''):
    """The lengths in tokens at which the first row has a measure."""
    return sorted(at_lengths(rows[0], measure, ending))


# ----------------------------------------------------------------------------------------------
# Columns


def trained_with(rows):
    """'Muon 0.01': the optimiser of the weights and its learning rate."""
    row = rows[0]
    if row['optimizer'] == 'muon':
        return f'Muon {row["muon_lr"]:g}'
    return f'AdamW {row["learning_rate"]:g}'


def count(measure):
    """How many rows of how many."""
    return lambda rows: f'{sum(map(measure, rows))} of {len(rows)}'


def spread(measure, digits=1):
    """'mean ± sd', or the value of a single row."""
    def cell(rows):
        values = [measure(row) for row in rows]
        text = f'{statistics.mean(values):.{digits}f}'
        return text if len(values) == 1 else f'{text} ± {statistics.stdev(values):.{digits}f}'
    return cell


def quartiles(measure, form='.2g'):
    """'median [quartiles]'. None, what never happened, is more than any number."""
    def show(value):
        return format(value, form) if math.isfinite(value) else '-'

    def cell(rows):
        values = [measure(row) for row in rows]
        values = sorted(math.inf if value is None else value for value in values)
        low, middle, high = (between(values, share) for share in (0.25, 0.5, 0.75))
        if len(values) == 1:
            return show(middle)
        return f'{show(middle)} [{show(low)}, {show(high)}]'
    return cell


def between(values, share):
    """The quantile of sorted values; between two of them in proportion."""
    place = share * (len(values) - 1)
    low, part = math.floor(place), place % 1
    return values[low] if part == 0 else values[low] + part * (values[low + 1] - values[low])


def median(*measures, form='.0f'):
    """The medians of some measures, 'a, b, c'."""
    def cell(rows):
        middles = (statistics.median(map(measure, rows)) for measure in measures)
        return ', '.join(format(middle, form) for middle in middles)
    return cell


def listed(measure, form='.2g'):
    """'a, b, c', a value for each seed; '-' for None."""
    def show(value):
        if value is None:
            return '-'
        return format(value, form) if isinstance(value, float) else str(value)
    return lambda rows: ', '.join(show(measure(row)) for row in rows)


# ----------------------------------------------------------------------------------------------
# Comparisons


def differences(measure, ours, theirs):
    return [measure(a) - measure(b) for a, b in zip(ours, theirs)]


def interval(values):
    """The mean of differences and the half-width of its 95 % interval (Student's t)."""
    n = len(values)
    half = stats.t.ppf(0.975, n - 1) * statistics.stdev(values) / math.sqrt(n)
    return statistics.mean(values), float(half)


def t_test(values):
    """The two-sided p of Student's t: below 0.05 where the interval excludes zero."""
    if len(set(values)) == 1:
        return 1.0 if values[0] == 0 else 0.0
    return float(stats.ttest_1samp(values, 0).pvalue)


def sign_flips(values):
    """
    The two-sided p of the sign-flip test: under the null a difference may as well be negative.
    Exact up to 16 differences, so at least 2 / 2^n; beyond from 2^16 random ways.
    """
    test = stats.permutation_test((values,), np.sum, permutation_type='samples',
                                  n_resamples=2**16, vectorized=True, rng=0)
    return float(test.pvalue)


def mcnemar(ours, theirs):
    """The exact p of McNemar's test: is it luck how many seeds only one of two arms solves?"""
    only_ours = sum(solved(a) and not solved(b) for a, b in zip(ours, theirs))
    only_theirs = sum(solved(b) and not solved(a) for a, b in zip(ours, theirs))
    n = only_ours + only_theirs
    return float(stats.binomtest(only_ours, n).pvalue) if n else 1.0


def holm(p_values):
    """p of several tests, so that one false alarm is as rare as in a single one (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def gain(measure, digits=2, p=True):
    """'+0.12 ± 0.34, p 0.06': the mean paired difference, its interval, p of the sign flips."""
    def cell(ours, theirs):
        values = differences(measure, ours, theirs)
        mean, half = interval(values)
        text = f'{mean:+.{digits}f} ± {half:.{digits}f}'
        return f'{text}, p {sign_flips(values):.2g}' if p else text
    return cell
