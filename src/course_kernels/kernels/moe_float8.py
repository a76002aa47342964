"""Rows of experts in float8: tokens rounded once and written to all of their rows, and the operands of later products.
Also weights, and lines of any matrix or of its groups, with factors of whole lines.

A factor is of a whole line along what the next product sums over (``WHOLE``), or of 128 elements of it. For whole lines
a program walks its lines twice: forward for the largest magnitudes, and backward for the values. It begins the second
walk with what it read last, which is likely still in the cache. Magnitudes, factors and rounding are those of
``kernels.quantize``.
"""

from __future__ import annotations

from course_kernels.kernels.activation import activated, row_count
from course_kernels.kernels.language import tl, triton
from course_kernels.kernels.quantize import DEPTH, clamped_end, scale_of, to_float8, whole_block


@triton.jit
def magnitudes(values):
    """Magnitudes; 0 for NaN and infinities."""
    found = tl.abs(values)
    return tl.where(found < float("inf"), found, 0.0)


@triton.jit
def to_rounded(values, inverse, q_ptr, ROUND: tl.constexpr):
    """Values times the reciprocals of their factors, in float8; NaN where they are not finite."""
    return to_float8(tl.where(tl.abs(values) < float("inf"), values * inverse, float("nan")), q_ptr, ROUND)


@triton.jit
def load_values(
    x_ptr, index_ptr, slots_ptr, weights_ptr, rows, cols, valid, stride_r, stride_c, COLS: tl.constexpr,
    GATED: tl.constexpr, STEP: tl.constexpr, FUNCTION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    SHIFT: tl.constexpr,
):  # fmt: skip
    """A block (rows, cols) in float32: of x, by ``index_ptr`` if that is given, and its activation unless FUNCTION is
    None; times the weights of the rows' choices if those are given. Zeros where not ``valid``, and from COLS on."""
    source = rows.to(tl.int64)
    if index_ptr is not None:
        source = tl.load(index_ptr + rows, mask=valid, other=0).to(tl.int64)
    inside = valid[:, None] & (cols < COLS)[None, :]
    wide = tl.full((), 1, tl.int64) * stride_c
    at = x_ptr + source[:, None] * stride_r + cols[None, :] * (wide * STEP)
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if FUNCTION is not None:
        if GATED:
            up = tl.load(at + (COLS if STEP == 1 else 1) * wide, mask=inside, other=0.0).to(tl.float32)
            values = activated(values, up, FUNCTION, ALPHA, LIMIT, SHIFT)
        else:
            values = activated(values, None, FUNCTION, ALPHA, LIMIT, SHIFT)
        values = tl.where(inside, values, 0.0)
    if slots_ptr is not None:
        slots = tl.load(slots_ptr + rows, mask=valid, other=0)
        values *= tl.load(weights_ptr + slots, mask=valid, other=0.0)[:, None]
    return values


@triton.jit(do_not_specialize=["tokens"])
def quantize_tokens_kernel(
    x_ptr, positions_ptr, weights_ptr, q_ptr, scale_ptr, tokens, stride_t, stride_h, COLS: tl.constexpr,
    TOP_K: tl.constexpr, WHOLE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """q[positions[t, j]] = x[t] in float8, with its factors. A token is read and rounded once, whatever TOP_K is. One
    program has BLOCK_M tokens, whole or one block of each.

    Args:
        x_ptr: (tokens, COLS), any strides; q_ptr: (tokens * TOP_K, COLS), contiguous.
        positions_ptr: (tokens * TOP_K,) the row of each choice; less than 0 where it has none.
        weights_ptr: float32 (tokens * TOP_K,), multiplied with the factors of each choice; None for weights of 1.
        scale_ptr: (1 or blocks, tokens * TOP_K), contiguous.
    """
    tiles_n: tl.constexpr = 1 if WHOLE else (COLS + BLOCK_N - 1) // BLOCK_N
    token = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    block = tl.program_id(0) % tiles_n
    there = token < tokens
    begin = block * BLOCK_N
    end = COLS if WHOLE else begin + BLOCK_N
    line = x_ptr + token.to(tl.int64)[:, None] * stride_t
    largest = tl.zeros((BLOCK_M,), dtype=tl.float32)
    for first in range(begin, end, BLOCK_N):
        cols = first + tl.arange(0, BLOCK_N)
        inside = there[:, None] & (cols < COLS)[None, :]
        x = tl.load(line + cols.to(tl.int64)[None, :] * stride_h, mask=inside, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(magnitudes(x), 1))
    scale, inverse = scale_of(largest, q_ptr, False)
    for first in range(begin, end, BLOCK_N):
        cols = first + tl.arange(0, BLOCK_N)
        inside = there[:, None] & (cols < COLS)[None, :]
        x = tl.load(line + cols.to(tl.int64)[None, :] * stride_h, mask=inside, other=0.0).to(tl.float32)
        q = to_rounded(x, inverse[:, None], q_ptr, ROUND)
        for j in tl.static_range(TOP_K):
            position = tl.load(positions_ptr + token * TOP_K + j, mask=there, other=-1)
            to_q = q_ptr + position.to(tl.int64)[:, None] * COLS + cols[None, :]
            tl.store(to_q, q, mask=inside & (position >= 0)[:, None])
    for j in tl.static_range(TOP_K):
        position = tl.load(positions_ptr + token * TOP_K + j, mask=there, other=-1)
        factor = scale
        if weights_ptr is not None:
            factor *= tl.load(weights_ptr + token * TOP_K + j, mask=position >= 0, other=0.0)
        to_scale = scale_ptr + block.to(tl.int64) * (tokens * TOP_K) + position
        tl.store(to_scale, factor, mask=position >= 0)


@triton.jit(do_not_specialize=["tokens"])
def quantize_rows_kernel(
    x_ptr, offs_ptr, q_ptr, scale_ptr, tokens, lines, stride_b, stride_r, stride_c, COLS: tl.constexpr,
    EXPERTS: tl.constexpr, GATED: tl.constexpr, STEP: tl.constexpr, FUNCTION: tl.constexpr, ALPHA: tl.constexpr,
    LIMIT: tl.constexpr, SHIFT: tl.constexpr, POWER_OF_TWO: tl.constexpr, WHOLE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """q = the activation of x in float8, with its factors along each row; x itself where FUNCTION is None. For the
    rows of experts, or of a batch of matrices. One program has BLOCK_M rows, whole or one block of each.

    Args:
        x_ptr: (rows, COLS, or 2 * COLS where GATED), or (batch, lines, COLS); any strides. ``tokens`` is the number of
            rows, in a batch of all matrices together.
        q_ptr: (rows, COLS), scale_ptr: (1 or blocks, rows); both contiguous.
        offs_ptr: (EXPERTS,) ends of the experts; later rows are not written. None for a batch.
        lines: of each matrix of a batch; None for rows of experts.
    """
    tiles_n: tl.constexpr = 1 if WHOLE else (COLS + BLOCK_N - 1) // BLOCK_N
    block = tl.program_id(0) % tiles_n
    tile = tl.program_id(0) // tiles_n
    before = tl.full((), 0, tl.int64)  # rows of earlier matrices
    if lines is None:
        count = row_count(offs_ptr, tokens, EXPERTS, 1)
    else:
        count, tiles = lines, tl.cdiv(lines, BLOCK_M)
        matrix = (tile // tiles).to(tl.int64)
        before, tile = matrix * lines, tile % tiles
        x_ptr += matrix * stride_b
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = rows < count
    begin = block * BLOCK_N
    end = COLS if WHOLE else begin + BLOCK_N
    last = begin + (end - begin - 1) // BLOCK_N * BLOCK_N
    largest = tl.zeros((BLOCK_M,), dtype=tl.float32)
    for first in range(begin, end, BLOCK_N):
        cols = first + tl.arange(0, BLOCK_N)
        values = load_values(
            x_ptr, None, None, None, rows, cols, valid, stride_r, stride_c, COLS, GATED, STEP, FUNCTION, ALPHA, LIMIT,
            SHIFT,
        )  # fmt: skip
        largest = tl.maximum(largest, tl.max(magnitudes(values), 1))
    scale, inverse = scale_of(largest, q_ptr, POWER_OF_TWO)
    for first in range(begin, end, BLOCK_N):
        cols = begin + last - first + tl.arange(0, BLOCK_N)
        values = load_values(
            x_ptr, None, None, None, rows, cols, valid, stride_r, stride_c, COLS, GATED, STEP, FUNCTION, ALPHA, LIMIT,
            SHIFT,
        )  # fmt: skip
        q = to_rounded(values, inverse[:, None], q_ptr, ROUND)
        to_q = q_ptr + (before + rows)[:, None] * COLS + cols[None, :]
        tl.store(to_q, q, mask=valid[:, None] & (cols < COLS)[None, :])
    tl.store(scale_ptr + block.to(tl.int64) * tokens + before + rows, scale, mask=valid)


@triton.jit(do_not_specialize=["tokens"])
def quantize_group_columns_kernel(
    x_ptr, index_ptr, slots_ptr, weights_ptr, offs_ptr, q_ptr, scale_ptr, tokens, stride_r, stride_c,
    COLS: tl.constexpr, EXPERTS: tl.constexpr, GATED: tl.constexpr, STEP: tl.constexpr, FUNCTION: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, SHIFT: tl.constexpr, POWER_OF_TWO: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """q = the transpose of rows of experts in float8, with a factor for each column of each expert. One program has
    BLOCK_N columns of one expert. Columns after the last expert's become zeros where there are programs for one expert
    more, and are not written otherwise.

    Args:
        x_ptr, index_ptr, slots_ptr, weights_ptr: as for ``load_values``; ``tokens`` is the number of rows.
        offs_ptr: (EXPERTS,) ends; q_ptr: (COLS, rows), scale_ptr: (EXPERTS, COLS); both contiguous.
    """
    tiles_n: tl.constexpr = (COLS + BLOCK_N - 1) // BLOCK_N
    g = tl.program_id(0) // tiles_n
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    start = clamped_end(offs_ptr, g - 1, tokens, g > 0)
    filled = clamped_end(offs_ptr, g, tokens, g < EXPERTS)
    end = tl.where(g < EXPERTS, filled, tokens)
    largest = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for first in range(start, filled, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        values = load_values(
            x_ptr, index_ptr, slots_ptr, weights_ptr, rows, cols, rows < filled, stride_r, stride_c, COLS, GATED, STEP,
            FUNCTION, ALPHA, LIMIT, SHIFT,
        )  # fmt: skip
        largest = tl.maximum(largest, tl.max(magnitudes(values), 0))
    scale, inverse = scale_of(largest, q_ptr, POWER_OF_TWO)
    last = start + (end - start - 1) // BLOCK_M * BLOCK_M
    for first in range(start, end, BLOCK_M):
        rows = start + last - first + tl.arange(0, BLOCK_M)
        values = load_values(
            x_ptr, index_ptr, slots_ptr, weights_ptr, rows, cols, rows < filled, stride_r, stride_c, COLS, GATED, STEP,
            FUNCTION, ALPHA, LIMIT, SHIFT,
        )  # fmt: skip
        q = to_rounded(values, inverse[None, :], q_ptr, ROUND)
        to_q = q_ptr + cols.to(tl.int64)[None, :] * tokens + rows[:, None]
        tl.store(to_q, q, mask=(rows < end)[:, None] & (cols < COLS)[None, :])
    tl.store(scale_ptr + g.to(tl.int64) * COLS + cols, scale, mask=cols < tl.where(g < EXPERTS, COLS, 0))


@triton.jit(do_not_specialize=["tokens"])
def quantize_column_blocks_kernel(
    x_ptr, index_ptr, slots_ptr, weights_ptr, offs_ptr, ends_ptr, q_ptr, scale_ptr, tokens, stride_r, stride_c,
    COLS: tl.constexpr, EXPERTS: tl.constexpr, GROUPS: tl.constexpr, GATED: tl.constexpr, STEP: tl.constexpr,
    FUNCTION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, SHIFT: tl.constexpr, BLOCK_N: tl.constexpr,
    ROUND: tl.constexpr,
):  # fmt: skip
    """q = the transpose of rows of experts in float8, with a factor for each 128 of a column; each expert's rows are
    whole blocks of 128, as ``engine.whole_blocks`` describes. One program has a block of BLOCK_N columns.

    Args:
        x_ptr, index_ptr, slots_ptr, weights_ptr: as for ``load_values``; ``tokens`` is the number of rows.
        offs_ptr: (EXPERTS,) ends; ends_ptr: (EXPERTS,) int32 for the ends of the whole blocks.
        q_ptr: (COLS, 128 * blocks), scale_ptr: (blocks, COLS); both contiguous, with ``tokens // 128 + EXPERTS``
            blocks. Columns without a row become zeros.
        GROUPS: as for ``kernels.quantize.quantize_lines_kernel``.
    """
    tiles_n: tl.constexpr = (COLS + BLOCK_N - 1) // BLOCK_N
    block = tl.program_id(0) // tiles_n
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    _, _, first, end = whole_block(offs_ptr, ends_ptr, block, tokens, EXPERTS, GROUPS)
    rows = first + tl.arange(0, DEPTH)
    values = load_values(
        x_ptr, index_ptr, slots_ptr, weights_ptr, rows, cols, rows < end, stride_r, stride_c, COLS, GATED, STEP,
        FUNCTION, ALPHA, LIMIT, SHIFT,
    )  # fmt: skip
    scale, inverse = scale_of(tl.max(magnitudes(values), 0), q_ptr, False)
    q = to_rounded(values, inverse[None, :], q_ptr, ROUND)
    depth = (tokens // DEPTH + EXPERTS) * DEPTH
    to_rows = block * DEPTH + tl.arange(0, DEPTH)
    to_q = q_ptr + cols.to(tl.int64)[None, :] * depth + to_rows[:, None]
    tl.store(to_q, q, mask=(cols < COLS)[None, :] & (to_rows >= 0)[:, None])
    scale = tl.where(first < end, scale, 0.0)
    tl.store(scale_ptr + block.to(tl.int64) * COLS + cols, scale, mask=cols < COLS)
