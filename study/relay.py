"""
The relay: why two layers of RoPE solve Bio-Rotation from a base that one layer fails with. Its runs
are those of questions.md.

    python -m study.relay out/relay/*    # what was measured, into study/results/relay.json

A blank of turn t stands 10 t tokens behind its letter. So a share of attention at the distance
10 t is one on the right letter, and at a smaller multiple of 10 one on an earlier blank.
"""

import contextlib
from pathlib import Path

import numpy as np
import torch

import eval as page
import study
from configurator import choose_hardware, one_line_errors
from lab import analysis, runs
from lab.options import make_parser
from lab.table import best_loss, groups_of, listed, markdown, table_of_arms, updates
from model import distances
from study import claims
from tasks import make_rng

STRINGS = 128
LAGS = (10, 20, 30, 40, 50)
# {name: (layer, the distances that it does not see)}
CUTS = {'nothing': (0, ()), '10 in layer 2': (1, (10,)), '20 in layer 2': (1, (20,)),
        '30 in layer 2': (1, (30,)), 'all multiples of 10 in layer 2': (1, LAGS),
        '10 in layer 1': (0, (10,)), '30 in layer 1': (0, (30,)),
        'all multiples of 10 in layer 1': (0, LAGS)}
ONE, TWO = 'Spectral, layers: 1', 'RoPE, layers: 2'  # the arms that are looked into
RIGHT = 90  # %: so much of a turn counts as read


# ----------------------------------------------------------------------------------------------
# Measuring a run


@contextlib.contextmanager
def cut(attention, lags):
    """Within it no query sees the keys that are so many tokens back: their scores are -inf."""
    def attend(q, k, v):
        distance = distances(q, k)
        hidden = (distance < 0) | torch.isin(distance, torch.tensor(lags))
        scores = analysis.scores_of(attention, q, k)
        return scores.masked_fill(hidden, float('-inf')).softmax(dim=-1) @ v

    attention.attend = attend
    try:
        yield
    finally:
        del attention.attend


@torch.no_grad()
def looks(model, task, T):
    """
    The share of attention (%) that blanks give to the key d tokens back, by their turn: nested
    lists (n_layer, nh, turns, T).
    """
    x, y = task.sample(make_rng('test', str(task), T), STRINGS, T, 'test')
    position = torch.arange(T)
    source = position[:, None] - position  # of a query and a distance: (T, T)
    turns = analysis.breakdown(task, x[:1], y[:1])['turn'].values()
    layers = []
    for block, residual in analysis.walk(model, x, 'cpu'):
        weights = analysis.attention_weights(block.attention, block.norm_1(residual)).mean(0)
        # (nh, T, T), now by distance and not by key
        shares = weights.gather(2, source.clamp(min=0).expand_as(weights)) * (source >= 0)
        by_turn = torch.stack([shares[:, turn[0]].mean(1) for turn in turns], dim=1)
        layers.append((100 * by_turn).round().int().tolist())
    return layers


def by_turn(model, task, length, hardware, n=STRINGS):
    """The accuracy in each turn of n new strings."""
    _, (x, y, right) = page.measure(model, task, length, n, hardware)
    return [share for share, _ in analysis.cells(task, x, y, right)['turn'].values()]


def percent(shares):
    """Shares in percent, rounded as relay.json has them."""
    return [round(100 * share, 1) for share in shares]


def measure_run(folder, hardware):
    """What is measured of a run, a dict for relay.json."""
    model, task, saved = page.load_run(folder, 'best.pt', hardware.device)
    T, found = saved['options']['block_size'], {}
    for name, (layer, lags) in CUTS.items():
        if layer < len(model.blocks):
            with cut(model.blocks[layer].attention, lags):
                found[name] = percent(by_turn(model, task, T, hardware))
    return dict(looks=looks(model, task, T), cuts=found,
                far=percent(by_turn(model, task, 8 * T, hardware)))


def main(arguments=None):
    """Measure the runs that the command line `arguments` (default: sys.argv) name."""
    parser = make_parser('study.relay', __doc__)
    parser.add_argument('out_dir', nargs='+', type=Path)
    hardware, found = choose_hardware('cpu'), study.read_json('relay')
    for folder in parser.parse_args(arguments).out_dir:
        row = runs.read_run(folder)
        found[f'{row["name"]} {row["seed"]}'] = measure_run(folder, hardware)
    study.write_json('relay', found)


# ----------------------------------------------------------------------------------------------
# Tables


def rows():
    """The rows of the runs with what `measure_run` found, and the column arm: 'RoPE, 2 layers'."""
    found = study.read_json('relay')
    return [row | found[f'{row["name"]} {row["seed"]}'] | dict(
        arm=f'{claims.ATTENTIONS[row["attention"]]}, layers: {row["n_layer"]}')
        for row in study.read('relay')]


def turns_read(row):
    """The measure: how many turns in a row, from the first on, are read at 8L."""
    return int(np.cumprod(np.array(row['far']) >= RIGHT).sum())


def relay():
    """Each size: when it is solved, and how far it reads."""
    beyond = {f'beyond L at {multiple}L (%)': listed(claims.beyond(multiple), '.0f')
              for multiple in claims.MULTIPLES}
    return table_of_arms(rows(), ['arm'], {
        'solved at': listed(updates), 'loss (nats)': listed(best_loss, '.2g')} | beyond | {
        f'turns of 50 with {RIGHT} % right': listed(turns_read)})


def relay_looks():
    """Of each turn the distance that a layer's head gives most of its attention to."""
    lines = []
    for row in sorted(rows(), key=lambda row: (row['arm'], row['seed'])):
        if row['arm'] in (ONE, TWO):
            for layer, heads in enumerate(row['looks'], start=1):
                most = np.array(heads).max(axis=0)  # (turns, distances)
                cells = [f'{turn.argmax()}: {turn.max()} %' for turn in most]
                lines.append([row['arm'], row['seed'], layer, *cells])
    turns = [f'turn {i}' for i in range(1, len(lines[0]) - 2)]
    return markdown(['arm', 'seed', 'layer', *turns], lines)


def relay_cuts():
    """What is right (%) by turn with a distance cut out, a number for each seed."""
    group = groups_of(rows(), ['arm'])[TWO,]
    lines = []
    for name in CUTS:
        turns = zip(*(row['cuts'][name] for row in group))
        lines.append([name, *(', '.join(f'{right:.0f}' for right in turn) for turn in turns)])
    return markdown(['without', *(f'turn {i}' for i in range(1, len(lines[0])))], lines)


TABLES = {table.__name__: table for table in (relay, relay_looks, relay_cuts)}


if __name__ == '__main__':
    with one_line_errors():
        main()
