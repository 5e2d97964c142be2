"""Spectral as ablations change it."""

import torch.nn as nn

from model import Spectral, rotate_pairs


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
        return rotate_pairs(q, angle + self.Phi, self.A), rotate_pairs(k, angle, self.A)


class PhaseOnBoth(Spectral):
    """
    Spectral as the paper's formula reads (arXiv 2601.22402), with Phi on query and key:

        q~ = A q e^{1j (m Omega + Phi)}    k~ = A k e^{1j (n Omega + Phi)}

    A score has the phase (m-n) Omega + Phi - Phi. So Phi cancels, and gets no gradient.
    """

    def rotate(self, q, k, position):
        q, _ = super().rotate(q, k, position)
        angle = position[:, None] * self.Omega[:, None]  # (nkv, T, P)
        return q, rotate_pairs(k, angle + self.Phi[:, None], self.A[:, None])
