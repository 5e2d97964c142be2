import hashlib
import os

import pytest
import torch

if not torch.cuda.is_available():
    # before anything imports triton: its kernels then run in numpy
    os.environ['TRITON_INTERPRET'] = '1'

import lab  # noqa: E402, F401
from model import GPT, GPTConfig  # noqa: E402
from tests.conftest import ROOT, SMALL, Run, run, runs  # noqa: E402, F401


def build(seed=0, config=GPTConfig, **options):
    """A model of two layers, 4 heads and 32 dimensions, unless the options say otherwise."""
    fields = dict(vocab_size=11, n_layer=2, n_head=4, n_embd=32, init_std=0.2) | options
    torch.manual_seed(seed)
    return GPT(config(**fields))


def attentions(model):
    return [block.attention for block in model.blocks]


@torch.no_grad()
def stir(model):
    """Move Omega, A and Phi away from their start, so that each of them matters."""
    for parameter in model.positional_parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture
def text_folder(tmp_path):
    """60 small Python files, each with words of its own."""
    (tmp_path / 'text' / 'sub').mkdir(parents=True)
    for i in range(60):
        name = hashlib.sha256(str(i).encode()).hexdigest()[:8]
        lines = [f'{name}_{j} = [{j}, ({i} + {j})]\n' for j in range(120)]
        place = tmp_path / 'text' / ('sub' if i % 3 else '.') / f'{name}.py'
        place.write_text(''.join(lines), encoding='utf-8')
    return tmp_path / 'text'
