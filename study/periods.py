"""The tables on periods: other ones than the claims', other starts, and crystallised runs."""

import statistics
from collections import Counter

from lab.table import (SOLVED, column, count, groups_of, listed, markdown, solved, table,
                       updates)
from study.claims import ATTENTIONS
from study.rows import read

MULTIPLES = (1, 8, 16)  # of the training length
GOOD = 99  # %
CRYSTAL = ('crystal.pt', 'settled/best.pt')
# arm: its study, its part of a run's name, and the files of the crystal and of what settled
CRYSTALS = {
    'Spectral': ('crystal', 'spectral', CRYSTAL),
    'Spectral, trained on instead': ('crystal', 'spectral', ('', 'longer/best.pt')),
    'Spectral, moved to P + 1':
        ('crystal', 'spectral', ('wrong/crystal.pt', 'wrong/settled/best.pt')),
    'RoPE, moved to P': ('crystal', 'rope', CRYSTAL),
    'RoPE with exact harmonics': ('crystal', 'oracle', ('', '')),
    'Bifocal, all heads moved':
        ('crystal_parts', 'bifocal', ('all/crystal.pt', 'all/settled/best.pt')),
    'Spectral, no log_scale': ('crystal_plain', 'plain', CRYSTAL),
    'Spectral, 10 % of targets random': ('crystal_noise', 'noise10', CRYSTAL),
}
TOLD = ('Spectral, trained on instead', 'Spectral, moved to P + 1', 'RoPE, moved to P',
        'RoPE with exact harmonics')  # no period was looked for
OTHERS = {'bio_rotation': (10, 5, 7, 13, 16), 'modulo': (7, 5, 11, 13)}  # first that of all arms
NO_PERIOD = ('lag', 'sum', 'dyck3', 'passkey', 'text')


def periods():
    """Other periods: the updates until each seed is solved, by arm and base."""
    rows = [dict(row, arm=f'{ATTENTIONS[row["attention"]]}, {start_of(row)}')
            for row in read('periods')]
    rows.sort(key=lambda row: row['rope_base'])
    rows.sort(key=lambda row: list(ATTENTIONS).index(row['attention']))
    arms = list(groups_of(rows, ['arm']))
    groups = groups_of(rows, ['task', 'arm'])
    tasks = sorted({row['task'] for row in rows},
                   key=lambda task: (task.partition(':')[0], int(task.partition('=')[2] or 0)))
    lines = [[task, *(listed(updates, '.0f')(groups.get((task, arm), ())) for arm, in arms)]
             for task in tasks]
    return markdown(['task', *(arm for arm, in arms)], lines)


def start_of(row):
    """'base 48', or the name of another grid."""
    grid = row.get('frequencies') or row['rope']
    return f'base {row["rope_base"]:g}' if grid == 'geometric' else f'{grid} grid'


def stages(study, name, files):
    """{stage: rows} of the runs of a name: as trained, moved to the period, and settled."""
    overrides = dict(trained='', moved=f'checkpoint={files[0]}',
                     settled=f'checkpoint={files[1]}')
    return {stage: measured(study, name, override) for stage, override in overrides.items()}


def measured(study, name, override):
    """The rows of the runs of a name, measured with an override."""
    return [row for row in read('crystal', study)
            if (row['name'], row['override']) == (name, override)]


def accuracies(rows, multiple):
    """The accuracies (%) of rows at a multiple of the training length."""
    return [100 * row[f'accuracy@{multiple * row["block_size"]}'] for row in rows]


def found_periods(rows):
    """'10: 9, none: 1': how often each period was found."""
    n_none = len(rows['trained']) - len(rows['moved'])  # no period, no crystal
    found = [row['found'] for row in rows['moved']] + [None] * n_none
    return ', '.join(f'{period or "none"}: {n}' for period, n in Counter(found).most_common())


def stage_cell(rows):
    """'99.8 (64.1), 31.0 (27.7), ...': median and worst seed by length."""
    values = [accuracies(rows, multiple) for multiple in MULTIPLES if rows]
    return ', '.join(f'{statistics.median(v):.1f} ({min(v):.1f})' for v in values)


def good(rows, names):
    """'8 of 10': how many runs are GOOD at the greatest length, in the last stage they have."""
    last = {row['seed']: row for stage in names for row in rows[stage]}.values()
    return f'{sum(value >= GOOD for value in accuracies(last, MULTIPLES[-1]))} of {len(last)}'


def crystal():
    """Every arm: the period found, the accuracy as trained, moved alone, and moved and settled."""
    places = []
    for task, (first, *others) in OTHERS.items():
        places += [(task, first, arm, study, f'{task}-{part}-{first}', files)
                   for arm, (study, part, files) in CRYSTALS.items()]
        places += [(task, P, 'Spectral', 'crystal_periods', f'{task}-spectral-{P}', CRYSTAL)
                   for P in others]
    lines = []
    for task, P, arm, *place in places:
        rows = stages(*place)
        if rows['trained']:
            moved = good(rows, ['trained', 'moved']) if rows['moved'] else ''
            lines.append([f'{task}, P = {P}', arm, len(rows['trained']),
                          '' if arm in TOLD else found_periods(rows),
                          *map(stage_cell, rows.values()), moved, good(rows, list(rows))])
    for task in NO_PERIOD:
        found = [row['found'] for row in stages('crystal_none', f'{task}-spectral',
                                                ('', ''))['trained']]
        words = f'none: {found.count(None)}'
        lines.append([task, 'Spectral', len(found), words, *[''] * 5])
    at = ', '.join(f'{multiple}x' for multiple in MULTIPLES)
    return markdown(['task', 'arm', 'runs', 'period found: runs',
                     f'accuracy (%) at {at}, median (worst): as trained', 'moved', 'settled',
                     f'{GOOD} % or more at 16x: moved alone', 'in the end'], lines)


def crystal_held():
    """Modulo after settling: as it is, and with the first token's share of attention held."""
    lines = []
    for P in OTHERS['modulo']:
        study = 'crystal' if P == OTHERS['modulo'][0] else 'crystal_periods'
        settled = f'checkpoint={CRYSTAL[1]}'
        cells = [stage_cell(measured(study, f'modulo-spectral-{P}', override)) for override in
                 ('', 'held_shares=True', settled, f'{settled} held_shares=True')]
        lines.append([f'P = {P}', *cells])
    return markdown(['modulo, Spectral', 'as trained', 'shares held', 'settled',
                     'settled, shares held'], lines)


def mechanism():
    """An older trial: which pairs lock, and Bifocal with the heads of one kind closed."""
    def closed(kind):
        return listed(column(f'headline@64 without {kind}', 100), '.0f')

    rows = [dict(row, arm=ATTENTIONS[row['attention']]) for row in read('mechanism')]
    return table(rows, ['task', 'arm'], {
        'solved': count(lambda row: row['best_loss'] <= SOLVED),
        'lock-in (update)': listed(column('lock_in')), 'pairs locked': listed(column('locked')),
        'right, no RoPE heads (%)': closed('geometric'),
        'right, no spectral heads (%)': closed('spectral')})


TABLES = {table.__name__: table for table in (periods, crystal, crystal_held, mechanism)}
