"""The parser that the commands of the lab share."""

import argparse
from pathlib import Path


def make_parser(name, doc, runs=None):
    """
    A parser of `python -m NAME` whose help is the docstring of the file. `runs` is None, 1 or '+':
    how many folders of runs the command takes, as out_dir.
    """
    parser = argparse.ArgumentParser(
        prog=f'python -m {name}', description=doc, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    if runs:
        parser.add_argument('out_dir', nargs=runs, type=Path, help='folder of a run of train.py')
    return parser


def count(text, least=1):
    """The whole number that an option's text writes."""
    if not text.isdecimal() or not least <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f'{text}: must be a whole number from {least} to 1000000')
    return int(text)
