"""
Train every combination of options, and put a row of each run into a CSV.

    python -m lab.sweep out/mine.csv 'attention=rope spectral' 'seed=0 1' task=modulo
    python -m lab.sweep out/mine.csv ... --worker 0/2           # every second run; another: 1/2
    python -m lab.sweep out/mine.csv ... --multiples 1 2 4 8    # with lab.measure at these lengths

The options are those of train.py, each with one value or several; the last varies fastest. In a
value, {seed} is the seed of the run. The runs lie in out/mine/, in folders NAME-SEED. A run whose
row exists is left out, so the same command goes on where it stopped. One without a row is made
again; a run of other options is never replaced.
"""

import contextlib
import io
import itertools
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import train
from checkpoint import FILES, RunFolder, machine, write_files
from configurator import choose_hardware, configure, one_line_errors
from lab import measure
from lab.options import make_parser
from lab.runs import (NOT_OPTIONS, add_rows, locked, read_json, read_run, read_table,
                      read_validations)
from model import GPTConfig, UserError
from tasks import make_task

SEQUENCES = 128  # of a formal language, at each length that is measured


def code():
    """The commit of this code; '-dirty' if a file differs from it that holds no results."""
    commit = machine('cpu')['commit']
    others = ['git', 'diff', '--quiet', 'HEAD', '--', ':/', ':!*.csv', ':!*.json']
    if commit and subprocess.run(others, cwd=Path(__file__).parent.parent).returncode == 0:
        commit = commit.removesuffix('-dirty')
    return commit


COMMIT = code()  # of what is in memory: a commit made meanwhile is not it


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


def plan(words, table, name, multiples=()):
    """The runs of these words: (options, given, columns) of each. All are checked before any."""
    runs = []
    chosen = combinations(words)
    several = {key for key in chosen[0] if len({one[key] for one in chosen}) > 1}
    for one in chosen:
        seed = one.get('seed', str(train.seed))
        one = {key: text.replace('{seed}', seed) for key, text in one.items()}
        options, given = configure(dict(vars(train)),
                                   [f'--{key}={text}' for key, text in one.items()])
        hardware = choose_hardware(options['device'], options['dtype'])  # auto: what it is here
        train.check_options(SimpleNamespace(**options), hardware)
        changed = {key for key in one if options[key] != getattr(train, key)}
        shown = (several if name else several | changed) - {'seed'}
        label = [f'{key}={text}' for key, text in one.items() if key in shown]
        if name:
            label.insert(0, name)
        folder = re.sub(r'[^\w.=+,-]', '-', f'{",".join(label) or "default"}-{seed}')
        options['out_dir'] = str(Path('out', table.stem, folder))
        columns = columns_of(options, given)
        for other, _, theirs in runs:
            if options['out_dir'] == other['out_dir'] or columns == theirs:
                raise UserError(f'{folder}: two runs have one folder, or equal options')
        if multiples:
            measure.choose_lengths(make_task(options['task']), options['block_size'], multiples)
        runs.append((options, given, columns))
    return runs


def columns_of(options, given):
    """
    The options of a run as its row will have them, {name: text}. Surgery keeps options of the old
    model, so what was not given is unknown then.
    """
    task = make_task(options['task'])
    columns = options | dict(task=task)
    model = vars(GPTConfig).keys() & columns.keys()
    GPTConfig(len(task.symbols), **{name: columns[name] for name in model})  # raises UserError
    if options['init_from'] != 'scratch':
        columns = {name: value for name, value in columns.items()
                   if name not in model or name in given}
    return {name: str(value) for name, value in columns.items() if name not in NOT_OPTIONS}


def is_of(row, columns):
    """Whether a row has these columns. An option that is younger than the row had its default."""
    for name, text in columns.items():
        value = str(getattr(train, name) if row.get(name) is None else row[name])
        # an extension for longer texts adds the length that the model was trained at
        if text not in (value, value.partition(',original=')[0]):
            return False
    return True


def was_begun(folder, columns):
    """
    Whether a sweep has begun the run of these columns in a folder: it is made again. Raises
    UserError for any other run.
    """
    path = folder / 'config.json'
    if not path.exists():
        return False
    config = read_json(path)
    row = config['options'] | config['model_args'] | dict(task=config['task'])
    programs = {Path(session['argv'][0]).name for session in config['sessions']}
    if 'train.py' in programs or not is_of(row, columns):
        raise UserError(f'{folder} holds a run that is not of this sweep: choose another --name')
    return True


class Kept(RunFolder):
    """The folder of a run that keeps the state at each validation, as ITER.pt."""

    def write(self, line, state=None, best=False):
        super().write(line, state, best)
        if state:
            content = (self.path / 'ckpt.pt').read_bytes()
            write_files(self.path, {f'{state["iter"]}.pt': content})


class LastLine(io.TextIOBase):
    """What a run prints: on a terminal its last line is seen, and the next takes its place."""

    def write(self, text):
        if sys.stderr.isatty() and text.strip():
            print(f'{text.strip():78.78}', end='\r', file=sys.stderr, flush=True)
        return len(text)


def run(options, given, choices):
    """Train once, measure, and put the rows into the table. Returns the first one."""
    folder, states = Path(options['out_dir']), []
    names = [None]  # of what lab.measure writes
    with contextlib.redirect_stdout(LastLine()):
        train.main(SimpleNamespace(**options), given, Kept if choices.along else RunFolder)
        if choices.along:  # others may be of an earlier run
            states = [f'{line["iter"]}.pt' for line in read_validations(folder)]
        if choices.multiples:
            names = [measure_state(folder, state, options, choices.multiples)
                     for state in ('best.pt', *states)]
    rows = [read_run(folder, name) | dict(commit=COMMIT) for name in names]
    add_rows(choices.table, rows)
    if choices.forget:
        for name in filter(None, (*FILES, 'run.lock', *states, *names)):
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # what else is there is somebody's
            folder.rmdir()
    return rows[0]


def measure_state(folder, state, options, multiples):
    """Measure a checkpoint as lab.measure does, without its figure. Returns the file's name."""
    n = None if make_task(options['task']).open_ended else SEQUENCES
    wanted = SimpleNamespace(checkpoint=state, task=None, n=n, multiples=multiples, stride=None,
                             override=[])
    path, _ = measure.record(folder, wanted, choose_hardware(options['device'], options['dtype']))
    return path.name


def read_arguments(arguments=None):
    """What the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('lab.sweep', __doc__)
    add_argument = parser.add_argument
    add_argument('table', type=Path, help='the CSV')
    add_argument('options', nargs='+', help="'name=value value ...' of train.py's options")
    add_argument('--name', default='', help='of the runs; default: all their options')
    add_argument('--worker', default='0/1', help='i/n: of the runs, i, i + n, i + 2n, ...')
    add_argument('--multiples', nargs='+', type=float, default=[],
                 help='lengths, in training lengths')
    add_argument('--along', action='store_true', help='measure at each validation, a row for each')
    add_argument('--forget', action='store_true', help='remove the folder when its row is there')
    return parser.parse_intermixed_args(arguments)


def main(arguments=None):
    """Run what the command line `arguments` (default: sys.argv) say."""
    choices = read_arguments(arguments)
    numbers = re.fullmatch('([0-9]{1,4})/([0-9]{1,4})', choices.worker)
    worker, workers = map(int, numbers.groups()) if numbers else (0, 0)
    if worker >= workers:
        raise UserError(f'--worker {choices.worker}: must be i/n with i below n, such as 0/2')
    rows = read_table(choices.table, missing=[])
    runs = plan(choices.options, choices.table, choices.name, choices.multiples)[worker::workers]
    missing = [one for one in runs if not any(is_of(row, one[2]) for row in rows)]
    print(f'{len(runs)} runs, {len(runs) - len(missing)} have a row')
    names = {(row['name'], row['seed']) for row in rows}
    for options, _, columns in missing:
        folder, seed = Path(options['out_dir']), options['seed']
        if (folder.name.removesuffix(f'-{seed}'), seed) in names:
            raise UserError(f'{folder} is the run of another row: choose another --name')
        options['overwrite'] = was_begun(folder, columns)
    with locked(choices.table):  # raises UserError where no table can be
        pass
    started, failed = time.perf_counter(), 0
    for i, (options, given, _) in enumerate(missing):
        try:
            row = run(options, given, choices)
        except UserError as error:  # such as a loss that is not finite
            print(f'{options["out_dir"]}: {error}', file=sys.stderr)
            failed += 1
            continue
        except (KeyboardInterrupt, SystemExit):  # train.py ends so after Ctrl-C
            message = 'stopped; the same command makes this run again, and goes on'
            print(f'{message:78}', file=sys.stderr)  # over the last line of the run
            sys.exit(130)
        minutes = (time.perf_counter() - started) / (i + 1) * (len(missing) - i - 1) / 60
        solved = 'not solved' if row['solved_at'] is None else f'solved at {row["solved_at"]}'
        print(f'{i + 1}/{len(missing)}: {options["out_dir"]} {solved}, {minutes:.0f} min left',
              flush=True)
    if failed:
        raise UserError(f'{failed} of {len(missing)} runs came to nothing')


if __name__ == '__main__':
    with one_line_errors():
        main()
