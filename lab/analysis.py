"""
What a model holds, and what its parts are good for: closed eyes, scores by distance, mean states, perplexity of a text.

Nothing here knows how a way to attend scores. It asks way.scores for the scores of the queries and keys that
attention.project gives. Letters are those of model.py.
"""

import contextlib
import dataclasses
import math

import numpy as np
import torch
import torch.nn.functional as F

from lab import corpus
from lab.memory import sequences_at_once
from model import ROTARY, positions
from tasks import label_runs, stream

NUMBERS_AT_ONCE = 2**19  # of what a formula computes for each pair of tokens: they stay in the processor's cache
SCORES_AT_ONCE = 2**24
DISTANCES = [(1, 2), (3, 9), (10, 31), (32, 99), (100, 315), (316, np.inf)]  # tokens from a bracket to its opener
DEPTHS = [(depth, depth) for depth in range(1, 7)] + [(7, np.inf)]


# ----------------------------------------------------------------------------------------------------------------------
# What is known of a task


def sources(task, x):
    """(B, T) bools: the inputs that hold what the answers need; all inputs of a task that is not listed here."""
    column = np.arange(x.shape[1])
    if task.name == 'dyck':
        return x < task.k
    if task.name == 'spacing':
        return x < 3
    if task.name == 'bio_rotation':
        return np.broadcast_to((column >= 1) & (column <= task.period), x.shape)
    if task.name == 'modulo':  # only C0: the phase of a score may depend on c, and a mean over all c would cancel
        return (column == 0) & (x[:, :1] == task.modulus)
    if task.name == 'passkey':
        behind = column - task.place(x)
        return (behind >= 1) & (behind <= 5)
    return np.ones_like(x, dtype=bool)


def state(task, x):
    """(B, T) numbers of the state that a reader of x (B, T) is in: the depth of brackets. None for a task without."""
    return task.depth(x) if task.name == 'dyck' else None


def variants(task):
    """{label: task} with the same symbols, and a difficulty that was never trained on."""
    if task.name == 'dyck':
        deeper = dataclasses.replace(task, max_depth=2 * task.max_depth)
        return {f'depth {deeper.max_depth}': deeper}
    if task.name == 'passkey' and task.filler == 'iid':
        return {'loop': dataclasses.replace(task, filler='loop')}
    return {}


# ----------------------------------------------------------------------------------------------------------------------
# What a model holds


@contextlib.contextmanager
def closed_eyes(model, kind, layers=None):
    """
    Within this context the 'geometric' or the 'spectral' heads of `layers` (default: all) output zero. What remains is
    what the other eyes see. Raises ValueError for a model without heads of that kind.
    """
    config = model.config
    geometric = config.n_head - config.n_spectral * config.n_head // config.nkv  # the first query heads
    eyes = {'geometric': range(geometric), 'spectral': range(geometric, config.n_head)}.get(kind, ())
    if config.attention not in ROTARY or len(eyes) == 0:
        raise ValueError(f'{kind!r}: a model with attention={config.attention!r} has no such eyes to close')
    closed = torch.tensor(eyes, device=model.embedding.weight.device)

    def close(way, inputs, y):  # y (B, nh, T, hs)
        return y.index_fill(1, closed, 0)

    with contextlib.ExitStack() as stack:
        for layer in range(config.n_layer) if layers is None else layers:
            hook = model.blocks[layer].attention.way.register_forward_hook(close)
            stack.callback(hook.remove)
        yield model


@contextlib.contextmanager
def held_shares(model, T):
    """
    Within this context the share of attention that the first key gets does not fall with the length of the string.

    Against m other keys its share is e^a / (e^a + m e^b), if its score is a, and b that of the others. From position
    m = T on, it counts as m / (T - 1) keys, and log_scale stays at what it is at T - 1. So its share stays as well.
    `attention_scores` knows nothing of it. Raises ValueError for T = 1, which leaves no other keys.
    """
    if T < 2:
        raise ValueError(f'T={T}: the share of the first of {T} keys cannot be held, there is no other')

    def rescale(way, inputs):
        q, k, v = inputs  # q (B, nh, T, hs)
        m = positions(q, k)[0].clamp(min=T - 1)
        return q * (math.log(T) / (m + 1).log())[:, None].to(q.dtype), k, v

    def reweigh(way, inputs, y):
        q, k, v = inputs
        counts = positions(q, k)[0].clamp(min=T - 1)[:, None] / (T - 1)  # the first key counts as so many
        is_first = torch.zeros_like(v)
        is_first[:, :, 0] = 1
        more = (counts - 1) * way.forward(q, k, is_first)  # what its weight (B, nh, T, hs, all alike) grows by
        return ((y + more * v[:, :, :1]) / (1 + more)).to(y.dtype)

    with contextlib.ExitStack() as stack:
        for block in model.blocks:
            if model.config.log_scale:
                stack.callback(block.attention.way.register_forward_pre_hook(rescale).remove)
            stack.callback(block.attention.way.register_forward_hook(reweigh).remove)
        yield model


@torch.no_grad()
def walk(model, x, device):
    """(block, what it reads, what it gives) of each layer, both (n, T, C), for token ids x (n, T), an array."""
    at_once = sequences_at_once(model.config, x.shape[1], device)
    after = model.embedding(torch.from_numpy(x).to(device))
    for block in model.blocks:
        before, after = after, torch.cat([block(part) for part in after.split(at_once)])
        yield block, before, after


@torch.no_grad()
def attention_scores(attention, x):
    """
    The scores of one layer before mask and softmax, (B, nh, T, T), given what its attention reads, x (B, T, C). Those
    of keys behind their query mean nothing. Few queries are asked at a time, for a formula may need much memory.
    """
    q, k, _ = attention.project(x)
    B, nh, T, hs = q.shape
    rows = min(T, max(1, NUMBERS_AT_ONCE // (nh * T * hs)))
    some = max(1, NUMBERS_AT_ONCE // (nh * rows * T * hs))  # sequences
    scores = torch.zeros(B, nh, T, T, device=x.device)
    for b in range(0, B, some):
        for m in range(0, T, rows):
            queries, keys = q[b:b + some, :, m:m + rows], k[b:b + some, :, :m + rows]  # the last tokens of the keys
            scores[b:b + some, :, m:m + rows, :m + rows] = attention.way.scores(queries, keys)
    return scores


@torch.no_grad()
def score_by_distance(model, task, length, n, device, split):
    """
    The mean score that a query with an answer gives to a key that holds what answers need (`sources`), at each distance
    m - n: nested lists (n_layer, nh, length), None where no pair is so far apart.
    """
    x, y = task.sample(stream(split, str(task), length), n, length, split)
    pairs = torch.from_numpy((y != -1)[:, :, None] & sources(task, x)[:, None, :]).to(device).tril()  # (n, T, T)
    place = torch.arange(length, device=device)
    distance = (place[:, None] - place).clamp(min=0).flatten()  # (T T,)
    count = torch.zeros(length, device=device).index_add(0, distance, pairs.sum(0).flatten().float())
    at_once = max(1, SCORES_AT_ONCE // (model.config.n_head * length**2))
    profiles = []
    for block, residual, _ in walk(model, x, device):
        total = torch.zeros(model.config.n_head, length, device=device)
        for part, counted in zip(residual.split(at_once), pairs.split(at_once)):
            scores = attention_scores(block.attention, block.norm_1(part)) * counted[:, None]
            total.index_add_(1, distance, scores.sum(0).flatten(1))
        profiles.append([[float(f'{v:.4g}') if v == v else None for v in head] for head in (total / count).tolist()])
    return profiles


@torch.no_grad()
def state_similarity(model, task, length, n, device, split, least=100):
    """
    How alike neighbouring states look. For each layer {state: [cosine, centred cosine]} of the mean residual stream
    after the layer in that state and in the next, as it is, and less the mean over all positions. States with fewer
    than `least` positions are left out. None if the task has no states.
    """
    x, _ = task.sample(stream(split, str(task), length), n, length, split)
    states = state(task, x)
    if states is None:
        return None
    states = torch.from_numpy(states).to(device).flatten()
    count = torch.bincount(states)
    common = [d for d in range(len(count) - 1) if min(count[d], count[d + 1]) >= least]
    layers = []
    for _, _, residual in walk(model, x, device):
        flat = residual.flatten(0, 1)  # (n T, C)
        means = torch.zeros(len(count), flat.size(1), device=device).index_add(0, states, flat) / count[:, None]
        cosines = [F.cosine_similarity(m[:-1], m[1:], dim=1).tolist() for m in (means, means - flat.mean(0))]
        layers.append({str(d): [round(c[d], 4) for c in cosines] for d in common})
    return layers


@torch.no_grad()
def distance_bias(model, x, near, far, device, rng, pairs=10_000):
    """
    Does the attention prefer near keys, whatever they are? For each layer the score of a near key less that of a far
    key, of random queries and heads on x (n, T): the mean, the sd, and the counts of a histogram of 40 bins from -4 to
    4 sd. Distances are drawn from near = (low, high) and from far, ends included. In appendix I of arXiv 2509.12635,
    near is 0 to 100 and far 10000 to 10100.
    """
    n, T = x.shape
    b, head = rng.integers(0, n, pairs), rng.integers(0, model.config.n_head, pairs)
    m = rng.integers(far[1], T, pairs)
    keys = [m - rng.integers(low, high + 1, pairs) for low, high in (near, far)]
    b, head, m, *keys = (torch.from_numpy(index).to(device) for index in (b, head, m, *keys))
    layers = []
    for block, residual, _ in walk(model, x, device):
        difference = torch.zeros(pairs, device=device)
        for i in range(n):  # a sequence at a time: its scores are (nh, T, T)
            mine = b == i
            scores = attention_scores(block.attention, block.norm_1(residual[i:i + 1]))[0]
            nearer, farther = (scores[head[mine], m[mine], key[mine]] for key in keys)
            difference[mine] = nearer - farther
        difference = difference.cpu()
        mean, sd = difference.mean().item(), difference.std().item()
        edge = 4 * sd or 1.0
        counts = torch.histc(difference.clamp(-edge, edge), 40, -edge, edge).int().tolist()
        layers.append(dict(mean=mean, sd=sd, edge=edge, counts=counts))
    return layers


@torch.no_grad()
def pair_means(model, x, device):
    """
    Assumption 2.1 of arXiv 2509.12635, on which its theorems on RoPE rest: E A_i and E B_i are the same for all pairs
    i, where the score sums Re[(A_i - 1j B_i) e^{1j (m-n) Omega_i}]. For RoPE that is q_i conj(k_i) before any rotation;
    a learned amplitude and phase belong to it. Their means over all tokens m > n of x (n, T): for each layer
    dict(A=, B=), each (nh, P) lists.
    """
    n, T = x.shape
    layers = []
    for block, residual, _ in walk(model, x, device):
        q, k, _ = block.attention.project(block.norm_1(residual))  # not turned yet
        q, k = (torch.complex(*t.float().chunk(2, dim=-1)) for t in (q, k))  # (n, nh, T, P)
        earlier = k.conj().cumsum(dim=2) - k.conj()  # the sum of the keys before each query
        _, A, Phi, Phi_key = block.attention.way.rotation()
        product = (q * earlier).sum(dim=(0, 2)) / (n * T * (T - 1) / 2) * torch.polar(A**2, Phi - Phi_key)  # (nh, P)
        layers.append(dict(A=[[round(v, 5) for v in head] for head in product.real.tolist()],
                           B=[[round(-v, 5) for v in head] for head in product.imag.tolist()]))
    return layers


# ----------------------------------------------------------------------------------------------------------------------
# A model on text


@torch.no_grad()
def read_windows(model, windows, device, choices=None):
    """
    Losses in nats and likeliest next tokens, each (n, T), at every position of windows (n, T + 1), int64 arrays. With
    `choices`, lists of token ids, also the number of the likeliest of these lists (n, T).
    """
    losses, likeliest, chosen = [], [], []
    T = windows.shape[1] - 1
    for window in torch.from_numpy(np.array(windows)).split(sequences_at_once(model.config, T, device)):
        window = window.to(device)
        logits = model(window[:, :-1])[0].float()  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction='none')
        losses.append(loss.view(-1, T).cpu())
        likeliest.append(logits.argmax(dim=-1).cpu())
        if choices is not None:
            together = torch.stack([logits[..., ids].logsumexp(dim=-1) for ids in choices], dim=-1)
            chosen.append(together.argmax(dim=-1).cpu())
    return [torch.cat(parts).numpy() for parts in (losses, likeliest, chosen) if parts]


def half_width(values):
    """The half-width of the 95 % interval of the mean of values (n, T), whose n rows are independent."""
    return float(1.96 * values.mean(axis=1).std(ddof=1) / math.sqrt(len(values)))


def summary(losses):
    """Of losses (n, T): mean in nats a token, half-width of its 95 % interval over the n rows, perplexity, tokens."""
    mean = float(losses.mean())
    return dict(loss=mean, interval=half_width(losses), perplexity=math.exp(mean), tokens=losses.size)


class Brackets:
    """
    The closing brackets of Python code among the targets at `places` (n, T) of a corpus.

    distance (n, T)  tokens from the one with the opener, 0 where the target is no such bracket
    depth (n, T)     the depth that the bracket closes, or 0
    closers          for each of `)`, `]` and `}` the ids of the tokens that begin with it; None without any bracket
    kind (V,)        which of the three a token begins with, or -1
    """

    def __init__(self, task, text, places):
        rows, self.closers = text.brackets, None
        self.kind = np.full(len(task.symbols), -1)
        distance, depth = np.zeros((2, len(text.tokens)), dtype=np.int64)
        if len(rows):
            distance[rows[:, 0]], depth[rows[:, 0]] = rows[:, 1:].T
            self.closers = [[i for i, symbol in enumerate(task.symbols) if symbol[:1] == c] for c in ')]}']
            for number, ids in enumerate(self.closers):
                self.kind[ids] = number
        self.distance, self.depth = distance[places], depth[places]

    def breakdown(self, right, truth, predicted_kind, length):
        """
        {group: {label: cell}} of the brackets whose opener is in the same window of `length` tokens: is the next token
        `right` (n, T) and, given the `truth`, the predicted kind? {} without such brackets.
        """
        from eval import cell
        inside = (self.distance > 0) & (self.distance <= np.arange(right.shape[1]) % length + 1)
        if not inside.any():
            return {}
        right_kind = predicted_kind == self.kind[truth]
        groups = {'closing brackets': {'right kind': cell(right_kind, inside), 'next token': cell(right, inside)}}
        runs = {'distance to the opener': label_runs(inside, self.distance, DISTANCES),
                'depth': label_runs(inside, self.depth, DEPTHS)}
        for name, masks in runs.items():
            groups[name] = {label: cell(right_kind, mask) for label, mask in masks.items()}
        return groups


def measure_text(model, task, lengths, n, device, split, stride):
    """
    The model on n excerpts of the longest of `lengths`, no two of which overlap and none of which crosses two files. So
    all lengths of the context have the same targets. Two dicts. First by length what eval.measure returns, from windows
    that do not overlap, with a breakdown of the closing brackets in Python code. Second {way: {length: summary}} of the
    loss with

        non-overlapping  these windows: a token sees from none to length - 1 before it
        sliding          windows that advance by `stride`, each scored on its last `stride` tokens; on a quarter of n
        same targets     the last `stride` tokens of every excerpt, with at least length - stride tokens before each

    and 'by position': [first, last, loss] of the positions in the longest window, in octaves.
    """
    longest = max(lengths)
    if any(longest % length for length in lengths) or stride > min(lengths):
        raise ValueError(f'lengths {lengths}, stride {stride}: each length must divide the longest, and none may be '
                         'shorter than the stride')
    text = corpus.of_task(task, split)
    excerpts, places = text.excerpts(longest + 1, n, stream(split, 'excerpts'))
    if len(excerpts) < 4:
        raise ValueError(f'{task}: its {split} split has {len(excerpts)} excerpts of {longest + 1} tokens, and 4 are '
                         'needed: choose smaller --multiples')
    brackets = Brackets(task, text, places[:, None] + np.arange(1, longest + 1))
    truth, table, ways = excerpts[:, 1:], {}, {'non-overlapping': {}, 'sliding': {}, 'same targets': {}}
    for length in lengths:
        windows = np.lib.stride_tricks.sliding_window_view(excerpts, length + 1, axis=1)  # (n, starts, length + 1)
        read = read_windows(model, windows[:, ::length].reshape(-1, length + 1), device, brackets.closers)
        losses, likeliest, *kinds = (a.reshape(len(excerpts), longest) for a in read)
        right = likeliest == truth
        accuracy = float(right.mean())
        table[str(length)] = dict(
            loss=float(losses.mean()), accuracy=accuracy, headline=accuracy, exact=float(right.all(axis=1).mean()),
            headline_interval=half_width(right), targets=right.size, sequences=len(right),
            breakdown=brackets.breakdown(right, truth, kinds[0], length) if kinds else {})
        ways['non-overlapping'][str(length)] = summary(losses)
        few = max(4, n // 4)
        ways['sliding'][str(length)] = summary(slide(model, windows[:few], losses[:few, :length], stride, device))
        ways['same targets'][str(length)] = summary(losses[:, -stride:])  # length divides the longest
    octaves = [(2**i, 2 ** (i + 1) - 1) for i in range(longest.bit_length() - 1)] + [(longest, longest)]
    ways['by position'] = [[a, b, float(losses[:, a - 1:b].mean())] for a, b in octaves]  # of the longest windows
    return table, ways


def slide(model, windows, first, stride, device):
    """
    The losses (n, any number) of windows (n, starts, length + 1) that advance by `stride`. Each is scored on its last
    `stride` tokens, but the first one on all; `first` (n, length) has the losses there.
    """
    later = windows[:, stride::stride]
    if later.shape[1] == 0:
        return first
    losses = read_windows(model, later.reshape(-1, later.shape[2]), device)[0]
    losses = losses.reshape(*later.shape[:2], -1)[:, :, -stride:]  # (n, starts, stride)
    return np.concatenate([first, losses.reshape(len(first), -1)], axis=1)
