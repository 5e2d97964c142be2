import cmath
import math

import pytest

from study import capture

HARMONIC = 2 * math.pi / 10


def test_the_contrast_is_that_of_its_definition():
    def naive(frequency, T, period):
        on, off = [], []
        for tau in range(T - 1 - period):
            for letter in range(period):
                arrow = cmath.exp(1j * frequency * (period + tau - letter))  # their distance
                (on if letter == tau % period else off).append(arrow)
        return abs(sum(on) / len(on) - sum(off) / len(off))

    for frequency in (HARMONIC, 0.5, 0.1):
        assert capture.contrast(frequency, 50, 10) == pytest.approx(naive(frequency, 50, 10))
    assert capture.contrast(HARMONIC, 50, 10) > 1


def test_a_path_has_the_circles_of_the_placed_pair_of_each_head(monkeypatch):
    def line(it, *pairs):  # one layer, two heads of three pairs
        return dict(iter=it, val_loss=1.0, Omega=[[[9.0, pair, 9.0] for pair in pairs]])

    step = 2 * math.pi / 32  # a circle more over 32 tokens
    lines = [line(0, HARMONIC - step, HARMONIC), line(50, HARMONIC, HARMONIC + step / 2)]
    monkeypatch.setattr(capture, 'read_run', lambda folder: dict(
        task='bio_rotation', block_size=32, n_embd=12, n_head=2,
        frequencies='placed:pair=1,at=0.5'))
    monkeypatch.setattr(capture, 'read_validations', lambda folder: lines)
    found = capture.path('x')
    assert found['circles'] == [pytest.approx([-1, 0]), pytest.approx([0, 0.5])]
    assert found['updates'] == [0, 50]


@pytest.mark.parametrize('T, period', [(32, 10), (64, 10), (128, 10), (64, 8)])
def test_the_valley_is_one_circle_over_the_blanks(T, period):
    valley = capture.first_valley(T, period)
    assert valley == pytest.approx(T / (T - 1 - period), abs=0.1)
    frequency = capture.frequency_at(valley, T, period)
    assert capture.circles(frequency, T, period) == pytest.approx(valley)
    assert capture.contrast(frequency, T, period) < 0.06
