"""
Surgical Integration in place (arXiv 2601.22402): the RoPE of a transformers model gets learned
frequencies Omega, amplitudes A and phases Phi, for each key/value head of each layer.

    model = AutoModelForCausalLM.from_pretrained('HuggingFaceTB/SmolLM2-135M')
    spectralize(model, heads='half')     # in place; 'half' is bifocal
    ...                                  # generate(), Trainer and PEFT go on working
    model.save_pretrained('folder')
    model = load_spectral('folder')      # the same logits

The matrices, and the code that uses them, stay the family's own. A hook on the rotary module hands
on its call beside its cos and sin, which all layers share. A hook on each attention swaps these for
the layer's own: one cos and one sin for queries and one for keys, for each key/value head. The
family's apply_rotary_pos_emb is wrapped, so that it takes such pairs, and rotates as before.

With Phi = 0 the logits are those of the model before, bit for bit. Each call proves it on the model
at hand, or refuses. What to know:

* PEFT: spectralize(model) first, then LoraConfig(..., modules_to_save=['rotation']).
* FSDP2 with 16 bits: fully_shard(attention.rotation) before its layer, without mp_policy.
* DPO of TRL: ref_model=copy.deepcopy(model). With None it would read a model of its own.

This file imports nothing of the repository that it comes from, so it may be copied.
"""

import copy
import functools
import importlib
import inspect
import json
import textwrap
from types import SimpleNamespace

import torch
import torch.nn as nn

APPLIES = {'apply_rotary_pos_emb', 'apply_rotary_pos_emb_interleave'}  # the second: DeepSeek's
# stands in a saved config.json where every other reader stops at it, and shows it
MARK = 'spectral, to be read with load_spectral() of spectralize.py'
MARKED = ('architectures', 'transformers_weights')  # the names of its class, and of its file
PARTS = {'frequency': 'Omega', 'amplitude': 'A', 'phase': 'Phi'}
LAYOUTS = {  # where the P angles stand in the last dimension of a family's cos and sin
    'halves': lambda x: torch.cat([x, x], dim=-1),  # Llama and most others
    'pairs': lambda x: x.repeat_interleave(2, dim=-1),  # Cohere
    'single': lambda x: x}  # gpt-oss


# The calls that a user makes


def spectralize(model, heads='all', learn='frequency,amplitude,phase', phase_std=1e-3,
                freeze=False):
    """
    Give each layer of a model that rotates its own Omega, A and Phi, in place; return the model.
    They start at the model's theta, at 1, and at N(0, phase_std^2).

    heads: the key/value heads of each layer that become spectral: 'all', 'half', or a number.
        The last ones do; the others keep theta.
    learn: which of frequency, amplitude and phase are trained, with commas between; or 'none'.
    freeze: nothing but Omega, A and Phi is trained.

    Raises ValueError for a wrong option, and for a model that does not fit or does not pass
    `prove`. The model is then as it was.
    """
    if set(learn.split(',')) - {*PARTS, 'none'}:
        raise ValueError(f'learn={learn!r}: must be none, or some of {", ".join(PARTS)}')
    if any(isinstance(module, Rotation) for module in model.modules()):
        raise ValueError('this model is spectral already')
    if getattr(model, 'peft_config', None):
        raise ValueError("call spectralize(model) before PEFT, with modules_to_save=['rotation']")
    if any(hasattr(parameter, 'device_mesh') for parameter in model.parameters()):
        raise ValueError('call spectralize(model) before it is split among processes')
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError('call spectralize(model) before its weights are offloaded')

    options = dict(heads=heads, learn=learn, phase_std=phase_std)
    handles = []  # of hooks
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        options['layers'] = probe(model)
        before = first_outputs(model)
        install(model, options, handles)
        prove(model, before)
    except Exception as error:
        for handle in handles:
            handle.remove()
        for module in list(model.modules()):
            if isinstance(getattr(module, 'rotation', None), Rotation):
                del module.rotation
        reason = str(error) if isinstance(error, ValueError) else f'it fails with {error!r}'
        raise ValueError(f'{type(model).__name__}: {textwrap.shorten(reason, 300)}') from error
    finally:
        for module in training:
            module.training = True

    if freeze:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_('.rotation.' in name)
    own_config(model)
    model.config.spectral = options
    mark(model.config)
    return model


def load_spectral(source, **kwargs):
    """
    The spectral model that save_pretrained() wrote, from a folder or from the hub. `kwargs` are
    those of from_pretrained(). Omega, A and Phi stay in float32, whatever dtype is asked for.
    Raises ValueError if the folder is not spectral, or its weights are not those of its config.
    """
    import transformers
    values, _ = transformers.PretrainedConfig.get_config_dict(source, **kwargs)
    if 'spectral' not in values:
        raise ValueError(f'{source}: its config.json has no "spectral"')
    values |= values['spectral'].pop('unmarked')
    config = transformers.AutoConfig.for_model(**values)
    family = getattr(transformers, config.architectures[0], None)
    if not (isinstance(family, type) and issubclass(family, transformers.PreTrainedModel)):
        raise ValueError(f'{source}: {config.architectures[0]} is no model of transformers')

    class Spectral(family):
        def __init__(self, config, *args, **kwargs):
            super().__init__(config, *args, **kwargs)
            install(self, config.spectral, [])

    for name in ('__name__', '__qualname__', '__module__'):  # transformers looks at them
        setattr(Spectral, name, getattr(family, name))
    model, info = Spectral.from_pretrained(source, **kwargs | dict(
        config=config, output_loading_info=True))
    for word in ('missing', 'unexpected'):
        if info[f'{word}_keys']:
            raise ValueError(f'{source}: {word} weights, such as {min(info[f"{word}_keys"])}')
    model.__class__ = family  # an ordinary model of its family again
    mark(model.config)
    return model


def parameter_groups(model, lr, rotation_lr, weight_decay=0.0):
    """
    The groups of an optimizer. Omega, A and Phi have a rate of their own, and no weight decay:
    it would pull them to 0. Of the others, matrices alone are decayed. Trainer by itself gives all
    one rate, and decays all. There, use Trainer(optimizers=(optimizer, None)).

        AdamW(parameter_groups(model, lr=1e-4, rotation_lr=1e-3, weight_decay=0.1))
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    ours = [p for name, p in named.items() if '.rotation.' in name]
    others = [p for name, p in named.items() if '.rotation.' not in name]
    groups = [dict(params=ours, lr=rotation_lr, weight_decay=0.0),
              dict(params=[p for p in others if p.dim() >= 2], lr=lr, weight_decay=weight_decay),
              dict(params=[p for p in others if p.dim() < 2], lr=lr, weight_decay=0.0)]
    return [group for group in groups if group['params']]


# What is added to a model


class Rotation(nn.Module):
    """
    Omega, A and Phi (n, P) of the last n key/value heads of a layer; the others keep theta. What
    is not learned is a buffer, so that nobody trains it.

        cos_q = A cos(Omega t + Phi)     cos_k = A cos(Omega t)     and so with sin
    """

    def __init__(self, theta, layout, n_kv, n, learn, phase_std, file):
        super().__init__()
        self.layout, self.n_kv, self.file = layout, n_kv, file
        theta = theta.float().repeat(n, 1)  # (n, P)
        start = dict(frequency=theta.clone(), amplitude=torch.ones_like(theta),
                     phase=phase_std * torch.randn_like(theta))
        for part, name in PARTS.items():
            if part in learn.split(','):
                self.register_parameter(name, nn.Parameter(start[part]))
            else:
                self.register_buffer(name, start[part])

    def forward(self, call, dtype):
        """[[cos_q, cos_k], [sin_q, sin_k]], each (B, n_kv, T, width) in `dtype`, for a Call."""
        if self.Omega.dtype.itemsize < 4:  # bfloat16 does not tell position 256 from 257
            raise TypeError('Omega needs float32; with FSDP2, call fully_shard(attention.rotation) '
                            'before its layer, without mp_policy')
        frozen = {p.requires_grad for p in self.parameters()} == {False}
        if frozen and self.training and torch.is_grad_enabled():
            raise ValueError("Omega, A and Phi are frozen: PEFT needs modules_to_save=['rotation'];"
                             " to freeze them on purpose, choose learn='none'")

        theta, first, scaling = read_theta(call.rotary, call.prefix, self.Omega.device)  # (P,)
        Omega = self.Omega
        if first is not theta:  # the RoPE changes with the length
            Omega = theta * (Omega / first)
        rows = (self.n_kv - len(Omega), 1)
        Omega = torch.cat([theta.repeat(rows), Omega])  # (n_kv, P)
        A = torch.cat([torch.ones_like(theta).repeat(rows), self.A])
        Phi = torch.cat([torch.zeros_like(theta).repeat(rows), self.Phi])

        Omega, A, Phi = (LAYOUTS[self.layout](x)[:, None] for x in (Omega, A, Phi))
        angle = call.position.to(theta.device)[:, None] * Omega  # (B, n_kv, T, width)
        angles = angle + Phi, angle
        # A comes last: the order of the products decides the bits
        return [[(f(x) * scaling * A).to(dtype) for x in angles] for f in (torch.cos, torch.sin)]

    def __setstate__(self, state):
        """Of a pickle, perhaps in another process."""
        super().__setstate__(state)
        take_pairs(vars(importlib.import_module(self.file)))

    def _apply(self, fn, recurse=True):
        """model.to(bfloat16) leaves them in float32."""
        def keep(tensor):
            moved = fn(tensor)
            return moved if moved.dtype.itemsize >= 4 else tensor.to(moved.device)
        return super()._apply(keep, recurse)


class Call:
    """A call of a rotary module. It is an object, for FSDP casts tensors on their way."""

    def __init__(self, rotary, args, kwargs):
        named = dict(zip(('x', 'position_ids', 'layer_type'), args)) | kwargs
        self.rotary, self.position = rotary, named['position_ids'][..., None].float()  # (B, T, 1)
        if self.position.dim() == 4:  # of images: a pair has the time, the height or the width
            wide = self.position.repeat(1, 1, 1, len(rotary.inv_freq))
            self.position = rotary.recomposition_frequencies(wide)  # (B, T, width)
        self.prefix = f'{named["layer_type"]}_' if named.get('layer_type') else ''  # of its theta


def install(model, options, handles):
    """Add the rotations that the options describe, and the hooks that serve them, to handles."""
    for name, layer in options['layers'].items():
        rotary, attention = map(model.get_submodule, (layer['rotary'], name))
        _, theta, _ = read_theta(rotary, layer['prefix'])
        heads, n_kv = options['heads'], layer['n_kv']
        n = {'all': n_kv, 'half': n_kv // 2}.get(heads, heads)
        if not isinstance(n, int) or not 0 < n <= n_kv:
            raise ValueError(f'heads={heads!r}: must be all, half, or at most {n_kv} in a layer')
        rotation = Rotation(theta, layer['layout'], n_kv, n, options['learn'],
                            options['phase_std'], module_of(attention)['__name__'])
        matrices = [*attention.parameters()]
        if not matrices:
            raise ValueError('call spectralize(model) before its matrices become int8')
        device = matrices[-1].device  # DiffLlama's first are elsewhere
        attention.rotation = rotation.to(device).train(attention.training)
    for name in {layer['rotary'] for layer in options['layers'].values()}:
        rotary = model.get_submodule(name)
        handles.append(rotary.register_forward_hook(after_rotary, with_kwargs=True))
    for attention in find_attentions(model).values():
        hook = functools.partial(before_attention, of_layer)
        handles.append(attention.register_forward_pre_hook(hook, with_kwargs=True))
        take_pairs(module_of(attention))


def after_rotary(rotary, args, kwargs, output):
    """Hand on the call behind its cos and sin."""
    return *output, Call(rotary, args, kwargs)


class Swapped(tuple):
    """What an attention gets in the place of its family's cos and sin, which are `plain`."""


def before_attention(find, attention, args, kwargs):
    """Swap the cos and sin that all layers share for those that `find` gives this layer."""
    # an attention hands them on to its indexer, which has no gradients: it keeps theta
    args = tuple(getattr(x, 'plain', x) for x in args)
    if kwargs.get('position_embeddings') is not None:
        cos, sin, *call = kwargs['position_embeddings']
        swapped = Swapped(find(attention, cos, sin, *call))
        swapped.plain = cos, sin
        kwargs = dict(kwargs, position_embeddings=swapped)
    return args, kwargs


def of_layer(attention, cos, sin, *call):
    if not hasattr(attention, 'rotation'):  # a layer without RoPE
        return cos, sin
    return attention.rotation(*call, dtype=cos.dtype)


def take_pairs(module):
    """Let the apply_rotary_pos_emb of a family's file also take what Rotation returns."""
    for name in APPLIES & module.keys():
        if not hasattr(module[name], 'takes_pairs'):
            module[name] = wrap(module[name])


def wrap(original):
    """An apply_rotary_pos_emb for a cos, and for a list of cos_q and cos_k."""
    names = list(inspect.signature(original).parameters)[4:]

    @functools.wraps(original)
    def apply(q, k, cos, sin, *args, **kwargs):
        heads = (dict(zip(names, args)) | kwargs).get('unsqueeze_dim', 1)
        if hasattr(cos, 'layer'):  # of `probe`, perhaps in another copy of this file
            cos.layer['n_kv'] = k.shape[heads]
            return original(q, k, cos.cos, sin, *args, **kwargs)
        if not isinstance(cos, list):  # another model of the family
            return original(q, k, cos, sin, *args, **kwargs)
        q, k = q.transpose(1, heads), k.transpose(1, heads)  # (B, heads, T, hs)
        if k.shape[1] != cos[1].shape[1]:
            raise ValueError(f'{k.shape[1]} key heads here, {cos[1].shape[1]} in the rotation: '
                             'tensor parallelism (tp_plan) is not supported')
        q = q.unflatten(1, (k.shape[1], -1))  # (B, n_kv, heads of a group, T, hs)
        k = k[:, :, None]  # (B, n_kv, 1, T, hs)
        nothing = k[:, :, :0]
        q, _ = original(q, nothing, cos[0], sin[0], unsqueeze_dim=2)
        _, k = original(nothing, k, cos[1], sin[1], unsqueeze_dim=2)
        return q.flatten(1, 2).transpose(1, heads), k.flatten(1, 2).transpose(1, heads)
    apply.takes_pairs = True
    return apply


# What is found out about a model


@torch.no_grad()
def probe(model):
    """
    {attention: dict(rotary, prefix, layout, n_kv)} of those that rotate. Its hooks change no
    number, and are removed. theta is another one meanwhile: a cos that does not follow has a
    theta of its own. Raises ValueError, or an error of the family's own code.
    """
    names = {module: name for name, module in model.named_modules()}
    layers, handles, thetas = {}, [], {}

    def look(attention, cos, sin, call):
        theta, _, scaling = read_theta(call.rotary, call.prefix)
        layer = dict(rotary=names[call.rotary], prefix=call.prefix)
        for name, widen in LAYOUTS.items():
            if len(widen(theta)) == cos.shape[-1]:
                expected = ((call.position * widen(theta)).cos() * scaling).to(cos)
                if torch.allclose(expected, cos, atol=1e-3):
                    layer['layout'] = name
        layers[names[attention]] = layer
        return SimpleNamespace(cos=cos, layer=layer), sin  # tells its use

    for attention in find_attentions(model).values():
        take_pairs(module_of(attention))
        hook = functools.partial(before_attention, look)
        handles.append(attention.register_forward_pre_hook(hook, with_kwargs=True))
    for module in model.modules():
        found = {buffer: buffer.clone() for name, buffer in module.named_buffers(recurse=False)
                 if name.endswith('inv_freq')}
        thetas |= found
        if found:
            handles.append(module.register_forward_hook(after_rotary, with_kwargs=True))
    try:
        for theta in thetas:
            theta.mul_(1.1)
        first_outputs(model)
    finally:
        for theta, value in thetas.items():
            theta.copy_(value)
        for handle in handles:
            handle.remove()
    layers = {name: layer for name, layer in layers.items() if 'n_kv' in layer}
    if not layers:
        raise ValueError('no layer rotates')
    for name, layer in layers.items():
        if 'layout' not in layer:
            raise ValueError(f'the cos of {name} is not that of inv_freq')
    return layers


@torch.no_grad()
def first_outputs(model):
    """
    The first outputs, logits (3, 1, 12, V) of a language model, of 12 tokens: beyond every length
    of training, from position 7 on, and from 0 on. A RoPE that changes with the length is reset.
    Where images are read, the time, the height and the width of a token differ.
    """
    position = torch.arange(12, device=model.device)[None]
    tokens = (position + 3) % model.get_input_embeddings().weight.shape[0]
    sections = [getattr(module, 'mrope_section', None) for module in model.modules()]
    if any(sections):
        axes = len(next(filter(None, sections)))
        position = position * torch.arange(1, axes + 1, device=model.device)[:, None, None]
    beyond = getattr(model.config.get_text_config(), 'max_position_embeddings', 4096)
    return torch.stack([model(input_ids=tokens, position_ids=position + start,
                              use_cache=False)[0].float() for start in (beyond, 7, 0)])


@torch.no_grad()
def prove(model, before):
    """
    Raise ValueError unless, with Phi = 0, the model gives what it gave before, and unless a
    move of all positions changes no more than before, when each head has frequencies of its own,
    and unless these change something.
    """
    rotations = [module for module in model.modules() if isinstance(module, Rotation)]
    states = [copy.deepcopy(rotation.state_dict()) for rotation in rotations]
    for rotation in rotations:
        rotation.Phi.zero_()
    now = first_outputs(model)
    for rotation in rotations:
        factor = torch.linspace(1.2, 1.8, len(rotation.Omega))[:, None]
        rotation.Omega.mul_(factor.to(rotation.Omega.device))
    other = first_outputs(model)
    for rotation, state in zip(rotations, states):
        rotation.load_state_dict(state)

    def distance(a, b):  # equal infinities have none
        return torch.where(a == b, 0, a - b).abs().max().item()

    change, move = distance(before, now), distance(other[1], other[2])
    rounding = distance(before[1], before[2])
    allowed = 10 * rounding + 0.01 * distance(before, other)
    if not change <= allowed:  # NaN is refused, too
        raise ValueError(f'with Phi = 0 its logits change by {change:.2g}')
    if not move <= allowed:
        raise ValueError(f'its logits change by {move:.2g} if all positions move by 7')
    if torch.equal(now, other):  # as with scores that a fresh model multiplies by 0
        raise ValueError('other frequencies change nothing, so nothing is proved')


def find_attentions(model):
    """{name: module} of those that take position_embeddings and call apply_rotary_pos_emb."""
    found = {}
    for name, module in model.named_modules():
        code = getattr(inspect.unwrap(type(module).forward), '__code__', None)
        if code and 'position_embeddings' in code.co_varnames and APPLIES & {*code.co_names}:
            found[name] = module
    if not found:
        raise ValueError('no attention takes position_embeddings and calls apply_rotary_pos_emb')
    for module in found.values():
        for name in APPLIES & module_of(module).keys():
            apply = inspect.unwrap(module_of(module)[name])
            names = list(inspect.signature(apply).parameters)
            if names[:4] != ['q', 'k', 'cos', 'sin'] or 'unsqueeze_dim' not in names:
                raise ValueError(f'its {name} takes ({", ".join(names)})')
            if apply.__module__ != type(module).__module__:
                # the backward of a fused kernel may give no gradient for cos and sin
                raise ValueError(f'its {name} was replaced by one of {apply.__module__}')
    return found


def module_of(attention):
    """The globals of the file of its class."""
    return inspect.unwrap(type(attention).forward).__globals__


def read_theta(rotary, prefix, device=None):
    """theta (P,) now, theta as trained (the same, unless the length changes it), scale."""
    now = getattr(rotary, prefix + 'inv_freq').to(device, torch.float)
    scaling = getattr(rotary, prefix + 'attention_scaling', 1.0)
    kind = getattr(rotary, 'rope_type', 'default')
    if isinstance(kind, dict):
        kind = kind[prefix.removesuffix('_')]
    first = now
    if 'dynamic' in kind or kind == 'longrope':
        first = getattr(rotary, prefix + 'original_inv_freq').to(device, torch.float)
    return now, first, scaling


def own_config(model):
    """Give the model a copy of its config: another model may have been built from the object."""
    copies = {}  # by id
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if id(value) in copies and hasattr(value, 'to_json_string'):
                setattr(module, name, copies[id(value)])


def mark(config):
    """Let all readers of its config.json but load_spectral stop: they would build a plain RoPE."""
    family = type(config)

    class Marked(family):
        def to_json_string(self, *args, **kwargs):
            values = json.loads(super().to_json_string(*args, **kwargs))
            # a config that is marked twice has its names from the first time
            values['spectral'].setdefault('unmarked', {key: values.get(key) for key in MARKED})
            values |= {key: MARK for key in MARKED}
            return json.dumps(values, indent=2, sort_keys=True) + '\n'

        def __reduce__(self):  # for copies, and for pickle
            return restore_config, (family, self.__dict__)

    Marked.__name__, Marked.__qualname__ = family.__name__, family.__qualname__
    config.__class__ = Marked


def restore_config(family, state):
    config = family.__new__(family)
    config.__dict__.update(state)
    mark(config)
    return config
