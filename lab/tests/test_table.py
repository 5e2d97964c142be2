"""The rule against brute force, the cells and the table by hand."""

import itertools
import math

import numpy as np
import pytest

from lab import table as t
from model import UserError


def rows_of(arm, when, **columns):
    return [dict(arm=arm, seed=seed, solved_at=at, best_loss=0.001 if at else 0.5) | columns
            for seed, at in enumerate(when)]


def brute_force(differences):
    """Two-sided p of the signed-rank test: every choice of signs, counted."""
    d = np.array([x for x in differences if x != 0])
    sizes = np.abs(d)
    ranks = [np.mean([place + 1 for place, size in enumerate(sorted(sizes)) if size == mine])
             for mine in sizes]
    sums = [sum(r for r, sign in zip(ranks, signs) if sign > 0)
            for signs in itertools.product([-1, 1], repeat=len(d))]
    above = sum(r for r, x in zip(ranks, d) if x > 0)
    lower = min(above, sum(ranks) - above)
    return min(1.0, 2 * np.mean([s <= lower for s in sums]))


@pytest.mark.parametrize('differences', [
    [1, 2, 3, 4], [1, -2, -3, 4, 5, 6], [50, 50, -50, 100, 0, 0, 150, -100],
    [-math.inf, -math.inf, 100, -50, -math.inf, 50], [7], [0.0], [1, -1]])
def test_the_signed_rank_test_counts_every_choice_of_signs(differences):
    p, lean = t.signed_rank(differences)
    assert p == pytest.approx(brute_force(differences))
    assert t.signed_rank([-x for x in differences]) == (pytest.approx(p), pytest.approx(-lean))


def test_holm_is_the_step_down_of_the_textbook():
    assert t.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert t.holm([0.9, 0.6]) == [1.0, 1.0] and t.holm([]) == []


def test_a_setting_is_chosen_by_seeds_then_updates_then_losses():
    worst_first = [rows_of('a', [None, None], max_iters=900),
                   rows_of('b', [None, None], max_iters=900, best_loss=0.1),
                   rows_of('c', [50, None], max_iters=900), rows_of('d', [200, 300]),
                   rows_of('e', [200, 200])]
    merits = list(map(t.merit, worst_first))
    assert merits == sorted(set(merits))
    # losses below 0.01 count alike
    assert t.merit(rows_of('f', [200, 200], best_loss=1e-4)) == merits[-1]


def test_never_is_later_than_any_update_and_losses_decide_where_nothing_is_solved():
    ours = rows_of('a', [100, 200, 300, 400, None, None])
    theirs = rows_of('b', [None, None, None, None, None, 900])
    test = t.compare(ours, theirs)
    assert (test['less'], test['more'], test['n']) == (4, 1, 6)
    assert test['p'] == pytest.approx(brute_force([-math.inf] * 4 + [math.inf]))
    ours = [row | dict(solved_at=None, best_loss=0.4 - 0.01 * row['seed']) for row in ours]
    theirs = rows_of('b', [None] * 6)
    assert t.compare(theirs, ours)['more'] == 6
    tests = t.compare_all({'a': ours, 'b': theirs}, {'against b': lambda key: 'b'})
    assert tests == {('a', 'against b'): 'lower: 6 seeds to 0 of 6, p 0.031'}


def test_a_table_compares_common_seeds_and_corrects_for_all_of_its_comparisons():
    rows = rows_of('rope', [300] * 6, task='x') + rows_of('new', [100] * 6, task='x')[::-1]
    rows += rows_of('old', [None] * 3 + [300] * 2, task='x') + rows_of('new|', [50], task='y')
    against = {'against rope': lambda key: (key[0], 'rope')}
    cells = {'solved': t.count(t.solved)}
    assert t.table_of_arms(rows, ['task', 'arm'], cells, against).splitlines() == [
        '| task | arm | solved | against rope |', '|---|---|---|---|',
        '| x | rope | 6 of 6 |  |',
        '| x | new | 6 of 6 | no difference shown: 6 seeds to 0 of 6, p 0.062 |',
        '| x | old | 2 of 5 | no difference shown: 0 seeds to 3 of 5, p 0.25 |',
        r'| y | new\| | 1 of 1 |  |']


def test_quartiles_are_numpys_and_never_is_worse_than_any():
    values = [3.0, 1.0, 2.0, 7.0]
    low, middle, high = np.percentile(values, [25, 50, 75])
    cell = t.quartiles(t.column('x'), '.4g')([dict(x=value) for value in values])
    assert cell == f'{middle:.4g} [{low:.4g}, {high:.4g}]'
    when = rows_of('a', [None, 100, 300, None, 200])
    assert t.quartiles(t.updates, '.0f')(when) == '300 [200, -]'
    assert t.listed(t.column('solved_at'))(when) == '-, 100, 300, -, 200'
    assert t.median(t.updates)(when[:2] + when[3:]) == '-'


def test_a_crosstab_has_a_cell_for_each_value_and_none_for_what_has_no_rows():
    rows = [dict(arm='a', base=1, seed=2, loss=0.5), dict(arm='a', base=1, seed=1, loss=0.25)]
    found = t.crosstab(rows, ['arm'], 'base', [10, 1], t.listed(t.column('loss')))
    assert found == '| arm | 10 | 1 |\n|---|---|---|\n| a |  | 0.25, 0.5 |\n'


@pytest.mark.parametrize('when, expected', [([100, 200, None], True), ([100, None], False)])
def test_a_setting_solves_a_task_by_more_than_half_of_its_seeds(when, expected):
    assert t.is_solved(rows_of('a', when)) == expected


def test_an_arm_with_a_seed_twice_is_refused():
    groups = {'a': rows_of('a', [100]) * 2, 'b': rows_of('b', [200])}
    with pytest.raises(UserError, match='a: two runs have one seed'):
        t.compare_all(groups, {'against b': lambda key: 'b'})
