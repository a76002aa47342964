"""Exercise 06: one mistake gives one message, and luck earns nothing."""

from __future__ import annotations

import pytest

import mutants
from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import judged
from exercise_scores import judged_together
from gemm_course.exercises import manifest
from gemm_course.judging.results import REASON_ABOVE


@pytest.mark.parametrize(
    "name",
    [
        "coordinates_exchanged", "ends_after_its_size", "k_stands_still", "leading_dimension_of_the_other",
        "n_for_the_leading_dimension", "past_the_group", "whole_blocks_of_k",
    ],
)  # fmt: skip
def test_a_mistake_with_descriptors_is_explained_once_and_first(judge, name):
    (exercise,) = manifest.find("06")
    source = mutants.of(exercise.name)[name].source
    result = judged(judge, exercise, source)
    said = [message for message in (result.message, *(each.message for each in result.properties)) if message]
    follows = REASON_ABOVE, manifest.examiner(exercise).NOT_JUDGED
    first, *others = (message.splitlines()[0] for message in said)
    assert first not in follows
    assert set(others) <= set(follows), result.text()


@pytest.mark.parametrize(
    ("name", "points"), [("coordinates_exchanged", 0), ("pointer_moved", 8), ("pointer_of_c_moved_as_well", 8)]
)
def test_one_answer_earns_the_same_whatever_is_drawn(judge, name, points):
    """No draw has a matrix as narrow as a tile: there, exchanged coordinates are (0, 0), which is right by chance."""
    (exercise,) = manifest.find("06")
    source = mutants.of(exercise.name)[name].source
    assert {each.points for each in judged_together(judge, exercise, source, range(8))} == {points}


# The constant that is right now and then: what a sum of K products is on average.
@pytest.mark.parametrize("constant", ["0.0", "1.0", "7.0", "4.0 * K"])
@pytest.mark.parametrize(
    "where",
    ["[end, N], [ldc", "[total_m, N], [ldc", "[end, N], [N"],
    ids=["inside", "past the end", "in the wrong place"],
)
def test_a_constant_in_place_of_a_product_earns_nothing(judge, constant, where):
    (exercise,) = manifest.find("06")
    source = mutants.of(exercise.name)["past_the_group"].source
    source = source.replace("[total_m, N], [ldc", where).replace("acc.to(", f"(acc * 0 + {constant}).to(")
    assert where in source
    assert constant in source
    earned = [judged(judge, exercise, source, seed).points for seed in range(2)]
    assert earned == [0] * 2


def ends_with_the_group():
    """Mutants of exercise 06 whose descriptor of C does."""
    return [each for each in mutants.of("06_descriptor_kernel").values() if "(c_ptr, [end, N]" in each.source]


@pytest.mark.parametrize("source", [pytest.param(each.source, id=each.name) for each in ends_with_the_group()])
def test_who_also_writes_past_the_end_earns_no_more(judge, source):
    (exercise,) = manifest.find("06")
    worse = source.replace("(c_ptr, [end, N]", "(c_ptr, [total_m, N]")
    alone, both = (judged(judge, exercise, each).points for each in (source, worse))
    assert both <= alone
