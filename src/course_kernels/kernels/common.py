"""Device functions that several kernels share: tile order, the product of one tile, the masked store."""

from __future__ import annotations

from course_kernels.kernels.language import tl, triton


@triton.jit
def tile_position(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Tile index → (tile row, tile column). Strips of GROUP_M tile rows are walked column by column, so that
    programs running side by side share operand blocks in L2; GROUP_M = 1 is plain row-major order."""
    if GROUP_M == 1:
        return tile // tiles_n, tile % tiles_n
    width = GROUP_M * tiles_n
    first_m = (tile // width) * GROUP_M
    height = min(tiles_m - first_m, GROUP_M)
    inside = tile % width
    return first_m + inside % height, inside // height


@triton.jit
def xcd_tile(tile, tiles, programs, NUM_XCDS: tl.constexpr):
    """The tile that is computed in a tile's place, so that tiles that follow each other share a chiplet's L2 cache.

    The GPU deals programs out to its NUM_XCDS chiplets in turn, and program p computes tiles p, p + programs, ... Among
    the tiles computed at a time, those of a chiplet are every NUM_XCDS-th; here they become a run. The order changes
    within each round of ``programs`` tiles alone, the last of which may be short, so that each tile is computed once.
    ``schedule.xcd_tile`` is the same on the host.
    """
    first = tile // programs * programs
    count = tl.minimum(tiles - first, programs)
    inside = tile - first
    xcd = inside % NUM_XCDS
    return first + xcd * (count // NUM_XCDS) + tl.minimum(xcd, count % NUM_XCDS) + inside // NUM_XCDS


@triton.jit
def accumulate_tile(
    a_ptr, b_ptr, row, col, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The (BLOCK_M, BLOCK_N) float32 product of A[row:, :] and B[:, col:]; elements outside either matrix count 0.

    Offsets are 64-bit: row * stride passes 2**31 for matrices that large.
    """
    rows = row + tl.arange(0, BLOCK_M)
    cols = col + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * stride_am + depth.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + depth.to(tl.int64)[:, None] * stride_bk + cols.to(tl.int64)[None, :] * stride_bn
    # Triton passes a stride below 2**31 in 32 bits, which BLOCK_K times the stride may not fit into.
    one = tl.full((), 1, tl.int64)
    stride_ak, stride_bk = one * stride_ak, one * stride_bk
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (depth[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(depth[:, None] < left) & (cols[None, :] < N), other=0.0)
        acc = multiply_add(a, b, acc, PRECISION)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    return acc


@triton.jit
def multiply_add(a, b, acc, PRECISION: tl.constexpr):
    """acc + a @ b in float32. Hopper's fp8 tensor cores sum in fewer bits than float32; limiting the run to one
    block's K keeps the error at that of 64 to 128 additions, whatever K is."""
    if a.dtype.primitive_bitwidth == 8:
        return tl.dot(a, b, acc, max_num_imprecise_acc=a.shape[1])
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def store_tile(c_ptr, acc, row, col, M, N, stride_cm, stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Round the accumulator once, to C's type, and write the part inside C."""
    rows = row + tl.arange(0, BLOCK_M)
    cols = col + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + rows.to(tl.int64)[:, None] * stride_cm + cols.to(tl.int64)[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))
