"""Text: splits without a leak, windows, brackets of real Python, and perplexity by the length of the context."""

import hashlib
import json
import math

import numpy as np
import pytest
import tiktoken
import torch
import torch.nn.functional as F

import eval as eval_file
import sample
import tapa_kernel
import tasks
from model import GPT, GPTConfig
from tasks import SPLITS, Corpus, make_task, python_brackets, read_corpus, stream


@pytest.fixture
def folder(tmp_path):
    """60 small Python files, each with words of its own; copies, an image and an empty file among them."""
    root = tmp_path / 'code'
    (root / 'sub').mkdir(parents=True)
    for i in range(60):
        name = hashlib.sha256(str(i).encode()).hexdigest()[:8]
        (root / ('sub' if i % 3 else '.') / f'{name}.py').write_text(''.join(f'{name}_{j} = [{j}, ({i} + {j})]  # (not this\n' for j in range(40)))
    first = sorted(root.rglob('*.py'))[0]
    (root / 'copy.py').write_bytes(first.read_bytes())
    (root / 'empty.py').write_text('\n')
    (root / 'image.png').write_bytes(bytes(range(256)))
    return root


@pytest.fixture
def encoding(monkeypatch):
    """A tiktoken encoding made here, under a name that tiktoken then knows."""
    ranks = {bytes([i]): i for i in range(256)} | {b'de': 256, b' =': 257, b'= ': 258}
    made = tiktoken.Encoding('tiny', pat_str=r'\w+|\W', mergeable_ranks=ranks, special_tokens={'<|endoftext|>': 259})
    monkeypatch.setattr(tiktoken, 'list_encoding_names', lambda: ['tiny', 'gpt2'])
    monkeypatch.setattr(tiktoken, 'get_encoding', lambda name: made)
    for cached in (tasks.read_encoding, tasks.read_corpus):
        cached.cache_clear()
    yield 'tiny'
    for cached in (tasks.read_encoding, tasks.read_corpus):
        cached.cache_clear()


def files_of(corpus, task):
    return [task.decode(corpus.tokens[a:b - 1]) for a, b in zip(corpus.starts, corpus.starts[1:])]


def test_no_file_is_in_two_splits_and_none_is_lost(folder):
    task = make_task(f'text:path={folder}')
    names = {split: task.corpus(split).names for split in SPLITS}
    everything = [name for split in SPLITS for name in names[split]]
    assert len(everything) == len(set(everything)) == 60 and all(names.values()) and len(names['train']) > 45
    contents = [content for split in SPLITS for content in files_of(task.corpus(split), task)]
    assert len(set(contents)) == 60  # the copy counts once
    on_disk = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob('*.py')}
    assert all(on_disk[name] == content for name, content in zip(everything, contents))


def test_a_file_stays_in_its_split_when_others_come_and_go(folder):
    before = {split: set(read_corpus(str(folder), 'bytes')[split].names) for split in SPLITS}
    (folder / 'new.py').write_text('x = 1\n' * 100)
    (folder / sorted(before['train'])[0]).unlink()
    read_corpus.cache_clear()
    after = {split: set(read_corpus(str(folder), 'bytes')[split].names) for split in SPLITS}
    for split in SPLITS:
        assert not (after[split] - before[split] - {'new.py', 'copy.py'}) and not any(after[split] & before[other] for other in SPLITS if other != split)


def test_a_single_file_is_cut_at_line_ends(tmp_path):
    path = tmp_path / 'play.txt'
    path.write_text(''.join(f'line {i} über\n' for i in range(1000)))
    task = make_task(f'text:path={path}')
    parts = [files_of(task.corpus(split), task)[0] for split in SPLITS]
    assert ''.join(parts) == path.read_text() and all(part.endswith('\n') for part in parts)
    assert [round(len(part) / len(path.read_text()), 2) for part in parts] == [0.9, 0.05, 0.05]


def test_the_default_corpus_is_the_standard_library():
    task = make_task('text')
    record = task.record()
    assert record['files']['train'] > 200 and record['files']['test'] > 5 and len(record['sha256']) == 64
    assert 'json/decoder.py' in [name for split in SPLITS for name in task.corpus(split).names]
    assert not [name for split in SPLITS for name in task.corpus(split).names if 'site-packages' in name]
    assert task.corpus('train') is task.corpus('train')  # held once


@pytest.mark.parametrize('split', SPLITS)
def test_windows_come_from_their_split_and_targets_are_the_next_tokens(folder, split):
    task = make_task(f'text:path={folder}')
    x, y = task.sample(stream(0, split), 50, 70, split)
    assert x.shape == y.shape == (50, 70) and x.dtype == y.dtype == np.int64
    assert np.array_equal(x[:, 1:], y[:, :-1]) and task.check(x, y).all() and not task.check(x, y + 1).any()
    text = task.decode(task.corpus(split).tokens)
    assert all(task.decode([*a, b[-1]]) in text for a, b in zip(x, y))
    starts = stream(0, split).integers(0, len(task.corpus(split).tokens) - 70, 50)
    assert len(set(starts)) > 40 or split != 'train'


def test_named_encodings(folder, encoding):
    task = make_task(f'text:path={folder},encoding={encoding}')
    assert task.vocab_size == 260 == len(task.symbols) and task.symbols[256] == 'de'
    corpus = task.corpus('test')
    assert corpus.tokens.dtype == np.uint16 and (corpus.tokens[corpus.starts[1:] - 1] == 259).all()
    assert task.decode(corpus.tokens[:corpus.starts[1] - 1]) == (folder / corpus.names[0]).read_text()
    code = task.decode(corpus.tokens[:corpus.starts[1] - 1])  # of the first file; its brackets are tokens of their own
    assert [(corpus.tokens[place], corpus.tokens[place - distance]) for place, distance, _ in corpus.brackets if place < corpus.starts[1]] == [
        (ord(code[place]), ord(code[opener])) for place, opener, _ in python_brackets(code)]
    assert task.encode('def =').tolist() == [256, ord('f'), ord(' '), ord('=')]


def test_excerpts_do_not_overlap_nor_cross_files(folder):
    corpus = make_task(f'text:path={folder}').corpus('train')
    excerpts, places = corpus.excerpts(500, 10**6, stream(0))
    assert len(excerpts) > 60 and (np.diff(np.sort(places)) >= 500).all()
    for excerpt, place in zip(excerpts, places):
        file = np.searchsorted(corpus.starts, place, side='right')
        assert place + 500 <= corpus.starts[file] and np.array_equal(excerpt, corpus.tokens[place:place + 500])
    assert len(corpus.excerpts(500, 7, stream(0))[0]) == 7


def test_brackets_are_those_that_python_sees():
    source = 'é = f(a[1])  # )\nx = "([" + (\n  {2: 3})\n'
    assert [(source[place], source[opener], depth) for place, opener, depth in python_brackets(source)] == [
        (']', '[', 2), (')', '(', 1), ('}', '{', 2), (')', '(', 1)]
    python_brackets('x = (1]\n)')  # wrong on purpose: whatever it finds, it does not raise
    assert python_brackets('"""never closed\n').shape == (0, 3)


def test_brackets_count_where_a_token_begins_with_them():
    ranks = {bytes([i]): i for i in range(256)} | {b'x)': 256, b'):': 257, b'()': 258, b'[[': 259}
    encoding = tiktoken.Encoding('small', pat_str=r'[\s\S]+', mergeable_ranks=ranks, special_tokens={})
    tokens = encoding.encode_ordinary('é = f(x), g(y): h(), z[[1]]\n')
    corpus = Corpus(['a.py', 'b.txt'], np.array([*tokens, 0] * 2), np.array([0, len(tokens) + 1, 2 * len(tokens) + 2]), encoding)
    assert [([encoding.decode([t]) for t in tokens[place - distance:place + 1]], depth) for place, distance, depth in corpus.brackets] == [
        (['(', 'y', '):'], 1), (['[[', '1', ']'], 2), (['[[', '1', ']', ']'], 1)]


def test_brackets_of_a_corpus_have_their_openers(folder):
    corpus = make_task(f'text:path={folder}').corpus('train')
    pairs = {(chr(corpus.tokens[place - distance]), chr(corpus.tokens[place])) for place, distance, _ in corpus.brackets}
    assert pairs == {('(', ')'), ('[', ']')} and len(corpus.brackets) == 2 * 40 * len(corpus.names)


@pytest.mark.parametrize('write, spec, error, message', [
    (None, 'text:path={}', FileNotFoundError, 'there is no such file or folder'),
    (b'', 'text:path={}', ValueError, 'leaves nothing for train and validation and test'),
    (b'one line\n', 'text:path={}', ValueError, 'leaves nothing for validation and test'),
    (b'caf\xe9\n' * 50, 'text:path={}', ValueError, 'is not UTF-8: .* at byte 3'),
    (b'a b c d\n' * 50, 'text:path={}', ValueError, 'its validation split has .* sequences of 64 need 65'),
    (b'a b c d\n' * 50, 'text:path={},encoding=gtp2', ValueError, "encoding 'gtp2' does not exist; did you mean 'gpt2'"),
], ids=str)
def test_bad_text_is_refused(tmp_path, write, spec, error, message):
    path = tmp_path / 'text.txt'
    if write is not None:
        path.write_bytes(write)
    with pytest.raises(error, match=message):
        make_task(spec.format(path)).sample(stream(0), 4, 64)


def test_an_encoding_that_cannot_be_downloaded_says_how_to_go_offline(monkeypatch):
    def offline(name):
        raise ConnectionError('no route to host')
    monkeypatch.setattr(tiktoken, 'get_encoding', offline)
    tasks.read_encoding.cache_clear()
    with pytest.raises(ValueError, match='cannot download .*; offline, use encoding=bytes'):
        make_task('text:encoding=gpt2').encode('x')


# ----------------------------------------------------------------------------------------------------------------------
# Evaluation


@pytest.fixture
def model(folder):
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=256, n_layer=2, n_head=2, n_embd=32, attention='rope', block_size=64)).eval()


def test_perplexity_by_context_is_what_its_definition_says(folder, model):
    """Each way, one token at a time, with the context written out."""
    task = make_task(f'text:path={folder}')
    n, longest, stride = 8, 64, 8
    table, ways = eval_file.measure_text(model, task, [16, 32, 64], n, 'cpu', 'train', stride)
    excerpts, _ = task.corpus('train').excerpts(longest + 1, n, stream('train', 'excerpts'))

    def nats(excerpt, first, t):
        """Of token t + 1, given those from `first` to t."""
        logits = model(torch.from_numpy(excerpt[None, first:t + 1]))[0][0, -1]
        return F.cross_entropy(logits, torch.tensor(excerpt[t + 1])).item()

    with torch.no_grad():
        for length in (16, 64):
            expected = np.mean([nats(e, t // length * length, t) for e in excerpts for t in range(longest)])
            assert ways['non-overlapping'][str(length)]['loss'] == table[str(length)]['loss'] == pytest.approx(expected, rel=1e-4)
            window = lambda t: 0 if t < length else -(-(t + 1 - length) // stride) * stride  # the first that reaches t
            expected = np.mean([nats(e, window(t), t) for e in excerpts[:4] for t in range(longest)])
            assert ways['sliding'][str(length)]['loss'] == pytest.approx(expected, rel=1e-4)
            expected = np.mean([nats(e, longest - length, t) for e in excerpts for t in range(longest - stride, longest)])
            assert ways['same targets'][str(length)]['loss'] == pytest.approx(expected, rel=1e-4)
            assert ways['same targets'][str(length)]['perplexity'] == pytest.approx(math.exp(expected), rel=1e-4)
        expected = [np.mean([nats(e, 0, t) for e in excerpts for t in range(a - 1, b)]) for a, b in ((1, 1), (2, 3), (64, 64))]
        by_position = {(a, b): loss for a, b, loss in ways['by position']}
        assert [by_position[edge] for edge in ((1, 1), (2, 3), (64, 64))] == pytest.approx(expected, rel=1e-4)


def test_brackets_count_only_where_their_opener_is_in_sight(folder, model, monkeypatch):
    task = make_task(f'text:path={folder}')
    table, _ = eval_file.measure_text(model, task, [8, 64], 16, 'cpu', 'train', 8)
    corpus = task.corpus('train')
    _, places = corpus.excerpts(65, 16, stream('train', 'excerpts'))
    for length in (8, 64):
        inside = [(distance, depth) for place, distance, depth in corpus.brackets for start in places
                  if start < place <= start + 64 and distance <= (place - start - 1) % length + 1]
        assert table[str(length)]['breakdown']['closing brackets']['right kind'][1] == len(inside)
        assert table[str(length)]['breakdown']['depth']['2'][1] == sum(depth == 2 for _, depth in inside)
    # a model that always says ) is right about the round ones
    with torch.no_grad():
        model.lm_head.weight.zero_()[ord(')')] = 1.0
        monkeypatch.setattr(model.norm, 'forward', lambda x: torch.ones_like(x))
    table, _ = eval_file.measure_text(model, task, [64], 16, 'cpu', 'train', 8)
    cells = table['64']['breakdown']
    assert cells['depth']['2'][0] == 1 and cells['depth']['1'][0] == 0 and cells['closing brackets']['next token'][0] == cells['closing brackets']['right kind'][0]


def test_distance_bias_is_a_difference_of_scores(model):
    """Scores that are a function of the distance alone have the difference of that function, in every pair."""
    x = stream(0).integers(0, 256, (3, 40))
    with torch.no_grad():
        model.embedding.weight[:] = model.embedding.weight[0]  # every token looks the same
    attention = model.blocks[0].attention
    scores = eval_file.attention_scores(attention, model.blocks[0].norm_1(model.embedding(torch.from_numpy(x))), torch.arange(40))
    layer = eval_file.distance_bias(model, x, (2, 2), (30, 30), 'cpu', stream(1), pairs=2000)[0]
    expected = [(scores[0, h, 35, 33] - scores[0, h, 35, 5]).item() for h in range(2)]
    assert min(expected) - 1e-4 < layer['mean'] < max(expected) + 1e-4 and layer['mean'] == pytest.approx(np.mean(expected), abs=abs(expected[0] - expected[1]) * 0.1)
    assert sum(layer['counts']) == 2000 and len(layer['counts']) == 40


def test_pair_means_against_a_loop(model):
    x = stream(0).integers(0, 256, (2, 12))
    layers = eval_file.pair_means(model, x, 'cpu')
    with torch.no_grad():
        q, k, _ = model.blocks[0].attention.heads(model.blocks[0].norm_1(model.embedding(torch.from_numpy(x))), torch.zeros(12))
    P = q.size(-1) // 2
    for pair in (0, 3):
        A = [(q[b, 1, m, pair] * k[b, 1, n, pair] + q[b, 1, m, pair + P] * k[b, 1, n, pair + P]).item() for b in range(2) for m in range(12) for n in range(m)]
        B = [(q[b, 1, m, pair] * k[b, 1, n, pair + P] - q[b, 1, m, pair + P] * k[b, 1, n, pair]).item() for b in range(2) for m in range(12) for n in range(m)]
        assert layers[0]['A'][1][pair] == pytest.approx(np.mean(A), abs=2e-5)
        assert layers[0]['B'][1][pair] == pytest.approx(np.mean(B), abs=2e-5)


def test_a_text_run_from_training_to_completion(run, folder, capsys):
    text = run().train(f'--task=text:path={folder}', '--max_iters=12', '--attention=spectral')
    config = json.loads((text.folder / 'config.json').read_text())
    assert config['sessions'][0]['data']['sha256'] == make_task(f'text:path={folder}').record()['sha256']
    eval_file.main([str(text.folder), '--n=16', '--device=cpu', '--split=validation'])
    result = json.loads((text.folder / 'eval_validation.json').read_text())
    assert list(result['lengths']) == ['2', '4', '8', '16', '32', '64', '128'] and list(result['distance_bias']) == ['trained', 'at the start']
    assert 'perplexity by context, stride 2' in capsys.readouterr().out
    sample.main([str(text.folder), '--prompt=x = (', '--length=20', '--device=cpu'])
    printed = capsys.readouterr().out
    assert printed.startswith('x = ([') and len(printed) > 26
    sample.main([str(text.folder), '--show=2', '--device=cpu'])
    with pytest.raises(ValueError, match='--prompt is empty'):
        sample.main([str(text.folder), '--prompt=', '--device=cpu'])
    with pytest.raises(ValueError, match='choose smaller --multiples'):
        eval_file.main([str(text.folder), '--multiples', '512', '--device=cpu'])
    # another text: resuming refuses it, evaluation says so
    (folder / 'more.py').write_text('y = 2\n' * 50)
    read_corpus.cache_clear()
    with pytest.raises(ValueError, match='the text of .* is not what it was'):
        text.train(f'--task=text:path={folder}', '--max_iters=12', '--attention=spectral', '--init_from=resume')
    capsys.readouterr()
    eval_file.main([str(text.folder), '--n=8', '--device=cpu', '--multiples', '1', '2'])
    assert 'this is not the text that it was trained on' in capsys.readouterr().err


def test_a_context_that_memory_does_not_hold_is_refused(run, folder, monkeypatch):
    text = run().train(f'--task=text:path={folder}', '--attention=tapa')
    monkeypatch.setattr(eval_file, 'free_memory', lambda device: 2**20)
    with pytest.raises(ValueError, match="a context of 128 tokens needs about .* GiB with attention='tapa', and 0.0 GiB are free on cpu"):
        eval_file.main([str(text.folder), '--device=cpu'])
    import train
    monkeypatch.setattr(train, 'free_memory', lambda device: 2**10)
    with pytest.raises(ValueError, match='batch_size=4, block_size=16: a step needs about'):
        run('other').train()
    assert not run('other').folder.exists()


@pytest.mark.parametrize('attention', ['rope', 'tapa'])
@pytest.mark.parametrize('B, T, C, nh', [(4, 64, 64, 2), (2, 256, 32, 4)])
def test_the_estimate_of_memory_is_near_what_a_step_saves(attention, B, T, C, nh):
    import bench
    shape = dict(n_layer=2, n_head=nh, n_embd=C, block_size=T, batch_size=B, vocab_size=65)
    config = GPTConfig(**{key: value for key, value in shape.items() if key != 'batch_size'}, attention=attention)
    assert (config.memory(B, T, training=True, device='cuda') == config.memory(B, T, training=True)) == (
        attention == 'rope' or C // nh < 16 or tapa_kernel.triton is None)  # the fused kernel writes no scores out
    assert config.memory(B, T, training=True) / 2**20 == pytest.approx(bench.saved_MiB(attention, shape, 'cpu', 'float32'), rel=0.35)
