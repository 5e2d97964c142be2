"""The lab's attentions beside the formulas of their docstrings: tests/test_model.py compares."""

import math

import pytest
import torch

import lab
from lab.tests.conftest import attentions, build, check_page
from model import Attention, UserError, find_frequencies
from tests import test_model

OPTIONS = {'rope_yarn': dict(frequencies='yarn:factor=4,original=9,fast=4'),
           'tapa_linear': dict(tapa_theta=0.25, tapa_alpha=0.3),
           'tapa_fused': dict(tapa_theta=0.25, tapa_alpha=0.3),
           'cope': dict(block_size=4), 'learned': dict(block_size=6)}  # shorter than the string


def rotary(q, k, distance, theta, A=1.0, Phi=0.0, gain=1.0):
    """gain^2 sum_i A_i^2 Re[q_i conj(k_i) e^{1j ((m-n) theta_i + Phi_i)}] / sqrt(hs)."""
    hs = q.size(-1)
    q, k = (torch.complex(*x.chunk(2, dim=-1)) for x in (q, k))
    phasor = A**2 * torch.exp(1j * (distance[..., None] * theta + Phi))
    terms = q[:, :, None] * k[:, None].conj() * phasor  # (B, T, T, P)
    return gain**2 * terms.real.sum(-1) / math.sqrt(hs)


def along_the_path(q, k, distance, steps):
    """`rotary` by the angle that the steps (B, T, P) of the tokens after n, up to m, add up to."""
    path = (distance >= 0).double()  # row m: the tokens up to m
    between = path[:, None] - path  # (T, T, T)
    return rotary(q, k, distance, 0.0, Phi=between @ steps[:, None])


def theta_of(config):
    function, numbers = find_frequencies(config)
    return function(config, **numbers)


# Each of these is the scores (B, T, T) of a head, of q and k (B, T, hs). weights['x'] is the
# layer's input.


def yarn(config, head, weights, q, k, distance):
    return rotary(q, k, distance, theta_of(config), gain=0.1 * math.log(4) + 1)


def shared(config, head, weights, q, k, distance):
    return rotary(q, k, distance, *(weights[name][0] for name in ('Omega', 'A', 'Phi')))


def phase_both(config, head, weights, q, k, distance):
    """Phi stands nowhere: it cancels."""
    return rotary(q, k, distance, weights['Omega'][head], weights['A'][head])


def lerope(config, head, weights, q, k, distance):
    return rotary(q, k, distance, theta_of(config) * weights['s'].exp())


def pope(config, head, weights, q, k, distance):
    """sum_c softplus(q_c) softplus(k_c) cos((m-n) theta_c + delta_c) / sqrt(hs)."""
    hs, scores = q.size(-1), 0
    for c in range(hs):
        theta = config.rope_base ** (-c / hs)
        size = (1 + q[:, :, None, c].exp()).log() * (1 + k[:, None, :, c].exp()).log()
        scores = scores + size * torch.cos(distance * theta + weights['delta'][head, 0, c])
    return scores / math.sqrt(hs)


def accumulated(config, head, weights, q, k, distance):
    """The phase between two tokens is what the tokens from one to the other add up to."""
    return along_the_path(q, k, distance, theta_of(config) + k @ weights['W'][head])


def tapa_linear(config, head, weights, q, k, distance):
    hs_A = q.size(-1) // 4
    hs_P = q.size(-1) - hs_A
    phi = q[..., hs_A:].sum(-1)[:, :, None] + k[..., hs_A:].sum(-1)[:, None]
    angle = 2 * math.pi * distance.abs() ** 0.3 * phi / math.sqrt(hs_P)
    return q[..., :hs_A] @ k[..., :hs_A].mT / math.sqrt(hs_A) * torch.cos(angle)


def alibi(config, head, weights, q, k, distance):
    return q @ k.mT / math.sqrt(q.size(-1)) - 2.0 ** (-8 * (head + 1) / 4) * distance


def t5(config, head, weights, q, k, distance):
    """Near keys have a bucket each; below are the far ones."""
    bias = weights['bias'][head, distance.clamp(min=0).long()]
    return q @ k.mT / math.sqrt(q.size(-1)) + bias


def fox(config, head, weights, q, k, distance):
    gates = weights['x'] @ weights['W'] + weights['b']
    f = 1 / (1 + torch.exp(-gates[:, :, head]))  # (B, T)
    T = q.size(1)
    rows = [torch.stack([f[:, n + 1:m + 1].log().sum(1) for n in range(T)], 1) for m in range(T)]
    return q @ k.mT / math.sqrt(q.size(-1)) + torch.stack(rows, 1)


def cope(config, head, weights, q, k, distance):
    """p counts the gates from n to m; e between two whole numbers is a straight line."""
    scores, e = q @ k.mT / math.sqrt(q.size(-1)), weights['e']
    more = torch.zeros_like(scores)
    for b, m, n in (distance >= 0).expand_as(scores).nonzero().tolist():
        p = (1 / (1 + torch.exp(-scores[b, m, n:m + 1]))).sum().clamp(max=e.size(1) - 1)
        low, share = int(p), p - int(p)
        e_p = (1 - share) * e[:, low] + share * e[:, min(low + 1, e.size(1) - 1)]
        more[b, m, n] = q[b, m] @ e_p
    return scores + more


NAIVE = dict(rope_yarn=yarn, lerope=lerope, pope=pope, accumulated=accumulated,
             spectral_shared=shared, spectral_phase_both=phase_both,
             tapa_fused=test_model.naive_tapa, tapa_linear=tapa_linear, alibi=alibi, t5=t5,
             fox=fox, cope=cope, learned=test_model.naive_nope, sinusoidal=test_model.naive_nope)


def added(config, weights, T):
    """The vectors of the positions that are added to x: (T, C), or 0."""
    if config.attention == 'learned':
        return torch.stack([weights['p'][min(m, 5)] for m in range(T)])
    if config.attention == 'sinusoidal':
        C = config.n_embd
        w = config.rope_base ** (-2 * torch.arange(C // 2).double() / C)
        angle = torch.outer(torch.arange(T).double(), w)
        return torch.cat([angle.sin(), angle.cos()], dim=1)
    return 0


@pytest.mark.parametrize('check', [test_model.test_attention_equals_the_formula_in_float64,
                                   test_model.test_cached_equals_uncached])
@pytest.mark.parametrize('name', [name for name in lab.LAB_ATTENTIONS if name != 'rope_random'])
def test_it_is_an_attention(name, check, monkeypatch):
    """Values and gradients are the formula, and a cache changes nothing."""
    check_page(check, name, NAIVE[name], monkeypatch, added, **OPTIONS.get(name, {}))


def test_yarn_needs_its_frequencies():
    with pytest.raises(UserError, match="frequencies='pi:factor=4': must be yarn:factor=... with"):
        build(attention='rope_yarn', frequencies='pi:factor=4')


# ---- what is special in one of them -------------------------------------------------------------


@pytest.mark.parametrize('kind, name', [('lerope', 's'), ('t5', 'bias'), ('kerple', 'ln_r')])
def test_all_layers_of_a_model_share_what_they_learn(kind, name):
    model = build(attention=f'{kind},rope', n_layer=4)
    first, third = (getattr(attentions(model)[layer], name) for layer in (0, 2))
    assert first is third and len(model.positional_parameters()) == 1


def test_random_positions_are_sorted_and_reach_eight_times_as_far():
    attention = attentions(build(attention='rope_random', n_head=1, n_embd=2, block_size=100))[0]
    attention.theta = torch.tensor([0.001])  # radians a token
    q = torch.tensor([1.0, 0.0]).repeat(1, 1, 100, 1)
    x, y = attention.rotate(q, q, torch.arange(100))[0][0, 0].T
    position = torch.atan2(y, x) / 0.001
    assert (position.diff() > 0).all() and position[0] > 0 and 600 < position[-1] < 800
    q, _ = attention.eval().rotate(q, q, torch.arange(100))
    torch.testing.assert_close(torch.atan2(*q[0, 0].T.flip(0)) / 0.001, torch.arange(100.0))


def test_far_buckets_of_t5_grow_like_the_logarithm():
    attention = attentions(build(attention='t5', n_head=1))[0]
    with torch.no_grad():
        attention.bias.copy_(torch.arange(32)[None])
    zeros = torch.zeros(1, 1, 200, 32)
    buckets = attention.scores(zeros[:, :, :1], zeros).flatten().flip(0).tolist()
    far = [min(31, 16 + int(16 * math.log(distance / 16, 8))) for distance in range(16, 200)]
    assert buckets == [*range(16), *far]


@pytest.mark.parametrize('name', ['learned', 'sinusoidal'])
def test_only_the_first_layer_adds_positions(name):
    first, second = attentions(build(attention=name))
    x = torch.randn(2, 9, 32)
    torch.testing.assert_close(second(x), Attention.forward(second, x))
    assert not torch.allclose(first(x), Attention.forward(first, x))


def test_an_accumulated_phase_can_count():
    model = build(attention='accumulated', n_head=1, n_embd=8, frequencies='partial:keep=0')
    attention = attentions(model)[0]
    ones = torch.randint(2, (512,), generator=torch.Generator().manual_seed(1))
    ones[0] = 0  # the start symbol
    q, k = torch.zeros(2, 1, 1, 512, 8)
    q[..., 0] = 1  # pair 0 of every token is 1 + 0j
    k[..., 0] = 1
    k[..., 1] = ones  # and a number of the key says whether it is a one
    with torch.no_grad():
        attention.W.zero_()
        attention.W[0, 1, 0] = math.pi  # which turns pair 0 by half a turn
    odd = attention.scores(q, k)[0, 0, :, 0] < 0
    assert torch.equal(odd, ones.cumsum(dim=0) % 2 == 1)
