"""
Compile the kernels of tapa_kernel.py for a GPU that need not be there, and print what each would take of it, a JSON object a line:

    python tests/compile_kernels.py 90          # compute capability 9.0
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import get_ptxas  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

import tapa_kernel  # noqa: E402

# head size, size of part A, dtype, linear phase, and which of the whole numbers are 1, for Triton makes those constants
CASES = ((128, 64, 'bf16', False, ('group',)), (128, 32, 'bf16', False, ()), (128, 65, 'bf16', False, ()), (64, 32, 'fp16', True, ('group',)),
         (128, 64, 'fp32', False, ('group',)), (16, 8, 'bf16', False, ('T', 'nh', 'group')))


def compile_kernel(kernel, capability, hs, size_A, dtype, linear, ones):
    """What the launch of `kernel` compiles to, for tensors whose last stride is 1 and whose others are multiples of 16."""
    names, sizes = kernel.arg_names, tapa_kernel.padded(hs, size_A)
    chosen = tapa_kernel.blocks(kernel, sizes['BLOCK_A'] + sizes['BLOCK_P'], 4 if dtype == 'fp32' else 2, capability // 10)
    warps = dict(num_warps=chosen.pop('num_warps'), num_stages=chosen.pop('num_stages'))
    constants = dict(**sizes, **chosen, LINEAR=linear, **dict.fromkeys(ones, 1))
    signature, values, aligned = {}, {(names.index(name),): value for name, value in constants.items()}, {}
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
    compiled = triton.compile(ASTSource(kernel, signature, values, aligned), target=GPUTarget('cuda', capability, 32), options=warps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'kernel.ptx'
        path.write_text(compiled.asm['ptx'])
        architecture = f'sm_{capability}' + 'a' * (capability >= 90)
        said = subprocess.run([get_ptxas(capability).path, '-v', f'--gpu-name={architecture}', path, '-o', path.with_suffix('.cubin')], check=True,
                              capture_output=True, text=True).stderr
    return dict(kernel=kernel.__name__, capability=capability, hs=hs, size_A=size_A, dtype=dtype, linear=linear, ones=ones, shared=compiled.metadata.shared,
                registers=int(re.search(r'Used (\d+) registers', said)[1]), spilled=int(re.search(r'(\d+) bytes spill stores', said)[1]),
                tensor_cores=bool(re.search('tcgen05|wgmma|mma.sync', compiled.asm['ptx'])))


if __name__ == '__main__':
    for capability in map(int, sys.argv[1:]):
        for case in CASES:
            for kernel in (tapa_kernel.forward_kernel, tapa_kernel.dq_kernel, tapa_kernel.dkv_kernel):
                print(json.dumps(compile_kernel(kernel, capability, *case)), flush=True)
