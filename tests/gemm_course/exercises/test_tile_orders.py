"""Strips of tile rows, and tiles that are all computed, but out of turn."""

from __future__ import annotations

import pytest

from gemm_course.exercises.tile_orders import about_turns, in_strip


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
