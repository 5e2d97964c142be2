"""
More attentions: phases of others, Spectral as ablations change it, and ways to know a position that
are no phases. study/related.md says whose they are, and study/board.md what they did here.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from lab.frequencies import yarn
from model import Attention, RoPE, Spectral, distances, find_frequencies, rotate_pairs


def first_of(kind, blocks):
    """The first attention of a class, among those of a model's blocks."""
    return next(block.attention for block in blocks if type(block.attention) is kind)


# Phases


def turned_scores(q, k, angle):
    """q.k / sqrt(hs) where each token is turned by its own angle (B, nh, S, P): (B, nh, T, S)."""
    q = rotate_pairs(q, angle[:, :, -q.size(2):])
    return q @ rotate_pairs(k, angle).mT / math.sqrt(q.size(-1))


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
        return turned_scores(q, k, angle)


class LeRoPE(RoPE):
    """
    RoPE with one learned scale for each frequency (arXiv 2607.10134):

        angle = (m-n) theta_i e^{s_i}

    s is (P,), and starts at 0: as RoPE. All heads of all layers share it.
    """

    def __init__(self, config):
        super().__init__(config)
        self.s = nn.Parameter(torch.zeros_like(self.theta))

    def tie(self, blocks):
        self.s = first_of(LeRoPE, blocks).s

    def rotate(self, q, k, position):
        angle = position[:, None] * (self.theta * self.s.exp())  # (T, P)
        return rotate_pairs(q, angle), rotate_pairs(k, angle)


class PoPE(Attention):
    """
    The tokens set the sizes, and their positions alone set the angles (arXiv 2509.10534).
    Every dimension c has a frequency, twice as many as in RoPE, and a learned phase delta_c:

        score = sum_c softplus(q_c) softplus(k_c) cos((m-n) theta_c + delta_c) / sqrt(hs)
        theta_c = base^(-c/hs)        c = 0 ... hs - 1

    delta is (nh, 1, hs), and starts at 0. Public code keeps it between -2 pi and 0; here it is
    free.
    """

    def __init__(self, config):
        super().__init__(config)
        hs = config.head_size
        theta = config.rope_base ** (-torch.arange(hs) / hs)
        self.register_buffer('theta', theta, persistent=False)  # (hs,)
        self.delta = nn.Parameter(torch.zeros(config.n_head, 1, hs))
        config.require('log_scale_length', config.log_scale_length == 0, '0 with pope')

    def scores(self, q, k):
        n = torch.arange(k.size(2), device=k.device)[:, None]
        n_angle = n * self.theta  # (S, hs)
        m_angle = n_angle[-q.size(2):] + self.delta  # (nh, T, hs); the queries stand last
        q, k = F.softplus(q), F.softplus(k)
        cosines = (q * m_angle.cos()) @ (k * n_angle.cos()).mT
        sines = (q * m_angle.sin()) @ (k * n_angle.sin()).mT
        return (cosines + sines) / math.sqrt(q.size(-1))


class RandomRoPE(RoPE):
    """
    In training the tokens stand at random places, sorted, anywhere in 8 L. Otherwise they stand
    at 0, 1, 2, ... So order is learned, at distances that L does not have, and no exact distance.
    After arXiv 2602.14050, which spreads a text over the whole range when it reads, too.
    Each layer draws for itself in each update, from torch's generator: resuming draws others.
    """

    def rotate(self, q, k, position):
        if self.training:
            places = torch.rand(len(position), device=q.device).sort().values
            position = 8 * self.config.block_size * places
        return super().rotate(q, k, position)


class SharedSpectral(Spectral):
    """
    Spectral with one Omega, A and Phi for all heads of a layer, each (1, P). Tables of frequencies
    show them as those of the last head.
    """

    def __init__(self, config):
        super().__init__(config)
        for name in ('Omega', 'A', 'Phi'):
            parameter = getattr(self, name)
            setattr(self, name, nn.Parameter(parameter.detach()[:1], parameter.requires_grad))


class PhaseOnBoth(Spectral):
    """
    Spectral as the paper's formula reads (arXiv 2601.22402), with Phi on query and key:

        q~ = A q e^{1j (m Omega + Phi)}    k~ = A k e^{1j (n Omega + Phi)}

    A score has the phase (m-n) Omega + Phi - Phi. So Phi cancels, and gets no gradient.
    """

    def rotate(self, q, k, position):
        q, _ = super().rotate(q, k, position)
        k, _ = super().rotate(k, k, position)  # as a query is rotated
        return q, k


class YaRN(RoPE):
    """
    RoPE with what YaRN does to the scores of a text that is `factor` times longer, beside its
    frequencies, which are --frequencies=yarn:factor=... (arXiv 2309.00071):

        score = g^2 sum_i Re[q_i conj(k_i) e^{1j (m-n) theta_i}] / sqrt(hs)
        g     = 0.1 ln(factor) + 1
    """

    def __init__(self, config):
        super().__init__(config)
        function, numbers = find_frequencies(config)
        config.require('frequencies', function is yarn, 'yarn:factor=... with rope_yarn')
        self.gain = 0.1 * math.log(numbers['factor']) + 1

    def rotate(self, q, k, position):
        q, k = super().rotate(q, k, position)
        return self.gain * q, self.gain * k


# No phases: penalties for distance, counts, and vectors that are added


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
        self.bias = nn.Parameter(torch.zeros(config.n_head, 32))

    def tie(self, blocks):
        self.bias = first_of(T5, blocks).bias

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

    adds = True  # to its input; in a model only the first layer does

    def __init__(self, config):
        super().__init__(config)
        self.p = nn.Parameter(config.init_std * torch.randn(config.block_size, config.n_embd))

    def tie(self, blocks):
        self.adds = self is first_of(type(self), blocks)
        if not self.adds:
            self.p = None

    def vectors(self, position):
        """The vectors (T, C) of positions (T,)."""
        return self.p[position.clamp(max=len(self.p) - 1)]

    def forward(self, x, cache=None):
        if self.adds:
            start = 0 if cache is None else cache.length
            position = torch.arange(start, start + x.size(1), device=x.device)
            x = x + self.vectors(position)
        return super().forward(x, cache)


class Sinusoidal(Learned):
    """
    Sinusoidal absolute positions (arXiv 1706.03762), added as in Learned:

        p_m = sin(m w_i) for the first C/2 dimensions, cos(m w_i) for the others
        w_i = base^(-2i/C)
    """

    def __init__(self, config):
        super().__init__(config)
        config.require('n_embd', config.n_embd % 2 == 0, 'even, for sines and cosines')
        self.p = None  # nothing is learned
        i = torch.arange(config.n_embd // 2)
        self.register_buffer('w', config.rope_base ** (-2 * i / config.n_embd), persistent=False)

    def vectors(self, position):
        angle = position[:, None] * self.w  # (T, C/2)
        return torch.cat([angle.sin(), angle.cos()], dim=-1)
