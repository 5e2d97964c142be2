"""TAPA by blocks of queries beside TAPA written out."""

from functools import partial

import pytest
import torch

from lab import tapa
from model import TAPA, Attention, GPTConfig


def build(T, n_kv_head=2, **options):
    """TAPA by blocks, random q (1, 2, T, 16) and k, v (1, nkv, T, 16)."""
    # alpha is far enough from 0 that a wrong distance shows
    options = dict(tapa_alpha=0.3) | options
    config = GPTConfig(vocab_size=5, n_head=2, n_kv_head=n_kv_head, n_embd=32,
                       attention='tapa_fused', **options)
    torch.manual_seed(0)
    qkv = [torch.randn(1, T, heads, 16).transpose(1, 2).requires_grad_()
           for heads in (2, n_kv_head, n_kv_head)]
    return tapa.TAPAFused(config), qkv


def outcome(attend, qkv):
    """What the heads read, and the gradients of q, k and v."""
    y = attend(*qkv)
    return y, *torch.autograd.grad(y.square().sum(), qkv)


@pytest.mark.parametrize('T', [8, 11], ids=['two blocks', 'two and a part'])
@pytest.mark.parametrize('stored', [5, 100], ids=['recomputed', 'stored'])
@pytest.mark.parametrize('options', [{}, dict(tapa_theta=0.25, n_kv_head=1)], ids=str)
def test_blocks_change_nothing(T, stored, options, monkeypatch):
    """Neither values nor gradients. No block gets a key that none of its queries may see."""
    attention, qkv = build(T, **options)
    expected = outcome(partial(Attention.attend, attention), qkv)
    monkeypatch.setattr(tapa, 'BLOCK', 4)
    monkeypatch.setattr(tapa, 'STORED', stored)
    seen, formula = [], TAPA.scores

    def scores(self, q, k):
        seen.append((q.size(2), k.size(2)))
        return formula(self, q, k)
    monkeypatch.setattr(TAPA, 'scores', scores)
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
