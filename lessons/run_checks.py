"""What both checkers share: a line for each check, an error in one line."""

import os
import re
import traceback

HINTS = {  # what an error may come from: part of its text, and what to look at
    r'Module.__init__\(\) call|no attribute .(config|qkv|proj)':
        'Begin `__init__` with super().__init__(config).',
    "'GPTConfig' object has no":
        'An option needs two lines: in GPTConfig of model.py, and the same name in train.py.',
    'NoneType': 'A method gives None: is its `return` missing?',
    r'positional argument|multiple values for argument':
        'Is `self` the first argument of each method, and are the others those of the base class?',
}


def run_checks(checks, subject):
    """
    Print the docstring of each check and whether check(subject) found a mistake: None, or words.
    The first mistake is the last line, for others may follow from it. Returns whether all pass.
    """
    for done, check in enumerate(checks):
        print(f'{check.__doc__} ... ', end='', flush=True)
        try:
            wrong = check(subject)
        except Exception as error:
            if os.environ.get('TRACEBACK'):
                raise
            wrong = in_words(error)
        if wrong:
            print(f'NO\n    {wrong}\n{done} of {len(checks)} checks pass; mend this one first')
            return False
        print('yes', flush=True)
    print(f'{len(checks)} of {len(checks)} checks pass')
    return True


def in_words(error):
    """
    An error in one line, where it came from outside of packages, and a hint if there is one:
    'IndexError: index 8 is out of range (line 325 of model.py).'
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if '-packages' not in frame.filename]
    file = own[-1].filename.replace('\\', '/').rpartition('/')[2]
    text = ' '.join(str(error).split())
    hints = [hint for part, hint in HINTS.items() if re.search(part, text)]
    said = f'{type(error).__name__}: {text} (line {own[-1].lineno} of {file}).'
    return ' '.join([said, *hints[:1]])
