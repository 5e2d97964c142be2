"""TAPA by blocks of queries beside TAPA written out."""

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import model
from lab import tapa
from lab.bench import ADAMW
from lab.tests.conftest import exact
from model import GPT, TAPA, GPTConfig
from optim import configure_optimizers


def build(T, dtype=torch.float32, **options):
    """TAPA by blocks, random q, k and v (1, 2, T, 16)."""
    # alpha is far enough from 0 that a wrong distance shows
    options = dict(tapa_alpha=0.3) | options
    config = GPTConfig(vocab_size=5, n_head=2, n_embd=32, attention='tapa_fused', **options)
    torch.manual_seed(0)
    qkv = [torch.randn(1, T, 2, 16, dtype=dtype).transpose(1, 2).requires_grad_()
           for _ in range(3)]
    return tapa.TAPAFused(config), qkv


def outcome(attend, qkv):
    """What the heads read, and the gradients of q, k and v."""
    y = attend(*qkv)
    return y, *torch.autograd.grad(y.square().sum(), qkv)


def spy(monkeypatch, seen, describe):
    """Put what `describe(q, k, scores)` says of each call of the formula into the list `seen`."""
    formula = model.TAPA.scores

    def scores(self, q, k):
        found = formula(self, q, k)
        seen.append(describe(q, k, found))
        return found
    monkeypatch.setattr(model.TAPA, 'scores', scores)


@pytest.mark.parametrize('T', [8, 11], ids=['two blocks', 'two and a part'])
@pytest.mark.parametrize('stored', [5, 100], ids=['recomputed', 'stored'])
@pytest.mark.parametrize('options', [{}, dict(tapa_theta=0.25)], ids=str)
def test_blocks_change_nothing(T, stored, options, monkeypatch):
    """Neither values nor gradients. No block gets a key that none of its queries may see."""
    attention, qkv = build(T, **options)
    expected = outcome(partial(model.Attention.attend, attention), qkv)
    monkeypatch.setattr(tapa, 'BLOCK', 4)
    monkeypatch.setattr(tapa, 'STORED', stored)
    seen = []
    spy(monkeypatch, seen, lambda q, k, scores: (q.size(2), k.size(2)))
    for ours, whole in zip(outcome(attention.attend, qkv), expected):
        torch.testing.assert_close(ours, whole, rtol=1e-3, atol=1e-4)
    blocks = [(min(4, T - start), min(start + 4, T)) for start in range(0, T, 4)]
    assert seen[:len(blocks)] == blocks
    # the backward pass computes them anew, or not at all
    assert sorted(seen[len(blocks):]) == (sorted(blocks) if stored < T else [])

    q, k, v = qkv
    seen.clear()
    with torch.no_grad():
        end = attention.attend(q[:, :, 5:], k, v)  # queries that go on after five tokens
    torch.testing.assert_close(end, expected[0][:, :, 5:], rtol=1e-3, atol=1e-4)
    assert sum(queries for queries, _ in seen) == T - 5 and seen[-1][1] == T


@pytest.fixture
def small(monkeypatch):
    """40 tokens are three blocks, which are computed anew."""
    for name, value in dict(BLOCK=16, STORED=20).items():
        monkeypatch.setattr(tapa, name, value)


def test_phases_are_float32_under_autocast(small, monkeypatch):
    seen = []
    attention, qkv = build(40, torch.bfloat16)
    spy(monkeypatch, seen,
        lambda q, k, scores: (torch.is_autocast_enabled('cpu'), scores.dtype))
    with torch.autocast('cpu', dtype=torch.bfloat16):
        attention.attend(*qkv).sum().backward()
    assert seen == [(False, torch.float32)] * 2 * 3
    assert qkv[0].grad.dtype == torch.bfloat16


def test_a_compiled_step_is_one_graph_compiled_once(small):
    """Neither a break nor a second compilation; validation, without gradients, has a graph."""
    torch.compiler.reset()
    counter = CompileCounter()
    model = GPT(GPTConfig(vocab_size=5, n_layer=2, n_head=2, n_embd=16, attention='tapa_fused'))
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    optimizer, = configure_optimizers(model, ADAMW)
    x = torch.randint(5, (2, 40))
    for _ in range(4):
        compiled(x, x)[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counter.frame_count == 1
    with torch.no_grad():
        compiled(x, x)
    assert counter.frame_count == 2


@pytest.mark.parametrize('size, alpha, low, high', [
    (1, 0.1, 0, 1e-5), (1, 0.5, 0, 1e-4), (8, 1.0, 1e-3, 0.1), (16, 1.0, 0.3, 2)])
def test_from_where_on_float32_means_nothing(size, alpha, low, high):
    """The greatest amplitude times the greatest angle: up to 1e5, 2e7, and beyond 1e8 radians."""
    torch.manual_seed(0)
    T, hs_P = 64, 16
    attention = TAPA(GPTConfig(vocab_size=5, n_head=2, n_embd=64, tapa_alpha=alpha))
    q, k, v, do = torch.randn(4, 2, 2, T, 2 * hs_P)
    q, k = size * q, size * k
    formula = partial(exact, alpha=alpha)
    gradients = []
    for attend, dtype in ((attention.attend, torch.float32), (formula, torch.float64)):
        inputs = [x.to(dtype, copy=True).requires_grad_() for x in (q, k, v)]
        gradients.append(torch.autograd.grad(attend(*inputs), inputs[:2], do.to(dtype)))
    for ours, theirs in zip(*gradients):
        assert low <= ((ours.double() - theirs).norm() / theirs.norm()).item() < high
