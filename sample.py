"""
Watch a trained model answer, its mistakes marked; or let it continue a text.

    python sample.py out/dyck3_spectral                    # fresh strings of its task
    python sample.py out/dyck3_spectral --prompt='([{()'   # it closes the brackets that are open
    python sample.py out/text_rope --prompt='def main(' --temperature=0.8
"""

import importlib.util
import re
import signal
import sys

if __name__ == '__main__':  # Ctrl-C while torch is loaded needs no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import numpy as np
import torch

from configurator import UserError, find_place, one_line_errors
from eval import count, load_run, make_parser
from model import sample_token
from tasks import make_rng

if importlib.util.find_spec('lab'):  # more attentions, grids, tasks and ways to start
    import lab  # noqa: F401


def decode(task, ids):
    """The text of token ids. What could control a terminal is replaced: models come from anyone."""
    text = task.decode(ids)
    return ''.join(char if char.isprintable() or char in '\n\t' else '\N{REPLACEMENT CHARACTER}'
                   for char in text)


def show(task, rows, right):
    """
    Print named rows of token ids, -1 for a blank. Mistakes of the model, where `right` is False,
    are red on a terminal, and have a caret below them elsewhere.
    """
    symbols = [*task.symbols, '']  # the last one is number -1
    width = max(map(len, symbols))
    gap = ' ' if width > 1 else ''
    colour = sys.stdout.isatty()
    for name, ids in rows.items():
        cells = [(symbols[i] if i < len(task.symbols) else '?').ljust(width) for i in ids]
        if colour and name == 'model':
            cells = [cell if ok else f'\033[1;31m{cell}\033[0m' for cell, ok in zip(cells, right)]
        print(f'{name:>7s}  {gap.join(cells).rstrip()}')
    marks = gap.join((' ' if ok or colour else '^').ljust(width) for ok in right)
    print(f'{"":>7s}  {marks}'.rstrip() + '\n')


def answer(model, task, x, **how):
    """For each input x (B, T): the rows to show, and where the model's answer is right."""
    ids = torch.from_numpy(x).to(model.lm_head.weight.device)
    if task.generates:
        endings = [task.completion(row) for row in x]
        output = model.generate(ids, max(map(len, endings)), **how).cpu().numpy()
        answers = []
        for prompt, ending, row in zip(x, endings, output):
            truth = np.concatenate([prompt, ending])
            row = row[:len(truth)]
            blank = np.full_like(prompt, -1)
            rows = dict(prompt=prompt, truth=np.concatenate([blank, ending]), model=row)
            answers.append((rows, row == truth))
        return answers
    truth = task.targets(x)
    logits = model(ids)[0]  # (B, T, V)
    tokens = sample_token(logits.flatten(0, 1), **how).view_as(ids).cpu().numpy()
    tokens = np.where(truth >= 0, tokens, -1)
    return [(dict(input=x[b], truth=truth[b], model=tokens[b]), tokens[b] == truth[b])
            for b in range(len(x))]


def answer_all(model, task, inputs, **how):
    """`answer` of inputs (T,) of many lengths, in their order. Equal lengths make a batch."""
    lengths = {}
    for i, x in enumerate(inputs):
        lengths.setdefault(len(x), []).append(i)
    answers = {}
    for length, indices in lengths.items():
        size = max(1, 2**15 // length)  # sequences in a batch, as eval.py has them
        for start in range(0, len(indices), size):
            batch = indices[start:start + size]
            x = np.stack([inputs[i] for i in batch])
            answers |= zip(batch, answer(model, task, x, **how))
    return [answers[i] for i in range(len(inputs))]


def read_prompt(task, text, length):
    """The token ids (T,) of a prompt. Raises UserError if there is nothing to answer."""
    x = task.encode(text if text.startswith(task.bos) else task.bos + text)
    answers = 0
    if task.open_ended:
        answers = len(x)
    elif re.fullmatch(task.form, task.decode(x)):
        answers = len(task.completion(x)) if task.generates else (task.targets(x[None]) >= 0).sum()
    if answers == 0:
        example = task.decode(task.sample(make_rng('example'), 1, length)[0][0])
        raise UserError(f'--prompt={text!r} is not a string of {task} with something to answer, '
                        f'such as {example}')
    return x


def cut(task, x, rng):
    """The start of a string x (T,), cut at a random place where something is still missing."""
    places = [t for t in range(2, len(x) + 1) if len(task.completion(x[:t])) > 0]
    return x[:rng.choice(places)]


@torch.no_grad()
def main(arguments=None):
    """Answer, or continue a text, as the command line `arguments` (default: sys.argv) say."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add('out_dir', help='folder of a run of train.py')
    add('--prompt', help='a string of the task, instead of fresh ones')
    add('--length', type=count,
        help='tokens of a string, or of the continuation of a text (default: as trained)')
    add('--n', type=count, default=100, help='how many to answer (default: %(default)s)')
    add('--show', type=count, default=5, help='how many to print (default: %(default)s)')
    add('--temperature', type=float, default=0.0, help='0, the default, takes the likeliest symbol')
    add('--top_k', type=count, help='sample from the k likeliest symbols only')
    add('--seed', type=int, default=0, help='of strings and answers (default: %(default)s)')
    options = parser.parse_args(arguments)
    if not 0 <= options.temperature < float('inf'):
        parser.error('--temperature must be 0 or positive')
    place = find_place(options.device, options.dtype)
    model, task, checkpoint = load_run(
        options.out_dir, options.checkpoint, place.device, options.task)
    length = options.length or checkpoint['options']['block_size']
    rng = make_rng(options.seed, 'sample')
    how = dict(temperature=options.temperature, top_k=options.top_k,
               generator=torch.Generator(place.device).manual_seed(options.seed))

    if options.prompt is not None:
        inputs = [read_prompt(task, options.prompt, length)]
    else:
        inputs = list(task.sample(rng, options.n, length, 'test')[0])
        if task.generates:
            inputs = [cut(task, x, rng) for x in inputs]
    with place.autocast():
        if task.open_ended:
            x = torch.from_numpy(np.stack(inputs[:options.show])).to(place.device)
            output = model.generate(x, length, **how).cpu().numpy()
            for prompt, ids in zip(inputs, output):
                print(f'{decode(task, prompt)}[{decode(task, ids[len(prompt):])}]\n')
            return
        answers = answer_all(model, task, inputs, **how)
    for rows, right in answers[:options.show]:
        show(task, rows, right)
    correct = sum(right.all() for _, right in answers)
    print(f'{task}, {model.config.attention}: {correct} of {len(inputs)} are right')


if __name__ == '__main__':
    with one_line_errors():
        main()
