"""
The tables and figures of the trial, from lab/results alone.

    python -m lab.report claims                  # prints a Markdown table; some reports also draw lab/figures/NAME.png
    python -m lab.report                         # all of them
    python -m lab.report --write lab/bifocal.md  # puts the tables in their places in the file

A place is the lines between <!-- python -m lab.report NAME --> and <!-- end -->.
"""

import argparse
import contextlib
import io
import re
from pathlib import Path

from lab import figures, report_bifocal, report_crystal, report_settled, report_surgery, report_text, report_tuning

FIGURES = Path(__file__).resolve().parent / 'figures'
REPORTS = report_settled, report_bifocal, report_text, report_surgery, report_crystal, report_tuning
TABLES = {name: table for part in REPORTS for name, table in part.TABLES.items()}
DRAWINGS = {name: drawing for part in REPORTS for name, drawing in getattr(part, 'DRAWINGS', {}).items()}
PLACE = re.compile(r'(<!-- python -m lab\.report (\w+) -->\n)(.*?)(<!-- end -->)', re.DOTALL)


def table(name):
    """The Markdown of a report."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        TABLES[name]()
    return printed.getvalue().strip() + '\n'


def draw(name):
    """Draws lab/figures/NAME.png, if the report has a figure and matplotlib is there."""
    plt = figures.pyplot() if name in DRAWINGS else None
    figure = DRAWINGS[name](plt) if plt else None
    if figure:
        figures.save(plt, figure, FIGURES / f'{name}.png')


def filled(text):
    """A Markdown text with every table in its place. Raises ValueError for a place of an unknown report."""
    def one(match):
        if match[2] not in TABLES:
            raise ValueError(f'no report {match[2]}: there are {", ".join(TABLES)}')
        return match[1] + table(match[2]) + match[4]
    return PLACE.sub(one, text)


def main(arguments=None):
    """Prints, draws or writes the reports that the command line `arguments` (default: sys.argv) name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(TABLES))
    parser.add_argument('--write', nargs='+', type=Path, metavar='FILE.md', default=[], help='fill in their tables')
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(TABLES):
        parser.error(f'no report {", ".join(sorted(unknown))}: there are {", ".join(TABLES)}')
    for path in options.write:
        try:
            path.write_text(filled(path.read_text()))
        except (OSError, ValueError) as error:
            parser.error(f'--write {path}: {error}')
    for name in options.names or ([] if options.write else TABLES):
        if len(options.names) != 1:
            print(f'\n{name}: {" ".join(TABLES[name].__doc__.split())}\n')
        print(table(name), end='')
        draw(name)


if __name__ == '__main__':
    main()
