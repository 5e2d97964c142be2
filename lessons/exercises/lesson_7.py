"""
Lesson 7: penalties and gates. Replace each `...`, then

    python -m lessons.check 7
"""

import math


def slope(h, n_head):
    """ALiBi's slope of head h = 1, 2, ..., n_head."""
    return ...


def alibi(dot_product, m, n, slope):
    """The score of a query at m with a key at n. dot_product is q.k / sqrt(hs)."""
    return ...


def weight_ratio(t, slope):
    """The weight of a key t tokens back, over that of the query's own key; q.k is the same."""
    return ...


def forgetting(dot_product, m, n, gates):
    """The same with a gate for each token: a list of numbers from 0 to 1. Try math.log."""
    return ...


def greatest_angle(max_depth):
    """An opener turns by beta, a closer by -beta. Below which do depths 0 to max_depth differ?"""
    return ...
