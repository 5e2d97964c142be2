"""
Size: do more layers or a larger width do what learned frequencies do?

Trained with AdamW at three rates, on three seeds, until solved; the corner of one layer and width
64 is that of the map. `two` are whole runs with two layers, on other seeds. study/bifocal.md has
the commands.
"""

import math

import train
from lab.analysis import nearest_harmonic
from lab.table import (best_loss, count, crosstab, groups_of, listed, median, merit, quartiles,
                       solved, spread, table_of_arms, updates)
from model import GPTConfig, geometric
from study import read
from study.capture import placement
from study.claims import ATTENTIONS, BUDGETS, PLAIN, TASKS, TUNING_SEEDS, beyond, right
from tasks import make_task

RATES = (0.002, 0.004, 0.008)
BASED = {name: ATTENTIONS[name] for name in ('rope', 'spectral', 'bifocal')}
BASES = dict(bio_rotation=1695, modulo=1000)  # of RoPE beside 10000: it fits with one layer
FITS = 'RoPE, base 1695 or 1000'
ARMS = (PLAIN, FITS, 'Spectral', 'Bifocal', 'NoPE', 'TAPA')  # of the search


def arm_of(row):
    """'RoPE, base 1695', or the name of an arm that is trained from base 10000 alone."""
    name = ATTENTIONS[row['attention'].removesuffix('_fused')]
    return f'{name}, base {row["rope_base"]:g}' if name == 'RoPE' else name


def omega_rate(row):
    """What a label says of a rate of Ω, A and Φ that is not the usual one, else ''."""
    rate = row['positional_lr']
    return '' if rate == train.positional_lr else f", Ω's rate at {rate:g}"


def size_of(row):
    """'2 × 64', or with what is not usual '2 × 64, L = 1024, Ω's rate at 0.001 from base 1000'."""
    words = [f'{row["n_layer"]} × {row["n_embd"]}']
    if row['n_embd'] != 32 * row['n_head']:
        words.append(f'{row["n_head"]} head' + 's' * (row['n_head'] > 1))
    if row['block_size'] != 64:
        words.append(f'L = {row["block_size"]}')
    size = ', '.join(words) + omega_rate(row)
    if omega_rate(row) and row['rope_base'] != train.rope_base:
        size += f' from base {row["rope_base"]:g}'
    return size


def is_usual(row):
    """Whether it is of a tuning seed, until solved, with the usual rate of Omega."""
    return row['stop_loss'] and row['seed'] in TUNING_SEEDS and not omega_rate(row)


def rows():
    """The rows of the search, with the columns task, size (layers × width) and arm, of ARMS."""
    corner = [row for row in read('map')
              if row['optimizer'] == 'adamw' and row['learning_rate'] in RATES
              and row['rope_base'] in (10000, BASES.get(row['task']))
              and (row['attention'] == 'rope' or row['rope_base'] == 10000)
              and row['max_iters'] == BUDGETS[row['task']]]
    heads = [row for row in read('heads') if row['optimizer'] == 'adamw'
             and row['learning_rate'] in RATES and row['rope_base'] == 10000
             and not stopped(row) and is_usual(row)]
    found = [row for row in corner + heads + read('sizes')
             if row['task'] in BASES and row['stop_loss']]
    found.sort(key=lambda row: (row['task'], row['block_size'], row['n_layer'], row['n_embd']))
    found = [dict(row, size=size_of(row), arm=arm_of(row)) for row in found]
    return [row if row['arm'] in ARMS else row | dict(arm=FITS) for row in found]


def at_best_rate(rows):
    """The rows of the rate that does best by the rule of the choice."""
    return max(groups_of(rows, ['learning_rate']).values(), key=merit)


def cell(rows):
    """'100 (9 of 9)': median updates at the best rate, and how many runs of all rates solve it."""
    middle = median(updates)(at_best_rate(rows)).replace('-', 'never')
    return f'{middle} ({count(solved)(rows)})'


def sizes():
    """A line for each task and size, a column for each arm; the base that fits is in BASES."""
    found = [row | {'task': TASKS[row['task']], 'layers × width': row['size']} for row in rows()]
    return crosstab(found, ['task', 'layers × width'], 'arm', ARMS, cell)


def two():
    """The whole runs, with two layers or wider, and how far they read."""
    return whole_runs(read('sizes'), 'size')


def four_heads():
    """The whole runs of one layer with four heads, and with two, by the optimizer."""
    rows = [row | {'heads, optimizer': f'{row["n_head"]}, {row["optimizer"]}'}
            for row in read('heads')]
    rows.sort(key=lambda row: (row['optimizer'], -row['n_head']))
    return whole_runs(rows, 'heads, optimizer')


def whole_runs(rows, kind):
    """A line for each claim, kind and arm of the rows that went on when they had solved it."""
    found = [dict(row, claim=TASKS[row['task']], size=size_of(row),
                  arm=arm_of(row) + omega_rate(row))
             for row in rows if row['task'] in TASKS and not row['stop_loss']]
    against = {f'against {PLAIN}, in loss': best_loss, f'against {PLAIN}, at 8L': beyond(8)}
    return table_of_arms(found, ['claim', kind, 'arm'], {
        'solved': count(solved), 'updates until solved': quartiles(updates, '.0f'),
        'loss (nats)': quartiles(best_loss, '.2g'), 'right (%)': median(right, form='.1f'),
        'beyond L at 2L (%)': quartiles(beyond(2), '.0f'),
        '4L (%)': quartiles(beyond(4), '.0f'), '8L (%)': quartiles(beyond(8), '.0f')},
        dict.fromkeys(against, lambda key: (*key[:2], PLAIN)), against)


def stopped(row):
    """', pair 1 stopped' of a row whose pair 1 is placed at the frequency 0, else ''."""
    if row['frequencies'] == 'geometric':
        return ''
    return f', pair {placement(row)["pair"]:g} stopped'


def strand_rows(name):
    """
    The rows of Bio-Rotation with one layer of width 64 in the map and in NAME.csv, with the columns
    arm, base and heads. AdamW's rates are those that all of RoPE's bases have in the map.
    """
    return [dict(row, arm=ATTENTIONS[row['attention']], base=row['rope_base'],
                 heads=row['n_head']) for row in read('map') + read(name)
            if row['task'].startswith('bio_rotation') and row['attention'] in BASED
            and row['optimizer'] == 'adamw' and row['learning_rate'] in (0.004, 0.008, 0.016)
            and row['max_iters'] == BUDGETS['bio_rotation']]


def head_sizes():
    """Bio-Rotation with one layer of width 64, by base and by the number of heads."""
    rows = [row for row in strand_rows('heads') if row['attention'] != 'bifocal'
            and row['task'] == 'bio_rotation' and is_usual(row)]
    rows = [row | {'arm': row['arm'] + stopped(row)} for row in rows]
    rows.sort(key=lambda row: (row['arm'], row['heads']))
    bases = sorted({row['base'] for row in rows})
    return crosstab(rows, ['arm', 'heads'], 'base', bases, cell)


def circles_away(base, head_size, T, period):
    """
    How many circles, over T tokens, the frequency of RoPE that starts nearest to a harmonic of the
    period is away from it: |theta_i - 2 pi k / period| T / 2 pi.
    """
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=head_size, rope_base=base)
    found = [nearest_harmonic(theta, period) for theta in geometric(config).tolist()]
    nearest = min(abs(one['error']) for one in found if one['harmonic'] > 0)
    return nearest * T / (2 * math.pi)


def start_rows():
    """
    The rows of Bio-Rotation with one layer of width 64, by base, with the columns of `strand_rows`
    and L, period and circles.
    """
    found = [dict(row, L=row['block_size'], period=make_task(row['task']).period)
             for row in strand_rows('bases')]
    for row in found:
        head_size = row['n_embd'] // row['heads']
        row['circles'] = circles_away(row['rope_base'], head_size, row['L'], row['period'])
    return sorted(found, key=lambda row: (
        row['heads'], row['L'] != 64, row['period'] != 10, row['circles']))


def starts():
    """How many runs solve it from a base whose nearest frequency is so far from a harmonic."""
    rows = [row | {'circles away': f'{row["circles"]:.2f}'} for row in start_rows()
            if not omega_rate(row)]
    return crosstab(rows, ['heads', 'L', 'period', 'base', 'circles away'], 'arm', BASED.values(),
                    count(solved))


def period_rows():
    """Those rows by period: two heads, L = 64, from the base 10000."""
    found = [row for row in start_rows() if row['attention'] in ('rope', 'spectral')
             and (row['rope_base'], row['heads'], row['L'], row['positional_lr'])
             == (10000, 2, 64, 0.01)]
    both = {row['period'] for row in found if row['attention'] == 'rope'}
    return sorted([row for row in found if row['period'] in both], key=lambda row: row['period'])


def four_head_periods():
    """Tuning rows of four heads at AdamW 0.004, from the base 10000, by period."""
    found = [dict(row, period=make_task(row['task']).period) for row in strand_rows('heads')
             if (row['heads'], row['rope_base'], row['learning_rate']) == (4, 10000, 0.004)
             and row['positional_lr'] in (0.01, 0.001) and row['seed'] in TUNING_SEEDS
             and not stopped(row) and row['stop_loss']]
    return sorted(found, key=lambda row: row['period'])


def two_layer_periods():
    """Tuning rows of two layers at AdamW 0.004, from the base 10000, by period."""
    kind = dict(n_layer=2, n_embd=64, n_head=2, block_size=64, rope_base=10000, learning_rate=0.004)
    return [dict(row, period=make_task(row['task']).period,
                 arm=f'{ATTENTIONS[row["attention"]]}, two layers') for row in read('sizes')
            if row['task'].startswith('bio_rotation') and is_usual(row)
            and all(row[name] == value for name, value in kind.items())]


def strand_periods():
    """
    From the base 10000, by the period of the strand: also where a pair is stopped, placed at the
    frequency 0. Cells as in the table of sizes.
    """
    rows = [row | {'circles away': f'{row["circles"]:.2f}'} for row in period_rows()]
    away = {row['period']: row['circles away'] for row in rows}
    rows += [row | {'circles away': away[row['period']],
                    'arm': f'{row["arm"]}, four heads{omega_rate(row)}'}
             for row in four_head_periods()]
    rows += [row | {'circles away': away[row['period']]} for row in two_layer_periods()]
    for row in read('stopped'):
        period = make_task(row['task']).period
        arm = ATTENTIONS[row['attention']] + stopped(row)
        rows.append(row | {'period': period, 'circles away': away[period], 'arm': arm})
    arms = ['RoPE', 'Spectral', 'RoPE, two layers', 'Spectral, two layers', 'RoPE, four heads',
            'Spectral, four heads', "Spectral, four heads, Ω's rate at 0.001",
            'RoPE, pair 0 stopped', 'Spectral, pair 0 stopped', 'Spectral, pair 5 stopped']
    return crosstab(rows, ['period', 'circles away'], 'arm', arms, cell)


def start_rates():
    """Spectral from far bases, by the rate of Omega, A and Phi."""
    found = [row for row in start_rows() if row['attention'] == 'spectral'
             and (row['L'], row['period'], row['learning_rate']) == (64, 10, 0.008)
             and row['base'] >= 100000]
    rates = sorted({row['positional_lr'] for row in found})
    return crosstab(found, ['base'], 'positional_lr', rates, listed(updates, '.0f'))


def text_sizes():
    """Text by size: the loss at each rate of Muon on a tuning seed, and on other seeds."""
    size, searched, plain = 'layers × width', 'rates on the seed 23', 'RoPE, base 100'
    found = [row | {size: f'{size_of(row)}, B = {row["batch_size"]}', 'arm': arm_of(row),
                    'rate': row['muon_lr']} for row in read('sizes') if row['task'] == 'text']
    found.sort(key=lambda row: (row['n_layer'], row['n_embd'], row['block_size'],
                                row['batch_size'], row['attention'], row['rope_base'], row['rate']))
    for rows in groups_of(found, [size, 'arm']).values():
        tried = [f'{row["rate"]:g}: {best_loss(row):.3f}' for row in rows
                 if row['seed'] in TUNING_SEEDS]
        for row in rows:
            row[searched] = ', '.join(tried)
    new = [row for row in found if row['seed'] not in TUNING_SEEDS]
    losses = {(row[size], row['seed']): best_loss(row) for row in new if row['arm'] == plain}

    def less(row):
        return losses[row[size], row['seed']] - best_loss(row)

    return table_of_arms(new, [size, 'arm', searched, 'rate'], {
        'loss on other seeds': spread(best_loss, 3),
        f'less than {plain}, by seed': lambda rows: (
            '' if rows[0]['arm'] == plain else listed(less, '.3f')(rows)),
        'on test strings of L': spread(lambda row: row[f'loss@{row["block_size"]}'], 2),
        'of 4L': spread(lambda row: row[f'loss@{4 * row["block_size"]}'], 2)})


TABLES = {table.__name__: table for table in (
    sizes, two, four_heads, head_sizes, starts, strand_periods, start_rates, text_sizes)}
