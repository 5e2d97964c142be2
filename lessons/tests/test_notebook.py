"""The notebook is made from today's pages, and runs from top to bottom."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lessons import notebook

ROOT = notebook.LESSONS.parent
CELLS = json.loads(notebook.build())['cells']


def code_cells():
    return [''.join(cell['source']) for cell in CELLS if cell['cell_type'] == 'code']


def test_the_notebook_is_fresh():
    message = 'run python -m lessons.notebook'
    assert notebook.NOTEBOOK.read_text(encoding='utf-8') == notebook.build(), message


def test_it_has_every_page_and_every_command():
    text = '\n'.join(''.join(cell['source']) for cell in CELLS)
    for page in notebook.LESSONS.glob('[1-9]_*.md'):
        lines = page.read_text(encoding='utf-8').splitlines()
        for line in lines:
            assert line.startswith('```') or line in text, f'{page.name}: {line}'
            if line.startswith('python '):
                assert f'!{line}\n' in text


def test_its_cells_are_plain():
    """What nbformat 4 asks of a cell, and no outputs: they would differ on every machine."""
    for cell in CELLS:
        if cell['cell_type'] == 'code':
            assert cell['outputs'] == [] and cell['execution_count'] is None
        assert cell['metadata'] == {} and all(isinstance(line, str) for line in cell['source'])


def test_a_page_becomes_cells():
    cells = notebook.page_cells('# A\n\n```sh\nls\npwd\n```\n\nb\n\n```text\nc\n```\n')
    assert [cell['cell_type'] for cell in cells] == ['markdown', 'code', 'markdown']
    assert cells[1]['source'] == ['!ls\n', '!pwd\n', 'show()']
    assert '```text\n' in cells[2]['source']


def run_cells(folder, pictures):
    """Run the code cells as IPython does: a line with ! is a command, the others are Python."""
    names = {}
    for cell in code_cells():
        lines = cell.splitlines()
        for line in lines:
            if line.startswith('!'):
                done = subprocess.run(
                    line[1:], shell=True, capture_output=True, text=True, encoding='utf-8')
                assert done.returncode == 0, f'{line}\n{done.stdout}{done.stderr}'
        exec('\n'.join(line for line in lines if not line.startswith('!')), names)
    assert os.getcwd() == str(folder)
    assert len(pictures) > 10


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch):
    for path in ROOT.glob('*.py'):
        shutil.copy(path, tmp_path)
    for name in ('config', 'lab', 'lessons', 'tests'):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / 'pytest.ini', tmp_path)
    monkeypatch.setenv('GIT_CEILING_DIRECTORIES', str(tmp_path.parent))
    for name in ('PATH', 'OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES'):  # which the cells change
        monkeypatch.setenv(name, os.environ.get(name, ''))
    monkeypatch.chdir(tmp_path / 'lessons')
    try:
        import nbclient
        import nbformat
    except ImportError:
        pictures = []
        shown = SimpleNamespace(Image=lambda filename: filename, display=pictures.append)
        monkeypatch.setitem(sys.modules, 'IPython', SimpleNamespace(display=shown))
        monkeypatch.setitem(sys.modules, 'IPython.display', shown)
        run_cells(tmp_path, pictures)
    else:
        cells = nbformat.reads(notebook.build(), as_version=4)
        nbclient.NotebookClient(cells, timeout=600).execute()
