"""Figures of float8: its numbers, what is lost under which scale, outliers and sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drawn import boxes, texts, title
from gemm_course.figures import f12_fp8 as fp8


def line(axes, gid):
    return next(each for each in axes.lines if each.get_gid() == gid)


def test_the_positive_numbers_are_the_type_s():
    values = fp8.positive_values()
    assert values.tolist() == sorted(set(values.tolist()))
    assert (len(values), values[0].item(), values[-1].item()) == (126, fp8.SMALLEST, fp8.LARGEST)
    assert int((values < fp8.SMALLEST_NORMAL).sum()) == 7
    assert int(((values >= 1) & (values < 2)).sum()) == 8


def test_number_line_shows_bits_numbers_and_loss():
    bits, numbers, loss = fp8.number_line(13.0).axes
    assert [text for text in texts(bits) if text in "01"] == list("01010101"), "0, 1010, 101"
    assert any(r"(1 + 5/8) \cdot 2^{10 - 7}" in text for text in texts(bits))
    assert [len(boxes(bits, name)) for name in ("sign", "exponent", "mantissa")] == [1, 4, 3]
    assert {c.get_gid(): len(c.get_segments()) for c in numbers.collections} == {"normal": 119, "subnormal": 7}
    x, lost = line(loss, "loss").get_data()
    x, lost = np.array(x), np.array(lost)
    middle = (x >= fp8.SMALLEST_NORMAL) & (x <= fp8.LARGEST)
    assert 0.055 < lost[middle].max() <= 1 / 16
    assert lost[x < fp8.SMALLEST * 0.499].size == 0 or lost[0] > 0.9
    assert lost[-1] == pytest.approx(0.75, abs=0.01), "four times the largest number becomes the largest"


def test_a_subnormal_number_has_its_own_formula():
    assert any("3/8" in text and "-6" in text for text in texts(fp8.number_line(3 / 512).axes[0]))
    with pytest.raises(ValueError, match=r"got 13\.1"):
        fp8.number_line(13.1)


def test_relative_error_is_cut_at_all_of_the_number_and_zero_stays():
    x = torch.tensor([[2.0, 4.0, 0.0, 1.0, 0.0]])
    stored = torch.tensor([[1.0, 4.0, 0.0, 9.0, 1.0]])
    assert fp8.relative_error(x, stored).tolist() == [[0.5, 0.0, 0.0, 1.0, 1.0]]
    with pytest.raises(ValueError, match=r"shape of x, \(1, 5\), got \(1, 4\)"):
        fp8.relative_error(x, stored[:, :4])


def test_lost_maps_each_attempt_and_names_its_groups():
    x = torch.ones(6, 256)
    half = x.clone()
    half[2:4] = 0.5
    figure = fp8.lost(x, {"whole": x, "half": half, "none": 0 * x, "again": x}, sizes=[2, 4])
    *panels, bar = figure.axes
    assert [title(axes) for axes in panels] == [
        "whole: 0.0% lost on average", "half: 16.7% lost on average", "none: 100.0% lost on average",
        "again: 0.0% lost on average",
    ]  # fmt: skip
    assert np.asarray(panels[1].images[0].get_array())[:, 0].tolist() == [0, 0, 0.5, 0.5, 0, 0]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["group 0", "group 1"]
    assert [each.get_ydata()[0] for each in panels[0].lines if each.get_linestyle() == "-"] == [2]
    assert [each.get_xdata()[0] for each in panels[0].lines if each.get_linestyle() == ":"] == [128]
    assert bar.get_ylabel() == "|stored − x| / |x|"


def test_curves_carry_their_numbers():
    (axes,) = fp8.outlier_sweep(
        [10, 100, 1000], {"int8": [0.0, 0.5, 1.0], "float8": [0.1, 0.2, 0.7]}, {"here": 100}
    ).axes
    assert line(axes, "int8").get_ydata().tolist() == [0.0, 0.5, 1.0]
    assert {"int8", "float8", "here"} <= set(texts(axes))
    (axes,) = fp8.accumulators([256, 1024], {"one": [1e-3, 4e-3], "two": [1e-4, 1e-4]}, [(512, 2e-3)]).axes
    assert line(axes, "one").get_ydata().tolist() == [1e-3, 4e-3]
    assert line(axes, "measured").get_xydata().tolist() == [[512, 2e-3]]
    assert {"one", "two", "× measured on an H200"} <= set(texts(axes))


def test_scale_shapes_cover_the_tensor_once():
    figure = fp8.scale_shapes(6, [2, 4], 256)
    names = ["tensor", "group", "row", "1 × 128 block"]
    for axes, name, count in zip(figure.axes, names, (1, 2, 6, 12), strict=True):
        found = boxes(axes, name)
        assert len(found) == count
        assert sum(width * height for *_, width, height in found) == 6 * 256
        assert title(axes) == f"one per {name}: {count}"


def test_rates_of_blocks_are_beside_those_of_rows_and_columns():
    rate = {
        "cute": 1100.0, "cute 128x128": 1200.0, "row-wise cute a": 1250.0, "row-wise cute b": 1300.0, "dA triton": 1.0,
        "dense row-wise": 1000.0, "dense row-wise, fast": 1400.0,
    }  # fmt: skip
    first, second = {"title": "4 of 8192, 16, 32", "rate": rate}, {"title": "last", "rate": {"triton": 700.0}}
    figure = fp8.block_rates({"rows": {"a": first, "b": second}})
    left, right = ({bar.get_gid(): bar.get_width() for bar in axes.patches} for axes in figure.axes)
    assert left == {
        "blocks (cute)": 1100.0, "rows and columns (cute)": 1300.0, "one dense product, rows and columns": 1400.0,
    }  # fmt: skip
    assert right == {"blocks (triton)": 700.0}
    assert texts(figure.axes[0]) == ["4 experts, 32,768 tokens (8,192 each), N 16, K 32", "1,100 ", "1,300 ", "1,400 "]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "blocks (cute)", "blocks (triton)", "rows and columns (cute)", "one dense product, rows and columns",
    ]  # fmt: skip
