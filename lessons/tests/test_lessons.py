"""
Every command of every lesson runs, and gives what the lesson says. So does every solution.

The commands run in a copy of the tree, lesson after lesson, on one thread: here with few updates,
and in the slow tests as they stand. Tolerances leave room for another processor and its rounding.
"""

import json
import math
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot  # noqa: F401  # once here, and not in each child
import pytest

from lessons import check, periods, rope_by_hand, solutions, tapa_by_hand
from model import UserError
from tests.conftest import run, script, shell_blocks  # noqa: F401

LESSONS = Path(__file__).resolve().parent.parent
ROOT = LESSONS.parent
PAGES = sorted(LESSONS.glob('[1-8]_*.md'))
NEEDS = {6: 4, 7: 1}  # lessons that go on with a run of another one
FEW = {  # what makes a command short
    'train.py': ['--max_iters=4', '--eval_interval=2', '--eval_sequences=16', '--batch_size=8'],
    'eval.py': ['--n=8'], 'lab.measure': ['--n=8'],
    'lab.crystallise': ['--n=8', '--period=10']}
COUNTS_ALONE = 1.215  # nats; see solutions.lesson_1


def commands(page):
    return [line for block in shell_blocks(page) for line in block.splitlines() if line]


class Copy:
    """A copy of the tree, and what the lessons' commands printed: {lesson: {command: output}}."""

    def __init__(self, folder, few=False):
        self.folder, self.few, self.said = folder, few, {}
        left_out = shutil.ignore_patterns('.git', '.venv', 'out', '__pycache__', '.pytest_cache')
        shutil.copytree(ROOT, folder, ignore=left_out, dirs_exist_ok=True)

    def run(self, command):
        program, *words = shlex.split(command)
        if self.few:
            words += [option for name in words for option in FEW.get(name, [])]
        if program == 'pytest':  # a forked child cannot stop its parent's clock of faulthandler
            program, words = 'python', ['-m', 'pytest', '-p', 'no:faulthandler', *words]
        if program == 'python':
            # a test run around this one may have asked for all rooms
            done = script(*words, cwd=self.folder, PYTEST_ADDOPTS='')
        else:
            # git apply must know no repository around the copy
            environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '',
                           'GIT_CEILING_DIRECTORIES': str(self.folder.parent)}
            done = subprocess.run([program, *words], cwd=self.folder, env=environment, text=True,
                                  capture_output=True)
        assert done.returncode == 0, f'{command}\n{done.stdout}{done.stderr}'
        return done.stderr + done.stdout

    def lesson(self, number):
        """{command: what it prints} of a lesson; it runs once, after the lesson that it needs."""
        if number in NEEDS:
            self.lesson(NEEDS[number])
        if number not in self.said:
            self.said[number] = {line: self.run(line) for line in commands(PAGES[number - 1])}
        return self.said[number]

    def loss(self, name):
        """The best validation loss of a run (nats)."""
        log = (self.folder / 'out' / name / 'log.jsonl').read_text()
        lines = map(json.loads, log.splitlines())
        return min(line['val_loss'] for line in lines if 'val_loss' in line)

    def look(self, name):
        """The accuracy of each group that lessons.look prints of a run, {label: share}."""
        line = self.run(f'python -m lessons.look out/{name}')
        shares = re.findall(r'([\w>=-]+): (\d+) %', line.partition('; by ')[2])
        return {label: int(share) / 100 for label, share in shares}

    def headlines(self, number, words):
        """The headline at 1, 2, 4 and 8 training lengths that a lesson's eval.py printed, of 1."""
        said = self.said[number][f'python eval.py out/{words}']
        shares = re.findall(r'^ +\dx .* % +([\d.]+) ± ', said, flags=re.MULTILINE)
        return [float(share) / 100 for share in shares]


@pytest.fixture(scope='module')
def short(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp('short'), few=True)


@pytest.fixture(scope='module')
def copy(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp('copy'))


@pytest.mark.parametrize('number', range(1, 9))
def test_the_commands_of_a_lesson_run(number, short):
    before = (short.folder / 'model.py').read_text()
    assert short.lesson(number)
    assert (short.folder / 'model.py').read_text() == before  # the patches are off again


def test_the_commands_of_the_plans_run(short):
    for line in commands(LESSONS / 'teaching.md'):
        for command in line.split(' && '):
            short.run(command)


@pytest.mark.parametrize('words', [['--task=dyck'], ['--task=bio_rotation', '--n_layer=2']])
def test_the_heads_of_another_task_or_of_two_layers_are_refused(run, words):  # noqa: F811
    folder = run().train(*words, '--max_iters=1').folder
    with pytest.raises(UserError, match='must be a run of bio_rotation with one layer, not of'):
        periods.main(['--heads', str(folder)])


def test_the_numbers_that_lesson_2_computes(short):
    """Rotated scores depend on the distance; the table of the bets, and no loss before them."""
    said = short.lesson(2)['python -m lessons.rope_by_hand 7 12']
    scores = re.findall(r'rotated q.k = +(\S+)', said)
    assert len(set(scores[:3])) == 1 and scores[3] != scores[0]
    assert 'loss' not in short.said[2]['python -m lessons.periods']  # before the bets
    rows = re.findall(r'^\| \d+ \| .*$', short.said[2]['python -m lessons.periods --reveal'],
                      flags=re.MULTILINE)
    assert rows == re.findall(r'^\| \d+ \| .*$', PAGES[1].read_text(), flags=re.MULTILINE)


def test_the_numbers_that_lesson_5_computes():
    """A head that looks one token back, and the expected score."""
    assert tapa_by_hand.one_token_back(1, 0.1) == pytest.approx(1)
    back = [tapa_by_hand.one_token_back(2, alpha) for alpha in (0.1, 0.5)]
    assert back == pytest.approx([0.975, 0.266], abs=0.001)
    for alpha in tapa_by_hand.ALPHAS:
        theory = [tapa_by_hand.expected(t, alpha) for t in (1, 2, 8, 64)]
        means = tapa_by_hand.measured(alpha)[[1, 2, 8, 64]].tolist()
        assert means == pytest.approx(theory, abs=0.02)


# ---- slow: the trainings -----------------------------------------------------------------------

def lesson_1(copy):
    nope, rope = (copy.look(f'lesson_1_{name}') for name in ('nope', 'rope'))
    assert copy.loss('lesson_1_nope') == pytest.approx(COUNTS_ALONE, abs=0.05)
    assert all(0.35 < share < 0.5 for share in nope.values())
    assert 0.05 < copy.loss('lesson_1_rope') < 0.8
    assert max(rope.values()) > 0.95 and min(rope.values()) < 0.8
    assert copy.loss('lesson_1_brackets') < 0.02


def lesson_2(copy):
    assert 0.1 < copy.loss('lesson_2_period7') < 0.8
    assert min(copy.look('lesson_2_period7').values()) < 0.95
    assert copy.loss('lesson_2_period11') < 0.05
    said = copy.said[2]['python -m lessons.periods --heads out/lesson_2_period7']
    shares = [int(share) for share in re.findall(r'in (\d+) %', said)]
    assert max(shares[:2]) < shares[2] < shares[3]  # each head, any of them, the model
    assert copy.loss('lesson_2_base') < 0.05


def lesson_3(copy):
    assert copy.loss('lesson_3_spectral') < 0.05
    said = copy.said[3]['python -m lab.measure out/lesson_3_spectral']
    row = r'^ +0 +([01]) +1 +([\d.]+) +1 '  # layer 0, pair 1, harmonic 1
    omegas = re.findall(row, said, flags=re.MULTILINE)
    assert omegas and all(abs(float(omega) - 0.628) < 0.03 for _, omega in omegas)
    assert (copy.folder / 'out/lesson_3_spectral/animation.html').exists()
    assert copy.loss('lesson_3_four_heads') < 0.05
    assert copy.loss('lesson_3_two_layers') < 0.05
    assert copy.headlines(3, 'lesson_3_two_layers')[3] < 0.7
    assert copy.loss('lesson_3_short') < 0.05 < 0.3 < copy.loss('lesson_3_far')


def lesson_4(copy):
    row = r'^ *(1x|no \w+ eyes) +64 +([\d.]+)'
    losses = dict(re.findall(row, ''.join(copy.said[4].values()), flags=re.MULTILINE))
    assert float(losses['1x']) < 0.05 and float(losses['no geometric eyes']) < 0.05
    assert float(losses['no spectral eyes']) > 1.3


def lesson_5(copy):
    assert copy.loss('lesson_5_tapa') == pytest.approx(COUNTS_ALONE, abs=0.05)


def lesson_6(copy):
    crystal = copy.headlines(6, 'lesson_4_bifocal --checkpoint crystal.pt')
    assert len(crystal) == 4 and min(crystal) > 0.99
    assert copy.said[6]['python -m lab.crystallise out/lesson_4_bifocal'].endswith('period 10\n')
    predicted, measured, last = solutions.lesson_6(copy.folder / 'out/lesson_4_bifocal')
    assert predicted > last / 3 if measured is None else 1 / 3 < measured / predicted < 3


def lesson_7(copy):
    nope, alibi, forgetting, accumulated, rope = (copy.headlines(7, f'{name} --n=128') for name in (
        'lesson_1_brackets', 'lesson_7_alibi', 'lesson_7_forgetting', 'lesson_7_accumulated',
        'lesson_7_rope'))
    assert min(nope[0], alibi[0], forgetting[0], accumulated[0]) > 0.97
    assert alibi[3] > 0.85 and alibi[3] > nope[3] and forgetting[3] > 0.85
    assert accumulated[3] > rope[3]
    assert copy.loss('lesson_7_pope') == pytest.approx(0.78, abs=0.3)
    pope = copy.look('lesson_7_pope')
    assert pope['6'] < min(0.7, pope['1'])


@pytest.mark.slow
@pytest.mark.parametrize('holds', [lesson_1, lesson_2, lesson_3, lesson_4, lesson_5, lesson_6,
                                   lesson_7], ids=lambda holds: holds.__name__)
def test_a_lesson_holds_what_it_says(holds, copy):
    copy.lesson(int(holds.__name__[-1]))
    holds(copy)


# ---- the solutions -----------------------------------------------------------------------------

def test_the_solutions():
    """1 is what NoPE reaches, 2 fits period 7, 3 is a product, 4 a zero column, 5 counts to ten,
    and a whole model of it reads the strand."""
    assert solutions.lesson_1() == pytest.approx((COUNTS_ALONE, 0.42), abs=0.001)
    base, before, after = solutions.lesson_2()
    assert base ** (-2 / 32) == pytest.approx(2 * math.pi / 7) and before < 0.1 and after > 1
    assert solutions.lesson_3() == pytest.approx((0.606, 0.606), abs=0.001)
    by_hand, opened = solutions.lesson_4()
    assert by_hand < 1e-5 < 0.01 < opened
    scores = solutions.lesson_5()
    assert [*scores[0:31:10], scores[5]] == pytest.approx([1, 1, 1, 1, -1], abs=1e-3)
    assert solutions.lesson_5b() == [1, 1, 1]
    assert solutions.lesson_8() == (50, pytest.approx(1))
    depths, scores = solutions.lesson_7()
    same = [score for depth, score in zip(depths, scores) if depth == depths[-1]]
    others = [score for depth, score in zip(depths, scores) if depth != depths[-1]]
    assert min(same) > max(others) + 0.1


def test_the_contrast_is_high_where_runs_are_good():
    """What lesson 2 says of its table, and of a slow pair."""
    found = periods.losses()
    assert set(sorted(found, key=found.get)[:3]) == {11, 12, 13}
    slow = rope_by_hand.frequencies()[10], 7, rope_by_hand.turns(7)
    assert abs(check.on_the_turns(*slow)) > 0.99 and check.contrast(*slow) < 0.02
