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


def build(T, dtype=torch.float32, theta=0.5):
    """TAPA by blocks, random q, k and v (1, 2, T, 16)."""
    # alpha is far enough from 0 that a wrong distance shows
    config = GPTConfig(vocab_size=5, n_head=2, n_embd=32, tapa_alpha=0.3, tapa_theta=theta)
    torch.manual_seed(0)
    qkv = [torch.randn(1, T, 2, 16, dtype=dtype).transpose(1, 2).requires_grad_()
           for _ in range(3)]
    return tapa.TAPAFused(config), qkv


def outcome(attend, qkv):
    """What the heads read, and the gradients of q, k and v."""
    y = attend(*qkv)
    do = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    return y, *torch.autograd.grad(y, qkv, do.to(y.dtype))


def spy(monkeypatch, seen, describe):
    """Put what `describe(q, k, scores)` says of each call of the formula into the list `seen`."""
    formula = model.TAPA.scores

    def scores(self, q, k):
        found = formula(self, q, k)
        seen.append(describe(q, k, found))
        return found
    monkeypatch.setattr(model.TAPA, 'scores', scores)


@pytest.mark.parametrize('T, blocks', [(8, [(4, 4), (4, 8)]), (11, [(4, 4), (4, 8), (3, 11)])])
@pytest.mark.parametrize('stored', [5, 100], ids=['recomputed', 'stored'])
@pytest.mark.parametrize('theta', [0.5, 0.25])
def test_blocks_change_nothing(T, blocks, stored, theta, monkeypatch):
    """Neither values nor gradients. No block gets a key that none of its queries may see."""
    attention, qkv = build(T, theta=theta)
    expected = outcome(partial(model.Attention.attend, attention), qkv)
    monkeypatch.setattr(tapa, 'BLOCK', 4)
    monkeypatch.setattr(tapa, 'STORED', stored)
    seen = []
    spy(monkeypatch, seen, lambda q, k, scores: (q.size(2), k.size(2)))
    torch.testing.assert_close(outcome(attention.attend, qkv), expected, rtol=1e-3, atol=1e-4)
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
    attention = TAPA(GPTConfig(vocab_size=5, n_head=2, n_embd=64, tapa_alpha=alpha))
    q, k, v = torch.randn(3, 2, 2, 64, 32)
    qkv = [x.requires_grad_() for x in (size * q, size * k, v)]
    doubles = [x.detach().double().requires_grad_() for x in qkv]
    _, *ours = outcome(attention.attend, qkv)
    _, *theirs = outcome(partial(exact, alpha=alpha), doubles)
    for x, y in zip(ours[:2], theirs):
        assert low <= ((x.double() - y).norm() / y.norm()).item() < high
