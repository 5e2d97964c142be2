"""The runner on scripts that leave the files of a run: what it runs, resumes, skips and stops."""

import os
import signal
import subprocess
import sys
import time

import pytest

from study import rows, run
from tests.conftest import ROOT

TRAIN = '''
import pathlib, sys, time
options = dict(word[2:].split('=', 1) for word in sys.argv[1:] if word.startswith('--'))
folder = pathlib.Path(options['out_dir'])
folder.mkdir(parents=True, exist_ok=True)
(folder / 'ckpt.pt').write_text('weights')
with open(folder / 'started', 'a') as file:
    file.write(options.get('init_from', 'scratch') + options.get('overwrite', '') + ' ')
time.sleep(float(options.get('wait', 0)))
assert options['n_head'] == '2', 'n_head=' + options['n_head']
'''
MEASURE = '''
import pathlib, sys
with open(pathlib.Path(sys.argv[1]) / 'measured', 'a') as file:
    file.write(' '.join(sys.argv[2:]) + ';')
'''


@pytest.fixture
def small(tmp_path, monkeypatch, results):
    """A repository of two scripts."""
    (tmp_path / 'lab').mkdir()
    (tmp_path / 'train.py').write_text(TRAIN)
    (tmp_path / 'lab/measure.py').write_text(MEASURE)
    monkeypatch.setattr(run, 'ROOT', tmp_path)
    return tmp_path


def status(*arguments):
    with pytest.raises(SystemExit) as end:
        run.main([*arguments])
    return end.value.code


GRID = ['--config', 'c/one.py', '--grid', 'n_head=2,3', '--into', 'mine']


def test_it_runs_what_is_missing_and_counts_what_fails(small, capsys):
    assert status(*GRID, '-j', '2') == 1
    printed = capsys.readouterr().out
    assert '0 of 2 runs done' in printed and '1 failed' in printed
    good, bad = (small / f'out/study/mine/one-n_head={n}-0' for n in (2, 3))
    assert 'FAILED: see out/study/mine/one-n_head=3-0.txt' in printed
    assert 'n_head=3' in bad.with_name(f'{bad.name}.txt').read_text()
    assert (good / 'measured').read_text() == ';' and not (bad / 'measured').exists()
    assert not good.with_name(f'{good.name}.txt').exists()
    assert status(*GRID, '--match', '*n_head=2*') == 0
    assert '1 of 1 runs done' in capsys.readouterr().out
    assert (good / 'started').read_text() == 'scratch '
    status(*GRID)  # the other one has a checkpoint
    assert (bad / 'started').read_text() == 'scratch resume '
    assert status(*GRID, '--match', '*n_head=2*', '--again') == 0
    assert (good / 'started').read_text() == 'scratch scratchTrue '


def test_each_evaluation_is_done_once(small):
    arguments = [*GRID, '--match=*n_head=2*', '--measure=--n=4']
    assert status(*arguments) == 0 and status(*arguments, '--measure=--n=8 --split=test') == 0
    folder = small / 'out/study/mine/one-n_head=2-0'
    assert (folder / 'measured').read_text() == '--n=4;--n=8 --split=test;'
    assert (folder / 'started').read_text() == 'scratch '


def test_a_grid_is_every_config_point_and_seed(small, capsys):
    run.main(['--config', 'c/a.py', 'c/b.py', '--seeds', '0-1,5', '--into', 'mine', '--print',
              '--grid', 'rope=yarn:factor=4', 'x=1,2', '--max_iters=7', '--crystallise=--settle=3'])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 2 * 3
    folder = 'out/study/mine/a-rope=yarn-factor=4-x=1-0'
    assert lines[0] == (
        f'python train.py c/a.py --max_iters=7 --rope=yarn:factor=4 --x=1 --seed=0 '
        f'--out_dir={folder} && python -m lab.crystallise {folder} --settle=3 '
        f'&& python -m lab.measure {folder}')


def test_rows_are_repeated_as_they_were_measured(small, make_run, capsys):
    paths = [make_run('s/modulo-rope-0'),
             make_run('s/modulo-rope-0', result=dict(overrides=dict(log_scale=16))),
             make_run('s/modulo-rope-0', result=dict(checkpoint='crystal.pt'))]
    rows.gather('mine', paths[:1])
    run.main(['--repeat', 'mine', '--print'])
    line, = capsys.readouterr().out.splitlines()
    commands = line.split(' && ')
    folder = 'out/study/s/modulo-rope-0'
    measure = f'python -m lab.measure {folder} --split=test --n=8 --multiples 1 2'
    assert commands[1:] == [measure, f'{measure} --override log_scale=16']
    assert commands[0].startswith('python train.py --init_from=scratch ')


@pytest.mark.parametrize('arguments, message', [
    (['--into', 'x'], 'give --config and --into'), (['--config', 'a.py'], 'give --config'),
    ([*GRID, '--repeat', 'x'], 'give --config'), ([*GRID, '-j', '0'], '--jobs'),
    ([*GRID, 'a.py'], 'written --key=value'), ([*GRID, '--seeds', '3-'], 'write seeds as'),
    ([*GRID, '--seeds', 'a'], 'write seeds as')])
def test_it_refuses_what_it_cannot_run(small, capsys, arguments, message):
    assert status(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(os.name == 'nt', reason='Ctrl-C is another signal there')
def test_ctrl_c_stops_the_runner(small):
    code = ('import pathlib, signal, sys; from study import run; '
            'signal.signal(signal.SIGINT, signal.default_int_handler); '  # not so in background
            'run.ROOT = pathlib.Path(sys.argv[1]); run.main(sys.argv[2:])')
    arguments = ['--config', 'a.py', '--into', 'mine', '--seeds=0-3', '--n_head=2', '--wait=30']
    process = subprocess.Popen(
        [sys.executable, '-c', code, str(small), *arguments, '-j', '2'], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    started = [small / f'out/study/mine/a-{seed}/started' for seed in range(4)]
    try:
        for _ in range(600):
            if all(path.exists() for path in started[:2]):
                break
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all
        printed, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130 and 'save where they are' in printed
    assert [path.exists() for path in started] == [True, True, False, False]


def test_no_run_starts_after_one_that_ctrl_c_has_ended(monkeypatch):
    begun = []

    def interrupted(folder, *_):
        begun.append(folder)
        raise KeyboardInterrupt
    monkeypatch.setattr(run, 'run', interrupted)
    with pytest.raises(SystemExit) as end:
        run.run_all(dict.fromkeys('abc', []), 1, again=False)
    assert begun == ['a'] and end.value.code == 130
