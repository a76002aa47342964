"""Exercise 09, the choice of an operator: the tests of any exercise, and it needs no CUTLASS."""

from __future__ import annotations

import forked
from exercise_checks import *  # noqa: F403 (the tests of any exercise)


def test_the_exercise_needs_no_cutlass():
    code = (
        "import sys; sys.modules['cutlass'] = None\n"
        "import random\n"
        "from gemm_course.exercises import e09_pick_operator\n"
        "from gemm_course.figures import operators\n"
        "print(len(e09_pick_operator.draw(random.Random(0))))"
    )
    ran = forked.run(code)
    assert ran.stdout.strip() == "7", ran.stderr
