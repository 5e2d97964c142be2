"""
The tasks: formal languages whose answers are known, so that a loss means something; and plain text.

    task = make_task('dyck:k=3,max_depth=8')        # a name, and parameters that differ from the defaults
    x, y = task.sample(stream(seed, 'train', 0), batch=64, length=64)

x and y are (B, T) int64. y is the answer at each position, and -1 where the input determines none. So every task but
text can be solved to a loss of 0. The Bifocal Attention paper (arXiv 2601.22402) names bio_rotation and modulo but does
not define them; what they are here is our reconstruction. lab/tasks.py has more tasks.
"""

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import re
import sysconfig
from pathlib import Path

import numpy as np
import tiktoken

DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'
SPLITS = ('train', 'validation', 'test')
NO_SOURCES = ('__pycache__', 'site-packages', 'dist-packages')


def stream(*names):
    """A numpy Generator of its own for every tuple of names and numbers, such as (seed, 'train', iteration, slot)."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, 'big'))


class Task:
    """
    What the tasks share. A task is a dataclass whose fields are its parameters. It says its `name` and `symbols`, the
    accuracy of a guess (`chance`) and the `min_length`. Two methods define it: `inputs` and `targets`.
    """
    floor = 0.0  # attainable loss in nats; nan where nobody knows it
    period = None  # tokens; what a rotation could find, if there is one
    bos = ''  # the symbol that every string starts with, if any
    form = '.*'  # the regular expression of its strings
    headline = None  # (group, label) of `breakdown` that is the accuracy to report; None: all targets
    generates = False  # are the answers the next symbols of the input? Then `completion(x)` says what ends x (T,)
    open_ended = False  # has a string no one right continuation?

    def inputs(self, rng, batch, length):
        """Draw strings: x (batch, length) int64."""

    def targets(self, x):
        """What a reader of x (B, T) should answer at each place: y (B, T) int64, -1 where the input does not say."""

    def breakdown(self, x, y):
        """{group: {label: (B, T) bool mask of targets}}: eval.py gives an accuracy for each."""
        return {}

    def record(self):
        """What a run should remember of data that may differ elsewhere: a dict."""
        return {}

    @functools.cached_property
    def tokenizer(self):
        """A tiktoken.Encoding with one token for each symbol, in the order of `symbols`."""
        longest_first = sorted(map(re.escape, self.symbols), key=len, reverse=True)
        return tiktoken.Encoding(str(self), pat_str='|'.join(longest_first), special_tokens={},
                                 mergeable_ranks={symbol.encode(): i for i, symbol in enumerate(self.symbols)})

    def encode(self, text):
        """Text to token ids (T,); spaces do not count. Raises ValueError for what is not a symbol of the task."""
        ids = self.tokenizer.encode(text.replace(' ', ''))
        if self.decode(ids) != text.replace(' ', ''):
            raise ValueError(f'{text!r} has other symbols than those of {self}: {" ".join(self.symbols)}')
        return np.array(ids, dtype=np.int64)

    def decode(self, ids):
        return self.tokenizer.decode([int(i) for i in ids])

    def sample(self, rng, batch, length, split='train'):
        """Draw x, y, (batch, length) int64 each. Raises ValueError if the length is too short for the task."""
        if length < self.min_length:
            raise ValueError(f'length={length} is too short for {self}: it needs at least {self.min_length}')
        x = self.inputs(rng, batch, length)
        return x, self.targets(x)

    def __str__(self):
        values = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
        parameters = ','.join(f'{name}={value}' for name, value, default in values if value != default)
        return f'{self.name}:{parameters}'.rstrip(':')

    def require(self, name, low, high):
        if not low <= getattr(self, name) <= high:
            raise ValueError(f'{self.name}:{name}={getattr(self, name)}: must be from {low} to {high}')


def label_runs(mask, values, edges):
    """{label: mask & (low <= values <= high)} for each (low, high) of edges that occurs."""
    runs = {}
    for low, high in edges:
        label = f'{low}' if low == high else f'{low}-{high}' if high < np.inf else f'>={low}'
        chosen = mask & (low <= values) & (values <= high)
        runs |= {label: chosen} if chosen.any() else {}
    return runs


@dataclasses.dataclass
class Dyck(Task):
    """
    Dyck-k: nested brackets of k kinds. Which bracket closes this one?

        x  ^ ( [ ] { ( ) } )
        y  . . ] . . ) } ) .        y_t is x_{t+1} where that closes a bracket (its kind is on top of the stack)

    It opens at depth 0, closes at `max_depth` and when only the closers have room left, else does either. Over
    half of all closers follow their opener and can be copied. The non-trivial ones follow another closer: there a guess
    has chance 1/k. Floor 0.
    """
    k: int = 3
    max_depth: int = 8
    name = 'dyck'
    headline = ('closers', 'non-trivial')
    generates = True
    min_length = 3
    bos = '^'
    form = r'\^[^^]*'
    openers, closers = '([{<' + 'abcdefghijklmnopqrstuvwxyz', ')]}>' + 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'

    def __post_init__(self):
        self.require('k', 1, len(self.openers))
        self.require('max_depth', 1, 10**6)
        self.symbols = list(self.openers[:self.k] + self.closers[:self.k] + self.bos)
        self.chance = 1 / self.k

    def inputs(self, rng, batch, length):
        """
        The depth is a free walk, folded where it would leave 0 ... max_depth, and capped by the steps that are left. It
        meets that line on an even step, and follows it down to 0. Of an odd number of brackets the last is cut.
        """
        n, D = length // 2 * 2, self.max_depth  # brackets: length - 1 of them, made even
        walk = np.cumsum(1 - 2 * rng.integers(0, 2, (batch, n), dtype=np.int32), axis=1)
        depth = np.minimum(D - np.abs(walk % (2 * D) - D), np.arange(n - 1, -1, -1))  # after each symbol
        opens = np.diff(depth, axis=1, prepend=0) > 0
        level = depth + ~opens  # the depth that a bracket opens, or that it closes
        # the brackets of one level alternate, opened, closed, opened: sorted by level, each closer follows its opener
        order = np.argsort(level.astype(np.uint16), axis=1, kind='stable')
        kind = rng.integers(0, self.k, (batch, n))
        matching = np.take_along_axis(kind, order[:, 0::2], axis=1)
        np.put_along_axis(kind, order[:, 1::2], matching + self.k, axis=1)
        return np.concatenate([np.full((batch, 1), 2 * self.k), kind[:, :length - 1]], axis=1)

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, :-1] = np.where(x[:, 1:] >= self.k, x[:, 1:], -1)
        return y

    def completion(self, x):
        """The closers that x (T,) waits for. Raises ValueError for a closer that does not match."""
        waiting = []
        for symbol in map(int, x[1:]):
            if symbol < self.k:
                waiting.append(symbol + self.k)
            elif not waiting or waiting.pop() != symbol:
                raise ValueError(f'{self.decode(x)!r} is not a string of {self}: {self.symbols[symbol]} closes nothing')
        return np.array(waiting[::-1], dtype=np.int64)

    def depth(self, x):
        return np.cumsum(np.where(x < self.k, 1, -1), axis=1) + 1  # brackets open after each symbol; ^ opens none

    def breakdown(self, x, y):
        opens, depth = x < self.k, self.depth(x)
        distance = np.zeros_like(x)
        for level in range(1, depth.max() + 1):  # the last opener of this level
            opened = np.maximum.accumulate(np.where(opens & (depth == level), np.arange(x.shape[1]), -1), axis=1)
            distance = np.where(depth == level, np.arange(x.shape[1]) + 1 - opened, distance)
        scored = y >= 0
        nontrivial = scored & ~opens
        return {
            'closers': {'all': scored, 'non-trivial': nontrivial},
            'distance to the opener': label_runs(nontrivial, distance, [(3, 9), (11, 31), (33, 99), (101, np.inf)]),
            'depth': label_runs(nontrivial, depth, [(d, d) for d in range(1, depth.max() + 1)]),
        }


@dataclasses.dataclass
class BioRotation(Task):
    """
    A DNA strand wound on a helix with `period` bases a turn (B-DNA: about 10). Which base lies at this angle?

        x  ^ A C G T T G C A A G . . . . . . . . . . . . .        period=10
        y  . . . . . . . . . . . A C G T T G C A A G A C G        blank tau: base tau mod period

    Blanks carry nothing, so the answer comes by position alone: from lags period, 2 period, 3 period, ... alike.
    Chance 1/4 (ln 4 nats), floor 0.
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
        turn = np.maximum(np.arange(x.shape[1]) - 1 - self.period, 0) // self.period + 1
        return {'turn': label_runs(y >= 0, turn + 0 * x, [(i, i) for i in range(1, turn.max() + 1)])}


@dataclasses.dataclass
class Modulo(Task):
    """
    Digits and a hidden clock: y_t = (x_t + t + c) mod `modulus`, with c given by the first token.

        x  C2 5 0 3 6 1        t = 1: 5 + 1 + 2 = 8 = 1 mod 7
        y  .  1 4 1 5 1        t = 2: 0 + 2 + 2 = 4; t = 3: 3 + 3 + 2 = 1; t = 4: 6 + 4 + 2 = 5; t = 5: 1 + 5 + 2 = 1

    One rotary pair at 2 pi j / modulus can count t mod modulus. Attention must find the first token among t others, so
    longer strings dilute it. Chance 1/modulus (ln 7 = 1.946 nats by default), floor 0.
    """
    modulus: int = 7
    name = 'modulo'
    min_length = 2
    form = 'C.+'

    def __post_init__(self):
        self.require('modulus', 2, len(DIGITS))
        self.symbols = [start + digit for start in ('', 'C') for digit in DIGITS[:self.modulus]]
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
        octaves = [(0, 0)] + [(2**i, 2 ** (i + 1) - 1) for i in range(x.shape[1].bit_length())]
        return {'position': label_runs(y >= 0, np.arange(x.shape[1]) + 0 * x, octaves)}


@dataclasses.dataclass
class Text(Task):
    """
    Plain text, a byte at a time: what comes next?

        x  d e f n o r m        y_t = x_{t+1}
        y  e f n o r m .

    `path` is a file, or a folder with UTF-8 files; by default, the Python standard library's own sources. A hash of
    its path puts each file into one split: nine in ten train. A single file is cut instead: its end is for validation
    and test. The floor is unknown. lab/corpus.py has other encodings than bytes.
    """
    path: str = ''
    name = 'text'
    chance = 1 / 256
    floor = float('nan')
    min_length = 2
    open_ended = True
    symbols = [chr(i) if 32 <= i < 127 else f'\\x{i:02x}' for i in range(256)]

    def encode(self, text):
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, ids):
        return bytes(int(i) for i in ids).decode(errors='replace')

    @functools.cached_property
    def tokens(self):  # of each split, {split: (n,) uint8}; a zero ends each file
        return {split: np.frombuffer(''.join(text + '\0' for text in files.values()).encode(), dtype=np.uint8)
                for split, files in read_files(self.path).items()}

    def record(self):
        digest = hashlib.sha256(b''.join(self.tokens.values())).hexdigest()
        return dict(sha256=digest, tokens={split: len(tokens) for split, tokens in self.tokens.items()})

    def sample(self, rng, batch, length, split='train'):
        for name, tokens in self.tokens.items():
            if len(tokens) <= length:
                raise ValueError(f'block_size={length}: the {name} split of {self} has only {len(tokens)} tokens')
        start = rng.integers(0, len(self.tokens[split]) - length, batch)
        windows = self.tokens[split][start[:, None] + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
        return windows[:, :-1], windows[:, 1:]


@functools.lru_cache(maxsize=4)
def read_files(path):
    """
    {split: {name: text}} of the UTF-8 files at `path` ('': the standard library). Copies count once. Raises
    FileNotFoundError if there is none.
    """
    place, texts, splits = Path(path or sysconfig.get_paths()['stdlib']), {}, {split: {} for split in SPLITS}
    files = [place] if place.is_file() else place.rglob('*' if path else '*.py')
    for file in sorted(files, key=lambda file: file.relative_to(place).as_posix()):
        name = file.relative_to(place)
        if file.is_file() and not any(part[0] == '.' or part in NO_SOURCES for part in name.parts):
            with contextlib.suppress(UnicodeDecodeError):  # an image, or text in another encoding
                texts.setdefault(file.read_bytes().decode(), name.as_posix())
    if not texts:
        raise FileNotFoundError(f'text:path={path}: there is no UTF-8 text')
    for text, name in texts.items():
        if place.is_file():  # the last twentieths, at line ends
            cuts = [0, *(text.find('\n', len(text) * share // 100) + 1 for share in (90, 95)), len(text)]
            return {split: {place.name: text[a:b]} for split, a, b in zip(SPLITS, cuts, cuts[1:])}
        share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], 'big') / 2**32
        if text.strip():
            splits['train' if share < 0.9 else 'validation' if share < 0.95 else 'test'][name] = text
    return splits


TASKS = {task.name: task for task in (Dyck, BioRotation, Modulo, Text)}  # yours goes here
IN_LAB = ('lag', 'sum', 'spacing', 'passkey')


def make_task(spec):
    """The task that 'name' or 'name:key=value,...' describes. Raises ValueError for what does not exist."""
    name, _, parameters = spec.partition(':')
    if name not in TASKS and name not in IN_LAB:
        raise ValueError(f'task {name!r} does not exist{nearest(name, [*TASKS, *IN_LAB])}')
    kinds = TASKS
    if name in IN_LAB or re.search('encoding=|noise=', parameters):
        from lab.tasks import LAB_TASKS as kinds
    fields, chosen = {f.name: f for f in dataclasses.fields(kinds[name])}, {}
    for parameter in filter(None, parameters.split(',')):
        key, equals, text = parameter.partition('=')
        if key not in fields or not equals or key in chosen:
            raise ValueError(f'{name}:{parameter}: parameters are written key=value, once{nearest(key, fields)}')
        kind = fields[key].type
        try:
            chosen[key] = kind(text)
        except ValueError:
            raise ValueError(f'{name}:{key}={text!r}: must be {kind.__name__}, as {fields[key].default} is') from None
    return kinds[name](**chosen)


def find_task(checkpoint, spec=None):
    """
    The task of a checkpoint. No file is opened because a stranger's checkpoint names it: of a task with a path, `spec`
    is what the user gives. Raises ValueError without it, and if `spec` is another task, or another text.
    """
    trained = checkpoint['task']
    if spec is None and re.search('path=|encoding=', trained):
        raise ValueError(f'the run was trained on {trained}: give --task={trained} if that may be opened')
    task = make_task(spec or trained)
    fits = len(task.symbols) <= checkpoint['model_args']['vocab_size']
    same = str(task).partition('path=')[0] == trained.partition('path=')[0] and task.record() == checkpoint['data']
    if not fits or spec and not same:
        raise ValueError(f'task={task}: the run was trained on {trained}, and that is not the same')
    if not same:
        print(f'the text of {task} is not what it was in training: some of it may be known to the model')
    return task


def nearest(name, names):
    """'; did you mean X? there are X, Y, Z': the tail of an error about an unknown name."""
    close = difflib.get_close_matches(name, names, n=1)
    return (f'; did you mean {close[0]!r}?' if close else ';') + ' there are ' + ', '.join(names)
