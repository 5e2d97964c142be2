"""
The tasks against second opinions: loops written from the definition, exact probabilities, and
the examples in the docstrings. Then text: its splits, encodings and errors.
"""

import dataclasses
import hashlib
import itertools
import math
import os
import re
import sys

import numpy as np
import pytest
import tiktoken

import tasks
import text as text_file
from checkpoint import find_task
from model import UserError
from tasks import DIGITS, TASKS, Task, make_rng, make_task, without_path
from text import SPLITS, read_files, read_texts

SPECS = ['dyck', 'dyck:k=5,max_depth=3', 'bio_rotation', 'bio_rotation:period=3', 'modulo',
         'modulo:modulus=29']
specs = pytest.mark.parametrize('spec', SPECS)


# Each solver reads a list of symbols as a person would who knows only the definition. It returns
# the answer at each position, None where there is none. For what is no string of the task it
# returns None alone.


def solve_dyck(task, symbols):
    waiting, answers = [], []
    for symbol in symbols[1:]:
        if symbol in task.openers:
            answers.append(None)
            waiting.append(task.closers[task.openers.index(symbol)])
        elif waiting and waiting[-1] == symbol:
            answers.append(waiting.pop())
        else:
            return None
        if len(waiting) > task.max_depth:
            return None
    return answers + [None] if symbols[0] == '^' else None


def solve_bio_rotation(task, symbols):
    strand, blanks = symbols[1:1 + task.period], symbols[1 + task.period:]
    if symbols[0] != '^' or not set(strand) <= set('ACGT') or set(blanks) != {'.'}:
        return None
    answers = [strand[tau % len(strand)] for tau in range(len(blanks))]
    return [None] * (1 + task.period) + answers


def solve_modulo(task, symbols):
    if symbols[0][0] != 'C' or any(digit not in DIGITS for digit in symbols[1:]):
        return None
    clock, answers = DIGITS.index(symbols[0][1:]), [None]
    for digit in symbols[1:]:
        clock = 0 if clock == task.modulus - 1 else clock + 1
        answers.append(DIGITS[(DIGITS.index(digit) + clock) % task.modulus])
    return answers


SOLVERS = dict(dyck=solve_dyck, bio_rotation=solve_bio_rotation, modulo=solve_modulo)


def solve(task, x):
    return SOLVERS[task.name](task, [task.symbols[i] for i in x])


def read_answers(task, y):
    return [task.symbols[i] if i >= 0 else None for i in y]


@specs
def test_samples_are_what_the_definition_says(spec):
    task = make_task(spec)
    for length in (task.min_length, 16, 17, 64):
        if length >= task.min_length:
            x, y = task.sample(make_rng(0, 'test'), 20, length)
            assert x.shape == y.shape == (20, length)
            assert x.dtype == y.dtype == np.int64
            for row, targets in zip(x, y):
                assert solve(task, row) == read_answers(task, targets)


@pytest.mark.parametrize('spec, text', [
    ('dyck', '^([)]'),
    ('dyck', '^)('),
    ('dyck', '()()'),
    ('dyck', '^(^)'),
    ('dyck:max_depth=2', '^((('),
    ('bio_rotation:period=3', 'A^ACG...'),
    ('bio_rotation:period=3', '^AC.G...'),
    ('bio_rotation:period=3', '^ACG'),
    ('bio_rotation:period=3', '^ACG..A.'),
    ('modulo', '1234'),
    ('modulo', 'C1C234')])
def test_the_second_opinion_refuses_strings_of_another_language(spec, text):
    task = make_task(spec)
    assert solve(task, task.encode(text)) is None


@pytest.mark.parametrize('name', SOLVERS)
def test_the_example_in_the_docstring_is_true(name):
    lines = [line.strip() for line in TASKS[name].__doc__.splitlines()]
    x, y = (line[3:].split('     ')[0].split() for line in lines if line[:3] in ('x  ', 'y  '))
    task = make_task(name)
    ids = task.encode(''.join(x))
    assert len(x) == len(y) > 4
    targets = task.targets(ids[None])[0]
    assert [symbol or '.' for symbol in read_answers(task, targets)] == y
    assert [symbol or '.' for symbol in solve(task, ids)] == y


@specs
def test_a_task_and_its_strings_can_be_written_and_read_again(spec):
    task = make_task(spec)
    x = task.sample(make_rng(0, 'text'), 1, 40)[0][0]
    text = task.decode(x)
    assert task.encode(text).tolist() == x.tolist()
    assert task.encode(' '.join(text)).tolist() == x.tolist()
    assert re.fullmatch(task.form, text)
    assert make_task(str(task)) == task
    assert task.tokenizer.n_vocab == len(task.symbols)


@specs
def test_other_names_give_other_strings(spec):
    task = make_task(spec)

    def sample(*names):
        return task.sample(make_rng(*names), 8, 32)[0]

    first = sample(0, 'train', 5, 0)
    assert np.array_equal(first, sample(0, 'train', 5, 0))
    for names in [(0, 'train', 5, 1), (0, 'train', 6, 0), (1, 'train', 5, 0),
                  ('-0', 'train', 5, 0), ('validation', spec)]:
        assert not np.array_equal(first, sample(*names))


def test_the_numbers_of_a_name_stay_what_they_are():
    """Runs are repeated from their seeds, so another hash would make other runs of them."""
    assert make_rng(0, 'train', 5, 0).integers(0, 1000, 4).tolist() == [836, 518, 209, 728]


def test_no_test_string_is_a_training_string():
    """There are far too many strings for one to repeat by chance; a shared seed repeats them."""
    task = make_task('modulo')

    def sample(n, *names):
        return {row.tobytes() for row in task.sample(make_rng(*names), n, 64)[0]}

    train = set().union(*(sample(64, 0, 'train', it, 0) for it in range(20)))
    test = sample(512, 'test', 'modulo', 64)
    validation = sample(512, 'validation', 'modulo')
    assert len(train) == 1280 and len(test) == 512
    assert not train & test
    assert not (train | test) & validation


@pytest.mark.parametrize('k, max_depth, length, opening', [(2, 2, 7, 0.5), (1, 3, 8, 0.3)])
def test_dyck_strings_have_their_exact_probabilities(k, max_depth, length, opening):
    """The probability of each string, from that of each step, against 20 000 samples."""
    n = length // 2 * 2  # brackets; a string is ^ and length - 1 of them
    probability = {}
    for string in itertools.product(range(2 * k), repeat=n):
        p, stack = 1.0, []
        for t, symbol in enumerate(string):
            p_open = opening
            if not stack:
                p_open = 1.0
            elif len(stack) in (max_depth, n - t):
                p_open = 0.0
            if symbol < k:
                p *= p_open / k
                stack.append(symbol)
            else:
                matches = bool(stack) and stack.pop() == symbol - k
                p *= (1 - p_open) if matches else 0
        if p:
            cut = (2 * k, *string[:length - 1])
            probability[cut] = probability.get(cut, 0) + p
    assert sum(probability.values()) == pytest.approx(1)
    task = make_task(f'dyck:k={k},max_depth={max_depth},p_open={opening}')
    x, _ = task.sample(make_rng(0, 'exact'), 20000, length)
    strings, counts = np.unique(x, axis=0, return_counts=True)
    strings = [tuple(string) for string in strings.tolist()]
    assert set(strings) == set(probability)
    expected = 20000 * np.array([probability[string] for string in strings])
    chi2, freedom = ((counts - expected)**2 / expected).sum(), len(expected) - 1
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom) + 5


@pytest.mark.parametrize('spec', ['bio_rotation', 'modulo'])
def test_inputs_are_uniform_and_a_guess_has_its_chance(spec):
    task = make_task(spec)
    x, y = task.sample(make_rng(0, 'uniform'), 3000, 30)
    for ids, targets in zip(x.T, y.T):
        shares = np.unique(ids, return_counts=True)[1] / 3000
        assert len(shares) == 1 or abs(shares - 1 / len(shares)).max() < 0.04
        shares = np.unique(targets[targets >= 0], return_counts=True)[1] / 3000
        if len(shares):
            assert len(shares) == round(1 / task.chance)
            assert abs(shares - task.chance).max() < 0.04


@pytest.mark.parametrize('k', [2, 5])
def test_a_guess_at_a_nontrivial_closer_has_chance_one_in_k(k):
    task = make_task(f'dyck:k={k}')
    x, y = task.sample(make_rng(0, 'chance'), 500, 64)
    nontrivial = task.breakdown(x, y)['closers']['non-trivial']
    shares = np.bincount(y[nontrivial], minlength=2 * k)[k:2 * k] / nontrivial.sum()
    assert task.chance == 1 / k and abs(shares - 1 / k).max() < 0.02
    assert 0.35 < nontrivial.sum() / (y >= 0).sum() < 0.5  # the others follow their opener


def count_masks(masks):
    return sum(mask.astype(int) for mask in masks.values())


def test_dyck_breakdown_against_a_stack():
    task = make_task('dyck')
    x, y = task.sample(make_rng(0, 'breakdown'), 6, 300)
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
                starts = {3: '3-9', 11: '11-31', 33: '33-99', 101: '>=101'}
                assert groups['closers']['all'][b, t]
                assert groups['closers']['non-trivial'][b, t] == nontrivial
                if nontrivial:
                    label = starts[max(start for start in starts if start <= distance)]
                    assert groups['distance to the opener'][label][b, t]
                    assert groups['depth'][str(len(stack))][b, t]
    for name in ('distance to the opener', 'depth'):
        counts = count_masks(groups[name])
        assert np.array_equal(counts, groups['closers']['non-trivial'])


@pytest.mark.parametrize('spec', ['bio_rotation', 'modulo'])
def test_breakdowns_count_every_target_once(spec):
    task = make_task(spec)
    x, y = task.sample(make_rng(0, 'breakdown'), 4, 64)
    (masks,) = task.breakdown(x, y).values()
    assert np.array_equal(count_masks(masks), y >= 0)
    if 'bio' in spec:
        assert masks['1'].sum() == 4 * 10
        assert masks['2'][0].argmax() == 1 + 20


def test_dyck_completion_closes_what_is_open():
    task = make_task('dyck')
    assert task.decode(task.completion(task.encode('^([]{('))) == ')})'
    assert len(task.completion(task.encode('^()'))) == 0
    with pytest.raises(UserError, match=r"'\^\(\]' is not a string of dyck: \]"):
        task.completion(task.encode('^(]'))


@pytest.mark.parametrize('spec, message', [
    ('modolo', "task 'modolo' does not exist; did you mean 'modulo'\\?"),
    ('zzz', "task 'zzz' does not exist; there are dyck, bio_rotation, modulo"),
    ('modulo:modulos=3', "modulo:modulos is no parameter; did you mean 'modulus'\\?"),
    ('modulo:min_length=1', 'modulo:min_length is no parameter: write its type in the class'),
    ('dyck:depth=3', "dyck:depth is no parameter; did you mean 'max_depth'\\?"),
    ('modulo:modulus=5,7', "modulo:modulus='5,7': must be int"),
    ('modulo:modulus', 'modulo:modulus: parameters are written key=value'),
    ('modulo:modulus=x', "modulo:modulus='x': must be int"),
    ('modulo:modulus=5,modulus=7', 'modulo:modulus=7: parameters are written key=value, once'),
    ('modulo:modulus=37', 'modulus=37: must be from 2 to 36'),
    ('dyck:k=0', 'k=0: must be from 1'),
    ('text:encoding=gtp2', "encoding=gtp2 does not exist; did you mean 'gpt2'\\?")])
def test_a_spec_that_describes_no_task_is_refused(spec, message):
    with pytest.raises(UserError, match=message):
        make_task(spec)


def test_lengths_and_symbols_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r'11 tokens \(block_size\) are too few for .* at least 12'):
        make_task('bio_rotation').sample(make_rng(0), 1, 11)
    with pytest.raises(UserError, match="'C12x' has other symbols than those of modulo: 0 .* C6"):
        make_task('modulo').encode('C12x')


def test_a_task_of_ones_own_needs_only_what_the_docstring_says(monkeypatch):
    @dataclasses.dataclass
    class Copy(Task):
        size: int = 2
        name, min_length = 'copy', 1

        def __post_init__(self):
            self.symbols = list('abcdefgh'[:self.size])
            self.chance = 1 / self.size

        def inputs(self, rng, batch, length):
            return rng.integers(0, self.size, (batch, length))

        def targets(self, x):
            return x

    required = {'name', 'symbols', 'min_length', 'chance', 'inputs', 'targets'}
    listed = re.findall(r'^ {8}(\w+)  ', Task.__doc__, flags=re.MULTILINE)
    assert set(listed) == required and required <= {*dir(Copy())}
    monkeypatch.setitem(TASKS, 'copy', Copy)
    task = make_task('copy:size=3')
    x, y = task.sample(make_rng(0), 3, 5)
    assert np.array_equal(x, y) and x.max() == 2
    assert task.decode(task.encode('abca')) == 'abca'
    assert str(task) == 'copy:size=3' and str(Copy()) == 'copy'
    assert task.breakdown(x, y) == task.record() == {}


# Text


@pytest.fixture(autouse=True)
def no_files_of_other_tests():
    forget_files()


def forget_files():
    read_files.cache_clear()
    read_texts.cache_clear()


@pytest.fixture
def folder(tmp_path):
    """60 small files with words of their own, a copy, an image, a hidden and an empty file."""
    root = tmp_path / 'code'
    (root / 'sub').mkdir(parents=True)
    for i in range(60):
        lines = ''.join(f'x{i}_{j} = é\n' for j in range(40))
        (root / ('sub' if i % 3 else '.') / f'{i}.py').write_text(lines)
    (root / 'z.py').write_bytes((root / '0.py').read_bytes())
    (root / 'empty.py').write_text('\n')
    (root / '.hidden').write_text('not me\n')
    (root / 'image.png').write_bytes(bytes(range(256)))
    return root


@pytest.fixture
def tiny(monkeypatch):
    """An encoding made here, of 260 tokens, under a name that tiktoken then knows."""
    ranks = {bytes([i]): i for i in range(256)} | {b'de': 256, b' =': 257}
    encoding = tiktoken.Encoding(  # no token has the id 258
        'tiny', pat_str=r'\w+|\W+', mergeable_ranks=ranks, special_tokens={'<|endoftext|>': 259})
    monkeypatch.setattr(tiktoken, 'list_encoding_names', lambda: ['tiny', 'gpt2'])
    monkeypatch.setattr(tiktoken, 'get_encoding', dict(tiny=encoding).get)
    return encoding


def write(folder, content, name='text.txt'):
    """A text task of one file with this content."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return make_task(f'text:path={folder / name}')


def read_parts(task):
    """The text of each split of a single file."""
    return [text for files in read_files(task.path).values() for text in files.values()]


def test_no_file_is_in_two_splits_and_none_is_lost(folder):
    files = read_files(str(folder))
    assert list(files) == list(SPLITS) and all(files.values()) and len(files['train']) > 45
    assert sum(map(len, files.values())) == 60  # the copy counts once
    for split in files.values():
        for name, text in split.items():
            assert (folder / name).read_text() == text
            share = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32
            assert (name in files['train']) == (share < 0.9)
            assert (name in files['test']) == (share >= 0.95)
    (folder / '0.py').unlink()
    forget_files()
    after = read_files(str(folder))  # the others stay in their splits
    for split in SPLITS:
        assert after[split].keys() - {'z.py'} == files[split].keys() - {'0.py'}


def test_a_single_file_is_cut_at_line_ends(tmp_path):
    text = ''.join(f'line {i} über\n' for i in range(1000))
    parts = read_parts(write(tmp_path, text))
    assert ''.join(parts) == text
    assert all(part.endswith('\n') for part in parts)
    assert [round(len(part) / len(text), 2) for part in parts] == [0.9, 0.05, 0.05]


@pytest.mark.parametrize('text', [
    'one line, without an end ' * 40,
    'one line, and its end ' * 40 + '\n',
    'one line, and more ' * 40 + '\n\n',
    '>chr1\n' + 'ACGTTGCA' * 100 + '\n',
    'é' * 1000])
def test_a_text_without_line_ends_is_cut_anywhere(tmp_path, text):
    """One line, or a FASTA file: a header and one long line."""
    task = write(tmp_path, text)
    parts = read_parts(task)
    assert ''.join(parts) == text
    assert [len(part) / len(text) for part in parts] == pytest.approx([0.9, 0.05, 0.05], abs=0.01)
    for split, part in zip(SPLITS, parts):
        x, y = task.sample(make_rng(0), 4, 16, split)
        assert bytes([*x[0], y[0, -1]]) in part.encode() + b'\0'


def test_a_small_text_works_and_too_small_a_text_says_what_fits(tmp_path):
    task = write(tmp_path, 'a b c d\n' * 50)
    n = min(len(tokens) for tokens in task.tokens.values())
    for length in (64, n):
        message = f'{length} tokens and the next .* its (test|validation) split has {n} '
        with pytest.raises(UserError, match=message):
            task.sample(make_rng(0), 1, length)
    for split in SPLITS:
        x, y = task.sample(make_rng(0), 20, n - 1, split)
        assert np.array_equal(x[:, 1:], y[:, :-1])
    (tmp_path / 'few').mkdir()
    write(tmp_path / 'few', 'a b c d\n' * 50)
    with pytest.raises(UserError, match='split has [01] '):
        make_task(f'text:path={tmp_path}/few').sample(make_rng(0), 1, 1)


def test_what_is_no_text_says_what_is_wrong(tmp_path):
    (tmp_path / 'empty').mkdir()
    with pytest.raises(UserError, match='text:path=.*/nowhere does not exist'):
        make_task(f'text:path={tmp_path}/nowhere').record()
    with pytest.raises(UserError, match='text:path=x*: x* does not exist'):
        make_task(f'text:path={"x" * 5000}').record()
    with pytest.raises(UserError, match='text:path=.*/empty has no text: 0 of 0 files'):
        make_task(f'text:path={tmp_path}/empty').record()
    message = 'has no text: 1 of 1 files are not UTF-8, such as latin1.txt; unpack .* convert'
    with pytest.raises(UserError, match=message):
        write(tmp_path, 'Caf\xe9 und Tee\n'.encode('latin1') * 99, 'latin1.txt').record()
    with pytest.raises(UserError, match=message):
        make_task(f'text:path={tmp_path}').record()
    with pytest.raises(UserError, match='has no text'):
        write(tmp_path, '\n', 'blank.txt').record()


def test_files_that_are_not_utf8_are_counted_named_and_recorded(folder, capsys):
    task = make_task(f'text:path={folder}')
    assert task.record()['files_left_out'] == 1
    assert 'left out' in (printed := capsys.readouterr().out)
    assert f'{folder}: 1 of 63 files are not UTF-8, such as image.png' in printed


def test_texts_that_differ_in_line_ends_or_a_byte_order_mark_are_equal(tmp_path):
    for name, content in dict(a=b'one\ntwo\n', b=b'one\r\ntwo\r\n', c=b'one\rtwo\r',
                              d=b'\xef\xbb\xbfone\ntwo\n', e=b'another\n').items():
        (tmp_path / name).write_bytes(content)
    texts, left_out = read_texts(str(tmp_path))
    assert texts == {'one\ntwo\n': 'a', 'another\n': 'e'} and not left_out


@pytest.mark.skipif(os.name == 'nt' or sys.platform == 'darwin', reason='its names are Unicode')
def test_a_file_name_that_is_not_utf8_is_read(tmp_path):
    for i in range(40):
        name = os.fsencode(tmp_path) + b'/\xff' + str(i).encode()
        with open(name, 'w') as file:
            file.write(f'text {i}\n' * 9)
    assert sum(map(len, read_files(str(tmp_path)).values())) == 40
    record = make_task(f'text:path={tmp_path}').record()
    odd = write(tmp_path, 'a b c\n' * 99, '\udcff,b.txt')
    assert make_task(str(odd)) == odd and odd.record() != record


def test_the_strings_depend_on_what_a_text_is_and_not_on_its_path(tmp_path, monkeypatch):
    content = 'what a text is, and not where it lies\n' * 99
    (tmp_path / 'a,b').mkdir()
    one, other = write(tmp_path, content), write(tmp_path / 'a,b', content, 'encoding.txt')
    monkeypatch.chdir(tmp_path)
    relative = make_task('text:path=./text.txt')
    assert one.record() == other.record() == relative.record()
    assert {without_path(task) for task in (one, other, relative)} == {'text'}
    assert without_path('text:path=a,b,encoding=gpt2') == 'text:encoding=gpt2'
    assert without_path('text:encoding=gpt2,path=a,b') == 'text:encoding=gpt2'
    assert without_path('dyck:k=5') == 'dyck:k=5'
    assert make_task(f'text:encoding=bytes,path={other.path}') == other


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def refuse(path, encoding):
        raise PermissionError(13, 'Permission denied', str(path))

    task = write(tmp_path, 'a b c d\n' * 50)
    monkeypatch.setattr(text_file.Path, 'read_text', refuse)
    with pytest.raises(UserError, match='text.txt: Permission denied'):
        task.record()


def test_a_tilde_is_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('USERPROFILE', str(tmp_path))
    record = write(tmp_path, 'a b c d\n' * 50).record()
    task = make_task('text:path=~/text.txt')
    assert task.record() == record and str(task) == 'text:path=~/text.txt'
    with pytest.raises(UserError, match='text:path=~/nowhere: .* does not exist'):
        make_task('text:path=~/nowhere').record()


def test_windows_come_from_their_split_and_targets_are_the_next_bytes(folder):
    task = make_task(f'text:path={folder}')
    texts = {split: ''.join(text + '\0' for text in files.values()).encode()
             for split, files in read_files(str(folder)).items()}
    for split, text in texts.items():
        x, y = task.sample(make_rng(0, split), 20, 70, split)
        assert x.shape == y.shape == (20, 70) and x.dtype == y.dtype == np.int64
        assert np.array_equal(x[:, 1:], y[:, :-1])
        assert all(bytes([*row, targets[-1]]) in text for row, targets in zip(x, y))
    sha256 = hashlib.sha256(b''.join(texts.values())).hexdigest()
    tokens = {split: len(text) for split, text in texts.items()}
    assert task.record() == dict(sha256=sha256, tokens=tokens, files_left_out=1)
    assert task.tokens['train'].dtype == np.uint8
    assert task.decode(task.encode('é = 1')) == 'é = 1' and len(task.encode('é')) == 2
    assert len(task.symbols) == 256 and task.chance == 1 / 256 and math.isnan(task.min_loss)
    assert make_task(str(task)) == make_task(f'{task},encoding=bytes') == task


def test_a_named_encoding(folder, tiny):
    task = make_task(f'text:path={folder},encoding=tiny')
    assert make_task(str(task)) == task and 'encoding=tiny' in str(task)
    assert len(task.symbols) == 260 and task.chance == 1 / 260
    assert task.encode('def =').tolist() == [256, ord('f'), 257]
    assert task.decode([256, 258, 300, 257]) == 'de ='  # two of them are no tokens
    for split, files in read_files(str(folder)).items():
        tokens = task.tokens[split]
        assert tokens.dtype == np.uint16
        ends = np.flatnonzero(tokens == 259)
        texts = [tiny.decode(part[part != 259].tolist()) for part in np.split(tokens, ends)]
        assert texts == [*files.values(), '']
        x, y = task.sample(make_rng(0, split), 20, 70, split)
        assert np.array_equal(x[:, 1:], y[:, :-1]) and x.dtype == np.int64
        for row, targets in zip(x, y):
            window = np.array([*row, targets[-1]], dtype=np.uint16)
            assert window.tobytes() in tokens.tobytes()
    record = task.record()
    assert record['tokens'] == {split: len(tokens) for split, tokens in task.tokens.items()}
    assert record['sha256'] != make_task(f'text:path={folder}').record()['sha256']


def test_symbols_are_printable_and_name_every_token(tiny):
    symbols = text_file.list_symbols(tiny)
    assert symbols[256:] == ['de', ' =', '', '<|endoftext|>']
    assert symbols[ord('a')] == 'a' and symbols[200] == '\\xc8'
    assert symbols[27] == '\\x1b' and symbols[10] == '\\x0a'


@pytest.mark.parametrize('error', [ConnectionError('no route'), ValueError('Hash mismatch')])
def test_a_vocabulary_that_cannot_be_downloaded_is_one_line(monkeypatch, error):
    def offline(name):
        raise error

    monkeypatch.setattr(tiktoken, 'get_encoding', offline)
    message = f'gpt2: tiktoken could not download it .{type(error).__name__}.; offline, use enc'
    with pytest.raises(UserError, match=message) as caught:
        make_task('text:encoding=gpt2')
    assert '\n' not in str(caught.value)


def test_an_encoding_without_an_end_of_text_or_that_panics_is_one_line(tmp_path, monkeypatch):
    class PanicException(BaseException):
        """What tiktoken's library in Rust raises."""

    class Panics:
        n_vocab, eot_token = 256, 0

        def encode_ordinary_batch(self, texts):
            raise PanicException('StackOverflow')

        def decode_single_token_bytes(self, token):
            return bytes([token])

    without = text_file.make_encoding('without', r'[\s\S]', [bytes([i]) for i in range(256)])
    encodings = dict(panics=Panics(), without=without)
    monkeypatch.setattr(tiktoken, 'list_encoding_names', lambda: list(encodings))
    monkeypatch.setattr(tiktoken, 'get_encoding', encodings.get)
    path = write(tmp_path, 'a b c\n' * 99).path
    for name, message in dict(panics='cannot encode this text: StackOverflow',
                              without='has no end of text').items():
        with pytest.raises(UserError, match=f'text:encoding={name} {message}'):
            make_task(f'text:encoding={name},path={path}').record()


def test_a_task_may_bring_a_tokenizer_of_its_own(folder):
    """A subclass of Text with another `tokenizer` has all the rest by it."""
    class OneToken:
        n_vocab, eot_token = 2, 1

        def encode_ordinary_batch(self, texts):
            return [[0] * len(text) for text in texts]

        def decode_single_token_bytes(self, token):
            return b'ab'[token:token + 1]

    @dataclasses.dataclass
    class Other(tasks.Text):
        tokenizer = OneToken()

    task = Other(path=str(folder), encoding='one')
    lengths = [len(text) for text in read_files(task.path)['train'].values()]
    assert task.symbols == ['a', 'b'] and task.chance == 1 / 2
    ends = np.flatnonzero(task.tokens['train'])
    assert np.diff(ends, prepend=-1).tolist() == [length + 1 for length in lengths]


# The task of a checkpoint


def make_checkpoint(spec, vocab_size=256):
    task = make_task(spec)
    return dict(task=str(task), data=task.record(), model_args=dict(vocab_size=vocab_size))


def test_a_checkpoint_opens_no_file_that_only_it_names(tmp_path, monkeypatch):
    def opened(*arguments):
        raise AssertionError('a file was opened')

    monkeypatch.setattr(tasks, 'read_files', opened)
    monkeypatch.setattr(tasks, 'read_encoding', opened)
    for trained in (f'text:path={tmp_path}', 'text:encoding=gpt2', 'text:encoding=a,path=b'):
        for spec in (None, ''):
            with pytest.raises(UserError, match='the run was trained on .*: give --task='):
                find_task(dict(task=trained, data={}, model_args=dict(vocab_size=256)), spec)


def test_the_task_of_a_checkpoint_is_found_or_refused(tmp_path, folder, capsys):
    checkpoint = make_checkpoint('modulo:modulus=5', vocab_size=10)
    assert str(find_task(checkpoint)) == str(find_task(checkpoint, 'modulo:modulus=5'))
    for spec in ('modulo', 'dyck', f'text:path={folder}'):
        with pytest.raises(UserError, match='trained on modulo:modulus=5, and that is not the'):
            find_task(checkpoint, spec)
    checkpoint['model_args']['vocab_size'] = 9
    with pytest.raises(UserError, match='not the same'):
        find_task(checkpoint)

    checkpoint = make_checkpoint(f'text:path={folder}')
    moved = folder.rename(tmp_path / 'moved')
    assert find_task(checkpoint, f'text:path={moved}').path == str(moved)
    (moved / '1.py').write_text('another text\n')
    forget_files()
    with pytest.raises(UserError, match='not the same'):
        find_task(checkpoint, f'text:path={moved}')
    assert 'not what it was' not in capsys.readouterr().out
    find_task(dict(checkpoint, task='text'))  # Python's own sources differ between versions
    assert 'the text of text is not what it was in training' in capsys.readouterr().out
