"""What lab/surgery.py keeps of a checkpoint, what it makes learnable, and what it refuses."""

import dataclasses
import math

import pytest
import torch

from lab.frequencies import geometric, stretch
from lab.surgery import transplant
from lab.tests.conftest import build, stir, ways
from model import ATTENTIONS


def checkpoint(**options):
    """A model, and the checkpoint of it."""
    model = stir(build(**options))
    return model, dict(model=model.state_dict(), model_args=dataclasses.asdict(model.config), task='dyck')


def operate(saved, **overrides):
    return transplant(saved, 'ckpt.pt', overrides)


def tokens():
    return torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(1))


# ----------------------------------------------------------------------------------------------------------------------
# Surgical Integration


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_without_overrides_it_is_the_same_model(attention):
    model, saved = checkpoint(attention=attention, rope_base=500.0, n_kv_head=2)
    assert torch.equal(operate(saved)(tokens())[0], model(tokens())[0])
    del saved['model_args']['head_dim'], saved['model_args']['norm_eps']  # a checkpoint from before these options
    assert torch.equal(operate(saved)(tokens())[0], model(tokens())[0])


@pytest.mark.parametrize('attention', ['spectral', 'bifocal'])
def test_surgery_keeps_the_function_and_opens_the_rotation(attention):
    model, saved = checkpoint(attention='rope', rope_base=500.0, n_kv_head=2)
    exact, noisy = (operate(saved, attention=attention, phase_std=std) for std in (0.0, 1e-3))
    torch.testing.assert_close(exact(tokens())[0], model(tokens())[0], rtol=0, atol=1e-6)
    assert 1e-5 < (noisy(tokens())[0] - model(tokens())[0]).abs().max() < 0.1
    for way in ways(noisy):
        theta = geometric(model.config).float()  # of the checkpoint's own base, not of the default
        assert way.Omega.shape == ((2, 4) if attention == 'spectral' else (1, 4))
        assert torch.equal(way.Omega, theta.expand_as(way.Omega)) and way.A.eq(1).all()
        assert 1e-5 < way.Phi.std() < 1e-2 and all(p.requires_grad for p in way.parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, dict(noisy.named_parameters())[name])


def test_phases_are_drawn_from_the_seed():
    _, saved = checkpoint(attention='rope')
    phases = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        phases.append(torch.cat([way.Phi for way in ways(operate(saved, attention='spectral'))]))
    assert torch.equal(phases[0], phases[1]) and not torch.equal(phases[0], phases[2])
    assert not torch.equal(*phases[0].chunk(2))


def test_what_is_not_learned_stays_frozen():
    _, saved = checkpoint(attention='rope')
    for way in ways(operate(saved, attention='spectral', learn='frequency')):
        assert [way.Omega.requires_grad, way.A.requires_grad, way.Phi.requires_grad] == [True, False, False]


def test_surgery_from_bifocal_to_spectral_keeps_what_was_learned():
    model, saved = checkpoint(attention='bifocal', n_spectral_head=1)
    spectral = operate(saved, attention='spectral', phase_std=0.0)
    torch.testing.assert_close(spectral(tokens())[0], model(tokens())[0], rtol=0, atol=1e-6)
    assert torch.equal(ways(spectral)[0].Omega[3:], ways(model)[0].Omega)
    theta = geometric(model.config).float()
    assert torch.equal(ways(spectral)[0].Omega[:3], theta.expand(3, -1))


def test_log_scale_may_come_after_the_training():
    model, saved = checkpoint(attention='spectral')
    scaled = operate(saved, log_scale=64)
    x = torch.randn(1, 20, 32)
    (q, *_), (expected, *_) = (each.blocks[0].attention.project(x) for each in (scaled, model))
    factor = torch.arange(1, 21).log() / math.log(64)
    torch.testing.assert_close(q, expected * factor[:, None])
    assert all(torch.equal(p, dict(model.named_parameters())[name]) for name, p in scaled.named_parameters())


def test_the_weights_are_those_of_the_checkpoint_and_no_copy():
    """Nothing is drawn for them either: the state of the generator is what it was."""
    model, saved = checkpoint(attention='rope')
    before = torch.get_rng_state()
    same = operate(saved)
    assert torch.equal(torch.get_rng_state(), before)
    for name, parameter in same.named_parameters():
        assert parameter.data_ptr() == saved['model'][name].data_ptr(), name
    tensors = [*operate(saved, attention='spectral').parameters(), *operate(saved, attention='spectral').buffers()]
    assert all(tensor.device.type == 'cpu' for tensor in tensors)
    overrides = dict(attention='bifocal', rope='yarn:factor=2')
    transplant(saved, 'ckpt.pt', overrides)
    assert overrides == dict(attention='bifocal', rope='yarn:factor=2')
    assert 'blocks.0.attention.way.A' not in saved['model']


# ----------------------------------------------------------------------------------------------------------------------
# Extensions to longer texts


@pytest.mark.parametrize('attention', ['rope', 'bifocal'])
def test_interpolation_shows_every_third_position_what_it_was_trained_on(attention):
    """Position interpolation by 3: at 3m and 3n, the scores of the model at m and n. What was learned is slowed too."""
    model, saved = checkpoint(attention=attention)
    longer = operate(saved, rope='pi:factor=3')
    q, k, v = model.blocks[1].attention.project(torch.randn(2, 7, 32))
    apart = [torch.zeros(2, 4, 19, 8) for _ in range(2)]
    for spread, x in zip(apart, (q, k)):
        spread[:, :, ::3] = x
    trained, extended = ways(model)[1].scores(q, k), ways(longer)[1].scores(*apart)
    torch.testing.assert_close(extended[:, :, ::3, ::3], trained, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('rope', ['pi:factor=4', 'ntk:factor=4', 'yarn:factor=4,fast=8', 'llama3:factor=4,high=8'])
def test_learned_frequencies_are_stretched_as_theta_is(rope):
    model, saved = checkpoint(attention='bifocal')
    extended = operate(saved, rope=rope)
    factors, gain = stretch(extended.config)
    assert not factors.eq(1).all()
    for old, new in zip(ways(model), ways(extended)):
        torch.testing.assert_close(new.Omega, (old.Omega * factors).float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(new.theta, (old.theta * factors).float(), rtol=1e-6, atol=0)
        assert torch.equal(new.A, old.A) and torch.equal(new.Phi, old.Phi) and new.gain == gain
    resumed = dict(model=extended.state_dict(), model_args=dataclasses.asdict(extended.config))
    assert torch.equal(ways(operate(resumed))[0].Omega, ways(extended)[0].Omega)  # not stretched a second time
    assert torch.equal(ways(operate(resumed, rope=rope))[0].Omega, ways(extended)[0].Omega)
    back = ways(operate(resumed, rope='geometric'))[0].Omega
    torch.testing.assert_close(back, ways(model)[0].Omega, rtol=1e-6, atol=0)


def test_surgery_on_an_extended_model_starts_at_its_own_rotation():
    model, saved = checkpoint(attention='rope', rope='yarn:factor=4,fast=8')
    spectral = operate(saved, attention='spectral', phase_std=0.0)
    assert torch.equal(ways(spectral)[0].Omega, ways(model)[0].theta.expand(4, -1))
    torch.testing.assert_close(spectral(tokens())[0], model(tokens())[0], rtol=0, atol=1e-6)
    both = operate(checkpoint(attention='rope')[1], attention='spectral', rope='yarn:factor=4,fast=8', phase_std=0.0)
    torch.testing.assert_close(ways(both)[0].Omega, ways(spectral)[0].Omega, rtol=1e-6, atol=0)


def test_an_extension_knows_the_length_that_was_trained():
    _, saved = checkpoint(attention='bifocal')
    for options, original in ((dict(rope='yarn:factor=4'), 64), (dict(rope='yarn:factor=4,original=32'), 32),
                              (dict(rope='llama3:factor=4,original=0'), 64)):
        extended = operate(saved, block_size=256, **options)
        assert extended.config.block_size == 256
        expected = stretch(dataclasses.replace(extended.config, block_size=original, rope=options['rope']))[0]
        torch.testing.assert_close(ways(extended)[0].theta, (expected * geometric(extended.config)).float())
        again = dict(model=extended.state_dict(), model_args=dataclasses.asdict(extended.config))
        assert torch.equal(ways(operate(again, rope=options['rope'], block_size=512))[0].theta, ways(extended)[0].theta)


# ----------------------------------------------------------------------------------------------------------------------
# Runs of train.py


def test_a_run_starts_from_another_attention_and_length(run, capsys):
    old = run('old').train().checkpoint()
    start = f'--init_from={run("old").folder}/ckpt.pt'
    new = run('new').train(start, '--attention=spectral', '--phase_std=0.0', '--rope=yarn:factor=2', '--block_size=32',
                           '--learning_rate=0', '--learn=phase')
    assert "ckpt.pt: attention was 'rope' and is now 'spectral'" in capsys.readouterr().out
    config = new.checkpoint()['model_args']
    assert (config['attention'], config['block_size'], config['rope']) == ('spectral', 32, 'yarn:factor=2,original=16')
    for name, weight in old['model'].items():
        assert torch.equal(new.checkpoint()['model'][name], weight)
    same = run('same').train(start, '--attention=bifocal', '--phase_std=0.0')
    assert same.log()[0]['val_loss'] == pytest.approx(run('old').log()[-1]['val_loss'], rel=1e-5)


def test_a_run_on_other_symbols_is_refused(run):
    run('old').train()
    this = run('new')
    with pytest.raises(ValueError, match="ckpt.pt: it was trained on task dyck, whose symbols are not those of modulo"):
        this.train(f'--init_from={run("old").folder}/ckpt.pt', '--task=modulo')
    with pytest.raises(FileNotFoundError, match='nowhere.pt does not exist'):
        this.train('--init_from=nowhere.pt')
    assert not this.folder.exists()


# ----------------------------------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize('old, new, message', [
    (dict(attention='tapa'), dict(attention='rope'), 'tapa to rope is not a surgery'),
    (dict(attention='rope'), dict(attention='tapa'), 'rope to tapa is not a surgery'),
    (dict(attention='nope'), dict(attention='spectral'), 'nope to spectral is not a surgery'),
    (dict(attention='rope'), dict(attention='alibye'), "attention='alibye': must be one of"),
    (dict(attention='spectral'), dict(attention='rope'), 'its 4 spectral heads .* not fit 0 spectral heads'),
    (dict(attention='spectral'), dict(attention='bifocal'), 'its 4 spectral heads .* not fit 2 spectral heads'),
    (dict(attention='spectral'), dict(spectral_shared=True), 'spectral_shared=True'),
    (dict(attention='bifocal', spectral_shared=True), dict(attention='spectral'), 'not fit 4 spectral heads'),
    (dict(attention='rope', rope_base=500.0), dict(attention='spectral', rope_base=1e4), 'rope_base=10000.0: Omega'),
    (dict(attention='spectral'), dict(rope_base=500.0), 'rope_base=500.0: Omega comes from'),
    (dict(attention='rope'), dict(attention='spectral', rope='linear'), 'rope=linear: .* has rope=geometric'),
    (dict(rope='harmonic:period=7'), dict(attention='spectral', rope='harmonic:period=5'), 'period=5: Omega'),
    (dict(attention='spectral', rope='linear'), dict(rope='pi:factor=2'), 'rope=pi:factor=2: Omega comes from'),
    (dict(attention='spectral'), dict(rope='yarn'), 'yarn needs factor'),
    (dict(attention='rope'), dict(n_layer=3), 'n_layer=3: the weights in ckpt.pt have n_layer=2'),
    (dict(attention='rope'), dict(n_embd=64), 'n_embd=64: the weights'),
    (dict(attention='rope'), dict(head_dim=4), 'head_size=4: the weights'),
    (dict(attention='rope'), dict(norm_eps=1e-6), 'norm_eps=1e-06: the weights'),
], ids=str)
def test_what_is_no_surgery_is_refused(old, new, message):
    with pytest.raises(ValueError, match=message):
        operate(checkpoint(**old)[1], **new)


@pytest.mark.parametrize('spoil, message', [
    (lambda saved: saved['model_args'].update(rope_grid='linear'), "ckpt.pt: its model_args .* 'rope_grid'"),
    (lambda saved: saved['model_args'].update(vocab_size=12), 'ckpt.pt: its weights are not .* its own model_args'),
    (lambda saved: saved['model'].pop('norm.weight'), 'Missing key.* "norm.weight"'),
    (lambda saved: saved['model'].update(extra=torch.zeros(2)), 'Unexpected key.* "extra"'),
    (lambda saved: saved['model'].update({'blocks.0.attention.way.A': torch.ones(2, 3)}), 'own model_args'),
], ids=['an unknown option', 'another vocabulary', 'missing', 'unexpected', 'another head size'])
def test_a_checkpoint_that_contradicts_itself_is_named_in_one_line(spoil, message):
    _, saved = checkpoint(attention='spectral')
    spoil(saved)
    with pytest.raises(ValueError, match=message) as error:
        operate(saved)
    assert '\n' not in str(error.value)
