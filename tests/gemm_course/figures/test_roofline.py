"""The figures of measured rates carry the record's numbers, and the ceiling is where it was measured."""

from __future__ import annotations

import matplotlib as mpl
import pytest

from course_kernels.bench.rows import by_name
from gemm_course.figures.roofline import against_peers, ceiling, roofline, spread_left

ROWS = by_name()
PROVIDERS = {
    "mine": {"label": "grouped_mm", "role": "ours"},
    "torch": {"label": "torch", "role": "peer"},
    "gone": {"label": "gone", "role": "peer", "absent": "not installed"},
    "dense": {"label": "dense cuBLAS", "role": "ceiling"},
}


def record(rates, passes=("forward",)):
    """A synthetic record: row → provider → rate, the same in every pass."""
    rows = {}
    for name, rate in rates.items():
        row = ROWS[name]
        work = row.flops if row.kind == "compute" else row.bytes_moved()
        us = {provider: {"median_us": work / value / 1e6} for provider, value in rate.items()}
        rows[name] = {
            "title": row.title, "kind": row.kind, "unit": row.unit, "flops": row.flops, "N": row.N, "K": row.K,
            "bytes": {of: row.bytes_moved(of) for of in passes}, "us": dict.fromkeys(passes, us),
            "rate": dict.fromkeys(passes, rate),
        }  # fmt: skip
    return {"copy_tb_s": 4.0, "providers": PROVIDERS, "rows": rows}


RESULTS = record(
    {
        "equal12": {"mine": 600.0, "torch": 450.0, "dense": 660.0},
        "decode32": {"mine": 3.9, "torch": 2.9},
        "zipf8": {"mine": 640.0, "torch": 620.0, "dense": 700.0},
    }
)


def bars(axes):
    """Widths of the drawn bars, top to bottom, without the legend's empty ones."""
    found = [patch for patch in axes.patches if isinstance(patch, mpl.patches.Rectangle) and patch.get_width() > 0]
    return [patch.get_width() for patch in sorted(found, key=lambda patch: patch.get_y())]


def test_ceiling_is_the_dense_product_or_a_copy():
    assert ceiling(RESULTS, "equal12") == 660.0
    assert ceiling(RESULTS, "decode32") == 4.0
    without = record({"equal12": {"mine": 600.0}})
    assert ceiling(without, "equal12") is None


def test_bars_are_shares_of_the_ceiling():
    figure = against_peers(RESULTS)
    (axes,) = figure.axes
    expected = [600 / 660, 450 / 660, 3.9 / 4, 2.9 / 4, 640 / 700, 620 / 700]
    assert bars(axes) == pytest.approx(expected)
    rates = {text.get_text(): text.get_fontweight() for text in axes.texts if len(text.get_text()) < 5}
    assert rates == {
        "600": "bold", "450": "normal", "3.90": "bold", "2.90": "normal", "640": "bold", "620": "normal",
    }  # fmt: skip
    titles = [text.get_text() for text in axes.texts if len(text.get_text()) > 5]
    assert titles[:2] == [
        "12 experts, 8,192 tokens (equal)\nN 2048, K 1024;  dense 660 TFLOP/s",
        "32 experts, 640 tokens (20 each)\nN 7168, K 2048;  copy 4.00 TB/s",
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["grouped_mm", "torch"]


def test_many_rows_take_two_columns_and_all_are_there():
    every = record({name: {"mine": 300.0, "torch": 200.0, "dense": 600.0} for name in list(ROWS)[:7]})
    left, right = against_peers(every).axes
    assert (len(bars(left)), len(bars(right))) == (8, 6)
    assert bars(left) == pytest.approx([0.5, 1 / 3] * 4)


def test_bars_without_a_ceiling_say_so():
    (axes,) = against_peers(record({"equal12": {"mine": 600.0, "torch": 30.0}})).axes
    assert bars(axes) == pytest.approx([1.0, 0.05])
    assert "no ceiling measured: 100% is 600" in axes.texts[0].get_text()
    assert [(text.get_text(), text.get_ha()) for text in axes.texts[1:]] == [("600", "right"), ("30", "left")]


def test_a_row_ahead_of_the_ceiling_is_not_cut():
    (axes,) = against_peers(record({"decode256": {"mine": 4.5, "torch": 3.0}})).axes
    assert axes.get_xlim()[1] > 4.5 / 4.0


def test_numbers_of_close_rows_stand_apart():
    placed = spread_left({"a": 100.0, "b": 101.0, "c": 100.5, "far": 1.0}, (0.5, 5000.0))
    assert placed["far"] == 1.0
    assert placed["b"] == 101.0
    assert placed["a"] * 1.3 < placed["c"] * 1.1 < placed["b"]


def points(axes, marker_size):
    drawn = [line for line in axes.lines if line.get_marker() == "o" and line.get_markersize() == marker_size]
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in drawn]


def test_roofline_has_every_row_at_its_intensity_under_its_roof():
    axes, key = roofline(RESULTS).axes
    wanted = []
    for name in ("equal12", "decode32", "zipf8"):
        row, rate = ROWS[name], RESULTS["rows"][name]["rate"]["forward"]["mine"]
        intensity = row.flops / row.bytes_moved()
        wanted.append((intensity, rate * (intensity if row.kind == "memory" else 1.0)))
    for drawn, point in zip(points(axes, 9), wanted, strict=True):
        assert drawn == pytest.approx(point)
    assert len(points(axes, 4)) == 3, "the peer's"
    roof = next(line for line in axes.lines if len(line.get_xdata()) == 3)
    left, ridge, _ = zip(roof.get_xdata(), roof.get_ydata())
    assert ridge == (pytest.approx(700 / 4.0), 700.0)
    assert left[1] / left[0] == pytest.approx(4.0)
    assert [text.get_text() for text in axes.texts if text.get_text().isdigit()] == ["1", "2", "3"]
    listed = key.texts[0].get_text()
    assert f"1  {ROWS['equal12'].title}: " in listed
    # Its memory needs longer than its arithmetic would at the fastest dense rate: it counts against the slope.
    assert f"2  {ROWS['decode32'].title}: 98%" in listed
    assert f"3  {ROWS['zipf8'].title}: {640 / 700:.0%}" in listed


def test_figures_of_another_pass_and_of_none():
    both = record({"equal12": {"mine": 600.0, "dense": 660.0}}, passes=("forward", "dB"))
    assert roofline(both, "dB").axes[0].get_title(loc="left") == "gradient of B"
    with pytest.raises(ValueError, match="of must be one of forward, called, dA, dB, got 'dC'"):
        against_peers(both, "dC")
    with pytest.raises(ValueError, match="pass 'dA', and have none"):
        against_peers(both, "dA")
    with pytest.raises(ValueError, match="'torch' has none"):
        roofline(both, provider="torch")
