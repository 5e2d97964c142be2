"""
Time the attentions side by side, in one process: a training step of each, and the sampling of each task.

    python bench.py                      # two shapes, eager
    python bench.py --compile            # the same, compiled
    python bench.py --quick              # the small shape, a few repeats
    python bench.py --show FILE          # the tables of an earlier --json=FILE

All arms take turns, in an order drawn anew each round, so that a machine whose speed drifts slows them alike; a ratio is
the median over rounds of the ratio within a round. A step is forward, backward, gradient clipping and AdamW. FLOPs are
those of its matrix products, the causal half of attention not taken off. Saved is what the forward pass keeps for the
backward pass (eager, weights not counted), on any device; peak is the greatest memory of a step, which only cuda counts.
"""

import argparse
import json
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from configurator import choose_device, processor_name
from model import ATTENTIONS, GPT, GPTConfig
from tasks import TASKS, make_task, stream

SHAPES = {'small': dict(n_layer=2, n_head=2, n_embd=64, block_size=64, batch_size=64),
          'large': dict(n_layer=4, n_head=4, n_embd=256, block_size=256, batch_size=8)}
VOCABULARY = 65
ARMS = {attention: dict(attention=attention) for attention in ATTENTIONS}
ARMS['shared'] = dict(attention='spectral', spectral_shared=True)  # one Omega, A, Phi for all heads of a layer


def interleave(arms, rounds, synchronize, warmup=3):
    """{name: seconds of each round} of the functions in `arms`, in random turns, after `warmup` calls of each."""
    rng = np.random.default_rng(0)
    seconds = {name: [] for name in arms}
    for i in range(warmup + rounds):
        for name in rng.permutation(list(arms)):
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
    T, B = shape['block_size'], shape['batch_size']
    model = GPT(GPTConfig(VOCABULARY, **ARMS[arm], **{k: v for k, v in shape.items() if k != 'batch_size'})).to(device)
    optimizer = model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2)
    forward = torch.compile(model) if compile else model
    x, y = torch.randint(VOCABULARY, (2, B, T), device=device)
    device_type = torch.device(device).type
    autocast = nullcontext() if dtype == 'float32' else torch.autocast(device_type, dtype=getattr(torch, dtype))

    def step():
        with autocast:
            _, loss = forward(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, model


def count_flops(model, B, T):
    """FLOPs of the matrix products of one training step on (B, T) tokens: forward, and twice that backward."""
    config = model.config
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    scores = config.n_layer * config.n_head * T * config.head_size  # of a token, TAPA's two half-width products as one
    return 3 * B * T * (2 * weights + 2 * 2 * scores)  # scores, and values weighted by them


def saved_MiB(arm, shape, device, dtype):
    """What the forward pass of one training step, eager, saves for the backward pass; weights not counted."""
    step, model = training_step(arm, shape, device, dtype, compile=False)
    weights, saved = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(saved.values()) / 2**20


def bench_steps(shape, arms, options, device, synchronize):
    """One row per arm: {arm, parameters, flops, saved_MiB, ms: [low, median, high], ratio to the first, tokens/s, MiB}."""
    steps, models = {}, {}
    for arm in arms:
        steps[arm], models[arm] = training_step(arm, shape, device, options.dtype, options.compile)
    memory = {}
    for arm in arms if torch.device(device).type == 'cuda' else ():
        steps[arm]()  # compiles, and makes the optimiser's state
        torch.cuda.reset_peak_memory_stats()
        steps[arm]()
        memory[arm] = torch.cuda.max_memory_allocated() / 2**20
    seconds = interleave(steps, options.rounds, synchronize)
    base, rows = arms[0], []
    for arm in arms:
        s = seconds[arm]
        B, T = shape['batch_size'], shape['block_size']
        rows.append(dict(arm=arm, parameters=sum(p.numel() for p in models[arm].parameters()), flops=count_flops(models[arm], B, T),
                         saved_MiB=saved_MiB(arm, shape, device, options.dtype),
                         ms=[1e3 * q for q in statistics.quantiles(s, n=4)],
                         ratio=statistics.median(a / b for a, b in zip(s, seconds[base])),
                         tokens_per_second=B * T / statistics.median(s), MiB=memory.get(arm)))
    return rows


def measure(options, device):
    """Everything that the options ask for, as a dict that json can write."""
    cuda = torch.device(device).type == 'cuda'
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    results = dict(processor=torch.cuda.get_device_name(device) if cuda else processor_name(), threads=torch.get_num_threads(),
                   device=device, torch=str(torch.__version__), dtype=options.dtype, compile=options.compile, rounds=options.rounds,
                   steps={}, sampling_ms={})
    for name in options.shapes:
        results['steps'][name] = bench_steps(SHAPES[name], options.arms, options, device, synchronize)
    if 'small' in options.shapes:  # the step that the formal languages are trained with
        B, T = SHAPES['small']['batch_size'], SHAPES['small']['block_size']
        draws = {name: lambda task=make_task(name): task.sample(stream(0, 'bench'), B, T) for name in TASKS}
        seconds = interleave(draws, 10 * options.rounds, lambda: None)
        results['sampling_ms'] = {name: 1e3 * statistics.median(s) for name, s in seconds.items()}
    return results


def show(results):
    """Print Markdown tables of what `measure` returned."""
    print(f'{results["processor"]}, {results["threads"]} threads; torch {results["torch"]}; {results["dtype"]}; '
          f'{"compiled" if results["compile"] else "eager"}; medians of {results["rounds"]} rounds [quartiles]')
    for name, rows in results['steps'].items():
        print(f'\n{name}: ' + ', '.join(f'{key} {value}' for key, value in SHAPES[name].items()))
        print(f'\n| arm | parameters | MFLOPs | saved MiB | peak MiB | step (ms) | x {rows[0]["arm"]} | tokens/s |\n|---|---|---|---|---|---|---|---|')
        for r in rows:
            low, median, high = r['ms']
            print(f'| {r["arm"]} | {r["parameters"]:,} | {r["flops"] / 1e6:,.0f} | {r["saved_MiB"]:.1f} | {"-" if r["MiB"] is None else format(r["MiB"], ".0f")} | '
                  f'{median:.2f} [{low:.2f}, {high:.2f}] | {r["ratio"]:.3f} | {r["tokens_per_second"]:,.0f} |')
    if results['sampling_ms']:
        base = results['steps']['small'][0]
        print(f'\n| task | sampling a batch (ms) | share of a {base["arm"]} step |\n|---|---|---|')
        for name, ms in results['sampling_ms'].items():
            print(f'| {name} | {ms:.3f} | {100 * ms / base["ms"][1]:.1f} % |')


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arms', nargs='+', default=list(ARMS), choices=ARMS, help='the first is the unit of ratios')
    parser.add_argument('--shapes', nargs='+', default=list(SHAPES), choices=SHAPES)
    parser.add_argument('--compile', action='store_true', help='torch.compile the models')
    parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16', 'float16'))
    parser.add_argument('--rounds', type=int, default=30, help='counted steps of each arm (default: %(default)s)')
    parser.add_argument('--quick', action='store_true', help='small shape, five rounds')
    parser.add_argument('--device', default='auto')
    parser.add_argument('--json', type=Path, help='also write the figures to this file')
    parser.add_argument('--show', type=Path, metavar='FILE', help='print the tables of this file and measure nothing')
    options = parser.parse_args(arguments)
    if options.quick:
        options.shapes, options.rounds = ['small'], 5
    if options.rounds < 2:
        parser.error('--rounds must be at least 2')
    if options.show:
        show(json.loads(options.show.read_text()))
        return
    results = measure(options, choose_device(options.device))
    show(results)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + '\n')


if __name__ == '__main__':
    main()
