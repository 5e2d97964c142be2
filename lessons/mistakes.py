"""
Eight ways to get RoPE wrong. A function measures each. Its argument makes the mistake, or does not.

    python lessons/mistakes.py      # prints each with the wrong and the right number

A query is at position m, a key at position n. Scores are in their standard deviations.
"""

import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where model.py is
import lab  # noqa
from model import ATTENTIONS, GPTConfig, KVCache, RoPE, rotate_pairs  # noqa

HEAD_SIZE, T = 32, 512
POSITION = torch.arange(T)
UNCHANGED = list(range(HEAD_SIZE))
HALVES = UNCHANGED[0::2] + UNCHANGED[1::2]  # 0, 2, ..., 1, 3, ...


def config(attention='rope', frequencies='geometric'):
    """A config of one head."""
    return GPTConfig(vocab_size=1, n_head=1, n_embd=HEAD_SIZE, attention=attention,
                     frequencies=frequencies)


THETA = RoPE(config()).theta  # (P,), radians per token


def random(*shape):
    """Standard normal numbers of this shape, the same ones at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def rotate(x, position):
    """x (..., T or 1, hs) at `position` (T,), by model.py: the pairs are (x_i, x_{i+P})."""
    return rotate_pairs(x, position[:, None] * THETA)


def rotate_neighbours(x, position):
    """The same with the pairs (x_0, x_1), (x_2, x_3), ..."""
    angle = position[:, None] * THETA
    pairs = torch.complex(x[..., 0::2], x[..., 1::2]) * torch.exp(1j * angle)
    return torch.view_as_real(pairs).flatten(-2)


def spread(q, k):
    """Largest less smallest score of q (T, hs) with k (T, hs), token by token."""
    scores = (q * k).sum(dim=-1) / math.sqrt(HEAD_SIZE)
    return (scores.max() - scores.min()).item()


# ---- 1. halves and neighbours ------------------------------------------------------------------

def layout(rows):
    """Rows of weights for neighbours, in this order, in model.py: error of a score."""
    x, W_q, W_k = random(3, HEAD_SIZE, HEAD_SIZE)
    n = POSITION[:HEAD_SIZE]
    theirs = rotate_neighbours(x @ W_q.T, n) @ rotate_neighbours(x @ W_k.T, n).mT
    ours = rotate(x @ W_q[rows].T, n) @ rotate(x @ W_k[rows].T, n).mT
    return (ours - theirs).abs().max().item() / theirs.std().item()


def mixed_pairs(theta):
    """
    The pairs are halves, and theta (hs,) has an angle for each number. How much does the score
    change while m - n = 5 stays?
    """
    def turn(x, position):
        angle = position[:, None] * theta  # (T, hs)
        half = x.size(-1) // 2
        swapped = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * angle.cos() + swapped * angle.sin()
    q, k = random(2, 1, HEAD_SIZE)
    return spread(turn(q, POSITION + 5), turn(k, POSITION))


# ---- 2. a minus --------------------------------------------------------------------------------

def sign_of_key(sign):
    """Keys rotate by sign * n * theta. How much does the score change while m - n = 5 stays?"""
    q, k = random(2, 1, HEAD_SIZE)
    return spread(rotate(q, POSITION + 5), rotate(k, sign * POSITION))


def slowest_pair(sign):
    """theta_i = base^(sign 2i/hs): radians per token of the last pair, which should be slow."""
    return config().rope_base ** (sign * 2 * (len(THETA) - 1) / HEAD_SIZE)


# ---- 3. angles in bfloat16 ---------------------------------------------------------------------

def different_tokens(dtype):
    """One key at T positions, which are numbers of this dtype: how many different keys?"""
    position = POSITION.to(dtype).float()
    keys = rotate(random(1, HEAD_SIZE), position)  # (T, hs)
    return len(keys.unique(dim=0))


# ---- 4. a cache --------------------------------------------------------------------------------

def cached_keys(again=False, restart=False):
    """
    The last query reads a cache of rotated keys. They rotate `again`, or each new token counts
    from 0 (`restart`): error of a score.
    """
    q, k = random(2, 1, 1, T, HEAD_SIZE)
    cache = KVCache()
    for n in range(T):
        position = POSITION[:1] if restart else POSITION[n:n + 1]
        new = rotate(k[:, :, n:n + 1], position)
        keys, _ = cache.append(new, new)
    if again:
        keys = rotate(keys, POSITION)
    error = rotate(q, POSITION)[:, :, -1:] @ (keys - rotate(k, POSITION)).mT
    return error.abs().max().item() / math.sqrt(HEAD_SIZE)


# ---- 5. YaRN's gain ----------------------------------------------------------------------------

@torch.no_grad()
def yarn_gain(attention, again=False):
    """By how much are scores larger than those of rope? `again`: in the softmax scale, too."""
    sizes = []
    for name in (attention, 'rope'):
        torch.manual_seed(0)  # of the weights
        layer = ATTENTIONS[name](config(name, 'yarn:factor=16'))
        q, k, _ = layer.project(random(1, 8, HEAD_SIZE))
        q, k = layer.rotate(q, k, POSITION[:8])
        sizes.append((q @ k.mT).norm().item())
    gain = sizes[0] / sizes[1]
    return gain**2 if again else gain


# ---- 6. positions scaled, where frequencies should be ------------------------------------------

def fastest_pair(scaled):
    """A context twice as long, by NTK: radians per token of pair 0, which should stay as it is."""
    theta = RoPE(config(frequencies='ntk:factor=2')).theta
    return (2 * theta if scaled else theta)[0].item()


# ---- 7. YaRN's original length -----------------------------------------------------------------

def slowed_pairs(original):
    """YaRN from 512 to 8192 tokens, told this original length: how many pairs become slower?"""
    theta = RoPE(config(frequencies=f'yarn:factor=16,original={original}')).theta
    return (theta < 0.999 * THETA).sum().item()


# ---- 8. "RoPE decays with distance" ------------------------------------------------------------

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
        ('1 pairs: angles of neighbours', 'change at one distance',
         mixed_pairs(THETA.repeat_interleave(2)), mixed_pairs(THETA.repeat(2))),
        ('2 minus: keys turn backwards', 'change at one distance', sign_of_key(-1),
         sign_of_key(1)),
        ('2 minus: base^(+2i/hs)', 'last pair, radians', slowest_pair(1), slowest_pair(-1)),
        ('3 positions in bfloat16', f'different keys of {T}',
         different_tokens(torch.bfloat16), different_tokens(torch.float32)),
        ('4 cache: keys rotate again', 'error of a score', cached_keys(again=True),
         cached_keys()),
        ('4 cache: all keys at 0', 'error of a score', cached_keys(restart=True), cached_keys()),
        ("5 YaRN's gain twice", 'scores grow by', yarn_gain('rope_yarn', again=True),
         yarn_gain('rope_yarn')),
        ("5 YaRN's gain lost", 'scores grow by', yarn_gain('rope'), yarn_gain('rope_yarn')),
        ('6 NTK: positions scaled', 'first pair, radians', fastest_pair(True),
         fastest_pair(False)),
        ('7 YaRN: original is 8192', 'pairs that slow down', slowed_pairs(8192),
         slowed_pairs(512)),
        ('8 "decays": random q and k', f'size at {far} / at 0', bound(far), kept),
        ('8 "decays": q = k', f'rises in {T} steps', 0, rises()),
    ]


def main():
    print(f'{"mistake":30s} {"measured":23s} {"wrong":>8s} {"right":>8s}')
    for mistake, measured, wrong, right in table():
        numbers = f'{wrong:8.2f} {right:8.2f}'
        if isinstance(right, int):
            numbers = f'{wrong:8d} {right:8d}'
        print(f'{mistake:30s} {measured:23s} {numbers}')


if __name__ == '__main__':
    main()
