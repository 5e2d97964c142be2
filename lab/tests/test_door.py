"""What `import lab` adds to the page, and what it does not."""

import dataclasses
import subprocess
import sys

import pytest
import torch

import checkpoint
import model
from lab.llama import LlamaConfig
from lab.tests.conftest import ROOT, build
from model import GPT, GPTConfig, UserError
from tasks import TASKS

HEAVY = ['triton', 'torch._dynamo', 'tokenizers', 'safetensors', 'matplotlib', 'scipy',
         'lab.surgery', 'lab.tapa_kernel']


def test_it_is_light():
    """It brings nothing heavy, and no second model.py."""
    code = ('import sys, train, lab; '
            f'print([name for name in {HEAVY} if name in sys.modules], lab.TAPA.mro()[1])')
    run = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "[] <class 'model.TAPA'>\n", run.stdout + run.stderr


def test_the_page_has_the_labs_entries():
    own = {name: each.__module__ for name, each in model.ATTENTIONS.items()}
    assert own == dict(rope='lab.frequencies', spectral='lab.frequencies',
                       bifocal='lab.frequencies', tapa='lab.tapa', nope='model')
    assert {'linear', 'yarn'} < model.GRIDS.keys() and {'lag', 'passkey'} < TASKS.keys()
    assert checkpoint.STARTS.keys() == {'checkpoint', 'hf'}
    assert checkpoint.CONFIGS == [GPTConfig, LlamaConfig]


@pytest.mark.parametrize('name', model.ATTENTIONS)
def test_a_default_llama_is_the_pages_model(name):
    ours, pages = (build(attention=name, config=config) for config in (LlamaConfig, GPTConfig))
    idx = torch.randint(11, (2, 9))
    assert torch.equal(ours(idx)[0], pages(idx)[0])


def test_a_llama_has_shapes_of_its_own():
    config = LlamaConfig(vocab_size=11, n_embd=30, n_head=4, n_kv_head=2, head_size=6, n_inner=20,
                         norm_eps=0.5, tie_embeddings=True)
    llama = GPT(config)
    block = llama.blocks[0]
    assert block.attention.qkv.weight.shape == ((4 + 2 + 2) * 6, 30)
    assert block.mlp.up.weight.shape == (20, 30) and block.norm_1.eps == 0.5
    assert llama.lm_head.weight is llama.embedding.weight
    args = dataclasses.asdict(config)
    assert checkpoint.make_config(args) == config


@pytest.mark.parametrize('options, message', [
    (dict(n_embd=30, n_head=4), 'n_embd=30: must be a multiple of n_head'),
    (dict(n_embd=0, head_size=4), 'n_embd=0: must be positive'),
    (dict(n_head=0), 'n_head=0: must be positive'),
    (dict(head_size=-1), 'head_size=-1: must be 0, or positive'),
    (dict(n_inner=2**24), 'n_inner=16777216: must be 0, or positive and below'),
    (dict(norm_eps=0.0), 'norm_eps=0.0: must be positive'),
])
def test_a_wrong_option_is_named(options, message):
    with pytest.raises(UserError, match=message):
        LlamaConfig(vocab_size=11, **options)
