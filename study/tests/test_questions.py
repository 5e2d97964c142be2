"""What study/questions.py measures in a model."""

import numpy as np
import torch

import eval as page
from configurator import choose_hardware
from lab import analysis, pair_use
from model import GPT, GPTConfig
from study import questions
from tasks import make_rng, make_task


def test_a_pair_fits_openers_that_are_whole_circles_behind(monkeypatch):
    found = [dict(use=use, frequency=omega) for use, omega in ((1, 0.0), (3, np.pi), (2, -np.pi))]
    monkeypatch.setattr(pair_use, 'of_run', lambda model, x: found)
    task = make_task('dyck')  # an opener is an even number of tokens behind its query
    model = GPT(GPTConfig(vocab_size=len(task.symbols)))
    row = questions.bridges(model, task, 64, choose_hardware('cpu'))
    assert [row[f'fits@{i}'] for i in (1, 2, 3)] == [1, 1, 0]


def test_mean_scores_are_by_distance_and_over_heads(monkeypatch):
    falls = -0.5 * np.arange(9 * 64)
    monkeypatch.setattr(analysis, 'score_by_distance', lambda *args: [[falls, 0 * falls]])
    row = questions.bias(None, make_task('dyck'), 64, choose_hardware('cpu'))
    means = {start: falls[start:end].mean() / 2 for start, end in ((64, 91), (362, 512))}
    assert {start: row[f'score@{start}'] for start in means} == means


def test_what_pairs_have_learned_is_told_apart_by_the_harmonics():
    task = make_task('modulo')
    model = GPT(GPTConfig(vocab_size=len(task.symbols), attention='spectral', n_layer=1, n_head=1,
                          n_embd=8, phase_std=0))
    attention = model.blocks[0].attention
    with torch.no_grad():
        attention.Omega[0] = torch.tensor([2 * np.pi * 3 / 7, 1.0, 2.0, 0.0])
        attention.A[0] = torch.tensor([3.0, 1.0, 1.0, 1.0])
        attention.Phi[0, 1] = -0.5
    row = questions.learned(model, task, 64, None)
    assert (row['A_near'], row['A_far'], row['A_100'], row['near']) == (3, 1, 3, 1)
    assert row['harmonics'] == '3' and row['still'] == 0.75 and row['Phi_100'] == 0.5


def test_a_corrupted_start_differs_in_what_it_names(tmp_path):
    model = GPT(GPTConfig(vocab_size=6, attention='spectral', n_layer=1))
    others = dict.fromkeys(('model_args', 'task', 'data', 'iter', 'sessions'))
    torch.save(others | dict(options=dict(seed=1), model=model.state_dict()), tmp_path / '0.pt')
    questions.corrupt(tmp_path)
    states = {name: torch.load(tmp_path / f'{name}.pt')['model'] for name in ('0', 'A', 'all')}
    changed = {name: {key.rpartition('.')[2] for key, value in state.items()
                      if not torch.equal(value, states['0'][key])}
               for name, state in states.items()}
    assert changed == {'0': set(), 'A': {'A'}, 'all': {'A', 'Phi', 'Omega'}}
    assert (states['A']['blocks.0.attention.A'] == 2).all()


def test_right_letters_are_by_turn_and_a_part_of_a_turn_is_the_last(monkeypatch):
    position = np.arange(64)  # answers are those of the blanks, 11 to 63

    def measure(model, task, T, n, hardware):
        x, y = task.sample(make_rng(0), n, T, 'test')
        return None, (x, y, np.broadcast_to((position > 20) & (position != 61), x.shape))

    monkeypatch.setattr(page, 'measure', measure)
    row = questions.turns(None, make_task('bio_rotation'), 64, None)
    assert row == {'turn@1': 0, **{f'turn@{i}': 1 for i in (2, 3, 4, 5)}, 'turn@6': 2 / 3}
