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

from checkpoint import write_files
from configurator import one_line_errors
from lab import plot
from lab.analysis import nearest_harmonic, read_learned
from lab.options import make_parser
from lab.runs import find_period, read_json, read_validations
from model import UserError

MOST = 40  # validations in a film
TICKS = 12  # of the clock of a task without a period


def read_run(folder):
    """
    The task of a run, the updates at its validations, and Omega, A and Phi of all heads, each
    (validations, pairs). Raises UserError if there is nothing to show.
    """
    task = read_json(folder / 'config.json')['task']
    lines = read_validations(folder)
    lines = lines[::-1][::1 + len(lines) // MOST][::-1]  # the last one among them
    hands = [read_learned(lines, name) for name in ('Omega', 'A', 'Phi')]
    if not all(values.size for values in hands):
        raise UserError(f'{folder}: its log has no learned frequencies: choose a run with spectral '
                        'or bifocal that has validated')
    return task, [line['iter'] for line in lines], hands


def film(task, updates, hands):
    """The figure, a function that draws a frame (validation, m) into it, and the frames."""
    from matplotlib.figure import Figure
    period = find_period(task)
    ticks = period or TICKS
    figure = Figure(figsize=(4.5, 4.5), dpi=80, layout='constrained')
    clock = figure.add_subplot(projection='polar')

    def draw(frame):
        validation, m = frame
        clock.clear()
        clock.set(theta_zero_location='N', theta_direction=-1, yticklabels=[],
                  ylim=(0, np.abs(hands[1]).max()))
        clock.set_xticks(2 * np.pi * np.arange(ticks) / ticks, range(ticks))
        for Omega, A, Phi in zip(*(values[validation] for values in hands)):
            color, width = plot.COLORS['nope'], 1
            if period and nearest_harmonic(Omega, period)['locked']:
                color, width = plot.COLORS['spectral'], 4
            clock.plot([0, m * Omega + Phi], [0, abs(A)], color=color, linewidth=width)
        figure.suptitle(plot.plain(f'{task}: update {updates[validation]}, token {m}'))

    trained = len(updates) - 1
    frames = [(validation, ticks) for validation in range(trained)]
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
