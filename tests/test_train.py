"""The loop: what a run leaves behind, resuming bit for bit, being stopped or killed, several processes, refusals."""

import json
import os
import pickle
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import train
from configurator import configure
from conftest import ROOT
from model import ATTENTIONS
from tasks import TASKS, stream

CONFIGS = sorted(ROOT.glob('config/*.py'))
OF_THE_PAGE = [path for path in CONFIGS if path.stem.rpartition('_')[0] in ('dyck3', 'bio_rotation', 'modulo', 'text')
               and not path.stem.endswith('_long')]  # the lab's tests try the others


def assert_same(a, b, path=''):
    """Equality of nested checkpoints, bit for bit."""
    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f'{path}.{key}')
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f'{path}[{i}]')
    elif torch.is_tensor(a):
        assert torch.equal(a, b), path
    else:
        assert a == b, path


def assert_same_state(a, b):
    for name in ('model', 'optimizers', 'scaler', 'iter', 'best_val_loss', 'rng', 'model_args', 'task', 'data'):
        assert_same(a[name], b[name], name)


def test_schedule():
    rates = [train.schedule(it, 100, 10, 0.1) for it in range(101)]
    assert rates[0] == 1 / 11 and rates[10] == 1 and max(rates) == 1
    assert all(a < b for a, b in zip(rates[:10], rates[1:11])) and all(a > b for a, b in zip(rates[10:], rates[11:]))
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == train.schedule(500, 100, 10, 0.1) == pytest.approx(0.1)
    assert train.schedule(3, 3, 3, 0.1) == 1  # no division by zero


def test_max_iters_alone_moves_the_end_of_the_schedule(run):
    for max_iters in (5, 9):
        last = run(f'{max_iters}').train(f'--max_iters={max_iters}', '--lr_end=0.1').log()[-1]
        assert last['iter'] == max_iters and last['lr'] == pytest.approx(2e-4)


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_every_attention_trains_and_leaves_a_whole_run(run, attention):
    this = run().train(f'--attention={attention}', '--task=modulo', '--max_iters=2', '--eval_interval=1')
    log = this.log()
    assert [line['iter'] for line in log] == [0, 1, 2]
    for line in log:
        assert {'iter', 'train_loss', 'val_loss', 'val_acc', 'lr', 'grad_norm'} <= line.keys()
        assert 0 <= line['val_acc'] <= 1 and 0 < line['val_loss'] < 4
        learned = [name for name in ('Omega', 'A', 'Phi') if name in line]
        assert bool(learned) == (attention in ('spectral', 'bifocal'))
        assert all(np.shape(line[name]) == (1, 2 if attention == 'spectral' else 1, 4) for name in learned)
        assert all(line[f'{name}_grad_norm'] > 0 for name in learned)
    config = json.loads((this.folder / 'config.json').read_text())
    assert config['options']['attention'] == config['model_args']['attention'] == attention
    assert config['sessions'][0]['torch'] == str(torch.__version__)
    assert {p.name for p in this.folder.iterdir()} == {'config.json', 'log.jsonl', 'ckpt.pt', 'best.pt'}


@pytest.mark.parametrize('task', TASKS)
def test_every_task_is_trained_on(run, task):
    assert len(run().train(f'--task={task}', '--max_iters=1').log()) == 2


def test_training_learns(run):
    log = run().train('--task=sum:modulus=2', '--block_size=4', '--max_iters=200', '--eval_interval=200',
                      '--batch_size=32', '--learning_rate=1e-2').log()
    assert log[-1]['val_loss'] < 0.5 * log[0]['val_loss']


def test_evaluating_more_often_does_not_change_training(run):
    seldom = run('seldom').train('--eval_interval=6')
    often = run('often').train('--eval_interval=1', '--eval_sequences=20')
    assert_same(seldom.checkpoint()['model'], often.checkpoint()['model'])
    assert [line['train_loss'] for line in seldom.log()] == [line['train_loss'] for line in often.log()]


def test_training_and_validation_have_streams_of_their_own(run, monkeypatch):
    names = []
    monkeypatch.setattr(train, 'stream', lambda *name: names.append(name) or stream(*name))
    run().train('--seed=4', '--gradient_accumulation_steps=2')
    batches = [(4, 'train', it, slot) for it in range(7) for slot in range(2)]
    expected = [(4, 'init'), ('validation', 'dyck'), *batches]
    assert names == expected


def test_the_seed_is_the_run(run):
    a, b, c = run('a').train('--seed=1'), run('b').train('--seed=1'), run('c').train('--seed=2')
    assert_same(a.checkpoint()['model'], b.checkpoint()['model'])
    assert a.log() == b.log() and a.log()[0]['train_loss'] != c.log()[0]['train_loss']


def test_spectral_parameters_wait_for_spectral_start_and_obey_learn(run):
    arguments = ('--attention=spectral', '--spectral_start=3', '--eval_interval=1', '--learn=frequency,phase')
    log = run().train(*arguments, '--weight_decay=1.0').log()
    for name, learned in (('Omega', True), ('A', False), ('Phi', True)):
        assert [line[name] != log[0][name] for line in log] == [it > 3 and learned for it in range(7)], name
        assert [line[f'{name}_grad_norm'] > 0 for line in log] == [it >= 3 and learned for it in range(7)], name


@pytest.mark.parametrize('options', [
    '--dtype=bfloat16', '--grad_clip=0.01', '--frequency_decay=9.0', '--optimizer=adamw'])
def test_an_option_changes_the_run(run, options):
    plain, other = run('a').train('--attention=spectral'), run('b').train('--attention=spectral', options)
    assert plain.log()[-1]['train_loss'] != other.log()[-1]['train_loss']


def overflowing(name, first):
    """GPT whose gradient of the parameter `name` is never a number; `first` takes the first weights."""
    class Overflowing(train.GPT):
        def __init__(self, config):
            super().__init__(config)
            first.update({key: value.clone() for key, value in self.state_dict().items()})
            self.get_parameter(name).register_hook(lambda gradient: gradient * float('nan'))
    return Overflowing


@pytest.mark.parametrize('name', ['embedding.weight', 'blocks.0.attention.qkv.weight'])  # AdamW's, and Muon's
def test_where_float16_overflows_no_optimiser_steps(run, monkeypatch, name):
    first = {}
    monkeypatch.setattr(train, 'GPT', overflowing(name, first))
    last = run().train('--dtype=float16', '--optimizer=muon', '--max_iters=2').checkpoint()
    assert_same({**last['model']}, first)
    assert last['scaler']['scale'] == 2.0**14  # halved twice


def test_where_frozen_frequencies_overflow_every_optimiser_steps(run, monkeypatch):
    first = {}
    monkeypatch.setattr(train, 'GPT', overflowing('blocks.0.attention.way.Omega', first))
    arguments = ('--dtype=float16', '--optimizer=muon', '--attention=spectral', '--spectral_start=9')
    last = run().train(*arguments, '--max_iters=2').checkpoint()['model']
    assert all(torch.equal(value, first[name]) == ('.way.' in name) for name, value in last.items())


@pytest.mark.parametrize('optimizer', ['adamw', 'muon'])
def test_float16_trains_and_resumes_bit_for_bit(run, optimizer):
    arguments = ('--dtype=float16', f'--optimizer={optimizer}', '--attention=spectral', '--lr_end=1.0')
    whole, half = run('whole').train(*arguments), run('half').train(*arguments, '--max_iters=3')
    assert whole.log()[-1]['train_loss'] < whole.log()[0]['train_loss'] and whole.checkpoint()['scaler']
    half.train(*arguments, '--init_from=resume')
    assert_same_state(whole.checkpoint(), half.checkpoint())


def test_best_is_the_lowest_validation_loss(run):
    this = run().train('--max_iters=60', '--eval_interval=2', '--learning_rate=10', '--warmup_iters=60')  # ever worse
    losses = {line['iter']: line['val_loss'] for line in this.log() if 'val_loss' in line}
    assert this.checkpoint('best.pt')['iter'] == min(losses, key=losses.get) != 60


def test_a_learning_rate_of_0_trains_the_frequencies_alone(run):
    arguments = ('--attention=spectral', '--learning_rate=0', '--eval_interval=6')
    start = run('start').train(*arguments, '--max_iters=1').checkpoint('ckpt.pt')
    end = run('end').train(*arguments).checkpoint()
    for name, weight in start['model'].items():
        assert torch.equal(weight, end['model'][name]) != ('.way.' in name), name


@pytest.mark.parametrize('optimizer', ['adamw', 'muon'])
def test_a_killed_run_resumes_bit_for_bit(run, optimizer):
    """2N iterations == N, kill -9, resume, N: weights, optimiser, random states, and every line of the log."""
    arguments = ('--attention=bifocal', f'--optimizer={optimizer}', '--max_iters=300', '--eval_interval=30',
                 '--log_interval=7', '--spectral_start=100')
    whole = run('whole').train(*arguments)
    killed = run('killed')
    process = killed.start(*arguments)
    while not (killed.folder / 'log.jsonl').exists() or len(killed.log()) < 20:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    at = killed.checkpoint()['iter']
    assert 0 < at < 300
    with open(killed.folder / 'log.jsonl', 'a') as log:
        log.write('{"iter": 399, "trai')  # a line cut short by the kill
    killed.train(*arguments, '--init_from=resume')
    assert_same_state(whole.checkpoint(), killed.checkpoint())
    assert_same_state(whole.checkpoint('best.pt'), killed.checkpoint('best.pt'))
    assert whole.log() == killed.log()
    sessions = json.loads((killed.folder / 'config.json').read_text())['sessions']
    assert [session['start'] for session in sessions] == [0, at]


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_save_and_exit(run, number):
    arguments = ('--max_iters=100000', '--eval_interval=100000')
    this = run()
    process = this.start(*arguments)
    while not (this.folder / 'log.jsonl').exists() or len(this.log()) < 3:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    process.send_signal(number)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 128 + number
    stopped = f'stopped by {number.name} at iteration {this.checkpoint()["iter"]}'
    assert f'{stopped}; continue with --init_from=resume' in output
    assert this.checkpoint()['iter'] > 1
    this.train('--init_from=resume', '--eval_interval=100000', f'--max_iters={this.checkpoint()["iter"] + 2}')
    iterations = [line['iter'] for line in this.log()]
    assert iterations == list(range(len(iterations)))


def test_a_checkpoint_half_written_leaves_the_old_one_whole(run, monkeypatch):
    this = run().train()
    before = (this.folder / 'ckpt.pt').read_bytes()

    def dies(number):
        raise KeyboardInterrupt
    monkeypatch.setattr(os, 'fsync', dies)
    with pytest.raises(KeyboardInterrupt):
        train.write(this.folder, {'ckpt.pt': b'half'})
    monkeypatch.undo()
    assert (this.folder / 'ckpt.pt').read_bytes() == before
    this.train('--init_from=resume', '--max_iters=8')


def test_two_processes_agree_with_one(run):
    arguments = ('--attention=spectral', '--gradient_accumulation_steps=2', '--max_iters=8')
    one, two = run('one').train(*arguments), run('two')
    process = two.start(*arguments, launcher=('-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2'))
    try:
        output = process.communicate(timeout=200)[0]
    finally:
        process.terminate()  # torchrun ends its workers
    assert process.returncode == 0, output
    assert output.count('done: ') == 1 and 'processes 2' in output
    assert len(one.log()) == len(two.log()) == 9
    for a, b in zip(one.log(), two.log()):
        losses = [{key: value for key, value in line.items() if 'loss' in key} for line in (a, b)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, p in one.checkpoint()['model'].items():
        torch.testing.assert_close(two.checkpoint()['model'][name], p, rtol=1e-4, atol=1e-6)
    # and they did share the work: with other micro-batches the result is another
    other = run('other').train('--attention=spectral', '--gradient_accumulation_steps=1', '--max_iters=8')
    assert abs(other.log()[-1]['train_loss'] - one.log()[-1]['train_loss']) > 1e-4


def test_a_nonfinite_loss_stops_the_run(run):
    this = run()
    with pytest.raises(FloatingPointError, match='the training loss is nan at iteration'):
        this.train('--learning_rate=1e30', '--max_iters=50', '--grad_clip=0.0', '--eval_interval=1')
    assert this.checkpoint()['iter'] == this.log()[-1]['iter']
    assert all(p.isfinite().all() for p in this.checkpoint()['model'].values())


# ----------------------------------------------------------------------------------------------------------------------
# Nothing is lost by accident, and errors say what to do


def test_a_run_is_not_replaced_unless_told_to(run):
    this = run().train()
    (this.folder / 'notes.txt').write_text('mine')
    (this.folder / 'eval_notes.md').write_text('mine')
    before = {p.name: p.read_bytes() for p in this.folder.iterdir()}
    with pytest.raises(FileExistsError, match='already holds a run: .*--init_from=resume, .*--overwrite=True'):
        this.train('--seed=1')
    for bad, error in (('--attention=rpe', 'attention'), ('--task=dick', 'dyck'), ('--device=cuda:7', 'cuda:7'),
                       ('--dtype=half', 'float16')):
        with pytest.raises(ValueError, match=error):  # even then, not by a command that cannot run
            this.train('--overwrite=True', bad)
    assert {p.name: p.read_bytes() for p in this.folder.iterdir()} == before
    this.train('--overwrite=True', '--seed=1')
    assert (this.folder / 'notes.txt').read_text() == (this.folder / 'eval_notes.md').read_text() == 'mine'
    assert json.loads((this.folder / 'config.json').read_text())['options']['seed'] == 1


@pytest.mark.parametrize('arguments, error, message', [
    (['--task=dyk'], ValueError, "task 'dyk' does not exist; did you mean 'dyck'"),
    (['--attention=ropes'], ValueError, f'must be one of {", ".join(ATTENTIONS)}'),
    (['--n_embd=15'], ValueError, 'n_embd=15: must be a multiple of n_head=2'),
    (['--task=bio_rotation', '--block_size=11'], ValueError,
     'length=11 is too short for bio_rotation: it needs at least 12'),
    (['--device=cuda:99'], ValueError, "device='cuda:99' is not there"),
    (['--device=tpu'], ValueError, "device='tpu' is not there"),
    (['--dtype=float8'], ValueError, "dtype='float8': must be one of auto, float32"),
    (['--compile=maybe'], ValueError, 'compile'),
    (['--batch_size=0'], ValueError, 'batch_size=0: must be at least 1'),
    (['--seed=-1'], ValueError, 'seed=-1: must be a whole number, 0 or more'),
    (['--log_interval=0'], ValueError, 'log_interval=0: must be at least 1'),
    (['--beta2=1.0'], ValueError, 'beta2=1.0: must be less than 1'),
    (['--learning_rate=1e999'], ValueError, 'learning_rate=inf: must be a finite number, 0 or more'),
    (['--init_from=resume'], FileNotFoundError, 'ckpt.pt does not exist'),
    (['--init_from=nowhere.pt'], FileNotFoundError, 'nowhere.pt'),
    (['config/nothing.py'], FileNotFoundError, 'nothing.py'),
], ids=lambda a: ' '.join(a) if isinstance(a, list) else None)
def test_what_cannot_run_is_refused_before_a_folder_exists(run, arguments, error, message):
    this = run()
    with pytest.raises(error, match=message):
        this.train(*arguments)
    assert not this.folder.exists()


def test_resume_prints_what_changed_and_refuses_another_model(run, capsys):
    this = run().train('--learning_rate=1e-3', '--lr_end=0.1')
    this.train('--init_from=resume', '--max_iters=9', '--learning_rate=3e-3', '--lr_end=0.1')
    assert 'ckpt.pt: learning_rate was 0.001 and is now 0.003' in capsys.readouterr().out
    assert this.log()[-1]['iter'] == 9 and this.log()[-1]['lr'] == pytest.approx(3e-4)
    group = this.checkpoint()['optimizers'][0]['param_groups'][0]  # the options of today, not those in the checkpoint
    assert group['peak_lr'] == 3e-3 and group['lr'] == pytest.approx(3e-3 * train.schedule(8, 9, 2, 0.1))
    for bad, message in ((['--attention=spectral'], "attention='spectral': .* has 'rope' and cannot resume"),
                         (['--n_embd=32'], 'n_embd=32: .* has 16'), (['--task=dyck:max_depth=3'], 'task='),
                         (['--optimizer=adamw'], 'optimizer='), (['--learning_rate=0'], 'learning_rate=0'),
                         (['--max_iters=8'], 'iteration 9 already')):
        with pytest.raises(ValueError, match=message):
            this.train('--init_from=resume', '--max_iters=9', '--learning_rate=3e-3', *bad)
    assert this.log()[-1]['iter'] == 9


class Malicious:
    def __reduce__(self):
        return os.system, (f'touch {os.environ["MALICE"]}',)


def test_bad_checkpoints_are_refused_and_never_executed(run, tmp_path, monkeypatch):
    this = run().train()
    whole = (this.folder / 'ckpt.pt').read_bytes()
    monkeypatch.setenv('MALICE', str(tmp_path / 'executed'))
    torch.save({'model': Malicious()}, tmp_path / 'evil.pt')
    torch.save({'model': {}}, tmp_path / 'other.pt')
    for bad in (whole[:-2000], b'', pickle.dumps(Malicious()), (tmp_path / 'evil.pt').read_bytes(),
                (tmp_path / 'other.pt').read_bytes()):
        (this.folder / 'ckpt.pt').write_bytes(bad)
        with pytest.raises(ValueError, match='ckpt.pt is not a checkpoint'):
            this.train('--init_from=resume')
    assert not (tmp_path / 'executed').exists()


# ----------------------------------------------------------------------------------------------------------------------
# The configurations


@pytest.mark.parametrize('path', OF_THE_PAGE, ids=lambda path: path.stem)
def test_each_config_builds_and_takes_one_step(run, path):
    arguments = [str(path), f'--out_dir={run().folder}', '--max_iters=1', '--eval_sequences=8', '--device=cpu']
    train.main(SimpleNamespace(**configure(dict(vars(train)), arguments)))
    assert [line['iter'] for line in run().log()] == [0, 1]
    assert configure(dict(vars(train)), [str(path)])['out_dir'] == f'out/{path.stem}'


def test_the_arms_of_a_task_differ_in_attention_and_what_was_tuned_only():
    arms = {}
    for path in OF_THE_PAGE:
        task, _, attention = path.stem.rpartition('_')
        options = configure(dict(vars(train)), [str(path)])
        assert options['attention'] == attention and options['task'].split(':')[0] in TASKS
        tuned = ('optimizer', 'learning_rate', 'muon_lr', 'spectral_lr', 'rope_base',
                 *(['init_std'] if task == 'text' else []))
        same = {key: value for key, value in options.items() if key not in ('attention', 'out_dir', *tuned)}
        assert arms.setdefault(task, same) == same, path
    assert {path.stem for path in OF_THE_PAGE} == {f'{task}_{attention}' for task in arms for attention in
                                                  ('rope', 'spectral', 'bifocal', 'tapa')}
