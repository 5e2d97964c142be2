"""Each mistake of lesson 8 breaks the property that finds it, and the right code keeps it."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.frequencies import GainRoPE
from lessons import six_mistakes as six
from model import RoPE

LESSONS = Path(__file__).resolve().parent.parent
PAGE = LESSONS / '8_six_mistakes.md'


def test_weights_for_interleaved_pairs_need_their_rows_permuted():
    """1. After the permutation of W_q and W_k, the scores are those of the other layout."""
    assert six.layout(six.HALVES) < 1e-4
    assert six.layout(six.UNCHANGED) > 1


def test_queries_and_keys_have_the_same_pairs():
    """1. Both layouts see the distance only. A mixture sees more."""
    assert six.mixed_layouts(six.rotate_interleaved) < 1e-3
    assert six.mixed_layouts(six.rotate) > 1


def test_keys_rotate_in_the_direction_of_queries():
    """2. Otherwise the score depends on m + n."""
    assert six.sign_of_key(1) < 1e-3
    assert six.sign_of_key(-1) > 1
    q, k = six.random(2, 1, six.HEAD_SIZE)
    m, n = six.POSITION, six.T - six.POSITION
    assert six.spread(six.rotate(q, m), six.rotate(k, -n)) < 1e-3  # m + n = T stays


def test_each_position_has_its_own_angles():
    """3. bfloat16 has 8 bits: it rounds 257 to 256, and every odd number above."""
    assert six.different_tokens(torch.float32) == six.T
    assert six.different_tokens(torch.bfloat16) == 257 + 128  # 0 to 256; 258, 260, ..., 512
    assert torch.tensor(256).bfloat16() == torch.tensor(257).bfloat16()


def test_a_model_in_bfloat16_tells_all_positions_apart():
    """3. The angles of model.py stay in float32 when the weights do not."""
    attention = RoPE(six.CONFIG).bfloat16()
    k = six.random(1, 1, 1, six.HEAD_SIZE)
    _, keys = attention.rotate(k, k, six.POSITION)  # (1, 1, T, hs)
    assert len(keys[0, 0].unique(dim=0)) == six.T
    assert torch.equal(keys[0, 0], six.rotate(k, six.POSITION)[0, 0])


def test_a_cache_gives_the_scores_without_a_cache():
    """4. A cached key rotates once."""
    assert six.cached_keys(again=False) < 1e-3
    assert six.cached_keys(again=True) > 1


def test_the_gain_of_yarn_comes_once():
    """5. YaRN's paper wants scores times (0.1 ln(factor) + 1)^2, here for a factor of 16."""
    gain = 0.1 * math.log(16) + 1
    assert six.yarn_gain(GainRoPE, again=False) == pytest.approx(gain**2, rel=1e-5)
    assert six.yarn_gain(GainRoPE, again=True) == pytest.approx(gain**4, rel=1e-5)
    assert six.yarn_gain(RoPE, again=False) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize('distance', [0, 1, 5, 50, 511])
def test_scores_of_random_queries_and_keys_do_not_decay(distance):
    """6. Their mean is 0 and their size 1 at every distance: five standard errors."""
    mean, size = six.random_scores(distance)
    assert abs(mean) < 5 / math.sqrt(100_000)
    assert size == pytest.approx(1, abs=0.02)


def test_only_the_bound_decays():
    """6. The bound falls. With q = k the score falls and rises."""
    bounds = [six.bound(distance) for distance in (0, 5, 50, 511)]
    assert bounds[0] == pytest.approx(1)
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.5
    assert six.T / 4 < six.rises() < 3 * six.T / 4


def test_the_solution_of_the_exercise():
    """A key rotated by 50 positions before RoPE has its largest score at the distance 50."""
    q = six.random(1, six.HEAD_SIZE)
    k = six.rotate(q, torch.tensor([50]))
    scores = (six.rotate(q, six.POSITION) * k).sum(dim=-1)  # (T,), of a key at position 0
    assert scores.argmax() == 50
    assert scores[50] == pytest.approx(q.square().sum().item(), rel=1e-4)


def numbers(text):
    """[wrong, right] of each line of the table."""
    lines = re.findall(r'^\d .* ([\d.]+) +([\d.]+)$', text, flags=re.MULTILINE)
    return [float(number) for line in lines for number in line]


def test_the_command_prints_the_table_of_the_lesson():
    page = PAGE.read_text(encoding='utf-8')
    command = re.search(r'^```sh\npython (\S+)$', page, flags=re.MULTILINE).group(1)
    done = subprocess.run([sys.executable, command], cwd=LESSONS.parent, capture_output=True,
                          text=True, check=True)
    assert len(numbers(done.stdout)) == 2 * len(six.table())
    assert numbers(done.stdout) == pytest.approx(numbers(page), rel=0.02, abs=0.02)
