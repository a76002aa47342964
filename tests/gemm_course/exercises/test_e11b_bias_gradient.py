"""Exercise 11b, the bias gradient: the tests of any exercise, and answers of one number."""

from __future__ import annotations

import random

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import source_of
from exercise_diagnoses import test_no_mutant_passes_by_luck  # noqa: F401 (stricter than the one above)


@pytest.mark.parametrize("constant", ["0.0", "7.0", "3000.0"])
def test_a_constant_in_place_of_a_sum_earns_nothing(judge, exercise, constant):
    source = source_of("solutions", exercise).replace("cols, acc,", f"cols, acc * 0 + {constant},")
    assert constant in source
    assert judge.check(exercise, source, 0, compiling=False).points == 0


def test_one_dimension_of_programs_is_as_good(judge, exercise):
    source = source_of("solutions", exercise)
    for old, new in (
        ("g = tl.program_id(0)", "blocks = tl.cdiv(N, BLOCK_N)\n    g = tl.program_id(0) // blocks"),
        ("tl.program_id(1) * BLOCK_N", "tl.program_id(0) % blocks * BLOCK_N"),
        ("(len(ends), triton.cdiv(N, BLOCK_N))", "(len(ends) * triton.cdiv(N, BLOCK_N),)"),
    ):
        assert old in source
        source = source.replace(old, new)
    result = judge.check(exercise, source, 0, compiling=False)
    assert result.passed, result.text()


def test_sums_of_a_block_do_not_fit_into_float16(exercise):
    for seed in range(20):
        for case in exercise.module().draw(random.Random(seed))[:2]:
            (start, end) = max(zip([0, *case.inputs["ends"]], case.inputs["ends"]), key=lambda each: each[1] - each[0])
            sums = case.inputs["grad"][start:end].double().sum(0)
            assert (sums.half().double() != sums).any()
