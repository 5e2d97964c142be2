"""
Lesson 3: a pair with a learned frequency. Replace each `...`, then

    python -m lessons.check 3

q and k are complex numbers, one pair of a query at m and of a key at n. Leave out the 1 / sqrt(hs).
"""

import cmath
import math


def score(q, k, m, n, Omega, A, Phi):
    """A^2 Re[q conj(k) e^{1j (...)}]. Try q.conjugate() and z.real."""
    return ...


def derivative(q, k, m, n, Omega, A, Phi):
    """The derivative of this score in Omega. Try z.imag."""
    return ...


def nearest_harmonic(Omega, period):
    """The multiple of 2 pi / period that is nearest to a positive frequency."""
    return ...


def left_after_decay(rates, decay):
    """What share of Omega is left after one update at each of these learning rates?"""
    return ...


def relay(first, lag, n_layer):
    """
    Layer 1 reads the strand up to `first` tokens back. In each later layer a blank copies from
    the blank `lag` tokens back. How far back does a model of n_layer layers read the strand?
    """
    return ...
