"""
A GPT with five ways to know the order of its tokens; most of them are phases, angles in the attention scores.
Read it from top to bottom: one class for each way to attend, then the decoder around it. `attention` chooses the way.

    rope      queries and keys turn by fixed angles                       Su et al. 2021, arXiv 2104.09864
    spectral  RoPE whose frequencies, amplitudes and phases are learned   Bifocal Attention, arXiv 2601.22402
    bifocal   half of the heads rope, the other half spectral             the same paper
    tapa      nothing turns; each pair of tokens sets a phase             TAPA, arXiv 2509.12635
    nope      nothing at all: only the causal mask                        Kazemnejad et al. 2023, arXiv 2305.19466

B batch, T queries, S keys, nh heads of size hs, P = hs/2 pairs, C = n_embd; m is the position of a query, n of a key.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


def positions(q, k):
    """m (T,) of the queries and n (S,) of the keys. The queries are the last T of the S tokens."""
    n = torch.arange(k.size(2), device=k.device)
    return n[-q.size(2):], n


class Way(nn.Module):
    """A subclass defines `scores`, the formula. It may replace `forward` by a faster one; the tests compare both."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def scores(self, q, k):
        """The formula: q (B, nh, T, hs) and k (B, nh, S, hs) to scores (B, nh, T, S), before mask and softmax."""

    def forward(self, q, k, v):
        """What the heads read: the values v (B, nh, S, hs), weighted by the softmax of the scores: (B, nh, T, hs)."""
        m, n = positions(q, k)
        with torch.autocast(q.device.type, enabled=False):  # scores are computed in float32
            scores = self.scores(q.float(), k.float())
        weights = scores.masked_fill(m[:, None] < n, float('-inf')).softmax(dim=-1)  # (B, nh, T, S)
        return weights.to(v.dtype) @ v


class NoPE(Way):
    """score = q.k / sqrt(hs). The mask alone tells an earlier token from a later one."""

    def scores(self, q, k):
        return q @ k.mT / math.sqrt(q.size(-1))

    def forward(self, q, k, v):
        T, S = q.size(2), k.size(2)
        mask = None if T in (1, S) else torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)  # 1 sees all
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=T == S)


def turn(x, angle, amplitude):
    """Multiply the pairs x_i + 1j x_{i+P} of x (B, nh, T, hs) by amplitude e^{1j angle}, float32 (nh or 1, T, P)."""
    cos, sin = amplitude * angle.cos(), amplitude * angle.sin()
    other = torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)  # x_{i+P} where x_i is, and the reverse
    return (x * torch.cat([cos, cos], dim=-1) + other * torch.cat([-sin, sin], dim=-1)).to(x.dtype)


class RoPE(NoPE):
    """
    Pair i of a query at m turns by m theta_i, of a key at n by n theta_i, where theta_i = base^(-2i/hs). The turned q
    and k have NoPE's score, and it depends on the distance m - n alone:

        score = sum_i Re[q_i conj(k_i) e^{1j (m-n) theta_i}] / sqrt(hs)
    """

    def __init__(self, config):
        super().__init__(config)
        pairs = torch.arange(config.head_size // 2, dtype=torch.float64)
        theta, self.gain = config.rope_base ** (-2 * pairs / config.head_size), 1.0
        if config.rope != 'geometric':  # other grids, and extensions to longer contexts, such as 'yarn:factor=4'
            from lab.frequencies import choose
            theta, self.gain = choose(config, theta)
        self.register_buffer('theta', theta.float(), persistent=False)

    def rotation(self):
        """Omega, A, Phi of the query, Phi of the key: four (nh, P), or (1, P) if all heads turn alike."""
        zero = torch.zeros_like(self.theta)[None]
        return self.theta[None], zero + self.gain, zero, zero  # only YaRN has a gain other than 1

    def scores(self, q, k):
        m, n = positions(q, k)
        Omega, A, Phi, Phi_key = (row[:, None, None] for row in self.rotation())  # (nh or 1, 1, 1, P)
        turns = torch.polar(A**2, (m[:, None] - n)[..., None] * Omega + Phi - Phi_key)  # (nh or 1, T, S, P)
        q, k = (torch.complex(*x.float().chunk(2, dim=-1)) for x in (q, k))
        return torch.einsum('bhmi,bhni,hmni->bhmn', q, k.conj(), turns).real / math.sqrt(self.config.head_size)

    def forward(self, q, k, v):
        m, n = positions(q, k)
        Omega, A, Phi, Phi_key = (row[:, None] for row in self.rotation())  # (nh or 1, 1, P)
        q, k = turn(q, m[:, None] * Omega + Phi, A), turn(k, n[:, None] * Omega + Phi_key, A)
        return super().forward(q, k, v)


class Spectral(RoPE):
    """
    RoPE with a learned frequency Omega, amplitude A and phase Phi for every pair of every spectral head:

        q~ = A q e^{1j (m Omega + Phi)}      k~ = A k e^{1j n Omega}
        score = sum_i A_i^2 Re[q_i conj(k_i) e^{1j ((m-n) Omega_i + Phi_i)}] / sqrt(hs)

    It starts as RoPE: Omega at theta, A at 1, Phi at N(0, phase_std^2). The paper writes Phi on query and key alike. It
    cancels there (phase_on='both'), so here it is on the query alone. In bifocal, the first heads are rope.
    """

    def __init__(self, config):
        super().__init__(config)
        n_rows = 1 if config.spectral_shared else config.n_spectral
        self.Omega = nn.Parameter(self.theta.repeat(n_rows, 1), requires_grad='frequency' in config.learn)
        self.A = nn.Parameter(torch.ones_like(self.Omega), requires_grad='amplitude' in config.learn)
        self.Phi = nn.Parameter(torch.zeros_like(self.Omega), requires_grad='phase' in config.learn)  # drawn by GPT

    def rotation(self):
        nkv, n_spectral, on_both = self.config.nkv, self.config.n_spectral, self.config.phase_on == 'both'
        learned = self.Omega, self.gain * self.A, self.Phi, self.Phi if on_both else torch.zeros_like(self.Phi)
        rows = [torch.cat([rope.expand(nkv - n_spectral, -1), spectral.expand(n_spectral, -1)])  # (nkv, P)
                for rope, spectral in zip(super().rotation(), learned)]
        return [row.repeat_interleave(self.config.n_head // nkv, dim=0) for row in rows]  # (nh, P), by query head


class TAPA(Way):
    """
    Token-Aware Phase Attention: the two tokens set the phase of their score.

        score = q_A.k_A / sqrt(theta hs) * cos(2 pi |m-n|^alpha phi)
        phi   = q_P.k_P / sqrt((1-theta) hs)                        tapa_phase = 'quadratic' (eq. 12)
        phi   = (sum q_P + sum k_P) / sqrt((1-theta) hs)            tapa_phase = 'linear' (eq. 16)

    theta is tapa_theta. The first theta hs dimensions of a head (A) set the amplitude, the others (P) the phase. SDPA
    computes one dot product a score, TAPA needs two. lab/tapa.py has a kernel for CUDA, and blocks for longer texts.
    """

    def scores(self, q, k):
        m, n = positions(q, k)
        hs, size_A = q.size(-1), round(self.config.tapa_theta * q.size(-1))
        (q_A, q_P), (k_A, k_P) = (x.float().split([size_A, hs - size_A], dim=-1) for x in (q, k))
        unit, quadratic = 2 * math.pi / math.sqrt(hs - size_A), self.config.tapa_phase == 'quadratic'
        angle = (unit * q_P) @ k_P.mT if quadratic else unit * (q_P.sum(-1)[..., None] + k_P.sum(-1)[..., None, :])
        power = (m[:, None] - n).abs().float() ** self.config.tapa_alpha  # (T, S); angle is 2 pi phi, (B, nh, T, S)
        return (q_A / math.sqrt(size_A)) @ k_A.mT * torch.cos(power * angle)

    def forward(self, q, k, v):
        if q.is_cuda or k.size(2) > 128:
            from lab.tapa import attend
            return attend(self, q, k, v)
        return super().forward(q, k, v)


ATTENTIONS = {'rope': RoPE, 'spectral': Spectral, 'bifocal': Spectral, 'tapa': TAPA, 'nope': NoPE}  # yours goes here
ROTARY = [name for name, way in ATTENTIONS.items() if issubclass(way, RoPE)]


class Attention(nn.Module):
    """Causal self-attention: project x to queries, keys and values, attend in the chosen way, project back."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.n_embd, (config.n_head + 2 * config.nkv) * config.head_size, bias=False)
        self.proj = nn.Linear(config.n_head * config.head_size, config.n_embd, bias=False)
        self.way = ATTENTIONS[config.attention](config)

    def project(self, x, past=None):
        """x (B, T, C) to q (B, nh, T, hs), k and v (B, nh, S, hs). The list `past`, if any, keeps k and v so far."""
        nh, nkv, hs = self.config.n_head, self.config.nkv, self.config.head_size
        q, k, v = self.qkv(x).unflatten(2, (-1, hs)).transpose(1, 2).split([nh, nkv, nkv], dim=1)  # (B, heads, T, hs)
        if past:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)  # (B, nkv, S, hs)
        if past is not None:
            past[:] = k, v
        if nkv < nh:
            k, v = (x.repeat_interleave(nh // nkv, dim=1) for x in (k, v))  # (B, nh, S, hs)
        if self.config.log_scale:  # later queries see more keys; a larger score stays sharp (arXiv 2202.12172)
            q = q * ((positions(q, k)[0] + 1).log() / math.log(self.config.log_scale))[:, None].to(q.dtype)
        return q, k, v

    def forward(self, x, past=None):
        y = self.way(*self.project(x, past)).transpose(1, 2)  # (B, T, nh, hs)
        return self.proj(y.flatten(2))  # (B, T, C)


class MLP(nn.Module):
    """SwiGLU: the gate scales each hidden unit (arXiv 2002.05202)."""

    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config.n_embd, config.inner, bias=False)
        self.up = nn.Linear(config.n_embd, config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.n_embd, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer: attention, then the MLP. Each reads the residual stream through a norm, and adds to it."""

    def __init__(self, config):
        super().__init__()
        self.norm_1 = nn.RMSNorm(config.n_embd, config.norm_eps)
        self.attention = Attention(config)
        self.norm_2 = nn.RMSNorm(config.n_embd, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, past=None):
        x = x + self.attention(self.norm_1(x), past)
        return x + self.mlp(self.norm_2(x))


@dataclass
class GPTConfig:
    """The model's options. A wrong one raises ValueError, which names it and what is allowed."""
    vocab_size: int
    block_size: int = 64  # tokens in a training sequence; no limit, for there are no absolute positions
    n_layer: int = 2
    n_head: int = 2
    n_kv_head: int = 0  # key/value heads, each read by n_head / n_kv_head query heads; 0: n_head
    n_embd: int = 64
    head_dim: int = 0  # 0: n_embd / n_head
    n_inner: int = 0  # width of the MLP; 0: 8/3 n_embd, to the nearest multiple of 8
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    init_std: float = 0.0  # of the first weights; 0: 1/sqrt(inputs)
    attention: str = 'rope'
    rope_base: float = 10000.0
    rope: str = 'geometric'  # or another grid or extension, see lab/frequencies.py
    n_spectral_head: int = 0  # bifocal: how many of the key/value heads are spectral; 0: half
    spectral_shared: bool = False  # one Omega, A, Phi for all spectral heads of a layer
    learn: str = 'frequency,amplitude,phase'  # what of Omega, A and Phi is learned, or 'none'
    phase_std: float = 1e-3  # Phi starts at N(0, phase_std^2)
    phase_on: str = 'query'  # or 'both', as the paper's formula reads
    log_scale: int = 0  # tokens; scores times ln(m+1) / ln(log_scale); 0: off
    tapa_alpha: float = 0.1  # exponent of the distance
    tapa_theta: float = 0.5  # share of a head's dimensions that make the amplitude
    tapa_phase: str = 'quadratic'  # or 'linear'

    def __post_init__(self):
        def demand(ok, name, allowed):
            if not ok:
                raise ValueError(f'{name}={getattr(self, name)!r}: must be {allowed}')
        for name in ('vocab_size', 'block_size', 'n_layer', 'n_head', 'n_embd', 'norm_eps', 'tapa_alpha'):
            demand(getattr(self, name) > 0, name, 'positive')
        for name in ('n_kv_head', 'head_dim', 'n_inner', 'init_std', 'n_spectral_head', 'phase_std'):
            demand(getattr(self, name) >= 0, name, '0 or positive')
        demand(self.attention in ATTENTIONS, 'attention', f'one of {", ".join(ATTENTIONS)}')
        demand(self.phase_on in ('query', 'both'), 'phase_on', 'query or both')
        demand(self.tapa_phase in ('quadratic', 'linear'), 'tapa_phase', 'quadratic or linear')
        tapa, bifocal, rotary = self.attention == 'tapa', self.attention == 'bifocal', self.attention in ROTARY
        nkv = self.nkv = self.n_kv_head or self.n_head
        hs = self.head_size = self.head_dim or self.n_embd // self.n_head
        self.inner = self.n_inner or max(8, 8 * round(self.n_embd / 3))
        self.n_spectral = self.n_spectral_head or {'spectral': nkv, 'bifocal': nkv // 2}.get(self.attention, 0)
        demand(self.head_dim or self.n_embd % self.n_head == 0, 'n_embd', f'a multiple of n_head={self.n_head}')
        demand(self.head_size % 2 == 0 or not rotary, 'head_size', 'even, for dimensions turn in pairs')
        demand(self.n_head % nkv == 0, 'n_kv_head', '0 or a divisor of n_head')
        demand(nkv > 1 or not bifocal, 'attention', 'another one with fewer than 2 key/value heads')
        demand(self.n_spectral_head <= (nkv if bifocal else 0), 'n_spectral_head', f'0, or up to {nkv} with bifocal')
        demand(self.rope_base > 1, 'rope_base', 'greater than 1')
        demand(self.rope == 'geometric' or rotary, 'rope', f'geometric with {self.attention}, which turns nothing')
        known = f'{GPTConfig.learn},none'
        demand({*self.learn.split(',')} <= {*known.split(',')}, 'learn', f'some of {known}')
        demand(self.log_scale == 0 or self.log_scale > 1 and not tapa, 'log_scale', '0, or without tapa at least 2')
        whole = round(self.tapa_theta * hs, 6) % 1 == 0
        demand(not tapa or whole and 0 < self.tapa_theta < 1, 'tapa_theta', f'a share of {hs} dimensions')


class Muon(torch.optim.Optimizer):  # torch.optim.Muon has bfloat16, ten times slower where a CPU only imitates that
    """A step along each matrix's momentum, all singular values made nearly 1 (Jordan et al. 2024): none lags behind."""

    def __init__(self, groups, momentum=0.95):
        super().__init__(groups, dict(momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group['params']:
                mean, keep = self.state[p].setdefault('momentum_buffer', torch.zeros_like(p)), group['momentum']
                X = p.grad.lerp(mean.lerp_(p.grad, 1 - keep), keep)  # Nesterov's momentum
                X = (X if p.size(0) < p.size(1) else X.mT) / X.norm().clamp(min=1e-7)
                for _ in range(5):  # Newton-Schulz: a singular value s becomes 3.4445 s - 4.775 s^3 + 2.0315 s^5
                    square = X @ X.mT
                    X = 3.4445 * X + (2.0315 * square @ square - 4.775 * square) @ X
                p.add_(X if p.size(0) < p.size(1) else X.mT, alpha=-group['lr'] * max(1, p.size(0) / p.size(1)) ** 0.5)


class GPT(nn.Module):
    """Embedding, blocks, norm, output matrix. No absolute positions: order enters through the attention alone."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd, config.norm_eps)
        self.lm_head = None if config.tie_embeddings else nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self):
        """Draws of std 1/sqrt(inputs), smaller by sqrt(2 n_layer) for what is added to the residual stream (GPT-2)."""
        config = self.config
        self.embedding.weight.normal_(std=config.init_std or (config.n_embd**-0.5 if config.tie_embeddings else 1.0))
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                std = config.init_std or module.in_features ** (-1 if name == 'lm_head' else -0.5)  # first loss: ln V
                into_residual = name.endswith(('proj', 'down'))
                module.weight.normal_(std=std / math.sqrt(2 * config.n_layer) if into_residual else std)
        for name, parameter in self.named_parameters():  # Phi last: with one seed, all attentions start alike
            if name.endswith('.way.Phi'):
                parameter.normal_(std=config.phase_std)

    def forward(self, idx, targets=None, past=None):
        """
        Token ids idx (B, T) to logits (B, T, V), and the mean cross-entropy in nats over the targets (B, T) other than
        -1 (None without targets). `past` keeps keys and values, a list for each block, empty at first: idx goes on.
        """
        x = self.embedding(idx)  # (B, T, C)
        for block, seen in zip(self.blocks, past or [None] * len(self.blocks)):
            x = block(x, seen)
        logits = F.linear(self.norm(x), (self.lm_head or self.embedding).weight)  # (B, T, V)
        loss = (None if targets is None else
                F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-1))
        return logits, loss

    def configure_optimizers(self, learning_rate, weight_decay, betas, spectral_lr, decays={}, muon_lr=None):
        """[AdamW, Muon for the blocks' matrices if it has a rate]. A rate of 0 freezes. train.py schedules peak_lr."""
        groups, decays = {}, dict(decays, matrices=weight_decay)  # no other role: decay pulls frequencies to zero
        for name, p in self.named_parameters():
            role, lr = 'others', learning_rate
            if '.way.' in name:
                role, lr = name.split('.')[-1], spectral_lr  # Omega, A or Phi
            elif p.dim() == 2 and name.startswith('blocks.') and muon_lr is not None:
                role, lr = 'Muon', muon_lr * (learning_rate > 0)
            elif p.dim() >= 2 and name != 'embedding.weight':
                role = 'matrices'
            group = dict(role=role, params=[], lr=lr, peak_lr=lr, weight_decay=decays.get(role, 0.0))
            if p.requires_grad_(p.requires_grad and lr > 0).requires_grad:
                groups.setdefault(role, group)['params'].append(p)
        muon = [Muon([groups.pop('Muon')])] if 'Muon' in groups else []
        return [torch.optim.AdamW(groups.values(), betas=betas, fused=p.device.type != 'mps'), *muon]

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, generator=None, cache=True):
        """Continue idx (B, T) by max_new_tokens tokens; (B, T + new). With `cache`, each token is read once."""
        past, unread = [[] for _ in self.blocks] if cache else None, idx
        for _ in range(max_new_tokens):
            token = draw(self(unread, past=past)[0][:, -1], temperature, top_k, generator)  # (B,)
            idx = torch.cat([idx, token[:, None]], dim=1)
            unread = token[:, None] if cache else idx
        return idx


def draw(logits, temperature=1.0, top_k=None, generator=None):
    """One token for each row of logits (B, V): (B,). temperature 0 takes the likeliest; top_k keeps the k likeliest."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    logits = (logits.float() - logits.max(dim=-1, keepdim=True).values) / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < least, float('-inf'))
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).squeeze(1)
