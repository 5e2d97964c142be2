"""What `import lab` adds to the page, and that it replaces nothing."""

import dataclasses
import re
import subprocess
import sys

import pytest

import lab
from lab.tests.conftest import ROOT
from model import UserError
from tasks import Dyck

HEAVY = ['triton', 'torch._dynamo', 'tokenizers', 'safetensors', 'matplotlib', 'scipy',
         'transformers', 'lab.surgery', 'lab.tapa_kernel']
SAME = '''
import sys
import model, tasks
pages = [model.ATTENTIONS, model.FREQUENCIES, tasks.TASKS]
before = [dict(entries) for entries in pages]
import train, eval, sample, lab
for old, entries in zip(before, pages):
    assert all(entries[name] is entry for name, entry in old.items()), old
    assert len(entries) > len(old)
for module in (model, tasks):
    for name, thing in vars(module).items():
        home = getattr(thing, '__module__', None)
        assert not (home or '').startswith('lab'), name
'''


def python(code):
    run = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_every_name_of_the_page_is_the_pages_object():
    python(SAME)


def test_it_is_light():
    """It brings nothing heavy, and no second model.py."""
    code = ('import sys, train, lab; '
            f'print([name for name in {HEAVY} if name in sys.modules], lab.TAPAFused.mro()[1])')
    assert python(code) == "[] <class 'model.TAPA'>\n"


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
        near = open(place).read().splitlines()[int(line) - 1:][:2]
        assert any(re.match(r'\s*(class|def) ', each) for each in near), near


def test_the_same_entry_twice_is_no_clash():
    dictionary = dict(lab.LAB_TASKS)
    lab.add('TASKS', dictionary, lab.LAB_TASKS)
    assert dictionary == lab.LAB_TASKS
