"""
The figures of the reports, from study/results alone.

    python -m study.figures              # draws study/figures/*.png; needs matplotlib
"""

import statistics
from pathlib import Path

from lab import plot
from study import claims, crystals, report
from study.rows import SOLVED
from study.table import ALIKE, beyond, groups_of

FIGURES = Path(__file__).resolve().parent / 'figures'
SHADES = {'RoPE as the paper has it': '#6BAED6', 'RoPE tuned': plot.COLORS['rope']}
EXTENSIONS = dict(base='#084594', pi='#6BAED6', ntk='#17BECF', yarn='#9E9AC8')


def draw_claims(plt):
    """Every seed of the arms of the claims: the best loss, and the accuracy at 2L beyond L."""
    figure, panels = plt.subplots(2, 3, figsize=(11, 6), sharex=True, sharey='row')
    for (above, below), (task, sentence) in zip(panels.T, claims.SENTENCES.items()):
        for i, (arm, attention) in enumerate(claims.ARMS.items()):
            rows = claims.runs(task, arm, claims.newest()[task])
            color = SHADES.get(arm, plot.COLORS[attention])
            dots(above, i, [max(plot.LEAST, row['best_loss']) for row in rows], color)
            dots(below, i, list(map(beyond(2), rows)), color)
        above.set(title=sentence.partition(':')[0], yscale='log')
        above.axhline(SOLVED, color='grey', linestyle=':')
        above.axhline(ALIKE, color='black', linestyle=':')
        below.axhline(100 * rows[0]['chance'], color='grey', linestyle=':')
        below.set(ylim=(0, 103), xticks=range(len(claims.ARMS)))
        labels = [arm.replace(' the ', ' the\n') for arm in claims.ARMS]
        below.set_xticklabels(labels, rotation=30, ha='right')
        for axes in (above, below):
            axes.grid(axis='x', visible=False)
    panels[0, 0].set_ylabel('best loss (nats)')
    panels[1, 0].set_ylabel('accuracy beyond L, at 2L (%)')
    return figure


def dots(axes, x, values, color):
    """Every value as a dot around x, in the order of seeds, and their median as a line."""
    places = [x + 0.5 * ((i + 0.5) / len(values) - 0.5) for i in range(len(values))]
    axes.plot(places, values, 'o', color=color, markersize=3.5)
    axes.plot([x - 0.32, x + 0.32], [statistics.median(values)] * 2, color='black')


def draw_context(plt):
    """Perplexity of Python code by the length of the context, in the three stages."""
    stages = groups_of(report.long_rows('text'), ['stage'])
    figure, panels = plt.subplots(1, len(stages), figsize=(13, 4), sharey=True)
    for axes, ((stage,), group) in zip(panels, stages.items()):
        for (arm,), rows in groups_of(group, ['arm']).items():
            attention, _, extension = arm.partition('-')
            lengths = report.lengths(rows, 'perplexity', ' sliding')
            means = [statistics.geometric_mean(row[f'perplexity@{length} sliding'] for row in rows)
                     for length in lengths]
            color = EXTENSIONS.get(extension, plot.COLORS[attention])
            axes.plot(lengths, means, 'o-', color=color, label=arm)
        axes.axvline(256, color='grey', linestyle=':')
        axes.set(title=stage, xscale='log', yscale='log', xlabel='context (bytes)')
        axes.set_xticks(lengths, map(str, lengths))
        axes.set_yticks([4, 5, 6, 8, 10, 15], ['4', '5', '6', '8', '10', '15'])
        axes.minorticks_off()
    panels[0].set_ylabel('perplexity a byte, sliding windows')
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc='outside right center')
    return figure


def draw_crystal_spectrum(plt):
    """The loss against q of the first run on either task: multiples of the period are its dips."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5))
    for axes, (task, periods) in zip(panels, crystals.PERIODS.items()):
        P = periods[0]
        row = crystals.stages('crystal', f'{task}-spectral-{P}', crystals.CRYSTAL)['trained'][0]
        losses = {q: max(plot.LEAST, loss) for q, (loss, _) in crystals.spectrum(row).items()}
        teeth = {q: loss for q, loss in losses.items() if q % P == 0}
        axes.plot(losses.keys(), losses.values(), 'o-', color='#666666', markerfacecolor='white')
        axes.plot(teeth.keys(), teeth.values(), 'o', color=plot.COLORS['spectral'], markersize=9,
                  label='multiples of the period')
        for q, loss in teeth.items():
            axes.annotate(f'{q}', (q, loss), (0, -17), textcoords='offset points', ha='center')
        trained = float(row['spectrum'].split()[0])
        axes.axhline(trained, color='black', linestyle='--', label='as trained')
        axes.set(yscale='log', title=f'{task}, period {P}', ylabel='loss at 64 tokens (nats)',
                 xlabel='q: every frequency is at its nearest multiple of 2π/q')
        axes.margins(y=0.15)
    figure.legend(*axes.get_legend_handles_labels(), loc='outside lower center', ncols=2)
    return figure


DRAWINGS = dict(claims=draw_claims, context=draw_context, crystal_spectrum=draw_crystal_spectrum)


def main():
    """Draw every figure."""
    plt = plot.pyplot()
    for name, drawing in DRAWINGS.items() if plt else ():
        plot.save(plt, drawing(plt), FIGURES / f'{name}.png')
        print(f'drew {FIGURES / name}.png')


if __name__ == '__main__':
    main()
