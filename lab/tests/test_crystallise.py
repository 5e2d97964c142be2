"""lab/crystallise.py: a model made by hand whose period is known, spectra made by hand, and the command."""

import math

import numpy as np
import pytest
import torch

import eval as page
from lab import crystallise
from lab.crystallise import choose, find_period, nearest, period_spectrum, spread
from lab.tests.conftest import build, run, stir, ways  # noqa: F401
from model import GPT, GPTConfig
from tasks import make_task, stream


@torch.no_grad()
def helix(P, error, n_pairs=8):
    """
    A model that solves bio_rotation:period=P by one look back, but for an error of its frequencies, radians per token.

    Tokens are one-hot. A blank asks for bases, and the score is a comb: 60 sum_j cos(2 pi j d / P) at distance d.
    """
    task = make_task(f'bio_rotation:period={P}')
    model = GPT(GPTConfig(len(task.symbols), n_layer=1, n_head=1, n_embd=2 * n_pairs, attention='spectral'))
    for parameter in model.parameters():
        parameter.zero_()
    for norm in (model.norm, model.blocks[0].norm_1, model.blocks[0].norm_2):
        norm.weight.fill_(1)
    C, attention = 2 * n_pairs, model.blocks[0].attention
    model.embedding.weight.copy_(torch.eye(len(task.symbols), C))
    q, k, v = attention.qkv.weight.view(3, C, C)
    bases, blank, used = [task.symbols.index(base) for base in 'ACGT'], task.symbols.index('.'), P // 2 + 1
    q[:used, blank] = 15  # real parts of the pairs; the norm makes a one-hot token sqrt(C) = 4 times as large
    for base in bases:
        k[:used, base] = 1
        v[base, base] = 1
    attention.proj.weight.copy_(torch.eye(C))
    for base in bases:
        model.lm_head.weight[base, base] = 10
    j = torch.arange(n_pairs) % used
    attention.way.A.fill_(1)
    attention.way.Omega.copy_(2 * math.pi * j / P + error)
    return model.eval(), task


def strings(task, T, n=32):
    return [torch.from_numpy(a) for a in task.sample(stream(0, 'crystal', T), n, T)]


@pytest.mark.parametrize('P', [4, 7, 10])
def test_a_model_that_is_nearly_periodic_has_its_dips_at_the_period_and_becomes_exact(P):
    model, task = helix(P, error=0.01)
    before = [way.Omega.clone() for way in ways(model)]
    T = 24
    spectrum = period_spectrum(model, *strings(task, T), range(2, T // 2 + 1))
    assert torch.equal(before[0], ways(model)[0].Omega)  # nothing is left behind
    teeth = [q for q in spectrum if q % P == 0]
    assert max(spectrum[q][0] for q in teeth) < 0.5 * min(spectrum[q][0] for q in spectrum if q not in teeth)
    assert find_period(spectrum) == P and spectrum[P][1] > 0.99
    far = strings(task, 16 * T)
    assert page.evaluate(model, *far, 32)[1] < 0.6  # the error of 0.01 has grown to 3.8 radians
    assert crystallise.crystallise(model, P) is model and page.evaluate(model, *far, 32)[1] > 0.99


@pytest.mark.parametrize('q', [2, 3, 7, 10, 32])
def test_it_is_the_nearest_multiple_and_exact_harmonics_stay(q):
    model = stir(build(attention='spectral'))
    before = [way.Omega.clone() for way in ways(model)]
    crystallise.crystallise(model, q)
    grid = 2 * math.pi / q * np.arange(-2 * q, 2 * q + 1)  # float64
    for Omega, way in zip(before, ways(model)):
        naive = grid[np.abs(Omega.detach().double().numpy()[..., None] - grid).argmin(axis=-1)]
        np.testing.assert_allclose(way.Omega.detach().numpy(), naive, atol=1e-6)
        assert torch.equal(nearest(way.Omega, q), way.Omega)
        torch.testing.assert_close(nearest(way.Omega, 2 * q), way.Omega, rtol=0, atol=1e-6)
        assert not way.Omega.requires_grad and way.A.requires_grad
    assert model.config.learn == 'amplitude,phase'
    assert crystallise.crystallise(build(attention='spectral', learn='frequency'), q).config.learn == 'none'


def test_in_bifocal_the_geometric_eyes_stay():
    model = stir(build(attention='bifocal'))
    theta = [way.theta.clone() for way in ways(model)]
    crystallise.crystallise(model, 5)
    for old, way in zip(theta, ways(model)):
        assert torch.equal(way.theta, old) and way.Omega.shape == (2, 4)


def spectrum_of(losses):
    return {q: (float(loss), 0.5) for q, loss in enumerate(losses, start=2)}


def comb(P, low, high, T=64, seed=0):
    """Losses for q = 2 ... T/2: `low` at the multiples of P, `high` elsewhere, times noise of 20 %."""
    noise = np.exp(0.2 * np.random.default_rng(seed).uniform(-1, 1, T // 2 - 1))
    return spectrum_of([(high if q % P else low) * noise[q - 2] for q in range(2, T // 2 + 1)])


@pytest.mark.parametrize('P', [2, 3, 5, 7, 10, 13, 16, 29, 32])
def test_it_finds_the_smallest_of_the_multiples(P):
    assert find_period(comb(P, 0.01, 5)) == find_period(comb(P, 1.5, 7, seed=1)) == P


def test_a_multiple_without_any_loss_is_not_the_period():
    losses = comb(10, 0.03, 4)
    losses[20] = (1e-5, 1.0)  # the finer grid moved the pairs that found no harmonic less
    assert find_period(losses) == 10


def test_it_finds_none_where_nothing_stands_apart():
    assert find_period(spectrum_of([1.9] * 31)) is None  # the same everywhere
    assert find_period(spectrum_of([5 / q**2 for q in range(2, 33)])) is None  # a finer grid moves less
    almost = comb(7, 0.01, 5)
    almost[14] = (5, 0.5)  # one multiple is as bad as the rest
    assert find_period(almost) is None
    assert find_period(spectrum_of([2.001] * 20 + [1.999] + [2.001] * 10)) is None  # a tiny gap between equal losses
    found = [find_period(comb(7, 5, 5, seed=seed)) for seed in range(300)]
    assert found.count(None) >= 297  # chance


def test_it_takes_the_smallest_multiple_that_costs_nothing_or_the_period():
    losses = comb(10, 0.02, 5)
    assert choose(losses, 10, trained=0.0001) == 10  # all cost something
    losses[20] = losses[30] = (0.0001, 1.0)
    assert choose(losses, 10, trained=0.0001) == 20
    losses[10] = (0.009, 1.0)
    assert choose(losses, 10, trained=0.0001) == 10


@pytest.mark.parametrize('attention, Omega, candidates, y, message', [
    ('spectral', None, [2, 9], 0, 'q=9: strings of 16 tokens can tell periods from 2 to 8'),
    ('spectral', None, [1], 0, 'q=1: strings of 16 tokens'),
    ('spectral', None, [2], -1, 'no position of these strings of 16 tokens is scored'),
    ('spectral', 2 * math.pi / 6, [2], 0, 'a crystal already: all its frequencies are multiples of 2 pi / 6'),
    ('rope', None, [2], 0, 'attention=rope: it has no spectral heads'),
    ('tapa', None, [2], 0, 'attention=tapa: it has no spectral heads')])
def test_errors_say_what_is_allowed(attention, Omega, candidates, y, message):
    model = build(attention=attention)
    for way in ways(model) if Omega else ():
        way.Omega.data.fill_(Omega)
    x = torch.zeros(2, 16, dtype=torch.long)
    with pytest.raises(ValueError, match=message):
        period_spectrum(model, x, torch.full_like(x, y), candidates)


TASK = '--task=bio_rotation:period=3'


def Omegas(checkpoint):
    return [tensor for name, tensor in checkpoint['model'].items() if name.endswith('Omega')]


def test_the_command_writes_a_crystal_that_is_measured_settled_and_started_from(run, capsys):  # noqa: F811
    arm = [TASK, '--attention=spectral', '--rope=linear']  # frequencies up to pi, so that not all become 0
    trained = run().train(*arm)
    where = trained.folder
    capsys.readouterr()
    command = [str(where), '--device=cpu', '--n=8', '--period=3']
    crystallise.main([*command, '--settle=3', '--learning_rate=0.01'])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == 'period 3' and [line.split()[0] for line in lines[2:9]] == [str(q) for q in range(2, 9)]
    assert (where / 'crystal.png').read_bytes()[:4] == b'\x89PNG'
    crystal, settled = trained.checkpoint('crystal.pt'), trained.checkpoint('settled/ckpt.pt')
    assert crystal['model_args']['learn'] == crystal['options']['learn'] == 'amplitude,phase'
    assert settled['options']['learning_rate'] == 0.01 and settled['iter'] == 3
    start = trained.checkpoint('start.pt')
    for old, new, first, after in zip(*map(Omegas, (trained.checkpoint('best.pt'), crystal, start, settled))):
        assert torch.equal(new, nearest(old, 3)) and not torch.equal(new, old)
        assert torch.equal(new[new != 0], after[new != 0]) and torch.equal(first, after)
    assert not torch.equal(crystal['model']['lm_head.weight'], settled['model']['lm_head.weight'])

    crystallise.main([str(where), '--device=cpu', '--n=8', '--period=4', '--into=wrong', '--settle=2'])
    assert '--checkpoint wrong/crystal.pt' in capsys.readouterr().out
    other = trained.checkpoint('wrong/crystal.pt')
    best = trained.checkpoint('best.pt')
    assert all(torch.equal(new, nearest(old, 4)) for old, new in zip(Omegas(best), Omegas(other)))
    start = trained.checkpoint('wrong/start.pt')
    assert all(map(torch.equal, Omegas(trained.checkpoint('wrong/settled/best.pt')), Omegas(start)))
    assert all(map(torch.equal, Omegas(trained.checkpoint('crystal.pt')), Omegas(crystal)))  # the first one stays
    assert {path.name for path in (where / 'wrong').iterdir()} == {
        'crystal.json', 'crystal.png', 'crystal.pt', 'start.pt', 'settled'}

    page.main([str(where), '--checkpoint=crystal.pt', '--n=8', '--multiples', '1', '2', '--device=cpu'])
    again = run('again').train(*arm, f'--init_from={where}/crystal.pt', '--learn=amplitude,phase')
    assert all(map(torch.equal, Omegas(again.checkpoint()), Omegas(crystal)))
    with pytest.raises(FileExistsError, match='settled.* already holds a run'):
        crystallise.main([*command, '--settle=3'])
    for checkpoint in ('crystal.pt', 'settled/best.pt'):
        with pytest.raises(ValueError, match='a crystal already: all its frequencies are multiples of 2 pi / 3'):
            crystallise.main([str(where), '--device=cpu', f'--checkpoint={checkpoint}'])
    capsys.readouterr()
    crystallise.main([str(where), '--device=cpu', '--n=8'])  # six updates have found nothing
    assert capsys.readouterr().out.splitlines()[-1] == 'no period' and not (where / 'crystal.pt').exists()


@pytest.mark.parametrize('solved, lossless', [(1e9, True), (-1e9, False)])
def test_a_crystal_that_lost_nothing_is_not_spread(run, monkeypatch, solved, lossless):  # noqa: F811
    trained = run().train(TASK, '--attention=spectral')  # frequencies up to 1: most are nearest to 0
    monkeypatch.setattr(crystallise, 'SOLVED', solved)
    crystallise.main([str(trained.folder), '--device=cpu', '--n=8', '--period=3', '--settle=1'])
    crystal, start = trained.checkpoint('crystal.pt')['model'], trained.checkpoint('start.pt')['model']
    alike = [torch.equal(crystal[name], start[name]) for name in crystal if name.endswith(('Omega', '.A'))]
    assert alike == [lossless] * 2


def test_pairs_at_harmonic_0_take_the_others_in_turn():
    model = GPT(GPTConfig(vocab_size=7, n_layer=1, n_head=2, n_embd=24, attention='spectral'))
    way = model.blocks[0].attention.way
    with torch.no_grad():
        way.Omega.copy_(math.pi / 5 * torch.tensor([[1.0, 0, 2, 0, -0.0, 0], [0, 3, 3, 3, 3, 3]]))
        way.A.copy_(torch.linspace(-1, 2, 12).view(2, 6))
    assert spread(model, 5) is model and (way.A == 1).all()
    expected = 2 * math.pi / 5 * torch.tensor([[0.5, 0, 1, 1, 2, 0], [0, 1.5, 1.5, 1.5, 1.5, 1.5]])
    assert torch.allclose(way.Omega, expected, rtol=1e-6)


@pytest.mark.parametrize('attention, heads, attention_of_crystal', [
    ('bifocal', 'spectral', 'bifocal'), ('bifocal', 'all', 'spectral'), ('rope', 'all', 'spectral')])
def test_the_spectral_heads_alone_or_all(run, attention, heads, attention_of_crystal):  # noqa: F811
    trained = run().train(TASK, f'--attention={attention}')
    crystallise.main([str(trained.folder), '--device=cpu', '--n=8', '--period=3', f'--heads={heads}'])
    crystal = trained.checkpoint('crystal.pt')
    assert crystal['model_args']['attention'] == crystal['options']['attention'] == attention_of_crystal
    assert {len(Omega) for Omega in Omegas(crystal)} == {1 if heads == 'spectral' else 2}
    page.load_run(trained.folder, 'crystal.pt', 'cpu')


@pytest.mark.parametrize('words, error, message', [
    (['--period=9'], ValueError, '--period=9: strings of 16 tokens can tell periods from 2 to 8'),
    (['--checkpoint=none.pt'], FileNotFoundError, 'none.pt does not exist'),
    (['--settle=3', '--learning_rat=1'], ValueError, "unknown option 'learning_rat'; did you mean learning_rate"),
    (['--settle=3', '--learn=frequency'], ValueError, 'learn=frequency: settling keeps the frequencies')])
def test_bad_options_are_refused_before_any_work(run, words, error, message):  # noqa: F811
    where = run().train(TASK, '--attention=spectral').folder
    with pytest.raises(error, match=message):
        crystallise.main([str(where), '--device=cpu', *words])
    assert not (where / 'crystal.pt').exists() and not (where / 'crystal.png').exists()


def test_a_file_of_someone_else_stays(run):  # noqa: F811
    trained = run().train(TASK, '--attention=spectral')
    target = trained.folder / 'crystal.pt'
    for content in (b'mine', (trained.folder / 'best.pt').read_bytes()):
        target.write_bytes(content)
        with pytest.raises((ValueError, FileExistsError), match=r'crystal.pt (was not written|is not a checkpoint)'):
            crystallise.main([str(trained.folder), '--device=cpu', '--n=8', '--period=3'])
        assert target.read_bytes() == content
