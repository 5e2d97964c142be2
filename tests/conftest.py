import functools
import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train
from configurator import configure
from model import GPT, GPTConfig

ROOT = Path(__file__).resolve().parent.parent
PAGE = ['rope', 'spectral', 'bifocal', 'tapa', 'nope']  # the attentions that ship in model.py
SMALL = [
    '--n_layer=1', '--n_embd=16', '--batch_size=4', '--block_size=16', '--max_iters=6',
    '--warmup_iters=2', '--eval_interval=3', '--log_interval=1', '--eval_sequences=8',
    '--device=cpu',
    # a reader may have changed the defaults
    '--task=dyck', '--seed=0', '--overwrite=False', '--optimizer=muon', '--learning_rate=4e-3',
    '--lr_end=0.0', '--weight_decay=0.1',
]
TIMES = ('seconds', 'tokens_per_second')
# a forked child would wait for threads that it does not have
torch.set_num_threads(1)


def build(seed=0, config=GPTConfig, **options):
    """A model of two layers, 4 heads and 32 dimensions, unless the options say otherwise."""
    # initial weights of 1/sqrt(inputs), so that scores matter
    fields = dict(vocab_size=11, n_layer=2, n_head=4, n_embd=32, init_std=0.2) | options
    torch.manual_seed(seed)
    return GPT(config(**fields))


def shell_blocks(page):
    """The texts of a page's blocks of shell commands."""
    return re.findall(r'^```sh\n(.*?)^```$', page.read_text(encoding='utf-8'),
                      flags=re.MULTILINE | re.DOTALL)


@torch.no_grad()
def stir(model):
    """Move what the attentions learn away from its start, so that each part matters."""
    for parameter in model.positional_parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def script(*words, cwd=ROOT, **environment):
    """
    `python WORDS` in a folder, without a GPU: its returncode, stdout and stderr. On Linux it is a
    child of this process, which need not load torch again.
    """
    environment = {'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''} | environment
    dropped = ('PYTHONPATH', 'RANK', 'TRACEBACK')
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    words = list(map(str, words))
    if sys.platform != 'linux':
        return subprocess.run([sys.executable, *words], cwd=cwd, encoding='utf-8',
                              capture_output=True, env=kept | environment)
    import torch._dynamo  # noqa: F401  # optimizers load it: once here, and not in each child
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = multiprocessing.get_context('fork').Process(
            target=become, args=(words, cwd, kept | environment, out, err))
        process.start()
        process.join()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return SimpleNamespace(returncode=process.exitcode, stdout=texts[0], stderr=texts[1])


def become(words, cwd, environment, out, err):
    """Make this process `python WORDS`, which loads the modules of the repository anew."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    streams = []
    for number, file in enumerate((out, err), start=1):
        os.dup2(file.fileno(), number)
        encoding = environment.get('PYTHONIOENCODING', 'utf-8')
        streams.append(open(number, 'w', encoding=encoding, closefd=False))
    sys.stdout, sys.stderr = streams

    def ours(path):
        return f'{path}/'.startswith(f'{ROOT}/') and 'site-packages' not in str(path)
    for name, module in list(sys.modules.items()):
        if ours(getattr(module, '__file__', None)):
            del sys.modules[name]
    first, *rest = words
    sys.path = [str(cwd), *(path for path in sys.path if not ours(path))]
    sys.argv = words
    if first == '-m':
        sys.argv = rest
        runpy.run_module(rest[0], run_name='__main__', alter_sys=True)
    elif first == '-c':
        exec(rest[0], dict(__name__='__main__'))
    else:
        runpy.run_path(os.path.join(cwd, first), run_name='__main__')


class Run:
    """The folder of a run that train.py makes in this process."""

    def __init__(self, folder):
        self.folder = folder

    def train(self, *arguments, small=SMALL):
        arguments = [*small, f'--out_dir={self.folder}', *arguments]
        options, given = configure(dict(vars(train)), arguments)
        train.main(SimpleNamespace(**options), given)
        return self

    def resume(self, *arguments):
        """With no other options than these: the others are those of the run."""
        return self.train('--init_from=resume', '--device=cpu', *arguments, small=[])

    def log(self):
        """The lines of the log, without times."""
        lines = self.folder.joinpath('log.jsonl').read_text(encoding='utf-8').splitlines()
        return [{key: value for key, value in json.loads(line).items() if key not in TIMES}
                for line in lines]

    def checkpoint(self, name='ckpt.pt'):
        return torch.load(self.folder / name, weights_only=True)

    def files(self):
        """{name: bytes} of what is in the folder."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}


@pytest.fixture
def run(tmp_path):
    """run('name') is the run in a temporary folder of that name."""
    return lambda name='run': Run(tmp_path / name)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """runs(task, attention, ...) is the folder of a small trained run, made once."""
    @functools.cache
    def get(task, attention, *more):
        run = Run(tmp_path_factory.mktemp('runs') / 'run')
        return run.train(f'--task={task}', f'--attention={attention}', '--n_layer=2',
                         '--max_iters=30', '--eval_interval=10', *more).folder
    return get


def assert_same(a, b, path=''):
    """Equality of nested checkpoints, bit for bit."""
    assert type(a) is type(b), path
    if isinstance(a, (list, tuple)):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f'{path}.{key}')
    else:
        assert torch.equal(a, b) if torch.is_tensor(a) else a == b, path


def assert_same_run(a, b):
    """Two runs have left the same, bit for bit: states, options that matter, log. Not the times."""
    for name in ('ckpt.pt', 'best.pt'):
        states = [run.checkpoint(name) for run in (a, b)]
        for part in ('model', 'optimizers', 'iter', 'best_val_loss', 'rng', 'model_args', 'task',
                     'data'):
            assert_same(states[0][part], states[1][part], f'{name}: {part}')
    assert a.log() == b.log()
