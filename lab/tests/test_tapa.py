"""TAPA by blocks of queries beside TAPA in one piece, and what torch.compile makes of both."""

import math

import pytest
import torch

from lab import tapa
from model import GPT, TAPA, GPTConfig, Way


def build(T, dtype=torch.float32, **options):
    """A TAPA module and random q, k, v (1, 2, T, 16). alpha is far enough from 0 that a wrong distance shows."""
    config = GPTConfig(**dict(dict(vocab_size=5, n_head=2, n_embd=32, attention='tapa', tapa_alpha=0.3), **options))
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, T, 2, 16, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3))
    return TAPA(config), q, k, v


def outcome(attend, *qkv):
    """What the heads read, and the gradients of q, k and v."""
    y = attend(*qkv)
    return y, *torch.autograd.grad(y.square().sum(), qkv)


@pytest.mark.parametrize('T', [8, 11, 12], ids=['two blocks', 'two and a part', 'three'])
@pytest.mark.parametrize('stored', [5, 100], ids=['recomputed', 'stored'])
def test_blocks_change_nothing(T, stored, monkeypatch):
    """Neither values nor gradients; no block computes a score that all of its queries mask."""
    way, q, k, v = build(T)
    expected = outcome(lambda *qkv: Way.forward(way, *qkv), q, k, v)
    monkeypatch.setattr(tapa, 'BLOCK', 4)
    monkeypatch.setattr(tapa, 'STORED', stored)
    seen, scores = [], TAPA.scores

    def spy(way, q, k):
        seen.append((q.size(2), k.size(2)))
        return scores(way, q, k)
    monkeypatch.setattr(TAPA, 'scores', spy)
    for ours, whole in zip(outcome(lambda *qkv: tapa.attend(way, *qkv), q, k, v), expected):
        torch.testing.assert_close(ours, whole, rtol=1e-3, atol=1e-4)
    blocks = [(min(4, T - start), min(start + 4, T)) for start in range(0, T, 4)]
    anew = sorted(blocks) if stored < T else []
    assert seen[:len(blocks)] == blocks and sorted(seen[len(blocks):]) == anew
    seen.clear()
    with torch.no_grad():
        end = tapa.attend(way, q[:, :, 5:], k, v)  # queries that continue five tokens
        torch.testing.assert_close(end, expected[0][:, :, 5:], rtol=1e-3, atol=1e-4)
        assert sum(queries for queries, _ in seen) == T - 5 and seen[-1][1] == T


def test_a_long_text_goes_by_blocks(monkeypatch):
    """Beyond 128 keys, whatever the number of queries, and not before."""
    calls, attend = [], tapa.attend

    def spy(way, q, k, v):
        calls.append((q.size(2), k.size(2)))
        return attend(way, q, k, v)
    monkeypatch.setattr(tapa, 'attend', spy)
    way, q, k, v = build(129)
    with torch.no_grad():
        whole = way(q, k, v)
        torch.testing.assert_close(whole, Way.forward(way, q, k, v), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(way(q[:, :, -1:], k, v), whole[:, :, -1:], rtol=1e-3, atol=1e-4)
        way(q[:, :, :128], k[:, :, :128], v[:, :, :128])
    assert calls == [(129, 129), (1, 129)]


@pytest.mark.parametrize('T', [40, 1100])
def test_a_model_cast_as_a_whole_keeps_the_distances(T):
    """bfloat16 has too few numbers for |m-n|^alpha: a thousandth of a turn, times the phase."""
    way, q, k, v = build(T)
    q, k, v = (2 * x.detach() for x in (q, k, v))
    q_A, q_P, k_A, k_P = (part.double() for x in (q, k) for part in x.chunk(2, dim=-1))
    apart = torch.arange(T)[:, None] - torch.arange(T)
    turns = apart.abs().double() ** 0.3 * (q_P @ k_P.mT) / math.sqrt(8)
    scores = q_A @ k_A.mT / math.sqrt(8) * torch.cos(2 * math.pi * turns)
    expected = scores.masked_fill(apart < 0, float('-inf')).softmax(-1) @ v.double()
    torch.testing.assert_close(way.bfloat16()(q, k, v), expected.float(), rtol=0, atol=2e-3)


@pytest.mark.parametrize('T', [40, 1100])
def test_phases_are_float32_under_autocast(T, monkeypatch):
    seen, scores = [], TAPA.scores

    def spy(way, q, k):
        seen.append((torch.is_autocast_enabled('cpu'), scores(way, q, k).dtype))
        return scores(way, q, k)
    monkeypatch.setattr(TAPA, 'scores', spy)
    way, q, k, v = build(T, torch.bfloat16)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        way(q, k, v).sum().backward()
    times = 1 if T == 40 else 2 * 9  # nine blocks, each also computed anew for its gradients
    assert seen == [(False, torch.float32)] * times
    assert q.grad.dtype == torch.bfloat16


@pytest.mark.parametrize('T, fullgraph', [(40, True), (1100, True), (2200, False)])
def test_compiled_it_is_the_same(T, fullgraph):
    """In one graph with the model around it, up to UNROLLED queries."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=5, n_layer=1, n_head=1, n_embd=16, attention='tapa', tapa_alpha=0.3))
    idx = torch.randint(5, (1, T))
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=fullgraph, backend='aot_eager')
    gradients = []
    for each in (compiled, model):
        loss = each(idx, idx)[1]
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    if not fullgraph:
        torch.compiler.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(model, fullgraph=True, backend='aot_eager')(idx, idx)


def test_a_warning_leaves_no_break_in_a_graph():
    def double(x):
        tapa.warn('TAPA runs without its fused kernel')
        return 2 * x
    with pytest.warns(UserWarning, match='without its fused kernel'):
        y = torch.compile(double, fullgraph=True, backend='eager')(torch.ones(3))
    assert y.eq(2).all()
