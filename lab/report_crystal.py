"""The tables and figures on crystallising: the period found, and the accuracy before, after and settled."""

import statistics
from collections import Counter, namedtuple

from lab import trial
from lab.compare import print_table
from lab.crystallise import FLOOR, find_period, plot_spectrum
from lab.results import held, study

MULTIPLES = (1, 8, 16)  # of the training length
GOOD = 99  # %
STAGES = ('trained', 'crystallised', 'settled')
HELD = {'trained': 'trained, shares held', 'settled': 'settled, shares held'}  # on modulo, see analysis.held_shares
COLORS = dict(zip((*STAGES, HELD['settled']), ('#999999', '#E69F00', '#009E73', '#0072B2')))
PERIODS = {'bio_rotation': (10, 5, 7, 13, 16), 'modulo': (7, 5, 11, 13)}  # the first is that of all arms
NO_PERIOD = ('lag', 'sum', 'dyck3', 'passkey', 'text')
CRYSTAL = ('crystal.pt', 'settled/best.pt')
# (arm, study, its part of the run's name, files of the crystal and of what settled, '' where there is none; is the
# period looked for?)
ARMS = (
    ('Spectral', 'crystal', 'spectral', CRYSTAL, True),
    ('Spectral, trained on instead', 'crystal', 'spectral', ('', 'longer/best.pt'), False),
    ('Spectral, moved to P + 1', 'crystal', 'spectral', ('wrong/crystal.pt', 'wrong/settled/best.pt'), False),
    ('RoPE, moved to P', 'crystal', 'rope', CRYSTAL, False),
    ('oracle', 'crystal', 'oracle', ('', ''), False),
    ('Spectral, one Omega', 'crystal_parts', 'shared', CRYSTAL, True),
    ('Bifocal, spectral head moved', 'crystal_parts', 'bifocal', CRYSTAL, True),
    ('Bifocal, all heads moved', 'crystal_parts', 'bifocal', ('all/crystal.pt', 'all/settled/best.pt'), True),
    ('Spectral, 1 % of targets random', 'crystal_noise', 'noise1', CRYSTAL, True),
    ('Spectral, 5 % of targets random', 'crystal_noise', 'noise5', CRYSTAL, True),
    ('Spectral, 10 % of targets random', 'crystal_noise', 'noise10', CRYSTAL, True),
)
# a line of the table: {stage: rows by seed}, the periods that were found in its runs (None: none was, () if none was
# looked for), and the number of runs that the study has
Line = namedtuple('Line', 'task P arm stages found planned')


# ----------------------------------------------------------------------------------------------------------------------
# Rows


def make_line(task, P, arm, part, name, files, looked_for=True):
    """The line of the runs NAME of a study."""
    overrides = dict(zip(STAGES, ('', *(f'checkpoint={file}' for file in files))))
    overrides |= {name: held(overrides[stage]) for stage, name in HELD.items()}
    rows = [row for row in study(part) if row['name'] == name]
    stages = {stage: [row for row in rows if row['override'] == override] for stage, override in overrides.items()}
    found = [row['found'] for row in stages['crystallised' if P else 'trained'] if looked_for]
    if name.split('-')[1] == 'rope':  # it is moved to P all the same
        spectra = (spectrum(row)[1] for row in stages['trained'])
        found = [find_period({q: (loss, None) for q, loss in losses.items()}) for losses in spectra]
    if P and looked_for:
        found += [None] * (len(stages['trained']) - len(found))  # no period, no crystal
    planned = sum(folder.rpartition('/')[2].rpartition('-')[0] == name for folder, _ in trial.commands(part))
    return Line(task, P, arm, stages, found, planned)


def lines():
    """Every line: the arms at one period, Spectral at others, and the tasks without a period."""
    for task, (first, *others) in PERIODS.items():
        for arm, part, name, *rest in ARMS:
            yield make_line(task, first, arm, part, f'{task}-{name}-{first}', *rest)
        for P in others:
            yield make_line(task, P, 'Spectral', 'crystal_periods', f'{task}-spectral-{P}', CRYSTAL)
    for task in NO_PERIOD:
        yield make_line(task, None, 'Spectral', 'crystal_none', f'{task}-spectral', ('', ''))


def accuracies(rows, multiple):
    """The accuracies (%) of rows at a multiple of the training length."""
    return [100 * row[f'accuracy@{multiple * row["block_size"]}'] for row in rows]


def good(rows, multiple):
    """How many rows are right in GOOD % or more at a multiple of the training length."""
    return sum(value >= GOOD for value in accuracies(rows, multiple))


def exact_and_held(line):
    """The rows of a line with held shares and exact frequencies, which the oracle has from the start."""
    return line.stages[HELD['trained' if line.arm == 'oracle' else 'settled']]


# ----------------------------------------------------------------------------------------------------------------------
# The tables


def show_runs(line):
    """'7 of 10', and in words that there is none."""
    n = len(line.stages['trained'])
    return f'{n} of {line.planned}' if n else f'still to be run: {line.planned}'


def show_periods(line):
    """'10: 9, none: 1': how often each period was found; '' if none was looked for."""
    return ', '.join(f'{period or "none"}: {n}' for period, n in Counter(line.found).most_common())


def show_stage(line, stage, multiples=MULTIPLES):
    """'99.8 (64.1), 31.0 (27.7), ...', the median and the worst seed at each length; and of how many, if not all."""
    rows, n = line.stages[stage], len(line.stages['trained'])
    if not rows or line.P is None:
        return ''
    values = (accuracies(rows, multiple) for multiple in multiples)
    fewer = f' [{len(rows)} of {n} runs]' if len(rows) < n else ''
    return ', '.join(f'{statistics.median(v):.1f} ({min(v):.1f})' for v in values) + fewer


def show_good(line, stages=STAGES):
    """'10, 8 of 10': how many of all runs are GOOD at the two long lengths after the last of the stages they have."""
    if line.P is None or not line.stages['trained']:
        return ''
    last = {row['seed']: row for stage in stages for row in line.stages[stage]}  # a later stage takes the place
    return ', '.join(f'{good(last.values(), multiple)}' for multiple in MULTIPLES[1:]) + f' of {len(last)}'


def crystal():
    """Every arm: the period that was found, and the accuracy as trained, crystallised and settled."""
    every = list(lines())
    rows = [[f'{line.task}, P = {line.P}' if line.P else line.task, line.arm, show_runs(line), show_periods(line),
             *(show_stage(line, stage) for stage in STAGES), show_good(line)] for line in every]
    found = [period for line in every if line.P is None for period in line.found]
    planned = sum(line.planned for line in every if line.P is None)
    alarms = f'false alarms: {len(found) - found.count(None)}' if found else ''
    rows.append(['all without a period', 'Spectral', f'{len(found)} of {planned}', alarms, '', '', '', ''])
    at = ', '.join(f'{multiple}x' for multiple in MULTIPLES)
    print_table(['task', 'arm', 'runs', 'period found: runs', f'accuracy (%) at {at}, median (worst): as trained',
                 'crystallised', 'settled', f'{GOOD} % or more at 8x, 16x in the end'], rows)


def crystal_held():
    """`modulo` beyond the training length as it is, and with the first token's share of attention held."""
    rows = []
    for line in lines():
        if not exact_and_held(line):
            continue
        seeds = {row['seed'] for row in line.stages[HELD['trained']]}
        line = line._replace(stages={stage: [row for row in of_stage if row['seed'] in seeds]  # the same runs in each
                                     for stage, of_stage in line.stages.items()})
        rows.append([f'{line.task}, P = {line.P}', line.arm, show_runs(line),
                     *(show_stage(line, stage, MULTIPLES[1:]) for pair in HELD.items() for stage in pair),
                     show_good(line, HELD.values())])
    print_table(['task', 'arm', 'runs', 'accuracy (%) at 8x, 16x, median (worst): as trained', HELD['trained'],
                 'settled', HELD['settled'], f'{GOOD} % or more at 8x, 16x in the end, shares held'], rows)


def spectrum(row):
    """The loss of a row as trained, and {q: loss} of its spectrum, at the training length, in nats."""
    trained, *losses = row['curves']['spectrum']
    return trained, dict(enumerate(losses, start=2))


def crystal_spectrum():
    """How far the multiples of the true period stand apart from all other q: losses at the training length, in nats."""
    table, other = [], [arm for arm, *_, files, _ in ARMS if files != CRYSTAL]
    for line in lines():
        rows = [row for row in line.stages['trained'] if 'spectrum' in row['curves']]
        if line.P is None or line.arm in other:
            continue
        cells = [''] * 4
        if rows:
            trained, spectra = zip(*map(spectrum, rows))
            highest = [max(loss for q, loss in losses.items() if q % line.P == 0) for losses in spectra]
            lowest = [min(loss for q, loss in losses.items() if q % line.P) for losses in spectra]
            factors = [low / max(high, FLOOR) for low, high in zip(lowest, highest)]
            cells = [f'{statistics.median(values):.2g}' for values in (trained, highest, lowest)]
            cells.append(f'{statistics.median(factors):.3g} ({min(factors):.2g})')
        table.append([f'{line.task}, P = {line.P}', line.arm, show_runs(line), *cells])
    print_table(['task', 'arm', 'runs', 'loss as trained (nats), median', 'largest at a multiple of P',
                 'least at another q', 'least / largest: median (worst)'], table)


# ----------------------------------------------------------------------------------------------------------------------
# The figures


def say_missing(axes):
    """An empty panel says why it is empty."""
    axes.text(0.5, 0.5, 'still to be run', ha='center', va='center', transform=axes.transAxes)


def draw_crystal(plt):
    """Every seed a dot: the accuracy at 8 and 16 times the training length, by period and stage, of Spectral."""
    figure, panels = plt.subplots(len(MULTIPLES) - 1, len(PERIODS), figsize=(11, 7), sharey=True)
    for column, task in zip(panels.T, PERIODS):
        spectral = sorted((line for line in lines() if (line.task, line.arm) == (task, 'Spectral')),
                          key=lambda line: line.P)
        for axes, multiple in zip(column, MULTIPLES[1:]):
            for place, line in enumerate(spectral):
                for shift, (stage, color) in zip((-0.3, -0.1, 0.1, 0.3), COLORS.items()):
                    values = accuracies(line.stages[stage], multiple)
                    x = [place + shift + 0.012 * (i - len(values) / 2) for i in range(len(values))]
                    axes.plot(x, values, 'o', color=color, markersize=5, alpha=0.7)
            axes.set_xticks(range(len(spectral)),
                            [f'{line.P}\n{len(line.stages["trained"])} of {line.planned}' for line in spectral])
            axes.set(title=f'{task} at {multiple} times the training length', ylim=(-3, 103),
                     xlim=(-0.5, len(spectral) - 0.5))
            axes.grid(visible=False, axis='x')
            if not any(line.stages['trained'] for line in spectral):
                say_missing(axes)
        column[-1].set_xlabel('period of the task (tokens); runs that there are')
    for axes in panels[:, 0]:
        axes.set_ylabel('right answers (%)')
    handles = [plt.Line2D([], [], marker='o', linestyle='', color=color, label=stage)
               for stage, color in COLORS.items()]
    figure.legend(handles=handles, loc='outside upper center', ncols=4)
    return figure


def draw_crystal_spectrum(plt):
    """The loss against q of the first run on either task: the multiples of the period are its dips."""
    figure, panels = plt.subplots(1, len(PERIODS), figsize=(11, 4.5))
    for axes, task in zip(panels, PERIODS):
        rows = next(line for line in lines() if line.task == task).stages['trained']
        row = min((row for row in rows if 'spectrum' in row['curves']), key=lambda row: row['seed'], default=None)
        if row is None:
            axes.set_title(f'{task}, P = {PERIODS[task][0]}')
            say_missing(axes)
            continue
        trained, losses = spectrum(row)
        plot_spectrum(axes, losses, row['found'], trained)
        axes.set_title(f'{task}, seed {row["seed"]}: ' + (f'period {row["found"]}' if row['found'] else 'no period'))
    longest = max((axes.get_legend_handles_labels() for axes in panels), key=lambda legend: len(legend[0]))
    figure.legend(*longest, loc='outside lower center', ncols=2)
    return figure


TABLES = {'crystal': crystal, 'crystal_held': crystal_held, 'crystal_spectrum': crystal_spectrum}
DRAWINGS = {'crystal': draw_crystal, 'crystal_spectrum': draw_crystal_spectrum}
