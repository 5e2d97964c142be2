"""
Time the attentions side by side, in one process.

    python -m lab.bench                                   # training steps of two shapes; sampling
    python -m lab.bench --compile                         # training steps, compiled
    python -m lab.bench --arms rope llama nanogpt=PATH    # beside transformers' Llama and nanoGPT
    python -m lab.bench --lengths 256 1024 4096           # one layer by length, and generation
    python -m lab.bench --lengths 256 1024 --kernels      # attention alone: PyTorch's and TAPA's
    python -m lab.bench --show FILE                       # the tables of an earlier --json=FILE

In each round every arm runs once, in a random order, so a machine whose speed drifts slows all of
them. A ratio is the median over rounds of the ratio within a round. A step is forward, backward,
clipping and AdamW. A peer has the shape's widths, its own architecture and the same AdamW.

FLOPs are those of the matrix products; the causal half of attention is not taken off. Their share
is of what the device reaches on one large product. Saved is what the forward pass keeps for the
backward pass, weights not counted. Peak is the most that a step takes beyond what is there before
it; only cuda counts it.

The arm plain is TAPA without its kernel, which without cuda is the same. Of attention alone, sdpa
is PyTorch's. TAPA is fused (the kernel), blocked, or explicit, with all T x T scores at once. The
error is the greatest of out, dq, dk and dv for one head: the norm of the difference to float64
over the norm of float64.
"""

import argparse
import contextlib
import copy
import importlib.util
import io
import itertools
import json
import math
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from checkpoint import write_files
from configurator import UserError, choose_device, machine, one_line_errors
from lab import plot, tapa, tapa_kernel
from lab.memory import activation_bytes, check, free_bytes
from lab.runs import read_json, reading
from lab.table import print_table
from model import ATTENTIONS, GPT, Attention, GPTConfig, KVCache
from tasks import TASKS, make_rng, make_task

SHAPES = {
    'small': dict(n_layer=2, n_head=2, n_embd=64, block_size=64, batch_size=64, vocab_size=65),
    'large': dict(n_layer=4, n_head=4, n_embd=256, block_size=256, batch_size=8, vocab_size=65),
    'gpt2': dict(n_layer=12, n_head=12, n_embd=768, block_size=1024, batch_size=16,
                 vocab_size=50304)}
ARMS = {attention: dict(attention=attention) for attention in ATTENTIONS}
ARMS['plain'] = dict(attention='tapa')  # `as_called` takes its kernel away
ARMS['shared'] = dict(attention='spectral', spectral_shared=True)
KERNELS = ('sdpa', 'fused', 'blocked', 'explicit')
COLORS = plot.COLORS | dict(sdpa=plot.COLORS['rope'], fused=plot.COLORS['tapa'],
                            blocked='#444444', plain='#444444', explicit='#E69F00',
                            shared='#E69F00')
quartiles = partial(statistics.quantiles, n=4)


class Peer(torch.nn.Module):
    """A model of transformers, called as ours are: (x, y) to (logits, loss)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        logits = self.model(x).logits
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())


def build(arm, shape):
    """A new model of `shape`: (x, y) to (logits, loss). Raises UserError for an unknown arm."""
    options = {key: value for key, value in shape.items() if key != 'batch_size'}
    config = GPTConfig(**options, **ARMS.get(arm, {}))
    if arm in ARMS:
        return GPT(config)
    if arm in PEERS:
        return PEERS[arm](config)
    peer, _, path = arm.partition('=')
    if peer != 'nanogpt' or not Path(path).is_file():
        raise UserError(f'--arms {arm}: must be one of {", ".join(ARMS)}, llama, or nanogpt=PATH '
                        'of its model.py')
    spec = importlib.util.spec_from_file_location('nanogpt', path)
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints how many parameters it has
        return nanogpt.GPT(nanogpt.GPTConfig(**options, dropout=0.0, bias=False))


def build_llama(config):
    """The Llama of transformers in the sizes of `config`. UserError if it is not installed."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise UserError('--arms llama needs transformers: pip install transformers') from None
    return Peer(LlamaForCausalLM(LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.n_embd,
        intermediate_size=config.n_inner, num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head, use_cache=False,
        max_position_embeddings=config.block_size, attn_implementation='sdpa')))


PEERS = dict(llama=build_llama)  # {name: config to model}; lab/gpu.py adds another


def as_called(arm, module, options):
    """The module as a function, in the dtype of the options; without TAPA's kernel for plain."""
    device_type = torch.device(options.device).type
    dtype = getattr(torch, options.dtype)
    cast = torch.autocast(device_type, dtype, enabled=dtype != torch.float32)

    def call(*inputs):
        tapa.FUSED = arm != 'plain'
        try:
            with cast:
                return module(*inputs)
        finally:
            tapa.FUSED = True
    return call


def training_step(arm, shape, options, compile):
    """A function that makes one training step of a new model on a fixed batch, and the model."""
    torch.manual_seed(0)
    model = build(arm, shape).to(options.device).train()
    ours = isinstance(model, GPT)
    if ours:
        (optimizer,) = model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, (0.9, 0.99), weight_decay=0.1,
                                      fused=options.device != 'mps')
    compiled = model
    if compile:
        compiled = torch.compile(model, dynamic=False, fullgraph=ours)
    forward = as_called(arm, compiled, options)
    size = 2, shape['batch_size'], shape['block_size']
    x, y = torch.randint(shape['vocab_size'], size, device=options.device)

    def step():
        forward(x, y)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step, model


def interleave(functions, rounds, device, warmup=3):
    """{name: ms of each round} of {name: function}, in random order, after `warmup` calls."""
    rng = np.random.default_rng(0)
    wait = torch.accelerator.synchronize if device != 'cpu' else lambda: None
    names = list(functions)
    times = {name: [] for name in names}
    for i in range(warmup + rounds):
        for j in rng.permutation(len(names)):
            wait()
            start = time.perf_counter()
            functions[names[j]]()
            wait()
            if i >= warmup:
                times[names[j]].append(1e3 * (time.perf_counter() - start))
    return times


def count_flops(module, B, T, n_layer, n_embd):
    """FLOPs of a training step of a model, or of one layer, on (B, T) tokens."""
    weights = sum(linear.weight.numel() for linear in module.modules()
                  if isinstance(linear, torch.nn.Linear))
    # of a token, all heads together; TAPA's two products have half the width each
    scores = n_layer * n_embd * T
    forward = B * T * (2 * weights + 2 * 2 * scores)  # scores, and values weighted by them
    return 3 * forward  # backward takes twice that


def saved_MiB(function, weights=()):
    """MiB of the tensors that `function` saves for its backward pass, without `weights`."""
    not_counted = {p.untyped_storage().data_ptr() for p in weights}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in not_counted:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function()
    return sum(saved.values()) / 2**20


def peak_MiB(function, device):
    """The most MiB that `function` takes on cuda beyond what is there before; None elsewhere."""
    if not device.startswith('cuda'):
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def matrix_rate(options):
    """FLOP/s of the product of two large square matrices, the best of twenty."""
    n = 8192 if options.device.startswith('cuda') else 1024
    dtype = getattr(torch, options.dtype)
    a, b = torch.randn(2, n, n, device=options.device, dtype=dtype)
    times = interleave({'product': lambda: a @ b}, 20, options.device)
    return 2 * n**3 / (1e-3 * min(times['product']))


def bench_steps(shape, options):
    """
    A row for each arm: {arm, parameters, flops, saved_MiB, MiB, tokens_per_second, and
    [low, median, high] of ms and ratio}.
    """
    torch.compiler.reset()
    B, T = shape['batch_size'], shape['block_size']
    steps, rows = {}, []
    for arm in options.arms:
        step, model = training_step(arm, shape, options, compile=False)
        saved = saved_MiB(step, model.parameters())
        step, model = training_step(arm, shape, options, options.compile)
        steps[arm] = step
        step()  # compiles, and makes the optimizer's state
        rows.append(dict(
            arm=arm.partition('=')[0], parameters=sum(p.numel() for p in model.parameters()),
            flops=count_flops(model, B, T, shape['n_layer'], shape['n_embd']), saved_MiB=saved,
            MiB=peak_MiB(step, options.device)))
    times = interleave(steps, options.rounds, options.device)
    for arm, row in zip(options.arms, rows):
        ratios = [ms / unit for ms, unit in zip(times[arm], times[options.arms[0]])]
        row.update(ms=quartiles(times[arm]), ratio=quartiles(ratios),
                   tokens_per_second=1e3 * B * T / statistics.median(times[arm]))
    return rows


def bench_sampling(options):
    """{task: median ms to sample a batch of the small shape}."""
    B, T = SHAPES['small']['batch_size'], SHAPES['small']['block_size']
    functions = {name: partial(make_task(name).sample, make_rng(0, 'bench'), B, T)
                 for name in TASKS}
    times = interleave(functions, 10 * options.rounds, 'cpu')
    return {name: statistics.median(ms) for name, ms in times.items()}


# By length


def with_gradients(attend, inputs, do, parameters=()):
    """attend(*inputs), then the gradients of inputs and parameters for `do` of the output."""
    out = attend(*inputs)
    return out, *torch.autograd.grad(out, [*inputs, *parameters], do.to(out.dtype))


def time_passes(T, B, arms, options):
    """A row for each of {arm: (attend, inputs, do, parameters, facts)}: facts, memory, times."""
    passes, rows = {}, []
    for arm, (attend, inputs, do, parameters, facts) in arms.items():
        both = partial(with_gradients, attend, inputs, do, parameters)
        passes[arm, 'forward_ms'] = partial(torch.no_grad()(attend), *inputs)
        passes[arm, 'both_ms'] = both
        rows.append(dict(arm=arm, T=T, B=B, **facts, saved_MiB=saved_MiB(both, parameters),
                         peak_MiB=peak_MiB(both, options.device)))
    times = interleave(passes, options.rounds, options.device, warmup=1)
    for row in rows:
        for kind in ('forward_ms', 'both_ms'):
            row[kind] = quartiles(times[row['arm'], kind])
    return rows


def bench_layer(T, options):
    """One attention layer of 4 heads on T tokens: a row for each arm that memory holds."""
    torch.compiler.reset()
    B, C = max(1, options.tokens // T), 4 * options.head_size
    arms = {}
    for arm in options.arms:
        config = GPTConfig(vocab_size=1, n_layer=1, n_head=4, n_embd=C, **ARMS[arm])
        need = activation_bytes(config, B, T, training=True)
        if need > free_bytes(options.device) / 2:
            print(f'{arm} is left out at {T} tokens: memory does not hold it', file=sys.stderr)
            continue
        torch.manual_seed(0)
        layer = GPT(config).to(options.device).blocks[0].attention
        x, do = (torch.randn(B, T, C, device=options.device) for _ in range(2))
        compiled = layer
        if options.compile:
            # beyond, the compiler leaves TAPA's loop over blocks to Python
            complete = T <= tapa.UNROLLED
            compiled = torch.compile(layer, dynamic=False, fullgraph=complete)
        facts = dict(flops=count_flops(layer, B, T, 1, C))
        arms[arm] = (as_called(arm, compiled, options), [x.requires_grad_()], do,
                     list(layer.parameters()), facts)
    return time_passes(T, B, arms, options)


@torch.no_grad()
def bench_generation(T, options):
    """
    The token after a context of T, small shape, eager: {arm, T, cached_ms, uncached_ms} for each
    arm.
    """
    passes = {}
    for arm in options.arms:
        model = build(arm, SHAPES['small']).to(options.device).eval()
        read = as_called(arm, model, options)
        caches = [KVCache() for _ in model.blocks]
        idx = torch.randint(model.config.vocab_size, (1, T), device=options.device)
        read(idx[:, :-1], None, caches)

        def cached(read=read, last=idx[:, -1:], caches=caches):
            # a copy: the model adds the token to the caches that it gets
            return read(last, None, [copy.copy(cache) for cache in caches])
        passes[arm, 'cached_ms'] = cached
        passes[arm, 'uncached_ms'] = partial(read, idx)
    rows = {arm: dict(arm=arm, T=T) for arm in options.arms}
    for (arm, kind), times in interleave(passes, options.rounds, options.device).items():
        rows[arm][kind] = statistics.median(times)
    return list(rows.values())


def kernel(arm, T, head_size, device):
    """Causal attention as a function of q, k, v (B, nh, T, head_size)."""
    if arm == 'sdpa':
        return partial(F.scaled_dot_product_attention, is_causal=True)
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=head_size, attention='tapa')
    attention = tapa.TAPA(config)
    powers = torch.arange(T, device=device).float() ** config.tapa_alpha
    fused = partial(tapa_kernel.tapa_attention, powers=powers, theta=config.tapa_theta,
                    tapa_scale=config.tapa_scale)
    return dict(fused=fused, blocked=attention.attend_by_blocks,
                explicit=partial(Attention.attend, attention))[arm]


def exact(arm, q, k, v):
    """What `kernel` computes, in float64, by the formula."""
    q, k, v = q.double(), k.double(), v.double()
    T, hs = q.shape[2:]
    position = torch.arange(T, device=q.device)
    distance = position[:, None] - position
    if arm == 'sdpa':
        scores = q @ k.mT / math.sqrt(hs)
    else:
        q_A, q_P = q.chunk(2, dim=-1)
        k_A, k_P = k.chunk(2, dim=-1)
        phi = q_P @ k_P.mT / math.sqrt(hs / 2)
        power = distance.abs().double() ** GPTConfig.tapa_alpha
        scores = q_A @ k_A.mT / math.sqrt(hs / 2) * torch.cos(2 * math.pi * power * phi)
    return scores.masked_fill(distance < 0, float('-inf')).softmax(dim=-1) @ v


def errors(arm, attend, q, k, v, do):
    """{name: relative error to float64} of out, dq, dk and dv, for one head of one sequence."""
    q, k, v = (x[:1, :1].detach().requires_grad_() for x in (q, k, v))
    ours = with_gradients(attend, [q, k, v], do[:1, :1])
    theirs = with_gradients(partial(exact, arm), [q, k, v], do[:1, :1])
    return {name: ((x.double() - y).norm() / y.norm()).item()
            for name, x, y in zip(('out', 'dq', 'dk', 'dv'), ours, theirs)}


def bench_kernels(T, options, heads=16):
    """Attention alone on T tokens: rows as of bench_layer, and `errors`, {} beyond 4096 tokens."""
    B = max(1, options.tokens // T)
    torch.manual_seed(0)
    shape = B, T, heads, options.head_size
    dtype = getattr(torch, options.dtype)
    q, k, v, do = (torch.randn(shape, device=options.device, dtype=dtype).transpose(1, 2)
                   for _ in range(4))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    arms = {}
    for arm in KERNELS:
        reason = tapa_kernel.why_not(q, k, v) if arm == 'fused' else None
        scores_bytes = 8 * 4 * B * heads * T * T
        if arm == 'explicit' and scores_bytes > free_bytes(options.device) / 2:
            reason = 'memory does not hold it'
        if reason:
            print(f'{arm} is left out at {T} tokens: {reason}', file=sys.stderr)
            continue
        attend = kernel(arm, T, options.head_size, options.device)
        facts = dict(flops=3 * 4 * B * heads * T * T * options.head_size, errors={})
        if T <= 4096:
            facts['errors'] = errors(arm, attend, q, k, v, do)
        arms[arm] = attend, [q, k, v], do, (), facts
    return time_passes(T, B, arms, options)


def measure(options):
    """Everything that the options want, as a dict that json can write."""
    if options.device.startswith('cuda'):
        torch.cuda.set_device(torch.device(options.device).index or 0)
    # all arms are instances of the same classes
    torch._dynamo.config.recompile_limit = 4 * len(ARMS)
    results = dict(
        command=options.command, **machine(options.device), device=options.device,
        dtype=options.dtype, compile=options.compile, rounds=options.rounds,
        matrix_rate=matrix_rate(options), steps={}, sampling_ms={})
    if options.kernels:
        results['what'] = f'attention alone, 16 heads of {options.head_size}'
        results['lengths'] = [row for T in options.lengths for row in bench_kernels(T, options)]
    elif options.lengths:
        results['what'] = f'one attention layer, 4 heads of {options.head_size}'
        results['lengths'] = [row for T in options.lengths for row in bench_layer(T, options)]
        results['generation'] = [row for T in options.lengths
                                 for row in bench_generation(T, options)]
    else:
        results['steps'] = {name: bench_steps(SHAPES[name], options) for name in options.shapes}
        if 'small' in options.shapes and not options.compile:
            results['sampling_ms'] = bench_sampling(options)
    return results


# Tables, a figure, the command line


def with_quartiles(quartiles, digits=2):
    low, median, high = (f'{value:.{digits}f}' for value in quartiles)
    return f'{median} [{low}, {high}]'


def costs(row, MiB, ms, results):
    """The cells saved MiB, peak MiB, and share of the matrix rate."""
    share = row['flops'] / (ms / 1e3 * results['matrix_rate'])
    peak = '-' if MiB is None else f'{MiB:.0f}'
    return [f'{row["saved_MiB"]:.1f}', peak, f'{100 * share:.0f} %']


def show(results):
    """Print Markdown tables of what `measure` returned."""
    print(f'`{results["command"]}` at {results["commit"]}; {results["processor"]}, '
          f'{results["threads"]} threads; torch {results["torch"]}; {results["dtype"]}; '
          f'{"compiled" if results["compile"] else "eager"}; medians of {results["rounds"]} '
          f'rounds [quartiles]; matrices at {results["matrix_rate"] / 1e9:,.0f} GFLOP/s')
    for name, rows in results['steps'].items():
        show_steps(name, rows, results)
    if results['sampling_ms']:
        base = results['steps']['small'][0]
        print()
        print_table(['task', 'sampling a batch (ms)', f'share of a {base["arm"]} step'],
                    [(name, f'{ms:.3f}', f'{100 * ms / base["ms"][1]:.1f} %')
                     for name, ms in results['sampling_ms'].items()])
    if results.get('lengths'):
        show_lengths(results)
    if 'generation' in results:
        print()
        header = ['context', 'arm', 'one more token, eager: cached (ms)', 'uncached (ms)',
                  'faster by']
        print_table(header, [
            (row['T'], row['arm'], f'{row["cached_ms"]:.2f}', f'{row["uncached_ms"]:.2f}',
             f'{row["uncached_ms"] / row["cached_ms"]:.1f}') for row in results['generation']])


def show_steps(name, rows, results):
    """The table of bench_steps. Ratios are to the first arm."""
    print(f'\n{name}: ' + ', '.join(f'{key} {value}' for key, value in SHAPES[name].items()))
    print()
    cells = []
    for row in rows:
        saved, peak, share = costs(row, row['MiB'], row['ms'][1], results)
        ratio = '1' if row is rows[0] else with_quartiles(row['ratio'], digits=3)
        cells.append([
            row['arm'], f'{row["parameters"]:,}', f'{row["flops"] / 1e6:,.0f}', saved, peak,
            with_quartiles(row['ms']), ratio, f'{row["tokens_per_second"]:,.0f}', share])
    print_table(['arm', 'parameters', 'MFLOPs', 'saved MiB', 'peak MiB', 'step (ms)',
                 f'x {rows[0]["arm"]}', 'tokens/s', 'share of the matrix rate'], cells)


def show_lengths(results):
    """The table of bench_layer or bench_kernels. Ratios are to the first arm, where it is."""
    first, cells = results['lengths'][0], []
    unit = {row['T']: row for row in results['lengths'] if row['arm'] == first['arm']}
    for row in results['lengths']:
        line = [row['T'], row['arm']]
        for kind in ('forward_ms', 'both_ms'):
            ratio = '-'
            if row['T'] in unit:
                ratio = f'{row[kind][1] / unit[row["T"]][kind][1]:.2f}'
            line += [with_quartiles(row[kind]), ratio]
        line += costs(row, row['peak_MiB'], row['both_ms'][1], results)
        if 'errors' in row:
            line.append(f'{max(row["errors"].values()):.1e}' if row['errors'] else '-')
        cells.append(line)
    print(f'\n{results["what"]}, {first["T"] * first["B"]} tokens a batch\n')
    header = ['T', 'arm', 'forward (ms)', f'x {first["arm"]}', 'forward and backward (ms)',
              f'x {first["arm"]}', 'saved MiB', 'peak MiB', 'share of the matrix rate']
    if 'errors' in first:
        header.append('error')
    print_table(header, cells)


def method(row, device):
    """What computes a row: its arm, and for TAPA by blocks what it keeps for its backward pass."""
    blocked = row['arm'] in ('plain', 'blocked')
    if row['arm'] == 'tapa':
        blocked = not device.startswith('cuda')
    if not blocked:
        return row['arm']
    kept = 'scores kept' if row['T'] <= tapa.STORED else 'scores computed anew'
    return f'{row["arm"]}, {kept}'


def draw_lengths(results, path):
    """
    Time and memory a sequence by length, a line for each method. The legend has the slope of its
    last two lengths.
    """
    plt = plot.pyplot()
    if plt is None:
        return
    figure, panels = plt.subplots(1, 2, figsize=(10, 4))
    memory = 'peak_MiB'
    if results['lengths'][0]['peak_MiB'] is None:
        memory = 'saved_MiB'
    arms = [row['arm'] for row in results['lengths']]
    methods = {}
    for row in sorted(results['lengths'], key=lambda row: arms.index(row['arm'])):
        methods.setdefault(method(row, results['device']), []).append(row)
    # lines that lie on one another are all seen: the dashes of one fill the gaps of the next
    styles = itertools.cycle([('o', (0, (4, 4))), ('s', (4, (4, 4)))])
    for (name, rows), (marker, dashes) in zip(methods.items(), styles):
        T, B = (np.array([row[key] for row in rows]) for key in ('T', 'B'))
        columns = [row['both_ms'][1] for row in rows], [row[memory] for row in rows]
        for axes, values in zip(panels, columns):
            label = name
            if len(T) > 1:
                slopes = np.diff(np.log(values / B)) / np.diff(np.log(T))
                label = f'{name} (slope {slopes[-1]:.1f})'
            axes.plot(T, values / B, marker=marker, linestyle=dashes, linewidth=2, markersize=8,
                      markerfacecolor='none', color=COLORS.get(rows[0]['arm']), label=label)
    lengths = sorted({row['T'] for row in results['lengths']})
    for axes in panels:
        axes.set(xscale='log', yscale='log', xlabel='length (tokens)')
        axes.set_xticks(lengths, map(str, lengths))
        axes.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter('{x:g}')
        axes.minorticks_off()
        axes.legend(fontsize=8, handlelength=4)
    panels[0].set_ylabel('forward and backward, ms a sequence')
    panels[1].set_ylabel(f'{memory.replace("_", " ")} a sequence')
    plot.save(plt, figure, path, dpi=130)


def parse(arguments):
    """The options of the command line `arguments`, and the command itself."""
    parser = argparse.ArgumentParser(
        prog='python -m lab.bench', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--arms', nargs='+', default=[arm for arm in ARMS if arm != 'plain'], metavar='ARM',
        help=f'{", ".join(ARMS)}, llama, nanogpt=PATH of its model.py; the first is the unit of '
        'ratios (default: %(default)s)')
    add('--shapes', nargs='+', default=['small', 'large'], choices=SHAPES)
    add('--lengths', type=int, nargs='+', default=[], help='measure by length, not steps')
    add('--kernels', action='store_true',
        help=f'attention alone by length: {", ".join(KERNELS)}')
    add('--head_size', type=int, default=64, help='by length (default: %(default)s)')
    add('--tokens', type=int, default=2**14, help='of a batch by length (default: %(default)s)')
    add('--figure', type=Path, help='draw time and memory by length')
    add('--compile', action='store_true', help='torch.compile the models, or the layer')
    add('--dtype', default='float32', choices=('float32', 'bfloat16', 'float16'))
    add('--rounds', type=int, default=30, help='timed calls of each arm (default: %(default)s)')
    add('--quick', action='store_true', help='small shape, at most five rounds')
    add('--device', default='auto', help='auto, cpu, cuda, mps')
    add('--json', type=Path, help='write the results to this file, too')
    add('--show', type=Path, metavar='FILE',
        help='print the tables of this file and draw its --figure, measure nothing')
    options = parser.parse_args(arguments)
    words = ['nanogpt=PATH' if argument.startswith('nanogpt=') else argument
             for argument in arguments]
    options.command = ' '.join(['python -m lab.bench', *words])
    if options.quick:
        options.shapes, options.rounds = ['small'], min(options.rounds, 5)
    figure = options.figure and not options.show
    if not options.lengths and (options.kernels or figure):
        parser.error('--kernels and --figure are by length: say which --lengths')
    if options.lengths and not set(options.arms) <= set(ARMS):
        parser.error(f'--arms {" ".join(options.arms)}: with --lengths must be of '
                     f'{", ".join(ARMS)}')
    if options.rounds < 2 or min(options.tokens, options.head_size, *options.lengths) < 1:
        parser.error('--rounds must be at least 2; --lengths, --tokens and --head_size at least 1')
    return options


def main(arguments=None):
    """Measure, print and draw as the command line `arguments` (default: sys.argv) say."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.show:
        with reading(options.show.parent):
            results = read_json(options.show)
        if 'matrix_rate' not in results:
            raise UserError(f'--show={options.show}: must be a file that --json wrote')
    else:
        options.device = choose_device(options.device)
        for T in options.lengths:
            config = GPTConfig(vocab_size=1, n_layer=1, n_head=4, n_embd=4 * options.head_size)
            B = max(1, options.tokens // T)
            check(config, options.device, B, T, 0, training=True)
        results = measure(options)
    show(results)
    if options.figure and results.get('lengths'):
        draw_lengths(results, options.figure)
    if options.json and not options.show:
        text = json.dumps(results, indent=1) + '\n'
        write_files(options.json.parent, {options.json.name: text.encode()})


if __name__ == '__main__':
    with one_line_errors():
        main()
