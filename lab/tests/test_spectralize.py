"""Surgery in place on transformers models: tiny random ones of each family."""

import copy
import gc
import json
import math
import pickle
import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip('transformers', reason='needs pip install transformers')

from lab.spectralize import (Call, Rotation, load_spectral, parameter_groups,  # noqa: E402
                             spectralize)
from lab.tests import families  # noqa: E402
from lab.tests.families import (FIT, IMAGES, ONE_KEY, OTHER_HEADS, REFUSED,  # noqa: E402
                                SPARSE, make, scramble)
from model import GPT, GPTConfig  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

transformers.logging.set_verbosity_error()
TOKENS = torch.randint(3, 96, (2, 40), generator=torch.Generator().manual_seed(0))
LONG = torch.randint(3, 96, (1, 200), generator=torch.Generator().manual_seed(0))
SOME = ['llama', 'gemma3', 'smollm3', 'pythia']


def rotations(model):
    return [module for module in model.modules() if isinstance(module, Rotation)]


@torch.no_grad()
def logits(model, tokens=TOKENS):
    return model(input_ids=tokens).logits


def assert_same(model, other):
    assert torch.equal(logits(model), logits(other))


# Each family


@pytest.mark.parametrize('name', FIT)
def test_without_phases_the_logits_are_the_same_bits(name):
    cases = [('eager', torch.float32, 'half'), ('eager', torch.bfloat16, 'all'),
             ('sdpa', torch.float32, 'all'), ('sdpa', torch.bfloat16, 'half')]
    for kernel, dtype, heads in cases if make(name)._supports_sdpa else cases[:2]:
        heads = 'all' if name in ONE_KEY else heads
        model = make(name, kernel).to(dtype)
        expected = [logits(model, tokens) for tokens in (LONG, TOKENS)]
        assert spectralize(model, heads, phase_std=0.0) is model
        for tokens, right in zip((LONG, TOKENS), expected):
            assert torch.equal(logits(model, tokens), right), (kernel, dtype, heads)


@pytest.mark.parametrize('name', [name for name in FIT if 'longrope' not in name])
def test_gradients_reach_all_of_it_and_the_cache_gives_the_same(name):
    model = spectralize(make(name))
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert all(p.grad.abs().max() > 0 for r in rotations(model) for p in r.parameters())
    before = logits(model)
    full = logits(scramble(model))
    assert not torch.allclose(full, before, atol=1e-2)
    with torch.no_grad():
        cache = model(input_ids=TOKENS[:, :30], use_cache=True).past_key_values
        rest = [model(input_ids=part, past_key_values=cache).logits
                for part in TOKENS[:, 30:].split([8, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(rest, 1), full[:, 30:], rtol=0, atol=1e-3)


@pytest.mark.parametrize('name', REFUSED)
def test_a_model_that_does_not_fit_is_refused_and_untouched(name):
    model = make(name).train()
    config, state, before = model.config, list(model.state_dict()), logits(model.eval())
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    with pytest.raises(ValueError, match=type(model).__name__) as error:
        spectralize(model.train())
    assert '\n' not in str(error.value) and all(m.training for m in model.modules())
    assert list(model.state_dict()) == state and not hasattr(config, 'spectral')
    assert torch.equal(logits(model.eval()), before)
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == hooks


@pytest.mark.parametrize('name', [*IMAGES, 'qwen3.5'])
@torch.no_grad()
def test_positions_of_images_give_the_same_bits(name):
    model = make(name)
    axes = 4 if 'four' in name else 3
    image = torch.randint(0, 50, (axes, 2, 40), generator=torch.Generator().manual_seed(0))
    expected = [model(input_ids=TOKENS, position_ids=p)[0] for p in (image, None)]
    assert not torch.allclose(*expected, atol=1e-2)
    spectralize(model, phase_std=0.0)
    for p, right in zip((image, None), expected):
        assert torch.equal(model(input_ids=TOKENS, position_ids=p)[0], right)


@pytest.mark.parametrize('name', OTHER_HEADS)
@torch.no_grad()
def test_models_without_a_head_or_with_another_one(name, tmp_path):
    model = make(name)
    expected = model(input_ids=TOKENS)[0]
    assert torch.equal(spectralize(model, phase_std=0.0)(input_ids=TOKENS)[0], expected)
    moved = scramble(model)(input_ids=TOKENS)[0]
    assert not torch.allclose(moved, expected, atol=1e-2)
    model.save_pretrained(tmp_path)
    assert torch.equal(load_spectral(tmp_path).eval()(input_ids=TOKENS)[0], moved)


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_a_spectral_model_becomes_int8_like_a_plain_one():
    def to_int8(model):
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    assert_same(to_int8(spectralize(make('llama'), phase_std=0.0)), to_int8(make('llama')))


def test_the_proof_reads_positions_of_images():
    model = make('glm4v')
    original = model.rotary_emb.recomposition_frequencies

    def wrong(x):  # for positions, but not for cos and sin: the height and the width are lost
        return original(x if x.abs().max() <= 1 else x[:1].expand(3, -1, -1, -1))
    model.rotary_emb.recomposition_frequencies = wrong
    with pytest.raises(ValueError, match='the cos of layers.0.self_attn is not that of inv_freq'):
        spectralize(model)


def test_the_proof_finds_what_the_probe_does_not():
    model = make('llama')
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def changed(*args, position_embeddings, **kwargs):  # only by what is swapped in
        output, weights = forward(*args, position_embeddings=position_embeddings, **kwargs)
        return output * (factor if isinstance(position_embeddings[0], list) else 1), weights
    attention.forward = changed
    for factor, message in [(1.1, 'with Phi = 0 its logits change'), (math.nan, 'change by nan')]:
        with pytest.raises(ValueError, match=message):
            spectralize(model)
    attention.forward = lambda *args, **kwargs: {}['full_attention']
    with pytest.raises(ValueError, match="it fails with KeyError.'full_attention'"):
        spectralize(model)


def test_a_model_that_ignores_positions_is_refused():
    fresh = transformers.AutoModelForCausalLM.from_config(make('zaya').config)  # scores times 0
    with pytest.raises(ValueError, match='other frequencies change nothing'):
        spectralize(fresh)


@pytest.mark.parametrize('name', SPARSE)
def test_an_indexer_keeps_theta(name):
    """It chooses keys, and no gradient reaches it."""
    model, chosen = spectralize(make(name), phase_std=0.0), []
    indexer = next(module for name, module in model.named_modules() if name.endswith('indexer'))
    indexer.register_forward_hook(lambda module, args, output: chosen.append(output))
    before = logits(model)
    assert not torch.allclose(logits(scramble(model)), before, atol=1e-2)
    assert chosen[0].shape[-1] < TOKENS.shape[-1] and torch.equal(*chosen)


def test_a_probe_leaves_other_models_of_the_family_alone():
    plain, model = make('llama'), make('llama')
    seen = []
    handle = model.lm_head.register_forward_hook(lambda *_: seen.append(logits(plain)))
    spectralize(model)  # while it probes and proves, the other runs
    handle.remove()
    assert len(seen) > 3 and all(torch.equal(x, logits(plain)) for x in seen)


def to_ours(model, attention):
    """The weights of a tiny transformers Llama in this repository's GPT."""
    config = model.config
    ours = GPT(GPTConfig(vocab_size=config.vocab_size, n_layer=config.num_hidden_layers,
                         n_head=config.num_attention_heads, n_embd=config.hidden_size,
                         attention=attention))
    theirs = model.state_dict()
    names = {'norm_1': ['input_layernorm'], 'norm_2': ['post_attention_layernorm'],
             'attention.qkv': [f'self_attn.{x}_proj' for x in 'qkv'],
             'attention.proj': ['self_attn.o_proj'], 'mlp.gate': ['mlp.gate_proj'],
             'mlp.up': ['mlp.up_proj'], 'mlp.down': ['mlp.down_proj']}
    weights = {'lm_head.weight': theirs['lm_head.weight'],
               'norm.weight': theirs['model.norm.weight'],
               'embedding.weight': theirs['model.embed_tokens.weight']}
    for i in range(config.num_hidden_layers):
        layer = f'model.layers.{i}.'
        for name, parts in names.items():
            rows = [theirs[f'{layer}{part}.weight'] for part in parts]
            weights[f'blocks.{i}.{name}.weight'] = torch.cat(rows)
        for name in ('Omega', 'A', 'Phi'):
            key = f'{layer}self_attn.rotation.{name}'
            if key in theirs:
                weights[f'blocks.{i}.attention.{name}'] = theirs[key]
    ours.load_state_dict(weights)
    return ours


@pytest.mark.parametrize('heads, attention', [('all', 'spectral'), ('half', 'bifocal')])
def test_it_is_the_function_of_this_repository(heads, attention):
    shape = dict(intermediate_size=168, rms_norm_eps=1e-5, num_key_value_heads=4)
    model = scramble(spectralize(make('llama', **shape), heads))
    ours = to_ours(model, attention)
    torch.testing.assert_close(ours(TOKENS)[0], logits(model), rtol=0, atol=1e-4)


# The options


def test_the_last_heads_become_spectral_and_start_at_theta():
    model = make('llama')
    theta = model.model.rotary_emb.inv_freq
    torch.manual_seed(0)
    for heads, n in [('all', 2), ('half', 1), (1, 1)]:
        for rotation in rotations(spectralize(copy.deepcopy(model), heads, phase_std=0.1)):
            assert torch.equal(rotation.Omega, theta.expand(n, -1)) and rotation.A.eq(1).all()
            assert rotation.Phi.shape == (n, 8) and 0.03 < rotation.Phi.std() < 0.3
    half = spectralize(copy.deepcopy(model), 'half')
    before = half(input_ids=TOKENS).past_key_values.layers[0].keys  # (B, heads, T, hs)
    after = scramble(half)(input_ids=TOKENS).past_key_values.layers[0].keys
    assert [torch.equal(before[:, head], after[:, head]) for head in range(2)] == [True, False]


def test_what_is_learned_and_what_is_frozen():
    model = spectralize(make('llama'), learn='frequency,phase')
    names = {name.rpartition('.')[2] for name, p in model.named_parameters() if p.requires_grad}
    assert {'Omega', 'Phi'} <= names and 'A' not in names and len(rotations(model)[0].A) == 2
    model = spectralize(make('llama'), freeze=True)
    assert all(p.requires_grad == ('.rotation.' in name) for name, p in model.named_parameters())
    model = spectralize(make('llama'), learn='none', freeze=True)
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize('options, message', [
    (dict(heads=3), 'heads=3: must be all, half, or at most 2'), (dict(heads=0), 'heads=0'),
    (dict(heads='some'), "heads='some'"), (dict(learn='Omega'), "learn='Omega': must be none")],
    ids=str)
def test_wrong_options_are_refused_before_any_change(options, message):
    model = make('llama')
    with pytest.raises(ValueError, match=message):
        spectralize(model, **options, freeze=True)
    assert not rotations(model) and all(p.requires_grad for p in model.parameters())


def test_a_model_is_operated_once_and_its_control_has_a_config_of_its_own(tmp_path):
    config = make('gemma3, nested').config
    control, model = (transformers.AutoModelForCausalLM.from_config(config) for _ in range(2))
    spectralize(model)
    with pytest.raises(ValueError, match='spectral already'):
        spectralize(model)
    twin = spectralize(type(model)(model.config)).eval()  # its modules decide, not its config
    twin.save_pretrained(tmp_path / 'twin')
    assert_same(load_spectral(tmp_path / 'twin').eval(), twin)
    control.save_pretrained(tmp_path)
    assert_same(type(control).from_pretrained(tmp_path).eval(), control.eval())
    model.set_attn_implementation('eager')  # all parts of the model read the copy
    configs = {id(m.config) for m in model.modules() if hasattr(m, 'config')}
    assert not configs & {id(m.config) for m in control.modules() if hasattr(m, 'config')}
    spectralize(control)


def test_a_fused_rotation_is_refused_and_one_that_comes_later_fails(monkeypatch):
    def fused(q, k, cos, sin, unsqueeze_dim=1):  # as Liger's: no gradient for cos and sin
        return q * cos.detach().unsqueeze(1), k

    from transformers.models.llama import modeling_llama
    monkeypatch.setattr(modeling_llama, 'apply_rotary_pos_emb', modeling_llama.apply_rotary_pos_emb)
    model = spectralize(make('llama'))
    wrapped = modeling_llama.apply_rotary_pos_emb
    modeling_llama.apply_rotary_pos_emb = fused
    with pytest.raises(ValueError, match='was replaced by one of lab.tests'):
        spectralize(make('llama'))
    with pytest.raises(AttributeError):  # a pair has no detach
        logits(model)
    q, k, pairs = torch.ones(1, 4, 3, 8), torch.ones(1, 1, 3, 8), [torch.ones(1, 2, 3, 8)] * 2
    with pytest.raises(ValueError, match='1 key heads here, 2 in the rotation: tensor parallelism'):
        wrapped(q, k, pairs, pairs)  # as with tp_plan='auto' in two processes
    split = make('llama')
    split.lm_head.weight.device_mesh = None  # as each weight has, if tp_plan comes first
    with pytest.raises(ValueError, match='before it is split among processes'):
        spectralize(split)
    with pytest.raises(ValueError, match='before its weights are offloaded'):
        spectralize(make('llama').to('meta'))


def test_other_models_of_the_family_and_copies_are_apart():
    plain, model = make('llama'), scramble(spectralize(make('llama')))
    assert not torch.equal(logits(plain), logits(model))
    assert_same(plain, make('llama'))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(twin, model)
        scramble(twin, seed=5)
        assert not torch.equal(logits(twin), logits(model))


# What a model does


@pytest.mark.parametrize('name', SOME)
def test_generating_with_padding_beams_and_a_static_cache(name):
    model = scramble(spectralize(make(name)))
    tokens, length = TOKENS[:1, :20], dict(max_new_tokens=4, do_sample=False)
    expected = model.generate(tokens, **length)
    padding = torch.zeros(1, 5, dtype=torch.long)
    mask = torch.cat([padding, torch.ones_like(tokens)], 1)
    padded = model.generate(torch.cat([padding, tokens], 1), attention_mask=mask, **length)
    assert torch.equal(padded[:, 5:], expected)
    static = model.generate(tokens, cache_implementation='static', disable_compile=True, **length)
    assert torch.equal(static, expected)
    beams = model.generate(tokens, num_beams=2, **length)
    assert torch.equal(beams, model.generate(tokens, num_beams=2, use_cache=False, **length))


@pytest.mark.parametrize('name', SOME)
def test_gradient_checkpointing(name):
    gradients = []
    for reentrant in (None, False, True):  # None: no checkpointing
        model = scramble(spectralize(make(name))).train()
        if reentrant is not None:
            model.gradient_checkpointing_enable(dict(use_reentrant=reentrant))
            model.enable_input_require_grads()
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        gradients.append([p.grad for r in rotations(model) for p in r.parameters()])
    for plain, *others in zip(*gradients):
        for again in others:
            torch.testing.assert_close(again, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_it_compiles_into_one_graph():
    model = scramble(spectralize(make('gemma3')))  # its two types of layers have a theta each
    expected = logits(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    torch.testing.assert_close(logits(compiled), expected, rtol=0, atol=1e-4)
    compiled(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
    assert all(p.grad.abs().max() > 0 for r in rotations(model) for p in r.parameters())


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_16_bits_leave_the_rotation_in_float32(dtype):
    model = scramble(spectralize(make('llama')))
    own = [p.clone() for r in rotations(model) for p in r.parameters()]
    model.to(dtype)
    assert model.lm_head.weight.dtype == dtype
    kept = [p for r in rotations(model) for p in r.parameters()]
    assert all(torch.equal(p, q) and q.dtype == torch.float32 for p, q in zip(own, kept))
    position = torch.tensor([[256, 257]])
    call = Call(model.model.rotary_emb, (None, position), {})
    cos, _ = rotations(model)[0](call, torch.float32)
    expected = (position[0, :, None] * own[0][0].double() + own[2][0]).cos() * own[1][0]
    torch.testing.assert_close(cos[0][0, 0, :, :8].double(), expected, rtol=0, atol=1e-4)
    rotations(model)[0].Omega.data = own[0].to(dtype)  # as a cast that passes by `to`
    with pytest.raises(TypeError, match='Omega needs float32'):
        rotations(model)[0](call, dtype)


# Files


@pytest.mark.parametrize('name', FIT)
def test_a_folder_gives_the_same_model_and_is_no_plain_one(tmp_path, name):
    heads = 'all' if name in ONE_KEY else 'half'
    model = scramble(spectralize(make(name), heads, learn='frequency,phase'))
    model.save_pretrained(tmp_path)
    again = load_spectral(tmp_path).eval()
    assert_same(again, model)
    assert type(again) is type(model)
    assert list(dict(rotations(again)[0].named_parameters())) == ['Omega', 'Phi']
    for reader in (transformers.AutoModelForCausalLM, type(model)):
        with pytest.raises(ValueError, match='load_spectral'):
            reader.from_pretrained(tmp_path, dtype=torch.float32)


def test_shards_and_bfloat16(tmp_path):
    model = scramble(spectralize(make('llama'), learn='frequency')).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size='40kB')
    assert len(list(tmp_path.glob('*.safetensors'))) > 2
    again = load_spectral(tmp_path, dtype=torch.bfloat16).eval()
    assert_same(again, model)
    again.save_pretrained(tmp_path / 'twice')
    assert_same(load_spectral(tmp_path / 'twice', dtype=torch.bfloat16).eval(), model)
    assert {x.dtype for x in rotations(again)[0].state_dict().values()} == {torch.float32}
    assert again.lm_head.weight.dtype == torch.bfloat16


def test_a_folder_that_lacks_something_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file
    model = make('llama')
    model.save_pretrained(tmp_path / 'plain')
    with pytest.raises(ValueError, match='its config.json has no "spectral"'):
        load_spectral(tmp_path / 'plain')
    spectralize(model).save_pretrained(tmp_path / 'less')
    file = tmp_path / 'less' / 'model.safetensors'
    weights = load_file(file)
    weights.pop('model.layers.1.self_attn.rotation.Phi')
    save_file(weights, file, metadata=dict(format='pt'))
    with pytest.raises(ValueError, match='missing weights, such as .*layers.1.*rotation.Phi'):
        load_spectral(tmp_path / 'less')


@pytest.mark.parametrize('change, message', [
    (lambda spectral: spectral.update(layers={}), 'unexpected weights, such as model.layers.0'),
    (lambda spectral: spectral['unmarked'].update(architectures=['pipeline']),
     'pipeline is no model of transformers'),
    (lambda spectral: spectral['unmarked'].update(architectures=['Nobody']), 'Nobody is no model'),
], ids=['no layer rotates', 'a function', 'an unknown class'])
def test_a_forged_config_is_refused(tmp_path, change, message):
    spectralize(make('llama')).save_pretrained(tmp_path)
    values = json.loads((tmp_path / 'config.json').read_text())
    change(values['spectral'])
    (tmp_path / 'config.json').write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        load_spectral(tmp_path)


def test_a_pickle_works_in_another_process(tmp_path):
    model = scramble(spectralize(make('llama')))
    torch.save((model, TOKENS), tmp_path / 'model.pt')
    code = ('import sys, torch; model, tokens = torch.load(sys.argv[1], weights_only=False);'
            'torch.save(model(input_ids=tokens).logits, sys.argv[1])')
    subprocess.run([sys.executable, '-c', code, tmp_path / 'model.pt'], cwd=ROOT, check=True)
    assert torch.equal(torch.load(tmp_path / 'model.pt'), logits(model))


# Training with the usual tools


def arguments(folder, **more):
    return transformers.TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        learning_rate=1e-2, save_steps=2, disable_tqdm=True, **more)


DATA = [dict(input_ids=TOKENS[i % 2], labels=TOKENS[i % 2]) for i in range(16)]


def train(model, folder, resume=None, **more):
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-4, 1e-2))
    trainer = transformers.Trainer(model, arguments(folder, **more), train_dataset=DATA,
                                   optimizers=(optimizer, None))
    trainer.train(resume_from_checkpoint=resume)
    return model.eval()


def test_trainer_and_what_it_resumes(tmp_path):
    pytest.importorskip('accelerate', reason='Trainer needs pip install accelerate')
    start = spectralize(make('llama'), freeze=True)
    model = train(copy.deepcopy(start), tmp_path)
    moved = {name for (name, p), q in zip(model.named_parameters(), start.parameters())
             if not torch.equal(p, q)}
    assert moved == {name for name, _ in model.named_parameters() if '.rotation.' in name}
    assert_same(load_spectral(tmp_path / 'checkpoint-4').eval(), model)
    assert_same(train(copy.deepcopy(start), tmp_path, str(tmp_path / 'checkpoint-2')), model)


def test_decay_spares_the_rotation_and_vectors():
    model = spectralize(make('pythia'), learn='frequency,phase')
    groups = parameter_groups(model, 1e-4, 1e-2, weight_decay=0.1)
    named = {id(p): name for name, p in model.named_parameters()}
    found = {(group['lr'], group['weight_decay']): {named[id(p)] for p in group['params']}
             for group in groups}
    assert found.pop((1e-2, 0.0)) == {name for name in named.values()
                                      if name.endswith(('.Omega', '.Phi'))}
    assert all(name.endswith(('.bias', 'norm.weight')) for name in found[1e-4, 0.0])
    assert all('norm' not in name and name.endswith('.weight') for name in found[1e-4, 0.1])
    assert sum(map(len, found.values())) == len(make('pythia').state_dict())
    frozen = spectralize(make('llama'), freeze=True)
    assert [group['lr'] for group in parameter_groups(frozen, 1e-4, 1e-2)] == [1e-2]


def test_an_adapter_of_peft_takes_the_rotation_with_it(tmp_path):
    peft = pytest.importorskip('peft', reason='needs pip install peft')
    pytest.importorskip('accelerate', reason='Trainer needs pip install accelerate')
    base = spectralize(make('llama'), learn='frequency', phase_std=0.0)
    lora = peft.LoraConfig(target_modules=['q_proj', 'v_proj'], r=4)
    with pytest.raises(ValueError, match=r'call spectralize\(model\) before PEFT'):
        spectralize(peft.get_peft_model(make('llama'), lora))
    frozen = peft.get_peft_model(copy.deepcopy(base), lora)
    logits(frozen.train())
    with pytest.raises(ValueError, match="PEFT needs modules_to_save=..rotation"):
        frozen(input_ids=TOKENS)

    adapted = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(
        target_modules=['q_proj', 'v_proj'], modules_to_save=['rotation'], r=4))
    trainer = transformers.Trainer(adapted, arguments(tmp_path / 'run'), train_dataset=DATA)
    trainer.train()
    expected = logits(adapted.eval())
    assert not torch.allclose(expected, logits(base), atol=1e-3)
    state = adapted.base_model.model.model.layers[0].self_attn.rotation.state_dict()
    assert all(x.eq(name.endswith('A')).all() for name, x in state.items() if 'Omega' not in name)
    with adapted.disable_adapter():
        assert_same(adapted, make('llama'))

    folder = tmp_path / 'adapter'
    adapted.save_pretrained(folder)
    again = copy.deepcopy(base)
    again = peft.PeftModel.from_pretrained(again, folder).eval()
    assert torch.equal(logits(again), expected)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected, rtol=0, atol=1e-3)
    merged.save_pretrained(tmp_path / 'merged')
    assert_same(load_spectral(tmp_path / 'merged').eval(), merged)


def in_a_process(rank, folder, sharded=False):
    """One of two processes, each with one text. Rank 0 writes the gradients."""
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group('gloo', f'file://{folder}/meet', rank=rank, world_size=2)
    model = scramble(spectralize(make('smollm3')))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    tokens = TOKENS[rank:rank + 1]
    for _ in range(2):  # the second pass raises if a weight had no gradient in the first
        parallel.zero_grad()
        parallel(input_ids=tokens, labels=tokens).loss.backward()
    if rank == 0:
        torch.save([p.grad for p in model.parameters()], f'{folder}/gradients.pt')
    if sharded:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        bfloat16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for own in (True, False):
            part = scramble(spectralize(make('llama'), 'half'))
            right, rotation = logits(part), rotations(part)[0]
            for layer in part.model.layers:
                if own:
                    fully_shard(layer.self_attn.rotation)
                fully_shard(layer, mp_policy=bfloat16)
            fully_shard(part, mp_policy=bfloat16)
            if own:
                part(input_ids=TOKENS, labels=TOKENS).loss.backward()
                assert rotation.Omega.grad.dtype == torch.float32
                assert (logits(part) - right).abs().mean() < 0.04
                continue
            with pytest.raises(TypeError, match='Omega needs float32'):
                logits(part)
        del part, rotation
    del model, parallel
    gc.collect()  # where something of the model is left, gloo can hang
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one_and_shards_their_precision(tmp_path):
    # each loads torch again: a fork of a process that has threads can hang
    torch.multiprocessing.start_processes(
        in_a_process, (tmp_path, True), 2, start_method='spawn')
    model = scramble(spectralize(make('smollm3')))
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    for p, grad in zip(model.parameters(), torch.load(tmp_path / 'gradients.pt')):
        torch.testing.assert_close(grad, p.grad, rtol=1e-4, atol=1e-6)


def test_the_survey_measures_what_it_says():
    error, shift = families.examine('llama', {})
    assert error == 0 and 0 < shift < 1e-4
    assert families.examine('jetmoe', {}).startswith('refused: its logits change by')
    assert families.examine('bert', {}).startswith('refused: no attention')
