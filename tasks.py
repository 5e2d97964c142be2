"""
The tasks: formal languages whose answers are known, so that a loss means something; and real text.

    task = make_task('dyck:k=3,max_depth=8')        # a name, and parameters that differ from the defaults
    x, y = task.sample(stream(seed, 'train', 0), batch=64, length=64)

x and y are (B, T) int64: y is the answer at each position and -1 where the input does not determine one, so every task
but text can be solved to a loss of exactly 0 (its floor), and the accuracy of a guess (its `chance`) is known. Sampling is
vectorised: no Python loop over the batch or over the tokens. `check` is a second opinion: plain loops, written from the
definition, sharing nothing with the sampler.

Bio-Rotation and Modulo Arithmetic are names from the Bifocal Attention paper (arXiv 2601.22402), which does not define
them: what they are here, and the controls lag and sum, are reconstructions.
"""

import dataclasses
import difflib
import functools
import hashlib
import io
import math
import os
import platform
import re
import sysconfig
import tokenize
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tiktoken

DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'
SPLITS = ('train', 'validation', 'test')


def stream(*names):
    """A numpy Generator of its own for every tuple of names and numbers, such as (seed, 'train', iteration, slot)."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, 'big'))


class Task:
    """
    What the tasks share. A task is a dataclass: its fields are its parameters. It says its `name`, which `symbols` it uses,
    the accuracy of a guess (`chance`), the least `min_length`, and the `period` that a rotation could lock onto, if any.
    Three methods define it, `inputs`, `targets` and `accepts`, the last two written without a look at each other.
    """
    floor = 0.0  # attainable loss in nats; nan where nobody knows it
    period = None
    bos = ''  # the symbol that every string starts with, if any
    headline = None  # (group, label) of `breakdown` that is the accuracy to report; None: all targets
    generates = False  # are the model's answers the next symbols of its input?
    open_ended = False  # has a string no one right continuation?

    def inputs(self, rng, batch, length):
        """Draw strings: x (batch, length) int64."""
        raise NotImplementedError

    def targets(self, x):
        """What a reader of x (B, T) should say at each place: y (B, T) int64, -1 where the input does not determine it."""
        raise NotImplementedError

    def accepts(self, x, y):
        """The checker, from the definition: is x, a list of T ints, a string of the task, and y, another, right where it is not -1?"""
        raise NotImplementedError

    def completion(self, x):
        """The symbols that end the string x (T,), if the task `generates`: (any number,) int64."""
        raise NotImplementedError

    @property
    def vocab_size(self):
        """How many symbols there are."""
        return len(self.symbols)

    @property
    def pattern(self):
        """The regular expression of one symbol, the longest symbols first."""
        return '|'.join(map(re.escape, sorted(self.symbols, key=len, reverse=True)))

    @functools.cached_property
    def tokenizer(self):
        """A tiktoken.Encoding with one token per symbol, in the order of `symbols`."""
        return tiktoken.Encoding(str(self), pat_str=self.pattern, special_tokens={},
                                 mergeable_ranks={symbol.encode(): i for i, symbol in enumerate(self.symbols)})

    def encode(self, text):
        """Text to token ids (T,), blanks between symbols left out. Raises ValueError for what is not a symbol of the task."""
        text = text if ' ' in self.symbols else text.replace(' ', '')
        known = re.compile(self.pattern)
        position = 0
        while position < len(text):
            match = known.match(text, position)
            if match is None:
                raise ValueError(f'{text[position]!r}, character {position} of {text!r}, is not a symbol of {self}: '
                                 f'its symbols are {" ".join(self.symbols)}')
            position = match.end()
        return np.array(self.tokenizer.encode(text), dtype=np.int64)

    def decode(self, ids):
        """Token ids to text."""
        return self.tokenizer.decode([int(i) for i in ids])

    def sample(self, rng, batch, length, split='train'):
        """
        Draw x, y: two (batch, length) int64 arrays. The splits of a formal language differ by their streams alone; text has
        only so much of each. Raises ValueError if the length is too short for the task.
        """
        if length < self.min_length:
            raise ValueError(f'length={length} is too short for {self}: it needs at least {self.min_length}')
        x = self.inputs(rng, batch, length)
        return x, self.targets(x)

    def record(self):
        """What a run should remember of data that may not be the same elsewhere: a dict, empty if there is none."""
        return {}

    def check(self, x, y):
        """(B,) bools: x is a string of the task, and y is right wherever it is not -1."""
        return np.array([self.accepts(list(map(int, a)), list(map(int, b))) for a, b in zip(x, y)])

    def breakdown(self, x, y):
        """{group: {label: (B, T) bool mask of targets}}: the finer questions that eval.py answers one accuracy each."""
        return {}

    def variants(self):
        """{label: task} with the same symbols and a difficulty never trained on."""
        return {}

    def sources(self, x):
        """(B, T) bools: the inputs that hold what the answers need. All of them, unless a task knows better."""
        return np.ones_like(x, dtype=bool)

    def state(self, x):
        """(B, T) numbers of the state that a reader of x (B, T) is in, such as the depth of its brackets; None: no such thing."""
        return None

    def __str__(self):
        changed = [f'{f.name}={getattr(self, f.name)}' for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return self.name + (':' + ','.join(changed) if changed else '')

    def require(self, name, low, high):
        if not low <= getattr(self, name) <= high:
            raise ValueError(f'{self.name}:{name}={getattr(self, name)}: must be from {low} to {high}')


def label_runs(mask, values, edges):
    """{label: mask & (low <= values <= high)} for each (low, high) of edges that occurs."""
    runs = {}
    for low, high in edges:
        label = f'{low}' if low == high else f'{low}-{high}' if high is not None else f'>={low}'
        chosen = mask & (values >= low) & (values <= (values.max() if high is None else high))
        if chosen.any():
            runs[label] = chosen
    return runs


@dataclass(frozen=True)
class Dyck(Task):
    """
    Dyck-k: nested brackets of k kinds. Which bracket closes this one?

        x  ^ ( [ ] { ( ) } )
        y  . . ] . . ) } ) .        y_t is x_{t+1} where that closes a bracket (its kind is on top of the stack)

    The depth walks: it opens at 0, closes at `max_depth` and when only the closers have room left, and otherwise opens
    with probability 1/2; kinds are uniform. Over half of all closers follow their opener directly and can be copied;
    the non-trivial ones follow another closer, where a guess has chance 1/k. Floor 0.
    """
    k: int = 3
    max_depth: int = 8
    name = 'dyck'
    headline = ('closers', 'non-trivial')
    generates = True
    min_length = 3
    bos = '^'
    openers, closers = '([{<' + 'abcdefghijklmnopqrstuvwxyz', ')]}>' + 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'

    def __post_init__(self):
        self.require('k', 1, len(self.openers))
        self.require('max_depth', 1, 10**6)

    @property
    def symbols(self):
        return list(self.openers[:self.k] + self.closers[:self.k] + self.bos)

    @property
    def chance(self):
        return 1 / self.k

    def inputs(self, rng, batch, length):
        """
        A walk that turns back at 0 and at max_depth is a free walk, folded; that it must end at 0 caps it by the
        steps left, a line which it meets on an even step and then follows down. If the brackets are odd, the last is cut.
        """
        n, D = length // 2 * 2, self.max_depth  # brackets: length - 1 of them, made even
        walk = np.cumsum(1 - 2 * rng.integers(0, 2, (batch, n), dtype=np.int32), axis=1)
        depth = np.minimum(D - np.abs(walk % (2 * D) - D), np.arange(n - 1, -1, -1))  # after each symbol
        opens = np.diff(depth, axis=1, prepend=0) > 0
        level = depth + ~opens  # the depth that a bracket opens, or that it closes
        # the brackets of one level alternate: opened, closed, opened, closed; sorted by level each closer follows its opener
        order = np.argsort(level.astype(np.uint16), axis=1, kind='stable')
        kind = rng.integers(0, self.k, (batch, n))
        matching = np.take_along_axis(kind, order[:, 0::2], axis=1)
        np.put_along_axis(kind, order[:, 1::2], matching + self.k, axis=1)
        return np.concatenate([np.full((batch, 1), 2 * self.k), kind[:, :length - 1]], axis=1)

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, :-1] = np.where(x[:, 1:] >= self.k, x[:, 1:], -1)
        return y

    def accepts(self, x, y):
        if x[0] != 2 * self.k or y[0] != -1:
            return False
        stack = []
        for t, symbol in list(enumerate(x))[1:]:
            if symbol < self.k:
                stack.append(symbol + self.k)
            elif not stack or stack.pop() != symbol:
                return False
            if len(stack) > self.max_depth or (y[t] >= 0 and (not stack or stack[-1] != y[t])):
                return False
        return True

    def completion(self, x):
        """The closers that the open brackets of x (T,) are waiting for: what a generation from x has to say."""
        waiting = []
        for symbol in map(int, x[1:]):
            if symbol < self.k:
                waiting.append(symbol + self.k)
            else:
                waiting.pop()
        return np.array(waiting[::-1], dtype=np.int64)

    def sources(self, x):
        return x < self.k

    def state(self, x):
        """The depth: brackets open after each symbol."""
        return np.cumsum(np.where(x < self.k, 1, -1), axis=1) + 1  # ^ is no step

    def breakdown(self, x, y):
        opens, depth = x < self.k, self.state(x)
        distance = np.zeros_like(x)
        for level in range(1, depth.max() + 1):  # the last opener of this level
            opened = np.maximum.accumulate(np.where(opens & (depth == level), np.arange(x.shape[1]), -1), axis=1)
            distance = np.where(depth == level, np.arange(x.shape[1]) + 1 - opened, distance)
        scored = y >= 0
        nontrivial = scored & ~opens
        return {
            'closers': {'all': scored, 'non-trivial': nontrivial},
            'distance to the opener': label_runs(nontrivial, distance, [(3, 9), (11, 31), (33, 99), (101, None)]),
            'depth': label_runs(nontrivial, depth, [(d, d) for d in range(1, depth.max() + 1)]),
        }

    def variants(self):
        deeper = dataclasses.replace(self, max_depth=2 * self.max_depth)
        return {f'depth {deeper.max_depth}': deeper}


@dataclass(frozen=True)
class BioRotation(Task):
    """
    A DNA strand wound on a helix with `period` bases a turn (B-DNA: about 10). Which base lies at this angle?

        x  ^ A C G T T G C A A G . . . . . . . . . . . . .        period=10
        y  . . . . . . . . . . . A C G T T G C A A G A C G        blank tau (0, 1, ...): base (tau + rotation) mod period

    Blanks carry nothing, so the answer comes by position alone: from lags period, 2 period, 3 period, ... alike.
    `rotation='random'` draws the rotation r and shows it as the token R<r> after the `^`; `feed=True` puts each answer
    back as the next input, which leaves a copy at one fixed lag (a positive control). Chance 1/4 (ln 4 nats), floor 0.
    """
    period: int = 10
    rotation: str = '0'
    feed: bool = False
    name = 'bio_rotation'
    chance = 1 / 4
    bos = '^'

    def __post_init__(self):
        self.require('period', 1, 10**6)
        if self.rotation not in ('0', 'random'):
            raise ValueError(f'{self.name}:rotation={self.rotation}: must be 0 or random')

    @property
    def symbols(self):
        return list('^ACGT.') + [f'R{r}' for r in range(self.period) if self.rotation == 'random']

    @property
    def start(self):
        """Where the strand starts: behind `^`, and behind the rotation if it is shown."""
        return 1 + (self.rotation == 'random')

    @property
    def min_length(self):
        return self.start + self.period + 1

    def answers(self, x):
        """The base at each blank, (B, T - start - period)."""
        r = x[:, 1:2] - 6 if self.rotation == 'random' else 0
        strand = x[:, self.start:self.start + self.period]
        tau = np.arange(x.shape[1] - self.start - self.period)
        return np.take_along_axis(strand, np.broadcast_to((tau + r) % self.period, (len(x), len(tau))), axis=1)

    def inputs(self, rng, batch, length):
        blanks = self.start + self.period
        x = np.full((batch, length), 5)
        x[:, 0] = 0
        if self.rotation == 'random':
            x[:, 1] = 6 + rng.integers(0, self.period, batch)
        x[:, self.start:blanks] = rng.integers(1, 5, (batch, self.period))
        if self.feed:
            x[:, blanks + 1:] = self.answers(x)[:, :-1]
        return x

    def targets(self, x):
        return np.concatenate([np.full_like(x[:, :self.start + self.period], -1), self.answers(x)], axis=1)

    def accepts(self, x, y):
        letters = [self.symbols[i] for i in x]
        head = letters[:self.start]
        strand = letters[self.start:self.start + self.period]
        tail = letters[self.start + self.period:]
        if not tail or head[0] != '^' or not set(strand) <= set('ACGT') or (self.rotation == 'random' and head[1][0] != 'R'):
            return False
        turn = int(head[1][1:]) if self.rotation == 'random' else 0
        said = '.'
        for tau, shown in enumerate(tail):
            right = strand[(tau + turn) % len(strand)]
            answer = y[self.start + self.period + tau]
            if shown != said or (answer >= 0 and self.symbols[answer] != right):
                return False
            said = right if self.feed else '.'
        return all(answer == -1 for answer in y[:self.start + self.period])

    def sources(self, x):
        column = np.arange(x.shape[1])
        return np.broadcast_to((column >= self.start) & (column < self.start + self.period), x.shape)

    def breakdown(self, x, y):
        turn = np.maximum(np.arange(x.shape[1]) - self.start - self.period, 0) // self.period + 1
        turn = np.broadcast_to(turn, x.shape)
        return {'turn': label_runs(y >= 0, turn, [(i, i) for i in range(1, turn.max() + 1)])}


@dataclass(frozen=True)
class Spacing(Task):
    """
    Brackets among fillers: does an attention need them to come at regular intervals? Which bracket closes this one?

        x  ^ . . ( . . [ . . [ . . { . . } . . ] . . ] . . ) . . {        schedule=periodic
        y  . . . . . . . . . . . . . . } . . ] . . ] . . ) . . . .        y_t is x_{t+1} where that closes a bracket

    Blocks of D openers, kinds uniform over three, and their D closers. Only the fillers differ, their mean number hardly:
        periodic     2 before each bracket, D = 4: all comes at multiples of 3, a block is 24 long
        random       0 to 4 before each bracket, uniformly, D = 4: 24 long on average
        exponential  none among the openers, 2^j before closer j = 0, 1, ..., one between blocks, D = 3, 4 or 5: 14, 24 or
                     42 long (a constant D would be periodic again)
    The closers j >= 1 count: closer 0 closes the bracket seen last. Chance 1/3, floor 0.
    """
    schedule: str = 'periodic'
    name = 'spacing'
    chance = 1 / 3
    headline = ('closers', 'j >= 1')
    min_length = 16  # long enough for a first closer
    bos = '^'
    symbols = list('([{)]}^.')

    def __post_init__(self):
        if self.schedule not in ('periodic', 'random', 'exponential'):
            raise ValueError(f'{self.name}:schedule={self.schedule}: must be periodic, random or exponential')

    @property
    def period(self):
        return 24 if self.schedule == 'periodic' else None

    def inputs(self, rng, batch, length):
        """Brackets of every block in ten slots, five openers and five closers; the empty slots take no room."""
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

    def accepts(self, x, y):
        if x[0] != 6 or y[0] != -1:
            return False
        stack, gap, opened, closed, blocks = [], 0, 0, 0, 0
        for t in range(1, len(x)):
            if x[t] == 7:
                gap += 1
            elif x[t] < 3:
                if closed:
                    if stack:
                        return False
                    opened, closed, blocks = 0, 0, blocks + 1
                stack.append(x[t])
                opened += 1
                right = {'periodic': gap == 2, 'random': gap <= 4, 'exponential': gap == (1 if blocks and opened == 1 else 0)}
            else:
                if x[t] == 6 or not stack or opened not in ((3, 4, 5) if self.schedule == 'exponential' else (4,)):
                    return False
                if stack.pop() != x[t] - 3:
                    return False
                right = {'periodic': gap == 2, 'random': gap <= 4, 'exponential': gap == 2**closed}
                closed += 1
            if x[t] != 7:
                if not right[self.schedule]:
                    return False
                gap = 0
            if y[t] >= 0 and (not stack or y[t] != stack[-1] + 3 or (t + 1 < len(x) and x[t + 1] != y[t])):
                return False
        return True

    def sources(self, x):
        return x < 3

    def breakdown(self, x, y):
        scored = y >= 0
        closers = np.cumsum((x >= 3) & (x < 6), axis=1)
        j = closers - np.maximum.accumulate(np.where(x < 3, closers, 0), axis=1)  # closers since the last opener
        return {'closers': {'all': scored, 'j >= 1': scored & (j >= 1)},
                'closer': label_runs(scored, j, [(i, i) for i in range(5)])}


class Digits(Task):
    """What the arithmetic tasks share: digits of Z_modulus, written 0-9 and then a-z, and an answer to each."""
    first_digit = 0

    def __post_init__(self):
        self.require('modulus', 2, len(DIGITS))

    @property
    def chance(self):
        return 1 / self.modulus

    @property
    def symbols(self):
        return list(DIGITS[:self.modulus])

    def inputs(self, rng, batch, length):
        return rng.integers(0, self.modulus, (batch, length))

    def accepts(self, x, y):
        return (all(0 <= digit < self.modulus for digit in x[self.first_digit:])
                and all(answer in (-1, self.answer(x, t)) for t, answer in enumerate(y)))

    def breakdown(self, x, y):
        octaves = [(0, 0)] + [(2**i, 2 ** (i + 1) - 1) for i in range(x.shape[1].bit_length())]
        return {'position': label_runs(y >= 0, np.broadcast_to(np.arange(x.shape[1]), x.shape), octaves)}


@dataclass(frozen=True)
class Modulo(Digits):
    """
    Digits and a hidden clock: y_t = (x_t + t + c) mod `modulus`, with c given by the first token.

        x  C2 5 0 3 6 1        t = 1: 5 + 1 + 2 = 8 = 1 mod 7
        y  .  1 4 1 5 1        t = 2: 0 + 2 + 2 = 4; t = 3: 3 + 3 + 2 = 1; t = 4: 6 + 4 + 2 = 5; t = 5: 1 + 5 + 2 = 1

    Needs t mod modulus, counted from the start: one rotary pair at 2 pi j / modulus can do it. The clock starts
    at the first token, which attention must find among t others: longer strings dilute it. Chance 1/modulus (ln 7 = 1.946 nats by default), floor 0.
    """
    modulus: int = 7
    name = 'modulo'
    min_length = 2
    first_digit = 1

    @property
    def period(self):
        return self.modulus

    @property
    def symbols(self):
        return super().symbols + [f'C{digit}' for digit in DIGITS[:self.modulus]]

    def inputs(self, rng, batch, length):
        x = super().inputs(rng, batch, length)
        x[:, 0] += self.modulus  # C<c> is token modulus + c
        return x

    def targets(self, x):
        y = (x + np.arange(x.shape[1]) + x[:, :1]) % self.modulus
        y[:, 0] = -1
        return y

    def sources(self, x):
        """The first token, where it is C0: the phase of a score may depend on c, and a mean over all c would cancel."""
        return (np.arange(x.shape[1]) == 0) & (x[:, :1] == self.modulus)

    def answer(self, x, t):
        clock = x[0] - self.modulus
        for _ in range(t):
            clock = 0 if clock == self.modulus - 1 else clock + 1
        return (clock + x[t]) % self.modulus if t > 0 else -1

    def accepts(self, x, y):
        return self.modulus <= x[0] < 2 * self.modulus and super().accepts(x, y)


@dataclass(frozen=True)
class Lag(Digits):
    """
    Positive control, which every rotation must solve: y_t = (x_t + x_{t-lag}) mod `modulus`.

        x  1 5 2 0 3 3 6 4 2 6        lag=7, t = 7: 4 + 1 = 5 mod 7
        y  . . . . . . . 5 0 1        t = 8: 2 + 5 = 0; t = 9: 6 + 2 = 1

    One fixed lag, at any length. Chance 1/modulus, floor 0.
    """
    lag: int = 7
    modulus: int = 7
    name = 'lag'

    def __post_init__(self):
        super().__post_init__()
        self.require('lag', 1, 10**6)

    @property
    def min_length(self):
        return self.lag + 1

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, self.lag:] = (x[:, self.lag:] + x[:, :-self.lag]) % self.modulus
        return y

    def answer(self, x, t):
        return (x[t] + x[t - self.lag]) % self.modulus if t >= self.lag else -1


@dataclass(frozen=True)
class Sum(Digits):
    """
    Negative control, which no sense of position can help: y_t = (x_0 + ... + x_t) mod `modulus`, whatever the order.

        x  3 5 6 0 2        t = 1: 3 + 5 = 1 mod 7
        y  3 1 0 0 2        t = 2: 3 + 5 + 6 = 0; t = 3: 0; t = 4: 2

    Chance 1/modulus, floor 0.
    """
    modulus: int = 7
    name = 'sum'
    min_length = 1

    def targets(self, x):
        return np.cumsum(x, axis=1) % self.modulus

    def answer(self, x, t):
        return sum(x[:t + 1]) % self.modulus


@dataclass(frozen=True)
class Passkey(Task):
    """
    A needle in a haystack: which number stood behind the K?

        x  ^ e r K 4 1 7 0 2 m x c Q 4 1 7 0
        y  . . . . . . . . . . . . 4 1 7 0 2        five digits, anywhere among the fillers

    With `keys=4` there are four, K0 to K3 in any order, and Q<i> asks for one. The fillers are drawn from 32 symbols, or
    with `filler=loop` run through 20 of them again and again, as public haystacks do: periodic, so a confound here. In
    every ten strings the key that is asked for lies once in each tenth of the haystack. Chance 1/10 a digit, floor 0.
    """
    keys: int = 1
    filler: str = 'iid'
    name = 'passkey'
    chance = 1 / 10
    generates = True
    bos = '^'
    fillers = 'abcdefghijklmnopqrstuvwxyz!?;:,.'
    needle = 6  # tokens: K and five digits

    def __post_init__(self):
        self.require('keys', 1, 100)
        if self.filler not in ('iid', 'loop'):
            raise ValueError(f'{self.name}:filler={self.filler}: must be iid or loop')

    @property
    def symbols(self):
        names = range(self.keys) if self.keys > 1 else ['']
        return list(DIGITS[:10]) + [f'K{i}' for i in names] + [f'Q{i}' for i in names] + list(self.fillers) + [self.bos]

    @property
    def min_length(self):
        return 1 + self.needle * self.keys + self.needle - 1

    def inputs(self, rng, batch, length):
        K, Q, filler = 10, 10 + self.keys, 10 + 2 * self.keys
        rows, column = np.arange(batch)[:, None], np.arange(length)
        if self.filler == 'iid':
            x = filler + rng.integers(0, len(self.fillers), (batch, length))
        else:
            x = filler + (rng.integers(0, 20, (batch, 1)) + column) % 20
        places = length - self.min_length + 1  # fillers before a needle: from none to all of them
        before = rng.integers(0, places, (batch, self.keys))
        tenth, asked = np.arange(batch) % 10, rng.integers(0, self.keys, batch)
        low, high = -(-places * tenth // 10), -(-places * (tenth + 1) // 10)
        before[rows[:, 0], asked] = np.minimum(low + rng.random(batch) * (high - low), places - 1)  # a tenth may have no place
        rank = np.argsort(np.argsort(before, axis=1, kind='stable'), axis=1)
        start = 1 + before + self.needle * rank  # of each key, (B, keys)
        digits = rng.integers(0, 10, (batch, self.keys, 5))
        x[rows, start] = K + np.arange(self.keys)
        x[rows[:, :, None], start[:, :, None] + np.arange(1, 6)] = digits
        x[:, 0] = len(self.symbols) - 1
        x[:, -5] = Q + asked
        x[:, -4:] = digits[rows[:, 0], asked, :4]
        return x

    def place(self, x):
        """Where the key stands that x (B, T) asks for, (B, 1)."""
        return (x == x[:, -5:-4] - self.keys).argmax(axis=1)[:, None]

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, -5:] = np.take_along_axis(x, self.place(x) + np.arange(1, 6), axis=1)
        return y

    def accepts(self, x, y):
        said = [self.symbols[i] for i in x]
        if said[0] != '^' or (asks := [t for t, s in enumerate(said) if s[0] == 'Q']) != [t for t in asks if t >= len(x) - 6] or len(asks) > 1:
            return False
        body, tail = said[1:asks[0]] if asks else said[1:], said[asks[0]:] if asks else []
        keys, t, heap = {}, 0, []
        while t < len(body):
            if body[t][0] == 'K':
                number = body[t + 1:t + 6]
                if body[t] in keys or not all(digit.isdigit() for digit in number) or (len(number) < 5 and tail):
                    return False
                keys[body[t]] = number
                heap += [None] * 6
                t += 6
            elif body[t].isdigit():
                return False
            else:
                heap.append(body[t])
                t += 1
        if self.filler == 'loop' and len({(self.fillers.index(s) - i) % 20 for i, s in enumerate(heap) if s}) > 1:
            return False
        if not tail:
            return all(answer == -1 for answer in y)
        number = keys.get('K' + tail[0][1:], [])
        if len(keys) < self.keys or tail[1:] != number[:len(tail) - 1]:
            return False
        truth = [-1] * (len(x) - len(tail)) + [int(digit) for digit in number] + [-1]
        return all(answer in (-1, right) for answer, right in zip(y, truth))

    def completion(self, x):
        """The digits that x (T,) has still to say: those of the key that its Q asks for."""
        asks = np.flatnonzero((x >= 10 + self.keys) & (x < 10 + 2 * self.keys))
        if len(asks) == 0:
            return x[:0]
        place = np.flatnonzero(x == x[asks[0]] - self.keys)[0]
        return x[place + len(x) - asks[0]:place + 6]

    def variants(self):
        return {'loop': dataclasses.replace(self, filler='loop')} if self.filler == 'iid' else {}

    def sources(self, x):
        behind = np.arange(x.shape[1]) - self.place(x)
        return (behind >= 1) & (behind <= 5)

    def breakdown(self, x, y):
        tenth = (self.place(x) - 1) * 10 // (x.shape[1] - 2 * self.needle + 1)
        return {'depth of the key': {f'{10 * i}-{10 * i + 10} %': (y >= 0) & (tenth == i) for i in range(10) if (tenth == i).any()}}


@dataclass(frozen=True)
class Text(Task):
    """
    Real text, a token at a time: what comes next?

        x  d e f n o r m        y_t = x_{t+1}
        y  e f n o r m .

    `path` is a file, or a folder with all its UTF-8 files; without one it is the Python standard library's own sources
    on this machine: real code, no download. `encoding` is 'bytes' (256 symbols, offline), a name that tiktoken knows, such
    as 'gpt2', whose vocabulary it downloads on first use, or 'hf:' and a checkpoint of Hugging Face, a folder or a name on
    the hub, whose own tokenizer it then is. Every file belongs to one split, by a hash of its
    path: nine in ten to train; of a single file the last tenth is for validation and test. Chance is that of a random
    token; the floor is unknown.
    """
    path: str = ''
    encoding: str = 'bytes'
    name = 'text'
    floor = math.nan
    min_length = 2
    open_ended = True

    @property
    def tokenizer(self):
        return read_encoding(self.encoding)

    @functools.cached_property
    def symbols(self):
        """What each token stands for; the ids that an encoding leaves out stand for nothing."""
        names = []
        for i in range(self.vocab_size):
            try:
                names.append(self.tokenizer.decode_single_token_bytes(i).decode(errors='backslashreplace'))
            except KeyError:
                names.append('')
        return names

    @property
    def vocab_size(self):
        return self.tokenizer.n_vocab

    @property
    def chance(self):
        return 1 / self.vocab_size

    def encode(self, text):
        return np.array(self.tokenizer.encode_ordinary(text), dtype=np.int64)

    def corpus(self, split):
        return read_corpus(self.path, self.encoding)[split]

    @functools.cached_property
    def digest(self):
        """The SHA-256 of all tokens; computed once, for a run asks for it at every checkpoint."""
        return hashlib.sha256(b''.join(self.corpus(split).tokens.tobytes() for split in SPLITS)).hexdigest()

    def record(self):
        corpora = read_corpus(self.path, self.encoding)
        return dict(files={split: len(corpus.names) for split, corpus in corpora.items()}, python=platform.python_version(),
                    tokens={split: len(corpus.tokens) for split, corpus in corpora.items()}, sha256=self.digest)

    def sample(self, rng, batch, length, split='train'):
        for name in SPLITS:
            if len(self.corpus(name).tokens) <= length:
                raise ValueError(f'{self}: its {name} split has {len(self.corpus(name).tokens)} tokens, and sequences of {length} need '
                                 f'{length + 1}: give more text, or a shorter block_size')
        tokens = self.corpus(split).tokens
        start = rng.integers(0, len(tokens) - length, batch)
        windows = tokens[start[:, None] + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
        return windows[:, :-1], windows[:, 1:]

    def targets(self, x):
        return np.concatenate([x[:, 1:], np.full_like(x[:, :1], -1)], axis=1)

    def accepts(self, x, y):
        return all(a in (-1, b) for a, b in zip(y, x[1:]))


@dataclass(frozen=True)
class Corpus:
    """One split of a text: its files' names, their tokens one behind the other, where each starts, and the last ends; the encoding."""
    names: list
    tokens: np.ndarray  # (n,) of the smallest unsigned type that holds the vocabulary
    starts: np.ndarray  # (files + 1,)
    encoding: object  # what read_encoding gave

    def excerpts(self, length, n, rng):
        """n excerpts (n, length) int64 that do not overlap, none across two files; fewer if there are no more."""
        starts = [np.arange(a, b - length + 1, length) for a, b in zip(self.starts, self.starts[1:])]
        starts = rng.permutation(np.concatenate(starts))[:n]
        return self.tokens[starts[:, None] + np.arange(length)].astype(np.int64), starts

    @functools.cached_property
    def brackets(self):
        """
        The closing brackets in Python files that a token begins with, those in strings and comments left out: (n, 3) of the
        place in `tokens`, the distance in tokens to the one that holds the opener, and the depth that it closes.
        """
        rows = [np.zeros((0, 3), dtype=np.int64)]
        for name, start, end in zip(self.names, self.starts, self.starts[1:]):
            if name.endswith('.py'):
                text, begins = self.encoding.decode_with_offsets(self.tokens[start:end - 1].tolist())
                place, opener, depth = python_brackets(text).T
                token, opening = (np.searchsorted(begins, at, side='right') - 1 for at in (place, opener))
                first = np.array(begins)[token] == place
                rows.append(np.stack([start + token, token - opening, depth], axis=1)[first])
        return np.concatenate(rows)


def python_brackets(source):
    """(n, 3) of the place of every closing bracket that Python itself sees in the source, in characters, of its opener, and of its depth."""
    lines = list(io.StringIO(source, newline=''))
    starts = np.cumsum([0] + [len(line) for line in lines])
    opened, found = [], []
    try:
        for token in tokenize.generate_tokens(iter(lines + ['']).__next__):
            if token.type == tokenize.OP and token.string in '()[]{}':
                row, column = token.start
                place = int(starts[row - 1]) + column
                if token.string in '([{':
                    opened.append(place)
                elif opened:
                    found.append((place, opened.pop(), len(opened) + 1))
    except (tokenize.TokenError, SyntaxError):  # a file that is wrong on purpose; what came before counts
        pass
    return np.array(found, dtype=np.int64).reshape(-1, 3)


@functools.lru_cache(maxsize=4)
def read_encoding(name):
    """
    The tiktoken.Encoding of that name; 'bytes' has a token for each byte; 'hf:CHECKPOINT' is a pretrained.Tokenizer, and raises
    what that does. Raises ValueError if it is not to be had.
    """
    if name == 'bytes':
        return tiktoken.Encoding(name, pat_str=r'[\s\S]', mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={})
    if name.startswith('hf:'):
        from pretrained import Tokenizer  # a foreign format, as in GPT.from_pretrained
        return Tokenizer(name.removeprefix('hf:'))
    if name not in tiktoken.list_encoding_names():
        raise ValueError(f'encoding {name!r} does not exist{nearest(name, ["bytes", *tiktoken.list_encoding_names()])}')
    try:
        return tiktoken.get_encoding(name)
    except OSError as error:  # requests' exceptions are OSErrors
        raise ValueError(f'encoding {name!r}: tiktoken cannot download its vocabulary ({type(error).__name__}); offline, use encoding=bytes') from error


def list_files(folder, ending):
    """The sorted paths, relative to `folder`, of the files beneath it that end so; hidden ones and installed packages left out."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != '.' and name not in ('__pycache__', 'site-packages', 'dist-packages')]
        found += [(Path(place) / name).relative_to(folder).as_posix() for name in files if name.endswith(ending) and name[0] != '.']
    return sorted(found)


@functools.lru_cache(maxsize=4)
def read_corpus(path, encoding):
    """
    {split: Corpus} of the text at `path` ('': the standard library), held once a process. Copies of a file count once.
    Raises FileNotFoundError, or ValueError for text that is empty, not UTF-8, or too little to split.
    """
    tokenizer, place = read_encoding(encoding), Path(path or sysconfig.get_paths()['stdlib'])
    if not place.exists():
        raise FileNotFoundError(f'text:path={path}: there is no such file or folder')
    texts = {split: {} for split in SPLITS}
    if place.is_file():
        try:
            text = place.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise ValueError(f'text:path={path} is not UTF-8: {error.reason} at byte {error.start}') from None
        cuts = [0, *(text.find('\n', len(text) * share // 100) + 1 for share in (90, 95)), len(text)]  # at line ends
        for split, a, b in zip(SPLITS, cuts, cuts[1:]):
            texts[split][place.name] = text[a:b]
    else:
        seen = set()
        for name in list_files(place, '' if path else '.py'):
            content = (place / name).read_bytes()
            digest = hashlib.sha256(content).digest()
            try:
                text = content.decode()
            except UnicodeDecodeError:  # an image beside the text, or a source in another encoding
                continue
            if not text.isspace() and text and digest not in seen:
                seen.add(digest)
                share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], 'big') / 2**32
                texts['train' if share < 0.9 else 'validation' if share < 0.95 else 'test'][name] = text
    if empty := [split for split in SPLITS if not ''.join(texts[split].values()).strip()]:
        raise ValueError(f'text:path={path} leaves nothing for {" and ".join(empty)}: it needs more text, or more files')
    smallest = next(kind for kind in (np.uint8, np.uint16, np.uint32) if tokenizer.n_vocab <= 2 ** (8 * kind().itemsize))
    end = 0 if encoding == 'bytes' else tokenizer.eot_token  # behind each file
    corpora = {}
    for split, files in texts.items():
        if encoding == 'bytes':
            pieces = [np.frombuffer(text.encode() + b'\0', dtype=np.uint8) for text in files.values()]
        else:
            pieces = [np.array([*ids, end], dtype=smallest) for ids in tokenizer.encode_ordinary_batch(list(files.values()))]
        corpora[split] = Corpus(list(files), np.concatenate(pieces), np.cumsum([0] + [len(piece) for piece in pieces]), tokenizer)
    return corpora


TASKS = {task.name: task for task in (Dyck, BioRotation, Modulo, Spacing, Lag, Sum, Passkey, Text)}


def make_task(spec):
    """The task that 'name' or 'name:key=value,...' describes. Raises ValueError for what does not exist."""
    name, _, parameters = spec.partition(':')
    if name not in TASKS:
        raise ValueError(f'task {name!r} does not exist{nearest(name, TASKS)}')
    fields = {f.name: f for f in dataclasses.fields(TASKS[name])}
    chosen = {}
    for parameter in filter(None, parameters.split(',')):
        key, equals, text = parameter.partition('=')
        if key not in fields:
            raise ValueError(f'task {name!r} has no parameter {key!r}{nearest(key, fields)}')
        if not equals:
            raise ValueError(f'{name}:{parameter}: parameters are written key=value')
        kind = fields[key].type
        try:
            chosen[key] = {'true': True, 'false': False}[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise ValueError(f'{name}:{key}={text!r}: must be {kind.__name__}, such as {fields[key].default}') from None
    return TASKS[name](**chosen)


def nearest(name, names):
    """'; did you mean X? there are X, Y, Z': the tail of an error about an unknown name."""
    close = difflib.get_close_matches(name, names, n=1)
    return (f'; did you mean {close[0]!r}?' if close else ';') + ' there are ' + ', '.join(names)
