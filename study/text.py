"""The tables on text and passkey: what was searched, TAPA's claims, which heads look back."""

import statistics

from lab.table import (best_loss, column, count, crosstab, groups_of, listed, markdown, quartiles,
                       solved, spread, table)
from study.claims import ATTENTIONS, PAPER, TUNED, setting, spelled
from study.rows import read

L = 256  # the training length of text
MULTIPLES = (1, 2, 4, 8)  # of it
# the name of a run without its seed: the arm
ARMS = {'paper': PAPER, 'rope': TUNED, 'spectral': 'Spectral', 'nope': 'NoPE', 'tapa': 'TAPA'}
STAGES = dict(text='as trained', text_4L='tuned at 4L')
RATES = [*(('adamw', rate) for rate in (0.001, 0.002, 0.004)),
         *(('muon', rate) for rate in (0.0025, 0.005, 0.01, 0.02, 0.04))]
ORDER = list(ATTENTIONS)


# ----------------------------------------------------------------------------------------------
# Text


def text_search():
    """The loss of every base and rate that was tried on text, by seed."""
    rows = sorted(read('text_search'), key=lambda row: (
        ORDER.index(row['attention']), row['init_std'], row['rope_base']))
    for row in rows:
        base, *rate = setting(row)
        row.update(attention=ATTENTIONS[row['attention']], rate=spelled((None, *rate)),
                   base='' if base is None else f'{base:g}')
    rates = [spelled((None, *rate)) for rate in RATES]
    return crosstab(rows, ['attention', 'init_std', 'base'], 'rate', rates,
                    listed(best_loss, '.3f'))


def tuning_search():
    """The loss at 4L after going on there, by the share of an arm's rates that it goes on with."""
    rows = read('text_search_4L')
    for row in rows:
        row['arm'] = PAPER if row['optimizer'] == 'adamw' else ATTENTIONS[row['attention']]
        row['share'] = f'{row["positional_lr"] / 0.01:g} of its rates'
    shares = sorted({row['share'] for row in rows})
    return crosstab(rows, ['arm'], 'share', shares, listed(best_loss, '.3f'))


def text_rows():
    """The rows on text with the columns `stage` and `arm`."""
    rows = [dict(row, stage=STAGES[row['study']], arm=ARMS[row['name']])
            for row in read('text', *STAGES)]
    order = list(ARMS.values())
    return sorted(rows, key=lambda row: (row['study'], order.index(row['arm'])))


def perplexity(multiple):
    """The measure: the perplexity a byte at a multiple of L, in sliding windows."""
    return column(f'perplexity@{multiple * L}')


# Ten seeds cannot give a p below 0.002, so few comparisons are made: Holm's factor is their number.
COMPARED = {PAPER: ['TAPA'], TUNED: ['TAPA', 'Spectral']}


def text_claims():
    """Every arm on text, at L and beyond; TAPA and Spectral against RoPE."""
    against, measures = {}, {}
    for place, multiple in (('L', 1), ('4L', 4)):
        for rope, arms in COMPARED.items():
            header = f'at {place}, against {rope}'
            against[header] = (lambda key, rope=rope, arms=arms:
                               (key[0], rope) if key[1] in arms else None)
            measures[header] = perplexity(multiple)
    lengths = {f'{multiple}L' if multiple > 1 else 'L': spread(perplexity(multiple), 2)
               for multiple in MULTIPLES}
    return table(text_rows(), ['stage', 'arm'], {'n': len} | lengths, against, measures)


def heads():
    """The head of each model that looks one token back most: its attention one and two back."""
    rows = [row for row in text_rows() if row['study'] == 'text']
    return table(rows, ['arm'], {
        'n': len, 'one token back (%)': spread(column('one_back', 100)),
        'two tokens back (%)': spread(column('two_back', 100))})


# ----------------------------------------------------------------------------------------------
# TAPA's form, and passkey: older rows


def form(row):
    """'factor 1, α = 0.5, θ = 0.0625, init_std 0.02' of a row of TAPA, without its rate."""
    factor = '1' if row['tapa_scale'] == 1 else '2π'
    return (f'factor {factor}, α = {row["tapa_alpha"]:g}, θ = {row["tapa_theta"]:g}, '
            f'init_std {row["init_std"]:g}')


def tapa_forms():
    """TAPA's search on text, on the first tuning seed: the least loss of a form at any rate."""
    rows = [dict(row, form=form(row)) for row in read('tuning', 'tapa', 'long_muon_rates')
            if row['seed'] == 100]
    found = {key: min(map(best_loss, group)) for (key,), group in groups_of(rows, ['form']).items()}
    return markdown(['form', 'loss'], [[key, f'{found[key]:.3f}']
                                       for key in sorted(found, key=found.get)])


def passkey():
    """All five digits right, by the length of the string, after one search by reach."""
    stages = dict(searched='as trained', searched_tuned='tuned at 4L')
    rows = [dict(row, stage=stages[row['study']], arm=row['attention']) for row in read('passkey')]
    rows.sort(key=lambda row: (row['study'], ORDER.index(row['arm'])))
    lengths = {f'{length} tokens (%)': spread(column(f'exact@{length}', 100))
               for length in (64, 128, 256, 512)}
    return table(rows, ['stage', 'arm'], {'n': len} | lengths)


def passkey_search():
    """Settings of RoPE, NoPE and TAPA on the tuning seeds with their best rate."""
    rows = read('tuning', 'passkey_search')
    for row in rows:
        row['setting'] = {'rope': f'base {row["rope_base"]:g}',
                          'tapa': form(row)}.get(row['attention'], '')
    lengths = (128, 256, 512)

    def merit(group):
        found = [row[f'exact@{length}'] for row in group for length in lengths]
        return len(group), sum(map(solved, group)), statistics.mean(found)

    best = {}
    for (arm, words, rate), group in groups_of(rows, ['attention', 'setting', 'muon_lr']).items():
        other = best.get((arm, words))
        if other is None or merit(group) > merit(other):
            best[arm, words] = group
    rows = [row for key in sorted(best) for row in best[key]]
    return table(rows, ['attention', 'setting', 'muon_lr'], {
        'solved': count(solved), 'loss at L': quartiles(best_loss, '.2g')}
        | {f'{length} tokens (%)': listed(column(f'exact@{length}', 100), '.0f')
           for length in lengths})


TABLES = {table.__name__: table for table in (text_search, tuning_search, text_claims, heads,
                                              tapa_forms, passkey, passkey_search)}
