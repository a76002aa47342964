"""Exercise 11b, the bias gradient: the tests of any exercise, and answers of one number."""

from __future__ import annotations

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
