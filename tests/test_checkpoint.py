"""The folder of a run: nothing is lost, two runs never mix, and a stranger's checkpoint is data."""

import builtins
import errno
import io
import json
import math
import os
import pickle
import random
import shlex
import shutil
import signal
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import checkpoint as checkpoint_file
import eval as eval_file
import sample
import train
from checkpoint import build_model, load_checkpoint, read_learned, read_log, write_files
from configurator import one_line_errors
from conftest import SMALL, Run, assert_same, assert_same_run
from model import UserError
from tasks import make_task
from text import read_files, read_texts

SHORT = ['--max_iters=4', '--eval_interval=2', '--log_interval=1', '--attention=spectral']
FLAT = ['--lr_end=1.0', '--warmup_iters=0']  # rates that do not depend on max_iters


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A run with both optimizers, Muon and AdamW. Tests copy it."""
    return Run(tmp_path_factory.mktemp('trained') / 'run').train(*SHORT, '--optimizer=muon')


@pytest.fixture
def copy(trained, tmp_path):
    """copy(change) is a copy of the trained run, whose checkpoints `change` has changed."""
    def make(change=None):
        this = Run(tmp_path / 'copy')
        shutil.copytree(trained.folder, this.folder)
        if change:
            checkpoint = this.checkpoint()
            change(checkpoint)
            for name in ('ckpt.pt', 'best.pt'):
                torch.save(checkpoint, this.folder / name)
        return this
    return make


def resume(run, *arguments):
    run.train(*SHORT, '--max_iters=6', '--init_from=resume', *arguments)


def evaluate(run):
    eval_file.main([str(run.folder), '--multiples', '1', '--n=4', '--device=cpu'])


def show(run):
    sample.main([str(run.folder), '--n=1', '--device=cpu'])


def assert_refused(run, message, *programs):
    """Each of the programs refuses the run with this message, and leaves its files as they are."""
    before = run.files()
    for program in programs:
        with pytest.raises(UserError, match=message):
            program(run)
    after = run.files()
    after.pop('run.lock', None)
    before.pop('run.lock', None)
    assert after == before


def at_the_second_validation(monkeypatch, function):
    """Call the function in the middle of a run."""
    calls = []
    original = train.evaluate

    def evaluate(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            function()
        return original(*arguments)
    monkeypatch.setattr(train, 'evaluate', evaluate)


# a run owns its folder


def test_a_run_is_not_replaced_unless_told_to(copy):
    this = copy()
    for name in ('notes.txt', 'eval_notes.md'):
        (this.folder / name).write_text('mine')
    before = this.files()
    message = 'already holds a run: .*--init_from=resume, .*--overwrite=True'
    with pytest.raises(UserError, match=message):
        this.train('--seed=1')
    for bad, message in [
            ('--attention=rpe', 'attention'), ('--task=dick', 'dyck'),
            ('--device=cuda:7', 'cuda:7'), ('--dtype=half', 'bfloat16')]:
        with pytest.raises(UserError, match=message):  # even then, not by what cannot run
            this.train('--overwrite=True', bad)
    assert this.files() == before
    this.train('--overwrite=True', '--seed=1')
    assert this.files()['notes.txt'] == this.files()['eval_notes.md'] == b'mine'
    assert json.loads(this.files()['config.json'])['options']['seed'] == 1


@pytest.mark.parametrize('arguments', [[], ['--overwrite=True'], ['--init_from=resume']])
@pytest.mark.parametrize('name', ['config.json', 'theirs.tmp', 'theirs.lock', 'eval.json'])
def test_a_folder_with_other_files_is_left_as_it_is(run, monkeypatch, arguments, name):
    this = run()
    this.folder.mkdir()
    (this.folder / name).write_text('{"model_type": "llama"}')
    monkeypatch.chdir(this.folder)
    for out_dir in (this.folder, ''):
        with pytest.raises(UserError, match=f'has files \\({name}, .* and no run'):
            this.train(*arguments, f'--out_dir={out_dir}')
    assert this.files() == {name: b'{"model_type": "llama"}'}


@pytest.mark.parametrize('left', [
    ['run.lock'], ['run.lock', 'config.json.tmp', 'log.jsonl.tmp', 'ckpt.pt.tmp', 'best.pt.tmp'],
    ['run.lock', 'config.json', 'ckpt.pt.tmp'], ['run.lock', 'config.json', 'log.jsonl']])
def test_what_a_kill_at_the_start_leaves_is_no_run(run, left):
    this = run()
    this.folder.mkdir()
    for name in left:
        (this.folder / name).write_text('{"sessions": []}' if name == 'config.json' else '')
    assert len(this.train('--max_iters=1').log()) == 2


def test_an_out_dir_that_cannot_be_is_refused(run, tmp_path):
    for name in ('a' * 300, 'link', 'file'):
        (tmp_path / 'file').write_text('mine')
        (tmp_path / 'folder').mkdir(exist_ok=True)
        (tmp_path / 'folder' / 'link').unlink(missing_ok=True)
        (tmp_path / 'folder' / 'link').symlink_to('nowhere')
        out_dir = dict(link='folder').get(name, name)
        with pytest.raises(UserError, match='too long|has files|File exists|Not a directory'):
            run(out_dir).train()


def test_resuming_deletes_nothing_and_a_new_run_what_was_measured(copy, monkeypatch):
    this = copy()
    measured = {'eval.json', 'eval.png', 'eval_log_scale=64.json'}
    for name in (*measured, 'notes.txt', 'eval_notes.md'):
        (this.folder / name).write_text('of the old run')
    resume(this)
    assert measured < this.files().keys()
    monkeypatch.chdir(this.folder.parent)
    this.train('--overwrite=True', f'--out_dir={this.folder.name}')  # a relative path
    assert not measured & this.files().keys()
    assert {'notes.txt', 'eval_notes.md'} < this.files().keys()


def test_an_old_run_stays_until_the_new_one_has_a_state(copy):
    this = copy()
    before = this.files()
    with pytest.raises(UserError, match='the training loss is nan'):
        this.train('--overwrite=True', '--init_std=3e38')
    assert this.files() == before


@pytest.mark.parametrize('sessions', ['7', '{}', '[' * 100_000])
def test_a_broken_config_is_no_run(copy, sessions):
    this = copy()
    (this.folder / 'config.json').write_text(f'{{"sessions": {sessions}}}')
    assert_refused(this, 'and no run', resume)


def test_a_log_is_not_lost_when_only_the_weights_are_gone(copy):
    this = copy()
    for name in ('ckpt.pt', 'best.pt'):
        (this.folder / name).unlink()
    before = this.files()
    with pytest.raises(UserError, match='already holds a run: choose another --out_dir'):
        this.train(*SHORT)
    assert this.files() == before


@pytest.mark.parametrize('log', [
    '[]\n', '{}\n', '7\n', 'no json\n', '{"iter": "x"}\n', '{"iter": 1}\n\x00\n', '\xff\n',
    '{"iter": "x", "val_loss": "y"}\n', '{"iter": null}\n', '{"iter": 1e999}\n',
    '{"iter": 1, "val_loss": []}\n', '{"iter": 1, "val_loss": 1' + '0' * 400 + '}\n',
    '{"iter": ' + '9' * 5000 + '}\n', '[' * 100_000 + '\n'])
def test_a_log_that_is_none_is_refused(tmp_path, log):
    (tmp_path / 'log.jsonl').write_bytes(log.encode('latin-1'))
    with pytest.raises(UserError, match='log.jsonl is not a log of train.py'):
        read_log(tmp_path)


def test_half_a_line_at_the_end_of_a_log_is_left_out(tmp_path):
    (tmp_path / 'log.jsonl').write_text('{"iter": 0, "val_loss": NaN}\n{"iter": 1}\n{"iter": 2, ')
    assert [line['iter'] for line in read_log(tmp_path)] == [0, 1]


# two processes, and folders that move


def test_a_second_run_in_the_folder_is_refused_while_the_first_trains(run, monkeypatch):
    this = run()
    refused = []

    def second():
        monkeypatch.setattr(train, 'evaluate', eval_file.evaluate)
        for arguments in ([], ['--overwrite=True'], ['--init_from=resume', '--max_iters=9']):
            with torch.random.fork_rng(), pytest.raises(UserError) as error:
                this.train('--seed=1', *arguments)
            refused.append(str(error.value))
    alone = run('alone').train('--seed=1')
    at_the_second_validation(monkeypatch, second)
    this.train('--seed=1')
    assert_same_run(this, alone)
    assert 'already holds a run' in refused[0]
    assert f"out_dir='{this.folder}': another process trains there" == refused[1] == refused[2]


def before_it_locks(monkeypatch, function):
    """Call the function when a run has read its folder, and has not locked it."""
    original = checkpoint_file.lock

    def lock(file):
        monkeypatch.setattr(checkpoint_file, 'lock', original)
        function()
        original(file)
    monkeypatch.setattr(checkpoint_file, 'lock', lock)


def test_a_run_that_another_has_begun_and_ended_meanwhile_is_refused(run, monkeypatch):
    this = run()
    before_it_locks(monkeypatch, lambda: this.train('--seed=1'))
    with pytest.raises(UserError, match='already holds a run'):
        this.train('--seed=2')
    assert_same_run(this, run('alone').train('--seed=1'))


def test_a_checkpoint_that_another_has_resumed_meanwhile_is_refused(copy, monkeypatch):
    this = copy()
    before_it_locks(monkeypatch, lambda: resume(this))
    with pytest.raises(UserError, match='ckpt.pt is not what was read: resume once more'):
        resume(this, '--max_iters=8')
    assert this.checkpoint()['iter'] == 6
    assert [line['iter'] for line in this.log()] == list(range(7))


def test_a_checkpoint_that_another_replaces_while_it_is_read_is_refused(copy, monkeypatch):
    this = copy()
    original = checkpoint_file.load_checkpoint

    def load(path):
        monkeypatch.setattr(checkpoint_file, 'load_checkpoint', original)
        read = original(path)
        resume(this)
        return read
    monkeypatch.setattr(checkpoint_file, 'load_checkpoint', load)
    with pytest.raises(UserError, match='ckpt.pt is not what was read'):
        resume(this, '--max_iters=8')
    assert this.checkpoint()['iter'] == 6


def test_a_checkpoint_that_is_gone_meanwhile_is_refused(copy, monkeypatch):
    this = copy()
    before_it_locks(monkeypatch, (this.folder / 'ckpt.pt').unlink)
    with pytest.raises(UserError, match='ckpt.pt is not what was read'):
        resume(this)


@pytest.mark.parametrize('what', ['moved', 'removed', 'emptied', 'another run is there'])
def test_a_run_whose_folder_is_moved_stops_and_says_so(run, monkeypatch, what):
    this, there = run(), run('there')

    def move():
        monkeypatch.setattr(train, 'evaluate', eval_file.evaluate)
        if what in ('moved', 'another run is there'):
            this.folder.rename(there.folder)
        else:
            shutil.copytree(this.folder, there.folder)
            shutil.rmtree(this.folder)
        if what == 'emptied':
            this.folder.mkdir()
        if what == 'another run is there':
            this.train('--seed=1')
    at_the_second_validation(monkeypatch, move)
    with pytest.raises(UserError, match='was moved or removed while it trained; resume it'):
        this.train()
    if what == 'another run is there':
        assert_same_run(this, run('alone').train('--seed=1'))
    else:
        assert not this.folder.exists() or not this.files()
    assert_same_run(there.train('--init_from=resume'), run('never moved').train())


def test_a_drive_without_locks_is_told_of(run, monkeypatch, capsys):
    import fcntl

    def no_locks(*arguments):
        raise OSError(errno.EBADF, 'Bad file descriptor')
    monkeypatch.setattr(fcntl, 'flock', no_locks)
    run().train('--max_iters=1')
    assert 'run.lock cannot be locked' in capsys.readouterr().out


def child(*arguments):
    """train.py in a child of this process: its id, and the end of a pipe with what it prints."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, os.fdopen(reader)
    code = 70
    try:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.stdout, sys.stderr = os.fdopen(1, 'w'), os.fdopen(2, 'w')
        try:
            with one_line_errors():
                Run(None).train(*arguments)
            code = 0
        except SystemExit as exit:
            print(exit.code, file=sys.stderr)
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


@pytest.mark.slow
def test_of_two_processes_in_one_folder_one_trains_and_one_ends_in_one_line(run):
    alone = {seed: run(f'alone {seed}').train(*SHORT, f'--seed={seed}') for seed in (1, 2)}
    locked = 0
    for i in range(10):
        this = run(f'{i}')
        children = [child(*SHORT, f'--seed={seed}', f'--out_dir={this.folder}')
                    for seed in (1, 2)]
        printed = [pipe.read().splitlines() for _, pipe in children]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, _ in children]
        assert sorted(codes) == [0, 1], printed
        winner = codes.index(0)
        error = [line for line in printed[1 - winner] if not line.startswith(str(this.folder))]
        (line,) = error  # the other one says what it would train on
        assert f"out_dir='{this.folder}'" in line
        locked += 'another process trains there' in line
        assert_same_run(this, alone[winner + 1])
    assert locked  # others come when the first has ended


# files are complete, or are not written


def test_files_are_written_added_and_removed(tmp_path):
    folder = tmp_path / 'a' / 'b'
    write_files(folder, {'x': b'1', 'y': b'2'}, added={'log': b'3'})
    write_files(folder, {'x': b'4'}, added={'log': b'5'}, outdated=['y', 'z'])
    assert Run(folder).files() == {'x': b'4', 'log': b'35'}


def test_a_file_half_written_leaves_the_old_one_complete(copy, monkeypatch):
    this = copy()
    before = (this.folder / 'ckpt.pt').read_bytes()

    def dies(number):
        raise KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(os, 'fsync', dies)
        with pytest.raises(KeyboardInterrupt):
            write_files(this.folder, {'ckpt.pt': b'half'})
    assert (this.folder / 'ckpt.pt').read_bytes() == before
    resume(this)


def test_a_full_disk_truncates_nothing(tmp_path, monkeypatch):
    write_files(tmp_path, {'x': b'old', 'y': b'old'})

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(UserError, match='could not write .*: No space left on device'):
        write_files(tmp_path, {'x': b'new', 'y': b'new'})
    assert Run(tmp_path).files() == {'x': b'old', 'y': b'old'}


def test_a_folder_that_is_read_only_keeps_its_own_message(tmp_path, monkeypatch):
    def forbidden(path, *arguments, **options):
        raise PermissionError(errno.EACCES, 'Permission denied', str(path))
    monkeypatch.setattr(checkpoint_file, 'open', forbidden, raising=False)
    monkeypatch.setattr(os, 'unlink', forbidden)
    with pytest.raises(UserError, match='could not write .*/x.tmp: Permission denied'):
        write_files(tmp_path, {'x': b'new'})


@pytest.mark.parametrize('failures', [1, 1000])
def test_a_file_that_another_program_holds_is_replaced_a_little_later(
        tmp_path, monkeypatch, failures):
    (tmp_path / 'x').write_bytes(b'old')
    original, calls = os.replace, []

    def held(source, target):
        calls.append(target)
        if len(calls) <= failures:
            raise PermissionError(errno.EACCES, 'Access is denied', str(source))
        original(source, target)
    monkeypatch.setattr(os, 'replace', held)
    monkeypatch.setattr(time, 'sleep', lambda seconds: None)
    if failures == 1:
        write_files(tmp_path, {'x': b'new'})
        assert Run(tmp_path).files() == {'x': b'new'}
    else:
        with pytest.raises(UserError, match='could not write .*: Access is denied'):
            write_files(tmp_path, {'x': b'new'})
        assert Run(tmp_path).files() == {'x': b'old'}
        assert len(calls) < 100


def test_what_makes_a_folder_a_run_comes_first_and_what_replaces_a_run_last(run, monkeypatch):
    """So a kill between two files leaves a new run to be started, or an old one to be resumed."""
    order = []
    original = checkpoint_file.replace

    def recorded(source, target):
        order.append(target.name)
        original(source, target)
    monkeypatch.setattr(checkpoint_file, 'replace', recorded)
    this = run().train('--max_iters=1')
    assert order[:4] == ['config.json', 'log.jsonl', 'ckpt.pt', 'best.pt']
    order.clear()
    this.train('--max_iters=1', '--overwrite=True')
    assert order[:4] == ['ckpt.pt', 'best.pt', 'config.json', 'log.jsonl']


class Killed(BaseException):
    """Nothing catches it, and after it no operation does anything: the process is dead."""


class Disk:
    """A disk whose operation number `at` finds no space, or is the last one before a kill."""

    def __init__(self, monkeypatch, event, at):
        self.event, self.at, self.n = event, at, 0
        monkeypatch.setattr(checkpoint_file, 'open', self.open, raising=False)
        for name in ('replace', 'fsync', 'unlink', 'mkdir'):
            monkeypatch.setattr(os, name, self.watched(getattr(os, name)))

    def step(self):
        self.n += 1
        if self.event == 'killed' and self.n >= self.at:
            raise Killed
        if self.event == 'full' and self.n == self.at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def watched(self, function):
        def call(*arguments, **options):
            self.step()
            return function(*arguments, **options)
        return call

    def open(self, path, mode='r', **options):
        there = Path(path).name == 'run.lock' and Path(path).exists()
        if there or mode not in ('xb', 'ab'):  # these need no space
            return builtins.open(path, mode, **options)
        self.step()
        return Half(builtins.open(path, mode, buffering=0, **options), self)


class Half:
    """A file that gets half of what is written, if that is the last thing that a process does."""

    def __init__(self, file, disk):
        self.file, self.disk = file, disk
        self.fileno, self.flush = file.fileno, file.flush

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
def undisturbed(tmp_path_factory):
    """undisturbed(seed, *arguments) is a run that nothing disturbs."""
    runs = {}

    def get(seed, *arguments):
        if (seed, arguments) not in runs:
            folder = tmp_path_factory.mktemp('undisturbed') / 'run'
            runs[seed, arguments] = Run(folder).train(*SHORT, f'--seed={seed}', *arguments)
        return runs[seed, arguments]
    return get


def attack(this, monkeypatch, case, event, at):
    """Disturb a run at an operation on its files. Returns how many operations there were."""
    if case == 'resumed':
        this.train(*SHORT, '--seed=2', *FLAT, '--max_iters=2')
        arguments = ['--seed=2', *FLAT, '--init_from=resume']
    elif case == 'overwriting':
        this.train(*SHORT, '--seed=1')
        arguments = ['--seed=2', '--overwrite=True']
    else:
        arguments = ['--seed=2']
    with monkeypatch.context() as patch:
        disk = Disk(patch, event, at)
        try:
            this.train(*SHORT, *arguments)
        except Killed:
            pass
        except UserError as error:
            assert event == 'full'
            assert 'could not write' in str(error) and 'No space left' in str(error)
            assert not list(this.folder.glob('*.tmp'))
    return disk.n


def attack_everywhere(run, monkeypatch, undisturbed, case, event, first, step):
    """
    Disturb one of `step` operations on files. Then start or resume as a user would: the result is
    that of a run that nothing disturbed.
    """
    rates = FLAT if case == 'resumed' else []
    at = first
    while True:
        this = run(f'{at}')
        if attack(this, monkeypatch, case, event, at) < at:
            return at
        seed = 2
        if (this.folder / 'ckpt.pt').exists():
            seed = this.checkpoint()['options']['seed']
            this.train(*SHORT, *rates, f'--seed={seed}', '--init_from=resume')
        else:
            this.train(*SHORT, *rates, '--seed=2')  # and no --overwrite
        assert_same_run(this, undisturbed(seed, *rates))
        at += step


@pytest.mark.parametrize('event', ['full', 'killed'])
def test_some_failures_of_a_run_that_replaces_another(run, monkeypatch, undisturbed, event):
    assert attack_everywhere(run, monkeypatch, undisturbed, 'overwriting', event, 1, 13) > 28


@pytest.mark.slow
@pytest.mark.parametrize('case, event, first', [
    ('fresh', 'full', 1), ('fresh', 'killed', 2), ('resumed', 'full', 3), ('resumed', 'killed', 1),
    ('overwriting', 'full', 2), ('overwriting', 'killed', 3)])
def test_after_any_failure_a_run_starts_or_resumes_bit_for_bit(
        run, monkeypatch, undisturbed, case, event, first):
    """One operation in three, and others in each case: a run writes its state several times."""
    assert attack_everywhere(run, monkeypatch, undisturbed, case, event, first, 3) > 28


@pytest.mark.slow
@pytest.mark.parametrize('case', ['fresh', 'overwriting'])
def test_a_process_killed_at_any_time_leaves_what_can_be_resumed(run, undisturbed, case):
    randoms = random.Random(0)
    for i in range(6):
        this = run(f'{i}')
        arguments = [*SHORT, '--seed=2']
        if case == 'overwriting':
            this.train(*SHORT, '--seed=1')
            arguments.append('--overwrite=True')
        pid, pipe = child(*arguments, f'--out_dir={this.folder}')
        time.sleep(0.3 * randoms.random())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pipe.close()
        seed = 2
        if (this.folder / 'ckpt.pt').exists():
            seed = this.checkpoint()['options']['seed']
            this.train(*SHORT, f'--seed={seed}', '--init_from=resume')
        else:
            this.train(*SHORT, '--seed=2')
        assert_same_run(this, undisturbed(seed))


# a checkpoint is data, and may be damaged or from a stranger


class Malicious:
    def __reduce__(self):
        return os.system, (f'touch {os.environ["MALICE"]}',)


def saved(content):
    """The bytes that torch.save makes of it."""
    torch.save(content, buffer := io.BytesIO())
    return buffer.getvalue()


def test_code_in_a_checkpoint_does_not_run(copy, tmp_path, monkeypatch):
    this = copy()
    monkeypatch.setenv('MALICE', str(tmp_path / 'executed'))
    old_format = io.BytesIO()
    torch.save({'model': Malicious()}, old_format, _use_new_zipfile_serialization=False)
    for content in (saved(Malicious()), saved({'model': Malicious()}), old_format.getvalue(),
                    pickle.dumps(Malicious())):
        for name in ('ckpt.pt', 'best.pt'):
            (this.folder / name).write_bytes(content)
        assert_refused(this, 'is not a checkpoint', resume, evaluate, show)
        if zipfile.is_zipfile(io.BytesIO(content)):
            assert_refused(this, 'it may be malicious, and was not loaded$', resume, evaluate)
    assert not (tmp_path / 'executed').exists()


def test_what_is_no_checkpoint_is_refused(copy):
    this = copy()
    complete = (this.folder / 'ckpt.pt').read_bytes()
    for content in (complete[:-2000], complete[:100], complete[1:], b'', b'text',
                    saved({}), saved([]), saved(torch.ones(2)), saved({'model': {}})):
        (this.folder / 'ckpt.pt').write_bytes(content)
        assert_refused(this, 'ckpt.pt is not a checkpoint of this train.py', resume)
    (this.folder / 'ckpt.pt').unlink()
    assert_refused(this, 'ckpt.pt does not exist: is its run still to be trained', resume)
    with pytest.raises(UserError, match='config.json is a file: give the folder of its run'):
        load_checkpoint(this.folder / 'config.json' / 'best.pt')


def tensor_bytes(path):
    """Where in the archive of a checkpoint its tensors are: a range of each."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if re_data(entry.filename):
                archive.fp.seek(entry.header_offset + 26)
                name, extra = np.frombuffer(archive.fp.read(4), dtype='<u2')
                start = entry.header_offset + 30 + int(name) + int(extra)
                yield range(start, start + entry.file_size)


def re_data(name):
    return Path(name).parent.name == 'data'


def test_a_flipped_bit_in_a_tensor_is_found(copy):
    this = copy()
    path = this.folder / 'ckpt.pt'
    complete = path.read_bytes()
    places = [i for places in tensor_bytes(path) for i in places]
    assert len(places) > 10_000
    load_checkpoint(path)
    randoms = random.Random(0)
    for place in randoms.sample(places, 100):
        damaged = bytearray(complete)
        damaged[place] ^= 1 << randoms.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(UserError, match='is not a checkpoint of .* is damaged'):
            load_checkpoint(path)


def test_a_compressed_archive_is_refused(copy):
    this = copy()
    path = this.folder / 'ckpt.pt'
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    assert_refused(this, 'is not a checkpoint of .*it is compressed', resume)


def strided(tensor):
    """As large as the tensor, but in the memory of one number."""
    return torch.zeros(1, dtype=tensor.dtype).as_strided(tensor.shape, [0] * tensor.dim())


def overlapping(tensor):
    """Rows that share memory with the row before."""
    memory = torch.zeros(tensor.numel(), dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, [1] * tensor.dim())


def with_value(value):
    """A function that puts a value into a tensor."""
    def put(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor
    return put


HARM = {
    'stride 0': strided, 'overlapping': overlapping,
    'more dimensions': lambda t: torch.zeros(*t.shape, 2), 'smaller': lambda t: torch.zeros(1),
    'another dtype': lambda t: t.double(), 'a list': lambda t: t.tolist(),
    'sparse': lambda t: t.to_sparse(), 'without memory': lambda t: t.to('meta'),
    'infinite': with_value(float('inf')), 'no number': with_value(float('nan')),
}


@pytest.mark.parametrize('harm', HARM)
def test_weights_that_are_not_what_they_should_be_are_refused(copy, harm):
    def change(checkpoint):
        name = 'blocks.0.attention.qkv.weight'
        checkpoint['model'][name] = HARM[harm](checkpoint['model'][name])
    message = 'does not fit this model.py|is not a checkpoint|may be malicious'
    assert_refused(copy(change), message, resume, evaluate, show)


@pytest.mark.parametrize('optimizer, name', [(0, 'exp_avg'), (0, 'exp_avg_sq'), (0, 'step'),
                                             (1, 'momentum_buffer')])
@pytest.mark.parametrize('harm', HARM)
def test_an_optimizers_state_that_is_not_what_it_should_be_is_refused(copy, harm, optimizer, name):
    if name == 'step' and harm in ('stride 0', 'overlapping'):
        return  # a number has no strides

    def change(checkpoint):
        state = checkpoint['optimizers'][optimizer]['state'][0]
        state[name] = HARM[harm](state[name])
    message = 'no state to resume from|is not a checkpoint|may be malicious'
    assert_refused(copy(change), message, resume)


def drop(*path):
    """A change that removes a part of a checkpoint."""
    def change(checkpoint):
        for key in path[:-1]:
            checkpoint = checkpoint[key]
        del checkpoint[path[-1]]
    return change


def put(value, *path):
    """A change that puts a value into a checkpoint."""
    def change(checkpoint):
        for key in path[:-1]:
            checkpoint = checkpoint[key]
        checkpoint[path[-1]] = value
    return change


def shared_lists():
    """Forty lists that hold the one before twice: small in a file, 2^40 numbers if written out."""
    lists = [0]
    for _ in range(40):
        lists = [lists, lists]
    return lists


@pytest.mark.parametrize('field, value', [
    ('n_layer', 10**9), ('n_embd', 10**9), ('n_head', 10**9), ('vocab_size', 10**12),
    ('n_layer', 2**20),
    ('vocab_size', 2**20), ('n_layer', 2.5), ('n_embd', '16'), ('n_embd', True), ('learn', 3),
    ('frequencies', ['yarn']), ('unknown', 1), ('attention', None), ('init_std', 10**400),
    pytest.param('n_embd', 10**5000, id='n_embd of 5000 digits'), ('log_scale_length', 1.0),
    ('rope_base', float('nan')),
    ('attention', shared_lists()), (7, 1), ('frequencies', 'nothing'), ('attention', 'nothing')])
def test_options_that_are_not_those_of_the_weights_are_refused_at_once(copy, field, value):
    message = f'{field}|does not fit this model.py|is not a checkpoint'
    assert_refused(copy(put(value, 'model_args', field)), message, evaluate, resume, show)


@pytest.mark.parametrize('change', [
    put(shared_lists(), 'options', 'x'), put(torch.zeros(1).expand(10**9), 'model'),
    put(16.5, 'options', 'block_size'), put(10**7, 'options', 'block_size'),
    put(10**5000, 'options', 'seed'), put(2.0, 'iter'),
    put([], 'options', 'seed'), put(shared_lists(), 'data'), drop('data'), drop('model'),
    drop('model_args'), drop('task'), drop('options'), drop('iter'),
    drop('model', 'norm.weight'), put(torch.ones(2), 'model', 'more'),
    put(torch.ones(2), 'model', 7), put(torch.ones(2), 'task'), put(shared_lists(), 'task'),
    put(torch.ones(2), 'options', 'seed'), put(-1, 'iter'), put(10**5000, 'iter'),
    put(None, 'options'), put([], 'model'), put('x', 'iter')])
def test_parts_that_lack_or_are_something_else_are_refused(copy, change):
    assert_refused(copy(change), 'does not fit|is not a checkpoint', resume, evaluate)


@pytest.mark.parametrize('task', ['nothing', 'dyck:k=99', 'modulo:modulus=11'])
def test_a_task_that_is_none_or_has_other_symbols_is_refused(copy, task):
    assert_refused(copy(put(task, 'task')), task.partition(':')[0], evaluate, show)


@pytest.mark.parametrize('change', [
    drop('optimizers'), drop('rng'), drop('seconds'), put([], 'optimizers'),
    put('x', 'seconds'), put(shared_lists(), 'seconds'), put({99: {}}, 'optimizers', 0, 'state'),
    put(torch.zeros(3, dtype=torch.uint8), 'rng'), put(None, 'best_val_loss'),
    drop('optimizers', 0, 'state', 0, 'exp_avg'), put(shared_lists(), 'optimizers', 0, 'state', 0),
    put(shared_lists(), 'optimizers')])
def test_states_that_cannot_be_resumed_are_refused(copy, change):
    assert_refused(copy(change), 'ckpt.pt has no state to resume from', resume)


def test_an_iteration_after_the_last_one_is_refused(copy):
    assert_refused(copy(put(10**9, 'iter')), 'is at update 1000000000 already', resume)


def test_a_model_from_a_checkpoint_has_its_weights(trained):
    model = build_model(load_checkpoint(trained.folder / 'ckpt.pt'))
    for name, value in trained.checkpoint()['model'].items():
        assert torch.equal(model.state_dict()[name], value)


# a folder may be from a stranger


def test_no_file_is_written_through_a_link(copy, tmp_path):
    this = copy()
    mine = tmp_path / 'mine'
    mine.write_text('mine')
    names = ('ckpt.pt', 'best.pt', 'eval.json', 'log.jsonl', 'config.json')
    for name in names:
        (this.folder / f'{name}.tmp').symlink_to(mine)
    evaluate(this)
    resume(this)
    write_files(this.folder, dict.fromkeys(names, b'new'))
    assert mine.read_text() == 'mine'


@pytest.mark.parametrize('name', ['run.lock', 'log.jsonl'])
def test_no_file_is_extended_through_a_link(tmp_path, name):
    mine = tmp_path / 'mine'
    mine.write_text('mine')
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / name).symlink_to(mine)
    with pytest.raises(UserError, match=f'{name} is a link'):
        write_files(tmp_path / 'run', {}, added={name: b'more'})
    assert mine.read_text() == 'mine'


@pytest.mark.parametrize('name, program, message', [
    ('run.lock', resume, 'run.lock is a link'), ('log.jsonl', resume, 'not a log of train.py'),
    ('log.jsonl', evaluate, 'not a log of train.py'), ('ckpt.pt', resume, 'ckpt.pt is a link'),
    ('best.pt', show, 'best.pt is a link'), ('config.json', resume, 'and no run')])
@pytest.mark.parametrize('kind', ['link', 'pipe', 'folder'])
def test_what_is_no_file_where_a_file_of_a_run_should_be_is_refused(
        copy, tmp_path, name, program, message, kind):
    this = copy()
    file = this.folder / name
    theirs = tmp_path / 'theirs'
    file.rename(theirs)
    if kind == 'link':
        file.symlink_to(theirs)
    elif kind == 'pipe':
        os.mkfifo(file)
    else:
        file.mkdir()
    with pytest.raises(UserError, match=message):
        program(this)


@pytest.mark.parametrize('name', ['config.json', 'log.jsonl'])
def test_a_file_that_would_fill_the_memory_is_refused(copy, name):
    this = copy()
    os.truncate(this.folder / name, 2**40)  # it takes no place on the disk
    with pytest.raises(UserError, match='and no run|not a log of train.py'):
        resume(this)


def test_a_run_goes_on_where_its_text_was_moved_to(run, tmp_path):
    text = tmp_path / 'text.txt'
    text.write_text(''.join(f'line {i} of a text\n' for i in range(600)))
    this, alone = run(), run('alone')
    alone.train(*SHORT, f'--task=text:path={text}', '--max_iters=6', *FLAT)
    this.train(*SHORT, f'--task=text:path={text}', *FLAT)
    moved = text.rename(tmp_path / 'moved.txt')
    resume(this, f'--task=text:path={moved}', *FLAT)
    assert_same(this.checkpoint()['model'], alone.checkpoint()['model'])
    assert this.log() == alone.log()  # the validation set is the same
    moved.write_text('another text\n' * 600)
    read_files.cache_clear()
    read_texts.cache_clear()
    with pytest.raises(UserError, match='or on another text, and cannot resume'):
        resume(this, f'--task=text:path={moved}', '--max_iters=8')
    with pytest.raises(UserError, match='task=dyck: .* was trained on text'):
        resume(this, '--task=dyck', '--max_iters=8')


def test_resuming_changes_no_option_of_the_caller(copy):
    this = copy()
    cfg = SimpleNamespace(**this.checkpoint()['options'] | dict(init_from='resume', max_iters=9))
    before = dict(vars(cfg))
    folder = checkpoint_file.RunFolder(this.folder, resume=True)
    folder.load(cfg, make_task(cfg.task))
    assert vars(cfg) == before
    for name, value in dict(n_layer=2, optimizer='adamw', eval_sequences=9, learn='none').items():
        with pytest.raises(UserError, match=f'{name}=.* and cannot resume with another'):
            folder.load(SimpleNamespace(**before | {name: value}), make_task(cfg.task))
    resume(this)
    assert this.checkpoint()['options']['init_from'] == 'scratch'  # where the run came from


def test_a_tilde_is_the_home_of_the_user(run, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('USERPROFILE', str(tmp_path))
    run().train('--max_iters=1', '--out_dir=~/here')
    assert (tmp_path / 'here' / 'ckpt.pt').exists()


def test_the_printed_command_is_what_a_shell_must_read(run, tmp_path, capsys):
    text = tmp_path / 'a text.txt'
    text.write_text(''.join(f'line {i} of a text\n' for i in range(600)))
    run('~a $b').train('--max_iters=1', f'--task=text:path={text}')
    command = capsys.readouterr().out.splitlines()[-1].partition('now: ')[2]
    words = ['python', 'eval.py', str(tmp_path / '~a $b'), f'--task=text:path={text}']
    assert shlex.split(command) == words


# what a log says of learned numbers


def make_log(*values):
    return [dict(iter=i, val_loss=0.5, Omega=value) for i, value in enumerate(values)]


def test_learned_numbers_of_each_layer_are_read_from_a_log():
    log = make_log([[], [[1, 2]], [[3, 4], [5, 6]]], [[], [[7, 8]], [[9, 0], [1, math.nan]]])
    log.insert(1, dict(iter=0.5, train_loss=1.0))
    layers = read_learned(log, 'Omega')
    assert [layer.shape for layer in layers] == [(2, 0, 0), (2, 1, 2), (2, 2, 2)]
    assert layers[2][0].tolist() == [[3, 4], [5, 6]] and layers[1][1].tolist() == [[7, 8]]
    assert read_learned(log, 'A') == read_learned([], 'Omega') == []


@pytest.mark.parametrize('second', [
    [], [[1, 2]], [[[1, 2]], [[3, 4]]], [[[1]]], [[['x', 2]]], 7, None, [None], [[[1, 10**400]]]])
def test_a_log_whose_learned_numbers_change_their_number_is_refused(second):
    with pytest.raises(UserError, match='log.jsonl .* Omega'):
        read_learned(make_log([[[1, 2]]], second), 'Omega')
    log = make_log([[[1, 2]]], [[[1, 2]]])
    del log[1]['Omega']
    with pytest.raises(UserError, match='log.jsonl .* Omega'):
        read_learned(log, 'Omega')
