"""Reading PTX: the loop over K, the purposes of instructions, descriptor fields, columns."""

from __future__ import annotations

import pytest

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


def test_columns_keep_every_word_and_line_up():
    left, right = "    add.s32   %r1, %r2;\n    a long line that does not fit into its column;", "one;"
    rows = ptx.side_by_side(left, right, ("left", "right"), width=20).splitlines()
    assert rows[0] == f"{'left':<22}right"
    assert rows[2] == f"{'add.s32 %r1, %r2':<22}one"
    assert " ".join(" ".join(rows[3:]).split()) == "a long line that does not fit into its column"
    assert all(len(row) <= 42 for row in rows)


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
