"""How much memory a pass takes, roughly, how many sequences fit, and what can never fit."""

import contextlib

import torch

from model import ATTENTIONS, NoPE

TOKENS_AT_ONCE = 2**15  # more at once are hardly faster


def activation_bytes(config, batch, length, training=False):
    """
    About how many bytes the activations of a pass over (batch, length) tokens take in float32. With `training`, all
    that the backward pass needs; without, those of one layer. TAPA's kernel on CUDA takes less.
    """
    tokens, layers = batch * length, config.n_layer if training else 1
    heads = (config.n_head + config.nkv) * config.head_size
    numbers = layers * tokens * (8 * config.n_embd + 4 * heads + 3 * config.inner)
    if not issubclass(ATTENTIONS[config.attention], NoPE):  # it writes its scores out
        from lab import tapa  # here, for it brings torch's compiler, and that takes two seconds to load
        long = length > tapa.STORED  # then a block of them at a time, also in the backward pass
        seen = length if length <= tapa.BLOCK else (length + tapa.BLOCK) // 2  # by a query, in blocks the mean
        keys = tapa.BLOCK if long else layers * seen
        numbers += 4 * tokens * config.n_head * keys
    return 4 * (numbers + 3 * tokens * config.vocab_size)


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
    Raise ValueError if weights, a pass over (batch, length) tokens and the `sequences` to measure need more than twice
    the free memory. In training a weight comes with its gradient and two moments.
    """
    heads = (config.n_head + config.nkv) * config.head_size
    weights = config.n_layer * config.n_embd * (2 * heads + 3 * config.inner) + 2 * config.vocab_size * config.n_embd
    need = 4 * weights * (4 if training else 1) + activation_bytes(config, batch, length, training)
    need, free = need + 16 * sequences * length, free_bytes(device)  # inputs and targets are int64
    if need > 2 * free:
        raise ValueError(f'this needs about {min(need, 10**300) / 2**30:.3g} GiB of memory, and {free / 2**30:.3g} GiB '
                         f'are free on {device}: choose a smaller model, or fewer or shorter sequences')


def sequences_at_once(config, length, device):
    """How many sequences of `length` tokens to read at once. Raises ValueError if free memory does not hold one."""
    need, free = activation_bytes(config, 1, length), free_bytes(device)
    if need > free:
        raise ValueError(f'a context of {length} tokens needs about {need / 2**30:.1f} GiB with '
                         f'attention={config.attention!r}, and {free / 2**30:.1f} GiB are free on {device}: '
                         'choose smaller --multiples')
    return int(max(1, min(TOKENS_AT_ONCE // length, free / 4 // need)))
