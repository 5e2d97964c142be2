"""
More frequencies for RoPE, and for Spectral to start at: the option `frequencies`. The page's own
are geometric: theta_i = base^(-2i/hs). Each function gets the config and its own parameters, and
returns theta, (P,) float64 in radians a token. A parameter out of its range is a UserError.

The last three are extensions, for texts `factor` times longer than those of the training.
"""

import math

import torch

from model import find_frequencies, geometric


def linear(config):
    """pi (i+1) / P: even steps to pi. Whole positions cannot tell more apart."""
    P = config.head_size // 2
    return math.pi * torch.arange(1, P + 1, dtype=torch.float64) / P


def harmonic(config, period):
    """harmonic:period=10: 2 pi j / period for j = 0, 1, ..., period // 2, again and again."""
    whole = 2 <= period < 2**24 and period % 1 == 0
    config.require('frequencies', whole, 'harmonic with a whole period, at least 2')
    i = torch.arange(config.head_size // 2, dtype=torch.float64)
    return 2 * math.pi / period * (i % (period // 2 + 1))


def partial(config, keep):
    """
    partial:keep=0.25: geometric in the fastest quarter of the pairs. The others do not rotate
    (arXiv 2410.06205, 2603.11611).
    """
    config.require('frequencies', 0 <= keep <= 1, 'partial with a share to keep, from 0 to 1')
    theta = geometric(config)
    theta[int(keep * len(theta)):] = 0
    return theta


def placed(config, pair, at):
    """placed:pair=1,at=0.628: geometric, but for pair 1, which rotates by 0.628 radians a token."""
    P = config.head_size // 2
    config.require('frequencies', pair in range(P), f'placed with a pair from 0 to {P - 1}')
    config.require('frequencies', 0 <= at <= math.pi, 'placed at a frequency from 0 to pi')
    theta = geometric(config)
    theta[int(pair)] = at
    return theta


def check_factor(config, factor):
    config.require('frequencies', 1 <= factor < math.inf, 'an extension by at least 1')


def pi(config, factor):
    """pi:factor=8: theta_i / factor, position interpolation (arXiv 2306.15595)."""
    check_factor(config, factor)
    return geometric(config) / factor


def ntk(config, factor):
    """
    ntk:factor=8: theta_i factor^(-2i/(hs-2)). The base grows: the first pair stays, and the last
    pair slows down as with pi.
    """
    check_factor(config, factor)
    hs = config.head_size
    config.require('frequencies', hs > 2, 'others for a head size of 2')
    i = torch.arange(hs // 2, dtype=torch.float64)
    return geometric(config) * factor ** (-2 * i / (hs - 2))


def yarn(config, factor, original=0, fast=32):
    """
    yarn:factor=8 (arXiv 2309.00071): theta_i stays for pairs that rotate more than `fast` times
    within `original` tokens, and is divided by factor for those below one turn, with even steps
    of i between. `original` is the length that was trained, in tokens; 0: block_size. What YaRN
    does to the scores is attention=rope_yarn.
    """
    check_factor(config, factor)
    config.require('frequencies', 0 <= original < math.inf, 'an extension of a length, or 0')
    config.require('frequencies', 1 < fast < math.inf, 'an extension with fast > 1')
    config.require('rope_base', config.rope_base > 1, 'above 1 with yarn')
    hs, length = config.head_size, original or config.block_size

    def pair(rotations):
        """Which i rotates so many times within the length? A fraction, most often."""
        logarithm = math.log(length) - math.log(rotations) - math.log(2 * math.pi)
        return hs * logarithm / (2 * math.log(config.rope_base))
    first = max(math.floor(pair(fast)), 0)
    last = min(math.ceil(pair(1)), hs - 1)
    i = torch.arange(hs // 2, dtype=torch.float64)
    stays = 1 - ((i - first) / max(last - first, 1e-3)).clamp(0, 1)
    return geometric(config) * (stays + (1 - stays) / factor)


LAB_FREQUENCIES = dict(linear=linear, harmonic=harmonic, partial=partial, placed=placed,
                       pi=pi, ntk=ntk, yarn=yarn)
EXTENSIONS = (pi, ntk, yarn)  # of the geometric frequencies


def stretch(config):
    """What the extension in config.frequencies multiplies theta by, (P,); 1 without one."""
    function, numbers = find_frequencies(config)
    theta = geometric(config)
    if function not in EXTENSIONS:
        return torch.ones_like(theta)
    return function(config, **numbers) / theta
