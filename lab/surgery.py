"""
The weights of one model in another, whose options differ: Surgical Integration, extensions to longer texts, log_scale.

Surgical Integration (arXiv 2601.22402) makes the rotation of a trained model learnable. Every weight is kept. The heads
that become spectral start at the rotation that the model was trained with: Omega at its theta, A at 1, Phi at
N(0, phase_std^2). Before the first update, the new model computes what the old one did, up to Phi.
"""

import dataclasses

import torch

from eval import load_checkpoint
from lab.frequencies import GRIDS, read, stretch
from model import ATTENTIONS, GPT, ROTARY, GPTConfig
from tasks import make_task

SHAPE = ('vocab_size', 'n_layer', 'n_head', 'nkv', 'n_embd', 'head_size', 'inner', 'norm_eps', 'tie_embeddings')


def start_from(source, task, fields):
    """
    The model that train.py starts from. `source` is a checkpoint's path, or 'hf:' and what lab/pretrained.py reads.
    `fields` are those of GPTConfig that train.py has as options; vocab_size is the number of symbols of the task.

    A checkpoint's model gets all of them but vocab_size. A Llama's shape is its own, so it gets those that differ from
    the defaults. Raises ValueError where the model does not know the symbols of the task, and what `transplant` raises.
    """
    if source.startswith('hf:'):
        from lab.pretrained import from_pretrained
        defaults = {field.name: field.default for field in dataclasses.fields(GPTConfig)}
        of_data = ('vocab_size', 'block_size')
        given = {name: value for name, value in fields.items() if name not in of_data and value != defaults[name]}
        model = from_pretrained(source.removeprefix('hf:'), **given)
        if model.config.vocab_size < fields['vocab_size']:
            raise ValueError(f'init_from={source}: it knows {model.config.vocab_size} tokens, and task {task} has '
                             f'{fields["vocab_size"]}')
        return model
    checkpoint = load_checkpoint(source)
    if make_task(checkpoint['task']).symbols != task.symbols:
        raise ValueError(f'init_from={source}: it was trained on task {checkpoint["task"]}, whose symbols are not '
                         f'those of {task}')
    old = checkpoint['model_args']
    model = transplant(checkpoint, source, dict(fields, vocab_size=old['vocab_size']))  # it may know more tokens
    for name, value in dataclasses.asdict(model.config).items():
        if name in old and old[name] != value:
            print(f'{source}: {name} was {old[name]!r} and is now {value!r}')
    return model


@torch.no_grad()
def transplant(checkpoint, path, overrides):
    """
    A model of checkpoint['model_args'] with the fields in `overrides` replaced, and with the weights in
    checkpoint['model']. The model takes these tensors as they are: there is no second copy. `path` is for messages.

    An extension in `rope` multiplies each Omega that was learned as it does theta. Raises ValueError for another shape,
    and for another attention if the old weights mean nothing to it.
    """
    try:
        old = GPTConfig(**checkpoint['model_args'])
    except TypeError as error:
        raise ValueError(f'{path}: its model_args are not those of this GPTConfig: {error}') from None
    new = replace(old, overrides)
    check(old, new, path)
    with torch.device('meta'):  # neither memory nor time for first weights: the checkpoint has all of them
        model = GPT(new)
    for block in model.blocks:
        block.attention.way = ATTENTIONS[new.attention](new)  # on the CPU, for its buffers are not in the checkpoint
    weights = dict(checkpoint['model'])
    try:
        if new.n_spectral:
            open_rotation(model, weights, stretch(new)[0] / stretch(old)[0])
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reason = ' '.join(str(error).split())
        raise ValueError(f'{path}: its weights are not those of its own model_args: {reason}') from None
    return model


def replace(old, overrides):
    """The config `old` with the fields in `overrides` replaced. An extension keeps the length that was trained for."""
    overrides = dict(overrides)
    if overrides.get('attention', old.attention) != old.attention:
        overrides.setdefault('n_spectral_head', 0)  # the number of another attention means nothing here
    rope = overrides.get('rope', old.rope)
    if read(rope)[1].get('original') == 0:
        length = read(old.rope)[1].get('original') or old.block_size
        overrides['rope'] = f'{rope},original={length:.15g}'
    return dataclasses.replace(old, **overrides)


def check(old, new, path):
    """Raise ValueError unless the weights of a model with the config `old` make sense in one with the config `new`."""
    for name in SHAPE:
        if getattr(new, name) != getattr(old, name):
            raise ValueError(f'{name}={getattr(new, name)}: the weights in {path} have {name}={getattr(old, name)}')
    if new.attention != old.attention and not {new.attention, old.attention} <= set(ROTARY):
        raise ValueError(f'{path}: {old.attention} to {new.attention} is not a surgery: only rotations can be '
                         'extracted and made learnable (rope to bifocal or spectral, bifocal to spectral)')
    if new.n_spectral:
        if new.rope_base != old.rope_base:
            raise ValueError(f'rope_base={new.rope_base}: Omega comes from {path}, whose theta has '
                             f'rope_base={old.rope_base}')
        if grid(new.rope) != grid(old.rope):
            raise ValueError(f'rope={new.rope}: Omega comes from {path}, whose theta has rope={old.rope}')
    before, after = ((config.n_spectral, config.spectral_shared) for config in (old, new))
    grows = new.n_spectral >= old.n_spectral and not (old.spectral_shared or new.spectral_shared)
    if old.n_spectral and after != before and not grows:
        raise ValueError(f'{path}: what its {before[0]} spectral heads (spectral_shared={before[1]}) have learned does '
                         f'not fit {after[0]} spectral heads (spectral_shared={after[1]})')


def grid(rope):
    """The grid of an option `rope`, which is the geometric one for every extension."""
    family, parameters = read(rope)
    return (family, parameters) if family in GRIDS else ('geometric', {})


def open_rotation(model, weights, factors):
    """
    Put Omega, A and Phi of every layer into `weights`: those that it has, and the first values of the heads that become
    spectral. Omega was learned without the extension, so it is multiplied by the `factors` (P,) of the extension.
    """
    for i, block in enumerate(model.blocks):
        way = block.attention.way
        way.Phi.normal_(std=model.config.phase_std)
        for name in ('Omega', 'A', 'Phi'):
            key, start = f'blocks.{i}.attention.way.{name}', getattr(way, name).detach()  # (rows, P)
            learned = weights.get(key, start[:0])
            if name == 'Omega':
                learned = (learned * factors).to(start.dtype)
            weights[key] = torch.cat([start[:len(start) - len(learned)], learned])  # new heads come before the old
