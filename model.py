"""
A GPT in which order enters as a phase of the attention scores, or not at all. One file, five attentions, read from top to bottom.

A Llama-style decoder: RMSNorm before each sub-layer, SwiGLU, no biases, grouped key/value heads, and no absolute
positions at all: position enters through the attention scores only. How it enters is one switch, `attention`:

  rope      queries and keys rotate by fixed geometric angles          Su et al. 2021, arXiv 2104.09864
  spectral  RoPE whose frequencies, amplitudes and phases are learned  Bifocal Attention, arXiv 2601.22402
  bifocal   some heads rope ("geometric eyes"), the others spectral    the same paper; how they share a layer is our choice
  tapa      no rotation: the token pair sets a phase in the score      Yang et al. 2025, arXiv 2509.12635
  nope      nothing; the causal mask is the only order there is        Kazemnejad et al. 2023, arXiv 2305.19466

Letters, here and in the tests: B batch, T time (queries), S keys (T plus what the cache holds), C = n_embd, nh query
heads, nkv key/value heads, hs head size, P = hs/2 rotary pairs; m and n are the positions of a query and of a key.
Pair i of a head is (x_i, x_{i+P}), the half-split layout of Llama checkpoints, seen as the complex x_i + 1j x_{i+P}.
"""

import contextlib
import dataclasses
import math
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint as recomputed

import tapa_kernel

ROTARY = ('rope', 'spectral', 'bifocal')
ATTENTIONS = ROTARY + ('tapa', 'nope')
GRIDS = ('geometric', 'resonance', 'harmonic', 'linear')
SCALINGS = ('none', 'pi', 'ntk', 'yarn', 'llama3')


@dataclass(frozen=True)
class GPTConfig:
    """
    The model's options, each explained at the global of the same name in train.py; vocab_size is the task's. Raises
    ValueError that names the option and what is allowed.
    """
    vocab_size: int
    block_size: int = 64
    n_layer: int = 2
    n_head: int = 2
    n_kv_head: int = 0
    n_embd: int = 64
    head_dim: int = 0
    n_inner: int = 0
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    init_std: float = 0.0
    attention: str = 'rope'
    rope_base: float = 10000.0
    rope_grid: str = 'geometric'
    rope_period: int = 0
    rope_scaling: str = 'none'
    rope_factor: float = 1.0
    rope_original: int = 0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_gain: float = 0.0
    llama3_high: float = 4.0
    llama3_low: float = 1.0
    n_spectral_head: int = -1
    spectral_shared: bool = False
    learn_frequency: bool = True
    learn_amplitude: bool = True
    learn_phase: bool = True
    phase_std: float = 1e-3
    phase_on: str = 'query'
    log_scale: int = 0
    tapa_alpha: float = 0.1
    tapa_theta: float = 0.5
    tapa_phase: str = 'quadratic'
    tapa_fused: bool = True

    def __post_init__(self):
        def demand(ok, name, allowed):
            if not ok:
                raise ValueError(f'{name}={getattr(self, name)!r}: must be {allowed}')

        for name in ('vocab_size', 'block_size', 'n_layer', 'n_head', 'n_embd'):
            demand(getattr(self, name) >= 1, name, 'at least 1')
        demand(self.attention in ATTENTIONS, 'attention', 'one of ' + ', '.join(ATTENTIONS))
        demand(self.n_kv_head >= 0 and self.n_head % self.nkv == 0, 'n_kv_head',
               f'0 (as many as n_head) or a divisor of n_head={self.n_head}')
        demand(self.attention != 'bifocal' or self.n_spectral_head >= 0 or self.nkv >= 2, 'n_kv_head',
               f'at least 2 with bifocal (n_head={self.n_head}), for both kinds of eyes')
        demand(self.head_dim >= 0, 'head_dim', '0 (n_embd / n_head) or positive')
        demand(self.head_dim or self.n_embd % self.n_head == 0, 'n_embd', f'a multiple of n_head={self.n_head}')
        demand(self.attention not in ROTARY or self.head_size % 2 == 0, 'head_dim' if self.head_dim else 'n_embd',
               f'{"" if self.head_dim else f"n_head={self.n_head} times "}an even head size: rotary dimensions come in pairs')
        demand(self.n_inner >= 0, 'n_inner', '0 (8/3 n_embd) or positive')
        demand(self.norm_eps > 0, 'norm_eps', 'positive')
        demand(self.init_std >= 0, 'init_std', '0 (by width) or positive')
        demand(self.rope_base > 1, 'rope_base', 'greater than 1')
        demand(self.rope_grid in GRIDS, 'rope_grid', 'one of ' + ', '.join(GRIDS))
        harmonic = self.rope_grid == 'harmonic'
        demand(self.rope_period >= 2 if harmonic else self.rope_period == 0, 'rope_period',
               'at least 2, the period of the harmonics' if harmonic else f'0 with rope_grid={self.rope_grid!r}')
        scaled = self.rope_scaling != 'none'
        demand(self.rope_scaling in SCALINGS, 'rope_scaling', 'one of ' + ', '.join(SCALINGS))
        demand(not scaled or self.attention in ROTARY, 'rope_scaling', f"'none' with {self.attention}, which has no frequencies to scale")
        demand(not scaled or self.rope_grid == 'geometric', 'rope_scaling', f"'none' with rope_grid={self.rope_grid!r}: it is made for the geometric one")
        demand(self.rope_scaling != 'ntk' or self.head_size > 2, 'rope_scaling', "'none', 'pi', 'yarn' or 'llama3' with a head size of 2")
        demand(self.rope_factor >= 1 if scaled else self.rope_factor == 1, 'rope_factor', 'at least 1, and 1 without rope_scaling')
        demand(self.rope_original >= 0, 'rope_original', '0 (block_size) or positive')
        demand(self.yarn_beta_slow > 0, 'yarn_beta_slow', 'positive')
        demand(self.yarn_beta_fast > self.yarn_beta_slow, 'yarn_beta_fast', f'greater than yarn_beta_slow={self.yarn_beta_slow}')
        demand(self.yarn_gain >= 0, 'yarn_gain', '0 (0.1 ln(rope_factor) + 1) or positive')
        demand(self.llama3_low > 0, 'llama3_low', 'positive')
        demand(self.llama3_high > self.llama3_low, 'llama3_high', f'greater than llama3_low={self.llama3_low}')
        demand(self.log_scale == 0 or (self.log_scale >= 2 and self.attention != 'tapa'), 'log_scale',
               '0, or a length of at least 2 tokens and no tapa')
        low, high = {'spectral': (self.nkv, self.nkv), 'bifocal': (0, self.nkv)}.get(self.attention, (0, 0))
        demand(self.n_spectral_head == -1 or low <= self.n_spectral_head <= high, 'n_spectral_head',
               f'-1 (automatic) or from {low} to {high} with {self.attention}')
        demand(self.phase_on in ('query', 'both'), 'phase_on', "'query' or 'both'")
        demand(self.phase_std >= 0, 'phase_std', '0 or positive')
        demand(self.tapa_phase in ('quadratic', 'linear'), 'tapa_phase', "'quadratic' or 'linear'")
        demand(self.tapa_alpha > 0, 'tapa_alpha', 'positive')
        split = self.tapa_theta * self.head_size
        demand(self.attention != 'tapa' or (0 < split < self.head_size and abs(split - round(split)) < 1e-6), 'tapa_theta',
               f'in (0, 1) and a whole number of the {self.head_size} dimensions of a head')

    @property
    def head_size(self):
        return self.head_dim or self.n_embd // self.n_head

    @property
    def nkv(self):
        """Key/value heads, each serving n_head / nkv query heads."""
        return self.n_kv_head or self.n_head

    @property
    def n_spectral(self):
        """Spectral key/value heads: the last ones of each layer. None is RoPE, all of them is Spectral."""
        automatic = {'spectral': self.nkv, 'bifocal': self.nkv // 2}.get(self.attention, 0)
        return automatic if self.n_spectral_head < 0 else self.n_spectral_head

    @property
    def inner(self):
        """Width of the MLP: 8/3 C (three matrices cost what GPT-2's two of 4 C do), to the nearest multiple of 8."""
        return self.n_inner or max(8, 8 * round(self.n_embd / 3))

    def memory(self, batch, length, training=False, device='cpu'):
        """About how many bytes the activations of a pass take, in float32; with `training`, all that the backward pass needs."""
        tokens, layers, block = batch * length, self.n_layer if training else 1, min(length, TAPA.BLOCK)
        numbers = layers * tokens * (8 * self.n_embd + 4 * (self.n_head + self.nkv) * self.head_size + 3 * self.inner)
        fused = self.tapa_fused and torch.device(device).type == 'cuda' and tapa_kernel.triton and self.head_size in tapa_kernel.HEAD_SIZES
        if self.attention == 'tapa' and not fused:  # scores written out: all of them, for the backward pass, or those of one block
            keys = layers * (length + block) // 2 if training and length <= TAPA.STORED else block
            numbers += 4 * tokens * self.n_head * keys
        return 4 * (numbers + 3 * tokens * self.vocab_size)


# ----------------------------------------------------------------------------------------------------------------------
# Pure functions: the ways of phase, and drawing a token


def rope_frequencies(hs, base, grid='geometric', period=0):
    """
    theta_i for i < P = hs/2, in radians per token, (P,) float32, on one of these grids (another raises ValueError):

      geometric  base^(-2i/hs)                                      RoPE (arXiv 2104.09864, eq. 15)
      resonance  the same, each wavelength 2 pi / theta_i rounded to a whole number (arXiv 2403.00071)
      harmonic   2 pi j / period for j = 0, 1, ..., period // 2, again and again: what knows the period can know
      linear     pi (i+1) / P: even steps from 0 to pi, the fastest that whole positions can tell apart
    """
    if grid not in GRIDS:
        raise ValueError(f'grid={grid!r}: must be one of {", ".join(GRIDS)}')
    i = torch.arange(hs // 2, dtype=torch.float64)
    theta = base ** (-2 * i / hs)
    if grid == 'resonance':
        theta = 2 * math.pi / (2 * math.pi / theta).round()
    elif grid == 'harmonic':
        theta = 2 * math.pi / period * (i % (period // 2 + 1))
    elif grid == 'linear':
        theta = math.pi * (i + 1) / len(i)
    return theta.float()


def rope_stretch(hs, base, scaling, factor, length, fast=32.0, slow=1.0, gain=0.0):
    """
    What an extension to `factor` times the trained `length` (tokens) multiplies each frequency by, (P,) float32, and the
    one number that it multiplies queries and keys by; 'none' is no extension, and another `scaling` raises ValueError:

      pi      1 / factor                        position interpolation (arXiv 2306.15595)
      ntk     factor^(-2i/(hs-2))               NTK-aware: the base times factor^(hs/(hs-2)); the first pair stays, the last is pi's
      yarn    1 for pairs that turn more than `fast` times in `length`, 1 / factor for those that turn less than `slow` times,
              even steps of i between; and `gain`, or 0.1 ln(factor) + 1 for 0 (arXiv 2309.00071)
      llama3  the same with even steps of the number of turns, and no gain (Llama 3.1's code; 4 and 1 turns there)
    """
    if scaling not in SCALINGS:
        raise ValueError(f'scaling={scaling!r}: must be one of {", ".join(SCALINGS)}')
    i = torch.arange(hs // 2, dtype=torch.float64)
    if scaling == 'pi':
        return torch.full_like(i, 1 / factor).float(), 1.0
    if scaling == 'ntk':
        return (factor ** (-2 * i / (hs - 2))).float(), 1.0
    if scaling == 'yarn':
        pair = lambda turns: hs * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))  # that turns so often in length
        low, high = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), hs - 1)
        interpolated = ((i - low) / max(high - low, 1e-3)).clamp(0, 1)
        return (1 - interpolated + interpolated / factor).float(), gain or 0.1 * math.log(factor) + 1
    if scaling == 'llama3':
        turns = length * base ** (-2 * i / hs) / (2 * math.pi)
        interpolated = ((fast - turns) / (fast - slow)).clamp(0, 1)
        return (1 - interpolated + interpolated / factor).float(), 1.0
    return torch.ones_like(i).float(), 1.0


def rotation(positions, frequency, amplitude=1.0, phase=0.0):
    """
    cos and sin of the angles m * frequency + phase, both times amplitude; each (T, heads, P), float32.

    positions (T,) are tokens, counted from 0; frequency, amplitude and phase (heads, P). Angles are float32 under any
    autocast, for bfloat16 cannot tell position 256 from 257.
    """
    angle = positions.float()[:, None, None] * frequency + phase  # (T, heads, P)
    return amplitude * angle.cos(), amplitude * angle.sin()


def multiply_pairs(x, real, imaginary):
    """Each pair x_i + 1j x_{i+P} of x (B, T, heads, hs) times real + 1j imaginary, each (T, heads or 1, P): like x."""
    x_real, x_imaginary = x.chunk(2, dim=-1)
    product = torch.addcmul(x_real * real, x_imaginary, -imaginary), torch.addcmul(x_imaginary * real, x_real, imaginary)
    return torch.cat(product, dim=-1).to(x.dtype)  # the tables are float32, and so were the products


class Rotation(torch.autograd.Function):
    """multiply_pairs with its derivative by hand, for speed: autograd would sum twice as much over the batch."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(x, cos, sin)
        return multiply_pairs(x, cos, sin)

    @staticmethod
    def backward(ctx, gradient):
        x, cos, sin = ctx.saved_tensors
        of_cos = of_sin = None
        if ctx.needs_input_grad[1]:  # of cos + 1j sin: gradient conj(x), summed over the batch
            (g_real, g_imaginary), (x_real, x_imaginary) = (t.float().chunk(2, dim=-1) for t in (gradient, x))
            of_cos = torch.addcmul(g_real * x_real, g_imaginary, x_imaginary).sum(0)  # (T, heads, P)
            of_sin = torch.addcmul(g_imaginary * x_real, g_real, x_imaginary, value=-1).sum(0)  # (T, heads, P)
        return multiply_pairs(gradient, cos, -sin), of_cos, of_sin  # of x: the gradient, turned back


def rotate(x, cos, sin):
    """
    Multiply each pair x_i + 1j x_{i+P} of x (B, T, heads, hs) by cos + 1j sin, each (T, heads, P) or, if they are not
    learned, (T, 1, P), in float32.

    A query turned by its angle at m and a key by its angle at n meet in Re[q conj(k) e^{1j (angle_m - angle_n)}]: for
    RoPE the score is a function of m - n alone.
    """
    return Rotation.apply(x, cos, sin)


def tapa_scores(q, k, distance, theta, phase):
    """
    Token-Aware Phase Attention (arXiv 2509.12635, eq. 12), explicitly: (B, nh, T, S), float32, before mask and softmax.

      score = q_A.k_A / sqrt(theta hs) * cos(2 pi |m-n|^alpha phi)
      phi   = q_P.k_P / sqrt((1-theta) hs)                   phase = 'quadratic'
      phi   = (sum q_P + sum k_P) / sqrt((1-theta) hs)       phase = 'linear' (eq. 16)

    q (B, nh, T, hs), k (B, nh, S, hs), and distance = |m-n|^alpha (T, S). The first theta hs dimensions of a head are its
    amplitude part A, the others its phase part P: nothing is added to the model, and no angle is fixed in advance. Raises
    ValueError for another `phase`.
    """
    if phase not in ('quadratic', 'linear'):
        raise ValueError(f"phase={phase!r}: must be 'quadratic' or 'linear'")
    hs = q.size(-1)
    size_A = round(theta * hs)
    (q_A, q_P), (k_A, k_P) = (x.float().split([size_A, hs - size_A], dim=-1) for x in (q, k))
    turn = 2 * math.pi / math.sqrt(hs - size_A)
    if phase == 'quadratic':
        phi = (q_P * turn) @ k_P.mT  # (B, nh, T, S)
    else:
        phi = turn * (q_P.sum(-1)[..., :, None] + k_P.sum(-1)[..., None, :])  # (B, nh, T, S)
    return (q_A / math.sqrt(size_A)) @ k_A.mT * (distance * phi).cos()


def draw(logits, temperature=1.0, top_k=None, generator=None):
    """One token for each row of logits (B, V): (B,). temperature 0 is argmax; top_k keeps only the k likeliest tokens."""
    if temperature < 0:
        raise ValueError(f'temperature={temperature}: must be 0 (argmax) or positive')
    if top_k is not None and top_k < 1:
        raise ValueError(f'top_k={top_k}: must be at least 1')
    if temperature == 0:
        return logits.argmax(dim=-1)
    logits = logits.float() / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < least, float('-inf'))
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).squeeze(1)


# ----------------------------------------------------------------------------------------------------------------------
# Modules, bottom-up


class RMSNorm(nn.Module):
    """x / rms(x) times a learned gain (arXiv 1910.07467)."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rotary(nn.Module):
    """
    RoPE, Spectral-RoPE and Bifocal in one: the last n_spectral key/value heads of a layer learn their rotation.

      q~ = A * R(m Omega + Phi) q,   k~ = A * R(n Omega) k
      score = sum_i A_i^2 Re[ q_i conj(k_i) e^{1j ((m-n) Omega_i + Phi_i)} ]

    Omega, A and Phi are (n_spectral, P), or (1, P) with `spectral_shared`; a group's query heads share its key head's.
    Omega starts at theta exactly, A at 1, Phi at N(0, phase_std^2): at the start, this is RoPE (arXiv 2601.22402).
    Phi turns the query alone. The paper's f(x, m) = A * x e^{1j (m Omega + Phi)}, read for query and key alike, turns
    both, and then Phi - Phi cancels in every score: no effect, no gradient. phase_on='both' is that reading.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        theta = rope_frequencies(config.head_size, config.rope_base, config.rope_grid, config.rope_period)  # (P,)
        turns = (config.llama3_high, config.llama3_low) if config.rope_scaling == 'llama3' else (config.yarn_beta_fast, config.yarn_beta_slow)
        stretch, self.gain = rope_stretch(config.head_size, config.rope_base, config.rope_scaling, config.rope_factor,
                                          config.rope_original or config.block_size, *turns, config.yarn_gain)
        self.register_buffer('theta', theta, persistent=False)
        self.register_buffer('stretch', stretch, persistent=False)  # of theta and of Omega, which keeps the units it was trained in
        if config.n_spectral:
            rows = 1 if config.spectral_shared else config.n_spectral
            self.Omega = nn.Parameter(theta.repeat(rows, 1), requires_grad=config.learn_frequency)
            self.A = nn.Parameter(torch.ones_like(self.Omega), requires_grad=config.learn_amplitude)
            self.Phi = nn.Parameter(torch.zeros_like(self.Omega), requires_grad=config.learn_phase)
            # each head's row in [geometric, *spectral], and its row of Phi: 0, the geometric one, for keys
            key = (torch.arange(config.nkv) - (config.nkv - config.n_spectral) + 1).clamp(0, rows)
            query = key.repeat_interleave(config.n_head // config.nkv)
            self.register_buffer('row', torch.cat([query, key]), persistent=False)  # (nh + nkv,)
            phase_key = key if config.phase_on == 'both' else 0 * key
            self.register_buffer('phase_row', torch.cat([query, phase_key]), persistent=False)  # (nh + nkv,)

    def table(self, positions):
        """cos and sin of every query head, then of every key head: (T, nh + nkv, P); (T, 1, P) if all are geometric."""
        theta = self.theta[None, :]
        if self.config.n_spectral == 0:
            return rotation(positions, self.stretch * theta, self.gain)
        Omega = torch.cat([theta, self.Omega]).index_select(0, self.row)  # (nh + nkv, P)
        A = torch.cat([torch.ones_like(theta), self.A]).index_select(0, self.row)
        Phi = torch.cat([torch.zeros_like(theta), self.Phi]).index_select(0, self.phase_row)
        return rotation(positions, self.stretch * Omega, self.gain * A, Phi)

    def forward(self, qk, positions):
        """Queries and keys in one, qk (B, T, nh + nkv, hs), turned to their positions (T,): like qk."""
        return rotate(qk, *self.table(positions))


@torch.compiler.assume_constant_result  # a compiler calls it while it traces, and leaves no break in the graph
def warn(message):
    warnings.warn(message)  # Python shows it once


class TAPA(nn.Module):
    """
    Attention by `tapa_scores`. Its two products a score do not fit scaled_dot_product_attention: on CUDA the fused kernel of
    tapa_kernel.py does it, unless tapa_fused=False; elsewhere, scores are written out for BLOCK queries at a time, each block
    with no more keys than its last query sees. Beyond STORED keys the backward pass computes them anew instead of keeping
    them: memory then grows with the length, not with its square. Beyond UNROLLED queries a compiler, which would write out
    every block, leaves the loop as it is.
    """
    BLOCK, STORED, UNROLLED = 128, 1024, 2048

    def __init__(self, config):
        super().__init__()
        self.config = config
        powers = torch.arange(config.block_size).float() ** config.tapa_alpha  # a compiler would redo them for each score
        self.register_buffer('powers', powers, persistent=False)

    def forward(self, q, k, v, m):
        """q (B, nh, T, hs) at m (T,), the last of the positions 0 .. S-1 of k, v (B, nkv, S, hs); returns (B, nh, T, hs)."""
        config, S = self.config, k.size(2)
        powers = self.powers
        if S > config.block_size or powers.dtype != torch.float32:  # a longer text; a model that was cast as a whole
            powers = torch.arange(S, device=m.device).float() ** config.tapa_alpha
        k, v = k.to(q.dtype), v.to(q.dtype)  # under autocast those of a cache may differ
        if config.tapa_fused and q.is_cuda and len(m) == S:  # fewer queries than keys continue a cache: few scores, no kernel
            if (reason := tapa_kernel.why_not(q, k, v)) is None:
                return tapa_kernel.tapa_attention(q, k, v, powers, config.tapa_theta, config.tapa_phase)
            warn(f'TAPA runs without its fused kernel: {reason}')
        if config.nkv < config.n_head:
            k, v = (x.repeat_interleave(config.n_head // config.nkv, dim=1) for x in (k, v))  # (B, nh, S, hs)
        by_blocks = self.by_blocks if len(m) <= self.UNROLLED else torch.compiler.disable(self.by_blocks)
        return by_blocks(q, k, v, m, powers)

    def by_blocks(self, q, k, v, m, powers):
        """`attend` for BLOCK queries at a time."""
        S, attend, blocks = k.size(2), self.attend, []
        if S > self.STORED and torch.is_grad_enabled():
            attend = partial(recomputed, attend, use_reentrant=False, preserve_rng_state=False)
        elif len(m) > self.BLOCK:  # else each block would copy what it sees, and keep it
            k, v = k.contiguous(), v.contiguous()
        for start in range(0, len(m), self.BLOCK):
            seen = S - len(m) + min(start + self.BLOCK, len(m))
            rows = slice(start, start + self.BLOCK)
            blocks.append(attend(q[:, :, rows], k[:, :, :seen], v[:, :, :seen], m[rows], powers))
        return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]

    def attend(self, q, k, v, m, powers):
        """The explicit version, with k and v of as many heads as q."""
        apart = m[:, None] - torch.arange(k.size(2), device=m.device)  # (T, S)
        distance = powers[apart.abs()]
        with torch.autocast(q.device.type, enabled=False):  # phases are float32
            scores = tapa_scores(q, k, distance, self.config.tapa_theta, self.config.tapa_phase)
        return scores.masked_fill_(apart < 0, float('-inf')).softmax(dim=-1).to(v.dtype) @ v


class Attention(nn.Module):
    """Causal self-attention with grouped key/value heads; `config.attention` says how positions enter its scores."""

    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer = config, layer
        self.qkv = nn.Linear(config.n_embd, (config.n_head + 2 * config.nkv) * config.head_size, bias=False)
        self.proj = nn.Linear(config.n_head * config.head_size, config.n_embd, bias=False)
        self.rotary = Rotary(config) if config.attention in ROTARY else None
        self.tapa = TAPA(config) if config.attention == 'tapa' else None
        self.closed = None  # query heads whose output is zeroed, a tensor of indices: see GPT.closed_eyes

    def heads(self, x, positions):
        """Queries (B, nh, T, hs), keys and values (B, nkv, T, hs) of x (B, T, C), rotated to their positions (T,)."""
        B, T, C = x.size()
        nh, nkv, hs = self.config.n_head, self.config.nkv, self.config.head_size
        qkv = self.qkv(x).view(B, T, nh + 2 * nkv, hs)
        qk, v = qkv.split([nh + nkv, nkv], dim=2)
        if self.rotary is not None:
            qk = self.rotary(qk, positions)  # queries and keys turn in one pass
        q, k = qk.split([nh, nkv], dim=2)
        if self.config.log_scale:  # lest more keys dilute the attention (arXiv 2202.12172, 2501.19399)
            q = q * ((positions + 1.0).log() / math.log(self.config.log_scale))[:, None, None].to(q.dtype)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x, positions, cache=None):
        """x (B, T, C) at positions (T,) attends to itself and to what the `Cache` holds before it: (B, T, C)."""
        T = x.size(1)
        q, k, v = self.heads(x, positions)
        if cache is not None:
            k, v = cache.append(self.layer, k, v)  # (B, nkv, S, hs)
        if self.tapa is not None:
            y = self.tapa(q, k, v, positions)  # (B, nh, T, hs)
        else:
            S = k.size(2)
            mask = None if T in (1, S) else positions[:, None] >= torch.arange(S, device=x.device)  # (T, S)
            y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=T == S and T > 1,
                                               enable_gqa=self.config.nkv < self.config.n_head)
        if self.closed is not None:
            y = y.index_fill(1, self.closed, 0)
        return self.proj(y.transpose(1, 2).flatten(2))  # (B, T, nh hs) to (B, T, C)


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config.n_embd, config.inner, bias=False)
        self.up = nn.Linear(config.n_embd, config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.n_embd, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer: attention, then the MLP, each added to the residual stream that it reads through a norm."""

    def __init__(self, config, layer):
        super().__init__()
        self.norm_1 = RMSNorm(config.n_embd, config.norm_eps)
        self.attention = Attention(config, layer)
        self.norm_2 = RMSNorm(config.n_embd, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, positions, cache=None):
        x = x + self.attention(self.norm_1(x), positions, cache)
        return x + self.mlp(self.norm_2(x))


class Cache:
    """Keys (already rotated) and values of the tokens read so far: two (n_layer, B, nkv, max_length, hs) tensors."""

    def __init__(self, config, batch_size, max_length, device=None, dtype=torch.float32):
        shape = (config.n_layer, batch_size, config.nkv, max_length, config.head_size)
        self.k, self.v = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        self.length = 0  # tokens held; GPT.forward advances it once all layers have written

    def append(self, layer, k, v):
        """Write k, v (B, nkv, T, hs) behind what is held; return all of it, (B, nkv, S, hs)."""
        start, end = self.length, self.length + k.size(2)
        if end > self.k.size(3):
            raise ValueError(f'{end} tokens do not fit a cache of max_length={self.k.size(3)}')
        self.k[layer, :, :, start:end], self.v[layer, :, :, start:end] = k, v
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]


class Undrawn(TorchFunctionMode):
    """Within it nothing random is drawn: the first weights of a model cost neither time nor memory if others replace them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, '__name__', '') not in ('normal_', 'uniform_', 'kaiming_uniform_'):
            return function(*args, **(kwargs or {}))


class GPT(nn.Module):
    """The decoder: embedding, blocks, norm, output matrix. Also how it starts, generates, is optimised and operated on."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.norm = RMSNorm(config.n_embd, config.norm_eps)
        self.lm_head = None if config.tie_embeddings else nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self):
        """
        Standard deviations of normal draws, which keep activations of size 1 at any width; or init_std in their place:
        embedding        1; 1/sqrt(C) if it is the output matrix too
        qkv, gate, up    1/sqrt(inputs)
        proj, down       1/sqrt(inputs), over sqrt(2 n_layer), for they add up along the residual stream (GPT-2)
        lm_head          1/C: the first loss is near ln V
        norms 1; Omega theta, A 1, Phi phase_std, drawn last so that every attention starts alike
        """
        config = self.config
        self.embedding.weight.normal_(std=config.init_std or (config.n_embd**-0.5 if config.tie_embeddings else 1.0))
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                std = config.init_std or module.in_features ** (-1 if name == 'lm_head' else -0.5)
                module.weight.normal_(std=std / math.sqrt(2 * config.n_layer if name.endswith(('proj', 'down')) else 1))
        self.draw_phases()

    @torch.no_grad()
    def draw_phases(self):
        for rotary in self.spectral():
            rotary.Phi.normal_(std=self.config.phase_std)

    def spectral(self):
        """The Rotary module of each layer, if it has anything to learn: [] for rope, tapa and nope."""
        return [block.attention.rotary for block in self.blocks] if self.config.n_spectral else []

    def forward(self, idx, targets=None, cache=None):
        """
        idx (B, T) token ids -> logits (B, T, V) at every position, and the mean cross-entropy in nats over the targets
        (B, T) that are not -1 (None without targets). With a `Cache`, idx continues the tokens that it holds.
        """
        start = 0 if cache is None else cache.length
        positions = torch.arange(start, start + idx.size(1), device=idx.device)  # (T,)
        x = self.embedding(idx)  # (B, T, C)
        for block in self.blocks:
            x = block(x, positions, cache)
        if cache is not None:
            cache.length += idx.size(1)
        logits = F.linear(self.norm(x), (self.lm_head or self.embedding).weight)  # (B, T, V)
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.reshape(-1), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, stop=None, generator=None, use_cache=True):
        """
        Continue idx (B, T) by up to max_new_tokens tokens; returns (B, T + new), the prompt included.

        Tokens are drawn as `draw` does, from `generator` (a torch.Generator) if given. A row that has drawn the token
        `stop` repeats it, and generation ends when all rows have.
        """
        B, T = idx.size()
        if T == 0:
            raise ValueError('the prompt is empty: generation needs at least one token to continue')
        cache = Cache(self.config, B, T + max_new_tokens, idx.device, self.embedding.weight.dtype) if use_cache else None
        stopped = torch.zeros(B, dtype=torch.bool, device=idx.device)
        unread = idx
        for _ in range(max_new_tokens):
            token = draw(self(unread, cache=cache)[0][:, -1], temperature, top_k, generator)  # (B,)
            if stop is not None:
                token = token.masked_fill(stopped, stop)
                stopped = stopped | (token == stop)
            idx = torch.cat([idx, token[:, None]], dim=1)
            unread = token[:, None] if use_cache else idx
            if stop is not None and stopped.all():
                break
        return idx

    @contextlib.contextmanager
    def closed_eyes(self, kind, layers=None):
        """
        Within this context the 'geometric' or the 'spectral' heads of `layers` (default: all) output zero: what remains
        is what the other eyes see. Raises ValueError for a model without heads of that kind.
        """
        config, heads = self.config, torch.arange(self.config.n_head, device=self.embedding.weight.device)
        geometric = config.n_head - config.n_spectral * config.n_head // config.nkv  # the first query heads
        eyes = {'geometric': heads[:geometric], 'spectral': heads[geometric:]}.get(kind, heads[:0])
        if config.attention not in ROTARY or len(eyes) == 0:
            raise ValueError(f'{kind!r}: a model with attention={config.attention!r} has no such eyes to close')
        closing = [self.blocks[i].attention for i in (range(config.n_layer) if layers is None else layers)]
        before = [attention.closed for attention in closing]
        try:
            for attention in closing:
                attention.closed = eyes
            yield self
        finally:
            for attention, closed in zip(closing, before):
                attention.closed = closed

    def configure_optimizers(self, learning_rate, weight_decay, betas, spectral_lr, frequency_decay=0.0, amplitude_decay=0.0):
        """
        AdamW with one group per role: matrices decay; embeddings and norms do not; the spectral parameters have a rate
        of their own, and decays of their own: frequencies should have none, which would drag them all to zero. Each
        group carries its `role`, and in `peak_lr` the rate that the schedule scales. Raises ValueError for a parameter
        whose role nobody has decided.
        """
        kinds = {nn.Linear: 'matrices', nn.Embedding: 'embeddings', RMSNorm: 'norms'}
        spectral = {'Omega': 'frequencies', 'A': 'amplitudes', 'Phi': 'phases'}
        decays = {'matrices': weight_decay, 'frequencies': frequency_decay, 'amplitudes': amplitude_decay}
        roles = {role: [] for role in [*kinds.values(), *spectral.values()]}
        for module_name, module in self.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                role = spectral[name] if isinstance(module, Rotary) else kinds.get(type(module))
                if role is None:
                    raise ValueError(f'parameter {module_name}.{name} has no role: add {type(module).__name__} to the kinds')
                roles[role].append(parameter)
        counted, total = sum(len(role) for role in roles.values()), len(list(self.parameters()))
        if counted != total:
            raise ValueError(f'{counted} parameters in groups, {total} in the model: one is shared by two modules')
        groups = []
        for role, parameters in roles.items():
            lr = spectral_lr if role in spectral.values() else learning_rate
            if trainable := [p for p in parameters if p.requires_grad]:
                groups.append(dict(params=trainable, lr=lr, peak_lr=lr, weight_decay=decays.get(role, 0.0), role=role))
        fused = all(p.device.type in ('cuda', 'cpu') for p in self.parameters())
        return torch.optim.AdamW(groups, betas=betas, fused=fused)

    @classmethod
    def from_checkpoint(cls, path, **overrides):
        """
        The model of a checkpoint that train.py wrote. `overrides` replace GPTConfig fields; another `attention` is the
        paper's Surgical Integration: see `operate`. Raises what `load_checkpoint` and `operate` raise.
        """
        return cls.operate(load_checkpoint(path), path, overrides)

    @classmethod
    def from_pretrained(cls, name_or_path, attention='rope', **overrides):
        """
        The model of a Hugging Face checkpoint of the Llama architecture, a folder or a name on the hub, in float32.
        attention 'spectral' or 'bifocal' operates on it as `operate` does. Raises what `load_pretrained` and `operate` raise.
        """
        from pretrained import load_pretrained  # a foreign format, which only those who load one have to know
        return cls.operate(load_pretrained(name_or_path), name_or_path, dict(overrides, attention=attention))

    @classmethod
    def operate(cls, checkpoint, path, overrides):
        """
        A model of checkpoint['model_args'] with the fields in `overrides` replaced, and of the weights in
        checkpoint['model'], which it takes as they are: there is no second copy. `path` is for messages.

        Another `attention` is Surgical Integration: every weight is kept, and the heads that become spectral start at the
        checkpoint's own rotation (Omega at its theta, A = 1, Phi ~ N(0, phase_std^2)), so that the function is kept too,
        up to Phi. Raises ValueError for what is no such operation: another shape, or an attention whose scores mean
        something else (tapa and nope have no rotation to extract; a learned rotation cannot become a fixed one).
        """
        old = GPTConfig(**checkpoint['model_args'])
        if 'attention' in overrides and overrides['attention'] != old.attention:
            overrides.setdefault('n_spectral_head', -1)
        if overrides.get('rope_scaling', old.rope_scaling) != 'none' and not overrides.get('rope_original'):
            overrides['rope_original'] = old.rope_original or old.block_size  # whatever the block_size is to be
        new = dataclasses.replace(old, **overrides)
        for name in ('vocab_size', 'n_layer', 'n_head', 'nkv', 'n_embd', 'head_size', 'inner', 'norm_eps', 'tie_embeddings'):
            if getattr(new, name) != getattr(old, name):
                raise ValueError(f'{name}={getattr(new, name)}: the weights in {path} have {name}={getattr(old, name)}')
        if new.attention != old.attention and not {new.attention, old.attention} <= set(ROTARY):
            raise ValueError(f'{path}: {old.attention} to {new.attention} is not a surgery: only rotations can be '
                             'extracted and made learnable (rope to bifocal or spectral, bifocal to spectral)')
        for name in ('rope_base', 'rope_grid', 'rope_period'):
            if new.n_spectral and getattr(new, name) != getattr(old, name):
                raise ValueError(f'{name}={getattr(new, name)}: Omega comes from {path}, whose theta has {name}={getattr(old, name)}')
        learned, becomes = (old.n_spectral, old.spectral_shared), (new.n_spectral, new.spectral_shared)
        if old.n_spectral and becomes != learned and (True in (old.spectral_shared, new.spectral_shared) or becomes < learned):
            raise ValueError(f'{path}: what its {learned[0]} spectral heads (spectral_shared={learned[1]}) have learned does not '
                             f'fit {becomes[0]} spectral heads (spectral_shared={becomes[1]})')
        with Undrawn():
            model = cls(new)
        model.draw_phases()
        weights = {name: start for name, start in model.state_dict().items() if '.rotary.' in name}
        for name, learned in checkpoint['model'].items():
            if name in weights:
                learned = torch.cat([weights[name][:-len(learned)], learned])  # the new heads come before the old ones
            weights[name] = learned
        try:
            model.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise ValueError(f'{path}: its weights are not those of its own model_args: {error}') from None
        return model


def load_checkpoint(path):
    """
    The dict that train.py saved at `path`, on the CPU. Unpickles tensors and plain types only. Raises FileNotFoundError, and
    ValueError for what is no checkpoint.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f'{path} does not exist: is it the checkpoint of a run that is still to be trained?')
    try:
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
    except Exception as error:  # truncated, not a checkpoint, or a pickle that wants to run code
        reason = str(error).partition('\n')[0] or type(error).__name__
        raise ValueError(f'{path} is not a checkpoint that can be read: {reason}') from error
    if not isinstance(checkpoint, dict) or not {'model', 'model_args', 'task'} <= checkpoint.keys():
        raise ValueError(f'{path} is not a checkpoint of train.py: it lacks model, model_args or task')
    return checkpoint
