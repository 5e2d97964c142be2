"""
Text in other encodings than bytes, and what an evaluation must know of a text: its files, and brackets in Python code.

    task = make_task('text:encoding=gpt2')              # of tiktoken, or encoding=hf:CHECKPOINT of Hugging Face
    corpus = read_corpus(task.path, task.encoding)['test']
"""

import dataclasses
import functools
import io
import tokenize

import numpy as np
import tiktoken

import tasks


@dataclasses.dataclass
class Text(tasks.Text):
    """
    Text, a token at a time, in the form of the page's Text, which this one equals with `encoding=bytes`:

        x  d e f n o r m        y_t = x_{t+1}
        y  e f n o r m .

    `encoding` is 'bytes', a name that tiktoken knows, such as 'gpt2', or 'hf:' and a checkpoint of Hugging Face: a
    folder, or a name on the hub. tiktoken downloads a vocabulary on first use. The encoding's end of text closes each
    file. Chance is that of a random token; the floor is unknown.
    """
    encoding: str = 'bytes'

    def __post_init__(self):
        vocabulary = read_encoding(self.encoding)
        self.symbols = tasks.Text.symbols if self.encoding == 'bytes' else list_symbols(vocabulary)
        self.chance = 1 / len(self.symbols)

    @property
    def tokenizer(self):
        return read_encoding(self.encoding)

    def encode(self, text):
        return np.array(self.tokenizer.encode_ordinary(text), dtype=np.int64)

    def decode(self, ids):
        return self.tokenizer.decode([int(i) for i in ids])

    @functools.cached_property
    def tokens(self):
        return {split: corpus.tokens for split, corpus in read_corpus(self.path, self.encoding).items()}


def list_symbols(encoding):
    """What each token of an encoding stands for; ids that the encoding leaves out stand for ''."""
    symbols = []
    for i in range(encoding.n_vocab):
        try:
            symbols.append(encoding.decode_single_token_bytes(i).decode(errors='backslashreplace'))
        except KeyError:
            symbols.append('')
    return symbols


@functools.lru_cache(maxsize=4)
def read_encoding(name):
    """
    The tiktoken.Encoding of that name. 'bytes' has a token for each byte. 'hf:CHECKPOINT' gives a
    lab.pretrained.Tokenizer, and raises what that raises. Raises ValueError for a name that does not exist, or whose
    vocabulary cannot be downloaded.
    """
    if name == 'bytes':
        return tiktoken.Encoding(name, pat_str=r'[\s\S]', special_tokens={},
                                 mergeable_ranks={bytes([i]): i for i in range(256)})
    if name.startswith('hf:'):
        from lab.pretrained import Tokenizer
        return Tokenizer(name.removeprefix('hf:'))
    if name not in tiktoken.list_encoding_names():
        names = ['bytes', *tiktoken.list_encoding_names()]
        raise ValueError(f'text:encoding={name} does not exist{tasks.nearest(name, names)}')
    try:
        return tiktoken.get_encoding(name)
    except OSError as error:  # requests' exceptions are OSErrors
        raise ValueError(f'text:encoding={name}: tiktoken cannot download its vocabulary ({type(error).__name__}); '
                         'offline, use encoding=bytes') from error


@dataclasses.dataclass(frozen=True)
class Corpus:
    """One split of a text."""
    names: list  # of its files
    tokens: np.ndarray  # (n,), the files one behind the other, in the smallest unsigned type that holds the vocabulary
    starts: np.ndarray  # (files + 1,): where each file starts, and where the last one ends
    encoding: object  # as read_encoding gives it

    def excerpts(self, length, n, rng):
        """
        n excerpts (n, length) int64, and their places (n,) in `tokens`. No two overlap, and none crosses two files.
        There are fewer if the text has no more.
        """
        starts = [np.arange(a, b - length + 1, length) for a, b in zip(self.starts, self.starts[1:])]
        starts = rng.permutation(np.concatenate([np.zeros(0, dtype=np.int64), *starts]))[:n]
        return self.tokens[starts[:, None] + np.arange(length)].astype(np.int64), starts

    @functools.cached_property
    def brackets(self):
        """
        The closing brackets in Python files that a token begins with, except those in strings and comments. (n, 3): the
        place in `tokens`, the distance in tokens to the token with the opener, and the depth that the bracket closes.
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
    """
    The closing brackets that Python itself sees in a source text. (n, 3): the place in characters of the bracket, that
    of its opener, and its depth. In a text that is no Python, those before the first error.
    """
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
def read_corpus(path, encoding='bytes'):
    """{split: Corpus} of the text at `path`, held once a process; errors as of read_encoding and tasks.read_files."""
    tokenizer, texts = read_encoding(encoding), tasks.read_files(path)
    smallest = next(kind for kind in (np.uint8, np.uint16, np.uint32) if tokenizer.n_vocab <= np.iinfo(kind).max + 1)
    corpora = {}
    for split, files in texts.items():
        if encoding == 'bytes':
            pieces = [np.frombuffer(text.encode() + b'\0', dtype=np.uint8) for text in files.values()]
        else:
            ids = tokenizer.encode_ordinary_batch(list(files.values()))
            pieces = [np.array([*one, tokenizer.eot_token], dtype=smallest) for one in ids]
        tokens = np.concatenate([np.zeros(0, dtype=smallest), *pieces])
        starts = np.cumsum([0] + [len(piece) for piece in pieces])
        corpora[split] = Corpus(list(files), tokens, starts, tokenizer)
    return corpora


def of_task(task, split):
    """The Corpus of a split of a text task: of the page's Text, or of the one here."""
    return read_corpus(task.path, getattr(task, 'encoding', 'bytes'))[split]
