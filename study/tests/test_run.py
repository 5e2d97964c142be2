"""The runner: combinations of options, a row for each run, and no run twice."""

import pytest

from model import UserError
from study import rows, run

TINY = ['task=modulo:modulus=2', 'n_layer=1', 'n_embd=8', 'n_head=1', 'block_size=8',
        'batch_size=2', 'max_iters=4', 'warmup_iters=2', 'eval_interval=2',
        'eval_sequences=8', 'device=cpu']


def test_combinations_vary_the_last_option_fastest():
    assert run.combinations(['a=1 2', 'b=x y']) == [
        dict(a='1', b='x'), dict(a='1', b='y'), dict(a='2', b='x'), dict(a='2', b='y')]
    with pytest.raises(UserError, match='must be name=value'):
        run.combinations(['a'])


def test_a_study_has_no_run_to_resume():
    with pytest.raises(UserError, match='leaves no run'):
        run.main(['mine', 'init_from=resume'])


def test_each_run_has_a_row_and_is_not_made_twice(results, monkeypatch, capsys):
    monkeypatch.setattr(run, 'RESULTS', results)
    arguments = ['mine', *TINY, 'attention=rope spectral', 'seed=0 1']
    run.main([*arguments, '--worker=0/2', '--reach'])
    run.main([*arguments, '--worker=1/2'])
    assert '2 runs, 0 have a row' in capsys.readouterr().out
    found = rows.read('mine')
    assert [(row['attention'], row['seed']) for row in found] == [
        ('rope', 0), ('spectral', 0), ('rope', 1), ('spectral', 1)]
    assert all(row['updates'] == 4 and row['best_loss'] > 0 for row in found)
    assert 0 <= found[0]['beyond_2L'] <= 1 and found[2]['beyond_2L'] is None
    run.main(arguments)
    assert '4 runs, 4 have a row' in capsys.readouterr().out and len(rows.read('mine')) == 4


def test_a_run_ends_when_it_is_solved(results, monkeypatch):
    monkeypatch.setattr(run, 'RESULTS', results)
    monkeypatch.setattr(run, 'SOLVED', 100.0)
    run.main(['mine', *TINY, 'seed=0'])
    run.main(['mine', *TINY, 'seed=1', '--whole'])
    early, whole = rows.read('mine')
    assert early['updates'] == early['solved_at'] == whole['solved_at'] < whole['updates'] == 4
    assert '--seed=1' in rows.command(whole)
