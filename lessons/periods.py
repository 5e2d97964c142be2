"""
Bet on the periods that RoPE will learn, by the contrast of its best pair. Then see the losses.

    python -m lessons.periods              # place your bets: the contrast alone
    python -m lessons.periods --reveal     # with the losses in periods.csv; draws out/lesson_2b.png
    python -m lessons.periods --heads out/lesson_2_period7    # what each head of a run finds

A run is `train.py lessons/strand.py --task=bio_rotation:period=P`. The loss is the best validation
loss, in nats.
"""

import csv
from pathlib import Path

import torch
import torch.nn.functional as F

from configurator import one_line_errors
from eval import load_run
from lab import plot
from lab.analysis import attention_scores
from lab.options import make_parser
from lessons.check import contrast
from lessons.rope_by_hand import T, frequencies, turns
from model import UserError
from tasks import make_rng

PERIODS = range(5, 15)
RESULTS = Path(__file__).resolve().parent / 'periods.csv'


def best_contrast(period):
    """The greatest contrast of a pair."""
    return max(contrast(theta, period, turns(period)) for theta in frequencies())


def one_head(period):
    """
    The share of blanks in which one head puts the right letter first, with the amplitude and phase
    of each pair that make its loss smallest. That is a convex problem. A larger share, at a larger
    loss, is possible.
    """
    theta = torch.tensor(frequencies(), dtype=torch.float64)
    blank = torch.arange(1 + period, T)
    letter = torch.arange(1, 1 + period)
    right = (blank - 1 - period) % period  # (blanks,)
    angle = (blank[:, None] - letter)[..., None] * theta  # (blanks, letters, P)
    waves = torch.cat([angle.cos(), angle.sin()], dim=-1)
    r = torch.zeros(waves.size(-1), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([r], max_iter=300, line_search_fn='strong_wolfe')

    def loss():
        optimizer.zero_grad()
        # without the second term, r could grow for ever
        total = F.cross_entropy(waves @ r, right) + 1e-5 * r.square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    return ((waves @ r).argmax(dim=1) == right).double().mean().item()


def losses():
    """The losses (nats) in periods.csv: {period: loss}."""
    with RESULTS.open(encoding='utf-8') as file:
        return {int(row['period']): float(row['loss']) for row in csv.DictReader(file)}


@torch.no_grad()
def heads_right(folder):
    """
    Of the blanks in strings of a run with one layer: the share where the right letter has the
    greatest weight of the letters, for each head; where it has it in any head; where the model's
    answer is right.
    """
    model, task, _ = load_run(folder, 'best.pt', 'cpu')
    if task.name != 'bio_rotation' or len(model.blocks) > 1:
        raise UserError(f'--heads {folder}: must be a run of bio_rotation with one layer, not of '
                        f'{task} with {len(model.blocks)}')
    x, y = map(torch.from_numpy, task.sample(make_rng('test', 'heads'), 256, T))
    block = model.blocks[0]
    scores = attention_scores(block.attention, block.norm_1(model.embedding(x)))
    blank = torch.arange(1 + task.period, T)
    letters = scores[:, :, blank, 1:1 + task.period]  # (B, nh, blanks, letters)
    first = letters.argmax(dim=-1) == (blank - 1 - task.period) % task.period
    answers = (model(x)[0].argmax(dim=-1) == y)[:, blank]
    in_any = first.any(dim=1).double().mean().item()
    return first.double().mean(dim=(0, 2)).tolist(), in_any, answers.double().mean().item()


def draw_losses(path, found):
    """The loss by contrast: a point for each period."""
    plt = plot.pyplot()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for period in PERIODS:
        x, y = best_contrast(period), found[period]
        axes.plot(x, y, 's', color=plot.COLORS['rope'])
        axes.annotate(f'{period}', (x, y), xytext=(5, 3 if period < 9 else -10),
                      textcoords='offset points')
    axes.set(xlabel='contrast of the best pair', ylabel='loss after 300 updates (nats)',
             yscale='log', ylim=(0.003, 1), title='a number is the period')
    axes.yaxis.set_major_formatter('{x:g}')
    plot.save(figure, path)


def main(arguments=None):
    parser = make_parser('lessons.periods', __doc__)
    parser.add_argument('--reveal', action='store_true', help='show the losses')
    parser.add_argument('--heads', metavar='FOLDER', help='look into the heads of a run')
    options = parser.parse_args(arguments)
    if options.heads:
        heads, any_head, model = heads_right(options.heads)
        for head, share in enumerate(heads):
            print(f'the right letter comes first in head {head}: '
                  f'in {100 * share:.0f} % of the blanks')
        print(f'in at least one head: in {100 * any_head:.0f} %\n'
              f'the answer of the model is right: in {100 * model:.0f} %')
        return
    if not options.reveal:
        print('period  contrast')
        for period in PERIODS:
            print(f'{period:>6d} {best_contrast(period):>9.2f}')
        return
    found = losses()
    print('| period | contrast | one head, fitted (% right) | loss |\n|---|---|---|---|')
    for period in PERIODS:
        print(f'| {period} | {best_contrast(period):.2f} | {100 * one_head(period):.0f} '
              f'| {found[period]:.3f} |')
    draw_losses(Path('out/lesson_2b.png'), found)


if __name__ == '__main__':
    with one_line_errors():
        main()
