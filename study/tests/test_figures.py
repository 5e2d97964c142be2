"""What the figures of the study show, beside that they are drawn (test_report.py)."""

import math

import pytest

from lab import plot
from study import figures


@pytest.fixture
def plt():
    pytest.importorskip('matplotlib')
    plt = plot.pyplot()
    yield plt
    plt.close('all')


def names(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_panel_of_the_contexts_has_five_lines_at_most_each_of_its_own_look(plt):
    panels = figures.draw_context(plt).axes
    assert [len(names(axes)) for axes in panels] == [5, 5, 5, 5]
    for axes in panels:
        lines = axes.get_lines()[:len(names(axes))]  # what follows is the line at L
        ends = [line.get_ydata()[-1] for line in lines]
        assert ends == sorted(ends, reverse=True)  # as in the legend
        assert len({line.get_color() for line in lines}) == len(lines)


def test_the_spectrum_has_the_loss_of_guessing(plt):
    for axes, answers in zip(figures.draw_crystal_spectrum(plt).axes, (4, 7), strict=True):
        heights = [line.get_ydata()[0] for line in axes.get_lines()]
        assert heights[-1] == pytest.approx(math.log(answers))
        words = [text.get_text() for text in axes.texts]
        assert f'guessing: ln {answers}' in words


def test_the_axis_of_the_claims_says_what_is_cut_off(plt):
    above = figures.draw_claims(plt).axes[0]
    assert above.get_ylabel().endswith(f'{plot.LEAST:g})'.replace('e-0', 'e-'))
    drawn = [y for line in above.get_lines() for y in line.get_ydata()]
    assert min(drawn) >= plot.LEAST
