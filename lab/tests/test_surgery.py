"""What lab/surgery.py keeps of a checkpoint, what it makes learnable, and what it refuses."""

import dataclasses
import math
import re

import pytest
import torch

import lab.surgery
import tasks
from lab.frequencies import stretch
from lab.surgery import transplant
from lab.tests.conftest import attentions, build, stir
from model import ATTENTIONS, Attention, GPTConfig, UserError, geometric


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


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_without_options_it_is_the_same_model(attention):
    options = dict(frequencies='yarn:factor=2') if attention == 'rope_yarn' else {}
    model, saved = checkpoint(attention=attention, rope_base=500.0, n_kv_head=2, **options)
    same = operate(saved)
    assert torch.equal(same(tokens())[0], model(tokens())[0]) and type(same.config) is GPTConfig
    del saved['model_args']['log_scale_length']  # a checkpoint from before this option
    assert torch.equal(operate(saved)(tokens())[0], model(tokens())[0])


@pytest.mark.parametrize('attention', ['spectral', 'bifocal'])
def test_surgery_keeps_the_function_and_opens_the_rotation(attention):
    model, saved = checkpoint(attention='rope', rope_base=500.0, n_kv_head=2)
    assert_close(operate(saved, attention=attention, phase_std=0.0), model)
    noisy = operate(saved, attention=attention, phase_std=1e-3)
    assert 1e-5 < (noisy(tokens())[0] - model(tokens())[0]).abs().max() < 0.1
    theta = geometric(model.config).float()  # of the checkpoint's own base, not of the default
    for layer in attentions(noisy):
        assert layer.Omega.shape == ((2, 4) if attention == 'spectral' else (1, 4))
        assert torch.equal(layer.Omega, theta.expand_as(layer.Omega)) and layer.A.eq(1).all()
        assert 1e-5 < layer.Phi.std() < 1e-2
    assert all(p.requires_grad for p in noisy.parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, noisy.get_parameter(name))


def test_phases_are_sampled_from_the_seed():
    _, saved = checkpoint(attention='rope')
    phases = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        layers = attentions(operate(saved, attention='spectral'))
        phases.append(torch.cat([layer.Phi for layer in layers]))
    assert torch.equal(phases[0], phases[1]) and not torch.equal(phases[0], phases[2])
    assert not torch.equal(*phases[0].chunk(2))


def test_what_is_not_learned_stays_frozen():
    _, saved = checkpoint(attention='rope')
    for layer in attentions(operate(saved, attention='spectral', learn='frequency')):
        learned = [layer.Omega.requires_grad, layer.A.requires_grad, layer.Phi.requires_grad]
        assert learned == [True, False, False]


def test_surgery_from_bifocal_to_spectral_keeps_what_was_learned():
    model, saved = checkpoint(attention='bifocal')
    spectral = operate(saved, attention='spectral', phase_std=0.0)
    assert_close(spectral, model)
    Omega = attentions(spectral)[0].Omega
    assert torch.equal(Omega[2:], attentions(model)[0].Omega)
    assert torch.equal(Omega[:2], geometric(model.config).float().expand(2, -1))


def test_log_scale_may_come_after_the_training():
    """It changes no weight, and is 1 at one position alone."""
    model, saved = checkpoint(attention='spectral')
    scaled = operate(saved, log_scale_length=64)
    assert scaled.config.log_scale_length == 64
    assert not torch.allclose(scaled(tokens())[0], model(tokens())[0])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, scaled.get_parameter(name))


@pytest.mark.parametrize('attention', ['nope', 'rope,nope'])
def test_positions_may_be_dropped(attention):
    """As in arXiv 2512.12167: all weights fit."""
    model, saved = checkpoint(attention='rope')
    dropped = operate(saved, attention=attention)
    kinds = [type(layer) is Attention for layer in attentions(dropped)]
    assert kinds == [attention == 'nope', True]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, dropped.get_parameter(name))


def test_tapa_may_be_computed_otherwise():
    model, saved = checkpoint(attention='tapa')
    assert_close(operate(saved, attention='tapa_fused'), model)


def test_the_checkpoint_stays_as_it_was():
    _, saved = checkpoint(attention='rope')
    options = dict(attention='bifocal', frequencies='yarn:factor=2')
    transplant(saved, 'ckpt.pt', options)
    assert options == dict(attention='bifocal', frequencies='yarn:factor=2')
    assert 'blocks.0.attention.A' not in saved['model']


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


def test_options_that_are_left_out_mean_those_of_the_checkpoint(run, capsys):
    old = run('old').train('--n_head=4', '--n_kv_head=2', '--rope_base=300.0')
    start = f'--init_from={old.folder}/best.pt'
    new = run('new').train(start, '--max_iters=1')
    kept = 'kept, for they were left at their defaults: n_head=4, n_kv_head=2, rope_base=300.0\n'
    assert kept in capsys.readouterr().out
    assert new.checkpoint()['model_args'] == old.checkpoint()['model_args']
    plain = run('plain').train('--max_iters=1', '--n_head=1')
    run('third').train(f'--init_from={plain.folder}/best.pt', '--max_iters=1', '--n_head=1')
    assert 'kept' not in capsys.readouterr().out
    with pytest.raises(UserError, match='n_head=8: the weights in .*best.pt have n_head=4'):
        run('fourth').train(start, '--n_head=8')


def test_a_run_on_other_symbols_is_refused(run):
    old = run('old').train('--max_iters=1')
    new = run('new')
    message = 'ckpt.pt: it was trained on task dyck, whose symbols are not those of modulo'
    for init_from, error in [(f'{old.folder}/ckpt.pt', message),
                             (old.folder, f'{old.folder} is a folder: must be a checkpoint in it'),
                             ('nowhere.pt', 'nowhere.pt: there is no such file')]:
        with pytest.raises(UserError, match=error):
            new.train(f'--init_from={init_from}', '--task=modulo')
    assert not new.folder.exists()


def test_a_vocabulary_that_a_stranger_names_is_not_opened(run, monkeypatch):
    old = run('old').train('--task=text', '--max_iters=1')
    saved = dict(old.checkpoint(), task='text:encoding=stranger')
    torch.save(saved, old.folder / 'stranger.pt')
    opened = tasks.read_encoding
    monkeypatch.setattr(tasks, 'read_encoding', lambda name: opened(dict(bytes=name)[name]))
    with pytest.raises(UserError, match='whose symbols are not those of text'):
        run('new').train('--task=text', f'--init_from={old.folder}/stranger.pt')


# What is refused


@pytest.mark.parametrize('old, new, message', [
    (dict(attention='tapa'), dict(attention='rope'), 'tapa to rope is not a surgery'),
    (dict(attention='rope'), dict(attention='tapa'), 'rope to tapa is not a surgery'),
    (dict(attention='nope'), dict(attention='spectral'), 'nope to spectral is not a surgery'),
    (dict(), dict(attention='alibye'), "attention='alibye': must be one or several of"),
    (dict(attention='spectral'), dict(attention='rope'), 'spectral to rope is not a surgery'),
    (dict(attention='spectral'), dict(attention='bifocal'), 'spectral to bifocal is not a'),
    (dict(attention='spectral_shared'), dict(attention='spectral'), 'shared to spectral is not'),
    (dict(attention='rope,tapa'), dict(attention='rope'), 'tapa to rope is not a surgery'),
    (dict(rope_base=500.0), dict(attention='spectral', rope_base=1e4), 'rope_base=10000.0: Omega'),
    (dict(attention='spectral'), dict(rope_base=500.0), 'rope_base=500.0: Omega comes from'),
    (dict(), dict(attention='spectral', frequencies='linear'),
     'frequencies=linear: .* has frequencies=geometric'),
    (dict(frequencies='harmonic:period=7'),
     dict(attention='spectral', frequencies='harmonic:period=5'),
     'period=5: Omega'),
    (dict(attention='spectral', frequencies='linear'), dict(frequencies='pi:factor=2'),
     'factor=2: Omega comes'),
    (dict(attention='spectral'), dict(frequencies='yarn'), 'yarn needs factor'),
    (dict(), dict(n_layer=3), 'n_layer=3: the weights in ckpt.pt have n_layer=2'),
    (dict(), dict(n_embd=2**23), 'n_embd=8388608: the weights'),  # before it is built
    (dict(), dict(norm_eps=1e-6), 'norm_eps is no option of this model'),
], ids=str)
def test_what_is_no_surgery_is_refused(old, new, message):
    with pytest.raises(UserError, match=message):
        operate(checkpoint(**old)[1], **new)


A = 'blocks.0.attention.A'


@pytest.mark.parametrize('spoil, message', [
    (lambda saved: saved['model_args'].update(rope_grid='linear'), 'lacks: rope_grid'),
    (lambda saved: saved['model_args'].update(n_head='4'), 'n_head='),
    (lambda saved: saved['model_args'].update(vocab_size=12),
     'embedding.weight does not have the shape'),
    (lambda saved: saved['model_args'].update(n_layer=2**24 - 1), 'it has no 16777215 blocks'),
    (lambda saved: saved['model'].pop('norm.weight'), 'norm.weight'),
    (lambda saved: saved['model'].pop('embedding.weight'), 'embedding.weight'),
    (lambda saved: saved['model'].update(extra=torch.zeros(2)), 'extra'),
    (lambda saved: saved['model'].update({A: torch.ones(2, 3)}), 'A has another shape'),
    (lambda saved: saved['model'].update({A: torch.ones(1).expand(4, 4)}), 'no memory of its own'),
    (lambda saved: saved['model'][A].fill_(math.nan), 'A has values that are not finite'),
], ids=['an unknown option', 'a type', 'another vocabulary', 'too many layers', 'missing',
        'missing first', 'unexpected', 'another head size', 'one number', 'not finite'])
def test_a_checkpoint_that_contradicts_itself_is_named_in_one_line(monkeypatch, spoil, message):
    _, saved = checkpoint(attention='spectral')
    spoil(saved)
    message = f'ckpt.pt does not fit this model.py: .*{re.escape(message)}'
    with pytest.raises(UserError, match=message) as error:
        operate(saved)
    assert '\n' not in str(error.value)
    if 'blocks' in message:  # nothing of that size is built
        monkeypatch.setattr(lab.surgery, 'GPT', lambda config: pytest.fail('built'))
        with pytest.raises(UserError, match=message):
            operate(saved)
