"""What figures share: matplotlib, one colour for each attention, and panels that several have."""

import io
import sys

from checkpoint import write_files

# told apart by the colour-blind, too (Okabe and Ito)
COLORS = dict(nope='#999999', rope='#0072B2', spectral='#D55E00', bifocal='#009E73',
              tapa='#CC79A7')
MORE_COLORS = ['#E69F00', '#56B4E9', '#000000', '#8C564B', '#17BECF', '#BCBD22', '#444444']
LEAST = 1e-6  # nats; a logarithm has no 0, so a smaller loss is drawn here
STYLE = {'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True,
         'grid.alpha': 0.3, 'legend.frameon': False, 'figure.constrained_layout.use': True}


def pyplot():
    """matplotlib's pyplot, or None with a word on stderr on how to get it."""
    try:
        import matplotlib
    except ImportError:
        print('no figures: they need matplotlib (pip install matplotlib)', file=sys.stderr)
        return None
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    plt.rcParams.update(STYLE)
    return plt


def save(plt, figure, path, dpi=120, metadata=None):
    """Write the figure to `path`, whose folder is made, and close it; `metadata`: {name: text}."""
    png = io.BytesIO()
    figure.savefig(png, dpi=dpi, metadata=metadata)
    plt.close(figure)
    write_files(path.parent, {path.name: png.getvalue()})


def plain_ticks(axis, limits):
    """
    Numbers such as 0.1, 0.2 and 0.5 on a logarithmic axis. Those that begin with 2 and 5 are left
    out above two decades. `limits` is the function that tells its ends, such as axes.get_ylim.
    """
    def between(value, _):
        low, high = sorted(limits())
        if high < 100 * low and f'{value:e}'[0] in '25':
            return f'{value:g}'
        return ''

    axis.set_major_formatter('{x:g}')
    axis.set_minor_formatter(between)


def plot_losses(axes, iterations, losses, color, label, **style):
    """Validation loss (nats) by iteration, on a logarithmic axis. A loss of NaN is a gap."""
    drawn = [LEAST if loss < LEAST else loss for loss in losses]
    axes.plot(iterations, drawn, color=color, label=label, **style)
    axes.set(yscale='log', xlabel='iteration',
             ylabel=f'validation loss (nats, at least {LEAST:g})')
    plain_ticks(axes.yaxis, axes.get_ylim)


def plain(text):
    """Text in which matplotlib finds no formula: a path may have a $."""
    return text.replace('$', r'\$')
