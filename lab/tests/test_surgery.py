"""What lab/surgery.py keeps of a checkpoint, what it makes learnable, and what it refuses."""

import dataclasses

import pytest
import torch

from lab import LAB_ATTENTIONS
from lab.frequencies import stretch
from lab.surgery import transplant
from lab.tests.conftest import PAGE, attentions, build, stir
from model import UserError, geometric

TOKENS = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(1))
YARN = 'yarn:factor=4,fast=8'


def trained(**options):
    """A model whose learned rotation is not the first one."""
    return stir(build(**options)).eval()


def operate(model, **options):
    """Its weights in a model with other options."""
    torch.manual_seed(1)  # so that its first weights are others
    return transplant(model, 'ckpt.pt', options).eval()


def assert_close(model, other, atol=1e-6):
    torch.testing.assert_close(model(TOKENS)[0], other(TOKENS)[0], rtol=0, atol=atol)


# Surgical Integration


@pytest.mark.parametrize('attention', [*PAGE, *LAB_ATTENTIONS])
def test_without_options_it_is_the_same_model(attention):
    options = dict(frequencies='yarn:factor=2,original=64') if attention == 'rope_yarn' else {}
    model = trained(attention=attention, rope_base=500.0, **options)
    same = operate(model)
    assert_close(same, model, atol=0)
    assert same.config == model.config


@pytest.mark.parametrize('frequencies', ['geometric', YARN])
@pytest.mark.parametrize('attention, heads', [('spectral', 4), ('bifocal', 2)])
def test_surgery_keeps_the_function_and_opens_the_rotation(attention, heads, frequencies):
    """It starts at the rotation of the checkpoint, whatever its base and its extension."""
    model = trained(attention='rope', rope_base=500.0, frequencies=frequencies)
    assert_close(operate(model, attention=attention, phase_std=0.0), model)
    noisy = operate(model, attention=attention, phase_std=1e-3)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, noisy.get_parameter(name)), name
    for old, new in zip(attentions(model), attentions(noisy)):
        assert torch.equal(new.Omega, old.theta.expand(heads, 4)) and new.A.eq(1).all()
        assert 1e-5 < new.Phi.std() < 1e-2
    assert all(p.requires_grad for p in noisy.parameters())


# Extensions to longer texts


@pytest.mark.parametrize('name', ['pi:factor=4', 'ntk:factor=4', YARN])
def test_learned_frequencies_are_stretched_once_as_theta_is(name):
    model = trained(attention='bifocal')
    extended = operate(model, frequencies=name)
    factors = stretch(extended.config)
    assert not factors.eq(1).all()
    for old, new in zip(attentions(model), attentions(extended)):
        torch.testing.assert_close(new.Omega, (old.Omega * factors).float(), rtol=1e-6, atol=0)
        assert torch.equal(new.A, old.A) and torch.equal(new.Phi, old.Phi)
    assert_close(operate(extended), extended, atol=0)
    assert_close(operate(extended, frequencies='geometric'), model, atol=1e-5)


def test_surgery_and_an_extension_at_once_are_the_one_on_the_other():
    model = trained(attention='rope')
    both = operate(model, attention='spectral', frequencies=YARN, phase_std=0.0)
    assert_close(both, operate(model, frequencies=YARN))


@pytest.mark.parametrize('name, original', [
    ('yarn:factor=4', 64), ('yarn:factor=4,original=32', 32)])
def test_an_extension_knows_the_length_that_was_trained(name, original):
    extended = operate(trained(attention='bifocal'), block_size=256, frequencies=name)
    config = dataclasses.replace(extended.config, block_size=original, frequencies=name)
    theta = attentions(extended)[0].theta
    torch.testing.assert_close(theta, (stretch(config) * geometric(config)).float())
    again = operate(extended, frequencies=name, block_size=512)
    assert torch.equal(attentions(again)[0].theta, theta)


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


def test_options_that_are_not_given_stay_those_of_the_source(run):
    """Also where train.py's default is another; the record of the run says what the model is."""
    old = run('old').train('--n_head=4', '--rope_base=300.0', '--block_size=32')
    start = f'--init_from={old.folder}/best.pt'
    new = run('new').train(start, '--attention=nope', '--device=cpu', '--max_iters=1', small=[])
    expected = old.checkpoint()['model_args'] | dict(attention='nope')
    assert new.checkpoint()['model_args'] == expected
    del expected['vocab_size']  # no option
    assert expected.items() <= new.checkpoint()['options'].items()


def test_a_run_on_other_symbols_or_from_a_folder_is_refused(run):
    old = run('old').train('--max_iters=1')
    with pytest.raises(UserError, match='is no file: must be scratch, resume, or a checkpoint'):
        run('new').train(f'--init_from={old.folder}')
    with pytest.raises(UserError, match='on task dyck, whose symbols are not those of modulo'):
        run('new').train(f'--init_from={old.folder}/ckpt.pt', '--task=modulo')


# What is refused


@pytest.mark.parametrize('old, new, message', [
    (dict(attention='tapa'), dict(attention='rope'), 'tapa to rope is not a surgery'),
    (dict(attention='nope'), dict(attention='spectral'), 'nope to spectral is not a surgery'),
    (dict(attention='spectral'), dict(attention='rope'), 'spectral to rope is not a surgery'),
    (dict(attention='bifocal'), dict(attention='spectral'), 'bifocal to spectral is not'),
    (dict(attention='rope'), dict(attention='lerope'), 'rope to lerope is not a surgery'),
    (dict(attention='lerope'), dict(attention='rope'), 'lerope to rope is not a surgery'),
    (dict(attention='learned'), dict(block_size=8), 'a layer keeps its kind and sizes'),
    (dict(attention='spectral'), dict(rope_base=500.0), 'rope_base=500.0: Omega comes from'),
    (dict(frequencies='harmonic:period=7'),
     dict(attention='spectral', frequencies='harmonic:period=5'), 'period=5: Omega'),
    (dict(attention='spectral', frequencies='linear'), dict(frequencies='pi:factor=2'),
     'factor=2: Omega comes'),
    (dict(), dict(n_layer=3), 'n_layer=3: the weights in ckpt.pt have n_layer=2')])
def test_what_is_no_surgery_is_refused(old, new, message):
    with pytest.raises(UserError, match=message):
        operate(trained(**old), **new)
