"""What lab/surgery.py keeps of a checkpoint, what it makes learnable, and what it refuses."""

import dataclasses

import pytest
import torch

from lab import LAB_ATTENTIONS
from lab.frequencies import stretch
from lab.surgery import start_from, transplant
from lab.tests.conftest import PAGE, attentions, build, stir
from model import Attention, GPTConfig, UserError, geometric
from tasks import make_task


def save(model):
    """The checkpoint of a model."""
    model_args = dataclasses.asdict(model.config)
    return dict(model=model.state_dict(), model_args=model_args, task='dyck')


def checkpoint(**options):
    """A model whose learned rotation is not the first one, and the checkpoint of it."""
    model = stir(build(**options))
    return model, save(model)


def operate(saved, **options):
    return transplant(saved, 'ckpt.pt', options)


def tokens():
    return torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(1))


def assert_close(model, other):
    logits, expected = model(tokens())[0], other(tokens())[0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)


# Surgical Integration


@pytest.mark.parametrize('attention', [*PAGE, *LAB_ATTENTIONS])
def test_without_options_it_is_the_same_model(attention):
    options = dict(frequencies='yarn:factor=2') if attention == 'rope_yarn' else {}
    model, saved = checkpoint(attention=attention, rope_base=500.0, **options)
    same, model = operate(saved).eval(), model.eval()
    assert torch.equal(same(tokens())[0], model(tokens())[0]) and type(same.config) is GPTConfig


@pytest.mark.parametrize('attention', ['spectral', 'bifocal'])
def test_surgery_keeps_the_function_and_opens_the_rotation(attention):
    model, saved = checkpoint(attention='rope', rope_base=500.0)
    assert_close(operate(saved, attention=attention, phase_std=0.0), model)
    noisy = operate(saved, attention=attention, phase_std=1e-3)
    assert 1e-5 < (noisy(tokens())[0] - model(tokens())[0]).abs().max() < 0.1
    theta = geometric(model.config).float()  # of the checkpoint's own base, not of the default
    for layer in attentions(noisy):
        assert layer.Omega.shape == ((4, 4) if attention == 'spectral' else (2, 4))
        assert torch.equal(layer.Omega, theta.expand_as(layer.Omega)) and layer.A.eq(1).all()
        assert 1e-5 < layer.Phi.std() < 1e-2
    assert all(p.requires_grad for p in noisy.parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, noisy.get_parameter(name))


def test_surgery_from_bifocal_to_spectral_keeps_what_was_learned():
    model, saved = checkpoint(attention='bifocal')
    spectral = operate(saved, attention='spectral', phase_std=0.0)
    assert_close(spectral, model)
    Omega = attentions(spectral)[0].Omega
    assert torch.equal(Omega[2:], attentions(model)[0].Omega)
    assert torch.equal(Omega[:2], geometric(model.config).float().expand(2, -1))


@pytest.mark.parametrize('attention', ['nope', 'rope,nope'])
def test_positions_may_be_dropped(attention):
    """As in arXiv 2512.12167: all weights fit."""
    model, saved = checkpoint(attention='rope')
    dropped = operate(saved, attention=attention)
    kinds = [type(layer) is Attention for layer in attentions(dropped)]
    assert kinds == [attention == 'nope', True]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, dropped.get_parameter(name))


# Extensions to longer texts


@pytest.mark.parametrize('attention', ['rope', 'bifocal'])
def test_interpolation_shows_every_third_position_what_it_was_trained_on(attention):
    """By 3, the scores at 3m and 3n are those of the model at m and n; learned ones, too."""
    model, saved = checkpoint(attention=attention)
    longer = operate(saved, frequencies='pi:factor=3')
    q, k = torch.randn(2, 2, 4, 7, 8)
    position = torch.arange(7)
    trained = attentions(model)[1].rotate(q, k, position)
    extended = attentions(longer)[1].rotate(q, k, 3 * position)
    for ours, theirs in zip(extended, trained):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['pi:factor=4', 'ntk:factor=4', 'yarn:factor=4,fast=8',
                                  'llama3:factor=4,high=8'])
def test_learned_frequencies_are_stretched_as_theta_is(name):
    model, saved = checkpoint(attention='bifocal')
    extended = operate(saved, frequencies=name)
    factors = stretch(extended.config)
    assert not factors.eq(1).all()
    for old, new in zip(attentions(model), attentions(extended)):
        torch.testing.assert_close(new.Omega, (old.Omega * factors).float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(new.theta, (old.theta * factors).float(), rtol=1e-6, atol=0)
        assert torch.equal(new.A, old.A) and torch.equal(new.Phi, old.Phi)
    for options in ({}, dict(frequencies=name)):  # not stretched a second time
        again = operate(save(extended), **options)
        assert torch.equal(attentions(again)[0].Omega, attentions(extended)[0].Omega)
    back = attentions(operate(save(extended), frequencies='geometric'))[0].Omega
    torch.testing.assert_close(back, attentions(model)[0].Omega, rtol=1e-6, atol=0)


def test_surgery_on_an_extended_model_starts_at_its_own_rotation():
    model, saved = checkpoint(attention='rope', frequencies='yarn:factor=4,fast=8')
    spectral = operate(saved, attention='spectral', phase_std=0.0)
    theta = attentions(model)[0].theta
    assert torch.equal(attentions(spectral)[0].Omega, theta.expand(4, -1))
    assert_close(spectral, model)
    _, plain = checkpoint(attention='rope')
    both = operate(plain, attention='spectral', frequencies='yarn:factor=4,fast=8',
                   phase_std=0.0)
    assert_close(both, model)


def test_an_extension_knows_the_length_that_was_trained():
    _, saved = checkpoint(attention='bifocal')
    for name, original in [('yarn:factor=4', 64), ('yarn:factor=4,original=32', 32),
                           ('llama3:factor=4,original=0', 64)]:
        extended = operate(saved, block_size=256, frequencies=name)
        assert extended.config.block_size == 256
        trained = dataclasses.replace(extended.config, block_size=original,
                                      frequencies=name)
        theta = stretch(trained) * geometric(trained)
        torch.testing.assert_close(attentions(extended)[0].theta, theta.float())
        again = operate(save(extended), frequencies=name, block_size=512)
        assert torch.equal(attentions(again)[0].theta, attentions(extended)[0].theta)


# Runs of train.py


def test_a_run_starts_from_another_attention_and_length(run, capsys):
    old = run('old').train()
    start = f'--init_from={old.folder}/ckpt.pt'
    new = run('new').train(start, '--attention=spectral', '--phase_std=0.0', '--learn=phase',
                           '--frequencies=yarn:factor=2', '--block_size=32', '--max_iters=1')
    assert "ckpt.pt: attention was 'rope' and is now 'spectral'" in capsys.readouterr().out
    config = new.checkpoint()['model_args']
    assert (config['attention'], config['block_size']) == ('spectral', 32)
    assert config['frequencies'] == 'yarn:factor=2,original=16'
    same = run('same').train(start, '--attention=bifocal', '--phase_std=0.0')
    expected = old.log()[-1]['val_loss']
    assert same.log()[0]['val_loss'] == pytest.approx(expected, rel=1e-5)


def test_options_that_are_not_given_stay_those_of_the_source(run, capsys):
    """Also where train.py's default is another; the record of the run says what the model is."""
    old = run('old').train('--n_head=4', '--rope_base=300.0', '--block_size=32')
    start = f'--init_from={old.folder}/best.pt'
    capsys.readouterr()
    new = run('new').train(start, '--attention=nope', '--device=cpu', '--max_iters=1', small=[])
    assert capsys.readouterr().out.count(' was ') == 1
    expected = old.checkpoint()['model_args'] | dict(attention='nope')
    assert new.checkpoint()['model_args'] == expected
    del expected['vocab_size']  # no option
    assert expected.items() <= new.checkpoint()['options'].items()


def test_a_run_on_other_symbols_is_refused(run):
    old = run('old').train('--max_iters=1')
    message = 'ckpt.pt: it was trained on task dyck, whose symbols are not those of modulo'
    for init_from, error in [(f'{old.folder}/ckpt.pt', message),
                             (old.folder, f'{old.folder} is a folder: must be a checkpoint in it'),
                             ('nowhere.pt', 'nowhere.pt: there is no such file')]:
        with pytest.raises(UserError, match=error):
            start_from(init_from, make_task('modulo'), {})


# What is refused


@pytest.mark.parametrize('old, new, message', [
    (dict(attention='tapa'), dict(attention='rope'), 'tapa to rope is not a surgery'),
    (dict(attention='nope'), dict(attention='spectral'), 'nope to spectral is not a surgery'),
    (dict(attention='spectral'), dict(attention='rope'), 'spectral to rope is not a surgery'),
    (dict(attention='spectral_shared'), dict(attention='spectral'), 'shared to spectral is not'),
    (dict(rope_base=500.0), dict(attention='spectral', rope_base=1e4), 'rope_base=10000.0: Omega'),
    (dict(attention='spectral'), dict(rope_base=500.0), 'rope_base=500.0: Omega comes from'),
    (dict(), dict(attention='spectral', frequencies='linear'),
     'frequencies=linear: .* has frequencies=geometric'),
    (dict(frequencies='harmonic:period=7'),
     dict(attention='spectral', frequencies='harmonic:period=5'),
     'period=5: Omega'),
    (dict(attention='spectral', frequencies='linear'), dict(frequencies='pi:factor=2'),
     'factor=2: Omega comes'),
    (dict(), dict(n_layer=3), 'n_layer=3: the weights in ckpt.pt have n_layer=2'),
], ids=str)
def test_what_is_no_surgery_is_refused(old, new, message):
    with pytest.raises(UserError, match=message):
        operate(checkpoint(**old)[1], **new)
