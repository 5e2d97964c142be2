"""
The tables and figures of the trial that `eval.py --compare` does not make, from the committed logs alone.

    python results/report.py claims          # prints a Markdown table; some also draw results/NAME.png
    python results/report.py                 # all of them
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'results')]

import eval as measured  # noqa: E402
import trial  # noqa: E402
from eval import (COLORS, SOLVED, against, best_loss, difference, extrapolation, iterations_to, lock_in, paired, plot_heat, plot_perplexity,  # noqa: E402
                  print_table, pyplot, quartiles, read_run, spread)
from model import rope_frequencies  # noqa: E402
from tasks import make_task  # noqa: E402

RESULTS = FIGURES = Path(__file__).resolve().parent
TASKS = {'bio_rotation': 'Bio-Rotation', 'dyck3': 'Dyck-3', 'modulo': 'Modulo'}


def group(part, prefix, names):
    """{arm: [runs by seed]} of results/part/PREFIX-ARM-SEED."""
    found = {}
    for name in names:
        folders = sorted((RESULTS / part).glob(f'{prefix}-{name}-[0-9]*'), key=lambda f: int(f.name.rpartition('-')[2]))
        runs = [run for run in map(read_run, folders) if run]
        if runs:
            found[name] = runs
    return found


def by_seed(ours, theirs, measure):
    """Two lists of a measure over the seeds that both arms have."""
    other = {run['options']['seed']: run for run in theirs}
    both = [(run, other[run['options']['seed']]) for run in ours if run['options']['seed'] in other]
    return [measure(a) for a, _ in both], [measure(b) for _, b in both]


# ----------------------------------------------------------------------------------------------------------------------


def tuning_runs(task, name, rate):
    """The runs of an arm at a learning rate, on the tuning seeds that tried it."""
    folders = [folder for part in ('sweep', 'knobs') for folder in sorted((RESULTS / part).glob(f'{task}-{name}-{rate:g}-[0-9]*'))]
    runs = [run for run in (read_run(folder, 'eval_validation.json') for folder in folders) if run]
    for run in runs:
        if run['options']['learning_rate'] != rate or run['eval']['split'] != 'validation':
            raise ValueError(f'{run["folder"]} is not a tuning run at learning rate {rate:g}')
    return runs


def merit(runs):
    """
    By which rates and knobs are chosen: the share of seeds that solve the task (validation loss below 0.005), then the mean
    accuracy beyond the training length if any does, then the loss.
    """
    losses = [best_loss(run) for run in runs]
    solved = sum(loss < 0.005 for loss in losses) / len(runs)
    return solved, statistics.mean(map(extrapolation, runs)) if solved else 0, -statistics.mean(losses)


def show_merit(task, run):
    """What it was chosen by: the validation loss and, but for text, the accuracy beyond the training length."""
    return f'{best_loss(run):.4g}' if task == 'text' else f'{best_loss(run):.2g} / {100 * extrapolation(run):.0f} %'


def choose_rate(task, name):
    """The learning rate of an arm: the one of most merit on the first tuning seed."""
    tried = {rate: tuning_runs(task, name, rate)[:1] for rate in trial.rates(task, name)}
    return max((rate for rate, runs in tried.items() if runs), key=lambda rate: merit(tried[rate]), default=None)


def choose_knob(task, attention):
    """
    'rope', say, at its chosen rate; or the best of its KNOBS, if on the same tuning seeds that solves more of them, or as
    many and is two points more accurate beyond the training length, or on text and passkey loses 0.01 nats less: less is noise.
    """
    runs = tuning_runs(task, attention, choose_rate(task, attention))
    tried = {knob: tuning_runs(task, knob, rate)[:len(runs)] for knob in trial.EVERY_KNOB
             if knob.startswith(attention + '-') and (rate := choose_rate(task, knob))}
    best = max((knob for knob in tried if tried[knob]), key=lambda knob: merit(tried[knob]), default=None)
    if best is None:
        return attention
    ours, theirs = merit(tried[best]), merit(runs[:len(tried[best])])
    better = ours[1] > theirs[1] + 0.02 or (task in trial.LONG and ours[2] > theirs[2] + 0.01)
    return best if ours[0] > theirs[0] or (ours[0] == theirs[0] and better) else attention


def runs_at(part, name, every):
    """{rates: run} of an arm on the tuning seed, of those of `every`, rates or tuples of them, that were tried."""
    found = {}
    for rates in every:
        numbers = '-'.join(f'{rate:g}' for rate in (rates if isinstance(rates, tuple) else (rates,)))
        folder = RESULTS / part / f'{name}-{numbers}-{trial.TUNING_SEEDS[0]}'
        if folder.exists() and (run := read_run(folder, 'eval_validation.json')):
            found[rates] = run
    return found


def sweep():
    """Every rate and knob that was tried, its merit, and what was chosen."""
    rows = []
    for task in trial.TASKS:
        for name in trial.ARMS | trial.EVERY_KNOB:
            tried = {rate: tuning_runs(task, name, rate) for rate in trial.rates(task, name)}
            tried = {rate: runs for rate, runs in tried.items() if runs}
            if not tried:
                continue
            cells = [f'{rate:g}: ' + ', '.join(show_merit(task, run) for run in runs) for rate, runs in tried.items()]
            attention = name.split('-')[0]
            knob = choose_knob(task, attention) if attention in ('rope', 'spectral', 'bifocal', 'tapa') else name
            rows.append([task, name, '; '.join(cells), f'{choose_rate(task, name):g}' if name in trial.ARMS else '', 'chosen' if knob == name else ''])
    print_table(['task', 'arm', 'rate: validation loss / accuracy beyond, by seed', 'rate chosen', 'knob'], rows)


def claims():
    """The paper's sentences beside the headline runs."""
    rows = []
    sentences = {'bio_rotation': 'Bio-Rotation: 0.0008 against RoPE\'s 1.07', 'dyck3': 'Dyck-3: 99 %+ against a plateau at 0.43',
                 'modulo': 'Modulo: near-perfect against significant error'}
    for task, sentence in sentences.items():
        arms = group('headline', task, ('rope', 'spectral', 'bifocal'))
        if not {'rope', 'spectral'} <= set(arms):
            continue
        options = arms['rope'][0]['options']
        setting = f'{options["n_layer"]} layer{"s" if options["n_layer"] > 1 else ""}, {options["max_iters"]} iterations, n = {len(arms["rope"])}'
        for name in ('spectral', 'bifocal'):
            if name not in arms:
                continue
            log = lambda run: math.log10(best_loss(run))
            mean, half, p = paired(*by_seed(arms[name], arms['rope'], log))
            solved = [sum(best_loss(run) <= SOLVED for run in arms[arm]) for arm in (name, 'rope')]
            verdict = ('reproduced' if mean + half < 0 and solved[0] > solved[1] else
                       'lower loss, though both solve it' if mean + half < 0 else
                       'not reproduced' if mean - half > 0 or solved[0] <= solved[1] else 'not settled')
            deeper = group('layers', task, ('rope-2',)).get('rope-2', ()) if verdict == 'reproduced' else ()
            if (easy := sum(best_loss(run) <= SOLVED for run in deeper)) > len(deeper) / 2:
                verdict += f' with one layer; with two RoPE solves it too ({easy} of {len(deeper)} seeds)'
            rows.append([sentence, f'{name}, {setting}', f'{quartiles(map(best_loss, arms[name]))} against {quartiles(map(best_loss, arms["rope"]))}',
                         f'{solved[0]} against {solved[1]} of {len(arms["rope"])}', f'{mean:+.2f} ± {half:.2f} (p {p:.2g})',
                         against(arms[name], arms['rope'], extrapolation, scale=100), verdict])
    print_table(['the paper', 'here', 'best loss: median [quartiles]', f'seeds below {SOLVED:g}', 'log10 of the loss, difference',
                 'accuracy beyond the training length, difference (points)', 'verdict'], rows)


def signature(run):
    """How a run ended: diverged, solved, or on a plateau; and whether a frequency locked."""
    period = make_task(run['eval']['task']).period
    worst = -math.log(run['eval']['chance'])
    if run['validations'][-1]['val_loss'] > 1.2 * worst:
        state = 'diverged'
    else:
        state = 'solved' if best_loss(run) <= SOLVED else 'plateau'
    if period and 'frequencies' in run['eval']:
        state += ', locked' if lock_in(run) is not None else ', no lock-in'
    return state


def lockin():
    """Lock-in events of the headline runs, and results/lockin.png: frequencies and loss of the seed in the middle."""
    rows, shown = [], {}
    for task in ('bio_rotation', 'modulo'):
        for name, runs in group('headline', task, ('spectral', 'bifocal')).items():
            events = [lock_in(run) for run in runs]
            pairs = [sum(row['locked'] for row in run['eval']['frequencies']) for run in runs]
            total = len(runs[0]['eval']['frequencies'])
            harmonics = [sorted({row['harmonic'] for row in run['eval']['frequencies'] if row['locked']}) for run in runs]
            signatures = [signature(run) for run in runs]
            rows.append([task, name, ', '.join('-' if e is None else str(e) for e in events),
                         ', '.join('-' if (i := iterations_to(run)) is None else str(i) for run in runs),
                         f'{", ".join(map(str, pairs))} of {total}', '; '.join(','.join(map(str, h)) or '-' for h in harmonics),
                         ', '.join(f'{signatures.count(s)} {s}' for s in dict.fromkeys(signatures))])
            locked = sorted((run for run in runs if lock_in(run) is not None), key=lock_in)
            if name == 'spectral' and locked:
                shown[task] = locked[len(locked) // 2]
    print_table(['task', 'arm', 'lock-in (iteration, by seed)', f'loss below {SOLVED:g} (iteration)', 'pairs locked', 'harmonics j', 'ends'], rows)
    plt = pyplot()
    if plt is None or not shown:
        return
    figure, panels = plt.subplots(2, len(shown), figsize=(5.2 * len(shown), 5.8), height_ratios=(2.4, 1), sharex='col', squeeze=False)
    for column, (task, run) in enumerate(shown.items()):
        period, lines = make_task(run['eval']['task']).period, [line for line in run['validations'] if 'Omega' in line]
        steps, top, bottom = [line['iter'] for line in lines], panels[0, column], panels[1, column]
        for j in range(1, math.floor(1.15 * period / (2 * math.pi)) + 1):
            top.axhline(2 * math.pi * j / period, color='black', linewidth=1, linestyle='--', label=rf'$2\pi j/{period}$' if j == 1 else None)
        locked = {(row['layer'], row['head'], row['pair']) for row in run['eval']['frequencies'] if row['locked']}
        heads = [[(layer, head, pair, [line['Omega'][layer][head][pair] for line in lines]) for pair in range(len(lines[0]['Omega'][layer][head]))]
                 for layer in range(len(lines[0]['Omega'])) for head in range(len(lines[0]['Omega'][layer]))]
        for layer, head, pair, path in sorted((p for head in heads for p in head), key=lambda p: p[:3] in locked):
            at_home = (layer, head, pair) in locked
            top.plot(steps, path, color=COLORS['spectral'] if at_home else '#BBBBBB', linewidth=2.2 if at_home else 0.8, zorder=3 if at_home else 1)
        top.plot([], [], color=COLORS['spectral'], linewidth=2.2, label='pairs that lock')
        top.plot([], [], color='#BBBBBB', linewidth=0.8, label='the other pairs')
        top.set(title=f'{TASKS[task]}, Spectral, seed {run["options"]["seed"]}', ylim=(0, 1.15))
        measured.plot_losses(bottom, run['log'], 'black', None)
        bottom.set_ylabel('')
        for axes in (top, bottom):
            axes.axvline(lock_in(run), color=COLORS['rope'], linewidth=1.2, linestyle=':', label='lock-in')
        top.legend(fontsize=8, loc='upper right')
    panels[0, 0].set_ylabel('frequency Omega (radians per token)')
    panels[1, 0].set_ylabel('validation loss (nats)')
    figure.savefig(FIGURES / 'lockin.png', dpi=120)
    plt.close(figure)


def comb():
    """results/comb.png: the score by distance of every head, in RoPE, Spectral, Bifocal and the oracle, and how periodic it is."""
    arms, tasks, rows = ('rope', 'spectral', 'bifocal', 'oracle'), ('bio_rotation', 'modulo'), []
    plt = pyplot()
    figure, panels = plt.subplots(len(tasks), len(arms), figsize=(3.6 * len(arms), 2.7 * len(tasks)), sharex='row') if plt else (None, None)
    for r, task in enumerate(tasks):
        for c, (name, runs) in enumerate(group('headline', task, arms).items()):
            period = make_task(runs[0]['eval']['task']).period
            shares = [periodic_share(head, period) for run in runs for layer in run['eval']['score_by_distance'] for head in layer]
            rows.append([task, name, len(runs), ', '.join(f'{100 * share:.0f}' for share in shares), f'{100 * statistics.median(shares):.0f}'])
            if plt is None:
                continue
            axes, run = panels[r, c], runs[0]
            for i, head in enumerate(run['eval']['score_by_distance'][0]):
                points = [(d, v) for d, v in enumerate(head) if v is not None]
                mean = statistics.mean(v for _, v in points)
                axes.plot([d for d, _ in points], [v - mean for _, v in points], color=(COLORS[name], '#999999')[i % 2], linewidth=1.3, label=f'head {i}')
            for d in range(0, len(head), period):
                axes.axvline(d, color='black', linewidth=0.4, alpha=0.5)
            axes.axvline(run['eval']['block_size'], color='black', linestyle='--', linewidth=1)
            axes.grid(False)
            axes.set_title(f'{TASKS[task]}, {name}')
            axes.legend(fontsize=7, loc='upper right', frameon=True, framealpha=0.8)
            axes.set_xlabel('distance (tokens)' if r == len(tasks) - 1 else '')
            axes.set_ylabel('mean score, less its mean' if c == 0 else '')
    print_table(['task', 'arm', 'seeds', 'share of the variance over distance with period P, each head (%)', 'median'], rows)
    if plt is not None:
        figure.savefig(FIGURES / 'comb.png', dpi=110)
        plt.close(figure)


def periodic_share(profile, period):
    """Of the variance of a score over distance, the share that the means of each distance mod `period` explain."""
    values = [(d, v) for d, v in enumerate(profile) if v is not None]
    mean = statistics.mean(v for _, v in values)
    classes = {}
    for d, v in values:
        classes.setdefault(d % period, []).append(v)
    between = sum(len(c) * (statistics.mean(c) - mean) ** 2 for c in classes.values())
    total = sum((v - mean) ** 2 for _, v in values)
    return between / total if total else 0.0


def turns():
    """bio_rotation turn by turn: which turns of the helix a run reads right, and results/turns.png."""
    arms = group('headline', 'bio_rotation', ('nope', 'tapa', 'rope', 'resonance', 'spectral', 'bifocal', 'oracle'))
    rows, raster = [], []
    for name, runs in arms.items():
        inside, beyond, missing = [], [], []
        for run in runs:
            lengths = run['eval']['lengths']
            trained = {int(turn): cell[0] for turn, cell in lengths[min(lengths, key=int)]['breakdown']['turn'].items()}
            accuracy = {int(turn): cell[0] for turn, cell in lengths[max(lengths, key=int)]['breakdown']['turn'].items()}
            inside.append(sum(a > 0.95 for a in trained.values()))
            beyond.append(sum(a > 0.95 for turn, a in accuracy.items() if turn > max(trained)))
            missing.append(','.join(str(turn) for turn, a in trained.items() if a <= 0.95) or '-')
            if name not in ('nope', 'tapa'):  # 42 % everywhere
                raster.append((f'{name}, seed {run["options"]["seed"]}', accuracy))
        rows.append([name, f'{", ".join(map(str, inside))} of {len(trained)}', '; '.join(missing), f'{", ".join(map(str, beyond))} of {len(accuracy) - len(trained)}'])
    print_table(['arm', 'turns right within the training length, by seed', 'turns missing', 'turns right beyond it'], rows)
    plt = pyplot()
    if plt is None or not raster:
        return
    figure, axes = plt.subplots(figsize=(9, 0.2 * len(raster) + 1.2))
    image = axes.imshow([[100 * accuracy[turn] for turn in sorted(accuracy)] for _, accuracy in raster], aspect='auto', cmap='viridis', vmin=25, vmax=100,
                        extent=(0.5, len(raster[0][1]) + 0.5, len(raster) - 0.5, -0.5), interpolation='nearest')
    axes.axvline(max(trained) + 0.5, color='white', linestyle='--')
    axes.set(xlabel='turn of the helix (10 tokens each); trained left of the dashed line', yticks=range(len(raster)))
    axes.set_yticklabels([label for label, _ in raster], fontsize=7)
    axes.grid(False)
    figure.colorbar(image, label='accuracy (%)')
    figure.savefig(FIGURES / 'turns.png', dpi=120)
    plt.close(figure)


def positions():
    """modulo by position: where in a string of 512 an arm is right; with log_scale, and with log_scale only after training."""
    rows, octaves = [], []
    for part, names, file in (('headline', ('rope', 'resonance', 'spectral', 'bifocal', 'oracle'), 'eval.json'),
                              ('headline', ('oracle',), 'eval_log_scale=64.json'),
                              ('extrapolation', ('rope-log', 'spectral-log', 'spectral-linear-log', 'spectral-decay-log', 'oracle-log'), 'eval.json')):
        for name in names:
            folders = sorted((RESULTS / part).glob(f'modulo-{name}-[0-9]'))
            runs = [run for run in (read_run(folder, file) for folder in folders if (folder / file).exists()) if run]
            if not runs:
                continue
            cells = [max(run['eval']['lengths'].items(), key=lambda item: int(item[0]))[1]['breakdown']['position'] for run in runs]
            octaves = octaves or list(cells[0])
            label = name + (', log_scale after training' if file != 'eval.json' else '')
            rows.append([label, len(runs), *(spread([cell[octave][0] for cell in cells], 100) for octave in octaves)])
    print_table(['arm', 'n', *(f't = {octave} (%)' for octave in octaves)], rows)


def eyes():
    """Bifocal with either kind of eye closed, at the training length, and results/eyes.png."""
    rows, bars = [], {}
    for task in TASKS:
        runs = group('headline', task, ('bifocal',)).get('bifocal')
        if not runs:
            continue
        T = str(runs[0]['eval']['block_size'])
        cells = {'both open': [100 * run['eval']['lengths'][T]['headline'] for run in runs]}
        for label in runs[0]['eval']['eyes']:
            cells[f'{label} closed'] = [100 * run['eval']['eyes'][label]['headline'] for run in runs]
        bars[task] = (cells, 100 * runs[0]['eval']['chance'])
        for label, values in cells.items():
            rows.append([task, label, ', '.join(f'{v:.1f}' for v in values), spread(values)])
    print_table(['task', 'eyes', 'accuracy of each seed (%)', 'mean ± sd'], rows)
    plt = pyplot()
    if plt is None or not bars:
        return
    figure, panels = plt.subplots(1, len(bars), figsize=(4.2 * len(bars), 3.4), sharey=True, squeeze=False)
    for axes, (task, (cells, chance)) in zip(panels[0], bars.items()):
        cells = {label: values for label, values in cells.items() if not any(ch.isdigit() for ch in label)}
        for i, (values, color) in enumerate(zip(cells.values(), (COLORS['bifocal'], COLORS['spectral'], COLORS['rope']))):
            axes.bar(i, statistics.mean(values), color=color, alpha=0.5)
            axes.plot([i + 0.08 * (k - len(values) / 2) for k in range(len(values))], values, 'o', color=color, markersize=5)
        axes.axhline(chance, color='grey', linestyle=':')
        axes.set(title=TASKS[task], ylim=(0, 105), xticks=range(len(cells)), xticklabels=[label.replace(' ', '\n', 1) for label in cells])
        axes.grid(axis='x', visible=False)
    panels[0, 0].set_ylabel('accuracy (%), every seed; dotted: chance')
    figure.savefig(FIGURES / 'eyes.png', dpi=120)
    plt.close(figure)


def depth():
    """Cosines of the mean representations of Dyck depths 10 and 11, on strings twice as deep as those trained on."""
    rows = []
    for name, runs in group('headline', 'dyck3', ('nope', 'rope', 'resonance', 'spectral', 'bifocal', 'tapa')).items():
        for layer in range(len(runs[0]['eval']['state_similarity'])):
            pairs = [[run['eval']['state_similarity'][layer].get(d) for run in runs] for d in ('3', '7', '10')]
            rows.append([name, layer, *(cell for pair in pairs for cell in (spread([p[0] for p in pair], digits=3), spread([p[1] for p in pair], digits=3)))])
    print_table(['arm', 'after layer', *(f'depths {a}: {kind}' for a in ('3, 4', '7, 8', '10, 11') for kind in ('cosine', 'centred'))], rows)


def axis(task, part, value):
    """
    {arm: {x: [runs]}} of rope and spectral along one axis of the map; the headline runs are its default point, unless the part
    has it too. RoPE has no learning rate of frequencies.
    """
    found = {}
    for arm in ('rope', 'spectral') if part != 'frequency_rates' else ('spectral',):
        points = found.setdefault(arm, {})
        for folders in ((RESULTS / part).glob(f'{task}-{arm}-*'), (RESULTS / 'headline').glob(f'{task}-{arm}-[0-9]')):
            here = set(points)
            for run in filter(None, map(read_run, sorted(folders))):
                if value(run) not in here:
                    points.setdefault(value(run), []).append(run)
    return {arm: dict(sorted(points.items())) for arm, points in found.items()}


AXES = (('bio_rotation', 'periods', 'period P', lambda run: make_task(run['eval']['task']).period),
        ('modulo', 'periods', 'modulus', lambda run: make_task(run['eval']['task']).period),
        ('bio_rotation', 'layers', 'layers', lambda run: run['options']['n_layer']),
        ('modulo', 'layers', 'layers', lambda run: run['options']['n_layer']),
        ('bio_rotation', 'lengths', 'training length (tokens)', lambda run: run['options']['block_size']),
        ('bio_rotation', 'frequency_rates', 'learning rate of the frequencies', lambda run: run['options']['spectral_lr']),
        ('modulo', 'frequency_rates', 'learning rate of the frequencies', lambda run: run['options']['spectral_lr']))


def map_():
    """Where the effect lives: the loss and what it takes along every axis, and results/map.png."""
    plt = pyplot()
    rows, drawn = [], [(axes, axis(task, part, value)) for axes in AXES for task, part, _, value in [axes]]
    drawn = [(axes, arms) for axes, arms in drawn if any(len(points) > 1 for points in arms.values())]
    if not drawn:
        return
    tasks, parts = (list(dict.fromkeys(axes[i] for axes, _ in drawn)) for i in (0, 1))
    figure, panels = plt.subplots(len(tasks), len(parts), figsize=(3.3 * len(parts), 2.9 * len(tasks)), sharey=True, squeeze=False) if plt else (None, None)
    for panel in panels.flat if plt else ():
        panel.set_visible(False)  # not every task has every axis
    for (task, part, label, _), arms in drawn:
        panel = panels[tasks.index(task), parts.index(part)] if plt else None
        xs = sorted({x for points in arms.values() for x in points})
        for arm, points in arms.items():
            for x, runs in points.items():
                losses = [best_loss(run) for run in runs]
                locks = [lock_in(run) is not None for run in runs] if arm == 'spectral' else []
                rows.append([task, label, f'{x:g}', arm, quartiles(losses), f'{sum(loss <= SOLVED for loss in losses)} of {len(runs)}',
                             quartiles(map(iterations_to, runs), '.0f'), f'{sum(locks)} of {len(runs)}' if locks else '', spread(map(extrapolation, runs), 100)])
                if plt:
                    panel.plot([xs.index(x)] * len(losses), [max(loss, 1e-6) for loss in losses], 'o', color=COLORS[arm], markersize=4, alpha=0.6)
            if plt:
                medians = [max(1e-6, statistics.median(map(best_loss, runs))) for runs in points.values()]
                panel.plot(list(map(xs.index, points)), medians, color=COLORS[arm], label=arm)
        if plt:
            panel.set(title=TASKS[task], xlabel=label, yscale='log', xticks=range(len(xs)), xticklabels=[f'{x:g}' for x in xs], visible=True)
            panel.axhline(SOLVED, color='grey', linestyle=':', linewidth=1)
    print_table(['task', 'axis', 'value', 'arm', 'best loss: median [quartiles]', 'seeds that solve it', f'iterations to {SOLVED:g}', 'seeds that lock',
                 'extrapolation (%)'], rows)
    if plt:
        for row in panels:
            row[0].set_ylabel('best validation loss (nats), every seed', fontsize=9)
        panels[0, 0].legend()
        figure.savefig(FIGURES / 'map.png', dpi=120)
        plt.close(figure)


def structure():
    """The structural dependency: what a learned rotation gains over RoPE on regular intervals, less its gain on irregular ones."""
    schedules, rows = ('periodic', 'random', 'exponential'), []
    arms = {schedule: group('spacing', schedule, ('rope', 'spectral', 'bifocal')) for schedule in schedules}
    at_length = lambda run: 100 * run['eval']['lengths'][str(run['eval']['block_size'])]['headline']
    for measure, what in ((at_length, 'training length'), (lambda run: 100 * extrapolation(run), 'beyond it')):
        for name in ('spectral', 'bifocal'):
            gains = {}
            for schedule in schedules:
                if {'rope', name} <= set(arms[schedule]):
                    ours, theirs = by_seed(arms[schedule][name], arms[schedule]['rope'], measure)
                    gains[schedule] = [a - b for a, b in zip(ours, theirs)]
            if len(gains) < 3:
                continue
            cells = [difference(gains[schedule], [0] * len(gains[schedule])) for schedule in schedules]
            for other in schedules[1:]:
                n = min(len(gains['periodic']), len(gains[other]))
                cells.append(difference(gains['periodic'][:n], gains[other][:n]))
            rows.append([what, name, *cells])
    if rows:
        print_table(['accuracy at', 'arm', *(f'gain over rope, {schedule} (points)' for schedule in schedules), 'periodic less random', 'periodic less exponential'], rows)


# ----------------------------------------------------------------------------------------------------------------------
# Long context


STAGES = {'long': 'as trained', 'tuned': 'fine-tuned at 4x'}


def long_arms(part, task):
    """{arm: [runs by seed]} of a task of long context; RoPE's extensions are other measurements of it, or runs of their own."""
    found = group(part, task, trial.arms(task))
    for extension, options in trial.EXTENSIONS.items():
        name, file = f'rope-{extension}', '_'.join(['eval', *options]) + '.json'
        folders = [run['folder'] for run in found.get('rope', ())]
        runs = [run for run in (read_run(folder, file) for folder in folders if (folder / file).exists()) if run] if part == 'long' else group(part, task, [name]).get(name)
        if runs:
            found[name] = runs
    return found


def color(name):
    """Of an arm; RoPE's extensions are shades of its blue, Spectral's parts of its red, and what is no arm is left to matplotlib."""
    shades = {'rope-base': '#084594', 'rope-pi': '#6BAED6', 'rope-ntk': '#17BECF', 'rope-yarn': '#9E9AC8',
              'A and Phi': '#444444', 'Omega': '#E69F00', 'Omega and A': '#7B3294', 'Omega and Phi': '#C994C7', 'rope-base40': '#7B3294',
              'rope, base 10000': '#56B4E9', 'rope, base 100': '#0072B2', 'rope, base 40': '#7B3294', 'rope, base 10': '#C994C7'}
    return COLORS.get(name) or shades.get(name)


def tuned_rates():
    """The rates that the light fine-tuning was tried with, on the models of the sweep."""
    rows = []
    for task in trial.LONG:
        for name in trial.longer_arms(task):
            if runs := runs_at('tuned_rates', f'{task}-{name}', trial.longer_rates(task, name)):
                rows.append([task, name, '; '.join(f'{rate:g}: {show_merit(task, run)}' for rate, run in runs.items()), f'{choose_longer(task, name):g}'])
    if rows:
        print_table(['task', 'arm', 'rate: best validation loss (nats) / accuracy beyond that length', 'chosen'], rows)


def choose_longer(task, name):
    """The rate of most merit, by the rule of the sweep; the middle one if none was tried."""
    runs = runs_at('tuned_rates', f'{task}-{name}', trial.longer_rates(task, name))
    return max(runs, key=lambda rate: merit([runs[rate]]), default=trial.LONGER_RATES[1])


def perplexity(run, length, way='sliding'):
    """Of a run on text, with a context of `length` tokens."""
    return run['eval']['perplexity'][way][str(length)]['perplexity']


def context():
    """Perplexity of the text by the length of the context, as trained and fine-tuned, and results/context.png."""
    stages = {stage: long_arms(part, 'text') for part, stage in STAGES.items()}
    for way in ('sliding', 'same targets'):
        rows = []
        for stage, arms in stages.items():
            for name, runs in arms.items():
                cells = runs[0]['eval']['perplexity'][way]
                longest = max(cells, key=int)
                rows.append([stage, name, len(runs), *(spread([perplexity(run, length, way) for run in runs], digits=2) for length in cells),
                             against(runs, arms.get('rope'), lambda run: math.log(perplexity(run, longest, way)), 3)])
        if rows:
            print_table(['stage', 'arm', 'n', *(f'{length} tokens' for length in cells), f'ln of the last, against rope ({way})'], rows)
            print()
    draw_contexts(stages, 'context.png')


def draw_contexts(groups, file):
    """A panel for each group, {title: {arm: runs}}: perplexity by the length of the context."""
    plt, groups = pyplot(), {title: arms for title, arms in groups.items() if arms}
    if plt is None or not groups:
        return
    figure, panels = plt.subplots(1, len(groups), figsize=(1.5 + 4.4 * len(groups), 3.8), sharey=True, squeeze=False)
    same = len({tuple(arms) for arms in groups.values()}) == 1
    for axes, (title, arms) in zip(panels[0], groups.items()):
        for name, runs in arms.items():
            plot_perplexity(axes, [run['eval'] for run in runs], 'sliding', color(name), name)
        axes.set(title=title)
        if not same:
            axes.legend(fontsize=8)
    if same:
        figure.legend(*panels[0, 0].get_legend_handles_labels(), fontsize=8, loc='outside right center')
    figure.savefig(FIGURES / file, dpi=120)
    plt.close(figure)


def verdict(mean, half, better='reproduced', worse='not reproduced'):
    """Of a claim that a difference is negative, by its 95 % interval."""
    return better if mean + half < 0 else worse if mean - half > 0 else 'not settled'


def tapa():
    """The sentences of TAPA's paper beside the models of text; L is the training length."""
    long, tuned, phases = long_arms('long', 'text'), long_arms('tuned', 'text'), group('phase', 'text-tapa', ('linear',))
    if not {'rope', 'tapa'} <= set(long):
        return
    L = long['rope'][0]['eval']['block_size']
    at = lambda m: lambda run: math.log(perplexity(run, m * L))
    bias = lambda run: statistics.mean(abs(layer['mean']) / layer['sd'] for layer in run['eval']['distance_bias']['trained'])
    perplexities = lambda runs, measure: spread([math.exp(measure(run)) for run in runs], digits=2)
    rows = []

    def row(sentence, here, ours, theirs, measure, other=None, show=perplexities, **verdicts):
        """Is the measure of our runs lower than `other`, or the same one, of theirs?"""
        other = other or measure
        their = {run['options']['seed']: other(run) for run in theirs}
        both = [run for run in ours if run['options']['seed'] in their]
        if len(both) > 1:
            mean, half, p = paired([measure(run) for run in both], [their[run['options']['seed']] for run in both])
            rows.append([sentence, here, len(both), f'{show(ours, measure)} against {show(theirs, other)}',
                         f'{mean:+.3f} ± {half:.3f} (p {p:.2g})', verdict(mean, half, **verdicts)])

    row('as good as RoPE at the training length: 12.22 against 12.21', 'tapa against rope at L', long['tapa'], long['rope'], at(1), better='better', worse='worse')
    row('beyond it 123 against 16367, at 4 times the length', 'the same at 4L', long['tapa'], long['rope'], at(4))
    if {'rope', 'tapa'} <= set(tuned):
        mean = lambda name: statistics.mean(map(at(8), tuned[name]))
        best = min((name for name in tuned if name.startswith('rope')), key=mean)
        row('fine-tuned at a longer L, 11.75 at twice that, against 1963 of the best RoPE, YaRN', f'tuned at 4L: tapa at 8L against {best}, the best RoPE there',
            tuned['tapa'], tuned[best], at(8))
        row('and no worse there than at the length it was tuned at: 11.75 against 11.74', 'tuned at 4L: tapa at 8L against itself at 4L',
            tuned['tapa'], tuned['tapa'], at(8), at(4), better='reproduced', worse='worse')
    if phases:
        row('the quadratic phase is the better: 11.74 against 13.13 of the linear, fine-tuned', 'as trained, at L', long['tapa'], phases['linear'], at(1))
    row('near keys score higher than far ones by 4.1 ± 0.85 with RoPE, by 0.03 ± 3.3 with TAPA', 'size of the mean over the sd, mean of the layers',
        long['tapa'], long['rope'], bias, show=lambda runs, measure: spread(map(measure, runs), digits=2), better='in direction; a ratio of 4.8 there')
    print_table(['the paper', 'here', 'n', 'perplexity, or bias', 'difference, of perplexities in ln', 'verdict'], rows)


def haystack():
    """Passkey: all five digits right, by length and filler, as trained and fine-tuned; and results/haystack.png, by depth."""
    plt, rows, drawn = pyplot(), [], {}
    for part, stage in STAGES.items():
        arms = long_arms(part, 'passkey')
        for name, runs in arms.items():
            drawn.setdefault(name, {})[stage] = [run['eval'] for run in runs]
            for filler, cells in (('random', lambda run: run['eval']['lengths']), ('loop', lambda run: run['eval']['variants']['loop'])):
                lengths = list(cells(runs[0]))
                rows.append([stage, name, filler, len(runs), *(spread([cells(run)[length]['exact'] for run in runs], 100) for length in lengths),
                             against(runs, arms.get('rope'), lambda run: cells(run)[lengths[-1]]['exact'], scale=100)])
    if rows:
        print_table(['stage', 'arm', 'filler', 'n', *(f'{length} tokens (%)' for length in lengths), 'the last, against rope (points)'], rows)
    if plt and drawn:
        stages = [stage for stage in STAGES.values() if any(stage in found for found in drawn.values())]
        figure, panels = plt.subplots(len(stages), len(drawn), figsize=(1.35 * len(drawn) + 1.2, 2.1 * len(stages)), squeeze=False, sharex=True, sharey=True)
        for row, stage in zip(panels, stages):
            for axes, (name, found) in zip(row, drawn.items()):
                if stage not in found:
                    axes.set_axis_off()
                    continue
                image = plot_heat(axes, found[stage], 'depth of the key')
                axes.set(title=name, xlabel='', ylabel='', xticks=(0, 9), xticklabels=('0', '100'))
                axes.tick_params(labelsize=7, labelbottom=True)
            row[0].set_ylabel(f'{stage}\nlength (tokens)', fontsize=8)
        figure.supxlabel('depth of the key (%)', fontsize=9)
        figure.colorbar(image, ax=panels, label='all five digits right (%)')
        figure.savefig(FIGURES / 'haystack.png', dpi=120)
        plt.close(figure)


def bias():
    """How much more a near key scores than a far one, whatever they are, before and after training, and results/bias.png."""
    rows, plt, arms = [], pyplot(), long_arms('long', 'text')
    arms = {name: runs for name, runs in arms.items() if '-' not in name}
    for name, runs in arms.items():
        for layer in range(len(runs[0]['eval']['distance_bias']['trained'])):
            cells = [[run['eval']['distance_bias'][when][layer] for run in runs] for when in ('at the start', 'trained')]
            rows.append([name, layer, *(text for cell in cells for text in (spread([c['mean'] for c in cell], digits=2), spread([c['sd'] for c in cell], digits=2)))])
    if rows:
        print_table(['arm', 'layer', 'mean at the start', 'sd at the start', 'mean, trained', 'sd, trained'], rows)
    if plt and arms:
        layers = len(next(iter(arms.values()))[0]['eval']['distance_bias']['trained'])
        figure, panels = plt.subplots(1, layers, figsize=(3.2 * layers, 2.8), squeeze=False, sharey=True)
        for layer, axes in enumerate(panels[0]):
            for name in ('rope', 'tapa'):
                for i, run in enumerate(arms.get(name, ())):
                    cell = run['eval']['distance_bias']['trained'][layer]
                    width = 2 * cell['edge'] / len(cell['counts'])
                    at = [-cell['edge'] + width * (j + 0.5) for j in range(len(cell['counts']))]
                    axes.plot(at, [count / sum(cell['counts']) / width for count in cell['counts']], color=COLORS[name], alpha=0.7, label=name if i == 0 else None)
            axes.axvline(0, color='grey', linestyle=':')
            axes.set(title=f'layer {layer}', xlabel='score of a near key less a far one')
        panels[0, 0].set_ylabel('density, every seed')
        panels[0, 0].legend()
        figure.savefig(FIGURES / 'bias.png', dpi=120)
        plt.close(figure)


def assumption():
    """Assumption 2.1 on trained models: do all rotary pairs have the same mean product? Means and spread over pairs, by layer."""
    rows = []
    for name, runs in long_arms('long', 'text').items():
        if 'pair_means' not in runs[0]['eval'] or '-' in name:
            continue
        for layer in range(len(runs[0]['eval']['pair_means'])):
            cells = []
            for part in ('A', 'B'):
                heads = [head for run in runs for head in run['eval']['pair_means'][layer][part]]
                cells += [f'{statistics.mean(map(statistics.mean, heads)):.3f}', f'{statistics.mean(map(statistics.stdev, heads)):.3f}']
            rows.append([name, layer, len(runs), *cells])
    if rows:
        print_table(['arm', 'layer', 'n', 'mean of E A over pairs', 'sd of E A over pairs', 'mean of E B', 'sd of E B'], rows)


def code():
    """Real Python: perplexity and, of the closing brackets, the right kind by distance and depth, at the training length."""
    arms = {name: runs for name, runs in long_arms('long', 'text').items() if '-' not in name}
    rows, labels = [], None
    for name, runs in arms.items():
        cells = [run['eval']['lengths'][str(run['eval']['block_size'])]['breakdown'] for run in runs]
        labels = labels or [(group_name, label) for group_name in cells[0] for label in cells[0][group_name]]
        at = lambda run: 100 * run['eval']['lengths'][str(run['eval']['block_size'])]['breakdown']['closing brackets']['right kind'][0]
        rows.append([name, len(runs), *(spread([cell[group_name][label][0] for cell in cells if label in cell[group_name]], 100) for group_name, label in labels),
                     against(runs, arms.get('rope'), at, 2)])
    if rows:
        print_table(['arm', 'n', *(f'{group_name}: {label} (%)' for group_name, label in labels), 'right kind, against rope (points)'], rows)


def by_multiple(label, groups, file, baseline='rope'):
    """A table of perplexities (sliding) at and beyond the training length, each group against its own baseline; and a figure."""
    at = lambda run, m: perplexity(run, m * run['eval']['block_size'])
    rows = [[title, name, len(runs), *(spread([at(run, m) for run in runs], digits=2) for m in (1, 2, 4, 8)),
             *(against(runs, arms.get(baseline), lambda run: math.log(at(run, m)), 3) for m in (1, 4))]
            for title, arms in groups.items() for name, runs in arms.items()]
    if rows:
        print_table([label, 'arm', 'n', *(f'{m}x' for m in (1, 2, 4, 8)), *(f'ln at {m}x, against {baseline}' for m in (1, 4))], rows)
    draw_contexts(groups, file)


def english():
    """Perplexity of tinyshakespeare, a byte, at and beyond the training length, and results/english.png."""
    by_multiple('text', {'tinyshakespeare': group('english', 'text', trial.arms('text'))}, 'english.png')


def base():
    """RoPE and Spectral from each other's base, on text, and results/base.png."""
    runs = group('long', 'text', ('rope', 'spectral')) | group('base', 'text', ('rope-base10000', 'spectral-base100'))
    by_multiple('base', {f'base {base}': {name.partition('-')[0]: runs[name] for name in names if name in runs}
                         for base, names in ((100, ('rope', 'spectral-base100')), (10000, ('rope-base10000', 'spectral')))}, 'base.png')


def learned():
    """What of Spectral reads text beyond the training length: its parts learned alone, and RoPE without slow pairs; and results/learned.png."""
    parts = {'A and Phi': 'A-Phi', 'Omega': 'omega', 'Omega and A': 'omega-A', 'Omega and Phi': 'omega-Phi'}
    named = {**{f'rope, base {base}': ('base', f'rope-base{base}') for base in (10000, 40, 10)}, 'rope, base 100': ('long', 'rope'),
             **{name: ('ablation', arm) for name, arm in parts.items()}, 'spectral': ('long', 'spectral')}
    runs = {name: group(part, 'text', (arm,)).get(arm) for name, (part, arm) in named.items()}
    groups = {title: {name: runs[name] for name in names if runs[name]} for title, names in
              (('learned', ('rope, base 10000', *parts, 'spectral')), ('fixed', (*(f'rope, base {base}' for base in (10000, 100, 40, 10)), 'spectral')))}
    by_multiple('frequencies', groups, 'learned.png', 'spectral')
    rows = [[name, *(spread([slow_pairs(run, line) for run in found], 100) for line in (0, -1))] for name, found in runs.items() if found]
    if rows:
        print()
        print_table(['arm', 'pairs that do not turn once within the training length: at the start (%)', 'at the end (%)'], rows)


def slow_pairs(run, line):
    """The share of the rotary pairs of a run whose wavelength is greater than the training length, at validation `line`."""
    options, state = run['options'], run['validations'][line]
    if 'Omega' in state:
        frequencies = [omega for layer in state['Omega'] for head in layer for omega in head]
    else:
        frequencies = rope_frequencies(options['n_embd'] // options['n_head'], options['rope_base']).tolist()
    return statistics.mean(abs(omega) * options['block_size'] < 2 * math.pi for omega in frequencies)


def budget():
    """The arms on text after 1000 updates and after 4000, and results/budget.png."""
    names, base40 = ('nope', 'rope', 'tapa'), ('rope-base40',)
    by_multiple('updates', {'1000 updates': group('long', 'text', names) | group('base', 'text', base40),
                            '4000 updates': group('budget', 'text', names + base40)}, 'budget.png')


def phase():
    """TAPA's own choices on text: another phase, alpha or theta than quadratic, 0.1 and 0.5; and results/phase.png."""
    runs = group('phase', 'text-tapa', [name.removeprefix('text-tapa-') for name, _ in trial.phase()])
    chosen = group('long', 'text', ('tapa',))
    by_multiple('changed', {changed: chosen | {name: runs[name] for name in runs if name.startswith(start)}
                          for changed, start in (('phase', 'linear'), ('alpha', 'alpha'), ('theta', 'theta'))}, 'phase.png', 'tapa')


OPERATIONS = {'full': 'all weights', 'only': 'frequencies only', 'rope': 'RoPE as it was'}  # how a trained RoPE goes on
OPERATION_COLORS = {'full': COLORS['spectral'], 'only': '#E69F00', 'rope': COLORS['rope']}


def surgery():
    """A trained RoPE gone on with, its frequencies learnable or not, beside Spectral from scratch, and results/surgery.png."""
    rows, texts, drawn = [], [], {}
    for task in (*trial.PERIOD, 'text'):
        arms = group('surgery', task, OPERATIONS)
        if not arms:
            continue
        scratch, before = (group(part, task, (name,)) for part, name in
                           ((('long', 'spectral'), ('long', 'rope')) if task == 'text' else (('headline', 'spectral'), ('bases', 'rope'))))
        drawn[task] = arms, scratch.get('spectral', []) if task != 'text' else []
        named = {'RoPE before': before.get('rope'), **{OPERATIONS[name]: runs for name, runs in arms.items()}, 'Spectral from scratch': scratch.get('spectral')}
        for name, runs in named.items():
            if not runs:
                continue
            name += f', {runs[0]["options"]["max_iters"]} updates'
            log = lambda run: math.log10(best_loss(run))
            if task != 'text':
                learns = 'frequencies' in runs[0]['eval']
                rows.append([task, name, len(runs), quartiles(map(best_loss, runs)), f'{sum(best_loss(run) <= SOLVED for run in runs)} of {len(runs)}',
                             quartiles(map(iterations_to, runs), '.0f'), f'{sum(lock_in(run) is not None for run in runs)} of {len(runs)}' if learns else '',
                             spread(map(extrapolation, runs), 100), against(runs, arms.get('rope'), log, 2), against(runs, arms.get('rope'), extrapolation, scale=100)])
            else:
                T = runs[0]['eval']['block_size']
                closers = lambda run: 100 * run['eval']['lengths'][str(T)]['breakdown']['closing brackets']['right kind'][0]
                moved = [statistics.median(abs(row['Omega'] / row['theta'] - 1) for row in run['eval']['frequencies']) for run in runs
                         if 'frequencies' in run['eval']]
                texts.append([name, len(runs), *(spread([perplexity(run, m * T) for run in runs], digits=3) for m in (1, 2, 4)), spread(map(closers, runs), digits=2),
                              against(runs, arms.get('rope'), lambda run: math.log(perplexity(run, T)), 4), against(runs, arms.get('rope'), closers, 2),
                              spread(moved, 100, 2) if moved else ''])
    if rows:
        print_table(['task', 'model', 'n', 'best loss: median [quartiles]', 'seeds that solve it', f'iterations to {SOLVED:g}', 'seeds that lock',
                     'extrapolation (%)', 'log10 of the loss, against RoPE as it was', 'extrapolation, against it (points)'], rows)
    if texts:
        print()
        print_table(['text', 'n', 'perplexity at 1x', 'at 2x', 'at 4x', 'closing brackets (%)', 'ln perplexity at 1x, against RoPE as it was',
                     'brackets, against it (points)', 'median move of a frequency (%)'], texts)
    plt = pyplot()
    if plt is None or not drawn:
        return
    figure, panels = plt.subplots(2, len(drawn), figsize=(4.4 * len(drawn), 7), squeeze=False, height_ratios=(1.3, 1))
    for column, (task, (arms, scratch)) in enumerate(drawn.items()):
        for name in ('full', 'only'):
            if name in arms:
                run = arms[name][0]
                measured.plot_moves(panels[0, column], run['eval']['frequencies'], make_task(run['eval']['task']).period,
                                    color=OPERATION_COLORS[name], label=OPERATIONS[name])
        panels[0, column].set_title(f'{TASKS.get(task, "Text")}, seed {run["options"]["seed"]}')
        for name, runs in [*arms.items(), ('scratch', scratch)]:
            if runs:
                measured.plot_arm(panels[1, column], runs, OPERATION_COLORS.get(name, '#999999'), OPERATIONS.get(name, 'Spectral from scratch'))
        if task == 'text':
            panels[1, column].set_yscale('linear')  # its losses are all alike
        panels[1, column].set_ylabel('validation loss (nats), every seed, median' if column == 0 else '')
        if column:
            panels[0, column].set_ylabel('')
    panels[0, 0].legend(fontsize=8, loc='upper left')
    panels[1, 0].legend(fontsize=8, loc='lower left')
    figure.savefig(FIGURES / 'surgery.png', dpi=120)
    plt.close(figure)


def surgery_rates():
    """The rates that surgery was tried with, by the best validation loss on a RoPE of the tuning seeds."""
    rows = []
    for task, ways in trial.SURGERY_RATES.items():
        for name, rates in ways.items():
            if runs := runs_at('surgery_rates', f'{task}-{name}', rates):
                rows.append([task, OPERATIONS[name], '; '.join(f'{a:g}, {b:g}: {best_loss(run):.4g}' for (a, b), run in runs.items()),
                             '{:g}, {:g}'.format(*choose_operated(task, name))])
    if rows:
        print_table(['task', 'goes on with', 'rates of the weights, of the frequencies: best validation loss (nats)', 'chosen'], rows)


def choose_operated(task, name):
    """The pair of rates with the lowest validation loss; None if none was tried."""
    runs = runs_at('surgery_rates', f'{task}-{name}', trial.SURGERY_RATES[task].get(name, ()))
    return min(runs, key=lambda rates: best_loss(runs[rates]), default=None)


def provenance():
    """What ran where: machines, versions, commits and time of every part."""
    rows = []
    for part in trial.PARTS:
        sessions, seconds = [], []
        for folder in sorted((RESULTS / part).glob('*-[0-9]*')):
            config = json.loads((folder / 'config.json').read_text())
            sessions += config['sessions']
            seconds.append(measured.read_log(folder)[-1]['seconds'])
        if seconds:
            every = lambda key: ', '.join(sorted({str(session[key]) for session in sessions}))
            rows.append([part, len(seconds), f'{statistics.median(seconds):.0f}', f'{sum(seconds) / 3600:.1f}', every('processor'), every('threads'),
                         every('torch'), every('commit'), ', '.join(sorted({session['date'][:10] for session in sessions}))])
    print_table(['part', 'runs', 'seconds a run (median)', 'hours in all', 'processor', 'threads', 'torch', 'commit', 'date'], rows)


REPORTS = {f.__name__: f for f in (claims, tapa, sweep, lockin, turns, positions, comb, eyes, depth, structure, tuned_rates, context, haystack, bias,
                                   assumption, code, english, base, learned, budget, phase, surgery, surgery_rates, provenance)}
REPORTS['map'] = map_


def main(arguments=None):
    """Print the reports that the command line `arguments` (default: sys.argv) name, and draw their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(REPORTS))
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(REPORTS):
        parser.error(f'no report {", ".join(sorted(unknown))}: there are {", ".join(REPORTS)}')
    for name in options.names or REPORTS:
        if len(options.names) != 1:
            print(f'\n{name}: {REPORTS[name].__doc__.strip()}\n')
        REPORTS[name]()


if __name__ == '__main__':
    main()
