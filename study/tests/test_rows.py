"""From a folder to a CSV and back, and from a row to the command that repeats it."""

import pytest

import train
from configurator import configure
from lab.tests.test_runs import write_run
from model import UserError
from study import rows


def test_gathering_replaces_a_run_and_skips_what_is_broken(tmp_path, results, capsys):
    first = write_run(tmp_path / 's/modulo-0', losses=[1.9, 0.123456789])
    rows.gather('mine', [first, write_run(tmp_path / 's/modulo-1', seed=1, own_option='x')])
    again = write_run(tmp_path / 't/s/modulo-1', seed=1, losses=[1.9, 0.004], own_option='y')
    broken = write_run(tmp_path / 's/broken-2', seed=2)
    (broken / 'log.jsonl').write_text('{}')
    rows.main(['mine', str(again), str(broken), str(tmp_path / 'nowhere')])
    printed = capsys.readouterr()
    assert 'mine: 1 rows gathered' in printed.out and 'skipped' in printed.err
    old, new = rows.read('mine')
    assert (old['name'], old['seed'], old['best_loss']) == ('modulo', 0, 0.1234568)
    assert (new['own_option'], new['best_loss'], new['solved_at']) == ('y', 0.004, 10)
    assert old['own_option'] is None
    with pytest.raises(UserError, match='there are mine'):
        rows.read('yours')


def test_the_command_of_a_row_gives_its_options_back(tmp_path, results):
    given = configure(dict(vars(train)), ['--attention=spectral', '--learn=none', '--seed=7'])
    rows.gather('mine', [write_run(tmp_path / 's/x-7', **(given | dict(max_iters=10)))])
    row, = rows.read('mine')
    command = rows.command(row)
    again = configure(dict(vars(train)), command.split()[2:])
    assert command.startswith('python train.py')
    assert again == given | dict(max_iters=10, out_dir='out/again')


@pytest.mark.parametrize('name', sorted(path.stem for path in rows.RESULTS.glob('*.csv')))
def test_every_row_is_a_command_of_today(name):
    for row in rows.read(name):
        words = rows.command(row).split()[2:]
        options = configure(dict(vars(train)), words)
        assert {name: options[name] for name in rows.options_of(row)} == rows.options_of(row)
