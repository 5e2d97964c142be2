"""
Check a task that is in TASKS of tasks.py, in plain words, one line a check.

    python -m lessons.check_task dyck              # a name, or
    python -m lessons.check_task dyck:k=2          # a name with parameters

The checks do not know your rule. A checker of your own, which shares no code with the sampler,
must confirm it: see tests/test_tasks.py. An error in your class keeps its traceback, below the
name of the check.
"""

import argparse
import math
import sys

import numpy as np

import lab  # noqa: F401  # more tasks
from configurator import one_line_errors
from lessons.run_checks import run_checks
from model import UserError
from tasks import make_rng, make_task

BATCH = 2000


def sample(task, name='train', seed=0, length=None):
    """Strings x and answers y (BATCH, length), of 24 tokens or as short as the task allows."""
    return task.sample(make_rng(seed, name), BATCH, length or max(24, task.min_length))


# ---- the checks: each returns None, or what is wrong in plain words ----------------------------

def check_name(task):
    """written as a text and read again, it is the same task"""
    again = make_task(str(task))
    if again != task:
        return f'{str(task)!r} is read as {again!r}. Is it a dataclass? Is `name` its key in TASKS?'


def check_shapes(task):
    """x and y are int64, one row a string"""
    length = max(24, task.min_length)
    for label, array in zip('xy', sample(task)):
        if array.dtype != np.int64:
            return f'{label} is {array.dtype}: use astype(np.int64)'
        if array.shape != (BATCH, length):
            return f'{label} has the shape {array.shape}, not {(BATCH, length)}'


def check_range(task):
    """each token is the number of a symbol, each answer too, or -1"""
    x, y = sample(task)
    size = len(task.symbols)
    for label, array, least in [('token', x, 0), ('answer', y, -1)]:
        low, high = array.min(), array.max()
        if low < least or high >= size:
            return f'a {label} is {low} or {high}: with {size} symbols it is {least} to {size - 1}'


def check_symbols(task):
    """the symbols differ, and none is empty or has a space"""
    if task.open_ended:  # a text has pieces of words, and spaces
        return None
    if len(set(task.symbols)) < len(task.symbols):
        return 'two symbols are the same'
    if any(symbol.split() != [symbol] for symbol in task.symbols):
        return 'a symbol is empty, or has a space'


def check_round_trip(task):
    """a string written out and read again is the same string"""
    if task.open_ended:  # another encoding of the same text is right, too
        return None
    for row in sample(task)[0][:50]:
        again = task.encode(task.decode(row))
        if not np.array_equal(again, row):
            return (f'{task.decode(row)!r} is read as {len(again)} other tokens. Two symbols side '
                    'by side may look like a third one.')


def check_scored(task):
    """some answers count, also in the shortest strings"""
    for length in (None, task.min_length):
        y = sample(task, length=length)[1]
        if not (y >= 0).any():
            return f'with {y.shape[1]} tokens every answer is -1. Is min_length right?'


def check_short(task):
    """a string that is too short is refused"""
    if task.min_length < 2:
        return None
    try:
        task.sample(make_rng(0), 2, task.min_length - 1)
    except UserError:
        return None
    return f'{task.min_length - 1} tokens are fewer than min_length, and no UserError is raised'


def check_seeds(task):
    """the same generator gives the same strings, another one gives others"""
    first, again = sample(task)[0], sample(task)[0]
    if not np.array_equal(first, again):
        return 'two times (seed 0) gave different strings: take random numbers from `rng` alone'
    if np.array_equal(first, sample(task, seed=1)[0]):
        return 'seeds 0 and 1 gave the same strings: take random numbers from `rng`'


def check_determined(task):
    """the same start of a string never has two answers"""
    if not math.isclose(task.min_loss, 0):  # such as text: nobody knows what comes next
        return None
    x, y = sample(task, length=max(10, task.min_length))
    for t in range(x.shape[1]):
        answers = {}
        for row, answer in zip(x[:, :t + 1], y[:, t]):
            if answer < 0:
                continue
            known = answers.setdefault(row.tobytes(), answer)
            if known != answer:
                return (f'after {task.decode(row)!r} the answer is {task.symbols[known]!r} in one '
                        f'string and {task.symbols[answer]!r} in another. Then no model can be '
                        'right: the answer must be -1 there, or min_loss must say so.')


def check_chance(task):
    """`chance` is the accuracy of a guess: above 0, at most 1"""
    if not 0 < task.chance <= 1:
        return f'chance = {task.chance}'


def check_breakdown(task):
    """each part of the breakdown is a mask with the shape of y, and the headline is one of them"""
    x, y = sample(task)
    parts = task.breakdown(x, y)
    for group, masks in parts.items():
        for label, mask in masks.items():
            if mask.dtype != bool or mask.shape != y.shape:
                return f'{group}, {label}: {mask.dtype} {mask.shape}, not bool {y.shape}'
            if (mask & (y < 0)).any():
                return f'{group}, {label}: it has places whose answer is -1'
    if task.headline and task.headline[1] not in parts.get(task.headline[0], {}):
        return f'the headline {task.headline} is no part of the breakdown'


CHECKS = [check_name, check_shapes, check_range, check_symbols, check_round_trip, check_scored,
          check_short, check_seeds, check_determined, check_chance, check_breakdown]


def describe(task):
    """A string with its answers, the share of places that count, and two ways to guess."""
    x, y = sample(task)
    if not task.open_ended:
        answers = [task.symbols[i] if i >= 0 else '.' for i in y[0]]
        print('note: x ' + ' '.join(task.symbols[i] for i in x[0]))
        print('note: y ' + ' '.join(answers))
    counted = y >= 0
    print(f'note: {counted.mean():.0%} of the places count')
    if task.headline:
        group, label = task.headline
        counted = task.breakdown(x, y)[group][label]
    commonest = np.bincount(y[counted]).max() / counted.sum()
    print(f'note: chance is {task.chance:.1%}; always the commonest answer is right in '
          f'{commonest:.1%}')
    if commonest > 1.2 * task.chance:
        print('note: so a model above chance may have learned which answer is common, and no more')


def check(spec):
    """Print a line for each check; return the number of checks that fail."""
    task = make_task(spec)
    failed = run_checks(CHECKS, task)
    if not failed:
        describe(task)
    print(f'{len(CHECKS) - failed} of {len(CHECKS)} checks pass')
    return failed


def main(arguments=None):
    """Check the task that the command line `arguments` (default: sys.argv) name."""
    parser = argparse.ArgumentParser(prog='python -m lessons.check_task', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('task', help='its name in TASKS, with parameters after a colon')
    if check(parser.parse_args(arguments).task):
        sys.exit(1)


if __name__ == '__main__':
    with one_line_errors():
        main()
