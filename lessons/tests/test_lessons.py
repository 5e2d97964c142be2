"""
Every command of every lesson runs, and gives what the lesson says. So does every solution.

The commands run in a copy of the tree, lesson after lesson, on one thread: here with few updates,
and in the slow tests as they stand. Tolerances leave room for another processor and its rounding.
"""

import csv
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lessons import periods, rope_by_hand, solutions
from tests.conftest import script

LESSONS = Path(__file__).resolve().parent.parent
ROOT = LESSONS.parent
PAGES = sorted(LESSONS.glob('[1-8]_*.md'))
TEXTS = [LESSONS / name for name in ('README.md', 'teaching.md')]
NEEDS = {6: 4, 7: 1}  # lessons that go on with a run of another one
FEW = {  # what makes a command short
    'train.py': ['--max_iters=4', '--eval_interval=2', '--eval_sequences=16', '--batch_size=8'],
    'eval.py': ['--n=8'], 'lab.measure': ['--n=8']}
COUNTS_ALONE = 1.215  # nats; see solutions.lesson_1


def commands(page):
    blocks = re.findall(r'^```sh\n(.*?)^```$', page.read_text(encoding='utf-8'),
                        flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


class Copy:
    """A copy of the tree, and what the lessons' commands printed: {lesson: {command: output}}."""

    def __init__(self, folder, few=False):
        self.folder, self.few, self.said = folder, few, {}
        for path in (*ROOT.glob('*.py'), *ROOT.glob('*.ini'), *ROOT.glob('*.md')):
            shutil.copy(path, folder)
        for name in ('config', 'lab', 'lessons', 'tests'):
            shutil.copytree(ROOT / name, folder / name,
                            ignore=shutil.ignore_patterns('__pycache__'))

    def run(self, command):
        program, *words = shlex.split(command)
        if self.few:
            more = [option for name in words for option in FEW.get(name, [])]
            words += [option for option in more if option.partition('=')[0] not in command]
        if program == 'python':
            done = script(*words, cwd=self.folder)
        else:
            start = {'pytest': [sys.executable, '-m', 'pytest']}.get(program, [program])
            # git apply must know no repository around the copy
            environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '',
                           'GIT_CEILING_DIRECTORIES': str(self.folder.parent)}
            done = subprocess.run([*start, *words], cwd=self.folder, env=environment, text=True,
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

    def headlines(self, name, checkpoint='best.pt'):
        """The headline at 1, 2, 4 and 8 training lengths that eval.py has written, of 1."""
        file = 'eval.json' if checkpoint == 'best.pt' else f'eval_{Path(checkpoint).stem}.json'
        result = json.loads((self.folder / 'out' / name / file).read_text())
        return [row['headline'] for _, row in sorted(result['lengths'].items(), key=lambda
                                                     item: int(item[0]))]


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


def test_the_numbers_that_lesson_2_computes(short):
    said = ''.join(short.lesson(2).values())
    scores = re.findall(r'rotated q.k = +(\S+)', said)
    assert len(set(scores[:3])) == 1 and scores[3] != scores[0]
    row = r'^ +[01] +[\d.]+ +[\d.]+ +[\d.]+ +([\d.]+)$'  # of pairs 0 and 1
    contrasts = re.findall(row, said, flags=re.MULTILINE)
    assert list(map(float, contrasts)) == pytest.approx([0.10, 0.01, 0.80, 0.81], abs=0.02)
    assert 'loss' not in short.said[2]['python -m lessons.periods']  # before the bets
    rows = re.findall(r'^\| \d+ \| .*$', short.said[2]['python -m lessons.periods --reveal'],
                      flags=re.MULTILINE)
    assert rows == re.findall(r'^\| \d+ \| .*$', PAGES[1].read_text(), flags=re.MULTILINE)


def test_the_numbers_that_lesson_5_computes(short):
    said = short.lesson(5)['python -m lessons.tapa_by_hand']
    steps = {t: (float(step), float(phi)) for t, step, phi in
             re.findall(r'^ +(\d+) +[\d.]+ +([\d.]+) +([\d.]+)$', said, flags=re.MULTILINE)}
    assert steps['0'] == (1.0, 0.5) and steps['10'] == pytest.approx((0.012, 41), rel=0.05)
    back = {t: scores.split() for t, scores in
            re.findall(r'^ +(\d)((?: +-?\d\.\d{3}){3})$', said, flags=re.MULTILINE)}
    assert back['1'] == ['1.000'] * 3  # a head that looks one token back
    assert [float(score) for score in back['2'][:2]] == pytest.approx([0.975, 0.266], abs=0.001)
    rows = re.findall(r'^ +\d+((?: +\d\.\d\d +-?\d\.\d\d){3})$', said, flags=re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        values = [float(value) for value in row.split()]
        assert values[::2] == pytest.approx(values[1::2], abs=0.02)


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


def lesson_4(copy):
    row = r'^ *(1x|no \w+ eyes) +64 +([\d.]+)'
    losses = dict(re.findall(row, ''.join(copy.said[4].values()), flags=re.MULTILINE))
    assert float(losses['1x']) < 0.05 and float(losses['no geometric eyes']) < 0.05
    assert float(losses['no spectral eyes']) > 1.3


def lesson_5(copy):
    assert copy.loss('lesson_5_tapa') == pytest.approx(COUNTS_ALONE, abs=0.05)


def lesson_6(copy):
    crystal = copy.headlines('lesson_4_bifocal', 'crystal.pt')
    assert len(crystal) == 4 and min(crystal) > 0.99
    assert copy.said[6]['python -m lab.crystallise out/lesson_4_bifocal'].endswith('period 10\n')
    predicted, measured, last = solutions.lesson_6(copy.folder / 'out/lesson_4_bifocal')
    assert predicted > last / 3 if measured is None else 1 / 3 < measured / predicted < 3


def lesson_7(copy):
    nope, alibi, forgetting, accumulated, rope = map(copy.headlines, (
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

def test_exercise_1_the_counts_are_what_nope_reaches():
    assert solutions.lesson_1() == pytest.approx((COUNTS_ALONE, 0.42), abs=0.001)


def test_exercise_2_a_base_that_fits_period_7():
    base, before, after = solutions.lesson_2()
    assert base ** (-2 / 32) == pytest.approx(2 * math.pi / 7)
    assert before < 0.1 and after > 1


def test_the_contrast_is_high_where_runs_are_good():
    """What lesson 2 says of its table, and that one head alone can do two of the periods."""
    found = periods.losses()
    assert set(sorted(found, key=found.get)[:3]) == {11, 12, 13}
    assert {p for p in found if periods.best_contrast(p) > 0.8} == {6, 11, 12, 13}
    assert {p for p in found if periods.one_head(p) == 1} == {11, 12}
    slow = rope_by_hand.frequencies()[10]
    assert abs(rope_by_hand.on_the_turns(slow, 7)) > 0.99 and rope_by_hand.contrast(slow, 7) < 0.02


def test_exercise_3_decay_is_a_product():
    by_formula, by_adamw = solutions.lesson_3()
    assert by_formula == pytest.approx(0.606, abs=0.001)
    assert by_adamw == pytest.approx(by_formula, abs=1e-4)


def test_exercise_4_a_closed_eye_is_a_zero_column():
    by_hand, opened = solutions.lesson_4()
    assert by_hand < 1e-5 < 0.01 < opened


def test_exercise_5_alpha_1_can_count_to_ten():
    scores = solutions.lesson_5()
    assert scores[0:31:10] == pytest.approx([1, 1, 1, 1], abs=1e-3)
    assert scores[5] == pytest.approx(-1, abs=1e-3)


def test_exercise_7_the_phase_counts_the_depth():
    depths, scores = solutions.lesson_7()
    same = [score for depth, score in zip(depths, scores) if depth == depths[-1]]
    others = [score for depth, score in zip(depths, scores) if depth != depths[-1]]
    assert min(same) > max(others) + 0.1


# ---- the pages ---------------------------------------------------------------------------------

def test_the_table_of_pope_is_that_of_its_runs():
    with open(LESSONS / 'strand.csv', encoding='utf-8') as file:
        losses = {(row['attention'], row['rope_base'], row['seed']): f'{float(row["loss"]):.3f}'
                  for row in csv.DictReader(file)}
    text = PAGES[6].read_text(encoding='utf-8')
    table = re.findall(r'^\| `--attention=(\w+)` \| (0[.]\d+) \|$', text, flags=re.MULTILINE)
    assert len(table) == 3
    assert all(losses[name, '10000', '0'] == loss for name, loss in table)
    fits = losses['pope', '1695', '0']
    assert f'`--rope_base=1695`, its loss is {fits}.' in text


@pytest.mark.parametrize('page', [*PAGES, *TEXTS], ids=lambda page: page.stem)
def test_the_files_that_a_page_names_exist(page):
    text = page.read_text(encoding='utf-8')
    linked = [name for name in re.findall(r'\]\(([^)]+)\)', text) if '://' not in name]
    missing = [name for name in linked if not (LESSONS / name.partition('#')[0]).exists()]
    assert linked and not missing
    named = re.findall(r'config/\w+\.py|lessons/\w+\.\w+', text) + [
        name.replace('.', '/') + '.py' for name in re.findall(r'python -m (l[\w.]+)', text)]
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_picture_is_small_and_shown():
    shown = ''.join(page.read_text(encoding='utf-8') for page in PAGES)
    pictures = sorted((LESSONS / 'figures').glob('[1-9]*.png'))
    assert pictures and all(f'](figures/{picture.name})' in shown for picture in pictures)
    assert all(picture.stat().st_size < 60_000 for picture in pictures)
