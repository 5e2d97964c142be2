"""
TAPA where its scores are too many to write out at once: by the kernel of lab/tapa_kernel.py, or
by blocks of queries.

A score of TAPA takes two dot products, so PyTorch's own kernel does not serve it. Written out for
T tokens, the scores of one layer are several (B, nh, T, T) matrices, kept for the backward pass.
The kernel needs none of them. A block of queries needs a few of (B, nh, BLOCK, S), and the blocks
follow each other. The linear phase always goes by blocks.
"""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

import model

FUSED = True  # False: blocks in place of the kernel, to compare the two
BLOCK = 128  # queries in a block
STORED = 1024  # keys; beyond them, the backward pass computes the scores anew, and stores none
UNROLLED = 2048  # queries; beyond them, torch.compile leaves the loop over the blocks as it is


class TAPA(model.TAPA):
    """The page's TAPA, with a faster `attend`."""

    def attend(self, q, k, v):
        T, S = q.size(2), k.size(2)
        # fewer queries than keys go on after a cache: few scores, no kernel
        if FUSED and q.is_cuda and T == S:
            from lab.tapa_kernel import tapa_attention, warn, why_not  # heavy: it imports triton
            reason = why_not(q, k, v)
            if self.config.tapa_phase != 'quadratic':
                reason = 'the phase is linear'
            if reason is None:
                powers = torch.arange(S, device=q.device).float() ** self.config.tapa_alpha
                return tapa_attention(q, k, v, powers, self.config.tapa_theta,
                                      self.config.tapa_scale)
            warn(f'TAPA runs without its fused kernel: {reason}')
        if T > UNROLLED and torch.compiler.is_compiling():
            return torch.compiler.disable(self.attend_by_blocks)(q, k, v)
        return self.attend_by_blocks(q, k, v)

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
