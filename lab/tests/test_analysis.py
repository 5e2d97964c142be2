"""What lab/analysis.py says of a model, against loops written from the definitions."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from eval import measure
from lab import analysis, memory
from lab.corpus import of_task
from lab.tests.conftest import attentions, build, stir
from lab.tests.test_corpus import folder  # noqa: F401
from model import ATTENTIONS, Attention, KVCache, UserError, distances
from tasks import make_rng, make_task


def read_first(model, x):
    """What the first layer's attention reads, (B, T, C), for token ids x, an array."""
    with torch.no_grad():
        return model.blocks[0].norm_1(model.embedding(torch.from_numpy(x)))


def project(attention, x):
    """q and k after the rotation, v, of every query head, (B, nh, T, hs)."""
    q, k, v = attention.project(x)
    position, L = torch.arange(x.size(1)), attention.config.log_scale_length
    q, k = attention.rotate(q, k, position)
    if L:
        q = q * (position + 1).log()[:, None] / math.log(L)
    group = q.size(1) // k.size(1)
    return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)


OPTIONS = {'rope_yarn': dict(frequencies='yarn:factor=4,fast=8')}


# Tasks


@pytest.mark.parametrize('spec, text, marks', [
    ('dyck', '^([])(', ' xx  x'), ('spacing', '^..(..[', '   x  x'),
    ('bio_rotation:period=3', '^ACG...', ' xxx   '), ('modulo', 'C0123', 'x   '),
    ('modulo', 'C1123', '    '), ('passkey', '^abK12345cQ1234', '    xxxxx      '),
    ('sum', '123', 'xxx')])
def test_sources_are_the_inputs_that_hold_what_answers_need(spec, text, marks):
    task = make_task(spec)
    found = analysis.sources(task, task.encode(text)[None])[0].tolist()
    assert found == [mark == 'x' for mark in marks]


def test_variants_are_harder():
    dyck = make_task('dyck:max_depth=3')
    (deeper,) = analysis.variants(dyck).items()
    assert deeper[0] == 'depth 6' and str(deeper[1]) == 'dyck:max_depth=6'
    assert deeper[1].symbols == dyck.symbols
    assert str(analysis.variants(make_task('passkey'))['loop']) == 'passkey:filler=loop'
    assert analysis.variants(make_task('passkey:filler=loop')) == {}
    assert analysis.variants(make_task('modulo')) == {}


@pytest.mark.parametrize('spec, counts', [
    ('modulo', lambda task, x, y: y >= 0),
    ('dyck', lambda task, x, y: (y >= 0) & (x >= task.k) & (x < 2 * task.k))])
def test_beyond_is_the_accuracy_of_the_targets_beyond_the_training_length(spec, counts):
    """Of all targets, and of those of the headline; all else is what the page measures."""
    T, task = 12, make_task(spec)
    model = build(vocab_size=len(task.symbols)).eval()
    for length in (8, 12, 30):
        found = measure(model, analysis.Beyond(task, T), length, 20, 'cpu')
        found = analysis.move_beyond(found)
        x, y = task.sample(make_rng('test', str(task), length), 20, length, 'test')
        with torch.no_grad():
            right = model(torch.from_numpy(x))[0].argmax(-1).numpy() == y
        late = np.arange(length) >= T
        names = dict(beyond=(y >= 0) & late, headline_beyond=counts(task, x, y) & late)
        for name, mask in names.items():
            if length > T:
                assert found.pop(name) == pytest.approx(right[mask].mean())
        assert found == measure(model, task, length, 20, 'cpu')


# Scores


@pytest.mark.parametrize('name', ATTENTIONS)
@pytest.mark.parametrize('at_once', [2**21, 100])
def test_scores_are_those_that_attention_uses(name, at_once, monkeypatch):
    """However few queries a formula gets at a time. 100 numbers: one query of one sequence."""
    monkeypatch.setattr(analysis, 'NUMBERS_AT_ONCE', at_once)
    L = 0 if 'tapa' in name else 8
    model = build(attention=name, n_kv_head=2, log_scale_length=L, **OPTIONS.get(name, {}))
    attention = stir(model).eval().blocks[1].attention
    x = torch.randn(3, 12, 32)
    scores = analysis.attention_scores(attention, x)
    with torch.no_grad():
        later = torch.ones(12, 12).triu(1) > 0
        weights = scores.masked_fill(later, float('-inf')).softmax(-1)
        y = attention.proj((weights @ project(attention, x)[2]).transpose(1, 2).flatten(2))
        torch.testing.assert_close(y, attention(x), rtol=1e-4, atol=1e-5)


HELD = [*((name, 0) for name in ATTENTIONS), ('rope', 9), ('bifocal', 9), ('rope,nope', 9)]


@pytest.mark.parametrize('name, log_scale', HELD)
def test_held_shares_count_the_first_key_as_many(name, log_scale):
    """
    As m / (T - 1) keys from position T on, and all scores are scaled as at T - 1. Before T nothing
    changes.
    """
    T = 5
    model = stir(build(attention=name, n_kv_head=2, log_scale_length=log_scale,
                       **OPTIONS.get(name, {}))).eval()
    attention, x = model.blocks[1].attention, torch.randn(3, 13, 32)
    with torch.no_grad(), analysis.held_shares(model, T):
        held, cache = attention(x), KVCache()
        parts = [attention(part, cache) for part in x.split([7, 1, 5], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), held, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        as_is, (q, k, v) = attention(x), project(attention, x)
        torch.testing.assert_close(held[:, :T], as_is[:, :T])
        for m in range(T, 13):
            grown = math.log(m + 1) / math.log(T) if log_scale else 1
            scores = q @ k.mT / math.sqrt(8)
            if attention.scores is not None:
                scores = attention.scores(q, k)
            weights = (scores / grown)[:, :, m, :m + 1].exp()
            weights[:, :, 0] *= m / (T - 1)
            weights = weights / weights.sum(-1, keepdim=True)
            y = torch.einsum('bhn,bhnd->bhd', weights, v[:, :, :m + 1]).flatten(1)
            torch.testing.assert_close(held[:, m], attention.proj(y), rtol=1e-4, atol=1e-5)
            assert (held[:, m] - as_is[:, m]).abs().max() > 1e-3
    with pytest.raises(UserError, match='T=1: '), analysis.held_shares(model, 1):
        pass


def test_the_share_of_the_first_key_is_held():
    """All scores are zero but that of the first key: from T - 1 on its share stays the same."""
    T, a, S = 8, 1.5, 40
    model = build(attention='nope', n_head=1, log_scale_length=8, n_layer=1)
    q, k, v = torch.zeros(3, 1, 1, S, 32)
    q[..., 0], k[:, :, 0, 0], v[:, :, 0] = math.sqrt(32), a, 1.0
    q = q * ((torch.arange(S) + 1.0).log() / math.log(8))[:, None]
    with analysis.held_shares(model, T):
        shares = model.blocks[0].attention.attend(q, k, v)[0, 0, :, 0]
    expected = math.exp(a) / (math.exp(a) + T - 1)
    assert shares[T - 1:].tolist() == pytest.approx([expected] * 33)


def test_profiles_average_scores_by_distance(monkeypatch):
    """Modulo's one source is the first symbol, if that is C0: at distance t, for every t > 0."""
    monkeypatch.setattr(analysis, 'SCORES_AT_ONCE', 7 * 4 * 12 * 12)  # seven sequences at a time
    model = stir(build(vocab_size=14, attention='bifocal')).eval()
    task = make_task('modulo')
    profile = analysis.score_by_distance(model, task, 12, 50, 'cpu', 'test')
    x, _ = task.sample(make_rng('test', 'modulo', 12), 50, 12)
    x = x[x[:, 0] == 7]
    assert 2 < len(x) < 20 and np.shape(profile) == (2, 4, 12)
    scores = analysis.attention_scores(attentions(model)[0], read_first(model, x))
    expected = scores[:, :, :, 0].mean(0)
    for head in range(4):
        assert profile[0][head][0] is None
        mean = expected[head, 1:].tolist()
        assert profile[0][head][1:] == pytest.approx(mean, rel=2e-3, abs=1e-5)


def test_distance_bias_is_a_difference_of_scores():
    """Where scores depend on the distance alone, it is their difference in every pair."""
    model = build(vocab_size=256).eval()
    with torch.no_grad():
        model.embedding.weight[:] = model.embedding.weight[0]  # every token looks the same
    x = make_rng(0).integers(0, 256, (3, 40))
    scores = analysis.attention_scores(attentions(model)[0], read_first(model, x))
    bias = analysis.distance_bias(model, x, (2, 2), (30, 30), 'cpu', make_rng(1), pairs=2000)[0]
    expected = [(scores[0, h, 35, 33] - scores[0, h, 35, 5]).item() for h in range(4)]
    spread = max(expected) - min(expected)
    assert min(expected) - 1e-4 < bias['mean'] < max(expected) + 1e-4 and bias['sd'] > 0
    assert bias['mean'] == pytest.approx(np.mean(expected), abs=0.1 * spread)


@pytest.mark.parametrize('back', [0, 1, 2])
def test_a_head_that_looks_back_is_found(back):
    """Its scores are 30 at one distance. The other head looks at all keys alike."""
    class Looks(Attention):
        def scores(self, q, k):
            away = (distances(q, k) == back) * torch.tensor([30.0, 0.0])[:, None, None]
            return away.expand(q.size(0), -1, -1, -1)

    model = build(n_head=2, n_layer=2)
    model.blocks[1].attention.__class__ = Looks
    x = np.zeros((2, 12), dtype=np.int64)
    for sharp, blurred in analysis.shares_by_distance(model, x, 'cpu', 3)[1:]:
        assert sharp == pytest.approx([float(d == back) for d in range(3)], abs=1e-4)
        harmonic = [1 / (m + 1) for m in range(2, 12)]
        assert blurred == pytest.approx(3 * [sum(harmonic) / 10], abs=1e-4)


# Eyes


def test_closed_eyes_are_heads_whose_output_is_zero():
    """Heads 0 and 1 are geometric, 2 and 3 spectral."""
    model = stir(build(attention='bifocal', n_kv_head=2)).eval()
    x = torch.arange(20)[None] % 11
    seen, low, high = {}, slice(0, 16), slice(16, 32)

    def look(layer):
        # proj's weights are the identity: what it gives is what it reads
        proj = attentions(model)[layer].proj
        proj.weight.data.copy_(torch.eye(32))
        proj.register_forward_hook(lambda module, inputs, y: seen.update({layer: y}))

    for layer in range(2):
        look(layer)
    with torch.no_grad():
        opened = model(x)[0]
        for kind, closed, others in (('geometric', low, high), ('spectral', high, low)):
            with analysis.closed_eyes(model, kind) as same:
                assert same is model and not torch.allclose(model(x)[0], opened)
            for y in seen.values():
                assert y[..., closed].eq(0).all() and y[..., others].ne(0).all()
            with analysis.closed_eyes(model, kind, [1]):
                model(x)
            assert seen[0].ne(0).all()
            assert seen[1][..., closed].eq(0).all() and seen[1][..., others].ne(0).all()
            with analysis.closed_eyes(model, 'geometric'), analysis.closed_eyes(model, 'spectral'):
                model(x)
            assert all(y.eq(0).all() for y in seen.values())
            assert torch.equal(model(x)[0], opened)  # and they open again
        with pytest.raises(KeyError), analysis.closed_eyes(model, 'spectral'):
            raise KeyError
        assert torch.equal(model(x)[0], opened)


@pytest.mark.parametrize('name, kind', [
    ('rope,nope', 'spectral'), ('spectral', 'geometric'), ('tapa', 'geometric'),
    ('nope', 'geometric'), ('bifocal', 'third')])
def test_eyes_that_are_not_there_cannot_be_closed(name, kind):
    message = f"'{kind}': a model with attention='{name}' has no such eyes"
    with pytest.raises(UserError, match=message):
        with analysis.closed_eyes(build(attention=name), kind):
            pass


def test_eyes_are_those_of_each_layer():
    model = build(attention='bifocal,nope,spectral', n_layer=3)
    assert analysis.eyes(model, 'geometric') == {0: [0, 1]}
    assert analysis.eyes(model, 'spectral') == {0: [2, 3], 2: [0, 1, 2, 3]}
    idx = torch.randint(11, (2, 9))
    with torch.no_grad(), analysis.closed_eyes(model, 'geometric'):
        assert not torch.equal(model(idx)[0], build(attention='nope', n_layer=3)(idx)[0])


# Text


def test_perplexity_by_context_is_what_its_definition_says(folder):  # noqa: F811
    """Each way, one token at a time, with the context written out."""
    model, task = build(vocab_size=256).eval(), make_task(f'text:path={folder}')
    n, T, longest, stride = 8, 16, 32, 8
    table, ways = analysis.measure_contexts(
        model, task, T, [8, 16, 32], n, 'cpu', 'train', stride)
    rng = make_rng('train', 'excerpts')
    excerpts, _ = of_task(task, 'train').excerpts(longest + 1, n, rng)

    @torch.no_grad()
    def nats(excerpt, first, t):
        """Of token t + 1, given those from `first` to t."""
        logits = model(torch.from_numpy(excerpt[None, first:t + 1]))[0][0, -1]
        return F.cross_entropy(logits, torch.tensor(excerpt[t + 1])).item()

    def mean(excerpts, tokens, first):
        return np.mean([nats(e, first(t), t) for e in excerpts for t in tokens])

    for length in (16, 32):
        expected = mean(excerpts, range(longest), lambda t: t // length * length)
        assert ways['non-overlapping'][str(length)]['loss'] == table[str(length)]['loss']
        assert table[str(length)]['loss'] == pytest.approx(expected, rel=1e-4)
        # the first window that reaches t
        expected = mean(excerpts[:4], range(longest),
                        lambda t: max(0, -(-(t + 1 - length) // stride) * stride))
        assert ways['sliding'][str(length)]['loss'] == pytest.approx(expected, rel=1e-4)
        expected = mean(excerpts, range(longest - stride, longest), lambda t: longest - length)
        same = ways['same targets'][str(length)]
        assert same['loss'] == pytest.approx(expected, rel=1e-4)
        assert same['perplexity'] == pytest.approx(math.exp(expected), rel=1e-4)
    with torch.no_grad():
        likeliest = model(torch.from_numpy(excerpts[:, :-1]))[0].argmax(-1).numpy()
    late = (likeliest == excerpts[:, 1:])[:, T:]
    assert table['32']['beyond'] == table['32']['headline_beyond'] == late.mean()
    assert 'beyond' not in table['16']


def test_brackets_count_only_where_their_opener_is_in_sight(folder, monkeypatch):  # noqa: F811
    model, task = build(vocab_size=256).eval(), make_task(f'text:path={folder}')
    table, _ = analysis.measure_contexts(model, task, 64, [8, 64], 16, 'cpu', 'train', 8)
    text = of_task(task, 'train')
    _, places = text.excerpts(65, 16, make_rng('train', 'excerpts'))
    for length in (8, 64):
        inside = [(distance, depth) for place, distance, depth in text.brackets
                  for start in places if start < place <= start + 64
                  and distance <= (place - start - 1) % length + 1]
        cells = table[str(length)]['breakdown']
        assert cells['closing brackets']['right kind'][1] == len(inside) > 0
        assert cells['depth']['2'][1] == sum(depth == 2 for _, depth in inside)
    with torch.no_grad():  # a model that always says ) is right about those of depth 2
        model.lm_head.weight.zero_()[ord(')')] = 1.0
        monkeypatch.setattr(model.norm, 'forward', lambda x: torch.ones_like(x))
    table, _ = analysis.measure_contexts(model, task, 64, [64], 16, 'cpu', 'train', 8)
    cells = table['64']['breakdown']
    assert cells['depth']['2'][0] == 1 and cells['depth']['1'][0] == 0
    both = cells['closing brackets']
    assert both['next token'][0] == both['right kind'][0]


def test_lengths_that_do_not_fit_are_refused(folder):  # noqa: F811
    model, task = build(vocab_size=256), make_task(f'text:path={folder}')
    for lengths, stride in (([12, 32], 4), ([8, 32], 9)):
        with pytest.raises(UserError, match='each length must divide the longest, and none'):
            analysis.measure_contexts(model, task, 8, lengths, 8, 'cpu', 'train', stride)
    with pytest.raises(UserError, match='its test split has 0 excerpts of 8193 tokens, and 4'):
        analysis.measure_contexts(model, task, 8, [8192], 8, 'cpu', 'test', 8)


# Memory


@pytest.mark.parametrize('name', ['rope', 'spectral', 'tapa', 'tapa_fused', 'rope,tapa'])
@pytest.mark.parametrize('B, T, C, nh', [(4, 64, 64, 2), (2, 256, 32, 4)])
def test_the_estimate_of_memory_is_near_what_a_step_saves(name, B, T, C, nh):
    model = build(vocab_size=65, n_embd=C, n_head=nh, attention=name)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.zeros(B, T, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x, x)
    estimate = memory.activation_bytes(model.config, B, T, training=True)
    assert estimate == pytest.approx(sum(saved.values()), rel=0.25)
    assert memory.activation_bytes(model.config, B, T) < estimate


def test_few_sequences_are_read_at_once_where_memory_is_short(monkeypatch):
    config = build(attention='tapa').config
    need = memory.activation_bytes(config, 1, 100)
    for free, expected in ((float('inf'), 2**15 // 100), (40 * need, 10), (need, 1)):
        monkeypatch.setattr(memory, 'free_bytes', lambda device: free)
        assert memory.sequences_at_once(config, 100, 'cpu') == expected
    monkeypatch.setattr(memory, 'free_bytes', lambda device: need - 1)
    with pytest.raises(UserError, match='a context of 100 tokens needs .*tapa.* free on cpu'):
        memory.sequences_at_once(config, 100, 'cpu')


def test_weights_that_fill_the_memory_are_refused(monkeypatch):
    """At half of what the matrices take, and not at a byte more."""
    model = build(vocab_size=50, n_layer=3, n_embd=64)
    weights = 4 * sum(p.numel() for p in model.parameters() if p.dim() > 1)
    monkeypatch.setattr(memory, 'free_bytes', lambda device: weights / 2 - 1)
    with pytest.raises(UserError, match='GiB of memory'):
        memory.check(model.config, 'cpu', 0, 0, 0)
    monkeypatch.setattr(memory, 'free_bytes', lambda device: weights / 2)
    memory.check(model.config, 'cpu', 0, 0, 0)
