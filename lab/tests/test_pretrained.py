"""Llama checkpoints: beside the model of transformers, operated on, trained, and refused where they do not fit."""

import builtins
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch

from lab import hub, pretrained
from lab.frequencies import geometric
from lab.pretrained import from_pretrained
from lab.tests.conftest import ROOT, ways

pytest.importorskip('safetensors', reason='the format of the checkpoints')
import safetensors  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

CONFIG = dict(
    architectures=['LlamaForCausalLM'], model_type='llama', vocab_size=29, hidden_size=32, intermediate_size=40,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_act='silu', max_position_embeddings=512,
    rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=False, attention_bias=False,
    mlp_bias=False, attention_dropout=0.0, pretraining_tp=1, eos_token_id=None, torch_dtype='float32')
YARN = dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=128)
LLAMA3 = dict(rope_type='llama3', factor=8.0, original_max_position_embeddings=128, low_freq_factor=1.0,
              high_freq_factor=4.0)
YARN_ALL = YARN | dict(attention_factor=1.3, beta_fast=8.0, beta_slow=3.0, truncate=True)
ARMS = {
    'grouped': dict(),
    'one key head': dict(num_key_value_heads=1),
    'a key head a query head': dict(num_key_value_heads=None),
    'tied': dict(tie_word_embeddings=True),
    'wider heads': dict(head_dim=12),
    'narrower heads': dict(head_dim=4, num_key_value_heads=1),
    'theta 500': dict(rope_theta=500.0),
    'theta 100000': dict(rope_theta=100000),
    'theta 500000': dict(rope_theta=500000.0, tie_word_embeddings=True),
    'no theta': dict(rope_theta=...),
    'epsilon': dict(rms_norm_eps=0.01),
    'linear': dict(rope_scaling=dict(rope_type='linear', factor=4.0)),
    'linear, an old spelling': dict(rope_scaling=dict(type='linear', factor=2.0)),
    'yarn': dict(rope_scaling=YARN),
    'yarn, all of it': dict(rope_scaling=YARN_ALL, head_dim=16),
    'yarn, from its full length': dict(rope_scaling=dict(type='yarn', factor=2.0), rope_theta=2000.0),
    'llama3': dict(rope_scaling=LLAMA3, rope_theta=500000.0, head_dim=16),
    'llama3, other turns': dict(rope_scaling=LLAMA3 | dict(low_freq_factor=0.5, high_freq_factor=9.0), head_dim=16),
    'rope_parameters': dict(rope_theta=..., rope_parameters=dict(rope_type='default', rope_theta=3000.0)),
    'rope_parameters, llama3': dict(rope_theta=..., rope_parameters=LLAMA3 | dict(rope_theta=3000.0)),
    'rope_parameters, and again': dict(rope_theta=..., rope_parameters=YARN, rope_scaling=YARN),
    'swish': dict(hidden_act='swish', activation='swiglu', is_causal=True),
    'mistral': dict(model_type='mistral', architectures=['MistralForCausalLM'], sliding_window=None),
}
HARMLESS = dict(  # for each key that changes no logits a value, mostly not the default
    _name_or_path='a/b', name_or_path='a/b', _commit_hash='c0ffee', transformers_version='4.40.1',
    is_llama_config=True, unsloth_fixed=True, unsloth_version='2024.9', bos_token_id=3, eos_token_id=[4, 5],
    pad_token_id=6, tokenizer_class='LlamaTokenizer', model_max_length=7, max_sequence_length=8,
    initializer_range=0.9, attention_dropout=0.5, pretraining_tp=4, chunk_size_feed_forward=2, use_cache=False,
    torch_dtype='bfloat16', dtype='bfloat16', _attn_implementation_autoset=True, output_attentions=True,
    output_hidden_states=True, return_dict=True, return_dict_in_generate=True, id2label={'0': 'a', '1': 'b'},
    label2id={'a': 0, 'b': 1}, num_labels=2, problem_type='regression', finetuning_task='x',
    task_specific_params={'x': {}}, do_sample=True, temperature=0.1, top_k=1, top_p=0.1, typical_p=0.1, max_length=3,
    min_length=2, early_stopping=True, num_beams=2, num_return_sequences=2, length_penalty=2.0,
    repetition_penalty=9.0, no_repeat_ngram_size=1, bad_words_ids=[[2]]) | {'transformers.js_config': {'dtype': 'q4'}}


def make_tensors(config):
    """Random weights of a Llama with this config.json; no norm is 1 everywhere, which could hide another."""
    generator = torch.Generator().manual_seed(1)
    C, inner, V = config['hidden_size'], config['intermediate_size'], config['vocab_size']
    nh = config['num_attention_heads']
    hs = config.get('head_dim') or C // nh
    nkv = config['num_key_value_heads'] or nh
    shapes = {'model.embed_tokens': (V, C), 'model.norm': (C,)}
    for i in range(config['num_hidden_layers']):
        shapes |= {f'model.layers.{i}.{name}': shape for name, shape in {
            'self_attn.q_proj': (nh * hs, C), 'self_attn.k_proj': (nkv * hs, C), 'self_attn.v_proj': (nkv * hs, C),
            'self_attn.o_proj': (C, nh * hs),
            'mlp.gate_proj': (inner, C), 'mlp.up_proj': (inner, C), 'mlp.down_proj': (C, inner),
            'input_layernorm': (C,), 'post_attention_layernorm': (C,)}.items()}
    if not config['tie_word_embeddings']:
        shapes['lm_head'] = (V, C)
    return {f'{name}.weight': 0.15 * torch.randn(shape, generator=generator) + (len(shape) == 1)
            for name, shape in shapes.items()}


@pytest.fixture
def write(tmp_path):
    """write('name', **changes) is a folder with CONFIG, changed (... leaves out), and the weights for it."""
    def write(name='llama', dtype=torch.float32, **changes):
        config = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
        folder = tmp_path / name
        folder.mkdir()
        (folder / 'config.json').write_text(json.dumps(config))
        tensors = {key: tensor.to(dtype) for key, tensor in make_tensors(config).items()}
        save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})
        return folder
    return write


@pytest.fixture
def peer():
    """The same folder as transformers reads it."""
    transformers = pytest.importorskip('transformers', reason='the peer to compare with')
    return lambda folder: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def edit(folder, change):
    """Change the weights of a folder: `change` gets {name: tensor}."""
    tensors = load_file(folder / 'model.safetensors')
    change(tensors)
    save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})


def changed(folder, **changes):
    """The folder, after its config.json has been changed."""
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps(config | changes))
    return folder


def shard(folder):
    """Replace the one file of a folder by an index and three shards, and return them."""
    tensors = load_file(folder / 'model.safetensors')
    names = sorted(tensors)
    files = [f'model-0000{i + 1}-of-00003.safetensors' for i in range(3)]
    for i, file in enumerate(files):
        save_file({name: tensors[name] for name in names[i::3]}, folder / file, metadata={'format': 'pt'})
    index = {'metadata': {}, 'weight_map': {name: files[i % 3] for i, name in enumerate(names)}}
    (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
    (folder / 'model.safetensors').unlink()
    return [folder / file for file in files]


def tokens(B, T):
    return torch.randint(29, (B, T), generator=torch.Generator().manual_seed(2))


# ----------------------------------------------------------------------------------------------------------------------
# Beside transformers


@pytest.mark.parametrize('arm', ARMS)
@torch.no_grad()
def test_logits_are_those_of_transformers(write, peer, arm):
    """Up to 512 tokens."""
    folder = write(**ARMS[arm])
    theirs, ours = peer(folder), from_pretrained(folder)
    for B, T in ((1, 1), (3, 50), (2, 512)):
        logits = ours(tokens(B, T))[0]
        assert logits.std() > 0.3 and logits.dtype == torch.float32
        torch.testing.assert_close(logits, theirs(tokens(B, T)).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize('scaling', [None, dict(rope_type='linear', factor=3.0),
                                     YARN | dict(original_max_position_embeddings=4096),
                                     LLAMA3 | dict(original_max_position_embeddings=4096)], ids=str)
@torch.no_grad()
def test_theta_is_rounded_as_transformers_rounds_it(write, peer, scaling):
    """At position 4096 the last digit of theta counts. Queries and keys 5 times larger see sharply, which shows it."""
    folder = write(rope_scaling=scaling, rope_theta=500000.0, head_dim=64, num_hidden_layers=1,
                   max_position_embeddings=8192)
    edit(folder, lambda t: [t[name].mul_(5) for name in t if 'q_proj' in name or 'k_proj' in name])
    theirs, ours, idx = peer(folder), from_pretrained(folder), tokens(1, 4096)
    theta, expected = ways(ours)[0].theta, theirs.model.rotary_emb.inv_freq
    torch.testing.assert_close(theta, expected, rtol=3e-7, atol=0)
    assert torch.equal(theta[:8], expected[:8])  # those that turn fast, on which extensions do nothing or divide
    torch.testing.assert_close(ours(idx)[0], theirs(idx).logits, rtol=0, atol=1.5e-4)  # in float64 3e-4 to 1.4e-3


@torch.no_grad()
def test_what_is_called_harmless_changes_no_logits(write, peer):
    """All of it at once, in both libraries."""
    assert HARMLESS.keys() == set(' '.join(pretrained.HARMLESS.values()).split())
    plain, full = write(), changed(write('full'), **HARMLESS)
    expected = peer(plain)(tokens(2, 60)).logits
    for folder in (plain, full):
        torch.testing.assert_close(from_pretrained(folder)(tokens(2, 60))[0], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(peer(full)(tokens(2, 60)).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('arm', ['tied', 'wider heads', 'yarn'])
def test_greedy_generations_are_those_of_transformers(write, peer, arm):
    folder = write(**ARMS[arm])
    theirs, ours = peer(folder), from_pretrained(folder)
    for T in (1, 40):
        prompt = tokens(3, T)
        expected = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=30, do_sample=False,
                                   pad_token_id=0)
        assert torch.equal(ours.generate(prompt, 30, temperature=0), expected) and expected.shape == (3, T + 30)
        assert len(expected[:, T:].unique()) > 3


@pytest.mark.parametrize('arm', ['tied', 'wider heads', 'linear', 'yarn, all of it', 'llama3'])
@torch.no_grad()
def test_what_transformers_saves_is_read(write, peer, tmp_path, arm):
    """Its own spelling of config.json, and shards."""
    theirs = peer(write(**ARMS[arm]))
    theirs.save_pretrained(tmp_path / 'saved', max_shard_size='10KB')
    assert len(list((tmp_path / 'saved').glob('model-*.safetensors'))) > 2
    ours = from_pretrained(tmp_path / 'saved')
    torch.testing.assert_close(ours(tokens(2, 200))[0], theirs(tokens(2, 200)).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64], ids=str)
def test_weights_of_any_precision_become_float32(write, peer, dtype):
    folder = write(dtype=dtype)
    theirs, ours = peer(folder), from_pretrained(folder)
    assert all(p.dtype == torch.float32 for p in ours.parameters())
    torch.testing.assert_close(ours(tokens(2, 60))[0], theirs(tokens(2, 60)).logits, rtol=0, atol=1e-5)


def test_no_weight_is_in_memory_twice(write, monkeypatch):
    """
    The first weights of the model are never drawn. Its parameters are the tensors that were read. Each has its own
    storage, no file lies behind it, and at no time is more than the parts of one of them in memory beside them.
    """
    folder, now, most, state = write(), [0], [0], torch.get_rng_state()
    real = safetensors.safe_open

    class Open:
        def __init__(self, *arguments, **keywords):
            self.file = real(*arguments, **keywords)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.__exit__(*error)

        def __getattr__(self, name):
            return getattr(self.file, name)

        def get_tensor(self, name):
            tensor = self.file.get_tensor(name)
            now[0] += tensor.nbytes
            most[0] = max(most[0], now[0])
            weakref.finalize(tensor, lambda size=tensor.nbytes: now.__setitem__(0, now[0] - size))
            return tensor

    monkeypatch.setattr(safetensors, 'safe_open', Open)
    read = []

    def spy(name, load=pretrained.load_pretrained):
        read.append(load(name))
        return read[0]
    monkeypatch.setattr(pretrained, 'load_pretrained', spy)
    model = from_pretrained(folder)
    assert now[0] == 0 and most[0] == 4 * 32 * (32 + 2 * 16) == 4 * model.blocks[0].attention.qkv.weight.numel()
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == read[0]['model'][name].data_ptr(), name
        assert parameter.untyped_storage().nbytes() == parameter.nbytes, name
        assert not parameter.is_shared() and parameter.untyped_storage().filename is None, name
    before = model(tokens(1, 9))[0]
    (folder / 'model.safetensors').write_bytes(b'')  # nothing of it is needed any more
    assert torch.equal(model(tokens(1, 9))[0], before)


# ----------------------------------------------------------------------------------------------------------------------
# Surgery


@pytest.mark.parametrize('attention', ['spectral', 'bifocal'])
@pytest.mark.parametrize('arm', ['theta 500', 'wider heads', 'yarn', 'llama3'])
@torch.no_grad()
def test_surgery_keeps_the_function_and_opens_the_rotation(write, arm, attention):
    torch.manual_seed(1)  # of Phi
    folder, idx = write(**ARMS[arm]), tokens(2, 200)
    rope, noisy = from_pretrained(folder), from_pretrained(folder, attention=attention)
    exact = from_pretrained(folder, attention=attention, phase_std=0.0)
    torch.testing.assert_close(exact(idx)[0], rope(idx)[0], rtol=0, atol=1e-5)
    assert 1e-4 < (noisy(idx)[0] - rope(idx)[0]).abs().max() < 0.02
    for fixed, way in zip(ways(rope), ways(noisy)):
        assert torch.equal(way.Omega, fixed.theta.expand(2 if attention == 'spectral' else 1, -1))
        assert way.A.eq(1).all() and way.gain == fixed.gain
        assert 2e-4 < way.Phi.std() < 5e-3 and all(p.requires_grad for p in way.parameters())
    theta = geometric(rope.config).float()
    assert torch.equal(ways(rope)[0].theta, theta) == (arm in ('theta 500', 'wider heads'))
    for name, p in rope.named_parameters():
        assert torch.equal(p, dict(noisy.named_parameters())[name])


def test_overrides_are_fields_that_the_weights_allow(write):
    folder = write(num_attention_heads=8, num_key_value_heads=4, rope_theta=500.0)
    config = from_pretrained(folder, attention='bifocal', n_spectral_head=3, learn='frequency', log_scale=64,
                             rope='yarn:factor=2').config
    assert (config.n_spectral, config.learn, config.log_scale) == (3, 'frequency', 64)
    assert config.rope == 'yarn:factor=2,original=512,bits=32'
    assert from_pretrained(folder, rope='geometric').config.rope == 'geometric:bits=32'
    assert from_pretrained(folder, rope='ntk:factor=2,bits=64').config.rope == 'ntk:factor=2,bits=64'
    assert config.rope_base == 500.0 and config.block_size == 512
    for options, message in ((dict(attention='tapa'), 'rope to tapa is not a surgery'),
                             (dict(n_layer=3), 'n_layer=3: the weights in .*llama have n_layer=2'),
                             (dict(norm_eps=0.1), 'norm_eps=0.1: the weights'),
                             (dict(vocab_size=30), 'vocab_size=30: the weights'),
                             (dict(attention='spectral', rope_base=1e4), 'rope_base=10000.0: Omega comes from')):
        with pytest.raises(ValueError, match=message):
            from_pretrained(folder, **options)


# ----------------------------------------------------------------------------------------------------------------------
# What does not fit, and what is broken, is named


@pytest.mark.parametrize('changes, message', [
    (dict(model_type='qwen2'), "config.json: model_type='qwen2': must be 'llama' or 'mistral'"),
    (dict(model_type=None), 'model_type=None'),
    (dict(model_type=['llama']), r"model_type=\['llama'\]"),
    (dict(model_type='mistral'), 'sliding_window=None: must be written out in a mistral, even as null'),
    (dict(model_type='mistral', sliding_window=4096), 'sliding_window=4096: must be None'),
    (dict(architectures=['LlamaBidirectionalModel']), "architectures=.'LlamaBidirectionalModel'.: must be"),
    (dict(hidden_act='gelu'), "hidden_act='gelu': must be 'silu', or left out"),
    (dict(attention_bias=True), 'attention_bias=True: must be False'),
    (dict(mlp_bias=True), 'mlp_bias=True'),
    (dict(is_causal=False), 'is_causal=False: must be True, or left out'),
    (dict(is_causal=None), 'is_causal=None: must be True'),  # causal or not, by the kind of attention
    (dict(attention_chunk_size=128), 'attention_chunk_size=128: must be None'),
    (dict(logits_scaling=2.0), 'logits_scaling=2.0: must be left out, for what it does is not known here'),
    (dict(residual_multiplier=None), 'residual_multiplier=None: must be left out'),
    (dict(tie_word_embeddings='false'), "tie_word_embeddings='false': must be true or false"),
    (dict(tie_word_embeddings=1), 'tie_word_embeddings=1'),
    (dict(sliding_window=4096), 'sliding_window=4096: must be None'),
    (dict(use_sliding_window=True), 'use_sliding_window=True'),
    (dict(layer_types=['sliding_attention', 'full_attention']), 'layer_types=.*sliding_attention'),
    (dict(rope_interleaved=True), 'rope_interleaved=True'),
    (dict(quantization_config=dict(quant_method='gptq')), 'quantization_config=.*gptq'),
    (dict(auto_map=dict(AutoModel='own.Model')), 'auto_map=.*own.Model'),
    (dict(original_max_position_embeddings=128), 'original_max_position_embeddings=128'),
    (dict(partial_rotary_factor=0.5), 'partial_rotary_factor=0.5: must be 1'),
    (dict(rope_theta=None, rope_parameters=dict(rope_theta=1e4, partial_rotary_factor=0.5)), 'partial_rotary_factor'),
    (dict(rope_scaling=dict(type='dynamic', factor=2.0)), "'dynamic': must be one of default, linear, yarn, llama3"),
    (dict(rope_scaling=dict(rope_type='longrope', factor=2.0)), "rope_type='longrope'"),
    (dict(rope_scaling=dict(type='linear', rope_type='yarn', factor=2.0)), "rope_type='yarn': must be 'linear'"),
    (dict(rope_scaling=dict(rope_type=['yarn'], factor=2.0)), r"rope_type=\['yarn'\]: must be one of"),
    (dict(rope_scaling=dict(type='linear', factor=2.0), rope_parameters=dict(rope_theta=1e4)),
     "rope_parameters=..'rope_theta': 10000.0..: must be what rope_scaling is, or left out"),
    (dict(rope_scaling=dict(type='linear')), 'factor=None: must be a positive number'),
    (dict(rope_scaling=dict(type='linear', factor=0.5)), "json: rope='pi:factor=0.5,bits=32': factor must be at"),
    (dict(rope_scaling=dict(type='linear', factor='4')), "factor='4': must be a positive number"),
    (dict(rope_scaling=YARN | dict(mscale=1.0)), "mscale=1.0: must be left out with rope_type='yarn'"),
    (dict(rope_scaling=YARN | dict(truncate=False)), 'truncate=False: must be True'),
    (dict(rope_scaling=YARN | dict(beta_slow=40.0)), 'fast must be greater than slow=40'),
    (dict(rope_scaling=YARN | dict(attention_factor=-1.0)), 'attention_factor=-1.0'),
    (dict(rope_scaling={k: v for k, v in LLAMA3.items() if k != 'low_freq_factor'}), 'low_freq_factor=None'),
    (dict(rope_scaling=LLAMA3 | dict(low_freq_factor=4.0)), 'high must be greater than low=4'),
    (dict(rope_parameters=dict(rope_theta=500.0)), 'rope_theta=500.0: must be 10000.0, which it is elsewhere'),
    (dict(rope_scaling='yarn'), "rope_scaling='yarn': must be names and numbers"),
    (dict(rope_theta=None, rope_parameters=dict(full_attention=dict(rope_theta=5))), 'full_attention=.* left out'),
    (dict(rope_theta=-1), 'rope_theta=-1: must be a positive number'),
    (dict(hidden_size=None), 'hidden_size=None: must be a whole number'),
    (dict(num_hidden_layers='2'), "num_hidden_layers='2'"),
    (dict(vocab_size=0), 'vocab_size=0'),
    (dict(rms_norm_eps=None), 'rms_norm_eps=None'),
    (dict(num_key_value_heads=3), 'config.json: n_kv_head=3: must be 0'),
    (dict(head_dim=7), 'head_size=7: must be even'),
], ids=str)
def test_what_gpt_has_not_is_refused_by_name(write, changes, message):
    with pytest.raises(ValueError, match=message) as error:
        from_pretrained(changed(write(), **changes))
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('changes, message', [
    (dict(num_hidden_layers=3), r'llama: model.layers.2.input_layernorm.weight is missing, and config.json asks for'),
    (dict(num_hidden_layers=1), r'model.safetensors: model.layers.1.input_layernorm.weight has no place in the model'),
    (dict(vocab_size=31), r'lm_head.weight is \(29, 32\), and should be \(31, 32\) by config.json'),
    (dict(hidden_size=48), r'lm_head.weight is \(29, 32\), and should be \(29, 48\)'),
    (dict(num_key_value_heads=4), r'model.layers.0.self_attn.k_proj.weight is \(16, 32\), and should be \(32, 32\)'),
    (dict(num_attention_heads=8), r'model.layers.0.self_attn.k_proj.weight is \(16, 32\), and should be \(8, 32\)'),
    (dict(head_dim=16), r'self_attn.k_proj.weight is \(16, 32\), and should be \(32, 32\)'),
    (dict(intermediate_size=64), r'model.layers.0.mlp.down_proj.weight is \(32, 40\), and should be \(32, 64\)'),
    (dict(tie_word_embeddings=True), r'lm_head.weight is not model.embed_tokens.weight, to which config.json ties it'),
], ids=str)
def test_a_config_that_lies_is_found_out_by_the_tensors(write, changes, message):
    with pytest.raises(ValueError, match=message):
        from_pretrained(changed(write(), **changes))


def test_tensors_that_are_not_those_of_a_llama_are_named(write):
    def broken(change, name, message, **changes):
        folder = write(name, **changes)
        edit(folder, change)
        with pytest.raises(ValueError, match=message):
            from_pretrained(folder)

    weight = 'model.layers.1.self_attn.v_proj.weight'
    broken(lambda t: t.pop(weight), 'missing', f'{weight} is missing')
    broken(lambda t: t.pop('lm_head.weight'), 'no head', 'lm_head.weight is missing')
    broken(lambda t: t.update({weight: torch.zeros(16, 31)}), 'wrong',
           rf'model.safetensors: {weight} is \(16, 31\), and should be \(16, 32\)')
    broken(lambda t: t.update({weight: torch.zeros(512)}), 'flat', rf'{weight} is \(512,\)')
    broken(lambda t: t.update({weight: torch.zeros(16, 32, dtype=torch.int8)}), 'quantized',
           f'{weight} is I8: must be one of F64, F32, F16, BF16')
    broken(lambda t: t.update({'model.layers.0.self_attn.q_proj.bias': torch.zeros(32)}), 'bias',
           'self_attn.q_proj.bias has no place')
    broken(lambda t: t.update({'score.weight': torch.zeros(2, 32)}), 'head', 'score.weight has no place')


def test_what_is_saved_twice_must_be_the_same_twice(write):
    tied = write('tied', tie_word_embeddings=True)
    expected = from_pretrained(tied)(tokens(1, 9))[0]
    edit(tied, lambda t: t.update({'lm_head.weight': t['model.embed_tokens.weight'].clone()}))
    assert torch.equal(from_pretrained(tied)(tokens(1, 9))[0], expected)
    edit(tied, lambda t: t['lm_head.weight'][3, 5].mul_(1 + 2e-7))  # a bit or two
    with pytest.raises(ValueError, match='lm_head.weight is not model.embed_tokens.weight'):
        from_pretrained(tied)
    old, name = write('old', rope_theta=500.0), 'model.layers.0.self_attn.rotary_emb.inv_freq'
    edit(old, lambda t: t.update({name: (500.0 ** -(torch.arange(0, 8, 2) / 8)).bfloat16()}))
    from_pretrained(old)
    edit(old, lambda t: t.update({name: 10000.0 ** -(torch.arange(0, 8, 2) / 8)}))
    with pytest.raises(ValueError, match=f'{name} is not theta, which config.json defines'):
        from_pretrained(old)


def test_shards_are_read_and_missing_or_broken_ones_named(write):
    folder = write()
    expected = from_pretrained(folder)(tokens(1, 9))[0]
    files = shard(folder)
    assert torch.equal(from_pretrained(folder)(tokens(1, 9))[0], expected)
    content = files[1].read_bytes()
    for cut in (len(content) - 4, len(content) // 2, 100, 5, 0):
        files[1].write_bytes(content[:cut])
        with pytest.raises(ValueError, match='model-00002-of-00003.safetensors is broken, or cut short'):
            from_pretrained(folder)
    files[1].unlink()
    with pytest.raises(FileNotFoundError, match='-00002-of-00003.safetensors is missing, and .*index.json lists it'):
        from_pretrained(folder)
    files[1].write_bytes(files[0].read_bytes())  # another shard under its name
    with pytest.raises(ValueError, match='-00002-of-00003.safetensors: .* is in model-00001-of-00003.safetensors too'):
        from_pretrained(folder)
    files[1].write_bytes(content)
    tensors = load_file(files[1])
    name, _ = tensors.popitem()
    save_file(tensors, files[1])
    with pytest.raises(ValueError, match=f'{name} is missing, and config.json asks for it'):
        from_pretrained(folder)
    index = folder / 'model.safetensors.index.json'
    for text, message in (('{"weight_map": []}', 'index.json has no weight_map'), ('[1]', 'holds a list'),
                          ('{"weight_map": {"a": 1, "b": "c"}}', 'no weight_map of names to files'),
                          ('{"weight', 'index.json is broken')):
        index.write_text(text)
        with pytest.raises(ValueError, match=message):
            from_pretrained(folder)


def test_a_folder_that_is_no_checkpoint_is_named(write, tmp_path):
    folder = write()
    for name, message in (('model.safetensors', 'llama has no weights: neither model.safetensors nor .*.index.json'),
                          ('config.json', 'config.json is missing: not a checkpoint')):
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=message):
            from_pretrained(folder)
    (folder / 'config.json').write_text('{"model_type": ')
    with pytest.raises(ValueError, match='config.json is broken'):
        from_pretrained(folder)
    for name in (tmp_path / 'nowhere', 'nowhere', 'a/b/c', ''):
        with pytest.raises(FileNotFoundError):
            from_pretrained(name)


def test_pickles_are_refused_with_a_way_to_convert_them(write):
    folder = write()
    (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
    with pytest.raises(FileNotFoundError, match='Pickles .* are not read, for .*save_pretrained.NEW. .* converts'):
        from_pretrained(folder)


# ----------------------------------------------------------------------------------------------------------------------
# The hub, up to the download


REVISION = 40 * 'a'


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub of four models: owner/here can be read. The others are gated, missing and silent, as their owners say."""
    protocol_version = 'HTTP/1.1'
    folder, stopped = None, threading.Event()

    def do_GET(self):
        owner, file = self.path.removeprefix('/api/models').split('/')[1], self.folder / self.path.rpartition('/')[2]
        status, headers, content = 200, {}, json.dumps(dict(id='owner/here', sha=REVISION, siblings=[]))
        if owner == 'silent':
            return self.stopped.wait()
        if owner == 'missing':
            status, headers = 401, {'X-Error-Code': 'RepoNotFound'}
        elif '/tree/' in self.path:
            content = json.dumps([dict(type='file', path=path.name, size=path.stat().st_size, oid=40 * '0')
                                  for path in self.folder.iterdir()])
        elif '/resolve/' in self.path and owner == 'gated':
            status, headers = 403, {'X-Error-Code': 'GatedRepo', 'X-Error-Message': 'Ask the owner.'}
        elif '/resolve/' in self.path:
            content = file.read_bytes()
            headers = {'X-Repo-Commit': REVISION, 'ETag': f'"{hashlib.sha1(content).hexdigest()}"'}
        content = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        for name, value in (headers | {'Content-Length': len(content)}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content if self.command == 'GET' else b'')

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


def test_a_hub_gives_a_checkpoint_or_a_reason(write, tmp_path):
    """huggingface_hub and a hub on this machine. Its client cannot be told another hub once imported: a process."""
    pytest.importorskip('huggingface_hub')
    Hub.folder = folder = write()
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = ('import sys; from lab import hub; hub.PATIENCE = 3\nfor name in sys.argv[1:]:\n'
            '    try: print(hub.find_folder(name))\n    except ValueError as error: print(error)')
    environment = os.environ | dict(
        HF_ENDPOINT=f'http://127.0.0.1:{server.server_port}', HF_HOME=str(tmp_path / 'home'), NO_PROXY='127.0.0.1',
        HF_HUB_DISABLE_XET='1', HF_HUB_DISABLE_TELEMETRY='1')

    def find(*names):
        process = subprocess.run([sys.executable, '-c', code, *names], cwd=ROOT, env=environment, timeout=100,
                                 stdout=subprocess.PIPE, text=True)
        return process.stdout.splitlines()
    try:
        here, gated, missing, silent = find('owner/here', 'gated/model', 'missing/model', 'silent/model')
    finally:
        Hub.stopped.set()
        server.shutdown()
        server.server_close()
    assert sorted(os.listdir(here)) == ['config.json', 'model.safetensors'] and str(tmp_path / 'home') in here
    assert torch.equal(from_pretrained(here)(tokens(1, 9))[0], from_pretrained(folder)(tokens(1, 9))[0])
    none = ': there is no such folder, and the hub gave none: '
    assert gated == (f'gated/model{none}it is gated: accept its terms at https://huggingface.co/gated/model, '
                     'then run hf auth login (Ask the owner.)')
    assert missing == f'missing/model{none}it has none of that name, or a private one, for which to run hf auth login'
    assert silent == f'silent/model{none}no answer within 3 s'
    later, refused = find('owner/here', 'owner/other')  # the hub is gone
    assert later == here and refused.startswith(f'owner/other{none}') and 'refused' in refused


def test_a_hub_that_does_not_answer_leaves_an_earlier_download(write, monkeypatch):
    library, folder, forever = pytest.importorskip('huggingface_hub'), write(), threading.Event()
    assert hub.PATIENCE <= 30
    monkeypatch.setattr(hub, 'PATIENCE', 0.1)
    monkeypatch.setattr(library, 'model_info', lambda name: forever.wait(20))
    calls = []

    def download(name, **options):
        calls.append(options)
        if name == 'owner/unknown':
            raise library.errors.LocalEntryNotFoundError('no such copy')
        return str(folder)
    monkeypatch.setattr(library, 'snapshot_download', download)
    assert hub.find_folder('owner/earlier') == folder == hub.find_folder('owner/earlier')
    assert [options['local_files_only'] for options in calls] == [True]  # asked once a process
    with pytest.raises(ValueError, match='owner/unknown: .* the hub gave none: no answer within 0.1 s$'):
        hub.find_folder('owner/unknown')
    forever.set()


def test_a_slip_in_the_name_of_a_folder_asks_no_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, 'download', lambda name: pytest.fail(f'asked for {name}'))
    (tmp_path / 'out').mkdir()
    for name in ('out/nothing', './nothing', '../nothing'):
        with pytest.raises(FileNotFoundError, match=f'{name}: there is no such folder in '):
            from_pretrained(name)


def test_missing_packages_are_named(write, monkeypatch):
    folder, real = write(), builtins.__import__
    for package, name in (('safetensors', folder), ('huggingface_hub', 'owner/model')):
        def without(module, *arguments, **keywords):
            if module.partition('.')[0] == package:
                raise ImportError(module)
            return real(module, *arguments, **keywords)
        with monkeypatch.context() as patched, pytest.raises(ImportError, match=f'{name}.* pip install {package}'):
            patched.setattr(builtins, '__import__', without)
            from_pretrained(name)


def test_the_model_alone_needs_none_of_this():
    """model.py and train.py import without safetensors, transformers, the hub, or the lab."""
    code = ('import sys; sys.modules.update(safetensors=None, transformers=None, huggingface_hub=None); '
            'import model, train; assert not any(name.startswith("lab") for name in sys.modules)')
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0


# ----------------------------------------------------------------------------------------------------------------------
# Runs of train.py from a checkpoint


@pytest.fixture
def llama(write, code):
    """
    The arguments of train.py that start from a Llama as small as the runs of these tests, on text in its own tokens;
    and its folder.
    """
    folder = write_tokenizer(write('small', vocab_size=280, num_hidden_layers=1, hidden_size=16, rope_theta=500.0))
    return [f'--init_from=hf:{folder}', f'--task=text:path={code},encoding=hf:{folder}'], folder


def assert_moved(before, after, names=()):
    """The parameters in `names` of the ways to attend have moved; everything else is what it was, bit for bit."""
    assert before.keys() == after.keys()
    for key in before:
        moves = key.rpartition('.')[2] in names
        assert torch.equal(before[key], after[key]) != moves, key
    assert {key.rpartition('.')[2] for key in before if '.way.' in key} >= set(names)


def test_a_llama_is_trained_measured_and_sampled(run, llama):
    import train
    start, folder = llama
    this = run().train(*start, '--attention=bifocal', '--phase_std=0.0')
    saved = this.checkpoint()
    shape = dict(vocab_size=280, n_layer=1, n_head=4, n_kv_head=2, n_embd=16, n_inner=40, rope_base=500.0,
                 block_size=512, attention='bifocal', rope='geometric:bits=32')
    assert saved['model_args'] | shape == saved['model_args']
    assert json.loads((this.folder / 'config.json').read_text())['model_args'] == saved['model_args']
    task = start[1].removeprefix('--task=')
    x, y = train.make_task(task).sample(train.stream('validation', task), 8, 16, 'validation')
    first = train.evaluate(from_pretrained(folder), torch.from_numpy(x), torch.from_numpy(y), 4)
    assert (this.log()[0]['val_loss'], this.log()[0]['val_acc']) == pytest.approx(first[:2], rel=1e-5)
    assert not torch.equal(saved['model']['embedding.weight'], from_pretrained(folder).embedding.weight)
    for script, message in (('eval.py', 'accuracy'), ('sample.py', '')):
        command = [sys.executable, script, str(this.folder), '--n=4', '--device=cpu', start[1]]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert process.returncode == 0 and message in process.stdout, process.stderr


def test_a_second_run_needs_no_shape(run, write, code, capsys):
    """The options that say what the weights were trained with are those of best.pt, and are printed."""
    folder = write_tokenizer(write(vocab_size=280, num_hidden_layers=3, hidden_size=24, num_attention_heads=6,
                                   head_dim=6, rope_theta=500.0, rope_scaling=LLAMA3))
    start, task = f'--init_from=hf:{folder}', f'--task=text:path={code},encoding=hf:{folder}'
    defaults = ['--n_layer=2', '--n_embd=64']  # of train.py, which the runs of these tests replace
    first = run('first').train(start, task, *defaults).checkpoint('best.pt')
    capsys.readouterr()
    second = run('second').train(f'--init_from={run("first").folder}/best.pt', task, *defaults)
    printed = capsys.readouterr().out
    for name in ('n_layer=3', 'n_head=6', 'n_kv_head=2', 'rope_base=500.0', 'rope=llama3:'):
        assert name in printed.split('kept, for they were left at their defaults: ')[1]
    assert second.checkpoint()['model_args'] == first['model_args'] | dict(block_size=16)
    assert second.log()[0]['val_loss'] == pytest.approx(first['best_val_loss'], rel=1e-5)
    with pytest.raises(ValueError, match='n_layer=4: the weights in .*best.pt have n_layer=3'):
        run('third').train(f'--init_from={run("first").folder}/best.pt', task, *defaults, '--n_layer=4')


def test_what_train_is_told_of_the_model_must_fit_the_llama(run, llama):
    start, folder = llama
    for bad, message in ((['--n_layer=3'], 'n_layer=3: the weights in .*small have n_layer=1'),
                         (['--attention=tapa'], 'rope to tapa is not a surgery'),
                         (['--rope_base=600.0'], 'rope_base=600.0: must be left out, for theta is that of hf:.*=500.0'),
                         (['--attention=spectral', '--rope_base=600.0'], 'rope_base=600.0: must be left out'),
                         (['--init_from=hf:nowhere/a/b'], 'nowhere/a/b: there is no such folder'),
                         ([f'--init_from={folder}'], f'{folder} is a folder: must be hf:{folder} for a Llama')):
        this = run('bad')
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            this.train(*start, *bad)
        assert not this.folder.exists()
    this = run('good').train(*start, '--attention=spectral', '--learn=frequency', '--log_scale=32',
                             '--rope=pi:factor=2', '--rope_base=500')
    config = this.checkpoint()['model_args']
    assert config['learn'] == 'frequency' and config['log_scale'] == 32 and config['rope_base'] == 500.0
    assert config['rope'] == 'pi:factor=2,bits=32'


@pytest.mark.parametrize('task', ['dyck', 'text'])
def test_a_task_in_other_tokens_is_refused(run, llama, task):
    start, folder = llama
    with pytest.raises(ValueError, match=f'task {task}.* is not in its tokens: must be text:encoding=hf:{folder}'):
        run().train(start[0], f'--task={task}')
    assert not run().folder.exists()


def test_tokens_are_compared_and_not_only_their_names(run, write, llama, code):
    start, folder = llama
    run().train(start[0], f'--task=text:path={code},encoding=hf:{folder}/')  # another spelling of the folder
    other = write_tokenizer(write('other', vocab_size=280), text='another text, with other pairs\n')
    with pytest.raises(ValueError, match='encoding=hf:.*other is not in its tokens'):
        run('bad').train(start[0], f'--task=text:path={code},encoding=hf:{other}')
    small = write_tokenizer(write('few', num_hidden_layers=1, hidden_size=16))
    with pytest.raises(ValueError, match='few: it knows 29 tokens, and task .* has 263'):
        run('bad').train(f'--init_from=hf:{small}', f'--task=text:path={code},encoding=hf:{small}')
    assert not run('bad').folder.exists()


@pytest.mark.parametrize('attention, learn, names', [('spectral', 'frequency', {'Omega'}),
                                                     ('bifocal', 'frequency,amplitude,phase', {'Omega', 'A', 'Phi'})])
def test_with_a_learning_rate_of_0_only_the_rotation_moves(run, llama, attention, learn, names):
    start, folder = llama
    this = run().train(*start, f'--attention={attention}', f'--learn={learn}', '--learning_rate=0',
                       '--phase_std=0.0', '--weight_decay=1.0', '--seed=5')
    before = from_pretrained(folder, attention=attention, phase_std=0.0).state_dict()
    assert_moved(before, this.checkpoint()['model'], names)


def test_a_run_from_a_llama_resumes_bit_for_bit(run, llama):
    """Nine updates, or nine of which a kill takes the last three."""
    start, _ = llama
    arguments = (*start, '--attention=bifocal', '--learning_rate=0', '--max_iters=9')
    whole = run('whole').train(*arguments)
    killed, save = run('killed'), torch.save

    def save_and_die(state, file):
        if state['iter'] == 9:
            raise InterruptedError
        save(state, file)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(InterruptedError):
        patched.setattr(torch, 'save', save_and_die)
        killed.train(*arguments)
    assert killed.checkpoint()['iter'] == 6
    killed.train(*arguments, '--init_from=resume')
    assert whole.log() == killed.log() and killed.checkpoint()['iter'] == 9
    for name, tensor in whole.checkpoint()['model'].items():
        assert torch.equal(tensor, killed.checkpoint()['model'][name]), name
    assert killed.checkpoint()['options']['init_from'].startswith('hf:')


# ----------------------------------------------------------------------------------------------------------------------
# Tokenizers


def write_tokenizer(folder, text='def f(x): return x\n', **changes):
    """A byte-level BPE of 263 tokens; its last, <|end|>, is the one that config.json names. Returns the folder."""
    tokenizers = pytest.importorskip('tokenizers', reason='the tokenizer of the checkpoints')
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)  # as checkpoints have it
    alphabet = byte_level.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=262, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text] * 9 + ['[ ]'] * 99, trainer)
    tokenizer.add_special_tokens(['<|end|>'])
    tokenizer.enable_truncation(4)  # as checkpoints have it, for the sentences they were made for
    tokenizer.save(str(folder / 'tokenizer.json'))
    return changed(folder, **dict(eos_token_id=262) | changes)


def test_a_tokenizer_reads_and_writes_as_its_library(write):
    folder = write_tokenizer(write(vocab_size=280))
    reference = pytest.importorskip('tokenizers').Tokenizer.from_file(str(folder / 'tokenizer.json'))
    reference.no_truncation()
    tokenizer, text = pretrained.Tokenizer(folder), 'def f(x): é<|end|> [ ]'
    ids = tokenizer.encode_ordinary(text)
    assert tokenizer.encode_ordinary('def f(x)') == reference.encode('def f(x)').ids
    assert len(ids) < len(text.encode()) and 262 not in ids and tokenizer.decode(ids) == text
    assert tokenizer.encode_ordinary_batch([text, 'x']) == [ids, tokenizer.encode_ordinary('x')]
    assert tokenizer.n_vocab == 263 and tokenizer.eot_token == 262
    assert tokenizer.decode_single_token_bytes(262) == b'<|end|>'
    with pytest.raises(KeyError):
        tokenizer.decode_single_token_bytes(263)
    decoded, places = tokenizer.decode_with_offsets(ids)
    assert decoded == text and places[0] == 0 and places == sorted(places) and len(places) == len(ids)
    assert [text[a:b] for a, b in zip(places, places[1:])][0] == tokenizer.decode(ids[:1])
    assert tokenizer.decode_with_offsets([262]) == ('', [])  # the text <|end|> is read as other tokens
    changed(folder, eos_token_id=[262, 3])
    assert pretrained.Tokenizer(folder).eot_token == 262  # the first of several


@pytest.mark.parametrize('spoil, error, message', [
    (lambda folder: (folder / 'tokenizer.json').unlink(), FileNotFoundError, 'tokenizer.json is missing'),
    (lambda folder: (folder / 'tokenizer.json').write_text('{"model": 3'), ValueError, 'tokenizer.json is broken'),
    (lambda folder: changed(folder, eos_token_id=None), ValueError, 'eos_token_id=None: must be a token of'),
    (lambda folder: changed(folder, eos_token_id=263), ValueError, 'eos_token_id=263: must be a token of'),
], ids=['missing', 'broken', 'no end', 'an end beyond the vocabulary'])
def test_tokenizers_that_cannot_be_used_are_refused(write, spoil, error, message):
    folder = write_tokenizer(write())
    spoil(folder)
    with pytest.raises(error, match=message):
        pretrained.Tokenizer(folder)


def test_a_missing_tokenizers_library_is_named(write, monkeypatch):
    folder = write_tokenizer(write())
    monkeypatch.setitem(sys.modules, 'tokenizers', None)
    with pytest.raises(ImportError, match='pip install tokenizers'):
        pretrained.Tokenizer(folder)


@pytest.fixture
def code(tmp_path):
    """A folder of Python files, some for each split."""
    folder = tmp_path / 'code'
    folder.mkdir()
    for i in range(40):
        (folder / f'{i}.py').write_text(f'def f{i}(x):\n    return "é<|end|>" + x[{i}] + [ ]\n' * 12)
    return folder


def test_a_llama_is_operated_on_and_trained_on_text_in_its_own_tokens(run, write, code):
    folder = write_tokenizer(write(vocab_size=280, num_hidden_layers=1, hidden_size=16))
    start, task = f'--init_from=hf:{folder}', f'--task=text:path={code},encoding=hf:{folder}'
    this = run().train(start, task, '--attention=spectral', '--learning_rate=0', '--phase_std=0.0')
    assert this.checkpoint()['model_args']['vocab_size'] == 280  # the tokenizer has fewer
    before = from_pretrained(folder, attention='spectral', phase_std=0.0).state_dict()
    assert_moved(before, this.checkpoint()['model'], {'Omega', 'A', 'Phi'})
    command = [sys.executable, 'sample.py', str(this.folder), '--prompt=def f', '--length=5', '--device=cpu', task]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0 and 'def f' in process.stdout, process.stderr


def test_the_config_for_a_checkpoint_of_the_hub(run, write, code):
    """On a checkpoint of another size, in place of the download."""
    import train
    from configurator import configure
    config = str(ROOT / 'config/surgery_code.py')
    options = configure(dict(vars(train)), [config])
    assert options['init_from'].startswith('hf:') and options['task'] == f'text:encoding={options["init_from"]}'
    assert options['learning_rate'] == 0 and options['spectral_lr'] > 0
    folder = write_tokenizer(write(vocab_size=280))
    this = run().train(config, f'--init_from=hf:{folder}', f'--task=text:path={code},encoding=hf:{folder}',
                       f'--out_dir={run().folder}', '--max_iters=2', '--block_size=64', '--n_layer=2', '--n_embd=64',
                       '--eval_sequences=4', '--device=cpu')
    before = from_pretrained(folder, attention='spectral', phase_std=0.0).state_dict()
    after = this.checkpoint()['model']
    before |= {name: weight for name, weight in after.items() if name.endswith('.Phi')}  # whose start was drawn
    assert_moved(before, after, {'Omega', 'A'})
