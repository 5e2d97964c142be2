"""
More frequencies for RoPE, and for Spectral to start at: the option `frequencies`. The page's own
are geometric: theta_i = base^(-2i/hs), in radians a token. The others are

    linear              pi (i+1) / P: even steps to pi. Whole positions cannot tell more apart.
    resonance           each wavelength 2 pi / theta_i is rounded to whole tokens (arXiv 2403.00071)
    harmonic:period=10  2 pi j / period for j = 0, 1, ..., period // 2, again and again
    partial:keep=0.25   geometric in the fastest quarter of the pairs. The others do not rotate
                        (arXiv 2410.06205, 2603.11611).
    perturbed:seed=1    geometric, each times 1 + N(0, std^2), drawn by this seed; std is 0.1

Extensions are for texts `factor` times longer than those of the training. They multiply theta_i:

    pi:factor=8         by 1 / factor: position interpolation (arXiv 2306.15595)
    ntk:factor=8        by factor^(-2i/(hs-2)). The base grows: the first pair stays, and the last
                        pair slows down as with pi.
    yarn:factor=8       by 1 for pairs that rotate more than `fast` times within `original` tokens,
                        by 1 / factor for those below `slow` times, with even steps of i between
                        (arXiv 2309.00071). What YaRN does to the scores is attention=rope_yarn.
    llama3:factor=8     by the same for `high` and `low` rotations, with even steps of rotations
                        between: Llama 3.1

`original` is the length that was trained, in tokens; 0: block_size.
"""

import math

import torch

from model import FREQUENCIES, RoPE, UserError, geometric

PARAMETERS = {  # of each name, with their defaults; None: it must be given
    'geometric': {},
    'linear': {},
    'resonance': {},
    'harmonic': dict(period=None),
    'partial': dict(keep=None),
    'perturbed': dict(seed=0, std=0.1),
    'pi': dict(factor=None),
    'ntk': dict(factor=None),
    'yarn': dict(factor=None, original=0, fast=32, slow=1),
    'llama3': dict(factor=None, original=0, high=4, low=1),
}
EXTENSIONS = ['pi', 'ntk', 'yarn', 'llama3']  # of the geometric frequencies


def read(frequencies):
    """
    The name that the option `frequencies` has, and its parameters {name: number}, with the
    defaults. Raises UserError for a parameter or a number that is not allowed.
    """
    def require(ok, allowed):
        if not ok:
            raise UserError(f'frequencies={frequencies!r}: {allowed}')

    name, _, text = frequencies.partition(':')
    if name not in PARAMETERS:  # one of your own reads its own parameters
        return frequencies, {}
    given = dict(PARAMETERS[name])
    for setting in filter(None, text.split(',')):
        parameter, _, number = setting.partition('=')
        require(parameter in given, f'{name} has {", ".join(given) or "no parameters"}')
        try:
            given[parameter] = float(number)
        except ValueError:
            require(False, f'{setting} must be {parameter}=number')
        require(math.isfinite(given[parameter]), f'{parameter} must be finite')
    for parameter, value in given.items():
        require(value is not None, f'{name} needs {parameter}, such as {name}:{parameter}=8')
    require(given.get('period', 2) in range(2, 2**24), 'period must be whole, and at least 2')
    require(given.get('factor', 1) >= 1, 'factor must be at least 1')
    require(0 <= given.get('keep', 0) <= 1, 'keep must be a share, from 0 to 1')
    require(given.get('original', 0) >= 0, 'original must be 0 or positive')
    for more, less in [('fast', 'slow'), ('high', 'low')]:
        if more in given:
            require(given[less] > 0, f'{less} must be positive')
            require(given[more] > given[less], f'{more} must be greater than {less}')
    return name, given


# Each of these is a function of the config to theta, (P,) float64.


def linear(config):
    read(config.frequencies)  # raises an error for a parameter
    P = config.head_size // 2
    return math.pi * torch.arange(1, P + 1, dtype=torch.float64) / P


def resonance(config):
    read(config.frequencies)
    wavelength = 2 * math.pi / geometric(config)
    return 2 * math.pi / wavelength.round()


def harmonic(config):
    period = read(config.frequencies)[1]['period']
    i = torch.arange(config.head_size // 2, dtype=torch.float64)
    return 2 * math.pi / period * (i % (period // 2 + 1))


def partial(config):
    theta = geometric(config)
    kept = int(read(config.frequencies)[1]['keep'] * len(theta))
    theta[kept:] = 0
    return theta


def perturbed(config):
    given = read(config.frequencies)[1]
    generator = torch.Generator().manual_seed(int(given['seed']))
    noise = torch.randn(config.head_size // 2, generator=generator, dtype=torch.float64)
    return geometric(config) * (1 + given['std'] * noise)


def pi(config):
    return geometric(config) / read(config.frequencies)[1]['factor']


def ntk(config):
    hs = config.head_size
    config.require('frequencies', hs > 2, 'others for a head size of 2')
    factor = read(config.frequencies)[1]['factor']
    i = torch.arange(hs // 2, dtype=torch.float64)
    return geometric(config) * factor ** (-2 * i / (hs - 2))


def yarn(config):
    """Slow pairs are interpolated, fast pairs stay, pairs between are mixed."""
    given = read(config.frequencies)[1]
    hs = config.head_size
    length = given['original'] or config.block_size

    def pair(rotations):
        """Which i rotates so many times within the length? A fraction, most often."""
        tokens = length / (rotations * 2 * math.pi)
        return hs * math.log(tokens) / (2 * math.log(config.rope_base))
    first = max(math.floor(pair(given['fast'])), 0)
    last = min(math.ceil(pair(given['slow'])), hs - 1)
    i = torch.arange(hs // 2, dtype=torch.float64)
    stays = 1 - ((i - first) / max(last - first, 1e-3)).clamp(0, 1)
    return geometric(config) * (stays + (1 - stays) / given['factor'])


def llama3(config):
    given = read(config.frequencies)[1]
    theta = geometric(config)
    rotations = (given['original'] or config.block_size) * theta / (2 * math.pi)
    stays = ((rotations - given['low']) / (given['high'] - given['low'])).clamp(0, 1)
    return theta * (stays + (1 - stays) / given['factor'])


LAB_FREQUENCIES = dict(linear=linear, resonance=resonance, harmonic=harmonic, partial=partial,
                       perturbed=perturbed, pi=pi, ntk=ntk, yarn=yarn, llama3=llama3)


def stretch(config):
    """What the extension in config.frequencies multiplies theta by, (P,); 1 without one."""
    name, _ = read(config.frequencies)
    theta = geometric(config)
    if name not in EXTENSIONS:
        return torch.ones_like(theta)
    return FREQUENCIES[name](config) / theta


class YaRN(RoPE):
    """
    RoPE with what YaRN does to the scores of a text that is `factor` times longer, beside its
    frequencies, which are --frequencies=yarn:factor=... (arXiv 2309.00071):

        score = g^2 sum_i Re[q_i conj(k_i) e^{1j (m-n) theta_i}] / sqrt(hs)
        g     = 0.1 ln(factor) + 1
    """

    def __init__(self, config):
        super().__init__(config)
        name, given = read(config.frequencies)
        config.require('frequencies', name == 'yarn', 'yarn:factor=... with rope_yarn')
        self.gain = 0.1 * math.log(given['factor']) + 1

    def rotate(self, q, k, position):
        q, k = super().rotate(q, k, position)
        return self.gain * q, self.gain * k
