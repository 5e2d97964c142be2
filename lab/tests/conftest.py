import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # before anything imports triton: its kernels then run in numpy

from model import GPT, GPTConfig  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = ['--n_layer=1', '--n_embd=16', '--batch_size=4', '--block_size=16', '--max_iters=6', '--warmup_iters=2',
         '--eval_interval=3', '--log_interval=1', '--eval_sequences=8', '--device=cpu']
TIMES = ('seconds', 'iters_per_second', 'tokens_per_second', 'waiting')


def build(seed=0, **options):
    """A model of two layers, 4 heads and 32 dimensions, unless the options say otherwise."""
    torch.manual_seed(seed)
    return GPT(GPTConfig(**dict(dict(vocab_size=11, n_layer=2, n_head=4, n_embd=32), **options)))


def ways(model):
    """The way to attend of each layer."""
    return [block.attention.way for block in model.blocks]


@torch.no_grad()
def stir(model):
    """Move what the ways to attend learn away from its start, so that each parameter matters."""
    for way in ways(model):
        for parameter in way.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


class Run:
    """A folder of a training run, made by train.py in this process."""

    def __init__(self, folder):
        self.folder = folder

    def train(self, *arguments):
        import train
        from configurator import configure
        options = configure(dict(vars(train)), [*SMALL, f'--out_dir={self.folder}', *arguments])
        train.main(SimpleNamespace(**options))
        return self

    def log(self):
        """The lines of log.jsonl, without the times, which differ from run to run."""
        lines = [json.loads(line) for line in (self.folder / 'log.jsonl').read_text().splitlines()]
        return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]

    def checkpoint(self, name='ckpt.pt'):
        return torch.load(self.folder / name, weights_only=True)


@pytest.fixture
def run(tmp_path):
    """run('name') is the run in a temporary folder of that name."""
    return lambda name='run': Run(tmp_path / name)
