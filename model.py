"""
A GPT whose option `attention` chooses how it knows the positions of its tokens.

    nope      no positions, only the causal mask          Kazemnejad et al., arXiv 2305.19466
    rope      queries and keys rotate by fixed angles     Su et al., arXiv 2104.09864
    spectral  RoPE whose rotation is learned              Bifocal Attention, arXiv 2601.22402
    bifocal   half of the heads rope, half spectral       the same paper
    tapa      query and key together set a phase          TAPA, arXiv 2509.12635

A phase is an angle in the scores that depends on the positions. nope has none.

B batch, T queries, S keys (S = T without a cache), C = n_embd, V = vocab_size. There are nh heads
of size hs = 2P: P pairs of dimensions. A query is at position m, a key at position n.
"""

import inspect
import math
import zlib
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


class UserError(ValueError):
    """A mistake in the options. A script prints it as one line, without a traceback."""


@dataclass
class GPTConfig:
    """The options. A wrong one raises a UserError that names it and what is allowed."""

    vocab_size: int
    block_size: int = 64  # tokens in a training sequence; the model itself has no maximum
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 64
    init_std: float = 0.02  # of the initial weights, as in GPT-2
    attention: str = 'rope'  # a name in ATTENTIONS, or several: 'rope,nope' goes round the layers
    log_scale_length: int = 0  # L: scores times ln(m+1) / ln(L), for long strings; 0: off
    frequencies: str = 'geometric'  # a name in FREQUENCIES: theta; Omega starts there
    rope_base: float = 10000.0  # of the geometric frequencies
    learn: str = 'frequency,amplitude,phase'  # of Omega, A and Phi; or none
    phase_std: float = 1e-3  # Phi starts at N(0, phase_std^2), learned or not
    tapa_alpha: float = 0.1  # exponent of the distance
    tapa_theta: float = 0.5  # share of a head's dimensions in the amplitude
    tapa_scale: float = 2 * math.pi  # as in eq. 12; 1 in the code of TAPA's authors

    @property
    def head_size(self):
        return self.n_embd // self.n_head

    @property
    def n_inner(self):  # width of the MLP: 8/3 n_embd, to the nearest multiple of 8
        return max(8, 8 * round(self.n_embd / 3))

    def __post_init__(self):
        for name in ('block_size', 'n_layer', 'n_head', 'n_embd'):
            self.require(name, getattr(self, name) >= 1, 'at least 1')
        for name in ('init_std', 'phase_std', 'tapa_alpha'):
            self.require(name, getattr(self, name) >= 0, 'at least 0')
        self.require('rope_base', self.rope_base > 0, 'more than 0')
        self.require('n_embd', self.n_embd % self.n_head == 0, 'a multiple of n_head')
        L = self.log_scale_length
        self.require('log_scale_length', L == 0 or L > 1, '0, or at least 2')
        self.require('attention', set(self.attention.split(',')) <= ATTENTIONS.keys(),
                     f'one or several of {", ".join(ATTENTIONS)}')
        find_frequencies(self)

    def require(self, name, ok, allowed):
        if not ok:
            raise UserError(f'{name}={getattr(self, name)!r}: must be {allowed}')


def distances(q, k):
    """m - n, (T, S), negative for later keys. The T queries are the last of the S tokens."""
    n = torch.arange(k.size(2), device=k.device)
    m = n[k.size(2) - q.size(2):]
    return m[:, None] - n


class Attention(nn.Module):
    """
    Causal self-attention: score = q.k / sqrt(hs). As it stands here it knows no positions: nope.
    An attention of your own changes `rotate`, or adds the method `scores`, or both:

        rotate(q, k, position)    queries and keys that have their positions in them
        scores(q, k)              q (B, nh, T, hs) and k (B, nh, S, hs), rotated: (B, nh, T, S)

    Scores of later keys are masked afterwards. They must be finite, too: in the backward pass
    0 times inf is NaN.
    """

    scores = None  # a subclass may define a method scores(q, k); None: q.k / sqrt(hs), fused

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def tie(self, blocks):
        """A hook for layers that share parameters, as some in lab/ do."""

    def forward(self, x, cache=None):
        start = 0 if cache is None else cache.length
        position = torch.arange(start, start + x.size(1), device=x.device)  # (T,)
        q, k, v = self.project(x)
        q, k = self.rotate(q, k, position)
        q, k = q.to(v.dtype), k.to(v.dtype)  # angles have made them float32, even under autocast
        if self.config.log_scale_length:  # many keys need larger scores (arXiv 2202.12172)
            scale = torch.log(position + 1) / math.log(self.config.log_scale_length)
            q = q * scale[:, None].to(q.dtype)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, nh, S, hs)
        y = self.attend(q, k, v)  # (B, nh, T, hs)
        return self.proj(y.transpose(1, 2).flatten(2))  # (B, T, C)

    def project(self, x):
        """x (B, T, C) to q, k and v, each (B, nh, T, hs)."""
        qkv = self.qkv(x).unflatten(2, (-1, self.config.head_size))  # (B, T, 3 nh, hs)
        return qkv.transpose(1, 2).chunk(3, dim=1)

    def rotate(self, q, k, position):
        """q and k of the tokens at `position` (T,), with these positions in them."""
        return q, k

    def attend(self, q, k, v):
        """softmax(scores) @ v, where no query sees a later key: (B, nh, T, hs)."""
        T, S = q.size(2), k.size(2)
        if self.scores is None:
            if T == S:  # a whole text
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            # several tokens after a cache need a mask of their own; a single one sees all keys
            mask = distances(q, k) >= 0 if T > 1 else None
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        with torch.autocast(q.device.type, enabled=False):  # 16 bits are too few for angles
            scores = self.scores(q.float(), k.float())  # (B, nh, T, S)
        scores = scores.masked_fill(distances(q, k) < 0, float('-inf'))
        return scores.softmax(dim=-1).to(v.dtype) @ v


def geometric(config):
    """theta_i = base^(-2i/hs), in radians per token: (P,)."""
    i = torch.arange(config.head_size // 2, dtype=torch.float64)
    return config.rope_base ** (-2 * i / config.head_size)


# To add frequencies, write a function of the config, and name it here. Its other parameters are
# numbers, which frequencies=name:parameter=number,... gives.
FREQUENCIES = dict(geometric=geometric)


def find_frequencies(config):
    """The function that config.frequencies names, and {parameter: number} for it."""
    name, _, settings = config.frequencies.partition(':')
    config.require('frequencies', name in FREQUENCIES, f'one of {", ".join(FREQUENCIES)}')
    function = FREQUENCIES[name]
    try:
        pairs = [setting.split('=') for setting in settings.split(',') if setting]
        numbers = {parameter: float(number) for parameter, number in pairs}
        inspect.signature(function).bind(config, **numbers)
    except (TypeError, ValueError):
        _, *allowed = map(str, inspect.signature(function).parameters.values())  # after config
        config.require('frequencies', False,
                       f'{name}, with numbers for {", ".join(allowed) or "nothing"}')
    return function, numbers


def rotate_pairs(x, angle, amplitude=1.0):
    """
    Turn each pair (x_i, x_{i+P}) of x (B, nh, T, hs) by an angle, and make it longer:

        x_i     becomes  amplitude (x_i     cos(angle) - x_{i+P} sin(angle))
        x_{i+P} becomes  amplitude (x_{i+P} cos(angle) + x_i     sin(angle))

    The angle is (T, P), or (nh, T, P) if each head has its own. The amplitude is a number, or
    (nh, 1, hs), where x_i and x_{i+P} have the same one.
    """
    if angle.dtype.itemsize < 4:  # bfloat16 cannot tell position 256 from 257
        raise TypeError('angles need float32: use autocast, not .half() or .bfloat16()')
    signed = torch.cat([-angle, angle], dim=-1)  # (..., T, hs)
    cos = amplitude * signed.cos()  # cos of both halves, for cos(-angle) = cos(angle)
    sin = amplitude * signed.sin()  # -sin of the first half, sin of the second
    swapped = x.roll(x.size(-1) // 2, dims=-1)  # x_{i+P} at i, and x_i at i + P
    return x * cos + swapped * sin


class RoPE(Attention):
    """
    Pair i of a head is a point in a plane, (x_i, x_{i+P}). Read it as the complex number
    x_i + 1j x_{i+P}: multiplied by e^{1j a}, it turns by the angle a. A query at m turns by
    m theta_i, a key at n by n theta_i. The dot product sees the difference of the two angles:

        score = sum_i Re[q_i conj(k_i) e^{1j (m-n) theta_i}] / sqrt(hs)

    With theta_i = 2 pi / 10, a key 10 tokens back looks as if it stood at the query's own place.
    Llama in the library transformers pairs i with i + P, too; the paper pairs neighbours.
    """

    def __init__(self, config):
        super().__init__(config)
        config.require('n_embd', config.head_size % 2 == 0, 'n_head times an even number')
        frequencies, numbers = find_frequencies(config)
        theta = frequencies(config, **numbers)  # (P,)
        self.register_buffer('theta', theta.float(), persistent=False)

    def rotate(self, q, k, position):
        angle = position[:, None] * self.theta  # (T, P)
        return rotate_pairs(q, angle), rotate_pairs(k, angle)


class Spectral(RoPE):
    """
    RoPE with a learned frequency Omega, amplitude A and phase Phi for each pair of each head.

        q becomes A q e^{1j (m Omega + Phi)}    k becomes A k e^{1j n Omega}
        score = sum_i A_i^2 Re[q_i conj(k_i) e^{1j ((m-n) Omega_i + Phi_i)}] / sqrt(hs)

    It starts as RoPE: Omega at theta, A at 1, Phi near 0. Summaries say that the paper adds Phi to
    query and key, where it cancels. We add it to the query alone.
    """

    learned_share = 1.0  # of the heads

    def __init__(self, config):
        super().__init__(config)
        learn = config.learn.split(',')
        config.require('learn', set(learn) <= {'frequency', 'amplitude', 'phase', 'none'},
                       'some of frequency,amplitude,phase, or none')
        heads = int(self.learned_share * config.n_head)
        config.require('n_head', heads > 0, 'at least 2 with bifocal')
        Omega = self.theta.repeat(heads, 1)  # (heads, P)
        self.Omega = nn.Parameter(Omega, requires_grad='frequency' in learn)
        self.A = nn.Parameter(torch.ones_like(Omega), requires_grad='amplitude' in learn)
        # drawn in GPT.init_weights
        self.Phi = nn.Parameter(torch.zeros_like(Omega), requires_grad='phase' in learn)

    def rotation(self):
        """Omega, A and Phi of all heads, each (nh, P)."""
        return self.Omega, self.A, self.Phi

    def rotate(self, q, k, position):
        Omega, A, Phi = [x[:, None] for x in self.rotation()]  # (nh, 1, P)
        angle = position[:, None] * Omega  # (nh, T, P)
        A = torch.cat([A, A], dim=-1)  # (nh, 1, hs): for x_i, and for x_{i+P}
        return rotate_pairs(q, angle + Phi, A), rotate_pairs(k, angle, A)


class Bifocal(Spectral):
    """
    "Geometric eyes" and "spectral eyes": the first half of the heads (rounded up) stay RoPE, the
    others are Spectral. Summaries leave open how the two mix; this is our choice.
    """

    learned_share = 0.5

    def rotation(self):
        theta = self.theta.expand(self.config.n_head - len(self.Omega), -1)  # (heads, P)
        Omega = torch.cat([theta, self.Omega])
        A = torch.cat([torch.ones_like(theta), self.A])
        Phi = torch.cat([torch.zeros_like(theta), self.Phi])
        return Omega, A, Phi


class TAPA(Attention):
    """
    Token-Aware Phase Attention. Nothing rotates. Two tokens set the phase of their score:

        score = q_A.k_A / sqrt(hs_A) * cos(tapa_scale |m-n|^alpha phi)
        phi   = q_P.k_P / sqrt(hs_P)                 (eq. 12)

    The first hs_A = tapa_theta hs dimensions of a head make the amplitude, hs_P the phase.
    """

    def __init__(self, config):
        super().__init__(config)
        hs = config.head_size
        hs_A = round(config.tapa_theta * hs)
        config.require('tapa_theta', 0 < hs_A < hs, f'a share of {hs} dimensions')
        self.sizes = [hs_A, hs - hs_A]
        # log_scale_length scales queries, and so would change their phases, too
        config.require('log_scale_length', config.log_scale_length == 0, '0 with tapa')

    def scores(self, q, k):
        hs_A, hs_P = self.sizes
        q_A, q_P = q.split(self.sizes, dim=-1)
        k_A, k_P = k.split(self.sizes, dim=-1)
        amplitude = (q_A / math.sqrt(hs_A)) @ k_A.mT  # (B, nh, T, S)
        phi = (q_P / math.sqrt(hs_P)) @ k_P.mT
        distance = distances(q, k).abs()  # (T, S); of later keys, too, which are masked
        factor = self.config.tapa_scale * distance ** self.config.tapa_alpha
        return amplitude * torch.cos(factor * phi)


# To add an attention, write a subclass of Attention, and name it here.
ATTENTIONS = dict(rope=RoPE, spectral=Spectral, bifocal=Bifocal, tapa=TAPA, nope=Attention)


class MLP(nn.Module):
    """SwiGLU: the gate scales each hidden unit (arXiv 2002.05202)."""

    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.up = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.down = nn.Linear(config.n_inner, config.n_embd, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and MLP. Each reads the residual stream through a norm, and adds to it."""

    def __init__(self, config, layer):
        super().__init__()
        self.norm_1 = nn.RMSNorm(config.n_embd, eps=1e-5)
        names = config.attention.split(',')  # they go round the layers
        self.attention = ATTENTIONS[names[layer % len(names)]](config)
        self.norm_2 = nn.RMSNorm(config.n_embd, eps=1e-5)
        self.mlp = MLP(config)

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm_1(x), cache)
        x = x + self.mlp(self.norm_2(x))
        return x


class KVCache:
    """The keys (after `rotate`) and the values of the tokens that one block has read."""

    length = 0

    def append(self, k, v):
        """Add k and v (B, nh, T, hs) of new tokens; return those of all tokens."""
        if self.length > 0:
            k = torch.cat([self.k, k], dim=2)
            v = torch.cat([self.v, v], dim=2)
        self.k, self.v, self.length = k, v, k.size(2)
        return k, v


class GPT(nn.Module):
    """
    Embedding, blocks, norm, output matrix. Only the attentions know positions. There is no
    dropout, so a model is the same in training and in evaluation.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList([Block(config, layer) for layer in range(config.n_layer)])
        for block in self.blocks:
            block.attention.tie(self.blocks)
        self.norm = nn.RMSNorm(config.n_embd, eps=1e-5)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self):
        """
        Matrices are N(0, init_std^2). As in GPT-2, `proj` and `down` have the smaller standard
        deviation init_std / sqrt(2 n_layer): 2 n_layer of them add up in the residual stream.
        Models that differ in their attention alone start with equal matrices: each module draws
        from a generator of its own, seeded by torch's seed and the module's name.
        """
        def generator(name):  # crc32 makes a number of the name
            seed = torch.initial_seed() + zlib.crc32(name.encode())
            return torch.Generator().manual_seed(seed % 2**63)

        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                std = self.config.init_std
                if name.endswith(('.proj', '.down')):
                    std /= math.sqrt(2 * self.config.n_layer)
                module.weight.normal_(std=std, generator=generator(name))
            if isinstance(module, Spectral):
                module.Phi.normal_(std=self.config.phase_std, generator=generator(name))

    def forward(self, idx, targets=None, caches=None):
        """
        Token ids (B, T) to logits (B, T, V), and the mean cross-entropy over the targets
        (B, T) that are not -1. With a KVCache for each block, idx continues earlier calls.
        """
        x = self.embedding(idx)  # (B, T, C)
        for i, block in enumerate(self.blocks):
            x = block(x, caches[i] if caches else None)
        logits = self.lm_head(self.norm(x))
        if targets is None:
            return logits, None
        flat = logits.flatten(0, 1).float()  # (B T, V)
        return logits, F.cross_entropy(flat, targets.flatten(), ignore_index=-1)

    def positional_parameters(self):
        """{parameter: name} of what attentions learn beside matrices: Omega, A, Phi, or yours."""
        return {p: name for block in self.blocks
                for name, p in block.attention.named_parameters(recurse=False)}

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, generator=None):
        """Continue idx (B, T) by max_new_tokens tokens."""
        caches = [KVCache() for _ in self.blocks]
        new = idx
        for _ in range(max_new_tokens):
            logits, _ = self(new, caches=caches)
            new = sample_token(logits[:, -1], temperature, top_k, generator)[:, None]
            idx = torch.cat([idx, new], dim=1)
        return idx


def sample_token(logits, temperature=1.0, top_k=None, generator=None):
    """
    A token for each row of logits (B, V): (B,). Temperature 0 takes the likeliest; top_k
    leaves out all but the k likeliest.
    """
    if temperature < 1e-6:  # so small a number would overflow the logits
        return logits.argmax(dim=-1)
    V = logits.size(-1)
    logits, tokens = logits.float().topk(min(top_k or V, V))  # (B, k), even with ties
    drawn = torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=generator)
    return tokens.gather(-1, drawn)[:, 0]
