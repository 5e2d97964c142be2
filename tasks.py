"""
The tasks: formal languages whose answers are known, and plain text.

    task = make_task('dyck:k=3,max_depth=8')
    x, y = task.sample(make_rng(seed, 'train', 0), batch=64, length=64)

x and y are (B, T) int64: B strings of T tokens. y is the answer at each position, or -1 where the
string determines none. Dyck asks which closer comes, never whether one does. So a model can reach
a loss of 0 on every task but text.

The Bifocal Attention paper (arXiv 2601.22402) names bio_rotation and modulo without defining them.
Their definitions here are our reconstruction.
"""

import dataclasses
import functools
import hashlib
import re

import numpy as np

from configurator import nearest
from model import UserError
from text import encode_texts, list_symbols, make_encoding, read_encoding, read_files, read_texts

DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'


def make_rng(*names):
    """A numpy Generator of its own for each tuple of names and numbers, as (seed, 'train', 3)."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, 'big'))


class Task:
    """
    What all tasks share. A task of your own is a dataclass with an entry in TASKS. Its fields are
    its parameters: int, float or str, each with a default. It must have

        name        str: its key in TASKS
        symbols     list of str: what each token id stands for; no symbol has a space
        min_length  int: tokens of the shortest string
        chance      float: the accuracy of a guess
        inputs      method: samples strings
        targets     method: gives the answers

    and it may replace every other attribute and method below. With `generates` it also needs the
    method completion(x): the symbols (n,) that must follow the start x (T,) of a string. A task
    that opens a file has it in the parameter `path`, and a `record` of what it holds.
    """
    min_loss = 0.0  # attainable loss in nats; nan: unknown
    period = None  # tokens; a period that a rotation could find
    bos = ''  # the symbol that starts every string
    form = '.*'  # a regular expression that every string fits
    headline = None  # (group, label) of `breakdown`: the accuracy to report; None: of all targets
    generates = False  # answers are the next symbols, and `completion` gives the last of them
    open_ended = False  # a string has many right continuations

    def inputs(self, rng, batch, length):
        """Sample strings with the numpy Generator: x (batch, length) int64."""

    def targets(self, x):
        """The answers to x (B, T): y (B, T) int64, -1 where the input determines none."""

    def breakdown(self, x, y):
        """Parts of the targets: {group: {label: (B, T) bool}}. eval.py measures each of them."""
        return {}

    def record(self):
        """What identifies data that may differ on another machine: a dict of plain values."""
        return {}

    @functools.cached_property
    def tokenizer(self):
        """A tiktoken.Encoding with a token for each symbol, in the order of `symbols`."""
        longest_first = sorted(map(re.escape, self.symbols), key=len, reverse=True)
        symbols = [symbol.encode() for symbol in self.symbols]
        return make_encoding(str(self), '|'.join(longest_first), symbols)

    def encode(self, text):
        """Token ids (T,) of a text without its spaces. Raises UserError for an unknown symbol."""
        text = text.replace(' ', '')
        ids = self.tokenizer.encode(text)
        if self.decode(ids) != text:
            known = ' '.join(self.symbols)
            raise UserError(f'{text!r} has other symbols than those of {self}: {known}')
        return np.array(ids, dtype=np.int64)

    def decode(self, ids):
        return self.tokenizer.decode([int(i) for i in ids])

    def sample(self, rng, batch, length, split='train'):
        """x and y, (batch, length) int64. Raises UserError for a length that does not fit."""
        if length < self.min_length:
            raise UserError(f'{length} tokens (block_size) are too few for {self}: '
                            f'it needs at least {self.min_length}')
        x = self.inputs(rng, batch, length)
        return x, self.targets(x)

    def __str__(self):
        """The task as `make_task` reads it, with the parameters that are not the defaults."""
        values = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
        changed = [f'{f.name}={value}' for f, value in values if value != f.default]
        return f'{self.name}:{",".join(changed)}'.rstrip(':')

    def require(self, name, low, high):
        """Raise UserError unless the parameter is from low to high."""
        value = getattr(self, name)
        if not low <= value <= high:
            raise UserError(f'{self.name}:{name}={value}: must be from {low} to {high}')


def label_runs(mask, values, ranges=None):
    """
    {label: mask & (low <= values <= high)} for each of the ranges (low, high) that occurs; without
    ranges, for each value.
    """
    if ranges is None:
        ranges = [(value, value) for value in np.unique(values).tolist()]
    runs = {}
    for low, high in ranges:
        label = f'{low}-{high}'
        if low == high:
            label = f'{low}'
        elif high == np.inf:
            label = f'>={low}'
        inside = mask & (low <= values) & (values <= high)
        if inside.any():
            runs[label] = inside
    return runs


@dataclasses.dataclass
class Dyck(Task):
    """
    Dyck-k: nested brackets of k types. Which bracket closes the innermost open one?

        x  ^ ( [ ] { ( ) } )
        y  . . ] . . ) } ) .        y_t is x_{t+1} where x_{t+1} closes a bracket

    At depth 0 a bracket opens. At depth `max_depth` one closes. Where the rest of the string has
    just room for the closers, one closes, too. Elsewhere one opens with probability `p_open`.
    Over half of the closers stand right after their opener, so the last token tells them. The
    others, the non-trivial ones, have chance 1/k.
    """
    k: int = 3
    max_depth: int = 8
    p_open: float = 0.5
    name = 'dyck'
    headline = ('closers', 'non-trivial')
    generates = True
    min_length = 3
    bos = '^'
    form = r'\^[^^]*'
    openers = '([{<' + 'abcdefghijklmnopqrstuvwxyz'
    closers = ')]}>' + 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'

    def __post_init__(self):
        self.require('k', 1, len(self.openers))
        self.require('max_depth', 1, 10**6)
        self.require('p_open', 0, 1)
        # ids: openers 0 ... k - 1, their closers k ... 2k - 1, then bos
        self.symbols = list(self.openers[:self.k] + self.closers[:self.k] + self.bos)
        self.chance = 1 / self.k

    def inputs(self, rng, batch, length):
        """All strings grow together, a bracket at a time. Each has a stack of its open brackets."""
        n = length // 2 * 2  # brackets after bos; of an odd number the last is cut off
        coin = rng.random((n, batch)) < self.p_open
        kind = rng.integers(0, self.k, (n, batch))
        rows = np.arange(batch)
        stack = np.zeros((batch, n), dtype=np.int64)
        depth = np.zeros(batch, dtype=np.int64)
        x = np.full((batch, 1 + n), 2 * self.k)  # bos, then brackets
        for t in range(n):
            has_room = (depth < self.max_depth) & (depth < n - t)
            opens = (depth == 0) | (coin[t] & has_room)
            top = np.where(opens, depth, depth - 1)  # where it opens a bracket, or closes one
            stack[rows, top] = np.where(opens, kind[t], stack[rows, top])
            x[:, 1 + t] = stack[rows, top] + np.where(opens, 0, self.k)
            depth = np.where(opens, depth + 1, depth - 1)
        return x[:, :length]

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, :-1] = np.where(x[:, 1:] >= self.k, x[:, 1:], -1)
        return y

    def completion(self, x):
        """The closers that x (T,) waits for. Raises UserError for a closer that does not match."""
        waiting = []
        for symbol in map(int, x[1:]):
            if symbol < self.k:
                waiting.append(symbol + self.k)
            elif not waiting or waiting.pop() != symbol:
                wrong = f'{self.symbols[symbol]} matches no open bracket'
                raise UserError(f'{self.decode(x)!r} is not a string of {self}: {wrong}')
        return np.array(waiting[::-1], dtype=np.int64)

    def depth(self, x):
        """Open brackets after each symbol of x (B, T)."""
        return np.cumsum(np.where(x < self.k, 1, -1), axis=1) + 1  # bos opens none

    def breakdown(self, x, y):
        opens, depth = x < self.k, self.depth(x)
        position = np.arange(x.shape[1])
        distance = np.zeros_like(x)  # from the target to its opener
        for level in range(1, depth.max() + 1):
            openers = np.where(opens & (depth == level), position, -1)
            latest = np.maximum.accumulate(openers, axis=1)
            distance = np.where(depth == level, position + 1 - latest, distance)
        scored = y >= 0
        nontrivial = scored & ~opens
        # always odd: the brackets in between match
        distances = [(3, 9), (11, 31), (33, 99), (101, np.inf)]
        return {
            'closers': {'all': scored, 'non-trivial': nontrivial},
            'distance to the opener': label_runs(nontrivial, distance, distances),
            'depth': label_runs(nontrivial, depth),
        }


@dataclasses.dataclass
class BioRotation(Task):
    """
    A DNA strand on a helix with `period` bases a turn. Which base is at this angle?

        x  ^ A C G T T G C A A G . . . . . . . . . . . . .        period=10
        y  . . . . . . . . . . . A C G T T G C A A G A C G        blank tau: base tau mod period

    All blanks are equal, so only the position tells the answer. Chance 1/4.
    """
    period: int = 10
    name = 'bio_rotation'
    symbols = list('^ACGT.')
    chance = 1 / 4
    bos = '^'

    def __post_init__(self):
        self.require('period', 1, 10**6)
        self.form = rf'\^[ACGT]{{{self.period}}}\.+'
        self.min_length = 1 + self.period + 1

    def inputs(self, rng, batch, length):
        x = np.full((batch, length), 5)
        x[:, 0] = 0
        x[:, 1:1 + self.period] = rng.integers(1, 5, (batch, self.period))
        return x

    def targets(self, x):
        y = np.full_like(x, -1)
        tau = np.arange(x.shape[1] - 1 - self.period)
        y[:, 1 + self.period:] = x[:, 1 + tau % self.period]
        return y

    def breakdown(self, x, y):
        tau = np.arange(x.shape[1]) - 1 - self.period
        turn = np.maximum(tau, 0) // self.period + 1
        return {'turn': label_runs(y >= 0, turn)}


@dataclasses.dataclass
class Modulo(Task):
    """
    Digits and a hidden clock: y_t = (x_t + t + c) mod `modulus`. The first token gives c.

        x  C2 5 0 3 6 1        t = 1: 5 + 1 + 2 = 8 = 1 mod 7
        y  .  1 4 1 5 1        t = 2: 0 + 2 + 2 = 4; t = 3: 3 + 3 + 2 = 1

    A rotary pair with frequency 2 pi j / modulus can count t. The longer the string, the harder
    it is to find the first token in it. Chance 1/modulus.
    """
    modulus: int = 7
    name = 'modulo'
    min_length = 2
    form = 'C.+'

    def __post_init__(self):
        self.require('modulus', 2, len(DIGITS))
        digits = DIGITS[:self.modulus]
        self.symbols = [*digits, *(f'C{digit}' for digit in digits)]
        self.chance, self.period = 1 / self.modulus, self.modulus

    def inputs(self, rng, batch, length):
        x = rng.integers(0, self.modulus, (batch, length))
        x[:, 0] += self.modulus  # C<c> is token modulus + c
        return x

    def targets(self, x):
        y = (x + np.arange(x.shape[1]) + x[:, :1]) % self.modulus
        y[:, 0] = -1
        return y

    def breakdown(self, x, y):
        T = x.shape[1]
        octaves = [(0, 0)] + [(2**i, 2 ** (i + 1) - 1) for i in range(T.bit_length())]
        return {'position': label_runs(y >= 0, np.arange(T), octaves)}


@dataclasses.dataclass
class Text(Task):
    """
    Plain text: what comes next?

        x  d e f n o r        y_t = x_{t+1}
        y  e f n o r m

    `path` is a file, or a folder with UTF-8 files; '' is the Python standard library. The file
    text.py cuts it into splits. `encoding` is 'bytes', or a name that tiktoken knows, such as
    'gpt2'. The encoding's end of text closes each file, for bytes a zero. Chance is that of a
    random token.
    """
    path: str = ''
    encoding: str = 'bytes'
    name = 'text'
    min_loss = float('nan')
    min_length = 1
    open_ended = True

    def __post_init__(self):
        self.symbols = list_symbols(self.tokenizer)
        self.chance = 1 / len(self.symbols)

    @functools.cached_property
    def tokenizer(self):
        return read_encoding(self.encoding)

    def encode(self, text):
        return np.array(self.tokenizer.encode_ordinary(text), dtype=np.int64)

    def decode(self, ids):
        """The text of ids, without those that the encoding does not have."""
        size = len(self.symbols)
        return self.tokenizer.decode([int(i) for i in ids if i < size and self.symbols[i]])

    def encode_files(self, texts):
        """The tokens (n,) of each text, in the smallest unsigned type, with the end of text."""
        return encode_texts(texts, self.encoding, self.tokenizer)

    @functools.cached_property
    def tokens(self):
        """{split: (n,) unsigned}: its files one behind the other."""
        nothing = np.zeros(0, dtype=np.uint8)  # for a split without files
        return {split: np.concatenate([nothing, *self.encode_files(files.values())])
                for split, files in read_files(self.path).items()}

    def record(self):
        digest = hashlib.sha256(b''.join(self.tokens.values())).hexdigest()
        tokens = {split: len(ids) for split, ids in self.tokens.items()}
        _, left_out = read_texts(self.path)
        return dict(sha256=digest, tokens=tokens, files_left_out=len(left_out))

    def sample(self, rng, batch, length, split='train'):
        """Windows x of a split, and y one token on. Raises UserError if a split is too small."""
        n, smallest = min((len(tokens), name) for name, tokens in self.tokens.items())
        if n <= length:
            raise UserError(f'{length} tokens and the next one are too many for {self}: its '
                            f'{smallest} split has {n} (validation and test have 5 % each)')
        start = rng.integers(0, len(self.tokens[split]) - length, (batch, 1))
        windows = self.tokens[split][start + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
        return windows[:, :-1], windows[:, 1:]


TASKS = {task.name: task for task in (Dyck, BioRotation, Modulo, Text)}  # yours goes here


def make_task(spec):
    """The task of 'name' or 'name:key=value,...'. Raises UserError for what does not exist."""
    name, _, parameters = spec.partition(':')
    if name not in TASKS:
        raise UserError(f'task {name!r} does not exist{nearest(name, TASKS)}')
    fields = {field.name: field for field in dataclasses.fields(TASKS[name])}
    values = {}
    # a comma that no key= follows belongs to the value, such as a path
    for parameter in filter(None, re.split(r',(?=\w+=)', parameters)):
        key, equals, text = parameter.partition('=')
        if not equals or key in values:
            raise UserError(f'{name}:{parameter}: parameters are written key=value, once')
        if key not in fields:
            hint = nearest(key, fields)
            if isinstance(getattr(TASKS[name], key, None), (int, float, str)):
                hint = ': write its type in the class'
            raise UserError(f'{name}:{key} is no parameter{hint}')
        kind = fields[key].type
        try:
            values[key] = kind(text)
        except ValueError:
            raise UserError(f'{name}:{key}={text!r}: must be {kind.__name__}') from None
    return TASKS[name](**values)


def without_path(task):
    """A task, or its spec, without where its text lies: seeds and results do not depend on that."""
    return re.sub(r'path=.*?(,(?=\w+=)|$)', '', str(task)).rstrip(':,')
