"""Surgery in place on transformers models: tiny random ones of each family."""

import copy
import inspect
import json
import math
import pickle

import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip('transformers', reason='needs pip install transformers')

from lab.spectralize import Rotation, load_spectral, parameter_groups, spectralize  # noqa: E402
from lab.tests.families import (FIT, IMAGES, OTHER_HEADS, REFUSED, SPARSE, TEXT,  # noqa: E402
                                examine, logits, make, scramble)
from model import GPT, GPTConfig  # noqa: E402

transformers.logging.set_verbosity_error()
TOKENS = torch.randint(3, 96, (2, 40), generator=torch.Generator().manual_seed(0))
SOME = ['llama', 'gemma3', 'smollm3', 'pythia']


def rotations(model):
    return [module for module in model.modules() if isinstance(module, Rotation)]


def learned(model):
    return [parameter for rotation in rotations(model) for parameter in rotation.parameters()]


def some_heads(name):
    return 'all' if 'deepseek' in name else 'half'  # all of its queries share one rotated key


def loss(model, tokens=TOKENS, **more):
    return model(input_ids=tokens, labels=tokens, **more).loss


def assert_same(model, other):
    assert torch.equal(logits(model, TOKENS), logits(other, TOKENS))


# Each family


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('name, kernel', [
    *[(name, 'eager') for name in FIT], *[(name, None) for name in [*FIT, *OTHER_HEADS]]])
def test_without_phases_the_logits_are_the_same_bits(name, kernel, dtype):
    model = make(name, kernel).to(dtype)
    expected = [logits(model, tokens) for tokens in (TEXT, TOKENS)]
    spectralize(model, some_heads(name), phase_std=0.0)
    for tokens, right in zip((TEXT, TOKENS), expected):
        assert torch.equal(logits(model, tokens), right)


@pytest.mark.parametrize('name', FIT)
def test_gradients_reach_all_of_it(name):
    model = spectralize(make(name))
    loss(model).backward()
    assert all(p.grad.abs().max() > 0 for p in learned(model))


@pytest.mark.parametrize('name', [name for name in FIT if 'longrope' not in name])
@torch.no_grad()
def test_the_cache_gives_what_a_whole_pass_gives(name):
    model = spectralize(make(name))
    before, full = logits(model, TOKENS), logits(scramble(model), TOKENS)
    assert not torch.allclose(full, before, atol=1e-2)
    cache = model(input_ids=TOKENS[:, :30], use_cache=True).past_key_values
    rest = [logits(model, part, past_key_values=cache)
            for part in TOKENS[:, 30:].split([8, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(rest, 1), full[:, 30:], rtol=0, atol=1e-3)


@pytest.mark.parametrize('name', REFUSED)
def test_a_model_that_does_not_fit_is_refused_and_untouched(name):
    def state():
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        return hooks, list(model.state_dict()), hasattr(model.config, 'spectral')

    model = make(name)
    before, right = state(), logits(model, TOKENS)
    with pytest.raises(ValueError, match=type(model).__name__):
        spectralize(model.train())
    assert all(m.training for m in model.modules())
    assert torch.equal(logits(model.eval(), TOKENS), right) and state() == before


@pytest.mark.parametrize('name', [*IMAGES, 'qwen3.5'])
def test_positions_of_images_give_the_same_bits(name):
    model = make(name)
    axes = 4 if 'four' in name else 3
    image = torch.randint(0, 50, (axes, 2, 40), generator=torch.Generator().manual_seed(0))
    expected = [logits(model, TOKENS, position_ids=p) for p in (image, None)]
    assert not torch.allclose(*expected, atol=1e-2)
    spectralize(model, phase_std=0.0)
    for p, right in zip((image, None), expected):
        assert torch.equal(logits(model, TOKENS, position_ids=p), right)


@pytest.mark.parametrize('name', SPARSE)
def test_an_indexer_keeps_theta(name):
    """It chooses keys, and no gradient reaches it."""
    model, chosen = spectralize(make(name), phase_std=0.0), []
    indexer = next(module for name, module in model.named_modules() if name.endswith('indexer'))
    indexer.register_forward_hook(lambda module, args, output: chosen.append(output))
    before = logits(model, TOKENS)
    assert not torch.allclose(logits(scramble(model), TOKENS), before, atol=1e-2)
    assert chosen[0].shape[-1] < TOKENS.shape[-1] and torch.equal(*chosen)


# What the proof finds


def test_the_proof_reads_positions_of_images():
    model = make('glm4v')
    original = model.rotary_emb.recomposition_frequencies

    def wrong(x):  # for positions, but not for cos and sin: the height and the width are lost
        return original(x if x.abs().max() <= 1 else x[:1].expand(3, -1, -1, -1))
    model.rotary_emb.recomposition_frequencies = wrong
    with pytest.raises(ValueError, match='the cos of layers.0.self_attn is not that of inv_freq'):
        spectralize(model)


@pytest.mark.parametrize('factor, message', [
    (1.1, 'with Phi = 0 its logits change'), (math.nan, 'with Phi = 0 .* change by nan'),
    ('a factor', 'it fails with TypeError')])
def test_the_proof_finds_what_the_probe_does_not(factor, message):
    model = make('llama')
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def changed(*args, position_embeddings, **kwargs):  # only by what is swapped in
        output, weights = forward(*args, position_embeddings=position_embeddings, **kwargs)
        return output * (factor if isinstance(position_embeddings[0], list) else 1), weights
    attention.forward = changed
    with pytest.raises(ValueError, match=message):
        spectralize(model)


def test_a_model_that_ignores_positions_is_refused():
    fresh = transformers.AutoModelForCausalLM.from_config(make('zaya').config)  # scores times 0
    with pytest.raises(ValueError, match='other frequencies change nothing'):
        spectralize(fresh)


OURS = {'model.': '', 'layers.': 'blocks.', 'embed_tokens': 'embedding', 'self_attn': 'attention',
        'rotation.': '', 'q_proj': 'qkv', 'k_proj': 'qkv', 'v_proj': 'qkv', 'o_proj': 'proj',
        'input_layernorm': 'norm_1', 'post_attention_layernorm': 'norm_2', '_proj': ''}


@pytest.mark.parametrize('heads, attention', [('all', 'spectral'), ('half', 'bifocal')])
def test_it_is_the_function_of_this_repository(heads, attention):
    model = scramble(spectralize(make(
        'llama', intermediate_size=168, rms_norm_eps=1e-5, num_key_value_heads=4), heads))
    weights = {}
    for name, weight in model.state_dict().items():
        for theirs, ours in OURS.items():
            name = name.replace(theirs, ours)
        weights[name] = torch.cat([weights[name], weight]) if name in weights else weight
    ours = GPT(GPTConfig(vocab_size=96, n_layer=2, n_head=4, n_embd=64, attention=attention))
    ours.load_state_dict(weights)
    torch.testing.assert_close(ours(TOKENS)[0], logits(model, TOKENS), rtol=0, atol=1e-4)


# The options


def test_phases_start_with_the_spread_that_is_asked_for():
    model = spectralize(make('llama'), phase_std=0.1)
    assert all(0.03 < rotation.Phi.std() < 0.3 for rotation in rotations(model))


@pytest.mark.parametrize('options, message', [
    (dict(heads=3), 'heads=3: must be all, half, or at most 2'),
    (dict(learn='Omega'), "learn='Omega': must be none")])
def test_wrong_options_are_refused_before_any_change(options, message):
    model = make('llama')
    with pytest.raises(ValueError, match=message):
        spectralize(model, **options, freeze=True)
    assert not rotations(model) and all(p.requires_grad for p in model.parameters())


def split(model):
    model.lm_head.weight.device_mesh = None  # as each weight has, if tp_plan comes first
    return model


def to_int8(model):
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)


def adapt(model, **more):
    """`model` with a LoRA adapter of PEFT."""
    peft = pytest.importorskip('peft', reason='needs pip install peft')
    return peft.get_peft_model(
        model, peft.LoraConfig(target_modules=['q_proj', 'v_proj'], r=4, **more))


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize('change, message', [
    (spectralize, 'spectral already'), (split, 'before it is split among processes'),
    (lambda model: model.to('meta'), 'before its weights are offloaded'),
    (to_int8, 'before its matrices become int8'), (adapt, 'before PEFT')])
def test_what_must_come_after_it_is_refused_before_it(change, message):
    with pytest.raises(ValueError, match=message):
        spectralize(change(make('llama')))


# Other models of the family


@pytest.fixture
def family(monkeypatch):
    """The file of Llama, which is put back as it was."""
    from transformers.models.llama import modeling_llama
    apply = inspect.unwrap(modeling_llama.apply_rotary_pos_emb)
    monkeypatch.setattr(modeling_llama, 'apply_rotary_pos_emb', apply)
    return modeling_llama


def test_a_fused_rotation_is_refused(family):
    def fused(q, k, cos, sin, unsqueeze_dim=1):  # as Liger's: no gradient for cos and sin
        return q * cos.detach().unsqueeze(1), k

    family.apply_rotary_pos_emb = fused
    with pytest.raises(ValueError, match='was replaced by one of lab.tests'):
        spectralize(make('llama'))


def test_other_key_heads_than_those_of_the_rotation_are_refused(family):
    spectralize(make('llama'))
    q, k, pairs = torch.ones(1, 4, 3, 8), torch.ones(1, 1, 3, 8), [torch.ones(1, 2, 3, 8)] * 2
    with pytest.raises(ValueError, match='1 key heads here, 2 in the rotation: tensor parallelism'):
        family.apply_rotary_pos_emb(q, k, pairs, pairs)  # as with tp_plan='auto' in two processes


def test_other_models_stay_plain_also_while_one_is_probed(family):
    plain, model = make('llama'), make('llama')
    expected, seen = logits(plain, TOKENS), []
    model.lm_head.register_forward_hook(lambda *_: seen.append(logits(plain, TOKENS)))
    logits(scramble(spectralize(model)), TOKENS)
    assert len(seen) > 3 and all(torch.equal(x, expected) for x in seen)


@pytest.mark.parametrize('read, write', [(pickle.loads, pickle.dumps),
                                         (copy.deepcopy, lambda model: model)])
def test_a_copy_works_where_nothing_is_wrapped_yet_and_is_apart(read, write, family):
    """As a pickle in another process."""
    model = scramble(spectralize(make('llama')))
    expected, saved = logits(model, TOKENS), write(model)
    family.apply_rotary_pos_emb = inspect.unwrap(family.apply_rotary_pos_emb)
    twin = read(saved)
    assert torch.equal(logits(twin, TOKENS), expected)
    scramble(twin, seed=5)
    assert torch.equal(logits(model, TOKENS), expected)


def test_a_config_that_other_models_have_stays_plain(tmp_path):
    control = make('gemma3, nested')
    spectralize(type(control)(control.config))
    control.save_pretrained(tmp_path)
    assert_same(type(control).from_pretrained(tmp_path).eval(), control)


# What a model does


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_a_spectral_model_becomes_int8_like_a_plain_one():
    assert_same(to_int8(spectralize(make('llama'), phase_std=0.0)), to_int8(make('llama')))


@pytest.mark.parametrize('name', SOME)
def test_generating_with_padding_beams_and_a_static_cache(name):
    model, tokens = scramble(spectralize(make(name))), TOKENS[:1, :20]

    def generate(tokens, **options):
        return model.generate(tokens, max_new_tokens=4, do_sample=False, **options)
    expected, padded = generate(tokens), F.pad(tokens, (5, 0))
    assert torch.equal(generate(padded, attention_mask=padded.sign())[:, 5:], expected)
    for ours, plain in [
            (generate(tokens, cache_implementation='static', disable_compile=True), expected),
            (generate(tokens, num_beams=2), generate(tokens, num_beams=2, use_cache=False))]:
        assert torch.equal(ours, plain)


@pytest.mark.parametrize('name', SOME)
def test_gradient_checkpointing(name):
    plain, model = (scramble(spectralize(make(name), phase_std=0.0)).train() for _ in range(2))
    model.gradient_checkpointing_enable()
    for each in (plain, model):
        loss(each).backward()
    for p, expected in zip(learned(model), learned(plain)):
        torch.testing.assert_close(p.grad, expected.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_it_compiles_into_one_graph():
    model = scramble(spectralize(make('gemma3')))  # its two types of layers have a theta each
    expected = logits(model, TOKENS)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    torch.testing.assert_close(logits(compiled, TOKENS), expected, rtol=0, atol=1e-4)
    loss(compiled, use_cache=False).backward()
    assert all(p.grad.abs().max() > 0 for p in learned(model))


# Files


@pytest.mark.parametrize('name', [*FIT, *OTHER_HEADS])
def test_a_folder_gives_the_same_model_and_is_no_plain_one(tmp_path, name):
    model = scramble(spectralize(make(name), some_heads(name), learn='frequency,phase'))
    model.save_pretrained(tmp_path)
    again = load_spectral(tmp_path).eval()
    assert_same(again, model)
    assert type(again) is type(model)
    assert list(dict(rotations(again)[0].named_parameters())) == ['Omega', 'Phi']
    for reader in (transformers.AutoModel, type(model)):
        with pytest.raises(ValueError, match='load_spectral'):
            reader.from_pretrained(tmp_path)


def test_16_bits_leave_the_rotation_in_float32_also_in_a_folder(tmp_path):
    model = scramble(spectralize(make('llama')))
    exact = [p.clone() for p in learned(model)]
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    load_spectral(tmp_path, dtype=torch.bfloat16).save_pretrained(tmp_path / 'twice')
    again = load_spectral(tmp_path / 'twice', dtype=torch.bfloat16).eval()
    assert again.lm_head.weight.dtype == torch.bfloat16
    assert all(torch.equal(p, q) for p, q in zip(exact, learned(again), strict=True))
    assert_same(again, model)


@pytest.mark.parametrize('change, message', [
    (lambda values: values.pop('spectral'), 'its config.json has no "spectral"'),
    (lambda values: values.update(num_hidden_layers=3), 'missing weights, such as model.layers.2'),
    (lambda values: values['spectral'].update(layers={}), 'unexpected weights, such as model.lay'),
    (lambda values: values['spectral']['unmarked'].update(architectures=['pipeline']),
     'pipeline is no model of transformers')], ids=['plain', 'longer', 'no rotation', 'a function'])
def test_a_config_that_does_not_fit_its_weights_is_refused(tmp_path, change, message):
    spectralize(make('llama')).save_pretrained(tmp_path)
    values = json.loads((tmp_path / 'config.json').read_text())
    change(values)
    (tmp_path / 'config.json').write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        load_spectral(tmp_path)


# Training with the usual tools


def train(model, folder, **more):
    """Four updates of Trainer."""
    pytest.importorskip('accelerate', reason='Trainer needs pip install accelerate')
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=4, report_to=[], use_cpu=True, learning_rate=1e-2, disable_tqdm=True)
    data = [dict(input_ids=tokens, labels=tokens) for tokens in TOKENS]
    transformers.Trainer(model, arguments, train_dataset=data, **more).train()
    return model.eval()


def test_trainer_trains_the_rotation_and_saves_it(tmp_path):
    start = spectralize(make('llama'), freeze=True)
    model = copy.deepcopy(start)
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-4, 1e-2))
    train(model, tmp_path, optimizers=(optimizer, None))
    for (name, p), q in zip(model.named_parameters(), start.parameters()):
        assert torch.equal(p, q) == ('.rotation.' not in name), name
    assert_same(load_spectral(tmp_path / 'checkpoint-4').eval(), model)


def test_decay_spares_the_rotation_and_vectors():
    model = spectralize(make('pythia'))
    groups = parameter_groups(model, 1e-4, 1e-2, weight_decay=0.1)
    found = {(group['lr'], group['weight_decay']): set(group['params']) for group in groups}
    assert found == {
        (1e-2, 0.0): set(learned(model)),
        (1e-4, 0.0): {p for p in model.parameters() if p.dim() == 1},
        (1e-4, 0.1): {p for p in model.parameters() if p.dim() == 2} - set(learned(model))}


def test_an_adapter_of_peft_that_leaves_the_rotation_out_stops():
    frozen = adapt(spectralize(make('llama'))).train()
    with pytest.raises(ValueError, match="PEFT needs modules_to_save=..rotation"):
        loss(frozen)


def test_an_adapter_of_peft_takes_the_rotation_with_it(tmp_path):
    peft = pytest.importorskip('peft', reason='needs pip install peft')
    base = spectralize(make('llama'), phase_std=0.0)
    adapted = train(adapt(copy.deepcopy(base), modules_to_save=['rotation']), tmp_path / 'run')
    expected = logits(adapted, TOKENS)
    assert not torch.allclose(expected, logits(base, TOKENS), atol=1e-3)
    with adapted.disable_adapter():
        assert_same(adapted, base)

    adapted.save_pretrained(tmp_path / 'adapter')
    again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / 'adapter').eval()
    assert torch.equal(logits(again, TOKENS), expected)


@pytest.fixture
def one_process(tmp_path):
    """A group of processes that has one."""
    import torch.distributed as dist
    dist.init_process_group('gloo', f'file://{tmp_path}/meet', rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_shards_of_16_bits_need_a_rotation_of_its_own(one_process):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    bfloat16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    exact, rounded = (scramble(spectralize(make('llama'))) for _ in range(2))
    right = logits(exact, TOKENS)
    for model in (exact, rounded):
        for layer in model.model.layers:
            if model is exact:
                fully_shard(layer.self_attn.rotation)
            fully_shard(layer, mp_policy=bfloat16)
        fully_shard(model, mp_policy=bfloat16)
    loss(exact).backward()
    assert {p.grad.dtype for p in learned(exact)} == {torch.float32}
    assert (logits(exact, TOKENS) - right).abs().mean() < 0.04
    with pytest.raises(TypeError, match='Omega needs float32'):
        logits(rounded, TOKENS)


def test_the_survey_measures_what_it_says():
    error, shift = examine('llama', {})
    assert error == 0 and 0 < shift < 1e-4
    assert examine('jetmoe', {}).startswith('refused: its logits change by')
    assert examine('bert', {}).startswith('refused: no attention')
