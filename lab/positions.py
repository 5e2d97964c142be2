"""
Ways to know a position that are no phases: penalties for distance, counts, and vectors that are
added. study/related.md says whose they are, and study/board.md what they did here.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from lab.phases import layers_before
from model import Attention, distances


class ALiBi(Attention):
    """
    A penalty for distance, with a slope for each head (arXiv 2108.12409):

        score = q.k / sqrt(hs) - slope_h (m-n)        slope_h = 2^(-8 h / nh)    h = 1 ... nh
    """

    def scores(self, q, k):
        slope = 2.0 ** (-8 * torch.arange(1, q.size(1) + 1, device=q.device) / q.size(1))
        dot_product = q @ k.mT / math.sqrt(q.size(-1))  # (B, nh, T, S)
        return dot_product - slope[:, None, None] * distances(q, k)


class T5(Attention):
    """
    A learned number for each head and each bucket of distances (T5, arXiv 1910.10683):

        score = q.k / sqrt(hs) + bias[h, bucket(m-n)]

    Distances 0 to 15 have a bucket each. Sixteen more grow like the logarithm up to 128, and the
    last one has all that is farther. bias is (nh, 32), starts at 0, and all layers share it.
    """

    def __init__(self, config):
        super().__init__(config)
        before = layers_before(self)
        self.bias = before[0].bias if before else nn.Parameter(torch.zeros(config.n_head, 32))

    def scores(self, q, k):
        distance = distances(q, k).clamp(min=0)  # (T, S)
        far = 16 + 16 * torch.log(distance.clamp(min=16) / 16) / math.log(128 / 16)
        bucket = torch.where(distance < 16, distance, far.long().clamp(max=31))
        return q @ k.mT / math.sqrt(q.size(-1)) + self.bias[:, bucket]


class FoX(Attention):
    """
    The forgetting transformer (arXiv 2503.02130): each token lets a share f of the past pass.

        score = q.k / sqrt(hs) + sum_{t=n+1}^m ln f_t        f_t = sigmoid(x_t . W + b)

    It is ALiBi with slopes that tokens choose. W (C, nh) and b (nh,) start at 0: f = 1/2. The
    number x_t . W + b travels as one more dimension of the key, so the cache keeps it. There the
    query has a 0, so the dot product leaves it out.
    """

    def __init__(self, config):
        super().__init__(config)
        self.W = nn.Parameter(torch.zeros(config.n_embd, config.n_head))
        self.b = nn.Parameter(torch.zeros(config.n_head))

    def project(self, x):
        q, k, v = super().project(x)
        gate = (x @ self.W + self.b).mT[..., None]  # (B, nh, T, 1)
        return F.pad(q, (0, 1)), torch.cat([k, gate.to(k.dtype)], dim=-1), v

    def scores(self, q, k):
        past = F.logsigmoid(k[..., -1]).cumsum(dim=-1)  # (B, nh, S): the sum up to each token
        decay = past[:, :, -q.size(2):, None] - past[:, :, None]  # (B, nh, T, S)
        return q @ k.mT / math.sqrt(self.config.head_size) + decay


class CoPE(Attention):
    """
    Contextual positions (arXiv 2405.18719): a query counts the keys between that its gate lets in.

        score = q.k / sqrt(hs) + q.e[p]        p(m, n) = sum_{t=n}^m sigmoid(q_m.k_t / sqrt(hs))

    e is learned, (hs, L), starts at 0, and is the same for all heads of a layer. Between two
    whole numbers e is a straight line. p ends at L - 1.
    """

    def __init__(self, config):
        super().__init__(config)
        self.e = nn.Parameter(torch.zeros(config.head_size, config.block_size))
        config.require('log_scale_length', config.log_scale_length == 0, '0 with cope')

    def scores(self, q, k):
        dot_product = q @ k.mT / math.sqrt(q.size(-1))  # (B, nh, T, S)
        gate = dot_product.sigmoid() * (distances(q, k) >= 0)
        p = gate.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=self.e.size(1) - 1)
        below, above = p.floor(), p.ceil()
        q_e = q @ self.e  # (B, nh, T, L)
        low, high = q_e.gather(-1, below.long()), q_e.gather(-1, above.long())
        return dot_product + low + (p - below) * (high - low)


class Learned(Attention):
    """
    Learned absolute positions, those of GPT-2: each of the L positions has a vector.

        x_m becomes x_m + p_m

    x is the input of q, k and v in the model's first layer, after the norm. The residual stream
    gets p by way of the values alone. GPT-2 adds p to the stream itself, before the norm. p is
    (L, C), starts at N(0, init_std^2), and tokens beyond L get its last row.
    """

    def __init__(self, config):
        super().__init__(config)
        self.first = not layers_before(self)
        if self.first:
            self.make(config)

    def make(self, config):
        self.p = nn.Parameter(config.init_std * torch.randn(config.block_size, config.n_embd))

    def vectors(self, position):
        """The vectors (T, C) of positions (T,)."""
        return self.p[position.clamp(max=len(self.p) - 1)]

    def forward(self, x, cache=None):
        if not self.first:
            return super().forward(x, cache)
        start = 0 if cache is None else cache.length
        p = self.vectors(torch.arange(start, start + x.size(1), device=x.device))
        return super().forward(x + p, cache)


class Sinusoidal(Learned):
    """
    Sinusoidal absolute positions (arXiv 1706.03762), added as in Learned:

        p_m = sin(m w_i) for the first C/2 dimensions, cos(m w_i) for the others
        w_i = base^(-2i/C)
    """

    def make(self, config):
        config.require('n_embd', config.n_embd % 2 == 0, 'even, for sines and cosines')
        i = torch.arange(config.n_embd // 2)
        self.register_buffer('w', config.rope_base ** (-2 * i / config.n_embd), persistent=False)

    def vectors(self, position):
        angle = position[:, None] * self.w
        return torch.cat([angle.sin(), angle.cos()], dim=-1)
