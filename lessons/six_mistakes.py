"""
Six ways to get RoPE wrong. A function measures each. Its argument makes the mistake, or does not.

    python lessons/six_mistakes.py      # prints each with the wrong and the right number

A query is at position m, a key at position n. Scores are in their standard deviations.
"""

import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where model.py is
from lab.frequencies import GainRoPE, stretch  # noqa
from model import GPTConfig, KVCache, RoPE, apply_rotary  # noqa

HEAD_SIZE, T = 32, 512
CONFIG = GPTConfig(vocab_size=1, n_head=1, n_embd=HEAD_SIZE)
YARN = GPTConfig(vocab_size=1, n_head=1, n_embd=HEAD_SIZE, rope='yarn:factor=16')
THETA = RoPE(CONFIG).theta  # (P,), radians per token
POSITION = torch.arange(T)
UNCHANGED = list(range(HEAD_SIZE))
HALVES = UNCHANGED[0::2] + UNCHANGED[1::2]  # 0, 2, ..., 1, 3, ...


def random(*shape):
    """Standard normal numbers of this shape, the same ones at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def rotate(x, position):
    """x (..., T or 1, hs) at `position` (T,), by model.py: the pairs are (x_i, x_{i+P})."""
    return apply_rotary(x, position[:, None] * THETA)


def rotate_interleaved(x, position):
    """The same with the pairs (x_0, x_1), (x_2, x_3), ..."""
    angle = position[:, None] * THETA
    pairs = torch.complex(x[..., 0::2], x[..., 1::2]) * torch.exp(1j * angle)
    return torch.view_as_real(pairs).flatten(-2)


def spread(q, k):
    """Largest less smallest score of q (T, hs) with k (T, hs), token by token."""
    scores = (q * k).sum(dim=-1) / math.sqrt(HEAD_SIZE)
    return (scores.max() - scores.min()).item()


# ---- 1. half or interleaved pairs --------------------------------------------------------------

def layout(rows):
    """Rows of weights for interleaved pairs, in this order, in model.py: error of a score."""
    x, W_q, W_k = random(3, HEAD_SIZE, HEAD_SIZE)
    n = POSITION[:HEAD_SIZE]
    theirs = rotate_interleaved(x @ W_q.T, n) @ rotate_interleaved(x @ W_k.T, n).mT
    ours = rotate(x @ W_q[rows].T, n) @ rotate(x @ W_k[rows].T, n).mT
    return (ours - theirs).abs().max().item() / theirs.std().item()


def mixed_layouts(rotate_key):
    """The query has interleaved pairs. How much does the score change while m - n = 5 stays?"""
    q, k = random(2, 1, HEAD_SIZE)
    return spread(rotate_interleaved(q, POSITION + 5), rotate_key(k, POSITION))


# ---- 2. the sign -------------------------------------------------------------------------------

def sign_of_key(sign):
    """Keys rotate by sign * n * theta. How much does the score change while m - n = 5 stays?"""
    q, k = random(2, 1, HEAD_SIZE)
    return spread(rotate(q, POSITION + 5), rotate(k, sign * POSITION))


# ---- 3. positions in bfloat16 ------------------------------------------------------------------

def different_tokens(dtype):
    """One key at T positions, which are numbers of this dtype: how many different keys?"""
    position = POSITION.to(dtype).float()
    keys = rotate(random(1, HEAD_SIZE), position)  # (T, hs)
    return len(keys.unique(dim=0))


# ---- 4. a cached key rotates again -------------------------------------------------------------

def cached_keys(again):
    """The last query reads a cache of rotated keys, rotated `again` or not: error of a score."""
    q, k = random(2, 1, 1, T, HEAD_SIZE)
    cache = KVCache()
    for n in range(T):
        new = rotate(k[:, :, n:n + 1], POSITION[n:n + 1])
        keys, _ = cache.append(new, new)
    if again:
        keys = rotate(keys, POSITION)
    scores = rotate(q, POSITION)[:, :, -1:] @ keys.mT / math.sqrt(HEAD_SIZE)
    return (scores - RoPE(CONFIG).scores(q[:, :, -1:], k)).abs().max().item()


# ---- 5. YaRN's gain ----------------------------------------------------------------------------

@torch.no_grad()
def yarn_gain(attention_class, again):
    """By how much are scores larger than without a gain? `again`: in the softmax scale, too."""
    attention = attention_class(YARN)
    x, position = random(1, 8, HEAD_SIZE), POSITION[:8]
    scores = attention.scores(*attention.project(x, position)[:2])
    if again:
        scores = scores * stretch(YARN)[1] ** 2
    without = attention.scores(*RoPE.project(attention, x, position)[:2])
    return (scores.norm() / without.norm()).item()


# ---- 6. "RoPE decays with distance" ------------------------------------------------------------

def bound(distance):
    """The bound on a score in RoPE's paper (arXiv 2104.09864, section 3.4.3); 1 at distance 0."""
    sums = torch.exp(1j * distance * THETA).cumsum(dim=0)  # (P,)
    return sums.abs().mean().item() / ((len(THETA) + 1) / 2)


def random_scores(distance):
    """Mean and size (root mean square) of 100,000 scores of random queries with random keys."""
    q, k = random(2, 100_000, 1, HEAD_SIZE)
    far = rotate(q, torch.tensor([distance]))
    scores = (far * k).sum(dim=-1) / math.sqrt(HEAD_SIZE)
    return scores.mean().item(), scores.square().mean().sqrt().item()


def rises():
    """q = k, pairs of equal size: at how many of the T distances is the score above the last?"""
    scores = torch.cos(torch.arange(T + 1)[:, None] * THETA).mean(dim=-1)
    return (scores.diff() > 0).sum().item()


def table():
    """(mistake, measured, wrong, right) for each line of the table."""
    far = T - 1
    kept = random_scores(far)[1] / random_scores(0)[1]
    return [
        ('1 pairs: rows not permuted', 'error of a score', layout(UNCHANGED), layout(HALVES)),
        ('1 pairs: q and k differ', 'change at one distance',
         mixed_layouts(rotate), mixed_layouts(rotate_interleaved)),
        ('2 keys rotate backwards', 'change at one distance', sign_of_key(-1), sign_of_key(1)),
        ('3 positions in bfloat16', f'different keys of {T}',
         different_tokens(torch.bfloat16), different_tokens(torch.float32)),
        ('4 cached keys rotate again', 'error of a score', cached_keys(True), cached_keys(False)),
        ("5 YaRN's gain twice", 'scores grow by',
         yarn_gain(GainRoPE, True), yarn_gain(GainRoPE, False)),
        ("5 YaRN's gain lost", 'scores grow by',
         yarn_gain(RoPE, False), yarn_gain(GainRoPE, False)),
        ('6 "decays": random q and k', f'size at {far} / at 0', bound(far), kept),
        ('6 "decays": q = k', f'rises in {T} steps', 0, rises()),
    ]


def main():
    print(f'{"mistake":28s} {"measured":24s} {"wrong":>7s} {"right":>7s}')
    for mistake, measured, wrong, right in table():
        numbers = f'{wrong:7.2f} {right:7.2f}'
        if isinstance(right, int):
            numbers = f'{wrong:7d} {right:7d}'
        print(f'{mistake:28s} {measured:24s} {numbers}')


if __name__ == '__main__':
    main()
