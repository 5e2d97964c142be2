"""Panels of lab.measure's figures. lab.plot has what all figures share."""

import math
import re
import statistics

from lab.plot import COLORS, plain_ticks, pyplot, save  # noqa: F401

TICKS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)  # of less than a decade


def plot_perplexity(axes, rows, way, color, label):
    """Perplexity by the length of the context: the mean over rows, and each of them as a dot."""
    columns = {column: re.fullmatch(rf'perplexity@(\d+) {way}', column) for column in rows[0]}
    lengths = sorted(int(match[1]) for match in columns.values() if match)
    values = [[row[f'perplexity@{length} {way}'] for row in rows] for length in lengths]
    means = [statistics.geometric_mean(v) for v in values]
    line, = axes.plot(lengths, means, color=color, label=label)
    for length, v in zip(lengths, values):
        axes.plot([length] * len(v), v, 'o', color=line.get_color(), markersize=4, alpha=0.6)
    axes.axvline(rows[0]['block_size'], color='grey', linestyle=':', linewidth=1)
    axes.set(xscale='log', yscale='log', ylabel='perplexity',
             xlabel='context (tokens; dotted: trained)')
    axes.set_xticks(lengths, map(str, lengths))
    low, high = axes.get_ylim()
    of_ten = TICKS if high < 10 * low else (1, 2, 5)
    ticks = [tick * 10**power for power in range(6) for tick in of_ten]
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(ticks, [f'{tick:g}' for tick in ticks])
    axes.minorticks_off()


def plot_heat(axes, tables, xlabel):
    """The mean of tables {length: {label: share}} as an image in %, a row a length; the image."""
    lengths = list(tables[0])
    labels = list(tables[0][lengths[-1]])
    shares = []
    for length in lengths:
        cells = [[table[length].get(label, math.nan) for table in tables] for label in labels]
        shares.append([100 * statistics.mean(cell) for cell in cells])
    image = axes.imshow(shares, cmap='viridis', vmin=0, vmax=100, aspect='auto', origin='lower')
    axes.set(xlabel=xlabel, ylabel='length (tokens)', yticks=range(len(lengths)),
             yticklabels=lengths, xticks=range(0, len(labels), 3), xticklabels=labels[::3])
    axes.grid(False)
    return image


def plot_moves(axes, groups, period):
    """
    |Omega| after against theta before, in radians per token, on logarithmic axes.

    `groups` are {label: (color, thetas, omegas)}. A hollow triangle is an Omega below zero. With a
    period its harmonics are dashed lines. An |Omega| below half the least theta is drawn at the
    bottom.
    """
    thetas, omegas = ([value for group in groups.values() for value in group[i]] for i in (1, 2))
    first = 2 * math.pi / period if period else 0  # the first harmonic
    top = 1.3 * max(*thetas, *map(abs, omegas), first)
    low = max(1e-6, 0.5 * min(thetas))
    axes.plot([low, top], [low, top], color='#999999', linewidth=1, zorder=1, label='not moved')
    for j in range(1, math.floor(top / first) + 1) if period else ():
        axes.axhline(j * first, color='black', linewidth=0.8, linestyle='--', zorder=1,
                     label='harmonics of the period' if j == 1 else None)
    for label, (color, before, after) in groups.items():
        points = [(x, max(low, abs(y)), y < 0) for x, y in zip(before, after)]
        style = dict(linewidths=1.1, edgecolors=color, clip_on=False, zorder=2)
        for backwards in (False, True):
            x, y = ([point[i] for point in points if point[2] == backwards] for i in (0, 1))
            if backwards:
                axes.scatter(x, y, marker='v', s=26, facecolors='none', **style)
            else:
                axes.scatter(x, y, marker='o', s=16, facecolors=color, label=label, **style)
    axes.scatter([], [], marker='v', s=26, facecolors='none', edgecolors='black',
                 label='Omega below zero')
    axes.set(xscale='log', yscale='log', xlim=(low, top), ylim=(low, top),
             xlabel='theta, before (radians per token)',
             ylabel='|Omega|, after (radians per token)')
    plain_ticks(axes.xaxis, axes.get_xlim)
    plain_ticks(axes.yaxis, axes.get_ylim)


def layer_groups(rows):
    """The groups of plot_moves by layer, of the rows of eval.frequency_table: dark first."""
    from matplotlib import colormaps
    layers = sorted({row['layer'] for row in rows})
    groups = {}
    for i, layer in enumerate(layers):
        shade = colormaps['viridis'](0.66 * i / max(1, len(layers) - 1))
        columns = [[row[name] for row in rows if row['layer'] == layer]
                   for name in ('theta', 'Omega')]
        groups[f'layer {layer}'] = (shade, *columns)
    return groups
