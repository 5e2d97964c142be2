"""`python -m lab.measure` from end to end, on small runs."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from lab import analysis, measure, memory, results
from lab.tests.conftest import Run
from lab.tests.test_corpus import folder  # noqa: F401
from tasks import make_task, read_files, stream


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """runs(task, attention, ...) is the folder of a small trained run, made once."""
    made = {}

    def get(task, attention, *more):
        if (task, attention, more) not in made:
            where = tmp_path_factory.mktemp('runs') / f'{task.split(":")[0]}_{attention}'
            options = [f'--task={task}', f'--attention={attention}', '--n_layer=2', *more]
            made[task, attention, more] = Run(where).train(*options).folder
        return made[task, attention, more]
    return get


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize('task, attention', [('dyck:max_depth=3', 'bifocal'), ('bio_rotation:period=3', 'spectral'),
                                             ('passkey', 'tapa'), ('spacing', 'nope')])
def test_it_measures_what_the_page_does_and_more(runs, task, attention, capsys):
    where = runs(task, attention)
    measure.main([str(where), '--n=16', '--device=cpu', '--multiples', '1', '2'])
    printed, result = capsys.readouterr().out, read(where / 'eval.json')
    assert list(result['lengths']) == ['16', '32'] and result['task'] == task and result['attention'] == attention
    assert {'commit', 'date', 'processor', 'threads', 'torch'} <= result.keys() and result['overrides'] == {}
    task = make_task(task)
    model = measure.load(where, 'best.pt', 'cpu', {})[0]
    x, y = map(torch.from_numpy, task.sample(stream('test', str(task), 32), 16, 32))
    with torch.no_grad():
        loss = F.cross_entropy(model(x)[0].flatten(0, 1), y.flatten(), ignore_index=-1)
    assert result['lengths']['32']['loss'] == pytest.approx(loss.item(), rel=1e-4)
    for cells in result['lengths']['32']['breakdown'].values():
        assert cells and all(label in printed for label in list(cells)[:12])
    variant = {'dyck': 'depth 6', 'passkey': 'loop'}.get(task.name)
    assert list(result['variants']) == ([variant] if variant else []) and (not variant or variant in printed)
    assert not variant or result['variants'][variant]['32'] != result['lengths']['32']
    eyes = ['geometric', 'geometric 0', 'geometric 1', 'spectral', 'spectral 0', 'spectral 1']
    assert list(result['eyes']) == (eyes if attention == 'bifocal' else [])
    if attention == 'bifocal':
        assert len({result['eyes'][eye]['loss'] for eye in eyes} | {result['lengths']['16']['loss']}) == 7
    learned = attention in ('spectral', 'bifocal')
    assert bool(result['frequencies']) == learned == ('what moved' in printed)
    assert len(result['score_by_distance']) == 2 and len(result['score_by_distance'][0][0]) == 32
    assert (result['state_similarity'] is None) == (task.name != 'dyck')
    figures = {'eval.png', *(['moves.png'] if learned else []), *(['key.png'] if task.name == 'passkey' else [])}
    assert {path.name for path in where.glob('*.png')} == figures
    assert all((where / name).read_bytes()[:4] == b'\x89PNG' for name in figures)


def test_overrides_change_the_model_and_go_to_a_file_of_their_own(runs):
    where = runs('modulo', 'spectral')
    common = [str(where), '--n=8', '--device=cpu', '--multiples', '2']
    measure.main([*common, '--split=validation'])
    plain = read(where / 'eval_validation.json')
    measure.main([*common, '--override', 'log_scale=16'])
    measure.main([*common, '--override', 'rope=yarn:factor=2,fast=8', 'log_scale=16'])
    assert not (where / 'eval.json').exists() and plain['split'] == 'validation'
    sharper = read(where / 'eval_log_scale=16.json')
    both = read(where / 'eval_rope=yarn-factor=2-fast=8_log_scale=16.json')
    assert sharper['overrides'] == {'log_scale': 16} and list(both['overrides']) == ['rope', 'log_scale']
    assert both['overrides']['rope'] == 'yarn:factor=2,fast=8'
    theta = [[row['theta'] for row in result['frequencies']] for result in (sharper, both)]
    assert theta[0][0] == theta[1][0] == 1 and theta[0][3] == pytest.approx(2 * theta[1][3])  # the slow ones slow down
    losses = {result['lengths']['32']['loss'] for result in (plain, sharper, both)}
    assert len(losses) == 3
    (where / 'eval.png').unlink()
    measure.main([*common, '--checkpoint=ckpt.pt'])  # another checkpoint, too, and it draws nothing of the run
    assert read(where / 'eval_ckpt.json')['checkpoint'] == 'ckpt.pt'
    assert not (where / 'eval.json').exists() and not (where / 'eval.png').exists()


@pytest.mark.parametrize('words, message', [
    (['--override', 'log_scal=16'], "--override log_scal=16: unknown option 'log_scal'; did you mean 'log_scale'"),
    (['--override', 'log_scale=x'], "log_scale='x': must be a whole number"),
    (['--override', 'log_scale'], '--override log_scale: options are written KEY=VALUE'),
    (['--override', 'n_layer=3'], 'n_layer=3: the weights in .*best.pt have n_layer=2'),
    (['--override', 'rope=yarn'], 'yarn needs factor'),
    (['--multiples', '0.3'], '--multiples 0.3: of the training length, 16 tokens, that is no whole number'),
    (['--checkpoint=none.pt'], 'none.pt does not exist')])
def test_errors_name_the_option_and_what_is_allowed(runs, words, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        measure.main([str(runs('modulo', 'spectral')), '--n=8', '--device=cpu', *words])


def test_a_text_run(runs, folder, capsys, monkeypatch):  # noqa: F811
    task = f'text:path={folder}'
    where = runs(task, 'bifocal', '--max_iters=12')
    measure.main([str(where), f'--task={task}', '--n=16', '--device=cpu', '--split=validation'])
    printed, result = capsys.readouterr(), read(where / 'eval_validation.json')
    assert list(result['lengths']) == ['2', '4', '8', '16', '32', '64', '128'] and result['stride'] == 2
    assert 'perplexity by context, stride 2' in printed.out and 'accuracy by closing brackets' in printed.out
    assert printed.err == '' and 'score_by_distance' not in result and len(result['pair_means']) == 2
    sliding = result['perplexity']['sliding']['16']
    assert sliding['perplexity'] == pytest.approx(math.exp(sliding['loss']))
    assert f'{sliding["perplexity"]:.3f}' in printed.out
    assert {path.name for path in where.glob('*.png')} == {'eval.png', 'moves.png', 'perplexity.png'}
    biases = result['distance_bias']
    assert list(biases) == ['trained', 'at the start'] and biases['trained'] != biases['at the start']

    again = [f'--task={task}', '--n=16', '--device=cpu', '--split=validation', '--multiples', '1', '2']
    measure.main([str(where), *again])
    assert read(where / 'eval_validation.json')['distance_bias'] == biases  # nothing is drawn anew
    with pytest.raises(ValueError, match='choose smaller --multiples'):
        measure.main([str(where), f'--task={task}', '--multiples', '512', '--device=cpu'])

    capsys.readouterr()
    (folder / 'more.py').write_text('y = 2\n' * 50)
    read_files.cache_clear()
    measure.corpus.read_corpus.cache_clear()
    with pytest.raises(ValueError, match='the run was trained on text:path=.*, and that is not the same'):
        measure.main([str(where), f'--task={task}', '--n=8', '--device=cpu', '--multiples', '1', '2'])
    monkeypatch.setattr(measure.page, 'find_task', lambda saved, spec: make_task(spec))
    monkeypatch.setattr(memory, 'free_bytes', lambda device: 2**10)
    with pytest.raises(ValueError, match="a context of 32 tokens needs about .* GiB with attention='bifocal'"):
        measure.main([str(where), f'--task={task}', '--n=8', '--device=cpu', '--multiples', '1', '2'])


def test_held_shares_change_longer_strings_alone_and_have_a_file_of_their_own(runs):
    where = runs('modulo', 'rope', '--log_scale=8')
    words = [str(where), '--n=16', '--device=cpu', '--multiples', '1', '2']
    measure.main(words)
    measure.main([*words, '--hold-shares'])
    as_is, held = read(where / 'eval.json'), read(where / 'eval_held_shares=True.json')
    assert held['lengths']['16']['loss'] == pytest.approx(as_is['lengths']['16']['loss'], rel=1e-5)
    model, task, _ = measure.load(where, 'best.pt', 'cpu', {})
    with analysis.held_shares(model, 16):
        loss = measure.page.measure(model, task, 32, 16, 'cpu')['loss']
    assert held['lengths']['32']['loss'] == pytest.approx(loss, rel=1e-6)
    assert abs(loss - as_is['lengths']['32']['loss']) > 1e-5
    assert [results.override_of(result) for result in (as_is, held)] == ['', 'held_shares=True']


@pytest.mark.parametrize('split, words, name', [
    ('test', [], 'eval.json'), ('validation', [], 'eval_validation.json'),
    ('test', ['rope=pi:factor=8'], 'eval_rope=pi-factor=8.json'),
    ('validation', ['rope=yarn:factor=8,gain=1.5', 'log_scale=4'],
     'eval_validation_rope=yarn-factor=8-gain=1.5_log_scale=4.json')])
def test_names_of_files_are_good_on_every_system(split, words, name):
    assert measure.file_name(split, words) == name and not set(name) & set('<>:"/\\|?*, ')


@pytest.mark.parametrize('checkpoint, words, name', [
    ('crystal.pt', [], 'eval_crystal.json'), ('settled/best.pt', [], 'eval_settled-best.json'),
    ('ckpt.pt', ['log_scale=4'], 'eval_ckpt_log_scale=4.json')])
def test_a_checkpoint_has_a_file_of_its_own(checkpoint, words, name):
    assert measure.file_name('test', words, checkpoint) == name
