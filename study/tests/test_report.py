"""Every table of the reports is the one that its rows make."""

import pytest

from tests.conftest import ROOT
from model import UserError
from study import figures, report

REPORTS = [*sorted((ROOT / 'study').glob('*.md')), ROOT / 'README.md', ROOT / 'lab/speed.md']


@pytest.mark.parametrize('path', REPORTS, ids=lambda path: path.name)
def test_the_tables_of_a_report_are_what_its_rows_make(path):
    text = path.read_text()
    assert report.filled(text) == text


@pytest.mark.parametrize('name', figures.DRAWINGS)
def test_a_figure_was_drawn_from_the_rows_as_they_are(name):
    assert figures.digest(name).encode() in (figures.FIGURES / f'{name}.png').read_bytes()


def test_a_place_is_filled_and_an_unknown_one_is_an_error():
    text = 'a\n<!-- python -m study.report strands -->\nold\n<!-- end -->\nb'
    assert '| period | strands |' in report.filled(text) and 'old' not in report.filled(text)
    assert report.filled(text).startswith('a\n') and report.filled(text).endswith('-->\nb')
    with pytest.raises(UserError, match='no table nothing: there are provenance'):
        report.filled(text.replace('strands', 'nothing'))
