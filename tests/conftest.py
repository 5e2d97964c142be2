import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # before anything imports triton: its kernels then run in numpy

import train
from configurator import configure

ROOT = Path(__file__).resolve().parent.parent
SMALL = ['--n_layer=1', '--n_embd=16', '--batch_size=4', '--block_size=16', '--max_iters=6', '--warmup_iters=2', '--eval_interval=3',
         '--log_interval=1', '--eval_sequences=8', '--device=cpu']
TIMES = ('seconds', 'iters_per_second', 'tokens_per_second', 'waiting')


class Run:
    """A folder of a training run, made by train.py in this process or in one of its own."""

    def __init__(self, folder):
        self.folder = folder

    def arguments(self, *arguments):
        return [*SMALL, f'--out_dir={self.folder}', *arguments]

    def train(self, *arguments):
        train.main(SimpleNamespace(**configure(dict(vars(train)), self.arguments(*arguments))))
        return self

    def start(self, *arguments, launcher=(), visible=False):
        """train.py in a process of its own, which sees the GPUs only if told to."""
        return subprocess.Popen([sys.executable, *launcher, str(ROOT / 'train.py'), *self.arguments(*arguments)], cwd=ROOT, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **({} if visible else {'CUDA_VISIBLE_DEVICES': ''})})

    def log(self, times=False):
        lines = [json.loads(line) for line in (self.folder / 'log.jsonl').read_text().splitlines()]
        return [{k: v for k, v in line.items() if times or k not in TIMES} for line in lines]

    def checkpoint(self, name='ckpt.pt'):
        return torch.load(self.folder / name, weights_only=True)


@pytest.fixture
def run(tmp_path):
    """run('name') is the run in a temporary folder of that name."""
    return lambda name='run': Run(tmp_path / name)
