"""What `import lab` adds to the page, and that it replaces nothing."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import pytest

import lab
from lab.tests.conftest import ROOT, SMALL, Run
from model import UserError
from tasks import Dyck
from tests.conftest import PAGE, script

HEAVY = ['triton', 'torch._dynamo', 'tokenizers', 'safetensors', 'matplotlib', 'scipy',
         'transformers', 'lab.surgery', 'lab.tapa_kernel']
FRESH = f'''
import json
import sys
import model, tasks
pages = [model.ATTENTIONS, model.FREQUENCIES, tasks.TASKS]
before = [dict(entries) for entries in pages]
import train, eval, sample, lab
for old, entries in zip(before, pages):
    assert all(entries[name] is entry for name, entry in old.items()), old
    assert len(entries) > len(old)
ours = [name for module in (model, tasks) for name, thing in vars(module).items()
        if str(getattr(thing, '__module__', None)).startswith('lab')]
heavy = [name for name in {HEAVY} if name in sys.modules]
parent = str(lab.TAPAFused.mro()[1])
sys.modules['triton'] = None
import torch
from lab import tapa_kernel
x = torch.ones(1, 1, 2, 16)
print(json.dumps([ours, heavy, parent, tapa_kernel.why_not(x, x, x)]))
'''


def test_in_a_process_of_its_own():
    """
    Every name of the page is the page's object. The lab brings nothing heavy, and no second
    model.py. Its kernel says that there is no Triton.
    """
    done = subprocess.run([sys.executable, '-c', FRESH], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [[], [], "<class 'model.TAPA'>", 'Triton is not installed']
    assert json.loads(done.stdout) == expected


def test_the_lab_changes_no_loss_of_the_page(tmp_path):
    """A model with every attention of the page, beside the lab and in a copy without it."""
    logs = []
    for left_out in ('study', 'lab'):
        copy = tmp_path / f'without {left_out}'
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns('.*', 'out', left_out))
        done = script('train.py', *SMALL, f'--attention={",".join(PAGE)}', '--n_layer=5',
                      '--init_std=0.2', '--n_embd=32', '--out_dir=run', cwd=copy)
        assert done.returncode == 0, done.stderr
        logs.append(Run(copy / 'run').log())
    assert logs[0] == logs[1] and 'Omega' in logs[0][0]


def taken():
    @dataclasses.dataclass
    class Sum(Dyck):
        """A student's own."""

    def linear(config):
        """A student's own."""
    return [('TASKS', 'sum', Sum, lab.LAB_TASKS),
            ('ATTENTIONS', 'tapa_fused', Sum, lab.LAB_ATTENTIONS),
            ('FREQUENCIES', 'linear', linear, lab.LAB_FREQUENCIES)]


@pytest.mark.parametrize('title, name, mine, entries', taken(), ids=lambda value: str(value)[:20])
def test_a_name_that_is_taken_is_an_error_with_both_places(title, name, mine, entries):
    dictionary = {name: mine}
    with pytest.raises(UserError) as error:
        lab.add(title, dictionary, entries)
    assert dictionary[name] is mine
    text = str(error.value)
    assert text.startswith(f"{title} has '{name}' twice: ")
    places = re.findall(r'(\S+\.py), line (\d+)', text)
    assert [place.rpartition('lab/')[2] for place, _ in places][0] == 'tests/test_door.py'
    for place, line in places:
        near = open(place, encoding='utf-8').read().splitlines()[int(line) - 1:][:2]
        assert any(re.match(r'\s*(class|def) ', each) for each in near), near
