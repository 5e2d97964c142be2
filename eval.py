"""
Measure a run: how well, at which lengths, where it fails, and what its frequencies became.

    python eval.py out/dyck3_spectral                        # tables, eval.json and figures in the run's folder
    python eval.py --compare out/dyck3_*                     # runs side by side, seeds of an arm together, and a figure
"""

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from configurator import check_key, choose_device, convert, free_memory, parse
from model import ROTARY, GPT, GPTConfig, load_checkpoint, tapa_scores
from tasks import label_runs, make_task, stream

LOCKED = 1e-3  # radians per token from a harmonic: the phase error stays below pi/7 for 448 tokens
SOLVED = 0.01  # nats of validation loss


# ----------------------------------------------------------------------------------------------------------------------
# One run


@torch.no_grad()
def measure(model, task, length, n, device, split='test', tokens_at_once=2**15):
    """
    The model on n fixed sequences of `length`, from a stream that no other split and no training batch is drawn from:
    loss (nats per target), accuracy, the accuracy that the task calls its headline with the half-width of its 95 %
    interval (sequences are independent, targets of one are not; the rule of three where none or all are right), the
    share of sequences without a mistake (exact), and the task's breakdown: {group: {label: [accuracy, targets, share of the
    sequences with such targets that have them all right]}}.
    """
    x, y = task.sample(stream(split, str(task), length), n, length, split)
    predicted, loss = [], 0.0
    at_once = fitting_batch(model.config, length, device, tokens_at_once)
    for xb, yb in zip(*(torch.from_numpy(a).split(at_once) for a in (x, y))):
        logits = model(xb.to(device))[0].float()
        loss += F.cross_entropy(logits.flatten(0, 1), yb.to(device).flatten(), ignore_index=-1, reduction='sum').item()
        predicted.append(logits.argmax(dim=-1).cpu())
    scored = y != -1
    right = (torch.cat(predicted).numpy() == y) & scored
    groups = task.breakdown(x, y)
    table = {group: {label: cell(right, mask) for label, mask in masks.items() if mask.any()} for group, masks in groups.items()}
    chosen = scored if task.headline is None else groups[task.headline[0]][task.headline[1]]
    if not chosen.any():  # such as the non-trivial closers of a Dyck language of depth 1
        chosen = scored
    headline = right[chosen].mean()
    residuals = (right & chosen).sum(axis=1) - headline * chosen.sum(axis=1)  # of each sequence
    interval = 1.96 * math.sqrt((residuals**2).sum()) / chosen.sum() if 0 < headline < 1 else 3 / n
    return dict(loss=loss / int(scored.sum()), accuracy=float(right[scored].mean()), headline=float(headline),
                headline_interval=float(interval),
                exact=float((right == scored).all(axis=1).mean()), targets=int(scored.sum()), sequences=n, breakdown=table)


def cell(right, mask):
    """[accuracy, targets, share of the rows with any target that are all right] of the targets in mask (n, T)."""
    return [float(right[mask].mean()), int(mask.sum()), float((right | ~mask).all(axis=1)[mask.any(axis=1)].mean())]


def fitting_batch(config, length, device, tokens_at_once=2**15):
    """How many sequences of `length` to read at once. Raises ValueError if the memory that is free does not hold one."""
    need, free = config.memory(1, length, device=device), free_memory(device)
    if need > free:
        raise ValueError(f'a context of {length} tokens needs about {need / 2**30:.1f} GiB with attention={config.attention!r}, and '
                         f'{free / 2**30:.1f} GiB are free on {device}: choose smaller --multiples')
    return int(max(1, min(tokens_at_once // length, free / 4 // need)))


# ----------------------------------------------------------------------------------------------------------------------
# A run on text


@torch.no_grad()
def read_windows(model, windows, device, choices=None):
    """
    The losses in nats and the likeliest next tokens, each (n, T), at every position of windows (n, T + 1), int64 arrays;
    with `choices`, lists of token ids, also the number of the likeliest of these lists (n, T).
    """
    losses, likeliest, chosen = [], [], []
    T = windows.shape[1] - 1
    for window in torch.from_numpy(np.array(windows)).split(fitting_batch(model.config, T, device)):
        window = window.to(device)
        logits = model(window[:, :-1])[0].float()  # (B, T, V)
        losses.append(F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction='none').view(-1, T).cpu())
        likeliest.append(logits.argmax(dim=-1).cpu())
        if choices is not None:
            chosen.append(torch.stack([logits[..., ids].logsumexp(dim=-1) for ids in choices], dim=-1).argmax(dim=-1).cpu())
    return [torch.cat(parts).numpy() for parts in (losses, likeliest, chosen) if parts]


def half_width(values):
    """The half-width of the 95 % interval of the mean of values (n, T), whose n rows are independent."""
    return float(1.96 * values.mean(axis=1).std(ddof=1) / math.sqrt(len(values)))


def summary(losses):
    """Of losses (n, T): the mean in nats a token, the half-width of its 95 % interval over the n excerpts, perplexity, tokens."""
    return dict(loss=float(losses.mean()), interval=half_width(losses), perplexity=math.exp(losses.mean()), tokens=losses.size)


def measure_text(model, task, lengths, n, device, split, stride):
    """
    The model on n excerpts of the longest of `lengths`, no two of which overlap and none of which crosses two files; the
    same targets whatever the length of the context. Two dicts. By length, what `measure` returns, from windows that do
    not overlap, with a breakdown of the closing brackets in Python code whose opener is in the window and that a
    token begins with: of the three kinds, is the likeliest the right one? And {way: {length: summary}} of the loss with

      non-overlapping  the windows above: a token sees from none to length - 1 before it
      sliding          windows that advance by `stride`, each of which scores its last `stride` tokens; on a quarter of n
      same targets     the last `stride` tokens of every excerpt, after length - stride tokens and more: nothing but the use of context

    and 'by position': [first, last, loss] of the positions in the longest window, in octaves.
    """
    longest = max(lengths)
    if any(longest % length for length in lengths) or stride > min(lengths):
        raise ValueError(f'lengths {lengths}, stride {stride}: each length must divide the longest, and none be shorter than the stride')
    corpus = task.corpus(split)
    excerpts, places = corpus.excerpts(longest + 1, n, stream(split, 'excerpts'))
    if len(excerpts) < 4:
        raise ValueError(f'{task}: its {split} split has {len(excerpts)} excerpts of {longest + 1} tokens, and 4 are needed: choose smaller --multiples')
    closers = [[i for i, symbol in enumerate(task.symbols) if symbol[:1] == c] for c in ')]}'] if len(corpus.brackets) else None
    kind = np.full(task.vocab_size, -1)  # of each token: which of the closers it begins with
    for number, ids in enumerate(closers or ()):
        kind[ids] = number
    distance, depth = np.zeros((2, len(corpus.tokens)), dtype=np.int64)
    distance[corpus.brackets[:, 0]], depth[corpus.brackets[:, 0]] = corpus.brackets[:, 1:].T
    target = places[:, None] + np.arange(1, longest + 1)  # (n, longest), in the corpus
    distance, depth, truth = distance[target], depth[target], excerpts[:, 1:]
    table, ways = {}, {'non-overlapping': {}, 'sliding': {}, 'same targets': {}}
    for length in lengths:
        windows = np.lib.stride_tricks.sliding_window_view(excerpts, length + 1, axis=1)  # (n, starts, length + 1), a view
        losses, likeliest, *kinds = (a.reshape(len(excerpts), longest) for a in read_windows(model, windows[:, ::length].reshape(-1, length + 1), device, closers))
        right = likeliest == truth
        result = dict(loss=float(losses.mean()), accuracy=float(right.mean()), headline=float(right.mean()), exact=float(right.all(axis=1).mean()),
                      headline_interval=half_width(right), targets=right.size, sequences=len(right), breakdown={})
        inside = (distance > 0) & (distance <= np.arange(longest) % length + 1)  # the opener is in the window
        if inside.any():
            right_kind = kinds[0] == kind[truth]
            bins = [(1, 2), (3, 9), (10, 31), (32, 99), (100, 315), (316, None)]
            result['breakdown'] = {'closing brackets': {'right kind': cell(right_kind, inside), 'next token': cell(right, inside)}}
            for name, values, edges in (('distance to the opener', distance, bins), ('depth', depth, [(d, d) for d in range(1, 7)] + [(7, None)])):
                result['breakdown'][name] = {label: cell(right_kind, mask) for label, mask in label_runs(inside, values, edges).items()}
        table[str(length)] = result
        ways['non-overlapping'][str(length)] = summary(losses)
        few = windows[:max(4, n // 4)]
        sliding, later = [losses[:len(few), :length]], few[:, stride::stride]  # the first windows have been read
        if later.shape[1]:
            read = read_windows(model, later.reshape(-1, length + 1), device)[0].reshape(len(few), -1, length)
            sliding.append(read[:, :, -stride:].reshape(len(few), -1))
        ways['sliding'][str(length)] = summary(np.concatenate(sliding, axis=1))
        ways['same targets'][str(length)] = summary(losses[:, -stride:])  # as have the last ones, for length divides longest
        print_row(f'{length} tokens', length, result, first=length == lengths[0])
    octaves = [(2**i, 2 ** (i + 1) - 1) for i in range(longest.bit_length() - 1)] + [(longest, longest)]
    ways['by position'] = [[a, b, float(losses[:, a - 1:b].mean())] for a, b in octaves]  # the last length was the longest
    return table, ways


def walk(model, x, device):
    """(block, what it reads, what it gives), the latter two (n, T, C), of each layer, for token ids x (n, T), an array."""
    after, positions = model.embedding(torch.from_numpy(x).to(device)), torch.arange(x.shape[1], device=device)
    for block in model.blocks:
        before, after = after, block(after, positions)
        yield block, before, after


@torch.no_grad()
def distance_bias(model, x, near, far, device, rng, pairs=10_000):
    """
    Does the attention prefer near keys, whatever they are? For each layer, score(query, near key) - score(query, far key) of
    random queries and heads on x (n, T), at distances drawn from near = (low, high) and from far, ends included: mean, sd,
    and the counts of a histogram of 40 bins from -4 to 4 sd (arXiv 2509.12635, appendix I: 0 to 100 against 10000 to 10100).
    """
    n, T = x.shape
    b, head = rng.integers(0, n, pairs), rng.integers(0, model.config.n_head, pairs)
    m = rng.integers(far[1], T, pairs)
    keys = [m - rng.integers(low, high + 1, pairs) for low, high in (near, far)]
    b, head, m, *keys = (torch.from_numpy(index).to(device) for index in (b, head, m, *keys))
    layers, positions = [], torch.arange(T, device=device)
    for block, residual, _ in walk(model, x, device):
        scores = attention_scores(block.attention, block.norm_1(residual), positions)  # (n, nh, T, T)
        difference = (scores[b, head, m, keys[0]] - scores[b, head, m, keys[1]]).cpu()
        mean, sd = difference.mean().item(), difference.std().item()
        edge = 4 * sd or 1.0
        counts = torch.histc(difference.clamp(-edge, edge), 40, -edge, edge).int().tolist()
        layers.append(dict(mean=mean, sd=sd, edge=edge, counts=counts))
    return layers


@torch.no_grad()
def pair_means(model, x, device):
    """
    Assumption 2.1 of arXiv 2509.12635, which theorems on RoPE rest on: that E A_i, E B_i are the same for all pairs i, where
    q_i conj(k_i) = A_i - 1j B_i before any rotation. Their means over all causal pairs of x (n, T): (n_layer, nh, P) lists.
    """
    layers, nowhere = [], torch.zeros(x.shape[1], device=device)
    for block, residual, _ in walk(model, x, device):
        q, k, _ = block.attention.heads(block.norm_1(residual), nowhere)  # nothing is turned at position 0
        k = k.repeat_interleave(model.config.n_head // model.config.nkv, dim=1)
        q, k = (torch.complex(*t.float().chunk(2, dim=-1)) for t in (q, k))  # (n, nh, T, P)
        past = k.conj().cumsum(dim=2) - k.conj()  # the sum of the keys before each query
        product = (q * past).sum(dim=(0, 2)) / (len(x) * x.shape[1] * (x.shape[1] - 1) / 2)  # (nh, P)
        layers.append(dict(A=[[round(v, 5) for v in head] for head in product.real.tolist()],
                           B=[[round(-v, 5) for v in head] for head in product.imag.tolist()]))
    return layers


# ----------------------------------------------------------------------------------------------------------------------
# What a model holds


def frequency_table(model, period, lengths):
    """
    Every learned pair: layer, head, pair, Omega (radians per token), the theta that it set off from, A, Phi, and with a period P
    the harmonic j whose 2 pi j / P is nearest, the error Omega - 2 pi j / P, and the phase error that this makes at a lag of
    each length.
    """
    rows = []
    for layer, rotary in enumerate(model.spectral()):
        theta = (rotary.stretch * rotary.theta).tolist()
        for head, omegas in enumerate((rotary.stretch * rotary.Omega).tolist()):
            for pair, omega in enumerate(omegas):
                A, Phi = rotary.A[head, pair].item(), rotary.Phi[head, pair].item()
                row = dict(layer=layer, head=head, pair=pair, Omega=omega, theta=theta[pair], A=A, Phi=Phi)
                if period:
                    j = round(abs(omega) * period / (2 * math.pi))
                    error = abs(omega) - 2 * math.pi * j / period
                    j = j if j % period else 0  # at whole positions, a whole turn a token is no turn
                    row.update(harmonic=j, error=error, locked=j > 0 and abs(error) < LOCKED,
                               phase_error={str(length): error * length for length in lengths})
                rows.append(row)
    return rows


@torch.no_grad()
def attention_scores(attention, x, positions):
    """The scores of one layer before mask and softmax, (B, nh, T, T), given what its attention reads, x (B, T, C)."""
    config = attention.config
    q, k, _ = attention.heads(x, positions)
    k = k.repeat_interleave(config.n_head // config.nkv, dim=1)
    if attention.tapa is None:
        return q @ k.mT / math.sqrt(config.head_size)
    distance = (positions[:, None] - positions).abs().float() ** config.tapa_alpha
    return tapa_scores(q, k, distance, config.tapa_theta, config.tapa_phase)


@torch.no_grad()
def score_by_distance(model, task, length, n, device, split):
    """
    The mean score of a query that must answer for a key that holds what answers need (`task.sources`), at each distance
    m - n: nested lists (n_layer, nh, length), None where no pair is so far apart.
    """
    x, y = task.sample(stream(split, str(task), length), n, length, split)
    pairs = torch.from_numpy((y != -1)[:, :, None] & task.sources(x)[:, None, :]).to(device).tril()  # (n, T, T)
    positions = torch.arange(length, device=device)
    distance = (positions[:, None] - positions).clamp(min=0).flatten()  # (T T,)
    count = torch.zeros(length, device=device).index_add(0, distance, pairs.sum(0).flatten().float())
    profiles = []
    for block, residual, _ in walk(model, x, device):
        scores = (attention_scores(block.attention, block.norm_1(residual), positions) * pairs[:, None]).sum(0)  # (nh, T, T)
        total = torch.zeros(len(scores), length, device=device).index_add(1, distance, scores.flatten(1))
        profiles.append([[float(f'{v:.4g}') if v == v else None for v in head] for head in (total / count).tolist()])
    return profiles


@torch.no_grad()
def state_similarity(model, task, length, n, device, split, least=100):
    """
    How alike neighbouring states look: for each layer {state: [cosine, centred cosine]} of the mean residual stream after
    it in that state (`task.state`) and in the next, as it is and with the mean over all positions taken off. States with
    fewer than `least` positions are left out. None if the task has no states.
    """
    x, _ = task.sample(stream(split, str(task), length), n, length, split)
    states = task.state(x)
    if states is None:
        return None
    states = torch.from_numpy(states).to(device).flatten()
    count = torch.bincount(states)
    layers = []
    for _, _, residual in walk(model, x, device):
        flat = residual.flatten(0, 1)
        means = torch.zeros(len(count), flat.size(1), device=device).index_add(0, states, flat) / count[:, None]
        cosines = [F.cosine_similarity(m[:-1], m[1:], dim=1).tolist() for m in (means, means - flat.mean(0))]
        layers.append({str(d): [round(c[d], 4) for c in cosines] for d in range(len(count) - 1) if min(count[d], count[d + 1]) >= least})
    return layers


def evaluate_run(folder, checkpoint, multiples, n, device, split, overrides, stride):
    """All that there is to measure about the run in `folder`, with GPTConfig fields replaced, as a dict that json can write."""
    saved = load_checkpoint(folder / checkpoint)
    task = make_task(saved['task'])
    model = GPT.from_checkpoint(folder / checkpoint, **overrides).to(device).eval()
    T = saved['options']['block_size']
    n = n or (64 if task.open_ended else 512)
    multiples = multiples or ((0.125, 0.25, 0.5, 1, 2, 4, 8) if task.open_ended else (1, 2, 4, 8))
    if fractions := [m for m in multiples if m * T % 1 or m * T < 1]:
        raise ValueError(f'--multiples {fractions[0]:g}: of the training length, {T} tokens, that is no whole number of tokens')
    lengths = sorted({round(multiple * T) for multiple in multiples})
    fitting_batch(model.config, max(lengths), device)
    result = dict(task=str(task), attention=model.config.attention, checkpoint=checkpoint, split=split, n=n, iter=saved['iter'],
                  block_size=T, chance=task.chance, headline=task.headline, overrides=overrides, lengths={}, variants={}, eyes={})
    if task.open_ended:
        if saved.get('data') and saved['data']['sha256'] != task.record()['sha256']:
            complain(f'{folder}: this is not the text that it was trained on, which may lie in the {split} split now')
        stride = stride or min(min(lengths), max(1, T // 4))
        result['lengths'], result['perplexity'] = measure_text(model, task, lengths, n, device, split, stride)
        result['stride'] = stride
        x = task.corpus(split).excerpts(2 * T, 8, stream(split, 'pairs'))[0]
        for name, one in (('trained', model), ('at the start', GPT(model.config).to(device).eval())):
            result.setdefault('distance_bias', {})[name] = distance_bias(one, x, (0, T // 16), (T, T + T // 16), device, stream(split, 'pairs'))
        if model.config.attention in ROTARY and not model.config.log_scale:
            result['pair_means'] = pair_means(model, x[:, :T], device)
        if model.spectral():
            result['frequencies'] = frequency_table(model, None, lengths)
        return result
    for length in lengths:
        result['lengths'][str(length)] = measure(model, task, length, n, device, split)
        print_row(f'{length / T:g}x', length, result['lengths'][str(length)], first=length == lengths[0])
    for label, variant in task.variants().items():
        result['variants'][label] = {}
        for length in lengths:
            result['variants'][label][str(length)] = measure(model, variant, length, n, device, split)
            print_row(label, length, result['variants'][label][str(length)])
    for kind in ('geometric', 'spectral') if 0 < model.config.n_spectral < model.config.nkv else ():
        for layers in [None, *([layer] for layer in range(model.config.n_layer) if model.config.n_layer > 1)]:
            label = kind + (f' {layers[0]}' if layers else '')
            with model.closed_eyes(kind, layers):
                result['eyes'][label] = measure(model, task, T, n, device, split)
            print_row(f'no {kind} eyes' if layers is None else f'... layer {layers[0]}', T, result['eyes'][label])
    if model.spectral():
        result['frequencies'] = frequency_table(model, task.period, lengths)
    result['score_by_distance'] = score_by_distance(model, task, 2 * T, n, device, split)
    result['state_similarity'] = state_similarity(model, next(iter(task.variants().values()), task), 4 * T, min(n, 128), device, split)
    return result


def print_row(label, length, m, first=False):
    """A row of the table of lengths; the `first` brings the header."""
    if first:
        print('headline: accuracy, ± half its 95 % interval, on the targets that matter (all, unless the task knows better);\n'
              'exact: sequences without a mistake\n')
        print(f'{"":>18s} {"tokens":>7s} {"loss":>10s} {"accuracy":>9s} {"headline":>18s} {"exact":>8s}')
    headline = f'{100 * m["headline"]:.2f} ± {100 * m["headline_interval"]:.2f} %'
    print(f'{label:>18s} {length:>7d} {m["loss"]:>10.5f} {100 * m["accuracy"]:>7.2f} % '
          f'{headline:>18s} {100 * m["exact"]:>6.1f} %', flush=True)


def print_details(result):
    """The breakdowns, a column a length, and the frequencies that are near a harmonic."""
    lengths = result['lengths']
    if 'perplexity' in result:
        ways = {way: cells for way, cells in result['perplexity'].items() if way != 'by position'}
        print(f'\nperplexity by context, stride {result["stride"]}\n{"tokens":>18s}' + ''.join(f'{way:>20s}' for way in ways))
        for length in lengths:
            print(f'{length:>18s}' + ''.join(f'{cells[length]["perplexity"]:>20.3f}' for cells in ways.values()))
        print(f'\nscore of a near key less that of a far one, mean ± sd\n{"layer":>18s}{"at the start":>20s}{"trained":>20s}')
        for layer, (a, b) in enumerate(zip(result['distance_bias']['at the start'], result['distance_bias']['trained'])):
            print(f'{layer:>18d}' + ''.join(f'{one["mean"]:>12.2f} ± {one["sd"]:.2f}' for one in (a, b)))
    for group in dict.fromkeys(group for m in lengths.values() for group in m['breakdown']):
        labels = list(dict.fromkeys(label for m in lengths.values() for label in m['breakdown'].get(group, ())))
        print(f'\naccuracy by {group}\n{"":>18s}' + ''.join(f'{length:>9s}' for length in lengths))
        for label in labels[:12]:
            cells = (m['breakdown'].get(group, {}).get(label) for m in lengths.values())
            print(f'{label:>18s}' + ''.join(f'{100 * cell[0]:>7.2f} %' if cell else f'{"-":>9s}' for cell in cells))
        if len(labels) > 12:
            print(f'{"...":>18s} {len(labels) - 12} more rows in eval.json')
    rows = result.get('frequencies', [])
    if rows:
        print(f'\nwhat moved: Omega against the theta it set off from, radians per token\n{"layer head":>18s} {"largest move":>34s} '
              f'{"median |move|":>14s} {"median |move| / theta":>22s} {"A":>16s}')
        heads = list(dict.fromkeys((row['layer'], row['head']) for row in rows))
        for layer, head in heads[:24]:
            pairs = [row for row in rows if (row['layer'], row['head']) == (layer, head)]
            far = max(pairs, key=lambda row: abs(row['Omega'] - row['theta']))
            moves = [abs(row['Omega'] - row['theta']) for row in pairs]
            print(f'{layer:>13d}{head:>5d} pair {far["pair"]:>3d}: {far["theta"]:>10.5f} to {far["Omega"]:>10.5f} {statistics.median(moves):>14.2e} '
                  f'{statistics.median(move / row["theta"] if row["theta"] else math.inf for move, row in zip(moves, pairs)):>22.3f} '
                  f'{min(row["A"] for row in pairs):>7.2f} to {max(row["A"] for row in pairs):>5.2f}')
        if len(heads) > 24:
            print(f'{"...":>18s} {len(heads) - 24} more heads in eval.json')
    harmonic = [row for row in rows if row.get('harmonic')]
    if harmonic:
        P = make_task(result['task']).period
        print(f'\nfrequencies nearest to a harmonic 2 pi j / {P}: phase error, in radians, at a lag of each length '
              f'(beyond pi / {P} = {math.pi / P:.2f} it points at another answer)')
        print(f'{"layer head pair":>18s} {"Omega":>9s} {"j":>3s} {"error":>10s}' + ''.join(f'{length:>9s}' for length in lengths))
        for row in sorted(harmonic, key=lambda row: abs(row['error'])):
            print(f'{row["layer"]:>8d}{row["head"]:>5d}{row["pair"]:>5d} {row["Omega"]:>9.5f} {row["harmonic"]:>3d} '
                  f'{row["error"]:>10.1e}' + ''.join(f'{row["phase_error"][length]:>9.3f}' for length in lengths) + ('  locked' if row['locked'] else ''))
        print(f'{sum(row["locked"] for row in rows)} of {len(rows)} pairs locked (within {LOCKED:g} of a harmonic); '
              f'{len(rows) - len(harmonic)} are nearer to standing still')


# ----------------------------------------------------------------------------------------------------------------------
# Figures


def pyplot():
    """matplotlib's pyplot, or None with a word on how to get it."""
    try:
        import matplotlib
    except ImportError:
        print('no figures: they need matplotlib (pip install matplotlib)')
        return None
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    plt.rcParams.update({'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'grid.alpha': 0.3,
                         'legend.frameon': False, 'figure.constrained_layout.use': True})
    return plt


def read_log(folder):
    """The lines of a run's log.jsonl, as dicts."""
    lines = (Path(folder) / 'log.jsonl').read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith('\n')]  # a killed run may leave half a line


def plot_losses(axes, log, color, label, floor=1e-6, **style):
    """Validation loss by iteration, on a logarithmic axis that ends at `floor`; `style` is plot's."""
    validations = [line for line in log if 'val_loss' in line]
    losses = [max(floor, line['val_loss']) for line in validations]
    axes.plot([line['iter'] for line in validations], losses, color=color, label=label, **style)
    axes.set(yscale='log', xlabel='iteration', ylabel=f'validation loss (nats, at least {floor:g})')


def plot_lengths(axes, results, color, label, chance):
    """Headline accuracy by length: the mean over results, and each of them as a dot."""
    lengths = sorted(map(int, results[0]['lengths']))
    values = [[100 * r['lengths'][str(length)]['headline'] for r in results] for length in lengths]
    axes.plot(lengths, [statistics.mean(v) for v in values], color=color, label=label)
    for length, v in zip(lengths, values):
        axes.plot([length] * len(v), v, 'o', color=color, markersize=4, alpha=0.6)
    axes.axhline(100 * chance, color='grey', linestyle=':', linewidth=1)
    axes.set(xscale='log', xlabel=f'length (tokens; trained at {results[0]["block_size"]})', ylim=(-3, 103))
    axes.set_ylabel(' '.join(['accuracy on', *reversed(results[0]['headline'] or ['all targets'])]) + ' (%)')
    axes.set_xticks(lengths, map(str, lengths))
    axes.minorticks_off()


def plot_perplexity(axes, results, way, color, label):
    """Perplexity by the length of the context: the mean over results, and each of them as a dot."""
    lengths = sorted(map(int, results[0]['perplexity'][way]))
    values = [[r['perplexity'][way][str(length)]['perplexity'] for r in results] for length in lengths]
    line, = axes.plot(lengths, [statistics.geometric_mean(v) for v in values], color=color, label=label)
    for length, v in zip(lengths, values):
        axes.plot([length] * len(v), v, 'o', color=line.get_color(), markersize=4, alpha=0.6)
    axes.axvline(results[0]['block_size'], color='grey', linestyle=':', linewidth=1)
    axes.set(xscale='log', yscale='log', xlabel='context (tokens; dotted: trained)', ylabel='perplexity')
    axes.set_xticks(lengths, map(str, lengths))
    low, high = axes.get_ylim()
    of_ten = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high < 10 * low else (1, 2, 5)
    ticks = [tick * 10**power for power in range(6) for tick in of_ten if low <= tick * 10**power <= high]
    axes.set_yticks(ticks, [f'{tick:g}' for tick in ticks])
    axes.minorticks_off()


def plot_heat(axes, results, group):
    """The share of sequences that are right from end to end, the mean over results, by length and by the labels of a group; the image."""
    lengths = list(results[0]['lengths'])
    labels = list(results[0]['lengths'][lengths[-1]]['breakdown'][group])
    cells = lambda length, label: [100 * r['lengths'][length]['breakdown'][group].get(label, [0, 0, math.nan])[2] for r in results]
    rows = [[statistics.mean(cells(length, label)) for label in labels] for length in lengths]
    image = axes.imshow(rows, cmap='viridis', vmin=0, vmax=100, aspect='auto', origin='lower')
    axes.set(xlabel=group, ylabel='length (tokens)', xticks=range(0, len(labels), 3), xticklabels=labels[::3], yticks=range(len(rows)), yticklabels=lengths)
    axes.grid(False)
    return image


def draw_run(folder, result):
    """FOLDER/accuracy.png: loss while training, accuracy by length and by the task's groups; FOLDER/frequencies.png, moves.png."""
    plt = pyplot()
    if plt is None:
        return
    log, lengths = read_log(folder), result['lengths']
    groups = [group for group in dict.fromkeys(group for m in lengths.values() for group in m['breakdown'])
              if max(len(m['breakdown'].get(group, ())) for m in lengths.values()) > 2]
    figure, panels = plt.subplots(1, 2 + len(groups), figsize=(4.2 * (2 + len(groups)), 3.4))
    plot_losses(panels[0], log, 'C0', None)
    if 'perplexity' in result:
        for way in ('non-overlapping', 'sliding', 'same targets'):
            plot_perplexity(panels[1], [result], way, None, way)
        panels[1].legend()
    else:
        plot_lengths(panels[1], [result], 'C0', None, result['chance'])
    for axes, group in zip(panels[2:], groups):
        if group == 'depth of the key':
            figure.colorbar(plot_heat(axes, [result], group), ax=axes, label='all five digits right (%)')
            continue
        for i, (length, m) in enumerate(reversed(lengths.items())):
            cells = m['breakdown'].get(group, {})
            axes.plot(list(cells), [100 * cell[0] for cell in cells.values()], 'o-', markersize=3, label=f'{length} tokens',
                      color=plt.cm.viridis(i / len(lengths)))
        axes.axhline(100 * result['chance'], color='grey', linestyle=':', linewidth=1)
        axes.set(xlabel=group, ylim=(-3, 103))
        ticks = axes.get_xticks()
        axes.set_xticks(ticks[::max(1, len(ticks) // 8)])
        axes.legend()
    figure.suptitle(f'{result["task"]}, {result["attention"]} (dotted: chance)')
    figure.savefig(folder / 'accuracy.png', dpi=130)
    plt.close(figure)
    print(f'wrote {folder}/accuracy.png')
    if 'frequencies' in result:
        period = make_task(result['task']).period
        figure = draw_frequencies(plt, log, period, f'{result["task"]}, {result["attention"]}')
        figure.savefig(folder / 'frequencies.png', dpi=130)
        plt.close(figure)
        figure, axes = plt.subplots(figsize=(5.2, 4.2))
        plot_moves(axes, result['frequencies'], period, c=[row['layer'] for row in result['frequencies']], cmap='plasma')
        axes.set_title(f'{result["task"]}, {result["attention"]}, a colour a layer' + (f', dashed: $2\\pi j/{period}$' if period else ''), fontsize=9)
        figure.savefig(folder / 'moves.png', dpi=130)
        plt.close(figure)
        print(f'wrote {folder}/frequencies.png, {folder}/moves.png')


def plot_moves(axes, rows, period, **style):
    """Omega of every pair of a frequency_table against the theta that it set off from, with the task's harmonics; `style` is scatter's."""
    theta, omega = ([row[name] for row in rows] for name in ('theta', 'Omega'))
    top, low = 1.3 * max(*theta, *omega, 2 * math.pi / period if period else 0), max(1e-6, 0.5 * min(theta))
    axes.plot([low, top], [low, top], color='#BBBBBB', linewidth=1, zorder=1)
    for j in range(1, math.floor(top * period / (2 * math.pi)) + 1) if period else ():
        axes.axhline(2 * math.pi * j / period, color='black', linewidth=0.8, linestyle='--', zorder=1)
    axes.scatter(theta, [max(low, w) for w in omega], s=14, alpha=0.8, zorder=2, **style)  # at the bottom: zero, or below
    axes.set(xscale='log', yscale='log', xlim=(low, top), ylim=(low, top), xlabel='theta, before (radians per token)',
             ylabel='Omega, after (radians per token)')


def draw_frequencies(plt, log, period, title):
    """Omega of every layer and head against the iteration, the harmonics of the task as lines, the loss below."""
    validations = [line for line in log if 'Omega' in line]
    steps = [line['iter'] for line in validations]
    omega = torch.tensor([line['Omega'] for line in validations])  # (steps, n_layer, heads, P)
    together = omega.size(1) * omega.size(2) > 16  # a panel a layer, and only of the first ones
    omega = omega.flatten(2)[:, :8, None] if together else omega
    heads = [(layer, head) for layer in range(omega.size(1)) for head in range(omega.size(2))]
    top = 1.12 * max(1.0, omega.max().item(), 2 * math.pi / period if period else 0)  # room for the legend
    figure, panels = plt.subplots(2, len(heads), figsize=(max(6, 4.2 * len(heads)), 5.6), height_ratios=(3, 1), sharex=True,
                                  squeeze=False)
    for column, (layer, head) in enumerate(heads):
        axes = panels[0, column]
        for j in range(1, math.floor(top * period / (2 * math.pi)) + 1) if period else ():
            axes.axhline(2 * math.pi * j / period, color='C3', linewidth=1, label=f'$2\\pi j/{period}$' if j == 1 else None)
        axes.plot(steps, omega[:, layer, head], color='C0', linewidth=1.2)
        axes.set(title=f'layer {layer}' + ('' if together else f', spectral head {head}'), ylim=(min(0, omega.min().item()) - 0.02, top))
        plot_losses(panels[1, column], log, 'black', None)
        panels[1, column].set_ylabel('val loss' if column == 0 else '')
    panels[0, 0].set_ylabel('frequency Omega (radians per token)')
    if period:
        panels[0, 0].legend(loc='upper right')
    figure.suptitle(title)
    return figure


# ----------------------------------------------------------------------------------------------------------------------
# Several runs

# the same colour for the same arm in every figure, told apart by the colour-blind too (Okabe and Ito)
COLORS = {'nope': '#999999', 'rope': '#0072B2', 'resonance': '#56B4E9', 'oracle': '#000000', 'spectral': '#D55E00',
          'bifocal': '#009E73', 'tapa': '#CC79A7'}
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # Student's t, by degrees of freedom from 1
BUDGET = ('max_iters', 'batch_size', 'gradient_accumulation_steps', 'block_size')
NO_ARM = ('out_dir', 'seed', 'overwrite', 'init_from', 'device', 'log_interval', 'eval_interval', 'task', 'attention', 'learning_rate')


def complain(text):
    """A word on stderr: what is on stdout may be a table of the README."""
    print(text, file=sys.stderr, flush=True)


def read_run(folder, name='eval.json'):
    """The run in a folder as a dict of its options, eval and log; None, and a word on stderr, for one that is not whole."""
    folder = Path(folder)
    missing = [file for file in ('config.json', 'log.jsonl', name) if not (folder / file).exists()]
    if missing:
        complain(f'skipped {folder}: it has no {", ".join(missing)}')
        return None
    try:
        run = dict(folder=folder, options=json.loads((folder / 'config.json').read_text())['options'],
                   eval=json.loads((folder / name).read_text()), log=read_log(folder))
    except (json.JSONDecodeError, KeyError) as error:
        complain(f'skipped {folder}: a file is broken ({error})')
        return None
    last = max((line['iter'] for line in run['log']), default=0)
    if last < run['options']['max_iters']:
        complain(f'skipped {folder}: it stopped at iteration {last} of {run["options"]["max_iters"]}')
        return None
    run['validations'] = [line for line in run['log'] if 'val_loss' in line]
    return run


def arm_name(options, differing):
    """What the arm of a run is called: its attention, or the grid that makes another of it, and what else is not the default."""
    name = options['attention']
    defaults = {field.name: field.default for field in dataclasses.fields(GPTConfig)}
    differing = [key for key in differing if options[key] != defaults.get(key, 0)]  # 0 is off, of what is not the model's
    if name == 'rope' and options.get('rope_grid') in ('resonance', 'harmonic'):
        name = {'resonance': 'resonance', 'harmonic': 'oracle'}[options['rope_grid']]
        differing = [key for key in differing if key not in ('rope_grid', 'rope_period')]
    return ' '.join([name, *(f'{key}={options[key]}' for key in differing)])


def read_arms(folders, name='eval.json', force=False):
    """
    {task: {arm: [runs, by seed]}}: the runs of an arm differ in the seed alone. Runs that are not whole are skipped.
    Raises ValueError if none is left, and, without `force`, for runs of other tasks, budgets or ways of measuring.
    """
    runs = [run for run in (read_run(folder, name) for folder in dict.fromkeys(Path(f).resolve() for f in folders)) if run]
    if not runs:
        raise ValueError('none of these is a finished and evaluated run: `python eval.py DIR` each of them first')
    for what, of in (('tasks', lambda run: run['eval']['task']),
                     ('budgets', lambda run: ', '.join(f'{key}={run["options"][key]}' for key in BUDGET)),
                     ('measurements', lambda run: str([run['eval'][key] for key in ('checkpoint', 'split', 'n')] + list(run['eval']['lengths'])))):
        kinds = {of(run): run['folder'].name for run in runs}
        if len(kinds) > 1 and not force:
            raise ValueError(f'different {what}: ' + '; '.join(f'{kind} ({folder})' for kind, folder in kinds.items())
                             + '. Compare them with --force, if you know what you do')
    values = {}
    for run in runs:
        for key, value in run['options'].items():
            values.setdefault((run['eval']['task'], run['options']['attention'], key), set()).add(repr(value))
    names, rates, arms = {}, {}, {}
    for run in runs:
        task, options = run['eval']['task'], run['options']
        differing = [key for key in options if key not in NO_ARM and len(values[task, options['attention'], key]) > 1]
        names[run['folder']] = name = arm_name(options, differing)
        rates.setdefault((task, name), set()).add(options['learning_rate'])
    for run in sorted(runs, key=lambda run: run['options']['seed']):
        task, name = run['eval']['task'], names[run['folder']]
        if len(rates[task, name]) > 1:
            name += f' learning_rate={run["options"]["learning_rate"]}'
        arms.setdefault(task, {}).setdefault(name, []).append(run)
    order = {name: i for i, name in enumerate(COLORS)}  # others come last
    return {task: dict(sorted(arms[task].items(), key=lambda item: order.get(item[0].split()[0], len(order)))) for task in sorted(arms)}


def best_loss(run):
    """The least validation loss of a run, in nats."""
    return min(line['val_loss'] for line in run['validations'])


def iterations_to(run, loss=SOLVED):
    """The first validated iteration at or below `loss`; None if there is none."""
    return next((line['iter'] for line in run['validations'] if line['val_loss'] <= loss), None)


def lock_in(run):
    """
    The lock-in event: the first validated iteration from which some pair stays within LOCKED of a harmonic 2 pi j / P
    (j not a multiple of P) to the end; None if none does, or there is nothing to lock onto.
    """
    period = make_task(run['eval']['task']).period
    lines = [line for line in run['validations'] if 'Omega' in line]
    if not period or not lines:
        return None
    omega = torch.tensor([line['Omega'] for line in lines], dtype=torch.float64).abs().flatten(1)  # (steps, pairs)
    j = (omega * period / (2 * math.pi)).round()
    locked = ((omega - 2 * math.pi * j / period).abs() < LOCKED) & (j % period != 0)
    stays = locked.flip(0).int().cumprod(0).flip(0).sum(0)  # validations that each pair has been locked for, at the end
    return lines[len(lines) - stays.max()]['iter'] if stays.max() else None


def extrapolation(run):
    """The extrapolation score: the mean headline accuracy over the lengths beyond the training length."""
    beyond = [m['headline'] for length, m in run['eval']['lengths'].items() if int(length) > run['eval']['block_size']]
    return statistics.mean(beyond) if beyond else math.nan


def spread(values, scale=1.0, digits=1):
    """'mean ± sd', or the value of a single run."""
    values = [scale * v for v in values]
    mean = f'{statistics.mean(values):.{digits}f}'
    return mean if len(values) == 1 else f'{mean} ± {statistics.stdev(values):.{digits}f}'


def quartiles(values, form='.2g'):
    """'median [quartiles]' of numbers, where None is worse than any; a single value as it is."""
    show = lambda v: '-' if math.isinf(v) else format(v, form)
    values = sorted(math.inf if v is None else v for v in values)
    if len(values) == 1:
        return show(values[0])
    at = lambda q: values[math.floor(q)] if q % 1 == 0 else values[math.floor(q)] + q % 1 * (values[math.ceil(q)] - values[math.floor(q)])
    cuts = [at(share * (len(values) - 1)) for share in (0.25, 0.5, 0.75)]
    low, median, high = (show(math.inf if math.isnan(cut) else cut) for cut in cuts)
    return f'{median} [{low}, {high}]'


def paired(ours, theirs):
    """
    Two arms on the same seeds: the mean of the differences, the half-width of its 95 % interval (Student's t), and the
    two-sided p of the exact sign-flip test, which assumes only that under the null a difference may as well be negative;
    with n seeds it cannot fall below 2 / 2^n. Means nothing for one seed: then the last two are nan.
    """
    differences = [a - b for a, b in zip(ours, theirs)]
    n, mean = len(differences), statistics.mean(differences)
    if n < 2:
        return mean, math.nan, math.nan
    half = T_975[min(n - 2, len(T_975) - 1)] * statistics.stdev(differences) / math.sqrt(n)
    flips = [abs(sum(sign * d for sign, d in zip(signs, differences))) for signs in itertools.product((1, -1), repeat=min(n, 15))]
    p = sum(flip >= abs(sum(differences[:15])) * (1 - 1e-9) for flip in flips) / len(flips)
    return mean, half, p


def difference(ours, theirs, digits=1):
    """'+12.3 ± 4.5, p 0.06': what `paired` says, in words for a table."""
    mean, half, p = paired(ours, theirs)
    return f'{mean:+.{digits}f} ± {half:.{digits}f}, p {p:.2g}'


def against(runs, baseline, measure, digits=1, scale=1.0):
    """'+12.3 ± 4.5, p 0.06' of a measure of `runs` minus the baseline's, over the seeds that both have; '' for itself."""
    theirs = {run['options']['seed']: measure(run) for run in baseline or ()}
    both = [run for run in runs if run['options']['seed'] in theirs]
    if runs is baseline or len(both) < 2:
        return ''
    return difference([scale * measure(run) for run in both], [scale * theirs[run['options']['seed']] for run in both], digits)


def print_table(header, rows):
    """A Markdown table."""
    print('| ' + ' | '.join(header) + ' |\n' + '|' + '---|' * len(header))
    for row in rows:
        print('| ' + ' | '.join(map(str, row)) + ' |')


def print_arms(arms, baseline='rope'):
    """
    Two Markdown tables, a row an arm. Losses: every seed's best validation loss, median and quartiles, the paired
    difference of log10 to the baseline arm; iterations to SOLVED; pairs locked and the iteration of the lock-in event.
    Lengths: mean and sd of the headline accuracy at each, the extrapolation score, its paired difference to the baseline.
    """
    rows, names = [], lambda values: ', '.join('-' if v is None else format(v, '.2g') if isinstance(v, float) else str(v) for v in values)
    for task, group in arms.items():
        for name, runs in group.items():
            locks = [lock_in(run) for run in runs] if 'frequencies' in runs[0]['eval'] and make_task(task).period else []
            locked = [sum(row['locked'] for row in run['eval']['frequencies']) for run in runs] if locks else []
            rows.append([task, name, f'{runs[0]["options"]["learning_rate"]:g}', names(run['options']['seed'] for run in runs),
                         names(map(best_loss, runs)), quartiles(map(best_loss, runs)),
                         against(runs, group.get(baseline), lambda run: math.log10(best_loss(run)), 2),
                         names(map(iterations_to, runs)), names(locked), names(locks)])
    print_table(['task', 'arm', 'learning rate', 'seeds', 'best validation loss (nats)', 'median [quartiles]',
                 f'log10 against {baseline}', f'iterations to {SOLVED:g}', 'locked pairs', 'lock-in (iteration)'], rows)
    print()
    multiples = sorted({int(length) / run['eval']['block_size'] for group in arms.values() for runs in group.values() for run in runs
                        for length in run['eval']['lengths']})
    rows = []
    for task, group in arms.items():
        for name, runs in group.items():
            cells = [[run['eval']['lengths'].get(str(round(m * run['eval']['block_size']))) for run in runs] for m in multiples]
            rows.append([task, name, len(runs), *(spread([c['headline'] for c in cell], 100) if all(cell) else '' for cell in cells),
                         spread(map(extrapolation, runs), 100), against(runs, group.get(baseline), extrapolation, scale=100)])
    print_table(['task', 'arm', 'n', *(f'accuracy at {m:g}x (%)' for m in multiples), 'extrapolation (%)',
                 f'extrapolation against {baseline}'], rows)


def plot_arm(axes, runs, color, label):
    """The validation losses of runs, every seed thin, and in bold their median where all were validated."""
    losses = {}
    for run in runs:
        plot_losses(axes, run['log'], color, None, alpha=0.3, linewidth=0.8)
        for line in run['validations']:
            losses.setdefault(line['iter'], []).append(line['val_loss'])
    medians = [dict(iter=it, val_loss=statistics.median(values)) for it, values in sorted(losses.items()) if len(values) == len(runs)]
    plot_losses(axes, medians, color, label)


def draw_arms(arms, path):
    """Validation loss while training, the median and every seed, above; accuracy by length, mean and every seed, below."""
    plt = pyplot()
    if plt is None:
        return
    figure, panels = plt.subplots(2, len(arms), figsize=(4.8 * len(arms), 6.6), squeeze=False)
    for column, (task, group) in enumerate(arms.items()):
        others = iter(('#E69F00', '#F0E442', '#8C564B', '#17BECF', '#7F7F7F', '#BCBD22'))
        for name, runs in group.items():
            color = COLORS.get(name) or next(others, '#444444')
            plot_arm(panels[0, column], runs, color, name)
            plot_lengths(panels[1, column], [run['eval'] for run in runs], color, name, runs[0]['eval']['chance'])
        panels[0, column].set_title(task)
        panels[0, column].legend(fontsize=7, loc='lower left')
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def read_overrides(words):
    """{field of GPTConfig: value} of words 'key=value'. Raises ValueError for another key, or a value of another type."""
    defaults, overrides = {f.name: f.default for f in dataclasses.fields(GPTConfig) if f.name != 'vocab_size'}, {}
    for word in words:
        key, equals, text = word.partition('=')
        if not equals:
            raise ValueError(f'--override {word}: options are written KEY=VALUE')
        check_key(key, defaults, '--override')
        overrides[key] = convert(key, parse(text), type(defaults[key]), '--override')
    return overrides


def main(arguments=None):
    """Measure, compare and draw as the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out_dir', nargs='*', help='folder of a run of train.py')
    parser.add_argument('--compare', nargs='+', metavar='DIR', help='evaluated runs to put side by side')
    parser.add_argument('--figure', default='out/compare.png', help='where --compare draws (default: %(default)s)')
    parser.add_argument('--baseline', default='rope', help='the arm that --compare takes differences to (default: %(default)s)')
    parser.add_argument('--force', action='store_true', help='compare runs of different tasks or budgets all the same')
    parser.add_argument('--checkpoint', default='best.pt', help='file in out_dir to measure (default: %(default)s)')
    parser.add_argument('--n', type=int, help='test sequences of each length (default: 512, of text 64)')
    parser.add_argument('--split', default='test', choices=('test', 'validation'), help='test reports, validation chooses')
    parser.add_argument('--multiples', type=float, nargs='+', help='lengths, in training lengths (default: 1 2 4 8, of text also 0.125 0.25 0.5)')
    parser.add_argument('--stride', type=int, help='text: tokens by which the sliding window advances (default: a quarter of the training length)')
    parser.add_argument('--device', default='auto', help='auto, cpu, cuda, mps')
    parser.add_argument('--override', nargs='+', default=[], metavar='KEY=VALUE', help='options of the model to change after training, '
                        'such as log_scale=64; the results go to a file of their own')
    options = parser.parse_args(arguments)
    if bool(options.out_dir) == bool(options.compare):
        parser.error('give the folder of a run, or --compare and several')
    if options.n is not None and options.n < 4 or options.stride is not None and options.stride < 1:
        parser.error('--n must be at least 4, and --stride at least 1')
    name = '_'.join(['eval', *([options.split] if options.split != 'test' else []), *options.override]) + '.json'
    overrides = read_overrides(options.override)
    if options.compare:
        arms = read_arms(options.compare, name, options.force)
        print_arms(arms, options.baseline)
        draw_arms(arms, Path(options.figure))
        print(f'drew {options.figure}', file=sys.stderr)
        return
    device = choose_device(options.device)
    for folder in map(Path, options.out_dir):
        result = evaluate_run(folder, options.checkpoint, options.multiples, options.n, device, options.split, overrides, options.stride)
        print_details(result)
        (folder / name).write_text(json.dumps(result) + '\n')
        print(f'\nwrote {folder}/{name}')
        if not overrides:
            draw_run(folder, result)


if __name__ == '__main__':
    main()
