"""
The weights of one model in another, whose options differ: Surgical Integration, extensions to longer texts, log_scale.

Surgical Integration (arXiv 2601.22402) makes the rotation of a trained model learnable. Every weight is kept. The heads
that become spectral start at the rotation that the model was trained with: Omega at its theta, A at 1, Phi at
N(0, phase_std^2). Before the first update, the new model computes what the old one did, up to Phi.
"""

import dataclasses
import re
from pathlib import Path

import torch

from eval import load_checkpoint
from lab.frequencies import GRIDS, read, stretch
from model import ATTENTIONS, GPT, ROTARY, GPTConfig
from tasks import make_task

SHAPE = ('vocab_size', 'n_layer', 'n_head', 'nkv', 'n_embd', 'head_size', 'inner', 'norm_eps', 'tie_embeddings')
KEPT = ('n_layer', 'n_head', 'n_kv_head', 'n_embd', 'rope_base', 'rope')  # what the weights were trained with


def start_from(source, task, fields):
    """
    The model that train.py starts from. `source` is a checkpoint's path, or 'hf:' and what lab/pretrained.py reads.
    `fields` are those of GPTConfig that train.py has as options; vocab_size is the number of symbols of the task.

    The model gets all of them but vocab_size; a Llama keeps its block_size, too. Of the options in KEPT, one that has
    its default value means that of the checkpoint, and is printed. Raises ValueError where the model does not know the
    symbols of the task, where rope_base is not a Llama's own, and what `transplant` raises.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(GPTConfig)}
    if source.startswith('hf:'):
        checkpoint = load_llama(source, task, fields['vocab_size'])
    elif Path(source).is_dir():
        raise ValueError(f'init_from={source} is a folder: must be hf:{source} for a Llama of Hugging Face, or '
                         f'{source}/best.pt for a run of train.py')
    else:
        checkpoint = load_checkpoint(source)
        encoding = re.search('encoding=[^,]*|$', checkpoint['task']).group()  # a vocabulary is not opened to compare it
        if encoding not in str(task) or not encoding and make_task(checkpoint['task']).symbols != task.symbols:
            raise ValueError(f'init_from={source}: it was trained on task {checkpoint["task"]}, whose symbols are not '
                             f'those of {task}')
    old = defaults | checkpoint['model_args']
    if source.startswith('hf:'):
        fields = dict(fields, block_size=old['block_size'])
        if fields['rope_base'] not in (defaults['rope_base'], old['rope_base']):
            raise ValueError(f'rope_base={fields["rope_base"]}: must be left out, for theta is that of {source}, whose '
                             f'rope_base={old["rope_base"]}')
    kept = {name: old[name] for name in KEPT if fields[name] == defaults[name] != old[name]}
    if kept:
        print(f'{source}: kept, for they were left at their defaults: '
              + ', '.join(f'{name}={value}' for name, value in kept.items()))
    model = transplant(checkpoint, source, {**fields, **kept, 'vocab_size': old['vocab_size']})  # it may know more
    for name, value in dataclasses.asdict(model.config).items():
        if name in checkpoint['model_args'] and old[name] != value:
            print(f'{source}: {name} was {old[name]!r} and is now {value!r}')
    return model


def load_llama(source, task, n_symbols):
    """The checkpoint that 'hf:' names. Raises ValueError unless its own tokenizer encodes the task; see start_from."""
    encoding = getattr(task, 'encoding', '')
    own = encoding == source
    if encoding.startswith('hf:') and not own:  # another spelling of the folder, or a copy of the tokenizer, will do
        own = make_task(f'text:encoding={source}').symbols == task.symbols
    if not own:
        raise ValueError(f'init_from={source}: task {task} is not in its tokens: must be text:encoding={source}')
    from lab.pretrained import load_pretrained
    checkpoint = load_pretrained(source.removeprefix('hf:'))
    known = checkpoint['model_args']['vocab_size']
    if known < n_symbols:
        raise ValueError(f'init_from={source}: it knows {known} tokens, and task {task} has {n_symbols}')
    return checkpoint


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
    attention = overrides.get('attention', old.attention)
    if attention in ATTENTIONS and attention != old.attention and not {attention, old.attention} <= set(ROTARY):
        raise ValueError(f'{path}: {old.attention} to {attention} is not a surgery: only rotations can be '
                         'extracted and made learnable (rope to bifocal or spectral, bifocal to spectral)')
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
    """
    The config `old` with the fields in `overrides` replaced. An extension keeps the length that was trained for, and
    theta the bits that it was computed with.
    """
    overrides = dict(overrides)
    if overrides.get('attention', old.attention) != old.attention:
        overrides.setdefault('n_spectral_head', 0)  # the number of another attention means nothing here
    rope = overrides.get('rope', old.rope)
    trained, given = read(old.rope)[1], read(rope)[1]
    if given.get('original') == 0:
        rope += f',original={trained.get("original") or old.block_size:.15g}'
    if given.get('bits') == 0 and trained.get('bits'):
        rope += f'{"," if ":" in rope else ":"}bits={trained["bits"]:.15g}'
    return dataclasses.replace(old, **{**overrides, 'rope': rope})


def check(old, new, path):
    """Raise ValueError unless the weights of a model with the config `old` make sense in one with the config `new`."""
    for name in SHAPE:
        if getattr(new, name) != getattr(old, name):
            raise ValueError(f'{name}={getattr(new, name)}: the weights in {path} have {name}={getattr(old, name)}')
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
    """The grid of an option `rope`, which is the geometric one for every extension. How theta is rounded is no grid."""
    family, parameters = read(rope)
    return (family, parameters) if family in GRIDS and 'bits' not in parameters else 'geometric'


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
