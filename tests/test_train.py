"""The loop: what a run does and logs, resuming bit for bit, signals, several processes, errors."""

import dataclasses
import json
import math
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import checkpoint as checkpoint_file
import eval as eval_file
import train
from configurator import configure, one_line_errors
from conftest import ROOT, SMALL, assert_same, assert_same_run, script, together
from model import ATTENTIONS, Attention, GPTConfig, UserError
from tasks import TASKS, Task, make_rng

# those of a laptop; test_devices.py has that of a GPU
CONFIGS = sorted(set(ROOT.glob('config/*.py')) - {ROOT / 'config/gpu_text.py'})
OF_THE_PAGE = ['dyck', 'bio_rotation', 'modulo', 'text']
POSITIONAL = ('Omega', 'A', 'Phi')


def is_positional(name):
    return name.rpartition('.')[2] in POSITIONAL


def losses(run):
    return [line['train_loss'] for line in run.log()]


def wait_for_lines(run, process, n):
    """Wait until the process has logged n lines."""
    while len(run.log()) < n:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.002)


# the schedule


def test_schedule():
    rates = [train.schedule(it, 100, 10, 0.1) for it in range(101)]
    assert rates[0] == 1 / 11
    assert rates[10] == max(rates) == 1
    assert all(a < b for a, b in zip(rates[:10], rates[1:11]))
    assert all(a > b for a, b in zip(rates[10:], rates[11:]))
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == train.schedule(500, 100, 10, 0.1) == pytest.approx(0.1)
    assert train.schedule(3, 3, 3, 0.1) == 1  # no division by zero


def test_max_iters_alone_moves_the_end_of_the_schedule(run):
    for max_iters in (5, 9):
        last = run(f'{max_iters}').train(f'--max_iters={max_iters}', '--lr_end=0.1').log()[-1]
        assert last['iter'] == max_iters
        assert last['lr'] == pytest.approx(4e-4)


# what a run does


@pytest.mark.parametrize('attention', ['rope', 'spectral', 'bifocal', 'tapa', 'nope'])
def test_every_attention_trains_and_leaves_a_complete_run(run, attention):
    this = run().train(
        f'--attention={attention}', '--task=modulo', '--max_iters=2', '--eval_interval=1')
    log = this.log()
    assert [line['iter'] for line in log] == [0, 1, 2]
    heads = dict(spectral=2, bifocal=1).get(attention, 0)
    for line in log:
        assert {'iter', 'train_loss', 'val_loss', 'val_acc', 'lr', 'grad_norm'} <= line.keys()
        assert 0 <= line['val_acc'] <= 1
        assert 0 < line['val_loss'] < 4
        for name in POSITIONAL:
            assert (name in line) == (heads > 0)
            if heads > 0:
                assert np.shape(line[name]) == (1, heads, 4)
                assert line[f'{name}_grad_norm'] > 0
    config = json.loads((this.folder / 'config.json').read_text())
    assert config['options']['attention'] == config['model_args']['attention'] == attention
    assert config['sessions'][0]['torch'] == str(torch.__version__)
    assert this.files().keys() == {'config.json', 'log.jsonl', 'ckpt.pt', 'best.pt', 'run.lock'}


@pytest.mark.parametrize('task', OF_THE_PAGE)
def test_every_task_is_trained_on(run, task):
    assert len(run().train(f'--task={task}', '--max_iters=1').log()) == 2


def test_training_learns(run):
    log = run().train('--task=bio_rotation:period=2', '--block_size=8', '--max_iters=150',
                      '--eval_interval=150', '--batch_size=16', '--learning_rate=1e-2').log()
    assert log[-1]['val_loss'] < 0.5 * log[0]['val_loss']


def test_evaluating_more_often_does_not_change_training(run):
    seldom = run('seldom').train('--eval_interval=6')
    often = run('often').train('--eval_interval=1', '--eval_sequences=20')
    assert_same(seldom.checkpoint()['model'], often.checkpoint()['model'])
    assert losses(seldom) == losses(often)


def test_weights_and_data_have_random_numbers_of_their_own(run, monkeypatch):
    names = []

    def recorded(*name):
        names.append(name)
        return make_rng(*name)
    monkeypatch.setattr(train, 'make_rng', recorded)
    run().train('--seed=4', '--gradient_accumulation_steps=2')
    batches = [(4, 'train', it, slot) for it in range(7) for slot in range(2)]
    assert names == [(4, 'init'), ('validation', 'dyck'), *batches]


def test_the_seed_is_the_run(run):
    a, b, c = (run(name).train(f'--seed={seed}') for name, seed in [('a', 1), ('b', 1), ('c', 2)])
    assert_same_run(a, b)
    assert losses(a)[0] != losses(c)[0]


def test_micro_batches_share_one_gradient(run, monkeypatch):
    """Four micro-batches with the same data do what one of them does."""
    monkeypatch.setattr(train, 'make_rng', lambda *names: make_rng(*names[:3]))  # without the slot
    four, one = run('four').train('--gradient_accumulation_steps=4'), run('one').train()
    for a, b in zip(four.log(), one.log()):
        assert a['train_loss'] == pytest.approx(b['train_loss'], rel=1e-4)
        assert a['grad_norm'] == pytest.approx(b['grad_norm'], rel=1e-3)


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """The losses of a run with no options."""
    from conftest import Run
    return losses(Run(tmp_path_factory.mktemp('plain') / 'run').train('--attention=spectral'))


@pytest.mark.parametrize('option', [
    'dtype=bfloat16', 'grad_clip=0.01', 'grad_clip=0.0', 'optimizer=adamw', 'muon_lr=0.02',
    'learning_rate=0.01', 'positional_lr=0.1', 'beta1=0.5', 'beta2=0.5', 'weight_decay=9.0',
    'warmup_iters=4', 'lr_end=0.5', 'init_std=0.1', 'log_scale_length=16', 'rope_base=100.0',
    'attention=rope', 'phase_std=0.1', 'learn=frequency', 'n_kv_head=1'])
def test_an_option_changes_the_run(run, plain, option):
    assert losses(run().train('--attention=spectral', f'--{option}'))[-1] != plain[-1]


def test_an_option_that_an_attention_does_not_use_changes_nothing(run, plain):
    unused = ('--tapa_alpha=0.3', '--tapa_theta=0.25', '--tapa_scale=1.0')
    assert losses(run().train('--attention=spectral', *unused)) == plain


def test_best_is_the_lowest_validation_loss(run):
    this = run().train('--max_iters=60', '--eval_interval=2', '--learning_rate=10',
                       '--warmup_iters=60')  # it becomes ever worse
    by_iter = {line['iter']: line['val_loss'] for line in this.log() if 'val_loss' in line}
    lowest = min(by_iter, key=by_iter.get)
    assert this.checkpoint('best.pt')['iter'] == lowest != 60


# stopped, killed, resumed


def test_a_killed_run_resumes_bit_for_bit(run):
    """2N iterations == N, kill -9, resume, N: states, and every line of the log."""
    arguments = ('--attention=bifocal', '--optimizer=muon', '--max_iters=120',
                 '--eval_interval=10', '--log_interval=7')
    killed = run('killed')
    process = killed.start(*arguments)
    complete = run('complete').train(*arguments)
    wait_for_lines(killed, process, 12)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    at = killed.checkpoint()['iter']
    assert 0 < at < 120
    with open(killed.folder / 'log.jsonl', 'a') as log:
        log.write('{"iter": 299, "trai')  # a line cut short by the kill
    killed.train(*arguments, '--init_from=resume')
    assert_same_run(complete, killed)
    sessions = json.loads((killed.folder / 'config.json').read_text())['sessions']
    assert [session['start'] for session in sessions] == [0, at]


def test_ctrl_c_says_how_to_go_on(run):
    this = run()
    process = this.start('--max_iters=100000', '--eval_interval=10')
    wait_for_lines(this, process, 15)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 130
    assert output.count('stopped; the same command with --init_from=resume goes on from') == 1
    assert 'Traceback' not in output
    at = this.checkpoint()['iter']
    assert at >= 10
    this.train('--init_from=resume', '--eval_interval=10', f'--max_iters={at + 2}')
    assert [line['iter'] for line in this.log()] == list(range(at + 3))


def test_resume_prints_what_changed_and_refuses_another_model(run, capsys):
    this = run().train('--learning_rate=1e-3', '--lr_end=0.1')
    today = ('--init_from=resume', '--max_iters=9', '--learning_rate=3e-3')
    this.train(*today, '--lr_end=0.1')
    printed = capsys.readouterr().out
    assert 'ckpt.pt: learning_rate was 0.001 and is now 0.003' in printed
    assert 'overwrite' not in printed and 'init_from was' not in printed
    assert this.log()[-1]['iter'] == 9
    assert this.log()[-1]['lr'] == pytest.approx(3e-4)
    # the options are those of today, not those in the checkpoint
    group = this.checkpoint()['optimizers'][0]['param_groups'][0]
    assert group['peak_lr'] == 3e-3
    assert group['lr'] == pytest.approx(3e-4)
    before = this.files()
    for bad, message in [
            ('--attention=spectral', "attention='spectral': .* has 'rope' and cannot resume"),
            ('--n_embd=32', 'n_embd=32: .* has 16'),
            ('--task=dyck:max_depth=3', 'task='),
            ('--optimizer=adamw', 'optimizer='),
            ('--max_iters=8', 'update 9 already')]:
        with pytest.raises(UserError, match=message):
            this.train(*today, bad)
    assert this.files() == before


@pytest.mark.slow
def test_two_processes_agree_with_one(run):
    arguments = ('--attention=spectral', '--gradient_accumulation_steps=2', '--max_iters=8')
    one, two = run('one').train(*arguments), run('two')
    launcher = ('-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2')
    process = two.start(*arguments, launcher=launcher)
    try:
        output = process.communicate(timeout=200)[0]
    finally:
        process.terminate()  # torchrun ends its workers
    assert process.returncode == 0, output
    assert output.count('done: ') == 1
    assert 'processes: 2' in output
    assert len(one.log()) == len(two.log()) == 9
    for a, b in zip(one.log(), two.log()):
        assert a.keys() == b.keys()
        for name in {'train_loss', 'val_loss', 'grad_norm'} & a.keys():
            assert a[name] == pytest.approx(b[name], rel=1e-5)
    for name, p in one.checkpoint()['model'].items():
        torch.testing.assert_close(two.checkpoint()['model'][name], p, rtol=1e-4, atol=1e-6)
    # and they did share the work: with other micro-batches the result is another
    other = run('other').train(*arguments, '--gradient_accumulation_steps=1')
    assert abs(losses(other)[-1] - losses(one)[-1]) > 1e-4


# what the user of an option can mend is one line, and leaves no folder


@pytest.mark.parametrize('arguments, message', [
    (['--task=dyk'], "task 'dyk' does not exist; did you mean 'dyck'"),
    (['--attention=ropes'], f'must be one or several of {", ".join(ATTENTIONS)}'),
    (['--n_embd=15'], 'n_embd=15: must be a multiple of n_head'),
    (['--task=bio_rotation', '--block_size=11'], '11 .*at least 12'),
    (['--device=cuda:99'], "device='cuda:99' is not there"),
    (['--device=tpu'], "device='tpu' is not there"),
    (['--device=hpu'], "device='hpu' is not there"),
    (['--device=meta'], "device='meta' is not there"),
    (['--dtype=float8'], "dtype='float8': must be one of auto, float32"),
    (['--compile=maybe'], "compile='maybe': must be one of auto, yes, no"),
    (['--optimizer=sgd'], "optimizer='sgd': must be one of muon, adamw"),
    (['--batch_size=0'], 'batch_size=0: must be at least 1'),
    (['--log_interval=0'], 'log_interval=0: must be at least 1'),
    (['--seed=-1'], 'seed=-1: must be a whole number .*, 0 or more'),
    (['--learning_rate=1e999'], 'learning_rate=inf: must be a finite number, 0 or more'),
    (['--n_embd=4611686018427387904'], 'n_embd=4611686018427387904: must be'),
    (['--batch_size=4611686018427387904'], 'batch_size=4611686018427387904: must be'),
    (['--eval_sequences=4611686018427387904'], 'eval_sequences=4611686018427387904: must be'),
    (['--n_layer=99999999999999999999'], 'n_layer=99999999999999999999: must be'),
    (['--init_from=resume'], 'ckpt.pt does not exist'),
    (['--init_from=nowhere.pt'], 'nowhere.pt'),
    (['config/nothing.py'], 'nothing.py'),
], ids=lambda a: ' '.join(a) if isinstance(a, list) else '')
def test_what_cannot_run_is_refused_before_a_folder_exists(run, arguments, message):
    this = run()
    with pytest.raises(UserError, match=message):
        this.train(*arguments)
    assert not this.folder.exists()


def test_a_run_that_needs_too_much_memory_is_one_line(run):
    with pytest.raises(SystemExit) as exit, one_line_errors():
        run().train('--n_embd=8388608')
    assert "can't allocate memory" in exit.value.code
    with pytest.raises(SystemExit) as exit, one_line_errors():
        run().train('--batch_size=2147483647', '--block_size=16384')
    assert 'Unable to allocate' in exit.value.code


def test_a_loss_that_is_not_finite_stops_the_run(run):
    this = run()
    with pytest.raises(UserError, match='at update .+: try a lower learning rate'):
        this.train('--learning_rate=1e30', '--max_iters=50', '--grad_clip=0.0',
                   '--eval_interval=1')
    assert this.checkpoint()['iter'] == this.log()[-1]['iter']
    assert all(p.isfinite().all() for p in this.checkpoint()['model'].values())


class NoGradient(train.GPT):
    def __init__(self, config):
        super().__init__(config)
        self.embedding.weight.register_hook(lambda gradient: gradient * math.nan)


def test_a_gradient_that_is_no_number_stops_the_run(run, monkeypatch):
    monkeypatch.setattr(train, 'GPT', NoGradient)
    with pytest.raises(UserError, match='its gradient nan at update 0'):
        run().train()
    assert 'ckpt.pt' not in run().files()


class Infinite(Attention):
    def scores(self, q, k):
        return q @ k.mT / 0


@dataclasses.dataclass
class NoTargets(Task):
    """A task whose author forgot the targets."""

    name, symbols, chance = 'none', ['0', '1'], 0.5

    def sample(self, rng, batch, length, split='train'):
        x = rng.integers(2, size=(batch, length))
        return x, np.full_like(x, -1)


@pytest.mark.parametrize('arguments', [['--attention=infinite'], ['--task=none']])
def test_a_loss_that_starts_as_no_number_blames_the_model_or_the_task(run, monkeypatch, arguments):
    monkeypatch.setitem(ATTENTIONS, 'infinite', Infinite)
    monkeypatch.setitem(TASKS, 'none', NoTargets)
    blame = 'update 0: check the attention scores, and that the task has targets'
    with pytest.raises(UserError, match=blame):
        run().train(*arguments)


# what a student writes


@pytest.mark.parametrize('kind', [ValueError, TypeError, ImportError, OSError, RuntimeError])
def test_an_error_in_a_students_class_keeps_its_traceback(run, monkeypatch, kind):
    class Broken(Attention):
        def scores(self, q, k):
            raise kind('a mistake')
    monkeypatch.setitem(ATTENTIONS, 'broken', Broken)
    with pytest.raises(kind, match='a mistake') as error, one_line_errors():
        run().train('--attention=broken')
    assert error.traceback[-1].name == 'scores'


def test_a_student_sees_the_line_with_the_mistake(tmp_path):
    config = tmp_path / 'mine.py'
    config.write_text('import model\n'
                      'class _Mine(model.Attention):\n'
                      '    def scores(self, q, k):\n'
                      '        even, odd, rest = q.chunk(2, dim=-1)\n'
                      '        return even @ k.mT\n'
                      'model.ATTENTIONS["mine"] = _Mine\n'
                      'attention = "mine"\n')
    done = script('train.py', *together(*SMALL, f'--out_dir={tmp_path}/run', str(config)))
    assert done.returncode == 1
    assert f'File "{config}", line 4, in scores' in done.stderr
    assert done.stderr.splitlines()[-1].startswith('ValueError: not enough values to unpack')


class Slopes(Attention):
    """A class that computes with plain numbers before it trains."""

    def __init__(self, config):
        super().__init__(config)
        steps = torch.arange(1, config.n_head + 1)
        self.slopes = [2.0 ** -step for step in steps.tolist()]

    def scores(self, q, k):
        return q @ k.mT * torch.tensor(self.slopes)[:, None, None]


def test_a_class_that_reads_its_numbers_is_evaluated_and_resumed(run, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'slopes', Slopes)
    arguments = ('--attention=slopes', '--lr_end=1.0')
    complete = run('complete').train(*arguments)
    half = run('half').train(*arguments, '--max_iters=3')
    half.train(*arguments, '--init_from=resume')
    assert_same_run(complete, half)
    model, _, _ = eval_file.load_run(half.folder, 'best.pt', 'cpu')
    assert model.blocks[0].attention.slopes == [0.5, 0.25]


def test_a_class_that_cannot_be_built_again_shows_its_own_error(run, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'slopes', Slopes)
    this = run().train('--attention=slopes', '--max_iters=1')

    for kind in (ValueError, KeyError, RuntimeError):
        class Changed(Slopes):
            def __init__(self, config):
                super().__init__(config)
                raise kind('a mistake')
        monkeypatch.setitem(ATTENTIONS, 'slopes', Changed)
        with pytest.raises(kind, match='a mistake') as error, one_line_errors():
            this.train('--attention=slopes', '--init_from=resume')
        assert error.traceback[-1].name == '__init__'
        with pytest.raises(kind, match='a mistake'):
            eval_file.load_run(this.folder, 'best.pt', 'cpu')


@dataclasses.dataclass
class ScaledConfig(GPTConfig):
    slope_scale: float = -1.0


class UntypedConfig(GPTConfig):
    slope_scale = -1.0


def test_an_option_of_ones_own_may_be_negative(run, monkeypatch):
    monkeypatch.setattr(train, 'GPTConfig', ScaledConfig)
    monkeypatch.setattr(train, 'slope_scale', -1.0, raising=False)
    monkeypatch.setattr(checkpoint_file, 'GPTConfig', ScaledConfig)
    this = run().train('--slope_scale=-2', '--max_iters=1')
    this.train('--slope_scale=-2', '--init_from=resume', '--max_iters=2')
    model, _, _ = eval_file.load_run(this.folder, 'ckpt.pt', 'cpu')
    assert model.config.slope_scale == -2.0


def test_an_option_without_a_type_is_refused(run, monkeypatch):
    monkeypatch.setattr(train, 'GPTConfig', UntypedConfig)
    monkeypatch.setattr(train, 'slope_scale', -1.0, raising=False)
    with pytest.raises(UserError, match='slope_scale=-1.0: must be written with a type'):
        run().train()


# the configs


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_each_config_builds_and_takes_one_step(run, path):
    arguments = [str(path), f'--out_dir={run().folder}', '--max_iters=1', '--eval_sequences=2',
                 '--device=cpu']
    options = SimpleNamespace(**configure(dict(vars(train)), arguments))
    options.batch_size = 2
    train.main(options)
    assert [line['iter'] for line in run().log()] == [0, 1]
    assert configure(dict(vars(train)), [str(path)])['out_dir'] == f'out/{path.stem}'


def test_the_arms_of_a_task_differ_in_attention_and_what_was_tuned_only():
    arms = {}
    for path in CONFIGS:
        name, _, attention = path.stem.rpartition('_')
        options = configure(dict(vars(train)), [str(path)])
        assert options['attention'] == attention
        assert options['task'].partition(':')[0] in OF_THE_PAGE
        tuned = ['optimizer', 'learning_rate', 'muon_lr', 'rope_base']
        for key in ('attention', 'out_dir', *tuned):
            del options[key]
        first = arms.setdefault(name, options)
        if attention == 'tapa':  # its form was searched: study/tapa.md
            for key in ('tapa_alpha', 'tapa_scale', 'tapa_theta'):
                options[key] = first[key]
        assert first == options, path
    attentions = ('rope', 'spectral', 'bifocal', 'tapa')
    stems = {f'{name}_{attention}' for name in arms for attention in attentions}
    assert {path.stem for path in CONFIGS} == stems
