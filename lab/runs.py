"""
The files of a run, which may come from a stranger: read with one line for whatever is wrong.

`read_run` makes one row of a run, a dict {column: value}:

    study, name, seed  the folder is STUDY/NAME-SEED
    override           what was measured, if not best.pt as it is, such as checkpoint=crystal.pt
    every option       of train.py
    commit ... torch   what the run was made with; of a resumed run, each session's
    best_loss          the least validation loss (nats); final_loss is the last one
    solved_at          the first iteration with a validation loss of at most 0.01, or None
    lock_in            the iteration from which some pair stays within 0.001 of a harmonic
    MEASURE@LENGTH     accuracies as shares of 1, and perplexities, at a length in tokens
    one_back, two_back  on text: the attention there, of the head that looks one token back most
    found, spectrum    of a run that lab.crystallise has read: the period; the losses (nats) as
                       trained and at q = 2, 3, ...
"""

import contextlib
import json
import math
import sys
from pathlib import Path

import numpy as np

from checkpoint import names_a_file, read_log, read_text
from configurator import printable
from eval import LOCKED
from lab.analysis import looks_back_most
from lab.table import SOLVED
from model import UserError
from tasks import make_task

WRONG = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
         RecursionError)  # what reading a file of unexpected content may raise
IDENTITY = ('study', 'name', 'seed', 'override')  # the columns that tell rows apart


@contextlib.contextmanager
def reading(folder):
    """Within it, a file that is missing or not as train.py and eval.py write it is a UserError."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f'{folder}: it has no {Path(error.filename).name}') from None
    except WRONG as error:
        reason = printable(f'{type(error).__name__}, {error}')
        raise UserError(f'{folder}: a file is broken ({reason:.200})') from None


def read_json(path):
    """The JSON object in a file, a dict."""
    found = json.loads(read_text(path))
    if type(found) is not dict:
        raise ValueError(f'{Path(path).name} has no JSON object')
    return found


def count(value, name, least=1):
    """A whole number that a run may have of tokens or updates. Raises ValueError for others."""
    if type(value) is not int or not least <= value < 2**31:
        raise ValueError(f'{name} is no count')
    return value


def number(value, name):
    """A finite number, as float. Raises ValueError for others."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f'{name} is no number')
    return float(value)


def scalar(value):
    """A value that an option may have, or None. Raises ValueError or OverflowError for others."""
    if type(value) is str:
        return printable(value)
    if value is not None:
        float(value)  # also refuses integers that are too long to print
    return value


def find_period(spec):
    """The period of the task that a run names; None for a text, which is not opened for that."""
    if names_a_file(spec):
        return None
    return make_task(spec).period


# ----------------------------------------------------------------------------------------------
# A run as a row


def read_runs(folders, name='eval.json'):
    """The rows of runs. Others are left out with a line on stderr. UserError if none is left."""
    rows = []
    for folder in dict.fromkeys(Path(folder).resolve() for folder in folders):
        try:
            rows.append(read_run(folder, name))
        except UserError as error:
            print(f'skipped {error}', file=sys.stderr)
    if not rows:
        raise UserError(f'none of these is a finished run with {name}: measure each of them '
                        'with eval.py first')
    return rows


def read_run(folder, name='eval.json'):
    """The row of a run. Raises UserError if it has not ended, was not measured or is broken."""
    folder = Path(folder)
    with reading(folder):
        config, log = read_json(folder / 'config.json'), read_log(folder)
        result = read_json(folder / name)
        options = {printable(key): scalar(value) for key, value in config['options'].items()}
        options['task'] = printable(config.get('task', options['task']))
        last, end = max(count(line['iter'], 'iter', 0) for line in log), options['max_iters']
        if last < end:
            raise UserError(f'{folder}: it stopped at update {last} of {end}')
        if not isinstance(options['attention'], str):
            raise ValueError('attention is no name')
        seed = count(options.pop('seed'), 'seed', 0)
        count(options['block_size'], 'block_size')
        identity = (folder.parent.name, folder.name.removesuffix(f'-{seed}'), seed,
                    override_of(result))
        found = of_sessions(config) | of_training(log, result) | of_measuring(result)
        if (folder / 'crystal.json').exists():
            found |= of_crystal(read_json(folder / 'crystal.json'))
        found['folder'] = folder
        twice = {*IDENTITY, *found} & options.keys()
        if twice:
            raise ValueError(f'an option has the name of a result, {twice.pop()}')
        return dict(zip(IDENTITY, identity)) | options | found


def options_of(row):
    """The options of train.py in a row, {name: value}: the columns before the commit."""
    names = list(row)
    names = names[len(IDENTITY):names.index('commit')]
    return {name: row[name] for name in names if row[name] is not None}


def override_of(result):
    """What tells the evaluations of a run apart, such as 'checkpoint=crystal.pt log_scale=64'."""
    words = dict(result.get('overrides', {}))
    if result.get('checkpoint', 'best.pt') != 'best.pt':
        words = dict(checkpoint=result['checkpoint']) | words
    if result.get('held_shares'):
        words['held_shares'] = True
    spelled = {name: f'{value:g}' if isinstance(value, float) else value
               for name, value in words.items()}
    return printable(' '.join(f'{name}={value}' for name, value in spelled.items()))


def of_sessions(config):
    """With what a run was made. Sessions that differ stand side by side."""
    return {column: printable('; '.join(dict.fromkeys(str(session.get(column, ''))
                                                      for session in config['sessions'])))
            for column in ('commit', 'date', 'processor', 'threads', 'torch')}


def of_training(log, result):
    """Of a log: the time (seconds), losses (nats) and when things happened (iterations)."""
    lines = [line for line in log if 'val_loss' in line]
    losses = {line['iter']: number(line['val_loss'], 'val_loss') for line in lines}
    solved = [iteration for iteration, loss in losses.items() if loss <= SOLVED]
    return dict(seconds=log[-1].get('seconds'), best_loss=min(losses.values()),
                final_loss=losses[lines[-1]['iter']], solved_at=min(solved, default=None),
                lock_in=find_lock_in(lines, result.get('period')))


def of_measuring(result):
    """Of an evaluation: how it was made, the learned pairs, and the columns MEASURE@LENGTH."""
    columns = dict(period=result.get('period'), chance=number(result['chance'], 'chance'),
                   split=scalar(result.get('split')), n=scalar(result.get('n')))
    pairs = result.get('frequencies', [])
    if pairs and 'locked' in pairs[0]:
        columns.update(locked=sum(bool(pair['locked']) for pair in pairs), pairs=len(pairs))
    lengths = {count(int(length), 'length'): cells for length, cells in result['lengths'].items()}
    if not lengths:
        raise ValueError('there is no length')
    for length, cells in lengths.items():
        columns[f'headline@{length}'] = number(cells['headline'], 'headline')
        # beyond: of the targets beyond the first training length
        for measure, key in dict(accuracy='accuracy', exact='exact',
                                 beyond='headline_beyond').items():
            if key in cells:
                columns[f'{measure}@{length}'] = number(cells[key], key)
    for length, cells in result.get('perplexity', {}).get('sliding', {}).items():
        columns[f'perplexity@{int(length)}'] = number(cells['perplexity'], 'perplexity')
    head = looks_back_most(result.get('shares_by_distance', []))
    if head:
        _, one, two, *_ = head
        columns.update(one_back=number(one, 'a share'), two_back=number(two, 'a share'))
    return columns


def of_crystal(record):
    """Of what lab.crystallise has written: the period that it found, and the spectrum."""
    losses = [record['trained'], *(loss for loss, _ in record['spectrum'].values())]
    spectrum = ' '.join(f'{number(loss, "a loss"):.4g}' for loss in losses)
    return dict(found=scalar(record['period']), spectrum=spectrum)


def find_lock_in(lines, period):
    """
    The first iteration from which some pair stays locked to a harmonic of the period to the end,
    by the validations of a log. None if no pair does, or without period or learned frequencies.
    """
    lines = [line for line in lines if 'Omega' in line]
    if not period or not lines:
        return None
    omega = np.abs([flat(line['Omega']) for line in lines])  # (validations, pairs)
    j = np.round(omega * period / (2 * math.pi))
    near = np.abs(omega - 2 * math.pi * j / period) < LOCKED
    locked = near & (j % period != 0)
    stays = np.cumprod(locked[::-1], axis=0).sum(axis=0)  # of each pair: the last ones locked
    if stays.max() == 0:
        return None
    return lines[len(lines) - stays.max()]['iter']


def flat(nested):
    """The numbers in a nested list, one after another."""
    if not isinstance(nested, list):
        return [nested]
    return [value for part in nested for value in flat(part)]
