"""Groups packed one after the other along M: one descriptor for all of A, one for all of B, one for all of C.

A tile of A may start at any row, because a descriptor's row coordinate needs no alignment, and may reach into the next
group's rows: they only make rows of the tile that are never stored. Only the store must know where the group ends. It
goes through a *window*: a descriptor whose bounds slide with the group (``triton.tools.ragged_tma``), so that the
hardware cuts off what lies past the end, full tile or boundary tile alike, and the kernel has no branch.

Without a branch, and with the group found by comparing instead of walking, the loop over tiles has nothing in it that
the compiler cannot fuse with the loop over K (``flatten``): the first blocks of the next tile are on their way while
this one is being stored.

The ragged dimension is called M here. A ragged N is the same kernel on the transposed operands.
"""

from __future__ import annotations

from course_kernels.kernels.language import tl, triton  # isort: skip (sets Triton up)
from triton.tools.ragged_tma import to_ragged_indices

from course_kernels.kernels.codes import SCALE_BLOCK, Store
from course_kernels.kernels.common import add_scaled, multiply_add, tile_position, xcd_tile
from course_kernels.kernels.gated import (
    gather_rows,
    load_pair,
    low_rank_sums,
    store_activated,
    store_gradient,
    with_sources,
)
from course_kernels.kernels.round_robin import ANY, DYNAMIC, ROW_MAJOR, next_dynamic_tile

POINTERS = tl.constexpr(int(Store.POINTERS))
WINDOW = tl.constexpr(int(Store.WINDOW))
GROUPED = tl.constexpr(int(Store.GROUPED))
SCALE_DEPTH = tl.constexpr(SCALE_BLOCK)  # depth of a block that shares a factor
LAYER_PARTS = (gather_rows, load_pair, store_activated, store_gradient)  # which launches name, as those below


@triton.jit
def group_bounds(offs_ptr, g, total, used):
    """First row of group g and the row after its last, clamped to [0, total]; both are 0 where not ``used``."""
    start = tl.load(offs_ptr + g - 1, mask=used & (g > 0), other=0)
    end = tl.load(offs_ptr + g, mask=used, other=0)
    start = tl.minimum(tl.maximum(start, 0), total).to(tl.int32)
    end = tl.minimum(tl.maximum(end, 0), total).to(tl.int32)
    return start, tl.maximum(end, start)


@triton.jit
def search_group(offs_ptr, place, total, G, BLOCK_M: tl.constexpr):
    """The group of a row of tiles, by bisection, where group g begins with number start // BLOCK_M + g.

    So numbered, groups do not overlap: g has cdiv(end - start, BLOCK_M) rows of tiles, at most end // BLOCK_M -
    start // BLOCK_M + 1. Numbers that no tile has are left over, fewer than groups.
    """
    low, high = 0, G
    while high - low > 1:
        middle = (low + high) // 2
        start, _ = group_bounds(offs_ptr, middle, total, True)
        before = start // BLOCK_M + middle <= place
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def load_block(
    operand, g, line, k, lines, K, stride_g, stride_line, stride_k,
    KIND: tl.constexpr, IN_GROUP: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A (BLOCK_L, BLOCK_K) block of an operand seen as lines of length K: rows of A, columns of B.

    ROW_MAJOR and COL_MAJOR operands are descriptors in which K, or the line, is the contiguous dimension; ANY is a
    pointer. Outside the operand there are zeros.
    """
    if KIND == ANY:
        at = line + tl.arange(0, BLOCK_L)
        depth = k + tl.arange(0, BLOCK_K)
        base = operand + g * (tl.full((), 1, tl.int64) * stride_g)
        pointers = base + at.to(tl.int64)[:, None] * stride_line + depth.to(tl.int64)[None, :] * stride_k
        return tl.load(pointers, mask=(at < lines)[:, None] & (depth < K)[None, :], other=0.0)
    elif KIND == ROW_MAJOR:
        if IN_GROUP:
            return operand.load([g, line, k]).reshape(BLOCK_L, BLOCK_K)
        else:
            return operand.load([line, k])
    else:
        if IN_GROUP:
            return operand.load([g, k, line]).reshape(BLOCK_K, BLOCK_L).T
        else:
            return operand.load([k, line]).T


@triton.jit
def scaled_and_biased(
    acc, scale_a_ptr, scale_b_ptr, bias_ptr, g, row_a, rows, col, N, stride_bias_g, stride_bias_n, stride_scale_g,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """acc * scale_a[row] * scale_b[g, col] + bias[g, col], all in float32. ``row_a`` is the tile's first entry of
    ``scale_a``, of which ``rows`` exist; arguments that are None are left out."""
    cols = col + tl.arange(0, BLOCK_N)
    wide = tl.full((), 1, tl.int64)
    if scale_a_ptr is not None:
        at = tl.arange(0, BLOCK_M)
        acc *= tl.load(scale_a_ptr + row_a + at, mask=at < rows, other=0.0)[:, None]
        acc *= tl.load(scale_b_ptr + g * (wide * stride_scale_g) + cols, mask=cols < N, other=0.0)[None, :]
    if bias_ptr is not None:
        of_group = bias_ptr + g * (wide * stride_bias_g)
        bias = tl.load(of_group + cols.to(tl.int64) * stride_bias_n, mask=cols < N, other=0.0)
        acc += bias.to(tl.float32)[None, :]
    return acc


@triton.jit
def store_part(desc, c_ptr, part, g, start, end, row, col, N, stride_cg, stride_cm, stride_cn, KIND: tl.constexpr):
    """Round once and store the part inside the group. ``row`` is the part's first row of C; with a window, it is not
    before ``start``."""
    if KIND == WINDOW:
        # Coordinates of a window: the last ``end - start`` rows in front of its bound are the group's.
        sign, base, inside = to_ragged_indices(start, end - start, row - start)
        desc.store([sign, base, inside, col], part.to(desc.dtype).reshape(1, 1, part.shape[0], part.shape[1]))
    elif KIND == GROUPED:
        desc.store([g, row, col], part.to(desc.dtype).reshape(1, part.shape[0], part.shape[1]))
    else:
        rows = row + tl.arange(0, part.shape[0])
        cols = col + tl.arange(0, part.shape[1])
        base = c_ptr + g * (tl.full((), 1, tl.int64) * stride_cg)
        pointers = base + rows.to(tl.int64)[:, None] * stride_cm + cols.to(tl.int64)[None, :] * stride_cn
        inside = (rows >= start) & (rows < end)
        tl.store(pointers, part.to(c_ptr.dtype.element_ty), mask=inside[:, None] & (cols < N)[None, :])


@triton.jit
def store_result(
    desc, c_ptr, acc, g, start, end, row, col, N, stride_cg, stride_cm, stride_cn,
    KIND: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """``store_part`` in one or two halves: a half needs half the shared memory for staging."""
    if PARTS == 1 or KIND == POINTERS:
        store_part(desc, c_ptr, acc, g, start, end, row, col, N, stride_cg, stride_cm, stride_cn, KIND)
    else:
        half: tl.constexpr = acc.shape[1] // 2
        left, right = tl.split(acc.reshape(acc.shape[0], 2, half).permute(0, 2, 1))
        store_part(desc, c_ptr, left, g, start, end, row, col, N, stride_cg, stride_cm, stride_cn, KIND)
        store_part(desc, c_ptr, right, g, start, end, row, col + half, N, stride_cg, stride_cm, stride_cn, KIND)


@triton.jit
def load_rows(
    operand, g, row, k, rows, K, KIND: tl.constexpr, IN_GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The ``LOAD_A`` function for rows of A as they are; ``operand``: A, its strides (group, row, k), no index."""
    a, stride_g, stride_m, stride_k, _ = operand
    return load_block(a, g, row, k, rows, K, stride_g, stride_m, stride_k, KIND, IN_GROUP, BLOCK_M, BLOCK_K)


@triton.jit
def load_columns(
    b, g, col, k, N, K, stride_g, stride_n, stride_k, KIND: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The ``LOAD_B`` function for columns of B as they are."""
    return load_block(b, g, col, k, N, K, stride_g, stride_n, stride_k, KIND, True, BLOCK_N, BLOCK_K)


@triton.jit
def store_sums(
    parts, acc, g, start, end, row, row_a, col, N, KIND: tl.constexpr, STORE_PARTS: tl.constexpr,
    SCALED: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The ``EPILOGUE`` function for stores: factors of rows and columns if SCALED, a bias, one rounding, the store.

    Args:
        parts: the result and its strides (desc, ptr, group, row, column); the bias and its strides (ptr, group,
            column); the factors (of A's rows, of B's columns, group); what other epilogues need.
        acc: the tile's sums; its first row of C, ``row``, is ``row_a`` among the factors of A's rows.
    """
    c_desc, c_ptr, stride_cg, stride_cm, stride_cn, bias_ptr, stride_bias_g, stride_bias_n = parts[:8]
    scale_a_ptr, scale_b_ptr, stride_scale_g = parts[8:11]
    if not SCALED:
        scale_a_ptr, scale_b_ptr = None, None
    acc = scaled_and_biased(
        acc, scale_a_ptr, scale_b_ptr, bias_ptr, g, row_a, end - row, col, N,
        stride_bias_g, stride_bias_n, stride_scale_g, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    store_result(c_desc, c_ptr, acc, g, start, end, row, col, N, stride_cg, stride_cm, stride_cn, KIND, STORE_PARTS)


@triton.jit
def compute_tile(
    operand_a, b, low_rank, parts, block_scales, tile, tiles_n, offs_ptr, row_ends, groups,
    total, M, N, K, G, stride_bg, stride_bk, stride_bn, LOAD_A: tl.constexpr, LOAD_B: tl.constexpr,
    EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr, A_KIND: tl.constexpr, B_KIND: tl.constexpr, C_KIND: tl.constexpr,
    RAGGED: tl.constexpr, SHARED_B: tl.constexpr, A_LINES: tl.constexpr, B_LINES: tl.constexpr, ROW_STEP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STORE_PARTS: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Find a tile's group, multiply, store. ``groups`` is None where there are too many to compare with."""
    if RAGGED and groups is None:
        g = search_group(offs_ptr, tile // tiles_n, total, G, BLOCK_M)
        start, end = group_bounds(offs_ptr, g, total, True)
        top = start // ROW_STEP * ROW_STEP
        first = (start // BLOCK_M + g) * tiles_n
        tiles_m = tl.cdiv(end - top, BLOCK_M)
        # A number without a tile: one without rows, of which nothing is computed or stored.
        unused = tile - first >= tiles_m * tiles_n
        first, end, K = tl.where(unused, tile, first), tl.where(unused, start, end), tl.where(unused, 0, K)
        tiles_m = tl.maximum(tiles_m, 1)
    elif RAGGED:
        # Each thread holds a few groups' ends, counted in rows of tiles; how many of them lie at or before this tile
        # is its group. A loop over the groups would hand a program its next tile group by group.
        passed = (row_ends <= tile // tiles_n) & (groups < G)
        g = tl.sum(passed.to(tl.int32), 0)
        first = tl.max(tl.where(passed, row_ends, 0), 0) * tiles_n
        start, end = group_bounds(offs_ptr, g, total, g < G)
        top = start // ROW_STEP * ROW_STEP
        tiles_m = tl.cdiv(end - top, BLOCK_M)
    else:
        tiles_m = tl.cdiv(M, BLOCK_M)
        g = tile // (tiles_m * tiles_n)
        first = g * tiles_m * tiles_n
        start, top, end = 0, 0, M
    tile_m, tile_n = tile_position(tile - first, tiles_m, tiles_n, GROUP_M)
    row, col = top + tile_m * BLOCK_M, tile_n * BLOCK_N
    b_group = 0 if SHARED_B else g
    if operand_a[4] is not None:
        operand_a = with_sources(operand_a, row, end, BLOCK_M)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if RANK > 0:
        acc = low_rank_sums(
            low_rank, acc, g, row, end, col, N, LOAD_B, ACTIVATION, RANK, BLOCK_R, BLOCK_M, BLOCK_N, PRECISION
        )  # fmt: skip
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        block_a = LOAD_A(operand_a, g, row, k * BLOCK_K, end, K, A_KIND, not RAGGED, BLOCK_M, BLOCK_K)
        block_b = LOAD_B(
            b,
            b_group,
            col,
            k * BLOCK_K,
            N,
            K,
            stride_bg,
            stride_bn,
            stride_bk,
            B_KIND,
            ACTIVATION,
            BLOCK_N,
            BLOCK_K,
        )
        if A_LINES == 0:
            acc = multiply_add(block_a, block_b.T, acc, PRECISION)
        else:
            from_a, from_b, stride_sa_g, stride_sa_m, stride_sa_k, stride_sb_g, stride_sb_n, stride_sb_k = block_scales
            from_b += g * (tl.full((), 1, tl.int64) * stride_sb_g)
            if not RAGGED:
                from_a += g * (tl.full((), 1, tl.int64) * stride_sa_g)
            acc = add_scaled(
                acc, block_a, block_b.T, from_a, from_b, k * BLOCK_K // SCALE_DEPTH, row, end - row, col, N - col,
                stride_sa_m, stride_sa_k, stride_sb_n, stride_sb_k, A_LINES, B_LINES, BLOCK_M, BLOCK_N,
            )  # fmt: skip
    row_a = row if RAGGED else g * (tl.full((), 1, tl.int64) * M) + row
    EPILOGUE(
        parts, acc, g, start, end, row, row_a, col, N, C_KIND, STORE_PARTS, A_LINES == 0, ACTIVATION, BLOCK_M, BLOCK_N
    )


# A batch has its own number of rows: not worth a compilation each time it is a multiple of 16, or is not.
@triton.jit(do_not_specialize=["total", "G", "stride_sa_k"])
def contiguous_kernel(
    a, b, c_desc, c_ptr, offs_ptr, bias_ptr, scale_a_ptr, scale_b_ptr, counter_ptr,
    total, M, N, K, G, stride_ag, stride_am, stride_ak, stride_bg, stride_bk, stride_bn,
    stride_cg, stride_cm, stride_cn, stride_bias_g, stride_bias_n, stride_scale_g,
    stride_sa_g, stride_sa_m, stride_sa_k, stride_sb_g, stride_sb_n, stride_sb_k,
    index_ptr, pre_ptr, weights_ptr, activated_ptr, dots_ptr,
    left_ptr, right_ptr, low_scale, stride_right_g, stride_right_r, stride_right_n,
    LOAD_A: tl.constexpr, LOAD_B: tl.constexpr, EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr,
    A_KIND: tl.constexpr, B_KIND: tl.constexpr, C_KIND: tl.constexpr, RAGGED: tl.constexpr, SHARED_B: tl.constexpr,
    A_LINES: tl.constexpr, B_LINES: tl.constexpr, ROW_STEP: tl.constexpr, ZERO_TAIL: tl.constexpr, GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STORE_PARTS: tl.constexpr, SCHEDULE: tl.constexpr, PRECISION: tl.constexpr, NUM_XCDS: tl.constexpr,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """C[start:end] = A[start:end] @ B[g] for every group g, or C[g] = A[g] @ B[g] where not RAGGED.

    Args:
        a: (total, K), or (G, M, K): a descriptor, or a pointer where A_KIND is ANY. Descriptors of three dimensions
            are of blocks (1, ., .).
        b: (G, K, N), or (1, K, N) where SHARED_B; its descriptor likewise.
        c_desc: window of C (total, N), descriptor of C (G, M, N), or None; c_ptr: pointer to C, for masks and the tail.
        offs_ptr: (G,) ends; counter_ptr: one int32 that is 0, for the dynamic schedule.
        bias_ptr: (G, N); scale_a_ptr: (total,) or (G, M), contiguous; scale_b_ptr: (G, N), last stride 1.
        A_LINES, B_LINES: 0, or lines of A's and B's blocks of 128 along K, 1 or 128 each: then scale_a_ptr is
            (total, blocks) or (G, M, blocks), or M in blocks of its own, with any strides, and scale_b_ptr is likewise
            (G, N, blocks). BLOCK_K divides 128.
        index_ptr, pre_ptr, weights_ptr, activated_ptr, dots_ptr: of the parts in ``kernels.gated``, else None.
        left_ptr, right_ptr, low_scale: low_scale * left @ right[g] is added to the sums, of (total, RANK), contiguous,
            and (G, RANK, N); None, with a RANK of 0, for none. BLOCK_R is the depth of a step of it.
        LOAD_A: how a block of A is loaded, a device function such as ``load_rows``; its first argument is one tuple.
        LOAD_B: how a block of B's columns is loaded, such as ``load_columns``.
        EPILOGUE: writes a tile's sums to C, a device function such as ``store_sums``; its first argument is a tuple.
        ACTIVATION: a tuple (gated, step, function, alpha, limit, shift) of the activation, or None; ``step`` is 2 if
            gate and up take turns in B's columns.
        ROW_STEP: tiles begin at multiples of it. It is 1, except where A is a descriptor whose innermost dimension is
            the rows: that coordinate must be aligned, so it is the number of elements in 16 bytes. Then C goes through
            pointers, which leave out the rows before the group.
        GROUPS: of ``codes.compared_groups``.
        ZERO_TAIL: write zeros to the rows after the last group.
        NUM_XCDS: of ``common.xcd_tile``; the dynamic schedule has none.
    """
    low_rank = (left_ptr, right_ptr, low_scale, stride_right_g, stride_right_n, stride_right_r)
    operand_a = (a, stride_ag, stride_am, stride_ak, index_ptr)
    parts = (
        c_desc, c_ptr, stride_cg, stride_cm, stride_cn, bias_ptr, stride_bias_g, stride_bias_n,
        scale_a_ptr, scale_b_ptr, stride_scale_g, pre_ptr, weights_ptr, activated_ptr, dots_ptr,
    )  # fmt: skip
    block_scales = (
        scale_a_ptr, scale_b_ptr, stride_sa_g, stride_sa_m, stride_sa_k, stride_sb_g, stride_sb_n, stride_sb_k,
    )  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    if GROUPS > 0:
        groups = tl.arange(0, GROUPS)
        row_ends = groups
    else:
        groups, row_ends = None, None
    if RAGGED and GROUPS == 0:
        _, last = group_bounds(offs_ptr, G - 1, total, True)
        tiles = (last // BLOCK_M + G) * tiles_n
    elif RAGGED:
        starts, ends = group_bounds(offs_ptr, groups, total, groups < G)
        tops = tl.where(ends > starts, starts // ROW_STEP * ROW_STEP, ends)
        row_ends = tl.cumsum(tl.cdiv(ends - tops, BLOCK_M), 0)
        tiles = tl.max(row_ends, 0) * tiles_n
    else:
        tiles = G * tl.cdiv(M, BLOCK_M) * tiles_n
    if SCHEDULE == DYNAMIC:
        tile = next_dynamic_tile(counter_ptr, tiles)
        while tile < tiles:
            compute_tile(
                operand_a, b, low_rank, parts, block_scales, tile, tiles_n, offs_ptr, row_ends, groups,
                total, M, N, K, G, stride_bg, stride_bk, stride_bn, LOAD_A, LOAD_B, EPILOGUE,
                ACTIVATION, A_KIND, B_KIND, C_KIND, RAGGED, SHARED_B, A_LINES, B_LINES,
                ROW_STEP, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STORE_PARTS, RANK, BLOCK_R, PRECISION,
            )  # fmt: skip
            tile = next_dynamic_tile(counter_ptr, tiles)
    else:
        # Not with anything inside that loads before the loop over K, an index or a product of low rank: fused with it,
        # A or B would no longer be loaded ahead.
        alone: tl.constexpr = RANK == 0 and index_ptr is None
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=GROUPS > 0 and alone):
            if NUM_XCDS > 1:
                position = xcd_tile(tile, tiles, tl.num_programs(0), NUM_XCDS)
            else:
                position = tile
            compute_tile(
                operand_a, b, low_rank, parts, block_scales, position, tiles_n, offs_ptr, row_ends, groups,
                total, M, N, K, G, stride_bg, stride_bk, stride_bn, LOAD_A, LOAD_B, EPILOGUE,
                ACTIVATION, A_KIND, B_KIND, C_KIND, RAGGED, SHARED_B, A_LINES, B_LINES,
                ROW_STEP, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STORE_PARTS, RANK, BLOCK_R, PRECISION,
            )  # fmt: skip
    if ZERO_TAIL:
        if GROUPS > 0:
            last = tl.max(tl.where(groups < G, ends, 0), 0)
        zeros = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        # The tail's tiles go on where the groups' left off, so that the program with the least to do begins.
        before = tl.program_id(0) + tl.num_programs(0) - tiles % tl.num_programs(0)
        for tile in range(before % tl.num_programs(0), tl.cdiv(total - last, BLOCK_M) * tiles_n, tl.num_programs(0)):
            row, col = last + tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N
            store_part(c_desc, c_ptr, zeros, 0, last, total, row, col, N, stride_cg, stride_cm, stride_cn, POINTERS)
