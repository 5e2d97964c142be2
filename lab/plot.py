"""What figures share: matplotlib, a colour for each attention, panels; and the figure of a run."""

import hashlib
import io
import math
import statistics
import sys
from types import SimpleNamespace

import numpy as np

from checkpoint import write_files, writing
from lab.analysis import nearest_harmonic, read_learned
from lab.table import groups_of, updates

# told apart by the colour-blind, too (Okabe and Ito)
COLORS = dict(nope='#999999', rope='#0072B2', spectral='#D55E00', bifocal='#009E73',
              tapa='#CC79A7')
MORE_COLORS = ['#E69F00', '#56B4E9', '#000000', '#8C564B', '#17BECF', '#BCBD22', '#444444']
NEVER = (0.78, 0.78, 0.78)  # grey, where a task is never solved
LEAST = 1e-6  # nats; a logarithm has no 0, so a smaller loss is drawn here
MOST_LINES = 64  # of one parameter; more hide each other


def pyplot():
    """
    matplotlib's pyplot with the `subplots` of this file: no window, no setting of the user's
    changes. None with a word on stderr if it is not there.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        print('no figures: they need matplotlib (pip install matplotlib)', file=sys.stderr)
        return None
    return SimpleNamespace(**vars(pyplot) | dict(subplots=subplots))


def subplots(*shape, figsize=None, **options):
    """A figure of inches `figsize`, and its panels, as those of matplotlib's pyplot."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=figsize, layout='constrained')
    panels = figure.subplots(*shape, **options)
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
    return figure, panels


def save(figure, path, dpi=120, metadata=None):
    """Write the figure to `path`, whose folder is made, and say so; `metadata`: {name: text}."""
    from matplotlib.legend import Legend
    for legend in figure.findobj(Legend):
        legend.set_frame_on(False)
    figure.savefig(png := io.BytesIO(), format='png', dpi=dpi, metadata=metadata)
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_files(path.parent, {path.name: png.getvalue()})
    print(f'wrote {path}', file=sys.stderr)


def digest(paths):
    """A digest of the files with a figure's rows. It carries it, and so shows whether it is old."""
    return hashlib.sha256(b''.join(path.read_bytes() for path in paths)).hexdigest()


def plain(text):
    """Text without formulas, for matplotlib: a path may have a $."""
    return text.replace('$', r'\$')


def plot_losses(axes, log, **style):
    """The validation loss in the lines of a log, on a logarithmic axis that ends at LEAST."""
    from matplotlib.ticker import LogFormatter
    losses = {line['iter']: line['val_loss'] for line in log if 'val_loss' in line}
    axes.plot(list(losses), [max(loss, LEAST) for loss in losses.values()], **style)
    axes.set(yscale='log', xlabel='update', ylabel='validation loss (nats)')
    axes.yaxis.set_major_formatter('{x:g}')
    axes.yaxis.set_minor_formatter(LogFormatter())  # plain numbers, of some ticks


def log_ticks(axes, ticks, labels=None):
    """A logarithmic x axis with these ticks alone."""
    axes.set_xscale('log')
    axes.set_xticks(ticks, labels or ticks)
    axes.minorticks_off()


def draw_arms(axes, rows, measures, middle, dashed=None):
    """
    The measures {x: function of a row} of rows with a column arm: a colour for each attention of
    the page, black for others, a thin line for each row, and a thick one for the `middle` of an
    arm, such as np.median. The arm `dashed` is told so from another one with its attention.
    """
    for (attention, arm), group in groups_of(rows, ['attention', 'arm']).items():
        style = dict(color=COLORS.get(attention, 'black'), linestyle='--' if arm == dashed else '-')
        curves = np.array([[measure(row) for row in group] for measure in measures.values()])
        axes.plot(list(measures), curves, linewidth=0.6, alpha=0.5, **style)
        axes.plot(list(measures), middle(curves, axis=1), linewidth=2.5,
                  label=f'{arm}, n = {len(group)}', **style)


def update_colors():
    """The colours of updates until solved."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    return ScalarMappable(Normalize(0, 1000), 'viridis_r')


def draw_updates(axes, x, y, rows, text=None, **style):
    """A square in the colour of the median of updates until solved, with a text: that number."""
    middle = statistics.median(map(updates, rows))
    if middle == math.inf:
        draw_square(axes, x, y, NEVER, text or '', **style)
    else:
        draw_square(axes, x, y, update_colors().to_rgba(middle), text or f'{middle:.0f}', **style)


def draw_square(axes, x, y, color, text, **style):
    """A square in a colour (red, green, blue), with ink that is seen on it."""
    axes.bar(x, 0.94, 0.96, bottom=y - 0.47, color=color)
    red, green, blue, *_ = color
    ink = 'white' if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else 'black'
    axes.annotate(text, (x, y), ha='center', va='center', color=ink, **style)


def bare(axes, width, height, **settings):
    """Axes for squares: from 0 to width and height, without frame, grid and ticks."""
    axes.set(xlim=(-0.6, width + 0.6), ylim=(height + 0.6, -0.6), **settings)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


# The figure of a run


def write_figure(path, log, result):
    """
    Draw what eval.py or lab.measure found: what was learned and the loss while training, by the
    lines of a log; accuracy by length. What prevents the figure is printed. It never ends a
    measurement.
    """
    try:
        plt = pyplot()
        if plt:
            save(draw_run(plt, log, result), path, dpi=130)
    except Exception as error:
        print(f'no figure: {type(error).__name__}: {error}')


def draw_run(plt, log, result):
    """The matplotlib figure of a run."""
    figure, ((learned, loss), (length, empty)) = plt.subplots(2, 2, figsize=(9, 6.6))
    empty.remove()
    length.set_subplotspec(length.get_gridspec()[1, :])
    figure.suptitle(plain(f'{result["task"]}, {result["attention"]}'))
    lines = [line for line in log if 'val_loss' in line]
    draw_learned(learned, lines, result['period'])
    plot_losses(loss, lines, color='black')
    chance = 100 * result['chance']
    length.plot(list(result['lengths']),
              [100 * measured['headline'] for measured in result['lengths'].values()], 'o-')
    length.axhline(chance, color='grey', linestyle=':')
    length.text(1, chance, ' chance', va='center', transform=length.get_yaxis_transform())
    length.set(title='headline accuracy (%)', ylim=(-3, 103),
             xlabel=f'tokens (trained at {result["block_size"]})')
    return figure


def draw_learned(axes, lines, period):
    """
    What attentions learn beside matrices, by update: Omega, with harmonics of the period in
    colour; else a colour for each parameter, and at most MOST_LINES of its numbers.
    """
    steps = [line['iter'] for line in lines]
    names = [name for name, value in lines[-1].items() if isinstance(value, list)] if lines else []
    axes.set(xlabel='update', xmargin=0)
    if 'Omega' in names:
        draw_frequencies(axes, steps, np.abs(read_learned(lines, 'Omega')).T, period)
        return
    axes.set_title(f'learned: {", ".join(names)}' if names else 'nothing learned but matrices')
    for name, color in zip(names, [*COLORS.values(), *MORE_COLORS][1:]):
        paths = read_learned(lines, name).T  # (numbers, validations)
        some = paths[::math.ceil(len(paths) / MOST_LINES)]
        axes.plot(steps, some.T, color=color, linewidth=0.8)
        axes.plot([], [], color=color, label=name)
    if names:
        axes.legend()


def draw_frequencies(axes, steps, paths, period):
    """|Omega| of each pair (pairs, validations), in the colour of its harmonic if it is locked."""
    ends = [nearest_harmonic(end, period) if period else dict(locked=False)
            for end in paths[:, -1]]
    # the locked ones on top
    for end, path in sorted(zip(ends, paths), key=lambda pair: pair[0]['locked']):
        color, width = (f'C{end["harmonic"]}', 2.5) if end['locked'] else ('#AAAAAA', 0.8)
        axes.plot(steps, path, color=color, linewidth=width)
    top = max([1.1, *paths[:, -1]])
    axes.set(title='learned frequencies', ylabel='|Ω| (radians per token)', ylim=(0, 1.05 * top))
    if period:
        axes.set_title('learned frequencies (in colour: at a harmonic)')
        harmonics = range(1, int(top * period / (2 * math.pi)) + 1)
        # more labels would overlap
        for j in harmonics[::1 + len(harmonics) // 10]:
            height = 2 * math.pi * j / period
            axes.axhline(height, color='black', linestyle='--', linewidth=0.8)
            # above the line, which would strike it through
            axes.text(steps[-1], height, f' $2\\pi\\cdot{j}/{period}$', va='bottom', ha='right',
                      color=f'C{j}')
