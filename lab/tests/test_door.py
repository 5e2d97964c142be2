"""What `import lab` adds to the page, and that it replaces nothing."""

import json
import subprocess
import sys

import lab
from lab.tests.conftest import ROOT
from tasks import Dyck

FRESH = '''
import json, sys
import model, tasks
pages = [model.ATTENTIONS, model.FREQUENCIES, tasks.TASKS]
before = [dict(entries) for entries in pages]
import train, eval, sample, lab
kept = all(old.items() <= entries.items() for old, entries in zip(before, pages))
ours = [name for module in (model, tasks) for name, thing in vars(module).items()
        if str(getattr(thing, '__module__', None)).startswith('lab')]
heavy = {'triton', 'torch._dynamo', 'tokenizers', 'safetensors', 'matplotlib', 'scipy',
         'transformers', 'lab.surgery', 'lab.tapa_kernel'} & sys.modules.keys()
sys.modules['triton'] = None
import torch
from lab import tapa_kernel
x = torch.ones(1, 1, 2, 16)
print(json.dumps([kept, ours, list(heavy), str(lab.TAPAFused.mro()[1]),
                  tapa_kernel.why_not(x, x, x)]))
'''


def test_in_a_process_of_its_own():
    """
    Every name of the page is the page's object. The lab brings nothing heavy, and no second
    model.py. Its kernel says that there is no Triton.
    """
    done = subprocess.run([sys.executable, '-c', FRESH], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [True, [], [], "<class 'model.TAPA'>", 'Triton is not installed']
    assert json.loads(done.stdout) == expected


def test_a_name_that_is_taken_stays_the_pages_and_a_line_says_so(capsys):
    tasks = dict(sum=Dyck)  # a student's own
    lab.add('TASKS', tasks, lab.LAB_TASKS)
    assert tasks == lab.LAB_TASKS | dict(sum=Dyck)
    line, = capsys.readouterr().err.splitlines()
    assert "TASKS: 'sum' is the one in" in line
