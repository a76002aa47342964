"""Exercise 11a, a tile of the weight gradient: the tests of any exercise, and answers of one number."""

from __future__ import annotations

import random

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import source_of
from exercise_diagnoses import test_no_mutant_passes_by_luck  # noqa: F401 (stricter than the one above)


@pytest.mark.parametrize("constant", ["0.0", "7.0", "16000.0"])
def test_a_constant_in_place_of_a_gradient_earns_nothing(judge, exercise, constant):
    source = source_of("solutions", exercise).replace("acc.to(", f"(acc * 0 + {constant}).to(")
    assert constant in source
    assert judge.check(exercise, source, 0, compiling=False).points == 0


def test_every_draw_has_all_kinds_of_groups(exercise):
    for seed in range(50):
        full, ragged, empty = exercise.module().draw(random.Random(seed))
        ends = ragged.inputs["ends"]
        sizes = [end - start for start, end in zip([0, *ends], ends)]
        assert sizes[0] == sizes[-1] == 0 in sizes[1:-1]
        assert {1, 32} <= set(sizes)
        assert any(size % 16 > 1 and size > 32 for size in sizes)
        assert 0 not in full.inputs["ends"]
        assert set(empty.inputs["ends"]) == {0}
        for case in (full, ragged, empty):
            behind = case.inputs["b"][case.inputs["ends"][-1] :]
            assert len(behind) >= 16
            assert behind.isnan().all()
