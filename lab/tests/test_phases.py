"""What is special in the attentions of lab/phases.py; test_attentions.py has their formulas."""

import math

import pytest
import torch
import torch.nn as nn

from lab.tests.conftest import attentions, build
from model import GPT, Attention

IDX = torch.arange(11)[None]


@pytest.mark.parametrize('kind, name', [('lerope', 's'), ('t5', 'bias')])
def test_all_layers_of_a_model_share_what_they_learn(kind, name):
    model = build(attention=f'{kind},rope', n_layer=4)
    other = GPT(model.config)  # of the same config: it has its own
    ours, theirs = ([getattr(attention, name, None) for attention in attentions(each)]
                    for each in (model, other))
    assert ours[0] is ours[2] and theirs[0] is theirs[2] and ours[0] is not theirs[0]
    assert len(model.positional_parameters()) == 1
    both = torch.autograd.grad(model(IDX, IDX)[1], ours[0])[0]
    setattr(attentions(model)[2], name, nn.Parameter(ours[0].detach().clone()))
    assert not torch.allclose(torch.autograd.grad(model(IDX, IDX)[1], ours[0])[0], both)


def test_random_positions_are_sorted_and_reach_eight_times_as_far():
    attention = attentions(build(attention='rope_random', n_head=1, n_embd=2, block_size=100))[0]
    attention.theta = torch.tensor([0.001])  # radians a token
    q = torch.tensor([1.0, 0.0]).repeat(1, 1, 100, 1)
    x, y = attention.rotate(q, q, torch.arange(100))[0][0, 0].T
    position = torch.atan2(y, x) / 0.001
    assert (position.diff() > 0).all() and position[0] > 0 and 600 < position[-1] < 800
    q, _ = attention.eval().rotate(q, q, torch.arange(100))
    torch.testing.assert_close(torch.atan2(*q[0, 0].T.flip(0)) / 0.001, torch.arange(100.0))


def test_with_equal_gates_fox_is_alibi():
    fox, alibi = (attentions(build(attention=name))[0] for name in ('fox', 'alibi'))
    slope = 2.0 ** -torch.tensor([2.0, 4.0, 6.0, 8.0])
    with torch.no_grad():
        fox.b.copy_(torch.logit(torch.exp(-slope)))  # f = e^-slope
    x = torch.randn(2, 9, 32)
    torch.testing.assert_close(fox(x), alibi(x), rtol=1e-4, atol=1e-5)


def test_the_buckets_of_t5_are_those_of_transformers():
    t5 = pytest.importorskip('transformers.models.t5.modeling_t5')
    attention = attentions(build(attention='t5', n_head=1))[0]
    with torch.no_grad():
        attention.bias.copy_(torch.arange(32)[None])
    zeros = torch.zeros(1, 1, 200, 32)
    ours = attention.scores(zeros[:, :, :1], zeros)[0, 0, 0].long()  # the last token's
    theirs = t5.T5Attention._relative_position_bucket(torch.arange(200) - 199, False)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize('name', ['learned', 'sinusoidal'])
def test_only_the_first_layer_adds_positions(name):
    first, second = attentions(build(attention=name))
    x = torch.randn(2, 9, 32)
    torch.testing.assert_close(second(x), Attention.forward(second, x))
    assert not torch.allclose(first(x), Attention.forward(first, x))


def test_partial_rotation_has_the_frequencies_of_gemma_4():
    transformers = pytest.importorskip('transformers')
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=2,
        rope_parameters=dict(rope_type='proportional', partial_rotary_factor=0.25,
                             rope_theta=10000.0))
    theirs, _ = ROPE_INIT_FUNCTIONS['proportional'](config)
    ours = build(n_head=2, n_embd=64, frequencies='partial:keep=0.25')
    torch.testing.assert_close(attentions(ours)[0].theta, theirs)
    assert (theirs > 0).sum() == 4


def test_an_accumulated_phase_can_count():
    model = build(attention='accumulated', n_head=1, n_embd=8, frequencies='partial:keep=0')
    attention = attentions(model)[0]
    ones = torch.randint(2, (512,), generator=torch.Generator().manual_seed(1))
    ones[0] = 0  # the start symbol
    q, k = torch.zeros(2, 1, 1, 512, 8)
    q[..., 0] = 1  # pair 0 of every token is 1 + 0j
    k[..., 0] = 1
    k[..., 1] = ones  # and a number of the key says whether it is a one
    with torch.no_grad():
        attention.W.zero_()
        attention.W[0, 1, 0] = math.pi  # which turns pair 0 by half a turn
    odd = attention.scores(q, k)[0, 0, :, 0] < 0
    assert torch.equal(odd, ones.cumsum(dim=0) % 2 == 1)
