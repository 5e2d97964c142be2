"""
Check an attention that is in ATTENTIONS of model.py, in plain words, one line a check.

    python -m lessons.check_attention alibi      # after you have put the class into model.py

It stops at the first check that fails, and says what to look at. TRACEBACK=1 before the command
shows where an error comes from. The checks do not know your formula: a naive one in
tests/test_model.py must confirm it.
"""

import contextlib
import io
import math
import tempfile
from types import SimpleNamespace
from unittest import mock

import torch

import lab  # noqa: F401  # more attentions
import train
from checkpoint import read_log
from configurator import one_line_errors
from lessons.run_checks import in_words, run_checks, run_command
from model import ATTENTIONS, GPT, Attention, GPTConfig, KVCache, UserError, distances
from optim import configure_optimizers

B, T, VOCABULARY, HEADS, HEAD_SIZE, BLOCK = 2, 24, 11, 4, 16, 61  # numbers that differ
METHODS = ('project', 'rotate', 'scores', 'attend', 'forward')  # what a class may change
MEANING = {HEADS: 'heads, and slope[:, None, None] is (nh, 1, 1)', HEAD_SIZE: 'numbers in a head',
           BLOCK: 'tokens in block_size, but q and k may have fewer and more: index by distances'}


def build(name, seed=0, **options):
    """A small GPT of two layers. What its attention learns is moved away from its start."""
    torch.manual_seed(seed)
    # with weights as small as 0.02 all scores would be near 0, and every mistake small
    small = dict(vocab_size=VOCABULARY, block_size=BLOCK, n_layer=2, n_head=HEADS,
                 n_embd=HEADS * HEAD_SIZE, attention=name, init_std=0.12)
    model = GPT(GPTConfig(**(small | options))).eval()
    with torch.no_grad():
        for parameter in model.positional_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(seed=1, length=T):
    """Random token ids (B, length)."""
    return torch.randint(VOCABULARY, (B, length), generator=torch.Generator().manual_seed(seed))


def projected(attention, length=T):
    """q, k and v, each (B, nh, length, hs), of a random input, and positions."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(B, length, attention.config.n_embd, generator=generator)
    return *attention.project(x), torch.arange(length)


def scores_of(attention, q, k):
    """The scores (B, nh, T, S) of rotated q and k: those of the class, or the dot product."""
    k = k.repeat_interleave(q.size(1) // k.size(1), dim=1)
    if attention.scores is None:
        return q @ k.mT / math.sqrt(q.size(-1))
    return attention.scores(q, k)


def near(a, b):
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4)


# ---- the checks: each returns None, or what is wrong in plain words ----------------------------

def check_shapes(name):
    """there is one finite score for each query and key: (B, nh, T, S)"""
    attention = build(name).blocks[0].attention
    q, k, _, position = projected(attention)
    shapes, rotated = [q.shape, k.shape], attention.rotate(q, k, position)
    if not isinstance(rotated, tuple) or [getattr(x, 'shape', 0) for x in rotated] != shapes:
        return '`rotate` must end with `return q, k`, in the shapes that they had.'
    q, k = rotated
    for queries in (T, 1):
        try:
            scores = scores_of(attention, q[:, :, -queries:], k)
        except RuntimeError as error:
            hints = [f'There are {size} {what}.' for size, what in MEANING.items()
                     if 'must match the size' in str(error) and f'({size})' in str(error)]
            return ' '.join([in_words(error), *hints])
        right = (B, HEADS, queries, T)
        if not torch.is_tensor(scores):
            return f'`scores` gives {type(scores).__name__}, not a tensor: is its `return` missing?'
        if scores.shape != right:
            return (f'for {queries} queries and {T} keys the shape is {tuple(scores.shape)}, not '
                    f'{right}. The queries are the last tokens: distances(q, k) knows that.')
        if scores.dtype != q.dtype:
            return f'they are {scores.dtype}, not {q.dtype}: numbers of numpy need a .float().'
        if not scores.isfinite().all():
            m, n = (~scores.isfinite()).nonzero()[0, 2:].tolist()
            return (f'that of the query at {T - queries + m} with the key at {n} is not finite. '
                    'Distances are 0 at the own key, and negative at later keys, which are masked '
                    'after `scores`. Take abs(), clamp(), or add 1.')


def check_changes(name):
    """the class changes what it inherits"""
    cls = ATTENTIONS[name]
    parent = cls.__mro__[1]
    if not issubclass(parent, Attention) or any(method in vars(cls) for method in METHODS):
        return None
    model = build(name)
    with mock.patch.dict(ATTENTIONS, {name: parent}):
        inherited = build(name)
    with contextlib.suppress(RuntimeError):  # the parameters have other shapes
        inherited.load_state_dict(model.state_dict(), strict=False)
        if near(inherited(tokens())[0], model(tokens())[0]):
            own = [attribute for attribute in vars(cls) if not attribute.startswith('_')]
            return (f'it is {parent.__name__} under another name: it has none of '
                    f'{", ".join(METHODS)}. What it has: {", ".join(own) or "nothing"}. Is a name '
                    'misspelt?')


def check_sizes(name):
    """it works with other sizes, and beyond the training length"""
    for options in ({}, dict(n_head=2, n_embd=24), dict(block_size=T // 3)):
        try:
            logits = build(name, **options)(tokens())[0]
        except UserError:  # the class says that it cannot
            continue
        except Exception as error:
            return (f'{options} with strings of {T} tokens: {in_words(error)} Take sizes from '
                    'self.config, q and k. A string may be longer than block_size.')
        if not logits.isfinite().all():
            return 'a logit is not finite. Does your mask in `attend` leave a query without keys?'


def check_calls(name):
    """a call does not depend on earlier calls"""
    used = build(name)
    for length in (9, T, 9):
        idx = tokens(seed=length, length=length)
        try:
            same = near(used(idx)[0], build(name)(idx)[0])
        except Exception as error:
            return f'{length} tokens after another number of them: {in_words(error)}'
        if not same:
            return ('a used model gives other logits than a new one. Which attribute of self '
                    'changes in a call? Are there random numbers that the seed does not decide?')


def check_causal(name):
    """no output depends on a later token, or on another string of the batch"""
    model, idx = build(name), tokens()
    if not near(model(idx[:1])[0], model(idx)[0][:1]):
        return ('alone in a batch, a string gets other logits. Look for a dim=0, a mean over '
                'everything, a squeeze() or a reshape.')
    idx = idx[:1]
    changed = (idx + torch.eye(T, dtype=torch.int64)) % VOCABULARY  # row t: another token at t
    before, after = model(idx)[0], model(changed)[0]
    for t in range(1, T):
        if not near(after[t:t + 1, :t], before[:, :t]):
            return (f'another token at {t} changes an earlier output. If you wrote `attend`, mask '
                    'the keys with distances(q, k) < 0. `scores` must not mix keys or queries.')


def check_softmax(name):
    """what the model computes is the softmax of the scores"""
    attention = build(name).blocks[0].attention
    q, k, v, position = projected(attention)
    q, k = attention.rotate(q, k, position)
    scores = scores_of(attention, q, k).masked_fill(distances(q, k) < 0, float('-inf'))
    if not near(attention.attend(q, k, v), scores.softmax(dim=-1) @ v):
        return ('`attend` gives another result than the scores. One of both is not your formula.')


def check_cached(name):
    """token by token with a cache gives the same as all tokens at once"""
    model, idx = build(name), tokens()
    caches = [KVCache() for _ in model.blocks]
    pieces = idx.split([5, 4, *[1] * (T - 9)], dim=1)
    logits = torch.cat([model(piece, caches=caches)[0] for piece in pieces], dim=1)
    if not near(logits, model(idx)[0]):
        return ('the position of a token is lost. Use distances(q, k), or the `position` '
                'that `rotate` gets: they count the tokens in the cache.')


@torch.enable_grad()
def check_hidden(name):
    """what learns is a parameter from the start, so that the optimizer sees it"""
    model = build(name)
    known = list(model.parameters())
    model(tokens())  # a call may keep or make something
    for parameter in known:
        parameter.requires_grad_(False)
    if model(tokens())[0].requires_grad:  # something else learns
        return ('a tensor learns and is no parameter. Make an nn.Parameter of self in `__init__`, '
                'for several an nn.ParameterList. Keep nothing that is computed from a parameter.')


@torch.enable_grad()
def check_gradients(name):
    """in three updates a finite gradient reaches every parameter"""
    model, idx = build(name), tokens()
    options = dict(optimizer='muon', learning_rate=1e-2, muon_lr=0.02, positional_lr=1e-2,
                   weight_decay=0.1, beta1=0.9, beta2=0.99)
    optimizers = configure_optimizers(model, SimpleNamespace(**options))
    missing = {label: p for label, p in model.named_parameters() if p.requires_grad}
    for _ in range(3):  # a parameter that is 0 keeps the first gradient from another one
        model.zero_grad()
        model(idx, idx.roll(-1, dims=1))[1].backward()
        for label, parameter in list(missing.items()):
            gradient = parameter.grad
            if gradient is not None and not gradient.isfinite().all():
                return f'the gradient of {label} is not finite: a root or a power of 0?'
            reached = gradient is not None and gradient.any()
            if reached and label.endswith('qkv.weight'):
                reached = gradient.any(dim=1).all()  # each number of q, k and v
            if reached:
                del missing[label]
        for optimizer in optimizers:
            optimizer.step()
    for label in missing:
        return (f'{label} has no gradient, or qkv not everywhere: the loss does not depend on it. '
                'Is it used? Does it cancel? Is there a detach(), a .data or a round() before it?')


@torch.enable_grad()
def check_saved(name):
    """another seed gives another model, and a run that is resumed has the loss that it had"""
    if near(build(name, seed=7)(tokens())[0], build(name)(tokens())[0]):
        return 'another seed gives the same model. Is there a manual_seed() in the class?'
    options = {key: value for key, value in vars(train).items()
               if isinstance(value, (int, float, str)) and not key.startswith('_')}
    options |= dict(attention=name, device='cpu', max_iters=2, eval_interval=1, warmup_iters=0,
                    batch_size=4, block_size=T, eval_sequences=8, init_std=0.12)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for init_from in ('scratch', 'resume'):
            options |= dict(out_dir=folder, init_from=init_from)
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    train.main(SimpleNamespace(**options))
            except UserError as error:
                return f'{error}. Make parameters and buffers in `__init__`, not in a call.'
            losses += [line['val_loss'] for line in read_log(folder)
                       if line['iter'] == 2 and 'val_loss' in line]
    if not math.isclose(*losses, rel_tol=1e-5):
        return ('something that the logits need is not saved. A random or learned tensor must be '
                'an nn.Parameter, or a buffer (register_buffer).')


@torch.enable_grad()
def check_device(name):
    """on a GPU no tensor is left on the CPU"""
    model, idx = build(name).to('meta'), tokens().to('meta')  # a device without numbers
    caches = [KVCache() for _ in model.blocks]
    try:
        with mock.patch('torch.autocast', lambda *_, **__: contextlib.nullcontext()):
            model(idx, idx)[1].backward()
            for piece in idx.split([5, 4, T - 9], dim=1):
                model(piece, caches=caches)
    except (RuntimeError, NotImplementedError) as error:
        if 'expected device' in str(error):  # another error: 'meta' cannot do it, a GPU may
            return (f'{in_words(error)} In a call, make tensors with device=q.device. In '
                    '`__init__`, make them buffers (register_buffer).')


def check_bfloat16(name):
    """with bfloat16, as on a GPU, positions stay exact"""
    attention = build(name).blocks[0].attention
    q, k, v, position = projected(attention, length=512)
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    exact = attention.rotate(q.float(), k.float(), position)
    right = attention.attend(*exact, v.float())
    with torch.autocast('cpu', torch.bfloat16):
        ours = attention.attend(*attention.rotate(q, k, position), v)
    if (ours - right).norm() > 0.05 * right.norm():
        return ('bfloat16 cannot tell position 256 from 257. Compute angles and distances in '
                'float32, without .to(q.dtype), and without a matrix product.')


CHECKS = [check_shapes, check_changes, check_sizes, check_calls, check_causal, check_softmax,
          check_cached, check_hidden, check_gradients, check_saved, check_device, check_bfloat16]


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


@torch.no_grad()
def check(name):
    """Print a line for each check up to the first that fails; return whether all pass."""
    if name not in ATTENTIONS:
        raise UserError(f'{name}: ATTENTIONS in model.py has only {", ".join(ATTENTIONS)}. '
                        f'Add your class there, such as {name}=YourClass.')
    passed = run_checks(CHECKS, name)
    if passed:
        describe(name)
    return passed


def main(arguments=None):
    """Check the attention that the command line `arguments` (default: sys.argv) name."""
    argument = ('name', 'its name in ATTENTIONS')
    run_command(check, 'check_attention', __doc__, argument, arguments)


if __name__ == '__main__':
    with one_line_errors():
        main()
