"""Many matrix products, one launch: a fixed number of programs strides through the tiles of all problems.

The host leaves four tables on the device: base pointers of A, B and C, sizes (G, 3) and strides (G, 6). Every program
walks the problems in order, keeps count of the tiles it has passed, and computes those that are its own. Tile order
and ownership are those of ``course_kernels.schedule``; a test compares the two tile by tile.

Source: the static on-device schedule of Triton's grouped GEMM tutorial, extended by any strides, any sizes, aligned
loads, an L2 swizzle, contiguous chunks and a dynamic counter.
"""

from __future__ import annotations

from course_kernels.kernels.codes import Layout, Schedule
from course_kernels.kernels.common import accumulate_tile, store_tile, tile_position
from course_kernels.kernels.language import tl, triton
from course_kernels.kernels.record import record_tile, start_clock

ROUND_ROBIN = tl.constexpr(int(Schedule.ROUND_ROBIN))
CHUNKS = tl.constexpr(int(Schedule.CHUNKS))
DYNAMIC = tl.constexpr(int(Schedule.DYNAMIC))
ANY = tl.constexpr(int(Layout.ANY))
ROW_MAJOR = tl.constexpr(int(Layout.ROW_MAJOR))
COL_MAJOR = tl.constexpr(int(Layout.COL_MAJOR))


@triton.jit
def first_tile(counter_ptr, total_tiles, SCHEDULE: tl.constexpr):
    """The first tile of this program, and the end of its share."""
    program = tl.program_id(0)
    if SCHEDULE == CHUNKS:
        share = tl.cdiv(total_tiles, tl.num_programs(0))
        return program * share, min(total_tiles, (program + 1) * share)
    elif SCHEDULE == DYNAMIC:
        return next_dynamic_tile(counter_ptr, total_tiles), total_tiles
    else:
        return program, total_tiles


@triton.jit
def next_tile(tile, counter_ptr, total_tiles, SCHEDULE: tl.constexpr):
    """The tile that this program computes after ``tile``."""
    if SCHEDULE == CHUNKS:
        return tile + 1
    elif SCHEDULE == DYNAMIC:
        return next_dynamic_tile(counter_ptr, total_tiles)
    else:
        return tile + tl.num_programs(0)


@triton.jit
def next_dynamic_tile(counter_ptr, total_tiles):
    """Take a ticket. Each program draws exactly one ticket too many, so the very last one can set the counter back
    to zero: the next launch (a CUDA graph's replay, say) finds it ready, without a memset in between."""
    ticket = tl.atomic_add(counter_ptr, 1, sem="relaxed")
    if ticket == total_tiles + tl.num_programs(0) - 1:
        tl.store(counter_ptr, 0)
    return ticket


@triton.jit
def problem_size(
    sizes_ptr,
    g,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ALIGN_M: tl.constexpr = 1,
    ALIGN_N: tl.constexpr = 1,
    ALIGN_K: tl.constexpr = 1,
):
    """M, N, K and the tile grid of problem g. An empty problem has no tiles.

    What divides an extent is said here, on the load itself: said by the caller, it would be a note on the call,
    which is lost when the call is inlined, and every masked load would be one element wide.
    """
    M = tl.multiple_of(tl.load(sizes_ptr + g * 3), ALIGN_M)
    N = tl.multiple_of(tl.load(sizes_ptr + g * 3 + 1), ALIGN_N)
    K = tl.multiple_of(tl.load(sizes_ptr + g * 3 + 2), ALIGN_K)
    return M, N, K, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)


@triton.jit
def problem_pointer(ptrs_ptr, g, DTYPE: tl.constexpr, ALIGN: tl.constexpr):
    """Base pointer of problem g. A loaded integer carries no alignment, and without alignment every load is as
    narrow as one element: say what the host has checked."""
    pointer = tl.load(ptrs_ptr + g).to(tl.pointer_type(DTYPE))
    if ALIGN > 1:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def problem_strides(strides_ptr, LAYOUT: tl.constexpr, ALIGN: tl.constexpr):
    """(row stride, column stride) in elements from a pair of table entries. The stride known to be 1 stays a
    constant of the program, which is what makes loads along it wide; the other is the leading dimension."""
    if LAYOUT == ROW_MAJOR:
        leading = tl.load(strides_ptr)
        return tl.multiple_of(leading, ALIGN), 1
    elif LAYOUT == COL_MAJOR:
        leading = tl.load(strides_ptr + 1)
        return 1, tl.multiple_of(leading, ALIGN)
    else:
        return tl.load(strides_ptr), tl.load(strides_ptr + 1)


@triton.jit
def round_robin_kernel(
    a_ptrs,
    b_ptrs,
    c_ptrs,
    sizes_ptr,
    strides_ptr,
    num_problems,
    total_tiles,
    counter_ptr,
    log_ptr,
    A_DTYPE: tl.constexpr,
    C_DTYPE: tl.constexpr,
    A_LAYOUT: tl.constexpr,
    B_LAYOUT: tl.constexpr,
    C_LAYOUT: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SCHEDULE: tl.constexpr,
    PRECISION: tl.constexpr,
    RECORD: tl.constexpr,
):
    """C_g = A_g @ B_g for every problem g; any number of programs on grid axis 0.

    a_ptrs, b_ptrs, c_ptrs: int64 (G,) addresses. sizes_ptr: int32 (G, 3) M, N, K. strides_ptr: int64 (G, 6) strides in
    elements of A (m, k), B (k, n), C (m, n). counter_ptr: int32 (1,), zero, for DYNAMIC. log_ptr: see ``record``.
    ALIGN: the number of elements (16 bytes' worth) that divides every leading dimension and every contiguous extent
    while all addresses are multiples of 16 bytes; 1 where that is not so.
    """
    tile, stop = first_tile(counter_ptr, total_tiles, SCHEDULE)
    passed = 0  # tiles of the problems before this one
    for g in range(num_problems):
        M, N, K, tiles_m, tiles_n = problem_size(
            sizes_ptr, g, BLOCK_M, BLOCK_N,
            ALIGN_M=ALIGN if A_LAYOUT == COL_MAJOR else 1,
            ALIGN_N=ALIGN if B_LAYOUT == ROW_MAJOR else 1,
            ALIGN_K=ALIGN if A_LAYOUT == ROW_MAJOR or B_LAYOUT == COL_MAJOR else 1,
        )  # fmt: skip
        end = passed + tiles_m * tiles_n
        while tile < min(end, stop):
            started = start_clock(RECORD)
            a_ptr = problem_pointer(a_ptrs, g, A_DTYPE, ALIGN)
            b_ptr = problem_pointer(b_ptrs, g, A_DTYPE, ALIGN)
            c_ptr = problem_pointer(c_ptrs, g, C_DTYPE, ALIGN)
            stride_am, stride_ak = problem_strides(strides_ptr + g * 6, A_LAYOUT, ALIGN)
            stride_bk, stride_bn = problem_strides(strides_ptr + g * 6 + 2, B_LAYOUT, ALIGN)
            stride_cm, stride_cn = problem_strides(strides_ptr + g * 6 + 4, C_LAYOUT, ALIGN)
            tile_m, tile_n = tile_position(tile - passed, tiles_m, tiles_n, GROUP_M)
            row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
            acc = accumulate_tile(
                a_ptr, b_ptr, row, col, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
                BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
            store_tile(c_ptr, acc, row, col, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)
            record_tile(log_ptr, tile, started, RECORD)
            tile = next_tile(tile, counter_ptr, total_tiles, SCHEDULE)
        passed = end
