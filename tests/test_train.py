"""The loop: what a run leaves behind, resuming bit for bit, being stopped or killed, several processes, and refusals."""

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import train
from conftest import ROOT
from configurator import configure
from model import ATTENTIONS, GPT
from tasks import TASKS, stream

CONFIGS = sorted(set((ROOT / 'config').glob('*.py')) - {ROOT / 'config/surgery_code.py'})  # which tests/test_pretrained.py tries
CONTINUED = [path for path in CONFIGS if path.stem.startswith('surgery_') or path.stem.endswith('_long')]  # from a checkpoint


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
    for name in ('model', 'optimizer', 'scaler', 'iter', 'best_val_loss', 'torch_rng', 'model_args', 'task'):
        assert_same(a[name], b[name], name)


def test_schedule():
    rates = [train.schedule(it, 100, 10, 0.1) for it in range(101)]
    assert rates[0] == 1 / 11 and rates[10] == 1 and max(rates) == 1
    assert all(a < b for a, b in zip(rates[:10], rates[1:11])) and all(a > b for a, b in zip(rates[10:], rates[11:]))
    assert rates[55] == pytest.approx(0.55) and rates[100] == pytest.approx(0.1) == pytest.approx(train.schedule(500, 100, 10, 0.1))
    assert train.schedule(3, 3, 3, 0.1) == 1  # no division by zero


def test_max_iters_alone_moves_the_end_of_the_schedule(run):
    for max_iters in (5, 9):
        last = run(f'{max_iters}').train(f'--max_iters={max_iters}', '--lr_end=0.1').log()[-1]
        assert last['iter'] == max_iters and last['lr'] == pytest.approx(2e-4)


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('task', ['dyck:max_depth=3', 'bio_rotation:period=3', 'modulo', 'spacing', 'lag', 'sum'])
def test_every_attention_trains_on_every_task(run, attention, task):
    this = run().train(f'--attention={attention}', f'--task={task}', '--max_iters=2', '--eval_interval=1')
    log = this.log(times=True)
    assert [line['iter'] for line in log] == [0, 1, 2]
    for line in log:
        assert {'iter', 'train_loss', 'val_loss', 'val_acc', 'lr', 'grad_norm', *('seconds', 'iters_per_second')} <= line.keys()
        assert 0 <= line['val_acc'] <= 1 and 0 < line['val_loss'] < 4
        if attention in ('spectral', 'bifocal'):
            heads = 2 if attention == 'spectral' else 1
            assert all(np.shape(line[name]) == (1, heads, 4) for name in ('Omega', 'A', 'Phi'))
            assert all(line[f'{name}_grad_norm'] > 0 for name in ('Omega', 'A', 'Phi'))
        else:
            assert 'Omega' not in line
    config = json.loads((this.folder / 'config.json').read_text())
    assert config['options']['attention'] == attention and config['sessions'][0]['torch'] == str(torch.__version__)
    assert {p.name for p in this.folder.iterdir()} == set(train.RUN_FILES)


def test_training_learns(run):
    log = run().train('--task=sum:modulus=2', '--block_size=4', '--max_iters=300', '--eval_interval=300', '--batch_size=32', '--learning_rate=1e-2').log()
    assert log[-1]['val_loss'] < 0.5 * log[0]['val_loss']


def test_evaluating_more_often_does_not_change_training(run):
    seldom, often = run('seldom').train('--eval_interval=6'), run('often').train('--eval_interval=1', '--eval_sequences=20')
    assert_same(seldom.checkpoint()['model'], often.checkpoint()['model'])
    assert [line['train_loss'] for line in seldom.log()] == [line['train_loss'] for line in often.log()]


def test_training_and_validation_have_streams_of_their_own(run, monkeypatch):
    names = []
    monkeypatch.setattr(train, 'stream', lambda *name: names.append(name) or stream(*name))
    run().train('--seed=4', '--gradient_accumulation_steps=2')
    expected = [('validation', 'dyck'), (4, 'init')] + [(4, 'train', it, slot) for it in range(7) for slot in range(2)]
    assert names[:len(expected)] == expected  # and perhaps one more, prepared ahead and not used


def test_the_seed_is_the_run(run):
    a, b, c = run('a').train('--seed=1'), run('b').train('--seed=1'), run('c').train('--seed=2')
    assert_same(a.checkpoint()['model'], b.checkpoint()['model'])
    assert a.log() == b.log() and a.log()[0]['train_loss'] != c.log()[0]['train_loss']


@pytest.mark.parametrize('learnable', ['frequency', 'amplitude', 'phase'])
def test_spectral_parameters_wait_for_spectral_start_and_obey_learn(run, learnable):
    names = dict(frequency='Omega', amplitude='A', phase='Phi')
    others = [f'--learn_{name}=False' for name in names if name != learnable]
    log = run().train('--attention=spectral', '--spectral_start=3', '--eval_interval=1', '--weight_decay=1.0', *others).log()
    moved = {name: [line[name] != log[0][name] for line in log] for name in names.values()}
    for name, when in moved.items():
        assert when == [it > 3 and name == names[learnable] for it in range(7)], name
        assert [line[f'{name}_grad_norm'] > 0 for line in log] == [it >= 3 and name == names[learnable] for it in range(7)]


@pytest.mark.parametrize('attention', ['bifocal', 'tapa'])
def test_a_killed_run_resumes_bit_for_bit(run, attention):
    """2N iterations == N, kill -9, resume, N: weights, optimiser, random states, and every line of the log."""
    arguments = (f'--attention={attention}', '--max_iters=400', '--eval_interval=40', '--log_interval=7', '--spectral_start=100')
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
    assert 0 < at < 400
    with open(killed.folder / 'log.jsonl', 'a') as log:
        log.write('{"iter": 399, "trai')  # a line cut short by the kill
    killed.train(*arguments, '--init_from=resume')
    assert_same_state(whole.checkpoint(), killed.checkpoint())
    assert_same_state(whole.checkpoint('best.pt'), killed.checkpoint('best.pt'))
    assert whole.log() == killed.log()
    assert [s['start'] for s in json.loads((killed.folder / 'config.json').read_text())['sessions']] == [0, at]


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
    assert f'stopped by {number.name} at iteration {this.checkpoint()["iter"]}; continue with --init_from=resume' in output
    assert this.checkpoint()['iter'] > 1
    this.train('--init_from=resume', '--eval_interval=100000', f'--max_iters={this.checkpoint()["iter"] + 2}')
    iterations = [line['iter'] for line in this.log()]
    assert iterations == list(range(len(iterations)))


def test_a_checkpoint_half_written_leaves_the_old_one_whole(run):
    this = run().train()
    before = (this.folder / 'ckpt.pt').read_bytes()
    code = ('import os, sys, torch; sys.path.insert(0, sys.argv[1]); import train; from pathlib import Path\n'
            'def dies(checkpoint, file):\n    file.write(b"half"); file.flush(); os._exit(9)\n'
            'torch.save = dies; train.save({}, Path(sys.argv[2]))')
    done = subprocess.run([sys.executable, '-c', code, str(ROOT), str(this.folder / 'ckpt.pt')])
    assert done.returncode == 9
    assert (this.folder / 'ckpt.pt').read_bytes() == before
    this.train('--init_from=resume', '--max_iters=8')


SEVERAL = pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')


@pytest.mark.parametrize('device, compile', [('cpu', 'no'), ('cpu', 'yes'), pytest.param('cuda', 'yes', marks=SEVERAL)])
def test_two_processes_agree_with_one(run, device, compile):
    arguments = ('--attention=spectral', '--gradient_accumulation_steps=2', '--max_iters=8', f'--device={device}', '--dtype=float32')
    one, two = run('one').train(*arguments), run('two')
    process = two.start(*arguments, f'--compile={compile}', visible=device == 'cuda', launcher=('-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2'))
    try:
        output = process.communicate(timeout=200)[0]
    finally:
        process.terminate()  # torchrun ends its workers
    assert process.returncode == 0, output
    assert output.count('done in') == 1 and 'processes 2' in output and ('compile on' in output) == (compile == 'yes')
    assert len(one.log()) == len(two.log()) == 9
    for a, b in zip(one.log(), two.log()):
        assert {k: v for k, v in a.items() if 'loss' in k} == pytest.approx({k: v for k, v in b.items() if 'loss' in k}, rel=1e-5)
    for name, p in one.checkpoint()['model'].items():
        torch.testing.assert_close(two.checkpoint()['model'][name], p, rtol=1e-4, atol=1e-6)
    # and they did share the work: with other micro-batches the result is another
    other = run('other').train('--attention=spectral', '--gradient_accumulation_steps=1', '--max_iters=8')
    assert abs(other.log()[-1]['train_loss'] - one.log()[-1]['train_loss']) > 1e-4


def test_the_next_batch_is_prepared_while_one_is_trained_on(run, monkeypatch):
    make_task, forward, drawn, threads = train.make_task, GPT.forward, [threading.Event() for _ in range(9)], set()

    def making(spec):
        task = make_task(spec)
        sample, count = task.sample, itertools.count()

        def sampling(rng, batch, length, split='train'):
            if split == 'train':
                threads.add(threading.get_ident())
                drawn[next(count)].set()
            return sample(rng, batch, length, split)
        object.__setattr__(task, 'sample', sampling)
        return task

    def forwarding(model, x, y):
        if torch.is_grad_enabled():
            at = next(steps)
            assert drawn[at + 1].wait(20), f'batch {at + 1} is not asked for before batch {at} is done'
        return forward(model, x, y)
    steps = itertools.count()
    monkeypatch.setattr(train, 'make_task', making)
    monkeypatch.setattr(GPT, 'forward', forwarding)
    this = run().train('--max_iters=4')
    assert len(threads) == 1 and threading.get_ident() not in threads
    assert all(0 <= line['waiting'] <= 1 for line in this.log(times=True))


def test_surgery_from_a_run(run):
    rope = run('rope').train('--rope_base=500.0')
    start = ('--rope_base=500.0', '--phase_std=0.0', f'--init_from={rope.folder}/best.pt')
    for attention in ('spectral', 'bifocal', 'rope'):
        grown = run(f'to_{attention}').train(*start, f'--attention={attention}')
        best = min(line['val_loss'] for line in rope.log() if 'val_loss' in line)
        assert grown.log()[0]['val_loss'] == best  # it starts where the checkpoint stood
    assert GPT.from_checkpoint(run('to_spectral').folder / 'ckpt.pt').config.attention == 'spectral'


def test_a_nonfinite_loss_stops_the_run(run):
    this = run()
    with pytest.raises(FloatingPointError, match='the training loss is nan at iteration .*ckpt.pt holds the last validated iteration'):
        this.train('--learning_rate=1e30', '--max_iters=50', '--grad_clip=0.0', '--eval_interval=1')
    state = this.checkpoint()['model']
    assert this.checkpoint()['iter'] == this.log()[-1]['iter'] and all(p.isfinite().all() for p in state.values())


# ----------------------------------------------------------------------------------------------------------------------
# Nothing is lost by accident, and errors say what to do


def test_a_run_is_not_replaced_unless_told_to(run):
    this = run().train()
    (this.folder / 'notes.txt').write_text('mine')
    before = {p.name: p.read_bytes() for p in this.folder.iterdir()}
    with pytest.raises(FileExistsError, match='already holds a run .*--init_from=resume, .*--overwrite=True'):
        this.train('--seed=1')
    for bad, error in (('--attention=rpe', 'attention'), ('--task=dick', 'dyck'), ('--device=cuda:7', 'cuda:7'), ('--dtype=half', 'float16')):
        with pytest.raises(ValueError, match=error):  # even then, not by a command that cannot run
            this.train('--overwrite=True', bad)
    assert {p.name: p.read_bytes() for p in this.folder.iterdir()} == before
    this.train('--overwrite=True', '--seed=1')
    assert (this.folder / 'notes.txt').read_text() == 'mine' and json.loads((this.folder / 'config.json').read_text())['options']['seed'] == 1


@pytest.mark.parametrize('arguments, error, message', [
    (['--task=dyk'], ValueError, "task 'dyk' does not exist; did you mean 'dyck'"),
    (['--attention=ropes'], ValueError, 'must be one of rope, spectral, bifocal, tapa, nope'),
    (['--n_embd=15'], ValueError, 'n_embd=15: must be a multiple of n_head=2'),
    (['--n_embd=6'], ValueError, 'even head size'),
    (['--attention=bifocal', '--n_spectral_head=3'], ValueError, 'n_spectral_head=3'),
    (['--task=bio_rotation', '--block_size=11'], ValueError, 'length=11 is too short for bio_rotation: it needs at least 12'),
    (['--device=cuda:99'], ValueError, "device='cuda:99' is not there"),
    (['--device=tpu'], ValueError, "device='tpu' is not there"),
    (['--dtype=float8'], ValueError, "dtype='float8': must be one of auto, float32"),
    (['--compile=maybe'], ValueError, 'compile'),
    (['--batch_size=0'], ValueError, 'batch_size=0: must be at least 1'),
    (['--seed=-1'], ValueError, 'seed=-1: must not be negative'),
    (['--init_from=resume'], FileNotFoundError, 'there is no .*ckpt.pt to continue'),
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
    group = this.checkpoint()['optimizer']['param_groups'][0]  # the options of today, not those in the checkpoint
    assert group['peak_lr'] == 3e-3 and group['lr'] == pytest.approx(3e-3 * train.schedule(8, 9, 2, 0.1))
    for bad, message in ((['--attention=spectral'], 'another attention'), (['--n_embd=32'], 'another n_embd'),
                         (['--task=modulo'], 'symbols'), (['--task=dyck:max_depth=3'], 'another task'), (['--max_iters=8'], 'iteration 9 already')):
        with pytest.raises(ValueError, match=message):
            this.train('--init_from=resume', '--max_iters=9', '--learning_rate=3e-3', *bad)
    assert this.log()[-1]['iter'] == 9


class Malicious:
    def __reduce__(self):
        return os.system, (f'touch {os.environ["MALICE"]}',)


def test_bad_checkpoints_are_refused_and_never_executed(run, tmp_path, monkeypatch):
    good = run('good').train('--task=modulo').folder / 'ckpt.pt'
    truncated, empty, other, evil, evil_zip = (tmp_path / f'{name}.pt' for name in ('truncated', 'empty', 'other', 'evil', 'evil_zip'))
    truncated.write_bytes(good.read_bytes()[:-2000])
    empty.write_bytes(b'')
    torch.save({'model': {}}, other)
    monkeypatch.setenv('MALICE', str(tmp_path / 'executed'))
    evil.write_bytes(pickle.dumps(Malicious()))
    torch.save({'model': Malicious()}, evil_zip)
    for path in (truncated, empty, other, evil, evil_zip):
        this = run('new')
        with pytest.raises(ValueError, match=f'{path.name} is not a checkpoint'):
            this.train('--task=modulo', f'--init_from={path}')
        assert not this.folder.exists()
    assert not (tmp_path / 'executed').exists()
    with pytest.raises(ValueError, match='was trained on task modulo, whose symbols are not those of dyck'):
        run('new').train('--task=dyck', f'--init_from={good}')


# ----------------------------------------------------------------------------------------------------------------------
# The configurations


def test_there_is_a_config_for_each_task_and_attention():
    expected = {f'{task}_{attention}' for task in ('dyck3', 'bio_rotation', 'modulo', 'text', 'passkey') for attention in ('rope', 'spectral', 'bifocal', 'tapa')}
    assert expected <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_each_config_builds_and_takes_one_step(run, path):
    this, shortly = run(), ('--max_iters=1', '--eval_sequences=8', '--device=cpu')
    if path in CONTINUED:  # on a run of the config that its checkpoint is the out_dir of
        first = Path(configure(dict(vars(train)), [str(path)])['init_from']).parent
        assert first.parent == Path('out')
        train.main(train.SimpleNamespace(**configure(dict(vars(train)), [str(ROOT / f'config/{first.name}.py'), f'--out_dir={run("first").folder}', *shortly])))
        shortly += (f'--init_from={run("first").folder}/best.pt',)
    train.main(train.SimpleNamespace(**configure(dict(vars(train)), [str(path), f'--out_dir={this.folder}', *shortly])))
    assert [line['iter'] for line in this.log()] == [0, 1]
    assert configure(dict(vars(train)), [str(path)])['out_dir'] == f'out/{path.stem}'


def test_the_arms_of_a_task_differ_in_attention_and_what_was_tuned_only():
    """tests/test_readme.py holds what was tuned against the sweep."""
    arms = {}
    for path in sorted(set(CONFIGS) - set(CONTINUED)):
        task, _, attention = path.stem.rpartition('_')
        options = configure(dict(vars(train)), [str(path)])
        assert options['attention'] == attention and options['task'].split(':')[0] in TASKS
        tuned = ('learning_rate', 'spectral_lr', 'rope_base', *(['init_std'] if task in ('text', 'passkey') else []))
        arms.setdefault(task, []).append({k: v for k, v in options.items() if k not in ('attention', 'out_dir', *tuned)})
    for task, others in arms.items():
        assert all(other == others[0] for other in others), task


SHAPES = [(attention, 16, {}) for attention in ATTENTIONS] + [('tapa', 200, {}), ('tapa', 1100, {})]  # several blocks; recomputed ones
if torch.cuda.is_available():  # the fused kernel, and what it does not serve
    SHAPES += [('tapa', 200, dict(n_embd=64)), ('tapa', 200, dict(n_embd=8))]


@pytest.mark.parametrize('attention, T, options', SHAPES)
def test_a_compiled_step_is_one_graph_compiled_once(attention, T, options):
    """No graph breaks, no recompilation from one step to the next; one more graph for validation, which needs no gradients."""
    import torch._dynamo.testing
    torch._dynamo.reset()
    counter, device = torch._dynamo.testing.CompileCounter(), 'cuda' if options else 'cpu'
    shape = dict(vocab_size=7, block_size=T, n_layer=2, n_head=2, n_embd=16, attention=attention)
    model = GPT(train.GPTConfig(**shape | options)).to(device)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    optimizer = model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2)
    x = torch.randint(7, (2, T), device=device)
    for _ in range(4):
        compiled(x, x)[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counter.frame_count == 1
    with torch.no_grad():
        compiled(x, x), compiled(x, x)
    assert counter.frame_count == 2
