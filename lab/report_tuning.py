"""How learning rates and knobs were chosen, on seeds that are in no other table; and what ran where."""

import json
import statistics

from lab import trial
from lab.compare import best_loss, extrapolation, print_table
from lab.report_surgery import WAYS_ON
from lab.results import RESULTS, SPELLINGS, study

TUNED = ('rope', 'spectral', 'bifocal', 'tapa')  # the attentions that have a knob


def tuning_runs(task, name, rate):
    """The rows of an arm at a learning rate, on the tuning seeds that tried it. Raises ValueError for a stray row."""
    rows = [row for part in ('sweep', 'knobs') for row in study(part) if row['name'] == f'{task}-{name}-{rate:g}']
    for row in rows:
        if row['learning_rate'] != rate or row['split'] != 'validation':
            raise ValueError(f'{row["name"]}-{row["seed"]} is not a tuning run at learning rate {rate:g}')
    return rows


def merit(rows):
    """
    By which rates and knobs are chosen, larger is better.

    The share of seeds that solve the task (validation loss below 0.005), then the mean accuracy beyond the training
    length if any does, then the loss.
    """
    losses = [best_loss(row) for row in rows]
    share = sum(loss < 0.005 for loss in losses) / len(rows)
    return share, statistics.mean(map(extrapolation, rows)) if share else 0, -statistics.mean(losses)


def show_merit(task, row):
    """What it was chosen by: the validation loss and, but for text, the accuracy beyond the training length."""
    return f'{best_loss(row):.4g}' if task == 'text' else f'{best_loss(row):.2g} / {100 * extrapolation(row):.0f} %'


def choose_rate(task, name):
    """The learning rate of an arm: the one of most merit on the first tuning seed; None if none was tried."""
    tried = {rate: tuning_runs(task, name, rate)[:1] for rate in trial.rates(task, name)}
    return max((rate for rate, runs in tried.items() if runs), key=lambda rate: merit(tried[rate]), default=None)


def choose_knob(task, attention):
    """
    'rope', for example, at its chosen rate; or the best of its knobs, if that is better on the same tuning seeds.

    It is better if it solves more of them; or as many, and is two points more accurate beyond the training length, or
    on text and passkey loses 0.01 nats less. A smaller difference is noise.
    """
    runs = tuning_runs(task, attention, choose_rate(task, attention))
    tried = {}
    for knob in trial.EVERY_KNOB:
        rate = choose_rate(task, knob) if knob.startswith(attention + '-') else None
        if rate:
            tried[knob] = tuning_runs(task, knob, rate)[:len(runs)]
    best = max((knob for knob in tried if tried[knob]), key=lambda knob: merit(tried[knob]), default=None)
    if best is None:
        return attention
    ours, theirs = merit(tried[best]), merit(runs[:len(tried[best])])
    better = ours[1] > theirs[1] + 0.02 or (task in trial.LONG and ours[2] > theirs[2] + 0.01)
    return best if ours[0] > theirs[0] or (ours[0] == theirs[0] and better) else attention


def sweep():
    """Every rate and knob that was tried, its merit, and what was chosen."""
    rows = []
    for task in trial.TASKS:
        for name in trial.ARMS | trial.EVERY_KNOB:
            tried = {rate: tuning_runs(task, name, rate) for rate in trial.rates(task, name)}
            tried = {rate: runs for rate, runs in tried.items() if runs}
            if not tried:
                continue
            cells = [f'{rate:g}: ' + ', '.join(show_merit(task, run) for run in runs) for rate, runs in tried.items()]
            attention = name.split('-')[0]
            knob = choose_knob(task, attention) if attention in TUNED else name
            rows.append([task, name, '; '.join(cells), f'{choose_rate(task, name):g}' if name in trial.ARMS else '',
                         'chosen' if knob == name else ''])
    print_table(['task', 'arm', 'rate: validation loss / accuracy beyond, by seed', 'rate chosen', 'knob'], rows)


def runs_at(part, name, every):
    """{rates: row} of an arm on the first tuning seed; `every` lists the rates, or tuples of them, to look for."""
    rows = {row['name']: row for row in study(part) if row['seed'] == trial.TUNING_SEEDS[0]}
    found = {}
    for rates in every:
        numbers = '-'.join(f'{rate:g}' for rate in (rates if isinstance(rates, tuple) else (rates,)))
        if f'{name}-{numbers}' in rows:
            found[rates] = rows[f'{name}-{numbers}']
    return found


def choose_longer(task, name):
    """The rate of the light fine-tuning of most merit, by the rule of the sweep; the middle one if none was tried."""
    runs = runs_at('tuned_rates', f'{task}-{name}', trial.longer_rates(task, name))
    return max(runs, key=lambda rate: merit([runs[rate]]), default=trial.LONGER_RATES[1])


def tuned_rates():
    """The rates that the light fine-tuning was tried with, on the models of the sweep."""
    rows = []
    for task in trial.LONG:
        for name in trial.longer_arms(task):
            if runs := runs_at('tuned_rates', f'{task}-{name}', trial.longer_rates(task, name)):
                cells = '; '.join(f'{rate:g}: {show_merit(task, run)}' for rate, run in runs.items())
                rows.append([task, name, cells, f'{choose_longer(task, name):g}'])
    if rows:
        print_table(['task', 'arm', 'rate: best validation loss (nats) / accuracy beyond that length', 'chosen'], rows)


def choose_muon(task, name):
    """Muon's rate of most merit on text or passkey, as in the study `optimizers`; arms of no claim have one seed."""
    on_all = f'{task}-{name}'.startswith(trial.ON_ALL_TUNING_SEEDS)
    tried = trial.candidates(f'{task}-{name}', trial.TUNING_SEEDS[:None if on_all else 1], 'long_muon_rates')
    return max(tried, key=lambda rate: trial.merit(tried[rate]), default=None)


def long_muon_rates():
    """The rates that Muon was tried with on text and passkey: the best validation loss by tuning seed."""
    rows = []
    for task in trial.LONG:
        for name in trial.MUON_ARMS:
            tried = {}
            for row in study('long_muon_rates'):
                if row['name'].rpartition('-')[0] == f'{task}-{name}':
                    tried.setdefault(row['muon_lr'], []).append(best_loss(row))
            cells = [f'{rate:g}: ' + ', '.join(f'{loss:.4g}' for loss in tried[rate]) for rate in sorted(tried)]
            rows.append([task, name, '; '.join(cells), f'{choose_muon(task, name):g}'])
    print_table(['task', 'arm', 'rate: best validation loss (nats) by seed', 'chosen'], rows)


def choose_surgery(task, name):
    """The pair of rates with the lowest validation loss; None if none was tried."""
    runs = runs_at('surgery_rates', f'{task}-{name}', trial.SURGERY_RATES[task].get(name, ()))
    return min(runs, key=lambda rates: best_loss(runs[rates]), default=None)


def surgery_rates():
    """The rates that surgery was tried with, by the best validation loss on a RoPE of the tuning seeds."""
    rows = []
    for task, ways in trial.SURGERY_RATES.items():
        for name, rates in ways.items():
            if runs := runs_at('surgery_rates', f'{task}-{name}', rates):
                cells = '; '.join(f'{a:g}, {b:g}: {best_loss(run):.4g}' for (a, b), run in runs.items())
                rows.append([task, WAYS_ON[name], cells, '{:g}, {:g}'.format(*choose_surgery(task, name))])
    if rows:
        print_table(['task', 'goes on with', 'rates of the weights, of the frequencies: best validation loss (nats)',
                     'chosen'], rows)


def provenance():
    """What ran where: machines, versions, commits and time of every study."""
    rows = []
    for part in trial.STUDIES:
        runs = [row for row in study(part) if not row['override']]
        if not runs:
            continue
        every = {column: sorted({value for run in runs for value in run[column].split('; ')})
                 for column in ('processor', 'threads', 'torch', 'commit', 'date')}
        days = sorted({date[:10] for date in every['date']})
        seconds = [run['seconds'] for run in runs]
        rows.append([part, len(runs), f'{statistics.median(seconds):.0f}', f'{sum(seconds) / 3600:.1f}',
                     *(', '.join(every[column]) for column in ('processor', 'threads', 'torch', 'commit')),
                     ', '.join(days)])
    print_table(['part', 'runs', 'seconds a run (median)', 'hours in all', 'processor', 'threads', 'torch', 'commit',
                 'date'], rows)


def spellings():
    """Options of the first trial and how they are written now; the rows have the new spelling."""
    print_table(['then', 'now'], [[f'`{old}`', f'`{new}`'] for old, new in SPELLINGS.items()])


def speed():
    """A training step of each arm in short, from the JSON files of lab/bench.py: milliseconds, and times RoPE."""
    results = {way: json.loads((RESULTS / f'bench-{way}.json').read_text()) for way in ('eager', 'compiled')}
    cells = {}
    for result in results.values():
        for shape in ('small', 'large'):
            for step in result['steps'][shape]:
                cells.setdefault(step['arm'], []).append(f'{step["ms"][1]:.1f} ({step["ratio"][1]:.2f})')
    print_table(['arm', *(f'{shape}, {way}' for way in results for shape in ('small', 'large'))],
                [[arm, *values] for arm, values in cells.items() if arm != 'shared'])


TABLES = {'sweep': sweep, 'long_muon_rates': long_muon_rates, 'tuned_rates': tuned_rates,
          'surgery_rates': surgery_rates, 'provenance': provenance, 'spellings': spellings, 'speed': speed}
