"""The page stays a page: the budgets of its files, what they may import, and what the README promises of them."""

import ast
import dataclasses
import re

import pytest

import train
from configurator import configure
from conftest import ROOT
from model import GPTConfig
from tasks import TASKS, make_task

LINES = {'model.py': 368, 'train.py': 344, 'tasks.py': 374, 'eval.py': 267, 'sample.py': 100, 'configurator.py': 109}
README = (ROOT / 'README.md').read_text()


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize('name', LINES)
def test_a_file_of_the_page_keeps_its_budget(name):
    text = (ROOT / name).read_text()
    assert len(text.splitlines()) <= LINES[name]
    assert ';' not in re.sub(r'(?s)""".*?"""|\'[^\'\n]*\'|"[^"\n]*"|#.*', '', text)  # no two statements a line
    sizes = {node.name: node.end_lineno - node.lineno + 1 for node in functions(ast.parse(text))}
    limits = {'main': 130} if name == 'train.py' else {}  # its loop
    assert not {function: size for function, size in sizes.items() if size > limits.get(function, 80)}


def test_no_line_is_wider_than_120_characters():
    rooms = (ROOT / name for name in ('config', 'tests', 'lab', 'lessons'))
    code = [*ROOT.glob('*.py'), *(path for room in rooms for path in room.rglob('*.py'))]
    wide = [path for path in code if max(map(len, path.read_text().splitlines()), default=0) > 120]
    assert len(code) > 90 and not wide


def test_there_are_no_more_options_than_a_reader_can_hold():
    assert len(dataclasses.fields(GPTConfig)) <= 24
    assert len(configure(dict(vars(train)), [])) <= 45


def test_the_page_imports_the_lab_only_when_asked_to():
    allowed = {'torch', 'numpy', 'tiktoken', 'matplotlib', *(name.removesuffix('.py') for name in LINES)}
    import sys
    for name in LINES:
        tree = ast.parse((ROOT / name).read_text())
        at_import = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        modules = {alias.name for node in at_import if isinstance(node, ast.Import) for alias in node.names}
        modules |= {node.module for node in at_import if isinstance(node, ast.ImportFrom)}
        roots = {module.split('.')[0] for module in modules}
        assert roots <= allowed | sys.stdlib_module_names - {'lab'}, name
        assert {'model.py': 'tasks', 'tasks.py': 'model'}.get(name) not in roots  # these two do not know each other


def test_nothing_changes_the_path():
    for path in [*ROOT.glob('*.py'), *ROOT.glob('lab/**/*.py'), *ROOT.glob('tests/*.py')]:
        assert 'sys.' + 'path' not in path.read_text(), path


def test_the_readme_is_a_page():
    assert len(README.splitlines()) <= 220 and len(README.encode()) <= 16 * 1024


def test_its_two_commands_are_those_that_ci_runs():
    commands = re.findall(r'^pip install .*$', README, flags=re.MULTILINE)
    assert commands == ['pip install -r requirements.txt && python train.py config/dyck3_spectral.py',
                        'pip install -r requirements-dev.txt && pytest']


def test_the_files_that_it_names_exist():
    named = set(re.findall(r'\]\(([\w./]+)\)', README)) | set(re.findall(r'config/\w+\.py', README))
    assert len(named) > 12 and not [name for name in named if not (ROOT / name).exists()]
    assert all('](' + name + ')' in README for name in LINES)


def test_a_link_into_a_document_leads_to_one_of_its_headings():
    def anchors(path):
        headings = re.findall(r'^#+ (.*)$', path.read_text(), flags=re.MULTILINE)
        return {re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-') for heading in headings}
    documents = [ROOT / 'README.md', *ROOT.glob('lab/*.md'), *ROOT.glob('lessons/*.md')]
    links = [(path, *link) for path in documents for link in re.findall(r'\]\(([\w./]*)#([^)]+)\)', path.read_text())]
    wrong = [link for link in links if link[2] not in anchors(link[0].parent / link[1] if link[1] else link[0])]
    assert len(links) > 3 and not wrong


def test_its_dependencies_are_the_pinned_ones():
    lines = [line for line in (ROOT / 'requirements.txt').read_text().splitlines() if line]
    assert {re.split('[=; ]', line)[0] for line in lines} == {'torch', 'numpy', 'tiktoken'}
    assert all('==' in line for line in lines)


def test_its_task_examples_are_true():
    rows = re.findall(r'\| `(\w+)[^|]*\| `x *([^`]+)`<br>`y *([^`]+)` \|', README)
    assert [name for name, _, _ in rows] == list(TASKS)
    for name, x, y in rows:
        task = make_task(name)
        x = task.encode(x)
        targets = task.targets(x[None])[0] if name != 'text' else [*x[1:], -1]
        assert ''.join(task.symbols[i] if i >= 0 else '.' for i in targets) == y, name
