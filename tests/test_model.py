"""
The mathematics of model.py: each attention's formula, written out naively in float64, beside
the code. For an attention of your own, write its naive formula here: a function of one head in
NAIVE, and a line in ARMS.
"""

import math
import shutil

import pytest
import torch

from model import (ATTENTIONS, FREQUENCIES, TAPA, Attention, GPTConfig, KVCache, RoPE, Spectral,
                   UserError, distances, sample_token)
from tests.conftest import PAGE, ROOT, build, script, stir

ARMS = {
    'rope': dict(attention='rope'),
    'spectral': dict(attention='spectral'),
    'bifocal': dict(attention='bifocal'),
    'bifocal, log scale': dict(attention='bifocal', log_scale_length=6),
    'bifocal, one of three': dict(attention='bifocal', n_head=3, n_embd=24),
    'nope': dict(attention='nope'),
    'nope, log scale': dict(attention='nope', log_scale_length=20),
    'tapa': dict(attention='tapa'),
    'tapa, another split': dict(attention='tapa', tapa_theta=0.25, tapa_alpha=0.3),
    'tapa, another scale': dict(attention='tapa', tapa_scale=1.0, tapa_alpha=0.5),
}
arms = pytest.mark.parametrize('arm', ARMS)
ROTARY = ['rope', 'spectral', 'bifocal']
VOCABULARY = 11


def naive_nope(config, head, weights, q, k, distance):
    return torch.einsum('btd,bsd->bts', q, k) / math.sqrt(config.head_size)


def naive_rotary(config, head, weights, q, k, distance):
    """sum_i A_i^2 Re[q_i conj(k_i) e^{1j ((m-n) Omega_i + Phi_i)}] / sqrt(hs)."""
    P = config.head_size // 2
    theta = [config.rope_base ** (-2 * i / config.head_size) for i in range(P)]
    Omega = torch.tensor(theta, dtype=torch.float64)
    A, Phi = torch.ones(P).double(), torch.zeros(P).double()
    spectral = {'spectral': config.n_head, 'bifocal': config.n_head // 2}
    row = head - (config.n_head - spectral.get(config.attention, 0))  # the last heads
    if row >= 0:
        Omega, A, Phi = (weights[name][row] for name in ('Omega', 'A', 'Phi'))
    q = torch.complex(q[..., :P], q[..., P:])
    k = torch.complex(k[..., :P], k[..., P:])
    phasor = torch.polar(torch.ones(1).double(), distance[..., None] * Omega + Phi)
    terms = A**2 * (q[:, :, None] * k[:, None].conj() * phasor).real
    return terms.sum(-1) / math.sqrt(config.head_size)


def naive_tapa(config, head, weights, q, k, distance):
    """Equation 12 of the paper."""
    theta, hs = config.tapa_theta, config.head_size
    a = round(theta * hs)
    phi = torch.einsum('btd,bsd->bts', q[..., a:], k[..., a:]) / math.sqrt((1 - theta) * hs)
    amplitude = torch.einsum('btd,bsd->bts', q[..., :a], k[..., :a]) / math.sqrt(theta * hs)
    power = distance.abs() ** config.tapa_alpha
    return amplitude * torch.cos(config.tapa_scale * power * phi)


NAIVE = {
    'rope': naive_rotary, 'spectral': naive_rotary, 'bifocal': naive_rotary, 'tapa': naive_tapa,
    'nope': naive_nope,
}


def naive_attention(config, weights, x):
    """The layer, a head at a time, in float64."""
    T, hs = x.size(1), config.head_size
    W_q, W_k, W_v = weights['qkv.weight'].chunk(3)
    distance = (torch.arange(T)[:, None] - torch.arange(T)).double()  # m - n
    heads = []
    for head in range(config.n_head):
        q, k, v = [x @ W[head * hs:(head + 1) * hs].T for W in (W_q, W_k, W_v)]
        scores = NAIVE[config.attention](config, head, weights, q, k, distance)
        if config.log_scale_length:
            position = torch.arange(1, T + 1).double()
            scores = scores * position.log()[:, None] / math.log(config.log_scale_length)
        heads.append(scores.masked_fill(distance < 0, float('-inf')).softmax(-1) @ v)
    return torch.cat(heads, dim=-1) @ weights['proj.weight'].T


@arms
def test_attention_equals_the_formula_in_float64(arm):
    """Outputs, and gradients of the input and of every parameter."""
    options = dict(rope_base=777.0) | ARMS[arm]  # not the default: the option must count
    layer = stir(build(**options)).blocks[0].attention
    x = torch.randn(2, 9, layer.config.n_embd)
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
        if expected is None:  # a phase that no score has
            expected = torch.zeros_like(weights[name])
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(p.grad.double() / scale, expected / scale, rtol=1e-3,
                                   atol=1e-5, msg=lambda text: f'{name}: {text}')


@pytest.mark.parametrize('base', [Attention, RoPE, Spectral, TAPA])
def test_an_attention_is_its_scores(base):
    """Whatever class it extends: the fused kernel is not used for another formula."""
    class ALiBi(base):
        def scores(self, q, k):
            return q @ k.mT / math.sqrt(q.size(-1)) - 0.5 * distances(q, k)

    torch.manual_seed(0)
    mine = ALiBi(GPTConfig(vocab_size=VOCABULARY, n_head=4, n_embd=32))
    x = torch.randn(1, 6, 32)
    q, k, v = mine.project(x)
    q, k = mine.rotate(q, k, torch.arange(6))
    bias = torch.tensor([[-0.5 * (m - n) if m >= n else -math.inf for n in range(6)]
                         for m in range(6)])
    y = (q @ k.mT / math.sqrt(8) + bias).softmax(-1) @ v
    torch.testing.assert_close(mine(x), mine.proj(y.transpose(1, 2).flatten(2)))


def test_spectral_starts_as_rope_exactly():
    idx = torch.randint(VOCABULARY, (2, 20))
    rope, exact, noisy = (build(attention=name, phase_std=std)(idx)[0] for name, std in
                          [('rope', 0.0), ('spectral', 0.0), ('spectral', 1e-3)])
    torch.testing.assert_close(rope, exact, rtol=0, atol=1e-6)
    assert 1e-6 < (rope - noisy).abs().max() < 0.05


def test_attentions_go_round_the_layers():
    model = build(attention='rope,nope,bifocal', n_layer=4)
    names = [type(block.attention).__name__ for block in model.blocks]
    assert names == ['RoPE', 'Attention', 'Bifocal', 'RoPE']
    assert list(model.positional_parameters().values()) == ['Omega', 'A', 'Phi']


def test_frequencies_are_the_papers_or_ones_own(monkeypatch):
    theta = build().blocks[0].attention.theta
    assert theta.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])
    monkeypatch.setitem(FREQUENCIES, 'mine', lambda config: torch.tensor([0.5, 0.25, 0.1, 0.0]))
    for attention in ROTARY:
        theta = build(attention=attention, frequencies='mine').blocks[0].attention.theta
        assert theta.tolist() == pytest.approx([0.5, 0.25, 0.1, 0.0])


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


@arms
def test_cached_equals_uncached(arm):
    """A prompt in one piece, a chunk, then token by token; and what is generated."""
    model = stir(build(**ARMS[arm]))
    idx = torch.randint(VOCABULARY, (2, 17))
    caches = [KVCache(), KVCache()]
    ends = [5, 9, *range(10, 18)]
    pieces = [model(idx[:, start:end], caches=caches)[0]
              for start, end in zip([0, *ends], ends)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(idx)[0], rtol=1e-4, atol=1e-4)
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


def test_tokens_are_drawn_by_temperature_and_top_k():
    def sample(*options, **more):
        return sample_token(logits, *options, generator=torch.Generator().manual_seed(0), **more)

    logits = torch.tensor([[0.0, 3.0, 2.0, -1.0]]).expand(4000, 4)
    for certain in (sample(0), sample(1e-320), sample(1e-5), sample(top_k=1)):
        assert certain.eq(1).all()
    assert set(sample(top_k=2).tolist()) == {1, 2}
    equal = torch.zeros(400, 4)
    assert len(set(sample_token(equal, top_k=2).tolist())) == 2  # of equal ones, too, only k
    shares = torch.bincount(sample(2.0), minlength=4) / 4000
    torch.testing.assert_close(shares, (logits[0] / 2).softmax(-1), rtol=0, atol=0.03)


@pytest.mark.parametrize('attention', ['rope', 'spectral', 'tapa'])
def test_angles_stay_float32_where_the_rest_is_bfloat16(attention):
    """bfloat16 cannot tell position 256 from 257, nor the powers of their distances."""
    layer = stir(build(attention=attention, n_embd=64)).blocks[0].attention
    q, k, v = torch.randn(3, 1, 4, 300, 16).bfloat16()
    position = torch.arange(300)
    exact = layer.attend(*layer.rotate(q.float(), k.float(), position), v.float())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        rounded = layer.attend(*layer.rotate(q, k, position), v)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize('attention', ROTARY)
def test_a_model_with_angles_of_16_bits_is_refused(attention):
    for cast in (torch.nn.Module.bfloat16, torch.nn.Module.half):
        with pytest.raises(TypeError, match='angles need float32: use autocast'):
            cast(build(attention=attention))(torch.zeros(1, 4, dtype=torch.int64))


def test_forward_returns_every_logit_and_the_mean_loss_of_the_scored_targets():
    model = build()
    idx, targets = torch.randint(VOCABULARY, (2, 2, 7))
    targets[0, :5] = -1
    logits, loss = model(idx, targets)
    assert logits.shape == (2, 7, VOCABULARY)
    assert model(idx)[1] is None and torch.equal(model(idx)[0], logits)
    nats = -logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(loss, nats[targets != -1].mean())


def test_all_attentions_start_from_the_same_weights(monkeypatch):
    """Also one with a small MLP of its own, which draws numbers, too."""
    class WithMLP(Attention):
        def __init__(self, config):
            super().__init__(config)
            self.mlp = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1))

    monkeypatch.setitem(ATTENTIONS, 'mlp', WithMLP)
    models = [build(seed=3, attention=attention) for attention in [*PAGE, 'mlp']]
    for name, p in build(seed=3, attention='nope').named_parameters():
        assert all(torch.equal(p, model.get_parameter(name)) for model in models), name
    other = build(seed=4).embedding.weight
    assert not torch.allclose(other, models[0].embedding.weight)


def test_first_weights_are_those_of_gpt2():
    model = build(n_embd=256, n_layer=4, init_std=0.02)
    for name, p in model.named_parameters():
        if p.dim() == 2:
            to_stream = name.endswith(('proj.weight', 'down.weight'))
            std = 0.02 / math.sqrt(8) if to_stream else 0.02
            assert p.std().item() == pytest.approx(std, rel=0.05), name
            assert abs(p.mean().item()) < 0.1 * std, name
    firsts = [round(p[0, 0].item(), 9) for p in model.parameters() if p.dim() == 2]
    assert len(set(firsts)) == len(firsts)  # no two of them have the same numbers
    _, loss = model(*torch.randint(VOCABULARY, (2, 4, 50)))
    assert loss.item() == pytest.approx(math.log(VOCABULARY), abs=0.1)


@pytest.mark.parametrize('name, options', [
    ('attention', dict(attention='sinusoid')), ('attention', dict(attention='rope,')),
    ('n_embd', dict(n_embd=30)), ('n_embd', dict(n_embd=12)),
    ('n_head', dict(attention='bifocal', n_head=1)),
    ('n_layer', dict(n_layer=0)), ('block_size', dict(block_size=0)),
    ('tapa_theta', dict(attention='tapa', tapa_theta=1.0)),
    ('learn', dict(attention='spectral', learn='frequency,base')),
    ('log_scale_length', dict(log_scale_length=8, attention='tapa')),
    ('frequencies', dict(frequencies='spiral')),
    ('frequencies', dict(frequencies='geometric:a=1'))], ids=str)
def test_bad_options_name_the_value_and_what_is_allowed(name, options):
    with pytest.raises(UserError, match=rf'^{name}={options[name]!r}: must be .'.replace('+', '.')):
        build(**options)


def test_the_file_alone_trains(tmp_path):
    shutil.copy(ROOT / 'model.py', tmp_path)
    done = script('-c', 'import torch, model\n'
                        'gpt = model.GPT(model.GPTConfig(vocab_size=7))\n'
                        'gpt(*torch.ones(2, 1, 99, dtype=torch.int64))[1].backward()', cwd=tmp_path)
    assert done.returncode == 0, done.stderr
