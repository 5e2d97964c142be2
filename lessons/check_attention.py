"""
Check an attention that you wrote: is it causal, does its cache work, does it learn?

    python -m lessons.check_attention alibi        # a name in ATTENTIONS of model.py

It prints a line for each check: ok, or what is wrong and where to look. The exit status is 1 if a
check fails. An error in your class keeps its traceback, below the check that met it.
"""

import argparse
import dataclasses
import importlib.util
import io
import sys

import torch
import torch.nn as nn

from checkpoint import build_model
from configurator import one_line_errors
from model import GPT, Attention, GPTConfig, KVCache, UserError

if importlib.util.find_spec('lab'):  # more attentions
    import lab  # noqa: F401

B, T, V = 2, 16, 11
UPDATES = 3  # a parameter may start at 0 and keep others from a gradient in the first one


class Wrong(Exception):
    """What a check found, in words."""


def report(checks, *subject):
    """Run the checks {title: function}, print a line for each, return the titles that fail."""
    failed = []
    width = max(map(len, checks)) + 2
    for title, check in checks.items():
        print(f'{title:{width}s}', end='', flush=True)  # an error comes below its title
        try:
            note = check(*subject)
            print(f'ok: {note}' if note else 'ok')
        except Wrong as wrong:
            print(f'WRONG: {wrong}')
            failed.append(title)
        except Exception:
            print('an error in the code:', flush=True)
            raise
    print(f'{len(checks) - len(failed)} of {len(checks)} checks are ok')
    return failed


def build(name, **options):
    torch.manual_seed(0)
    small = dict(vocab_size=V, block_size=T, n_layer=2, n_head=4, n_embd=32, attention=name)
    return GPT(GPTConfig(**(small | options)))


def sample_ids(length=T):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(V, (B, length), generator=generator)


def close(a, b):
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def project(attention):
    """q, k and v (B, nh, T, hs) of some input, and their positions (T,)."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(B, T, attention.config.n_embd, generator=generator)
    position = torch.arange(T)
    return *attention.project(x, position), position


@torch.no_grad()
def check_shapes(model):
    """At lengths of 1 to 4 block_size, for some queries, and for heads that share their keys."""
    attention = model.blocks[0].attention
    q, k, _, _ = project(attention)
    for queries in (T, 5, 1):
        shape = tuple(attention.scores(q[:, :, -queries:], k).shape)
        expected = (B, q.size(1), queries, T)
        if shape != expected:
            raise Wrong(f'`scores` of {queries} queries and {T} keys has the shape {shape}; '
                        f'(B, nh, T, S) is {expected}')
    for n_kv_head in (4, 2):
        model = build(model.config.attention, n_kv_head=n_kv_head)
        for length in (1, T, 4 * T):
            x = torch.randn(B, length, model.config.n_embd)
            shape = tuple(model.blocks[0].attention(x).shape)
            if shape != tuple(x.shape):
                raise Wrong(f'with n_kv_head={n_kv_head}, an input {tuple(x.shape)} gives an '
                            f'output {shape}; both must be (B, T, C). Look in `attend`')


def check_finite(model):
    """A score of -inf is a mask. NaN and +inf are mistakes, for later keys, too."""
    attention = model.blocks[0].attention
    q, k, _, _ = project(attention)
    scores = attention.scores(q, k)
    bad = scores.isnan() | (scores == float('inf'))
    earlier = torch.ones(T, T, dtype=torch.bool).tril()
    if (bad & earlier).any():
        raise Wrong('`scores` has NaN or infinity: look for a division by 0, or a root or '
                    'logarithm of 0')
    if bad.any():
        raise Wrong('`scores` has NaN or infinity for later keys, where m - n is negative. They '
                    'are masked afterwards, but not in gradients: use distances(q, k).clamp(min=0)')
    idx = sample_ids()
    logits, loss = model(idx, idx)
    loss.backward()
    if not logits.isfinite().all():
        raise Wrong('the logits have NaN or infinity: look in `attend` for a token without any key')
    for name, p in model.named_parameters():
        if p.grad is not None and not p.grad.isfinite().all():
            raise Wrong(f'the gradient of {name} has NaN or infinity: look in `scores` for a root, '
                        'power or logarithm at 0')


def check_gradients(model):
    """In some updates, which also move the parameters away from their start."""
    optimizers = model.configure_optimizers(1e-2, 0.0, (0.9, 0.95), spectral_lr=3e-2)
    idx = sample_ids()
    largest = {}  # gradient of each parameter
    for _ in range(UPDATES):
        model.zero_grad()
        model(idx, idx.roll(1, dims=1))[1].backward()
        finite = True
        for name, p in model.named_parameters():
            gradient = torch.zeros(1) if p.grad is None else p.grad
            finite = finite and gradient.isfinite().all()
            if p.requires_grad:
                largest[name] = max(largest.get(name, 0.0), gradient.abs().max().item())
        if finite:
            for optimizer in optimizers:
                optimizer.step()
    least = 1e-6 * max(largest.values())  # less is rounding
    missing = [name for name, size in largest.items() if size <= least]
    if missing:
        raise Wrong(f'no gradient reaches {", ".join(missing)}. Does the formula use it? Does a '
                    'detach(), a no_grad() or an integer cut it off?')


def check_optimizer(model):
    """Each parameter that learns is in one group, and no tensor hides from the optimizers."""
    fresh = build(model.config.attention)
    for name in find_hidden(fresh.blocks[0].attention):
        raise Wrong(f'self.{name} learns, but no optimizer sees it. Make it an nn.Parameter of '
                    'the class itself; for a list, use nn.ParameterList or nn.ModuleList')
    optimizers = fresh.configure_optimizers(1e-2, 0.1, (0.9, 0.95), spectral_lr=3e-2)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    grouped = [p for group in groups for p in group['params']]
    fresh(sample_ids())  # a parameter that is made here is too late
    for name, p in fresh.named_parameters():
        count = sum(p is other for other in grouped)
        if p.requires_grad and count != 1:
            raise Wrong(f'{name} is in {count} groups of configure_optimizers, and not in one. Is '
                        'it made in `__init__`?')
    own = fresh.positional_parameters()
    learned = sorted({name for p, name in own.items() if p.requires_grad})
    fixed = sorted({name for p, name in own.items() if not p.requires_grad})
    notes = [f'{", ".join(learned)} learned with spectral_lr' if learned else
             'no parameters of its own']
    if fixed:
        notes.append(f'{", ".join(fixed)} fixed')
    return '; '.join(notes)


def find_hidden(attention):
    """The names of attributes that require a gradient and are no parameters of the module."""
    known = set(attention.parameters())
    for name, value in vars(attention).items():
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            tensors = item.parameters() if isinstance(item, nn.Module) else [item]
            for tensor in tensors:
                learns = torch.is_tensor(tensor) and tensor.requires_grad
                if learns and tensor not in known and not name.startswith('_'):
                    yield name


@torch.no_grad()
def find_leak(model):
    """(later token, earlier token whose logits it changes), or None."""
    idx = sample_ids()
    before, _ = model(idx)
    for later in range(1, T):
        changed = idx.clone()
        changed[:, later] = (idx[:, later] + 1) % V
        after, _ = model(changed)
        for earlier in range(later):
            if not close(before[:, earlier], after[:, earlier]):
                return later, earlier
    return None


def check_causal(model):
    leak = find_leak(model)
    if leak:
        later, earlier = leak
        raise Wrong(f'token {later} changes the logits of token {earlier}. Does `attend` mask the '
                    'keys where distances(q, k) < 0? Does `scores` mix keys?')


@torch.no_grad()
def check_paths(model):
    """Of the last query, which sees every key. With a mask or without, they must be equal."""
    attention = model.blocks[1].attention
    q, k, v, position = project(attention)
    written_out = Attention.attend(attention, q, k, v)[:, :, -1]
    q, k = attention.rotate(q, k, position)
    used = attention.attend(q, k, v)[:, :, -1]
    if not close(used, written_out):
        raise Wrong('`rotate` and `attend` compute something else than the softmax of `scores`. '
                    'Training uses the first two: which one is your formula?')


@torch.no_grad()
def check_cache(model):
    """A prompt, then several tokens at once, then one by one."""
    if find_leak(model):
        raise Wrong('not checked, for that it must be causal first')
    idx = sample_ids()
    uncached, _ = model(idx)
    caches = [KVCache() for _ in model.blocks]
    ends = [5, 9, *range(10, T + 1)]
    for start, end in zip([0, *ends], ends):
        logits, _ = model(idx[:, start:end], caches=caches)
        if not close(logits, uncached[:, start:end]):
            raise Wrong(f'with a cache of {start} tokens, the next {end - start} get other logits. '
                        'The T queries are the last of the S keys: use distances(q, k) in '
                        '`scores`, `position` in `rotate`')


@torch.no_grad()
def check_saved(model):
    file = io.BytesIO()
    model_args = dataclasses.asdict(model.config)
    torch.save(dict(model_args=model_args, model=model.state_dict()), file)
    file.seek(0)
    torch.manual_seed(3)  # the loaded model starts from other random numbers
    try:
        loaded = build_model(torch.load(file, weights_only=True))
    except UserError as error:
        raise Wrong(f'{error}. Are all parameters and buffers made in `__init__`?') from None
    loaded.train(model.training)
    idx = sample_ids()
    if not close(loaded(idx)[0], model(idx)[0]):
        raise Wrong('the loaded model gives other logits. What `__init__` samples, or training '
                    'changes, must be an nn.Parameter, or in register_buffer')


CHECKS = {
    'shapes': check_shapes,
    'finite scores and gradients': check_finite,
    'a gradient for every parameter': check_gradients,  # it trains the model a little
    'every parameter in the optimizer': check_optimizer,
    'causal: no look at later tokens': check_causal,
    'what trains equals `scores`': check_paths,
    'cached equals uncached': check_cache,
    'saved and loaded': check_saved,
}


def main(arguments=None):
    """Check the attention that the command line `arguments` (default: sys.argv) name."""
    parser = argparse.ArgumentParser(prog='python -m lessons.check_attention', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('name', help='of an attention in ATTENTIONS')
    return report(CHECKS, build(parser.parse_args(arguments).name))


if __name__ == '__main__':
    with one_line_errors():
        if main():
            sys.exit(1)
