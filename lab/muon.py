"""
Which matrices should Muon update, and how? Training as train.py does, with one choice made otherwise.

    python -m lab.muon three config/dyck3_rope.py --seed=100 --out_dir=out/three

    whole       as train.py has it: Muon updates every matrix of the blocks, without weight decay
    three       queries, keys and values are three matrices in place of one
    attention   Muon has the matrices of the attention alone, AdamW those of the MLP
    mlp         the reverse
    head        Muon has the output matrix, too
    decay       Muon's matrices have a weight decay of 0.1, as AdamW's have
    momentum    0.9 in place of 0.95

`three` needs n_kv_head = n_head. A run resumes with the same word.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

import train
from configurator import configure, one_line_errors
from model import GPT, Muon

VARIANTS = ('whole', 'three', 'attention', 'mlp', 'head', 'decay', 'momentum')


class Thirds(Muon):
    """Muon whose steps see the thirds of some matrices as matrices of their own, in the same memory."""

    def __init__(self, group, whole):
        self.thirds = {p: [torch.nn.Parameter(third) for third in p.data.chunk(3)] for p in whole}
        others = [p for p in group['params'] if p not in self.thirds]
        super().__init__([dict(group, params=others + sum(self.thirds.values(), []))])

    def step(self):
        for p, thirds in self.thirds.items():
            for third, gradient in zip(thirds, p.grad.chunk(3)):
                third.grad = gradient
        super().step()


class Decaying(Muon):
    """Muon with a decoupled weight decay of 0.1."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group['params']:
                p.mul_(1 - 0.1 * group['lr'])
        super().step()


def vary(variant, model, adamw, muon):
    """[AdamW, Muon] in place of the two that GPT.configure_optimizers has made for `model`."""
    (group,) = muon.param_groups
    rest = next(group for group in adamw.param_groups if group['role'] == 'matrices')
    if variant in ('attention', 'mlp', 'head'):
        theirs = {id(p) for name, p in model.named_parameters()
                  if (f'.{variant}.' in name if variant != 'head' else name.startswith(('blocks.', 'lm_head')))}
        matrices = group['params'] + rest['params']
        group['params'] = [p for p in matrices if id(p) in theirs]
        rest['params'] = [p for p in matrices if id(p) not in theirs]
    if variant == 'three':
        muon = Thirds(group, [block.attention.qkv.weight for block in model.blocks])
    if variant in ('decay', 'momentum'):
        muon = Decaying([group]) if variant == 'decay' else Muon([dict(group, momentum=0.9)])
    return [adamw, muon]


def main(arguments):
    """Train with the variant that the first of `arguments` names, and the options of train.py that follow."""
    variant, *options = arguments or ['']
    if variant not in VARIANTS:
        raise ValueError(f'{variant!r}: must be one of {", ".join(VARIANTS)}')
    cfg = SimpleNamespace(**configure(dict(vars(train)), options))
    fits = cfg.optimizer == 'muon' and cfg.n_kv_head in (0, cfg.n_head) and cfg.learning_rate > 0
    if not fits or cfg.dtype == 'float16':
        raise ValueError('lab.muon needs optimizer=muon, n_kv_head=0, a learning rate, and another dtype than float16')
    if os.environ.get('RANK', '0') == '0':
        train.lock(Path(cfg.out_dir))
    original = GPT.configure_optimizers
    try:
        GPT.configure_optimizers = lambda model, *rates: vary(variant, model, *original(model, *rates))
        train.main(cfg)
    finally:
        GPT.configure_optimizers = original


if __name__ == '__main__':
    with one_line_errors():
        main(sys.argv[1:])
