"""
A GPT whose option `attention` chooses how it knows the positions of its tokens. All attentions
but nope do so by phases: angles in the scores that depend on the positions.

    nope      no positions, only the causal mask          Kazemnejad et al., arXiv 2305.19466
    rope      queries and keys rotate by fixed angles     Su et al., arXiv 2104.09864
    spectral  RoPE whose rotation is learned              Bifocal Attention, arXiv 2601.22402
    bifocal   half of the heads rope, half spectral       the same paper
    tapa      query and key together set a phase          TAPA, arXiv 2509.12635

B batch, T queries, S keys (S = T without a cache), C = n_embd, V = vocab_size. There are nh query
heads and nkv key/value heads of size hs = 2P: P pairs of dimensions. A query is at position m, a
key at position n.
"""

import math
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
    n_kv_head: int = 0  # key/value heads, shared by n_head / n_kv_head query heads; 0: n_head
    n_embd: int = 64
    init_std: float = 0.0  # of the initial weights; 0: 1/sqrt(inputs), see init_weights
    attention: str = 'rope'  # a name in ATTENTIONS
    log_scale: int = 0  # a length L: scores times ln(m+1) / ln(L), for long strings; 0: off
    rope_base: float = 10000.0
    rope: str = 'geometric'  # the grid of frequencies, a name in GRIDS; lab/ has more
    n_spectral_head: int = 0  # spectral key/value heads; 0: all, in bifocal half of them
    spectral_shared: bool = False  # one Omega, A, Phi for all spectral heads of a layer
    learn: str = 'frequency,amplitude,phase'  # of Omega, A and Phi; or none
    phase_std: float = 1e-3  # Phi starts at N(0, phase_std^2), learned or not
    phase_on: str = 'query'  # or both, where Phi cancels
    tapa_alpha: float = 0.1  # exponent of the distance
    tapa_theta: float = 0.5  # share of a head's dimensions in the amplitude
    tapa_phase: str = 'quadratic'  # or linear
    tapa_scale: float = 2 * math.pi  # as in eq. 12; 1 in the code of TAPA's authors

    # without a type, so no options: LlamaConfig in lab/ makes fields of them
    norm_eps = 1e-5
    tie_embeddings = False

    @property
    def head_size(self):
        return self.n_embd // self.n_head

    @property
    def n_inner(self):  # width of the MLP: 8/3 n_embd, to the nearest multiple of 8
        return max(8, 8 * round(self.n_embd / 3))

    def __post_init__(self):
        if self.n_kv_head == 0:
            self.n_kv_head = self.n_head
        for name in ('vocab_size', 'block_size', 'n_layer', 'n_head', 'n_kv_head', 'n_embd'):
            # PyTorch would count the bytes of a larger model wrongly
            self.require(name, 0 < getattr(self, name) < 2**24, 'positive, and below 2**24')
        for name in ('init_std', 'log_scale', 'n_spectral_head', 'phase_std'):
            self.require(name, getattr(self, name) >= 0, '0 or positive')
        for name in ('tapa_alpha', 'tapa_scale'):
            self.require(name, getattr(self, name) > 0, 'positive')
        self.require('rope_base', self.rope_base > 1, 'greater than 1')
        self.require('n_embd', self.n_embd % self.n_head == 0, 'a multiple of n_head')
        self.require('n_kv_head', self.n_head % self.n_kv_head == 0, 'a divisor of n_head')
        self.require('log_scale', self.log_scale != 1, '0 or at least 2')
        known = f'one of {", ".join(ATTENTIONS)}; lab/ adds others'
        self.require('attention', self.attention in ATTENTIONS, known)

    def require(self, name, ok, allowed):
        if not ok:
            raise UserError(f'{name}={getattr(self, name)!r}: must be {allowed}')


def distances(q, k):
    """
    m - n of each query and key, (T, S). The T queries are the last of the S tokens. It is
    negative for later keys: they are masked after `scores`, which must be finite there, too.
    """
    n = torch.arange(k.size(2), device=k.device)
    m = n[-q.size(2):]
    return m[:, None] - n


class Attention(nn.Module):
    """
    Causal self-attention, written out. A subclass needs one method: its formula, `scores`.
    It may add a faster path with the same result, `rotate` and then `attend`. Training then
    uses this path and not `scores`, and the tests compare both.
    """

    def __init_subclass__(cls):
        # A subclass that changes the formula (`scores`, or the `phasor` in RoPE's) and adds no
        # faster path would inherit one that computes the old formula. It gets the slow path.
        formula = {'scores', 'phasor'} & vars(cls).keys()
        faster = {'rotate', 'attend'} & vars(cls).keys()
        if formula and not faster:
            cls.rotate = Attention.rotate
            cls.attend = Attention.attend

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.qkv_heads = [config.n_head, config.n_kv_head, config.n_kv_head]
        self.qkv = nn.Linear(config.n_embd, sum(self.qkv_heads) * config.head_size, bias=False)
        self.proj = nn.Linear(config.n_head * config.head_size, config.n_embd, bias=False)

    def forward(self, x, cache=None):
        start = 0 if cache is None else cache.length
        position = torch.arange(start, start + x.size(1), device=x.device)  # (T,)
        q, k, v = self.project(x, position)
        q, k = self.rotate(q, k, position)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, nkv, S, hs)
        y = self.attend(q, k, v)  # (B, nh, T, hs)
        return self.proj(y.transpose(1, 2).flatten(2))  # (B, T, C)

    def project(self, x, position):
        """x (B, T, C) to q (B, nh, T, hs), k and v (B, nkv, T, hs)."""
        qkv = self.qkv(x).unflatten(2, (-1, self.config.head_size))  # (B, T, heads, hs)
        q, k, v = qkv.transpose(1, 2).split(self.qkv_heads, dim=1)
        if self.config.log_scale:  # many keys need larger scores (arXiv 2202.12172)
            scale = torch.log(position + 1) / math.log(self.config.log_scale)
            q = q * scale[:, None].to(q.dtype)
        return q, k, v

    def rotate(self, q, k, position):
        """Return q and k as `attend` needs them. Their tokens are at `position` (T,)."""
        return q, k

    def scores(self, q, k):
        """The formula: q (B, nh, T, hs) and k (B, nh, S, hs) as projected, to (B, nh, T, S)."""
        return q @ k.mT / math.sqrt(q.size(-1))

    def attend(self, q, k, v):
        """softmax(scores) @ v without later keys. Who replaces this must mask them, too."""
        group = q.size(1) // k.size(1)  # query heads per key/value head
        k = k.repeat_interleave(group, dim=1)  # (B, nh, S, hs)
        v = v.repeat_interleave(group, dim=1)
        with torch.autocast(q.device.type, enabled=False):  # 16 bits are too few for angles
            scores = self.scores(q.float(), k.float())  # (B, nh, T, S)
        scores = scores.masked_fill(distances(q, k) < 0, float('-inf'))
        return scores.softmax(dim=-1).to(v.dtype) @ v

    def _apply(self, fn, recurse=True):
        """What .to(), .half() and so on call. Theta, Omega, A and Phi stay in float32 or more."""
        def keep_float32(tensor):  # bfloat16 cannot tell position 256 from 257
            moved = fn(tensor)
            return moved if moved.dtype.itemsize >= 4 else tensor.to(moved.device)
        if recurse:
            for module in self.children():
                module._apply(fn)
        return super()._apply(keep_float32, recurse=False)


class DotProduct(Attention):
    """score = q.k / sqrt(hs), of rotated q and k if there is a `rotate`: PyTorch's fused kernel."""

    def attend(self, q, k, v):
        T, S = q.size(2), k.size(2)
        mask = None
        if 1 < T < S:  # several tokens after a cache; a single one may read every key
            mask = distances(q, k) >= 0
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=(T == S), enable_gqa=True)


class NoPE(DotProduct):
    """score = q.k / sqrt(hs). Only the causal mask tells earlier tokens from later ones."""


def geometric(config):
    """theta_i = base^(-2i/hs), in radians per token: (P,) in float64."""
    i = torch.arange(config.head_size // 2, dtype=torch.float64)
    return config.rope_base ** (-2 * i / config.head_size)


GRIDS = dict(geometric=geometric)  # option `rope`: 'name', or 'name:...' for a grid that reads it


def apply_rotary(x, angle, amplitude=1.0):
    """Multiply each pair of x (B, heads, T, hs), x_i + 1j x_{i+P}, by amplitude e^{1j angle}."""
    cos, sin = amplitude * angle.cos(), amplitude * angle.sin()  # (T, P), or one for each head
    swapped = x.roll(x.size(-1) // 2, dims=-1)  # x_{i+P} in the place of x_i, and back
    rotated = x * torch.cat([cos, cos], dim=-1) + swapped * torch.cat([-sin, sin], dim=-1)
    return rotated.to(x.dtype)


class RoPE(DotProduct):
    """
    Pair i of a query at m rotates by m theta_i, pair i of a key at n by n theta_i. Their dot
    product depends only on the distance m - n:

        score = sum_i Re[q_i conj(k_i) phasor_i] / sqrt(hs)
        phasor_i = e^{1j (m-n) theta_i}        theta_i = base^(-2i/hs)
    """

    def __init__(self, config):
        super().__init__(config)
        config.require('head_size', config.head_size % 2 == 0, 'even, for pairs')
        grid = config.rope.partition(':')[0]
        config.require('rope', grid in GRIDS, f'one of {", ".join(GRIDS)}; lab/ adds others')
        self.register_buffer('theta', GRIDS[grid](config).float(), persistent=False)  # (P,)

    def rotate(self, q, k, position):
        angle = position[:, None] * self.theta  # (T, P)
        return apply_rotary(q, angle), apply_rotary(k, angle)

    def scores(self, q, k):
        phasor = self.phasor(distances(q, k)[..., None])  # (T, S, P)
        q = torch.complex(*q.chunk(2, dim=-1))[:, :, :, None]  # (B, nh, T, 1, P)
        k = torch.complex(*k.chunk(2, dim=-1))[:, :, None]  # (B, nh, 1, S, P)
        return (q * k.conj() * phasor).real.sum(dim=-1) / math.sqrt(self.config.head_size)

    def phasor(self, distance):
        """distance (T, S, 1) to (T, S, P), or (nh, T, S, P) if the heads differ."""
        return torch.exp(1j * distance * self.theta)


class Spectral(RoPE):
    """
    RoPE with a learned frequency Omega, amplitude A and phase Phi for each pair of each
    key/value head. Bifocal is the same class: the first half of its heads stays RoPE.

        q~ = A q e^{1j (m Omega + Phi)}    k~ = A k e^{1j n Omega}
        phasor_i = A_i^2 e^{1j ((m-n) Omega_i + Phi_i)}

    It starts as RoPE: Omega at theta, A at 1, Phi near 0. The paper adds Phi to query and key,
    where it cancels (phase_on='both'). Our default adds it to the query alone.
    """

    def __init__(self, config):
        super().__init__(config)
        learn = config.learn.split(',')
        known = config.learn == 'none' or set(learn) <= {'frequency', 'amplitude', 'phase'}
        config.require('learn', known, 'some of frequency,amplitude,phase, or none')
        config.require('phase_on', config.phase_on in ('query', 'both'), 'query or both')
        nkv = config.n_kv_head
        default = nkv // 2 if config.attention == 'bifocal' else nkv
        config.require('n_kv_head', default > 0, 'at least 2 with bifocal')
        self.n_spectral = config.n_spectral_head or default
        config.require('n_spectral_head', 0 < self.n_spectral <= nkv, f'from 1 to {nkv}')

        Omega = self.theta.repeat(1 if config.spectral_shared else self.n_spectral, 1)
        self.Omega = nn.Parameter(Omega, requires_grad='frequency' in learn)
        self.A = nn.Parameter(torch.ones_like(Omega), requires_grad='amplitude' in learn)
        self.Phi = nn.Parameter(torch.zeros_like(Omega), requires_grad='phase' in learn)

    def per_query_head(self):
        """Omega, A, Phi of the query and of the key, for each query head: four (nh, 1, P)."""
        nh, nkv, n = self.config.n_head, self.config.n_kv_head, self.n_spectral
        theta = self.theta.expand(nkv - n, -1)  # of the heads that stay RoPE
        Omega = torch.cat([theta, self.Omega.expand(n, -1)])  # (nkv, P)
        A = torch.cat([torch.ones_like(theta), self.A.expand(n, -1)])
        Phi = torch.cat([torch.zeros_like(theta), self.Phi.expand(n, -1)])
        Phi_key = Phi if self.config.phase_on == 'both' else torch.zeros_like(Phi)
        rows = [Omega, A, Phi, Phi_key]
        return [row.repeat_interleave(nh // nkv, dim=0)[:, None] for row in rows]

    def rotate(self, q, k, position):
        Omega, A, Phi, Phi_key = self.per_query_head()
        angle = position[:, None] * Omega  # (nh, T, P)
        group = q.size(1) // k.size(1)  # query heads per key/value head, with one rotation
        q = apply_rotary(q, angle + Phi, A)
        k = apply_rotary(k, (angle + Phi_key)[::group], A[::group])
        return q, k

    def phasor(self, distance):
        rows = self.per_query_head()
        Omega, A, Phi, Phi_key = (row[:, None] for row in rows)  # (nh, 1, 1, P)
        return A**2 * torch.exp(1j * (distance * Omega + Phi - Phi_key))  # (nh, T, S, P)


class TAPA(Attention):
    """
    Token-Aware Phase Attention. Nothing rotates. Two tokens set the phase of their score:

        score = q_A.k_A / sqrt(hs_A) * cos(tapa_scale |m-n|^alpha phi)
        phi   = q_P.k_P / sqrt(hs_P)                 tapa_phase = 'quadratic' (eq. 12)
        phi   = (sum q_P + sum k_P) / sqrt(hs_P)     tapa_phase = 'linear' (eq. 16)

    The first hs_A = tapa_theta hs dimensions of a head make the amplitude, hs_P the phase.
    """

    def __init__(self, config):
        super().__init__(config)
        hs = config.head_size
        hs_A = round(config.tapa_theta * hs)
        exact = math.isclose(config.tapa_theta * hs, hs_A, abs_tol=1e-6)
        config.require('tapa_theta', exact and 0 < hs_A < hs,
                       f'a share of {hs} dimensions: tapa_theta * {hs} is a whole number')
        self.sizes = [hs_A, hs - hs_A]
        known = config.tapa_phase in ('quadratic', 'linear')
        config.require('tapa_phase', known, 'quadratic or linear')
        # it scales queries, and so would change their phases, too
        config.require('log_scale', config.log_scale == 0, '0 with tapa')

    def scores(self, q, k):
        hs_A, hs_P = self.sizes
        q_A, q_P = q.split(self.sizes, dim=-1)
        k_A, k_P = k.split(self.sizes, dim=-1)
        amplitude = (q_A / math.sqrt(hs_A)) @ k_A.mT  # (B, nh, T, S)
        phase_scale = self.config.tapa_scale / math.sqrt(hs_P)
        if self.config.tapa_phase == 'quadratic':
            angle = (phase_scale * q_P) @ k_P.mT
        else:
            angle = phase_scale * (q_P.sum(-1)[..., None] + k_P.sum(-1)[..., None, :])
        power = distances(q, k).abs() ** self.config.tapa_alpha  # (T, S)
        return amplitude * torch.cos(power * angle)


# To add an attention, write a subclass of Attention with its `scores`, and name it here.
ATTENTIONS = dict(rope=RoPE, spectral=Spectral, bifocal=Spectral, tapa=TAPA, nope=NoPE)


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

    def __init__(self, config):
        super().__init__()
        self.norm_1 = nn.RMSNorm(config.n_embd, config.norm_eps)
        self.attention = ATTENTIONS[config.attention](config)
        self.norm_2 = nn.RMSNorm(config.n_embd, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm_1(x), cache)
        x = x + self.mlp(self.norm_2(x))
        return x


class KVCache:
    """The keys (after `rotate`) and the values of the tokens that one block has read."""

    def __init__(self):
        self.length = 0

    def append(self, k, v):
        """Add k and v (B, nkv, T, hs) of new tokens; return those of all tokens."""
        if self.length > 0:
            k = torch.cat([self.k, k], dim=2)
            v = torch.cat([self.v, v], dim=2)
        self.k, self.v, self.length = k, v, k.size(2)
        return k, v


class GPT(nn.Module):
    """Embedding, blocks, norm, output matrix. Only the attentions know positions."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.norm = nn.RMSNorm(config.n_embd, config.norm_eps)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.embedding.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self):
        init_std = self.config.init_std
        self.embedding.weight.normal_(std=init_std or 1.0)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                std = init_std or module.in_features**-0.5
                if name.endswith(('proj', 'down')):  # 2 n_layer of them add up (GPT-2)
                    std = std / math.sqrt(2 * self.config.n_layer)
                if name == 'lm_head' and not self.config.tie_embeddings:
                    std = init_std or module.in_features**-1  # the first loss is ln V
                module.weight.normal_(std=std)
        for block in self.blocks:  # last: with one seed, all attentions share the other weights
            if isinstance(block.attention, Spectral):
                block.attention.Phi.normal_(std=self.config.phase_std)

    def forward(self, idx, targets=None, caches=None):
        """
        Token ids (B, T) to logits (B, T, V), and the mean cross-entropy over the targets
        (B, T) that are not -1. With a KVCache for each block, idx continues earlier calls.
        """
        x = self.embedding(idx)  # (B, T, C)
        for i, block in enumerate(self.blocks):
            x = block(x, caches[i] if caches else None)
        logits = self.lm_head(self.norm(x))
        loss = None
        if targets is not None:
            flat = logits.flatten(0, 1).float()  # (B T, V)
            loss = F.cross_entropy(flat, targets.flatten(), ignore_index=-1)
        return logits, loss

    def positional_parameters(self):
        """{parameter: name} of an attention's own parameters: Omega, A, Phi, or yours."""
        return {p: name for block in self.blocks
                for name, p in block.attention.named_parameters(recurse=False)}

    def configure_optimizers(self, learning_rate, weight_decay, betas, spectral_lr,
                             frequency_decay=0.0, muon_lr=None):
        """
        Return [AdamW], or [AdamW, Muon] with muon_lr, which is for the blocks' matrices. A
        parameter whose rate is 0 is frozen: it requires no gradient any more. A learning_rate
        of 0 freezes all but the positional parameters.
        """
        positional = self.positional_parameters()
        groups = {}
        if learning_rate == 0:
            muon_lr = 0.0
        for p in self.parameters():
            if p in positional:  # no decay: it would pull frequencies to zero
                role, lr, decay = positional[p], spectral_lr, 0.0
                if role == 'Omega':
                    decay = frequency_decay
            elif p.dim() < 2 or p is self.embedding.weight:
                role, lr, decay = 'others', learning_rate, 0.0
            elif p is self.lm_head.weight or muon_lr is None:
                role, lr, decay = 'matrices', learning_rate, weight_decay
            else:
                role, lr, decay = 'Muon', muon_lr, 0.0
            p.requires_grad_(p.requires_grad and lr > 0)
            if p.requires_grad:
                group = dict(role=role, lr=lr, peak_lr=lr, weight_decay=decay, params=[])
                groups.setdefault(role, group)['params'].append(p)
        muon = [Muon([groups.pop('Muon')])] if 'Muon' in groups else []
        return [torch.optim.AdamW(groups.values(), betas=betas, fused=True), *muon]

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
    logits = logits.float() / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < least, float('-inf'))
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0]


class Muon(torch.optim.Optimizer):
    """
    A step along a matrix's momentum, equally long in all directions (Jordan et al. 2024).
    torch.optim.Muon does it in bfloat16, ten times slower where a CPU only imitates that.
    """

    def __init__(self, groups, momentum=0.95):
        super().__init__(groups, dict(momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            momentum = group['momentum']
            for p in group['params']:
                if p not in self.state:
                    self.state[p]['momentum_buffer'] = torch.zeros_like(p)
                mean = self.state[p]['momentum_buffer']
                mean.lerp_(p.grad, 1 - momentum)
                update = orthogonalize(p.grad.lerp(mean, momentum))  # Nesterov's
                p.sub_(update, alpha=group['lr'] * max(1, p.size(0) / p.size(1)) ** 0.5)


def orthogonalize(G):
    """The matrix G with its singular values moved near 1, by five Newton-Schulz steps."""
    wide = G.size(0) < G.size(1)
    X = G if wide else G.mT
    X = X / X.norm().clamp(min=1e-7)
    for _ in range(5):  # a singular value s becomes 3.4445 s - 4.775 s^3 + 2.0315 s^5
        square = X @ X.mT
        X = 3.4445 * X + (2.0315 * square @ square - 4.775 * square) @ X
    return X if wide else X.mT
