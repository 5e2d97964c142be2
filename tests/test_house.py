"""The house: who may import whom, how wide a line is, and that what the README names exists."""

import ast
import graphlib
import importlib.util
import re
import sys

import pytest

from conftest import ROOT
from tasks import TASKS, make_task

PAGE = ['model', 'optim', 'configurator', 'text', 'tasks', 'checkpoint', 'eval', 'train', 'sample']
GROUND = PAGE[:6]  # they do not know that a lab exists
MAY_IMPORT = {  # a room: the rooms below it
    'page': {'page'},
    'lab': {'page', 'lab'},
    'study': {'page', 'lab', 'study'},
    'lessons': {'page', 'lab', 'lessons'},
}
README = (ROOT / 'README.md').read_text()


def modules():
    """{name: path} of all code but tests and configs, such as lab.frequencies."""
    found = {name: ROOT / f'{name}.py' for name in PAGE}
    for room in ('lab', 'study', 'lessons'):
        for path in (ROOT / room).glob('*.py'):
            name = f'{room}.{path.stem}'
            found[name.removesuffix('.__init__')] = path
    return found


def room(name):
    first = name.split('.')[0]
    return 'page' if first in PAGE else first


def imported(path):
    """The names of the modules that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: relative imports are not used here'
            yield node.module
            yield from (f'{node.module}.{alias.name}' for alias in node.names)


def graph():
    """{module: modules of this repository that it imports, at its top or inside a function}."""
    found = modules()
    edges = {}
    for name, path in found.items():
        edges[name] = {other for other in imported(path) if other in found and other != name}
        # a module of another room brings the file __init__ of that room
        packages = {other.rpartition('.')[0] for other in edges[name] if room(other) != room(name)}
        edges[name] |= packages & found.keys()
    return edges


def test_there_is_no_circle_of_imports():
    order = list(graphlib.TopologicalSorter(graph()).static_order())  # raises CycleError
    assert len(order) > 20


def test_each_room_imports_only_what_is_below_it():
    for name, others in graph().items():
        for other in others:
            door = name in ('train', 'eval', 'sample') and other == 'lab'
            assert door or room(other) in MAY_IMPORT[room(name)], f'{name} imports {other}'


def test_the_page_is_built_from_the_ground_up():
    edges = graph()
    for i, name in enumerate(PAGE):
        above = set(PAGE[i:])
        assert not edges[name] & above, f'{name} imports {edges[name] & above}'


def test_the_ground_does_not_know_the_lab():
    for name in GROUND:
        code = ast.parse((ROOT / f'{name}.py').read_text())
        strings = {node.value for node in ast.walk(code)
                   if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        assert 'lab' not in strings and not [s for s in strings if s.startswith('lab.')], name


def test_the_core_depends_on_three_packages():
    lines = [line for line in (ROOT / 'requirements.txt').read_text().splitlines() if line]
    assert {re.split('[=; ]', line)[0] for line in lines} == {'torch', 'numpy', 'tiktoken'}
    assert all('==' in line for line in lines)
    allowed = {'torch', 'numpy', 'tiktoken', 'lab', *PAGE}
    for name in PAGE:
        roots = {other.split('.')[0] for other in imported(ROOT / f'{name}.py')}
        assert roots <= allowed | sys.stdlib_module_names, name


def test_no_line_is_wider_than_100_characters():
    rooms = [ROOT / name for name in ('config', 'tests', 'lab', 'study', 'lessons')]
    code = [*ROOT.glob('*.py'), *(path for room in rooms for path in room.rglob('*.py'))]
    assert len(code) > 60
    wide = [f'{path}:{i}' for path in code
            for i, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 100]
    assert not wide


WRITERS = {  # functions that open a file for writing, and why
    'checkpoint.write_files': 'whole or not at all: see test_a_full_disk_truncates_nothing',
    'checkpoint.session': 'the lock of a run, which has no content',
    'train.main': 'os.devnull',
    'lab.spectralize.share': 'a file that may be copied, so it imports nothing of ours',
    'lab.compile_kernels.taken': 'a temporary folder',
    'lab.runs.locked': 'the lock of a table, which has no content',
    'lessons.page.publish': 'a folder of its own',
    'lessons.page.main': 'a page in the repository',
}


def writes(call):
    """Whether a call opens a file for writing."""
    name = getattr(call.func, 'attr', getattr(call.func, 'id', ''))
    modes = [arg.value for arg in [*call.args, *(word.value for word in call.keywords)]
             if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if name == 'open':
        return any(re.fullmatch('[wax][bt+]*', mode) for mode in modes)
    return name in ('write_text', 'write_bytes')


def test_one_function_opens_files_for_writing():
    found = set()
    for name, path in modules().items():
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
                found |= {f'{name}.{function.name}' for call in calls if writes(call)}
    assert found == WRITERS.keys()


def test_nothing_changes_the_path():
    for path in [*ROOT.glob('*.py'), *ROOT.glob('lab/**/*.py'), *ROOT.glob('study/**/*.py')]:
        assert 'sys.' + 'path' not in path.read_text(), path


# ---------------------------------------------------------------------------------------------
# What the README says


def test_its_two_commands_are_those_that_ci_runs():
    commands = re.findall(r'^pip install .* && .*$', README, flags=re.MULTILINE)
    assert commands == [
        'pip install -r requirements.txt && python train.py config/dyck3_spectral.py',
        'pip install -r requirements-dev.txt && pytest']


def test_the_commands_that_it_names_exist():
    scripts = set(re.findall(r'python ([\w/]+\.py)', README))
    packages = set(re.findall(r'python -m (lab|study|lessons)\.(\w+)', README))
    configs = set(re.findall(r'\b(?:lab/)?config/\w+\.py', README))
    assert len(scripts) >= 3 and packages and configs
    missing = [name for name in scripts | configs if not (ROOT / name).exists()]
    missing += [pair for pair in packages if not importlib.util.find_spec('.'.join(pair))]
    assert not missing


def documents():
    rooms = ('lab', 'study', 'lessons')
    return [ROOT / 'README.md', *(path for name in rooms for path in (ROOT / name).glob('*.md'))]


@pytest.mark.parametrize('path', documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_to_a_heading_in_it(path):
    for target, heading in re.findall(r'\]\(([\w./-]*)(?:#([^)]+))?\)', path.read_text()):
        file = path.parent / target if target else path
        assert file.exists(), f'{path} links to {target}'
        if heading and file.suffix == '.md':  # a page for the browser has addresses of its own
            headings = re.findall(r'^#+ (.*)$', file.read_text(), flags=re.MULTILINE)
            anchors = [re.sub(r'[^\w -]', '', h.lower()).replace(' ', '-') for h in headings]
            assert heading in anchors, f'{path} links to {target}#{heading}'


def test_its_task_examples_are_true():
    rows = re.findall(r'\| `(\w+)[^|]*\| `x *([^`]+)`<br>`y *([^`]+)` \|', README)
    assert [name for name, _, _ in rows] == ['dyck', 'bio_rotation', 'modulo', 'text']
    assert {name for name, _, _ in rows} <= set(TASKS)
    for name, x, y in rows:
        task = make_task(name)
        if name == 'text':  # a window has one token more
            targets = task.encode(x + y[-1])[1:]
        else:
            targets = task.targets(task.encode(x)[None])[0]
        answers = ''.join(task.symbols[i] if i >= 0 else '.' for i in targets)
        assert answers == y.replace(' ', ''), name
