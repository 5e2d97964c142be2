"""The lab's Text, the files and excerpts of a corpus, and the brackets of real Python."""

import hashlib

import numpy as np
import pytest
import tiktoken

import tasks
from lab import corpus
from lab.corpus import Corpus, of_task, python_brackets, read_corpus
from model import UserError
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


def make_encoding(words, **special):
    """A tiktoken.Encoding of all bytes and more tokens {bytes: id}."""
    ranks = {bytes([i]): i for i in range(256)} | words
    return tiktoken.Encoding('made', pat_str=r'[\s\S]+', mergeable_ranks=ranks,
                             special_tokens=special)


@pytest.fixture
def tiny(monkeypatch):
    """An encoding of 260 tokens in place of the checkpoint that hf:tiny names."""
    words = {b'de': 256, b' =': 257, b'= ': 258}
    made = make_encoding(words, **{'<|endoftext|>': 259})
    monkeypatch.setattr(corpus, 'Tokenizer', lambda name: {'tiny': made}[name])
    caches = [corpus.read_encoding, corpus.read_corpus]
    for cache in caches:
        cache.cache_clear()
    yield 'hf:tiny'
    for cache in caches:
        cache.cache_clear()


def test_it_is_the_text_of_the_page(folder):
    page, ours = tasks.Text(str(folder)), make_task(f'text:path={folder}')
    assert type(ours) is corpus.Text and str(page) == str(ours)
    assert page.record() == ours.record() and page.symbols == ours.symbols
    for split in SPLITS:
        for a, b in zip(page.sample(make_rng(0), 5, 50, split),
                        ours.sample(make_rng(0), 5, 50, split)):
            assert np.array_equal(a, b) and a.dtype == b.dtype
        assert of_task(page, split) is of_task(ours, split)  # held once
    assert ours.decode(ours.encode('é (')) == 'é ('


def test_an_encoding_of_a_checkpoint(folder, tiny):
    task = make_task(f'text:path={folder},encoding={tiny}')
    assert make_task(str(task)) == task and 'encoding=hf:tiny' in str(task)
    assert len(task.symbols) == 260 and task.chance == 1 / 260 and task.symbols[256] == 'de'
    assert task.encode('def =').tolist() == [256, ord('f'), 257]
    for split in SPLITS:
        part = of_task(task, split)
        assert part.tokens.dtype == np.uint16 and (part.tokens[part.starts[1:] - 1] == 259).all()
        texts = [part.encoding.decode(part.tokens[a:b - 1].tolist())
                 for a, b in zip(part.starts, part.starts[1:])]
        assert texts == [(folder / name).read_text() for name in part.names]
        assert part.tokens is task.tokens[split] and task.record()['tokens'][split] == len(
            part.tokens)
        x, y = task.sample(make_rng(0, split), 20, 70, split)
        assert np.array_equal(x[:, 1:], y[:, :-1]) and x.dtype == np.int64


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


@pytest.mark.parametrize('encoding', ['bytes', 'hf:tiny'])
def test_brackets_of_a_corpus_have_their_openers(folder, tiny, encoding):
    part = read_corpus(str(folder), encoding)['train']
    pairs = {(chr(part.tokens[place - distance]), chr(part.tokens[place]))
             for place, distance, _ in part.brackets}
    assert pairs == {('(', ')'), ('[', ']')}
    assert len(part.brackets) == 2 * 40 * len(part.names)


def test_what_cannot_be_read_is_refused(tmp_path):
    for spec, message in [('encoding=gtp2', "gtp2 does not exist; did you mean 'gpt2'"),
                          (f'encoding=hf:{tmp_path}/nowhere', 'nowhere: there is no such folder'),
                          (f'path={tmp_path}/nowhere', 'nowhere')]:
        with pytest.raises(UserError, match=message):
            make_task(f'text:{spec}').sample(make_rng(0), 4, 64)
