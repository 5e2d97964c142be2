"""What the lab's figures share, and what eval.py's figure shows."""

import json
import math

import pytest

import eval as page
from lab import figures

FigureCanvasAgg = pytest.importorskip('matplotlib.backends.backend_agg').FigureCanvasAgg
plt = figures.pyplot()


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def labels(axes):
    """The numbers that one reads on the y axis."""
    FigureCanvasAgg(axes.figure).draw()
    low, high = axes.get_ylim()
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    return {tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high} - {''}


def test_a_frequency_below_zero_is_drawn_by_its_size_with_another_mark(axes):
    theta, omega = [1.0, 0.1, 0.01, 0.001], [0.9, -0.3, 0.02, -0.004]
    figures.plot_moves(axes, {'layer 0': ('#0072B2', theta, omega)}, 10)
    forwards, backwards, _ = axes.collections
    assert forwards.get_offsets().tolist() == [[1.0, 0.9], [0.01, 0.02]]
    assert backwards.get_offsets().tolist() == [[0.1, 0.3], [0.001, 0.004]]
    assert len(forwards.get_facecolors()) == 1 and len(backwards.get_facecolors()) == 0
    assert len(forwards.get_paths()[0]) != len(backwards.get_paths()[0])
    assert axes.get_ylim() == axes.get_xlim() == pytest.approx((0.0005, 1.3))
    assert axes.get_legend_handles_labels()[1] == ['not moved', 'harmonics of the period', 'layer 0',
                                                   'Omega below zero']


def test_every_layer_has_a_dark_colour_of_its_own(axes):
    rows = [dict(layer=layer, theta=1.0, Omega=0.1 * layer) for layer in range(6) for _ in range(2)]
    groups = figures.layer_groups(rows)
    assert list(groups) == [f'layer {layer}' for layer in range(6)] and groups['layer 5'][2] == [0.5, 0.5]
    grey = [0.3 * red + 0.59 * green + 0.11 * blue for (red, green, blue, _), *_ in groups.values()]
    assert grey == sorted(set(grey)) and grey[-1] < 0.65


@pytest.mark.parametrize('losses, expected', [
    ([0.9, 0.15], {'0.2', '0.5'}), ([0.4, 0.02], {'0.02', '0.05', '0.1', '0.2'}),
    ([2.0, 0.0005], {'0.001', '0.01', '0.1', '1'})])
def test_losses_have_plain_numbers(axes, losses, expected):
    figures.plot_losses(axes, range(len(losses)), losses, 'black', None)
    assert expected <= labels(axes) and not any('^' in label or 'e' in label for label in labels(axes))


def test_a_loss_that_is_not_a_number_is_a_gap_and_no_perfect_loss(axes):
    figures.plot_losses(axes, range(3), [0.5, math.nan, 1e-9], 'black', None)
    drawn = axes.lines[0].get_ydata()
    assert math.isnan(drawn[1]) and [drawn[0], drawn[2]] == [0.5, figures.FLOOR]


def test_the_figure_of_eval_names_the_harmonic_and_what_it_counts(tmp_path, monkeypatch):
    """A pair that turns backwards can lock, too. NaN is no loss, and a closer that follows a closer is what counts."""
    drawn = []
    monkeypatch.setattr('matplotlib.figure.Figure.savefig', lambda figure, path, dpi: drawn.append(figure))
    harmonic, losses = 2 * math.pi / 10, (0.9, math.nan, 0.15)
    omegas = (-0.6, -0.6, -harmonic)
    lines = [dict(iter=i, val_loss=loss, Omega=[[[omegas[i], 0.3]]]) for i, loss in enumerate(losses)]
    (tmp_path / 'log.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines) + '{"iter": 3, "val_')
    pairs = [dict(layer=0, head=0, pair=0, Omega=-harmonic, harmonic=1, locked=True),
             dict(layer=0, head=0, pair=1, Omega=0.3, harmonic=0, locked=False)]
    cells = {'1': [1.0, 9, 1.0], '2': [0.5, 9, 0.5]}
    lengths = {length: dict(headline=0.5, breakdown={'depth': cells}) for length in ('64', '512')}
    result = dict(task='dyck', attention='spectral', block_size=64, chance=1 / 3, period=10, lengths=lengths,
                  headline=('closers', 'non-trivial'), frequencies=pairs)
    page.draw(tmp_path / 'eval.png', page.read_log(tmp_path), result)
    frequencies, loss, by_length, by_group = drawn[0].axes
    other, locked = frequencies.lines[:2]
    assert list(locked.get_ydata()) == [0.6, 0.6, harmonic] and locked.get_linewidth() > 2 > other.get_linewidth()
    assert other.get_color() == '#AAAAAA' and [text.get_text() for text in frequencies.texts] == [' $2\\pi\\cdot1/10$']
    assert math.isnan(loss.lines[0].get_ydata()[1]) and {'0.2', '0.5'} <= labels(loss)
    assert [axes.get_title() for axes in drawn[0].axes] == [
        'learned frequencies; in colour: locked', 'dyck, spectral', 'accuracy of closers after a closer (%)',
        'accuracy at 512 tokens (%)']
    assert list(by_length.lines[0].get_ydata()) == [50, 50] and list(by_group.lines[0].get_ydata()) == [100, 50]
