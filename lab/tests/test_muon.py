"""Muon's variants: what each updates, thirds of a matrix as matrices of their own, and the run that changes nothing."""

import pytest
import torch

from lab import muon
from model import GPT, GPTConfig, Muon
from tests.conftest import SMALL, together

RATES = (1e-3, 0.1, (0.9, 0.99), 1e-2, {}, 0.02)


def updates(variant):
    """{name: change} of every parameter of a model after a step with a variant, what it was, and its gradient."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=7, n_layer=2, n_embd=16))
    optimizers = muon.vary(variant, model, *model.configure_optimizers(*RATES))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(*torch.randint(7, (2, 4, 9)))[1].backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    for optimizer in optimizers:
        optimizer.step()
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}, before, gradients


def orthogonal(change):
    """Is a change one of Muon's? AdamW's first step has the same size everywhere."""
    return change.abs().std() > 0.1 * change.abs().mean()


@pytest.mark.parametrize('variant', muon.VARIANTS)
def test_a_variant_updates_what_it_says(variant):
    by_muon = dict(attention=('.attention.',), mlp=('.mlp.',), head=('blocks.', 'lm_head')).get(variant, ('blocks.',))
    changes, before, _ = updates(variant)
    for name, change in changes.items():
        assert change.abs().max() > 0, name
        if change.dim() == 2 and name != 'embedding.weight':
            assert orthogonal(change) == any(word in name for word in by_muon), name
    whole = updates('whole')[0]
    same = {name for name, change in changes.items() if torch.allclose(change, whole[name], atol=1e-4)}
    assert (same == {*changes}) == (variant in ('whole', 'momentum'))  # the first step has no momentum yet
    if variant == 'momentum':
        model = GPT(GPTConfig(vocab_size=7))
        _, changed = muon.vary(variant, model, *model.configure_optimizers(*RATES))
        assert [group['momentum'] for group in changed.param_groups] == [0.9]
    if variant == 'decay':
        weight = 'blocks.0.mlp.up.weight'
        torch.testing.assert_close(changes[weight] - whole[weight], -0.1 * 0.02 * before[weight], rtol=1e-3, atol=1e-6)


def test_thirds_are_matrices_of_their_own():
    changes, before, gradients = updates('three')
    for name, change in changes.items():
        if 'qkv' in name:
            thirds = [torch.nn.Parameter(third.clone()) for third in before[name].chunk(3)]
            for third, gradient in zip(thirds, gradients[name].chunk(3)):
                third.grad = gradient
            Muon([dict(params=thirds, lr=0.02)]).step()
            torch.testing.assert_close(change, torch.cat(list(thirds)).detach() - before[name])


def test_whole_is_what_train_does_and_a_wrong_word_is_refused(run):
    arguments = together(*SMALL, f'--out_dir={run("a").folder}', '--optimizer=muon')
    muon.main(['whole', *arguments])
    ours, theirs = run('a'), run('b').train('--optimizer=muon')
    assert ours.log() == theirs.log()
    for words, message in ((['half'], "'half': must be one of whole, three"), ([], "'': must be"),
                           (['whole', *arguments, '--optimizer=adamw'], 'each once')):
        with pytest.raises(ValueError, match=message):
            muon.main(words)
    with pytest.raises(ValueError, match='needs optimizer=muon'):
        muon.main(['whole', *together(*arguments, '--optimizer=adamw')])
