"""eval.py and sample.py from end to end, and the numbers they print; errors of one line; the page without the lab."""

import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import eval as eval_file
import sample
from conftest import ROOT, SMALL, Run
from model import ATTENTIONS
from tasks import make_task, stream


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """runs(task, attention) is a small trained run, made once."""
    made = {}

    def get(task, attention):
        if (task, attention) not in made:
            folder = tmp_path_factory.mktemp('runs') / 'run'
            arguments = (f'--task={task}', f'--attention={attention}', '--max_iters=30', '--eval_interval=10')
            made[task, attention] = Run(folder).train(*arguments)
        return made[task, attention]
    return get


@pytest.mark.parametrize('task, attention', [('dyck:max_depth=3', 'bifocal'), ('bio_rotation:period=3', 'spectral'),
                                             ('modulo', 'tapa'), ('text', 'rope')])
def test_eval_measures_what_it_says(runs, task, attention, capsys):
    folder = runs(task, attention).folder
    eval_file.main([str(folder), '--n=16', '--device=cpu', '--multiples', '2', '1'])
    printed, result = capsys.readouterr().out, json.loads((folder / 'eval.json').read_text())
    assert list(result['lengths']) == ['16', '32'] and result['task'] == task and result['attention'] == attention
    assert {'commit', 'date', 'processor', 'threads', 'torch'} <= result.keys()
    # the same numbers, computed anew from the definition
    model, task, _ = eval_file.load_run(folder, 'best.pt', 'cpu')
    x, y = task.sample(stream('test', str(task), 32), 16, 32, 'test')
    with torch.no_grad():
        logits = model(torch.from_numpy(x))[0]
    scored, m = y >= 0, result['lengths']['32']
    right = (logits.argmax(-1).numpy() == y) & scored
    loss = F.cross_entropy(logits[torch.from_numpy(scored)], torch.from_numpy(y[scored])).item()
    assert m['loss'] == pytest.approx(loss, rel=1e-4)
    assert m['accuracy'] == pytest.approx(right.sum() / scored.sum())
    assert m['exact'] == pytest.approx(np.mean([right[b].sum() == scored[b].sum() for b in range(16)]))
    counted = scored & (x >= task.k) & (x < 2 * task.k) if task.name == 'dyck' else scored  # non-trivial closers
    assert m['headline'] == pytest.approx((right & counted).sum() / counted.sum())
    for group, cells in m['breakdown'].items():
        assert cells and all(label in printed for label in list(cells)[:12]), group
    assert len(result['frequencies']) == {'spectral': 8, 'bifocal': 4}.get(attention, 0)
    assert (folder / 'eval.png').read_bytes()[:4] == b'\x89PNG'


def test_the_headline_has_an_interval_of_independent_sequences(runs):
    """One row all right and one all wrong, again and again: the interval is that of rows, not of targets."""
    class Half:
        def __call__(self, x):
            logits = F.one_hot((x + torch.arange(x.size(1)) + x[:, :1]) % 7, 14).float()
            logits[1::2, :, 13] = 2.0  # every second row says what is never right
            return logits, None
    m = eval_file.measure(Half(), make_task('modulo'), 16, 400, 'cpu')
    assert m['headline'] == 0.5 == m['exact'] and m['headline_interval'] == pytest.approx(1.96 * 0.5 / math.sqrt(400))


def test_the_frequency_table_finds_the_harmonic(runs):
    model, _, _ = eval_file.load_run(runs('bio_rotation:period=3', 'spectral').folder, 'best.pt', 'cpu')
    with torch.no_grad():
        unit = 2 * math.pi / 7
        model.blocks[0].attention.way.Omega[1] = torch.tensor([unit + 1e-4, -2 * unit, unit + 2e-3, 1e-5])
    rows = {(row['head'], row['pair']): row for row in eval_file.frequency_table(model, 7)}
    assert len(rows) == 2 * 4
    assert [rows[1, pair]['harmonic'] for pair in range(4)] == [1, 2, 1, 0]
    assert [rows[1, pair]['locked'] for pair in range(4)] == [True, True, False, False]
    assert rows[1, 0]['error'] == pytest.approx(1e-4, rel=1e-2)
    assert 'harmonic' not in eval_file.frequency_table(model, None)[0]


def test_eval_without_matplotlib_says_how_to_get_it(runs, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    eval_file.main([str(runs('modulo', 'tapa').folder), '--n=8', '--device=cpu', '--multiples', '1'])
    assert 'pip install matplotlib' in capsys.readouterr().out


def test_sample_shows_answers_and_marks_mistakes(runs, capsys):
    folder = runs('dyck:max_depth=3', 'bifocal').folder
    sample.main([str(folder), '--n=20', '--show=20', '--device=cpu'])
    shown = capsys.readouterr().out
    model, task, _ = eval_file.load_run(folder, 'best.pt', 'cpu')
    right = 0
    for block in shown.split('\n\n')[:-1]:
        lines = {line[:7].strip(): line[9:] for line in block.splitlines()}
        prompt, truth, said = (task.encode(lines[name]) for name in ('prompt', 'truth', 'model'))
        assert list(truth) == list(task.completion(prompt)) and list(said[:len(prompt)]) == list(prompt)
        expected = model.generate(torch.from_numpy(prompt)[None], len(truth), 0)[0].tolist()
        assert said.tolist() == expected
        wrong = [i for i, ok in enumerate(said[len(prompt):] == truth, len(prompt)) if not ok]
        assert [i for i, c in enumerate(lines.get('', '')) if c == '^'] == wrong
        right += not wrong
    assert shown.strip().endswith(f'{right} of 20 are right')


@pytest.mark.parametrize('task, attention, prompt, expected', [
    ('dyck:max_depth=3', 'bifocal', '([', '])'), ('bio_rotation:period=3', 'spectral', 'ACG...', 'ACG'),
    ('modulo', 'tapa', 'C2503', '141')])
def test_sample_answers_a_prompt(runs, capsys, task, attention, prompt, expected):
    folder = runs(task, attention).folder
    sample.main([str(folder), f'--prompt={prompt}', '--device=cpu', '--temperature=1', '--top_k=2'])
    truth = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith('  truth')]
    assert ''.join(truth[0]) == expected
    for bad in ('()', 'xyz', '', '...', '500', 'C', '(]'):
        with pytest.raises(ValueError, match='is not a string of|has other symbols'):
            sample.main([str(folder), f'--prompt={bad}', '--device=cpu'])


def test_sample_continues_a_text(runs, capsys):
    folder = runs('text', 'rope').folder
    sample.main([str(folder), '--prompt=def ', '--length=5', '--device=cpu'])
    model, task, _ = eval_file.load_run(folder, 'best.pt', 'cpu')
    whole = model.generate(torch.from_numpy(task.encode('def '))[None], 5, 0)[0]
    assert capsys.readouterr().out == f'def [{task.decode(whole[4:])}]\n\n'
    with pytest.raises(SystemExit):
        sample.main([str(folder), '--top_k=0'])


def script(*arguments, cwd=ROOT, **environment):
    kept = {name: value for name, value in os.environ.items() if name not in ('PYTHONPATH', 'RANK', 'TRACEBACK')}
    kept |= environment
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, env=kept)


@pytest.mark.parametrize('arguments, line', [
    (['train.py', '--attention=rpoe'], f"train.py: attention='rpoe': must be one of {', '.join(ATTENTIONS)}"),
    (['train.py', '--max_itres=3'], "train.py: --max_itres=3: unknown option 'max_itres'; did you mean max_iters?"),
    (['eval.py', 'nowhere'], 'eval.py: nowhere/best.pt does not exist: is its run still to be trained?')])
def test_an_error_is_one_line_and_no_traceback(arguments, line):
    done = script(*arguments)
    assert (done.returncode, done.stderr) == (1, line + '\n')


def test_the_page_runs_with_the_lab_deleted(tmp_path):
    page = ['model.py', 'train.py', 'tasks.py', 'eval.py', 'sample.py', 'configurator.py']
    for name in page:
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / 'config', tmp_path / 'config')
    out = str(tmp_path / 'run')
    for command in (['train.py', 'config/dyck3_spectral.py', *SMALL, f'--out_dir={out}'], ['eval.py', out, '--n=8'],
                    ['sample.py', out, '--n=2']):
        done = script(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    asked = script('train.py', '--rope=linear', f'--out_dir={out}2', *SMALL, cwd=tmp_path)
    assert (asked.returncode, asked.stderr) == (1, "train.py: No module named 'lab'\n")
