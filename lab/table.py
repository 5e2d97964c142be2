"""
Tables of rows, and the one rule by which two arms are compared.

The rule. Two arms are compared seed by seed in one measure, such as the least loss. p is that of
Wilcoxon's signed-rank test, corrected by Holm for all comparisons of a table. An arm is lower or
higher if p is below 0.05.

As speed, the measure is the updates until a run solves its task, and a run that never does counts
as later than all others: an arm is sooner or later. Without a measure this is compared, or where
neither arm ever solves the task, as on text, the least loss.

A row is a dict {column: value}, with a seed. A cell is a function from the rows of an arm to its
text, and a measure is a function from one row to its number.
"""

import math
import statistics

import numpy as np

from model import UserError

SOLVED = 0.01  # nats: a run has solved its task when its validation loss is no larger


# The table


def groups_of(rows, by):
    """{values of the columns `by`: rows by seed}, in the order of the rows."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row.get(column) for column in by), []).append(row)
    return {key: sorted(group, key=lambda row: row['seed']) for key, group in groups.items()}


def table_of_arms(rows, by, cells, against={}, measures={}):
    """
    A Markdown table, a line for each group of rows that agree in the columns `by`.

    `cells` are {header: function of the rows of a group}. `against` are {header: function from
    the values of `by` to those of the group to compare with, or None}; each makes a column of
    words by the rule. `measures` are {header: measure} where another one is compared.
    """
    groups = groups_of(rows, by)
    tests = compare_all(groups, against, measures)
    lines = []
    for key, group in groups.items():
        verdicts = [tests.get((key, header), '') for header in against]
        first = [show(value, '.6g') for value in key]
        lines.append([*first, *(cell(group) for cell in cells.values()), *verdicts])
    return markdown([*by, *cells, *against], lines)


def crosstab(rows, by, across, values, cell):
    """
    A Markdown table, a line for each group of rows that agree in the columns `by`, and in it a
    cell for each of the `values` of the column `across`, empty where there is no row.
    """
    groups = groups_of(rows, [*by, across])
    lines = []
    for key in groups_of(rows, by):
        found = [groups.get((*key, value)) for value in values]
        lines.append([*(show(part, '.6g') for part in key),
                      *(cell(group) if group else '' for group in found)])
    return markdown([*by, *(show(value, '.6g') for value in values)], lines)


def markdown(header, lines):
    """The text of a Markdown table. A cell is anything that has a text."""
    cells = [[str(cell).replace('|', r'\|') for cell in line] for line in [header, *lines]]
    rows = ['| ' + ' | '.join(row) + ' |\n' for row in cells]
    rows.insert(1, '|' + '---|' * len(header) + '\n')
    return ''.join(rows)


# The rule


def solved(row):
    return row['solved_at'] is not None


def updates(row):
    """The measure: updates until the task is solved; infinite if it never is."""
    return math.inf if row['solved_at'] is None else row['solved_at']


def best_loss(row):
    """The measure: the least validation loss (nats)."""
    return row['best_loss']


def is_solved(rows):
    """Whether a setting solves the task: more than half of its seeds do."""
    return statistics.median(map(updates, rows)) < math.inf


def merit(rows):
    """By which a setting is chosen, larger is better: seeds solved, few updates, a small loss."""
    spent = [row['max_iters'] if row['solved_at'] is None else row['solved_at'] for row in rows]
    losses = [math.log(max(row['best_loss'], SOLVED)) for row in rows]  # lower ones are alike
    return sum(map(solved, rows)), -statistics.mean(spent), -statistics.mean(losses)


def compare(ours, theirs, measure=None):
    """Compare two lists of rows of the same seeds, pair by pair; p is not corrected."""
    if measure is None:
        measure = updates if any(map(solved, [*ours, *theirs])) else best_loss
    verdicts = ('sooner', 'later') if measure is updates else ('lower', 'higher')
    pairs = [(measure(a), measure(b)) for a, b in zip(ours, theirs)]
    # two that never came are equal, but inf - inf is no number
    differences = [0.0 if a == b else a - b for a, b in pairs]
    p, lean = signed_rank(differences)
    return dict(p=p, lean=lean, verdicts=verdicts, n=len(pairs),
                less=sum(value < 0 for value in differences),
                more=sum(value > 0 for value in differences))


def by_seed(rows, key):
    """{seed: row} of an arm. Raises UserError for a seed twice: a run counts once."""
    found = {row['seed']: row for row in rows}
    if len(found) < len(rows):
        raise UserError(f'{key}: two runs have one seed, and a run counts once')
    return found


def compare_all(groups, against, measures={}):
    """
    {(key, header): 'sooner: 17 seeds to 2 of 20, p 0.001'} of groups {key: rows} with those that
    `against` names, as in `table_of_arms`, on common seeds; p after Holm's correction for all of
    them. Raises UserError for a group that has a seed twice.
    """
    arms = {key: by_seed(group, key) for key, group in groups.items()}
    tests = {}
    for header, other in against.items():
        for key, ours in arms.items():
            theirs = arms.get(other(key), {})
            both = [seed for seed in ours if seed in theirs]
            if both and other(key) != key:
                rows = [[arm[seed] for seed in both] for arm in (ours, theirs)]
                tests[key, header] = compare(*rows, measures.get(header))
    texts = {}
    for place, p in zip(tests, holm([test['p'] for test in tests.values()])):
        test = tests[place]
        verdict = test['verdicts'][test['lean'] > 0] if p < 0.05 else 'no difference shown'
        counts = f'{test["less"]} seeds to {test["more"]} of {test["n"]}'
        texts[place] = f'{verdict}: {counts}, p {p:.2g}'
    return texts


def signed_rank(differences):
    """
    The exact two-sided p of the signed-rank test (Wilcoxon 1945), and where the differences
    lean, from -1 to 1. Zeros are left out, equal sizes share their mean rank. (scipy's exact test
    knows no equal sizes, and its permutations of 20 seeds take a minute.)
    """
    values = np.array([value for value in differences if value != 0])
    if not len(values):
        return 1.0, 0.0
    sizes = np.abs(values)
    # twice the mean rank of each size, a whole number
    ranks = (sizes < sizes[:, None]).sum(1) + (sizes <= sizes[:, None]).sum(1) + 1
    # chances[w]: under the null every sign is a coin, and w is the sum of the ranks above zero
    chances = np.ones(1)
    for rank in ranks:
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    above, below = ranks[values > 0].sum(), ranks[values < 0].sum()
    p = 2 * chances[:min(above, below) + 1].sum()
    return min(1.0, float(p)), float((above - below) / ranks.sum())


def interval(values):
    """
    The median of some values, and an interval that holds the median of all such values in 95 % of
    the cases or more: order statistics, without an assumption. NaN with fewer than six values.
    """
    values, n = sorted(values), len(values)
    below, cut = 1 / 2**n, 0  # the chance that at most `cut` of n coins show heads
    while below <= 0.025:
        cut += 1
        below += math.comb(n, cut) / 2**n
    low, high = (values[cut - 1], values[n - cut]) if cut else (math.nan, math.nan)
    return statistics.median(values), low, high


def holm(p_values):
    """p of several tests, so that one false alarm is as rare as in a single one (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


# Cells


def show(value, form='.3g'):
    """A value as text: '-' for None, for NaN and for what never came."""
    if value is None or value != value or value == math.inf:
        return '-'
    return format(value, form) if isinstance(value, float) else str(value)


def quartiles(measure, form='.3g'):
    """'median [quartiles]', or the value of a single row."""
    def cell(rows):
        values = sorted(float(measure(row)) for row in rows)
        if len(values) == 1:
            return show(values[0], form)
        low, middle, high = (show(between(values, share), form) for share in (0.25, 0.5, 0.75))
        return f'{middle} [{low}, {high}]'
    return cell


def between(values, share):
    """The quantile of sorted values; NaN between two that are infinite."""
    place = share * (len(values) - 1)
    low, part = math.floor(place), place % 1
    if part == 0:
        return values[low]
    return values[low] + part * (values[low + 1] - values[low])


def median(*measures, form='.0f'):
    """The medians of some measures, 'a, b, c'."""
    def cell(rows):
        middles = (statistics.median(map(measure, rows)) for measure in measures)
        return ', '.join(show(float(middle), form) for middle in middles)
    return cell


def spread(measure, digits=1):
    """'mean ± standard deviation', or the value of a single row; '' where a row has none."""
    def cell(rows):
        values = [measure(row) for row in rows]
        if None in values:
            return ''
        text = f'{statistics.mean(values):.{digits}f}'
        return text if len(values) == 1 else f'{text} ± {statistics.stdev(values):.{digits}f}'
    return cell


def listed(measure, form='.3g'):
    """'a, b, c', a value for each seed."""
    return lambda rows: ', '.join(show(measure(row), form) for row in rows)


def count(measure):
    """How many rows of how many."""
    return lambda rows: f'{sum(map(measure, rows))} of {len(rows)}'


def column(name, scale=1):
    """The measure that a column holds, times a factor; None where the row has none."""
    return lambda row: None if row.get(name) is None else scale * row[name]


def beyond(multiple):
    """
    The measure: the accuracy (%) at the positions beyond the training length L in strings of a
    multiple of it. None where it was not measured.
    """
    return lambda row: column(f'beyond@{multiple * row["block_size"]}', 100)(row)
