"""The figures of what a key decides carry the times, the stalls, the choices and the losses they were given."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.colors import to_hex

from drawn import rectangles
from gemm_course.figures.f07_choices import choices, regrets, slowdowns, stale_key, stalls
from gemm_course.figures.style import BLUE, FAINT, GREEN, RED

US = {"small": {"loop": 16.0, "own": 8.0, "key": 8.0}, "large": {"loop": 30.0, "own": 27.0, "key": 99.0}}


def test_both_lines_are_over_the_base_and_each_point_of_the_key_says_how_much():
    (ax,) = stale_key(US, "loop", "own", "key").axes
    lines = {line.get_gid(): list(line.get_ydata()) for line in ax.lines}
    assert lines == {"loop": [1.0, 1.0], "own": pytest.approx([0.5, 0.9]), "key": pytest.approx([0.5, 3.3])}
    texts = [text.get_text() for text in ax.texts]
    assert texts[:3] == ["0.5×", "3.3×", "tuned here"]
    assert set(texts[3:]) == {"loop", "own", "key"}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["small", "large"]


def test_names_at_the_ends_of_the_lines_stay_apart():
    close = {name: {"loop": 10.0, "own": 10.1, "key": 10.2} for name in ("a", "b")}
    (ax,) = stale_key(close, "loop", "own", "key").axes
    heights = sorted(text.get_position()[1] for text in ax.texts[3:])
    low, high = ax.get_ylim()
    gaps = [after / before for before, after in itertools.pairwise(heights)]
    assert min(gaps) >= (high / low) ** (1 / 12) * 0.999


def test_a_call_waits_for_its_tuning():
    (ax,) = stalls({"every call": [(2e6, 5e5)] * 2, "none": [(0.0, 5e5)] * 2}).axes
    bars = [(p.get_x(), p.get_width(), round(p.get_y() + p.get_height() / 2)) for p in rectangles(ax, "tuning")]
    assert bars == [(0.0, 2.0, 0), (2.5, 2.0, 0)]
    ticks = [[segment[0][0] for segment in lines.get_segments()] for lines in ax.collections]
    assert ticks == [[2.5, 5.0], [0.5, 1.0]]
    assert all(to_hex(lines.get_color()[0]).upper() == BLUE for lines in ax.collections)
    assert [text.get_text() for text in ax.texts] == [
        "every call: 4.0 s of tuning, 1000.0 ms of work for 2 calls", "none: no tuning, 1000.0 ms of work for 2 calls",
    ]  # fmt: skip


def test_each_choice_has_a_colour_and_a_line_in_the_legend():
    grid = [["low", "low", "high"], ["low", "high", "other"]]
    figure = choices({"p": grid}, [1, 2, 4], [16, 32], ("rows", "K"), {"p": [(2, 16), (8, 16), (2, 64)]})
    (ax,) = figure.axes
    mesh = ax.collections[0]
    assert mesh.get_array().reshape(2, 3).tolist() == [[0, 0, 1], [0, 1, 2]]
    assert [text.get_text() for text in figure.legends[0].texts] == ["low", "high", "other"]
    colors = [to_hex(handle.get_facecolor()) for handle in figure.legends[0].get_patches()]
    assert len(set(colors)) == 3
    assert [to_hex(mesh.cmap(mesh.norm(i))) for i in range(3)] == colors
    marks = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if line.get_gid() == "mark"]
    assert marks == [(2, 16)], "what lies outside of the grid is not marked"


TIMES = {"8 × 128": {"a": 10.0, "b": 12.0}, "8 × 256": {"a": 20.0, "b": 19.0, "c": 60.0}}


def test_slowdowns_are_over_the_best_of_the_row_and_the_chosen_is_framed():
    (ax,) = slowdowns({"t": TIMES}, {("t", "8 × 128"): "a", ("t", "8 × 256"): "a"}).axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "c"]
    assert [text.get_text() for text in ax.texts] == ["1.00", "1.20", "1.05", "1.00", "3.16"]
    centre = [(p.get_x() + p.get_width() / 2, p.get_y() + p.get_height() / 2) for p in rectangles(ax, "chosen")]
    assert [(round(x, 6), round(y, 6)) for x, y in centre] == [(0, 0), (0, 1)]
    colors = [to_hex(p.get_facecolor()).upper() for p in rectangles(ax, "cell")]
    assert colors[0] == colors[3] == GREEN
    assert GREEN not in (colors[1], colors[2])
    assert colors[4] == RED
    assert len(rectangles(ax, "missing")) == 1


def test_the_best_candidate_on_average_stands_on_the_left():
    (ax,) = slowdowns({"t": {"r": {"slow": 3.0, "mid": 2.0, "fast": 1.0}}}, {}).axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["fast", "mid", "slow"]


def test_regrets_are_in_per_cent_with_mean_and_worst():
    cells = {("r", "16"): 1.0, ("r", "32"): 1.21, ("s", "16"): None}
    left, right = regrets({"one": cells, "two": {("r", "16"): 1.0}}, ("layer", "rows")).axes
    assert left.get_title(loc="left") == "one, 2 buckets\nmean +10.0%, worst +21%"
    assert right.get_title(loc="left") == "two, 1 buckets\nmean +0.0%, worst +0%"
    assert [text.get_text() for text in left.texts] == ["0", "21", "–"]
    colors = [to_hex(p.get_facecolor()).upper() for p in rectangles(left, "cell")]
    assert (colors[0], colors[2]) == (GREEN, FAINT)
    assert [label.get_text() for label in left.get_yticklabels()] == ["r", "s"]
