"""
The map of settings, the choice of one for each arm, and the verdicts on other seeds.

    python -m study.claims map | bash         # trains what study/results/map.csv lacks
    python -m study.claims verdicts | bash    # the same of verdict.csv, at the settings chosen
    python -m study.claims setting modulo 'RoPE tuned'    # what was chosen, as options

A setting is a base (where the attention has one), an optimiser and its rate. The rule of the
choice: most tuning seeds solved, then fewest updates; where nothing is solved, the least loss.
"""

import itertools

import train
from lab.options import command
from configurator import configure, one_line_errors
from lab.options import make_parser
from lab.table import (SOLVED, best_loss, compare_all, count, groups_of, is_solved, listed,
                       markdown, median, merit, quartiles, solved, table, updates)
from model import UserError
from study import read

TASKS = {'bio_rotation': 'Bio-Rotation', 'dyck': 'Dyck-3', 'modulo': 'Modulo'}
CLAIMS = {'bio_rotation': "Bio-Rotation: a loss of 0.0008 against RoPE's 1.07",
          'dyck': 'Dyck-3: 99 %+ right, where RoPE stays at a loss of 0.43',
          'modulo': 'Modulo: near-perfect, where RoPE has significant errors'}
ATTENTIONS = {'rope': 'RoPE', 'spectral': 'Spectral', 'bifocal': 'Bifocal', 'nope': 'NoPE',
              'tapa': 'TAPA'}
WITH_BASE = ('rope', 'spectral', 'bifocal')
BASES = (100, 1000, 10000)
RATES = dict(adamw=[0.001, 0.002, 0.004, 0.008, 0.016], muon=[0.0025, 0.005, 0.01, 0.02, 0.04])
# where a chosen rate was the last of its grid, the grid grew for all arms of the task
MORE_RATES = dict(bio_rotation=dict(adamw=[0.032]))
PAPER = 'RoPE as the paper has it'  # base 10000 and AdamW, at its best rate
TUNED = 'RoPE tuned'
ARMS = {PAPER: 'rope', TUNED: 'rope', 'Spectral': 'spectral', 'Bifocal': 'bifocal',
        'NoPE': 'nope', 'TAPA': 'tapa'}
BUDGETS = dict(bio_rotation=1000, dyck=500, modulo=1000)  # updates
LAYERS = dict(bio_rotation=1, dyck=2, modulo=1)
MULTIPLES = (2, 4, 8)  # of the training length L
TUNING_SEEDS = (23, 24, 25)  # of the map
SEEDS = range(40, 60)  # of the verdicts; they chose nothing


# ----------------------------------------------------------------------------------------------
# The map


def rates(task):
    """The (optimiser, rate) that the map tries on a task."""
    return [(optimizer, rate) for optimizer, values in RATES.items()
            for rate in values + MORE_RATES.get(task, {}).get(optimizer, [])]


def setting(row):
    """(base or None, optimiser, rate) of a row."""
    base = None if row['attention'] in ('nope', 'tapa') else row['rope_base']
    rate = row['muon_lr'] if row['optimizer'] == 'muon' else row['learning_rate']
    return base, row['optimizer'], rate


def spelled(found):
    """'base 1000, Muon 0.01' of a setting."""
    base, optimizer, rate = found
    rate = f'{dict(muon="Muon", adamw="AdamW")[optimizer]} {rate:g}'
    return rate if base is None else f'base {base:g}, {rate}'


def the_map(task, attention):
    """{setting: rows} of the map's cells, one row for each tuning seed."""
    cells = {}
    for row in read('map'):
        if (row['task'], row['attention'], row['max_iters']) == (task, attention, BUDGETS[task]):
            cells.setdefault(setting(row), {})[row['seed']] = row  # by seed: none counts twice
    return {key: [rows[seed] for seed in sorted(rows)] for key, rows in cells.items()}


def settings():
    """In how many of its settings each attention solves each task."""
    lines = []
    for attention, name in ATTENTIONS.items():
        cells = [f'{sum(map(is_solved, found.values()))} of {len(found)}'
                 for found in (the_map(task, attention) for task in TASKS)]
        lines.append([name, *cells])
    return markdown(['arm', *TASKS.values()], lines)


def choose(task, arm):
    """The setting of an arm by the rule, and its rows on the tuning seeds; None, [] if none ran."""
    found = the_map(task, ARMS[arm])
    if arm == PAPER:
        found = {key: rows for key, rows in found.items() if key[:2] == (10000, 'adamw')}
    if not found:
        return None, []
    return max(found.items(), key=lambda item: merit(item[1]))


def chosen():
    """What was chosen, with its updates on the tuning seeds."""
    lines = []
    for arm in ARMS:
        cells = []
        for task in TASKS:
            key, rows = choose(task, arm)
            cells.append(f'{spelled(key)}: {listed(updates, ".0f")(rows)}' if rows else '')
        lines.append([arm, *cells])
    return markdown(['arm', *TASKS.values()], lines)


def map_commands(seeds):
    """The commands that run the map, each a list of words."""
    for task, optimizer in itertools.product(TASKS, ('muon', 'adamw')):
        rate = dict(muon='muon_lr', adamw='learning_rate')[optimizer]
        words = ['map', '--forget', f'stop_loss={SOLVED}', f'task={task}',
                 f'n_layer={LAYERS[task]}', f'max_iters={BUDGETS[task]}',
                 f'optimizer={optimizer}', f'seed={seeds}', rate + '=' + ' '.join(
                     f'{value:g}' for kind, value in rates(task) if kind == optimizer)]
        bases = ' '.join(map(str, BASES))
        yield [*words, f'rope_base={bases}', f'attention={" ".join(WITH_BASE)}']
        yield [*words, 'attention=nope']
        yield [*words, 'attention=tapa', 'tapa_scale=1', 'tapa_alpha=0.5']


def words_of(task, arm, share=1):
    """The options of an arm's chosen setting, its rate times `share`, as words name=value."""
    _, rows = choose(task, arm)
    for row in rows:
        row[dict(muon='muon_lr', adamw='learning_rate')[row['optimizer']]] *= share
    defaults, _ = configure(dict(vars(train)), [])
    shown = {'task', 'attention', 'rope_base', 'optimizer', 'learning_rate', 'muon_lr', 'max_iters'}
    others = {'seed', 'stop_loss', 'eval_interval'}
    return [f'{name}={row[name]}' for row in rows[:1] for name, value in defaults.items()
            if name in row and name not in others and (name in shown or row[name] != value)]


def verdict_commands(seeds):
    """The commands that run each arm's chosen setting on the seeds of the verdicts."""
    for task, arm in itertools.product(TASKS, ARMS):
        words = words_of(task, arm)
        if words:
            yield ['verdict', *words, 'eval_interval=10', f'seed={seeds}', '--multiples',
                   *map(str, (1, *MULTIPLES))]


def main(arguments=None):
    """Print the commands that the command line `arguments` (default: sys.argv) ask for."""
    parser = make_parser('study.claims', __doc__)
    parser.add_argument('which', choices=['map', 'verdicts', 'setting'])
    parser.add_argument('of', nargs='*', help='setting: a task and an arm')
    parser.add_argument('--share', type=float, default=1, help='setting: of the rate; default: 1')
    parser.add_argument('--seeds', help="'23 24'; default: all that the study has")
    given = parser.parse_args(arguments)
    if given.which == 'setting':
        if len(given.of) != 2 or given.of[0] not in TASKS or given.of[1] not in ARMS:
            raise UserError(f'setting: must be followed by one of {", ".join(TASKS)}, and by one '
                            f'of {", ".join(ARMS)}')
        return print(*words_of(*given.of, given.share))
    commands = map_commands(given.seeds or ' '.join(map(str, TUNING_SEEDS)))
    if given.which == 'verdicts':
        commands = verdict_commands(given.seeds or ' '.join(map(str, SEEDS)))
    for name, *words in commands:
        print(command('python', '-m', 'lab.sweep', f'study/results/{name}.csv', *words))


# ----------------------------------------------------------------------------------------------
# The verdicts


def arms_of(task):
    """The arms that differ: the tuned RoPE may be the one of the paper."""
    same = choose(task, PAPER)[0] == choose(task, TUNED)[0]
    return [arm for arm in ARMS if not (same and arm == TUNED)]


def runs():
    """The rows on the seeds of the verdicts, with the columns claim and arm."""
    found = []
    for task, claim in TASKS.items():
        for arm in arms_of(task):
            key, _ = choose(task, arm)
            found += [dict(row, arm=arm, claim=claim) for row in read('verdict')
                      if (row['task'], row['attention']) == (task, ARMS[arm])
                      and setting(row) == key]
    return found


def beyond(multiple):
    """
    The measure: the accuracy (%) at the positions beyond L in strings of a multiple of it. None
    where it was not measured.
    """
    def measure(row):
        value = row.get(f'beyond@{multiple * row["block_size"]}')
        return value if value is None else 100 * value
    return measure


# whom an arm is compared with, each pair once
AGAINST = {
    f'against {PAPER}': lambda key: (key[0], PAPER),
    f'against {TUNED}': lambda key: (key[0], TUNED) if key[1] != PAPER else None,
    'against Spectral': lambda key: (key[0], 'Spectral') if key[1] == 'Bifocal' else None}


def claims():
    """Every arm on the seeds of the verdicts."""
    return table(runs(), ['claim', 'arm'], {
        'solved': count(solved), 'updates until solved': quartiles(updates, '.0f'),
        'loss (nats)': quartiles(best_loss, '.2g'),
        'beyond L at 2L, 4L, 8L (%)': median(*map(beyond, MULTIPLES))}, AGAINST)


def verdict(found, tuned):
    """
    The word for a claim, from an arm's comparisons with the paper's RoPE and, if it is another
    arm, with the tuned one: is it sooner than all of them, than the first alone, or not? Where
    most rows of the tuned RoPE solve the task as well, what is reproduced is speed.
    """
    if None in found:
        return 'not run'
    sooner = [test['verdict'] == 'sooner' for test in found]
    if all(sooner):
        return 'reproduced as speed' if is_solved(tuned) else 'reproduced'
    return f'only against {PAPER}' if sooner[0] else 'not reproduced'


def speed(rows):
    """The cell '350 (17 of 20)': median updates until solved, and how many seeds are."""
    middle = median(updates)(rows).replace('-', 'never')
    return f'{middle} ({count(solved)(rows)})'


def verdicts():
    """Each claim in one line: the verdict by the tests of `claims`, and the speed of every arm."""
    groups = groups_of(runs(), ['claim', 'arm'])
    tests = compare_all(groups, AGAINST)
    lines = []
    for task, sentence in CLAIMS.items():
        arms = {arm: groups.get((TASKS[task], arm)) for arm in ARMS}
        ropes = [arm for arm in arms_of(task) if ARMS[arm] == 'rope']  # one or two
        arms[TUNED] = arms[ropes[-1]]
        found = {arm: verdict([tests.get(((TASKS[task], arm), f'against {rope}'))
                               for rope in ropes], arms[TUNED])
                 for arm in ('Spectral', 'Bifocal')}
        words = '; '.join(f'{arm}: {word}' for arm, word in found.items())
        if found['Spectral'] == found['Bifocal']:
            words = found['Spectral']
        lines.append([sentence, words, *(speed(rows) if rows else '' for rows in arms.values())])
    return markdown(['the paper, as summaries report it', 'verdict', *ARMS], lines)


TABLES = {table.__name__: table for table in (settings, chosen, claims, verdicts)}


if __name__ == '__main__':
    with one_line_errors():
        main()
