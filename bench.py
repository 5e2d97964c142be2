"""
Time the attentions side by side, in one process: a training step of each, and the sampling of each task.

    python bench.py                      # two shapes, eager, and the sampling of each task
    python bench.py --compile            # the same, compiled
    python bench.py --quick              # the small shape, a few repeats
    python bench.py --shapes gpt2        # a shape for a GPU
    python bench.py --arms rope llama nanogpt=PATH                   # beside transformers' Llama, and nanoGPT from its model.py
    python bench.py --lengths 256 1024 4096 --figure out/bench.png   # one attention layer by length, and sampling by context
    python bench.py --lengths 256 1024 4096 --kernels                # attention alone: PyTorch's own, and TAPA three ways
    python bench.py --show FILE          # the tables of an earlier --json=FILE

All arms take turns, in an order drawn anew each round, so that a machine whose speed drifts slows them alike; a ratio is
the median over rounds of the ratio within a round. A step is forward, backward, gradient clipping and AdamW. FLOPs are
those of its matrix products, the causal half of attention not taken off, and their share is of what the device reaches on
one large product of two matrices. Saved is what the forward pass keeps for the backward pass (eager, weights not counted),
on any device; peak is the most that a step takes beyond what is there before it, which only cuda counts. A peer has the
shape's widths, its own architecture (nanoGPT: LayerNorm, GELU, learned positions, tied embeddings) and the same AdamW.

By length the batch shrinks as T grows, and `plain` is TAPA without its fused kernel, which without cuda is the same. Of
attention alone, `sdpa` is PyTorch's (on cuda FlashAttention, in 16 bits), and TAPA is `fused`, `blocked` (what runs where
the kernel does not) or `explicit`, with all T x T scores at once. Their error is the greatest of out, dq, dk and dv: the norm
of the difference to float64 over the norm of float64, for one head.
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

import tapa_kernel
from configurator import autocast, choose_device, free_memory, git_commit, processor_name
from model import ATTENTIONS, GPT, TAPA, Cache, GPTConfig
from tasks import TASKS, make_task, stream

SHAPES = {'small': dict(n_layer=2, n_head=2, n_embd=64, block_size=64, batch_size=64, vocab_size=65),
          'large': dict(n_layer=4, n_head=4, n_embd=256, block_size=256, batch_size=8, vocab_size=65),
          'gpt2': dict(n_layer=12, n_head=12, n_embd=768, block_size=1024, batch_size=16, vocab_size=50304)}
ARMS = {attention: dict(attention=attention) for attention in ATTENTIONS}
ARMS['plain'] = dict(attention='tapa', tapa_fused=False)  # without its kernel
ARMS['shared'] = dict(attention='spectral', spectral_shared=True)  # one Omega, A, Phi for all heads of a layer
KERNELS = ('sdpa', 'fused', 'blocked', 'explicit')


def known_arm(text):
    """The name of an arm, checked: one of ARMS, llama, or nanogpt=PATH. Raises ArgumentTypeError."""
    peer, _, path = text.partition('=')
    if text in ARMS or (text == 'llama' and importlib.util.find_spec('transformers')) or (peer == 'nanogpt' and Path(path).is_file()):
        return text
    raise argparse.ArgumentTypeError(f'{text!r}: must be one of {", ".join(ARMS)}, llama (with transformers installed) or nanogpt=PATH of its model.py')


class Peer(torch.nn.Module):
    """A foreign model of tokens -> logits, called as ours are: (x, y) -> (logits, loss)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        logits = self.model(x).logits
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())


def build(arm, shape):
    """A fresh model of `shape`, ours or a peer's, that takes (x, y) and returns (logits, loss)."""
    options = {k: v for k, v in shape.items() if k != 'batch_size'}
    if arm in ARMS:
        return GPT(GPTConfig(**ARMS[arm], **options))
    if arm == 'llama':
        from transformers import LlamaConfig, LlamaForCausalLM
        config = GPTConfig(**options)
        return Peer(LlamaForCausalLM(LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=config.n_embd, intermediate_size=config.inner, num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head, max_position_embeddings=config.block_size, attn_implementation='sdpa', use_cache=False)))
    spec = importlib.util.spec_from_file_location('nanogpt', arm.partition('=')[2])
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    with contextlib.redirect_stdout(io.StringIO()):  # it counts its parameters aloud
        return nanogpt.GPT(nanogpt.GPTConfig(**options, dropout=0.0, bias=False))


def interleave(arms, rounds, synchronize, warmup=3):
    """{name: seconds of each round} of the functions in `arms`, in random turns, after `warmup` calls of each."""
    rng = np.random.default_rng(0)
    seconds = {name: [] for name in arms}
    for i in range(warmup + rounds):
        for name in (list(arms)[j] for j in rng.permutation(len(arms))):
            synchronize()
            start = time.perf_counter()
            arms[name]()
            synchronize()
            if i >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def training_step(arm, shape, device, dtype, compile):
    """A function that makes one training step of a fresh model on a fixed random batch, and the model."""
    torch.manual_seed(0)
    model = build(arm, shape).to(device).train()
    optimizer = (model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2) if isinstance(model, GPT)
                 else torch.optim.AdamW(model.parameters(), 1e-3, (0.9, 0.99), weight_decay=0.1, fused=True))
    forward = torch.compile(model, dynamic=False, fullgraph=isinstance(model, GPT)) if compile else model  # whole, or an error
    x, y = torch.randint(shape['vocab_size'], (2, shape['batch_size'], shape['block_size']), device=device)

    def step():
        with autocast(device, dtype):
            _, loss = forward(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, model


def count_flops(model, B, T, n_layer, n_embd):
    """FLOPs of the matrix products of one training step of a model, or of one layer of it, on (B, T) tokens: forward, and twice that backward."""
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    scores = n_layer * n_embd * T  # of a token, all heads together, TAPA's two half-width products as one
    return 3 * B * T * (2 * weights + 2 * 2 * scores)  # scores, and values weighted by them


def saved_MiB(arm, shape, device, dtype):
    """What the forward pass of one training step, eager, saves for the backward pass; weights not counted."""
    return saved_by(*training_step(arm, shape, device, dtype, compile=False))


def saved_by(step, model):
    """MiB of the tensors that `step` saves for the backward pass, but for the weights of `model`."""
    weights, saved = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(saved.values()) / 2**20


def matrix_rate(device, dtype, synchronize):
    """FLOP/s of the product of two large square matrices, the best of twenty: what nothing on the device outruns."""
    n = 8192 if torch.device(device).type == 'cuda' else 1024
    a, b = torch.randn(2, n, n, device=device, dtype=getattr(torch, dtype))
    return 2 * n**3 / min(interleave({'product': lambda: a @ b}, 20, synchronize)['product'])


def peak(step, device):
    """The most MiB that `step` takes on cuda beyond what is there before it; None elsewhere."""
    if torch.device(device).type != 'cuda':
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def bench_steps(shape, arms, options, device, synchronize):
    """One row per arm: {arm, parameters, flops, saved_MiB, ms and ratio to the first: [low, median, high], tokens/s, MiB}."""
    torch._dynamo.reset()
    steps, models = {}, {}
    for arm in arms:
        steps[arm], models[arm] = training_step(arm, shape, device, options.dtype, options.compile)
    memory = {}
    for arm in arms if torch.device(device).type == 'cuda' else ():
        steps[arm]()  # compiles, and makes the optimiser's state
        memory[arm] = peak(steps[arm], device)
    seconds = interleave(steps, options.rounds, synchronize)
    base, rows = arms[0], []
    for arm in arms:
        s = seconds[arm]
        B, T = shape['batch_size'], shape['block_size']
        rows.append(dict(arm=arm.partition('=')[0], parameters=sum(p.numel() for p in models[arm].parameters()),
                         flops=count_flops(models[arm], B, T, shape['n_layer'], shape['n_embd']),
                         saved_MiB=saved_MiB(arm, shape, device, options.dtype),
                         ms=[1e3 * q for q in statistics.quantiles(s, n=4)],
                         ratio=statistics.quantiles([a / b for a, b in zip(s, seconds[base])], n=4),
                         tokens_per_second=B * T / statistics.median(s), MiB=memory.get(arm)))
    return rows


def bench_lengths(options, device, synchronize):
    """
    One attention layer (4 heads of head_size) by length: a row per length and arm: {arm, T, B,
    flops, forward_ms and both_ms: [low, median, high], saved_MiB, peak_MiB}. An arm that memory does not hold is left out.
    """
    rows = []
    for T in options.lengths:
        torch._dynamo.reset()
        B, C, passes, facts = max(1, options.tokens // T), 4 * options.head_size, {}, {}
        for arm in options.arms:
            config = GPTConfig(vocab_size=1, n_layer=1, n_head=4, n_embd=C, block_size=T, **ARMS[arm])
            if config.memory(B, T, training=True, device=device) > free_memory(device) / 2:
                print(f'{arm} is left out at {T} tokens: memory does not hold it', file=sys.stderr)
                continue
            torch.manual_seed(0)
            layer, x = GPT(config).to(device).blocks[0].attention, torch.randn(B, T, C, device=device, requires_grad=True)
            positions = torch.arange(T, device=device)
            if options.compile:
                layer = torch.compile(layer, dynamic=False, fullgraph=T <= TAPA.UNROLLED)  # beyond, TAPA's blocks are Python's

            def forward(layer=layer, x=x, positions=positions):
                with torch.no_grad(), autocast(device, options.dtype):
                    layer(x, positions)

            def both(layer=layer, x=x, positions=positions):
                with autocast(device, options.dtype):
                    y = layer(x, positions)
                y.backward(torch.ones_like(y))
            passes[arm, 'forward'], passes[arm, 'both'] = forward, both
            facts[arm] = dict(flops=count_flops(layer, B, T, 1, C), saved_MiB=saved_by(both, layer), peak_MiB=peak(both, device))
        rows += timed(passes, facts, dict(T=T, B=B), options, synchronize)
    return rows


def timed(passes, facts, common, options, synchronize):
    """A row for each arm of `facts`: what is known of it, and the time of its passes, {(arm, 'forward' or 'both'): function}."""
    seconds = interleave(passes, options.rounds, synchronize, warmup=1)
    return [dict(arm=arm, **common, **facts[arm], **{f'{kind}_ms': [1e3 * q for q in statistics.quantiles(seconds[arm, kind], n=4)]
                                                     for kind in ('forward', 'both')}) for arm in facts]


def kernel(arm, T, head_size, device):
    """Causal attention as a function of q, k, v (B, heads, T, head_size), positions included."""
    if arm == 'sdpa':
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=head_size, block_size=T, attention='tapa', tapa_fused=False)
    tapa, m = TAPA(config).to(device), torch.arange(T, device=device)
    return {'fused': lambda q, k, v: tapa_kernel.tapa_attention(q, k, v, tapa.powers, config.tapa_theta, config.tapa_phase),
            'blocked': lambda q, k, v: tapa(q, k, v, m),
            'explicit': lambda q, k, v: tapa.attend(q, k, v, m, tapa.powers)}[arm]


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
        scores = q_A @ k_A.mT / math.sqrt(hs / 2) * torch.cos(2 * math.pi * apart.abs().double() ** GPTConfig.tapa_alpha * phi)
    return scores.masked_fill(apart < 0, float('-inf')).softmax(dim=-1) @ v


def with_gradients(attention, q, k, v, do):
    """out, dq, dk, dv."""
    out = attention(q, k, v)
    return out, *torch.autograd.grad(out, (q, k, v), do.to(out.dtype))


def bench_kernels(options, device, synchronize, heads=16):
    """Attention alone by length: rows as of bench_lengths, and `errors` of out, dq, dk, dv up to 4096 tokens."""
    rows = []
    for T in options.lengths:
        B, passes, facts = max(1, options.tokens // T), {}, {}
        torch.manual_seed(0)
        q, k, v, do = (torch.randn(B, T, heads, options.head_size, device=device, dtype=getattr(torch, options.dtype)).transpose(1, 2) for _ in range(4))
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        one_head = [x[:1, :1].detach().requires_grad_(x is not do) for x in (q, k, v, do)]
        for arm in KERNELS:
            reason = tapa_kernel.why_not(q, k, v) if arm == 'fused' else None
            if arm == 'explicit' and 8 * 4 * B * heads * T * T > free_memory(device) / 2:
                reason = 'memory does not hold it'
            if reason:
                print(f'{arm} is left out at {T} tokens: {reason}', file=sys.stderr)
                continue
            attention = kernel(arm, T, options.head_size, device)

            def forward(attention=attention, q=q, k=k, v=v):
                with torch.no_grad():
                    attention(q, k, v)

            def both(attention=attention, tensors=(q, k, v, do)):
                with_gradients(attention, *tensors)
            passes[arm, 'forward'], passes[arm, 'both'] = forward, both
            errors = {}
            if T <= 4096:
                pairs = zip(with_gradients(attention, *one_head), with_gradients(partial(exact, arm), *one_head))
                errors = {name: ((ours.double() - theirs).norm() / theirs.norm()).item() for name, (ours, theirs) in zip(('out', 'dq', 'dk', 'dv'), pairs)}
            facts[arm] = dict(flops=3 * 4 * B * heads * T * T * options.head_size, saved_MiB=saved_by(both, torch.nn.Module()),
                              peak_MiB=peak(both, device), errors=errors)
        rows += timed(passes, facts, dict(T=T, B=B), options, synchronize)
    return rows


@torch.no_grad()
def bench_generation(options, device, synchronize):
    """One more token behind a context of T, with and without cache, the small shape, eager: {arm, T, cached_ms, uncached_ms} (medians)."""
    rows = []
    for T in options.lengths:
        passes = {}
        for arm in options.arms:
            model = build(arm, SHAPES['small']).to(device).eval()
            idx = torch.randint(model.config.vocab_size, (1, T), device=device)
            cache, cast = Cache(model.config, 1, T + 1, device), autocast(device, options.dtype)
            with cast:
                model(idx, cache=cache)

            def cached(model=model, idx=idx, cache=cache, cast=cast, T=T):
                cache.length = T  # the same token again
                with cast:
                    model(idx[:, -1:], cache=cache)

            def uncached(model=model, idx=idx, cast=cast):
                with cast:
                    model(idx)
            passes[arm, 'cached'], passes[arm, 'uncached'] = cached, uncached
        seconds = interleave(passes, options.rounds, synchronize)
        rows += [dict(arm=arm, T=T, **{f'{kind}_ms': 1e3 * statistics.median(seconds[arm, kind]) for kind in ('cached', 'uncached')}) for arm in options.arms]
    return rows


def measure(options, device):
    """Everything that the options ask for, as a dict that json can write."""
    cuda = torch.device(device).type == 'cuda'
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    if cuda:
        torch.cuda.set_device(torch.device(device).index or 0)
    torch._dynamo.config.recompile_limit = 4 * len(ARMS)  # all arms are instances of the same classes
    results = dict(command=options.command, commit=git_commit(), device=device, torch=str(torch.__version__),
                   processor=torch.cuda.get_device_name(device) if cuda else processor_name(), threads=torch.get_num_threads(),
                   dtype=options.dtype, compile=options.compile, rounds=options.rounds,
                   matrix_rate=matrix_rate(device, options.dtype, synchronize), steps={}, sampling_ms={})
    if options.kernels:
        return results | dict(what=f'attention alone, 16 heads of {options.head_size}', lengths=bench_kernels(options, device, synchronize))
    if options.lengths:
        return results | dict(what=f'one attention layer, 4 heads of {options.head_size}', lengths=bench_lengths(options, device, synchronize),
                              generation=bench_generation(options, device, synchronize))
    for name in options.shapes:
        results['steps'][name] = bench_steps(SHAPES[name], options.arms, options, device, synchronize)
    if 'small' in options.shapes and not options.compile:  # the step that the formal languages are trained with
        B, T = SHAPES['small']['batch_size'], SHAPES['small']['block_size']
        draws = {name: lambda task=make_task(name): task.sample(stream(0, 'bench'), B, T) for name in TASKS}
        seconds = interleave(draws, 10 * options.rounds, lambda: None)
        results['sampling_ms'] = {name: 1e3 * statistics.median(s) for name, s in seconds.items()}
    return results


def show(results):
    """Print Markdown tables of what `measure` returned."""
    print(f'`{results["command"]}` at {results["commit"]}; {results["processor"]}, {results["threads"]} threads; torch {results["torch"]}; {results["dtype"]}; '
          f'{"compiled" if results["compile"] else "eager"}; medians of {results["rounds"]} rounds [quartiles]; '
          f'matrices at {results["matrix_rate"] / 1e9:,.0f} GFLOP/s')
    share = lambda flops, ms: f'{100 * flops / (ms / 1e3 * results["matrix_rate"]):.0f} %'
    for name, rows in results['steps'].items():
        print(f'\n{name}: ' + ', '.join(f'{key} {value}' for key, value in SHAPES[name].items()))
        print(f'\n| arm | parameters | MFLOPs | saved MiB | peak MiB | step (ms) | x {rows[0]["arm"]} | tokens/s | share of the matrix rate |\n|---|---|---|---|---|---|---|---|---|')
        for r in rows:
            low, median, high = r['ms']
            ratio = '{1:.3f} [{0:.3f}, {2:.3f}]'.format(*r['ratio']) if r['arm'] != rows[0]['arm'] else '1'
            print(f'| {r["arm"]} | {r["parameters"]:,} | {r["flops"] / 1e6:,.0f} | {r["saved_MiB"]:.1f} | {"-" if r["MiB"] is None else format(r["MiB"], ".0f")} | '
                  f'{median:.2f} [{low:.2f}, {high:.2f}] | {ratio} | {r["tokens_per_second"]:,.0f} | {share(r["flops"], median)} |')
    if results['sampling_ms']:
        base = results['steps']['small'][0]
        print(f'\n| task | sampling a batch (ms) | share of a {base["arm"]} step |\n|---|---|---|')
        for name, ms in results['sampling_ms'].items():
            print(f'| {name} | {ms:.3f} | {100 * ms / base["ms"][1]:.1f} % |')
    if 'lengths' in results:
        first = results['lengths'][0]
        print(f'\n{results["what"]}, {first["T"] * first["B"]} tokens a batch\n')
        columns = ['T', 'arm', 'forward (ms)', f'x {first["arm"]}', 'forward and backward (ms)', f'x {first["arm"]}', 'saved MiB', 'peak MiB',
                   'share of the matrix rate', *(['error'] if 'errors' in first else [])]
        print(f'| {" | ".join(columns)} |\n|' + '---|' * len(columns))
        for r in results['lengths']:
            cells = [r['T'], r['arm']]
            base = next((row for row in results['lengths'] if row['T'] == r['T'] and row['arm'] == first['arm']), None)
            for kind in ('forward_ms', 'both_ms'):
                cells += ['{1:.2f} [{0:.2f}, {2:.2f}]'.format(*r[kind]), f'{r[kind][1] / base[kind][1]:.2f}' if base else '-']
            cells += [f'{r["saved_MiB"]:.1f}', '-' if r['peak_MiB'] is None else f'{r["peak_MiB"]:.0f}', share(r['flops'], r['both_ms'][1])]
            if 'errors' in r:
                cells.append(f'{max(r["errors"].values()):.1e}' if r['errors'] else '-')
            print(f'| {" | ".join(map(str, cells))} |')
    if 'generation' in results:
        print('\n| context | arm | one more token, eager: cached (ms) | uncached (ms) | faster by |\n|---|---|---|---|---|')
        for r in results['generation']:
            print(f'| {r["T"]} | {r["arm"]} | {r["cached_ms"]:.2f} | {r["uncached_ms"]:.2f} | {r["uncached_ms"] / r["cached_ms"]:.1f} |')


def draw(results, path):
    """Time and memory of attention by length, a sequence: both axes logarithmic, the slope of the last octave in the legend."""
    from eval import COLORS, pyplot
    colors = COLORS | dict(sdpa=COLORS['rope'], fused=COLORS['tapa'], blocked='#444444', plain='#444444', explicit='#E69F00', shared='#E69F00')
    plt = pyplot()
    if plt is None:
        return
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6))
    memory = 'peak_MiB' if results['lengths'][0]['peak_MiB'] is not None else 'saved_MiB'
    for arm in dict.fromkeys(r['arm'] for r in results['lengths']):
        rows = [r for r in results['lengths'] if r['arm'] == arm]
        T = [r['T'] for r in rows]
        for axes, values in zip(panels, ([r['both_ms'][1] / r['B'] for r in rows], [r[memory] / r['B'] for r in rows])):
            slope = f' (slope {np.diff(np.log(values[-2:]))[0] / np.diff(np.log(T[-2:]))[0]:.1f})' if len(T) > 1 else ''
            axes.plot(T, values, 'o-', markersize=3, color=colors[arm], label=arm + slope)
            axes.set(xscale='log', yscale='log', xlabel='length (tokens)')
            axes.set_xticks(T, map(str, T))
            axes.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter('{x:g}')
            axes.minorticks_off()
            axes.legend(fontsize=7)
    panels[0].set_ylabel('forward and backward, ms a sequence')
    panels[1].set_ylabel(f'{memory.replace("_", " ")} a sequence')
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments=None):
    """Measure, print and draw as the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arms', nargs='+', default=[arm for arm in ARMS if arm != 'plain'], type=known_arm, metavar='ARM',
                        help=f'{", ".join(ARMS)}, llama, nanogpt=PATH of its model.py; the first is the unit of ratios (default: %(default)s)')
    parser.add_argument('--shapes', nargs='+', default=['small', 'large'], choices=SHAPES)
    parser.add_argument('--lengths', type=int, nargs='+', default=[], help='one attention layer at these lengths, and sampling, instead of steps')
    parser.add_argument('--kernels', action='store_true', help=f'attention alone at these lengths: {", ".join(KERNELS)}')
    parser.add_argument('--head_size', type=int, default=64, help='at these lengths (default: %(default)s)')
    parser.add_argument('--tokens', type=int, default=2**14, help='in a batch of them, or one sequence if that is more (default: %(default)s)')
    parser.add_argument('--figure', type=Path, help='draw time and memory by length')
    parser.add_argument('--compile', action='store_true', help='torch.compile the models, or that layer')
    parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16', 'float16'))
    parser.add_argument('--rounds', type=int, default=30, help='counted steps of each arm (default: %(default)s)')
    parser.add_argument('--quick', action='store_true', help='small shape, five rounds')
    parser.add_argument('--device', default='auto')
    parser.add_argument('--json', type=Path, help='also write the figures to this file')
    parser.add_argument('--show', type=Path, metavar='FILE', help='print the tables of this file and measure nothing')
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    options.command = ' '.join(['python', 'bench.py', *('nanogpt=PATH' if a.startswith('nanogpt=') else a for a in arguments)])
    if options.quick:
        options.shapes, options.rounds = ['small'], 5
    if not options.lengths and (options.kernels or options.figure and not options.show):
        parser.error('--kernels and --figure are by length: say which --lengths')
    if options.lengths and (peers := [arm for arm in options.arms if arm not in ARMS]):
        parser.error(f'--arms {" ".join(peers)}: peers are timed by the step, not by --lengths')
    if options.rounds < 2:
        parser.error('--rounds must be at least 2')
    results = json.loads(options.show.read_text()) if options.show else measure(options, choose_device(options.device))
    show(results)
    if options.figure and 'lengths' in results:
        draw(results, options.figure)
    if options.json and not options.show:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + '\n')


if __name__ == '__main__':
    main()
