"""lab/compare.py: arms, baselines, tables; the options of anybody."""

import pytest

from lab import compare
from lab.tests.test_runs import write_run
from model import UserError


@pytest.fixture
def write(tmp_path, monkeypatch):
    """write('name', ...) is the folder of a run."""
    monkeypatch.chdir(tmp_path)
    return lambda name, **options: write_run(tmp_path / name, **options)


def table(printed, number):
    """The rows of a printed Markdown table, each {column: cell}."""
    tables = [block.splitlines() for block in printed.strip().split('\n\n')]
    header, _, *rows = [line[2:-2].split(' | ') for line in tables[number]]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_seeds_of_an_arm_are_put_together_and_compared_with_the_baseline(write, capsys):
    beyond = {'16': dict(headline=0.9), '32': dict(headline=0.9, headline_beyond=0.4),
              '64': dict(headline=0.9, headline_beyond=0.2)}
    for seed in range(6):
        write(f'rope-{seed}', seed=seed, losses=[1, 0.1, 0.5], headline=0.5 + 0.1 * (seed % 2))
        write(f'mine-{seed}', seed=seed, losses=[1, 0.01 - 0.001 * seed], attention='mine',
              result=dict(lengths=beyond))
    compare.main([f'{arm}-{seed}' for seed in (2, 0, 1, 5, 4, 3) for arm in ('rope', 'mine')])
    printed = capsys.readouterr().out
    rope, mine = table(printed, 0)
    assert list(rope.values())[2:] == ['0, 1, 2, 3, 4, 5', '0 of 6', '- [-, -]', '0.1 [0.1, 0.1]',
                                       '', '']
    assert list(mine.values())[4] == '10 [10, 10]'
    assert list(mine.values())[6:] == 2 * ['no difference shown: 6 seeds to 0 of 6, p 0.062']
    rope, mine = table(printed, 1)
    assert rope['headline at 32 tokens (%)'] == '55.0 ± 5.5' and rope['headline beyond (%)'] == ''
    assert mine['headline beyond (%)'] == '30.0 ± 0.0'


def test_each_option_that_differs_is_a_column_and_a_baseline_is_one_arm(write, capsys):
    runs = [write('a', slope=1.5, flavour='x|y'), write('b', slope=2.0, flavour='x|y'),
            write('c', slope=2.0, flavour='$z', seed=1, device='cuda', out_dir='c'), write('d')]
    words = [*map(str, runs), '--baseline']
    compare.main([*words, 'slope=2', 'flavour=$z'])
    rows = table(capsys.readouterr().out, 0)
    assert list(rows[0])[2:5] == ['slope', 'flavour', 'seeds']
    assert [row['slope'] for row in rows] == ['1.5', '2', '2', '-']
    assert [row['flavour'] for row in rows] == [r'x\|y', r'x\|y', '$z', '-']
    assert (runs[0].parent / 'out/compare.png').read_bytes()[:4] == b'\x89PNG'
    for slope in ('slope=2', 'slope=3'):  # of two arms, and of none
        with pytest.raises(UserError, match=f'{slope}: no run has that, or several arms'):
            compare.main([*words, slope])
    compare.main(words[:-1])  # several arms of rope: nothing is compared
    assert 'loss, against rope' not in table(capsys.readouterr().out, 0)[0]


def test_a_measurement_of_an_earlier_run_in_the_folder_takes_no_losses_away(write, capsys):
    runs = [write('a'), write('b', seed=1)]
    path = runs[0] / 'measure.json'
    path.write_text(path.read_text(encoding='utf-8').replace('"commit": "abc"', '"commit": "abd"'))
    compare.main(list(map(str, runs)))
    assert table(capsys.readouterr().out, 0)[0]['seeds'] == '0, 1'


def test_runs_that_nothing_has_measured_have_their_losses(write, capsys):
    runs = [write('a'), write('b', attention='b')]
    (runs[0] / 'measure.json').unlink()
    compare.main([*map(str, runs)])
    printed = capsys.readouterr().out
    losses = 'loss (nats): median [quartiles]'
    assert [row[losses] for row in table(printed, 0)] == ['0.4', '0.4']
    assert [row['attention'] for row in table(printed, 1)] == ['b']  # that one was
