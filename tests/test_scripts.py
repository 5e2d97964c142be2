"""eval.py and sample.py from end to end, and the page without the lab."""

import math
import re
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eval as eval_file
import sample
from configurator import one_line_errors
from conftest import ROOT, SMALL, Run, script
from configurator import Hardware
from model import ATTENTIONS, GPT, Attention, GPTConfig, UserError
from tasks import make_rng, make_task

KINDS = [('dyck:max_depth=3', 'bifocal'), ('bio_rotation:period=3', 'spectral'),
         ('modulo', 'tapa'), ('text', 'rope')]
CPU = Hardware('cpu', 'float32')
kinds = pytest.mark.parametrize('task, attention', KINDS)


def evaluate(*folders, multiples=(1,), more=()):
    eval_file.main([*map(str, folders), '--n=16', '--device=cpu', *more,
                    '--multiples', *map(str, multiples)])


# eval.py
@kinds
def test_eval_measures_what_it_says(runs, task, attention, capsys):
    folder = runs(task, attention)
    evaluate(folder, multiples=(2, 1))
    printed = capsys.readouterr().out
    lengths = re.findall(r'^ +\dx +(\d+) ', printed, flags=re.MULTILINE)
    assert lengths == ['16', '32']

    # the same numbers, computed anew from the definition
    model, task, saved = eval_file.load_run(folder, 'best.pt', 'cpu')
    x, y = task.sample(make_rng('test', str(task), 32), 16, 32, 'test')
    with torch.no_grad():
        logits = model(torch.from_numpy(x))[0]
    scored, (m, _) = y >= 0, eval_file.measure(model, task, 32, 16, CPU)
    right = (logits.argmax(-1).numpy() == y) & scored
    loss = F.cross_entropy(logits[torch.from_numpy(scored)], torch.from_numpy(y[scored]))
    assert m['loss'] == pytest.approx(loss.item(), rel=1e-4)
    assert m['accuracy'] == pytest.approx(right.sum() / scored.sum())
    assert m['exact'] == pytest.approx(np.mean(right.sum(1) == scored.sum(1)))
    counted = scored
    if task.name == 'dyck':  # closers that follow a closer
        counted = scored & (x >= task.k) & (x < 2 * task.k)
    assert m['headline'] == pytest.approx((right & counted).sum() / counted.sum())
    assert f'best.pt, update {saved["iter"]}\n' in printed
    headline = f'{100 * m["headline"]:.2f} ± {100 * m["headline_interval"]:.2f} %'
    assert f'32 {m["loss"]:>10.5f} ' in printed and headline in printed


class Half(nn.Module):
    """It answers Modulo, wrongly in some rows and places: at first every other row."""
    config = GPTConfig(vocab_size=14)

    def __init__(self, rows=slice(1, None, 2), places=slice(None)):
        super().__init__()
        self.rows, self.places = rows, places

    def forward(self, x):
        self.autocast = torch.is_autocast_enabled('cpu')
        logits = F.one_hot((x + torch.arange(x.size(1)) + x[:, :1]) % 7, 14).float()
        logits[self.rows, self.places, 13] = 2.0  # the answer that is never right
        return logits, None


def test_the_headline_has_an_interval_of_independent_strings():
    m, (x, y, right) = eval_file.measure(Half(), make_task('modulo'), 16, 400, CPU)
    assert m['headline'] == 0.5 == m['exact'] and m['targets'] == 400 * 15
    assert m['headline_interval'] == pytest.approx(1.96 * 0.5 / math.sqrt(400))
    assert right.sum() == 200 * 15 and x.shape == y.shape == right.shape == (400, 16)


def test_what_strings_that_agree_say_of_others():
    def interval(model, n):
        return eval_file.measure(model, make_task('modulo'), 16, n, CPU)[0]['headline_interval']
    assert interval(Half(rows=slice(0)), 100) == 3 / 100  # the rule of three: all are right
    assert interval(Half(rows=slice(1)), 100) >= 3 / 100  # one wrong string tells no more
    assert interval(Half(places=slice(8, None), rows=slice(None)), 1) == 1  # one: nothing


def test_evaluation_has_the_dtype_that_is_chosen_and_any_batches():
    model, task = Half(), make_task('modulo')
    x, y = map(torch.from_numpy, task.sample(make_rng('a'), 12, 16))
    one, two = (eval_file.evaluate(model, x, y, size) for size in (4, 12))
    assert one[0] == pytest.approx(two[0], rel=1e-5) and torch.equal(one[2], two[2])
    for dtype in ('float32', 'bfloat16'):
        eval_file.measure(model, task, 16, 2, Hardware('cpu', dtype))
        assert model.autocast == (dtype == 'bfloat16')


def test_the_learned_numbers_of_any_attention_are_recorded(monkeypatch):
    class Slope(Attention):
        def __init__(self, config):
            super().__init__(config)
            self.slope = nn.Parameter(torch.tensor([1.0, 1 / 3]))

    monkeypatch.setitem(ATTENTIONS, 'slope', Slope)
    model = GPT(GPTConfig(vocab_size=14, attention='slope,nope'))
    assert eval_file.learned_state(model) == dict(slope=[[1, 0.333333343], []])


def test_lengths_that_a_small_text_lacks_are_left_out(tmp_path, capsys):
    letters = make_rng('a short text').choice(list('abcdefg \n'), 6000)
    (tmp_path / 'short.txt').write_text(''.join(letters), encoding='utf-8')
    folder = Run(tmp_path / 'run').train(f'--task=text:path={tmp_path}/short.txt',
                                         '--max_iters=1').folder
    evaluate(folder, multiples=(1, 4, 64))
    printed = capsys.readouterr().out
    assert '64x left out' in printed and ' 4x ' in printed
    with pytest.raises(UserError, match='no length could be measured'):
        evaluate(folder, multiples=(64,))


@pytest.mark.parametrize('command', ['eval.py x --n=0', 'eval.py x --multiples 0',
                                     'sample.py x --length=-5', 'sample.py x --top_k=-1'])
def test_a_count_of_nothing_is_refused(command, capsys):
    script, *words = command.split()
    with pytest.raises(SystemExit):
        {'eval.py': eval_file, 'sample.py': sample}[script].main(words)
    assert 'must be a whole number from 1' in capsys.readouterr().err


# sample.py
def test_sample_shows_answers_and_marks_mistakes(runs, capsys):
    folder = runs('dyck:max_depth=3', 'bifocal')
    sample.main([str(folder), '--n=20', '--device=cpu'])
    *blocks, last = capsys.readouterr().out.strip('\n').split('\n\n')
    model, task, _ = eval_file.load_run(folder, 'best.pt', 'cpu')
    correct = 0
    for block in blocks:
        lines = {line[:7].strip(): line[9:] for line in block.splitlines()}
        x = task.encode(lines['input'].rstrip())
        truth, output = (lines[name][len(x):] for name in ('truth', 'model'))
        assert task.encode(truth).tolist() == task.completion(x).tolist()
        expected = model.generate(torch.from_numpy(x)[None], len(truth), 0)[0, len(x):]
        assert output == task.decode(expected)
        wrong = [len(x) + i for i, (a, b) in enumerate(zip(truth, output)) if a != b]
        assert [i for i, char in enumerate(lines.get('', '')) if char == '!'] == wrong
        correct += not wrong
    assert len(set(blocks)) > 10 and last.endswith(f'{correct} of 20 are right')


def test_a_string_is_cut_wherever_something_is_still_missing():
    task = make_task('dyck')
    x = task.encode('^()([])')
    starts = {task.decode(sample.cut(task, x, make_rng(seed))) for seed in range(99)}
    assert starts == {'^(', '^()(', '^()([', '^()([]'}


@pytest.mark.parametrize('task, attention, prompt, expected', [
    ('dyck:max_depth=3', 'bifocal', '([', '])'),
    ('bio_rotation:period=3', 'spectral', 'ACG...', 'ACG'),
    ('modulo', 'tapa', 'C2503', '141')])
def test_sample_answers_a_prompt(runs, capsys, task, attention, prompt, expected):
    folder = str(runs(task, attention))
    sample.main([folder, f'--prompt={prompt}', '--device=cpu', '--temperature=1', '--top_k=2'])
    truth = [line.split()[1:] for line in capsys.readouterr().out.splitlines()
             if line.startswith('  truth')]
    assert ''.join(truth[0]) == expected
    for bad in ('()', 'xyz', '...', 'C', '(]'):
        with pytest.raises(UserError):
            sample.main([folder, f'--prompt={bad}', '--device=cpu'])


def test_sample_answers_by_its_seed_of_any_size(runs, capsys):
    folder = str(runs('modulo', 'tapa'))

    def answers(*seed):
        capsys.readouterr()  # the run may have printed
        sample.main([folder, '--prompt=C25031234', '--temperature=5', '--device=cpu', *seed])
        return capsys.readouterr().out
    assert answers() == answers('--seed=0') != answers('--seed=99999999999999999999')


def test_sample_continues_a_text(runs, capsys):
    folder = runs('text', 'rope')
    sample.main([str(folder), '--prompt=def ', '--length=5', '--device=cpu'])
    model, task, _ = eval_file.load_run(folder, 'best.pt', 'cpu')
    ids = model.generate(torch.from_numpy(task.encode('def '))[None], 5, 0)[0]
    assert capsys.readouterr().out.endswith(f'def [{task.decode(ids[4:])}]\n\n')


def test_a_model_cannot_control_the_terminal(runs, capsys, monkeypatch):
    ids = make_task('text').encode('a\n\té\x1b[2J\x07\x9b\u202eb')

    def generate(model, prompt, length, **options):
        return torch.cat([prompt, torch.from_numpy(ids)[None]], dim=1)
    monkeypatch.setattr(GPT, 'generate', generate)
    with one_line_errors():
        sample.main([str(runs('text', 'rope')), '--prompt=x', '--device=cpu'])
    printed = capsys.readouterr().out
    assert 'x[a\n\té\N{REPLACEMENT CHARACTER}[2J' in printed and printed.endswith('b]\n\n')
    assert all(char.isprintable() or char in '\n\t' for char in printed)


# the scripts as processes
def test_the_page_runs_with_the_lab_deleted(tmp_path):
    """Beside what git leaves of a lab, and with a terminal that has no ±."""
    for path in ROOT.glob('*.py'):
        shutil.copy(path, tmp_path)
    shutil.copytree(ROOT / 'config', tmp_path / 'config')
    (tmp_path / 'lab' / '__pycache__').mkdir(parents=True)
    (tmp_path / 'theirs' / 'lab').mkdir(parents=True)
    (tmp_path / 'theirs' / 'lab' / '__init__.py').write_text('1 / 0', encoding='utf-8')
    out = str(tmp_path / 'run')
    for command in (['train.py', 'config/dyck3_spectral.py', *SMALL, f'--out_dir={out}'],
                    ['eval.py', out, '--n=8'],
                    ['sample.py', out, '--n=2']):
        done = script(*command, cwd=tmp_path, PYTHONIOENCODING='ascii', PYTHONPATH='theirs')
        assert (done.returncode, done.stderr) == (0, '')
    # what the page does not have is an error of the user, one line each
    for option in ('--frequencies=spiral', '--task=spiral', '--init_from=out/another'):
        done = script('train.py', f'--out_dir={out}2', option, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count('\n')) == (1, '', 1), done.stderr
        assert done.stderr.startswith('train.py: ') and option.partition('=')[2] in done.stderr
