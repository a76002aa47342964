"""Float8 values and the factors of their blocks: 1x128 along a line, or 128x128.

A program reads its blocks once, finds the largest magnitude of each, and writes values and factors. Groups along the
depth can be written as whole blocks: each begins at a multiple of 128, and zeros fill its last block.
"""

from __future__ import annotations

from course_kernels.kernels.codes import SCALE_BLOCK
from course_kernels.kernels.language import tl, triton

DEPTH = tl.constexpr(SCALE_BLOCK)
LARGEST = tl.constexpr(448.0)  # of float8_e4m3fn
LARGEST_E5M2 = tl.constexpr(57344.0)
LEAST = tl.constexpr(2.0**-100)  # of the magnitudes that a factor is made from


@triton.jit
def scale_of(largest, q_ptr, POWER_OF_TWO: tl.constexpr):
    """The factors of blocks or lines for values of q's type, from their largest magnitudes, and the reciprocals. Both
    are normal numbers."""
    most: tl.constexpr = LARGEST_E5M2 if q_ptr.dtype.element_ty == tl.float8e5 else LARGEST
    scale = tl.div_rn(tl.maximum(largest, LEAST), tl.full(largest.shape, most, tl.float32))
    if POWER_OF_TWO:  # the next one up, unless it is one
        bits = scale.to(tl.int32, bitcast=True)
        scale = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    return scale, tl.div_rn(tl.full(largest.shape, 1.0, tl.float32), scale)


@triton.jit
def to_float8(values, q_ptr, ROUND: tl.constexpr):
    """Values of magnitudes up to the largest of q's type, and NaN, in float8, ties to even. ROUND: before the
    conversion, for the interpreter's, which loses the carry into the exponent, and NaN."""
    if ROUND:
        if q_ptr.dtype.element_ty == tl.float8e5:
            values = rounded_to(values, 2, 2.0**-14, 114688.0)
        else:
            values = rounded_to(values, 3, 2.0**-6, 480.0)
    return values.to(q_ptr.dtype.element_ty)


@triton.jit
def rounded_to(values, DIGITS: tl.constexpr, NORMAL: tl.constexpr, NAN: tl.constexpr):
    """Float32 values with DIGITS bits of mantissa, and fewer below NORMAL, the least normal number. NaN becomes NAN,
    whose bits are those of a NaN in float8."""
    dropped: tl.constexpr = 23 - DIGITS
    bits = values.to(tl.int32, bitcast=True)
    half: tl.constexpr = (1 << (dropped - 1)) - 1
    normal = ((bits + half + ((bits >> dropped) & 1)) & -(1 << dropped)).to(tl.float32, bitcast=True)
    shift: tl.constexpr = 1.5 * NORMAL * (1 << dropped)  # float32 is as coarse there as float8 is below NORMAL
    subnormal = ((values + shift) - shift).to(tl.int32, bitcast=True) | (bits & -0x80000000)  # zeros keep their sign
    rounded = tl.where(tl.abs(values) < NORMAL, subnormal.to(tl.float32, bitcast=True), normal)
    return tl.where(values == values, rounded, NAN)


@triton.jit
def clamped_end(offs_ptr, g, depth, used):
    """Where group g ends in [0, depth]; 0 where not ``used``."""
    end = tl.load(offs_ptr + g, mask=used, other=0)
    return tl.minimum(tl.maximum(end, 0), depth).to(tl.int32)


@triton.jit
def search_whole_block(ends_ptr, block, G):
    """The group that ``block`` belongs to, and G after the last one's, by bisection of the ends of whole blocks."""
    low, high = -1, G
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(ends_ptr + middle) <= block * DEPTH
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return high


@triton.jit
def search_column(offs_ptr, column, depth, G):
    """The group whose blocks are around ``column``, and G for what follows the last one, by bisection. Blocks of group
    g begin in column start // 128 + g."""
    low, high = 0, G + 1
    while high - low > 1:
        middle = (low + high) // 2
        before = clamped_end(offs_ptr, middle - 1, depth, True) // DEPTH + middle <= column
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def group_bounds(offs_ptr, depth, G, GROUPS: tl.constexpr):
    """Numbers of groups, and where each begins and ends. Group G is what follows the last one."""
    groups = tl.arange(0, GROUPS)
    starts = tl.load(offs_ptr + groups - 1, mask=(groups > 0) & (groups <= G), other=0)
    ends = tl.load(offs_ptr + groups, mask=groups < G, other=depth)
    starts = tl.minimum(tl.maximum(starts, 0), depth).to(tl.int32)
    return groups, starts, tl.minimum(tl.maximum(ends, 0), depth).to(tl.int32)


@triton.jit
def whole_block(offs_ptr, ends_ptr, block, depth, G, GROUPS: tl.constexpr):
    """Which block of the operand as it is becomes ``block``, where groups are whole blocks: its group, where that
    begins, where the block begins and where it ends at the latest. There is none after the last group's: its group is G
    then, and it has nothing. The first program writes where the groups end then. Where GROUPS is 0, they are there."""
    if GROUPS > 0:
        groups, starts, ends = group_bounds(offs_ptr, depth, G, GROUPS)
        blocks = tl.where(groups < G, tl.cdiv(tl.maximum(ends - starts, 0), DEPTH), 0)
        lasts = tl.cumsum(blocks, 0)
        if tl.program_id(0) == 0:
            tl.store(ends_ptr + groups, lasts * DEPTH, mask=groups < G)
        g = tl.sum(((lasts <= block) & (groups < G)).to(tl.int32), 0)
        here = groups == g
        start, end = tl.sum(tl.where(here, starts, 0), 0), tl.sum(tl.where(here, ends, 0), 0)
        k = start + (block - tl.sum(tl.where(here, lasts - blocks, 0), 0)) * DEPTH
    else:
        g = search_whole_block(ends_ptr, block, G)
        start = clamped_end(offs_ptr, g - 1, depth, g > 0)
        end = clamped_end(offs_ptr, g, depth, g < G)
        k = start + block * DEPTH - tl.load(ends_ptr + g - 1, mask=g > 0, other=0)
    return g, start, k, tl.where(g < G, end, k)


@triton.jit
def quantize_lines_kernel(
    x_ptr, q_ptr, scale_ptr, offs_ptr, ends_ptr, lines, depth, columns, G,
    stride_xb, stride_xl, stride_xk, stride_qb, stride_ql, stride_qk, stride_sb, stride_sl, stride_sk,
    RESTART: tl.constexpr, GROUPS: tl.constexpr, BLOCK_L: tl.constexpr,
    POWER_OF_TWO: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Blocks of 1x128: a program has one of each of BLOCK_L lines.

    Args:
        x_ptr, q_ptr: (batch, lines, depth); scale_ptr: (batch, lines, columns). Any strides.
        offs_ptr: (G,) ends of groups along the depth, where RESTART: blocks restart at every group, those of group g
            from column start // 128 + g on. What follows the last group becomes zeros, in one column more.
        ends_ptr: where groups are written as whole blocks, (G,) int32 for their ends. q_ptr is (batch, lines,
            128 * columns) then. What no block has becomes zeros.
        GROUPS: of ``codes.compared_groups`` for G + 1 groups. 0: ``ends_ptr`` holds the ends already.
    """
    tiles = tl.cdiv(lines, BLOCK_L)
    all_columns = columns + 1 if RESTART and ends_ptr is None else columns
    column = tl.program_id(0) % all_columns
    tile = tl.program_id(0) // all_columns
    batch, line = tile // tiles, tile % tiles * BLOCK_L
    if ends_ptr is not None:
        _, _, k, filled = whole_block(offs_ptr, ends_ptr, column, depth, G, GROUPS)
        to_k, end = column * DEPTH, k + DEPTH
    elif RESTART:
        if GROUPS > 0:
            groups, starts, ends = group_bounds(offs_ptr, depth, G, GROUPS)
            firsts = starts // DEPTH + groups
            g = tl.sum(((firsts <= column) & (groups <= G)).to(tl.int32), 0) - 1
            here = groups == g
            start, end = tl.sum(tl.where(here, starts, 0), 0), tl.sum(tl.where(here, ends, 0), 0)
        else:
            g = search_column(offs_ptr, column, depth, G)
            start = clamped_end(offs_ptr, g - 1, depth, g > 0)
            end = tl.where(g < G, clamped_end(offs_ptr, g, depth, g < G), depth)
        k = start + (column - start // DEPTH - g) * DEPTH
        filled = tl.where(g < G, end, k)
        to_k = k
    else:
        k, end, filled = column * DEPTH, depth, depth
        to_k = k
    at = line + tl.arange(0, BLOCK_L)
    ks = k + tl.arange(0, DEPTH)
    one = tl.full((), 1, tl.int64)
    inside = (at < lines)[:, None] & (ks < end)[None, :]
    from_x = x_ptr + batch * (one * stride_xb)
    from_x += at.to(tl.int64)[:, None] * stride_xl + ks.to(tl.int64)[None, :] * stride_xk
    of_groups = (at < lines)[:, None] & (ks < filled)[None, :]
    x = tl.load(from_x, mask=of_groups, other=0.0).to(tl.float32)
    magnitude = tl.abs(x)
    finite = magnitude < float("inf")
    scale, inverse = scale_of(tl.max(tl.where(finite, magnitude, 0.0), 1), q_ptr, POWER_OF_TWO)
    q = to_float8(tl.where(finite, x * inverse[:, None], float("nan")), q_ptr, ROUND)
    to_q = q_ptr + batch * (one * stride_qb)
    to_ks = to_k + tl.arange(0, DEPTH)
    to_q += at.to(tl.int64)[:, None] * stride_ql + to_ks.to(tl.int64)[None, :] * stride_qk
    tl.store(to_q, q, mask=inside)
    to_scale = scale_ptr + batch * (one * stride_sb) + at.to(tl.int64) * stride_sl + column * (one * stride_sk)
    # Columns without a block are written, too: nothing of the result is left undefined.
    scale = tl.where(k < filled, scale, 0.0)
    # Not `(at < lines) & (column < columns)`: of a block & a scalar, interpreters make 32-bit numbers, and Triton 3.9's
    # refuses them as a mask.
    tl.store(to_scale, scale, mask=at < tl.where(column < columns, lines, 0))


# As in other kernels, extents that change from batch to batch do not decide about a compilation.
@triton.jit(do_not_specialize=["depth", "columns", "G"])
def pack_lines_kernel(
    x_ptr, packed_ptr, scale_ptr, packed_scale_ptr, offs_ptr, ends_ptr, lines, depth, columns, G,
    stride_xl, stride_xk, stride_pl, stride_sl, stride_sk, stride_tl, stride_tk,
    RESTART: tl.constexpr, GROUPS: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Bytes of groups along the depth as whole blocks: a program has one block of each of BLOCK_L lines.

    Args:
        x_ptr: (lines, depth) bytes, any strides; packed_ptr: (lines, 128 * columns), contiguous lines.
        scale_ptr: (lines, blocks), or None; packed_scale_ptr: (lines, columns); any strides.
        offs_ptr: (G,) ends of groups; ends_ptr: (G,) int32 for those of the whole blocks.
        RESTART: a group's blocks have their factors from column start // 128 + g on, otherwise from start // 128 on.
        GROUPS: of ``codes.compared_groups`` for G + 1 groups. 0: ``ends_ptr`` holds the ends already.
    """
    tiles = tl.cdiv(lines, BLOCK_L)  # neighbours in the operand at one time
    column, line = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_L
    g, start, k, end = whole_block(offs_ptr, ends_ptr, column, depth, G, GROUPS)
    at, ks = line + tl.arange(0, BLOCK_L), tl.arange(0, DEPTH)
    inside = (at < lines)[:, None] & (k + ks < end)[None, :]
    wide, one = at.to(tl.int64), tl.full((), 1, tl.int64)
    from_x = x_ptr + wide[:, None] * stride_xl + (k + ks).to(tl.int64)[None, :] * stride_xk
    to_packed = packed_ptr + wide[:, None] * stride_pl + (column * DEPTH + ks)[None, :]
    tl.store(to_packed, tl.load(from_x, mask=inside, other=0), mask=(at < tl.where(g < G, lines, 0))[:, None])
    if scale_ptr is not None:
        of_block = (k - start) // DEPTH + start // DEPTH
        if RESTART:
            of_block += g
        used = at < tl.where(g < G, lines, 0)
        scale = tl.load(scale_ptr + wide * stride_sl + of_block * (one * stride_sk), mask=used, other=0.0)
        tl.store(packed_scale_ptr + wide * stride_tl + column * (one * stride_tk), scale, mask=used)


@triton.jit
def quantize_squares_kernel(
    x_ptr, q_ptr, scale_ptr, rows, cols, stride_xb, stride_xr, stride_xc, stride_qb, stride_qr, stride_qc,
    stride_sb, stride_sr, stride_sc, POWER_OF_TWO: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Blocks of 128x128: a program has one.

    Args:
        x_ptr, q_ptr: (batch, rows, cols); scale_ptr: (batch, blocks, blocks). Any strides.
    """
    high, wide = tl.cdiv(rows, DEPTH), tl.cdiv(cols, DEPTH)
    block = tl.program_id(0)
    batch, down, right = block // (high * wide), block // wide % high, block % wide
    row, col = down * DEPTH + tl.arange(0, DEPTH), right * DEPTH + tl.arange(0, DEPTH)
    one = tl.full((), 1, tl.int64)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    from_x = x_ptr + batch * (one * stride_xb)
    from_x += row.to(tl.int64)[:, None] * stride_xr + col.to(tl.int64)[None, :] * stride_xc
    x = tl.load(from_x, mask=inside, other=0.0).to(tl.float32)
    magnitude = tl.abs(x)
    finite = magnitude < float("inf")
    scale, inverse = scale_of(tl.max(tl.max(tl.where(finite, magnitude, 0.0), 1, keep_dims=True), 0, keep_dims=True),
                              q_ptr, POWER_OF_TWO)  # fmt: skip
    q = to_float8(tl.where(finite, x * inverse, float("nan")), q_ptr, ROUND)
    to_q = q_ptr + batch * (one * stride_qb)
    to_q += row.to(tl.int64)[:, None] * stride_qr + col.to(tl.int64)[None, :] * stride_qc
    tl.store(to_q, q, mask=inside)
    at = tl.zeros((1, 1), tl.int64)
    tl.store(scale_ptr + at + batch * (one * stride_sb) + down * (one * stride_sr) + right * (one * stride_sc), scale)
