"""Masked groups: every group has room for the same number of rows, and only its first rows count. The layout of
decoding, where the host must not know the sizes.

Every group has room for ``max_M`` rows, and a list on the device says how many of them count. Tiles are handed out over
rows that count alone: a program finds its tile's group by comparing with the groups' cumulative tiles, as in
``contiguous``, so an empty group costs nothing. Rows after them are left alone in the result, bit for bit: the store
goes through a *window* of the result seen as (G * max_M, N), or through masks.

With few rows, reading the weights takes the time. Some libraries *shuffle* them once, beforehand, for that: 16 lines of
16 bytes of K lie together, in the order in which the lanes of a matrix instruction take them. ``load_shuffled`` reads
them where they are.

Block scales (1 × 128 of A, 128 × 128 of B) change inside a sum, so they cannot wait for the epilogue: each block of K
is multiplied apart, scaled and added in float32. That costs a second set of accumulators.
"""

from __future__ import annotations

from course_kernels.kernels.codes import SCALE_BLOCK, Scales, Store
from course_kernels.kernels.common import add_scaled, multiply_add, tile_position
from course_kernels.kernels.contiguous import load_block, store_result
from course_kernels.kernels.language import tl, triton

WINDOW = tl.constexpr(int(Store.WINDOW))
LINES = tl.constexpr(int(Scales.LINES))
BLOCKS = tl.constexpr(int(Scales.BLOCKS))
SCALED = tl.constexpr(SCALE_BLOCK)


@triton.jit
def rows_that_count(sizes_ptr, g, max_M, used):
    """Rows of group g that count, clamped to [0, max_M]; 0 where not ``used``."""
    rows = tl.load(sizes_ptr + g, mask=used, other=0)
    return tl.minimum(tl.maximum(rows, 0), max_M).to(tl.int32)


@triton.jit
def load_shuffled(w, g, line, k, N, K, stride_g, PACK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """A (BLOCK_N, BLOCK_K) block of a shuffled weight: of 16 lines, PACK elements (16 bytes) of each lie together."""
    lines = line + tl.arange(0, BLOCK_N)
    depth = k + tl.arange(0, BLOCK_K)
    wide = tl.full((), 1, tl.int64)
    # Divided and multiplied by constants: the compiler sees that PACK elements are contiguous, and loads them at once.
    at_line = (lines // 16) * (wide * 16 * K) + lines % 16 * PACK
    at_depth = (depth // PACK) * (wide * 16 * PACK) + depth % PACK
    pointers = w + g * (wide * stride_g) + at_line[:, None] + at_depth[None, :]
    return tl.load(pointers, mask=(lines < N)[:, None] & (depth < K)[None, :], other=0.0)


@triton.jit
def load_factors(ptr, at, extent, stride, BLOCK: tl.constexpr):
    """BLOCK factors, ``stride`` apart; zeros past ``extent``."""
    places = at + tl.arange(0, BLOCK)
    return tl.load(ptr + places.to(tl.int64) * stride, mask=places < extent, other=0.0)


@triton.jit
def compute_tile(
    a, b, c_desc, c_ptr, scale_a_ptr, scale_b_ptr, tile, tiles_n, sizes_ptr, row_ends, groups, max_M, N, K, G,
    stride_ag, stride_am, stride_ak, stride_bg, stride_bn, stride_bk, stride_cg, stride_cm, stride_cn,
    stride_sa_g, stride_sa_m, stride_sa_k, stride_sb_g, stride_sb_n, stride_sb_k,
    A_KIND: tl.constexpr, B_KIND: tl.constexpr, C_KIND: tl.constexpr, PACK: tl.constexpr, SCALES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STORE_PARTS: tl.constexpr,
):  # fmt: skip
    """Find a tile's group, multiply, store. ``groups`` is None where there are too many to compare with."""
    if groups is None:
        tiles_m = tl.cdiv(max_M, BLOCK_M)
        g = tile // (tiles_m * tiles_n)
        place = tile - g * tiles_m * tiles_n
        rows = rows_that_count(sizes_ptr, g, max_M, g < G)
    else:
        passed = (row_ends <= tile // tiles_n) & (groups < G)
        g = tl.sum(passed.to(tl.int32), 0)
        first = tl.max(tl.where(passed, row_ends, 0), 0) * tiles_n
        rows = rows_that_count(sizes_ptr, g, max_M, g < G)
        place = tile - first
        tiles_m = tl.cdiv(rows, BLOCK_M)
    tile_m, tile_n = tile_position(place, tiles_m, tiles_n, GROUP_M)
    row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
    if groups is None:
        K = tl.where(row < rows, K, 0)  # of a tile without rows that count nothing is read
    wide = tl.full((), 1, tl.int64)
    if SCALES:
        scale_a_ptr += g * (wide * stride_sa_g)
        scale_b_ptr += g * (wide * stride_sb_g)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        block_a = load_block(
            a, g, row, k * BLOCK_K, rows, K, stride_ag, stride_am, stride_ak, A_KIND, True, BLOCK_M, BLOCK_K
        )
        if PACK:
            block_b = load_shuffled(b, g, col, k * BLOCK_K, N, K, stride_bg, PACK, BLOCK_N, BLOCK_K)
        else:
            block_b = load_block(
                b, g, col, k * BLOCK_K, N, K, stride_bg, stride_bn, stride_bk, B_KIND, True, BLOCK_N, BLOCK_K
            )
        if SCALES == BLOCKS:
            acc = add_scaled(
                acc, block_a, block_b.T, scale_a_ptr, scale_b_ptr, k * BLOCK_K // SCALED, row, rows - row, col, N - col,
                stride_sa_m, stride_sa_k, stride_sb_n, stride_sb_k, 1, SCALED, BLOCK_M, BLOCK_N,
            )  # fmt: skip
        else:
            acc = multiply_add(block_a, block_b.T, acc, "ieee")
    if SCALES == LINES:
        acc *= load_factors(scale_a_ptr, row, rows, stride_sa_m, BLOCK_M)[:, None]
        acc *= load_factors(scale_b_ptr, col, N, stride_sb_n, BLOCK_N)[None, :]
    # A window's coordinates are rows of the result seen as (G * max_M, N).
    start = g * max_M if C_KIND == WINDOW else 0
    store_result(
        c_desc, c_ptr, acc, g, start, start + rows, start + row, col, N, stride_cg, stride_cm, stride_cn,
        C_KIND, STORE_PARTS,
    )  # fmt: skip


@triton.jit
def masked_kernel(
    a, b, c_desc, c_ptr, sizes_ptr, scale_a_ptr, scale_b_ptr, max_M, N, K, G,
    stride_ag, stride_am, stride_ak, stride_bg, stride_bn, stride_bk, stride_cg, stride_cm, stride_cn,
    stride_sa_g, stride_sa_m, stride_sa_k, stride_sb_g, stride_sb_n, stride_sb_k,
    A_KIND: tl.constexpr, B_KIND: tl.constexpr, C_KIND: tl.constexpr, PACK: tl.constexpr, SCALES: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STORE_PARTS: tl.constexpr,
):  # fmt: skip
    """C[g, :n] = A[g, :n] @ B[g].T for every group g with n rows that count; any number of programs on grid axis 0.

    Args:
        a: (G, max_M, K); b: (G, N, K): descriptors of blocks (1, ., .), or pointers where A_KIND or B_KIND is ANY.
        c_desc: window of C (G * max_M, N), or None; c_ptr: pointer to C (G, max_M, N).
        sizes_ptr: (G,) rows that count.
        scale_a_ptr, scale_b_ptr: float32, with strides along groups, lines and blocks of K. LINES: a factor for each
            row of A and each line of B; with stride 0, one factor for all lines. BLOCKS: a factor for each 1 × 128 of
            A and each 128 × 128 of B.
        PACK: 0; for a shuffled weight the elements of 16 bytes.
        GROUPS: of ``codes.compared_groups``. 0: tiles are handed out over all rows, as of a batch.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    if GROUPS > 0:
        groups = tl.arange(0, GROUPS)
        row_ends = tl.cumsum(tl.cdiv(rows_that_count(sizes_ptr, groups, max_M, groups < G), BLOCK_M), 0)
        tiles = tl.max(row_ends, 0) * tiles_n
    else:
        groups, row_ends = None, None
        tiles = G * tl.cdiv(max_M, BLOCK_M) * tiles_n
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=GROUPS > 0):
        compute_tile(
            a, b, c_desc, c_ptr, scale_a_ptr, scale_b_ptr, tile, tiles_n, sizes_ptr, row_ends, groups, max_M, N, K, G,
            stride_ag, stride_am, stride_ak, stride_bg, stride_bn, stride_bk, stride_cg, stride_cm, stride_cn,
            stride_sa_g, stride_sa_m, stride_sa_k, stride_sb_g, stride_sb_n, stride_sb_k,
            A_KIND, B_KIND, C_KIND, PACK, SCALES, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STORE_PARTS,
        )  # fmt: skip
