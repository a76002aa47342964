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
def add_scaled(
    acc, a, b, scale_a_ptr, scale_b_ptr, block, row, rows, col, cols,
    stride_sa_m, stride_sa_k, stride_sb_n, stride_sb_k,
    A_LINES: tl.constexpr, B_LINES: tl.constexpr,
):  # fmt: skip
    """acc + (a @ b) * scale_a * scale_b in float32, of a part of one block of K.

    The product is summed from zero: Hopper's fp8 tensor cores keep its bits over 128 additions, not over thousands.

    Args:
        scale_a_ptr, scale_b_ptr: a group's factors of A's rows (A_LINES 1) or of blocks of 128 of them, by block of K;
            and of B's columns.
        block: which block of K; ``rows`` of A exist from ``row`` on, and ``cols`` of B from ``col`` on, none where the
            block is not the group's.
    """
    # Factors are waited for while the product is computed.
    BLOCK_M: tl.constexpr = a.shape[0]
    BLOCK_N: tl.constexpr = b.shape[1]
    block = tl.full((), 1, tl.int64) * block
    from_a, from_b = scale_a_ptr + block * stride_sa_k, scale_b_ptr + block * stride_sb_k
    if A_LINES % BLOCK_M == 0 and A_LINES > 1:
        left = tl.load(from_a + (row // A_LINES).to(tl.int64) * stride_sa_m, mask=rows > 0, other=0.0)
    else:
        at = tl.arange(0, BLOCK_M)
        lines = ((row + at) // A_LINES).to(tl.int64)
        left = tl.load(from_a + lines * stride_sa_m, mask=at < rows, other=0.0)[:, None]
    if B_LINES % BLOCK_N == 0 and B_LINES > 1:
        right = tl.load(from_b + (col // B_LINES).to(tl.int64) * stride_sb_n, mask=cols > 0, other=0.0)
    else:
        at = tl.arange(0, BLOCK_N)
        lines = ((col + at) // B_LINES).to(tl.int64)
        right = tl.load(from_b + lines * stride_sb_n, mask=at < cols, other=0.0)[None, :]
    return acc + tl.dot(a, b) * (left * right)


@triton.jit
def store_tile(c_ptr, acc, row, col, M, N, stride_cm, stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Round the accumulator once, to C's type, and write the part inside C."""
    rows = row + tl.arange(0, BLOCK_M)
    cols = col + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + rows.to(tl.int64)[:, None] * stride_cm + cols.to(tl.int64)[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))
