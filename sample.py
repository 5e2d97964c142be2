"""
Watch a trained model answer, and mark what is wrong; or let it go on with a text.

    python sample.py out/dyck3_spectral                          # fresh strings
    python sample.py out/dyck3_spectral --prompt='([{()'        # your own
    python sample.py out/text_rope --prompt='def main(' --temperature=0.8

On Dyck the model closes what a prompt left open, one generated bracket at a time, on the passkey it says the digits; on
the other tasks it answers at every position of an input, and a text it continues by --length tokens. Wrong symbols are red on a terminal, and under a caret elsewhere.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from configurator import choose_device
from model import GPT, draw, load_checkpoint
from tasks import make_task, stream


def show(task, rows, right):
    """
    Print named rows of token ids, aligned; mark the places of the last row where `right` is False. -1 is no symbol, and
    '?' a token that the task has not, but its model may have.
    """
    width = max(len(symbol) for symbol in task.symbols)
    gap = ' ' * (width > 1)  # between symbols that are not all of one character
    colour = sys.stdout.isatty()
    for name, ids in rows.items():
        cells = [(' ' if i < 0 else task.symbols[i] if i < len(task.symbols) else '?').ljust(width) for i in ids]
        if colour and name == list(rows)[-1]:
            cells = [cell if ok else f'\033[1;31m{cell}\033[0m' for cell, ok in zip(cells, right)]
        print(f'{name:>7s}  {gap.join(cells).rstrip()}')
    if not colour and not all(right):
        print(f'{"":>7s}  {gap.join((" " if ok else "^").ljust(width) for ok in right).rstrip()}')
    print()


def complete(model, task, prompt, **options):
    """Generate the closers that `prompt` (T,) is waiting for; the rows to show, where they are right, and the verdict."""
    truth = task.completion(prompt)
    ids = torch.from_numpy(prompt)[None].to(model.embedding.weight.device)
    whole = model.generate(ids, len(truth), **options)[0].cpu().numpy()
    right = np.concatenate([np.ones(len(prompt), bool), whole[len(prompt):] == truth])
    accepted = right.all() and task.check(whole[None], np.full_like(whole, -1)[None])[0]
    return dict(prompt=prompt, truth=np.concatenate([np.full_like(prompt, -1), truth]), model=whole), right, accepted


def answer(model, task, x, **options):
    """The model's answers to an input x (T,); the rows to show, where they are right, and the verdict."""
    y = task.targets(x[None])[0]
    logits = model(torch.from_numpy(x)[None].to(model.embedding.weight.device))[0][0].cpu()  # (T, V)
    said = np.where(y >= 0, draw(logits, **options).numpy(), -1)
    return dict(input=x, truth=y, model=said), said == y, task.check(x[None], said[None])[0]


def write(model, task, prompts, length, **options):
    """Print each prompt (T,), token ids, and the `length` tokens that the model continues it by, in bold on a terminal."""
    for prompt in prompts:
        ids = torch.from_numpy(prompt)[None].to(model.embedding.weight.device)
        whole = model.generate(ids, length, **options)[0, len(prompt):].cpu().numpy()
        bold, plain = ('\033[1m', '\033[0m') if sys.stdout.isatty() else ('[', ']')
        print(f'{task.decode(prompt)}{bold}{task.decode(whole)}{plain}\n')


@torch.no_grad()
def main(arguments=None):
    """Answer, or continue text, as the command line `arguments` (default: sys.argv) say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out_dir', type=Path, help='folder of a run of train.py')
    parser.add_argument('--prompt', help='a string of the task to answer, instead of fresh ones')
    parser.add_argument('--length', type=int, help='length of the test strings, or how many tokens to add to a text (default: the training length)')
    parser.add_argument('--n', type=int, default=100, help='how many to answer (default: %(default)s)')
    parser.add_argument('--show', type=int, default=5, help='how many of them to print (default: %(default)s)')
    parser.add_argument('--temperature', type=float, default=0.0, help='0 is the likeliest symbol (default: %(default)s)')
    parser.add_argument('--top_k', type=int, help='draw from the k likeliest symbols only')
    parser.add_argument('--seed', type=int, default=0, help='of the strings and the draws (default: %(default)s)')
    parser.add_argument('--checkpoint', default='best.pt', help='file in out_dir (default: %(default)s)')
    parser.add_argument('--device', default='auto', help='auto, cpu, cuda, mps')
    options = parser.parse_args(arguments)
    if options.n < 1:
        parser.error('--n must be at least 1')

    path = options.out_dir / options.checkpoint
    saved = load_checkpoint(path)
    task = make_task(saved['task'])
    length = options.length or saved['options']['block_size']
    rng = stream(options.seed, 'sample')
    if task.open_ended:
        prompt = None if options.prompt is None else task.encode(options.prompt)
        if prompt is not None and len(prompt) == 0:
            raise ValueError('--prompt is empty: a text needs at least one token to continue')
        inputs = [prompt] if prompt is not None else list(task.sample(rng, min(options.n, options.show), length, 'test')[0])
    elif options.prompt is not None:
        x = task.encode(options.prompt if options.prompt.startswith(task.bos) else task.bos + options.prompt)
        valid = len(x) > 0 and task.check(x[None], np.full_like(x, -1)[None])[0]
        if not valid or not (len(task.completion(x)) if task.generates else (task.targets(x[None]) >= 0).any()):
            example = task.decode(task.sample(rng, 1, length)[0][0])
            raise ValueError(f'--prompt={options.prompt!r} is not a string of {task} with something to answer, such as {example}')
        inputs = [x]
    elif task.generates:  # cut each string at a random place where something is open
        strings = task.sample(rng, options.n, length)[0]
        cuts = [rng.choice([t for t in range(2, length + 1) if len(task.completion(string[:t]))]) for string in strings]
        inputs = [string[:cut] for string, cut in zip(strings, cuts)]
    else:
        inputs = list(task.sample(rng, options.n, length)[0])

    model = GPT.from_checkpoint(path).to(choose_device(options.device)).eval()
    generator = torch.Generator(model.embedding.weight.device if task.generates or task.open_ended else 'cpu').manual_seed(options.seed)
    if task.open_ended:
        write(model, task, inputs, length, temperature=options.temperature, top_k=options.top_k, generator=generator)
        return
    accepted = 0
    for i, x in enumerate(inputs):
        rows, right, ok = (complete if task.generates else answer)(
            model, task, x, temperature=options.temperature, top_k=options.top_k, generator=generator)
        accepted += ok
        if i < options.show:
            show(task, rows, right)
    print(f'{task}, {model.config.attention}: {accepted} of {len(inputs)} right from end to end')


if __name__ == '__main__':
    main()
