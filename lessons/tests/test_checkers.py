"""The checkers pass what is right, and each check fails for what it names."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from lessons import check_attention, check_task
from lessons.run_checks import run_checks
from model import ATTENTIONS, Attention, RoPE, UserError, distances, rotate_pairs
from tasks import TASKS, BioRotation, Dyck, Modulo, make_task

# ---- attentions --------------------------------------------------------------------------------


def plain(q, k):
    """The scores without positions."""
    return q @ k.mT / math.sqrt(q.size(-1))


class Slope(Attention):
    """Right: the score less a tenth for each token of distance."""

    def scores(self, q, k):
        return plain(q, k) - 0.1 * distances(q, k)


class Misspelt(Attention):
    """Nobody calls it."""

    def score(self, q, k):
        return plain(q, k) - 0.1 * distances(q, k)


class MisspeltInRoPE(RoPE):
    def __init__(self, config):
        super().__init__(config)
        self.register_buffer('slope', torch.ones(config.n_head, 1, 1))

    def rotates(self, q, k, position):
        return q, k


class OtherBase(RoPE):
    """Right: it changes theta alone."""

    def __init__(self, config):
        super().__init__(config)
        self.theta /= 2


class VectorOfHeads(Attention):
    """Its slopes stand where the keys are."""

    def scores(self, q, k):
        return plain(q, k) - torch.ones(q.size(1)) * distances(q, k)


class OneHead(Slope):
    """Its scores have no dimension for the heads."""

    def scores(self, q, k):
        return plain(q, k)[:, 0]


class Root(Attention):
    """The root of a negative distance is no number."""

    def scores(self, q, k):
        return plain(q, k) - distances(q, k) ** 0.5


class Float64(Attention):
    """numpy's numbers have 64 bits, which some devices lack."""

    def scores(self, q, k):
        return plain(q, k) - torch.from_numpy(np.full(1, 0.1)) * distances(q, k)


class Own(Attention):
    """Right: `attend` once more, with a mask that a subclass may replace."""

    def attend(self, q, k, v):
        group = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = plain(q, k).masked_fill(self.later(q, k), float('-inf'))
        return scores.softmax(dim=-1) @ v

    def later(self, q, k):
        return distances(q, k) < 0


class Unmasked(Own):
    def later(self, q, k):
        return torch.zeros_like(distances(q, k), dtype=torch.bool)


class NotItself(Own):
    def later(self, q, k):
        return distances(q, k) <= 0


class OneMore(Own):
    """Off by one: a query sees the next token."""

    def later(self, q, k):
        return distances(q, k) < -1


class InBlocks(Own):
    """A query sees its block of four tokens, also the later ones."""

    def later(self, q, k):
        position = torch.arange(k.size(2), device=k.device) // 4
        return position[-q.size(2):, None] < position


class OnTheCPU(Own):
    """The mask is made without device=."""

    def later(self, q, k):
        position = torch.arange(k.size(2))
        return position[-q.size(2):, None] < position


class NoOffset(Own):
    """The mask is right without a cache."""

    def later(self, q, k):
        return torch.ones_like(distances(q, k)).tril() == 0


class Repeated(Own):
    """Query heads 0 and 2 share key head 0, where they should be 0 and 1."""

    def attend(self, q, k, v):
        group = q.size(1) // k.size(1)
        return super().attend(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1))


class Batched(Attention):
    """The mean is one over the strings, too."""

    def scores(self, q, k):
        return plain(q - q.mean(dim=0), k)


class FourHeads(Attention):
    """It has a slope for four heads, however many there are."""

    def scores(self, q, k):
        slope = torch.tensor([0.1, 0.2, 0.3, 0.4], device=q.device)
        return plain(q, k) - slope[:, None, None] * distances(q, k)


class ShortTable(Attention):
    """It learns a score for each distance in a training string, and fails on longer ones."""

    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Parameter(torch.zeros(config.n_head, config.block_size))

    def scores(self, q, k):
        return plain(q, k) + self.table[:, distances(q, k).abs()]


class FirstOnly(Attention):
    """It divides by the size of the scores that it saw first."""
    size = None

    def scores(self, q, k):
        scores = plain(q, k)
        if self.size is None:
            self.size = scores.detach().std()
        return scores / self.size


class FirstMask(Attention):
    """It keeps the distances of its first string."""
    kept = None

    def scores(self, q, k):
        if self.kept is None:
            self.kept = distances(q, k)
        return plain(q, k) - 0.1 * self.kept


class Random(Attention):
    def scores(self, q, k):
        return torch.nn.functional.dropout(plain(q, k), 0.1)


class Seeds(Attention):
    def __init__(self, config):
        torch.manual_seed(0)
        super().__init__(config)


class Rounded(RoPE):
    """Its positions have the dtype of q before they are angles."""

    def rotate(self, q, k, position):
        angle = position.to(q.dtype).float()[:, None] * self.theta
        return rotate_pairs(q, angle), rotate_pairs(k, angle)


class OtherPath(Slope):
    """Its faster path leaves the slope out."""

    def attend(self, q, k, v):
        mask = distances(q, k) >= 0
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


class FromZero(Attention):
    """It counts the positions of the queries from 0, so they are wrong after a cache."""

    def scores(self, q, k):
        m, n = torch.arange(q.size(2)), torch.arange(k.size(2))
        return plain(q, k) - 0.1 * (m[:, None] - n).abs()


class Forgotten(Attention):
    """Random numbers that are no parameter and no buffer."""

    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.rand(config.n_head, 1, 1)

    def scores(self, q, k):
        return plain(q, k) - self.slope * distances(q, k)


class Plain(Attention):
    """A tensor that is no buffer, so it stays on the CPU."""

    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.ones(config.n_head, 1, 1)

    def scores(self, q, k):
        return plain(q, k) - self.slope * distances(q, k)


class Learned(Attention):
    """Right: it learns a slope for each head. A subclass may read it in another way."""

    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.nn.Parameter(torch.zeros(config.n_head, 1, 1))

    def scores(self, q, k):
        return plain(q, k) - self.read() * distances(q, k)

    def read(self):
        return self.slope


class Detached(Learned):
    def read(self):
        return self.slope.detach()


class ValuesDetached(Attention):
    def attend(self, q, k, v):
        return super().attend(q, k, v.detach())


class Infinite(Learned):
    """The root of 0 has an infinite slope."""

    def read(self):
        return (0 * self.slope).sqrt()


class Complex(Learned):
    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.nn.Parameter(torch.ones(config.n_head, 1, 1, dtype=torch.complex64))

    def read(self):
        return self.slope.real


class Hidden(Learned):
    """A list hides its parameters."""

    def __init__(self, config):
        super().__init__(config)
        self.slopes = [torch.nn.Parameter(torch.ones(())) for _ in range(config.n_head)]

    def read(self):
        return self.slope + torch.stack(self.slopes)[:, None, None]


class InADict(Learned):
    def __init__(self, config):
        super().__init__(config)
        self.more = {'slope': [torch.ones(1, requires_grad=True)]}

    def read(self):
        return self.slope + self.more['slope'][0]


class OfTheClass(Learned):
    shared = torch.nn.Parameter(torch.ones(1))

    def read(self):
        return self.slope + self.shared


class MadeInACall(Learned):
    def read(self):
        if not hasattr(self, 'late'):
            self.late = torch.nn.Parameter(torch.ones(1))
        return self.slope + self.late


class MadeInEachCall(Learned):
    def read(self):
        return self.slope + torch.nn.Parameter(torch.ones(1))


class ComputedOnce(Learned):
    """It computes with the parameter in `__init__`, where it has not learned yet."""

    def __init__(self, config):
        super().__init__(config)
        self.positive = self.slope.exp()

    def read(self):
        return self.positive


class ComputedFirst(Learned):
    kept = None

    def read(self):
        if self.kept is None:
            self.kept = self.slope.exp()
        return self.kept


class BufferInACall(Attention):
    def scores(self, q, k):
        self.register_buffer('distance', distances(q, k))
        return plain(q, k) - 0.1 * self.distance


# rope_yarn needs the option `frequencies`, and says so
@pytest.mark.parametrize('name', [name for name in ATTENTIONS if name != 'rope_yarn'])
def test_the_attentions_of_the_page_and_the_lab_pass(name, capsys):
    assert check_attention.check(name) == 0
    assert capsys.readouterr().out.count(' ... yes\n') == len(check_attention.CHECKS)


@pytest.mark.parametrize('attention', [Slope, Own, Learned, OtherBase])
def test_a_right_attention_passes(attention, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'mine', attention)
    assert check_attention.check('mine') == 0


@pytest.mark.parametrize('attention, check', [
    (Misspelt, 'changes'), (MisspeltInRoPE, 'changes'), (VectorOfHeads, 'shapes'),
    (OneHead, 'shapes'), (Float64, 'shapes'), (Root, 'finite'), (NotItself, 'finite'),
    (FourHeads, 'sizes'), (ShortTable, 'sizes'), (FirstOnly, 'calls'), (FirstMask, 'calls'),
    (Random, 'calls'), (Batched, 'causal'), (Unmasked, 'causal'), (OneMore, 'causal'),
    (InBlocks, 'causal'), (OtherPath, 'softmax'), (Repeated, 'softmax'), (FromZero, 'cached'),
    (NoOffset, 'cached'), (Forgotten, 'saved'), (Seeds, 'saved'), (MadeInACall, 'saved'),
    (BufferInACall, 'saved'), (Hidden, 'hidden'), (InADict, 'hidden'), (OfTheClass, 'hidden'),
    (MadeInACall, 'hidden'), (MadeInEachCall, 'hidden'), (ComputedOnce, 'hidden'),
    (ComputedFirst, 'hidden'), (Detached, 'gradients'), (ValuesDetached, 'gradients'),
    (Infinite, 'gradients'), (Complex, 'gradients'), (OnTheCPU, 'device'), (Plain, 'device'),
    (Rounded, 'bfloat16')],
    ids=lambda value: getattr(value, '__name__', value))
def test_a_check_finds_its_mistake(attention, check, monkeypatch):
    one = getattr(check_attention, f'check_{check}')
    with torch.no_grad():
        monkeypatch.setitem(ATTENTIONS, 'mine', attention)
        assert one('mine')
        monkeypatch.setitem(ATTENTIONS, 'mine', Slope)
        assert one('mine') is None


def test_what_replaces_nothing_is_named(monkeypatch, capsys):
    monkeypatch.setitem(ATTENTIONS, 'mine', Misspelt)
    assert check_attention.check('mine') == 1
    said = capsys.readouterr().out
    assert 'it is nope under another name' in said and 'What it has: score.' in said
    monkeypatch.setitem(ATTENTIONS, 'mine', MisspeltInRoPE)
    assert 'it is RoPE under another name' in check_attention.check_changes('mine')


def test_a_vector_of_heads_is_named(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'mine', VectorOfHeads)
    assert 'slope[:, None, None]' in check_attention.check_shapes('mine')


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

TABLES = itertools.count()  # so that no two tasks in a row have one table


@dataclasses.dataclass
class Odd(BioRotation):
    """bio_rotation with the mistake that its parameter names."""
    mistake: str = ''
    name = 'odd'

    def __post_init__(self):
        super().__post_init__()
        attributes = dict(
            key=dict(name='even'), twice=dict(symbols=['^', 'A', 'A', 'G', 'T', '.']),
            number=dict(symbols=[0, 1, 2, 3, 4, 5]),
            inside=dict(symbols=['^', 'A', 'AA', 'G', 'T', '.']), percent=dict(chance=25),
            float32=dict(chance=np.float32(0.25)), below=dict(chance=0.2),
            period=dict(period=np.int64(10)), headline=dict(headline=('turn', 'first')),
            unscored=dict(min_length=11), other_bos=dict(bos='A'), no_bos=dict(bos=''),
            narrow=dict(form=r'\^[ACG]{10}\.+'), wide=dict(form='.*'))
        vars(self).update(attributes.get(self.mistake, {}))
        if self.mistake == 'table':
            self.letters = np.roll(np.arange(4), next(TABLES))
        if self.mistake == 'global':
            np.random.seed(0)

    def __str__(self):
        return 'bio_rotation' if self.mistake == 'text' else super().__str__()

    def sample(self, rng, batch, length, split='train'):
        if self.mistake == 'short':
            length = max(length, self.min_length)
        if self.mistake == 'own_rng':
            rng = np.random.default_rng()
        if self.mistake == 'fixed_rng':
            rng = np.random.default_rng(0)
        if self.mistake == 'length':
            length = 24
        x, y = super().sample(rng, batch, length, split)
        if self.mistake == 'one_row':
            x, y = np.tile(x[:1], (batch, 1)), np.tile(y[:1], (batch, 1))
        if self.mistake == 'noise':
            y[:, -1] = rng.integers(1, 5, batch)
        return x, y

    def targets(self, x):
        y = super().targets(x)
        changes = dict(
            int32=lambda: y.astype(np.int32), too_large=lambda: np.where(y < 0, y, y + 2),
            ignore=lambda: np.where(y < 0, -100, y), view=lambda: y[:, ::-1],
            late=lambda: np.roll(y, 1, axis=1), early=lambda: np.roll(y, -1, axis=1),
            mixed=lambda: np.roll(y, 1, axis=0), wide=lambda: y + 0 * x[:, [self.period]],
            table=lambda: np.where(y < 0, y, 1 + self.letters[y - 1]))
        if self.mistake in changes:
            return changes[self.mistake]()
        if self.mistake == 'determined':  # the next letter of the strand, before it is read
            y[:, 0] = x[:, 1]
        if self.mistake == 'in_place':
            x[:, 1:11] = x[:, 10:0:-1].copy()
        return y

    def breakdown(self, x, y):
        odd = dict(everywhere={'all': y >= -1}, numbers={'all': y}, label={1: y >= 0})
        if self.mistake in odd:
            return {'all': odd[self.mistake]}
        return super().breakdown(x, y)


@dataclasses.dataclass
class OddDyck(Dyck):
    """dyck with a mistake in what follows a prompt."""
    mistake: str = ''
    name = 'odd_dyck'

    def __post_init__(self):
        super().__post_init__()
        self.generates = self.mistake != 'unused'

    def completion(self, x):
        if self.mistake == 'no_error' and x[1:2].max(initial=0) >= self.k:
            return self.nothing
        closers = super().completion(x)
        changes = dict(outer_first=closers[::-1], next_only=closers[:1], list=list(closers),
                       never=closers[:0])
        return changes.get(self.mistake, closers)


class Bare(Modulo):
    """Its parameter is none: the line above the class is missing."""
    more: int = 0


@dataclasses.dataclass
class Switch(Modulo):
    """Written as a text, False is read as True."""
    switch: bool = False
    name = 'switch'


@pytest.fixture
def odd(monkeypatch):
    for name, task in dict(odd=Odd, odd_dyck=OddDyck, switch=Switch, bare=Bare).items():
        monkeypatch.setitem(TASKS, name, task)


SPECS = [*TASKS, 'dyck:k=1', 'dyck:k=2,max_depth=3', 'bio_rotation:period=1', 'modulo:modulus=36',
         'noisy_modulo:noise=0.1', 'spacing:schedule=exponential', 'passkey:keys=4']


@pytest.mark.parametrize('spec', SPECS)
def test_the_tasks_of_the_page_and_the_lab_pass(spec, capsys):
    assert check_task.check(spec) == 0
    n = len(check_task.CHECKS)
    assert f'{n} of {n} checks pass' in capsys.readouterr().out


@pytest.mark.parametrize('mistake, check', [
    ('text', 'name'), ('key', 'name'), ('int32', 'arrays'), ('too_large', 'arrays'),
    ('ignore', 'arrays'), ('view', 'arrays'), ('length', 'arrays'), ('twice', 'symbols'),
    ('number', 'symbols'), ('inside', 'round_trip'), ('other_bos', 'form'), ('no_bos', 'form'),
    ('narrow', 'form'), ('wide', 'form'), ('mixed', 'targets'), ('in_place', 'targets'),
    ('noise', 'targets'), ('unscored', 'min_length'), ('short', 'min_length'),
    ('own_rng', 'random'), ('fixed_rng', 'random'), ('global', 'random'), ('table', 'random'),
    ('one_row', 'random'), ('determined', 'determined'), ('late', 'places'), ('early', 'places'),
    ('percent', 'chance'),
    ('float32', 'chance'), ('below', 'chance'), ('period', 'chance'),
    ('everywhere', 'breakdown'), ('numbers', 'breakdown'), ('label', 'breakdown'),
    ('headline', 'breakdown')])
def test_a_check_of_a_task_finds_its_mistake(mistake, check, odd):
    one = getattr(check_task, f'check_{check}')
    assert one(Odd(mistake=mistake))
    assert one(Odd()) is None


@pytest.mark.parametrize('mistake, check', [
    ('no_error', 'form'), ('outer_first', 'completion'), ('next_only', 'completion'),
    ('list', 'completion'), ('never', 'completion'), ('unused', 'completion')])
def test_a_mistake_in_what_follows_a_prompt_is_found(mistake, check, odd):
    one = getattr(check_task, f'check_{check}')
    assert one(OddDyck(mistake=mistake))
    assert one(OddDyck()) is None


def shift(y, places):
    """The answers y (B, T), so many places later; negative: earlier. -1 fills the gap."""
    shifted = np.roll(y, places, axis=1)
    shifted[:, 0 if places > 0 else -1] = -1
    return shifted


@pytest.mark.parametrize('spec, places, check', [
    ('dyck', 1, 'places'), ('dyck', -1, 'determined'), ('modulo', 1, 'places'),
    ('modulo', -1, 'determined'), ('sum', -1, 'determined'), ('lag', -1, 'determined')])
def test_answers_that_are_shifted_by_one_are_found(spec, places, check, monkeypatch):
    task = make_task(spec)
    one = getattr(check_task, f'check_{check}')
    assert one(task) is None
    right = type(task).targets
    monkeypatch.setattr(type(task), 'targets', lambda self, x: shift(right(self, x), places))
    assert one(task)


@pytest.mark.parametrize('places', [1, -1])
def test_a_text_asks_for_its_next_token(places, monkeypatch):
    task = make_task('text')
    assert check_task.check_places(task) is None
    x, y = check_task.sample(task, batch=100)
    monkeypatch.setattr(check_task, 'sample', lambda task: (x, shift(y, places)))
    assert check_task.check_places(task)


def test_answers_that_are_late_in_every_place_are_noted(monkeypatch, capsys):
    """No checker can know that the sum up to the token before is not what was wanted."""
    task = make_task('sum')
    check_task.describe(task)
    assert 'too late' not in capsys.readouterr().out
    right = type(task).targets
    monkeypatch.setattr(type(task), 'targets', lambda self, x: shift(right(self, x), 1))
    check_task.describe(task)
    assert 'too late' in capsys.readouterr().out


def test_parameters_that_make_task_cannot_read_are_found(odd):
    assert 'bool' in check_task.check_name(Switch())
    with pytest.raises(UserError, match='dataclass'):
        check_task.check('bare')


def test_an_error_keeps_its_traceback_unless_a_mistake_came_before(capsys):
    def wrong(subject):
        """a mistake"""
        return 'it is wrong'

    def broken(subject):
        """an error"""
        return subject.nothing

    with pytest.raises(AttributeError):
        run_checks([broken], 0)
    assert run_checks([wrong, broken], 0) == 2
    assert 'AttributeError' in capsys.readouterr().out


def test_the_commonest_answer_is_compared_with_chance(capsys):
    class Lazy(Modulo):
        def inputs(self, rng, batch, length):
            return np.full((batch, length), 7)

        def targets(self, x):
            return np.zeros_like(x)

    check_task.describe(Lazy())
    assert 'right in 100.0%' in capsys.readouterr().out
    assert math.isclose(Lazy().chance, 1 / 7)
