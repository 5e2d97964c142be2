"""The board: which rows a cell shows, and one way from training to its line."""

import pytest

import train
from configurator import configure
from lab import board, plot, runs
from lab.tests.conftest import ROOT
from model import ATTENTIONS, Attention, UserError

TEXT = board.TASKS['text'].split()[0].removeprefix('task=')


def row(task, optimizer, seed, solved_at, beyond=0.5, attention='rope', **options):
    n_layer = 2 if task in ('dyck', TEXT) else 1
    return dict(task=task, optimizer=optimizer, seed=seed, solved_at=solved_at, best_loss=0.2,
                attention=attention, frequencies='geometric', max_iters=500, block_size=64,
                n_layer=n_layer, eval_interval=50, **{'beyond@512': beyond}) | options


def tried(optimizer, solved_at, beyond=0.5, seeds=board.CHOOSING, **options):
    """Rows of one setting, a seed for each of `solved_at`."""
    return [row('dyck', optimizer, seed, at, beyond, **options)
            for seed, at in zip(seeds, solved_at)]


MUON = tried('muon', [300, 350, 400], 0.9)
NONE = tried('muon', [None] * 3, 0.2, best_loss=1.38)


@pytest.mark.parametrize('muon, adamw, expected', [
    # more runs that solve it, then fewer updates
    (MUON, tried('adamw', [100, 100, None], 0.1), '350 / 90 (3 of 3) M*'),
    (MUON, tried('adamw', [400, 400, 400], 0.1), '350 / 90 (3 of 3) M*'),
    # a difference below a validation, and where nothing is solved of 0.01 nats, is none
    (MUON, tried('adamw', [300, 350, 350], 0.1, best_loss=1.0), '350 / 50 (6 of 6) AM*'),
    (NONE, tried('adamw', [None] * 3, 0.4, best_loss=1.385), '- / 30 (0 of 6) AM*'),
    (NONE, tried('adamw', [None] * 3, 0.4, best_loss=1.30), '- / 40 (0 of 3) A*'),
    # runs that were not made, or diverged
    (MUON, tried('adamw', [100], 0.1), '350 / 90 (3 of 3) M incomplete'),
    (MUON[:1], [], '300 / 90 (1 of 1) M incomplete'),
    # seeds that choose do not report, and those of what was not chosen change nothing
    (MUON + tried('muon', [400, 400, 400, None, 400], 0.3, board.REPORTED),
     tried('adamw', [500] * 3) + tried('adamw', [50] * 5, 0.9, board.REPORTED),
     '400 / 30 (4 of 5) M')])
def test_a_cell_is_of_the_setting_that_other_seeds_choose(muon, adamw, expected):
    assert board.text_of(board.cells_of(muon + adamw)['rope']['dyck']) == expected
    assert not set(board.CHOOSING) & set(board.REPORTED)


def test_on_text_one_seed_chooses_and_three_report():
    losses = {'loss@256': 1.523, 'loss@2048': 2.1}
    rows = [row(TEXT, 'muon', seed, None, block_size=256, **losses) for seed in (0, 3, 4, 5)]
    other = row(TEXT, 'adamw', 0, None, block_size=256, best_loss=0.9)
    assert board.text_of(board.cells_of([*rows, other])['rope']['text']) == '1.52 / 2.10 (3) M'


def test_a_line_has_a_cell_for_each_task_and_layers_tell_tasks_apart():
    rows = [
        *MUON, row('sum:modulus=2,start=1', 'muon', 0, None), row('lag', 'muon', 0, 200, 0.4),
        row('lag', 'muon', 0, 50, n_layer=2),
        row(TEXT, 'muon', 0, None, block_size=256, **{'loss@256': 1.523, 'loss@2048': 2.1}),
        row('lag', 'muon', 0, None, attention='fox,nope', frequencies='partial:keep=0')]
    cells = board.cells_of(rows)
    found = {}
    for tasks in board.COLUMNS.values():
        for way, *line in board.lines_of(cells, tasks):
            found |= {(way, task): text for task, text in zip(tasks, line) if text}
    assert found == {
        ('rope', 'lag'): '200 / 40 (1 of 1) M incomplete',
        ('rope', 'parity'): '- / 50 (0 of 1) M incomplete',
        ('rope', 'dyck'): '350 / 90 (3 of 3) M incomplete',
        ('rope', 'text'): '1.52 / 2.10 (1) M incomplete',
        ('fox,nope@partial:keep=0', 'lag'): '- / 50 (0 of 1) M incomplete',
        ('rope', 'lag_2'): '50 / 50 (1 of 1) M incomplete'}


def test_an_attention_of_your_own_gets_its_line_with_one_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # runs go to out/
    monkeypatch.setitem(ATTENTIONS, 'mine', Attention)
    tiny = 'n_head=1 n_embd=8 block_size=16 batch_size=2 eval_sequences=4 max_iters=2'
    monkeypatch.setitem(board.TASKS, 'lag', f'task=lag n_layer=1 {tiny}')
    monkeypatch.setitem(board.COLUMNS, 1, ['lag'])
    command = ['mine', '--table', 'mine.csv']
    board.main(command)
    assert '\n| mine (yours) | - / ' in capsys.readouterr().out
    before = (tmp_path / 'mine.csv').read_text()
    found = runs.read_table('mine.csv')
    chosen = board.choose(board.settings_of(found, 'mine', 'lag'))
    assert len(found) == 3 * len(board.SETTINGS) + 5 * len(chosen)
    assert {(row['rope_base'], row['frequencies']) for row in found} == {(1000, 'geometric')}
    board.main(command)  # again: nothing is left to train
    assert (tmp_path / 'mine.csv').read_text() == before
    assert '| lag_2 |' in capsys.readouterr().out
    board.main([*command, '--tasks', 'lag'])
    assert '| lag_2 |' not in capsys.readouterr().out
    with pytest.raises(UserError, match="attention='nine'"):
        board.main(['nine'])
    monkeypatch.setattr(board, 'STORED', tmp_path / 'mine.csv')
    monkeypatch.setattr(board.sweep, 'COMMIT', 'abc-dirty')
    with pytest.raises(UserError, match='commit your files first'):
        board.main(command)
    monkeypatch.setattr(board, 'RECIPE', 'rope_base=100.0')
    with pytest.raises(UserError, match='rope_base=1000.0, and the board 100.0'):
        board.main(command)


def test_seeds_that_have_a_row_are_not_trained_on_whatever_device_they_were(tmp_path, monkeypatch):
    rows = [stored for stored in runs.read_table(board.STORED)
            if board.way_of(stored) == 'rope' and board.task_of(stored) == 'lag']
    runs.write_table(tmp_path / 'x.csv', rows)
    calls = []
    monkeypatch.setattr(board.sweep, 'main', calls.append)
    board.fill('rope', 'lag', tmp_path / 'x.csv')
    assert not calls
    runs.write_table(tmp_path / 'x.csv', [one for one in rows if one['seed'] not in (1, 7)])
    board.fill('rope', 'lag', tmp_path / 'x.csv')
    assert [next(word for word in words if word.startswith('seed')) for words in calls] == [
        'seed=1', 'seed=1', 'seed=7']
    assert all('device=cpu' in words for words in calls)


def test_a_row_without_what_a_cell_shows_is_one_line():
    stored = next(one for one in runs.read_table(board.STORED) if one['task'] == 'lag')
    board.check_recipe(stored)
    with pytest.raises(UserError, match='n_embd=32, and the board 64'):
        board.check_recipe(stored | dict(n_embd=32))
    with pytest.raises(UserError, match='not measured at 8 L'):
        board.check_recipe(stored | {'loss@512': None})
    with pytest.raises(UserError, match="no optimizer 'sgd'"):
        board.check_recipe(stored | dict(optimizer='sgd'))


def test_a_run_that_diverges_does_not_stop_the_others(monkeypatch, capsys):
    calls = []

    def sweep(words):
        calls.append(words)
        raise UserError('3 of 3 runs came to nothing')

    monkeypatch.setattr(board.sweep, 'main', sweep)
    board.fill('rope@partial:keep=0.5', 'lag', 'x.csv')
    assert len(calls) == 2 and {'frequencies=partial:keep=0.5', 'seed=0 1 2'} <= {*calls[1]}
    assert 'with muon: 3 of 3 runs came to nothing' in capsys.readouterr().err


def test_the_board_has_a_square_for_each_cell_and_a_line_for_each_kind():
    rows = [*MUON, row('lag', 'muon', 0, 200, 0.95), row('lag', 'muon', 1, None, 0.95),
            row(TEXT, 'muon', 0, None, block_size=256, **{'loss@256': 1.523, 'loss@2048': 2.1}),
            row('lag', 'muon', 0, None, attention='mine')]
    left, right, *_ = board.draw_board(plot.pyplot(), board.cells_of(rows)).axes
    names = ['rotate by fixed angles', 'rope', 'others', 'mine']
    assert [label.get_text() for label in left.get_yticklabels()] == names
    assert [one.get_text() for one in left.texts] == ['95 %, 1/2°', '90 %°', '50 %°']
    assert [one.get_text() for one in right.texts] == ['1.52 / 2.10']


@pytest.mark.parametrize('name', ['board', 'reach'])
def test_a_figure_was_drawn_from_the_rows_as_they_are(name):
    assert plot.digest([board.STORED]).encode() in (ROOT / f'lab/figures/{name}.png').read_bytes()


def test_reach_has_a_panel_for_each_way_that_solves_the_task_and_was_measured_by_length():
    measured = {'headline@64': 1.0, 'beyond@128': 0.9, 'beyond@256': 0.7}
    rows = [row('lag', 'muon', 0, 100, 0.5, **measured), row('lag', 'muon', 1, 50, 0.4, **measured),
            row('lag', 'muon', 0, None, attention='nope', **measured),
            row('lag', 'muon', 0, 100, attention='alibi')]
    figure = board.draw_reach(plot.pyplot(), board.cells_of(rows), 'lag')
    (panel,) = figure.axes
    middle = panel.get_lines()[2]
    assert panel.get_title() == 'rope, n = 2'
    assert dict(zip(*middle.get_data())) == pytest.approx({1: 100, 2: 90, 4: 70, 8: 45})
    with pytest.raises(UserError, match='--reach dyck: no way'):
        board.draw_reach(plot.pyplot(), board.cells_of(MUON), 'dyck')


def test_every_stored_row_is_a_command_of_today():
    for stored in runs.read_table(board.STORED):
        words = runs.shlex.split(runs.command(stored))[2:]
        options, _ = configure(dict(vars(train)), words)
        assert {name: options[name] for name in runs.options_of(stored)} == runs.options_of(stored)
