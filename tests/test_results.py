"""The runner of the trial and the reports, on small runs."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

import train
from configurator import configure
from conftest import ROOT
from model import GPTConfig
from tasks import make_task

sys.path.insert(0, str(ROOT / 'results'))
import report  # noqa: E402
import trial  # noqa: E402


@pytest.mark.parametrize('part', trial.PARTS)
def test_every_command_of_the_trial_is_one_that_train_accepts(part, monkeypatch):
    monkeypatch.chdir(ROOT)
    commands = list(trial.commands(part))
    assert len({folder for folder, _ in commands}) == len(commands)
    for folder, arguments in commands:
        options = train.SimpleNamespace(**configure(dict(vars(train)), arguments))
        assert options.out_dir == folder and options.seed in (trial.TUNING_SEEDS if part in trial.TUNING else trial.SEEDS)
        assert not set(trial.SEEDS) & set(trial.TUNING_SEEDS)
        task = make_task(options.task)
        GPTConfig(vocab_size=len(task.symbols), **{f.name: getattr(options, f.name) for f in dataclasses.fields(GPTConfig) if f.name != 'vocab_size'})


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The trial in a folder of its own, with one part of two small runs."""
    for name in ('train.py', 'eval.py', 'model.py', 'tasks.py', 'configurator.py'):
        (tmp_path / name).symlink_to(ROOT / name)
    common = ['--task=lag', '--max_iters=4', '--eval_interval=2', '--eval_sequences=4', '--block_size=16', '--n_layer=1', '--n_embd=8']
    monkeypatch.setattr(trial, 'ROOT', tmp_path)
    monkeypatch.setattr(trial, 'SEEDS', (0,))
    monkeypatch.setattr(trial, 'PARTS', {'small': lambda: [('good', common), ('bad', [*common, '--n_head=3'])]})
    return tmp_path


def test_the_runner_runs_what_is_missing_and_counts_what_fails(small, capsys):
    with pytest.raises(SystemExit) as end:
        trial.main(['small', '-j', '2'])
    assert end.value.code == 1
    printed = capsys.readouterr().out
    assert 'small: 0 of 2 runs done' in printed and 'bad-0  FAILED: see results/small/bad-0/output.txt' in printed and '1 failed' in printed
    good, bad = (small / 'results/small' / name for name in ('good-0', 'bad-0'))
    assert (good / 'eval.json').exists() and not (good / 'output.txt').exists()
    assert 'n_head=3' in (bad / 'output.txt').read_text()
    written = (good / 'eval.json').stat().st_mtime_ns
    with pytest.raises(SystemExit):
        trial.main(['small', '--match=good'])
    assert 'small: 1 of 1 runs done' in capsys.readouterr().out and (good / 'eval.json').stat().st_mtime_ns == written
    # stopped before it was evaluated: it goes on from its checkpoint, here its end, and is then whole
    (good / 'eval.json').unlink()
    with pytest.raises(SystemExit) as end:
        trial.main(['small', '--match=good', '-j', '1'])
    assert end.value.code == 0 and (good / 'eval.json').exists()
    assert [session['start'] for session in json.loads((good / 'config.json').read_text())['sessions']] == [0, 4]


def test_the_runner_prints_and_refuses(small, capsys):
    with pytest.raises(SystemExit) as end:
        trial.main(['small', '--print'])
    lines = capsys.readouterr().out.splitlines()
    assert end.value.code == 0 and len(lines) == 2
    assert lines[0].startswith('python train.py --task=lag') and lines[0].endswith('&& python eval.py results/small/good-0')
    for arguments in (['smaller'], ['small', '--jobs=0']):
        with pytest.raises(SystemExit) as end:
            trial.main(arguments)
        assert end.value.code == 2


def test_ctrl_c_stops_the_runner_and_its_runs_save(small):
    code = ('import signal; signal.signal(signal.SIGINT, signal.default_int_handler); '  # which a shell's background job ignores
            f'import sys; sys.path[:0] = [{str(ROOT / "results")!r}]; import pathlib, trial; trial.ROOT = pathlib.Path({str(small)!r}); trial.SEEDS = (0,); '
            'trial.PARTS = {"small": lambda: [(name, ["--task=lag", "--max_iters=1000000", "--block_size=16", "--n_layer=1", "--n_embd=8"]) for name in "abc"]}; '
            'trial.main(["small", "-j", "1"])')
    runner = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    log = small / 'results/small/a-0/log.jsonl'
    try:
        for _ in range(1800):
            if log.exists() and len(log.read_text().splitlines()) > 2:
                break
            time.sleep(0.1)
        os.killpg(runner.pid, signal.SIGINT)  # as a terminal does
        printed, _ = runner.communicate(timeout=180)
    finally:
        if runner.poll() is None:
            os.killpg(runner.pid, signal.SIGKILL)
    assert 'stopping' in printed and runner.returncode == 130
    assert (small / 'results/small/a-0/ckpt.pt').exists() and not (small / 'results/small/b-0').exists()


def test_the_periodic_share_of_a_profile():
    comb = [math.cos(2 * math.pi * d / 7) for d in range(140)]
    assert report.periodic_share([None, *comb[1:]], 7) == pytest.approx(1)
    assert report.periodic_share([d / 140 for d in range(140)], 7) < 0.01
    half = [a + math.cos(2 * math.pi * d / 10) for d, a in enumerate(comb)]
    assert report.periodic_share(half, 7) == pytest.approx(0.5, abs=0.01)
    assert report.periodic_share([1.0] * 9, 3) == 0


def test_signatures():
    def run(losses, omega=0.5, task='modulo'):
        lines = [{'iter': i, 'val_loss': loss, 'Omega': [[[omega]]]} for i, loss in enumerate(losses)]
        return {'eval': {'task': task, 'chance': 1 / 7, 'frequencies': []}, 'validations': lines}
    h = 2 * math.pi / 7
    assert report.signature(run([1.9, 0.001], h)) == 'solved, locked'
    assert report.signature(run([1.9, 0.3], h)) == 'plateau, locked'
    assert report.signature(run([1.9, 0.3])) == 'plateau, no lock-in'
    assert report.signature(run([1.9, 0.005, 9.0])) == 'diverged, no lock-in'
    assert report.signature(run([1.9, 0.001], task='dyck')) == 'solved'


def test_the_reports_draw_their_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, 'FIGURES', tmp_path)
    for name in ('lockin', 'turns', 'comb', 'eyes', 'map'):
        report.main([name])
        assert (tmp_path / f'{name}.png').read_bytes()[:4] == b'\x89PNG'
    with pytest.raises(SystemExit):
        report.main(['nothing'])


def test_structure_is_a_difference_of_paired_gains(monkeypatch, capsys):
    accuracy = {'periodic': {'rope': [0.5, 0.6], 'spectral': [0.9, 0.9]}, 'random': {'rope': [0.5, 0.5], 'spectral': [0.6, 0.5]},
                'exponential': {'rope': [0.7, 0.7], 'spectral': [0.7, 0.7]}}

    def runs(part, schedule, names):
        return {name: [{'options': {'seed': seed}, 'eval': {'block_size': 64, 'lengths': {'64': {'headline': a}, '128': {'headline': a}}}}
                       for seed, a in enumerate(accuracy[schedule][name])] for name in names if name in accuracy[schedule]}
    monkeypatch.setattr(report, 'group', runs)
    report.structure()
    row = capsys.readouterr().out.splitlines()[2]
    assert row.startswith('| training length | spectral | +35.0 ± 63.5, p 0.5 | +5.0 ± 63.5, p 1 | +0.0 ± 0.0, p 1 | +30.0 ± ') and '| +35.0 ± ' in row


@pytest.fixture(scope='module')
def long_runs(tmp_path_factory):
    """Two seeds of small runs on text and passkey, named as the trial names them; one of RoPE's extensions after each stage."""
    import eval as eval_file
    from conftest import Run
    root = tmp_path_factory.mktemp('long')
    (root / 'text.py').write_text(''.join(f'x_{i} = [{i}, ({i} + 1)]\n' for i in range(2000)))
    for task, spec, multiples in (('text', f'text:path={root}/text.py', []), ('passkey', 'passkey', ['--multiples', '1', '2', '--n=40'])):
        for seed in (0, 1):
            for part, names in (('long', ('rope', 'spectral', 'tapa')), ('tuned', ('rope', 'tapa', 'rope-yarn'))):
                for name in names:
                    attention, _, extension = name.partition('-')
                    options = [f'--{option}' for option in trial.EXTENSIONS.get(extension, ())]
                    run = Run(root / part / f'{task}-{name}-{seed}').train(f'--task={spec}', f'--attention={attention}', f'--seed={seed}', '--max_iters=3', *options)
                    eval_file.main([str(run.folder), '--device=cpu', *(multiples or ['--n=8'])])
                    if part == 'long' and name == 'rope':
                        eval_file.main([str(run.folder), '--device=cpu', *(multiples or ['--n=8']), '--override', *trial.EXTENSIONS['pi']])
    for name, attention, *options in (('english/text-rope-0', 'rope'), ('english/text-tapa-0', 'tapa'), ('budget/text-rope-0', 'rope'), ('budget/text-tapa-0', 'tapa'),
                                      ('base/text-spectral-base100-0', 'spectral', '--rope_base=100'),
                                      ('ablation/text-A-Phi-0', 'spectral', '--learn_frequency=False'), ('ablation/text-omega-0', 'spectral', '--learn_amplitude=False'), ('phase/text-tapa-linear-0', 'tapa', '--tapa_phase=linear'),
                                      ('phase/text-tapa-alpha0.3-0', 'tapa', '--tapa_alpha=0.3')):
        run = Run(root / name).train(f'--task=text:path={root}/text.py', f'--attention={attention}', '--max_iters=3', *options)
        eval_file.main([str(run.folder), '--device=cpu', '--n=8'])
    return root


@pytest.mark.parametrize('name, rows, figure', [('context', 14, 'context.png'), ('haystack', 14, 'haystack.png'), ('bias', 3, 'bias.png'), ('assumption', 2, None),
                                                ('code', 3, None), ('phase', 5, 'phase.png'), ('english', 2, 'english.png'), ('base', 3, 'base.png'), ('learned', 9, 'learned.png'),
                                                ('budget', 4, 'budget.png'), ('tapa', 5, None)])
def test_the_reports_of_long_context(long_runs, name, rows, figure, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'RESULTS', long_runs)
    monkeypatch.setattr(report, 'FIGURES', tmp_path)
    report.main([name])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith('|') and not line.startswith('|---')]
    header = [line for line in table if line.split('|')[1].strip() in ('stage', 'arm', 'the paper', 'text', 'base', 'frequencies', 'updates', 'changed')]
    assert len(table) - len(header) == rows and {line.count('|') for line in table} == {line.count('|') for line in header}
    assert figure is None or (tmp_path / figure).stat().st_size > 5000
    if name == 'context':  # the figures, computed anew
        runs = [json.loads((long_runs / f'long/text-tapa-{seed}/eval.json').read_text()) for seed in (0, 1)]
        values = [run['perplexity']['sliding']['32']['perplexity'] for run in runs]
        row = next(line for line in table if line.startswith('| as trained | tapa | 2 |'))
        cell = row.split('|')[4 + header[0].split('|').index(' 32 tokens ') - 4].strip()
        assert cell == f'{sum(values) / 2:.2f} ± {abs(values[0] - values[1]) / math.sqrt(2):.2f}'
    if name == 'tapa':
        results = {arm: [json.loads((long_runs / f'long/text-{arm}-{seed}/eval.json').read_text()) for seed in (0, 1)] for arm in ('tapa', 'rope')}
        losses = {arm: [result['perplexity']['sliding'][str(result['block_size'])]['loss'] for result in both] for arm, both in results.items()}
        cells = [cell.strip() for cell in table[1].split('|')]
        means = ' against '.join(f'{sum(map(math.exp, losses[arm])) / 2:.2f} ± {abs(math.exp(losses[arm][0]) - math.exp(losses[arm][1])) / math.sqrt(2):.2f}' for arm in losses)
        assert cells[2:5] == ['tapa against rope at L', '2', means]
        assert float(cells[5].split()[0]) == pytest.approx((sum(losses['tapa']) - sum(losses['rope'])) / 2, abs=6e-4)


@pytest.mark.parametrize('mean, half, expected', [(-2.0, 1.0, 'reproduced'), (2.0, 1.0, 'not reproduced'), (-1.0, 2.0, 'not settled'), (1.0, 2.0, 'not settled')])
def test_a_verdict_needs_an_interval_without_zero(mean, half, expected):
    assert report.verdict(mean, half) == expected


@pytest.fixture(scope='module')
def operated_runs(tmp_path_factory):
    """RoPE models gone on with in the three ways, two seeds, small, named as the trial names them."""
    import eval as eval_file
    from conftest import Run
    root = tmp_path_factory.mktemp('operated')
    (root / 'text.py').write_text(''.join(f'x_{i} = [{i}, ({i} + 1)]\n' for i in range(2000)))
    for task, spec, scratch in (('bio_rotation', 'bio_rotation', 'headline'), ('text', f'text:path={root}/text.py', 'long')):
        for seed in (0, 1):
            base = root / ('long' if task == 'text' else 'bases') / f'{task}-rope-{seed}'
            common, start = (f'--task={spec}', f'--seed={seed}'), f'--init_from={base}/best.pt'
            for folder, options in ((base, ['--max_iters=9']), (root / scratch / f'{task}-spectral-{seed}', ['--attention=spectral']),
                                    (root / 'surgery' / f'{task}-full-{seed}', [start, '--attention=spectral']),
                                    (root / 'surgery' / f'{task}-only-{seed}', [start, '--attention=spectral', '--train_only=spectral']),
                                    (root / 'surgery' / f'{task}-rope-{seed}', [start])):
                Run(folder).train(*common, '--block_size=32', *options)
                eval_file.main([str(folder), '--device=cpu', '--n=8'])
    for name, pairs in trial.SURGERY_RATES['text'].items():
        for i, pair in enumerate(pairs):
            folder = root / 'surgery_rates' / f'text-{name}-{pair[0]:g}-{pair[1]:g}-100'
            Run(folder).train('--task=lag', '--max_iters=40', f'--learning_rate={0.02 if i == 1 else 0.0}')
            eval_file.main([str(folder), '--device=cpu', '--n=8', '--split=validation'])
    return root


def test_the_reports_of_surgery(operated_runs, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'RESULTS', operated_runs)
    monkeypatch.setattr(report, 'FIGURES', tmp_path)
    report.main(['surgery'])
    formal, text = ([line for line in block.splitlines() if line.startswith('|')] for block in capsys.readouterr().out.split('\n\n'))
    for table, names in ((formal, 2), (text, 1)):
        assert [line.split('|')[names].strip() for line in table[2:]] == [
            'RoPE before, 9 updates', *(f'{name}, 6 updates' for name in (*report.OPERATIONS.values(), 'Spectral from scratch'))]
        assert all(line.count('|') == table[0].count('|') for line in table)
    assert (tmp_path / 'surgery.png').stat().st_size > 5000
    moved = [line.split('|')[-2].strip() for line in text[2:]]
    assert moved[0] == moved[3] == '' and all(float(cell.split()[0]) > 0 for cell in (moved[1], moved[2], moved[4]))
    report.main(['surgery_rates'])
    printed = capsys.readouterr().out
    for name, pairs in trial.SURGERY_RATES['text'].items():  # the second of each was the only one that learned
        assert report.choose_operated('text', name) == pairs[1]
        assert f'| {pairs[1][0]:g}, {pairs[1][1]:g} |' in printed


def test_surgery_is_run_at_the_rates_that_were_chosen(monkeypatch):
    monkeypatch.chdir(ROOT)
    for folder, arguments in trial.commands('surgery', 1):
        task, name = folder.split('/')[-1].split('-')[:2]
        options = configure(dict(vars(train)), arguments)
        if chosen := report.choose_operated(task, name) if task in trial.SURGERY_RATES else None:
            assert (options['learning_rate'], options['spectral_lr']) == chosen, (task, name)
