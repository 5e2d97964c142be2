"""The tables on periods: other ones than the claims', other starts, and crystallised runs."""

import itertools
import statistics
from collections import Counter

from lab.crystallise import find_period, is_sure
from lab.table import crosstab, groups_of, listed, markdown, updates
from study import read
from study.claims import ATTENTIONS

MULTIPLES = (1, 8, 16)  # of the training length
GOOD = 99  # %
CRYSTAL = ('crystal.pt', 'settled/best.pt')
# arm: its part of a run's name, and the files of the crystal and of what settled
CRYSTALS = {
    'Spectral': ('spectral', CRYSTAL),
    'Spectral, trained on instead': ('spectral', ('', 'longer/best.pt')),
    'Spectral, moved to P + 1': ('spectral', ('wrong/crystal.pt', 'wrong/settled/best.pt')),
    'RoPE, moved to P': ('rope', CRYSTAL),
    'RoPE with exact harmonics': ('oracle', ('', '')),
}
# what was learned: the names of its runs, around the part of an arm, and its period
LEARNED = {
    'bio_rotation, P = 10': ('bio_rotation-{}-10', 10),
    'bio_rotation, P = 13': ('bio_rotation-{}-13', 13),
    'bio_rotation, P = 13, AdamW': ('adamw-{}-13', 13),
    'bio_rotation, P = 10, two layers': ('two-{}-10', 10),
    'bio_rotation, P = 10, two layers, AdamW': ('two-adamw-{}-10', 10),
    'modulo, P = 7': ('modulo-{}-7', 7),
}


def periods():
    """Every period: the updates until each seed is solved, by arm and by the start of Omega."""
    rows = read('periods')
    for row in read('map'):  # it has the tasks with their own periods
        period = dict(bio_rotation=':period=10', modulo=':modulus=7').get(row['task'])
        same = (row['optimizer'], row['muon_lr'], row['max_iters']) == ('muon', 0.01, 1000)
        if period and same and row['attention'] in ('rope', 'spectral'):
            rows.append(dict(row, task=row['task'] + period))
    for row in rows:
        row['arm'] = f'{ATTENTIONS[row["attention"]]}, {start_of(row)}'
    rows.sort(key=lambda row: (row['attention'], row['frequencies'], row['rope_base']))
    arms = [arm for arm, in groups_of(rows, ['arm'])]
    rows.sort(key=lambda row: (row['task'].partition(':')[0], int(row['task'].partition('=')[2])))
    return crosstab(rows, ['task'], 'arm', arms, listed(updates, '.0f'))


def start_of(row):
    """'base 48', or the name of another grid."""
    grid = row['frequencies']
    return f'base {row["rope_base"]:g}' if grid == 'geometric' else f'{grid} grid'


def stages(name, files):
    """{stage: rows} of the runs of a name: as trained, moved to the period, and settled."""
    overrides = dict(trained='', moved=f'checkpoint={files[0]}',
                     settled=f'checkpoint={files[1]}')
    return {stage: measured(name, override) for stage, override in overrides.items()}


def measured(name, override):
    """The rows of the runs of a name, measured with an override."""
    return [row for row in read('crystal') if (row['name'], row['override']) == (name, override)]


def accuracies(rows, multiple):
    """The accuracies (%) of rows at a multiple of the training length."""
    return [100 * row[f'accuracy@{multiple * row["block_size"]}'] for row in rows]


def counted(words):
    """'10: 9, none: 1': how often each word stands there."""
    return ', '.join(f'{word}: {n}' for word, n in Counter(words).most_common())


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
    lines = []
    for (learned, (name, _)), (arm, (part, files)) in itertools.product(
            LEARNED.items(), CRYSTALS.items()):
        rows = stages(name.format(part), files)
        if not rows['settled' if files[-1] else 'trained']:
            continue  # not run
        moved = good(rows, ['trained', 'moved']) if rows['moved'] else ''
        lines.append([learned, arm, len(rows['trained']),
                      counted(row['found'] or 'none' for row in rows['trained'])
                      if arm == 'Spectral' else '',
                      *map(stage_cell, rows.values()), moved, good(rows, list(rows))])
    at = ', '.join(f'{multiple}x' for multiple in MULTIPLES)
    return markdown(['task', 'arm', 'runs', 'period found: runs',
                     f'accuracy (%) at {at}, median (worst): as trained', 'moved', 'settled',
                     f'{GOOD} % or more at 16x: moved alone', 'in the end'], lines)


def crystal_rule():
    """What the rule says of the stored spectra, and how often it is false, or misses a period."""
    groups = []  # what the frequencies are, the period that they have learned, rows
    for learned, (name, P) in LEARNED.items():
        groups += [(f'{learned}, learned', P, measured(name.format('spectral'), '')),
                   (f'{learned}, fixed (RoPE)', None, measured(name.format('rope'), ''))]
    groups += [(f'{task}, learned', None, rows)
               for (task,), rows in groups_of(read('no_period'), ['task']).items()]
    lines = []
    for name, P, rows in groups:
        if not rows:
            continue  # not run
        said = [decide(row) for row in rows]
        sure = [period for period, is_sure in said if is_sure]
        false = sum(P is None or period % P != 0 for period in sure)
        found = counted(f'{"" if is_sure or not period else "perhaps "}{period or "none"}'
                        for period, is_sure in said)
        missed = len(rows) - len(sure) + false if P else '-'
        lines.append([name, len(rows), found, false, missed])
    return markdown(['frequencies', 'runs', 'said: runs', 'false periods', 'missed'], lines)


def decide(row):
    """The period that `lab.crystallise` finds in the spectrum of a row, and whether it is sure."""
    _, *losses = map(float, row['spectrum'].split())
    spectrum = {q: (loss, None) for q, loss in enumerate(losses, start=2)}
    period = find_period(spectrum)
    return period, bool(period) and is_sure(spectrum, period, row['chance'])


TABLES = {table.__name__: table for table in (periods, crystal, crystal_rule)}
