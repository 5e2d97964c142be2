"""lab/sweep.py: a row for each combination of options, and no run twice."""

import itertools
import math
import sys
from pathlib import Path

import pytest

import train
from lab import runs, sweep
from model import UserError

TINY = ('task=modulo:modulus=2 n_layer=1 n_embd=8 n_head=1 block_size=8 batch_size=2 max_iters=4 '
        'warmup_iters=2 eval_interval=2 eval_sequences=8 device=cpu').split()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, 'RunFolder', train.RunFolder)  # --along puts another one there


def test_each_run_has_a_row_and_is_not_made_twice(capsys, monkeypatch):
    arguments = ['mine.csv', *TINY, 'attention=rope spectral', 'seed=0 1', '--name=x']
    sweep.main([*arguments, '--worker=0/2', '--multiples', '1', '2'])
    monkeypatch.setitem(sys.modules, 'fcntl', None)  # an import of it fails, as on Windows
    sweep.main([*arguments, '--worker=1/2', '--forget'])
    assert '2 runs, 0 have a row' in capsys.readouterr().out
    rows = runs.read('mine.csv')
    assert [(row['attention'], row['seed'], row['iter']) for row in rows] == [
        ('rope', 0, 4), ('spectral', 0, 4), ('rope', 1, 4), ('spectral', 1, 4)]
    assert 0 <= rows[0]['beyond@16'] <= 1 and rows[2]['beyond@16'] is None
    assert sorted(path.name for path in Path('out/mine').iterdir()) == [
        'x,attention=rope-0', 'x,attention=spectral-0']
    sweep.main(arguments[:1] + arguments[2:-1] + [TINY[0]])  # in another order
    assert '4 runs, 4 have a row' in capsys.readouterr().out and runs.read('mine.csv') == rows
    words = [word.removeprefix('--') for word in runs.command(rows[1]).split()[2:-1]]
    sweep.main(['mine.csv', *words])
    assert '1 runs, 1 have a row' in capsys.readouterr().out
    with pytest.raises(UserError, match='choose another --name'):
        sweep.main([*arguments, 'beta1=0.8'])


def test_a_search_ends_when_it_is_solved_and_what_is_kept_along_is_measured():
    sweep.main(['mine.csv', *TINY, 'stop_loss=100'])
    sweep.main(['mine.csv', *TINY, '--along', '--name=whole', '--multiples', '1'])
    early, best, *along = runs.read('mine.csv')
    assert early['iter'] == 0 and best['iter'] == 4 and best['override'] == ''
    assert [row['override'] for row in along] == [f'checkpoint={it}.pt' for it in (0, 2, 4)]
    assert along[0]['loss@8'] != along[2]['loss@8']
    # the names that lab.compare and lab.runs look for
    written = {path.name for path in Path('out/mine').glob('whole-*/measure*')}
    assert written == {'measure.json', 'measure_0.json', 'measure_2.json', 'measure_4.json'}


def test_a_folder_has_the_options_that_differ_and_those_that_are_no_defaults():
    runs = sweep.plan([*TINY[:1], 'attention=rope spectral', 'seed=7'], Path('mine.csv'), '')
    names = [f'task=modulo-modulus=2,attention={name}-7' for name in ('rope', 'spectral')]
    assert [options['out_dir'] for options, *_ in runs] == [f'out/mine/{name}' for name in names]


@pytest.mark.parametrize('words, message', [
    ('mine.csv attention=rope\u00a0rop', 'attention'), ('mine.csv optimizer=sgd', 'sgd'),
    ('mine.csv seeed=1', 'seed'), ('mine.csv init_from=resume', 'anew'), ('a/b x=1', 'NAME.csv'),
    ('mine.csv seed', 'name=value'), ('mine.csv seed=1 --worker=2/2', '--worker 2/2'),
    ('other.csv seed=1', 'no table of runs')])
def test_all_is_checked_before_the_first_run(words, message):
    Path('other.csv').write_text('date,commit\n1,2\n', encoding='utf-8')
    with pytest.raises(UserError, match=message):
        sweep.main([*words.split(' '), *TINY])
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
    assert [row['seed'] for row in runs.read('mine.csv')] == [0, 2]


def test_a_row_of_surgery_has_what_its_model_has(capsys):
    kept = dict(n_head=1, rope_base=100.0, learn='frequency')
    sweep.main(['mine.csv', *TINY, *(f'{name}={value}' for name, value in kept.items()),
                '--name=old'])
    again = [*TINY, 'attention=spectral', 'init_from=out/mine/old-{seed}/best.pt', '--name=new']
    sweep.main(['mine.csv', *again])
    old, new = runs.read('mine.csv')
    assert new['attention'] == 'spectral'
    for name, value in kept.items():
        assert new[name] == old[name] == value != getattr(train, name)
    capsys.readouterr()
    sweep.main(['mine.csv', *again])
    assert '1 runs, 1 have a row' in capsys.readouterr().out
