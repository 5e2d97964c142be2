"""What is special in the attentions of lab/phases.py; test_attentions.py has their formulas."""

import math

import pytest
import torch

from lab.tests.conftest import attentions, build, stir

IDX = torch.arange(11)[None]


@pytest.mark.parametrize('name', ['accumulated', 'lerope'])
def test_with_zeros_it_is_rope(name):
    model = build(attention=name)
    with torch.no_grad():
        for parameter in model.positional_parameters():
            parameter.zero_()
    torch.testing.assert_close(model(IDX)[0], build(attention='rope')(IDX)[0])


def test_an_accumulated_phase_depends_on_the_path_and_on_nothing_before_it():
    attention = attentions(build(attention='accumulated'))[0]
    q, k = torch.randn(2, 1, 4, 5, 8)
    before, between = k.clone(), k.clone()
    before[:, :, 0] += 1
    between[:, :, 3] += 1
    scores = attention.scores(q, k)
    torch.testing.assert_close(attention.scores(q, before)[:, :, 4, 2], scores[:, :, 4, 2])
    assert not torch.allclose(attention.scores(q, between)[:, :, 4, 2], scores[:, :, 4, 2])


def test_layers_can_share_the_scales_of_lerope():
    model = stir(build(attention='lerope'))
    for block in model.blocks:
        block.attention.s = model.blocks[0].attention.s
    assert len(model.positional_parameters()) == 1
    model(IDX, IDX)[1].backward()
    assert model.blocks[1].attention.s.grad.abs().min() > 0


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


@pytest.mark.parametrize('keep, same', [(0, 'nope'), (1, 'rope')])
def test_partial_rotation_is_between_nope_and_rope(keep, same):
    partial = build(frequencies=f'partial:keep={keep}')
    torch.testing.assert_close(partial(IDX)[0], build(attention=same)(IDX)[0])


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
