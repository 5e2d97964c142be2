"""The grids and extensions of lab/frequencies.py, beside the papers' formulae and beside transformers."""

import math

import numpy as np
import pytest
import torch

from lab.frequencies import choose, geometric, read, stretch
from lab.tests.conftest import build, stir
from model import RoPE, GPTConfig

EXTENSIONS = {
    'pi': 'pi:factor=3',
    'ntk': 'ntk:factor=4',
    'yarn': 'yarn:factor=4,original=40,fast=4',
    'yarn, all of it': 'yarn:factor=4,original=40,fast=4,slow=0.5,gain=1.2',
    'yarn, from the block size': 'yarn:factor=4,fast=8',
    'llama3': 'llama3:factor=4,original=40,high=3,low=0.2',
}


def config_of(rope, hs=8, **options):
    return GPTConfig(**dict(dict(vocab_size=11, n_head=1, n_embd=hs, rope=rope), **options))


def frequencies(rope, hs=8, **options):
    config = config_of(rope, hs, **options)
    return choose(config, geometric(config))[0].tolist()


def wavelengths(rope, hs):
    return [2 * math.pi / theta for theta in frequencies(rope, hs)]


# ----------------------------------------------------------------------------------------------------------------------
# Grids


def test_the_geometric_grid_is_the_papers():
    assert frequencies('geometric') == pytest.approx([1.0, 0.1, 0.01, 0.001])
    assert torch.equal(RoPE(config_of('geometric')).theta, geometric(config_of('geometric')).float())


def test_resonance_rounds_wavelengths_to_whole_tokens():
    assert wavelengths('resonance', 8) == pytest.approx([6, 63, 628, 6283])  # of 6.28, 62.8, 628.3, 6283.2


@pytest.mark.parametrize('period', [2, 7, 10])
def test_the_harmonic_grid_repeats_with_its_period_and_spans_it(period):
    angle = torch.arange(4 * period).double()[:, None] * torch.tensor(frequencies(f'harmonic:period={period}', 32))
    table = torch.cat([angle.cos(), angle.sin()], dim=1)  # (4 period, 32)
    assert torch.allclose(table[:period], table[period:2 * period], atol=1e-5)
    assert torch.linalg.matrix_rank(table[:period], rtol=1e-4) == period  # any function of m mod period


def test_the_linear_grid_is_even_up_to_pi():
    assert frequencies('linear') == pytest.approx([math.pi / 4, math.pi / 2, 3 * math.pi / 4, math.pi])


@pytest.mark.parametrize('attention', ['rope', 'spectral'])
@pytest.mark.parametrize('rope', ['harmonic:period=7', 'linear', 'resonance'])
def test_the_grid_reaches_the_rotation(attention, rope):
    model = build(attention=attention, rope=rope, phase_std=0.0)
    for block in model.blocks:
        Omega, A, Phi, _ = block.attention.way.rotation()
        assert torch.equal(Omega, torch.tensor(frequencies(rope)).expand_as(Omega))
        assert A.eq(1).all() and Phi.eq(0).all()


# ----------------------------------------------------------------------------------------------------------------------
# Extensions


def naive_stretch(config):
    """The factor of each frequency, and that of the scores, as the papers and their code write them."""
    family, given = read(config.rope)
    hs, b, s = config.head_size, config.rope_base, given['factor']
    P, L = hs // 2, given.get('original') or config.block_size
    theta = [b ** (-2 * i / hs) for i in range(P)]
    if family == 'pi':
        return [1 / s] * P, 1.0
    if family == 'ntk':
        return [(b * s ** (hs / (hs - 2))) ** (-2 * i / hs) / theta[i] for i in range(P)], 1.0
    if family == 'yarn':
        def pair(turns):
            return hs * math.log(L / (2 * math.pi * turns)) / (2 * math.log(b))
        low, high = max(math.floor(pair(given['fast'])), 0), min(math.ceil(pair(given['slow'])), hs - 1)
        kept = [1 - min(max((i - low) / (high - low), 0), 1) for i in range(P)]
        return [g + (1 - g) / s for g in kept], (given['gain'] or 0.1 * math.log(s) + 1) ** 2
    factors = []
    for wavelength in (2 * math.pi / t for t in theta):
        smooth = (L / wavelength - given['low']) / (given['high'] - given['low'])
        fast, slow = wavelength < L / given['high'], wavelength > L / given['low']
        factors.append(1 if fast else 1 / s if slow else (1 - smooth) / s + smooth)
    assert len(set(factors)) >= 3  # some pairs of each kind
    return factors, 1.0


@pytest.mark.parametrize('attention', ['rope', 'spectral', 'bifocal'])
@pytest.mark.parametrize('case', EXTENSIONS)
def test_an_extension_is_the_formula_in_every_way_that_turns(case, attention):
    """In the rows that turn queries and keys; and forward, which turns them, reads what the scores say."""
    model = build(attention=attention, rope=EXTENSIONS[case], n_kv_head=2, phase_std=0.0)
    config, way = model.config, model.blocks[0].attention.way
    factors, gain = naive_stretch(config)
    Omega, A, Phi, _ = way.rotation()
    expected = [factor * config.rope_base ** (-2 * i / config.head_size) for i, factor in enumerate(factors)]
    torch.testing.assert_close(Omega, torch.tensor(expected).expand_as(Omega), rtol=1e-6, atol=0)
    torch.testing.assert_close(A**2, torch.full_like(A, gain), rtol=1e-6, atol=0)
    stir(model)
    q, k, v = model.blocks[0].attention.project(torch.randn(2, 9, 32))
    weights = way.scores(q, k).masked_fill(torch.ones(9, 9).triu(1).bool(), float('-inf')).softmax(-1)
    torch.testing.assert_close(way(q, k, v), weights @ v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('ours, theirs', [('pi', 'linear'), ('ntk', 'dynamic'), ('yarn', 'yarn'), ('llama3', 'llama3')])
@pytest.mark.parametrize('hs, base, length, factor', [(32, 1e4, 256, 4.0), (64, 5e5, 8192, 8.0), (128, 1e4, 2048, 2.0)])
def test_extensions_are_those_of_transformers(ours, theirs, hs, base, length, factor):
    pytest.importorskip('transformers', reason='the peer to compare with')
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    parameters = dict(rope_type=theirs, rope_theta=base, factor=1.0 if ours == 'ntk' else factor)
    if ours in ('yarn', 'llama3'):
        parameters['original_max_position_embeddings'] = length
    if ours == 'llama3':
        parameters.update(low_freq_factor=1.0, high_freq_factor=4.0)
    full = int(length * factor) if ours in ('yarn', 'llama3') else length
    config = LlamaConfig(hidden_size=4 * hs, num_attention_heads=4, head_dim=hs, rope_parameters=parameters,
                         max_position_embeddings=full)
    expected, expected_gain = ROPE_INIT_FUNCTIONS[theirs](config, 'cpu', seq_len=int(length * factor))
    config = config_of(f'{ours}:factor={factor}', hs, rope_base=base, block_size=length)
    theta, gain = choose(config, geometric(config))
    torch.testing.assert_close(theta.float(), expected, rtol=1e-6, atol=0)
    assert gain == pytest.approx(expected_gain)


def test_extensions_keep_what_they_should():
    """ntk keeps the fastest pair and slows the slowest as much as pi; yarn keeps pairs of many turns."""
    ntk, yarn = (stretch(config_of(f'{name}:factor=4', 64, block_size=2048))[0].tolist() for name in ('ntk', 'yarn'))
    assert ntk[0] == 1 and ntk[-1] == pytest.approx(1 / 4) and ntk == sorted(ntk, reverse=True)
    turns = (2048 * geometric(config_of('geometric', 64)) / (2 * math.pi)).tolist()
    assert all(factor == 1 for factor, turn in zip(yarn, turns) if turn > 40)
    assert all(factor == pytest.approx(1 / 4) for factor, turn in zip(yarn, turns) if turn < 0.7)
    for name in ('pi', 'ntk', 'yarn', 'llama3'):  # a text that is no longer: no change
        factors, gain = stretch(config_of(f'{name}:factor=1', 64))
        assert factors.eq(1).all() and gain == 1


def test_theta_of_32_bits_is_rounded_at_each_operation():
    """Not once at the end; and an extension multiplies what the rounding gave."""
    once, each = (geometric(config_of(rope, 64)).float() for rope in ('geometric', 'geometric:bits=32'))
    exponents = np.arange(0, 64, 2, dtype=np.float32) / np.float32(64)
    steps = np.float32(1) / np.power(10000.0, exponents.astype(np.float64)).astype(np.float32)
    assert steps.dtype == np.float32 and each.numpy() == pytest.approx(steps, rel=2.5e-7)  # two units in the last place
    assert (each.numpy() == steps).mean() > 0.8 > (once.numpy() == steps).mean()
    assert torch.equal(geometric(config_of('geometric:bits=64', 64)).float(), once)
    quarter = build(rope='pi:factor=4,bits=32', n_embd=128, n_head=2).blocks[0].attention.way.theta
    assert torch.equal(quarter, each / 4)


# ----------------------------------------------------------------------------------------------------------------------
# The option


def test_the_option_is_read_with_its_defaults():
    assert read('geometric') == ('geometric', {'bits': 0}) and read('linear') == ('linear', {})
    assert read('harmonic:period=10') == ('harmonic', {'period': 10})
    assert read('pi:factor=8,bits=32') == ('pi', {'factor': 8, 'bits': 32})
    assert read('yarn:slow=2,factor=1e1') == ('yarn', dict(factor=10, original=0, fast=32, slow=2, gain=0, bits=0))
    assert read('llama3:factor=8') == ('llama3', dict(factor=8, original=0, high=4, low=1, bits=0))


@pytest.mark.parametrize('rope, message', [
    ('abf', "rope='abf': must be one of geometric, linear, resonance, harmonic, pi, ntk, yarn, llama3"),
    ('', "rope='': must be one of"),
    ('linear:period=3', "rope='linear:period=3': linear has no parameter 'period'; it has none"),
    ('yarn:factors=8', "yarn has no parameter 'factors'; it has factor, original, fast, slow, gain"),
    ('pi', "rope='pi': pi needs factor, such as pi:factor=8"),
    ('harmonic', 'harmonic needs period'),
    ('pi:factor', "factor: parameters are written name=number"),
    ('pi:factor=two', "factor='two': must be a number"),
    ('pi:factor=inf', 'factor=inf: must be finite'),
    ('pi:factor=nan', 'factor=nan: must be finite'),
    ('pi:factor=0.5', "rope='pi:factor=0.5': factor must be at least 1"),
    ('harmonic:period=1', 'period must be a whole number of at least 2'),
    ('harmonic:period=2.5', 'period must be a whole number of at least 2'),
    ('yarn:factor=4,original=-1', 'original must be 0 or positive'),
    ('yarn:factor=4,gain=-1', 'gain must be 0 or positive'),
    ('geometric:bits=16', 'bits must be 32, 64 or 0'),
    ('yarn:factor=4,slow=0', 'slow must be positive'),
    ('yarn:factor=4,fast=1', 'fast must be greater than slow=1'),
    ('llama3:factor=4,low=4', 'high must be greater than low=4'),
    ('ntk:factor=4', "rope='ntk:factor=4': must be another extension for a head size of 2"),
])
def test_a_wrong_option_is_named_with_what_is_allowed(rope, message):
    with pytest.raises(ValueError) as error:
        build(rope=rope, n_embd=8)
    assert message in str(error.value) and '\n' not in str(error.value)


def test_an_extension_needs_a_base_above_1():
    with pytest.raises(ValueError, match="rope_base=1.0: must be greater than 1"):
        build(rope='yarn:factor=1', rope_base=1.0)
