import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train
from configurator import configure

ROOT = Path(__file__).resolve().parent.parent
SMALL = ['--n_layer=1', '--n_embd=16', '--batch_size=4', '--block_size=16', '--max_iters=6', '--warmup_iters=2',
         '--eval_interval=3', '--log_interval=1', '--eval_sequences=8', '--device=cpu']
TIMES = ('seconds', 'iters_per_second')


def together(*arguments):
    """Command-line arguments of which the last of each option counts; train.py takes each once."""
    kept = {}
    for argument in arguments:
        kept.pop(argument.partition('=')[0], None)  # so that it comes behind a config file that it follows
        kept[argument.partition('=')[0]] = argument
    return list(kept.values())


class Run:
    """A folder of a training run, made by train.py in this process or in one of its own."""

    def __init__(self, folder):
        self.folder = folder

    def train(self, *arguments):
        arguments = together(*SMALL, f'--out_dir={self.folder}', *arguments)
        train.main(SimpleNamespace(**configure(dict(vars(train)), arguments)))
        return self

    def start(self, *arguments, launcher=()):
        """train.py in a process of its own, which sees no GPU."""
        arguments = together(*SMALL, f'--out_dir={self.folder}', *arguments)
        command = [sys.executable, *launcher, str(ROOT / 'train.py'), *arguments]
        return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})

    def log(self):
        lines = [json.loads(line) for line in (self.folder / 'log.jsonl').read_text().splitlines()]
        return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]

    def checkpoint(self, name='ckpt.pt'):
        return torch.load(self.folder / name, weights_only=True)


@pytest.fixture
def run(tmp_path):
    """run('name') is the run in a temporary folder of that name."""
    return lambda name='run': Run(tmp_path / name)
