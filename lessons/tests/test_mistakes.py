"""The mistakes of lesson 8: the table of its page, and what the table does not show."""

import math
import re
from pathlib import Path

import pytest

from lessons import mistakes
from lessons.mistakes import POSITION, at_one_distance, rotate, spread

PAGE = Path(mistakes.__file__).parent / '8_mistakes.md'


def test_2_keys_rotate_in_the_direction_of_queries():
    """Otherwise the score depends on m + n. If both rotate backwards, on n - m: as good."""
    assert spread(at_one_distance(rotate, mistakes.backwards)) > 1
    assert spread(at_one_distance(mistakes.backwards, mistakes.backwards)) < 1e-3
    q, k = mistakes.random(2, 1, mistakes.HEAD_SIZE)
    n = mistakes.T - POSITION  # m + n = T stays
    assert spread((rotate(q, POSITION) * mistakes.backwards(k, n)).sum(dim=-1)) < 1e-2


def test_8_scores_of_random_queries_and_keys_do_not_decay():
    """Their mean is 0 and their size 1 at every distance: five standard errors."""
    for mean, size in map(mistakes.random_scores, (0, 5, 511)):
        assert abs(mean) < 5 / math.sqrt(100_000) and size == pytest.approx(1, abs=0.02)


def test_the_page_has_the_table_that_the_command_prints():
    rows = re.findall(r'^\d .* ([\d.]+) +([\d.]+)$', PAGE.read_text(encoding='utf-8'), re.MULTILINE)
    page = [float(number) for row in rows for number in row]
    measured = [number for *_, wrong, right in mistakes.measured_mistakes()
                for number in (wrong, right)]
    assert page == pytest.approx(measured, rel=0.02, abs=0.02)
