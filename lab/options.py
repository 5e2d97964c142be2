"""The parser that the commands of the lab share."""

import argparse
import contextlib
import shlex
from pathlib import Path

from model import UserError


def make_parser(name, doc):
    """A parser of `python -m NAME` whose help is the docstring of the file."""
    return argparse.ArgumentParser(
        prog=f'python -m {name}', description=doc, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)


def read_text(name):
    """The text of the file that an option names."""
    try:
        return Path(name).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError):
        raise argparse.ArgumentTypeError(f'{name}: must be a file of UTF-8 text') from None


def import_transformers():
    try:
        import transformers
    except ImportError:
        raise UserError('a model of transformers needs pip install transformers') from None
    return transformers


@contextlib.contextmanager
def loading(name):
    """Within it an error of transformers about the files of the model `name` is one line."""
    try:
        yield
    except OSError as error:
        first_line = str(error).partition('\n')[0]
        raise UserError(f'{name}: no model of transformers ({first_line})') from None


def command(*words):
    """A command to print, which a shell reads as these words."""
    return shlex.join(map(str, words))
