"""Exercise 14a: a grouped product whose rows of x come by a row index."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

BLOCK_M, BLOCK_N, BLOCK_K = 16, 64, 32  # all different, so that one for another shows


@triton.jit
def gathered_kernel(
    x_ptr, w_ptr, out_ptr, tokens_ptr, ends_ptr, before, positions, N, H, ldx, ldw, ldo,
    GATHERED_TILE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[r] = x[tokens[r]] W[g]ᵀ for every position r of every expert g; W (G, N, H), out (positions, N).

    One program a tile, grid (G * tiles,): each expert could have all positions. x begins `before` elements after the
    place of token 0.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(positions, BLOCK_M) * tiles_n
    g, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    start = tl.load(ends_ptr + g - 1, mask=g > 0, other=0)
    end = tl.load(ends_ptr + g)
    GATHERED_TILE(
        x_ptr - before, w_ptr, out_ptr, tokens_ptr, g, start, end, tile // tiles_n, tile % tiles_n,
        N, H, ldx, ldw, ldo, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


def prepare(inputs: dict, watch) -> Callable:
    """Lay out the inputs; returns one launch over all experts, with the answer as its device function."""
    (groups, n, h), positions = inputs["w"].shape, len(inputs["tokens"])
    x, w = watch.matrix("x", inputs["x"]), watch.matrix("W", inputs["w"].view(-1, h), room=8)
    out = watch.output("out", (positions, n), torch.float32)
    tokens, ends = (
        watch.table(name, torch.tensor(inputs[name], dtype=torch.int32)) for name in ("tokens", "ends")
    )  # fmt: skip
    grid = (groups * triton.cdiv(positions, BLOCK_M) * triton.cdiv(n, BLOCK_N),)
    before = inputs["first"] * x.stride(0)
    numbers = before, positions, n, h, x.stride(0), w.stride(0), out.stride(0)

    def call(answer) -> None:
        gathered_kernel[grid](x, w, out, tokens, ends, *numbers, answer, BLOCK_M, BLOCK_N, BLOCK_K)

    return call


def builds(answer) -> Iterator[tuple]:
    """The builds: (kernel, types of its run-time arguments, values of the others)."""
    types = {"x_ptr": "*fp16", "w_ptr": "*fp16", "out_ptr": "*fp32", "tokens_ptr": "*i32", "ends_ptr": "*i32"}
    types |= {"before": "i64"} | dict.fromkeys(("positions", "N", "H", "ldx", "ldw", "ldo"), "i32")
    blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K}
    yield gathered_kernel, types, {"GATHERED_TILE": answer.gathered_tile, **blocks}
