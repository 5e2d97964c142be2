"""The parser that the commands of the lab share."""

import argparse
import shlex


def make_parser(name, doc):
    """A parser of `python -m NAME` whose help is the docstring of the file."""
    return argparse.ArgumentParser(
        prog=f'python -m {name}', description=doc, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)


def count(text, least=1):
    """The whole number that an option's text writes."""
    if not text.isdecimal() or not least <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f'{text}: must be a whole number from {least} to 1000000')
    return int(text)


def command(*words):
    """A command to print, which a shell reads as these words."""
    return shlex.join(map(str, words))
