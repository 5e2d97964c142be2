"""Kinds of transformers models for the tests: {name: (model_type, options)}."""

from lab.families import build, rope

TWO_TYPES = dict(layer_types=['sliding_attention', 'full_attention'])
GEMMA = dict(head_dim=32, query_pre_attn_scalar=32)
ONE_KEY = ['deepseek_v3', 'deepseek_v32']  # all queries share one rotated key

FIT = {
    'llama': ('llama', {}),
    'llama, yarn': ('llama', rope('yarn')),
    'llama, llama3': ('llama', rope('llama3')),
    'llama, dynamic': ('llama', rope('dynamic')),  # theta depends on the length of the text
    'llama, longrope': ('llama', rope('longrope')),
    'phi3, longrope': ('phi3', rope('longrope')),
    'mistral': ('mistral', dict(sliding_window='own')),
    'qwen2': ('qwen2', {}),
    'qwen3': ('qwen3', dict(head_dim=32)),
    'qwen3 moe': ('qwen3_moe', dict(head_dim=32)),
    'gemma2': ('gemma2', GEMMA),
    'gemma3': ('gemma3_text', GEMMA | TWO_TYPES),
    'gemma3, nested': ('gemma3', GEMMA),
    'phi': ('phi', dict(partial_rotary_factor=0.5, head_dim='own')),
    'pythia': ('gpt_neox', dict(rotary_pct=0.25, hidden_size=128, head_dim='own')),
    'olmo3': ('olmo3', TWO_TYPES),
    'smollm3': ('smollm3', dict(no_rope_layers=[1, 0])),
    'cohere': ('cohere', {}),
    'glm': ('glm', dict(head_dim=32, partial_rotary_factor=0.5)),
    'gpt-oss': ('gpt_oss', dict(TWO_TYPES, head_dim=32)),
    'stablelm': ('stablelm', dict(partial_rotary_factor=0.25, hidden_size=128, head_dim='own')),
    'granite': ('granite', {}),
    'diffllama': ('diffllama', {}),
    'lfm3': ('lfm3', dict(layer_types=['conv', 'full_attention'])),
    'qwen3.5': ('qwen3_5_text', dict(layer_types=['linear_attention', 'full_attention'],
                                     head_dim=64)),
    'deepseek_v3': ('deepseek_v3', dict(head_dim='own', num_key_value_heads=4)),
    'deepseek_v32': ('deepseek_v32', dict(head_dim='own', num_key_value_heads=4))}


def sections(sizes, **more):
    """Options of a text model whose pairs follow the time, the height or the width of an image."""
    return dict(hidden_size=256, head_dim=64, rope_parameters=dict(
        more, rope_type='default', rope_theta=1e4, mrope_section=sizes))


IMAGES = {  # without a head
    'glm4v': ('glm4v_text', sections([8, 12, 12])),
    'glm4v moe': ('glm4v_moe_text', sections([8, 4, 4], partial_rotary_factor=0.5)),
    'hunyuan-vl, four axes': ('hunyuan_vl_text', sections([8, 8, 8, 8])),
    'qwen2-vl': ('qwen2_vl_text', sections([8, 12, 12])),
    'qwen3-vl': ('qwen3_vl_text', sections([8, 12, 12]))}
REFUSED = {
    'gpt2': ('gpt2', {}),
    'gptj': ('gptj', dict(n_embd=64, n_layer=2, n_head=4, rotary_dim=8)),
    'smollm3, no rope': ('smollm3', dict(no_rope_layers=[0, 0])),
    'gemma4': ('gemma4_unified_text', dict(head_dim='own')),
    'jetmoe': ('jetmoe', {}),
    'phimoe': ('phimoe', {})}


def make(name, kernel=None, **changes):
    """The model, in evaluation mode."""
    kind, options = (FIT | IMAGES | REFUSED)[name]
    auto = 'AutoModel' if name in IMAGES else 'AutoModelForCausalLM'
    return build(kind, options | changes, kernel, auto)
