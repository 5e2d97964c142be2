"""
The tasks: formal languages whose answers are known, so that a loss means something.

    task = make_task('dyck:k=3,max_depth=8')        # a name, and parameters that differ from the defaults
    x, y = task.sample(stream(seed, 'train', 0), batch=64, length=64)

x and y are (B, T) int64: y is the answer at each position and -1 where the input does not determine one, so every task
can be solved to a loss of exactly 0 (its floor), and the accuracy of a guess (its `chance`) is known. Sampling is
vectorised: no Python loop over the batch or over the tokens. `check` is a second opinion: plain loops, written from the
definition, sharing nothing with the sampler.

Bio-Rotation and Modulo Arithmetic are names from the Bifocal Attention paper (arXiv 2601.22402), which does not define
them: what they are here, and the controls lag and sum, are reconstructions.
"""

import dataclasses
import difflib
import functools
import hashlib
import re
from dataclasses import dataclass

import numpy as np
import tiktoken

DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'


def stream(*names):
    """A numpy Generator of its own for every tuple of names and numbers, such as (seed, 'train', iteration, slot)."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, 'big'))


class Task:
    """
    What the tasks share. A task is a dataclass: its fields are its parameters. It says which `symbols` it uses, the
    accuracy of a guess (`chance`), the least `min_length`, and the `period` that a rotation could lock onto, if any. Three
    methods define it: inputs(rng, batch, length) draws x (B, T), targets(x) is y (B, T), and accepts(x, y) is the checker of
    one string, two lists of ints.
    """
    floor = 0.0  # attainable loss in nats
    period = None
    bos = ''  # the symbol that every string starts with, if any
    headline = None  # (group, label) of `breakdown` that is the accuracy to report; None: all targets
    generates = False  # are the model's answers the next symbols of its input?

    @property
    def pattern(self):
        """The regular expression of one symbol, the longest symbols first."""
        return '|'.join(map(re.escape, sorted(self.symbols, key=len, reverse=True)))

    @functools.cached_property
    def encoding(self):
        """A tiktoken.Encoding with one token per symbol, in the order of `symbols`."""
        return tiktoken.Encoding(str(self), pat_str=self.pattern, special_tokens={},
                                 mergeable_ranks={symbol.encode(): i for i, symbol in enumerate(self.symbols)})

    def encode(self, text):
        """Text to token ids (T,). Raises ValueError for what is not a symbol of the task."""
        known = re.compile(self.pattern)
        position = 0
        while position < len(text):
            match = known.match(text, position)
            if match is None:
                raise ValueError(f'{text[position]!r}, character {position} of {text!r}, is not a symbol of {self}: '
                                 f'its symbols are {" ".join(self.symbols)}')
            position = match.end()
        return np.array(self.encoding.encode(text), dtype=np.int64)

    def decode(self, ids):
        return self.encoding.decode([int(i) for i in ids])

    def sample(self, rng, batch, length):
        """Draw x, y: two (batch, length) int64 arrays. Raises ValueError if the length is too short for the task."""
        if length < self.min_length:
            raise ValueError(f'length={length} is too short for {self}: it needs at least {self.min_length}')
        x = self.inputs(rng, batch, length)
        return x, self.targets(x)

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
    Digits and a clock that nobody shows: y_t = (x_t + t + c) mod `modulus`, with c given by the first token.

        x  C2 5 0 3 6 1        t = 1: 5 + 1 + 2 = 8 = 1 mod 7
        y  .  1 4 1 5 1        t = 2: 0 + 2 + 2 = 4; t = 3: 3 + 3 + 2 = 1; t = 4: 6 + 4 + 2 = 5; t = 5: 1 + 5 + 2 = 1

    Needs t mod modulus, counted from the start: one rotary pair at 2 pi j / modulus can do it. The count reaches back to
    one first token among t, so length dilutes it. Chance 1/modulus (ln 7 = 1.946 nats by default), floor 0.
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
        """The clock's start, where it is C0: a score's phase may turn with c, and would cancel over all of them."""
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


TASKS = {task.name: task for task in (Dyck, BioRotation, Modulo, Spacing, Lag, Sum)}


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
