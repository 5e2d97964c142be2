"""The grids of lab/frequencies.py, beside the papers' formulae and beside transformers."""

import math

import numpy as np
import pytest
import torch

from lab.frequencies import EXTENSIONS, geometric, read, stretch
from lab.tests.conftest import attentions, build, stir
from model import GRIDS, Attention, GPTConfig, RoPE, Spectral, UserError

CASES = {
    'pi': 'pi:factor=3',
    'ntk': 'ntk:factor=4',
    'yarn': 'yarn:factor=4,original=40,fast=4',
    'yarn, all of it': 'yarn:factor=4,original=40,fast=4,slow=0.5,gain=1.2',
    'yarn, from the block size': 'yarn:factor=4,fast=8',
    'llama3': 'llama3:factor=4,original=40,high=3,low=0.2',
}


def config_of(rope, hs=8, **options):
    return GPTConfig(vocab_size=11, n_head=1, n_embd=hs, rope=rope, **options)


def theta(rope, hs=8, **options):
    """What the page computes: (P,) float64."""
    config = config_of(rope, hs, **options)
    return GRIDS[rope.partition(':')[0]](config)


# ---- grids --------------------------------------------------------------------------------------


def test_the_geometric_grid_is_the_papers():
    assert theta('geometric').tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])


def test_the_linear_grid_is_even_up_to_pi():
    assert theta('linear').tolist() == pytest.approx([math.pi / 4 * i for i in (1, 2, 3, 4)])


def test_resonance_rounds_wavelengths_to_whole_tokens():
    wavelengths = 2 * math.pi / theta('resonance')
    assert wavelengths.tolist() == pytest.approx([6, 63, 628, 6283])  # 6.28, 62.8, 628.3, 6283.2


@pytest.mark.parametrize('period', [2, 7, 10])
def test_the_harmonic_grid_has_its_period_and_can_be_any_function_of_it(period):
    positions = torch.arange(4 * period)[:, None]
    angle = positions * theta(f'harmonic:period={period}', hs=32)
    table = torch.cat([angle.cos(), angle.sin()], dim=1)  # (4 period, 32)
    torch.testing.assert_close(table[:period], table[period:2 * period])
    assert torch.linalg.matrix_rank(table[:period], rtol=1e-4) == period


@pytest.mark.parametrize('rope', ['geometric', 'linear', 'resonance', 'harmonic:period=7',
                                  'geometric:bits=32', *CASES.values()])
def test_the_grid_reaches_each_attention(rope):
    assert theta(rope).dtype == torch.float64
    for name, expected in dict(rope=RoPE, spectral=Spectral, bifocal=Spectral).items():
        for attention in attentions(build(attention=name, rope=rope)):
            assert isinstance(attention, expected)
            assert torch.equal(attention.theta, theta(rope).float())


# ---- extensions ---------------------------------------------------------------------------------


def naive_stretch(config):
    """The factor of each frequency, and of the scores, as the papers and their code write them."""
    name, given = read(config.rope)
    hs, b, s = config.head_size, config.rope_base, given['factor']
    P = hs // 2
    L = given.get('original') or config.block_size
    theta = [b ** (-2 * i / hs) for i in range(P)]
    if name == 'pi':
        return [1 / s] * P, 1.0
    if name == 'ntk':
        longer = b * s ** (hs / (hs - 2))
        return [longer ** (-2 * i / hs) / theta[i] for i in range(P)], 1.0
    if name == 'yarn':
        def pair(rotations):
            return hs * math.log(L / (2 * math.pi * rotations)) / (2 * math.log(b))
        low = max(math.floor(pair(given['fast'])), 0)
        high = min(math.ceil(pair(given['slow'])), hs - 1)
        kept = [1 - min(max((i - low) / (high - low), 0), 1) for i in range(P)]
        gain = given['gain'] or 0.1 * math.log(s) + 1
        return [g + (1 - g) / s for g in kept], gain**2
    factors = []
    for t in theta:
        rotations = L * t / (2 * math.pi)
        smooth = (rotations - given['low']) / (given['high'] - given['low'])
        factor = (1 - smooth) / s + smooth
        if rotations > given['high']:
            factor = 1
        if rotations < given['low']:
            factor = 1 / s
        factors.append(factor)
    assert len(set(factors)) >= 3  # some pairs of each case
    return factors, 1.0


@pytest.mark.parametrize('attention', ['rope', 'spectral', 'bifocal'])
@pytest.mark.parametrize('case', CASES)
def test_an_extension_is_the_formula_in_each_attention(case, attention):
    """In theta and in the scores; and the faster path computes what the scores say."""
    model = stir(build(attention=attention, rope=CASES[case], n_kv_head=2))
    ours, config = model.blocks[0].attention, model.config
    factors, gain = naive_stretch(config)
    plain = [config.rope_base ** (-2 * i / config.head_size) for i in range(len(factors))]
    expected = torch.tensor(factors) * torch.tensor(plain)
    torch.testing.assert_close(ours.theta, expected, rtol=1e-6, atol=0)

    x, position = torch.randn(2, 9, 32), torch.arange(9)
    q, k, v = ours.project(x, position)
    q_plain, k_plain, _ = Attention.project(ours, x, position)
    scores = ours.scores(q, k.repeat_interleave(2, dim=1))
    plain = ours.scores(q_plain, k_plain.repeat_interleave(2, dim=1))
    torch.testing.assert_close(scores, gain * plain, rtol=1e-4, atol=1e-5)

    written_out = Attention.attend(ours, q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(ours(x), ours.proj(written_out), rtol=1e-4, atol=1e-5)


LENGTHS = [(32, 1e4, 256, 4.0), (64, 5e5, 8192, 8.0), (128, 1e4, 2048, 2.0),
           (80, 1234.5, 1000, 3.0), (16, 1e6, 4096, 40.0)]
TYPES = [('pi', 'linear', {}), ('ntk', 'dynamic', {}), ('yarn', 'yarn', {}),
         ('yarn', 'yarn', dict(fast=16, slow=2)), ('llama3', 'llama3', dict(low=1, high=4)),
         ('llama3', 'llama3', dict(low=0.5, high=9))]
NAMES = dict(fast='beta_fast', slow='beta_slow', low='low_freq_factor', high='high_freq_factor')


@pytest.mark.parametrize('ours, theirs, given', TYPES)
@pytest.mark.parametrize('hs, base, length, factor', LENGTHS)
def test_extensions_are_those_of_transformers(ours, theirs, given, hs, base, length, factor):
    """With bits=32 bit for bit, and without nearly."""
    pytest.importorskip('transformers', reason='the peer to compare with')
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    parameters = dict(rope_type=theirs, rope_theta=base, factor=factor)
    parameters |= {NAMES[name]: float(value) for name, value in given.items()}
    longest = length
    if ours == 'ntk':  # the base of a dynamic one grows with the text, from this factor
        parameters['factor'] = 1.0
    if ours in ('yarn', 'llama3'):
        parameters['original_max_position_embeddings'] = length
        longest = int(length * factor)
    config = LlamaConfig(hidden_size=4 * hs, num_attention_heads=4, head_dim=hs,
                         rope_parameters=parameters, max_position_embeddings=longest)
    expected, gain = ROPE_INIT_FUNCTIONS[theirs](config, 'cpu', seq_len=int(length * factor))
    rope = ','.join([f'{ours}:factor={factor}', *(f'{n}={value}' for n, value in given.items())])
    options = dict(hs=hs, rope_base=base, block_size=length)
    assert torch.equal(theta(f'{rope},bits=32', **options).float(), expected)
    torch.testing.assert_close(theta(rope, **options).float(), expected, rtol=3e-6, atol=0)
    assert stretch(config_of(rope, **options))[1] == pytest.approx(gain)


def test_extensions_keep_what_they_should():
    """ntk keeps the fastest pair and slows the slowest as pi does; yarn keeps fast pairs."""
    ntk, yarn = (stretch(config_of(f'{name}:factor=4', 64, block_size=2048))[0].tolist()
                 for name in ('ntk', 'yarn'))
    assert ntk == sorted(ntk, reverse=True)
    assert [ntk[0], ntk[-1]] == pytest.approx([1, 1 / 4])
    rotations = (2048 * theta('geometric', 64) / (2 * math.pi)).tolist()
    assert all(f == pytest.approx(1) for f, r in zip(yarn, rotations) if r > 40)
    assert all(f == pytest.approx(1 / 4) for f, r in zip(yarn, rotations) if r < 0.7)


@pytest.mark.parametrize('name', EXTENSIONS)
def test_a_text_that_is_no_longer_changes_nothing(name):
    factors, gain = stretch(config_of(f'{name}:factor=1', 64))
    torch.testing.assert_close(factors, torch.ones_like(factors))
    assert gain == 1


def test_theta_of_32_bits_is_rounded_at_each_operation():
    """Not once at the end."""
    once, each = (geometric(config_of(rope, 64)).float().numpy()
                  for rope in ('geometric', 'geometric:bits=32'))
    exponents = np.arange(0, 64, 2, dtype=np.float32) / np.float32(64)
    powers = np.power(10000.0, exponents.astype(np.float64)).astype(np.float32)
    steps = np.float32(1) / powers
    assert each == pytest.approx(steps, rel=2.5e-7)  # two units in the last place
    assert (each == steps).mean() > 0.8 > (once == steps).mean()
    assert (geometric(config_of('geometric:bits=64', 64)).float().numpy() == once).all()


# ---- the option ---------------------------------------------------------------------------------


def test_the_option_is_read_with_its_defaults():
    assert read('geometric') == ('geometric', dict(bits=0))
    assert read('linear') == ('linear', {})
    assert read('harmonic:period=10') == ('harmonic', dict(period=10))
    assert read('pi:factor=8,bits=32') == ('pi', dict(factor=8, bits=32))
    yarn = dict(factor=10, original=0, fast=32, slow=2, gain=0, bits=0)
    assert read('yarn:slow=2,factor=1e1') == ('yarn', yarn)
    assert read('llama3:factor=8')[1] == dict(factor=8, original=0, high=4, low=1, bits=0)


@pytest.mark.parametrize('rope, message', [
    ('abf', "rope='abf': must be one of geometric, linear, resonance, harmonic, pi, ntk, yarn"),
    ('linear:period=3', "rope='linear:period=3': linear has no parameters"),
    ('yarn:factors=8', 'yarn has factor, original, fast, slow, gain, bits'),
    ('pi', "rope='pi': pi needs factor, such as pi:factor=8"),
    ('pi:factor=two', 'factor=two must be factor=number'),
    ('pi:factor=nan', 'factor must be finite'),
    ('pi:factor=0.5', "rope='pi:factor=0.5': factor must be at least 1"),
    ('harmonic:period=2.5', 'period must be whole, and at least 2'),
    ('yarn:factor=4,original=-1', 'original must be 0 or positive'),
    ('yarn:factor=4,gain=-1', 'gain must be 0 or positive'),
    ('geometric:bits=16', 'bits must be 0, 32 or 64'),
    ('yarn:factor=4,slow=0', 'slow must be positive'),
    ('yarn:factor=4,fast=1', 'fast must be greater than slow'),
    ('llama3:factor=4,low=4', 'high must be greater than low'),
    ('ntk:factor=4', "rope='ntk:factor=4': must be another one for a head size of 2"),
])
def test_a_wrong_option_is_named_with_what_is_allowed(rope, message):
    with pytest.raises(UserError) as error:
        build(rope=rope, n_embd=8)
    assert message in str(error.value)
