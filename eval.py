"""
Measure a run: how well it does, at which lengths, where it fails, what its frequencies became.

    python eval.py out/dyck3_spectral        # tables; eval.json and eval.png in the run's folder
"""

import argparse
import importlib.util
import io
import json
import math
import signal
from pathlib import Path

if __name__ == '__main__':  # Ctrl-C while torch is loaded needs no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import numpy as np
import torch
import torch.nn.functional as F

from checkpoint import build_model, load_checkpoint, read_log, write_files
from configurator import (Place, UserError, choose_dtype, find_place, machine, one_line_errors,
                          to_device)
from model import Spectral
from tasks import find_task, make_rng

if importlib.util.find_spec('lab'):  # more attentions, grids, tasks and ways to start
    import lab  # noqa: F401

LOCKED = 1e-3  # radians per token from a harmonic; after 448 tokens the angle is off by pi/7


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


def spectral_state(model):
    """
    What attentions learn beside matrices, such as Omega, A and Phi: {name: a nested list, first
    by layer} and {name_grad_norm: norm over all layers}. Omega is (n_layer, heads, P).
    """
    parameters = {}
    for parameter, name in model.positional_parameters().items():
        parameters.setdefault(name, []).append(parameter)
    state = {}
    for name, layers in parameters.items():
        gradients = [p.grad for p in layers if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0
        state[name] = [rounded(p.tolist()) for p in layers]
        state[f'{name}_grad_norm'] = norm
    return state


def rounded(values):
    """A number, or nested lists of numbers, to 7 digits: float32 has no more."""
    if isinstance(values, list):
        return [rounded(value) for value in values]
    return float(f'{values:.7g}')


def flops_per_token(model, T):
    """
    Floating-point operations per token, forward and backward: 6 N + 12 n_layer C T. N counts the
    parameters without the embedding table. As usual (arXiv 2204.02311, appendix B), each query
    counts all T keys; the causal mask needs half of them. TAPA's second product is not counted.
    """
    config = model.config
    modules = [model.blocks, model.norm, model.lm_head]
    N = sum(p.numel() for module in modules for p in module.parameters())
    C = config.n_head * config.head_size
    return 6 * N + 12 * config.n_layer * C * T


def measure(model, task, length, n, device, split='test', batch_size=None, dtype='auto'):
    """
    The model on n fixed sequences of `length` tokens, as a dict: loss (nats per target), accuracy,
    headline (the accuracy that the task reports), headline_interval (half of its 95 % interval),
    exact (share of sequences without a mistake), and the task's breakdown, {group: {label: cell}}.
    Raises UserError for a length that the task cannot have.
    """
    x, y = task.sample(make_rng(split, str(task), length), n, length, split)
    tokens = min(2**15, 2**27 // len(task.symbols))  # at once; logits take most of the memory
    batch_size = batch_size or max(1, tokens // length)
    with Place(device, choose_dtype(dtype, device)).autocast():
        loss, accuracy, right = evaluate(model, *to_device([x, y], device), batch_size)
    right, scored = right.cpu().numpy(), y != -1

    breakdown, chosen = {}, scored
    for group, masks in task.breakdown(x, y).items():
        masks = {label: mask for label, mask in masks.items() if mask.any()}
        breakdown[group] = {label: cell(right, mask) for label, mask in masks.items()}
        if task.headline and group == task.headline[0]:
            chosen = masks.get(task.headline[1], scored)  # short strings may have none of these

    # sequences are independent, targets are not: the interval is that of a ratio of sums
    headline = right[chosen].mean()
    residuals = (right & chosen).sum(axis=1) - headline * chosen.sum(axis=1)  # (n,)
    interval = 3 / n  # the rule of three, for all right and for all wrong
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
    A dict for each learned pair: layer, head, pair, Omega (radians per token), theta (where Omega
    started), A, Phi. head is the number of the key/value head in the layer; in bifocal the first
    ones are RoPE's.

    With a period also the nearest harmonic j, the error |Omega| - 2 pi j / period, and whether the
    error is small (locked).
    """
    rows = []
    for layer, block in enumerate(model.blocks):
        attention = block.attention
        if not isinstance(attention, Spectral):
            continue
        nkv = model.config.n_kv_head
        heads = range(nkv - len(attention.Omega), nkv)
        for i, head in enumerate(heads):
            for pair, omega in enumerate(attention.Omega[i].tolist()):
                row = dict(layer=layer, head=head, pair=pair, Omega=omega)
                row.update(theta=attention.theta[pair].item(), A=attention.A[i, pair].item(),
                           Phi=attention.Phi[i, pair].item())
                if period:
                    row.update(nearest_harmonic(omega, period))
                rows.append(row)
    return rows


def nearest_harmonic(omega, period):
    """The harmonic of 2 pi / period that is nearest to a frequency, and how near."""
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
        labels = choose_labels(cells)
        print(f'\naccuracy by {group}')
        if len(labels) < len(cells):
            print(f'({len(cells) - len(labels)} of {len(cells)} rows are left out: '
                  f'these are the first, the worst at {longest} tokens, and the last)')
        print(f'{"":>18s}' + ''.join(f'{length:>9s}' for length in lengths))
        for label in labels:
            print(f'{label:>18s}', end='')
            for m in lengths.values():
                value = m['breakdown'].get(group, {}).get(label)
                print(f'{100 * value[0]:>7.2f} %' if value else f'{"-":>9s}', end='')
            print()
    if result['period'] and result['frequencies']:
        print_frequencies(result['frequencies'], result['period'], int(longest))


def choose_labels(cells):
    """The labels of {label: [accuracy, ...]}; of more than 12: 4 first, 4 worst and 4 last ones."""
    labels = list(cells)
    if len(labels) <= 12:
        return labels
    worst = sorted(labels[4:-4], key=lambda label: cells[label][0])[:4]
    chosen = {*labels[:4], *worst, *labels[-4:]}
    return [label for label in labels if label in chosen]


def print_frequencies(rows, period, length):
    """The twelve rows of `frequency_table` that are nearest to a harmonic."""
    print(f'\nfrequencies nearest to a harmonic 2 pi j / {period}, '
          f'and the angle they are off by after {length} tokens')
    print(f'{"layer head pair":>18s} {"Omega":>9s} {"j":>3s} {"error":>10s} {"radians":>9s}')
    near = [row for row in rows if row['harmonic']]
    for row in sorted(near, key=lambda row: abs(row['error']))[:12]:
        print(f'{row["layer"]:>6d}{row["head"]:>6}{row["pair"]:>6d} {row["Omega"]:>9.5f} '
              f'{row["harmonic"]:>3d} {row["error"]:>10.1e} {row["error"] * length:>9.3f}'
              f'{"  locked" if row["locked"] else ""}')
    locked = sum(row['locked'] for row in rows)
    print(f'{locked} of {len(rows)} pairs locked (within {LOCKED:g} of a harmonic)')


def draw_figure(log, result):
    """
    The bytes of a PNG: frequencies and loss while training, by the lines of a log; accuracy by
    length, and by the group with the most labels. None without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print('no figure: it needs matplotlib (pip install matplotlib)')
        return None
    log = [line for line in log if 'val_loss' in line]
    figure = Figure(figsize=(9, 6.6), layout='constrained')
    figure.suptitle(plain(f'{result["task"]}, {result["attention"]}'))
    frequencies, loss, by_length, by_group = figure.subplots(2, 2).flat
    draw_frequencies(frequencies, log, result['frequencies'], result['period'])
    draw_loss(loss, log)

    counted = 'accuracy'
    if result['headline'] and 'non-trivial' in result['headline']:
        counted = 'accuracy on closers after a closer'
    lengths = result['lengths']
    values = {length: m['headline'] for length, m in lengths.items()}
    draw_accuracy(by_length, values, result['chance'])
    by_length.set(title=f'{counted} (%)', xlabel=f'tokens (trained at {result["block_size"]})')

    longest = max(lengths, key=int)
    breakdown = lengths[longest]['breakdown']
    group = max(breakdown, key=lambda group: len(breakdown[group]), default='')
    values = {plain(label): value[0] for label, value in breakdown.get(group, {}).items()}
    draw_accuracy(by_group, values, result['chance'])
    by_group.set(title=f'accuracy at {longest} tokens (%)', xlabel=plain(group))
    by_group.set_visible(bool(values))
    png = io.BytesIO()
    figure.savefig(png, dpi=130)
    return png.getvalue()


def plain(text):
    """Text in which matplotlib finds no formula: a path may have a $."""
    return text.replace('$', r'\$')


def draw_frequencies(axes, log, rows, period):
    """A line for each pair: in the colour of its harmonic if it ends locked, else grey."""
    if not rows or not log:
        axes.set_title('no learned frequencies')
        return
    steps = [line['iter'] for line in log]
    paths = np.abs([line['Omega'] for line in log]).reshape(len(log), -1).T  # (pairs, lines)
    locked = [row.get('locked', False) for row in rows]
    for i in sorted(range(len(rows)), key=lambda i: locked[i]):  # the locked ones on top
        color, width = '#AAAAAA', 0.8
        if locked[i]:
            color, width = f'C{rows[i]["harmonic"]}', 2.5
        axes.plot(steps, paths[i], color=color, linewidth=width)
    top = max(1.1, np.nanmax(paths[:, -1]))
    axes.set(title='learned frequencies', xlabel='iteration', xmargin=0,
             ylabel='|Omega| (radians per token)', ylim=(0, 1.05 * top))
    if period:
        axes.set_title('learned frequencies (in colour: locked)')
        harmonics = range(1, int(top * period / (2 * math.pi)) + 1)
        for j in harmonics[::1 + len(harmonics) // 10]:  # more labels would overlap
            height = 2 * math.pi * j / period
            axes.axhline(height, color='black', linestyle='--', linewidth=0.8)
            axes.text(steps[-1], height, f' $2\\pi\\cdot{j}/{period}$', va='center', color=f'C{j}')


def draw_loss(axes, log):
    """The validation loss while training. A logarithm has no 0, so 1e-6 stands for less."""
    axes.set(title='validation loss (nats)', xlabel='iteration')
    if log:
        losses = np.maximum([line['val_loss'] for line in log], 1e-6)
        axes.semilogy([line['iter'] for line in log], losses, color='black', subs=[2, 5])
        few_decades = np.nanmax(losses) < 1000 * np.nanmin(losses)
        axes.yaxis.set_major_formatter('{x:g}')
        axes.yaxis.set_minor_formatter('{x:g}' if few_decades else '')


def draw_accuracy(axes, values, chance):
    """Accuracies {label: share}, in this order, and a guess's."""
    size = 6 if len(values) < 12 else 3
    axes.plot(list(values), [100 * value for value in values.values()], 'o-', markersize=size)
    axes.axhline(100 * chance, color='grey', linestyle=':')
    axes.text(1, 100 * chance, ' chance', va='center', transform=axes.get_yaxis_transform())
    axes.set(ylim=(-3, 103), xticks=range(0, len(values), 1 + len(values) // 8))


def make_parser(description):
    """A parser with the options that eval.py and sample.py share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--checkpoint', default='best.pt', help='file in out_dir (default: %(default)s)')
    add('--task', help='if the run was trained on a text with a path: the task again')
    add('--device', default='auto', help='auto, cpu, cuda, mps')
    add('--dtype', default='auto', choices=['auto', 'float32', 'bfloat16', 'float16'],
        help='auto: float32, and on a GPU what it is fast at')
    return parser


def count(text):
    """The whole number that an option's text writes."""
    if not text.isdecimal() or not 1 <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f'{text}: must be a whole number from 1 to 1000000')
    return int(text)


def measure_run(folder, options, place):
    """Measure the run in a folder at each length, print tables, write eval.json and eval.png."""
    model, task, checkpoint = load_run(folder, options.checkpoint, place.device, options.task)
    log = read_log(folder)
    T = checkpoint['options']['block_size']
    name = 'eval'
    if options.checkpoint != 'best.pt':
        name = f'eval_{Path(options.checkpoint).stem}'
    lengths = {}
    result = dict(
        task=str(task), attention=model.config.attention, checkpoint=options.checkpoint,
        split='test', n=options.n, iter=checkpoint['iter'], block_size=T, chance=task.chance,
        headline=task.headline, period=task.period, dtype=place.dtype, **machine(place.device),
        lengths=lengths, frequencies=frequency_table(model, task.period))
    for multiple in sorted(set(options.multiples)):
        length = multiple * T
        try:
            measured = measure(model, task, length, options.n, place.device, dtype=place.dtype)
        except UserError as error:  # such as a text that is too short
            print(f'{multiple}x left out: {error}')
            continue
        print_row(f'{multiple}x', length, measured, first=not lengths)
        lengths[str(length)] = measured
        # now, for a longer one may need more memory than there is
        write_files(folder, {f'{name}.json': json.dumps(result).encode() + b'\n'})
    if not lengths:
        raise UserError(f'{folder}: no length could be measured')
    print_details(result)
    print(f'\nwrote {folder}/{name}.json')
    png = draw_figure(log, result)
    if png:
        write_files(folder, {f'{name}.png': png})
        print(f'wrote {folder}/{name}.png')


def main(arguments=None):
    """Measure as the command line `arguments` (default: sys.argv) say."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add('out_dir', nargs='+', type=Path, help='folder of a run of train.py')
    add('--n', type=count, default=512, help='test sequences per length (default: %(default)s)')
    add('--multiples', type=count, nargs='+', default=[1, 2, 4, 8],
        help='lengths, in training lengths (default: 1 2 4 8)')
    options = parser.parse_args(arguments)
    place = find_place(options.device, options.dtype)
    for folder in options.out_dir:
        measure_run(folder, options, place)


if __name__ == '__main__':
    with one_line_errors():
        main()
