"""
How strongly a model uses each pair: by layer, head and frequency, as one figure.

    python -m lab.pair_use out/bio_rotation_spectral       # writes pairs.png into the folder
    python -m lab.pair_use MODEL --text FILE               # a folder of transformers, or a name

The use of pair i is the product of the sizes of q_i and k_i, each a root mean square over tokens,
by sqrt(hs): about the most that the pair can add to a score. A pair that is hardly used is one that
the model could do without. `of_run` is for runs of this repository, `of_transformers` for a model
of transformers, spectral or not. The figure has a line for each head, and a mark for each pair at
its frequency, whose colour is the use.
"""

import contextlib
import functools
import inspect
import math
from pathlib import Path

import numpy as np
import torch

from configurator import one_line_errors
from eval import load_run
from lab import plot
from lab.analysis import queries_and_keys, walk
from lab.options import import_transformers, loading, make_parser, read_text
from lab.spectralize import (APPLIES, find_attentions, load_spectral, module_of, probe,
                             read_theta)
from model import Attention, UserError
from tasks import make_rng

LEAST = 1e-5  # radians a token: slower pairs are drawn here
MANY = 500  # pairs, which have small marks
TOKENS = 512  # of a text


def strength(q, k):
    """The use of each pair of q (B, nh, T, hs) and k (B, nkv, T, hs), both rotated: (nh, P)."""
    P = q.size(-1) // 2
    sizes = [x.float().unflatten(-1, (2, P)).square().sum(dim=-2).mean(dim=(0, 2)).sqrt()
             for x in (q, k)]  # (nh, P), (nkv, P)
    group = q.size(1) // k.size(1)
    return sizes[0] * sizes[1].repeat_interleave(group, dim=0) / math.sqrt(2 * P)


@torch.no_grad()
def of_run(model, idx):
    """
    Rows [{layer, head, pair, frequency, use}] of each layer that rotates by position, for token
    ids (B, T). The frequency, in radians a token, is measured: how far a key turns from 0 to 1.
    """
    rows = []
    for layer, (block, x) in enumerate(walk(model, idx.cpu().numpy(), idx.device)):
        attention = block.attention
        if type(attention).rotate is Attention.rotate:
            continue
        q, k = queries_and_keys(attention, block.norm_1(x))
        still = torch.ones_like(k[:1, :, :2])  # two tokens whose pairs are 1 + 1j
        turned = attention.rotate(torch.ones_like(q[:1, :, :2]), still,
                                  torch.arange(2, device=idx.device))[1][0]
        z = torch.complex(*turned.unflatten(-1, (2, -1)).unbind(dim=-2))  # (nh, 2, P)
        frequency = (z[:, 1] * z[:, 0].conj()).angle()
        rows += rows_of_layer(layer, strength(q, k), frequency)
    return rows


@torch.no_grad()
def of_transformers(model, idx):
    """
    The same rows for a model of transformers, spectral or not, whose heads rotate all their
    dimensions, or hand on alone those that they rotate. Layers are counted among those that rotate.
    Raises UserError for a model that does otherwise.
    """
    try:
        spectral = getattr(model.config, 'spectral', None)
        layers = spectral['layers'] if spectral else probe(model)
    except ValueError as error:
        raise UserError(f'{type(model).__name__}: {error}') from None
    seen = rotated(model, [name for name in find_attentions(model) if name in layers], idx)
    rows = []
    for number, (name, (q, k)) in enumerate(seen.items()):
        layer = layers[name]
        theta, first, _ = read_theta(model.get_submodule(layer['rotary']), layer['prefix'])
        if q.size(-1) != 2 * len(theta):
            raise UserError(f'{type(model).__name__} rotates {2 * len(theta)} of the '
                            f'{q.size(-1)} dimensions of a head: pairs are read from all')
        frequency = theta.expand(k.size(1), -1)  # (nkv, P)
        if spectral:
            Omega = theta * (model.get_submodule(name).rotation.Omega / first)
            frequency = torch.cat([frequency[len(Omega):], Omega])
        group = q.size(1) // k.size(1)
        rows += rows_of_layer(number, strength(q, k), frequency.repeat_interleave(group, dim=0))
    return rows


def rotated(model, names, idx):
    """
    {name: [q (B, nh, T, hs), k (B, nkv, T, hs)]} of attentions, rotated, on token ids (B, T), with
    each pair in two halves.
    """
    running, seen = [], {}

    def watch(rotate, q, *args, **kwargs):
        found = rotate(q, *args, **kwargs)
        call = inspect.signature(rotate).bind(q, *args, **kwargs)
        call.apply_defaults()
        heads = [x.transpose(1, call.arguments['unsqueeze_dim']) for x in found]
        one = torch.zeros_like(q)
        one[..., 0] = 1
        turned = rotate(one, *args, **kwargs)[0].flatten(0, -2).any(dim=0).nonzero()  # (2, 1)
        if turned.diff(dim=0) == 1:  # the numbers of a pair stand side by side
            heads = [x.unflatten(-1, (-1, 2)).mT.flatten(-2) for x in heads]
        seen.setdefault(running[-1], heads)  # a second call is not the attention's: its indexer's
        return found

    with contextlib.ExitStack() as undo:
        for name in names:
            attention = model.get_submodule(name)
            undo.callback(attention.register_forward_pre_hook(
                lambda *_, name=name: running.append(name)).remove)
            file = module_of(attention)
            for word in APPLIES & file.keys():
                if not isinstance(file[word], functools.partial):
                    undo.callback(file.update, {word: file[word]})
                    file[word] = functools.partial(watch, file[word])
        model(input_ids=idx, use_cache=False)
    return seen


def rows_of_layer(layer, use, frequency):
    """Rows of one layer from use and frequency, each (nh, P)."""
    return [dict(layer=layer, head=head, pair=pair, frequency=frequency[head, pair].item(),
                 use=use[head, pair].item())
            for head in range(use.size(0)) for pair in range(use.size(1))]


def draw_pairs(figure, axes, rows, period=None):
    """
    A line for each head, and a mark for each of its pairs, at its frequency, coloured by use.
    Dashed: the harmonics of the period.
    """
    heads = 1 + max(row['head'] for row in rows)
    lines = [row['layer'] + row['head'] / heads for row in rows]
    marks = axes.scatter([max(LEAST, abs(row['frequency'])) for row in rows], lines, marker='s',
                         s=6 if len(rows) > MANY else 40, c=[row['use'] for row in rows],
                         norm='log', cmap='viridis')
    figure.colorbar(marks, label='use: |q||k| / √hs')
    for j in range(1, period // 2 + 1) if period else ():
        axes.axvline(2 * math.pi * j / period, color='black', linestyle='--', zorder=0)
    axes.set(xscale='log', xlabel='|frequency| (radians per token)',
             ylabel=f'layer; in each, {heads} heads')
    axes.invert_yaxis()


def read_run(folder):
    """The rows of a run of train.py on test strings, the period of its task, and a title."""
    model, task, _ = load_run(folder, 'best.pt', 'cpu')
    x, _ = task.sample(make_rng('pairs', 'test'), 64, model.config.block_size, 'test')
    rows = of_run(model, torch.from_numpy(x))
    if not rows:
        raise UserError(f'{folder}: no layer of attention={model.config.attention} rotates')
    return rows, task.period, f'{task}, {model.config.attention}'


def read_transformers(place, text):
    """The rows of a model of transformers, spectral or not, on the first TOKENS of a text."""
    transformers = import_transformers()
    load = transformers.AutoModelForCausalLM.from_pretrained
    with loading(place):
        is_spectral = 'spectral' in transformers.PretrainedConfig.get_config_dict(place)[0]
    if is_spectral:
        load = load_spectral
    model = load(place, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    return of_transformers(model, tokenizer(text, return_tensors='pt').input_ids[:, :TOKENS])


def main(arguments=None):
    """Draw the pairs of the model that the command line `arguments` (default: sys.argv) name."""
    parser = make_parser('lab.pair_use', __doc__)
    add = parser.add_argument
    add('model', help='folder of a run of train.py, or a model of transformers')
    add('--text', type=read_text, help='UTF-8 file that a model of transformers reads')
    options = parser.parse_args(arguments)
    folder = Path(options.model)
    if options.text is None:
        rows, period, title = read_run(folder)
    else:
        rows, period, title = read_transformers(options.model, options.text), None, folder.name
    if not folder.is_dir():  # a name on the hub, which a folder here would hide the next time
        folder = Path('out', folder)
    strongest = {(row['layer'], row['head']): abs(row['frequency'])
                 for row in sorted(rows, key=lambda row: row['use'])}  # the last one stays
    quarter, median, three = np.quantile(list(strongest.values()), [0.25, 0.5, 0.75])
    print(f'|frequency| of the strongest pair of {len(strongest)} heads: median {median:.2g}, '
          f'quartiles {quarter:.2g} and {three:.2g}')
    plt = plot.pyplot()
    if plt:
        figure, axes = plt.subplots(figsize=(6, 7 if len(rows) > MANY else 4))
        draw_pairs(figure, axes, rows, period)
        axes.set_title(plot.plain(title))
        plot.save(figure, folder / 'pairs.png')


if __name__ == '__main__':
    with one_line_errors():
        main()
