"""lab/bench.py: each of its parts on small sizes, and what it counts. No time is asserted."""

import pytest
import torch

from lab import bench, tapa_kernel
from lab.tests.conftest import ROOT
from model import UserError

NANOGPT = """
import torch
from dataclasses import dataclass
@dataclass
class GPTConfig:
    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    dropout: float
    bias: bool
class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = torch.nn.Embedding(config.vocab_size, config.vocab_size)
    def forward(self, x, y):
        logits = self.table(x)
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    def generate(self, x, tokens):
        return self.table(x)
"""


@pytest.fixture
def run(tmp_path, capsys):
    """run(*arguments) measures small sizes: the rows, what it printed, its warnings."""
    def go(*arguments):
        path = tmp_path / 'new/bench.json'
        path.unlink(missing_ok=True)
        bench.main(['--quick', '--device=cpu', f'--json={path}', *arguments])
        printed = capsys.readouterr()
        bench.main(['--show', f'--json={path}'])
        assert capsys.readouterr().out == printed.out
        rows = bench.read_rows(path)
        for row in rows:
            facts = {'date', 'commit', 'processor', 'threads', 'torch', 'device', 'dtype', 'rounds'}
            assert facts <= row.keys()
        return rows, printed.out, printed.err
    return go


def test_steps_of_every_attention(run):
    rows, printed, _ = run()
    assert [row['arm'] for row in rows] == bench.ARMS
    assert rows[0]['step ratio'] == rows[0]['generate ratio'] == [1, 1, 1]
    for row in rows:
        low, median, high = row['step']
        assert 0 < low <= median <= high and min(row['generate']) > 0
        assert row['tokens_per_second'] == pytest.approx(1e3 * 2 * 16 / median)
        assert f'| {row["arm"]} | {row["parameters"]:,} | {median:.2f} [{low:.2f}, ' in printed


def test_another_model_of_the_interface_of_nanogpt_stands_beside(run, tmp_path):
    (tmp_path / 'model.py').write_text(NANOGPT, encoding='utf-8')
    rows, _, _ = run('--arms', 'nope', f'nanogpt={tmp_path}/model.py')
    assert [(row['arm'], row['parameters']) for row in rows][1] == ('nanogpt', 65 * 65)


@pytest.mark.slow
def test_every_shape_is_compiled_anew_in_one_graph(run, monkeypatch):
    from torch._dynamo.testing import CompileCounter
    counter, compile = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, 'compile', lambda module, **options: compile(
        module, backend=counter, **options))
    run('--parts', 'compiled')
    assert counter.frame_count == len(bench.ARMS)


def test_attention_alone_by_length(run, monkeypatch):
    """What does not run is left out, and says why."""
    monkeypatch.setattr(tapa_kernel, 'interpreted', False)  # it would take a minute
    explicit = bench.Attention.attend

    def full(attention, q, k, v):
        if q.size(2) == 32:
            raise MemoryError('the memory is full\nand more')
        return explicit(attention, q, k, v)
    monkeypatch.setattr(bench.Attention, 'attend', full)
    rows, _, warned = run('--parts', 'kernels')
    assert [(row['size'], row['B'], row['arm']) for row in rows] == [
        (16, 2, 'sdpa'), (16, 2, 'blocks'), (16, 2, 'explicit'), (32, 1, 'sdpa')]
    assert 'fused is left out at 16 tokens: Triton ' in warned
    assert 'explicit is left out at 32 tokens: the memory is full\n' in warned


def test_what_only_a_gpu_shows_runs_without_triton(run, monkeypatch):
    monkeypatch.setattr(tapa_kernel, 'triton', None)
    monkeypatch.setattr(tapa_kernel, 'interpreted', False)
    rows, printed, _ = run('--gpu', '--parts', 'job', 'kernels')
    assert rows[0]['iterations'] == 2 and 0 < rows[0]['in_training'] < rows[0]['seconds']
    assert '| config/dyck3_spectral.py --graph=False | ' in printed
    assert {row['arm'] for row in rows[1:]} == {'sdpa', 'blocks', 'explicit'}


def test_nothing_begins_when_its_minutes_are_over(monkeypatch):
    monkeypatch.setitem(bench.GPU, 'minutes', 0)
    monkeypatch.setattr(bench, 'PARTS', dict.fromkeys(bench.PARTS, lambda _: [[dict(arm='x')]] * 9))
    options = bench.parse(['--gpu', '--quick', '--device=cpu'])
    assert [row['part'] for row in bench.measure_parts(options)] == ['job']


def test_a_table_has_the_columns_that_its_rows_have():
    common = dict(part='kernels', processor='P', commit='c', torch='t', dtype='float32', threads=2)
    rows = [dict(common, size=16, arm='sdpa', forward=[1.0, 2.0, 3.0], peak_MiB=None),
            dict(common, size=16, arm='fused', saved_MiB=1.5)]
    rows[0]['forward ratio'] = [1.0, 1.0, 1.0]
    lines = bench.tables(rows).splitlines()
    assert lines == [
        'Commit c; P; 2 threads; torch t; medians [quartiles]; x: ratio to the first arm', '',
        'kernels, float32', '', '|  | arm | forward (ms) | x | saved MiB |',
        '|---|---|---|---|---|', '| 16 | sdpa | 2.00 [1.00, 3.00] | 1.00 [1.00, 1.00] | - |',
        '| 16 | fused | - | - | 1.5 |']
    assert '|  | arm | x | saved MiB |' in bench.tables(rows, ratios=True)


@pytest.mark.parametrize('name, ratios', [('cpu', True), ('gpu', False)])
def test_the_report_has_the_tables_of_the_results(name, ratios):
    text = bench.tables(bench.read_rows(ROOT / f'lab/results/{name}.json'), ratios)
    words = '--show --ratios' if ratios else '--show'
    command = f'python -m lab.bench {words} --json lab/results/{name}.json'
    report = (ROOT / 'lab/speed.md').read_text(encoding='utf-8')
    assert f'<!-- {command} -->\n{text}<!-- end -->' in report


@pytest.mark.parametrize('arguments, message', [
    (['--arms', 'ropes'], "attention='ropes': must be one or several of rope, "),
    (['--arms', 'nanogpt=nowhere.py'], 'nanogpt=nowhere.py: must be nanogpt=PATH'),
    (['--json=lab/results/cpu.json'], 'cpu.json: it exists'),
    (['--json=README.md', '--show'], 'README.md has no rows of lab.bench')])
def test_errors_name_the_option(arguments, message):
    with pytest.raises(UserError, match=message):
        bench.main(['--quick', '--device=cpu', *arguments])
