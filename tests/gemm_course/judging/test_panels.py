"""Pictures as data: tiles in three states, stores around a matrix, tables and lists."""

from __future__ import annotations

import pytest
import torch

from gemm_course.judging import panels, picture
from gemm_course.judging.panels import MISSING, RIGHT, WRONG
from outputs import block, written

BLOCK = 4


def panel(shape, spilled=(), probed=False, want=1.0):
    return panels.panel(written(shape, spilled, probed), torch.full(shape, want), (BLOCK, BLOCK), "your C", reach=BLOCK)


@pytest.mark.parametrize("probed", [False, True], ids=["carried out", "stopped by a probe"])
@pytest.mark.parametrize(
    ("spilled", "rectangles"),
    [
        ([], []),
        (block(range(6), range(7, 8)), [[0, 7, 6, 1]]),
        (block(range(6, 8), range(7)), [[6, 0, 2, 7]]),
        (block([6], [0, 1, 4]), [[6, 0, 1, 2], [6, 4, 1, 1]]),
        (block([6], [0, 1]) + block([7], [0]), [[6, 0, 1, 2], [7, 0, 1, 1]]),
        (block([-1, 6], [3]), [[-1, 3, 1, 1], [6, 3, 1, 1]]),
        (block(range(-4, 10), range(-4, 0)), [[-4, -4, 14, 4]]),
    ],
)
def test_what_was_written_around_a_matrix_is_in_its_panel(probed, spilled, rectangles):
    found = panel((6, 7), spilled, probed)
    assert found["outside"] == rectangles
    assert found["states"] == [[RIGHT] * 2] * 2


def test_it_is_left_out_where_nobody_asks_for_it():
    found = panels.panel(written((6, 7), [(6, 0)]), torch.ones(6, 7), (BLOCK, BLOCK))
    assert "outside" not in found


def test_a_list_is_drawn_entry_by_entry():
    short = panels.row_panel([1, 5], [1, 2, 3], "ends")
    assert (short["states"], short["labels"]) == ([[RIGHT, WRONG, MISSING]], [["1", "5", "–"]])
    assert (short["title"], short["shape"], short["block"]) == ("ends", [1, 3], [1, 1])
    assert panels.row_panel([1, 2], [1], "ends")["states"] == [[RIGHT, WRONG]]


def test_a_panel_has_a_cell_for_each_state():
    states = [[RIGHT, WRONG, MISSING], [RIGHT, RIGHT, WRONG]]
    panel = panels.table_panel("ends", states, height=2)
    assert panel == {"title": "ends", "shape": [4, 3], "block": [2, 1], "states": states}
    labelled = panels.table_panel("ends", [[RIGHT, WRONG]], [["7", "x"]])
    assert (labelled["shape"], labelled["labels"]) == ([1, 2], [["7", "x"]])
    (axes,) = picture.tiles([panel, labelled]).axes
    assert len([patch for patch in axes.patches if patch.get_fill()]) == 8
    assert {"7", "x"} <= {text.get_text() for text in axes.texts}
