"""TAPA by blocks of queries beside TAPA written out."""

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lab import tapa
from lab.bench import ADAMW
from lab.tests.conftest import exact
from model import GPT, TAPA, Attention, GPTConfig
from optim import configure_optimizers


def build(T):
    """TAPA by blocks, random q, k and v (1, 2, T, 16)."""
    # alpha is far enough from 0 that a wrong distance shows
    config = GPTConfig(vocab_size=5, n_head=2, n_embd=32, tapa_alpha=0.3, tapa_theta=0.25)
    torch.manual_seed(0)
    qkv = [torch.randn(1, T, 2, 16).transpose(1, 2).requires_grad_() for _ in range(3)]
    return tapa.TAPAFused(config), qkv


def outcome(attend, qkv):
    """What the heads read, and the gradients of q, k and v."""
    y = attend(*qkv)
    do = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    return y, *torch.autograd.grad(y, qkv, do.to(y.dtype))


@pytest.mark.parametrize('stored', [5, 100], ids=['recomputed', 'stored'])
def test_blocks_change_nothing(stored, monkeypatch):
    """Neither values nor gradients. No block gets a key that none of its queries may see."""
    attention, qkv = build(11)
    expected = outcome(partial(Attention.attend, attention), qkv)
    monkeypatch.setattr(tapa, 'BLOCK', 4)
    monkeypatch.setattr(tapa, 'STORED', stored)
    seen, formula = [], attention.scores

    def scores(q, k):
        seen.append((q.size(2), k.size(2)))
        return formula(q, k)
    attention.scores = scores
    torch.testing.assert_close(outcome(attention.attend, qkv), expected, rtol=1e-3, atol=1e-4)
    blocks = [(4, 4), (4, 8), (3, 11)]
    again = blocks if stored < 11 else []  # in the backward pass
    assert sorted(seen) == sorted(blocks + again)


def test_a_compiled_step_is_one_graph_compiled_once(monkeypatch):
    """Neither a break nor a second compilation. 40 tokens are three blocks, computed anew."""
    monkeypatch.setattr(tapa, 'BLOCK', 16)
    monkeypatch.setattr(tapa, 'STORED', 20)
    torch.compiler.reset()
    counter = CompileCounter()
    model = GPT(GPTConfig(vocab_size=5, n_layer=2, n_head=2, n_embd=16, attention='tapa_fused'))
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    optimizer, = configure_optimizers(model, ADAMW)
    x = torch.randint(5, (2, 40))
    for _ in range(3):
        compiled(x, x)[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counter.frame_count == 1


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
