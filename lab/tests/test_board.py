"""The board: which rows a cell shows, what a line says, and one way from training to its line."""

import pytest

import train
from configurator import configure
from lab import board, runs
from model import ATTENTIONS, Attention, UserError


def row(task, optimizer, seed, solved_at, beyond=0.5, attention='rope', **options):
    n_layer = dict(dyck=2, text=4).get(task, 1)
    return dict(task=task, optimizer=optimizer, seed=seed, solved_at=solved_at, best_loss=0.2,
                attention=attention, frequencies='geometric', max_iters=500, block_size=64,
                n_layer=n_layer, eval_interval=50, sha256=None,
                **{'beyond@512': beyond}) | options


def tried(optimizer, solved_at, beyond=0.5, seeds=board.CHOOSING, **options):
    """Rows of one setting, a seed for each of `solved_at`."""
    return [row('dyck', optimizer, seed, at, beyond, **options)
            for seed, at in zip(seeds, solved_at)]


def shown(*rows):
    cell, = board.cells_of([row for some in rows for row in some])['rope'].values()
    return board.show('dyck', cell)


def test_most_runs_solved_then_fewest_updates_are_chosen():
    sure, quick = tried('muon', [300, 350, 400], 0.9), tried('adamw', [100, 100, None], 0.1)
    assert shown(sure, quick) == '350 / 90 (3 of 3)*'
    slow = tried('adamw', [400, 400, 400], 0.1)
    assert shown(sure, slow) == '350 / 90 (3 of 3)*'


def test_settings_that_differ_by_less_than_a_validation_are_pooled():
    muon, adamw = tried('muon', [100, 100, 100], 0.5), tried('adamw', [100, 150, 100], 1.0)
    for some in muon:
        some['best_loss'] = 1e-6  # solved is solved
    assert shown(muon, adamw) == '100 / 75 (6 of 6)*'
    later = tried('adamw', [150, 150, 150], 1.0)
    assert shown(muon, later) == '100 / 50 (3 of 3)*'


def test_where_nothing_is_solved_losses_within_a_hundredth_are_pooled():
    muon = tried('muon', [None] * 3, 0.2, best_loss=1.38)
    assert shown(muon, tried('adamw', [None] * 3, 0.4, best_loss=1.385)) == '- / 30 (0 of 6)*'
    assert shown(muon, tried('adamw', [None] * 3, 0.4, best_loss=1.30)) == '- / 40 (0 of 3)*'


def test_runs_that_diverged_have_no_row_and_solve_nothing():
    surer, sooner = tried('muon', [300, 300, None], 0.9), tried('adamw', [100], 0.1)
    assert shown(surer, sooner) == '300 / 90 (2 of 3) quick'


def test_seeds_that_choose_do_not_report():
    muon, adamw = tried('muon', [200] * 3, 0.1), tried('adamw', [300] * 3, 0.2)
    new = tried('muon', [400, 400, 400, None, 400], 0.3, board.REPORTED)
    # better ones of the setting that was not chosen change nothing
    other = tried('adamw', [50] * 5, 0.9, board.REPORTED)
    assert shown(muon, adamw, new, other) == '400 / 30 (4 of 5)'
    assert not set(board.CHOOSING) & set(board.REPORTED)


def test_a_cell_without_a_choice_says_so():
    assert shown(tried('muon', [100] * 3, 0.7)) == '100 / 70 (3 of 3) quick'
    assert shown(tried('muon', [100], 0.7), tried('adamw', [100], 0.7)) == '100 / 70 (2 of 2) quick'


def test_layers_tell_two_columns_apart():
    one, two = row('lag', 'muon', 0, 100), row('lag', 'muon', 0, 50, n_layer=2)
    found = board.cells_of([one, two])['rope']
    assert found['lag'].rows == [one] and found['lag_2'].rows == [two]
    assert 'n_layer=2' in board.options_of('rope', 'lag_2', 'muon')


ROWS = [
    *tried('muon', [300, 350, 400], 0.95), *tried('adamw', [None] * 3),
    row('sum:modulus=2,start=1', 'muon', 0, None), row('lag', 'muon', 0, 200, 0.4),
    row('text', 'muon', 0, None, block_size=256, **{'loss@256': 1.523, 'loss@2048': 2.1}),
    row('lag', 'muon', 0, None, attention='fox,nope', frequencies='partial:keep=0'),
]


def test_a_line_has_a_cell_for_each_task():
    header, lines = board.table(board.cells_of(ROWS), board.COLUMNS[1])
    rope, fox = (dict(zip(header, line)) for line in lines)
    assert rope == dict(way='rope', lag='200 / 40 (1 of 1) quick', bio_rotation='', modulo='',
                        parity='- / 50 (0 of 1) quick', dyck='350 / 95 (3 of 3)*', passkey='',
                        text='1.52 / 2.10 (1) quick')
    assert fox['way'] == 'fox,nope@partial:keep=0' and fox['lag'] == '- / 50 (0 of 1) quick'


def test_the_sentence_says_what_is_solved_and_how_far_it_holds():
    cells = board.cells_of(ROWS)['rope']
    assert board.sentence('rope', cells) == (
        'rope solves lag, dyck; it does not solve parity; it has 90 % right at 8 L on dyck.')
    # where nothing is left to say, nothing is said
    assert board.sentence('path', dict(parity=board.Cell([row('parity', 'muon', 0, 50)]))) == (
        'path solves parity.')
    assert board.sentence('nope', {}) == 'nope has no rows of a task to solve.'


def test_rows_of_your_own_have_a_line_of_their_own(monkeypatch, capsys):
    own = [row('dyck', 'muon', 0, 50, 0.7)]
    monkeypatch.setattr(board, 'read_table',
                        lambda path, missing: ROWS if path == board.STORED else own)
    monkeypatch.setattr(board, 'fill', lambda *arguments: None)
    monkeypatch.setattr(board, 'cost', lambda way: '')  # it takes seconds to measure
    board.main(['rope@geometric', 'nope', '--tasks', 'dyck'])
    out = capsys.readouterr().out
    assert '\n| rope | 200 / 40 (1 of 1) quick |' in out and '| 350 / 95 (3 of 3)* |' in out
    assert '\n| rope (yours) |  |  |  |  | 50 / 70 (1 of 1) quick |' in out
    assert 'rope solves dyck' in out and 'nope has no rows' in out


def test_a_run_that_diverges_does_not_stop_the_others(monkeypatch, capsys):
    calls = []

    def sweep(words):
        calls.append(words)
        if 'optimizer=muon' in words:
            raise UserError('1 of 1 runs came to nothing')

    monkeypatch.setattr(board.sweep, 'main', sweep)
    monkeypatch.setattr(board, 'guess_seconds', lambda *arguments: 60)
    board.fill(['rope@partial:keep=0.5'], 'x.csv', ['lag'], board.SETTINGS)
    assert [words[0] for words in calls] == 2 * ['x.csv'] and 'seed=0 1 2' in calls[1]
    assert {'attention=rope', 'frequencies=partial:keep=0.5', 'rope_base=1000'} <= {*calls[1]}
    assert 'muon: 1 of 1 runs came to nothing' in capsys.readouterr().err


def test_the_text_of_another_python_is_left_out(monkeypatch, capsys):
    class Text:
        def record(self):
            return dict(sha256='abc')

    monkeypatch.setattr(board, 'make_task', lambda name: Text())
    rows = [row('text', 'muon', 0, None, sha256='abd'), row('lag', 'muon', 0, 1)]
    assert board.other_text(['lag', 'text'], rows) and 'abd' in capsys.readouterr().err
    assert not board.other_text(['lag'], rows) and not board.other_text(['text'], rows[1:])
    rows[0]['sha256'] = 'abc'
    assert not board.other_text(['text'], rows) and capsys.readouterr().err == ''


def test_an_attention_of_your_own_gets_its_line_with_one_command(tmp_path, monkeypatch, capsys):
    class Mine(Attention):
        pass

    monkeypatch.chdir(tmp_path)  # runs go to out/
    monkeypatch.setattr(board, 'STORED', tmp_path / 'stored.csv')
    monkeypatch.setitem(ATTENTIONS, 'mine', Mine)
    tiny = 'n_head=1 n_embd=8 block_size=16 batch_size=2 eval_sequences=4 max_iters=2'
    monkeypatch.setattr(board, 'TASKS', {'lag': f'task=lag n_layer=1 {tiny}'})
    command = ['mine', '--table', 'mine.csv', '--tasks', 'lag']
    board.main(command)
    first = capsys.readouterr().out
    assert 'mine: ' in first and '0 parameters more' in first
    assert '1 cells: at most about ' in first and '1 of 1 cells done' in first
    assert '\n| mine (yours) | - / ' in first and 'mine does not solve lag.' in first
    table = (tmp_path / 'mine.csv').read_text()
    chosen = board.choose(board.settings_of(runs.read_table('mine.csv'), 'mine', 'lag'))
    assert table.count('\n') == 1 + 3 * len(board.SETTINGS) + 5 * len(chosen)
    board.main(command)  # again: nothing is left to train
    assert 'at most about 0 min' in capsys.readouterr().out
    assert (tmp_path / 'mine.csv').read_text() == table
    with pytest.raises(UserError, match="attention='nine'"):
        board.main(['nine'])


def test_the_figure_has_the_stored_cells_and_below_them_yours():
    plt = pytest.importorskip('matplotlib.pyplot')
    cells = board.cells_of(ROWS)
    figure = board.draw(plt, cells, {'mine': cells['rope']})
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    plt.close(figure)
    assert labels == ['RoPE', 'fox,nope@partial:keep=0', 'mine']


def test_the_figure_was_drawn_from_the_rows_as_they_are():
    assert board.digest().encode() in board.FIGURE.read_bytes()


def test_every_stored_row_is_a_command_of_today():
    for stored in runs.read_table(board.STORED):
        words = runs.shlex.split(runs.command(stored))[2:]
        options, _ = configure(dict(vars(train)), words)
        assert {name: options[name] for name in runs.options_of(stored)} == runs.options_of(stored)
