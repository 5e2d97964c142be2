"""The tables on crystallising: the period that was found, the accuracy before and after."""

import statistics
from collections import Counter

from lab.crystallise import find_period
from study.rows import read
from study.table import markdown

MULTIPLES = (1, 8, 16)  # of the training length
GOOD = 99  # %
STAGES = ('trained', 'crystallised', 'settled')
PERIODS = {'bio_rotation': (10, 5, 7, 13, 16), 'modulo': (7, 5, 11, 13)}  # first that of all arms
NO_PERIOD = ('lag', 'sum', 'dyck3', 'passkey', 'text')
CRYSTAL = ('crystal.pt', 'settled/best.pt')
# arm: its study, its part of a run's name, and the files of the crystal and of what settled
ARMS = {
    'Spectral': ('crystal', 'spectral', CRYSTAL),
    'Spectral, trained on instead': ('crystal', 'spectral', ('', 'longer/best.pt')),
    'Spectral, moved to P + 1':
        ('crystal', 'spectral', ('wrong/crystal.pt', 'wrong/settled/best.pt')),
    'RoPE, moved to P': ('crystal', 'rope', CRYSTAL),
    'oracle': ('crystal', 'oracle', ('', '')),
    'Spectral, one Omega': ('crystal_parts', 'shared', CRYSTAL),
    'Bifocal, spectral head moved': ('crystal_parts', 'bifocal', CRYSTAL),
    'Bifocal, all heads moved':
        ('crystal_parts', 'bifocal', ('all/crystal.pt', 'all/settled/best.pt')),
    'Spectral, no log_scale': ('crystal_plain', 'plain', CRYSTAL),
    'Spectral, 1 % of targets random': ('crystal_noise', 'noise1', CRYSTAL),
    'Spectral, 5 % of targets random': ('crystal_noise', 'noise5', CRYSTAL),
    'Spectral, 10 % of targets random': ('crystal_noise', 'noise10', CRYSTAL),
}
NOT_LOOKED_FOR = ('Spectral, trained on instead', 'Spectral, moved to P + 1', 'oracle')


def lines():
    """[(task, P, arm, rows by stage)] of every line; P is None for a task without a period."""
    found = []
    for task, (first, *others) in PERIODS.items():
        for arm, (study, part, files) in ARMS.items():
            rows = stages(study, f'{task}-{part}-{first}', files)
            if rows['trained']:
                found.append((task, first, arm, rows))
        for P in others:
            rows = stages('crystal_periods', f'{task}-spectral-{P}', CRYSTAL)
            found.append((task, P, 'Spectral', rows))
    for task in NO_PERIOD:
        rows = stages('crystal_none', f'{task}-spectral', ('', ''))
        found.append((task, None, 'Spectral', rows))
    return found


def stages(study, name, files):
    """{stage: rows} of the runs of a name; 'held' behind a stage: the same with held shares."""
    overrides = dict(trained='', crystallised=f'checkpoint={files[0]}',
                     settled=f'checkpoint={files[1]}')
    rows = [row for row in read('crystal', study) if row['name'] == name]
    found = {}
    for stage, override in overrides.items():
        found[stage] = [row for row in rows if row['override'] == override]
        held = f'{override} held_shares=True'.strip()
        found[f'{stage}, held'] = [row for row in rows if row['override'] == held]
    return found


def accuracies(rows, multiple):
    """The accuracies (%) of rows at a multiple of the training length."""
    return [100 * row[f'accuracy@{multiple * row["block_size"]}'] for row in rows]


def periods(arm, P, rows):
    """'10: 9, none: 1': how often each period was found; '' if none was looked for."""
    if arm in NOT_LOOKED_FOR:
        return ''
    found = [row['found'] for row in rows['crystallised' if P else 'trained']]
    if arm == 'RoPE, moved to P':  # whatever its spectrum says
        found = [find_period(spectrum(row)) for row in rows['trained']]
    elif P:
        found += [None] * (len(rows['trained']) - len(found))  # no period, no crystal
    return ', '.join(f'{period or "none"}: {n}' for period, n in Counter(found).most_common())


def spectrum(row):
    """{q: (loss in nats, None)} of a row, as lab.crystallise has it."""
    losses = row['spectrum'].split()[1:]
    return {q: (float(loss), None) for q, loss in enumerate(losses, start=2)}


def stage_cell(rows, n, multiples=MULTIPLES):
    """'99.8 (64.1), 31.0 (27.7), ...', median and worst seed by length; of how many, if not n."""
    if not rows:
        return ''
    values = [accuracies(rows, multiple) for multiple in multiples]
    fewer = f' [{len(rows)} of {n} runs]' if len(rows) < n else ''
    return ', '.join(f'{statistics.median(v):.1f} ({min(v):.1f})' for v in values) + fewer


def good(rows, names):
    """'10, 8 of 10': how many runs are GOOD at both long lengths, in the last stage they have."""
    last = {row['seed']: row for stage in names for row in rows[stage]}.values()
    counts = [sum(value >= GOOD for value in accuracies(last, multiple))
              for multiple in MULTIPLES[1:]]
    return f'{counts[0]}, {counts[1]} of {len(last)}'


def crystal():
    """Every arm: the period found, the accuracy as trained, moved alone, and moved and settled."""
    table = []
    for task, P, arm, rows in lines():
        n = len(rows['trained'])
        cells = [''] * 5
        if P:
            cells = [*(stage_cell(rows[stage], n) for stage in STAGES),
                     good(rows, STAGES[:2]) if rows['crystallised'] else '', good(rows, STAGES)]
        table.append([f'{task}, P = {P}' if P else task, arm, n, periods(arm, P, rows), *cells])
    at = ', '.join(f'{multiple}x' for multiple in MULTIPLES)
    return markdown(['task', 'arm', 'runs', 'period found: runs',
                     f'accuracy (%) at {at}, median (worst): as trained', 'moved', 'settled',
                     f'{GOOD} % or more at 8x, 16x: moved alone', 'in the end'], table)


def crystal_held():
    """modulo beyond the training length: as it is, and with the first token's share held."""
    table = []
    for task, P, arm, rows in lines():
        last = 'trained, held' if arm == 'oracle' else 'settled, held'
        seeds = {row['seed'] for row in rows['trained, held']}
        rows = {stage: [row for row in group if row['seed'] in seeds]
                for stage, group in rows.items()}
        if rows[last]:
            n = len(rows['trained'])
            shown = ['trained', 'trained, held', 'settled', 'settled, held']
            cells = [stage_cell(rows[stage], n, MULTIPLES[1:]) for stage in shown]
            table.append([f'{task}, P = {P}', arm, n, *cells,
                          good(rows, ['trained, held', 'settled, held'])])
    return markdown(['task', 'arm', 'runs', 'accuracy (%) at 8x, 16x: as trained',
                     'trained, shares held', 'settled', 'settled, shares held',
                     f'{GOOD} % or more at 8x, 16x, held'], table)


TABLES = {table.__name__: table for table in (crystal, crystal_held)}
