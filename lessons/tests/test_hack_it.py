"""
README's "Hack it" and hack.md, followed in a copy of the repository: the four rows of the table,
the class, and the task. The commands run, the patches of lesson 7 apply there, and the tests of
the page stay green.
"""

import re

import pytest

from lessons.tests.test_lessons import ROOT, Copy, commands

HACK_IT = (ROOT / 'README.md').read_text(encoding='utf-8').partition('## Hack it')[2]
HACK_IT = HACK_IT.partition('\n## ')[0]
HACK_TASK = (ROOT / 'lessons/hack.md').read_text(encoding='utf-8')
FREQUENCIES = '''def mine(config):
    return 1 / (1 + torch.arange(config.head_size // 2))


'''
CONFIG = """out_dir, task, attention, steepness = 'out/mine', 'parity', 'wave', 0.5\n"""


def before(path, line, text):
    """Put `text` before the only line of a file that starts with `line`."""
    lines = path.read_text(encoding='utf-8').splitlines(keepends=True)
    (place,) = [i for i, other in enumerate(lines) if other.startswith(line)]
    path.write_text(''.join([*lines[:place], text, *lines[place:]]), encoding='utf-8')


def entry(path, dictionary, new):
    """Add an entry at the end of a dictionary that one statement of a file makes."""
    text = path.read_text(encoding='utf-8')
    end = r'([)]}?)( *#[^\n]*)?$'
    text, found = re.subn(rf'(^{dictionary} = .*?){end}', rf'\1{new}\2\3', text,
                          flags=re.MULTILINE | re.DOTALL)
    assert found == 1
    path.write_text(text, encoding='utf-8')


@pytest.fixture(scope='module')
def hacked(tmp_path_factory):
    """A copy with an attention, frequencies, a task, a model option and an experiment."""
    copy = Copy(tmp_path_factory.mktemp('hack'), few=True)
    model, tasks, train = (copy.folder / f'{name}.py' for name in ('model', 'tasks', 'train'))
    wave = re.search(r'```python\n(class Wave.*?)\n```', HACK_IT, re.DOTALL)[1]
    if 'class Wave' not in model.read_text(encoding='utf-8'):  # the reader may have it already
        before(model, 'ATTENTIONS = ', wave.replace('3.0', 'config.steepness') + '\n\n\n')
        entry(model, 'ATTENTIONS', ', wave=Wave')
    before(model, 'FREQUENCIES = ', FREQUENCIES)
    entry(model, 'FREQUENCIES', ', mine=mine')
    before(model, '    tapa_alpha: float', '    steepness: float = 3.0  # of Wave, at the start\n')
    before(train, 'tapa_alpha = ', 'steepness = 3.0  # of Wave, at the start\n')
    parity = re.search(r'```python\n(.*?)\n```', HACK_TASK, re.DOTALL)[1]
    before(tasks, 'TASKS = ', parity + '\n\n\n')
    entry(tasks, 'TASKS', ', Parity')
    (copy.folder / 'config' / 'mine.py').write_text(CONFIG, encoding='utf-8')
    return copy


def test_the_commands_of_hack_it_run(hacked):
    checks = re.findall(r'^\|.*\| `((?:python|pytest) [^`]*)` \|$', HACK_TASK, flags=re.MULTILINE)
    assert len(checks) == 4
    trainings = re.findall(r'`(python train.py [^`]*wave[^`]*)`', HACK_IT)
    trainings += ['python train.py config/mine.py', 'python eval.py out/mine',
                  'python sample.py out/mine']
    for command in [*trainings, *checks, *commands(ROOT / 'lessons/hack.md')]:
        command = command.replace('check_task NAME', 'check_task parity')
        hacked.run(command.replace('NAME', 'mine'))


def test_the_patches_apply_beside_a_class_of_ones_own(hacked):
    text = (hacked.folder / 'model.py').read_text(encoding='utf-8')
    for name in ('alibi', 'forgetting'):
        hacked.run(f'git apply lessons/{name}.patch')
    for name in ('alibi', 'forgetting'):
        hacked.run(f'python -m lessons.check_attention my_{name}')
    for name in ('forgetting', 'alibi'):
        hacked.run(f'git apply -R lessons/{name}.patch')
    assert (hacked.folder / 'model.py').read_text(encoding='utf-8') == text


@pytest.mark.slow
def test_the_tests_of_the_page_are_green(hacked):
    hacked.run('pytest')
