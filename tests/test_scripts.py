"""eval.py, sample.py and bench.py from end to end, and the numbers they print."""

import builtins
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bench
import eval as eval_file
import sample
from conftest import ROOT
from model import ATTENTIONS, GPT
from tasks import make_task, stream


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """runs(task, attention) is a small trained run, made once."""
    from conftest import Run
    made = {}

    def get(task, attention, seed=0):
        if (task, attention, seed) not in made:
            folder = tmp_path_factory.mktemp('runs') / f'{task.split(":")[0]}_{attention}_{seed}'
            made[task, attention, seed] = Run(folder).train(f'--task={task}', f'--attention={attention}', f'--seed={seed}', '--max_iters=30', '--eval_interval=10')
        return made[task, attention, seed]
    return get


@pytest.mark.parametrize('task, attention', [('dyck:max_depth=3', 'bifocal'), ('bio_rotation:period=3', 'spectral'), ('modulo', 'spectral'), ('lag', 'rope'),
                                             ('sum', 'tapa'), ('modulo', 'nope')])
def test_eval_measures_what_it_says(runs, task, attention, capsys):
    run = runs(task, attention)
    eval_file.main([str(run.folder), '--n=16', '--device=cpu'])
    printed = capsys.readouterr().out
    result = json.loads((run.folder / 'eval.json').read_text())
    assert list(result['lengths']) == ['16', '32', '64', '128'] and result['task'] == task and result['attention'] == attention
    # the same numbers, computed anew from the definition
    task = make_task(task)
    model = GPT.from_checkpoint(run.folder / 'best.pt')
    x, y = task.sample(stream('test', str(task), 32), 16, 32)
    with torch.no_grad():
        logits = model(torch.from_numpy(x))[0]
    scored = torch.from_numpy(y) >= 0
    m = result['lengths']['32']
    assert m['loss'] == pytest.approx(F.cross_entropy(logits[scored], torch.from_numpy(y)[scored]).item(), rel=1e-4)
    right = (logits.argmax(-1).numpy() == y) & (y >= 0)
    assert m['accuracy'] == pytest.approx(right.sum() / (y >= 0).sum())
    assert m['exact'] == pytest.approx(np.mean([right[b].sum() == (y[b] >= 0).sum() for b in range(16)]))
    counted = (y >= 0) & (x >= task.k) & (x < 2 * task.k) if task.name == 'dyck' else y >= 0  # the headline: non-trivial closers
    assert m['headline'] == pytest.approx((right & counted).sum() / counted.sum())
    for group, cells in m['breakdown'].items():
        assert cells and all(label in printed for label in list(cells)[:12]), group
    assert set(result['variants']) == ({'depth 6'} if task.name == 'dyck' else set())
    assert set(result['eyes']) == ({'geometric', 'spectral'} if attention == 'bifocal' else set())
    assert ('frequencies' in result) == (attention in ('spectral', 'bifocal'))
    figures = {'accuracy.png'} | ({'frequencies.png'} if 'frequencies' in result else set())
    assert all((run.folder / name).read_bytes()[:4] == b'\x89PNG' for name in figures)


def test_the_frequency_table_finds_the_harmonic(runs):
    model = GPT.from_checkpoint(runs('modulo', 'spectral').folder / 'best.pt')
    with torch.no_grad():
        model.spectral()[0].Omega[1, :4] = torch.tensor([2 * math.pi / 7 + 1e-4, -4 * math.pi / 7, 2 * math.pi / 7 + 2e-3, 1e-5])
    rows = {(row['head'], row['pair']): row for row in eval_file.frequency_table(model, 7, [64, 512])}
    assert len(rows) == 2 * 4
    assert [rows[1, pair]['harmonic'] for pair in range(4)] == [1, 2, 1, 0]
    assert [rows[1, pair]['locked'] for pair in range(4)] == [True, True, False, False]
    assert rows[1, 0]['error'] == pytest.approx(1e-4, rel=1e-2) and rows[1, 0]['phase_error']['512'] == pytest.approx(512e-4, rel=1e-2)
    assert 'harmonic' not in eval_file.frequency_table(model, None, [64])[0]


def test_eval_without_matplotlib_says_how_to_get_it(runs, monkeypatch, capsys):
    run = runs('lag', 'rope')
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.startswith('matplotlib'):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, '__import__', without)
    eval_file.main([str(run.folder), '--n=4', '--multiples', '1', '--device=cpu'])
    assert 'pip install matplotlib' in capsys.readouterr().out and (run.folder / 'eval.json').exists()


def test_compare_puts_seeds_of_an_arm_together(runs, tmp_path, capsys):
    folders = []
    for attention, seed in (('rope', 0), ('rope', 1), ('tapa', 0)):
        run = runs('lag', attention, seed)
        eval_file.main([str(run.folder), '--n=8', '--device=cpu'])
        folders.append(str(run.folder))
    capsys.readouterr()
    eval_file.main(['--compare', *folders, '--figure', str(tmp_path / 'figure.png')])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[2].startswith('| lag | rope | 0.002 | 0, 1 |') and lines[3].startswith('| lag | tapa | 0.002 | 0 |')
    values = [json.loads((runs('lag', 'rope', seed).folder / 'eval.json').read_text())['lengths']['16']['headline'] for seed in (0, 1)]
    assert f'{50 * sum(values):.1f} ± {100 * abs(values[0] - values[1]) / math.sqrt(2):.1f}' in lines[2]
    assert (tmp_path / 'figure.png').exists()
    eval_file.main(['--compare', *folders, folders[0], '--figure', str(tmp_path / 'figure.png')])
    assert capsys.readouterr().out.splitlines() == lines  # a run named twice counts once
    eval_file.main([folders[0], '--n=9', '--device=cpu'])
    with pytest.raises(ValueError, match='another run of lag'):
        eval_file.main(['--compare', *folders])
    with pytest.raises(FileNotFoundError, match='has no config.json, eval.json, log.jsonl: train it'):
        eval_file.main(['--compare', str(tmp_path)])


def test_sample_marks_what_is_wrong(runs, capsys):
    run = runs('modulo', 'rope')
    sample.main([str(run.folder), '--n=7', '--show=2', '--device=cpu'])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith('modulo, rope: ') and 'of 7 right' in lines[-1]
    shown = [line for line in lines if line.startswith('  truth') or line.startswith('  model')]
    assert len(shown) == 4
    carets = [line for line in lines if set(line) <= {' ', '^'} and '^' in line]
    truth, model = shown[0][9:], shown[1][9:]
    assert [i for i, c in enumerate(carets[0][9:]) if c == '^'] == [i for i in range(len(truth)) if truth[i] != model[i]]


def test_sample_closes_brackets_and_knows_when_they_are_wrong(runs, capsys, monkeypatch):
    run = runs('dyck:max_depth=3', 'rope')
    task = make_task('dyck:max_depth=3')
    truth, wrong = task.encode(')])'), task.encode(')})')
    for answer, verdict in ((truth, '1 of 1'), (wrong, '0 of 1')):
        said = torch.from_numpy(np.concatenate([task.encode('^([()('), answer]))[None]
        monkeypatch.setattr(GPT, 'generate', lambda self, ids, n, **options: said)
        sample.main([str(run.folder), '--prompt=([()(', '--device=cpu'])
        out = capsys.readouterr().out
        carets = [line for line in out.splitlines() if line.strip() == '^']
        assert f'{verdict} right' in out and len(carets) == (answer is wrong)
        assert not carets or carets[0].index('^') == 9 + 7  # under the seventh bracket
    monkeypatch.undo()
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True, raising=False)
    sample.main([str(run.folder), '--n=3', '--temperature=5', '--device=cpu'])
    out = capsys.readouterr().out
    assert not any(line and set(line) <= {' ', '^'} for line in out.splitlines()) and ('\033[1;31m' in out) == ('3 of 3' not in out)


@pytest.mark.parametrize('prompt, message', [('([x', "'x', character 3"), ('(]', "'\\(\\]' is not a string of dyck:max_depth=3 with something"), ('', 'with something to answer')])
def test_sample_refuses_a_prompt_of_another_language(runs, prompt, message):
    with pytest.raises(ValueError, match=message):
        sample.main([str(runs('dyck:max_depth=3', 'rope').folder), f'--prompt={prompt}', '--device=cpu'])


def test_bench_times_every_attention(tmp_path, capsys):
    bench.main(['--quick', '--rounds=2', '--device=cpu', f'--json={tmp_path}/bench.json'])
    out = capsys.readouterr().out
    rows = json.loads((tmp_path / 'bench.json').read_text())['steps']['small']
    assert [row['attention'] for row in rows] == list(ATTENTIONS) and all(f'| {a} |' in out for a in ATTENTIONS)
    bench.main([f'--show={tmp_path}/bench.json'])
    assert capsys.readouterr().out == out
    assert rows[0]['ratio'] == 1 and all(0 < row['ms'][0] <= row['ms'][1] <= row['ms'][2] for row in rows)


def test_the_scripts_run_from_another_folder(tmp_path):
    def python(*arguments):
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    assert 'done in' in python(ROOT / 'train.py', ROOT / 'config/modulo_bifocal.py', '--max_iters=2', '--eval_sequences=8', '--device=cpu')
    assert 'eval.json' in python(ROOT / 'eval.py', 'out/modulo_bifocal', '--n=4', '--device=cpu')
    assert 'right from end to end' in python(ROOT / 'sample.py', 'out/modulo_bifocal', '--n=2', '--device=cpu')
