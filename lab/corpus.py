"""
The files of a text, and excerpts that lie in one file each.

    corpus = of_task(make_task('text'), 'test')
"""

import dataclasses
import functools

import numpy as np

from text import encode_texts, read_encoding, read_files


@dataclasses.dataclass(frozen=True)
class Corpus:
    """One split of a text."""
    tokens: np.ndarray  # (n,) unsigned: the files one behind the other
    starts: np.ndarray  # (files + 1,): where each file starts, and where the last one ends

    def excerpts(self, length, n, rng):
        """
        n excerpts (n, length) int64. No two overlap, and none lies in two files. There are fewer
        if the text has no more.
        """
        starts = [np.arange(a, b - length + 1, length)
                  for a, b in zip(self.starts, self.starts[1:])]
        nothing = np.zeros(0, dtype=np.int64)  # for a split without files
        places = rng.permutation(np.concatenate([nothing, *starts]))[:n]
        return self.tokens[places[:, None] + np.arange(length)].astype(np.int64)


@functools.lru_cache(maxsize=4)
def read_corpus(path, encoding='bytes'):
    """{split: Corpus} of the text at `path`, held once a process. Raises UserError as Text does."""
    tokenizer, corpora = read_encoding(encoding), {}
    for split, files in read_files(path).items():
        pieces = encode_texts(files.values(), tokenizer)
        ends = np.cumsum([0, *map(len, pieces)])
        corpora[split] = Corpus(np.concatenate(pieces), ends)
    return corpora


def of_task(task, split):
    """The Corpus of a split of a text task."""
    return read_corpus(task.path, task.encoding)[split]
