"""The film of a run: its hands are what the log says, and a run without any is one line."""

import math

import numpy as np
import pytest

from lab import animate
from lab.tests.conftest import Run
from model import UserError

pytest.importorskip('matplotlib')
HARMONIC = 2 * math.pi / 10
LINES = [dict(iter=i, val_loss=1.0) for i in (0, 20)]
# Omega, A and Phi of two pairs, (evaluations, pairs)
HANDS = [np.array(2 * [values]) for values in ([0.6, HARMONIC + 2e-4], [1.0, 2.0], [0.1, 0.2])]


def test_a_run_becomes_a_page_with_a_picture_for_each_frame(tmp_path):
    run = Run(tmp_path / 'run').train('--attention=rope,bifocal', '--n_layer=2',
                                       '--task=bio_rotation:period=3')
    animate.main([str(run.folder)])
    page = (run.folder / 'animation.html').read_text(encoding='utf-8')
    validations = [line for line in run.log() if 'val_loss' in line]
    assert page.count('data:image/png') == len(validations) - 1 + 2 * 3 + 1


def test_the_hands_are_the_last_line_of_the_log(tmp_path):
    run = Run(tmp_path / 'run').train('--attention=rope,bifocal', '--n_layer=2')
    _, lines, hands = animate.read_run(run.folder)
    last = [line for line in run.log() if 'val_loss' in line][-1]
    assert lines[-1]['iter'] == last['iter']
    for name, values in zip(('Omega', 'A', 'Phi'), hands):
        assert np.array_equal(values[-1], np.ravel(last[name][1]))


def test_a_hand_is_at_m_Omega_plus_Phi_and_as_long_as_A():
    figure, draw, _ = animate.film('bio_rotation', LINES, HANDS)
    draw((1, 13))
    hand, _ = figure.axes[0].lines
    assert list(hand.get_xdata()) == [0, 13 * 0.6 + 0.1] and list(hand.get_ydata()) == [0, 1]


def test_a_locked_hand_is_thick():
    figure, draw, _ = animate.film('bio_rotation', LINES, HANDS)
    draw((1, 13))
    free, locked = figure.axes[0].lines
    assert locked.get_linewidth() > free.get_linewidth()


def test_a_long_run_is_thinned_and_keeps_its_last_evaluation(tmp_path, monkeypatch):
    monkeypatch.setattr(animate, 'MOST', 2)
    run = Run(tmp_path / 'run').train('--attention=spectral', '--eval_interval=1')
    _, lines, _ = animate.read_run(run.folder)
    assert [line['iter'] for line in lines] == [2, 6]


def test_a_run_that_has_nothing_to_show_is_one_line(tmp_path):
    with pytest.raises(UserError, match='none/config.json cannot be read'):
        animate.main([str(tmp_path / 'none')])
    run = Run(tmp_path / 'rope').train('--attention=rope')
    with pytest.raises(UserError, match='no learned frequencies'):
        animate.main([str(run.folder)])
