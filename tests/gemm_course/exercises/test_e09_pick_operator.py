"""Exercise 09: its descriptions are the catalogue's, its rule counts right, and neither needs CUTLASS."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from gemm_course.exercises import e09_pick_operator as exercise
from gemm_course.exercises import operators_09 as operators


def test_blackwell_is_what_nvidias_catalogue_has():
    pytest.importorskip("cutlass.operators")
    from course_kernels import cutlass_ops

    a = torch.empty(512, 64, dtype=torch.bfloat16, device="meta")
    b = torch.empty(2, 128, 64, dtype=torch.bfloat16, device="meta").mT
    args = cutlass_ops.arguments(a, b, offs=torch.empty(2, dtype=torch.int32, device="meta"))
    found = cutlass_ops.discover(args, "100f")
    wants = found[0].metadata.operands
    real = {(each.targets, each.tile, each.cluster, each.ctas, each.stages) for each in found.designs}
    told = {(each.targets, each.tile, each.cluster, each.ctas, each.stages) for each in operators.BLACKWELL}
    assert told == real
    assert len(operators.BLACKWELL) == len(found)
    assert {each.b_stride for each in operators.BLACKWELL} == {tuple(wants.B.stride)}
    assert {each.divisibility for each in operators.BLACKWELL} == {wants.A.divisibility}


@pytest.mark.parametrize(
    "each", [*operators.HOPPER, *operators.BLACKWELL], ids=lambda each: f"{each.tile}-{each.cluster}"
)
def test_what_is_computed_is_what_the_ctas_of_its_clusters_cover(each):
    sizes, columns = [200, 0, 64, 1, 700], 450
    per_cta = each.tile[0] // each.ctas, each.tile[1]
    rows = 0
    for size in sizes:
        start = 0
        while start < size:  # a cluster, with all of its CTAs
            start += sum(per_cta[0] for _ in range(each.cluster[0]))
        rows += start
    across = 0
    while across < columns:
        across += sum(per_cta[1] for _ in range(each.cluster[1]))
    assert operators.computed(each, sizes, columns) == (rows, across)


def test_of_operators_that_compute_the_same_the_best_fetches_least():
    square, flat = (
        operators.BLACKWELL[0]._replace(tile=tile, cluster=(1, 1), ctas=1) for tile in ((128, 128, 64), (64, 256, 64))
    )
    assert operators.best([flat, square], [256, 128], 512) == [square]
    assert operators.best([flat, square], [256, 64], 512) == [flat]
    assert operators.best([square, square], [256], 512) == [square, square]


@pytest.mark.parametrize("seed", range(100))
def test_every_draw_tells_the_mistakes_apart(seed):
    cases = exercise.draw(random.Random(seed))
    for case, names in zip(cases, [*exercise.IN_ORDER, exercise.EQUAL]):
        catalogue, dtype = exercise.from_plain(case.inputs["catalogue"]), case.inputs["mat_a"].dtype
        fitting = [each for each in catalogue if case.inputs["target"] in each.targets and each.dtype == dtype]
        sizes, columns = case.inputs["sizes"], case.inputs["mat_b"].shape[2]
        right = operators.best(fitting, sizes, columns)
        picks = [min(fitting, key=lambda each: operators.MISTAKES[name][0](each, sizes, columns)) for name in names]
        assert len(set(picks)) == len(names)
        assert not set(picks) & set(right)
        assert len({(each.b_stride, each.divisibility, each.offsets) for each in fitting}) == 1


def test_the_exercise_needs_no_cutlass():
    code = (
        "import sys; sys.modules['cutlass'] = None\n"
        "import random\n"
        "from gemm_course.exercises import e09_pick_operator\n"
        "from gemm_course.figures import operators\n"
        "print(len(e09_pick_operator.draw(random.Random(0))))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "7", ran.stderr
