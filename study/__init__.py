"""
The study: two papers replicated, from the runs to the rows, the tables and the reports.

study/results/NAME.csv has the rows behind every table, as lab/runs.py describes them.
"""

import functools
from pathlib import Path

from lab import runs

RESULTS = Path(__file__).resolve().parent / 'results'


def read(name):
    """The rows of study/results/NAME.csv, a list of dicts of their own."""
    return [dict(row) for row in read_file(RESULTS / f'{name}.csv')]


@functools.cache
def read_file(path):
    return runs.read_table(path)
