"""
More tasks: the controls lag, sum and spacing; cups, which swap places; selective_copy, of letters
among dots; and passkey, which hides a key in a haystack.
lab/__init__.py adds LAB_TASKS to the page's TASKS.
"""

import dataclasses
import itertools

import numpy as np

from model import UserError
from tasks import DIGITS, Task


def label_runs(mask, values, ranges=None):
    """
    {label: mask & (low <= values <= high)} for each of the ranges (low, high) that occurs; without
    ranges, for each value.
    """
    if ranges is None:
        ranges = [(value, value) for value in np.unique(values).tolist()]
    runs = {}
    for low, high in ranges:
        label = f'{low}' if low == high else f'{low}-{high}'
        inside = mask & (low <= values) & (values <= high)
        if inside.any():
            runs[label] = inside
    return runs


def parts_by_position(task, x, y):
    """A part for each octave of positions: 0, 1, 2-3, 4-7, ..."""
    position = np.arange(x.shape[1])
    octaves = [(0, 0)] + [(2**i, 2 ** (i + 1) - 1) for i in range(len(position).bit_length())]
    return {'position': label_runs(y >= 0, position, octaves)}


class Control(Task):
    """What the arithmetic controls share: digits of Z_modulus, and an answer to each."""

    def __post_init__(self):
        self.require_range('modulus', 2, len(DIGITS))
        self.symbols = list(DIGITS[:self.modulus])
        self.chance = 1 / self.modulus

    def inputs(self, rng, batch, length):
        return rng.integers(0, self.modulus, (batch, length))

    breakdown = parts_by_position


@dataclasses.dataclass
class Lag(Control):
    """
    Positive control: y_t = (x_t + x_{t-lag}) mod `modulus`. Every rotation must learn one lag.

        x  1 5 2 0 3 3 6 4 2 6        lag=7, t = 7: 4 + 1 = 5 mod 7
        y  . . . . . . . 5 0 1        t = 8: 2 + 5 = 0; t = 9: 6 + 2 = 1
    """
    lag: int = 7
    modulus: int = 7
    name = 'lag'

    def __post_init__(self):
        super().__post_init__()
        self.require_range('lag', 1, 10**6)
        self.min_length = self.lag + 1

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, self.lag:] = (x[:, self.lag:] + x[:, :-self.lag]) % self.modulus
        return y


@dataclasses.dataclass
class Sum(Control):
    """
    Negative control: y_t = (x_0 + ... + x_t) mod `modulus`. Positions do not help.

        x  3 5 6 0 2        t = 1: 3 + 5 = 1 mod 7
        y  3 1 0 0 2        t = 2: 3 + 5 + 6 = 0; t = 3: 0; t = 4: 2

    With start=1 every string begins with ^, which counts as 0. One layer can then look back at it.
    """
    modulus: int = 7
    start: int = 0
    name = 'sum'
    min_length = 1

    def __post_init__(self):
        super().__post_init__()
        self.require_range('start', 0, 1)
        if self.start:
            self.bos = '^'
            self.symbols.append(self.bos)

    def inputs(self, rng, batch, length):
        x = super().inputs(rng, batch, length)
        if self.start:
            x[:, 0] = self.modulus  # the id of ^, which is 0 in the sum
        return x

    def targets(self, x):
        return np.cumsum(x, axis=1) % self.modulus


@dataclasses.dataclass
class Cups(Task):
    """
    State tracking: the first token says which of n cups hides a ball, and each other one swaps two
    cups. Where is the ball now?

        x  A ab bc de bc ac        ab moves the ball to B, and bc to C
        y  A B  C  C  B  B         de does not move it, and bc moves it back to B

    Swaps generate all orders of the cups. From five cups on, it is conjectured that no transformer
    of a fixed depth follows them at every length (arXiv 2404.08819). Chance 1/n.
    """
    n: int = 5
    name = 'cups'
    min_length = 1

    def __post_init__(self):
        self.require_range('n', 2, 10)
        self.chance = 1 / self.n
        cups = 'abcdefghij'[:self.n]
        self.swaps = np.array(list(itertools.combinations(range(self.n), 2)))
        self.symbols = [*cups.upper(), *(cups[i] + cups[j] for i, j in self.swaps)]

    def inputs(self, rng, batch, length):
        x = self.n + rng.integers(0, len(self.swaps), (batch, length))
        x[:, 0] = rng.integers(0, self.n, batch)
        return x

    def targets(self, x):
        y = x.copy()
        for t in range(1, x.shape[1]):
            i, j = self.swaps[x[:, t] - self.n].T
            ball = y[:, t - 1]
            y[:, t] = np.select([ball == i, ball == j], [j, i], ball)
        return y

    breakdown = parts_by_position


@dataclasses.dataclass
class Spacing(Task):
    """
    Brackets among fillers. Must brackets stand at regular intervals for a model to match them?

        x  ^ . . ( . . [ . . [ . . { . . } . . ] . . ] . . ) . . {
        y  . . . . . . . . . . . . . . } . . ] . . ] . . ) . . . .

    y_t is x_{t+1} where x_{t+1} closes a bracket. A string is made of blocks: D openers of three
    types, then their D closers. The schedules differ in the fillers, and hardly in their number:

        periodic     2 before each bracket, D = 4. So brackets stand at multiples of 3, and a
                     block is 24 tokens long.
        random       0 to 4 before each bracket, D = 4. A block has 24 tokens on average.
        exponential  2^j before closer j = 0, 1, ..., one between blocks, and none among the
                     openers. D is 3, 4 or 5, a block 14, 24 or 42 tokens: with one D alone the
                     blocks would be periodic again.

    Closer 0 closes the bracket seen last, so the closers j >= 1 are the headline. Chance 1/3.
    """
    schedule: str = 'periodic'
    name = 'spacing'
    chance = 1 / 3
    min_length = 31  # long enough for a closer j = 1, which the headline counts
    bos = '^'
    symbols = list('([{)]}^.')

    def __post_init__(self):
        schedules = ['periodic', 'random', 'exponential']
        if self.schedule not in schedules:
            allowed = ', '.join(schedules)
            raise UserError(f'spacing:schedule={self.schedule}: must be one of {allowed}')
        self.period = 24 if self.schedule == 'periodic' else None

    def inputs(self, rng, batch, length):
        exponential = self.schedule == 'exponential'
        shortest = 14 if exponential else 8  # tokens of a block
        shape = (batch, length // shortest + 1)  # blocks of each string
        D = np.full((*shape, 1), 4)
        if exponential:
            D = rng.integers(3, 6, (*shape, 1))

        # a block has ten slots, five openers and five closers; an unused slot takes no room
        slot = np.arange(5)
        opener = rng.integers(0, 3, (*shape, 5))
        # closer j closes opener D - 1 - j
        closer = 3 + np.take_along_axis(opener, np.maximum(D - 1 - slot, 0), axis=2)
        bracket = np.concatenate([opener, closer], axis=2).reshape(batch, -1)
        used = np.concatenate([slot < D, slot < D], axis=2)

        gap = np.full(used.shape, 2)  # fillers before each slot
        if self.schedule == 'random':
            gap = rng.integers(0, 5, used.shape)
        if exponential:
            gap[:, :] = [1, 0, 0, 0, 0, *2**slot]
            gap[:, 0, 0] = 0  # nothing before the first block

        room = np.where(used, gap + 1, 0).reshape(batch, -1)
        place = np.cumsum(room, axis=1)  # of each bracket: 1, 2, ..., behind the ^
        x = np.full((batch, length), 7)
        x[:, 0] = 6
        row, column = np.nonzero((room > 0) & (place < length))
        x[row, place[row, column]] = bracket[row, column]
        return x

    def targets(self, x):
        y = np.full_like(x, -1)
        closes = (x[:, 1:] >= 3) & (x[:, 1:] < 6)
        y[:, :-1] = np.where(closes, x[:, 1:], -1)
        return y

    def closer(self, x):
        """j of the closer that comes after each symbol of x (B, T): closers since an opener."""
        closers = np.cumsum((x >= 3) & (x < 6), axis=1)
        return closers - np.maximum.accumulate(np.where(x < 3, closers, 0), axis=1)

    def headline(self, x, y):
        return (y >= 0) & (self.closer(x) >= 1)

    def breakdown(self, x, y):
        return {'closer': label_runs(y >= 0, self.closer(x))}


@dataclasses.dataclass
class SelectiveCopy(Task):
    """
    Which letters stood among the dots, in their order? After arXiv 2312.00752.

        x  ^ . A . . C G . . A . ? ? ? ?        letters=4
        y  . . . . . . . . . . . A C G A

    The letters stand anywhere, so no distance tells the answer: letters and questions must be
    counted. Longer strings have more dots. With letters=0 they have as many letters as fit, and
    one dot at most: copying, where the distance to the answer is that of the length. Chance 1/4.
    """
    letters: int = 8
    name = 'selective_copy'
    chance = 1 / 4
    bos = '^'
    symbols = list('^ACGT.?')

    def __post_init__(self):
        self.require_range('letters', 0, 1_000_000)
        self.min_length = 1 + 2 * max(1, self.letters)

    def inputs(self, rng, batch, length):
        n = self.letters or (length - 1) // 2
        x = np.full((batch, length), 5)
        x[:, 0] = 0
        x[:, -n:] = 6
        places = rng.random((batch, length - 1 - n)).argsort(axis=1)[:, :n]
        np.put_along_axis(x, 1 + places, rng.integers(1, 5, places.shape), axis=1)
        return x

    def targets(self, x):
        y = np.full_like(x, -1)
        y[x == 6] = x[(1 <= x) & (x < 5)]  # in reading order, as many of one as of the other
        return y


@dataclasses.dataclass
class Passkey(Task):
    """
    A needle in a haystack: which number stood behind the K?

        x  ^ e r K 4 1 7 0 2 m x c Q 4 1 7 0
        y  . . . . . . . . . . . . 4 1 7 0 2        five digits, anywhere among the fillers

    With `keys=4` there are four keys, K0 to K3 in any order, and Q<i> asks for one. Fillers are
    sampled from 32 symbols. In every ten strings, the key that Q asks for lies once in each tenth
    of the haystack. Chance 1/10 a digit.
    """
    keys: int = 1
    name = 'passkey'
    chance = 1 / 10
    bos = '^'
    fillers = 'abcdefghijklmnopqrstuvwxyz!?;:,.'
    needle = 6  # tokens: K and five digits

    def __post_init__(self):
        self.require_range('keys', 1, 100)
        digits = len(str(self.keys - 1))  # equally many, or K1 and 0 read like K10
        names = [f'{i:0{digits}d}' for i in range(self.keys)] if self.keys > 1 else ['']
        # ids: ten digits, K0, K1, ..., Q0, Q1, ..., then fillers and bos
        self.symbols = [*DIGITS[:10], *(f'K{i}' for i in names), *(f'Q{i}' for i in names),
                        *self.fillers, self.bos]
        self.min_length = 1 + self.needle * self.keys + self.needle - 1

    def inputs(self, rng, batch, length):
        K, Q, filler = 10, 10 + self.keys, 10 + 2 * self.keys
        row = np.arange(batch)
        x = filler + rng.integers(0, len(self.fillers), (batch, length))

        # fillers before each key, from none to all of them
        places = length - self.min_length + 1
        before = rng.integers(0, places, (batch, self.keys))
        tenth = row % 10
        asked = rng.integers(0, self.keys, batch)  # the key that Q asks for
        low, high = -(-places * tenth // 10), -(-places * (tenth + 1) // 10)
        sampled = low + rng.random(batch) * (high - low)
        before[row, asked] = np.minimum(sampled, places - 1)  # a tenth may have no place

        rank = np.argsort(np.argsort(before, axis=1, kind='stable'), axis=1)
        start = 1 + before + self.needle * rank  # of each key, (B, keys)
        digits = rng.integers(0, 10, (batch, self.keys, 5))
        x[row[:, None], start] = K + np.arange(self.keys)
        x[row[:, None, None], start[:, :, None] + np.arange(1, 6)] = digits
        x[:, 0] = len(self.symbols) - 1
        x[:, -5] = Q + asked
        x[:, -4:] = digits[row, asked, :4]
        return x

    def place(self, x):
        """Where the key stands that x (B, T) asks for: (B, 1)."""
        key = x[:, -5:-4] - self.keys
        return (x == key).argmax(axis=1)[:, None]

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, -5:] = np.take_along_axis(x, self.place(x) + np.arange(1, 6), axis=1)
        return y

    def breakdown(self, x, y):
        tenth = (self.place(x) - 1) * 10 // (x.shape[1] - 2 * self.needle + 1)
        parts = {f'{10 * i}-{10 * i + 10} %': (y >= 0) & (tenth == i) for i in range(10)}
        return {'depth of the key': parts}


LAB_TASKS = {task.name: task for task in (Lag, Sum, Cups, Spacing, SelectiveCopy, Passkey)}
