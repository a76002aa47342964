"""The figures of packed groups show the rows that the sizes say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.patches import FancyArrowPatch

from drawn import boxes
from gemm_course.figures import f08_packed_rows as packed

SIZES, TAIL = [10, 6, 0, 13], 5


def words(axes):
    return [text.get_text() for text in (*axes.texts, axes.title, axes._left_title)]


def test_lists_need_a_descriptor_for_each_matrix_and_packed_operands_three():
    left, right = packed.lists_and_packed(SIZES, TAIL).axes
    assert [len(boxes(axes, "descriptor")) for axes in (left, right)] == [12, 3]
    assert {"lists: 12 descriptors (black)"} <= set(words(left))
    assert {"packed: 3 descriptors and 4 ends", "A (34, K)"} <= set(words(right))
    assert [boxes(left, f"list A {g}")[0][3] for g in range(4)] == SIZES
    assert [(boxes(right, f"A {g}")[0][1], boxes(right, f"A {g}")[0][3]) for g in range(4)] == [
        (0, 10), (10, 6), (16, 0), (16, 13),
    ]  # fmt: skip
    assert boxes(right, "C tail")[0][1::2] == (29, 5)
    assert [text.get_text() for text in right.texts if text.get_gid() == "end"] == ["◂10", "◂16", "◂16", "◂29"]


def test_boundary_tile_reads_a_whole_tile_and_stores_the_group_s_part():
    (axes,) = packed.boundary_tile(SIZES, TAIL, block=8, group=0).axes
    assert boxes(axes, "read")[0][1::2] == (8, 8)
    assert boxes(axes, "stored")[0][1::2] == (8, 2)
    assert boxes(axes, "kept")[0][1::2] == (8, 2)
    assert boxes(axes, "wasted")[0][1::2] == (10, 6)
    assert {"A: 8 rows are read", "C: 2 are stored", "6 rows\nwasted"} <= set(words(axes))


@pytest.mark.parametrize("draw", [lambda: packed.boundary_tile(SIZES, TAIL, block=5, group=0),
                                  lambda: packed.sliding_window(SIZES, group=0, block=5)])  # fmt: skip
def test_a_group_of_whole_tiles_has_no_boundary_tile(draw):
    with pytest.raises(ValueError, match="group 0 has 10 rows in tiles of 5"):
        draw()


def test_overwritten_counts_wrong_rows_and_maps_their_errors():
    want = torch.zeros(34, 4)
    wrong = want.clone()
    wrong[10:12] = -3
    wrong[33, 1] = 1
    figure = packed.overwritten(SIZES, TAIL, {"first": wrong, "second": want}, want)
    rows, first, second = figure.axes
    assert "first: 3 of 34 rows wrong" in words(first)
    assert "second: 0 of 34 rows wrong" in words(second)
    shown = np.asarray(first.images[0].get_array())
    assert shown.shape == (34, 4)
    assert shown.any(1).nonzero()[0].tolist() == [10, 11, 33]
    assert boxes(rows, "row 3") == [(0, 16, 1, 13)]


def test_overwritten_refuses_another_shape():
    with pytest.raises(ValueError, match=r"'first' has \(3, 4\)"):
        packed.overwritten(SIZES, TAIL, {"first": torch.zeros(3, 4)}, torch.zeros(34, 4))


def test_sliding_window_ends_where_the_group_ends():
    (axes,) = packed.sliding_window(SIZES, group=3, block=8).axes
    ((x, _, width, _),) = boxes(axes, "window")
    assert x + width == 29
    assert boxes(axes, "group in window")[0][::2] == (16, 13)
    assert boxes(axes, "stored")[0][::2] == (24, 5)
    assert boxes(axes, "cut off")[0][::2] == (29, 3)
    assert {"last tile: 5 rows stored, 3 cut off", "base: +29 rows, from row 0 to the end of group 3"} <= set(
        words(axes)
    )
    assert "inside: $+2^{30} - 5$ rows, to the tile's first row, 24" in words(axes)
    arrows = [patch._posA_posB for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert [(start[0], end[0]) for start, end in arrows] == [(0, 29), (29, -4), (-4, 24)]
    (bound,) = (line for line in axes.lines if line.get_gid() == "bound")
    assert set(bound.get_xdata()) == {29}


def test_whole_units_round_the_start_down_and_leave_out_what_is_not_the_group_s():
    (axes,) = packed.whole_units(SIZES, unit=4, group=1, block=8).axes
    assert [box[0] for box in boxes(axes, "left out")] == [8, 9]
    assert [box[0] for box in boxes(axes, "stored")] == [10, 11, 12, 13, 14, 15]
    assert "a tile of group 1\nstarts at 8" in words(axes)
    assert "group 1 starts at 10" in words(axes)
    (axes,) = packed.whole_units(SIZES, unit=1, group=1, block=8, what="a block").axes
    assert "a block of group 1\nstarts at 10" in words(axes)
    assert "group 1 starts at 10" not in words(axes)  # the block says so
