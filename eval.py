"""
Measure a run on new strings: how well it does, and how far beyond the training length.

    python eval.py out/dyck3_spectral        # a table, and eval.json in the run's folder

With the lab there and matplotlib, it also draws eval.png.
"""

import argparse
import itertools
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F

from checkpoint import (build_model, find_task, load_checkpoint, read_log, warn_of_other_text,
                        write_files)
from configurator import one_line_errors
from device import machine, this_process, to_device
from model import UserError
from tasks import make_rng, without_path

lab = None
if Path(__file__).with_name('lab').joinpath('__init__.py').exists():
    import lab  # it adds attentions, frequencies and tasks, and draws


def load_run(folder, name, device, spec=None):
    """The model in a run's folder, on `device`; its task (see `find_task`); the checkpoint."""
    path = Path(folder, name)
    checkpoint = load_checkpoint(path)
    task = find_task(checkpoint, spec)
    return build_model(checkpoint, path).to(device).eval(), task, checkpoint


@torch.no_grad()
def evaluate(model, x, y, batch_size):
    """
    The loss in nats and the accuracy, means over the targets of x, y (n, T) that are not -1;
    and which targets are right (n, T).
    """
    targets = (y != -1).sum().item()
    if targets == 0:
        raise UserError('these strings have no target')
    training = model.training
    model.eval()  # for a hack with dropout
    loss, right = 0.0, []
    for xb, yb in zip(x.split(batch_size), y.split(batch_size)):
        logits = model(xb)[0].float()  # (B, T, V)
        losses = F.cross_entropy(
            logits.flatten(0, 1), yb.flatten(), ignore_index=-1, reduction='sum')
        loss += losses.item()
        right.append((logits.argmax(dim=-1) == yb) & (yb != -1))
    model.train(training)
    right = torch.cat(right)
    return loss / targets, right.sum().item() / targets, right


def learned_state(model):
    """
    What attentions learn beside matrices, such as Omega, A and Phi: {name: values of each layer},
    [] for a layer that has none.
    """
    layers = [dict(block.attention.named_parameters(recurse=False)) for block in model.blocks]
    state = {}
    for name in dict.fromkeys(itertools.chain(*layers)):
        learned = [parameters.get(name, torch.zeros(0)) for parameters in layers]
        # nine decimals are enough, and keep the log small
        state[name] = [p.detach().cpu().double().round(decimals=9).tolist() for p in learned]
    return state


def measure(model, task, length, n, process, split='test'):
    """
    The model on n fixed strings of `length` tokens: a dict, and the arrays it is made of, x, y
    and right (n, length). The dict has loss (nats per target), accuracy, headline (the accuracy
    that the task reports), headline_interval (half of its 95 % interval), exact (share of strings
    without a mistake). Raises UserError for a length that the task cannot have.
    """
    x, y = task.sample(make_rng(split, without_path(task), length), n, length, split)
    # tokens at once: the logits, or the scores of an attention that is not fused, fill the memory
    most = min(2**15, 2**27 // len(task.symbols), 2**24 // (model.config.n_head * length))
    with process.autocast():
        loss, accuracy, right = evaluate(
            model, *to_device([x, y], process.device), max(1, most // length))
    right = right.cpu().numpy()

    # strings are independent, targets are not. So with r = right - headline * counted of each
    # string, the interval is 1.96 sqrt(sum r^2) / sum counted
    counted = task.headline(x, y)  # (n, length)
    if not counted.any():  # short strings may have none of these
        counted = y != -1
    headline = right[counted].mean()
    residuals = (right & counted).sum(axis=1) - headline * counted.sum(axis=1)  # (n,)
    interval = 3 / n  # the rule of three, for all right and for all wrong
    if 0 < headline < 1:
        interval = 1.96 * math.sqrt((residuals**2).sum()) / counted.sum()
    row = dict(
        loss=loss, accuracy=accuracy, headline=float(headline), headline_interval=float(interval),
        exact=float((right == (y != -1)).all(axis=1).mean()), targets=int((y != -1).sum()),
        sequences=n)
    return row, (x, y, right)


def print_row(label, length, m, first=False):
    """A row of the table of lengths; the first one brings the header."""
    if first:
        print('headline: accuracy on the targets that matter ± its 95 % interval; '
              'exact: strings without a mistake\n')
        print(f'{"":>8s}  tokens       loss  accuracy           headline    exact')
    print(f'{label:>8s} {length:>7d} {m["loss"]:>10.5f} {100 * m["accuracy"]:>7.2f} % '
          f'{100 * m["headline"]:>8.2f} ± {100 * m["headline_interval"]:.2f} % '
          f'{100 * m["exact"]:>6.1f} %', flush=True)


def make_parser(description):
    """A parser with the options that eval.py and sample.py share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--checkpoint', default='best.pt', help='file in out_dir (default: %(default)s)')
    add('--task', help='the task again, if its text has moved')
    add('--device', default='auto', help='auto, cpu, cuda, mps')
    add('--dtype', default='auto', help='auto, float32, bfloat16')
    return parser


def count(text, least=1):
    """The whole number that an option's text writes."""
    if not text.isdecimal() or not least <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f'{text}: must be a whole number from {least} to 1000000')
    return int(text)


def measure_run(folder, options, process):
    """Measure the run in a folder at each length. Write eval.json, beside the checkpoint."""
    model, task, checkpoint = load_run(folder, options.checkpoint, process.device, options.task)
    path = folder / options.checkpoint
    warn_of_other_text(checkpoint, task)
    T = checkpoint['options']['block_size']
    name = 'eval'
    if path.name != 'best.pt':
        name = f'eval_{path.stem}'
    lengths = {}
    result = dict(
        task=str(task), attention=model.config.attention, checkpoint=path.name,
        iter=checkpoint['iter'], split='test', n=options.n, block_size=T, chance=task.chance,
        period=task.period, dtype=process.dtype, **machine(process.device), lengths=lengths)
    print(f'{path}, update {checkpoint["iter"]}')
    for multiple in sorted(set(options.multiples)):
        try:
            row, _ = measure(model, task, multiple * T, options.n, process)
        except UserError as error:  # such as a text that is too short
            print(f'{multiple}x left out: {error}')
            continue
        print_row(f'{multiple}x', multiple * T, row, first=not lengths)
        lengths[str(multiple * T)] = row
    if not lengths:
        raise UserError(f'{path}: no length could be measured')
    if task.equal:
        given = checkpoint['options']
        drawn = checkpoint['iter'] * given['gradient_accumulation_steps'] * given['batch_size']
        result['new'] = options.n * (1 - task.equal) ** drawn
        print(f'about {result["new"]:.0f} of {options.n} strings are new: '
              f'the others are among the {drawn:,} of the training')
    write_files(path.parent, {f'{name}.json': json.dumps(result).encode() + b'\n'})
    print(f'wrote {path.with_name(name)}.json')
    if lab:
        lab.write_figure(path.with_name(f'{name}.png'), read_log(path.parent), result)


def main(arguments=None):
    """Measure as the command line `arguments` (default: sys.argv) say."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add('out_dir', nargs='+', type=Path, help='folder of a run of train.py')
    add('--n', type=count, default=512, help='test strings per length (default: %(default)s)')
    add('--multiples', type=count, nargs='+', default=[1, 2, 4, 8],
        help='lengths, in training lengths (default: 1 2 4 8)')
    options = parser.parse_args(arguments)
    process = this_process(options.device, options.dtype)
    for folder in options.out_dir:
        try:
            measure_run(folder, options, process)
        except UserError as error:
            if len(options.out_dir) == 1:
                raise
            print(f'skipped: {error}')


if __name__ == '__main__':
    with one_line_errors():
        main()
