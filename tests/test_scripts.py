"""eval.py and sample.py from end to end, errors of one line, and the page without the lab."""

import json
import math
import shutil
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import checkpoint as checkpoint_file
import eval as eval_file
import sample
from configurator import one_line_errors
from conftest import ROOT, SMALL, Run, script
from model import ATTENTIONS, GPT, Attention, GPTConfig, UserError
from tasks import make_rng, make_task

KINDS = [('dyck:max_depth=3', 'bifocal'), ('bio_rotation:period=3', 'spectral'),
         ('modulo', 'tapa'), ('text', 'rope')]
REPLACED = '\N{REPLACEMENT CHARACTER}'


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """runs(task, attention) is the folder of a small trained run, made once."""
    folders = {}

    def get(task, attention):
        if (task, attention) not in folders:
            folder = tmp_path_factory.mktemp('runs') / 'run'
            Run(folder).train(f'--task={task}', f'--attention={attention}', '--max_iters=30',
                              '--eval_interval=10')
            folders[task, attention] = folder
        return folders[task, attention]
    return get


class Slope(Attention):
    """What a student may write: an attention with learned numbers of its own."""

    def __init__(self, config):
        super().__init__(config)
        self.slope = nn.Parameter(torch.arange(1.0, 1 + config.n_head))
        self.offset = nn.Parameter(torch.tensor(1 / 3))

    def scores(self, q, k):
        return q @ k.mT * self.slope[:, None, None] + self.offset


def small_model(**options):
    sizes = dict(vocab_size=14, block_size=16, n_layer=1, n_head=4, n_embd=32)
    return GPT(GPTConfig(**(sizes | options)))


# eval.py: the numbers

@pytest.mark.parametrize('task, attention', KINDS)
def test_eval_measures_what_it_says(runs, task, attention, capsys):
    folder = runs(task, attention)
    eval_file.main([str(folder), '--n=16', '--device=cpu', '--multiples', '2', '1'])
    printed = capsys.readouterr().out
    result = json.loads((folder / 'eval.json').read_text())
    assert list(result['lengths']) == ['16', '32']
    assert (result['task'], result['attention'], result['dtype']) == (task, attention, 'float32')
    assert {'commit', 'date', 'processor', 'threads', 'torch'} <= result.keys()

    # the same numbers, computed anew from the definition
    model, task, _ = eval_file.load_run(folder, 'best.pt', 'cpu')
    x, y = task.sample(make_rng('test', str(task), 32), 16, 32, 'test')
    with torch.no_grad():
        logits = model(torch.from_numpy(x))[0]
    scored, m = y >= 0, result['lengths']['32']
    right = (logits.argmax(-1).numpy() == y) & scored
    loss = F.cross_entropy(logits[torch.from_numpy(scored)], torch.from_numpy(y[scored]))
    assert m['loss'] == pytest.approx(loss.item(), rel=1e-4)
    assert m['accuracy'] == pytest.approx(right.sum() / scored.sum())
    exact = [right[b].sum() == scored[b].sum() for b in range(16)]
    assert m['exact'] == pytest.approx(np.mean(exact))
    counted = scored
    if task.name == 'dyck':  # closers that follow a closer
        counted = scored & (x >= task.k) & (x < 2 * task.k)
    assert m['headline'] == pytest.approx((right & counted).sum() / counted.sum())
    for group, cells in m['breakdown'].items():
        assert cells and all(label in printed for label in cells), group
    pairs = {'spectral': 8, 'bifocal': 4}.get(attention, 0)
    assert len(result['frequencies']) == pairs
    assert (folder / 'eval.png').read_bytes()[:4] == b'\x89PNG'


def test_the_headline_has_an_interval_of_independent_sequences():
    """One row all right and one all wrong, again and again: the interval is that of rows."""
    def half(x):
        logits = F.one_hot((x + torch.arange(x.size(1)) + x[:, :1]) % 7, 14).float()
        logits[1::2, :, 13] = 2.0  # every second row has the answer that is never right
        return logits, None
    m = eval_file.measure(half, make_task('modulo'), 16, 400, 'cpu')
    assert m['headline'] == 0.5 == m['exact']
    assert m['headline_interval'] == pytest.approx(1.96 * 0.5 / math.sqrt(400))


def test_a_cell_counts_targets_and_the_sequences_that_have_them_all_right():
    right = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=bool)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]], dtype=bool)
    assert eval_file.cell(right, mask) == [3 / 5, 5, 1 / 2]


def test_evaluation_runs_in_the_dtype_that_is_chosen():
    seen = []

    def model(x):
        seen.append((torch.is_autocast_enabled('cpu'), torch.get_autocast_dtype('cpu')))
        return torch.zeros(*x.shape, 14), None
    for dtype in ('auto', 'float32', 'bfloat16'):
        eval_file.measure(model, make_task('modulo'), 16, 2, 'cpu', dtype=dtype)
    assert [enabled for enabled, _ in seen] == [False, False, True]
    assert seen[2][1] == torch.bfloat16


def test_the_result_does_not_depend_on_the_size_of_its_batches(runs):
    model, task, _ = eval_file.load_run(runs(*KINDS[0]), 'best.pt', 'cpu')
    one, all_ = (eval_file.measure(model, task, 16, 12, 'cpu', batch_size=n) for n in (5, 12))
    assert one['breakdown'] == all_['breakdown']
    assert one['loss'] == pytest.approx(all_['loss'], rel=1e-5)


# eval.py: what attentions learn

def test_the_frequency_table_finds_the_harmonic(runs):
    model, _, _ = eval_file.load_run(runs('bio_rotation:period=3', 'spectral'), 'best.pt', 'cpu')
    unit = 2 * math.pi / 7
    with torch.no_grad():
        Omega = model.blocks[0].attention.Omega
        Omega[0, 0] = 2 * math.pi  # rotates nothing
        Omega[1] = torch.tensor([unit + 1e-4, -2 * unit, unit - 2e-3, 1e-5])
    table = eval_file.frequency_table(model, 7)
    rows = {(row['head'], row['pair']): row for row in table}
    assert len(rows) == len(table) == 2 * 4
    assert [rows[1, pair]['harmonic'] for pair in range(4)] == [1, 2, 1, 0]
    assert [rows[1, pair]['locked'] for pair in range(4)] == [True, True, False, False]
    assert rows[1, 0]['error'] == pytest.approx(1e-4, rel=1e-2)
    assert (rows[0, 0]['harmonic'], rows[0, 0]['locked']) == (0, False)
    assert rows[1, 0]['theta'] == 1
    assert 'harmonic' not in eval_file.frequency_table(model, None)[0]


@pytest.mark.parametrize('options, places', [
    (dict(attention='spectral'), [(0, 0), (0, 1), (0, 2), (0, 3)]),
    (dict(attention='bifocal'), [(0, 2), (0, 3)]),
    (dict(attention='spectral', n_kv_head=2), [(0, 0), (0, 1)]),
    (dict(attention='rope,bifocal,nope,spectral', n_layer=4, n_kv_head=2),
     [(1, 1), (3, 0), (3, 1)])])
def test_a_spectral_head_has_its_layer_and_number_in_the_model(options, places, capsys):
    model = small_model(**options)
    rows = eval_file.frequency_table(model, 7)
    assert list(dict.fromkeys((row['layer'], row['head']) for row in rows)) == places
    assert len(rows) == 4 * len(places)
    # its rotation is that of this head: a RoPE head of the model has no row
    nh, nkv = model.config.n_head, model.config.n_kv_head
    q, k = torch.randn(1, nh, 3, 8), torch.randn(1, nkv, 3, 8)
    found = []
    for layer, block in enumerate(model.blocks):
        if hasattr(block.attention, 'Omega'):
            before = block.attention.rotate(q, k, torch.arange(3))[1]
            with torch.no_grad():
                block.attention.Omega += 1
            changed = (block.attention.rotate(q, k, torch.arange(3))[1] != before)[0, :, 1]
            found += [(layer, head) for head in range(nkv) if changed[head].any()]
    assert found == places
    eval_file.print_frequencies(eval_file.frequency_table(model, 7), 7, 64)
    assert "of the task's period" in capsys.readouterr().out


def test_the_learned_numbers_of_any_attention_are_recorded(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'slope', Slope)
    model = small_model(attention='slope', n_layer=2)
    state = eval_file.learned_state(model)
    assert state['slope'] == [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert state['offset'] == [0.333333343] * 2 and state['slope_grad_norm'] == 0
    x = torch.arange(14)[None]
    model(x, x)[1].backward()
    gradients = torch.cat([block.attention.slope.grad for block in model.blocks])
    state = eval_file.learned_state(model)
    assert state['slope_grad_norm'] == pytest.approx(gradients.norm().item()) != 0
    assert eval_file.learned_state(small_model()) == {}


def test_layers_that_learn_nothing_have_no_numbers_in_the_log():
    model = small_model(attention='rope,bifocal,spectral', n_layer=3)
    state = eval_file.learned_state(model)
    assert [len(layer) for layer in state['Omega']] == [0, 2, 4]
    log = [dict(iter=0, val_loss=1.0, **state)]
    learned = checkpoint_file.read_learned(log, 'Omega')
    assert [layer.shape for layer in learned] == [(1, 0, 0), (1, 2, 4), (1, 4, 4)]


def test_a_run_logs_frequencies_and_their_gradients(runs):
    folder = runs('bio_rotation:period=3', 'spectral')
    lines = [json.loads(line) for line in (folder / 'log.jsonl').read_text().splitlines()]
    lines = [line for line in lines if 'val_loss' in line]
    for name in ('Omega', 'A', 'Phi'):
        assert np.shape([line[name] for line in lines]) == (4, 1, 2, 4)
        assert all(line[f'{name}_grad_norm'] > 0 for line in lines)
    assert lines[0]['Omega'][0][0][0] == 1 != lines[-1]['Omega'][0][0][0]


# eval.py: what it prints and writes

def test_of_a_long_breakdown_some_rows_are_printed(capsys):
    cells = {f'turn-{i}': [1 - i / 1000, 1, 1.0] for i in range(51)}
    cells['turn-48'][0] = 0.1
    lengths = {'64': dict(breakdown={'turn': {'turn-0': [1.0, 1, 1.0]}}),
               '512': dict(breakdown={'turn': cells, 'short': {'a': [1.0, 1, 1.0]}})}
    eval_file.print_details(dict(lengths=lengths, period=None, frequencies=[]))
    printed = capsys.readouterr().out
    shown = [label for label in cells if f'{label} ' in printed]
    assert shown == [f'turn-{i}' for i in range(0, 51, 4)] and '10.00 %' in printed
    assert 'by turn, rows 1, 5, 9, ...\n' in printed and 'by short\n' in printed


def write_text(path):
    """A text of 6000 bytes, so its test split has about 300."""
    rng = make_rng('a short text')
    letters = rng.choice(list('abcdefg \n'), 6000)
    path.write_text(''.join(letters))
    return f'--task=text:path={path}'


def test_lengths_that_a_small_text_lacks_are_left_out(tmp_path, capsys):
    task = write_text(tmp_path / 'short.txt')
    folder = Run(tmp_path / 'run').train(task, '--max_iters=1').folder
    arguments = [str(folder), task, '--n=4', '--device=cpu', '--multiples']
    eval_file.main([*arguments, '1', '4', '64'])
    assert '64x' in capsys.readouterr().out
    result = (folder / 'eval.json').read_text()
    assert list(json.loads(result)['lengths']) == ['16', '64']
    # the same numbers, wherever the text lies
    moved = shutil.copy(tmp_path / 'short.txt', tmp_path / 'moved.txt')
    eval_file.main([str(folder), f'--task=text:path={moved}', *arguments[2:], '1', '4'])
    again = json.loads((folder / 'eval.json').read_text())
    assert again['lengths'] == json.loads(result)['lengths']
    result = json.dumps(again) + '\n'
    with pytest.raises(UserError):  # none fits; the old result stays
        eval_file.main([*arguments, '64'])
    assert (folder / 'eval.json').read_text() == result


def test_an_error_at_one_length_does_not_lose_the_others(runs, monkeypatch):
    folder = runs('modulo', 'tapa')
    measure = eval_file.measure

    def fail(model, task, length, *more, **options):
        if length > 32:
            raise MemoryError
        return measure(model, task, length, *more, **options)
    monkeypatch.setattr(eval_file, 'measure', fail)
    with pytest.raises(MemoryError):
        eval_file.main([str(folder), '--n=4', '--device=cpu'])
    assert list(json.loads((folder / 'eval.json').read_text())['lengths']) == ['16', '32']


def test_a_checkpoint_other_than_the_best_has_files_of_its_own(runs):
    folder = runs('modulo', 'tapa')
    eval_file.main([str(folder), '--checkpoint=ckpt.pt', '--n=4', '--device=cpu'])
    result = json.loads((folder / 'eval_ckpt.json').read_text())
    assert result['iter'] == 30 and (folder / 'eval_ckpt.png').exists()


# eval.py: the figure

def draw(monkeypatch, log, **result):
    """The matplotlib figure of lab/figure.py; rows and breakdown are made up."""
    from matplotlib.figure import Figure

    from lab import figure as figure_file
    figures, save = [], Figure.savefig

    def savefig(figure, *arguments, **options):
        figures.append(figure)
        save(figure, *arguments, **options)
    monkeypatch.setattr(Figure, 'savefig', savefig)
    breakdown = {'depth': {'1': [1.0, 9, 1.0], '2': [0.5, 9, 0.5]}}
    default = dict(task='dyck', attention='spectral', block_size=64, chance=1 / 3, period=10,
                   headline=('closers', 'non-trivial'), frequencies=[],
                   lengths={T: dict(headline=0.5, breakdown=breakdown) for T in ('64', '512')})
    png = figure_file.draw_figure(log, default | result)
    assert png[:4] == b'\x89PNG'
    return figures[0]


def test_the_figure_has_the_paths_of_frequencies_and_the_harmonic(monkeypatch):
    """A pair that rotates backwards can lock, too. NaN is no loss, and a loss may be 0."""
    harmonic = 2 * math.pi / 10
    rows = [dict(Omega=-harmonic, harmonic=1, locked=True), dict(Omega=0.3, locked=False)]
    log = [dict(iter=i, val_loss=loss, Omega=[[[omega, 0.3]]])
           for i, loss, omega in ((0, 0.9, -0.6), (1, math.nan, -0.6), (2, 0.0, -harmonic))]
    log.insert(1, dict(iter=0.5, train_loss=1.0))
    figure = draw(monkeypatch, log, frequencies=rows)
    frequencies, loss, by_length, by_group = figure.axes
    other, locked = frequencies.lines[:2]
    assert list(locked.get_ydata()) == [0.6, 0.6, harmonic]
    assert locked.get_linewidth() > 2 > other.get_linewidth()
    assert [text.get_text() for text in frequencies.texts] == [' $2\\pi\\cdot1/10$']
    losses = loss.lines[0].get_ydata()
    assert math.isnan(losses[1]) and [losses[0], losses[2]] == [0.9, 1e-6]
    assert list(by_length.lines[0].get_ydata()) == [50, 50]
    assert list(by_group.lines[0].get_ydata()) == [100, 50]


def test_the_figure_takes_what_a_run_may_be(monkeypatch):
    """No loss but 0, a log without a validation, a path that looks like a formula."""
    log = [dict(iter=i, val_loss=0.0) for i in range(3)]
    figure = draw(monkeypatch, log, task='text:path=$a_{$b', headline=None, period=None,
                  lengths={'64': dict(headline=1.0, breakdown={'$_{$': {'$_{$': [1.0, 1, 1.0]}})})
    assert figure.get_suptitle().replace('\\', '') == 'text:path=$a_{$b, spectral'
    rows = [dict(Omega=0.3, harmonic=0, locked=False)]
    draw(monkeypatch, [], frequencies=rows, lengths={'64': dict(headline=1.0, breakdown={})})


def test_eval_without_matplotlib_measures_and_says_how_to_get_it(runs, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    folder = runs('modulo', 'tapa')
    (folder / 'eval.json').unlink(missing_ok=True)
    eval_file.main([str(folder), '--n=8', '--device=cpu', '--multiples', '1'])
    assert 'pip install matplotlib' in capsys.readouterr().out
    assert (folder / 'eval.json').exists()


# sample.py

def test_sample_shows_answers_and_marks_mistakes(runs, capsys):
    folder = runs('dyck:max_depth=3', 'bifocal')
    sample.main([str(folder), '--n=20', '--device=cpu'])
    shown = capsys.readouterr().out
    model, task, _ = eval_file.load_run(folder, 'best.pt', 'cpu')
    correct, prompts = 0, set()
    for block in shown.split('\n\n')[:-1]:
        lines = {line[:7].strip(): line[9:] for line in block.strip('\n').splitlines()}
        if 'prompt' not in lines:
            continue
        prompt, truth, output = (task.encode(lines[name]) for name in ('prompt', 'truth', 'model'))
        assert list(truth) == list(task.completion(prompt))
        expected = model.generate(torch.from_numpy(prompt)[None], len(truth), 0)[0]
        assert output.tolist() == expected.tolist()
        wrong = np.flatnonzero(output[len(prompt):] != truth) + len(prompt)
        carets = [i for i, char in enumerate(lines.get('', '')) if char == '^']
        assert carets == wrong.tolist()
        correct += len(wrong) == 0
        prompts.add(lines['prompt'])
    assert len(prompts) > 10 and shown.strip().endswith(f'{correct} of 20 are right')


@pytest.mark.parametrize('task, attention, prompt, expected', [
    ('dyck:max_depth=3', 'bifocal', '([', '])'),
    ('bio_rotation:period=3', 'spectral', 'ACG...', 'ACG'),
    ('modulo', 'tapa', 'C2503', '141')])
def test_sample_answers_a_prompt(runs, capsys, task, attention, prompt, expected):
    folder = runs(task, attention)
    sample.main([str(folder), f'--prompt={prompt}', '--device=cpu', '--temperature=1',
                 '--top_k=2'])
    lines = capsys.readouterr().out.splitlines()
    truth = [line.split()[1:] for line in lines if line.startswith('  truth')]
    assert ''.join(truth[0]) == expected
    for bad in ('()', 'xyz', '', '...', '500', 'C', '(]'):
        with pytest.raises(UserError):
            sample.main([str(folder), f'--prompt={bad}', '--device=cpu'])


def test_sample_continues_a_text(runs, capsys):
    folder = runs('text', 'rope')
    sample.main([str(folder), '--prompt=def ', '--length=5', '--device=cpu'])
    model, task, _ = eval_file.load_run(folder, 'best.pt', 'cpu')
    ids = model.generate(torch.from_numpy(task.encode('def '))[None], 5, 0)[0].numpy()
    assert capsys.readouterr().out.endswith(f'def [{task.decode(ids[4:])}]\n\n')
    with pytest.raises(UserError):
        sample.main([str(folder), '--prompt=', '--device=cpu'])


def test_a_continuation_that_is_too_long_names_what_sample_py_has(tmp_path):
    task = write_text(tmp_path / 'short.txt')
    folder = Run(tmp_path / 'run').train(task, '--max_iters=1').folder
    with pytest.raises(UserError, match='^9999 tokens and the next one are too many for text'):
        sample.main([str(folder), task, '--length=9999', '--device=cpu'])


def test_a_small_temperature_takes_the_likeliest(runs, capsys):
    printed = []
    for temperature in ('0', '1e-320'):
        for task, attention in KINDS:
            sample.main([str(runs(task, attention)), f'--temperature={temperature}',
                         '--device=cpu', '--n=3', '--length=16'])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.parametrize('hostile', [
    '\x1b[2J', '\x1b]0;title\x07', '\x1b]52;c;cm0gLXJm\x07', '\x9b31m', '\r', '\x7f',
    '\u202e', '\u2066', '\u2028', '\x00'])
def test_a_model_cannot_control_the_terminal(runs, capsys, monkeypatch, hostile):
    task = make_task('text')
    ids = task.encode(f'a\n\té{hostile}b')

    def generate(model, prompt, length, **options):
        return torch.cat([prompt, torch.from_numpy(ids)[None].expand(len(prompt), -1)], dim=1)
    monkeypatch.setattr(GPT, 'generate', generate)
    with one_line_errors():
        sample.main([str(runs('text', 'rope')), '--prompt=x', '--device=cpu'])
    printed = capsys.readouterr().out
    assert 'x[a\n\té' in printed and printed.endswith('b]\n\n') and REPLACED in printed
    assert all(char.isprintable() or char in '\n\t' for char in printed)


@pytest.mark.parametrize('program, option', [
    (eval_file, '--n=0'), (eval_file, '--multiples=0'), (eval_file, '--n=9999999999'),
    (eval_file, '--dtype=int8'), (sample, '--top_k=0'), (sample, '--length=-1'),
    (sample, '--n=1e3'), (sample, '--temperature=nan'), (sample, '--temperature=-1'),
    (sample, f'--seed={"9" * 20}'), (sample, '--seed=-1'), (sample, f'--seed={"9" * 5000}')])
def test_an_option_that_cannot_be_is_refused(program, option, capsys):
    with pytest.raises(SystemExit) as end:
        program.main(['nowhere', option])
    assert end.value.code == 2 and option.split('=')[0] in capsys.readouterr().err


# the scripts as processes

@pytest.mark.parametrize('arguments, words', [
    (['train.py', '--attention=rpoe', '--out_dir=out/nowhere'],
     ['rpoe', 'rope', 'spectral', 'bifocal', 'tapa', 'nope']),
    (['eval.py', 'nowhere', '--device=cpu'], ['nowhere', 'best.pt']),
    (['sample.py', 'nowhere', '--device=meta'], ['meta'])])
def test_an_error_of_the_user_is_one_line(arguments, words):
    done = script(*arguments)
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr.startswith(arguments[0]) and done.stderr.count('\n') == 1
    assert all(word in done.stderr for word in words)


def test_the_page_runs_with_the_lab_deleted(tmp_path):
    """And with a terminal that has no ±."""
    for path in ROOT.glob('*.py'):
        shutil.copy(path, tmp_path)
    shutil.copytree(ROOT / 'config', tmp_path / 'config')
    out = str(tmp_path / 'run')
    for command in (['train.py', 'config/dyck3_spectral.py', *SMALL, f'--out_dir={out}'],
                    ['eval.py', out, '--n=8'],
                    ['sample.py', out, '--n=2']):
        done = script(*command, cwd=tmp_path, PYTHONIOENCODING='ascii')
        assert done.returncode == 0, done.stderr
    # what only the lab has is an error of the user, one line each
    options = ['--frequencies=linear', '--task=lag', '--init_from=out/another']
    (tmp_path / 'try_all.py').write_text(TRY_ALL)
    done = script('try_all.py', f'--out_dir={out}2', *options, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == len(options), done.stderr
    for option, line in zip(options, lines):
        assert option.partition('=')[2].partition(':')[0] in line


TRY_ALL = '''
import sys
from types import SimpleNamespace
import train
from configurator import configure
from model import UserError
out_dir, *options = sys.argv[1:]
for option in options:
    try:
        train.main(SimpleNamespace(**configure(dict(vars(train)), [out_dir, option])))
    except UserError as error:
        print(error)
'''
