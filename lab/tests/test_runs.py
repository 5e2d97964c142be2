"""lab/runs.py: from the files of a run to a row, to a CSV, and back to the command of the run."""

import json
import math

import pytest

import checkpoint
import train
from configurator import configure
from lab import measure, runs
from lab.runs import find_lock_in, read_run
from model import UserError

HARMONIC = 2 * math.pi / 7  # the first one of modulo
MACHINE = dict(commit='abc', date='2026', processor='a CPU', cpu_capability='AVX2', threads=1,
               torch='2')


def write_run(folder, losses=(1.9, 0.4), headline=0.5, result={}, log={}, own={}, **options):
    """A run of validations at iterations 0, 10, ..., measured at 1 and 2 training lengths."""
    folder.mkdir(parents=True)
    options = dict(attention='rope', task='modulo', seed=0, block_size=16, max_iters=10) | options
    config = dict(options=options, model_args=own, task=options['task'], sessions=[MACHINE])
    (folder / 'config.json').write_text(json.dumps(config))
    lines = [dict(iter=10 * i, val_loss=loss, val_acc=i / 10, seconds=i) | log
             for i, loss in enumerate(losses)]
    (folder / 'log.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    cells = {str(length): dict(headline=headline) for length in (16, 32)}
    best = 10 * max(i for i, loss in enumerate(losses) if loss == min(losses))
    result = dict(checkpoint='best.pt', iter=best, run=MACHINE, block_size=16, lengths=cells,
                  chance=1 / 7, split='test', period=7, frequencies=[], n=8) | result
    (folder / 'measure.json').write_text(json.dumps(result))
    return folder


def test_a_row_has_who_it_is_every_option_and_what_came_out(tmp_path):
    lengths = {'16': dict(headline=1, exact=0.9), '32': dict(headline=0.8, headline_beyond=0.7)}
    result = dict(
        lengths=lengths, checkpoint='crystal.pt', overrides=dict(log_scale=4, rope_base=40000.0),
        eyes=dict(spectral=dict(headline=0.2)), frequencies=[dict(locked=True), dict(locked=False)],
        shares_by_distance=[[[0.1, 0.5, 0.2], [0.2, 0.6, 0.1]], [[0.9, 0.0, 0.0]]])
    folder = write_run(tmp_path / 'claims/modulo-3', losses=[1.9, 0.01, 0.004, 0.1], seed=3,
                       result=result, log=dict(Omega=[[[HARMONIC]]]), max_iters=30,
                       rope_base=10000.0, own=dict(rope_base=100.0, vocab_size=9))
    row = read_run(folder, 'measure.json')
    assert [row[column] for column in runs.IDENTITY] == [
        'claims', 'modulo', 3, 'checkpoint=crystal.pt log_scale=4 rope_base=40000']
    # those of the model are the model's own
    assert runs.options_of(row) == dict(attention='rope', task='modulo', block_size=16,
                                        max_iters=30, rope_base=100.0)
    expected = dict(MACHINE, threads='1', solved_at=10, best_loss=0.004, final_loss=0.1, iter=30,
                    seconds=3, final_accuracy=0.3, lock_in=0, locked=1, pairs=2, one_back=0.6,
                    two_back=0.1)
    expected |= {'exact@16': 0.9, 'headline@32': 0.8, 'beyond@32': 0.7, 'closed_spectral@16': 0.2}
    assert expected.items() <= row.items()


@pytest.mark.parametrize('omegas, expected', [
    ([0.5, 0.9, 0.9], 10), ([0.9, 0.5, 0.9], 20), ([0.9, 0.9, 0.5], None), ([0.9, 0.9, 0.9], 0)])
def test_locked_from_is_the_iteration_from_which_a_pair_stays(omegas, expected):
    # layers may have learned heads or none, so the lists are not a rectangle
    lines = [dict(iter=10 * i, Omega=[[], [[0.3, -HARMONIC - 5e-4 if omega == 0.9 else omega]]])
             for i, omega in enumerate(omegas)]
    assert find_lock_in(lines, 7) == expected and find_lock_in(lines, None) is None


def test_a_run_has_ended_when_its_updates_are_done_or_its_search_is(tmp_path):
    with pytest.raises(UserError, match='stopped: its training has not ended'):
        read_run(write_run(tmp_path / 'stopped', max_iters=11))
    solved = write_run(tmp_path / 'solved', max_iters=11, losses=[1, 0.009], stop_loss=0.01)
    assert read_run(solved)['iter'] == 10


@pytest.mark.parametrize('checkpoint, iteration', [('best.pt', 20), ('ckpt.pt', 30)])
def test_a_result_of_another_state_is_refused(tmp_path, checkpoint, iteration):
    for measured, name in [(iteration, 'good'), (10, 'old')]:  # best.pt: the last of the least
        write_run(tmp_path / name, losses=[1, 0.5, 0.5, 0.7],
                  result=dict(checkpoint=checkpoint, iter=measured))
    assert read_run(tmp_path / 'good', 'measure.json')['n'] == 8
    with pytest.raises(UserError, match=f'of update 10, and {checkpoint} is at {iteration}'):
        read_run(tmp_path / 'old', 'measure.json')


def test_a_run_never_has_what_was_measured_of_the_one_that_it_replaced(
        run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checkpoint, 'machine', lambda device: MACHINE)  # both in the same second
    folder = run().train('--task=modulo', '--attention=rope').folder
    measure.main([str(folder), '--n=4', '--device=cpu', '--multiples=1'])
    old = (folder / 'measure.json').read_bytes()
    run().train('--task=modulo', '--attention=nope', '--overwrite=True')
    runs.main([str(tmp_path / 'mine.csv'), str(folder)])
    row, = runs.read_table(tmp_path / 'mine.csv')
    assert row['attention'] == 'nope' and 'loss@16' not in row
    assert 'measure.json is of another run' in capsys.readouterr().err
    assert (folder / 'measure.json').read_bytes() == old


def test_a_result_of_a_run_below_is_of_that_run(tmp_path):
    folder = write_run(tmp_path / 'a', result=dict(checkpoint='settled/best.pt', run={}))
    config = json.loads((folder / 'config.json').read_text()) | dict(sessions=[{}])
    write_run(folder / 'settled')
    with pytest.raises(UserError, match='of another run'):
        read_run(folder, 'measure.json')
    (folder / 'settled/config.json').write_text(json.dumps(config))
    assert read_run(folder, 'measure.json')['override'] == 'checkpoint=settled/best.pt'


def test_a_crystal_is_in_the_rows_of_its_run_alone(tmp_path):
    folder, table = write_run(tmp_path / 'a-0'), tmp_path / 'mine.csv'
    record = dict(checkpoint='best.pt', iter=10, run=MACHINE, period=5, trained=0.25, chance=0.2,
                  spectrum={'2': [1.23456, 0.5], '3': [2, 0.1]})
    (folder / 'crystal.json').write_text(json.dumps(record))
    runs.main([str(table), str(folder)])
    row, = runs.read_table(table)
    assert (row['found'], row['chance'], row['spectrum']) == (5, 0.2, '0.25 1.235 2')
    (folder / 'crystal.json').write_text(json.dumps(record | dict(run='another')))
    with pytest.raises(UserError, match='of another run'):
        runs.main([str(table), str(folder)])


def test_a_row_takes_the_place_of_its_older_self(tmp_path, capsys):
    table, first = tmp_path / 'mine.csv', write_run(tmp_path / 's/x-7', seed=7)
    runs.main([str(table), str(first), str(write_run(tmp_path / 's/y-1', seed=1, own_rate=2))])
    again = write_run(tmp_path / 't/s/y-1', seed=1, losses=[1.9, 0.00123456789], own_rate=3)
    broken = write_run(tmp_path / 's/broken-2', seed=2)
    (broken / 'config.json').write_text('{"options": ')
    runs.main([str(table), str(again), str(broken)])
    assert f'skipped {broken}/config.json cannot be read' in capsys.readouterr().err
    old, new = runs.read_table(table)
    assert (old['name'], old['own_rate']) == ('x', None)
    assert (new['own_rate'], new['best_loss'], new['solved_at']) == (3, 0.001234568, 10)


def test_no_other_process_changes_a_table_while_rows_are_added(tmp_path, monkeypatch):
    fcntl = pytest.importorskip('fcntl')

    def write(path, rows):
        with open(f'{path}.lock', 'rb') as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    monkeypatch.setattr(runs, 'write_table', write)
    runs.add_rows(tmp_path / 'mine.csv', [])


def test_a_command_repeats_the_run_of_a_row(tmp_path, capsys):
    given = ['--attention=spectral', '--learn=none', '--max_iters=10', '--rope_base=1e6']
    options, _ = configure(dict(vars(train)), given)
    runs.main([str(tmp_path / 'mine.csv'), str(write_run(tmp_path / 's/x-0', **options))])
    capsys.readouterr()
    for base in ('1e+06', '1000000.0'):  # as a table shows it, and as a command has it
        runs.main([str(tmp_path / 'mine.csv'), '--commands', f'rope_base={base}', 'seed=0'])
        command = capsys.readouterr().out
        assert configure(dict(vars(train)), runs.shlex.split(command)[2:])[0] == options | dict(
            out_dir='out/again')
    with pytest.raises(UserError, match='atention=rope: no row has that'):
        runs.main([str(tmp_path / 'mine.csv'), '--commands', 'atention=rope'])


def test_what_a_table_writes_it_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(train, 'kind', '', raising=False)  # an option of text; `gone` is no more
    row = read_run(write_run(tmp_path / 'x-0', rope_base=1e6))
    cells = [dict(kind=text) for text in ('1e5', 'True', '7', 'a,"b"')]
    cells += [dict(gone=value) for value in ('010', '1_0', 1, -2.5, 1e-05, True, False, None)]
    rows = [row | cell | dict(name=str(i), commit='1e5') for i, cell in enumerate(cells)]
    runs.write_table(tmp_path / 'mine.csv', rows)
    again = runs.read_table(tmp_path / 'mine.csv')
    for old, new, cell in zip(rows, again, cells, strict=True):
        (name, value), = cell.items()
        assert new[name] == value and type(new[name]) is type(value)
        assert all(new[column] == old[column] for column in ('name', 'commit', 'rope_base'))


def test_two_folders_that_would_be_one_row_are_refused_and_so_is_none(tmp_path):
    folders = [write_run(tmp_path / part / 's/x-0') for part in 'ab']
    with pytest.raises(UserError, match='have one study, name and seed'):
        runs.main([str(tmp_path / 'mine.csv'), *map(str, folders)])
    with pytest.raises(UserError, match='none of these is a finished run'):
        runs.main([str(tmp_path / 'mine.csv'), str(tmp_path / 'typo')])
    assert not (tmp_path / 'mine.csv').exists()


@pytest.mark.parametrize('cut, message', [
    (lambda text: text[:-1], 'a line is cut off'), (lambda text: b'"' + text, 'is no table of'),
    (lambda text: text.replace(b',abc', b'', 1), 'a line is cut off'),
    (lambda text: text.replace(b'seed', b'sed'), 'has no column seed')])
def test_a_table_that_cannot_be_read_stays_as_it_is(tmp_path, cut, message):
    table = tmp_path / 'mine.csv'
    rows = [read_run(write_run(tmp_path / f's/x-{seed}', seed=seed)) for seed in (0, 1)]
    runs.add_rows(table, rows)
    table.write_bytes(cut(table.read_bytes()))
    before = table.read_bytes()
    with pytest.raises(UserError, match=message):
        runs.add_rows(table, rows)
    assert table.read_bytes() == before
