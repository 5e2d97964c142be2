"""What the README names exists, and its examples are true. Imports and lines: ruff.toml."""

import importlib.util
import re

import pytest

from conftest import ROOT
from tasks import make_task

README = (ROOT / 'README.md').read_text(encoding='utf-8')
DOCUMENTS = [ROOT / 'README.md', *(path for room in ('lab', 'study', 'lessons')
                                   for path in sorted((ROOT / room).rglob('*.md')))]


def test_the_commands_that_it_names_exist():
    scripts = set(re.findall(r'python ([\w/]+\.py)', README))
    modules = set(re.findall(r'python -m ([\w.]+\w)', README))
    configs = set(re.findall(r'\b(?:lab/)?config/\w+\.py', README))
    assert len(scripts) >= 3 and modules and configs
    missing = [name for name in scripts | configs if not (ROOT / name).exists()]
    missing += [name for name in modules if not importlib.util.find_spec(name)]
    assert not missing


@pytest.mark.parametrize('path', DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_to_a_heading_in_it(path):
    text = path.read_text(encoding='utf-8')
    for target, heading in re.findall(r'\]\(([\w./-]*)(?:#([^)]+))?\)', text):
        file = path.parent / target if target else path
        assert file.exists(), f'{path} links to {target}'
        if heading and file.suffix == '.md':  # a page for the browser has addresses of its own
            headings = re.findall(r'^#+ (.*)$', file.read_text(encoding='utf-8'), re.MULTILINE)
            anchors = [re.sub(r'[^\w -]', '', h.lower()).replace(' ', '-') for h in headings]
            assert heading in anchors, f'{path} links to {target}#{heading}'


def test_its_task_examples_are_true():
    rows = re.findall(r'\| `(\w+)[^|]*\| `x *([^`]+)`<br>`y *([^`]+)` \|', README)
    assert {'dyck', 'bio_rotation', 'modulo', 'text'} <= {name for name, _, _ in rows}
    for name, x, y in rows:
        task = make_task(name)
        if name == 'text':  # a window has one token more
            answers = task.decode(task.encode(x + y[-1])[1:])
        else:
            targets = task.targets(task.encode(x)[None])[0]
            answers = ''.join(task.symbols[i] if i >= 0 else '.' for i in targets)
        assert answers == y.replace(' ', ''), name
