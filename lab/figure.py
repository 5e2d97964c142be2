"""The figure of eval.py: frequencies and loss while training, and accuracy by length."""

import io
import math

import numpy as np

from checkpoint import read_learned, write_files
from lab.plot import plain


def write_figure(folder, name, log, result):
    """Write the figure of a run into its folder, if matplotlib is there."""
    png = draw_figure(log, result)
    if png:
        write_files(folder, {name: png})
        print(f'wrote {folder}/{name}')


def draw_figure(log, result):
    """
    The bytes of a PNG: frequencies and loss while training, by the lines of a log; accuracy by
    length, and by the group with the most labels. None without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print('no figure: it needs matplotlib (pip install matplotlib)')
        return None
    figure = Figure(figsize=(9, 6.6), layout='constrained')
    figure.suptitle(plain(f'{result["task"]}, {result["attention"]}'))
    frequencies, loss, by_length, by_group = figure.subplots(2, 2).flat
    draw_frequencies(frequencies, log, result['frequencies'], result['period'])
    draw_loss(loss, log)

    counted = 'accuracy'
    if result['headline'] and 'non-trivial' in result['headline']:
        counted = 'accuracy on closers after a closer'
    lengths = result['lengths']
    values = {length: m['headline'] for length, m in lengths.items()}
    draw_accuracy(by_length, values, result['chance'])
    by_length.set(title=f'{counted} (%)', xlabel=f'tokens (trained at {result["block_size"]})')

    longest = max(lengths, key=int)
    breakdown = lengths[longest]['breakdown']
    group = max(breakdown, key=lambda group: len(breakdown[group]), default='')
    values = {plain(label): value[0] for label, value in breakdown.get(group, {}).items()}
    draw_accuracy(by_group, values, result['chance'])
    by_group.set(title=f'accuracy at {longest} tokens (%)', xlabel=plain(group))
    by_group.set_visible(bool(values))
    png = io.BytesIO()
    figure.savefig(png, dpi=130)
    return png.getvalue()


def draw_frequencies(axes, log, rows, period):
    """A line for each pair: in the colour of its harmonic if it ends locked, else grey."""
    layers = read_learned(log, 'Omega')
    paths = [path for layer in layers for path in layer.reshape(len(layer), -1).T]
    if not paths or len(paths) != len(rows):
        axes.set_title('no learned frequencies')
        return
    paths = np.abs(paths)  # (pairs, validations)
    steps = [line['iter'] for line in log if 'val_loss' in line]
    locked = [row.get('locked', False) for row in rows]
    # the locked ones on top
    for i in sorted(range(len(rows)), key=lambda i: locked[i]):
        color, width = '#AAAAAA', 0.8
        if locked[i]:
            color, width = f'C{rows[i]["harmonic"]}', 2.5
        axes.plot(steps, paths[i], color=color, linewidth=width)
    ends = paths[:, -1]
    top = max([1.1, *ends[np.isfinite(ends)]])
    axes.set(title='learned frequencies', xlabel='iteration', xmargin=0,
             ylabel='|Omega| (radians per token)', ylim=(0, 1.05 * top))
    if period:
        axes.set_title('learned frequencies (in colour: locked)')
        harmonics = range(1, int(top * period / (2 * math.pi)) + 1)
        # more labels would overlap
        for j in harmonics[::1 + len(harmonics) // 10]:
            height = 2 * math.pi * j / period
            axes.axhline(height, color='black', linestyle='--', linewidth=0.8)
            axes.text(steps[-1], height, f' $2\\pi\\cdot{j}/{period}$', va='center', color=f'C{j}')


def draw_loss(axes, log):
    """The validation loss while training. A logarithm has no 0, so 1e-6 stands for less."""
    lines = [line for line in log if 'val_loss' in line]
    axes.set(title='validation loss (nats)', xlabel='iteration')
    if lines:
        losses = np.maximum([line['val_loss'] for line in lines], 1e-6)
        axes.semilogy([line['iter'] for line in lines], losses, color='black', subs=[2, 5])
        few_decades = np.nanmax(losses) < 1000 * np.nanmin(losses)
        axes.yaxis.set_major_formatter('{x:g}')
        axes.yaxis.set_minor_formatter('{x:g}' if few_decades else '')


def draw_accuracy(axes, values, chance):
    """Accuracies {label: share}, in this order, and a guess's."""
    size = 6 if len(values) < 12 else 3
    axes.plot(list(values), [100 * value for value in values.values()], 'o-', markersize=size)
    axes.axhline(100 * chance, color='grey', linestyle=':')
    axes.text(1, 100 * chance, ' chance', va='center', transform=axes.get_yaxis_transform())
    axes.set(ylim=(-3, 103), xticks=range(0, len(values), 1 + len(values) // 8))
