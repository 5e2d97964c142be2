"""
Time the attentions side by side, in one process.

    python -m lab.bench                                      # training steps of two shapes
    python -m lab.bench --arms rope nanogpt=PATH             # beside nanoGPT's model.py
    python -m lab.bench --parts kernels --lengths 256 1024 4096
    python -m lab.bench --gpu                                # what only a GPU shows: some minutes
    python -m lab.bench --json FILE --show                   # the tables of what FILE has

    steps       a training step: forward, backward, clipping and AdamW; and generating tokens
    compiled    a training step under torch.compile
    kernels     attention alone, by length. sdpa is PyTorch's. fused is TAPA's kernel, blocks is
                TAPA by blocks of queries, explicit has all T x T scores at once
    errors      TAPA's kernel beside its formula in float64, in both dtypes
    job         the README's main job, from the command on

In each round every arm runs once, in a random order, so a machine whose speed drifts slows all of
them. A ratio is the median over rounds of the ratio to the first arm within a round.

With --json, each measurement is written at once, so a command that was stopped goes on where it
was. A row counts for its processor, commit and torch. A measurement that fails is a row with its
error, and the others go on. To try it again, mend it and commit, or delete the row.

--gpu stands for several parts on sizes of a GPU. Its rows go into lab/results/gpu.json.
--gpu --quick --json FILE rehearses it anywhere. lab/speed.md has the tables.
"""

import contextlib
import importlib.util
import io
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F

from checkpoint import machine, write_files
from configurator import Process, choose_device, one_line_errors
from lab.options import count
from lab.options import make_parser
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
GPU = dict(parts=['errors', 'steps', 'kernels', 'job', 'compiled'], shapes=['gpu_text'],
           arms=ARMS, lengths=[1024, 4096, 16384, 32768], tokens=2**15, rounds=20, generated=32,
           dtype='bfloat16', minutes=8, json=Path('lab/results/gpu.json'))
QUICK = dict(shapes=['tiny'], lengths=[16, 32], tokens=32, rounds=2, head_size=16)
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
    spec = importlib.util.spec_from_file_location('nanogpt', path)
    nanogpt = importlib.util.module_from_spec(spec)
    sys.modules['nanogpt'] = nanogpt
    spec.loader.exec_module(nanogpt)  # its code runs
    with contextlib.redirect_stdout(io.StringIO()):  # it prints how many parameters it has
        return nanogpt.GPT(nanogpt.GPTConfig(**sizes, dropout=0.0, bias=False))


def in_dtype(module, options):
    """The module as a function whose matrix products have the dtype of the options."""
    process = Process(options.device, options.dtype)

    def call(*inputs):
        with process.autocast():
            return module(*inputs)
    return call


def training_step(arm, shape, options, compile=False):
    """A function that makes one training step of a new model on a fixed batch, and the model."""
    torch.manual_seed(0)
    model = build(arm, shape).to(options.device).train()
    if isinstance(model, GPT):
        (optimizer,) = configure_optimizers(model, ADAMW)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, (0.9, 0.99), weight_decay=0.1,
                                      fused=options.device != 'mps')
    compiled = model
    if compile:
        compiled = torch.compile(model, dynamic=False, fullgraph=isinstance(model, GPT))
    forward = in_dtype(compiled, options)
    size = 2, shape['batch_size'], shape['block_size']
    x, y = torch.randint(shape['vocab_size'], size, device=options.device)

    def step():
        forward(x, y)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step, model


def kernel(arm, T, head_size, device):
    """Causal attention as a function of q, k, v (B, nh, T, head_size)."""
    if arm == 'sdpa':
        return partial(F.scaled_dot_product_attention, is_causal=True)
    attention = TAPAFused(GPTConfig(vocab_size=1, n_head=1, n_embd=head_size))
    fused = partial(attention.attend_by_kernel, powers=attention.powers(T, device))
    return dict(fused=fused, blocks=attention.attend_by_blocks,
                explicit=partial(Attention.attend, attention))[arm]


def exact(arm, q, k, v, theta=0.5, alpha=GPTConfig.tapa_alpha, scale=2 * math.pi):
    """What `kernel` computes, in float64, by the formula."""
    repeat = q.size(1) // k.size(1)
    q, k, v = q.double(), *(x.double().repeat_interleave(repeat, dim=1) for x in (k, v))
    T, hs = q.shape[2:]
    position = torch.arange(T, device=q.device)
    distance = position[:, None] - position
    if arm == 'sdpa':
        scores = q @ k.mT / math.sqrt(hs)
    else:
        hs_A = round(theta * hs)
        q_A, q_P = q.split([hs_A, hs - hs_A], dim=-1)
        k_A, k_P = k.split([hs_A, hs - hs_A], dim=-1)
        phi = q_P @ k_P.mT / math.sqrt(hs - hs_A)
        power = distance.abs().double() ** alpha
        scores = q_A @ k_A.mT / math.sqrt(hs_A) * torch.cos(scale * power * phi)
    return scores.masked_fill(distance < 0, float('-inf')).softmax(dim=-1) @ v


def errors_of(arm, attend, q, k, v, do):
    """{name: relative error to float64} of out, dq, dk and dv, for one head of one sequence."""
    q, k, v = (x[:1, :1].detach().requires_grad_() for x in (q, k, v))
    ours = with_gradients(attend, [q, k, v], do[:1, :1])
    theirs = with_gradients(partial(exact, arm), [q, k, v], do[:1, :1])
    return {name: ((x.double() - y).norm() / y.norm()).item()
            for name, x, y in zip(('out', 'dq', 'dk', 'dv'), ours, theirs)}


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


# The parts: each is {name of a measurement: function to its rows}


def steps(options, compile=False):
    """A training step of each attention, and a generated sequence: time and memory."""
    def measure(size):
        torch.compiler.reset()
        shape = SHAPES[size]
        B, T = shape['batch_size'], shape['block_size']
        start = torch.zeros(1, 1, dtype=torch.long, device=options.device)
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
                size=size, arm=name,
                parameters=sum(p.numel() for p in model.parameters()),
                saved_MiB=saved, peak_MiB=peak_MiB(step, options.device)))
        for row in timed(rows, functions, options):
            row['tokens_per_second'] = 1e3 * B * T / row['step'][1]
        return rows
    return {size: partial(measure, size) for size in options.shapes}


def kernels(options):
    """TAPA's ways to compute a head, forward and backward, at each length; their errors, too."""
    def measure(T):
        B = max(1, options.tokens // T)
        q, k, v, do = sample(options, B, T, HEADS, options.head_size, options.dtype)
        functions, rows = {}, []
        for arm in ('sdpa', 'fused', 'blocks', 'explicit'):
            attend = kernel(arm, T, options.head_size, options.device)
            both = partial(with_gradients, attend, [q, k, v], do)
            try:
                row = dict(size=T, arm=arm, B=B, saved_MiB=saved_MiB(both),
                           peak_MiB=peak_MiB(both, options.device))
                if T <= 4096:
                    row.update(errors_of(arm, attend, q, k, v, do))
            # what the kernel does not serve; a full memory
            except (ValueError, MemoryError, RuntimeError) as error:
                reason = str(error).partition('\n')[0]
                print(f'{arm} is left out at {T} tokens: {reason}', file=sys.stderr)
                continue
            rows.append(row)
            functions[arm, 'forward'] = partial(torch.no_grad()(attend), q, k, v)
            functions[arm, 'both'] = both
        return timed(rows, functions, options)
    return {T: partial(measure, T) for T in options.lengths}


def sample(options, B, T, heads, head_size, dtype):
    """q, k, v, do (B, heads, T, head_size)."""
    torch.manual_seed(0)
    tensors = [torch.randn(B, T, heads, head_size, device=options.device)
               .to(getattr(torch, dtype)).transpose(1, 2) for _ in range(4)]
    return [x.requires_grad_() for x in tensors[:3]] + tensors[3:]


def errors(options):
    """TAPA's kernel beside float64, for each size of a head and each dtype."""
    def measure(head_size, dtype):
        T = 20 if options.quick else 1000
        inputs = sample(options, 1, T, 1, head_size, dtype)
        attend = kernel('fused', T, head_size, options.device)
        found = errors_of('fused', attend, *inputs)
        return [dict(size=head_size, arm='fused', dtype=dtype, **found)]
    head_sizes = [16] if options.quick else [64, 128]
    return {f'{head_size} {dtype}': partial(measure, head_size, dtype)
            for head_size in head_sizes for dtype in ('float32', 'bfloat16')}


def job(options):
    """The README's main job, whole: its seconds and its loss."""
    config = 'config/dyck3_spectral.py'

    def measure():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, 'train.py', config, f'--device={options.device}',
                       f'--out_dir={folder}/run']
            if options.quick:
                command += ['--max_iters=2', '--eval_sequences=8', '--batch_size=2']
            start = time.perf_counter()
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - start
            log = Path(folder, 'run/log.jsonl').read_text(encoding='utf-8').splitlines()
        last = [line for line in map(json.loads, log) if 'val_loss' in line][-1]
        return [dict(size=config, seconds=seconds, in_training=last['seconds'],
                     iterations=last['iter'], val_loss=last['val_loss'])]
    return {'dyck3_spectral': measure}


PARTS = dict(steps=steps, compiled=partial(steps, compile=True), kernels=kernels, errors=errors,
             job=job)


def measure(parts, options):
    """
    Measure the parts that options.json does not have yet, until options.minutes are over. Returns
    all rows, those of the file first.
    """
    rows = read_rows(options.json)
    facts = machine(options.device) | dict(device=options.device, dtype=options.dtype)
    done = {(row['part'], row['name']) for row in rows if place(row) == place(facts)}
    start = time.perf_counter()
    for part in options.parts:
        for name, function in parts[part](options).items():
            left = 60 * options.minutes - (time.perf_counter() - start)
            if (part, str(name)) in done:
                continue
            if left < 0:
                print(f'no time for {part} {name} and what follows: run the command again')
                return rows
            print(f'{part} {name}', file=sys.stderr, flush=True)
            try:
                found = function()
            except UserError:
                raise
            except Exception as error:  # the others go on
                traceback.print_exc()
                found = [dict(error=f'{type(error).__name__}: {error}'.splitlines()[0])]
            rows += [dict(part=part, name=str(name), rounds=options.rounds, **(facts | row))
                     for row in found]
            if options.json:
                text = json.dumps(dict(rows=rows), indent=1) + '\n'
                options.json.parent.mkdir(parents=True, exist_ok=True)
                write_files(options.json.parent, {options.json.name: text.encode()})
            if 'error' in found[0] and options.device.startswith('cuda'):
                torch.cuda.synchronize()  # ends this process if the error broke its GPU
    return rows


def place(row):
    """The processor and the commit, which the file itself does not make dirty."""
    return row['processor'], str(row['commit']).removesuffix('-dirty'), row['torch']


def read_rows(path):
    """The rows of a file of measurements, none if there is no file. UserError for another file."""
    if not path or not path.exists():
        return []
    try:
        return json.loads(path.read_text(encoding='utf-8'))['rows']
    except (ValueError, LookupError, TypeError):
        raise UserError(f'{path} has no rows of lab.bench') from None


# Tables, and the command line


def written(value, digits=2):
    """'median [low, high]' of three numbers."""
    low, median, high = (f'{number:.{digits}f}' for number in value)
    return f'{median} [{low}, {high}]'


COLUMNS = {  # what a row may have: its header, and how it is written
    'size': ('', str), 'arm': ('arm', str), 'dtype': ('dtype', str),
    'parameters': ('parameters', '{:,}'.format),
    'step': ('step (ms)', written), 'step ratio': ('x', partial(written, digits=3)),
    'generate': ('generating (ms)', written),
    'generate ratio': ('generating x', partial(written, digits=3)),
    'forward': ('forward (ms)', written), 'forward ratio': ('x', written),
    'both': ('forward and backward (ms)', written), 'both ratio': ('x', written),
    'tokens_per_second': ('tokens/s', '{:,.0f}'.format),
    'saved_MiB': ('saved MiB', '{:,.1f}'.format), 'peak_MiB': ('peak MiB', '{:,.0f}'.format),
    'out': ('error of out', '{:.1e}'.format), 'dq': ('dq', '{:.1e}'.format),
    'dk': ('dk', '{:.1e}'.format), 'dv': ('dv', '{:.1e}'.format),
    'seconds': ('seconds', '{:.1f}'.format), 'in_training': ('in training', '{:.1f}'.format),
    'iterations': ('updates', str), 'val_loss': ('validation loss', '{:.2g}'.format),
}
# that other work on the machine changes more than it does a ratio
ABSOLUTE = ('step', 'generate', 'forward', 'both', 'tokens_per_second')


def tables(rows, ratios=False):
    """
    A Markdown table for each part, of the rows of each processor, commit and torch; of the times
    the `ratios` alone, if that is asked for.
    """
    if not rows:
        return 'No figure exists yet.\n'
    pieces = []
    for where in dict.fromkeys(map(place, rows)):
        here = [row for row in rows if place(row) == where]
        processor, commit, version = where
        pieces.append(f'Commit {commit}; {processor}; {here[0]["threads"]} threads; torch '
                      f'{version}; medians [quartiles]; x: ratio to the first arm\n')
        for part in dict.fromkeys(row['part'] for row in here):
            mine = [row for row in here if row['part'] == part]
            good = [row for row in mine if 'error' not in row]
            if good:
                pieces.append(f'{part}, {good[0]["dtype"]}\n\n{table(good, ratios)}')
            pieces += [f'{part} {row["name"]} failed: {row["error"]}\n' for row in mine
                       if 'error' in row]
    return '\n'.join(pieces)


def table(rows, ratios):
    """A Markdown table with a column for everything in COLUMNS that some row has."""
    names = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    if len({row['dtype'] for row in rows}) == 1:
        names.remove('dtype')
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
    parser.set_defaults(head_size=64, tokens=2**14, generated=256)
    add('--dtype', default='float32', choices=('float32', 'bfloat16'))
    add('--rounds', type=lambda text: count(text, 2), default=30,
        help='timed calls of each arm (default: %(default)s)')
    add('--minutes', type=float, default=math.inf, help='no measurement begins later')
    add('--device', default='auto', help='auto, cpu, cuda, mps')
    add('--json', type=Path, help='add the rows to this file, and leave out what it has')
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
    rows = read_rows(options.json)
    if not options.show:
        options.device = choose_device(options.device)
        if options.json == GPU['json'] and (options.quick or not options.device.startswith('cuda')):
            raise UserError(f'--device={options.device}: what is no measurement of a GPU is a '
                            'rehearsal: give --quick and another file with --json')
        if options.device.startswith('cuda'):
            torch.set_float32_matmul_precision('high')  # as train.py
        rows = measure(PARTS, options)
    print(tables(rows, options.ratios), end='')


if __name__ == '__main__':
    with one_line_errors():
        main()
