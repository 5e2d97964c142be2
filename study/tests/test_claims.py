"""The choice of settings and the verdicts, on rows made up by hand; the figure of the map."""

import itertools
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
    key, rows = claims.choose('modulo', claims.PLAIN)
    assert key == (10000, 'adamw', 0.004)  # not the quicker one that fails a seed
    assert [row['solved_at'] for row in rows] == SLOW
    assert claims.choose('modulo', claims.TUNED)[0] == (100, 'muon', 0.01)
    assert claims.choose('modulo', claims.TUNED, 'adamw')[0] == (10000, 'adamw', 0.004)
    assert claims.choose('modulo', 'Spectral', 'adamw') == (None, [])  # it did not run
    # a setting is solved if most of its seeds are
    lines = claims.settings().splitlines()
    assert lines[2] == '| RoPE | 2 of 2 | 1 of 2 | 2 of 2 | 1 of 2 | 2 of 2 | 1 of 2 |'
    assert lines[5].startswith('| NoPE | 0 of 0 | 0 of 2 |')


def test_among_equals_the_usual_base_and_the_middle_rate_are_chosen(write):
    """Noise in a loss far below 0.01 decides nothing."""
    cells = [(100, 0.008), (1000, 0.002), (1000, 0.004), (1000, 0.008), (1000, 0.016)]
    rows = [dict(run_of('modulo', 'rope', base, 'adamw', rate, seed, 100), best_loss=rate / 1e4)
            for base, rate in cells for seed in (23, 24)]
    write('map', rows + [run_of('modulo', 'rope', 10000, 'adamw', 0.004, 23, 150)])
    assert claims.choose('modulo', claims.TUNED)[0] == (1000, 'adamw', 0.008)


def test_the_best_of_k_settings_is_the_mean_over_all_choices_of_k():
    values = [0.1, 0.5, 0.5, 0.9, 0.0]
    for k in range(1, 6):
        choices = list(itertools.combinations(values, k))
        assert claims.best_of(values, k) == pytest.approx(sum(map(max, choices)) / len(choices))
    cells = [[dict(solved_at=at) for at in when] for when in (SLOW, [100, None, None], NEVER)]
    assert claims.search(cells, 2) == pytest.approx(100 * (1 + 1 + 1 / 3) / 3)
    assert claims.search(cells, 4) is None


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
    runs = list(printed(capsys, 'map'))
    bases = sum(map(len, claims.BASES.values()))
    settings = sum(len(claims.rates(task)) for task in claims.TASKS) * (bases + 2)
    assert len(runs) == len({tuple(run.items()) for run in runs}) == 3 * settings
    rates = {(run['optimizer'], float(run.get('muon_lr', run.get('learning_rate'))))
             for run in runs if run['task'] == 'bio_rotation'}
    assert rates == set(claims.rates('bio_rotation')) and ('adamw', 0.032) in rates


def rows_with(losses, accuracies):
    return [dict(seed=seed, best_loss=loss, final_accuracy=accuracy)
            for seed, (loss, accuracy) in enumerate(zip(losses, accuracies))]


def test_a_gain_is_the_median_of_pairs_with_its_interval():
    theirs = rows_with([0.5] * 20, [0.5] * 20)
    ours = rows_with([0.5 * 2.0**-i for i in range(1, 21)], [0.5 + i / 100 for i in range(20)])
    test = claims.gain(ours, theirs[::-1])
    assert test['ratio'] == pytest.approx([2**-10.5, 2.0**-15, 2.0**-6])
    assert test['points'] == pytest.approx([9.5, 5, 14])
    assert test['p'] == pytest.approx([2 / 2**20, 2 / 2**19]) and test['n'] == 20


@pytest.mark.parametrize('ratio, points, p, expected', [
    (0.1, 5, 0.01, 'reproduced'), (0.1, 5, 0.06, 'not shown'), (0.1, 0.9, 0.01, 'not shown'),
    (9.0, -5, 0.01, 'contradicted'), (9.0, 5, 0.01, 'not shown')])
def test_a_claim_needs_the_loss_and_a_point_of_accuracy(ratio, points, p, expected):
    lean = [1 if ratio > 1 else -1, 1 if points > 0 else -1]
    test = dict(ratio=[ratio, 0, 0], points=[points, 0, 0], p=[0.001, p], lean=lean)
    assert claims.word(test) == expected and claims.word(None) == 'not run'


def test_a_median_that_the_test_contradicts_is_no_word():
    test = dict(ratio=[0.1, 0, 0], points=[1.0, 0, 0], p=[0.001, 0.01], lean=[-1, -0.44])
    assert claims.word(test) == 'not shown'


def test_arms_are_compared_with_one_optimizer_and_with_the_better_one(the_map, write):
    rows = []
    for task in claims.TASKS:
        cells = {('rope', 10000, 'adamw', 0.004): (0.5, 0.5),
                 ('rope', 100, 'muon', 0.01): (0.1, 0.9),
                 ('spectral', 1000, 'muon', 0.02): (0.001, 1.0),
                 ('bifocal', 100, 'adamw', 0.001): (0.001, 0.905)}
        for cell, (loss, accuracy) in cells.items():
            rows += [dict(run_of(task, *cell, seed, 300), best_loss=loss, final_accuracy=accuracy)
                     for seed in range(40, 60)]
    write('verdict', rows)
    spectral, bifocal = claims.verdicts().splitlines()[2:4]
    # against the plain RoPE, then against the tuned one: AdamW, Muon, the better one
    assert spectral.strip('| ').split(' | ')[2:] == [
        'not run', 'not run', 'reproduced', 'not run', 'reproduced', 'reproduced']
    assert bifocal.strip('| ').split(' | ')[2:] == [
        'reproduced', 'not run', 'reproduced', 'reproduced', 'not run', 'not shown']


def test_the_map_and_the_verdicts_are_drawn(the_map, write, tmp_path, monkeypatch):
    pytest.importorskip('matplotlib')
    monkeypatch.setattr(figures, 'FIGURES', tmp_path / 'figures')
    write('verdict', [run_of('dyck', 'spectral', 1000, 'muon', 0.02, 40, at)
                      for at in (100, 100, None)])
    figures.main(['map', 'verdicts'])
    for name in ('map', 'verdicts'):
        assert (tmp_path / f'figures/{name}.png').read_bytes()[:4] == b'\x89PNG'


def test_the_questions_share_runs(write):
    row = run_of('dyck', 'spectral', 1000, 'muon', 0.02, 40, 300) | questions.SHARED
    write('questions', [dict(row, name='parts')])
    write('answers', [dict(row, name='parts', learn='none')])
    assert len(questions.rows_of('rate')) == 1 and len(questions.rows_of('parts')) == 2
