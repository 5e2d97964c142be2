"""The attentions of lab/ways.py beside the formulas of their docstrings."""

import math

import pytest
import torch

from lab.tests.conftest import attentions, build, stir
from lab.ways import WAYS
from model import KVCache
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
    P, scores = q.size(-1) // 2, 0
    for i in range(P):
        zeta = (i / P + 0.4) / 1.4
        phasor = torch.exp(1j * distance * config.rope_base ** (-i / P)) * zeta ** (distance / 512)
        ours, theirs = (torch.complex(x[..., i], x[..., i + P]) for x in (q, k))
        scores = scores + (ours[:, :, None] * theirs[:, None].conj() * phasor).real
    return scores / math.sqrt(2 * P)


NAIVE = dict(path=path, kerple=kerple, xpos=xpos)


@ways
def test_values_and_gradients_are_the_formula(name, monkeypatch):
    naive = test_model.naive_attention

    def with_input(config, weights, x):
        weights['x'] = x
        return naive(config, weights, x)

    monkeypatch.setattr(test_model, 'naive_attention', with_input)
    monkeypatch.setitem(test_model.NAIVE, name, NAIVE[name])
    monkeypatch.setitem(test_model.ARMS, name, dict(attention=name))
    test_model.test_attention_equals_the_formula_in_float64(name)


@ways
def test_a_cache_changes_nothing(name):
    layer = attentions(stir(build(attention=name)))[0]
    x, cache = torch.randn(2, 11, layer.config.n_embd), KVCache()
    parts = torch.cat([layer(part, cache) for part in x.split([4, 1, 6], dim=1)], dim=1)
    torch.testing.assert_close(parts, layer(x))


@ways
def test_later_tokens_change_nothing(name):
    layer = attentions(stir(build(attention=name)))[0]
    x = torch.randn(2, 11, layer.config.n_embd)
    other = torch.cat([x[:, :6], torch.randn_like(x[:, 6:])], dim=1)
    torch.testing.assert_close(layer(x)[:, :6], layer(other)[:, :6])


@ways
def test_long_strings_under_autocast_have_finite_gradients(name):
    model = build(attention=name)
    idx = torch.randint(11, (1, 1500), generator=torch.Generator().manual_seed(0))
    with torch.autocast('cpu', torch.bfloat16):
        model(idx, idx)[1].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_reflections_can_count():
    """With two states: a one turns the key's sign, so the score tells even from odd."""
    layer = attentions(build(attention='path', n_head=1, n_embd=8))[0]
    ones = torch.randint(2, (512,), generator=torch.Generator().manual_seed(1))
    ones[0] = 0  # the start symbol
    q, k = torch.zeros(2, 1, 1, 512, 17)
    q[..., 0] = 1
    k[..., 0] = 1
    k[..., 8] = 1  # w is the direction of the key
    k[..., 16] = 200 * ones - 100  # and beta is 2 for a one, else 0
    odd = layer.scores(q, k)[0, 0, :, 0] < 0
    assert torch.equal(odd, ones.cumsum(dim=0) % 2 == 1)


def test_all_layers_share_the_penalty_of_kerple():
    first, second = attentions(build(attention='kerple'))
    assert first.ln_r is second.ln_r


def test_pairs_of_xpos_fade_by_the_papers_shares():
    layer = attentions(build(attention='xpos', n_head=1, n_embd=8))[0]
    x = torch.ones(1, 1, 2, 8)
    q, k = layer.rotate(x, x, torch.tensor([0, 512]))
    q_pairs, k_pairs = (z.unflatten(-1, (2, 4))[0, 0, 1].norm(dim=0) / 2**0.5 for z in (q, k))
    shares = torch.tensor([0.4, 0.65, 0.9, 1.15]) / 1.4
    torch.testing.assert_close(q_pairs, shares)
    torch.testing.assert_close(k_pairs, 1 / shares)
