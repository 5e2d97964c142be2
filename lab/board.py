"""
The board: every way to know a position, on tasks that ask for different things, by one recipe.

    python -m lab.board alibi                    # trains what has no row yet, and shows its line
    python -m lab.board rope@partial:keep=0.25   # a way with an option `frequencies`
    python -m lab.board alibi --quick            # one setting, one seed; two tasks, or --tasks
    python -m lab.board alibi --tasks lag lag_2  # these columns; lag_2 has two layers
    python -m lab.board                          # all that has rows
    python -m lab.board --figure out/board.png   # the same as a figure; needs matplotlib
    python -m lab.board --figure out/reach.png --reach lag   # how far the ways read that solve it

A way is an attention of model.py, of the lab or your own. The recipe is that of study/README.md,
with the base 1000. Three seeds choose between two settings, and five others make the cell: the
median of the updates until solved, and the percentage that is right beyond the training length L
in strings of 8 L. On text it is nats a byte, at L and at 8 L. In brackets: runs that solve it, of
how many; on text, runs. Then the optimizer that was chosen: A is AdamW, M is Muon, AM is a tie.
"""

import itertools
import math
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from configurator import one_line_errors
from lab import plot, sweep
from lab.options import make_parser
from lab.runs import read_json, read_table
from lab.table import (SOLVED, beyond, column, count, groups_of, is_solved, markdown, median,
                       merit, solved, updates)
from model import GPT, GPTConfig, UserError
from tasks import make_task

RESULTS = Path(__file__).parent / 'results'
STORED = RESULTS / 'board.csv'
COSTS = RESULTS / 'board.json'  # of lab.bench
TASKS = {  # the cheapest first: {name: options}
    'lag': 'task=lag n_layer=1 max_iters=1000',
    'bio_rotation': 'task=bio_rotation n_layer=1 max_iters=1000',
    'modulo': 'task=modulo n_layer=1 max_iters=1000',
    'parity': 'task=sum:modulus=2,start=1 n_layer=1 max_iters=1000',
    'cups': 'task=cups n_layer=1 max_iters=1000',
    'dyck': 'task=dyck n_layer=2 max_iters=500',
    'selective_copy': 'task=selective_copy n_layer=2 max_iters=1000',
    'passkey': 'task=passkey n_layer=2 max_iters=1000',
    'text': 'task=text:path=lab/data/tinyshakespeare.txt n_layer=2 n_head=4 n_embd=128 '
            'block_size=256 batch_size=8 max_iters=500 eval_interval=100 eval_sequences=64'}
TWO_LAYERS = {f'{name}_2': TASKS[name].replace('n_layer=1', 'n_layer=2')
              for name in ('lag', 'bio_rotation', 'modulo', 'parity')}
TWO_LAYERS['copy'] = 'task=selective_copy:letters=0 n_layer=2 max_iters=1000'
TWO_LAYERS['keys'] = 'task=passkey:keys=4 n_layer=2 max_iters=1000'
COLUMNS = {1: list(TASKS), 2: list(TWO_LAYERS)}
TASKS |= TWO_LAYERS
RECIPE = 'rope_base=1000.0 n_head=2 n_embd=64 block_size=64 batch_size=64'  # a task may differ
SETTINGS = dict(muon='optimizer=muon muon_lr=0.01', adamw='optimizer=adamw learning_rate=0.004')
QUICK = ('bio_rotation', 'dyck')
REACH = (1, 2, 4, 8)  # L: the lengths that are measured
CHOOSING = (0, 1, 2)  # seeds: of the runs that choose the setting
REPORTED = (3, 4, 5, 6, 7)  # of those that a cell is of
KINDS = {  # of ways, in the order of the lines; a way that is not named here comes last
    'rotate by fixed angles': ['rope', 'rope@partial:keep=0.25', 'rope_yarn@yarn:factor=8', 'xpos',
                               'pope', 'rope_random', 'rope,nope'],
    'rotate by learned angles': ['spectral', 'bifocal', 'lerope'],
    'add to the score by distance': ['alibi', 'kerple', 't5'],
    'sum or count along the path': ['fox', 'cope', 'accumulated', 'selective', 'path'],
    'add vectors to the input': ['learned', 'sinusoidal'],
    'none of these': ['tapa', 'nope']}
KIND_OF = {way: kind for kind, ways in KINDS.items() for way in ways}


# What a cell shows


class Cell(NamedTuple):
    rows: list
    mark: str = ''  # '*': their seeds also chose the setting; ' incomplete': nothing was chosen


def way_of(row):
    """'rope', or with an option `frequencies` 'rope@partial:keep=0.25'."""
    return f'{row["attention"]}@{row["frequencies"]}'.removesuffix('@geometric')


def task_of(row):
    """The name in TASKS of a row's task and layers. Raises UserError where the board has none."""
    words = [f'task={row["task"]}', f'n_layer={row["n_layer"]}']
    for name, options in TASKS.items():
        if options.split()[:2] == words:
            return name
    raise UserError(f'no column of the board is of {" ".join(words)}: choose another --table')


def recipe_of(task, setting):
    """{option: text} of a run of the board. Raises UserError for a setting that it has not."""
    if setting not in SETTINGS:
        raise UserError(f'the board has no optimizer {setting!r}: choose another --table')
    words = f'{RECIPE} {TASKS[task]} {SETTINGS[setting]}'.split()
    return dict(word.split('=', 1) for word in words)


def check_recipe(row):
    """Raise UserError unless a row has the options and the measures of a run of the board."""
    for name, text in recipe_of(task_of(row), row['optimizer']).items():
        if not sweep.is_of(row, {name: text}):
            raise UserError(f'a row has {name}={row.get(name)}, and the board {text}: choose '
                            'another --table')
    if row.get(f'loss@{REACH[-1] * row["block_size"]}') is None:
        raise UserError(f'a row was not measured at {REACH[-1]} L: choose another --table')


def settings_of(rows, way, task):
    """{optimizer: rows} of a way and a task."""
    own = [row for row in rows if (way_of(row), task_of(row)) == (way, task)]
    return {optimizer: group for (optimizer,), group in groups_of(own, ['optimizer']).items()}


def seeds_of(task):
    """The seeds that choose, and those that report: fewer on text, whose runs are dear."""
    return (CHOOSING[:1], REPORTED[:3]) if task == 'text' else (CHOOSING, REPORTED)


def choosing(rows):
    return [row for row in rows if row['seed'] in CHOOSING]


def choose(settings):
    """
    The names of the best of some settings {name: rows}. The most runs solve the task, then in the
    fewest validations in the mean. If none does, the least mean loss decides, in units of 0.01
    nats. Settings that differ by less than one unit are both chosen: their order would be noise.
    """
    found = {}
    for name, rows in settings.items():
        rows = choosing(rows) or rows
        runs, minus_updates, _ = merit(rows)
        loss = statistics.mean(row['best_loss'] for row in rows)
        found[name] = -runs, (-minus_updates / rows[0]['eval_interval'] if runs else loss / SOLVED)
    most, least = min(found.values())
    return [name for name, (runs, rest) in found.items() if runs == most and rest < least + 1]


def cell_of(settings, task):
    """The Cell of {setting: rows}: rows of the chosen settings, with seeds that chose nothing."""
    rows = [row for name in choose(settings) for row in settings[name]]
    chooses, _ = seeds_of(task)
    complete = [name for name in settings if {*chooses} <= {row['seed'] for row in settings[name]}]
    if len(complete) < len(SETTINGS):
        return Cell(rows, ' incomplete')
    new = [row for row in rows if row['seed'] not in CHOOSING]
    return Cell(new) if new else Cell(rows, '*')


def cells_of(rows):
    """{way: {task: Cell}}, in the order of KINDS."""
    order = list(KIND_OF)
    ways = sorted(dict.fromkeys(map(way_of, rows)),
                  key=lambda way: order.index(way) if way in order else len(order))
    return {way: {task: cell_of(settings, task) for task in TASKS
                  if (settings := settings_of(rows, way, task))} for way in ways}


def numbers_of(rows):
    """Medians as texts: updates and what is right beyond L at 8 L; of text the losses there."""
    L = rows[0]['block_size']
    if task_of(rows[0]) == 'text':
        return [median(column(f'loss@{n}'), form='.2f')(rows) for n in (L, 8 * L)]
    return [median(updates)(rows), median(beyond(8))(rows)]


def text_of(cell):
    """'350 / 74 (3 of 3) AM*' of a Cell, on text '1.52 / 2.10 (3) M*'."""
    rows, mark = cell
    runs = len(rows) if task_of(rows[0]) == 'text' else count(solved)(rows)
    optimizers = ''.join(sorted({row['optimizer'][0].upper() for row in rows}))
    return f'{" / ".join(numbers_of(rows))} ({runs}) {optimizers}{mark}'


def lines_of(cells, tasks):
    """The lines of a table of {way: {task: Cell}}, of the ways that have a cell in it."""
    return [[way, *(text_of(found[task]) if task in found else '' for task in tasks)]
            for way, found in cells.items() if found.keys() & tasks]


def stored_board():
    """The stored rows as a Markdown table, with what a step costs and what is learned."""
    lines = lines_of(cells_of(read_table(STORED)), COLUMNS[1])
    rows = {row['arm']: row for row in read_json(COSTS)['rows']}
    for line in lines:
        row = rows.get(line[0])
        line += [f'{row["step ratio"][1]:.2f}',
                 row['parameters'] - rows['rope']['parameters']] if row else ['', '']
    return markdown(['way', *COLUMNS[1], 'step', 'parameters'], lines)


def stored_two_layers():
    """The stored rows of tasks with two layers."""
    return markdown(['way', *COLUMNS[2]], lines_of(cells_of(read_table(STORED)), COLUMNS[2]))


TABLES = dict(board=stored_board, board_two_layers=stored_two_layers)  # for study/report.py


def chance_of(task):
    """The accuracy (%) of a guess at a task of TASKS."""
    return 100 * make_task(TASKS[task].split()[0].removeprefix('task=')).chance


def draw_board(plt, cells):
    """A line for each way, a column for each task of one layer, and text in colours of its own."""
    *tasks, text = COLUMNS[1]
    lines = []  # (name, {task: Cell}); a kind has a line of its own, without cells
    for kind, group in itertools.groupby(cells, lambda way: KIND_OF.get(way, 'others')):
        lines += [(kind, {}), *((way, cells[way]) for way in group)]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 0.36 * len(lines) + 2.2), sharey=True,
                                         width_ratios=[6, 1.3])
    nats = plt.cm.ScalarMappable(plt.Normalize(1.6, 2.4), 'magma_r')
    for y, (_, found) in enumerate(lines):
        for x, task in enumerate(tasks):
            if task in found:
                rows, mark = found[task]
                _, far = numbers_of(rows)
                some = 0 < sum(map(solved, rows)) < len(rows)  # of all or none the colour tells
                runs = f', {count(solved)(rows)}'.replace(' of ', '/') if some else ''
                mark = mark.replace(' incomplete', '°')
                plot.draw_updates(left, x, y, rows, f'{far} %{runs}{mark}',
                                  weight='bold' if float(far) >= 90 else 'normal')
        if text in found:
            near, far = numbers_of(found[text].rows)
            plot.draw_square(right, 0, y, nats.to_rgba(float(near)), f'{near} / {far}')
    plot.bare(left, len(tasks) - 1, len(lines) - 1,
              title='Colour: updates until solved at the training length L (key below).\n'
                    'Number: what is right beyond L, in strings of 8 L. White: not run. '
                    '3/5: three of five runs solve it.')
    plot.bare(right, 0, len(lines) - 1)
    for axes in (left, right):
        axes.xaxis.tick_top()
    left.set_xticks(range(len(tasks)), [f'{task}\nchance: {chance_of(task):.0f} %'
                                        for task in tasks], fontsize=9)
    right.set_xticks([0], ['text, nats a byte\nat L / at 8 L'])
    left.set_yticks(range(len(lines)), [name for name, _ in lines])
    for label, (_, found) in zip(left.get_yticklabels(), lines):
        label.set_fontweight('normal' if found else 'bold')
    figure.colorbar(plot.update_colors(), ax=left, location='bottom', aspect=60, pad=0.02,
                    label='updates until solved, a median; grey: half of the runs or more stay '
                          f'above {SOLVED} nats')
    figure.colorbar(nats, ax=right, location='bottom', aspect=12, pad=0.02, label='nats at L')
    return figure


def draw_reach(plt, cells, task):
    """How far each way that solves a task reads: a panel for a way, a thin line for a run."""
    def at_L(row):
        return column(f'headline@{row["block_size"]}', 100)(row)

    measures = {1: at_L} | {multiple: beyond(multiple) for multiple in REACH[1:]}
    ways = {way: found[task].rows for way, found in cells.items()
            if task in found and is_solved(found[task].rows)}
    ways = {way: rows for way, rows in ways.items()
            if None not in [measure(row) for row in rows for measure in measures.values()]}
    if not ways:
        raise UserError(f'--reach {task}: no way that solves it has rows at 2, 4 and 8 L')
    columns = min(6, len(ways))
    lines = math.ceil(len(ways) / columns)
    figure, panels = plt.subplots(lines, columns, squeeze=False, sharey=True,
                                  figsize=(12, 2.1 * lines + 0.8))
    for axes in panels.flat[len(ways):]:
        axes.remove()
    for axes, (way, rows) in zip(panels.flat, ways.items()):
        plot.draw_arms(axes, [row | dict(arm=way) for row in rows], measures, np.median)
        axes.axhline(chance_of(task), color='grey', linestyle=':')
        axes.set_title(f'{way}, n = {len(rows)}', fontsize=9)
        axes.set(ylim=(-3, 103))
        plot.log_ticks(axes, REACH, [f'{n} L' for n in REACH])
    figure.suptitle(f'{task}, by the length of the string')
    figure.supylabel('right (%): at L, then beyond it', fontsize=10)
    return figure


# Training


def options_of(way):
    """The attention and the frequencies of a way."""
    attention, _, frequencies = way.partition('@')
    return dict(attention=attention, frequencies=frequencies or 'geometric')


def train_missing(way, task, setting, seeds, path):
    """Train the seeds that have no row in the table `path`. A run that diverges has none."""
    stored = settings_of(read_table(path, missing=[]), way, task).get(setting, [])
    seeds = sorted({*seeds} - {row['seed'] for row in stored})
    if not seeds:
        return
    options = recipe_of(task, setting) | options_of(way)
    words = ['device=cpu', *(f'{name}={value}' for name, value in options.items())]
    try:
        sweep.main([str(path), *words, f'seed={" ".join(map(str, seeds))}', '--name',
                    f'{way},{task},{setting}', '--multiples', *map(str, REACH), '--forget'])
    except UserError as error:
        print(f'{way} on {task} with {setting}: {error}', file=sys.stderr)


def fill(way, task, path, quick=False):
    """Train what a cell lacks: runs that choose, then runs of what was chosen."""
    if quick:
        train_missing(way, task, list(SETTINGS)[0], CHOOSING[:1], path)
        return
    chooses, reports = seeds_of(task)
    for setting in SETTINGS:
        train_missing(way, task, setting, chooses, path)
    found = settings_of(read_table(path, missing=[]), way, task)
    chosen = choose(found) if found else []
    print(f'{way} on {task}: chosen is {" and ".join(chosen) or "nothing"}', flush=True)
    for setting in chosen:
        train_missing(way, task, setting, reports, path)


def main(arguments=None):
    """Do what the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('lab.board', __doc__)
    parser.add_argument('ways', nargs='*', help='attentions, such as alibi')
    parser.add_argument('--table', type=Path, default=Path('out/board.csv'), help='for new rows')
    parser.add_argument('--tasks', nargs='+', choices=TASKS, metavar='TASK',
                        help=', '.join(TASKS))
    parser.add_argument('--quick', action='store_true',
                        help=f'one setting, one seed; --tasks {" ".join(QUICK)} if none are named')
    parser.add_argument('--figure', type=Path, metavar='FILE.png', help='draw the board')
    parser.add_argument('--reach', choices=TASKS, metavar='TASK',
                        help='draw how far the ways read that solve it')
    given = parser.parse_args(arguments)
    if given.reach and not given.figure:
        parser.error('--reach needs --figure FILE.png')
    ways = [way.removesuffix('@geometric').removesuffix('@') for way in given.ways]
    for way in ways:  # a wrong one is an error here, not of each run
        GPT(GPTConfig(vocab_size=8, **options_of(way)))
    for row in read_table(given.table, missing=[]):
        check_recipe(row)
    stored = given.table.resolve() == STORED.resolve()
    if ways and stored and (sweep.COMMIT or '').endswith('-dirty'):
        raise UserError(f'--table {given.table}: commit your files first; its rows name a commit')
    tasks = given.tasks or (QUICK if given.quick else COLUMNS[1])
    runs = [1 if given.quick else len(SETTINGS) * sum(map(len, seeds_of(task)))
            for task in tasks]
    if ways:
        print(f'up to {sum(runs) * len(ways)} runs, each about a minute on a free core, of text '
              'two or more; what has a row is left out, even if its class has changed', flush=True)
    for task, way in itertools.product(tasks, ways):
        fill(way, task, given.table, given.quick)
    cells = cells_of(read_table(STORED))
    if not stored:
        own = cells_of(read_table(given.table, missing=[]))
        cells |= {f'{way} (yours)': found for way, found in own.items()}
    for columns in reversed(COLUMNS.values()):  # so a line of yours comes last
        columns = [task for task in columns if task in (given.tasks or columns)]
        lines = lines_of(cells, columns)
        if lines:
            print(markdown(['way', *columns], lines))
    print('A: AdamW, M: Muon, AM: a tie. *: these seeds also chose. incomplete: nothing chose.')
    plt = plot.pyplot() if given.figure else None
    if plt:
        figure = draw_reach(plt, cells, given.reach) if given.reach else draw_board(plt, cells)
        plot.save(figure, given.figure, dpi=130, metadata={'Rows': plot.digest([STORED])})


if __name__ == '__main__':
    with one_line_errors():
        main()
