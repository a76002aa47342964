"""Parts of the contiguous kernel for a layer of experts: gathered rows of A, gate and up in one tile, activations.

With a gate, B's columns are those of the gate and of up. A tile takes half of its columns from each, so that the
epilogue finds both halves of every column of the result in its sums.
"""

from __future__ import annotations

from course_kernels.kernels.activation import activated, gradients
from course_kernels.kernels.common import multiply_add
from course_kernels.kernels.language import tl, triton
from course_kernels.kernels.round_robin import ANY


@triton.jit
def with_sources(operand, row, rows, BLOCK_M: tl.constexpr):
    """``operand`` of a tile (A, its strides (group, row, k), an index) with the rows of A in place of the index, which
    is read once, before the loop over K. Its entries from ``rows`` on are not read."""
    at = row + tl.arange(0, BLOCK_M)
    source = tl.load(operand[4] + at, mask=at < rows, other=0).to(tl.int64)
    return operand[0], operand[1], operand[2], operand[3], source


@triton.jit
def gather_rows(
    operand, g, row, k, rows, K, KIND: tl.constexpr, IN_GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The ``LOAD_A`` function for rows by an index; ``operand``: of ``with_sources``."""
    a, _, stride_m, stride_k, source = operand
    at = row + tl.arange(0, BLOCK_M)
    depth = k + tl.arange(0, BLOCK_K)
    pointers = a + source[:, None] * stride_m + depth.to(tl.int64)[None, :] * stride_k
    return tl.load(pointers, mask=(at < rows)[:, None] & (depth < K)[None, :], other=0.0)


@triton.jit
def paired_columns(col, N, STEP: tl.constexpr, BLOCK_N: tl.constexpr):
    """The columns of B in a tile whose first one would be ``col``: half of the gate's, then the same of up's. N is past
    the last column, for those that do not exist."""
    half: tl.constexpr = BLOCK_N // 2
    lane = tl.arange(0, BLOCK_N)
    column = col // 2 + lane % half
    up = N // 2 if STEP == 1 else 1
    return tl.where(column < N // 2, column * STEP + lane // half * up, N)


@triton.jit
def load_pair(
    b, g, col, k, N, K, stride_g, stride_n, stride_k, KIND: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A (BLOCK_N, BLOCK_K) block of columns of B, through a pointer: half of the gate's, half of up's."""
    columns = paired_columns(col, N, ACTIVATION[1], BLOCK_N)
    depth = k + tl.arange(0, BLOCK_K)
    base = b + g * (tl.full((), 1, tl.int64) * stride_g)
    pointers = base + columns.to(tl.int64)[:, None] * stride_n + depth.to(tl.int64)[None, :] * stride_k
    return tl.load(pointers, mask=(columns < N)[:, None] & (depth < K)[None, :], other=0.0)


@triton.jit
def low_rank_sums(
    low_rank, acc, g, row, end, col, N, LOAD_B: tl.constexpr, ACTIVATION: tl.constexpr, RANK: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums from which a tile starts: scale * left @ right[g]. It comes before the product itself, so that the scale
    needs no second accumulator.

    Args:
        low_rank: left, right, the scale, right's strides (group, column, rank).
        acc: zeros.
    """
    left, right, scale, stride_g, stride_n, stride_r = low_rank
    rows = row + tl.arange(0, BLOCK_M)
    for r in tl.range(0, RANK, BLOCK_R, num_stages=1):  # a step or two: nothing to load ahead
        depth = r + tl.arange(0, BLOCK_R)
        pointers = left + rows.to(tl.int64)[:, None] * RANK + depth[None, :]
        block = tl.load(pointers, mask=(rows < end)[:, None] & (depth < RANK)[None, :], other=0.0)
        columns = LOAD_B(right, g, col, r, N, RANK, stride_g, stride_n, stride_r, ANY, ACTIVATION, BLOCK_N, BLOCK_R)
        acc = multiply_add(block, columns.T, acc, PRECISION)
    return acc * scale


@triton.jit
def store_activated(
    parts, acc, g, start, end, row, row_a, col, N, KIND: tl.constexpr, STORE_PARTS: tl.constexpr,
    SCALED: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The ``EPILOGUE`` function that stores an activation of the sums, and the sums if they are to be kept.

    Args:
        parts: the result and its strides, the bias and its strides, the factors (None), as for ``store_sums``; then
            (pre, weights, activated, dots), of which pre may be given: (rows, N), contiguous.
        ACTIVATION: gated, step, function, alpha, limit, shift.
    """
    _, c_ptr, _, stride_cm, stride_cn, bias_ptr, stride_bias_g, stride_bias_n = parts[:8]
    pre_ptr = parts[11]
    GATED: tl.constexpr = ACTIVATION[0]
    STEP: tl.constexpr = ACTIVATION[1]
    FUNCTION: tl.constexpr = ACTIVATION[2]
    ALPHA: tl.constexpr = ACTIVATION[3]
    LIMIT: tl.constexpr = ACTIVATION[4]
    SHIFT: tl.constexpr = ACTIVATION[5]
    rows = row + tl.arange(0, BLOCK_M)
    inside = (rows >= start) & (rows < end)
    if GATED:
        columns = paired_columns(col, N, STEP, BLOCK_N)
        result_cols = col // 2 + tl.arange(0, BLOCK_N // 2)
        result_N = N // 2
    else:
        columns = col + tl.arange(0, BLOCK_N)
        result_cols, result_N = columns, N
    if bias_ptr is not None:
        at = bias_ptr + g * (tl.full((), 1, tl.int64) * stride_bias_g) + columns.to(tl.int64) * stride_bias_n
        acc += tl.load(at, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    if pre_ptr is not None:
        rounded = acc.to(pre_ptr.dtype.element_ty)
        pointers = pre_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(pointers, rounded, mask=inside[:, None] & (columns < N)[None, :])
        acc = rounded.to(tl.float32)  # as the backward computes it again
    if GATED:
        gate, up = tl.split(acc.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1))
        value = activated(gate, up, FUNCTION, ALPHA, LIMIT, SHIFT)
    else:
        value = activated(acc, None, FUNCTION, ALPHA, LIMIT, SHIFT)
    pointers = c_ptr + rows.to(tl.int64)[:, None] * stride_cm + result_cols.to(tl.int64)[None, :] * stride_cn
    mask = inside[:, None] & (result_cols < result_N)[None, :]
    tl.store(pointers, value.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_gradient(
    parts, acc, g, start, end, row, row_a, col, N, KIND: tl.constexpr, STORE_PARTS: tl.constexpr,
    SCALED: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The ``EPILOGUE`` function that stores an activation's gradient; the sums are that of its result, before weights.

    Args:
        parts: as for ``store_activated``; c is the gradient of pre, (rows, 2 * N) where gated; weights (rows,),
            activated (rows, N) and dots (rows, cdiv(N, 32)) are as in ``engine.product.GatedBackward``.
    """
    _, c_ptr, _, stride_cm, stride_cn = parts[:5]
    pre_ptr, weights_ptr, activated_ptr, dots_ptr = parts[11:15]
    GATED: tl.constexpr = ACTIVATION[0]
    STEP: tl.constexpr = ACTIVATION[1]
    FUNCTION: tl.constexpr = ACTIVATION[2]
    ALPHA: tl.constexpr = ACTIVATION[3]
    LIMIT: tl.constexpr = ACTIVATION[4]
    SHIFT: tl.constexpr = ACTIVATION[5]
    rows, cols = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)
    valid = (rows >= start) & (rows < end)
    inside = valid[:, None] & (cols < N)[None, :]
    line = rows.to(tl.int64)[:, None]
    weight = tl.load(weights_ptr + rows, mask=valid, other=0.0)[:, None]
    to_up = N if STEP == 1 else 1
    if GATED:
        at = pre_ptr + line * (2 * N) + cols[None, :] * STEP
        gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(at + to_up, mask=inside, other=0.0).to(tl.float32)
    else:
        gate = tl.load(pre_ptr + line * N + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        up = None
    value, grad_gate, grad_up = gradients(acc * weight, gate, up, FUNCTION, ALPHA, LIMIT, SHIFT)
    kind = c_ptr.dtype.element_ty
    pointers = c_ptr + line * stride_cm + cols.to(tl.int64)[None, :] * (stride_cn * STEP)
    tl.store(pointers, grad_gate.to(kind), mask=inside)
    if GATED:
        tl.store(pointers + to_up * stride_cn, grad_up.to(kind), mask=inside)
    tl.store(activated_ptr + line * N + cols[None, :], (value * weight).to(kind), mask=inside)
    # One entry of dots for every 32 columns: this tile's sum, and zeros.
    dots = tl.sum(tl.where(inside, acc * value, 0.0), 1)
    entries: tl.constexpr = (BLOCK_N + 31) // 32
    lane = tl.arange(0, entries)
    first = col // 32
    target = dots_ptr + line * tl.cdiv(N, 32) + first + lane[None, :]
    tl.store(
        target, tl.where(lane[None, :] == 0, dots[:, None], 0.0),
        mask=valid[:, None] & (first + lane < tl.cdiv(N, 32))[None, :],
    )  # fmt: skip
