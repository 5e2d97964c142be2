"""
The theorems of the TAPA paper (arXiv 2509.12635), as numbers. What do RoPE's frequencies do to the
score of a pair at distance t = m - n, whatever the words are? And what does a phase do that the
tokens set?

Write a pair of RoPE as q_i conj(k_i) = A_i - 1j B_i. Up to a factor, its score is the mean over
the P pairs of A_i cos(t theta_i) + B_i sin(t theta_i). Under the paper's assumption 2.1,
E A_i = mu0 and E B_i = nu0 for every i; then `expected_rope` is the expectation of the score.
"""

import math

import numpy as np
import pytest
import torch

from lab.tapa import LinearTAPA
from model import TAPA, GPTConfig, RoPE

MU0, NU0 = 0.8, 0.6


def expected_rope(t, theta, mu0=MU0, nu0=NU0):
    """(1/P) sum_i mu0 cos(t theta_i) + nu0 sin(t theta_i) at distances t, in float64."""
    angle = torch.as_tensor(t, dtype=torch.float64)[:, None] * theta.double()
    return (mu0 * angle.cos() + nu0 * angle.sin()).mean(-1)


def config_of(hs, n_head=1, **options):
    return GPTConfig(vocab_size=1, n_head=n_head, n_embd=n_head * hs, **options)


def frequencies(hs, base):
    return RoPE(config_of(hs, rope_base=base)).theta


def random_tokens(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for _ in range(2)]


def tapa_scores(q, k, power, theta, TAPA=TAPA):
    """
    The scores (B, nh, 1, 1) of q and k (B, nh, 1, hs), where |m-n|^alpha is `power`. The
    two tokens are 2 apart, with an alpha that makes it so, or 1 apart where it is 1. What is more
    than 2^2 is a factor of tapa_scale.
    """
    distance, alpha = 2, min(2.0, math.log2(power))
    if power == 1:
        distance, alpha = 1, 1.0
    scale = 2 * math.pi * power / distance**alpha
    config = config_of(q.size(-1), attention='tapa', tapa_theta=theta, tapa_alpha=alpha,
                       tapa_scale=scale)
    keys = torch.cat([k] + [torch.zeros_like(k)] * distance, dim=2)
    return TAPA(config).scores(q, keys)[..., :1]


def test_2_1_the_expected_rope_score_comes_near_every_value_of_an_interval():
    """Up to |mu0 + 1j nu0|, if no frequency is a rational combination of the others."""
    radius = math.hypot(MU0, NU0)
    theta = frequencies(6, 1e4)  # 1, 0.046, 0.0022
    scores = expected_rope(torch.arange(1, 10**6), theta)
    for share in np.linspace(-0.99, 0.99, 34):
        assert (scores - share * radius).abs().min() < 0.005 * radius, share
    assert scores.abs().max() <= radius * (1 + 1e-9)  # and it never leaves the interval
    multiples = 2 * math.pi * torch.arange(3).double() / 7  # of one frequency
    dependent = expected_rope(torch.arange(1, 10**5), multiples)
    assert len(dependent.mul(1e9).round().unique()) == 7


def near_and_far(base, near, far, factor=1.0):
    theta = frequencies(128, base) / factor
    near_score, far_score = (expected_rope(t, theta, nu0=0.0).mean() for t in (near, far))
    return (near_score - far_score).item()


@pytest.mark.parametrize('base', [1e6, 1e8])
def test_2_2_near_keys_beat_far_ones(base):
    """
    For mu0 > 0, distances below base^(1/4) / 8 score higher than those beyond base, by more than
    mu0 / 8. For mu0 < 0 the far ones do.
    """
    near = torch.arange(2, math.ceil(base**0.25 / 8))
    far = torch.from_numpy(np.random.default_rng(0).integers(base, 10 * base, 20000))
    assert near_and_far(base, near, far) > MU0 / 8
    opposite = expected_rope(near, frequencies(128, base), mu0=-MU0, nu0=0.0)
    assert opposite.mean() < -MU0 / 8


def gaussian_decay(t, alpha, hs_P):
    """E cos(2 pi t^alpha q_P.k_P / sqrt(hs_P)) of normal q_P, k_P: (1 + lambda^2)^(-hs_P/2)."""
    return (1 + (2 * math.pi * t**alpha) ** 2 / hs_P) ** (-hs_P / 2)


@pytest.mark.parametrize('hs, theta, alpha', [
    (2, 0.5, 0.5), (4, 0.5, 0.5), (4, 0.75, 1.0), (8, 0.75, 0.1)])
def test_3_2_the_expected_tapa_score_is_its_characteristic_function(hs, theta, alpha):
    """Many normal pairs in the code, an amplitude of 1: the mean against the integral."""
    n, hs_P = 10**5, round((1 - theta) * hs)
    q, k = random_tokens(n, 1, 1, hs)
    # then q_A.k_A / sqrt(theta hs) = 1
    q[..., :hs - hs_P] = (theta * hs) ** -0.25
    k[..., :hs - hs_P] = (theta * hs) ** -0.25
    for t in (1.0, 3.0, 9.0):
        mean = tapa_scores(q, k, t**alpha, theta).double().mean().item()
        assert mean == pytest.approx(gaussian_decay(t, alpha, hs_P), abs=4 / math.sqrt(2 * n)), t


@pytest.mark.parametrize('formula', [TAPA, LinearTAPA])
def test_3_3_the_variance_of_the_tapa_score_stays(formula):
    """liminf Var >= sigma0^2 / 2, where sigma0^2 = E (q_A.k_A)^2 / (theta hs)."""
    q, k = random_tokens(100_000, 1, 1, 16)
    amplitude = (q[..., :8] * k[..., :8]).sum(-1) / math.sqrt(8)
    sigma0 = amplitude.double().square().mean().item()
    for t in (10.0, 1e3, 1e5):
        scores = tapa_scores(q, k, t**0.5, 0.5, formula).double()
        assert scores.var().item() == pytest.approx(sigma0 / 2, rel=0.02), t
        assert abs(scores.mean()) < 0.01
