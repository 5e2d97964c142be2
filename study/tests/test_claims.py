"""The choice of settings and the verdicts, on rows made up by hand; the figure of the map."""

import shlex

import pytest

import train
from configurator import configure
from lab.sweep import combinations
from study import claims, figures, questions
from study.tests.conftest import run_of

SLOW, FAST, NEVER = [300, 400, 500], [100, 200, 300], [None, None, None]


@pytest.fixture
def the_map(write):
    """A map with three settings of RoPE, one of Spectral and one of Bifocal, for each task."""
    cells = {
        ('rope', 10000, 'adamw', 0.004): SLOW, ('rope', 10000, 'adamw', 0.008): [50, 60, None],
        ('rope', 100, 'muon', 0.01): FAST, ('rope', 1000, 'muon', 0.01): NEVER,
        ('spectral', 1000, 'muon', 0.02): FAST, ('bifocal', 100, 'adamw', 0.001): FAST,
        ('nope', 10000, 'muon', 0.01): NEVER, ('nope', 10000, 'muon', 0.02): NEVER,
        ('tapa', 10000, 'adamw', 0.002): SLOW}
    rows = [run_of(task, *cell, 23 + i, at) for task in claims.TASKS
            for cell, when in cells.items() for i, at in enumerate(when)]
    # other budgets are no part of the map
    rows.append(dict(run_of('dyck', 'rope', 100, 'muon', 0.04, 23, 10), max_iters=1500))
    rows[-2]['best_loss'] = 0.1  # of a run that never solves it
    write('map', rows)


def test_most_seeds_solved_then_fewest_updates_is_chosen(the_map):
    key, rows = claims.choose('modulo', claims.PAPER)
    assert key == (10000, 'adamw', 0.004)  # not the quicker one that fails a seed
    assert [row['solved_at'] for row in rows] == SLOW
    assert claims.choose('modulo', claims.TUNED)[0] == (100, 'muon', 0.01)
    assert claims.choose('modulo', 'NoPE')[0] == (None, 'muon', 0.01)
    # a setting is solved if most of its seeds are
    lines = claims.settings().splitlines()
    assert lines[2] == '| RoPE | 3 of 4 | 3 of 4 | 3 of 4 |'
    assert lines[5] == '| NoPE | 0 of 2 | 0 of 2 | 0 of 2 |'


def printed(capsys, *arguments):
    """The options of each run of the commands that study.claims prints, as texts."""
    claims.main(arguments)
    for line in capsys.readouterr().out.splitlines():
        words = shlex.split(line)
        assert words[:3] == ['python', '-m', 'lab.sweep']
        for options in combinations([word for word in words[4:] if '=' in word]):
            configure(dict(vars(train)), [f'--{name}={value}' for name, value in options.items()])
            yield options


def test_the_commands_are_those_of_the_choice_and_of_all_settings(the_map, capsys):
    runs = list(printed(capsys, 'verdicts'))
    of_one = [run for run in runs if run['task'] == 'modulo' and run['learning_rate'] == '0.004'
              and run['attention'] == 'rope' and run['optimizer'] == 'adamw']
    assert [run['seed'] for run in of_one] == [str(seed) for seed in range(40, 60)]
    assert all(float(run['rope_base']) == 10000 for run in of_one)
    assert not any('stop_loss' in run for run in runs)  # to the last update
    runs = list(printed(capsys, 'map', '--seeds=23'))
    settings = sum(len(claims.rates(task)) for task in claims.TASKS) * (3 * 3 + 2)
    assert len(runs) == len({tuple(run.items()) for run in runs}) == settings
    rates = {(run['optimizer'], float(run.get('muon_lr', run.get('learning_rate'))))
             for run in runs if run['task'] == 'bio_rotation'}
    assert rates == set(claims.rates('bio_rotation')) and ('adamw', 0.032) in rates


def test_a_claim_is_reproduced_if_the_arm_is_sooner_than_both(the_map, write):
    rows = []
    for task in claims.TASKS:
        when = {('rope', 10000, 'adamw', 0.004): 500, ('rope', 100, 'muon', 0.01): 200,
                ('spectral', 1000, 'muon', 0.02): 100, ('bifocal', 100, 'adamw', 0.001): 300,
                ('nope', 10000, 'muon', 0.01): None, ('tapa', 10000, 'adamw', 0.002): None,
                ('tapa', 10000, 'adamw', 0.001): 1}  # what was not chosen is left out
        rows += [run_of(task, *cell, seed, at) for cell, at in when.items()
                 for seed in range(40, 60)]
    write('verdict', rows)
    _, words, *arms = claims.verdicts().splitlines()[2].strip('| ').split(' | ')
    assert words == ('Spectral: reproduced as speed; '
                     'Bifocal: only against RoPE as the paper has it')
    assert arms[:3] == ['500 (20 of 20)', '200 (20 of 20)', '100 (20 of 20)']
    assert arms[4] == 'never (0 of 20)'
    never = [dict(row, solved_at=None) if row['attention'] == 'rope' else row for row in rows]
    write('verdict', never)
    assert '| reproduced | never (0 of 20) | never (0 of 20) |' in claims.verdicts().splitlines()[2]
    rows = [row for row in rows if row['attention'] != 'spectral']
    rows += [run_of(task, 'spectral', 1000, 'muon', 0.02, seed, 500)
             for task in claims.TASKS for seed in range(40, 60)]
    write('verdict', rows)
    assert 'Spectral: not reproduced; Bifocal: ' in claims.verdicts().splitlines()[2]
    write('verdict', [row for row in rows if row['attention'] != 'bifocal'])
    assert 'Bifocal: not run | 500 (20 of 20) |' in claims.verdicts().splitlines()[2]
    write('verdict', rows)
    full = claims.claims()
    assert '| Modulo | TAPA | 0 of 20 | - [-, -] |' in full
    assert 'later: 0 seeds to 20 of 20' in full


def test_the_map_and_the_verdicts_are_drawn(the_map, write, tmp_path, monkeypatch):
    pytest.importorskip('matplotlib')
    monkeypatch.setattr(figures, 'FIGURES', tmp_path / 'figures')
    write('verdict', [run_of('dyck', 'spectral', 1000, 'muon', 0.02, 40, at)
                      for at in (100, 100, None)])
    figures.main(['map', 'verdicts'])
    for name in ('map', 'verdicts'):
        assert (tmp_path / f'figures/{name}.png').read_bytes()[:4] == b'\x89PNG'


def test_rope_that_is_tuned_may_be_the_one_of_the_paper(write):
    cells = [('rope', 10000, 'adamw', 0.004), ('spectral', 100, 'muon', 0.01)]
    write('map', [run_of(task, *cell, 23, 300) for task in claims.TASKS for cell in cells])
    write('verdict', [run_of(task, *cell, seed, at) for task in claims.TASKS
                      for cell, at in zip(cells, (300, 200)) for seed in range(40, 60)])
    assert len(claims.runs()) == 3 * 2 * 20  # each row once
    _, words, *arms = claims.verdicts().splitlines()[2].strip('| ').split(' | ')
    assert words == 'Spectral: reproduced as speed; Bifocal: not run'
    assert arms[:3] == ['300 (20 of 20)', '300 (20 of 20)', '200 (20 of 20)']


def test_the_questions_share_runs_and_know_the_chosen_rate(write):
    row = run_of('dyck', 'spectral', 1000, 'muon', 0.02, 40, 300) | questions.SHARED
    write('map', [row])
    slow = dict(row, name='furthest', muon_lr=0.005, override='checkpoint=50.pt')
    write('questions', [slow, dict(row, name='parts'), dict(row, name='parts', learn='none')])
    assert len(questions.rows_of('rate')) == 1 and len(questions.rows_of('parts')) == 2
    assert [run['rate'] for run in questions.furthest()] == ['quartered']
