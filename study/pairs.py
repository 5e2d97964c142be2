"""
Which pairs two models use: one of ours, and a small Llama of transformers that was made spectral.

    python -m study.pairs        # trains both on Bio-Rotation, and draws study/figures/pairs.png

Both have one layer of two heads, base 1000, AdamW, and 300 updates of the study's recipe: less than
a minute on one core. It then measures them again without all pairs but the strongest of each head.
"""

import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from lab import pair_use, plot
from lab.spectralize import parameter_groups, spectralize
from model import GPT, GPTConfig
from optim import configure_optimizers
from tasks import make_rng, make_task
from train import schedule

T, BATCH, UPDATES, WARMUP = 64, 64, 300, 50
RATE, POSITIONAL_RATE, DECAY, BETAS = 4e-3, 1e-2, 0.1, (0.9, 0.99)
FIGURE = Path(__file__).resolve().parent / 'figures' / 'pairs.png'


def ours(task):
    """A spectral model of this repository, its optimizer, and its query matrix."""
    model = GPT(GPTConfig(vocab_size=len(task.symbols), n_layer=1, attention='spectral',
                          rope_base=1000.0))
    cfg = SimpleNamespace(optimizer='adamw', learning_rate=RATE, positional_lr=POSITIONAL_RATE,
                          weight_decay=DECAY, beta1=BETAS[0], beta2=BETAS[1])
    queries = model.blocks[0].attention.qkv.weight[:model.config.n_embd]
    return model, configure_optimizers(model, cfg)[0], queries


def theirs(task):
    """A Llama of the same size, made spectral in place; the same three."""
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(task.symbols), hidden_size=64, intermediate_size=168, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=T,
        rope_parameters=dict(rope_type='default', rope_theta=1000.0)))
    groups = parameter_groups(spectralize(model), RATE, POSITIONAL_RATE, DECAY)
    queries = model.model.layers[0].self_attn.q_proj.weight
    return model, torch.optim.AdamW(groups, betas=BETAS), queries


def train(task, model, optimizer, logits_of, seed=0):
    """300 updates; the loss of the last one."""
    rng = make_rng(seed, 'pairs')
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(
        1, (update + 1) / WARMUP) * schedule(max(update, WARMUP), UPDATES, WARMUP, 0))
    for _ in range(UPDATES):
        x, y = map(torch.from_numpy, task.sample(rng, BATCH, T))
        loss = F.cross_entropy(logits_of(x).flatten(0, 1), y.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
    return loss.item()


@torch.no_grad()
def accuracy(logits_of, x, y):
    return (logits_of(x).argmax(-1) == y)[y >= 0].float().mean().item()


@torch.no_grad()
def silence(queries, rows):
    """Set the rows of a query matrix (nh hs, C) to 0, but those of the strongest pair of a head."""
    strongest = {row['head']: row['pair'] for row in sorted(rows, key=lambda row: row['use'])}
    heads = queries.view(len(strongest), 2, -1, queries.size(1))  # (nh, 2, P, C)
    for head, pair in strongest.items():
        others = torch.arange(heads.size(2)) != pair
        heads[head, :, others] = 0


def main():
    task = make_task('bio_rotation')
    plt = plot.pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharex=True, sharey=True)
    x, y = map(torch.from_numpy, task.sample(make_rng('pairs', 'test'), 512, T, 'test'))
    for axes, make, title in [(panels[0], ours, 'this repository'),
                              (panels[1], theirs, 'LlamaForCausalLM after spectralize()')]:
        torch.manual_seed(0)
        model, optimizer, queries = make(task)

        def logits_of(x):
            return model(x)[0] if make is ours else model(x).logits
        loss = train(task, model.train(), optimizer, logits_of)
        model.eval()
        rows = (pair_use.of_run if make is ours else pair_use.of_transformers)(model, x)
        pair_use.draw(axes, rows, task.period, f'{title}, loss {loss:.4f}')
        before = accuracy(logits_of, x, y)
        silence(queries, rows)
        strong = sorted(rows, key=lambda row: -row['use'])[:8]
        print(f'{title}: loss {loss:.4f}, {100 * before:.2f} % right, and '
              f'{100 * accuracy(logits_of, x, y):.2f} % with one pair a head\n'
              'strongest pairs: ', ', '.join(
                  f'{row["frequency"] * task.period / (2 * math.pi):.3f} * 2 pi / 10, use '
                  f'{row["use"]:.2f}' for row in strong))
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside lower center', ncols=3)
    plot.save(plt, figure, FIGURE)
    print(f'wrote {FIGURE}')


if __name__ == '__main__':
    main()
