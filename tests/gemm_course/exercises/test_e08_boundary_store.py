"""Exercise 08, stores of boundary tiles: the tests of any exercise."""

from __future__ import annotations

import re

import pytest

import mutants
from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import judged
from exercise_scores import earned

VARIED = ["rounded_to_bfloat16", "axes_swapped", "start_at_multiples_of_8", "start_forgotten", "start_rounded_down"]


@pytest.mark.parametrize("name", VARIED)
def test_a_mistake_earns_the_same_whatever_is_drawn(judge, exercise, name):
    assert len(earned(judge, exercise, name, range(5), apart=True)) == 1


@pytest.mark.parametrize(
    "name",
    [
        *VARIED[1:], "every_tile_at_the_start", "features_of_tile_i", "i_and_j_exchanged", "mask_by_size",
        "tile_number_forgotten",
    ],
)  # fmt: skip
def test_one_mistake_has_one_cause(judge, exercise, name):
    """It is the first thing that is said of each property that it breaks, and nothing else is suspected."""
    source = mutants.of(exercise.name)[name].source
    places = r"(\(|column|tile|line|    |Group \d+ has columns \d+ to \d+$|Group \d+ is empty)"
    for seed in range(2):
        result = judged(judge, exercise, source, seed)
        said = [each.message.splitlines() for each in result.properties if each.message]
        assert len({lines[0] for lines in said}) == 1, result.text()
        assert all(re.match(places, line) for lines in said for line in lines[1:]), result.text()
