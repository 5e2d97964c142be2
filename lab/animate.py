"""
A moving picture of learned frequencies: each is a hand of a clock, at the angle m Omega + Phi after
m tokens.

    python -m lab.animate out/bio_rotation_spectral          # animation.html: one page, no network
    python -m lab.animate out/bio_rotation_spectral --gif    # also animation.gif
    python -m lab.animate out/bio_rotation_spectral --still  # also animation.png

The ticks of the clock are the multiples of 2 pi / P, if the task has a period P. A locked frequency
is on a harmonic 2 pi j / P, so its hand comes back after every P tokens. One that is near holds for
the training length: till then, the error of its angle is less than half a tick. The length of a
hand is the amplitude A. The look is that of lessons/phase.html.
"""

import io
import json
import math
import tempfile
from pathlib import Path

import numpy as np

from checkpoint import read_log, write_files
from configurator import one_line_errors
from lab.analysis import LOCKED, is_near, nearest_harmonic, read_learned
from lab.options import make_parser
from lab.plot import plain, plot_losses, pyplot
from lab.runs import find_period
from model import UserError

TEMPLATE = Path(__file__).with_suffix('.html')
LEARNED = ('Omega', 'A', 'Phi')
MOST_TICKS = 120  # more would be a ring
STYLES = dict(locked=dict(color='#BD4D06', linewidth=4, solid_capstyle='round', zorder=3),
              near=dict(color='#BD4D06', linewidth=1.6, zorder=2.5),
              hand=dict(color='#5B606A', linewidth=1.1, linestyle=(0, (4, 2)), zorder=2))
GRID = dict(left=0.01, right=0.97, bottom=0.15, top=0.84, wspace=0.2, width_ratios=(1.25, 1))


def read_run(folder):
    """
    What the page shows of a run: its task, P, T, and of each evaluation the iteration, the loss
    (nats), and for each layer Omega, A and Phi (heads, pairs), without heads where it learns none.
    Evaluations that are not finite are left out. Raises UserError if there is nothing to show.
    """
    try:
        config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise UserError(f'{folder} has no config.json of train.py ({error})') from None
    options, task = config['options'], config['task']
    lines = [line for line in read_log(folder) if 'val_loss' in line]
    if lines and not all(name in lines[0] for name in LEARNED):
        raise UserError(f'{folder}: attention={options["attention"]} has no learned frequencies: '
                        'choose a run with spectral or bifocal')
    lines = [line for line in lines if is_finite(line)]
    if not lines:
        raise UserError(f'{folder}/log.jsonl has no evaluation: let train.py run until its first')
    run = dict(
        task=task, attention=options['attention'], block_size=options['block_size'], locked=LOCKED,
        period=find_period(task),
        iterations=[line['iter'] for line in lines], losses=[line['val_loss'] for line in lines],
        heads=[name_heads(config, i, len(layer)) for i, layer in enumerate(lines[0]['Omega'])])
    for name in LEARNED:
        run[name] = [line[name] for line in lines]
    places = [(layer, head) for layer, rows in enumerate(run['Omega'][-1])
              for head in range(len(rows))]
    run['shown'] = max(places, key=lambda place: kinds(run, -1, *place).count('locked'))
    return run


def is_finite(line):
    """Whether all that an evaluation of the log has to show is finite."""
    layers = [layer for name in LEARNED for layer in read_learned([line], name)]
    return math.isfinite(line['val_loss']) and all(np.isfinite(layer).all() for layer in layers)


def name_heads(config, layer, rows):
    """Names of the `rows` of Omega in a layer: heads of the model, of which they are the last."""
    names = config['options']['attention'].split(',')
    if names[layer % len(names)] == 'spectral_shared':
        return ['all spectral heads']
    first = config.get('model_args', {}).get('n_kv_head', rows) - rows
    return [f'head {first + i}' for i in range(rows)]


def kinds(run, evaluation, layer, head):
    """Of each pair 'locked', 'near' or 'hand', as in animation.html."""
    return [kind(omega, run['period'], run['block_size'])
            for omega in run['Omega'][evaluation][layer][head]]


def kind(omega, period, block_size):
    """Of one frequency (radians per token): does it stand on a harmonic, near one, or neither?"""
    if not period:
        return 'hand'
    nearest = nearest_harmonic(omega, period)
    if nearest['locked']:
        return 'locked'
    return 'near' if is_near(nearest, period, block_size) else 'hand'


def page(run):
    """The HTML page of a run. In a script, JSON must not have a '<': '</script>' would end it."""
    text = json.dumps(run, allow_nan=False)
    for sign in '<>&':
        text = text.replace(sign, f'\\u{ord(sign):04x}')
    template = TEMPLATE.read_text(encoding='utf-8')
    return template.replace('>RUN_AS_JSON<', f'>{text}<')


def moments(run):
    """
    (evaluation, m) of each picture of the GIF: the training at m = P, then 20 more tokens at the
    last evaluation.
    """
    last, m = len(run['iterations']) - 1, run['period'] or 10
    # frequencies move early
    evaluations = sorted({round(last * (frame / 24) ** 2) for frame in range(25)})
    training = [(evaluation, m) for evaluation in evaluations]
    return training + [(last, m + more) for more in range(1, 21)]


def draw(figure, run, evaluation, m):
    """One picture on a matplotlib figure: the clock of the shown head, and the loss."""
    figure.clear()
    clock, loss = figure.subplots(1, 2, gridspec_kw=GRID)
    draw_clock(clock, run, evaluation, m)
    here = run['iterations'][evaluation]
    plot_losses(loss, run['iterations'], run['losses'], 'black', None, linewidth=1.5)
    plot_losses(loss, [here], [run['losses'][evaluation]], '#0B62A4', None, marker='o')
    loss.axvline(here, color='#0B62A4', linestyle=':', linewidth=1.5)
    loss.tick_params(which='both', labelsize=8)
    loss.set(xlabel='', ylabel='')
    loss.set_title(f'validation loss (nats), iteration {here}', fontsize=9)
    title = f'{run["task"]}, {run["attention"]}: learned frequencies as the hands of a clock'
    figure.suptitle(plain(title), fontsize=10)
    note = 'the task has no period: no ticks'
    if run['period']:
        note = (f'thick: locked, Ω within {run["locked"]:g} of 2πj/{run["period"]}; '
                f'thin orange: near, for {run["block_size"]} tokens')
    figure.supxlabel(f'{note}; number: pair', fontsize=8)


def draw_clock(axes, run, evaluation, m):
    """The hands of the shown head at position m on a clock face with the ticks of the period."""
    layer, head = run['shown']
    P = run['period']
    circle = np.linspace(0, 2 * math.pi, 181)
    axes.plot(np.sin(circle), np.cos(circle), color='black', linewidth=1)
    for k in range(P if P and P <= MOST_TICKS else 0):
        x, y = math.sin(2 * math.pi * k / P), math.cos(2 * math.pi * k / P)
        axes.plot([0.95 * x, 1.04 * x], [0.95 * y, 1.04 * y], color='black', linewidth=1)
        if P <= 24:
            axes.text(1.15 * x, 1.15 * y, k, ha='center', va='center', fontsize=8)
    longest = max(abs(a) for layers in run['A'] for a in layers[layer][head]) or 1
    values = [run[name][evaluation][layer][head] for name in LEARNED]
    pairs = zip(*values, kinds(run, evaluation, layer, head), strict=True)
    for pair, (omega, a, phi, style) in enumerate(pairs):
        length = 0.85 * abs(a) / longest
        x, y = math.sin(m * omega + phi), math.cos(m * omega + phi)
        axes.plot([0, length * x], [0, length * y], **STYLES[style])
        axes.text((length + 0.06) * x, (length + 0.06) * y, pair, ha='center', va='center',
                  fontsize=6, color='#555555')
    axes.set(aspect='equal', xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
    title = f'layer {layer}, {run["heads"][layer][head]}: m Ω + Φ at token m = {m}'
    axes.set_title(title, fontsize=9)
    axes.axis('off')


def write_pictures(folder, run, gif, still):
    """animation.gif and animation.png, where wanted, if matplotlib is there."""
    plt = pyplot()
    if plt is None:
        return
    from matplotlib.animation import FuncAnimation, PillowWriter
    figure = plt.figure(figsize=(5.8, 3.3), layout='none')
    frames = moments(run)
    files = {}
    if gif:
        moving = FuncAnimation(figure, lambda frame: draw(figure, run, *frame), frames,
                               init_func=lambda: None)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / 'animation.gif'
            moving.save(path, writer=PillowWriter(fps=4), dpi=100)
            files[path.name] = path.read_bytes()
    if still:
        draw(figure, run, frames[-1][0], frames[0][1] + 3)
        figure.savefig(png := io.BytesIO(), dpi=150)
        files['animation.png'] = png.getvalue()
    plt.close(figure)
    write_files(folder, files)
    for name in files:
        print(f'wrote {folder}/{name}')


def main(arguments=None):
    """Write what the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('lab.animate', __doc__)
    add = parser.add_argument
    add('out_dir', type=Path, help='folder of a run with learned frequencies')
    add('--gif', action='store_true', help='also animation.gif, of the head that locks most')
    add('--still', action='store_true', help='also animation.png, its end as a still')
    options = parser.parse_args(arguments)
    run = read_run(options.out_dir)
    write_files(options.out_dir, {'animation.html': page(run).encode()})
    print(f'wrote {options.out_dir}/animation.html; open it in a browser')
    if options.gif or options.still:
        write_pictures(options.out_dir, run, options.gif, options.still)


if __name__ == '__main__':
    with one_line_errors():
        main()
