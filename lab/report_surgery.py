"""The table and figure on Surgical Integration: what a trained RoPE gains when its frequencies become learnable."""

from lab import trial
from lab.compare import against, best_loss, extrapolation, log_loss, print_table, quartiles, solved, spread
from lab.figures import COLORS, plot_arm, plot_moves
from lab.report_bifocal import TASKS
from lab.report_text import log_perplexity, perplexity
from lab.results import SOLVED, group

WAYS_ON = {'full': 'all weights', 'only': 'frequencies only', 'rope': 'RoPE as it was'}  # how a trained RoPE goes on
WAY_COLORS = {'full': COLORS['spectral'], 'only': '#E69F00', 'rope': COLORS['rope']}


def models(task):
    """{way: rows} of a trained RoPE gone on with, the rows of RoPE before, and those of Spectral from scratch."""
    before, scratch = (('long', 'long') if task == 'text' else ('bases', 'headline'))
    return (group('surgery', task, WAYS_ON), group(before, task, ('rope',)).get('rope', []),
            group(scratch, task, ('spectral',)).get('spectral', []))


def models_by_name(task):
    """{name of the model, with its updates: rows} of `models`, and the baseline's rows, RoPE gone on with as it was."""
    arms, before, scratch = models(task)
    if not arms:
        return {}, None
    named = {'RoPE before': before, **{WAYS_ON[name]: runs for name, runs in arms.items()},
             'Spectral from scratch': scratch}
    return {f'{name}, {runs[0]["max_iters"]} updates': runs for name, runs in named.items() if runs}, arms.get('rope')


def surgery():
    """A trained RoPE gone on with, its frequencies learnable or not, beside Spectral from scratch."""
    rows = []
    for task in trial.PERIOD:
        named, baseline = models_by_name(task)
        for name, runs in named.items():
            n, locks = len(runs), sum(run['lock_in'] is not None for run in runs)
            rows.append([task, name, n, quartiles(map(best_loss, runs)), f'{sum(map(solved, runs))} of {n}',
                         quartiles((run['solved_at'] for run in runs), '.0f'),
                         '' if runs[0]['locked'] is None else f'{locks} of {n}', spread(map(extrapolation, runs), 100),
                         against(runs, baseline, log_loss, 2), against(runs, baseline, extrapolation, scale=100)])
    if rows:
        print_table(['task', 'model', 'n', 'best loss: median [quartiles]', 'seeds that solve it',
                     f'iterations to {SOLVED:g}', 'seeds that lock', 'extrapolation (%)',
                     'log10 of the loss, against RoPE as it was', 'extrapolation, against it (points)'], rows)
    rows = surgery_of_text()
    if rows:
        print()
        print_table(['text', 'n', 'perplexity at 1x', 'at 2x', 'at 4x', 'closing brackets (%)',
                     'ln perplexity at 1x, against RoPE as it was', 'brackets, against it (points)',
                     'median move of a frequency (%)'], rows)


def surgery_of_text():
    """The rows of the second table: perplexity, brackets, and how far the frequencies moved."""
    rows = []
    named, baseline = models_by_name('text')
    for name, runs in named.items():
        T = runs[0]['block_size']
        right_kind = lambda run: 100 * run[f'accuracy@{T} closing brackets: right kind']
        moves = [run['median_move'] for run in runs if run.get('median_move') is not None]
        rows.append([name, len(runs), *(spread([perplexity(run, m * T) for run in runs], digits=3) for m in (1, 2, 4)),
                     spread(map(right_kind, runs), digits=2), against(runs, baseline, log_perplexity(T), 4),
                     against(runs, baseline, right_kind, 2), spread(moves, 100, 2) if moves else ''])
    return rows


def draw_surgery(plt):
    """Above: every frequency of a seed before and after. Below: the losses, and those of Spectral from scratch."""
    drawn = {task: models(task) for task in (*trial.PERIOD, 'text')}
    drawn = {task: found for task, found in drawn.items() if found[0]}
    if not drawn:
        return None
    figure, panels = plt.subplots(2, len(drawn), figsize=(4 * len(drawn), 7.6), squeeze=False, height_ratios=(1.3, 1))
    for (top, bottom), (task, (arms, _, scratch)) in zip(panels.T, drawn.items()):
        shown = {name: arms[name][0] for name in ('full', 'only') if name in arms}
        run = next(iter(shown.values()))
        plot_moves(top, {WAYS_ON[name]: (WAY_COLORS[name], *one['curves']['moves']) for name, one in shown.items()},
                   run['period'])
        top.set_title(f'{TASKS.get(task, "Text")}, seed {run["seed"]}')
        for name, runs in arms.items():
            plot_arm(bottom, runs, WAY_COLORS[name], WAYS_ON[name])
        if task == 'text':
            bottom.set_yscale('linear')  # its losses are all alike
        elif scratch:
            plot_arm(bottom, scratch, '#999999', 'Spectral from scratch')
        bottom.set_ylabel('')
    for row in panels:
        for axes in row[1:]:
            axes.set_ylabel('')
    panels[1, 0].set_ylabel('validation loss (nats), every seed, median')
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc='outside upper center', ncols=5)
    figure.legend(*panels[1, 0].get_legend_handles_labels(), loc='outside lower center', ncols=4)
    return figure


TABLES = {'surgery': surgery}
DRAWINGS = {'surgery': draw_surgery}
