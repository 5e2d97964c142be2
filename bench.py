"""
Time the attentions side by side, in one process: a training step of each, and the sampling of each task.

    python bench.py                      # two shapes, eager
    python bench.py --compile            # the same, compiled
    python bench.py --quick              # the small shape, a few repeats
    python bench.py --show FILE          # the tables of an earlier --json=FILE

All arms take turns, in an order drawn anew each round, so that a machine whose speed drifts slows them alike; a ratio is
the median over rounds of the ratio within a round. A step is forward, backward, gradient clipping and AdamW. Memory is
the peak of a step on cuda; elsewhere nobody counts it.
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


def training_step(attention, shape, device, dtype, compile):
    """A function that makes one training step of a fresh model on a fixed random batch, and the model."""
    torch.manual_seed(0)
    T, B = shape['block_size'], shape['batch_size']
    model = GPT(GPTConfig(VOCABULARY, attention=attention, **{k: v for k, v in shape.items() if k != 'batch_size'})).to(device)
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


def bench_steps(shape, attentions, options, device, synchronize):
    """One row per attention: {attention, parameters, ms: [low, median, high], ratio to the first, tokens/s, MiB}."""
    steps, models = {}, {}
    for attention in attentions:
        steps[attention], models[attention] = training_step(attention, shape, device, options.dtype, options.compile)
    memory = {}
    for attention in attentions if torch.device(device).type == 'cuda' else ():
        steps[attention]()  # compiles, and makes the optimiser's state
        torch.cuda.reset_peak_memory_stats()
        steps[attention]()
        memory[attention] = torch.cuda.max_memory_allocated() / 2**20
    seconds = interleave(steps, options.rounds, synchronize)
    base, rows = attentions[0], []
    for attention in attentions:
        s = seconds[attention]
        quartiles = [1e3 * q for q in statistics.quantiles(s, n=4)]
        tokens = shape['block_size'] * shape['batch_size']
        rows.append(dict(attention=attention, parameters=sum(p.numel() for p in models[attention].parameters()), ms=quartiles,
                         ratio=statistics.median(a / b for a, b in zip(s, seconds[base])),
                         tokens_per_second=tokens / statistics.median(s), MiB=memory.get(attention)))
    return rows


def measure(options, device):
    """Everything that the options ask for, as a dict that json can write."""
    cuda = torch.device(device).type == 'cuda'
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    results = dict(processor=torch.cuda.get_device_name(device) if cuda else processor_name(), threads=torch.get_num_threads(),
                   device=device, torch=str(torch.__version__), dtype=options.dtype, compile=options.compile, rounds=options.rounds,
                   steps={}, sampling_ms={})
    for name in options.shapes:
        results['steps'][name] = bench_steps(SHAPES[name], options.attentions, options, device, synchronize)
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
        print(f'\n| attention | parameters | step (ms) | x {rows[0]["attention"]} | tokens/s | peak MiB |\n|---|---|---|---|---|---|')
        for r in rows:
            low, median, high = r['ms']
            print(f'| {r["attention"]} | {r["parameters"]:,} | {median:.2f} [{low:.2f}, {high:.2f}] | {r["ratio"]:.3f} | '
                  f'{r["tokens_per_second"]:,.0f} | {"-" if r["MiB"] is None else format(r["MiB"], ".0f")} |')
    if results['sampling_ms']:
        base = results['steps']['small'][0]
        print(f'\n| task | sampling a batch (ms) | share of a {base["attention"]} step |\n|---|---|---|')
        for name, ms in results['sampling_ms'].items():
            print(f'| {name} | {ms:.3f} | {100 * ms / base["ms"][1]:.1f} % |')


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--attentions', nargs='+', default=list(ATTENTIONS), choices=ATTENTIONS, help='the first is the unit of ratios')
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
