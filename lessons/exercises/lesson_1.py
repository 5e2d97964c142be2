"""
Lesson 1: what does a model without positions know? Replace each `...`, then

    python -m lessons.check 1
"""

import math


def mean_of_values(v, m):
    """All scores are equal. v is a list of numbers, one a token. What does attention give at m?"""
    return ...


def depth(brackets, starts):
    """
    The two means of the lesson: 1 for an opener, -1 for a closer, 0 for ^; and 0, 0, 1. How many
    brackets are open?
    """
    return ...


def best_loss(counts):
    """
    A strand has so many of each letter, such as [2, 3, 4, 1]; none is 0. The best loss of a model
    that knows these counts and no more, in nats. Try math.log.
    """
    return ...


def best_accuracy(counts):
    """The share of its answers that are right, if it always gives the best one."""
    return ...
