"""
Train and measure many runs, some at a time.

    python -m study.run --config config/dyck3_rope.py --seeds 0-19 --into claims -j 2
    python -m study.run --config config/modulo_*.py --grid learning_rate=0.002,0.004 --into rates
    python -m study.run --repeat claims --match bio_rotation-spectral-0

Any option of train.py may follow as --key=value. A run lies in out/study/INTO/NAME-SEED, and NAME
says the config and what of the grid it has. A finished run is skipped, and a stopped one resumes.
Ctrl-C lets the runs save, and no new one starts. What a failed run printed stays in
NAME-SEED.txt. `python -m study.rows CSV out/study/INTO/*` gathers the finished runs.
"""

import argparse
import fnmatch
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from configurator import UserError, one_line_errors
from study import rows
from study.rows import RUNS, at_lengths

ROOT = Path(__file__).resolve().parent.parent


# ----------------------------------------------------------------------------------------------
# Which runs: each is a folder and its commands, lists of words after `python`


def read_seeds(text):
    """The seeds of '0-19' or '0,3,5-7'."""
    seeds = []
    for part in text.split(','):
        match = re.fullmatch(r'(\d+)(?:-(\d+))?', part)
        if not match:
            raise argparse.ArgumentTypeError(f'{text}: write seeds as 0-19 or 0,3,5')
        first, last = match[1], match[2] or match[1]
        seeds += range(int(first), int(last) + 1)
    return seeds


def of_grid(given, words):
    """{folder: commands} of every config, point of the grid and seed."""
    axes = []
    for axis in given.grid:
        key, _, values = axis.partition('=')
        axes.append([f'--{key}={value}' for value in values.split(',')])
    runs = {}
    for seed in given.seeds:  # seed by seed: what is there early is a comparison
        for config in given.config:
            for point in itertools.product(*axes):
                parts = [Path(config).stem, *(word.removeprefix('--') for word in point)]
                name = re.sub(r'[^\w.=+-]', '-', '-'.join(parts))
                folder = f'{RUNS}/{given.into}/{name}-{seed}'
                training = ['train.py', config, *words, *point, f'--seed={seed}',
                            f'--out_dir={folder}']
                runs[folder] = [training, *after_training(folder, given)]
    return runs


def after_training(folder, given):
    """The commands that make crystals of a run, and those that measure it."""
    making = [['-m', 'lab.crystallise', folder, *shlex.split(text)] for text in given.crystallise]
    measuring = [['-m', 'lab.measure', folder, *shlex.split(text)]
                 for text in given.measure or ['']]
    return making + measuring


def of_rows(given):
    """{folder: commands} that repeat the rows of a CSV; crystals have no commands in a row."""
    runs = {}
    for row in rows.read(given.repeat):
        override = row['override'].split()
        if 'held_shares=True' in override or override[:1] and 'checkpoint=' in override[0]:
            continue
        folder = rows.folder(row)
        measuring = ['-m', 'lab.measure', folder, f'--split={row["split"]}', f'--n={row["n"]}']
        lengths = at_lengths(row, 'accuracy')
        measuring += ['--multiples', *(f'{n / row["block_size"]:g}' for n in sorted(lengths))]
        measuring += ['--override', *override] if override else []
        if row['task'].startswith('text:path='):  # a path is not opened because a run names it
            measuring.append(f'--task={row["task"]}')
        runs.setdefault(folder, [rows.command(row)]).append(measuring)
    return runs


# ----------------------------------------------------------------------------------------------
# Running them


def done_file(folder):
    """The commands of a run that have ended well, a line each."""
    return ROOT / folder / 'done.txt'


def missing(folder, commands, again=False):
    """The commands of a run that are still to be done."""
    path = done_file(folder)
    if again or not path.exists():
        return commands
    done = path.read_text().splitlines()
    return [words for words in commands if shlex.join(words) not in done]


def run(folder, commands, environment, again):
    """Do the commands of a run; True if all went well. Ctrl-C in one: KeyboardInterrupt."""
    path = ROOT / folder
    path.parent.mkdir(parents=True, exist_ok=True)
    printed = path.with_name(f'{path.name}.txt')
    with open(printed, 'w') as output:
        for words in missing(folder, commands, again):
            extra = []
            if words[0] == 'train.py' and again:
                extra = ['--overwrite=True']
            elif words[0] == 'train.py' and (path / 'ckpt.pt').exists():
                extra = ['--init_from=resume']
                words = [word for word in words if not word.startswith('--init_from=')]
            done = subprocess.run([sys.executable, *words, *extra], cwd=ROOT, env=environment,
                                  stdout=output, stderr=output)
            if done.returncode in (130, -signal.SIGINT):
                raise KeyboardInterrupt
            if done.returncode:
                return False
            with open(done_file(folder), 'a') as file:
                file.write(shlex.join(words) + '\n')
    printed.unlink()
    return True


class Progress:
    """What has been done, said after every run; the threads of the runs share it."""

    def __init__(self, n):
        self.n, self.done, self.failed = n, 0, 0
        self.started = time.time()
        self.lock = threading.Lock()

    def add(self, folder, ok, seconds):
        with self.lock:
            self.done += 1
            self.failed += not ok
            left = (time.time() - self.started) / self.done * (self.n - self.done) / 60
            note = '' if ok else f'  FAILED: see {folder}.txt'
            print(f'{self.done:>4d}/{self.n}  {seconds:4.0f} s  {folder}{note}   '
                  f'({self.failed} failed, {left:.0f} min left)', flush=True)


def run_all(todo, jobs, again):
    """
    The number of runs that failed. Ctrl-C reaches the runs, too: they save and stop, and no new
    one starts; then this exits with 130.
    """
    threads = max(1, (os.cpu_count() or 1) // jobs)
    environment = {'OMP_NUM_THREADS': str(threads), **os.environ}  # unless the user has set it
    stopping, progress = threading.Event(), Progress(len(todo))

    def one(folder, commands):
        if stopping.is_set():
            return
        begun = time.time()
        try:
            ok = run(folder, commands, environment, again)
        except KeyboardInterrupt:
            stopping.set()  # here, before this thread starts the next run
        if not stopping.is_set():
            progress.add(folder, ok, time.time() - begun)

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(one, *item) for item in todo.items()]
        try:
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            stopping.set()
            print('stopping: the runs under way save where they are', flush=True)
    if stopping.is_set():
        sys.exit(130)
    return progress.failed


def main(arguments=None):
    """Run or print what the command line `arguments` (default: sys.argv) ask for."""
    parser = argparse.ArgumentParser(
        prog='python -m study.run', description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--config', nargs='+', default=[], help='config files, a run for each')
    add('--seeds', type=read_seeds, default=[0], help='such as 0-19 (default: 0)')
    add('--grid', nargs='+', default=[], metavar='KEY=A,B', help='every value of each key')
    add('--into', help='the study: the folder in out/study')
    add('--repeat', metavar='CSV', help='instead: the runs of study/results/CSV.csv')
    add('--match', nargs='+', default=['*'], metavar='PATTERN',
        help="only folders that end with one of these, such as 'claims/*-rope-1?'")
    add('--measure', action='append', metavar='WORDS', help='an evaluation, each time it is given: '
        "options of lab.measure, such as --measure='--split=validation --n=16' (default: none)")
    add('--crystallise', action='append', default=[], metavar='WORDS',
        help='before that a crystal, each time it is given: options of lab.crystallise')
    add('-j', '--jobs', type=int, default=1, help='runs at a time (default: 1)')
    add('--again', action='store_true', help='finished runs, too')
    add('--print', action='store_true', help='print the commands and run nothing')
    given, words = parser.parse_known_args(arguments)
    wrong = [word for word in words if not re.fullmatch(r'--\w+=.*', word)]
    if wrong:
        parser.error(f'{wrong[0]}: options of train.py are written --key=value')
    if given.jobs < 1:
        parser.error('--jobs must be at least 1')
    if bool(given.repeat) == bool(given.config) or bool(given.config) != bool(given.into):
        parser.error('give --config and --into, or --repeat')

    runs = of_rows(given) if given.repeat else of_grid(given, words)
    runs = {folder: commands for folder, commands in runs.items()
            if any(fnmatch.fnmatch(folder, f'*{pattern}') for pattern in given.match)}
    if not runs:
        raise UserError(f'--match: no run ends with {" or ".join(given.match)}')
    if given.print:
        for commands in runs.values():
            print(' && '.join(shlex.join(['python', *command]) for command in commands))
        return
    todo = {folder: commands for folder, commands in runs.items()
            if missing(folder, commands, given.again)}
    print(f'{len(runs) - len(todo)} of {len(runs)} runs done', flush=True)
    sys.exit(1 if run_all(todo, given.jobs, given.again) else 0)


if __name__ == '__main__':
    with one_line_errors():
        main()
