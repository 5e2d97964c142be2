"""What study/questions.py measures in a model."""

import numpy as np

from configurator import this_process
from lab import analysis, pair_use
from model import GPT, GPTConfig
from study import questions
from tasks import make_task


def test_a_pair_fits_openers_that_are_whole_turns_behind(monkeypatch):
    found = [dict(use=use, frequency=omega) for use, omega in ((1, 0.0), (3, np.pi), (2, -np.pi))]
    monkeypatch.setattr(pair_use, 'of_run', lambda model, x: found)
    task = make_task('dyck')  # an opener is an even number of tokens behind its query
    model = GPT(GPTConfig(vocab_size=len(task.symbols)))
    row = questions.bridges(model, task, 64, this_process('cpu'))
    assert [row[f'fits@{i}'] for i in (1, 2, 3)] == [1, 1, 0]


def test_the_slope_of_a_score_that_falls_and_of_even_attention(monkeypatch):
    falls = -0.5 * np.log2(np.maximum(1, np.arange(9 * 64)))
    monkeypatch.setattr(analysis, 'score_by_distance', lambda *args: [[falls, falls]])
    monkeypatch.setattr(analysis, 'shares_by_distance', lambda *args: [[0 * falls + 1 / 544] * 2])
    row = questions.bias(None, make_task('dyck'), 64, this_process('cpu'))
    assert abs(row['slope_score'] + 0.5) < 1e-3 and row['heads_score'] == 0
    assert abs(row['slope_share']) < 1e-9 and abs(row['share@362'] - 1) < 1e-9
