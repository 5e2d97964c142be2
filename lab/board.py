"""
The board: every way to know a position, on tasks that ask for different things, by one recipe.

    python -m lab.board alibi                    # trains what has no row yet, and shows its line
    python -m lab.board rope@partial:keep=0.25   # a way with an option `frequencies`
    python -m lab.board alibi --quick            # two tasks, one setting, one seed
    python -m lab.board                          # all that has rows

A way is an attention of model.py, of the lab or your own. The recipe is that of study/README.md,
with the base 1000. A cell is of three seeds at the better of two settings, by lab.table.merit:
the median of the updates until solved, and the percentage that is right beyond the training
length L in strings of 8 L, after the whole training. On text it is nats a byte, at L and at 8 L.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch

from configurator import one_line_errors
from lab import sweep
from lab.bench import interleave
from lab.options import make_parser
from lab.runs import read_table
from lab.table import column, is_solved, markdown, median, merit, updates
from model import ATTENTIONS, GPT, GPTConfig, UserError

STORED = Path(__file__).parent.parent / 'study' / 'results' / 'board.csv'
COSTS = Path(__file__).parent / 'results' / 'board.json'  # of lab.bench
TASKS = {  # the cheapest first: {name: options}
    'lag': 'task=lag n_layer=1 max_iters=1000',
    'bio_rotation': 'task=bio_rotation n_layer=1 max_iters=1000',
    'modulo': 'task=modulo n_layer=1 max_iters=1000',
    'parity': 'task=sum:modulus=2,start=1 n_layer=1 max_iters=1000',
    'dyck': 'task=dyck n_layer=2 max_iters=500',
    'passkey': 'task=passkey n_layer=2 max_iters=1000',
    'text': 'task=text n_layer=4 n_head=4 n_embd=128 block_size=256 batch_size=8 max_iters=500 '
            'eval_interval=100 eval_sequences=64'}
SETTINGS = dict(muon='optimizer=muon muon_lr=0.01', adamw='optimizer=adamw learning_rate=0.004')
QUICK = ('bio_rotation', 'dyck')
SEEDS = (0, 1, 2)


def train(ways, path, tasks, settings, seeds):
    """Train what has no row in the table `path`, and add it. A run that diverges has none."""
    jobs = [(way, task, setting) for task in tasks for way in ways for setting in settings]
    started = time.perf_counter()
    for i, (way, task, setting) in enumerate(jobs):
        attention, _, frequencies = way.partition('@')
        words = f'{TASKS[task]} {SETTINGS[setting]} rope_base=1000'.split()
        try:
            sweep.main([
                str(path), f'attention={attention}', f'frequencies={frequencies or "geometric"}',
                *words, f'seed={" ".join(map(str, seeds))}', '--name', f'{way},{task},{setting}',
                '--multiples', '1', '8', '--forget'])
        except UserError as error:
            print(f'{way} on {task} with {setting}: {error}', file=sys.stderr)
        minutes = (time.perf_counter() - started) / (i + 1) * (len(jobs) - i - 1) / 60
        print(f'{i + 1} of {len(jobs)} done, {minutes:.0f} min left', flush=True)


def way_of(row):
    """'rope', or with an option `frequencies` 'rope@partial:keep=0.25'."""
    return f'{row["attention"]}@{row["frequencies"]}'.removesuffix('@geometric')


def cells_of(rows):
    """{way: {task: the rows of its better setting}}, in the order of ATTENTIONS."""
    names = {options.split()[0].removeprefix('task='): name for name, options in TASKS.items()}
    arms = {}
    for row in rows:
        settings = arms.setdefault(way_of(row), {}).setdefault(names[row['task']], {})
        settings.setdefault(row['optimizer'], []).append(row)
    order = {name: i for i, name in enumerate(ATTENTIONS)}  # mixtures come last
    return {way: {task: max(settings.values(), key=merit) for task, settings in arms[way].items()}
            for way in sorted(arms, key=lambda way: order.get(way.partition('@')[0], len(order)))}


def beyond(rows):
    """The median percentage right beyond L at 8 L, as text."""
    return median(column(f'beyond@{8 * rows[0]["block_size"]}', 100))(rows)


def cell(task, rows):
    """'350 / 74', of text '1.52 / 2.10', '' without rows."""
    if not rows:
        return ''
    if task == 'text':
        L = rows[0]['block_size']
        return ' / '.join(median(column(f'loss@{n}'), form='.2f')(rows) for n in (L, 8 * L))
    return f'{median(updates)(rows)} / {beyond(rows)}'


def table(rows):
    """The header and the lines of the board."""
    return ['way', *TASKS], [[way, *(cell(task, tasks.get(task)) for task in TASKS)]
                             for way, tasks in cells_of(rows).items()]


def stored():
    """The rows of the study as a Markdown table, with what a step costs and what is learned."""
    header, lines = table(read_table(STORED, missing=[]))
    rows = {row['arm']: row for row in json.loads(COSTS.read_text(encoding='utf-8'))['rows']}
    for line in lines:
        row = rows.get(line[0])
        line += [f'{row["step ratio"][1]:.2f}',
                 row['parameters'] - rows['rope']['parameters']] if row else ['', '']
    return markdown([*header, 'step', 'parameters'], lines)


TABLES = dict(board=stored)  # for study/report.py


def sentence(way, tasks):
    """What the line of a way means, in words. `tasks` are {task: rows}."""
    if not tasks:
        return f'{way} has no rows.'
    good = [task for task, rows in tasks.items() if is_solved(rows)]
    bad = [task for task in tasks if task not in [*good, 'text']]
    far = [task for task in good if float(beyond(tasks[task])) >= 90]
    good, bad, far = (', '.join(some) or 'nothing' for some in (good, bad, far))
    return f'{way} solves {good}. It does not solve {bad}. At 8 L it has 90 % right on {far}.'


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


def main(arguments=None):
    """Do what the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('lab.board', __doc__)
    parser.add_argument('ways', nargs='*', help='attentions, such as alibi')
    parser.add_argument('--table', type=Path, default=Path('out/board.csv'), help='for new rows')
    parser.add_argument('--tasks', nargs='+', default=list(TASKS), choices=TASKS)
    parser.add_argument('--settings', nargs='+', default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument('--quick', action='store_true', help=f'{" and ".join(QUICK)}, one seed')
    given = parser.parse_args(arguments)
    ways = [way.removesuffix('@').removesuffix('@geometric') for way in given.ways]
    for way in ways:  # an unknown one is an error here, not after an hour
        print(f'{way}: {cost(way)}', flush=True)
    if given.quick:
        train(ways, given.table, QUICK, ['muon'], SEEDS[:1])
    elif ways:
        train(ways, given.table, given.tasks, given.settings, SEEDS)
    rows = read_table(given.table, missing=[])
    own = {(way_of(row), row['task']) for row in rows}  # these replace the stored cells
    rows += [row for row in read_table(STORED, missing=[]) if (way_of(row), row['task']) not in own]
    print(markdown(*table(rows)))
    for way in ways:
        print(sentence(way, cells_of(rows).get(way, {})))


if __name__ == '__main__':
    with one_line_errors():
        main()
