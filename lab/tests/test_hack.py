"""
The README's "Hack it", followed in a copy of the tree: an attention, a task and a model option of
one's own. They train, are measured and compared, and the tests of the page are green.
"""

import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT, script

PARITY = '''@dataclasses.dataclass
class Parity(Task):
    """
    How many ones so far, odd or even?

        x  1 0 1 1 1 0
        y  1 1 0 1 0 0
    """
    name = 'parity'
    symbols = ['0', '1']
    chance = 1 / 2
    min_length = 1

    def inputs(self, rng, batch, length):
        return rng.integers(0, 2, (batch, length))

    def targets(self, x):
        return np.cumsum(x, axis=1) % 2


'''
NAIVE_WAVE = '''def naive_wave(config, head, weights, q, k, distance):
    height, omega = (weights[name][head] for name in ('height', 'omega'))
    return naive_nope(config, head, weights, q, k, distance) + height * torch.cos(omega * distance)


'''
SCORES = '''
import torch
from lab.analysis import attention_scores
from model import GPT, GPTConfig
model = GPT(GPTConfig(vocab_size=5, attention='wave', steepness=3.0))
attention = model.blocks[0].attention
torch.nn.init.zeros_(attention.qkv.weight)
scores = attention_scores(attention, torch.randn(1, 9, 64))[0]
expected = 3 * torch.cos(5 * torch.tensor([0.6, 1.2]))
assert torch.allclose(scores[:, 8, 3], expected), scores[:, 8, 3]
'''


def insert(path, before, text):
    """Put `text` before the only line of a file that starts with `before`."""
    lines = path.read_text().splitlines(keepends=True)
    (place,) = [i for i, line in enumerate(lines) if line.startswith(before)]
    path.write_text(''.join([*lines[:place], text, *lines[place:]]))


def replace(path, old, new):
    """Put `new` in the place of the only `old` in a file."""
    assert path.read_text().count(old) == 1, (path, old)
    path.write_text(path.read_text().replace(old, new))


@pytest.fixture(scope='module')
def hacked(tmp_path_factory):
    """A copy of the tree with the README's attention, an option of it, and the task parity."""
    copy = tmp_path_factory.mktemp('hack') / 'nanophase'
    left_out = shutil.ignore_patterns('out', '.git', '__pycache__', '.pytest_cache', 'study')
    shutil.copytree(ROOT, copy, ignore=left_out)
    readme = (ROOT / 'README.md').read_text()
    wave = re.search(r'```python\n(class Wave.*?)\n*```', readme, re.DOTALL).group(1)
    assert ' 3.0))' in wave
    wave = wave.replace(' 3.0))', ' config.steepness))')
    insert(copy / 'model.py', 'ATTENTIONS = ', wave + '\n\n\n')
    replace(copy / 'model.py', 'nope=Attention)', 'nope=Attention, wave=Wave)')
    insert(copy / 'model.py', '    tapa_alpha: float', '    steepness: float = 1.0  # of Wave\n')
    insert(copy / 'train.py', 'tapa_scale = ', 'steepness = 1.0  # of Wave, at the start\n')
    insert(copy / 'tests/test_model.py', 'NAIVE = ', NAIVE_WAVE)
    insert(copy / 'tests/test_model.py', "    'rope': naive_rotary", "    'wave': naive_wave,\n")
    insert(copy / 'tests/test_model.py', "    'rope': dict(attention='rope')",
           "    'wave': dict(attention='wave', steepness=0.5),\n")
    insert(copy / 'tasks.py', 'TASKS = ', PARITY)
    replace(copy / 'tasks.py', 'Modulo, Text)}', 'Modulo, Text, Parity)}')
    return copy


def python(copy, *words):
    """What a command of the copy prints; an assertion if it fails."""
    done = script(*words, cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_runs_of_ones_own_are_trained_measured_and_compared(hacked):
    for scale in ('1', '0.5'):
        python(hacked, 'train.py', 'config/dyck3_rope.py', '--attention=wave', '--task=parity',
               f'--steepness={scale}', '--max_iters=2', '--eval_sequences=8',
               f'--out_dir=out/{scale}')
        printed = python(hacked, '-m', 'lab.measure', f'out/{scale}', '--n=8', '--multiples', '2')
        assert 'accuracy' in printed
    assert 'accuracy' in python(hacked, 'eval.py', 'out/1', '--n=8', '--multiples', '1', '2')
    assert 'parity' in python(hacked, 'sample.py', 'out/1', '--n=4')
    printed = python(hacked, '-m', 'lab.compare', 'out/1', 'out/0.5',
                     '--baseline', 'steepness=1')
    header, _, one, other = printed.splitlines()[:4]
    assert header.startswith('| task | attention | steepness |')
    assert one.startswith('| parity | wave | 1 |')
    assert other.startswith('| parity | wave | 0.5 |')


def test_everything_measures_through_the_class(hacked):
    python(hacked, '-c', SCORES)


@pytest.mark.slow
def test_the_tests_of_the_page_are_green_with_them(hacked):
    names = 'wave or parity or naive or options or help or same_weights'
    command = [sys.executable, '-m', 'pytest', 'tests/test_model.py', 'tests/test_tasks.py',
               'tests/test_configurator.py', '-k', names]
    done = subprocess.run(command, cwd=hacked, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout
