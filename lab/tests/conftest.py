import os

import torch

if not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # before triton is imported: kernels then run in numpy

from model import GPT, GPTConfig  # noqa: E402
from tests.conftest import ROOT, SMALL, Run, run  # noqa: E402, F401: the page's runs serve here, too


def build(seed=0, **options):
    """A model of two layers, 4 heads and 32 dimensions, unless the options say otherwise."""
    torch.manual_seed(seed)
    small = dict(vocab_size=11, n_layer=2, n_head=4, n_embd=32)
    return GPT(GPTConfig(**(small | options)))


def after(start, document):
    """What follows `start` on the one line of a document that begins with it."""
    lines = (ROOT / document).read_text().splitlines()
    found = [line.removeprefix(start) for line in lines if line.startswith(start)]
    assert len(found) == 1, start
    return found[0]


def attentions(model):
    """The attention of each layer."""
    return [block.attention for block in model.blocks]


ways = attentions  # until no test says so any more


@torch.no_grad()
def stir(model):
    """Move what the attentions learn away from its start, so that each parameter matters."""
    for parameter in model.positional_parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return model
