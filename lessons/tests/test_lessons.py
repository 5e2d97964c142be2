"""
Every command of every lesson runs, and gives what the lesson says. So does every solution.

The commands run in a copy of the tree, lesson after lesson, on one thread; some trainings with
smaller batches. The tolerances leave room for that, and for another processor and its rounding.
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
PAGES = sorted(LESSONS.glob('[1-7]_*.md'))
TEXTS = [LESSONS / name for name in ('8_mistakes.md', 'README.md', 'teaching.md')]
NEEDS = {6: 4, 7: 1}  # lessons that go on with a run of another one
pages = pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
SMALLER = (1, 2, 3, 4, 5)  # lessons whose runs do as well with smaller batches
FASTER = ['--batch_size=32', '--eval_sequences=128']
COUNTS_ALONE = 1.215  # nats; see solutions.lesson_1


def commands(page):
    blocks = re.findall(r'^```sh\n(.*?)^```$', page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


class Copy:
    """A copy of the tree, and what the lessons' commands printed: {lesson: [output, ...]}."""

    def __init__(self, folder):
        self.folder, self.said = folder, {}
        for path in ROOT.glob('*.py'):
            shutil.copy(path, folder)
        for name in ('config', 'lab', 'lessons', 'tests'):
            shutil.copytree(ROOT / name, folder / name,
                            ignore=shutil.ignore_patterns('__pycache__'))
        shutil.copy(ROOT / 'pytest.ini', folder)

    def run(self, command, more=()):
        program, *words = shlex.split(command)
        if words[0] == 'train.py':
            words += more
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
        """What the commands of a lesson print; they run once, after the lesson that they need."""
        if number in NEEDS:
            self.lesson(NEEDS[number])
        if number not in self.said:
            page = PAGES[number - 1]
            more = FASTER if number in SMALLER else ()
            self.said[number] = [self.run(command, more) for command in commands(page)]
        return self.said[number]

    def loss(self, name):
        """The best validation loss of a run (nats)."""
        log = (self.folder / 'out' / name / 'log.jsonl').read_text()
        lines = map(json.loads, log.splitlines())
        return min(line['val_loss'] for line in lines if 'val_loss' in line)

    def look(self, name, said):
        """The accuracy of each group that lessons.look printed of a run, {label: share}."""
        pattern = rf'^out/{name}: loss .* by .*?: (.*)$'
        line = re.search(pattern, ''.join(said), flags=re.MULTILINE).group(1)
        shares = re.findall(r'([\w>=-]+): (\d+) %', line)
        return {label: int(share) / 100 for label, share in shares}


@pytest.fixture(scope='module')
def copy(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp('copy'))


def headlines(text):
    """The column `headline` that eval.py prints, a share for each length."""
    shares = re.findall(r'^ +\d+x .* ([\d.]+) ±', text, flags=re.MULTILINE)
    return [float(share) / 100 for share in shares]


def lesson_1(copy, said):
    nope, rope = (copy.look(f'lesson_1_{name}', said) for name in ('nope', 'rope'))
    assert copy.loss('lesson_1_nope') == pytest.approx(COUNTS_ALONE, abs=0.05)
    assert all(0.35 < share < 0.5 for share in nope.values())
    assert 0.05 < copy.loss('lesson_1_rope') < 0.8
    assert max(rope.values()) > 0.95 and min(rope.values()) < 0.8
    assert copy.loss('lesson_1_brackets') < 0.02


def lesson_2(copy, said):
    scores = re.findall(r'rotated q.k = +(\S+)', said[0])
    assert len(set(scores[:3])) == 1 and scores[3] != scores[0]
    row = r'^ +[01] +[\d.]+ +[\d.]+ +[\d.]+ +([\d.]+)$'  # of pairs 0 and 1
    contrasts = re.findall(row, said[0], flags=re.MULTILINE)
    assert list(map(float, contrasts)) == pytest.approx([0.10, 0.01, 0.80, 0.81], abs=0.02)
    assert 'loss' not in said[1]  # nothing is revealed before the bets
    assert 0.1 < copy.loss('lesson_2_period7') < 0.8
    assert min(copy.look('lesson_2_period7', said).values()) < 0.95
    assert copy.loss('lesson_2_period11') < 0.05
    rows = re.findall(r'^\| \d+ \| .*$', said[5], flags=re.MULTILINE)
    assert rows == re.findall(r'^\| \d+ \| .*$', PAGES[1].read_text(), flags=re.MULTILINE)
    shares = [int(share) for share in re.findall(r'in (\d+) %', said[6])]
    assert max(shares[:2]) < shares[2] < shares[3]  # each head, any of them, the model
    assert copy.loss('lesson_2_base') < 0.05


def lesson_3(copy, said):
    assert copy.loss('lesson_3_spectral') < 0.05
    assert headlines(said[1])[0] > 0.99
    row = r'^ +0 +([01]) +1 +([\d.]+) +1 '  # layer 0, pair 1, harmonic 1
    omegas = re.findall(row, said[1], flags=re.MULTILINE)
    assert {head for head, _ in omegas} == {'0', '1'}
    assert all(float(omega) == pytest.approx(0.628, abs=0.03) for _, omega in omegas)
    assert (copy.folder / 'out/lesson_3_spectral/animation.html').exists()


def lesson_4(copy, said):
    row = r'^ *(1x|no \w+ eyes) +64 +([\d.]+)'
    losses = dict(re.findall(row, said[1], flags=re.MULTILINE))
    assert float(losses['1x']) < 0.05 and float(losses['no geometric eyes']) < 0.05
    assert float(losses['no spectral eyes']) > 1.3


def lesson_5(copy, said):
    steps = {t: (float(step), float(phi)) for t, step, phi in
             re.findall(r'^ +(\d+) +[\d.]+ +([\d.]+) +([\d.]+)$', said[0], flags=re.MULTILINE)}
    assert steps['0'] == (1.0, 0.5) and steps['10'] == pytest.approx((0.012, 41), rel=0.05)
    back = {t: scores.split() for t, scores in
            re.findall(r'^ +(\d)((?: +-?\d\.\d{3}){3})$', said[0], flags=re.MULTILINE)}
    assert back['1'] == ['1.000'] * 3  # a head that looks one token back
    assert [float(score) for score in back['2'][:2]] == pytest.approx([0.975, 0.266], abs=0.001)
    rows = re.findall(r'^ +\d+((?: +\d\.\d\d +-?\d\.\d\d){3})$', said[0], flags=re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        values = [float(value) for value in row.split()]
        assert values[::2] == pytest.approx(values[1::2], abs=0.02)
    assert copy.loss('lesson_5_tapa') == pytest.approx(COUNTS_ALONE, abs=0.05)


def lesson_6(copy, said):
    before, after = headlines(said[0]), headlines(said[2])
    assert before[0] > 0.99 and len(before) == 4
    assert said[1].splitlines()[-1] == 'period 10'
    assert min(after) > 0.99 and after[3] >= before[3]
    predicted, measured, last = solutions.lesson_6(copy.folder / 'out/lesson_4_bifocal')
    assert predicted > last / 3 if measured is None else 1 / 3 < measured / predicted < 3


def lesson_7(copy, said):
    assert 'NO' not in said[1] and 'checks pass' in said[1]
    nope, alibi, accumulated, rope = (headlines(said[i]) for i in (4, 5, 17, 18))
    assert min(nope[0], alibi[0], accumulated[0]) > 0.97
    assert alibi[3] > 0.85 and alibi[3] > nope[3]
    assert accumulated[3] > rope[3]
    assert copy.loss('lesson_7_pope') == pytest.approx(0.78, abs=0.3)
    pope = copy.look('lesson_7_pope', said)
    assert pope['6'] < min(0.7, pope['1'])
    page = (copy.folder / 'model.py').read_text()
    assert 'alibi' not in page and 'pope' not in page  # the patches are off again


@pytest.mark.parametrize('holds', [lesson_1, lesson_2, lesson_3, lesson_4, lesson_5, lesson_6,
                                   lesson_7], ids=lambda holds: holds.__name__)
def test_the_commands_of_a_lesson_run_and_it_holds_what_it_says(holds, copy):
    said = copy.lesson(int(holds.__name__[-1]))
    holds(copy, said)


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


def test_the_table_of_pope_is_that_of_its_runs():
    with open(LESSONS / 'strand.csv', encoding='utf-8') as file:
        losses = {(row['attention'], row['rope_base'], row['seed']): f'{float(row["loss"]):.3f}'
                  for row in csv.DictReader(file)}
    (text,) = [page.read_text() for page in PAGES if page.stem.startswith('7_')]
    table = re.findall(r'^\| `--attention=(\w+)` \| (0[.]\d+) \|$', text, flags=re.MULTILINE)
    assert len(table) == 3
    assert all(losses[name, '10000', '0'] == loss for name, loss in table)
    fits = losses['pope', '1695', '0']
    assert f'`--rope_base=1695`, its loss is {fits}.' in text


@pages
def test_a_lesson_is_a_page(page):
    text = page.read_text()
    headings = re.findall(r'^## (.*)$', text, flags=re.MULTILINE)
    assert {'Run', 'See', 'Why', 'Exercise'} <= set(headings)
    assert '**Question.**' in text and 'Solution: ' in text
    assert commands(page) and '![' in text


@pytest.mark.parametrize('page', [*PAGES, *TEXTS], ids=lambda page: page.stem)
def test_the_files_that_a_page_names_exist(page):
    text = page.read_text()
    linked = [name for name in re.findall(r'\]\(([^)]+)\)', text) if '://' not in name]
    missing = [name for name in linked if not (LESSONS / name.partition('#')[0]).exists()]
    assert linked and not missing
    named = re.findall(r'config/\w+\.py|lessons/\w+\.\w+', text) + [
        name.replace('.', '/') + '.py' for name in re.findall(r'python -m ([\w.]+)', text)]
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_picture_is_small_and_shown():
    shown = ''.join(page.read_text() for page in PAGES)
    pictures = sorted((LESSONS / 'figures').glob('[1-9]*.png'))
    assert pictures and all(f'](figures/{picture.name})' in shown for picture in pictures)
    assert all(picture.stat().st_size < 60_000 for picture in pictures)


def test_the_glossary_defines_the_words_of_the_lessons():
    rows = re.findall(r'^\| ([\w -]+) \| ', (LESSONS / 'README.md').read_text(), flags=re.MULTILINE)
    words = [word for word in rows if word not in ('lesson', 'word')]
    assert words == sorted(words)
    assert {'pair', 'frequency', 'turn', 'harmonic', 'lock-in', 'headline', 'nats'} <= set(words)
    texts = ' '.join(page.read_text() for page in PAGES)
    # a lesson's new words
    bold = {word.lower() for word in re.findall(r'\*\*([\w -]+)\*\*', texts)}
    other_forms = {'pairs': 'pair', 'eyes': 'eye', 'locks in': 'lock-in',
                   'accumulated phases': 'accumulated phase'}
    assert {other_forms.get(word, word) for word in bold} <= set(words)
    unused = [word for word in words if word not in texts.lower()]
    assert set(unused) <= set(other_forms.values())
