"""TAPA's kernels beside its formula in float64: on CUDA itself, else in Triton's interpreter."""

import math
from functools import partial
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from lab import tapa, tapa_kernel
from lab.tapa_kernel import tapa_attention
from lab.tests.conftest import exact
from model import Attention, GPTConfig

tl = pytest.importorskip('triton').language
CUDA = torch.cuda.is_available()  # else Triton interprets: conftest.py
DEVICE = 'cuda' if CUDA else 'cpu'
ALPHA = 0.3  # far enough from 0 that a wrong distance shows
CASES = {  # hs, theta, T, nh, nkv, B, tapa_scale; 70 tokens are two of the interpreter's blocks
    'three blocks': (16, 0.5, 129, 1, 1, 1, 2 * math.pi),
    'both parts padded': (24, 0.25, 70, 4, 2, 1, 1.0),
    'the largest head, unequal parts': (128, 0.25, 17, 3, 1, 3, 10.0),
    'one token': (16, 0.5, 1, 2, 1, 1, 2 * math.pi),
}
if CUDA:
    CASES['long'] = (64, 0.5, 1000, 4, 2, 3, 2 * math.pi)
    CASES['long, the largest head'] = (128, 0.5, 1000, 2, 2, 1, 2 * math.pi)


def sample(hs=16, T=20, nh=2, nkv=1, B=1, dtype=torch.float32, seed=0):
    """q, k, v and a gradient of the output, as in the model: (B, T, heads, hs), transposed."""
    torch.manual_seed(seed)
    tensors = [torch.randn(B, T, heads, hs).to(DEVICE, dtype).transpose(1, 2)
               for heads in (nh, nkv, nkv, nh)]
    return [x.requires_grad_() for x in tensors[:3]] + tensors[3:]


def powers(T):
    return torch.arange(T, device=DEVICE).float() ** ALPHA


def fused(q, k, v, theta=0.5, scale=2 * math.pi):
    return tapa_attention(q, k, v, powers(q.size(2)), theta, scale)


def outcome(attention, q, k, v, do):
    """out, dq, dk, dv."""
    out = attention(q, k, v)
    return out, *torch.autograd.grad(out, (q, k, v), do)


def errors(ours, formula, q, k, v, do):
    """The relative norm of the difference to a formula in float64, of out, dq, dk and dv."""
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact = outcome(formula, *doubles, do.double())
    norms = [y.norm() if y.size(2) > 1 else 1  # the q and k of one token have no gradient
             for y in exact]
    return [((x.double() - y).norm() / norm).item() for x, y, norm in zip(ours, exact, norms)]


# The formula


@pytest.mark.parametrize('case', CASES)
def test_values_and_gradients_are_the_formulas(case):
    hs, theta, T, nh, nkv, B, scale = CASES[case]
    inputs = sample(hs, T, nh, nkv, B)
    ours = outcome(partial(fused, theta=theta, scale=scale), *inputs)
    formula = partial(exact, theta=theta, alpha=ALPHA, scale=scale)
    assert max(errors(ours, formula, *inputs)) < 1e-5


def test_16_bits_lose_what_plain_attention_loses():
    """At most twice the error of PyTorch's own kernel, or thrice in the interpreter."""
    def plain(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    inputs = sample(64, 70, 3, 1, dtype=torch.bfloat16)
    ours = errors(outcome(fused, *inputs), partial(exact, alpha=ALPHA), *inputs)
    theirs = errors(outcome(plain, *inputs), plain, *inputs)
    allowed = 2 if CUDA else 3  # the interpreter truncates to bfloat16
    assert all(x < min(1e-2, allowed * y) for x, y in zip(ours, theirs))
    assert fused(*inputs[:3]).dtype == torch.bfloat16


def test_the_tiles_change_nothing(monkeypatch):
    """Several blocks along each axis, and several tiles on the diagonal of a block."""
    inputs = sample(16, 70)
    chosen = dict(ROWS=32, COLUMNS=16, num_warps=4, num_stages=2)
    monkeypatch.setattr(tapa_kernel, 'tile', lambda *_: dict(chosen))
    assert max(errors(outcome(fused, *inputs), partial(exact, alpha=ALPHA), *inputs)) < 1e-5


@tapa_kernel.jit
def waves(h, cosine, sine):
    """cos(pi h) and sin(pi h) of 1024 numbers."""
    i = tl.arange(0, 1024)
    x, y = tapa_kernel.cosine_and_sine(tl.full([1024], 1.0, tl.float32), tl.load(h + i))
    tl.store(cosine + i, x)
    tl.store(sine + i, y)


@pytest.mark.parametrize('turns', [1, 1000, 2**22, 2**30])
def test_cosine_and_sine_of_many_turns(turns):
    """Within 1e-6 up to 2^22 turns. Beyond, where float32 hardly knows the phase, bounded."""
    half_turns = torch.linspace(-2 * turns, 2 * turns, 1024, dtype=torch.float64, device=DEVICE)
    h = half_turns.float()
    cosine, sine = torch.empty_like(h), torch.empty_like(h)
    waves[1,](h, cosine, sine)
    if turns <= 2**22:
        exact = math.pi * (h.double() % 2)
        assert (cosine - exact.cos()).abs().max() < 1e-6
        assert (sine - exact.sin()).abs().max() < 1e-6
    assert cosine.abs().max() < 1 + 1e-6 and sine.isfinite().all()


# Compiled


def test_compiled_in_one_graph_it_is_the_same():
    def loss(q, k, v):
        return fused(2 * q, k, v).transpose(1, 2).flatten(2).square().sum()
    qkv = sample()[:3]
    compiled = torch.compile(loss, fullgraph=True, backend='inductor' if CUDA else 'aot_eager')
    for x, y in zip(*(torch.autograd.grad(f(*qkv), qkv) for f in (compiled, loss))):
        assert (x - y).norm() < 1e-4 * y.norm()  # a compiler rounds elsewhere


# What it does not serve


@pytest.mark.parametrize('reason, change', [
    ('float32, torch.bfloat16, torch.float32', lambda q, k, v, p: (q, k.bfloat16(), v, p)),
    ('head size is 144, not from 16 to 128',
     lambda *qkv: [*(F.pad(x, (0, 128)) for x in qkv[:3]), qkv[3]]),
    ('does not run on meta', lambda *qkv: [x.to('meta') for x in qkv]),
    ('fixed order', lambda *qkv: qkv),
    # what it would read wrong: fewer keys, 3 heads on 2, another head size, powers
    ('do not fit', lambda q, k, v, p: (q, k[:, :, :5], v[:, :, :5], p)),
    ('do not fit', lambda q, k, v, p: (q[:, :3], k, v, p)),
    ('do not fit', lambda q, k, v, p: (q, k, F.pad(v, (0, 16)), p)),
    ('do not fit', lambda q, k, v, p: (q, k, v, p.double())),
    ('do not fit', lambda q, k, v, p: (q, k, v, p[:-1])),
])
def test_what_it_does_not_serve_is_refused_with_a_reason(reason, change, monkeypatch):
    monkeypatch.setattr(tapa_kernel, 'interpreted', 'on meta' not in reason and not CUDA)
    monkeypatch.setattr(torch, 'are_deterministic_algorithms_enabled', lambda: 'order' in reason)
    with pytest.raises(ValueError, match=reason):
        tapa_attention(*change(*sample(nh=4, nkv=2)[:3], powers(20)), 0.5)


# The model's choice


def test_the_model_calls_it_where_it_can_and_says_why_where_it_cannot(monkeypatch):
    """What it does not serve goes by blocks."""
    attention = tapa.TAPAFused(GPTConfig(vocab_size=5, n_head=4, n_embd=64, tapa_alpha=ALPHA,
                                         tapa_scale=1.0, tapa_theta=0.25))
    q, k, v, _ = sample(16, 50, 4, 4)
    expected, kernel = Attention.attend(attention, q, k, v), Mock(wraps=tapa_attention)
    monkeypatch.setattr(torch.Tensor, 'is_cuda', True, raising=False)
    monkeypatch.setattr(torch.cuda, 'device_of', lambda tensor: torch.no_grad())
    monkeypatch.setattr(tapa_kernel, 'tapa_attention', kernel)
    monkeypatch.setattr(tapa_kernel, 'why_not', lambda *_: None)
    ours = attention.attend(q, k, v)
    last = attention.attend(q[:, :, -1:], k, v)  # it goes on after a cache
    monkeypatch.setattr(tapa_kernel, 'why_not', lambda *_: 'the GPU is too old')
    with pytest.warns(UserWarning, match='without its fused kernel: the GPU is too old'):
        blocks = attention.attend(q, k, v)
    kernel.assert_called_once()
    for y, right in [(ours, expected), (last, expected[:, :, -1:]), (blocks, expected)]:
        torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-5)
