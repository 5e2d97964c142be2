"""
More tasks in the form of the page's tasks.py: the controls lag, sum and spacing, and passkey, a needle in a haystack.
And the page's own tasks with label noise, such as modulo:noise=0.05, and text in other encodings than bytes, which
lab/corpus.py defines.
"""

import dataclasses

import numpy as np

from lab.corpus import Text
from tasks import DIGITS, BioRotation, Dyck, Modulo, Task, label_runs


class Control(Task):
    """What the arithmetic controls share: digits of Z_modulus, and an answer to each."""

    def __post_init__(self):
        self.require('modulus', 2, len(DIGITS))
        self.symbols = list(DIGITS[:self.modulus])
        self.chance = 1 / self.modulus

    def inputs(self, rng, batch, length):
        return rng.integers(0, self.modulus, (batch, length))

    breakdown = Modulo.breakdown


@dataclasses.dataclass
class Lag(Control):
    """
    Positive control, one fixed lag, which every rotation must solve: y_t = (x_t + x_{t-lag}) mod `modulus`. Floor 0.

        x  1 5 2 0 3 3 6 4 2 6        lag=7, t = 7: 4 + 1 = 5 mod 7
        y  . . . . . . . 5 0 1        t = 8: 2 + 5 = 0; t = 9: 6 + 2 = 1
    """
    lag: int = 7
    modulus: int = 7
    name = 'lag'

    def __post_init__(self):
        super().__post_init__()
        self.require('lag', 1, 10**6)
        self.min_length = self.lag + 1

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, self.lag:] = (x[:, self.lag:] + x[:, :-self.lag]) % self.modulus
        return y


@dataclasses.dataclass
class Sum(Control):
    """
    Negative control, which no sense of position can help: y_t = (x_0 + ... + x_t) mod `modulus`. Floor 0.

        x  3 5 6 0 2        t = 1: 3 + 5 = 1 mod 7
        y  3 1 0 0 2        t = 2: 3 + 5 + 6 = 0; t = 3: 0; t = 4: 2
    """
    modulus: int = 7
    name = 'sum'
    min_length = 1

    def targets(self, x):
        return np.cumsum(x, axis=1) % self.modulus


@dataclasses.dataclass
class Spacing(Task):
    """
    Brackets among fillers: must brackets come at regular intervals to be matched? Which bracket closes this one?

        x  ^ . . ( . . [ . . [ . . { . . } . . ] . . ] . . ) . . {        schedule=periodic
        y  . . . . . . . . . . . . . . } . . ] . . ] . . ) . . . .        y_t is x_{t+1} where that closes a bracket

    A string is made of blocks: D openers, kinds uniform over three, then their D closers. The schedules differ in the
    fillers alone, and hardly in the mean number of fillers:
        periodic     2 before each bracket, D = 4: brackets stand at multiples of 3, and a block is 24 long
        random       0 to 4 before each bracket, uniformly, D = 4: a block is 24 long on average
        exponential  none among the openers, 2^j before closer j = 0, 1, ..., one between blocks; D is 3, 4 or 5, and a
                     block is 14, 24 or 42 long (a constant D would be periodic again)
    The closers j >= 1 are the headline, for closer 0 closes the bracket seen last. Chance 1/3, floor 0.
    """
    schedule: str = 'periodic'
    name = 'spacing'
    chance = 1 / 3
    headline = ('closers', 'j >= 1')
    min_length = 16  # long enough for a first closer
    bos = '^'
    form = r'\^[^^]*'
    symbols = list('([{)]}^.')

    def __post_init__(self):
        if self.schedule not in ('periodic', 'random', 'exponential'):
            raise ValueError(f'{self.name}:schedule={self.schedule}: must be periodic, random or exponential')
        self.period = 24 if self.schedule == 'periodic' else None

    def inputs(self, rng, batch, length):
        """The brackets of a block lie in ten slots, five openers and five closers. Empty slots take no room."""
        exponential = self.schedule == 'exponential'
        blocks = length // (14 if exponential else 8) + 1
        D = rng.integers(3, 6, (batch, blocks, 1)) if exponential else np.full((batch, blocks, 1), 4)
        slot = np.arange(5)
        opener = rng.integers(0, 3, (batch, blocks, 5))
        closer = 3 + np.take_along_axis(opener, np.maximum(D - 1 - slot, 0), axis=2)  # closer j closes opener D-1-j
        used = np.concatenate([slot < D, slot < D], axis=2)
        if exponential:
            gap = np.concatenate([np.where(slot == 0, 1, 0), 2**slot]) * np.ones((batch, blocks, 1), dtype=int)
            gap[:, 0, 0] = 0  # nothing before the first block
        else:
            gap = rng.integers(0, 5, used.shape) if self.schedule == 'random' else np.full(used.shape, 2)
        place = np.cumsum((used * (gap + 1)).reshape(batch, -1), axis=1)  # 1, 2, ...: behind the ^
        bracket = np.concatenate([opener, closer], axis=2).reshape(batch, -1)
        x = np.full((batch, length), 7)
        x[:, 0] = 6
        row, column = np.nonzero(used.reshape(batch, -1) & (place < length))
        x[row, place[row, column]] = bracket[row, column]
        return x

    def targets(self, x):
        y = np.full_like(x, -1)
        closes = (x[:, 1:] >= 3) & (x[:, 1:] < 6)
        y[:, :-1] = np.where(closes, x[:, 1:], -1)
        return y

    def breakdown(self, x, y):
        scored = y >= 0
        closers = np.cumsum((x >= 3) & (x < 6), axis=1)
        j = closers - np.maximum.accumulate(np.where(x < 3, closers, 0), axis=1)  # closers since the last opener
        return {'closers': {'all': scored, 'j >= 1': scored & (j >= 1)},
                'closer': label_runs(scored, j, [(i, i) for i in range(5)])}


@dataclasses.dataclass
class Passkey(Task):
    """
    A needle in a haystack: which number stood behind the K?

        x  ^ e r K 4 1 7 0 2 m x c Q 4 1 7 0
        y  . . . . . . . . . . . . 4 1 7 0 2        five digits, anywhere among the fillers

    With `keys=4` there are four, K0 to K3 in any order, and Q<i> asks for one. The fillers are drawn from 32 symbols.
    With `filler=loop` they run through 20 symbols again and again, as public haystacks do: that is periodic, so it may
    mislead a rotation. In every ten strings the key that Q asks for lies once in each tenth of the haystack. Chance
    1/10 a digit, floor 0.
    """
    keys: int = 1
    filler: str = 'iid'
    name = 'passkey'
    chance = 1 / 10
    generates = True
    bos = '^'
    form = r'\^[^^]*K\d{5,}[^^]*'
    fillers = 'abcdefghijklmnopqrstuvwxyz!?;:,.'
    needle = 6  # tokens: K and five digits

    def __post_init__(self):
        self.require('keys', 1, 100)
        if self.filler not in ('iid', 'loop'):
            raise ValueError(f'{self.name}:filler={self.filler}: must be iid or loop')
        names = range(self.keys) if self.keys > 1 else ['']
        self.symbols = [*DIGITS[:10], *(f'K{i}' for i in names), *(f'Q{i}' for i in names), *self.fillers, self.bos]
        self.min_length = 1 + self.needle * self.keys + self.needle - 1

    def inputs(self, rng, batch, length):
        K, Q, filler = 10, 10 + self.keys, 10 + 2 * self.keys
        rows, column = np.arange(batch)[:, None], np.arange(length)
        if self.filler == 'iid':
            x = filler + rng.integers(0, len(self.fillers), (batch, length))
        else:
            x = filler + (rng.integers(0, 20, (batch, 1)) + column) % 20
        places = length - self.min_length + 1  # fillers before a needle: from none to all of them
        before = rng.integers(0, places, (batch, self.keys))
        tenth, asked_for = np.arange(batch) % 10, rng.integers(0, self.keys, batch)
        low, high = -(-places * tenth // 10), -(-places * (tenth + 1) // 10)
        drawn = low + rng.random(batch) * (high - low)
        before[rows[:, 0], asked_for] = np.minimum(drawn, places - 1)  # a tenth may have no place
        rank = np.argsort(np.argsort(before, axis=1, kind='stable'), axis=1)
        start = 1 + before + self.needle * rank  # of each key, (B, keys)
        digits = rng.integers(0, 10, (batch, self.keys, 5))
        x[rows, start] = K + np.arange(self.keys)
        x[rows[:, :, None], start[:, :, None] + np.arange(1, 6)] = digits
        x[:, 0] = len(self.symbols) - 1
        x[:, -5] = Q + asked_for
        x[:, -4:] = digits[rows[:, 0], asked_for, :4]
        return x

    def place(self, x):
        """Where the key stands that x (B, T) asks for, (B, 1)."""
        return (x == x[:, -5:-4] - self.keys).argmax(axis=1)[:, None]

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, -5:] = np.take_along_axis(x, self.place(x) + np.arange(1, 6), axis=1)
        return y

    def completion(self, x):
        """The digits that end x (T,): the rest of the key that its Q asks for; none before there is a Q."""
        questions = np.flatnonzero((x >= 10 + self.keys) & (x < 10 + 2 * self.keys))
        if len(questions) == 0:
            return x[:0]
        Q, places = questions[0], np.flatnonzero(x == x[questions[0]] - self.keys)
        number, said = x[places[0] + 1:places[0] + 6] if len(places) else x[:0], x[Q + 1:]
        if len(number) < 5 or number.max() > 9 or not np.array_equal(said, number[:len(said)]):
            raise ValueError(f'{self.decode(x)!r} is not a string of {self}: it does not go on with the key that '
                             f'{self.symbols[x[Q]]} asks for')
        return number[len(said):]

    def breakdown(self, x, y):
        tenth = (self.place(x) - 1) * 10 // (x.shape[1] - 2 * self.needle + 1)
        masks = {f'{10 * i}-{10 * i + 10} %': (y >= 0) & (tenth == i) for i in range(10)}
        return {'depth of the key': {label: mask for label, mask in masks.items() if mask.any()}}


class Noisy(Task):
    """
    Label noise, a share of 1: so many targets of the training strings become the answer at a random place of the batch.

    By chance that may be the right answer. Inputs are those of the task without noise, for the noise is drawn after
    them. Validation and test strings keep their targets.
    """

    def __post_init__(self):
        super().__post_init__()
        self.require('noise', 0, 1)

    def sample(self, rng, batch, length, split='train'):
        x, y = super().sample(rng, batch, length, split)
        if split == 'train':
            chosen = (y >= 0) & (rng.random(y.shape) < self.noise)
            y[chosen] = rng.choice(y[y >= 0], chosen.sum())
        return x, y


@dataclasses.dataclass
class NoisyDyck(Noisy, Dyck):
    noise: float = 0.0


@dataclasses.dataclass
class NoisyBioRotation(Noisy, BioRotation):
    noise: float = 0.0


@dataclasses.dataclass
class NoisyModulo(Noisy, Modulo):
    noise: float = 0.0


LAB_TASKS = {task.name: task for task in (Lag, Sum, Spacing, Passkey, Text, NoisyDyck, NoisyBioRotation, NoisyModulo)}
