"""
Options, and errors of one line.

The options are the script's global variables. The comments behind them are the help. Config
files (Python that assigns options) and --key=value override them, from left to right:

    python train.py config/dyck3_spectral.py --seed=1
"""

import ast
import builtins
import contextlib
import difflib
import math
import os
import shlex
import sys
import types
import unicodedata
from pathlib import Path

import torch

from model import GPTConfig, UserError

# ---- what a script prints ----


@contextlib.contextmanager
def one_line_errors():
    """
    Within it, a UserError ends the script with one line on stderr. So does a lack of memory.
    Any other error is a mistake in the code: it keeps its traceback. TRACEBACK=1 shows all.
    """
    try:
        with contextlib.redirect_stdout(SafeOutput(sys.stdout)):
            yield
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        no_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        no_memory = no_memory or "can't allocate memory" in str(error)
        if os.environ.get('TRACEBACK') or not (no_memory or isinstance(error, UserError)):
            raise
        message = ' '.join(str(error).split()) or 'there is not enough memory'
        sys.exit(f'{Path(sys.argv[0]).name}: {printable(message)}')


class SafeOutput:
    """Stdout that never ends a training, though its terminal is gone or its disk is full."""

    def __init__(self, stream):
        self.stream = stream or open(os.devnull, 'w', encoding='utf-8')  # None: it is closed
        if hasattr(stream, 'reconfigure'):
            stream.reconfigure(errors='replace')  # a code page may lack a character

    def write(self, text):
        self.attempt(self.stream.write, printable(text))

    def flush(self):
        self.attempt(self.stream.flush)

    def attempt(self, action, *arguments):
        try:
            action(*arguments)
        except OSError:  # a full disk, a terminal that is gone, or `| head`: say no more
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name):
        return getattr(self.stream, name)


def printable(text):
    """A text without what controls a terminal: names and models come from anyone."""
    bidi = '\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069'  # they turn text round
    harmful = {c for c in set(text) if unicodedata.category(c) in ('Cc', 'Cs') or c in bidi}
    return text.translate({ord(c): '\N{REPLACEMENT CHARACTER}' for c in harmful - {'\n', '\t'}})


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
    {key: value}, and the set of the keys that were given. --help prints them and exits. Raises
    UserError for what is not allowed.
    """
    options = {key: value for key, value in namespace.items()
               if isinstance(value, (int, float, str)) and not key.startswith('_')}
    if '--help' in arguments or '-h' in arguments:
        show_help(namespace, options)
        raise SystemExit(0)
    given = set()
    for argument in arguments:
        key, equals, text = argument.removeprefix('--').partition('=')
        if not argument.startswith('-'):
            overrides = read_config(argument, options)
        elif equals and argument.startswith('--'):
            overrides = {key: text if isinstance(options.get(key), str) else parse(text)}
        else:
            raise UserError(f'{argument}: options are written --key=value, such as --seed=1')
        for key, value in overrides.items():
            if key not in options:
                hint = find_hint(key, options, argument)
                raise UserError(f'{argument}: {key!r} is no option{hint}')
            options[key] = convert(key, value, options[key], argument)
            given.add(key)
    return options, given


def find_hint(key, options, argument):
    """What may help who gave an option that does not exist."""
    default = getattr(GPTConfig, key, None)
    if isinstance(default, (int, float, str)):
        return f', but a field of GPTConfig: write a line {key} = {default!r} in train.py'
    if argument.startswith('--'):
        return nearest(key, options)
    return nearest(key, options) + " (the name of a config's own variable starts with _)"


def show_help(namespace, options):
    """Print a script's docstring, and the lines that set its options, with their comments."""
    description = namespace['__doc__'] or ''  # python -OO has none
    print(description.strip(), '', 'Options, with their defaults:', sep='\n')
    for line in Path(namespace['__file__']).read_text(encoding='utf-8').splitlines():
        key, equals, rest = line.partition(' = ')
        if key in options:
            print(f'  --{key}={rest}')


def read_config(path, options):
    """The options that a Python file assigns. Its _names and its imports are its own."""
    try:
        tree = ast.parse(Path(path).read_bytes(), path)
        code = compile(tree, path, 'exec')
    except FileNotFoundError:
        others = [file.as_posix() for file in sorted(Path('config').glob('*.py'))]
        hint = nearest(path, ['--key=value', *others])
        raise UserError(f'{path}: there is no such config file{hint}') from None
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f'{path} is no config file: {error}') from None
    for line in tree.body:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Compare):
            raise UserError(f'{path}, line {line.lineno}: == compares; write = to set an option')
    # the file can read the options as it reads builtins; what it assigns stays apart
    after = dict(__builtins__=vars(builtins) | options, __name__='config', __file__=path)
    exec(code, after)
    return {key: value for key, value in after.items()
            if not key.startswith('_') and not isinstance(value, types.ModuleType)}


def parse(text):
    """The Python literal that `text` writes, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def convert(key, value, default, source):
    """`value` in the type of the option's `default`. An int may stand for a float."""
    expected = type(default)
    words = {bool: 'True or False', int: 'a whole number', float: 'a finite number'}
    if expected is float and isinstance(value, (int, float)) and type(value) is not bool:
        value = float(value)  # of an int, or of numpy's float64
    fits = type(value) is expected
    if expected is float:
        fits = fits and math.isfinite(value)
    if not fits:
        raise UserError(f'{source}: {key}={value!r}: must be {words.get(expected, "a string")}')
    return value
