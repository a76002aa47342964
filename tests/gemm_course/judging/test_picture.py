"""The picture of a failed check: tiles in their colours, and what was written around a matrix where it was written."""

from __future__ import annotations

import torch
from matplotlib.colors import to_hex

from gemm_course.figures.style import ORANGE, SKY, WRONG
from gemm_course.judging import panels, picture
from outputs import block, written

BLOCK = 4


def panel(shape, spilled=(), probed=False, want=1.0):
    return panels.panel(written(shape, spilled, probed), torch.full(shape, want), (BLOCK, BLOCK), "your C", reach=BLOCK)


def boxes(axes, color):
    """(x, y, width, height) of the filled rectangles of a colour."""
    found = [patch for patch in axes.patches if patch.get_fill() and to_hex(patch.get_facecolor()) == color.lower()]
    return [(*patch.get_xy(), patch.get_width(), patch.get_height()) for patch in found]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


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
