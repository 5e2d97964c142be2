"""What study/pairs.py takes away from a model, and what study/questions.py measures in one."""

import numpy as np
import torch

from device import this_process
from lab import analysis, pair_use
from study import pairs, questions
from tasks import make_rng, make_task


def test_silence_leaves_the_strongest_pair_of_each_head():
    task = make_task('bio_rotation')
    model, _, queries = pairs.ours(task)
    x = torch.from_numpy(task.sample(make_rng('pairs', 'test'), 4, 64)[0])
    before = pair_use.of_run(model, x)
    pairs.silence(queries, before)
    left = [row for row in pair_use.of_run(model, x) if row['use'] > 0]
    assert [row['head'] for row in left] == [0, 1]
    for row in left:
        rivals = [other['use'] for other in before if other['head'] == row['head']]
        assert row['pair'] == rivals.index(max(rivals))


def test_a_pair_fits_openers_that_are_whole_turns_behind(monkeypatch):
    found = [dict(use=use, frequency=omega) for use, omega in ((1, 0.0), (3, np.pi), (2, -np.pi))]
    monkeypatch.setattr(pair_use, 'of_run', lambda model, x: found)
    task = make_task('dyck')  # an opener is an even number of tokens behind its query
    row = questions.bridges(pairs.ours(task)[0], task, 64, this_process('cpu'))
    assert [row[f'fits@{i}'] for i in (1, 2, 3)] == [1, 1, 0]


def test_the_slope_of_a_score_that_falls_and_of_even_attention(monkeypatch):
    falls = -0.5 * np.log2(np.maximum(1, np.arange(9 * 64)))
    monkeypatch.setattr(analysis, 'score_by_distance', lambda *args: [[falls, falls]])
    monkeypatch.setattr(analysis, 'shares_by_distance', lambda *args: [[0 * falls + 1 / 544] * 2])
    row = questions.bias(None, make_task('dyck'), 64, this_process('cpu'))
    assert abs(row['slope_score'] + 0.5) < 1e-3 and row['heads_score'] == 0
    assert abs(row['slope_share']) < 1e-9 and abs(row['share@362'] - 1) < 1e-9
