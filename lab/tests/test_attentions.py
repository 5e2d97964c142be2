"""The lab's attentions beside the formulas of their docstrings: tests/test_model.py compares."""

import math

import pytest
import torch

import lab
from lab.analysis import frequency_table
from lab.tests.conftest import build
from model import FREQUENCIES, UserError
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


def theta_of(config):
    return FREQUENCIES[config.frequencies_name](config)


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
    steps = theta_of(config) + k @ weights['W'][head]  # (B, T, P)
    path = (distance >= 0).double()  # row m: the tokens up to m
    between = path[:, None] - path  # (T, T, T)
    return rotary(q, k, distance, 0.0, Phi=between @ steps[:, None])


def tapa_linear(config, head, weights, q, k, distance):
    hs_A = q.size(-1) // 4
    hs_P = q.size(-1) - hs_A
    phi = q[..., hs_A:].sum(-1)[:, :, None] + k[..., hs_A:].sum(-1)[:, None]
    angle = 2 * math.pi * distance.abs() ** 0.3 * phi / math.sqrt(hs_P)
    return q[..., :hs_A] @ k[..., :hs_A].mT / math.sqrt(hs_A) * torch.cos(angle)


def alibi(config, head, weights, q, k, distance):
    return q @ k.mT / math.sqrt(q.size(-1)) - 2.0 ** (-8 * (head + 1) / 4) * distance


def t5(config, head, weights, q, k, distance):
    """Near keys have a bucket each; test_phases.py has the far ones."""
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
        w = 10000 ** (-2 * torch.arange(C // 2).double() / C)
        angle = torch.outer(torch.arange(T).double(), w)
        return torch.cat([angle.sin(), angle.cos()], dim=1)
    return 0


@pytest.mark.parametrize('name', [name for name in lab.LAB_ATTENTIONS if name != 'rope_random'])
def test_values_and_gradients_are_the_formula(name, monkeypatch):
    naive = test_model.naive_attention

    def with_positions(config, weights, x):
        weights['x'] = x + added(config, weights, x.size(1))
        return naive(config, weights, weights['x'])

    monkeypatch.setattr(test_model, 'naive_attention', with_positions)
    monkeypatch.setitem(test_model.NAIVE, name, NAIVE[name])
    options = dict(attention=name) | OPTIONS.get(name, {})
    monkeypatch.setitem(test_model.ARMS, name, options)
    test_model.test_attention_equals_the_formula_in_float64(name)


@pytest.mark.parametrize('name, page', [('tapa_fused', 'tapa'), ('tapa_linear', 'tapa'),
                                        ('rope_yarn', 'rope'), ('spectral_phase_both', 'spectral')])
def test_it_has_the_weights_of_the_pages_class(name, page):
    ours, theirs = (build(attention=each, **OPTIONS.get(name, {})) for each in (name, page))
    for (key, one), (other, two) in zip(ours.state_dict().items(), theirs.state_dict().items(),
                                        strict=True):
        assert key == other and torch.equal(one, two)


def test_all_heads_of_a_layer_share_one_rotation():
    model = build(attention='spectral_shared')
    assert {p.shape for p in model.positional_parameters()} == {(1, 4)}
    assert {p.requires_grad for p in model.positional_parameters()} == {True}
    assert [row['pair'] for row in frequency_table(model, 7)] == 2 * [0, 1, 2, 3]


def test_yarn_needs_its_frequencies():
    with pytest.raises(UserError, match="frequencies='pi:factor=4': must be yarn:factor=... with"):
        build(attention='rope_yarn', frequencies='pi:factor=4')
