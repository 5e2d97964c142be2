"""
Make lessons/course.ipynb, the course as a notebook, from the pages of the lessons.

    python -m lessons.notebook         # after a change of a page; what was printed is kept
    python -m lessons.notebook --run   # runs all cells, about ten minutes, and keeps what they say

The pages are the one source. Their commands become cells that run, from the root of the repository.
Their pictures are in the notebook. After the bets of a lesson no outputs are kept: they are for
those who run it. `--run` needs nbclient and ipykernel.
"""

import argparse
import base64
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from checkpoint import write_files
from configurator import one_line_errors
from lessons.repository import ADDRESS
from model import UserError

LESSONS = Path(__file__).resolve().parent
ROOT = LESSONS.parent
NOTEBOOK = LESSONS / 'course.ipynb'

WELCOME = """# nanoPhase: a course on phase in attention

Run the cells from top to bottom: Shift-Enter runs one. All of them take about ten minutes on a CPU.
A line that begins with `!` is a command. You may change it and run it again."""

SETUP = """import html
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from IPython.display import HTML, Image, display

REPOSITORY = {address!r}  # the address to clone, if you have this notebook and nothing else
NEEDED = ['torch', 'numpy', 'tiktoken', 'matplotlib', 'pytest']


def find_files():
    \"\"\"Go to the root of the repository, or clone it. Say in a sentence what is missing.\"\"\"
    if Path('../model.py').exists():  # the notebook is in lessons/, the commands run above it
        os.chdir('..')
    if not Path('model.py').exists() and Path('nanophase/model.py').exists():
        os.chdir('nanophase')  # from an earlier run of this cell
    if not Path('model.py').exists() and REPOSITORY:
        subprocess.run(['git', 'clone', '--quiet', REPOSITORY, 'nanophase'])
        if Path('nanophase/model.py').exists():
            os.chdir('nanophase')
    if Path('model.py').exists():
        print('The files of the course are here. Go on with the next cell.')
    elif REPOSITORY:
        print(f'The files of the course could not be fetched from {{REPOSITORY}}.')
    else:
        print('This notebook needs the other files of the course. Open it in the folder lessons/ '
              'of the repository, or write the address of the repository into REPOSITORY above.')


find_files()
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:  # any recent version will do
    subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *missing])

os.environ['PATH'] = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
os.environ['OMP_NUM_THREADS'] = '1'  # the runs are so small that more threads only wait
os.environ['CUDA_VISIBLE_DEVICES'] = ''  # and that a GPU would not be faster

shown = {{}}


def show():
    \"\"\"Display the pictures in out/ that are new since the last call.\"\"\"
    for path in sorted(Path('out').glob('**/*.png')):
        changed = path.stat().st_mtime
        if shown.get(path) != changed:
            shown[path] = changed
            display(Image(filename=str(path)))


def show_page(path):
    \"\"\"Display a page for the browser in a frame.\"\"\"
    if Path(path).exists():
        page = html.escape(Path(path).read_text(encoding='utf-8'))
        frame = f'<iframe srcdoc="{{page}}" width="100%" height="860"></iframe>'
        display(HTML(f'<div>{{frame}}</div>'))


for path in Path('out').glob('**/*.png'):  # of earlier runs
    shown[path] = path.stat().st_mtime"""

PAGE = """## Before the lessons

The next cell shows `phase.html`: a transformer that learns while you watch. Come back to it as
often as you like."""

EXERCISE = """Replace each `...` in the next cell, and run it: it writes the file. The cell below it
says which parts are right."""


def text_cell(text, folder=LESSONS):
    """A cell of text. It holds the pictures that the text shows."""
    def embed(match):
        data = base64.b64encode((folder / match[2]).read_bytes()).decode()
        return f'![{match[1]}](data:image/{match[3]};base64,{data})'
    text = re.sub(r'!\[([^]]*)\]\(([\w./]+\.(png|gif))\)', embed, text)
    return dict(cell_type='markdown', metadata={}, source=text.splitlines(keepends=True))


def code_cell(code, secret=False):
    """A cell of Python. What a secret one prints is not kept."""
    metadata = dict(tags=['secret']) if secret else {}
    return dict(cell_type='code', metadata=metadata, execution_count=None, outputs=[],
                source=code.splitlines(keepends=True))


def command_cell(commands, secret):
    """A cell that runs the lines of `commands`, and shows the pictures and the page they draw."""
    lines = [line for line in commands.splitlines() if line]
    pages = re.findall(r'lab\.animate (\S+)', commands)
    code = [f'!{line}' for line in lines] + ['show()']
    code += [f"show_page('{folder}/animation.html')" for folder in pages]
    return code_cell('\n'.join(code), secret)


def page_cells(text):
    """The cells of a page: its text, and a cell for each block of commands."""
    cells = []
    parts = re.split(r'^```sh\n(.*?)^```$', text, flags=re.MULTILINE | re.DOTALL)
    secret = False
    for i, part in enumerate(parts):  # text, commands, text, commands, ..., text
        part = part.strip()
        if i % 2 == 1:
            cells.append(command_cell(part, secret))
        elif part:
            cells.append(text_cell(part))
            secret = secret or '**Place your bets.**' in part
    return cells


def exercise_cells(number):
    """The cells that write and check the stub of a lesson, if it has one."""
    stub = LESSONS / 'exercises' / f'lesson_{number}.py'
    if not stub.exists():
        return []
    written = f'%%writefile lessons/exercises/{stub.name}\n{stub.read_text(encoding="utf-8")}'
    return [text_cell(EXERCISE), code_cell(written.rstrip('\n')),
            code_cell(f'!python -m lessons.check {number}')]


def build(outputs):
    """
    The notebook, a dict of nbformat 4. `outputs` has those of cells that ran: {code: outputs}.
    """
    cells = [text_cell(WELCOME), code_cell(SETUP.format(address=ADDRESS)), text_cell(PAGE),
             code_cell("show_page('lessons/phase.html')")]
    for page in sorted(LESSONS.glob('[1-9]_*.md')):
        cells += page_cells(page.read_text(encoding='utf-8')) + exercise_cells(page.name[0])
    for i, cell in enumerate(cells):
        cell['id'] = f'cell-{i}'
        if cell['cell_type'] == 'code' and 'tags' not in cell['metadata']:
            cell['outputs'] = outputs.get(''.join(cell['source']), [])
    kernel = dict(display_name='Python 3', language='python', name='python3')
    metadata = dict(kernelspec=kernel, language_info=dict(name='python'))
    return dict(cells=cells, metadata=metadata, nbformat=4, nbformat_minor=5)


def dump(notebook):
    """The notebook as a text."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + '\n'


def read_outputs(notebook):
    """What the cells of a notebook printed and drew: {code: outputs}. Warnings are left out."""
    found = {}
    for cell in notebook['cells']:
        if cell['cell_type'] == 'code':
            outputs = [output for output in cell['outputs'] if output.get('name') != 'stderr']
            found[''.join(cell['source'])] = list(map(plain, outputs))
    return found


def plain(output):
    """An output without what is large or differs from run to run: pages, counts of executions."""
    output = dict(output)
    if 'execution_count' in output:
        output['execution_count'] = None
    if 'data' in output:
        output['data'] = {kind: value for kind, value in output['data'].items()
                          if kind != 'text/html'}
    return output


def stored_outputs():
    """The outputs in course.ipynb as it is."""
    if not NOTEBOOK.exists():
        return {}
    return read_outputs(json.loads(NOTEBOOK.read_text(encoding='utf-8')))


def copy_tree(folder):
    """What the cells need, as it stands here."""
    for path in ROOT.glob('*.py'):
        shutil.copy(path, folder)
    shutil.copy(ROOT / 'pytest.ini', folder)
    for name in ('config', 'lab', 'lessons', 'tests'):
        ignored = shutil.ignore_patterns('__pycache__')
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)


def run(notebook):
    """Run all cells in a copy of the tree. Raises an error where a cell does."""
    try:
        import nbclient
        import nbformat
    except ImportError:
        raise UserError('--run needs nbclient and ipykernel: pip install nbclient ipykernel')
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        # git apply must know no repository around the copy
        os.environ['GIT_CEILING_DIRECTORIES'] = str(Path(folder).parent)
        nodes = nbformat.reads(dump(notebook), as_version=4)
        resources = dict(metadata=dict(path=str(Path(folder) / 'lessons')))
        nbclient.NotebookClient(nodes, timeout=600, resources=resources).execute()
    return json.loads(nbformat.writes(nodes))


def main(arguments=None):
    """Write the notebook, as the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(prog='python -m lessons.notebook', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--run', action='store_true', help='run all cells first')
    outputs = stored_outputs()
    if parser.parse_args(arguments).run:
        outputs = read_outputs(run(build({})))
    text = dump(build(outputs))
    write_files(LESSONS, {NOTEBOOK.name: text.encode('utf-8')})
    print(f'wrote {NOTEBOOK.relative_to(ROOT)}: {len(text) / 1e6:.1f} MB')


if __name__ == '__main__':
    with one_line_errors():
        main()
