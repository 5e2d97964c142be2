"""Rows, statistics, the comparison, the runner of the trial and the reports, on made-up runs and committed rows."""

import ast
import builtins
import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lab import compare, figures, report, report_bifocal, report_text, report_tuning, results, trial
from lab.results import ROOT

HARMONIC = 2 * math.pi / 7


@pytest.fixture
def make_run(tmp_path):
    """make_run('name', ...) writes a finished and evaluated run of `modulo` and returns its folder."""
    def make(name, losses=(1.9, 0.5, 0.004), omegas=None, accuracies=(1.0, 0.5), overrides=None, n=8, **options):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        options = dict(seed=int(name.rpartition('-')[2]), task='modulo', attention='rope', max_iters=20, device='cpu',
                       out_dir=str(folder)) | options
        session = dict(commit='abc', date='2026-11-22 10:00:00 +0000', processor='a CPU', threads=1, torch='2')
        log = [dict(iter=10 * i, val_loss=loss, seconds=float(i)) for i, loss in enumerate(losses)]
        for line, omega in zip(log, omegas or ()):
            line['Omega'] = [[omega]]
        lengths = {str(64 * 2**i): dict(accuracy=a, headline=a, exact=a / 2, breakdown={})
                   for i, a in enumerate(accuracies)}
        result = dict(task='modulo', block_size=64, checkpoint='best.pt', split='test', n=n, chance=1 / 7,
                      headline=None, overrides=overrides or {}, lengths=lengths)
        (folder / 'config.json').write_text(json.dumps(dict(options=options, sessions=[session])))
        (folder / 'log.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in log))
        name = '_'.join(['eval', *(f'{key}={value}' for key, value in (overrides or {}).items())])
        (folder / f'{name}.json').write_text(json.dumps(result))
        return folder
    return make


@pytest.fixture
def empty_results(tmp_path, monkeypatch):
    """lab/results as a folder without rows."""
    monkeypatch.setattr(results, 'RESULTS', tmp_path / 'results')
    return tmp_path / 'results'


# ----------------------------------------------------------------------------------------------------------------------
# Options


def test_the_defaults_are_those_of_train():
    train = pytest.importorskip('train')
    from configurator import configure
    options = configure(dict(vars(train)), [])
    assert {key: value for key, value in options.items() if key not in results.NOT_STORED} == (
        results.DEFAULTS | dict(optimizer='muon'))  # the first trial had AdamW alone


def test_old_spellings_become_new_ones():
    def new(**options):
        return results.respell(options)
    assert new(rope_grid='linear', rope_scaling='none') == {'rope': 'linear'}
    assert new(rope_grid='harmonic', rope_period=10) == {'rope': 'harmonic:period=10'}
    assert new(rope_scaling='pi', rope_factor=8.0) == {'rope': 'pi:factor=8'}
    assert new(rope_grid='geometric', rope_scaling='yarn', rope_factor=8.0, yarn_beta_fast=4.0, yarn_gain=0.0) == {
        'rope': 'yarn:factor=8,fast=4'}
    assert new(learn_frequency=True, learn_amplitude=False, learn_phase=False) == {'learn': 'frequency'}
    assert new(learn_frequency=False, learn_amplitude=False, learn_phase=False) == {'learn': 'none'}
    assert new(train_only='spectral', learning_rate=1e-3) == {'learning_rate': 0.0} and new(train_only='all') == {}
    assert new(n_spectral_head=-1) == {'n_spectral_head': 0}
    assert new(init_from='results/bases/m-0/best.pt') == {'init_from': 'out/trial/bases/m-0/best.pt'}
    assert new(**results.DEFAULTS) == results.DEFAULTS and new(tapa_fused=True) == {}
    with pytest.raises(ValueError, match='unknown option rope_gird'):
        new(rope_gird='linear')
    assert results.spell({'rope': 'pi:factor=8', 'rope_base': 40000.0}) == 'rope=pi:factor=8 rope_base=40000'


@pytest.mark.parametrize('old, new', results.SPELLINGS.items())
def test_the_table_of_spellings_is_what_respell_does(old, new):
    def read(text):
        return {key: ast.literal_eval(value) if re.fullmatch(r'[-\d.]+|False', value) else value
                for key, value in re.findall(r'--(\w+)=(\S*)', text)}
    assert results.respell(read(old)) == read(new)


# ----------------------------------------------------------------------------------------------------------------------
# Rows


def lines_of(*omegas):
    return [{'iter': 10 * i, 'val_loss': 1.0, 'Omega': [[pairs]]} for i, pairs in enumerate(omegas)]


@pytest.mark.parametrize('omegas, period, expected', [
    ([[0.5, 0.1], [HARMONIC, 0.1], [HARMONIC + 5e-4, 0.1]], 7, 10),
    ([[HARMONIC, 0.1], [0.5, 0.1], [HARMONIC, 0.1], [HARMONIC, 0.1]], 7, 20),  # it left once
    ([[HARMONIC, 0.1], [HARMONIC, -2 * HARMONIC], [HARMONIC, -2 * HARMONIC]], 7, 0),
    ([[HARMONIC, 0.1], [HARMONIC, 0.1], [0.5, 0.1]], 7, None),
    ([[0.0, 1e-4], [7 * HARMONIC, 1e-4]], 7, None),  # standing still is no harmonic
    ([[HARMONIC], [HARMONIC]], None, None)])
def test_lock_in_is_the_first_validation_after_which_a_pair_stays_locked(omegas, period, expected):
    assert results.lock_in(lines_of(*omegas), period) == expected


def test_a_row_survives_its_csv(make_run, empty_results):
    omegas = [[0.5], [HARMONIC], [HARMONIC]]
    spectral = dict(omegas=omegas, attention='spectral', learn='frequency')
    folder = make_run('headline/modulo-spectral-0', **spectral)
    make_run('headline/modulo-spectral-0', overrides={'log_scale': 16}, **spectral)
    make_run('headline/modulo-rope-1', learning_rate=1)
    assert results.gather('headline', sorted(folder.parent.iterdir())) == 2
    rows = results.study('headline')
    names = [results.key(row) for row in rows]
    assert names == ['modulo-rope-1', 'modulo-spectral-0', 'modulo-spectral-0 log_scale=16']
    direct = results.read_run(folder)
    for column, value in direct.items():
        if column not in ('folder', 'curves'):
            assert rows[1].get(column) == value, column
    assert (direct['best_loss'], direct['solved_at'], direct['lock_in'], direct['period']) == (0.004, 20, 10, 7)
    assert rows[0]['learning_rate'] == 1.0 and rows[0]['learn'] == 'frequency,amplitude,phase'
    curves = rows[1]['curves']
    assert curves['losses'] == [[0, 10, 20], [1.9, 0.5, 0.004]] and curves['Omega'] == [[0, 10, 20], omegas]
    header = (empty_results / 'headline.csv').read_text().splitlines()[0].split(',')
    assert 'learn' in header and 'batch_size' not in header and 'curves' not in header and 'folder' not in header


def test_gathering_replaces_the_same_runs_and_keeps_the_others(make_run, empty_results, tmp_path, capsys):
    for seed in (0, 1):
        make_run(f'runs/layers/modulo-rope-2-{seed}', n_layer=2)
    results.main(['--runs', str(tmp_path / 'runs')])
    assert capsys.readouterr().out == 'layers: 2 runs gathered\n'
    (tmp_path / 'runs/layers/modulo-rope-2-0/config.json').unlink()
    make_run('runs/layers/modulo-rope-2-1', losses=(1.9, 0.7, 0.6), n_layer=2)
    make_run('runs/layers/modulo-rope-3-1', losses=(1.9, 0.8, 0.6), n_layer=3, max_iters=30)  # stopped
    results.main(['layers', '--runs', str(tmp_path / 'runs')])
    assert [(row['seed'], row['best_loss']) for row in results.study('layers')] == [(0, 0.004), (1, 0.6)]
    assert 'modulo-rope-3-1: it stopped at iteration 20 of 30' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        results.main(['layer', '--runs', str(tmp_path / 'runs')])


def test_the_periodic_share_of_a_profile():
    wave = [math.cos(2 * math.pi * d / 7) for d in range(140)]
    assert results.periodic_share([None, *wave[1:]], 7) == pytest.approx(1)
    assert results.periodic_share([d / 140 for d in range(140)], 7) < 0.01
    half = [a + math.cos(2 * math.pi * d / 10) for d, a in enumerate(wave)]
    assert results.periodic_share(half, 7) == pytest.approx(0.5, abs=0.01)
    assert results.periodic_share([1.0] * 9, 3) == 0


def test_slow_pairs_of_a_fixed_rotation():
    row = dict(attention='rope', rope='geometric', rope_base=100.0, n_embd=16, n_head=2, block_size=64)
    shares = dict(slow_pairs_start=0.25, slow_pairs_end=0.25)  # theta 1, 0.32, 0.1 and 0.03
    assert results.slow_pairs(dict(row=row, log=[])) == shares
    assert results.slow_pairs(dict(row=row | dict(attention='nope'), log=[])) == {}


# ----------------------------------------------------------------------------------------------------------------------
# Statistics


@pytest.mark.parametrize('df, t', [(1, 12.7062047), (2, 4.3026527), (3, 3.1824463), (4, 2.7764451), (9, 2.2621572),
                                   (19, 2.0930241), (30, 2.0422725), (100, 1.9839715)])
def test_t_quantiles_are_those_of_the_tables(df, t):
    assert compare.t_quantile(df) == pytest.approx(t, abs=1e-7)


def test_paired_statistics():
    mean, half, p = compare.paired([3.0, 5.0, 4.0, 7.0], [1.0, 2.0, 2.0, 3.0])  # differences 2, 3, 2, 4
    assert mean == 2.75 and half == pytest.approx(3.1824463 * np.std([2, 3, 2, 4], ddof=1) / 2) and p == 2 / 16
    assert compare.paired([1.0, -1.0, 2.0], [0.0, 0.0, 0.0])[2] == 6 / 8  # sums of +-1, +-1, +-2: all but 0, twice
    assert all(map(math.isnan, compare.paired([1.0], [0.0])[1:]))
    rng = np.random.default_rng(0)  # the interval covers the truth 95 times in 100
    trials = [compare.paired(rng.normal(size=5), np.zeros(5)) for _ in range(2000)]
    assert 0.935 < np.mean([abs(mean) <= half for mean, half, _ in trials]) < 0.965


def test_sign_flips_use_every_difference():
    """Only the first 15 counted once, so that 20 differences of one sign had the p of 15."""
    assert compare.sign_flips([1.0] * 16) == 2 / 2**16
    assert compare.sign_flips([1.0] * 20) == pytest.approx(1 / 2**16, rel=1)  # sampled, the observed signs among them
    late = [1.0, -1.0] * 8 + [50.0] * 4  # the last four alike, and the sum of the others not against them
    assert compare.sign_flips(late) == pytest.approx(2 / 2**4 * (1 + math.comb(16, 8) / 2**16) / 2, rel=0.05)
    assert compare.sign_flips(late) == compare.sign_flips(late)
    twelve = list(range(1, 13))
    assert compare.sign_flips(twelve, exact_up_to=5) == pytest.approx(compare.sign_flips(twelve), abs=2e-4)


def test_quartiles_are_numpys_and_never_is_worse_than_any():
    for values in ([1.0, 2.0, 4.0, 8.0, 16.0], [3.0, 1.0, 2.0, 7.0], [1.0, 5.0]):
        low, median, high = np.percentile(values, [25, 50, 75])
        assert compare.quartiles(values, '.4g') == f'{median:.4g} [{low:.4g}, {high:.4g}]'
    assert compare.quartiles([None, 100, 300, None, 200], '.0f') == '300 [200, -]'
    assert compare.quartiles([0.5]) == '0.5'


# ----------------------------------------------------------------------------------------------------------------------
# Runs side by side


def test_arms_are_named_after_what_makes_them_different():
    def name(differing, **changes):
        return compare.arm_name(results.DEFAULTS | changes, differing)
    assert name(['rope']) == 'rope' and name(['rope'], rope='resonance') == 'resonance'
    assert name(['rope'], rope='harmonic:period=7') == 'oracle' and name(['rope'], rope='linear') == 'rope rope=linear'
    assert name(['rope'], attention='spectral', rope='linear') == 'spectral rope=linear'
    assert name(['learn'], attention='spectral') == 'spectral'
    assert name(['learn', 'log_scale'], attention='spectral', learn='phase') == 'spectral learn=phase'
    assert name(['spectral_lr'], attention='spectral', spectral_lr=0.03) == 'spectral spectral_lr=0.03'


def test_compare_puts_seeds_of_an_arm_together(make_run, tmp_path, capsys):
    folders = [make_run(f'{arm}-{seed}', attention=arm, accuracies=(1.0, accuracy), learning_rate=rate)
               for arm, rate, pair in (('rope', 2e-3, (0.5, 0.6)), ('tapa', 1e-3, (0.8, 0.7)))
               for seed, accuracy in enumerate(pair)]
    arguments = ['--figure', str(tmp_path / 'figure.png'), *map(str, folders)]
    compare.main(arguments)
    printed = capsys.readouterr().out
    losses, lengths = (table.splitlines() for table in printed.strip().split('\n\n'))
    assert compare.trained_with(dict(optimizer='muon', muon_lr=0.01, learning_rate=0.004)) == 'Muon 0.01'
    rope = '| modulo | rope | AdamW 0.002 | 0, 1 | 0.004, 0.004 | 0.004 [0.004, 0.004] |  | 20, 20 |'
    assert losses[2].startswith(rope)
    assert lengths[2] == '| modulo | rope | 2 | 100.0 ± 0.0 | 55.0 ± 7.1 | 55.0 ± 7.1 |  |'
    assert lengths[3] == '| modulo | tapa | 2 | 100.0 ± 0.0 | 75.0 ± 7.1 | 75.0 ± 7.1 | +20.0 ± 127.1, p 0.5 |'
    assert (tmp_path / 'figure.png').read_bytes()[:4] == b'\x89PNG'
    compare.main([*arguments, str(folders[0])])
    assert capsys.readouterr().out == printed  # a run named twice counts once


def test_runs_of_one_arm_at_two_rates_are_two_arms(make_run):
    arms = compare.read_arms([make_run('a-0', learning_rate=1e-3), make_run('b-0', learning_rate=2e-3)])
    assert list(arms['modulo']) == ['rope learning_rate=0.001', 'rope learning_rate=0.002']


def test_compare_skips_what_is_not_whole_and_says_so(make_run, tmp_path, capsys):
    whole, broken, stopped = make_run('whole-0'), make_run('broken-0'), make_run('stopped-0', max_iters=30)
    (tmp_path / 'bare').mkdir()
    (broken / 'eval.json').write_text('{"task": "la')
    with open(stopped / 'log.jsonl', 'a') as log:
        log.write('{"iter": 3')  # killed in the middle of a line
    arms = compare.read_arms([whole, tmp_path / 'bare', broken, stopped])
    assert [run['folder'].name for run in arms['modulo']['rope']] == ['whole-0']
    complaints = capsys.readouterr().err
    for text in ('bare: it has no config.json, log.jsonl, eval.json', 'broken-0: a file is broken',
                 'stopped-0: it stopped at iteration 20 of 30'):
        assert text in complaints
    with pytest.raises(ValueError, match='none of these is a finished run with eval.json'):
        compare.read_arms([tmp_path / 'bare', broken])


@pytest.mark.parametrize('changes, what', [
    (dict(task='sum'), 'tasks: modulo .*; sum'), (dict(batch_size=8), 'budgets: .*batch_size=8'),
    (dict(n=9), 'measurements: .*n=9'), (dict(accuracies=(1.0,)), 'measurements')])
def test_compare_refuses_what_does_not_compare_unless_forced(make_run, changes, what):
    folders = [make_run('one-0'), make_run('two-0', **changes)]
    with pytest.raises(ValueError, match=f'different {what}'):
        compare.read_arms(folders)
    with pytest.raises(SystemExit, match='^error: different'):
        compare.main(list(map(str, folders)))
    arms = compare.read_arms(folders, force=True)
    assert sum(len(runs) for group in arms.values() for runs in group.values()) == 2


# ----------------------------------------------------------------------------------------------------------------------
# The trial

# scripts that leave the files of a run: the runner is tested without the page
TRAIN = '''
import json, pathlib, sys, time
options = dict(word[2:].split('=', 1) for word in sys.argv[1:] if word.startswith('--'))
assert options['n_head'] == '2', 'n_head=' + options['n_head']
folder = pathlib.Path(options['out_dir'])
folder.mkdir(parents=True, exist_ok=True)
(folder / 'ckpt.pt').write_text('weights')
with open(folder / 'started', 'a') as file:
    file.write(options.get('init_from', 'scratch') + ' ')
time.sleep(float(options.get('wait', 0)))
'''
MEASURE = '''
import pathlib, sys
(pathlib.Path(sys.argv[1]) / 'eval.json').write_text('{"lengths": {}}')
'''


@pytest.fixture
def small(tmp_path, monkeypatch, empty_results):
    """The trial in a folder of its own, with one study of two runs, one of which fails."""
    (tmp_path / 'lab').mkdir()
    (tmp_path / 'train.py').write_text(TRAIN)
    (tmp_path / 'lab/measure.py').write_text(MEASURE)
    monkeypatch.setattr(trial, 'ROOT', tmp_path)
    monkeypatch.setattr(trial, 'N_SEEDS', 1)
    monkeypatch.setattr(trial, 'STUDIES', {'small': lambda: [('good', ['--n_head=2']), ('bad', ['--n_head=3'])]})
    return tmp_path


def run_trial(*arguments):
    """The exit status of the runner."""
    with pytest.raises(SystemExit) as end:
        trial.main([*arguments])
    return end.value.code


def test_the_runner_runs_what_is_missing_and_counts_what_fails(small, capsys):
    assert run_trial('small', '-j', '2', '--seeds=1') == 1
    printed = capsys.readouterr().out
    assert 'small: 0 of 2 runs done' in printed and '1 failed' in printed
    assert 'bad-0  FAILED: see out/trial/small/bad-0.txt' in printed
    good, bad = (small / 'out/trial/small' / name for name in ('good-0', 'bad-0'))
    assert (good / 'eval.json').exists() and not good.with_name('good-0.txt').exists()
    assert 'n_head=3' in bad.with_name('bad-0.txt').read_text()
    assert run_trial('small', '--match=good', '--seeds=1') == 0
    assert 'small: 1 of 1 runs done' in capsys.readouterr().out and (good / 'started').read_text() == 'scratch '
    (good / 'eval.json').unlink()  # stopped before it was evaluated: it goes on from its checkpoint
    assert run_trial('small', '--match=good', '-j', '1', '--seeds=1') == 0
    assert (good / 'started').read_text() == 'scratch resume ' and (good / 'eval.json').exists()


def test_a_run_with_a_row_is_finished(small, make_run, capsys):
    results.gather('small', [make_run('good-0')])
    assert trial.finished('small', 'out/trial/small/good-0') and not trial.finished('small', 'out/trial/small/good-1')
    assert run_trial('small', '--match=good', '--seeds=3', '-j', '1') == 0  # once 3 seeds were those that there are
    assert 'small: 1 of 3 runs done' in capsys.readouterr().out
    assert sorted(path.name for path in (small / 'out/trial/small').iterdir()) == ['good-1', 'good-2']


def test_every_override_must_be_measured(small, monkeypatch, make_run):
    monkeypatch.setattr(trial, 'evaluations', lambda study, folder: {'': [], 'rope=pi:factor=8': []})
    folder = small / 'out/trial/small/good-0'
    folder.mkdir(parents=True)
    (folder / 'eval.json').write_text('{"lengths": {}}')
    assert not trial.finished('small', 'out/trial/small/good-0')
    (folder / 'eval_2.json').write_text('{"lengths": {}, "overrides": {"rope": "pi:factor=8"}}')
    assert trial.finished('small', 'out/trial/small/good-0')


def test_the_runner_prints_and_refuses(small, capsys):
    assert run_trial('small', '--print', '--seeds=2') == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0] == ('python train.py --n_head=2 --optimizer=adamw --muon_lr=0.02 --seed=0 '
                        '--out_dir=out/trial/small/good-0 && python -m lab.measure out/trial/small/good-0')
    assert run_trial('smaller') == run_trial('small', '--jobs=0') == run_trial('small', '--seeds=0') == 2


def test_ctrl_c_stops_the_runner(small):
    code = ('import signal; signal.signal(signal.SIGINT, signal.default_int_handler); '  # background jobs ignore it
            f'import pathlib; from lab import results, trial; trial.ROOT = pathlib.Path({str(small)!r}); '
            f'results.RESULTS = pathlib.Path({str(small)!r}); '
            'trial.STUDIES = {"small": lambda: [(name, ["--n_head=2", "--wait=600"]) for name in "abc"]}; '
            'trial.main(["small", "-j", "1", "--seeds=1"])')
    runner = subprocess.Popen([sys.executable, '-c', code], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                              start_new_session=True)
    started = small / 'out/trial/small/a-0/started'
    try:
        for _ in range(600):
            if started.exists():
                break
            time.sleep(0.1)
        os.killpg(runner.pid, signal.SIGINT)  # as a terminal does
        printed, _ = runner.communicate(timeout=60)
    finally:
        if runner.poll() is None:
            os.killpg(runner.pid, signal.SIGKILL)
    assert 'stopping' in printed and runner.returncode == 130
    assert not (small / 'out/trial/small/b-0').exists()


def test_a_study_from_its_runs_to_its_rows(tmp_path, monkeypatch, empty_results, capsys):
    """With the real train.py and lab/measure.py."""
    pytest.importorskip('lab.measure')
    small = ['--task=modulo', '--attention=spectral', '--max_iters=4', '--eval_interval=2', '--eval_sequences=4',
             '--block_size=16', '--n_layer=1', '--n_embd=16', '--device=cpu']
    monkeypatch.setattr(trial, 'RUNS', str(tmp_path / 'runs'))
    monkeypatch.setattr(trial, 'STUDIES', {'headline': lambda: [('modulo-spectral', small)]})
    assert run_trial('headline', '--seeds=1', '-j', '1') == 0
    results.main(['--runs', str(tmp_path / 'runs')])
    assert 'headline: 1 runs gathered' in capsys.readouterr().out
    row, = results.study('headline')
    assert (row['name'], row['seed'], row['attention'], row['iterations']) == ('modulo-spectral', 0, 'spectral', 4)
    assert row['period'] == 7 and row['pairs'] == 8 and len(row['curves']['Omega'][1][0]) == 8
    assert 'periodic_share layer 0 head 1' in row
    (tmp_path / 'runs').rename(tmp_path / 'elsewhere')
    assert trial.finished('headline', f'{tmp_path}/runs/headline/modulo-spectral-0')


@pytest.mark.parametrize('study', trial.STUDIES)
def test_every_row_is_what_its_command_gives(study, monkeypatch):
    """Every option that was logged is that of the command; 40 tuning runs had others, whose configs changed later."""
    train = pytest.importorskip('train')
    from configurator import configure
    from tasks import make_task
    monkeypatch.chdir(ROOT)
    rows = {(row['name'], row['seed'], row['override']): row for row in results.study(study)}
    assert rows
    for folder, words in trial.commands(study):
        options = configure(dict(vars(train)), words)
        assert options['out_dir'] == folder and (options['seed'] in trial.TUNING_SEEDS) == (study in trial.TUNING)
        options['task'] = str(make_task(options['task']))
        name, _, seed = folder.split('/')[-1].rpartition('-')
        for override in trial.evaluations(study, folder):
            row = rows.pop((name, int(seed), override), options)  # not every study has all seeds
            assert [row[key] for key in results.DEFAULTS] == [options[key] for key in results.DEFAULTS], folder
    assert not rows, 'rows without a command'


@pytest.mark.parametrize('study', trial.TWO_OPTIMIZERS)
def test_no_run_of_both_optimisers_is_missing(study):
    """A rate without a row would be passed over in silence. The first trial has gaps, and its tables show them."""
    rows = {(row['name'], str(row['seed'])) for row in results.study(study)}
    missing = [folder for folder, _ in trial.commands(study)
               if tuple(folder.split('/')[-1].rpartition('-')[::2]) not in rows]
    assert rows and not missing


# ----------------------------------------------------------------------------------------------------------------------
# What was chosen


def configs():
    """(task, attention) of the configs that the sweep has tuned."""
    stems = [path.stem for path in (ROOT / 'config').glob('*.py') if not re.match('surgery_|.*_long$', path.stem)]
    pairs = [(task, attention) for task, _, attention in (stem.rpartition('_') for stem in sorted(stems))]
    return [(task, attention) for task, attention in pairs if task in trial.TASKS]


@pytest.mark.parametrize('task, attention', configs())
def test_configs_have_what_was_chosen(task, attention):
    """Knobs and rates of the sweep; where both optimisers were tried, the better one at its rate."""
    train = pytest.importorskip('train')
    from configurator import configure
    options = configure(dict(vars(train)), [str(ROOT / f'config/{task}_{attention}.py')])
    assert options['attention'] == attention
    assert all(report_tuning.tuning_runs(task, attention, rate) for rate in trial.rates(task, attention))
    knob = report_tuning.choose_knob(task, attention)
    first_rate = trial.FIRST_RATE.get(f'{task}_{attention}', options['learning_rate'])  # that of the first trial
    rates = (report_tuning.choose_rate(task, knob), first_rate)
    best, ours = ([run['best_loss'] for run in report_tuning.tuning_runs(task, knob, rate)] for rate in rates)
    assert ours == best or (task == 'text' and ours[0] - best[0] < 0.01)  # less is noise
    tuned = ('rope_base', 'spectral_lr', 'tapa_alpha', *(['init_std'] if task != 'bio_rotation' else []))
    changed = [f'--{key}={options[key]:g}' for key in tuned if options[key] != results.DEFAULTS[key]]
    expected = [] if knob == attention else [trial.EVERY_KNOB[knob]]
    name = trial.BASELINE.get(task, attention) if attention == 'rope' else attention
    chosen = trial.CHOSEN_OPTIMIZER.get(task, {}).get(name, {})
    if (task, name) in trial.CHOSEN_MUON:  # with the knobs that AdamW's sweep chose
        chosen = dict(muon=trial.CHOSEN_MUON[task, name])
    if chosen:
        optimizer, rate = next(iter(chosen.items()))
        expected = expected if name == attention else [trial.EVERY_KNOB[name]]
        rate_of = {'muon': 'muon_lr', 'adamw': 'learning_rate'}[optimizer]
        assert (options['optimizer'], options[rate_of]) == (optimizer, rate)
    assert changed == expected, 'a config has the knob that was chosen'


def test_the_trial_has_the_rates_that_were_chosen():
    for (task, name), rate in trial.CHOSEN.items():
        assert rate == report_tuning.choose_rate(task, name), (task, name)
    assert {name for _, name in trial.CHOSEN} <= {'nope', 'resonance', 'oracle'}
    for task in trial.LONG:
        for name in trial.longer_arms(task):
            rate = trial.LONGER.get((task, name), trial.LONGER_RATES[1])
            assert rate == report_tuning.choose_longer(task, name), (task, name)
        for name in trial.arms(task):
            assert trial.CHOSEN_KNOBS.get((task, name), name) == report_tuning.choose_knob(task, name), (task, name)


def test_muon_has_the_rates_that_were_chosen_on_text_and_passkey():
    assert trial.CHOSEN_MUON
    for (task, name), rate in trial.CHOSEN_MUON.items():
        assert rate == report_tuning.choose_muon(task, name), (task, name)
        tried = report_tuning.runs_at('long_muon_rates', f'{task}-{name}', trial.muon_rates(task, name))
        assert len(tried) > 1 and min(tried) < rate < max(tried), 'the best rate is the last one: try one more'
        knob = trial.CHOSEN_KNOBS.get((task, name), name)
        adamw = report_tuning.tuning_runs(task, knob, report_tuning.choose_rate(task, knob))
        assert tried[rate]['best_loss'] < adamw[0]['best_loss'], 'the config has the better one'


def test_surgery_is_run_at_the_rates_that_were_chosen(monkeypatch):
    train = pytest.importorskip('train')
    from configurator import configure
    monkeypatch.chdir(ROOT)
    for folder, words in trial.commands('surgery', 1):
        task, name = folder.split('/')[-1].split('-')[:2]
        options = configure(dict(vars(train)), words)
        chosen = report_tuning.choose_surgery(task, name) if task in trial.SURGERY_RATES else None
        if chosen:
            assert (options['learning_rate'], options['spectral_lr']) == chosen, (task, name)


# ----------------------------------------------------------------------------------------------------------------------
# The reports

PLACES = [(path, match[2], match[3]) for path in sorted([ROOT / 'README.md', *(ROOT / 'lab').glob('*.md')])
          for match in report.PLACE.finditer(path.read_text())]


@pytest.mark.parametrize('path, name, table', PLACES, ids=[f'{path.name}: {name}' for path, name, _ in PLACES])
def test_tables_in_the_reports_are_those_of_the_rows(path, name, table):
    assert name in report.TABLES and table == report.table(name)


TO_RUN = set() if results.study('other_optimizer') else {'two_optimizers'}  # reports that have no runs yet


@pytest.mark.parametrize('name', sorted(set(report.TABLES) - TO_RUN))
def test_every_report_is_a_table_and_draws_its_figure(name, tmp_path, monkeypatch):
    lines = [line for line in report.table(name).splitlines() if line]
    assert len(lines) > 2 and all(line.startswith('|') for line in lines)
    for block in report.table(name).strip().split('\n\n'):
        assert len({line.count('|') for line in block.splitlines()}) == 1 and len(block.splitlines()) > 2
    monkeypatch.setattr(report, 'FIGURES', tmp_path)
    report.draw(name)
    assert (tmp_path / f'{name}.png').exists() == (name in report.DRAWINGS)


def test_the_figures_are_committed():
    assert {path.stem for path in (ROOT / 'lab/figures').glob('*.png')} >= {*report.DRAWINGS} - TO_RUN


def test_a_report_without_matplotlib_still_prints_its_table(monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.startswith('matplotlib'):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, '__import__', without)
    report.main(['eyes'])
    printed = capsys.readouterr()
    assert printed.out == report.table('eyes') and 'pip install matplotlib' in printed.err


def test_tables_are_written_into_their_places(tmp_path, capsys):
    page = tmp_path / 'page.md'
    page.write_text('a\n<!-- python -m lab.report eyes -->\nold\n<!-- end -->\nb\n'
                    '<!-- python -m lab.bench x -->\nc\n<!-- end -->\n')
    report.main(['--write', str(page)])
    assert page.read_text() == (f'a\n<!-- python -m lab.report eyes -->\n{report.table("eyes")}<!-- end -->\nb\n'
                                '<!-- python -m lab.bench x -->\nc\n<!-- end -->\n')
    page.write_text('<!-- python -m lab.report eye -->\n<!-- end -->\n')
    for arguments, message in ((['--write', str(page)], 'no report eye: there are'),
                               (['eye'], 'no report eye: there are'),
                               (['--write', str(tmp_path / 'none.md')], 'none.md')):
        with pytest.raises(SystemExit):
            report.main(arguments)
        assert message in capsys.readouterr().err


def test_the_table_of_contexts_computed_anew():
    with open(results.RESULTS / 'long.csv', newline='') as file:
        rows = [row for row in csv.DictReader(file) if row['name'] == 'text-tapa']
    values = [float(row['perplexity@2048 sliding']) for row in rows]
    lines = report.table('context').splitlines()
    place = lines[0].split('|').index(' 2048 tokens ')
    line = next(line for line in lines if line.startswith('| as trained, AdamW | tapa | 3 |'))
    assert line.split('|')[place].strip() == f'{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}'


@pytest.mark.parametrize('losses, omegas, expected', [
    ((1.9, 0.001), [[0.1], [HARMONIC]], 'solved, locked'), ((1.9, 0.3), [[0.1], [HARMONIC]], 'plateau, locked'),
    ((1.9, 0.3), [[0.1], [0.5]], 'plateau, no lock-in'), ((1.9, 0.001), None, 'solved'),
    ((1.9, 0.005, 9.0), [[0.1], [0.5], [0.5]], 'diverged, no lock-in')])
def test_signatures(losses, omegas, expected):
    lines = [dict(iter=i, val_loss=loss, seconds=0) for i, loss in enumerate(losses)]
    for line, omega in zip(lines, omegas or ()):
        line['Omega'] = [[omega]]
    row = results.of_training(lines, 7) | dict(chance=1 / 7, locked=0 if omegas else None)
    assert report_bifocal.signature(row) == expected


def test_structure_is_a_difference_of_paired_gains(monkeypatch, capsys):
    accuracy = {'periodic': {'rope': [0.5, 0.6], 'spectral': [0.9, 0.9]},
                'random': {'rope': [0.5, 0.5], 'spectral': [0.6, 0.5]},
                'exponential': {'rope': [0.7, 0.7], 'spectral': [0.7, 0.7]}}

    def group(study, schedule, names):
        return {name: [{'seed': seed, 'block_size': 64, 'headline@64': a, 'headline@128': a}
                       for seed, a in enumerate(accuracy[schedule][name])]
                for name in names if name in accuracy[schedule]}
    monkeypatch.setattr(report_bifocal, 'group', group)
    report_bifocal.structure()
    row = capsys.readouterr().out.splitlines()[2]
    cells = [cell.strip() for cell in row.split('|')[1:-1]]
    assert cells[:5] == ['training length', 'spectral', '+35.0 ± 63.5, p 0.5', '+5.0 ± 63.5, p 1', '+0.0 ± 0.0, p 1']
    assert cells[5].startswith('+30.0 ± ') and cells[6].startswith('+35.0 ± ')


@pytest.mark.parametrize('mean, half, expected', [(-2.0, 1.0, 'reproduced'), (2.0, 1.0, 'not reproduced'),
                                                  (-1.0, 2.0, 'not settled'), (1.0, 2.0, 'not settled')])
def test_a_verdict_needs_an_interval_without_zero(mean, half, expected):
    assert report_text.verdict(mean, half) == expected


def test_an_arm_has_one_colour_in_every_figure():
    assert {figures.color(name) for name in trial.ARMS} == set(figures.COLORS.values())
    assert figures.color('rope-yarn') and figures.color('theta0.25') is None


def test_what_the_readme_says_of_speed_is_in_the_table():
    rows = [line.strip('| ').split(' | ') for line in report.table('speed').splitlines()]
    percent = {row[0]: [round(100 * (float(ratio) - 1)) for ratio in re.findall(r'\((.*?)\)', ' '.join(row))]
               for row in rows if '(' in row[-1]}
    learned, tapa = percent['spectral'] + percent['bifocal'], percent['tapa']
    said = (f'take {min(learned)} to {max(learned)} % more time for a training step than RoPE, '
            f'and TAPA {min(tapa)} to {max(tapa)} %')
    assert said in (ROOT / 'README.md').read_text()


def test_what_the_readme_says_of_the_main_job_is_in_its_row():
    first, row, slower = results.study('main')
    assert (first['task'], row['task']) == ('bio_rotation', 'dyck') and first['attention'] == 'spectral'
    readme = (ROOT / 'README.md').read_text()
    said = f'it trains for {row["seconds"]:.0f} seconds, and without AVX-512 for {slower["seconds"]:.0f}.'
    assert said in readme and row['threads'] == slower['threads'] == '2' and row['seconds'] < 45
    assert all(row[key] == slower[key] for key in results.DEFAULTS)
    assert f'On new strings, {100 * row["headline@64"]:.1f} % of the closers that follow a closer are right' in readme
    assert f'The run trains for {first["seconds"]:.0f} seconds' in readme and first['threads'] == '1'
    train = pytest.importorskip('train')
    from configurator import configure
    shown = configure(dict(vars(train)), [str(ROOT / 'lessons/strand.py'), '--attention=spectral'])
    assert all(first[key] == shown[key] for key in results.DEFAULTS)
    assert 'python train.py lessons/strand.py --attention=spectral\n' in readme
    assert f'at iteration {row["solved_at"]} of {row["iterations"]}' in readme
