"""`python -m lab.measure` from end to end, on small runs."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from lab import analysis, measure, memory, plot
from lab.tests.conftest import Run
from lab.tests.test_corpus import folder  # noqa: F401
from model import UserError
from tasks import make_rng, make_task
from text import read_files, read_texts


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """runs(task, attention, ...) is the folder of a small trained run, made once."""
    made = {}

    def get(task, attention, *more):
        key = task, attention, more
        if key not in made:
            where = tmp_path_factory.mktemp('runs') / f'{task.split(":")[0]}_{attention}'
            options = [f'--task={task}', f'--attention={attention}', '--n_layer=2', *more]
            made[key] = Run(where).train(*options).folder
        return made[key]
    return get


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize('task, attention', [
    ('dyck:max_depth=3', 'bifocal'), ('bio_rotation:period=3', 'spectral'), ('passkey', 'tapa'),
    ('spacing', 'nope')])
def test_it_measures_what_the_page_does_and_more(runs, task, attention, capsys):
    where = runs(task, attention)
    measure.main([str(where), '--n=16', '--device=cpu', '--multiples', '1', '2'])
    printed, result = capsys.readouterr().out, read(where / 'eval.json')
    assert list(result['lengths']) == ['16', '32']
    assert (result['task'], result['attention']) == (task, attention)
    assert {'commit', 'date', 'processor', 'threads', 'torch', 'dtype'} <= result.keys()
    assert result['overrides'] == {} and result['held_shares'] is False
    task = make_task(task)
    model = measure.load(where, 'best.pt', 'cpu', {})[0]
    x, y = map(torch.from_numpy, task.sample(make_rng('test', str(task), 32), 16, 32))
    with torch.no_grad():
        logits = model(x)[0]
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1)
    longer = result['lengths']['32']
    assert longer['loss'] == pytest.approx(loss.item(), rel=1e-4)
    right = (logits.argmax(-1) == y)[:, 16:][y[:, 16:] >= 0].float().mean().item()
    assert longer['beyond'] == pytest.approx(right) and 'beyond' not in result['lengths']['16']
    assert f'32 {100 * longer["headline_beyond"]:>7.2f} %' in printed
    for group, cells in longer['breakdown'].items():
        assert cells and f'accuracy by {group}' in printed
        assert all(label in printed for label in list(cells)[:4])

    variant = {'dyck': 'depth 6', 'passkey': 'loop'}.get(task.name)
    assert list(result['variants']) == ([variant] if variant else [])
    if variant:
        assert variant in printed and result['variants'][variant]['32'] != longer
    eyes = []
    if attention == 'bifocal':
        eyes = ['geometric', 'geometric 0', 'geometric 1', 'spectral', 'spectral 0', 'spectral 1']
        losses = {result['eyes'][eye]['loss'] for eye in eyes}
        assert len(losses | {result['lengths']['16']['loss']}) == 7
    assert list(result['eyes']) == eyes
    learned = attention in ('spectral', 'bifocal')
    assert bool(result['frequencies']) == learned == ('what moved' in printed)

    assert [path.name for path in where.glob('*.png')] == ['eval.png']
    assert (where / 'eval.png').read_bytes()[:4] == b'\x89PNG'


def test_overrides_change_the_model_and_go_to_a_file_of_their_own(runs):
    where = runs('modulo', 'spectral')
    common = [str(where), '--n=8', '--device=cpu', '--multiples', '2']
    measure.main([*common, '--split=validation'])
    plain = read(where / 'eval_validation.json')
    measure.main([*common, '--override', 'log_scale_length=16'])
    measure.main([*common, '--override', 'frequencies=yarn:factor=2,fast=8', 'log_scale_length=16'])
    assert not (where / 'eval.json').exists() and plain['split'] == 'validation'
    sharper = read(where / 'eval_log_scale_length=16.json')
    both = read(where / 'eval_frequencies=yarn-factor=2-fast=8_log_scale_length=16.json')
    assert sharper['overrides'] == {'log_scale_length': 16}
    assert both['overrides'] == {'frequencies': 'yarn:factor=2,fast=8', 'log_scale_length': 16}
    theta = [[row['theta'] for row in result['frequencies']] for result in (sharper, both)]
    assert theta[0][0] == theta[1][0] == 1
    assert theta[0][3] == pytest.approx(2 * theta[1][3])  # the slow ones slow down
    assert len({result['lengths']['32']['loss'] for result in (plain, sharper, both)}) == 3
    (where / 'eval.png').unlink()
    measure.main([*common, '--checkpoint=ckpt.pt'])  # another checkpoint, too; it draws nothing
    assert read(where / 'eval_ckpt.json')['checkpoint'] == 'ckpt.pt'
    assert not (where / 'eval.json').exists() and not (where / 'eval.png').exists()


@pytest.mark.parametrize('words, message', [
    (['--override', 'log_scale=16'], "log_scale=16: unknown option 'log_scale'; did you mean"),
    (['--override', 'log_scale_length=x'], "log_scale_length='x': must be a whole number"),
    (['--override', 'n_layer'], '--override n_layer: options are written KEY=VALUE'),
    (['--override', 'n_layer=3'], 'n_layer=3: the weights in .*best.pt have n_layer=2'),
    (['--override', 'frequencies=yarn'], 'factor'),
    (['--multiples', '0.3'], '--multiples 0.3: of the training length, 16 tokens, that is no'),
    (['--multiples', '1e300'], '--multiples 1e.300: of the training length'),
    (['--checkpoint=none.pt'], 'none.pt does not exist'),
    (['--device=meta'], "device='meta'")])
def test_errors_name_the_option_and_what_is_allowed(runs, words, message):
    with pytest.raises(UserError, match=message):
        measure.main([str(runs('modulo', 'spectral')), '--n=8', '--device=cpu', *words])


@pytest.mark.parametrize('word', ['--n=0', '--n=3', '--stride=0', f'--n={10**30}'])
def test_a_count_that_cannot_be_is_a_usage_error(word, capsys):
    with pytest.raises(SystemExit):
        measure.main(['out', word])
    assert 'must be' in capsys.readouterr().err


def test_a_text_run(runs, folder, capsys, monkeypatch):  # noqa: F811
    task = f'text:path={folder}'
    where = runs(task, 'bifocal', '--max_iters=12')
    common = [str(where), f'--task={task}', '--n=16', '--device=cpu', '--split=validation']
    measure.main(common)
    printed, result = capsys.readouterr(), read(where / 'eval_validation.json')
    assert list(result['lengths']) == ['2', '4', '8', '16', '32', '64', '128']
    assert result['stride'] == 2 and 'perplexity by context, stride 2' in printed.out
    assert 'accuracy by closing brackets' in printed.out and printed.err == ''
    assert ['beyond' in row for row in result['lengths'].values()] == 4 * [False] + 3 * [True]
    sliding = result['perplexity']['sliding']['16']
    assert sliding['perplexity'] == pytest.approx(math.exp(sliding['loss']))
    assert f'{sliding["perplexity"]:.3f}' in printed.out
    assert [path.name for path in where.glob('*.png')] == ['eval.png']
    biases = result['distance_bias']
    assert list(biases) == ['trained', 'at the start']
    assert biases['trained'] != biases['at the start']

    measure.main([*common, '--multiples', '1', '2'])
    again = read(where / 'eval_validation.json')
    assert again['distance_bias'] == biases  # no other excerpts, heads or weights
    with pytest.raises(UserError, match='choose smaller --multiples'):
        measure.main([*common, '--multiples', '512'])

    (folder / 'more.py').write_text('y = 2\n' * 50)
    read_files.cache_clear()
    read_texts.cache_clear()
    measure.corpus.read_corpus.cache_clear()
    with pytest.raises(UserError, match='the run was trained on'):
        measure.main([*common, '--multiples', '1', '2'])
    monkeypatch.setattr(measure.page, 'find_task', lambda saved, spec: make_task(spec))
    monkeypatch.setattr(memory, 'free_bytes', lambda device: 2**10)
    with pytest.raises(UserError, match='a context of 32 tokens needs about'):
        measure.main([*common, '--multiples', '1', '2'])


def test_held_shares_change_longer_strings_alone_and_have_a_file_of_their_own(runs):
    where = runs('modulo', 'rope', '--log_scale_length=8', '--init_std=0.2')
    words = [str(where), '--n=16', '--device=cpu', '--multiples', '1', '2']
    measure.main(words)
    measure.main([*words, '--hold-shares'])
    as_is, held = read(where / 'eval.json'), read(where / 'eval_held_shares=True.json')
    losses = [result['lengths']['16']['loss'] for result in (as_is, held)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and held['held_shares'] is True
    model, task, _ = measure.load(where, 'best.pt', 'cpu', {})
    with analysis.held_shares(model, 16):
        loss = measure.page.measure(model, task, 32, 16, 'cpu')['loss']
    assert held['lengths']['32']['loss'] == pytest.approx(loss, rel=1e-6)
    assert abs(loss - as_is['lengths']['32']['loss']) > 1e-5


@pytest.mark.parametrize('split, words, checkpoint, name', [
    ('test', [], 'best.pt', 'eval.json'), ('validation', [], 'best.pt', 'eval_validation.json'),
    ('test', ['frequencies=pi:factor=8'], 'best.pt', 'eval_frequencies=pi-factor=8.json'),
    ('validation', ['frequencies=yarn:factor=8,fast=4', 'n=4'], 'best.pt',
     'eval_validation_frequencies=yarn-factor=8-fast=4_n=4.json'),
    ('test', [], 'crystal.pt', 'eval_crystal.json'),
    ('test', [], 'settled/best.pt', 'eval_settled-best.json'),
    ('test', ['n=4'], 'ckpt.pt', 'eval_ckpt_n=4.json')])
def test_names_of_files_are_good_on_every_system(split, words, checkpoint, name):
    assert measure.file_name(split, words, checkpoint) == name
    assert not set(name) & set('<>:"/\\|?*, ')


@pytest.mark.parametrize('losses, expected', [
    ([0.9, 0.15], {'0.2', '0.5'}), ([0.4, 0.02], {'0.02', '0.05', '0.1', '0.2'}),
    ([2.0, 0.0005], {'0.001', '0.01', '0.1', '1'})])
def test_losses_have_plain_numbers_and_a_gap_for_nan(losses, expected):
    plt = plot.pyplot() or pytest.skip('no matplotlib')
    figure, axes = plt.subplots()
    plot.plot_losses(axes, range(4), [*losses, math.nan, losses[0]], 'black', None)
    figure.canvas.draw()
    low, high = axes.get_ylim()
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    labels = {tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high}
    assert expected <= labels and not any('^' in label or 'e' in label for label in labels)
    assert math.isnan(axes.lines[0].get_ydata()[2])
    plot.plot_losses(axes, range(2), [0.5, 0.0], 'black', None)
    assert list(axes.lines[1].get_ydata()) == [0.5, plot.LEAST]
    plt.close(figure)
