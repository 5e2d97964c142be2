"""The tables without runs, against counting by hand."""

import numpy as np

from model import GPTConfig
from study import formulas


def test_products_are_those_of_the_matrices_forward_and_twice_backward():
    config = GPTConfig(vocab_size=7, block_size=16, n_layer=1, n_embd=32)
    C, T, inner, V = 32, 16, config.n_inner, 7
    forward = 2 * 4 * C * C + 4 * T * C + 2 * 3 * C * inner + 2 * C * V  # a token
    assert formulas.work(config, 2)[0] == 3 * forward


def test_the_mean_score_of_random_tokens_is_a_sum_of_cosines():
    m, theta = np.arange(9 * formulas.L)[:, None], 100 ** (-np.arange(16) / 16)
    expected = 2 * np.cos(m * theta).sum(axis=1) / np.sqrt(32)
    np.testing.assert_allclose(formulas.mean_scores(dict(rope_base=100.0)), expected, atol=1e-3)
