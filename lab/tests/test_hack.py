"""The README's "Hack it", followed to the letter in a copy of the tree: a way to attend, a task, all tests green."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT

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
CHECKER = '''def parity(task, said):
    return ['01'[said[:t + 1].count('1') % 2] for t in range(len(said))]


'''
NAIVE_ALIBI = '''def naive_alibi(config, head, weights, q, k, distance):
    slope = 2 ** (-8 * (head + 1) / config.n_head)
    return torch.einsum('btd,bsd->bts', q, k) / math.sqrt(config.head_size) - slope * distance


'''
SLOPES = '''
import torch
from lab.analysis import attention_scores
from model import GPT, GPTConfig
attention = GPT(GPTConfig(vocab_size=5, attention='alibi')).blocks[0].attention
torch.nn.init.zeros_(attention.qkv.weight)
scores = attention_scores(attention, torch.randn(1, 9, 64))[0]
assert torch.allclose(scores[:, 8, 3], -5 * torch.tensor([2.0**-4, 2.0**-8])), scores[:, 8, 3]
'''


def insert(path, before, text):
    """Put `text` before the only line of a file that starts with `before`."""
    lines = path.read_text().splitlines(keepends=True)
    (place,) = [i for i, line in enumerate(lines) if line.startswith(before)]
    path.write_text(''.join(lines[:place]) + text + ''.join(lines[place:]))


def replace(path, old, new):
    """Put `new` in the place of the only `old` in a file."""
    assert path.read_text().count(old) == 1, (path, old)
    path.write_text(path.read_text().replace(old, new))


@pytest.fixture(scope='module')
def hacked(tmp_path_factory):
    """A copy of the tree with ALiBi and the task parity, as the README says."""
    copy = tmp_path_factory.mktemp('hack') / 'nanophase'
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns('out', '.git', '__pycache__', '.pytest_cache', 'results'))
    shutil.copytree(ROOT / 'lab/results', copy / 'lab/results')
    alibi = re.search(r'```python\n(class ALiBi.*?)\n*```', (ROOT / 'README.md').read_text(), re.DOTALL).group(1)
    insert(copy / 'model.py', 'ATTENTIONS = ', alibi + '\n\n\n')
    replace(copy / 'model.py', "'nope': NoPE}  # yours goes here", "'nope': NoPE, 'alibi': ALiBi}")
    insert(copy / 'tests/test_model.py', 'NAIVE = ', NAIVE_ALIBI)
    replace(copy / 'tests/test_model.py', "'nope': naive_nope}", "'nope': naive_nope, 'alibi': naive_alibi}")
    replace(copy / 'tests/test_model.py', "    'nope': dict(attention='nope'),\n",
            "    'nope': dict(attention='nope'),\n    'alibi': dict(attention='alibi'),\n")
    insert(copy / 'tasks.py', 'TASKS = ', PARITY)
    replace(copy / 'tasks.py', 'Modulo, Text)}', 'Modulo, Text, Parity)}')
    insert(copy / 'tests/test_tasks.py', 'SOLVE = ', CHECKER)
    replace(copy / 'tests/test_tasks.py', 'modulo=modulo)', 'modulo=modulo, parity=parity)')
    text = re.search(r'^\| `text:path=FILE` .*\n', (copy / 'README.md').read_text(), re.MULTILINE).group()
    replace(copy / 'README.md', text, text + '| `parity` | `x 101110`<br>`y 110100` | Odd or even? |\n')
    budgets = re.search(r'^LINES = .*$', (copy / 'tests/test_house.py').read_text(), re.MULTILINE).group()
    raised = re.sub(r'\d+', lambda number: str(int(number.group()) + 40), budgets)
    replace(copy / 'tests/test_house.py', budgets, raised)
    return copy


def python(copy, *words):
    """What a command of the copy prints; an assertion if it fails."""
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1'}
    done = subprocess.run([sys.executable, *words], cwd=copy, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_scripts_run_with_what_was_added(hacked):
    python(hacked, 'train.py', 'config/dyck3_rope.py', '--attention=alibi', '--task=parity', '--max_iters=2',
           '--eval_sequences=8', '--out_dir=out/alibi')
    assert 'accuracy' in python(hacked, 'eval.py', 'out/alibi', '--n=8', '--multiples', '1')
    assert 'parity, alibi: ' in python(hacked, 'sample.py', 'out/alibi', '--n=4')
    assert "'alibi'" in python(hacked, '-c', "import model; print(repr([*model.ATTENTIONS]))")


def test_everything_measures_through_the_class(hacked):
    python(hacked, '-c', SLOPES)


def test_the_whole_suite_is_green_with_them(hacked):
    printed = python(hacked, '-m', 'pytest', '-q', '-rN', 'tests')
    assert not re.search(r'failed|error', printed, re.IGNORECASE)
