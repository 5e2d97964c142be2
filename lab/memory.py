"""About how much memory a pass takes, and how many sequences fit."""

import contextlib

import torch

from lab import tapa
from model import ATTENTIONS, UserError

TOKENS_AT_ONCE = 2**15  # more at once are hardly faster


def activation_bytes(config, batch, length, training=False):
    """
    About how many bytes the activations of a pass over (batch, length) tokens take in float32.
    With `training`, all that the backward pass needs; without, those of the largest layer. TAPA's
    kernel on CUDA takes less.
    """
    heads = (config.n_head + config.n_kv_head) * config.head_size
    one = 8 * config.n_embd + 4 * heads + 3 * config.n_inner  # numbers of a token in a layer
    layers = [one + 4 * config.n_head * keys_at_once(config.attention_of(layer), length, training)
              for layer in range(config.n_layer)]
    numbers = sum(layers) if training else max(layers)
    return 4 * batch * length * (numbers + 3 * config.vocab_size)


def keys_at_once(name, length, training):
    """For how many keys of each query the scores of an attention are in memory."""
    attention = ATTENTIONS[name]
    if attention.scores is None:  # a fused kernel
        return 0
    if not issubclass(attention, tapa.TAPAFused) or length <= tapa.BLOCK:
        return length
    if length > tapa.STORED or not training:  # one block at a time, also in the backward pass
        return tapa.BLOCK
    return (length + tapa.BLOCK) // 2  # of the keys a query sees about half


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
