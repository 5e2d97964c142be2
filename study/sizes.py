"""
Size: do more layers or a larger width do what learned frequencies do?

Trained with AdamW at three rates, on three seeds, until solved; the corner of one layer and width
64 is that of the map. `two` are whole runs with two layers, on other seeds. study/bifocal.md has
the commands.
"""

from lab.table import (best_loss, count, crosstab, groups_of, markdown, median, merit,
                       quartiles, solved, table_of_arms, updates)
from study import read
from study.claims import ATTENTIONS, BUDGETS, PLAIN, TASKS, beyond, right

RATES = (0.002, 0.004, 0.008)
BASES = dict(bio_rotation=1695, modulo=1000)  # of RoPE beside 10000: it fits with one layer


def arm_of(row):
    """'RoPE, base 1695', or the name of an arm that is trained from base 10000 alone."""
    name = ATTENTIONS[row['attention']]
    return f'{name}, base {row["rope_base"]:g}' if name == 'RoPE' else name


def size_of(row):
    return f'{row["n_layer"]} × {row["n_embd"]}'


def rows():
    """The rows of the search, with the columns task, size (layers × width) and arm."""
    corner = [row for row in read('map')
              if row['optimizer'] == 'adamw' and row['learning_rate'] in RATES
              and row['rope_base'] in (10000, BASES.get(row['task']))
              and (row['attention'] == 'rope' or row['rope_base'] == 10000)
              and row['max_iters'] == BUDGETS[row['task']]]
    found = [row for row in corner + read('sizes')
             if row['task'] in BASES and row['stop_loss'] and row['block_size'] == 64]
    return [dict(row, size=size_of(row), arm=arm_of(row)) for row in found]


def at_best_rate(rows):
    """The rows of the rate that does best by the rule of the choice."""
    return max(groups_of(rows, ['learning_rate']).values(), key=merit)


def cell(rows):
    """'100 (9 of 9)': median updates at the best rate, and how many runs of all rates solve it."""
    if not rows:
        return ''
    middle = median(updates)(at_best_rate(rows)).replace('-', 'never')
    return f'{middle} ({count(solved)(rows)})'


def sizes():
    """A line for each task and size, a column for each arm; the base that fits is in BASES."""
    lines = []
    for (task, size), group in groups_of(rows(), ['task', 'size']).items():
        arms = groups_of(group, ['arm'])
        names = [PLAIN, f'RoPE, base {BASES[task]}', 'Spectral', 'Bifocal', 'NoPE', 'TAPA']
        lines.append([TASKS[task], size, *(cell(arms.get((name,), ())) for name in names)])
    header = [PLAIN, 'RoPE, base that fits', 'Spectral', 'Bifocal', 'NoPE', 'TAPA']
    return markdown(['task', 'layers × width', *header], lines)


def two():
    """The whole runs with two layers, and how far they read."""
    found = [dict(row, claim=TASKS[row['task']], arm=arm_of(row)) for row in read('sizes')
             if not row['stop_loss']]
    return table_of_arms(found, ['claim', 'arm'], {
        'solved': count(solved), 'updates until solved': quartiles(updates, '.0f'),
        'loss (nats)': quartiles(best_loss, '.2g'), 'right (%)': median(right, form='.1f'),
        'beyond L at 2L (%)': quartiles(beyond(2), '.0f'),
        '4L (%)': quartiles(beyond(4), '.0f'), '8L (%)': quartiles(beyond(8), '.0f')},
        {f'against {PLAIN}, at 8L': lambda key: (key[0], PLAIN)},
        {f'against {PLAIN}, at 8L': beyond(8)})


def head_sizes():
    """Bio-Rotation with one layer of width 64, by base and by the number of heads."""
    rates = 0.004, 0.008, 0.016  # those of all of RoPE's bases in the map
    found = [row for row in read('map') + read('heads')
             if row['task'] == 'bio_rotation' and row['attention'] in ('rope', 'spectral')
             and row['optimizer'] == 'adamw' and row['learning_rate'] in rates
             and row['max_iters'] == BUDGETS['bio_rotation']]
    rows = [dict(row, arm=ATTENTIONS[row['attention']], base=f'{row["rope_base"]:g}',
                 heads=row['n_head']) for row in found]
    rows.sort(key=lambda row: (row['arm'], row['heads']))
    bases = sorted({row['base'] for row in rows}, key=float)
    return crosstab(rows, ['arm', 'heads'], 'base', bases, cell)


TABLES = {table.__name__: table for table in (sizes, two, head_sizes)}
