"""Figures of decoding: steps under the roof, rows in slots, waste and written rows carry the numbers they are given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from drawn import boxes, texts, title
from gemm_course.figures import f12_decoding as decoding
from gemm_course.figures.f12_decoding import Step, Work
from gemm_course.figures.matrices import STATE_COLORS
from gemm_course.lessons import canaries, records
from gemm_course.lessons.canaries import INCORRECT, MISSING, OUTSIDE, RIGHT, UNTOUCHED

SIZES, MAX_M = [3, 0, 5, 1], 6


def line(axes, gid):
    return next(each for each in axes.lines if each.get_gid() == gid)


def step(rows, moved):
    return Step(rows, flops=100.0 * rows, moved=moved, us=2.0 * moved)


def test_steps_are_under_their_roof_and_at_their_time():
    steps = {"bfloat16": [step(1, 50.0), step(16, 100.0)], "float8": [step(1, 25.0), step(16, 50.0)]}
    measured = {"bfloat16": [(1, 99.0)], "float8": [(1, 51.0)]}
    figure = decoding.under_the_roof(steps, {"bfloat16": 30.0, "float8": 60.0}, 4.0, measured, named=(16,))
    roof, time = figure.axes
    dots = line(roof, "roof bfloat16")
    assert dots.get_xdata().tolist() == [2.0, 16.0], "FLOP per byte"
    assert dots.get_ydata().tolist() == [8.0, 30.0], "the second is under the flat part"
    assert line(roof, "roof float8").get_ydata().tolist() == [16.0, 60.0]
    assert "16 rows" in texts(roof)
    assert "1 row" not in texts(roof)
    assert line(time, "time bfloat16").get_ydata().tolist() == [100.0, 200.0]
    assert line(time, "measured float8").get_xydata().tolist() == [[1.0, 51.0]]


def test_packed_and_masked_have_the_same_rows_in_other_places():
    left, right = decoding.packed_and_masked(SIZES, MAX_M, group=2).axes
    assert [len(boxes(left, f"packed {g}")) for g in range(4)] == SIZES
    assert [len(boxes(right, f"used {g}")) for g in range(4)] == SIZES
    assert [len(boxes(right, f"unused {g}")) for g in range(4)] == [MAX_M - size for size in SIZES]
    assert boxes(left, "packed 2")[0][1] == 3, "it starts after group 0's rows"
    assert {box[1] for box in boxes(right, "used 2")} == {0, 1, 2, 3, 4}, "it starts in slot 0"
    words = texts(right)
    assert "9 rows, 24 slots." in words
    assert "Packed, group 2 starts at row 3: the sum of all sizes before it." in words
    assert "Masked, it starts at slot 2 × 6 = 12, whatever the others hold." in words
    assert [word for word in texts(left) if word.isdigit()] == ["3", "3", "8", "9"], "offs"


def test_a_group_needs_its_slots():
    with pytest.raises(ValueError, match="max_m must be at least the largest size, 5, got 4"):
        decoding.packed_and_masked(SIZES, 4, group=0)


def test_waste_is_what_nobody_needs():
    ways = {
        "bmm": {"FLOP": Work(2.0, 10.0), "MB": Work(3.0, 4.0)},
        "tiles": {"FLOP": Work(2.0, 5.0), "MB": Work(3.0, 3.0)},
    }
    flop, megabytes = decoding.waste(ways, {"FLOP": "{:.0f}", "MB": "{:.1f} MB"}).axes
    assert (title(flop), title(megabytes)) == ("FLOP", "MB")
    assert boxes(flop, "needed bmm")[0][::2] == (0, 2)
    assert boxes(flop, "wasted bmm")[0][::2] == (2, 8)
    assert boxes(megabytes, "wasted tiles")[0][2] == 0
    assert texts(megabytes) == ["4.0 MB", "3.0 MB"]


@pytest.fixture
def result():
    """A result and what it should be: group 0 with a wrong row and a missing one, group 1 written although empty."""
    want = torch.arange(4 * MAX_M * 2).view(4, MAX_M, 2).float()
    result = torch.full_like(want, -7.0)
    for g, size in enumerate(SIZES):
        result[g, :size] = want[g, :size]
    result[0, 1, 1] += 1
    result[0, 2] = -7.0
    result[1, 0, 0] = 0.0
    return result, want


def test_a_row_has_the_worst_state_of_its_elements(result):
    states = canaries.row_states(*result, SIZES, -7.0)
    assert states[0].tolist() == [RIGHT, INCORRECT, MISSING, UNTOUCHED, UNTOUCHED, UNTOUCHED]
    assert states[1].tolist() == [OUTSIDE] + [UNTOUCHED] * 5
    assert states[2].tolist() == [RIGHT] * 5 + [UNTOUCHED]
    assert np.bincount(states.ravel()).sum() == 24


def test_written_rows_are_drawn_in_their_slots(result):
    figure = decoding.written_rows({"a run": (*result, SIZES)}, -7.0)
    (axes,) = figure.axes
    assert title(axes) == "a run"
    assert len(boxes(axes, "right")) == 7
    assert boxes(axes, "written outside") == [(1, 0, 0.86, 1)]
    assert boxes(axes, "never written") == [(0, 2, 0.86, 1)]
    assert [text for text in texts(axes) if text.isdigit()] == ["3", "0", "5", "1"]
    ends = [each.get_ydata()[0] for each in axes.lines]
    assert ends == SIZES
    (legend,) = figure.legends
    assert to_hex(legend.get_patches()[0].get_facecolor()) == STATE_COLORS[UNTOUCHED].lower()


def masked_record():
    """Two cells of 20 rows and one of 192; torch has no blocks."""
    rate = {"triton": {"tb_s": 4.0, "tflops": 80.0}, "torch.bmm, all rows": {"tb_s": 1.0, "tflops": 20.0}}
    kinds = {"bfloat16": {"rates": rate}, "float8 blocks": {"rates": {"triton": {"tb_s": 3.5, "tflops": 140.0}}}}
    shapes = ((20, 64), (20, 32), (192, 64))
    cells = {str(shape): {"groups": 32, "rows": shape[0], "N": shape[1], "K": 16, "kinds": kinds} for shape in shapes}
    return {"copy_tb_s": 4.25, "cells": cells}


def bars(axes, name):
    return [bar.get_width() for bar in axes.patches if bar.get_gid() == name]


def test_recorded_rates_are_bars_beside_a_copy():
    figure = decoding.masked_rates(masked_record(), 20, "tb_s")
    sixteen, blocks = figure.axes
    assert (title(sixteen), title(blocks)) == ("bfloat16", "float8, block scales")
    assert bars(sixteen, "triton") == [4.0, 4.0]
    assert bars(sixteen, "torch.bmm, all rows") == [1.0, 1.0]
    assert (bars(blocks, "triton"), bars(blocks, "torch.bmm, all rows")) == ([3.5, 3.5], [])
    assert line(blocks, "copy").get_xdata()[0] == 4.25
    assert texts(blocks) == ["N 64, K 16", "3.50 ", "N 32, K 16", "3.50 "]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["deepgemm (triton)", "torch.bmm, all slots"]
    places = [[text.get_position()[1] for text in axes.texts if ", K " in text.get_text()] for axes in figure.axes]
    assert places[0] == places[1], "a shape is at one height in all panels"


def test_shares_of_a_copy_are_the_faster_kernels():
    record = masked_record()
    rates = {"triton": {"tb_s": 2.0}, "cute": {"tb_s": 2.125}, "torch.bmm, all rows": {"tb_s": 4.2}}
    clean = {"triton": {"tb_s": 4.25}}
    record["cells"] = {str(rows): {"rows": rows, "kinds": {"float8": {"rates": rates, "clean": {"rates": clean}}}}
                       for rows in (20, 192)}  # fmt: skip
    assert records.shares_of_a_copy(record, 20) == {"float8": [0.5]}
    assert records.shares_of_a_copy(record, 20, clean=True) == {"float8": [1.0]}


def test_recorded_rates_of_many_rows_have_no_copy():
    sixteen, _ = decoding.masked_rates(masked_record(), 192, "tflops").axes
    assert bars(sixteen, "triton") == [80.0]
    assert [each for each in sixteen.lines if each.get_gid() == "copy"] == []
    with pytest.raises(ValueError, match=r"rows must be one of \[20, 192\], got 4"):
        decoding.masked_rates(masked_record(), 4, "tb_s")
    with pytest.raises(ValueError, match="unit must be 'tb_s' or 'tflops', got 'us'"):
        decoding.masked_rates(masked_record(), 20, "us")


def test_a_record_has_its_fastest_dense_product_and_our_faster_kernel():
    us = {"triton": {"median_us": 3.0}, "cute": {"median_us": 2.0}, "loop": {"median_us": 1.0}}
    rows = {
        "a": {"rate": {"forward": {"dense": 7.0}}, "us": {"forward": us}},
        "b": {"rate": {"forward": {"cute": 9.0}}},
    }
    assert records.dense_tflops({"rows": rows}) == 7.0
    assert records.fastest_us({"rows": rows}, "a") == 2.0
