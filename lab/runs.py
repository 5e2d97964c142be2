"""
A run is a row, and a table of rows is a CSV.

    python -m lab.runs out/mine.csv out/modulo_*                  # put finished runs into a table
    python -m lab.runs out/mine.csv --commands attention=rope     # what repeats the runs of rows

A row is a dict {column: value}. `read_run` makes it of the files of a run:

    study, name, seed  the folder is STUDY/NAME-SEED
    override           what was measured, if not best.pt, such as checkpoint=crystal.pt
    every option       of train.py; those of the model are what the model has
    commit ... torch   what the run was made with; of a resumed run, each session's
    seconds, iter      of the training, and its last update
    best_loss          the least validation loss (nats); final_loss, final_accuracy: the last ones
    solved_at          the first iteration with a validation loss of at most 0.01, or None
    lock_in            the iteration from which some pair stays within 0.001 of a harmonic
    MEASURE@LENGTH     shares of 1, losses, perplexities at a length in tokens. headline: of the
                       targets that the task reports. beyond: of those after the training length
    one_back, two_back  on text: the attention there, of the head that looks one token back most
    found, spectrum    what `main` adds, if lab.crystallise has read the run: the period; the losses
                       (nats) as trained and at q = 2, 3, ...
"""

import contextlib
import csv
import io
import json
import shlex
import sys
from pathlib import Path

import numpy as np

import train
from checkpoint import read_log, write_files, writing
from configurator import one_line_errors
from lab.analysis import looks_back_most, nearest_harmonic, read_learned
from lab.options import make_parser
from lab.table import SOLVED, show
from model import UserError
from tasks import make_task

IDENTITY = ('study', 'name', 'seed', 'override')  # the columns that tell rows apart
MADE_WITH = ('commit', 'date', 'processor', 'cpu_capability', 'threads', 'torch')
TRAINING = ('seconds', 'iter', 'best_loss', 'final_loss', 'final_accuracy', 'solved_at')
NOT_OPTIONS = {'out_dir', 'overwrite', 'device'}  # they change no result
# columns of text, also where it looks like a number, beside the options of text
TEXTS = {*MADE_WITH, 'study', 'name', 'override', 'task', 'split', 'spectrum', 'sha256'}
MEASURES = dict(headline='headline', accuracy='accuracy', exact='exact', loss='loss',
                beyond='headline_beyond', perplexity='perplexity')


# A run as a row


def read_json(path):
    """What a file of JSON has. Raises UserError if it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise UserError(f'{path} cannot be read ({error!r:.200})') from None


def read_validations(folder):
    """The lines of a run's log that have a validation."""
    return [line for line in read_log(folder) if 'val_loss' in line]


def find_period(spec):
    """The period of a task; None for a text, whose vocabulary is not opened for that."""
    return None if spec.partition(':')[0] == 'text' else make_task(spec).period


def read_runs(places):
    """The rows of `places`, each the arguments of `read_run`. It says which it cannot read."""
    rows = []
    for place in places:
        try:
            rows.append(read_run(*place))
        except UserError as error:
            print(f'skipped {error}', file=sys.stderr)
    return rows


def read_folder(folder, pattern):
    """The rows of a run with what files such as measure*.json say; else its row without that."""
    names = sorted(path.name for path in folder.glob(pattern))
    return read_runs((folder, name) for name in names) or read_runs([(folder,)])


def read_run(folder, name=None):
    """
    The row of a run, with what the file `name` in its folder says was measured. Raises UserError
    if it has not ended, if a file is missing or broken, and for a result of another run or state.
    """
    folder = Path(folder)
    config = read_json(folder / 'config.json')
    result = read_result(folder, name) if name else {}
    options = dict(config['options'], task=config['task'])
    options |= {key: value for key, value in config['model_args'].items() if key in options}
    seed = options.pop('seed')
    lines = read_validations(folder)
    losses = {line['iter']: line['val_loss'] for line in lines}
    if not lines or (lines[-1]['iter'] < options['max_iters']
                     and min(losses.values()) >= options.get('stop_loss', 0)):
        raise UserError(f'{folder}: its training has not ended')
    row = dict(study=folder.parent.name, name=folder.name.removesuffix(f'-{seed}'), seed=seed,
               override=override_of(result))
    row |= options | of_sessions(config) | dict(
        seconds=lines[-1]['seconds'], iter=lines[-1]['iter'], best_loss=min(losses.values()),
        final_loss=lines[-1]['val_loss'], final_accuracy=lines[-1]['val_acc'],
        solved_at=min((it for it, loss in losses.items() if loss <= SOLVED), default=None),
        lock_in=find_lock_in(lines, find_period(options['task'])),
        sha256=config.get('data', {}).get('sha256'), folder=folder)
    return row | of_measuring(result) if result else row


def read_result(folder, name):
    """What a file says was measured. Raises UserError if that was another run, or another state."""
    result = read_json(folder / name)
    file = folder / result['checkpoint']
    # a run that went on from this one lies in a folder below, and so may a crystal
    home = file.parent if (file.parent / 'config.json').exists() else folder
    if result.get('run') != read_json(home / 'config.json')['sessions'][0]:
        raise UserError(f'{folder / name} is of another run than the one that is there now: '
                        'measure it again')
    lines = read_validations(file.parent)
    best = min(reversed(lines), key=lambda line: line['val_loss'])
    now = {'best.pt': best, 'ckpt.pt': lines[-1]}.get(file.name, result)['iter']
    if result['iter'] != now:
        raise UserError(f'{folder / name} is of update {result["iter"]}, and {file.name} is at '
                        f'{now}: measure it again')
    return result


def override_of(result):
    """What tells the evaluations of a run apart, such as 'checkpoint=crystal.pt log_scale=64'."""
    words = result.get('overrides', {})
    if result.get('checkpoint', 'best.pt') != 'best.pt':
        words = dict(checkpoint=result['checkpoint']) | words
    return ' '.join(f'{name}={value:g}' if isinstance(value, float) else f'{name}={value}'
                    for name, value in words.items())


def of_sessions(config):
    """With what a run was made. Sessions that differ stand side by side."""
    return {column: '; '.join(dict.fromkeys(str(session.get(column) or '')
                                            for session in config['sessions']))
            for column in MADE_WITH}


def of_measuring(result):
    """Of a result: how it was measured, the learned pairs, and the columns MEASURE@LENGTH."""
    columns = {name: result[name] for name in ('period', 'chance', 'split', 'n')}
    pairs = result.get('frequencies', [])
    if pairs and 'locked' in pairs[0]:
        columns.update(locked=sum(pair['locked'] for pair in pairs), pairs=len(pairs))
    for length, cells in result['lengths'].items():
        columns |= {f'{measure}@{length}': cells[key] for measure, key in MEASURES.items()
                    if key in cells}
    for kind in {'geometric', 'spectral'} & result.get('eyes', {}).keys():
        columns[f'closed_{kind}@{result["block_size"]}'] = result['eyes'][kind]['headline']
    head = looks_back_most(result.get('shares_by_distance', []))
    if head:
        columns.update(one_back=head[1], two_back=head[2])
    return columns


def of_crystal(folder):
    """Of what lab.crystallise has written: the period that it found, chance, and the spectrum."""
    record = read_result(folder, 'crystal.json')
    losses = [record['trained'], *(loss for loss, _ in record['spectrum'].values())]
    return dict(found=record['period'], chance=record['chance'],
                spectrum=' '.join(f'{loss:.4g}' for loss in losses))


def find_lock_in(lines, period):
    """
    The first iteration from which some pair stays locked to a harmonic of the period to the end,
    by the validations of a log. None if no pair does, or without period or learned frequencies.
    """
    first, stays = None, True  # stays: of each pair, whether it is locked from `first` on
    for line in reversed(lines if period else []):
        pairs, = read_learned([line], 'Omega')
        stays &= np.array([nearest_harmonic(omega, period)['locked'] for omega in pairs], bool)
        if not stays.any():
            break
        first = line['iter']
    return first


# Rows as a table


def identity(row):
    return tuple(row[name] for name in IDENTITY)


def options_of(row):
    """The options of train.py in a row, {name: value}: the columns before the commit."""
    names = list(row)
    names = names[len(IDENTITY):names.index('commit')]
    return {name: row[name] for name in names
            if row[name] is not None and name not in NOT_OPTIONS}


def read_cell(column, text):
    """The value of a cell; None for an empty one. A number is text that a number would write."""
    if text == '' and column != 'override':
        return None
    if column in TEXTS or isinstance(getattr(train, column, None), str):
        return text
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            if str(kind(text)) == text:
                return kind(text)
    return {'True': True, 'False': False}.get(text, text)


def read_table(path, missing=None):
    """
    The rows of a CSV; `missing` where there is no such file. Raises UserError for a file that is
    cut off, or no table of runs.
    """
    path = Path(path)
    if path.suffix != '.csv':
        raise UserError(f'{path}: a table of runs is a file NAME.csv')
    if missing is not None and not path.exists():
        return missing
    try:
        text = path.read_text(encoding='utf-8-sig')  # a spreadsheet puts a mark before the text
        columns, *lines = csv.reader(io.StringIO(text), strict=True)
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f'{path} is no table of runs ({error})') from None
    if lacks := {*IDENTITY, *MADE_WITH, *TRAINING} - {*columns}:
        raise UserError(f'{path} is no table of runs: it has no column {min(lacks)}')
    if not text.endswith('\n') or any(len(cells) != len(columns) for cells in lines):
        raise UserError(f'{path}: a line is cut off, or of another table; take it out')
    return [{name: read_cell(name, cell) for name, cell in zip(columns, cells)} for cells in lines]


def write_table(path, rows):
    """Write rows as a CSV: options first, measures that none has left out, 7 digits."""
    options = dict.fromkeys(name for row in rows for name in options_of(row))
    first = dict.fromkeys([*IDENTITY, *options, *MADE_WITH, *TRAINING])
    measured = dict.fromkeys(name for row in rows for name, value in row.items()
                             if value is not None and name not in NOT_OPTIONS | {'folder'})
    file = io.StringIO()
    writer = csv.DictWriter(file, first | measured, lineterminator='\n', extrasaction='ignore')
    writer.writeheader()
    for row in rows:  # float32 has no more than 7 digits
        writer.writerow({name: float(f'{value:.7g}')
                         if isinstance(value, float) and name not in options else value
                         for name, value in row.items()})
    write_files(path.parent, {path.name: file.getvalue().encode()})


def add_rows(path, rows):
    """
    Add rows to a CSV, which several processes may do at once. They take the place of those that
    have their IDENTITY.
    """
    path = Path(path)
    with locked(path):
        new = set(map(identity, rows))
        old = [row for row in read_table(path, missing=[]) if identity(row) not in new]
        write_table(path, [*old, *rows])


@contextlib.contextmanager
def locked(path):
    """Within it no other process changes a table; where files have no locks, one might."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(f'{path}.lock', 'ab')
    with file:
        with contextlib.suppress(ImportError, OSError):  # Windows, and some network drives
            import fcntl
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def command(row):
    """The command that repeats the run of a row."""
    words = [f'--{name}={value}' for name, value in options_of(row).items()]
    words += [f'--seed={row["seed"]}', '--out_dir=out/again']
    return shlex.join(['python', 'train.py', *words])


def has(row, words):
    """Whether a row has what the words COLUMN=VALUE say, as a table or as a command writes it."""
    wanted = [word.partition('=')[::2] for word in words]
    return all(text in (show(row.get(name), '.6g'), str(row.get(name))) for name, text in wanted)


def main(arguments=None):
    """Do what the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('lab.runs', __doc__)
    parser.add_argument('table', type=Path, help='the CSV')
    parser.add_argument('folders', nargs='*', type=Path, help='runs, with all that was measured')
    parser.add_argument('--commands', nargs='+', metavar='COLUMN=VALUE', help='of these rows')
    given = parser.parse_args(arguments)
    rows = []
    for folder in dict.fromkeys(map(Path.resolve, given.folders)):
        found = read_folder(folder, 'measure*.json')
        if found and (folder / 'crystal.json').exists():
            found = [row | of_crystal(folder) for row in found]
        rows += found
    if len(set(map(identity, rows))) < len(rows):
        raise UserError('two of these have one study, name and seed: rename a folder')
    if rows:
        add_rows(given.table, rows)
        print(f'{given.table}: {len(rows)} rows')
    elif given.folders:
        raise UserError('none of these is a finished run')
    if given.commands:
        found = [row for row in read_table(given.table) if has(row, given.commands)]
        if not found:
            raise UserError(f'--commands {" ".join(given.commands)}: no row has that')
        for row in found:
            print(command(row))


if __name__ == '__main__':
    with one_line_errors():
        main()
