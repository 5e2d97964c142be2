"""
The figures of the reports, from study/results alone.

    python -m study.figures              # draws study/figures/*.png; needs matplotlib
    python -m study.figures map          # this one
"""

import math
import statistics
from pathlib import Path

import numpy as np

from configurator import one_line_errors
from lab import plot
from lab.crystallise import draw_spectrum
from lab.options import make_parser
from lab.table import column, count, groups_of, solved, updates
from study import (RESULTS, capture, claims, periods, questions, read, read_json, relay, sizes,
                   text)

FIGURES = Path(__file__).resolve().parent / 'figures'


def draw_map(plt):
    """Updates until each setting solves each task: arms and bases across, rates down."""
    rates = sorted({rate for task in claims.TASKS for rate in claims.rates(task)})
    heights = {rate: i + 0.35 * (rate[0] == 'muon') for i, rate in enumerate(rates)}
    figure, panels = plt.subplots(3, 1, figsize=(11, 13))
    for axes, (task, title) in zip(panels, claims.TASKS.items()):
        x, places, labels = 0, [], []
        for attention, name in claims.ATTENTIONS.items():
            found = claims.the_map(task, attention)
            bases = sorted({base for base, *_ in found})  # None alone where there is no base
            across = {base: x + i for i, base in enumerate(bases)}
            for (base, *rate), rows in found.items():
                plot.draw_updates(axes, across[base], heights[tuple(rate)], rows, fontsize=8)
            places += across.values()
            labels += ['' if base is None else f'{base:g}' for base in bases]
            n = sum(map(claims.is_solved, found.values()))
            axes.annotate(f'{name}\n{n} of {len(found)}', (x + (len(bases) - 1) / 2, -0.75),
                          ha='center', va='bottom', fontsize=8, annotation_clip=False,
                          color=plot.COLORS[attention], fontweight='bold')
            x += len(bases) + 0.8  # a gap between arms
        axes.set_title(f'{title}, {claims.BUDGETS[task]} updates', pad=36)
        axes.set_xticks(places, labels, rotation=90, fontsize=8)
        axes.set_yticks(list(heights.values()), [claims.spelled((None, *rate)) for rate in rates],
                        fontsize=8)
        plot.bare(axes, places[-1], heights[rates[-1]], xlabel='base of the frequencies')
    draw_bar(figure, panels, fraction=0.02)
    return figure


def draw_bar(figure, axes, **settings):
    bar = figure.colorbar(plot.update_colors(), ax=axes, pad=0.01, **settings)
    bar.set_label('updates until solved, a median\ngrey: by the median, never')


def draw_verdicts(plt):
    """The loss of each seed of the verdicts, a dot each, with either optimizer."""
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.2), sharey=True)
    shorter = {claims.PLAIN: 'RoPE,\n10000', claims.TUNED: 'RoPE,\ntuned'}
    names = [shorter.get(arm, arm) for arm in claims.ARMS]
    found = {optimizer: groups_of(claims.runs(optimizer), ['claim', 'arm'])
             for optimizer in ('adamw', 'muon')}
    for axes, (task, title) in zip(panels, claims.TASKS.items()):
        for arms, shift, fill in ((found['adamw'], -0.18, None), (found['muon'], 0.18, 'white')):
            for x, (arm, attention) in enumerate(claims.ARMS.items()):
                rows = arms.get((title, arm), [])
                places = [x + shift + 0.012 * (i - len(rows) / 2) for i in range(len(rows))]
                losses = [max(row['best_loss'], plot.LEAST) for row in rows]
                axes.plot(places, losses, 'o', color=plot.COLORS[attention], markersize=4,
                          markerfacecolor=fill)
        axes.axhline(claims.SOLVED, color='grey', linestyle=':')
        axes.set_xticks(range(len(names)), names, fontsize=9)
        axes.set(title=f'{title}, {claims.BUDGETS[task]} updates', yscale='log')
        axes.grid(axis='x', visible=False)
    panels[0].set_ylabel('best validation loss (nats)')
    panels[0].plot([], [], 'o', color='black', label='AdamW')
    panels[0].plot([], [], 'o', color='black', markerfacecolor='white', label='Muon')
    panels[0].legend()
    return figure


def draw_search(plt):
    """What the best of k settings solves, drawn from those of an arm."""
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.8), sharey=True)
    for axes, (task, title) in zip(panels, claims.TASKS.items()):
        for attention in claims.BASES:
            cells = list(claims.the_map(task, attention).values())
            found = {k: claims.search(cells, k) for k in claims.DRAWN if k <= len(cells)}
            axes.plot(found.keys(), found.values(), 'o-', color=plot.COLORS[attention],
                      linewidth=2.5,
                      label=f'{claims.ATTENTIONS[attention]}, of {len(cells)}')
        axes.set(title=f'{title}, {claims.LAYERS[task]} layer{"s"[:claims.LAYERS[task] - 1]}',
                 xlabel='settings tried', ylim=(-3, 103))
        plot.log_ticks(axes, claims.DRAWN)
        axes.legend(fontsize=9)
    panels[0].set_ylabel('solved by the best of them (%)')
    return figure


def draw_sizes(plt):
    """Updates until solved: arms down, sizes across; and how far two layers read."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 4.6), width_ratios=[2.2, 1])
    usual = [row for row in sizes.rows()
             if row['positional_lr'] == 0.01 and row['n_embd'] == 32 * row['n_head']]
    columns = groups_of(usual, ['task', 'size'])
    places = [x + 0.4 * (task == 'modulo') for x, (task, _) in enumerate(columns)]
    for x, ((task, _), group) in zip(places, columns.items()):
        for (arm,), rows in groups_of(group, ['arm']).items():
            solved_of = count(solved)(rows).replace(' of ', '/')
            middle = statistics.median(map(updates, sizes.at_best_rate(rows)))
            text = solved_of if middle == math.inf else f'{middle:.0f}\n{solved_of}'
            plot.draw_updates(left, x, sizes.ARMS.index(arm), sizes.at_best_rate(rows), text,
                              fontsize=8)
    plot.bare(left, places[-1], len(sizes.ARMS) - 1, xlabel='layers × width')
    left.set_xticks(places, [size for _, size in columns], fontsize=8, rotation=60, ha='right')
    left.set_yticks(range(len(sizes.ARMS)), sizes.ARMS)
    for task, title in claims.TASKS.items():
        own = [x for x, (of, _) in zip(places, columns) if of == task]
        if own:
            left.annotate(title, (statistics.mean(own), -0.75), ha='center',
                          annotation_clip=False, fontweight='bold')
    draw_bar(figure, left)
    reach = [dict(row, arm=sizes.arm_of(row)) for row in read('sizes')
             if not row['stop_loss'] and row['task'] == 'bio_rotation']
    measures = {multiple: claims.beyond(multiple) for multiple in claims.MULTIPLES}
    plot.draw_arms(right, reach, measures, np.median,
                   f'RoPE, base {sizes.BASES["bio_rotation"]}')
    right.set(title='Bio-Rotation, 2 × 64: how far it reads', ylim=(-3, 103),
              xlabel='times the training length', ylabel='right beyond it (%)')
    plot.log_ticks(right, claims.MULTIPLES)
    right.legend(fontsize=8)
    return figure


def draw_longer(plt):
    """How far two layers read: as trained at L, and after some updates at 8 L."""
    stages = groups_of(questions.trained_longer(searched=False), ['stage'])
    more = [row | dict(arm='RoPE, 200 updates') for row in questions.trained_longer(searched=True)
            if row['stage'] == 'then 200 updates at 8L' and row['learning_rate'] == 0.004]
    panels = {'500 updates at L = 64': stages['500 updates at L',],
              'and then 50 updates at 8L': stages['then 50 updates at 8L',] + more}
    measures = {T: column(f'accuracy@{T}', 100) for T in questions.LENGTHS}
    figure, grid = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axes, (title, group) in zip(grid, panels.items()):
        plot.draw_arms(axes, group, measures, np.median, 'RoPE, 200 updates')
        axes.axhline(100 * group[0]['chance'], color='grey', linestyle=':')
        axes.set(title=title, ylim=(-3, 103), xlabel='tokens in a test string')
        plot.log_ticks(axes, questions.LENGTHS)
        axes.legend(fontsize=9, loc='lower left')
    grid[0].set_ylabel('right (%)')
    return figure


def draw_starts(plt):
    """What is solved, by how far a frequency starts from a harmonic; and by the period."""
    figure, (axes, right) = plt.subplots(1, 2, figsize=(13, 4.2), width_ratios=[3, 2], sharey=True)
    usual = 2, 64, 10  # heads, L, period
    kinds = {usual: 'o', (2, 32, 10): '^', (2, 48, 10): 'v', (2, 128, 10): 's', (8, 64, 10): 'P'}
    labels = {'^': 'L = 32', 'v': 'L = 48', 's': 'L = 128', 'P': 'eight heads',
              'D': 'another period'}
    rows = [row for row in sizes.start_rows() if row['positional_lr'] == 0.01]
    bases = {}  # of the usual cells, by circles, rounded
    for shift, attention in zip((-0.02, 0, 0.02), sizes.BASED):
        color = plot.COLORS[attention]
        own = [row for row in rows if row['attention'] == attention]
        cells = groups_of(own, ['heads', 'L', 'period', 'rope_base'])
        for (*kind, base), group in cells.items():
            x, share = group[0]['circles'], capture.share_solved(group)
            marker = kinds.get(tuple(kind), 'D')
            if marker == 'o':
                bases.setdefault(round(x, 1), set()).add(base)
            axes.plot(x + shift, share, marker, color=color, markersize=3 + 2 * len(group) ** 0.5,
                      markerfacecolor=color if marker == 'o' else 'white')
        axes.plot([], [], 'o', color=color, label=claims.ATTENTIONS[attention])
    for marker, label in labels.items():
        axes.plot([], [], marker, color='grey', markerfacecolor='white', label=label)
    for x, found in bases.items():
        axes.annotate(', '.join(f'{base:g}' for base in sorted(found)), (x, 106), ha='left',
                      va='bottom', rotation=45, fontsize=8, annotation_clip=False)
    axes.axvline(1, color='grey', linestyle=':')
    axes.set(ylim=(-5, 105), ylabel='runs that solve it (%)',
             xlabel='from its nearest frequency to a harmonic of the period, circles over L tokens')
    axes.set_title('Bio-Rotation, one layer, AdamW: by the base', pad=62)
    axes.legend(fontsize=8, loc='center right')
    draw_periods(right)
    return figure


def draw_periods(axes):
    """What RoPE and Spectral solve from the base 10000, by the period."""
    four = [row for row in sizes.four_head_periods() if row['positional_lr'] == 0.01]
    for rows, style, heads in ((sizes.period_rows(), '-o', ''), (four, ':', ', four heads')):
        for (attention,), group in groups_of(rows, ['attention']).items():
            found = capture.by_column(group, 'period', capture.share_solved)
            axes.plot(found.keys(), found.values(), style, color=plot.COLORS[attention],
                      label=claims.ATTENTIONS[attention] + heads)
    axes.set(xlabel='period (tokens)')
    axes.set_title('From the base 10000, by the period', pad=62)
    axes.legend(fontsize=8, loc='lower center', bbox_to_anchor=(0.5, 1.02), ncols=2)


def draw_capture(plt):
    """Where a placed pair goes; loss and contrast where it stays; what is solved, by its start."""
    figure, panels = plt.subplots(3, 2, figsize=(13, 9), width_ratios=[3, 2], sharex='col',
                                  height_ratios=[3, 2, 2])
    (paths, usual), (losses, others), (hills, other_hills) = panels
    groups = groups_of(capture.rows(), ['setting', 'arm', 'max_iters'])
    moved = read_json('capture')
    for row in groups['L = 64', 'Spectral', 300]:
        path = moved[f'{row["name"]}-{row["seed"]}']
        for head in path['circles']:
            paths.plot(head, path['updates'], linewidth=1,
                       color=plot.COLORS['spectral'] if solved(row) else plot.NEVER)
    paths.set(title='Spectral: a line is the placed pair of a head, grey if its run fails',
              ylabel='updates', ylim=(300, 0))

    for it, style in ((capture.EARLY, ':'), (300, '-')):
        found = capture.by_column(groups['L = 64', 'RoPE', it], 'start', capture.early_loss)
        losses.plot(found.keys(), found.values(), style, color=plot.COLORS['rope'],
                    label=f'after {it} updates')
    losses.set(title='RoPE, whose pair stays: the loss', ylabel='nats, median')

    def draw_solved(axes, setting, color, arm='Spectral', style='-o'):
        found = capture.by_column(groups[setting, arm, 300], 'away', capture.share_solved)
        axes.plot(found.keys(), found.values(), style, color=color, label=f'{arm}, {setting}')

    draw_solved(usual, 'L = 64', plot.COLORS['rope'], 'RoPE')
    draw_solved(usual, 'L = 64', plot.COLORS['spectral'])
    draw_solved(usual, 'L = 64, Muon', plot.COLORS['spectral'], style='--o')
    draw_contrast(hills, np.linspace(-3.2, 3.2, 321), 64, 10, 'black')
    strings = {'L = 32': (32, 10), 'L = 64, period 8': (64, 8), 'L = 128': (128, 10)}
    for (setting, (T, period)), color in zip(strings.items(), plot.MORE_COLORS):
        draw_solved(others, setting, color)
        draw_contrast(other_hills, np.linspace(0, 2.5, 126), T, period, color)
    draw_solved(others, "L = 32, Ω's rate at 0.02", plot.MORE_COLORS[0], style='--o')
    for axes, title in ((usual, ''), (others, ', other strings')):
        axes.set(title=f'Runs that solve the task{title}', ylabel='%')
    for axes in (hills, other_hills):
        axes.set(title='The contrast of the pair, computed')
    hills.set(xlabel='from the harmonic, circles over L tokens', ylabel='contrast')
    other_hills.set(xlabel='circles away at the start')
    for axes in (losses, usual, others):
        axes.legend(fontsize=8)
    return figure


def draw_contrast(axes, circles, T, period, color):
    """The contrast of a pair so many circles away."""
    heights = [capture.contrast(capture.frequency_at(one, T, period), T, period)
               for one in circles]
    axes.plot(circles, heights, color=color)


def draw_length(plt):
    """Updates until each setting solves each task: lengths across, settings down."""
    # the learned frequencies of the panels start at the base 1000
    rows = [row for row in read('length')
            if row['attention'] == 'rope' or row['rope_base'] == 1000]
    order = list(claims.ATTENTIONS)
    rows.sort(key=lambda row: (order.index(row['attention']), row['frequencies'], row['rope_base'],
                               row['positional_lr']))
    for row in rows:
        row['setting'] = f'base {row["rope_base"]:g}'
        if row['attention'] != 'rope':
            row['setting'] = f'rate of Ω {row["positional_lr"]:g}'
        if row['frequencies'] != 'geometric':
            row['setting'] = 'told the period'
    settings = groups_of(rows, ['attention', 'setting'])
    # a gap between arms
    heights = {key: i + 0.4 * order.index(key[0]) for i, key in enumerate(settings)}
    lengths = sorted({row['block_size'] for row in rows})
    tasks = ['bio_rotation', 'bio_rotation:period=40', 'modulo', 'dyck', 'passkey']
    cells = {task: groups_of([row for row in rows if row['task'] == task],
                             ['attention', 'setting', 'block_size']) for task in tasks}
    figure, panels = plt.subplots(1, len(tasks), figsize=(11.5, 5), sharey=True)
    for axes, task in zip(panels, tasks):
        for (attention, setting, length), cell in cells[task].items():
            plot.draw_updates(axes, lengths.index(length), heights[attention, setting], cell,
                              fontsize=6.5)
        name, _, period = task.partition(':period=')
        name = claims.TASKS.get(name, name)
        axes.set_title(name + (f',\nperiod {period}' if period else ''))
        axes.set_xticks(range(len(lengths)), lengths)
        plot.bare(axes, len(lengths) - 1, max(heights.values()), xlabel='L (tokens)')
    labels = [f'{claims.ATTENTIONS[attention]}, {setting}' for attention, setting in heights]
    panels[0].set_yticks(list(heights.values()), labels, fontsize=9)
    for label, (attention, _) in zip(panels[0].get_yticklabels(), heights):
        label.set_color(plot.COLORS[attention])
    draw_bar(figure, panels, fraction=0.03)
    return figure


def draw_context(plt):
    """Text and passkeys by the length of the context, as trained and tuned at 4L."""
    shown = (text.PAPER, claims.TUNED, 'Spectral', 'TAPA')
    figure, grid = plt.subplots(2, 2, figsize=(11, 8), sharex='row', sharey='row')
    for panels, task, measure in zip(grid, text.L, (text.perplexity, text.keys_found)):
        arms = groups_of(text.rows_of(task), ['stage'])
        measures = {multiple * text.L[task]: measure(multiple) for multiple in text.MULTIPLES}
        for axes, stage in zip(panels, text.STAGES.values()):
            rows = [row for row in arms.get((stage,), ()) if row['arm'] in shown]
            plot.draw_arms(axes, rows, measures, np.median, text.PAPER)
            axes.axvline(text.L[task], color='grey', linestyle=':')
            axes.set(title=f'{task}, {stage}', xscale='log')
            axes.set_xticks(list(measures), map(str, measures))
    for axes in grid[0]:
        axes.set(yscale='log', xlabel='context (bytes)')
        axes.yaxis.set_major_locator(plt.FixedLocator([4, 5, 6, 8, 10, 12, 15, 20]))
        axes.yaxis.set_major_formatter('{x:g}')
    for axes in grid[1]:
        axes.set(xlabel='tokens')
    for axes in grid.flat:
        axes.minorticks_off()
    grid[0, 1].legend(fontsize=8)
    grid[0, 0].set_ylabel('perplexity a byte, sliding windows')
    grid[1, 0].set_ylabel('keys found (%)')
    return figure


def draw_crystal_spectrum(plt):
    """The loss against q of the first run on either task: multiples of the period are its dips."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for axes, learned in zip(panels, ('bio_rotation, P = 10', 'modulo, P = 7')):
        name, P = periods.LEARNED[learned]
        row = periods.measured(name.format('spectral'), '')[0]
        trained, *losses = map(float, row['spectrum'].split())
        losses = dict(enumerate(losses, start=2))
        draw_spectrum(axes, losses, P, trained, row['chance'])
        axes.set_title(learned)
    figure.legend(*axes.get_legend_handles_labels(), loc='outside lower center', ncols=3)
    return figure


def draw_lock_in(plt):
    """When each run locks in, and how far it reads."""
    tasks = groups_of(questions.learned_runs('locked'), ['task'])
    figure, panels = plt.subplots(1, len(tasks), figsize=(11, 4.5), sharey=True)
    never, ticks = 1150, range(0, 1001, 250)
    for axes, ((task,), rows) in zip(panels, tasks.items()):
        for (arm,), group in groups_of(rows, ['arm']).items():
            places = [min(row['lock_in'], never) for row in group]
            axes.plot(places, list(map(claims.beyond(8), group)), 'o', alpha=0.5,
                      color=plot.COLORS[group[0]['attention']], label=f'{arm}, n = {len(group)}')
        axes.set_xticks([*ticks, never], [*ticks, 'never'])
        axes.set(title=claims.TASKS[task], xlabel='locked from update on', ylim=(-3, 103))
        axes.legend(fontsize=8)
    panels[0].set_ylabel('right beyond L at 8L (%)')
    return figure


def draw_relay(plt):
    """Where a layer's blanks look, by turn and distance; and what is right without a distance."""
    runs = groups_of(relay.rows(), ['arm', 'seed'])
    seed = min(seed for _, seed in runs)
    figure, panels = plt.subplot_mosaic([[0, 1, 2], ['cuts'] * 3], figsize=(12, 7),
                                        layout='constrained')
    figure.suptitle('Bio-Rotation: layer 1 copies the strand 10 tokens on. '
                    'So in layer 2 one distance serves two turns')
    looks = [('RoPE, layer 1 of 2', relay.TWO, 0), ('RoPE, layer 2 of 2', relay.TWO, 1),
             ('Spectral, its only layer', relay.ONE, 0)]
    for panel, (title, arm, layer) in enumerate(looks):
        axes, (row,) = panels[panel], runs[arm, seed]
        shares = np.max(row['looks'][layer], axis=0)  # of the head that looks there most
        turns = range(1, len(shares) + 1)
        image = axes.imshow(shares, 'Greys', aspect='auto', vmin=0, vmax=100,
                            extent=(-0.5, shares.shape[1] - 0.5, turns[-1] + 0.5, 0.5))
        axes.plot([10 * turn for turn in turns], turns, 's', markersize=17, fillstyle='none',
                  color=plot.COLORS['spectral'], label='the letter in the strand')
        if layer == 1:
            axes.plot([10 * turn - 10 for turn in turns[1:]], turns[1:], 'o', markersize=17,
                      fillstyle='none', color=plot.COLORS['rope'],
                      label='its copy, a blank of turn 1')
            legend = axes.get_legend_handles_labels()
        axes.set(title=title, xlabel='tokens back', yticks=turns, xticks=range(0, 61, 10))
        axes.grid(visible=False)
    panels[0].set_ylabel('turn of the blank')
    figure.colorbar(image, ax=panels[2], pad=0.01, label='share of attention (%)')
    figure.legend(*legend, loc='outside lower center', ncols=2)
    draw_cuts(panels['cuts'], [row for (arm, _), (row,) in runs.items() if arm == relay.TWO])
    return figure


def draw_cuts(axes, rows):
    """The medians of what is right by turn, a line for each cut."""
    found = np.median([[row['cuts'][name] for name in relay.CUTS] for row in rows], axis=0)
    axes.imshow(found, 'Greens', aspect='auto', vmin=0, vmax=130)
    for (y, x), right in np.ndenumerate(found):
        axes.annotate(f'{right:.0f}', (x, y), ha='center', va='center', fontsize=8,
                      color='black' if right < 90 else 'white',
                      fontweight='bold' if right < 50 else None)
    names = ['as trained', *(f'without {name}' for name in relay.CUTS)]
    names.remove('without nothing')
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xticks(range(found.shape[1]), range(1, found.shape[1] + 1))
    axes.set(title='What is right without a distance, RoPE, two layers (%; medians of three seeds)',
             xlabel='turn of the blank')
    axes.grid(visible=False)


def draw_turns(plt):
    """What RoPE has right in each turn of the strand; what is solved by the turns of a string."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    styles = dict(adamw='-', muon='--')
    for (optimizer,), rows in groups_of(questions.rows_of('turns'), ['optimizer']).items():
        turns = range(1, 7)
        lines = left.plot(turns, [[100 * row[f'turn@{turn}'] for row in rows] for turn in turns],
                          linewidth=1, linestyle=styles[optimizer], color=plot.COLORS['rope'])
        lines[0].set_label(claims.OPTIMIZERS[optimizer])
    left.axhline(25, color='grey', linestyle=':')
    left.set(title='RoPE, 64 tokens: the sixth turn has three letters', ylim=(-3, 103),
             xlabel='repetition of the strand (turn)', ylabel='right letters (%)')
    left.legend(fontsize=8)
    strings = questions.whole_turns()
    groups = groups_of(strings, ['attention', 'optimizer'])
    for (attention, optimizer), rows in groups.items():
        found = capture.by_column(rows, 'turns', capture.share_solved)
        right.plot(found.keys(), found.values(), 'o', linestyle=styles[optimizer],
                   color=plot.COLORS[attention],
                   label=f'{claims.ATTENTIONS[attention]}, {claims.OPTIMIZERS[optimizer]}')
    ticks = {row['turns']: row['block_size'] for row in strings if row['turns'] % 1 == 0}
    right.set_xticks(list(ticks), [f'{turns:g}\n{T}' for turns, T in ticks.items()])
    right.set(title='Solved, by the turns of a training string', ylim=(-3, 128),
              yticks=range(0, 101, 20), xlabel='turns, and tokens',
              ylabel='runs that solve it (%)')
    right.legend(fontsize=8, loc='upper center', ncols=2)
    return figure


# {name: (function, the files whose rows it shows)}
DRAWINGS = dict(
    map=(draw_map, ['map.csv']),
    verdicts=(draw_verdicts, ['map.csv', 'verdict.csv']),
    search=(draw_search, ['map.csv']),
    sizes=(draw_sizes, ['sizes.csv', 'map.csv', 'heads.csv']),
    starts=(draw_starts, ['bases.csv', 'map.csv', 'heads.csv']),
    length=(draw_length, ['length.csv']),
    context=(draw_context, ['text.csv', 'passkey.csv']),
    crystal_spectrum=(draw_crystal_spectrum, ['crystal.csv']),
    lock_in=(draw_lock_in, ['map.csv', 'verdict.csv']),
    relay=(draw_relay, ['relay.csv', 'relay.json']),
    longer=(draw_longer, ['questions.csv', 'answers.csv']),
    capture=(draw_capture, ['capture.csv', 'capture.json']),
    turns=(draw_turns, ['questions.csv', 'map.csv', 'verdict.csv']))


def digest(name):
    """A digest of a figure's rows. The figure carries it, which tells whether it is up to date."""
    _, files = DRAWINGS[name]
    return plot.digest(RESULTS / file for file in files)


def main(arguments=None):
    """Draw the figures that the command line `arguments` (default: sys.argv) name, or all."""
    parser = make_parser('study.figures', __doc__)
    parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(DRAWINGS))
    names = parser.parse_args(arguments).names
    unknown = set(names) - DRAWINGS.keys()
    if unknown:
        parser.error(f'no figure {unknown.pop()}: there are {", ".join(DRAWINGS)}')
    plt = plot.pyplot()
    for name in (names or DRAWINGS) if plt else ():
        draw, _ = DRAWINGS[name]
        plot.save(draw(plt), FIGURES / f'{name}.png', dpi=130, metadata={'Rows': digest(name)})


if __name__ == '__main__':
    with one_line_errors():
        main()
