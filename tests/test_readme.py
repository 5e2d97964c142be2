"""What the README says is so: its tables, its files, its commands."""

import json
import re
import shlex
from pathlib import Path

import pytest

import bench
import eval as eval_file
import train
from configurator import configure
from conftest import ROOT

README = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'<!-- python (.+?) -->\n(.*?)<!-- end -->', README, flags=re.DOTALL)


def test_there_are_generated_tables():
    assert [command.split()[0] for command, _ in BLOCKS] == ['eval.py', 'bench.py', 'bench.py']


@pytest.mark.parametrize('command, table', BLOCKS, ids=[command for command, _ in BLOCKS])
def test_tables_are_what_their_command_prints_from_the_committed_logs(command, table, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    script, *arguments = shlex.split(command)
    expanded = [str(path) for a in arguments for path in (sorted(Path().glob(a)) if '*' in a else [a])]
    if script == 'eval.py':
        runs = {Path(path).name for path in expanded}
        assert all(f'{config.stem}-{seed}' in runs for config in ROOT.glob('config/*.py') for seed in (0, 1)), 'a run is missing'
        expanded[-1] = str(tmp_path / 'figure.png')
    {'eval.py': eval_file, 'bench.py': bench}[script].main(expanded)
    assert capsys.readouterr().out.strip() == table.strip()


def test_the_files_and_configs_it_names_exist():
    named = set(re.findall(r'\]\(([\w./]+)\)', README)) | set(re.findall(r'config/\w+\.py', README)) | set(re.findall(r'python (\w+\.py)', README))
    assert len(named) > 15
    assert not [name for name in named if not (ROOT / name).exists()]
    top = {path.name for path in ROOT.glob('*.py')}
    assert {name for name in top if f'[`{name}`]({name})' in README} == top  # each is in the file map


def test_its_two_commands_are_those_that_ci_runs():
    commands = re.findall(r'^pip install .*$', README, flags=re.MULTILINE)
    assert commands == ['pip install -r requirements.txt && python train.py config/dyck3_spectral.py', 'pip install -r requirements-dev.txt && pytest']


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


@pytest.mark.parametrize('config', sorted(path.stem for path in (ROOT / 'config').glob('*.py')))
def test_learning_rates_are_those_that_the_sweep_chose(config):
    """
    On a seed that no table shows, from the same rates for every arm of a task. Of the rates that solve the task, with a
    validation loss below 0.005, the one with the best mean accuracy at 2, 4 and 8 times the length; else the lowest loss.
    """
    losses, beyond = {}, {}
    for folder in (ROOT / 'results/core/sweep').glob(f'{config}-*'):
        options = json.loads((folder / 'config.json').read_text())['options']
        assert options['seed'] == 100 and options['attention'] == config.rpartition('_')[2]
        rate = options['learning_rate']
        losses[rate] = min(line['val_loss'] for line in eval_file.read_log(folder) if 'val_loss' in line)
        if losses[rate] < 0.005:
            result = json.loads((folder / 'eval_validation.json').read_text())
            assert result['split'] == 'validation'
            beyond[rate] = sum(result['lengths'][length]['headline'] for length in ('128', '256', '512')) / 3
    assert set(losses) == ({5e-4, 1e-3, 2e-3, 4e-3} if config.startswith('bio') else {2e-3, 4e-3})
    best = max(beyond, key=beyond.get) if beyond else min(losses, key=losses.get)
    assert configure(dict(vars(train)), [str(ROOT / f'config/{config}.py')])['learning_rate'] == best
