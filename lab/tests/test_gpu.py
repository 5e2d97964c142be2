"""lab/gpu.py, rehearsed without a GPU: every part, shortened. No time is asserted."""

from functools import partial

import pytest
import torch

from lab import gpu, tapa_kernel
from lab.tests.conftest import ROOT

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
    """run(*arguments) rehearses: all rows of its file, and what it printed."""
    # the compiler of CPUs takes a minute; the graph is the same
    monkeypatch.setattr(torch, 'compile', partial(torch.compile, backend='eager'))
    path = tmp_path / 'gpu.json'

    def go(*arguments):
        gpu.main([f'--json={path}', '--device=cpu', *arguments])
        return gpu.read_rows(path), capsys.readouterr().out
    return go


def check(rows, part, names):
    """No measurement failed, and each has a row that says what ran."""
    assert [row.get('error') for row in rows] == [None] * len(rows)
    assert {row['part'] for row in rows} == {part}
    assert list(dict.fromkeys(row['name'] for row in rows)) == names
    for row in rows:
        assert {'date', 'commit', 'processor', 'torch', 'device'} <= row.keys()


@needs_triton
def test_the_kernel_beside_float64(run):
    rows, printed = run('--part', 'kernel')
    check(rows, 'kernel', ['16 float32', '16 bfloat16', '16 float16'])
    for row, limit in zip(rows, (1e-5, 3e-2, 3e-3)):
        assert list(row['errors']) == ['out', 'dq', 'dk', 'dv']
        assert 0 < max(row['errors'].values()) < limit
    assert '| 16 | float32 | 20 |' in printed


@pytest.mark.parametrize('part', ['eager', pytest.param('compiled', marks=pytest.mark.slow)])
def test_steps_of_every_attention_and_of_a_plain_gpt(run, part):
    rows, printed = run('--part', part)
    check(rows, part, gpu.ARMS)
    assert all(f'| {arm} | ' in printed for arm in gpu.ARMS)
    width, V, T = 32, 65, 16
    block = 12 * width**2 + 13 * width  # weights, biases, and two LayerNorms
    assert rows[-1]['parameters'] == 2 * V * width + T * width + block + 2 * width


@needs_triton
def test_the_kernel_by_length_beside_a_public_one(run, tmp_path):
    (tmp_path / 'attention_triton.py').write_text(PUBLIC)
    rows, printed = run('--part', 'lengths')
    check(rows, 'lengths', ['16', '32'])
    rows, printed = run('--part', 'lengths', f'--public={tmp_path}')
    check(rows, 'lengths', ['16', '32', '16 public', '32 public'])
    scores = {row['arm']: row['scores'] for row in rows if row['name'] == '32 public'}
    assert scores == dict(sdpa=32 * 33 / 2, fused=32 * 33 / 2, public=32 * 32)
    assert all(f'| 32 | {arm} | ' in printed for arm in scores)


def test_the_main_job(run):
    rows, printed = run('--part', 'job')
    check(rows, 'job', ['dyck3_spectral'])
    row, = rows
    assert row['iterations'] == 2 and 0 < row['in_training'] < row['seconds']
    assert '| config/dyck3_spectral.py | ' in printed


@needs_triton
def test_other_tiles_are_those_that_the_kernels_get(run, monkeypatch):
    seen, launch = [], tapa_kernel.launch

    def spy(kernel, tensors, theta, heads, **constants):
        chosen = tapa_kernel.tile(kernel, 32, 2)
        seen.append((kernel.__name__, chosen['ROWS'], chosen['COLUMNS']))
        launch(kernel, tensors, theta, heads, **constants)
    monkeypatch.setattr(tapa_kernel, 'launch', spy)
    rows, printed = run('--part', 'tiles')
    assert not any('error' in row for row in rows)
    measured = {(row['kernel'], row['tile']['ROWS'], row['tile']['COLUMNS']) for row in rows}
    kernels = ('forward_kernel', 'backward_kernel')
    shapes = [(64, 64), (32, 16), (32, 32)]  # the first is the interpreter's
    assert measured == set(seen) == {(kernel, *shape) for kernel in kernels for shape in shapes}
    assert tapa_kernel.tile(tapa_kernel.forward_kernel, 32, 2)['ROWS'] == 64
    assert printed.count('in use') == 2 and printed.count('best of 3') == 2


def test_it_goes_on_where_it_stopped(run, monkeypatch):
    counted = []

    def part(options):
        def measure(name):
            counted.append(name)
            if name == 'b':
                raise RuntimeError('too large\nand more')
            return [dict(head_size=1, dtype='x', T=1, errors=dict(out=0.1))]
        return {name: partial(measure, name) for name in 'abc'}
    monkeypatch.setattr(gpu, 'PARTS', dict(kernel=part))
    rows, printed = run('--minutes=0')
    assert rows == counted == [] and 'no time for kernel a' in printed
    rows, printed = run()
    assert [row.get('error') for row in rows] == [None, 'RuntimeError: too large', None]
    assert 'kernel b failed: RuntimeError: too large' in printed
    again, _ = run()
    assert again == rows and counted == ['a', 'b', 'c']


def test_without_a_gpu_it_writes_no_result_of_the_repository(capsys):
    with pytest.raises(SystemExit):
        gpu.main(['--device=cpu'])
    assert 'give it another file' in capsys.readouterr().err


def test_the_report_has_the_tables_of_the_results(tmp_path, capsys):
    gpu.show(gpu.read_rows(gpu.RESULTS))
    table = capsys.readouterr().out
    report = (ROOT / 'lab/speed.md').read_text()
    begin = '<!-- python -m lab.gpu --show -->\n'
    assert f'{begin}{table}<!-- end -->' in report
    page = tmp_path / 'page.md'
    page.write_text(f'a\n{begin}old\n<!-- end -->\nb\n')
    gpu.write(page, [])
    assert page.read_text() == f'a\n{begin}No figure exists yet.\n<!-- end -->\nb\n'
