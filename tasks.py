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

import functools
import hashlib
import re
from dataclasses import dataclass, fields

import numpy as np

from configurator import nearest
from model import UserError
from text import encode_texts, read_encoding, read_files

DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'


def make_rng(*names):
    """A numpy Generator of its own for each tuple of names and numbers, as (seed, 'train', 3)."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, 'big'))


class Task:
    """
    What all tasks share. A task of your own is a dataclass with an entry in TASKS. Its fields are
    its parameters: int, float, bool or str, each with a default. It must have

        name        str: its key in TASKS
        symbols     list of str: what each token id stands for; no symbol has a space
        min_length  int: tokens of the shortest string
        chance      float: the accuracy of a guess
        inputs      method: samples strings
        targets     method: gives the answers

    and it may replace every other attribute and method below. A task that opens a file has it in
    the parameter `path`.
    """
    min_loss = 0.0  # attainable loss in nats; nan: unknown
    period = None  # tokens; a period that a rotation could find
    equal = 0.0  # the chance that two strings are equal, if training meets test strings
    bos = ''  # the symbol that starts every string
    open_ended = False  # a string has many right continuations
    completion = None  # or a method: the symbols (n,) that must follow the start x (T,) of a string

    def inputs(self, rng, batch, length):
        """Sample strings with the numpy Generator: x (batch, length) int64."""

    def targets(self, x):
        """The answers to x (B, T): y (B, T) int64, -1 where the input determines none."""

    def headline(self, x, y):
        """Which targets (B, T) the accuracy to report counts. A short string may have none."""
        return y >= 0

    def record(self):
        """What identifies data that may differ on another machine: a dict of plain values."""
        return {}

    def encode(self, text):
        """Token ids (T,) of a text without its spaces. Raises UserError for an unknown symbol."""
        text = text.replace(' ', '')
        longest_first = sorted(map(re.escape, self.symbols), key=len, reverse=True)
        found = re.findall('|'.join(longest_first), text)
        if ''.join(found) != text:
            raise UserError(f'{text!r} has other symbols than {" ".join(self.symbols)}')
        return np.array([self.symbols.index(symbol) for symbol in found], dtype=np.int64)

    def decode(self, ids):
        return ''.join(self.symbols[i] for i in ids)

    def sample(self, rng, batch, length, split='train'):
        """x and y, (batch, length) int64. Raises UserError for a length that does not fit."""
        if length < self.min_length:
            raise UserError(f'{length} tokens (block_size) are too few for {self}: '
                            f'it needs at least {self.min_length}')
        x = self.inputs(rng, batch, length)
        return x, self.targets(x)

    def __str__(self):
        """The task as `make_task` reads it, with the parameters that are not the defaults."""
        changed = [f'{f.name}={getattr(self, f.name)}' for f in fields(self)
                   if getattr(self, f.name) != f.default]
        return f'{self.name}:{",".join(changed)}'.rstrip(':')

    def require(self, name, low, high):
        """Raise UserError unless the parameter is from low to high."""
        value = getattr(self, name)
        if not low <= value <= high:
            raise UserError(f'{self.name}:{name}={value}: must be from {low} to {high}')


@dataclass
class Dyck(Task):
    """
    Dyck-k: nested brackets of k types. Which bracket closes the innermost open one?

        x  ^ ( [ ] { ( ) } )
        y  . . ] . . ) } ) .        y_t is x_{t+1} where x_{t+1} closes a bracket

    At depth 0 a bracket opens. At depth `max_depth` one closes. Where the rest of the string has
    just room for the closers, one closes, too. Elsewhere one opens with probability `p_open`.
    Over half of the closers stand right after their opener, so the last token tells them. The
    headline counts the others, with chance 1/k.
    """
    k: int = 3
    max_depth: int = 8
    p_open: float = 0.5
    name = 'dyck'
    min_length = 3
    bos = '^'
    openers = '([{<abcdefghijklmnopqrstuvwxyz'
    closers = ')]}>ABCDEFGHIJKLMNOPQRSTUVWXYZ'

    def __post_init__(self):
        self.require('k', 1, len(self.openers))
        self.require('max_depth', 1, 10**6)
        self.require('p_open', 0, 1)
        # ids: openers 0 ... k - 1, their closers k ... 2k - 1, then bos
        self.symbols = list(self.openers[:self.k] + self.closers[:self.k] + self.bos)
        self.chance = 1 / self.k

    def inputs(self, rng, batch, length):
        n = length // 2 * 2  # brackets after bos; of an odd number the last is cut off
        coins = (rng.random((n, batch)) < self.p_open).T.tolist()
        kinds = rng.integers(0, self.k, (n, batch)).T.tolist()
        x = []
        for coin, kind in zip(coins, kinds):
            string, waiting = [2 * self.k], []  # waiting: the kinds of the open brackets
            for t in range(n):
                room = min(self.max_depth, n - t)
                if not waiting or (coin[t] and len(waiting) < room):
                    waiting.append(kind[t])
                    string.append(kind[t])
                else:
                    string.append(waiting.pop() + self.k)
            x.append(string[:length])
        return np.array(x, dtype=np.int64)

    def targets(self, x):
        y = np.roll(x, -1, axis=1)  # the next symbol
        y[:, -1] = -1
        return np.where(y >= self.k, y, -1)

    def headline(self, x, y):
        return (y >= 0) & (x >= self.k)  # x, the token before, is no opener

    def completion(self, x):
        """The closers that x (T,) waits for. Raises UserError for a closer that does not match."""
        waiting = []
        for symbol in x[1:]:
            if symbol < self.k:
                waiting.append(symbol + self.k)
            elif not waiting or waiting.pop() != symbol:
                raise UserError(f'{self.decode(x)!r} is not a string of {self}: '
                                f'{self.symbols[symbol]} matches no open bracket')
        return np.array(waiting[::-1], dtype=np.int64)


@dataclass
class BioRotation(Task):
    """
    A DNA strand on a helix with `period` bases a turn. Which base is at this angle?

        x  ^ A C G T T G C A A G . . . . . . . . . . . . .        period=10
        y  . . . . . . . . . . . A C G T T G C A A G A C G        blank tau: base tau mod period

    All blanks are equal, so only the position tells the answer. Chance 1/4. There are 4^period
    strands, with period=5 only 1,024: training sees them all, and no test string is new.
    """
    period: int = 10
    name = 'bio_rotation'
    symbols = list('^ACGT.')
    chance = 1 / 4
    bos = '^'

    def __post_init__(self):
        self.require('period', 1, 10**6)
        self.min_length = 2 + self.period  # ^, the strand, a blank
        self.equal = 4.0**-self.period

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


@dataclass
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


@dataclass
class Text(Task):
    """
    Plain text: what comes next?

        x  d e f n o r        y_t = x_{t+1}
        y  e f n o r m

    `path` is a file, or a folder with UTF-8 files; '' is the Python standard library. text.py
    reads it into splits, when the first window is sampled. `encoding` is 'bytes', or a name that
    tiktoken knows, such as 'gpt2'. Its end of text closes each file; for bytes that is a zero.
    Chance is that of a random token.
    """
    path: str = ''
    encoding: str = 'bytes'
    name = 'text'
    min_loss = np.nan
    min_length = 1
    open_ended = True

    def __post_init__(self):
        self.tokenizer = read_encoding(self.encoding)
        self.symbols = [f'{self.encoding}:{i}' for i in range(self.tokenizer.n_vocab)]
        self.chance = 1 / len(self.symbols)

    def encode(self, text):
        return np.array(self.tokenizer.encode_ordinary(text), dtype=np.int64)

    def decode(self, ids):
        """The text of ids, without those that the encoding does not have."""
        text = b''
        for i in ids:
            try:
                text += self.tokenizer.decode_single_token_bytes(int(i))
            except KeyError:
                continue
        return text.decode(errors='replace')

    @functools.cached_property
    def tokens(self):
        """{split: (n,) unsigned}: its files one behind the other."""
        return {split: np.concatenate(encode_texts(files.values(), self.tokenizer))
                for split, files in read_files(self.path).items()}

    def record(self):
        data = b''.join(self.tokens.values())
        return dict(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))

    def sample(self, rng, batch, length, split='train'):
        """Windows x of a split, and y one token on. Raises UserError if the split is too small."""
        tokens = self.tokens[split]
        n = len(tokens)
        if n <= length:
            raise UserError(f'{length} tokens and the next one are too many for {self}: its '
                            f'{split} split has {n}')
        start = rng.integers(0, n - length, (batch, 1))
        windows = tokens[start + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
        return windows[:, :-1], windows[:, 1:]


TASKS = {task.name: task for task in (Dyck, BioRotation, Modulo, Text)}  # yours goes here


def make_task(spec):
    """The task of 'name' or 'name:key=value,...'. Raises UserError for what does not exist."""
    name, _, parameters = spec.partition(':')
    if name not in TASKS:
        raise UserError(f'task {name!r} does not exist{nearest(name, TASKS)}')
    types = {field.name: field.type for field in fields(TASKS[name])}
    values = {}
    # a comma that no key= follows belongs to the value, such as a path
    for parameter in filter(None, re.split(r',(?=\w+=)', parameters)):
        key, _, text = parameter.partition('=')
        if key not in types:
            raise UserError(f'{name}:{key} is no parameter{nearest(key, types)}')
        kind = types[key]
        try:
            if kind is bool:
                values[key] = bool(['False', 'True'].index(text))
            else:
                values[key] = kind(text)
        except ValueError:
            raise UserError(f'{name}:{key}={text!r}: must be {kind.__name__}') from None
    return TASKS[name](**values)


def without_path(task):
    """A task, or its spec, without where its text lies: seeds and results do not depend on that."""
    return re.sub(r'(?<=[:,])path=.*?(,(?=\w+=)|$)', '', str(task)).rstrip(':,')
