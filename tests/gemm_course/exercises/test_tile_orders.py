"""Strips of tile rows, and tiles that are all computed, but out of turn."""

from __future__ import annotations

import pytest

from gemm_course.exercises.tile_orders import about_turns, difference, in_strip, pictures
from gemm_course.judging import panels


def test_strips_are_walked_column_by_column_and_the_last_one_may_be_lower():
    found = [in_strip(own, rows=5, cols=2, height=3) for own in range(10)]
    assert found == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (4, 0), (3, 1), (4, 1)]


RIGHT = [[(0, 0, 0), (1, 0, 0)], [(0, 1, 0), (1, 1, 0)]]


@pytest.mark.parametrize(
    ("got", "told"),
    [
        ([[(0, 1, 0), (1, 0, 0)], [(0, 0, 0), (1, 1, 0)]],
         ("place", "every turn goes to the right group, but a group's tiles are in another order")),
        ([[(2, 0, 0)], [(0, 0, 0), (1, 0, 0)], [(0, 1, 0), (1, 1, 0)]],
         ("turn", "worker 0 computes the tiles of worker 2")),
        ([[(1, 0, 0), (0, 0, 0)], [(0, 1, 0), (1, 1, 0)]], None),
        ([[(0, 0, 0), (1, 0, 0)], [(0, 0, 0), (1, 1, 0)]], None),
    ],
    ids=["order in a group", "programs exchanged", "another group first", "one twice and one never"],
)  # fmt: skip
def test_what_is_out_of_turn(got, told):
    want = RIGHT if len(got) == 2 else [*RIGHT, [(2, 0, 0)]]
    assert about_turns(got, want, lambda tile: tile[0], "group", "worker") == told


@pytest.mark.parametrize(
    ("got", "says"),
    [
        ([[(0, 0, 0)], [(0, 1, 0)]], ""),
        ([[(0, 0, 0)], []], "p 1 of 2 never computes (0, 1, 0), although it is its turn"),
        ([[(0, 1, 0)], [(0, 1, 0)]], "p 0 of 2 computes (0, 1, 0) when it is the turn of (0, 0, 0)"),
        ([[(0, 0, 0)], [(0, 1, 0), (0, 0, 0)]], "p 1 of 2 computes (0, 0, 0) after its last turn"),
    ],
)
def test_the_first_tile_out_of_turn_is_named(got, says):
    assert difference(got, [[(0, 0, 0)], [(0, 1, 0)]], "p", str) == says


def test_a_picture_has_the_program_of_each_tile_and_counts_several():
    tiles = [(0, row, 0) for row in range(3)]
    got = [[tiles[0], (9, 9, 9)], [tiles[0], tiles[1]]]
    (panel,) = pictures([("a", [[tile] for tile in tiles]), ("b", [])], got, [tiles[:1], tiles[1:]], "p")
    assert panel["states"] == [[panels.WRONG], [panels.RIGHT], [panels.MISSING]]
    assert panel["labels"] == [["2×"], ["p1"], ["0×"]]
