"""
Lesson 2: which pair fits the turns of a strand? Replace each `...`, then

    python -m lessons.check 2

A pair is a complex number. theta is its frequency in radians per token. A strand has `period`
letters, and its turns are at the distances period, 2 period, ..., n_turns period.
"""

import cmath
import math


def angle(turn, period, theta):
    """By how many radians has a pair rotated at the distance of turn 1, 2, ...?"""
    return ...


def on_the_turns(theta, period, n_turns):
    """The mean of e^{1j angle} over the turns 1 ... n_turns: a complex number. Try cmath.exp."""
    return ...


def off_the_turns(theta, period, n_turns):
    """The same mean over the distances 1, 2, ..., n_turns period that are no turn."""
    return ...


def contrast(theta, period, n_turns):
    """How much higher can the score of this pair be on the turns than off them, for r = 1?"""
    return ...


def theta_that_fits(period):
    """The smallest frequency above 0 whose angle is a multiple of 2 pi at every turn."""
    return ...
