"""lab/compare.py: arms, baselines, tables; the options of anybody."""

import pytest

from lab import compare
from lab.tests.test_runs import HARMONIC, write_run
from model import UserError

PYPLOT = compare.plot.pyplot


@pytest.fixture
def write(tmp_path, monkeypatch):
    """write('name', ...) is the folder of a run; nothing is drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare.plot, 'pyplot', lambda: None)
    return lambda name, **options: write_run(tmp_path / name, **options)


def table(printed, number):
    """The rows of a printed Markdown table, each {column: cell}."""
    tables = [block.splitlines() for block in printed.strip().split('\n\n')]
    header, _, *rows = [line[2:-2].split(' | ') for line in tables[number]]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_seeds_of_an_arm_are_put_together_and_compared_with_the_baseline(write, capsys):
    for seed in range(6):
        write(f'rope-{seed}', seed=seed, losses=[1, 0.1, 0.5], headline=0.5 + 0.1 * (seed % 2))
        write(f'mine-{seed}', seed=seed, losses=[1, 0.01 - 0.001 * seed], attention='mine')
    compare.main([f'{arm}-{seed}' for seed in (2, 0, 1, 5, 4, 3) for arm in ('rope', 'mine')])
    printed = capsys.readouterr().out
    rope, mine = table(printed, 0)
    assert rope['seeds'] == '0, 1, 2, 3, 4, 5' and rope['solved'] == '0 of 6'
    assert rope['loss (nats): median [quartiles]'] == '0.1 [0.1, 0.1]'
    assert rope['against rope'] == '' and rope['updates until solved'] == '- [-, -]'
    assert mine['updates until solved'] == '10 [10, 10]'
    assert mine['against rope'] == 'sooner: 6 seeds to 0 of 6, p 0.031'
    rope, mine = table(printed, 1)
    assert rope['accuracy at 2x (%)'] == '55.0 ± 5.5'
    assert mine['accuracy at 1x (%)'] == '50.0 ± 0.0'
    assert rope['n'] == '6' and (rope['attention'], mine['attention']) == ('rope', 'mine')


def test_each_option_that_differs_is_a_column_whatever_it_is(write, capsys):
    runs = [write('a', slope=1.5, flavour='x|y'), write('b', slope=2.0, flavour='x|y'),
            write('c', slope=2.0, flavour='$z', seed=1, device='cuda', out_dir='c'),
            write('d', result=dict(checkpoint='crystal.pt', overrides=dict(log_scale=4)))]
    compare.main([*map(str, runs), '--baseline', 'slope=2', 'flavour=$z'])
    rows = table(capsys.readouterr().out, 0)
    assert list(rows[0])[2:5] == ['slope', 'flavour', 'override']
    assert [row['slope'] for row in rows] == ['1.5', '2', '2', '-']
    assert [row['flavour'] for row in rows] == [r'x\|y', r'x\|y', '$z', '-']
    assert rows[3]['override'] == 'checkpoint=crystal.pt log_scale=4'


def test_a_baseline_is_one_arm_of_each_task(write, capsys, monkeypatch):
    runs = [str(write('a', rate=1.0)), str(write('b', rate=2.0)), str(write('c', task='dyck'))]
    compare.main(runs)  # two arms of rope: nothing is compared
    assert 'against rope' not in table(capsys.readouterr().out, 0)[0]
    with pytest.raises(UserError, match='2 arms have that: rope rate=1; rope rate=2'):
        compare.main([*runs, '--baseline', 'attention=rope'])
    with pytest.raises(UserError, match='--baseline rate=3: no run has that'):
        compare.main([*runs, '--baseline', 'rate=3'])
    monkeypatch.setattr(compare.plot, 'pyplot', PYPLOT)
    compare.main([*runs, '--baseline', 'rate=1'])
    cells = [row['against rate=1'] for row in table(capsys.readouterr().out, 0)]
    assert cells == ['', '', 'no difference shown: 0 seeds to 0 of 1, p 1']
    assert (write('last').parent / 'out/compare.png').read_bytes()[:4] == b'\x89PNG'


def test_accuracy_beyond_the_training_length_is_used_where_it_was_measured(write, capsys):
    cells = dict(headline=0.9)
    lengths = {'16': cells, '32': cells | dict(headline_beyond=0.4),
               '64': cells | dict(headline_beyond=0.2)}
    runs = [write('a', result=dict(lengths=lengths)), write('c', attention='c')]
    compare.main(list(map(str, runs)))
    printed = capsys.readouterr()
    assert [row['accuracy beyond 1x (%)'] for row in table(printed.out, 1)] == ['30.0', '']
    assert 'lab.measure' not in printed.err
    compare.main([str(runs[1])])
    assert 'python -m lab.measure also counts' in capsys.readouterr().err


def test_locked_pairs_are_counted(write, capsys):
    pairs = dict(frequencies=[dict(locked=True), dict(locked=False), dict(locked=True)])
    log = dict(Omega=[[[HARMONIC]]])
    compare.main([str(write('a', result=pairs, log=log)), str(write('b', attention='b'))])
    learned, other = table(capsys.readouterr().out, 0)
    assert (learned['locked pairs'], learned['locked from iteration']) == ('2', '0')
    assert (other['locked pairs'], other['locked from iteration']) == ('-', '-')


def test_runs_that_nothing_has_measured_have_their_losses(write, capsys, monkeypatch):
    monkeypatch.setattr(compare.plot, 'pyplot', PYPLOT)
    runs = [write('a'), write('b', attention='b', flavour='$y$')]  # $ is no formula in the figure
    for run in runs:
        (run / 'eval.json').rename(run / 'measure.json')
    assert compare.find_file(runs) == 'measure.json'
    (runs[0] / 'measure.json').unlink()
    compare.main([*map(str, runs)])
    loss = 'loss (nats): median [quartiles]'
    assert [row[loss] for row in table(capsys.readouterr().out, 0)] == ['0.4', '0.4']
