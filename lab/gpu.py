"""
The measurements for one GPU, in at most nine minutes. Nobody has run them on a GPU yet.

    python -m lab.gpu                        # all parts; what is measured already is left out
    python -m lab.gpu --parts errors kernels # some of them
    python -m lab.gpu --public=PATH          # beside a clone of AIMRelease/tapa-attention, too
    python -m lab.gpu --show                 # the tables of what is measured
    python -m lab.gpu --quick --json FILE    # a rehearsal on small sizes, on any device

    errors    TAPA's kernel beside its formula in float64: relative error of out, dq, dk, dv
    steps     training steps of each attention; nope is PyTorch's attention alone
    kernels   TAPA's kernel beside PyTorch's attention, by length, with memory
    job       the main job, from the command on
    compiled  the training steps, compiled
    tiles     other tiles of TAPA's kernels
    public    with --public: the release's kernel beside ours

The rows go into lab/results/gpu.json, the tables into lab/speed.md. python -m lab.bench --help
says how it measures and goes on.

The public kernel has a forward pass alone, and no 2 pi. Its causal loop visits the tiles above the
diagonal and masks them: all T^2 scores. Ours visits about half of them. So the table has time per
score that is visited beside time. The first compares the loops, the second what a user waits.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from configurator import choose_device, one_line_errors
from lab import bench, tapa_kernel
from model import GPTConfig, UserError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'lab/results/gpu.json'
PLACE = 'python -m lab.gpu --show'
HEADS = 16
FULL = dict(shapes=['gpu_text'], lengths=[1024, 4096, 16384, 32768], tokens=2**15, rounds=20,
            dtype='bfloat16', T=1000, head_sizes=[64, 128], job=[],
            tile=dict(ROWS=[64, 128], COLUMNS=[32, 64], num_warps=[4, 8], num_stages=[2]))
QUICK = dict(shapes=['tiny'], lengths=[16, 32], tokens=32, rounds=2, head_size=16, T=20,
             head_sizes=[16], job=['--max_iters=2', '--eval_sequences=8', '--batch_size=2'],
             tile=dict(ROWS=[32], COLUMNS=[16, 32], num_warps=[4], num_stages=[2]))


def errors(options):
    """{name: function to its rows}, as all parts."""
    def measure(head_size, dtype):
        inputs = bench.sample(options, 1, options.T, HEADS, head_size, dtype)
        attend = bench.kernel('fused', options.T, head_size, options.device)
        found = bench.errors('fused', attend, *inputs)
        return [dict(size=head_size, arm='fused', dtype=dtype, **found)]
    return {f'{head_size} {dtype}': partial(measure, head_size, dtype)
            for head_size in options.head_sizes
            for dtype in ('float32', 'bfloat16', 'float16')}


def job(options):
    """The README's main job, whole: its seconds and its loss."""
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
        return [dict(size=config, seconds=seconds, in_training=last['seconds'],
                     iterations=last['iter'], val_loss=last['val_loss'])]
    return {'dyck3_spectral': measure}


def tiles(options):
    """Each tile of the forward and the backward kernel; that of another kernel stays."""
    usual = tapa_kernel.tile

    def measure(tuned, head_size, candidate):
        def tile(kernel, width, itemsize):
            if kernel is tuned and candidate:
                return dict(candidate)
            return usual(kernel, width, itemsize)
        T = options.lengths[1]
        B = max(1, options.tokens // T)
        q, k, v, do = bench.sample(options, B, T, HEADS, head_size, options.dtype)
        attend = bench.kernel('fused', T, head_size, options.device)
        run = partial(bench.with_gradients, attend, [q, k, v], do)
        if tuned is tapa_kernel.forward_kernel:
            run = partial(torch.no_grad()(attend), q, k, v)
        row = dict(size=head_size, kernel=tuned.__name__, remark='' if candidate else 'in use',
                   tile=candidate or usual(tuned, head_size, q.itemsize))
        with mock.patch.object(tapa_kernel, 'tile', tile):
            times = bench.interleave({'run': run}, options.rounds, options.device)
        return [dict(row, run=bench.quartiles(times['run']))]

    found = {}
    for candidate in [None, *candidates(options.tile)]:  # None: the tile in use
        for tuned in (tapa_kernel.forward_kernel, tapa_kernel.backward_kernel):
            for head_size in options.head_sizes:
                words = [tuned.__name__, head_size, *(candidate or {'': 'in use'}).values()]
                name = ' '.join(map(str, words))
                found[name] = partial(measure, tuned, head_size, candidate)
    return found


def candidates(choices):
    """The tiles {name: value} of {name: values}, whose rows are a multiple of their columns."""
    found = [{}]
    for name, values in choices.items():
        found = [dict(tile, **{name: value}) for tile in found for value in values]
    return [tile for tile in found if tile['ROWS'] % tile['COLUMNS'] == 0]


def public(options):
    """Our kernel's forward pass beside the public one, which --public names."""
    def measure(T):
        B = max(1, options.tokens // T)
        q, k, v, _ = bench.sample(options, B, T, HEADS, options.head_size, options.dtype)
        theirs = partial(load_public(options.public).tapa_attention_triton,
                         theta=GPTConfig.tapa_theta, alpha=GPTConfig.tapa_alpha)
        arms = dict(fused=bench.kernel('fused', T, options.head_size, options.device),
                    public=theirs)
        passes = {(arm, 'forward'): partial(torch.no_grad()(attend), q, k, v)
                  for arm, attend in arms.items()}
        rows = bench.timed([dict(size=T, arm=arm) for arm in arms], passes, options)
        visited = dict(fused=T * (T + 1) / 2, public=T * T)
        for row in rows:
            scores = B * HEADS * visited[row['arm']]
            row['ps_a_score'] = 1e9 * row['forward'][1] / scores
        return rows
    return {T: partial(measure, T) for T in options.lengths} if options.public else {}


def load_public(folder):
    """The module with the kernel in a clone of AIMRelease/tapa-attention: its code runs."""
    return bench.load_module(Path(folder) / 'attention_triton.py')


PARTS = dict(errors=errors, steps=bench.steps, kernels=bench.kernels, job=job,
             compiled=bench.PARTS['compiled'], tiles=tiles, public=public)


def main(arguments=None):
    """Measure, or show what is measured, as the command line `arguments` say."""
    options = bench.parse(
        arguments, __doc__, PARTS, parts=list(PARTS), arms=['nope', *bench.ARMS[:-1]], minutes=8,
        json=RESULTS)
    if not options.show:
        options.device = choose_device(options.device)
        on_gpu = options.device.startswith('cuda')
        if options.json == RESULTS and (options.quick or not on_gpu):
            raise UserError(f'--device={options.device}: what is no measurement of a GPU is a '
                            'rehearsal: give --quick and another file with --json')
        if on_gpu:
            torch.cuda.set_device(torch.device(options.device).index or 0)
            torch.set_float32_matmul_precision('high')  # as train.py
        vars(options).update(QUICK if options.quick else FULL)
        bench.measure(PARTS, options)
    rows = bench.read_rows(options.json)
    print(bench.tables(rows), end='')
    if options.json == RESULTS:
        bench.write(ROOT / 'lab/speed.md', rows, PLACE)


if __name__ == '__main__':
    with one_line_errors():
        main()
