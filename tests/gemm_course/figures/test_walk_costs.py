"""The figures of what the walk costs carry the recorded and the simulated times."""

from __future__ import annotations

import pytest

from gemm_course.figures.style import color_of
from gemm_course.figures.walk_costs import program_counts, time_ratios
from gemm_course.lessons.records import ProgramTimes, program_times


def line(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


def test_each_panel_has_its_stairs_and_its_labelled_points():
    one = ProgramTimes({2: 10.0, 1: 20.0, 3: 7.0}, {1: 21.0, 3: 9.0})
    two = ProgramTimes({1: 5.0}, {1: 6.0})
    left, right = program_counts({"first": one, "second": two}).axes
    assert left.get_title(loc="left") == "first"
    assert list(line(left, "simulated").get_xdata()) == [1, 2, 3]
    assert list(line(left, "simulated").get_ydata()) == [20.0, 10.0, 7.0]
    assert line(left, "simulated").get_drawstyle() == "steps-post"
    assert list(line(left, "recorded on an H200").get_ydata()) == [21.0, 9.0]
    assert [text.get_text() for text in left.texts] == ["1", "3"]
    assert list(line(right, "recorded on an H200").get_ydata()) == [6.0]
    assert left.get_ylim()[0] == 0, "times are compared by height"


def test_scaled_stairs_meet_the_record_at_one_number_of_programs():
    times = ProgramTimes({1: 20.0, 2: 10.0}, {1: 45.0, 2: 20.0})
    (ax,) = program_counts({"t": times}, scaled_at=2).axes
    assert list(line(ax, "simulated, times 2.0 to meet the record at 2").get_ydata()) == [40.0, 20.0]
    assert ax.get_ylim()[1] > 45


def test_program_times_pair_the_record_with_the_simulation():
    row = {"ours": {"2": 9.0, "4": 5.0}, "ours block": [32, 32, 32], "other": {"3": 1.0}}
    times = program_times(row, "ours", [(64, 64, 64)] * 2)
    assert times.recorded_us == {2: 9.0, 4: 5.0}
    assert times.tiles == 8
    assert list(times.simulated_us) == [2, 3, 4]
    assert times.simulated_us[2] > times.simulated_us[4] > 0


def test_labels_of_close_points_lean_apart():
    (ax,) = program_counts({"t": ProgramTimes({33: 1.0}, {33: 9.0, 128: 2.0, 132: 2.0})}).axes
    assert [text.get_horizontalalignment() for text in ax.texts] == ["center", "right", "left"]


def test_labels_do_not_lie_on_the_stairs():
    """A point at a step's foot has its label beside the step, one under a step to the left and below."""
    stairs = {x: 100.0 if x < 40 else 60.0 if x < 64 else 50.0 for x in range(33, 133)}
    (ax,) = program_counts({"t": ProgramTimes(stairs, {33: 95.0, 64: 50.0, 100: 50.0})}).axes
    sides = [(text.get_horizontalalignment(), text.get_verticalalignment()) for text in ax.texts]
    assert sides == [("right", "top"), ("left", "bottom"), ("center", "bottom")]
    (ax,) = program_counts({"t": ProgramTimes(stairs, {33: 95.0, 64: 50.0, 70: 50.0, 132: 50.0})}).axes
    assert [text.get_horizontalalignment() for text in ax.texts][1:3] == ["left", "left"], "nor on the label before"


ROWS = {"small": {"loop": 16.0, "ours": 8.0, "peer": 32.0}, "large": {"loop": 100.0, "ours": 110.0}}


def test_points_are_times_over_those_of_the_base():
    (ax,) = time_ratios(ROWS, {"loop": "the loop", "ours": "ours", "peer": "peer"}, base="loop").axes
    points = [(p.get_xdata()[0], round(p.get_ydata()[0]), p.get_color()) for p in ax.lines if p.get_marker() == "o"]
    assert points == [
        (0.5, 0, color_of(1)),
        (2.0, 0, color_of(2)),
        (pytest.approx(1.1), 1, color_of(1)),
    ]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["small   (16 µs)", "large   (100 µs)"]
    assert {text.get_text(): text.get_color() for text in ax.texts} == {"● ours": color_of(1), "● peer": color_of(2)}
    low, high = ax.get_xlim()
    assert low < 0.5
    assert high > 2.0


def test_every_row_needs_the_base():
    with pytest.raises(ValueError, match="row 'large'"):
        time_ratios({"large": {"ours": 1.0}}, {"ours": "ours"}, base="loop")
