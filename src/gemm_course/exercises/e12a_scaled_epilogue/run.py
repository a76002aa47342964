"""Exercise 12a: a masked FP8 product with scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

from course_kernels import runtime

BLOCK_M, BLOCK_N, BLOCK_K = 16, 64, 32  # all different, so that one for another shows
FP8 = torch.float8_e4m3fn


@triton.jit
def scaled_kernel(
    a_ptr, b_ptr, c_ptr, scale_a_ptr, scale_b_ptr, sizes_ptr, max_m, N, K, lda, ldb, ldc,
    SCALED_TILE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """C[g] = (A[g] B[g]ᵀ) scaled, for the first rows of each group; A (G, max_m, K), B (G, N, K), C (G, max_m, N).

    One program a tile of max_m rows, grid (G * tiles,); tiles behind a group's rows do nothing.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(max_m, BLOCK_M) * tiles_n
    g, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    i, j = tile // tiles_n, tile % tiles_n
    size = tl.load(sizes_ptr + g)
    if i * BLOCK_M < size:
        SCALED_TILE(
            a_ptr, b_ptr, c_ptr, scale_a_ptr, scale_b_ptr, g, size, i, j, max_m, N, K, lda, ldb, ldc,
            BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns one launch over all tiles, with the answer as its device function."""
    groups, max_m, k = inputs["a"].shape
    n = inputs["b"].shape[1]
    # An old GPU has no FP8: there float16 holds the same numbers.
    dtype = FP8 if runtime.supports_fp8(watch.device) else torch.float16
    a = watch.matrix("A", inputs["a"].view(-1, k).to(dtype))
    b = watch.matrix("B", inputs["b"].view(-1, k).to(dtype), room=16)
    c = watch.output("C", (groups * max_m, n), torch.float16)
    scale_a, scale_b = (watch.table(name, inputs[name].flatten()) for name in ("scale_a", "scale_b"))
    sizes = watch.table("sizes", torch.tensor(inputs["sizes"], dtype=torch.int32))
    grid = (groups * triton.cdiv(max_m, BLOCK_M) * triton.cdiv(n, BLOCK_N),)
    numbers = max_m, n, k, a.stride(0), b.stride(0), c.stride(0)

    def call(answer) -> None:
        scaled_kernel[grid](a, b, c, scale_a, scale_b, sizes, *numbers, answer, BLOCK_M, BLOCK_N, BLOCK_K)

    return call


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    types = {"a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "c_ptr": "*fp16", "sizes_ptr": "*i32"}
    types |= {"scale_a_ptr": "*fp32", "scale_b_ptr": "*fp32"}
    types |= dict.fromkeys(("max_m", "N", "K", "lda", "ldb", "ldc"), "i32")
    blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K}
    yield scaled_kernel, types, {"SCALED_TILE": answer.scaled_tile, **blocks}
