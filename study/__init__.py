"""
The study: two papers replicated, from the runs to the rows, the tables and the reports.

study/results/NAME.csv has the rows behind every table, as lab/runs.py describes them.
NAME.json has what a module of the study measured of these runs.
"""

import functools
import json
from pathlib import Path

from checkpoint import write_files
from lab import runs

RESULTS = Path(__file__).resolve().parent / 'results'


def read(name):
    """The rows of study/results/NAME.csv, a list of dicts of their own."""
    return [dict(row) for row in read_file(RESULTS / f'{name}.csv')]


@functools.cache
def read_file(path):
    return runs.read_table(path)


def read_json(name):
    """What study/results/NAME.json has: a dict, empty where there is no such file."""
    path = RESULTS / f'{name}.json'
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}


def write_json(name, found):
    """Write a dict to study/results/NAME.json, a line for each entry."""
    lines = ',\n'.join(f'{json.dumps(key)}: {json.dumps(value)}' for key, value in found.items())
    write_files(RESULTS, {f'{name}.json': f'{{\n{lines}\n}}\n'.encode()})
