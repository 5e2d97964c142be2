"""What both checkers share: a line for each check."""


def run_checks(checks, subject):
    """
    Print the docstring of each check and whether check(subject) found a mistake: None, or words.
    Returns how many did.
    """
    failed = 0
    for check in checks:
        print(f'{check.__doc__} ... ', end='', flush=True)
        wrong = check(subject)
        print('yes' if wrong is None else f'NO\n    {wrong}', flush=True)
        failed += wrong is not None
    return failed
