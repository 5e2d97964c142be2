"""Text in other encodings, the files and excerpts of a corpus, and the brackets of real Python."""

import hashlib

import numpy as np
import pytest
import tiktoken

from lab import corpus
from lab.corpus import Corpus, of_task, python_brackets, read_corpus
from tasks import SPLITS, make_task, stream


@pytest.fixture
def folder(tmp_path):
    """60 small Python files, each with words of its own."""
    (tmp_path / 'sub').mkdir()
    for i in range(60):
        name = hashlib.sha256(str(i).encode()).hexdigest()[:8]
        lines = ''.join(f'{name}_{j} = [{j}, ({i} + {j})]  # (not this\n' for j in range(40))
        (tmp_path / ('sub' if i % 3 else '.') / f'{name}.py').write_text(lines)
    return tmp_path


@pytest.fixture
def encoding(monkeypatch):
    """A tiktoken encoding made here, under a name that tiktoken then knows."""
    ranks = {bytes([i]): i for i in range(256)} | {b'de': 256, b' =': 257, b'= ': 258}
    made = tiktoken.Encoding('tiny', pat_str=r'\w+|\W', mergeable_ranks=ranks, special_tokens={'<|endoftext|>': 259})
    monkeypatch.setattr(tiktoken, 'list_encoding_names', lambda: ['tiny', 'gpt2'])
    monkeypatch.setattr(tiktoken, 'get_encoding', lambda name: made)
    for cached in (corpus.read_encoding, corpus.read_corpus):
        cached.cache_clear()
    yield 'tiny'
    for cached in (corpus.read_encoding, corpus.read_corpus):
        cached.cache_clear()


def texts_of(part):
    return [part.encoding.decode(part.tokens[a:b - 1].tolist()) for a, b in zip(part.starts, part.starts[1:])]


def test_bytes_are_the_text_of_the_page(folder):
    page, ours = make_task(f'text:path={folder}'), make_task(f'text:path={folder},encoding=bytes')
    assert type(page) is not type(ours) and str(page) == str(ours)
    assert page.record() == ours.record() and page.symbols == ours.symbols and page.chance == ours.chance
    for split in SPLITS:
        for a, b in zip(page.sample(stream(0), 5, 50, split), ours.sample(stream(0), 5, 50, split)):
            assert np.array_equal(a, b) and a.dtype == b.dtype
        assert of_task(page, split) is of_task(ours, split)  # held once
        assert np.array_equal(of_task(page, split).tokens, page.tokens[split])
    assert page.encode('é (').tolist() == ours.encode('é (').tolist() and ours.decode(ours.encode('é (')) == 'é ('


def test_a_named_encoding(folder, encoding):
    task = make_task(f'text:path={folder},encoding={encoding}')
    assert make_task(str(task)) == task and 'encoding=tiny' in str(task)
    assert len(task.symbols) == 260 and task.chance == 1 / 260 and task.symbols[256] == 'de'
    assert task.encode('def =').tolist() == [256, ord('f'), ord(' '), ord('=')]
    for split in SPLITS:
        part = of_task(task, split)
        assert part.tokens.dtype == np.uint16 and (part.tokens[part.starts[1:] - 1] == 259).all()
        assert texts_of(part) == [(folder / name).read_text() for name in part.names]
        x, y = task.sample(stream(0, split), 20, 70, split)
        assert np.array_equal(x[:, 1:], y[:, :-1]) and x.dtype == np.int64
        text = task.decode(part.tokens)
        assert all(task.decode([*a, b[-1]]) in text for a, b in zip(x, y))
    record = task.record()
    assert record['tokens'] == {split: len(of_task(task, split).tokens) for split in SPLITS}
    assert record['sha256'] != make_task(f'text:path={folder}').record()['sha256']


def test_ids_that_an_encoding_leaves_out_have_no_symbol():
    ranks = {bytes([i]): i for i in range(256)} | {b'ab': 258}
    gaps = tiktoken.Encoding('gaps', pat_str=r'\w+', mergeable_ranks=ranks, special_tokens={'<|end|>': 260})
    symbols = corpus.list_symbols(gaps)
    assert len(symbols) == 261 and symbols[256:] == ['', '', 'ab', '', '<|end|>'] and symbols[200] == '\\xc8'


def test_the_default_corpus_is_the_standard_library():
    names = {split: read_corpus('')[split].names for split in SPLITS}
    assert len(names['train']) > 200 and len(names['test']) > 5
    everything = [name for split in SPLITS for name in names[split]]
    assert 'json/decoder.py' in everything and not any('site-packages' in name for name in everything)


def test_excerpts_do_not_overlap_nor_cross_files(folder):
    part = read_corpus(str(folder))['train']
    excerpts, places = part.excerpts(500, 10**6, stream(0))
    assert len(excerpts) > 60 and (np.diff(np.sort(places)) >= 500).all()
    for excerpt, place in zip(excerpts, places):
        file = np.searchsorted(part.starts, place, side='right')
        assert place + 500 <= part.starts[file] and np.array_equal(excerpt, part.tokens[place:place + 500])
    assert len(part.excerpts(500, 7, stream(0))[0]) == 7 and part.excerpts(10**6, 7, stream(0))[0].shape == (0, 10**6)


def test_brackets_are_those_that_python_sees():
    source = 'é = f(a[1])  # )\nx = "([" + (\n  {2: 3})\n'
    assert [(source[place], source[opener], depth) for place, opener, depth in python_brackets(source)] == [
        (']', '[', 2), (')', '(', 1), ('}', '{', 2), (')', '(', 1)]
    python_brackets('x = (1]\n)')  # wrong on purpose: whatever it finds, it does not raise
    assert python_brackets('"""never closed\n').shape == (0, 3)


def test_brackets_count_where_a_token_begins_with_them():
    ranks = {bytes([i]): i for i in range(256)} | {b'x)': 256, b'):': 257, b'()': 258, b'[[': 259}
    small = tiktoken.Encoding('small', pat_str=r'[\s\S]+', mergeable_ranks=ranks, special_tokens={})
    tokens = small.encode_ordinary('é = f(x), g(y): h(), z[[1]]\n')
    part = Corpus(['a.py', 'b.txt'], np.array([*tokens, 0] * 2), np.array([0, 1, 2]) * (len(tokens) + 1), small)
    between = [([small.decode([t]) for t in tokens[place - distance:place + 1]], depth)
               for place, distance, depth in part.brackets]
    assert between == [(['(', 'y', '):'], 1), (['[[', '1', ']'], 2), (['[[', '1', ']', ']'], 1)]


@pytest.mark.parametrize('name', ['bytes', 'tiny'])
def test_brackets_of_a_corpus_have_their_openers(folder, encoding, name):
    part = read_corpus(str(folder), name)['train']
    pairs = {(chr(part.tokens[place - distance]), chr(part.tokens[place])) for place, distance, _ in part.brackets}
    assert pairs == {('(', ')'), ('[', ']')} and len(part.brackets) == 2 * 40 * len(part.names)


def test_what_cannot_be_read_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="text:encoding=gtp2 does not exist; did you mean 'gpt2'"):
        make_task('text:encoding=gtp2')
    with pytest.raises(FileNotFoundError, match='nowhere: there is no such folder'):
        make_task(f'text:encoding=hf:{tmp_path}/nowhere')
    with pytest.raises(FileNotFoundError, match='text:path=.*nowhere: there is no UTF-8 text'):
        make_task(f'text:path={tmp_path}/nowhere,encoding=bytes').sample(stream(0), 4, 64)
    (tmp_path / 'one.txt').write_text('one line\n')
    with pytest.raises(ValueError, match='the train split of .* has only 10 tokens'):
        make_task(f'text:path={tmp_path}/one.txt,encoding=bytes').sample(stream(0), 4, 64)

    def offline(name):
        raise ConnectionError('no route to host')
    monkeypatch.setattr(tiktoken, 'get_encoding', offline)
    corpus.read_encoding.cache_clear()
    with pytest.raises(ValueError, match='cannot download .*; offline, use encoding=bytes'):
        make_task('text:encoding=gpt2')
