"""
The mathematics of model.py: each attention's formula, written out naively in float64, beside
the code. A new attention needs its naive formula here: a function of one head in NAIVE, and a
line in ARMS.
"""

import math
import subprocess
import sys

import pytest
import torch

from conftest import ROOT
from model import (ATTENTIONS, GPT, TAPA, Attention, GPTConfig, KVCache, Muon, NoPE, RoPE,
                   UserError, apply_rotary, distances, sample_token)

ARMS = {
    'rope': dict(attention='rope'),
    'rope, grouped': dict(attention='rope', n_kv_head=2),
    'spectral': dict(attention='spectral'),
    'spectral, grouped': dict(attention='spectral', n_kv_head=2),
    'spectral, shared': dict(attention='spectral', spectral_shared=True),
    'spectral, phase on both': dict(attention='spectral', phase_on='both'),
    'bifocal': dict(attention='bifocal'),
    'bifocal, three of four, shared': dict(
        attention='bifocal', n_spectral_head=3, spectral_shared=True),
    'bifocal, grouped, log scale': dict(attention='bifocal', n_kv_head=2, log_scale=6),
    'nope': dict(attention='nope'),
    'nope, log scale': dict(attention='nope', log_scale=20),
    'tapa': dict(attention='tapa'),
    'tapa, grouped, another split': dict(
        attention='tapa', n_kv_head=2, tapa_theta=0.25, tapa_alpha=0.3),
    'tapa, another scale': dict(attention='tapa', tapa_scale=1.0, tapa_alpha=0.5),
    'tapa, linear': dict(attention='tapa', tapa_phase='linear'),
}
arms = pytest.mark.parametrize('arm', ARMS)
ROTARY = [name for name, attention in ATTENTIONS.items() if issubclass(attention, RoPE)]
VOCABULARY = 11


def build(seed=0, **options):
    torch.manual_seed(seed)
    small = dict(vocab_size=VOCABULARY, n_layer=2, n_head=4, n_embd=32)
    return GPT(GPTConfig(**(small | options)))


def stir(model):
    """Move what the attentions learn away from its start, so that each part matters."""
    with torch.no_grad():
        for parameter in model.positional_parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def naive_nope(config, head, weights, q, k, distance):
    return torch.einsum('btd,bsd->bts', q, k) / math.sqrt(config.head_size)


def naive_rotary(config, head, weights, q, k, distance):
    """sum_i A_i^2 Re[q_i conj(k_i) e^{1j ((m-n) Omega_i + Phi_i)}] / sqrt(hs)."""
    P = config.head_size // 2
    theta = [config.rope_base ** (-2 * i / config.head_size) for i in range(P)]
    Omega = torch.tensor(theta, dtype=torch.float64)
    A, Phi = torch.ones(P).double(), torch.zeros(P).double()
    n_spectral = config.n_spectral_head or {
        'spectral': config.n_kv_head, 'bifocal': config.n_kv_head // 2}.get(config.attention, 0)
    key_head = head // (config.n_head // config.n_kv_head)
    row = key_head - (config.n_kv_head - n_spectral)  # of the spectral heads: the last ones
    if row >= 0:
        row = 0 if config.spectral_shared else row
        Omega, A, Phi = (weights[name][row] for name in ('Omega', 'A', 'Phi'))
        if config.phase_on == 'both':  # Phi - Phi
            Phi = 0 * Phi
    q = torch.complex(q[..., :P], q[..., P:])
    k = torch.complex(k[..., :P], k[..., P:])
    phasor = torch.polar(torch.ones(1).double(), distance[..., None] * Omega + Phi)
    terms = A**2 * (q[:, :, None] * k[:, None].conj() * phasor).real
    return terms.sum(-1) / math.sqrt(config.head_size)


def naive_tapa(config, head, weights, q, k, distance):
    """Equations 12 and 16 of the paper."""
    theta, hs = config.tapa_theta, config.head_size
    a = round(theta * hs)
    if config.tapa_phase == 'quadratic':
        phi = torch.einsum('btd,bsd->bts', q[..., a:], k[..., a:])
    else:
        phi = q[..., a:].sum(-1)[:, :, None] + k[..., a:].sum(-1)[:, None, :]
    phi = phi / math.sqrt((1 - theta) * hs)
    amplitude = torch.einsum('btd,bsd->bts', q[..., :a], k[..., :a]) / math.sqrt(theta * hs)
    power = distance.abs() ** config.tapa_alpha
    return amplitude * torch.cos(config.tapa_scale * power * phi)


NAIVE = {
    'rope': naive_rotary,
    'spectral': naive_rotary,
    'bifocal': naive_rotary,
    'tapa': naive_tapa,
    'nope': naive_nope,
}


def naive_attention(config, weights, x):
    """The layer, a head at a time, in float64."""
    T, hs = x.size(1), config.head_size
    nh, nkv = config.n_head, config.n_kv_head
    W_q, W_k, W_v = weights['qkv.weight'].split([nh * hs, nkv * hs, nkv * hs])
    distance = (torch.arange(T)[:, None] - torch.arange(T)).double()  # m - n
    heads = []
    for head in range(nh):
        shared = head // (nh // nkv)
        q = x @ W_q[head * hs:(head + 1) * hs].T
        k = x @ W_k[shared * hs:(shared + 1) * hs].T
        v = x @ W_v[shared * hs:(shared + 1) * hs].T
        scores = NAIVE[config.attention](config, head, weights, q, k, distance)
        if config.log_scale:
            position = torch.arange(1, T + 1).double()
            scores = scores * position.log()[:, None] / math.log(config.log_scale)
        heads.append(scores.masked_fill(distance < 0, float('-inf')).softmax(-1) @ v)
    return torch.cat(heads, dim=-1) @ weights['proj.weight'].T


def test_every_attention_has_a_naive_formula_and_an_arm():
    assert set(NAIVE) == set(ATTENTIONS) == {options['attention'] for options in ARMS.values()}


@arms
def test_attention_equals_the_formula_in_float64(arm):
    """Outputs, and gradients of the input and of every parameter."""
    layer = stir(build(**ARMS[arm])).blocks[0].attention
    x = torch.randn(2, 9, 32)
    weights = {name: p.detach().double().requires_grad_() for name, p in layer.named_parameters()}
    x32, x64 = x.clone().requires_grad_(), x.double().requires_grad_()
    ours, naive = layer(x32), naive_attention(layer.config, weights, x64)
    torch.testing.assert_close(ours.double(), naive, rtol=1e-4, atol=1e-5)
    cotangent = torch.randn_like(x)
    (ours * cotangent).sum().backward()
    (naive * cotangent.double()).sum().backward()
    torch.testing.assert_close(x32.grad.double(), x64.grad, rtol=1e-3, atol=1e-4)
    for name, p in layer.named_parameters():
        expected = weights[name].grad
        if expected is None:
            expected = torch.zeros_like(weights[name])
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(p.grad.double() / scale, expected / scale, rtol=1e-3,
                                   atol=1e-5, msg=lambda text: f'{name}: {text}')


@arms
def test_the_fast_path_is_the_softmax_of_the_scores(arm):
    """For complete texts, and for the last queries of a text."""
    attention = stir(build(**ARMS[arm])).blocks[1].attention
    position = torch.arange(12)
    q, k, v = attention.project(torch.randn(2, 12, 32), position)
    rotated_q, rotated_k = attention.rotate(q, k, position)
    for T in (12, 5, 1):
        fast = attention.attend(rotated_q[:, :, -T:], rotated_k, v)
        written_out = Attention.attend(attention, q[:, :, -T:], k, v)
        torch.testing.assert_close(fast, written_out, rtol=1e-4, atol=1e-5)


def output_by(attention, formula, x):
    """The layer's output if its scores were those of `formula`, of one sequence x (1, T, C)."""
    q, k, v = attention.project(x, torch.arange(x.size(1)))
    scores = formula(q, k).masked_fill(distances(q, k) < 0, -math.inf)
    return attention.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize('base', [Attention, NoPE, RoPE, TAPA], ids=lambda base: base.__name__)
def test_an_attention_is_its_scores(base):
    """Whatever class it extends: a faster path for another formula is not inherited."""
    class ALiBi(base):
        def scores(self, q, k):
            return q @ k.mT / math.sqrt(q.size(-1)) - 0.5 * distances(q, k)

    attention = build(attention='nope').blocks[0].attention
    mine = ALiBi(attention.config)
    mine.load_state_dict(attention.state_dict())
    x = torch.randn(1, 6, 32)
    bias = torch.tensor([[-0.5 * (m - n) for n in range(6)] for m in range(6)])
    expected = output_by(attention, lambda q, k: q @ k.mT / math.sqrt(8) + bias, x)
    torch.testing.assert_close(mine(x), expected)


def test_a_new_phasor_is_a_new_formula():
    class Decay(RoPE):
        def phasor(self, distance):
            return 0.9 ** distance.abs() * super().phasor(distance)

    attention = Decay(build().config)
    x = torch.randn(1, 6, 32)
    torch.testing.assert_close(attention(x), output_by(attention, attention.scores, x))
    assert not torch.allclose(attention(x), output_by(attention, RoPE(attention.config).scores, x))


def test_apply_rotary_is_a_complex_product():
    x, angle, amplitude = torch.randn(2, 3, 5, 8), torch.randn(3, 5, 4), torch.rand(3, 1, 4)
    pairs = torch.complex(x[..., :4], x[..., 4:])
    expected = pairs * torch.polar(amplitude.expand(3, 5, 4).contiguous(), angle)
    expected = torch.cat([expected.real, expected.imag], dim=-1)
    torch.testing.assert_close(apply_rotary(x, angle, amplitude), expected)


def test_rope_starts_at_the_papers_frequencies():
    theta = build(n_embd=32, n_head=4).blocks[0].attention.theta
    assert theta.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])


@pytest.mark.parametrize('name', ROTARY)
def test_rotary_scores_depend_on_the_distance_only(name):
    attention = stir(build(attention=name)).blocks[0].attention
    q, k = torch.randn(2, 1, 4, 1, 8).expand(2, 1, 4, 30, 8)  # the same vectors everywhere
    scores = attention.scores(q, k)[0]  # (nh, 30, 30)
    for distance in range(-29, 30):
        diagonal = scores.diagonal(-distance, dim1=1, dim2=2)
        first = diagonal[:, :1].expand_as(diagonal)
        torch.testing.assert_close(diagonal, first, rtol=1e-4, atol=1e-4)
    assert scores[:, 20, 0].sub(scores[:, 20, 19]).abs().max() > 1e-2  # and they do depend on it


def test_phase_cancels_on_both_sides_and_acts_on_the_query_alone():
    idx = torch.randint(VOCABULARY, (2, 12))
    for phase_on in ('both', 'query'):
        model = build(attention='spectral', phase_on=phase_on)
        phases = [block.attention.Phi for block in model.blocks]
        before = model(idx)[0]
        model(idx, idx)[1].backward()
        gradient = max(Phi.grad.abs().max().item() for Phi in phases)
        with torch.no_grad():
            for Phi in phases:
                Phi.add_(1.0)
        change = (model(idx)[0] - before).abs().max().item()
        if phase_on == 'query':
            assert gradient > 1e-3 and change > 1e-2
        else:
            assert gradient < 1e-6 and change < 1e-4


def test_spectral_starts_as_rope_exactly():
    idx = torch.randint(VOCABULARY, (2, 20))
    rope, spectral = build(), build(attention='spectral', phase_std=0.0)
    torch.testing.assert_close(rope(idx)[0], spectral(idx)[0], rtol=0, atol=1e-6)
    Omega, theta = spectral.blocks[0].attention.Omega, rope.blocks[0].attention.theta
    assert torch.equal(Omega[0], theta)
    noisy = build(attention='spectral')
    assert 1e-6 < (rope(idx)[0] - noisy(idx)[0]).abs().max() < 0.05


def test_bifocal_with_all_heads_spectral_is_spectral():
    idx = torch.randint(VOCABULARY, (2, 20))
    bifocal = build(attention='bifocal', n_spectral_head=4)
    assert torch.equal(bifocal(idx)[0], build(attention='spectral')(idx)[0])
    half = build(attention='bifocal').positional_parameters()
    assert [tuple(p.shape) for p in half] == [(2, 4)] * 6


@arms
def test_the_future_never_changes_the_past(arm):
    model = stir(build(**ARMS[arm]))
    idx = torch.randint(VOCABULARY, (2, 16))
    changed = idx.clone()
    changed[:, 9:] = (idx[:, 9:] + 1) % VOCABULARY
    before, after = model(idx)[0], model(changed)[0]
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


@arms
def test_a_constant_input_gives_the_same_logits_everywhere(arm):
    """Position acts through the scores only: the weighted mean of equal values is that value."""
    logits = stir(build(**ARMS[arm]))(torch.full((1, 40), 3))[0]
    torch.testing.assert_close(logits, logits[:, :1].expand_as(logits), rtol=0, atol=1e-5)


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_only_nope_ignores_the_order_of_the_past(attention):
    """One layer, the last position: without positions the past is a set."""
    model = stir(build(attention=attention, n_layer=1))
    idx = torch.randint(VOCABULARY, (1, 12))
    shuffled = torch.cat([idx[:, :11].flip(1), idx[:, 11:]], dim=1)
    same = torch.allclose(model(idx)[0][:, -1], model(shuffled)[0][:, -1], atol=1e-5)
    assert same == (attention == 'nope')


@arms
def test_cached_equals_uncached(arm):
    """A prompt in one piece, a chunk, then token by token; and what is generated."""
    model = stir(build(**ARMS[arm]))
    idx = torch.randint(VOCABULARY, (2, 17))
    caches = [KVCache(), KVCache()]
    ends = [5, 9, *range(10, 18)]
    pieces = [model(idx[:, start:end], caches=caches)[0]
              for start, end in zip([0, *ends], ends)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(idx)[0], rtol=1e-4, atol=1e-5)
    assert [cache.length for cache in caches] == [17, 17]
    for temperature in (0, 1.0):
        generator = torch.Generator().manual_seed(5)
        cached = model.generate(idx[:, :4], 12, temperature, 5, generator)
        generator.manual_seed(5)
        uncached = idx[:, :4]
        for _ in range(12):
            token = sample_token(model(uncached)[0][:, -1], temperature, 5, generator)
            uncached = torch.cat([uncached, token[:, None]], dim=1)
        assert torch.equal(cached, uncached)


def test_sample_token():
    def sample(*options, **more):
        return sample_token(logits, *options, generator=torch.Generator().manual_seed(0), **more)

    logits = torch.tensor([[0.0, 3.0, 2.0, -1.0]]).expand(4000, 4)
    for certain in (sample(0), sample(1e-320), sample(1e-5), sample(top_k=1)):
        assert certain.eq(1).all()
    assert set(sample(top_k=2).tolist()) == {1, 2}
    shares = torch.bincount(sample(2.0), minlength=4) / 4000
    torch.testing.assert_close(shares, (logits[0] / 2).softmax(-1), rtol=0, atol=0.03)


@pytest.mark.parametrize('attention', ['rope', 'spectral', 'tapa'])
@pytest.mark.parametrize('how', ['autocast', 'cast'])
def test_angles_stay_float32_where_the_rest_is_bfloat16(attention, how):
    """bfloat16 cannot tell position 256 from 257, nor the powers of their distances."""
    layer = stir(build(attention=attention, n_embd=64)).blocks[0].attention
    q, k, v = torch.randn(3, 1, 4, 300, 16).bfloat16()
    position = torch.arange(300)
    exact = layer.attend(*layer.rotate(q.float(), k.float(), position), v.float())
    if how == 'cast':
        layer = layer.bfloat16()
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=how == 'autocast'):
        rounded = layer.attend(*layer.rotate(q, k, position), v)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize('cast', [torch.nn.Module.bfloat16, torch.nn.Module.half],
                         ids=['bfloat16', 'half'])
def test_a_cast_model_keeps_its_frequencies(cast):
    model = cast(build(attention='spectral'))
    attention = model.blocks[0].attention
    assert attention.qkv.weight.dtype.itemsize == 2
    own = [attention.theta, attention.Omega, attention.A, attention.Phi]
    assert {tensor.dtype for tensor in own} == {torch.float32}
    assert torch.equal(attention.Omega, build(attention='spectral').blocks[0].attention.Omega)
    assert model(torch.zeros(1, 4, dtype=torch.int64))[0].isfinite().all()
    assert {p.dtype for p in model.double().parameters()} == {torch.float64}


def test_forward_returns_every_logit_and_the_mean_loss_of_the_scored_targets():
    model = build()
    idx, targets = torch.randint(VOCABULARY, (2, 2, 7))
    targets[0, :5] = -1
    logits, loss = model(idx, targets)
    assert logits.shape == (2, 7, VOCABULARY)
    assert model(idx)[1] is None and torch.equal(model(idx)[0], logits)
    nats = -logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(loss, nats[targets != -1].mean())


def test_all_attentions_start_from_the_same_weights():
    models = [build(seed=3, attention=attention) for attention in ATTENTIONS]
    for name, p in models[0].named_parameters():
        assert all(torch.equal(p, model.get_parameter(name)) for model in models), name


@pytest.mark.parametrize('tied', [False, True])
def test_first_weights_keep_activations_at_size_one(tied, monkeypatch):
    monkeypatch.setattr(GPTConfig, 'tie_embeddings', tied)
    model = build(n_embd=256, n_layer=4)
    x = torch.randn(4, 50, 256)
    for block in model.blocks:
        x = block(x)
    assert 1 < x.std() < 2
    _, loss = model(*torch.randint(VOCABULARY, (2, 4, 50)))
    assert loss.item() == pytest.approx(math.log(VOCABULARY), abs=0.8 if tied else 0.02)
    assert (model.lm_head.weight is model.embedding.weight) == tied


def groups_of(model, muon_lr=None, **options):
    optimizers = model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2, muon_lr=muon_lr,
                                            **options)
    return {group['role']: dict(group, by=type(optimizer).__name__)
            for optimizer in optimizers for group in optimizer.param_groups}


@arms
@pytest.mark.parametrize('muon_lr', [None, 0.02], ids=['adamw', 'muon'])
@pytest.mark.parametrize('tied', [False, True], ids=['', 'tied'])
def test_each_parameter_is_in_one_group_and_only_matrices_decay(arm, muon_lr, tied, monkeypatch):
    monkeypatch.setattr(GPTConfig, 'tie_embeddings', tied)
    model = build(**ARMS[arm])
    groups = groups_of(model, muon_lr)
    grouped = [id(p) for group in groups.values() for p in group['params']]
    assert sorted(grouped) == sorted(map(id, model.parameters()))
    rates = dict(others=1e-3, matrices=1e-3, Muon=muon_lr, Omega=1e-2, A=1e-2, Phi=1e-2)
    for role, group in groups.items():
        assert group['weight_decay'] == (0.1 if role == 'matrices' else 0)
        assert group['lr'] == group['peak_lr'] == rates.get(role, 1e-2)  # yours, too
        assert group['by'] == ('Muon' if role == 'Muon' else 'AdamW')
    linear = [module for module in model.blocks.modules() if isinstance(module, torch.nn.Linear)]
    by_role = {id(p) for p in groups['Muon' if muon_lr else 'matrices']['params']}
    assert by_role >= {id(module.weight) for module in linear}
    assert any(p is model.embedding.weight for p in groups['others']['params'])


def test_only_omega_decays_of_the_learned_rotation():
    groups = groups_of(build(attention='spectral'), frequency_decay=0.3)
    decays = {role: group['weight_decay'] for role, group in groups.items()}
    assert decays == dict(matrices=0.1, others=0, Omega=0.3, A=0, Phi=0)


@pytest.mark.parametrize('shape', [(48, 16), (16, 16), (16, 44)])
def test_muon_is_that_of_torch_but_for_its_rounding(shape):
    """torch's computes in bfloat16, with 3 digits."""
    first = torch.randn(shape)
    ours, theirs = (torch.nn.Parameter(first.clone()) for _ in range(2))
    muon = Muon([dict(params=[ours], lr=0.02)])
    torch_muon = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0)
    for scale in (1.0, 1e-4, 0.0, 3.0):  # the size of a gradient does not matter; 0 is no error
        before, gradient = ours.detach().clone(), scale * torch.randn(shape)
        for p, optimizer in ((ours, muon), (theirs, torch_muon)):
            p.grad = gradient.clone()
            optimizer.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
        sizes = torch.linalg.svdvals(ours.detach() - before)
        sizes = sizes / (0.02 * max(1, shape[0] / shape[1]) ** 0.5)
        assert 0.5 < sizes.min() and sizes.max() < 1.3


def test_what_is_not_learned_and_what_has_the_rate_0_gets_no_gradient():
    for muon_lr in (None, 0.0, 0.02):
        model = build(attention='spectral', learn='frequency')
        model.configure_optimizers(0.0, 0.1, (0.9, 0.99), 1e-2, muon_lr=muon_lr)
        model(*torch.randint(VOCABULARY, (2, 1, 9)))[1].backward()
        for name, p in model.named_parameters():
            assert (p.grad is not None) == name.endswith('.Omega'), name


@pytest.mark.parametrize('options, message', [
    (dict(attention='sinusoid'), "attention='sinusoid': must be one of rope, spectral"),
    (dict(n_embd=30), 'n_embd=30: must be a multiple of n_head'),
    (dict(n_embd=12), 'head_size=3: must be even'),
    (dict(n_kv_head=3), 'n_kv_head=3: must be a divisor of n_head'),
    (dict(attention='bifocal', n_kv_head=1), 'n_kv_head=1: must be at least 2'),
    (dict(attention='bifocal', n_spectral_head=5), 'n_spectral_head=5: must be from 1 to 4'),
    (dict(attention='tapa', tapa_theta=0.3), 'tapa_theta=0.3: must be a share of 8'),
    (dict(attention='tapa', tapa_theta=1.0), 'tapa_theta=1.0: must be'),
    (dict(attention='tapa', tapa_phase='cubic'), "tapa_phase='cubic': must be quadratic or"),
    (dict(tapa_alpha=0.0), 'tapa_alpha=0.0: must be positive'),
    (dict(tapa_scale=0.0), 'tapa_scale=0.0: must be positive'),
    (dict(attention='spectral', phase_on='key'), "phase_on='key': must be query or both"),
    (dict(attention='spectral', learn='frequency,base'), "learn='frequency,base': must be some"),
    (dict(log_scale=1), 'log_scale=1: must be 0 or at least 2'),
    (dict(log_scale=8, attention='tapa'), 'log_scale=8: must be 0 with tapa'),
    (dict(rope='spiral'), "rope='spiral': must be one of geometric"),
    (dict(n_layer=0), 'n_layer=0: must be positive'),
    (dict(n_head=0), 'n_head=0: must be positive'),
    (dict(n_embd=2**62), 'n_embd=4611686018427387904: must be positive, and below'),
    (dict(rope_base=1.0), 'rope_base=1.0: must be greater than 1'),
    (dict(init_std=-1.0), 'init_std=-1.0: must be 0 or positive'),
], ids=str)
def test_bad_options_name_the_value_and_what_is_allowed(options, message):
    with pytest.raises(UserError, match=message):
        build(**options)


ALONE = '''
import torch
from model import ATTENTIONS, GPT, GPTConfig
for attention in ATTENTIONS:
    model = GPT(GPTConfig(vocab_size=7, n_layer=1, attention=attention))
    optimizer, = model.configure_optimizers(1e-2, 0.0, (0.9, 0.99), 1e-2)
    idx = torch.randint(7, (1, 301), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(3):
        loss = model(idx[:, :-1], idx[:, 1:])[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0], attention
    assert model.generate(idx, 5).shape == (1, 306), attention
'''


def test_the_file_alone_trains_every_attention(tmp_path):
    (tmp_path / 'model.py').write_text((ROOT / 'model.py').read_text())
    done = subprocess.run([sys.executable, '-c', ALONE], cwd=tmp_path, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
