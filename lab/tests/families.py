"""
Tiny random models of transformers for the tests; and which kinds of causal language models does
spectralize take, and with what error? Errors are shares of the largest logit.

    python -m lab.tests.families             # the table of study/surgery.md, in some ten minutes
    python -m lab.tests.families llama phi3  # of some, by their model_type
"""

import copy
import sys

import torch

from lab.spectralize import Rotation, spectralize

SMALL = dict(
    vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, head_dim=16,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, sliding_window=16,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
    topk_group=1, moe_intermediate_size=32, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
    qk_nope_head_dim=16, v_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
    linear_key_head_dim=16, linear_value_head_dim=16, index_topk=8, index_n_heads=2,
    index_head_dim=16, index_block_size=4, index_topk_blocks=3)
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
    """A tiny random model, in evaluation mode. Its weights are large, so that positions matter."""
    import transformers
    family, auto = transformers.CONFIG_MAPPING[kind], getattr(transformers, auto)
    config = family(**small(family(), changes))
    with torch.device('meta'):
        size = sum(p.numel() for p in auto.from_config(config).parameters())
    if size > 3e7:
        raise ValueError(f'{size} parameters')
    torch.manual_seed(0)  # some families draw vectors, too
    model = auto.from_config(config, attn_implementation=kernel)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=rng)
            if parameter.dim() >= 2:
                parameter.copy_(1.5 * noise / parameter.shape[-1]**0.5)
            elif not parameter.any():  # some multiply scores
                parameter.copy_(0.3 * noise)
    if model.can_generate():
        model.generation_config.eos_token_id = None
    return model.eval()


TEXT = torch.randint(3, 96, (1, 200), generator=torch.Generator().manual_seed(0))

# {name: (model_type, options, class)}

TWO_TYPES = dict(layer_types=['sliding_attention', 'full_attention'])
M3 = dict(layer_types=['full_attention', 'minimax_m3_sparse'])
GEMMA = dict(head_dim=32, query_pre_attn_scalar=32)
DEEPSEEK = dict(head_dim='own', num_key_value_heads=4)

FIT = {
    'llama': ('llama', {}),
    'llama, yarn': ('llama', rope('yarn')),
    'llama, llama3': ('llama', rope('llama3')),
    'llama, dynamic': ('llama', rope('dynamic')),  # theta depends on the length of the text
    'llama, longrope': ('llama', rope('longrope')),
    'qwen3': ('qwen3', dict(head_dim=32)),
    'gemma3': ('gemma3_text', GEMMA | TWO_TYPES),
    'gemma3, nested': ('gemma3', GEMMA),
    'pythia': ('gpt_neox', dict(rotary_pct=0.25, hidden_size=128, head_dim='own')),
    'smollm3': ('smollm3', dict(no_rope_layers=[1, 0])),
    'cohere': ('cohere', {}),
    'glm': ('glm', dict(head_dim=32, partial_rotary_factor=0.5)),
    'gpt-oss': ('gpt_oss', dict(TWO_TYPES, head_dim=32)),
    'diffllama': ('diffllama', {}),
    'lfm3': ('lfm3', dict(layer_types=['conv', 'full_attention'])),
    'qwen3.5': ('qwen3_5_text', dict(layer_types=['linear_attention', 'full_attention'],
                                     head_dim=64)),
    'zaya': ('zaya', dict(num_experts_per_tok=1)),
    'deepseek_v3': ('deepseek_v3', DEEPSEEK)}
SPARSE = {f'sparse {name}': (name, DEEPSEEK)
          for name in ('axk2', 'deepseek_v32', 'glm_moe_dsa', 'hy_v4')}


def sections(*sizes):
    """Options of a text model whose pairs follow the time, the height or the width of an image."""
    return dict(hidden_size=256, head_dim=64, rope_parameters=dict(
        rope_type='default', rope_theta=1e4, mrope_section=list(sizes)))


IMAGES = {  # without a head
    'glm4v': ('glm4v_text', sections(8, 12, 12), 'AutoModel'),
    'hunyuan-vl, four axes': ('hunyuan_vl_text', sections(8, 8, 8, 8), 'AutoModel'),
    'qwen2-vl': ('qwen2_vl_text', sections(8, 12, 12), 'AutoModel'),
    'qwen3-vl': ('qwen3_vl_text', sections(8, 12, 12), 'AutoModel')}
OTHER_HEADS = {
    'llama, bare': ('llama', {}, 'AutoModel'),
    'llama, classifier': ('llama', {}, 'AutoModelForSequenceClassification'),
    'modernbert': ('modernbert', {}, 'AutoModelForMaskedLM'),
    'eurobert': ('eurobert', {}, 'AutoModelForMaskedLM'),
    'nomic': ('nomic_bert', {}, 'AutoModel'),
    'llava': ('llava', {}, 'AutoModelForImageTextToText'),
    'qwen3-vl, whole': ('qwen3_vl', dict(hidden_size=512, head_dim=128, out_hidden_size=512,
                                         depth=1, deepstack_visual_indexes=[0]),
                        'AutoModelForImageTextToText')}
REFUSED = {
    'gpt2': ('gpt2', {}),
    'smollm3, no rope': ('smollm3', dict(no_rope_layers=[0, 0])),
    'gemma4': ('gemma4_unified_text', dict(head_dim='own')),
    'jetmoe': ('jetmoe', {}),
    'minimax_m3': ('minimax_m3_vl_text', M3),
    'phimoe': ('phimoe', {})}


def make(name, kernel=None, **changes):
    """The model, in evaluation mode."""
    kind, options, *auto = (FIT | SPARSE | IMAGES | OTHER_HEADS | REFUSED)[name]
    return build(kind, options | changes, kernel, *auto)


@torch.no_grad()
def logits(model, tokens, **more):
    return model(input_ids=tokens, **more)[0]


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
def error_and_shift(model):
    """
    (error, shift): by how much logits change with Phi = 0 on texts of 40 and of 200 tokens, and if
    all positions move by 7, with Omega, A and Phi far from their start.
    """
    plain = copy.deepcopy(model)
    spectralize(model, phase_std=0.0)

    def difference(a, b, length, start=0):
        text, position = TEXT[:, :length], torch.arange(length)[None]
        x = logits(a, text, position_ids=position + start, use_cache=False)
        y = logits(b, text, position_ids=position, use_cache=False)
        return ((x - y).abs().max() / y.abs().max()).item()

    errors = [difference(model, plain, length) for length in (40, 200)]
    scramble(model)
    return max(errors), difference(model, model, 40, start=7)


def examine(kind, changes):
    """(error, shift) of a kind that is accepted, else why it is refused, or that none was built."""
    reason = 'not built'
    for other in OTHERS:
        try:
            model = build(kind, other | changes)
            logits(model, TEXT[:, :3])
        except Exception:  # of any family's code
            continue
        try:
            return error_and_shift(model)
        except ValueError as error:
            reason = f'refused: {str(error).partition(": ")[2]}'
        if not reason.startswith('refused: no '):  # else another layer may rotate
            break
    return reason


def main(kinds):
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    transformers.logging.set_verbosity_error()
    kinds = kinds or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    cases = {kind: (kind, M3 if kind == 'minimax_m3_vl_text' else {}) for kind in kinds}
    for kind, name in [*(('llama', name) for name in ROPES), ('phi3', 'longrope')]:
        if kind in cases:
            cases[f'{kind} ({name})'] = kind, rope(name)
    rows = {}
    for case, (kind, changes) in cases.items():
        row, errors = examine(kind, changes), ()
        if isinstance(row, tuple):
            row, errors = 'accepted, same bits' if row[0] == 0 else 'accepted', row
        rows.setdefault(row, []).append((case, *errors))
    print('| verdict | kinds | error with Phi = 0 | shift error |\n|---|---|---|---|')
    for row, found in sorted(rows.items()):
        names, *errors = zip(*sorted(found))
        worst = [f'{max(column):.2g}' for column in errors] or ['', '']
        print(f'| {row} | {len(names)}: {", ".join(names)} | {worst[0]} | {worst[1]} |')


if __name__ == '__main__':
    main(sys.argv[1:])
