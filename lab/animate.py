"""
A moving picture of a run with learned frequencies: each is a hand of a clock that has turned by m Omega after m tokens.

    python -m lab.animate out/bio_rotation_spectral          # animation.html: one page, which needs no network
    python -m lab.animate out/bio_rotation_spectral --gif    # also animation.gif; --still: animation.png

The ticks of the clock are the multiples of 2 pi / P, if the task has a period P. A locked frequency is near a harmonic
2 pi j / P, so its hand points close to a tick for every m. The length of a hand is the amplitude A.
"""

import argparse
import json
import math
from pathlib import Path

from configurator import one_line_errors
from eval import LOCKED, read_log
from lab.figures import plot_losses
from lab.results import find_task

TEMPLATE = Path(__file__).with_suffix('.html')
LOCKED_STYLE = dict(color='#D55E00', linewidth=4, solid_capstyle='round', zorder=3)
GRID = dict(left=0.01, right=0.97, bottom=0.15, top=0.84, wspace=0.2, width_ratios=(1.25, 1))
OTHER_STYLE = dict(color='#777777', linewidth=1.1, linestyle=(0, (4, 2)), zorder=2)


def read_run(folder):
    """
    What the page shows of the run in `folder`: its task, P, T, and of every validation the iteration, the loss (nats),
    Omega, A and Phi (layers, heads, pairs). A validation with a NaN or an infinity is left out. Raises
    FileNotFoundError or ValueError if there is nothing to show.
    """
    for name in ('config.json', 'log.jsonl'):
        if not (folder / name).is_file():
            raise FileNotFoundError(f'{folder}/{name} does not exist: OUT_DIR must be the folder of a run of train.py')
    try:
        options = json.loads((folder / 'config.json').read_text())['options']
        lines = [line for line in read_log(folder) if 'val_loss' in line and is_finite(line)]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f'{folder}: config.json or log.jsonl is not of train.py: {error}') from None
    if not lines:
        raise ValueError(f'{folder}/log.jsonl has no validation: let train.py run until its first one')
    if not lines[0].get('Omega'):
        raise ValueError(f'{folder}: attention={options["attention"]!r} has no learned frequencies: OUT_DIR must be a '
                         'run with attention spectral or bifocal')
    run = dict(task=options['task'], attention=options['attention'],
               period=getattr(find_task(options['task']), 'period', None),
               block_size=options['block_size'], locked=LOCKED, iterations=[line['iter'] for line in lines],
               losses=[line['val_loss'] for line in lines],
               **{name: [line[name] for line in lines] for name in ('Omega', 'A', 'Phi')})
    heads = [(layer, head) for layer, rows in enumerate(run['Omega'][-1]) for head in range(len(rows))]
    run['shown'] = max(heads, key=lambda place: sum(map(bool, harmonics(run, -1, *place))))
    return run


def is_finite(line):
    """Whether the loss, Omega, A and Phi of a line of the log are finite; JSON for a browser has no other numbers."""
    text = json.dumps([line.get(name) for name in ('val_loss', 'Omega', 'A', 'Phi')])
    return 'NaN' not in text and 'Infinity' not in text


def harmonics(run, validation, layer, head):
    """Of each pair the harmonic j that it is locked onto, or 0."""
    P, found = run['period'], []
    for omega in run['Omega'][validation][layer][head]:
        j = round(abs(omega) * P / (2 * math.pi)) if P else 0
        near = P and abs(abs(omega) - 2 * math.pi * j / P) < run['locked']
        found.append(j if near and j % P else 0)  # a whole turn a token is no turn
    return found


def page(run):
    """The HTML page of a run. In a script, JSON must not have a '<': '</script>' would end it."""
    text = json.dumps(run, allow_nan=False)
    for sign in '<>&':
        text = text.replace(sign, f'\\u{ord(sign):04x}')
    return TEMPLATE.read_text(encoding='utf-8').replace('>RUN_AS_JSON<', f'>{text}<')


def moments(run):
    """(validation, m) of each picture of the GIF: the training at m = P, then 20 more tokens at the last validation."""
    last, m = len(run['iterations']) - 1, run['period'] or 10
    validations = sorted({round(last * (frame / 24) ** 2) for frame in range(25)})  # frequencies move early
    return [(validation, m) for validation in validations] + [(last, m + more) for more in range(1, 21)]


def draw(figure, run, validation, m):
    """One picture on the matplotlib figure: the clock of the head with the most locked pairs, and the loss."""
    (layer, head), P = run['shown'], run['period']
    figure.clear()
    clock, loss = figure.subplots(1, 2, gridspec_kw=GRID)
    circle = [2 * math.pi * i / 180 for i in range(181)]
    clock.plot([math.sin(a) for a in circle], [math.cos(a) for a in circle], color='black', linewidth=1)
    for k in range(P or 0):
        x, y = math.sin(2 * math.pi * k / P), math.cos(2 * math.pi * k / P)
        clock.plot([0.95 * x, 1.04 * x], [0.95 * y, 1.04 * y], color='black', linewidth=1)
        if P <= 24:
            clock.text(1.15 * x, 1.15 * y, k, ha='center', va='center', fontsize=8)
    longest = max(abs(a) for layers in run['A'] for a in layers[layer][head]) or 1
    pairs = zip(run['Omega'][validation][layer][head], run['A'][validation][layer][head],
                harmonics(run, validation, layer, head))
    for omega, a, j in pairs:
        x, y = (0.9 * abs(a) / longest * turned for turned in (math.sin(m * omega), math.cos(m * omega)))
        clock.plot([0, x], [0, y], **(LOCKED_STYLE if j else OTHER_STYLE))
    clock.set(aspect='equal', xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
    clock.set_title(f'layer {layer}, head {head}: hands at m Ω, token m = {m}', fontsize=9)
    clock.axis('off')
    here = run['iterations'][validation]
    plot_losses(loss, run['iterations'], run['losses'], 'black', None, linewidth=1.5)
    plot_losses(loss, [here], [run['losses'][validation]], '#0072B2', None, marker='o')
    loss.axvline(here, color='#0072B2', linestyle=':', linewidth=1.5)
    loss.tick_params(which='both', labelsize=8)
    loss.set(xlabel='', ylabel='')
    loss.set_title(f'validation loss (nats), iteration {here}', fontsize=9)
    figure.suptitle(f'{run["task"]}, {run["attention"]}: learned frequencies as the hands of a clock', fontsize=10)
    held = f'thick: locked, Ω within {run["locked"]:g} of 2πj/{P}' if P else 'the task has no period: no ticks'
    figure.supxlabel(f'{held}; length: amplitude A', fontsize=9)


def write_pictures(folder, run, gif, still):
    """animation.gif and animation.png, where wanted. Raises ImportError, which says what to install."""
    try:
        from matplotlib.animation import FuncAnimation, PillowWriter
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError('--gif and --still need matplotlib: pip install matplotlib') from None
    figure = Figure(figsize=(5.8, 3.3))
    frames = moments(run)
    if gif:
        moving = FuncAnimation(figure, lambda frame: draw(figure, run, *frame), frames, init_func=lambda: None)
        moving.save(folder / 'animation.gif', writer=PillowWriter(fps=4), dpi=100)
        print(f'wrote {folder}/animation.gif')
    if still:
        draw(figure, run, frames[-1][0], frames[0][1] + 3)
        figure.savefig(folder / 'animation.png', dpi=150)
        print(f'wrote {folder}/animation.png')


def main(arguments=None):
    """Write what the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(prog='python -m lab.animate', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out_dir', type=Path, metavar='OUT_DIR', help='folder of a run with learned frequencies')
    parser.add_argument('--gif', action='store_true', help='also write animation.gif, of the head that locks most')
    parser.add_argument('--still', action='store_true', help='also write animation.png, its end as a still')
    options = parser.parse_args(arguments)
    run = read_run(options.out_dir)
    (options.out_dir / 'animation.html').write_text(page(run), encoding='utf-8')
    print(f'wrote {options.out_dir}/animation.html; open it in a browser')
    if options.gif or options.still:
        write_pictures(options.out_dir, run, options.gif, options.still)


if __name__ == '__main__':
    with one_line_errors():
        main()
