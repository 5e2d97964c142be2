"""About how much memory a pass takes, and how many sequences fit."""

import contextlib

import torch

from lab import tapa
from model import ATTENTIONS, DotProduct, UserError

TOKENS_AT_ONCE = 2**15  # more at once are hardly faster


def activation_bytes(config, batch, length, training=False):
    """
    About how many bytes the activations of a pass over (batch, length) tokens take in float32.
    With `training`, all that the backward pass needs; without, those of one layer. TAPA's kernel
    on CUDA takes less.
    """
    layers = config.n_layer if training else 1
    heads = (config.n_head + config.n_kv_head) * config.head_size
    numbers = layers * (8 * config.n_embd + 4 * heads + 3 * config.n_inner)  # of a token
    if not issubclass(ATTENTIONS[config.attention], DotProduct):  # it writes its scores out
        keys = layers * length
        if length > tapa.BLOCK:  # TAPA goes by blocks: of the keys a query sees about half
            keys = layers * (length + tapa.BLOCK) // 2
        if length > tapa.STORED:  # one block at a time, also in the backward pass
            keys = tapa.BLOCK
        numbers += 4 * config.n_head * keys
    return 4 * batch * length * (numbers + 3 * config.vocab_size)


def free_bytes(device):
    """Bytes that a tensor on `device` could take now; infinity where the system does not say."""
    if torch.device(device).type == 'cuda':
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError):
        with open('/proc/meminfo') as file:
            for line in file:
                if line.startswith('MemAvailable'):
                    return 1024 * int(line.split()[1])
    return float('inf')


def check(config, device, batch, length, sequences, training=False):
    """
    Raise UserError if weights, a pass over (batch, length) tokens and the `sequences` to measure
    need more than twice the free memory. In training, a weight has a gradient and two moments.
    """
    heads = (config.n_head + config.n_kv_head) * config.head_size
    blocks = config.n_layer * config.n_embd * (2 * heads + 3 * config.n_inner)
    weights = blocks + 2 * config.vocab_size * config.n_embd
    need = 4 * weights * (4 if training else 1)
    need += activation_bytes(config, batch, length, training)
    need += 16 * sequences * length  # inputs and targets are int64
    free = free_bytes(device)
    if need > 2 * free:
        raise UserError(f'this needs about {need // 2**30} GiB of memory, and {free / 2**30:.3g} '
                        f'GiB are free on {device}: choose a smaller model, or fewer or shorter '
                        'sequences')


def sequences_at_once(config, length, device):
    """How many sequences of `length` tokens to read at once. Raises UserError if not one fits."""
    need, free = activation_bytes(config, 1, length), free_bytes(device)
    if need > free:
        raise UserError(f'a context of {length} tokens needs about {need // 2**30} GiB with '
                        f'attention={config.attention!r}, and {free / 2**30:.1f} GiB are free on '
                        f'{device}: choose smaller --multiples')
    return int(max(1, min(TOKENS_AT_ONCE // length, free / 4 // need)))
