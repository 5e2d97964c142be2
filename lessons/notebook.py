"""
Make lessons/course.ipynb, the course as a notebook, from the pages of the lessons.

    python -m lessons.notebook         # after a change of a page

The pages are the one source. Their commands become cells that run, from the root of the repository.
Their pictures are linked, and no output is kept: run it, or read the pages.
"""

import json
import re
from pathlib import Path

from checkpoint import write_files
from lessons.repository import ADDRESS

LESSONS = Path(__file__).resolve().parent

WELCOME = """# nanoPhase: a course on phase in attention

To open it: `pip install jupyterlab`, then `jupyter lab lessons/course.ipynb`. Run the cells from
top to bottom: Shift-Enter runs one. All of them take about ten minutes on a CPU. A line that begins
with `!` is a command. You may change it and run it again. No cell writes into `exercises/`."""

SETUP = """import html
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from IPython.display import HTML, Image, display

REPOSITORY = {address!r}  # the address to clone, if you have this notebook and nothing else
NEEDED = ['torch', 'numpy', 'tiktoken', 'matplotlib', 'pytest']


class Stop(Exception):
    def _render_traceback_(self):  # "Run all" ends here, with this sentence alone
        return [str(self)]


if Path('../model.py').exists():  # the notebook is in lessons/, the commands run above it
    os.chdir('..')
elif REPOSITORY and not Path('model.py').exists():
    if not Path('nanophase').exists():
        subprocess.run(['git', 'clone', '--quiet', '--depth=1', REPOSITORY, 'nanophase'])
    if Path('nanophase').exists():
        os.chdir('nanophase')
if not Path('model.py').exists():
    raise Stop('This notebook needs the other files of the course: open it in the folder lessons/ '
               'of the repository, or write an address that can be cloned into REPOSITORY above.')
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:  # any recent version will do
    subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *missing])

os.environ['PATH'] = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
os.environ['OMP_NUM_THREADS'] = '1'  # the runs are so small that more threads only wait
os.environ['CUDA_VISIBLE_DEVICES'] = ''  # and that a GPU would not be faster


def drawn():
    return {{path: path.stat().st_mtime for path in sorted(Path('out').glob('**/*.png'))}}


def show():
    \"\"\"Display the pictures in out/ that are new since the last call.\"\"\"
    for path, time in drawn().items():
        if shown.get(path) != time:
            display(Image(filename=str(path)))
    shown.update(drawn())


def show_page(path):
    \"\"\"Display a page for the browser in a frame.\"\"\"
    page = html.escape(Path(path).read_text(encoding='utf-8'))
    # in a <div>: IPython warns of an HTML that is only a frame
    display(HTML(f'<div><iframe srcdoc="{{page}}" width="100%" height="860"></iframe></div>'))


shown = drawn()  # by earlier runs
print('The files of the course are here. Go on with the next cell.')"""

PAGE = """## Before the lessons

The next cell shows `phase.html`: a transformer that learns while you watch."""

EXERCISE = """Open `lessons/exercises/lesson_{number}.py` beside this notebook, and replace each
`...`. The next cell says which parts are right."""


def text(source):
    return dict(cell_type='markdown', metadata={}, source=source.splitlines(keepends=True))


def code(source):
    return dict(cell_type='code', metadata={}, execution_count=None, outputs=[],
                source=source.splitlines(keepends=True))


def page_cells(page):
    """The cells of a page: its text, and a cell for each block of commands."""
    # text, commands, text, commands, ..., text
    for i, part in enumerate(re.split(r'^```sh\n(.*?)^```$', page, flags=re.M | re.S)):
        lines = part.strip().splitlines()
        if i % 2 == 1:
            shows = [f"show_page('{folder}/animation.html')" for line in lines
                     for folder in re.findall(r'lab\.animate (\S+)', line)]
            yield code('\n'.join([*(f'!{line}' for line in lines if line), 'show()', *shows]))
        elif lines:
            yield text('\n'.join(lines))


def build():
    """The notebook, a dict of nbformat 4."""
    cells = [text(WELCOME), code(SETUP.format(address=ADDRESS)), text(PAGE),
             code("show_page('lessons/phase.html')")]
    for page in sorted(LESSONS.glob('[1-9]_*.md')):
        cells += page_cells(page.read_text(encoding='utf-8'))
        number = page.name[0]
        cells += [text(EXERCISE.format(number=number)), code(f'!python -m lessons.check {number}')]
    for i, cell in enumerate(cells):
        cell['id'] = f'cell-{i}'
    kernel = dict(display_name='Python 3', language='python', name='python3')
    metadata = dict(kernelspec=kernel, language_info=dict(name='python'))
    return dict(cells=cells, metadata=metadata, nbformat=4, nbformat_minor=5)


def dump(notebook):
    """The notebook as a text."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + '\n'


if __name__ == '__main__':
    write_files(LESSONS, {'course.ipynb': dump(build()).encode('utf-8')})
