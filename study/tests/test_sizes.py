import math

import pytest

from study.sizes import circles_away


@pytest.mark.parametrize('base, T, period', [(10000, 64, 10), (500000, 32, 10), (30, 64, 9)])
def test_circles_away_is_the_nearest_start_to_a_harmonic(base, T, period):
    theta = [base ** (-2 * i / 32) for i in range(16)]
    harmonics = [2 * math.pi * k / period for k in range(1, period // 2 + 1)]
    gaps = [abs(omega - harmonic) for omega in theta for harmonic in harmonics]
    expected = T * min(gaps) / (2 * math.pi)
    assert circles_away(base, 32, T, period) == pytest.approx(expected, abs=1e-5)


def test_a_base_that_fits_is_no_circle_away():
    assert circles_away(1695, 32, 64, 10) < 1e-3 < circles_away(1695, 64, 64, 12)
