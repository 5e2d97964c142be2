"""
The theorems of the TAPA paper (arXiv 2509.12635), as numbers. What do RoPE's frequencies do to the score of a pair at
distance t = m - n, whatever the words are? And what does a phase do that the tokens set?

Write a pair of RoPE as q_i conj(k_i) = A_i - 1j B_i. Up to a factor, its score is the mean over the P pairs of
A_i cos(t theta_i) + B_i sin(t theta_i). Under the paper's assumption 2.1, E A_i = mu0 and E B_i = nu0 for every i; then
the expectation of the score is `expected_rope`.
"""

import math

import numpy as np
import pytest
import torch

from model import TAPA, GPTConfig, RoPE

MU0, NU0 = 0.8, 0.6


def expected_rope(t, theta, mu0=MU0, nu0=NU0):
    """(1/P) sum_i mu0 cos(t theta_i) + nu0 sin(t theta_i) at distances t, in float64."""
    angle = torch.as_tensor(t, dtype=torch.float64)[:, None] * theta.double()
    return (mu0 * angle.cos() + nu0 * angle.sin()).mean(-1)


def frequencies(hs, base):
    return RoPE(GPTConfig(vocab_size=1, n_head=1, n_embd=hs, rope_base=base)).theta


def tapa_scores(q, k, distance, theta, phase):
    """
    The scores (B, nh, 1, 1) of q and k (B, nh, 1, hs), by model.py, where |m-n|^alpha is `distance`: two tokens apart,
    with an alpha that makes it so; one token apart where it is 1.
    """
    apart = 1 if distance == 1 else 2
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=q.size(-1), attention='tapa', tapa_theta=theta, tapa_phase=phase,
                       tapa_alpha=math.log2(distance) if apart == 2 else 1.0)
    keys = torch.cat([k, *[torch.zeros_like(k)] * apart], dim=2)
    return TAPA(config).scores(q, keys)[..., :1]


@pytest.mark.parametrize('base', [100.0, 1e4])
def test_the_expectation_is_that_of_the_code(base):
    """Queries and keys with q_i conj(k_i) = mu0 - 1j nu0 exactly, scored by model.py."""
    way = RoPE(GPTConfig(vocab_size=1, n_head=1, n_embd=16, rope_base=base))
    q = torch.cat([torch.full((8,), MU0), torch.full((8,), -NU0)]).expand(1, 1, 200, 16)  # mu0 - 1j nu0
    k = torch.cat([torch.ones(8), torch.zeros(8)]).expand(1, 1, 200, 16)  # 1
    scores = way.scores(q, k)[0, 0, :, 0].double() * 4 / 8  # of the key at 0: sqrt(hs) / P times the score
    torch.testing.assert_close(scores, expected_rope(torch.arange(200), way.theta), rtol=0, atol=1e-5)


def test_2_1_the_expected_rope_score_comes_near_every_value_of_an_interval():
    """If frequencies are linearly independent over Q, some distance brings the score to any value to |mu0 + 1j nu0|."""
    radius = math.hypot(MU0, NU0)
    scores = expected_rope(torch.arange(1, 10**6), frequencies(6, 1e4))  # 1, 0.046, 0.0022: P = 3
    for share in np.linspace(-0.99, 0.99, 34):
        assert (scores - share * radius).abs().min() < 0.005 * radius, share
    assert scores.abs().max() <= radius * (1 + 1e-9)  # and never leaves it
    multiples = 2 * math.pi * torch.arange(3).double() / 7  # of one frequency
    dependent = expected_rope(torch.arange(1, 10**5), multiples)
    assert len(dependent.mul(1e9).round().unique()) == 7


def near_and_far(base, near, far, factor=1.0):
    theta = frequencies(128, base) / factor
    return expected_rope(near, theta, nu0=0.0).mean() - expected_rope(far, theta, nu0=0.0).mean()


@pytest.mark.parametrize('base', [1e6, 1e8])
def test_2_2_near_keys_beat_far_ones(base):
    """For mu0 > 0, distances below base^(1/4) / 8 score higher than those beyond base, by more than mu0 / 8."""
    near = torch.arange(2, math.ceil(base**0.25 / 8))
    far = torch.from_numpy(np.random.default_rng(0).integers(base, 10 * base, 20000))
    assert near_and_far(base, near, far) > MU0 / 8
    opposite = expected_rope(near, frequencies(128, base), mu0=-MU0, nu0=0.0)  # for mu0 < 0 the far ones win
    assert opposite.mean() < -MU0 / 8


def test_2_3_a_larger_base_and_interpolation_shrink_the_gap_in_the_end():
    """
    One fixed set of pairs, the paper's: 100 tokens apart at most against 10000 and a few. The theorem is about a small
    enough theta0. On the way there the gap grows first: from base 1e2 to 1e4, and from no interpolation to one by 8.
    """
    near, far = torch.arange(1, 101), torch.arange(10000, 10101)
    by_base = [near_and_far(base, near, far).item() for base in (1e4, 1e5, 5e5, 2e8, 1e12, 1e20)]
    by_factor = [near_and_far(1e4, near, far, factor).item() for factor in (8, 64, 4096)]
    for gaps in (by_base, by_factor):
        assert gaps == sorted(gaps, reverse=True) and gaps[0] > 0.5 * MU0 and 0 < gaps[-1] < 0.3 * gaps[0]
    assert near_and_far(1e2, near, far) < 0.5 * by_base[0] and by_base[0] < by_factor[0]


def gaussian_decay(t, alpha, D_P):
    """E cos(2 pi t^alpha q_P.k_P / sqrt(D_P)), standard normal q_P, k_P in D_P dimensions: (1 + lambda^2)^(-D_P/2)."""
    return (1 + (2 * math.pi * t**alpha) ** 2 / D_P) ** (-D_P / 2)


@pytest.mark.parametrize('hs, theta, alpha', [(2, 0.5, 0.5), (4, 0.5, 0.5), (4, 0.75, 1.0), (8, 0.75, 0.1)])
def test_3_2_the_expected_tapa_score_is_its_characteristic_function(hs, theta, alpha):
    """A million normal pairs in the code, an amplitude of mean 1: the mean score against the integral."""
    n, D_P = 10**6, round((1 - theta) * hs)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(n, 1, 1, hs, generator=generator) for _ in range(2))
    q[..., :hs - D_P] = k[..., :hs - D_P] = (theta * hs) ** -0.25  # then q_A.k_A / sqrt(theta hs) = 1
    for t in (1.0, 3.0, 9.0):
        mean = tapa_scores(q, k, t**alpha, theta, 'quadratic').double().mean().item()
        assert mean == pytest.approx(gaussian_decay(t, alpha, D_P), abs=4 / math.sqrt(2 * n)), t


@pytest.mark.parametrize('alpha', [0.25, 0.5])
def test_3_2_it_decays_with_the_exponent_of_the_theorem(alpha):
    """|E score| < C t^(-alpha (1-theta) hs): the log-log slope, of one phase dimension integrated on a grid."""
    x = torch.linspace(-7, 7, 601)
    weight = torch.exp(-x.double() ** 2 / 2)
    weight /= weight.sum()
    tokens = torch.stack([torch.ones_like(x), x], dim=-1)  # A = 1, P = x
    q, k = (t.reshape(-1, 1, 1, 2) for t in (tokens[:, None].expand(601, 601, 2), tokens.expand(601, 601, 2)))
    distances = torch.tensor([4.0, 8.0, 16.0, 32.0])
    scores = [tapa_scores(q, k, t**alpha, 0.5, 'quadratic').view(601, 601).double() for t in distances.tolist()]
    means = [(weight @ score @ weight).item() for score in scores]
    assert means == pytest.approx([gaussian_decay(t.item(), alpha, 1) for t in distances], rel=1e-2)
    slope = np.polyfit(distances.log(), np.log(means), 1)[0]
    assert slope == pytest.approx(-alpha * 1, rel=0.02)
    for D_P in (2, 4, 16):  # and of the same integral in more dimensions, far out
        t = np.array([1e8, 1e9])
        slope = np.diff(np.log(gaussian_decay(t, alpha, D_P)))[0] / np.diff(np.log(t))[0]
        assert slope == pytest.approx(-alpha * D_P, rel=0.01)


@pytest.mark.parametrize('phase', ['quadratic', 'linear'])
def test_3_3_the_variance_of_the_tapa_score_stays(phase):
    """liminf Var >= sigma0^2 / 2, sigma0^2 = E (q_A.k_A)^2 / (theta hs): attention does not go blind with distance."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(400_000, 1, 1, 16, generator=generator) for _ in range(2))
    sigma0 = ((q[..., :8] * k[..., :8]).sum(-1) / math.sqrt(8)).double().square().mean()
    for t in (10.0, 1e3, 1e5):
        scores = tapa_scores(q, k, t**0.5, 0.5, phase).double()
        assert scores.var() == pytest.approx(sigma0.item() / 2, rel=0.02), t
        assert abs(scores.mean()) < 0.01


def test_without_phase_tapa_is_plain_attention_of_the_amplitude():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, 9, 16, generator=generator) for _ in range(2))
    q[..., 4:] = 0  # no phase, whatever the distance
    config = GPTConfig(vocab_size=1, n_head=3, n_embd=48, attention='tapa', tapa_theta=0.25)
    torch.testing.assert_close(TAPA(config).scores(q, k), q[..., :4] @ k[..., :4].mT / 2)
