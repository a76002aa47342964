"""Sums over each group's rows, in float32: the gradient of a bias.

Group sizes may differ by orders of magnitude, so work is not divided by groups alone. The rows are cut into chunks of
CHUNK rows, and again where groups end. Each piece is one *item*: a program sums the item's rows in a block of columns.
A second kernel adds up each group's items, in order. No program waits for another, nothing is atomic, and the order of
additions depends on the groups' ends alone.

Items are numbered along the rows. One step leads to the next chunk, or to the next group, so the item of chunk p and
group g has the number p + g. There are fewer than chunks + groups of them.
"""

from __future__ import annotations

from course_kernels.kernels.contiguous import group_bounds
from course_kernels.kernels.language import tl, triton


@triton.jit
def last_chunk(end, CHUNK: tl.constexpr):
    """The chunk of the last row before ``end``; 0 where there is none."""
    return tl.maximum(tl.cdiv(end, CHUNK) - 1, 0)


@triton.jit
def search_group(offs_ptr, item, total, G, CHUNK: tl.constexpr):
    """The first group whose last item is not before ``item``, or G."""
    low, high = -1, G
    while high - low > 1:
        middle = (low + high) // 2
        _, end = group_bounds(offs_ptr, middle, total, True)
        passed = last_chunk(end, CHUNK) + middle < item
        low = tl.where(passed, middle, low)
        high = tl.where(passed, high, middle)
    return high


# A batch has its own number of rows: not worth a compilation each time it is a multiple of 16, or is not.
@triton.jit(do_not_specialize=["total", "G"])
def sum_items_kernel(
    matrix_ptr, offs_ptr, sums_ptr, total, N, G, stride_m, stride_n, stride_sg, stride_sn,
    CHUNK: tl.constexpr, ONE_CHUNK: tl.constexpr, ACCUMULATE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """sums[i] = the sum of item i's rows, for every item. One program has BLOCK_N columns of one item.

    Args:
        matrix_ptr: (total, N), any strides; offs_ptr: (G,) ends; sums_ptr: float32 (items, N), any strides.
        ONE_CHUNK: total is at most CHUNK. Then groups are items.
        ACCUMULATE: add to the sums of groups that have rows, and leave the others; with ONE_CHUNK alone.
        BLOCK_G: groups that are looked at together to find the item's; 0 to search it by bisection.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    item = tl.program_id(0) // tiles_n
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    g = item
    if not ONE_CHUNK:
        # All groups before the item's have their last item before it.
        if BLOCK_G > 0:
            g = 0
            for first in range(0, G, BLOCK_G):
                groups = first + tl.arange(0, BLOCK_G)
                _, ends = group_bounds(offs_ptr, groups, total, groups < G)
                passed = (groups < G) & (last_chunk(ends, CHUNK) + groups < item)
                g += tl.sum(passed.to(tl.int32), 0)
        else:
            g = search_group(offs_ptr, item, total, G, CHUNK)
    if g < G:
        start, end = group_bounds(offs_ptr, g, total, g < G)
        filled = end > start
        start = tl.maximum(start, (item - g) * CHUNK)
        end = tl.minimum(end, (item - g + 1) * CHUNK)
        columns = matrix_ptr + cols.to(tl.int64)[None, :] * stride_n
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for row in range(start, end, BLOCK_M):
            rows = row + tl.arange(0, BLOCK_M)
            inside = (rows < end)[:, None] & (cols < N)[None, :]
            acc += tl.load(columns + rows.to(tl.int64)[:, None] * stride_m, mask=inside, other=0.0).to(tl.float32)
        found = tl.sum(acc, 0)
        pointers = sums_ptr + item.to(tl.int64) * stride_sg + cols.to(tl.int64) * stride_sn
        if ACCUMULATE:
            if filled:  # adding zeros would change -0.0, and the bits of a NaN
                tl.store(pointers, found + tl.load(pointers, mask=cols < N, other=0.0), mask=cols < N)
        else:
            tl.store(pointers, found, mask=cols < N)


@triton.jit(do_not_specialize=["total"])
def add_items_kernel(
    items_ptr, offs_ptr, out_ptr, total, N, stride_og, stride_on,
    CHUNK: tl.constexpr, ACCUMULATE: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[g] = the sum of group g's items; out[g] += where ACCUMULATE and the group has rows. One program has BLOCK_N
    columns of one group.

    Args:
        items_ptr: float32 (items, N), contiguous; offs_ptr: (G,) ends; out_ptr: float32 (G, N), any strides.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    g = tl.program_id(0) // tiles_n
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    start, end = group_bounds(offs_ptr, g, total, True)
    first, last = last_chunk(start, CHUNK) + g, last_chunk(end, CHUNK) + g
    acc = tl.zeros((BLOCK_I, BLOCK_N), dtype=tl.float32)
    for i in range(first, last + 1, BLOCK_I):
        items = i + tl.arange(0, BLOCK_I)
        pointers = items_ptr + items.to(tl.int64)[:, None] * N + cols[None, :]
        acc += tl.load(pointers, mask=(items <= last)[:, None] & (cols < N)[None, :], other=0.0)
    found = tl.sum(acc, 0)
    pointers = out_ptr + g.to(tl.int64) * stride_og + cols.to(tl.int64) * stride_on
    if ACCUMULATE:
        if end > start:
            tl.store(pointers, found + tl.load(pointers, mask=cols < N, other=0.0), mask=cols < N)
    else:
        tl.store(pointers, found, mask=cols < N)
