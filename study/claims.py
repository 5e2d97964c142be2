"""
The claims of both papers: which runs are compared, and the one rule by which a loss is lower.

The rule: compare log10 of the best loss, where losses below 1e-3 nats count alike. A loss is
lower or higher if the 95 % interval of the mean paired difference excludes zero and p is below
0.05 after Holm's correction for all tests on these seeds. TAPA's tests compare ln of perplexity.
"""

import math
import statistics

from configurator import UserError
from study.rows import read
from study.table import (beyond, best_loss, count, differences, holm, interval,
                         log_loss, log_perplexity, markdown, mcnemar, median, quartiles,
                         same_seeds, solved, t_test)

# studies of claims.csv by their seeds; the first one of each has the arms that were chosen
SEEDS = {'0 to 19': ['settled', 'other_optimizer'], '20 to 39': ['confirm']}
SENTENCES = {'bio_rotation': "Bio-Rotation: 0.0008 against RoPE's 1.07",
             'dyck': 'Dyck-3: 99 %+ against a plateau at 0.43',
             'modulo': 'Modulo: near-perfect against significant error'}
TAPA = {1: 'TAPA: as good as RoPE at the training length',
        4: 'TAPA: far better at 4 times that length'}
# RoPE's base and optimiser: as the paper has it, and the best one of each task
PAPER = (10000.0, 'adamw')
TUNED = {'0 to 19': {'bio_rotation': (1000.0, 'muon'), 'dyck': (10000.0, 'muon'),
                     'modulo': (10000.0, 'adamw')}}
TUNED['20 to 39'] = TUNED['0 to 19'] | {'dyck': (100.0, 'muon')}
TUNED_ON_TEXT = (100.0, 'muon')
ON_TEXT = ('base', 'long_muon', 'confirm')  # studies of text.csv
ARMS = {'RoPE as the paper has it': 'rope', 'RoPE tuned': 'rope', 'Spectral': 'spectral',
        'Bifocal': 'bifocal', 'NoPE': 'nope'}
COMPARED = [('Spectral', 'RoPE as the paper has it'), ('Spectral', 'RoPE tuned'),
            ('Bifocal', 'RoPE as the paper has it'), ('Bifocal', 'RoPE tuned'),
            ('Bifocal', 'Spectral')]


def runs(task, arm, seeds):
    """The rows of an arm of the claims, by seed; a list."""
    studies = SEEDS[seeds]
    found = [row for row in read('claims', *studies)
             if row['task'] == task and is_arm(row, arm, seeds)]
    first = [row for row in found if row['study'] == studies[0]]
    found = sorted(first or found, key=lambda row: row['seed'])
    if len({row['seed'] for row in found}) < len(found):
        raise UserError(f'{task}, {arm}, seeds {seeds}: two rows of a seed, which is the arm?')
    return found


def is_arm(row, arm, seeds):
    """Is a row of this arm, by its attention and of RoPE also by base and optimiser?"""
    if row['attention'] != 'rope' or ARMS[arm] != 'rope':
        return row['attention'] == ARMS[arm]
    wanted = PAPER if arm == 'RoPE as the paper has it' else TUNED[seeds][row['task']]
    return row['rope'] == 'geometric' and (row['rope_base'], row['optimizer']) == wanted


def measured(task):
    """The sets of seeds on which a task has runs."""
    studies = {row['study'] for row in read('claims') if row['task'] == task}
    return [seeds for seeds in SEEDS if SEEDS[seeds][0] in studies]


def newest():
    """{task: the last set of seeds that it has runs on}."""
    return {task: measured(task)[-1] for task in SENTENCES}


def tests(family):
    """
    The comparisons on the seeds of each task, {task: seeds}. A dict for each: claim, arm, other,
    seeds, rows of both on the same seeds, the mean and half-width of the difference, p after
    Holm, and the verdict.
    """
    found = []
    for task, seeds in family.items():
        for arm, other in COMPARED:
            if other == 'RoPE as the paper has it' and TUNED[seeds][task] == PAPER:
                continue  # it is the tuned one
            ours, theirs = same_seeds(runs(task, arm, seeds), runs(task, other, seeds))
            found.append(dict(claim=SENTENCES[task], task=task, arm=arm, other=other,
                              seeds=seeds, ours=ours, theirs=theirs, measure=log_loss))
    found += tests_of_tapa()
    for test in found:
        values = differences(test['measure'], test['ours'], test['theirs'])
        test['mean'], test['half'] = interval(values)
        test['p'] = t_test(values)
    for test, p in zip(found, holm([test['p'] for test in found])):
        test['adjusted'] = p
        test['verdict'] = verdict(test['mean'], test['half'], p)
    return found


def tests_of_tapa():
    """TAPA as the search chose it, on text: perplexities against both of RoPE, on common seeds."""
    rows = [row for row in read('text', *ON_TEXT) if not row['override']]
    ropes = {}
    for other, setting in (('RoPE as the paper has it', PAPER), ('RoPE tuned', TUNED_ON_TEXT)):
        ropes[other] = [row for row in rows if row['attention'] == 'rope'
                        and (row['rope_base'], row['optimizer']) == setting]
    tapa = [row for row in rows if row['attention'] == 'tapa' and row['study'] == 'confirm']
    for rope in ropes.values():
        tapa, _ = same_seeds(tapa, rope)
    tapa.sort(key=lambda row: row['seed'])
    found = []
    for multiple, sentence in TAPA.items():
        for other, rope in ropes.items():
            ours, theirs = same_seeds(tapa, rope)
            found.append(dict(claim=sentence, task='text', arm='TAPA', other=other,
                              seeds=spans(ours), ours=ours, theirs=theirs,
                              measure=log_perplexity(multiple)))
    return found


def spans(rows):
    """'0 to 4, 20 to 24' of rows in the order of their seeds."""
    found = []
    for row in rows:
        if found and row['seed'] == found[-1][1] + 1:
            found[-1][1] += 1
        else:
            found.append([row['seed'], row['seed']])
    return ', '.join(f'{first} to {last}' for first, last in found)


def verdict(mean, half, p):
    """Is the number lower or higher than the other arm's?"""
    if p >= 0.05 or abs(mean) <= half:
        return 'no difference shown'
    return 'lower' if mean < 0 else 'higher'


# ----------------------------------------------------------------------------------------------
# Tables


def solved_counts():
    """How many seeds solve each task (0.01 nats), by arm."""
    lines = []
    for task, sentence in SENTENCES.items():
        for seeds in measured(task):
            arms = {arm: runs(task, arm, seeds) for arm in ARMS}
            updates = arms['Spectral'][0]['max_iters']
            lines.append([sentence.partition(':')[0], seeds, updates,
                          *map(count(solved), arms.values())])
    return markdown(['task', 'seeds', 'updates', *ARMS], lines)


def verdicts():
    """The claims in short, on the newest seeds: the loss against both baselines."""
    cells = {}
    for test in tests(newest()):
        if test['other'] != 'Spectral':
            others = cells.setdefault((test['claim'], test['arm'], test['seeds']), {})
            others[test['other']] = f'{test["verdict"]}, {numbers(test)}'
    lines = [[*cell, others.get('RoPE as the paper has it', 'the same RoPE'),
              others['RoPE tuned']] for cell, others in cells.items()]
    return markdown(['the paper', 'arm', 'seeds', 'loss against RoPE as the paper has it',
                     'loss against tuned RoPE'], lines)


def numbers(test):
    """'-0.88 ± 0.22 (n = 20)'."""
    return f'{test["mean"]:+.2f} ± {test["half"]:.2f} (n = {len(test["ours"])})'


def claims():
    """The claims of Bifocal in full, on the newest seeds."""
    return in_full(newest())


def claims_first():
    """The same on seeds 0 to 19."""
    return in_full(dict.fromkeys(SENTENCES, '0 to 19'))


def in_full(family):
    """A line for each test: both losses, the difference and its p, seeds solved."""
    lines = []
    for test in tests(family):
        if test['task'] != 'text':
            both = [test['ours'], test['theirs']]
            counts = ' and '.join(str(sum(map(solved, rows))) for rows in both)
            lines.append([
                test['claim'].partition(':')[0], test['arm'], test['other'],
                ' and '.join(map(quartiles(best_loss), both)), numbers(test),
                f'{test["adjusted"]:.2g}', test['verdict'], f'{counts}, p {mcnemar(*both):.2g}'])
    return markdown(['claim', 'arm', 'against', 'losses: median [quartiles]',
                     'difference of log10', 'p, Holm', 'loss against the other',
                     'seeds solved, p (McNemar)'], lines)


def claims_tapa():
    """The claims of TAPA in full: mean perplexities, the difference of ln and its p."""
    lines = []
    for test in tests(newest()):
        if test['task'] == 'text':
            means = [statistics.mean(math.exp(test['measure'](row)) for row in rows)
                     for rows in (test['ours'], test['theirs'])]
            lines.append([test['claim'], test['other'], ' and '.join(f'{m:.1f}' for m in means),
                          numbers(test), f'{test["adjusted"]:.2g}', test['verdict']])
    return markdown(['the paper', 'TAPA against', 'perplexities', 'difference of ln', 'p, Holm',
                     'perplexity against the other'], lines)


def reach():
    """The accuracy beyond the training length L in strings of 2L, 4L and 8L, by arm."""
    measures = [beyond(multiple) for multiple in (2, 4, 8)]
    lines = []
    for task, sentence in SENTENCES.items():
        for seeds in measured(task):
            arms = (runs(task, arm, seeds) for arm in ARMS)
            lines.append([sentence.partition(':')[0], seeds,
                          *(median(*measures)(rows) for rows in arms)])
    return markdown(['task', 'seeds', *ARMS], lines)


def deeper():
    """Dyck nested twice as deep as in training: the accuracy at the training length, by arm."""
    lines = []
    for seeds in measured('dyck'):
        for arm in ARMS:
            rows = [row for row in runs('dyck', arm, seeds) if row.get('headline@64 depth 16')]
            if rows:
                shallow, deep = ([100 * row[f'headline@64{depth}'] for row in rows]
                                 for depth in ('', ' depth 16'))
                lines.append([arm, seeds, len(rows), f'{statistics.median(shallow):.1f}',
                              f'{statistics.median(deep):.1f} [{min(deep):.1f}]'])
    return markdown(['arm', 'seeds', 'n', 'depth 8 (%), median', 'depth 16, median [least]'],
                    lines)


def longer():
    """Dyck-3 with three times the updates, below the same arms and seeds at the claims' budget."""
    lines = []
    for arm, rows in beside('confirm_3000'):
        at = [row['solved_at'] or math.inf for row in rows]
        middle = statistics.median(at)
        lines.append([arm, rows[0]['max_iters'], count(solved)(rows), quartiles(best_loss)(rows),
                      f'{middle:g}' if middle < math.inf else '-',
                      median(beyond(2), beyond(4), beyond(8))(rows)])
    return markdown(['arm', 'updates', 'solved', 'loss: median [quartiles]',
                     'update at which it is solved, median', 'beyond L (%)'], lines)


def first_weights():
    """Dyck-3 from smaller first weights, below the same arms and seeds from the usual ones."""
    lines = []
    for arm, rows in beside('first_weights'):
        lines.append([arm, f'{rows[0]["init_std"]:g}' if rows[0]['init_std'] else 'usual',
                      count(solved)(rows), quartiles(best_loss)(rows),
                      median(beyond(2), beyond(4), beyond(8))(rows)])
    return markdown(['arm', 'init_std', 'solved', 'loss: median [quartiles]', 'beyond L (%)'],
                    lines)


def beside(study):
    """(arm, rows): an arm of the claims on Dyck-3, then the same arm in a study, on its seeds."""
    for arm in ARMS:
        again = [row for row in read('claims', study) if is_arm(row, arm, '20 to 39')]
        for rows in same_seeds(runs('dyck', arm, '20 to 39'), again) if again else ():
            yield arm, rows


def chosen():
    """Base, optimiser and rate of each arm on the newest seeds."""
    lines = []
    for task, seeds in newest().items():
        rows = [runs(task, arm, seeds)[0] for arm in ARMS]
        lines.append([SENTENCES[task].partition(':')[0], seeds, *map(setting, rows)])
    return markdown(['task', 'seeds', *ARMS], lines)


def setting(row):
    """'base 1000, Muon 0.005'."""
    rate = f'Muon {row["muon_lr"]:g}'
    if row['optimizer'] == 'adamw':
        rate = f'AdamW {row["learning_rate"]:g}'
    return rate if row['attention'] == 'nope' else f'base {row["rope_base"]:g}, {rate}'


OWN = (solved_counts, verdicts, claims, claims_first, claims_tapa, reach, deeper, chosen, longer,
       first_weights)
TABLES = {table.__name__: table for table in OWN}
