"""Figures of launches: the bars and cells carry the numbers."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgb

from gemm_course.figures import f03_launches as launches
from gemm_course.figures.style import BLUE, FAINT, WIDTH

CELLS = [
    {"count": 2, "n": 16, "us": {"loop": 8.0, "bmm": 2.0, "ours": 4.0}},
    {"count": 2, "n": 1024, "us": {"loop": 3.0, "bmm": 2.0, "ours": 4.0}},
    {"count": 64, "n": 16, "us": {"loop": 48.0, "bmm": 2.0, "ours": 4.0}},
]


def test_a_bar_is_the_share_of_its_waves_that_holds_a_tile():
    axes = launches.sm_fill({"small": 1, "exact": 132, "one more": 133}, 132).axes[0]
    blue = [bar.get_width() for bar in axes.patches if to_rgb(bar.get_facecolor()) == to_rgb(BLUE)]
    assert blue == pytest.approx([1 / 132, 1.0, 133 / 264])
    idle = [bar.get_width() for bar in axes.patches if to_rgb(bar.get_facecolor()) == to_rgb(FAINT)]
    assert idle == [1.0] * 3
    assert [text.get_text() for text in axes.texts] == [
        "1 tile in 1 wave: 1% of the slots",
        "132 tiles in 1 wave: 100% of the slots",
        "133 tiles in 2 waves: 50% of the slots",
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["small", "exact", "one more"]


def test_a_cell_says_how_many_times_faster_and_its_colour_agrees():
    figure = launches.speedups(CELLS, "ours", against=["loop", "bmm"])
    left, right = figure.axes
    assert left.get_title("left") == "ours against loop: times faster"
    assert [text.get_text() for text in left.texts] == ["2.0", "0.75", "12"]
    assert [text.get_text() for text in right.texts] == ["0.50"] * 3
    faster, slower, much = (to_rgb(patch.get_facecolor()) for patch in left.patches)
    assert faster[2] > faster[0], "blue where faster"
    assert slower[0] > slower[2], "red where slower"
    assert much == pytest.approx(to_rgb(BLUE)), "beyond the scale it is the strongest blue"
    assert [patch.get_xy() for patch in left.patches] == [(0, 0), (1, 0), (0, 1)]
    assert [label.get_text() for label in left.get_xticklabels()] == ["16", "1024"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["2", "64"]
    assert figure.get_figwidth() <= WIDTH


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: launches.sm_fill({}, 132), "must be positive"),
        (lambda: launches.sm_fill({"none": 0}, 132), "must be positive"),
        (lambda: launches.sm_fill({"one": 1}, 0), "must be positive"),
        (lambda: launches.speedups([], "ours", ["loop"]), "cells must have times"),
        (lambda: launches.speedups(CELLS, "ours", []), "cells must have times"),
        (lambda: launches.speedups(CELLS, "theirs", ["loop"]), "'theirs'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
