"""
Check an attention that is in ATTENTIONS of model.py, in plain words, one line a check.

    python -m lessons.check_attention alibi      # after you have put the class into model.py

The checks do not know your formula: a naive one in tests/test_model.py must confirm it. A check
that fails says what to look at. An error in your class keeps its traceback, below the name of the
check.
"""

import argparse
import io
import sys

import torch

import lab  # noqa: F401  # more attentions
from configurator import one_line_errors
from lessons.run_checks import run_checks
from model import ATTENTIONS, GPT, Attention, GPTConfig, KVCache, UserError

VOCABULARY, B, T = 11, 2, 24


def build(name, seed=0, **options):
    """A small GPT of two layers. What its attention learns is moved away from its start."""
    torch.manual_seed(seed)
    small = dict(vocab_size=VOCABULARY, n_layer=2, n_head=4, n_embd=64, attention=name)
    model = GPT(GPTConfig(**(small | options))).eval()
    with torch.no_grad():
        for parameter in model.positional_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(seed=1):
    """Random token ids (B, T)."""
    return torch.randint(VOCABULARY, (B, T), generator=torch.Generator().manual_seed(seed))


def random_heads(model, queries):
    """The attention of layer 0; random q (B, nh, queries, hs) and k (B, nh, T, hs)."""
    config = model.config
    generator = torch.Generator().manual_seed(2)
    shape = (B, config.n_head, T, config.head_size)
    q, k = (torch.randn(shape, generator=generator) for _ in range(2))
    return model.blocks[0].attention, q[:, :, -queries:], k


def near(a, b):
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4)


# ---- the checks: each returns None, or what is wrong in plain words ----------------------------

@torch.no_grad()
def check_shapes(name):
    """scores(q, k) has one score for each query and key: (B, nh, T, S)"""
    for queries in (T, 1):
        attention, q, k = random_heads(build(name), queries)
        found, right = tuple(attention.scores(q, k).shape), (B, 4, queries, T)
        if found != right:
            return (f'for {queries} queries and {T} keys the shape is {found}, not {right}. '
                    'The queries are the last of the tokens: distances(q, k) knows that.')


@torch.no_grad()
def check_finite(name):
    """every score is a finite number, also for later keys"""
    attention, q, k = random_heads(build(name), T)
    scores = attention.scores(q, k)
    if not scores.isfinite().all():
        m, n = (~scores.isfinite()).nonzero()[0, 2:].tolist()
        return (f'the score of the query at {m} with the key at {n} is not finite. Later keys '
                'have a negative distance, and are masked after `scores`: take abs() or clamp().')


@torch.no_grad()
def check_causal(name):
    """no output depends on a later token"""
    model, idx = build(name), tokens()
    changed = idx.clone()
    changed[:, T // 2:] = (idx[:, T // 2:] + 1) % VOCABULARY
    if not near(model(idx)[0][:, :T // 2], model(changed)[0][:, :T // 2]):
        return ('another token at the end changes an earlier output. If you wrote `attend`, '
                'mask the keys with distances(q, k) < 0.')


@torch.no_grad()
def check_fast(name):
    """what the model computes is the softmax of `scores`"""
    attention = build(name).blocks[0].attention
    position = torch.arange(T)
    q, k, v = attention.project(torch.randn(B, T, attention.config.n_embd), position)
    ours = attention.attend(*attention.rotate(q, k, position), v)
    if not near(ours, Attention.attend(attention, q, k, v)):
        return ('`rotate` and `attend` give another result than `scores`. One of both is not '
                'your formula.')


@torch.no_grad()
def check_cached(name):
    """token by token with a cache gives the same as all tokens at once"""
    model, idx = build(name), tokens()
    caches = [KVCache() for _ in model.blocks]
    pieces = [model(piece, caches=caches)[0] for piece in idx.split([5, 4, *[1] * (T - 9)], dim=1)]
    if not near(torch.cat(pieces, dim=1), model(idx)[0]):
        return ('the position of a token is lost. Use distances(q, k), or the `position` that '
                '`rotate` gets: they count the tokens in the cache.')


@torch.no_grad()
def check_grouped(name):
    """it works where two query heads share one key/value head (n_kv_head=2)"""
    model, idx = build(name, n_kv_head=2), tokens()
    if model(idx)[0].shape != (B, T, VOCABULARY):
        return 'the logits have a wrong shape'


@torch.no_grad()
def check_saved(name):
    """saved and loaded into a new model, it gives the same logits"""
    model, idx, file = build(name), tokens(), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = build(name, seed=7)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    if not near(loaded(idx)[0], model(idx)[0]):
        return ('something that the logits need is not saved. A random or learned tensor must be '
                'an nn.Parameter, or a buffer (register_buffer).')


def check_gradients(name):
    """the gradient reaches every parameter"""
    model, idx = build(name), tokens()
    _, loss = model(idx, idx.roll(-1, dims=1))
    loss.backward()
    for label, parameter in model.named_parameters():
        gradient = parameter.grad
        if not parameter.requires_grad:
            continue
        if gradient is None or not gradient.any():
            return (f'{label} has no gradient: the loss does not depend on it. Is it used? '
                    'Does it cancel? Is there a detach(), a .data or a round() before it?')
        if not gradient.isfinite().all():
            return f'the gradient of {label} is not finite: a root or a power of 0?'


def check_hidden(name):
    """every tensor that learns is a parameter, which the optimizer sees"""
    attention = build(name).blocks[0].attention
    known = set(attention.parameters())
    for label, value in vars(attention).items():
        items = value if isinstance(value, (list, tuple)) else [value]
        for tensor in items:
            learns = torch.is_tensor(tensor) and tensor.requires_grad
            if learns and tensor not in known:
                return (f'self.{label} is none, so it is never trained or saved. Make it an '
                        'nn.Parameter of the class itself; for several use nn.ParameterList.')


CHECKS = [check_shapes, check_finite, check_causal, check_fast, check_cached, check_grouped,
          check_saved, check_gradients, check_hidden]


@torch.no_grad()
def describe(name):
    """What is not right or wrong: whether order counts, and what the attention learns."""
    model, idx = build(name, n_layer=1), tokens()
    shuffled = torch.cat([idx[:, :-1].flip(1), idx[:, -1:]], dim=1)
    order = 'counts'
    if near(model(idx)[0][:, -1], model(shuffled)[0][:, -1]):
        order = 'does not count, as in nope'
    print(f'note: the order of earlier tokens {order}')
    learned = {label: tuple(p.shape) for p, label in model.positional_parameters().items()}
    print(f'note: beside its matrices it learns {learned or "nothing"}')


def check(name):
    """Print a line for each check; return the number of checks that fail."""
    if name not in ATTENTIONS:
        raise UserError(f'{name}: ATTENTIONS in model.py has only {", ".join(ATTENTIONS)}. '
                        f'Add your class there, such as {name}=YourClass.')
    failed = run_checks(CHECKS, name)
    describe(name)
    print(f'{len(CHECKS) - failed} of {len(CHECKS)} checks pass')
    return failed


def main(arguments=None):
    """Check the attention that the command line `arguments` (default: sys.argv) name."""
    parser = argparse.ArgumentParser(prog='python -m lessons.check_attention', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('name', help='its name in ATTENTIONS')
    if check(parser.parse_args(arguments).name):
        sys.exit(1)


if __name__ == '__main__':
    with one_line_errors():
        main()
