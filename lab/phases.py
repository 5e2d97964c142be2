"""
Phases beside the page's: of others since, and Spectral as ablations change it. study/related.md
says whose they are, and study/board.md what they did here.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import ATTENTIONS, Attention, RoPE, Spectral, rotate_pairs


def layers_before(attention):
    """
    The layers of this class that its model has already, for what layers share. GPT makes its
    layers one after another, all from one config: the config keeps them until the last is made.
    """
    config, kind = attention.config, type(attention)
    names = [config.attention_of(layer) for layer in range(config.n_layer)]
    made = vars(config).setdefault('made', {})
    before = made.get(kind, [])
    made[kind] = [*before, attention]
    if len(made[kind]) >= sum(ATTENTIONS[name] is kind for name in names):
        del made[kind]
    return before


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
    RoPE with one learned scale for each frequency (arXiv 2607.10134):

        angle = (m-n) theta_i e^{s_i}

    s is (P,), and starts at 0: as RoPE. All heads of all layers share it.
    """

    def __init__(self, config):
        super().__init__(config)
        before = layers_before(self)
        self.s = before[0].s if before else nn.Parameter(torch.zeros_like(self.theta))

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

        q~ = A q e^{1j (m Omega + Phi)}    k~ = A k e^{1j n Omega}
    """

    def __init__(self, config):
        super().__init__(config)
        for name in ('Omega', 'A', 'Phi'):
            parameter = getattr(self, name)
            setattr(self, name, nn.Parameter(parameter.detach()[:1], parameter.requires_grad))

    def rotate(self, q, k, position):
        angle = position[:, None] * self.Omega  # (T, P)
        A = torch.cat([self.A, self.A], dim=-1)  # (1, hs)
        return rotate_pairs(q, angle + self.Phi, A), rotate_pairs(k, angle, A)


class PhaseOnBoth(Spectral):
    """
    Spectral as the paper's formula reads (arXiv 2601.22402), with Phi on query and key:

        q~ = A q e^{1j (m Omega + Phi)}    k~ = A k e^{1j (n Omega + Phi)}

    A score has the phase (m-n) Omega + Phi - Phi. So Phi cancels, and gets no gradient.
    """

    def rotate(self, q, k, position):
        q, _ = super().rotate(q, k, position)
        angle = position[:, None] * self.Omega[:, None]  # (nh, T, P)
        A = torch.cat([self.A, self.A], dim=-1)[:, None]  # (nh, 1, hs)
        return q, rotate_pairs(k, angle + self.Phi[:, None], A)
