"""
Which kinds of causal language models of transformers does spectralize take, and with what error?

    python -m lab.families             # a table of all that transformers has; it takes a while
    python -m lab.families llama phi3  # of some, by their model_type
    python -m lab.families --memory    # activations of two layers, 32/8 heads of 64, T = 1024

Each model is tiny and random. Errors are shares of the largest logit.
"""

import argparse
import copy
from functools import partial

import torch

from lab.bench import saved_MiB
from lab.spectralize import Rotation, spectralize

SMALL = dict(
    vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, head_dim=16,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, sliding_window=16,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
    topk_group=1, moe_intermediate_size=32, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
    qk_nope_head_dim=16, v_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
    linear_key_head_dim=16, linear_value_head_dim=16)
# what a kind may need beside them, tried in this order; 'own' leaves an option to the family
OTHERS = [{}, dict(head_dim='own'), dict(head_dim='own', num_key_value_heads=4),
          dict(layer_types=['linear_attention', 'full_attention']),
          dict(layer_types=['conv', 'full_attention']), dict(attn_layer_indices=[1]),
          dict(num_hidden_layers=8), dict(num_hidden_layers=8, head_dim='own'),
          dict(num_experts_per_tok=1)]
ROPES = dict(
    linear=dict(factor=4.0), dynamic=dict(factor=4.0), yarn=dict(factor=4.0),
    llama3=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0),
    longrope=dict(factor=4.0, short_factor=[1 + 0.1 * i for i in range(8)],
                  long_factor=[2.0 + i for i in range(8)]))


def rope(name):
    """The options for one of ROPES."""
    numbers = dict(ROPES[name], rope_type=name, rope_theta=1e4)
    if name in ('yarn', 'llama3', 'longrope'):
        numbers['original_max_position_embeddings'] = 32
    return dict(rope_parameters=numbers, rope_scaling=numbers,  # of transformers 5, and of 4
                original_max_position_embeddings=32)


def small(config, changes):
    """Options for a small config of the class of `config`, with those of the configs in it."""
    options = {name: value for name, value in (SMALL | changes).items()
               if not isinstance(value, str) and hasattr(config, name)}
    for name, value in vars(config).items():
        if hasattr(value, 'to_json_string'):
            options[name] = type(value)(**small(value, changes))
    return options


def build(kind, changes, kernel=None, auto='AutoModelForCausalLM'):
    """A tiny random model, in evaluation mode. Its matrices are large, so that positions matter."""
    import transformers
    family, auto = transformers.CONFIG_MAPPING[kind], getattr(transformers, auto)
    config = family(**small(family(), changes))
    with torch.device('meta'):
        size = sum(p.numel() for p in auto.from_config(config).parameters())
    if size > 3e7:
        raise ValueError(f'{size} parameters')
    model = auto.from_config(config, attn_implementation=kernel)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                large = torch.randn(parameter.shape, generator=rng) * 1.5
                parameter.copy_(large / parameter.shape[-1]**0.5)
    if model.can_generate():
        model.generation_config.eos_token_id = None
    return model.eval()


@torch.no_grad()
def logits(model, length, start=0):
    tokens = torch.randint(3, 96, (1, length), generator=torch.Generator().manual_seed(0))
    position = torch.arange(start, start + length)[None]
    return model(input_ids=tokens, position_ids=position, use_cache=False).logits


@torch.no_grad()
def scramble(model, seed=0):
    """Move Omega, A and Phi far from their start."""
    rng = torch.Generator().manual_seed(seed)
    for rotation in model.modules():
        if isinstance(rotation, Rotation):
            for tensor in (rotation.Omega, rotation.A):
                tensor.mul_(1 + 0.3 * torch.rand(tensor.shape, generator=rng))
            rotation.Phi.copy_(torch.randn(rotation.Phi.shape, generator=rng))
    return model


@torch.no_grad()
def measure(model):
    """
    (error, shift): by how much logits change with Phi = 0 on texts of 40 and of 200 tokens, and if
    all positions move by 7, with Omega, A and Phi far from their start.
    """
    plain = copy.deepcopy(model)
    spectralize(model, phase_std=0.0)

    def share(a, b):
        return ((a - b).abs().max() / b.abs().max()).item()

    errors = [share(logits(model, n), logits(plain, n)) for n in (40, 200)]
    scramble(model)
    return max(errors), share(logits(model, 40), logits(model, 40, start=7))


def examine(kind, changes):
    """(error, shift) of a kind that is accepted, else why it is refused, or why it has no model."""
    reasons = []
    for other in OTHERS:
        try:
            model = build(kind, other | changes)
            logits(model, 3)
        except Exception as error:  # of any family's code
            reasons.append(f'not built: {error}')
            continue
        try:
            return measure(model)
        except ValueError as error:
            reason = str(error).partition(': ')[2]
        if not reason.startswith('no '):  # else another layer may rotate
            return reason
        reasons.insert(0, reason)
    return reasons[0]


def main(arguments=None):
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as kinds
    transformers.logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=__doc__.strip().split('\n')[0])
    parser.add_argument('kinds', nargs='*', default=list(kinds), help='without them, all')
    parser.add_argument('--memory', action='store_true', help='what a Llama keeps for its backward')
    if parser.parse_args(arguments).memory:
        shape = dict(hidden_size=512, num_attention_heads=32, num_key_value_heads=8, head_dim=64)
        model = build('llama', shape)
        once = partial(model, torch.zeros(1, 1024, dtype=torch.long), use_cache=False)
        before = saved_MiB(once, model.parameters())
        after = saved_MiB(once, spectralize(model).parameters())
        print(f'before {before:.0f} MiB, after {after:.0f} MiB')
        return
    found = {kind: examine(kind, {}) for kind in parser.parse_args(arguments).kinds}
    for kind, name in [*(('llama', name) for name in ROPES), ('phi3', 'longrope')]:
        if kind in found:
            found[f'{kind} ({name})'] = examine(kind, rope(name))
    rows = {}
    for kind, result in found.items():
        if isinstance(result, str):
            row = 'not built' if result.startswith('not built') else f'refused: {result}'
        else:
            row = 'accepted, same bits' if result[0] == 0 else 'accepted'
        rows.setdefault(row, []).append(kind)
    print('| verdict | kinds | error with Φ = 0 | shift error |\n|---|---|---|---|')
    for row, names in sorted(rows.items()):
        errors = [found[name] for name in names if not isinstance(found[name], str)]
        worst = [f'{max(column):.2g}' for column in zip(*errors)] or ['', '']
        print(f'| {row} | {len(names)}: {", ".join(sorted(names))} | {worst[0]} | {worst[1]} |')


if __name__ == '__main__':
    main()
