"""
Look at trained runs: how many answers are right, group by group, and the mean score of each head
by distance.

    python -m lessons.look out/lesson_1_nope out/lesson_1_rope   # writes look.png into each folder

The score is the mean over the keys that hold an answer: the ten letters of bio_rotation, the
openers of dyck. Only the differences between the scores of one head matter, so each curve is
shifted to a mean of zero.
"""

import itertools
from pathlib import Path

from configurator import choose_hardware, one_line_errors
from eval import load_run, measure
from lab import plot
from lab.analysis import cells, score_by_distance
from lab.options import make_parser
from model import Bifocal

STYLES = ('-', '--')  # of even and odd heads
COLORS = [*plot.COLORS.values(), *plot.MORE_COLORS][1:]


def name_of(model, layer, head):
    """Such as 'head 1, spectral', with the layer if the model has several."""
    config, attention = model.config, model.blocks[layer].attention
    name = f'head {head}' if config.n_layer == 1 else f'layer {layer}, head {head}'
    if isinstance(attention, Bifocal):
        geometric = config.n_head - len(attention.Omega)  # the first heads
        name += ', geometric' if head < geometric else ', spectral'
    return name


def draw_run(path, title, model, task, curves, group, shares):
    """Draw `curves`, nested lists (layers, heads, distances), and `shares`, {label: accuracy}."""
    plt = plot.pyplot()
    if plt is None:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), width_ratios=(2, 1))
    colors = itertools.cycle(COLORS)
    for layer, heads in enumerate(curves):
        for head, scores in enumerate(heads):
            known = {t: score for t, score in enumerate(scores) if score == score}
            mean = sum(known.values()) / max(1, len(known))
            left.plot(known.keys(), [score - mean for score in known.values()], linewidth=1.8,
                      linestyle=STYLES[head % 2], color=next(colors),
                      label=name_of(model, layer, head))
    if task.period:
        for distance in range(task.period, len(curves[0][0]), task.period):
            left.axvline(distance, color='black', linestyle=':', linewidth=1)
    left.set(xlabel='distance m - n (tokens)', ylabel='mean score, shifted')
    low, high = left.get_ylim()
    left.set_ylim(min(low, -1), max(high, 1))  # a smaller difference is next to none
    left.legend(loc='lower right', bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
    right.bar(shares.keys(), [100 * share for share in shares.values()], color=plot.COLORS['nope'])
    right.set(xlabel=group, ylabel='right answers (%)', ylim=(0, 105))
    right.axhline(100 * task.chance, color='black', linestyle=':')
    right.text(1, 100 * task.chance, ' chance', va='center', transform=right.get_yaxis_transform())
    figure.suptitle(plot.plain(title))
    plot.save(figure, path)


def main(arguments=None):
    parser = make_parser('lessons.look', __doc__)
    parser.add_argument('out_dir', nargs='+', type=Path, help='folder of a run of train.py')
    for folder in parser.parse_args(arguments).out_dir:
        model, task, checkpoint = load_run(folder, 'best.pt', 'cpu')
        T = checkpoint['options']['block_size']
        row, strings = measure(model, task, T, 256, choose_hardware('cpu', 'float32'))
        groups = cells(task, *strings) or {'all': {'targets': [row['accuracy']]}}
        group = max(groups, key=lambda group: len(groups[group]))
        shares = {label: accuracy for label, (accuracy, *_) in groups[group].items()}
        words = ', '.join(f'{label}: {100 * share:.0f} %' for label, share in shares.items())
        print(f'{folder}: loss {row["loss"]:.3f} nats, '
              f'{100 * row["accuracy"]:.0f} % right; by {group}: {words}')
        curves = score_by_distance(model, task, T, 64, 'cpu')
        title = f'{task}, {model.config.attention}'
        draw_run(folder / 'look.png', title, model, task, curves, group, shares)


if __name__ == '__main__':
    with one_line_errors():
        main()
