"""The tables of the reports are those of the rows, and what was chosen is what the rule says."""

import pytest

import train
from configurator import UserError, configure
from study import claims, crystals, figures, report, rows
from tests.conftest import ROOT

DOCUMENTS = [ROOT / 'README.md', ROOT / 'lab/speed.md', *sorted(ROOT.glob('study/*.md'))]
PLACES = [(path, match[2], match[3]) for path in DOCUMENTS
          for match in report.PLACE.finditer(path.read_text())]


@pytest.mark.parametrize('path, name, table', PLACES,
                         ids=[f'{path.name}: {name}' for path, name, _ in PLACES])
def test_a_table_is_that_of_the_rows(path, name, table):
    assert table == report.TABLES[name]()


@pytest.mark.parametrize('name', sorted(set(report.TABLES) - {'deeper'}))
def test_every_line_of_a_table_has_every_column(name):
    lines = report.TABLES[name]().splitlines()
    cells = [line.replace('\\|', '').count('|') for line in lines]
    assert len(lines) > 2 and set(cells) == {cells[0]}


def test_tables_are_written_into_their_places(tmp_path):
    page = tmp_path / 'page.md'
    place = '<!-- python -m study.report reach -->\n{}<!-- end -->\n'
    page.write_text('a\n' + place.format('old\n') + 'b\n<!-- python -m lab.bench x -->\n')
    report.main(['--write', str(page)])
    table = report.TABLES['reach']()
    assert page.read_text() == f'a\n{place.format(table)}b\n<!-- python -m lab.bench x -->\n'
    page.write_text(place.format('').replace('reach', 'rech'))
    with pytest.raises(UserError, match='no table rech: there are'):
        report.main(['--write', str(page)])


def test_the_figures_are_drawn_and_committed(tmp_path, monkeypatch):
    pytest.importorskip('matplotlib')
    monkeypatch.setattr(figures, 'FIGURES', tmp_path)
    figures.main()
    drawn = {path.name for path in tmp_path.glob('*.png')}
    assert drawn == {f'{name}.png' for name in figures.DRAWINGS}
    assert drawn <= {path.name for path in (ROOT / 'study/figures').glob('*.png')}


# ----------------------------------------------------------------------------------------------
# What was chosen


def options_of(*words):
    return configure(dict(vars(train)), [str(ROOT / words[0]), *words[1:]])


@pytest.mark.parametrize('attention', ['rope', 'spectral', 'bifocal', 'tapa'])
@pytest.mark.parametrize('task', ['dyck3', 'bio_rotation', 'modulo'])
def test_a_config_has_the_best_of_the_tuning(task, attention):
    options = options_of(f'config/{task}_{attention}.py')
    found = {key: runs for key, runs in report.candidates(*report.CHOOSING, 'tapa').items()
             if (key[0], runs[0]['attention']) == (task, attention)}
    if attention == 'rope':  # on Modulo the base was not chosen on the tuning seeds alone
        base = options['rope_base']
        assert (base, options['optimizer']) == claims.TUNED['20 to 39'][options['task']]
        found = {key: runs for key, runs in found.items() if runs[0]['rope_base'] == base}
    if (task, attention) == ('dyck3', 'spectral'):  # the main job has the surer setting
        found = {key: runs for key, runs in found.items()
                 if (runs[0]['rope_base'], runs[0]['muon_lr']) == (1e4, 0.01)}
    best = report.best(found)
    assert best[2:] == (options['optimizer'], report.rates_of(options | dict(study='')))
    logged = rows.options(found[best][0])
    changed = {name for name in logged if logged[name] != options[name]}
    assert changed <= {'task', 'eval_interval', 'compile', 'muon_lr', 'learning_rate'}
    if options['optimizer'] == 'muon':
        assert 'learning_rate' not in changed


def test_tapa_on_text_has_the_best_form_of_its_search():
    options = options_of('config/text_tapa.py')
    found = {key: runs for key, runs in report.candidates('tapa').items() if key[0] == 'text'}
    chosen = rows.options(found[report.best(found)][0])
    changed = {name for name in chosen if chosen[name] != options[name]}
    assert changed <= {'compile', 'max_iters'}


@pytest.mark.parametrize('config', ['config/text_rope.py', 'config/text_spectral.py',
                                    'lab/config/passkey_spectral.py'])
def test_text_and_passkey_have_the_best_rate_of_muon(config):
    options = options_of(config)
    key = (options['task'], options['attention'])
    found = report.candidates('long_muon_rates')
    best = report.best({name: runs for name, runs in found.items() if name[:2] == key})
    assert (options['optimizer'], options['muon_lr']) == ('muon', best[3][0])


@pytest.mark.parametrize('attention', ['rope', 'tapa'])
def test_passkey_has_what_reads_furthest_of_its_search(attention):
    options = options_of(f'lab/config/passkey_{attention}.py')
    chosen = rows.options(report.reads_furthest(attention)[0])
    changed = {name for name in chosen if chosen[name] != options[name]}
    assert changed <= {'compile'}


def test_merit_is_seeds_then_seeds_solved_then_the_loss():
    def runs(*losses):
        return [dict(best_loss=loss) for loss in losses]
    order = [runs(1e-9), runs(1e-5, 0.02), runs(0.009, 0.009), runs(0.009, 1e-4)]
    assert sorted(order[::-1], key=report.merit) == order


def test_the_main_job_is_that_of_its_config():
    strand, *main_jobs = rows.read('main')
    assert len(main_jobs) > 1
    for row in main_jobs:
        expected = options_of('config/dyck3_spectral.py')
        assert all(expected[name] == value for name, value in rows.options(row).items())
        assert row['solved_at'] < row['iterations'] and row['best_loss'] < rows.SOLVED
    expected = options_of('lessons/strand.py', '--attention=spectral')
    assert all(expected[name] == value for name, value in rows.options(strand).items())


# ----------------------------------------------------------------------------------------------
# The claims and the crystals on made-up rows


def made_up(task, attention, losses, study='settled', **columns):
    return [dict(study=study, task=task, attention=attention, seed=seed, best_loss=loss,
                 rope='geometric', rope_base=10000.0, optimizer='adamw') | columns
            for seed, loss in enumerate(losses)]


@pytest.mark.parametrize('mean, half, p, expected', [
    (-1.0, 0.5, 0.01, 'lower'), (1.0, 0.5, 0.01, 'higher'),
    (-1.0, 0.5, 0.06, 'no difference shown'), (-1.0, 1.5, 0.01, 'no difference shown')])
def test_a_verdict_needs_the_interval_and_the_p(mean, half, p, expected):
    assert claims.verdict(mean, half, p) == expected


def test_claims_take_both_ropes_and_the_seeds_that_both_have(monkeypatch):
    found = []
    for task in claims.SENTENCES:
        base, optimizer = claims.TUNED['0 to 19'][task]
        found += made_up(task, 'rope', [0.5, 0.6, 0.4])
        if (base, optimizer) != claims.PAPER:
            found += made_up(task, 'rope', [1e-9] * 4, rope_base=base, optimizer=optimizer)
        found += made_up(task, 'rope', [9.0] * 3, rope_base=100.0)  # another base
        found += made_up(task, 'spectral', [1e-4, 1e-6, 1e-8])
        found += made_up(task, 'spectral', [9.0] * 3, study='other_optimizer')
        found += made_up(task, 'bifocal', [1e-4, 0.3, 0.2])
    monkeypatch.setattr(claims, 'read', lambda name, *studies: [
        row for row in found if not studies or row['study'] in studies])
    monkeypatch.setattr(claims, 'tests_of_tapa', list)
    family = dict.fromkeys(claims.SENTENCES, '0 to 19')
    assert claims.newest() == family
    tests = {(test['task'], test['arm'], test['other']): test
             for test in claims.tests(family)}
    assert len(tests) == 5 + 5 + 3  # on modulo the tuned RoPE is that of the paper
    paper = tests['bio_rotation', 'Spectral', 'RoPE as the paper has it']
    assert paper['verdict'] == 'lower' and paper['mean'] == pytest.approx(-2.69, abs=0.01)
    tuned = tests['bio_rotation', 'Spectral', 'RoPE tuned']
    assert (tuned['mean'], tuned['verdict']) == (0, 'no difference shown')
    assert [row['seed'] for row in tuned['theirs']] == [0, 1, 2]
    assert claims.claims() == claims.claims_first()
    table = claims.claims().splitlines()
    line = next(line for line in table if '| Bio-Rotation | Bifocal | RoPE tuned |' in line)
    assert line.endswith('| no difference shown | 1 and 3, p 0.5 |')
    found += 2 * made_up('dyck', 'spectral', [1e-4], study='confirm')
    assert claims.newest() == {**family, 'dyck': '20 to 39'}
    with pytest.raises(UserError, match='two rows of a seed'):
        claims.runs('dyck', 'Spectral', '20 to 39')


def test_stages_of_a_crystal_by_hand():
    def run(seed, *shares):
        names = [f'accuracy@{64 * multiple}' for multiple in crystals.MULTIPLES]
        return dict(seed=seed, block_size=64, found=7) | dict(zip(names, shares))
    stages = dict(trained=[run(0, 1.0, 0.5, 0.4), run(1, 1.0, 0.991, 0.3)],
                  crystallised=[run(0, 1.0, 0.995, 0.98)])
    assert crystals.stage_cell(stages['trained'], 2) == (
        '100.0 (100.0), 74.5 (50.0), 35.0 (30.0)')
    assert crystals.stage_cell(stages['crystallised'], 2).endswith('98.0 (98.0) [1 of 2 runs]')
    assert crystals.good(stages, ['trained', 'crystallised']) == '2, 0 of 2'
    assert crystals.periods('Spectral', 7, stages) == '7: 1, none: 1'
    assert crystals.periods('oracle', 7, stages) == ''
