"""Tables and figures of Bifocal Attention beyond its claims: what the frequencies do, the map, and the controls."""

import math
import statistics

from lab import figures, trial
from lab.compare import (best_loss, difference, extrapolation, make_arms, print_arms, print_table, quartiles,
                         same_seeds, solved, spread, trained_with)
from lab.figures import COLORS, plot_losses
from lab.results import SOLVED, at_lengths, columns_of, group, study

TASKS = {'bio_rotation': 'Bio-Rotation', 'dyck3': 'Dyck-3', 'modulo': 'Modulo'}

# ----------------------------------------------------------------------------------------------------------------------
# Studies side by side, as `python -m lab.compare` puts them


def rows_of(name, *prefixes):
    """The plainly measured rows of a study whose names start with one of `prefixes`, or all."""
    return [row for row in study(name) if not row['override'] and row['name'].startswith(prefixes or '')]


def with_better_optimizer(task, *names):
    """{arm: rows} of the study `settled`; rope is the one with the best base."""
    best_rope = trial.BASELINE.get(task, 'rope')
    arms = group('settled', task, [best_rope if name == 'rope' else name for name in names])
    return {'rope' if name == best_rope else name: rows for name, rows in arms.items()}


def beside_the_usual(part, task):
    """
    The rows of a study with the better optimiser, and of the same seeds those of plain rope and spectral.

    These come from the study `settled`, which has more seeds.
    """
    rows = rows_of(part, task)
    usual = [row for runs in with_better_optimizer(task, 'rope', 'spectral').values() for row in runs]
    return rows + [row for row in usual if row['seed'] in {row['seed'] for row in rows}]


def headline():
    """Every arm of the headline: losses, and accuracies by length."""
    print_arms(make_arms(rows_of('headline'), force=True))


def draw_headline(plt):
    """Losses while training, and accuracy by length, of every arm of the headline."""
    return figures.draw_arms(plt, make_arms(rows_of('headline'), force=True))


def ablation_bio_rotation():
    """What of Omega, A and Phi finds the period of bio_rotation."""
    print_arms(make_arms(beside_the_usual('ablation_again', 'bio_rotation')))


def ablation_dyck3():
    """Frozen frequencies are RoPE, on dyck."""
    print_arms(make_arms(rows_of('ablation', 'dyck3')))


def start_bio_rotation():
    """Where the frequencies start, when they may move, and what decay does to them, on bio_rotation."""
    print_arms(make_arms(beside_the_usual('start_again', 'bio_rotation')))


def start_modulo():
    """Where the frequencies start, when they may move, and what decay does to them, on modulo."""
    print_arms(make_arms(beside_the_usual('start_again', 'modulo')))


def extrapolation_modulo():
    """Modulo with attention that stays sharp beyond the training length."""
    print_arms(make_arms(beside_the_usual('extrapolation_again', 'modulo')))


def controls():
    """What every rotation must solve, and what no sense of position can help."""
    print_arms(make_arms(rows_of('controls'), force=True))


def spacing():
    """Brackets at regular, random and exponential intervals."""
    print_arms(make_arms(rows_of('spacing_again'), force=True))


# ----------------------------------------------------------------------------------------------------------------------
# Frequencies


def signature(row):
    """How a run ended: diverged, solved, or on a plateau; and whether a frequency locked."""
    if row['final_loss'] > 1.2 * -math.log(row['chance']):
        state = 'diverged'
    else:
        state = 'solved' if solved(row) else 'plateau'
    if row['locked'] is not None:
        state += ', no lock-in' if row['lock_in'] is None else ', locked'
    return state


def lockin():
    """The lock-in of the headline runs: when, which pairs, onto which harmonics, and how the runs end."""
    rows = []
    for task in ('bio_rotation', 'modulo'):
        for name, runs in group('headline', task, ('spectral', 'bifocal')).items():
            signatures = [signature(run) for run in runs]
            listed = {column: ', '.join('-' if run[column] is None else str(run[column]) for run in runs)
                      for column in ('lock_in', 'solved_at', 'locked')}
            rows.append([task, name, listed['lock_in'], listed['solved_at'],
                         f'{listed["locked"]} of {runs[0]["pairs"]}',
                         '; '.join(run['harmonics'] or '-' for run in runs),
                         ', '.join(f'{signatures.count(s)} {s}' for s in dict.fromkeys(signatures))])
    print_table(['task', 'arm', 'lock-in (iteration, by seed)', f'loss below {SOLVED:g} (iteration)', 'pairs locked',
                 'harmonics j', 'ends'], rows)


def draw_lockin(plt):
    """Frequencies and loss of Spectral on each task with a period, of the seed that locks in the middle."""
    shown = []
    for task in ('bio_rotation', 'modulo'):
        runs = group('headline', task, ('spectral',)).get('spectral', ())
        locked = sorted((run for run in runs if run['lock_in'] is not None), key=lambda run: run['lock_in'])
        if locked:
            shown.append((task, locked[len(locked) // 2]))
    if not shown:
        return None
    figure, panels = plt.subplots(2, len(shown), figsize=(4.8 * len(shown), 6), height_ratios=(2.4, 1), sharex='col',
                                  squeeze=False)
    for (top, bottom), (task, run) in zip(panels.T, shown):
        plot_paths(top, run)
        top.set(title=f'{TASKS[task]}, Spectral, seed {run["seed"]}', ylim=(0, 1.15))
        plot_losses(bottom, *run['curves']['losses'], 'black', None)
        bottom.set_ylabel('')
        for axes in (top, bottom):
            axes.axvline(run['lock_in'], color='black', linewidth=1.5, linestyle=':')
        top.annotate('lock-in', (run['lock_in'], 0.97), (5, 0), xycoords=top.get_xaxis_transform(),
                     textcoords='offset points', va='top', fontweight='bold')
    panels[0, 0].set_ylabel('frequency |Omega| (radians per token)')
    panels[1, 0].set_ylabel('validation loss (nats)')
    panels[0, 0].plot([], [], color='black', linewidth=1.5, linestyle=':',
                      label='lock-in: from here on, one pair stays within 0.001 of a harmonic')
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc='outside lower center', ncols=2)
    return figure


def plot_paths(axes, run):
    """Every pair's |Omega| by iteration, those that end locked in colour, and the harmonics of the task by name."""
    period, (iterations, omegas) = run['period'], run['curves']['Omega']
    for j in range(1, math.floor(1.15 * period / (2 * math.pi)) + 1):
        harmonic = 2 * math.pi * j / period
        axes.axhline(harmonic, color='black', linewidth=1, linestyle='--')
        axes.text(1.01, harmonic, rf'$2\pi\cdot{j}/{period}$', transform=axes.get_yaxis_transform(), va='center')
    locked = run['curves']['locked']
    for pair, path in enumerate(zip(*omegas)):
        shade, width, order = (COLORS['spectral'], 2.5, 3) if pair in locked else ('#999999', 0.8, 1)
        axes.plot(iterations, [abs(omega) for omega in path], color=shade, linewidth=width, zorder=order)
    axes.plot([], [], color=COLORS['spectral'], linewidth=2.5, label='pairs that end locked')
    axes.plot([], [], color='#999999', linewidth=0.8, label='the other pairs')
    axes.plot([], [], color='black', linewidth=1, linestyle='--', label='harmonics of the period')


HEAD_COLORS = ('#084594', '#E69F00')  # dark and light: told apart in grey, too
COMB = ('rope', 'spectral', 'bifocal', 'oracle')


def comb():
    """How periodic the score of every head is by distance: the share of its variance that has the period."""
    rows = []
    for task in ('bio_rotation', 'modulo'):
        for name, runs in group('headline', task, COMB).items():
            shares = [100 * run[column] for run in runs for column in columns_of(run, 'periodic_share')]
            rows.append([task, name, len(runs), ', '.join(f'{share:.0f}' for share in shares),
                         f'{statistics.median(shares):.0f}'])
    print_table(['task', 'arm', 'seeds', 'share of the variance over distance with period P, each head (%)', 'median'],
                rows)


def draw_comb(plt):
    """The score by distance of every head of a seed, less its mean."""
    tasks = ('bio_rotation', 'modulo')
    figure, panels = plt.subplots(len(COMB), len(tasks), figsize=(9, 2.1 * len(COMB)), sharex='col')
    for c, task in enumerate(tasks):
        for r, (name, runs) in enumerate(group('headline', task, COMB).items()):
            axes, run = panels[r, c], runs[0]
            for i, head in enumerate(run['curves']['profile']):
                points = [(d, v) for d, v in enumerate(head) if v is not None]
                mean = statistics.mean(v for _, v in points)
                axes.plot([d for d, _ in points], [v - mean for _, v in points], color=HEAD_COLORS[i % 2],
                          linewidth=1.5, label=f'head {i}')
            axes.axvline(run['block_size'], color='black', linestyle='--', linewidth=1.2, label='the training length')
            axes.set_xticks(range(0, len(head), run['period']), minor=True)
            axes.set_xticks(range(0, len(head), 2 * run['period']))
            axes.grid(False, axis='y')
            axes.grid(True, axis='x', which='both')
            axes.set_title(f'{TASKS[task]}, {name}')
        axes.set_xlabel(f'distance (tokens; lines: multiples of {run["period"]})')
    figure.supylabel('mean score, less its mean')
    figure.legend(*axes.get_legend_handles_labels(), loc='outside upper center', ncols=3)
    return figure


# ----------------------------------------------------------------------------------------------------------------------
# Where a run is right


TURNING = ('nope', 'tapa', 'rope', 'resonance', 'spectral', 'bifocal', 'oracle')


def turns():
    """bio_rotation turn by turn: which turns of the helix a run reads right."""
    rows = []
    for name, runs in group('headline', 'bio_rotation', TURNING).items():
        inside = ', '.join(str(run['turns_right']) for run in runs)
        beyond = ', '.join(str(run['turns_right_beyond']) for run in runs)
        rows.append([name, f'{inside} of {runs[0]["turns"]}', '; '.join(run['turns_missing'] or '-' for run in runs),
                     f'{beyond} of {runs[0]["turns_beyond"]}'])
    print_table(['arm', 'turns right within the training length, by seed', 'turns missing', 'turns right beyond it'],
                rows)


def draw_turns(plt):
    """The accuracy of every turn, a row a run; NoPE and TAPA, 42 % everywhere, are left out."""
    shown = [run for name, runs in group('headline', 'bio_rotation', TURNING[2:]).items() for run in runs]
    if not shown:
        return None
    raster = [{int(turn): accuracy for turn, accuracy in run['curves']['turns'].items()} for run in shown]
    labels = [f'{run["name"].rpartition("-")[2]}, seed {run["seed"]}' for run in shown]
    figure, axes = plt.subplots(figsize=(9, 0.2 * len(raster) + 1.2))
    image = axes.imshow([[100 * line[turn] for turn in sorted(line)] for line in raster], aspect='auto', cmap='viridis',
                        vmin=25, vmax=100, extent=(0.5, len(raster[0]) + 0.5, len(raster) - 0.5, -0.5),
                        interpolation='nearest')
    axes.axvline(min(raster[0]) - 1 + shown[0]['turns'] + 0.5, color='white', linestyle='--')
    axes.set(xlabel='turn of the helix (10 tokens each); trained left of the dashed line', yticks=range(len(raster)))
    axes.set_yticklabels(labels, fontsize=7)
    axes.grid(False)
    figure.colorbar(image, label='accuracy (%)')
    return figure


def positions():
    """modulo by position: where in a string of 512 an arm is right; with log_scale, and with it after training only."""
    logs = ('rope-log', 'spectral-log', 'spectral-linear-log', 'spectral-decay-log', 'oracle-log')
    oracle = group('headline', 'modulo', ('oracle',), override='log_scale=64').get('oracle')
    arms = group('headline', 'modulo', ('rope', 'resonance', 'spectral', 'bifocal', 'oracle'))
    arms |= {'oracle, log_scale after training': oracle} if oracle else {}
    arms |= group('extrapolation', 'modulo', logs)
    rows, octaves = [], []
    for name, runs in arms.items():
        start = f'accuracy@{max(at_lengths(runs[0], "accuracy"))} position: '
        octaves = octaves or [column.removeprefix(start) for column in columns_of(runs[0], start)]
        rows.append([name, len(runs), *(spread([run[start + octave] for run in runs], 100) for octave in octaves)])
    print_table(['arm', 'n', *(f't = {octave} (%)' for octave in octaves)], rows)


def eyes_of(task):
    """{which eyes: accuracies of each seed in %} of Bifocal at the training length, and its rows; both may be empty."""
    runs = group('headline', task, ('bifocal',)).get('bifocal', ())
    if not runs:
        return {}, ()
    column = f'headline@{runs[0]["block_size"]}'
    cells = {'both open': [100 * run[column] for run in runs]}
    for closed in sorted(columns_of(runs[0], f'{column} without ')):
        cells[closed.removeprefix(f'{column} without ') + ' closed'] = [100 * run[closed] for run in runs]
    return cells, runs


def eyes():
    """Bifocal with either kind of eye closed, at the training length."""
    rows = [[task, label, ', '.join(f'{v:.1f}' for v in values), spread(values)]
            for task in TASKS for label, values in eyes_of(task)[0].items()]
    print_table(['task', 'eyes', 'accuracy of each seed (%)', 'mean ± sd'], rows)


def draw_eyes(plt):
    """The same as bars, all layers' eyes closed together."""
    bars = {task: (cells, runs) for task in TASKS for cells, runs in [eyes_of(task)] if cells}
    if not bars:
        return None
    figure, panels = plt.subplots(1, len(bars), figsize=(4.2 * len(bars), 3.4), sharey=True, squeeze=False)
    for axes, (task, (cells, runs)) in zip(panels[0], bars.items()):
        cells = {label: values for label, values in cells.items() if not any(ch.isdigit() for ch in label)}
        for i, (values, arm) in enumerate(zip(cells.values(), ('bifocal', 'spectral', 'rope'))):
            axes.bar(i, statistics.mean(values), color=COLORS[arm], alpha=0.5)
            places = [i + 0.08 * (k - len(values) / 2) for k in range(len(values))]
            axes.plot(places, values, 'o', color=COLORS[arm], markersize=5)
        axes.axhline(100 * runs[0]['chance'], color='grey', linestyle=':')
        axes.set(title=TASKS[task], ylim=(0, 105), xticks=range(len(cells)),
                 xticklabels=[label.replace(' ', '\n', 1) for label in cells])
        axes.grid(axis='x', visible=False)
    panels[0, 0].set_ylabel('accuracy (%), every seed; dotted: chance')
    return figure


def depth():
    """Cosines of the mean representations of Dyck depths 10 and 11, on strings twice as deep as those trained on."""
    rows = []
    kinds = ('cosine', 'centred cosine')
    for name, runs in group('headline', 'dyck3', ('nope', 'rope', 'resonance', 'spectral', 'bifocal', 'tapa')).items():
        for layer in range(runs[0]['n_layer']):
            columns = [f'{kind} after layer {layer} depth {d}' for d in (3, 7, 10) for kind in kinds]
            rows.append([name, layer, *(spread([run[column] for run in runs], digits=3) for column in columns)])
    print_table(['arm', 'after layer', *(f'depths {a}: {kind}' for a in ('3, 4', '7, 8', '10, 11')
                                         for kind in ('cosine', 'centred'))], rows)


def structure():
    """What a learned rotation gains over RoPE on regular intervals, and that less its gain on irregular ones."""
    schedules, rows = ('periodic', 'random', 'exponential'), []
    arms = {schedule: group('spacing_again', schedule, ('rope', 'spectral', 'bifocal')) for schedule in schedules}
    measures = {'training length': lambda run: 100 * run[f'headline@{run["block_size"]}'],
                'beyond it': lambda run: 100 * extrapolation(run)}
    for what, measure in measures.items():
        for name in ('spectral', 'bifocal'):
            gains = {}
            for schedule in schedules:
                if {'rope', name} <= set(arms[schedule]):
                    ours, theirs = same_seeds(arms[schedule][name], arms[schedule]['rope'])
                    gains[schedule] = [measure(a) - measure(b) for a, b in zip(ours, theirs)]
            if len(gains) < len(schedules):
                continue
            cells = [difference(gains[schedule], [0] * len(gains[schedule])) for schedule in schedules]
            cells += [difference(gains['periodic'], gains[other]) for other in schedules[1:]]
            rows.append([what, name, *cells])
    if rows:
        print_table(['accuracy at', 'arm', *(f'gain over rope, {schedule} (points)' for schedule in schedules),
                     'periodic less random', 'periodic less exponential'], rows)


# ----------------------------------------------------------------------------------------------------------------------
# The map


AXES = (('bio_rotation', 'periods_again', 'period P', 'period'), ('modulo', 'periods_again', 'modulus', 'period'),
        ('bio_rotation', 'layers_again', 'layers', 'n_layer'), ('modulo', 'layers_again', 'layers', 'n_layer'),
        ('bio_rotation', 'lengths', 'training length (tokens)', 'block_size'),
        ('bio_rotation', 'frequency_rates', 'learning rate of the frequencies', 'spectral_lr'),
        ('modulo', 'frequency_rates', 'learning rate of the frequencies', 'spectral_lr'))


def axis(task, part, column):
    """
    {arm: {x: [rows]}} of rope and spectral by the value x of a column, in a study of the map.

    Its default point, unless the study has it too, is that of the studies with both optimisers, or of the first trial.
    RoPE has no learning rate of frequencies.
    """
    arms = ('rope', 'spectral') if part != 'frequency_rates' else ('spectral',)
    usual = with_better_optimizer(task, *arms) if part in trial.AGAIN else group('headline', task, arms)
    found = {}
    for arm in arms:
        points = {}
        for row in rows_of(part, f'{task}-{arm}-'):
            points.setdefault(row[column], []).append(row)
        there = set(points)
        for row in usual.get(arm, ()):
            if row[column] not in there:
                points.setdefault(row[column], []).append(row)
        found[arm] = dict(sorted(points.items()))
    return found


def drawn_axes():
    """[((task, study, label, column), {arm: {x: [rows]}})] of the axes that have more than one point."""
    found = [(axes, axis(axes[0], axes[1], axes[3])) for axes in AXES]
    return [(axes, arms) for axes, arms in found if any(len(points) > 1 for points in arms.values())]


def map_():
    """Where the effect lives: the loss and what it takes along every axis."""
    rows = []
    for (task, _, label, _), arms in drawn_axes():
        for arm, points in arms.items():
            for x, runs in points.items():
                locks = sum(run['lock_in'] is not None for run in runs)
                rows.append([task, label, f'{x:g}', arm, trained_with(runs[0]), quartiles(map(best_loss, runs)),
                             f'{sum(map(solved, runs))} of {len(runs)}',
                             quartiles((run['solved_at'] for run in runs), '.0f'),
                             f'{locks} of {len(runs)}' if arm == 'spectral' else '',
                             spread(map(extrapolation, runs), 100)])
    print_table(['task', 'axis', 'value', 'arm', 'optimiser, rate', 'best loss: median [quartiles]',
                 'seeds that solve it', f'iterations to {SOLVED:g}', 'seeds that lock', 'extrapolation (%)'], rows)


def draw_map(plt):
    """The best loss of every run along every axis, a panel a task and axis, and the medians as lines."""
    drawn = drawn_axes()
    if not drawn:
        return None
    tasks, parts = (list(dict.fromkeys(axes[i] for axes, _ in drawn)) for i in (0, 1))
    figure, panels = plt.subplots(len(tasks), len(parts), figsize=(3.3 * len(parts), 2.9 * len(tasks)), sharey=True,
                                  squeeze=False)
    for panel in panels.flat:
        panel.set_visible(False)  # not every task has every axis
    for (task, part, label, _), arms in drawn:
        panel = panels[tasks.index(task), parts.index(part)]
        xs = sorted({x for points in arms.values() for x in points})
        for arm, points in arms.items():
            for x, runs in points.items():
                losses = [max(figures.FLOOR, best_loss(run)) for run in runs]
                panel.plot([xs.index(x)] * len(losses), losses, 'o', color=COLORS[arm], markersize=4, alpha=0.6)
            medians = [max(figures.FLOOR, statistics.median(map(best_loss, runs))) for runs in points.values()]
            panel.plot(list(map(xs.index, points)), medians, color=COLORS[arm], label=arm)
        title = TASKS[task] + ('' if part in trial.AGAIN else ', AdamW')
        panel.set(title=title, xlabel=label, yscale='log', xticks=range(len(xs)), visible=True)
        panel.set_xticklabels([f'{x:g}' for x in xs])
        panel.axhline(SOLVED, color='grey', linestyle=':', linewidth=1)
    for row in panels:
        row[0].set_ylabel('best validation loss (nats), every seed', fontsize=9)
    panels[0, 0].legend()
    return figure


TABLES = {'headline': headline, 'lockin': lockin, 'turns': turns, 'comb': comb,
          'eyes': eyes, 'map': map_, 'ablation_bio_rotation': ablation_bio_rotation,
          'ablation_dyck3': ablation_dyck3, 'start_bio_rotation': start_bio_rotation, 'start_modulo': start_modulo,
          'positions': positions, 'extrapolation': extrapolation_modulo, 'controls': controls, 'structure': structure,
          'spacing': spacing, 'depth': depth}
DRAWINGS = {'headline': draw_headline, 'lockin': draw_lockin, 'turns': draw_turns, 'comb': draw_comb, 'eyes': draw_eyes,
            'map': draw_map}
