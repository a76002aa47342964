"""The model of a pipeline obeys its own rules."""

from __future__ import annotations

import itertools

import pytest

from gemm_course.lessons import l08_pipeline


def by_unit(spans, unit):
    return [span for span in spans if span.unit == unit]


@pytest.mark.parametrize("fused", [False, True])
def test_pipeline_keeps_order_and_room(fused):
    spans = l08_pipeline.pipeline(3, 5, fused=fused, stages=2, copy=4, multiply=1, store=2)
    copies, products, stores = (by_unit(spans, unit) for unit in ("copy", "multiply", "store"))
    assert (len(copies), len(products), len(stores)) == (15, 15, 3)
    assert all(copy.end <= product.start for copy, product in zip(copies, products))
    assert all(copy.start >= product.end for copy, product in zip(copies[2:], products)), "two blocks fit"
    busy = sorted([*products, *stores], key=lambda span: span.start)
    assert all(one.end <= other.start for one, other in itertools.pairwise(busy)), "warps multiply or store"


def test_only_fused_copies_cross_a_store():
    for fused in (False, True):
        spans = l08_pipeline.pipeline(2, 4, fused=fused)
        first_store = by_unit(spans, "store")[0]
        early = [copy for copy in by_unit(spans, "copy") if copy.tile == 1 and copy.start < first_store.end]
        assert bool(early) == fused
    ends = [max(span.end for span in l08_pipeline.pipeline(4, 6, fused=fused)) for fused in (False, True)]
    assert ends == [4 * (2 + 6 + 3), 2 + 4 * (6 + 3)], "the copies' latency is paid per tile, or once"
