"""
TAPA where its scores are too many to write out at once: by the kernel of lab/tapa_kernel.py, or by blocks of queries.

A score of TAPA takes two products, so PyTorch's own attention does not serve it. Written out for T tokens, the scores
of one layer are several (B, nh, T, T) matrices, kept for the backward pass. The kernel needs none of them. A block of
queries needs a few of (B, nh, BLOCK, S), and the blocks take turns. The linear phase always goes by blocks.
"""

import warnings
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from lab import tapa_kernel
from model import Way

FUSED = True  # False: blocks in place of the kernel, to compare the two
BLOCK = 128  # queries in a block
STORED = 1024  # keys; beyond them, the backward pass computes the scores anew in place of keeping them
UNROLLED = 2048  # queries; beyond them, torch.compile leaves the loop over the blocks as it is


def attend(tapa, q, k, v):
    """What the module `tapa` reads, as Way.forward: q (B, nh, T, hs) and k, v (B, nh, S, hs) to (B, nh, T, hs)."""
    T, S = q.size(2), k.size(2)
    if FUSED and q.is_cuda and T == S:  # fewer queries than keys continue a text: few scores, no kernel
        config = tapa.config
        quadratic = config.tapa_phase == 'quadratic'
        reason = tapa_kernel.why_not(q, k, v) if quadratic else 'the phase is linear'
        if reason is None:
            powers = torch.arange(S, device=q.device).float() ** config.tapa_alpha
            return tapa_kernel.tapa_attention(q, k, v, powers, config.tapa_theta)
        warn(f'TAPA runs without its fused kernel: {reason}')
    if T <= UNROLLED:
        return attend_by_blocks(tapa, q, k, v)
    return torch.compiler.disable(attend_by_blocks)(tapa, q, k, v)


def attend_by_blocks(tapa, q, k, v):
    """The same, for BLOCK queries at a time. A block gets the keys that its last query sees, and no others."""
    T, S = q.size(2), k.size(2)
    read = partial(Way.forward, tapa)
    if S > STORED and torch.is_grad_enabled():
        read = partial(checkpoint, read, use_reentrant=False, preserve_rng_state=False)
    elif T > BLOCK:  # else the products of each block would copy what it sees, and keep the copy
        k, v = k.contiguous(), v.contiguous()
    blocks = []
    for start in range(0, T, BLOCK):
        end = min(start + BLOCK, T)
        seen = S - T + end
        blocks.append(read(q[:, :, start:end], k[:, :, :seen], v[:, :, :seen]))  # (B, nh, end - start, hs)
    return torch.cat(blocks, dim=2)  # (B, nh, T, hs)


@torch.compiler.assume_constant_result  # torch.compile calls it while it traces: no break in the graph
def warn(message):
    warnings.warn(message)  # Python shows a warning once
