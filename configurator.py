"""
What a script needs before its work: options, errors of one line, and the device it computes on.

The options are the script's global variables. The comments behind them are the help. Config
files (Python that assigns options) and --key=value override them, from left to right:

    python train.py config/dyck3_spectral.py --seed=1
"""

import ast
import contextlib
import dataclasses
import difflib
import sys
import types
from pathlib import Path

import numpy as np
import torch

from model import UserError


@contextlib.contextmanager
def one_line_errors():
    """Within it, a UserError ends the script with one line. Any other error has its traceback."""
    sys.stdout.reconfigure(errors='replace')  # a terminal may lack a character, such as ±
    try:
        yield
    except UserError as error:
        sys.exit(f'{Path(sys.argv[0]).name}: {printable(str(error))}')


def printable(text):
    """A text with a question mark (U+FFFD) for each character that could control a terminal."""
    return ''.join(c if c.isprintable() or c in '\n\t' else '\ufffd' for c in text)


def nearest(name, names):
    """The end of an error about an unknown name: the one that it is near to, or all of them."""
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f'; did you mean {close[0]!r}?'
    return f'; there are {", ".join(names)}'


# ---- options ----

WORDS = {bool: 'True or False', int: 'a whole number', float: 'a number', str: 'a string'}


def configure(namespace, arguments):
    """
    The options in `namespace` (a script's globals()), overridden by `arguments` (sys.argv[1:]):
    {key: value}, and the set of the keys that were given. --help prints them and exits. Raises
    UserError for what is not allowed.
    """
    options = {key: value for key, value in namespace.items()
               if isinstance(value, (int, float, str)) and not key.startswith('_')}
    given = set()
    for argument in arguments:
        # --help, a config file, or --key=value
        key, equals, text = argument.removeprefix('--').partition('=')
        if argument in ('-h', '--help'):
            show_help(namespace, options)
            sys.exit()
        elif not argument.startswith('-'):
            overrides = read_config(argument, options)
        elif equals:
            overrides = {key: text if isinstance(options.get(key), str) else parse(text)}
        else:
            raise UserError(f'{argument}: options are written --key=value, such as --seed=1')
        # each value has the type of the default
        for key, value in overrides.items():
            if key not in options:
                raise UserError(f'{argument}: {key!r} is no option{nearest(key, options)}')
            kind = type(options[key])
            if kind is float and (type(value) is int or isinstance(value, float)):
                value = float(value)  # a number of numpy is a float, too
            if type(value) is not kind:
                raise UserError(f'{argument}: {key}={value!r}: must be {WORDS[kind]}')
            options[key] = value
            given.add(key)
    return options, given


def show_help(namespace, options):
    """Print a script's docstring, and the lines that set its options, with their comments."""
    print(namespace['__doc__'])
    for line in Path(namespace['__file__']).read_text(encoding='utf-8').splitlines():
        key, equals, rest = line.partition(' = ')
        if key in options:
            print(f'  --{key}={rest}')


def read_config(path, options):
    """The options that a Python file assigns. Its _names and the modules it imports are its own."""
    if not Path(path).is_file():
        configs = [file.as_posix() for file in sorted(Path('config').glob('*.py'))]
        raise UserError(f'{path}: there is no such config file{nearest(path, configs)}')
    assigned = {}
    code = compile(Path(path).read_text(encoding='utf-8'), path, 'exec')
    exec(code, dict(options), assigned)  # it can read the options; what it assigns stays apart
    return {key: value for key, value in assigned.items()
            if not key.startswith('_') and not isinstance(value, types.ModuleType)}


def parse(text):
    """The Python literal that `text` writes, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# ---- the device ----


@dataclasses.dataclass
class Hardware:
    """What a script computes on."""

    device: str  # of torch, such as cuda:1
    dtype: str  # of the matrix products under autocast

    @property
    def device_type(self):
        return self.device.partition(':')[0]

    def autocast(self):
        enabled = self.dtype != 'float32'
        return torch.autocast(self.device_type, getattr(torch, self.dtype), enabled=enabled)


def choose_hardware(device='auto', dtype='auto'):
    """The device and the dtype to compute with. Raises UserError."""
    device = choose_device(device)
    if dtype == 'auto':  # what the device computes faster
        on_gpu = device.startswith('cuda')
        fast = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        dtype = 'bfloat16' if fast else 'float32'
    if dtype not in ('float32', 'bfloat16'):
        raise UserError(f'dtype={dtype!r}: must be one of auto, float32, bfloat16')
    return Hardware(device, dtype)


def choose_device(name='auto'):
    """'auto' is cuda, else mps, else cpu. Raises UserError for one that is not there."""
    if name == 'auto':
        name = 'mps' if torch.backends.mps.is_available() else 'cpu'
        if torch.cuda.is_available():
            name = 'cuda:0'
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise UserError(f'device={name!r} is not there: {str(error).splitlines()[0]}') from None
    if name.startswith('cuda:'):
        torch.cuda.set_device(name)
    return name


def to_device(arrays, device):
    """Tensors of numpy arrays. A GPU copies them from pinned memory beside its other work."""
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    if device.startswith('cuda'):
        return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
    return [tensor.to(device) for tensor in tensors]


class Graphed:
    """
    A function of tensors whose kernels a GPU repeats as one CUDA graph: to launch them one by one
    takes longer than a small model computes. The inputs are copied to where the graph reads them.
    What the function does in Python alone, such as a print, happens four times and then no more.
    """

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *inputs):
        if self.calls == 0:
            self.inputs, self.stream = [x.clone() for x in inputs], torch.cuda.Stream()
        for own, x in zip(self.inputs, inputs):
            own.copy_(x)
        self.calls += 1
        if self.calls < 4:  # libraries and gradients take the memory that they keep
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                result = self.function(*self.inputs)
            torch.cuda.current_stream().wait_stream(self.stream)
            return result
        if self.calls == 4:
            self.record()
        self.graph.replay()
        return self.result

    def record(self):
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph, stream=self.stream):  # it computes nothing yet
                self.result = self.function(*self.inputs)
        except Exception as error:
            error.add_note('A graph cannot wait for a number of the GPU, as .item() does: '
                           'try --graph=False')
            raise
