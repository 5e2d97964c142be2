"""The film of a run: its hands are what the log says, and a run without any is one line."""

import math

import numpy as np
import pytest

from lab import animate
from model import UserError

pytest.importorskip('matplotlib')


def test_a_run_becomes_a_page_with_a_picture_for_each_frame(run):
    run = run().train('--attention=spectral', '--task=bio_rotation:period=3')
    animate.main([str(run.folder)])
    page = (run.folder / 'animation.html').read_text(encoding='utf-8')
    validations = [line for line in run.log() if 'val_loss' in line]
    assert page.count('data:image/png') == len(validations) - 1 + 2 * 3 + 1


def test_of_a_long_run_some_lines_are_shown_the_last_one_among_them(run, monkeypatch):
    monkeypatch.setattr(animate, 'MOST', 2)
    run = run().train('--attention=rope,bifocal', '--n_layer=2', '--eval_interval=1')
    _, updates, hands = animate.read_run(run.folder)
    last = [line for line in run.log() if 'val_loss' in line][-1]
    assert updates == [2, 6] and last['iter'] == 6
    for name, values in zip(('Omega', 'A', 'Phi'), hands):
        assert np.array_equal(values[-1], np.ravel(last[name][1]))


def test_a_hand_is_at_m_Omega_plus_Phi_and_as_long_as_A_and_a_locked_one_is_thick():
    hands = [np.array([pairs]) for pairs in ([0.6, math.pi / 5 + 2e-4], [1.0, -2.0], [0.1, 0.2])]
    figure, draw, _ = animate.film('bio_rotation', [0], hands)
    draw((0, 13))
    free, locked = figure.axes[0].lines
    assert list(free.get_xdata()) == [0, 13 * 0.6 + 0.1]
    assert list(free.get_ydata()) == [0, 1] and list(locked.get_ydata()) == [0, 2]
    assert locked.get_linewidth() > free.get_linewidth()


def test_a_run_that_has_nothing_to_show_is_one_line(run):
    with pytest.raises(UserError, match='no learned frequencies'):
        animate.main([str(run().train('--attention=rope').folder)])
