"""Two theorems of the TAPA paper (arXiv 2509.12635) as numbers: a score's mean and variance."""

import math

import pytest
import torch

from lab.tapa import LinearTAPA
from model import TAPA, GPTConfig


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
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=q.size(-1), tapa_theta=theta,
                       tapa_alpha=alpha, tapa_scale=scale)
    keys = torch.cat([k] + [torch.zeros_like(k)] * distance, dim=2)
    return TAPA(config).scores(q, keys)[..., :1]


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
