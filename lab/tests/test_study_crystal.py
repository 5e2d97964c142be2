"""The study of crystals: a run and its crystals from the command to the rows and the tables, and the tables by hand."""

import functools
import json
import statistics
from types import SimpleNamespace

import pytest

import train
from configurator import configure
from lab import crystallise, measure, report, report_crystal, results, trial
from lab.compare import same_seeds
from lab.report_crystal import PERIODS, exact_and_held, good
from lab.tests.conftest import SMALL, after
from lab.tests.test_results import ROOT, empty_results  # noqa: F401

NAME = 'bio_rotation-spectral-10'
OF_CRYSTAL = {'checkpoint=crystal.pt', 'checkpoint=settled/best.pt'}
HARD = ('bio_rotation', 5), ('bio_rotation', 16), ('modulo', 5)  # periods that are seldom learned
OF_CONTROLS = {'checkpoint=wrong/crystal.pt', 'checkpoint=wrong/settled/best.pt', 'checkpoint=longer/best.pt'}


def in_this_process(words, **_):
    """What subprocess.run does with the words of a command of the trial."""
    if words[1] == 'train.py':
        train.main(SimpleNamespace(**configure(dict(vars(train)), words[2:])))
    else:
        {'lab.crystallise': crystallise, 'lab.measure': measure}[words[2]].main(words[3:])
    return SimpleNamespace(returncode=0)


@pytest.fixture
def small(tmp_path, monkeypatch, empty_results):  # noqa: F811
    """The study `crystal` with one small run, in a folder of its own."""
    options = [*(word for word in SMALL if not word.startswith('--block_size')), '--block_size=24',
               '--task=bio_rotation', '--attention=spectral', '--rope=linear']
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, 'ROOT', tmp_path)
    monkeypatch.setattr(trial, 'STUDIES', dict.fromkeys(trial.STUDIES, lambda: []) | {
        'crystal': lambda: [(NAME, options)]})
    monkeypatch.setattr(trial, 'SETTLING', {'bio_rotation': 2})
    monkeypatch.setattr(trial, 'subprocess', SimpleNamespace(run=in_this_process))
    monkeypatch.setattr(measure, 'draw', lambda *_: None)
    monkeypatch.setattr(crystallise, 'draw', lambda *_: None)
    real = trial.evaluations
    monkeypatch.setattr(trial, 'evaluations', lambda study, folder: {
        override: [word.replace('128', '16') for word in words] for override, words in real(study, folder).items()})
    return tmp_path


def test_a_run_and_its_crystals_become_rows_and_lines_of_the_table(small, monkeypatch):
    for (folder, options), period in zip(trial.commands('crystal', 2), (10, None)):
        monkeypatch.setattr(crystallise, 'find_period', lambda spectrum: period)
        assert trial.run('crystal', folder, options, {}) and trial.finished('crystal', folder)
        (small / folder / 'eval.json').rename(small / folder / 'away')
        assert not trial.finished('crystal', folder)  # that of best.pt is the last one
        (small / folder / 'away').rename(small / folder / 'eval.json')
    assert results.gather('crystal', sorted((small / 'out/trial/crystal').glob('*'))) == 2
    first, second = ([row for row in results.study('crystal') if row['seed'] == seed] for seed in (0, 1))
    rows = {row['override']: row for row in first}
    assert set(rows) == {'', *OF_CRYSTAL, *OF_CONTROLS}
    assert {row['override'] for row in second} == {'', *OF_CONTROLS}  # no period, no crystal
    assert [rows[override]['found'] for override in ('', *OF_CRYSTAL)] == [10, 10, 10]
    assert [(rows[override]['found'], rows[override]['q']) for override in OF_CONTROLS] == [
        (None, None) if 'longer' in override else (None, 11) for override in OF_CONTROLS]
    assert rows['']['q'] == 10 and second[0]['found'] is None and second[0]['q'] is None
    assert len({row['loss'] for row in first}) == len(first)
    assert all(row['accuracy@24'] <= 1 and row['accuracy@384'] <= 1 for row in first)

    record = json.loads((small / f'out/trial/crystal/{NAME}-0/crystal.json').read_text())
    curves, losses = rows['']['curves']['spectrum'], [loss for loss, _ in record['spectrum'].values()]
    assert len(curves) == 12 and curves[1:] == pytest.approx(losses, rel=1e-3)
    assert all('spectrum' not in row['curves'] for row in first if row['override'])
    lines = report.table('crystal').splitlines()
    cells = [cell.strip() for cell in lines[2].split('|')[1:-1]]
    assert cells[:4] == ['bio_rotation, P = 10', 'Spectral', '2 of 10', '10: 1, none: 1']
    assert '[1 of 2 runs]' in cells[5]
    assert '[1 of 2' not in lines[4] and '| 2 of 10 |  |' in lines[4]  # moved to P + 1: both, and none looked for
    assert '| Spectral, one Omega | still to be run: ' in lines[7]


def test_a_crystal_that_stopped_settles_again(small):
    (folder, options), = trial.commands('crystal', 1)
    for words in trial.scripts('crystal', folder, options)[:3]:
        in_this_process(['python', *words])
    (small / folder / 'wrong/settled/best.pt').unlink()
    assert trial.run('crystal', folder, options, {}) and (small / folder / 'wrong/settled/best.pt').exists()


def test_every_arm_of_the_issue_has_its_runs():
    runs = {study: [folder.split('/')[-1] for folder, _ in trial.commands(study)] for study in results.CRYSTALS}
    assert len(runs['crystal_none']) == 50
    planned = {(line.task, line.P, line.arm): line.planned for line in report_crystal.lines()}
    assert all(planned.values()), 'a line of the table without a run'
    assert planned['modulo', 7, 'Spectral'] == planned['bio_rotation', 10, 'RoPE, moved to P'] == 10
    assert planned['modulo', 13, 'Spectral'] == 5
    for study, names in runs.items():
        for name in names:
            assert list(trial.evaluations(study, f'out/trial/{study}/{name}'))[-1] == ''


def test_every_run_of_the_crystals_has_its_row():
    for study in results.CRYSTALS:
        measured = {f'{row["name"]}-{row["seed"]}' for row in results.study(study) if not row['override']}
        assert measured == {folder.split('/')[-1] for folder, _ in trial.commands(study)}, study


def row(seed, override, at, found=None, q=None, losses=()):
    """A row of modulo with these accuracies at 1, 8 and 16 times 64 tokens."""
    accuracies = {f'accuracy@{length}': value for length, value in zip((64, 512, 1024), at)}
    curves = dict(spectrum=list(losses)) if losses else {}
    return dict(name='modulo-spectral-7', seed=seed, override=override, block_size=64, found=found, q=q, period=7,
                curves=curves, **accuracies)


def test_the_tables_by_hand(monkeypatch, tmp_path):
    losses = [0.001, *(0.02 if q % 7 == 0 else 4 for q in range(2, 33))]
    rows = [row(0, '', (1, 0.6, 0.3), 7, 7, losses), row(0, 'checkpoint=crystal.pt', (1, 0.98, 0.9), 7, 7),
            row(0, 'checkpoint=settled/best.pt', (1, 1, 0.98), 7, 7),
            row(1, '', (0.9, 0.5, 0.2), 14, 14, losses), row(1, 'checkpoint=crystal.pt', (0.8, 0.7, 0.6), 14, 14),
            row(1, 'checkpoint=settled/best.pt', (1, 0.991, 0.99), 14, 14),
            row(2, '', (0.4, 0.3, 0.2), None, None, [0.001, *[2.0] * 31])]
    monkeypatch.setattr(report_crystal, 'study', lambda name: rows if name == 'crystal' else [])
    line = next(line for line in report.table('crystal').splitlines() if '| modulo, P = 7 | Spectral |' in line)
    assert [cell.strip() for cell in line.split('|')[3:-1]] == [
        '3 of 10', '7: 1, 14: 1, none: 1', '90.0 (40.0), 50.0 (30.0), 20.0 (20.0)',
        '90.0 (80.0), 84.0 (70.0), 75.0 (60.0) [2 of 3 runs]', '100.0 (100.0), 99.5 (99.1), 98.5 (98.0) [2 of 3 runs]',
        '2, 1 of 3']
    lines = report.table('crystal_spectrum').splitlines()
    line = next(line for line in lines if '| modulo, P = 7 | Spectral |' in line)
    assert [cell.strip() for cell in line.split('|')[3:-1]] == ['3 of 10', '0.001', '0.02', '4', '200 (1)']
    rows += [row(0, 'held_shares=True', (1, 0.7, 0.4)), row(1, 'held_shares=True', (1, 0.5, 0.2)),
             row(0, 'checkpoint=settled/best.pt held_shares=True', (1, 1, 0.999))]  # seed 2 is not held: left out
    line = next(line for line in report.table('crystal_held').splitlines() if '| modulo, P = 7 | Spectral |' in line)
    assert [cell.strip() for cell in line.split('|')[3:-1]] == [
        '2 of 10', '55.0 (50.0), 25.0 (20.0)', '60.0 (50.0), 30.0 (20.0)', '99.5 (99.1), 98.5 (98.0)',
        '100.0 (100.0), 99.9 (99.9) [1 of 2 runs]', '1, 1 of 2']
    alarms = [dict(row(seed, '', (), found), name='lag-spectral') for seed, found in enumerate((None, None, 9))]
    monkeypatch.setattr(report_crystal, 'study', lambda name: alarms if name == 'crystal_none' else [])
    lines = report.table('crystal').splitlines()
    assert any(line.startswith('| lag | Spectral | 3 of 10 | none: 2, 9: 1 |') for line in lines)
    assert lines[-1].startswith('| all without a period | Spectral | 3 of 50 | false alarms: 1 |')


@functools.lru_cache
def lines():
    """{(task, P, arm): line} of the rows in the tree."""
    return {(line.task, line.P, line.arm): line for line in report_crystal.lines()}


def test_what_the_readme_says_of_crystals_is_in_the_rows():
    first = [line for line in lines().values() if line.P and line.P == PERIODS[line.task][0]]

    def right(arm, stage):
        rows = [row for line in first if line.arm == arm for row in line.stages[stage]]
        return f'{good(rows, 16)} of {len(rows)}'

    def found(arm, *tasks):
        hits = [period == line.P for line in first if line.arm == arm and line.task in tasks for period in line.found]
        return f'{sum(hits)} of {len(hits)}'

    readme, least = (ROOT / 'README.md').read_text(), report_crystal.GOOD
    assert f'(`modulo`) in {found("Spectral", *PERIODS)} runs' in readme
    hard = [period == line.P for line in spectral(*HARD) for period in line.found]
    assert f'periods 5 and 16 are hard to learn, and it finds them in {sum(hard)} of {len(hard)} runs' in readme
    assert f'As trained, {right("Spectral", "trained")} runs are right in {least} % of the answers' in readme
    assert f'with frozen frequencies, {right("Spectral", "settled")} are' in readme
    assert f'treated alike, does in {right("RoPE, moved to P", "settled")}.' in readme


# ----------------------------------------------------------------------------------------------------------------------
# The sentences of crystal.md

def bullet(label):
    """The bullet of crystal.md that begins with this label in bold."""
    return after(f'* **{label}**', 'lab/crystal.md')


def spectral(*periods):
    """The lines of Spectral at these (task, P), in this order."""
    return [lines()[(*period, 'Spectral')] for period in periods]


def at_first_period(task, arm):
    """The line of an arm at the first period of a task."""
    return lines()[task, PERIODS[task][0], arm]


def test_noise_settling_and_false_alarms():
    noisy, words = [line for line in lines().values() if 'random' in line.arm], bullet('Noise')
    found = [period / line.P if period else 0 for line in noisy for period in line.found]
    assert f'found in {found.count(1)} of {len(found)} runs, and its multiple 28 in one' in words
    assert sorted(set(found)) == [0, 1, 4] and found.count(4) == 1 and f'The other {found.count(0)} had not' in words
    learned = [[accuracy > 98 for accuracy in report_crystal.accuracies(line.stages['trained'], 1)] for line in noisy]
    assert sum(learned, []) == [bool(row['found']) for line in noisy for row in line.stages['trained']]
    settled = {(line.task, line.arm, row['seed']): row for line in noisy for row in line.stages['settled']}
    at_16 = dict(zip(settled, report_crystal.accuracies(settled.values(), 16)))
    (broken, least), (multiple, _), (_, worst), *_ = sorted(at_16.items(), key=lambda item: item[1])
    bio, modulo = ([value for (of_task, *_), value in at_16.items() if of_task == task] for task in PERIODS)
    assert f'{sum(value >= 99 for value in bio)} of {len(bio)} runs of `bio_rotation` have 99 % or more' in words
    assert f'Of `modulo` {sum(value >= 99 for value in modulo)} of {len(modulo)} crystals have it' in words
    assert f'all but the one at 28 have {int(worst)} % or more' in words and settled[multiple]['q'] == 28
    assert f'it has {least:.1f} % at 16 times' in bullet('Settling can do harm.') and broken[0] == 'bio_rotation'
    crystals = {(line.task, line.arm, row['seed']): row for line in noisy for row in line.stages['crystallised']}
    assert all(report_crystal.accuracies([crystals[broken]], multiple) == [100] for multiple in (1, 8, 16))
    without = [period for line in lines().values() if line.P is None for period in line.found]
    assert f'in {len(without)} runs without a period' in bullet('No false alarm') and not any(without)


def test_other_periods():
    easy = spectral(('bio_rotation', 7), ('bio_rotation', 13), ('modulo', 11), ('modulo', 13))
    found = [period == line.P for line in easy for period in line.found]
    assert f'are found in {sum(found)} of {len(found)} runs' in bullet('The periods 7, 11 and 13')
    hard, words = spectral(*HARD), bullet('P = 5 and P = 16')
    trained = [row for line in hard for row in line.stages['trained']]
    assert f'Of {len(trained)} runs, {good(trained, 1)} have 99 % or more' in words
    named = [(period or 0) / line.P for line in hard for period in line.found]
    multiples = sum(ratio in range(2, 9) for ratio in named)
    assert f'It names a multiple in {multiples} runs, and nothing in {named.count(0)}' in words
    assert 'names the period in 1 run' in words and named.count(1) == 1 and 1 + multiples + named.count(0) == len(named)
    other, settled = spectral(('modulo', 7), ('modulo', 11), ('modulo', 13)), bullet('Longer periods of `modulo`')
    medians = [statistics.median(report_crystal.accuracies(line.stages['settled'], 16)) for line in other]
    assert 'at 16 times the training length are {:.1f}, {:.1f} and {:.1f} %'.format(*medians) in settled


def test_held_shares():
    held = [row for line in lines().values() for row in exact_and_held(line)]
    worst = min(value for multiple in (8, 16) for value in report_crystal.accuracies(held, multiple))
    assert f'all {len(held)} runs are right in {int(10 * worst) / 10} % or more' in bullet('Held shares end the loss.')
    gains = []
    for line in spectral(*(('modulo', P) for P in (5, 7, 11, 13))):
        pairs = same_seeds(line.stages['trained, shares held'], line.stages['trained'])
        gains += [after - before for after, before in zip(*(report_crystal.accuracies(rows, 8) for rows in pairs))]
    assert f'by {statistics.median(gains):.1f} points in the median' in bullet('Exact frequencies are needed, too.')


def counts(task, arm, stage):
    """How many runs are good at 8 and 16 times the training length, and how many there are."""
    stages = at_first_period(task, arm).stages
    return good(stages[stage], 8), good(stages[stage], 16), len(stages['trained'])


def test_the_first_periods():
    assert counts('bio_rotation', 'Spectral', 'settled') == (10, 10, 10)
    (moved, _, n), (trained, *_) = (counts('bio_rotation', 'Spectral', stage) for stage in ('crystallised', 'trained'))
    assert f'{moved} of {n} runs have 99 % or more at 8 times' in bullet('`bio_rotation`.') and trained == 1
    at_8, at_16, n = counts('modulo', 'Spectral', 'settled')
    words = f'{at_8} of {n} runs have 99 % or more at 8 times the training length, and {at_16} at 16 times. '
    assert words + 'As trained, none' in bullet('`modulo`.') and counts('modulo', 'Spectral', 'trained') == (0, 0, 10)
    at_8, at_16, n = counts('modulo', 'oracle', 'trained')
    assert f'On `modulo` {at_8} of {n} have it at 8 times the training length, and {at_16} at' in bullet('The oracle')
    assert counts('bio_rotation', 'oracle', 'trained') == (10, 10, 10)
    at_8, at_16, n = counts('modulo', 'RoPE, moved to P', 'settled')
    assert f'On `modulo` {at_16} of {n} have it there, and {at_8} at 8 times' in bullet('RoPE moved to the period')
    assert counts('bio_rotation', 'RoPE, moved to P', 'settled') == (10, 10, 10)
    shown, wrong = (at_first_period(task, 'RoPE, moved to P').found for task in ('modulo', 'bio_rotation'))
    assert f'shows the 7 of `modulo` in {shown.count(7)} runs of {len(shown)}' in bullet("RoPE's own spectrum")
    assert {*wrong} == {None, 29} and f'In {wrong.count(29)} of those runs' in bullet("RoPE's own spectrum")
    for task in PERIODS:
        wrong = at_first_period(task, 'Spectral, moved to P + 1').stages
        assert max(accuracy for stage in ('crystallised', 'settled') for accuracy in
                   report_crystal.accuracies(wrong[stage], 1)) < 99, 'a wrong period fails at the training length'


def test_one_omega_and_bifocal():
    found = [period == line.P for task in PERIODS
             for line in [at_first_period(task, 'Spectral, one Omega')] for period in line.found]
    (_, shared, n), (_, own, of) = (counts('modulo', arm, 'settled') for arm in ('Spectral, one Omega', 'Spectral'))
    words = bullet('One Ω for all heads of a layer')
    assert f'found in {sum(found)} of {len(found)} runs' in words
    assert f'{shared} of {n} runs of `modulo` have 99 % or more at 16 times' in words and f'{own} of {of}' in words
    arms, words = ('Bifocal, all heads moved', 'Bifocal, spectral head moved'), bullet('Bifocal.')
    medians = [statistics.median(report_crystal.accuracies(at_first_period('modulo', arm).stages['settled'], 8))
               for arm in arms]
    assert 'is then {:.1f} %, with the spectral head alone {:.1f} %'.format(*medians) in words
    at_8, at_16, n = counts('bio_rotation', arms[1], 'settled')
    learned = good(at_first_period('bio_rotation', arms[1]).stages['trained'], 1)
    assert at_8 == at_16 == learned and f'in the {learned} of {n} runs that learned the task' in words
