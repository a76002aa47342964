"""Expected and measured times stand where they were given, and losses are means and worst of the ratios."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from gemm_course.figures.f07_predicted_times import expected_times, losses_by_model
from gemm_course.figures.style import BLUE, RED

EXPECTED = {"low": [(2.0, 100.0), (64.0, 400.0)], "tall": [(16.0, 110.0), (64.0, 120.0)]}
MEASURED = {"low": [(2.0, 90.0), (64.0, 420.0)], "tall": [(64.0, 125.0)]}


def of_gid(ax, gid):
    return [list(zip(*line.get_data())) for line in ax.lines if line.get_gid() == gid]


def test_a_configuration_has_a_line_as_expected_and_dots_as_measured():
    (ax,) = expected_times(EXPECTED, MEASURED, [(64.0, 300.0)], [(64.0, 125.0), (2.0, 90.0)]).axes
    for name in EXPECTED:
        assert of_gid(ax, f"expected {name}") == [EXPECTED[name]]
        assert of_gid(ax, f"measured {name}") == [MEASURED[name]]
        line, dots = (
            next(each for each in ax.lines if each.get_gid() == f"{how} {name}") for how in ("expected", "measured")
        )
        assert line.get_color() == dots.get_color()
        assert (line.get_marker(), dots.get_linestyle()) == ("None", "None")
    assert of_gid(ax, "others") == [[(64.0, 300.0)]]
    assert of_gid(ax, "chosen") == [[(64.0, 125.0)], [(2.0, 90.0)]]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    low, high = ax.get_ylim()
    assert low < 90 < 420 < high
    texts = [text.get_text() for text in ax.get_legend().texts]
    assert texts == ["low", "tall", "other configurations", "chosen"]


def test_what_is_not_given_is_not_in_the_legend():
    (ax,) = expected_times(EXPECTED, {}).axes
    assert [text.get_text() for text in ax.get_legend().texts] == ["low", "tall"]
    assert of_gid(ax, "chosen") == []


PANELS = {
    "forward": {"one": {"old": [1.0, 1.21], "new": [1.0]}, "two": {"old": [1.1], "new": [1.02]}},
    "dB": {"two": {"old": [1.3], "new": [1.0]}},
}


def test_a_dot_is_the_mean_of_a_model_and_its_line_ends_at_the_worst():
    figure = losses_by_model(PANELS)
    left, right = figure.axes
    dots = {line.get_gid(): line for line in left.lines if line.get_marker() == "o"}
    assert {gid: pytest.approx(line.get_xdata()[0]) for gid, line in dots.items()} == {
        "old one": 10.0, "new one": 0.0, "old two": 10.0, "new two": 2.0,
    }  # fmt: skip
    assert [to_hex(dots[gid].get_color()).upper() for gid in ("old one", "new one")] == [RED, BLUE]
    assert [round(line.get_ydata()[0]) for line in dots.values()] == [0, 1, 0, 1]
    worst = [line.get_xdata()[1] for line in left.lines if line.get_gid() == "worst"]
    assert worst == pytest.approx([21.0, 10.0, 0.0, 2.0])
    assert left.get_title(loc="left") == "forward\nold: +10.0%, worst +21%\nnew: +1.0%, worst +2%"
    assert [label.get_text() for label in left.get_yticklabels()] == ["one", "two"]
    assert [line.get_gid() for line in right.lines if line.get_marker() == "o"] == ["old two", "new two"]
    assert [text.get_text() for text in figure.legends[0].texts] == ["old", "new"]


def test_two_ways_are_compared():
    with pytest.raises(ValueError, match=r"panels must compare two ways, got \['old'\]"):
        losses_by_model({"forward": {"one": {"old": [1.0]}}})
