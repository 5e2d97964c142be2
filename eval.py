"""
Measure a run: how well, at which lengths, where it fails, and what its frequencies became. And draw it.

    python eval.py out/dyck3_spectral        # tables; eval.json and eval.png in the run's folder
"""

import argparse
import contextlib
import json
import math
import pickle
import platform
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from configurator import choose_device, convert, one_line_errors
from model import GPT, GPTConfig
from tasks import find_task, stream

LOCKED = 1e-3  # radians per token from a harmonic: the phase error stays below pi/7 for 448 tokens


def load_checkpoint(path):
    """The dict that train.py saved at `path`. A stranger's file runs no code; its tensors are those of its model."""
    try:
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
        weights, options, kinds = checkpoint['model'], checkpoint['options'], GPTConfig.__annotations__
        args = {name: convert(name, value, kinds[name], path) for name, value in checkpoint['model_args'].items()}
        config = GPTConfig(**args)
        plain = isinstance(weights, dict) and all(type(value) in (bool, int, float, str) for value in options.values())
        counts = [checkpoint['iter'], options['block_size'] - 1, len(weights) - config.n_layer]
        if not plain or type(checkpoint['task']) is not str or {*map(type, counts)} != {int} or min(counts) < 0:
            raise ValueError('its parts do not fit together')
        with torch.device('meta'):  # shapes without memory
            weights = copies(weights, GPT(config).state_dict())
        return dict(checkpoint, model=weights, model_args=args, data=checkpoint['data'])
    except FileNotFoundError:
        raise FileNotFoundError(f'{path} does not exist: is its run still to be trained?') from None
    except pickle.UnpicklingError:
        raise ValueError(f'{path} is not a checkpoint of train.py; it may be malicious, and was not loaded') from None
    except Exception as error:
        reason = f'{type(error).__name__}, ' + str(error).partition('\n')[0]
        raise ValueError(f'{path} is not a checkpoint of this version of train.py ({reason})') from None


def copies(tensors, expected):
    """Copies of {name: tensor}, of the shapes and dtypes that are expected; ValueError or KeyError for others."""
    for name in {**expected, **tensors}:
        tensor, other = tensors[name], expected[name]
        alike = (tensor.layout, tensor.dtype, tensor.shape) == (other.layout, other.dtype, other.shape)
        if not alike or tensor.is_meta or not tensor.is_contiguous():  # may have less memory than its shape says
            raise ValueError(f'{name} has another shape, dtype or layout')
    return {name: tensor.clone() for name, tensor in tensors.items()}


def build(checkpoint):
    """The model of a checkpoint that `load_checkpoint` has read."""
    model = GPT(GPTConfig(**checkpoint['model_args']))
    model.load_state_dict(checkpoint['model'])
    return model


def load_run(folder, name, device, spec=None):
    """The model in a run's folder, ready on `device`, its task (see `find_task`), and the checkpoint."""
    checkpoint = load_checkpoint(Path(folder) / name)
    return build(checkpoint).to(device).eval(), find_task(checkpoint, spec), checkpoint


def read_log(folder):
    """The lines of a run's log.jsonl, as dicts. A killed run may leave half a line, which does not count."""
    path = Path(folder) / 'log.jsonl'
    try:
        lines = [json.loads(line) for line in path.read_text().split('\n')[:-1]]
        sum(line['iter'] + line.get('val_loss', 0) for line in lines)  # a TypeError if one of them is no number
        return lines
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(f'{path} is not a log of train.py') from None


def machine(device):
    """What runs, when and on what, for the records. The commit is None outside a repository."""
    git, here = 'git describe --always --dirty --abbrev=12 --exclude=*'.split(), Path(__file__).resolve().parent
    commit, processor = None, platform.processor()
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        commit = subprocess.run(git, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    with contextlib.suppress(OSError, AttributeError):
        processor = re.search(r'model name\s*: (.*)', Path('/proc/cpuinfo').read_text()).group(1)
    processor = torch.cuda.get_device_name(device) if device.startswith('cuda') else processor
    return dict(date=time.strftime('%Y-%m-%d %H:%M:%S %z'), commit=commit, processor=processor, numpy=np.__version__,
                threads=torch.get_num_threads(), torch=str(torch.__version__), python=platform.python_version())


@torch.no_grad()
def evaluate(model, x, y, batch_size):
    """Loss in nats and accuracy, means over the targets of x, y (n, T) that are not -1; which are right (n, T)."""
    loss, right, n = 0.0, [], (y != -1).sum().item()
    for xb, yb in zip(x.split(batch_size), y.split(batch_size)):
        logits = model(xb)[0].float()
        loss += F.cross_entropy(logits.flatten(0, 1), yb.flatten(), ignore_index=-1, reduction='sum').item()
        right.append((logits.argmax(dim=-1) == yb) & (yb != -1))
    right = torch.cat(right)
    return loss / n, right.sum().item() / n, right


def spectral_state(model):
    """Omega, A and Phi of every layer, nested lists (n_layer, heads, P), and the norms of their gradients; or {}."""
    state = {}
    for name in ('Omega', 'A', 'Phi'):
        parameters = [p for long_name, p in model.named_parameters() if long_name.endswith(f'.way.{name}')]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if parameters:
            state[name] = [[[float(f'{v:.7g}') for v in head] for head in p.tolist()] for p in parameters]
            state[f'{name}_grad_norm'] = torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0
    return state


def measure(model, task, length, n, device, split='test', batch_size=None):
    """
    The model on n fixed sequences of `length`: loss (nats a target), accuracy, the accuracy that the task calls its
    headline and the half-width of its 95 % interval, the share of sequences without a mistake (exact), and the task's
    breakdown, {group: {label: [accuracy, targets, share of the sequences with these all right]}}.
    """
    x, y = task.sample(stream(split, str(task), length), n, length, split)
    tensors = [torch.from_numpy(array).to(device) for array in (x, y)]
    loss, accuracy, right = evaluate(model, *tensors, batch_size or max(1, 2**15 // length))
    scored, right = y != -1, right.cpu().numpy()
    groups = {group: {label: mask for label, mask in masks.items() if mask.any()}
              for group, masks in task.breakdown(x, y).items()}
    group, label = task.headline or (None, None)
    chosen = groups.get(group, {}).get(label, scored)  # brackets of depth 1 have no non-trivial closers
    headline = right[chosen].mean()
    residuals = (right & chosen).sum(axis=1) - headline * chosen.sum(axis=1)  # of sequences, which are independent
    interval = 1.96 * math.sqrt((residuals**2).sum()) / chosen.sum() if 0 < headline < 1 else 3 / n  # rule of three
    breakdown = {group: {label: cell(right, mask) for label, mask in masks.items()} for group, masks in groups.items()}
    return dict(loss=loss, accuracy=accuracy, headline=float(headline), headline_interval=float(interval),
                exact=float((right == scored).all(axis=1).mean()), targets=int(scored.sum()), sequences=n,
                breakdown=breakdown)


def cell(right, mask):
    """[accuracy, targets, share of the rows with any target that are all right] of the targets in mask (n, T)."""
    return [float(right[mask].mean()), int(mask.sum()), float((right | ~mask).all(axis=1)[mask.any(axis=1)].mean())]


def frequency_table(model, period):
    """
    Every learned pair: layer, head, pair, Omega (radians per token), the theta that it set off from, A, Phi. With a
    period P also the nearest harmonic j, the error |Omega| - 2 pi j / P, and whether that is small (locked).
    """
    rows = []
    for layer, way in enumerate(block.attention.way for block in model.blocks):
        for head, omegas in enumerate(way.Omega.tolist() if hasattr(way, 'Omega') else ()):
            for pair, omega in enumerate(omegas):
                rows.append(dict(layer=layer, head=head, pair=pair, Omega=omega, theta=way.theta[pair].item(),
                                 A=way.A[head, pair].item(), Phi=way.Phi[head, pair].item()))
                if period:
                    j = round(abs(omega) * period / (2 * math.pi))
                    error = abs(omega) - 2 * math.pi * j / period
                    j = j if j % period else 0  # a whole turn a token is no turn
                    rows[-1].update(harmonic=j, error=error, locked=j > 0 and abs(error) < LOCKED)
    return rows


def print_row(label, length, m, first=False):
    """A row of the table of lengths; the `first` brings the header."""
    if first:
        print('headline: accuracy on the targets that matter ± its 95 % interval; exact: strings without a mistake\n')
        print(f'{"":>18s} {"tokens":>7s} {"loss":>10s} {"accuracy":>9s} {"headline":>18s} {"exact":>8s}')
    print(f'{label:>18s} {length:>7d} {m["loss"]:>10.5f} {100 * m["accuracy"]:>7.2f} % {100 * m["headline"]:>8.2f} ± '
          f'{100 * m["headline_interval"]:.2f} % {100 * m["exact"]:>6.1f} %', flush=True)


def print_details(result):
    """The breakdowns (of many rows the first twelve), a column a length, and the frequencies near a harmonic."""
    lengths, rows, P = result['lengths'], result['frequencies'], result['period']
    longest = max(lengths, key=int)
    for group, labels in lengths[longest]['breakdown'].items():
        print(f'\naccuracy by {group}\n{"":>18s}' + ''.join(f'{length:>9s}' for length in lengths))
        for label in list(labels)[:12]:
            cells = (m['breakdown'].get(group, {}).get(label) for m in lengths.values())
            print(f'{label:>18s}' + ''.join(f'{100 * cell[0]:>7.2f} %' if cell else f'{"-":>9s}' for cell in cells))
    if rows and P:
        print(f'\nfrequencies nearest to a harmonic 2 pi j / {P}, and the angle they are off by after {longest} tokens')
        print(f'{"layer head pair":>18s} {"Omega":>9s} {"j":>3s} {"error":>10s} {"radians":>9s}')
        for row in sorted((row for row in rows if row['harmonic']), key=lambda row: abs(row['error']))[:12]:
            print(f'{row["layer"]:>6d}{row["head"]:>6d}{row["pair"]:>6d} {row["Omega"]:>9.5f} {row["harmonic"]:>3d} '
                  f'{row["error"]:>10.1e} {row["error"] * int(longest):>9.3f}' + '  locked' * row['locked'])
        print(f'{sum(row["locked"] for row in rows)} of {len(rows)} pairs locked (within {LOCKED:g} of a harmonic)')


def draw(file, lines, result):
    """A figure: frequencies and loss while training (lines of a log), accuracy by length, and by the finest group."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print('no figure: it needs matplotlib (pip install matplotlib)')
    lines = [line for line in lines if 'val_loss' in line]
    steps, losses = zip(*((line['iter'], max(line['val_loss'], 1e-6)) for line in lines))
    lengths, P, rows = result['lengths'], result['period'], result['frequencies']
    longest = max(lengths, key=int)
    group, cells = max(lengths[longest]['breakdown'].items(), key=lambda item: len(item[1]), default=(None, {}))
    figure = Figure(figsize=(9, 6.4), layout='constrained')
    panels = figure.subplots(2, 2).flat
    for row in sorted(rows, key=lambda row: row.get('locked', False)):
        path = [abs(line['Omega'][row['layer']][row['head']][row['pair']]) for line in lines]
        color, width = (f'C{row["harmonic"]}', 2.5) if row.get('locked') else ('#AAAAAA', 0.8)
        panels[0].plot(steps, path, color=color, linewidth=width)
    top = max([1.1, *(abs(row['Omega']) for row in rows)])
    for j in range(1, int(top * P / (2 * math.pi)) + 1) if P and rows else ():
        panels[0].axhline(2 * math.pi * j / P, color='black', linestyle='--', linewidth=0.8)
        panels[0].text(steps[-1], 2 * math.pi * j / P, f' $2\\pi\\cdot{j}/{P}$', va='center')
    panels[0].set(title=f'learned frequencies{"; in colour: locked" * bool(P)}' if rows else 'no learned frequencies',
                  ylabel='|Omega| (radians per token)', ylim=(0, 1.05 * top), xlabel='iteration', xmargin=0)
    panels[1].semilogy(steps, losses, color='black', subs=[2, 5])
    panels[1].yaxis.set(major_formatter='{x:g}', minor_formatter='{x:g}' * (max(losses) < 1000 * min(losses)))
    panels[1].set(title=f'{result["task"]}, {result["attention"]}', xlabel='iteration', ylabel='validation loss (nats)')
    panels[2].plot(list(lengths), [100 * m['headline'] for m in lengths.values()], 'o-')
    of = ' of closers after a closer' * ('non-trivial' in (result['headline'] or ()))
    panels[2].set(title=f'accuracy{of} (%)', xlabel=f'tokens (trained at {result["block_size"]}); dotted: chance')
    panels[3].plot(list(cells), [100 * accuracy for accuracy, *_ in cells.values()], 'o-', markersize=3)
    panels[3].set(title=f'accuracy at {longest} tokens (%)', xlabel=f'{group}; dotted: chance', visible=bool(cells),
                  xticks=range(0, len(cells), max(1, len(cells) // 8)))
    for axes in panels[2:]:
        axes.set_ylim(-3, 103)
        axes.axhline(100 * result['chance'], color='grey', linestyle=':')
    figure.savefig(file, dpi=130)


def main(arguments=None):
    """Measure as the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out_dir', nargs='+', type=Path, help='folder of a run of train.py')
    parser.add_argument('--checkpoint', default='best.pt', help='file in out_dir to measure (default: %(default)s)')
    parser.add_argument('--n', type=int, default=512, help='test sequences of each length (default: %(default)s)')
    parser.add_argument('--multiples', type=int, nargs='+', default=[1, 2, 4, 8], help='lengths, in training lengths')
    parser.add_argument('--task', help='if the run was trained on a text with a path: the task again')
    parser.add_argument('--device', default='auto', help='auto, cpu, cuda, mps')
    options = parser.parse_args(arguments)
    if min(options.n, *options.multiples) < 1:
        parser.error('--n and --multiples must be at least 1')
    device = choose_device(options.device)
    for folder in options.out_dir:
        model, task, checkpoint = load_run(folder, options.checkpoint, device, options.task)
        lines, T = read_log(folder), checkpoint['options']['block_size']
        result = dict(task=str(task), attention=model.config.attention, checkpoint=options.checkpoint, split='test',
                      n=options.n, iter=checkpoint['iter'], block_size=T, chance=task.chance, headline=task.headline,
                      period=task.period, **machine(device), lengths={})
        for multiple in sorted({*options.multiples}):
            measured = result['lengths'][str(multiple * T)] = measure(model, task, multiple * T, options.n, device)
            print_row(f'{multiple}x', multiple * T, measured, first=len(result['lengths']) == 1)
        result['frequencies'] = frequency_table(model, task.period)
        name = 'eval' if options.checkpoint == 'best.pt' else f'eval_{Path(options.checkpoint).stem}'
        (folder / f'{name}.json').write_text(json.dumps(result) + '\n')
        print_details(result)
        print(f'\nwrote {folder}/{name}.json; drawing {name}.png')
        draw(folder / f'{name}.png', lines, result)


if __name__ == '__main__':
    with one_line_errors():
        main()
