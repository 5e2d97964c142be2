"""
Tables of questions.md that need no run: the work of a training step, and scores of random tokens.
"""

import itertools
import math

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from lab.table import groups_of, markdown
from model import ATTENTIONS, GPT, GPTConfig
from study import questions

TEXT = dict(vocab_size=256, block_size=256, n_layer=4, n_head=4, n_embd=128)
SHAPES = {'main job': (dict(vocab_size=7), 64), 'text': (TEXT, 8)}  # options, strings in an update
L, PAIRS, STRINGS = 256, 16, 256  # as on text: the training length, the pairs of a head
SCORES = {'NoPE': dict(attention='nope'),
          'RoPE, base 100': dict(rope_base=100.0), 'RoPE, base 10000': dict(rope_base=10000.0),
          'RoPE, base 500000': dict(rope_base=500000.0),
          'TAPA, factor 2π, α = 0.1, θ = 0.5': dict(attention='tapa'),
          'TAPA, factor 1, α = 0.5, θ = 0.0625': dict(
              attention='tapa', tapa_scale=1.0, tapa_alpha=0.5, tapa_theta=0.0625)}


class Pointwise(TorchDispatchMode):
    """Within it, `results` counts the numbers that operations on single numbers give."""

    results = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if torch.Tag.pointwise in function.tags:
            self.results += found.numel()
        return found


def work(config, batch):
    """Operations of a training step for each token: those of matrix products, and pointwise."""
    x = torch.zeros(batch, config.block_size, dtype=torch.long)
    model = GPT(config)
    # of the kernels, this one shows its products to the counter
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as products:
        with Pointwise() as pointwise:
            model(x, x)[1].backward()
    return products.get_total_flops() / x.numel(), pointwise.results / x.numel()


def flops():
    """The work of a training step of each arm, in thousands of operations a token."""
    kinds = ('products', 'pointwise')
    lines = []
    for arm in ('nope', 'rope', 'spectral', 'bifocal', 'tapa'):
        found = [work(GPTConfig(**options, attention=arm), batch)
                 for options, batch in SHAPES.values()]
        lines.append([arm, *(f'{count / 1e3:.1f}' for count in itertools.chain(*found))])
    return markdown(['attention', *(f'{shape}: {kind}' for shape in SHAPES for kind in kinds)],
                    lines)


@torch.no_grad()
def mean_scores(options):
    """
    The mean score of random tokens at the distances 0, ..., 9L - 1. Queries and keys are ones plus
    noise N(0, 1), so all pairs have the same mean, as the theorem assumes.
    """
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=2 * PAIRS, **options)
    attention, T = ATTENTIONS[config.attention](config), 9 * L
    means = torch.ones(2, 1, 1, T, 2 * PAIRS)
    if attention.scores is None:  # a product: its mean is that of the means
        q, k = attention.rotate(*means, torch.arange(T))
        total = (q[:, :, -1:] @ k.mT).flatten() / math.sqrt(2 * PAIRS)
        return total.flip(0).numpy()  # the last query sees all distances, 0 that of the last key
    generator, total = torch.Generator().manual_seed(0), torch.zeros(T)
    for _ in range(STRINGS):
        q, k = means + torch.randn(means.shape, generator=generator)
        total += attention.scores(q[:, :, -1:], k).flatten() / STRINGS
    return total.flip(0).numpy()


def random_tokens():
    """The mean score by distance: of random tokens, and of the trained models of `bias`."""
    edges = questions.octaves(L)
    lines = []
    for arm, options in SCORES.items():
        scores = mean_scores(options)
        means = [scores[:L].mean(), *(scores[a:b].mean() for a, b in itertools.pairwise(edges))]
        lines.append(['random', arm, *(f'{mean:.2f}' for mean in means)])
    trained = [row for row in questions.rows_of('english') if row.get('score@256') is not None]
    for (arm,), rows in groups_of(trained, ['arm']).items():
        means = [np.mean([row[f'score@{edge}'] for row in rows]) for edge in edges[:-1]]
        lines.append(['English, trained', arm, '', *(f'{mean:.2f}' for mean in means)])
    return markdown(['tokens', 'arm', 'up to L', *(f'from {edge}' for edge in edges[:-1])], lines)


TABLES = {table.__name__: table for table in (flops, random_tokens)}
