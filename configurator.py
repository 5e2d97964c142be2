"""
What a script needs before its work: its options, a device, and errors of one line.

The options are the script's global variables; the comments behind them are the help. Config files (Python that assigns
options) and --key=value override them, from left to right:  python train.py config/dyck3_spectral.py --seed=1
"""

import ast
import contextlib
import ctypes
import difflib
import os
import re
import runpy
import sys
from pathlib import Path

import torch


def configure(namespace, arguments):
    """
    Override the options in `namespace` (a script's globals()) by `arguments` (its sys.argv[1:]); return {key: value}.
    --help prints them and exits. Raises FileNotFoundError or ValueError for what is no config file, option or value.
    """
    options = {key: value for key, value in namespace.items() if isinstance(value, (int, float, str)) and key[0] != '_'}
    given = set()
    if {'--help', '-h'} & set(arguments):
        comments = dict(re.findall(r'^(\w+) = [^#\n]+#\s*(.+)$', Path(namespace['__file__']).read_text(), re.MULTILINE))
        print(namespace['__doc__'].strip(), '', 'Options, with their defaults:', sep='\n')
        print(*(f'  --{key}={value!r}'.ljust(36) + comments.get(key, '') for key, value in options.items()), sep='\n')
        raise SystemExit(0)
    for argument in arguments:
        key, equals, text = argument.removeprefix('--').partition('=')
        if not argument.startswith('--'):
            overrides = read_config(argument, options)
        elif equals and key not in given:
            overrides = {key: text if isinstance(options.get(key), str) else parse(text)}
            given.add(key)
        else:
            raise ValueError(f'{argument}: options are written --key=value, each once')
        for key, value in overrides.items():
            if key not in options:
                close = difflib.get_close_matches(key, options, n=1) or ['--help']
                raise ValueError(f'{argument}: unknown option {key!r}; did you mean {close[0]}?')
            options[key] = convert(key, value, type(options[key]), argument)
    namespace.update(options)
    return options


def read_config(path, options):
    """The options that the Python file at `path` assigns, {key: value}; modules it imports and _names are its own."""
    if not Path(path).is_file():
        raise FileNotFoundError(f'{path}: there is no such config file; options are written --key=value')
    try:
        after = runpy.run_path(str(path), init_globals=dict(options))
    except Exception as error:
        raise ValueError(f'{path} is no config file: {type(error).__name__}, {error}') from None
    return {key: value for key, value in after.items() if key[0] != '_' and type(value) is not type(ast)
            and (key not in options or value is not options[key])}


def parse(text):
    """The Python literal that `text` writes, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def convert(key, value, kind, source):
    """`value` as the `kind` of the option; an int may stand for a float. Raises ValueError for what is not allowed."""
    allowed = {bool: 'True or False', int: 'a whole number, 0 or more', float: 'a finite number, 0 or more'}
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or kind in (int, float) and not 0 <= value <= sys.float_info.max:
        raise ValueError(f'{source}: {key}={value!r}: must be {allowed.get(kind, "a string")}')
    return kind(value)


def choose_device(name='auto'):
    """'auto' is cuda, else mps, else cpu. Raises ValueError for a device that this machine does not have."""
    if name == 'auto':
        name = 'cuda' if torch.cuda.is_available() else 'mps' if torch.backends.mps.is_available() else 'cpu'
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f'device={name!r} is not there: {str(error).splitlines()[0]}') from None
    if name == 'cpu' and sys.platform == 'linux':
        with contextlib.suppress(AttributeError):  # glibc gives large buffers back at every step; ask it to keep them
            ctypes.CDLL(None).mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
            ctypes.CDLL(None).mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: the most it allows
    return name


@contextlib.contextmanager
def one_line_errors():
    """Within it, an error that a user can cause ends the script with one line on stderr. TRACEBACK=1 shows all."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, or the reader has enough, such as `| head`
        sys.exit(130)
    except Exception as error:
        first = os.environ.get('RANK', '0') == '0'  # of several processes the first one speaks
        memory = "can't allocate memory" in str(error) or isinstance(error, torch.OutOfMemoryError)
        users = isinstance(error, (ValueError, OSError, ImportError, FloatingPointError, MemoryError)) or memory
        if os.environ.get('TRACEBACK') or first and not users:
            raise
        line = ''.join(char if char.isprintable() else ' ' for char in f'{Path(sys.argv[0]).name}: {error}')
        sys.exit(' '.join(line.split()) if first else 1)
