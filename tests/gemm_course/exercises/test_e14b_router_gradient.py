"""Exercise 14b, the router's gradient: the tests of any exercise, and answers of one number."""

from __future__ import annotations

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import source_of
from exercise_diagnoses import test_no_mutant_passes_by_luck  # noqa: F401 (stricter than the one above)


@pytest.mark.parametrize("constant", ["0.0", "7.0", "600000.0"])
def test_a_constant_in_place_of_a_gradient_earns_nothing(judge, exercise, constant):
    source = source_of("solutions", exercise).replace("place % k, acc,", f"place % k, acc * 0 + {constant},")
    assert constant in source
    assert judge.check(exercise, source, 0, compiling=False).points == 0
