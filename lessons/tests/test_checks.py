"""The checkers: what the repository has passes, and each mistake fails the check that names it."""

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn

from lessons import check_attention, check_task
from model import ATTENTIONS, Attention, NoPE, UserError, distances
from tasks import TASKS, Dyck, Modulo, Task

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize('name', ATTENTIONS)
def test_every_attention_passes(name):
    assert check_attention.main([name]) == []


@pytest.mark.parametrize('name', TASKS)
def test_every_task_passes(name):
    assert check_task.main([name]) == []


# ---------------------------------------------------------------------------------------------
# Attentions


class ALiBi(Attention):
    def scores(self, q, k):
        return super().scores(q, k) - 0.5 * distances(q, k)


class Learned(Attention):
    """With a slope of its own, which starts at 0."""

    def __init__(self, config):
        super().__init__(config)
        self.slope = nn.Parameter(torch.zeros(config.n_head, 1, 1))

    def scores(self, q, k):
        return super().scores(q, k) - self.slope * distances(q, k)


class WrongShape(Attention):
    def scores(self, q, k):
        return super().scores(q, k)[:, 0]


class WrongOutput(Attention):
    def forward(self, x, cache=None):
        return super().forward(x, cache)[:, -1:]


class NoMask(Attention):
    def attend(self, q, k, v):
        group = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        return self.scores(q, k).softmax(dim=-1) @ v


class NaNForLaterKeys(Attention):
    def scores(self, q, k):
        return super().scores(q, k) - distances(q, k).float().sqrt()


class NaNForItself(Attention):
    def scores(self, q, k):
        distance = distances(q, k)
        return super().scores(q, k) - 0 * distance / distance


class NaNGradient(Attention):
    """Adds 0, by a root, whose slope at 0 is infinite."""

    def scores(self, q, k):
        return super().scores(q, k) + (q[..., :1] - q[..., :1]).abs().sqrt()


class WrongCache(Attention):
    """The first query of a piece is taken for the first token."""

    def scores(self, q, k):
        m, n = torch.arange(q.size(2)), torch.arange(k.size(2))
        return super().scores(q, k) - 0.5 * (m[:, None] - n).abs()


class WrongPosition(NoPE):
    def rotate(self, q, k, position):
        angle = 0.1 * (position - position[0])[:, None]
        return q * angle.cos(), k * angle.cos()

    def scores(self, q, k):
        angle = 0.1 * torch.arange(k.size(2))[:, None]
        return super().scores(q * angle.cos()[-q.size(2):], k * angle.cos())

    attend = NoPE.attend


class OtherFormula(NoPE):
    def scores(self, q, k):
        return super().scores(q, k) - 0.5 * distances(q, k)

    attend = NoPE.attend


class Unused(Learned):
    def scores(self, q, k):
        return Attention.scores(self, q, k)


class CutOff(Learned):
    def scores(self, q, k):
        return Attention.scores(self, q, k) - self.slope.detach() * distances(q, k)


class HiddenTensor(ALiBi):
    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.ones(1, requires_grad=True)

    def scores(self, q, k):
        return Attention.scores(self, q, k) - self.slope * distances(q, k)


class HiddenInAList(HiddenTensor):
    def __init__(self, config):
        ALiBi.__init__(self, config)
        self.slopes = [nn.Parameter(torch.ones(1))]
        self.slope = 1.0


class MadeTooLate(Learned):
    def __init__(self, config):
        Attention.__init__(self, config)

    def scores(self, q, k):
        if not hasattr(self, 'slope'):
            self.slope = nn.Parameter(torch.ones(1))
        return super().scores(q, k)


class NotSaved(Attention):
    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.rand(())

    def scores(self, q, k):
        return super().scores(q, k) - self.slope * distances(q, k)


GRADIENT = 'a gradient for every parameter'
FINITE = 'finite scores and gradients'
OPTIMIZER = 'every parameter in the optimizer'
CACHE = 'cached equals uncached'
CAUSAL = 'causal: no look at later tokens'
SAVED = 'saved and loaded'


@pytest.mark.parametrize('attention, expected', [
    (ALiBi, []),
    (Learned, []),
    (WrongShape, ['shapes']),
    (WrongOutput, ['shapes']),
    (NoMask, [CAUSAL]),
    (NaNForLaterKeys, [FINITE]),
    (NaNForItself, [FINITE]),
    (NaNGradient, [FINITE]),
    (WrongCache, [CACHE]),
    (WrongPosition, [CACHE]),
    (OtherFormula, ['what trains equals `scores`']),
    (Unused, [GRADIENT]),
    (CutOff, [GRADIENT]),
    (HiddenTensor, [OPTIMIZER]),
    (HiddenInAList, [OPTIMIZER]),
    (MadeTooLate, [OPTIMIZER, SAVED]),
    (NotSaved, [SAVED]),
], ids=lambda value: getattr(value, '__name__', ''))
def test_a_mistake_in_an_attention_fails_its_check(attention, expected, monkeypatch, capsys):
    monkeypatch.setitem(ATTENTIONS, 'mine', attention)
    assert check_attention.main(['mine']) == expected
    lines = capsys.readouterr().out.splitlines()
    wrong = [line.partition('WRONG: ') for line in lines if 'WRONG: ' in line]
    assert [title.strip() for title, _, _ in wrong] == expected
    assert all(words for _, _, words in wrong)


def test_the_own_parameters_are_named(monkeypatch, capsys):
    monkeypatch.setitem(ATTENTIONS, 'mine', Learned)
    check_attention.main(['mine'])
    line, = (line for line in capsys.readouterr().out.splitlines() if line.startswith(OPTIMIZER))
    assert 'slope' in line


# ---------------------------------------------------------------------------------------------
# Tasks


@dataclasses.dataclass
class Echo(Task):
    """The digit two places before."""
    name = 'mine'
    symbols = list('0123')
    min_length = 3
    chance = 1 / 4
    high = 4  # digits

    def inputs(self, rng, batch, length):
        return rng.integers(0, self.high, (batch, length))

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, 2:] = x[:, :-2]
        return y

    def breakdown(self, x, y):
        return {'place': {'third': (y >= 0) & (np.arange(x.shape[1]) == 2)}}


class Float(Echo):
    def inputs(self, rng, batch, length):
        return super().inputs(rng, batch, length).astype(np.float32)


class TooLong(Echo):
    def inputs(self, rng, batch, length):
        return super().inputs(rng, batch, length + 1)


class OutOfRange(Echo):
    high = 5


class TargetOutOfRange(Echo):
    def targets(self, x):
        y = super().targets(x)
        return np.where(y >= 0, y + 1, -1)


class NotMinusOne(Echo):
    def targets(self, x):
        y = super().targets(x)
        return np.where(y >= 0, y, -100)


class NoAnswers(Echo):
    def targets(self, x):
        return np.full_like(x, -1)


class RandomInputs(Echo):
    def inputs(self, rng, batch, length):
        return np.random.default_rng().integers(0, 4, (batch, length))


class Constant(Echo):
    def inputs(self, rng, batch, length):
        return np.tile(np.arange(length) % 4, (batch, 1))


class RandomTargets(Echo):
    def targets(self, x):
        return np.random.default_rng().integers(0, 4, x.shape)


class TargetsOfTheFuture(Echo):
    """The next token, which is random."""

    def targets(self, x):
        y = np.full_like(x, -1)
        y[:, :-1] = x[:, 1:]
        return y


class RandomInSample(Echo):
    def sample(self, rng, batch, length, split='train'):
        x, y = super().sample(rng, batch, length, split)
        return x, np.where(y >= 0, rng.integers(0, 4, y.shape), -1)


class SameSymbols(Echo):
    symbols = list('0012')


class Space(Echo):
    symbols = ['0', '1', '2', ' ']


class Empty(Echo):
    symbols = ['0', '1', '2', '']


class Numbers(Echo):
    symbols = [0, 1, 2, 3]


class Ambiguous(Echo):
    symbols = ['0', '1', '01', '2']


class OtherForm(Echo):
    form = '[012]*'


class NoBos(Echo):
    bos = '^'


class ChanceTooLow(Echo):
    chance = 1 / 10


class ChanceInPercent(Echo):
    chance = 25


class TooShort(Echo):
    min_length = 2


class TakesAnyLength(Echo):
    def sample(self, rng, batch, length, split='train'):
        x = self.inputs(rng, batch, length)
        return x, self.targets(x)


class MaskTooLarge(Echo):
    def breakdown(self, x, y):
        return {'place': {'all': np.ones_like(y, dtype=bool)}}


class MaskOfNumbers(Echo):
    def breakdown(self, x, y):
        return {'place': {'all': (y >= 0).astype(np.int64)}}


class OuterFirst(Dyck):
    """The closers in the order of their openers."""
    name = 'mine'

    def completion(self, x):
        return super().completion(x)[::-1]


class OnlyTheNext(Dyck):
    name = 'mine'

    def completion(self, x):
        return super().completion(x)[:1]


ANSWERS = 'the string decides the answers'
AGAIN = 'written and read again'


@pytest.mark.parametrize('task, expected', [
    (Echo, []),
    (Float, ['dtype and shape of x and y']),
    (TooLong, ['dtype and shape of x and y']),
    (OutOfRange, ['ids are those of symbols']),
    (TargetOutOfRange, ['ids are those of symbols']),
    (NotMinusOne, ['places with an answer']),
    (NoAnswers, ['places with an answer']),
    (RandomInputs, ['the rng decides the string']),
    (Constant, ['the rng decides the string']),
    (RandomTargets, [ANSWERS]),
    (TargetsOfTheFuture, [ANSWERS]),
    (RandomInSample, [ANSWERS]),
    (SameSymbols, ['symbols']),
    (Space, ['symbols']),
    (Empty, ['symbols']),
    (Numbers, ['symbols']),
    (Ambiguous, [AGAIN]),
    (OtherForm, [AGAIN]),
    (NoBos, [AGAIN]),
    (ChanceTooLow, ['chance']),
    (ChanceInPercent, ['chance']),
    (TooShort, ['min_length']),
    (TakesAnyLength, ['min_length']),
    (MaskTooLarge, ['breakdown']),
    (MaskOfNumbers, ['breakdown']),
    (OuterFirst, ['completion']),
    (OnlyTheNext, ['completion']),
], ids=lambda value: getattr(value, '__name__', ''))
def test_a_mistake_in_a_task_fails_its_check(task, expected, monkeypatch, capsys):
    monkeypatch.setitem(TASKS, 'mine', task)
    assert check_task.main(['mine']) == expected
    lines = capsys.readouterr().out.splitlines()
    assert sum('WRONG: ' in line for line in lines) == len(expected)


def test_a_task_must_have_its_attributes(monkeypatch):
    @dataclasses.dataclass
    class NoChance(Task):
        name = 'mine'
        symbols = list('01')
        min_length = 1
    monkeypatch.setitem(TASKS, 'mine', NoChance)
    assert check_task.main(['mine']) == ['what a task must have']


# ---------------------------------------------------------------------------------------------
# Errors


def test_an_error_in_the_class_stays_an_error(monkeypatch, capsys):
    class Broken(Attention):
        def scores(self, q, k):
            return q @ k  # without .mT

    @dataclasses.dataclass
    class BrokenTask(Modulo):
        def targets(self, x):
            return self.nothing
    monkeypatch.setitem(ATTENTIONS, 'mine', Broken)
    with pytest.raises(RuntimeError):
        check_attention.main(['mine'])
    monkeypatch.setitem(TASKS, 'modulo', BrokenTask)
    with pytest.raises(AttributeError, match='nothing'):
        check_task.main(['modulo'])


@pytest.mark.parametrize('checker', [check_attention, check_task], ids=lambda m: m.__name__)
def test_an_unknown_name_is_an_error_of_the_user(checker):
    with pytest.raises(UserError, match='alibi'):
        checker.main(['alibi'])


def test_the_exit_status():
    code = '''
import runpy, sys
from model import ATTENTIONS, Attention
class Mine(Attention):
    def scores(self, q, k):
        return super().scores(q, k) / 0
ATTENTIONS['mine'] = Mine
runpy.run_module('lessons.check_attention', run_name='__main__')
'''
    for name, status in [('nope', 0), ('mine', 1)]:
        done = subprocess.run([sys.executable, '-c', code, name], cwd=ROOT,
                              env={**os.environ, 'OMP_NUM_THREADS': '1'}, capture_output=True)
        assert done.returncode == status, done.stderr.decode()
