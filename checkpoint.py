"""
The folder of a run. To understand training you need not read this.

    ckpt.pt        the latest state, to resume from; best.pt: that of the lowest validation loss
    config.json    the options, the model, the task; for each session: what ran, when, on what
    log.jsonl      a line of JSON for each log
    run.lock       while it is locked, a process trains here

ckpt.pt is the truth: a resumed run makes config.json and the log from it. A run may be killed at
any time. What it leaves can be resumed, on a CPU with the same result bit for bit.

eval.py and sample.py are safe with a stranger's checkpoint: no code in it runs. Resume only your
own: what an optimizer loads is not checked.
"""

import contextlib
import io
import json
import os
import platform
import secrets
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import torch

from model import GPT, GPTConfig, UserError
from tasks import make_task

FILES = ('ckpt.pt', 'best.pt', 'config.json', 'log.jsonl')


class RunFolder:
    """The folder of a run that starts or goes on. Its files stay until there is a new state."""

    def __init__(self, path, resume=False, overwrite=False):
        self.path = Path(path).expanduser()
        self.resume, self.overwrite = resume, overwrite
        self.checkpoint = None  # `load`: what ckpt.pt had, to resume
        self.record = None  # `begin`: what each checkpoint has beside a state
        self.first_lines = []  # `begin`: those of the log that a resumed run keeps
        self.begun = False  # `write`: whether this process has written config.json

    def load(self, cfg, given):
        """Load ckpt.pt, to resume, and the options that were not given. Raises UserError."""
        path = self.path / 'ckpt.pt'
        self.checkpoint = load_checkpoint(path)
        if 'task' in given:
            find_task(self.checkpoint, cfg.task)  # its text may have moved; another task is refused
        for name, old in self.checkpoint['options'].items():
            new = getattr(cfg, name, old)
            if name in ('out_dir', 'overwrite', 'device'):
                continue
            fixed = name in ('seed', 'eval_sequences', 'optimizer') or hasattr(GPTConfig, name)
            if name not in given or name == 'init_from':  # it says resume now
                setattr(cfg, name, old)
            elif new != old and fixed:
                raise UserError(f'{name}={new!r}: {path} has {old!r}, and cannot go on otherwise')
            elif new != old:
                print(f'{path}: {name} was {old!r} and is now {new!r}')
        if cfg.max_iters < self.checkpoint['iter']:
            raise UserError(f'max_iters={cfg.max_iters}: {path} has had '
                            f'{self.checkpoint["iter"]} updates')

    @contextlib.contextmanager
    def locked(self):
        """
        Within it no other process trains here. Raises UserError if one does, and if a new run
        would replace an old one without being asked.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / 'run.lock', 'ab')
        with file:  # its lock ends with the process, however that ends
            try:
                import fcntl
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"out_dir='{self.path}': another process trains there") from None
            except (ImportError, OSError):  # Windows, and some network drives
                print(f'{file.name} cannot be locked: start no second run there')

            # a new run replaces no other, unless it was asked to
            found = [name for name in FILES if (self.path / name).exists()]
            if found and not (self.resume or self.overwrite):
                raise UserError(f"out_dir='{self.path}' already holds a run ({found[0]}): "
                                'continue it with --init_from=resume, choose another --out_dir, '
                                'or replace it with --overwrite=True')
            yield

    def begin(self, record, device):
        """Keep what `write` needs. `record`: what a checkpoint has beside a state."""
        start, sessions = 0, []
        if self.checkpoint:
            start, sessions = self.checkpoint['iter'], self.checkpoint['sessions']
            # the resumed run writes the later lines again
            self.first_lines = [line for line in read_log(self.path) if line['iter'] < start]
        # the first session tells the run from all others; what is measured of a run names it
        session = dict(machine(device), argv=sys.argv, start=start, id=secrets.token_hex(8))
        self.record = dict(record, sessions=[*sessions, session])

    def write(self, line, state=None, best=False):
        """Add a line to the log. Put a state at ckpt.pt, and the best one at best.pt, too."""
        if state:
            torch.save(self.record | state, buffer := io.BytesIO())
            if not self.begun:  # what no one could load again fails now, not after hours
                buffer.seek(0)
                with torch.random.fork_rng(devices=[]):
                    build_model(torch.load(buffer, weights_only=True))
            names = ['ckpt.pt', 'best.pt'] if best else ['ckpt.pt']
            write_files(self.path, dict.fromkeys(names, buffer.getvalue()))
        if not self.begun:  # now that there is a state, they replace what an old run left
            config = json.dumps(self.record, indent=2, default=str) + '\n'
            lines = ''.join(json.dumps(line) + '\n' for line in self.first_lines)
            write_files(self.path, {'config.json': config.encode(), 'log.jsonl': lines.encode()})
            self.begun = True
        with writing(self.path), open(self.path / 'log.jsonl', 'ab') as file:
            file.write(json.dumps(line).encode() + b'\n')


@contextlib.contextmanager
def writing(folder):
    """Within it, what the system cannot write is a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f'could not write {error.filename or folder}: {error.strerror}') from None


def write_files(folder, files):
    """Put {name: bytes} into a folder, each complete or not at all. Raises UserError."""
    with writing(folder):
        for name, content in files.items():
            temporary = Path(folder, f'{name}.tmp')
            with open(temporary, 'wb') as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            replace(temporary, Path(folder, name))


def replace(source, target):
    """os.replace, tried for a second: Windows refuses while another program reads the target."""
    for _ in range(20):
        with contextlib.suppress(PermissionError):
            return os.replace(source, target)
        time.sleep(0.05)
    os.replace(source, target)


def read_log(folder):
    """The lines of log.jsonl as dicts, without what a killed run or a loss of power left."""
    lines = []
    with contextlib.suppress(FileNotFoundError):
        text = Path(folder, 'log.jsonl').read_text(encoding='utf-8', errors='replace')
        for line in text.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
    return lines


def machine(device):
    """What runs, when and on what, for the records. The commit is None outside a repository."""
    # --git-dir: a repository that this one only lies in does not count
    git = 'git --git-dir=.git describe --always --dirty --abbrev=12 --exclude=*'.split()
    commit = None
    with contextlib.suppress(OSError):  # no git
        done = subprocess.run(git, cwd=Path(__file__).resolve().parent, capture_output=True,
                              text=True)
        commit = done.stdout.strip() or None
    processor = platform.processor() or platform.machine()
    if device.startswith('cuda'):
        processor = torch.cuda.get_device_name(device)
    return dict(
        date=time.strftime('%Y-%m-%d %H:%M:%S %z'), commit=commit, processor=processor,
        # losses differ in their last digits between AVX2 and AVX512, and by the threads
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(), python=platform.python_version(),
        torch=str(torch.__version__))


def find_task(checkpoint, spec=None):
    """The task of a checkpoint. `spec` may say where its text is now. Raises UserError."""
    trained = checkpoint['task']
    task = make_task(spec or trained)
    if task.spec(without='path') != make_task(trained).spec(without='path'):
        raise UserError(f'task={spec}: the run was trained on {trained}')
    return task


def warn_of_other_text(checkpoint, task):
    """Print a line if the text is not the one in training. This reads the text."""
    if task.fingerprint() != checkpoint['data']:
        print(f'{task} is not the text of the training, and the model may know some of it')


def load_checkpoint(path):
    """The dict that train.py saved. No code in it runs. Raises UserError for any other file."""
    if not Path(path).is_file():
        raise UserError(f'{path} does not exist as a file: is its run still to be trained?')
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch does not look at the checksums
        if damaged:
            raise ValueError(f'{damaged} is damaged')
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
        checkpoint['sessions']  # raises KeyError: that of another program has none
        return checkpoint
    except Exception as error:
        raise UserError(f'{path} is not a checkpoint of this train.py ({error!r:.200})') from error


def build_model(checkpoint, path='the checkpoint'):
    """The model of a checkpoint. Raises UserError if this model.py has other tensors."""
    model = GPT(GPTConfig(**checkpoint['model_args']))
    try:
        model.load_state_dict(checkpoint['model'])
    except RuntimeError as error:  # below a title, it lists what differs
        first = str(error).splitlines()[1].strip()
        raise UserError(f'{path} does not fit this model.py: {first:.200}') from None
    return model


def current_state(it, best_val_loss, seconds, model, optimizers):
    """What a checkpoint has beside the options: all that `restore` and the model need."""
    return dict(iter=it, best_val_loss=best_val_loss, model=model.state_dict(),
                optimizers=[optimizer.state_dict() for optimizer in optimizers],
                rng=torch.get_rng_state(), seconds=seconds)


def restore(checkpoint, model, optimizers):
    """Put a run's own states into the optimizers. Returns iter, best_val_loss and seconds."""
    if list(checkpoint['model']) != list(model.state_dict()):  # optimizers know them by number
        raise UserError('the run began with the parameters of model.py in another order')
    for optimizer, saved in zip(optimizers, checkpoint['optimizers'], strict=True):
        # its rates and betas stay those of the options
        optimizer.load_state_dict(dict(optimizer.state_dict(), state=saved['state']))
    torch.set_rng_state(checkpoint['rng'])
    return [checkpoint[name] for name in ('iter', 'best_val_loss', 'seconds')]
