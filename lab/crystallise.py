"""
From a learned frequency to an exact one: what was learned at 64 tokens then holds at 512 and on.

    python -m lab.crystallise out/bio_rotation_spectral         # find the period: crystal.pt
    python -m lab.crystallise out/modulo_spectral --settle=500  # and train on with Omega frozen
    python eval.py out/modulo_spectral --checkpoint crystal.pt  # measure it

If Omega is a harmonic 2 pi j / P, with a whole number j, the pair is back after P tokens: a
training string shows all of its angles. Training brings Omega near to a harmonic and never onto it.
An error of 0.001 is 0.06 radians after 64 tokens, but 1 radian after 1024. The remedy needs no
longer string. For each q = 2, 3, ..., T / 2:

    Omega_q = 2 pi / q * round(Omega / (2 pi / q))     the nearest multiples of 2 pi / q
    L(q)    = loss of the model with Omega_q, in nats, on strings of the training length T

A wrong q moves a pair that matters, and the loss is large. The multiples of 2 pi / (2 P) include
those of 2 pi / P. So L is small at P, 2 P, 3 P, ... and nowhere else: a comb, whose first tooth is
the period. Nobody told the model P. One tooth alone, no better than guessing, is a "perhaps".

This is ours and in neither paper. study/crystal.md has more: why, the rule, what is near it.
"""

import copy
import dataclasses
import io
import json
import math
import re
import statistics
from pathlib import Path
from types import SimpleNamespace

import torch

import train
from checkpoint import machine, write_files, writing
from configurator import choose_device, configure, one_line_errors
from eval import count, evaluate
from lab import measure, plot
from lab.options import command, make_parser
from lab.plot import LEAST
from lab.table import SOLVED
from model import Spectral, UserError
from tasks import make_rng


def spectral(model):
    """The attentions with an Omega (heads, P), a list. UserError if there is none."""
    found = [block.attention for block in model.blocks if isinstance(block.attention, Spectral)]
    if not found:
        raise UserError(f'attention={model.config.attention}: it has no spectral heads, whose '
                        'frequencies could move; --heads=all moves those of rope')
    return found


def snap(Omega, q):
    """Omega (rows, P), radians per token, at its nearest multiples of 2 pi / q; these stay."""
    step = 2 * math.pi / q
    multiples = (Omega.detach().cpu().double() / step).round()  # mps has no float64
    return (multiples * step).to(Omega)


@torch.no_grad()
def crystallise(model, q):
    """
    Move every Omega of the model, in place, to its nearest multiple of 2 pi / q, and freeze it.
    Its config says so: `learn` loses 'frequency'. Returns the model. Raises UserError for a model
    without spectral heads.
    """
    for attention in spectral(model):
        attention.Omega.copy_(snap(attention.Omega, q)).requires_grad_(False)
    rest = [part for part in model.config.learn.split(',') if part != 'frequency']
    model.config.learn = ','.join(rest) or 'none'
    return model


@torch.no_grad()
def employ_idle_pairs(model, q):
    """
    For a crystal that has lost something, before it settles, in place. The pairs at frequency 0,
    which tell no position, get the harmonics 2 pi j / q, j = 0 to q // 2, one after the other.
    Every pair gets the amplitude 1. Returns the model.
    """
    for attention in spectral(model):
        attention.A.fill_(1)
        for row in attention.Omega:
            idle = (row == 0).nonzero().flatten()
            j = torch.arange(len(idle), device=row.device) % (q // 2 + 1)
            row[idle] = 2 * math.pi / q * j.to(row.dtype)
    return model


def measure_loss(model, x, y):
    """The loss in nats and the accuracy on x, y (n, T)."""
    return evaluate(model, x, y, max(1, 2**15 // x.size(1)))[:2]


def period_spectrum(model, x, y, candidates):
    """
    {q: (loss in nats, accuracy)} of a copy of the model crystallised at each candidate q, on x, y
    (n, T) int64.
    """
    return {q: measure_loss(crystallise(copy.deepcopy(model), q), x, y) for q in candidates}


def find_period(spectrum):
    """
    The p of a spectrum {q: (loss, accuracy)} whose multiples stand apart most; None where none do.

    Every multiple of p must have a smaller loss than every other q. The gap between the two groups
    is at least a factor of 1.1, and at least 5 / k spreads of the others. Here k is the number of
    multiples: luck seldom puts several first. A spread is 1.48 median distances from the median,
    in log loss: a standard deviation on a bell curve. Divisors of the period keep some harmonics,
    so they may pass, too, and so may multiples. The widest gap decides, and there all losses below
    0.01 nats count as 0.01.
    """
    height = {q: math.log(max(SOLVED, loss)) for q, (loss, _) in spectrum.items()}
    gaps = {}
    for p in sorted(spectrum):
        teeth = [value for q, value in height.items() if q % p == 0]
        others = [value for q, value in height.items() if q % p != 0]
        if others:
            middle = statistics.median(others)
            spread = 1.48 * statistics.median(abs(value - middle) for value in others)
            gap = min(others) - max(teeth)
            if gap >= max(math.log(1.1), 5 * spread / len(teeth)):
                gaps[p] = gap
    return max(gaps, key=gaps.get, default=None)


def is_sure(spectrum, period, chance):
    """
    Is a period of `find_period` more than luck? It has at least two teeth in the spectrum, or the
    loss of its tooth is below that of a guess among equals, -ln(chance).
    """
    teeth = [loss for q, (loss, _) in spectrum.items() if q % period == 0]
    return len(teeth) >= 2 or teeth[0] < -math.log(chance)


def lossless(spectrum, q, trained):
    """Is the loss of the crystal at q within 0.01 nats of the `trained` one?"""
    return spectrum[q][0] < trained + SOLVED


def choose(spectrum, period, trained):
    """
    The q to crystallise at: the smallest multiple of the period that is lossless. If there is
    none, the model must settle anyhow, and the period itself has the fewest angles.
    """
    free = [q for q in spectrum if q % period == 0 and lossless(spectrum, q, trained)]
    return min(free, default=period)


def draw_spectrum(axes, losses, period, trained, chance):
    """
    Losses {q: nats} against q. Multiples of the period are filled and numbered. A dotted line is
    the loss of a guess among equals.
    """
    losses = {q: max(LEAST, loss) for q, loss in losses.items()}
    teeth = {q: loss for q, loss in losses.items() if period and q % period == 0}
    axes.plot(losses.keys(), losses.values(), 'o-', color='#666666', linewidth=0.8,
              markerfacecolor='white')
    if teeth:
        axes.plot(teeth.keys(), teeth.values(), 'o', color=plot.COLORS['spectral'], markersize=9,
                  label='multiples of the period')
    for q, loss in teeth.items():
        axes.annotate(f'{q}', (q, loss), (0, -17), textcoords='offset points', ha='center',
                      bbox=dict(color='white', pad=0.5))  # the dotted line passes behind it
    axes.axhline(max(LEAST, trained), color='black', linestyle='--', linewidth=1,
                 label='as trained')
    axes.axhline(-math.log(chance), color='grey', linestyle=':', linewidth=1.5, label='a guess')
    axes.set(yscale='log', ylabel='loss (nats)',
             xlabel='q: every frequency is at its nearest multiple of 2π/q')
    axes.margins(y=0.15)


def write_spectrum(path, spectrum, period, trained, chance, title):
    """Write the figure of a spectrum."""
    plt = plot.pyplot()
    if plt is None:
        return
    from matplotlib import rc_context
    with rc_context({'font.size': 13}):  # readable at 800 pixels
        figure, axes = plt.subplots(figsize=(8, 4.5))
        losses = {q: loss for q, (loss, _) in spectrum.items()}
        draw_spectrum(axes, losses, period, trained, chance)
        axes.set_title(plot.plain(title))
        figure.legend(*axes.get_legend_handles_labels(), loc='outside lower center', ncols=3)
        plot.save(figure, path, dpi=100)


def settling(folder, checkpoint, options):
    """
    The options of train.py that settle FOLDER/start.pt in FOLDER/settled: those of the run, with a
    number of updates of its own. The model keeps the arguments of start.pt, where Omega is frozen.
    """
    values = {name: value for name, value in checkpoint['options'].items() if hasattr(train, name)}
    values.update(
        out_dir=f'{folder / "settled"}', init_from=f'{folder / "start.pt"}', overwrite=False,
        device=options.device, max_iters=options.settle, stop_loss=0.0,
        warmup_iters=min(50, options.settle // 10))
    settled, _ = configure(dict(vars(train)) | values, [])
    return SimpleNamespace(**settled)


def pack(state):
    """The bytes of a checkpoint."""
    torch.save(state, buffer := io.BytesIO())
    return buffer.getvalue()


def print_spectrum(spectrum, period, trained):
    """The loss at each q, with the multiples of the period marked."""
    print(f'{"q":>6s} {"loss":>10s} {"accuracy":>10s}')
    print(f'{"-":>6s} {trained:>10.5f}              as trained')
    for q, (loss, accuracy) in spectrum.items():
        tooth = f'   {q // period} x {period}' if period and q % period == 0 else ''
        print(f'{q:>6d} {loss:>10.5f} {100 * accuracy:>8.2f} %{tooth}')


def load(folder, heads, device):
    """The model whose frequencies move, its task, and its checkpoint."""
    found = measure.load(folder, 'best.pt', device, {})
    if heads == 'all':
        learned = re.sub(r'\b(rope|bifocal)\b', 'spectral', found[0].config.attention)
        fields = dict(attention=learned, phase_std=0.0)
        found = measure.load(folder, 'best.pt', device, fields)
    return found


def main(arguments=None):
    """Crystallise as the command line `arguments` (default: sys.argv) say."""
    parser = make_parser('lab.crystallise', __doc__)
    add = parser.add_argument
    add('out_dir', type=Path, help='folder of a run of train.py, whose best.pt is read')
    add('--heads', default='spectral', choices=('spectral', 'all'),
        help='all: fixed ones move, too')
    add('--n', type=count, default=512, help='validation strings (default: %(default)s)')
    add('--into', default='.', help='folder in out_dir to write to (default: out_dir itself); so '
        'two crystals of a run lie side by side')
    add('--period', type=int, help='crystallise at this one, whatever the spectrum says')
    add('--settle', type=count, help='updates with Omega frozen, in the folder settled')
    add('--device', default='auto', help='auto, cpu, cuda, mps')
    options = parser.parse_args(arguments)
    device = choose_device(options.device)
    into = options.out_dir / options.into
    model, task, checkpoint = load(options.out_dir, options.heads, device)
    T = checkpoint['options']['block_size']
    candidates = range(2, T // 2 + 1)
    if options.period is not None and options.period not in candidates:
        raise UserError(f'--period={options.period}: strings of {T} tokens can tell periods from '
                        f'2 to {T // 2}')

    # the period
    rng = make_rng('crystal', task.spec(without='path'), T)
    x, y = task.sample(rng, options.n, T, 'validation')
    x, y = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
    spectrum = period_spectrum(model, x, y, candidates)
    trained, _ = measure_loss(model, x, y)
    found = options.period or find_period(spectrum)
    period, said = found, f'period {found}'
    if not found:
        said = 'no period'
    elif not (options.period or is_sure(spectrum, found, task.chance)):
        period, said = None, f'perhaps period {found}; --period={found} takes it'
    q = period
    if period and not options.period:
        q = choose(spectrum, period, trained)
    print_spectrum(spectrum, found, trained)

    # what was found
    record = dict(task=str(task), attention=model.config.attention, heads=options.heads,
                  checkpoint='best.pt', iter=checkpoint['iter'], run=checkpoint['sessions'][0],
                  said=said, period=period, q=q, n=options.n, block_size=T, chance=task.chance,
                  trained=trained, spectrum=spectrum, **machine(device))
    with writing(into):
        into.mkdir(parents=True, exist_ok=True)
        for name in ('crystal.pt', 'start.pt'):  # of an earlier call
            (into / name).unlink(missing_ok=True)
    write_files(into, {'crystal.json': json.dumps(record).encode() + b'\n'})
    write_spectrum(into / 'crystal.png', spectrum, period, trained, task.chance,
                   f'{task}, {model.config.attention}: {said.partition(";")[0]}')

    # the crystal
    if period:
        fields = dataclasses.asdict(crystallise(model, q).config)
        state = {name: value for name, value in checkpoint.items()
                 if name not in ('optimizers', 'rng')}
        state['options'] = {name: fields.get(name, value)
                            for name, value in checkpoint['options'].items()}
        state.update(model=model.state_dict(), model_args=fields)
        write_files(into, {'crystal.pt': pack(state)})
        again = command('python', 'eval.py', options.out_dir, '--checkpoint',
                        Path(options.into, 'crystal.pt'))
        print(f'wrote {into / "crystal.pt"} at q={q}; now: {again}')
        if options.settle:
            if not lossless(spectrum, q, trained):
                state['model'] = employ_idle_pairs(model, q).state_dict()
            write_files(into, {'start.pt': pack(state)})
            train.main(settling(into, checkpoint, options))
    print(said)


if __name__ == '__main__':
    with one_line_errors():
        main()
