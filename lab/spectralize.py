"""
Surgical Integration in place (arXiv 2601.22402): the RoPE of a transformers model gets learned
frequencies Omega, amplitudes A and phases Phi, for each key/value head of each layer.

    model = AutoModelForCausalLM.from_pretrained('HuggingFaceTB/SmolLM2-135M')
    spectralize(model, heads='half')     # in place; 'half' is bifocal
    ...                                  # generate(), Trainer and PEFT go on working
    model.save_pretrained('folder')
    model = load_spectral('folder')      # the same logits

The matrices, and the code that uses them, stay the family's own. Three things are added:

1. A hook on the rotary module hands on the positions beside its cos and sin.
2. A hook on each attention swaps these, which all layers share, for the layer's own. There is one
   cos and one sin for queries and one for keys, for each key/value head.
3. The family's apply_rotary_pos_emb is wrapped, so that it takes such pairs. The rotation itself
   is still the family's code.

With Phi = 0 the logits are those of the model before, bit for bit. This file imports nothing of
the repository that it comes from, so it may be copied. It needs torch and transformers.
"""

import contextlib
import copy
import functools
import inspect
import json
import shutil
from pathlib import Path

import torch
import torch.nn as nn

APPLY = 'apply_rotary_pos_emb'
# the rope_type in a saved config.json: every other reader stops at it, and shows it
MARK = 'spectral, to be read with load_spectral() of spectralize.py'
PARTS = {'frequency': 'Omega', 'amplitude': 'A', 'phase': 'Phi'}
LAYOUTS = {  # where the P angles stand in the last dimension of a family's cos and sin
    'halves': lambda x: torch.cat([x, x], dim=-1),  # Llama and most others
    'pairs': lambda x: x.repeat_interleave(2, dim=-1),  # Cohere
    'single': lambda x: x}  # gpt-oss


# The calls that a user makes


def spectralize(model, heads='all', learn='frequency,amplitude,phase', phase_std=1e-3,
                phase_on='query', freeze=False):
    """
    Give each layer of a transformers model that rotates its own Omega, A and Phi, in place, and
    return the model. They start at the model's theta, at 1, and at N(0, phase_std^2).

    heads: the key/value heads of each layer that become spectral: 'all', 'half', or a number.
        The last ones do; the others keep theta.
    learn: which of frequency, amplitude and phase are trained, with commas between; or 'none'.
    phase_on: 'query', or 'both' for queries and keys, where Phi cancels.
    freeze: nothing but Omega, A and Phi is trained.

    Raises ValueError for a wrong option, and NotImplementedError with a reason for a model that
    does not fit. The model is then as it was.
    """
    if getattr(model.config, 'spectral', None):
        raise ValueError('this model is spectral already')
    layers = Probe(model).run()
    for layer in layers.values():
        count(heads, layer['n_kv'])  # raises ValueError
    unknown = set(learn.split(',')) - {*PARTS, 'none'}
    if unknown:
        raise ValueError(f'learn={learn!r}: must be none, or some of {", ".join(PARTS)}')
    if phase_on not in ('query', 'both'):
        raise ValueError(f'phase_on={phase_on!r}: must be query or both')

    if freeze:
        model.requires_grad_(False)
    model.config.spectral = dict(heads=heads, learn=learn, phase_std=phase_std, phase_on=phase_on,
                                 layers=layers)
    install(model)
    choose_learned(model)
    mark(model.config)
    return model


def load_spectral(source, **kwargs):
    """
    The spectral model that save_pretrained() wrote, from a folder or from the hub. `kwargs` are
    those of from_pretrained(). Omega, A and Phi stay in float32, whatever dtype is asked for.
    What `learn` named is trainable, and all other weights are, too.

    Raises ValueError if the folder is not spectral, or lacks some of the weights.
    """
    import transformers
    config = read_config(source, **kwargs)
    family = getattr(transformers, config.architectures[0])

    class Spectral(family):
        def __init__(self, config, *args, **kwargs):
            super().__init__(config, *args, **kwargs)
            install(self)

    for name in ('__name__', '__qualname__', '__module__'):  # transformers looks at them
        setattr(Spectral, name, getattr(family, name))
    model, info = Spectral.from_pretrained(source, **kwargs | dict(
        config=config, output_loading_info=True))
    if info['missing_keys']:
        raise ValueError(f'{source} lacks {min(info["missing_keys"])}')
    model.__class__ = family  # an ordinary model of its family again
    choose_learned(model)
    mark(model.config)
    return model


def read_config(source, **kwargs):
    """The config of a spectral folder, without the mark. Raises ValueError for another folder."""
    import transformers
    values, _ = transformers.PretrainedConfig.get_config_dict(source, **kwargs)
    if 'spectral' not in values:
        raise ValueError(f'{source}: its config.json has no "spectral"')
    for name, rope in values['spectral'].pop('rope').items():
        del values[name]
        if rope is not None:
            values[name] = rope
    return transformers.AutoConfig.for_model(**values)


def share(folder):
    """
    Put this file beside the weights in a spectral folder. Whoever has the folder then loads it by
    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True). A Phi-3 is the exception:
    its config refuses the mark, so that load_spectral alone reads it.
    """
    path = Path(folder) / 'config.json'
    config = json.loads(path.read_text())
    config['auto_map'] = {'AutoModelForCausalLM': 'spectralize.SpectralModel'}
    path.write_text(json.dumps(config, indent=2) + '\n')
    shutil.copy(__file__, Path(folder) / 'spectralize.py')


class SpectralModel:
    """What the config.json of a shared folder names. transformers calls the two methods."""

    @staticmethod
    def from_pretrained(source, *args, config=None, **kwargs):
        return load_spectral(source, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class=None):
        """There is nothing to register."""


def parameter_groups(model, lr, rotation_lr, weight_decay=0.0):
    """
    The groups of an optimizer. Omega, A and Phi have a rate of their own, and no weight decay:
    it would pull them to 0. Of the others, matrices alone are decayed.

        AdamW(parameter_groups(model, lr=1e-4, rotation_lr=1e-3, weight_decay=0.1))

    Without these groups, Trainer gives all weights one rate. It also decays Omega, A and Phi as
    soon as its weight_decay is not 0. To use them there: Trainer(optimizers=(optimizer, None)).
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    ours = [p for name, p in named if '.rotation.' in name]
    others = [p for name, p in named if '.rotation.' not in name]
    groups = [dict(params=ours, lr=rotation_lr, weight_decay=0.0),
              dict(params=[p for p in others if p.dim() >= 2], lr=lr, weight_decay=weight_decay),
              dict(params=[p for p in others if p.dim() < 2], lr=lr, weight_decay=0.0)]
    return [group for group in groups if group['params']]


def check_adapter(model, folder):
    """
    Raise ValueError if a PEFT adapter has Omega, A and Phi, and the model has no place for them.
    PEFT itself drops them without a word. Call it before PeftModel.from_pretrained.
    """
    from safetensors import safe_open
    with safe_open(Path(folder) / 'adapter_model.safetensors', framework='pt') as file:
        theirs = {name.rsplit('.rotation.')[0] for name in file.keys() if '.rotation.' in name}
    ours = {name for name, module in model.named_modules() if hasattr(module, 'rotation')}
    for name in theirs:
        if name.removeprefix('base_model.model.') not in ours:
            raise ValueError(f'{folder} has a rotation for {name}, and the model has none there: '
                             'call spectralize(model) first')


# What is added to a model


class Rotation(nn.Module):
    """
    Omega, A and Phi (n, P) of the last n key/value heads of a layer; the others keep theta.

        cos_q = A cos(Omega t + Phi)     cos_k = A cos(Omega t)     and so with sin
    """

    def __init__(self, theta, layout, n_kv, n, phase_std, phase_on):
        super().__init__()
        self.layout, self.n_kv, self.phase_on = layout, n_kv, phase_on
        theta = theta.float().repeat(n, 1)  # (n, P)
        self.Omega = nn.Parameter(theta.clone())
        self.A = nn.Parameter(torch.ones_like(theta))
        self.Phi = nn.Parameter(phase_std * torch.randn_like(theta))

    def forward(self, position, theta, stretch, scaling, dtype):
        """
        ((cos_q, cos_k), (sin_q, sin_k)), each (B, n_kv, T, width), for `position` (B, T). `theta`
        (P,) is the model's now, and `stretch` (P,) what a RoPE that changes with the length has
        made of it. The angles are float32; `dtype` is that of the result.
        """
        rows = (self.n_kv - len(self.Omega), 1)
        theta = theta.to(self.Omega.device)
        Omega = torch.cat([theta.repeat(rows), self.Omega * stretch.to(theta.device)])  # (n_kv, P)
        A = torch.cat([torch.ones_like(theta).repeat(rows), self.A])
        Phi = torch.cat([torch.zeros_like(theta).repeat(rows), self.Phi])

        position = position.to(theta.device).float()
        angle = position[:, None, :, None] * Omega[:, None]  # (B, n_kv, T, P)
        shifted = angle + Phi[:, None]
        queries = self.cos_and_sin(shifted, A, scaling, dtype)
        keys = self.cos_and_sin(shifted if self.phase_on == 'both' else angle, A, scaling, dtype)
        return tuple(zip(queries, keys))

    def cos_and_sin(self, angle, A, scaling, dtype):
        widen = LAYOUTS[self.layout]
        angle, A = widen(angle), widen(A)[:, None]
        # A comes last: the order of the products decides the bits
        return [(f(angle) * scaling * A).to(dtype) for f in (torch.cos, torch.sin)]

    def _apply(self, fn, recurse=True):
        """model.to(bfloat16) leaves them in float32: bfloat16 does not tell 256 from 257."""
        def keep(tensor):
            moved = fn(tensor)
            return moved if moved.dtype.itemsize >= 4 else tensor.to(moved.device)
        return super()._apply(keep, recurse)


def install(model):
    """Add the rotations that model.config.spectral describes, and the hooks that serve them."""
    options = model.config.spectral
    rotaries = set()
    for name, layer in options['layers'].items():
        rotary = model.get_submodule(layer['rotary'])
        rotaries.add(rotary)
        attention = model.get_submodule(name)
        theta, _ = read_theta(rotary, layer['prefix'])
        n = count(options['heads'], layer['n_kv'])
        rotation = Rotation(theta, layer['layout'], layer['n_kv'], n, options['phase_std'],
                            options['phase_on'])
        attention.rotation = rotation.to(next(attention.parameters()).device)
    for rotary in rotaries:
        rotary.register_forward_hook(after_rotary, with_kwargs=True)
    for attention in find_attentions(model).values():
        attention.register_forward_pre_hook(before_attention, with_kwargs=True)
        module = module_of(attention)
        if not hasattr(module[APPLY], 'original'):
            module[APPLY] = take_pairs(module[APPLY])


def choose_learned(model):
    """Let those of Omega, A and Phi be trained that config.spectral says."""
    learned = model.config.spectral['learn'].split(',')
    for module in model.modules():
        if isinstance(module, Rotation):
            for part, name in PARTS.items():
                getattr(module, name).requires_grad_(part in learned)


def after_rotary(rotary, args, kwargs, output):
    """Hand on what a Rotation needs, behind the cos and sin of the rotary module."""
    position, prefix = read_call(args, kwargs)
    original, theta = read_theta(rotary, prefix)
    scaling = getattr(rotary, prefix + 'attention_scaling', 1.0)
    return *output, position, theta, theta / original, scaling


def before_attention(attention, args, kwargs):
    """Swap the cos and sin that all layers share for those of this layer."""
    if kwargs.get('position_embeddings') is None:
        return None
    cos, sin, *rest = kwargs['position_embeddings']
    rotation = getattr(attention, 'rotation', None)
    if rotation is None:  # a layer without RoPE
        own = cos, sin
    else:
        own = rotation(*rest, dtype=cos.dtype)
    return args, dict(kwargs, position_embeddings=own)


def take_pairs(original):
    """The family's apply_rotary_pos_emb, which also takes what Rotation returns."""
    place = list(inspect.signature(original).parameters).index('unsqueeze_dim')

    @functools.wraps(original)
    def apply(q, k, cos, sin, *args, **kwargs):
        if not isinstance(cos, tuple):  # another model of the family
            return original(q, k, cos, sin, *args, **kwargs)
        heads = given([None] * 4 + list(args), kwargs, place, 'unsqueeze_dim', 1)
        q, k = q.transpose(1, heads), k.transpose(1, heads)  # (B, heads, T, hs)
        q = q.unflatten(1, (k.shape[1], -1))  # (B, n_kv, heads of a group, T, hs)
        k = k[:, :, None]  # (B, n_kv, 1, T, hs)
        nothing = k[:, :, :0]
        q, _ = original(q, nothing, cos[0], sin[0], unsqueeze_dim=2)
        _, k = original(nothing, k, cos[1], sin[1], unsqueeze_dim=2)
        return q.flatten(1, 2).transpose(1, heads), k.flatten(1, 2).transpose(1, heads)
    apply.original = original
    return apply


# What is found out about a model


class Probe:
    """
    One pass of three tokens finds which layers rotate, and how. Its hooks are those of `install`,
    but change no number, and they are removed.
    """

    def __init__(self, model):
        self.model = model
        self.layers = {}  # {name of an attention: what its Rotation must know}
        self.now = None  # the attention that is running, its cos, and its rotary module's facts

    @torch.no_grad()
    def run(self):
        """{attention: dict(rotary, prefix, layout, n_kv)}. Raises NotImplementedError."""
        model, attentions = self.model, find_attentions(self.model)
        if not attentions:
            self.refuse(f'no attention takes position_embeddings and calls {APPLY}')
        for attention in attentions.values():
            self.check_apply(attention)
        with contextlib.ExitStack() as undo:
            for name, module in model.named_modules():
                buffers = [buffer for buffer, _ in module.named_buffers(recurse=False)]
                if any(buffer.endswith('inv_freq') for buffer in buffers):
                    hook = functools.partial(self.after_rotary, name)
                    handle = module.register_forward_hook(hook, with_kwargs=True)
                    undo.callback(handle.remove)
            for name, attention in attentions.items():
                hook = functools.partial(self.before_attention, name)
                handle = attention.register_forward_pre_hook(hook, with_kwargs=True)
                undo.callback(handle.remove)
            for module in {id(m): m for m in map(module_of, attentions.values())}.values():
                undo.callback(module.__setitem__, APPLY, module[APPLY])
                module[APPLY] = functools.partial(self.apply, module[APPLY])
            tokens = torch.zeros(1, 3, dtype=torch.long, device=model.device)
            try:
                model(input_ids=tokens)
            except (ValueError, TypeError) as error:  # its code looks into what is handed on
                self.refuse(f'a pass of three tokens fails: {error}', error)
        if not self.layers:
            self.refuse('no layer rotates')
        return self.layers

    def refuse(self, reason, cause=None):
        raise NotImplementedError(f'{type(self.model).__name__}: {reason}') from cause

    def check_apply(self, attention):
        function = module_of(attention)[APPLY]
        function = getattr(function, 'original', function)
        names = list(inspect.signature(function).parameters)
        if names[:4] != ['q', 'k', 'cos', 'sin'] or 'unsqueeze_dim' not in names:
            self.refuse(f'{APPLY} takes ({", ".join(names)})')
        if function.__module__ != type(attention).__module__:
            # the backward of a fused kernel may give no gradient for cos and sin
            self.refuse(f'its {APPLY} was replaced by one of {function.__module__}')

    def after_rotary(self, name, rotary, args, kwargs, output):
        cos = output[0]
        position, theta, _, scaling = after_rotary(rotary, args, kwargs, ())
        prefix = read_call(args, kwargs)[1]
        angle = position[..., None].float() * theta
        found = None
        for layout, widen in LAYOUTS.items():
            expected = (widen(angle).cos() * scaling).to(cos)
            if expected.shape == cos.shape and torch.allclose(expected, cos, atol=1e-3):
                found = layout
        return *output, dict(rotary=name, prefix=prefix, layout=found)

    def before_attention(self, name, attention, args, kwargs):
        if kwargs.get('position_embeddings') is None:
            self.now = None
            return None
        cos, sin, facts = kwargs['position_embeddings']
        self.now = name, cos, facts
        return args, dict(kwargs, position_embeddings=(cos, sin))

    def apply(self, original, q, k, cos, sin, *args, **kwargs):
        if self.now is None:
            self.refuse('an attention rotates without position_embeddings')
        name, expected, facts = self.now
        same = cos.shape == expected.shape and torch.equal(cos, expected)
        if facts['layout'] is None or not same:
            self.refuse(f'the cos of {name} is not that of inv_freq')
        bound = inspect.signature(original).bind(q, k, cos, sin, *args, **kwargs)
        heads = bound.arguments.get('unsqueeze_dim', 1)
        self.layers[name] = dict(facts, n_kv=k.shape[heads])
        return original(q, k, cos, sin, *args, **kwargs)


def find_attentions(model):
    """{name: module} of those that take position_embeddings and call apply_rotary_pos_emb."""
    found = {}
    for name, module in model.named_modules():
        code = getattr(inspect.unwrap(type(module).forward), '__code__', None)
        if code and APPLY in code.co_names and 'position_embeddings' in code.co_varnames:
            found[name] = module
    return found


def module_of(attention):
    """The globals of the file that an attention's class is written in."""
    return inspect.unwrap(type(attention).forward).__globals__


def read_call(args, kwargs):
    """position_ids (B, T) of a call of a rotary module, and the prefix of its layer type."""
    layer_type = given(args, kwargs, 2, 'layer_type')
    return given(args, kwargs, 1, 'position_ids'), f'{layer_type}_' if layer_type else ''


def read_theta(rotary, prefix):
    """theta (P,) as it was trained, and as it is now: some kinds of RoPE change it by length."""
    now = getattr(rotary, prefix + 'inv_freq').float()
    kind = getattr(rotary, 'rope_type', 'default')
    if isinstance(kind, dict):
        kind = kind[prefix.removesuffix('_')]
    if 'dynamic' in kind or kind == 'longrope':
        return getattr(rotary, prefix + 'original_inv_freq').to(now), now
    return now, now


def given(args, kwargs, place, name, default=None):
    """An argument that a call may give by place or by name."""
    if len(args) > place:
        return args[place]
    return kwargs.get(name, default)


def count(heads, n_kv):
    """How many of n_kv heads become spectral. Raises ValueError."""
    n = {'all': n_kv, 'half': n_kv // 2}.get(heads, heads)
    if not isinstance(n, int) or not 0 < n <= n_kv:
        raise ValueError(f'heads={heads!r}: must be all, half, or at most {n_kv}, for a layer has '
                         f'{n_kv} key/value heads')
    return n


def mark(config):
    """
    Make every reader of the saved config.json but load_spectral stop, for it would build a plain
    RoPE and drop Omega, A and Phi. What the mark replaces is kept under "spectral".
    """
    family = type(config)

    class Marked(family):
        def to_json_string(self, *args, **kwargs):
            values = json.loads(super().to_json_string(*args, **kwargs))
            keys = ['rope_parameters', 'rope_scaling']  # of transformers 5, and of 4
            values['spectral']['rope'] = {key: values.get(key) for key in keys}
            for key in keys:
                marked = copy.deepcopy(values.get(key)) or {}
                nested = [value for value in marked.values() if isinstance(value, dict)]
                for parameters in nested or [marked]:  # one for each type of layer, or one for all
                    parameters['rope_type'] = MARK
                values[key] = marked
            return json.dumps(values, indent=2, sort_keys=True) + '\n'

        def __reduce__(self):  # for copies, and for pickle
            return restore_config, (family, self.__dict__)

    Marked.__name__ = family.__name__
    Marked.__qualname__ = family.__qualname__
    config.__class__ = Marked


def restore_config(family, state):
    config = family.__new__(family)
    config.__dict__.update(state)
    mark(config)
    return config
