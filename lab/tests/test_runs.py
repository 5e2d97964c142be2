"""lab/runs.py: a run as a row, whatever its files hold."""

import json
import math

import pytest

from lab import runs
from lab.runs import find_lock_in, find_period, options_of, read_run
from model import UserError

HARMONIC = 2 * math.pi / 7  # the first one of modulo


def write_run(folder, losses=(1.9, 0.4), headline=0.5, result={}, log={}, **options):
    """A run of two validations at iterations 0 and 10, measured at 1 and 2 training lengths."""
    folder.mkdir(parents=True)
    options = dict(attention='rope', task='modulo', seed=0, block_size=16, max_iters=10) | options
    sessions = [dict(commit='abc', date='2026', processor='a CPU', threads=1, torch='2')]
    config = dict(options=options, task=options['task'], sessions=sessions)
    (folder / 'config.json').write_text(json.dumps(config))
    lines = [dict(iter=10 * i, val_loss=loss, seconds=i) | log for i, loss in enumerate(losses)]
    (folder / 'log.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    cells = {str(length): dict(headline=headline) for length in (16, 32)}
    result = dict(lengths=cells, chance=1 / 7, period=7, frequencies=[], n=8) | result
    (folder / 'eval.json').write_text(json.dumps(result))
    return folder


def test_a_row_has_who_it_is_every_option_and_what_came_out(tmp_path):
    lengths = {'16': dict(headline=1, exact=0.9), '32': dict(headline=0.8, headline_beyond=0.7)}
    result = dict(
        lengths=lengths, checkpoint='settled/best.pt', held_shares=True,
        overrides=dict(log_scale=4, rope_base=40000.0),
        frequencies=[dict(locked=True), dict(locked=False)])
    row = read_run(write_run(tmp_path / 'claims/modulo-3', losses=[1.9, 0.01, 0.004], seed=3,
                             result=result, log=dict(Omega=[[[HARMONIC]]])))
    assert [row[column] for column in runs.IDENTITY] == [
        'claims', 'modulo', 3,
        'checkpoint=settled/best.pt log_scale=4 rope_base=40000 held_shares=True']
    assert options_of(row) == dict(attention='rope', task='modulo', block_size=16, max_iters=10)
    assert (row['commit'], row['processor'], row['threads']) == ('abc', 'a CPU', '1')
    assert (row['solved_at'], row['best_loss'], row['lock_in']) == (10, 0.004, 0)
    assert (row['locked'], row['pairs']) == (1, 2)
    assert (row['exact@16'], row['headline@32'], row['beyond@32']) == (0.9, 0.8, 0.7)


def test_a_row_has_what_heads_look_at_and_what_a_crystal_found(tmp_path):
    shares = [[[0.1, 0.5, 0.2, 0.1], [0.2, 0.6, 0.1, 0.0]], [[0.9, 0.0, 0.0, 0.0]]]
    folder = write_run(tmp_path / 's/text-0', result=dict(shares_by_distance=shares))
    row = read_run(folder)
    assert (row['one_back'], row['two_back']) == (0.6, 0.1) and 'found' not in row
    record = dict(period=None, trained=0.25, spectrum={'2': [1.23456, 0.5], '3': [2, 0.1]})
    (folder / 'crystal.json').write_text(json.dumps(record))
    row = read_run(folder)
    assert (row['found'], row['spectrum']) == (None, '0.25 1.235 2')


@pytest.mark.parametrize('omegas, expected', [
    ([0.5, 0.9, 0.9], 10), ([0.9, 0.5, 0.9], 20), ([0.9, 0.9, 0.5], None), ([0.9, 0.9, 0.9], 0)])
def test_locked_from_is_the_iteration_from_which_a_pair_stays(omegas, expected):
    # layers may have learned heads or none, so the lists are not a rectangle
    lines = [dict(iter=10 * i, Omega=[[], [[0.3, -HARMONIC - 5e-4 if omega == 0.9 else omega]]])
             for i, omega in enumerate(omegas)]
    assert find_lock_in(lines, 7) == expected
    assert find_lock_in(lines, None) is None
    still = [dict(iter=0, Omega=[[[0.0, 2 * math.pi]]])]  # a full rotation a token is none
    assert find_lock_in(still, 7) is None


DEEP = '[' * 100_000
LONG = '9' * 400
BROKEN = {
    'config.json': ['{"options": {"max_iters": "\\u001b[31m"}, "task": "x"}',
                    '{"options": {}}', '[]', 'null', '', DEEP, '{"options": {"x": 7}, "task": 7}'],
    'log.jsonl': ['{}\n', '[]\n', f'{{"iter": {LONG}, "val_loss": 1}}\n', DEEP + '\n', '',
                  '{"iter": 10, "val_loss": NaN}\n', '{"iter": 10}\n',
                  '{"iter": 10, "val_loss": 1, "Omega": [["x"]]}\n'],
    'eval.json': ['[]', '{"lengths": {"16": 3}}', '{"lengths": {"16": {"headline": null}}}',
                  DEEP, f'{{"lengths": {{"{LONG}": {{"headline": 1}}}}, "chance": 0}}',
                  f'{{"lengths": {{"16": {{"headline": {LONG}}}}}, "chance": 0}}',
                  '{"lengths": {}, "chance": 0}', '{"lengths": {"16": {"headline": 1}}}',
                  '{"lengths": {"16": {"headline": 1}}, "chance": 0, "perplexity": 7}',
                  '{"lengths": {"16": {"headline": 1}}, "chance": 0, "shares_by_distance": [[1]]}'],
    'crystal.json': ['[]', '{"trained": 1, "period": 7}', '{"trained": 1, "spectrum": {"2": 1}}',
                     '{"trained": "x", "spectrum": {}, "period": 7}']}


@pytest.mark.parametrize('name, content', [
    (name, text) for name, texts in BROKEN.items() for text in texts])
def test_a_broken_run_is_skipped_with_one_line(tmp_path, capsys, name, content):
    good = write_run(tmp_path / 'good')
    broken = write_run(tmp_path / 'broken', attention='\x1b[31m')
    (broken / name).write_text(content)
    assert len(runs.read_runs([good, broken, good])) == 1  # one that is named twice
    printed = capsys.readouterr().err
    skipped = [line for line in printed.splitlines() if line.startswith('skipped')]
    assert len(skipped) == 1 and str(broken) in skipped[0] and '\x1b' not in printed
    with pytest.raises(UserError, match='none of these is a finished run with eval.json'):
        runs.read_runs([broken])


@pytest.mark.parametrize('option, value', [
    ('block_size', 0), ('block_size', 10**399), ('seed', -1), ('seed', 1.5), ('x', 10**399),
    ('x', [1]), ('x', {}), ('max_iters', '9'), ('solved_at', 1), ('name', 'x'),
    ('attention', 1.5)])
def test_a_strange_option_is_a_broken_run(tmp_path, option, value):
    with pytest.raises(UserError, match='strange: a file is broken'):
        read_run(write_run(tmp_path / 'strange', **{option: value}))


def test_what_is_not_a_finished_run_is_told(tmp_path):
    bare, stopped = write_run(tmp_path / 'bare'), write_run(tmp_path / 'stopped', max_iters=11)
    (bare / 'eval.json').unlink()
    with pytest.raises(UserError, match='bare: it has no eval.json'):
        read_run(bare)
    with pytest.raises(UserError, match='stopped: it stopped at update 10 of 11'):
        read_run(stopped)


def test_a_text_is_not_opened_for_its_period():
    assert find_period('text:path=/nowhere') is find_period('text:encoding=nothing') is None
    assert find_period('bio_rotation:period=5') == 5
