"""
Phases that others have found since, beside the page's: those that add up from token to token, and
frequencies that all heads share. study/related.md says whose they are, and what they did here.
"""

import math

import torch
import torch.nn as nn

from model import Attention, RoPE, rotate_pairs


class Accumulated(RoPE):
    """
    Accumulated phases. With each token, RoPE turns pair i by theta_i. Here it also turns by what
    the token's key says, so the phase between two tokens is a sum over the path between them:

        score = sum_i Re[q_i conj(k_i) e^{1j (a_i(m) - a_i(n))}] / sqrt(hs)
        a_i(m) = sum_{t=0}^m (theta_i + k_t . W_i)

    W is (nh, hs, P) and starts at N(0, 0.3^2): with W = 0 it is RoPE. frequencies=partial:keep=0
    leaves the path alone. After arXiv 2606.24975 and 2511.17388, whose angles come from the
    layer's input. Ours come from the keys, which are in the cache: each call sums them up again.
    """

    rotate = Attention.rotate  # nothing: the scores rotate

    def __init__(self, config):
        super().__init__(config)
        W = 0.3 * torch.randn(config.n_head, config.head_size, len(self.theta))
        self.W = nn.Parameter(W)

    def scores(self, q, k):
        angle = (self.theta + k @ self.W).cumsum(dim=2)  # (B, nh, S, P)
        q = rotate_pairs(q, angle[:, :, -q.size(2):])
        k = rotate_pairs(k, angle)
        return q @ k.mT / math.sqrt(q.size(-1))


class LeRoPE(RoPE):
    """
    RoPE with one learned scale for each frequency, the same for all heads (arXiv 2607.10134):

        angle = (m-n) theta_i e^{s_i}

    s is (P,), and starts at 0: as RoPE. Each layer has its own. To share one, give all layers the
    same parameter, before the optimizer is made:

        for block in model.blocks:
            block.attention.s = model.blocks[0].attention.s
    """

    def __init__(self, config):
        super().__init__(config)
        self.s = nn.Parameter(torch.zeros_like(self.theta))

    def rotate(self, q, k, position):
        angle = position[:, None] * (self.theta * self.s.exp())  # (T, P)
        return rotate_pairs(q, angle), rotate_pairs(k, angle)
