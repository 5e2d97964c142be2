"""
Measure a run as eval.py does, and all that lab/analysis.py can tell about it.

    python -m lab.measure out/dyck3_bifocal      # tables, eval.json and eval.png in its folder
    python -m lab.measure out/text_rope --override frequencies=pi:factor=8    # with other options

For each length beyond the training length, eval.json also has the accuracy `beyond`: of the targets
at positions that no training string has. `headline_beyond` counts those of the headline alone.
"""

import contextlib
import dataclasses
import json
import math
import re
import statistics
from pathlib import Path

import torch

import eval as page
from checkpoint import find_task, load_checkpoint, read_log, write_files
from configurator import convert, machine, nearest, one_line_errors, parse, this_process
from lab import analysis, corpus
from lab.figure import write_figure
from lab.memory import sequences_at_once
from lab.surgery import transplant
from model import GPT, Bifocal, GPTConfig, UserError
from tasks import make_rng

MULTIPLES = (1, 2, 4, 8)  # of the training length
MULTIPLES_OF_TEXT = (0.125, 0.25, 0.5, 1, 2, 4, 8)


def read_overrides(words):
    """{field of GPTConfig: value} of words key=value. Raises UserError for another key or type."""
    fields = dataclasses.fields(GPTConfig)
    defaults = {field.name: field.default for field in fields if field.name != 'vocab_size'}
    overrides = {}
    for word in words:
        key, equals, text = word.partition('=')
        source = f'--override {word}'
        if not equals:
            raise UserError(f'{source}: options are written KEY=VALUE')
        if key not in defaults:
            raise UserError(f'{source}: unknown option {key!r}{nearest(key, defaults)}')
        value = text if isinstance(defaults[key], str) else parse(text)
        overrides[key] = convert(key, value, defaults[key], source)
    return overrides


def file_name(split, words, checkpoint='best.pt'):
    """
    Where results go: eval.json, eval_validation.json, eval_frequencies=pi-factor=8.json. A
    checkpoint other than best.pt has its own: eval_crystal.json. What a file name may not have
    on every system, such as ':' and '/', becomes '-'.
    """
    parts = ['eval']
    if split != 'test':
        parts.append(split)
    if checkpoint != 'best.pt':
        parts.append(checkpoint.removesuffix('.pt'))
    name = '_'.join([*parts, *words])
    return re.sub(r'[^\w.=+-]', '-', name) + '.json'


def load(folder, checkpoint, device, overrides, spec=None):
    """As eval.load_run: model, task and checkpoint; fields of the model's config are replaced."""
    if not overrides:
        return page.load_run(folder, checkpoint, device, spec)
    path = folder / checkpoint
    saved = load_checkpoint(path)
    model = transplant(saved, path, overrides)
    return model.to(device).eval(), find_task(saved, spec), saved


def choose_lengths(task, T, multiples):
    """Lengths in tokens, for multiples of the training length T. UserError for half a token."""
    multiples = multiples or (MULTIPLES_OF_TEXT if task.open_ended else MULTIPLES)
    for multiple in multiples:
        if not 1 <= multiple * T < 2**31 or multiple * T % 1:
            raise UserError(f'--multiples {multiple:g}: of the training length, {T} tokens, that '
                            'is no whole number')
    return sorted({round(multiple * T) for multiple in multiples})


def measure_run(folder, options, process, overrides):
    """All that there is to measure about the run in `folder`, as a dict that json can write."""
    model, task, saved = load(folder, options.checkpoint, process.device, overrides, options.task)
    T = saved['options']['block_size']
    n = options.n or (64 if task.open_ended else 512)
    lengths = choose_lengths(task, T, options.multiples)
    sequences_at_once(model.config, max(lengths), process.device)  # raises if one does not fit
    result = dict(
        task=str(task), attention=model.config.attention, checkpoint=options.checkpoint,
        split=options.split, n=n, iter=saved['iter'], block_size=T, chance=task.chance,
        headline=task.headline, period=task.period, overrides=overrides,
        held_shares=options.hold_shares, dtype=process.dtype, **machine(process.device), lengths={},
        variants={}, eyes={})
    held = contextlib.nullcontext()
    if options.hold_shares:
        held = analysis.held_shares(model, T)
    with held:
        if task.open_ended:
            result['stride'] = options.stride or min(min(lengths), max(1, T // 4))
            measure_text(result, model, task, lengths, process, saved['options']['seed'])
        else:
            measure_strings(result, model, task, lengths, process)
    result['frequencies'] = page.frequency_table(model, task.period)
    return result


def measure_strings(result, model, task, lengths, process):
    """What there is to measure on a formal language, into `result`, printed row by row."""
    T, n, split = result['block_size'], result['n'], result['split']
    config, device = model.config, process.device

    def row(label, task, length, first=False):
        task = analysis.Beyond(task, T)
        at_once = sequences_at_once(config, length, device)
        measured = page.measure(model, task, length, n, device, split, at_once, process.dtype)
        measured = analysis.move_beyond(measured)
        page.print_row(label, length, measured, first)
        return measured

    for length in lengths:
        label = f'{length / T:g}x'
        result['lengths'][str(length)] = row(label, task, length, first=length == lengths[0])
    variants = analysis.variants(task)
    for label, variant in variants.items():
        result['variants'][label] = {str(length): row(label, variant, length)
                                     for length in lengths}
    mixed = any(isinstance(block.attention, Bifocal) for block in model.blocks)
    for kind in ('geometric', 'spectral') if mixed else ():
        with analysis.closed_eyes(model, kind):
            result['eyes'][kind] = row(f'no {kind} eyes', task, T)
        for layer in analysis.eyes(model, kind) if config.n_layer > 1 else ():
            with analysis.closed_eyes(model, kind, [layer]):
                result['eyes'][f'{kind} {layer}'] = row(f'... layer {layer}', task, T)


def measure_text(result, model, task, lengths, process, seed):
    """What there is to measure on a text. The distance bias also before training, by `seed`."""
    T, n, split, stride = (result[name] for name in ('block_size', 'n', 'split', 'stride'))
    device = process.device
    with process.autocast():
        result['lengths'], result['perplexity'] = analysis.measure_contexts(
            model, task, T, lengths, n, device, split, stride)
    for length, row in result['lengths'].items():
        page.print_row(f'{length} tokens', int(length), row, first=int(length) == lengths[0])
    x, _ = corpus.of_task(task, split).excerpts(2 * T, 8, make_rng(split, 'pairs'))
    if len(x) == 0:
        raise UserError(f'{task}: its {split} split has no excerpt of {2 * T} tokens, twice the '
                        'training length')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(make_rng(seed, 'init').integers(2**63)))  # as train.py does
        untrained = GPT(model.config).to(device).eval()
    near, far = (0, T // 16), (T, T + T // 16)
    result['distance_bias'] = {
        name: analysis.distance_bias(one, x, near, far, device, make_rng(split, 'pairs'))
        for name, one in (('trained', model), ('at the start', untrained))}
    result['shares_by_distance'] = analysis.shares_by_distance(model, x, device)


def print_details(result):
    """Below the rows of lengths: what lies beyond T, perplexities, breakdowns, frequencies."""
    beyond = {length: row for length, row in result['lengths'].items() if 'beyond' in row}
    if beyond:
        print(f'\nheadline of the targets beyond {result["block_size"]} tokens alone')
        for length, row in beyond.items():
            print(f'{length:>18s} {100 * row["headline_beyond"]:>7.2f} %')
    if 'perplexity' in result:
        print_text(result)
    if result['frequencies']:
        print_moves(result['frequencies'])
    page.print_details(result)


def print_text(result):
    """Perplexity by the length of the context, three ways, and the distance bias by layer."""
    ways = result['perplexity']
    print(f'\nperplexity by context, stride {result["stride"]}')
    print(f'{"tokens":>18s}' + ''.join(f'{way:>20s}' for way in ways))
    for length in result['lengths']:
        cells = [way[length]['perplexity'] for way in ways.values()]
        print(f'{length:>18s}' + ''.join(f'{value:>20.3f}' for value in cells))
    names = ('at the start', 'trained')
    print('\nscore of a near key less that of a far one, mean ± sd')
    print(f'{"layer":>18s}' + ''.join(f'{name:>20s}' for name in names))
    for layer, both in enumerate(zip(*(result['distance_bias'][name] for name in names))):
        cells = [f'{one["mean"]:>12.2f} ± {one["sd"]:.2f}' for one in both]
        print(f'{layer:>18d}' + ''.join(cells))
    head = analysis.looks_back_most(result['shares_by_distance'])
    shares = '  '.join(f'{100 * share:.1f} %' for share in head)
    print(f'\nattention 0, 1, 2, 3 tokens back, of the head that looks one back most: {shares}')


def print_moves(rows):
    """How far the frequencies of each layer and head have moved; rows of frequency_table."""
    print('\nwhat moved: Omega against theta, where it started (radians per token)')
    print(f'{"layer head":>18s} {"largest move":>34s} {"median move":>12s} '
          f'{"share of theta":>15s} {"A":>16s}')
    heads = list(dict.fromkeys((row['layer'], row['head']) for row in rows))
    for layer, head in heads[:24]:
        pairs = [row for row in rows if (row['layer'], row['head']) == (layer, head)]
        far = max(pairs, key=lambda row: abs(row['Omega'] - row['theta']))
        moves = [abs(row['Omega'] - row['theta']) for row in pairs]
        shares = [move / row['theta'] if row['theta'] else math.inf
                  for move, row in zip(moves, pairs)]
        amplitudes = [row['A'] for row in pairs]
        print(f'{layer:>13d}{head:>5} pair {far["pair"]:>3d}: {far["theta"]:>10.5f} to '
              f'{far["Omega"]:>10.5f} {statistics.median(moves):>12.2e} '
              f'{statistics.median(shares):>15.3f} '
              f'{min(amplitudes):>7.2f} to {max(amplitudes):>5.2f}')
    if len(heads) > 24:
        print(f'{"...":>18s} {len(heads) - 24} more heads in eval.json')


def main(arguments=None):
    """Measure as the command line `arguments` (default: sys.argv) say."""
    parser = page.make_parser(__doc__)
    parser.prog = 'python -m lab.measure'
    add = parser.add_argument
    add('out_dir', nargs='+', type=Path, help='folder of a run of train.py')
    add('--n', type=page.count,
        help='sequences of each length, at least 4 (default: 512, of text 64)')
    add('--split', default='test', choices=('test', 'validation'),
        help='test reports, validation chooses (default: %(default)s)')
    add('--multiples', type=float, nargs='+',
        help='lengths, in training lengths (default: 1 2 4 8, of text also 0.125 0.25 0.5)')
    add('--stride', type=page.count, help='text: tokens by which the sliding window advances '
        '(default: a quarter of the training length)')
    add('--override', nargs='+', default=[], metavar='KEY=VALUE', help='options of the model to '
        'change after training, such as log_scale_length=64; the results go to a file of their own')
    add('--hold-shares', action='store_true', help='beyond the training length, the first token '
        'counts as ever more, so that its share of attention stays; to a file of its own')
    options = parser.parse_args(arguments)
    if options.n is not None and options.n < 4:
        parser.error(f'--n {options.n}: must be at least 4')
    overrides = read_overrides(options.override)
    process = this_process(options.device, options.dtype)
    changed = list(options.override)
    if options.hold_shares:
        changed.append('held_shares=True')
    name = file_name(options.split, changed, options.checkpoint)
    for folder in options.out_dir:
        result = measure_run(folder, options, process, overrides)
        print_details(result)
        write_files(folder, {name: json.dumps(result).encode() + b'\n'})
        print(f'\nwrote {folder / name}')
        if not changed and options.checkpoint == 'best.pt':
            write_figure(folder, 'eval.png', read_log(folder), result)


if __name__ == '__main__':
    with one_line_errors():
        main()
