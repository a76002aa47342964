"""Exercise 14a, the gathered load: the tests of any exercise, and answers of one number."""

from __future__ import annotations

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_checks import source_of
from exercise_diagnoses import test_no_mutant_passes_by_luck  # noqa: F401 (stricter than the one above)


@pytest.mark.parametrize("constant", ["0.0", "7.0", "30000.0"])
def test_a_constant_in_place_of_a_product_earns_nothing(judge, exercise, constant):
    source = source_of("solutions", exercise).replace(", acc, mask", f", acc * 0 + {constant}, mask")
    assert constant in source
    assert judge.check(exercise, source, 0, compiling=False).points == 0
