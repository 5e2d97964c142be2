"""
The weights of a trained model in one with other options: Surgical Integration, extensions to
longer texts, log_scale_length, layers without positions.

Surgical Integration (arXiv 2601.22402) makes the rotation of a trained model learnable. Every
weight is kept. Heads that become spectral start at the rotation that the model was trained with:
Omega at its theta, A at 1, Phi at N(0, phase_std^2). So before the first update, the new model
computes what the old one did, up to Phi.
"""

import dataclasses
from pathlib import Path

import torch

from checkpoint import build_model, load_checkpoint
from lab.frequencies import EXTENSIONS, stretch, yarn
from model import (GPT, TAPA, Attention, GPTConfig, RoPE, Spectral, UserError, find_frequencies,
                   geometric)
from tasks import make_task

SHAPE = ['vocab_size', 'n_layer', 'n_head', 'n_embd']


def start_from(cfg, given, task):
    """
    The model that train.py starts from: that of the checkpoint at cfg.init_from. Its options that
    were not `given` are those of the checkpoint, and become those of cfg. Raises UserError if the
    model does not know the task's symbols, and where `build_model` and `transplant` do.
    """
    path = cfg.init_from
    if not Path(path).is_file():
        raise UserError(f'init_from={path} is no file: must be scratch, resume, or a checkpoint of '
                        'train.py, such as out/run/best.pt')
    checkpoint = load_checkpoint(path)
    if make_task(checkpoint['task']).symbols != task.symbols:
        raise UserError(f'init_from={path}: it was trained on task {checkpoint["task"]}, whose '
                        f'symbols are not those of {task}')
    options = {name: getattr(cfg, name) for name in given if hasattr(GPTConfig, name)}
    model = transplant(build_model(checkpoint, path), path, options)
    for name, value in dataclasses.asdict(model.config).items():
        old = checkpoint['model_args'].get(name, value)
        if old != value:
            print(f'{path}: {name} was {old!r} and is now {value!r}')
        if hasattr(cfg, name) and name not in given:
            setattr(cfg, name, value)
    return model


@torch.no_grad()
def transplant(old, path, options):
    """
    The weights of the model `old` in a new one with other `options`, {field of its config: value}.
    `path` is for messages. An extension in `frequencies` multiplies a learned Omega as it does
    theta. Raises UserError for another shape, and for an attention to which the old weights mean
    nothing.
    """
    config = change(old.config, options)
    for name in SHAPE:
        ours, theirs = getattr(config, name), getattr(old.config, name)
        if ours != theirs:
            raise UserError(f'{name}={ours}: the weights in {path} have {name}={theirs}')
    model = GPT(config)
    weights = old.state_dict()
    factors = stretch(config) / stretch(old.config)
    for i, (before, after) in enumerate(zip(old.blocks, model.blocks)):
        check_layer(before.attention, after.attention, i, path)
        if isinstance(after.attention, Spectral):
            check_frequencies(old.config, config, path)
            open_rotation(after.attention, weights, f'blocks.{i}.attention.', factors)
    model.load_state_dict(weights)
    return model


def change(old, options):
    """The config `old` with other options. An extension keeps the length that was trained."""
    new = dataclasses.replace(old, **options)
    function, numbers = find_frequencies(new)
    if function is yarn and not numbers.get('original'):
        length = find_frequencies(old)[1].get('original') or old.block_size
        new.frequencies += f',original={length:.15g}'
    return new


def check_layer(old, new, layer, path):
    """Raise UserError unless the weights of the attention `old` have a meaning in `new`."""
    theirs, ours = ({name: p.shape for name, p in each.named_parameters(recurse=False)}
                    for each in (old, new))
    fixed = isinstance(old, RoPE) and not theirs
    allowed = [
        type(old) is type(new) and ours == theirs,
        fixed and isinstance(new, RoPE) and ours.keys() <= {'Omega', 'A', 'Phi'},
        fixed and type(new) is Attention,  # nope
        isinstance(old, TAPA) and isinstance(new, TAPA)]
    if not any(allowed):
        names = [each.config.attention.split(',') for each in (old, new)]
        names = [each[layer % len(each)] for each in names]
        raise UserError(f'{path}: {names[0]} to {names[1]} is not a surgery: a layer keeps its '
                        'kind and sizes, or a fixed rotation is made learnable or dropped (rope to '
                        'spectral, bifocal or nope)')


def check_frequencies(old, new, path):
    """Raise UserError unless Omega can start, or go on, at the theta of the config `old`."""
    grids = without_extension(new), without_extension(old)
    for name, ours, theirs in [('rope_base', new.rope_base, old.rope_base),
                               ('frequencies', *grids)]:
        if ours != theirs:
            raise UserError(f'{name}={getattr(new, name)}: Omega comes from {path}, whose theta '
                            f'has {name}={getattr(old, name)}')


def without_extension(config):
    """The function that `frequencies` names, and its numbers: geometric for every extension."""
    function, numbers = find_frequencies(config)
    if function in EXTENSIONS:
        return geometric, {}
    return function, numbers


def open_rotation(attention, weights, prefix, factors):
    """
    Put Omega, A and Phi of an attention into `weights`, if they are not there: their first values.
    An Omega that is there was learned without the extension that multiplies frequencies by the
    `factors` (P,), so it is multiplied by them.
    """
    if prefix + 'Omega' in weights:
        Omega = weights[prefix + 'Omega']
        weights[prefix + 'Omega'] = (Omega * factors).to(Omega.dtype)
        return
    for name in ('Omega', 'A', 'Phi'):
        weights[prefix + name] = getattr(attention, name)
