"""lab/bench.py: each of its parts on small sizes, and what it counts. No time is asserted."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lab import bench, tapa_kernel
from lab.tests.conftest import ROOT
from model import GPTConfig, UserError

OPTIONS = SimpleNamespace(device='cpu', dtype='float32', rounds=2, head_size=8, tokens=32)
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
def run(tmp_path, capsys):
    """run(*arguments) measures small sizes: the rows, what it printed, its warnings."""
    def go(*arguments):
        path = tmp_path / 'bench.json'
        bench.main(['--quick', '--device=cpu', f'--json={path}', *arguments])
        printed = capsys.readouterr()
        bench.main(['--show', f'--json={path}'])
        assert capsys.readouterr().out == printed.out
        rows = bench.read_rows(path)
        for row in rows:
            facts = {'date', 'commit', 'processor', 'threads', 'torch', 'device', 'dtype', 'rounds'}
            assert facts <= row.keys() and 'error' not in row
        return rows, printed.out, printed.err
    return go


def test_steps_of_every_attention(run):
    rows, printed, _ = run()
    assert [row['arm'] for row in rows] == bench.ARMS
    assert rows[0]['step ratio'] == [1, 1, 1]
    for row in rows:
        low, median, high = row['step']
        assert 0 < low <= median <= high
        assert row['tokens_per_second'] == pytest.approx(1e3 * 2 * 16 / median)
        assert f'| {row["arm"]} | {row["parameters"]:,} | {median:.2f} [{low:.2f}, ' in printed


def test_quartiles_of_two_rounds_lie_between_them():
    assert bench.quartiles([1, 9]) == [3, 5, 7]


def test_nanogpt_beside_ours(run, tmp_path):
    (tmp_path / 'model.py').write_text(PEER)
    (_, theirs), printed, _ = run('--arms', 'rope', f'nanogpt={tmp_path}/model.py')
    assert theirs['arm'] == 'nanogpt' and theirs['parameters'] == 2 * 65 * 32
    assert 'model.py' not in printed and 'how many' not in printed


def test_what_a_step_computes_and_saves():
    # all products of tapa are plain ones
    step, model = bench.training_step('tapa', SHAPE, OPTIONS)
    with FlopCounterMode(display=False) as counter:
        step()
    assert bench.count_flops(model, 4, 16, 2, 32) == counter.get_total_flops()
    layer = model.blocks[0].attention
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(4, 16, 32, requires_grad=True)).sum().backward()
    assert bench.count_flops(layer, 4, 16, 1, 32) == counter.get_total_flops()
    saved = []
    for B in (4, 8):
        step, model = bench.training_step('nope', SHAPE | {'batch_size': B}, OPTIONS)
        saved.append(bench.saved_MiB(step, model.parameters()))
    activations = 4 * 16 * 32 * 4 / 2**20  # one (B, T, C) float32
    assert 10 * activations < saved[0] < 60 * activations
    assert saved[1] == pytest.approx(2 * saved[0], rel=0.01)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_products_have_the_dtype_of_the_options(dtype):
    options = SimpleNamespace(device='cpu', dtype=str(dtype).removeprefix('torch.'))
    assert bench.in_dtype(torch.nn.Linear(2, 2), options)(torch.randn(1, 2)).dtype == dtype


def test_layers_by_length(run):
    arms = ['rope', 'tapa', 'tapa_fused']
    rows, _, _ = run('--parts', 'layers', '--lengths', '16', '256', '--head_size=8',
                     '--tokens=512', '--arms', *arms)
    assert [(row['size'], row['arm']) for row in rows] == [
        (T, arm) for T in (16, 256) for arm in arms]
    assert all(row['size'] * row['B'] == 512 for row in rows)
    saved = {(row['size'], row['arm']): row['saved_MiB'] for row in rows}
    assert saved[256, 'tapa'] > saved[256, 'tapa_fused'] > saved[16, 'tapa'] > saved[16, 'rope']
    assert saved[16, 'rope'] == pytest.approx(saved[256, 'rope'], rel=0.1)


def test_what_memory_does_not_hold_is_left_out(run, monkeypatch):
    need = partial(bench.activation_bytes, batch=1, length=64, training=True)
    configs = [GPTConfig(vocab_size=1, n_layer=1, n_head=4, n_embd=32, attention=attention)
               for attention in ('rope', 'tapa')]
    monkeypatch.setattr(bench, 'free_bytes', lambda device: sum(map(need, configs)))
    rows, _, warned = run('--parts', 'layers', '--lengths', '64', '--head_size=8', '--tokens=64',
                          '--arms', 'tapa', 'rope')
    assert [row['arm'] for row in rows] == ['rope']
    assert 'tapa is left out at 64 tokens: memory does not hold it\n' in warned


def test_every_shape_is_compiled_anew_in_one_graph(run, monkeypatch):
    from torch._dynamo.testing import CompileCounter
    counter, compile, chosen = CompileCounter(), torch.compile, []

    def spy(module, **options):
        chosen.append(options)
        return compile(module, backend=counter, **options)
    monkeypatch.setattr(torch, 'compile', spy)
    run('--parts', 'compiled')
    assert chosen == [dict(dynamic=False, fullgraph=True)] * len(bench.ARMS)
    assert counter.frame_count == len(chosen)


@pytest.mark.parametrize('arm', ['sdpa', 'fused', 'blocks', 'explicit'])
def test_the_error_of_attention_alone(arm):
    """The formula in float64 beside what is timed; another arm's formula differs."""
    if arm == 'fused' and tapa_kernel.triton is None:
        pytest.skip('Triton is not installed')
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    options = SimpleNamespace(device=device)
    inputs = bench.sample(options, 1, 40, 1, 16, 'float32')
    attend = bench.kernel(arm, 40, 16, device)
    assert max(bench.errors(arm, attend, *inputs).values()) < 1e-5
    other = 'explicit' if arm == 'sdpa' else 'sdpa'
    assert min(bench.errors(other, attend, *inputs).values()) > 0.01


def test_attention_alone_by_length(run, monkeypatch):
    monkeypatch.setattr(tapa_kernel, 'interpreted', False)  # it would take a minute
    rows, printed, warned = run('--parts', 'kernels', '--lengths', '16', '64', '--tokens=64',
                                '--head_size=16')
    assert [(row['size'], row['B'], row['arm']) for row in rows] == [
        (T, 64 // T, arm) for T in (16, 64) for arm in ('sdpa', 'blocks', 'explicit')]
    for row in rows:
        assert max(row[name] for name in ('out', 'dq', 'dk', 'dv')) < 1e-5
    assert 'fused is left out at 16 tokens: Triton ' in warned


def test_it_goes_on_where_it_stopped(tmp_path, capsys):
    counted = []

    def part(options):
        def measure(name):
            counted.append(name)
            if name == 'b':
                raise RuntimeError('too large\nand more')
            return [dict(size=name, arm='x', step=[1.0, 2.0, 3.0])]
        return {name: partial(measure, name) for name in 'abc'}
    path = tmp_path / 'rows.json'
    options = dict(json=path, device='cpu', dtype='float32', rounds=2, parts=['steps'])

    def go(minutes):
        bench.measure(dict(steps=part), SimpleNamespace(**options, minutes=minutes))
        return bench.read_rows(path)
    assert go(-1) == counted == [] and 'no time for steps a' in capsys.readouterr().out
    rows = go(9)
    assert [row.get('error') for row in rows] == [None, 'RuntimeError: too large', None]
    assert 'steps b failed: RuntimeError: too large' in bench.tables(rows)
    assert go(9) == rows and counted == ['a', 'b', 'c']


def test_a_table_has_the_columns_that_its_rows_have():
    common = dict(part='layers', processor='P', commit='c-dirty', torch='t', dtype='float32',
                  threads=2)
    rows = [dict(common, size=16, arm='rope', forward=[1.0, 2.0, 3.0], peak_MiB=None),
            dict(common, size=16, arm='nope', saved_MiB=1.5, commit='c')]
    assert bench.tables(rows).splitlines() == [
        'Commit c; P; 2 threads; torch t; medians [quartiles]; x: ratio to the first arm', '',
        'layers, float32', '', '|  | arm | forward (ms) | saved MiB |', '|---|---|---|---|',
        '| 16 | rope | 2.00 [1.00, 3.00] | - |', '| 16 | nope | - | 1.5 |']


@pytest.mark.parametrize('name, command', [
    ('cpu', 'python -m lab.bench --show --json lab/results/cpu.json'),
    ('gpu', 'python -m lab.gpu --show')])
def test_the_report_has_the_tables_of_the_results(name, command, tmp_path):
    rows = bench.read_rows(ROOT / f'lab/results/{name}.json')
    report = (ROOT / 'lab/speed.md').read_text()
    assert f'<!-- {command} -->\n{bench.tables(rows)}<!-- end -->' in report
    page = tmp_path / 'page.md'
    page.write_text(f'a\n<!-- {command} -->\nold\n<!-- end -->\nb\n')
    bench.write(page, rows, command)
    assert page.read_text() == f'a\n<!-- {command} -->\n{bench.tables(rows)}<!-- end -->\nb\n'


@pytest.mark.parametrize('arguments, message', [
    (['--rounds=1'], '--rounds must be at least 2'), (['--show'], 'need --json FILE'),
    (['--lengths', '0'], '--head_size at least 1')])
def test_what_it_refuses(arguments, message, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize('arguments, message', [
    (['--arms', 'ropes'], "attention='ropes': must be one or several of rope, "),
    (['--arms', 'nanogpt=nowhere.py'], 'nanogpt=nowhere.py: must be nanogpt=PATH'),
    (['--parts', 'layers', '--lengths', '100000000000'], 'GiB of memory')])
def test_errors_name_the_option(arguments, message):
    with pytest.raises(UserError, match=message):
        bench.main(['--quick', '--device=cpu', *arguments])


@pytest.mark.parametrize('content', ['{}', '[' * 100_000, json.dumps(dict(rows=[1]))])
def test_a_file_without_measurements_is_refused(content, tmp_path):
    (tmp_path / 'eval.json').write_text(content)
    with pytest.raises(UserError, match='a file is broken'):
        bench.main(['--show', f'--json={tmp_path}/eval.json'])
