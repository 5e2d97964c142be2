"""The checker of attentions passes what is right, and each check fails for what it names."""

import math

import pytest
import torch
import torch.nn as nn

from lab import LAB_ATTENTIONS
from lessons import check_attention
from model import ATTENTIONS, Attention, RoPE, UserError, distances, rotate_pairs
from tests.conftest import PAGE

CHECKS = [check.__name__.removeprefix('check_') for check in check_attention.CHECKS]


def plain(q, k):
    """The scores without positions."""
    return q @ k.mT / math.sqrt(q.size(-1))


def mine(base=Attention, init=None, **methods):
    """An attention with these methods. init(self, config) runs at the end of its `__init__`."""
    def __init__(self, config):
        super(cls, self).__init__(config)
        init(self, config)

    cls = type('Mine', (base,), methods | (dict(__init__=__init__) if init else {}))
    return cls


def biased(bias, init=None, **methods):
    """The score less bias(self, q, k) for each token of distance."""
    def scores(self, q, k):
        return plain(q, k) - bias(self, q, k) * distances(q, k)
    return mine(init=init, scores=scores, **methods)


def learns(value):
    """An `init` that makes the parameter `table`: value(config)."""
    return lambda self, config: setattr(self, 'table', nn.Parameter(value(config)))


def heads(config):
    return torch.zeros(config.n_head, 1, 1)


def read(self, q, k):
    return self.table


class Own(Attention):
    """Right: `attend` once more. A subclass may say in another way which keys are later."""

    def attend(self, q, k, v):
        scores = plain(q, k).masked_fill(self.later(q, k), float('-inf'))
        return scores.softmax(dim=-1) @ v

    def later(self, q, k):
        return distances(q, k) < 0


def own(later):
    return mine(Own, later=lambda self, q, k: later(q, k))


def rounded(self, q, k, position):
    angle = position.to(q.dtype).float()[:, None] * self.theta
    return rotate_pairs(q, angle), rotate_pairs(k, angle)


def fused(self, q, k, v):
    """It leaves out what `scores` adds."""
    mask = distances(q, k) >= 0
    return nn.functional.scaled_dot_product_attention(q, k, v, mask)


RIGHT = {
    'slope': biased(lambda self, q, k: 0.1),
    'attend': Own,
    'learned': biased(read, learns(heads)),
    'scores in float64': mine(scores=lambda self, q, k: plain(q, k).double()),
}

WRONG = [  # what is wrong, the check that must find it, a part of what it says
    ('a misspelt method', 'changes', 'has: score', mine(score=lambda self, q, k: plain(q, k))),
    ('no return', 'shapes', 'return', mine(scores=lambda self, q, k: None)),
    ('no return in rotate', 'shapes', 'return q, k', mine(rotate=lambda self, q, k, position: q)),
    ('no self', 'shapes', '`self`', mine(scores=lambda q, k: plain(q, k))),
    ('no super().__init__', 'shapes', 'super().__init__(config)', mine(
        __init__=lambda self, config: setattr(self, 'table', nn.Parameter(torch.zeros(1))))),
    ('an option of train.py alone', 'shapes', 'GPTConfig of model.py',
     mine(init=lambda self, config: config.steepness)),
    ('a vector of heads', 'shapes', 'slope[:, None, None]',
     biased(lambda self, q, k: torch.ones(q.size(1)))),
    ('block_size x block_size', 'shapes', 'block_size',
     biased(read, learns(lambda config: torch.zeros(config.block_size, config.block_size)))),
    ('a root of negative distances', 'shapes', 'not finite',
     mine(scores=lambda self, q, k: plain(q, k) - distances(q, k)**0.5)),
    ('a query without keys', 'sizes', 'without keys', own(lambda q, k: distances(q, k) <= 0)),
    ('a short table', 'sizes', 'block_size', mine(
        init=learns(lambda config: torch.zeros(config.n_head, config.block_size)),
        scores=lambda self, q, k: plain(q, k) + self.table[:, distances(q, k).abs()])),
    ('dropout', 'causal', 'random numbers',
     mine(scores=lambda self, q, k: nn.functional.dropout(plain(q, k), 0.1))),
    ('a mean over strings', 'causal', 'alone',
     mine(scores=lambda self, q, k: plain(q - q.mean(dim=0), k))),
    ('one token more', 'causal', 'earlier', own(lambda q, k: distances(q, k) < -1)),
    ('another path', 'softmax', 'another result',
     biased(lambda self, q, k: 0.1, attend=fused)),
    ('queries from 0', 'cached', 'position', mine(
        scores=lambda self, q, k: plain(q, k) - (torch.arange(q.size(2))[:, None]
                                                 - torch.arange(k.size(2))).abs())),
    ('a list of parameters', 'hidden', 'ParameterList', biased(
        lambda self, q, k: self.list[0],
        lambda self, config: setattr(self, 'list', [nn.Parameter(torch.ones(1))]))),
    ('a detach', 'gradients', 'table has no gradient',
     biased(lambda self, q, k: self.table.detach(), learns(heads))),
    ('the root of 0', 'gradients', 'not finite',
     biased(lambda self, q, k: (0 * self.table).sqrt(), learns(heads))),
    ('random and not saved', 'saved', 'is not saved', biased(
        read, lambda self, config: setattr(self, 'table', torch.rand(config.n_head, 1, 1)))),
    ('a buffer in a call', 'saved', 'in `__init__`', biased(
        lambda self, q, k: self.register_buffer('late', torch.ones(1)) or self.late)),
    ('rounded positions', 'bfloat16', '256 from 257', mine(RoPE, rotate=rounded)),
]


# not those of a reader; and rope_yarn needs the option `frequencies`, and says so
@pytest.mark.parametrize('name', sorted({*PAGE, *LAB_ATTENTIONS} - {'rope_yarn'}))
def test_the_attentions_of_the_page_and_the_lab_pass(name, capsys):
    assert check_attention.check(name)
    assert capsys.readouterr().out.count(' ... yes\n') == len(CHECKS)


@pytest.mark.parametrize('attention', RIGHT.values(), ids=RIGHT)
def test_a_right_attention_passes(attention, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'mine', attention)
    assert check_attention.check('mine')


@pytest.mark.parametrize('check, said, attention', [case[1:] for case in WRONG],
                         ids=[case[0] for case in WRONG])
def test_a_mistake_is_found_by_its_check(check, said, attention, monkeypatch, capsys):
    """In one line, the last but one; no later check says anything."""
    monkeypatch.setitem(ATTENTIONS, 'mine', attention)
    one = getattr(check_attention, f'check_{check}')
    assert not check_attention.run_checks([one], 'mine')
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and said in lines[1]


def test_it_stops_at_the_first_mistake(monkeypatch, capsys):
    monkeypatch.setitem(ATTENTIONS, 'mine', mine(scores=lambda self, q, k: q * math.nan))
    with pytest.raises(SystemExit, match='1'):
        check_attention.main(['mine'])
    assert capsys.readouterr().out.count('...') == 1
    with pytest.raises(UserError, match='other=YourClass'):
        check_attention.check('other')
