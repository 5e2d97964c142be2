"""`python -m lab.measure` from end to end on small runs, and the figure of a run."""

import json
import math

import numpy as np
import pytest

import lab
from configurator import choose_hardware
from lab import measure, plot
from model import UserError


def read(path):
    return json.loads(path.read_text(encoding='utf-8'))


@pytest.mark.parametrize('attention', ['bifocal', 'rope'])
def test_it_measures_what_the_page_does_and_more(runs, attention):
    where = runs('dyck:max_depth=3', attention)
    measure.main([str(where), '--n=16', '--device=cpu', '--multiples', '1', '2'])
    result = read(where / 'measure.json')
    assert list(result['lengths']) == ['16', '32']
    model, task, saved = measure.load(where, 'best.pt', 'cpu', {})
    assert (result['iter'], result['run']) == (saved['iter'], saved['sessions'][0])
    row, (x, y, right) = measure.page.measure(model, task, 32, 16, choose_hardware('cpu'))
    longer, late = result['lengths']['32'], np.arange(32) >= 16
    assert row.items() <= longer.items()
    counted = task.headline(x, y)
    assert longer['beyond'] == pytest.approx(right[(y >= 0) & late].mean())
    assert longer['headline_beyond'] == pytest.approx(right[counted & late].mean())
    assert 'beyond' not in result['lengths']['16']
    for cells in longer['breakdown'].values():
        number = sum(share * number for share, number in cells.values())
        assert number == pytest.approx(right[counted].sum())
    losses = {measured['loss'] for measured in result['eyes'].values()}
    losses.add(result['lengths']['16']['loss'])  # with both eyes open
    assert len(losses) == (3 if attention == 'bifocal' else 1)
    assert bool(result['frequencies']) == (attention == 'bifocal')
    assert (where / 'measure.png').read_bytes()[:4] == b'\x89PNG'


def test_overrides_change_the_model_and_go_to_a_file_of_their_own(runs):
    where = runs('modulo', 'spectral')
    common = [str(where), '--n=8', '--device=cpu', '--multiples', '2']
    measure.main([*common, '--checkpoint=ckpt.pt'])
    measure.main([*common, '--override', 'frequencies=yarn:factor=2,fast=8', 'log_scale_length=16'])
    assert not (where / 'measure.json').exists()
    plain, both = (read(where / f'measure_{name}.json') for name in (
        'ckpt', 'frequencies=yarn-factor=2-fast=8_log_scale_length=16'))
    assert both['overrides'] == {'frequencies': 'yarn:factor=2,fast=8', 'log_scale_length': 16}
    assert plain['lengths']['32']['loss'] != both['lengths']['32']['loss']
    theta = [[row['theta'] for row in result['frequencies']] for result in (plain, both)]
    assert theta[0][0] == theta[1][0] == 1
    assert theta[0][3] == pytest.approx(2 * theta[1][3])  # the slow ones slow down


def test_an_override_of_no_option_is_refused(runs):
    with pytest.raises(UserError, match="'log_scale' is no option"):
        measure.main([str(runs('modulo', 'spectral')), '--override', 'log_scale=16'])


def test_a_text_run(runs, text_folder):
    task = f'text:path={text_folder}'
    where = runs(task, 'bifocal', '--max_iters=12')
    common = [str(where), f'--task={task}', '--n=16', '--device=cpu']
    measure.main(common)
    result = read(where / 'measure.json')
    assert list(result['lengths']) == ['2', '4', '8', '16', '32', '64', '128']
    assert ['beyond' in row for row in result['lengths'].values()] == 4 * [False] + 3 * [True]
    assert np.shape(result['shares_by_distance']) == (2, 2, 4)
    with pytest.raises(UserError, match='its test split has 0 excerpts of 8193 tokens, and 4'):
        measure.main([*common, '--multiples', '512'])
    for words in (['1', '2', '--stride', '17'], ['2', '3']):
        with pytest.raises(UserError, match='each length must divide the longest, and none'):
            measure.main([*common, '--multiples', *words])


# The figure of a run

RESULT = dict(task='dyck', attention='spectral', block_size=64, chance=1 / 3, period=10,
              lengths={T: dict(headline=0.5) for T in ('64', '512')})


def lines_of(axes):
    return [[round(float(y), 6) for y in line.get_ydata()] for line in axes.lines]


def test_the_figure_has_the_paths_of_frequencies_and_the_harmonic():
    """A pair that rotates backwards can lock, too. A loss may be 0."""
    plt, harmonic = plot.pyplot(), 2 * math.pi / 10
    log = [dict(iter=i, val_loss=loss, Omega=[[[omega, 0.3]], []])
           for i, loss, omega in ((0, 0.9, -0.6), (1, 0.5, -0.6), (2, 0.0, -harmonic))]
    log.insert(1, dict(iter=0.5, train_loss=1.0))
    figure = plot.draw_run(plt, log, RESULT | dict(task='text:path=$a_{$'))
    frequencies, loss, by_length = figure.axes
    other, locked = frequencies.lines[:2]
    assert lines_of(frequencies)[1] == [0.6, 0.6, round(harmonic, 6)]
    assert locked.get_linewidth() > 2 > other.get_linewidth()
    assert [text.get_text() for text in frequencies.texts] == [' $2\\pi\\cdot1/10$']
    assert lines_of(loss)[0] == [0.9, 0.5, plot.LEAST]
    assert lines_of(by_length) == [[50, 50], pytest.approx([100 / 3, 100 / 3])]  # and chance
    figure.canvas.draw()  # no formula


def test_the_figure_draws_what_any_attention_learns():
    plt = plot.pyplot()
    log = [dict(iter=i, val_loss=1.0, height=[[[[3.0 + i]], [[2.0]]]], s=[[0.1] * 100])
           for i in range(2)]
    axes = plot.draw_run(plt, log, RESULT).axes[0]
    drawn = lines_of(axes)
    assert [3, 4] in drawn and [2, 2] in drawn and drawn.count([0.1, 0.1]) == 50
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ['height', 's']


@pytest.mark.parametrize('log, message', [([dict(val_loss=1.0)], 'no figure: KeyError'),
                                          ([], 'wrote ')])
def test_what_prevents_a_figure_is_a_line(tmp_path, log, message, capsys):
    lab.write_figure(tmp_path / 'eval.png', log, RESULT)
    assert ''.join(capsys.readouterr()).startswith(message)
