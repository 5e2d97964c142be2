"""
Check a task that is in TASKS of tasks.py, in plain words, one line a check.

    python -m lessons.check_task dyck              # a name, or
    python -m lessons.check_task dyck:k=2          # a name with parameters

It stops at the first check that fails, and says what to look at. TRACEBACK=1 before the command
shows where an error comes from. The checks do not know your rule. A checker of your own, which
shares no code with the sampler, must confirm it: see tests/test_tasks.py.
"""

import contextlib
import math
import sys

import numpy as np

import lab  # noqa: F401  # more tasks
from configurator import one_line_errors
from lab.options import make_parser
from lessons.run_checks import in_words, run_checks
from model import UserError
from tasks import TASKS, make_rng, make_task

BATCH = 2000
NEEDED = dict(symbols='a list of str, one for each token id', min_length='an int, at least 1',
              chance='a float above 0, at most 1: the accuracy of a guess')


def usual(task):
    """The number of tokens of most checks: 24, or as few as the task allows."""
    return max(24, task.min_length)


def sample(task, seed=0, length=None, batch=BATCH, split='test'):
    """Strings x and answers y (batch, length)."""
    return task.sample(make_rng(seed), batch, length or usual(task), split)


# ---- the checks: each returns None, or what is wrong in plain words ----------------------------

def check_attributes(task):
    """it has symbols, min_length and chance; written as a text and read again, it is the same"""
    for name, meaning in NEEDED.items():
        if getattr(task, name, None) is None:
            return f'it has no {name}: write {name} = ... in the class, {meaning}'
    if not 0 < task.chance <= 1:
        return f'chance is {task.chance!r}, not {NEEDED["chance"]}'
    if not all(isinstance(symbol, str) for symbol in task.symbols):
        return "a symbol is no text: write '3', not 3"
    if len(set(task.symbols)) < len(task.symbols) and not task.open_ended:
        return 'two symbols are the same'
    if TASKS.get(task.name) is not type(task):
        return f'name is {task.name!r}, and that is not its key in TASKS'
    if make_task(str(task)) != task:
        return f'{str(task)!r} is read as {make_task(str(task))!r}'


def check_arrays(task):
    """x and y are int64, one row a string; a token numbers a symbol, an answer too, or it is -1"""
    size = len(task.symbols)
    if not task.open_ended and task.inputs(make_rng(0), 1, usual(task)) is None:
        return '`inputs` gives None: is its `return x` missing?'
    for length in [*range(task.min_length, task.min_length + 4), 8 * usual(task)]:
        for batch, split in (1, 'train'), (3, 'validation'), (100, 'test'):
            arrays = sample(task, length=length, batch=batch, split=split)
            for label, array, least in zip(['token', 'answer'], arrays, [0, -1]):
                if array is None:
                    return '`targets` gives None: is its `return y` missing?'
                if array.dtype != np.int64:
                    return f'the {label}s are {array.dtype}: use astype(np.int64)'
                if array.shape != (batch, length):
                    return f'the {label}s have the shape {array.shape}, not {(batch, length)}'
                if array.min() < least or array.max() >= size:
                    return (f'{label}s are from {array.min()} to {array.max()}. With {size} '
                            f'symbols they must be from {least} to {size - 1}.')


def check_round_trip(task):
    """a string starts with `bos`; written out and read again, it is the same string"""
    x = sample(task)[0]
    for row in x[:50]:
        text = task.decode(row)
        again = task.encode(text)
        # of a text another encoding is right, too
        if not (task.decode(again) == text if task.open_ended else np.array_equal(again, row)):
            return (f'{text!r} is read as {len(again)} other tokens. Two symbols side by side may '
                    'look like a third one.')
        if not text.startswith(task.bos):
            return f'{text!r} does not start with bos={task.bos!r}'
    if not (task.bos or task.open_ended) and len(set(x[:, 0])) == 1:
        return f'every string starts with {task.symbols[x[0, 0]]!r}: that is its `bos`'


def check_targets(task):
    """the answers of a string depend on nothing but the string"""
    if task.open_ended:
        return None
    x, y = sample(task)
    for row, answers in zip(x[:50], y):
        before = row.copy()
        alone = task.targets(row[None])[0]
        if not np.array_equal(row, before):
            return '`targets` changes x. Start with y = x.copy() or np.full_like(x, -1).'
        if not np.array_equal(alone, answers):
            return (f'of {task.decode(row)!r} alone, `targets` gives other answers than in a '
                    'batch. Are there random numbers, or do strings mix?')


def check_min_length(task):
    """the shortest strings have answers, and shorter ones are refused"""
    for length in (usual(task), task.min_length):
        if not (sample(task, length=length)[1] >= 0).any():
            return f'with {length} tokens every answer is -1. Is min_length right?'
    if task.min_length == 1:
        return None
    with contextlib.suppress(UserError):
        sample(task, length=task.min_length - 1)
        return f'{task.min_length - 1} tokens are fewer than min_length, and raise no UserError'


def check_random(task):
    """the generator `rng` decides the strings, and nothing else does"""
    x, y = sample(task)
    for again in (task, make_task(str(task))):
        if not all(map(np.array_equal, sample(again), (x, y))):
            return ('the same `rng` gave other strings or answers. Take random numbers from `rng` '
                    'alone, and none in `__post_init__`.')
    if np.array_equal(x, sample(task, seed=1)[0]):
        return 'seeds 0 and 1 gave the same strings: take random numbers from `rng`'
    if (x == x[0]).all():
        return 'all strings of a batch are equal: sample numbers of the shape (batch, length)'


def check_determined(task):
    """the same start of a string never has two answers"""
    if not math.isclose(task.min_loss, 0):  # such as text: nobody knows what comes next
        return None
    x, y = sample(task, length=max(10, task.min_length), batch=10 * BATCH)
    for t in range(x.shape[1]):
        answers = {}
        for row, answer in zip(x[:, :t + 1], y[:, t]):
            if answer < 0:
                continue
            known = answers.setdefault(row.tobytes(), answer)
            if known != answer:
                return (f'after {task.decode(row)!r} the answer is {task.symbols[known]!r} in one '
                        f'string and {task.symbols[answer]!r} in another. Then no model can be '
                        'right. Does it stand one place too early? Else the answer must be -1 '
                        'there, or min_loss must say so.')


def decides(tokens, counts):
    """Whether the token alone decides if a place counts: no symbol has both kinds of places."""
    return not set(tokens[counts]) & set(tokens[~counts])


def depends(task, x, y, back):
    """Whether another token at t - back, from another string, changes an answer at t."""
    for t in range(back, x.shape[1]):
        changed = x.copy()
        changed[:, t - back] = np.roll(x[:, t - back], 1)
        with contextlib.suppress(Exception):  # it may be a string that the task does not know
            answers = task.targets(changed)[:, t]
            if ((answers != y[:, t]) & (answers >= 0) & (y[:, t] >= 0)).any():
                return True
    return False


def check_places(task):
    """an answer stands at the token that asks for it, not one place before or after"""
    x, y = sample(task)
    counts = y >= 0
    if (y == x)[counts].all():
        return ('every answer is the token in its own place. If it should be the next token: '
                'y[:, :-1] = x[:, 1:].')
    asks_for_next = (y[:, :-1] == x[:, 1:])[counts[:, :-1]].all()
    if task.open_ended and not asks_for_next:
        return 'the answer to a token of a text is the next token: y[:, :-1] = x[:, 1:]'
    inner = counts[:, 1:-1]
    if decides(x[:, 1:-1], inner) or asks_for_next:
        return None
    if decides(x[:, 2:], inner):
        return ('the next token decides whether an answer counts. Do the answers stand one place '
                'too early? The answer to x[:, t] is y[:, t].')
    if decides(x[:, :-2], inner) and not depends(task, x, y, 0):
        return ('the token before decides whether an answer counts. Do the answers stand one '
                'place too late? The answer to x[:, t] is y[:, t].')


def check_headline(task):
    """`headline` says which answers count, and no guess that ignores the string beats `chance`"""
    for length in (task.min_length, usual(task)):
        x, y = sample(task, length=length)
        places = task.headline(x, y)
        if getattr(places, 'dtype', None) != bool or places.shape != y.shape:
            return f'`headline` gives {places!r:.80}, not bool of the shape {y.shape}'
        if (places & (y < 0)).any():
            return '`headline` has places whose answer is -1'
    if not places.any():
        return f'in strings of {length} tokens, `headline` has no place'
    counts = np.bincount(y[places])
    share = counts.max() / counts.sum()
    # four standard errors, if all answers of a string were the same
    margin = 4 * math.sqrt(task.chance * (1 - task.chance) / places.any(axis=1).sum())
    if share > task.chance + margin and not task.open_ended:
        commonest = task.symbols[counts.argmax()]
        return f'chance is {task.chance:.1%}, but {commonest!r} alone is right in {share:.1%}'


CHECKS = [check_attributes, check_arrays, check_round_trip, check_targets, check_min_length,
          check_random, check_determined, check_places, check_headline]


def describe(task):
    """A string with its answers, and the share of places that count."""
    x, y = sample(task)
    if not task.open_ended:
        answers = [task.symbols[i] if i >= 0 else '.' for i in y[0]]
        print('note: x ' + ' '.join(task.symbols[i] for i in x[0]))
        print('note: y ' + ' '.join(answers))
    print(f'note: {(y >= 0).mean():.0%} of the places count; chance is {task.chance:.1%}')


def check(spec):
    """Print a line for each check up to the first that fails; return whether all pass."""
    cls = TASKS.get(spec.partition(':')[0])
    if cls and '__dataclass_fields__' not in vars(cls):
        raise UserError(f'write @dataclass above class {cls.__name__}')
    try:
        task = make_task(spec)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f'{spec} cannot be made: {in_words(error)}') from error
    passed = run_checks(CHECKS, task)
    if passed:
        describe(task)
    return passed


def main(arguments=None):
    parser = make_parser('lessons.check_task', __doc__)
    parser.add_argument('task', help='its name in TASKS, with parameters after a colon')
    if not check(parser.parse_args(arguments).task):
        sys.exit(1)


if __name__ == '__main__':
    with one_line_errors():
        main()
