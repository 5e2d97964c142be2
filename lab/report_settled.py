"""Tables and figures of the two optimisers: how each arm's was chosen, and the claims with the better one."""

import math
import statistics

from lab import trial
from lab.compare import (OPTIMIZERS, against, best_loss, extrapolation, holm, listed, log_loss, paired, print_table,
                         quartiles, same_seeds, solved, t_test, trained_with)
from lab.figures import COLORS, FLOOR
from lab.report_bifocal import TASKS, with_better_optimizer
from lab.results import SOLVED, group, study

SENTENCES = {'bio_rotation': "Bio-Rotation: 0.0008 against RoPE's 1.07",
             'dyck3': 'Dyck-3: 99 %+ against a plateau at 0.43',
             'modulo': 'Modulo: near-perfect against significant error'}
TAPA_SENTENCES = {1: 'TAPA: as good as RoPE at the training length', 4: 'TAPA: far better at 4 times that length'}
CLAIMED = ('spectral', 'bifocal')


# ----------------------------------------------------------------------------------------------------------------------
# How the optimiser was chosen, on the tuning seeds


def best_rate(task, name, optimizer):
    """(the best rate of an optimiser for an arm, its rows on all tuning seeds); (None, []) if none has all of them."""
    tried = trial.candidates(f'{task}-{name}-{optimizer}', trial.TUNING_SEEDS)
    rate = max(tried, key=lambda rate: trial.merit(tried[rate]), default=None)
    return rate, tried.get(rate, [])


def choose_optimizer(task, name):
    """{optimiser: its best rate} of an arm, the better optimiser first."""
    best = {optimizer: best_rate(task, name, optimizer) for optimizer in OPTIMIZERS}
    order = sorted((optimizer for optimizer in best if best[optimizer][1]), reverse=True,
                   key=lambda optimizer: trial.merit(best[optimizer][1]))
    return {optimizer: best[optimizer][0] for optimizer in order}


def optimizers():
    """Both optimisers on the tuning seeds, each at its best rate: most seeds solved, then the mean log loss."""
    rows = []
    names = dict.fromkeys(tuple(row['name'].rsplit('-', 2)[0].split('-', 1)) for row in study('optimizers'))
    for task, name in names:
        chosen = choose_optimizer(task, name)
        cells = []
        for optimizer in OPTIMIZERS:
            rate, runs = best_rate(task, name, optimizer)
            tried = trial.candidates(f'{task}-{name}-{optimizer}', trial.TUNING_SEEDS[:1])
            edge = {min(tried, default=None): ', the lowest', max(tried, default=None): ', the highest'}.get(rate, '')
            cells += [f'{rate:g} of {len(tried)}{edge}' if runs else '-', listed(map(best_loss, runs)) or '-']
        rows.append([task, name, *cells, OPTIMIZERS[next(iter(chosen))] if len(chosen) > 1 else ''])
    print_table(['task', 'arm', 'AdamW: best rate', 'loss by seed (nats)', 'Muon: best rate', 'loss by seed (nats)',
                 'chosen'], rows)


def muon():
    """Muon with one choice made otherwise, on the tuning seeds: losses, and the difference to Muon as it is."""
    rows, runs = [], {}
    for row in study('muon'):
        runs.setdefault(tuple(row['name'].rsplit('-', 1)), []).append(row)
    for (arm, variant), ours in runs.items():
        whole = runs[arm, 'whole']
        rows.append([*arm.split('-'), variant, sum(map(solved, ours)), listed(map(best_loss, ours)),
                     against(ours, whole, log_loss, 2)])
    print_table(['task', 'arm', 'Muon', f'seeds below {SOLVED:g}', 'loss by seed (nats)',
                 'log10 of the loss, against whole'], rows)


# ----------------------------------------------------------------------------------------------------------------------
# The claims


def verdict(test):
    """
    Is a number lower or higher than RoPE's? The side of zero on which the 95 % interval of the difference lies, if the
    p of the same test is below 0.05 after Holm's correction; else it is not settled.
    """
    if test['adjusted'] >= 0.05 or abs(test['mean']) <= test['half']:
        return 'not settled'
    return 'lower' if test['mean'] < 0 else 'higher'


def tested():
    """
    The confirmatory comparisons, a dict each: task, name, ours, theirs (rows of the same seeds), the measure that the
    claim says is lower, the mean and half-width of its difference, Student's p, and that adjusted (Holm).
    """
    found = []
    for task in SENTENCES:
        arms = with_better_optimizer(task, 'rope', *CLAIMED)
        for name in CLAIMED:
            ours, theirs = same_seeds(arms.get(name, ()), arms.get('rope'))
            if len(ours) > 1:
                found.append(dict(task=task, name=name, ours=ours, theirs=theirs, measure=log_loss,
                                  sentence=SENTENCES[task]))
    long = group('long_muon', 'text', ('rope', 'tapa'))
    for multiple, sentence in TAPA_SENTENCES.items():
        ours, theirs = same_seeds(long.get('tapa', ()), long.get('rope'))
        measure = lambda row, multiple=multiple: math.log(row[f'perplexity@{multiple * row["block_size"]} sliding'])
        if len(ours) > 1:
            found.append(dict(task='text', name='tapa', ours=ours, theirs=theirs, measure=measure, sentence=sentence))
    for test in found:
        ours, theirs = ([test['measure'](row) for row in test[arm]] for arm in ('ours', 'theirs'))
        test['mean'], test['half'], _ = paired(ours, theirs)
        test['p'] = t_test(ours, theirs)
    for test, p in zip(found, holm([test['p'] for test in found])):
        test['adjusted'] = p
    return found


def in_short(test):
    """'spectral: loss 0.0002 against 0.36': medians of losses, means of perplexities."""
    if test['task'] == 'text':
        ours, theirs = (statistics.mean(math.exp(test['measure'](row)) for row in test[arm])
                        for arm in ('ours', 'theirs'))
        return f'{test["name"]}: perplexity {ours:.1f} against {theirs:.1f}'
    ours, theirs = (statistics.median(map(best_loss, test[arm])) for arm in ('ours', 'theirs'))
    return f'{test["name"]}: loss {ours:.2g} against {theirs:.2g}'


def verdicts():
    """The claims of both papers in short: losses or perplexities against RoPE's, and a verdict."""
    rows = [[test['sentence'], in_short(test), len(test['ours']),
             ' and '.join(f'{sum(map(solved, test[arm]))}' for arm in ('ours', 'theirs'))
             if test['task'] != 'text' else '',
             verdict(test)] for test in tested()]
    print_table(['the paper', 'here (medians; perplexities are means)', 'n', 'seeds solved', "than RoPE's"], rows)


def claims():
    """The same in full: quartiles, the paired difference of log10 loss or log perplexity, p before and after Holm."""
    rows = []
    for test in tested():
        ours, theirs = test['ours'], test['theirs']
        text = test['task'] == 'text'
        beyond = '' if text else '{:+.1f} ± {:.1f}'.format(*paired(*([100 * extrapolation(row) for row in runs]
                                                                     for runs in (ours, theirs)))[:2])
        rows.append([test['sentence'], in_short(test) if text else
                     f'{test["name"]}: {quartiles(map(best_loss, ours))} against {quartiles(map(best_loss, theirs))}',
                     len(ours), '' if text else f'{sum(map(solved, ours))} against {sum(map(solved, theirs))}',
                     f'{test["mean"]:+.2f} ± {test["half"]:.2f}', f'{test["p"]:.2g}', f'{test["adjusted"]:.2g}', beyond,
                     verdict(test)])
    print_table(['the paper', 'here: best loss, median [quartiles]', 'n', f'seeds below {SOLVED:g}',
                 'log10 of the loss (TAPA: ln of the perplexity), difference', 'p', 'p, Holm',
                 'accuracy at 2 to 8 times the training length, difference (points)', "than RoPE's"], rows)


def settled():
    """Every arm with its optimiser: what it was trained with, every seed's loss, and how far it reads on."""
    rows = []
    for task, arms in trial.CHOSEN_OPTIMIZER.items():
        for name in arms:
            runs = group('settled', task, (name,)).get(name, ())
            if runs:
                beyond = [100 * extrapolation(run) for run in runs]
                rows.append([task, name, trained_with(runs[0]), len(runs), sum(map(solved, runs)),
                             quartiles(map(best_loss, runs)), f'{max(map(best_loss, runs)):.2g}',
                             quartiles((run['solved_at'] for run in runs), '.0f'), quartiles(beyond, '.0f')])
    print_table(['task', 'arm', 'optimiser, rate', 'n', f'seeds below {SOLVED:g}', 'best loss: median [quartiles]',
                 'worst seed', f'iterations to {SOLVED:g}', 'accuracy at 2 to 8 times the training length (%)'], rows)


# ----------------------------------------------------------------------------------------------------------------------
# Figures


def seeds_as_dots(axes, x, values, color, **style):
    """Every value as a dot around x, in the order of size, and their median as a line."""
    values = sorted(values)
    places = [x + 0.5 * ((i + 0.5) / len(values) - 0.5) for i in range(len(values))]
    axes.plot(places, values, 'o', color=color, markersize=3.5, **style)
    axes.plot([x - 0.32, x + 0.32], [statistics.median(values)] * 2, color='black', linewidth=1.2)


def drawn_losses(runs):
    """Losses for a logarithmic axis, at least FLOOR."""
    return [max(FLOOR, best_loss(run)) for run in runs]


def by_optimizer(task, name):
    """{optimiser: rows} of an arm on the seeds that both have: one of them was chosen, the other was not."""
    chosen, other = list(trial.CHOSEN_OPTIMIZER[task][name])[:2]
    first, second = (group(part, task, (name,)).get(name, ()) for part in ('settled', 'other_optimizer'))
    ours, theirs = same_seeds(second, first)
    return {chosen: theirs, other: ours}


def both_optimizers():
    """{task: {arm: {optimiser: rows}}} of the arms of the claims; RoPE, at its best base, comes first."""
    return {task: {name: by_optimizer(task, name) for name in (trial.BASELINE.get(task, 'rope'), *CLAIMED)}
            for task in trial.CHOSEN_OPTIMIZER}


def two_optimizers():
    """Each optimiser at its best rate, on the seeds of the results, and what learned frequencies gain with it."""
    rows = []
    for task, arms in both_optimizers().items():
        rope = next(iter(arms.values()))
        for name, runs in arms.items():
            if not all(runs.values()):
                continue
            losses = [f'{quartiles(map(best_loss, runs[o]))}, {sum(map(solved, runs[o]))} solved' for o in OPTIMIZERS]
            gains = [against(runs[o], rope[o], log_loss, 2) for o in OPTIMIZERS]
            rows.append([task, name, len(runs['muon']), *losses, against(runs['muon'], runs['adamw'], log_loss, 2),
                         *gains])
    print_table(['task', 'arm', 'n', *OPTIMIZERS.values(), 'log10 of the loss, Muon less AdamW',
                 *(f'log10 of the loss, against RoPE, both with {label}' for label in OPTIMIZERS.values())], rows)


def draw_two_optimizers(plt):
    """Every seed of rope, spectral and bifocal under AdamW (hollow) and Muon (full)."""
    tasks = {task: list(arms.values()) for task, arms in both_optimizers().items()}
    tasks = {task: arms for task, arms in tasks.items() if all(all(runs.values()) for runs in arms)}
    if not tasks:
        return None
    figure, panels = plt.subplots(1, len(tasks), figsize=(4 * len(tasks), 3.6), sharey=True, squeeze=False)
    for axes, (task, arms) in zip(panels[0], tasks.items()):
        for i, (name, runs) in enumerate(zip(('rope', *CLAIMED), arms)):
            for j, optimizer in enumerate(OPTIMIZERS):
                fill = dict(markerfacecolor='none') if optimizer == 'adamw' else {}
                seeds_as_dots(axes, 3 * i + j, drawn_losses(runs[optimizer]), COLORS[name], **fill)
        axes.axhline(SOLVED, color='grey', linestyle=':', linewidth=1)
        axes.set(title=TASKS[task], yscale='log', xticks=[3 * i + 0.5 for i in range(3)])
        axes.set_xticklabels(('rope', *CLAIMED))
        axes.grid(axis='x', visible=False)
    panels[0, 0].set_ylabel('best validation loss (nats), every seed')
    axes.plot([], [], 'o', color='black', markerfacecolor='none', label='AdamW')
    axes.plot([], [], 'o', color='black', label='Muon')
    figure.legend(*axes.get_legend_handles_labels(), loc='outside lower center', ncols=2)
    return figure


def draw_settled(plt):
    """Every seed of every arm with the better optimiser: the best loss, and the accuracy in longer strings."""
    tasks = {task: group('settled', task, [*arms]) for task, arms in trial.CHOSEN_OPTIMIZER.items()}
    tasks = {task: arms for task, arms in tasks.items() if arms}
    if not tasks:
        return None
    figure, panels = plt.subplots(2, len(tasks), figsize=(11, 6.2), sharey='row', sharex='col', squeeze=False,
                                  width_ratios=[len(arms) + 0.5 for arms in tasks.values()])
    for (above, below), (task, arms) in zip(panels.T, tasks.items()):
        best_rope = trial.BASELINE.get(task, 'rope')
        for i, (name, runs) in enumerate(arms.items()):
            color = COLORS['rope'] if name == best_rope else '#6BAED6' if 'rope' in name else COLORS[name]
            seeds_as_dots(above, i, drawn_losses(runs), color)
            seeds_as_dots(below, i, [100 * extrapolation(run) for run in runs], color)
        above.axhline(SOLVED, color='grey', linestyle=':', linewidth=1)
        below.axhline(100 * runs[0]['chance'], color='grey', linestyle=':', linewidth=1)
        above.set(title=TASKS[task], yscale='log')
        labels = ['rope, base 10000' if name == 'rope' != best_rope else name.replace('-base', ', base ')
                  for name in arms]
        below.set(xticks=range(len(arms)), ylim=(0, 103))
        below.set_xticklabels(labels, rotation=30, ha='right')
        for axes in (above, below):
            axes.grid(axis='x', visible=False)
    panels[0, 0].set_ylabel(f'best loss (nats, at least {FLOOR:g})')
    panels[1, 0].set_ylabel('accuracy in longer strings (%)')
    return figure


def settings():
    """
    {setting: {arm: rows}} of rope and the arms that learn frequencies, wherever they were compared. Some had
    AdamW alone, at the rates of the first trial.
    """
    found = {}
    for task, label in TASKS.items():
        found[f'{label}, the claim'] = with_better_optimizer(task, 'rope', *CLAIMED)
        period = 'modulus' if task == 'modulo' else 'period'
        for part in ('periods_again', 'layers_again'):
            values = sorted({int(row['name'].rpartition('-')[2]) for row in study(part)
                             if row['name'].startswith(f'{task}-')})
            for n in values:
                arms = group(part, task, (f'rope-{n}', f'spectral-{n}'))
                found[f'{label}, {period} {n}' if part == 'periods_again' else f'{label}, {n} layers'] = {
                    name.partition('-')[0]: rows for name, rows in arms.items()}
    for schedule in ('periodic', 'random', 'exponential'):
        found[f'brackets, {schedule} spacing'] = group('spacing_again', schedule, ('rope', *CLAIMED))
    found['lag'] = group('controls', 'lag', ('rope', *CLAIMED))
    found['text'] = group('long_muon', 'text', ('rope', *CLAIMED))
    found['passkey'] = group('long_muon', 'passkey', ('rope', *CLAIMED))
    return {label: arms for label, arms in found.items() if {'rope', 'spectral'} <= set(arms)}


def gains():
    """[(setting, arm, were both optimisers tried, n, mean, half)] of log10 loss against RoPE."""
    found = []
    for label, arms in settings().items():
        for name in CLAIMED:
            ours, theirs = same_seeds(arms.get(name, ()), arms['rope'])
            if len(ours) > 1:
                mean, half, _ = paired(map(log_loss, ours), map(log_loss, theirs))
                found.append((label, name, ours[0]['study'] in trial.TWO_OPTIMIZERS, len(ours), mean, half))
    return found


def pays():
    """Where learned frequencies lower the loss at the training length, and where they do not; p is not corrected."""
    rows = [[label, name, 'the better of two' if better else 'AdamW, first trial', n, f'{mean:+.2f} ± {half:.2f}',
             'lower' if mean + half < 0 else 'higher' if mean - half > 0 else '']
            for label, name, better, n, mean, half in gains()]
    print_table(['setting', 'arm', 'optimiser', 'n', 'log10 of the loss, against RoPE', 'interval'], rows)


def draw_pays(plt):
    """The same as points with intervals, a line a setting: full where both optimisers were tried."""
    found = gains()
    labels = list(dict.fromkeys(label for label, *_ in found))
    figure, axes = plt.subplots(figsize=(7.5, 0.28 * len(labels) + 1.6))
    for label, name, better, _, mean, half in found:
        y = labels.index(label) + (0.17 if name == 'bifocal' else -0.17)
        axes.plot([mean - half, mean + half], [y, y], color=COLORS[name], linewidth=1.5)
        axes.plot(mean, y, 'o', color=COLORS[name], markersize=6, markerfacecolor=COLORS[name] if better else 'white')
    axes.axvline(0, color='black', linewidth=1)
    axes.set(yticks=range(len(labels)), ylim=(len(labels) - 0.4, -0.6),
             xlabel='log10 of the validation loss, less that of RoPE\n'
                    'left of the line: learned frequencies are better')
    axes.set_yticklabels(labels)
    for name in CLAIMED:
        axes.plot([], [], 'o-', color=COLORS[name], label=name)
    axes.plot([], [], 'o', color='black', markerfacecolor='white', label='AdamW, first trial')
    axes.legend(loc='lower left', bbox_to_anchor=(0, 1), ncols=3)
    return figure


TABLES = {'pays': pays, 'optimizers': optimizers, 'muon': muon, 'verdicts': verdicts, 'claims': claims,
          'settled': settled, 'two_optimizers': two_optimizers}
DRAWINGS = {'pays': draw_pays, 'two_optimizers': draw_two_optimizers, 'settled': draw_settled}
