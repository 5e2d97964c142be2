"""
What one reads is what runs. Each formula of the page is edited in a copy of the repository, and
the training loss changes: with the lab there, and without it.
"""

import json
import shutil

import pytest

from tests.conftest import ROOT, script

EDITS = {  # formula: file, attention that trains, what stands there, what an editor makes of it
    'geometric': ('model.py', 'rope', 'rope_base ** (-2 * i', 'rope_base ** (0 * i'),
    'rotate_pairs': ('model.py', 'rope', 'torch.cat([-sin, sin]', 'torch.cat([sin, sin]'),
    'RoPE.rotate': ('model.py', 'rope', 'rotate_pairs(q, angle), rotate_pairs(k, angle)',
                    'rotate_pairs(q, angle), rotate_pairs(k, -angle)'),
    'Spectral.rotate': ('model.py', 'spectral', 'k = rotate_pairs(k, angle, A)',
                        'k = rotate_pairs(k, -angle, A)'),
    'Bifocal.rotation': ('model.py', 'bifocal', 'theta = self.theta.expand(',
                         'theta = 0 * self.theta.expand('),
    'TAPA.scores': ('model.py', 'tapa', 'torch.cos(', 'torch.sin('),
    'distances': ('model.py', 'tapa', 'return m[:, None] - n', 'return 2 * (m[:, None] - n)'),
    'the plain product': ('model.py', 'nope', 'scaled_dot_product_attention(\n                q,',
                          'scaled_dot_product_attention(\n                0 * q,'),
    'SwiGLU': ('model.py', 'nope', 'F.silu(', 'F.relu('),
    'the initial weights': ('model.py', 'nope', 'std = self.config.init_std',
                          'std = 2 * self.config.init_std'),
    'Muon': ('optim.py', 'nope', 'X = 3.4445 * X', 'X = 3 * X'),
    'the schedule': ('train.py', 'nope', '(it + 1) / (warmup_iters + 1)',
                     '(it + 2) / (warmup_iters + 1)'),
    'a task': ('tasks.py', 'nope', 'max_depth: int = 8', 'max_depth: int = 1'),
}
TRAIN = """
import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

sys.dont_write_bytecode = True  # an edit within a second would not be seen
here = Path(__file__).resolve().parent
options = ('--n_layer=1 --n_head=2 --n_embd=16 --init_std=0.2 --batch_size=4 --block_size=16 '
           '--max_iters=2 --log_interval=1 --eval_interval=2 --eval_sequences=4 '
           '--device=cpu --out_dir=run')


def losses(attention):
    for name, module in list(sys.modules.items()):
        if str(getattr(module, '__file__', None)).startswith(str(here)) and name != '__main__':
            del sys.modules[name]
    shutil.rmtree('run', ignore_errors=True)
    import configurator
    import train
    words = [*options.split(), f'--attention={attention}']
    with contextlib.redirect_stdout(io.StringIO()):
        found, given = configurator.configure(dict(vars(train)), words)
        train.main(SimpleNamespace(**found), given)
    lines = map(json.loads, open('run/log.jsonl', encoding='utf-8'))
    return [line.get('train_loss', line.get('val_loss')) for line in lines]


edits = json.loads(sys.argv[1])
before = {attention: losses(attention) for _, attention, _, _ in edits.values()}
assert losses('rope') == before['rope'] and len(before['rope']) == 4
found = {}
for formula, (file, attention, old, new) in edits.items():
    text = Path(file).read_text()
    assert text.count(old) >= 1, (formula, old)
    Path(file).write_text(text.replace(old, new))
    found[formula] = losses(attention) != before[attention]
    Path(file).write_text(text)
print(json.dumps([found, 'lab' in sys.modules, before]))
"""


def copy(place, with_lab):
    left_out = ['out', '.*', '__pycache__', 'study', 'lessons', 'tests']
    if not with_lab:
        left_out.append('lab')
    shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*left_out))
    (place / 'edit_and_train.py').write_text(TRAIN)
    return place


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """{with the lab: [{formula: whether the loss changed}, whether the lab is there, losses]}."""
    folders = {with_lab: copy(tmp_path_factory.mktemp('edit') / 'copy', with_lab)
               for with_lab in (True, False)}
    found = {}
    for with_lab, folder in folders.items():
        done = script('edit_and_train.py', json.dumps(EDITS), cwd=folder)
        assert done.returncode == 0, done.stderr
        found[with_lab] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize('with_lab', [True, False])
def test_whoever_edits_a_formula_sees_the_loss_change(trained, with_lab):
    changed, there, _ = trained[with_lab]
    assert there is with_lab
    assert changed == dict.fromkeys(EDITS, True)


def test_the_lab_changes_no_loss_of_the_page(trained):
    assert trained[True][2] == trained[False][2]


MINE = """

class Mine(Modulo):
    name = 'sum'


TASKS['sum'] = Mine
"""


def test_a_name_that_only_the_lab_has_is_free_without_it(tmp_path):
    place = copy(tmp_path / 'copy', with_lab=False)
    with (place / 'tasks.py').open('a') as file:
        file.write(MINE)
    done = script('-c', 'import train; print(train.make_task("sum").chance)', cwd=place)
    assert done.stdout == f'{1 / 7}\n', done.stderr
