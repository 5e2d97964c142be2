"""lab/bench.py: each of its parts on small sizes, and what it counts. No time is asserted."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lab import bench, tapa_kernel
from lab.tests.conftest import ROOT
from model import UserError

needs_triton = pytest.mark.skipif(tapa_kernel.triton is None, reason='Triton is not installed')
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
    assert rows[0]['step ratio'] == rows[0]['generate ratio'] == [1, 1, 1]
    for row in rows:
        low, median, high = row['step']
        assert 0 < low <= median <= high and min(row['generate']) > 0
        assert row['tokens_per_second'] == pytest.approx(1e3 * 2 * 16 / median)
        assert f'| {row["arm"]} | {row["parameters"]:,} | {median:.2f} [{low:.2f}, ' in printed


@pytest.mark.slow
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
    for row in rows:
        assert max(row[name] for name in ('out', 'dq', 'dk', 'dv')) < 1e-5
    assert 'fused is left out at 16 tokens: Triton ' in warned
    assert 'explicit is left out at 32 tokens: the memory is full\n' in warned


@needs_triton
@pytest.mark.slow
def test_a_rehearsal_of_the_parts_for_a_gpu(run):
    rows, printed, _ = run('--gpu', '--parts', 'errors', 'job')
    for row, limit in zip(rows, (1e-5, 3e-2)):
        assert 0 < max(row[name] for name in ('out', 'dq', 'dk', 'dv')) < limit
    assert [row['name'] for row in rows] == ['16 float32', '16 bfloat16', 'dyck3_spectral']
    assert rows[-1]['iterations'] == 2 and 0 < rows[-1]['in_training'] < rows[-1]['seconds']
    assert '| 16 | fused | bfloat16 | ' in printed and '| config/dyck3_spectral.py | ' in printed


@pytest.mark.parametrize('words', [[], ['--quick']])
def test_without_a_gpu_it_writes_no_result_of_a_gpu(words):
    with pytest.raises(UserError, match='another file with --json'):
        bench.main(['--gpu', '--device=cpu', *words])


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
    common = dict(part='kernels', processor='P', commit='c-dirty', torch='t', dtype='float32',
                  threads=2)
    rows = [dict(common, size=16, arm='sdpa', forward=[1.0, 2.0, 3.0], peak_MiB=None),
            dict(common, size=16, arm='fused', saved_MiB=1.5, commit='c')]
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
    (['--json=README.md', '--show'], 'README.md has no rows of lab.bench')])
def test_errors_name_the_option(arguments, message):
    with pytest.raises(UserError, match=message):
        bench.main(['--quick', '--device=cpu', *arguments])
