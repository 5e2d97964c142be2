"""Each mistake of lesson 8 breaks the property that finds it, and the right code keeps it."""

import math
import re
from pathlib import Path

import pytest
import torch

from lessons import mistakes
from model import RoPE
from tests.conftest import script

LESSONS = Path(__file__).resolve().parent.parent
PAGE = LESSONS / '8_mistakes.md'


def test_weights_for_neighbours_need_their_rows_permuted():
    """1. After the permutation of W_q and W_k, the scores are those of the other layout."""
    assert mistakes.layout(mistakes.HALVES) < 1e-4
    assert mistakes.layout(mistakes.UNCHANGED) > 1


def test_pairs_and_angles_belong_together():
    """1. With the angles of neighbours, the pairs of halves do not see the distance alone."""
    theta = mistakes.THETA
    assert mistakes.mixed_pairs(theta.repeat(2)) < 1e-3
    assert mistakes.mixed_pairs(theta.repeat_interleave(2)) > 1


def test_keys_rotate_in_the_direction_of_queries():
    """2. Otherwise the score depends on m + n."""
    assert mistakes.sign_of_key(1) < 1e-3
    assert mistakes.sign_of_key(-1) > 1
    q, k = mistakes.random(2, 1, mistakes.HEAD_SIZE)
    m, n = mistakes.POSITION, mistakes.T - mistakes.POSITION
    # m + n = T stays
    assert mistakes.spread(mistakes.rotate(q, m), mistakes.rotate(k, -n)) < 1e-3


def test_queries_and_keys_may_both_rotate_backwards():
    """2. Then the score depends on n - m."""
    q, k = mistakes.random(2, 1, mistakes.HEAD_SIZE)
    n = mistakes.POSITION
    assert mistakes.spread(mistakes.rotate(q, -n - 5), mistakes.rotate(k, -n)) < 1e-3


def test_frequencies_fall_from_1():
    """2. With base^(+2i/hs) they rise from 1."""
    assert mistakes.THETA[0] == 1 and mistakes.THETA.diff().max() < 0
    assert mistakes.slowest_pair(-1) == pytest.approx(mistakes.THETA[-1].item())
    assert mistakes.slowest_pair(1) > 1


def test_each_position_has_its_own_angles():
    """3. bfloat16 has 8 bits: it rounds 257 to 256, and every odd number above."""
    assert mistakes.different_tokens(torch.float32) == mistakes.T
    # 0 to 256; 258, 260, ..., 512
    assert mistakes.different_tokens(torch.bfloat16) == 257 + 128
    assert torch.tensor(256).bfloat16() == torch.tensor(257).bfloat16()


def test_a_cache_gives_the_scores_without_a_cache():
    """4. A cached key rotates once, by its own position."""
    assert mistakes.cached_keys() < 1e-3
    assert mistakes.cached_keys(again=True) > 1
    assert mistakes.cached_keys(restart=True) > 1


def test_the_gain_of_yarn_comes_once():
    """5. YaRN's paper wants scores times (0.1 ln(factor) + 1)^2, here for a factor of 16."""
    gain = 0.1 * math.log(16) + 1
    assert mistakes.yarn_gain('rope_yarn') == pytest.approx(gain**2, rel=1e-5)
    assert mistakes.yarn_gain('rope_yarn', again=True) == pytest.approx(gain**4, rel=1e-5)
    assert mistakes.yarn_gain('rope') == pytest.approx(1, rel=1e-5)


def test_ntk_leaves_the_fastest_pair_as_it_is():
    """6. And makes the slowest slower by the factor."""
    assert mistakes.fastest_pair(scaled=False) == pytest.approx(1)
    assert mistakes.fastest_pair(scaled=True) == pytest.approx(2)
    theta = RoPE(mistakes.config(frequencies='ntk:factor=2')).theta
    assert theta[-1] == pytest.approx(mistakes.THETA[-1].item() / 2, rel=1e-4)


def test_yarn_needs_the_original_length():
    """
    7. A pair that makes no circle in the 512 tokens of training never has a larger angle at
    8192 tokens, with the factor 16. Told 8192, YaRN leaves some of these pairs as fast as before.
    """
    slow = mistakes.THETA * 512 < 2 * math.pi

    def grows(original):
        frequencies = f'yarn:factor=16,original={original}'
        theta = RoPE(mistakes.config(frequencies=frequencies)).theta
        return (theta * 8192)[slow] > 1.001 * (mistakes.THETA * 512)[slow]
    assert not grows(512).any()
    assert grows(8192).any()
    assert mistakes.slowed_pairs(8192) < mistakes.slowed_pairs(512)


@pytest.mark.parametrize('distance', [0, 1, 5, 50, 511])
def test_scores_of_random_queries_and_keys_do_not_decay(distance):
    """8. Their mean is 0 and their size 1 at every distance: five standard errors."""
    mean, size = mistakes.random_scores(distance)
    assert abs(mean) < 5 / math.sqrt(100_000)
    assert size == pytest.approx(1, abs=0.02)


def test_only_the_bound_decays():
    """8. The bound falls. With q = k the score falls and rises."""
    bounds = [mistakes.bound(distance) for distance in (0, 5, 50, 511)]
    assert bounds[0] == pytest.approx(1)
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.5
    assert mistakes.T / 4 < mistakes.rises() < 3 * mistakes.T / 4


def test_the_solution_of_the_exercise():
    """A key rotated by 50 positions before RoPE has its largest score at the distance 50."""
    q = mistakes.random(1, mistakes.HEAD_SIZE)
    k = mistakes.rotate(q, torch.tensor([50]))
    scores = (mistakes.rotate(q, mistakes.POSITION) * k).sum(dim=-1)  # of a key at position 0
    assert scores.argmax() == 50
    assert scores[50] == pytest.approx(q.square().sum().item(), rel=1e-4)


def numbers(text):
    """[wrong, right] of each line of the table."""
    lines = re.findall(r'^\d .* ([\d.]+) +([\d.]+)$', text, flags=re.MULTILINE)
    return [float(number) for line in lines for number in line]


def test_the_command_prints_the_table_of_the_lesson():
    page = PAGE.read_text(encoding='utf-8')
    command = re.search(r'^```sh\npython (\S+)$', page, flags=re.MULTILINE).group(1)
    done = script(command)
    assert len(numbers(done.stdout)) == 2 * len(mistakes.table())
    assert numbers(done.stdout) == pytest.approx(numbers(page), rel=0.02, abs=0.02)
