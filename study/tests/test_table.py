"""The statistics against numbers from textbooks, the cells and the table by hand."""

import math

import numpy as np
import pytest

from study import table as t


def rows_of(arm, losses, **columns):
    return [dict(arm=arm, seed=seed, best_loss=loss) | columns for seed, loss in enumerate(losses)]


def test_holm_is_the_step_down_of_the_textbook():
    assert t.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert t.holm([0.9, 0.6]) == [1.0, 1.0] and t.holm([]) == []


def test_an_interval_and_its_p_agree():
    mean, half = t.interval([2.0, 3.0, 2.0, 4.0])
    assert mean == 2.75
    assert half == pytest.approx(3.1824463 * np.std([2, 3, 2, 4], ddof=1) / 2)  # t of 3 degrees
    edge = [value - mean + half for value in (2.0, 3.0, 2.0, 4.0)]  # the interval ends at zero
    assert t.t_test(edge) == pytest.approx(0.05)
    assert t.t_test([0.0, 0.0]) == 1.0 and t.t_test([1.0, 1.0]) == 0.0


def test_sign_flips_count_every_way():
    assert t.sign_flips([2.0, 3.0, 2.0, 4.0]) == 2 / 16
    assert t.sign_flips([1.0, -1.0, 2.0]) == 6 / 8
    assert t.sign_flips([0.0, 0.0]) == 1.0
    assert t.sign_flips([1.0] * 16) == 2 / 2**16
    assert t.sign_flips([1.0] * 20) < 1e-4


def test_mcnemar_looks_at_seeds_that_only_one_arm_solves():
    ours = rows_of('a', [0.001] * 6 + [0.5] * 3)
    theirs = rows_of('b', [0.5] * 6 + [0.5] * 3)
    assert t.mcnemar(ours, theirs) == pytest.approx(2 / 2**6)
    assert t.mcnemar(ours, ours) == 1.0


def test_losses_of_solved_runs_count_alike():
    small, smaller, large = ({'best_loss': loss} for loss in (9e-4, 1e-9, 0.1))
    assert t.log_loss(small) == t.log_loss(smaller) == -3 and t.log_loss(large) == -1
    assert t.solved(dict(best_loss=0.01)) and not t.solved(dict(best_loss=0.011))


def test_accuracy_beyond_the_training_length():
    """A guess beyond L: of modulo all positions but the first count, so 63, then 64 more."""
    row = {'task': 'modulo', 'block_size': 64, 'accuracy@64': 1.0,
           'accuracy@128': (63 + 64 * 0.25) / 127}
    assert t.beyond(2)(row) == pytest.approx(25)
    row |= {'task': 'bio_rotation', 'accuracy@128': (53 + 64 * 0.5) / 117}
    assert t.beyond(2)(row) == pytest.approx(50)
    assert t.beyond(2)(row | {'beyond@128': 0.75}) == 75
    assert t.beyond(2)(dict(row, task='dyck:k=2') | {'headline@128': 0.6}) == 60


def test_the_accuracy_beyond_is_that_of_counting(monkeypatch):
    rng = np.random.default_rng(0)
    right = rng.random((200, 127)) < np.where(np.arange(127) < 63, 0.9, 0.3)
    row = {'task': 'modulo', 'block_size': 64, 'accuracy@64': right[:, :63].mean(),
           'accuracy@128': right.mean()}
    assert t.beyond(2)(row) == pytest.approx(100 * right[:, 63:].mean())


def test_quartiles_are_numpys_and_never_is_worse_than_any():
    for values in ([1.0, 2.0, 4.0, 8.0, 16.0], [3.0, 1.0, 2.0, 7.0], [1.0, 5.0]):
        low, middle, high = np.percentile(values, [25, 50, 75])
        cell = t.quartiles(t.best_loss, '.4g')(rows_of('a', values))
        assert cell == f'{middle:.4g} [{low:.4g}, {high:.4g}]'
    when = [dict(at=at) for at in (None, 100, 300, None, 200)]
    assert t.quartiles(lambda row: row['at'], '.0f')(when) == '300 [200, -]'
    assert t.listed(lambda row: row['at'])(when) == '-, 100, 300, -, 200'


def test_a_table_by_hand():
    rows = rows_of('rope', [0.1, 0.1, 0.1], task='x') + rows_of('new', [0.01, 1e-5], task='x')
    rows += rows_of('new', [0.5], task='y')
    lines = t.table(rows, ['task', 'arm'], {'n': len, 'solved': t.count(t.solved)},
                    dict(arm='rope'), {'difference': t.gain(t.log_loss, 1)}).splitlines()
    assert lines[:3] == ['| task | arm | n | solved | difference |', '|---|---|---|---|---|',
                         '| x | rope | 3 | 0 of 3 |  |']
    mean, half = -1.5, 12.7062 * math.sqrt(0.5) / math.sqrt(2)  # of -1 and -2; t of one degree
    assert lines[3] == f'| x | new | 2 | 2 of 2 | {mean:+.1f} ± {half:.1f}, p 0.5 |'
    assert lines[4] == '| y | new | 1 | 0 of 1 |  |'


def test_differences_are_of_the_seeds_that_both_have():
    ours, theirs = rows_of('a', [1.0, 2.0, 3.0]), rows_of('b', [0.0, 5.0])[::-1]
    both = t.same_seeds(ours, theirs)
    assert t.differences(t.best_loss, *both) == [1.0, -3.0]
