"""From a folder to a row, to a CSV and back, and from a row to the command that repeats it."""

import json

import pytest

import train
from configurator import UserError, configure
from study import rows
from study.tests.conftest import PERIOD_7


def test_a_row_holds_every_option_and_its_command_gives_them_back(make_run, results):
    path = make_run(
        'confirm/modulo-spectral-3',
        attention='spectral',
        learn='none',
        rope='harmonic:period=7',
        learning_rate=0.1 + 0.2,
        spectral_shared=True)
    rows.gather('claims', [path])
    row, = rows.read('claims', 'confirm')
    words = rows.command(row)
    options = configure(dict(vars(train)), words[1:])
    logged = json.loads((path / 'config.json').read_text())['options']
    expected = logged | dict(task='modulo', out_dir='out/study/confirm/modulo-spectral-3')
    assert words[0] == 'train.py' and options == expected


@pytest.mark.parametrize('name', sorted(path.stem for path in rows.RESULTS.glob('*.csv')))
def test_every_row_of_the_study_is_a_command_of_today(name):
    for row in rows.read(name):
        options = configure(dict(vars(train)), rows.command(row)[1:])
        kept = {key: value for key, value in options.items() if key not in rows.NO_OPTIONS}
        assert kept == rows.options(row)
        assert options['tapa_scale'] in (1, pytest.approx(6.283185307179586, rel=1e-15))


def test_an_option_that_only_some_runs_have_is_a_column(make_run, results):
    old = make_run('mine/modulo-rope-0')
    config = json.loads((old / 'config.json').read_text())
    del config['options']['tapa_scale']  # of older code, which also had an option that is gone
    config['options']['amplitude_decay'] = 0.0
    (old / 'config.json').write_text(json.dumps(config))
    rows.gather('mine', [old, make_run('mine/modulo-rope-1', own_option='x')])
    first, second = rows.read('mine')
    assert first['own_option'] is None and second['own_option'] == 'x'
    assert '--own_option=x' in rows.command(second)
    words = rows.command(first)
    assert not [word for word in words if word.startswith(('--own', '--amplitude'))]
    assert first['tapa_scale'] == second['tapa_scale']
    config['options']['amplitude_decay'] = 0.3
    (old / 'config.json').write_text(json.dumps(config))
    with pytest.raises(UserError, match='amplitude_decay is an option that is gone'):
        rows.read_run(old)


def test_a_row_survives_its_csv(make_run, results):
    frequencies = [dict(Omega=-PERIOD_7, theta=0.5, locked=True, harmonic=1),
                   dict(Omega=0.01, theta=0.01, locked=False, harmonic=0)]
    path = make_run(
        's/modulo-spectral-0',
        attention='spectral',
        omegas=[0.5, PERIOD_7, -PERIOD_7],
        accuracies=(1.0, 0.123456789),
        result=dict(frequencies=frequencies))
    rows.gather('mine', [path])
    row, = rows.read('mine')
    assert (row['study'], row['name'], row['seed']) == ('s', 'modulo-spectral', 0)
    assert (row['best_loss'], row['solved_at'], row['lock_in']) == (0.004, 20, 10)
    assert (row['locked'], row['pairs'], row['harmonics']) == (1, 2, '1')
    assert row['median_move'] == pytest.approx((PERIOD_7 / 0.5 + 1) / 2)  # it turned over
    assert row['slow_pairs'] == 0.5 and row['accuracy@128'] == 0.1234568
    assert row['threads'] == '1' and row['override'] == '' and row['period'] == 7
    assert rows.at_lengths(row, 'exact') == {64: 0.5, 128: pytest.approx(0.0617284)}


@pytest.mark.parametrize('omegas, expected', [
    ([0.5, PERIOD_7, PERIOD_7 + 5e-4], 10),
    ([PERIOD_7, 0.5, PERIOD_7], 20),  # it left once
    ([PERIOD_7, PERIOD_7, 0.5], None),
    ([7 * PERIOD_7, 7 * PERIOD_7, 1e-4], None)])  # standing still is no harmonic
def test_lock_in_is_from_where_a_pair_stays(omegas, expected):
    lines = [dict(iter=10 * i, Omega=[[[omega]]]) for i, omega in enumerate(omegas)]
    assert rows.find_lock_in(lines, 7) == expected and rows.find_lock_in(lines, None) is None


def test_each_evaluation_is_a_row_of_its_own(make_run, results):
    make_run('s/modulo-rope-0')
    make_run('s/modulo-rope-0', result=dict(overrides=dict(log_scale=16, rope_base=40000.0)))
    make_run('s/modulo-rope-0', result=dict(checkpoint='settled/best.pt', held_shares=True))
    path = make_run('s/modulo-rope-0', result=dict(variants=dict(loop={
        '64': dict(accuracy=0.9, headline=0.9, exact=0.8, headline_beyond=0.3)})))
    assert {row['override'] for row in rows.gather('mine', [path])} == {
        '',
        'log_scale=16 rope_base=40000',
        'checkpoint=settled/best.pt held_shares=True'}
    plain = next(row for row in rows.read('mine') if not row['override'])
    assert plain['exact@64 loop'] == 0.8 and plain['beyond@64 loop'] == 0.3


def test_the_spectrum_of_a_crystal(make_run, results):
    path = make_run('s/modulo-spectral-0')
    spectrum = {'2': [3.0, 0.2], '3': [2, 1]}
    record = dict(period=7, q=14, given=False, trained=0.1, spectrum=spectrum)
    (path / 'crystal.json').write_text(json.dumps(record))
    make_run('s/modulo-spectral-0', result=dict(checkpoint='crystal.pt'))
    crystal, plain = sorted(rows.gather('mine', [path]), key=lambda row: row['override'] == '')
    assert (plain['found'], plain['q'], plain['spectrum']) == (7, 14, '0.1 3 2')
    assert crystal['loss'] == 0.1 and 'spectrum' not in crystal
    (path / 'crystal.json').write_text(json.dumps(record | dict(given=True)))
    assert rows.read_run(path)[0]['found'] is None  # it was told


def test_gathering_replaces_a_run_and_keeps_the_others(make_run, results, capsys):
    for seed in (0, 1):
        make_run(f's/modulo-rope-{seed}')
    rows.main(['mine', *map(str, (results.parent / 's').iterdir())])
    assert 'mine: 2 runs gathered, 2 rows' in capsys.readouterr().out
    again = make_run('s/modulo-rope-1', losses=(1.9, 0.7, 0.6))
    stopped = make_run('s/modulo-rope-0', max_iters=30)
    bare = make_run('s/modulo-rope-2')
    (bare / 'eval.json').unlink()
    rows.main(['mine', str(again), str(stopped), str(bare)])
    losses = {row['seed']: row['best_loss'] for row in rows.read('mine')}
    assert losses == {0: 0.004, 1: 0.6}
    printed = capsys.readouterr().err
    assert 'stopped at iteration 20 of 30' in printed
    assert 'it has no eval.json' in printed
    rows.main(['mine', str(again), '--study', 'other', '--prefix', 'modulo-'])
    assert [row['name'] for row in rows.read('mine', 'other')] == ['rope']
    assert len(rows.read('mine')) == 3
    with pytest.raises(UserError, match='there are mine'):
        rows.read('yours')
