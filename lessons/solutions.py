"""
Solutions of the exercises, one function a lesson. That of ALiBi is lessons/alibi.patch.

    python -m lessons.solutions 1        # the solution of lesson 1
"""

import itertools
import math

import torch

import lab  # noqa: F401  # more attentions
from configurator import choose_hardware, one_line_errors
from eval import load_run, measure
from lab.analysis import attention_weights, cells, closed_eyes, walk
from lab.options import make_parser
from lessons.check import contrast, entropy
from lessons.mistakes import POSITION, random, rotate
from lessons.rope_by_hand import HEAD_SIZE, frequencies, turns
from model import ATTENTIONS, GPT, TAPA, GPTConfig
from tasks import make_rng, make_task
from train import schedule


def lesson_1():
    """The loss (nats) and accuracy of a model that knows only how often each letter occurs."""
    loss = accuracy = 0.0
    for counts in itertools.product(range(11), repeat=4):  # of A, C, G and T
        if sum(counts) == 10:
            strands = math.factorial(10) / math.prod(map(math.factorial, counts))
            chance = strands / 4**10
            loss += chance * entropy([count for count in counts if count])
            accuracy += chance * max(counts) / 10
    print(f'the counts alone allow a loss of {loss:.3f} nats '
          f'and {100 * accuracy:.1f} % right answers')
    return loss, accuracy


def lesson_2(period=7):
    """The base for which theta_1 = 2 pi / period, and the contrast of pair 1 before and after."""
    theta = 2 * math.pi / period
    base = theta ** (-HEAD_SIZE / 2)  # theta_1 = base^(-2/hs)
    before, after = (contrast(pair, period, turns(period)) for pair in (frequencies()[1], theta))
    print(f'pair 1 fits period {period} at the base {base:.2f}: '
          f'its contrast grows from {before:.2f} to {after:.2f}')
    return base, before, after


def lesson_3(decay=0.1, peak=1e-2, max_iters=1000, warmup_iters=50):
    """What weight decay leaves of a frequency without a gradient: by the formula, by AdamW."""
    Omega = torch.nn.Parameter(torch.tensor(2 * math.pi / 10))
    optimizer, left = torch.optim.AdamW([Omega], weight_decay=decay), 1.0
    for it in range(max_iters):
        lr = optimizer.param_groups[0]['lr'] = peak * schedule(it, max_iters, warmup_iters, 0.0)
        left *= 1 - lr * decay
        Omega.grad = torch.zeros_like(Omega)
        optimizer.step()
    by_adamw = Omega.item() * 10 / (2 * math.pi)
    print(f'left of Omega after {max_iters} updates: {left:.3f} by the formula, '
          f'{by_adamw:.3f} by AdamW')
    return left, by_adamw


@torch.no_grad()
def lesson_3b(folder='out/lesson_3_two_layers', length=64):
    """Where the blanks of each turn look: the shares of attention 10, 20, ... tokens back."""
    model, task, _ = load_run(folder, 'best.pt', 'cpu')
    x, _ = task.sample(make_rng('test', 'relay'), 64, length, 'test')
    P = task.period
    print('layer head turn   % of attention 10, 20, 30, ... tokens back')
    for layer, (block, reads) in enumerate(walk(model, x, 'cpu'), start=1):
        weights = attention_weights(block.attention, block.norm_1(reads)).mean(dim=0)  # (nh, T, T)
        for head, turn in itertools.product(range(len(weights)), range(1, 1 + (length - 2) // P)):
            blanks = torch.arange(1 + turn * P, min(length, 1 + (turn + 1) * P))
            lags = range(P, turn * P + 1, P)
            shares = [100 * weights[head, blanks, blanks - lag].mean() for lag in lags]
            print(f'{layer:5d} {head:4d} {turn:4d}  ' + ''.join(f'{x:5.0f}' for x in shares))


@torch.no_grad()
def lesson_4():
    """Close the spectral eye without a hook: set to 0 what proj reads. Differences of logits."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=6, n_layer=1, attention='bifocal'))
    config, idx = model.config, torch.randint(6, (8, 64))
    with closed_eyes(model, 'spectral'):
        closed, _ = model(idx)
    last_head = slice((config.n_head - 1) * config.head_size, None)
    opened, _ = model(idx)
    model.blocks[0].attention.proj.weight[:, last_head] = 0  # (C, nh hs): the last head's columns
    by_hand, _ = model(idx)
    to_zeros = (closed - by_hand).abs().max().item()
    to_open = (closed - opened).abs().max().item()
    print(f'closed against zero columns: {to_zeros:.1e}; closed against open: {to_open:.2f}')
    return to_zeros, to_open


def lesson_5():
    """The scores at distances 0 to 30 with alpha = 1 and phi = 1/10, for an amplitude of 1."""
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=2, attention='tapa', tapa_alpha=1.0)
    q, k = torch.tensor([1.0, 0.1]), torch.tensor([1.0, 1.0])  # q_A.k_A = 1, q_P.k_P = 1/10
    scores = TAPA(config).scores(q.expand(1, 1, 1, 2), k.expand(1, 1, 31, 2))  # (1, 1, 1, 31)
    scores = scores[0, 0, 0].flip(0).tolist()
    shown = ', '.join(f'{score:.2f}' for score in scores[::5])
    print(f'score at distances 0, 5, 10, ..., 30: {shown}')
    return scores


@torch.no_grad()
def lesson_5b():
    """
    A whole TAPA for the strand, its weights set by hand: between a blank and a letter phi is 1/10,
    and other scores are 0. Of new strings, the shares that are right at 64, 512 and 1024 tokens.
    """
    task = make_task('bio_rotation')
    V, letters, blank = len(task.symbols), range(1, 5), 5  # ^, A, C, G, T, blank
    model = GPT(GPTConfig(V, n_layer=1, n_head=1, n_embd=8, attention='tapa', tapa_alpha=1.0))
    for p in model.parameters():
        if p.dim() == 2:
            p.zero_()
    unit = 8**-0.5  # a norm makes a vector with one entry that is not 0, and that is then 8^0.5
    model.embedding.weight[range(V), range(V)] = 1.0
    q, k, v = model.blocks[0].attention.qkv.weight.chunk(3)  # each (hs, C); hs_A = hs_P = 4
    q[0, blank], q[4, blank] = 100 * unit, 0.2 * unit  # q_A.k_A / sqrt(4) = 50, phi = 0.2 / 2
    k[0, letters], k[4, letters] = unit, unit
    v[letters, letters] = unit
    model.blocks[0].attention.proj.weight[letters, letters] = 1.0
    model.lm_head.weight[letters, letters] = 10.0
    hardware = choose_hardware('cpu', 'float32')
    shares = [measure(model, task, length, 64, hardware)[0]['accuracy']
              for length in (64, 512, 1024)]
    print('right at 64, 512 and 1024 tokens:', *(f'{100 * share:.1f} %' for share in shares))
    return shares


def lesson_6(folder='out/lesson_4_bifocal', length=512, ahead=5.0):
    """
    The turn where the best pair points half a letter wrong, pi / (period^2 |error|), and the first
    turn where less than half of the answers are right, or None. Prints the dilution, too.
    """
    for keys in (64, 512):
        sharper = ahead * math.log(keys) / math.log(64)
        plain, scaled = (1 / (1 + (keys - 1) * math.exp(-s)) for s in (ahead, sharper))
        print(f'{keys} keys, one of them ahead by {ahead:g}: weight {plain:.2f}, '
              f'with log_scale_length=64 {scaled:.2f}')
    model, task, _ = load_run(folder, 'best.pt', 'cpu')
    harmonic = 2 * math.pi / task.period
    error = (model.blocks[0].attention.Omega.abs() - harmonic).abs().min().item()
    predicted = math.pi / (task.period**2 * error)
    _, strings = measure(model, task, length, 128, choose_hardware('cpu', 'float32'))
    turns = cells(task, *strings)['turn']
    failing = [int(turn) for turn, (accuracy, *_) in turns.items() if accuracy < 0.5]
    measured = min(failing, default=None)
    last = (length - 1 - task.period) // task.period
    print(f'error {error:.1e}: half a letter wrong at turn {predicted:.0f}; '
          f'less than half right from turn {measured} (the last complete turn is {last})')
    return predicted, measured, last


@torch.no_grad()
def lesson_7(b=2 * math.pi / 9):
    """The scores that a last token gives to each bracket, by accumulated phases of the depth."""
    config = GPTConfig(vocab_size=1, n_head=1, n_embd=4, attention='accumulated')
    attention = ATTENTIONS['accumulated'](config)
    attention.theta.zero_()
    attention.W.zero_()
    attention.W[0, 1, 0] = b  # dimension 1 turns pair 0
    brackets = '([{}])([]{'
    step = torch.tensor([1.0 if bracket in '([{' else -1.0 for bracket in brackets])
    one, zero = torch.ones(len(step)), torch.zeros(len(step))
    k = torch.stack([one, step, zero, zero], dim=1)  # pair 0 is (1, 0), dimension 1 the bracket
    q = torch.tensor([1.0, 0.0, 0.0, 0.0])
    scores = attention.scores(q.expand(1, 1, 1, 4), k[None, None])[0, 0, 0]
    depths = step.cumsum(dim=0).int().tolist()
    print('bracket  depth after it  score')
    for bracket, depth, score in zip(brackets, depths, scores.tolist()):
        print(f'{bracket:>7s} {depth:>15d} {score:>6.2f}')
    print('the score is greatest where the depth is that of the last bracket')
    return depths, scores.tolist()


def lesson_8(distance=50):
    """The scores of q with the key q_i e^{1j 50 theta_i}, by distance, as shares of |q|^2."""
    q = random(1, HEAD_SIZE)
    scores = (rotate(q, POSITION) * rotate(q, torch.tensor([distance]))).sum(dim=-1)
    scores = scores / q.square().sum()
    best = scores.argmax().item()
    print(f'the score is greatest, {scores[best]:.3f} |q|^2, at the distance {best}')
    return best, scores[best].item()


SOLUTIONS = {'1': lesson_1, '2': lesson_2, '3': lesson_3, '3b': lesson_3b, '4': lesson_4,
             '5': lesson_5, '5b': lesson_5b, '6': lesson_6, '7': lesson_7, '8': lesson_8}


def main(arguments=None):
    parser = make_parser('lessons.solutions', __doc__)
    parser.add_argument('lesson', choices=SOLUTIONS)
    SOLUTIONS[parser.parse_args(arguments).lesson]()


if __name__ == '__main__':
    with one_line_errors():
        main()
