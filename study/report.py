"""
The tables of the reports, from study/results alone.

    python -m study.report claims                   # print a Markdown table
    python -m study.report --write study/*.md       # put every table in its place in these files

A place is the lines between <!-- python -m study.report NAME --> and <!-- end -->.
"""

import argparse
import functools
import json
import math
import re
import statistics
from pathlib import Path

from configurator import UserError, one_line_errors
from study import claims, crystals
from study.rows import RESULTS, read
from study.table import (at_length, best_loss, beyond, count, differences, gain, groups_of,
                         lengths, listed, log_loss, log_perplexity, markdown, median, quartiles,
                         same_seeds, solved, spread, table, trained_with)

PLACE = re.compile(r'(<!-- python -m study\.report (\w+) -->\n)(.*?)(<!-- end -->)', re.DOTALL)
REACH = median(beyond(2), beyond(4), beyond(8))
LOSS = 'loss: median [quartiles]'
GAIN = 'log10 of the loss, against'
CHOOSING = ('optimizers', 'search')  # studies of tuning.csv behind the claims
SEARCHED = ('as trained', 'tuned at 4L')  # stages of passkey, after one search for three arms
BEYOND = (128, 256, 512)  # 2L, 4L and 8L of passkey
# RoPE's extensions, which are other options of the same weights
EXTENSIONS = {'rope_base=40000': 'base', 'rope=pi:factor=8': 'pi', 'rope=ntk:factor=8': 'ntk',
              'rope=yarn:factor=8': 'yarn'}


def plain(name, *studies):
    """The rows of a CSV that were measured as they are, with the column `arm`."""
    return [dict(row, arm=arm_of(row)) for row in read(name, *studies) if not row['override']]


def arm_of(row):
    """'rope-base1000' of a run with the name 'bio_rotation-rope-base1000'."""
    return row['name'].partition('-')[2]


def settled(*arms):
    """The rows of the arms of `settled`; 'rope' is RoPE tuned."""
    found = [row for row in plain('claims', 'settled') if row['arm'] in arms]
    if 'rope' in arms:
        found = [row for row in found if row['arm'] != 'rope']
        for task in claims.SENTENCES:
            rows = claims.runs(task, 'RoPE tuned', '0 to 19')
            found += [dict(row, arm='rope') for row in rows]
    return found


# ----------------------------------------------------------------------------------------------
# Bifocal


def arms():
    """Every arm with its optimiser."""
    return table(plain('claims', 'settled'), ['task', 'arm'], {
        'optimiser, rate': trained_with, 'solved': count(solved), LOSS: quartiles(best_loss),
        'worst': lambda rows: f'{max(map(best_loss, rows)):.2g}',
        'updates to 0.01': quartiles(lambda row: row['solved_at'], '.0f'),
        'beyond L (%), 2L, 4L, 8L': REACH})


def two_optimizers():
    """The arms of the claims with either optimiser, on ten seeds."""
    rows = settled('rope', 'spectral', 'bifocal')
    rows += [dict(row, arm=row['attention']) for row in plain('claims', 'other_optimizer')]
    groups = groups_of([row for row in rows if row['seed'] < 10], ['task', 'arm', 'optimizer'])
    lines = []
    for task in claims.SENTENCES:
        for arm in ('rope', 'spectral', 'bifocal'):
            cells = []
            for optimizer in ('adamw', 'muon'):
                ours, theirs = groups[task, arm, optimizer], groups[task, 'rope', optimizer]
                cells.append(f'{quartiles(best_loss)(ours)}, {count(solved)(ours)}')
                cells.append(gain(log_loss)(ours, theirs) if arm != 'rope' else '')
            lines.append([task, arm, *cells])
    return markdown(['task', 'arm', 'AdamW: median [quartiles], solved', 'log10, against RoPE',
                     'Muon: median [quartiles], solved', 'log10, against RoPE'], lines)


def periods():
    """
    Other periods: RoPE tuned and Spectral, both as tuned at the first period. On Bio-Rotation also
    Spectral as the second search chose it.
    """
    again = plain('map', 'periods_1000') + plain('claims', 'confirm')
    again = [row for row in again if row['attention'] == 'spectral' and row['period'] and
             row['task'].startswith('bio_rotation')]
    rows = settled('rope', 'spectral') + plain('map', 'periods_again')
    rows = [dict(row, arm=row['attention'], setting=setting_of(row))
            for row in rows if row['period']]
    rows.sort(key=lambda row: (row['task'].partition(':')[0], row['period']))
    lines = []
    for (setting,), group in groups_of(rows, ['setting']).items():
        both = [[row for row in group if row['arm'] == arm] for arm in ('rope', 'spectral')]
        theirs, ours = both
        difference = gain(log_loss, p=False)(*same_seeds(ours, theirs))
        newer = [row for row in again if setting_of(row) == setting]
        cells = [count(solved)(newer), REACH(newer)] if newer else ['', '']
        lines.append([setting, *map(count(solved), both), cells[0],
                      *map(quartiles(best_loss), both), difference, *map(REACH, both), cells[1]])
    return markdown(['setting', 'RoPE solves', 'Spectral solves', 'from base 1000',
                     f'RoPE, {LOSS}', 'Spectral', f'{GAIN} RoPE', 'beyond L (%): RoPE',
                     'Spectral', 'from base 1000'], lines)


def starts():
    """The periods that Spectral does not solve from the base 1000, from other frequencies."""
    rows = plain('map', 'periods_1000', 'periods_start')
    rows = [dict(row, setting=setting_of(row), start=start_of(row)) for row in rows
            if row['period'] in (5, 16)]
    rows.sort(key=lambda row: (row['period'], row['start']))
    return table(rows, ['setting', 'start'], {
        'solved': count(solved), 'loss by seed': listed(best_loss), 'beyond L (%)': REACH})


def start_of(row):
    """'base 48', or the name of another grid."""
    return f'base {row["rope_base"]:g}' if row['rope'] == 'geometric' else f'{row["rope"]} grid'


def setting_of(row):
    """'modulo, P = 7'."""
    return f'{row["task"].partition(":")[0]}, P = {row["period"]}'


def changes():
    """One thing changed: what is learned, where frequencies start and when, sharp attention."""
    rows = settled('rope', 'spectral')
    rows += plain('map', 'ablation_again', 'start_again', 'extrapolation_again')
    left_out = ('omega-A', 'omega-Phi', 'shared', 'spectral-late', 'spectral-frequency-decay',
                'rope-linear')
    rows = [row for row in rows if row['task'] != 'dyck' and row['seed'] < 3
            and not (row['arm'] in left_out[:3] or
                     (row['task'] == 'modulo' and row['arm'] in left_out[3:]))]
    rows.sort(key=lambda row: (row['task'], row['attention'], len(row['arm'])))
    return table(rows, ['task', 'arm'], {
        'solved': count(solved), 'loss by seed': listed(best_loss), 'beyond L (%)': REACH},
        dict(arm='rope'), {f'{GAIN} rope': gain(log_loss, p=False)})


def spacing():
    """Brackets among fillers at regular, random and exponential intervals, in strings of 2L."""
    groups = groups_of([dict(row, intervals=row['name'].split('-')[0])
                        for row in plain('map', 'spacing_again')], ['intervals', 'arm'])
    right = at_length('headline', 128)
    lines = []
    for intervals in ('periodic', 'random', 'exponential'):
        rope, *learned = (groups[intervals, arm] for arm in ('rope', 'spectral', 'bifocal'))
        lines.append([intervals, spread(right)(rope), *map(spread(right), learned),
                      *(gain(right, 1)(rows, rope) for rows in learned)])
    return markdown(['intervals', 'RoPE: right at 2L (%)', 'Spectral', 'Bifocal',
                     'Spectral, against RoPE', 'Bifocal, against RoPE'], lines)


def mechanism():
    """The first trial: which pairs lock, and Bifocal with the heads of one kind closed."""
    rows = [row for row in plain('mechanism', 'headline') if row['task'] != 'dyck'
            or row['arm'] == 'bifocal']

    def closed(kind):
        shares = at_length('headline', 64, f' without {kind}')
        return lambda rows: listed(shares, '.0f')(rows) if rows[0]['arm'] == 'bifocal' else ''

    return table(rows, ['task', 'arm'], {
        'solved': count(solved), 'lock-in (update)': listed(lambda row: row['lock_in']),
        'pairs locked': listed(lambda row: row['locked']),
        'right, no RoPE heads (%)': closed('geometric'),
        'right, no spectral heads (%)': closed('spectral')})


def depths():
    """The first trial: centred cosines of the mean states at depths 10 and 11 of dyck."""
    rows = [row for row in plain('mechanism', 'headline') if row['task'] == 'dyck']
    cosine = spread(lambda row: row['centred cosine of depths 10, 11'], 2)
    arms_shown = groups_of(rows, ['arm'])
    return markdown(['', *(arm for arm, in arms_shown)],
                    [['cosine, centred', *map(cosine, arms_shown.values())]])


# ----------------------------------------------------------------------------------------------
# TAPA, text and passkey


def long_rows(name):
    """
    The rows of text or passkey by stage. RoPE's extensions and TAPA's best form are arms of
    their own.
    """
    stages = {'long': 'as trained, AdamW', 'long_muon': 'as trained, Muon',
              'confirm': 'as trained, Muon', 'tuned': 'tuned at 4L, AdamW',
              'searched': SEARCHED[0], 'searched_tuned': SEARCHED[1]}
    rows = []
    for study, stage in stages.items():
        for row in read(name, study):
            arm = arm_of(row)
            if row['override']:
                arm = f'{arm}-{EXTENSIONS[row["override"]]}'
            if study == 'confirm':
                arm = arm.replace('tapa', 'tapa-best')
            if row['optimizer'] == 'muon' or study != 'confirm':
                rows.append(dict(row, stage=stage, arm=arm))
    places = list(dict.fromkeys(stages.values()))
    order = ['nope', 'rope', 'spectral', 'bifocal', 'tapa']
    return sorted(rows, key=lambda row: (places.index(row['stage']), '-' in row['arm'],
                                         order.index(row['attention'])))


def perplexities(rows, by, baseline, more={}):
    """Perplexity at and beyond the training length L (sliding windows)."""
    def at(multiple):
        def perplexity(row):
            return row[f'perplexity@{multiple * row["block_size"]} sliding']
        return spread(perplexity, 2)

    L = {multiple: f'{multiple}L' if multiple > 1 else 'L' for multiple in (1, 2, 4, 8)}
    against = {f'ln at {L[multiple]}, against {baseline}': gain(log_perplexity(multiple), 3, False)
               for multiple in (1, 8)}
    columns = {'n': len} | {L[multiple]: at(multiple) for multiple in L} | more
    return table(rows, by, columns, dict(arm=baseline), against)


def context():
    """Perplexity of Python code by the length of the context."""
    rows = [dict(row, block_size=256) for row in long_rows('text')  # L, also of what is tuned
            if row['arm'] != 'rope-pi']
    return perplexities(rows, ['stage', 'arm'], 'rope')


def bases():
    """Fixed and learned frequencies on text: RoPE's bases, what of Spectral is learned."""
    rows = plain('text', 'base', 'ablation', 'budget')
    rows += [row for row in plain('text', 'long') if row['arm'] in ('nope', 'rope', 'spectral',
                                                                    'tapa')]
    names = {'rope': 'rope-base100'}
    left_out = ('omega-A', 'omega-Phi', 'rope-base10', 'spectral-base100')
    rows = [dict(row, updates=row['max_iters'], arm=names.get(row['arm'], row['arm']))
            for row in rows if row['arm'] not in left_out]
    rows.sort(key=lambda row: (row['updates'], row['attention'] != 'rope', row['attention'],
                               -row['rope_base']))
    return perplexities(rows, ['updates', 'arm'], 'rope-base100', {'slow pairs (%)': slow_pairs})


def slow_pairs(rows):
    """The mean share of pairs that do not turn once within the training length."""
    shares = [row['slow_pairs'] for row in rows if row['slow_pairs'] is not None]
    return f'{100 * statistics.mean(shares):.0f}' if shares else ''


def depth():
    """RoPE's loss on text at L (nats a byte) by the number of layers; NoPE and TAPA, less RoPE."""
    return less_rope(depth_rows(), 'layers')


def tokens():
    """The same with four layers for bytes, and for tokens of a learned encoding (nats a token)."""
    rows = [dict(row, reads='bytes') for row in depth_rows() if row['layers'] == 4]
    rows += [dict(row, arm=row['attention'], reads='1024 tokens') for row in plain('text', 'bpe')]
    return less_rope(rows, 'reads')


def less_rope(rows, by):
    """RoPE's loss for each value of the column `by`; NoPE's and TAPA's, less it, seed by seed."""
    groups = groups_of(rows, [by, 'arm'])
    lines = []
    for value in dict.fromkeys(value for value, _ in groups):
        rope = groups[value, 'rope']
        gaps = [differences(best_loss, *same_seeds(groups.get((value, arm), []), rope))
                for arm in ('nope', 'tapa')]
        lines.append([value, listed(best_loss, '.3f')(rope),
                      *(', '.join(f'{gap:+.3f}' for gap in values) for values in gaps)])
    return markdown([by, 'RoPE: loss by seed', 'NoPE, less RoPE', 'TAPA, less RoPE'], lines)


def depth_rows():
    """NoPE, RoPE and TAPA's best form on text with 2, 4 and 8 layers."""
    arms = {('long_muon', 'nope'), ('long_muon', 'rope'), ('confirm', 'tapa')}
    rows = plain('text', 'depth')
    rows += [row for row in plain('text', 'long_muon', 'confirm')
             if (row['study'], row['arm']) in arms]
    rows = [dict(row, layers=row['n_layer'], arm=row['attention']) for row in rows]
    return sorted(rows, key=lambda row: (row['layers'], row['arm']))


def heads():
    """The head of each model that looks one token back most: its attention one and two back."""
    rows = [dict(row, layers=row['n_layer'], arm=row['arm'].partition('-layers')[0])
            for row in plain('text', 'confirm', 'depth')]
    rows.sort(key=lambda row: (row['layers'], row['arm']))
    return table(rows, ['layers', 'arm'], {
        'n': len, 'one token back (%)': spread(one_back),
        'two tokens back (%)': spread(two_back)})


def one_back(row):
    """The share (%) of its attention that a head gives to the token before, on average."""
    return 100 * row['one_back']


def two_back(row):
    return 100 * row['two_back']


def tapas():
    """TAPA's own choices on text, one changed at a time."""
    rows = plain('text', 'phase') + plain('text', 'long')
    rows = [row for row in rows if row['attention'] == 'tapa' and 'theta' not in row['arm']]
    return perplexities(sorted(rows, key=lambda row: row['arm']), ['arm'], 'tapa')


def english():
    """The arms on tinyshakespeare."""
    rows = plain('text', 'english')
    return perplexities(rows, ['arm'], 'rope')


def near():
    """How much more a near key scores than a far one, in standard deviations; brackets."""
    return table([row for row in long_rows('text') if row['study'] == 'long'
                  and not row['override']], ['arm'], {
        'n': len, 'near less far (sd)': spread(lambda row: row['bias'], 2),
        'closing brackets of the right kind (%)':
            spread(lambda row: 100 * row['brackets'])}, dict(arm='rope'), {
        'near less far, against RoPE': gain(lambda row: row['bias']),
        'brackets, against RoPE': gain(lambda row: 100 * row['brackets'], 1)})


def passkey():
    """All five digits right, by the length of the string."""
    return digits([row for row in long_rows('passkey') if row['stage'] not in SEARCHED], 512)


def passkey_searched():
    """The same, of RoPE, NoPE and TAPA after one search by reach."""
    rows = [row for row in long_rows('passkey') if row['stage'] in SEARCHED]
    return digits(rows, *BEYOND)


def digits(rows, *compared):
    """The share of keys found at every length, and the difference to RoPE at some."""
    rows = [row for row in rows if row['arm'] != 'rope-pi']
    columns = {f'{length} tokens (%)': spread(at_length('exact', length))
               for length in lengths(rows, 'exact')}
    return table(rows, ['stage', 'arm'], {'n': len} | columns, dict(arm='rope'), {
        f'{length} tokens, against RoPE (points)': gain(at_length('exact', length), 1)
        for length in compared})


def passkey_search():
    """Settings of RoPE, NoPE and TAPA on the tuning seeds, and how far they read."""
    setting = dict(nope=lambda row: '', rope=start_of, tapa=form)
    used = [reads_furthest(attention)[0]['name'] for attention in setting]
    rows = [dict(row, arm=row['attention'], setting=setting[row['attention']](row),
                 rate=row['muon_lr'], used='used' if row['name'] in used else '')
            for row in plain('tuning', 'passkey_search')]
    rows.sort(key=lambda row: (row['arm'], row['setting'], row['rate']))
    return table(rows, ['arm', 'setting', 'rate', 'used'],
                 {'solved': count(solved), 'loss at L': listed(best_loss, '.2g')}
                 | {f'{length} tokens (%)': listed(at_length('exact', length), '.0f')
                    for length in BEYOND})


def reads_furthest(attention):
    """
    The rows of the setting of an attention that passkey uses: the most seeds tried, then the
    most solved, then the most keys found beyond L.
    """
    def order(rows):
        found = [row[f'exact@{length}'] for row in rows for length in BEYOND]
        return len(rows), sum(map(solved, rows)), statistics.mean(found)

    rows = [row for row in plain('tuning', 'passkey_search') if row['attention'] == attention]
    return max(groups_of(rows, ['name']).values(), key=order)


# ----------------------------------------------------------------------------------------------
# Surgery


WAYS_ON = {'full': 'all weights', 'only': 'frequencies only', 'rope': 'RoPE as it was'}


def surgery_rows(task):
    """The rows of a trained RoPE, of the ways to go on from it, and of Spectral from scratch."""
    before, scratch = ('surgery', 'bases'), ('mechanism', 'headline')
    if task == 'text':
        before = scratch = ('text', 'long')
    rows = [dict(row, model='RoPE before') for row in plain(*before) if row['arm'] == 'rope']
    rows += [dict(row, model=WAYS_ON[row['arm']]) for row in plain('surgery', 'surgery')]
    rows += [dict(row, model='Spectral from scratch') for row in plain(*scratch)
             if row['arm'] == 'spectral']
    return [row for row in rows if row['task'] == task]


def surgery():
    """A trained RoPE gone on with, its frequencies learned or not."""
    rows = surgery_rows('bio_rotation') + surgery_rows('modulo')
    return table(rows, ['task', 'model'], {
        'solved': count(solved), LOSS: quartiles(best_loss),
        'seeds that lock': lambda rows: '' if rows[0]['attention'] == 'rope' else
            count(lambda row: row['lock_in'] is not None)(rows),
        'beyond L (%)': REACH}, dict(model='RoPE as it was'), {
        f'{GAIN} RoPE as it was': gain(log_loss),
        'beyond L at 2L, against it': gain(beyond(2), 1)})


def surgery_text():
    """The same on text."""
    rows = surgery_rows('text')
    for row in rows:
        row['arm'] = row['model']
    return perplexities(rows, ['arm'], 'RoPE as it was')


# ----------------------------------------------------------------------------------------------
# What was chosen


def rates_of(row):
    """What a row of the tuning chose: a rate of the weights; in surgery, one of Omega, too."""
    weights = row['muon_lr' if row['optimizer'] == 'muon' else 'learning_rate']
    return (weights, row['spectral_lr']) if 'surgery' in row['study'] else (weights,)


def candidates(*studies):
    """{(task, arm, optimizer, rates): rows} of the runs that choose, on the tuning seeds."""
    rows = []
    for row in plain('tuning', *studies):
        # the name without the optimiser and the rates
        arm = re.sub(r'-(muon|adamw)-[\d.]+|(-[\d.]+(e-\d+)?)+$', '', row['arm'])
        name = row['name'].partition('-')[0]  # of the config
        rows.append(dict(row, config=name, arm=arm, rates=rates_of(row)))
    rows.sort(key=lambda row: (row['study'], row['config'], row['arm'], row['rates']))
    return groups_of(rows, ['config', 'arm', 'optimizer', 'rates'])


def merit(rows):
    """By which is chosen, larger is better: seeds tried, seeds solved, the mean log loss."""
    losses = [best_loss(row) for row in rows]
    return len(rows), sum(map(solved, rows)), -statistics.mean(map(math.log, losses))


def best(found):
    """The key of the candidate of most merit, of {key: rows}."""
    return max(found, key=lambda key: merit(found[key]))


def tuning():
    """Both optimisers on the tuning seeds, each at its best rate; the better one is chosen."""
    found, lines = candidates(*CHOOSING), []
    for task, arm in dict.fromkeys(key[:2] for key in found):
        cells, rows = [], {}
        for optimizer in ('adamw', 'muon'):
            tried = {key[3][0]: rows for key, rows in found.items()
                     if key[:3] == (task, arm, optimizer)}
            if not tried:
                cells += ['', '']
                continue
            rate = best(tried)
            edge = {min(tried): ', the lowest', max(tried): ', the highest'}.get(rate, '')
            cells += [f'{rate:g} of {len(tried)}{edge}', listed(best_loss)(tried[rate])]
            rows[optimizer] = tried[rate]
        lines.append([task, arm, *cells, dict(adamw='AdamW', muon='Muon')[best(rows)]])
    return markdown(['task', 'arm', 'AdamW: best rate', 'loss by seed', 'Muon: best rate',
                     'loss by seed', 'better'], lines)


def search_reach():
    """How far the settings of the second search read that have three seeds. The loss chose."""
    def order(item):
        (task, *_), rows = item
        return task, rows[0]['attention'], -statistics.median(map(beyond(4), rows))

    groups = [item for item in candidates('search').items() if len(item[1]) > 2]
    rows = [dict(row, setting=f'{optimizer} {rates[0]:g}')
            for (*_, optimizer, rates), group in sorted(groups, key=order) for row in group]
    return table(rows, ['config', 'arm', 'setting'], {
        'solved': count(solved), 'loss by seed': listed(best_loss),
        'beyond L at 2L, 4L (%)': median(beyond(2), beyond(4))})


def form(row):
    """'factor 1, α = 0.5, θ = 0.0625, init_std 0.02' of a row of TAPA."""
    factor = '1' if row['tapa_scale'] == 1 else '2π'
    return (f'factor {factor}, α = {row["tapa_alpha"]:g}, θ = {row["tapa_theta"]:g}, '
            f'init_std {row["init_std"]:g}')


def tapa_tasks():
    """TAPA on the tasks of the claims: the paper's form, and what the search chose."""
    rows = [dict(row, form=form(row)) for row in plain('claims', 'settled', 'confirm')
            if row['attention'] == 'tapa']
    rows.sort(key=lambda row: (row['task'], row['seed']))
    return table(rows, ['task', 'form'], {
        'optimiser, rate': trained_with, 'solved': count(solved), LOSS: quartiles(best_loss),
        'beyond L (%)': REACH})


def tapa_forms():
    """TAPA's search on the first tuning seed: the least loss of a form at any rate tried."""
    alphas = (0.1, 0.5, 1)
    found = {}
    for (task, *_), rows in candidates('tapa', 'optimizers', 'long_muon_rates').items():
        first = rows[0]
        if first['attention'] != 'tapa' or task == 'passkey':
            continue
        factor = '1' if first['tapa_scale'] == 1 else '2π'
        place = task, factor, f'{first["tapa_theta"]:g}', f'{first["init_std"]:g}'
        losses = found.setdefault(place, {}).setdefault(first['tapa_alpha'], [])
        losses += [best_loss(row) for row in rows if row['seed'] == 100]
    lines = [[*place, *(f'{min(losses[alpha]):.3g}' if alpha in losses else ''
                        for alpha in alphas)]
             for place, losses in sorted(found.items())]
    return markdown(['task', 'factor', 'θ', 'init_std', *(f'α = {alpha:g}' for alpha in alphas)],
                    lines)


def tapa_shares():
    """TAPA on text by the share of a head in the amplitude, on the first tuning seed."""
    rows = [dict(row, amplitude=f'{row["tapa_theta"]:g} ({row["tapa_theta"] * 32:g} of 32)')
            for row in plain('tuning', 'tapa') if row['task'] == 'text'
            and (row['seed'], row['tapa_scale'], row['tapa_alpha']) == (100, 1, 0.5)
            and (row['optimizer'], row['muon_lr'], row['init_std']) == ('muon', 0.005, 0.02)]
    rows.sort(key=lambda row: -row['tapa_theta'])
    return table(rows, ['amplitude'], {
        'loss': listed(best_loss, '.3f'), 'one token back (%)': spread(one_back),
        'two tokens back (%)': spread(two_back)})


def tapa_rates():
    """The rates that were tried with TAPA's best form on each task."""
    found, lines = candidates('tapa'), []
    for task in dict.fromkeys(task for task, *_ in found):
        _, form, optimizer, used = best({key: rows for key, rows in found.items()
                                         if key[0] == task})
        cells = ['; '.join(f'{rates[0]:g}: {listed(best_loss, ".3g")(rows)}'
                           for key, rows in found.items() for rates in [key[3]]
                           if key[:3] == (task, form, kind)) for kind in ('adamw', 'muon')]
        shown = dict(adamw='AdamW', muon='Muon')[optimizer]
        lines.append([task, form.removeprefix('tapa-'), *cells, f'{shown} {used[0]:g}'])
    return markdown(['task', 'form', 'AdamW: rate: loss by seed', 'Muon', 'best'], lines)


def rates(study):
    """Every rate that was tried for the runs of a study, and the one that they have."""
    results = plain('text', study) + plain('passkey', study) + plain('surgery', study)
    used = {row['name']: rates_of(row) for row in results}
    found, lines = candidates(f'{study}_rates'), []
    for task, arm in dict.fromkeys(key[:2] for key in found):
        tried = {key[3]: rows for key, rows in found.items() if key[:2] == (task, arm)}
        cells = '; '.join(f'{numbers(rates)}: {listed(best_loss, ".4g")(rows)}'
                          for rates, rows in tried.items())
        lines.append([task, arm, cells, numbers(used[f'{task}-{arm}'])])
    return markdown(['task', 'arm', 'rate: loss by seed', 'used'], lines)


def knobs():
    """AdamW on text and passkey: each attention with its options, at the best rate of each."""
    found, lines = candidates('sweep'), []
    for task in ('text', 'passkey'):
        for attention in ('nope', 'rope', 'spectral', 'bifocal', 'tapa'):
            tried = {}
            for key, rows in found.items():
                if key[0] == task and key[1].split('-')[0] == attention:
                    tried.setdefault(key[1], []).append(min(map(best_loss, rows)))
            cells = '; '.join(f'{arm}: {min(losses):.4g}' for arm, losses in tried.items())
            lines.append([task, attention, sum(map(len, tried.values())), cells])
    return markdown(['task', 'attention', 'runs', 'loss at the best rate'], lines)


def numbers(values):
    return ', '.join(f'{value:g}' for value in values)


def further():
    """One rate further than the edge of the search, on bio_rotation."""
    rows = [dict(row, arm=row['attention']) for row in plain('claims', 'further')]
    return table(rows, ['task', 'arm'], {
        'optimiser, rate': trained_with, 'solved': count(solved), LOSS: quartiles(best_loss),
        'beyond L (%)': REACH}, dict(arm='rope'), {f'{GAIN} RoPE': gain(log_loss)})


def provenance():
    """Which machines made the rows of each CSV, when, in how much time."""
    lines = []
    for path in sorted(RESULTS.glob('*.csv')):
        runs = [row for row in read(path.stem) if not row['override']]
        shown = []
        for column in ('processor', 'torch'):
            values = {value for row in runs for value in row[column].split('; ')}
            shown.append(', '.join(sorted(values)))
        dates = sorted(row['date'][:10] for row in runs)
        hours = sum(row['seconds'] for row in runs) / 3600
        lines.append([f'`{path.name}`', len(runs), f'{hours:.1f}', *shown,
                      f'{dates[0]} to {dates[-1]}'])
    return markdown(['rows', 'runs', 'hours', 'processors', 'torch', 'dates'], lines)


def main_job():
    """The README's main job and the run of its first picture."""
    rows = [dict(row, run=row['name']) for row in read('main')]
    return table(rows, ['run'], {
        'processor': lambda rows: rows[0]['processor'], 'cores': lambda rows: rows[0]['threads'],
        'seconds': lambda rows: f'{rows[0]["seconds"]:.0f}',
        'updates to 0.01': lambda rows: rows[0]['solved_at'],
        'of': lambda rows: rows[0]['iterations'],
        'right on new strings (%)': lambda rows: f'{100 * rows[0]["headline@64"]:.1f}'})


def speed():
    """A training step of each arm, from the JSON files of lab.bench: milliseconds, times RoPE."""
    cells = {}
    for way in ('eager', 'compiled'):
        path = RESULTS.parent.parent / f'lab/results/bench-{way}.json'
        steps = json.loads(path.read_text())['steps']
        for step in steps['small'] + steps['large']:
            cell = f'{step["ms"][1]:.1f} ({step["ratio"][1]:.2f})'
            cells.setdefault(step['arm'], []).append(cell)
    header = [f'{shape}, {way}' for way in ('eager', 'compiled') for shape in ('small', 'large')]
    return markdown(['arm', *header], [[arm, *cells[arm]] for arm in cells if arm != 'shared'])


# ----------------------------------------------------------------------------------------------
# Printing and writing

OWN = (arms, two_optimizers, periods, starts, changes, spacing, mechanism, depths, context, bases,
       depth, tokens, heads, tapas, english, near, passkey, passkey_searched, passkey_search,
       surgery, surgery_text, tuning, search_reach, tapa_tasks, tapa_forms, tapa_shares,
       tapa_rates, knobs, further, provenance, main_job, speed)
TABLES = claims.TABLES | crystals.TABLES | {table.__name__: table for table in OWN}
TABLES |= {f'rates_{study}': functools.partial(rates, study)
           for study in ('long_muon', 'tuned', 'searched_tuned', 'surgery')}


def filled(text):
    """A Markdown text with every table in its place. Raises UserError for an unknown one."""
    def one(match):
        if match[2] not in TABLES:
            raise UserError(f'no table {match[2]}: there are {", ".join(TABLES)}')
        return match[1] + TABLES[match[2]]() + match[4]
    return PLACE.sub(one, text)


def main(arguments=None):
    """Print or write the tables that the command line `arguments` (default: sys.argv) name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(TABLES))
    parser.add_argument('--write', nargs='+', type=Path, default=[], metavar='FILE.md')
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in TABLES]
    if unknown:
        parser.error(f'no table {unknown[0]}: there are {", ".join(TABLES)}')
    for path in given.write:
        path.write_text(filled(path.read_text()))
    for name in given.names:
        print(TABLES[name]())


if __name__ == '__main__':
    with one_line_errors():
        main()
