"""
The figures of the reports, from study/results alone.

    python -m study.figures              # draws study/figures/*.png; needs matplotlib
"""

import math
import statistics
from pathlib import Path

from lab import plot
from study import claims, crystals, report
from study.rows import SOLVED
from study.table import ALIKE, best_loss, beyond, differences, groups_of, same_seeds

FIGURES = Path(__file__).resolve().parent / 'figures'
SHADES = {'RoPE as the paper has it': '#6BAED6', 'RoPE tuned': plot.COLORS['rope']}
EXTENSIONS = dict(base=('#000000', 's'), pi=('#E69F00', '^'), ntk=('#7B3294', 'v'),
                  yarn=('#17BECF', 'D'))
MARKS = EXTENSIONS | dict(best=('#000000', 's'))
GUESS = '#0072B2'


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
        if above is panels[0, 0]:
            label(above, SOLVED, 'solved')
            label(above, ALIKE, 'equal below')
            label(below, 100 * rows[0]['chance'], 'chance')
        below.set(ylim=(0, 103), xticks=range(len(claims.ARMS)))
        labels = [arm.replace(' the ', ' the\n') for arm in claims.ARMS]
        below.set_xticklabels(labels, rotation=30, ha='right')
        for axes in (above, below):
            axes.grid(axis='x', visible=False)
    exponent = round(math.log10(plot.LEAST))
    panels[0, 0].set_ylabel(f'best loss (nats, at least 1e{exponent})')
    panels[1, 0].set_ylabel('accuracy beyond L, at 2L (%)')
    return figure


def dots(axes, x, values, color):
    """Every value as a dot around x, in the order of seeds, and their median as a line."""
    places = [x + 0.5 * ((i + 0.5) / len(values) - 0.5) for i in range(len(values))]
    axes.plot(places, values, 'o', color=color, markersize=3.5)
    axes.plot([x - 0.32, x + 0.32], [statistics.median(values)] * 2, color='black')


def label(axes, y, words):
    """Words below the right end of the line at y."""
    axes.annotate(words, (1, y), (0, -2), xycoords=axes.get_yaxis_transform(), ha='right', va='top',
                  textcoords='offset points', fontsize='small')


def draw_context(plt):
    """Perplexity of Python code by the length of the context: attentions, and RoPE stretched."""
    arms = groups_of(report.long_rows('text'), ['stage', 'arm'])
    rope = ['rope', *(f'rope-{name}' for name in EXTENSIONS)]
    contents = {
        ('as trained, AdamW', 'as trained, AdamW'): list(plot.COLORS),
        ('as trained, Muon', 'as trained, Muon'): [*plot.COLORS, 'tapa-best'],
        ('RoPE, stretched without training', 'as trained, AdamW'): rope,
        ('RoPE, stretched and tuned at 4L', 'tuned at 4L, AdamW'): rope}
    figure, panels = plt.subplots(2, 2, figsize=(11, 7.4), sharey='row')
    for axes, ((title, stage), names) in zip(panels.flat, contents.items()):
        curves = {name: by_context(arms[stage, name]) for name in names if (stage, name) in arms}
        # the legend goes from the highest end to the lowest
        for name in sorted(curves, key=lambda name: -curves[name][2048]):
            _, _, extension = name.partition('-')
            color, marker = MARKS.get(extension, (plot.COLORS.get(name), 'o'))
            lengths, means = zip(*curves[name].items())
            axes.plot(lengths, means, color=color, marker=marker, markersize=5, label=name)
        axes.axvline(256, color='grey', linestyle=':')
        axes.set(title=title, xscale='log', yscale='log', xlabel='context (bytes), trained at 256')
        axes.set_xticks(lengths, map(str, lengths))
        axes.yaxis.set_major_locator(plt.FixedLocator([4, 5, 6, 8, 10, 15]))
        axes.yaxis.set_major_formatter('{x:g}')
        axes.minorticks_off()
        axes.legend(loc='center left', bbox_to_anchor=(1, 0.5))
    for axes in panels[:, 0]:
        axes.set_ylabel('perplexity a byte, sliding windows')
    return figure


def by_context(rows):
    """{length: perplexity}, the geometric mean of the rows, at lengths that all of them have."""
    columns = {length: f'perplexity@{length} sliding'
               for length in report.lengths(rows, 'perplexity', ' sliding')}
    return {length: statistics.geometric_mean(row[column] for row in rows)
            for length, column in columns.items() if all(row[column] for row in rows)}


def draw_depth(plt):
    """How far NoPE and TAPA are behind RoPE on text, by the number of layers."""
    groups = groups_of(report.depth_rows(), ['attention', 'layers'])
    depths = sorted({layers for _, layers in groups})
    figure, axes = plt.subplots(figsize=(6, 4))
    for arm in ('nope', 'tapa'):
        gaps = {n: differences(best_loss, *same_seeds(groups[arm, n], groups['rope', n]))
                for n in depths if (arm, n) in groups}
        axes.plot(gaps.keys(), list(map(statistics.mean, gaps.values())), color=plot.COLORS[arm],
                  label=arm)
        for n, values in gaps.items():
            axes.plot([n] * len(values), values, 'o', color=plot.COLORS[arm], markersize=4)
    axes.axhline(0, color=plot.COLORS['rope'])
    axes.annotate('rope', (depths[-1], 0), (0, 3), textcoords='offset points', ha='right',
                  color=plot.COLORS['rope'])
    axes.set(xscale='log', xlabel='layers', ylabel='loss at L, less that of RoPE (nats)')
    axes.set_xticks(depths, map(str, depths))
    axes.minorticks_off()
    axes.set_ylim(bottom=-0.03)
    axes.legend()
    return figure


def draw_crystal_spectrum(plt):
    """The loss against q of the first run on either task: multiples of the period are its dips."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
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
        answers = round(1 / row['chance'])
        guess = math.log(answers)
        axes.axhline(guess, color=GUESS, linestyle=':', linewidth=2)
        axes.annotate(f'guessing: ln {answers}', (15, guess), (0, -5), color=GUESS,
                      textcoords='offset points', ha='center', va='top')
        axes.set(yscale='log', title=f'{task}, period {P}',
                 xlabel='q: every frequency is at its nearest multiple of 2π/q')
        axes.margins(y=0.15)
    panels[0].set_ylabel('loss at 64 tokens (nats)')
    figure.legend(*axes.get_legend_handles_labels(), loc='outside lower center', ncols=2)
    return figure


DRAWINGS = dict(claims=draw_claims, context=draw_context, depth=draw_depth,
                crystal_spectrum=draw_crystal_spectrum)


def main():
    """Draw every figure."""
    plt = plot.pyplot()
    for name, drawing in DRAWINGS.items() if plt else ():
        plot.save(plt, drawing(plt), FIGURES / f'{name}.png')
        print(f'drew {FIGURES / name}.png')


if __name__ == '__main__':
    main()
