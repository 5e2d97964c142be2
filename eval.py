"""
Measure a run: how well it does, at which lengths, where it fails, what its frequencies became.

    python eval.py out/dyck3_spectral        # tables, and eval.json in the run's folder

With the lab there and matplotlib, it also draws eval.png.
"""

import argparse
import importlib.util
import itertools
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from checkpoint import build_model, find_task, load_checkpoint, read_log, write_files
from configurator import (Process, choose_dtype, machine, one_line_errors, this_process,
                          to_device)
from model import Spectral, UserError
from tasks import make_rng, without_path

lab = None
if importlib.util.find_spec('lab'):
    # it adds attentions, frequencies and tasks
    import lab

# radians per token from a harmonic; after 448 tokens the angle is off by pi/7
LOCKED = 1e-3


def load_run(folder, name, device, spec=None):
    """The model in a run's folder, on `device`; its task (see `find_task`); the checkpoint."""
    checkpoint = load_checkpoint(Path(folder) / name)
    task = find_task(checkpoint, spec)
    return build_model(checkpoint).to(device).eval(), task, checkpoint


@torch.no_grad()
def evaluate(model, x, y, batch_size):
    """
    The loss in nats and the accuracy, means over the targets of x, y (n, T) that are not -1;
    and which targets are right (n, T).
    """
    loss, right = 0.0, []
    targets = (y != -1).sum().item()
    for xb, yb in zip(x.split(batch_size), y.split(batch_size)):
        logits = model(xb)[0].float()  # (B, T, V)
        losses = F.cross_entropy(
            logits.flatten(0, 1), yb.flatten(), ignore_index=-1, reduction='sum')
        loss += losses.item()
        right.append((logits.argmax(dim=-1) == yb) & (yb != -1))
    right = torch.cat(right)
    return loss / targets, right.sum().item() / targets, right


def learned_state(model):
    """
    What attentions learn beside matrices, such as Omega, A and Phi: {name: values of each layer},
    [] for a layer that has none, and {name_grad_norm: norm over all layers}.
    """
    layers = [dict(block.attention.named_parameters(recurse=False)) for block in model.blocks]
    state = {}
    for name in dict.fromkeys(itertools.chain(*layers)):
        learned = [parameters.get(name, torch.zeros(0)) for parameters in layers]
        gradients = [p.grad for p in learned if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0
        # nine decimals: float32 has no more
        values = [p.detach().cpu().double().round(decimals=9).tolist() for p in learned]
        state |= {name: values, f'{name}_grad_norm': norm}
    return state


def measure(model, task, length, n, device, split='test', batch_size=None, dtype='auto'):
    """
    The model on n fixed sequences of `length` tokens, as a dict: loss (nats per target), accuracy,
    headline (the accuracy that the task reports), headline_interval (half of its 95 % interval),
    exact (share of sequences without a mistake), and the task's breakdown, {group: {label: cell}}.
    Raises UserError for a length that the task cannot have.
    """
    x, y = task.sample(make_rng(split, without_path(task), length), n, length, split)
    # tokens at once: logits take most of the memory
    tokens = min(2**15, 2**27 // len(task.symbols))
    batch_size = batch_size or max(1, tokens // length)
    with Process(device, choose_dtype(dtype, device)).autocast():
        loss, accuracy, right = evaluate(model, *to_device([x, y], device), batch_size)
    right, scored = right.cpu().numpy(), y != -1

    breakdown, chosen = {}, scored
    for group, masks in task.breakdown(x, y).items():
        masks = {label: mask for label, mask in masks.items() if mask.any()}
        breakdown[group] = {label: cell(right, mask) for label, mask in masks.items()}
        if task.headline and group == task.headline[0]:
            # short strings may have none of these
            chosen = masks.get(task.headline[1], scored)

    # sequences are independent, targets are not: the interval is that of a ratio of sums
    headline = right[chosen].mean()
    residuals = (right & chosen).sum(axis=1) - headline * chosen.sum(axis=1)  # (n,)
    # the rule of three, for all right and for all wrong
    interval = 3 / n
    if 0 < headline < 1:
        interval = 1.96 * math.sqrt((residuals**2).sum()) / chosen.sum()
    return dict(
        loss=loss, accuracy=accuracy, headline=float(headline), headline_interval=float(interval),
        exact=float((right == scored).all(axis=1).mean()), targets=int(scored.sum()),
        sequences=n, breakdown=breakdown)


def cell(right, mask):
    """
    [accuracy, number, exact] of the targets in mask (n, T). exact: of the sequences that have such
    targets, the share in which they are all right.
    """
    exact = (right | ~mask).all(axis=1)[mask.any(axis=1)].mean()
    return [float(right[mask].mean()), int(mask.sum()), float(exact)]


def frequency_table(model, period):
    """
    A dict for each learned pair: layer, head (of the key/value heads), pair, Omega (radians per
    token), theta (where Omega started), A, Phi. With a period also what `nearest_harmonic` says.
    """
    rows = []
    for layer, block in enumerate(model.blocks):
        attention = block.attention
        if not isinstance(attention, Spectral):
            continue
        heads, P = attention.Omega.shape
        first = model.config.n_kv_head - heads  # bifocal's spectral heads are the last ones
        for i, pair in itertools.product(range(heads), range(P)):
            row = dict(layer=layer, head=first + i, pair=pair, theta=attention.theta[pair].item())
            for name in ('Omega', 'A', 'Phi'):
                row[name] = getattr(attention, name)[i, pair].item()
            if period:
                row |= nearest_harmonic(row['Omega'], period)
            rows.append(row)
    return rows


def nearest_harmonic(omega, period):
    """
    The harmonic j of 2 pi / period that is nearest to a frequency, the error
    |omega| - 2 pi j / period, and whether the error is small: locked.
    """
    j = round(abs(omega) * period / (2 * math.pi))
    error = abs(omega) - 2 * math.pi * j / period
    if j % period == 0:  # 2 pi per token rotates nothing
        j = 0
    return dict(harmonic=j, error=error, locked=j > 0 and abs(error) < LOCKED)


def print_row(label, length, m, first=False):
    """A row of the table of lengths; the first one brings the header."""
    if first:
        print('headline: accuracy on the targets that matter ± its 95 % interval; '
              'exact: strings without a mistake\n')
        print(f'{"":>18s}  tokens       loss  accuracy           headline    exact')
    print(f'{label:>18s} {length:>7d} {m["loss"]:>10.5f} {100 * m["accuracy"]:>7.2f} % '
          f'{100 * m["headline"]:>8.2f} ± {100 * m["headline_interval"]:.2f} % '
          f'{100 * m["exact"]:>6.1f} %', flush=True)


def print_details(result):
    """The breakdowns, a column for each length, and the frequencies near a harmonic."""
    lengths = result['lengths']
    longest = max(lengths, key=int)
    for group, cells in lengths[longest]['breakdown'].items():
        step = 1 + len(cells) // 13
        every = f', rows 1, {1 + step}, {1 + 2 * step}, ...' if step > 1 else ''
        print(f'\naccuracy by {group}{every}')
        print(f'{"":>18s}' + ''.join(f'{length:>9s}' for length in lengths))
        for label in list(cells)[::step]:
            row = f'{label:>18s}'
            for m in lengths.values():
                value = m['breakdown'].get(group, {}).get(label)
                row += f'{100 * value[0]:>7.2f} %' if value else f'{"-":>9s}'
            print(row)
    if result['period'] and result['frequencies']:
        print_frequencies(result['frequencies'], result['period'], int(longest))


def print_frequencies(rows, period, length):
    """The twelve rows of `frequency_table` that are nearest to a harmonic."""
    print(f"\nfrequencies nearest to a harmonic 2 pi j / {period} of the task's period, "
          f'and the angle they are off by after {length} tokens')
    print(f'{"layer head pair":>18s} {"Omega":>9s} {"j":>3s} {"error":>10s} {"radians":>9s}')
    near = [row for row in rows if row['harmonic']]
    for row in sorted(near, key=lambda row: abs(row['error']))[:12]:
        locked = '  locked' if row['locked'] else ''
        print(f'{row["layer"]:>6d}{row["head"]:>6d}{row["pair"]:>6d} {row["Omega"]:>9.5f} '
              f'{row["harmonic"]:>3d} {row["error"]:>10.1e} {row["error"] * length:>9.3f}{locked}')
    locked = sum(row['locked'] for row in rows)
    print(f'{locked} of {len(rows)} pairs locked (within {LOCKED:g} of a harmonic)')


def make_parser(description):
    """A parser with the options that eval.py and sample.py share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--checkpoint', default='best.pt', help='file in out_dir (default: %(default)s)')
    add('--task', help='if the run was trained on a text with a path: the task again')
    add('--device', default='auto', help='auto, cpu, cuda, mps')
    add('--dtype', default='auto', choices=['auto', 'float32', 'bfloat16'],
        help='auto: float32, and on a GPU what it is fast at')
    return parser


def count(text, least=1):
    """The whole number that an option's text writes."""
    if not text.isdecimal() or not least <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f'{text}: must be a whole number from {least} to 1000000')
    return int(text)


def measure_run(folder, options, process):
    """Measure the run in a folder at each length, print tables, write eval.json and eval.png."""
    model, task, checkpoint = load_run(folder, options.checkpoint, process.device, options.task)
    log = read_log(folder)
    T = checkpoint['options']['block_size']
    name = 'eval'
    if options.checkpoint != 'best.pt':
        name = f'eval_{Path(options.checkpoint).stem}'
    lengths = {}
    result = dict(
        task=str(task), attention=model.config.attention, checkpoint=options.checkpoint,
        split='test', n=options.n, iter=checkpoint['iter'], block_size=T, chance=task.chance,
        headline=task.headline, period=task.period, dtype=process.dtype,
        **machine(process.device), lengths=lengths,
        frequencies=frequency_table(model, task.period))
    for multiple in sorted(set(options.multiples)):
        length = multiple * T
        try:
            measured = measure(model, task, length, options.n, process.device, dtype=process.dtype)
        except UserError as error:
            # such as a text that is too short
            print(f'{multiple}x left out: {error}')
            continue
        print_row(f'{multiple}x', length, measured, first=not lengths)
        lengths[str(length)] = measured
        # now, for a longer one may need more memory than there is
        write_files(folder, {f'{name}.json': json.dumps(result).encode() + b'\n'})
    if not lengths:
        raise UserError(f'{folder}: no length could be measured')
    print_details(result)
    print(f'\nwrote {folder / name}.json')
    if lab:
        lab.write_figure(folder, f'{name}.png', log, result)


def main(arguments=None):
    """Measure as the command line `arguments` (default: sys.argv) say."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add('out_dir', nargs='+', type=Path, help='folder of a run of train.py')
    add('--n', type=count, default=512, help='test sequences per length (default: %(default)s)')
    add('--multiples', type=count, nargs='+', default=[1, 2, 4, 8],
        help='lengths, in training lengths (default: 1 2 4 8)')
    options = parser.parse_args(arguments)
    process = this_process(options.device, options.dtype)
    for folder in options.out_dir:
        measure_run(folder, options, process)


if __name__ == '__main__':
    with one_line_errors():
        main()
