"""
The rows behind every table of the trial: a CSV a study, a row a run.

    python -m lab.results                # gathers the finished runs of out/trial/STUDY/NAME-SEED
    python -m lab.results --runs DIR     # the same for a folder of studies elsewhere, old ones too

A run is a folder with config.json, log.jsonl and at least one eval*.json. Its row in lab/results/STUDY.csv has:

    name, seed        the folder's name is NAME-SEED
    override          what was measured, if not best.pt as it is: another file, such as checkpoint=crystal.pt, or
                      options that were changed after training, such as log_scale=64; each has a row of its own
    attention, task   and every other option of train.py that differs from its default in some run of the study
    commit ... torch  what the run was made with; of a resumed run, each session's
    best_loss         the least validation loss (nats); final_loss is the last one
    solved_at         the first iteration with a validation loss at or below 0.01
    lock_in           the first iteration from which some pair stays within 0.001 of a harmonic (radians per token)
    MEASURE@LENGTH    of the evaluation, at a length in tokens: accuracy, headline, exact, perplexity

and what some study's tables need besides (WANTED). lab/results/curves/STUDY.json.xz has what figures draw beyond a row.
"""

import argparse
import csv
import functools
import json
import lzma
import math
import re
import statistics
import sys
from pathlib import Path

import numpy as np

from eval import LOCKED, read_log
from tasks import make_task

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'lab' / 'results'
RUNS = ROOT / 'out' / 'trial'
CRYSTALS = ('crystal', 'crystal_periods', 'crystal_parts', 'crystal_noise', 'crystal_none')  # of lab/crystallise.py
SOLVED = 0.01  # nats of validation loss

# the options of train.py with their defaults: an option that no run of a study changed has no column. When the first
# trial was run, AdamW was the default and the only optimiser.
DEFAULTS = dict(
    init_from='scratch', dtype='auto', compile='auto', task='dyck', block_size=64, batch_size=64,
    gradient_accumulation_steps=1, n_layer=2, n_head=2, n_kv_head=0, n_embd=64, init_std=0.0, attention='rope',
    rope_base=10000.0, rope='geometric', n_spectral_head=0, spectral_shared=False, learn='frequency,amplitude,phase',
    phase_std=1e-3, phase_on='query', log_scale=0, tapa_alpha=0.1, tapa_theta=0.5, tapa_phase='quadratic',
    max_iters=1000, learning_rate=2e-3, lr_end=0.0, warmup_iters=50, weight_decay=0.1, beta1=0.9, beta2=0.99,
    optimizer='adamw', muon_lr=0.02, grad_clip=1.0, spectral_lr=1e-2, frequency_decay=0.0, amplitude_decay=0.0,
    spectral_start=0, log_interval=10, eval_interval=100, eval_sequences=512)
NOT_STORED = ('out_dir', 'seed', 'overwrite', 'device')  # where a run was made, and what has a column of its own

# ----------------------------------------------------------------------------------------------------------------------
# Old spellings of options, of the logs up to November 2026

OLD_ROPE = ('rope_grid', 'rope_period', 'rope_scaling', 'rope_factor', 'rope_original', 'yarn_beta_fast',
            'yarn_beta_slow', 'yarn_gain', 'llama3_high', 'llama3_low')
OLD_LEARN = {'learn_frequency': 'frequency', 'learn_amplitude': 'amplitude', 'learn_phase': 'phase'}
# old option -> (its name in rope='yarn:...', its default)
OLD_EXTENSION = {'rope_original': ('original', 0), 'yarn_beta_fast': ('fast', 32.0), 'yarn_beta_slow': ('slow', 1.0),
                 'yarn_gain': ('gain', 0.0), 'llama3_high': ('high', 4.0), 'llama3_low': ('low', 1.0)}
# options that are gone, or fields of GPTConfig only; the logs have nothing but their defaults
GONE = ('n_inner', 'head_dim', 'norm_eps', 'tie_embeddings', 'tapa_fused', 'spectral_weight_decay')

# what the code below does, for people: `python -m lab.report spellings` prints it
SPELLINGS = {
    '--rope_grid=linear': '--rope=linear',
    '--rope_grid=resonance': '--rope=resonance',
    '--rope_grid=harmonic --rope_period=10': '--rope=harmonic:period=10',
    '--rope_scaling=pi --rope_factor=8': '--rope=pi:factor=8',
    '--rope_scaling=ntk --rope_factor=8': '--rope=ntk:factor=8',
    '--rope_scaling=yarn --rope_factor=8 --rope_original=256 --yarn_beta_fast=4 --yarn_beta_slow=2 --yarn_gain=1.1':
        '--rope=yarn:factor=8,original=256,fast=4,slow=2,gain=1.1',
    '--rope_scaling=llama3 --rope_factor=8 --rope_original=8192 --llama3_high=3 --llama3_low=2':
        '--rope=llama3:factor=8,original=8192,high=3,low=2',
    '--learn_frequency=False': '--learn=amplitude,phase',
    '--learn_frequency=False --learn_amplitude=False --learn_phase=False': '--learn=none',
    '--train_only=spectral': '--learning_rate=0',
    '--n_spectral_head=-1': '--n_spectral_head=0',
    '--init_from=results/STUDY/NAME-SEED/best.pt': '--init_from=out/trial/STUDY/NAME-SEED/best.pt',
}


def respell(options):
    """
    Options of a config.json or overrides of an eval.json, {name: value}, in today's spelling.

    Today's options pass unchanged. Raises ValueError for an option that is neither in DEFAULTS nor an old one.
    """
    known = {*DEFAULTS, *NOT_STORED, *OLD_ROPE, *OLD_LEARN, *GONE, 'train_only'}
    if unknown := set(options) - known:
        raise ValueError(f'unknown option {", ".join(sorted(unknown))}: lab/results.py lists them in DEFAULTS')
    new = {key: value for key, value in options.items() if key in DEFAULTS}
    if any(key in options for key in OLD_ROPE):
        new['rope'] = respell_rope(options)
    if any(key in options for key in OLD_LEARN):
        new['learn'] = ','.join(part for key, part in OLD_LEARN.items() if options.get(key, True)) or 'none'
    if options.get('train_only') == 'spectral':
        new['learning_rate'] = 0.0
    if options.get('n_spectral_head') == -1:
        new['n_spectral_head'] = 0
    if options.get('init_from', '').startswith('results/'):
        new['init_from'] = 'out/trial/' + options['init_from'].removeprefix('results/')
    return new


def respell_rope(options):
    """The option `rope` that says what rope_grid, rope_scaling and their companions said."""
    grid, scaling = options.get('rope_grid', 'geometric'), options.get('rope_scaling', 'none')
    if scaling == 'none':
        return f'harmonic:period={options["rope_period"]}' if grid == 'harmonic' else grid
    words = [f'factor={options["rope_factor"]:g}']
    for key, (name, default) in OLD_EXTENSION.items():
        if options.get(key, default) != default:
            words.append(f'{name}={options[key]:g}')
    return f'{scaling}:{",".join(words)}'


def spell(options):
    """{name: value} as words of a command, 'rope=pi:factor=8 log_scale=64'."""
    shown = {key: format(value, 'g') if isinstance(value, float) else value for key, value in options.items()}
    return ' '.join(f'{key}={value}' for key, value in shown.items())


def override_of(result):
    """What tells the evaluations of a run apart, 'checkpoint=crystal.pt' or 'log_scale=64'; '' for best.pt as it is."""
    checkpoint = result.get('checkpoint') or 'best.pt'
    words = {} if checkpoint == 'best.pt' else dict(checkpoint=checkpoint)
    override = spell(words | respell(result.get('overrides', {})))
    return held(override) if result.get('held_shares') else override


def held(override):
    """The override of the same evaluation with held shares, an option of lab/measure.py."""
    return f'{override} held_shares=True'.strip()


# ----------------------------------------------------------------------------------------------------------------------
# From a folder to a row


def warn(text):
    """Prints to stderr: what is on stdout may be a table of a report."""
    print(printable(text), file=sys.stderr, flush=True)


def printable(value):
    """A text without what would move a terminal's cursor or colour it; anything else as it is."""
    return ''.join(char if char.isprintable() else '?' for char in value) if isinstance(value, str) else value


def read_run(folder, name='eval.json', wanted=()):
    """
    The row of the run in `folder` as measured in its file `name`, {column: value}; None if the run is not whole.

    `wanted` are functions of WANTED. The key 'curves' has what figures draw and 'folder' the run's path; neither is a
    column. What is missing in a run that is not whole goes to stderr.
    """
    folder = Path(folder)
    missing = [file for file in ('config.json', 'log.jsonl', name) if not (folder / file).exists()]
    if missing:
        warn(f'skipped {folder}: it has no {", ".join(missing)}')
        return None
    try:
        config, log = json.loads((folder / 'config.json').read_text()), read_log(folder)
        result = json.loads((folder / name).read_text())
        last, max_iters = max((line['iter'] for line in log), default=0), config['options']['max_iters']
        if last >= max_iters:
            row = make_row(folder, config, log, result, wanted)
            return {key: printable(value) for key, value in row.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:  # a stranger's file may say anything
        warn(f'skipped {folder}: a file is broken ({type(error).__name__}, {error})')
        return None
    warn(f'skipped {folder}: it stopped at iteration {last} of {max_iters}')
    return None


def find_task(spec):
    """The task that a run names; None for a text in tokens, whose vocabulary is not opened because a run names it."""
    return None if 'encoding=' in spec else make_task(spec)


def make_row(folder, config, log, result, wanted=()):
    """The row of a run, from the dicts of its config.json, log.jsonl and eval.json; `result` is {} if it has none."""
    options = {key: type(DEFAULTS[key])(value) for key, value in (DEFAULTS | respell(config['options'])).items()}
    task = find_task(options['task'])
    period = getattr(task, 'period', None)
    options['task'] = str(task or options['task'])  # of its spellings the shortest
    seed = config['options']['seed']
    row = dict(name=folder.name.removesuffix(f'-{seed}'), seed=seed, override=override_of(result))
    row |= {'attention': options.pop('attention'), 'task': options.pop('task')} | options
    for key in ('commit', 'date', 'processor', 'threads', 'torch'):
        row[key] = '; '.join(dict.fromkeys(str(session[key]) for session in config['sessions']))
    row |= of_training(log, period) | of_frequencies(result)
    row |= {'period': period, 'chance': result.get('chance'), 'checkpoint': result.get('checkpoint'),
            'split': result.get('split'), 'n': result.get('n')}
    row['scored'] = ' '.join(reversed(result.get('headline') or ['all targets']))
    row |= {f'measured_{key}': result.get(key) for key in ('commit', 'date', 'processor')}
    row |= by_length(result)
    run = dict(row=row, log=log, result=result, folder=folder)
    for measure in wanted:
        row |= measure(run)
    return row | dict(folder=folder, curves=curves_of(run))


def of_training(log, period):
    """What the log says of a run: its time (seconds), losses (nats) and when things happened (iterations)."""
    lines = [line for line in log if 'val_loss' in line]
    solved = (line['iter'] for line in lines if line['val_loss'] <= SOLVED)
    return dict(seconds=log[-1]['seconds'], iterations=log[-1]['iter'],
                best_loss=min(line['val_loss'] for line in lines), final_loss=lines[-1]['val_loss'],
                solved_at=next(solved, None), lock_in=lock_in(lines, period))


def lock_in(lines, period):
    """
    The first iteration from which some pair stays within LOCKED of a harmonic 2 pi j / period to the end.

    `lines` are the validations of a log; j is no multiple of the period. None if no pair does, or there is no period.
    """
    lines = [line for line in lines if 'Omega' in line]
    if not period or not lines:
        return None
    omega = np.abs([np.ravel(line['Omega']) for line in lines])  # (validations, pairs)
    j = np.round(omega * period / (2 * math.pi))
    locked = (np.abs(omega - 2 * math.pi * j / period) < LOCKED) & (j % period != 0)
    stays = np.cumprod(locked[::-1], axis=0).sum(axis=0)  # of each pair: validations locked, at the end
    return lines[len(lines) - stays.max()]['iter'] if stays.max() else None


def of_frequencies(result):
    """How many of the learned pairs are locked, of how many, and onto which harmonics."""
    rows = result.get('frequencies', [])
    if not rows:
        return dict(locked=None, pairs=None, harmonics=None)
    locked = [row for row in rows if row.get('locked')]
    harmonics = ','.join(map(str, sorted({row['harmonic'] for row in locked})))
    return dict(locked=len(locked) if 'locked' in rows[0] else None, pairs=len(rows), harmonics=harmonics or None)


def by_length(result):
    """The columns MEASURE@LENGTH of every run: accuracies as shares of 1, and on text perplexities."""
    columns = {}
    for length, cells in result.get('lengths', {}).items():
        columns |= {f'{measure}@{length}': cells[measure] for measure in ('accuracy', 'headline', 'exact')}
    for way in ('sliding', 'same targets') if 'perplexity' in result else ():
        for length, cells in result['perplexity'][way].items():
            columns[f'perplexity@{length} {way}'] = cells['perplexity']
    return columns


# ----------------------------------------------------------------------------------------------------------------------
# Columns that the tables of some studies need: functions of run = {row, log, result, folder}


def positions(run):
    """On modulo: the accuracy at positions of the longest strings, in octaves."""
    length = max(run['result']['lengths'], key=int)
    cells = run['result']['lengths'][length]['breakdown'].get('position', {})
    return {f'accuracy@{length} position: {label}': cell[0] for label, cell in cells.items()}


def turns_of(run):
    """On bio_rotation: {turn: accuracy} in strings of the training length and in the longest."""
    lengths = run['result'].get('lengths', {})
    ends = [lengths[min(lengths, key=int)], lengths[max(lengths, key=int)]]
    return [{int(turn): cell[0] for turn, cell in end['breakdown'].get('turn', {}).items()} for end in ends]


def turns(run):
    """On bio_rotation: how many turns of the helix are read right (above 0.95), in the training length and beyond."""
    inside, longest = turns_of(run)
    if not inside:
        return {}
    beyond = {turn: accuracy for turn, accuracy in longest.items() if turn > max(inside)}
    return dict(turns=len(inside), turns_right=sum(accuracy > 0.95 for accuracy in inside.values()),
                turns_missing=','.join(str(turn) for turn, accuracy in inside.items() if accuracy <= 0.95) or None,
                turns_beyond=len(beyond), turns_right_beyond=sum(accuracy > 0.95 for accuracy in beyond.values()))


def eyes(run):
    """Bifocal: the headline accuracy at the training length with either kind of eye closed."""
    length = run['row']['block_size']
    closed = run['result'].get('eyes', {})
    return {f'headline@{length} without {label}': cells['headline'] for label, cells in closed.items()}


def states(run):
    """On dyck: cosines of the mean representations of neighbouring depths, as they are and centred."""
    columns = {}
    for layer, cells in enumerate(run['result'].get('state_similarity') or []):
        for depth in ('3', '7', '10'):
            cosine, centred = cells.get(depth, (None, None))
            columns[f'cosine after layer {layer} depth {depth}'] = cosine
            columns[f'centred cosine after layer {layer} depth {depth}'] = centred
    return columns


def periodic_shares(run):
    """With a period: the share of each head's score by distance that has this period."""
    if not run['row']['period']:
        return {}
    return {f'periodic_share layer {layer} head {head}': periodic_share(profile, run['row']['period'])
            for layer, heads in enumerate(run['result'].get('score_by_distance', []))
            for head, profile in enumerate(heads)}


def periodic_share(profile, period):
    """Of the variance of a score over distance, the share that the means of each distance mod `period` explain."""
    values = [(d, v) for d, v in enumerate(profile) if v is not None]
    mean = statistics.mean(v for _, v in values)
    classes = {}
    for d, v in values:
        classes.setdefault(d % period, []).append(v)
    between = sum(len(c) * (statistics.mean(c) - mean) ** 2 for c in classes.values())
    total = sum((v - mean) ** 2 for _, v in values)
    return between / total if total else 0.0


def loops(run):
    """On passkey: the share of haystacks with all five digits right, with the other filler, by length."""
    cells = run['result'].get('variants', {}).get('loop', {})
    return {f'exact@{length} loop': cell['exact'] for length, cell in cells.items()}


def brackets(run):
    """On code: the accuracy on closing brackets at the training length, in every group of the breakdown."""
    if 'perplexity' not in run['result']:
        return {}
    length = run['row']['block_size']
    groups = run['result']['lengths'].get(str(length), {}).get('breakdown', {})
    return {f'accuracy@{length} {name}: {label}': cell[0] for name, cells in groups.items()
            for label, cell in cells.items()}


def bias(run):
    """On text: the score of a near key less that of a far one, by layer, before and after training."""
    return {f'bias layer {layer} {when} {measure}': cells[measure]
            for when, layers in run['result'].get('distance_bias', {}).items() for layer, cells in enumerate(layers)
            for measure in ('mean', 'sd')}


def pair_means(run):
    """On text: E A and E B of assumption 2.1, their mean and spread over pairs, by layer; means over heads."""
    columns = {}
    for layer, parts in enumerate(run['result'].get('pair_means', [])):
        for part in ('A', 'B'):
            columns[f'E {part} layer {layer} mean'] = statistics.mean(map(statistics.mean, parts[part]))
            columns[f'E {part} layer {layer} sd'] = statistics.mean(map(statistics.stdev, parts[part]))
    return columns


def slow_pairs(run):
    """The share of pairs that do not turn once within the training length, at the start and at the end."""
    row, lines = run['row'], [line for line in run['log'] if 'Omega' in line]
    if lines:
        ends = [np.ravel(lines[end]['Omega']) for end in (0, -1)]
    elif row['attention'] == 'rope' and row['rope'] == 'geometric':
        size = row['n_embd'] // row['n_head']
        ends = 2 * [row['rope_base'] ** (-np.arange(0, size, 2) / size)]
    else:
        return {}
    shares = [float(np.mean(np.abs(omega) * row['block_size'] < 2 * math.pi)) for omega in ends]
    return dict(slow_pairs_start=shares[0], slow_pairs_end=shares[1])


def moved(run):
    """The median move of a frequency, as a share of the theta that it set off from."""
    rows = run['result'].get('frequencies', [])
    moves = [abs(row['Omega'] / row['theta'] - 1) for row in rows if row.get('theta')]
    return dict(median_move=statistics.median(moves)) if moves else {}


def crystal_record(run):
    """What lab/crystallise.py wrote when it made the measured checkpoint, or read it; {} if it did neither."""
    place = (run['folder'] / (run['result'].get('checkpoint') or 'best.pt')).parent
    path = (place.parent if place.name == 'settled' else place) / 'crystal.json'
    return json.loads(path.read_text()) if path.exists() else {}


def crystal(run):
    """
    The period that was found (None: none was, or it was given), the q of the crystal, and the loss of the measured
    checkpoint at the training length (nats), for best_loss is that of the training.
    """
    record, cells = crystal_record(run), run['result'].get('lengths', {}).get(str(run['row']['block_size']), {})
    return dict(found=None if record.get('given') else record.get('period'), q=record.get('q'), loss=cells.get('loss'))


WANTED = {'headline': (turns, positions, eyes, states, periodic_shares),
          'extrapolation': (positions,), 'extrapolation_again': (positions,),
          'long': (loops, brackets, bias, pair_means, slow_pairs, moved),
          'tuned': (loops,), 'long_muon': (loops,), 'base': (slow_pairs,),
          'ablation': (slow_pairs,), 'surgery': (brackets, moved),
          **dict.fromkeys(CRYSTALS, (crystal,))}


# ----------------------------------------------------------------------------------------------------------------------
# What figures draw beyond a row

DRAWN = {'headline': ('losses', 'Omega', 'locked', 'profile', 'turns'), 'surgery': ('losses', 'moves'),
         'long': ('keys', 'histograms'), 'tuned': ('keys',), 'long_muon': ('keys',),  # of the curves below, by study
         **dict.fromkeys(CRYSTALS, ('spectrum',))}


def curves_of(run):
    """
    All that a figure may draw of a run, {name: lists}.

    losses      [iterations], [validation losses in nats]
    Omega       [iterations], [Omega of every pair at each, in radians per token]; the order is layer, head, pair
    locked      the pairs that are locked in the measured checkpoint, as places in that order
    moves       [theta before], [Omega after] of every pair, radians per token
    profile     score by distance of each head of the first layer
    turns       {turn: accuracy} of bio_rotation in the longest strings
    keys        {length: {depth of the key: share of haystacks with all digits right}}
    histograms  {edge: half-width in scores, counts} by layer, of the score of a near key less that of a far one
    spectrum    [loss as trained, losses for q = 2, 3, ...] in nats, of lab/crystallise.py
    """
    result, lines = run['result'], [line for line in run['log'] if 'val_loss' in line]
    curves = dict(losses=[[line['iter'] for line in lines], [line['val_loss'] for line in lines]])
    if lines and 'Omega' in lines[0]:
        curves['Omega'] = [curves['losses'][0], [np.ravel(line['Omega']).tolist() for line in lines]]
        curves['locked'] = [i for i, row in enumerate(result.get('frequencies', [])) if row.get('locked')]
    if result.get('frequencies') and 'theta' in result['frequencies'][0]:
        curves['moves'] = [[row[key] for row in result['frequencies']] for key in ('theta', 'Omega')]
    if 'score_by_distance' in result:
        curves['profile'] = result['score_by_distance'][0]
    if result.get('lengths') and turns_of(run)[1]:
        curves['turns'] = turns_of(run)[1]
    keys = {length: cells['breakdown'].get('depth of the key') for length, cells in result.get('lengths', {}).items()}
    if any(keys.values()):
        curves['keys'] = {length: {label: cell[2] for label, cell in cells.items()} for length, cells in keys.items()}
    if 'distance_bias' in result:
        layers = result['distance_bias']['trained']
        curves['histograms'] = [{kind: cells[kind] for kind in ('edge', 'counts')} for cells in layers]
    if record := crystal_record(run):
        losses = [record['trained'], *(loss for loss, _ in record['spectrum'].values())]
        curves['spectrum'] = [float(f'{loss:.4g}') for loss in losses]
    return curves


def drawn_curves(study, row):
    """The curves of a run that some figure of the study draws, {name: lists}."""
    curves = {kind: row['curves'][kind] for kind in DRAWN.get(study, ()) if kind in row['curves']}
    arm = row['name'].rpartition('-')[2]
    if not row['period'] or arm != 'spectral':
        curves.pop('Omega', None)
        curves.pop('locked', None)
    if not row['period'] or arm not in ('rope', 'spectral', 'bifocal', 'oracle') or row['seed'] != 0 or row['override']:
        curves.pop('profile', None)
    if arm not in ('rope', 'tapa') or row['override']:
        curves.pop('histograms', None)
    if row['override']:
        curves.pop('spectrum', None)
    return curves


# ----------------------------------------------------------------------------------------------------------------------
# The CSVs

TEXTS = ('name', 'override', 'commit', 'date', 'processor', 'threads', 'torch', 'harmonics', 'checkpoint', 'split',
         'scored', 'turns_missing', 'measured_commit', 'measured_date', 'measured_processor')  # all others are numbers
# an empty column is not written
OFTEN_EMPTY = ('solved_at', 'lock_in', 'locked', 'pairs', 'harmonics', 'period', 'found', 'q')


def parse(column, text):
    """The value of a cell: None if it is empty, else of the column's type."""
    if column in DEFAULTS:
        kind = type(DEFAULTS[column])
        return text == 'True' if kind is bool else kind(text)
    if column in TEXTS:
        return text or (None if column != 'override' else '')
    if text == '':
        return None
    return int(text) if text.lstrip('-').isdigit() else float(text)


@functools.cache
def read_study(path):
    """The rows of the CSV at `path`, a tuple; under the key 'curves' what is drawn of a run, {} for nothing."""
    if not path.exists():
        return ()
    compressed = path.parent / 'curves' / f'{path.stem}.json.xz'
    curves = json.loads(lzma.decompress(compressed.read_bytes())) if compressed.exists() else {}
    rows = []
    with open(path, newline='') as file:
        for cells in csv.DictReader(file):
            row = DEFAULTS | dict.fromkeys(OFTEN_EMPTY)
            row |= {column: parse(column, text) for column, text in cells.items()}
            rows.append(row | dict(study=path.stem, curves=curves.get(key(row), {})))
    return tuple(rows)


def at_lengths(row, measure, ending=''):
    """{length in tokens: value} of the columns MEASURE@LENGTH of a row, or of those that end with `ending` besides."""
    pattern = re.compile(rf'{measure}@(\d+){ending}')
    found = ((pattern.fullmatch(column), value) for column, value in row.items() if value is not None)
    return {int(match[1]): value for match, value in found if match}


def columns_of(row, start):
    """The columns of a row that begin with `start` and are not empty."""
    return [column for column, value in row.items() if column.startswith(start) and value is not None]


def study(name):
    """The rows of lab/results/NAME.csv, sorted by name, seed and override."""
    return read_study(RESULTS / f'{name}.csv')


def group(name, prefix, arms, override=''):
    """{arm: [rows by seed]} of the runs PREFIX-ARM of a study; an arm without runs is left out."""
    found = {}
    for arm in arms:
        rows = [row for row in study(name) if row['name'] == f'{prefix}-{arm}' and row['override'] == override]
        if rows:
            found[arm] = rows
    return found


def key(row):
    """What tells the rows of a study apart."""
    return f'{row["name"]}-{row["seed"]}' + (f' {row["override"]}' if row['override'] else '')


def length_of(column):
    """The length in tokens of a column MEASURE@LENGTH, 0 of others: by it columns are sorted."""
    found = re.search(r'@(\d+)', column)
    return int(found[1]) if found else 0


def write_study(name, rows):
    """Writes lab/results/NAME.csv and the curves beside it."""
    rows = sorted(rows, key=lambda row: (row['name'], row['seed'], row['override']))
    columns = {column: [row.get(column) for row in rows] for row in rows for column in row}
    for column in ('folder', 'curves', 'study'):
        columns.pop(column, None)
    always = ('name', 'seed', 'override', 'attention', 'task')
    columns = [column for column, values in columns.items()
               if column in always or any(value != DEFAULTS.get(column) for value in values)]
    columns.sort(key=length_of)
    RESULTS.mkdir(parents=True, exist_ok=True)
    with open(RESULTS / f'{name}.csv', 'w', newline='') as file:
        writer = csv.DictWriter(file, columns, extrasaction='ignore', lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
    kept = {key(row): curves for row in rows if (curves := drawn_curves(name, row))}
    if kept:
        (RESULTS / 'curves').mkdir(exist_ok=True)
        text = json.dumps(kept, separators=(',', ':'))
        (RESULTS / 'curves' / f'{name}.json.xz').write_bytes(lzma.compress(text.encode(), preset=9))
    read_study.cache_clear()


def gather(name, folders):
    """
    Puts the rows of the finished runs in `folders` into a study, in the place of rows of the same name and seed.

    Returns the number of runs.
    """
    found = []
    for folder in folders:
        files = sorted(path.name for path in folder.glob('eval*.json')) or ['eval.json']
        found += [row for row in (read_run(folder, file, WANTED.get(name, ())) for file in files) if row]
    replaced = {(row['name'], row['seed']) for row in found}
    kept = [row for row in study(name) if (row['name'], row['seed']) not in replaced]
    if found:
        write_study(name, kept + found)
    return len(replaced)


def main(arguments=None):
    """Gathers what the command line `arguments` (default: sys.argv) name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('studies', nargs='*', metavar='STUDY', help='folders of --runs (default: all)')
    parser.add_argument('--runs', type=Path, default=RUNS, help='where they are (default: %(default)s)')
    options = parser.parse_args(arguments)
    found = sorted(path.name for path in options.runs.glob('*') if path.is_dir())
    if missing := set(options.studies) - set(found):
        parser.error(f'no study {", ".join(sorted(missing))} in {options.runs}: there are {", ".join(found) or "none"}')
    for name in options.studies or found:
        folders = sorted(path.parent for path in (options.runs / name).glob('*/config.json'))
        print(f'{name}: {gather(name, folders)} runs gathered', flush=True)


if __name__ == '__main__':
    main()
