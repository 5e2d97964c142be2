"""
Lesson 8: numbers that a test can hold. Replace each `...`, then

    python -m lessons.check 8
"""

import cmath
import math


def key_for(q, theta, distance):
    """q is a pair, a complex number. Which k of equal size has the greatest score at `distance`?"""
    return ...


def slowest(base, head_size):
    """RoPE's last frequency, in radians per token."""
    return ...


def exact_up_to(bits):
    """A number has so many bits for its digits. Up to which n are all positions 0 ... n exact?"""
    return ...


def gain_of_scores(factor):
    """YaRN multiplies q and k by 0.1 ln(factor) + 1. By what does it multiply the scores?"""
    return ...


def angle_of_cached_key(n, theta):
    """A key at n was rotated when the cache took it, and again when it was read. Its angle?"""
    return ...
