"""
What a script computes on: the device, the number format of matrix products, the processes.
"""

import contextlib
import dataclasses
import os
import platform
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import torch

from model import UserError


@dataclasses.dataclass
class Process:
    """Number `rank` of `world` processes that compute together, and what it computes on."""

    device: str  # of torch, such as cuda:1
    dtype: str  # of the matrix products under autocast
    rank: int = 0
    world: int = 1

    @property
    def device_type(self):
        return self.device.partition(':')[0]

    def autocast(self):
        enabled = self.dtype != 'float32'
        return torch.autocast(self.device_type, getattr(torch, self.dtype), enabled=enabled)


def this_process(device='auto', dtype='auto'):
    """The Process that runs this, alone or started by torchrun. Raises UserError."""
    found = [name for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE') if name in os.environ]
    if found and 'MASTER_ADDR' not in os.environ:
        raise UserError(f'{found[0]} is set in the environment, but not by torchrun: '
                        f'run: unset {" ".join(found)}')
    rank = int(os.environ.get('RANK', 0))
    world = int(os.environ.get('WORLD_SIZE', 1))
    device = choose_device(device, os.environ.get('LOCAL_RANK', '0'))
    return Process(device, choose_dtype(dtype, device), rank, world)


def choose_device(name='auto', local_rank='0'):
    """
    'auto' is cuda, else mps, else cpu. Process number `local_rank` of a machine gets the GPU of
    that number. Raises UserError for a device that this machine does not have.
    """
    if name == 'auto':
        name = 'mps' if torch.backends.mps.is_available() else 'cpu'
        if torch.cuda.is_available():
            name = 'cuda'
    if name == 'cuda':
        name = f'cuda:{local_rank}'
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f'device={name!r} is not there: {reason}') from None
    if name.startswith('cuda'):
        torch.cuda.set_device(name)
    return name


def choose_dtype(name, device):
    """The name of a torch dtype. 'auto' is float32, and on a GPU what it computes faster."""
    if name not in ('auto', 'float32', 'bfloat16'):
        raise UserError(f'dtype={name!r}: must be one of auto, float32, bfloat16')
    if name != 'auto':
        return name
    if device.startswith('cuda') and torch.cuda.is_bf16_supported(including_emulation=False):
        return 'bfloat16'
    return 'float32'


def to_device(arrays, device):
    """Tensors of numpy arrays. A GPU copies them from pinned memory beside its other work."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.startswith('cuda'):
        return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
    return [tensor.to(device) for tensor in tensors]


def can_compile(device):
    """'' if torch.compile works here, or the reason why not in one line."""
    try:
        torch.compile(torch.sin)(torch.zeros(8, device=device))
        return ''
    except Exception as error:  # no compiler, no Triton, an old GPU, ...
        return str(error).strip().splitlines()[0]


def machine(device):
    """What runs, when and on what, for the records. The commit is None outside a repository."""
    git = 'git describe --always --dirty --abbrev=12 --exclude=*'.split()
    commit = None
    with contextlib.suppress(OSError):  # no git
        here = Path(__file__).resolve().parent
        done = subprocess.run(git, cwd=here, capture_output=True, text=True)
        commit = done.stdout.strip() or None
    processor = platform.processor()
    with contextlib.suppress(OSError, AttributeError):  # Linux has a better name
        cpuinfo = Path('/proc/cpuinfo').read_text(encoding='utf-8')
        processor = re.search(r'model name\s*: (.*)', cpuinfo).group(1)
    if device.startswith('cuda'):
        processor = torch.cuda.get_device_name(device)
    return dict(
        date=time.strftime('%Y-%m-%d %H:%M:%S %z'), commit=commit, processor=processor,
        # losses differ in their last digits between AVX2 and AVX512, and by the threads
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(), python=platform.python_version(),
        numpy=np.__version__, torch=str(torch.__version__))
