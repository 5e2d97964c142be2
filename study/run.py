"""
Train every combination of options, in one process, and append a row of each run to a table.

    python -m study.run map 'attention=rope spectral' 'muon_lr=0.005 0.01' 'seed=23 24' task=modulo
    python -m study.run map ... --worker 0/2        # every second run; another process takes 1/2
    python -m study.run verdict ... --reach         # measures accuracy beyond the training length

The first word names the study: rows go to study/results/STUDY.csv. The others are options of
train.py, each with one value or several. The last option varies fastest. A run ends when its
validation loss is at most SOLVED; --whole trains on. A run whose row exists is left out, so
the same command goes on where it stopped. It prints the time left.
"""

import argparse
import contextlib
import csv
import fcntl
import io
import itertools
import re
import subprocess
import time
from types import SimpleNamespace

import numpy as np

import train
from configurator import configure, machine, one_line_errors, this_process, to_device
from eval import evaluate
from lab.table import SOLVED
from model import UserError
from study.rows import NOT_OPTIONS, RESULTS
from tasks import make_rng, make_task, without_path

KEY = sorted(configure(vars(train), []).keys() - NOT_OPTIONS)
MULTIPLES = (2, 4, 8)  # lengths for --reach, in training lengths
REACH_SEQUENCES = 128


def code():
    """The commit of this code; '-dirty' if a file differs from it that is no row of the study."""
    commit = machine('cpu')['commit']
    if commit and commit.endswith('-dirty'):
        others = ['git', 'diff', '--quiet', 'HEAD', '--', ':/', ':!/study/results']
        if subprocess.run(others, cwd=RESULTS).returncode == 0:
            commit = commit.removesuffix('-dirty')
    return commit


COMMIT = code()  # of what is in memory: a commit made meanwhile is not it


class Solved(Exception):
    """The validation loss is at most SOLVED."""


class Recorder:
    """Stands for the folder of a run: keeps the log in memory, and stops a run that is solved."""

    checkpoint = None
    path = 'RUN'  # for the last line of a training; nothing is written there

    def __init__(self, whole):
        self.lines = []
        self.whole = whole

    def write(self, line, state=None, best=False):
        if 'val_loss' in line:
            self.lines.append(line)
            if line['val_loss'] <= SOLVED and not self.whole:
                raise Solved


def read_rows(study):
    """The rows of a study as dicts of strings; none if it has no table yet."""
    path = RESULTS / f'{study}.csv'
    if not path.exists():
        return []
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def append_row(study, row):
    """Add a row to the table. Several processes may do so at once."""
    path = RESULTS / f'{study}.csv'
    with path.open('a+', newline='') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        columns = next(csv.reader(file), None)
        writer = csv.DictWriter(file, columns or row.keys())
        if columns is None:
            writer.writeheader()
        writer.writerow(row)


def combinations(arguments):
    """['a=1 2', 'b=3'] to the options of each run: [{'a': '1', 'b': '3'}, {'a': '2', ...}]."""
    names, values = [], []
    for argument in arguments:
        name, equals, text = argument.partition('=')
        if not equals or not text.split():
            raise UserError(f"{argument!r}: must be name=value, or 'name=value value ...'")
        names.append(name)
        values.append(text.split())
    return [dict(zip(names, chosen)) for chosen in itertools.product(*values)]


def options_of(given):
    """All options of train.py for a run, {name: value}, from those that are given as text."""
    options = configure(vars(train), [f'--{name}={value}' for name, value in given.items()])
    if options['init_from'] == 'resume':
        raise UserError("init_from='resume': a study leaves no run to go on with")
    return options


def key(row):
    """What tells runs apart: the options that change a result, as text."""
    return tuple((name, str(row.get(name))) for name in KEY)


def run(options, whole, reach):
    """Train once. Returns the row of the run: its options, its results, and what it ran on."""
    cfg = SimpleNamespace(**options)
    process = this_process(cfg.device, cfg.dtype)
    task = make_task(cfg.task)
    model = train.start_model(cfg, task, folder=None)
    rng = make_rng('validation', without_path(task))
    validation = task.sample(rng, cfg.eval_sequences, cfg.block_size, 'validation')
    recorder = Recorder(whole)
    started = time.perf_counter()
    failed = ''
    try:
        model.to(process.device)
        with contextlib.redirect_stdout(io.StringIO()):
            train.train(cfg, process, task, model, to_device(validation, process.device), recorder)
    except Solved:
        pass
    except UserError as error:  # such as a loss that is not finite
        failed = str(error)
    losses = [line['val_loss'] for line in recorder.lines]
    solved_at = [line['iter'] for line in recorder.lines if line['val_loss'] <= SOLVED]
    row = {name: value for name, value in options.items() if name not in NOT_OPTIONS}
    row.update(
        solved_at=min(solved_at, default=''), updates=recorder.lines[-1]['iter'],
        val_loss=f'{losses[-1]:.6g}', best_val_loss=f'{min(losses):.6g}',
        val_acc=f'{recorder.lines[-1]["val_acc"]:.6g}', failed=failed)
    for multiple in MULTIPLES:
        row |= {f'beyond_{multiple}L': '', f'far_{multiple}L': ''}
        if reach:
            row |= accuracy_beyond(model, task, multiple, cfg.block_size, process.device)
    row.update(seconds=round(time.perf_counter() - started), **machine(process.device))
    return row | dict(commit=COMMIT)


def accuracy_beyond(model, task, multiple, L, device):
    """
    The share of right answers at positions >= L of strings of multiple * L tokens, among the
    targets that the task reports (brackets: closers after a closer). `far`: of brackets, only
    those whose opener is 33 or more tokens back.
    """
    length = multiple * L
    rng = make_rng('test', without_path(task), length)
    x, y = task.sample(rng, REACH_SEQUENCES, length, 'test')
    _, _, right = evaluate(model, *to_device([x, y], device), batch_size=2**15 // length)
    right = right.cpu().numpy()
    beyond = np.arange(length) >= L
    groups = task.breakdown(x, y)
    chosen = y != -1
    if task.headline:
        group, label = task.headline
        chosen = groups[group][label]
    row = {f'beyond_{multiple}L': f'{right[chosen & beyond].mean():.4f}'}
    distances = groups.get('distance to the opener', {})
    far = [mask for label, mask in distances.items() if label in ('33-99', '>=101')]
    if far:
        row[f'far_{multiple}L'] = f'{right[np.any(far, axis=0) & beyond].mean():.4f}'
    return row


def main(arguments=None):
    """Run what the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('study')
    parser.add_argument('options', nargs='+', help="'name=value value ...' of train.py's options")
    parser.add_argument('--worker', default='0/1', help='i/n: of the runs, i, i + n, i + 2n, ...')
    parser.add_argument('--whole', action='store_true', help='train on after a run is solved')
    parser.add_argument('--reach', action='store_true', help='measure beyond the training length')
    given = parser.parse_intermixed_args(arguments)  # --reach may stand anywhere
    if not re.fullmatch('[0-9]{1,4}/[1-9][0-9]{0,3}', given.worker):
        raise UserError(f'--worker {given.worker}: must be i/n, such as 0/2')
    worker, _, workers = given.worker.partition('/')
    planned = [options_of(options) for options in combinations(given.options)]
    planned = planned[int(worker)::int(workers)]
    done = {key(row) for row in read_rows(given.study)}
    missing = [options for options in planned if key(options) not in done]
    print(f'{len(planned)} runs, {len(planned) - len(missing)} have a row')
    started = time.perf_counter()
    for i, options in enumerate(missing):
        row = run(options, given.whole, given.reach)
        append_row(given.study, row)
        minutes = (time.perf_counter() - started) / (i + 1) * (len(missing) - i - 1) / 60
        solved = f'solved at {row["solved_at"]}' if row['solved_at'] != '' else 'not solved'
        print(f'{i + 1}/{len(missing)}: {row["task"]} {row["attention"]} seed {row["seed"]} '
              f'{solved}, {minutes:.0f} min left', flush=True)


if __name__ == '__main__':
    with one_line_errors():
        main()
