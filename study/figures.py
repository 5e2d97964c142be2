"""
The figures of the reports, from study/results alone.

    python -m study.figures              # draws study/figures/*.png; needs matplotlib
    python -m study.figures map          # this one
"""

import math
import statistics
import sys
from pathlib import Path

from configurator import one_line_errors
from lab import plot
from lab.table import updates
from model import UserError
from study import claims

FIGURES = Path(__file__).resolve().parent / 'figures'
NEVER = '#C8C8C8'


def draw_map(plt):
    """Updates until each setting solves each task: arms and bases across, rates down."""
    columns = [(attention, base) for attention in claims.ATTENTIONS
               for base in (claims.BASES if attention in claims.WITH_BASE else (None,))]
    # a gap between arms, wider where a single column has a name; and one between the optimisers
    gaps = dict(rope=0, spectral=0.35, bifocal=0.7, nope=1.4, tapa=2.2)
    places = [i + gaps[attention] for i, (attention, _) in enumerate(columns)]
    heights = [i + 0.35 * (optimizer == 'muon') for i, (optimizer, _) in enumerate(claims.RATES)]
    figure, panels = plt.subplots(1, 3, figsize=(14, 5.4), sharey=True)
    colors = plt.get_cmap('viridis_r')
    scale = plt.Normalize(0, 1000)
    for axes, (task, title) in zip(panels, claims.TASKS.items()):
        found = {attention: claims.the_map(task, attention) for attention in claims.ATTENTIONS}
        budget = max((row['max_iters'] for cells in found.values() for rows in cells.values()
                      for row in rows), default=0)
        for x, (attention, base) in zip(places, columns):
            for y, (optimizer, rate) in zip(heights, claims.RATES):
                rows = found[attention].get((base, optimizer, rate))
                if rows:
                    draw_cell(plt, axes, x, y, rows, colors, scale)
        for attention, name in claims.ATTENTIONS.items():
            middle = statistics.mean(x for x, column in zip(places, columns)
                                     if column[0] == attention)
            n = sum(map(claims.is_solved, found[attention].values()))
            axes.annotate(f'{name}\n{n} of {len(found[attention])}', (middle, -0.75),
                          ha='center', va='bottom', fontsize=8, annotation_clip=False,
                          color=plot.COLORS[attention], fontweight='bold')
        axes.set_title(f'{title}, {budget} updates', pad=36)
        axes.set_xticks(places, ['' if base is None else f'{base:g}' for _, base in columns],
                        rotation=90, fontsize=8)
        axes.set(xlim=(-0.6, places[-1] + 0.6), ylim=(heights[-1] + 0.6, -0.6),
                 xlabel='base of the frequencies')
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
    names = dict(adamw='AdamW', muon='Muon')
    panels[0].set_yticks(heights, [f'{names[optimizer]} {rate:g}'
                                   for optimizer, rate in claims.RATES], fontsize=8)
    bar = figure.colorbar(plt.cm.ScalarMappable(scale, colors), ax=panels, fraction=0.02, pad=0.01)
    bar.set_label('updates until solved; grey: never')
    return figure


def draw_cell(plt, axes, x, y, rows, colors, scale):
    """A square in the colour of the median, and its number; grey if it is never solved."""
    middle = statistics.median(map(updates, rows))
    color = NEVER if middle == math.inf else colors(scale(middle))
    axes.add_patch(plt.Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=color, linewidth=0))
    if middle < math.inf:
        ink = 'white' if scale(middle) > 0.45 else 'black'
        axes.annotate(f'{middle:.0f}', (x, y), ha='center', va='center', fontsize=6.5, color=ink)


DRAWINGS = dict(map=draw_map)


def main(names=None):
    """Draw the figures that the command line (default: sys.argv) names, or all."""
    names = sys.argv[1:] if names is None else names
    unknown = set(names) - DRAWINGS.keys()
    if unknown:
        raise UserError(f'no figure {unknown.pop()}: there are {", ".join(DRAWINGS)}')
    plt = plot.pyplot()
    for name in (names or DRAWINGS) if plt else ():
        plot.save(plt, DRAWINGS[name](plt), FIGURES / f'{name}.png', dpi=130)
        print(f'drew {FIGURES / name}.png')


if __name__ == '__main__':
    with one_line_errors():
        main()
