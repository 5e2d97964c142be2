"""lab/compare.py: arms, differences, tables; runs that are broken; the options of anybody."""

import json
import math

import numpy as np
import pytest

from configurator import UserError
from lab import compare
from lab.runs import find_period


def write_run(folder, losses=(1.9, 0.4), headline=0.5, result={}, log={}, **options):
    """A run of two validations at iterations 0 and 10, measured at 1 and 2 training lengths."""
    folder.mkdir()
    options = dict(attention='rope', task='modulo', seed=0, block_size=16, max_iters=10) | options
    config = dict(options=options, task=options['task'], sessions=[])
    (folder / 'config.json').write_text(json.dumps(config))
    lines = [dict(iter=10 * i, val_loss=loss) | log for i, loss in enumerate(losses)]
    (folder / 'log.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    cells = {str(length): dict(headline=headline) for length in (16, 32)}
    result = dict(lengths=cells, chance=1 / 7, period=7, frequencies=[], n=8) | result
    (folder / 'eval.json').write_text(json.dumps(result))
    return folder


@pytest.fixture
def write(tmp_path, monkeypatch):
    """write('name', ...) is the folder of a run; figures go to a folder of their own."""
    monkeypatch.chdir(tmp_path)
    return lambda name, **options: write_run(tmp_path / name, **options)


def table(printed, number):
    """The rows of a printed Markdown table, each {column: cell}."""
    tables = [block.splitlines() for block in printed.strip().split('\n\n')]
    header, _, *rows = [line[2:-2].split(' | ') for line in tables[number]]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_seeds_of_an_arm_are_put_together_and_paired_with_those_of_the_baseline(write, capsys):
    for seed, (rope, mine) in enumerate([(0.1, 0.01), (0.2, 0.002), (0.4, 0.04)]):
        write(f'rope-{seed}', seed=seed, losses=[1, rope, 0.5], headline=0.5 + 0.1 * seed)
        write(f'mine-{seed}', seed=seed, losses=[1, mine], attention='mine')
    compare.main([f'{arm}-{seed}' for seed in (2, 0, 1) for arm in ('rope', 'mine')])
    printed = capsys.readouterr().out
    rope, mine = table(printed, 0)
    assert rope['seeds'] == '0, 1, 2' and rope['best validation loss (nats)'] == '0.1, 0.2, 0.4'
    assert rope['median [quartiles]'] == '0.2 [0.15, 0.3]' and rope['log10 against rope'] == ''
    mean, half = np.mean([-1, -2, -1]), 4.302653 * np.std([-1, -2, -1], ddof=1) / math.sqrt(3)
    assert mine['log10 against rope'] == f'{mean:+.2f} ± {half:.2f}'
    assert mine['iterations to 0.01'] == '10, 10, -'
    rope, mine = table(printed, 1)
    assert rope['accuracy at 2x (%)'] == '60.0 ± 10.0'
    assert mine['accuracy at 1x (%)'] == '50.0 ± 0.0'
    assert rope['n'] == '3' and (rope['attention'], mine['attention']) == ('rope', 'mine')


def test_a_loss_of_exactly_0_has_a_logarithm(write, capsys):
    compare.main([str(write('a', losses=[1, 0.0])), str(write('b', attention='b', losses=[1, 1]))])
    assert table(capsys.readouterr().out, 0)[1]['log10 against rope'] == '+9.00'


def test_each_option_that_differs_is_a_column_whatever_it_is(write, capsys):
    runs = [write('a', slope=1.5, flavour='x|y'), write('b', slope=2.0, flavour='x|y'),
            write('c', slope=2.0, flavour='z', seed=1, device='cuda', out_dir='c'),
            write('d', result=dict(checkpoint='crystal.pt', overrides=dict(log_scale=4)))]
    compare.main([*map(str, runs), '--baseline', 'slope=2', 'flavour=z'])
    rows = table(capsys.readouterr().out, 0)
    names = ['slope', 'flavour', 'measured checkpoint', 'measured log_scale']
    assert [name for name in rows[0] if name in names] == list(rows[0])[2:6] == names
    assert [row['slope'] for row in rows] == ['1.5', '2', '2', '-']
    assert [row['flavour'] for row in rows] == [r'x\|y', r'x\|y', 'z', '-']
    assert rows[3]['measured checkpoint'] == 'crystal.pt' and rows[3]['measured log_scale'] == '4'


def test_a_baseline_is_one_arm(write, capsys):
    runs = [str(write('a', rate=1.0)), str(write('b', rate=2.0))]
    compare.main(runs)  # two arms of rope: no differences
    assert [row['log10 against rope'] for row in table(capsys.readouterr().out, 0)] == ['', '']
    with pytest.raises(UserError, match='2 arms have that: rope rate=1; rope rate=2'):
        compare.main([*runs, '--baseline', 'attention=rope'])
    with pytest.raises(UserError, match='--baseline rate=3: no run has that'):
        compare.main([*runs, '--baseline', 'rate=3'])
    compare.main([*runs, '--baseline', 'rate=1'])
    assert table(capsys.readouterr().out, 0)[1]['log10 against rate=1'] == '+0.00'


def test_tasks_have_baselines_of_their_own(write, capsys):
    runs = [write(f'{task}-{attention}', task=task, attention=attention, losses=[1, loss])
            for task, attention, loss in [('modulo', 'rope', 0.1), ('modulo', 'nope', 0.01),
                                          ('dyck', 'rope', 0.01), ('dyck', 'nope', 0.1)]]
    compare.main(list(map(str, runs)))
    rows = table(capsys.readouterr().out, 0)
    assert [(row['task'], row['log10 against rope']) for row in rows] == [
        ('dyck', ''), ('dyck', '+1.00'), ('modulo', ''), ('modulo', '-1.00')]
    assert (write('last').parent / 'out/compare.png').read_bytes()[:4] == b'\x89PNG'


def test_accuracy_beyond_the_training_length_is_used_where_it_was_measured(write, capsys):
    def longer(share):
        cells = dict(headline=0.9)
        return dict(lengths={'16': cells, '32': cells | dict(headline_beyond=share),
                             '64': cells | dict(headline_beyond=share / 2)})

    runs = [write('a', result=longer(0.4)), write('b', attention='b', result=longer(0.8)),
            write('c', attention='c')]
    compare.main(list(map(str, runs)))
    printed = capsys.readouterr()
    a, b, c = table(printed.out, 1)
    assert [row['accuracy beyond 1x (%)'] for row in (a, b, c)] == ['30.0', '60.0', '']
    assert [row['beyond 1x against rope'] for row in (a, b, c)] == ['', '+30.0', '']
    assert 'lab.measure' not in printed.err
    compare.main([str(runs[2])])
    assert 'python -m lab.measure also counts' in capsys.readouterr().err


@pytest.mark.parametrize('omegas, expected', [
    ([0.5, 0.9, 0.9], 10), ([0.9, 0.5, 0.9], 20), ([0.9, 0.9, 0.5], None), ([0.9, 0.9, 0.9], 0)])
def test_locked_from_is_the_iteration_from_which_a_pair_stays(omegas, expected):
    harmonic = 2 * math.pi / 7  # 0.8976
    lines = [dict(iter=10 * i, Omega=[[[0.3, -harmonic - 5e-4 if omega == 0.9 else omega]]])
             for i, omega in enumerate(omegas)]
    assert compare.find_lock_in(lines, 7) == expected
    assert compare.find_lock_in(lines, None) is None
    still = [dict(iter=0, Omega=[[[0.0, 2 * math.pi]]])]  # a full rotation a token is none
    assert compare.find_lock_in(still, 7) is None


def test_locked_pairs_are_counted(write, capsys):
    pairs = dict(frequencies=[dict(locked=True), dict(locked=False), dict(locked=True)])
    log = dict(Omega=[[[2 * math.pi / 7]]])
    compare.main([str(write('a', result=pairs, log=log)), str(write('b', attention='b'))])
    learned, other = table(capsys.readouterr().out, 0)
    assert (learned['locked pairs'], learned['locked from iteration']) == ('2', '0')
    assert (other['locked pairs'], other['locked from iteration']) == ('-', '-')


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
                  '{"lengths": {}, "chance": 0}', '{"lengths": {"16": {"headline": 1}}}']}


CASES = [(name, text) for name, texts in BROKEN.items() for text in texts]


@pytest.mark.parametrize('name, content', CASES)
def test_a_broken_run_is_skipped_with_one_line_and_others_are_shown(write, capsys, name, content):
    good, broken = write('good'), write('broken', attention='\x1b[31m')
    (broken / name).write_text(content)
    compare.main([str(good), str(broken)])
    printed = capsys.readouterr()
    skipped = [line for line in printed.err.splitlines() if line.startswith('skipped')]
    assert '| rope' in printed.out and len(skipped) == 1 and str(broken) in skipped[0]
    assert '\x1b' not in printed.err + printed.out
    with pytest.raises(UserError, match='none of these is a finished run with eval.json'):
        compare.main([str(broken)])


@pytest.mark.parametrize('option, value', [
    ('block_size', 0), ('block_size', 10**399), ('seed', -1), ('seed', 1.5), ('x', 10**399),
    ('x', [1]), ('x', {}), ('max_iters', '9')])
def test_a_strange_option_is_a_broken_run(write, option, value):
    with pytest.raises(UserError, match='strange: a file is broken'):
        compare.read_run(write('strange', **{option: value}))


def test_what_is_not_a_finished_run_is_told(write, capsys):
    good, bare, stopped = write('good'), write('bare'), write('stopped', max_iters=11)
    (bare / 'eval.json').unlink()
    compare.main([str(good), str(good), str(bare), str(stopped)])
    printed = capsys.readouterr()
    assert f'skipped {bare}: it has no eval.json' in printed.err
    assert f'skipped {stopped}: it stopped at iteration 10 of 11' in printed.err
    assert [row['seeds'] for row in table(printed.out, 0)] == ['0']  # one that is named twice


def test_text_of_a_stranger_does_not_control_the_terminal(write, capsys):
    compare.main([str(write('a', attention='\x1b[31mred', flavour='$x')),
                  str(write('b', attention='b', flavour='$y$'))])
    printed = capsys.readouterr()
    assert '\x1b' not in printed.out + printed.err and '?[31mred' in printed.out


def test_a_text_is_not_opened_for_its_period():
    assert find_period('text:path=/nowhere') is find_period('text:encoding=nothing') is None
    assert find_period('bio_rotation:period=5') == 5
