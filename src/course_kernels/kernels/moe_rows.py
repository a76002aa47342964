"""Rows of tokens to rows of experts, and back: the gather, and the weighted sum of each token's rows."""

from __future__ import annotations

from course_kernels.kernels.activation import row_count
from course_kernels.kernels.language import tl, triton


@triton.jit(do_not_specialize=["tokens"])
def gather_kernel(
    x_ptr, index_ptr, offs_ptr, slots_ptr, weights_ptr, out_ptr, tokens, stride_t, stride_h,
    COLS: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[r] = x[index[r]], times the row's weight, for the rows of experts. One program has BLOCK_M whole rows.

    Args:
        x_ptr: (tokens, COLS), any strides; out_ptr: (tokens * TOP_K, COLS), contiguous.
        slots_ptr, weights_ptr: where each row's weight is in the float32 weights; or None.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = rows < row_count(offs_ptr, tokens, EXPERTS, TOP_K)
    sources = tl.load(index_ptr + rows, mask=valid, other=0).to(tl.int64)
    if slots_ptr is not None:
        weight = tl.load(weights_ptr + tl.load(slots_ptr + rows, mask=valid, other=0), mask=valid, other=0.0)[:, None]
    for first in range(0, COLS, BLOCK_N):
        cols = first + tl.arange(0, BLOCK_N)
        inside = valid[:, None] & (cols < COLS)[None, :]
        at = x_ptr + sources[:, None] * stride_t + cols.to(tl.int64)[None, :] * stride_h
        block = tl.load(at, mask=inside, other=0.0)
        if slots_ptr is not None:
            block = block.to(tl.float32) * weight
        line = out_ptr + rows.to(tl.int64)[:, None] * COLS
        tl.store(line + cols[None, :], block.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def sums_of(
    rows_ptr, positions_ptr, weights_ptr, token, there, cols, COLS: tl.constexpr, TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The sum of each token's rows, each times its weight: in float32, in the order of the choices; arguments as of
    ``combine_kernel``. Nothing is read of tokens that are not there."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for j in tl.static_range(TOP_K):
        position = tl.load(positions_ptr + token * TOP_K + j, mask=there, other=-1)
        inside = (position >= 0)[:, None] & (cols < COLS)[None, :]
        at = rows_ptr + position.to(tl.int64)[:, None] * COLS + cols[None, :]
        row = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        if weights_ptr is not None:
            row *= tl.load(weights_ptr + token * TOP_K + j, mask=position >= 0, other=0.0)[:, None]
        acc += row
    return acc


@triton.jit(do_not_specialize=["tokens"])
def combine_kernel(
    rows_ptr, positions_ptr, weights_ptr, out_ptr, tokens,
    COLS: tl.constexpr, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[t] = the sum of token t's rows, each times its weight: in float32, in the order of the choices, rounded once.
    A program has a block of it.

    Args:
        rows_ptr: (tokens * TOP_K, COLS), contiguous; out_ptr: (tokens, COLS), contiguous.
        positions_ptr: (tokens * TOP_K,) the row of each choice; less than 0 where it has none.
        weights_ptr: float32 (tokens * TOP_K,); None for weights of 1.
    """
    tiles_n = tl.cdiv(COLS, BLOCK_N)
    token = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    there = token < tokens
    acc = sums_of(rows_ptr, positions_ptr, weights_ptr, token, there, cols, COLS, TOP_K, BLOCK_M, BLOCK_N)
    at = out_ptr + token.to(tl.int64)[:, None] * COLS + cols[None, :]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=there[:, None] & (cols < COLS)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def dots_kernel(
    rows_ptr, x_ptr, index_ptr, offs_ptr, slots_ptr, dots_ptr, tokens, stride_t, stride_h,
    COLS: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dots[slots[r]] = the dot product of row r and x[index[r]], for the rows of experts; arguments as above."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = rows < row_count(offs_ptr, tokens, EXPERTS, TOP_K)
    sources = tl.load(index_ptr + rows, mask=valid, other=0).to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, COLS, BLOCK_N):
        cols = first + tl.arange(0, BLOCK_N)
        inside = valid[:, None] & (cols < COLS)[None, :]
        at = x_ptr + sources[:, None] * stride_t + cols.to(tl.int64)[None, :] * stride_h
        x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        row = tl.load(rows_ptr + rows.to(tl.int64)[:, None] * COLS + cols[None, :], mask=inside, other=0.0)
        acc += x * row.to(tl.float32)
    slots = tl.load(slots_ptr + rows, mask=valid, other=0)
    tl.store(dots_ptr + slots, tl.sum(acc, 1), mask=valid)


@triton.jit(do_not_specialize=["tokens"])
def sum_parts_kernel(
    parts_ptr, offs_ptr, slots_ptr, grad_weights_ptr, tokens, PARTS: tl.constexpr, EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """grad_weights[slots[r]] = the sum of row r's parts (rows, PARTS), in one order; 0 for the rows of no expert."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = rows < row_count(offs_ptr, tokens, EXPERTS, TOP_K)
    cols = tl.arange(0, BLOCK_N)
    at = parts_ptr + rows.to(tl.int64)[:, None] * PARTS + cols[None, :]
    parts = tl.load(at, mask=valid[:, None] & (cols < PARTS)[None, :], other=0.0)
    there = rows < tokens * TOP_K
    slots = tl.load(slots_ptr + rows, mask=there, other=0)
    tl.store(grad_weights_ptr + slots, tl.sum(parts, 1), mask=there)
