"""
The tasks: formal languages whose answers are known, and plain text.

    task = make_task('dyck:k=3,max_depth=8')
    x, y = task.sample(make_rng(seed, 'train', 0), batch=64, length=64)

x and y are (B, T) int64: B strings of T tokens. y is the answer at each position, or -1 where the
input determines none. So a model can reach a loss of 0 on every task but text.

The Bifocal Attention paper (arXiv 2601.22402) names bio_rotation and modulo without defining them.
Their definitions here are our reconstruction.
"""

import bisect
import dataclasses
import difflib
import functools
import hashlib
import os
import re
import sysconfig
from pathlib import Path

import numpy as np
import tiktoken

from model import UserError

DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'
SPLITS = ('train', 'validation', 'test')
SKIPPED = ('__pycache__', 'site-packages', 'dist-packages')  # folders
LAB_NOTE = 'the folder lab/ adds others'


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
            shortest = f'it needs at least {self.min_length}'
            raise UserError(f'length={length} is too short for {self}: {shortest}')
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


def label_runs(mask, values, ranges):
    """{label: mask & (low <= values <= high)} for each of the ranges (low, high) that occurs."""
    runs = {}
    for low, high in ranges:
        label = f'{low}' if low == high else f'{low}-{high}'
        if high == np.inf:
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

    At depth 0 a bracket opens. At depth `max_depth` one closes, and also when only the closers
    still fit in. Elsewhere both have probability 1/2. Over half of the closers stand right after
    their opener, so the last token tells them. The others, the non-trivial ones, have chance 1/k.
    """
    k: int = 3
    max_depth: int = 8
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
        # ids: openers 0 ... k - 1, their closers k ... 2k - 1, then bos
        self.symbols = list(self.openers[:self.k] + self.closers[:self.k] + self.bos)
        self.chance = 1 / self.k

    def inputs(self, rng, batch, length):
        D = self.max_depth
        n = length // 2 * 2  # brackets: length - 1 of them, made even; the last may be cut off
        # The depth is a free walk, folded at 0 and D, until only the closers still fit in.
        walk = np.cumsum(1 - 2 * rng.integers(0, 2, (batch, n), dtype=np.int32), axis=1)
        folded = D - np.abs(walk % (2 * D) - D)
        depth = np.minimum(folded, np.arange(n - 1, -1, -1))  # after each bracket
        opens = np.diff(depth, axis=1, prepend=0) > 0
        level = np.where(opens, depth, depth + 1)  # the depth that a bracket opens or closes
        # Of one level, openers and closers alternate: sorted, each closer follows its opener.
        order = np.argsort(level.astype(np.uint16), axis=1, kind='stable')
        brackets = rng.integers(0, self.k, (batch, n))
        openers = np.take_along_axis(brackets, order[:, 0::2], axis=1)
        np.put_along_axis(brackets, order[:, 1::2], openers + self.k, axis=1)
        return np.insert(brackets[:, :length - 1], 0, 2 * self.k, axis=1)

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
        distances = [(3, 9), (11, 31), (33, 99), (101, np.inf)]
        depths = [(d, d) for d in range(1, depth.max() + 1)]
        return {
            'closers': {'all': scored, 'non-trivial': nontrivial},
            'distance to the opener': label_runs(nontrivial, distance, distances),
            'depth': label_runs(nontrivial, depth, depths),
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
        turns = [(i, i) for i in range(1, turn.max() + 1)]
        return {'turn': label_runs(y >= 0, turn, turns)}


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

        x  d e f n o r m        y_t = x_{t+1}
        y  e f n o r m .

    `path` is a file, or a folder with UTF-8 files; '' is the Python standard library. Its splits:
    see `read_files`. `encoding` is 'bytes', or a name that tiktoken knows, such as 'gpt2'. The
    encoding's end of text closes each file, for bytes a zero. Chance is that of a random token.
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
        if self.encoding == 'bytes':
            return [np.frombuffer(text.encode() + b'\0', dtype=np.uint8) for text in texts]
        end = self.tokenizer.eot_token
        dtype = np.min_scalar_type(self.tokenizer.n_vocab - 1)
        ids = self.tokenizer.encode_ordinary_batch(list(texts))
        return [np.array([*one, end], dtype=dtype) for one in ids]

    @functools.cached_property
    def tokens(self):
        """{split: (n,) unsigned}: its files one behind the other."""
        nothing = np.zeros(0, dtype=np.uint8)  # for a split without files
        return {split: np.concatenate([nothing, *self.encode_files(files.values())])
                for split, files in read_files(self.path).items()}

    def record(self):
        digest = hashlib.sha256(b''.join(self.tokens.values())).hexdigest()
        return dict(sha256=digest, tokens={split: len(ids) for split, ids in self.tokens.items()})

    def sample(self, rng, batch, length, split='train'):
        """Windows x of a split, and y one token on. Raises UserError if a split is too small."""
        n, smallest = min((len(tokens), name) for name, tokens in self.tokens.items())
        if n <= length:
            fits = f'at most {n - 1} fits' if n > 1 else 'it needs more text, or more files'
            fits += '; validation and test have 5 % of the text each'
            size = f'the {smallest} split of {self} has only {n} tokens'
            raise UserError(f'block_size={length}: {size}; {fits}')
        start = rng.integers(0, len(self.tokens[split]) - length, (batch, 1))
        windows = self.tokens[split][start + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
        return windows[:, :-1], windows[:, 1:]


def read_encoding(name):
    """
    The tiktoken.Encoding of that name; 'bytes' has a token for each byte. Raises UserError for
    an unknown name, and for a vocabulary that cannot be downloaded.
    """
    if name == 'bytes':
        return make_encoding(name, r'[\s\S]', [bytes([i]) for i in range(256)])
    names = ['bytes', *tiktoken.list_encoding_names()]
    if name not in names:
        raise UserError(f'text:encoding={name} does not exist{nearest(name, names)} ({LAB_NOTE})')
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # ValueError: not the bytes that tiktoken expects
        offline = 'offline, use encoding=bytes, or a TIKTOKEN_CACHE_DIR that has it'
        raise UserError(f'text:encoding={name}: tiktoken could not download it '
                        f'({type(error).__name__}); {offline}') from error


def make_encoding(name, pattern, symbols):
    """A tiktoken.Encoding whose tokens are these bytes; `pattern` cuts a text into them."""
    ranks = {symbol: i for i, symbol in enumerate(symbols)}
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def list_symbols(encoding):
    """A printable name for each token of an encoding; '' for the ids that it leaves out."""
    symbols = []
    for i in range(encoding.n_vocab):
        try:
            text = encoding.decode_single_token_bytes(i).decode(errors='backslashreplace')
        except KeyError:
            text = ''
        printable = [c if c.isprintable() else f'\\x{ord(c):02x}' for c in text]
        symbols.append(''.join(printable))
    return symbols


@functools.lru_cache(maxsize=4)
def read_files(path):
    """
    {split: {name: text}} of the UTF-8 text at `path` ('': the standard library), held once a
    process. A single file is cut: its end is for validation and test. In a folder, a hash of its
    name puts each file into one split, nine of ten into train. Of equal files the first counts.
    Files that are not UTF-8 are left out. Raises UserError if there is no UTF-8 text.
    """
    place = Path(os.path.expanduser(path) or sysconfig.get_path('stdlib'))
    if not os.path.exists(place):
        raise UserError(f'text:path={path}: {place} does not exist')
    texts, problem = {}, f'{place} has no files'
    for name in find_files(place, '*' if path else '*.py'):
        try:
            texts.setdefault((place / name).read_bytes().decode(), name)
        except OSError as error:
            raise UserError(f'text:path={path}: {place / name}: {error.strerror}') from None
        except UnicodeDecodeError as error:  # an image, or text in another encoding
            problem = f'{place / name} is not UTF-8 (at byte {error.start}); convert it with iconv'
    if not texts:
        raise UserError(f'text:path={path}: {problem}')
    if place.is_file():
        (text,) = texts
        return {split: {place.name: part} for split, part in zip(SPLITS, cut_text(text))}
    splits = {split: {} for split in SPLITS}
    for text, name in texts.items():
        share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], 'big') / 2**32
        split = SPLITS[bisect.bisect([0.9, 0.95], share)]
        if text.strip():
            splits[split][name] = text
    return splits


def find_files(place, pattern):
    """The names, sorted, of the files in a folder that are not hidden; of a single file, ''."""
    if os.path.isfile(place):
        return ['']
    names = []
    for file in place.rglob(pattern):
        parts = file.relative_to(place).parts
        hidden = [part for part in parts if part[0] == '.' or part in SKIPPED]
        if os.path.isfile(file) and not hidden:
            names.append('/'.join(parts))
    return sorted(names)


def cut_text(text):
    """90, 5 and 5 % of a text, cut at the next line end, or anywhere if none is near."""
    cuts = []
    for percent in (90, 95):
        cut = len(text) * percent // 100
        line_end = text.find('\n', cut, cut + len(text) // 25)
        cuts.append(cut if line_end < 0 else line_end + 1)
    return text[:cuts[0]], text[cuts[0]:cuts[1]], text[cuts[1]:]


TASKS = {task.name: task for task in (Dyck, BioRotation, Modulo, Text)}  # yours goes here


def make_task(spec):
    """The task of 'name' or 'name:key=value,...'. Raises UserError for what does not exist."""
    name, _, parameters = spec.partition(':')
    if name not in TASKS:
        raise UserError(f'task {name!r} does not exist{nearest(name, TASKS)} ({LAB_NOTE})')
    fields = {field.name: field for field in dataclasses.fields(TASKS[name])}
    values = {}
    for parameter in filter(None, parameters.split(',')):
        key, equals, text = parameter.partition('=')
        if key not in fields and hasattr(TASKS[name], key):
            raise UserError(f'{name}:{key} is no parameter: write its type in the class')
        if key not in fields:
            raise UserError(f'{name}:{key} does not exist{nearest(key, fields)} ({LAB_NOTE})')
        if not equals or key in values:
            raise UserError(f'{name}:{parameter}: parameters are written key=value, once')
        field = fields[key]
        try:
            values[key] = field.type(text)
        except ValueError:
            type_name = field.type.__name__
            raise UserError(f'{name}:{key}={text!r}: must be {type_name}') from None
    return TASKS[name](**values)


def names_a_file(spec):
    """Whether make_task(spec) opens a file, or a vocabulary, that the spec names."""
    return bool(re.search('path=|encoding=', spec))


def find_task(checkpoint, spec=None):
    """
    The task of a checkpoint. A checkpoint may come from a stranger, so no file is opened because
    the checkpoint names it: then the user must give the task in `spec`. Raises UserError without
    it, and if `spec` is another task or another text than in training.
    """
    trained = checkpoint['task']
    if not spec and names_a_file(trained):
        raise UserError(f'the run was trained on {trained}: give --task={trained} to open that')
    task = make_task(spec or trained)
    same = without_path(str(task)) == without_path(trained)
    same = same and task.record() == checkpoint['data']
    fits = len(task.symbols) <= checkpoint['model_args']['vocab_size']
    if not fits or (spec and not same):
        raise UserError(f'task={task}: the run was trained on {trained}, and that is not the same')
    if not same:
        print(f'the text of {task} is not what it was in training: the model may know some of it')
    return task


def without_path(spec):
    return re.sub('path=[^,]*,?', '', spec).rstrip(',:')


def nearest(name, names):
    """'; did you mean X? there are X, Y, Z': the tail of an error about an unknown name."""
    close = difflib.get_close_matches(name, names, n=1)
    question = f' did you mean {close[0]!r}?' if close else ''
    return f';{question} there are {", ".join(names)}'
