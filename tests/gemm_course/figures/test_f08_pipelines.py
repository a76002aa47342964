"""Loops are read from PTX in the order in which they run; the model of a pipeline obeys its own rules."""

from __future__ import annotations

import itertools

import pytest

from course_kernels.codegen import ptx
from drawn import texts
from gemm_course.figures import f08_pipelines as pipelines
from gemm_course.lessons import l08_pipeline

COPY = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];"
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r448,%r449}, %rd160, %rd161, %p51, 1, 1;"
STORE = "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%rd1, {%r1}], [%r5];"


def ptx(*lines):
    return "\n".join(line if line.startswith("$") else f"    {line}" for line in lines)


NESTED = ptx(
    "bra.uni $L__BB0_2;",
    "$L__BB0_1:", STORE, "@%p1 bra $L__BB0_9;",  # entered in its middle: the store comes last
    "$L__BB0_2:", COPY, COPY,
    "$L__BB0_3:", MULTIPLY, MULTIPLY, COPY, "@%p2 bra $L__BB0_3;",
    "bra.uni $L__BB0_1;",
    "$L__BB0_9:", "ret;",
)  # fmt: skip
FUSED = ptx(
    "$L__BB0_7:", STORE, "@%p9 bra $L__BB0_7;",  # K = 0
    COPY, COPY,
    "$L__BB0_1:", MULTIPLY, COPY, "@%p1 bra $L__BB0_2;", STORE,
    "$L__BB0_2:", "@%p2 bra $L__BB0_1;",
    STORE, "ret;",
)  # fmt: skip


def runs(text):
    return [(run.kind, run.count) for run in ptx.loops(text)[0]]


def test_nested_loops_run_copies_first_and_the_store_last():
    assert runs(NESTED) == [("copy", 2), ("multiply", 2), ("copy", 1), ("store", 1)]
    assert len(ptx.loops(NESTED)[1]) == 2


def test_fused_loop_has_its_first_copies_in_front_and_no_special_cases():
    assert runs(FUSED) == [("copy", 2), ("multiply", 1), ("copy", 1), ("store", 1)]
    ((start, end),) = ptx.loops(FUSED)[1]
    first, *others = ptx.loops(FUSED)[0]
    assert first.last < start
    assert all(start < run.first <= run.last < end for run in others)


def test_loops_without_a_product_are_an_error():
    with pytest.raises(ValueError, match="loop with a multiplication"):
        ptx.loops(ptx("$L__BB0_1:", COPY, "bra.uni $L__BB0_1;"))


def test_instructions_are_counted_without_labels_and_directives():
    text = ptx("$L__BB0_1:", ".loc 1 2 3", ".reg .b32 %r<4>;", "add.s32 %r1, %r2, 1;", "@%p1 bra $L__BB0_1;", "ret;")
    assert ptx.count_instructions(text) == 3


def test_the_round_robin_walk_of_a_real_kernel_is_nested(compiled):
    found, loops = ptx.loops(compiled[1].ptx)
    assert len(loops) >= 2
    assert {"copy", "multiply"} <= {run.kind for run in found}


def test_structure_draws_brackets_around_what_is_in_a_loop():
    nested, fused = pipelines.structure({"nested": NESTED, "fused": FUSED}).axes
    assert texts(nested) == ["2 copies", "2 multiplies", "1 copy", "1 store", "loop over tiles", "loop over K"]
    assert texts(fused) == ["2 copies", "1 multiply", "1 copy", "1 store", "one loop over tiles and K"]
    brackets = [(line.get_xdata()[0], line.get_xdata()[-1]) for line in (*nested.lines, *fused.lines)]
    assert brackets == [pytest.approx(b) for b in [(0.03, 3.97), (1.03, 2.97), (1.03, 3.97)]]


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


def test_overlap_draws_every_span_and_says_when_it_ends():
    spans = {name: l08_pipeline.pipeline(2, 3, fused=name == "fused") for name in ("nested", "fused")}
    for axes, (name, own) in zip(pipelines.overlap(spans).axes, spans.items()):
        assert len(axes.patches) == len(own)
        assert axes.get_title(loc="left") == f"{name}: done after {max(span.end for span in own):g}"
        copies = [patch.get_bbox() for patch in axes.patches if patch.get_gid() == "copy"]
        assert not any(one.overlaps(two) and one.y0 == two.y0 and one.x0 < two.x1 - 1e-6 and two.x0 < one.x1 - 1e-6
                       for i, one in enumerate(copies) for two in copies[:i])  # fmt: skip
