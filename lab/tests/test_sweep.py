"""lab/sweep.py: a row for each combination of options, and no run twice."""

import itertools
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import train
from configurator import configure
from lab import runs, sweep
from model import UserError

TINY = ('task=modulo:modulus=2 n_layer=1 n_embd=8 n_head=1 block_size=8 batch_size=2 max_iters=4 '
        'warmup_iters=2 eval_interval=2 eval_sequences=8 device=cpu').split()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_each_run_has_a_row_and_is_not_made_twice(capsys, monkeypatch):
    arguments = ['mine.csv', *TINY, 'attention=rope spectral', 'seed=0 1', '--name=x']
    sweep.main([*arguments, '--worker=0/2', '--multiples', '1', '2'])
    monkeypatch.setitem(sys.modules, 'fcntl', None)  # an import of it fails, as on Windows
    sweep.main([*arguments, '--worker=1/2', '--forget'])
    assert '2 runs, 0 have a row' in capsys.readouterr().out
    rows = runs.read_table('mine.csv')
    assert [(row['attention'], row['seed'], row['iter']) for row in rows] == [
        ('rope', 0, 4), ('spectral', 0, 4), ('rope', 1, 4), ('spectral', 1, 4)]
    assert 0 <= rows[0]['beyond@16'] <= 1 and rows[2]['beyond@16'] is None
    assert sorted(path.name for path in Path('out/mine').iterdir()) == [
        'x,attention=rope-0', 'x,attention=spectral-0']
    sweep.main(arguments[:1] + arguments[2:-1] + [TINY[0]])  # in another order
    assert '4 runs, 4 have a row' in capsys.readouterr().out and runs.read_table('mine.csv') == rows
    words = [word.removeprefix('--') for word in runs.command(rows[1]).split()[2:-1]]
    sweep.main(['mine.csv', *words])
    assert '1 runs, 1 have a row' in capsys.readouterr().out
    with pytest.raises(UserError, match='choose another --name'):  # of runs that are forgotten
        sweep.main([*arguments, '--worker=1/2', 'beta1=0.8'])


def test_a_search_ends_when_it_is_solved_and_what_is_kept_along_is_measured():
    sweep.main(['mine.csv', *TINY, 'stop_loss=100'])
    sweep.main(['mine.csv', *TINY, '--along', '--name=whole', '--multiples', '1'])
    early, best, *along = runs.read_table('mine.csv')
    assert early['iter'] == 0 and best['iter'] == 4 and best['override'] == ''
    assert [row['override'] for row in along] == [f'checkpoint={it}.pt' for it in (0, 2, 4)]
    assert along[0]['loss@8'] != along[2]['loss@8']
    # the names that lab.compare and lab.runs look for
    written = {path.name for path in Path('out/mine').glob('whole-*/measure*')}
    assert written == {'measure.json', 'measure_0.json', 'measure_2.json', 'measure_4.json'}
    sweep.main(['mine.csv', *TINY, '--name=later'])
    assert not list(Path('out/mine/later-0').glob('[0-9]*.pt'))  # that sweep keeps no state


@pytest.mark.parametrize('words, message', [
    ('mine.csv attention=rope\u00a0rop', 'attention'), ('mine.csv optimizer=sgd', 'sgd'),
    ('mine.csv seeed=1', 'seed'), ('a/b x=1', 'NAME.csv'),
    ('mine.csv seed', 'name=value'), ('mine.csv seed=1 --worker=2/2', '--worker 2/2'),
    ('other.csv seed=1', 'no table of runs'), ('other.csv/mine.csv seed=1', 'could not write'),
    ('mine.csv seed=1 --multiples nan', '--multiples nan'),
    ('mine.csv seed=1 --multiples 1 0.3', '--multiples 0.3'),
    ('mine.csv seed=1 --multiples 1 0.125', 'needs at least'),
    ('mine.csv task=text --multiples 2 3', 'must divide the longest'),
    ('mine.csv seed=0 0', 'two runs'), ('mine.csv learning_rate=0.001 1e-3', 'two runs'),
    ('mine.csv init_from=a/b a-b --name=x', 'two runs')])
def test_all_is_checked_before_the_first_run(words, message):
    Path('other.csv').write_text('date,commit\n1,2\n', encoding='utf-8')
    with pytest.raises(UserError, match=message):
        table, *more = words.split(' ')
        sweep.main([table, *TINY, *more])
    assert not Path('out').exists()


def test_a_run_that_diverges_does_not_end_the_sweep(monkeypatch, capsys):
    check, losses = train.check_finite, itertools.count()

    def diverge(it, **numbers):
        if 'val_loss' in numbers and next(losses) == 4:  # the second one of the second run
            numbers['val_loss'] = math.nan
        check(it, **numbers)
    monkeypatch.setattr(train, 'check_finite', diverge)
    with pytest.raises(UserError, match='1 of 3 runs came to nothing'):
        sweep.main(['mine.csv', *TINY, 'seed=0 1 2'])
    assert 'loss is nan' in capsys.readouterr().err
    assert [row['seed'] for row in runs.read_table('mine.csv')] == [0, 2]


def test_a_row_of_surgery_has_what_its_model_has(capsys):
    kept = dict(n_head=1, rope_base=100.0, learn='frequency')
    sweep.main(['mine.csv', *TINY, *(f'{name}={value}' for name, value in kept.items()),
                '--name=old'])
    again = [*TINY, 'attention=spectral', 'frequencies=yarn:factor=2',
             'init_from=out/mine/old-{seed}/best.pt', '--name=new']
    sweep.main(['mine.csv', *again])
    old, new = runs.read_table('mine.csv')
    assert new['attention'] == 'spectral'
    for name, value in kept.items():
        assert new[name] == old[name] == value != getattr(train, name)
    capsys.readouterr()
    sweep.main(['mine.csv', *again])
    assert '1 runs, 1 have a row' in capsys.readouterr().out


def put_run(name, *words):
    """The folder of a run where a sweep has its own, with a file of its user, which stays."""
    folder = Path('out/mine', name)
    options, given = configure(dict(vars(train)), [f'--{word}' for word in (*TINY, *words)])
    train.main(SimpleNamespace(**options | dict(out_dir=str(folder))), given)
    (folder / 'notes.txt').write_bytes(b'mine')
    (folder / '9.pt').write_bytes(b'mine')
    return folder


def test_a_sweep_makes_its_run_again_and_replaces_no_other(monkeypatch):
    folder = put_run('x-0')
    sweep.main(['mine.csv', *TINY, '--name=x'])
    before = (folder / 'ckpt.pt').read_bytes()
    with pytest.raises(UserError, match='out/mine/x-0 holds a run that is not of this sweep'):
        sweep.main(['other/mine.csv', *TINY, 'beta1=0.8', '--name=x'])
    monkeypatch.setattr(sys, 'argv', ['there/train.py'])
    put_run('y-0', 'beta1=0.7')
    with pytest.raises(UserError, match='out/mine/y-0 holds a run that is not of this sweep'):
        sweep.main(['mine.csv', *TINY, 'beta1=0.7', '--name=y'])
    assert (folder / 'ckpt.pt').read_bytes() == before


def test_what_is_there_is_not_measured_and_not_forgotten():
    folder = put_run('x-0')
    sweep.main(['mine.csv', *TINY, '--name=x', '--along', '--multiples=1', '--forget'])
    assert [row['override'] for row in runs.read_table('mine.csv')] == [
        '', *(f'checkpoint={it}.pt' for it in (0, 2, 4))]
    assert sorted(path.name for path in folder.iterdir()) == ['9.pt', 'notes.txt']


def test_code_is_dirty_by_any_file_but_a_table(monkeypatch, tmp_path):
    for name in ('lab/sweep.py', 'rows.csv'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b'')
    for words in ('init', 'add .', '-c user.name=a -c user.email=b commit -m c'):
        subprocess.run(['git', *words.split()], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setattr(sweep, '__file__', str(tmp_path / 'lab/sweep.py'))
    monkeypatch.setattr(sweep, 'machine', lambda device: dict(commit='abc-dirty'))
    for name, expected in (('rows.csv', 'abc'), ('lab/sweep.py', 'abc-dirty')):
        (tmp_path / name).write_bytes(b'x')
        assert sweep.code() == expected


def test_a_sweep_that_is_stopped_says_how_it_goes_on(monkeypatch, capsys):
    def stopped(*_):
        sys.exit(130)  # as train.py does after Ctrl-C

    monkeypatch.setattr(sweep.train, 'main', stopped)
    with pytest.raises(SystemExit, match='130'):
        sweep.main(['mine.csv', 'task=lag'])
    assert 'the same command' in capsys.readouterr().err
