"""
What a script needs before its work: options, one-line errors, and the device it computes on.

The options are the script's global variables. The comments behind them are the help. Config
files (Python that assigns options) and --key=value override them, from left to right:

    python train.py config/dyck3_spectral.py --seed=1
"""

import ast
import contextlib
import ctypes
import dataclasses
import difflib
import os
import platform
import re
import shlex
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch

from model import GPTConfig, UserError

# ---- errors of one line ----


@contextlib.contextmanager
def one_line_errors():
    """
    Within it, a UserError ends the script with one line on stderr. So does a lack of memory.
    Any other error is a mistake in the code: it keeps its traceback. TRACEBACK=1 shows all.
    """
    if hasattr(sys.stdout, 'reconfigure'):
        # a code page may lack a character
        sys.stdout.reconfigure(errors='replace')
    try:
        with contextlib.redirect_stdout(Printable(sys.stdout)):
            yield
    except (KeyboardInterrupt, BrokenPipeError):
        # Ctrl-C, or a reader that has enough: `| head`
        sys.exit(130)
    except Exception as error:
        # of several processes, the first one speaks
        if os.environ.get('RANK', '0') != '0':
            sys.exit(1)
        users = isinstance(error, UserError) or lacks_memory(error)
        if os.environ.get('TRACEBACK') or not users:
            raise
        message = ' '.join(str(error).split()) or 'there is not enough memory'
        sys.exit(f'{Path(sys.argv[0]).name}: {printable(message)}')


def lacks_memory(error):
    """Whether an error says that memory is full."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "can't allocate memory" in str(error)


class Printable:
    """A stream that passes on what cannot control a terminal: names and models come from anyone."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        self.stream.write(printable(text, kept='\n\t'))

    def __getattr__(self, name):
        return getattr(self.stream, name)


def printable(text, kept=''):
    """A text whose characters, but the printable ones and those in `kept`, are replaced."""
    return ''.join(c if c.isprintable() or c in kept else '\N{REPLACEMENT CHARACTER}'
                   for c in text)


def command(*words):
    """A command to print, which a shell reads as these words."""
    return shlex.join(map(str, words))


def nearest(name, names):
    """The end of an error about an unknown name: the one that it is near to, or all if few."""
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f'; did you mean {close[0]!r}?'
    if len(names) > 20:
        return '; --help lists them'
    return f'; there are {", ".join(names)}'


# ---- options ----


def configure(namespace, arguments):
    """
    The options in `namespace` (a script's globals()), overridden by `arguments` (sys.argv[1:]):
    {key: value}. --help prints them and exits. Raises UserError for what is not allowed.
    """
    options = {key: value for key, value in namespace.items()
               if isinstance(value, (int, float, str)) and not key.startswith('_')}
    if '--help' in arguments or '-h' in arguments:
        show_help(namespace, options)
        raise SystemExit(0)
    given = set()
    for argument in arguments:
        key, equals, text = argument.removeprefix('--').partition('=')
        if not argument.startswith('--'):
            overrides = read_config(argument, options)
        elif equals and key not in given:
            value = text if isinstance(options.get(key), str) else parse(text)
            overrides = {key: value}
        else:
            raise UserError(f'{argument}: options are written --key=value, each once, '
                            'such as --seed=1')
        for key, value in overrides.items():
            if key not in options:
                hint = find_hint(key, options, argument)
                raise UserError(f'{argument}: {key!r} is no option{hint}')
            options[key] = convert(key, value, options[key], argument)
            given.add(key)
    return options, given


def find_hint(key, options, argument):
    """What may help who gave an option that does not exist."""
    for field in dataclasses.fields(GPTConfig):
        if field.name == key:
            return f', but a field of GPTConfig: write a line {key} = {field.default!r} in train.py'
    if argument.startswith('--'):
        return nearest(key, options)
    return nearest(key, options) + " (the name of a config's own variable starts with _)"


def show_help(namespace, options):
    """Print a script's docstring, and the lines that set its options, with their comments."""
    description = namespace['__doc__'] or ''  # python -OO has none
    print(description.strip(), '', 'Options, with their defaults:', sep='\n')
    for line in Path(namespace['__file__']).read_text().splitlines():
        key, equals, rest = line.partition(' = ')
        if key in options:
            print(f'  --{key}={rest}')


def read_config(path, options):
    """The options that a Python file assigns. Its _names and its imports are its own."""
    if not Path(path).is_file():
        folder = Path('config') if Path(path).parent == Path() else Path(path).parent
        others = [str(file) for file in folder.glob('*.py')]
        raise UserError(f'{path}: there is no such config file'
                        f'{nearest(path, ["--key=value", *others])}')
    try:
        code = compile(Path(path).read_bytes(), str(path), 'exec')
    except (SyntaxError, ValueError) as error:
        raise UserError(f'{path} is no config file: {error}') from None
    after = dict(options, __name__='config', __file__=str(path))
    exec(code, after)
    if torch.get_default_dtype() != torch.float32:
        torch.set_default_dtype(torch.float32)
        raise UserError(f'{path} sets the default dtype of PyTorch: weights are float32')
    return {key: value for key, value in after.items()
            if not key.startswith('_') and type(value) is not types.ModuleType
            and (key not in options or value is not options[key])}


def parse(text):
    """The Python literal that `text` writes, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def convert(key, value, default, source):
    """`value` in the type of the option's `default`. An int may stand for a float."""
    if isinstance(value, np.generic):
        value = value.item()
    expected = type(default)
    words = {bool: 'True or False', int: 'a whole number below 2**63', float: 'a finite number'}
    allowed = words.get(expected, 'a string')
    fits = type(value) is expected or (type(value), expected) == (int, float)
    limits = {int: 2**63 - 1, float: sys.float_info.max}
    if expected in limits:
        largest = limits[expected]
        smallest = -largest
        if default >= 0:
            smallest = 0
            allowed += ', 0 or more'
        fits = fits and smallest <= value <= largest
    if not fits:
        raise UserError(f'{source}: {key}={value!r}: must be {allowed}')
    return expected(value)


# ---- the device ----


@dataclasses.dataclass
class Process:
    """Number `rank` of `world` processes that compute together, and what it computes on."""

    device: str  # of torch, such as cuda:1
    dtype: str  # of the matrix products under autocast
    rank: int = 0
    world: int = 1

    @property
    def device_type(self):
        return self.device.partition(':')[0]

    def autocast(self):
        enabled = self.dtype != 'float32'
        return torch.autocast(self.device_type, getattr(torch, self.dtype), enabled=enabled)


def this_process(device='auto', dtype='auto'):
    """The Process that runs this, alone or started by torchrun. Raises UserError."""
    rank = int(os.environ.get('RANK', 0))
    world = int(os.environ.get('WORLD_SIZE', 1))
    device = choose_device(device, os.environ.get('LOCAL_RANK'))
    return Process(device, choose_dtype(dtype, device), rank, world)


def choose_device(name='auto', local_rank=None):
    """
    'auto' is cuda, else mps, else cpu. 'cuda' becomes the GPU number local_rank, if there is a
    process for each. Raises UserError for a device that this machine does not have.
    """
    if name == 'auto':
        name = 'mps' if torch.backends.mps.is_available() else 'cpu'
        if torch.cuda.is_available():
            name = 'cuda'
    if name == 'cuda' and local_rank is not None:
        name = f'cuda:{local_rank}'
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f'device={name!r} is not there: {reason}') from None
    if name.startswith('cuda:'):
        torch.cuda.set_device(name)
    if name == 'cpu' and sys.platform == 'linux':
        # glibc: keep large buffers from step to step
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
            ctypes.CDLL(None).mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: the most it allows
    return name


def choose_dtype(name, device):
    """The name of a torch dtype. 'auto' is float32, and on a GPU what it computes faster."""
    if name not in ('auto', 'float32', 'bfloat16'):
        raise UserError(f'dtype={name!r}: must be one of auto, float32, bfloat16')
    if name != 'auto':
        return name
    if device.startswith('cuda') and torch.cuda.is_bf16_supported(including_emulation=False):
        return 'bfloat16'
    return 'float32'


def to_device(arrays, device):
    """Tensors of numpy arrays. A GPU copies them from pinned memory beside its other work."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.startswith('cuda'):
        return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
    return [tensor.to(device) for tensor in tensors]


def machine(device):
    """What runs, when and on what, for the records. The commit is None outside a repository."""
    git = 'git describe --always --dirty --abbrev=12 --exclude=*'.split()
    here = Path(__file__).resolve().parent
    commit = None
    with contextlib.suppress(OSError):
        done = subprocess.run(git, cwd=here, capture_output=True, text=True)
        commit = done.stdout.strip() or None
    processor = platform.processor()
    with contextlib.suppress(OSError, AttributeError):
        cpuinfo = Path('/proc/cpuinfo').read_text()
        processor = re.search(r'model name\s*: (.*)', cpuinfo).group(1)
    if device.startswith('cuda'):
        processor = torch.cuda.get_device_name(device)
    return dict(
        date=time.strftime('%Y-%m-%d %H:%M:%S %z'), commit=commit, processor=processor,
        threads=torch.get_num_threads(), python=platform.python_version(),
        numpy=np.__version__, torch=str(torch.__version__))
