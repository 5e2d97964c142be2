"""The lab's attentions beside the formulas of their docstrings, in float64, a head at a time."""

import copy
import math
from functools import partial

import pytest
import torch

import lab
from lab.analysis import frequency_table
from lab.tests.conftest import attentions, build, stir
from model import UserError

OPTIONS = {'rope_yarn': dict(frequencies='yarn:factor=4,original=9,fast=4'),
           'tapa_linear': dict(tapa_theta=0.25, tapa_alpha=0.3),
           'tapa_fused': dict(tapa_theta=0.25, tapa_alpha=0.3),
           'cope': dict(block_size=4), 'learned': dict(block_size=6)}  # shorter than the string


def distances(q):
    position = torch.arange(len(q))
    return position[:, None] - position  # (T, T)


def plain(q, k):
    return q @ k.mT / math.sqrt(q.size(1))


def rotary(q, k, theta, A=1.0, Phi=0.0, gain=1.0):
    """gain^2 sum_i A_i^2 Re[q_i conj(k_i) e^{1j ((m-n) theta_i + Phi_i)}] / sqrt(hs)."""
    pairs = [torch.complex(*x.chunk(2, dim=-1)) for x in (q, k)]
    products = pairs[0][:, None] * pairs[1].conj()  # (T, T, P)
    phasor = A**2 * torch.exp(1j * (distances(q)[..., None] * theta + Phi))
    return gain**2 * (products * phasor).real.sum(-1) / math.sqrt(q.size(1))


# Each of these is the scores (T, T) of a head: of q and k (T, hs), and x (T, C), the layer's input.


def rope(attention, head, q, k, x):
    return rotary(q, k, attention.theta)


def yarn(attention, head, q, k, x):
    return rotary(q, k, attention.theta, gain=0.1 * math.log(4) + 1)


def shared(attention, head, q, k, x):
    return rotary(q, k, *(p[0] for p in (attention.Omega, attention.A, attention.Phi)))


def phase_both(attention, head, q, k, x):
    """Phi stands nowhere: it cancels."""
    return rotary(q, k, attention.Omega[head // 2], attention.A[head // 2])


def lerope(attention, head, q, k, x):
    return rotary(q, k, attention.theta * attention.s.exp())


def pope(attention, head, q, k, x):
    """sum_c softplus(q_c) softplus(k_c) cos((m-n) theta_c + delta_c) / sqrt(hs)."""
    hs, scores = q.size(1), 0
    for c in range(hs):
        theta = attention.config.rope_base ** (-c / hs)
        size = (1 + q[:, None, c].exp()).log() * (1 + k[:, c].exp()).log()
        scores = scores + size * torch.cos(distances(q) * theta + attention.delta[head, 0, c])
    return scores / math.sqrt(hs)


def accumulated(attention, head, q, k, x):
    """The phase between two tokens is what the tokens from one to the other add up to."""
    steps = attention.theta + k @ attention.W[head]  # (T, P)
    path = (distances(q) >= 0).double()  # row m: the tokens up to m
    between = path[:, None] - path  # (T, T, T)
    return rotary(q, k, 0.0, Phi=between @ steps)


def tapa(attention, head, q, k, x, linear=False):
    hs_A = q.size(1) // 4
    hs_P = q.size(1) - hs_A
    phi = plain(q[:, hs_A:], k[:, hs_A:])
    if linear:
        phi = (q[:, hs_A:].sum(-1)[:, None] + k[:, hs_A:].sum(-1)) / math.sqrt(hs_P)
    amplitude = plain(q[:, :hs_A], k[:, :hs_A])
    return amplitude * torch.cos(2 * math.pi * distances(q).abs().double() ** 0.3 * phi)


def tapa_linear(*arguments):
    return tapa(*arguments, linear=True)


def nope(attention, head, q, k, x):
    return plain(q, k)


def alibi(attention, head, q, k, x):
    return plain(q, k) - 2.0 ** (-8 * (head + 1) / 4) * distances(q)


def t5(attention, head, q, k, x):
    edges = 16 * 8 ** (torch.arange(1, 16) / 16)  # from 16 on, sixteen buckets as far as 128
    distance = distances(q).clamp(min=0)
    bucket = distance.clamp(max=16) + (distance[..., None] >= edges).sum(-1)
    return plain(q, k) + attention.bias[head, bucket]


def fox(attention, head, q, k, x):
    f = 1 / (1 + torch.exp(-(x @ attention.W + attention.b)[:, head // 2]))  # (T,)
    rows = [[f[n + 1:m + 1].log().sum() for n in range(len(q))] for m in range(len(q))]
    return plain(q, k) + torch.stack([torch.stack(row) for row in rows])


def cope(attention, head, q, k, x):
    """p counts the gates from n to m; e between two whole numbers is a straight line."""
    scores, e = plain(q, k), attention.e
    rows = []
    for m in range(len(q)):
        gates = 1 / (1 + torch.exp(-scores[m]))
        for n in range(len(q)):
            p = gates[n:m + 1].sum().clamp(max=e.size(1) - 1)
            low, share = int(p), p - int(p)
            e_p = (1 - share) * e[:, low] + share * e[:, min(low + 1, e.size(1) - 1)]
            rows.append(scores[m, n] + q[m] @ e_p)
    return torch.stack(rows).view_as(scores)


NAIVE = dict(rope_yarn=yarn, rope_random=rope, lerope=lerope, pope=pope, accumulated=accumulated,
             spectral_shared=shared, spectral_phase_both=phase_both,
             tapa_fused=tapa, tapa_linear=tapa_linear, alibi=alibi, t5=t5, fox=fox, cope=cope,
             learned=nope, sinusoidal=nope)


def added(name, attention, position):
    """The vectors of the positions (T,) that are added to x: (T, C), or 0."""
    if name == 'learned':
        return torch.stack([attention.p[min(m, 5)] for m in position])
    if name == 'sinusoidal':
        C = attention.config.n_embd
        w = 10000 ** (-2 * torch.arange(C // 2).double() / C)
        angle = torch.outer(position.double(), w)
        return torch.cat([angle.sin(), angle.cos()], dim=1)
    return 0


def naive(name, attention, x):
    """What the layer gives for x (T, C)."""
    config = attention.config
    hs, nh, nkv = config.head_size, config.n_head, config.n_kv_head
    x = x + added(name, attention, torch.arange(len(x)))
    q, k, v = (attention.qkv.weight @ x.mT).view(-1, hs, len(x)).mT.split([nh, nkv, nkv])
    heads = []
    for h in range(nh):
        group = h // (nh // nkv)
        scores = NAIVE[name](attention, h, q[h], k[group], x)
        weights = scores.masked_fill(distances(q[h]) < 0, float('-inf')).softmax(-1)
        heads.append(weights @ v[group])
    return attention.proj(torch.cat(heads, dim=-1))


@pytest.mark.parametrize('name', lab.LAB_ATTENTIONS)
def test_values_and_gradients_are_the_formula(name):
    model = build(attention=name, n_kv_head=2, **OPTIONS.get(name, {})).eval()
    ours = attentions(stir(model))[0]
    exact = copy.deepcopy(ours).double()
    x = torch.randn(19, 32)
    found = []
    forwards = (ours, lambda x: ours(x[None])[0]), (exact, partial(naive, name, exact))
    for attention, forward in forwards:
        inputs = x.to(attention.qkv.weight.dtype, copy=True).requires_grad_()
        parameters = [inputs, *(p for p in attention.parameters() if p.requires_grad)]
        y = forward(inputs)
        gradients = torch.autograd.grad(y.square().sum(), parameters, allow_unused=True)
        zeros = (torch.zeros_like(p) for p in parameters)
        found.append([y, *(z if g is None else g for g, z in zip(gradients, zeros))])
    for a, b in zip(*found):
        assert (a.double() - b).norm() <= 1e-4 * b.norm() + 1e-5


@pytest.mark.parametrize('name, page', [('tapa_fused', 'tapa'), ('tapa_linear', 'tapa'),
                                        ('rope_yarn', 'rope'), ('spectral_phase_both', 'spectral')])
def test_it_has_the_weights_of_the_pages_class(name, page):
    ours, theirs = (build(attention=each, **OPTIONS.get(name, {})) for each in (name, page))
    for (key, one), (other, two) in zip(ours.state_dict().items(), theirs.state_dict().items(),
                                        strict=True):
        assert key == other and torch.equal(one, two)
    if name == 'tapa_fused':
        idx = torch.randint(11, (2, 12))
        torch.testing.assert_close(ours(idx)[0], theirs(idx)[0], rtol=1e-5, atol=1e-5)


def test_all_heads_of_a_layer_share_one_rotation():
    model = build(attention='spectral_shared')
    assert {p.shape for p in model.positional_parameters()} == {(1, 4)}
    assert {p.requires_grad for p in model.positional_parameters()} == {True}
    assert [row['pair'] for row in frequency_table(model, 7)] == 2 * [0, 1, 2, 3]


def test_yarn_needs_its_frequencies():
    with pytest.raises(UserError, match="frequencies='pi:factor=4': must be yarn:factor=... with"):
        build(attention='rope_yarn', frequencies='pi:factor=4')
