"""Parts of figures: canvases, rows with names, ticks, and labels that do not cover each other."""

from __future__ import annotations

import numpy as np
import pytest

from drawn import boxes, texts
from gemm_course.figures import shapes
from gemm_course.figures.style import WIDTH


def test_canvases_are_as_wide_as_a_notebook():
    figure, axes = shapes.canvas(2.5)
    assert figure.get_size_inches().tolist() == [WIDTH, 2.5]
    assert figure.axes == [axes]
    figure, grid = shapes.canvas_grid(3, 2, 2, sharey=True)
    assert grid.shape == (4,)
    assert list(grid) == figure.axes, "row by row"
    assert grid[0].get_subplotspec().rowspan == grid[1].get_subplotspec().rowspan
    assert shapes.canvas_grid(3, 1, 1)[1].shape == (1,)


def test_shapes_are_where_they_were_asked_for():
    _, axes = shapes.canvas(1)
    shapes.rectangle(axes, 1, 2, 3, 4, gid="it")
    shapes.centred(axes, 5, 6, "middle")
    shapes.centred(axes, 5, 6, "left", ha="left")
    shapes.arrow(axes, (0, 0), (1, 1), lw=3)
    assert boxes(axes, "it") == [(1, 2, 3, 4)]
    assert texts(axes) == ["middle", "left"]
    assert [(text.get_position(), text.get_ha(), text.get_va()) for text in axes.texts] == [
        ((5, 6), "center", "center"), ((5, 6), "left", "center"),
    ]  # fmt: skip
    assert axes.patches[-1].get_linewidth() == 3
    shapes.bare(axes, (0, 7), (8, 0), equal=True)
    assert (axes.get_xlim(), axes.get_ylim(), axes.get_aspect(), axes.axison) == ((0, 7), (8, 0), 1, False)


def test_names_stand_beside_rows_from_the_top():
    figure, axes = shapes.canvas(1)
    shapes.name_rows(axes, ["first", "second"], fontsize=7)
    figure.draw_without_rendering()
    assert [(label.get_text(), label.get_position()[1]) for label in axes.get_yticklabels()] == [
        ("first", 0), ("second", 1),
    ]  # fmt: skip
    assert axes.get_ylim() == (1.5, -0.5)
    assert {label.get_fontsize() for label in axes.get_yticklabels()} == {7}
    assert not axes.spines["left"].get_visible()


def test_ticks_are_at_the_values_in_range_only():
    _, axes = shapes.canvas(1)
    axes.set(xscale="log", xlim=(1, 100))
    shapes.ticks_at(axes.xaxis, [0.5, 1, 32, 100, 200], 1, 100, form="{:g} TB/s")
    assert axes.get_xticks().tolist() == [1, 32, 100]
    assert axes.get_xticks(minor=True).tolist() == []
    assert axes.xaxis.get_major_formatter()(32, 0) == "32 TB/s"
    shapes.percent(axes.yaxis)
    assert axes.yaxis.get_major_formatter()(0.254, 0) == "25%"


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([], []),
        ([4.0], [4.0]),
        ([0, 1, 5], [0, 1, 5]),
        ([2, 2], [1.5, 2.5]),
        ([2, 2, 2.9], [1.3, 2.3, 3.3]),
        ([0, 0.9, 1.1], [-1 / 3, 2 / 3, 5 / 3]),
    ],
)
def test_labels_that_are_too_close_move_apart_around_their_middle(wanted, places):
    assert shapes.spread_apart(wanted, 1.0) == pytest.approx(places)


def test_labels_keep_their_order_and_distance():
    wanted = np.sort(np.random.default_rng(0).uniform(0, 20, 15)).tolist()
    found = shapes.spread_apart(wanted, 1.0)
    assert np.diff(found).min() >= 1 - 1e-9
    assert np.mean(found) == pytest.approx(np.mean(wanted))
