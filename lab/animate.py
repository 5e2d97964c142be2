"""
A film of learned frequencies: each is a hand of a clock, at the angle m Omega + Phi after m tokens.

    python -m lab.animate out/bio_rotation_spectral    # animation.html

At first the run trains, and m stays the period P of its task. Then the trained hands turn from
token to token. The ticks of the clock are the multiples of 2 pi / P. A locked frequency is on a
harmonic 2 pi j / P: its hand is thick, and comes back after every P tokens. The length of a hand is
the amplitude A. The page is matplotlib's; the signs on its buttons come from the network.
"""

from pathlib import Path

import numpy as np

from checkpoint import read_log, write_files
from configurator import one_line_errors
from lab import plot
from lab.analysis import nearest_harmonic, read_learned
from lab.options import make_parser
from lab.runs import find_period, read_json
from model import UserError

MOST = 40  # evaluations in a film
TICKS = 12  # of the clock of a task without a period


def read_run(folder):
    """
    The task of a run, the updates at its evaluations, and Omega, A and Phi of all heads, each
    (evaluations, pairs). Raises UserError if there is nothing to show.
    """
    task = read_json(folder / 'config.json')['task']
    lines = [line for line in read_log(folder) if 'val_loss' in line]
    lines = lines[::-1][::1 + len(lines) // MOST][::-1]  # the last one among them
    learned = [read_learned(lines, name) for name in ('Omega', 'A', 'Phi')]
    if not all(learned):
        raise UserError(f'{folder}: its log has no learned frequencies: choose a run with spectral '
                        'or bifocal that has validated')
    hands = [np.concatenate([layer.reshape(len(lines), -1) for layer in layers], axis=1)
             for layers in learned]
    return task, [line['iter'] for line in lines], hands


def film(task, updates, hands):
    """The figure, a function that draws a frame (evaluation, m) into it, and the frames."""
    from matplotlib.figure import Figure
    period = find_period(task)
    ticks = period or TICKS
    figure = Figure(figsize=(4.5, 4.5), dpi=80, layout='constrained')
    clock = figure.add_subplot(projection='polar')

    def draw(frame):
        evaluation, m = frame
        clock.clear()
        clock.set(theta_zero_location='N', theta_direction=-1, yticklabels=[],
                  ylim=(0, np.abs(hands[1]).max()))
        clock.set_xticks(2 * np.pi * np.arange(ticks) / ticks, range(ticks))
        for Omega, A, Phi in zip(*(values[evaluation] for values in hands)):
            color, width = plot.COLORS['nope'], 1
            if period and nearest_harmonic(Omega, period)['locked']:
                color, width = plot.COLORS['spectral'], 4
            clock.plot([0, m * Omega + Phi], [0, abs(A)], color=color, linewidth=width)
        figure.suptitle(plot.plain(f'{task}: update {updates[evaluation]}, token {m}'))

    trained = len(updates) - 1
    frames = [(evaluation, ticks) for evaluation in range(trained)]
    frames += [(trained, m) for m in range(ticks, 3 * ticks + 1)]
    return figure, draw, frames


def main(arguments=None):
    """Film the run that the command line `arguments` (default: sys.argv) name."""
    parser = make_parser('lab.animate', __doc__)
    parser.add_argument('out_dir', type=Path, help='folder of a run with learned frequencies')
    folder = parser.parse_args(arguments).out_dir
    run = read_run(folder)
    if plot.pyplot():
        from matplotlib.animation import FuncAnimation
        page = FuncAnimation(*film(*run), interval=250).to_jshtml()
        write_files(folder, {'animation.html': page.encode()})
        print(f'wrote {folder}/animation.html; open it in a browser')


if __name__ == '__main__':
    with one_line_errors():
        main()
