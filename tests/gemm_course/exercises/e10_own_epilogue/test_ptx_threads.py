"""Following PTX: a GPU's arithmetic, branches on which threads diverge, memory, and texts that are not kernels."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
import torch

from gemm_course.exercises.e10_own_epilogue import ptx_threads
from gemm_course.exercises.e10_own_epilogue.ptx_threads import CannotFollow, follow

SUMS = (np.random.default_rng(0).standard_normal((128, 16)) * 3).astype(np.float32)
REGISTERS = [f"%r{10 + i}" for i in range(8)]


def kernel(body: str, *, store: bool = True) -> str:
    """A kernel that leaves a thread's 8 sums in REGISTERS, and stores %o0 to %o3, pairs of 16-bit numbers."""
    stores = """
    mov.u32 %t, %tid.x;
    add.s32 %t, %t, -128;
    shr.u32 %g, %t, 5;
    shl.b32 %g, %g, 9;
    and.b32 %l, %t, 31;
    shr.u32 %row, %l, 2;
    shl.b32 %row, %row, 5;
    and.b32 %col, %l, 3;
    shl.b32 %col, %col, 2;
    add.s32 %at, %g, %row;
    add.s32 %at, %at, %col;
    mov.b32 %base, __dynamic_shmem__0;
    add.s32 %at, %at, %base;
    st.shared.b32 [%at+64], %o0;
    st.shared.b32 [%at+320], %o1;
    st.shared.b32 [%at+80], %o2;
    st.shared.b32 [%at+336], %o3;
    """
    return f"""
.visible .entry kernel(
    .param .b32 a
)
{{
    .reg .b32 %r<99>;
    wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{{", ".join(REGISTERS)}}}, %rd1, %rd2, p, 1, 1, 0, 0;
    wgmma.wait_group.sync.aligned 0;
    {body}
    {stores if store else ""}
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd17, {{%r7, %r6}}], [__dynamic_shmem__0+64], %rd18;
    ret;
}}
"""


def pairs(names: list[str]) -> str:
    return "\n".join(f"cvt.rn.bf16x2.f32 %o{i}, {names[2 * i + 1]}, {names[2 * i]};" for i in range(4))


def each(*lines: str) -> str:
    """Lines for every sum: {x} is its register, {y} that of the result."""
    return "".join(line.format(x=x, y=f"%y{i}") + "\n" for i, x in enumerate(REGISTERS) for line in lines)


def tile(text: str) -> torch.Tensor:
    return torch.from_numpy(follow(text, SUMS).bits.view(np.int16)).view(torch.bfloat16).float()


def test_sums_are_rounded_to_nearest():
    want = torch.from_numpy(SUMS).bfloat16().float()
    assert torch.equal(tile(kernel(pairs(REGISTERS))), want)


Y = pairs([f"%y{i}" for i in range(8)])
X = torch.from_numpy(SUMS).double()


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        (["mul.f32 {y}, {x}, 0fBF000000;"], X * -0.5),
        (["fma.rn.f32 {y}, {x}, {x}, 0f3F800000;"], X * X + 1),
        (["ex2.approx.ftz.f32 {y}, {x};"], X.exp2()),
        (["mul.f32 {y}, {x}, {x};", "sqrt.rn.f32 {y}, {y};"], X.abs()),
        (["rcp.approx.ftz.f32 {y}, {x};", "neg.f32 {y}, {y};"], -1 / X),
        (["setp.gt.f32 %p, {x}, 0f00000000;", "selp.f32 {y}, {x}, 0f00000000, %p;"], X.relu()),
        (["max.f32 {y}, {x}, 0f00000000;"], X.relu()),
        (["cvt.rn.bf16.f32 %h, {x};", "shl.b32 {y}, %h, 16;"], X.bfloat16()),
        (["cvt.rn.bf16.f32 %h, {x};", "add.rn.bf16 %h, %h, %h;", "cvt.f32.bf16 {y}, %h;"], 2 * X.bfloat16()),
        (["cvt.sat.f32.f32 {y}, {x};"], X.clamp(0, 1)),
        (["mov.b32 %z, 0f80000000;", "copysign.f32 {y}, %z, {x};"], -X.abs()),
        (["cvt.rzi.s32.f32 %i, {x};", "cvt.rn.f32.s32 {y}, %i;"], X.trunc()),
        (["mov.b32 {y}, {x};", "@%none mov.b32 {y}, 0f00000000;"], X),
        (["st.local.b32 [%SPL+8], {x};", "ld.local.b32 {y}, [%SPL+8];"], X),
        (["mov.b64 %rd5, {{{x}, {x}}};", "mov.b64 {{%q, {y}}}, %rd5;"], X),
    ],
)
def test_arithmetic_gives_the_bits_of_a_gpu(lines, want):
    want = want.float().bfloat16().float()
    assert torch.equal(tile(kernel(each(*lines) + Y)), want)


def test_rounding_down_stays_below():
    got = tile(kernel(each("fma.rm.f32 {y}, {x}, 0f3F800000, 0f4B400001;", "add.f32 {y}, {y}, 0fCB400001;") + Y))
    assert torch.equal(got, X.floor().float())


def test_diverged_threads_reconverge():
    body = """
    mov.u32 %me, %tid.x;
    setp.lt.u32 %p1, %me, 256;
    @%p1 bra $L1;
    """ + each("neg.f32 {x}, {x};") + "\n$L1:\n" + pairs(REGISTERS)  # fmt: skip
    want = torch.from_numpy(SUMS).bfloat16().float()
    want[64:] *= -1
    assert torch.equal(tile(kernel(body)), want)


def test_a_loop_ends_when_its_condition_says_so():
    body = f"""
    mov.b32 %i, 0;
$L2:
    {each("add.f32 {x}, {x}, {x};")}
    add.s32 %i, %i, 1;
    setp.ne.b32 %p1, %i, 3;
    @%p1 bra $L2;
    """
    assert torch.equal(tile(kernel(body + pairs(REGISTERS))), 8 * torch.from_numpy(SUMS).bfloat16().float())


def test_it_says_whether_local_memory_is_used_and_what_was_stored():
    found = follow(kernel("", store=False), SUMS)
    assert not found.local
    assert not found.stored.any()
    found = follow(kernel(each("st.local.b32 [%SPL], {x};") + pairs(REGISTERS)), SUMS)
    assert found.local
    assert found.stored.all()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no kernel"),
        ("x" * (ptx_threads.MAX_CHARACTERS + 1), "characters"),
        (kernel("call.uni foo;"), "call is not known"),
        (kernel("ld.global.b32 %y, [%rd1];"), "ld.global is not known"),
        (kernel("$L: bra $L;"), "too many steps"),
        (kernel("st.local.b32 [%SPL+99999], %r10;"), "out of bounds"),
        (kernel("mul.hi.u32 %y, %r10, %r10;"), "mul.hi"),
        (kernel("").replace("cp.async.bulk.tensor.2d.global", "fence."), "no tile is copied"),
        (kernel("").replace("%r16, %r17}", "%r16}"), "7 sums for a thread, not 8"),
        (kernel("bra $nowhere;"), "nowhere"),
        (kernel("add.u32 %y, %r10;"), "argument"),
        (kernel("add.u99999999999 %y, %r10, %r10;"), "u99999999999 is not known"),
        (kernel("st.shared.b999999 [%r10], %r11;"), "too many steps"),
    ],
)
def test_an_error_names_an_unknown_instruction(text, says):
    with pytest.raises(CannotFollow, match=says):
        follow(text, SUMS)


MANY = ptx_threads.MAX_CHARACTERS - 4000


@pytest.mark.parametrize(
    "body",
    [
        "mov.b32 %y, " + "{" * MANY,
        "mov.b32 %y, " + "[{" * (MANY // 2),
        "a:\n" * (MANY // 3) + "bra a;",
        "$L:\nbra" + ".a" * (MANY // 2) + " $L;",
        "$L:\n@" + "p" * MANY + " ret;\nbra $L;",
        "$L:\nst.shared.b64 [1024], {1,1,1,1,1,1,1,1};\nbra $L;",
    ],
    ids=["braces", "brackets", "places", "operation", "guard", "stores"],
)
def test_no_text_takes_long(body):
    """Without its limit, each takes time in the square of the text's length, or many long steps that count as one."""
    started = time.process_time()
    with contextlib.suppress(CannotFollow):
        follow(kernel(body), SUMS)
    assert time.process_time() - started < 4
