"""
Compile the kernels of lab/tapa_kernel.py for a GPU that need not be there. Print what each takes
of it: a JSON object a line.

    python -m lab.compile_kernels 80 90 100        # compute capabilities 8.0, 9.0 and 10.0
    python -m lab.compile_kernels 90 --cases 0 3   # two of CASES

All is counted in machine code, and nothing is measured. `shared` is in bytes for a program,
`registers` for a thread, `spilled` in bytes for a thread. `instructions` are what a thread takes
for a score, in a tile off the diagonal. Of these, `copies` are those of 4 bytes to shared memory,
and `roundings` those that round to whole numbers. They are not counted where T = 1 is known, for
there is no loop.
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

from lab.tapa_kernel import backward_kernel, dq_kernel, forward_kernel, padded, tile

# head size, size of part A, dtype, and which whole numbers are 1, for Triton makes those constants
CASES = [
    (128, 64, 'bf16', ['group']),
    (128, 32, 'bf16', []),
    (128, 65, 'bf16', []),
    (64, 32, 'fp16', ['group']),
    (128, 64, 'fp32', ['group']),
    (16, 8, 'bf16', ['T', 'nh', 'group']),
]
KERNELS = {forward_kernel: {}, backward_kernel: dict(ADD_DQ=True), dq_kernel: {}}
FLOAT32 = ['table', 'exact', 'lse', 'delta']


def loops(sass):
    """The loops of machine code, as lists of instructions: a branch back ends a loop."""
    lines = re.findall(r'/\*([0-9a-f]{4,})\*/ +(.*?) ;', sass)
    code = [(int(address, 16), instruction) for address, instruction in lines]
    found = []
    for end, instruction in code:
        branch = re.search(r'\bBRA\b.*0x([0-9a-f]+)', instruction)
        if branch and int(branch[1], 16) < end:
            begin = int(branch[1], 16)
            found.append([line for address, line in code if begin <= address <= end])
    return found


def count(cubin, scores):
    """
    What a thread takes for a score, of the shortest loop over tiles. Each tile is `scores` of
    them for a thread.
    """
    command = [triton.knobs.nvidia.cuobjdump.path, '-sass', cubin]
    sass = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    tiles = [loop for loop in loops(sass) if any('MUFU.EX2' in line for line in loop)]
    patterns = dict(instructions='', copies=r'LDGSTS\.E(\.LTC\w+)? ', roundings='FRND')
    if not tiles:
        return dict.fromkeys(patterns)
    loop = min(tiles, key=len)
    return {name: round(sum(bool(re.search(pattern, line)) for line in loop) / scores, 1)
            for name, pattern in patterns.items()}


def describe(kernel, constants, dtype):
    """What Triton must know of the arguments: last strides are 1, others multiples of 16."""
    signature, aligned = {}, {}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    for i, name in enumerate(kernel.arg_names):
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
            summed = name == 'dq' and constants.get('ADD_DQ')
            signature[name] = '*fp32' if name in FLOAT32 or summed else f'*{dtype}'
            aligned[i,] = [['tt.divisibility', 16]]
    return ASTSource(kernel, signature, values, aligned)


def compile_kernel(kernel, capability, hs, size_A, dtype, ones, fusion=True):
    """
    What the launch of `kernel` compiles to. With `fusion` the compiler may make a product and a
    sum one instruction where the code does not ask for it.
    """
    sizes = padded(hs, size_A / hs)
    chosen = tile(kernel, sizes['BLOCK_A'] + sizes['BLOCK_P'], 4 if dtype == 'fp32' else 2)
    scores = chosen['ROWS'] * chosen['COLUMNS'] / (32 * chosen['num_warps'])
    options = dict(num_warps=chosen.pop('num_warps'), num_stages=chosen.pop('num_stages'),
                   enable_fp_fusion=fusion)
    constants = sizes | chosen | KERNELS[kernel] | dict.fromkeys(ones, 1)
    source = describe(kernel, constants, dtype)
    return dict(kernel=kernel.__name__, capability=capability, hs=hs, size_A=size_A, dtype=dtype,
                ones=ones, **taken(source, capability, options, scores))


def taken(source, capability, options, scores):
    """What the machine code of a kernel takes; each tile is `scores` of them for a thread."""
    compiled = triton.compile(source, target=GPUTarget('cuda', capability, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'kernel.ptx'
        path.write_text(compiled.asm['ptx'])
        architecture = f'sm_{capability}' + ('a' if capability >= 90 else '')
        command = [get_ptxas(capability).path, '-v', f'--gpu-name={architecture}', path]
        command += [] if options.get('enable_fp_fusion', True) else ['--fmad=false']
        command += ['-o', path.with_suffix('.cubin')]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        counted = count(path.with_suffix('.cubin'), scores)
    return dict(
        shared=compiled.metadata.shared,
        registers=int(re.search(r'Used (\d+) registers', report)[1]),
        spilled=int(re.search(r'(\d+) bytes spill stores', report)[1]),
        **counted,
        tensor_cores=bool(re.search('tcgen05|wgmma|mma.sync', compiled.asm['ptx'])))


def main(arguments=None):
    """Print what each kernel takes, as the command line `arguments` say."""
    parser = argparse.ArgumentParser()
    parser.add_argument('capabilities', type=int, nargs='+')
    parser.add_argument('--cases', type=int, nargs='+', default=range(len(CASES)))
    parser.add_argument('--kernels', nargs='+', choices=[each.__name__ for each in KERNELS],
                        default=[each.__name__ for each in KERNELS])
    parser.add_argument('--no-fusion', action='store_true',
                        help='only what the code asks for becomes multiply-add')
    arguments = parser.parse_args(arguments)
    for capability in arguments.capabilities:
        for case in arguments.cases:
            for kernel in [each for each in KERNELS if each.__name__ in arguments.kernels]:
                found = compile_kernel(kernel, capability, *CASES[case],
                                       fusion=not arguments.no_fusion)
                print(json.dumps(found), flush=True)


if __name__ == '__main__':
    main()
