"""lab/bench.py: each of its parts on small sizes, and what it counts. No time is asserted."""

import pytest
import torch

from lab import bench, tapa_kernel
from lab.tests.conftest import ROOT
from model import UserError

NANOGPT = """
import torch
from types import SimpleNamespace as GPTConfig
class GPT(torch.nn.Embedding):
    def __init__(self, config):
        super().__init__(config.vocab_size, config.vocab_size)
    def forward(self, x, y):
        logits = super().forward(x)
        return logits, torch.nn.functional.cross_entropy(logits.mT, y)
    def generate(self, x, tokens):
        return super().forward(x)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run(*arguments) measures small sizes: the rows, its warnings."""
    small = dict(n_layer=1, n_head=2, n_embd=32, block_size=16, batch_size=2, vocab_size=65)
    monkeypatch.setitem(bench.SHAPES, 'small', small)

    def go(*arguments):
        path = tmp_path / 'new/bench.json'
        sizes = ['--shapes', 'small', '--lengths', '16', '32', '--rounds=2', '--device=cpu']
        bench.main([*sizes, f'--json={path}', *arguments])
        printed = capsys.readouterr()
        bench.main(['--show', str(path)])
        assert capsys.readouterr().out == printed.out
        return bench.read_rows(path), printed.err
    return go


def test_steps_of_every_attention(run):
    rows, _ = run()
    assert [row['arm'] for row in rows] == bench.ARMS
    assert rows[1]['parameters'] == rows[0]['parameters'] + 3 * 2 * 8  # Omega, A, Phi
    for row in rows:
        low, median, high = row['step']
        assert 0 < low <= median <= high and min(row['generate']) > 0
        assert row['tokens_per_second'] == pytest.approx(1e3 * 2 * 16 / median)


def test_an_arm_may_have_frequencies(run):
    rows, _ = run('--arms', 'rope', 'rope@partial:keep=0.25')
    assert rows[1]['arm'] == 'rope@partial:keep=0.25'
    model = bench.build(rows[1]['arm'], bench.SHAPES['small'])
    assert model.config.frequencies == 'partial:keep=0.25'


def test_the_main_job_from_its_command_on(run, monkeypatch):
    small = ['--max_iters=2', '--eval_sequences=8', '--batch_size=2']
    monkeypatch.setattr(bench, 'JOB', [*bench.JOB, *small])
    monkeypatch.setitem(bench.GPU, 'parts', ['job'])
    (row,), _ = run('--gpu')
    assert row['iterations'] == 2 and row['seconds'] > row['in_training'] > 0


def test_a_ratio_is_to_the_first_arm_within_a_round(monkeypatch):
    times = {('a', 'step'): [2.0, 1.0, 4.0], ('b', 'step'): [4.0, 1.0, 16.0]}
    monkeypatch.setattr(bench, 'interleave', lambda *arguments: times)
    a, b = bench.timed([dict(arm='a'), dict(arm='b')], {}, 3, 'cpu')
    assert a['step ratio'] == [1, 1, 1] and b['step ratio'] == [1.5, 2, 3]
    assert b['step'] == [2.5, 4, 10]


def test_what_the_backward_pass_needs_is_counted_once_and_without_weights():
    x, weight = torch.randn(2, 2**10, 2**8, requires_grad=True)

    def function():
        y = x.exp()  # one MiB, saved for both
        return y * weight * y.sin()
    assert bench.saved_MiB(function, [weight]) == 1 + 1 + 1


def test_another_model_of_the_interface_of_nanogpt_stands_beside(run, tmp_path):
    (tmp_path / 'model.py').write_text(NANOGPT, encoding='utf-8')
    rows, _ = run('--arms', 'nope', f'nanogpt={tmp_path}/model.py')
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
    monkeypatch.setattr(bench, 'HEADS', 1)
    explicit = bench.Attention.attend

    def full(attention, q, k, v):
        if q.size(2) == 32:
            raise MemoryError('the memory is full\nand more')
        return explicit(attention, q, k, v)
    monkeypatch.setattr(bench.Attention, 'attend', full)
    rows, warned = run('--parts', 'kernels')
    assert [(row['size'], row['arm']) for row in rows] == [
        (16, 'sdpa'), (16, 'blocks'), (16, 'explicit'), (32, 'sdpa')]
    assert 'fused is left out at 16 tokens: Triton ' in warned
    assert 'explicit is left out at 32 tokens: the memory is full\n' in warned


@pytest.mark.parametrize('name, ratios', [('cpu', True), ('gpu', False)])
def test_the_report_has_the_tables_of_the_results(name, ratios):
    text = bench.tables(bench.read_rows(ROOT / f'lab/results/{name}.json'), ratios)
    words = '--ratios --show' if ratios else '--show'
    command = f'python -m lab.bench {words} lab/results/{name}.json'
    report = (ROOT / 'lab/speed.md').read_text(encoding='utf-8')
    assert f'<!-- {command} -->\n{text}<!-- end -->' in report


@pytest.mark.parametrize('arguments, message', [
    (['--arms', 'ropes'], "attention='ropes': must be one or several of rope, "),
    (['--arms', 'nanogpt=nowhere.py'], 'nanogpt=nowhere.py: must be nanogpt=PATH'),
    (['--json=lab/results/cpu.json', '--arms', 'ropes'], 'cpu.json: it exists'),
    (['--show=README.md'], 'README.md has no rows of lab.bench')])
def test_errors_name_the_option(arguments, message):
    with pytest.raises(UserError, match=message):
        bench.main(['--device=cpu', *arguments])
