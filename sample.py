"""
Watch a trained model answer, its mistakes marked; or let it continue a text.

    python sample.py out/dyck3_spectral                    # fresh strings of its task
    python sample.py out/dyck3_spectral --prompt='([{()'   # it closes the brackets that are open
    python sample.py out/text_rope --prompt='def main(' --temperature=0.8
"""

import functools
import importlib.util
import re

import numpy as np
import torch

from configurator import one_line_errors, this_process
from eval import count, load_run, make_parser
from model import UserError, sample_token
from tasks import make_rng

if importlib.util.find_spec('lab'):
    # it adds attentions, frequencies and tasks
    import lab  # noqa: F401


def answer(model, task, x, **sampling):
    """For an input x (T,): rows of token ids to show, and where the model's answer is right."""
    ids = torch.from_numpy(x)[None].to(model.lm_head.weight.device)  # (1, T)
    if task.generates:
        ending = task.completion(x)
        truth = np.concatenate([x, ending])
        output = model.generate(ids, len(ending), **sampling)[0].cpu().numpy()
        missing = np.where(np.arange(len(truth)) < len(x), -1, truth)
        return dict(prompt=x, truth=missing, model=output), output == truth
    truth = task.targets(x[None])[0]
    logits, _ = model(ids)
    tokens = sample_token(logits[0], **sampling).cpu().numpy()  # (T,)
    tokens = np.where(truth >= 0, tokens, -1)
    return dict(input=x, truth=truth, model=tokens), tokens == truth


def show(task, rows, right):
    """Print named rows of token ids, -1 for a blank, and a caret below each mistake."""
    width = max(map(len, task.symbols))
    gap = ' ' if width > 1 else ''
    names = dict(enumerate(task.symbols)) | {-1: ''}
    lines = {name: [names.get(i, '?') for i in ids.tolist()] for name, ids in rows.items()}
    lines[''] = ['' if ok else '^' for ok in right]
    for name, cells in lines.items():
        line = gap.join(cell.ljust(width) for cell in cells)
        print(f'{name:>7s}  {line}'.rstrip())
    print()


def read_prompt(task, text, length):
    """The token ids (T,) of a prompt. Raises UserError if there is nothing to answer."""
    x = task.encode(text if text.startswith(task.bos) else task.bos + text)
    asks = task.open_ended and len(x) > 0
    if not task.open_ended and re.fullmatch(task.form, task.decode(x)):
        asks = len(task.completion(x)) if task.generates else (task.targets(x[None]) >= 0).any()
    if not asks:
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
    add('--n', type=count, default=5, help='how many fresh strings (default: %(default)s)')
    add('--length', type=count,
        help='tokens of a string, or of the continuation of a text (default: as trained)')
    add('--temperature', type=float, default=0.0, help='0, the default, takes the likeliest symbol')
    add('--top_k', type=count, help='sample from the k likeliest symbols only')
    add('--seed', type=functools.partial(count, least=0), default=0,
        help='of strings and answers (default: %(default)s)')
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
        inputs = [read_prompt(task, options.prompt, length)]
    else:
        inputs = list(task.sample(rng, options.n, length, 'test')[0])
        if task.generates:
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
            rows, right = answer(model, task, x, **sampling)
        show(task, rows, right)
        correct += right.all()
    if not task.open_ended:
        print(f'{task}, {model.config.attention}: {correct} of {len(inputs)} are right')


if __name__ == '__main__':
    with one_line_errors():
        main()
