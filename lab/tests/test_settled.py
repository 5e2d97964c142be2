"""The choice between two optimisers, the rule of a verdict, and what is drawn of both; on made-up rows."""

import math
import re
from statistics import median

import numpy as np
import pytest

from lab import compare, report_bifocal, report_settled, results, trial
from lab.compare import best_loss, extrapolation, solved
from lab.results import DEFAULTS, group
from lab.tests.conftest import after
from lab.trial import ROOT

NUMBERS = ('No One Two Three Four Five Six Seven Eight Nine Ten Eleven Twelve Thirteen Fourteen Fifteen Sixteen '
           'Seventeen Eighteen Nineteen Twenty').split()


@pytest.fixture
def rows(monkeypatch):
    """rows(study, {name: {seed: loss}}) puts rows in place of those of a study."""
    studies = {}
    def put(study, losses, **columns):
        made = [DEFAULTS | dict(name=name, seed=seed, best_loss=loss, override='', solved_at=None, chance=0.25,
                                **{'headline@64': 1.0, 'headline@128': 0.5}) | columns
                for name, of_seeds in losses.items() for seed, loss in of_seeds.items()]
        studies[study] = made
    for module in (report_settled, results):
        monkeypatch.setattr(module, 'study', lambda name: studies.get(name, []))
    return put


def test_holm_is_the_step_down_of_the_textbook():
    assert compare.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert compare.holm([0.9, 0.9]) == [1.0, 1.0] and compare.holm([0.02]) == [0.02] and compare.holm([]) == []
    rng = np.random.default_rng(0)  # of 8 true null hypotheses, one is rejected in 5 of 100 worlds
    worlds = [min(compare.holm(list(rng.uniform(size=8)))) < 0.05 for _ in range(4000)]
    assert 0.04 < np.mean(worlds) < 0.06


def test_p_of_students_t_agrees_with_its_interval():
    rng = np.random.default_rng(1)
    for _ in range(50):
        ours = list(rng.normal(0.6, size=7))
        mean, half, _ = compare.paired(ours, [0.0] * 7)
        assert (compare.t_test(ours, [0.0] * 7) < 0.05) == (abs(mean) > half)
    assert compare.t_test([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]) == pytest.approx(0.0742, abs=1e-4)


@pytest.mark.parametrize('mean, half, p, expected', [
    (-1.0, 0.5, 0.01, 'lower'), (-1.0, 0.5, 0.06, 'not settled'), (-1.0, 1.5, 0.04, 'not settled'),
    (1.0, 0.5, 0.01, 'higher'), (1.0, 0.5, 0.06, 'not settled')])
def test_a_verdict_goes_by_the_interval_and_the_adjusted_p(mean, half, p, expected):
    assert report_settled.verdict(dict(mean=mean, half=half, adjusted=p)) == expected


def test_the_better_optimiser_solves_more_seeds_then_has_the_lower_mean_log_loss(rows):
    seeds = trial.TUNING_SEEDS
    rows('optimizers', {'modulo-rope-adamw-0.004': dict(zip(seeds, (1e-6, 1e-6, 0.5))),  # two of three
                        'modulo-rope-adamw-0.008': dict(zip(seeds, (9e-3, 9e-3, 9e-3))),
                        'modulo-rope-muon-0.01': dict(zip(seeds, (1e-3, 9e-3, 9e-3))),
                        'modulo-rope-muon-0.02': dict(zip(seeds[:2], (1e-9, 1e-9)))})  # not tried on all
    assert report_settled.choose_optimizer('modulo', 'rope') == {'muon': 0.01, 'adamw': 0.008}


def test_the_best_two_rates_of_the_first_seeds_go_on(rows):
    first = trial.TUNING_SEEDS[0]
    losses = {0.002: 1e-3, 0.004: 0.3, 0.008: 1e-4, 0.016: 0.2}
    rows('optimizers', {f'modulo-rope-adamw-{rate:g}': {first: loss} for rate, loss in losses.items()}
         | {'modulo-rope-muon-0.01': {first: 1e-9}})
    def go_on(seed):
        return [rate for rate in losses if trial.goes_on(f'modulo-rope-adamw-{rate:g}', seed)]
    assert go_on(first) == list(losses)
    assert go_on(trial.TUNING_SEEDS[1]) == go_on(trial.TUNING_SEEDS[2]) == [0.002, 0.008]


def test_the_chosen_optimisers_are_those_of_the_rule():
    for task, arms in trial.CHOSEN_OPTIMIZER.items():
        for name in set(trial.SWEPT) & set(arms):
            assert list(arms[name].items()) == list(report_settled.choose_optimizer(task, name).items()), (task, name)
        ours = arms[trial.BASELINE.get(task, 'rope')]
        assert all(arms.get(name, ours) == ours for name in ('resonance', 'oracle'))  # RoPE with other frequencies
    for task in trial.CHOSEN_OPTIMIZER:  # the baseline has the benefit of every base
        ropes = {name: report_settled.best_rate(task, name, next(iter(report_settled.choose_optimizer(task, name))))[1]
                 for name in trial.SWEPT if 'rope' in name}
        best = max(ropes, key=lambda name: trial.merit(ropes[name]))
        reported = group('settled', task, {'rope', best})
        assert {len(rows) for rows in reported.values()} == {20} and best != 'rope'
        assert trial.BASELINE.get(task, 'rope') == max(reported, key=lambda name: trial.merit(reported[name]))


def test_what_is_said_of_sign_flips():
    tests = report_settled.tested()
    flips = [compare.paired(*([test['measure'](row) for row in test[arm]] for arm in ('ours', 'theirs')))[2]
             for test in tests]
    by_flips = [report_settled.verdict(dict(test, adjusted=p)) for test, p in zip(tests, compare.holm(flips))]
    synthetic = [test['task'] != 'text' for test in tests]
    same = [ours == report_settled.verdict(test) for ours, test in zip(by_flips, tests)]
    assert same == synthetic and sum(synthetic) == 6
    assert 'the verdicts of the six synthetic claims would be the same.' in (ROOT / 'lab/README.md').read_text()


def test_claims_count_seeds_and_settle_what_differs(rows, monkeypatch, capsys):
    monkeypatch.setattr(report_settled, 'TAPA_SENTENCES', {})
    rows('long', {'text-tapa': {0: 1.0}, 'text-rope': {0: 1.0}})
    seeds = range(12)
    rows('settled', {'modulo-rope': {s: 0.1 + 0.01 * s for s in seeds},
                     'modulo-spectral': {s: 1e-4 + 1e-5 * (s % 3) for s in seeds},
                     'modulo-bifocal': {s: 0.1 * (2 if s % 2 else 0.6) for s in seeds}})
    tests = report_settled.tested()
    assert [test['name'] for test in tests] == ['spectral', 'bifocal']
    assert tests[0]['mean'] == pytest.approx(np.mean([math.log10((1e-4 + 1e-5 * (s % 3)) / (0.1 + 0.01 * s))
                                                      for s in seeds]))
    assert tests[0]['adjusted'] == 2 * tests[0]['p']
    for table in (report_settled.verdicts, report_settled.claims):
        table()
        cells = [line for line in capsys.readouterr().out.splitlines() if line.startswith('| Modulo')]
        assert cells[0].endswith('| lower |') and cells[1].endswith('| not settled |')


def of_claims(task):
    """{arm: rows} of the arms that are in the claims."""
    return report_bifocal.with_better_optimizer(task, 'rope', *report_settled.CLAIMED)


def of_spectral(task):
    """The confirmatory comparison of Spectral with RoPE."""
    return next(test for test in report_settled.tested() if (test['task'], test['name']) == (task, 'spectral'))


def factor(task):
    """By what factor Spectral's loss is lower than RoPE's, the 95 % interval in words."""
    test = of_spectral(task)
    ends = (10 ** -(test['mean'] + sign * test['half']) for sign in (1, -1))
    return ' to '.join(f'{float(f"{end:.2g}"):g}' for end in ends)


def test_what_the_readme_says_of_the_claims_is_in_the_rows():
    readme = (ROOT / 'README.md').read_text()
    arms = {task: of_claims(task) for task in report_settled.SENTENCES}
    easy, dyck = arms['bio_rotation']['rope'] + arms['modulo']['rope'], arms['dyck3']['rope']
    words = f'in {sum(map(solved, easy))} of {len(easy)} runs, and `dyck` in {sum(map(solved, dyck))} of {len(dyck)}.'
    assert words in readme
    usual = group('settled', 'bio_rotation', ('rope',))['rope']
    assert f'base, 10000, it solves `bio_rotation` in {sum(map(solved, usual))} of {len(usual)}.' in readme
    assert f'by a factor of {factor("dyck3")} (95 % interval)' in readme
    longest = [row['headline@512'] for task in arms for row in arms[task]['spectral']]
    assert f"{sum(value >= 0.99 for value in longest)} of Spectral's {len(longest)} runs has 99 %" in readme
    rope, spectral = (median(map(extrapolation, arms['bio_rotation'][name])) for name in ('rope', 'spectral'))
    assert f'Spectral is right in {100 * spectral:.0f} % of the answers' in readme
    assert f'and the tuned RoPE in {100 * rope:.0f} %' in readme
    nope = group('settled', 'dyck3', ('nope',))['nope']
    assert f'solves `dyck` in {sum(map(solved, nope))} of {len(nope)} runs, with the lowest median loss' in readme
    assert all(median(map(best_loss, nope)) < median(map(best_loss, rows)) for rows in arms['dyck3'].values())
    assert all(median(map(extrapolation, nope)) > median(map(extrapolation, rows)) for rows in arms['dyck3'].values())


def paragraph(label):
    """The paragraph of bifocal.md that begins with this task in bold."""
    return after(f'**`{label}`.**', 'lab/bifocal.md')


def test_what_bifocal_md_says_under_the_table():
    words, arms = paragraph('bio_rotation'), of_claims('bio_rotation')
    assert all(map(solved, arms['rope'])) and 'With 1000 all do' in words
    tuning = report_settled.best_rate('bio_rotation', 'rope', 'adamw')[1]
    assert sum(map(solved, tuning)) == 1 and len(tuning) == 3 and 'one of the three tuning seeds does' in words
    needed = {name: [row['solved_at'] for row in rows if solved(row)] for name, rows in arms.items()}
    assert 2 * max(needed['spectral']) < min(needed['rope']) and 'less than half of the updates' in words
    beyond = {name: [100 * extrapolation(row) for row in rows] for name, rows in arms.items()}
    assert all(round(value) in range(45, 52) for value in beyond['rope']) and 'RoPE reads about 48 %' in words
    learned = beyond['spectral'] + beyond['bifocal']
    assert f'Spectral and Bifocal read {min(learned):.0f} to {max(learned):.0f} %' in words
    failed = sorted((best_loss(row) for row in arms['bifocal'] if not solved(row)), reverse=True)
    assert f'{NUMBERS[len(failed)]} seeds of Bifocal stay on the plateaus at ' in words
    assert {f'{loss:.2g}' for loss in failed} == set(re.findall(r'at ([\d.]+) and ([\d.]+) nats', words)[0])
    words, arms = paragraph('dyck'), of_claims('dyck3')
    failed = sum(not solved(row) for row in arms['spectral'])
    assert f'lower by a factor of {factor("dyck3")} (95 % interval)' in words
    assert f'though {NUMBERS[failed].lower()} of its' in words
    words, arms = paragraph('modulo'), of_claims('modulo')
    assert all(map(solved, arms['rope'] + arms['spectral'])) and 'RoPE and Spectral solve all seeds' in words
    assert f'lower by a factor of {factor("modulo")}, with p = {of_spectral("modulo")["adjusted"]:.2g} after' in words
    assert f'by a hair ({max(map(best_loss, arms["spectral"])):.4f})' in words
    gains = [compare.paired(*([100 * extrapolation(row) for row in of_spectral(task)[arm]]
                              for arm in ('ours', 'theirs')))[0] for task in ('bio_rotation', 'dyck3', 'modulo')]
    said = 'by {:.1f} points on `bio_rotation`, {:.1f} on `dyck` and {:.1f} on `modulo`'.format(*gains)
    assert said in (ROOT / 'lab/bifocal.md').read_text()
    failed = sum(not solved(row) for row in arms['bifocal'])
    assert f'Bifocal fails in {NUMBERS[failed].lower()} seeds' in words


def test_what_is_said_of_other_fixed_frequencies():
    words = after("**Fixed frequencies other than RoPE's.**", 'lab/bifocal.md')
    arms = {(task, name): rows for task in trial.CHOSEN_OPTIMIZER
            for name, rows in group('settled', task, ('oracle', 'resonance')).items()}
    n = {key: sum(map(solved, rows)) for key, rows in arms.items()}
    assert {len(rows) for rows in arms.values()} == {10}
    said = 'solves `bio_rotation` in {} of 10 runs and is right at every length. It solves `modulo` in {} of 10.'
    assert said.format(n['bio_rotation', 'oracle'], n['modulo', 'oracle']) in words
    assert all(extrapolation(row) > 0.999 for row in arms['bio_rotation', 'oracle'])
    said = 'solve `bio_rotation` in {} of 10 runs, `dyck` in {} and `modulo` in {}.'
    assert said.format(*(n[task, 'resonance'] for task in ('bio_rotation', 'dyck3', 'modulo'))) in words


def test_what_is_said_of_tapa():
    words, medians = after('**TAPA.** TAPA solves no seed', 'lab/bifocal.md'), []
    for task in ('bio_rotation', 'dyck3', 'modulo'):
        name = trial.BASELINE.get(task, 'rope')
        arms = group('settled', task, ('tapa', name))
        assert len(arms['tapa']) == 10
        assert min(map(best_loss, arms['tapa'])) > max(map(best_loss, arms[name])) and 'the worst seed of RoPE' in words
        assert not any(map(solved, arms['tapa']))
        medians.append(f'{median(map(best_loss, arms["tapa"])):.2g}')
    said = 'median loss is {} nats on `bio_rotation`, {} on `dyck` and {} on `modulo`.'
    assert said.format(*medians) in words
    assert not any(solved(row) for row in results.study('optimizers') if '-tapa-' in row['name'])


def test_how_often_the_verdicts_changed(monkeypatch):
    words, verdicts = after('* There are twenty seeds.', 'lab/bifocal.md'), []
    for n in (5, 10, 20):
        monkeypatch.setattr(report_bifocal, 'group', lambda *study, n=n: {
            name: [row for row in rows if row['seed'] < n] for name, rows in group(*study).items()})
        verdicts.append([report_settled.verdict(test) for test in report_settled.tested() if test['task'] != 'text'])
    at_10, at_20 = (sum(a != b for a, b in zip(*pair)) for pair in zip(verdicts, verdicts[1:]))
    assert f'{NUMBERS[at_10]} of six changed at ten, and {NUMBERS[at_20].lower()} at twenty' in words
    assert [len(of_n) for of_n in verdicts] == [6, 6, 6]


def section(title, document='lab/bifocal.md', level='##'):
    """What stands under a heading, down to the next one of its level."""
    _, found, rest = (ROOT / document).read_text().partition(f'\n{level} {title}\n')
    assert found, title
    return rest.partition(f'\n{level} ')[0]


def test_what_is_said_of_two_optimisers():
    words = section('Do the verdicts depend on the optimiser?')
    runs = {task: dict(zip(('rope', 'spectral', 'bifocal'), arms.values()))
            for task, arms in report_settled.both_optimizers().items()}
    sizes = {len(of_optimizer) for arms in runs.values() for both in arms.values() for of_optimizer in both.values()}
    assert len(sizes) == 1 and f'Each has {NUMBERS[sizes.pop()].lower()} seeds' in words
    solving = lambda task, name, optimizer: sum(map(solved, runs[task][name][optimizer]))
    n = len(runs['dyck3']['rope']['muon'])
    settled = {'adamw': 0, 'muon': 0}
    for task, arms in runs.items():
        for name in report_settled.CLAIMED:
            for optimizer in settled:
                mean, half, _ = compare.paired(map(compare.log_loss, arms[name][optimizer]),
                                               map(compare.log_loss, arms['rope'][optimizer]))
                settled[optimizer] += abs(mean) > half
    assert settled == dict(adamw=1, muon=4) and 'With AdamW one interval excludes zero. With Muon four do' in words
    assert not any(solving('dyck3', name, 'adamw') for name in runs['dyck3'])
    for both in runs['dyck3'].values():
        mean, half, _ = compare.paired(*(map(compare.log_loss, both[optimizer]) for optimizer in ('muon', 'adamw')))
        assert mean + half < 0  # every arm is better with Muon
    assert f'RoPE fails in {NUMBERS[n - solving("bio_rotation", "rope", "adamw")].lower()} seeds of' in words
    assert solving('bio_rotation', 'spectral', 'adamw') == n
    assert all(solving('bio_rotation', name, 'muon') == n for name in runs['bio_rotation'])
    medians = {name: median(map(best_loss, both['muon'])) for name, both in runs['bio_rotation'].items()}
    assert min(medians, key=medians.get) == 'rope'
    counts = [NUMBERS[solving('modulo', 'rope', optimizer)].lower() for optimizer in ('muon', 'adamw')]
    assert 'RoPE solves {} seeds with Muon, and {} with AdamW.'.format(*counts) in words
    orders = [compare.paired(map(compare.log_loss, ours), map(compare.log_loss, runs['modulo']['rope'][optimizer]))[0]
              for optimizer in ('muon', 'adamw') for ours in [runs['modulo']['spectral']['muon']]]
    assert [round(order) for order in orders] == [-3, -2] and 'by three orders of magnitude' in words
    differences = [compared(runs['bio_rotation']['spectral'][optimizer], runs['bio_rotation']['rope'][optimizer],
                            compare.log_loss) for optimizer in ('adamw', 'muon')]
    assert differences[0][0] < -differences[0][1] and differences[1][0] > differences[1][1]  # the sign changes


def compared(rows, baseline, measure):
    """(mean, half) of a measure's difference between two lists of rows, on the seeds that both have."""
    ours, theirs = compare.same_seeds(rows, baseline)
    return compare.paired(map(measure, ours), map(measure, theirs))[:2]


def test_what_is_said_of_the_ablation():
    words = section('Which of Ω, A and Φ matters (`bio_rotation`)')
    arms = group('ablation_again', 'bio_rotation', [name.removeprefix('bio_rotation-') for name, _ in
                                                    trial.STUDIES['ablation_again']()])
    assert len(arms) == 6 and not any(map(solved, arms.pop('A-Phi')))
    assert 'With A and Φ alone no seed is solved' in words
    assert all(5e-6 < best_loss(row) < 2e-5 for rows in arms.values() for row in rows) and 'to about 1e-5' in words
    spectral = of_claims('bio_rotation')['spectral']
    means = {name: 100 * np.mean([*map(extrapolation, rows)]) for name, rows in arms.items()}
    means['spectral'] = 100 * np.mean([extrapolation(row) for row in spectral if row['seed'] < 3])
    assert f'lie between {min(means.values()):.0f} and {max(means.values()):.0f} %' in words
    for rows in arms.values():
        mean, half = compared(rows, spectral, extrapolation)
        assert abs(mean) < half
    first = group('ablation', 'bio_rotation', ('shared',))['shared']
    assert f'the highest mean: {100 * np.mean([*map(extrapolation, first)]):.1f} %' in words
    assert min(means, key=means.get) == 'shared'
    assert f'Here it has the lowest, {means["shared"]:.0f} %' in words


def of_map(task):
    """{label: (Spectral's rows, RoPE's, of the same seeds)} along periods and layers, and at the claim."""
    return {label: compare.same_seeds(arms['spectral'], arms['rope'])
            for label, arms in report_settled.settings().items() if label.startswith(report_bifocal.TASKS[task])}


def test_what_is_said_of_the_map():
    words, beyond = section('The map: period, layers, length, rate'), lambda row: 100 * extrapolation(row)
    strands, shifts = of_map('bio_rotation'), of_map('modulo')
    counts = {int(label.split()[-1]): [sum(map(solved, rows)) for rows in both]
              for label, both in (strands | shifts).items() if label.split()[-2] in ('period', 'modulus')
              if label.startswith('Bio')}
    assert counts == {5: [0, 3], 7: [3, 0], 13: [3, 3], 16: [0, 2], 29: [0, 3]}  # as the text has it, Spectral first
    of_29 = [np.mean([*map(beyond, rows)]) for rows in reversed(strands['Bio-Rotation, period 29'])]
    assert 'RoPE is ahead at 29 ({:.0f} against {:.0f} %)'.format(*of_29) in words
    assert np.subtract(*compared(*strands['Bio-Rotation, period 29'], beyond)) < 0 > sum(
        compared(*strands['Bio-Rotation, period 29'], beyond))  # surely
    first = group('periods', 'bio_rotation', ('rope-5', 'spectral-5', 'rope-29', 'spectral-29'))
    assert [sum(map(solved, rows)) for rows in first.values()] == [0, 2, 0, 2]
    moduli = {label: both for label, both in shifts.items() if 'layers' not in label}
    lower = [best_loss(a) < best_loss(b) for both in moduli.values() for a, b in zip(*both)]
    assert f'In {sum(lower)} of {len(lower)} pairs of seeds' in words
    differences = {label: compared(*both, compare.log_loss) for label, both in moduli.items()}
    assert len(differences) == 7 and all(mean < 0 for mean, _ in differences.values())
    sure = {label.split()[-1] for label, (mean, half) in differences.items() if mean + half < 0}
    assert sure == {'claim', '10', '11', '13', '29'} and 'excludes zero at 7, 10, 11, 13 and 29' in words
    counts = {label.split()[-1]: [sum(map(solved, rows)) for rows in both] for label, both in moduli.items()}
    assert 'at P = 29 only RoPE solves the task, and at modulus 29 only Spectral' in section(
        'When do learned frequencies pay?')
    assert counts['29'] == [3, 0] and counts['5'] == [1, 0] and counts['16'] == [2, 1]
    others = [compared(*both, beyond) for label, both in moduli.items() if 'claim' not in label]
    assert all(abs(mean) < half for mean, half in others)
    layers = {label: both for label, both in (strands | shifts).items() if 'layers' in label}
    assert len(layers) == 4 and all(solved(row) for both in layers.values() for rows in both for row in rows)
    gains = {label: compared(*both, beyond) for label, both in layers.items()}
    assert all(abs(mean) < half for mean, half in gains.values())
    ends = [mean for label, (mean, _) in gains.items() if label in strands]
    said = (min(ends), max(ends), gains['Modulo, 2 layers'][0])
    assert 'by {:.0f} to {:.0f} points on `bio_rotation` and {:.0f} on `modulo`'.format(*said) in words
    losses = {label: compared(*both, compare.log_loss) for label, both in layers.items()}
    assert '({:.1f} ± {:.1f} in log10)'.format(*losses.pop('Modulo, 2 layers')) in words
    assert all(abs(mean) < half for mean, half in losses.values())


def test_what_is_said_of_spacing():
    words, beyond = section('Regular and irregular intervals (`spacing`)'), lambda row: 100 * extrapolation(row)
    arms = {schedule: group('spacing_again', schedule, ('rope', 'spectral', 'bifocal'))
            for schedule in ('periodic', 'random', 'exponential')}
    assert all(len(rows) == 3 and all(map(solved, rows)) for of in arms.values() for rows in of.values())
    gain = {schedule: compared(of['spectral'], of['rope'], beyond) for schedule, of in arms.items()}
    told = {schedule: '{:.1f} ± {:.1f}'.format(abs(mean), half) for schedule, (mean, half) in gain.items()}
    assert f'(+{told["periodic"]} points) and on exponential ones (-{told["exponential"]})' in words
    assert all(abs(gain[schedule][0]) < gain[schedule][1] for schedule in ('periodic', 'exponential'))
    assert sum(gain['random']) < 0 and f'Spectral loses {told["random"]} points' in words
    first = group('spacing', 'random', ('rope', 'spectral'))
    first = compared(first['spectral'], first['rope'], beyond)
    assert '({:.1f} ± {:.1f}, five seeds)'.format(-first[0], first[1]) in words


def test_what_is_said_of_text_with_muon():
    words, readme = section('Does the optimiser matter?', 'lab/tapa.md'), (ROOT / 'README.md').read_text()
    muon, adamw = (group(part, 'text', ('nope', 'rope', 'spectral', 'tapa')) for part in ('long_muon', 'long'))
    assert {len(rows) for rows in muon.values()} == {5} and 'over five seeds' in words
    mean = lambda rows, n: np.mean([row[f'perplexity@{256 * n} sliding'] for row in rows])
    at = lambda arm, n: '{:.1f} in place of {:.1f}'.format(mean(muon[arm], n), mean(adamw[arm], n))
    assert f'RoPE has {at("rope", 1)}, NoPE {at("nope", 1)}, and TAPA {at("tapa", 1)}' in words
    assert all(mean(muon[arm], 1) < mean(adamw[arm], 1) for arm in muon)
    def gap(ours, theirs, n, arms=muon, digits=2):
        both = compared(arms[ours], arms[theirs], lambda row: math.log(row[f'perplexity@{256 * n} sliding']))
        return '{:+.{d}f} ± {:.{d}f}'.format(*both, d=digits)
    gaps = [gap('tapa', 'rope', n) for n in (1, 4, 8)]
    assert '* TAPA is behind RoPE by {} at L, {} at 4L and {} at 8L.'.format(*gaps) in words
    assert f'NoPE, too, by {gap("tapa", "nope", 1)} at L and {gap("tapa", "nope", 2)} at 2L.' in words
    assert f'none is with AdamW at L ({gap("tapa", "nope", 1, adamw)})' in words
    rise = lambda row, way: round(100 * (row[f'perplexity@2048 {way}'] / row[f'perplexity@256 {way}'] - 1))
    rises = {arm: [rise(row, 'sliding') for row in rows] for arm, rows in muon.items()}
    same = [rise(row, 'same targets') for row in muon['tapa']]
    assert f'On the same targets TAPA rises by {min(same)} to {max(same)} %.' in words
    said = 'TAPA rises by {tapa} %, NoPE by {nope}, RoPE by {rope} and Spectral by {spectral}.'
    ends = {arm: f'{min(values)} to {max(values)}' for arm, values in rises.items()}
    assert said.format(**ends) in words
    assert f'From L to 8L its perplexity rises by {ends["tapa"]} %' in (ROOT / 'lab/tapa.md').read_text()
    assert f'gains nothing at L, {gap("spectral", "rope", 1, digits=3)}.' in words
    assert f'beyond: {gap("spectral", "rope", 4)} at 4L and {gap("spectral", "rope", 8)} at 8L.' in words
    longest = [mean(muon[arm], 8) for arm in ('spectral', 'rope')]
    assert "Spectral's perplexity is {:.1f}, and RoPE's {:.1f}.".format(*longest) in readme
    beyond = (mean(adamw['rope'], 8), mean(muon['rope'], 8))
    assert 'At 8L it has a perplexity of {:.1f} with AdamW, and {:.1f} with Muon'.format(*beyond) in (
        ROOT / 'lab/tapa.md').read_text()


def test_what_is_said_of_passkey_with_muon():
    words = section('Passkey retrieval', 'lab/tapa.md')
    arms = group('long_muon', 'passkey', ('nope', 'rope', 'spectral', 'tapa'))
    exact = {name: {n: [100 * row[f'exact@{n}'] for row in rows] for n in (64, 128)} for name, rows in arms.items()}
    assert {len(rows) for rows in arms.values()} == {3}
    assert all(min(exact[name][64]) > 99 for name in ('nope', 'rope', 'spectral'))
    assert sum(value > 99 for value in exact['tapa'][64]) == 2 and 'TAPA does so in two of three seeds' in words
    for name in ('nope', 'spectral', 'tapa'):
        mean, half = compared(arms[name], arms['rope'], lambda row: row['exact@512'])
        assert abs(mean) < half
    spread = {name: compare.spread(exact[name][128], digits=1 if name == 'nope' else 0) for name in exact}
    assert 'NoPE has {nope} %, Spectral {spectral} and RoPE {rope}.'.format(**spread) in words


def test_what_is_said_of_the_start():
    names = ('linear', 'late', 'frequency-decay', 'amplitude-decay')
    beyond = lambda rows: [100 * extrapolation(row) for row in rows]
    words, arms = {}, {}
    for task, title in (('bio_rotation', 'Where frequencies start, and when they move (`bio_rotation`)'),
                        ('modulo', '`modulo`: the same changes')):
        words[task], arms[task] = section(title), group(
            'start_again', task, ('rope-linear', *(f'spectral-{name}' for name in names))) | {
            name: [row for row in rows if row['seed'] < 3] for name, rows in of_claims(task).items()}
        assert {len(rows) for rows in arms[task].values()} == {3} and 'Three seeds.' in words[task]
    said, rows = words['bio_rotation'], arms['bio_rotation']
    assert all(solved(row) for name in rows if name not in ('spectral-late', 'bifocal') for row in rows[name])
    assert not any(map(solved, rows['spectral-late'])) and 'no seed is solved' in said
    mean = {name: f'{np.mean(beyond(of_arm)):.0f}' for name, of_arm in rows.items()}
    assert f'it reads {mean["rope-linear"]} %, and RoPE at its best base {mean["rope"]} %' in said
    sd = {name: f'{np.std(beyond(of_arm), ddof=1):.0f}' for name, of_arm in rows.items()}
    learned = [f'{mean[name]} ± {sd[name]} %' for name in ('spectral', 'spectral-linear', 'spectral-amplitude-decay')]
    assert "{} from RoPE's grid, and {} from the even one".format(*learned) in said and f'({learned[2]})' in said
    assert f'the reach is lost: {mean["spectral-frequency-decay"]} %' in said
    mean, half = compared(rows['spectral-amplitude-decay'], rows['spectral'], extrapolation)
    assert abs(mean) < half and 'Decay on A makes no difference that is settled' in said
    said, rows = words['modulo'], arms['modulo']
    gap = {name: compared(of_arm, rows['rope'], lambda row: 100 * extrapolation(row)) for name, of_arm in rows.items()}
    gain = {name: '{:+.1f} ± {:.1f}'.format(*values) for name, values in gap.items()}
    assert f'further than RoPE: {gain["spectral-linear"]} points' in said
    assert f'gains nothing ({gain["rope-linear"]})' in said and f'more spread: {gain["spectral"]}.' in said
    assert sum(map(solved, rows['spectral-late'])) == 2 and 'A late start solves two of three seeds.' in said
    assert all(abs(mean) < half for mean, half in (gap[f'spectral-{name}'] for name in names[1:]))


def test_what_is_said_of_log_scale():
    words, beyond = section('`modulo`: `log_scale`'), lambda row: 100 * extrapolation(row)
    arms = group('extrapolation_again', 'modulo', [f'{name}-log' for name in (
        'rope', 'oracle', 'spectral', 'spectral-linear', 'spectral-decay')])
    arms = {name.removesuffix('-log'): rows for name, rows in arms.items()}
    assert len(arms) == 5 and {len(rows) for rows in arms.values()} == {3} and 'Three seeds.' in words
    spread = {name: compare.spread(map(beyond, rows), digits=0) for name, rows in arms.items()}
    assert f'read {spread["spectral-linear"]} % beyond' in words
    assert f'with `--log_scale`: {spread["spectral-linear"]} % (three seeds)' in (ROOT / 'lab/bifocal.md').read_text()
    gap = lambda ours, theirs: '{:.1f} ± {:.1f} points'.format(*compared(ours, theirs, beyond))
    assert f'factor reads {spread["rope"]} %, a difference of {gap(arms["spectral-linear"], arms["rope"])}' in words
    plain = group('start_again', 'modulo', ('spectral-linear',))['spectral-linear']
    assert f'without the factor reads {gap(arms["spectral-linear"], plain)} less' in words
    for name in ('spectral', 'spectral-decay'):
        assert ': {:.0f}, {:.0f} and {:.0f} %'.format(*map(beyond, arms[name])) in words
        for baseline in (arms['rope'], of_claims('modulo')['rope']):
            mean, half = compared(arms[name], baseline, beyond)
            assert abs(mean) < half
    assert all(beyond(row) > 99.9 for row in arms['oracle'])


def test_what_the_audit_of_the_first_trial_corrected():
    bifocal, tapa = ((ROOT / f'lab/{name}.md').read_text() for name in ('bifocal', 'tapa'))
    # learned frequencies from an even grid read on at positions 64 to 127: of whole strings, less the first 64
    even = group('start', 'modulo', ('spectral-linear',))['spectral-linear']
    beyond = [100 * (127 * row['accuracy@128'] - 63 * row['accuracy@64']) / 64 for row in even]
    assert 'read {:.0f}, {:.0f} and {:.0f} % of the positions 64 to 127'.format(*beyond) in bifocal
    # TAPA's perplexity rises, also after 4000 updates
    longer = group('budget', 'text', ('tapa',))['tapa']
    longer = [[row[f'perplexity@{n} sliding'] for n in (256, 2048)] for row in longer]
    ends = [f'{at_L:.2f} to {at_8L:.2f}' for at_L, at_8L in longer]
    rises = [f'a rise of {100 * (at_8L / at_L - 1):.0f} %' for at_L, at_8L in longer]
    assert f'{ends[0]} in one seed, {rises[0]}. In the other it goes from {ends[1]}, {rises[1]}.' in tapa
    # a near tie at the threshold
    near, again = (best_loss(group(part, 'modulo', ('rope',))['rope'][2]) for part in ('headline', 'bases'))
    for text in (bifocal, (ROOT / 'lab/README.md').read_text()):
        assert f'{near:.4f}' in text and f'{again:.4f}' in text
    # on English, TAPA is ahead of a model that knows no positions
    losses = group('english', 'text', ('tapa', 'nope')).values()
    assert all(a['perplexity@256 sliding'] < b['perplexity@256 sliding'] for a, b in zip(*losses))
    assert 'TAPA is ahead of NoPE in all three seeds there' in tapa
    shares = [100 * row['slow_pairs_end'] for row in group('long', 'text', ('spectral',))['spectral']]
    assert f'leaves {min(shares):.0f} to {max(shares):.0f} % of slow pairs in Spectral' in tapa


def test_what_is_said_of_choosing_by_three_seeds():
    words = after('**Three seeds can choose wrongly.**', 'lab/tuning.md')
    both = report_settled.both_optimizers()['modulo']['bifocal']
    tuning = {optimizer: report_settled.best_rate('modulo', 'bifocal', optimizer)[1] for optimizer in both}
    assert all(map(solved, tuning['muon'])) and trial.merit(tuning['muon']) > trial.merit(tuning['adamw'])
    counts = [sum(map(solved, both[optimizer])) for optimizer in ('muon', 'adamw')]
    assert 'it solves {} with Muon and {} with AdamW.'.format(*counts) in words and counts[0] < counts[1]
    assert {len(rows) for rows in both.values()} == {10}


def test_what_is_said_of_ropes_base(monkeypatch):
    words, tuning = section("RoPE's base", level='###'), after('**Three seeds can choose wrongly.**', 'lab/tuning.md')
    counts = {base: [sum(map(solved, group('settled', task, (base,))[base])) for task in ('dyck3', 'modulo')]
              for base in ('rope', 'rope-base100')}
    assert 'it solves {} and {} of 20 runs, and 10000 solves {} and {}.'.format(
        *counts['rope-base100'], *counts['rope']) in words
    assert 'it solves {} of the 20 reported seeds, and all {} with'.format(
        counts['rope-base100'][1], counts['rope'][1]) in tuning
    verdicts = [report_settled.verdict(test) for test in report_settled.tested()]
    monkeypatch.setattr(trial, 'BASELINE', dict(trial.BASELINE, dyck3='rope-base100', modulo='rope-base100'))
    assert [report_settled.verdict(test) for test in report_settled.tested()] == verdicts


def test_what_is_said_of_muons_own_choices():
    words = section("Muon's own choices", 'lab/tuning.md', '###')
    arms = {task: group('muon', task, [f'{name}-{variant}' for variant in (*trial.VARIANTS, 'rest')])
            for task, name in (('modulo', 'rope'), ('dyck3', 'spectral'))}
    gaps, solving = {}, {}
    for task, of_task in arms.items():
        whole = next(rows for name, rows in of_task.items() if name.endswith('-whole'))
        assert {len(rows) for rows in of_task.values()} == {3} and all(map(solved, whole))
        for name, rows in of_task.items():
            solving[task, name.split('-')[1]] = sum(map(solved, rows))
            if rows is not whole:
                gaps[task, name.split('-')[1]] = compared(rows, whole, compare.log_loss)
    said = {key: '{:+.2f} ± {:.2f}'.format(*gap) for key, gap in gaps.items()}
    sure = [key for key, (mean, half) in gaps.items() if abs(mean) > half]
    assert len(gaps) == 14 and sure == [('dyck3', 'attention')] and 'One interval of fourteen' in words
    assert solving['dyck3', 'attention'] == 0 and f'no seed is solved: {said["dyck3", "attention"]} in log10' in words
    assert f'{said["dyck3", "three"]} on `dyck` and {said["modulo", "three"]} on `modulo`' in words
    assert f'decay: {said["dyck3", "decay"]} and {said["modulo", "decay"]}.' in words
    assert gaps['dyck3', 'head'][0] > 0 and solving['modulo', 'head'] == 2
    lowest = min((key for key in gaps if key[0] == 'modulo'), key=gaps.get)
    assert lowest == ('modulo', 'rest') and f'the lowest mean: {said[lowest]}.' in words


def test_what_is_said_of_one_rate_further():
    words = after('**One rate further.**', 'lab/tuning.md')
    arms = group('further', 'bio_rotation', ('rope', 'spectral'))
    rates = [arms['spectral'][0]['learning_rate'], arms['rope'][0]['muon_lr']]
    assert {len(rows) for rows in arms.values()} == {20} and rates == [0.016, 0.0025]
    medians = ['{:.1e}'.format(median(map(best_loss, arms[name]))) for name in ('spectral', 'rope')]
    assert 'medians of {} and {} nats'.format(*medians) in words
    assert 'a difference of {:+.2f} ± {:.2f} in log10'.format(
        *compared(arms['spectral'], arms['rope'], compare.log_loss)) in words
