"""The picture of a failed check: tiles in their colours, and what was written around a matrix where it was written."""

from __future__ import annotations

import pytest
import torch
from matplotlib.colors import to_hex

from course_kernels import testing
from gemm_course.figures.style import ORANGE, SKY, WRONG
from gemm_course.judging import feedback as diagnose
from gemm_course.judging import picture
from gemm_course.judging.case import Written
from gemm_course.runner import probes

BLOCK = 4


def written(shape, spilled=(), probed=False):
    """A right matrix of ones, and stores to (row, column) around it: carried out, or stopped and counted by a probe."""
    view, _ = testing.poisoned(shape, torch.float32, probes.MARGIN)
    buffer = torch.empty(0).set_(view.untyped_storage())
    counts = torch.zeros(len(buffer), dtype=torch.int32)
    down, across = view.stride()
    for row, col in spilled:
        place = view.storage_offset() + row * down + col * across
        if probed:
            counts[place] += 1
        else:
            buffer[place] = 1.0
    view.fill_(1.0)
    return Written(
        {"name": "C", "buffer": buffer, "shape": list(shape), "strides": [down, across], "counts": counts,
         "offset": view.storage_offset(), "writers": torch.full_like(counts, -1)}
    )  # fmt: skip


def panel(shape, spilled=(), probed=False, want=1.0):
    return diagnose.panel(
        written(shape, spilled, probed), torch.full(shape, want), (BLOCK, BLOCK), "your C", reach=BLOCK
    )


def block(rows, cols):
    return [(row, col) for row in rows for col in cols]


def boxes(axes, color):
    """(x, y, width, height) of the filled rectangles of a colour."""
    found = [patch for patch in axes.patches if patch.get_fill() and to_hex(patch.get_facecolor()) == color.lower()]
    return [(*patch.get_xy(), patch.get_width(), patch.get_height()) for patch in found]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


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
    assert found["states"] == [[diagnose.RIGHT] * 2] * 2


def test_it_is_left_out_where_nobody_asks_for_it():
    found = diagnose.panel(written((6, 7), [(6, 0)]), torch.ones(6, 7), (BLOCK, BLOCK))
    assert "outside" not in found


def test_the_picture_shows_it_at_its_place():
    axes = picture.tiles([panel((6, 7), block(range(6), [7]) + [(-2, 0)])]).axes[0]
    assert set(boxes(axes, WRONG)) == {(7, 0, 1, 6), (0, -2, 1, 1)}
    assert legend(axes) == ["right", "written outside of it"]
    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert low <= 0
    assert high >= 8
    assert top < -2
    assert bottom >= 6


def test_without_it_a_picture_has_tiles_only():
    axes = picture.tiles([panel((6, 7))]).axes[0]
    assert legend(axes) == ["right"]
    assert boxes(axes, WRONG) == []
    assert boxes(axes, SKY) == [(0, 0, 4, 4), (4, 0, 3, 4), (0, 4, 4, 2), (4, 4, 3, 2)]


def test_panels_do_not_cover_each_other():
    left, right = panel((4, 4), block(range(4), [4, 5])), panel((4, 4), block(range(4), [-3, -2, -1]), want=2.0)
    axes = picture.tiles([left, right]).axes[0]
    (first, second), (wrong,) = sorted(boxes(axes, WRONG)), boxes(axes, ORANGE)
    assert first == (4, 0, 2, 4)
    assert second[0] > 6
    assert wrong[0] == second[0] + 3
    assert legend(axes) == ["right", "wrong", "written outside of it"]
