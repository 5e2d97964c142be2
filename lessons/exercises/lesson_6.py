"""
Lesson 6: beyond the training length. Replace each `...`, then

    python -m lessons.check 6
"""

import math


def phase_error(turn, period, error):
    """Omega is 2 pi h / period + error, h whole. By how many radians is turn 1, 2, ... wrong?"""
    return ...


def turn_half_a_letter_wrong(period, error):
    """
    A cosine with a period of `period` tokens: at which turn, as a number with decimals, is its peak
    half a token away from the right letter? The error may be negative, the turn may not.
    """
    return ...


def weight(ahead, keys):
    """One key has a score that is `ahead` of the keys - 1 others. Its weight in the softmax?"""
    return ...


def ahead_with_log_scale(ahead, length, m):
    """The same lead at position m, if log_scale_length = length multiplies the scores."""
    return ...
