"""The notebook is made from today's pages, says what it needs, and runs from top to bottom."""

import os
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from lessons import notebook
from lessons.tests.test_lessons import Copy, commands
from lessons.tests.test_phase import browser  # noqa: F401, a fixture

NOTEBOOK = notebook.LESSONS / 'course.ipynb'
CODE = [''.join(cell['source']) for cell in notebook.build()['cells']
        if cell['cell_type'] == 'code']


def test_the_notebook_is_fresh_and_has_every_command():
    assert NOTEBOOK.read_text(encoding='utf-8') == notebook.dump(notebook.build()), \
        'run python -m lessons.notebook'
    cells = '\n'.join(CODE)
    pages = sorted(notebook.LESSONS.glob('[1-9]_*.md'))
    assert all(f'!{line}\n' in cells for page in pages for line in commands(page))


@pytest.fixture
def ipython(monkeypatch):
    """Stand-ins for what the cells import; what they display."""
    displayed = []
    names = SimpleNamespace(Image=lambda filename: filename, HTML=str, display=displayed.append)
    # matplotlib asks for these two; None: it runs without IPython
    whole = SimpleNamespace(display=names, version_info=(9, 0), get_ipython=lambda: None)
    monkeypatch.setitem(sys.modules, 'IPython', whole)
    monkeypatch.setitem(sys.modules, 'IPython.display', names)
    for name in ('PATH', 'OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES'):  # which the cells change
        monkeypatch.setenv(name, os.environ.get(name, ''))
    return displayed


@pytest.mark.parametrize('address', ['', 'nothing'])
def test_alone_it_stops_at_its_first_cell_with_a_sentence(address, ipython, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match='needs the other files of the course') as stop:
        exec(notebook.SETUP.format(address=address and str(tmp_path / address)), {})
    assert stop.value._render_traceback_() == [str(stop.value)]  # which IPython prints


def test_alone_it_fetches_the_repository(ipython, tmp_path, monkeypatch, capsys):
    """In an empty folder, with an address: it clones, and stands in the root."""
    source, empty = tmp_path / 'source', tmp_path / 'empty'
    source.mkdir(), empty.mkdir()
    shutil.copy(notebook.LESSONS.parent / 'model.py', source)
    commit = 'git init -q && git add . && git -c user.name=a -c user.email=a commit -qm a'
    subprocess.run(commit, shell=True, cwd=source, check=True)
    for _ in range(2):  # once more, as after a restart
        monkeypatch.chdir(empty)
        exec(notebook.SETUP.format(address=str(source)), {})
        assert os.getcwd() == str(empty / 'nanophase') and 'are here' in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_in_a_notebook_trains_and_leads_nowhere(
        ipython, browser, tmp_path, monkeypatch):  # noqa: F811
    """In a real srcdoc frame of a page from a server, as in Jupyter: no error, no lost link."""
    monkeypatch.chdir(notebook.LESSONS.parent)
    names = {}
    exec(notebook.SETUP.format(address=''), names)
    names['show_page']('lessons/phase.html')
    (tmp_path / 'index.html').write_text(f'<!DOCTYPE html>{ipython[-1]}', encoding='utf-8')
    server = ThreadingHTTPServer(
        ('127.0.0.1', 0), partial(SimpleHTTPRequestHandler, directory=tmp_path))
    Thread(target=server.serve_forever, daemon=True).start()
    browser.ask('Page.navigate', url=f'http://127.0.0.1:{server.server_port}/index.html')
    seen = browser.run("""
        const wait = time => new Promise(go => setTimeout(go, time))
        let inside
        while (!inside?.phase?.runs) { await wait(50); inside = window.frames[0] }
        const get = id => inside.document.getElementById(id)
        get('next').click()
        await wait(600)  // after the time in which an address would be written
        inside.phase.readAddress('#chapter=1.3')
        const run = inside.phase.runs[0]
        await run.begun
        const { loss } = await run.ask('update')
        const links = [...inside.document.querySelectorAll('nav a')].filter(a => !a.hidden)
        return { loss, error: get('error').textContent, links: links.map(a => [a.href, a.target]) }
        """)
    server.shutdown()
    server.server_close()
    assert seen['error'] == '' and seen['loss'] > 0
    assert seen['links'] and all(
        href.startswith('https://') and target == '_blank' for href, target in seen['links'])


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(ipython, tmp_path, monkeypatch):
    """As IPython runs it: a line with ! is a command. It leaves the exercises as they are."""
    copy = Copy(tmp_path)
    answered = tmp_path / 'lessons' / 'exercises' / 'lesson_2.py'
    answered.write_text('an edited exercise')
    monkeypatch.chdir(tmp_path / 'lessons')
    names = {}
    for cell in CODE:
        lines = cell.splitlines()
        for line in lines:
            if line.startswith('!') and 'lessons.check ' not in line:  # a stub ends with 1
                copy.run(line[1:])
        exec('\n'.join(line for line in lines if not line.startswith('!')), names)
    assert os.getcwd() == str(tmp_path) and len(ipython) > 10
    assert answered.read_text() == 'an edited exercise'
