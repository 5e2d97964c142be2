"""
Check the exercises in lessons/exercises: which parts of an answer are right?

    python -m lessons.check 2        # lesson 1 to 8; the answers are in lesson_2.py there

Each part is compared with a right one for some arguments. If it is wrong in a way that is known,
the line says which one. Mend the first one first: another may need it. An error in your code keeps
its traceback, below the name of the part.
"""

import cmath
import importlib
import inspect
import math
import sys

from configurator import one_line_errors
from lab.options import make_parser

TWO_PI = 2 * math.pi

# ---- the right answers -------------------------------------------------------------------------


def mean_arrow(distances, theta):
    """The mean of e^{1j distance theta}: a complex number."""
    arrows = [cmath.exp(1j * t * theta) for t in distances]
    return sum(arrows) / len(arrows)


def on_the_turns(theta, period, n_turns):
    return mean_arrow([turn * period for turn in range(1, n_turns + 1)], theta)


def off_the_turns(theta, period, n_turns):
    return mean_arrow([t for t in range(1, n_turns * period + 1) if t % period], theta)


def contrast(theta, period, n_turns):
    return abs(on_the_turns(theta, period, n_turns) - off_the_turns(theta, period, n_turns))


def product(q, k, m, n, Omega, A, Phi):
    return A**2 * q * k.conjugate() * cmath.exp(1j * ((m - n) * Omega + Phi))


def entropy(counts):
    return -sum(count / sum(counts) * math.log(count / sum(counts)) for count in counts)


def gradient(logits, answer, letter):
    p = math.exp(logits[letter]) / sum(map(math.exp, logits))
    return p - (letter == answer)


def tapa(a, phi, t, alpha, scale):
    return a * math.cos(scale * t**alpha * phi)


def gated(dot_product, m, n, gates):
    return dot_product + sum(map(math.log, gates[n + 1:m + 1]))


# ---- the parts: name, right answer, arguments, {what is wrong: a wrong answer} -----------------

STRANDS = [(0.562, 7, 8), (1.0, 11, 4), (0.3, 10, 5)]  # theta, period, n_turns
GATES = [0.9, 0.5, 0.7, 0.8, 0.6]
PAIRS = [(1 + 2j, 3 - 1j, 5, 2, 0.6, 1.3, 0.2), (-1j, 2 + 1j, 64, 14, 0.628, 0.8, -0.5)]

LESSONS = {
    1: [
        ('mean_of_values', lambda v, m: sum(v[:m + 1]) / (m + 1), [([3, 0, 2, 8], 2), ([5, 1], 1)],
         {'m counts from 0, and sees itself: tokens 0 ... m': lambda v, m: sum(v[:m]) / m,
          'the tokens behind m are masked': lambda v, m: sum(v) / len(v)}),
        ('depth', lambda brackets, starts: brackets / starts, [(0.25, 0.125), (0.1, 0.05)],
         {'depth / (m + 1) and 1 / (m + 1) are known: divide': lambda brackets, starts: brackets}),
        ('best_loss', entropy, [([2, 3, 4, 1],), ([1, 2],)],
         {'these are bits: take math.log': lambda counts: entropy(counts) / math.log(2),
          'this is a guess without the counts': lambda counts: math.log(len(counts))}),
        ('best_accuracy', lambda counts: max(counts) / sum(counts), [([2, 3, 4, 1],), ([1, 2],)],
         {'it knows the counts: it need not guess': lambda counts: 1 / len(counts)}),
    ],
    2: [
        ('angle', lambda turn, period, theta: turn * period * theta, [(1, 7, 0.562), (3, 12, 1.0)],
         {'a turn has `period` tokens': lambda turn, period, theta: turn * theta,
          'keep the complete circles': lambda turn, period, theta: turn * period * theta % TWO_PI}),
        ('on_the_turns', on_the_turns, STRANDS,
         {'turn 0 is the strand itself: begin with turn 1': lambda theta, period, n_turns:
          mean_arrow(range(0, n_turns * period, period), theta)}),
        ('off_the_turns', off_the_turns, STRANDS,
         {'the turns are in it: leave them out': lambda theta, period, n_turns:
          mean_arrow(range(1, n_turns * period + 1), theta)}),
        ('contrast', contrast, STRANDS,
         {'this is the agreement: take away the mean off the turns':
          lambda *strand: abs(on_the_turns(*strand)),
          'take the length after the difference: one phase b serves both means':
          lambda *strand: abs(on_the_turns(*strand)) - abs(off_the_turns(*strand)),
          'take abs()': lambda *strand: on_the_turns(*strand) - off_the_turns(*strand)}),
        ('theta_that_fits', lambda period: TWO_PI / period, [(7,), (10,)],
         {'this is a wavelength, in tokens': lambda period: period}),
    ],
    3: [
        ('score', lambda *pair: product(*pair).real, PAIRS,
         {'A multiplies query and key: A^2': lambda *pair: product(*pair).real / pair[5],
          'Phi is missing': lambda *pair: product(*pair[:6], 0).real,
          'the conjugate is missing': lambda q, k, *pair: product(q, k.conjugate(), *pair).real,
          'the distance is m - n': lambda q, k, m, n, *pair: product(q, k, n, m, *pair).real}),
        ('derivative', lambda *pair: -(pair[2] - pair[3]) * product(*pair).imag, PAIRS,
         {'the factor m - n is missing': lambda *pair: -product(*pair).imag}),
        ('nearest_harmonic', lambda Omega, q: TWO_PI / q * round(Omega * q / TWO_PI),
         [(0.562, 10), (1.3, 7), (3.0, 10)],
         {'this is j, not the frequency': lambda Omega, q: round(Omega * q / TWO_PI),
          'round to the nearest': lambda Omega, q: TWO_PI / q * math.floor(Omega * q / TWO_PI)}),
        ('left_after_decay', lambda rates, decay: math.prod(1 - rate * decay for rate in rates),
         [([0.01] * 3, 0.1), ([0.5, 0.1], 0.2)],
         {'shares multiply, they do not add up': lambda rates, decay: 1 - sum(rates) * decay}),
        ('relay', lambda first, lag, n_layer: first + (n_layer - 1) * lag,
         [(30, 30, 2), (10, 30, 4)],
         {'layer 1 reads the strand, it does not copy': lambda first, lag, n: first + n * lag,
          'this is for two layers alone': lambda first, lag, n_layer: first + lag}),
    ],
    4: [
        ('closed', lambda W, y, eye: W[1 - eye] * y[1 - eye],
         [([2.0, 3.0], [0.5, -1.0], 1), ([2.0, 3.0], [0.5, -1.0], 0)],
         {'this is the eye that is closed': lambda W, y, eye: W[eye] * y[eye],
          'this is with both eyes open': lambda W, y, eye: W[0] * y[0] + W[1] * y[1]}),
        ('first_column', lambda head, head_size: head * head_size, [(1, 32), (3, 16)],
         {'this is the number of the head: it has head_size columns': lambda head, size: head,
          'heads count from 0': lambda head, size: (head - 1) * size}),
        ('gradient', gradient, [([1.0, 2.0, 0.5], 1, 1), ([1.0, 2.0, 0.5], 1, 0)],
         {'take 1 away at the answer': lambda logits, _, letter: gradient(logits, -1, letter)}),
    ],
    5: [
        ('score', tapa, [(1.0, 0.3, 5, 0.1, TWO_PI), (-2.0, 1.5, 2, 0.5, 1.0)],
         {'the scale is missing': lambda a, phi, t, alpha, scale: tapa(a, phi, t, alpha, 1),
          'where is alpha?': lambda a, phi, t, alpha, scale: tapa(a, phi, t, 1, scale)}),
        ('circles_of_a_step', lambda t, alpha: (t + 1)**alpha - t**alpha,
         [(0, 0.1), (10, 0.1), (10, 0.5)],
         {'this is all that t has made, not the step': lambda t, alpha: t**alpha}),
        ('phi_one_token_back', lambda scale: math.pi / scale, [(TWO_PI,), (1.0,)],
         {'that is right for the scale 2 pi alone': lambda scale: 0.5,
          'that is right for the scale 1 alone': lambda scale: math.pi}),
        ('second_to_first', lambda alpha: -math.cos(math.pi * 2**alpha), [(0.1,), (0.5,)], {}),
        ('smallest_phi', lambda period: 1 / period, [(10,), (4,)],
         {'it repeats, but a smaller one does too': lambda period: 3 / period}),
    ],
    6: [
        ('phase_error', lambda turn, period, error: turn * period * error,
         [(1, 10, 0.001), (50, 10, -0.002)],
         {'an error is made at each token, not at each turn': lambda turn, _, error: turn * error}),
        ('turn_half_a_letter_wrong', lambda period, error: math.pi / (period**2 * abs(error)),
         [(10, 0.001), (7, -0.004)],
         {'the error may be negative: take abs()': lambda P, error: math.pi / (P**2 * error),
          'this is in tokens, not in turns': lambda P, error: math.pi / (P * abs(error))}),
        ('weight', lambda ahead, keys: math.exp(ahead) / (math.exp(ahead) + keys - 1),
         [(5.0, 64), (5.0, 512), (0.0, 4)],
         {'the others are keys - 1': lambda s, keys: math.exp(s) / (math.exp(s) + keys),
          'this is for one other key': lambda s, keys: math.exp(s) / (math.exp(s) + 1)}),
        ('ahead_with_log_scale', lambda s, length, m: s * math.log(m + 1) / math.log(length),
         [(5.0, 64, 511), (2.0, 64, 63)],
         {'m counts from 0: ln(m + 1)': lambda s, length, m: s * math.log(m) / math.log(length)}),
    ],
    7: [
        ('slope', lambda h, n_head: 2 ** (-8 * h / n_head), [(1, 2), (3, 4)],
         {'h counts from 1, as given': lambda h, n_head: 2 ** (-8 * (h + 1) / n_head)}),
        ('alibi', lambda dot_product, m, n, slope: dot_product - slope * (m - n),
         [(1.5, 9, 2, 0.25), (-1.0, 7, 7, 0.5)],
         {'far keys lose: the minus is missing': lambda dot, m, n, slope: dot + slope * (m - n),
          'the distance is m - n, the slope comes once': lambda dot, m, n, slope: dot - slope}),
        ('weight_ratio', lambda t, slope: math.exp(-slope * t), [(48, 1 / 16), (3, 0.5)],
         {'these are scores: the softmax takes e^ of them': lambda t, slope: -slope * t}),
        ('forgetting', gated, [(1.0, 4, 1, GATES), (0.5, 2, 2, GATES)],
         {"the key's gate does not count": lambda dot, m, n, gates: gated(dot, m, n - 1, gates),
          "the query's gate counts": lambda dot, m, n, gates: gated(dot, m - 1, n, gates)}),
        ('greatest_angle', lambda max_depth: TWO_PI / max_depth, [(8,), (3,)], {}),
    ],
    8: [
        ('key_for', lambda q, theta, distance: q * cmath.exp(1j * distance * theta),
         [(1 + 2j, 0.3, 5), (-1j, 1.0, 50)],
         {'the sign is wrong: at `distance` the query has turned further than the key':
          lambda q, theta, distance: q * cmath.exp(-1j * distance * theta)}),
        ('slowest', lambda base, head_size: base ** (-(head_size - 2) / head_size),
         [(10000.0, 32), (500.0, 8)],
         {'i counts from 0 to hs/2 - 1': lambda base, size: 1 / base}),
        ('exact_up_to', lambda bits: 2**bits, [(8,), (24,)],
         {'2^bits itself is exact, too: the next one is not': lambda bits: 2**bits - 1}),
        ('gain_of_scores', lambda factor: (0.1 * math.log(factor) + 1) ** 2, [(16,), (4,)],
         {'q and k both have it': lambda factor: 0.1 * math.log(factor) + 1}),
        ('angle_of_cached_key', lambda n, theta: 2 * n * theta, [(7, 0.3), (50, 1.0)],
         {'this is right, and the question is what goes wrong': lambda n, theta: n * theta}),
    ],
}

# in every part: what is wrong, and the wrong number made of the right one
ANYWHERE = {
    'the sign is wrong': lambda right: -right,
    'this is upside down': lambda right: right and 1 / right,
    'this is the rest, 1 less what is asked': lambda right: 1 - right,
    'it is twice as large as it should be': lambda right: 2 * right,
    'it is half as large as it should be': lambda right: right / 2,
    'it is 2 pi times too large': lambda right: TWO_PI * right,
    'it is 2 pi times too small': lambda right: right / TWO_PI,
    'this is the real part alone: keep the complex number': lambda right: right.real,
    'this is the length: keep the complex number': abs,
}


def equal(answer, right):
    """Numbers that are equal but for rounding. Anything else, such as None, is not equal."""
    try:
        return cmath.isclose(answer, right, rel_tol=1e-6, abs_tol=1e-9)
    except TypeError:
        return False


def judge(answer, right, cases, mistakes):
    """What to say of a function: 'right', 'not answered yet', or what is wrong."""
    answers = [answer(*case) for case in cases]
    if any(value is ... or value is None for value in answers):
        return 'not answered yet'
    expected = [right(*case) for case in cases]
    if all(map(equal, answers, expected)):
        return 'right'
    known = {remark: [wrong(*case) for case in cases] for remark, wrong in mistakes.items()}
    known |= {remark: map(wrong, expected) for remark, wrong in ANYWHERE.items()}
    for remark, numbers in known.items():
        if all(map(equal, answers, numbers)):
            return f'WRONG: {remark}'
    if all(isinstance(value, complex) and equal(value.real, number)
           for value, number in zip(answers, expected)):
        return 'WRONG: this is a complex number: take its .real'
    first = [equal(*pair) for pair in zip(answers, expected)].index(False)
    names = inspect.signature(answer).parameters
    given = ', '.join(f'{name}={argument}' for name, argument in zip(names, cases[first]))
    return f'WRONG: for {given} your function gives {answers[first]}'


def check(lesson, answers):
    """Print a line for each part of `answers`, a module; return how many are not right."""
    n_right = 0
    for name, right, cases, mistakes in LESSONS[lesson]:
        print(f'{name}: ', end='', flush=True)
        remark = judge(getattr(answers, name), right, cases, mistakes)
        print(remark, flush=True)
        n_right += remark == 'right'
    print(f'{n_right} of {len(LESSONS[lesson])} parts are right')
    return len(LESSONS[lesson]) - n_right


def main(arguments=None):
    parser = make_parser('lessons.check', __doc__)
    parser.add_argument('lesson', type=int, choices=LESSONS)
    lesson = parser.parse_args(arguments).lesson
    if check(lesson, importlib.import_module(f'lessons.exercises.lesson_{lesson}')):
        sys.exit(1)


if __name__ == '__main__':
    with one_line_errors():
        main()
