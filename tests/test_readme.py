"""What the README says is so: its tables, its files, its commands."""

import json
import re
import shlex
import statistics
import sys
from pathlib import Path

import pytest

import bench
import eval as eval_file
import train
from configurator import configure
from conftest import ROOT

sys.path.insert(0, str(ROOT / 'results'))
import report  # noqa: E402
import trial  # noqa: E402

README = (ROOT / 'README.md').read_text()
BLOCKS = [(file, *block) for file in ('README.md', 'results/README.md')
          for block in re.findall(r'<!-- python (.+?) -->\n(.*?)<!-- end -->', (ROOT / file).read_text(), flags=re.DOTALL)]
SCRIPTS = {'eval.py': eval_file, 'bench.py': bench, 'results/report.py': report}


def test_there_are_generated_tables():
    assert {command.split()[0] for _, command, _ in BLOCKS} == set(SCRIPTS)


@pytest.mark.parametrize('file, command, table', BLOCKS, ids=[f'{file}: {command}' for file, command, _ in BLOCKS])
def test_tables_are_what_their_command_prints_from_the_committed_logs(file, command, table, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    for script in (eval_file, report):
        monkeypatch.setattr(script, 'pyplot', lambda: None)  # figures are drawn elsewhere
    script, *arguments = shlex.split(command)
    expanded = [str(path) for a in arguments for path in (sorted(Path().glob(a)) if '*' in a else [a])]
    SCRIPTS[script].main(expanded)
    printed = capsys.readouterr()
    assert printed.out.strip() == table.strip()
    assert 'skipped' not in printed.err


def test_the_files_and_configs_it_names_exist():
    named = set(re.findall(r'\]\(([\w./]+)\)', README)) | set(re.findall(r'config/\w+\.py', README)) | set(re.findall(r'python (\w+\.py)', README))
    assert len(named) > 15
    assert not [name for name in named if not (ROOT / name).exists()]
    top = {path.name for path in ROOT.glob('*.py')}
    assert {name for name in top if f'[`{name}`]({name})' in README} == top  # each is in the file map


def test_its_two_commands_are_those_that_ci_runs():
    commands = re.findall(r'^pip install .*$', README, flags=re.MULTILINE)
    assert commands == ['pip install -r requirements.txt && python train.py config/dyck3_spectral.py', 'pip install -r requirements-dev.txt && pytest']


def test_what_it_says_of_the_main_job_is_in_its_log():
    lines = [json.loads(line) for line in (ROOT / 'results/main/dyck3_spectral/log.jsonl').read_text().splitlines()]
    result = json.loads((ROOT / 'results/main/dyck3_spectral/eval.json').read_text())['lengths']['64']
    minutes, seconds = divmod(round(lines[-1]['seconds']), 60)
    assert f'it takes {minutes} minutes {seconds} seconds in all, and then {100 * result["headline"]:.2f} % of the closing' in README
    assert round(100 * result['accuracy'], 2) == round(100 * result['headline'], 2)
    assert f'waits for them {100 * statistics.median(line["waiting"] for line in lines[1:]):.1f} % of its time' in README


def test_its_dependencies_are_the_pinned_ones():
    packages = {re.split('[=; ]', line)[0] for line in (ROOT / 'requirements.txt').read_text().split('\n') if line}
    assert packages == {'torch', 'numpy', 'tiktoken'} and all(f'{p}' in README for p in packages)
    assert all('==' in line for line in (ROOT / 'requirements.txt').read_text().splitlines())


def test_its_task_examples_are_true():
    from tasks import TASKS
    rows = re.findall(r'\| `(\w+)[^|]*\| `x *([^`]+)`<br>`y *([^`]+)` \|', README)
    assert [name for name, _, _ in rows] == list(TASKS)
    for name, x, y in rows:
        task = TASKS[name]()
        targets = task.targets(task.encode(x.replace(' ', ''))[None])[0]
        assert ''.join(task.symbols[i] if i >= 0 else '.' for i in targets) == y.replace(' ', ''), name


@pytest.mark.parametrize('config', sorted(path.stem for path in (ROOT / 'config').glob('*.py') if not re.match('surgery_|.*_long$', path.stem)))
def test_learning_rates_are_those_that_the_sweep_chose(config):
    """The same rates for every arm of a task, on a seed that no table shows, chosen by the rule of results/report.py."""
    task, _, attention = config.rpartition('_')
    if not any(report.tuning_runs(task, attention, rate) for rate in trial.rates(task, attention)):
        pytest.skip('not swept yet')
    tried = [rate for rate in trial.rates(task, attention) if report.tuning_runs(task, attention, rate)]
    assert tuple(tried) == trial.rates(task, attention)
    options = configure(dict(vars(train)), [str(ROOT / f'config/{config}.py')])
    knob = report.choose_knob(task, attention)
    assert options['attention'] == attention
    best, ours = ([report.best_loss(run) for run in report.tuning_runs(task, knob, rate)] for rate in (report.choose_rate(task, knob), options['learning_rate']))
    assert ours == best or (task == 'text' and ours[0] - best[0] < 0.01)  # less is noise
    tuned = ('rope_base', 'spectral_lr', 'tapa_alpha', *(['init_std'] if task != 'bio_rotation' else []))
    changed = [f'--{key}={value:g}' for key, value in options.items() if key in tuned and value != vars(train)[key]]
    assert changed == ([] if knob == attention else [trial.EVERY_KNOB[knob]]), 'a config has the knob that was chosen'


def test_fine_tuning_has_the_rates_that_were_chosen():
    for task in trial.LONG:
        for name in trial.longer_arms(task):
            assert trial.LONGER.get((task, name), trial.LONGER_RATES[1]) == report.choose_longer(task, name), (task, name)
        for name in trial.arms(task):
            assert trial.CHOSEN_KNOBS.get((task, name), name) == report.choose_knob(task, name), (task, name)


def test_the_arms_without_a_config_have_the_rates_that_the_sweep_chose():
    for (task, name), rate in trial.CHOSEN.items():
        assert rate == report.choose_rate(task, name), (task, name)
    assert {name for _, name in trial.CHOSEN} <= {'nope', 'resonance', 'oracle'}
