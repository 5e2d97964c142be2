"""A theorem of the TAPA paper (arXiv 2509.12635) as numbers: the variance of a score."""

import math

import pytest
import torch

from lab.tapa import LinearTAPA
from model import TAPA, GPTConfig


@pytest.mark.parametrize('formula', [TAPA, LinearTAPA])
def test_3_3_the_variance_of_the_tapa_score_stays(formula):
    """liminf Var >= sigma0^2 / 2, where sigma0^2 = E (q_A.k_A)^2 / (theta hs)."""
    q, k = torch.randn(2, 100_000, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    keys = torch.cat([k, torch.zeros_like(k), torch.zeros_like(k)], dim=2)
    amplitude = (q[..., :8] * k[..., :8]).sum(-1) / math.sqrt(8)
    sigma0 = amplitude.double().square().mean().item()
    for t in (10.0, 1e3, 1e5):
        # the two are 2 apart, and 2^2 times the scale is 2 pi t^0.5
        config = GPTConfig(vocab_size=1, n_head=1, n_embd=16, tapa_alpha=2.0,
                           tapa_scale=2 * math.pi * t**0.5 / 2**2)
        scores = formula(config).scores(q, keys)[..., 0].double()
        assert scores.var().item() == pytest.approx(sigma0 / 2, rel=0.02), t
        assert abs(scores.mean()) < 0.01
