"""
The tasks against second opinions: loops written from the definition, exact probabilities, and
the examples in the docstrings. Then text: its files, splits, encodings and errors.
"""

import collections
import hashlib
import itertools
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from configurator import to_device
from model import UserError
from tasks import DIGITS, TASKS, Task, make_rng, make_task
from tasks import MANY, SPLITS, read_files, read_texts

SPECS = ['dyck', 'dyck:k=5,max_depth=3', 'bio_rotation:period=3', 'modulo', 'modulo:modulus=29']

# Each solver knows only the definition. It returns the answer at each position, None where there
# is none. For what is no string of the task it returns None alone.


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


def symbols(task, ids):
    return [task.symbols[i] if i >= 0 else None for i in ids]


def check_samples(spec, solvers):
    """Samples are what the definition says, and can be written and read."""
    task = make_task(spec)
    assert make_task(str(task)) == task
    for length in (0, 16, 17, 64, 200):
        length = max(length, task.min_length)
        x, y = task.sample(make_rng(0, 'test'), 20, length)
        assert x.shape == y.shape == (20, length) and x.dtype == y.dtype == np.int64
        for row, targets in zip(x, y):
            assert solvers[task.name](task, symbols(task, row)) == symbols(task, targets)
            assert task.encode(' '.join(task.decode(row))).tolist() == row.tolist()


def check_example(name, solvers):
    """The example in the docstring is true."""
    lines = [line.strip() for line in TASKS[name].__doc__.splitlines()]
    x, y = (line[3:].split('     ')[0].split() for line in lines if line[:3] in ('x  ', 'y  '))
    task = make_task(name)
    ids = task.encode(''.join(x))
    targets = symbols(task, task.targets(ids[None])[0])
    assert len(x) > 4 and [symbol or '.' for symbol in targets] == y
    assert targets == solvers[name](task, symbols(task, ids))


@pytest.mark.parametrize('spec', SPECS)
def test_samples_are_what_the_definition_says_and_can_be_written_and_read(spec):
    check_samples(spec, SOLVERS)
    assert make_task(spec).min_loss == 0  # the string tells each answer


@pytest.mark.parametrize('name', SOLVERS)
def test_the_example_in_the_docstring_is_true(name):
    check_example(name, SOLVERS)


def test_other_names_give_other_numbers_and_runs_can_be_repeated_from_theirs():
    names = [(0, 'train', 5, 0), (0, 'train', 5, 1), (0, 'train', 6, 0), (1, 'train', 5, 0),
             ('-0', 'train', 5, 0), ('validation', 'dyck'), ('validation', 'modulo')]
    assert len({make_rng(*name).integers(2**62) for name in names}) == len(names)
    for name, string in dict(dyck='^[][][][][[{}({}{})]', bio_rotation='^AATTTTGGTC.........',
                             modulo='C10555535521616461052').items():
        task = make_task(name)
        assert task.decode(task.sample(make_rng(0), 1, 20)[0][0]) == string


@pytest.mark.parametrize('k, max_depth, length, opening', [(2, 2, 7, 0.5), (1, 3, 8, 0.3)])
def test_dyck_strings_have_their_exact_probabilities(k, max_depth, length, opening):
    """The probability of each string, from that of each step, against 20 000 samples."""
    n = length // 2 * 2  # brackets; a string is ^ and length - 1 of them
    probability = collections.Counter()
    for string in itertools.product(range(2 * k), repeat=n):
        p, stack = 1.0, []
        for t, symbol in enumerate(string):
            p_open = opening if len(stack) not in (max_depth, n - t) else 0
            p_open = p_open if stack else 1
            if symbol < k:
                p *= p_open / k
                stack.append(symbol)
            else:
                p *= (1 - p_open) * (bool(stack) and stack.pop() == symbol - k)
        if p:
            probability[(2 * k, *string[:length - 1])] += p
    assert sum(probability.values()) == pytest.approx(1)
    task = make_task(f'dyck:k={k},max_depth={max_depth},p_open={opening}')
    x, _ = task.sample(make_rng(0, 'exact'), 20000, length)
    found = collections.Counter(map(tuple, x.tolist()))
    freedom = len(found) - 1
    assert set(found) == set(probability)
    chi2 = sum((found[string] - 20000 * p)**2 / (20000 * p) for string, p in probability.items())
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom) + 5


@pytest.mark.parametrize('spec', ['bio_rotation', 'modulo', 'dyck:k=2', 'dyck:k=5'])
def test_a_guess_at_the_headline_has_its_chance(spec):
    task = make_task(spec)
    x, y = task.sample(make_rng(0, 'chance'), 1000, 64)
    counted = y >= 0
    if 'dyck' in spec:  # a closer right after its opener is trivial
        counted &= np.isin(np.array(task.symbols)[x], list(task.closers))
    else:  # every token of the input is uniform, too
        for ids in x.T:
            shares = np.unique(ids, return_counts=True)[1] / 1000
            assert abs(shares - 1 / len(shares)).max() < 0.06
    assert np.array_equal(task.headline(x, y), counted)
    answers, numbers = np.unique(y[counted], return_counts=True)
    assert len(answers) == round(1 / task.chance)
    assert abs(numbers / counted.sum() - task.chance).max() < 0.02


def test_dyck_completion_closes_what_is_open():
    task = make_task('dyck')
    for start, ending in {'^([]{[': ']})', '^()': ''}.items():
        assert task.decode(task.completion(task.encode(start))) == ending
    for wrong in ('^(]', '^)', '^(^'):
        with pytest.raises(UserError, match='is not a string of dyck: .* matches no open bracket'):
            task.completion(task.encode(wrong))


@pytest.mark.parametrize('spec, message', [
    ('modolo', "task 'modolo' does not exist; did you mean 'modulo'\\?"),
    ('modulo:modulos=3', "modulo:modulos is no parameter; did you mean 'modulus'\\?"),
    ('modulo:modulus=5,7', "modulo:modulus='5,7': must be int"),
    ('modulo:modulus', "modulo:modulus='': must be int"),
    ('modulo:modulus=37', 'modulus=37: must be from 2 to 36'),
    ('dyck:k=0', 'k=0: must be from 1'),
    ('dyck:p_open=nan', 'p_open=nan: must be from 0 to 1'),
    ('text:encoding=gtp2', 'encoding=gtp2 is unknown .* must be bytes, or one of .*gpt2')])
def test_a_spec_that_describes_no_task_is_refused(spec, message):
    with pytest.raises(UserError, match=message):
        make_task(spec)


def test_lengths_and_symbols_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r'11 tokens .* are too few for bio_rotation.* at least 12'):
        make_task('bio_rotation').sample(make_rng(0), 1, 11)
    with pytest.raises(UserError, match="'C12x' has other symbols than 0 .* C6"):
        make_task('modulo').encode('C12x')


@dataclass
class Flip(Task):
    size: int = 2
    backwards: int = 1
    name, min_length = 'flip', 1

    def __post_init__(self):
        self.symbols = ['a', 'ab', 'c'][:self.size]
        self.chance = 1 / self.size

    def inputs(self, rng, batch, length):
        return rng.integers(0, self.size, (batch, length))

    def targets(self, x):
        return x[:, ::-1] if self.backwards else x


def test_a_task_of_ones_own_needs_only_what_the_docstring_says(monkeypatch):
    monkeypatch.setitem(TASKS, 'flip', Flip)
    listed = re.findall(r'^ {8}(\w+)  ', Task.__doc__, flags=re.MULTILINE)
    assert set(listed) == {'name', 'symbols', 'min_length', 'chance', 'inputs', 'targets'}
    task = make_task('flip:size=3')
    # a reversed array is no tensor as it is
    x, y = [tensor.numpy() for tensor in to_device(task.sample(make_rng(0), 3, 5), 'cpu')]
    assert np.array_equal(x[:, ::-1], y) and task.headline(x, y).all()
    assert task.decode(task.encode('abca')) == 'abca' and len(task.encode('abca')) == 3
    assert str(task) == 'flip:size=3' and str(Flip()) == 'flip'
    assert task.fingerprint() == {} and task.completion is None


# Text
@pytest.fixture
def tiny(monkeypatch):
    """An encoding made here, of 260 tokens, under a name that tiktoken then knows."""
    ranks = {bytes([i]): i for i in range(256)} | {b'de': 256, b' =': 257}
    encoding = tiktoken.Encoding(  # no token has the id 258
        'tiny', pat_str=r'\w+|\W+', mergeable_ranks=ranks, special_tokens={'<|endoftext|>': 259})
    monkeypatch.setattr(tiktoken, 'get_encoding', dict(tiny=encoding).__getitem__)
    return encoding


def write(folder, content, name='text.txt'):
    """A text task of one file with this content."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return make_task(f'text:path={folder / name}')


def read_again(task):
    read_files.cache_clear()
    return make_task(str(task)).fingerprint()


def write_many(folder, n, lines=40):
    """A text task of n small files in a folder and one below it; each has words of its own."""
    (folder / 'sub').mkdir(parents=True)
    for i in range(n):
        name = f'sub/{i}' if i % 3 else f'{i}'
        write(folder, ''.join(f'x{i}_{j} = é\n' for j in range(lines)), name)
    return make_task(f'text:path={folder}')


def test_of_many_files_none_is_in_two_splits_and_each_keeps_its_own(tmp_path):
    files = read_files(write_many(tmp_path / 'code', MANY).path)
    assert list(files) == list(SPLITS) and sum(map(len, files.values())) == MANY
    for split in SPLITS:
        for name, text in files[split].items():
            assert (tmp_path / 'code' / name).read_text(encoding='utf-8') == text
            share = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32
            assert (share < 0.9) == (split == 'train') and (share >= 0.95) == (split == 'test')


def test_few_files_are_cut_so_that_each_split_has_all_of_them(tmp_path):
    splits = read_files(write_many(tmp_path / 'code', MANY - 1).path)
    assert [len(files) for files in splits.values()] == [MANY - 1] * 3
    for name in splits['train']:
        a, b, c = (splits[split][name] for split in SPLITS)
        text = (tmp_path / 'code' / name).read_text(encoding='utf-8')
        assert a + b + c == text and len(a) == len(text) * 90 // 100
        assert abs(len(b) - len(c)) <= 1


def test_a_text_that_is_too_small_says_so(tmp_path):
    task = write(tmp_path, 'a b c d\n' * 50)
    for split in SPLITS:
        n = len(task.tokens[split])
        assert len(np.unique(task.sample(make_rng(0), 20, n - 2, split)[0], axis=0)) == 2
        task.sample(make_rng(0), 20, n - 1, split)
        with pytest.raises(UserError, match=f'{n} tokens and .* its {split} split has {n}$'):
            task.sample(make_rng(0), 1, n, split)


def test_what_is_no_text_says_why(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    contents = dict(empty=b'', blank=b' \n', latin1='Caf\xe9\n'.encode('latin1'),
                    utf16='a text\n'.encode('utf-16-le'))
    for name, content in [*contents.items(), ('run.lock', b'{}')]:
        (tmp_path / f'{name}_folder').mkdir()
        write(tmp_path / f'{name}_folder', content, name)
        write(tmp_path, content, name)
    for path in ['empty', 'blank_folder', 'latin1_folder', 'utf16', 'nowhere', 'run.lock_folder',
                 'pipe']:
        with pytest.raises(UserError, match=f'text:path={tmp_path}/{path} has no text: must be'):
            make_task(f'text:path={tmp_path}/{path}').fingerprint()


def test_a_file_that_may_not_be_read_is_passed_over(tmp_path, monkeypatch):
    task = write_many(tmp_path / 'code', 10)
    before, read_text = task.fingerprint(), Path.read_text

    def refuse(path, *options):
        if path.name == 'locked.py':
            raise PermissionError
        return read_text(path, *options)
    write(tmp_path / 'code', 'not for us', 'locked.py')
    monkeypatch.setattr(Path, 'read_text', refuse)
    assert read_again(task) == before


def test_a_run_may_lie_in_its_text_and_links_are_not_followed(tmp_path, capsys):
    task = write_many(tmp_path / 'code', 10)
    before = task.fingerprint()
    (tmp_path / 'code' / 'out' / 'run').mkdir(parents=True)
    for name in ('run.lock', 'log.jsonl', 'config.json'):
        write(tmp_path / 'code' / 'out' / 'run', 'of a run', name)
    write(tmp_path / 'code', 'hidden', '.hidden')
    assert task.fingerprint() == read_again(task) == before
    write(tmp_path, 'a secret', 'key')
    for name, place in dict(a='key', b='code/sub', c='code/../').items():
        (tmp_path / 'code' / name).symlink_to(tmp_path / place)
    assert read_again(task) == before
    write(tmp_path / 'code', 'one more line of text\n', 'new.py')
    after = read_again(task)
    assert after['sha256'] != before['sha256'] and after['bytes'] == before['bytes'] + 22 + 3


def test_texts_that_differ_in_line_ends_or_a_byte_order_mark_are_equal(tmp_path):
    for name, content in dict(a=b'one\ntwo\n', b=b'one\r\ntwo\r\n', c=b'one\rtwo\r',
                              d=b'\xef\xbb\xbfone\ntwo\n').items():
        write(tmp_path, content, name)
    assert read_texts(str(tmp_path)) == {'one\ntwo\n': 'a'}


def test_the_strings_depend_on_what_a_text_is_and_not_on_its_path(tmp_path, monkeypatch, tiny):
    content = 'what a text is, and not where it lies\n' * 99
    (tmp_path / 'a,b:c').mkdir()
    one, other = write(tmp_path, content), write(tmp_path / 'a,b:c', content, 'encoding.txt')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('USERPROFILE', str(tmp_path))
    for task in (one, other, make_task('text:path=./text.txt'), make_task('text:path=~/text.txt')):
        assert make_task(str(task)) == task and task.fingerprint() == one.fingerprint()
        assert task.spec(without='path') == 'text'
    assert make_task(f'text:encoding=bytes,path={other.path}') == other
    assert make_task('text:path=a,b:c,encoding=tiny').spec(without='path') == 'text:encoding=tiny'
    assert make_task('dyck:k=5').spec(without='path') == 'dyck:k=5'


def test_windows_come_from_their_split_and_targets_are_the_next_tokens(tmp_path, tiny):
    path = write_many(tmp_path / 'code', MANY).path
    for encoding, end, dtype in [('bytes', 0, np.uint8), ('tiny', 259, np.uint32)]:
        task = make_task(f'text:path={path},encoding={encoding}')
        for split, files in read_files(path).items():
            tokens = task.tokens[split]
            parts = np.split(tokens, np.flatnonzero(tokens == end))
            assert [task.decode(part[part != end]) for part in parts] == [*files.values(), '']
            x, y = task.sample(make_rng(0, split), 20, 70, split)
            assert x.shape == y.shape == (20, 70) and x.dtype == y.dtype == np.int64
            assert np.array_equal(x[:, 1:], y[:, :-1]) and tokens.dtype == dtype
            for window in np.concatenate([x, y[:, -1:]], axis=1).astype(dtype):
                assert window.tobytes() in tokens.tobytes()


def test_tokens_are_read_and_written_without_the_text(tiny):
    task, named = make_task('text:path=/nowhere'), make_task('text:path=/nowhere,encoding=tiny')
    assert task.decode(task.encode('é = 1')) == 'é = 1' and len(task.encode('é')) == 2
    assert len(task.symbols) == 1 / task.chance == 256 and math.isnan(task.min_loss)
    assert len(set(named.symbols)) == 260 and named.chance == 1 / 260
    assert named.encode('def =').tolist() == [256, ord('f'), 257]
    assert named.decode(np.array([256, 257])) == 'de ='


def test_a_vocabulary_that_cannot_be_downloaded_is_one_line(monkeypatch):
    monkeypatch.setattr(tiktoken, 'get_encoding', open)  # it raises OSError, as a download does
    with pytest.raises(UserError, match='gpt2 .* could not be downloaded .FileNotFoundError'):
        make_task('text:encoding=gpt2')
