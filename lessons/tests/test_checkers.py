"""The checkers pass what is right, and each check fails for what it names."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from lessons import check_attention, check_task
from model import ATTENTIONS, Attention, RoPE, UserError, distances
from tasks import TASKS, BioRotation, Modulo

# ---- attentions --------------------------------------------------------------------------------


class Slope(Attention):
    """Right: the score less a tenth for each token of distance."""

    def scores(self, q, k):
        return super().scores(q, k) - 0.1 * distances(q, k)


class OneHead(Slope):
    """Its scores have no dimension for the heads."""

    def scores(self, q, k):
        return super().scores(q, k)[:, 0]


class Root(Attention):
    """The root of a negative distance is no number."""

    def scores(self, q, k):
        return super().scores(q, k) - distances(q, k) ** 0.5


class Unmasked(Attention):
    def attend(self, q, k, v):
        return self.scores(q, k).softmax(dim=-1) @ v


class Backwards(RoPE):
    """Its faster path rotates the wrong way, and the keys not at all."""

    def rotate(self, q, k, position):
        return super().rotate(q, k, -position)[0], k


class FromZero(Attention):
    """It counts the positions of the queries from 0, so they are wrong after a cache."""

    def scores(self, q, k):
        m, n = torch.arange(q.size(2)), torch.arange(k.size(2))
        return super().scores(q, k) - 0.1 * (m[:, None] - n).abs()


class Forgotten(Attention):
    """Random numbers that are no parameter and no buffer."""

    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.rand(config.n_head, 1, 1)

    def scores(self, q, k):
        return super().scores(q, k) - self.slope * distances(q, k)


class Detached(Attention):
    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.nn.Parameter(torch.ones(config.n_head, 1, 1))

    def scores(self, q, k):
        return super().scores(q, k) - self.slope.detach() * distances(q, k)


class Hidden(Attention):
    """A list hides its parameters."""

    def __init__(self, config):
        super().__init__(config)
        self.slopes = [torch.nn.Parameter(torch.ones(())) for _ in range(config.n_head)]

    def scores(self, q, k):
        slope = torch.stack(self.slopes)[:, None, None]
        return super().scores(q, k) - slope * distances(q, k)


@pytest.mark.parametrize('name', list(ATTENTIONS))
def test_the_attentions_of_the_page_pass(name, capsys):
    assert check_attention.check(name) == 0
    assert capsys.readouterr().out.count(' ... yes\n') == len(check_attention.CHECKS)


@pytest.mark.parametrize('attention, check', [
    (OneHead, 'check_shapes'), (Root, 'check_finite'), (Unmasked, 'check_causal'),
    (Backwards, 'check_fast'), (FromZero, 'check_cached'), (Forgotten, 'check_saved'),
    (Detached, 'check_gradients'), (Hidden, 'check_hidden')],
    ids=lambda value: getattr(value, '__name__', value))
def test_a_check_finds_its_mistake(attention, check, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'mine', attention)
    assert getattr(check_attention, check)('mine')
    monkeypatch.setitem(ATTENTIONS, 'mine', Slope)
    assert getattr(check_attention, check)('mine') is None


def test_an_attention_that_fails_ends_with_1(monkeypatch, capsys):
    monkeypatch.setitem(ATTENTIONS, 'mine', Detached)
    with pytest.raises(SystemExit) as end:
        check_attention.main(['mine'])
    assert end.value.code == 1
    assert 'slope has no gradient' in capsys.readouterr().out


def test_an_attention_that_is_not_there_is_an_error_of_the_user():
    with pytest.raises(UserError, match='alibi=YourClass'):
        check_attention.check('alibi')


# ---- tasks -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Odd(BioRotation):
    """bio_rotation with the mistake that its parameter names."""
    mistake: str = ''
    name = 'odd'

    def __post_init__(self):
        super().__post_init__()
        if self.mistake == 'symbols':
            self.symbols = ['^', 'A', 'A', 'G', 'T', '.']
        if self.mistake == 'round':
            self.symbols = ['^', 'A', 'AA', 'G', 'T', '.']
        if self.mistake == 'chance':
            self.chance = 25
        if self.mistake == 'headline':
            self.headline = ('turn', 'first')
        if self.mistake == 'scored':
            self.min_length = 11

    def __str__(self):
        return 'bio_rotation' if self.mistake == 'name' else super().__str__()

    def sample(self, rng, batch, length, split='train'):
        if self.mistake == 'short':
            length = max(length, self.min_length)
        if self.mistake == 'seeds':
            rng = np.random.default_rng()
        return super().sample(rng, batch, length, split)

    def targets(self, x):
        y = super().targets(x)
        if self.mistake == 'shapes':
            return y.astype(np.int32)
        if self.mistake == 'range':
            y[:, -1] = 6
        if self.mistake == 'determined':  # the next letter of the strand, before it is read
            y[:, 0] = x[:, 1]
        return y

    def breakdown(self, x, y):
        if self.mistake == 'breakdown':
            return {'all': {'all': y >= -1}}
        return super().breakdown(x, y)


@pytest.fixture
def odd(monkeypatch):
    monkeypatch.setitem(TASKS, 'odd', Odd)


@pytest.mark.parametrize('spec', ['dyck', 'dyck:k=2,max_depth=3', 'bio_rotation', 'modulo', 'text'])
def test_the_tasks_of_the_page_pass(spec, capsys):
    assert check_task.check(spec) == 0
    assert capsys.readouterr().out.count(' ... yes\n') == len(check_task.CHECKS)


@pytest.mark.parametrize('mistake, check', [
    ('name', 'name'), ('shapes', 'shapes'), ('range', 'range'), ('symbols', 'symbols'),
    ('round', 'round_trip'), ('scored', 'scored'), ('short', 'short'), ('seeds', 'seeds'),
    ('determined', 'determined'), ('chance', 'chance'), ('breakdown', 'breakdown'),
    ('headline', 'breakdown')])
def test_a_check_of_a_task_finds_its_mistake(mistake, check, odd):
    one = getattr(check_task, f'check_{check}')
    assert one(Odd(mistake=mistake))
    assert one(Odd()) is None


def test_the_commonest_answer_is_compared_with_chance(capsys):
    class Lazy(Modulo):
        def inputs(self, rng, batch, length):
            return np.full((batch, length), 7)

        def targets(self, x):
            return np.zeros_like(x)

    check_task.describe(Lazy())
    assert 'right in 100.0%' in capsys.readouterr().out
    assert math.isclose(Lazy().chance, 1 / 7)
