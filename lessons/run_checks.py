"""What both checkers share: the command, a line for each check, an error in one line."""

import argparse
import sys
import traceback


def run_command(check, prog, documentation, argument, arguments):
    """
    check(word) of the one word of the command line `arguments` (default: sys.argv). `argument` is
    its name and what it means. Exits with 1 if a check fails.
    """
    parser = argparse.ArgumentParser(prog=f'python -m lessons.{prog}', description=documentation,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    name, meaning = argument
    parser.add_argument(name, help=meaning)
    if check(getattr(parser.parse_args(arguments), name)):
        sys.exit(1)


def run_checks(checks, subject):
    """
    Print the docstring of each check and whether check(subject) found a mistake: None, or words.
    Returns how many did. An error is raised, unless an earlier mistake may be its cause.
    """
    failed = 0
    for check in checks:
        print(f'{check.__doc__} ... ', end='', flush=True)
        try:
            wrong = check(subject)
        except Exception as error:
            if failed == 0:
                raise
            wrong = in_words(error)
        print('yes' if wrong is None else f'NO\n    {wrong}', flush=True)
        failed += wrong is not None
    if failed > 1:
        print('Mend the first mistake first: others may follow from it.')
    return failed


def in_words(error):
    """
    An error in one line, and the last line of code outside of packages, where it came from:
    'IndexError: index 8 is out of range (line 325 of model.py)'.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if '-packages' not in frame.filename]
    file = own[-1].filename.replace('\\', '/').rpartition('/')[2]
    text = ' '.join(str(error).split())
    return f'{type(error).__name__}: {text} (line {own[-1].lineno} of {file})'
