"""
The mathematics of model.py: each attention's formula, written out naively in float64, beside the code.

A new attention needs its naive formula here: a function in NAIVE, of one head, and a line in ARMS.
"""

import math

import pytest
import torch

from model import ATTENTIONS, GPT, ROTARY, GPTConfig, Muon, Way, draw, positions, turn

ARMS = {
    'rope': dict(attention='rope'),
    'rope, grouped': dict(attention='rope', n_kv_head=2),
    'spectral': dict(attention='spectral'),
    'spectral, grouped': dict(attention='spectral', n_kv_head=2),
    'spectral, shared': dict(attention='spectral', spectral_shared=True),
    'spectral, phase on both': dict(attention='spectral', phase_on='both'),
    'bifocal': dict(attention='bifocal'),
    'bifocal, three of four spectral, shared': dict(attention='bifocal', n_spectral_head=3, spectral_shared=True),
    'bifocal, grouped, log scale, other head size': dict(attention='bifocal', n_kv_head=2, log_scale=6, head_dim=12),
    'nope': dict(attention='nope'),
    'nope, log scale': dict(attention='nope', log_scale=20),
    'tapa': dict(attention='tapa'),
    'tapa, grouped, another split': dict(attention='tapa', n_kv_head=2, tapa_theta=0.25, tapa_alpha=0.3),
    'tapa, linear': dict(attention='tapa', tapa_phase='linear'),
}
arms = pytest.mark.parametrize('arm', ARMS)
VOCABULARY = 11


def build(seed=0, **options):
    torch.manual_seed(seed)
    return GPT(GPTConfig(**{**dict(vocab_size=VOCABULARY, n_layer=2, n_head=4, n_embd=32), **options}))


def way_parameters(model):
    return {name: p for name, p in model.named_parameters() if '.way.' in name}


def stir(model):
    """Move what the ways to attend learn away from its start, so that each part matters."""
    with torch.no_grad():
        for parameter in way_parameters(model).values():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def naive_nope(config, head, weights, q, k, distance):
    return torch.einsum('btd,bsd->bts', q, k) / math.sqrt(config.head_size)


def naive_rotary(config, head, weights, q, k, distance):
    """sum_i A_i^2 Re[q_i conj(k_i) e^{1j ((m-n) Omega_i + Phi_i)}] / sqrt(hs), Phi - Phi = 0 if it is on both."""
    P = config.head_size // 2
    Omega = torch.tensor([config.rope_base ** (-2 * i / config.head_size) for i in range(P)], dtype=torch.float64)
    A, Phi = torch.ones(P).double(), torch.zeros(P).double()
    key_head = head // (config.n_head // config.nkv)
    row = key_head - (config.nkv - config.n_spectral)  # of the spectral heads, which are the last ones
    if row >= 0:
        Omega, A, Phi = (weights[f'way.{name}'][0 if config.spectral_shared else row] for name in ('Omega', 'A', 'Phi'))
        Phi = 0 * Phi if config.phase_on == 'both' else Phi
    q, k = torch.complex(q[..., :P], q[..., P:]), torch.complex(k[..., :P], k[..., P:])
    turns = torch.polar(torch.ones(1).double(), distance[..., None] * Omega + Phi)
    return (A**2 * (q[:, :, None] * k[:, None].conj() * turns).real).sum(-1) / math.sqrt(config.head_size)


def naive_tapa(config, head, weights, q, k, distance):
    """Equations 12 and 16 of the paper."""
    theta, hs = config.tapa_theta, config.head_size
    a = round(theta * hs)
    if config.tapa_phase == 'quadratic':
        phi = torch.einsum('btd,bsd->bts', q[..., a:], k[..., a:]) / math.sqrt((1 - theta) * hs)
    else:
        phi = (q[..., a:].sum(-1)[:, :, None] + k[..., a:].sum(-1)[:, None, :]) / math.sqrt((1 - theta) * hs)
    amplitude = torch.einsum('btd,bsd->bts', q[..., :a], k[..., :a]) / math.sqrt(theta * hs)
    return amplitude * torch.cos(2 * math.pi * distance.abs() ** config.tapa_alpha * phi)


NAIVE = {'rope': naive_rotary, 'spectral': naive_rotary, 'bifocal': naive_rotary,
         'tapa': naive_tapa, 'nope': naive_nope}


def naive_attention(config, weights, x):
    """The layer, a head at a time, in float64."""
    T, hs = x.size(1), config.head_size
    W_q, W_k, W_v = weights['qkv.weight'].split([config.n_head * hs, config.nkv * hs, config.nkv * hs])
    distance = (torch.arange(T)[:, None] - torch.arange(T)).double()  # m - n
    heads = []
    for head in range(config.n_head):
        shared = head // (config.n_head // config.nkv)
        q, k, v = (x @ W[i * hs:(i + 1) * hs].T for W, i in ((W_q, head), (W_k, shared), (W_v, shared)))
        scores = NAIVE[config.attention](config, head, weights, q, k, distance)
        if config.log_scale:
            scores = scores * torch.log(torch.arange(1, T + 1).double())[:, None] / math.log(config.log_scale)
        heads.append(scores.masked_fill(distance < 0, float('-inf')).softmax(-1) @ v)
    return torch.cat(heads, dim=-1) @ weights['proj.weight'].T


def test_every_attention_has_a_naive_formula_and_an_arm():
    assert set(NAIVE) == set(ATTENTIONS) == {options['attention'] for options in ARMS.values()}


@arms
def test_attention_equals_the_formula_in_float64(arm):
    """Outputs, and gradients of the input and of every parameter, those of the way to attend included."""
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
        expected = torch.zeros_like(weights[name]) if weights[name].grad is None else weights[name].grad
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(p.grad.double() / scale, expected / scale, rtol=1e-3, atol=1e-5,
                                   msg=lambda text: f'{name}: {text}')


@arms
def test_the_fast_path_is_the_softmax_of_the_scores(arm):
    """forward against the formula as the class itself states it, for whole texts, and for queries behind more keys."""
    attention = stir(build(**ARMS[arm])).blocks[1].attention
    q, k, v = attention.project(torch.randn(2, 12, 32))
    for T in (12, 5, 1):
        fast, slow = attention.way(q[:, :, -T:], k, v), Way.forward(attention.way, q[:, :, -T:], k, v)
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)


def test_a_way_to_attend_is_its_scores():
    """The base class does the rest: ALiBi in one formula, here and in no other place."""
    class ALiBi(Way):
        def scores(self, q, k):
            m, n = positions(q, k)
            return q @ k.mT / math.sqrt(q.size(-1)) - 0.5 * (m[:, None] - n)

    attention = build(attention='nope').blocks[0].attention
    attention.way = ALiBi(attention.config)
    x = torch.randn(1, 6, 32)
    q, k, v = attention.project(x)
    bias = torch.tensor([[-0.5 * (m - n) if n <= m else -math.inf for n in range(6)] for m in range(6)])
    expected = ((q @ k.mT / math.sqrt(8) + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(x), attention.proj(expected))


def test_turn_is_a_complex_product():
    x, angle, amplitude = torch.randn(2, 3, 5, 8), torch.randn(3, 5, 4), torch.rand(3, 1, 4)
    expected = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(amplitude.expand(3, 5, 4).contiguous(), angle)
    torch.testing.assert_close(turn(x, angle, amplitude), torch.cat([expected.real, expected.imag], dim=-1))


def test_rope_starts_at_the_papers_frequencies():
    theta = build(n_embd=32, n_head=4).blocks[0].attention.way.theta
    assert theta.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])


@pytest.mark.parametrize('attention', ROTARY)
def test_rotary_scores_depend_on_the_distance_only(attention):
    way = stir(build(attention=attention)).blocks[0].attention.way
    q, k = torch.randn(2, 1, 4, 1, 8).expand(2, 1, 4, 30, 8)  # the same query and the same key everywhere
    scores = way.scores(q, k)[0]  # (nh, 30, 30)
    for distance in range(-29, 30):
        diagonal = scores.diagonal(-distance, dim1=1, dim2=2)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
    assert scores[:, 20, 0].sub(scores[:, 20, 19]).abs().max() > 1e-2  # and they do depend on it


def test_phase_cancels_on_both_sides_and_acts_on_the_query_alone():
    idx = torch.randint(VOCABULARY, (2, 12))
    for phase_on, acts in (('both', False), ('query', True)):
        model = build(attention='spectral', phase_on=phase_on)
        phases = [p for name, p in way_parameters(model).items() if name.endswith('Phi')]
        before = model(idx)[0]
        model(idx, idx)[1].backward()
        gradient = max(Phi.grad.abs().max().item() for Phi in phases)
        with torch.no_grad():
            for Phi in phases:
                Phi.add_(1.0)
        change = (model(idx)[0] - before).abs().max().item()
        assert (gradient > 1e-3) == acts and (change > 1e-2) == acts, (phase_on, gradient, change)
        assert acts or (gradient < 1e-6 and change < 1e-4), (phase_on, gradient, change)


def test_spectral_starts_as_rope_exactly():
    idx = torch.randint(VOCABULARY, (2, 20))
    rope, spectral, noisy = build(), build(attention='spectral', phase_std=0.0), build(attention='spectral')
    torch.testing.assert_close(rope(idx)[0], spectral(idx)[0], rtol=0, atol=1e-6)
    assert torch.equal(spectral.blocks[0].attention.way.Omega[0], rope.blocks[0].attention.way.theta)
    assert 1e-6 < (rope(idx)[0] - noisy(idx)[0]).abs().max() < 0.05


def test_bifocal_with_all_heads_spectral_is_spectral():
    idx = torch.randint(VOCABULARY, (2, 20))
    assert torch.equal(build(attention='bifocal', n_spectral_head=4)(idx)[0], build(attention='spectral')(idx)[0])
    assert [p.shape for p in way_parameters(build(attention='bifocal')).values()] == [(2, 4)] * 6  # half by default


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
    """Position acts through the scores only: of equal values, whatever the scores, attention returns that value."""
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
    """A prompt in one piece, a chunk, then token by token."""
    model = stir(build(**ARMS[arm]))
    idx, past = torch.randint(VOCABULARY, (2, 17)), [[], []]
    pieces = [model(idx[:, a:b], past=past)[0] for a, b in ((0, 5), (5, 9), *((t, t + 1) for t in range(9, 17)))]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(idx)[0], rtol=1e-4, atol=1e-5)
    assert past[0][0].size(2) == 17
    for temperature in (0, 1.0):
        out = [model.generate(idx[:, :4], 12, temperature, 5, torch.Generator().manual_seed(5), cache)
               for cache in (True, False)]
        assert torch.equal(*out) and out[0].shape == (2, 16) and torch.equal(out[0][:, :4], idx[:, :4])


def test_draw():
    logits = torch.tensor([[0.0, 3.0, 2.0, -1.0]]).expand(4000, 4)
    assert draw(logits, temperature=0).eq(1).all() and draw(logits, top_k=1).eq(1).all()
    assert set(draw(logits, top_k=2, generator=torch.Generator().manual_seed(0)).tolist()) == {1, 2}
    shares = torch.bincount(draw(logits, 2.0, generator=torch.Generator().manual_seed(0)), minlength=4) / 4000
    torch.testing.assert_close(shares, (logits[0] / 2).softmax(-1), rtol=0, atol=0.03)


def test_phases_stay_float32_under_bfloat16_autocast():
    """bfloat16 cannot tell position 256 from 257, nor the powers of their distances."""
    for attention in ('spectral', 'tapa'):
        way = stir(build(attention=attention, n_embd=64)).blocks[0].attention.way
        q, k, v = torch.randn(3, 1, 4, 300, 16)
        exact = way(q, k, v)
        with torch.autocast('cpu', dtype=torch.bfloat16):
            rounded = way(*(x.bfloat16() for x in (q, k, v)))
        assert rounded.dtype == torch.bfloat16
        assert (rounded.float() - exact).norm() < 0.03 * exact.norm(), attention


def test_forward_returns_every_logit_and_the_mean_loss_of_the_scored_targets():
    model = build()
    idx, targets = torch.randint(VOCABULARY, (2, 7)), torch.randint(VOCABULARY, (2, 7))
    targets[0, :5] = -1
    logits, loss = model(idx, targets)
    assert logits.shape == (2, 7, VOCABULARY) and model(idx)[1] is None and torch.equal(model(idx)[0], logits)
    nats = -logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(loss, nats[targets != -1].mean())


def test_all_attentions_start_from_the_same_weights():
    models = {attention: build(seed=3, attention=attention) for attention in ATTENTIONS}
    for name, p in models['rope'].named_parameters():
        assert all(torch.equal(p, dict(model.named_parameters())[name]) for model in models.values()), name


@pytest.mark.parametrize('tied', [False, True])
def test_first_weights_keep_activations_at_size_one(tied):
    model = build(n_embd=256, n_layer=4, tie_embeddings=tied)
    x = torch.randn(4, 50, 256)
    for block in model.blocks:
        x = block(x)
    assert 1 < x.std() < 2
    _, loss = model(*torch.randint(VOCABULARY, (2, 4, 50)))
    assert loss.item() == pytest.approx(math.log(VOCABULARY), abs=0.8 if tied else 0.02)
    assert (model.lm_head is None) == tied


def groups_of(model, *arguments):
    optimizers = model.configure_optimizers(*arguments)
    return [dict(group, by=type(optimizer).__name__) for optimizer in optimizers for group in optimizer.param_groups]


RATES = (1e-3, 0.1, (0.9, 0.99), 1e-2)


@arms
@pytest.mark.parametrize('muon_lr', [None, 0.02], ids=['adamw', 'muon'])
def test_each_parameter_is_in_one_group_and_only_matrices_decay(arm, muon_lr):
    for options in (ARMS[arm], dict(ARMS[arm], tie_embeddings=True)):
        model = build(**options)
        groups = groups_of(model, *RATES, {}, muon_lr)
        assert sorted(id(p) for group in groups for p in group['params']) == sorted(map(id, model.parameters()))
        roles = {group['role']: group for group in groups}
        assert len(roles) == len(groups)
        own = {name.split('.')[-1] for name in way_parameters(model)}
        rates = {'others': 1e-3, 'matrices': 1e-3, 'Muon': muon_lr, **dict.fromkeys(own, 1e-2)}
        for role, group in roles.items():
            assert group['weight_decay'] == (0.1 if role == 'matrices' else 0)
            assert group['lr'] == group['peak_lr'] == rates[role]
            assert group['by'] == ('Muon' if role == 'Muon' else 'AdamW')
        blocks = [p for name, p in model.blocks.named_parameters() if p.dim() == 2 and '.way.' not in name]
        assert {id(p) for p in roles['Muon' if muon_lr else 'matrices']['params']} >= set(map(id, blocks))
        assert any(p is model.embedding.weight for p in roles['others']['params'])
    groups = groups_of(build(attention='spectral'), *RATES, dict(Omega=0.3, A=0.2))
    decays = {group['role']: group['weight_decay'] for group in groups}
    assert decays == {'matrices': 0.1, 'others': 0, 'Omega': 0.3, 'A': 0.2, 'Phi': 0}


@pytest.mark.parametrize('shape', [(48, 16), (16, 16), (16, 44)])
def test_muon_is_that_of_torch_but_for_its_rounding(shape):
    """torch's computes in bfloat16, with 3 digits; a step has singular values near 1, times the rate."""
    first = torch.randn(shape)
    ours, theirs = (torch.nn.Parameter(first.clone()) for _ in range(2))
    optimizers = Muon([dict(params=[ours], lr=0.02)]), torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0)
    for scale in (1.0, 1e-4, 0.0, 3.0):  # a gradient's size is of no account, and none at all is no error
        before, gradient = ours.detach().clone(), scale * torch.randn(shape)
        for p, optimizer in zip((ours, theirs), optimizers):
            p.grad = gradient.clone()
            optimizer.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
        sizes = torch.linalg.svdvals(ours.detach() - before) / (0.02 * max(1, shape[0] / shape[1]) ** 0.5)
        assert 0.5 < sizes.min() and sizes.max() < 1.3


def test_what_is_not_learned_and_what_has_the_rate_0_gets_no_gradient():
    for muon_lr in (None, 0.0, 0.02):
        model = build(attention='spectral', learn='frequency')
        model.configure_optimizers(0.0, *RATES[1:], {}, muon_lr)
        model(*torch.randint(VOCABULARY, (2, 1, 9)))[1].backward()
        for name, p in model.named_parameters():
            assert (p.grad is not None) == name.endswith('.way.Omega'), name


@pytest.mark.parametrize('options, message', [
    (dict(attention='sinusoid'), "attention='sinusoid': must be one of rope, spectral"),
    (dict(n_embd=30), 'n_embd=30: must be a multiple of n_head=4'),
    (dict(n_embd=12), 'head_size=3: must be even'),
    (dict(n_kv_head=3), 'n_kv_head=3: must be 0'),
    (dict(attention='bifocal', n_kv_head=1), "attention='bifocal': must be another one with fewer than 2"),
    (dict(attention='bifocal', n_spectral_head=5), 'n_spectral_head=5: must be 0, or up to 4 with bifocal'),
    (dict(attention='rope', n_spectral_head=2), 'n_spectral_head=2: must be'),
    (dict(attention='tapa', tapa_theta=0.3), 'tapa_theta=0.3: must be'),
    (dict(attention='tapa', tapa_theta=1.0), 'tapa_theta=1.0: must be'),
    (dict(tapa_phase='cubic'), "tapa_phase='cubic': must be quadratic or linear"),
    (dict(tapa_alpha=0.0), 'tapa_alpha=0.0: must be positive'),
    (dict(phase_on='key'), "phase_on='key': must be query or both"),
    (dict(learn='frequency,base'), "learn='frequency,base': must be some of frequency,amplitude,phase"),
    (dict(log_scale=1), 'log_scale=1: must be 0, or without tapa at least 2'),
    (dict(log_scale=8, attention='tapa'), 'log_scale=8: must be'),
    (dict(rope='linear', attention='nope'), "rope='linear': must be geometric with nope"),
    (dict(n_layer=0), 'n_layer=0: must be positive'),
    (dict(n_head=0), 'n_head=0: must be positive'),
    (dict(rope_base=1.0), 'rope_base=1.0: must be greater than 1'),
    (dict(init_std=-1.0), 'init_std=-1.0: must be 0 or positive'),
], ids=str)
def test_bad_options_name_the_value_and_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
