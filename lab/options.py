"""The parser that the commands of the lab share."""

import argparse


def make_parser(name, doc):
    """A parser of `python -m NAME` whose help is the docstring of the file."""
    return argparse.ArgumentParser(
        prog=f'python -m {name}', description=doc, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
