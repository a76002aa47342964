"""Exercise 09, the choice of an operator: the tests of any exercise, and it needs no CUTLASS."""

from __future__ import annotations

import pytest

import forked
from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_scores import earned


@pytest.mark.parametrize(
    "name", ["k_taken_for_n", "one_cta_for_a_pair", "tiles_for_clusters", "wrong_dtype", "wrong_target"]
)
def test_a_mistake_earns_the_same_whatever_is_drawn(judge, exercise, name):
    assert len(earned(judge, exercise, name, range(10))) == 1


def test_the_exercise_needs_no_cutlass():
    code = (
        "import sys; sys.modules['cutlass'] = None\n"
        "import random\n"
        "from gemm_course.exercises.e09_pick_operator import examine\n"
        "from gemm_course.figures import f09_clusters as operators\n"
        "print(len(examine.draw(random.Random(0))))"
    )
    ran = forked.run(code)
    assert ran.stdout.strip() == "7", ran.stderr
