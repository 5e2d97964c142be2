"""
Eight ways to get RoPE wrong. A function measures each, with the mistake or without.

    python -m lessons.mistakes      # the wrong number and the right one; draws out/lesson_8.png

A query is at position m, a key at position n. Scores are in their standard deviations.
"""

import math
from pathlib import Path

import torch

import lab  # noqa: F401  # YaRN and NTK
from lab import plot
from model import ATTENTIONS, GPTConfig, KVCache, RoPE, rotate_pairs

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
    pairs = torch.complex(x[..., 0::2], x[..., 1::2]) * torch.exp(1j * position[:, None] * THETA)
    return torch.view_as_real(pairs).flatten(-2)


def rotate_mixed(x, position):
    """The pairs are halves, the angles those of neighbours: theta_0, theta_0, theta_1, ..."""
    angle = position[:, None] * THETA.repeat_interleave(2)  # (T, hs)
    half = x.size(-1) // 2
    swapped = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * angle.cos() + swapped * angle.sin()


def at_one_distance(rotate_q=rotate, rotate_k=rotate):
    """The scores (T,) of one q with one k at the distance 5, at T places. All should be equal."""
    q, k = random(2, 1, HEAD_SIZE)
    return (rotate_q(q, POSITION + 5) * rotate_k(k, POSITION)).sum(dim=-1) / math.sqrt(HEAD_SIZE)


def backwards(x, position):
    return rotate(x, -position)


def spread(scores):
    return (scores.max() - scores.min()).item()


def layout(rows):
    """1. Rows of weights for neighbours, in this order, in model.py: error of a score."""
    x, W_q, W_k = random(3, HEAD_SIZE, HEAD_SIZE)
    n = POSITION[:HEAD_SIZE]
    theirs = rotate_neighbours(x @ W_q.T, n) @ rotate_neighbours(x @ W_k.T, n).mT
    ours = rotate(x @ W_q[rows].T, n) @ rotate(x @ W_k[rows].T, n).mT
    return (ours - theirs).abs().max().item() / theirs.std().item()


def slowest_pair(sign):
    """2. theta_i = base^(sign 2i/hs): radians per token of the last pair, which should be slow."""
    return config().rope_base ** (sign * 2 * (len(THETA) - 1) / HEAD_SIZE)


def different_tokens(dtype):
    """3. One key at T positions, which are numbers of this dtype: how many different keys?"""
    keys = rotate(random(1, HEAD_SIZE), POSITION.to(dtype).float())  # (T, hs)
    return len(keys.unique(dim=0))


def cached_keys(again=False, restart=False):
    """
    4. The last query reads a cache of rotated keys. They rotate `again`, or each new token counts
    from 0 (`restart`): error of a score.
    """
    q, k = random(2, 1, 1, T, HEAD_SIZE)
    cache = KVCache()
    for n in range(T):
        new = rotate(k[:, :, n:n + 1], POSITION[:1] if restart else POSITION[n:n + 1])
        keys, _ = cache.append(new, new)
    if again:
        keys = rotate(keys, POSITION)
    error = rotate(q, POSITION)[:, :, -1:] @ (keys - rotate(k, POSITION)).mT
    return error.abs().max().item() / math.sqrt(HEAD_SIZE)


@torch.no_grad()
def yarn_gain(attention, again=False):
    """5. By how much are scores larger than rope's? `again`: in the softmax scale, too."""
    sizes = []
    for name in (attention, 'rope'):
        torch.manual_seed(0)  # of the weights
        layer = ATTENTIONS[name](config(name, 'yarn:factor=16'))
        q, k, _ = layer.project(random(1, 8, HEAD_SIZE))
        q, k = layer.rotate(q, k, POSITION[:8])
        sizes.append((q @ k.mT).norm().item())
    gain = sizes[0] / sizes[1]
    return gain**2 if again else gain


def fastest_pair(scaled):
    """6. A context twice as long, by NTK: radians per token of pair 0, which should stay."""
    theta = RoPE(config(frequencies='ntk:factor=2')).theta
    return (2 * theta if scaled else theta)[0].item()


def slowed_pairs(original):
    """7. YaRN from 512 to 8192 tokens, told this original length: how many pairs get slower?"""
    theta = RoPE(config(frequencies=f'yarn:factor=16,original={original}')).theta
    return (theta < 0.999 * THETA).sum().item()


def bound(distance):
    """8. The bound on a score of RoPE's paper (2104.09864, section 3.4.3); 1 at distance 0."""
    sums = torch.exp(1j * distance * THETA).cumsum(dim=0)  # (P,)
    return sums.abs().mean().item() / ((len(THETA) + 1) / 2)


def random_scores(distance):
    """8. Mean and size (root mean square) of 100,000 scores of random queries with random keys."""
    q, k = random(2, 100_000, 1, HEAD_SIZE)
    scores = (rotate(q, torch.tensor([distance])) * k).sum(dim=-1) / math.sqrt(HEAD_SIZE)
    return scores.mean().item(), scores.square().mean().sqrt().item()


def equal_scores():
    """8. q = k, pairs of equal size: the score at the distances 0 ... T."""
    return torch.cos(torch.arange(T + 1)[:, None] * THETA).mean(dim=-1)


def measured_mistakes():
    """(mistake, measured, wrong, right) for each line of the table."""
    far, right = T - 1, spread(at_one_distance())
    return [
        ('1 pairs: rows not permuted', 'error of a score', layout(UNCHANGED), layout(HALVES)),
        ('1 pairs: angles of neighbours', 'change at one distance',
         spread(at_one_distance(rotate_mixed, rotate_mixed)), right),
        ('2 minus: keys turn backwards', 'change at one distance',
         spread(at_one_distance(rotate, backwards)), right),
        ('2 minus: base^(+2i/hs)', 'last pair, radians', slowest_pair(1), slowest_pair(-1)),
        ('3 positions in bfloat16', f'different keys of {T}',
         different_tokens(torch.bfloat16), different_tokens(torch.float32)),
        ('4 cache: keys rotate again', 'error of a score', cached_keys(again=True), cached_keys()),
        ('4 cache: all keys at 0', 'error of a score', cached_keys(restart=True), cached_keys()),
        ("5 YaRN's gain twice", 'scores grow by', yarn_gain('rope_yarn', again=True),
         yarn_gain('rope_yarn')),
        ("5 YaRN's gain lost", 'scores grow by', yarn_gain('rope'), yarn_gain('rope_yarn')),
        ('6 NTK: positions scaled', 'first pair, radians', fastest_pair(True), fastest_pair(False)),
        ('7 YaRN: original is 8192', 'pairs that slow down', slowed_pairs(8192), slowed_pairs(T)),
        ('8 "decays": random q and k', f'size at {far} / at 0', bound(far),
         random_scores(far)[1] / random_scores(0)[1]),
        ('8 "decays": q = k', f'rises in {T} steps', 0, (equal_scores().diff() > 0).sum().item()),
    ]


def draw_mistakes(path):
    """Left, a test that finds mistakes 1 and 2; right, what falls with the distance: mistake 8."""
    plt = plot.pyplot()
    if plt is None:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for label, turn_q, turn_k, color in [
            ('as it should be', rotate, rotate, 'black'),
            ('keys turn backwards', rotate, backwards, plot.COLORS['spectral']),
            ('angles of neighbours', rotate_mixed, rotate_mixed, plot.COLORS['rope'])]:
        left.plot(at_one_distance(turn_q, turn_k)[:100], color=color, label=label, linewidth=1.2)
    left.set(title='one query, one key, 5 tokens apart', xlabel='position n of the key',
             ylabel='score', ylim=(-1.8, 1.6))
    distances = range(0, T, 4)
    right.plot(distances[::8], [random_scores(t)[1] for t in distances[::8]], color='black',
               label='size, random q and k')
    right.plot(distances, equal_scores()[:T:4], color=plot.COLORS['rope'], label='score, q = k')
    right.plot(distances, [bound(t) for t in distances], color=plot.COLORS['spectral'],
               label='bound')
    right.set(title='does RoPE decay?', xlabel='distance m - n (tokens)', ylim=(-0.2, 1.7))
    left.legend()
    right.legend(loc='upper right')
    plot.save(figure, path)


def main():
    print(f'{"mistake":30s} {"measured":23s} {"wrong":>8s} {"right":>8s}')
    for mistake, measured, wrong, right in measured_mistakes():
        numbers = f'{wrong:8.2f} {right:8.2f}'
        if isinstance(right, int):
            numbers = f'{wrong:8d} {right:8d}'
        print(f'{mistake:30s} {measured:23s} {numbers}')
    draw_mistakes(Path('out/lesson_8.png'))


if __name__ == '__main__':
    main()
