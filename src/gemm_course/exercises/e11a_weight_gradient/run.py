"""Exercise 11a: a product that sums over the tokens of each group."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

BLOCK_K, BLOCK_N, BLOCK_M = 32, 64, 16  # rows, columns, tokens: all different, so that one for another shows


@triton.jit
def weight_gradient_kernel(
    a_ptr, b_ptr, c_ptr, ends_ptr, K, N, lda, ldb, ldc,
    GRADIENT_TILE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """C[g] = A[:, start:end] B[start:end] for every group; A (K, total_m), B (total_m, N), C (G, K, N).

    One program a tile, grid (G * tiles,).
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(K, BLOCK_K) * tiles_n
    g, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    GRADIENT_TILE(
        a_ptr, b_ptr, c_ptr + g.to(tl.int64) * K * ldc, ends_ptr, g, tile // tiles_n, tile % tiles_n,
        K, N, lda, ldb, ldc, BLOCK_K, BLOCK_N, BLOCK_M,
    )  # fmt: skip


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns one launch over all groups, with the answer as its device function."""
    k, n, groups = len(inputs["a"]), inputs["b"].shape[1], len(inputs["ends"])
    a, b = watch.matrix("A", inputs["a"]), watch.matrix("B", inputs["b"], room=8)
    c = watch.output("C", (groups * k, n), torch.float16)
    ends = watch.table("ends", torch.tensor(inputs["ends"], dtype=torch.int32))
    grid = (groups * triton.cdiv(k, BLOCK_K) * triton.cdiv(n, BLOCK_N),)
    strides = a.stride(0), b.stride(0), c.stride(0)

    def call(answer) -> None:
        weight_gradient_kernel[grid](a, b, c, ends, k, n, *strides, answer, BLOCK_K, BLOCK_N, BLOCK_M)

    return call


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    types = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", "ends_ptr": "*i32"}
    types |= dict.fromkeys(("K", "N", "lda", "ldb", "ldc"), "i32")
    blocks = {"BLOCK_K": BLOCK_K, "BLOCK_N": BLOCK_N, "BLOCK_M": BLOCK_M}
    yield weight_gradient_kernel, types, {"GRADIENT_TILE": answer.gradient_tile, **blocks}
