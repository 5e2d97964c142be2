"""
Time the attentions side by side, in one process.

    python -m lab.bench                                     # training steps of two shapes; sampling of each task
    python -m lab.bench --compile                           # training steps, compiled
    python -m lab.bench --arms rope llama nanogpt=PATH      # beside transformers' Llama and nanoGPT's model.py
    python -m lab.bench --lengths 256 1024 4096             # one attention layer by length, and generation
    python -m lab.bench --lengths 256 1024 4096 --kernels   # attention alone: PyTorch's own, and TAPA three ways
    python -m lab.bench --show FILE                         # the tables of an earlier --json=FILE

All arms take turns, in an order drawn anew each round, so a machine whose speed drifts slows them alike. A ratio is the
median over rounds of the ratio within a round. A step is forward, backward, clipping and AdamW. A peer has the shape's
widths, its own architecture and the same AdamW.

FLOPs are those of the matrix products; the causal half of attention is not taken off. Their share is of what the device
reaches on one large product. Saved is what the forward pass keeps for the backward pass, weights not counted. Peak is
the most that a step takes beyond what is there before it; only cuda counts it.

The arm plain is TAPA without its kernel, which without cuda is the same. Of attention alone, sdpa is PyTorch's. TAPA is
fused (the kernel), blocked, or explicit, with all T x T scores at once. The error is the greatest of out, dq, dk and dv
for one head: the norm of the difference to float64 over the norm of float64.
"""

import argparse
import contextlib
import importlib.util
import io
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

from configurator import choose_device, one_line_errors
from eval import machine
from lab import figures, tapa, tapa_kernel
from lab.compare import print_table
from lab.memory import activation_bytes, check, free_bytes
from model import ATTENTIONS, GPT, TAPA, GPTConfig, Way
from tasks import IN_LAB, TASKS, make_task, stream

SHAPES = {'small': dict(n_layer=2, n_head=2, n_embd=64, block_size=64, batch_size=64, vocab_size=65),
          'large': dict(n_layer=4, n_head=4, n_embd=256, block_size=256, batch_size=8, vocab_size=65),
          'gpt2': dict(n_layer=12, n_head=12, n_embd=768, block_size=1024, batch_size=16, vocab_size=50304)}
ARMS = {attention: dict(attention=attention) for attention in ATTENTIONS}
ARMS['plain'] = dict(attention='tapa')  # `as_called` takes its kernel away
ARMS['shared'] = dict(attention='spectral', spectral_shared=True)
KERNELS = ('sdpa', 'fused', 'blocked', 'explicit')
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
    """A fresh model of `shape`, ours or a peer's: (x, y) to (logits, loss). ValueError for an unknown arm."""
    options = {key: value for key, value in shape.items() if key != 'batch_size'}
    config = GPTConfig(**options, **ARMS.get(arm, {}))
    if arm in ARMS:
        return GPT(config)
    if arm == 'llama':
        from transformers import LlamaConfig, LlamaForCausalLM
        return Peer(LlamaForCausalLM(LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=config.n_embd, intermediate_size=config.inner,
            num_hidden_layers=config.n_layer, num_attention_heads=config.n_head, use_cache=False,
            max_position_embeddings=config.block_size, attn_implementation='sdpa')))
    peer, _, path = arm.partition('=')
    if peer != 'nanogpt' or not Path(path).is_file():
        raise ValueError(f'--arms {arm}: must be one of {", ".join(ARMS)}, llama, or nanogpt=PATH of its model.py')
    spec = importlib.util.spec_from_file_location('nanogpt', path)
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints how many parameters it has
        return nanogpt.GPT(nanogpt.GPTConfig(**options, dropout=0.0, bias=False))


def as_called(arm, module, options):
    """The module as a function, in the dtype of the options, and without TAPA's kernel if the arm is plain."""
    device_type, dtype = torch.device(options.device).type, getattr(torch, options.dtype)
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
    """A function that makes one training step of a fresh model on a fixed random batch, and the model."""
    torch.manual_seed(0)
    model = build(arm, shape).to(options.device).train()
    ours = isinstance(model, GPT)
    optimizer = (model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2)[0] if ours else torch.optim.AdamW(
        model.parameters(), 1e-3, (0.9, 0.99), weight_decay=0.1, fused=options.device != 'mps'))
    compiled = torch.compile(model, dynamic=False, fullgraph=ours) if compile else model
    forward = as_called(arm, compiled, options)
    x, y = torch.randint(shape['vocab_size'], (2, shape['batch_size'], shape['block_size']), device=options.device)

    def step():
        forward(x, y)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step, model


def interleave(functions, rounds, device, warmup=3):
    """{name: ms of each round} of {name: function}, in random turns, after `warmup` calls of each."""
    rng = np.random.default_rng(0)
    wait = torch.accelerator.synchronize if device != 'cpu' else lambda: None
    times = {name: [] for name in functions}
    for i in range(warmup + rounds):
        for name in (list(functions)[j] for j in rng.permutation(len(functions))):
            wait()
            start = time.perf_counter()
            functions[name]()
            wait()
            if i >= warmup:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def count_flops(module, B, T, n_layer, n_embd):
    """FLOPs of a training step of a model, or of one layer, on (B, T) tokens: forward, and twice that backward."""
    weights = sum(linear.weight.numel() for linear in module.modules() if isinstance(linear, torch.nn.Linear))
    scores = n_layer * n_embd * T  # of a token, all heads together; TAPA's two products have half the width each
    return 3 * B * T * (2 * weights + 2 * 2 * scores)  # scores, and values weighted by them


def saved_MiB(function, weights=()):
    """MiB of the tensors that `function` saves for its backward pass; `weights` do not count."""
    not_counted, saved = {p.untyped_storage().data_ptr() for p in weights}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in not_counted:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function()
    return sum(saved.values()) / 2**20


def peak_MiB(function, device):
    """The most MiB that `function` takes on cuda beyond what is there before it; None elsewhere."""
    if not device.startswith('cuda'):
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def matrix_rate(options):
    """FLOP/s of the product of two large square matrices, the best of twenty."""
    n = 8192 if options.device.startswith('cuda') else 1024
    a, b = torch.randn(2, n, n, device=options.device, dtype=getattr(torch, options.dtype))
    return 2 * n**3 / (1e-3 * min(interleave({'product': lambda: a @ b}, 20, options.device)['product']))


def bench_steps(shape, options):
    """A row for each arm: {arm, parameters, flops, saved_MiB, ms and ratio: [low, median, high], tokens/s, MiB}."""
    torch.compiler.reset()
    B, T = shape['batch_size'], shape['block_size']
    steps, rows = {}, []
    for arm in options.arms:
        step, model = training_step(arm, shape, options, compile=False)
        saved = saved_MiB(step, model.parameters())
        step, model = training_step(arm, shape, options, options.compile)
        steps[arm] = step
        rows.append(dict(arm=arm.partition('=')[0], parameters=sum(p.numel() for p in model.parameters()),
                         flops=count_flops(model, B, T, shape['n_layer'], shape['n_embd']), saved_MiB=saved))
        step()  # compiles, and makes the optimiser's state
        rows[-1]['MiB'] = peak_MiB(step, options.device)
    times = interleave(steps, options.rounds, options.device)
    for arm, row in zip(options.arms, rows):
        ratios = [a / b for a, b in zip(times[arm], times[options.arms[0]])]
        row |= dict(ms=quartiles(times[arm]), ratio=quartiles(ratios),
                    tokens_per_second=1e3 * B * T / statistics.median(times[arm]))
    return rows


def bench_sampling(options):
    """{task: median ms to draw a batch of the small shape}."""
    B, T = SHAPES['small']['batch_size'], SHAPES['small']['block_size']
    draws = {name: partial(make_task(name).sample, stream(0, 'bench'), B, T) for name in (*TASKS, *IN_LAB)}
    return {name: statistics.median(ms) for name, ms in interleave(draws, 10 * options.rounds, 'cpu').items()}


# ----------------------------------------------------------------------------------------------------------------------
# By length


def with_gradients(attend, inputs, do, parameters=()):
    """attend(*inputs), then the gradients of inputs and parameters when that of the output is `do`."""
    out = attend(*inputs)
    return out, *torch.autograd.grad(out, [*inputs, *parameters], do.to(out.dtype))


def time_passes(T, B, arms, options):
    """A row for each of `arms`, {arm: (attend, inputs, do, parameters, facts)}: the facts, memory and times."""
    passes, rows = {}, []
    for arm, (attend, inputs, do, parameters, facts) in arms.items():
        both = partial(with_gradients, attend, inputs, do, parameters)
        passes[arm, 'forward_ms'], passes[arm, 'both_ms'] = partial(torch.no_grad()(attend), *inputs), both
        rows.append(dict(arm=arm, T=T, B=B, **facts, saved_MiB=saved_MiB(both, parameters),
                         peak_MiB=peak_MiB(both, options.device)))
    times = interleave(passes, options.rounds, options.device, warmup=1)
    for row in rows:
        row |= {kind: quartiles(times[row['arm'], kind]) for kind in ('forward_ms', 'both_ms')}
    return rows


def bench_layer(T, options):
    """One attention layer of 4 heads on T tokens: a row for each arm that memory holds."""
    torch.compiler.reset()
    B, C, arms = max(1, options.tokens // T), 4 * options.head_size, {}
    for arm in options.arms:
        config = GPTConfig(vocab_size=1, n_layer=1, n_head=4, n_embd=C, **ARMS[arm])
        if activation_bytes(config, B, T, training=True) > free_bytes(options.device) / 2:
            print(f'{arm} is left out at {T} tokens: memory does not hold it', file=sys.stderr)
            continue
        torch.manual_seed(0)
        layer = GPT(config).to(options.device).blocks[0].attention
        x, do = (torch.randn(B, T, C, device=options.device) for _ in range(2))
        whole = T <= tapa.UNROLLED  # beyond, the compiler leaves TAPA's loop over blocks to Python
        compiled = torch.compile(layer, dynamic=False, fullgraph=whole) if options.compile else layer
        arms[arm] = (as_called(arm, compiled, options), [x.requires_grad_()], do, list(layer.parameters()),
                     dict(flops=count_flops(layer, B, T, 1, C)))
    return time_passes(T, B, arms, options)


@torch.no_grad()
def bench_generation(T, options):
    """The token behind a context of T, small shape, eager: {arm, T, and ms with and without cache} for each arm."""
    passes = {}
    for arm in options.arms:
        model = build(arm, SHAPES['small']).to(options.device).eval()
        read, past = as_called(arm, model, options), [[] for _ in model.blocks]
        idx = torch.randint(model.config.vocab_size, (1, T), device=options.device)
        read(idx[:, :-1], None, past)

        def cached(read=read, last=idx[:, -1:], past=past):
            return read(last, None, [list(layer) for layer in past])  # the model changes the lists that it gets
        passes[arm, 'cached_ms'], passes[arm, 'uncached_ms'] = cached, partial(read, idx)
    rows = {arm: dict(arm=arm, T=T) for arm in options.arms}
    for (arm, kind), times in interleave(passes, options.rounds, options.device).items():
        rows[arm][kind] = statistics.median(times)
    return list(rows.values())


def kernel(arm, T, head_size, device):
    """Causal attention as a function of q, k, v (B, nh, T, head_size)."""
    if arm == 'sdpa':
        return partial(F.scaled_dot_product_attention, is_causal=True)
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=head_size, attention='tapa')
    powers = torch.arange(T, device=device).float() ** config.tapa_alpha
    fused = partial(tapa_kernel.tapa_attention, powers=powers, theta=config.tapa_theta)
    way = TAPA(config)
    return dict(fused=fused, blocked=partial(tapa.attend_by_blocks, way), explicit=partial(Way.forward, way))[arm]


def exact(arm, q, k, v):
    """What `kernel` computes, in float64, by the formula."""
    q, k, v = q.double(), k.double(), v.double()
    T, hs = q.shape[2:]
    apart = torch.arange(T, device=q.device)[:, None] - torch.arange(T, device=q.device)
    if arm == 'sdpa':
        scores = q @ k.mT / math.sqrt(hs)
    else:
        (q_A, q_P), (k_A, k_P) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
        phi = q_P @ k_P.mT / math.sqrt(hs / 2)
        turns = apart.abs().double() ** GPTConfig.tapa_alpha * phi
        scores = q_A @ k_A.mT / math.sqrt(hs / 2) * torch.cos(2 * math.pi * turns)
    return scores.masked_fill(apart < 0, float('-inf')).softmax(dim=-1) @ v


def errors(arm, attend, q, k, v, do):
    """{name: relative error against float64} of out, dq, dk and dv, for the first head of the first sequence."""
    q, k, v = (x[:1, :1].detach().requires_grad_() for x in (q, k, v))
    ours, theirs = (with_gradients(way, [q, k, v], do[:1, :1]) for way in (attend, partial(exact, arm)))
    return {name: ((x.double() - y).norm() / y.norm()).item()
            for name, x, y in zip(('out', 'dq', 'dk', 'dv'), ours, theirs)}


def bench_kernels(T, options, heads=16):
    """Attention alone on T tokens: rows as of bench_layer, and `errors`, empty beyond 4096 tokens."""
    B, arms = max(1, options.tokens // T), {}
    torch.manual_seed(0)
    shape, kind = (B, T, heads, options.head_size), dict(device=options.device, dtype=getattr(torch, options.dtype))
    q, k, v, do = (torch.randn(shape, **kind).transpose(1, 2) for _ in range(4))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    for arm in KERNELS:
        reason = tapa_kernel.why_not(q, k, v) if arm == 'fused' else None
        if arm == 'explicit' and 8 * 4 * B * heads * T * T > free_bytes(options.device) / 2:
            reason = 'memory does not hold it'
        if reason:
            print(f'{arm} is left out at {T} tokens: {reason}', file=sys.stderr)
            continue
        attend = kernel(arm, T, options.head_size, options.device)
        facts = dict(flops=3 * 4 * B * heads * T * T * options.head_size,
                     errors=errors(arm, attend, q, k, v, do) if T <= 4096 else {})
        arms[arm] = attend, [q, k, v], do, (), facts
    return time_passes(T, B, arms, options)


def measure(options):
    """Everything that the options ask for, as a dict that json can write."""
    if options.device.startswith('cuda'):
        torch.cuda.set_device(torch.device(options.device).index or 0)
    torch._dynamo.config.recompile_limit = 4 * len(ARMS)  # all arms are instances of the same classes
    results = dict(command=options.command, **machine(options.device), device=options.device, dtype=options.dtype,
                   compile=options.compile, rounds=options.rounds, matrix_rate=matrix_rate(options), steps={},
                   sampling_ms={})
    if options.kernels:
        results['what'] = f'attention alone, 16 heads of {options.head_size}'
        results['lengths'] = [row for T in options.lengths for row in bench_kernels(T, options)]
    elif options.lengths:
        results['what'] = f'one attention layer, 4 heads of {options.head_size}'
        results['lengths'] = [row for T in options.lengths for row in bench_layer(T, options)]
        results['generation'] = [row for T in options.lengths for row in bench_generation(T, options)]
    else:
        results['steps'] = {name: bench_steps(SHAPES[name], options) for name in options.shapes}
        if 'small' in options.shapes and not options.compile:
            results['sampling_ms'] = bench_sampling(options)
    return results


# ----------------------------------------------------------------------------------------------------------------------
# Tables, a figure, the command line


def spread(quartiles, digits=2):
    low, median, high = (f'{value:.{digits}f}' for value in quartiles)
    return f'{median} [{low}, {high}]'


def costs(row, MiB, ms, results):
    """The cells saved MiB, peak MiB, and share of the matrix rate."""
    share = row['flops'] / (ms / 1e3 * results['matrix_rate'])
    return f'{row["saved_MiB"]:.1f}', '-' if MiB is None else f'{MiB:.0f}', f'{100 * share:.0f} %'


def show(results):
    """Print Markdown tables of what `measure` returned."""
    print(f'`{results["command"]}` at {results["commit"]}; {results["processor"]}, {results["threads"]} threads; '
          f'torch {results["torch"]}; {results["dtype"]}; {"compiled" if results["compile"] else "eager"}; '
          f'medians of {results["rounds"]} rounds [quartiles]; matrices at {results["matrix_rate"] / 1e9:,.0f} GFLOP/s')
    for name, rows in results['steps'].items():
        print(f'\n{name}: ' + ', '.join(f'{key} {value}' for key, value in SHAPES[name].items()) + '\n')
        cells = []
        for row in rows:
            saved, peak, share = costs(row, row['MiB'], row['ms'][1], results)
            ratio = '1' if row is rows[0] else spread(row['ratio'], digits=3)
            cells.append((row['arm'], f'{row["parameters"]:,}', f'{row["flops"] / 1e6:,.0f}', saved, peak,
                          spread(row['ms']), ratio, f'{row["tokens_per_second"]:,.0f}', share))
        print_table(['arm', 'parameters', 'MFLOPs', 'saved MiB', 'peak MiB', 'step (ms)', f'x {rows[0]["arm"]}',
                     'tokens/s', 'share of the matrix rate'], cells)
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
        print_table(['context', 'arm', 'one more token, eager: cached (ms)', 'uncached (ms)', 'faster by'],
                    [(row['T'], row['arm'], f'{row["cached_ms"]:.2f}', f'{row["uncached_ms"]:.2f}',
                      f'{row["uncached_ms"] / row["cached_ms"]:.1f}') for row in results['generation']])


def show_lengths(results):
    """The table of bench_layer or bench_kernels. Ratios are to the first arm, where it was not left out."""
    first, cells = results['lengths'][0], []
    unit = {row['T']: row for row in results['lengths'] if row['arm'] == first['arm']}
    for row in results['lengths']:
        cells.append([row['T'], row['arm']])
        for kind in ('forward_ms', 'both_ms'):
            ratio = f'{row[kind][1] / unit[row["T"]][kind][1]:.2f}' if row['T'] in unit else '-'
            cells[-1] += [spread(row[kind]), ratio]
        cells[-1] += costs(row, row['peak_MiB'], row['both_ms'][1], results)
        if 'errors' in row:
            cells[-1].append(f'{max(row["errors"].values()):.1e}' if row['errors'] else '-')
    print(f'\n{results["what"]}, {first["T"] * first["B"]} tokens a batch\n')
    print_table(['T', 'arm', 'forward (ms)', f'x {first["arm"]}', 'forward and backward (ms)', f'x {first["arm"]}',
                 'saved MiB', 'peak MiB', 'share of the matrix rate'] + ['error'] * ('errors' in first), cells)


def draw(results, path):
    """Time and memory a sequence by length. The legend says the slope between the last two lengths."""
    plt = figures.pyplot()
    if plt is None:
        return
    colors = figures.COLORS | dict(sdpa=figures.COLORS['rope'], fused=figures.COLORS['tapa'], blocked='#444444',
                                   plain='#444444', explicit='#E69F00', shared='#E69F00')
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6))
    memory = 'saved_MiB' if results['lengths'][0]['peak_MiB'] is None else 'peak_MiB'
    for arm in dict.fromkeys(row['arm'] for row in results['lengths']):
        rows = [row for row in results['lengths'] if row['arm'] == arm]
        T, B = (np.array([row[key] for row in rows]) for key in ('T', 'B'))
        for axes, values in zip(panels, ([row['both_ms'][1] for row in rows], [row[memory] for row in rows])):
            slope = np.diff(np.log(values / B)) / np.diff(np.log(T))
            label = f'{arm} (slope {slope[-1]:.1f})' if len(T) > 1 else arm
            axes.plot(T, values / B, 'o-', markersize=3, color=colors.get(arm), label=label)
            axes.set(xscale='log', yscale='log', xlabel='length (tokens)')
            axes.set_xticks(T, map(str, T))
            axes.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter('{x:g}')
            axes.minorticks_off()
            axes.legend(fontsize=7)
    panels[0].set_ylabel('forward and backward, ms a sequence')
    panels[1].set_ylabel(f'{memory.replace("_", " ")} a sequence')
    figures.save(plt, figure, path, dpi=130)


def parse(arguments):
    """The options that the command line `arguments` say, and the command itself."""
    parser = argparse.ArgumentParser(prog='python -m lab.bench', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arms', nargs='+', default=[arm for arm in ARMS if arm != 'plain'],
                        metavar='ARM', help=f'{", ".join(ARMS)}, llama, nanogpt=PATH of its model.py; the first is the '
                        'unit of ratios (default: %(default)s)')
    parser.add_argument('--shapes', nargs='+', default=['small', 'large'], choices=SHAPES)
    parser.add_argument('--lengths', type=int, nargs='+', default=[], help='measure by length, in place of steps')
    parser.add_argument('--kernels', action='store_true', help=f'attention alone by length: {", ".join(KERNELS)}')
    parser.add_argument('--head_size', type=int, default=64, help='by length (default: %(default)s)')
    parser.add_argument('--tokens', type=int, default=2**14, help='of a batch by length (default: %(default)s)')
    parser.add_argument('--figure', type=Path, help='draw time and memory by length')
    parser.add_argument('--compile', action='store_true', help='torch.compile the models, or the layer')
    parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16', 'float16'))
    parser.add_argument('--rounds', type=int, default=30, help='timed calls of each arm (default: %(default)s)')
    parser.add_argument('--quick', action='store_true', help='small shape, at most five rounds')
    parser.add_argument('--device', default='auto', help='auto, cpu, cuda, mps')
    parser.add_argument('--json', type=Path, help='write the results to this file, too')
    parser.add_argument('--show', type=Path, metavar='FILE', help='print the tables of this file and measure nothing')
    options = parser.parse_args(arguments)
    said = ['nanogpt=PATH' if argument.startswith('nanogpt=') else argument for argument in arguments]
    options.command = ' '.join(['python -m lab.bench', *said])
    if options.quick:
        options.shapes, options.rounds = ['small'], min(options.rounds, 5)
    if not options.lengths and (options.kernels or options.figure and not options.show):
        parser.error('--kernels and --figure are by length: say which --lengths')
    if options.lengths and not set(options.arms) <= set(ARMS):
        parser.error(f'--arms {" ".join(options.arms)}: with --lengths must be of {", ".join(ARMS)}')
    if options.rounds < 2 or min(options.tokens, options.head_size, *options.lengths) < 1:
        parser.error('--rounds must be at least 2; --lengths, --tokens and --head_size at least 1')
    return options


def main(arguments=None):
    """Measure, print and draw as the command line `arguments` (default: sys.argv) say."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.show:
        results = json.loads(options.show.read_text())
        if 'matrix_rate' not in results:
            raise ValueError(f'--show={options.show}: must be a file that --json wrote')
    else:
        options.device = choose_device(options.device)
        for T in options.lengths:
            config = GPTConfig(vocab_size=1, n_layer=1, n_head=4, n_embd=4 * options.head_size)
            check(config, options.device, max(1, options.tokens // T), T, 0, training=True)
        results = measure(options)
    show(results)
    if options.figure and results.get('lengths'):
        draw(results, options.figure)
    if options.json and not options.show:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + '\n')


if __name__ == '__main__':
    with one_line_errors():
        main()
