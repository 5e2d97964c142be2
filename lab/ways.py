"""
More ways to attend, added one at a time: a class here, its name in WAYS, and its formula again in
lab/tests/test_ways.py. study/board.md says how a way gets its line on the board.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from lab.attentions import first_of, turned_scores
from model import Attention, RoPE, distances, rotate_pairs


class PaTH(Attention):
    """
    Each token may reflect what passes it (arXiv 2505.16381). A score sees the key after all
    reflections between its token and the query:

        score = k_n . H_{n+1} ... H_m q_m / sqrt(hs)        H_t = 1 - beta_t w_t w_t^T

    Each head has its unit vector w_t (hs,), and beta_t = 2 sigmoid(x_t . u + b), of the layer's
    input x_t. With beta 2 H is a reflection, with 1 a projection, with 0 nothing. u and b start at
    0. w_t and x_t . u + b travel behind the key, so the cache keeps them. The authors make w by a
    matrix of low rank and a convolution over a few tokens; here it is one matrix.

    The product is never made. c[t, n] = w_t . (key n as it comes to token t) is a triangular
    system, as each token changes what later ones see:

        c[t, n] = w_t.k_n - sum_{n<s<t} (w_t.w_s) beta_s c[s, n]
        score sqrt(hs) = q_m.k_n - sum_{n<t<=m} (q_m.w_t) beta_t c[t, n]
    """

    def __init__(self, config):
        super().__init__(config)
        self.reflect = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.u = nn.Parameter(torch.zeros(config.n_embd, config.n_head))
        self.b = nn.Parameter(torch.zeros(config.n_head))

    def project(self, x):
        q, k, v = super().project(x)
        w = self.reflect(x).unflatten(2, (-1, self.config.head_size)).transpose(1, 2)
        gate = (x @ self.u + self.b).mT[..., None]  # (B, nh, T, 1)
        k = torch.cat([k, w.to(k.dtype), gate.to(k.dtype)], dim=-1)  # (B, nh, T, 2 hs + 1)
        return F.pad(q, (0, k.size(-1) - q.size(-1))), k, v

    def scores(self, q, k):
        hs = self.config.head_size
        q, gate = q[..., :hs], k[..., 2 * hs:]
        k, w = k[..., :hs], F.normalize(k[..., hs:2 * hs], dim=-1)
        beta_w = 2 * gate.sigmoid() * w
        system = (w @ beta_w.mT).tril(-1)  # (B, nh, S, S), with ones on its diagonal
        c = torch.linalg.solve_triangular(
            system, (w @ k.mT).tril(-1), upper=False, unitriangular=True)  # (B, nh, S, S)
        past = k.size(2) - q.size(2)  # the queries stand last
        return (q @ k.mT - (q @ beta_w.mT).tril(past) @ c) / math.sqrt(hs)


class KERPLE(Attention):
    """
    A penalty that grows like the logarithm of the distance (arXiv 2205.09921, its logarithmic
    variant):

        score = q.k / sqrt(hs) - r_1 ln(1 + r_2 (m-n))        r_1, r_2 > 0

    Each head has its two numbers, and all layers share them, as in the paper. ln r is learned,
    (2, nh), and starts at 0; the authors start r_1 and r_2 at random.
    """

    def __init__(self, config):
        super().__init__(config)
        self.ln_r = nn.Parameter(torch.zeros(2, config.n_head))

    def tie(self, blocks):
        self.ln_r = first_of(KERPLE, blocks).ln_r

    def scores(self, q, k):
        distance = distances(q, k).clamp(min=0)  # (T, S)
        r_1, r_2 = self.ln_r.exp()[..., None, None]  # each (nh, 1, 1)
        return q @ k.mT / math.sqrt(q.size(-1)) - r_1 * torch.log1p(r_2 * distance)


class XPos(RoPE):
    """
    RoPE whose pairs fade with the distance, the fast ones soonest (arXiv 2212.10554):

        score = sum_i Re[q_i conj(k_i) e^{1j (m-n) theta_i}] zeta_i^{(m-n)/512} / sqrt(hs)
        zeta_i = (i/P + 0.4) / 1.4        i = 0 ... P - 1

    0.4 and 512 are the authors'. The query is multiplied by zeta_i^{m/512}, and the key by
    zeta_i^{-n/512}, which is too large for float32 beyond some 36,000 tokens.
    """

    def rotate(self, q, k, position):
        P = len(self.theta)
        zeta = (torch.arange(P, device=q.device) / P + 0.4) / 1.4
        fade = zeta ** (position[:, None] / 512)  # (T, P)
        fade = torch.cat([fade, fade], dim=-1)  # (T, hs)
        angle = position[:, None] * self.theta
        return rotate_pairs(q, angle, fade), rotate_pairs(k, angle, 1 / fade)


class SelectiveRoPE(RoPE):
    """
    RoPE whose angles each token sets (arXiv 2511.17388):

        score = sum_i Re[q_i conj(k_i) e^{1j (a_i(m) - a_i(n))}] / sqrt(hs)
        a_i(m) = theta_i sum_{t=0}^m (x_t . w_i + e^{b_i})

    x_t is the layer's input. Each head has its w, (C, P), and b, (P,). b starts at 0: with w = 0
    it is RoPE. x_t . w travels behind the key, so the cache keeps it. The authors have a gate and
    e^b as options; they normalise x, and smooth x . w over four tokens.
    """

    rotate = Attention.rotate  # nothing: the scores rotate

    def __init__(self, config):
        super().__init__(config)
        self.turn = nn.Linear(config.n_embd, config.n_head * len(self.theta), bias=False)
        self.b = nn.Parameter(torch.zeros(config.n_head, 1, len(self.theta)))

    def project(self, x):
        q, k, v = super().project(x)
        turn = self.turn(x).unflatten(2, (self.config.n_head, -1)).transpose(1, 2)
        return q, torch.cat([k, turn.to(k.dtype)], dim=-1), v  # k (B, nh, T, hs + P)

    def scores(self, q, k):
        k, turn = k.split([q.size(-1), len(self.theta)], dim=-1)
        angle = self.theta * (turn + self.b.exp()).cumsum(dim=2)  # (B, nh, S, P)
        return turned_scores(q, k, angle)


WAYS = dict(path=PaTH, kerple=KERPLE, xpos=XPos, selective=SelectiveRoPE)
