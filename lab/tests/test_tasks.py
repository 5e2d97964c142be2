"""The lab's tasks beside plain loops from their definitions, and shares of what is sampled."""

import itertools

import numpy as np
import pytest

from lab.tasks import LAB_TASKS
from model import UserError
from tasks import DIGITS, TASKS, make_rng, make_task
from tests.test_tasks import check_example, check_samples

SPECS = ['spacing', 'spacing:schedule=random', 'spacing:schedule=exponential', 'passkey',
         'passkey:keys=4', 'lag:lag=3,modulus=5', 'sum', 'sum:modulus=2,start=1',
         'cups', 'cups:n=2', 'selective_copy', 'selective_copy:letters=3',
         'selective_copy:letters=0']

# Each of these returns the answers that the definition gives to a list of symbols, None where
# there is none; or None alone for what is not a string of the task.


def spacing(task, symbols):
    """Counts the fillers before each bracket, and closes the innermost open one."""
    depths = (3, 4, 5) if task.schedule == 'exponential' else (4,)
    waiting, answers, gap, opened, closed, blocks = [], [None], 0, 0, 0, 0
    for symbol in symbols[1:]:
        answers.append(None)
        if symbol == '.':
            gap += 1
            continue
        if symbol in '([{':
            if closed and waiting:
                return None  # a block opens and then closes
            if closed:
                opened, closed, blocks = 0, 0, blocks + 1
            waiting.append({'(': ')', '[': ']', '{': '}'}[symbol])
            opened += 1
            fillers = 1 if blocks and opened == 1 else 0
        else:
            if opened not in depths or not waiting or waiting.pop() != symbol:
                return None
            answers[-2] = symbol
            fillers = 2**closed
            closed += 1
        allowed = dict(periodic=[2], random=range(5), exponential=[fillers])[task.schedule]
        if gap not in allowed or opened > max(depths):
            return None
        gap = 0
    return answers if symbols[0] == '^' else None


def passkey(task, symbols):
    """Reads keys of a K and five digits, among fillers; then a Q asks for one of them."""
    question = len(symbols) - 5
    questions = [t for t, symbol in enumerate(symbols) if symbol[0] == 'Q']
    if symbols[0] != '^' or questions != [question]:
        return None
    keys, t = {}, 1
    while t < question:
        if symbols[t][0] == 'K':
            keys[symbols[t][1:]] = symbols[t + 1:t + 6]
            t += 6
        elif symbols[t] in task.fillers:
            t += 1
        else:
            return None
    number = keys.get(symbols[question][1:], [])
    five_digits = all(len(key) == 5 and ''.join(key).isdigit() for key in keys.values())
    if len(keys) != task.keys or not five_digits or symbols[question + 1:] != number[:4]:
        return None
    return [None] * question + number


def lag(task, symbols):
    earlier = [None] * task.lag + symbols
    return [a and DIGITS[(int(a, 36) + int(b, 36)) % task.modulus]
            for a, b in zip(earlier, symbols)]


def sum_(task, symbols):
    if (symbols[0] == '^') != bool(task.start) or '^' in symbols[1:]:
        return None
    totals = itertools.accumulate(int(digit.replace('^', '0'), 36) for digit in symbols)
    return [DIGITS[total % task.modulus] for total in totals]


def cups(task, symbols):
    """Moves a ball among the cups, in a list."""
    names = 'abcdefghij'[:task.n]
    start, *swaps = symbols
    if start not in names.upper() or not all(len(swap) == 2 for swap in swaps):
        return None
    cups = ['ball' if name.upper() == start else '' for name in names]
    answers = [start]
    for one, other in swaps:
        i, j = names.index(one), names.index(other)
        cups[i], cups[j] = cups[j], cups[i]
        answers.append(names[cups.index('ball')].upper())
    return answers


def selective_copy(task, symbols):
    """Answers each question by the next letter."""
    letters = [symbol for symbol in symbols[1:] if symbol in 'ACGT']
    questions = ''.join(symbols).lstrip('^.ACGT')
    if symbols[0] != '^' or questions != '?' * len(letters):
        return None
    return [None] * (len(symbols) - len(letters)) + letters


SOLVERS = dict(spacing=spacing, passkey=passkey, lag=lag, sum=sum_, cups=cups,
               selective_copy=selective_copy)


@pytest.mark.parametrize('spec', SPECS)
def test_samples_are_what_the_definition_says_and_can_be_written_and_read(spec):
    task = make_task(spec)
    assert type(task) is LAB_TASKS[task.name] is TASKS[task.name] and task.min_loss == 0
    check_samples(spec, SOLVERS)


@pytest.mark.parametrize('name', SOLVERS)
def test_the_example_in_the_docstring_is_true(name):
    check_example(name, SOLVERS)


@pytest.mark.parametrize('schedule, mean, gaps', [  # shares of 0, 1, ... fillers before a bracket
    ('periodic', 24, [0, 0, 1]), ('random', 24, [1 / 5] * 5),
    ('exponential', (14 + 24 + 42) / 3, None)])
def test_the_schedules_of_spacing_differ_in_regularity_alone(schedule, mean, gaps):
    task = make_task(f'spacing:schedule={schedule}')
    assert task.period == (24 if schedule == 'periodic' else None)
    x, _ = task.sample(make_rng(0, 'spacing'), 200, 600)
    brackets = [row[row < 6] for row in x]
    blocks = sum(((row[:-1] >= 3) & (row[1:] < 3)).sum() for row in brackets)  # behind a first one
    assert 200 * 600 / blocks == pytest.approx(mean, rel=0.06)  # the last block is cut
    found = np.bincount(np.concatenate([np.diff(np.flatnonzero(row < 6)) - 1 for row in x]))
    assert gaps is None or np.allclose(found / found.sum(), gaps, atol=0.015)


def test_closers_of_spacing_are_counted_within_their_block():
    task = make_task('spacing')
    x = task.encode('^..{..[..[..(..)..]..]..}..{')[None]
    y = task.targets(x)
    assert task.closer(x)[0, [14, 17, 20, 23]].tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(task.headline(x, y)[0]).tolist() == [17, 20, 23]


@pytest.mark.parametrize('spec, length', [
    ('passkey', 64), ('passkey', 41), ('passkey:keys=4', 30)])
def test_the_key_lies_once_in_each_tenth_of_the_haystack(spec, length):
    task = make_task(spec)
    x, y = task.sample(make_rng(0, 'depth'), 1000, length)
    places = task.place(x)[:, 0]
    tenths = np.bincount((places - 1) * 10 // (length - 11), minlength=10)
    assert task.keys > 1 or tenths.tolist() == [100] * 10
    assert places.min() == 1 and places.max() == length - 11  # from the ^ to the question
    deepest = task.breakdown(x, y)['depth of the key']['90-100 %'].any(axis=1)
    assert deepest[places.argmax()] and not deepest[places.argmin()]
    asked = np.bincount(x[:, -5] - 10 - task.keys)
    assert abs(asked / 1000 - 1 / task.keys).max() < 0.05


def test_every_place_of_the_haystack_has_as_many_letters():
    x, _ = make_task('selective_copy').sample(make_rng(0, 'places'), 20_000, 25)
    letters = ((1 <= x) & (x < 5)).mean(axis=0)
    assert np.allclose(letters[1:17], 8 / 16, atol=0.02)
    assert np.allclose(np.bincount(x[(1 <= x) & (x < 5)])[1:] / (20_000 * 8), 1 / 4, atol=0.01)


@pytest.mark.parametrize('length, dots', [(3, 0), (8, 1), (9, 0)])
def test_with_as_many_letters_as_fit_there_is_one_dot_at_most(length, dots):
    x, _ = make_task('selective_copy:letters=0').sample(make_rng(0, 'copy'), 50, length)
    assert ((x == 5).sum(axis=1) == dots).all()
    assert ((x == 6).sum(axis=1) == (length - 1) // 2).all()


@pytest.mark.parametrize('spec, message', [
    ('spacing:schedule=linear', 'schedule=linear: must be one of periodic, random, exponential'),
    ('lag:lag=0', 'lag=0: must be from 1')])
def test_errors_name_the_value_and_what_is_allowed(spec, message):
    with pytest.raises(UserError, match=message):
        make_task(spec)
