"""The loop: what a run does and logs, resuming bit for bit, signals, errors."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

import train
from checkpoint import read_log
from configurator import configure, one_line_errors
from conftest import PAGE, ROOT, SMALL, Run, assert_same, assert_same_run
from model import ATTENTIONS, Attention, UserError
from tasks import make_rng

CONFIGS = sorted(ROOT.glob('config/*.py'))
POSITIONAL = ('Omega', 'A', 'Phi')


def losses(run):
    return [line['train_loss'] for line in run.log() if 'train_loss' in line]


def validations(run):
    return {line['iter']: line['val_loss'] for line in run.log() if 'val_loss' in line}


def test_the_rate_warms_up_and_falls_as_a_cosine():
    rates = [train.schedule(it, 100, 10, 0.1) for it in range(101)]
    assert rates[0] == 1 / 11
    assert rates[10] == max(rates) == 1
    assert all(a < b for a, b in zip(rates[:10], rates[1:11]))
    assert all(a > b for a, b in zip(rates[10:], rates[11:]))
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == train.schedule(500, 100, 10, 0.1) == pytest.approx(0.1)
    assert train.schedule(3, 3, 3, 0.1) == 1  # no division by zero


# what a run does
@pytest.mark.parametrize('attention', PAGE)
def test_every_attention_trains_and_leaves_a_complete_run(run, attention):
    this = run().train(f'--attention={attention}', '--task=modulo', '--max_iters=2')
    log = this.log()
    assert [line['iter'] for line in log] == [0, 0, 1, 2]
    heads = dict(spectral=2, bifocal=1).get(attention, 0)
    learned = set(POSITIONAL) if heads else set()
    for line in log:
        if 'val_loss' in line:
            assert line.keys() == {'iter', 'val_loss', 'val_acc'} | learned
            assert all(np.shape(line[name]) == (1, heads, 4) for name in learned)
            assert 0 <= line['val_acc'] <= 1 and 0 < line['val_loss'] < 4
        else:
            assert {'iter', 'train_loss', 'lr', 'grad_norm'} <= line.keys()
            assert line['lr'] == 4e-3 * train.schedule(line['iter'], 2, 2, 0)
    config = json.loads(this.files()['config.json'])
    assert config['options']['attention'] == config['model_args']['attention'] == attention
    made_with = {'argv', 'commit', 'cpu_capability', 'date', 'threads', 'torch', 'start'}
    assert made_with <= config['sessions'][0].keys()
    assert this.files().keys() == {'config.json', 'log.jsonl', 'ckpt.pt', 'best.pt', 'run.lock'}


def test_training_learns_and_stops_at_the_loss_that_is_asked_for(run):
    arguments = ('--task=bio_rotation:period=2', '--block_size=8', '--max_iters=400',
                 '--eval_interval=10', '--log_interval=400', '--batch_size=16',
                 '--learning_rate=1e-2')
    found = validations(run().train(*arguments, '--stop_loss=1.2'))
    *before, last = found.values()
    assert last < 1.2 < min(before) and max(found) < 400
    assert run().checkpoint('best.pt')['iter'] == run().checkpoint()['iter'] == max(found)


def test_evaluating_more_often_does_not_change_training(run):
    seldom = run('seldom').train('--eval_interval=6')
    often = run('often').train('--eval_interval=1', '--eval_sequences=20')
    assert_same(seldom.checkpoint()['model'], often.checkpoint()['model'])
    assert losses(seldom) == losses(often)


class Dropout(Attention):
    """It notes the mode of each pass."""
    modes = []

    def rotate(self, q, k, position):
        self.modes.append(self.training)
        return nn.functional.dropout(q, 0.5, self.training), k


def test_dropout_is_off_in_evaluation_alone(run, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'dropout', Dropout)
    run().train('--attention=dropout', '--max_iters=2', '--eval_interval=1', '--eval_sequences=4')
    assert Dropout.modes == [False, True] * 2 + [False]


def test_weights_and_data_have_random_numbers_of_their_own(run, monkeypatch):
    names = []

    def recorded(*name):
        names.append(name)
        return make_rng(*name)
    monkeypatch.setattr(train, 'make_rng', recorded)
    run().train('--seed=4', '--gradient_accumulation_steps=2')
    batches = [(4, 'train', it, slot) for it in range(8) for slot in range(2)]
    assert names == [(4, 'init'), ('validation', 'dyck'), *batches][:len(names)]
    assert len(names) == 2 + 13  # one is drawn ahead


def test_micro_batches_share_one_gradient(run, monkeypatch):
    """Four micro-batches with the same data do what one of them does."""
    monkeypatch.setattr(train, 'make_rng', lambda *names: make_rng(*names[:3]))  # without the slot
    four, one = run('four').train('--gradient_accumulation_steps=4'), run('one').train()
    for a, b in zip(four.log(), one.log()):
        for name in a.keys() & {'train_loss', 'grad_norm'}:
            assert a[name] == pytest.approx(b[name], rel=1e-3)


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """The losses of a run with no options."""
    return losses(Run(tmp_path_factory.mktemp('plain') / 'run').train('--attention=spectral'))


@pytest.mark.parametrize('option', [
    'seed=1',
    'dtype=bfloat16', 'grad_clip=0.01', 'grad_clip=0.0', 'optimizer=adamw', 'muon_lr=0.02',
    'learning_rate=0.01', 'positional_lr=0.1', 'beta1=0.5', 'beta2=0.5', 'weight_decay=9.0',
    'warmup_iters=4', 'lr_end=0.5', 'init_std=0.1', 'log_scale_length=16', 'rope_base=100.0',
    'attention=rope', 'phase_std=0.1', 'learn=frequency', 'n_head=1', 'max_iters=5'])
def test_an_option_changes_the_run(run, plain, option):
    assert losses(run().train('--attention=spectral', f'--{option}'))[4] != plain[4]


def test_a_clip_of_0_is_none(run):
    none, huge = run('none').train('--grad_clip=0.0'), run('huge').train('--grad_clip=1e9')
    assert losses(none) == losses(huge)


def test_best_is_the_lowest_validation_loss(run):
    this = run().train('--max_iters=60', '--eval_interval=2', '--learning_rate=10',
                       '--warmup_iters=60')  # it becomes ever worse
    found = validations(this)
    lowest = min(found, key=found.get)
    assert this.checkpoint('best.pt')['iter'] == lowest != 60


# stopped, killed, resumed
def test_a_killed_run_resumes_bit_for_bit(run):
    """2N iterations == N, kill -9, resume, N: states, and every line of the log."""
    arguments = ('--attention=bifocal', '--max_iters=120', '--eval_interval=10', '--log_interval=7')
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, 'train.py', *SMALL, f'--out_dir={run("killed").folder}', *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    complete = run('complete').train(*arguments)
    # there may be no line yet
    while not any(line['iter'] >= 28 for line in read_log(run('killed').folder)):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    at = run('killed').checkpoint()['iter']
    assert 0 < at < 120
    assert_same_run(complete, run('killed').resume())
    sessions = json.loads(run('killed').files()['config.json'])['sessions']
    assert [session['start'] for session in sessions] == [0, at]


@pytest.mark.parametrize('before', [0, 1])
def test_ctrl_c_says_how_to_go_on(run, monkeypatch, capsys, before):
    """But not if the folder has no state, or an old run's, for no validation came before."""
    run().train('--max_iters=1')
    real, calls = train.evaluate, []

    def evaluate(*arguments):
        calls.append(arguments)
        if len(calls) > before:
            raise KeyboardInterrupt
        return real(*arguments)
    monkeypatch.setattr(train, 'evaluate', evaluate)
    for arguments in (['--overwrite=True'], ['--init_from=resume']):
        with pytest.raises(SystemExit) as exit:
            run().train(*arguments)
        advised = '--init_from=resume goes on' in capsys.readouterr().out
        assert exit.value.code == 130 and advised == (before > 0 or 'resume' in arguments[0])


def test_a_resumed_run_has_its_own_options(run, capsys):
    arguments = ('--task=modulo', '--attention=bifocal', '--seed=7', '--dtype=bfloat16',
                 '--lr_end=1.0', '--optimizer=adamw', '--beta1=0.8', '--eval_interval=2')
    complete = run('complete').train(*arguments)
    half = run('half').train(*arguments, '--max_iters=3')  # where no evaluation was due
    capsys.readouterr()
    half.resume('--max_iters=6')
    printed = capsys.readouterr().out
    assert 'max_iters was 3 and is now 6' in printed and printed.count(' was ') == 1
    for part in ('model', 'optimizers', 'rng', 'iter'):
        assert_same(complete.checkpoint()[part], half.checkpoint()[part])
    assert losses(complete) == losses(half)
    assert validations(half) == validations(complete) | {3: validations(half)[3]}
    half.resume('--beta1=0.7', '--max_iters=7')
    assert half.checkpoint()['optimizers'][0]['param_groups'][0]['betas'][0] == 0.7
    before = half.files()
    for bad, message in [
            ('--attention=spectral', "attention='spectral': .* has 'bifocal', and cannot go on"),
            ('--n_embd=32', 'n_embd=32: .* has 16'), ('--task=dyck', 'task=dyck: .* modulo'),
            ('--max_iters=6', 'max_iters=6: .* has had 7 updates'),
            ('--optimizer=muon', 'optimizer='), ('--eval_sequences=9', 'eval_sequences='),
            ('--seed=8', 'seed=8: .* has 7')]:
        with pytest.raises(UserError, match=message):
            half.resume(bad)
    assert half.files() == before


def test_a_resumed_run_keeps_its_best_and_replaces_nothing_later(run):
    this = run().train('--overwrite=True', '--max_iters=3').resume()
    for name in ('ckpt.pt', 'best.pt'):  # of update 3, both
        state = this.checkpoint(name)
        assert state['iter'] == 3 and len(state['sessions']) == 2
        assert not state['options']['overwrite']


def test_the_clock_of_a_resumed_run_goes_on(run):
    this = run().train('--max_iters=3').resume('--max_iters=6')
    lines = read_log(this.folder)
    seconds = [line['seconds'] for line in lines]
    assert seconds == sorted(seconds)
    for line in lines:
        if 'tokens_per_second' in line:
            assert line['tokens_per_second'] == line['iter'] * 4 * 16 / line['seconds']
    assert this.checkpoint()['options']['init_from'] == 'scratch'


# what the user of an option can mend is one line
@pytest.mark.parametrize('argument', [
    *"""--task=dyk --attention=ropes --n_embd=15 --task=bio_rotation:period=20 --device=tpu
    --dtype=float8 --compile=maybe --optimizer=sgd --batch_size=0 --log_interval=0 --n_layer=0
    --muon_lr=-1.0 --log_scale_length=1 --learning_rate=-1.0 --grad_clip=-1.0 --n_head=0
    --init_std=-1.0 --phase_std=-1.0 --tapa_alpha=-0.5 --rope_base=0.0 --beta1=1.0
    --graph=True --init_from=resume --init_from=nowhere.pt
    --out_dir=README.md""".split(), f'--out_dir={"a" * 300}'])
def test_what_cannot_run_is_one_line_that_names_it(run, argument):
    name, value = argument[2:].split('=', 1)
    value = dict(resume='ckpt.pt', sgd='muon or adamw', maybe='auto, yes or no').get(value, value)
    with pytest.raises(UserError) as error:
        run().train(argument)
    assert value.split(':')[0] in str(error.value)
    assert not run().folder.exists() or run().files().keys() == {'run.lock'}


def test_an_empty_out_dir_is_not_the_current_folder(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="out_dir='': must be the name of a folder"):
        run().train('--out_dir=')
    assert not list(tmp_path.iterdir())


class Infinite(Attention):
    good = 0  # so many passes have finite scores

    def scores(self, q, k):
        type(self).good -= 1
        return q @ k.mT / (self.good >= 0)


@pytest.mark.parametrize('good, message', [
    (0, 'val_loss is nan at update 0'), (9, 'train_loss is nan at update 5: try a lower')])
def test_a_loss_that_is_no_number_stops_the_run(run, monkeypatch, good, message):
    monkeypatch.setitem(ATTENTIONS, 'infinite', Infinite)
    monkeypatch.setattr(Infinite, 'good', good)
    with pytest.raises(UserError, match=message):
        run().train('--attention=infinite')
    if good:  # else nothing is written
        assert all(p.isfinite().all() for p in run().checkpoint()['model'].values())
    assert ('ckpt.pt' in run().files()) == (good > 0)


# what a student writes
def test_an_error_in_a_students_class_keeps_its_traceback(run, monkeypatch):
    class Broken(Attention):
        def scores(self, q, k):
            raise ValueError('a mistake')
    monkeypatch.setitem(ATTENTIONS, 'broken', Broken)
    with pytest.raises(ValueError, match='a mistake') as error, one_line_errors():
        run().train('--attention=broken')
    assert error.traceback[-1].name == 'scores'


# the configs
@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_each_config_builds_and_takes_one_step(run, path, monkeypatch):
    options, given = configure(dict(vars(train)), [str(path), '--eval_sequences=2',
                                                   '--batch_size=2', '--device=cpu',
                                                   '--graph=False'])
    options |= dict(max_iters=1, gradient_accumulation_steps=1, out_dir=str(run().folder))
    train.main(SimpleNamespace(**options), given)
    assert [line['iter'] for line in run().log()] == [0, 0, 1]
