"""Tiny random models of the families that transformers has: {name: (config class, options)}."""

import torch

BASE = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
TWO_TYPES = dict(sliding_window=16, layer_types=['sliding_attention', 'full_attention'])
GEMMA = dict(head_dim=32, query_pre_attn_scalar=32)


def rope(rope_type, **numbers):
    if rope_type in ('yarn', 'llama3', 'longrope'):
        numbers['original_max_position_embeddings'] = 32
    parameters = dict(rope_type=rope_type, rope_theta=1e4, **numbers)
    return dict(rope_parameters=parameters, rope_scaling=parameters)  # transformers 5, and 4


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
FACTORS = dict(short_factor=[1 + 0.1 * i for i in range(8)],
               long_factor=[2.0 + i for i in range(8)])

FIT = {
    'llama': ('LlamaConfig', {}),
    'llama, linear': ('LlamaConfig', rope('linear', factor=4.0)),
    'llama, yarn': ('LlamaConfig', rope('yarn', factor=4.0)),
    'llama, llama3': ('LlamaConfig', rope('llama3', **LLAMA3)),
    'mistral': ('MistralConfig', dict(sliding_window=None)),
    'mistral, window': ('MistralConfig', dict(sliding_window=16)),
    'qwen2': ('Qwen2Config', {}),
    'qwen3': ('Qwen3Config', dict(head_dim=32)),
    'qwen3 moe': ('Qwen3MoeConfig', dict(head_dim=32, **EXPERTS)),
    'gemma2': ('Gemma2Config', dict(GEMMA, sliding_window=16)),
    'gemma3': ('Gemma3TextConfig', GEMMA | TWO_TYPES),
    'phi': ('PhiConfig', dict(partial_rotary_factor=0.5)),
    'phi3': ('Phi3Config', dict(original_max_position_embeddings=32)),
    'pythia': ('GPTNeoXConfig', dict(rotary_pct=0.25, hidden_size=128)),
    'olmo2': ('Olmo2Config', {}),
    'olmo3': ('Olmo3Config', TWO_TYPES),
    'smollm3': ('SmolLM3Config', dict(no_rope_layers=[1, 0])),
    'cohere': ('CohereConfig', {}),
    'glm': ('GlmConfig', dict(head_dim=32, partial_rotary_factor=0.5)),
    'gpt-oss': ('GptOssConfig', dict(TWO_TYPES, head_dim=32, num_local_experts=4,
                                     num_experts_per_tok=2)),
    'stablelm': ('StableLmConfig', dict(partial_rotary_factor=0.25, hidden_size=128)),
    'granite': ('GraniteConfig', {})}
STRETCHED = {  # theta depends on the length of the text
    'llama, dynamic': ('LlamaConfig', rope('dynamic', factor=4.0)),
    'llama, longrope': ('LlamaConfig', rope('longrope', factor=4.0, **FACTORS)),
    'phi3, longrope': ('Phi3Config', rope('longrope', **FACTORS)
                       | dict(original_max_position_embeddings=32))}
REFUSED = {
    'gpt2': ('GPT2Config', dict(n_embd=64, n_layer=2, n_head=4)),
    'gptj': ('GPTJConfig', dict(n_embd=64, n_layer=2, n_head=4, rotary_dim=8)),
    'smollm3, no rope': ('SmolLM3Config', dict(no_rope_layers=[0, 0])),
    'gemma4': ('Gemma4TextConfig', dict(
        TWO_TYPES, head_dim=32, global_head_dim=32, num_kv_shared_layers=0,
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=96)),
    'deepseek_v3': ('DeepseekV3Config', dict(
        num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, moe_intermediate_size=32, first_k_dense_replace=2))}


def make(name, kernel=None, **changes):
    """The model, in evaluation mode. Its matrices are large, so that positions matter."""
    import transformers
    family, options = (FIT | STRETCHED | REFUSED)[name]
    options = BASE | options | changes
    if family == 'GPTNeoXConfig':
        del options['num_key_value_heads']  # it has as many as heads
    config = getattr(transformers, family)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=kernel)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                large = torch.randn(parameter.shape, generator=rng) * 1.5
                parameter.copy_(large / parameter.shape[-1]**0.5)
    model.generation_config.eos_token_id = None
    return model.eval()
