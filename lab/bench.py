"""
Time the attentions side by side, in one process.

    python -m lab.bench                                      # training steps of two shapes
    python -m lab.bench --arms rope nanogpt=PATH             # beside nanoGPT's model.py
    python -m lab.bench --parts kernels --lengths 256 1024 4096
    python -m lab.bench --gpu --json FILE                    # what only a GPU shows: 5 minutes
    python -m lab.bench --show FILE                          # the tables of what FILE has

    job         the README's main job, from the command on; on cuda once more with --graph=True
    steps       a training step: forward, backward, clipping and AdamW; and generating tokens
    compiled    a training step under torch.compile
    kernels     attention alone, by length. sdpa is PyTorch's. fused is TAPA's kernel, blocks is
                TAPA by blocks of queries, explicit has all T x T scores at once

In each round every arm runs once, in a random order, so a machine whose speed drifts slows all of
them. A ratio is the median over rounds of the ratio to the first arm within a round. --json has the
rows of each measurement as soon as it is over. lab/speed.md has the tables.
"""

import json
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from checkpoint import machine, read_log, write_files, writing
from configurator import choose_hardware, one_line_errors
from eval import count
from lab.board import options_of
from lab.options import make_parser
from lab.table import markdown
from lab.tapa import TAPAFused
from model import GPT, Attention, GPTConfig, UserError
from optim import configure_optimizers

ROOT = Path(__file__).resolve().parent.parent
JOB = ['config/dyck3_spectral.py']
SHAPES = {
    'small': dict(n_layer=2, n_head=2, n_embd=64, block_size=64, batch_size=64, vocab_size=65),
    'large': dict(n_layer=4, n_head=4, n_embd=256, block_size=256, batch_size=8, vocab_size=65),
    'gpu_text': dict(n_layer=6, n_head=6, n_embd=384, block_size=1024, batch_size=8,
                     vocab_size=50304)}
ARMS = ['rope', 'spectral', 'bifocal', 'tapa', 'tapa_fused', 'nope']
GPU = dict(parts=['job', 'steps', 'kernels', 'compiled'], shapes=['gpu_text'],
           lengths=[1024, 4096, 16384, 32768], rounds=10)
HEADS = 16
HEAD_SIZE = 64
GENERATED = 256  # tokens at most
WARMUP = 3  # calls
ADAMW = SimpleNamespace(optimizer='adamw', learning_rate=1e-3, positional_lr=1e-2, muon_lr=None,
                        weight_decay=0.1, beta1=0.9, beta2=0.99)
quartiles = partial(statistics.quantiles, n=4, method='inclusive')  # never outside the data


# What is timed


def name_of(arm):
    """An arm without nanoGPT's path."""
    return 'nanogpt' if arm.startswith('nanogpt=') else arm


def build(arm, shape):
    """A new model of `shape`: (x, y) to (logits, loss). Raises UserError for an unknown arm."""
    sizes = {key: value for key, value in shape.items() if key != 'batch_size'}
    if name_of(arm) != 'nanogpt':
        return GPT(GPTConfig(**sizes, **options_of(arm)))
    path = arm.removeprefix('nanogpt=')
    if not Path(path).is_file():
        raise UserError(f'--arms nanogpt={path}: must be nanogpt=PATH of its model.py')
    nanogpt = SimpleNamespace(**runpy.run_path(path))  # its code runs
    return nanogpt.GPT(nanogpt.GPTConfig(**sizes, dropout=0.0, bias=False))


def training_step(arm, shape, hardware):
    """
    A function that makes one training step of a new model on a fixed batch, another one that
    generates a sequence, and the model.
    """
    torch.manual_seed(0)
    model = build(arm, shape).to(hardware.device).train()
    if isinstance(model, GPT):
        (optimizer,) = configure_optimizers(model, ADAMW)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    T = shape['block_size']
    x, y = torch.randint(shape['vocab_size'], (2, shape['batch_size'], T), device=hardware.device)

    def step():
        with hardware.autocast():
            loss = model(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def generate():
        with hardware.autocast():
            model.generate(x[:1, :1], min(T, GENERATED) - 1)
    return step, generate, model


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


def interleave(functions, rounds, device):
    """{name: ms of each round} of {name: function}, in random order, after WARMUP calls."""
    rng = random.Random(0)
    wait = torch.accelerator.synchronize if device != 'cpu' else lambda: None
    names = list(functions)
    times = {name: [] for name in names}
    for _ in range(WARMUP + rounds):
        rng.shuffle(names)
        for name in names:
            wait()
            start = time.perf_counter()
            functions[name]()
            wait()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: found[WARMUP:] for name, found in times.items()}


def timed(rows, functions, rounds, device):
    """
    The rows, which begin with the first arm, with the times of {(arm, kind): function}: [low,
    median, high] of the milliseconds of each kind, and of their ratio to those of the first arm.
    """
    times = interleave(functions, rounds, device)
    for row in rows:
        for (arm, kind), found in times.items():
            if arm == row['arm']:
                units = times[rows[0]['arm'], kind]
                row[kind] = quartiles(found)
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


# The parts: each yields the rows of its measurements


def jobs(options, hardware):
    """The README's main job, from the command to its end: seconds and loss."""
    for graph in (False, True) if hardware.device_type == 'cuda' else (False,):
        words = [*JOB, f'--graph={graph}']
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, 'train.py', *words, f'--device={hardware.device}',
                       f'--out_dir={folder}']
            start = time.perf_counter()
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - start
            last = read_log(folder)[-1]
        yield [dict(size=' '.join(words), seconds=seconds, in_training=last['seconds'],
                    iterations=last['iter'], val_loss=last['val_loss'])]


def steps(options, hardware, compile=False):
    """A training step of each attention, and a generated sequence: time and memory."""
    for size in options.shapes:
        torch.compiler.reset()
        shape = SHAPES[size]
        functions, rows = {}, []
        for arm in options.arms:
            name = name_of(arm)
            step, generate, model = training_step(arm, shape, hardware)
            saved = saved_MiB(step, model.parameters())
            if compile:
                model.compile(dynamic=False)
            else:
                functions[name, 'generate'] = generate
            functions[name, 'step'] = step
            parameters = sum(p.numel() for p in model.parameters())
            rows.append(dict(size=size, arm=name, parameters=parameters, saved_MiB=saved))
        tokens = shape['batch_size'] * shape['block_size']
        for row in timed(rows, functions, options.rounds, hardware.device):
            row['tokens_per_second'] = 1e3 * tokens / row['step'][1]
        yield rows


def kernels(options, hardware):
    """TAPA's ways to compute a head, forward and backward, at each length."""
    tokens = 2**15 if hardware.device_type == 'cuda' else 2**14
    for T in options.lengths:
        B = max(1, tokens // T)
        torch.manual_seed(0)
        qkv_do = torch.randn(4, B, T, HEADS, HEAD_SIZE, device=hardware.device)
        q, k, v, do = qkv_do.to(getattr(torch, hardware.dtype)).transpose(2, 3)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        functions, rows = {}, []
        for arm in ('sdpa', 'fused', 'blocks', 'explicit'):
            attend = kernel(arm, T, hardware.device)
            both = partial(with_gradients, attend, inputs, do)
            try:
                rows.append(dict(size=T, arm=arm, B=B, saved_MiB=saved_MiB(both)))
            # what the kernel does not serve; a full memory
            except (ValueError, MemoryError, RuntimeError) as error:
                reason = str(error).partition('\n')[0]
                print(f'{arm} is left out at {T} tokens: {reason}', file=sys.stderr)
                continue
            functions[arm, 'forward'] = partial(torch.no_grad()(attend), *inputs)
            functions[arm, 'both'] = both
        yield timed(rows, functions, options.rounds, hardware.device)


PARTS = dict(job=jobs, steps=steps, compiled=partial(steps, compile=True), kernels=kernels)


def measure_parts(options, hardware):
    """The rows of all parts. The file options.json, if any, has them as they come."""
    facts = machine(hardware.device) | dict(
        device=hardware.device, dtype=hardware.dtype, rounds=options.rounds)
    rows = []
    for part in options.parts:
        print(part, file=sys.stderr)
        for found in PARTS[part](options, hardware):
            rows += [dict(part=part) | facts | row for row in found]
            if options.json:
                text = json.dumps(dict(rows=rows), indent=1) + '\n'
                write_files(options.json.parent, {options.json.name: text.encode()})
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
    'saved_MiB': ('saved MiB', '{:,.1f}'.format),
    'peak_MiB': ('peak MiB', '{:,.0f}'.format),  # in older rows
    'seconds': ('seconds', '{:.1f}'.format), 'in_training': ('in training', '{:.1f}'.format),
    'iterations': ('updates', str), 'val_loss': ('validation loss', '{:.2g}'.format),
}
# that other work on the machine changes more than it does a ratio
ABSOLUTE = ('step', 'generate', 'forward', 'both', 'tokens_per_second')


def tables(rows, ratios=False):
    """
    A Markdown table for each part, with a column for everything in COLUMNS that some row has; of
    the times the `ratios` alone, if that is asked for.
    """
    first = rows[0]
    pieces = [f'Commit {first["commit"]}; {first["processor"]}; {first["threads"]} threads; torch '
              f'{first["torch"]}; medians [quartiles]; x: ratio to the first arm\n']
    for part in dict.fromkeys(row['part'] for row in rows):
        group = [row for row in rows if row['part'] == part]
        names = [name for name in COLUMNS if any(row.get(name) is not None for row in group)
                 and not (ratios and name in ABSOLUTE)]
        lines = [['-' if row.get(name) is None else COLUMNS[name][1](row[name]) for name in names]
                 for row in group]
        table = markdown([COLUMNS[name][0] for name in names], lines)
        pieces.append(f'{part}, {group[0]["dtype"]}\n\n{table}')
    return '\n'.join(pieces)


def main(arguments=None):
    """Measure and print as the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('lab.bench', __doc__)
    add = parser.add_argument
    add('--parts', nargs='+', choices=PARTS, default=['steps'], help='default: %(default)s')
    add('--arms', nargs='+', default=ARMS, metavar='ARM',
        help='attentions, with @ an option `frequencies`, as in rope@partial:keep=0.25; or '
        'nanogpt=PATH of its model.py; the first is the unit of ratios (default: %(default)s)')
    add('--shapes', nargs='+', default=['small', 'large'], choices=SHAPES)
    add('--lengths', type=count, nargs='+', default=[256, 1024])
    add('--rounds', type=lambda text: count(text, 2), default=30,
        help='timed calls of each arm (default: %(default)s)')
    add('--gpu', action='store_true', help='parts, shapes, lengths and rounds for a GPU')
    add('--device', default='auto', help='auto, cpu, cuda, mps')
    add('--json', type=Path, metavar='FILE', help='a new file for the rows')
    add('--show', type=Path, metavar='FILE', help='print the tables of FILE, measure nothing')
    add('--ratios', action='store_true', help='tables without times, which a busy machine spoils')
    options = parser.parse_args(arguments)
    if options.gpu:  # other defaults
        parser.set_defaults(**GPU)
        options = parser.parse_args(arguments)
    if options.show:
        rows = read_rows(options.show)
    else:
        hardware = choose_hardware(options.device)
        if options.json and options.json.exists():
            raise UserError(f'--json={options.json}: it exists; must be a new file')
        if options.json:
            with writing(options.json.parent):
                options.json.parent.mkdir(parents=True, exist_ok=True)
        if hardware.device_type == 'cuda':
            torch.set_float32_matmul_precision('high')  # as train.py
        rows = measure_parts(options, hardware)
    print(tables(rows, options.ratios), end='')


if __name__ == '__main__':
    with one_line_errors():
        main()
