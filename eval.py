"""
Measure a run: how well, at which lengths, where it fails, and what its frequencies became.

    python eval.py out/dyck3_spectral                        # tables, eval.json and figures in the run's folder
    python eval.py --compare out/dyck3_*                     # runs side by side, seeds of an arm together, and a figure
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from configurator import choose_device
from model import GPT, load_checkpoint, tapa_scores
from tasks import make_task, stream

LOCKED = 1e-3  # radians per token from a harmonic: the phase error stays below pi/7 for 448 tokens
SOLVED = 0.01  # nats of validation loss


# ----------------------------------------------------------------------------------------------------------------------
# One run


@torch.no_grad()
def measure(model, task, length, n, device, split='test', tokens_at_once=2**15):
    """
    The model on n fixed sequences of `length`, from a stream that no other split and no training batch is drawn from:
    loss (nats per target), accuracy, the accuracy that the task calls its headline with the half-width of its 95 %
    interval (sequences are independent, targets of one are not; the rule of three where none or all are right), the
    share of sequences without a mistake (exact), and {group: {label: [accuracy, targets]}} of the task's breakdown.
    """
    x, y = task.sample(stream(split, str(task), length), n, length)
    predicted, loss = [], 0.0
    for xb, yb in zip(*(torch.from_numpy(a).split(max(1, tokens_at_once // length)) for a in (x, y))):
        logits = model(xb.to(device))[0].float()
        loss += F.cross_entropy(logits.flatten(0, 1), yb.to(device).flatten(), ignore_index=-1, reduction='sum').item()
        predicted.append(logits.argmax(dim=-1).cpu())
    scored = y != -1
    right = (torch.cat(predicted).numpy() == y) & scored
    groups = task.breakdown(x, y)
    table = {group: {label: [float(right[mask].mean()), int(mask.sum())] for label, mask in masks.items() if mask.any()}
             for group, masks in groups.items()}
    chosen = scored if task.headline is None else groups[task.headline[0]][task.headline[1]]
    if not chosen.any():  # such as the non-trivial closers of a Dyck language of depth 1
        chosen = scored
    headline = right[chosen].mean()
    residuals = (right & chosen).sum(axis=1) - headline * chosen.sum(axis=1)  # of each sequence
    interval = 1.96 * math.sqrt((residuals**2).sum()) / chosen.sum() if 0 < headline < 1 else 3 / n
    return dict(loss=loss / int(scored.sum()), accuracy=float(right[scored].mean()), headline=float(headline),
                headline_interval=float(interval),
                exact=float((right == scored).all(axis=1).mean()), targets=int(scored.sum()), sequences=n, breakdown=table)


def frequency_table(model, period, lengths):
    """
    Every learned pair: layer, head, pair, Omega (radians per token), A, Phi, and with a period P the harmonic j whose
    2 pi j / P is nearest, the error Omega - 2 pi j / P, and the phase error that this makes at a lag of each length.
    """
    rows = []
    for layer, rotary in enumerate(model.spectral()):
        for head, omegas in enumerate(rotary.Omega.tolist()):
            for pair, omega in enumerate(omegas):
                A, Phi = rotary.A[head, pair].item(), rotary.Phi[head, pair].item()
                row = dict(layer=layer, head=head, pair=pair, Omega=omega, A=A, Phi=Phi)
                if period:
                    j = round(abs(omega) * period / (2 * math.pi))
                    error = abs(omega) - 2 * math.pi * j / period
                    j = j if j % period else 0  # at whole positions, a whole turn a token is no turn
                    row.update(harmonic=j, error=error, locked=j > 0 and abs(error) < LOCKED,
                               phase_error={str(length): error * length for length in lengths})
                rows.append(row)
    return rows


@torch.no_grad()
def attention_scores(attention, x, positions):
    """The scores of one layer before mask and softmax, (B, nh, T, T), given what its attention reads, x (B, T, C)."""
    config = attention.config
    q, k, _ = attention.heads(x, positions)
    k = k.repeat_interleave(config.n_head // config.nkv, dim=1)
    if attention.tapa is None:
        return q @ k.mT / math.sqrt(config.head_size)
    distance = (positions[:, None] - positions).abs().float() ** config.tapa_alpha
    return tapa_scores(q, k, distance, config.tapa_theta, config.tapa_phase)


@torch.no_grad()
def score_by_distance(model, task, length, n, device, split):
    """
    The mean score of a query that must answer for a key that holds what answers need (`task.sources`), at each distance
    m - n: nested lists (n_layer, nh, length), None where no pair is so far apart.
    """
    x, y = task.sample(stream(split, str(task), length), n, length)
    pairs = torch.from_numpy((y != -1)[:, :, None] & task.sources(x)[:, None, :]).to(device).tril()  # (n, T, T)
    positions = torch.arange(length, device=device)
    distance = (positions[:, None] - positions).clamp(min=0).flatten()  # (T T,)
    count = torch.zeros(length, device=device).index_add(0, distance, pairs.sum(0).flatten().float())
    profiles, residual = [], model.embedding(torch.from_numpy(x).to(device))
    for block in model.blocks:
        scores = (attention_scores(block.attention, block.norm_1(residual), positions) * pairs[:, None]).sum(0)  # (nh, T, T)
        total = torch.zeros(len(scores), length, device=device).index_add(1, distance, scores.flatten(1))
        profiles.append([[float(f'{v:.4g}') if v == v else None for v in head] for head in (total / count).tolist()])
        residual = block(residual, positions)
    return profiles


@torch.no_grad()
def state_similarity(model, task, length, n, device, split, least=100):
    """
    How alike neighbouring states look: for each layer {state: [cosine, centred cosine]} of the mean residual stream after
    it in that state (`task.state`) and in the next, as it is and with the mean over all positions taken off. States with
    fewer than `least` positions are left out. None if the task has no states.
    """
    x, _ = task.sample(stream(split, str(task), length), n, length)
    states = task.state(x)
    if states is None:
        return None
    states = torch.from_numpy(states).to(device).flatten()
    count = torch.bincount(states)
    positions, layers, residual = torch.arange(length, device=device), [], model.embedding(torch.from_numpy(x).to(device))
    for block in model.blocks:
        residual = block(residual, positions)
        flat = residual.flatten(0, 1)
        means = torch.zeros(len(count), flat.size(1), device=device).index_add(0, states, flat) / count[:, None]
        cosines = [F.cosine_similarity(m[:-1], m[1:], dim=1).tolist() for m in (means, means - flat.mean(0))]
        layers.append({str(d): [round(c[d], 4) for c in cosines] for d in range(len(count) - 1) if min(count[d], count[d + 1]) >= least})
    return layers


def evaluate_run(folder, checkpoint, multiples, n, device, split):
    """All that there is to measure about the run in `folder`, as a dict that json can write."""
    saved = load_checkpoint(folder / checkpoint)
    task = make_task(saved['task'])
    model = GPT.from_checkpoint(folder / checkpoint).to(device).eval()
    T = saved['options']['block_size']
    lengths = [multiple * T for multiple in multiples]
    result = dict(task=str(task), attention=model.config.attention, checkpoint=checkpoint, split=split, n=n, iter=saved['iter'],
                  block_size=T, chance=task.chance, headline=task.headline, lengths={}, variants={}, eyes={})
    for length in lengths:
        result['lengths'][str(length)] = measure(model, task, length, n, device, split)
        print_row(f'{length / T:g}x', length, result['lengths'][str(length)], first=length == lengths[0])
    for label, variant in task.variants().items():
        result['variants'][label] = {}
        for length in lengths:
            result['variants'][label][str(length)] = measure(model, variant, length, n, device, split)
            print_row(label, length, result['variants'][label][str(length)])
    for kind in ('geometric', 'spectral') if 0 < model.config.n_spectral < model.config.nkv else ():
        for layers in [None, *([layer] for layer in range(model.config.n_layer) if model.config.n_layer > 1)]:
            label = kind + (f' {layers[0]}' if layers else '')
            with model.closed_eyes(kind, layers):
                result['eyes'][label] = measure(model, task, T, n, device, split)
            print_row(f'no {kind} eyes' if layers is None else f'... layer {layers[0]}', T, result['eyes'][label])
    if model.spectral():
        result['frequencies'] = frequency_table(model, task.period, lengths)
    few = min(n, 128)
    result['score_by_distance'] = score_by_distance(model, task, 2 * T, few, device, split)
    result['state_similarity'] = state_similarity(model, next(iter(task.variants().values()), task), 4 * T, few, device, split)
    return result


def print_row(label, length, m, first=False):
    if first:
        print(f'{"":>18s} {"tokens":>7s} {"loss":>10s} {"accuracy":>9s} {"headline":>18s} {"exact":>8s}')
    print(f'{label:>18s} {length:>7d} {m["loss"]:>10.5f} {100 * m["accuracy"]:>7.2f} % '
          f'{100 * m["headline"]:>8.2f} +- {100 * m["headline_interval"]:<4.2f}% {100 * m["exact"]:>6.1f} %', flush=True)


def print_details(result):
    """The breakdowns, a column a length, and the frequencies that are near a harmonic."""
    lengths = result['lengths']
    for group in next(iter(lengths.values()))['breakdown']:
        labels = list(dict.fromkeys(label for m in lengths.values() for label in m['breakdown'].get(group, ())))
        print(f'\naccuracy by {group}\n{"":>18s}' + ''.join(f'{length:>9s}' for length in lengths))
        for label in labels[:12]:
            cells = (m['breakdown'].get(group, {}).get(label) for m in lengths.values())
            print(f'{label:>18s}' + ''.join(f'{100 * cell[0]:>7.2f} %' if cell else f'{"-":>9s}' for cell in cells))
        if len(labels) > 12:
            print(f'{"...":>18s} {len(labels) - 12} more rows in eval.json')
    rows = result.get('frequencies', [])
    harmonic = [row for row in rows if row.get('harmonic')]
    if harmonic:
        P = make_task(result['task']).period
        print(f'\nfrequencies nearest to a harmonic 2 pi j / {P}: phase error, in radians, at a lag of each length '
              f'(beyond pi / {P} = {math.pi / P:.2f} it points at another answer)')
        print(f'{"layer head pair":>18s} {"Omega":>9s} {"j":>3s} {"error":>10s}' + ''.join(f'{length:>9s}' for length in lengths))
        for row in sorted(harmonic, key=lambda row: abs(row['error'])):
            print(f'{row["layer"]:>8d}{row["head"]:>5d}{row["pair"]:>5d} {row["Omega"]:>9.5f} {row["harmonic"]:>3d} '
                  f'{row["error"]:>10.1e}' + ''.join(f'{row["phase_error"][length]:>9.3f}' for length in lengths) + ('  locked' if row['locked'] else ''))
        print(f'{sum(row["locked"] for row in rows)} of {len(rows)} pairs locked (within {LOCKED:g} of a harmonic); '
              f'{len(rows) - len(harmonic)} are nearer to standing still')


# ----------------------------------------------------------------------------------------------------------------------
# Figures


def pyplot():
    """matplotlib's pyplot, or None with a word on how to get it."""
    try:
        import matplotlib
    except ImportError:
        print('no figures: they need matplotlib (pip install matplotlib)')
        return None
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    plt.rcParams.update({'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'grid.alpha': 0.3,
                         'legend.frameon': False, 'figure.constrained_layout.use': True})
    return plt


def read_log(folder):
    lines = (Path(folder) / 'log.jsonl').read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith('\n')]  # a killed run may leave half a line


def plot_losses(axes, log, color, label, floor=1e-6):
    validations = [line for line in log if 'val_loss' in line]
    losses = [max(floor, line['val_loss']) for line in validations]
    axes.plot([line['iter'] for line in validations], losses, color=color, label=label)
    axes.set(yscale='log', xlabel='iteration', ylabel=f'validation loss (nats, at least {floor:g})')


def plot_lengths(axes, results, color, label, chance):
    """Headline accuracy by length: the mean over results, and each of them as a dot."""
    lengths = sorted(map(int, results[0]['lengths']))
    values = [[100 * r['lengths'][str(length)]['headline'] for r in results] for length in lengths]
    axes.plot(lengths, [statistics.mean(v) for v in values], color=color, label=label)
    for length, v in zip(lengths, values):
        axes.plot([length] * len(v), v, 'o', color=color, markersize=4, alpha=0.6)
    axes.axhline(100 * chance, color='grey', linestyle=':', linewidth=1)
    axes.set(xscale='log', xlabel=f'length (tokens; trained at {results[0]["block_size"]})', ylim=(-3, 103))
    axes.set_ylabel(' '.join(['accuracy on', *reversed(results[0]['headline'] or ['all targets'])]) + ' (%)')
    axes.set_xticks(lengths, map(str, lengths))
    axes.minorticks_off()


def draw_run(folder, result):
    """FOLDER/accuracy.png: loss while training, accuracy by length and by the task's groups; FOLDER/frequencies.png."""
    plt = pyplot()
    if plt is None:
        return
    log, lengths = read_log(folder), result['lengths']
    groups = [group for group, cells in next(iter(lengths.values()))['breakdown'].items() if len(cells) > 2]
    figure, panels = plt.subplots(1, 2 + len(groups), figsize=(4.2 * (2 + len(groups)), 3.4))
    plot_losses(panels[0], log, 'C0', None)
    plot_lengths(panels[1], [result], 'C0', None, result['chance'])
    for axes, group in zip(panels[2:], groups):
        for i, (length, m) in enumerate(reversed(lengths.items())):
            cells = m['breakdown'].get(group, {})
            axes.plot(list(cells), [100 * cell[0] for cell in cells.values()], 'o-', markersize=3, label=f'{length} tokens',
                      color=plt.cm.viridis(i / len(lengths)))
        axes.axhline(100 * result['chance'], color='grey', linestyle=':', linewidth=1)
        axes.set(xlabel=group, ylim=(-3, 103))
        ticks = axes.get_xticks()
        axes.set_xticks(ticks[::max(1, len(ticks) // 8)])
        axes.legend()
    figure.suptitle(f'{result["task"]}, {result["attention"]} (dotted: chance)')
    figure.savefig(folder / 'accuracy.png', dpi=130)
    plt.close(figure)
    print(f'wrote {folder}/accuracy.png')
    if 'frequencies' in result:
        period = make_task(result['task']).period
        figure = draw_frequencies(plt, log, period, f'{result["task"]}, {result["attention"]}')
        figure.savefig(folder / 'frequencies.png', dpi=130)
        plt.close(figure)
        print(f'wrote {folder}/frequencies.png')


def draw_frequencies(plt, log, period, title):
    """Omega of every layer and head against the iteration, the harmonics of the task as lines, the loss below."""
    validations = [line for line in log if 'Omega' in line]
    steps = [line['iter'] for line in validations]
    omega = torch.tensor([line['Omega'] for line in validations])  # (steps, n_layer, heads, P)
    heads = [(layer, head) for layer in range(omega.size(1)) for head in range(omega.size(2))]
    top = 1.12 * max(1.0, omega.max().item(), 2 * math.pi / period if period else 0)  # room for the legend
    figure, panels = plt.subplots(2, len(heads), figsize=(max(6, 4.2 * len(heads)), 5.6), height_ratios=(3, 1), sharex=True,
                                  squeeze=False)
    for column, (layer, head) in enumerate(heads):
        axes = panels[0, column]
        for j in range(1, math.floor(top * period / (2 * math.pi)) + 1) if period else ():
            axes.axhline(2 * math.pi * j / period, color='C3', linewidth=1, label=f'$2\\pi j/{period}$' if j == 1 else None)
        axes.plot(steps, omega[:, layer, head], color='C0', linewidth=1.2)
        axes.set(title=f'layer {layer}, spectral head {head}', ylim=(min(0, omega.min().item()) - 0.02, top))
        plot_losses(panels[1, column], log, 'black', None)
        panels[1, column].set_ylabel('val loss' if column == 0 else '')
    panels[0, 0].set_ylabel('frequency Omega (radians per token)')
    if period:
        panels[0, 0].legend(loc='upper right')
    figure.suptitle(title)
    return figure


# ----------------------------------------------------------------------------------------------------------------------
# Several runs


def read_arms(folders, name):
    """{(task, attention and what else differs, learning rate): [runs]}: the runs of an arm differ in the seed alone."""
    runs, evaluated = [], {}
    for folder in dict.fromkeys(Path(folder).resolve() for folder in folders):
        missing = [file for file in ('config.json', name, 'log.jsonl') if not (folder / file).exists()]
        if missing:
            raise FileNotFoundError(f'{folder} has no {", ".join(missing)}: train it, then run python eval.py {folder}')
        run = dict(folder=folder, options=json.loads((folder / 'config.json').read_text())['options'],
                   eval=json.loads((folder / name).read_text()), log=read_log(folder))
        task, settings = run['eval']['task'], (run['eval']['checkpoint'], run['eval']['n'], list(run['eval']['lengths']))
        if evaluated.setdefault(task, settings) != settings:
            raise ValueError(f'{folder} was evaluated with checkpoint, n, lengths = {settings}, '
                             f'another run of {task} with {evaluated[task]}')
        runs.append(run)
    apart = ('out_dir', 'seed', 'overwrite', 'device', 'log_interval', 'eval_interval', 'task', 'attention', 'learning_rate')
    values = {}
    for run in runs:
        for key, value in run['options'].items():
            values.setdefault((run['eval']['task'], key), set()).add(repr(value))
    arms = {}
    for run in sorted(runs, key=lambda run: run['options']['seed']):
        task, options = run['eval']['task'], run['options']
        differing = [f'{key}={value}' for key, value in options.items() if key not in apart and len(values[task, key]) > 1]
        arms.setdefault((task, ' '.join([options['attention'], *differing]), options['learning_rate']), []).append(run)
    return {key: arms[key] for key in sorted(arms, key=lambda key: (key[0], ATTENTIONS.index(key[1].split()[0])))}


def spread(values, scale=1.0, digits=1):
    """'mean +- sd', or the value of a single run."""
    values = [scale * v for v in values]
    mean = f'{statistics.mean(values):.{digits}f}'
    return mean if len(values) == 1 else f'{mean} ± {statistics.stdev(values):.{digits}f}'


def compare(folders, name, figure_path):
    """
    Print one Markdown table, a row an arm, and draw one figure: validation loss while training, accuracy by length.
    Per seed: the best validation loss, the iteration that first reached 0.01 nats, and the pairs locked onto a harmonic.
    """
    arms = read_arms(folders, name)
    results = [run['eval'] for runs in arms.values() for run in runs]
    multiples = sorted({int(length) // result['block_size'] for result in results for length in result['lengths']})
    header = ['task', 'attention', 'learning rate', 'seeds', 'best validation loss', 'iterations to 0.01', 'locked pairs',
              *(f'accuracy at {m}x (%)' for m in multiples)]
    print('| ' + ' | '.join(header) + ' |\n' + '|' + '---|' * len(header))
    for (task, arm, learning_rate), runs in arms.items():
        validations = [[line for line in run['log'] if 'val_loss' in line] for run in runs]
        best = (f'{min(line["val_loss"] for line in lines):.2g}' for lines in validations)
        reached = (str(next((line['iter'] for line in lines if line['val_loss'] <= 0.01), '-')) for lines in validations)
        locked = [str(sum(row['locked'] for row in run['eval']['frequencies'])) for run in runs
                  if make_task(task).period and 'frequencies' in run['eval']]
        T = runs[0]['eval']['block_size']
        cells = [spread([run['eval']['lengths'][str(m * T)]['headline'] for run in runs], 100) for m in multiples]
        seeds = (str(run['options']['seed']) for run in runs)
        row = [task, arm, f'{learning_rate:g}', *(', '.join(each) for each in (seeds, best, reached, locked)), *cells]
        print('| ' + ' | '.join(row) + ' |')
    plt = pyplot()
    if plt is None:
        return
    tasks, names = ([*dict.fromkeys(key[i] for key in arms)] for i in (0, 1))
    figure, panels = plt.subplots(2, len(tasks), figsize=(4.6 * len(tasks), 6.4), squeeze=False)
    for (task, arm, learning_rate), runs in arms.items():
        column, color = tasks.index(task), f'C{names.index(arm)}'
        for i, run in enumerate(runs):
            plot_losses(panels[0, column], run['log'], color, arm if i == 0 else None)
        plot_lengths(panels[1, column], [run['eval'] for run in runs], color, arm, runs[0]['eval']['chance'])
        panels[0, column].set_title(task)
    panels[0, 0].legend()
    figure_path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(figure_path, dpi=130)
    plt.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out_dir', nargs='*', help='folder of a run of train.py')
    parser.add_argument('--compare', nargs='+', metavar='DIR', help='evaluated runs to put side by side')
    parser.add_argument('--figure', default='out/compare.png', help='where --compare draws (default: %(default)s)')
    parser.add_argument('--checkpoint', default='best.pt', help='file in out_dir to measure (default: %(default)s)')
    parser.add_argument('--n', type=int, default=512, help='test sequences of each length (default: %(default)s)')
    parser.add_argument('--split', default='test', choices=('test', 'validation'), help='test reports, validation chooses')
    parser.add_argument('--multiples', type=int, nargs='+', default=[1, 2, 4, 8], help='lengths (default: 1 2 4 8)')
    parser.add_argument('--device', default='auto', help='auto, cpu, cuda, mps')
    options = parser.parse_args(arguments)
    if bool(options.out_dir) == bool(options.compare):
        parser.error('give the folder of a run, or --compare and several')
    if options.n < 2 or min(options.multiples) < 1:
        parser.error('--n must be at least 2, and --multiples at least 1')
    name = 'eval.json' if options.split == 'test' else f'eval_{options.split}.json'
    if options.compare:
        compare(options.compare, name, Path(options.figure))
        return
    device = choose_device(options.device)
    for folder in map(Path, options.out_dir):
        result = evaluate_run(folder, options.checkpoint, options.multiples, options.n, device, options.split)
        print_details(result)
        (folder / name).write_text(json.dumps(result) + '\n')
        print(f'\nwrote {folder}/{name}')
        draw_run(folder, result)


if __name__ == '__main__':
    main()
