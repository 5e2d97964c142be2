"""
Go on training a transformers model whose frequencies are learned.

    python -m lab.finetune_spectral HuggingFaceTB/SmolLM2-135M out/smollm2
    python -m lab.finetune_spectral FOLDER out/all --lr=2e-5 --heads=half --text=book.txt
    python -m lab.finetune_spectral FOLDER out/control --lr=2e-5 --rotation_lr=0

The first argument is a folder, or OWNER/NAME on the hub. The second is a folder for the result: a
model for lab.spectralize.load_spectral, and its tokenizer. Without --lr, Omega, A and Phi alone are
trained. The last tenth of the text is for validation.
"""

import math
import sysconfig
from functools import partial
from pathlib import Path

import torch

from checkpoint import writing
from configurator import one_line_errors
from eval import count
from lab.options import import_transformers, loading, make_parser, read_text
from lab.spectralize import Rotation, parameter_groups, spectralize
from model import UserError


def main(arguments=None):
    parser = make_parser('lab.finetune_spectral', __doc__)
    add = parser.add_argument
    add('model')
    add('out', type=Path)
    add('--text', type=read_text, help="a file; without it, Python's standard library")
    add('--heads', default='all', help='all or half of the key/value heads become spectral')
    add('--rotation_lr', type=float, default=1e-4, help='peak rate of Omega, A and Phi')
    add('--lr', type=float, default=0.0, help='peak rate of all other weights; 0: they are frozen')
    add('--steps', type=count, default=200)
    add('--length', type=partial(count, least=2), default=512, help='tokens in a sequence')
    add('--batch', type=count, default=4, help='sequences in an update')
    add('--seed', type=partial(count, least=0), default=0)
    options = parser.parse_args(arguments)
    if options.out.is_file() or options.out.is_dir() and any(options.out.iterdir()):
        raise UserError(f'{options.out} exists: choose another folder')
    for name in ('lr', 'rotation_lr'):
        if not 0 <= getattr(options, name) <= 1:  # NaN is refused, too
            raise UserError(f'--{name}={getattr(options, name)}: must be from 0 to 1')
    torch.manual_seed(options.seed)
    model, tokenizer, tokens = load_inputs(options)
    try:
        spectralize(model, options.heads, freeze=options.lr == 0)
    except ValueError as error:
        raise UserError(str(error)) from None

    with writing(options.out):  # now, for a training may take hours
        options.out.mkdir(parents=True, exist_ok=True)
    first = frequencies(model)
    before, after = train(model, tokens, options)
    circles = (frequencies(model) - first).abs().max().item() * options.length / (2 * math.pi)
    print(f'loss before {before:.4f}, after {after:.4f} nats a token; '
          f'Omega moved by up to {circles:.2g} circles in {options.length} tokens')
    if not math.isfinite(after):
        options.out.rmdir()
        raise UserError('the loss is not finite, and nothing is saved: choose lower rates')
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


def load_inputs(options):
    """The model, its tokenizer, and the text in its tokens (n,)."""
    transformers, text = import_transformers(), options.text
    if text is None:
        files = sorted(Path(sysconfig.get_path('stdlib')).glob('*.py'))
        text = '\n'.join(file.read_text('utf-8') for file in files)
    with loading(options.model):
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    tokens = tokenizer(text, add_special_tokens=False, return_tensors='pt').input_ids[0]
    if len(tokens) < 20 * options.length:
        raise UserError(f'the text has {len(tokens)} tokens: must be at least 20 times '
                        f'--length={options.length}')
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    return model.to('cuda' if torch.cuda.is_available() else 'cpu'), tokenizer, tokens


def train(model, tokens, options):
    """The losses before and after, on the same texts that are not trained on."""
    cut = len(tokens) * 9 // 10
    validation = tokens[cut:].unfold(0, options.length, options.length)[:16]  # (16, length)
    before = evaluate(model, validation)
    groups = parameter_groups(model, options.lr, options.rotation_lr)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [group['lr'] for group in groups], options.steps, cycle_momentum=False)
    rng = torch.Generator().manual_seed(options.seed)
    model.train()
    for step in range(options.steps):
        starts = torch.randint(cut - options.length, (options.batch, 1), generator=rng)
        x = tokens[starts + torch.arange(options.length)].to(model.device)  # (batch, length)
        loss = model(input_ids=x, labels=x, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f'step {step}: loss {loss.item():.4f}', flush=True)
    return before, evaluate(model, validation)


@torch.no_grad()
def evaluate(model, texts):
    """Mean loss in nats a token. texts (n, length)."""
    model.eval()
    losses = [model(input_ids=x, labels=x, use_cache=False).loss
              for x in texts[:, None].to(model.device)]
    return torch.stack(losses).mean().item()


def frequencies(model):
    """Omega (layers, n, P), radians a token."""
    return torch.stack([module.Omega.detach().cpu().clone() for module in model.modules()
                        if isinstance(module, Rotation)])


if __name__ == '__main__':
    with one_line_errors():
        main()
