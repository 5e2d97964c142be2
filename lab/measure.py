"""
Measure a run as eval.py does, and all that lab/analysis.py can tell about it.

    python -m lab.measure out/dyck3_bifocal                              # tables, eval.json and figures in its folder
    python -m lab.measure out/text_rope --override rope=pi:factor=8      # the same weights with other options
"""

import argparse
import contextlib
import dataclasses
import json
import math
import re
import statistics
from pathlib import Path

import torch

import eval as page
from configurator import choose_device, convert, one_line_errors, parse
from lab import analysis, corpus, figures
from lab.memory import sequences_at_once
from lab.surgery import transplant
from model import GPT, ROTARY, GPTConfig
from tasks import nearest, stream

MULTIPLES = (1, 2, 4, 8)  # of the training length
MULTIPLES_OF_TEXT = (0.125, 0.25, 0.5, 1, 2, 4, 8)


def read_overrides(words):
    """{field of GPTConfig: value} of words 'key=value'. Raises ValueError for another key, or another type."""
    defaults = {field.name: field.default for field in dataclasses.fields(GPTConfig) if field.name != 'vocab_size'}
    overrides = {}
    for word in words:
        key, equals, text = word.partition('=')
        if not equals:
            raise ValueError(f'--override {word}: options are written KEY=VALUE')
        if key not in defaults:
            raise ValueError(f'--override {word}: unknown option {key!r}{nearest(key, defaults)}')
        value = text if isinstance(defaults[key], str) else parse(text)
        overrides[key] = convert(key, value, type(defaults[key]), f'--override {word}')
    return overrides


def file_name(split, words, checkpoint='best.pt'):
    """
    Where results go: eval.json, eval_validation.json, eval_log_scale=64.json, eval_rope=pi-factor=8.json. A checkpoint
    other than best.pt has its own: eval_crystal.json. What a file name may not have on every system, such as ':' and
    '/', becomes '-'.
    """
    place = [checkpoint.removesuffix('.pt')] if checkpoint != 'best.pt' else []
    parts = ['eval', *([split] if split != 'test' else []), *place, *words]
    return re.sub(r'[^\w.=+-]', '-', '_'.join(parts)) + '.json'


def load(folder, checkpoint, device, overrides, spec=None):
    """The model in a run's folder with fields of its config replaced, and what page.load_run says of the others."""
    if not overrides:
        return page.load_run(folder, checkpoint, device, spec)
    saved = page.load_checkpoint(folder / checkpoint)
    model = transplant(saved, folder / checkpoint, overrides)
    return model.to(device).eval(), page.find_task(saved, spec), saved


def choose_lengths(task, T, multiples):
    """The lengths in tokens, for multiples of the training length T. Raises ValueError for a fraction of a token."""
    multiples = multiples or (MULTIPLES_OF_TEXT if task.open_ended else MULTIPLES)
    for multiple in multiples:
        if multiple * T % 1 or multiple * T < 1:
            raise ValueError(f'--multiples {multiple:g}: of the training length, {T} tokens, that is no whole number')
    return sorted({round(multiple * T) for multiple in multiples})


def measure_run(folder, options, device, overrides):
    """All that there is to measure about the run in `folder`, as a dict that json can write."""
    model, task, saved = load(folder, options.checkpoint, device, overrides, options.task)
    T, n, split = saved['options']['block_size'], options.n or (64 if task.open_ended else 512), options.split
    lengths = choose_lengths(task, T, options.multiples)
    sequences_at_once(model.config, max(lengths), device)  # raises for a context that does not fit
    result = dict(task=str(task), attention=model.config.attention, checkpoint=options.checkpoint, split=split, n=n,
                  iter=saved['iter'], block_size=T, chance=task.chance, headline=task.headline, period=task.period,
                  overrides=overrides, held_shares=options.hold_shares, **page.machine(device), lengths={},
                  variants={}, eyes={})
    with analysis.held_shares(model, T) if options.hold_shares else contextlib.nullcontext():
        if task.open_ended:
            result['stride'] = options.stride or min(min(lengths), max(1, T // 4))
            measure_text(result, model, task, lengths, device, saved['options']['seed'])
        else:
            measure_strings(result, model, task, lengths, device)
    result['frequencies'] = page.frequency_table(model, task.period)
    return result


def measure_strings(result, model, task, lengths, device):
    """What there is to measure on a formal language, into `result`, printed row by row."""
    T, n, split, config = result['block_size'], result['n'], result['split'], model.config

    def row(label, of, length, first=False):
        measured = page.measure(model, of, length, n, device, split, sequences_at_once(config, length, device))
        page.print_row(label, length, measured, first)
        return measured

    for length in lengths:
        result['lengths'][str(length)] = row(f'{length / T:g}x', task, length, first=length == lengths[0])
    variants = analysis.variants(task)
    for label, variant in variants.items():
        result['variants'][label] = {str(length): row(label, variant, length) for length in lengths}
    for kind in ('geometric', 'spectral') if 0 < config.n_spectral < config.nkv else ():
        with analysis.closed_eyes(model, kind):
            result['eyes'][kind] = row(f'no {kind} eyes', task, T)
        for layer in range(config.n_layer) if config.n_layer > 1 else ():
            with analysis.closed_eyes(model, kind, [layer]):
                result['eyes'][f'{kind} {layer}'] = row(f'... layer {layer}', task, T)
    result['score_by_distance'] = analysis.score_by_distance(model, task, 2 * T, n, device, split)
    hardest = next(iter(variants.values()), task)
    result['state_similarity'] = analysis.state_similarity(model, hardest, 4 * T, min(n, 128), device, split)


def measure_text(result, model, task, lengths, device, seed):
    """What there is to measure on a text, into `result`. The distance bias also of the first weights of `seed`."""
    T, n, split, stride = (result[name] for name in ('block_size', 'n', 'split', 'stride'))
    measured = analysis.measure_text(model, task, lengths, n, device, split, stride)
    result['lengths'], result['perplexity'] = measured
    for length, row in result['lengths'].items():
        page.print_row(f'{length} tokens', int(length), row, first=int(length) == lengths[0])
    x = corpus.of_task(task, split).excerpts(2 * T, 8, stream(split, 'pairs'))[0]
    if len(x) == 0:
        raise ValueError(f'{task}: its {split} split has no excerpt of {2 * T} tokens, twice the training length')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, 'init').integers(2**63)))  # as train.py does
        untrained = GPT(model.config).to(device).eval()
    near, far = (0, T // 16), (T, T + T // 16)
    result['distance_bias'] = {
        name: analysis.distance_bias(one, x, near, far, device, stream(split, 'pairs'))
        for name, one in (('trained', model), ('at the start', untrained))}
    if model.config.attention in ROTARY and not model.config.log_scale:
        result['pair_means'] = analysis.pair_means(model, x[:, :T], device)


def print_details(result):
    """The tables below the rows of lengths: perplexities, breakdowns, and what became of the frequencies."""
    lengths = result['lengths']
    if 'perplexity' in result:
        print_text(result)
    groups = dict.fromkeys(group for row in lengths.values() for group in row['breakdown'])
    filled = {length: row | dict(breakdown={group: row['breakdown'].get(group, {}) for group in groups})
              for length, row in lengths.items()}  # brackets whose opener is in sight are not in every window
    if result['frequencies']:
        print_moves(result['frequencies'])
    page.print_details(result | dict(lengths=filled))


def print_text(result):
    """Perplexity by the length of the context, three ways, and the distance bias of each layer."""
    ways = {way: cells for way, cells in result['perplexity'].items() if way != 'by position'}
    print(f'\nperplexity by context, stride {result["stride"]}')
    print(f'{"tokens":>18s}' + ''.join(f'{way:>20s}' for way in ways))
    for length in result['lengths']:
        print(f'{length:>18s}' + ''.join(f'{cells[length]["perplexity"]:>20.3f}' for cells in ways.values()))
    names = ('at the start', 'trained')
    print('\nscore of a near key less that of a far one, mean ± sd')
    print(f'{"layer":>18s}' + ''.join(f'{name:>20s}' for name in names))
    for layer, both in enumerate(zip(*(result['distance_bias'][name] for name in names))):
        print(f'{layer:>18d}' + ''.join(f'{one["mean"]:>12.2f} ± {one["sd"]:.2f}' for one in both))


def print_moves(rows):
    """How far the frequencies of each layer and head have moved, for rows of eval.frequency_table."""
    print('\nwhat moved: Omega against the theta that it set off from, radians per token\n'
          f'{"layer head":>18s} {"largest move":>34s} {"median |move|":>14s} {"median |move| / theta":>22s} {"A":>16s}')
    heads = list(dict.fromkeys((row['layer'], row['head']) for row in rows))
    for layer, head in heads[:24]:
        pairs = [row for row in rows if (row['layer'], row['head']) == (layer, head)]
        far = max(pairs, key=lambda row: abs(row['Omega'] - row['theta']))
        moves = [abs(row['Omega'] - row['theta']) for row in pairs]
        shares = [move / row['theta'] if row['theta'] else math.inf for move, row in zip(moves, pairs)]
        amplitudes = [row['A'] for row in pairs]
        print(f'{layer:>13d}{head:>5d} pair {far["pair"]:>3d}: {far["theta"]:>10.5f} to {far["Omega"]:>10.5f} '
              f'{statistics.median(moves):>14.2e} {statistics.median(shares):>22.3f} '
              f'{min(amplitudes):>7.2f} to {max(amplitudes):>5.2f}')
    if len(heads) > 24:
        print(f'{"...":>18s} {len(heads) - 24} more heads in eval.json')


def draw(folder, result):
    """
    The page's figure, and in FOLDER those of the lab: moves.png of learned frequencies, perplexity.png of a text, and
    key.png of passkey, by length and place of the key.
    """
    page.draw(folder / 'eval.png', page.read_log(folder), result)
    plt = figures.pyplot()
    if plt is None:
        return
    title = f'{result["task"]}, {result["attention"]}'
    rows = result['frequencies']
    if rows:
        figure, axes = plt.subplots(figsize=(7, 4.6))
        groups = figures.layer_groups(rows)
        figures.plot_moves(axes, groups, result['period'])
        axes.set_title(f'{title}: where each learned frequency started and ended', fontsize=11)
        figure.legend(loc='outside right center', ncols=1 + len(groups) // 20)
        write(plt, figure, folder / 'moves.png')
    if 'perplexity' in result:
        figure, axes = plt.subplots(figsize=(5.2, 4.2))
        for way in ('non-overlapping', 'sliding', 'same targets'):
            row = dict(block_size=result['block_size'])
            for length, cells in result['perplexity'][way].items():
                row[f'perplexity@{length} {way}'] = cells['perplexity']
            figures.plot_perplexity(axes, [row], way, None, way)
        axes.set_title(title, fontsize=9)
        axes.legend()
        write(plt, figure, folder / 'perplexity.png')
    group = 'depth of the key'
    if all(group in row['breakdown'] for row in result['lengths'].values()):
        table = {length: {label: cell[2] for label, cell in row['breakdown'][group].items()}
                 for length, row in result['lengths'].items()}
        figure, axes = plt.subplots(figsize=(5.2, 4.2))
        figure.colorbar(figures.plot_heat(axes, [table], group), ax=axes, label='all five digits right (%)')
        axes.set_title(title, fontsize=9)
        write(plt, figure, folder / 'key.png')


def write(plt, figure, path):
    figures.save(plt, figure, path)
    print(f'wrote {path}')


def main(arguments=None):
    """Measure as the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(prog='python -m lab.measure', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out_dir', nargs='+', type=Path, help='folder of a run of train.py')
    parser.add_argument('--checkpoint', default='best.pt', help='file in out_dir to measure (default: %(default)s); '
                        'the results of another one go to a file of their own')
    parser.add_argument('--n', type=int, help='sequences of each length, at least 4 (default: 512, of text 64)')
    parser.add_argument('--split', default='test', choices=('test', 'validation'),
                        help='test reports, validation chooses (default: %(default)s)')
    parser.add_argument('--multiples', type=float, nargs='+',
                        help='lengths, in training lengths (default: 1 2 4 8, of text also 0.125 0.25 0.5)')
    parser.add_argument('--stride', type=int, help='text: tokens by which the sliding window advances (default: a '
                        'quarter of the training length)')
    parser.add_argument('--task', help='if the run was trained on a text with a path: the task again')
    parser.add_argument('--device', default='auto', help='auto, cpu, cuda, mps')
    parser.add_argument('--override', nargs='+', default=[], metavar='KEY=VALUE', help='options of the model to change '
                        'after training, such as log_scale=64; the results go to a file of their own')
    parser.add_argument('--hold-shares', action='store_true', help='beyond the training length, the first token counts '
                        'as ever more, so that its share of attention stays what it was; to a file of its own')
    options = parser.parse_args(arguments)
    if options.n is not None and options.n < 4 or options.stride is not None and options.stride < 1:
        parser.error('--n must be at least 4, and --stride at least 1')
    overrides, device = read_overrides(options.override), choose_device(options.device)
    changed = [*options.override, *(['held_shares=True'] if options.hold_shares else [])]
    name = file_name(options.split, changed, options.checkpoint)
    for folder in options.out_dir:
        result = measure_run(folder, options, device, overrides)
        print_details(result)
        (folder / name).write_text(json.dumps(result) + '\n')
        print(f'\nwrote {folder / name}')
        if not changed and options.checkpoint == 'best.pt':
            draw(folder, result)


if __name__ == '__main__':
    with one_line_errors():
        main()
