"""
The board: every way to know a position, on tasks that ask for different things, by one recipe.

    python -m lab.board alibi                    # trains what has no row yet, and shows its line
    python -m lab.board rope@partial:keep=0.25   # a way with an option `frequencies`
    python -m lab.board alibi --quick            # two tasks, one setting, one seed
    python -m lab.board alibi --layers 2         # the four tasks of two layers
    python -m lab.board                          # all that has rows
    python -m lab.board --figure out/board.png   # the same as a figure; needs matplotlib

A way is an attention of model.py, of the lab or your own. The recipe is that of study/README.md,
with the base 1000. Three seeds choose between two settings, and five others make the cell: the
median of the updates until solved, and the percentage that is right beyond the training length L
in strings of 8 L. On text it is nats a byte, at L and at 8 L. In brackets: runs that solve it, of
how many; on text, runs.
"""

import hashlib
import json
import math
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch

import train
from configurator import configure, one_line_errors, this_process, to_device
from lab import plot, sweep
from lab.bench import interleave
from lab.options import make_parser
from lab.runs import read_table
from lab.table import SOLVED, column, count, is_solved, markdown, median, solved, updates
from model import ATTENTIONS, GPT, GPTConfig, UserError
from optim import configure_optimizers
from tasks import make_rng, make_task

RESULTS = Path(__file__).parent / 'results'
STORED = RESULTS / 'board.csv'
COSTS = RESULTS / 'board.json'  # of lab.bench
FIGURE = Path(__file__).parent / 'figures' / 'board.png'
TASKS = {  # the cheapest first: {name: options}
    'lag': 'task=lag n_layer=1 max_iters=1000',
    'bio_rotation': 'task=bio_rotation n_layer=1 max_iters=1000',
    'modulo': 'task=modulo n_layer=1 max_iters=1000',
    'parity': 'task=sum:modulus=2,start=1 n_layer=1 max_iters=1000',
    'dyck': 'task=dyck n_layer=2 max_iters=500',
    'passkey': 'task=passkey n_layer=2 max_iters=1000',
    'text': 'task=text n_layer=4 n_head=4 n_embd=128 block_size=256 batch_size=8 max_iters=500 '
            'eval_interval=100 eval_sequences=64'}
TWO_LAYERS = {f'{name}_2': TASKS[name].replace('n_layer=1', 'n_layer=2')
              for name in ('lag', 'bio_rotation', 'modulo', 'parity')}
COLUMNS = {1: list(TASKS), 2: list(TWO_LAYERS)}
TASKS |= TWO_LAYERS
SETTINGS = dict(muon='optimizer=muon muon_lr=0.01', adamw='optimizer=adamw learning_rate=0.004')
QUICK = ('bio_rotation', 'dyck')
CHOOSING = (0, 1, 2)  # seeds: of the runs that choose the setting
REPORTED = (3, 4, 5, 6, 7)  # of those that a cell is of


# What a cell shows


class Cell(NamedTuple):
    """
    The rows that a cell is of, and a mark: '*' if their seeds also chose the setting, 'quick' if
    there was no choice.
    """

    rows: list
    mark: str = ''


def way_of(row):
    """'rope', or with an option `frequencies` 'rope@partial:keep=0.25'."""
    return f'{row["attention"]}@{row["frequencies"]}'.removesuffix('@geometric')


def task_of(row):
    """The name in TASKS of a row's task and layers."""
    words = [f'task={row["task"]}', f'n_layer={row["n_layer"]}']
    return next(name for name, options in TASKS.items() if options.split()[:2] == words)


def shortfall(rows):
    """
    What a setting is chosen by, less is better: minus the runs that solve the task; then the mean
    of updates, in validation intervals. If none solves it, that of the loss, in units of 0.01 nats.
    """
    if not any(map(solved, rows)):
        return 0, statistics.mean(row['best_loss'] for row in rows) / SOLVED
    spent = [row['solved_at'] or row['max_iters'] for row in rows]
    return -sum(map(solved, rows)), statistics.mean(spent) / rows[0]['eval_interval']


def choose(settings):
    """
    The names of the best of some settings {name: rows}. Where equally many runs solve the task,
    and the rest differs by less than one unit, both are chosen: their order would be noise.
    """
    found = {name: shortfall(seeded(rows, CHOOSING) or rows) for name, rows in settings.items()}
    most, least = min(found.values())
    return [name for name, (runs, rest) in found.items() if runs == most and rest - least < 1]


def seeded(rows, seeds):
    return [row for row in rows if row['seed'] in seeds]


def settings_of(rows, way, task):
    """{setting: rows} of a way and a task."""
    settings = {}
    for row in rows:
        if (way_of(row), task_of(row)) == (way, task):
            settings.setdefault(row['optimizer'], []).append(row)
    return settings


def cell_of(settings):
    """The Cell of {setting: rows}: rows of the chosen settings, with seeds that chose nothing."""
    rows = [row for name in choose(settings) for row in settings[name]]
    chose = [len(seeded(found, CHOOSING)) for found in settings.values()]
    if len(chose) < len(SETTINGS) or min(chose) < len(CHOOSING):
        return Cell(rows, 'quick')
    new = [row for row in rows if row['seed'] not in CHOOSING]
    return Cell(new) if new else Cell(rows, '*')


def cells_of(rows):
    """{way: {task: Cell}}, in the order of ATTENTIONS. Mixtures come last."""
    arms = {}
    for row in rows:
        arms.setdefault(way_of(row), set()).add(task_of(row))
    order = {name: i for i, name in enumerate(ATTENTIONS)}
    ways = sorted(arms, key=lambda way: order.get(way.partition('@')[0], len(order)))
    return {way: {task: cell_of(settings_of(rows, way, task))
                  for task in sorted(arms[way], key=list(TASKS).index)} for way in ways}


def beyond(rows):
    """The median percentage right beyond L at 8 L, as text."""
    return median(column(f'beyond@{8 * rows[0]["block_size"]}', 100))(rows)


def losses(rows):
    """Of text: the median loss at L and at 8 L, as texts."""
    L = rows[0]['block_size']
    return [median(column(f'loss@{n}'), form='.2f')(rows) for n in (L, 8 * L)]


def show(task, cell):
    """'350 / 74 (3 of 3)', of text '1.52 / 2.10 (3)', '' without a cell."""
    if cell is None:
        return ''
    rows, mark = cell
    mark = ' quick' if mark == 'quick' else mark
    if task == 'text':
        return f'{" / ".join(losses(rows))} ({len(rows)}){mark}'
    solving = count(solved)(rows)
    return f'{median(updates)(rows)} / {beyond(rows)} ({solving}){mark}'


def table(cells, tasks):
    """The header and the lines of a board, of {way: {task: Cell}}."""
    return ['way', *tasks], [[way, *(show(task, found.get(task)) for task in tasks)]
                             for way, found in cells.items() if found.keys() & tasks]


def stored():
    """The stored rows as a Markdown table, with what a step costs and what is learned."""
    header, lines = table(cells_of(read_table(STORED, missing=[])), COLUMNS[1])
    rows = {row['arm']: row for row in json.loads(COSTS.read_text(encoding='utf-8'))['rows']}
    for line in lines:
        row = rows.get(line[0])
        line += [f'{row["step ratio"][1]:.2f}',
                 row['parameters'] - rows['rope']['parameters']] if row else ['', '']
    return markdown([*header, 'step', 'parameters'], lines)


TABLES = dict(board=stored)  # for study/report.py


def sentence(way, found):
    """What the line of a way means, in words. `found` is {task: Cell}."""
    tasks = {task: cell.rows for task, cell in found.items() if task != 'text'}
    good = [task for task, rows in tasks.items() if is_solved(rows)]
    parts = {'solves': good, 'does not solve': [task for task in tasks if task not in good],
             'has 90 % right at 8 L on': [t for t in good if float(beyond(tasks[t])) >= 90]}
    claims = [f'{verb} {", ".join(names)}' for verb, names in parts.items() if names]
    return f'{way} {"; it ".join(claims)}.' if claims else f'{way} has no rows of a task to solve.'


# Training


def options_of(way, task, setting):
    """The words NAME=VALUE of a run."""
    attention, _, frequencies = way.partition('@')
    return [f'attention={attention}', f'frequencies={frequencies or "geometric"}',
            *f'{TASKS[task]} {SETTINGS[setting]} rope_base=1000'.split()]


def run(way, task, setting, seeds, path):
    """Train what has no row in the table `path`, and add it. A run that diverges has none."""
    try:
        sweep.main([
            str(path), *options_of(way, task, setting), f'seed={" ".join(map(str, seeds))}',
            '--name', f'{way},{task},{setting}', '--multiples', '1', '8', '--forget'])
    except UserError as error:
        print(f'{way} on {task} with {setting}: {error}', file=sys.stderr)


def fill(ways, path, tasks, settings, quick=False):
    """Train what the cells of these ways lack: runs that choose, then runs of what was chosen."""
    cells = [(way, task) for task in tasks for way in ways]
    guess = {cell: guess_seconds(*cell, settings, quick, path) for cell in cells}
    print(f'{len(cells)} cells: at most about {sum(guess.values()) / 60:.0f} min here', flush=True)
    started = time.perf_counter()
    for i, (way, task) in enumerate(cells):
        for setting in settings:
            run(way, task, setting, CHOOSING[:1] if quick else CHOOSING, path)
        found = settings_of(read_table(path, missing=[]), way, task)
        for setting in choose(found) if found and not quick else ():
            run(way, task, setting, REPORTED, path)
        spent = time.perf_counter() - started
        done, left = (sum(guess[cell] for cell in part) for part in (cells[:i + 1], cells[i + 1:]))
        print(f'{way} on {task}: {i + 1} of {len(cells)} cells done, about '
              f'{spent * left / max(done, 1e-9) / 60:.0f} min left', flush=True)


def guess_seconds(way, task, settings, quick, path):
    """What the runs that a cell lacks cost here, at most. Three updates are measured."""
    rows = settings_of(read_table(path, missing=[]), way, task)
    seeds = CHOOSING[:1] if quick else (*CHOOSING, *REPORTED)
    missing = sum(not seeded(rows.get(name, []), [seed]) for name in settings for seed in seeds)
    if missing == 0:
        return 0.0
    words = [f'--{word}' for word in options_of(way, task, settings[0])]
    options, given = configure(dict(vars(train)), words)
    cfg = SimpleNamespace(**options)
    process, language = this_process(cfg.device, 'float32'), make_task(cfg.task)
    model = train.start_model(cfg, given, language, None).to(process.device)
    optimizers = configure_optimizers(model, cfg)
    batch = language.sample(make_rng('cost'), cfg.batch_size, cfg.block_size)
    x, y = to_device(batch, process.device)

    def update():
        model(x, y)[1].backward()
        for optimizer in optimizers:
            optimizer.step()

    seconds = statistics.median(interleave(dict(update=update), 3, process.device)['update']) / 1e3
    # a validation only goes forward, which is a third of an update
    batches = cfg.eval_sequences / cfg.batch_size
    validations = cfg.max_iters / cfg.eval_interval * batches / 3
    return missing * seconds * (cfg.max_iters + validations)


def cost(way):
    """'1.07 times the step of rope, 64 parameters more', measured here and now."""
    attention, _, frequencies = way.partition('@')
    config = dict(vocab_size=8, rope_base=1000.0, frequencies=frequencies or 'geometric')
    rope, ours = (GPT(GPTConfig(**config, attention=name)) for name in ('rope', attention))
    x = torch.randint(8, (64, 64))
    steps = {name: lambda model=model: model(x, x)[1].backward()
             for name, model in dict(rope=rope, ours=ours).items()}
    times = interleave(steps, 20, 'cpu')
    # neighbours in time: a busy machine slows both
    ratio = statistics.median(b / a for a, b in zip(times['rope'], times['ours']))
    own, theirs = (sum(p.numel() for p in model.parameters()) for model in (ours, rope))
    return f'{ratio:.2f} times the step of rope, {own - theirs} parameters more'


def other_text(tasks, rows):
    """Whether text is among the tasks, and not that of the stored `rows`. It then says so."""
    known = {row['sha256'] for row in rows if row['sha256']}
    if 'text' not in tasks or not known:
        return False
    here = make_task('text').record()['sha256']
    if here not in known:
        python = f'{sys.version_info.major}.{sys.version_info.minor}'
        print(f'text is left out: the standard library of this Python ({python}) has SHA-256 '
              f'{here[:12]}, and the stored rows are of {min(known)[:12]}', file=sys.stderr)
    return here not in known


# The figure

NAMES = {
    'rope': 'RoPE', 'rope@partial:keep=0.25': 'RoPE on a quarter of the pairs',
    'spectral': 'Spectral-RoPE', 'bifocal': 'Bifocal', 'tapa': 'TAPA',
    'nope': 'NoPE: no positions', 'rope_random': 'RoPE at random places', 'lerope': 'LeRoPE',
    'pope': 'PoPE', 'accumulated': 'accumulated phases', 'alibi': 'ALiBi', 't5': "T5's buckets",
    'fox': 'FoX: forgetting', 'cope': 'CoPE: counts', 'learned': 'learned vectors',
    'sinusoidal': 'sinusoidal vectors', 'rope,nope': 'RoPE, NoPE: layer by layer',
    'path': 'PaTH: reflections', 'kerple': 'KERPLE', 'xpos': 'xPos'}
TITLES = {  # and what guessing has, in percent
    'lag': ('lag of 7', 14), 'bio_rotation': ('strand', 25), 'modulo': ('Modulo', 14),
    'parity': ('parity', 50), 'dyck': ('brackets', 33), 'passkey': ('passkey', 10)}
NEVER = '#C8C8C8'


def draw(plt, cells, own):
    """The board of stored cells, and below it the ways of the reader's `own` cells."""
    lines = [*cells.items(), *own.items()]
    heights = [i + 0.7 * (i >= len(cells)) for i in range(len(lines))]
    size = dict(figsize=(12, 0.36 * heights[-1] + 2.2), sharey=True, width_ratios=[6, 1.3])
    figure, (left, right) = plt.subplots(1, 2, **size)
    speed = plt.cm.ScalarMappable(plt.Normalize(0, 1000), 'viridis_r')
    nats = plt.cm.ScalarMappable(plt.Normalize(1.4, 2.4), 'magma_r')
    for y, (way, found) in zip(heights, lines):
        for x, task in enumerate(TITLES):
            if task in found:
                rows, mark = found[task]
                middle = statistics.median(map(updates, rows))
                color = NEVER if middle == math.inf else speed.to_rgba(middle)
                square(plt, left, x, y, color, f'{beyond(rows)} %', 'quick' * (mark == 'quick'))
        if 'text' in found:
            rows, mark = found['text']
            at_L, far = losses(rows)
            square(plt, right, 0, y, nats.to_rgba(float(at_L)), f'{at_L} / {far}',
                   'quick' * (mark == 'quick'))
    for axes, width in ((left, len(TITLES) - 1), (right, 0)):
        axes.set(xlim=(-0.55, width + 0.55), ylim=(heights[-1] + 0.6, -0.6))
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.xaxis.tick_top()
    left.set_xticks(range(len(TITLES)), [f'{name}\nguessing: {chance} %'
                                         for name, chance in TITLES.values()])
    right.set_xticks([0], ['text, nats a byte\nat L / at 8 L'])
    left.set_yticks(heights, [NAMES.get(way, way) for way, _ in lines])
    for label in left.get_yticklabels()[len(cells):]:
        label.set(fontweight='bold', color='#A0003C')
    if own:
        left.text(-0.5, heights[len(cells)] - 0.62, 'yours', color='#A0003C', va='center')
    left.set_title('In a square: right beyond the training length L, in strings of 8 L. '
                   'Bright is better')
    figure.colorbar(speed, ax=left, location='bottom', aspect=60, pad=0.02,
                    label='updates until solved, a median; grey: most runs never solve it')
    figure.colorbar(nats, ax=right, location='bottom', aspect=12, pad=0.02,
                    label='at L')
    return figure


def square(plt, axes, x, y, color, text, mark):
    """A square of the figure, with ink that is seen on its colour."""
    axes.add_patch(plt.Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=color, linewidth=0))
    red, green, blue = plt.matplotlib.colors.to_rgb(color)
    ink = 'white' if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else 'black'
    axes.annotate(f'{text} {mark}'.strip(), (x, y), ha='center', va='center', fontsize=9,
                  color=ink)


def digest():
    """A digest of the stored rows. The figure carries it, which tells whether it is up to date."""
    return hashlib.sha256(STORED.read_bytes()).hexdigest()


def main(arguments=None):
    """Do what the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('lab.board', __doc__)
    parser.add_argument('ways', nargs='*', help='attentions, such as alibi')
    parser.add_argument('--table', type=Path, default=Path('out/board.csv'), help='for new rows')
    parser.add_argument('--tasks', nargs='+', choices=TASKS)
    parser.add_argument('--layers', type=int, choices=COLUMNS, default=1, help='of the first tasks')
    parser.add_argument('--settings', nargs='+', default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument('--quick', action='store_true', help=f'{" and ".join(QUICK)}, one seed')
    parser.add_argument('--figure', type=Path, metavar='FILE.png', help='draw the board')
    given = parser.parse_args(arguments)
    ways = [way.removesuffix('@').removesuffix('@geometric') for way in given.ways]
    tasks = given.tasks or (QUICK if given.quick else COLUMNS[given.layers])
    known = read_table(STORED, missing=[])
    for way in ways:  # an unknown one is an error here, not after an hour
        print(f'{way}: {cost(way)}', flush=True)
    if ways:
        if other_text(tasks, known):
            tasks = [task for task in tasks if task != 'text']
        fill(ways, given.table, tasks, given.settings[:1] if given.quick else given.settings,
             given.quick)
    cells, own = cells_of(known), {}
    if given.table.resolve() != STORED.resolve():
        own = cells_of(read_table(given.table, missing=[]))
    lines = cells | {f'{way} (yours)': found for way, found in own.items()}
    for columns in COLUMNS.values():
        header, body = table(lines, columns)
        if body:
            print(markdown(header, body))
    print('*: these seeds also chose the setting. quick: nothing was chosen.')
    for way in ways:
        print(sentence(way, (own or cells).get(way, {})))
    plt = plot.pyplot() if given.figure else None
    if plt:
        plot.save(plt, draw(plt, cells, own), given.figure, dpi=130, metadata={'Rows': digest()})


if __name__ == '__main__':
    with one_line_errors():
        main()
