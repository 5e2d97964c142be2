"""The attentions of lab/phases.py, beside their formulae, written out in float64."""

import copy
import math

import pytest
import torch

import lab  # noqa: F401  # more attentions
from lab.phases import LeRoPE
from model import GPT, GPTConfig

NAMES = ['accumulated', 'lerope']
B, T, HS = 2, 5, 8


def build(name, **options):
    """A small GPT in which what an attention learns is moved away from its start."""
    torch.manual_seed(0)
    small = dict(vocab_size=11, n_layer=2, n_head=4, n_embd=4 * HS, attention=name)
    model = GPT(GPTConfig(**small | options)).eval()
    with torch.no_grad():
        for parameter in model.positional_parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def attention_of(name, **options):
    """One attention, moved away from its start."""
    return build(name, **options).blocks[0].attention


def pair(x, i):
    """Pair i of a vector as a complex number."""
    return torch.complex(x[i], x[i + HS // 2])


def naive(attention, x, angles):
    """
    The output (B, T, C) for x (B, T, C): loops over strings, heads, queries and keys. angles(head,
    keys, i) are those of pair i at each token, whose keys of this head are (T, hs).
    """
    config = attention.config
    q, k, v = attention.project(x)
    group = config.n_head // config.n_kv_head
    out = []
    for b in range(len(x)):
        for m in range(x.size(1)):
            heads = []
            for head in range(config.n_head):
                keys, values = k[b, head // group], v[b, head // group]
                scores = []
                for n in range(m + 1):
                    score = 0
                    for i in range(HS // 2):
                        angle = angles(head, keys, i)
                        phasor = torch.exp(1j * (angle[m] - angle[n]))
                        score = score + (pair(q[b, head, m], i) * pair(keys[n], i).conj()
                                         * phasor).real
                    scores.append(score / math.sqrt(HS))
                heads.append(torch.stack(scores).softmax(dim=0) @ values[:m + 1])
            out.append(attention.proj.weight @ torch.cat(heads))
    return torch.stack(out).view_as(x)


def formula(attention):
    """The angles of an attention as its docstring has them."""
    theta = 10000.0 ** (-2 * torch.arange(HS // 2, dtype=torch.float64) / HS)
    if isinstance(attention, LeRoPE):
        return lambda head, keys, i: torch.arange(T) * theta[i] * attention.s[i].exp()

    def angles(head, keys, i):
        total, sums = 0, []
        for key in keys:
            total = total + theta[i] + key @ attention.W[head, :, i]
            sums.append(total)
        return torch.stack(sums)
    return angles


def value_and_gradients(attention, x, forward):
    """forward(x), and the gradients of x and of each parameter, all in float64."""
    weights = torch.arange(x.numel(), dtype=x.dtype).cos().view_as(x)
    x = x.clone().requires_grad_()
    y = forward(x)
    (y * weights).sum().backward()
    found = [y, x.grad, *(parameter.grad for parameter in attention.parameters())]
    return [tensor.detach().double() for tensor in found]


@pytest.mark.parametrize('n_kv_head', [4, 2])
@pytest.mark.parametrize('name', NAMES)
def test_an_attention_equals_its_formula_in_value_and_gradient(name, n_kv_head):
    ours = attention_of(name, n_kv_head=n_kv_head)
    exact = copy.deepcopy(ours).double()
    x = torch.randn(B, T, 4 * HS, generator=torch.Generator().manual_seed(1))
    found = value_and_gradients(ours, x, ours)
    right = value_and_gradients(exact, x.double(), lambda x: naive(exact, x, formula(exact)))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', NAMES)
def test_with_zeros_it_is_rope(name):
    logits = []
    for attention in (name, 'rope'):
        torch.manual_seed(0)
        model = GPT(GPTConfig(vocab_size=11, n_embd=32, attention=attention))
        with torch.no_grad():
            for parameter in model.positional_parameters():
                parameter.zero_()
        logits.append(model(torch.arange(11)[None])[0])
    torch.testing.assert_close(*logits)


def test_an_accumulated_phase_depends_on_the_path_and_on_nothing_before_it():
    attention = attention_of('accumulated')
    q, k = torch.randn(2, 1, 4, T, HS)
    before, between = k.clone(), k.clone()
    before[:, :, 0] += 1
    between[:, :, 3] += 1
    scores = attention.scores(q, k)
    torch.testing.assert_close(attention.scores(q, before)[:, :, 4, 2], scores[:, :, 4, 2])
    assert not torch.allclose(attention.scores(q, between)[:, :, 4, 2], scores[:, :, 4, 2])


def test_layers_can_share_the_scales_of_lerope():
    model = build('lerope')
    for block in model.blocks:
        block.attention.s = model.blocks[0].attention.s
    assert len(model.positional_parameters()) == 1
    idx = torch.arange(11)[None]
    model(idx, idx)[1].backward()
    assert model.blocks[1].attention.s.grad.abs().min() > 0


def test_partial_rotation_has_the_frequencies_of_gemma_4():
    transformers = pytest.importorskip('transformers')
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=2,
        rope_parameters=dict(rope_type='proportional', partial_rotary_factor=0.25,
                             rope_theta=10000.0))
    theirs, _ = ROPE_INIT_FUNCTIONS['proportional'](config)
    ours = build('rope', n_head=2, n_embd=64, frequencies='partial:keep=0.25')
    torch.testing.assert_close(ours.blocks[0].attention.theta, theirs)
    assert (theirs > 0).sum() == 4


@pytest.mark.parametrize('keep, same', [(0, 'nope'), (1, 'rope')])
def test_partial_rotation_is_between_nope_and_rope(keep, same):
    idx = torch.arange(11)[None]
    partial = build('rope', frequencies=f'partial:keep={keep}')
    torch.testing.assert_close(partial(idx)[0], build(same)(idx)[0])


def test_an_accumulated_phase_can_count():
    attention = attention_of('accumulated', n_head=1, n_embd=HS, frequencies='partial:keep=0')
    ones = torch.randint(2, (512,), generator=torch.Generator().manual_seed(1))
    ones[0] = 0  # the start symbol
    q, k = torch.zeros(2, 1, 1, 512, HS)
    q[..., 0] = 1  # pair 0 of every token is 1 + 0j
    k[..., 0] = 1
    k[..., 1] = ones  # and a number of the key says whether it is a one
    with torch.no_grad():
        attention.W.zero_()
        attention.W[0, 1, 0] = math.pi  # which turns pair 0 by half a turn
    odd = attention.scores(q, k)[0, 0, :, 0] < 0
    assert torch.equal(odd, ones.cumsum(dim=0) % 2 == 1)
