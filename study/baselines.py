"""
What the tasks give away: tables of what simple rules reach on them, without any run.
"""

import math

import numpy as np

from lab import analysis
from lab.table import markdown
from tasks import make_task

STRINGS = 2000  # sampled for each number
WINDOWS = (3, 5, 9, 17, 33)


def closers(length, task=make_task('dyck')):
    """
    Of sampled strings of Dyck-3, each (strings, length): is the target a closer, is it one that
    follows a closer, and how far back is its opener, counted from the target.
    """
    x, y = task.sample(np.random.default_rng(0), STRINGS, length)
    scored = y >= 0
    return scored, task.headline(x, y), np.where(scored, analysis.opener_distance(task, x), 0)


def rule(far, distance, w):
    """The accuracy (%) on the targets `far` of a rule that looks w tokens back, else guesses."""
    known = (far & (distance <= w)).sum() / far.sum()
    return f'{100 * (known + (1 - known) / 3):.0f}'


def plateau():
    """The loss on Dyck-3 of a model that closes only what has just opened, and guesses the rest."""
    lines = []
    for max_depth in (4, 6, 8, 16):
        scored, nontrivial, _ = closers(64, make_task(f'dyck:max_depth={max_depth}'))
        share = nontrivial.sum() / scored.sum()
        lines.append([max_depth, f'{100 * share:.1f}', f'{share * math.log(3):.2f}'])
    return markdown(['nested up to', 'closers after a closer, of all (%)',
                     'loss if these are guessed (nats)'], lines)


def windows():
    """The accuracy of such rules on Dyck-3: closers after closers, beyond the first 64 tokens."""
    lines = []
    shares = {length: closers(length) for length in (128, 256, 512)}
    for w in WINDOWS:
        cells = [rule(nontrivial[:, 64:], distance[:, 64:], w)
                 for _, nontrivial, distance in shares.values()]
        lines.append([f'w = {w}', *cells])
    return markdown(['rule', '2L (%)', '4L (%)', '8L (%)'], lines)


def gap_windows():
    """The same rules on the strings of the gap, which nest up to 16 deep, by the depth closed."""
    task = make_task('dyck:max_depth=16,p_open=0.8')
    x, y = task.sample(np.random.default_rng(0), STRINGS, 64)
    depth, distance = analysis.depth(task, x), analysis.opener_distance(task, x)
    lines = [[f'w = {w}', *(rule(task.headline(x, y) & (depth == d), distance, w)
                            for d in range(1, 16))] for w in WINDOWS]
    return markdown(['rule', *range(1, 16)], lines)


def seen(period, updates):
    """The expected share of Bio-Rotation's strands that are in 64 strings an update."""
    return -math.expm1(64 * updates * math.log1p(-(4.0 ** -period)))


def strands():
    """The share of Bio-Rotation's test strands that training has seen, by period and updates."""
    lines = []
    for period in (5, 7, 10, 13, 16, 29):
        shares = [100 * seen(period, updates) for updates in (100, 1000)]
        lines.append([period, f'{4.0 ** period:.2g}',
                      *('< 0.01' if share < 0.01 else f'{share:.3g}' for share in shares)])
    return markdown(['period', 'strands', 'seen after 100 updates (%)',
                     'seen after 1000 updates (%)'], lines)


def openers():
    """How far the openers of closers after a closer are behind the query, nested up to 16 deep."""
    _, nontrivial, distance = closers(64, make_task('dyck:max_depth=16'))
    back, few = distance[nontrivial] - 1, range(2, 18, 2)
    shares = [100 * np.mean(back == d) for d in few] + [100 * np.mean(back > few[-1])]
    return markdown(['tokens back', *few, 'more'], [['%', *(f'{one:.1f}' for one in shares)]])


TABLES = {table.__name__: table for table in (plateau, windows, gap_windows, strands, openers)}
