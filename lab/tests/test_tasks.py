"""Lag, sum, spacing and passkey against second opinions: plain loops from the definition; shares of what is drawn."""

import itertools
import re

import numpy as np
import pytest

from lab.tasks import LAB_TASKS
from tasks import DIGITS, make_task, stream

SPECS = ['spacing', 'spacing:schedule=random', 'spacing:schedule=exponential', 'passkey', 'passkey:filler=loop',
         'passkey:keys=4', 'lag', 'lag:lag=3,modulus=5', 'sum', 'sum:modulus=2']
specs = pytest.mark.parametrize('spec', SPECS)


# As in tests/test_tasks.py: each function returns the answers that the definition gives to a list of symbols, None
# where there is none; or None alone for what is not a string of the task.


def spacing(task, said):
    """A pass over the fillers and brackets: how many fillers stand before each bracket, and which bracket it may be."""
    depths = (3, 4, 5) if task.schedule == 'exponential' else (4,)
    waiting, answers, gap, opened, closed, blocks = [], [None], 0, 0, 0, 0
    for symbol in said[1:]:
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
        allowed = {'periodic': [2], 'random': range(5), 'exponential': [fillers]}[task.schedule]
        if gap not in allowed or opened > max(depths):
            return None
        gap = 0
    return answers if said[0] == '^' else None


def passkey(task, said):
    """The haystack holds the keys, each a K and five digits, and fillers; then a Q asks for one of the keys."""
    ask = len(said) - 5
    if said[0] != '^' or [t for t, symbol in enumerate(said) if symbol[0] == 'Q'] != [ask]:
        return None
    keys, loop, t = {}, set(), 1
    while t < ask:
        if said[t][0] == 'K':
            keys[said[t][1:]] = said[t + 1:t + 6]
            t += 6
        else:
            loop.add((task.fillers.find(said[t]) - t) % 20)
            t += 1
            if said[t - 1] not in task.fillers:
                return None
    number = keys.get(said[ask][1:], [])
    if len(keys) != task.keys or not all(len(key) == 5 and ''.join(key).isdigit() for key in keys.values()):
        return None
    if said[ask + 1:] != number[:4] or task.filler == 'loop' and len(loop) > 1:
        return None
    return [None] * ask + number


def lag(task, said):
    earlier = [None] * task.lag + said
    return [a and DIGITS[(int(a, 36) + int(b, 36)) % task.modulus] for a, b in zip(earlier, said)]


def sum_(task, said):
    return [DIGITS[total % task.modulus] for total in itertools.accumulate(int(digit, 36) for digit in said)]


def solve(task, x):
    return dict(spacing=spacing, passkey=passkey, lag=lag, sum=sum_)[task.name](task, [task.symbols[i] for i in x])


def answers(task, y):
    return [task.symbols[i] if i >= 0 else None for i in y]


@specs
def test_samples_are_what_the_definition_says(spec):
    task = make_task(spec)
    assert type(task) is LAB_TASKS[task.name] and make_task(str(task)) == task
    for length in (task.min_length, 41, 64, 200):
        x, y = task.sample(stream(0, 'test'), 20, length)
        assert x.shape == y.shape == (20, length) and x.dtype == y.dtype == np.int64
        assert all(solve(task, a) == answers(task, b) for a, b in zip(x, y))
    assert task.encode(task.decode(x[0])).tolist() == x[0].tolist() and re.fullmatch(task.form, task.decode(x[0]))


@pytest.mark.parametrize('spec, text', [
    ('spacing', '..(..[..[..{..}..]..]..)'), ('spacing', '^..(..[..[..{..}..]..]..}'),
    ('spacing', '^..(.[..[..{..}..]..]..)'), ('spacing', '^..(..[..[..}'), ('spacing', '^..(..[..[..{..}..{'),
    ('spacing', '^..(..[..[..{..(..)'), ('spacing', '^..(..[..[..{..}..]..^'),
    ('spacing:schedule=random', '^.....('), ('spacing:schedule=random', '^([{)'),
    ('spacing:schedule=exponential', '^.([['), ('spacing:schedule=exponential', '^([[.]..]....)(('),
    ('spacing:schedule=exponential', '^(.['), ('spacing:schedule=exponential', '^([[.].]'),
    ('spacing:schedule=exponential', '^([.]..)'), ('spacing:schedule=exponential', '^([[[[[.]'),
    ('passkey', 'aK12345bQ1234'), ('passkey', '^aK1234bQ1234'), ('passkey', '^aK12345bQ1235'),
    ('passkey', '^a1K12345bQ1234'), ('passkey', '^abcdefgQ1234'), ('passkey', '^K12345Q12345b'),
    ('passkey', '^K12345bQ1234K'), ('passkey:keys=2', '^K012345bcQ11234'),
    ('passkey:keys=2', '^K012345K012345Q01234'), ('passkey:filler=loop', '^abK12345jkQ1234'),
    ('passkey:filler=loop', '^abdK12345jkQ1234')])
def test_the_second_opinion_refuses_strings_of_another_language(spec, text):
    task = make_task(spec)
    assert solve(task, task.encode(text)) is None


@pytest.mark.parametrize('name', ['spacing', 'passkey', 'lag', 'sum'])
def test_the_example_in_the_docstring_is_true(name):
    lines = [line.strip() for line in LAB_TASKS[name].__doc__.splitlines()]
    x, y = (line[3:].split('     ')[0].split() for line in lines if line[:3] in ('x  ', 'y  '))
    task = make_task(name)
    ids = task.encode(''.join(x))
    assert len(x) == len(y) > 4 and [symbol or '.' for symbol in answers(task, task.targets(ids[None])[0])] == y
    assert [symbol or '.' for symbol in solve(task, ids)] == y


@pytest.mark.parametrize('schedule, mean', [('periodic', 24), ('random', 24), ('exponential', (14 + 24 + 42) / 3)])
def test_the_schedules_of_spacing_differ_in_regularity_alone(schedule, mean):
    task = make_task(f'spacing:schedule={schedule}')
    assert task.period == (24 if schedule == 'periodic' else None)
    x, y = task.sample(stream(0, 'spacing'), 200, 600)
    brackets = x < 6
    kept = [[symbol for symbol in row if symbol < 6] for row in x.tolist()]
    blocks = sum(a >= 3 and b < 3 for row in kept for a, b in zip(row, row[1:]))  # beginnings after an end
    assert 200 * 600 / blocks == pytest.approx(mean, rel=0.06)  # the last block is cut
    if schedule == 'periodic':
        assert (brackets == (np.arange(600) % 3 == 0) & (np.arange(600) > 0)).all()
    if schedule == 'random':
        gaps = np.concatenate([np.diff(np.flatnonzero(row)) - 1 for row in brackets])
        assert np.allclose(np.bincount(gaps, minlength=5) / len(gaps), 1 / 5, atol=0.015)
    groups = task.breakdown(x, y)['closers']
    shares = np.bincount(y[groups['j >= 1']])[3:6] / groups['j >= 1'].sum()
    assert groups['all'].sum() == (y >= 0).sum() and abs(shares - 1 / 3).max() < 0.02


def test_closers_of_spacing_are_counted_within_their_block():
    task = make_task('spacing')
    x = task.encode('^..(..[..[..{..}..]..]..)..{')[None]
    groups = task.breakdown(x, task.targets(x))
    places = {label: np.flatnonzero(mask[0]).tolist() for label, mask in groups['closer'].items()}
    assert places == {'0': [14], '1': [17], '2': [20], '3': [23]}
    assert np.flatnonzero(groups['closers']['j >= 1'][0]).tolist() == [17, 20, 23]


@pytest.mark.parametrize('spec, length', [('passkey', 64), ('passkey', 41), ('passkey:filler=loop', 64),
                                          ('passkey:keys=4', 64), ('passkey:keys=4', 30)])
def test_the_key_lies_once_in_each_tenth_of_the_haystack(spec, length):
    task = make_task(spec)
    x, y = task.sample(stream(0, 'depth'), 1000, length)
    (groups,) = task.breakdown(x, y).values()
    assert np.array_equal(sum(mask.astype(int) for mask in groups.values()), y >= 0)
    if task.keys == 1:
        assert [int(mask.sum()) for mask in groups.values()] == [500] * 10
    asked_for = x[:, -5] - 10 - task.keys
    assert abs(np.bincount(asked_for) / 1000 - 1 / task.keys).max() < 0.05
    digits = y[:, -5:].flatten()
    assert abs(np.bincount(digits) / len(digits) - 1 / 10).max() < 0.02
    places = task.place(x)[:, 0]
    assert places.min() == 1 and places.max() == length - 11  # behind the ^, and right before the question


def test_fillers_are_random_or_run_in_a_loop():
    iid, loop = (make_task(f'passkey:filler={filler}').sample(stream(0, 'filler'), 500, 64)[0]
                 for filler in ('iid', 'loop'))
    fillers = iid[(iid >= 12) & (iid < 44)]
    assert abs(np.bincount(fillers - 12) / len(fillers) - 1 / 32).max() < 0.005
    apart = (loop[:, 20:] == loop[:, :-20]) | (loop[:, 20:] < 12) | (loop[:, :-20] < 12)
    assert apart[:, 1:].all() and len(np.unique(loop[(loop >= 12) & (loop < 44)])) == 20


def test_the_number_is_completed_digit_by_digit():
    task = make_task('passkey:keys=2')
    x = task.encode('^abK112345cK067890dQ0')
    assert task.decode(task.completion(x)) == '67890' and task.decode(task.completion(np.append(x, [6, 7]))) == '890'
    assert len(task.completion(x[:-1])) == 0  # nothing is asked yet
    for wrong in ('^abK112345cQ0', '^abK11234Q1', '^abK112345Q13'):
        with pytest.raises(ValueError, match='is not a string of passkey:keys=2: .* the key that Q[01] asks for'):
            task.completion(task.encode(wrong))


@pytest.mark.parametrize('spec', ['modulo:modulus=11', 'bio_rotation', 'dyck:k=3,max_depth=4'])
def test_label_noise_is_in_training_targets_alone(spec):
    clean, noisy = make_task(spec), make_task(f'{spec}{"," if ":" in spec else ":"}noise=0.2')
    assert make_task(str(noisy)) == noisy and noisy.noise == 0.2 and noisy.name == clean.name
    assert (noisy.period, noisy.chance, noisy.symbols) == (clean.period, clean.chance, clean.symbols)
    for split in ('train', 'validation', 'test'):
        x, y = clean.sample(stream(0, 'noise'), 500, 64, split)
        same_x, noisy_y = noisy.sample(stream(0, 'noise'), 500, 64, split)
        assert (x == same_x).all() and ((y == -1) == (noisy_y == -1)).all()
        wrong = (y != noisy_y)[y >= 0].mean()
        answers = np.unique(y[y >= 0])
        if split == 'train':
            assert set(np.unique(noisy_y[y >= 0])) == set(answers)
            assert wrong == pytest.approx(0.2 * (1 - 1 / len(answers)), rel=0.06)  # the rest is right by chance
        else:
            assert wrong == 0


@pytest.mark.parametrize('call, message', [
    (lambda: make_task('modulo:noise=1.5'), 'modulo:noise=1.5: must be from 0 to 1'),
    (lambda: make_task('dyck:noise=nan'), 'dyck:noise=nan: must be from 0 to 1'),
    (lambda: make_task('text:noise=0.1'), 'text:noise=0.1: parameters are written key=value'),
    (lambda: make_task('spacing:schedule=linear'), 'schedule=linear: must be periodic, random or exponential'),
    (lambda: make_task('passkey:filler=essay'), 'filler=essay: must be iid or loop'),
    (lambda: make_task('passkey:keys=0'), 'keys=0: must be from 1'),
    (lambda: make_task('passkey:keys=4').sample(stream(0), 1, 29), 'length=29 is too short for passkey:keys=4: .* 30')])
def test_errors_name_the_value_and_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()
