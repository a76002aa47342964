"""Exercise 05, tiles to programs by cost: the tests of any exercise, and a message that must not guess."""

from __future__ import annotations

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_scores import earned
from gemm_course.exercises.e05_better_schedule import examine
from gemm_course.judging.case import Case, Ran

VARIED = [
    "fills_up", "keeps_totals", "old_entries_left", "total_is_the_last_cost", "total_is_the_last_cost_as_listed",
    "no_tile_at_all", "loses_the_rest", "places_for_tiles", "shortest_first", "sorts_in_place", "to_and_fro",
    "sorted_by_number",
]  # fmt: skip


@pytest.mark.parametrize("name", VARIED)
def test_a_mistake_earns_the_same_whatever_is_drawn(judge, exercise, name):
    assert len(earned(judge, exercise, name, range(20), apart=name == "keeps_totals")) == 1


def test_a_long_tile_at_the_end_is_not_called_longest_first():
    # The first free program took each tile in the list's order; the costs of each program happen to be those of
    # longest first, dealt in turn.
    costs, schedule = [13, 14, 14, 14, 13, 13, 13, 10, 10, 43], [[0, 3, 6], [1, 4, 7, 9], [2, 5, 8]]
    case = Case({"costs": costs, "programs": 3}, ("last", "once", "same"))
    ran = Ran({"first": schedule, "after": costs, "second": schedule}, {}, [])
    (late,) = examine.examine(case, ran)
    assert late.check == "last"
    assert late.cause.endswith("the longest tile, tile 9, takes 43 µs and starts after 37 µs")
