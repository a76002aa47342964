"""Exercise 09: every draw tells likely mistakes apart, and it needs no CUTLASS."""

from __future__ import annotations

import random

import pytest

import forked
from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_scores import earned
from gemm_course.exercises import e09_pick_operator as picking
from gemm_course.exercises import operators_09 as operators


@pytest.mark.parametrize("seed", range(40))
def test_every_draw_tells_the_mistakes_apart(seed):
    cases = picking.draw(random.Random(seed))
    for case, names in zip(cases, [*picking.IN_ORDER, picking.EQUAL]):
        catalogue, dtype = picking.from_plain(case.inputs["catalogue"]), case.inputs["mat_a"].dtype
        fitting = [each for each in catalogue if case.inputs["target"] in each.targets and each.dtype == dtype]
        sizes, columns = case.inputs["sizes"], case.inputs["mat_b"].shape[2]
        right = operators.best(fitting, sizes, columns)
        picks = [min(fitting, key=lambda each: operators.MISTAKES[name][0](each, sizes, columns)) for name in names]
        assert len(set(picks)) == len(names)
        assert not set(picks) & set(right)
        assert len({(each.b_stride, each.divisibility, each.offsets) for each in fitting}) == 1


@pytest.mark.parametrize(
    "name", ["k_taken_for_n", "one_cta_for_a_pair", "tiles_for_clusters", "wrong_dtype", "wrong_target"]
)
def test_a_mistake_earns_the_same_whatever_is_drawn(judge, exercise, name):
    assert len(earned(judge, exercise, name, range(10))) == 1


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
