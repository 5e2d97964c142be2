"""eval.py, sample.py and bench.py from end to end, and the numbers they print."""

import builtins
import json
import math
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import bench
import eval as eval_file
import sample
import tapa_kernel
from conftest import ROOT
from model import ATTENTIONS, GPT, TAPA, GPTConfig, rope_frequencies
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
    figures = {'accuracy.png'} | ({'frequencies.png', 'moves.png'} if 'frequencies' in result else set())
    assert all((run.folder / name).read_bytes()[:4] == b'\x89PNG' for name in figures)


def test_eval_overrides_the_model_and_writes_elsewhere(runs, capsys):
    folder = runs('modulo', 'nope').folder
    eval_file.main([str(folder), '--n=8', '--device=cpu'])
    plain = (folder / 'eval.json').read_text()
    eval_file.main([str(folder), '--n=8', '--device=cpu', '--override', 'log_scale=16'])
    assert (folder / 'eval.json').read_text() == plain
    changed = json.loads((folder / 'eval_log_scale=16.json').read_text())
    assert changed['overrides'] == {'log_scale': 16} and changed['lengths']['32']['loss'] != json.loads(plain)['lengths']['32']['loss']
    for word, message in (('log_scal=16', "unknown option 'log_scal'; did you mean 'log_scale'"), ('log_scale=x', "log_scale='x': must be a whole number"),
                          ('log_scale', 'written KEY=VALUE'),
                          ('n_layer=2', 'n_layer=2: the weights in')):
        with pytest.raises(ValueError, match=message):
            eval_file.main([str(folder), '--n=8', '--device=cpu', '--override', word])


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


def test_what_moved_is_told_against_the_theta_it_set_off_from(capsys):
    config = GPTConfig(11, n_layer=1, n_head=2, n_embd=16, attention='spectral', rope_scaling='pi', rope_factor=2.0)
    model = GPT(config)
    with torch.no_grad():
        model.spectral()[0].Omega[1, 2] += 0.5
    rows = eval_file.frequency_table(model, None, [64])
    theta = [base / 2 for base in rope_frequencies(8, 10000.0).tolist()]  # as stretched, both
    assert [row['theta'] for row in rows] == pytest.approx(theta * 2)
    moves = {(row['head'], row['pair']): row['Omega'] - row['theta'] for row in rows}
    assert moves.pop((1, 2)) == pytest.approx(0.25) and all(move == 0 for move in moves.values())
    eval_file.print_details(dict(lengths={}, frequencies=rows))
    assert '0    1 pair   2:    0.00500 to    0.25500       0.00e+00' in capsys.readouterr().out


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


@pytest.fixture
def evaluated(runs):
    """evaluated(attention, seed) is the folder of a small evaluated run on `lag`."""
    def get(attention, seed=0, task='lag'):
        run = runs(task, attention, seed)
        eval_file.main([str(run.folder), '--n=8', '--device=cpu'])
        return run.folder
    return get


def test_compare_puts_seeds_of_an_arm_together(evaluated, tmp_path, capsys):
    folders = [str(evaluated(*arm)) for arm in (('rope', 0), ('rope', 1), ('tapa', 0), ('tapa', 1))]
    capsys.readouterr()
    eval_file.main(['--compare', *folders, '--figure', str(tmp_path / 'figure.png')])
    printed = capsys.readouterr().out
    losses, lengths = (table.splitlines() for table in printed.strip().split('\n\n'))
    assert len(losses) == len(lengths) == 4
    assert losses[2].startswith('| lag | rope | 0.002 | 0, 1 |') and losses[3].startswith('| lag | tapa | 0.002 | 0, 1 |')
    result = [json.loads((Path(folder) / 'eval.json').read_text())['lengths'] for folder in folders]
    values = [r['16']['headline'] for r in result]
    assert f'{50 * (values[0] + values[1]):.1f} ± {100 * abs(values[0] - values[1]) / math.sqrt(2):.1f}' in lengths[2]
    beyond = [100 * np.mean([r[length]['headline'] for length in ('32', '64', '128')]) for r in result]
    assert f'| {(beyond[2] - beyond[0] + beyond[3] - beyond[1]) / 2:+.1f} ± ' in lengths[3]
    assert (tmp_path / 'figure.png').exists()
    eval_file.main(['--compare', *folders, folders[0], '--figure', str(tmp_path / 'figure.png')])
    assert capsys.readouterr().out == printed  # a run named twice counts once


def test_compare_skips_what_is_not_whole_and_says_so(evaluated, runs, tmp_path, capsys):
    whole = evaluated('rope')
    bare, broken, stopped = (tmp_path / name for name in ('bare', 'broken', 'stopped'))
    bare.mkdir()
    for folder in (broken, stopped):
        shutil.copytree(whole, folder)
    (broken / 'eval.json').write_text('{"task": "la')
    log = (stopped / 'log.jsonl').read_text().splitlines(keepends=True)
    (stopped / 'log.jsonl').write_text(''.join(log[:-1]) + log[-1][:20])  # killed in the middle of a line
    capsys.readouterr()
    arms = eval_file.read_arms([whole, bare, broken, stopped])
    assert [run['folder'].name for run in arms['lag']['rope']] == [whole.name]
    complaints = capsys.readouterr().err
    for text in ('bare: it has no config.json, log.jsonl, eval.json', 'broken: a file is broken', 'stopped: it stopped at iteration 29 of 30'):
        assert text in complaints
    with pytest.raises(ValueError, match='none of these is a finished'):
        eval_file.main(['--compare', str(bare), str(broken)])


def test_compare_refuses_what_does_not_compare_unless_forced(evaluated, tmp_path, capsys):
    lag, total = evaluated('rope'), evaluated('rope', task='sum')
    longer, other = tmp_path / 'longer', tmp_path / 'other'
    for folder in (longer, other):
        shutil.copytree(lag, folder)
    config = json.loads((longer / 'config.json').read_text())
    (longer / 'config.json').write_text(json.dumps(config | {'options': config['options'] | {'batch_size': 8}}))
    result = json.loads((other / 'eval.json').read_text())
    (other / 'eval.json').write_text(json.dumps(result | {'n': 9}))
    for folder, what in ((total, 'different tasks: lag .*; sum'), (longer, 'different budgets: .*batch_size=8'), (other, 'different measurements')):
        with pytest.raises(ValueError, match=what):
            eval_file.main(['--compare', str(lag), str(folder)])
    capsys.readouterr()
    eval_file.main(['--compare', str(lag), str(total), '--force', '--figure', str(tmp_path / 'figure.png')])
    printed = capsys.readouterr().out
    assert '| lag | rope |' in printed and '| sum | rope |' in printed


def test_arms_are_named_after_what_makes_them_different():
    options = dict(attention='rope', rope_grid='geometric', rope_period=0, spectral_lr=0.01, learn_phase=True)
    name = lambda differing, **changes: eval_file.arm_name(options | changes, differing)
    grids = ['rope_grid', 'rope_period']
    assert name(grids) == 'rope' and name(grids, rope_grid='resonance') == 'resonance'
    assert name(grids, rope_grid='harmonic', rope_period=7) == 'oracle'
    assert name(['rope_grid'], attention='spectral', rope_grid='linear') == 'spectral rope_grid=linear'
    assert name(['learn_phase'], attention='spectral') == 'spectral'
    assert name(['learn_phase'], attention='spectral', learn_phase=False) == 'spectral learn_phase=False'
    assert name(['amplitude_decay'], amplitude_decay=0.0) == 'rope' and name(['amplitude_decay'], amplitude_decay=0.3) == 'rope amplitude_decay=0.3'
    assert name(['spectral_lr'], attention='spectral') == 'spectral spectral_lr=0.01'


def test_paired_statistics():
    mean, half, p = eval_file.paired([3.0, 5.0, 4.0, 7.0], [1.0, 2.0, 2.0, 3.0])  # differences 2, 3, 2, 4
    assert mean == 2.75 and half == pytest.approx(3.182 * np.std([2, 3, 2, 4], ddof=1) / 2) and p == 2 / 16
    assert eval_file.paired([1.0, -1.0, 2.0], [0.0, 0.0, 0.0])[2] == 6 / 8  # sums of +-1, +-1, +-2: all but 0, twice
    assert all(map(math.isnan, eval_file.paired([1.0], [0.0])[1:]))
    rng = np.random.default_rng(0)  # the interval covers the truth 95 times in 100
    covered = [abs(mean) <= half for mean, half, _ in (eval_file.paired(rng.normal(size=5), np.zeros(5)) for _ in range(2000))]
    assert 0.935 < np.mean(covered) < 0.965


def test_quartiles_are_numpys_and_never_is_worse_than_any():
    for values in ([1.0, 2.0, 4.0, 8.0, 16.0], [3.0, 1.0, 2.0, 7.0], [1.0, 5.0]):
        low, median, high = np.percentile(values, [25, 50, 75])
        assert eval_file.quartiles(values, '.4g') == f'{median:.4g} [{low:.4g}, {high:.4g}]'
    assert eval_file.quartiles([None, 100, 300, None, 200], '.0f') == '300 [200, -]'
    assert eval_file.quartiles([0.5]) == '0.5'


def test_lock_in_is_the_first_validation_after_which_a_pair_stays_locked():
    def run(*omegas, task='modulo'):
        return {'eval': {'task': task}, 'validations': [{'iter': 10 * i, 'Omega': [[pairs]]} for i, pairs in enumerate(omegas)]}
    h = 2 * math.pi / 7
    assert eval_file.lock_in(run([0.5, 0.1], [h, 0.1], [h + 5e-4, 0.1])) == 10
    assert eval_file.lock_in(run([h, 0.1], [0.5, 0.1], [h, 0.1], [h, 0.1])) == 20  # it left once
    assert eval_file.lock_in(run([h, 0.1], [h, -2 * h], [h, -2 * h])) == 0
    assert eval_file.lock_in(run([h, 0.1], [h, 0.1], [0.5, 0.1])) is None
    assert eval_file.lock_in(run([0.0, 1e-4], [7 * h, 1e-4])) is None  # standing still is no harmonic
    assert eval_file.lock_in(run([h], [h], task='dyck')) is None


@pytest.mark.parametrize('attention', ['rope', 'spectral', 'tapa', 'nope'])
def test_scores_are_those_that_attention_uses_and_profiles_average_them(attention):
    torch.manual_seed(0)
    model = GPT(GPTConfig(14, n_layer=2, n_head=2, n_kv_head=1, n_embd=16, attention=attention)).eval()
    x = torch.randn(3, 12, 16)
    attention_layer, positions = model.blocks[1].attention, torch.arange(12)
    _, _, v = attention_layer.heads(x, positions)
    scores = eval_file.attention_scores(attention_layer, x, positions)
    causal = torch.ones(12, 12).tril() > 0
    y = scores.masked_fill(~causal, float('-inf')).softmax(-1) @ v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(attention_layer.proj(y.transpose(1, 2).reshape(3, 12, 16)), attention_layer(x, positions))

    task = make_task('modulo')  # its one source is the first symbol: distance t, for every t > 0
    profile = eval_file.score_by_distance(model, task, 12, 50, 'cpu', 'test')
    x, _ = task.sample(stream('test', 'modulo', 12), 50, 12)
    x = x[x[:, 0] == 7]  # C0 alone
    assert 2 < len(x) < 20
    first = eval_file.attention_scores(model.blocks[0].attention, model.blocks[0].norm_1(model.embedding(torch.from_numpy(x))), positions)
    expected = first[:, :, :, 0].mean(0)
    assert profile[0][0][0] is None and np.shape(profile) == (2, 2, 12)
    for head in range(2):
        assert profile[0][head][1:] == pytest.approx(expected[head, 1:].tolist(), rel=2e-3, abs=1e-5)


def test_state_similarity_is_the_cosine_of_mean_states():
    torch.manual_seed(0)
    task = make_task('dyck')
    model = GPT(GPTConfig(len(task.symbols), n_layer=1, n_embd=16)).eval()
    (layer,) = eval_file.state_similarity(model, task, 32, 20, 'cpu', 'test', least=2)
    x, _ = task.sample(stream('test', 'dyck', 32), 20, 32)
    residual = model.blocks[0](model.embedding(torch.from_numpy(x)), torch.arange(32)).detach().numpy()
    depth = np.array([[sum(1 if s < 3 else -1 for s in row[1:t + 1]) for t in range(32)] for row in x])
    means = {d: residual[depth == d].mean(0) for d in range(5)}
    for d in range(4):
        for value, centre in zip(layer[str(d)], (0, residual.mean((0, 1)))):
            a, b = means[d] - centre, means[d + 1] - centre
            assert value == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=2e-3)
    assert eval_file.state_similarity(model, make_task('lag'), 16, 2, 'cpu', 'test') is None


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
    results = json.loads((tmp_path / 'bench.json').read_text())
    rows = results['steps']['small']
    assert [row['arm'] for row in rows] == [*ATTENTIONS, 'shared'] and all(f'| {row["arm"]} |' in out for row in rows)
    bench.main([f'--show={tmp_path}/bench.json'])
    assert capsys.readouterr().out == out
    share = rows[0]['flops'] / (rows[0]['ms'][1] / 1e3) / results['matrix_rate']
    assert 0.01 < share < 1.2 and f'| {100 * share:.0f} % |' in next(line for line in out.splitlines() if line.startswith('| rope |'))
    assert rows[0]['ratio'] == [1, 1, 1] and all(0 < row[kind][0] <= row[kind][1] <= row[kind][2] for row in rows for kind in ('ms', 'ratio'))


def test_bench_counts_what_a_step_computes_and_saves():
    shape = dict(n_layer=2, n_head=2, n_embd=32, block_size=16, batch_size=4, vocab_size=65)
    step, model = bench.training_step('tapa', shape, 'cpu', 'float32', compile=False)  # all its products are plain ones
    with FlopCounterMode(display=False) as counter:
        step()
    assert bench.count_flops(model, 4, 16, 2, 32) == counter.get_total_flops()
    layer = bench.training_step('tapa', shape | dict(n_layer=1), 'cpu', 'float32', compile=False)[1].blocks[0].attention
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(4, 16, 32, requires_grad=True), torch.arange(16)).sum().backward()
    assert bench.count_flops(layer, 4, 16, 1, 32) == counter.get_total_flops()
    one, two = (bench.saved_MiB('nope', shape | {'batch_size': B}, 'cpu', 'float32') for B in (4, 8))
    activations = 4 * 16 * 32 * 4 / 2**20  # one (B, T, C) float32
    assert 10 * activations < one < 60 * activations and two == pytest.approx(2 * one, rel=0.01)


PEER = """
from dataclasses import dataclass
from torch import nn


@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding, self.lm_head = nn.Embedding(config.vocab_size, config.n_embd), nn.Linear(config.n_embd, config.vocab_size, bias=config.bias)
        print('how many parameters I have')

    def forward(self, x, y):
        logits = self.lm_head(self.embedding(x))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
"""


@pytest.mark.parametrize('peer', ['llama', 'nanogpt'])
def test_bench_times_a_peer_of_the_same_shape(peer, tmp_path, capsys):
    if peer == 'llama':
        pytest.importorskip('transformers')
    else:
        (tmp_path / 'model.py').write_text(PEER)
    bench.main(['--quick', '--rounds=2', '--device=cpu', '--arms', 'rope', {'nanogpt': f'nanogpt={tmp_path}/model.py'}.get(peer, peer), f'--json={tmp_path}/bench.json'])
    ours, theirs = json.loads((tmp_path / 'bench.json').read_text())['steps']['small']
    assert theirs['arm'] == peer and 0 < theirs['ms'][0] and 'model.py' not in capsys.readouterr().out
    if peer == 'llama':  # the very matrices of ours
        assert theirs['parameters'] == ours['parameters'] and theirs['flops'] == ours['flops']
    else:
        assert theirs['parameters'] == 2 * 65 * 64 and theirs['flops'] < ours['flops']


@pytest.mark.parametrize('arguments, message', [(['--arms', 'ropes'], "'ropes': must be one of rope, "), (['--arms', 'nanogpt=nowhere.py'], "'nanogpt=nowhere.py'"),
                                                (['--arms', 'rope', f'nanogpt={__file__}', '--lengths', '16'], 'peers are timed by the step'),
                                                (['--kernels'], 'say which --lengths'), (['--figure=x.png'], 'say which --lengths')])
def test_bench_refuses_what_it_cannot_do(arguments, message, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize('arm', bench.KERNELS)
def test_bench_measures_the_error_of_attention_alone(arm):
    """The formula in float64 beside what is timed; with another power of the distance they differ."""
    if arm == 'fused' and tapa_kernel.triton is None:
        pytest.skip('Triton is not installed')
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    q, k, v, do = (torch.randn(1, 1, 40, 16, device=device, requires_grad=i < 3) for i in range(4))
    ours = bench.with_gradients(bench.kernel(arm, 40, 16, device), q, k, v, do)
    for x, y in zip(ours, bench.with_gradients(partial(bench.exact, arm), q, k, v, do)):
        assert y.shape == x.shape and (x.double() - y).norm() < 1e-5 * y.norm()
    wrong = bench.with_gradients(partial(bench.exact, 'explicit' if arm == 'sdpa' else 'sdpa'), q, k, v, do)
    assert all((x.double() - y).norm() > 0.01 * y.norm() for x, y in zip(ours, wrong))


def test_bench_of_attention_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tapa_kernel, 'interpreted', False)  # it would take a minute
    bench.main(['--kernels', '--lengths', '16', '64', '--tokens=64', '--rounds=2', '--head_size=16', '--device=cpu', f'--json={tmp_path}/bench.json',
                f'--figure={tmp_path}/bench.png'])
    rows = json.loads((tmp_path / 'bench.json').read_text())['lengths']
    assert [(r['T'], r['B'], r['arm']) for r in rows] == [(T, 64 // T, arm) for T in (16, 64) for arm in ('sdpa', 'blocked', 'explicit')]
    assert all(r['errors'].keys() == {'out', 'dq', 'dk', 'dv'} and max(r['errors'].values()) < 1e-5 for r in rows)
    printed = capsys.readouterr()
    assert all(line.count('|') == 11 for line in printed.out.splitlines() if line.startswith('|'))
    assert 'fused is left out at 16 tokens: Triton ' in printed.err


def test_bench_compiles_every_shape_anew(monkeypatch):
    """More shapes and arms than a function may be compiled for: each is compiled, whole and static, and none runs eager."""
    from torch._dynamo.testing import CompileCounter
    counter, compile, static = CompileCounter(), torch.compile, []
    monkeypatch.setattr(torch, 'compile', lambda model, **options: static.append(options) or compile(model, backend=counter, **options))
    bench.main(['--lengths', '8', '12', '16', '20', '--tokens=32', '--rounds=2', '--head_size=8', '--arms', *ATTENTIONS, '--compile', '--device=cpu'])
    assert len(static) == 4 * len(ATTENTIONS) and all(options == dict(dynamic=False, fullgraph=True) for options in static)
    assert counter.frame_count == 2 * len(static)  # with and without gradients


def test_bench_compiles_what_a_compiler_leaves_to_python(monkeypatch, capsys):
    monkeypatch.setattr(TAPA, 'UNROLLED', 16)
    bench.main(['--lengths', '16', '32', '--tokens=32', '--rounds=2', '--head_size=8', '--arms', 'rope', 'tapa', '--compile', '--device=cpu'])
    assert '| 32 | tapa |' in capsys.readouterr().out


def test_bench_by_length(tmp_path, capsys):
    bench.main(['--lengths', '16', '64', '--rounds=2', '--head_size=8', '--arms', 'rope', 'tapa', 'plain', '--device=cpu', f'--json={tmp_path}/bench.json',
                f'--figure={tmp_path}/bench.png'])
    out = capsys.readouterr().out
    results = json.loads((tmp_path / 'bench.json').read_text())
    assert [(r['T'], r['arm']) for r in results['lengths']] == [(r['T'], r['arm']) for r in results['generation']] == [
        (T, arm) for T in (16, 64) for arm in ('rope', 'tapa', 'plain')]
    assert all(r['T'] * r['B'] == 2**14 and 0 < r['forward_ms'][1] and 0 < r['both_ms'][1] for r in results['lengths'])
    saved = {(r['T'], r['arm']): r['saved_MiB'] for r in results['lengths']}
    assert saved[64, 'tapa'] == saved[64, 'plain'] > saved[16, 'tapa'] > saved[16, 'rope'] == pytest.approx(saved[64, 'rope'], rel=0.05)
    bench.main([f'--show={tmp_path}/bench.json'])
    assert capsys.readouterr().out == out and (tmp_path / 'bench.png').read_bytes()[:4] == b'\x89PNG'


def test_the_scripts_run_from_another_folder(tmp_path):
    def python(*arguments):
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    assert 'done in' in python(ROOT / 'train.py', ROOT / 'config/modulo_bifocal.py', '--max_iters=2', '--eval_sequences=8', '--device=cpu')
    assert 'eval.json' in python(ROOT / 'eval.py', 'out/modulo_bifocal', '--n=4', '--device=cpu')
    assert 'right from end to end' in python(ROOT / 'sample.py', 'out/modulo_bifocal', '--n=2', '--device=cpu')
