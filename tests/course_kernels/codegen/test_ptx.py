"""Reading PTX: the loops over tiles and over K, the purposes of instructions, descriptor fields."""

from __future__ import annotations

import pytest

from course_kernels import GemmConfig, codegen
from course_kernels.codegen import ptx

# An outer loop around an inner one, as a grouped kernel has; the inner one multiplies.
TEXT = """
$L__BB0_1:                              // %outer
    .loc    1 10 0
    add.s32     %r1, %r1, 1;
$L__BB0_2:                              // %inner
    .reg .pred complete;
$L__tmp3:
    @%p3 cp.async.cg.shared.global [ %r4 + 0 ], [ %rd5 + 0 ], 0x10, %r6;
    cp.async.commit_group;
    bar.sync    0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r448,%r449}, %rd160, %rd161, %p51, 1, 1;
    selp.b32    %r9, 16, 0, %p63;
    add.s64     %rd1, %rd1, 64;
    @%p1 bra    $L__BB0_2;
    bra.uni     $L__BB0_4;
$L__BB0_4:
    @%p2 bra    $L__BB0_1;
    ret;
"""


def test_inner_loop_is_the_smallest_that_multiplies_without_labels_and_directives():
    loop = ptx.inner_loop(TEXT)
    assert [line.split()[0] for line in loop] == [
        "@%p3", "cp.async.commit_group;", "bar.sync", "wgmma.fence.sync.aligned;",
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", "selp.b32", "add.s64", "@%p1",
    ]  # fmt: skip


def test_a_text_without_such_a_loop_is_refused():
    with pytest.raises(ValueError, match="loop with a multiplication"):
        ptx.inner_loop(TEXT.replace("mma_async", "nothing"))


def test_purposes_of_a_loop():
    assert ptx.purposes(TEXT) == {"multiply": 1, "copy": 1, "wait": 3, "mask": 2, "address": 1}


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r2};", ptx.MULTIPLY),
        ("@%p1 tcgen05.mma.cta_group::1.kind::f16 [ %r1 + 0 ], %rd1, %rd2, %r3, %p2;", ptx.MULTIPLY),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%r1];", ptx.WAIT),
        ("@%p32 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1];", ptx.COPY),
        ("cp.async.bulk.wait_group.read 0;", ptx.WAIT),
        ("cp.async.wait_group 2;", ptx.WAIT),
        ("@!complete bra.uni waitLoop;", ptx.MASK),
        ("and.pred %p1, %p2, %p3;", ptx.MASK),
        ("elect.sync %r1|%p1, -1;", ptx.WAIT),
        ("ld.global.b32 %r1, [%rd1];", ptx.COPY),
        ("bfe.u32 %r1, %r2, 4, 14;", ptx.ADDRESS),
    ],
)
def test_purpose(instruction, expected):
    assert ptx.purpose(instruction) == expected


def test_purpose_refuses_what_is_no_instruction():
    with pytest.raises(ValueError, match="instruction must be one of PTX"):
        ptx.purpose("{")


def test_fields_are_those_of_the_first_descriptor_each_once():
    one = ["global_address", "rank", "box_dim", "box_dim", "fill_mode"]
    text = "\n".join(f"@%p1 tensormap.replace.tile.{name}.shared::cta.b1024.b32 [ %rd1 ], 0x1;" for name in one * 2)
    assert ptx.descriptor_fields(text) == ["global_address", "rank", "box_dim", "fill_mode"]
    assert ptx.descriptor_fields("add.s32 %r1, %r1, 1;") == []


@pytest.fixture(scope="module")
def compiled():
    """The round-robin kernel with pointers, and with descriptors."""
    config = GemmConfig(128, 128, 64, 4, 3)
    return codegen.compile_many([(codegen.build(name, config=config), "sm_90") for name in ("round_robin", "tma")])


def test_the_lesson_holds_for_the_real_kernels(compiled):
    """What lesson 06 says in words about both kernels, whatever Triton made of them."""
    pointers, descriptors = (ptx.purposes(one.ptx) for one in compiled)
    assert pointers["multiply"] == descriptors["multiply"] > 0
    assert descriptors["copy"] == 2, "one bulk copy for A, one for B"
    assert pointers["copy"] == 2 * 128 * 64 * 2 // (128 * 16), "16 bytes per thread and copy"
    assert descriptors["mask"] < pointers["mask"] / 2
    assert descriptors["address"] < pointers["address"]
    assert sum(descriptors.values()) < sum(pointers.values())
    assert compiled[1].registers < compiled[0].registers


def test_the_real_kernel_writes_the_fields_that_the_lesson_draws(compiled):
    fields = ptx.descriptor_fields(compiled[1].ptx)
    assert {"global_address", "global_dim", "global_stride", "box_dim", "elemtype", "swizzle_mode", "fill_mode"} <= set(
        fields
    )
    assert ptx.descriptor_fields(compiled[0].ptx) == []


# ---- loops over tiles and over K

COPY = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];"
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r448,%r449}, %rd160, %rd161, %p51, 1, 1;"
STORE = "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%rd1, {%r1}], [%r5];"


def text_of(*lines):
    return "\n".join(line if line.startswith("$") else f"    {line}" for line in lines)


NESTED = text_of(
    "bra.uni $L__BB0_2;",
    "$L__BB0_1:", STORE, "@%p1 bra $L__BB0_9;",  # entered in its middle: the store comes last
    "$L__BB0_2:", COPY, COPY,
    "$L__BB0_3:", MULTIPLY, MULTIPLY, COPY, "@%p2 bra $L__BB0_3;",
    "bra.uni $L__BB0_1;",
    "$L__BB0_9:", "ret;",
)  # fmt: skip
FUSED = text_of(
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
        ptx.loops(text_of("$L__BB0_1:", COPY, "bra.uni $L__BB0_1;"))


def test_instructions_are_counted_without_labels_and_directives():
    text = text_of(
        "$L__BB0_1:", ".loc 1 2 3", ".reg .b32 %r<4>;", "add.s32 %r1, %r2, 1;", "@%p1 bra $L__BB0_1;", "ret;"
    )
    assert ptx.count_instructions(text) == 3


def test_the_round_robin_walk_of_a_real_kernel_is_nested(compiled):
    found, loops = ptx.loops(compiled[1].ptx)
    assert len(loops) >= 2
    assert {"copy", "multiply"} <= {run.kind for run in found}
