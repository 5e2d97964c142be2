"""lab/crystallise.py: spectra of a model and by hand, and the command."""

import copy
import json
import math

import numpy as np
import pytest
import torch

import eval as page
from lab import crystallise
from lab.crystallise import choose, find_period, is_sure, period_spectrum, snap
from lab.tests.conftest import attentions, build, stir
from model import UserError
from tasks import make_rng, make_task


def test_a_spectrum_has_the_loss_of_a_crystal_at_each_q_and_leaves_the_model_alone():
    task = make_task('modulo')
    x, y = map(torch.from_numpy, task.sample(make_rng(0, 'crystal'), 8, 16))
    model = stir(build(vocab_size=len(task.symbols), attention='spectral'))
    spectrum = period_spectrum(model, x, y, range(2, 9))
    losses = [page.evaluate(crystallise.crystallise(copy.deepcopy(model), q), x, y, 8)[:2]
              for q in range(2, 9)]
    assert spectrum == dict(zip(range(2, 9), losses)) and len(set(losses)) == 7
    assert all(attention.Omega.requires_grad for attention in attentions(model))


def test_it_is_the_nearest_multiple_and_exact_harmonics_stay():
    model, q = stir(build(attention='spectral')), 7
    before = [attention.Omega.clone() for attention in attentions(model)]
    crystallise.crystallise(model, q)
    grid = 2 * math.pi / q * np.arange(-2 * q, 2 * q + 1)  # float64
    for old, attention in zip(before, attentions(model)):
        Omega = attention.Omega
        distance = np.abs(old.detach().double().numpy()[..., None] - grid)
        np.testing.assert_allclose(Omega.detach().numpy(), grid[distance.argmin(-1)], atol=1e-6)
        assert torch.equal(snap(Omega, q), Omega)
        assert not Omega.requires_grad and attention.A.requires_grad
    assert model.config.learn == 'amplitude,phase'


Q = range(2, 33)


def spectrum_of(losses):
    return {q: (float(loss), 0.5) for q, loss in enumerate(losses, start=2)}


def comb(P, low, high, seed=0):
    """Losses for q = 2 ... 32: `low` at the multiples of P, else `high`, times noise of 20 %."""
    noise = np.exp(0.2 * np.random.default_rng(seed).uniform(-1, 1, 31))
    return spectrum_of(noise * [high if q % P else low for q in Q])


@pytest.mark.parametrize('P', [2, 3, 5, 7, 10, 13, 16, 29, 32])
def test_it_finds_the_smallest_of_the_multiples(P):
    assert find_period(comb(P, 0.01, 5)) == find_period(comb(P, 1.5, 7, seed=1)) == P


@pytest.mark.parametrize('losses, period', [
    ([1.9 for q in Q], None), ([5 / q**2 for q in Q], None),  # a finer grid moves less
    ([2.001 if q != 22 else 1.999 for q in Q], None),  # too small a gap
    ([5 if q % 7 or q == 14 else 0.01 for q in Q], None),  # one multiple is as bad as the rest
    # several multiples may stand apart less than one
    ([math.exp(0.1 * (q % 5)) if q % 3 else math.exp(-0.5) for q in Q], 3),
    ([math.exp(0.1 * (q % 5)) if q % 29 else math.exp(-0.5) for q in Q], None),
    # the widest gap decides between 10 and its half
    ([{0: 0.02, 5: 2}.get(q % 10, 5) for q in Q], 10),
    ([{0: 0.02, 5: 0.1}.get(q % 10, 5) for q in Q], 5)])
def test_a_period_is_what_stands_apart_most(losses, period):
    assert find_period(spectrum_of(losses)) == period


def test_chance_seldom_has_a_period():
    found = [find_period(comb(7, 5, 5, seed=seed)) for seed in range(300)]
    assert found.count(None) >= 297


def test_one_tooth_that_is_no_better_than_guessing_is_a_perhaps():
    """As of a run on Modulo, where 28 stood apart at 5.36 nats, and a guess has 1.95."""
    assert not is_sure(comb(28, 5.36, 9), 28, chance=1 / 7)
    assert is_sure(comb(28, 0.2, 9), 28, chance=1 / 7)  # better than guessing
    assert is_sure(comb(14, 5.36, 9), 14, chance=1 / 7)  # two teeth


def test_it_takes_the_smallest_multiple_that_costs_nothing_or_the_period():
    losses = comb(10, 0.02, 5)
    assert choose(losses, 10, trained=0.0001) == 10  # all cost something
    losses[20] = losses[30] = (0.0001, 1.0)
    assert choose(losses, 10, trained=0.0001) == 20
    losses[10] = (0.009, 1.0)
    assert choose(losses, 10, trained=0.0001) == 10


TASK = '--task=bio_rotation:period=3'


def Omegas(checkpoint):
    return [tensor for name, tensor in checkpoint['model'].items() if name.endswith('Omega')]


def same(ours, theirs):
    return all(map(torch.equal, ours, theirs))


@pytest.fixture
def trained(run):
    """A run whose frequencies go up to pi, so that not all of them become 0."""
    return run().train(TASK, '--attention=spectral', '--frequencies=linear', '--stop_loss=100')


def command(folder, *words):
    """The record of a crystal."""
    crystallise.main([str(folder), '--device=cpu', '--n=8', *words])
    return json.loads((folder / 'crystal.json').read_text(encoding='utf-8'))


def test_the_command_writes_a_crystal_and_settles_it(trained, monkeypatch):
    where = trained.folder
    monkeypatch.setattr(crystallise, 'lossless', lambda *arguments: False)
    record = command(where, '--period=3', '--settle=3')
    assert (where / 'crystal.png').read_bytes()[:4] == b'\x89PNG'
    best, crystal = trained.checkpoint('best.pt'), trained.checkpoint('crystal.pt')
    start, settled = trained.checkpoint('start.pt'), trained.checkpoint('settled/ckpt.pt')
    assert (record['period'], record['run']) == (3, best['sessions'][0])
    assert list(record['spectrum']) == [str(q) for q in range(2, 9)]
    assert crystal['model_args']['learn'] == crystal['options']['learn'] == 'amplitude,phase'
    assert same(Omegas(crystal), [snap(old, 3) for old in Omegas(best)])
    assert not same(Omegas(crystal), Omegas(best))
    amplitudes = [A for name, A in start['model'].items() if name.endswith('attention.A')]
    assert amplitudes and all((A == 1).all() for A in amplitudes)  # what is lost employs all pairs
    assert settled['iter'] == 3 and same(Omegas(settled), Omegas(start))  # frozen
    weights = [checkpoint['model']['lm_head.weight'] for checkpoint in (crystal, settled)]
    assert not torch.equal(*weights)
    with pytest.raises(UserError, match='settled.* already holds a run'):
        command(where, '--period=3', '--settle=3')


@pytest.mark.parametrize('found, said', [(None, 'no period'), (7, 'perhaps period 7; --period=7')])
def test_without_a_sure_period_there_is_no_crystal(trained, monkeypatch, found, said):
    command(trained.folder, '--period=3')
    monkeypatch.setattr(crystallise, 'find_period', lambda spectrum: found)
    monkeypatch.setattr(crystallise, 'is_sure', lambda spectrum, period, chance: False)
    record = command(trained.folder)
    assert record['period'] is None and record['said'].startswith(said)
    assert not (trained.folder / 'crystal.pt').exists()


def test_pairs_at_harmonic_0_get_the_harmonics_one_after_the_other():
    model = build(n_layer=1, n_head=2, n_embd=24, attention='spectral')
    attention = attentions(model)[0]
    with torch.no_grad():
        attention.Omega.copy_(math.pi / 5 * torch.tensor([[1.0, 0, 2, 0, -0.0, 0],
                                                          [0, 3, 3, 3, 3, -3]]))
        attention.A.copy_(torch.linspace(-1, 2, 12).view(2, 6))
    crystallise.employ_idle_pairs(model, 5)
    assert (attention.A == 1).all()
    j = torch.tensor([[0.5, 0, 1, 1, 2, 0], [0, 1.5, 1.5, 1.5, 1.5, -1.5]])
    assert torch.allclose(attention.Omega, 2 * math.pi / 5 * j, rtol=1e-6)


@pytest.mark.parametrize('attention, heads, new', [
    ('bifocal', 'spectral', 'bifocal'), ('rope,nope', 'all', 'spectral,nope')])
def test_the_spectral_heads_alone_or_all(run, attention, heads, new):
    trained = run().train(TASK, f'--attention={attention}', '--n_layer=2')
    command(trained.folder, '--period=3', f'--heads={heads}')
    crystal = trained.checkpoint('crystal.pt')
    assert crystal['model_args']['attention'] == crystal['options']['attention'] == new
    assert {len(Omega) for Omega in Omegas(crystal)} == {1 if heads == 'spectral' else 2}
    page.load_run(trained.folder, 'crystal.pt', 'cpu')


def test_a_period_that_the_strings_cannot_tell_is_refused(trained):
    with pytest.raises(UserError, match='--period=9: strings of 16 tokens can tell .* 2 to 8'):
        command(trained.folder, '--period=9')


def test_a_folder_that_cannot_be_made_is_one_line(trained):
    with pytest.raises(UserError, match='could not write .*config.json'):
        command(trained.folder, '--into=config.json')
