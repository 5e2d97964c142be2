"""What belongs to no file alone: states that a class may meet."""

import pytest
import torch

from model import GPT, GPTConfig


@pytest.mark.parametrize('attention', ['rope', 'spectral', 'bifocal', 'tapa', 'nope'])
def test_no_tokens_and_the_meta_device(attention):
    model = GPT(GPTConfig(vocab_size=5, n_embd=16, attention=attention))
    assert model(torch.zeros(2, 0, dtype=torch.long))[0].shape == (2, 0, 5)
    idx = torch.zeros(2, 3, dtype=torch.long, device='meta')
    assert model.to('meta')(idx)[0].shape == (2, 3, 5)
