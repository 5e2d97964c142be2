"""What belongs to no file alone: commands that are stopped, and states that a class may meet."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from conftest import ROOT
from model import GPT, GPTConfig


@pytest.mark.parametrize('command', [
    ['train.py'], ['eval.py'], ['sample.py'], ['-m', 'lab.measure'], ['-m', 'lab.compare'],
    ['-m', 'study.rows'], ['-m', 'study.run'], ['-m', 'lessons.check'], ['-m', 'lessons.periods']])
def test_ctrl_c_while_torch_is_loaded_has_no_traceback(tmp_path, command):
    stub = 'import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n'
    for name in ('torch', 'numpy'):
        (tmp_path / f'{name}.py').write_text(stub)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, 'PYTHONPATH': path})
    assert (done.returncode, done.stderr) == (-signal.SIGINT, '')


@pytest.mark.parametrize('attention', ['rope', 'spectral', 'bifocal', 'tapa', 'nope'])
def test_no_tokens_and_the_meta_device(attention):
    model = GPT(GPTConfig(vocab_size=5, n_embd=16, attention=attention))
    assert model(torch.zeros(2, 0, dtype=torch.long))[0].shape == (2, 0, 5)
    idx = torch.zeros(2, 3, dtype=torch.long, device='meta')
    assert model.to('meta')(idx)[0].shape == (2, 3, 5)
