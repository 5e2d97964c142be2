"""The tasks against second opinions: the checker, naive definitions, exact probabilities, the docstrings' examples."""

import itertools
import math

import numpy as np
import pytest

from tasks import TASKS, make_task, nearest, stream

SPECS = ['dyck', 'dyck:k=5,max_depth=3', 'dyck:k=1,max_depth=1', 'bio_rotation', 'bio_rotation:period=13', 'bio_rotation:rotation=random',
         'bio_rotation:rotation=random,period=3,feed=true', 'bio_rotation:feed=true', 'modulo', 'modulo:modulus=11', 'modulo:modulus=29',
         'spacing', 'spacing:schedule=random', 'spacing:schedule=exponential', 'lag', 'lag:lag=3,modulus=5', 'sum', 'sum:modulus=2', 'passkey', 'passkey:filler=loop', 'passkey:keys=4']
specs = pytest.mark.parametrize('spec', SPECS)
lengths = pytest.mark.parametrize('length', [16, 17, 64])


def expected_answer(task, x, t):
    """The definition, one target at a time, written again: the answer at position t of x (T,), or -1."""
    s = [task.symbols[i] for i in x]
    if task.name == 'dyck':
        return x[t + 1] if t + 1 < len(x) and s[t + 1] in task.closers else -1
    if task.name == 'bio_rotation':
        rotation = int(s[1][1:]) if task.rotation == 'random' else 0
        first = 2 if task.rotation == 'random' else 1
        tau = t - first - task.period
        return x[first + (tau + rotation) % task.period] if tau >= 0 else -1
    if task.name == 'spacing':
        return x[t + 1] if t + 1 < len(x) and s[t + 1] in ')]}' else -1
    if task.name == 'modulo':
        return (int(s[t], 36) + t + int(s[0][1:], 36)) % task.modulus if t else -1
    if task.name == 'passkey':
        asks = len(x) - 5
        return x[s.index('K' + s[asks][1:]) + 1 + t - asks] if t >= asks else -1
    if task.name == 'lag':
        return (int(s[t], 36) + int(s[t - task.lag], 36)) % task.modulus if t >= task.lag else -1
    return sum(int(d, 36) for d in s[:t + 1]) % task.modulus


@specs
@lengths
def test_samples_are_what_the_definition_says(spec, length):
    """Shapes and types, the checker's verdict, and every target and mask against the naive definition."""
    task = make_task(spec)
    length = max(length, task.min_length)
    x, y = task.sample(stream(0, 'test'), 20, length)
    assert x.shape == y.shape == (20, length) and x.dtype == y.dtype == np.int64
    assert x.min() >= 0 and x.max() < len(task.symbols)
    assert task.check(x, y).all()
    for row in range(5):
        assert y[row].tolist() == [expected_answer(task, x[row], t) for t in range(length)]


@specs
def test_the_checker_refuses_every_wrong_answer(spec):
    task = make_task(spec)
    wrong = lambda answer: (answer + 1) % len(task.symbols)
    T = max(24, task.min_length)
    x, y = task.sample(stream(0, 'test'), 1, T)
    for t in np.flatnonzero(y[0] >= 0):
        broken = y.copy()
        broken[0, t] = wrong(y[0, t])
        assert not task.check(x, broken)[0], t
        assert task.check(x, np.where(np.arange(T) == t, -1, y))[0]  # an answer left out is no mistake


@pytest.mark.parametrize('spec, text', [
    ('dyck', '^([)]'), ('dyck', '^)('), ('dyck', '^(]'), ('dyck', '()()'), ('dyck', '^(^)'), ('dyck:max_depth=2', '^((('), ('bio_rotation:period=3', 'A^ACG...'),
    ('bio_rotation:period=3', '^AC.G...'), ('bio_rotation:period=3', '^ACG..A.'), ('bio_rotation:period=3,feed=true', '^ACG.ACA'),
    ('bio_rotation:period=3,rotation=random', '^ACGT....'), ('modulo', '1234'), ('modulo', 'C1C234'), ('bio_rotation:period=3', '^ACG'),
    ('bio_rotation:rotation=random', '^'), ('modulo', '1'),
    ('spacing', '..(..[..[..{..}..]..]..)'), ('spacing', '^..(..[..[..{..}..]..]..}'), ('spacing', '^..(.[..[..{..}..]..]..)'),
    ('spacing', '^..(..[..[..}'), ('spacing', '^..(..[..[..{..(..)'), ('spacing', '^..(..[..[..{..}..]..^'), ('spacing', '^..(..[..[..{..}..{'),
    ('spacing:schedule=random', '^.....('), ('spacing:schedule=random', '^([{)'), ('spacing:schedule=random', '^([[[....]]]..]'),
    ('passkey', 'aK12345bQ1234'), ('passkey', '^aK1234bQ1234'), ('passkey', '^aK12345bQ1235'), ('passkey', '^a1K12345bQ1234'), ('passkey', '^abcdefgQ1234'),
    ('passkey', '^K12345Q12345b'), ('passkey', '^K12345bQ1234K'), ('passkey:keys=2', '^K012345bcQ11234'), ('passkey:keys=2', '^K012345K012345Q01234'),
    ('passkey:filler=loop', '^abK12345jkQ1234'), ('passkey:filler=loop', '^abdK12345jkQ1234'),
    ('spacing:schedule=exponential', '^.([['), ('spacing:schedule=exponential', '^([[.]..]....)(('), ('spacing:schedule=exponential', '^(.['),
    ('spacing:schedule=exponential', '^([[.].]'), ('spacing:schedule=exponential', '^([.]..)'), ('spacing:schedule=exponential', '^([[[[[.]'),
])
def test_the_checker_refuses_strings_of_another_language(spec, text):
    task = make_task(spec)
    x = task.encode(text)[None]
    assert not task.check(x, np.full_like(x, -1))[0]


@pytest.mark.parametrize('task', TASKS.values(), ids=TASKS.keys())
def test_the_example_in_the_docstring_is_true(task):
    lines = [line.strip()[3:].split('     ')[0].split() for line in task.__doc__.splitlines() if line.strip()[:3] in ('x  ', 'y  ')]
    x, y = lines
    assert len(x) == len(y) > 4
    task = task()
    targets = task.targets(task.encode(''.join(x))[None])[0]
    assert [task.symbols[i] if i >= 0 else '.' for i in targets] == y


@specs
def test_streams_are_reproducible_and_disjoint(spec):
    task = make_task(spec)
    draw = lambda *names: task.sample(stream(*names), 8, 32)[0]
    assert np.array_equal(draw(0, 'train', 5, 0), draw(0, 'train', 5, 0))
    others = [(0, 'train', 5, 1), (0, 'train', 6, 0), (1, 'train', 5, 0), ('validation', spec), ('test', spec, 32), ('-0', 'train', 5, 0)]
    if 'max_depth=1' not in spec:  # one kind, one depth: a single string
        assert not any(np.array_equal(draw(0, 'train', 5, 0), draw(*names)) for names in others)


def test_no_test_string_of_training_length_is_a_training_string():
    """Fresh strings are all there is: with 4^10 strands or more they do not repeat by chance, nor by a shared seed."""
    for spec in ('dyck', 'modulo', 'lag'):
        task = make_task(spec)
        train = {row.tobytes() for it in range(50) for row in task.sample(stream(0, 'train', it, 0), 64, 64)[0]}
        test = {row.tobytes() for row in task.sample(stream('test', str(task), 64), 512, 64)[0]}
        validation = {row.tobytes() for row in task.sample(stream('validation', str(task)), 512, 64)[0]}
        assert len(train) == 3200 and len(test) == 512 and not train & test and not train & validation and not test & validation


@pytest.mark.parametrize('k, D, T', [(2, 2, 7), (1, 3, 9), (3, 1, 5), (2, 2, 6)])
def test_dyck_strings_have_their_exact_probabilities(k, D, T):
    """Every string's probability by the definition of the walk, step by step, against 40 000 draws."""
    n = T // 2 * 2  # brackets; the string is ^ and T - 1 of them
    probability = {}
    for string in itertools.product(range(2 * k), repeat=n):
        p, stack = 1.0, []
        for t, symbol in enumerate(string):
            left = n - t
            p_open = 1.0 if not stack else 0.0 if len(stack) in (D, left) else 0.5
            if symbol < k:
                p *= p_open / k
                stack.append(symbol)
            else:
                p *= (1 - p_open) * (bool(stack) and stack.pop() == symbol - k)
            if p == 0:
                break
        if p:
            probability[(2 * k, *string[:T - 1])] = probability.get((2 * k, *string[:T - 1]), 0) + p
    assert sum(probability.values()) == pytest.approx(1)
    draws = 40000
    x, _ = make_task(f'dyck:k={k},max_depth={D}').sample(stream(0, 'exact'), draws, T)
    strings, counts = np.unique(x, axis=0, return_counts=True)
    assert {tuple(s) for s in strings} == set(probability)
    expected = np.array([draws * probability[tuple(s)] for s in strings])
    chi2, freedom = ((counts - expected)**2 / expected).sum(), len(expected) - 1
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom) + 5


@pytest.mark.parametrize('spec', ['bio_rotation', 'bio_rotation:rotation=random', 'modulo', 'modulo:modulus=11', 'lag', 'sum'])
def test_inputs_are_uniform_and_a_guess_has_its_chance(spec):
    task = make_task(spec)
    x, y = task.sample(stream(0, 'uniform'), 4000, 40)
    for column in range(40):
        answers = y[:, column][y[:, column] >= 0]
        if len(answers):
            shares = np.unique(answers, return_counts=True)[1] / len(answers)
            assert len(shares) == round(1 / task.chance) and abs(shares - task.chance).max() < 0.03
        symbols = np.unique(x[:, column], return_counts=True)[1] / 4000
        assert len(symbols) == 1 or abs(symbols - 1 / len(symbols)).max() < 0.03


@pytest.mark.parametrize('schedule, mean', [('periodic', 24), ('random', 24), ('exponential', (14 + 24 + 42) / 3)])
def test_the_schedules_of_spacing_differ_in_regularity_alone(schedule, mean):
    task = make_task(f'spacing:schedule={schedule}')
    x, y = task.sample(stream(0, 'spacing'), 400, 600)
    brackets = x < 6
    kept = [[symbol for symbol in row if symbol < 6] for row in x.tolist()]
    blocks = sum(a >= 3 and b < 3 for row in kept for a, b in zip(row, row[1:]))  # beginnings after an end
    assert 400 * 600 / blocks == pytest.approx(mean, rel=0.06)  # the last block is cut
    if schedule == 'periodic':
        assert (brackets == (np.arange(600) % 3 == 0) & (np.arange(600) > 0)).all()
    if schedule == 'random':
        gaps = np.concatenate([np.diff(np.flatnonzero(row)) - 1 for row in brackets])
        assert np.allclose(np.bincount(gaps, minlength=5) / len(gaps), 1 / 5, atol=0.01)
    groups = task.breakdown(x, y)['closers']
    assert groups['all'].sum() == (y >= 0).sum() and abs(np.bincount(y[groups['j >= 1']])[3:6] / groups['j >= 1'].sum() - 1 / 3).max() < 0.02


def test_closers_of_spacing_are_counted_within_their_block():
    task = make_task('spacing')
    x = task.encode('^..(..[..[..{..}..]..]..)..{')[None]
    groups = task.breakdown(x, task.targets(x))
    assert {label: np.flatnonzero(mask[0]).tolist() for label, mask in groups['closer'].items()} == {'0': [14], '1': [17], '2': [20], '3': [23]}
    assert np.flatnonzero(groups['closers']['j >= 1'][0]).tolist() == [17, 20, 23]


def test_a_guess_at_a_nontrivial_closer_has_chance_one_in_k():
    for k in (2, 3, 5):
        task = make_task(f'dyck:k={k}')
        x, y = task.sample(stream(0, 'chance'), 500, 64)
        chosen = task.breakdown(x, y)['closers']['non-trivial']
        shares = np.bincount(y[chosen], minlength=2 * k)[k:2 * k] / chosen.sum()
        assert task.chance == 1 / k and abs(shares - 1 / k).max() < 0.02
        assert 0.35 < chosen.sum() / (y >= 0).sum() < 0.5  # the others copy the symbol before them


def test_dyck_breakdown_against_a_stack():
    task = make_task('dyck')
    x, y = task.sample(stream(0, 'breakdown'), 10, 300)
    groups = task.breakdown(x, y)
    for b in range(10):
        stack = []
        for t in range(299):
            if x[b, t] < 3:
                stack.append(t)
            elif x[b, t] < 6:
                stack.pop()
            if y[b, t] < 0:
                continue
            distance, nontrivial = t + 1 - stack[-1], 3 <= x[b, t] < 6
            assert groups['closers']['all'][b, t] and groups['closers']['non-trivial'][b, t] == nontrivial
            if nontrivial:
                assert groups['depth'][str(len(stack))][b, t]
                low = max(low for low in (3, 11, 33, 101) if low <= distance)
                label = {3: '3-9', 11: '11-31', 33: '33-99', 101: '>=101'}[low]
                assert groups['distance to the opener'][label][b, t]
    for name in ('distance to the opener', 'depth'):
        assert np.array_equal(sum(mask.astype(int) for mask in groups[name].values()), groups['closers']['non-trivial'])


@pytest.mark.parametrize('spec', ['bio_rotation', 'bio_rotation:rotation=random', 'modulo', 'lag', 'sum'])
def test_breakdowns_count_every_target_once(spec):
    task = make_task(spec)
    x, y = task.sample(stream(0, 'breakdown'), 4, 64)
    (masks,) = task.breakdown(x, y).values()
    assert np.array_equal(sum(mask.astype(int) for mask in masks.values()), y >= 0)
    if 'bio' in spec:
        assert masks['1'].sum() == 4 * 10 and masks['2'][0].argmax() == task.start + 20


def test_dyck_completion_closes_what_is_open():
    task = make_task('dyck')
    assert task.decode(task.completion(task.encode('^([]{('))) == ')})'
    assert len(task.completion(task.encode('^()'))) == 0
    assert str(task.variants()['depth 16']) == 'dyck:max_depth=16' and task.variants()['depth 16'].symbols == task.symbols


@pytest.mark.parametrize('spec, length', [('passkey', 64), ('passkey', 41), ('passkey:filler=loop', 64), ('passkey:keys=4', 64), ('passkey:keys=4', 30)])
def test_the_key_lies_once_in_each_tenth_of_the_haystack(spec, length):
    task = make_task(spec)
    x, y = task.sample(stream(0, 'depth'), 1000, length)
    (groups,) = task.breakdown(x, y).values()
    assert np.array_equal(sum(mask.astype(int) for mask in groups.values()), y >= 0)
    if task.keys == 1:
        assert [int(mask.sum()) for mask in groups.values()] == [500] * 10
    asked = x[:, -5] - 10 - task.keys
    assert abs(np.bincount(asked) / 1000 - 1 / task.keys).max() < 0.05
    digits = y[:, -5:].flatten()
    assert abs(np.bincount(digits) / len(digits) - 1 / 10).max() < 0.02
    places = task.place(x)[:, 0]
    assert places.min() == 1 and places.max() == length - 11  # behind the ^, and right before the question


def test_fillers_are_random_or_run_in_a_loop():
    iid, loop = (make_task(f'passkey:filler={filler}').sample(stream(0, 'filler'), 500, 64)[0] for filler in ('iid', 'loop'))
    fillers = iid[(iid >= 12) & (iid < 44)]
    assert abs(np.bincount(fillers - 12) / len(fillers) - 1 / 32).max() < 0.005
    apart = (loop[:, 20:] == loop[:, :-20]) | (loop[:, 20:] < 12) | (loop[:, :-20] < 12)
    assert apart[:, 1:].all() and len(np.unique(loop[(loop >= 12) & (loop < 44)])) == 20


def test_the_number_is_completed_digit_by_digit():
    task = make_task('passkey:keys=2')
    x = task.encode('^abK112345cK067890dQ0')
    assert task.decode(task.completion(x)) == '67890' and task.decode(task.completion(np.append(x, [6, 7]))) == '890'
    assert len(task.completion(x[:-1])) == 0


@specs
def test_text_and_tokens_are_the_same(spec):
    task = make_task(spec)
    x = task.sample(stream(0, 'text'), 1, 40)[0][0]
    assert task.encode(task.decode(x)).tolist() == x.tolist()
    assert task.tokenizer.n_vocab == task.vocab_size == len(task.symbols)
    assert make_task(str(task)) == task


@pytest.mark.parametrize('call, message', [
    (lambda: make_task('modolo'), "task 'modolo' does not exist; did you mean 'modulo'\\? there are dyck, bio_rotation, modulo, spacing, lag, sum, passkey, text"),
    (lambda: make_task('modulo:modulos=3'), "no parameter 'modulos'; .*there are modulus"),
    (lambda: make_task('modulo:modulus'), 'modulo:modulus: parameters are written key=value'),
    (lambda: make_task('modulo:modulus=x'), "modulo:modulus='x': must be int, such as 7"),
    (lambda: make_task('bio_rotation:feed=maybe'), "feed='maybe': must be bool"),
    (lambda: make_task('bio_rotation:rotation=3'), 'rotation=3: must be 0 or random'),
    (lambda: make_task('spacing:schedule=linear'), 'schedule=linear: must be periodic, random or exponential'),
    (lambda: make_task('passkey:filler=essay'), 'filler=essay: must be iid or loop'),
    (lambda: make_task('passkey:keys=0'), 'keys=0: must be from 1'),
    (lambda: make_task('passkey:keys=4').sample(stream(0), 1, 29), 'length=29 is too short for passkey:keys=4: it needs at least 30'),
    (lambda: make_task('modulo:modulus=37'), 'modulus=37: must be from 2 to 36'),
    (lambda: make_task('dyck:k=0'), 'k=0: must be from 1'),
    (lambda: make_task('bio_rotation').sample(stream(0), 1, 11), 'length=11 is too short for bio_rotation: it needs at least 12'),
    (lambda: make_task('lag').sample(stream(0), 1, 7), 'length=7 is too short for lag: it needs at least 8'),
    (lambda: make_task('modulo').encode('C12x'), "'x', character 3 of 'C12x', is not a symbol of modulo"),
    (lambda: make_task('dyck').encode('( x)'), "'x', character 1"),
])
def test_errors_name_the_value_and_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_nearest_lists_what_there_is():
    assert nearest('zzz', ['abc', 'def']) == '; there are abc, def'


@pytest.mark.parametrize('spec', ['modulo', 'dyck', 'bio_rotation'])
def test_what_sample_prints_can_be_read_again(spec, capsys):
    import sample
    task = make_task(spec)
    x = task.sample(stream(0, 'print'), 1, 40)[0][0]
    sample.show(task, dict(input=x), np.ones(40, bool))
    assert task.encode(capsys.readouterr().out.strip().partition('  ')[2]).tolist() == x.tolist()
