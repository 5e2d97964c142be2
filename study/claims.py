"""
The map of settings, the choice of one for each arm, and the verdicts on other seeds.

    python -m study.claims map | bash         # trains what study/results/map.csv lacks
    python -m study.claims verdicts | bash    # the same of verdict.csv, at the settings chosen
    python -m study.claims setting modulo 'RoPE tuned'    # what was chosen, as options

Each line that it prints is a command of its own: `| xargs -d '\n' -P 2 -I{} bash -c '{}'` runs two
side by side. A setting is a base (where the attention has one), an optimizer and its rate.
"""

import itertools
import math
import statistics

import train
from configurator import configure, one_line_errors
from lab.options import command, make_parser
from lab.table import (SOLVED, best_loss, beyond, by_seed, column, count, groups_of, holm, interval,
                       is_solved, listed, markdown, median, merit, quartiles, signed_rank, solved,
                       table_of_arms, updates)
from model import UserError
from study import read

TASKS = {'bio_rotation': 'Bio-Rotation', 'dyck': 'Dyck-3', 'modulo': 'Modulo'}
CLAIMS = {'bio_rotation': "Bio-Rotation: a loss of 0.0008 against RoPE's 1.07",
          'dyck': 'Dyck-3: 99 %+ right, where RoPE stays at a loss of 0.43',
          'modulo': 'Modulo: near-perfect, where RoPE has significant errors'}
ATTENTIONS = {'rope': 'RoPE', 'spectral': 'Spectral', 'bifocal': 'Bifocal', 'nope': 'NoPE',
              'tapa': 'TAPA'}
BASES = dict.fromkeys(('rope', 'spectral', 'bifocal'),
                      (30, 100, 300, 1000, 1695, 3000, 10000, 100000, 500000))
RATES = dict(adamw=[0.001, 0.002, 0.004, 0.008, 0.016], muon=[0.0025, 0.005, 0.01, 0.02, 0.04])
# where a chosen rate was the last of its grid, the grid grew for all arms of the task
MORE_RATES = dict(bio_rotation=dict(adamw=[0.032]))
OPTIMIZERS = dict(adamw='AdamW', muon='Muon', either='the better one')
PLAIN, TUNED = 'RoPE, base 10000', 'RoPE tuned'
ARMS = {PLAIN: 'rope', TUNED: 'rope', 'Spectral': 'spectral', 'Bifocal': 'bifocal',
        'NoPE': 'nope', 'TAPA': 'tapa'}
LEARNED = ('Spectral', 'Bifocal')  # the arms of the claims
COMPARED = (PLAIN, TUNED, *LEARNED)  # with either optimizer
BUDGETS = dict(bio_rotation=1000, dyck=500, modulo=1000)  # updates
LAYERS = dict(bio_rotation=1, dyck=2, modulo=1)
MULTIPLES = (2, 4, 8)  # of the training length L
TUNING_SEEDS = (23, 24, 25)  # of the map
SEEDS = range(40, 60)  # of the verdicts; they chose nothing


# ----------------------------------------------------------------------------------------------
# The map


def rates(task):
    """The (optimizer, rate) that the map tries on a task."""
    return [(optimizer, rate) for optimizer, values in RATES.items()
            for rate in values + MORE_RATES.get(task, {}).get(optimizer, [])]


def setting(row):
    """(base or None, optimizer, rate) of a row."""
    base = row['rope_base'] if row['attention'] in BASES else None
    rate = row['muon_lr'] if row['optimizer'] == 'muon' else row['learning_rate']
    return base, row['optimizer'], rate


def spelled(found):
    """'base 1000, Muon 0.01' of a setting."""
    base, optimizer, rate = found
    rate = f'{OPTIMIZERS[optimizer]} {rate:g}'
    return rate if base is None else f'base {base:g}, {rate}'


def the_map(task, attention, optimizer='either'):
    """{setting: rows} of the map's cells, one row for each tuning seed."""
    cells = {}
    for row in read('map'):
        of = row['task'], row['attention'], row['max_iters']
        if of == (task, attention, BUDGETS[task]) and optimizer in ('either', row['optimizer']):
            cells.setdefault(setting(row), {})[row['seed']] = row  # by seed: none counts twice
    return {key: [rows[seed] for seed in sorted(rows)] for key, rows in cells.items()}


def settings():
    """In how many of its settings each attention solves each task."""
    lines = []
    for attention, name in ATTENTIONS.items():
        cells = [f'{sum(map(is_solved, found.values()))} of {len(found)}'
                 for task in TASKS for optimizer in ('adamw', 'muon')
                 for found in [the_map(task, attention, optimizer)]]
        lines.append([name, *cells])
    header = [f'{task}, {OPTIMIZERS[optimizer]}'
              for task in TASKS.values() for optimizer in ('adamw', 'muon')]
    return markdown(['arm', *header], lines)


def choose(task, arm, optimizer='either'):
    """
    The setting of an arm by the rule, and its rows on the tuning seeds; None, [] if none ran. Of
    settings that do alike, the base nearest to 10000 is chosen, then the middle one of the rates.
    """
    found = the_map(task, ARMS[arm], optimizer)
    if arm == PLAIN:
        found = {key: rows for key, rows in found.items() if key[0] == 10000}
    if not found:
        return None, []

    def preference(key):
        return merit(found[key]), -abs(math.log((key[0] or 10000) / 10000))

    best = max(map(preference, found))
    alike = sorted((key for key in found if preference(key) == best), key=lambda key: key[2])
    key = alike[len(alike) // 2]
    return key, found[key]


def chosen():
    """What was chosen with each optimizer, with its updates on the tuning seeds."""
    lines = []
    for optimizer, arm in itertools.product(('adamw', 'muon'), ARMS):
        cells = []
        for task in TASKS:
            key, rows = choose(task, arm, optimizer)
            cells.append(f'{spelled(key)}: {listed(updates, ".0f")(rows)}' if rows else '')
        lines.append([arm, *cells])
    return markdown(['arm', *TASKS.values()], lines)


def best_of(values, k):
    """The mean of the largest of k of these values, drawn without putting back."""
    ordered = sorted(values)
    n = len(ordered)
    return sum(value * math.comb(i, k - 1) for i, value in enumerate(ordered)) / math.comb(n, k)


def search(rows_of_settings, k):
    """
    The share (%) of the tuning seeds that the best of k settings solves, drawn from those of an arm
    (Dodge et al., arXiv 1909.03004, whose draws put back). None if there are fewer settings.
    """
    if k > len(rows_of_settings):
        return None
    return best_of([100 * statistics.mean(map(solved, rows)) for rows in rows_of_settings], k)


DRAWN = (1, 2, 4, 8, 16)


def searches():
    """What the best of k settings solves, by arm and task."""
    lines = []
    for task, attention in itertools.product(TASKS, BASES):
        cells = list(the_map(task, attention).values())
        found = [search(cells, k) for k in DRAWN]
        lines.append([TASKS[task], ATTENTIONS[attention], len(cells),
                      *('' if share is None else f'{share:.0f}' for share in found)])
    return markdown(['task', 'arm', 'settings', *(f'best of {k} (%)' for k in DRAWN)], lines)


def map_commands():
    """The commands that run the map, each a list of words."""
    for task, optimizer, seed in itertools.product(TASKS, ('muon', 'adamw'), TUNING_SEEDS):
        rate = dict(muon='muon_lr', adamw='learning_rate')[optimizer]
        values = ' '.join(f'{value:g}' for kind, value in rates(task) if kind == optimizer)
        words = ['map', '--forget', f'stop_loss={SOLVED}', f'task={task}',
                 f'n_layer={LAYERS[task]}', f'max_iters={BUDGETS[task]}',
                 f'optimizer={optimizer}', f'seed={seed}', f'{rate}={values}']
        for attention, bases in BASES.items():
            bases = ' '.join(map(str, bases))
            yield [*words, f'rope_base={bases}', f'attention={attention}']
        yield [*words, 'attention=nope']
        yield [*words, 'attention=tapa', 'tapa_scale=1', 'tapa_alpha=0.5']


def words_of(task, arm, optimizer='either'):
    """The options of an arm's chosen setting, as words name=value."""
    _, rows = choose(task, arm, optimizer)
    defaults, _ = configure(dict(vars(train)), [])
    shown = {'task', 'attention', 'rope_base', 'optimizer', 'learning_rate', 'muon_lr', 'max_iters'}
    others = {'seed', 'stop_loss', 'eval_interval'}
    return [f'{name}={row[name]}' for row in rows[:1] for name, value in defaults.items()
            if row.get(name) is not None  # of an option that is younger than the row
            and name not in others and (name in shown or row[name] != value)]


def verdict_commands():
    """The commands that run each arm's chosen settings on the seeds of the verdicts, five each."""
    chosen = [words_of(task, arm, optimizer)
              for optimizer, task, arm in itertools.product(OPTIMIZERS, TASKS, ARMS)
              if optimizer == 'either' or arm in COMPARED]
    for words in dict.fromkeys(map(tuple, filter(None, chosen))):  # each once
        for i in range(0, len(SEEDS), 5):
            five = ' '.join(map(str, SEEDS[i:i + 5]))
            yield ['verdict', *words, 'eval_interval=10', f'seed={five}',
                   '--multiples', *map(str, (1, *MULTIPLES))]


def main(arguments=None):
    """Print the commands that the command line `arguments` (default: sys.argv) ask for."""
    parser = make_parser('study.claims', __doc__)
    parser.add_argument('which', choices=['map', 'verdicts', 'setting'])
    parser.add_argument('of', nargs='*', help='setting: a task and an arm')
    given = parser.parse_args(arguments)
    if given.which == 'setting':
        if len(given.of) != 2 or given.of[0] not in TASKS or given.of[1] not in ARMS:
            raise UserError(f'setting: must be followed by one of {", ".join(TASKS)}, and by one '
                            f'of {", ".join(ARMS)}')
        return print(*words_of(*given.of))
    commands = map_commands() if given.which == 'map' else verdict_commands()
    for name, *words in commands:
        print(command('python', '-m', 'lab.sweep', f'study/results/{name}.csv', *words))


# ----------------------------------------------------------------------------------------------
# The verdicts


def arms_of(task, optimizer='either'):
    """The arms that differ: the tuned RoPE may be the one from base 10000."""
    same = choose(task, PLAIN, optimizer)[0] == choose(task, TUNED, optimizer)[0]
    return [arm for arm in ARMS if not (same and arm == TUNED)]


def runs(optimizer='either'):
    """The rows on the seeds of the verdicts, with the columns claim and arm."""
    found = []
    for task, claim in TASKS.items():
        for arm in arms_of(task, optimizer):
            key, _ = choose(task, arm, optimizer)
            found += [dict(row, arm=arm, claim=claim) for row in read('verdict')
                      if (row['task'], row['attention']) == (task, ARMS[arm])
                      and setting(row) == key]
    return found


right = column('final_accuracy', 100)  # the measure: right answers (%) on the validation strings


def gain(ours, theirs):
    """
    What an arm gains over another on the same seeds: `ratio` of losses and `points` of accuracy,
    each (median, low, high) with its 95 % interval; of both p, and where they lean. None without
    such a seed.
    """
    ours, theirs = by_seed(ours, 'an arm'), by_seed(theirs, 'RoPE')
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if not pairs:
        return None
    logs = [math.log(best_loss(a) / best_loss(b)) for a, b in pairs]
    points = [right(a) - right(b) for a, b in pairs]
    p, lean = zip(signed_rank(logs), signed_rank(points))
    return dict(ratio=[math.exp(value) for value in interval(logs)], points=interval(points),
                p=list(p), lean=list(lean), n=len(pairs))


def gains(optimizer):
    """{(task, learned arm, RoPE): gain}, p corrected by Holm for all of them."""
    groups = groups_of(runs(optimizer), ['claim', 'arm'])
    found = {}
    for task, arm, rope in itertools.product(TASKS, LEARNED, (PLAIN, TUNED)):
        ours, theirs = [groups.get((TASKS[task], one), []) for one in (arm, rope)]
        if test := gain(ours, theirs):
            found[task, arm, rope] = test
    return as_family(found)


def as_family(tests):
    """{key: gain}, with p corrected by Holm for all of them."""
    corrected = iter(holm([p for test in tests.values() for p in test['p']]))
    return {key: test | dict(p=[next(corrected), next(corrected)]) for key, test in tests.items()}


def word(test):
    """The word for a claim: loss and accuracy must both differ, and the latter by a point."""
    if test is None:
        return 'not run'
    points = test['points'][0]
    if max(test['p']) < 0.05 and abs(points) >= 1:
        loss_leans, points_lean = test['lean']  # medians alone may point elsewhere
        if loss_leans < 0 < points_lean and points > 0:
            return 'reproduced'
        if points_lean < 0 < loss_leans and points < 0:
            return 'contradicted'
    return 'not shown'


def words(test):
    """'reproduced: loss × 0.5 [0.4, 0.6], +6 points [+4, +8], p 0.001 of 20'; '' for None."""
    if test is None:
        return ''
    ratio, points = (f'{one[0]:{form}} [{one[1]:{form}}, {one[2]:{form}}]'
                     for one, form in ((test['ratio'], '.2g'), (test['points'], '+.1f')))
    text = f'{word(test)}: loss × {ratio}, {points} points, p {max(test["p"]):.1g} of {test["n"]}'
    return text.replace(' [nan, nan]', '').replace(' [+nan, +nan]', '')  # too few seeds


def verdicts():
    """Each claim in a line: its word against either RoPE, with one optimizer or the better one."""
    tests = {optimizer: gains(optimizer) for optimizer in OPTIMIZERS}
    lines = []
    for (task, claim), arm in itertools.product(CLAIMS.items(), LEARNED):
        cells = []
        for rope, optimizer in itertools.product((PLAIN, TUNED), OPTIMIZERS):
            if rope not in arms_of(task, optimizer):
                rope = PLAIN
            cells.append(word(tests[optimizer].get((task, arm, rope))))
        lines.append([claim, arm, *cells])
    header = [f'against {rope}: {name}' for rope in (PLAIN, TUNED)
              for name in OPTIMIZERS.values()]
    return markdown(['the paper, as summaries report it', 'arm', *header], lines)


def claims():
    """Every arm on the seeds of the verdicts, with either optimizer."""
    lines = []
    cells = [count(solved), quartiles(best_loss, '.2g'), median(right, form='.1f'),
             quartiles(updates, '.0f'), median(*map(beyond, MULTIPLES))]
    for optimizer in ('adamw', 'muon'):
        tests = gains(optimizer)
        for (claim, arm), rows in groups_of(runs(optimizer), ['claim', 'arm']).items():
            task = rows[0]['task']
            lines.append([claim, spelled(setting(rows[0])), arm,
                          len(the_map(task, ARMS[arm], optimizer)), *(cell(rows) for cell in cells),
                          *(words(tests.get((task, arm, rope))) for rope in (PLAIN, TUNED))])
    lines.sort(key=lambda line: list(TASKS.values()).index(line[0]))
    return markdown(['claim', 'setting', 'arm', 'of settings', 'solved', 'loss (nats)',
                     'right (%)', 'updates until solved', 'beyond L at 2L, 4L, 8L (%)',
                     f'against {PLAIN}', f'against {TUNED}'], lines)


def speeds():
    """As speed: updates until solved, each arm with its better optimizer."""
    against = {f'against {rope}': lambda key, rope=rope: (key[0], rope) for rope in (PLAIN, TUNED)}
    rows = [row for row in runs() if row['arm'] in COMPARED]
    return table_of_arms(rows, ['claim', 'arm'], {
        'solved': count(solved), 'updates until solved': quartiles(updates, '.0f')}, against)


TABLES = {table.__name__: table for table in (settings, searches, chosen, claims, verdicts, speeds)}


if __name__ == '__main__':
    with one_line_errors():
        main()
