"""The mathematics of model.py: the papers' formulae, written out naively in float64, beside the code."""

import dataclasses
import math

import pytest
import torch

import model as model_file
from model import ATTENTIONS, GPT, TAPA, Cache, GPTConfig, draw, rope_frequencies, rope_stretch, rotate, rotation, tapa_scores

ARMS = {
    'rope': dict(attention='rope'),
    'rope, grouped': dict(attention='rope', n_kv_head=2),
    'spectral': dict(attention='spectral'),
    'spectral, grouped': dict(attention='spectral', n_kv_head=2),
    'spectral, shared': dict(attention='spectral', spectral_shared=True),
    'spectral, phase on both': dict(attention='spectral', phase_on='both'),
    'bifocal': dict(attention='bifocal'),
    'bifocal, grouped': dict(attention='bifocal', n_kv_head=2),
    'bifocal, three eyes spectral, shared': dict(attention='bifocal', n_spectral_head=3, spectral_shared=True),
    'bifocal, grouped, log scale': dict(attention='bifocal', n_kv_head=2, log_scale=6),
    'nope, log scale': dict(attention='nope', log_scale=20),
    'tapa': dict(attention='tapa'),
    'tapa, grouped, split': dict(attention='tapa', n_kv_head=2, tapa_theta=0.25, tapa_alpha=0.3),
    'tapa, beyond its block size': dict(attention='tapa', block_size=5),
    'tapa, linear': dict(attention='tapa', tapa_phase='linear'),
    'tapa, linear, grouped': dict(attention='tapa', tapa_phase='linear', n_kv_head=1, tapa_theta=0.75),
    'nope': dict(attention='nope'),
    'bifocal, heads of another size': dict(attention='bifocal', n_kv_head=2, head_dim=12),
    'rope, interpolated': dict(attention='rope', rope_scaling='pi', rope_factor=3.0),
    'bifocal, grouped, ntk': dict(attention='bifocal', n_kv_head=2, rope_scaling='ntk', rope_factor=4.0),
    'rope, yarn': dict(attention='rope', rope_scaling='yarn', rope_factor=4.0, rope_original=40, yarn_beta_fast=4.0),
    'spectral, yarn': dict(attention='spectral', rope_scaling='yarn', rope_factor=4.0, rope_original=40, yarn_beta_fast=4.0, yarn_beta_slow=0.5, yarn_gain=1.2),
    'spectral, llama3': dict(attention='spectral', rope_scaling='llama3', rope_factor=4.0, rope_original=40, llama3_high=3.0, llama3_low=0.2),
}
arms = pytest.mark.parametrize('arm', ARMS)


def build(seed=0, **options):
    torch.manual_seed(seed)
    return GPT(GPTConfig(**{**dict(vocab_size=11, n_layer=2, n_head=4, n_embd=32), **options}))


def stir(model):
    """Move the spectral parameters away from their start, so that each of them matters."""
    with torch.no_grad():
        for rotary in model.spectral():
            for parameter in (rotary.Omega, rotary.A, rotary.Phi):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def naive_scaling(config, P):
    """Each frequency's factor, and that of the scores, as the papers and their code write them."""
    hs, s, b, L = 2 * P, config.rope_factor, config.rope_base, config.rope_original or config.block_size
    theta = [b ** (-2 * i / hs) for i in range(P)]
    if config.rope_scaling == 'pi':
        return [1 / s] * P, 1.0
    if config.rope_scaling == 'ntk':
        return [(b * s ** (hs / (hs - 2))) ** (-2 * i / hs) / theta[i] for i in range(P)], 1.0
    if config.rope_scaling == 'yarn':
        c = lambda r: hs * math.log(L / (2 * math.pi * r)) / (2 * math.log(b))
        low, high = max(math.floor(c(config.yarn_beta_fast)), 0), min(math.ceil(c(config.yarn_beta_slow)), hs - 1)
        kept = [1 - min(max((i - low) / (high - low), 0), 1) for i in range(P)]
        return [g + (1 - g) / s for g in kept], (config.yarn_gain or 0.1 * math.log(s) + 1) ** 2
    if config.rope_scaling == 'llama3':
        stretch = []
        for wavelength in (2 * math.pi / t for t in theta):
            smooth = (L / wavelength - config.llama3_low) / (config.llama3_high - config.llama3_low)
            fast, slow = wavelength < L / config.llama3_high, wavelength > L / config.llama3_low
            stretch.append(1 if fast else 1 / s if slow else (1 - smooth) / s + smooth)
        assert len(set(stretch)) >= 3  # some pairs of each kind
        return stretch, 1.0
    return [1.0] * P, 1.0


def naive_attention(config, weights, x):
    """The layer as the papers write it, a score at a time in spirit: complex pairs, float64, no fused anything."""
    B, T, C = x.shape
    nh, nkv, hs = config.n_head, config.n_kv_head or config.n_head, config.head_dim or C // config.n_head
    P = hs // 2
    W_q, W_k, W_v = weights['qkv.weight'].split([nh * hs, nkv * hs, nkv * hs])
    distance = (torch.arange(T)[:, None] - torch.arange(T)[None, :]).double()  # m - n
    theta = torch.tensor([config.rope_base ** (-2 * i / hs) for i in range(P)], dtype=torch.float64)
    stretch, gain = naive_scaling(config, P)
    out = []
    for h in range(nh):
        g = h // (nh // nkv)  # its key/value head
        q, k, v = x @ W_q[h * hs:(h + 1) * hs].T, x @ W_k[g * hs:(g + 1) * hs].T, x @ W_v[g * hs:(g + 1) * hs].T
        if config.attention == 'tapa':
            a = round(config.tapa_theta * hs)
            q_A, q_P, k_A, k_P = q[..., :a], q[..., a:], k[..., :a], k[..., a:]
            if config.tapa_phase == 'quadratic':
                phi = torch.einsum('btd,bsd->bts', q_P, k_P) / math.sqrt((1 - config.tapa_theta) * hs)
            else:
                phi = (q_P.sum(-1)[:, :, None] + k_P.sum(-1)[:, None, :]) / math.sqrt((1 - config.tapa_theta) * hs)
            score = torch.einsum('btd,bsd->bts', q_A, k_A) / math.sqrt(config.tapa_theta * hs)
            score = score * torch.cos(2 * math.pi * distance.abs() ** config.tapa_alpha * phi)
        elif config.attention == 'nope':
            score = torch.einsum('btd,bsd->bts', q, k) / math.sqrt(hs)
        else:
            first_spectral = nkv - config.n_spectral
            if g < first_spectral:
                Omega, A, Phi = theta, torch.ones(P).double(), torch.zeros(P).double()
            else:
                row = 0 if config.spectral_shared else g - first_spectral
                Omega, A, Phi = (weights[f'rotary.{name}'][row] for name in ('Omega', 'A', 'Phi'))
                if config.phase_on == 'both':
                    Phi = 0 * Phi  # Phi - Phi
            q_c, k_c = torch.complex(q[..., :P], q[..., P:]), torch.complex(k[..., :P], k[..., P:])
            turn = torch.polar(torch.ones(T, T, P).double(), distance[..., None] * Omega * torch.tensor(stretch) + Phi)  # e^{i ((m-n) Omega + Phi)}
            score = (A**2 * (q_c[:, :, None] * k_c[:, None, :].conj() * turn).real).sum(-1) * gain / math.sqrt(hs)
        if config.log_scale:
            score = score * torch.log(torch.arange(1, T + 1).double())[:, None] / math.log(config.log_scale)
        score = score.masked_fill(distance < 0, float('-inf'))
        out.append(score.softmax(-1) @ v)
    return torch.cat(out, dim=-1) @ weights['proj.weight'].T


@arms
def test_attention_equals_the_formula_in_float64(arm):
    """Outputs, and gradients of the input and of every parameter, spectral ones included."""
    layer = stir(build(**ARMS[arm])).blocks[0].attention
    B, T, C = 2, 9, 32
    x = torch.randn(B, T, C)
    weights = {name: p.detach().double().requires_grad_() for name, p in layer.named_parameters()}
    x32, x64 = x.clone().requires_grad_(), x.double().requires_grad_()
    ours, naive = layer(x32, torch.arange(T)), naive_attention(layer.config, weights, x64)
    torch.testing.assert_close(ours.double(), naive, rtol=1e-4, atol=1e-5)
    cotangent = torch.randn(B, T, C)
    (ours * cotangent).sum().backward()
    (naive * cotangent.double()).sum().backward()
    torch.testing.assert_close(x32.grad.double(), x64.grad, rtol=1e-3, atol=1e-4)
    for name, p in layer.named_parameters():
        expected = torch.zeros_like(weights[name]) if weights[name].grad is None else weights[name].grad
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(p.grad.double() / scale, expected / scale, rtol=1e-3, atol=1e-5, msg=lambda m: f'{name}: {m}')


@pytest.mark.parametrize('stored', [5, 100], ids=['recomputed', 'stored'])
def test_tapa_in_blocks_is_tapa(stored, monkeypatch):
    """Blocks that divide the length or do not, kept or computed anew for the gradients, from the start or behind a cache."""
    layer = build(attention='tapa', n_kv_head=2).blocks[0].attention
    x, T = torch.randn(2, 11, 32, requires_grad=True), 11

    def outcome():
        y = layer(x, torch.arange(T))
        return y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    whole = outcome()
    seen, explicit = [], TAPA.attend
    monkeypatch.setattr(TAPA, 'attend', lambda self, *arguments: seen.append(arguments[0].size(2) * arguments[1].size(2)) or explicit(self, *arguments))
    monkeypatch.setattr(TAPA, 'BLOCK', 4)
    monkeypatch.setattr(TAPA, 'STORED', stored)
    for ours, theirs in zip(outcome(), whole):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=3e-5)
    assert seen[:3] == [4 * 4, 4 * 8, 3 * 11] and len(seen) == (3 if stored == 100 else 6)  # no block has keys that it does not see
    q, k, v = layer.heads(x, torch.arange(T))
    with torch.no_grad():
        end = layer.tapa(q[:, :, 5:], k, v, torch.arange(5, T))  # six queries behind five keys
        torch.testing.assert_close(layer.proj(end.transpose(1, 2).flatten(2)), whole[0][:, 5:], rtol=1e-5, atol=1e-6)


def test_rope_frequencies_are_the_papers():
    assert rope_frequencies(8, 10000.0).tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001], rel=1e-6)


def test_resonance_rounds_wavelengths_to_whole_tokens():
    wavelengths = (2 * math.pi / rope_frequencies(8, 10000.0, 'resonance')).tolist()
    assert wavelengths == pytest.approx([6, 63, 628, 6283], rel=1e-6)  # of 6.28, 62.8, 628.3, 6283.2
    table = torch.cat(rotation(torch.arange(7), rope_frequencies(8, 10000.0, 'resonance')[None]), dim=-1)[:, 0]
    assert torch.allclose(table[6, [0, 4]], table[0, [0, 4]], atol=1e-5)  # the first pair is back where it started


@pytest.mark.parametrize('period', [2, 5, 7, 10, 16])
def test_the_harmonic_grid_repeats_with_its_period_and_spans_it(period):
    cos, sin = (t[:, 0].double() for t in rotation(torch.arange(4 * period), rope_frequencies(32, 1e4, 'harmonic', period)[None]))
    table = torch.cat([cos, sin], dim=1)  # (4 period, 32)
    assert torch.allclose(table[:period], table[period:2 * period], atol=1e-4)
    assert torch.linalg.matrix_rank(table[:period], rtol=1e-4) == period  # any function of t mod period is a sum of them


def test_the_linear_grid_is_even_up_to_pi():
    theta = rope_frequencies(8, 10000.0, 'linear').tolist()
    assert theta == pytest.approx([math.pi / 4, math.pi / 2, 3 * math.pi / 4, math.pi])


@pytest.mark.parametrize('scaling, theirs', [('pi', 'linear'), ('ntk', 'dynamic'), ('yarn', 'yarn'), ('llama3', 'llama3')])
@pytest.mark.parametrize('hs, base, length, factor', [(32, 1e4, 256, 4.0), (64, 5e5, 8192, 8.0), (128, 1e4, 2048, 2.0)])
def test_scaled_frequencies_are_those_of_transformers(scaling, theirs, hs, base, length, factor):
    pytest.importorskip('transformers', reason='the peer to compare with')
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    parameters = dict(rope_type=theirs, rope_theta=base, factor=1.0 if scaling == 'ntk' else factor)
    if scaling in ('yarn', 'llama3'):
        parameters['original_max_position_embeddings'] = length
    if scaling == 'llama3':
        parameters.update(low_freq_factor=1.0, high_freq_factor=4.0)
    config = LlamaConfig(hidden_size=4 * hs, num_attention_heads=4, head_dim=hs, rope_parameters=parameters,
                         max_position_embeddings=int(length * factor) if scaling in ('yarn', 'llama3') else length)
    frequencies, gain = ROPE_INIT_FUNCTIONS[theirs](config, 'cpu', seq_len=int(length * factor))
    stretch, ours = rope_stretch(hs, base, scaling, factor, length, *((4.0, 1.0) if scaling == 'llama3' else ()))
    torch.testing.assert_close(stretch * rope_frequencies(hs, base), frequencies, rtol=1e-6, atol=0)
    assert ours == pytest.approx(gain)


def test_scaling_keeps_what_it_should():
    """NTK leaves the fastest pair and slows the slowest as much as PI; YaRN keeps pairs of many turns, interpolates those of few."""
    ntk, yarn = (rope_stretch(64, 1e4, scaling, 4.0, 2048)[0].tolist() for scaling in ('ntk', 'yarn'))
    assert ntk[0] == 1 and ntk[-1] == pytest.approx(1 / 4) and ntk == sorted(ntk, reverse=True)
    turns = (2048 * rope_frequencies(64, 1e4) / (2 * math.pi)).tolist()
    assert all(s == 1 for s, turn in zip(yarn, turns) if turn > 40) and all(s == pytest.approx(1 / 4) for s, turn in zip(yarn, turns) if turn < 0.7)
    for scaling in ('pi', 'ntk', 'yarn'):
        assert rope_stretch(64, 1e4, scaling, 1.0, 2048)[0].eq(1).all()  # no longer, no change


def test_a_checkpoint_is_extended_without_retraining(checkpoint):
    """Position interpolation by 3: at every third position, the scores of the model as it was trained."""
    model, path = checkpoint(attention='bifocal')
    longer = GPT.from_checkpoint(path, rope_scaling='pi', rope_factor=3.0)
    x, positions = torch.randn(2, 7, 32), torch.arange(7)
    trained, extended = model.blocks[1].attention, longer.blocks[1].attention
    for ours, theirs in zip(extended.heads(x, 3 * positions), trained.heads(x, positions)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for options, original in ((dict(block_size=256), 64), (dict(rope_original=32), 32)):  # yarn knows the trained length
        config = GPT.from_checkpoint(path, rope_scaling='yarn', rope_factor=4.0, **options).config
        assert config.rope_original == original


@pytest.mark.parametrize('attention', ['rope', 'spectral'])
def test_the_grid_reaches_the_rotation(attention):
    model = build(attention=attention, rope_grid='harmonic', rope_period=7, phase_std=0.0)
    theta = rope_frequencies(model.config.head_size, 1e4, 'harmonic', 7)
    for block in model.blocks:
        rotary = block.attention.rotary
        assert torch.equal(rotary.Omega[0] if attention == 'spectral' else rotary.theta, theta)


def test_tapa_scores_without_phase_are_plain_scores():
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    q[..., 4:] = 0  # phi = 0
    plain = q[..., :4] @ k[..., :4].mT / 2
    torch.testing.assert_close(tapa_scores(q, k, torch.rand(5, 5), 0.5, 'quadratic'), plain)


@pytest.mark.parametrize('options', [dict(attention='rope'), dict(attention='spectral'), dict(attention='bifocal')], ids=str)
def test_rotary_scores_depend_on_the_distance_only(options):
    rotary = stir(build(**options)).blocks[0].attention.rotary
    qk = torch.randn(1, 6, 8, 8)  # (B, T, nh + nkv, hs)
    scores = []
    for start in (0, 1000):
        turned = rotary(qk, start + torch.arange(6))
        scores.append(torch.einsum('bthd,bshd->bhts', turned[:, :, :4], turned[:, :, 4:]))
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-3, atol=1e-3)
    moved = rotary(qk, 2 * torch.arange(6))  # other distances: other scores
    assert not torch.allclose(scores[0], torch.einsum('bthd,bshd->bhts', moved[:, :, :4], moved[:, :, 4:]), atol=1e-2)


def test_phase_cancels_on_both_sides_and_acts_on_the_query_alone():
    idx = torch.randint(11, (2, 12))
    for phase_on, acts in (('both', False), ('query', True)):
        model = build(attention='spectral', phase_on=phase_on)
        before = model(idx)[0]
        model(idx, idx)[1].backward()
        gradient = max(rotary.Phi.grad.abs().max().item() for rotary in model.spectral())
        with torch.no_grad():
            for rotary in model.spectral():
                rotary.Phi.add_(1.0)
        change = (model(idx)[0] - before).abs().max().item()
        assert (gradient > 1e-3) == acts and (change > 1e-2) == acts, (phase_on, gradient, change)
        assert acts or (gradient < 1e-6 and change < 1e-4), (phase_on, gradient, change)


def test_spectral_starts_as_rope_exactly():
    idx = torch.randint(11, (2, 20))
    rope, spectral, noisy = build(attention='rope'), build(attention='spectral', phase_std=0.0), build(attention='spectral')
    assert torch.equal(rope(idx)[0], spectral(idx)[0])
    difference = (rope(idx)[0] - noisy(idx)[0]).abs().max().item()
    assert 0 < difference < 0.05


def test_bifocal_with_no_or_all_spectral_heads_is_rope_or_spectral():
    idx = torch.randint(11, (2, 20))
    for n, other in ((0, 'rope'), (4, 'spectral')):
        assert torch.equal(build(attention='bifocal', n_spectral_head=n)(idx)[0], build(attention=other)(idx)[0])
    assert [r.Omega.shape for r in build(attention='bifocal').spectral()] == [(2, 4)] * 2
    assert build(attention='bifocal', n_spectral_head=0).spectral() == []


@arms
def test_the_future_never_changes_the_past(arm):
    model = stir(build(**ARMS[arm]))
    idx = torch.randint(11, (2, 16))
    changed = idx.clone()
    changed[:, 9:] = (idx[:, 9:] + 1) % 11
    before, after = model(idx)[0], model(changed)[0]
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


@arms
def test_a_constant_input_gives_the_same_logits_everywhere(arm):
    """Position may act through the scores only; with equal values, whatever the scores, attention returns that value."""
    logits = stir(build(**ARMS[arm]))(torch.full((1, 40), 3))[0]
    torch.testing.assert_close(logits, logits[:, :1].expand_as(logits), rtol=0, atol=1e-5)


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_only_nope_ignores_the_order_of_the_past(attention):
    """One layer, the last position: without phase the past is a set."""
    model = stir(build(attention=attention, n_layer=1))
    idx = torch.randint(11, (1, 12))
    shuffled = torch.cat([idx[:, :11].flip(1), idx[:, 11:]], dim=1)
    same = torch.allclose(model(idx)[0][:, -1], model(shuffled)[0][:, -1], atol=1e-5)
    assert same == (attention == 'nope')


@arms
def test_cached_equals_uncached(arm):
    """A prompt in one piece, a chunk, then token by token."""
    model = stir(build(**ARMS[arm]))
    idx = torch.randint(11, (2, 17))
    whole = model(idx)[0]
    cache = Cache(model.config, 2, 17)
    pieces = [model(idx[:, a:b], cache=cache)[0] for a, b in ((0, 5), (5, 9), *((t, t + 1) for t in range(9, 17)))]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match='18 tokens do not fit a cache of max_length=17'):
        model(idx[:, :1], cache=cache)


@arms
@pytest.mark.parametrize('temperature', [0, 1.0])
def test_generation_with_and_without_cache_is_the_same(arm, temperature):
    model = stir(build(**ARMS[arm]))
    prompt = torch.randint(11, (3, 4))
    out = [model.generate(prompt, 12, temperature, generator=torch.Generator().manual_seed(5), use_cache=use) for use in (True, False)]
    assert torch.equal(*out) and out[0].shape == (3, 16) and torch.equal(out[0][:, :4], prompt)


def test_generation_stops_and_draws_from_its_own_generator():
    model = build()
    prompt = torch.randint(11, (4, 3))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    a, b = (model.generate(prompt, 30, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(a, b) and torch.equal(state, torch.get_rng_state())
    stop = a[0, 5].item()
    stopped = model.generate(prompt, 30, stop=stop, generator=torch.Generator().manual_seed(1))
    for row in stopped[:, 3:].tolist():
        assert stop not in row or set(row[row.index(stop):]) == {stop}
    alone = model.generate(prompt[:1], 30, temperature=0, stop=model.generate(prompt[:1], 1, temperature=0)[0, -1].item())
    assert alone.shape == (1, 4)  # every row has stopped


def test_draw():
    logits = torch.tensor([[0.0, 3.0, 2.0, -1.0]]).expand(4000, 4)
    assert draw(logits, temperature=0).eq(1).all() and draw(logits, top_k=1).eq(1).all()
    assert set(draw(logits, top_k=2, generator=torch.Generator().manual_seed(0)).tolist()) == {1, 2}
    shares = torch.bincount(draw(logits, 2.0, generator=torch.Generator().manual_seed(0)), minlength=4) / 4000
    torch.testing.assert_close(shares, (logits[0] / 2).softmax(-1), rtol=0, atol=0.03)
    for bad in (dict(temperature=-1), dict(top_k=0)):
        with pytest.raises(ValueError, match='must be'):
            draw(logits, **bad)


def test_angles_stay_float32_under_bfloat16_autocast():
    positions = torch.tensor([256, 257, 4097])  # bfloat16 cannot tell the first two apart
    rotary = build(attention='spectral').blocks[0].attention.rotary
    exact = rotary.table(positions)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        tables = rotary.table(positions)
        turned = rotate(torch.ones(1, 3, 1, 8, dtype=torch.bfloat16), *rotation(positions, rope_frequencies(8, 1e4)[None]))
    assert all(t.dtype == torch.float32 and torch.equal(t, e) for t, e in zip(tables, exact))
    assert turned.dtype == torch.bfloat16
    expected = rotate(torch.ones(1, 3, 1, 8, dtype=torch.float64), *rotation(positions, rope_frequencies(8, 1e4)[None]))
    torch.testing.assert_close(turned.double(), expected, rtol=0, atol=8e-3)  # rounded once, at the end
    assert (turned[0, 0] - turned[0, 1]).abs().max() > 0.1


def test_tapa_phases_stay_float32_under_bfloat16_autocast(monkeypatch):
    seen = []

    def spy(*arguments):
        seen.append((torch.is_autocast_enabled('cpu'), (scores := tapa_scores(*arguments)).dtype))
        return scores

    monkeypatch.setattr(model_file, 'tapa_scores', spy)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        build(attention='tapa')(torch.randint(11, (1, 8)))
    assert seen == [(False, torch.float32)] * 2


def test_forward_contract():
    model = build()
    idx, targets = torch.randint(11, (2, 7)), torch.randint(11, (2, 7))
    targets[0, :5] = -1
    logits, loss = model(idx, targets)
    assert logits.shape == (2, 7, 11) and model(idx)[1] is None and torch.equal(model(idx)[0], logits)
    nats = -logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(loss, nats[targets != -1].mean())


def test_all_attentions_start_from_the_same_weights():
    models = {attention: build(seed=3, attention=attention) for attention in ATTENTIONS}
    for name, p in models['rope'].named_parameters():
        assert all(torch.equal(p, dict(m.named_parameters())[name]) for m in models.values()), name


@arms
@pytest.mark.parametrize('tied', [False, True])
def test_optimizer_groups_are_exhaustive_disjoint_and_spare_the_spectral_parameters(arm, tied):
    model = build(**ARMS[arm], tie_embeddings=tied)
    groups = {group['role']: group for group in model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2).param_groups}
    grouped = [id(p) for group in groups.values() for p in group['params']]
    assert sorted(grouped) == sorted(map(id, model.parameters()))
    for role, ending in (('frequencies', '.Omega'), ('amplitudes', '.A'), ('phases', '.Phi')):
        parameters = [p for name, p in model.named_parameters() if name.endswith(ending) and p.requires_grad]
        assert [id(p) for p in groups.get(role, {'params': []})['params']] == [id(p) for p in parameters]
        if parameters:
            assert groups[role]['weight_decay'] == 0 and groups[role]['lr'] == 1e-2
            decaying = model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2, frequency_decay=0.3, amplitude_decay=0.2)
            decays = {group['role']: group['weight_decay'] for group in decaying.param_groups}
            assert decays[role] == {'frequencies': 0.3, 'amplitudes': 0.2, 'phases': 0}[role]
    assert groups['matrices']['weight_decay'] == 0.1 and groups['matrices']['lr'] == 1e-3
    assert groups['embeddings']['weight_decay'] == groups['norms']['weight_decay'] == 0


def test_a_parameter_without_a_role_is_an_error():
    model = build()
    model.blocks[0].attention.strange = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match='blocks.0.attention.strange has no role'):
        model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2)
    model = build()
    model.lm_head.weight = model.embedding.weight
    with pytest.raises(ValueError, match='shared by two modules'):
        model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2)


def test_frozen_spectral_parameters_are_not_optimised():
    model = build(attention='spectral', learn_amplitude=False, learn_phase=False)
    spectral = model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2).param_groups[-1]
    assert {id(p) for p in spectral['params']} == {id(r.Omega) for r in model.spectral()}
    model(torch.randint(11, (1, 9)), torch.randint(11, (1, 9)))[1].backward()
    assert all(r.A.grad is None and r.Phi.grad is None and r.Omega.grad.abs().max() > 0 for r in model.spectral())


def test_closed_eyes_see_nothing():
    """Closing heads equals zeroing what the output projection takes from them, and ends with the context."""
    model = stir(build(attention='bifocal', n_kv_head=2, n_spectral_head=1))  # query heads 2 and 3 are spectral
    idx = torch.randint(11, (2, 10))
    before = model(idx)[0]
    for kind, columns in (('geometric', slice(0, 16)), ('spectral', slice(16, 32))):
        blind = stir(build(attention='bifocal', n_kv_head=2, n_spectral_head=1))
        blind.load_state_dict(model.state_dict())
        with torch.no_grad():
            blind.blocks[1].attention.proj.weight[:, columns] = 0
        with model.closed_eyes(kind, layers=[1]):
            closed = model(idx)[0]
        torch.testing.assert_close(closed, blind(idx)[0], rtol=0, atol=1e-6)
        assert not torch.allclose(closed, before, atol=1e-3)
    assert torch.equal(model(idx)[0], before)
    for attention, kind in (('rope', 'spectral'), ('spectral', 'geometric'), ('tapa', 'geometric'), ('bifocal', 'third')):
        with pytest.raises(ValueError, match='eyes'), build(attention=attention).closed_eyes(kind):
            pass


@pytest.mark.parametrize('options, message', [
    (dict(attention='alibi'), "attention='alibi': must be one of rope, spectral, bifocal, tapa, nope"),
    (dict(n_embd=30), 'n_embd=30: must be a multiple of n_head=4'),
    (dict(n_embd=12), 'even head size'),
    (dict(head_dim=7), 'head_dim=7: must be an even head size'),
    (dict(head_dim=-2), 'head_dim=-2: must be 0'),
    (dict(norm_eps=0.0), 'norm_eps=0.0: must be positive'),
    (dict(n_kv_head=3), 'n_kv_head=3: must be 0'),
    (dict(attention='bifocal', n_kv_head=1), 'n_kv_head=1: must be at least 2 with bifocal'),
    (dict(attention='bifocal', n_spectral_head=5), 'n_spectral_head=5: must be -1 .* or from 0 to 4 with bifocal'),
    (dict(attention='rope', n_spectral_head=2), 'n_spectral_head=2: must be'),
    (dict(attention='spectral', n_spectral_head=2), 'n_spectral_head=2: must be'),
    (dict(attention='tapa', tapa_theta=0.3), 'tapa_theta=0.3: must be in'),
    (dict(tapa_phase='cubic'), 'tapa_phase'),
    (dict(tapa_alpha=0.0), 'tapa_alpha'),
    (dict(phase_on='key'), 'phase_on'),
    (dict(log_scale=1), 'log_scale=1: must be 0, or'),
    (dict(log_scale=8, attention='tapa'), 'log_scale=8: must be'),
    (dict(n_layer=0), 'n_layer=0: must be at least 1'),
    (dict(rope_base=0.5), 'rope_base=0.5'),
    (dict(rope_grid='log'), "rope_grid='log': must be one of geometric, resonance, harmonic, linear"),
    (dict(rope_grid='harmonic'), 'rope_period=0: must be at least 2'),
    (dict(rope_scaling='abf'), "rope_scaling='abf': must be one of none, pi, ntk, yarn"),
    (dict(rope_scaling='pi', attention='tapa'), "rope_scaling='pi': must be 'none' with tapa, which has no frequencies"),
    (dict(rope_scaling='yarn', attention='nope'), "rope_scaling='yarn': must be 'none' with nope"),
    (dict(rope_scaling='ntk', rope_grid='linear'), "rope_scaling='ntk': must be 'none' with rope_grid='linear'"),
    (dict(rope_scaling='ntk', n_embd=8), "rope_scaling='ntk': must be .* with a head size of 2"),
    (dict(rope_factor=4.0), 'rope_factor=4.0: must be at least 1, and 1 without rope_scaling'),
    (dict(rope_scaling='pi', rope_factor=0.5), 'rope_factor=0.5'),
    (dict(rope_original=-1), 'rope_original=-1'),
    (dict(yarn_beta_fast=1.0), 'yarn_beta_fast=1.0: must be greater than yarn_beta_slow=1.0'),
    (dict(yarn_beta_slow=0.0), 'yarn_beta_slow=0.0: must be positive'),
    (dict(yarn_gain=-1.0), 'yarn_gain=-1.0'),
    (dict(llama3_low=0.0), 'llama3_low=0.0: must be positive'),
    (dict(llama3_high=1.0), 'llama3_high=1.0: must be greater than llama3_low=1.0'),
    (dict(rope_period=7), "rope_period=7: must be 0 with rope_grid='geometric'"),
], ids=str)
def test_bad_options_name_the_value_and_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


# ----------------------------------------------------------------------------------------------------------------------
# Surgical Integration


@pytest.fixture
def checkpoint(tmp_path):
    def write(**options):
        model = stir(build(**options))
        path = tmp_path / 'ckpt.pt'
        torch.save(dict(model=model.state_dict(), model_args=dataclasses.asdict(model.config), task='dyck'), path)
        return model, path
    return write


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_from_checkpoint_is_the_same_model(checkpoint, attention):
    model, path = checkpoint(attention=attention, rope_base=500.0, n_kv_head=2)
    idx = torch.randint(11, (2, 20))
    assert torch.equal(GPT.from_checkpoint(path)(idx)[0], model(idx)[0])
    saved = torch.load(path)
    for name in ('head_dim', 'norm_eps', 'yarn_beta_slow', 'yarn_gain', 'llama3_high', 'llama3_low'):
        del saved['model_args'][name]  # as before there were these options
    torch.save(saved, path)
    assert torch.equal(GPT.from_checkpoint(path)(idx)[0], model(idx)[0])


@pytest.mark.parametrize('attention', ['spectral', 'bifocal'])
def test_surgery_keeps_the_function_and_opens_the_rotation(checkpoint, attention):
    model, path = checkpoint(attention='rope', rope_base=500.0, n_kv_head=2)
    idx = torch.randint(11, (2, 20))
    exact, noisy = (GPT.from_checkpoint(path, attention=attention, phase_std=std) for std in (0.0, 1e-3))
    assert torch.equal(exact(idx)[0], model(idx)[0])
    assert 0 < (noisy(idx)[0] - model(idx)[0]).abs().max() < 0.1
    for rotary in noisy.spectral():
        theta = rope_frequencies(8, 500.0)  # the checkpoint's own, not the default's
        assert rotary.Omega.shape == ((2, 4) if attention == 'spectral' else (1, 4))
        assert torch.equal(rotary.Omega, theta.expand_as(rotary.Omega)) and rotary.A.eq(1).all()
        assert all(p.requires_grad for p in rotary.parameters())
    for name, p in model.named_parameters():
        assert torch.equal(p, dict(noisy.named_parameters())[name])


def test_surgery_from_bifocal_to_spectral_keeps_what_was_learned(checkpoint):
    model, path = checkpoint(attention='bifocal', n_spectral_head=1)
    spectral = GPT.from_checkpoint(path, attention='spectral', phase_std=0.0)
    idx = torch.randint(11, (2, 20))
    assert torch.equal(spectral(idx)[0], model(idx)[0])
    assert torch.equal(spectral.spectral()[0].Omega[3:], model.spectral()[0].Omega)


@pytest.mark.parametrize('old, new, message', [
    (dict(attention='tapa'), dict(attention='rope'), 'tapa to rope is not a surgery'),
    (dict(attention='rope'), dict(attention='tapa'), 'rope to tapa is not a surgery'),
    (dict(attention='nope'), dict(attention='spectral'), 'nope to spectral is not a surgery'),
    (dict(attention='spectral'), dict(attention='rope'), 'its 4 spectral heads .* does not fit 0 spectral heads'),
    (dict(attention='spectral'), dict(attention='bifocal'), 'its 4 spectral heads .* does not fit 2 spectral heads'),
    (dict(attention='spectral'), dict(spectral_shared=True), 'spectral_shared=True'),
    (dict(attention='bifocal', spectral_shared=True), dict(attention='spectral'), 'does not fit 4 spectral heads'),
    (dict(attention='rope', rope_base=500.0), dict(attention='spectral', rope_base=1e4), 'rope_base=10000.0: Omega comes from'),
    (dict(attention='spectral'), dict(rope_base=500.0), 'rope_base=500.0: Omega comes from'),
    (dict(attention='rope'), dict(attention='spectral', rope_grid='linear'), 'rope_grid=linear: Omega comes from'),
    (dict(attention='rope'), dict(n_layer=3), 'n_layer=3: the weights in .* have n_layer=2'),
    (dict(attention='rope'), dict(n_embd=64), 'n_embd=64: the weights'),
    (dict(attention='rope'), dict(head_dim=4), 'head_size=4: the weights'),
    (dict(attention='rope'), dict(norm_eps=1e-6), 'norm_eps=1e-06: the weights'),
], ids=str)
def test_what_is_no_surgery_is_refused(checkpoint, old, new, message):
    _, path = checkpoint(**old)
    with pytest.raises(ValueError, match=message):
        GPT.from_checkpoint(path, **new)


@pytest.mark.parametrize('T', [40, 300])
def test_a_model_cast_as_a_whole_keeps_tapas_distances(T):
    """bfloat16 has too few numbers for |m-n|^alpha: a thousandth of a turn, times the phase."""
    config = GPTConfig(vocab_size=5, block_size=300, n_head=2, n_embd=32, attention='tapa')
    torch.manual_seed(0)
    q, k, v = (4 * torch.randn(1, 2, T, 16) for _ in range(3))
    expected = TAPA(config)(q, k, v, torch.arange(T))
    torch.testing.assert_close(TAPA(config).bfloat16()(q, k, v, torch.arange(T)), expected)
