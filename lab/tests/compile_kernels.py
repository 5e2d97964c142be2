"""
Compile the kernels of lab/tapa_kernel.py for a GPU that need not be there, and print what each would take of it, one
JSON object a line:

    python -m lab.tests.compile_kernels 80 90            # compute capabilities 8.0 and 9.0
    python -m lab.tests.compile_kernels 90 --cases 0 3   # two of CASES
"""

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from lab import tapa_kernel

# head size, size of part A, dtype, linear phase, and which of the whole numbers are 1, for Triton makes those constants
CASES = (
    (128, 64, 'bf16', False, ('group',)),
    (128, 32, 'bf16', False, ()),
    (128, 65, 'bf16', False, ()),
    (64, 32, 'fp16', True, ('group',)),
    (128, 64, 'fp32', False, ('group',)),
    (16, 8, 'bf16', False, ('T', 'nh', 'group')),
)


def compile_kernel(kernel, capability, hs, size_A, dtype, linear, ones):
    """What the launch of `kernel` compiles to, for tensors whose last stride is 1, the others multiples of 16."""
    names, sizes = kernel.arg_names, tapa_kernel.padded(hs, size_A)
    width, itemsize = sizes['BLOCK_A'] + sizes['BLOCK_P'], 4 if dtype == 'fp32' else 2
    chosen = tapa_kernel.blocks(kernel, width, itemsize, capability // 10)
    warps = dict(num_warps=chosen.pop('num_warps'), num_stages=chosen.pop('num_stages'))
    constants = dict(**sizes, **chosen, LINEAR=linear, **dict.fromkeys(ones, 1))
    values = {(names.index(name),): value for name, value in constants.items()}
    signature, aligned = {}, {}
    for i, name in enumerate(names):
        if name in constants:
            signature[name] = 'constexpr'
        elif name.endswith('_strides'):
            signature[name] = ('i32', 'i32', 'i32', 'constexpr')
            values[i, 3] = 1
            aligned |= {(i, j): [['tt.divisibility', 16]] for j in range(3)}
        elif name in ('T', 'nh', 'group'):
            signature[name] = 'i32'
        elif name == 'scale':
            signature[name] = 'fp32'
        else:
            signature[name] = '*fp32' if name in ('table', 'lse', 'delta') else f'*{dtype}'
            aligned[i,] = [['tt.divisibility', 16]]
    source, target = ASTSource(kernel, signature, values, aligned), GPUTarget('cuda', capability, 32)
    compiled = triton.compile(source, target=target, options=warps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'kernel.ptx'
        path.write_text(compiled.asm['ptx'])
        architecture = f'sm_{capability}' + 'a' * (capability >= 90)
        command = [get_ptxas(capability).path, '-v', f'--gpu-name={architecture}', path]
        command += ['-o', path.with_suffix('.cubin')]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return dict(
        kernel=kernel.__name__, capability=capability, hs=hs, size_A=size_A, dtype=dtype, linear=linear, ones=ones,
        shared=compiled.metadata.shared,
        registers=int(re.search(r'Used (\d+) registers', report)[1]),
        spilled=int(re.search(r'(\d+) bytes spill stores', report)[1]),
        tensor_cores=bool(re.search('tcgen05|wgmma|mma.sync', compiled.asm['ptx'])))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('capabilities', type=int, nargs='+')
    parser.add_argument('--cases', type=int, nargs='+', default=range(len(CASES)))
    arguments = parser.parse_args()
    for capability in arguments.capabilities:
        for case in (CASES[i] for i in arguments.cases):
            for kernel in (tapa_kernel.forward_kernel, tapa_kernel.dq_kernel, tapa_kernel.dkv_kernel):
                print(json.dumps(compile_kernel(kernel, capability, *case)), flush=True)
