"""TAPA by transformers' attention interface is this repository's TAPA."""

import pytest
import torch

transformers = pytest.importorskip('transformers', reason='needs pip install transformers')

from lab.tapa_in_place import tapa_in_place  # noqa: E402
from lab.tests.families import make  # noqa: E402
from lab.tests.test_spectralize import TOKENS, logits, to_ours  # noqa: E402

SHAPE = dict(intermediate_size=168, rms_norm_eps=1e-5)


def tame(model):
    """Matrices as small as trained ones are, for the phase is a product of two of them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5 if parameter.dim() == 2 else 1)
    return model


@pytest.mark.parametrize('name', ['llama', 'mistral'])
def test_it_is_the_function_of_this_repository(name):
    model = tame(make(name, **SHAPE))
    ours = to_ours(model, 'tapa')
    before = logits(model)
    tapa_in_place(model)
    torch.testing.assert_close(logits(model), ours(TOKENS)[0], rtol=0, atol=1e-4)
    assert not torch.allclose(logits(model), before, atol=1e-2)


def test_gradients_and_every_kind_of_cache():
    model = tapa_in_place(tame(make('llama')))
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())
    tokens, length = TOKENS[:1, :20], dict(max_new_tokens=6, do_sample=False)
    expected = model.generate(tokens, use_cache=False, **length)
    static = model.generate(tokens, cache_implementation='static', disable_compile=True, **length)
    assert torch.equal(static, expected)
    padding = torch.zeros(1, 5, dtype=torch.long)
    mask = torch.cat([padding, torch.ones_like(tokens)], 1)
    padded = model.generate(torch.cat([padding, tokens], 1), attention_mask=mask, **length)
    assert torch.equal(padded[:, 5:], expected)


def test_other_models_keep_their_rotation():
    tapa_in_place(make('llama'))
    assert torch.equal(logits(make('llama')), logits(make('llama')))
    assert not torch.equal(logits(make('llama')), logits(tapa_in_place(make('llama'))))
