"""Groups packed along K: the weight gradient. Each group's product has its own (M, N) result and its own depth.

C[g] = A[:, start:end] @ B[start:end, :]. Here the rows past a group's end would be summed into the product, so it is
the loads that go through windows (``triton.tools.ragged_tma``): zeros past the end, from the hardware. An empty group's
product is one block of such zeros.

Since each tile has its own number of blocks, the compiler cannot fuse the loop over tiles with the loop over K; here it
is done by hand. One loop runs over all blocks of all of a program's tiles: at a tile's first block it finds the tile,
at its last it stores. That lets the next tile's blocks arrive while this one is stored.
"""

from __future__ import annotations

from course_kernels.kernels.language import tl, triton  # isort: skip (sets Triton up)
from triton.tools.ragged_tma import to_ragged_indices

from course_kernels.kernels.common import add_scaled, multiply_add, tile_position, xcd_tile
from course_kernels.kernels.contiguous import (
    POINTERS,
    SCALE_DEPTH,
    WINDOW,
    group_bounds,
    scaled_and_biased,
    store_result,
)


@triton.jit
def load_depth(
    operand, start, end, k, line, lines, stride_k, stride_line, KIND: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """The (BLOCK_K, BLOCK_L) block of an operand (total, lines) at row start + k; zeros past the group's end."""
    if KIND == WINDOW:
        sign, base, inside = to_ragged_indices(start, end - start, k)
        return operand.load([sign, base, inside, line]).reshape(BLOCK_K, BLOCK_L)
    else:
        depth = start + k + tl.arange(0, BLOCK_K)
        at = line + tl.arange(0, BLOCK_L)
        pointers = operand + depth.to(tl.int64)[:, None] * stride_k + at.to(tl.int64)[None, :] * stride_line
        return tl.load(pointers, mask=(depth < end)[:, None] & (at < lines)[None, :], other=0.0)


@triton.jit
def blocks_of(offs_ptr, g, total, used, BLOCK_K: tl.constexpr):
    """Start, end, and blocks of K of group g: at least one, so that an empty group's zeros get written."""
    start, end = group_bounds(offs_ptr, g, total, used)
    return start, end, tl.maximum(tl.cdiv(end - start, BLOCK_K), 1)


@triton.jit
def add_result(
    desc, c_ptr, acc, g, M, row, col, N, stride_cg, stride_cm, stride_cn, KIND: tl.constexpr, PARTS: tl.constexpr
):
    """Add the part of a tile inside C[g] to it in float32, and round once.

    Through a descriptor, of a float32 C, the hardware adds: L2 does, without subnormal numbers. What a descriptor reads
    would take as much shared memory as what one writes, beside it.
    """
    if KIND == POINTERS:
        rows = row + tl.arange(0, acc.shape[0])
        cols = col + tl.arange(0, acc.shape[1])
        base = c_ptr + g * (tl.full((), 1, tl.int64) * stride_cg)
        pointers = base + rows.to(tl.int64)[:, None] * stride_cm + cols.to(tl.int64)[None, :] * stride_cn
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        acc += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
        tl.store(pointers, acc.to(c_ptr.dtype.element_ty), mask=inside)
    elif PARTS == 1:
        desc.atomic_add([g, row, col], acc.reshape(1, acc.shape[0], acc.shape[1]))
    else:
        half: tl.constexpr = acc.shape[1] // 2
        left, right = tl.split(acc.reshape(acc.shape[0], 2, half).permute(0, 2, 1))
        desc.atomic_add([g, row, col], left.reshape(1, acc.shape[0], half))
        desc.atomic_add([g, row, col + half], right.reshape(1, acc.shape[0], half))


# A batch has its own number of rows: not worth a compilation each time it is a multiple of 16, or is not.
@triton.jit(do_not_specialize=["total", "G"])
def transposed_kernel(
    a, b, c_desc, c_ptr, offs_ptr, bias_ptr, scale_a_ptr, scale_b_ptr,
    total, M, N, G, stride_am, stride_ak, stride_bk, stride_bn, stride_cg, stride_cm, stride_cn,
    stride_bias_g, stride_bias_n, stride_scale_g, stride_sa_m, stride_sa_k, stride_sb_n, stride_sb_k,
    A_KIND: tl.constexpr, B_KIND: tl.constexpr, C_KIND: tl.constexpr, A_LINES: tl.constexpr, RESTART: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STORE_PARTS: tl.constexpr, PRECISION: tl.constexpr, SPAN: tl.constexpr, NUM_XCDS: tl.constexpr,
    ACCUMULATE: tl.constexpr = False,
):  # fmt: skip
    """C[g] = A[:, start:end] @ B[start:end, :] for every group g; C[g] += where ACCUMULATE.

    Args:
        a: (M, total): a window of its transpose, or a pointer where A_KIND is POINTERS; b: (total, N), likewise.
        c_desc: descriptor of C (G, M, N) in blocks (1, ., .), or None; c_ptr: pointer to C.
        offs_ptr: (G,) ends.
        bias_ptr: (G, N); scale_a_ptr: (G, M), contiguous; scale_b_ptr: (G, N), last stride 1.
        A_LINES: 0, or 1 for a factor for each block of 128 along K of each line: then scale_a_ptr is (M, blocks) and
            scale_b_ptr (N, blocks), with any strides. BLOCK_K divides 128.
        RESTART: a group's blocks begin with the group, in column start // 128 + g of the scales; otherwise groups begin
            with a block, and K's blocks are the columns.
        SPAN: own tiles whose blocks are counted at a time.
        NUM_XCDS: of ``common.xcd_tile``.
        ACCUMULATE: add to C, and leave it as it is where a group is empty. One program has a tile, so nothing is
            atomic, and the sum of the same numbers is always the same.
    """
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    per_group = tiles_m * tiles_n
    programs = tl.num_programs(0)
    blocks = 0
    for first in range(tl.program_id(0), per_group * G, SPAN * programs):
        tile = first + tl.arange(0, SPAN) * programs
        used = tile < per_group * G
        if NUM_XCDS > 1:
            tile = xcd_tile(tile, per_group * G, programs, NUM_XCDS)
        _, _, count = blocks_of(offs_ptr, tile // per_group, total, used, BLOCK_K)
        blocks += tl.sum(tl.where(used, count, 0), 0)

    tile = tl.program_id(0) - programs
    # What the first block sets; k and left change at the loop's top, because only what is known there can be used to
    # fetch blocks ahead of time.
    g, start, end, row, col, k, left = 0, 0, 0, 0, 0, 0, 0
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in tl.range(blocks):
        left -= 1
        k += BLOCK_K
        if left < 0:
            tile += programs
            if NUM_XCDS > 1:
                position = xcd_tile(tile, per_group * G, programs, NUM_XCDS)
            else:
                position = tile
            g = position // per_group
            start, end, left = blocks_of(offs_ptr, g, total, g < G, BLOCK_K)
            left -= 1
            tile_m, tile_n = tile_position(position - g * per_group, tiles_m, tiles_n, GROUP_M)
            row, col, k = tile_m * BLOCK_M, tile_n * BLOCK_N, 0
        block_a = load_depth(a, start, end, k, row, M, stride_ak, stride_am, A_KIND, BLOCK_K, BLOCK_M)
        block_b = load_depth(b, start, end, k, col, N, stride_bk, stride_bn, B_KIND, BLOCK_K, BLOCK_N)
        if A_LINES == 0:
            acc = multiply_add(block_a.T, block_b, acc, PRECISION)
        else:
            block = (start // SCALE_DEPTH + g if RESTART else start // SCALE_DEPTH) + k // SCALE_DEPTH
            # An empty group has no factors.
            rows, cols = tl.where(end > start, M - row, 0), tl.where(end > start, N - col, 0)
            acc = add_scaled(
                acc, block_a.T, block_b, scale_a_ptr, scale_b_ptr, block, row, rows, col, cols,
                stride_sa_m, stride_sa_k, stride_sb_n, stride_sb_k, A_LINES, A_LINES, BLOCK_M, BLOCK_N,
            )  # fmt: skip
        if left == 0:
            if A_LINES == 0:
                row_a = g * (tl.full((), 1, tl.int64) * M) + row
                acc = scaled_and_biased(
                    acc, scale_a_ptr, scale_b_ptr, bias_ptr, g, row_a, M - row, col, N,
                    stride_bias_g, stride_bias_n, stride_scale_g, BLOCK_M, BLOCK_N,
                )  # fmt: skip
            else:
                acc = scaled_and_biased(
                    acc, None, None, bias_ptr, g, row, M - row, col, N,
                    stride_bias_g, stride_bias_n, stride_scale_g, BLOCK_M, BLOCK_N,
                )  # fmt: skip
            if ACCUMULATE:
                # Zeros would change -0.0, and the bits of a NaN: those of an empty group are added outside of C, where
                # nothing is. A branch around it makes the compiler spill: 255 registers and 88 bytes, not 166.
                into = tl.where(end > start, row, M)
                add_result(c_desc, c_ptr, acc, g, M, into, col, N, stride_cg, stride_cm, stride_cn, C_KIND, STORE_PARTS)
            else:
                store_result(
                    c_desc, c_ptr, acc, g, 0, M, row, col, N, stride_cg, stride_cm, stride_cn, C_KIND, STORE_PARTS
                )
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
