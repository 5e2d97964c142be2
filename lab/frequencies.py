"""
What the option `rope` may be besides 'geometric', whose frequencies are theta_i = base^(-2i/hs), in radians per token.

Other grids:

    linear              pi (i+1) / P: even steps from 0 to pi. Whole positions cannot tell faster turns apart.
    resonance           each wavelength 2 pi / theta_i rounded to a whole number of tokens (arXiv 2403.00071)
    harmonic:period=10  2 pi j / period for j = 0, 1, ..., period // 2, again and again: the grid knows the period

Extensions of the geometric grid, for texts `factor` times longer than those of the training. They multiply theta_i by:

    pi:factor=8         1 / factor, position interpolation (arXiv 2306.15595)
    ntk:factor=8        factor^(-2i/(hs-2)): the base grows, the first pair stays, and the last turns as with pi
    yarn:factor=8       1 for the pairs that turn more than `fast` times within `original` tokens, 1 / factor for those
                        that turn less than `slow` times, even steps of i between. Queries and keys are multiplied by
                        `gain`; 0 means 0.1 ln(factor) + 1 (arXiv 2309.00071)
    llama3:factor=8     the same for `high` and `low` turns, with even steps of the turns between, and no gain (the
                        code of Llama 3.1)

`original` is the length that the frequencies were trained for, in tokens; 0 means config.block_size. The geometric grid
and its extensions have `bits`: of the arithmetic that theta comes from, 64 or 32; 0 means 64. With geometric:bits=32,
theta is bit for bit that of a Llama in transformers. The angles at position 4096 then differ by some 1e-4 radians.
"""

import math

import torch

FAMILIES = {  # the parameters of each family and their defaults; None: there is none, the parameter must be given
    'geometric': {'bits': 0.0},
    'linear': {},
    'resonance': {},
    'harmonic': {'period': None},
    'pi': {'factor': None, 'bits': 0.0},
    'ntk': {'factor': None, 'bits': 0.0},
    'yarn': {'factor': None, 'original': 0.0, 'fast': 32.0, 'slow': 1.0, 'gain': 0.0, 'bits': 0.0},
    'llama3': {'factor': None, 'original': 0.0, 'high': 4.0, 'low': 1.0, 'bits': 0.0},
}
GRIDS = ('geometric', 'linear', 'resonance', 'harmonic')


def read(rope):
    """
    The family that the option names, and all its parameters as {name: number}, defaults included. Raises ValueError for
    a family, a parameter or a value that is not allowed.
    """
    def demand(ok, allowed):
        if not ok:
            raise ValueError(f'rope={rope!r}: {allowed}')

    family, _, text = rope.partition(':')
    demand(family in FAMILIES, 'must be one of ' + ', '.join(FAMILIES))
    known = FAMILIES[family]
    given = {}
    for parameter in filter(None, text.split(',')):
        name, equals, value = parameter.partition('=')
        demand(name in known, f'{family} has no parameter {name!r}; it has {", ".join(known) or "none"}')
        demand(equals, f'{parameter}: parameters are written name=number')
        try:
            given[name] = float(value)
        except ValueError:
            demand(False, f'{name}={value!r}: must be a number')
        demand(math.isfinite(given[name]), f'{name}={value}: must be finite')
    for name, default in known.items():
        demand(name in given or default is not None, f'{family} needs {name}, such as {family}:{name}=8')
        given.setdefault(name, default)
    if 'period' in given:
        demand(given['period'] >= 2 and given['period'] % 1 == 0, 'period must be a whole number of at least 2')
    if 'factor' in given:
        demand(given['factor'] >= 1, 'factor must be at least 1')
    for name in ('original', 'gain'):
        demand(given.get(name, 0) >= 0, f'{name} must be 0 or positive')
    demand(given.get('bits', 0) in (0, 32, 64), 'bits must be 32, 64 or 0')
    for more, less in (('fast', 'slow'), ('high', 'low')):
        if more in known:
            demand(given[less] > 0, f'{less} must be positive')
            demand(given[more] > given[less], f'{more} must be greater than {less}={given[less]:g}')
    return family, given


def geometric(config):
    """theta_i = base^(-2i/hs), (P,) float64. With bits=32 in config.rope, each operation is rounded to float32."""
    i = torch.arange(config.head_size // 2, dtype=torch.float64)
    if read(config.rope)[1].get('bits') == 32:
        return (1 / config.rope_base ** (2 * i.float() / config.head_size)).double()  # the order of operations matters
    return config.rope_base ** (-2 * i / config.head_size)


def stretch(config):
    """What an extension multiplies frequencies by, (P,) float64, and queries and keys by. 1 without an extension."""
    family, given = read(config.rope)
    hs, base, factor = config.head_size, config.rope_base, given.get('factor', 1.0)
    length = given.get('original') or config.block_size
    theta = geometric(config)
    i = torch.arange(hs // 2, dtype=torch.float64)
    if family == 'pi':
        return torch.full_like(theta, 1 / factor), 1.0
    if family == 'ntk':
        if hs == 2:
            raise ValueError(f'rope={config.rope!r}: must be another extension for a head size of 2')
        return factor ** (-2 * i / (hs - 2)), 1.0
    if family == 'yarn':
        # the pairs, as fractions of a whole one, that turn `fast` and `slow` times within the trained length
        first, last = (hs * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))
                       for turns in (given['fast'], given['slow']))
        first, last = max(math.floor(first), 0), min(math.ceil(last), hs - 1)
        slowed = ((i - first) / max(last - first, 1e-3)).clamp(0, 1)
        return 1 - slowed + slowed / factor, given['gain'] or 0.1 * math.log(factor) + 1
    if family == 'llama3':
        turns = length * theta / (2 * math.pi)
        slowed = ((given['high'] - turns) / (given['high'] - given['low'])).clamp(0, 1)
        return 1 - slowed + slowed / factor, 1.0
    return torch.ones_like(theta), 1.0


def choose(config, theta):
    """
    The frequencies that config.rope asks for, (P,) float64, and the number that queries and keys are multiplied by.
    `theta` is the geometric grid of 64 bits, (P,). Raises what `read` raises.
    """
    family, given = read(config.rope)
    i = torch.arange(len(theta), dtype=theta.dtype)
    if family == 'linear':
        return math.pi * (i + 1) / len(theta), 1.0
    if family == 'resonance':
        return 2 * math.pi / (2 * math.pi / theta).round(), 1.0
    if family == 'harmonic':
        return 2 * math.pi / given['period'] * (i % (given['period'] // 2 + 1)), 1.0
    factors, gain = stretch(config)
    return factors * geometric(config), gain
