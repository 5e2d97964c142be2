"""lab/frequencies.py beside the papers' formulas."""

import math
import re

import pytest
import torch

from lab.frequencies import stretch
from model import GPTConfig, UserError, find_frequencies


def config_of(name, hs=8, **options):
    return GPTConfig(vocab_size=11, n_head=1, n_embd=hs, frequencies=name, **options)


def theta(name, hs=8):
    """(P,) float64."""
    config = config_of(name, hs)
    function, numbers = find_frequencies(config)
    return function(config, **numbers)


# Grids


@pytest.mark.parametrize('name, expected', [
    ('linear', [math.pi / 4 * i for i in (1, 2, 3, 4)]),
    ('partial:keep=0.5', [1.0, 0.1, 0.0, 0.0]),
    ('placed:pair=1,at=0.5', [1.0, 0.5, 0.01, 0.001])])
def test_a_grid_has_the_frequencies_of_its_formula(name, expected):
    assert theta(name).tolist() == pytest.approx(expected)


@pytest.mark.parametrize('period', [2, 7, 10])
def test_the_harmonic_grid_has_its_period_and_can_be_any_function_of_it(period):
    positions = torch.arange(4 * period)[:, None]
    angle = positions * theta(f'harmonic:period={period}', hs=32)
    table = torch.cat([angle.cos(), angle.sin()], dim=1)  # (4 period, 32)
    torch.testing.assert_close(table[:period], table[period:2 * period])
    assert torch.linalg.matrix_rank(table[:period], rtol=1e-4) == period


# Extensions


def naive_stretch(name, factor, hs=8, b=10000, **given):
    """The factor of each frequency, as the papers and their code write them."""
    P = hs // 2
    if name == 'pi':
        return [1 / factor] * P
    if name == 'ntk':
        longer = b * factor ** (hs / (hs - 2))
        return [longer ** (-2 * i / hs) / b ** (-2 * i / hs) for i in range(P)]

    def pair(rotations):
        return hs * math.log(given['original'] / (2 * math.pi * rotations)) / (2 * math.log(b))
    low, high = max(math.floor(pair(given['fast'])), 0), min(math.ceil(pair(1)), hs - 1)
    kept = [1 - min(max((i - low) / (high - low), 0), 1) for i in range(P)]
    return [g + (1 - g) / factor for g in kept]


@pytest.mark.parametrize('name, given', [
    ('pi:factor=3', dict(factor=3)),
    ('ntk:factor=4', dict(factor=4)),
    ('yarn:factor=4,original=40,fast=4', dict(factor=4, original=40, fast=4)),
    ('yarn:factor=4', dict(factor=4, original=64, fast=32))], ids=str)
def test_an_extension_is_the_formula(name, given):
    factors = torch.tensor(naive_stretch(name.partition(':')[0], **given)).double()
    torch.testing.assert_close(stretch(config_of(name, block_size=64)), factors)
    expected = theta('geometric') * factors
    torch.testing.assert_close(theta(name), expected, rtol=1e-6, atol=0)


# The option


@pytest.mark.parametrize('name, message', [
    ('abf', "frequencies='abf': must be one of geometric, linear"),
    ('yarn:factors=8', "with numbers for factor, original=0, fast=32"),
    ('pi:factor=two', "must be pi, with numbers for factor"),
    ('pi:factor=nan', 'an extension by at least 1'),
    ('harmonic:period=2.5', 'a whole period, at least 2'),
    ('placed:pair=1,at=0.5', 'placed with a pair from 0 to 0'),
    ('placed:pair=0,at=4', 'placed at a frequency from 0 to pi'),
    ('yarn:factor=4,original=-1', 'an extension of a length, or 0'),
    ('yarn:factor=4,fast=1', 'an extension with fast > 1'),
    ('ntk:factor=4', "frequencies='ntk:factor=4': must be others for a head size of 2")])
def test_a_wrong_parameter_is_named_with_what_is_allowed(name, message):
    with pytest.raises(UserError, match=re.escape(message)):
        theta(name, hs=2)
