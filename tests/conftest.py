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
SMALL = [
    '--n_layer=1', '--n_embd=16', '--batch_size=4', '--block_size=16', '--max_iters=6',
    '--warmup_iters=2', '--eval_interval=3', '--log_interval=1', '--eval_sequences=8',
    '--device=cpu',
]
TIMES = ('seconds', 'iters_per_second', 'tokens_per_second', 'tflop_per_second')


def together(*arguments):
    """Command-line arguments of which the last of each option counts; train.py takes each once."""
    kept = {}
    for argument in arguments:
        key = argument.partition('=')[0]
        kept.pop(key, None)  # so that it comes behind a config file that it follows
        kept[key] = argument
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
        return subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})

    def log(self):
        """The lines of the log, without times; none if there is no log yet."""
        path = self.folder / 'log.jsonl'
        if not path.exists():
            return []
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [{key: line[key] for key in line if key not in TIMES} for line in lines]

    def checkpoint(self, name='ckpt.pt'):
        return torch.load(self.folder / name, weights_only=True)

    def files(self):
        """{name: bytes} of what is in the folder."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}


@pytest.fixture
def run(tmp_path):
    """run('name') is the run in a temporary folder of that name."""
    return lambda name='run': Run(tmp_path / name)


def assert_same(a, b, path=''):
    """Equality of nested checkpoints, bit for bit."""
    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f'{path}.{key}')
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f'{path}[{i}]')
    elif torch.is_tensor(a):
        assert torch.equal(a, b), path
    else:
        assert a == b, path


def assert_same_run(a, b):
    """Two runs have left the same, bit for bit: states, options that matter, log. Not the times."""
    for name in ('ckpt.pt', 'best.pt'):
        states = [run.checkpoint(name) for run in (a, b)]
        for part in ('model', 'optimizers', 'iter', 'best_val_loss', 'rng', 'model_args', 'task',
                     'data'):
            assert_same(states[0][part], states[1][part], f'{name}: {part}')
    assert a.log() == b.log()
