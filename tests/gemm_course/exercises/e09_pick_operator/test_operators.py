"""Exercise 09's descriptions of operators are the catalogue's, and its rule counts right."""

from __future__ import annotations

import pytest
import torch

from gemm_course.exercises.e09_pick_operator import operators as operators


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
