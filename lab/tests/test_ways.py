"""The attentions of lab/ways.py beside the formulas of their docstrings."""

import math

import pytest
import torch

from lab.tests.conftest import build, check_page
from lab.tests.test_attentions import along_the_path, rotary, theta_of
from lab.ways import WAYS
from tests import test_model

ways = pytest.mark.parametrize('name', WAYS)


# Each of these is the scores (B, T, T) of a head, of q and k (B, T, hs). weights['x'] is the
# layer's input.


def path(config, head, weights, q, k, distance):
    """Reflection by reflection, from the key on to the query."""
    B, T, hs = q.shape
    x, W = weights['x'], weights['reflect.weight'][head * hs:(head + 1) * hs]
    scores = torch.zeros(B, T, T).double()
    for b in range(B):
        w = [W @ x[b, t] / (W @ x[b, t]).norm() for t in range(T)]
        beta = [2 / (1 + torch.exp(-x[b, t] @ weights['u'][:, head] - weights['b'][head]))
                for t in range(T)]
        H = [torch.eye(hs).double() - beta[t] * torch.outer(w[t], w[t]) for t in range(T)]
        for n in range(T):
            key = k[b, n]
            for m in range(n, T):
                if m > n:
                    key = H[m] @ key
                scores[b, m, n] = key @ q[b, m]
    return scores / math.sqrt(hs)


def kerple(config, head, weights, q, k, distance):
    r_1, r_2 = weights['ln_r'][:, head].exp()
    return q @ k.mT / math.sqrt(q.size(-1)) - r_1 * torch.log(1 + r_2 * distance.clamp(min=0))


def xpos(config, head, weights, q, k, distance):
    P = q.size(-1) // 2
    zeta = (torch.arange(P).double() / P + 0.4) / 1.4
    fade = zeta ** (distance[..., None] / 512)  # (T, T, P)
    return rotary(q, k, distance, theta_of(config), A=fade.sqrt())


def selective(config, head, weights, q, k, distance):
    P = q.size(-1) // 2
    W, b = weights['turn.weight'][head * P:(head + 1) * P], weights['b'][head, 0]
    return along_the_path(q, k, distance, theta_of(config) * (weights['x'] @ W.T + b.exp()))


NAIVE = dict(path=path, kerple=kerple, xpos=xpos, selective=selective)


@ways
@pytest.mark.parametrize('check', [test_model.test_attention_equals_the_formula_in_float64,
                                   test_model.test_the_future_never_changes_the_past,
                                   test_model.test_cached_equals_uncached])
def test_it_is_an_attention(check, name, monkeypatch):
    """Values and gradients are the formula; later tokens change nothing, and a cache neither."""
    assert name in NAIVE, 'write its formula in this file, and name it in NAIVE'
    check_page(check, name, NAIVE[name], monkeypatch, block_size=4)  # strings have 9 tokens


@ways
def test_long_strings_under_autocast_have_finite_gradients(name):
    model = build(attention=name, n_layer=1, n_head=1, n_embd=8)
    idx = torch.randint(11, (1, 1500), generator=torch.Generator().manual_seed(0))
    with torch.autocast('cpu', torch.bfloat16):
        model(idx, idx)[1].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
