"""
Check an attention, in plain words, one line a check.

    python -m lessons.check_attention alibi      # once model.py or the lab has it

It stops at the first check that fails, and says what to look at. TRACEBACK=1 before the command
shows where an error comes from. The checks do not know your formula: a naive one must confirm it,
in tests/test_model.py, or for an attention of the lab in lab/tests/test_ways.py.
"""

import sys

import torch

import lab  # noqa: F401  # more attentions
from configurator import one_line_errors
from lab.analysis import scores_of
from lab.options import make_parser
from lessons.run_checks import HINTS, in_words, run_checks
from model import ATTENTIONS, GPT, Attention, GPTConfig, KVCache, UserError, distances

B, T, VOCABULARY, HEADS, HEAD_SIZE, BLOCK = 2, 24, 11, 4, 16, 61  # numbers that differ
METHODS = ('project', 'rotate', 'scores', 'attend', 'forward')  # what a class may change
HINTS.update({  # sizes that do not fit
    rf'size of tensor.*\({HEADS}\)':
        'A number for each head is slope[:, None, None], (nh, 1, 1). The keys turn round by k.mT.',
    rf'size of tensor.*\({BLOCK}\)':
        'q and k may have fewer and more tokens than block_size: index by distances.',
})


def build(name, seed=0, **options):
    """A small GPT of two layers, with larger weights than at a start, and none that is 0."""
    torch.manual_seed(seed)
    sizes = dict(vocab_size=VOCABULARY, block_size=BLOCK, n_layer=2, n_head=HEADS,
                 n_embd=HEADS * HEAD_SIZE, attention=name)
    model = GPT(GPTConfig(**sizes | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.12 * torch.randn_like(parameter))
    return model


def tokens():
    """Random token ids (B, T)."""
    return torch.randint(VOCABULARY, (B, T), generator=torch.Generator().manual_seed(1))


def projected(attention, length=T):
    """q, k and v, each (B, nh, length, hs), of a random input, and positions."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(B, length, attention.config.n_embd, generator=generator)
    return *attention.project(x), torch.arange(length)


def near(a, b):
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4)


# ---- the checks: each returns None, or what is wrong in plain words ----------------------------

def check_shapes(name):
    """there is one finite score for each query and key: (B, nh, T, S)"""
    attention = build(name).blocks[0].attention
    q, k, _, position = projected(attention)
    shapes = q.shape, k.shape
    q, k = attention.rotate(q, k, position)
    if (q.shape, k.shape) != shapes:
        return '`rotate` must end with `return q, k`, in the shapes that they had.'
    for queries in (T, 1):
        scores = scores_of(attention, q[:, :, -queries:], k)
        right = (B, HEADS, queries, T)
        if scores.shape != right:
            return (f'for {queries} queries and {T} keys the shape is {tuple(scores.shape)}, not '
                    f'{right}. The queries are the last tokens: distances(q, k) knows that.')
        if not scores.isfinite().all():
            m, n = (~scores.isfinite()).nonzero()[0, 2:].tolist()
            return (f'that of the query at {T - queries + m} with the key at {n} is not finite. '
                    'Distances are 0 at the own key, and negative at later keys, which are masked '
                    'after `scores`. Take abs(), clamp(), or add 1.')


def check_changes(name):
    """the class changes what `Attention` does"""
    own = [attribute for attribute in vars(ATTENTIONS[name]) if not attribute.startswith('_')]
    if ATTENTIONS[name].__base__ is Attention and not set(own) & set(METHODS):
        return (f'it has none of {", ".join(METHODS)}. What it has: {", ".join(own) or "nothing"}. '
                'Is a name misspelt?')


def check_sizes(name):
    """it works with other sizes, and beyond the training length"""
    for options in ({}, dict(n_head=2, n_embd=24), dict(block_size=T // 3)):
        try:
            logits = build(name, **options)(tokens())[0]
        except Exception as error:
            return (f'{options} with strings of {T} tokens: {in_words(error)} Take sizes from '
                    'self.config, q and k. A string may be longer than block_size.')
        if not logits.isfinite().all():
            return 'a logit is not finite. Does your mask in `attend` leave a query without keys?'


def check_causal(name):
    """no output depends on a later token, on another string, or on an earlier call"""
    model, idx = build(name), tokens()
    if not near(model(idx)[0], model(idx)[0]):
        return ('the same string twice gets other logits. Which attribute of self changes in a '
                'call? Are there random numbers, such as dropout?')
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
    if not near(attention.attend(q, k, v), scores.softmax(dim=-1).to(v.dtype) @ v):
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
    """a finite gradient reaches every parameter"""
    model, idx = build(name), tokens()
    model(idx, idx.roll(-1, dims=1))[1].backward()
    for label, parameter in model.named_parameters():
        gradient = torch.zeros(1, 1) if parameter.grad is None else parameter.grad
        if not gradient.isfinite().all():
            return f'the gradient of {label} is not finite: a root or a power of 0?'
        if not (gradient.any(dim=1).all() if 'qkv' in label else gradient.any()):
            return (f'{label} has no gradient, or qkv not everywhere: the loss does not depend on '
                    'it. Is it used? Does it cancel? Is there a detach(), a .data or a round() '
                    'before it?')


def check_saved(name):
    """another seed gives another model, and a checkpoint holds all that the logits need"""
    model, other, idx = build(name), build(name, seed=7), tokens()
    logits = model(idx)[0]
    try:
        other.load_state_dict(model.state_dict())
    except RuntimeError as error:
        return f'{in_words(error)} Make parameters and buffers in `__init__`, not in a call.'
    if near(build(name, seed=7)(idx)[0], logits):
        return 'another seed gives the same model. Is there a manual_seed() in the class?'
    if not near(other(idx)[0], logits):
        return ('something that the logits need is not saved. A random or learned tensor must be '
                'an nn.Parameter, or a buffer (register_buffer).')


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


CHECKS = [check_shapes, check_changes, check_sizes, check_causal, check_softmax, check_cached,
          check_hidden, check_gradients, check_saved, check_bfloat16]


@torch.no_grad()
def check(name):
    """Print a line for each check up to the first that fails; return whether all pass."""
    if name not in ATTENTIONS:
        raise UserError(f'{name}: ATTENTIONS has only {", ".join(ATTENTIONS)}. Add your class, '
                        f'{name}=YourClass, there in model.py, or to WAYS in lab/ways.py.')
    return run_checks(CHECKS, name)


def main(arguments=None):
    parser = make_parser('lessons.check_attention', __doc__)
    parser.add_argument('name', help='its name in ATTENTIONS')
    if not check(parser.parse_args(arguments).name):
        sys.exit(1)


if __name__ == '__main__':
    with one_line_errors():
        main()
