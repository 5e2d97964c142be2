"""What figures leave alone, and where they cannot be written."""

import os
import subprocess
import sys

import pytest

from lab import plot
from lab.tests.conftest import ROOT
from model import UserError

matplotlib = pytest.importorskip('matplotlib')


def test_a_figure_leaves_the_users_settings_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    plt = plot.pyplot()
    figure, axes = plt.subplots(1, 2)
    plot.save(plt, figure, tmp_path / 'new/figure.png')
    assert dict(matplotlib.rcParams) == before
    assert not plt.get_fignums()
    assert (tmp_path / 'new/figure.png').read_bytes()[:4] == b'\x89PNG'


def test_a_figure_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / 'file').touch()
    plt = plot.pyplot()
    with pytest.raises(UserError, match='could not write .*file'):
        plot.save(plt, plt.subplots()[0], tmp_path / 'file/figure.png')


def test_a_backend_that_does_not_exist_is_a_line():
    code = 'from lab import plot; assert plot.pyplot() is None'
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | dict(MPLBACKEND='nosuch'))
    assert done.returncode == 0 and done.stderr.startswith('no figures: Key backend')


def test_without_matplotlib_a_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    assert plot.pyplot() is None
    assert capsys.readouterr().err.endswith('(pip install matplotlib)\n')
