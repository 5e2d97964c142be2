"""
Lesson 5: TAPA's score, for one query and one key. Replace each `...`, then

    python -m lessons.check 5

a is the amplitude, phi the phase, t = m - n the distance in tokens. `scale` is tapa_scale: 2 pi in
the paper, 1 in its authors' code.
"""

import math


def score(a, phi, t, alpha, scale):
    """a cos(...)"""
    return ...


def circles_of_a_step(t, alpha):
    """By how many circles does a phase of phi = 1 change from t to t + 1, for scale = 2 pi?"""
    return ...


def phi_one_token_back(scale):
    """The smallest phi above 0 whose cosine is -1 at t = 1."""
    return ...


def second_to_first(alpha):
    """A head looks one token back: a = -1, this phi. Its score at t = 2, over that at t = 1?"""
    return ...


def smallest_phi(period):
    """
    alpha = 1, scale = 2 pi. The smallest phi above 0 that gives the distances period, 2 period, ...
    the score of distance 0, and half a period the opposite one. `period` is even.
    """
    return ...
