"""
The folder of a run. To understand training you need not read this.

    config.json    the options, the model, the task; for each session: what ran, when, on what
    log.jsonl      a line of JSON for each log: losses, rates, speed, the learned frequencies
    ckpt.pt        the latest state, to resume from; best.pt: that of the lowest validation loss
    run.lock       while it is locked, a process trains here

A run may be killed at any time. What it leaves can be resumed or started again, with the same
result bit for bit. A folder may come from a stranger: no code in it runs, no link in it is
followed, and what it has is checked.
"""

import contextlib
import dataclasses
import io
import json
import os
import pickle
import re
import stat
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import torch

from configurator import convert, machine
from model import GPT, GPTConfig, UserError
from tasks import make_task, without_path

FILES = ['config.json', 'log.jsonl', 'ckpt.pt', 'best.pt']
IGNORED = {'run.lock', *(f'{name}.tmp' for name in FILES)}  # what a killed run may leave


class RunFolder:
    """A run's own folder. An old run that it overwrites stays until the new one has a state."""

    def __init__(self, path, resume=False, overwrite=False):
        self.path = Path(path).expanduser()
        self.resume = resume
        self.overwrite = overwrite
        self.checkpoint = None
        self.check()

    def check(self):
        """Refuse what is not this run's: other files, or a run to be neither resumed nor lost."""
        try:
            files = [file for file in self.path.glob('*') if file.name not in IGNORED]
            sizes = {file.name: file.lstat().st_size for file in files}
        except OSError as error:
            # such as a name that is too long
            raise UserError(f"out_dir='{self.path}': {error.strerror}") from None
        self.sessions = None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            self.sessions = json.loads(read_text(self.path / 'config.json'))['sessions']
        if sizes and not isinstance(self.sessions, list):
            raise UserError(f"out_dir='{self.path}' has files ({min(sizes)}, ...) and no run")
        # a log without a line is no run yet
        begun = 'ckpt.pt' in sizes or 'best.pt' in sizes or sizes.get('log.jsonl')
        if begun and not (self.resume or self.overwrite):
            go_on = ''
            if 'ckpt.pt' in sizes:
                go_on = 'continue it with --init_from=resume, '
            raise UserError(f"out_dir='{self.path}' already holds a run: {go_on}choose another "
                            '--out_dir, or replace it with --overwrite=True')

    def load(self, cfg, task):
        """
        Load ckpt.pt, to resume from it with the options `cfg`. Raises UserError if that is not
        possible, or if an option is another one that must be what it was.
        """
        path = self.path / 'ckpt.pt'
        kept = {field.name for field in dataclasses.fields(GPTConfig)}
        kept |= {'eval_sequences', 'optimizer'}
        self.read_at = self.written_at()
        self.checkpoint = load_checkpoint(path)
        old = self.checkpoint['options']
        for name, new in vars(cfg).items():
            if new == old.get(name, new) or name in ('task', 'init_from', 'overwrite'):
                continue
            if name in kept:
                raise UserError(f'{name}={new!r}: {path} has {old[name]!r} and cannot resume with '
                                f'another; start anew from its weights with --init_from={path}')
            print(f'{path}: {name} was {old[name]!r} and is now {new!r}')
        if not is_trained_on(self.checkpoint, task):
            raise UserError(f'task={task}: {path} was trained on {self.checkpoint["task"]}, or on '
                            'another text, and cannot resume')
        start = self.checkpoint['iter']
        if start > cfg.max_iters:
            raise UserError(f'max_iters={cfg.max_iters}: {path} is at update {start} already')

    def written_at(self):
        """When ckpt.pt was written, in nanoseconds; None if there is none."""
        with contextlib.suppress(OSError):
            return (self.path / 'ckpt.pt').stat().st_mtime_ns

    @contextlib.contextmanager
    def session(self, record, device):
        """Within it nobody else trains here. The log goes on from the checkpoint, if any."""
        write_files(self.path, {}, added={'run.lock': b''})
        with open(self.path / 'run.lock', 'ab', opener=regular) as self.locked:
            # until the process ends, however it ends
            lock(self.locked)
            # another run may have begun and ended meanwhile
            self.check()
            start, sessions, lines = 0, [], []
            if self.checkpoint:
                if self.written_at() != self.read_at:
                    raise UserError(f'{self.path}/ckpt.pt is not what was read: resume once more')
                start, sessions = self.checkpoint['iter'], self.sessions
                lines = [line for line in read_log(self.path) if line['iter'] < start]
                # where the run came from, before it was resumed
                origin = self.checkpoint['options'].get('init_from', 'scratch')
                record = dict(record, options=dict(record['options'], init_from=origin))
            sessions = [*sessions, dict(machine(device), argv=sys.argv, start=start)]
            self.record = dict(record, sessions=sessions)
            config = json.dumps(self.record, indent=2) + '\n'
            log = ''.join(json.dumps(line) + '\n' for line in lines)
            self.first_files = {'config.json': config.encode(), 'log.jsonl': log.encode()}
            yield

    def write(self, line, state=None, best=False):
        """Add a line to the log. Put a state at ckpt.pt, and the best one at best.pt, too."""
        if self.moved():
            raise UserError(f'{self.path} was moved or removed while it trained; resume it where '
                            'it is now, with --out_dir=... and --init_from=resume')
        files, outdated = self.first_files, []
        if files and not self.resume:
            # what was measured of the run before
            outdated = [file.name for file in self.path.glob('eval*')
                        if file.suffix in ('.json', '.png')]
        if state:
            torch.save(self.record | state, buffer := io.BytesIO())
            names = ['ckpt.pt', 'best.pt'] if best else ['ckpt.pt']
            states = dict.fromkeys(names, buffer.getvalue())
            # config.json makes a folder a run: it comes first, but in an old run the states do
            old_run = (self.path / 'ckpt.pt').exists()
            files = states | files if old_run else files | states
        added = {'log.jsonl': json.dumps(line).encode() + b'\n'}
        write_files(self.path, files, added, outdated)
        self.first_files = {}

    def moved(self):
        """Whether out_dir/run.lock is no longer the file that this process has locked."""
        try:
            there = os.stat(self.path / 'run.lock')
        except OSError:
            return True
        return not os.path.samestat(there, os.fstat(self.locked.fileno()))


def regular(path, flags):
    """An `opener` for `open` that refuses links, pipes and devices, which a stranger may place."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise UserError(f'{path} is a link, or another thing that is no file of a run')
    return os.open(path, flags | getattr(os, 'O_NOFOLLOW', 0), 0o666)


def read_text(path):
    """The text of a file of a run. Raises UserError for one that could fill the memory."""
    with open(path, encoding='utf-8', opener=regular) as file:
        if os.fstat(file.fileno()).st_size > 2**30:
            raise UserError(f'{path} has more than 2**30 bytes')
        return file.read()


def lock(file):
    """Lock an open file. Raises UserError if another process has locked it."""
    try:
        import fcntl
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        folder = Path(file.name).parent
        raise UserError(f"out_dir='{folder}': another process trains there") from None
    except (ImportError, OSError) as error:
        # Windows, and some network drives
        print(f'{file.name} cannot be locked ({error}): start no second run there')


def write_files(folder, files, added={}, outdated=()):
    """
    Put {name: bytes} in place, in this order, each complete or not at all. Remove outdated
    files. Add bytes to others. Raises UserError if the system cannot.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            # made anew, so that nothing is written through a link
            (folder / f'{name}.tmp').unlink(missing_ok=True)
            with open(folder / f'{name}.tmp', 'xb') as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for name in files:
            replace(folder / f'{name}.tmp', folder / name)
        for name in outdated:
            (folder / name).unlink(missing_ok=True)
        for name, content in added.items():
            with open(folder / name, 'ab', opener=regular) as file:
                file.write(content)
    except OSError as error:
        for name in files:
            with contextlib.suppress(OSError):
                (folder / f'{name}.tmp').unlink()
        raise UserError(f'could not write {error.filename or folder}: {error.strerror}') from None


def replace(source, target):
    """os.replace, tried for a second: Windows refuses while another program reads the target."""
    for _ in range(20):
        with contextlib.suppress(PermissionError):
            return os.replace(source, target)
        time.sleep(0.05)
    os.replace(source, target)


def read_log(folder):
    """The lines of log.jsonl as dicts, without half a line that a killed run may leave."""
    path = Path(folder, 'log.jsonl')
    try:
        lines = [json.loads(line) for line in read_text(path).split('\n')[:-1]]
        numbers = [(line['iter'], line.get('val_loss', 0.0)) for line in lines]
        np.array(numbers, dtype=float)  # raises for a whole number that no float can be
        if all(type(it) is int and type(loss) in (int, float) for it, loss in numbers):
            return lines
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
            RecursionError):
        pass
    raise UserError(f'{path} is not a log of train.py')


def read_learned(log, name):
    """
    What the validations of a log have of a learned number of each pair, such as Omega: an array
    (validations, heads, P) for each layer, without heads where a layer learns none. No layers if
    the log has no such number. Raises UserError for a log that train.py did not write.
    """
    lines = [line for line in log if 'val_loss' in line]
    if not any(name in line for line in lines):
        return []
    try:
        layers = zip(*[line[name] for line in lines], strict=True)
        arrays = [np.array(layer, dtype=float) for layer in layers]
        return [array.reshape(*array.shape[:2], array.size and array.shape[2]) for array in arrays]
    except (LookupError, TypeError, ValueError, OverflowError):
        raise UserError(f'log.jsonl is not a log of train.py: {name} is not the same numbers of '
                        'heads and pairs at each validation') from None


def names_a_file(spec):
    """Whether make_task(spec) opens a file, or a vocabulary, that the spec names."""
    return bool(re.search('path=|encoding=', spec))


def is_trained_on(checkpoint, task):
    """Whether a checkpoint has seen this task, and this text, wherever the text is now."""
    same_text = checkpoint['data'].get('sha256') == task.record().get('sha256')
    return same_text and without_path(checkpoint['task']) == without_path(task)


def find_task(checkpoint, spec=None):
    """
    The task of a checkpoint. A checkpoint may come from a stranger, so no file is opened because
    the checkpoint names it: then the user must give the task in `spec`. Raises UserError without
    it, and if `spec` is another task or another text than in training.
    """
    trained = checkpoint['task']
    if not spec and names_a_file(trained):
        raise UserError(f'the run was trained on {trained}: give --task={trained} to open that')
    task = make_task(spec or trained)
    same = is_trained_on(checkpoint, task)
    fits = len(task.symbols) <= checkpoint['model_args']['vocab_size']
    if not fits or (spec and not same):
        raise UserError(f'task={task}: the run was trained on {trained}, and that is not the same')
    if not same:
        print(f'the text of {task} is not what it was in training: the model may know some of it')
    return task


def load_checkpoint(path):
    """
    The dict that train.py saved at `path`. No code in it runs, and its parts have the types
    that they should have. Raises UserError for any other file.
    """
    try:
        with open(path, 'rb', opener=regular) as file:
            check_archive(file)
            file.seek(0)
            checkpoint = torch.load(file, map_location='cpu', weights_only=True)
        check_parts(checkpoint)
        return checkpoint
    except FileNotFoundError:
        raise UserError(f'{path} does not exist: is its run still to be trained?') from None
    except NotADirectoryError:
        raise UserError(f'{Path(path).parent} is a file: give the folder of its run') from None
    except pickle.UnpicklingError:
        raise UserError(f'{path} is not a checkpoint; it may be malicious, and was not loaded'
                        ) from None
    except Exception as error:
        # TRACEBACK=1 shows where
        reason = f'{error!r:.200}'
        raise UserError(f'{path} is not a checkpoint of this train.py ({reason})') from error


def check_archive(file):
    """Raise ValueError if a file in the archive is damaged, or compressed, as a bomb would be."""
    with zipfile.ZipFile(file) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise ValueError('it is compressed')
        damaged = archive.testzip()
        if damaged:
            raise ValueError(f'{damaged} is damaged')


def check_parts(checkpoint):
    """Raise an error if a part is missing, or has a type that train.py never saves."""
    if type(checkpoint) is not dict:
        raise ValueError('it is no dict')
    kinds = dict(model_args=dict, options=dict, task=str, data=dict, model=dict, iter=int)
    for part, kind in kinds.items():
        if not isinstance(checkpoint[part], kind):
            raise ValueError(f'its {part} is no {kind.__name__}')
    for part in ('model_args', 'options'):
        for name, value in checkpoint[part].items():
            if type(name) is not str or type(value) not in (bool, int, float, str):
                raise ValueError(f'{part} has more than numbers and strings')
    T = checkpoint['options']['block_size']
    if type(T) is not int or not 0 < T <= 2**20 or not 0 <= checkpoint['iter'] < 2**31:
        raise ValueError('block_size or iter is no count, or absurd')
    for name, tensor in checkpoint['model'].items():
        if type(name) is not str or type(tensor) is not torch.Tensor:
            raise ValueError('model has other parts than tensors')


def make_config(model_args):
    """The GPTConfig of a checkpoint's model_args. Raises UserError if this model has no such."""
    defaults = {field.name: field.default for field in dataclasses.fields(GPTConfig)}
    defaults['vocab_size'] = 0
    unknown = model_args.keys() - defaults
    if unknown:
        raise UserError(f'model_args has options that this model.py lacks: {min(unknown):.200}')
    return GPTConfig(**{name: convert(name, value, defaults[name], 'model_args')
                        for name, value in model_args.items()})


def build_model(checkpoint, path='the checkpoint'):
    """
    The model of a checkpoint from load_checkpoint. Raises UserError if its weights are not those
    of its options. An error in the class of its attention keeps its traceback.
    """
    try:
        config = make_config(checkpoint['model_args'])
        check_sizes(checkpoint['model'], config)
        model = GPT(config)
        check_tensors(checkpoint['model'], model.state_dict())
    except UserError as error:
        raise UserError(f'{path} does not fit this model.py: {error}') from None
    model.load_state_dict(checkpoint['model'])
    return model


def check_sizes(weights, config):
    """Refuse options whose model would be larger than the weights: they could fill the memory."""
    C, hs = config.n_embd, config.head_size
    shapes = {'embedding.weight': (config.vocab_size, C)}
    if config.n_layer > len(weights):
        raise UserError(f'it has no {config.n_layer} blocks')
    for i in range(config.n_layer):
        block = f'blocks.{i}.'
        shapes[block + 'attention.qkv.weight'] = ((config.n_head + 2 * config.n_kv_head) * hs, C)
        shapes[block + 'mlp.down.weight'] = (C, config.n_inner)
    for name, shape in shapes.items():
        if name not in weights or weights[name].shape != shape:
            raise UserError(f'{name} does not have the shape {shape}')


def check_tensors(tensors, expected):
    """Raise UserError unless {name: tensor} has the names, shapes and dtypes of `expected`."""
    if tensors.keys() != expected.keys():
        different = sorted(map(str, tensors.keys() ^ expected.keys()))
        raise UserError(f'{len(different)} other tensors, such as {different[0]:.100}')
    for name, tensor in tensors.items():
        other = expected[name]
        if (tensor.layout, tensor.dtype, tensor.shape) != (other.layout, other.dtype, other.shape):
            raise UserError(f'{name} has another shape, dtype or layout')
        # its memory may be less than its shape
        if tensor.is_meta or not tensor.is_contiguous():
            raise UserError(f'{name} has no memory of its own')
        if not tensor.isfinite().all():
            raise UserError(f'{name} has values that are not finite')


def current_state(it, best_val_loss, seconds, model, optimizers):
    """What a checkpoint has beside the options: all that `restore` and the model need."""
    return dict(iter=it, best_val_loss=best_val_loss, model=model.state_dict(),
                optimizers=[optimizer.state_dict() for optimizer in optimizers],
                rng=torch.get_rng_state(), seconds=seconds)


def restore(checkpoint, optimizers):
    """
    Load a checkpoint's states. The rates are those of the options. Returns (iter, best loss,
    seconds).
    """
    try:
        for optimizer, saved in zip(optimizers, checkpoint['optimizers'], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group['params']]
            for i, tensors in saved['state'].items():
                p = parameters[i]
                expected = dict(momentum_buffer=p)
                if isinstance(optimizer, torch.optim.AdamW):
                    expected = dict(step=torch.tensor(0.0), exp_avg=p, exp_avg_sq=p)
                check_tensors(tensors, expected)
            optimizer.load_state_dict(dict(optimizer.state_dict(), state=saved['state']))
        torch.set_rng_state(checkpoint['rng'])
        best, seconds = float(checkpoint['best_val_loss']), float(checkpoint['seconds'])
        return checkpoint['iter'], best, seconds
    except Exception as error:
        raise UserError(f'ckpt.pt has no state to resume from ({error!r:.200})') from error
