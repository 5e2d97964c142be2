"""lessons.check tells right parts of an answer from wrong ones, and knows the wrong ones."""

import cmath
import importlib
import math
from types import SimpleNamespace

import pytest

from lessons import check, rope_by_hand

PARTS = {(lesson, part[0]): part for lesson, parts in check.LESSONS.items() for part in parts}


def answers_of(lesson, **others):
    """A module with the right answers, but for some others."""
    return SimpleNamespace(**{part[0]: part[1] for part in check.LESSONS[lesson]} | others)


@pytest.mark.parametrize('lesson', check.LESSONS)
def test_a_stub_is_not_answered_yet(lesson, capsys):
    exercise = importlib.import_module(f'lessons.exercises.lesson_{lesson}')
    names = [part[0] for part in check.LESSONS[lesson]]
    assert set(names) <= vars(exercise).keys()  # which a reader may have solved
    stub = SimpleNamespace(**{name: lambda *_: ... for name in names})
    assert check.check(lesson, stub) == len(names)
    assert capsys.readouterr().out.count('not answered yet') == len(names)


@pytest.mark.parametrize('lesson, part', PARTS)
def test_one_wrong_part_leaves_the_others_right(lesson, part, capsys):
    assert check.check(lesson, answers_of(lesson)) == 0
    assert check.check(lesson, answers_of(lesson, **{part: lambda *arguments: 17.25})) == 1
    assert capsys.readouterr().out.count('your function gives 17.25') == 1


@pytest.mark.parametrize('lesson, part', PARTS)
def test_every_known_mistake_is_wrong_and_named(lesson, part):
    _, right, cases, mistakes = PARTS[lesson, part]
    for remark, wrong in mistakes.items():
        assert check.judge(wrong, right, cases, mistakes) == f'WRONG: {remark}'


@pytest.mark.parametrize('remark, wrong', check.ANYWHERE.items())
def test_a_number_made_of_the_right_one_is_named(remark, wrong):
    cases = [(0.3 - 0.7j,), (1.9 + 0.2j,)]
    assert check.judge(wrong, lambda z: z, cases, {}) == f'WRONG: {remark}'


def test_an_unknown_mistake_shows_the_first_wrong_number():
    remark = check.judge(lambda a, b: a * b, lambda a, b: a + b, [(2, 2), (2, 3)], {})
    assert remark == 'WRONG: for a=2, b=3 your function gives 6'
    assert '.real' in check.judge(lambda a: a + 1j, lambda a: a, [(2,), (3,)], {})
    assert '.real' not in check.judge(lambda a: 1j, lambda a: a, [(2,), (3,)], {})


def test_the_right_answers_are_those_of_the_course():
    """By another way: numbers of the lessons, and a derivative by a difference."""
    right = {place: part[1] for place, part in PARTS.items()}
    assert right[5, 'second_to_first'](0.1) == pytest.approx(0.975, abs=1e-3)
    assert right[5, 'score'](1, right[5, 'smallest_phi'](10), 5, 1, 2 * math.pi) == \
        pytest.approx(-1)
    assert right[1, 'depth'](2 / 8, 1 / 8) == 2  # two open brackets, at m = 7
    assert right[4, 'gradient']([0.0, 0.0], 0, 0) == pytest.approx(-0.5)
    assert right[7, 'slope'](2, 2) == 1 / 256 and right[7, 'forgetting'](0, 2, 0, [.1, .5, .5]) == \
        pytest.approx(math.log(0.25))
    assert right[8, 'slowest'](10000, 32) == pytest.approx(rope_by_hand.frequencies()[-1])
    assert right[8, 'gain_of_scores'](16) == pytest.approx(1.63, abs=0.01)
    assert right[6, 'weight'](math.log(63), 64) == pytest.approx(0.5)
    fits = right[2, 'theta_that_fits'](9)
    assert abs(right[2, 'on_the_turns'](fits, 9, 6)) == pytest.approx(1)
    pair = check.PAIRS[0]
    low, high = ([*pair[:4], pair[4] + step, *pair[5:]] for step in (-1e-5, 1e-5))
    slope = (right[3, 'score'](*high) - right[3, 'score'](*low)) / 2e-5
    assert right[3, 'derivative'](*pair) == pytest.approx(slope, rel=1e-6)
    theta, period, n_turns = check.STRANDS[0]
    on = [turn * period for turn in range(1, n_turns + 1)]
    off = set(range(1, n_turns * period + 1)) - set(on)
    best = max(  # over the phases b
        sum(math.cos(t * theta + b / 1000) for t in on) / len(on)
        - sum(math.cos(t * theta + b / 1000) for t in off) / len(off) for b in range(6284))
    assert right[2, 'contrast'](theta, period, n_turns) == pytest.approx(best, abs=1e-5)
    assert cmath.isclose(right[3, 'nearest_harmonic'](0.62, 10), 2 * math.pi / 10)
