"""Figures of measuring: brackets, dots and bars carry the numbers."""

from __future__ import annotations

import statistics

import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from gemm_course.figures import f15_measurements as measuring
from gemm_course.figures.style import BLUE, FAINT, ORANGE, WIDTH
from gemm_course.lessons.l15_simulated_gpu import SimulatedGpu, Span

SPANS = [
    Span("host", "gemm", 100.0, 102.0),
    Span("host", "wait", 102.0, 160.0),
    Span("device", "gemm", 105.0, 150.0),
]


def boxes(axes):
    return [(p.get_x(), p.get_y() + p.get_height() / 2, p.get_width(), p) for p in axes.patches
            if isinstance(p, Rectangle)]  # fmt: skip


def test_lanes_begin_at_the_first_span_and_show_who_waits():
    figure = measuring.lanes(SPANS, {"events": (100.0, 150.0)})
    (axes,) = figure.axes
    drawn = boxes(axes)
    assert [(x, y, width) for x, y, width, _ in drawn] == [(0, 0, 2), (2, 0, 58), (5, 1, 45)]
    launch, wait, kernel = (patch for *_, patch in drawn)
    assert launch.get_facecolor() == kernel.get_facecolor(), "a kernel has one colour"
    assert to_rgb(wait.get_facecolor()) == to_rgb(FAINT)
    assert wait.get_hatch()
    texts = [text.get_text() for text in axes.texts]
    assert "events: 50 µs" in texts
    assert texts.count("gemm") == 1, "no name in a box that is too short for it"
    assert figure.get_figwidth() <= WIDTH


def test_lanes_take_a_simulated_gpu():
    gpu = SimulatedGpu()
    gpu.launch("write", writes=[gpu.zeros(1000, 1000)])
    gpu.synchronize()
    assert len(boxes(measuring.lanes(gpu.spans).axes[0])) == len(gpu.spans) == 3


def test_each_call_is_a_dot_and_the_second_half_names_the_level():
    (axes,) = measuring.call_by_call({"zeros": [1, 700, 690, 710], "random": [500, 400, 410, 405]}, 800).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in dots] == [[1, 700, 690, 710], [500, 400, 410, 405]]
    assert [text.get_text() for text in axes.texts] == ["zeros: 700", "random: 408", "peak: 800"]
    assert axes.get_ylim()[0] == 0


def test_cache_curve_shades_what_fits():
    (axes,) = measuring.cache_curve([10, 40, 100], {"warm": [5, 8, 3], "flushed": [2, 3, 3]}, 60.0, 4.0).axes
    shade = axes.patches[0]
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (10, 60.0)
    assert [list(line.get_ydata()) for line in axes.lines if line.get_marker() == "o"] == [[5, 8, 3], [2, 3, 3]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["warm", "flushed"]
    assert "memory: 4 TB/s" in [text.get_text() for text in axes.texts]


def test_spread_draws_quartiles_and_counts_what_is_far_off():
    this, same = [10.0, 11.0, 12.0, 13.0, 40.0], [11.0, 11.0, 12.0, 12.0, 12.0]
    figure = measuring.spread({"in sequence": {"this": this, "same": same}, "in turn": {"this": same}})
    first, second = figure.axes
    low, median, high = statistics.quantiles(this, n=4)
    box = boxes(first)[0]
    assert (box[0], box[2]) == (low, pytest.approx(high - low))
    lines = [line for line in first.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2]
    assert [line.get_xdata()[0] for line in lines] == [median, 12.0]
    assert [text.get_text() for text in first.texts] == ["12.0 µs (1 off the scale)", "12.0 µs"]
    assert sorted(first.lines[0].get_xdata()) == this[:4]
    assert (first.get_title("left"), second.get_title("left")) == ("in sequence", "in turn")


def test_claims_point_to_the_winner():
    (axes,) = measuring.claims({"published": 4.0, "repaired": 0.8, "draw": 1.0}, "mine", "theirs").axes
    bars = [(p.get_x(), p.get_width(), to_rgb(p.get_facecolor())) for p in axes.patches]
    assert bars == [(1.0, 3.0, to_rgb(ORANGE)), (1.0, pytest.approx(-0.2), to_rgb(BLUE)), (1.0, 0.0, to_rgb(BLUE))]
    assert [text.get_text() for text in axes.texts] == ["4.00 times", "0.80 times", "1.00 times"]
    assert [text.get_ha() for text in axes.texts] == ["left", "right", "left"]
    assert "rate of mine / rate of theirs" in axes.get_xlabel()
    low, high = axes.get_xlim()
    assert low < 0.8
    assert high > 4.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measuring.lanes([]), "spans"),
        (lambda: measuring.call_by_call({}, 1.0), "series"),
        (lambda: measuring.call_by_call({"none": []}, 1.0), "series"),
        (lambda: measuring.cache_curve([1, 2], {"warm": [1]}, 60, 4), "2 values"),
        (lambda: measuring.cache_curve([], {}, 60, 4), "at least one"),
        (lambda: measuring.spread({}), "panels"),
        (lambda: measuring.spread({"one": {"this": [1.0]}}), "two times"),
        (lambda: measuring.claims({}, "a", "b"), "positive"),
        (lambda: measuring.claims({"x": 0.0}, "a", "b"), "positive"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
