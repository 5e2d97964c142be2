"""
RoPE by hand: rotate one pair, then ask which pairs tell the turns of a strand from other places.

    python -m lessons.rope_by_hand 7 12      # for two periods, in letters; draws out/lesson_2.png

A blank in turn j of the strand must look back j periods. Pair i then has the angle j period
theta_i. The agreement of a pair is the length of the mean arrow of these angles: 1 if all turns
look the same to it, near 0 if they point everywhere. The contrast takes away the mean arrow of all
other distances: a slow pair agrees on the turns, and on everything else.
"""

import cmath
import math
from pathlib import Path

import torch

from configurator import one_line_errors
from lab import plot
from lab.options import make_parser
from lessons.check import contrast, off_the_turns, on_the_turns
from model import GPTConfig, RoPE, rotate_pairs

T, HEAD_SIZE = 64, 32  # tokens of a string, dimensions of a head: those of lessons/strand.py


def frequencies():
    """theta_i of the config, P floats in radians per token."""
    return RoPE(GPTConfig(vocab_size=1, n_head=1, n_embd=HEAD_SIZE)).theta.tolist()


def turns(period):
    """How many turns of the strand have blanks: the string is ^, the strand, then blanks."""
    return math.ceil((T - 1 - period) / period)


def rotate_one_pair(theta):
    """Print the score of a pair (1, 0) at m with a pair (1, 0) at n, each rotated by model.py."""
    pair = torch.tensor([1.0, 0.0]).expand(1, 1, 1, 2)
    print(f'one pair, theta = {theta:.3f}: the score is cos((m - n) theta), '
          'so only the distance counts')
    for m, n in (3, 1), (13, 11), (53, 51), (4, 1):
        q, k = (rotate_pairs(pair, torch.tensor([[[place * theta]]])) for place in (m, n))
        print(f'  m = {m:>2d}, n = {n:>2d}: rotated q.k = {(q @ k.mT).item():>7.4f}')


def print_table(period, thetas):
    """For each pair: how well its angles agree after whole turns of the strand."""
    n_turns = turns(period)
    print(f'\nperiod {period}: {n_turns} turns of the strand in {T} tokens\n'
          f'{"pair":>6s} {"theta":>8s} {"circles in a turn":>19s} {"agreement":>11s} '
          f'{"contrast":>10s}')
    for i, theta in enumerate(thetas):
        circles = period * theta / (2 * math.pi)
        agreement = abs(on_the_turns(theta, period, n_turns))
        print(f'{i:>6d} {theta:>8.4f} {circles:>19.3f} {agreement:>11.2f} '
              f'{contrast(theta, period, n_turns):>10.2f}')


def draw_pairs(path, periods, thetas):
    """The score of each pair by distance, at the phase with the most contrast; a dot is a turn."""
    plt = plot.pyplot()
    if plt is None:
        return
    figure, grid = plt.subplots(len(thetas), len(periods), figsize=(9, 5), squeeze=False,
                                sharex=True, sharey=True)
    blue, orange = plot.COLORS['rope'], plot.COLORS['spectral']
    for row, theta in zip(grid, thetas):
        for axes, period in zip(row, periods):
            strand = theta, period, turns(period)
            on, off = on_the_turns(*strand), off_the_turns(*strand)
            best = cmath.phase(on - off)
            distances = [d / 4 for d in range(4 * T)]
            axes.plot(distances, [math.cos(d * theta - best) for d in distances],
                      color=blue, linewidth=1)
            dots = [j * period for j in range(1, turns(period) + 1)]
            axes.plot(dots, [math.cos(d * theta - best) for d in dots], 'o', color=orange,
                      label='a turn')
            for mean, style, label in [(on, '-', 'mean of the turns'), (off, ':', 'of the rest')]:
                height = (mean * cmath.exp(-1j * best)).real
                axes.axhline(height, color=orange, linestyle=style, label=label)
            axes.set_title(f'period {period}, theta {theta:.3f}: contrast {contrast(*strand):.2f}')
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=3)
    for axes in grid[-1]:
        axes.set_xlabel('distance m - n (tokens)')
    for axes in grid[:, 0]:
        axes.set_ylabel('score')
    plot.save(figure, path)


def main(arguments=None):
    parser = make_parser('lessons.rope_by_hand', __doc__)
    parser.add_argument('period', nargs='+', type=int, choices=range(2, T // 2), metavar='PERIOD',
                        help=f'letters in the strand, from 2 to {T // 2 - 1}')
    periods = parser.parse_args(arguments).period
    thetas = frequencies()
    rotate_one_pair(thetas[1])
    for period in periods:
        print_table(period, thetas)
    draw_pairs(Path('out/lesson_2.png'), periods, thetas[:2])


if __name__ == '__main__':
    with one_line_errors():
        main()
