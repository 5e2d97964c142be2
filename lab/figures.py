"""What the lab's figures share: matplotlib, the colours of the arms, and the panels that several figures have."""

import math
import statistics

from lab.results import at_lengths, warn

# the same colour for the same arm in every figure, told apart by the colour-blind too (Okabe and Ito)
COLORS = {'nope': '#999999', 'rope': '#0072B2', 'resonance': '#56B4E9', 'oracle': '#000000', 'spectral': '#D55E00',
          'bifocal': '#009E73', 'tapa': '#CC79A7'}
# RoPE's extensions are shades of its blue, Spectral's parts of its red
SHADES = {'rope-base': '#084594', 'rope-pi': '#6BAED6', 'rope-ntk': '#17BECF', 'rope-yarn': '#9E9AC8',
          'A and Phi': '#444444', 'Omega': '#E69F00', 'Omega and A': '#7B3294', 'Omega and Phi': '#C994C7',
          'rope-base40': '#7B3294', 'rope, base 10000': '#56B4E9', 'rope, base 100': '#0072B2',
          'rope, base 40': '#7B3294', 'rope, base 10': '#C994C7'}
# what an accuracy counts, in words: labels of the tasks' headlines are shorter
SCORED = {'all targets': 'right answers (%)', 'non-trivial closers': 'right closers, of those after a closer (%)',
          'j >= 1 closers': 'right closers, all but the first of a block (%)'}
FLOOR = 1e-6  # nats: losses below it are drawn at it


def pyplot():
    """matplotlib's pyplot, or None with a word on stderr on how to get it."""
    try:
        import matplotlib
    except ImportError:
        warn('no figures: they need matplotlib (pip install matplotlib)')
        return None
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    plt.rcParams.update({'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'grid.alpha': 0.3,
                         'legend.frameon': False, 'figure.constrained_layout.use': True})
    return plt


def save(plt, figure, path, dpi=120):
    """Writes the figure to `path`, whose folder is made, and closes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    plt.close(figure)


def color(name):
    """The colour of an arm; None, which leaves the choice to matplotlib, for what is no arm."""
    return COLORS.get(name) or SHADES.get(name)


def plain_ticks(axis, limits):
    """
    Numbers such as 0.1, 0.2 and 0.5 on a logarithmic axis; of less than two decades also those that begin with 2 and 5.
    `limits` is the function that tells its ends, such as axes.get_ylim.
    """
    def between(value, _):
        low, high = sorted(limits())
        return f'{value:g}' if f'{value:e}'[0] in '25' and high < 100 * low else ''

    axis.set_major_formatter('{x:g}')
    axis.set_minor_formatter(between)


def plot_losses(axes, iterations, losses, color, label, **style):
    """Validation loss (nats) by iteration, on a logarithmic axis that ends at FLOOR; `style` is that of axes.plot."""
    axes.plot(iterations, [max(loss, FLOOR) for loss in losses], color=color, label=label, **style)
    axes.set(yscale='log', xlabel='iteration', ylabel=f'validation loss (nats, at least {FLOOR:g})')
    plain_ticks(axes.yaxis, axes.get_ylim)


def plot_arm(axes, rows, color, label):
    """The validation losses of the runs of an arm: every seed thin, in bold their median where all were validated."""
    losses = {}
    for row in rows:
        iterations, values = row['curves']['losses']
        plot_losses(axes, iterations, values, color, None, alpha=0.3, linewidth=0.8)
        for iteration, value in zip(iterations, values):
            losses.setdefault(iteration, []).append(value)
    complete = sorted(iteration for iteration, values in losses.items() if len(values) == len(rows))
    plot_losses(axes, complete, [statistics.median(losses[iteration]) for iteration in complete], color, label)


def plot_lengths(axes, rows, color, label):
    """Headline accuracy by length: the mean over the runs of an arm, and each of them as a dot; dotted: chance."""
    lengths = sorted(at_lengths(rows[0], 'headline'))
    values = [[100 * row[f'headline@{length}'] for row in rows] for length in lengths]
    axes.plot(lengths, [statistics.mean(v) for v in values], color=color, label=label)
    for length, v in zip(lengths, values):
        axes.plot([length] * len(v), v, 'o', color=color, markersize=4, alpha=0.6)
    axes.axhline(100 * rows[0]['chance'], color='grey', linestyle=':', linewidth=1)
    axes.set(xscale='log', xlabel=f'tokens (trained at {rows[0]["block_size"]}); dotted: chance', ylim=(-3, 103))
    axes.set_ylabel(SCORED.get(rows[0]['scored'], f'{rows[0]["scored"]} right (%)'))
    axes.set_xticks(lengths, map(str, lengths))
    axes.minorticks_off()


def plot_perplexity(axes, rows, way, color, label):
    """Perplexity by the length of the context: the mean over the runs of an arm, and each of them as a dot."""
    lengths = sorted(at_lengths(rows[0], 'perplexity', f' {way}'))
    values = [[row[f'perplexity@{length} {way}'] for row in rows] for length in lengths]
    line, = axes.plot(lengths, [statistics.geometric_mean(v) for v in values], color=color, label=label)
    for length, v in zip(lengths, values):
        axes.plot([length] * len(v), v, 'o', color=line.get_color(), markersize=4, alpha=0.6)
    axes.axvline(rows[0]['block_size'], color='grey', linestyle=':', linewidth=1)
    axes.set(xscale='log', yscale='log', xlabel='context (tokens; dotted: trained)', ylabel='perplexity')
    axes.set_xticks(lengths, map(str, lengths))
    low, high = axes.get_ylim()
    of_ten = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high < 10 * low else (1, 2, 5)
    ticks = [tick * 10**power for power in range(6) for tick in of_ten if low <= tick * 10**power <= high]
    axes.set_yticks(ticks, [f'{tick:g}' for tick in ticks])
    axes.minorticks_off()


def plot_heat(axes, tables, xlabel):
    """The mean of tables {length: {label: share}} as an image in %, a row a length, a column a label; the image."""
    lengths = list(tables[0])
    labels = list(tables[0][lengths[-1]])
    shares = [[statistics.mean(100 * table[length].get(label, math.nan) for table in tables) for label in labels]
              for length in lengths]
    image = axes.imshow(shares, cmap='viridis', vmin=0, vmax=100, aspect='auto', origin='lower')
    axes.set(xlabel=xlabel, ylabel='length (tokens)', xticks=range(0, len(labels), 3), xticklabels=labels[::3],
             yticks=range(len(lengths)), yticklabels=lengths)
    axes.grid(False)
    return image


def plot_moves(axes, groups, period):
    """
    |Omega| after against theta before, in radians per token, on logarithmic axes.

    `groups` are {label: (color, thetas, omegas)}. A hollow triangle is an Omega below zero, which turns backwards. With
    a period its harmonics are dashed lines. An |Omega| below half the least theta is drawn at the bottom.
    """
    thetas, omegas = ([value for group in groups.values() for value in group[i]] for i in (1, 2))
    top = 1.3 * max(*thetas, *map(abs, omegas), 2 * math.pi / period if period else 0)
    low = max(1e-6, 0.5 * min(thetas))
    axes.plot([low, top], [low, top], color='#999999', linewidth=1, zorder=1, label='not moved')
    for j in range(1, math.floor(top * period / (2 * math.pi)) + 1) if period else ():
        axes.axhline(2 * math.pi * j / period, color='black', linewidth=0.8, linestyle='--', zorder=1,
                     label='harmonics of the period' if j == 1 else None)
    for label, (color, before, after) in groups.items():
        points = [(x, max(low, abs(y)), y < 0) for x, y in zip(before, after)]
        for backwards, style in ((False, dict(s=16)), (True, dict(s=26))):
            x, y = ([point[i] for point in points if point[2] == backwards] for i in (0, 1))
            axes.scatter(x, y, marker='v' if backwards else 'o', facecolors='none' if backwards else color, zorder=2,
                         linewidths=1.1, edgecolors=color, label=None if backwards else label, clip_on=False, **style)
    axes.scatter([], [], marker='v', s=26, facecolors='none', edgecolors='black', label='Omega below zero')
    axes.set(xscale='log', yscale='log', xlim=(low, top), ylim=(low, top), xlabel='theta, before (radians per token)',
             ylabel='|Omega|, after (radians per token)')
    plain_ticks(axes.xaxis, axes.get_xlim)
    plain_ticks(axes.yaxis, axes.get_ylim)


def layer_groups(rows):
    """The groups of plot_moves, one for each layer, of the rows of eval.frequency_table: dark first, none is pale."""
    from matplotlib import colormaps
    layers = sorted({row['layer'] for row in rows})
    shades = [colormaps['viridis'](0.66 * i / max(1, len(layers) - 1)) for i in range(len(layers))]
    return {f'layer {layer}': (shade, *([row[name] for row in rows if row['layer'] == layer]
                                        for name in ('theta', 'Omega')))
            for layer, shade in zip(layers, shades)}


def draw_arms(plt, arms):
    """
    A figure of {task: {arm: rows}}, a column a task.

    Above: validation loss while training, the median and every seed. Below: accuracy by length, mean and every seed.
    """
    figure, panels = plt.subplots(2, len(arms), figsize=(3.9 * len(arms) + 0.4, 7.6), squeeze=False)
    for (above, below), (task, group) in zip(panels.T, arms.items()):
        others = iter(('#E69F00', '#F0E442', '#8C564B', '#17BECF', '#7F7F7F', '#BCBD22'))
        for name, rows in group.items():
            shade = COLORS.get(name) or next(others, '#444444')
            plot_arm(above, rows, shade, name)
            plot_lengths(below, rows, shade, name)
        above.set_title(f'{task}: loss while training')
        below.set_title(f'{task}: accuracy by length')
        below.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), ncols=3)
    for above in panels[0, 1:]:
        above.set_ylabel('')
    return figure
