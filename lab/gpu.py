"""
The measurements for one GPU, in at most nine minutes. Nobody has run them on a GPU yet.

    python -m lab.gpu                        # all parts; what is measured already is left out
    python -m lab.gpu --part kernel lengths  # some of them
    python -m lab.gpu --public=PATH          # beside a clone of AIMRelease/tapa-attention, too
    python -m lab.gpu --show                 # the tables of what is measured
    python -m lab.gpu --write                # the same, into lab/speed.md, as after measuring

    kernel    TAPA's kernel beside its formula in float64: relative error of out, dq, dk, dv
    eager     training steps of each attention. nope is PyTorch's attention alone. gpt is a
              plain GPT with LayerNorm, GELU and learned positions
    lengths   TAPA's kernel beside PyTorch's attention, by length, with memory
    job       the main job, from the command on
    compiled  the training steps, compiled
    tiles     other tiles of TAPA's kernels

A measurement is a row of lab/results/gpu.json, written at once. So a run that was stopped goes on
where it was. A row counts for its GPU, commit and torch. A measurement that fails is a row with
its error, and the others go on. To try it again, mend it and commit, or delete the row.

The public kernel has a forward pass alone, and no 2 pi. Its causal loop visits the tiles above the
diagonal and masks them: all T^2 scores. Ours visits about half of them. So the table has time per
score that is visited beside time. The first compares the loops, the second what a user waits.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

from checkpoint import write_files
from configurator import choose_device, machine, one_line_errors
from lab import bench, tapa_kernel
from lab.gpu_tables import place, show, write
from lab.plain_gpt import PlainGPT
from lab.runs import read_json, reading
from model import ATTENTIONS, GPTConfig

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'lab/results/gpu.json'
ARMS = ['nope', *(name for name in ATTENTIONS if name != 'nope'), 'gpt']
DTYPES = ['float32', 'bfloat16', 'float16']
FULL = dict(  # the shape is that of config/gpu_text.py
    T=1000, heads=16, head_sizes=[64, 128], lengths=[1024, 4096, 16384, 32768], tokens=2**15,
    rounds=20, job=[], rows=[64, 128], columns=[32, 64], warps=[4, 8], stages=[2, 3],
    shape=dict(n_layer=6, n_head=6, n_embd=384, block_size=1024, batch_size=8, vocab_size=50304))
SMALL = dict(  # for a rehearsal without a GPU
    T=20, heads=1, head_sizes=[16], lengths=[16, 32], tokens=32, rounds=2,
    job=['--max_iters=2', '--eval_sequences=8', '--batch_size=2', '--n_layer=1'],
    rows=[32], columns=[16, 32], warps=[4], stages=[2],
    shape=dict(n_layer=1, n_head=2, n_embd=32, block_size=16, batch_size=2, vocab_size=65))


bench.PEERS['gpt'] = PlainGPT


# ---- the parts: each is {name of a measurement: function to its rows} ---------------------------


def settings(options, **fields):
    """The options as lab.bench has them."""
    values = dict(device=options.device, dtype='bfloat16', compile=False, rounds=options.rounds)
    return SimpleNamespace(**values | fields)


def sample(options, B, T, head_size, dtype):
    """q, k, v, do (B, nh, T, head_size)."""
    torch.manual_seed(0)
    tensors = [torch.randn(B, T, options.heads, head_size, device=options.device)
               .to(getattr(torch, dtype)).transpose(1, 2) for _ in range(4)]
    return [x.requires_grad_() for x in tensors[:3]] + tensors[3:]


def kernel(options):
    """{name: function without arguments}: the errors of the fused kernel against float64."""
    def measure(head_size, dtype):
        inputs = sample(options, 1, options.T, head_size, dtype)
        attend = bench.kernel('fused', options.T, head_size, options.device)
        errors = bench.errors('fused', attend, *inputs)
        return [dict(head_size=head_size, dtype=dtype, T=options.T, errors=errors)]
    return {f'{head_size} {dtype}': partial(measure, head_size, dtype)
            for head_size in options.head_sizes for dtype in DTYPES}


def steps(options, compile=False):
    def measure(arm):
        torch._dynamo.config.recompile_limit = 4 * len(ARMS)
        how = settings(options, arms=[arm], compile=compile)
        return bench.bench_steps(options.shape, how)
    return {arm: partial(measure, arm) for arm in ARMS}


def lengths(options):
    """{name: function without arguments}: SDPA and the fused kernel at each length."""
    head_size = options.head_sizes[0]

    def measure(T):
        B = max(1, options.tokens // T)
        q, k, v, do = sample(options, B, T, head_size, 'bfloat16')
        arms = {}
        for arm in ('sdpa', 'fused'):
            facts = dict(scores=B * options.heads * T * (T + 1) // 2)
            attend = bench.kernel(arm, T, head_size, options.device)
            arms[arm] = attend, [q, k, v], do, (), facts
        rows = bench.time_passes(T, B, arms, settings(options))
        if options.public:
            attend = partial(load_public(options.public).tapa_attention_triton,
                             theta=GPTConfig.tapa_theta, alpha=GPTConfig.tapa_alpha)
            passes = {'public': partial(torch.no_grad()(attend), q, k, v)}
            times = bench.interleave(passes, options.rounds, options.device)
            rows.append(dict(arm='public', T=T, B=B, scores=B * options.heads * T * T,
                             forward_ms=bench.quartiles(times['public'])))
        return rows
    names = {T: f'{T} public' if options.public else str(T) for T in options.lengths}
    return {names[T]: partial(measure, T) for T in options.lengths}


def load_public(folder):
    """The module with the kernel in a clone of AIMRelease/tapa-attention: its code runs."""
    path = Path(folder) / 'attention_triton.py'
    spec = importlib.util.spec_from_file_location('attention_triton', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def job(options):
    """{name: function without arguments}: the main job, timed from its start to its end."""
    config = 'config/dyck3_spectral.py'

    def measure():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, 'train.py', config, f'--device={options.device}',
                       f'--out_dir={folder}/run', *options.job]
            start = time.perf_counter()
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - start
            log = Path(folder, 'run/log.jsonl').read_text().splitlines()
        last = json.loads(log[-1])
        return [dict(config=config, seconds=seconds, in_training=last['seconds'],
                     iterations=last['iter'], val_loss=last['val_loss'])]
    return {'dyck3_spectral': measure}


def tiles(options):
    """Each tile of the forward and the backward kernel; that of another kernel stays."""
    usual = tapa_kernel.tile

    def measure(tuned, head_size, candidate):
        def tile(kernel, width, itemsize):
            if kernel is tuned and candidate:
                return candidate
            return usual(kernel, width, itemsize)
        T = options.lengths[1]
        q, k, v, do = sample(options, max(1, options.tokens // T), T, head_size, 'bfloat16')
        attend = bench.kernel('fused', T, head_size, options.device)
        run = partial(bench.with_gradients, attend, [q, k, v], do)
        if tuned is tapa_kernel.forward_kernel:
            run = partial(torch.no_grad()(attend), q, k, v)
        with mock.patch.object(tapa_kernel, 'tile', tile):
            times = bench.interleave({'run': run}, options.rounds, options.device)
        chosen = candidate or usual(tuned, head_size, q.itemsize)
        return [dict(kernel=tuned.__name__, head_size=head_size, usual=candidate is None,
                     tile=chosen, T=T, ms=bench.quartiles(times['run']))]

    shapes = [dict(ROWS=rows, COLUMNS=columns, num_warps=warps, num_stages=stages)
              for rows in options.rows for columns in options.columns
              for warps in options.warps for stages in options.stages if rows % columns == 0]
    found = {}
    for shape in [None, *shapes]:  # None: the tile in use
        for tuned in (tapa_kernel.forward_kernel, tapa_kernel.backward_kernel):
            for head_size in options.head_sizes:
                words = [tuned.__name__, head_size, *(shape or {'in use': ''}).values()]
                name = ' '.join(map(str, words)).strip()
                found[name] = partial(measure, tuned, head_size, shape)
    return found


PARTS = dict(kernel=kernel, eager=steps, lengths=lengths, job=job,
             compiled=partial(steps, compile=True), tiles=tiles)


def measure(options):
    """Measure what is not in options.json yet, until the time is over. Returns all rows."""
    rows = read_rows(options.json)
    facts = machine(options.device)
    done = {(row['part'], row['name']) for row in rows if place(row) == place(facts)}
    start = time.perf_counter()
    for part in options.part:
        for name, function in PARTS[part](options).items():
            left = 60 * options.minutes - (time.perf_counter() - start)
            if (part, name) in done:
                continue
            if left < 0:
                print(f'no time for {part} {name} and what follows: run the command again')
                return rows
            print(f'{left:>4.0f} s left  {part} {name}', flush=True)
            try:
                found = function()
            except Exception as error:  # the day is short: the others go on
                traceback.print_exc()
                found = [dict(error=f'{type(error).__name__}: {error}'.splitlines()[0])]
            rows += [dict(part=part, name=name, device=options.device, **facts, **row)
                     for row in found]
            text = json.dumps(dict(rows=rows), indent=1) + '\n'
            write_files(options.json.parent, {options.json.name: text.encode()})
            if 'error' in found[0] and options.device.startswith('cuda'):
                torch.cuda.synchronize()  # ends this process if the error broke its GPU
    return rows


def read_rows(path):
    if not path.exists():
        return []
    with reading(path.parent):
        return read_json(path)['rows']


def main(arguments=None):
    """Measure, or show what is measured, as the command line `arguments` say."""
    parser = argparse.ArgumentParser(
        prog='python -m lab.gpu', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--part', nargs='+', choices=PARTS, default=list(PARTS), help='default: all')
    add('--minutes', type=float, default=8,
        help='no measurement begins later; the last one may take one more (default: 8)')
    add('--public', type=Path, metavar='PATH', help='a clone of AIMRelease/tapa-attention')
    add('--device', default='auto', help='auto, cuda, cpu')
    add('--json', type=Path, default=RESULTS, help='default: lab/results/gpu.json')
    add('--show', action='store_true', help='print the tables, measure nothing')
    add('--write', action='store_true', help='put the tables into lab/speed.md, measure nothing')
    options = parser.parse_args(arguments)
    if options.write:
        write(ROOT / 'lab/speed.md', read_rows(options.json))
        return
    if options.show:
        show(read_rows(options.json))
        return
    options.device = choose_device(options.device)
    on_gpu = options.device.startswith('cuda')
    if not on_gpu and options.json == RESULTS:
        parser.error('without a GPU this is a rehearsal: give it another file with --json')
    if on_gpu:
        torch.cuda.set_device(torch.device(options.device).index or 0)
        torch.set_float32_matmul_precision('high')  # as train.py
    vars(options).update(FULL if on_gpu else SMALL)
    rows = measure(options)
    show(rows)
    if options.json == RESULTS:
        write(ROOT / 'lab/speed.md', rows)


if __name__ == '__main__':
    with one_line_errors():
        main()
