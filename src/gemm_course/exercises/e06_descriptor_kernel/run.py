"""Exercise 06: a packed product through descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

from course_kernels import runtime

BLOCK_M, BLOCK_N, BLOCK_K = 16, 32, 64  # all different: a swapped shape never fits by chance
UNIT = 8  # float16 elements in 16 bytes, the unit of a descriptor's rows


@triton.jit
def descriptor_kernel(
    a_ptr, b_ptrs, c_ptr, offs_ptr, groups_ptr, count, total_m, N, K, lda, ldb, ldc,
    MULTIPLY_GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """C[start:end] = A[start:end] Bᵀ for each of ``count`` groups, whose numbers and B's addresses are in tables.

    The walk is lesson 04's: it enters a group once, and MULTIPLY_GROUP computes the program's tiles there.
    """
    tile, passed = tl.program_id(0), 0
    for slot in range(count):
        g = tl.load(groups_ptr + slot)
        start = tl.load(offs_ptr + g - 1, mask=g > 0, other=0)
        end = tl.load(offs_ptr + g)
        here = passed + tl.cdiv(end - start, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        if tile < here:
            b_ptr = tl.load(b_ptrs + slot).to(tl.pointer_type(a_ptr.dtype.element_ty))
            MULTIPLY_GROUP(
                a_ptr, b_ptr, c_ptr, tile - passed, start, end, total_m, N, K, lda, ldb, ldc, BLOCK_M, BLOCK_N, BLOCK_K
            )
            tile += tl.cdiv(here - tile, tl.num_programs(0)) * tl.num_programs(0)
        passed = here


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns one launch over the case's groups, with the answer as its device function."""
    runtime.ensure_allocator()
    n, groups = len(inputs["b"]) // 4, inputs["groups"]
    # All leading dimensions differ: one in place of another gives a wrong result.
    a = watch.matrix("A", inputs["a"], room=2 * UNIT)
    b = [watch.matrix(f"B of group {g}", inputs["b"][g * n : (g + 1) * n], room=UNIT) for g in groups]
    c = watch.output("C", (len(a), n), torch.float16)
    watch.through_descriptors("A", "C", *(f"B of group {g}" for g in groups))
    addresses = watch.table("the table of B", torch.tensor([each.data_ptr() for each in b]))
    offs, table = watch.group_tables(inputs["ends"], groups)
    numbers = len(groups), len(a), n, a.shape[1], a.stride(0), b[0].stride(0), c.stride(0)

    def call(answer) -> None:
        descriptor_kernel[(inputs["programs"],)](
            a, addresses, c, offs, table, *numbers, answer, BLOCK_M, BLOCK_N, BLOCK_K
        )

    return call


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    types = {"a_ptr": "*fp16", "b_ptrs": "*i64", "c_ptr": "*fp16", "offs_ptr": "*i32", "groups_ptr": "*i32"}
    types |= dict.fromkeys(("count", "total_m", "N", "K", "lda", "ldb", "ldc"), "i32")
    blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K}
    yield descriptor_kernel, types, {"MULTIPLY_GROUP": answer.multiply_group, **blocks}
