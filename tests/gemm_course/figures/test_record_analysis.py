"""Figures that read a record further: factors, calls and explanations are computed from its numbers."""

from __future__ import annotations

import copy

import pytest
from matplotlib.colors import to_rgb

from course_kernels.bench.rows import by_name
from gemm_course.figures import record_analysis
from gemm_course.figures.style import FAINT, ORANGE, RED, SKY
from gemm_course.lessons import records

ROWS = by_name()
PASSES = ("forward", "called", "dA", "dB")
TIMES = {  # µs in a graph; calls take 10 µs more
    "equal12": {"mine": 70.0, "torch": 84.0, "dense": 50.0},
    "decode32": {"mine": 240.0, "torch": 300.0},
}


def results():
    rows = {}
    for name, times in TIMES.items():
        row = ROWS[name]
        us = {of: {p: {"median_us": t + 10.0 * (of == "called")} for p, t in times.items()} for of in PASSES}
        us["dA"]["mine"]["median_us"] *= 2
        rows[name] = {
            "title": row.title, "kind": row.kind, "unit": row.unit, "flops": row.flops, "sizes": list(row.sizes),
            "N": row.N, "K": row.K, "bytes": {of: row.bytes_moved(of) for of in PASSES}, "us": us,
            "rate": {of: {p: row.rate(us[of][p]["median_us"], of) for p in times} for of in PASSES},
            "host_us": {"mine": 35.0, "torch": 168.0},
        }  # fmt: skip
    providers = {
        "mine": {"label": "grouped_mm", "role": "ours"},
        "torch": {"label": "torch", "role": "peer"},
        "dense": {"label": "dense", "role": "ceiling"},
    }
    return {"copy_tb_s": 4.0, "providers": providers, "rows": rows}


def dots(axes):
    found = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    return [(float(line.get_xdata()[0]), int(line.get_ydata()[0])) for line in found]


def test_a_dot_is_the_peers_time_over_ours():
    figure = record_analysis.speedups_over_peers(results(), "mine", ["forward", "dA"])
    forward, gradient = figure.axes
    assert dots(forward) == [(pytest.approx(1.2), 0), (pytest.approx(1.25), 1)]
    assert dots(gradient) == [(pytest.approx(0.6), 0), (pytest.approx(0.625), 1)]
    assert forward.get_xlim()[0] < 0.6, "slower is seen as well"
    assert [label.get_text() for label in forward.get_yticklabels()] == [
        "12 experts, 8,192 tokens (equal)\nN 2048, K 1024",
        "32 experts, 640 tokens (20 each)\nN 7168, K 2048",
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["torch"]


def test_a_call_has_its_time_on_the_device_and_on_the_host():
    figure = record_analysis.as_called(results(), ["mine", "torch"])
    mine, torch = figure.axes
    assert dots(mine) == [(80.0, 0), (250.0, 1)]
    spans = {line.get_ydata()[0]: line for line in torch.lines if line.get_linewidth() == 3 and len(line.get_xdata())}
    assert {row: tuple(line.get_xdata()) for row, line in spans.items()} == {0: (94.0, 168.0), 1: (310.0, 168.0)}
    assert [to_rgb(spans[row].get_color()) for row in (0, 1)] == [to_rgb(RED), to_rgb(FAINT)], "red: the host is slower"
    assert figure.get_supxlabel() == "µs for one call"


def test_time_is_explained_by_the_roof_the_tiles_and_the_last_wave():
    found = records.shares(results(), "mine", (128, 256), 132)["equal12"]
    assert found.bound == "arithmetic"
    # At the dense rate 50 of 70 µs. The twelve groups fill 6 row tiles each but for 85 or 86 rows; 8 columns.
    row = ROWS["equal12"]
    tiles = sum(-(-size // 128) for size in row.sizes) * 8
    hanging = tiles * 128 * 256 / (row.total_m * row.N)
    parts = list(found.parts.values())
    assert parts[0] == pytest.approx(50 / 70)
    assert parts[1] == pytest.approx(50 / 70 * (hanging - 1))
    wave = 50 / 70 * hanging * (-(-tiles // 132) * 132 / tiles - 1)
    assert parts[2] == pytest.approx(min(wave, 1 - parts[0] - parts[1]))
    assert sum(parts) == pytest.approx(1)


def test_a_memory_bound_row_is_explained_by_its_bytes_alone():
    found = records.shares(results(), "mine", (128, 256), 132)["decode32"]
    assert found.bound == "memory"
    share = ROWS["decode32"].bytes_moved() / 4.0 / 1e6 / 240.0
    assert list(found.parts.values()) == pytest.approx([share, 0, 0, 1 - share])


def test_a_row_above_the_roof_is_cut_at_all_of_its_time():
    fast = results()
    fast["rows"]["decode32"]["us"]["forward"]["mine"]["median_us"] = 1.0
    assert list(records.shares(fast, "mine", (128, 256), 132)["decode32"].parts.values()) == [1.0, 0, 0, 0]


def test_bars_are_the_shares():
    record = results()
    explained = records.shares(record, "mine", (128, 256), 132)
    figure = record_analysis.where_time_goes(record, explained)
    axes = figure.axes[0]
    bars = [patch for patch in axes.patches if patch.get_y() == pytest.approx(1 - 0.36)]
    assert [bar.get_width() for bar in bars] == pytest.approx(list(explained["decode32"].parts.values()))
    assert to_rgb(bars[0].get_facecolor()) == to_rgb(SKY)
    assert [to_rgb(bars[i].get_facecolor()) for i in (1, 3)] == [to_rgb(ORANGE), to_rgb(FAINT)]
    assert len(figure.legends[0].get_texts()) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: record_analysis.speedups_over_peers(r, "nobody"), "'forward' has none"),
        (lambda r: record_analysis.as_called(r, ["mine", "nobody"]), "'nobody' is not"),
        (lambda r: record_analysis.as_called(r, ["dense"]), "'dense' is not"),
        (lambda r: records.shares(r, "nobody", (128, 256), 132), "'nobody' was not"),
    ],
)
def test_bad_input_is_named(call, message):
    record = results()
    with pytest.raises(ValueError, match=message):
        call(record)


def test_without_a_dense_product_there_is_no_explanation():
    record = copy.deepcopy(results())
    del record["rows"]["equal12"]["rate"]["forward"]["dense"]
    with pytest.raises(ValueError, match="dense"):
        records.shares(record, "mine", (128, 256), 132)
