"""lab/frequencies.py beside the papers' formulas."""

import math

import pytest
import torch

from lab.frequencies import stretch
from lab.tests.conftest import build
from model import FREQUENCIES, GPTConfig, UserError, find_grid

CASES = {
    'pi': 'pi:factor=3',
    'ntk': 'ntk:factor=4',
    'yarn': 'yarn:factor=4,original=40,fast=4',
    'yarn, all of it': 'yarn:factor=4,original=40,fast=4,slow=0.5',
    'yarn, from the block size': 'yarn:factor=4,fast=8',
    'llama3': 'llama3:factor=4,original=40,high=3,low=0.2',
}


def config_of(name, hs=8, **options):
    return GPTConfig(vocab_size=11, n_head=1, n_embd=hs, frequencies=name, **options)


def theta(name, hs=8, **options):
    """(P,) float64."""
    config = config_of(name, hs, **options)
    grid, given = find_grid(config)
    return grid(config, **given)


# ---- grids --------------------------------------------------------------------------------------


def test_the_linear_grid_is_even_up_to_pi():
    assert theta('linear').tolist() == pytest.approx([math.pi / 4 * i for i in (1, 2, 3, 4)])


def test_the_partial_grid_leaves_the_slow_pairs_still():
    assert theta('partial:keep=0.5').tolist() == pytest.approx([1.0, 0.1, 0.0, 0.0])


@pytest.mark.parametrize('period', [2, 7, 10])
def test_the_harmonic_grid_has_its_period_and_can_be_any_function_of_it(period):
    positions = torch.arange(4 * period)[:, None]
    angle = positions * theta(f'harmonic:period={period}', hs=32)
    table = torch.cat([angle.cos(), angle.sin()], dim=1)  # (4 period, 32)
    torch.testing.assert_close(table[:period], table[period:2 * period])
    assert torch.linalg.matrix_rank(table[:period], rtol=1e-4) == period


# ---- extensions ---------------------------------------------------------------------------------


def naive_stretch(config):
    """The factor of each frequency, as the papers and their code write them."""
    grid, given = find_grid(config)
    name, given = grid.__name__, dict(fast=32, slow=1) | given
    hs, b, s = config.head_size, config.rope_base, given['factor']
    P = hs // 2
    L = given.get('original') or config.block_size
    theta = [b ** (-2 * i / hs) for i in range(P)]
    if name == 'pi':
        return [1 / s] * P
    if name == 'ntk':
        longer = b * s ** (hs / (hs - 2))
        return [longer ** (-2 * i / hs) / theta[i] for i in range(P)]
    if name == 'yarn':
        def pair(rotations):
            return hs * math.log(L / (2 * math.pi * rotations)) / (2 * math.log(b))
        low = max(math.floor(pair(given['fast'])), 0)
        high = min(math.ceil(pair(given['slow'])), hs - 1)
        kept = [1 - min(max((i - low) / (high - low), 0), 1) for i in range(P)]
        return [g + (1 - g) / s for g in kept]
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
    return factors


@pytest.mark.parametrize('case', CASES)
def test_an_extension_is_the_formula(case):
    config = config_of(CASES[case])
    factors = naive_stretch(config)
    plain = [config.rope_base ** (-2 * i / config.head_size) for i in range(len(factors))]
    expected = torch.tensor(factors) * torch.tensor(plain)
    torch.testing.assert_close(theta(CASES[case]).float(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(stretch(config).float(), torch.tensor(factors))


# ---- the option ---------------------------------------------------------------------------------


def test_a_grid_of_ones_own_gets_its_parameters(monkeypatch):
    def mine(config, step, start=0.5):
        return start + step * torch.arange(config.head_size // 2)
    monkeypatch.setitem(FREQUENCIES, 'mine', mine)
    assert theta('mine:step=1e-1').tolist() == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert theta('mine:start=1,step=1').tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize('name, message', [
    ('abf', "frequencies='abf': must be one of geometric, linear"),
    ('linear:period=3', "frequencies='linear:period=3': must be linear, with numbers for []"),
    ('yarn:factors=8', "with numbers for ['factor', 'original=0', 'fast=32', 'slow=1']"),
    ('pi', "frequencies='pi': must be pi, with numbers for ['factor']"),
    ('pi:factor', "must be pi, with numbers for ['factor']"),
    ('pi:factor=two', "must be pi, with numbers for ['factor']"),
    ('pi:factor=nan', 'an extension by at least 1'),
    ('pi:factor=inf', 'an extension by at least 1'),
    ('pi:factor=0.5', "frequencies='pi:factor=0.5': must be an extension by at least 1"),
    ('harmonic:period=2.5', 'a whole period, at least 2'),
    ('perturbed:seed=0.5', 'a whole seed'),
    ('yarn:factor=4,original=-1', 'an extension of a length, or 0'),
    ('yarn:factor=4,slow=0', 'fast > slow > 0'),
    ('yarn:factor=4,fast=1', 'fast > slow > 0'),
    ('llama3:factor=4,low=4', 'high > low > 0'),
    ('ntk:factor=4', "frequencies='ntk:factor=4': must be others for a head size of 2"),
])
def test_a_wrong_parameter_is_named_with_what_is_allowed(name, message):
    with pytest.raises(UserError) as error:
        build(frequencies=name, n_embd=8)
    assert message in str(error.value)


def test_any_number_of_rotations_is_finite():
    assert theta('yarn:factor=2,fast=1e308,slow=1e-308').isfinite().all()
