"""Llama checkpoints: beside transformers, operated on, and refused where they do not fit."""

import builtins
import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

from lab import hub, pretrained, surgery
from lab.frequencies import geometric
from lab.surgery import from_pretrained
from lab.tests.conftest import ROOT, attentions
from model import UserError

safetensors = pytest.importorskip('safetensors', reason='the format of the checkpoints')
from safetensors.torch import load_file, save_file  # noqa: E402

CONFIG = dict(
    architectures=['LlamaForCausalLM'], model_type='llama', vocab_size=29, hidden_size=32,
    intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    hidden_act='silu', max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0,
    rope_scaling=None, tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
    attention_dropout=0.0, pretraining_tp=1, eos_token_id=None, torch_dtype='float32')
LINEAR = dict(rope_type='linear', factor=4.0)
YARN = dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=128)
YARN_ALL = YARN | dict(attention_factor=1.3, beta_fast=8.0, beta_slow=3.0, truncate=True)
LLAMA3 = dict(rope_type='llama3', factor=8.0, original_max_position_embeddings=128,
              low_freq_factor=1.0, high_freq_factor=4.0)
ARMS = {
    'grouped': dict(),
    'one key head': dict(num_key_value_heads=1),
    'a key head a query head': dict(num_key_value_heads=None),
    'tied': dict(tie_word_embeddings=True),
    'wider heads': dict(head_dim=12),
    'narrower heads': dict(head_dim=4, num_key_value_heads=1),
    'theta 500': dict(rope_theta=500.0),
    'no theta': dict(rope_theta=...),
    'epsilon': dict(rms_norm_eps=0.01),
    'linear': dict(rope_scaling=LINEAR, rope_theta=500000),
    'linear, an old spelling': dict(rope_scaling=dict(type='linear', factor=2.0)),
    'yarn': dict(rope_scaling=YARN),
    'yarn, all of it': dict(rope_scaling=YARN_ALL, head_dim=16),
    'yarn, from its full length': dict(rope_scaling=dict(type='yarn', factor=2.0)),
    'llama3': dict(rope_scaling=LLAMA3, rope_theta=500000.0, head_dim=16),
    'llama3, other numbers': dict(
        rope_scaling=LLAMA3 | dict(low_freq_factor=0.5, high_freq_factor=9.0), head_dim=16),
    'rope_parameters': dict(rope_theta=..., rope_parameters=LLAMA3 | dict(rope_theta=3000.0)),
    'rope_parameters, again': dict(rope_theta=..., rope_parameters=YARN, rope_scaling=YARN),
    'swish': dict(hidden_act='swish', activation='swiglu', is_causal=True),
    'mistral': dict(model_type='mistral', architectures=['MistralForCausalLM'],
                    sliding_window=None),
}
HARMLESS = dict(  # a value for each key that changes no logits, mostly not the default
    _name_or_path='a/b', name_or_path='a/b', _commit_hash='c0ffee', transformers_version='4.40.1',
    is_llama_config=True, unsloth_fixed=True, unsloth_version='2024.9', bos_token_id=3,
    eos_token_id=[4, 5], pad_token_id=6, tokenizer_class='LlamaTokenizer', model_max_length=7,
    max_sequence_length=8, initializer_range=0.9, attention_dropout=0.5, pretraining_tp=4,
    chunk_size_feed_forward=2, use_cache=False, torch_dtype='bfloat16', dtype='bfloat16',
    _attn_implementation_autoset=True, output_attentions=True, output_hidden_states=True,
    return_dict=True, return_dict_in_generate=True, id2label={'0': 'a', '1': 'b'},
    label2id={'a': 0, 'b': 1}, num_labels=2, problem_type='regression', finetuning_task='x',
    task_specific_params={'x': {}}, do_sample=True, temperature=0.1, top_k=1, top_p=0.1,
    typical_p=0.1, max_length=3, min_length=2, early_stopping=True, num_beams=2,
    num_return_sequences=2, length_penalty=2.0, repetition_penalty=9.0, no_repeat_ngram_size=1,
    bad_words_ids=[[2]]) | {'transformers.js_config': {'dtype': 'q4'}}
METADATA = {'format': 'pt'}
INDEX = 'model.safetensors.index.json'


def make_tensors(config):
    """Random weights for a config.json. No norm is 1 everywhere, which could hide another."""
    generator = torch.Generator().manual_seed(1)
    C, inner, V = config['hidden_size'], config['intermediate_size'], config['vocab_size']
    nh = config['num_attention_heads']
    hs = config.get('head_dim') or C // nh
    kv = (config['num_key_value_heads'] or nh) * hs
    layer = {
        'self_attn.q_proj': (nh * hs, C), 'self_attn.k_proj': (kv, C), 'self_attn.v_proj': (kv, C),
        'self_attn.o_proj': (C, nh * hs), 'mlp.gate_proj': (inner, C), 'mlp.up_proj': (inner, C),
        'mlp.down_proj': (C, inner), 'input_layernorm': (C,), 'post_attention_layernorm': (C,)}
    shapes = {'model.embed_tokens': (V, C), 'model.norm': (C,)}
    for i in range(config['num_hidden_layers']):
        shapes |= {f'model.layers.{i}.{name}': shape for name, shape in layer.items()}
    if not config['tie_word_embeddings']:
        shapes['lm_head'] = (V, C)
    return {f'{name}.weight': 0.15 * torch.randn(shape, generator=generator) + (len(shape) == 1)
            for name, shape in shapes.items()}


@pytest.fixture
def write(tmp_path):
    """write('name', **changes): a folder with weights and CONFIG, changed; ... leaves a key out."""
    def write(name='llama', dtype=torch.float32, **changes):
        config = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
        folder = tmp_path / name
        folder.mkdir()
        (folder / 'config.json').write_text(json.dumps(config))
        tensors = {key: tensor.to(dtype) for key, tensor in make_tensors(config).items()}
        save_file(tensors, folder / 'model.safetensors', METADATA)
        return folder
    return write


def peer(folder):
    """The same folder as transformers reads it."""
    transformers = pytest.importorskip('transformers', reason='the peer to compare with')
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def edit(folder, change):
    """Change the weights of a folder: `change` gets {name: tensor}."""
    tensors = load_file(folder / 'model.safetensors')
    change(tensors)
    save_file(tensors, folder / 'model.safetensors', METADATA)


def changed(folder, **changes):
    """The folder, after its config.json has been changed."""
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps(config | changes))
    return folder


def shard(folder):
    """Three shards and an index in place of the one file of a folder."""
    tensors = load_file(folder / 'model.safetensors')
    names = sorted(tensors)
    files = [folder / f'model-0000{i + 1}-of-00003.safetensors' for i in range(3)]
    for i, file in enumerate(files):
        save_file({name: tensors[name] for name in names[i::3]}, file, METADATA)
    places = {name: files[i % 3].name for i, name in enumerate(names)}
    (folder / INDEX).write_text(json.dumps(dict(weight_map=places)))
    (folder / 'model.safetensors').unlink()
    return files


def tokens(B, T):
    return torch.randint(29, (B, T), generator=torch.Generator().manual_seed(2))


def logits(model, T=60):
    with torch.no_grad():
        result = model(tokens(2, T))
    return result[0] if isinstance(result, tuple) else result.logits


def assert_close(model, other, T=60, atol=1e-5):
    torch.testing.assert_close(logits(model, T), logits(other, T), rtol=0, atol=atol)


def refuse(folder, message):
    with pytest.raises(UserError, match=message) as error:
        from_pretrained(folder)
    assert '\n' not in str(error.value)


# Beside transformers


@pytest.mark.parametrize('arm', ARMS)
def test_logits_are_those_of_transformers(write, arm):
    folder = write(**ARMS[arm])
    theirs, ours = peer(folder), from_pretrained(folder)
    assert logits(ours).std() > 0.3 and logits(ours).dtype == torch.float32
    for T in (1, 50, 512):
        assert_close(ours, theirs, T)


@pytest.mark.parametrize('scaling', [None, LINEAR, YARN, LLAMA3], ids=str)
def test_theta_is_rounded_as_transformers_rounds_it(write, scaling):
    """Queries and keys 5 times larger see sharply. At position 4096, theta's last digit shows."""
    if scaling and 'original_max_position_embeddings' in scaling:
        scaling = scaling | dict(original_max_position_embeddings=4096)
    folder = write(rope_scaling=scaling, rope_theta=500000.0, head_dim=64, num_hidden_layers=1,
                   max_position_embeddings=8192)
    edit(folder, lambda t: [t[name].mul_(5) for name in t if 'q_proj' in name or 'k_proj' in name])
    theirs, ours = peer(folder), from_pretrained(folder)
    assert torch.equal(attentions(ours)[0].theta, theirs.model.rotary_emb.inv_freq)
    with torch.no_grad():
        ours, theirs = ours(tokens(1, 4096))[0], theirs(tokens(1, 4096)).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_what_is_called_harmless_changes_no_logits(write):
    """All of it at once, in both libraries."""
    assert HARMLESS.keys() == set(' '.join(pretrained.HARMLESS.values()).split())
    plain, full = write(), changed(write('full'), **HARMLESS)
    for model in (peer(full), from_pretrained(plain), from_pretrained(full)):
        assert_close(model, peer(plain))


@pytest.mark.parametrize('arm', ['tied', 'wider heads', 'linear', 'yarn, all of it', 'llama3'])
def test_what_transformers_saves_is_read_and_generates_the_same(write, tmp_path, arm):
    """Its own spelling of config.json, and shards."""
    theirs = peer(write(**ARMS[arm]))
    theirs.save_pretrained(tmp_path / 'saved', max_shard_size='10KB')
    assert len(list((tmp_path / 'saved').glob('model-*.safetensors'))) > 2
    ours = from_pretrained(tmp_path / 'saved')
    assert_close(ours, theirs, 200)
    prompt = tokens(3, 40)
    expected = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=30,
                               do_sample=False, pad_token_id=0)
    assert torch.equal(ours.generate(prompt, 30, temperature=0), expected)
    assert len(expected[:, 40:].unique()) > 3


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64], ids=str)
def test_weights_of_any_precision_become_float32(write, dtype):
    folder = write(dtype=dtype)
    ours = from_pretrained(folder)
    assert all(p.dtype == torch.float32 for p in ours.parameters())
    assert_close(ours, peer(folder))


@pytest.mark.parametrize('tied', [False, True])
def test_no_weight_is_in_memory_twice(write, monkeypatch, tied):
    """
    The parameters are the tensors that were read, in storage of their own, and no file lies
    behind it. At no time is more than the parts of one parameter in memory beside them.
    """
    folder, real = write(tie_word_embeddings=tied), safetensors.safe_open
    sizes, most = {}, [0]

    def read(file, name):
        tensor = file.get_tensor(name)
        sizes[id(tensor)] = tensor.nbytes
        most[0] = max(most[0], sum(sizes.values()))
        weakref.finalize(tensor, sizes.pop, id(tensor))
        return tensor

    @contextlib.contextmanager
    def watched(*arguments, **keywords):
        with real(*arguments, **keywords) as file:
            yield SimpleNamespace(keys=file.keys, get_slice=file.get_slice,
                                  get_tensor=functools.partial(read, file))

    monkeypatch.setattr(safetensors, 'safe_open', watched)
    saved = pretrained.load_pretrained(folder)
    state = torch.get_rng_state()
    monkeypatch.setattr(surgery, 'load_pretrained', lambda name: saved)
    model = from_pretrained(folder)
    assert not sizes and most[0] == attentions(model)[0].qkv.weight.nbytes
    assert torch.equal(torch.get_rng_state(), state)  # no first weights are sampled
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == saved['model'][name].data_ptr(), name
        assert parameter.untyped_storage().nbytes() == parameter.nbytes, name
        assert not parameter.is_shared() and parameter.untyped_storage().filename is None, name
    assert (model.lm_head.weight is model.embedding.weight) == tied
    table = [saved['model'][name] for name in ('lm_head.weight', 'embedding.weight')]
    assert (table[0] is table[1]) == tied
    before = logits(model)
    (folder / 'model.safetensors').write_bytes(b'')  # nothing of it is needed any more
    assert torch.equal(logits(model), before)


# Surgery


@pytest.mark.parametrize('attention, rows', [('spectral', 2), ('bifocal', 1)])
@pytest.mark.parametrize('arm', ['theta 500', 'wider heads', 'yarn', 'llama3'])
def test_surgery_keeps_the_function_and_opens_the_rotation(write, arm, attention, rows):
    folder = write(**ARMS[arm])
    rope, opened = from_pretrained(folder), from_pretrained(folder, attention, phase_std=0.0)
    assert_close(opened, rope, 200)
    assert opened.config == dataclasses.replace(rope.config, attention=attention, phase_std=0.0)
    for fixed, learned in zip(attentions(rope), attentions(opened)):
        assert torch.equal(learned.Omega, fixed.theta.expand(rows, -1))
        assert learned.A.eq(1).all() and learned.gain == fixed.gain
    theta = geometric(rope.config).float()
    assert torch.equal(attentions(rope)[0].theta, theta) != (arm in ['yarn', 'llama3'])
    for name, p in rope.named_parameters():
        assert torch.equal(p, opened.get_parameter(name))


def test_options_are_fields_that_the_weights_allow(write):
    folder = write(num_attention_heads=8, num_key_value_heads=4, rope_theta=500.0)
    model = from_pretrained(folder, 'bifocal', n_spectral_head=3, learn='frequency')
    assert attentions(model)[0].n_spectral == 3 and not attentions(model)[0].A.requires_grad
    assert (model.config.rope_base, model.config.block_size) == (500.0, 512)
    for rope, expected in [('geometric', 'geometric:bits=32'),
                           ('yarn:factor=2', 'yarn:factor=2,original=512,bits=32'),
                           ('ntk:factor=2,bits=64', 'ntk:factor=2,bits=64')]:
        assert from_pretrained(folder, rope=rope).config.rope == expected
    with pytest.raises(UserError, match='norm_eps=0.1: the weights in .*llama have norm_eps=1e-05'):
        from_pretrained(folder, norm_eps=0.1)


# What does not fit, and what is broken


@pytest.mark.parametrize('name', pretrained.ONLY)
def test_what_gpt_has_one_kind_of_is_named(write, name):
    for value in ['gelu', 128, True, {'a': 1}, ['full']]:
        if value not in pretrained.ONLY[name]:
            folder = changed(write(f'{value}'), **{name: value})
            refuse(folder, f'json: {name}=.*: must be .*, or left out')


@pytest.mark.parametrize('message, changes', [
    ("config.json: model_type='qwen2': must be 'llama' or 'mistral'", dict(model_type='qwen2')),
    (r"model_type=\['llama'\]", dict(model_type=['llama'])),
    ('sliding_window=None: must be written out in a mistral', dict(model_type='mistral')),
    ('sliding_window=9: must be None', dict(model_type='mistral', sliding_window=9)),
    ('is_causal=None: must be True', dict(is_causal=None)),
    ('logits_scaling=2.0: must be left out, for', dict(logits_scaling=2.0)),
    ('residual_multiplier=None: must be left out', dict(residual_multiplier=None)),
    ('tie_word_embeddings=1: must be true or false', dict(tie_word_embeddings=1)),
    ('partial_rotary_factor=0.5: must be 1', dict(partial_rotary_factor=0.5)),
    ('partial_rotary_factor=0.5', dict(rope_parameters=dict(partial_rotary_factor=0.5))),
    ("'dynamic': must be one of", dict(rope_scaling=LINEAR | dict(rope_type='dynamic'))),
    ("rope_type='linear': must be 'yarn'", dict(rope_scaling=dict(type='yarn') | LINEAR)),
    (r"rope_type=\['yarn'\]: must be", dict(rope_scaling=dict(rope_type=['yarn']))),
    ('must be what rope_scaling is', dict(rope_scaling=LINEAR, rope_parameters=YARN)),
    ('factor=None: must be a positive number', dict(rope_scaling=dict(type='linear'))),
    ("rope='pi:factor=0.5.*: factor must be", dict(rope_scaling=LINEAR | dict(factor=0.5))),
    ("factor='4': must be a positive number", dict(rope_scaling=LINEAR | dict(factor='4'))),
    ('mscale=1.0: must be left out with', dict(rope_scaling=YARN | dict(mscale=1.0))),
    ('truncate=False: must be True', dict(rope_scaling=YARN | dict(truncate=False))),
    ('fast must be greater than slow', dict(rope_scaling=YARN | dict(beta_slow=40.0))),
    ('low_freq_factor=None', dict(rope_scaling=LLAMA3 | dict(low_freq_factor=None))),
    ('rope_theta=5: must be 10000.0, as', dict(rope_parameters=dict(rope_theta=5))),
    ("rope_scaling='yarn': must be names and numbers", dict(rope_scaling='yarn')),
    ('rope_theta=-1: must be a positive number', dict(rope_theta=-1)),
    ('rope_theta=1000', dict(rope_theta=10**400)),
    ('rms_norm_eps=inf', dict(rms_norm_eps=float('inf'))),
    ('hidden_size=None: must be a whole number', dict(hidden_size=None)),
    ("num_hidden_layers='2'", dict(num_hidden_layers='2')),
    ('num_hidden_layers=1000000000.0: must be a whole', dict(num_hidden_layers=1e9)),
    ('num_hidden_layers=1000000000: must be .* below', dict(num_hidden_layers=10**9)),
    ('asks for num_hidden_layers=16777215, and .* 21 tensors', dict(num_hidden_layers=2**24 - 1)),
    ('vocab_size=0', dict(vocab_size=0)),
    (r'should be \(16777215, 32\)', dict(vocab_size=2**24 - 1)),
    ('config.json: n_kv_head=3: must be', dict(num_key_value_heads=3)),
    ('config.json: head_size=7: must be even', dict(head_dim=7)),
    # the tensors find out a config.json that is wrong
    ('layers.1.input_layernorm.weight has no place in the model', dict(num_hidden_layers=1)),
    ('layers.2.input_layernorm.weight is missing, and config.json', dict(num_hidden_layers=3)),
    (r'embed_tokens.weight is \(29, 32\), and should be \(29, 48\)', dict(hidden_size=48)),
    (r'k_proj.weight is \(16, 32\), and should be \(32, 32\)', dict(num_key_value_heads=4)),
    (r'gate_proj.weight is \(40, 32\), and should be \(64, 32\)', dict(intermediate_size=64)),
    ('lm_head.weight is not model.embed_tokens.weight, to', dict(tie_word_embeddings=True)),
], ids=str)
def test_what_does_not_fit_is_named_before_anything_is_built(write, monkeypatch, message, changes):
    monkeypatch.setattr(surgery, 'GPT', lambda config: pytest.fail('built'))
    refuse(changed(write(), **changes), message)


V_PROJ = 'model.layers.1.self_attn.v_proj.weight'


@pytest.mark.parametrize('name, tensor, message', [
    (V_PROJ, None, 'is missing, and config.json asks for it'),
    ('lm_head.weight', None, 'is missing, and config.json asks for it'),
    (V_PROJ, torch.zeros(16, 31), r'is \(16, 31\), and should be \(16, 32\)'),
    (V_PROJ, torch.zeros(512), r'is \(512,\)'),
    (V_PROJ, torch.zeros(16, 32, dtype=torch.int8), 'is I8: must be one of F64, F32, F16, BF16'),
    (V_PROJ, torch.full((16, 32), torch.inf), 'has values that are not finite'),
    ('model.layers.0.self_attn.q_proj.bias', torch.zeros(32), 'has no place'),
    ('score.weight', torch.zeros(2, 32), 'has no place')], ids=str)
def test_tensors_that_are_not_those_of_a_llama_are_named(write, name, tensor, message):
    folder = write()
    edit(folder, lambda t: t.pop(name) if tensor is None else t.update({name: tensor}))
    ours = 'attention.qkv.weight' if 'finite' in message else name
    refuse(folder, f'{ours} {message}')


def test_what_is_saved_twice_must_be_the_same_twice(write):
    tied = write('tied', tie_word_embeddings=True)
    expected = logits(from_pretrained(tied))
    edit(tied, lambda t: t.update({'lm_head.weight': t['model.embed_tokens.weight'].clone()}))
    assert torch.equal(logits(from_pretrained(tied)), expected)
    edit(tied, lambda t: t['lm_head.weight'][3, 5].mul_(1 + 2e-7))  # a bit or two
    refuse(tied, 'lm_head.weight is not model.embed_tokens.weight')
    old, name = write('old', rope_theta=500.0), 'model.layers.0.self_attn.rotary_emb.inv_freq'
    exponent = -torch.arange(0, 8, 2) / 8
    edit(old, lambda t: t.update({name: (500.0**exponent).bfloat16()}))
    from_pretrained(old)
    edit(old, lambda t: t.update({name: 10000.0**exponent}))
    refuse(old, f'{name} is not theta, which config.json defines')


def test_shards_are_read_and_missing_or_broken_ones_named(write):
    folder = write()
    expected = logits(from_pretrained(folder))
    files = shard(folder)
    assert torch.equal(logits(from_pretrained(folder)), expected)
    content = files[1].read_bytes()
    for cut in (len(content) - 4, 100, 5, 0):
        files[1].write_bytes(content[:cut])
        refuse(folder, '-00002-of-00003.safetensors is broken, or cut short')
    files[1].unlink()
    refuse(folder, f'-00002-of-00003.safetensors is missing, and {INDEX} lists it')
    files[1].write_bytes(files[0].read_bytes())  # another shard under its name
    refuse(folder, '-00002-of-00003.safetensors: .* is in model-00001-of-00003.safetensors too')
    files[1].write_bytes(content)
    tensors = load_file(files[1])
    name, _ = tensors.popitem()
    save_file(tensors, files[1])
    refuse(folder, f'{name} is missing, and config.json asks for it')


@pytest.mark.parametrize('shards, message', [
    ([], 'has no weight_map'), ({'a': 1, 'b': 'c'}, 'no weight_map of names to files'),
    ({'a': '../other/model.safetensors'}, "'../other/model.safetensors' is no file name"),
    ({'a': '{}/other/model.safetensors'}, '/other/model.safetensors. is no file name'),
    ({'a': '../nowhere'}, 'is no file name'), ({'a': '..'}, 'is missing')])
def test_an_index_lists_files_of_its_own_folder(write, monkeypatch, shards, message):
    folder = write()
    shard(folder)
    content = json.dumps(dict(weight_map=shards)).replace('{}', str(write('other').parent))
    (folder / INDEX).write_text(content)
    monkeypatch.setattr(safetensors, 'safe_open', lambda *_, **__: pytest.fail('opened'))
    refuse(folder, message)


@pytest.mark.parametrize('text, message', [
    (None, 'config.json is missing: not a checkpoint'), ('{"model_type": ', 'is broken'),
    ('[1]', 'holds a list'), ('{"a":' * 10**5, 'config.json is broken'),
    ('[' * 990 + ']' * 990, 'config.json'), ('\xff', 'config.json is broken'),
    ('{"vocab_size": 1' + '0' * 5000 + '}', 'config.json is broken')])
def test_a_config_that_is_none_is_named(write, text, message):
    folder = write()
    (folder / 'config.json').unlink()
    if text is not None:
        (folder / 'config.json').write_text(text, encoding='latin-1')
    refuse(folder, message)


def test_a_folder_without_weights_is_named(write, tmp_path):
    folder = write()
    (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
    refuse(folder, f'has no weights: neither model.safetensors nor {INDEX}. Pickles .* not read')
    for name in (tmp_path / 'nowhere', 'nowhere', 'a/b/c', ''):
        refuse(name, 'there is no such folder|has no weights|config.json is missing')


# The hub, up to the download


@pytest.mark.parametrize('error, reason', [
    ('GatedRepoError', 'it is gated: accept its terms at https://huggingface.co/owner/model'),
    ('RepositoryNotFoundError', 'it has none of that name, or a private one'),
    ('CorruptedCacheException', 'two lines')])
def test_a_hub_that_refuses_says_why(monkeypatch, error, reason):
    library = pytest.importorskip('huggingface_hub')
    error = getattr(library.errors, error)
    problem = error.__new__(error, 'two\nlines')
    problem.server_message = 'Ask the owner.'

    def fail(*arguments, **keywords):
        raise problem
    for name in ('model_info', 'hf_hub_download', 'snapshot_download'):
        monkeypatch.setattr(library, name, fail)
    refuse('owner/model', f'owner/model: .* the hub gave none: {reason}.* .Ask the owner.')


@pytest.mark.parametrize('silent', ['model_info', 'hf_hub_download'])
def test_a_hub_that_does_not_answer_leaves_an_earlier_download(write, monkeypatch, silent):
    library = pytest.importorskip('huggingface_hub')
    folder, forever, calls = write(), threading.Event(), []
    for name in ('model_info', 'hf_hub_download'):
        monkeypatch.setattr(library, name, lambda *_: None)
    monkeypatch.setattr(hub, 'PATIENCE', 0.1)
    monkeypatch.setattr(library, silent, lambda *_: forever.wait(20))

    def download(name, **options):
        calls.append(options)
        if name == 'owner/unknown':
            raise library.errors.LocalEntryNotFoundError('no such download')
        return str(folder)
    monkeypatch.setattr(library, 'snapshot_download', download)
    hub.download.cache_clear()
    assert hub.find_folder('owner/earlier') == folder == hub.find_folder('owner/earlier')
    assert [options['local_files_only'] for options in calls] == [True]  # once a process
    refuse('owner/unknown', 'owner/unknown: .* gave none: no answer within 0.1 s$')
    forever.set()


def test_a_slip_in_the_name_of_a_folder_asks_no_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, 'download', lambda name: pytest.fail(f'asked for {name}'))
    (tmp_path / 'out').mkdir()
    for name in ('out/nothing', './nothing', '../nothing'):
        refuse(name, f'{name}: there is no such folder in ')


# Packages that only Llamas need


@pytest.mark.parametrize('package', ['safetensors', 'huggingface_hub', 'tokenizers'])
def test_missing_packages_are_named(write, monkeypatch, package):
    folder, real = write(), builtins.__import__

    def without(module, *arguments, **keywords):
        if module.partition('.')[0] == package:
            raise ImportError(module)
        return real(module, *arguments, **keywords)
    monkeypatch.setattr(builtins, '__import__', without)
    load = pretrained.Tokenizer if package == 'tokenizers' else from_pretrained
    name = 'owner/model' if package == 'huggingface_hub' else folder
    with pytest.raises(UserError, match=f'{name}.* pip install {package}'):
        load(name)


def test_the_lab_opens_without_them():
    code = ('import sys; packages = ["safetensors", "transformers", "huggingface_hub", '
            '"tokenizers"]; sys.modules.update(dict.fromkeys(packages)); import train; '
            'assert "lab" in sys.modules')
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0
