"""
Watch a trained model answer, its mistakes marked; or let it go on with a text.

    python sample.py out/dyck3_spectral                          # fresh strings, answered at every position
    python sample.py out/dyck3_spectral --prompt='([{()'         # your own; on dyck, the model closes what is open
    python sample.py out/text_rope --prompt='def main(' --temperature=0.8
"""

import argparse
import re
import sys

import numpy as np
import torch

from configurator import choose_device, one_line_errors
from eval import load_run
from model import draw
from tasks import stream


def show(task, rows, right):
    """Print named rows of token ids, -1 a blank. Mark where `right` is False: red on a terminal, a caret elsewhere."""
    width = max(len(symbol) for symbol in task.symbols)
    gap, colour = ' ' * (width > 1), sys.stdout.isatty()
    for name, ids in rows.items():
        cells = [('' if i < 0 else task.symbols[i] if i < len(task.symbols) else '?').ljust(width) for i in ids]
        if colour and name == 'model':
            cells = [cell if ok else f'\033[1;31m{cell}\033[0m' for cell, ok in zip(cells, right)]
        print(f'{name:>7s}  {gap.join(cells).rstrip()}')
    print(f'{"":>7s}  {gap.join((" " if ok or colour else "^").ljust(width) for ok in right)}'.rstrip() + '\n')


def answer(model, task, x, device, **options):
    """The rows to show of an input x (T,), and where the model's answer is right: generated, or at every position."""
    ids = torch.from_numpy(x)[None].to(device)
    if task.generates:
        truth = np.concatenate([x, task.completion(x)])
        said = model.generate(ids, len(truth) - len(x), **options)[0].cpu().numpy()
        return dict(prompt=x, truth=np.where(np.arange(len(truth)) < len(x), -1, truth), model=said), said == truth
    truth, logits = task.targets(x[None])[0], model(ids)[0][0]
    said = np.where(truth >= 0, draw(logits, **options).cpu().numpy(), -1)
    return dict(input=x, truth=truth, model=said), said == truth


def read_prompt(task, text, length):
    """The token ids (T,) of a prompt. Raises ValueError for what is no string of the task, or has nothing to answer."""
    x = task.encode(text if text.startswith(task.bos) else task.bos + text)
    asks = len(x) if task.open_ended else 0
    if not task.open_ended and re.fullmatch(task.form, task.decode(x)):
        asks = len(task.completion(x)) if task.generates else (task.targets(x[None]) >= 0).sum()
    if asks > 0:
        return x
    example = task.decode(task.sample(stream('example'), 1, length)[0][0])
    raise ValueError(f'--prompt={text!r} is not a string of {task} with something to answer, such as {example}')


@torch.no_grad()
def main(arguments=None):
    """Answer, or continue text, as the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out_dir', help='folder of a run of train.py')
    parser.add_argument('--prompt', help='a string of the task, instead of fresh ones')
    parser.add_argument('--length', type=int, help='of the strings, or of what continues a text (default: as trained)')
    parser.add_argument('--n', type=int, default=100, help='how many to answer (default: %(default)s)')
    parser.add_argument('--show', type=int, default=5, help='how many of them to print (default: %(default)s)')
    parser.add_argument('--temperature', type=float, default=0.0, help='0, the default, is the likeliest symbol')
    parser.add_argument('--top_k', type=int, help='draw from the k likeliest symbols only')
    parser.add_argument('--seed', type=int, default=0, help='of the strings and the draws (default: %(default)s)')
    parser.add_argument('--checkpoint', default='best.pt', help='file in out_dir (default: %(default)s)')
    parser.add_argument('--task', help='if the run was trained on a text with a path: the task again')
    parser.add_argument('--device', default='auto', help='auto, cpu, cuda, mps')
    options = parser.parse_args(arguments)
    counts = [value for value in (options.n, options.length, options.top_k) if value is not None]
    if min(counts) < 1 or not 0 <= options.temperature < float('inf'):
        parser.error('--n, --length and --top_k must be at least 1, and --temperature at least 0')
    device = choose_device(options.device)
    model, task, checkpoint = load_run(options.out_dir, options.checkpoint, device, options.task)
    length, rng = options.length or checkpoint['options']['block_size'], stream(options.seed, 'sample')
    generator = torch.Generator(device).manual_seed(options.seed)
    drawing = dict(temperature=options.temperature, top_k=options.top_k, generator=generator)
    inputs = list(task.sample(rng, options.n, length, 'test')[0])
    if options.prompt is not None:
        inputs = [read_prompt(task, options.prompt, length)]
    elif task.generates:  # cut each string at a random place where something is open
        inputs = [x[:rng.choice([t for t in range(2, length + 1) if len(task.completion(x[:t]))])] for x in inputs]
    if task.open_ended:
        for x in inputs[:options.show]:
            whole = model.generate(torch.from_numpy(x)[None].to(device), length, **drawing)[0]
            print(f'{task.decode(x)}[{task.decode(whole[len(x):])}]\n')
        return
    answers = [answer(model, task, x, device, **drawing) for x in inputs]
    for rows, right in answers[:options.show]:
        show(task, rows, right)
    print(f'{task}, {model.config.attention}: {sum(right.all() for _, right in answers)} of {len(inputs)} are right')


if __name__ == '__main__':
    with one_line_errors():
        main()
