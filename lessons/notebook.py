"""
Make lessons/course.ipynb, the course as a notebook, from the pages of the lessons.

    python -m lessons.notebook

The pages are the one source. Their commands become cells that run, from the root of the repository.
"""

import json
import re
from pathlib import Path

from checkpoint import write_files
from configurator import one_line_errors

LESSONS = Path(__file__).resolve().parent
NOTEBOOK = LESSONS / 'course.ipynb'

WELCOME = """# nanoPhase: a course on phase in attention

Run the cells from top to bottom: Shift-Enter runs one. All of them take less than ten minutes on a
CPU. A line that begins with `!` is a command. You may change it and run it again."""

SETUP = """import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from IPython.display import Image, display

REPOSITORY = ''  # the address to clone, if you have this notebook and nothing else
NEEDED = ['torch', 'numpy', 'tiktoken', 'matplotlib', 'pytest']

if Path('../model.py').exists():  # the notebook is in lessons/, the commands run above it
    os.chdir('..')
if not Path('model.py').exists():
    subprocess.run(['git', 'clone', REPOSITORY, 'nanophase'], check=True)
    os.chdir('nanophase')
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:  # any recent version will do
    subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *missing], check=True)

os.environ['PATH'] = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
os.environ['OMP_NUM_THREADS'] = '1'  # the runs are so small that more threads only wait
os.environ['CUDA_VISIBLE_DEVICES'] = ''  # and that a GPU would not be faster

shown = {}


def show():
    \"\"\"Display the pictures in out/ that are new since the last call.\"\"\"
    for path in sorted(Path('out').glob('**/*.png')):
        changed = path.stat().st_mtime
        if shown.get(path) != changed:
            shown[path] = changed
            display(Image(filename=str(path)))


for path in Path('out').glob('**/*.png'):  # of earlier runs
    shown[path] = path.stat().st_mtime"""


def text_cell(text):
    return dict(cell_type='markdown', metadata={}, source=text.splitlines(keepends=True))


def code_cell(code):
    return dict(cell_type='code', metadata={}, execution_count=None, outputs=[],
                source=code.splitlines(keepends=True))


def page_cells(text):
    """The cells of a page: its text, and a cell for each block of commands."""
    cells = []
    parts = re.split(r'^```sh\n(.*?)^```$', text, flags=re.MULTILINE | re.DOTALL)
    for i, part in enumerate(parts):  # text, commands, text, commands, ..., text
        part = part.strip()
        if i % 2 == 1:
            commands = [f'!{line}' for line in part.splitlines() if line]
            cells.append(code_cell('\n'.join([*commands, 'show()'])))
        elif part:
            cells.append(text_cell(part))
    return cells


def build():
    """The notebook as a text: JSON of nbformat 4."""
    cells = [text_cell(WELCOME), code_cell(SETUP)]
    for page in sorted(LESSONS.glob('[1-9]_*.md')):
        cells += page_cells(page.read_text(encoding='utf-8'))
    kernel = dict(display_name='Python 3', language='python', name='python3')
    metadata = dict(kernelspec=kernel, language_info=dict(name='python'))
    notebook = dict(cells=cells, metadata=metadata, nbformat=4, nbformat_minor=4)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + '\n'


def main():
    write_files(LESSONS, {NOTEBOOK.name: build().encode('utf-8')})
    print(f'wrote {NOTEBOOK}')


if __name__ == '__main__':
    with one_line_errors():
        main()
