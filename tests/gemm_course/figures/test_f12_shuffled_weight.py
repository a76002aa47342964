"""The figure of a shuffled weight: lanes, where they load, and the pieces of memory."""

from __future__ import annotations

import pytest
import torch

from course_kernels import unshuffle_weight
from drawn import rectangles, texts
from gemm_course.figures import f12_shuffled_weight as shuffled
from gemm_course.lessons import l12_decoding


def order_of(lines, columns):
    number = (torch.arange(lines * columns) // 8).half().view(lines, columns)
    return unshuffle_weight(number)[:, ::8].flatten().argsort().tolist()


def places(axes, gid):
    """(x, y) of each lane's cell."""
    return [rectangles(axes, f"{gid} {lane}")[0].get_xy() for lane in range(64)]


def test_pieces_are_runs_of_neighbours():
    assert l12_decoding.pieces([7, 0, 1, 2, 5, 8]) == [3, 1, 2]
    assert l12_decoding.pieces([4]) == [1]


def test_a_load_takes_one_piece_of_shuffled_memory_and_sixteen_of_plain():
    matrix, memory = shuffled.lanes_of_a_load(order_of(32, 64), lines=32).axes
    assert places(matrix, "matrix") == [(lane // 16, lane % 16) for lane in range(64)]
    assert "plain memory: one load takes 16 pieces of 64 bytes" in texts(memory)
    assert "shuffled memory: one load takes 1 piece of 1024 bytes" in texts(memory)
    assert places(memory, "plain")[:3] == [(0, 0), (8, 0), (0, 1)], "rows of 8 pieces, two in a row of the picture"
    x, y = zip(*places(memory, "shuffled"))
    assert list(x) == [lane % 16 for lane in range(64)]
    assert [row - y[0] for row in y] == [lane // 16 for lane in range(64)]
    assert len(rectangles(memory, "plain")) == len(rectangles(memory, "shuffled")) == 256 - 64


def test_an_order_must_be_one():
    with pytest.raises(ValueError, match="order must be a permutation of at least 64 places in 8 lines"):
        shuffled.lanes_of_a_load([0] * 128, lines=8)
    with pytest.raises(ValueError, match="permutation"):
        shuffled.lanes_of_a_load(list(range(32)), lines=8)
