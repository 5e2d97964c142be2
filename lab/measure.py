"""
Measure a run as eval.py does, and all that lab/analysis.py can tell about it.

    python -m lab.measure out/dyck3_spectral     # tables, measure.json and measure.png
    python -m lab.measure out/text_rope --override frequencies=pi:factor=8    # with other options

For each length beyond the training length there is also the accuracy `beyond`: of the targets at
positions that no training string has. `headline_beyond` counts those of the headline alone.
"""

import json
import re
from pathlib import Path

import numpy as np

import eval as page
from checkpoint import machine, read_log, write_files
from configurator import choose_hardware, configure, one_line_errors
from lab import analysis
from lab.plot import write_figure
from lab.surgery import transplant
from model import Bifocal, GPTConfig, UserError

MULTIPLES = (1, 2, 4, 8)  # of the training length
MULTIPLES_OF_TEXT = (0.125, 0.25, 0.5, 1, 2, 4, 8)


def read_overrides(words):
    """{field of GPTConfig: value} of words key=value. Raises UserError for another key or type."""
    options, given = configure(vars(GPTConfig), [f'--{word}' for word in words])
    return {name: value for name, value in options.items() if name in given}


def file_name(options):
    """
    Where results go: measure.json. A checkpoint and options other than the usual have files of
    their own, such as measure_crystal.json and measure_frequencies=pi-factor=8.json.
    """
    parts = ['measure']
    if options.checkpoint != 'best.pt':
        parts.append(options.checkpoint.removesuffix('.pt'))
    parts += options.override
    # a file name may not have ':' and '/' on every system
    return re.sub(r'[^\w.=+-]', '-', '_'.join(parts)) + '.json'


def load(folder, checkpoint, device, overrides, spec=None):
    """As eval.load_run: model, task and checkpoint; fields of the model's config are replaced."""
    model, task, saved = page.load_run(folder, checkpoint, 'cpu', spec)
    if overrides:
        model = transplant(model, folder / checkpoint, overrides)
    return model.to(device).eval(), task, saved


def choose_lengths(task, T, multiples, stride=None):
    """
    Lengths in tokens, for multiples of the training length T. Raises UserError for half a token,
    for a string that is too short, and for windows of a text that do not fit.
    """
    multiples = multiples or (MULTIPLES_OF_TEXT if task.open_ended else MULTIPLES)
    for multiple in multiples:
        if multiple <= 0 or multiple * T % 1:
            raise UserError(f'--multiples {multiple:g}: of the training length, {T} tokens, that '
                            'is no whole number')
    lengths = sorted({round(multiple * T) for multiple in multiples})
    if lengths[0] < task.min_length:
        raise UserError(f'--multiples: {task} needs at least {task.min_length} tokens, and one is '
                        f'{lengths[0]}')
    stride = stride or 1
    fit = stride <= lengths[0] and not any(lengths[-1] % length for length in lengths)
    if task.open_ended and not fit:
        raise UserError(f'lengths {lengths}, stride {stride}: each length must divide the longest, '
                        'and none may be shorter than the stride')
    return lengths


def measure_run(folder, options, hardware):
    """All that there is to measure about the run in `folder`, as a dict that json can write."""
    overrides = read_overrides(options.override)
    model, task, saved = load(folder, options.checkpoint, hardware.device, overrides, options.task)
    T = saved['options']['block_size']
    n = options.n or (64 if task.open_ended else 512)
    lengths = choose_lengths(task, T, options.multiples, options.stride)
    result = dict(
        task=str(task), attention=model.config.attention, checkpoint=options.checkpoint,
        iter=saved['iter'], run=saved['sessions'][0], split='test', n=n, block_size=T,
        chance=task.chance, period=task.period, overrides=overrides, dtype=hardware.dtype,
        **machine(hardware.device), lengths={}, eyes={})
    if task.open_ended:
        result['stride'] = options.stride or min(min(lengths), max(1, T // 4))
        measure_text(result, model, task, lengths, hardware)
    else:
        measure_strings(result, model, task, lengths, hardware)
    result['frequencies'] = analysis.frequency_table(model, task.period)
    return result


def record(folder, options, hardware):
    """Measure a run, print the result, and keep it in the run's folder. Returns path and result."""
    result = measure_run(folder, options, hardware)
    print_details(result)
    path = folder / file_name(options)
    write_files(folder, {path.name: json.dumps(result).encode() + b'\n'})
    print(f'\nwrote {path}')
    return path, result


def measure_strings(result, model, task, lengths, hardware):
    """What there is to measure on a formal language, into `result`, printed row by row."""
    T = result['block_size']

    def row(label, length, first=False):
        measured, (x, y, right) = page.measure(model, task, length, result['n'], hardware)
        measured['breakdown'] = analysis.cells(task, x, y, right)
        parts = dict(beyond=y >= 0, headline_beyond=task.headline(x, y))
        for name, mask in parts.items():
            late = mask & (np.arange(length) >= T)
            if late.any():
                measured[name] = float(right[late].mean())
        page.print_row(label, length, measured, first)
        return measured

    for length in lengths:
        result['lengths'][str(length)] = row(f'{length / T:g}x', length, length == lengths[0])
    mixed = any(isinstance(block.attention, Bifocal) for block in model.blocks)
    for kind in ('geometric', 'spectral') if mixed else ():
        with analysis.closed_eyes(model, kind):
            result['eyes'][kind] = row(f'no {kind} eyes', T)


def measure_text(result, model, task, lengths, hardware):
    """What there is to measure on a text, into `result`."""
    T = result['block_size']
    with hardware.autocast():
        result['lengths'] = analysis.measure_contexts(
            model, task, T, lengths, result['n'], hardware.device, 'test', result['stride'])
    for length, row in result['lengths'].items():
        page.print_row(f'{length} tokens', int(length), row, first=int(length) == lengths[0])
    result['shares_by_distance'] = analysis.shares_of_text(model, task, 2 * T, hardware.device)


def print_details(result):
    """Below the rows of lengths: what lies beyond T, perplexities, breakdowns, frequencies."""
    T, lengths = result['block_size'], result['lengths']
    print()
    for length, row in lengths.items():
        if 'headline_beyond' in row:
            share = 100 * row['headline_beyond']
            print(f'{length:>18s} tokens: headline {share:.2f} % of the targets beyond {T} alone')
    for length, row in lengths.items():
        if 'perplexity' in row:
            print(f'{length:>18s} tokens: perplexity {row["perplexity"]:.3f}')
    analysis.print_breakdown(lengths)
    if result['period'] and result['frequencies']:
        analysis.print_frequencies(result['frequencies'], result['period'], T)


def main(arguments=None):
    """Measure as the command line `arguments` (default: sys.argv) say."""
    parser = page.make_parser(__doc__)
    parser.prog = 'python -m lab.measure'
    add = parser.add_argument
    add('out_dir', nargs='+', type=Path, help='folder of a run of train.py')
    add('--n', type=lambda text: page.count(text, 4),
        help='sequences of each length (default: 512, of text 64)')
    add('--multiples', type=float, nargs='+',
        help='lengths, in training lengths (default: 1 2 4 8, of text also 0.125 0.25 0.5)')
    add('--stride', type=page.count, help='text: tokens by which the sliding window advances '
        '(default: a quarter of the training length)')
    add('--override', nargs='+', default=[], metavar='KEY=VALUE', help='options of the model to '
        'change after training, such as log_scale_length=64; the results go to a file of their own')
    options = parser.parse_args(arguments)
    hardware = choose_hardware(options.device, options.dtype)
    for folder in options.out_dir:
        path, result = record(folder, options, hardware)
        write_figure(path.with_suffix('.png'), read_log(folder), result)


if __name__ == '__main__':
    with one_line_errors():
        main()
