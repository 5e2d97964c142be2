"""
TAPA by hand: how much a distance moves the phase, and the expected score, as theory and as a
mean of random tokens.

    python -m lessons.tapa_by_hand             # two tables, and out/lesson_5.png

The tokens have independent normal q_P and k_P of standard deviation sigma = 0.5 in D = 2
dimensions, and an amplitude of 1.
"""

import math
from pathlib import Path

import torch

from configurator import one_line_errors
from lab import plot
from model import TAPA, GPTConfig

SIGMA, D, LONGEST, TOKENS = 0.5, 2, 64, 50_000
ALPHAS = (0.1, 0.5, 1.0)
COLORS = (plot.COLORS['tapa'], plot.COLORS['rope'], 'black')  # of these alphas


def expected(t, alpha):
    """E score at distance t = m - n: (1 + (2 pi sigma^2 t^alpha)^2 / D)^(-D/2)."""
    return (1 + (2 * math.pi * SIGMA**2 * t**alpha) ** 2 / D) ** (-D / 2)


def measured(alpha):
    """The mean score of random queries and keys, by model.py: (LONGEST + 1,), by distance."""
    generator = torch.Generator().manual_seed(0)
    q = SIGMA * torch.randn(TOKENS, 1, 1, 2 * D, generator=generator)
    k = SIGMA * torch.randn(TOKENS, 1, LONGEST + 1, 2 * D, generator=generator)
    q[..., :D] = k[..., :D] = D**-0.25  # then the amplitude q_A.k_A / sqrt(D) is 1
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=2 * D, attention='tapa', tapa_alpha=alpha)
    scores = TAPA(config).scores(q, k)  # (TOKENS, 1, 1, LONGEST + 1); the query stands last
    return scores.mean(dim=(0, 1, 2)).flip(0)


def print_steps():
    """The circles of phi = 1 at distance t, on the step to t + 1, and the phi that tells both."""
    print('alpha = 0.1; a phase of phi makes phi t^alpha circles\n'
          f'{"t":>5s} {"t^alpha":>9s} {"step to t+1":>13s} '
          f'{"phi for half a circle on that step":>36s}')
    for t in (0, 1, 2, 5, 10, 20, 50, 500):
        step = (t + 1) ** 0.1 - t**0.1
        print(f'{t:>5d} {t**0.1:>9.3f} {step:>13.4f} {0.5 / step:>36.1f}')


def one_token_back(t, alpha):
    """The score at distance t of a head that looks one token back: a = -1, phi = 1/2."""
    return -math.cos(math.pi * t**alpha)


def print_one_token_back():
    """Such a head has its greatest score, 1, at distance 1. Does distance 2 look the same?"""
    print('\na = -1 and phi = 1/2: the score is greatest at distance 1')
    print(f'{"t":>5s}' + ''.join(f'{f"alpha = {alpha:g}":>14s}' for alpha in ALPHAS))
    for t in range(4):
        scores = (one_token_back(t, alpha) for alpha in ALPHAS)
        print(f'{t:>5d}' + ''.join(f'{score:>14.3f}' for score in scores))


def draw_scores(path):
    """t^alpha; a head that looks one token back; expected scores, of theory and random tokens."""
    plt = plot.pyplot()
    if plt is None:
        return
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.8))
    distances, dots = range(LONGEST + 1), [1, 2, 4, 8, 16, 32, 64]
    left.plot(distances, [t**0.1 for t in distances], '.-', color=COLORS[0])
    left.set(title='what TAPA sees of a distance', xlabel='distance t', ylabel='t^0.1',
             ylim=(0, 1.7))
    for alpha, color, mark in zip(ALPHAS, COLORS, 'os^'):
        middle.plot(range(9), [one_token_back(t, alpha) for t in range(9)], mark + '-',
                    color=color, markersize=4)
        right.plot(distances[1:], [expected(t, alpha) for t in distances[1:]], color=color,
                   label=f'alpha = {alpha:g}')
        right.plot(dots, measured(alpha)[dots], mark, color=color)
    middle.set(title='a head that looks one token back', xlabel='distance t', ylabel='score')
    right.set(title='mean score (marks: random tokens)', xlabel='distance t',
              ylim=(-0.05, 0.55))
    right.legend()
    plot.save(figure, path)


def main():
    print_steps()
    print_one_token_back()
    draw_scores(Path('out/lesson_5.png'))


if __name__ == '__main__':
    with one_line_errors():
        main()
