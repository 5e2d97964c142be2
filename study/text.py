"""The tables on text and passkey: TAPA's claims, perplexity by context, depth, searches."""

import statistics

from lab.table import (best_loss, column, count, groups_of, listed, markdown, quartiles,
                       same_seeds, show, solved, spread, table)
from study.rows import read

L = 256  # the training length of text
PAPER, TUNED = 'RoPE as the paper has it', 'RoPE tuned'
EXTENSIONS = {'rope_base=40000': 'base', 'rope=ntk:factor=8': 'ntk', 'rope=yarn:factor=8': 'yarn'}
STAGES = {'long': 'as trained, AdamW', 'long_muon': 'as trained, Muon',
          'confirm': 'as trained, Muon', 'tuned': 'tuned at 4L, AdamW'}
ORDER = ['nope', 'rope', 'spectral', 'bifocal', 'tapa']
RATE = dict(adamw='learning_rate', muon='muon_lr')


def plain(name, *studies):
    """The rows of a CSV that were measured as they are, with the column `arm`."""
    return [dict(row, arm=arm_of(row)) for row in read(name, *studies) if not row['override']]


def arm_of(row):
    """'rope-base40' of a run with the name 'text-rope-base40'."""
    return row['name'].partition('-')[2]


def perplexity(multiple):
    """The measure: the perplexity a byte at a multiple of L, in sliding windows."""
    return column(f'perplexity@{multiple * L}')


PERPLEXITIES = {'n': len} | {f'{multiple}L' if multiple > 1 else 'L':
                             spread(perplexity(multiple), 2) for multiple in (1, 2, 4, 8)}


def tapa_claims():
    """TAPA in its best form on text, against both of RoPE, at L and at 4L."""
    arms = {('tapa', 'muon', 10000): 'TAPA', ('rope', 'adamw', 10000): PAPER,
            ('rope', 'muon', 100): TUNED}
    rows = [dict(row, arm=arms.get((row['attention'], row['optimizer'], row['rope_base'])))
            for row in plain('text', 'confirm', 'base', 'long_muon')
            if row['study'] == 'confirm' or row['attention'] == 'rope']
    rows = [row for row in rows if row['arm'] and 'base40' not in row['name']]
    rows.sort(key=lambda row: row['arm'] != 'TAPA')
    against = {f'at {"4L" if multiple > 1 else "L"}, against {other}':
               (lambda key, other=other: (other,) if key == ('TAPA',) else None)
               for multiple in (1, 4) for other in (PAPER, TUNED)}
    measures = {header: perplexity(4 if header.startswith('at 4L') else 1) for header in against}
    return table(rows, ['arm'], PERPLEXITIES, against, measures)


def context_rows():
    """The rows on text by stage and arm; RoPE's extensions and TAPA's best form are own arms."""
    rows = []
    for study, stage in STAGES.items():
        for row in read('text', study):
            arm = arm_of(row)
            if row['override']:
                arm += f'-{EXTENSIONS[row["override"]]}'
            if study == 'confirm':
                arm = arm.replace('tapa', 'tapa-best')
            if study != 'confirm' or row['optimizer'] == 'muon':
                rows.append(dict(row, stage=stage, arm=arm))
    stages = list(dict.fromkeys(STAGES.values()))
    rows.sort(key=lambda row: (stages.index(row['stage']), '-' in row['arm'],
                               ORDER.index(row['attention'])))
    return rows


def context():
    """Perplexity of Python code by the length of the context."""
    return table(context_rows(), ['stage', 'arm'], PERPLEXITIES)


def bases():
    """Fixed and learned frequencies on text: RoPE's bases, what of Spectral is learned."""
    rows = plain('text', 'base', 'ablation', 'budget')
    rows += [row for row in plain('text', 'long')
             if row['arm'] in ('nope', 'rope', 'spectral', 'tapa')]
    rows = [dict(row, updates=row['max_iters'],
                 arm=row['arm'].replace('rope', 'rope-base100') if row['arm'] == 'rope'
                 else row['arm']) for row in rows]
    rows.sort(key=lambda row: (row['updates'], row['attention'] != 'rope', row['attention'],
                               -row['rope_base']))
    return table(rows, ['updates', 'arm'], PERPLEXITIES)


def depth():
    """RoPE's loss on text at L by the number of layers; NoPE and TAPA, less RoPE."""
    kept = {('long_muon', 'nope'), ('long_muon', 'rope'), ('confirm', 'tapa')}
    rows = plain('text', 'depth', 'bpe')
    rows += [row for row in plain('text', 'long_muon', 'confirm')
             if (row['study'], row['arm']) in kept]
    for row in rows:
        reads = 'tokens' if row['study'] == 'bpe' else 'bytes'
        row['setting'] = f'{row["n_layer"]} layers, {reads}'
    groups = groups_of(rows, ['setting', 'attention'])
    lines = []
    for setting in sorted({setting for setting, _ in groups}):
        rope = groups[setting, 'rope']
        gaps = [[a['best_loss'] - b['best_loss'] for a, b in zip(*same_seeds(ours, rope))]
                for ours in (groups[setting, 'nope'], groups[setting, 'tapa'])]
        lines.append([setting, listed(best_loss, '.3f')(rope),
                      *(', '.join(f'{gap:+.3f}' for gap in values) for values in gaps)])
    return markdown(['setting', 'RoPE: loss by seed', 'NoPE, less RoPE', 'TAPA, less RoPE'],
                    lines)


def heads():
    """The head of each model that looks one token back most: its attention one and two back."""
    rows = [dict(row, layers=row['n_layer'], arm=row['arm'].partition('-layers')[0])
            for row in plain('text', 'confirm', 'depth')]
    rows.sort(key=lambda row: (row['layers'], row['arm']))
    return table(rows, ['layers', 'arm'], {
        'n': len, 'one token back (%)': spread(column('one_back', 100)),
        'two tokens back (%)': spread(column('two_back', 100))})


def passkey():
    """All five digits right, by the length of the string, after one search by reach."""
    stages = dict(searched='as trained', searched_tuned='tuned at 4L')
    rows = [dict(row, stage=stages[row['study']], arm=row['attention'])
            for row in read('passkey')]
    rows.sort(key=lambda row: (row['study'], ORDER.index(row['arm'])))
    lengths = {f'{length} tokens (%)': spread(column(f'exact@{length}', 100))
               for length in (64, 128, 256, 512)}
    return table(rows, ['stage', 'arm'], {'n': len} | lengths)


# ----------------------------------------------------------------------------------------------
# What was searched


def form(row):
    """'factor 1, α = 0.5, θ = 0.0625, init_std 0.02' of a row of TAPA, without its rate."""
    factor = '1' if row['tapa_scale'] == 1 else '2π'
    return (f'factor {factor}, α = {row["tapa_alpha"]:g}, θ = {row["tapa_theta"]:g}, '
            f'init_std {row["init_std"]:g}')


def tapa_forms():
    """TAPA's search on text, on the first tuning seed: the least loss of a form at any rate."""
    rows = [dict(row, form=form(row)) for row in plain('tuning', 'tapa', 'long_muon_rates')
            if row['attention'] == 'tapa' and row['task'] == 'text' and row['seed'] == 100]
    found = {key: min(map(best_loss, group)) for (key,), group in groups_of(rows, ['form']).items()}
    return markdown(['form', 'loss'], [[key, f'{found[key]:.3f}']
                                       for key in sorted(found, key=found.get)])


def text_rates():
    """Every rate that was tried on text: the loss by seed."""
    rows = [row for row in plain('tuning', 'sweep', 'long_muon_rates') if row['task'] == 'text']
    for row in rows:
        row['arm'] = '-'.join(part for part in row['arm'].split('-') if not numeric(part))
    rows.sort(key=lambda row: (row['optimizer'], ORDER.index(row['attention']), row['arm']))
    lines = []
    for (optimizer, arm), group in groups_of(rows, ['optimizer', 'arm']).items():
        rates = groups_of(group, [RATE[optimizer]])
        cells = [f'{rate:g}: {listed(best_loss, ".3f")(rates[rate,])}'
                 for rate in sorted(rate for rate, in rates)]
        lines.append([optimizer, arm, '; '.join(cells)])
    return markdown(['optimiser', 'arm', 'rate: loss by seed'], lines)


def numeric(text):
    return text.replace('.', '').replace('e', '').isdigit()


def passkey_search():
    """Settings of RoPE, NoPE and TAPA on the tuning seeds with their best rate."""
    rows = plain('tuning', 'passkey_search')
    for row in rows:
        row['setting'] = {'rope': f'base {row["rope_base"]:g}',
                          'tapa': form(row)}.get(row['attention'], '')
    lengths = (128, 256, 512)

    def merit(group):
        found = [row[f'exact@{length}'] for row in group for length in lengths]
        return len(group), sum(map(solved, group)), statistics.mean(found)

    best = {}
    for (arm, setting, rate), group in groups_of(rows, ['attention', 'setting', 'muon_lr']).items():
        other = best.get((arm, setting))
        if other is None or merit(group) > merit(other):
            best[arm, setting] = group
    rows = [row for key in sorted(best) for row in best[key]]
    return table(rows, ['attention', 'setting', 'muon_lr'], {
        'solved': count(solved), 'loss at L': quartiles(best_loss, '.2g')}
        | {f'{length} tokens (%)': listed(column(f'exact@{length}', 100), '.0f')
           for length in lengths})


OWN = (tapa_claims, context, bases, depth, heads, passkey, tapa_forms, text_rates, passkey_search)
TABLES = {table.__name__: table for table in OWN}
