"""
Every table of the reports is the one that its rows make. Every row is a command of today, and every
command of a report has rows.
"""

import functools
import os
import re
import shlex
import subprocess

import pytest

import train
from configurator import configure
from lab import runs, sweep
from model import UserError
from study import RESULTS, figures, read, report
from tests.conftest import ROOT

PAGES = sorted((ROOT / 'study').glob('*.md'))
REPORTS = [*PAGES, ROOT / 'README.md', ROOT / 'lab/speed.md']
SHELL = '''
python() {  # the words of each sweep are written down; a setting that was chosen is read; no more
  case "$*" in
    "-m lab.sweep"*) printf '%q ' "${@:3}" >> "$SWEEPS"; echo >> "$SWEEPS" ;;
    "-m study.claims setting"*) command python "$@" ;;
  esac
}
'''


@pytest.mark.parametrize('path', REPORTS, ids=lambda path: path.name)
def test_the_tables_of_a_report_are_what_its_rows_make(path):
    text = path.read_text(encoding='utf-8')
    assert report.filled(text) == text


@pytest.mark.parametrize('name', figures.DRAWINGS)
def test_a_figure_was_drawn_from_the_rows_as_they_are(name):
    if not figures.has_rows(name):
        pytest.skip('its runs were not made yet')
    assert figures.digest(name).encode() in (figures.FIGURES / f'{name}.png').read_bytes()


@pytest.mark.parametrize('name', sorted(path.stem for path in RESULTS.glob('*.csv')))
def test_every_row_is_a_command_of_today(name):
    for row in read(name):
        words = runs.shlex.split(runs.command(row))[2:]
        options, _ = configure(dict(vars(train)), words)
        assert {name: options[name] for name in runs.options_of(row)} == runs.options_of(row)


class Planned(Exception):
    """A sweep was planned; it ends there."""


def columns_of_sweep(words, monkeypatch):
    """The columns of each run that `python -m lab.sweep` would make of these words."""
    found = []

    def plan(*arguments):
        found.extend(columns for _, _, columns in original(*arguments))
        raise Planned
    original = sweep.plan
    with monkeypatch.context() as patch, pytest.raises(Planned):
        patch.setattr(sweep, 'plan', plan)
        sweep.main([word for word in words if word != 'device=cuda'])
    return found


@functools.cache
def rows_of(table):
    return runs.read_table(ROOT / table)


@pytest.mark.parametrize('path', PAGES, ids=lambda path: path.name)
def test_every_sweep_of_a_report_can_be_made_and_has_rows(path, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, 'read_table', lambda table, missing: [])  # they are not needed
    blocks = re.findall(r'^```sh\n(.*?)^```$', path.read_text(encoding='utf-8'),
                        flags=re.MULTILINE | re.DOTALL)
    sweeps = tmp_path / 'sweeps'
    sweeps.touch()
    done = subprocess.run(['bash', '-c', SHELL + ''.join(blocks)], cwd=ROOT, text=True,
                          capture_output=True, env=os.environ | dict(SWEEPS=str(sweeps)))
    assert not done.stderr
    for line in sweeps.read_text().splitlines():
        table, *words = shlex.split(line)
        planned = columns_of_sweep([table, *words], monkeypatch)
        for columns in planned:
            del columns['dtype'], columns['compile']  # those of a GPU are others
        if not table.startswith('out/'):
            assert any(sweep.is_of(row, columns) for row in rows_of(table)
                       for columns in planned), f'no row is of lab.sweep {line}'


@pytest.mark.parametrize('name', ['map', 'verdict'])
def test_runs_that_are_compared_were_validated_and_ended_alike(name):
    for task in {row['task'] for row in read(name)}:
        alike = {(row['eval_interval'], row['stop_loss']) for row in read(name)
                 if row['task'] == task}
        assert len(alike) == 1


def test_a_place_is_filled_and_an_unknown_one_is_an_error():
    text = 'a\n<!-- python -m study.report strands -->\nold\n<!-- end -->\nb'
    assert '| period | strands |' in report.filled(text) and 'old' not in report.filled(text)
    assert report.filled(text).startswith('a\n') and report.filled(text).endswith('-->\nb')
    with pytest.raises(UserError, match='no table nothing: there are provenance'):
        report.filled(text.replace('strands', 'nothing'))
