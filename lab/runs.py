"""The files of a run, which may come from a stranger: read with one line for whatever is wrong."""

import contextlib
import json
import math
from pathlib import Path

from model import UserError
from tasks import make_task, names_a_file

WRONG = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
         RecursionError)  # what reading a file of unexpected content may raise


@contextlib.contextmanager
def reading(folder):
    """Within it, a file that is missing or not as train.py and eval.py write it is a UserError."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f'{folder}: it has no {Path(error.filename).name}') from None
    except WRONG as error:
        reason = printable(f'{type(error).__name__}, {error}')
        raise UserError(f'{folder}: a file is broken ({reason:.200})') from None


def read_json(path):
    """The JSON object in a file, a dict."""
    found = json.loads(Path(path).read_text())
    if type(found) is not dict:
        raise ValueError(f'{Path(path).name} has no JSON object')
    return found


def count(value, name, least=1):
    """A whole number that a run may have of tokens or updates. Raises ValueError for others."""
    if type(value) is not int or not least <= value < 2**31:
        raise ValueError(f'{name} is no count')
    return value


def number(value, name):
    """A finite number, as float. Raises ValueError for others."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f'{name} is no number')
    return float(value)


def find_period(spec):
    """The period of the task that a run names; None for a text, which is not opened for that."""
    if names_a_file(spec):
        return None
    return make_task(spec).period


def printable(text):
    """A text without what would move a terminal's cursor, or colour it."""
    return ''.join(char if char.isprintable() else '?' for char in text)
