"""Neighbouring places are one piece."""

from __future__ import annotations

from gemm_course.lessons import l12_decoding


def test_pieces_are_runs_of_neighbours():
    assert l12_decoding.pieces([7, 0, 1, 2, 5, 8]) == [3, 1, 2]
    assert l12_decoding.pieces([4]) == [1]
