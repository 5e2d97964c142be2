"""Attacks: full disks and kills at every moment, two processes at once, checkpoints of strangers, absurd sizes."""

import builtins
import errno
import json
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import eval as page
import sample
import train
from configurator import configure, one_line_errors
from lab import memory
from model import GPTConfig
from tests.conftest import ROOT, TIMES, Run, together

SHORT = ['--max_iters=4', '--eval_interval=2', '--log_interval=1', '--attention=spectral']


def states(folder):
    """What must be the same whenever a run is the same: checkpoints and log, without times."""
    found = {}
    for name in ('ckpt.pt', 'best.pt'):
        checkpoint = torch.load(folder / name, weights_only=True)
        state = [s['state'] for s in checkpoint['optimizers']]
        found[name] = pickle.dumps([checkpoint['iter'], checkpoint['best_val_loss'], checkpoint['rng'].tolist(),
                                    [(k, v.tolist()) for k, v in checkpoint['model'].items()],
                                    [[{k: v.tolist() for k, v in one.items()} for one in s.values()] for s in state]])
    log = [json.loads(line) for line in (folder / 'log.jsonl').read_text().splitlines()]
    found['log'] = [{key: value for key, value in line.items() if key not in TIMES} for line in log]
    found['seed'] = json.loads((folder / 'config.json').read_text())['options']['seed']
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Every operation on a file fails, or is the last


class Killed(BaseException):
    """Nothing catches it, and after it no operation does anything: the process is dead."""


class Disk:
    """A disk on which the operation number `at` fails for lack of space, or after which the process is dead."""

    def __init__(self, monkeypatch, kind, at):
        self.kind, self.at, self.n = kind, at, 0
        monkeypatch.setattr(train, 'open', self.open, raising=False)
        for name in ('replace', 'fsync', 'unlink', 'mkdir'):
            monkeypatch.setattr(os, name, self.watched(getattr(os, name)))

    def step(self):
        self.n += 1
        if self.kind == 'killed' and self.n >= self.at:
            raise Killed
        if self.kind == 'full' and self.n == self.at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def watched(self, function):
        def call(*arguments, **options):
            self.step()
            return function(*arguments, **options)
        return call

    def open(self, path, mode='r'):
        self.step()
        return Half(builtins.open(path, mode, buffering=0), self)


class Half:
    """A file of which half of what is written arrives, if that is the last thing that the process does."""

    def __init__(self, file, disk):
        self.file, self.disk, self.fileno, self.flush = file, disk, file.fileno, file.flush

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, content):
        try:
            self.disk.step()
        except BaseException:
            self.file.write(content[:len(content) // 2])
            raise
        self.file.write(content)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """{seed: the states of a run that nothing disturbs}."""
    folder = tmp_path_factory.mktemp('whole')
    return {seed: states(Run(folder / f'{seed}').train(*SHORT, f'--seed={seed}').folder) for seed in (1, 2)}


def attack(folder, monkeypatch, kind, at, case):
    """Disturb a run at one operation; then start or resume as a user would. Returns how many operations there were."""
    this, arguments = Run(folder), [*SHORT, '--seed=2']
    if case == 'resumed':
        this.train(*arguments, '--max_iters=2', '--lr_end=1.0', '--warmup_iters=0')
        arguments += ['--init_from=resume', '--lr_end=1.0', '--warmup_iters=0']
    if case == 'overwriting':
        this.train(*SHORT, '--seed=1')
        arguments += ['--overwrite=True']
    with monkeypatch.context() as patch:
        disk = Disk(patch, kind, at)
        try:
            this.train(*arguments)
        except Killed:
            pass
        except OSError as error:
            assert kind == 'full' and 'could not write' in str(error) and 'No space left' in str(error)
            assert not list(folder.glob('*.tmp'))
    return disk.n


@pytest.mark.parametrize('case', ['fresh', 'resumed', 'overwriting'])
@pytest.mark.parametrize('kind', ['full', 'killed'])
def test_after_any_failure_a_run_starts_or_resumes_bit_for_bit(tmp_path, monkeypatch, whole, kind, case):
    expected, at = dict(whole), 1
    if case == 'resumed':
        flat = [*SHORT, '--seed=2', '--lr_end=1.0', '--warmup_iters=0']
        expected[2] = states(Run(tmp_path / 'whole').train(*flat).folder)
    while True:
        folder = tmp_path / f'{at}'
        if attack(folder, monkeypatch, kind, at, case) < at:
            break
        this, arguments = Run(folder), [*SHORT, *(['--lr_end=1.0', '--warmup_iters=0'] if case == 'resumed' else [])]
        if (folder / 'ckpt.pt').exists():
            seed = torch.load(folder / 'ckpt.pt', weights_only=True)['options']['seed']
            this.train(*arguments, f'--seed={seed}', '--init_from=resume')
        else:
            seed = 2
            this.train(*arguments, '--seed=2')  # and no --overwrite
        assert states(folder) == expected[seed], at
        at += 1
    assert at > 30


def test_an_old_run_stays_until_the_new_one_has_a_checkpoint(run, whole):
    this = run().train(*SHORT, '--seed=1')
    with pytest.raises(FloatingPointError):
        this.train('--overwrite=True', '--init_std=3e38')
    assert states(this.folder) == whole[1]


def test_lines_that_the_log_has_lost_are_told(run, capsys):
    this = run().train(*SHORT)
    log = (this.folder / 'log.jsonl').read_text().splitlines(keepends=True)
    (this.folder / 'log.jsonl').write_text(''.join(log[:2]))
    this.train(*SHORT, '--init_from=resume', '--max_iters=5')
    assert 'log.jsonl has lost the lines before iteration 4' in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------------------------------
# A run owns its folder


def child(function, *arguments):
    """Run a function in a child process as a script would: (its process id, the file with what it prints)."""
    path = Path(os.environ['SAID']) / f'{time.monotonic_ns()}.txt'
    pid = os.fork()
    if pid:
        return pid, path
    code = 70
    try:
        with open(path, 'w') as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, 'w'), os.fdopen(2, 'w')
        try:
            with one_line_errors():
                function(*arguments)
            code = 0
        except SystemExit as end:
            print(end.code if isinstance(end.code, str) else '', file=sys.stderr)
            code = end.code if isinstance(end.code, int) else bool(end.code)
        sys.stdout.flush(), sys.stderr.flush()
    finally:
        os._exit(int(code))


def end(pid, path):
    """(exit status, the lines that it said); the status is negative for a signal."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, [line for line in path.read_text().splitlines() if line.strip()]


@pytest.fixture(autouse=True)
def said(tmp_path_factory, monkeypatch):
    monkeypatch.setenv('SAID', str(tmp_path_factory.mktemp('said')))


def script(*arguments):
    """What the command python train.py does."""
    options = configure(dict(vars(train)), together(*arguments))
    train.lock(Path(options['out_dir']))
    train.main(train.SimpleNamespace(**options))


def test_of_two_processes_in_one_folder_the_second_ends_in_one_line(tmp_path, whole):
    from tests.conftest import SMALL
    lost = 0
    for i in range(20):
        folder = tmp_path / f'{i}'
        pairs = [child(script, *SMALL, *SHORT, f'--seed={seed}', f'--out_dir={folder}') for seed in (1, 2)]
        ends = [end(*pair) for pair in pairs]
        (winner,) = [seed for seed, (status, _) in zip((1, 2), ends) if status == 0]
        status, lines = ends[2 - winner]
        assert status == 1 and len(lines) == 1 and f"out_dir='{folder}'" in lines[0]
        lost += 'another process' in lines[0]
        assert states(folder) == whole[winner]
    assert lost  # some come when the first is done


@pytest.mark.parametrize('arguments', [[], ['--overwrite=True'], ['--init_from=resume']])
def test_a_folder_that_is_no_run_is_left_alone(run, monkeypatch, arguments):
    this = run()
    this.folder.mkdir()
    (this.folder / 'config.json').write_text('{"model_type": "llama"}')
    (this.folder / 'eval.json').write_text('mine')
    for out_dir in (this.folder, ''):
        monkeypatch.chdir(this.folder)
        with pytest.raises(FileExistsError, match='has files .*config.json.* and no run'):
            this.train(*arguments, f'--out_dir={out_dir}')
    assert {path.name: path.read_text() for path in this.folder.iterdir()} == {
        'config.json': '{"model_type": "llama"}', 'eval.json': 'mine'}


def test_resuming_deletes_nothing(run):
    this = run().train(*SHORT)
    for name in ('eval.json', 'eval_log_scale=64.json', 'notes.txt', 'eval.png'):
        (this.folder / name).write_text('mine')
    this.train(*SHORT, '--init_from=resume', '--max_iters=5')
    assert {'eval.json', 'eval_log_scale=64.json', 'notes.txt', 'eval.png'} <= {p.name for p in this.folder.iterdir()}


# ----------------------------------------------------------------------------------------------------------------------
# A checkpoint is data from a stranger


def strided(tensor):
    """As large as the tensor, but in the memory of one number."""
    return torch.zeros(1, dtype=tensor.dtype).as_strided(tensor.shape, [0] * tensor.dim())


def overlapping(tensor):
    """Rows that share memory with the row before."""
    return torch.zeros(tensor.numel(), dtype=tensor.dtype).as_strided(tensor.shape, [1] * tensor.dim())


HARM = {'stride 0': strided, 'overlapping': overlapping, 'another shape': lambda t: torch.zeros(*t.shape, 2),
        'smaller': lambda t: torch.zeros(1), 'another dtype': lambda t: t.double(), 'a list': lambda t: t.tolist(),
        'sparse': lambda t: t.to_sparse(), 'meta': lambda t: t.to('meta')}


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A run, and what it saved; a Muon run, for both kinds of state."""
    this = Run(tmp_path_factory.mktemp('trained') / 'run').train(*SHORT, '--optimizer=muon')
    return this, torch.load(this.folder / 'ckpt.pt', weights_only=True)


def refused(trained, change, *programs):
    """The line with which each program refuses the checkpoint that `change` has made of a good one."""
    this, good = trained
    checkpoint = torch.load(this.folder / 'ckpt.pt', weights_only=True)
    change(checkpoint)
    folder = Path(os.environ['SAID']) / 'run'
    folder.mkdir(exist_ok=True)
    for name in ('config.json', 'log.jsonl'):
        (folder / name).write_bytes((this.folder / name).read_bytes())
    for name in ('ckpt.pt', 'best.pt'):
        torch.save(checkpoint, folder / name)
    before, lines = (folder / 'ckpt.pt').read_bytes(), []
    from tests.conftest import SMALL
    resume = lambda: script(*SMALL, *SHORT, '--optimizer=muon', '--max_iters=6', '--init_from=resume',
                            f'--out_dir={folder}')
    start = dict(resume=resume, evaluate=lambda: page.main([str(folder), '--multiples', '1', '--device=cpu']),
                 sample=lambda: sample.main([str(folder), '--device=cpu']))
    for program in programs:
        status, said = end(*child(start[program]))
        assert status == 1, (program, status, said)
        lines.append(said[-1])
        assert not any(line.startswith('Traceback') for line in said), said
    assert (folder / 'ckpt.pt').read_bytes() == before
    return lines


@pytest.mark.parametrize('harm', HARM)
def test_tensors_that_are_not_what_they_should_be_are_refused(trained, harm):
    def weight(checkpoint):
        name = 'blocks.0.attention.qkv.weight'
        checkpoint['model'][name] = HARM[harm](checkpoint['model'][name])

    def moment(checkpoint):
        state = checkpoint['optimizers'][0]['state'][0]
        state['exp_avg'] = HARM[harm](state['exp_avg'])

    def momentum(checkpoint):
        state = checkpoint['optimizers'][1]['state'][0]
        state['momentum_buffer'] = HARM[harm](state['momentum_buffer'])

    for line in refused(trained, weight, 'resume', 'evaluate', 'sample'):
        assert 'is not a checkpoint of this version of train.py' in line or 'may be malicious' in line
    for change in (moment, momentum):
        (line,) = refused(trained, change, 'resume')
        assert 'no state to resume from' in line or 'is not a checkpoint' in line


@pytest.mark.parametrize('field, value', [
    ('n_layer', 10**9), ('n_embd', 10**9), ('n_head', 10**9), ('vocab_size', 10**12), ('head_dim', 10**9),
    ('n_inner', 10**12), ('n_layer', 2.5), ('n_embd', '16'), ('learn', 3), ('rope', ['yarn']), ('unknown', 1),
    ('attention', None)])
def test_a_configuration_that_is_not_that_of_the_tensors_is_refused_at_once(trained, field, value):
    for line in refused(trained, put(value, 'model_args', field), 'evaluate', 'resume'):
        assert 'is not a checkpoint of this version of train.py' in line


def drop(*path):
    def change(checkpoint):
        for key in path[:-1]:
            checkpoint = checkpoint[key]
        del checkpoint[path[-1]]
    return change


def put(value, *path):
    def change(checkpoint):
        for key in path[:-1]:
            checkpoint = checkpoint[key]
        checkpoint[path[-1]] = value
    return change


def shared_lists():
    """Forty lists that hold the one before twice: small in a pickle, 2^40 numbers if written out."""
    lists = [0]
    for _ in range(40):
        lists = [lists, lists]
    return lists


@pytest.mark.parametrize('change', [
    put(shared_lists(), 'options', 'x'), put(torch.zeros(1).expand(10**9), 'model'), put(16.5, 'options', 'block_size'),
    put(2.0, 'iter'), put([], 'options', 'seed'), drop('data'),
    put(10**400, 'model_args', 'norm_eps'), put(1.0, 'model_args', 'n_spectral_head'),
    drop('model'), drop('model_args'), drop('task'), drop('options'), drop('iter'), drop('model', 'norm.weight'),
    put(torch.ones(2), 'model', 'more'), put(torch.ones(2), 'task'), put(torch.ones(2), 'options', 'seed'),
    put(-1, 'iter'), put(None, 'options'), put([], 'model'), put('x', 'iter')])
def test_parts_that_lack_or_are_something_else_are_refused(trained, change):
    refused(trained, change, 'resume', 'evaluate')


@pytest.mark.parametrize('task', [7, ['dyck'], 'nothing', 'dyck:k=99', 'modulo:modulus=11'])
def test_a_task_that_is_none_or_has_other_symbols_is_refused(trained, task):
    refused(trained, put(task, 'task'), 'evaluate', 'sample')


@pytest.mark.parametrize('change', [
    drop('optimizers'), drop('rng'), drop('scaler'), drop('seconds'), put([], 'optimizers'), put('x', 'seconds'),
    put(torch.zeros(3, dtype=torch.uint8), 'rng'), put({99: {}}, 'optimizers', 0, 'state'), put(10**9, 'iter'),
    drop('optimizers', 0, 'state', 0, 'exp_avg'), put(None, 'best_val_loss')])
def test_states_that_cannot_be_resumed_are_refused(trained, change):
    refused(trained, change, 'resume')


@pytest.mark.parametrize('sessions', ['7', '{}', '[' * 100_000])
def test_a_broken_config_is_no_run(run, sessions):
    this = run().train(*SHORT)
    (this.folder / 'config.json').write_text(f'{{"sessions": {sessions}}}')
    with pytest.raises(FileExistsError, match='and no run'):
        this.train(*SHORT, '--init_from=resume')


def test_a_log_is_not_lost_when_only_the_weights_are_gone(run):
    this = run().train(*SHORT)
    for name in ('ckpt.pt', 'best.pt'):
        (this.folder / name).unlink()
    before = (this.folder / 'log.jsonl').read_bytes()
    with pytest.raises(FileExistsError, match='already holds a run: choose another --out_dir, or replace'):
        this.train(*SHORT)
    assert (this.folder / 'log.jsonl').read_bytes() == before


def test_a_drive_without_locks_is_told_of(tmp_path, monkeypatch, capsys):
    import fcntl

    def no_locks(*arguments):
        raise OSError(errno.EBADF, 'Bad file descriptor')
    monkeypatch.setattr(fcntl, 'flock', no_locks)
    train.lock(tmp_path / 'run')
    assert 'cannot be locked' in capsys.readouterr().out


@pytest.mark.parametrize('text', ['seed = ', 'seed = sed', 'A page in Markdown'])
def test_a_config_file_that_is_none_is_one_line(tmp_path, text):
    (tmp_path / 'config.py').write_text(text)
    with pytest.raises(ValueError, match='config.py is no config file: (Syntax|Name)Error'):
        configure(dict(vars(train)), [str(tmp_path / 'config.py')])


def test_a_config_file_with_a_number_for_a_string_is_told_what_is_allowed(tmp_path):
    (tmp_path / 'config.py').write_text('task = 3')
    with pytest.raises(ValueError, match='task=3: must be a string'):
        configure(dict(vars(train)), [str(tmp_path / 'config.py')])


def test_memory_that_runs_out_is_one_line(monkeypatch):
    monkeypatch.delenv('RANK', raising=False)
    with pytest.raises(SystemExit) as end_of_script, one_line_errors():
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")
    assert "can't allocate memory" in end_of_script.value.code


def test_another_process_than_the_first_says_nothing(monkeypatch, capsys):
    monkeypatch.setenv('RANK', '1')
    with pytest.raises(SystemExit) as end_of_script, one_line_errors():
        raise RuntimeError('Connection closed by peer')
    assert end_of_script.value.code == 1 and capsys.readouterr().err == ''


def test_a_strangers_vocabulary_is_not_opened_to_start_from_it(run, tmp_path):
    this = run().train('--task=text', '--max_iters=1')
    text = torch.load(this.folder / 'best.pt', weights_only=True)
    torch.save(dict(text, task=f'text:encoding=hf:{tmp_path}'), tmp_path / 'stranger.pt')
    with pytest.raises(ValueError, match='whose symbols are not those of text'):
        run('other').train('--task=text', f'--init_from={tmp_path}/stranger.pt')


def test_a_path_in_a_checkpoint_is_not_opened_unless_the_user_gives_it(run, tmp_path, capsys):
    secret = tmp_path / 'secret.txt'
    secret.write_text('the secret is 4711\n' * 100)
    this = run().train('--task=modulo', '--max_iters=1')
    foreign = torch.load(this.folder / 'best.pt', weights_only=True)
    mine = run('mine').train(f'--task=text:path={secret}', '--max_iters=1', '--block_size=8')
    text = torch.load(mine.folder / 'best.pt', weights_only=True)
    for task in (f'text:path={secret}', 'text:path=/', f'text:encoding=hf:{tmp_path}'):
        torch.save(dict(text, task=task), mine.folder / 'stranger.pt')
        for program in (page, sample):
            with pytest.raises(ValueError, match='the run was trained on text:.*: give --task='):
                program.main([str(mine.folder), '--checkpoint=stranger.pt'])
    assert '4711' not in capsys.readouterr().out
    given = [str(mine.folder), f'--task=text:path={secret}']
    page.main([*given, '--multiples', '1', '--n=2'])
    sample.main([*given, '--n=1', '--length=4'])
    moved = tmp_path / 'moved.txt'
    moved.write_text(secret.read_text())
    page.main([str(mine.folder), f'--task=text:path={moved}', '--multiples', '1', '--n=2'])
    (tmp_path / 'other.txt').write_text('another text ' * 100)
    for task in (f'text:path={tmp_path}/other.txt', 'text', 'modulo'):
        with pytest.raises(ValueError, match='the run was trained on text:path=.*, and that is not the same'):
            page.main([str(mine.folder), f'--task={task}'])
    with pytest.raises(ValueError, match='the run was trained on modulo, and that is not the same'):
        page.main([str(this.folder), '--task=modulo:modulus=5'])
    assert foreign['task'] == 'modulo'


def test_a_text_that_has_changed_is_told(run, capsys):
    this = run().train('--task=text', '--max_iters=1')
    checkpoint = page.load_checkpoint(this.folder / 'best.pt')
    capsys.readouterr()
    page.find_task(checkpoint)
    assert capsys.readouterr().out == ''
    page.find_task(dict(checkpoint, data=dict(checkpoint['data'], sha256='0')))
    assert 'the text of text is not what it was in training' in capsys.readouterr().out


def test_code_in_a_checkpoint_does_not_run_and_is_called_what_it_may_be(run):
    class Malice:
        def __reduce__(self):
            return os.system, ('true',)
    this = run().train('--max_iters=1')
    torch.save(Malice(), this.folder / 'best.pt')
    with pytest.raises(ValueError, match='it may be malicious, and was not loaded$'):
        page.main([str(this.folder)])


@pytest.mark.parametrize('log', ['[]\n', '{}\n', '7\n', 'no json\n', '{"iter": "x"}\n', '{"iter": 1}\n\x00\n'])
def test_a_log_that_is_none_is_one_line(run, log):
    this = run().train('--max_iters=1')
    (this.folder / 'log.jsonl').write_text(log)
    with pytest.raises(ValueError, match='log.jsonl is not a log of train.py'):
        page.read_log(this.folder)


@pytest.mark.parametrize('name, content', [
    ('config.json', '{"options": {}}'), ('config.json', '[]'), ('config.json', 'null'), ('log.jsonl', '{}\n'),
    ('config.json', '{"options": {"max_iters": "\\u001b[31m"}, "sessions": 7}'), ('eval.json', '[]'),
    ('eval.json', '{"lengths": {"16": 3}}')])
def test_side_by_side_a_broken_run_is_skipped_and_others_are_shown(run, capsys, monkeypatch, tmp_path, name, content):
    from lab import compare
    for run_name in ('good', 'broken'):
        this = run(run_name).train('--max_iters=1')
        page.main([str(this.folder), '--multiples', '1', '--n=4', '--device=cpu'])
    (this.folder / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    compare.main([str(run('good').folder), str(run('broken').folder)])
    printed = capsys.readouterr()
    assert 'skipped' in printed.err and 'broken' in printed.err and '\x1b' not in printed.err + printed.out
    assert printed.err.count('skipped') == 1 and '| rope' in printed.out


def test_escape_sequences_do_not_reach_the_terminal(monkeypatch):
    monkeypatch.delenv('RANK', raising=False)
    with pytest.raises(SystemExit) as end_of_script, one_line_errors():
        raise ValueError('a \x1b[31mred\nname')
    assert '\x1b' not in end_of_script.value.code and '\n' not in end_of_script.value.code


# ----------------------------------------------------------------------------------------------------------------------
# Absurd sizes, and being stopped


def test_absurd_sizes_are_refused_by_the_lab(trained):
    from lab import bench, crystallise
    from lessons import look
    with pytest.raises(ValueError, match='GiB of memory'):
        bench.main(['--lengths', '100000000000', '--device=cpu'])
    this, _ = trained
    checkpoint = torch.load(this.folder / 'best.pt', weights_only=True)
    checkpoint['options']['block_size'] = 10**7
    folder = Path(os.environ['SAID']) / 'long'
    folder.mkdir()
    torch.save(checkpoint, folder / 'best.pt')
    for program in (look, crystallise):
        with pytest.raises(ValueError, match='GiB of memory'):
            program.main([str(folder)])


def test_the_estimate_is_near_what_a_model_has():
    config = GPTConfig(vocab_size=50, n_layer=3, n_embd=64)
    from model import GPT
    weights = sum(p.numel() for p in GPT(config).parameters() if p.dim() > 1)
    free = memory.free_bytes
    try:
        memory.free_bytes = lambda device: (4 * weights) / 2 - 1
        with pytest.raises(ValueError, match='GiB'):
            memory.check(config, 'cpu', 0, 0, 0)
        memory.free_bytes = lambda device: (4 * weights) / 2
        memory.check(config, 'cpu', 0, 0, 0)
    finally:
        memory.free_bytes = free


@pytest.mark.parametrize('arguments, message', [
    (['--learning_rate=1e999'], 'learning_rate=inf: must be a finite number'), (['--seed=-1'], 'seed=-1: must be'),
    (['--grad_clip=nan'], "grad_clip='nan': must be"), (['--seed=1', '--seed=2'], '--seed=2: .* each once'),
    (['--rope_base=-1.0'], 'rope_base=-1.0: must be'), (['--overwrite=1'], 'overwrite=1: must be True or False'),
    ([f'--learning_rate={10**400}'], 'must be a finite number')])
def test_numbers_that_are_none_are_refused_where_they_are_read(arguments, message):
    with pytest.raises(ValueError, match=message):
        configure(dict(vars(train)), arguments)


def test_the_first_ctrl_c_answers_at_once(run):
    this = run()
    process = this.start('--max_iters=100000', '--eval_interval=100000')
    while not (this.folder / 'log.jsonl').exists() or len(this.log()) < 3:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert 'then saving; again to abort' in output and 'Traceback' not in output
    assert process.returncode == 128 + signal.SIGINT and str(ROOT) not in output.splitlines()[-1]
