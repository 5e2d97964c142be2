"""
What a model has learned, and what its parts are good for: where it is right, what its frequencies
became, closed eyes, scores by distance, where heads look, perplexity of a text.

Nothing here knows the formula of an attention. It takes the queries and keys that attend gets, and
attention.scores, if there is one. Letters are those of model.py.
"""

import contextlib
import functools
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F

from lab.tasks import label_runs, parts_by_position
from model import Bifocal, Spectral, UserError
from tasks import BioRotation, Dyck, Modulo, make_rng
from tasks import encode_texts, read_encoding, read_files

SCORES_AT_ONCE = 2**24
TOKENS_AT_ONCE = 2**15
# radians per token from a harmonic; after 448 tokens the angle is off by pi/7
LOCKED = 1e-3


# What is known of a task


def breakdown(task, x, y):
    """
    The parts of the targets y of x (B, T), {group: {label: (B, T) bool}}: those of the task's own
    method `breakdown`, or of PARTS.
    """
    if hasattr(task, 'breakdown'):
        return task.breakdown(x, y)
    return PARTS[type(task)](task, x, y) if type(task) in PARTS else {}


def parts_of_dyck(task, x, y):
    return {'depth': label_runs(task.headline(x, y), depth(task, x))}


def parts_of_bio_rotation(task, x, y):
    tau = np.arange(x.shape[1]) - 1 - task.period
    return {'turn': label_runs(y >= 0, np.maximum(tau, 0) // task.period + 1)}


PARTS = {Dyck: parts_of_dyck, BioRotation: parts_of_bio_rotation, Modulo: parts_by_position}


def depth(task, x):
    """Open brackets of Dyck after each symbol of x (B, T)."""
    return np.cumsum(np.where(x < task.k, 1, -1), axis=1) + 1  # bos opens none


def opener_distance(task, x):
    """
    Tokens from the target at each place of x (B, T), the next symbol, back to the opener of the
    innermost open bracket of Dyck; 0 where none is open.
    """
    opens, depths, position = x < task.k, depth(task, x), np.arange(x.shape[1])
    distance = np.zeros_like(x)
    for level in range(1, depths.max() + 1):
        openers = np.where(opens & (depths == level), position, -1)
        latest = np.maximum.accumulate(openers, axis=1)
        distance = np.where(depths == level, position + 1 - latest, distance)
    return distance


def sources(task, x):
    """
    (B, T) bools: the inputs that hold what the answers need; all of them for a task that is not
    listed here.
    """
    column = np.arange(x.shape[1])
    if isinstance(task, Dyck):
        return x < task.k
    if isinstance(task, BioRotation):
        return np.broadcast_to((column >= 1) & (column <= task.period), x.shape)
    if isinstance(task, Modulo):
        # only C0: the phase of a score may depend on c, and a mean over all c could be nothing
        return (column == 0) & (x[:, :1] == task.modulus)
    return np.ones_like(x, dtype=bool)


# Where a model is right, and what it has learned: tables


def cells(task, x, y, right):
    """
    What `breakdown` says of answers that are `right` (B, T) or not: {group: {label: [accuracy,
    number of targets]}}.
    """
    return {group: {label: [float(right[mask].mean()), int(mask.sum())]
                    for label, mask in masks.items() if mask.any()}
            for group, masks in breakdown(task, x, y).items()}


def print_breakdown(lengths):
    """The groups of `cells`, {length: {'breakdown': cells}}, a column a length; some rows."""
    for group, found in lengths[max(lengths, key=int)]['breakdown'].items():
        step = 1 + len(found) // 13
        print(f'\naccuracy by {group}')
        print(f'{"":>18s}' + ''.join(f'{length:>9s}' for length in lengths))
        for label in list(found)[::step]:
            row = f'{label:>18s}'
            for measured in lengths.values():
                value = measured['breakdown'].get(group, {}).get(label)
                row += f'{100 * value[0]:>7.2f} %' if value else f'{"-":>9s}'
            print(row)


def read_learned(lines, name):
    """
    What the validations of a log have of a learned parameter, such as Omega: (lines, numbers), the
    numbers of all layers one after the other. There are none if a log has no such parameter.
    """
    return np.array([np.concatenate([[], *map(np.ravel, line.get(name, []))]) for line in lines])


def frequency_table(model, period):
    """
    A dict for each learned pair: layer, head, pair, Omega (radians per token), theta (where Omega
    started), A, Phi. With a period also what `nearest_harmonic` says.
    """
    rows = []
    for layer, block in enumerate(model.blocks):
        attention = block.attention
        if not isinstance(attention, Spectral):
            continue
        heads, P = attention.Omega.shape
        first = model.config.n_head - heads  # bifocal's spectral heads are the last ones
        for i, pair in itertools.product(range(heads), range(P)):
            row = dict(layer=layer, head=first + i, pair=pair, theta=attention.theta[pair].item())
            for name in ('Omega', 'A', 'Phi'):
                row[name] = getattr(attention, name)[i, pair].item()
            if period:
                row |= nearest_harmonic(row['Omega'], period)
            rows.append(row)
    return rows


def nearest_harmonic(omega, period):
    """
    The harmonic h of 2 pi / period that is nearest to a frequency, the error
    |omega| - 2 pi h / period, and whether the error is small: locked.
    """
    h = round(abs(omega) * period / (2 * math.pi))
    error = abs(omega) - 2 * math.pi * h / period
    if h % period == 0:  # 2 pi per token rotates nothing
        h = 0
    return dict(harmonic=h, error=error, locked=h > 0 and abs(error) < LOCKED)


def is_near(row, period, length):
    """Is a pair of `nearest_harmonic` off by less than half a step, pi / period, at `length`?"""
    return row['harmonic'] > 0 and abs(row['error']) * length <= math.pi / period


def print_frequencies(rows, period, length):
    """Of the rows of `frequency_table` the pairs that are near a harmonic, at most twelve."""
    near = sorted((row for row in rows if is_near(row, period, length)),
                  key=lambda row: abs(row['error']))
    locked = sum(row['locked'] for row in rows)
    print(f'\n{len(near)} of {len(rows)} pairs are near a harmonic 2 pi h / {period}: off by less '
          f'than pi / {period} after {length} tokens.\n'
          f'Locked, within {LOCKED:g} of a harmonic: {locked}')
    if near:
        print(f'{"layer head pair":>18s} {"Omega":>9s} {"h":>3s} {"error":>10s} {"radians":>9s}')
    for row in near[:12]:
        mark = '  locked' if row['locked'] else ''
        print(f'{row["layer"]:>6d}{row["head"]:>6d}{row["pair"]:>6d} {row["Omega"]:>9.5f} '
              f'{row["harmonic"]:>3d} {row["error"]:>10.1e} {row["error"] * length:>9.3f}{mark}')


# What a model holds


@contextlib.contextmanager
def closed_eyes(model, kind):
    """
    Within it the 'geometric' or the 'spectral' heads of bifocal layers output zero. What remains
    is what the other eyes see. Raises UserError for a model without such layers.
    """
    layers = [block.attention for block in model.blocks if isinstance(block.attention, Bifocal)]
    if not layers:
        raise UserError(f'attention={model.config.attention!r}: only bifocal has eyes to close')
    n_head = model.config.n_head

    def close(heads, proj, inputs):
        y = inputs[0].unflatten(2, (n_head, -1)).clone()  # (B, T, nh, hs)
        y[:, :, heads] = 0
        return y.flatten(2)

    with contextlib.ExitStack() as stack:
        for attention in layers:
            first = n_head - len(attention.Omega)  # the last heads are spectral
            heads = dict(geometric=slice(first), spectral=slice(first, None))[kind]
            hook = attention.proj.register_forward_pre_hook(functools.partial(close, heads))
            stack.callback(hook.remove)
        yield


def sequences_at_once(model, T):
    """How many sequences of T tokens a layer reads at once: explicit scores are (B, nh, T, T)."""
    most = min(TOKENS_AT_ONCE // T, SCORES_AT_ONCE // (model.config.n_head * T**2))
    return max(1, most)


@torch.no_grad()
def walk(model, x, device):
    """
    (block, what it reads) of each layer, the latter (n, T, C), for an array of token ids x (n, T).
    """
    at_once = sequences_at_once(model, x.shape[1])
    after = model.embedding(torch.from_numpy(x).to(device))
    for block in model.blocks:
        before = after
        after = torch.cat([block(part) for part in before.split(at_once)])
        yield block, before


def queries_and_keys(attention, x):
    """q and k, each (B, nh, T, hs), as `attend` gets them, for what it reads, x."""
    found = []

    def keep(q, k, v):
        found.extend([q, k])
        return v  # nobody reads it

    attention.attend = keep
    try:
        attention(x)
    finally:
        del attention.attend
    return found


def scores_of(attention, q, k):
    """The scores (B, nh, T, S) of rotated q and k, before the mask."""
    if attention.scores is None:
        return q @ k.mT / math.sqrt(q.size(-1))
    return attention.scores(q, k)


@torch.no_grad()
def attention_scores(attention, x):
    """
    The scores of one layer before mask and softmax, (B, nh, T, T), for what its attention reads,
    x (B, T, C). Those of keys behind their query mean nothing.
    """
    return scores_of(attention, *queries_and_keys(attention, x))


def attention_weights(attention, x):
    """Where its heads look, (B, nh, T, T), for what it reads, x (B, T, C): the softmax of these."""
    scores = attention_scores(attention, x)
    later = torch.ones_like(scores[0, 0]).triu(1) > 0
    return scores.masked_fill(later, float('-inf')).softmax(dim=-1)


@torch.no_grad()
def score_by_distance(model, task, length, n, device):
    """
    The mean score that a query with an answer gives to a key that holds what answers need (see
    `sources`), at each distance m - n, on n test strings: nested lists (n_layer, nh, length), NaN
    where no pair is so far apart.
    """
    x, y = task.sample(make_rng('test', task.spec(without='path'), length), n, length, 'test')
    pairs = (y != -1)[:, :, None] & sources(task, x)[:, None, :]
    pairs = torch.from_numpy(pairs).to(device).tril()  # (n, T, T)
    position = torch.arange(length, device=device)
    distance = (position[:, None] - position).clamp(min=0).flatten()  # (T T,)
    zeros = torch.zeros(length, device=device)
    count = zeros.index_add(0, distance, pairs.sum(0).flatten().float())
    at_once = sequences_at_once(model, length)
    profiles = []
    for block, residual in walk(model, x, device):
        total = torch.zeros(model.config.n_head, length, device=device)
        for part, counted in zip(residual.split(at_once), pairs.split(at_once)):
            scores = attention_scores(block.attention, block.norm_1(part)) * counted[:, None]
            total.index_add_(1, distance, scores.sum(0).flatten(1))
        profiles.append((total / count).tolist())
    return profiles


@torch.no_grad()
def shares_by_distance(model, x, device, most=4):
    """
    Where heads look: the mean share of attention that goes to the key d tokens back, d = 0, ...,
    most - 1, over the queries of x (n, T) that have so many keys. Lists (n_layer, nh, most). A
    head whose share is near 1 at d = 1 looks one token back.
    """
    layers = []
    for block, residual in walk(model, x, device):
        total = torch.zeros(model.config.n_head, most, device=device)
        for part in residual.split(1):  # a sequence at a time: its scores are (nh, T, T)
            weights = attention_weights(block.attention, block.norm_1(part))[0]
            for d in range(most):
                total[:, d] += weights.diagonal(-d, 1, 2)[:, most - 1 - d:].mean(dim=-1)
        layers.append((total / len(x)).tolist())
    return layers


def shares_of_text(model, task, length, device):
    """`shares_by_distance` on eight test excerpts of a text. UserError if it has none so long."""
    excerpts = excerpts_of(task, 'test', length, 8, make_rng('test', 'pairs'))
    if len(excerpts) == 0:
        raise UserError(f'{task}: its test split has no excerpt of {length} tokens')
    return shares_by_distance(model, excerpts, device)


def looks_back_most(layers):
    """Of the lists that `shares_by_distance` gives, that of the head that looks one back most."""
    return max((head for layer in layers for head in layer), key=lambda head: head[1], default=None)


# A model on text


@functools.lru_cache(maxsize=4)
def read_tokens(path, encoding):
    """{split: token ids of each of its files, a list of arrays} of the text at `path`."""
    return {split: encode_texts(files.values(), read_encoding(encoding))
            for split, files in read_files(path).items()}


def excerpts_of(task, split, length, n, rng):
    """
    n excerpts (n, length) int64 of a text. No two overlap, and none lies in two files. There are
    fewer if the text has no more.
    """
    places = [(tokens, start) for tokens in read_tokens(task.path, task.encoding)[split]
              for start in range(0, len(tokens) - length + 1, length)]
    chosen = [places[i] for i in rng.permutation(len(places))[:n]]
    excerpts = [tokens[start:start + length] for tokens, start in chosen]
    return np.array(excerpts, dtype=np.int64).reshape(-1, length)


@torch.no_grad()
def read_in_windows(model, excerpts, length, stride, device):
    """
    Losses in nats and likeliest next tokens, each (n, T), of excerpts (n, T + 1), an int64 array,
    which the model reads in windows of `length` tokens that advance by `stride`. Each window tells
    of its last `stride` tokens, but the first one of all.
    """
    windows = torch.from_numpy(excerpts).unfold(1, length + 1, stride)  # (n, starts, length + 1)
    losses, likeliest = [], []
    for part in windows.flatten(0, 1).split(sequences_at_once(model, length)):
        x, y = part[:, :-1].to(device), part[:, 1:].to(device)
        logits = model(x)[0].float()  # (B, length, V)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction='none')
        losses.append(loss.cpu())
        likeliest.append(logits.argmax(dim=-1).cpu())

    def told(parts):
        each = torch.cat(parts).view(len(windows), -1, length)
        return torch.cat([each[:, 0], each[:, 1:, -stride:].flatten(1)], dim=1).numpy()
    return told(losses), told(likeliest)


def measure_contexts(model, task, T, lengths, n, device, split, stride):
    """
    The model, trained at T tokens, on n excerpts of the longest of `lengths`. No two overlap, and
    none lies in two files. So all lengths of the context have the same targets. By length:

    * what eval.measure returns, from windows that do not overlap; and the accuracy `beyond` of the
      targets at positions from T on
    * `perplexity`, from windows that advance by `stride`, each scored on its last `stride` tokens;
      on a quarter of the excerpts

    Each length divides the longest, and none is shorter than the stride. Raises UserError for a
    text that is too short.
    """
    longest = max(lengths)
    excerpts = excerpts_of(task, split, longest + 1, n, make_rng(split, 'excerpts'))
    if len(excerpts) < 4:
        raise UserError(f'{task}: its {split} split has {len(excerpts)} excerpts of {longest + 1} '
                        'tokens, and 4 are needed: choose smaller --multiples')
    table = {}
    for length in lengths:
        losses, likeliest = read_in_windows(model, excerpts, length, length, device)
        right = likeliest == excerpts[:, 1:]
        accuracy = float(right.mean())
        # excerpts are independent, tokens are not
        interval = 1.96 * right.mean(axis=1).std(ddof=1) / math.sqrt(len(right))
        few = excerpts[:max(4, n // 4)]
        sliding, _ = read_in_windows(model, few, length, stride, device)
        table[str(length)] = dict(
            loss=float(losses.mean()), accuracy=accuracy, headline=accuracy,
            exact=float(right.all(axis=1).mean()), headline_interval=float(interval),
            targets=right.size, sequences=len(right), breakdown={},
            perplexity=math.exp(sliding.mean()))
        if length > T:
            late = float(right[:, np.arange(longest) % length >= T].mean())
            table[str(length)].update(beyond=late, headline_beyond=late)
    return table
