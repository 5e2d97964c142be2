"""
Watch a trained model answer, its mistakes marked; or let it continue a text.

    python sample.py out/dyck3_spectral                    # fresh strings of its task
    python sample.py out/dyck3_spectral --prompt='([{()'   # it closes the brackets that are open
    python sample.py out/text_rope --prompt='def main(' --temperature=0.8
"""

from pathlib import Path

import numpy as np
import torch

from configurator import one_line_errors
from device import this_process
from eval import count, load_run, make_parser
from model import UserError, sample_token
from tasks import make_rng

if Path(__file__).with_name('lab').joinpath('__init__.py').exists():
    import lab  # noqa: F401  it adds attentions, frequencies and tasks


def answer(model, task, x, **sampling):
    """The right answers to x (T,), and the model's: a row for each, -1 where none is asked."""
    ids = torch.from_numpy(x)[None].to(model.lm_head.weight.device)  # (1, T)
    if task.completion:  # it ends the string
        ending = task.completion(x)
        truth = np.concatenate([np.full_like(x, -1), ending])
        output = model.generate(ids, len(ending), **sampling)[0]
    else:  # it answers at each position
        truth = task.targets(x[None])[0]
        output = sample_token(model(ids)[0][0], **sampling)  # (T,)
    return truth, np.where(truth == -1, -1, output.cpu().numpy())


def show(task, x, truth, output):
    """Print the ids of an input, of the right answers and of the model's, and mark mistakes."""
    width = max(map(len, task.symbols))
    gap = ' ' if width > 1 else ''
    names = dict(enumerate(task.symbols)) | {-1: ''}
    rows = {name: [names.get(i, '?') for i in ids.tolist()]
            for name, ids in dict(input=x, truth=truth, model=output).items()}
    if (truth != output).any():
        rows[''] = ['!' if wrong else '' for wrong in truth != output]
    for name, cells in rows.items():
        line = gap.join(cell.ljust(width) for cell in cells)
        print(f'{name:>7s}  {line}'.rstrip())
    print()


def cut(task, x, rng):
    """The start of a string x (T,), cut at a random place where something is still missing."""
    places = [t for t in range(2, len(x) + 1) if len(task.completion(x[:t])) > 0]
    return x[:rng.choice(places)]


@torch.no_grad()
def main(arguments=None):
    """Answer, or continue a text, as the command line `arguments` (default: sys.argv) say."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add('out_dir', type=Path, help='folder of a run of train.py')
    add('--prompt', help='a string of the task, instead of fresh ones')
    add('--n', type=count, default=5, help='how many fresh strings (default: %(default)s)')
    add('--length', type=count,
        help='tokens of a string, or of the continuation of a text (default: as trained)')
    add('--temperature', type=float, default=0.0, help='0, the default, takes the likeliest symbol')
    add('--top_k', type=count, help='sample from the k likeliest symbols only')
    add('--seed', type=int, default=0, help='of strings and answers (default: %(default)s)')
    options = parser.parse_args(arguments)
    if not 0 <= options.temperature < float('inf'):
        parser.error('--temperature must be 0 or positive')
    process = this_process(options.device, options.dtype)
    model, task, checkpoint = load_run(
        options.out_dir, options.checkpoint, process.device, options.task)
    length = options.length or checkpoint['options']['block_size']
    rng = make_rng(options.seed, 'sample')
    generator = torch.Generator(process.device).manual_seed(options.seed)
    sampling = dict(temperature=options.temperature, top_k=options.top_k, generator=generator)

    if options.prompt is not None:
        inputs = [task.encode(task.bos + options.prompt.removeprefix(task.bos))]
        if len(inputs[0]) == 0:
            raise UserError('--prompt is empty')
    else:
        inputs = list(task.sample(rng, options.n, length, 'test')[0])
        if task.completion:
            inputs = [cut(task, x, rng) for x in inputs]
    correct = 0
    for x in inputs:
        with process.autocast():
            if task.open_ended:
                ids = torch.from_numpy(x)[None].to(process.device)
                output = model.generate(ids, length, **sampling)[0].tolist()
                start, end = task.decode(x), task.decode(output[len(x):])
                print(f'{start}[{end}]\n')
                continue
            truth, output = answer(model, task, x, **sampling)
        if (truth == -1).all():
            raise UserError(f'{task.decode(x)!r} asks nothing: give a string such as '
                            f'{task.decode(task.sample(rng, 1, length)[0][0])!r}')
        show(task, x, truth, output)
        correct += (truth == output).all()
    if not task.open_ended:
        print(f'{task}, {model.config.attention}: {correct} of {len(inputs)} are right')


if __name__ == '__main__':
    with one_line_errors():
        main()
