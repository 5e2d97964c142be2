"""The tables on text and passkey: what was searched, TAPA's claims, which heads look back."""

import train
from lab.table import best_loss, column, crosstab, listed, spread, table_of_arms, updates
from study import read
from study.claims import ATTENTIONS, TUNED, setting, spelled

L = dict(text=256, passkey=64)  # the training length
MULTIPLES = (1, 2, 4, 8)  # of it
STAGES = {'': 'as trained', '_4L': 'tuned at 4L', '_std_0.09': 'as trained, init_std 0.09'}
# the name of a run without its seed: the arm
PAPER = 'RoPE, base 10000, AdamW'
ARMS = {'paper': PAPER, 'rope': TUNED, 'spectral': 'Spectral',
        'amplitude': 'Spectral, A alone', 'lerope': 'LeRoPE', 'nope': 'NoPE', 'tapa': 'TAPA'}
ADAMW = {'rope_adamw': 'RoPE, base 100, AdamW', 'spectral_adamw': 'Spectral, AdamW'}
SHOWN = tuple(ARMS.values())
NAMES = ATTENTIONS | {'lerope': 'LeRoPE'}


# ----------------------------------------------------------------------------------------------
# The searches, on the seed 23


def beside_the_rate(row):
    """'base 1000', or of TAPA 'factor 1, α = 0.5, θ = 0.5': what was searched beside the rate."""
    base, _, _ = setting(row)
    words = [] if base is None else [f'base {base:g}']
    if row['attention'] == 'tapa':
        factor = '1' if row['tapa_scale'] == 1 else '2π'
        words = [f'factor {factor}', f'α = {row["tapa_alpha"]:g}', f'θ = {row["tapa_theta"]:g}']
    if row['init_std'] != train.init_std:
        words.append(f'init_std {row["init_std"]:g}')
    if row['learn'] != train.learn:
        words.append(f'learn={row["learn"]}')
    return ', '.join(words)


def search(rows, cell):
    """A line for each setting of an attention, a column for each optimizer and rate."""
    order = list(NAMES)
    rows = sorted(rows, key=lambda row: (
        order.index(row['attention']), row['init_std'], row['learn'] != train.learn,
        row['rope_base'], row['tapa_scale'], row['tapa_alpha'], row['tapa_theta']))
    rates = sorted({setting(row)[1:] for row in rows})
    for row in rows:
        _, *rate = setting(row)
        row.update(attention=NAMES[row['attention']], setting=beside_the_rate(row),
                   rate=spelled((None, *rate)))
    return crosstab(rows, ['attention', 'setting'], 'rate',
                    [spelled((None, *rate)) for rate in rates], cell)


def tapa_forms():
    """The loss of TAPA on text in other forms."""
    rows = [row for row in read('text_search')
            if row['attention'] == 'tapa' and row['init_std'] == train.init_std]
    return search([*rows, *read('tapa_forms')], listed(best_loss, '.3f'))


def tuning_search():
    """The loss at 4L after going on there, by the share of an arm's rates that it goes on with."""
    rows = read('text_search_4L') + read('passkey_search_4L')
    for row in rows:
        row['arm'] = PAPER if row['optimizer'] == 'adamw' else ATTENTIONS[row['attention']]
        row['share'] = f'{row["positional_lr"] / 0.01:g} of its rates'
    shares = sorted({row['share'] for row in rows})
    return crosstab(rows, ['task', 'arm'], 'share', shares, listed(best_loss, '.3f'))


# ----------------------------------------------------------------------------------------------
# The claims, on the seeds 40 to 49


def rows_of(task, arms=SHOWN):
    """The rows on text or passkey of these arms, with the columns `stage` and `arm`."""
    names, stages = ARMS | ADAMW, list(STAGES.values())
    rows = [dict(row, stage=STAGES[row['study'].removeprefix(task)], arm=names[row['name']])
            for row in read(task)]
    return sorted([row for row in rows if row['arm'] in arms],
                  key=lambda row: (stages.index(row['stage']), arms.index(row['arm'])))


# Ten seeds cannot give a p below 0.002, so few comparisons are made: Holm's factor is their number.
COMPARED = {PAPER: ['TAPA'], TUNED: ['TAPA', 'Spectral', 'Spectral, A alone', 'LeRoPE']}
BY_ADAMW = dict.fromkeys([PAPER, ADAMW['rope_adamw']], [ADAMW['spectral_adamw']])


def claims_on(task, measure, digits, compared_at, compared=COMPARED, arms=SHOWN):
    """Arms by a measure at multiples of L; TAPA and Spectral against RoPE at some of them."""
    against, measures = {}, {}
    for multiple in compared_at:
        for rope, others in compared.items():
            header = f'at {times(multiple)}, against {rope}'
            against[header] = (lambda key, rope=rope, others=others:
                               (key[0], rope) if key[1] in others else None)
            measures[header] = measure(multiple)
    lengths = {times(multiple): spread(measure(multiple), digits) for multiple in MULTIPLES}
    return table_of_arms(rows_of(task, arms), ['stage', 'arm'], {'n': len} | lengths, against,
                         measures)


def times(multiple):
    """'4L', or 'L'."""
    return f'{multiple}L' if multiple > 1 else 'L'


def perplexity(multiple):
    """The measure: the perplexity a byte at a multiple of L, in sliding windows."""
    return column(f'perplexity@{multiple * L["text"]}')


def keys_found(multiple):
    """The measure: the strings (%) of a multiple of L in which all five digits are right."""
    return column(f'exact@{multiple * L["passkey"]}', 100)


def heads():
    """The head of each model that looks one token back most: its attention one and two back."""
    rows = [row for row in rows_of('text') if row['study'] == 'text']
    return table_of_arms(rows, ['arm'], {
        'n': len, 'one token back (%)': spread(column('one_back', 100)),
        'two tokens back (%)': spread(column('two_back', 100))})


TABLES = dict(
    text_search=lambda: search(read('text_search'), listed(best_loss, '.3f')),
    passkey_search=lambda: search(read('passkey_search'), listed(updates)),
    tapa_forms=tapa_forms, tuning_search=tuning_search, heads=heads,
    text_claims=lambda: claims_on('text', perplexity, 2, (1, 4)),
    text_adamw=lambda: claims_on('text', perplexity, 2, (1, 4), BY_ADAMW,
                                 (PAPER, *ADAMW.values())),
    passkey=lambda: claims_on('passkey', keys_found, 1, (4,)))
