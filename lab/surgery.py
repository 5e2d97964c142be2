"""
The weights of a trained model in one with other options: Surgical Integration, extensions to
longer texts, log_scale, and Llamas.

Surgical Integration (arXiv 2601.22402) makes the rotation of a trained model learnable. Every
weight is kept. Heads that become spectral start at the rotation that the model was trained with:
Omega at its theta, A at 1, Phi at N(0, phase_std^2). So before the first update, the new model
computes what the old one did, up to Phi.
"""

import dataclasses
import re
from pathlib import Path

import torch

from checkpoint import check_sizes, check_tensors, load_checkpoint, make_config
from lab.frequencies import EXTENSIONS, read, stretch
from lab.pretrained import load_pretrained
from model import ATTENTIONS, GPT, GPTConfig, RoPE, Spectral, UserError
from tasks import make_task

SHAPE = ['vocab_size', 'n_layer', 'n_head', 'n_kv_head', 'n_embd', 'head_size', 'n_inner',
         'norm_eps', 'tie_embeddings']
# options that the weights were trained with: at their defaults they mean those of the checkpoint
KEPT = ['n_layer', 'n_head', 'n_kv_head', 'n_embd', 'rope_base', 'rope']


def start_from(init_from, task, model_args):
    """
    The model that train.py starts from. `init_from` is a checkpoint's path, or 'hf:' and what
    lab/pretrained.py reads. `model_args` has train.py's options that are fields of GPTConfig, and
    the number of symbols of the task as vocab_size.

    The model gets these options, but keeps its own vocab_size, and a Llama its block_size. What is
    kept of KEPT is printed. Raises UserError if the model does not know the task's symbols, for
    another rope_base than a Llama's, and where `transplant` does.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(GPTConfig)}
    options = dict(model_args)
    llama = init_from.startswith('hf:')
    if llama:
        checkpoint = load_llama(init_from, task, options['vocab_size'])
    else:
        checkpoint = load_run(init_from, task)
    old = dataclasses.asdict(make_config(checkpoint['model_args']))
    options['vocab_size'] = old['vocab_size']  # it may know more symbols
    if llama:
        options['block_size'] = old['block_size']
        if options['rope_base'] not in (defaults['rope_base'], old['rope_base']):
            raise UserError(f'rope_base={options["rope_base"]}: must be left out, for theta is '
                            f'that of {init_from}, whose rope_base={old["rope_base"]}')

    meaning = dict(defaults, n_kv_head=old['n_head'])  # of options that are left out
    kept = {name: old[name] for name in KEPT
            if options[name] == defaults[name] and old[name] != meaning[name]}
    if kept:
        values = ', '.join(f'{name}={value}' for name, value in kept.items())
        print(f'{init_from}: kept, for they were left at their defaults: {values}')
    model = transplant(checkpoint, init_from, options | kept)
    for name, value in dataclasses.asdict(model.config).items():
        if old[name] != value:
            print(f'{init_from}: {name} was {old[name]!r} and is now {value!r}')
    return model


def load_run(path, task):
    """The checkpoint of a run. Raises UserError if its model knows other symbols than the task."""
    if Path(path).is_dir():
        raise UserError(f'init_from={path} is a folder: must be {path}/best.pt for a run of '
                        f'train.py, or hf:{path} for a Llama of Hugging Face')
    checkpoint = load_checkpoint(path)
    trained = checkpoint['task']
    encoding = re.search('encoding=([^,]*)', trained)
    if encoding:  # a stranger may have named it: it is compared, and not opened
        same = encoding.group(1) == getattr(task, 'encoding', None)
    else:
        same = make_task(trained).symbols == task.symbols
    if not same:
        raise UserError(f'init_from={path}: it was trained on task {trained}, whose symbols are '
                        f'not those of {task}')
    return checkpoint


def load_llama(init_from, task, n_symbols):
    """The checkpoint of a Llama. Raises UserError unless its own tokenizer encodes the task."""
    encoding = getattr(task, 'encoding', '')
    own = encoding == init_from
    if encoding.startswith('hf:') and not own:
        # the same folder written otherwise, or the same tokenizer elsewhere, will do
        own = make_task(f'text:encoding={init_from}').symbols == task.symbols
    if not own:
        raise UserError(f'init_from={init_from}: task {task} is not in its tokens: must be '
                        f'text:encoding={init_from}')
    checkpoint = load_pretrained(init_from.removeprefix('hf:'))
    known = checkpoint['model_args']['vocab_size']
    if known < n_symbols:
        raise UserError(f'init_from={init_from}: it knows {known} tokens, and task {task} has '
                        f'{n_symbols}')
    return checkpoint


def from_pretrained(name_or_path, attention='rope', **options):
    """
    The model of a Llama checkpoint of Hugging Face, in float32, with other `options`: fields of
    LlamaConfig. Raises UserError as load_pretrained and transplant do.
    """
    options = dict(options, attention=attention)
    return transplant(load_pretrained(name_or_path), name_or_path, options)


@torch.no_grad()
def transplant(checkpoint, path, options):
    """
    The model of a checkpoint with other `options`, {field of its config: value}. It takes the
    checkpoint's tensors as they are: there is no second copy. `path` is for messages.

    An extension in `rope` multiplies a learned Omega as it does theta. Raises UserError if the
    checkpoint does not fit its own options, for another shape, and for an attention to which the
    old weights mean nothing.
    """
    old = read_model(checkpoint, path)
    config = change(old.config, options)
    check_options(old.config, config, path)
    model = make_empty(config)
    check_rotation(old, model, path)
    weights = dict(checkpoint['model'])
    if isinstance(model.blocks[0].attention, Spectral):
        factors = stretch(config)[0] / stretch(old.config)[0]
        open_rotation(model, weights, factors)
    model.load_state_dict(weights, assign=True)
    if config.tie_embeddings:  # `assign` made two parameters of it
        model.lm_head.weight = model.embedding.weight
    return model


def read_model(checkpoint, path):
    """
    The model of a checkpoint's options, without weights. Raises UserError if the checkpoint does
    not fit this model.py, or its weights its options; see checkpoint.build_model.
    """
    try:
        config = make_config(checkpoint['model_args'])
        check_sizes(checkpoint['model'], config)
        model = make_empty(config)
        check_tensors(checkpoint['model'], model.state_dict())
    except (UserError, KeyError) as error:
        raise UserError(f'{path} does not fit this model.py: {error}') from None
    return model


def make_empty(config):
    """
    A GPT whose matrices have no memory yet, for all of them will come from a checkpoint. What an
    attention has beside its matrices is there, on the CPU.
    """
    with torch.device('meta'):
        model = GPT(config)
    for block in model.blocks:
        empty = block.attention
        with torch.random.fork_rng(devices=[]):  # nothing is sampled for the matrices
            block.attention = ATTENTIONS[config.attention](config)
        block.attention.qkv, block.attention.proj = empty.qkv, empty.proj
    return model


def change(old, options):
    """
    The config `old` with other options. An extension keeps the length that was trained, and theta
    the bits that it was computed with.
    """
    options = dict(options)
    unknown = options.keys() - {field.name for field in dataclasses.fields(old)}
    if unknown:
        raise UserError(f'{min(unknown)} is no option of this model')
    if options.get('attention', old.attention) != old.attention:
        options.setdefault('n_spectral_head', 0)  # that of another attention means nothing here
    rope = options.get('rope', old.rope)
    trained, given = read(old.rope)[1], read(rope)[1]
    added = []
    if given.get('original') == 0:
        length = trained.get('original') or old.block_size
        added.append(f'original={length:.15g}')
    if given.get('bits') == 0 and trained.get('bits'):
        added.append(f'bits={trained["bits"]:.15g}')
    if added:
        rope += (',' if ':' in rope else ':') + ','.join(added)
    return dataclasses.replace(old, **dict(options, rope=rope))


def check_options(old, new, path):
    """Raise UserError unless the weights of the config `old` have a meaning in the config `new`."""
    for name in SHAPE:
        ours, theirs = getattr(new, name), getattr(old, name)
        if ours != theirs:
            raise UserError(f'{name}={ours}: the weights in {path} have {name}={theirs}')
    both = [ATTENTIONS[old.attention], ATTENTIONS[new.attention]]
    rotations = all(issubclass(attention, RoPE) for attention in both)
    if old.attention != new.attention and not rotations:
        raise UserError(f'{path}: {old.attention} to {new.attention} is not a surgery: only '
                        'rotations can be extracted and made learnable (rope to bifocal or '
                        'spectral, bifocal to spectral)')


def check_rotation(old, new, path):
    """Raise UserError unless the rotation of the model `old` can go on in the model `new`."""
    before = [getattr(old.blocks[0].attention, 'n_spectral', 0), old.config.spectral_shared]
    after = [getattr(new.blocks[0].attention, 'n_spectral', 0), new.config.spectral_shared]
    if after[0] > 0:
        if new.config.rope_base != old.config.rope_base:
            raise UserError(f'rope_base={new.config.rope_base}: Omega comes from {path}, whose '
                            f'theta has rope_base={old.config.rope_base}')
        if grid(new.config.rope) != grid(old.config.rope):
            raise UserError(f'rope={new.config.rope}: Omega comes from {path}, whose theta has '
                            f'rope={old.config.rope}')
    shared = before[1] or after[1]
    grows = after[0] >= before[0] and not shared
    if before[0] > 0 and before != after and not grows:
        raise UserError(f'{path}: what its {before[0]} spectral heads (spectral_shared='
                        f'{before[1]}) have learned does not fit {after[0]} spectral heads '
                        f'(spectral_shared={after[1]})')


def grid(rope):
    """The grid of an option `rope`: geometric for every extension, however it is rounded."""
    name, given = read(rope)
    if name in ['geometric', *EXTENSIONS]:
        return 'geometric'
    return name, given


def open_rotation(model, weights, factors):
    """
    Put Omega, A and Phi of every layer into `weights`: those that it has, and the first values of
    heads that become spectral. Omega was learned without the extension that multiplies
    frequencies by the `factors` (P,), so it is multiplied by them.
    """
    for i, block in enumerate(model.blocks):
        attention = block.attention
        attention.Phi.normal_(std=model.config.phase_std)
        for name in ('Omega', 'A', 'Phi'):
            key = f'blocks.{i}.attention.{name}'
            first = getattr(attention, name).detach()  # (rows, P)
            learned = weights.get(key, first[:0])
            if name == 'Omega':
                learned = (learned * factors).to(first.dtype)
            # new heads come before those that were spectral already
            new = first[:len(first) - len(learned)]
            weights[key] = torch.cat([new, learned])
