"""What simple rules reach on the tasks, against counting by hand."""

import numpy as np
import pytest

from study import baselines
from tasks import make_task


def by_stack(x, k):
    """{position: tokens back to the opener} of the closers of one string that follow a closer."""
    found, stack = {}, []
    for i, token in enumerate(x[1:], start=1):
        if token < k:
            stack.append(i)
        else:
            opener = stack.pop()
            if x[i - 1] >= k and i > 1:
                found[i - 1] = i - opener  # the target stands one place before
    return found


def test_distances_are_those_of_a_stack(monkeypatch):
    monkeypatch.setattr(baselines, 'STRINGS', 20)
    scored, nontrivial, distance = baselines.closers(64)
    x, _ = make_task('dyck').sample(np.random.default_rng(0), 20, 64)
    for string, mask, far in zip(x, nontrivial, distance):
        assert {i: far[i] for i in np.flatnonzero(mask)} == by_stack(string, 3)
    assert (scored & ~nontrivial & (distance == 1)).sum() == (scored & ~nontrivial).sum()


def test_shares_of_strands_that_training_has_seen():
    draws = np.random.default_rng(0).integers(0, 4**5, 640)
    expected = len(np.unique(draws)) / 4**5
    assert baselines.seen(5, 10) == pytest.approx(expected, abs=0.02)
    assert baselines.seen(29, 1000) == pytest.approx(64000 / 4.0**29)
