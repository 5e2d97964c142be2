"""
A moving picture of learned frequencies: each is a hand of a clock, at the angle m Omega + Phi after
m tokens.

    python -m lab.animate out/bio_rotation_spectral    # animation.html: one page, no network

The ticks of the clock are the multiples of 2 pi / P, if the task has a period P. A locked frequency
is on a harmonic 2 pi j / P, so its hand comes back after every P tokens. One that is near holds for
the training length: till then, the error of its angle is less than half a tick. The length of a
hand is the amplitude A. The look is that of lessons/phase.html.
"""

import json
import math
from pathlib import Path

import numpy as np

from checkpoint import read_log, write_files
from configurator import one_line_errors
from lab.analysis import LOCKED, nearest_harmonic, read_learned
from lab.options import make_parser
from lab.runs import find_period, read_json, reading
from model import UserError

TEMPLATE = Path(__file__).with_suffix('.html')
LEARNED = ('Omega', 'A', 'Phi')


def read_run(folder):
    """
    What the page shows of a run: its task, P, T, and of each evaluation the iteration, the loss
    (nats), and for each layer Omega, A and Phi (heads, pairs), without heads where it learns none.
    Evaluations that are not finite are left out. Raises UserError if there is nothing to show.
    """
    with reading(folder):
        config = read_json(folder / 'config.json')
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
    run['shown'] = max(places, key=lambda place: count_locked(run, *place))
    return run


def count_locked(run, layer, head):
    """How many pairs of a head stand on a harmonic at the last evaluation."""
    omegas = run['Omega'][-1][layer][head] if run['period'] else []
    return sum(nearest_harmonic(omega, run['period'])['locked'] for omega in omegas)


def is_finite(line):
    """Whether all that an evaluation of the log has to show is finite."""
    layers = [layer for name in LEARNED for layer in read_learned([line], name)]
    return math.isfinite(line['val_loss']) and all(np.isfinite(layer).all() for layer in layers)


def name_heads(config, layer, rows):
    """Names of the `rows` of Omega in a layer: heads of the model, of which they are the last."""
    names = config['options']['attention'].split(',')
    if names[layer % len(names)] == 'spectral_shared':
        return ['all spectral heads']
    first = config.get('model_args', {}).get('n_head', rows) - rows
    return [f'head {first + i}' for i in range(rows)]


def page(run):
    """The HTML page of a run. In a script, JSON must not have a '<': '</script>' would end it."""
    text = json.dumps(run, allow_nan=False)
    for sign in '<>&':
        text = text.replace(sign, f'\\u{ord(sign):04x}')
    template = TEMPLATE.read_text(encoding='utf-8')
    return template.replace('>RUN_AS_JSON<', f'>{text}<')


def main(arguments=None):
    """Write what the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('lab.animate', __doc__)
    parser.add_argument('out_dir', type=Path, help='folder of a run with learned frequencies')
    options = parser.parse_args(arguments)
    run = read_run(options.out_dir)
    write_files(options.out_dir, {'animation.html': page(run).encode()})
    print(f'wrote {options.out_dir}/animation.html; open it in a browser')


if __name__ == '__main__':
    with one_line_errors():
        main()
