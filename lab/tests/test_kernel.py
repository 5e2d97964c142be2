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

tl = pytest.importorskip('triton').language
CUDA = torch.cuda.is_available()  # else Triton interprets: conftest.py

DEVICE = 'cuda' if CUDA else 'cpu'
ALPHA = 0.3  # far enough from 0 that a wrong distance shows
CASES = {  # hs, theta, T, nh, nkv; batches of one to three
    'the smallest head': (16, 0.5, 129, 2, 2),
    'both parts padded': (24, 0.25, 129, 2, 1),
    'both parts padded, a short text': (24, 0.75, 17, 4, 2),
    'three query heads a key head': (64, 0.75, 70, 3, 1),
    'the largest head': (128, 0.5, 129, 1, 1),
    'the largest head, unequal parts': (128, 0.25, 17, 2, 1),
    'one token': (16, 0.5, 1, 2, 1),
}
if CUDA:
    CASES['long'] = (64, 0.5, 1000, 4, 2)
    CASES['long, the largest head'] = (128, 0.5, 1000, 2, 2)
NAMES = ('out', 'dq', 'dk', 'dv')


def draw(hs=16, T=20, nh=2, nkv=1, B=1, dtype=torch.float32, seed=0):
    """q, k, v and a gradient of the output, as the model has them: (B, T, heads, hs), transposed."""
    torch.manual_seed(seed)
    q, k, v, do = (torch.randn(B, T, heads, hs).to(DEVICE, dtype).transpose(1, 2) for heads in (nh, nkv, nkv, nh))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), do


def powers(T, alpha=ALPHA):
    return torch.arange(T, device=DEVICE).float() ** alpha


def outcome(attention, q, k, v, do):
    """out, dq, dk, dv."""
    out = attention(q, k, v)
    return out, *torch.autograd.grad(out, (q, k, v), do)


def fused(q, k, v, do, theta=0.5, alpha=ALPHA):
    return outcome(lambda *qkv: tapa_attention(*qkv, powers(q.size(2), alpha), theta), q, k, v, do)


def explicit(q, k, v, do, theta=0.5, alpha=ALPHA):
    """All scores written out: plain PyTorch."""
    nh, hs, group = q.size(1), q.size(3), q.size(1) // k.size(1)
    way = TAPA(GPTConfig(vocab_size=5, n_head=nh, n_embd=nh * hs, attention='tapa', tapa_alpha=alpha, tapa_theta=theta))
    return outcome(lambda q, *kv: Way.forward(way, q, *(x.repeat_interleave(group, dim=1) for x in kv)), q, k, v, do)


def naive(q, k, v, do, theta=0.5, alpha=ALPHA):
    """A head at a time, as the paper writes it, in float64."""
    def attention(q, k, v):
        nh, T, hs = q.shape[1:]
        size_A, group, out = round(theta * hs), nh // k.size(1), []
        distance = torch.arange(T, device=q.device)[:, None] - torch.arange(T, device=q.device)  # m - n
        for h in range(nh):
            (q_A, q_P), (k_A, k_P) = ((x[..., :size_A], x[..., size_A:]) for x in (q[:, h], k[:, h // group]))
            phi = torch.einsum('bmd,bnd->bmn', q_P, k_P) / math.sqrt(hs - size_A)
            score = torch.einsum('bmd,bnd->bmn', q_A, k_A) / math.sqrt(size_A)
            score = score * torch.cos(2 * math.pi * distance.abs().double() ** alpha * phi)
            out.append(score.masked_fill(distance < 0, float('-inf')).softmax(-1) @ v[:, h // group])
        return torch.stack(out, dim=1)
    return outcome(attention, *(x.detach().double().requires_grad_() for x in (q, k, v)), do.double())


def error(ours, exact):
    """The relative norm of the difference; the norm itself for one token, whose q and k have no gradient."""
    return ((ours.double() - exact).norm() / (exact.norm() if exact.size(2) > 1 else 1)).item()


@pytest.mark.parametrize('case', CASES)
def test_values_and_gradients_are_the_formulas(case):
    hs, theta, T, nh, nkv = CASES[case]
    q, k, v, do = draw(hs, T, nh, nkv, B=3 if nkv < nh else 1)
    ours, exact = fused(q, k, v, do, theta), naive(q, k, v, do, theta)
    errors = {name: error(x, y) for name, x, y in zip(NAMES, ours, exact)}
    assert all(e < 1e-5 for e in errors.values()), errors
    assert all(x.shape == y.shape and x.dtype == torch.float32 for x, y in zip(ours, exact))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=['bfloat16', 'float16'])
def test_16_bits_lose_what_plain_attention_loses(dtype):
    """At most twice the error of PyTorch's own attention; thrice in the interpreter, which truncates to bfloat16."""
    def plain(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    hs, theta, T, nh, nkv = CASES['three query heads a key head']
    q, k, v, do = draw(hs, T, nh, nkv, dtype=dtype)
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    ours, exact = fused(q, k, v, do, theta), naive(q, k, v, do, theta)
    theirs, exact_plain = outcome(plain, q, k, v, do), outcome(plain, *doubles, do.double())
    allowed = 3 if dtype == torch.bfloat16 and not CUDA else 2
    for name, x, y, plain_x, plain_y in zip(NAMES, ours, exact, theirs, exact_plain):
        assert x.dtype == dtype
        assert error(x, y) < min(1e-2, allowed * error(plain_x, plain_y)), name


def test_in_float16_the_gradient_of_the_phase_does_not_overflow():
    """
    Gradients of single phases pass 65504 here, the greatest float16, and those of q and k stay below it. The error
    stays near that of plain PyTorch, so that nothing small is lost instead.
    """
    q, k, v, do = draw(16, 300, 1, 1, dtype=torch.float16)
    with torch.no_grad():
        q, k, do = (factor * x for x, factor in ((q, 4), (k, 4), (do, 0.1)))
    q, k = q.requires_grad_(), k.requires_grad_()
    ours, exact, plain = (way(q, k, v, do, alpha=1.0) for way in (fused, naive, explicit))
    assert max(x.abs().max() for x in exact) > 2**14
    for name, x, y, z in zip(NAMES, ours, exact, plain):
        assert x.isfinite().all() and error(x, y) < 2 * error(z, y), name


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=['bfloat16', 'float16'])
def test_delta_is_not_rounded(dtype):
    """Where one of two keys has nearly all the weight, delta of an out of 16 bits makes large errors of dq and dk."""
    q, k, v, do = draw(16, 2, 2, 2, B=20, dtype=dtype)
    with torch.no_grad():
        q, k = 3 * q, 3 * k
    q, k = q.requires_grad_(), k.requires_grad_()
    ours, exact, plain = (way(q, k, v, do) for way in (fused, naive, explicit))
    for name, x, y, z in zip(NAMES[1:3], ours[1:3], exact[1:3], plain[1:3]):
        assert error(x, y) < 10 * error(z, y), name


@pytest.mark.parametrize('rows, columns', [(32, 16), (32, 32), (128, 64)])
def test_the_tiles_change_nothing(rows, columns, monkeypatch):
    """Several blocks along each axis, whole ones and a part, and several tiles on the diagonal of a block."""
    q, k, v, do = draw(16, 130, 2, 1)
    exact = naive(q, k, v, do)
    monkeypatch.setattr(tapa_kernel, 'tile', lambda *_: dict(ROWS=rows, COLUMNS=columns, num_warps=4, num_stages=2))
    assert max(error(x, y) for x, y in zip(fused(q, k, v, do), exact)) < 1e-5


@pytest.mark.parametrize('rows, columns', [(32, 64), (48, 32), (256, 64)])
def test_tiles_that_would_go_wrong_are_refused(rows, columns, monkeypatch):
    monkeypatch.setattr(tapa_kernel, 'tile', lambda *_: dict(ROWS=rows, COLUMNS=columns, num_warps=4, num_stages=2))
    with pytest.raises(AssertionError, match='not masked'):
        fused(*draw())


@tapa_kernel.jit
def waves(h, cosine, sine):
    """cos(pi h) and sin(pi h) of 1024 numbers."""
    i = tl.arange(0, 1024)
    x, y = tapa_kernel.cosine_and_sine(tl.full([1024], 1.0, tl.float32), tl.load(h + i))
    tl.store(cosine + i, x)
    tl.store(sine + i, y)


@pytest.mark.parametrize('turns', [1, 1000, 2**22, 2**30])
def test_cosine_and_sine_of_many_turns(turns):
    """Within 1e-6 up to 2^22 turns. Beyond, where float32 hardly knows the phase, both stay bounded."""
    h = torch.linspace(-2 * turns, 2 * turns, 1024, dtype=torch.float64, device=DEVICE).float()  # half turns
    cosine, sine = torch.empty_like(h), torch.empty_like(h)
    waves[1,](h, cosine, sine)
    if turns <= 2**22:
        exact = math.pi * (h.double() % 2)
        assert max((cosine - exact.cos()).abs().max(), (sine - exact.sin()).abs().max()) < 1e-6
    assert cosine.abs().max() < 1 + 1e-6 and sine.isfinite().all()


def test_it_is_the_reference_of_the_model():
    q, k, v, do = draw(16, 40, 4, 2)
    ours, reference = fused(q, k, v, do, theta=0.25), explicit(q, k, v, do, theta=0.25)
    assert max(error(x, y.double()) for x, y in zip(ours, reference)) < 1e-5


def test_without_phase_it_is_plain_attention():
    q, k, v, _ = draw(32, 70)
    with torch.no_grad():
        q[..., 16:] = 0
        plain = F.scaled_dot_product_attention(q[..., :16], k[..., :16], v, is_causal=True, enable_gqa=True)
        torch.testing.assert_close(tapa_attention(q, k, v, powers(70), 0.5), plain)


def test_a_token_sees_no_later_one():
    """Bit for bit: not in its output, and the outputs of earlier tokens send later ones no gradient."""
    T, cut = 100, 37  # within a block
    q, k, v, do = draw(16, T)
    other_q, other_k, other_v, _ = draw(16, T, seed=1)
    changed = [torch.cat([x[:, :, :cut], y[:, :, cut:]], dim=2) for x, y in ((q, other_q), (k, other_k), (v, other_v))]
    out, dq, dk, dv = fused(q, k, v, torch.cat([do[:, :, :cut], 0 * do[:, :, cut:]], dim=2))
    assert torch.equal(tapa_attention(*changed, powers(T), 0.5)[:, :, :cut], out[:, :, :cut])
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
    """All but dq, whose shares come in no fixed order on a GPU."""
    q, k, v, do = draw(16, 70, 4, 2, dtype=torch.bfloat16)
    for name, x, y in zip(NAMES, fused(q, k, v, do), fused(q, k, v, do)):
        assert torch.equal(x, y) or CUDA and name == 'dq' and error(x, y.double()) < 1e-2, name


def test_deterministic_algorithms_are_not_served():
    q, k, v, _ = draw()
    torch.use_deterministic_algorithms(True)
    try:
        assert 'no fixed order' in why_not(q, k, v)
    finally:
        torch.use_deterministic_algorithms(False)


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


@pytest.mark.parametrize('name, far', [('q', 0), ('k', 1), ('v', 2), ('do', 2), ('q', 3), ('v', 3)], ids=str)
def test_offsets_may_exceed_31_bits(name, far):
    """Sequences, heads, tokens or dimensions far apart: 32 bits hold the stride, not the last offset."""
    tensors = dict(zip(('q', 'k', 'v', 'do'), draw(16, 3, 3, 3, B=3, dtype=torch.float16)))
    expected, x = fused(**tensors), tensors[name].detach()
    try:
        memory = torch.empty(2**31 + 2**12, dtype=x.dtype, device=DEVICE)  # never touched but in a few places
    except RuntimeError as error:
        pytest.skip(f'4 GiB of addresses are not to be had: {error}')
    strides = list(x.stride())
    strides[far] = math.ceil(2**31 / (x.size(far) - 1))
    tensors[name] = memory.as_strided(x.shape, strides).copy_(x).requires_grad_(name != 'do')
    for x, y in zip(fused(**tensors), expected):
        torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-3)  # delta, and dq on a GPU, differ in their last bits


def compiled(*arguments):
    """What lab.tests.compile_kernels prints. The GPU need not be here."""
    environment = {name: value for name, value in os.environ.items() if name != 'TRITON_INTERPRET'}
    command = [sys.executable, '-m', 'lab.tests.compile_kernels', *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize('capability, case', [('80', '2'), ('90', '0'), ('90', '4'), ('120', '3')])
def test_compiled_for_a_gpu_the_kernels_fit_it(capability, case):
    """
    Even smaller GPUs have that much shared memory; 16 bits use the tensor cores. In the loops over tiles, a score has
    no copy of its own to shared memory (lse and delta have some), and no rounding instruction, which would be slow.
    """
    kernels = compiled(capability, '--cases', case)
    assert len(kernels) == 2
    for kernel in kernels:
        assert kernel['shared'] <= 99 * 1024 and kernel['spilled'] < 2048, kernel
        assert kernel['tensor_cores'] == (kernel['dtype'] != 'fp32'), kernel
        assert kernel['roundings'] == 0 and kernel['copies'] < 0.9 < kernel['instructions'], kernel


def test_the_code_asks_for_every_multiply_add():
    """Triton's next version makes none of its own. The limits are some 3 % above the table in lab/speed.md."""
    forward, backward = compiled('80', '--cases', '3', '--no-fusion')
    assert forward['instructions'] < 23.5 and backward['instructions'] < 56


def test_compiled_in_one_graph_it_is_the_same():
    def loss(q, k, v):
        return tapa_attention(2 * q, k, v, powers(20), 0.5).transpose(1, 2).flatten(2).square().sum()
    q, k, v, _ = draw()
    compiled = torch.compile(loss, fullgraph=True, backend='inductor' if CUDA else 'aot_eager')
    for x, y in zip(torch.autograd.grad(compiled(q, k, v), (q, k, v)), torch.autograd.grad(loss(q, k, v), (q, k, v))):
        torch.testing.assert_close(x, y)


def test_the_operators_are_what_they_say_to_pytorch():
    """They keep the shapes, dtypes and strides that a compiler is promised, change no input and return none."""
    q, k, v, do = draw()
    arguments = powers(20), 0.5
    checks = ('test_schema', 'test_autograd_registration', 'test_faketensor')
    found = [torch.library.opcheck(tapa_kernel.forward, (q, k, v, *arguments), test_utils=checks)]
    with torch.no_grad():
        _, exact, lse = tapa_kernel.forward(q, k, v, *arguments)
        backward = do, q, k, v, arguments[0], exact, lse, *arguments[1:]
        found.append(torch.library.opcheck(tapa_kernel.backward, backward, test_utils=checks))
    assert found == 2 * [dict.fromkeys(checks, 'SUCCESS')]


def test_a_second_derivative_is_refused():
    q, k, v, _ = draw()
    loss = tapa_attention(q, k, v, powers(20), 0.5).square().sum()
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
        tapa_attention(q, k, v, powers(20), 0.5)


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
])
def test_it_refuses(message, change):
    q, k, v, _ = draw()
    arguments = {**dict(q=q, k=k, v=v, powers=powers(20), theta=0.5), **change}
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
    if phase == 'linear':
        with pytest.warns(UserWarning, match='without its fused kernel: the phase is linear'):
            torch.testing.assert_close(way(q, k, v), reference)
        assert calls == []
        return
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
