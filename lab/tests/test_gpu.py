"""lab/gpu.py, rehearsed without a GPU: every part, shortened. No time is asserted."""

import pytest
import torch

from lab import bench, gpu, tapa_kernel
from model import UserError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU: run lab.gpu')
needs_triton = pytest.mark.skipif(tapa_kernel.triton is None, reason='Triton is not installed')
PUBLIC = """
import torch


def tapa_attention_triton(xq, xk, xv, theta, alpha, causal=True):
    assert theta == 0.5 and alpha == 0.1 and causal and xq.shape == xk.shape == xv.shape
    return torch.zeros_like(xq)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run(*arguments) rehearses: the rows of its file, of which none failed, and what it printed"""
    monkeypatch.setattr(gpu, 'HEADS', 1)
    path = tmp_path / 'gpu.json'

    def go(part, *arguments):
        gpu.main(['--quick', f'--json={path}', '--device=cpu', '--parts', part, *arguments])
        rows = bench.read_rows(path)
        assert {(row['part'], row.get('error')) for row in rows} == {(part, None)}
        return rows, capsys.readouterr().out
    return go


@needs_triton
def test_the_kernel_beside_float64(run):
    rows, printed = run('errors')
    assert [row['name'] for row in rows] == ['16 float32', '16 bfloat16', '16 float16']
    for row, limit in zip(rows, (1e-5, 3e-2, 3e-3)):
        assert 0 < max(row[name] for name in ('out', 'dq', 'dk', 'dv')) < limit
    assert '| 16 | fused | bfloat16 | ' in printed


def test_steps_of_every_attention(run):  # test_bench.py has the compiled ones
    rows, printed = run('steps')
    assert [row['arm'] for row in rows] == ['nope', *bench.ARMS[:-1]]
    assert all(f'| {row["arm"]} | ' in printed for row in rows)


def test_the_main_job(run):
    (row,), printed = run('job')
    assert row['iterations'] == 2 and 0 < row['in_training'] < row['seconds']
    assert '| config/dyck3_spectral.py | ' in printed


@needs_triton
def test_beside_a_public_kernel(run, tmp_path):
    (tmp_path / 'attention_triton.py').write_text(PUBLIC)
    rows, printed = run('public', f'--public={tmp_path}')
    assert [(row['size'], row['arm']) for row in rows] == [
        (T, arm) for T in (16, 32) for arm in ('fused', 'public')]
    for row in rows[2:]:
        visited = dict(fused=32 * 33 / 2, public=32 * 32)[row['arm']]
        assert row['ps_a_score'] == pytest.approx(1e9 * row['forward'][1] / visited)


@needs_triton
def test_other_tiles_are_those_that_the_kernels_get(run, monkeypatch):
    seen, launch = [], tapa_kernel.launch

    def spy(kernel, tensors, theta, heads, **constants):
        chosen = tapa_kernel.tile(kernel, 32, 2)
        seen.append((kernel.__name__, chosen['ROWS'], chosen['COLUMNS']))
        launch(kernel, tensors, theta, heads, **constants)
    monkeypatch.setattr(tapa_kernel, 'launch', spy)
    rows, printed = run('tiles')
    measured = {(row['kernel'], row['tile']['ROWS'], row['tile']['COLUMNS']) for row in rows}
    kernels = ('forward_kernel', 'backward_kernel')
    shapes = [(64, 64), (32, 16), (32, 32)]  # the first is the interpreter's
    assert measured == set(seen) == {(kernel, *shape) for kernel in kernels for shape in shapes}
    assert tapa_kernel.tile(tapa_kernel.forward_kernel, 32, 2)['ROWS'] == 64
    assert printed.count('in use') == 2 and printed.count('_kernel | ') == 6


@pytest.mark.parametrize('words', [[], ['--quick']])
def test_without_a_gpu_it_writes_no_result_of_the_repository(words):
    with pytest.raises(UserError, match='another file with --json'):
        gpu.main(['--device=cpu', *words])
