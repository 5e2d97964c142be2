"""
Every table of the reports is the one that its rows make. Every row is a command of today, and every
command of a report has rows.
"""

import functools
import os
import shlex
import subprocess

import pytest

import train
from configurator import configure
from lab import runs, sweep
from model import UserError
from study import RESULTS, figures, read, report
from tests.conftest import ROOT, shell_blocks

PAGES = sorted((ROOT / 'study').glob('*.md'))
REPORTS = [*PAGES, RESULTS / 'README.md', ROOT / 'README.md', ROOT / 'lab/speed.md']
SHELL = '''
python() {  # the words of each sweep are written down; a setting that was chosen is read; no more
  case "$*" in
    "-m lab.sweep"*) printf '%q ' "${@:3}" >> "$SWEEPS"; echo >> "$SWEEPS" ;;
    "-m study.claims setting"*) command python "$@" ;;
  esac
}
'''


@pytest.mark.parametrize('path', REPORTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tables_of_a_report_are_what_its_rows_make(path):
    text = path.read_text(encoding='utf-8')
    assert report.filled(text) == text


@pytest.mark.parametrize('name', figures.DRAWINGS)
def test_a_figure_was_drawn_from_the_rows_as_they_are(name):
    assert figures.digest(name).encode() in (figures.FIGURES / f'{name}.png').read_bytes()


@pytest.mark.parametrize('name', sorted(path.stem for path in RESULTS.glob('*.csv')))
def test_every_row_is_a_command_of_today(name):
    for row in read(name):
        words = runs.shlex.split(runs.command(row))[2:]
        options, _ = configure(dict(vars(train)), words)
        assert {name: options[name] for name in runs.options_of(row)} == runs.options_of(row)


@functools.cache
def rows_of(table):
    return runs.read_table(ROOT / table)


@pytest.mark.parametrize('path', PAGES, ids=lambda path: path.name)
def test_every_sweep_of_a_report_can_be_made_and_has_rows(path, tmp_path):
    sweeps = tmp_path / 'sweeps'
    sweeps.touch()
    done = subprocess.run(['bash', '-c', SHELL + ''.join(shell_blocks(path))], cwd=ROOT, text=True,
                          capture_output=True, env=os.environ | dict(SWEEPS=str(sweeps)))
    assert not done.stderr
    for line in sweeps.read_text().splitlines():
        words = [word for word in shlex.split(line) if word != 'device=cuda']
        choices = sweep.read_arguments(words)
        planned = sweep.plan(choices.options, choices.table, choices.name, choices.multiples)
        for _, _, columns in planned:
            del columns['dtype'], columns['compile']  # those of a GPU are others
        if choices.table.parts[0] != 'out':
            assert any(sweep.is_of(row, columns) for row in rows_of(choices.table)
                       for _, _, columns in planned), f'no row is of lab.sweep {line}'


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
