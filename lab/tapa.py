"""
TAPA where its scores are too many to write out at once: by the kernel of lab/tapa_kernel.py, or
by blocks of queries. And TAPA with a linear phase.

A score of TAPA takes two dot products, so PyTorch's own kernel does not serve it. Written out for
T tokens, the scores of one layer are several (B, nh, T, T) matrices, kept for the backward pass.
The kernel needs none of them. A block of queries needs a few of (B, nh, BLOCK, S), and the blocks
follow each other.

How far its numbers can be trusted: float32 knows an angle to 6e-8 of itself. So a score
a cos(angle) may be off by 6e-8 |a angle|. Where the greatest |a| times the greatest angle is 1e7,
gradients are off by some percent. From 1e8 on they mean nothing, however they are computed. With
alpha = 1 and q, k from N(0, 16^2) that is so at 64 tokens already, and with alpha = 0.1 or 0.5
and q, k from N(0, 1) nowhere near (lab/tests/test_tapa.py).
"""

import math
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from model import TAPA, distances

BLOCK = 128  # queries in a block
STORED = 1024  # keys; beyond them, the backward pass computes the scores anew, and stores none


class TAPAFused(TAPA):
    """
    The page's TAPA with a faster `attend`: the same formula and the same weights. On CUDA it is
    the kernel, which has a formula of its own: an edit of TAPA.scores does not reach it. Where the
    kernel does not serve, it goes by blocks of queries.
    """

    def attend(self, q, k, v):
        T, S = q.size(2), k.size(2)
        # fewer queries than keys go on after a cache: few scores, no kernel
        if q.is_cuda and T == S:
            from lab.tapa_kernel import warn, why_not  # heavy: it imports triton
            reason = why_not(q, k, v)
            if reason is None:
                return self.attend_by_kernel(q, k, v, self.powers(S, q.device))
            warn(f'TAPA runs without its fused kernel: {reason}')
        return self.attend_by_blocks(q, k, v)

    def powers(self, S, device):
        """|m-n|^alpha of the distances 0, 1, ..., S - 1: (S,) float32."""
        return torch.arange(S, device=device).float() ** self.config.tapa_alpha

    def attend_by_kernel(self, q, k, v, powers):
        from lab.tapa_kernel import tapa_attention
        return tapa_attention(q, k, v, powers, self.config.tapa_theta, self.config.tapa_scale)

    def attend_by_blocks(self, q, k, v):
        """The same for BLOCK queries at a time. A block gets the keys that its last query sees."""
        T, S = q.size(2), k.size(2)
        attend = super().attend
        if S > STORED and torch.is_grad_enabled():
            attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=False)
        blocks = []
        for start in range(0, T, BLOCK):
            end = min(start + BLOCK, T)
            seen = S - T + end
            block = attend(q[:, :, start:end], k[:, :, :seen], v[:, :, :seen])
            blocks.append(block)  # (B, nh, end - start, hs)
        return torch.cat(blocks, dim=2)  # (B, nh, T, hs)


class LinearTAPA(TAPA):
    """
    TAPA whose phase is linear in query and key (eq. 16 of arXiv 2509.12635):

        score = q_A.k_A / sqrt(hs_A) * cos(tapa_scale |m-n|^alpha phi)
        phi   = (sum q_P + sum k_P) / sqrt(hs_P)
    """

    def scores(self, q, k):
        hs_A, hs_P = self.sizes
        q_A, q_P = q.split(self.sizes, dim=-1)
        k_A, k_P = k.split(self.sizes, dim=-1)
        amplitude = (q_A / math.sqrt(hs_A)) @ k_A.mT  # (B, nh, T, S)
        phase_scale = self.config.tapa_scale / math.sqrt(hs_P)
        angle = phase_scale * (q_P.sum(-1)[..., None] + k_P.sum(-1)[..., None, :])
        power = distances(q, k).abs() ** self.config.tapa_alpha  # (T, S)
        return amplitude * torch.cos(power * angle)
