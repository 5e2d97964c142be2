"""The notebook is made from today's pages, runs from top to bottom, and holds what it printed."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lessons import notebook

NOTEBOOK = notebook.build(notebook.stored_outputs())
CELLS = NOTEBOOK['cells']
CODE = [''.join(cell['source']) for cell in CELLS if cell['cell_type'] == 'code']


def test_the_notebook_is_fresh():
    """Its pages, and its outputs: every command of today has printed something."""
    message = 'run python -m lessons.notebook --run'
    assert notebook.NOTEBOOK.read_text(encoding='utf-8') == notebook.dump(NOTEBOOK), message
    silent = [''.join(cell['source']) for cell in CELLS if cell['cell_type'] == 'code'
              and '!' in cell['source'][0] and not cell['metadata'] and not cell['outputs']]
    assert [code for code in silent if 'git apply' not in code] == [], message


def test_it_has_every_page_and_every_command():
    text = '\n'.join(''.join(cell['source']) for cell in CELLS)
    for page in notebook.LESSONS.glob('[1-9]_*.md'):
        for line in page.read_text(encoding='utf-8').splitlines():
            if line.startswith('![') or line.startswith('```'):
                continue
            assert line in text, f'{page.name}: {line}'
            if line.startswith('python '):
                assert f'!{line}\n' in text


def test_its_pictures_are_in_it():
    text = '\n'.join(''.join(cell['source']) for cell in CELLS)
    assert '.png)' not in text and '.gif)' not in text
    assert text.count('](data:image/') > 8


def test_it_writes_and_checks_every_exercise():
    for stub in notebook.LESSONS.glob('exercises/lesson_*.py'):
        name = f'%%writefile lessons/exercises/{stub.name}\n'
        (written,) = [code for code in CODE if code.startswith(name)]
        assert written[len(name):] + '\n' == stub.read_text(encoding='utf-8')
        assert f'!python -m lessons.check {stub.stem[-1]}' in CODE


def test_nothing_is_revealed_before_the_bets():
    """What the runs after the bets of lesson 2 say is not in the notebook."""
    secret = [cell for cell in CELLS if cell['metadata'].get('tags') == ['secret']]
    assert any('--reveal' in ''.join(cell['source']) for cell in secret)
    assert any('period=7 ' in ''.join(cell['source']) for cell in secret)
    assert all(cell['outputs'] == [] for cell in secret)


def test_a_page_becomes_cells():
    cells = notebook.page_cells('# A\n\n```sh\nls\npwd\n```\n\nb\n\n```text\nc\n```\n'
                                '**Place your bets.**\n\n```sh\nls\n```\n')
    assert [cell['cell_type'] for cell in cells] == ['markdown', 'code', 'markdown', 'code']
    assert cells[1]['source'] == ['!ls\n', '!pwd\n', 'show()']
    assert '```text\n' in cells[2]['source']
    assert cells[1]['metadata'] == {} and cells[3]['metadata'] == {'tags': ['secret']}


@pytest.fixture
def ipython(monkeypatch):
    """Stand-ins for what the cells import; what they display."""
    displayed = []
    names = SimpleNamespace(Image=lambda filename: filename, HTML=str, display=displayed.append)
    monkeypatch.setitem(sys.modules, 'IPython', SimpleNamespace(display=names))
    monkeypatch.setitem(sys.modules, 'IPython.display', names)
    for name in ('PATH', 'OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES'):  # which the cells change
        monkeypatch.setenv(name, os.environ.get(name, ''))
    return displayed


def run_cell(code, names):
    """
    Run a cell as IPython does: a line with ! is a command, a first line with %%writefile a file,
    the others are Python.
    """
    if code.startswith('%%writefile '):
        first, _, text = code.partition('\n')
        with open(first.split()[1], 'w', encoding='utf-8') as file:
            file.write(text + '\n')
        return
    lines = code.splitlines()
    for line in lines:
        if line.startswith('!'):
            done = subprocess.run(
                line[1:], shell=True, capture_output=True, text=True, encoding='utf-8')
            unanswered = 'lessons.check ' in line  # a stub ends with 1
            assert done.returncode == int(unanswered), f'{line}\n{done.stdout}{done.stderr}'
    exec('\n'.join(line for line in lines if not line.startswith('!')), names)


def test_alone_it_says_what_it_needs(ipython, tmp_path, monkeypatch, capsys):
    """In an empty folder, without an address: a sentence, and no traceback."""
    monkeypatch.chdir(tmp_path)
    setup = notebook.SETUP.replace("NEEDED = [", "NEEDED = [][:0] and [")
    names = {}
    exec(setup.format(address=''), names)
    assert 'needs the other files of the course' in capsys.readouterr().out
    exec(setup.format(address=str(tmp_path / 'nothing')), names)
    assert 'could not be fetched' in capsys.readouterr().out
    names['show'](), names['show_page']('lessons/phase.html')
    assert ipython == []


def test_alone_it_fetches_the_repository(ipython, tmp_path, monkeypatch, capsys):
    """In an empty folder, with an address: it clones, and stands in the root."""
    source = tmp_path / 'source'
    source.mkdir()
    shutil.copy(notebook.ROOT / 'model.py', source)
    commit = 'git init -q && git add . && git -c user.name=a -c user.email=a commit -qm a'
    subprocess.run(commit, shell=True, cwd=source, check=True)
    empty = tmp_path / 'empty'
    empty.mkdir()
    monkeypatch.chdir(empty)
    for _ in range(2):  # once more, as after a restart
        exec(notebook.SETUP.format(address=str(source)), {})
        assert os.getcwd() == str(empty / 'nanophase')
        assert 'are here' in capsys.readouterr().out
        monkeypatch.chdir(empty)


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(ipython, tmp_path, monkeypatch):
    notebook.copy_tree(tmp_path)
    monkeypatch.setenv('GIT_CEILING_DIRECTORIES', str(tmp_path.parent))
    monkeypatch.chdir(tmp_path / 'lessons')
    names = {}
    for code in CODE:
        run_cell(code, names)
    assert os.getcwd() == str(tmp_path)
    assert len(ipython) > 10


def test_outputs_are_kept_without_pages_and_counts():
    output = dict(output_type='execute_result', execution_count=3,
                  data={'text/plain': 'a', 'text/html': '<b>', 'image/png': 'x'})
    assert notebook.plain(output) == dict(output_type='execute_result', execution_count=None,
                                          data={'text/plain': 'a', 'image/png': 'x'})
    assert json.loads(notebook.dump(NOTEBOOK)) == NOTEBOOK
