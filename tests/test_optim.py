"""The optimizers: which parameter has which, with which rate and decay; and Muon."""

from types import SimpleNamespace

import pytest
import torch

from conftest import build
from model import ATTENTIONS, Attention
from optim import Muon, configure_optimizers

ARMS = ['rope', 'spectral', 'bifocal', 'tapa', 'nope', 'rope,spectral']
RATES = dict(learning_rate=1e-3, positional_lr=1e-2, muon_lr=0.02, weight_decay=0.1,
             beta1=0.9, beta2=0.99)
MATRICES = {'adamw': 'matrices', 'muon': 'matrices (Muon)'}
optimizers = pytest.mark.parametrize('optimizer', MATRICES)


def groups_of(model, optimizer):
    """{role: group}, and the name of the optimizer that a group is in as 'by'."""
    found = configure_optimizers(model, SimpleNamespace(optimizer=optimizer, **RATES))
    return {group['role']: dict(group, by=type(one).__name__)
            for one in found for group in one.param_groups}


@pytest.mark.parametrize('attention', ARMS)
@optimizers
def test_each_parameter_is_in_one_group_and_only_matrices_decay(attention, optimizer):
    model = build(attention=attention)
    groups = groups_of(model, optimizer)
    grouped = [p for group in groups.values() for p in group['params']]
    assert len(grouped) == len(set(grouped)) and set(grouped) == set(model.parameters())
    rates = {'embeddings, norms': 1e-3, 'matrices': 1e-3, 'matrices (Muon)': 0.02}
    for role, group in groups.items():
        assert group['weight_decay'] == (0.1 if role == 'matrices' else 0)
        assert group['lr'] == group['peak_lr'] == rates.get(role, 1e-2)
        assert group['by'] == ('Muon' if role == 'matrices (Muon)' else 'AdamW')
    linear = {module.weight for module in model.blocks.modules()
              if isinstance(module, torch.nn.Linear)}
    assert linear <= set(groups[MATRICES[optimizer]]['params'])
    assert model.embedding.weight in set(groups['embeddings, norms']['params'])
    assert model.lm_head.weight in set(groups['matrices']['params'])
    learns = attention in ('spectral', 'bifocal', 'rope,spectral')
    assert {'Omega', 'A', 'Phi'}.issubset(groups) == learns


class Mine(Attention):
    """A student's: an own parameter, a table, a matrix, a convolution, and one without a use."""

    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.nn.Parameter(torch.ones(2, 3))
        self.table = torch.nn.Embedding(5, 4)
        self.matrix = torch.nn.Linear(4, 6)
        self.filter = torch.nn.Conv1d(4, 4, 3)
        self.unused = torch.nn.Linear(4, 4)

    def rotate(self, q, k, position):
        used = [self.slope, self.table.weight, self.matrix.weight, self.matrix.bias,
                self.filter.weight, self.filter.bias]
        return q * (1 + sum(p.mean() for p in used)), k


@optimizers
def test_what_happens_to_a_students_parameters(optimizer, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'mine', Mine)
    model = build(attention='mine', n_layer=1)
    groups = groups_of(model, optimizer)
    role = {p: name for name, group in groups.items() for p in group['params']}
    mine = model.blocks[0].attention
    assert role[mine.slope] == 'slope' and groups['slope']['weight_decay'] == 0
    assert role[mine.table.weight] == role[mine.matrix.bias] == 'embeddings, norms'
    assert role[mine.matrix.weight] == MATRICES[optimizer]
    assert role[mine.filter.weight] == 'matrices'


@optimizers
def test_a_parameter_without_a_gradient_stays(optimizer, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'mine', Mine)
    model = build(attention='mine', n_layer=1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(*torch.randint(11, (2, 2, 9)))[1].backward()
    for one in configure_optimizers(model, SimpleNamespace(optimizer=optimizer, **RATES)):
        one.step()
    for name, p in model.named_parameters():
        unused = name.rpartition('.')[0].endswith('unused')
        assert torch.equal(p, before[name]) == unused, name


@pytest.mark.parametrize('shape', [(48, 16), (16, 16), (16, 44)])
def test_muon_is_that_of_torch_but_for_its_rounding(shape):
    """torch's computes in bfloat16, with 3 digits."""
    torch.manual_seed(0)
    first = torch.randn(shape)
    ours, theirs = (torch.nn.Parameter(first.clone()) for _ in range(2))
    muon = Muon([dict(params=[ours], lr=0.02)])
    torch_muon = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0)
    for scale in (1.0, 1e-4, 0.0, 3.0):  # the size of a gradient does not matter; 0 is no error
        before, gradient = ours.detach().clone(), scale * torch.randn(shape)
        for p, optimizer in ((ours, muon), (theirs, torch_muon)):
            p.grad = gradient.clone()
            optimizer.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
        sizes = torch.linalg.svdvals(ours.detach() - before)
        sizes = sizes / (0.02 * max(1, shape[0] / shape[1]) ** 0.5)
        assert 0.5 < sizes.min() and sizes.max() < 1.3


@pytest.mark.parametrize('learn', ['frequency', 'amplitude,phase', 'none'])
def test_what_is_not_learned_gets_no_gradient_and_no_group(learn):
    model = build(attention='spectral', learn=learn)
    groups = groups_of(model, 'muon')
    model(*torch.randint(11, (2, 1, 9)))[1].backward()
    for name, word in dict(Omega='frequency', A='amplitude', Phi='phase').items():
        p = getattr(model.blocks[0].attention, name)
        assert (p.grad is not None) == (name in groups) == (word in learn), name
