"""
What an evaluation must know of a text: its files, and the brackets in its Python code.

    corpus = of_task(make_task('text'), 'test')
"""

import dataclasses
import functools
import io
import tokenize

import numpy as np

from tasks import Text, read_files


@dataclasses.dataclass(frozen=True)
class Corpus:
    """One split of a text."""
    names: list  # of its files
    tokens: np.ndarray  # (n,) unsigned: the files one behind the other
    starts: np.ndarray  # (files + 1,): where each file starts, and where the last one ends
    encoding: object  # a tiktoken.Encoding

    def excerpts(self, length, n, rng):
        """
        n excerpts (n, length) int64, and their places (n,) in `tokens`. No two overlap, and none
        lies in two files. There are fewer if the text has no more.
        """
        starts = [np.arange(a, b - length + 1, length)
                  for a, b in zip(self.starts, self.starts[1:])]
        nothing = np.zeros(0, dtype=np.int64)  # for a split without files
        places = rng.permutation(np.concatenate([nothing, *starts]))[:n]
        excerpts = self.tokens[places[:, None] + np.arange(length)]
        return excerpts.astype(np.int64), places

    @functools.cached_property
    def brackets(self):
        """
        The closing brackets of Python code that a token begins with: (n, 3) int64. A row has its
        place in `tokens`, the distance in tokens to the token of its opener, and its depth.
        """
        rows = [np.zeros((0, 3), dtype=np.int64)]
        for name, start, end in zip(self.names, self.starts, self.starts[1:]):
            if name.endswith('.py'):
                ids = self.tokens[start:end - 1].tolist()
                text, begins = self.encoding.decode_with_offsets(ids)
                place, opener, depth = python_brackets(text).T  # in characters
                token = np.searchsorted(begins, place, side='right') - 1
                opening = np.searchsorted(begins, opener, side='right') - 1
                first = np.array(begins)[token] == place
                row = np.stack([start + token, token - opening, depth], axis=1)
                rows.append(row[first])
        return np.concatenate(rows)


def python_brackets(source):
    """
    The closing brackets of a Python source, without those in strings and comments: (n, 3) int64.
    A row has the place of the bracket and of its opener, in characters, and its depth. In a text
    that is not Python, those before the first error.
    """
    lines = list(io.StringIO(source, newline=''))
    starts = np.cumsum([0] + [len(line) for line in lines])
    opened, found = [], []
    try:
        for token in tokenize.generate_tokens(iter([*lines, '']).__next__):
            if token.type == tokenize.OP and token.string in '()[]{}':
                row, column = token.start
                place = int(starts[row - 1]) + column
                if token.string in '([{':
                    opened.append(place)
                elif opened:
                    found.append((place, opened.pop(), len(opened) + 1))
    except (tokenize.TokenError, SyntaxError):
        pass  # what came before counts
    return np.array(found, dtype=np.int64).reshape(-1, 3)


@functools.lru_cache(maxsize=4)
def read_corpus(path, encoding='bytes'):
    """{split: Corpus} of the text at `path`, held once a process. Raises UserError as Text does."""
    task = Text(path, encoding)
    corpora = {}
    for split, files in read_files(path).items():
        nothing = np.zeros(0, dtype=np.uint8)  # for a split without files
        pieces = [nothing, *task.encode_files(files.values())]
        ends = np.cumsum([len(piece) for piece in pieces])
        corpora[split] = Corpus(list(files), np.concatenate(pieces), ends, task.tokenizer)
    return corpora


def of_task(task, split):
    """The Corpus of a split of a text task."""
    return read_corpus(task.path, task.encoding)[split]
