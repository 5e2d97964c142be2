"""lab/bench.py: each of its modes on small sizes, and what it counts. No time is asserted."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from configurator import UserError
from lab import bench, tapa, tapa_kernel
from lab.tests.conftest import ROOT
from model import ATTENTIONS, GPTConfig
from tasks import TASKS

OPTIONS = SimpleNamespace(device='cpu', dtype='float32', compile=False, rounds=2, head_size=8,
                          tokens=32)
SHAPE = dict(n_layer=2, n_head=2, n_embd=32, block_size=16, batch_size=4, vocab_size=65)
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
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=config.bias)
        print('how many parameters I have')

    def forward(self, x, y):
        logits = self.lm_head(self.embedding(x))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run(*arguments) is the bench on a small shape: its results, what it printed, its warnings."""
    monkeypatch.setitem(bench.SHAPES, 'small', SHAPE)

    def go(*arguments):
        path = tmp_path / 'bench.json'
        bench.main([*arguments, '--rounds=2', '--device=cpu', f'--json={path}'])
        printed = capsys.readouterr()
        bench.main([f'--show={path}'])
        assert capsys.readouterr().out == printed.out
        return json.loads(path.read_text()), printed.out, printed.err
    return go


def test_steps_of_every_attention_and_sampling_of_every_task(run):
    results, printed, _ = run('--quick')
    rows = results['steps']['small']
    assert [row['arm'] for row in rows] == [*ATTENTIONS, 'shared']
    assert all(f'| {row["arm"]} | {row["parameters"]:,} |' in printed for row in rows)
    assert rows[0]['ratio'] == [1, 1, 1]
    for row in rows:
        assert 0 < row['ms'][0] <= row['ms'][1] <= row['ms'][2]
    assert set(results['sampling_ms']) == set(TASKS)
    assert {'command', 'commit', 'processor', 'threads', 'torch', 'date'} <= results.keys()
    share = 100 * rows[0]['flops'] / (rows[0]['ms'][1] / 1e3) / results['matrix_rate']
    line, = (line for line in printed.splitlines() if line.startswith('| rope |'))
    assert line.endswith(f'| {share:.0f} % |')


@pytest.mark.parametrize('peer', ['llama', 'nanogpt'])
def test_a_peer_of_the_same_shape(peer, run, tmp_path):
    if peer == 'llama':
        pytest.importorskip('transformers')
    (tmp_path / 'model.py').write_text(PEER)
    arm = dict(llama='llama', nanogpt=f'nanogpt={tmp_path}/model.py')[peer]
    results, printed, _ = run('--quick', '--arms', 'rope', arm)
    ours, theirs = results['steps']['small']
    assert theirs['arm'] == peer and 'model.py' not in printed and 'how many' not in printed
    if peer == 'llama':  # the very matrices of ours
        assert theirs['parameters'] == ours['parameters'] and theirs['flops'] == ours['flops']
    else:
        assert theirs['parameters'] == 2 * 65 * 32


def test_what_a_step_computes_and_saves():
    # all products of tapa are plain ones
    step, model = bench.training_step('tapa', SHAPE, OPTIONS, compile=False)
    with FlopCounterMode(display=False) as counter:
        step()
    assert bench.count_flops(model, 4, 16, 2, 32) == counter.get_total_flops()
    layer = model.blocks[0].attention
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(4, 16, 32, requires_grad=True)).sum().backward()
    assert bench.count_flops(layer, 4, 16, 1, 32) == counter.get_total_flops()
    saved = []
    for B in (4, 8):
        shape = SHAPE | {'batch_size': B}
        step, model = bench.training_step('nope', shape, OPTIONS, compile=False)
        saved.append(bench.saved_MiB(step, model.parameters()))
    activations = 4 * 16 * 32 * 4 / 2**20  # one (B, T, C) float32
    assert 10 * activations < saved[0] < 60 * activations
    assert saved[1] == pytest.approx(2 * saved[0], rel=0.01)


def test_plain_is_without_the_kernel():
    for arm, fused in (('tapa', True), ('plain', False)):
        assert bench.as_called(arm, lambda: tapa.FUSED, OPTIONS)() is fused
    with pytest.raises(ZeroDivisionError):
        bench.as_called('plain', lambda: 1 / 0, OPTIONS)()
    assert tapa.FUSED


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_layers_run_in_the_dtype_of_the_options(dtype):
    options = SimpleNamespace(device='cpu', dtype=str(dtype).removeprefix('torch.'))
    assert bench.as_called('rope', torch.nn.Linear(2, 2), options)(torch.randn(1, 2)).dtype == dtype


def test_layers_and_generation_by_length(run, tmp_path):
    arms = ['rope', 'tapa', 'plain']
    results, _, _ = run('--lengths', '16', '64', '--head_size=8', '--arms', *arms,
                        f'--figure={tmp_path}/bench.png')
    expected = [(T, arm) for T in (16, 64) for arm in arms]
    assert [(row['T'], row['arm']) for row in results['lengths']] == expected
    assert [(row['T'], row['arm']) for row in results['generation']] == expected
    assert all(row['T'] * row['B'] == 2**14 for row in results['lengths'])
    saved = {(row['T'], row['arm']): row['saved_MiB'] for row in results['lengths']}
    assert saved[64, 'tapa'] == saved[64, 'plain'] > saved[16, 'tapa'] > saved[16, 'rope']
    assert saved[16, 'rope'] == pytest.approx(saved[64, 'rope'], rel=0.05)
    assert (tmp_path / 'bench.png').read_bytes()[:4] == b'\x89PNG'


def test_what_memory_does_not_hold_is_left_out(run, monkeypatch):
    need = partial(bench.activation_bytes, batch=1, length=64, training=True)
    configs = [GPTConfig(vocab_size=1, n_layer=1, n_head=4, n_embd=32, attention=attention)
               for attention in ('rope', 'tapa')]
    monkeypatch.setattr(bench, 'free_bytes', lambda device: sum(map(need, configs)))
    results, _, warned = run('--lengths', '64', '--head_size=8', '--tokens=64', '--arms', 'tapa',
                             'rope')
    assert [row['arm'] for row in results['lengths']] == ['rope']
    assert warned == 'tapa is left out at 64 tokens: memory does not hold it\n'


@torch.no_grad()
def test_generation_reads_the_last_token_alone(monkeypatch):
    logits = []

    def spy(functions, rounds, device):
        for _ in range(2):  # a call leaves the context as it was
            logits.extend((function()[0][:, -1] for function in functions.values()))
        return {name: [1.0] for name in functions}
    monkeypatch.setattr(bench, 'interleave', spy)
    monkeypatch.setitem(bench.SHAPES, 'small', SHAPE)
    assert bench.bench_generation(9, SimpleNamespace(**vars(OPTIONS), arms=['bifocal'])) == [
        dict(arm='bifocal', T=9, cached_ms=1.0, uncached_ms=1.0)]
    assert len(logits) == 4
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0])


def test_every_shape_is_compiled_anew(run, monkeypatch):
    """More shapes and arms than a function may be compiled for: each is compiled, in one graph."""
    from torch._dynamo.testing import CompileCounter
    counter, compile, chosen = CompileCounter(), torch.compile, []

    def spy(module, **options):
        chosen.append(options)
        return compile(module, backend=counter, **options)
    monkeypatch.setattr(torch, 'compile', spy)
    small = ('--tokens=32', '--head_size=8', '--compile', '--arms')
    run('--lengths', '8', '12', '16', '20', *small, *ATTENTIONS)
    assert chosen == [dict(dynamic=False, fullgraph=True)] * (4 * len(ATTENTIONS))
    assert counter.frame_count == 2 * len(chosen)  # with and without gradients
    monkeypatch.setattr(tapa, 'UNROLLED', 1024)
    _, printed, _ = run('--lengths', '1025', *small, 'tapa')  # its blocks are left to Python
    assert chosen[-1] == dict(dynamic=False, fullgraph=False) and '| 1025 | tapa |' in printed
    chosen.clear()
    run('--quick', '--compile', '--arms', 'rope')
    assert chosen == [dict(dynamic=False, fullgraph=True)]


@pytest.mark.parametrize('arm', bench.KERNELS)
def test_the_error_of_attention_alone(arm):
    """The formula in float64 beside what is timed; another arm's formula differs."""
    if arm == 'fused' and tapa_kernel.triton is None:
        pytest.skip('Triton is not installed')
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(1, 1, 40, 16, device=device) for _ in range(4))
    attend = bench.kernel(arm, 40, 16, device)
    assert max(bench.errors(arm, attend, q, k, v, do).values()) < 1e-5
    other = 'explicit' if arm == 'sdpa' else 'sdpa'
    assert min(bench.errors(other, attend, q, k, v, do).values()) > 0.01


def test_attention_alone_by_length(run, monkeypatch, tmp_path):
    monkeypatch.setattr(tapa_kernel, 'interpreted', False)  # it would take a minute
    results, printed, warned = run('--kernels', '--lengths', '16', '64', '--tokens=64',
                                   '--head_size=16', f'--figure={tmp_path}/bench.png')
    rows = results['lengths']
    assert [(row['T'], row['B'], row['arm']) for row in rows] == [
        (T, 64 // T, arm) for T in (16, 64) for arm in ('sdpa', 'blocked', 'explicit')]
    for row in rows:
        assert list(row['errors']) == ['out', 'dq', 'dk', 'dv']
        assert max(row['errors'].values()) < 1e-5
    lines = [line for line in printed.splitlines() if line.startswith('|')]
    assert all(line.count('|') == 11 for line in lines)
    assert 'fused is left out at 16 tokens: Triton ' in warned


@pytest.mark.parametrize('name', ['eager', 'compiled', 'lengths'])
def test_the_committed_results_are_shown(name, capsys):
    path = ROOT / f'lab/results/bench-{name}.json'
    bench.main(['--show', str(path)])
    printed, results = capsys.readouterr().out, json.loads(path.read_text())
    assert printed.startswith(f'`{results["command"]}` at {results["commit"]}; ')
    rows = sum(results['steps'].values(), []) + results.get('lengths', [])
    for row in rows:
        low, median, high = row.get('ms', row.get('both_ms'))
        assert f'{median:.2f} [{low:.2f}, {high:.2f}]' in printed


def test_the_figure_joins_no_two_methods(tmp_path, monkeypatch, capsys):
    pytest.importorskip('matplotlib')
    path, drawn = ROOT / 'lab/results/bench-lengths.json', []
    monkeypatch.setattr(bench.plot, 'save', lambda plt, figure, *where, **how: drawn.append(figure))
    bench.main([f'--show={path}', f'--figure={tmp_path}/bench.png'])
    rows = json.loads(path.read_text())['lengths']
    (figure,) = drawn
    for axes, value in zip(figure.axes, (lambda row: row['both_ms'][1],
                                         lambda row: row['saved_MiB'])):
        lines = {line.get_label().partition(' (')[0]: line for line in axes.get_lines()}
        assert list(lines['tapa, scores kept'].get_xdata()) == [256, 1024]
        assert list(lines['tapa, scores computed anew'].get_xdata()) == [4096]
        for row in rows:
            x, y = lines[bench.method(row, 'cpu')].get_data()
            assert y[list(x).index(row['T'])] == pytest.approx(value(row) / row['B'])


def test_a_kernel_is_one_method_at_every_length():
    rows = [dict(arm='tapa', T=T) for T in (tapa.STORED, tapa.STORED + 1)]
    assert [bench.method(row, 'cuda:0') for row in rows] == ['tapa', 'tapa']
    assert len({bench.method(row, 'mps') for row in rows}) == 2
    assert len({bench.method(row | dict(arm='plain'), 'cuda') for row in rows}) == 2


@pytest.mark.parametrize('arguments, message', [
    (['--arms', 'rope', 'llama', '--lengths', '16'], 'rope llama: with --lengths must be of rope'),
    (['--kernels'], 'say which --lengths'), (['--figure=x.png'], 'say which --lengths'),
    (['--rounds=1'], '--rounds must be at least 2'),
    (['--lengths', '0'], '--head_size at least 1')])
def test_what_it_refuses(arguments, message, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert message in capsys.readouterr().err


def test_errors_name_the_option(tmp_path):
    for arm in ('ropes', 'nanogpt=nowhere.py'):
        with pytest.raises(UserError, match=f'--arms {arm}: must be one of rope, '):
            bench.build(arm, SHAPE)
    (tmp_path / 'eval.json').write_text('{}')
    with pytest.raises(UserError, match='--show=.*eval.json: must be a file that --json wrote'):
        bench.main([f'--show={tmp_path}/eval.json'])
    (tmp_path / 'eval.json').write_text('[' * 100_000)
    for name in ('eval.json', 'nothing.json'):
        with pytest.raises(UserError, match='a file is broken|it has no nothing.json'):
            bench.main([f'--show={tmp_path}/{name}'])


def test_absurd_sizes_are_refused():
    with pytest.raises(UserError, match='GiB of memory'):
        bench.main(['--lengths', '100000000000', '--device=cpu'])
