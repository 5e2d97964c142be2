"""
Time the attentions side by side, in one process.

    python -m lab.bench                                      # training steps of two shapes
    python -m lab.bench --arms rope nanogpt=PATH             # beside nanoGPT's model.py
    python -m lab.bench --parts kernels --lengths 256 1024 4096
    python -m lab.bench --gpu --json FILE                    # what only a GPU shows: 5 minutes
    python -m lab.bench --show --json FILE                   # the tables of what FILE has

    job         the README's main job, from the command on; on cuda once more with --graph=True
    steps       a training step: forward, backward, clipping and AdamW; and generating tokens
    compiled    a training step under torch.compile
    kernels     attention alone, by length. sdpa is PyTorch's. fused is TAPA's kernel, blocks is
                TAPA by blocks of queries, explicit has all T x T scores at once

In each round every arm runs once, in a random order, so a machine whose speed drifts slows all of
them. A ratio is the median over rounds of the ratio to the first arm within a round. --json has the
rows of each measurement as soon as it is over. lab/speed.md has the tables.
"""

import contextlib
import io
import json
import math
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F

from checkpoint import machine, read_log, write_files, writing
from configurator import Process, choose_device, one_line_errors
from lab.options import count, make_parser
from lab.table import markdown
from lab.tapa import TAPAFused
from model import GPT, Attention, GPTConfig, UserError
from optim import configure_optimizers

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {
    'tiny': dict(n_layer=1, n_head=2, n_embd=32, block_size=16, batch_size=2, vocab_size=65),
    'small': dict(n_layer=2, n_head=2, n_embd=64, block_size=64, batch_size=64, vocab_size=65),
    'large': dict(n_layer=4, n_head=4, n_embd=256, block_size=256, batch_size=8, vocab_size=65),
    'gpu_text': dict(n_layer=6, n_head=6, n_embd=384, block_size=1024, batch_size=8,
                     vocab_size=50304)}
ARMS = ['rope', 'spectral', 'bifocal', 'tapa', 'tapa_fused', 'nope']
HEADS = 16
HEAD_SIZE = 64
GPU = dict(parts=['job', 'steps', 'kernels', 'compiled'], shapes=['gpu_text'], generated=32,
           lengths=[1024, 4096, 16384, 32768], tokens=2**15, rounds=10, dtype='bfloat16',
           minutes=4)
QUICK = dict(shapes=['tiny'], lengths=[16, 32], tokens=32, rounds=2)
ADAMW = SimpleNamespace(optimizer='adamw', learning_rate=1e-3, positional_lr=1e-2, muon_lr=None,
                        weight_decay=0.1, beta1=0.9, beta2=0.99)
quartiles = partial(statistics.quantiles, n=4, method='inclusive')  # never outside the data


# What is timed


def build(arm, shape):
    """A new model of `shape`: (x, y) to (logits, loss). Raises UserError for an unknown arm."""
    sizes = {key: value for key, value in shape.items() if key != 'batch_size'}
    name, _, path = arm.partition('=')
    if name != 'nanogpt':
        return GPT(GPTConfig(**sizes, attention=arm))
    if not Path(path).is_file():
        raise UserError(f'--arms nanogpt={path}: must be nanogpt=PATH of its model.py')
    nanogpt = SimpleNamespace(**runpy.run_path(path))  # its code runs
    with contextlib.redirect_stdout(io.StringIO()):  # it prints how many parameters it has
        return nanogpt.GPT(nanogpt.GPTConfig(**sizes, dropout=0.0, bias=False))


def in_dtype(module, options):
    """The module as a function whose matrix products have the dtype of the options."""
    def call(*inputs):
        with Process(options.device, options.dtype).autocast():
            return module(*inputs)
    return call


def training_step(arm, shape, options, compile=False):
    """A function that makes one training step of a new model on a fixed batch, and the model."""
    torch.manual_seed(0)
    model = build(arm, shape).to(options.device).train()
    if isinstance(model, GPT):
        (optimizer,) = configure_optimizers(model, ADAMW)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), fused=options.device != 'mps')
    forward = in_dtype(torch.compile(model, dynamic=False) if compile else model, options)
    size = 2, shape['batch_size'], shape['block_size']
    x, y = torch.randint(shape['vocab_size'], size, device=options.device)

    def step():
        forward(x, y)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step, model


def kernel(arm, T, device):
    """Causal attention as a function of q, k, v (B, nh, T, HEAD_SIZE)."""
    if arm == 'sdpa':
        return partial(F.scaled_dot_product_attention, is_causal=True)
    attention = TAPAFused(GPTConfig(vocab_size=1, n_head=1, n_embd=HEAD_SIZE))
    fused = partial(attention.attend_by_kernel, powers=attention.powers(T, device))
    return dict(fused=fused, blocks=attention.attend_by_blocks,
                explicit=partial(Attention.attend, attention))[arm]


def with_gradients(attend, inputs, do):
    """attend(*inputs), then the gradients of the inputs for `do` of the output."""
    out = attend(*inputs)
    return out, *torch.autograd.grad(out, inputs, do.to(out.dtype))


# How it is timed


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


def timed(rows, functions, options):
    """
    The rows, which begin with the first arm, with the times of {(arm, kind): function}: [low,
    median, high] of the milliseconds of each kind, and of their ratio to those of the first arm.
    """
    times = interleave(functions, options.rounds, options.device)
    for row in rows:
        for (arm, kind), found in times.items():
            units = times.get((rows[0]['arm'], kind))
            if arm == row['arm']:
                row[kind] = quartiles(found)
            if arm == row['arm'] and units:
                row[f'{kind} ratio'] = quartiles([ms / unit for ms, unit in zip(found, units)])
    return rows


def saved_MiB(function, weights=()):
    """MiB of the tensors that `function` saves for its backward pass, without `weights`."""
    not_counted = {p.untyped_storage().data_ptr() for p in weights}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in not_counted:
            saved[storage.data_ptr()] = storage  # to hold it: its address stays its own
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function()
    return sum(storage.nbytes() for storage in saved.values()) / 2**20


def peak_MiB(function, device):
    """The most MiB that `function` takes on cuda beyond what is there before; None elsewhere."""
    if not device.startswith('cuda'):
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


# The parts: each yields the rows of its measurements


def jobs(options):
    """The README's main job, whole: its seconds and its loss."""
    for graph in (False, True) if options.device.startswith('cuda') else (False,):
        words = ['config/dyck3_spectral.py', f'--graph={graph}']
        with tempfile.TemporaryDirectory() as folder:
            more = [f'--device={options.device}', f'--out_dir={folder}/run']
            if options.quick:
                more += ['--max_iters=2', '--eval_sequences=8', '--batch_size=2']
            start = time.perf_counter()
            subprocess.run([sys.executable, 'train.py', *words, *more], cwd=ROOT, check=True,
                           stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - start
            last = [line for line in read_log(f'{folder}/run') if 'val_loss' in line][-1]
        yield [dict(size=' '.join(words), seconds=seconds, in_training=last['seconds'],
                    iterations=last['iter'], val_loss=last['val_loss'])]


def steps(options, compile=False):
    """A training step of each attention, and a generated sequence: time and memory."""
    start = torch.zeros(1, 1, dtype=torch.long, device=options.device)
    for size in options.shapes:
        torch.compiler.reset()
        shape = SHAPES[size]
        B, T = shape['batch_size'], shape['block_size']
        functions, rows = {}, []
        for arm in options.arms:
            name = arm.partition('=')[0]
            step, model = training_step(arm, shape, options)
            saved = saved_MiB(step, model.parameters())
            if compile:
                step, model = training_step(arm, shape, options, compile)
                step()
            else:
                generate = in_dtype(model.generate, options)
                tokens = min(T, options.generated) - 1
                functions[name, 'generate'] = partial(generate, start, tokens)
            functions[name, 'step'] = step
            rows.append(dict(
                size=size, arm=name, parameters=sum(p.numel() for p in model.parameters()),
                saved_MiB=saved, peak_MiB=peak_MiB(step, options.device)))
        for row in timed(rows, functions, options):
            row['tokens_per_second'] = 1e3 * B * T / row['step'][1]
        yield rows


def kernels(options):
    """TAPA's ways to compute a head, forward and backward, at each length."""
    dtype = getattr(torch, options.dtype)
    for T in options.lengths:
        B = max(1, options.tokens // T)
        torch.manual_seed(0)
        size = 4, B, T, HEADS, HEAD_SIZE
        q, k, v, do = torch.randn(size, device=options.device).to(dtype).transpose(2, 3)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        functions, rows = {}, []
        for arm in ('sdpa', 'fused', 'blocks', 'explicit'):
            attend = kernel(arm, T, options.device)
            both = partial(with_gradients, attend, inputs, do)
            try:
                rows.append(dict(size=T, arm=arm, B=B, saved_MiB=saved_MiB(both),
                                 peak_MiB=peak_MiB(both, options.device)))
            # what the kernel does not serve; a full memory
            except (ValueError, MemoryError, RuntimeError) as error:
                reason = str(error).partition('\n')[0]
                print(f'{arm} is left out at {T} tokens: {reason}', file=sys.stderr)
                continue
            functions[arm, 'forward'] = partial(torch.no_grad()(attend), *inputs)
            functions[arm, 'both'] = both
        yield timed(rows, functions, options)


PARTS = dict(job=jobs, steps=steps, compiled=partial(steps, compile=True), kernels=kernels)


def measure_parts(options):
    """The rows of all parts, until options.minutes are over. options.json has them at once."""
    rows, start = [], time.perf_counter()
    facts = machine(options.device) | dict(
        device=options.device, dtype=options.dtype, rounds=options.rounds)
    for part in options.parts:
        print(part, file=sys.stderr)
        for found in PARTS[part](options):
            rows += [dict(part=part) | facts | row for row in found]
            if options.json:
                text = json.dumps(dict(rows=rows), indent=1) + '\n'
                write_files(options.json.parent, {options.json.name: text.encode()})
            if time.perf_counter() - start > 60 * options.minutes:
                print(f'{options.minutes} minutes are over, in {part}', file=sys.stderr)
                return rows
    return rows


def read_rows(path):
    """The rows of a file of measurements. Raises UserError for another file."""
    try:
        return json.loads(path.read_text(encoding='utf-8'))['rows']
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f'{path} has no rows of lab.bench') from None


# Tables, and the command line


def written(value, digits=2):
    """'median [low, high]' of three numbers."""
    low, median, high = (f'{number:.{digits}f}' for number in value)
    return f'{median} [{low}, {high}]'


COLUMNS = {  # what a row may have: its header, and how it is written
    'size': ('', str), 'arm': ('arm', str),
    'parameters': ('parameters', '{:,}'.format),
    'step': ('step (ms)', written), 'step ratio': ('x', partial(written, digits=3)),
    'generate': ('generating (ms)', written),
    'generate ratio': ('generating x', partial(written, digits=3)),
    'forward': ('forward (ms)', written), 'forward ratio': ('x', written),
    'both': ('forward and backward (ms)', written), 'both ratio': ('x', written),
    'tokens_per_second': ('tokens/s', '{:,.0f}'.format),
    'saved_MiB': ('saved MiB', '{:,.1f}'.format), 'peak_MiB': ('peak MiB', '{:,.0f}'.format),
    'seconds': ('seconds', '{:.1f}'.format), 'in_training': ('in training', '{:.1f}'.format),
    'iterations': ('updates', str), 'val_loss': ('validation loss', '{:.2g}'.format),
}
# that other work on the machine changes more than it does a ratio
ABSOLUTE = ('step', 'generate', 'forward', 'both', 'tokens_per_second')


def tables(rows, ratios=False):
    """A Markdown table for each part; of the times the `ratios` alone, if that is asked for."""
    if not rows:
        return 'nothing was measured\n'
    first = rows[0]
    pieces = [f'Commit {first["commit"]}; {first["processor"]}; {first["threads"]} threads; torch '
              f'{first["torch"]}; medians [quartiles]; x: ratio to the first arm\n']
    for part in dict.fromkeys(row['part'] for row in rows):
        group = [row for row in rows if row['part'] == part]
        pieces.append(f'{part}, {group[0]["dtype"]}\n\n{format_table(group, ratios)}')
    return '\n'.join(pieces)


def format_table(rows, ratios):
    """A Markdown table with a column for everything in COLUMNS that some row has."""
    names = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    names = [name for name in names if not (ratios and name in ABSOLUTE)]
    lines = [['-' if row.get(name) is None else COLUMNS[name][1](row[name]) for name in names]
             for row in rows]
    return markdown([COLUMNS[name][0] for name in names], lines)


def parse(arguments):
    """The options of the command line `arguments`."""
    parser = make_parser('lab.bench', __doc__)
    add = parser.add_argument
    add('--parts', nargs='+', choices=PARTS, default=['steps'], help='default: %(default)s')
    add('--arms', nargs='+', default=ARMS, metavar='ARM',
        help='attentions, or nanogpt=PATH of its model.py; the first is the unit of ratios '
        '(default: %(default)s)')
    add('--shapes', nargs='+', default=['small', 'large'], choices=SHAPES)
    add('--lengths', type=count, nargs='+', default=[256, 1024])
    parser.set_defaults(tokens=2**14, generated=256, minutes=math.inf)
    add('--dtype', default='float32', choices=('float32', 'bfloat16'))
    add('--rounds', type=lambda text: count(text, 2), default=30,
        help='timed calls of each arm (default: %(default)s)')
    add('--device', default='auto', help='auto, cpu, cuda, mps')
    add('--json', type=Path, help='a new file for the rows')
    add('--show', action='store_true', help='print the tables of --json, measure nothing')
    add('--ratios', action='store_true', help='tables without times, which a busy machine spoils')
    add('--gpu', action='store_true', help='other defaults: all that only a GPU shows')
    add('--quick', action='store_true', help='the smallest sizes, two rounds')
    if '--gpu' in (sys.argv[1:] if arguments is None else arguments):
        parser.set_defaults(**GPU)
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    if options.show and not options.json:
        parser.error('--show needs --json FILE')
    return options


def main(arguments=None):
    """Measure and print as the command line `arguments` (default: sys.argv) say."""
    options = parse(arguments)
    if options.show:
        rows = read_rows(options.json)
    else:
        options.device = choose_device(options.device)
        if options.json and options.json.exists():
            raise UserError(f'--json={options.json}: it exists; must be a new file')
        if options.json:
            with writing(options.json.parent):
                options.json.parent.mkdir(parents=True, exist_ok=True)
        if options.device.startswith('cuda'):
            torch.set_float32_matmul_precision('high')  # as train.py
        rows = measure_parts(options)
    print(tables(rows, options.ratios), end='')


if __name__ == '__main__':
    with one_line_errors():
        main()
