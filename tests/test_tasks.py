"""The tasks against second opinions: plain loops from the definition, exact probabilities, the docstrings' examples."""

import hashlib
import itertools
import math
import re

import numpy as np
import pytest

from tasks import DIGITS, SPLITS, TASKS, Task, make_task, nearest, read_files, stream

SPECS = ['dyck', 'dyck:k=5,max_depth=3', 'bio_rotation', 'bio_rotation:period=3', 'modulo', 'modulo:modulus=29']
specs = pytest.mark.parametrize('spec', SPECS)


# Each function below reads a list of symbols as a person would who knows only the definition. It returns the answer at
# each place, None where there is none; or None alone for what is not a string of the task.


def dyck(task, said):
    waiting, answers = [], []
    for symbol in said[1:]:
        if symbol in task.openers:
            answers.append(None)
            waiting.append(task.closers[task.openers.index(symbol)])
        elif waiting and waiting[-1] == symbol:
            answers.append(waiting.pop())
        else:
            return None
        if len(waiting) > task.max_depth:
            return None
    return answers + [None] if said[0] == '^' else None


def bio_rotation(task, said):
    strand, blanks = said[1:1 + task.period], said[1 + task.period:]
    if said[0] != '^' or not set(strand) <= set('ACGT') or set(blanks) != {'.'}:
        return None
    return [None] * (1 + task.period) + [strand[tau % len(strand)] for tau in range(len(blanks))]


def modulo(task, said):
    if said[0][0] != 'C' or any(digit not in DIGITS for digit in said[1:]):
        return None
    clock, answers = DIGITS.index(said[0][1:]), [None]
    for digit in said[1:]:
        clock = 0 if clock == task.modulus - 1 else clock + 1
        answers.append(DIGITS[(DIGITS.index(digit) + clock) % task.modulus])
    return answers


SOLVE = dict(dyck=dyck, bio_rotation=bio_rotation, modulo=modulo)


def solve(task, x):
    return SOLVE[task.name](task, [task.symbols[i] for i in x])


def answers(task, y):
    return [task.symbols[i] if i >= 0 else None for i in y]


@specs
def test_samples_are_what_the_definition_says(spec):
    task = make_task(spec)
    for length in (task.min_length, 16, 17, 64):
        if length >= task.min_length:
            x, y = task.sample(stream(0, 'test'), 20, length)
            assert x.shape == y.shape == (20, length) and x.dtype == y.dtype == np.int64
            assert all(solve(task, a) == answers(task, b) for a, b in zip(x, y))


@pytest.mark.parametrize('spec, text', [
    ('dyck', '^([)]'), ('dyck', '^)('), ('dyck', '()()'), ('dyck', '^(^)'), ('dyck:max_depth=2', '^((('),
    ('bio_rotation:period=3', 'A^ACG...'), ('bio_rotation:period=3', '^AC.G...'), ('bio_rotation:period=3', '^ACG'),
    ('bio_rotation:period=3', '^ACG..A.'), ('modulo', '1234'), ('modulo', 'C1C234')])
def test_the_second_opinion_refuses_strings_of_another_language(spec, text):
    task = make_task(spec)
    assert solve(task, task.encode(text)) is None


@pytest.mark.parametrize('name', SOLVE)
def test_the_example_in_the_docstring_is_true(name):
    lines = [line.strip() for line in TASKS[name].__doc__.splitlines()]
    x, y = (line[3:].split('     ')[0].split() for line in lines if line[:3] in ('x  ', 'y  '))
    task = make_task(name)
    ids = task.encode(''.join(x))
    assert len(x) == len(y) > 4 and [symbol or '.' for symbol in answers(task, task.targets(ids[None])[0])] == y
    assert [symbol or '.' for symbol in solve(task, ids)] == y


@specs
def test_a_task_and_its_strings_can_be_written_and_read_again(spec):
    task = make_task(spec)
    x = task.sample(stream(0, 'text'), 1, 40)[0][0]
    assert task.encode(task.decode(x)).tolist() == task.encode(' '.join(task.decode(x))).tolist() == x.tolist()
    assert make_task(str(task)) == task and task.tokenizer.n_vocab == len(task.symbols)
    assert re.fullmatch(task.form, task.decode(x))


@specs
def test_streams_are_reproducible_and_disjoint(spec):
    task = make_task(spec)
    first, again, *others = (task.sample(stream(*names), 8, 32)[0] for names in [
        (0, 'train', 5, 0), (0, 'train', 5, 0), (0, 'train', 5, 1), (0, 'train', 6, 0), (1, 'train', 5, 0),
        ('validation', spec), ('-0', 'train', 5, 0)])
    assert np.array_equal(first, again) and not any(np.array_equal(first, other) for other in others)


def test_no_test_string_is_a_training_string():
    """New strings are all there is: of 4^10 and more, they do not repeat by chance, nor by a shared seed."""
    task = make_task('modulo')
    train = {row.tobytes() for it in range(20) for row in task.sample(stream(0, 'train', it, 0), 64, 64)[0]}
    test, validation = ({row.tobytes() for row in task.sample(stream(*names), 512, 64)[0]}
                        for names in (('test', 'modulo', 64), ('validation', 'modulo')))
    assert len(train) == 1280 and len(test) == 512 and not train & test and not (train | test) & validation


@pytest.mark.parametrize('k, D, T', [(2, 2, 7), (1, 3, 8)])
def test_dyck_strings_have_their_exact_probabilities(k, D, T):
    """The probability of each string by the steps of the walk, against 20 000 draws."""
    n = T // 2 * 2  # brackets; a string is ^ and T - 1 of them
    probability = {}
    for string in itertools.product(range(2 * k), repeat=n):
        p, stack = 1.0, []
        for t, symbol in enumerate(string):
            p_open = 1.0 if not stack else 0.0 if len(stack) in (D, n - t) else 0.5
            if symbol < k:
                p *= p_open / k
                stack.append(symbol)
            else:
                p *= (1 - p_open) * (bool(stack) and stack.pop() == symbol - k)
        if p:
            cut = (2 * k, *string[:T - 1])
            probability[cut] = probability.get(cut, 0) + p
    assert sum(probability.values()) == pytest.approx(1)
    x, _ = make_task(f'dyck:k={k},max_depth={D}').sample(stream(0, 'exact'), 20000, T)
    strings, counts = np.unique(x, axis=0, return_counts=True)
    assert {tuple(s) for s in strings} == set(probability)
    expected = np.array([20000 * probability[tuple(s)] for s in strings])
    chi2, freedom = ((counts - expected)**2 / expected).sum(), len(expected) - 1
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom) + 5


@pytest.mark.parametrize('spec', ['bio_rotation', 'modulo'])
def test_inputs_are_uniform_and_a_guess_has_its_chance(spec):
    task = make_task(spec)
    x, y = task.sample(stream(0, 'uniform'), 3000, 30)
    for column, said in zip(x.T, y.T):
        symbols, right = (np.unique(ids[ids >= 0], return_counts=True)[1] / 3000 for ids in (column, said))
        assert len(symbols) == 1 or abs(symbols - 1 / len(symbols)).max() < 0.04
        assert len(right) == 0 or len(right) == round(1 / task.chance) and abs(right - task.chance).max() < 0.04


@pytest.mark.parametrize('k', [2, 5])
def test_a_guess_at_a_nontrivial_closer_has_chance_one_in_k(k):
    task = make_task(f'dyck:k={k}')
    x, y = task.sample(stream(0, 'chance'), 500, 64)
    chosen = task.breakdown(x, y)['closers']['non-trivial']
    shares = np.bincount(y[chosen], minlength=2 * k)[k:2 * k] / chosen.sum()
    assert task.chance == 1 / k and abs(shares - 1 / k).max() < 0.02
    assert 0.35 < chosen.sum() / (y >= 0).sum() < 0.5  # the others copy the symbol before them


def test_dyck_breakdown_against_a_stack():
    task = make_task('dyck')
    x, y = task.sample(stream(0, 'breakdown'), 6, 300)
    groups = task.breakdown(x, y)
    for b in range(6):
        stack = []
        for t in range(299):
            if x[b, t] < 3:
                stack.append(t)
            elif x[b, t] < 6:
                stack.pop()
            if y[b, t] >= 0:
                distance, nontrivial = t + 1 - stack[-1], 3 <= x[b, t] < 6
                label = '3-9' if distance < 11 else '11-31' if distance < 33 else '33-99' if distance < 101 else '>=101'
                assert groups['closers']['all'][b, t] and groups['closers']['non-trivial'][b, t] == nontrivial
                assert not nontrivial or groups['distance to the opener'][label][b, t]
                assert not nontrivial or groups['depth'][str(len(stack))][b, t]
    for name in ('distance to the opener', 'depth'):
        assert np.array_equal(sum(mask.astype(int) for mask in groups[name].values()), groups['closers']['non-trivial'])


@pytest.mark.parametrize('spec', ['bio_rotation', 'modulo'])
def test_breakdowns_count_every_target_once(spec):
    task = make_task(spec)
    x, y = task.sample(stream(0, 'breakdown'), 4, 64)
    (masks,) = task.breakdown(x, y).values()
    assert np.array_equal(sum(mask.astype(int) for mask in masks.values()), y >= 0)
    if 'bio' in spec:
        assert masks['1'].sum() == 4 * 10 and masks['2'][0].argmax() == 1 + 20


def test_dyck_completion_closes_what_is_open():
    task = make_task('dyck')
    assert task.decode(task.completion(task.encode('^([]{('))) == ')})'
    assert len(task.completion(task.encode('^()'))) == 0
    with pytest.raises(ValueError, match=r"'\^\(\]' is not a string of dyck: \] closes nothing"):
        task.completion(task.encode('^(]'))


@pytest.mark.parametrize('call, message', [
    (lambda: make_task('modolo'), "task 'modolo' does not exist; did you mean 'modulo'\\? there are dyck, "),
    (lambda: make_task('modulo:modulos=3'), "modulo:modulos=3: .* key=value, once; did you mean 'modulus'\\?"),
    (lambda: make_task('modulo:modulus'), 'modulo:modulus: parameters are written key=value'),
    (lambda: make_task('modulo:modulus=x'), "modulo:modulus='x': must be int, as 7 is"),
    (lambda: make_task('modulo:modulus=5,modulus=7'), 'modulo:modulus=7: parameters are written key=value, once'),
    (lambda: make_task('modulo:modulus=37'), 'modulus=37: must be from 2 to 36'),
    (lambda: make_task('dyck:k=0'), 'k=0: must be from 1'),
    (lambda: make_task('bio_rotation').sample(stream(0), 1, 11), 'length=11 is too short for .*: it needs at least 12'),
    (lambda: make_task('modulo').encode('C12x'), "'C12x' has other symbols than those of modulo: 0 1 2 .* C6"),
    (lambda: make_task('dyck').encode('( x)'), "'\\( x\\)' has other symbols")])
def test_errors_name_the_value_and_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_nearest_lists_what_there_is():
    assert nearest('zzz', ['abc', 'def']) == '; there are abc, def'


# Text


@pytest.fixture
def folder(tmp_path):
    """60 small files, each with words of its own; a copy, an image, a hidden file and an empty one among them."""
    root = tmp_path / 'code'
    (root / 'sub').mkdir(parents=True)
    for i in range(60):
        (root / ('sub' if i % 3 else '.') / f'{i}.py').write_text(''.join(f'x{i}_{j} = é\n' for j in range(40)))
    (root / 'z.py').write_bytes((root / '0.py').read_bytes())
    (root / 'empty.py').write_text('\n')
    (root / '.hidden').write_text('not me\n')
    (root / 'image.png').write_bytes(bytes(range(256)))
    return root


def test_no_file_is_in_two_splits_and_none_is_lost(folder):
    files = read_files(str(folder))
    assert list(files) == list(SPLITS) and all(files.values()) and len(files['train']) > 45
    assert sum(map(len, files.values())) == 60  # the copy counts once
    for name, text in itertools.chain(*(split.items() for split in files.values())):
        assert (folder / name).read_text() == text
    (folder / '0.py').unlink()
    read_files.cache_clear()
    after = read_files(str(folder))  # the others stay in their splits
    assert all(after[split].keys() - {'z.py'} == files[split].keys() - {'0.py'} for split in SPLITS)


def test_a_single_file_is_cut_at_line_ends(tmp_path):
    path = tmp_path / 'play.txt'
    path.write_text(''.join(f'line {i} über\n' for i in range(1000)))
    parts = [text for split in read_files(str(path)).values() for text in split.values()]
    assert ''.join(parts) == path.read_text() and all(part.endswith('\n') for part in parts)
    assert [round(len(part) / len(path.read_text()), 2) for part in parts] == [0.9, 0.05, 0.05]


def test_windows_come_from_their_split_and_targets_are_the_next_bytes(folder):
    task = make_task(f'text:path={folder}')
    texts = {split: b''.join(text.encode() + b'\0' for text in files.values())
             for split, files in read_files(str(folder)).items()}
    for split, text in texts.items():
        x, y = task.sample(stream(0, split), 20, 70, split)
        assert x.shape == y.shape == (20, 70) and x.dtype == y.dtype == np.int64
        assert all(bytes([*a, b[-1]]) in text and list(a[1:]) == list(b[:-1]) for a, b in zip(x.tolist(), y.tolist()))
    assert task.record() == dict(sha256=hashlib.sha256(b''.join(texts.values())).hexdigest(),
                                 tokens={split: len(text) for split, text in texts.items()})
    assert task.decode(task.encode('é = 1')) == 'é = 1' and len(task.encode('é')) == 2 and len(task.symbols) == 256
    assert make_task(str(task)) == task


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match='text:path=.*nowhere: there is no UTF-8 text'):
        make_task(f'text:path={tmp_path}/nowhere').sample(stream(0), 1, 64)
    (tmp_path / 'text.txt').write_text('a b c d\n' * 50)
    with pytest.raises(ValueError, match='block_size=64: the validation split of text:path=.* has only .* tokens'):
        make_task(f'text:path={tmp_path}/text.txt').sample(stream(0), 1, 64)


def test_a_task_of_ones_own_is_a_few_lines():
    """What the docstring of Task asks for is enough: a name, symbols, a chance, inputs and targets."""
    import dataclasses

    @dataclasses.dataclass
    class Copy(Task):
        name, symbols, chance, min_length = 'copy', ['a', 'b'], 1 / 2, 1

        def inputs(self, rng, batch, length):
            return rng.integers(0, 2, (batch, length))

        def targets(self, x):
            return x

    x, y = Copy().sample(stream(0), 3, 5)
    assert np.array_equal(x, y) and Copy().decode(Copy().encode('abba')) == 'abba' and str(Copy()) == 'copy'
