"""A plain GPT for the benchmarks: LayerNorm, GELU, and a learned vector for each position."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class PlainBlock(nn.Module):
    """Attention and a perceptron, as in GPT-2."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.norm_1 = nn.LayerNorm(config.n_embd)
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.norm_2 = nn.LayerNorm(config.n_embd)
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.down = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        heads = self.qkv(self.norm_1(x)).unflatten(2, (3, self.n_head, -1))  # (B, T, 3, nh, hs)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # (B, nh, T, hs) each
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class PlainGPT(nn.Module):
    """A GPT as most know it: x, y (B, T) to logits (B, T, V) and loss."""

    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Parameter(0.02 * torch.randn(config.block_size, config.n_embd))
        self.blocks = nn.Sequential(*[PlainBlock(config) for _ in range(config.n_layer)])
        self.norm = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, x, y):
        stream = self.tokens(x) + self.positions[:x.size(1)]
        logits = self.lm_head(self.norm(self.blocks(stream)))
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
