"""What figures leave alone, and where they cannot be written."""

import sys

import pytest

from lab import plot
from model import UserError

matplotlib = pytest.importorskip('matplotlib')


def test_a_figure_leaves_the_users_settings_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    plt = plot.pyplot()
    figure, axes = plt.subplots(1, 2)
    plot.save(figure, tmp_path / 'new/figure.png')
    assert dict(matplotlib.rcParams) == before
    assert not plt.get_fignums()
    assert (tmp_path / 'new/figure.png').read_bytes()[:4] == b'\x89PNG'


def test_a_figure_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / 'file').touch()
    plt = plot.pyplot()
    with pytest.raises(UserError, match='could not write .*file'):
        plot.save(plt.subplots()[0], tmp_path / 'file/figure.png')


def test_without_matplotlib_a_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    assert plot.pyplot() is None
    assert capsys.readouterr().err.endswith('(pip install matplotlib)\n')
