import math

import pytest

from study import capture

HARMONIC = 2 * math.pi / 10


def test_a_path_has_the_turns_of_the_placed_pair_of_each_head(monkeypatch):
    def line(it, *pairs):  # one layer, two heads of three pairs
        return dict(iter=it, val_loss=1.0, Omega=[[[9.0, pair, 9.0] for pair in pairs]])

    step = 2 * math.pi / 32  # a turn more over 32 tokens
    lines = [line(0, HARMONIC - step, HARMONIC), line(50, HARMONIC, HARMONIC + step / 2)]
    monkeypatch.setattr(capture, 'read_run', lambda folder: dict(task='bio_rotation',
                                                                 block_size=32))
    monkeypatch.setattr(capture, 'read_validations', lambda folder: lines)
    found = capture.path('x')
    assert found['turns'] == [pytest.approx([-1, 0]), pytest.approx([0, 0.5])]
    assert found['updates'] == [0, 50]
