"""The files and excerpts of a corpus, and the brackets of real Python."""

import hashlib

import numpy as np
import pytest
import tiktoken

from lab.corpus import Corpus, of_task, python_brackets, read_corpus
from tasks import make_rng, make_task
from text import SPLITS


@pytest.fixture
def folder(tmp_path):
    """60 small Python files, each with words of its own."""
    (tmp_path / 'sub').mkdir()
    for i in range(60):
        name = hashlib.sha256(str(i).encode()).hexdigest()[:8]
        lines = [f'{name}_{j} = [{j}, ({i} + {j})]  # (not this\n' for j in range(40)]
        place = tmp_path / ('sub' if i % 3 else '.') / f'{name}.py'
        place.write_text(''.join(lines))
    return tmp_path


def make_encoding(words):
    """A tiktoken.Encoding of all bytes and more tokens {bytes: id}."""
    ranks = {bytes([i]): i for i in range(256)} | words
    return tiktoken.Encoding('made', pat_str=r'[\s\S]+', mergeable_ranks=ranks,
                             special_tokens={})


def test_the_default_corpus_is_the_standard_library():
    names = {split: part.names for split, part in read_corpus('').items()}
    assert len(names['train']) > 200 and len(names['test']) > 5
    everything = [name for split in SPLITS for name in names[split]]
    assert 'json/decoder.py' in everything
    assert not any('site-packages' in name for name in everything)


def test_excerpts_do_not_overlap_nor_cross_files(folder):
    part = read_corpus(str(folder))['train']
    excerpts, places = part.excerpts(500, 10**6, make_rng(0))
    assert len(excerpts) > 60 and (np.diff(np.sort(places)) >= 500).all()
    for excerpt, place in zip(excerpts, places):
        file = np.searchsorted(part.starts, place, side='right')
        assert place + 500 <= part.starts[file]
        assert np.array_equal(excerpt, part.tokens[place:place + 500])
    assert len(part.excerpts(500, 7, make_rng(0))[0]) == 7
    assert part.excerpts(10**6, 7, make_rng(0))[0].shape == (0, 10**6)


def test_brackets_are_those_that_python_sees():
    source = 'é = f(a[1])  # )\nx = "([" + (\n  {2: 3})\n'
    found = [(source[place], source[opener], depth)
             for place, opener, depth in python_brackets(source)]
    assert found == [(']', '[', 2), (')', '(', 1), ('}', '{', 2), (')', '(', 1)]
    python_brackets('x = (1]\n)')  # whatever it finds, it does not raise
    assert python_brackets('"""never closed\n').shape == (0, 3)


def test_brackets_count_where_a_token_begins_with_them():
    small = make_encoding({b'x)': 256, b'):': 257, b'()': 258, b'[[': 259})
    tokens = small.encode_ordinary('é = f(x), g(y): h(), z[[1]]\n')
    # only the first file is Python
    starts = np.array([0, 1, 2]) * (len(tokens) + 1)
    part = Corpus(['a.py', 'b.txt'], np.array([*tokens, 0] * 2), starts, small)
    between = [([small.decode([t]) for t in tokens[place - distance:place + 1]], depth)
               for place, distance, depth in part.brackets]
    assert between == [(['(', 'y', '):'], 1), (['[[', '1', ']'], 2), (['[[', '1', ']', ']'], 1)]


def test_brackets_of_a_corpus_have_their_openers(folder):
    part = of_task(make_task(f'text:path={folder}'), 'train')
    pairs = {(chr(part.tokens[place - distance]), chr(part.tokens[place]))
             for place, distance, _ in part.brackets}
    assert pairs == {('(', ')'), ('[', ']')}
    assert len(part.brackets) == 2 * 40 * len(part.names)
