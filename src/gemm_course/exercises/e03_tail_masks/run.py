"""Exercise 03: a product whose A is stored transposed, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

BLOCK = 16


@triton.jit
def tail_masks_kernel(a_ptr, b_ptr, c_ptr, M, N, K, lda, ldb, ldc, PRODUCT_TILE: tl.constexpr, BLOCK: tl.constexpr):
    """C = Aᵀ B, A (K, M), B (K, N), C (M, N), all row-major; one program a tile, grid (tiles,)."""
    tile = tl.program_id(0)
    tiles_n = tl.cdiv(N, BLOCK)
    row, col = (tile // tiles_n) * BLOCK, (tile % tiles_n) * BLOCK
    PRODUCT_TILE(a_ptr, b_ptr, c_ptr, row, col, M, N, K, lda, ldb, ldc, BLOCK)


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns one launch with the answer as its device function."""
    (k, m), n = inputs["a"].shape, inputs["b"].shape[1]
    a, b = watch.matrix("A", inputs["a"]), watch.matrix("B", inputs["b"])
    c = watch.output("C", (m, n), torch.float32)
    grid = (triton.cdiv(m, BLOCK) * triton.cdiv(n, BLOCK),)
    strides = a.stride(0), b.stride(0), c.stride(0)
    return lambda answer: tail_masks_kernel[grid](a, b, c, m, n, k, *strides, answer, BLOCK) and None


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    extents = dict.fromkeys(("M", "N", "K", "lda", "ldb", "ldc"), "i32")
    types = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", **extents}
    yield tail_masks_kernel, types, {"PRODUCT_TILE": answer.product_tile, "BLOCK": BLOCK}
