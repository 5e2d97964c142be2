"""
The tables of the reports, from study/results alone.

    python -m study.report verdicts                 # print a Markdown table
    python -m study.report --write study/*.md       # put every table in its place in these files

A place is the lines between <!-- python -m study.report NAME --> and <!-- end -->.
"""

import re
from pathlib import Path

from checkpoint import write_files
from configurator import one_line_errors
from lab import board
from lab.options import make_parser
from lab.table import (best_loss, column, count, listed, markdown, quartiles, solved,
                       table_of_arms, updates)
from model import UserError
from study import (RESULTS, baselines, capture, claims, formulas, periods, phases, questions, read,
                   read_file, relay, sizes, text)

TRAINED_ON = 'RoPE, trained on'
PLACE = re.compile(r'(<!-- python -m study\.report (\w+) -->\n)(.*?)(<!-- end -->)', re.DOTALL)


def provenance():
    """Which machines made the rows of each CSV, when, in how much time, and at which commits."""
    lines = []
    for path in [*sorted(RESULTS.glob('*.csv')), board.STORED]:
        rows = [row for row in read_file(path) if not row.get('override')]
        machines = [', '.join(sorted({row[name] or 'unnamed' for row in rows}))
                    for name in ('processor', 'torch')]
        dates = sorted(row['date'][:10] for row in rows)
        commits = {row['commit'][:7] for row in rows}
        hours = sum(row['seconds'] for row in rows) / 3600
        lines.append([f'`{path.name}`', len(rows), f'{hours:.1f}', *machines,
                      f'{dates[0]} to {dates[-1]}', ', '.join(sorted(commits))])
    return markdown(['rows', 'runs', 'hours', 'processors', 'torch', 'dates', 'commits'], lines)


def main_job():
    """The README's main job, and its two runs of the strand."""
    return table_of_arms(read('main'), ['name'], {
        'seeds': listed(column('seed')), 'updates until solved': listed(column('solved_at')),
        'updates in all': lambda rows: str(rows[0]['max_iters']),
        'right on new strings (%)': listed(column('headline@64', 100), '.2f')})


def surgery():
    """Runs of RoPE that trained on, as they were or with learned frequencies."""
    rows = read('surgery')
    for row in rows:
        learned = 'Spectral, all weights' if row['learning_rate'] else 'Spectral, Ω, A, Φ alone'
        row['model'] = TRAINED_ON if row['attention'] == 'rope' else learned
    rows.sort(key=lambda row: (row['task'], row['model']))
    return table_of_arms(rows, ['task', 'model'], {
        'solved': count(solved), 'updates until solved': quartiles(updates, '.0f'),
        'loss (nats)': quartiles(best_loss, '.2g')},
        {f'against {TRAINED_ON}': lambda key: (key[0], TRAINED_ON)})


TABLES = dict(provenance=provenance, main_job=main_job, surgery=surgery)
for module in (baselines, board, capture, claims, formulas, periods, phases, questions, relay,
               sizes, text):
    TABLES |= module.TABLES


def table(name):
    """The text of a table. Raises UserError for an unknown one."""
    if name not in TABLES:
        raise UserError(f'no table {name}: there are {", ".join(TABLES)}')
    return TABLES[name]()


def filled(text):
    """A Markdown text with every table in its place."""
    return PLACE.sub(lambda match: match[1] + table(match[2]) + match[4], text)


def main(arguments=None):
    """Print or write the tables that the command line `arguments` (default: sys.argv) name."""
    parser = make_parser('study.report', __doc__)
    parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(TABLES))
    parser.add_argument('--write', nargs='+', type=Path, default=[], metavar='FILE.md')
    given = parser.parse_args(arguments)
    for path in given.write:
        if not path.is_file():
            parser.error(f'--write {path}: there is no such file')
        write_files(path.parent, {path.name: filled(path.read_text(encoding='utf-8')).encode()})
    for name in given.names:
        print(table(name))


if __name__ == '__main__':
    with one_line_errors():
        main()
