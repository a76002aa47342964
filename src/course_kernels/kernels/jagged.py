"""Packed rows times one shared B: a kernel with a program for every tile, and a persistent one.

The groups are rows offsets[g] to offsets[g + 1] of A, and tiles begin at a group's first row. The offsets are on the
device, so neither kernel knows on the host how many tiles there are. The simple one launches a program for every tile
that there could be; a spare program writes a tile of the tail's zeros, or nothing. The persistent one launches a fixed
number of programs, and each strides through one index over the tiles of all groups: every number that it looks at is
a tile of its own.

Both find a tile's group by comparing its number with all cumulative counts at once, as ``contiguous`` does, or by
bisection where there are too many. Source of the idea: Helion's example of a grouped GEMM, whose persistent kernel
walks group by group instead.
"""

from __future__ import annotations

from course_kernels.kernels.common import multiply_add, store_tile, tile_position
from course_kernels.kernels.language import tl, triton


@triton.jit
def larger(x, y):
    """The larger of two, for a scan."""
    return tl.maximum(x, y)


@triton.jit
def count_tiles(offsets_ptr, total, G, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """The row after each group's last, and the rows of tiles up to there; both repeat past the last group.

    Ends are clamped to [0, total] and never decrease: a group that ends before it starts is empty. The first group
    starts at 0. So tiles cover every row up to the largest end once, whatever the offsets are.
    """
    groups = tl.arange(0, GROUPS)
    starts = tl.load(offsets_ptr + groups, mask=(groups > 0) & (groups <= G), other=0)
    ends = tl.load(offsets_ptr + groups + 1, mask=groups < G, other=0)
    starts = tl.associative_scan(tl.minimum(tl.maximum(starts, 0), total).to(tl.int32), 0, larger)
    ends = tl.associative_scan(tl.minimum(tl.maximum(ends, 0), total).to(tl.int32), 0, larger)
    return ends, tl.cumsum(tl.cdiv(ends - starts, BLOCK_M), 0)


@triton.jit
def find_group(tile_row, ends, row_ends, total):
    """The group of a row of tiles: the first row of tiles that is its own, its first row, and the row after its last.

    It begins where the last of the groups ends that this tile has passed, and is the first that the tile has not.
    """
    passed = row_ends <= tile_row
    first = tl.max(tl.where(passed, row_ends, 0), 0)
    start = tl.max(tl.where(passed, ends, 0), 0)
    end = tl.min(tl.where(passed, total, ends), 0)
    return first, start, end


@triton.jit
def multiply_tile(
    a_ptr, b_ptr, row, col, end, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The float32 product of rows [row, end) of A and columns from ``col`` of B. Operands of two dtypes are converted
    once they are loaded: two of float16, bfloat16 and float32 meet in float32."""
    rows = row + tl.arange(0, BLOCK_M)
    cols = col + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * stride_am + depth.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + depth.to(tl.int64)[:, None] * stride_bk + cols.to(tl.int64)[None, :] * stride_bn
    # Triton passes a stride below 2**31 in 32 bits, which BLOCK_K times the stride may not fit into.
    step_a, step_b = BLOCK_K * tl.cast(stride_ak, tl.int64), BLOCK_K * tl.cast(stride_bk, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        a = tl.load(a_ptrs, mask=(rows[:, None] < end) & (depth[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(depth[:, None] < left) & (cols[None, :] < N), other=0.0)
        if a.dtype != b.dtype:
            acc = multiply_add(a.to(tl.float32), b.to(tl.float32), acc, PRECISION)
        else:
            acc = multiply_add(a, b, acc, PRECISION)
        a_ptrs += step_a
        b_ptrs += step_b
    return acc


@triton.jit
def bounded_offset(offsets_ptr, g, total, G):
    """Where group g begins in [0, total]. The tail is group G, and what follows it begins at ``total``."""
    offset = tl.load(offsets_ptr + g, mask=(g > 0) & (g <= G), other=0)
    offset = tl.minimum(tl.maximum(offset, 0), total).to(tl.int32)
    return tl.where(g <= G, offset, total)


@triton.jit
def search_group(offsets_ptr, tile_row, total, G, BLOCK_M: tl.constexpr):
    """The group, or the tail, of a row of tiles, by bisection; tiles are numbered as for ``contiguous.search_group``.
    Offsets that decrease give an unspecified result."""
    low, high = 0, G + 1
    while high - low > 1:
        middle = (low + high) // 2
        before = bounded_offset(offsets_ptr, middle, total, G) // BLOCK_M + middle <= tile_row
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def compute_searched_tile(
    a_ptr, b_ptr, c_ptr, offsets_ptr, tile, total, N, K, G,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Search a tile's group, multiply, store. The tail's product has no depth, so its tiles are zeros; a number without
    a tile has no rows."""
    tile_row, tile_n = tile_position(tile, total // BLOCK_M + G + 1, tl.cdiv(N, BLOCK_N), GROUP_M)
    g = search_group(offsets_ptr, tile_row, total, G, BLOCK_M)
    start, end = bounded_offset(offsets_ptr, g, total, G), bounded_offset(offsets_ptr, g + 1, total, G)
    row, col = start + (tile_row - (start // BLOCK_M + g)) * BLOCK_M, tile_n * BLOCK_N
    depth = tl.where((g < G) & (row < end), K, 0)
    acc = multiply_tile(
        a_ptr, b_ptr, row, col, end, N, depth, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip
    store_tile(c_ptr, acc, row, col, end, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)


# A batch has its own number of rows: not worth a compilation each time it is a multiple of 16, or is not.
@triton.jit(do_not_specialize=["total", "G"])
def jagged_kernel(
    a_ptr, b_ptr, c_ptr, offsets_ptr, total, N, K, G, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """C = A @ B for the rows of all groups, zeros after the last; a program for every tile.

    The grid has (cdiv(total, BLOCK_M) + G) * cdiv(N, BLOCK_N) programs: each group and the tail end in one boundary
    tile. a_ptr: (total, K), b_ptr: (K, N), c_ptr: (total, N), any strides. offsets_ptr: (G + 1,), contiguous. GROUPS:
    of ``codes.compared_groups``.
    """
    if GROUPS == 0:
        tile = tl.program_id(0)
        compute_searched_tile(
            a_ptr, b_ptr, c_ptr, offsets_ptr, tile, total, N, K, G,
            stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PRECISION,
        )  # fmt: skip
    else:
        ends, row_ends = count_tiles(offsets_ptr, total, G, BLOCK_M, GROUPS)
        tiles_n = tl.cdiv(N, BLOCK_N)
        tile_row, tile_n = tile_position(tl.program_id(0), tl.num_programs(0) // tiles_n, tiles_n, GROUP_M)
        group_rows = tl.max(row_ends, 0)
        if tile_row < group_rows:
            first, start, end = find_group(tile_row, ends, row_ends, total)
            row, col = start + (tile_row - first) * BLOCK_M, tile_n * BLOCK_N
            acc = multiply_tile(
                a_ptr, b_ptr, row, col, end, N, K, stride_am, stride_ak, stride_bk, stride_bn,
                BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
            store_tile(c_ptr, acc, row, col, end, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)
        else:
            row = tl.max(ends, 0) + (tile_row - group_rows) * BLOCK_M
            if row < total:
                zeros = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                store_tile(c_ptr, zeros, row, tile_n * BLOCK_N, total, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)


@triton.jit(do_not_specialize=["total", "G"])
def jagged_persistent_kernel(
    a_ptr, b_ptr, c_ptr, offsets_ptr, total, N, K, G, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """As ``jagged_kernel``, by any number of programs; tiles are numbered group after group."""
    if GROUPS == 0:
        tiles = (total // BLOCK_M + G + 1) * tl.cdiv(N, BLOCK_N)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            compute_searched_tile(
                a_ptr, b_ptr, c_ptr, offsets_ptr, tile, total, N, K, G,
                stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PRECISION,
            )  # fmt: skip
    else:
        ends, row_ends = count_tiles(offsets_ptr, total, G, BLOCK_M, GROUPS)
        tiles_n = tl.cdiv(N, BLOCK_N)
        tiles = tl.max(row_ends, 0) * tiles_n
        # Not flattened into one loop, as that of ``contiguous``: of blocks that are read through pointers the compiler
        # then keeps fewer in flight (40 KiB instead of 64 for 64×64×64 in four stages).
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            first, start, end = find_group(tile // tiles_n, ends, row_ends, total)
            tile_m, tile_n = tile_position(tile - first * tiles_n, tl.cdiv(end - start, BLOCK_M), tiles_n, GROUP_M)
            row, col = start + tile_m * BLOCK_M, tile_n * BLOCK_N
            acc = multiply_tile(
                a_ptr, b_ptr, row, col, end, N, K, stride_am, stride_ak, stride_bk, stride_bn,
                BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
            store_tile(c_ptr, acc, row, col, end, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)
        last = tl.max(ends, 0)
        zeros = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for tile in range(tl.program_id(0), tl.cdiv(total - last, BLOCK_M) * tiles_n, tl.num_programs(0)):
            row, col = last + tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N
            store_tile(c_ptr, zeros, row, col, total, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)
