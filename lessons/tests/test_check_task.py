"""The checker of tasks passes what is right, and each check fails for what it names."""

import dataclasses
import itertools

import numpy as np
import pytest

from lab.tasks import LAB_TASKS
from lessons import check_task
from lessons.run_checks import run_checks
from model import UserError
from tasks import TASKS, BioRotation, Modulo, make_task

TABLES = itertools.count()  # so that no two tasks in a row have one table
ATTRIBUTES = dict(  # {mistake: attributes of bio_rotation}
    key=dict(name='even'), twice=dict(symbols=['^', 'A', 'A', 'G', 'T', '.']),
    number=dict(symbols=[0, 1, 2, 3, 4, 5]), inside=dict(symbols=['^', 'A', 'AA', 'G', 'T', '.']),
    percent=dict(chance=25), below=dict(chance=0.2), unscored=dict(min_length=11),
    other_bos=dict(bos='A'), no_bos=dict(bos=''), no_chance=dict(chance=None),
    no_symbols=dict(symbols=None))
ANSWERS = dict(  # {mistake: answers y (B, T) to x, from the right ones}
    no_answers=lambda x, y: None, int32=lambda x, y: y.astype(np.int32),
    too_large=lambda x, y: np.where(y < 0, y, y + 2),
    ignore=lambda x, y: np.where(y < 0, -100, y), mixed=lambda x, y: np.roll(y, 1, axis=0),
    in_place=lambda x, y: x, early=lambda x, y: np.roll(y, -1, axis=1),
    determined=lambda x, y: np.concatenate([x[:, 1:2], y[:, 1:]], axis=1))
HEADLINES = dict(everywhere=lambda y: y >= -1, none=lambda y: None, nowhere=lambda y: y > 99)


@dataclasses.dataclass
class Odd(BioRotation):
    """bio_rotation with the mistake that its parameter names."""
    mistake: str = ''
    name = 'odd'

    def __post_init__(self):
        super().__post_init__()
        vars(self).update(ATTRIBUTES.get(self.mistake, {}))
        if self.mistake == 'table':
            self.letters = np.roll(np.arange(4), next(TABLES))

    def __str__(self):
        return 'bio_rotation' if self.mistake == 'text' else super().__str__()

    def inputs(self, rng, batch, length):
        return None if self.mistake == 'no_inputs' else super().inputs(rng, batch, length)

    def sample(self, rng, batch, length, split='train'):
        if self.mistake == 'short':
            length = max(length, self.min_length)
        if self.mistake == 'own_rng':
            rng = np.random.default_rng()
        if self.mistake == 'fixed_rng':
            rng = np.random.default_rng(0)
        if self.mistake == 'length':
            length = 24
        x, y = super().sample(rng, batch, length, split)
        if self.mistake == 'one_row':
            x, y = np.tile(x[:1], (batch, 1)), np.tile(y[:1], (batch, 1))
        if self.mistake == 'noise':
            y[:, -1] = rng.integers(1, 5, batch)
        return x, y

    def targets(self, x):
        y = super().targets(x)
        if self.mistake == 'table':
            return np.where(y < 0, y, 1 + self.letters[y - 1])
        if self.mistake == 'changed':
            x[:, 1:11] = x[:, 10:0:-1].copy()
        return ANSWERS.get(self.mistake, lambda x, y: y)(x, y)

    def headline(self, x, y):
        return HEADLINES.get(self.mistake, lambda y: y >= 0)(y)


class Bare(Modulo):
    """Its parameter is none: the line above the class is missing."""
    more: int = 0


@pytest.fixture
def odd(monkeypatch):
    monkeypatch.setitem(TASKS, 'odd', Odd)
    monkeypatch.setitem(TASKS, 'bare', Bare)


SPECS = ['dyck', 'bio_rotation', 'modulo', 'text', *LAB_TASKS, 'dyck:k=1', 'dyck:k=2,max_depth=3',
         'bio_rotation:period=1', 'modulo:modulus=36', 'spacing:schedule=exponential',
         'passkey:keys=4']


@pytest.mark.parametrize('spec', SPECS)
def test_the_tasks_of_the_page_and_the_lab_pass(spec, capsys):
    assert check_task.check(spec)
    assert f'\n{len(check_task.CHECKS)} of' in capsys.readouterr().out


@pytest.mark.parametrize('mistake, check', [
    ('text', 'attributes'), ('key', 'attributes'), ('twice', 'attributes'),
    ('number', 'attributes'), ('percent', 'attributes'), ('int32', 'arrays'),
    ('too_large', 'arrays'), ('ignore', 'arrays'), ('length', 'arrays'),
    ('inside', 'round_trip'), ('other_bos', 'round_trip'), ('no_bos', 'round_trip'),
    ('mixed', 'targets'), ('changed', 'targets'), ('noise', 'targets'),
    ('unscored', 'min_length'), ('short', 'min_length'), ('own_rng', 'random'),
    ('fixed_rng', 'random'), ('table', 'random'), ('one_row', 'random'),
    ('determined', 'determined'), ('in_place', 'places'), ('early', 'places'),
    ('below', 'headline'), ('everywhere', 'headline'), ('none', 'headline'),
    ('nowhere', 'headline')])
def test_a_check_finds_its_mistake(mistake, check, odd):
    one = getattr(check_task, f'check_{check}')
    assert one(Odd(mistake=mistake))
    assert one(Odd()) is None


@pytest.mark.parametrize('mistake, said', [
    ('no_chance', 'it has no chance'), ('no_symbols', 'it has no symbols'),
    ('no_inputs', '`inputs` gives None'), ('no_answers', '`targets` gives None')])
def test_what_is_missing_is_the_last_thing_said(mistake, said, odd, capsys):
    assert not check_task.check(f'odd:mistake={mistake}')
    lines = capsys.readouterr().out.splitlines()
    assert said in lines[-2] and 'NO' in lines[-3]


def shift(y, places):
    """The answers y (B, T), so many places later; negative: earlier. -1 fills the gap."""
    shifted = np.roll(y, places, axis=1)
    shifted[:, 0 if places > 0 else -1] = -1
    return shifted


@pytest.mark.parametrize('spec, places, check', [
    ('dyck', 1, 'places'), ('dyck', -1, 'determined'), ('modulo', 1, 'places'),
    ('modulo', -1, 'determined'), ('sum', -1, 'determined'), ('lag', -1, 'determined')])
def test_answers_that_are_shifted_by_one_are_found(spec, places, check, monkeypatch):
    task = make_task(spec)
    one = getattr(check_task, f'check_{check}')
    assert one(task) is None
    right = type(task).targets
    monkeypatch.setattr(type(task), 'targets', lambda self, x: shift(right(self, x), places))
    assert one(task)


def test_a_class_without_its_decorator_is_an_error_of_the_user(odd):
    with pytest.raises(UserError, match='dataclass'):
        check_task.check('bare')


def test_the_first_mistake_is_the_last_line_and_an_error_is_one(monkeypatch, capsys):
    def broken(subject):
        """an error"""
        return subject.nothing

    assert not run_checks([broken, broken], 0)
    said = capsys.readouterr().out
    assert said.count('an error') == 1 and 'AttributeError' in said and __file__[-10:] in said
    monkeypatch.setenv('TRACEBACK', '1')
    with pytest.raises(AttributeError):
        run_checks([broken], 0)
