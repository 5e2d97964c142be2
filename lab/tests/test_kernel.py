"""The kernel of lab/tapa_kernel.py beside TAPA's formula in float64: on CUDA itself, else in Triton's interpreter."""

import json
import math
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from lab import tapa, tapa_kernel
from lab.tapa_kernel import tapa_attention, why_not
from lab.tests.conftest import ROOT
from model import TAPA, GPTConfig, Way

pytest.importorskip('triton')
CUDA = torch.cuda.is_available()  # else Triton interprets: conftest.py

DEVICE = 'cuda' if CUDA else 'cpu'
ALPHA = 0.3  # far enough from 0 that a wrong distance shows
CASES = {  # hs, theta, T, nh, nkv, phase; batches of one to three
    'the smallest head': (16, 0.5, 129, 2, 2, 'quadratic'),
    'both parts padded': (24, 0.25, 129, 2, 1, 'quadratic'),
    'both parts padded, linear': (24, 0.75, 17, 4, 2, 'linear'),
    'three query heads a key head': (64, 0.75, 70, 3, 1, 'quadratic'),
    'linear, grouped': (64, 0.25, 70, 4, 2, 'linear'),
    'the largest head': (128, 0.5, 129, 1, 1, 'quadratic'),
    'the largest head, unequal parts': (128, 0.25, 17, 2, 1, 'quadratic'),
    'one token': (16, 0.5, 1, 2, 1, 'quadratic'),
    'one token, linear': (64, 0.5, 1, 1, 1, 'linear'),
}
if CUDA:
    CASES['long'] = (64, 0.5, 1000, 4, 2, 'quadratic')
    CASES['long, the largest head, linear'] = (128, 0.5, 1000, 2, 2, 'linear')
NAMES = ('out', 'dq', 'dk', 'dv')


def draw(hs=16, T=20, nh=2, nkv=1, B=1, dtype=torch.float32, seed=0):
    """q, k, v and a gradient of the output, as the model has them: (B, T, heads, hs), transposed."""
    torch.manual_seed(seed)
    q, k, v, do = (torch.randn(B, T, heads, hs).to(DEVICE, dtype).transpose(1, 2) for heads in (nh, nkv, nkv, nh))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), do


def powers(T):
    return torch.arange(T, device=DEVICE).float() ** ALPHA


def outcome(attention, q, k, v, do):
    """out, dq, dk, dv."""
    out = attention(q, k, v)
    return out, *torch.autograd.grad(out, (q, k, v), do)


def fused(q, k, v, do, theta=0.5, phase='quadratic'):
    return outcome(lambda *qkv: tapa_attention(*qkv, powers(q.size(2)), theta, phase), q, k, v, do)


def naive(q, k, v, do, theta, phase):
    """A head at a time, as the paper writes it, in float64."""
    def attention(q, k, v):
        nh, T, hs = q.shape[1:]
        size_A, group, out = round(theta * hs), nh // k.size(1), []
        distance = torch.arange(T, device=q.device)[:, None] - torch.arange(T, device=q.device)  # m - n
        for h in range(nh):
            (q_A, q_P), (k_A, k_P) = ((x[..., :size_A], x[..., size_A:]) for x in (q[:, h], k[:, h // group]))
            if phase == 'quadratic':
                phi = torch.einsum('bmd,bnd->bmn', q_P, k_P) / math.sqrt(hs - size_A)
            else:
                phi = (q_P.sum(-1)[:, :, None] + k_P.sum(-1)[:, None, :]) / math.sqrt(hs - size_A)
            score = torch.einsum('bmd,bnd->bmn', q_A, k_A) / math.sqrt(size_A)
            score = score * torch.cos(2 * math.pi * distance.abs().double() ** ALPHA * phi)
            out.append(score.masked_fill(distance < 0, float('-inf')).softmax(-1) @ v[:, h // group])
        return torch.stack(out, dim=1)
    return outcome(attention, *(x.detach().double().requires_grad_() for x in (q, k, v)), do.double())


def error(ours, exact):
    """The relative norm of the difference; the norm itself for one token, whose q and k have no gradient."""
    return ((ours.double() - exact).norm() / (exact.norm() if exact.size(2) > 1 else 1)).item()


@pytest.mark.parametrize('case', CASES)
def test_values_and_gradients_are_the_formulas(case):
    hs, theta, T, nh, nkv, phase = CASES[case]
    q, k, v, do = draw(hs, T, nh, nkv, B=3 if nkv < nh else 1)
    ours, exact = fused(q, k, v, do, theta, phase), naive(q, k, v, do, theta, phase)
    errors = {name: error(x, y) for name, x, y in zip(NAMES, ours, exact)}
    assert all(e < 1e-5 for e in errors.values()), errors
    assert all(x.shape == y.shape and x.dtype == torch.float32 for x, y in zip(ours, exact))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=['bfloat16', 'float16'])
@pytest.mark.parametrize('case', ['three query heads a key head', 'linear, grouped'])
def test_16_bits_lose_what_plain_attention_loses(case, dtype):
    """At most twice the error of PyTorch's own attention; thrice in the interpreter, which truncates to bfloat16."""
    def plain(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    hs, theta, T, nh, nkv, phase = CASES[case]
    q, k, v, do = draw(hs, T, nh, nkv, dtype=dtype)
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    ours, exact = fused(q, k, v, do, theta, phase), naive(q, k, v, do, theta, phase)
    theirs, exact_plain = outcome(plain, q, k, v, do), outcome(plain, *doubles, do.double())
    allowed = 3 if dtype == torch.bfloat16 and not CUDA else 2
    for name, x, y, plain_x, plain_y in zip(NAMES, ours, exact, theirs, exact_plain):
        assert x.dtype == dtype
        assert error(x, y) < min(1e-2, allowed * error(plain_x, plain_y)), name


@pytest.mark.parametrize('own, other', [(32, 16), (32, 32), (128, 64)])
def test_the_blocks_change_nothing(own, other, monkeypatch):
    """Several blocks along each axis, whole ones and a part, and several tiles on the diagonal of a block."""
    q, k, v, do = draw(16, 130, 2, 1)
    exact = naive(q, k, v, do, 0.5, 'quadratic')

    def blocks(kernel, *_):
        BLOCK_M, BLOCK_N = (other, own) if kernel is tapa_kernel.dkv_kernel else (own, other)
        return dict(BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4, num_stages=2)
    monkeypatch.setattr(tapa_kernel, 'blocks', blocks)
    assert max(error(x, y) for x, y in zip(fused(q, k, v, do), exact)) < 1e-5


@pytest.mark.parametrize('own, other', [(32, 64), (48, 32), (256, 64)])
def test_blocks_that_would_go_wrong_are_refused(own, other, monkeypatch):
    wrong = dict(BLOCK_M=own, BLOCK_N=other, num_warps=4, num_stages=2)
    monkeypatch.setattr(tapa_kernel, 'blocks', lambda kernel, *_: wrong)
    with pytest.raises(AssertionError, match='not masked'):
        fused(*draw())


@pytest.mark.parametrize('phase', ['quadratic', 'linear'])
def test_it_is_the_reference_of_the_model(phase):
    config = GPTConfig(vocab_size=5, block_size=40, n_head=4, n_kv_head=2, n_embd=64, attention='tapa', tapa_theta=0.25,
                       tapa_alpha=ALPHA, tapa_phase=phase)
    q, k, v, do = draw(16, 40, 4, 2)
    way = TAPA(config)
    reference = outcome(lambda q, *kv: Way.forward(way, q, *(x.repeat_interleave(2, dim=1) for x in kv)), q, k, v, do)
    ours = outcome(lambda q, k, v: tapa_attention(q, k, v, powers(40), config.tapa_theta, phase), q, k, v, do)
    assert max(error(x, y.double()) for x, y in zip(ours, reference)) < 1e-5


def test_without_phase_it_is_plain_attention():
    q, k, v, _ = draw(32, 70)
    with torch.no_grad():
        q[..., 16:] = 0
        plain = F.scaled_dot_product_attention(q[..., :16], k[..., :16], v, is_causal=True, enable_gqa=True)
        torch.testing.assert_close(tapa_attention(q, k, v, powers(70), 0.5, 'quadratic'), plain)


def test_a_token_sees_no_later_one():
    """Bit for bit: not in its output, and the outputs of earlier tokens send later ones no gradient."""
    T, cut = 100, 37  # within a block
    q, k, v, do = draw(16, T)
    other_q, other_k, other_v, _ = draw(16, T, seed=1)
    changed = [torch.cat([x[:, :, :cut], y[:, :, cut:]], dim=2) for x, y in ((q, other_q), (k, other_k), (v, other_v))]
    out, dq, dk, dv = fused(q, k, v, torch.cat([do[:, :, :cut], 0 * do[:, :, cut:]], dim=2))
    assert torch.equal(tapa_attention(*changed, powers(T), 0.5, 'quadratic')[:, :, :cut], out[:, :, :cut])
    assert all((x[:, :, cut:] == 0).all() and (x[:, :, 1:cut] != 0).any() for x in (dq, dk, dv))


@pytest.mark.parametrize('T, hs', [(1, 24), (70, 24), (128, 16)])
def test_every_output_is_written(T, hs, monkeypatch):
    """What is allocated is poisoned, and nothing of it is left or has been read."""
    def poisoned(x, *size, dtype=None, device=None):
        return torch.full(size, float('nan'), dtype=dtype or x.dtype, device=device or x.device)
    q, k, v, do = draw(hs, T)
    expected = fused(q, k, v, do)
    monkeypatch.setattr(torch.Tensor, 'new_empty', poisoned)
    monkeypatch.setattr(torch, 'empty_like', lambda x: poisoned(x, *x.shape))
    assert all(torch.equal(x, y) and x.isfinite().all() for x, y in zip(fused(q, k, v, do), expected))


def test_equal_inputs_give_equal_bits():
    q, k, v, do = draw(16, 70, 4, 2, dtype=torch.bfloat16)
    assert all(torch.equal(x, y) for x, y in zip(fused(q, k, v, do), fused(q, k, v, do)))


def test_strides_change_nothing():
    """Contiguous, transposed, every other number of a wider head, and a gradient that is one number expanded."""
    q, k, v, do = draw(16, 70, 4, 2, B=2)
    expected = fused(q, k, v, torch.ones_like(do))
    wide = [torch.stack([x.detach(), x.detach() + 1], dim=-1).flatten(-2)[..., ::2].requires_grad_() for x in (q, k, v)]
    contiguous = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    assert wide[0].stride(-1) == 2 and contiguous[0].stride() != q.stride()
    for inputs in (wide, contiguous):
        for x, y in zip(fused(*inputs, torch.ones((), device=DEVICE).expand(do.shape)), expected):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
    out = expected[0].transpose(1, 2)
    assert out.is_contiguous(), 'the model merges the heads without a copy'


@pytest.mark.parametrize('name, far', [('q', 0), ('k', 1), ('v', 2), ('do', 2)], ids=str)
def test_offsets_may_exceed_31_bits(name, far):
    """Three sequences, heads or tokens, 2^30 numbers from one to the next: 32 bits hold the stride, not the offset."""
    tensors = dict(zip(('q', 'k', 'v', 'do'), draw(16, 3, 3, 3, B=3, dtype=torch.float16)))
    expected, x = fused(**tensors), tensors[name].detach()
    try:
        memory = torch.empty(2**31 + 2**12, dtype=x.dtype, device=DEVICE)  # never touched but in a few places
    except RuntimeError as error:
        pytest.skip(f'4 GiB of addresses are not to be had: {error}')
    strides = list(x.stride())
    strides[far] = 2**30
    tensors[name] = memory.as_strided(x.shape, strides).copy_(x).requires_grad_(name != 'do')
    assert all(torch.equal(x, y) for x, y in zip(fused(**tensors), expected))


@pytest.mark.parametrize('capability, case', [(80, 2), (90, 0), (90, 4), (120, 3)])
def test_compiled_for_a_gpu_the_kernels_fit_it(capability, case):
    """The GPU need not be here. Even smaller ones have that much shared memory; 16 bits use the tensor cores."""
    environment = {name: value for name, value in os.environ.items() if name != 'TRITON_INTERPRET'}
    command = [sys.executable, '-m', 'lab.tests.compile_kernels', str(capability), '--cases', str(case)]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    compiled = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(compiled) == 3
    for kernel in compiled:
        assert kernel['shared'] <= 99 * 1024 and kernel['spilled'] < 2048, kernel
        assert kernel['tensor_cores'] == (kernel['dtype'] != 'fp32'), kernel


def test_compiled_in_one_graph_it_is_the_same():
    def loss(q, k, v):
        return tapa_attention(2 * q, k, v, powers(20), 0.5, 'quadratic').transpose(1, 2).flatten(2).square().sum()
    q, k, v, _ = draw()
    compiled = torch.compile(loss, fullgraph=True, backend='inductor' if CUDA else 'aot_eager')
    for x, y in zip(torch.autograd.grad(compiled(q, k, v), (q, k, v)), torch.autograd.grad(loss(q, k, v), (q, k, v))):
        torch.testing.assert_close(x, y)


def test_the_operators_are_what_they_say_to_pytorch():
    """They keep the shapes, dtypes and strides that a compiler is promised, change no input and return none."""
    q, k, v, do = draw()
    arguments = powers(20), 0.5, 'quadratic'
    checks = ('test_schema', 'test_autograd_registration', 'test_faketensor')
    found = [torch.library.opcheck(tapa_kernel.forward, (q, k, v, *arguments), test_utils=checks)]
    with torch.no_grad():
        out, lse = tapa_kernel.forward(q, k, v, *arguments)
        backward = do, q, k, v, arguments[0], out, lse, *arguments[1:]
        found.append(torch.library.opcheck(tapa_kernel.backward, backward, test_utils=checks))
    assert found == 2 * [dict.fromkeys(checks, 'SUCCESS')]


def test_a_second_derivative_is_refused():
    q, k, v, _ = draw()
    loss = tapa_attention(q, k, v, powers(20), 0.5, 'quadratic').square().sum()
    dq, = torch.autograd.grad(loss, q, create_graph=True)
    with pytest.raises(RuntimeError, match='no autograd formula'):
        dq.sum().backward()


@pytest.mark.parametrize('reason, change', [
    ('', lambda q, k, v: (q, k, v)),
    ('q, k, v are torch.float64', lambda q, k, v: (q.double(), k.double(), v.double())),
    ('torch.float32, torch.bfloat16, torch.float32', lambda q, k, v: (q, k.bfloat16(), v)),
    ('head size is 8, not from 16 to 128', lambda *qkv: [x[..., :8] for x in qkv]),
    ('head size is 144, not from 16 to 128', lambda *qkv: [F.pad(x, (0, 128)) for x in qkv]),
    ('1 queries for 20 keys', lambda q, k, v: (q[:, :, -1:], k, v)),
    ('no queries', lambda *qkv: [x[:0] for x in qkv]),
    ('does not run on meta', lambda *qkv: [x.to('meta') for x in qkv]),
    (f'are on {DEVICE}.*, meta, {DEVICE}', lambda q, k, v: (q, k.to('meta'), v)),
])
def test_why_not(reason, change, monkeypatch):
    monkeypatch.setattr(tapa_kernel, 'interpreted', 'on meta' not in reason and not CUDA)
    q, k, v = change(*draw()[:3])
    if not reason:
        assert why_not(q, k, v) is None
        return
    assert re.search(reason, why_not(q, k, v))
    with pytest.raises(ValueError, match=reason):
        tapa_attention(q, k, v, powers(20), 0.5, 'quadratic')


@pytest.mark.parametrize('message, change', [
    ('nkv a divisor of nh', dict(zip('qkv', (torch.zeros(1, heads, 20, 16) for heads in (3, 2, 2))))),
    ('twice .B, nkv, T, hs.', dict(v=torch.zeros(1, 1, 20, 32))),
    ('must be .B, nh, T, hs.', dict(q=torch.zeros(2, 20, 16))),
    ('must be .B, nh, T, hs.', dict(q=torch.zeros(2, 2, 20, 16))),
    ('20 or more', dict(powers=torch.ones(19))),
    ('float32 and constant', dict(powers=torch.ones(20, dtype=torch.float64))),
    ('float32 and constant', dict(powers=torch.ones(20, requires_grad=True))),
    ('theta=0.3: must be in .0, 1. and a whole number of the 16', dict(theta=0.3)),
    ('theta=1.0', dict(theta=1.0)),
    ("phase='cubic': must be 'quadratic' or 'linear'", dict(phase='cubic')),
])
def test_it_refuses(message, change):
    q, k, v, _ = draw()
    arguments = {**dict(q=q, k=k, v=v, powers=powers(20), theta=0.5, phase='quadratic'), **change}
    with pytest.raises(ValueError, match=message):
        tapa_attention(**{name: x.to(DEVICE) if torch.is_tensor(x) else x for name, x in arguments.items()})


def test_without_triton_it_can_be_imported_and_says_so():
    code = ("import sys; sys.modules['triton'] = None; import torch; from lab import tapa_kernel; "
            'x = torch.ones(1, 1, 2, 16); print(tapa_kernel.why_not(x, x, x))')
    run = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == 'Triton is not installed\n', run.stderr


@pytest.mark.parametrize('phase', ['quadratic', 'linear'])
def test_the_model_calls_it_where_it_can_and_says_why_where_it_cannot(phase, monkeypatch):
    """On a GPU, or a machine that claims to be one. The switch, and what it does not serve, lead to the blocks."""
    way = TAPA(GPTConfig(vocab_size=5, n_head=4, n_embd=64, attention='tapa', tapa_alpha=ALPHA, tapa_phase=phase))
    q, k, v, _ = draw(16, 50, 4, 4)
    reference, calls, kernel = Way.forward(way, q, k, v), [], tapa_kernel.tapa_attention
    monkeypatch.setattr(torch.Tensor, 'is_cuda', True, raising=False)
    monkeypatch.setattr(tapa_kernel, 'tapa_attention', lambda *arguments: calls.append(1) or kernel(*arguments))
    monkeypatch.setattr(tapa_kernel, 'why_not', lambda *_: None)
    monkeypatch.setattr(torch.cuda, 'device_of', lambda tensor: torch.no_grad())
    torch.testing.assert_close(way(q, k, v), reference, rtol=1e-4, atol=1e-5)
    assert calls == [1]
    last = way(q[:, :, -1:], k, v)  # a query that continues a text
    torch.testing.assert_close(last, reference[:, :, -1:], rtol=1e-4, atol=1e-5)
    with monkeypatch.context() as patched:
        patched.setattr(tapa, 'FUSED', False)
        torch.testing.assert_close(way(q, k, v), reference)
    monkeypatch.setattr(tapa_kernel, 'why_not', lambda *_: 'the GPU is too old')
    with pytest.warns(UserWarning, match='without its fused kernel: the GPU is too old'):
        torch.testing.assert_close(way(q, k, v), reference)
    assert calls == [1]
