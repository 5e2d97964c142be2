"""The board: which rows a cell shows, what a line says, and one way from training to its line."""

import pytest

from lab import board
from model import ATTENTIONS, Attention, UserError


def row(task, optimizer, seed, solved_at, beyond=0.5, attention='rope', **options):
    return dict(task=task, optimizer=optimizer, seed=seed, solved_at=solved_at, best_loss=0.2,
                attention=attention, frequencies='geometric', max_iters=500, block_size=64,
                **{'beyond@512': beyond}) | options


ROWS = [
    *(row('dyck', 'muon', seed, at, beyond) for seed, at, beyond in [
        (0, 300, 0.9), (1, 350, 0.95), (2, 400, 0.99)]),
    *(row('dyck', 'adamw', seed, at, 1.0) for seed, at in [(0, 100), (1, 100), (2, None)]),
    *(row('sum:modulus=2,start=1', 'muon', seed, 50 if seed == 1 else None) for seed in range(3)),
    row('lag', 'muon', 0, 200, 0.4),
    row('text', 'muon', 0, None, block_size=256, **{'loss@256': 1.523, 'loss@2048': 2.1}),
    row('lag', 'muon', 0, None, attention='fox,nope', frequencies='partial:keep=0'),
]


def test_a_cell_is_of_the_setting_that_more_seeds_solve():
    header, lines = board.table(ROWS)
    assert header == ['way', *board.TASKS]
    rope, fox = (dict(zip(header, line)) for line in lines)
    assert rope == dict(way='rope', lag='200 / 40', bio_rotation='', modulo='', parity='- / 50',
                        dyck='350 / 95', passkey='', text='1.52 / 2.10')
    assert fox['way'] == 'fox,nope@partial:keep=0' and fox['lag'] == '- / 50'


def test_the_sentence_says_what_is_solved_and_how_far_it_holds():
    tasks = board.cells_of(ROWS)['rope']
    assert board.sentence('rope', tasks) == (
        'rope solves dyck, lag. It does not solve parity. At 8 L it has 90 % right on dyck.')


def test_rows_of_your_own_replace_a_stored_cell_and_no_other(monkeypatch, capsys):
    own = [row('dyck', 'muon', 0, 50, 0.7)]
    monkeypatch.setattr(board, 'read_table',
                        lambda path, missing: ROWS if path == board.STORED else own)
    monkeypatch.setattr(board, 'train', lambda *arguments: None)
    board.main(['rope@geometric', 'nope'])
    out = capsys.readouterr().out
    assert '\n| rope | 200 / 40 |  |  | - / 50 | 50 / 70 |' in out
    assert 'rope solves dyck, lag.' in out and 'nope has no rows.' in out


def test_a_run_that_diverges_does_not_stop_the_others(monkeypatch, capsys):
    calls = []

    def sweep(words):
        calls.append(words)
        if 'optimizer=muon' in words:
            raise UserError('1 of 1 runs came to nothing')

    monkeypatch.setattr(board.sweep, 'main', sweep)
    board.train(['rope@partial:keep=0.5'], 'x.csv', ['lag'], board.SETTINGS, (0, 1))
    assert [words[0] for words in calls] == 2 * ['x.csv'] and 'seed=0 1' in calls[1]
    assert {'attention=rope', 'frequencies=partial:keep=0.5', 'rope_base=1000'} <= {*calls[1]}
    assert 'muon: 1 of 1 runs came to nothing' in capsys.readouterr().err


def test_an_attention_of_your_own_gets_its_line_with_one_command(tmp_path, monkeypatch, capsys):
    class Mine(Attention):
        pass

    monkeypatch.chdir(tmp_path)  # runs go to out/
    monkeypatch.setattr(board, 'STORED', tmp_path / 'stored.csv')
    monkeypatch.setitem(ATTENTIONS, 'mine', Mine)
    tiny = 'n_layer=1 n_head=1 n_embd=8 block_size=16 batch_size=2 eval_sequences=4 max_iters=2'
    monkeypatch.setattr(board, 'TASKS', {name: f'task={name} {tiny}' for name in ('lag', 'dyck')})
    command = ['mine', '--table', 'mine.csv', '--tasks', 'lag']
    board.main(command)
    first = capsys.readouterr().out
    assert 'mine: ' in first and '0 parameters more' in first
    assert '\n| mine | - / ' in first and 'mine solves nothing. It does not solve lag.' in first
    table = (tmp_path / 'mine.csv').read_text()
    assert table.count('\n') == 1 + 3 * len(board.SETTINGS)
    board.main(command)  # again: nothing is left to train
    assert (tmp_path / 'mine.csv').read_text() == table
    with pytest.raises(UserError, match="attention='nine'"):
        board.main(['nine'])
