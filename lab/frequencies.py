"""
More grids for the option `rope`. The page's own is geometric: theta_i = base^(-2i/hs), in radians
a token. The others are

    linear              pi (i+1) / P: even steps to pi. Whole positions cannot tell more apart.
    resonance           each wavelength 2 pi / theta_i is rounded to whole tokens (arXiv 2403.00071)
    harmonic:period=10  2 pi j / period for j = 0, 1, ..., period // 2, again and again

Extensions are for texts `factor` times longer than those of the training. They multiply theta_i:

    pi:factor=8         by 1 / factor: position interpolation (arXiv 2306.15595)
    ntk:factor=8        by factor^(-2i/(hs-2)). The base grows: the first pair stays, and the last
                        pair slows down as with pi.
    yarn:factor=8       by 1 for pairs that rotate more than `fast` times within `original` tokens,
                        by 1 / factor for those below `slow` times, with even steps of i between.
                        Queries and keys grow by `gain`; 0: 0.1 ln(factor) + 1 (arXiv 2309.00071)
    llama3:factor=8     by the same for `high` and `low` rotations, with even steps of rotations
                        between, and without a gain: Llama 3.1

`original` is the length that was trained, in tokens; 0: block_size. The geometric grid and its
extensions have `bits`. With bits=32 all is rounded to float32, in the order of transformers, and
theta is theirs bit for bit. Without it, angles at position 4096 differ from theirs by 1e-4 radians.
"""

import math

import torch

from model import UserError

PARAMETERS = {  # of each grid, with their defaults; None: it must be given
    'geometric': dict(bits=0),
    'linear': {},
    'resonance': {},
    'harmonic': dict(period=None),
    'pi': dict(factor=None, bits=0),
    'ntk': dict(factor=None, bits=0),
    'yarn': dict(factor=None, original=0, fast=32, slow=1, gain=0, bits=0),
    'llama3': dict(factor=None, original=0, high=4, low=1, bits=0),
}
EXTENSIONS = ['pi', 'ntk', 'yarn', 'llama3']  # of the geometric grid


def read(rope):
    """
    The grid that the option `rope` names, and its parameters {name: number}, with the defaults.
    Raises UserError for a grid, a parameter or a number that is not allowed.
    """
    def require(ok, allowed):
        if not ok:
            raise UserError(f'rope={rope!r}: {allowed}')

    name, _, text = rope.partition(':')
    require(name in PARAMETERS, f'must be one of {", ".join(PARAMETERS)}')
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
    require(given.get('bits', 0) in (0, 32, 64), 'bits must be 0, 32 or 64')
    require(given.get('period', 2) in range(2, 2**24), 'period must be whole, and at least 2')
    require(given.get('factor', 1) >= 1, 'factor must be at least 1')
    require(given.get('original', 0) >= 0, 'original must be 0 or positive')
    require(given.get('gain', 0) >= 0, 'gain must be 0 or positive')
    for more, less in [('fast', 'slow'), ('high', 'low')]:
        if more in given:
            require(given[less] > 0, f'{less} must be positive')
            require(given[more] > given[less], f'{more} must be greater than {less}')
    return name, given


def geometric(config):
    """theta_i = base^(-2i/hs), (P,) float64, without an extension."""
    return powers(config, config.rope_base)


def powers(config, base):
    if read(config.frequencies)[1].get('bits') == 32:
        return (1 / inverse(config, base)).double()
    i = torch.arange(config.head_size // 2, dtype=torch.float64)
    return base ** (-2 * i / config.head_size)


def inverse(config, base):
    """1 / theta_i = base^(2i/hs), in tokens a radian: (P,), float32 with bits=32, else float64."""
    bits = read(config.frequencies)[1].get('bits')
    i = torch.arange(config.head_size // 2, dtype=torch.float32 if bits == 32 else torch.float64)
    return base ** (2 * i / config.head_size)


def linear(config):
    read(config.frequencies)  # raises an error for a parameter
    P = config.head_size // 2
    return math.pi * torch.arange(1, P + 1, dtype=torch.float64) / P


def resonance(config):
    wavelength = 2 * math.pi / geometric(config)
    return 2 * math.pi / wavelength.round()


def harmonic(config):
    period = read(config.frequencies)[1]['period']
    i = torch.arange(config.head_size // 2, dtype=torch.float64)
    return 2 * math.pi / period * (i % (period // 2 + 1))


def pi(config):
    factor = read(config.frequencies)[1]['factor']
    return (1 / inverse(config, config.rope_base) / factor).double()


def ntk(config):
    hs = config.head_size
    config.require('frequencies', hs > 2, 'another one for a head size of 2')
    factor = read(config.frequencies)[1]['factor']
    return powers(config, config.rope_base * factor ** (hs / (hs - 2)))


def yarn(config):
    """Slow pairs are interpolated, fast pairs stay, pairs between are mixed: arXiv 2309.00071."""
    given = read(config.frequencies)[1]
    hs = config.head_size
    length = given['original'] or config.block_size

    def pair(rotations):
        """Which i rotates so many times within the length? A fraction, most often."""
        tokens = length / (rotations * 2 * math.pi)
        return hs * math.log(tokens) / (2 * math.log(config.rope_base))
    first = max(math.floor(pair(given['fast'])), 0)
    last = min(math.ceil(pair(given['slow'])), hs - 1)

    tokens = inverse(config, config.rope_base)
    i = torch.arange(hs // 2, dtype=tokens.dtype)
    stays = 1 - ((i - first) / max(last - first, 1e-3)).clamp(0, 1)
    return (1 / (given['factor'] * tokens) * (1 - stays) + 1 / tokens * stays).double()


def llama3(config):
    given = read(config.frequencies)[1]
    length = given['original'] or config.block_size
    theta = 1 / inverse(config, config.rope_base)
    rotations = length / (2 * math.pi / theta)
    stays = ((rotations - given['low']) / (given['high'] - given['low'])).clamp(0, 1)
    return ((1 - stays) * theta / given['factor'] + stays * theta).double()


LAB_FREQUENCIES = dict(linear=linear, resonance=resonance, harmonic=harmonic, pi=pi,
             ntk=ntk, yarn=yarn, llama3=llama3)  # for the page: {name: theta(config)}


def stretch(config):
    """
    What the extension in config.rope multiplies the geometric theta by, (P,) float64, and queries
    and keys by. Both are 1 without an extension.
    """
    name, given = read(config.frequencies)
    theta = geometric(config)
    if name not in EXTENSIONS:
        return torch.ones_like(theta), 1.0
    gain = 1.0
    if name == 'yarn':
        gain = given['gain'] or 0.1 * math.log(given['factor']) + 1
    return LAB_FREQUENCIES[name](config) / theta, gain
