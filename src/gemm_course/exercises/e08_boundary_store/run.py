"""Exercise 08: the store of every tile of a packed C."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

BLOCK_M, BLOCK_N, DEPTH = 16, 32, 16


@triton.jit
def boundary_store_kernel(
    a_ptr, b_ptr, c_ptr, offs_ptr, groups_ptr, tiles_m, total_m, N, lda, ldb, ldc,
    STORE_GROUP_TILE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """C[:, start:end] = B_g Aᵀ[:, start:end] for each group g in a table.

    A (total_m, DEPTH), B (G * N, DEPTH), C (N, total_m). One program a tile, and ``tiles_m`` tiles along every group:
    the host does not know which are full.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_column, j = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    i = tile_column % tiles_m
    g = tl.load(groups_ptr + tile_column // tiles_m)
    start = tl.load(offs_ptr + g - 1, mask=g > 0, other=0)
    end = tl.load(offs_ptr + g)
    depth = tl.arange(0, DEPTH)
    rows = start + i * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = j * BLOCK_N + tl.arange(0, BLOCK_N)
    a = tl.load(a_ptr + rows[:, None] * lda + depth[None, :], mask=rows[:, None] < total_m, other=0.0)
    b = tl.load(b_ptr + (g * N + cols)[:, None] * ldb + depth[None, :], mask=cols[:, None] < N, other=0.0)
    STORE_GROUP_TILE(c_ptr, tl.dot(b, a.T), start, end, total_m, i, j, N, ldc, BLOCK_M, BLOCK_N)


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns one launch over the case's groups, in order, with the answer inside."""
    n, groups = len(inputs["b"]) // len(inputs["ends"]), inputs["groups"]
    a, b = watch.matrix("A", inputs["a"]), watch.matrix("B", inputs["b"])
    c = watch.output("C", (n, len(a)), getattr(torch, inputs["dtype"]))
    offs, table = watch.group_tables(inputs["ends"], groups)
    tiles_m = triton.cdiv(inputs["capacity"], BLOCK_M)
    grid = (len(groups) * tiles_m * triton.cdiv(n, BLOCK_N),)
    numbers = tiles_m, len(a), n, a.stride(0), b.stride(0), c.stride(0)

    def call(answer) -> None:
        boundary_store_kernel[grid](a, b, c, offs, table, *numbers, answer, BLOCK_M, BLOCK_N, DEPTH)

    return call


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    types = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", "offs_ptr": "*i32", "groups_ptr": "*i32"}
    types |= dict.fromkeys(("tiles_m", "total_m", "N", "lda", "ldb", "ldc"), "i32")
    blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "DEPTH": DEPTH}
    yield boundary_store_kernel, types, {"STORE_GROUP_TILE": answer.store_group_tile, **blocks}
