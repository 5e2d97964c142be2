"""The folder of a run: nothing is lost, two runs never mix, and a stranger's checkpoint is data."""

import dataclasses
import errno
import io
import json
import os
import pickle
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import checkpoint as checkpoint_file
import eval as eval_file
import model as model_file
import optim
import sample
import train
from checkpoint import load_checkpoint, read_log, write_files
from conftest import Run, assert_same_run
from model import ATTENTIONS, GPT, Attention, GPTConfig, UserError
from tasks import read_files

SHORT = ['--max_iters=4', '--eval_interval=2', '--log_interval=1', '--attention=spectral']
FLAT = ['--lr_end=1.0', '--warmup_iters=0']  # rates that do not depend on max_iters


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A run with both optimizers, Muon and AdamW. Tests copy it."""
    return Run(tmp_path_factory.mktemp('trained') / 'run').train(*SHORT)


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the trained run."""
    return Run(shutil.copytree(trained.folder, tmp_path / 'copy'))


def resume(run):
    run.resume('--max_iters=6')


def evaluate(run, *more):
    eval_file.main([str(run.folder), '--multiples', '1', '--n=4', '--device=cpu', *more])


def show(run, *more):
    sample.main([str(run.folder), '--n=1', '--device=cpu', *more])


def assert_refused(run, message, *programs):
    before = run.files()
    for program in programs:
        with pytest.raises(UserError, match=message):
            program(run)
    assert run.files() == before


# what saving wrote, loading takes
class NanoMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        return F.dropout(self.c_proj(F.gelu(self.c_fc(x))), 0.2, self.training)


class Masked(Attention):
    def __init__(self, config):
        super().__init__(config)
        mask = torch.full((config.block_size, config.block_size), float('-inf')).triu(1)
        self.register_buffer('mask', mask)
        self.register_buffer('kept', mask == 0)

    def scores(self, q, k):
        return q @ k.mT + self.mask[:q.size(2), :k.size(2)]


class Tied(GPT):
    def __init__(self, config):
        super().__init__(config)
        self.lm_head.weight = self.embedding.weight


class BatchNorm(nn.BatchNorm1d):
    """Each pass in training changes its buffers."""

    def forward(self, x):
        return super().forward(x.mT).mT


@dataclasses.dataclass
class Config(GPTConfig):
    window: int | None = None
    kinds: tuple = ('a', 2)


class CountingMuon(optim.Muon):
    def step(self):
        super().step()
        for p in self.param_groups[0]['params']:
            self.state[p]['steps'] = self.state[p].get('steps', 0) + 1


EDITS = {  # what a student edits: (where it stands, its name, what it becomes), ...
    'nanoGPT MLP with dropout': [(model_file, 'MLP', NanoMLP)],
    'a mask': [(ATTENTIONS, 'rope', Masked)],
    'tied weights': [(train, 'GPT', Tied), (checkpoint_file, 'GPT', Tied)],
    'None and a tuple': [(train, 'GPTConfig', Config), (checkpoint_file, 'GPTConfig', Config)],
    'a number in the state of Muon': [(optim, 'Muon', CountingMuon)],
    'LayerNorm with a bias': [(nn, 'RMSNorm', nn.LayerNorm)],
    'BatchNorm': [(nn, 'RMSNorm', BatchNorm)],
}


@pytest.mark.parametrize('edit', EDITS)
def test_an_edited_page_trains_saves_resumes_and_loads(run, monkeypatch, edit):
    for place, name, thing in EDITS[edit]:
        patch = monkeypatch.setitem if place is ATTENTIONS else monkeypatch.setattr
        patch(place, name, thing)
    complete = run('complete').train(*FLAT)
    half = run('half').train(*FLAT, '--max_iters=3').resume('--max_iters=6')
    assert_same_run(complete, half)
    evaluate(half)
    show(half, '--length=9')


@pytest.mark.parametrize('kind, default, message', [
    (Path, Path('.'), 'PosixPath'),
    (int, dataclasses.field(default_factory=int, init=False), 'strange')])
def test_a_field_that_could_not_be_loaded_is_refused_at_update_0(
        run, monkeypatch, kind, default, message):
    fields = [('vocab_size', int), ('strange', kind, default)]
    strange = dataclasses.make_dataclass('Strange', fields, bases=(GPTConfig,))
    for file in (train, checkpoint_file):
        monkeypatch.setattr(file, 'GPTConfig', strange)
    with pytest.raises((pickle.UnpicklingError, TypeError), match=message):
        run().train()
    assert run().files().keys() == {'run.lock'}


def test_a_model_that_was_edited_since_names_the_first_other_tensor(copy, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(model_file, 'MLP', NanoMLP)
        message = 'Missing key.*blocks.0.mlp.c_fc.weight'
        assert_refused(copy, f'does not fit this model.py: {message}', resume, evaluate, show)
    monkeypatch.setattr(GPTConfig, 'n_inner', 8)
    message = 'size mismatch for blocks.0.mlp.gate.weight'
    assert_refused(copy, message, resume)


def test_momenta_never_go_to_another_parameter(copy, monkeypatch):
    class UpBeforeGate(model_file.MLP):
        def __init__(self, config):
            super().__init__(config)
            gate = self.gate
            del self.gate
            self.gate = gate
    monkeypatch.setattr(model_file, 'MLP', UpBeforeGate)
    evaluate(copy)
    assert_refused(copy, 'parameters of model.py in another order', resume)


def test_after_a_loss_of_power_a_run_goes_on(run):
    this = run().train(*SHORT, *FLAT)
    (this.folder / 'config.json').write_bytes(b'')
    with open(this.folder / 'log.jsonl', 'ab') as log:
        log.write(b'{"iter": 9, "trai' + bytes(512))
    assert [line['iter'] for line in read_log(this.folder)] == [0, 0, 1, 2, 2, 3, 4]
    resume(this)
    alone = run('alone').train(*SHORT, *FLAT, '--max_iters=6')
    assert_same_run(this, alone)
    configs = [json.loads(r.files()['config.json']) for r in (this, alone)]
    assert [session['start'] for session in configs[0]['sessions']] == [0, 4]
    for part in ('task', 'data', 'model_args'):
        assert configs[0][part] == configs[1][part]


# a run owns its folder
def test_a_run_is_replaced_only_when_asked_and_no_other_file_is(copy):
    theirs = ['notes.txt', 'measure.json', 'crystal.pt', 'x.tmp']
    for name in theirs:
        (copy.folder / name).write_bytes(b'mine')
    before = copy.files()
    with pytest.raises(UserError, match='already holds a run .*--init_from=resume.*--overwrite'):
        copy.train()
    for bad in ('--attention=rpe', '--task=dick', '--device=cuda:7', '--dtype=half'):
        with pytest.raises(UserError):  # even then, not by what cannot run
            copy.train('--overwrite=True', bad)
    assert copy.files() == before
    resume(copy)
    assert before.keys() == copy.files().keys()
    copy.train('--overwrite=True', '--seed=1')
    assert before.keys() == copy.files().keys()
    assert all(copy.files()[name] == b'mine' for name in theirs)
    assert copy.checkpoint()['options']['seed'] == 1


def test_an_overwrite_that_fails_has_replaced_nothing(copy, monkeypatch):
    (copy.folder / 'measure.json').write_bytes(b'mine')
    before = copy.files()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(UserError, match='could not write'):
        copy.train('--overwrite=True', '--seed=1')
    assert before.items() <= copy.files().items()


def test_a_single_file_of_a_run_counts_as_one(run):
    for name in ('best.pt', 'log.jsonl', 'config.json'):
        run(name).folder.mkdir()
        (run(name).folder / name).write_bytes(b'x')
        with pytest.raises(UserError, match=f'already holds a run .{name}'):
            run(name).train()
        assert run(name).files().keys() == {name, 'run.lock'}


def test_a_second_start_is_refused_while_the_first_trains(run, monkeypatch):
    original, refused, calls = train.evaluate, [], []

    def evaluate(*arguments):
        calls.append(arguments)
        if len(calls) < 2:  # there is nothing to resume yet
            return original(*arguments)
        monkeypatch.setattr(train, 'evaluate', original)
        for arguments_2 in ([], ['--overwrite=True'], ['--init_from=resume']):
            with torch.random.fork_rng(), pytest.raises(UserError) as error:
                run().train('--grad_clip=0.5', *arguments_2)
            refused.append(str(error.value))
        return original(*arguments)
    alone = run('alone').train()
    monkeypatch.setattr(train, 'evaluate', evaluate)
    assert_same_run(run().train(), alone)
    assert refused == 3 * [f"out_dir='{run().folder}': another process trains there"]


def test_a_repository_that_the_page_only_lies_in_gives_no_commit(tmp_path, monkeypatch):
    (tmp_path / 'below').mkdir()
    for words in (['init', '-q'], ['commit', '-q', '--allow-empty', '-m', 'a']):
        subprocess.run(['git', '-c', 'user.name=a', '-c', 'user.email=a', *words], cwd=tmp_path,
                       check=True)
    for folder, known in ((tmp_path, True), (tmp_path / 'below', False)):
        monkeypatch.setattr(checkpoint_file, '__file__', str(folder / 'checkpoint.py'))
        assert (checkpoint_file.machine('cpu')['commit'] is not None) == known


# files are complete, or are not written
def test_a_file_that_another_program_holds_is_replaced_a_little_later(tmp_path, monkeypatch):
    original, errors = os.replace, [PermissionError(errno.EACCES, 'Access is denied')]

    def held(source, target):
        if errors:
            raise errors.pop()
        original(source, target)
    monkeypatch.setattr(os, 'replace', held)
    write_files(tmp_path, {'x': b'new'})
    assert Run(tmp_path).files() == {'x': b'new'} and not errors


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    calls = []
    for name in ('fsync', 'replace'):
        monkeypatch.setattr(os, name, lambda *_, name=name: calls.append(name))
    write_files(tmp_path, {'x': b'new'})
    assert calls == ['fsync', 'replace']


class Killed(BaseException):
    """Nothing catches it, and after it no operation does anything: the process is dead."""


class Disk:
    """
    A disk whose operation number `at` finds no space, or is the last one before a kill. Then a
    file gets half of what is written.
    """

    def __init__(self, patch, event, at):
        self.event, self.at, self.n = event, at, 0
        disk = self

        class File(io.FileIO):
            def write(self, content):
                try:
                    disk.step()
                except BaseException:
                    super().write(content[:len(content) // 2])
                    raise
                super().write(content)

        patch.setattr(checkpoint_file, 'open', self.watched(File), raising=False)
        # to remove a file needs no space
        for name in ['replace', 'fsync', 'mkdir', 'unlink'][:3 + (event == 'killed')]:
            patch.setattr(os, name, self.watched(getattr(os, name)))

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


CASES = {  # runs before, and the one that is disturbed
    'fresh': ([], ['--seed=2']),
    'overwriting': ([['--seed=1']], ['--seed=2', '--overwrite=True']),
    'resumed': ([['--seed=2', '--max_iters=2']], ['--seed=2', '--init_from=resume'])}
SOME = [('overwriting', event, 1, 13) for event in ('full', 'killed')]
ALL = [pytest.param(case, event, first, 3, marks=pytest.mark.slow)
       for case in CASES for first, event in enumerate(('full', 'killed'), start=1)]


@pytest.mark.parametrize('case, event, at, step', [*SOME, *ALL])
def test_after_a_failure_a_run_starts_or_resumes_bit_for_bit(
        run, monkeypatch, case, event, at, step):
    """One operation on files in `step` fails, each in a run of its own."""
    before, disturbed = CASES[case]
    alone = [run(f'alone {seed}').train(*SHORT, *FLAT, f'--seed={seed}') for seed in range(3)]
    while True:
        this = run(f'{at}')
        for arguments in before:
            this.train(*SHORT, *FLAT, *arguments)
        with monkeypatch.context() as patch:
            disk = Disk(patch, event, at)
            try:
                this.train(*SHORT, *FLAT, *disturbed)
            except Killed:
                pass
            except UserError as error:
                assert 'could not write' in str(error) and 'No space left' in str(error)
        seed = 2
        if (this.folder / 'ckpt.pt').exists():
            seed = this.checkpoint()['options']['seed']
            this.resume('--max_iters=4')
        else:
            this.train(*SHORT, *FLAT, '--seed=2')  # and no --overwrite
        assert_same_run(this, alone[seed])
        if disk.n < at:  # nothing was left to disturb
            break
        at += step
    assert at > 30


# a checkpoint is data, and may be damaged or from a stranger
class Malicious:
    def __reduce__(self):
        return os.mkdir, (os.environ['MALICE'],)


def saved(content):
    """The bytes that torch.save makes of it."""
    torch.save(content, buffer := io.BytesIO())
    return buffer.getvalue()


def test_code_in_a_checkpoint_does_not_run(copy, tmp_path, monkeypatch):
    monkeypatch.setenv('MALICE', str(tmp_path / 'executed'))
    torch.save({'model': Malicious()}, old := io.BytesIO(), _use_new_zipfile_serialization=False)
    for content in (saved(Malicious()), saved({'model': Malicious()}), old.getvalue(),
                    pickle.dumps(Malicious())):
        for name in ('ckpt.pt', 'best.pt'):
            (copy.folder / name).write_bytes(content)
        assert_refused(copy, 'is not a checkpoint', resume, evaluate, show)
    assert not (tmp_path / 'executed').exists()


def test_what_is_no_checkpoint_is_refused(copy):
    complete = (copy.folder / 'ckpt.pt').read_bytes()
    for content in (complete[:-2000], complete[1:], b'', saved({}), saved([])):
        (copy.folder / 'ckpt.pt').write_bytes(content)
        assert_refused(copy, 'ckpt.pt is not a checkpoint of this train.py', resume)
    (copy.folder / 'ckpt.pt').unlink()
    message = 'ckpt.pt does not exist as a file: is its run still to be trained'
    assert_refused(copy, message, resume)
    os.mkfifo(copy.folder / 'ckpt.pt')  # to open it would wait for a writer
    with pytest.raises(UserError, match=message):
        resume(copy)


def test_a_flipped_bit_in_a_tensor_is_found(copy):
    path = copy.folder / 'ckpt.pt'
    complete = path.read_bytes()
    weights = copy.checkpoint()['model']['blocks.0.mlp.up.weight'].numpy().tobytes()
    start = complete.index(weights)
    randoms = random.Random(0)
    for _ in range(20):
        damaged = bytearray(complete)
        damaged[start + randoms.randrange(len(weights))] ^= 1 << randoms.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(UserError, match='is not a checkpoint of .* is damaged'):
            load_checkpoint(path)


# a run on one's own text
@pytest.fixture
def text(tmp_path, monkeypatch):
    """A folder with a text, where the script runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'book.txt').write_text(''.join(f'line {i} of a text\n' for i in range(600)),
                                       encoding='utf-8')
    yield tmp_path / 'book.txt'
    read_files.cache_clear()


def test_a_run_may_lie_in_its_own_text_which_may_change(text, capsys):
    this = Run(Path(train.out_dir)).train('--task=text:path=.', '--max_iters=3')
    for _ in range(2):
        read_files.cache_clear()
        evaluate(this)
        show(this)
    this.resume('--max_iters=4')
    assert 'is not the text of the training' not in capsys.readouterr().out
    with open(text, 'a', encoding='utf-8') as file:
        file.write('one line more\n')
    for program in (evaluate, lambda this: this.resume('--max_iters=5')):
        read_files.cache_clear()
        program(this)
        assert 'is not the text of the training' in capsys.readouterr().out
    text.unlink()
    read_files.cache_clear()
    show(this, '--prompt=line')  # needs no text
    with pytest.raises(UserError, match='text:path=. has no text'):
        evaluate(this)


def test_a_run_goes_on_where_its_text_was_moved_to(run, text, capsys):
    alone = run('alone').train(*SHORT, *FLAT, '--task=text:path=book.txt', '--max_iters=6')
    this = run().train(*SHORT, *FLAT, '--task=text:path=book.txt')
    text.rename('moved.txt')
    this.resume('--task=text:path=moved.txt', '--max_iters=6')
    assert this.log() == alone.log()
    assert this.checkpoint()['data'] == alone.checkpoint()['data']
    alone.folder.joinpath('ckpt.pt').unlink()  # best.pt is enough
    evaluate(alone, '--task=text:path=moved.txt')
    assert 'is not the text' not in capsys.readouterr().out
    with pytest.raises(UserError, match='task=dyck: the run was trained on text'):
        this.resume('--task=dyck')
    with pytest.raises(UserError, match='task=dyck: the run was trained on text'):
        evaluate(this, '--task=dyck')
