"""
What a script needs before its work: its options, and a device.

The options are the script's global variables, overridden by small config files and by --key=value:

    python train.py config/dyck3_spectral.py --seed=1 --max_iters=500

Arguments apply from left to right. An option is a global int, float, bool or str of the script, and the comment
behind it is its help. A config file is Python that assigns options, and may compute with those set so far.
"""

import ast
import contextlib
import ctypes
import difflib
import inspect
import platform
import re
import runpy
import subprocess
import sys
from pathlib import Path

import torch

TYPES = (bool, int, float, str)


def configure(namespace, arguments):
    """
    Override the options in `namespace` (a script's globals()) by `arguments` (its sys.argv[1:]); return {key: value}.

    --help prints every option and exits. Raises FileNotFoundError for a missing config file and ValueError for a key
    that does not exist or a value of another type; an int may stand for a float.
    """
    options = {key: value for key, value in namespace.items() if type(value) in TYPES and not key.startswith('_')}
    if '--help' in arguments or '-h' in arguments:
        print(describe(namespace, options))
        raise SystemExit(0)
    for argument in arguments:
        if argument.startswith('--'):
            key, equals, text = argument[2:].partition('=')
            if not equals:
                raise ValueError(f'{argument}: options are written --key=value' + (f', such as {argument}=True' if isinstance(options.get(key), bool) else ''))
            check_key(key, options, argument)
            overrides = {key: text if isinstance(options[key], str) else parse(text)}
        else:
            overrides = read_config(argument, options)
        for key, value in overrides.items():
            options[key] = convert(key, value, type(options[key]), argument)
    namespace.update(options)
    return options


def read_config(path, options):
    """The options that the Python file at `path` assigns, {key: value}; modules it imports and _names are its own."""
    if not Path(path).is_file():
        configs = ', '.join(map(str, sorted(Path('config').glob('*.py')))) or 'no config/ here'
        raise FileNotFoundError(f'config file {path!r} does not exist; there are {configs}; options are written --key=value')
    before = dict(options)
    after = runpy.run_path(str(path), init_globals=before)
    assigned = {key: value for key, value in after.items()
                if not key.startswith('_') and not inspect.ismodule(value) and (key not in before or value is not before[key])}
    for key in assigned:
        check_key(key, options, path)
    return assigned


def check_key(key, options, source):
    """Raises ValueError, with the nearest name, for a key that is no option."""
    if key not in options:
        close = difflib.get_close_matches(key, options, n=1)
        raise ValueError(f'{source}: unknown option {key!r}' + (f'; did you mean {close[0]!r}?' if close else '; see --help'))


def parse(text):
    """The Python literal that `text` writes, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def convert(key, value, kind, source):
    """`value` as the `kind` of the option; an int may stand for a float. Raises ValueError for another type."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        allowed = {bool: 'True or False', int: 'a whole number, such as 64', float: 'a number', str: 'a string'}[kind]
        raise ValueError(f'{source}: {key}={value!r}: must be {allowed}')
    return value


def describe(namespace, options):
    """The help text: the script's docstring, then each option as its source line has it: key, default, comment."""
    source = Path(namespace['__file__']).read_text()
    comments = dict(re.findall(r'^(\w+) = [^#\n]+#\s*(.+)$', source, flags=re.MULTILINE))
    lines = [f'  --{key}={value!r}'.ljust(36) + comments.get(key, '') for key, value in options.items()]
    return (namespace.get('__doc__') or '').strip() + '\n\nOptions, with their defaults:\n' + '\n'.join(lines)


def choose_device(name='auto'):
    """'auto' is cuda, else mps, else cpu. Raises ValueError for a device that this machine does not have."""
    if name == 'auto':
        name = 'cuda' if torch.cuda.is_available() else 'mps' if torch.backends.mps.is_available() else 'cpu'
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f'device={name!r} is not there: {str(error).splitlines()[0]}') from None
    if torch.device(name).type == 'cpu':
        keep_freed_memory()
    return name


def autocast(device, dtype):
    """The context in which torch computes in `dtype`, the name of one, where it may; it can be entered again and again."""
    return contextlib.nullcontext() if dtype == 'float32' else torch.autocast(torch.device(device).type, dtype=getattr(torch, dtype))


def keep_freed_memory():
    """glibc hands large buffers back to the system and page-faults them in again at every step; ask it to keep them."""
    if sys.platform == 'linux':
        with contextlib.suppress(AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
            mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: the most it allows


def free_memory(device):
    """Bytes that a tensor on `device` could take now; infinity where the system does not say."""
    if torch.device(device).type == 'cuda':
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError):
        for line in open('/proc/meminfo'):
            if line.startswith('MemAvailable'):
                return 1024 * int(line.split()[1])
    return float('inf')


def processor_name():
    """The CPU's name where the system tells it, for the records of a run."""
    with contextlib.suppress(OSError):
        for line in open('/proc/cpuinfo'):
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()


def git_commit():
    """The commit of this code, with '-dirty' if files differ from it; None outside a repository."""
    command = ['git', '-C', str(Path(__file__).resolve().parent), 'describe', '--always', '--dirty', '--abbrev=12', '--exclude=*']
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
