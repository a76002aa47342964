"""The round-robin walk on descriptors: tiles are fetched and stored by the GPU's tensor memory accelerator (TMA).

A program that has tiles in a problem makes that problem's descriptors on the device, when it gets there. From then on
a whole block is one instruction: no pointers per element, no masks, and bounds are the hardware's business. Walk,
tables and tile order are those of ``round_robin``.

Rule of the hardware: base addresses and leading strides are multiples of 16 bytes, and the other stride is 1. The host
sends problems that break it to the pointer kernel.
"""

from __future__ import annotations

from course_kernels.kernels.common import multiply_add, store_tile, tile_position
from course_kernels.kernels.language import tl, triton
from course_kernels.kernels.record import RECORD_TIME, record_tile, start_clock
from course_kernels.kernels.round_robin import (
    CHUNKS,
    DYNAMIC,
    ROW_MAJOR,
    first_tile,
    next_tile,
    problem_pointer,
    problem_size,
    problem_strides,
)


@triton.jit
def make_descriptor(ptr, rows, cols, leading, LAYOUT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Descriptor of a (rows, cols) matrix. A column-major one is described as its row-major transpose. Hardware has no
    descriptor of an empty matrix; where K is 0 nothing is loaded through it, so an extent of 1 serves."""
    rows, cols = max(rows, 1), max(cols, 1)
    if LAYOUT == ROW_MAJOR:
        return tl.make_tensor_descriptor(ptr, [rows, cols], [leading, 1], [BLOCK_R, BLOCK_C])
    else:
        return tl.make_tensor_descriptor(ptr, [cols, rows], [leading, 1], [BLOCK_C, BLOCK_R])


@triton.jit
def load_block(descriptor, row, col, LAYOUT: tl.constexpr):
    """The block of the matrix that starts at (row, col); zeros where it reaches past the matrix."""
    if LAYOUT == ROW_MAJOR:
        return descriptor.load([row, col])
    else:
        return descriptor.load([col, row]).T


@triton.jit
def store_block(descriptor, acc, row, col, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store the accumulator in one or two halves. Halves need half the shared memory for staging, which is what
    lets two programs, or one more stage, fit on an SM."""
    if PARTS == 1:
        descriptor.store([row, col], acc.to(descriptor.dtype))
    else:
        halves = acc.reshape((BLOCK_M, 2, BLOCK_N // 2)).permute((0, 2, 1))
        left, right = tl.split(halves)
        descriptor.store([row, col], left.to(descriptor.dtype))
        descriptor.store([row, col + BLOCK_N // 2], right.to(descriptor.dtype))


@triton.jit
def compute_tile(
    a_desc, b_desc, c_desc, c_ptr, log_ptr, tile, passed, M, N, K, tiles_m, tiles_n, stride_cm, stride_cn,
    A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr, DESCRIBE_C: tl.constexpr, STORE_PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """One tile of one problem, through that problem's descriptors."""
    started = start_clock(RECORD)
    tile_m, tile_n = tile_position(tile - passed, tiles_m, tiles_n, GROUP_M)
    row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = load_block(a_desc, row, k * BLOCK_K, A_LAYOUT)
        b = load_block(b_desc, k * BLOCK_K, col, B_LAYOUT)
        acc = multiply_add(a, b, acc, PRECISION)
    if DESCRIBE_C:
        store_block(c_desc, acc, row, col, STORE_PARTS, BLOCK_M, BLOCK_N)
    else:
        store_tile(c_ptr, acc, row, col, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)
    record_tile(log_ptr, tile, started, RECORD)


@triton.jit
def tma_kernel(
    a_ptrs, b_ptrs, c_ptrs, sizes_ptr, strides_ptr, num_problems, total_tiles, counter_ptr, log_ptr,
    A_DTYPE: tl.constexpr, C_DTYPE: tl.constexpr, A_LAYOUT: tl.constexpr, B_LAYOUT: tl.constexpr,
    C_LAYOUT: tl.constexpr, DESCRIBE_C: tl.constexpr, STORE_PARTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SCHEDULE: tl.constexpr,
    PRECISION: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """C_g = A_g @ B_g for every problem g. Arguments as in ``round_robin_kernel``; A and B satisfy the 16-byte rule.
    Where DESCRIBE_C, so does C, and it is row-major; elsewhere C has any layout and is stored through pointers."""
    ALIGN: tl.constexpr = 128 // A_DTYPE.primitive_bitwidth
    FLATTEN: tl.constexpr = SCHEDULE == CHUNKS and RECORD != RECORD_TIME
    tile, stop = first_tile(counter_ptr, total_tiles, SCHEDULE)
    passed = 0
    for g in range(num_problems):
        M, N, K, tiles_m, tiles_n = problem_size(sizes_ptr, g, BLOCK_M, BLOCK_N)
        end = passed + tiles_m * tiles_n
        if tile < min(end, stop):
            # Once per problem and program, not per tile: a descriptor is 128 bytes of global memory to be written,
            # and a fence before the hardware may read it.
            a_ptr = problem_pointer(a_ptrs, g, A_DTYPE, ALIGN)
            b_ptr = problem_pointer(b_ptrs, g, A_DTYPE, ALIGN)
            c_ptr = problem_pointer(c_ptrs, g, C_DTYPE, 16 if DESCRIBE_C else 1)
            stride_am, stride_ak = problem_strides(strides_ptr + g * 6, A_LAYOUT, ALIGN)
            stride_bk, stride_bn = problem_strides(strides_ptr + g * 6 + 2, B_LAYOUT, ALIGN)
            stride_cm, stride_cn = problem_strides(strides_ptr + g * 6 + 4, C_LAYOUT, 1)
            lda = stride_am if A_LAYOUT == ROW_MAJOR else stride_ak
            ldb = stride_bk if B_LAYOUT == ROW_MAJOR else stride_bn
            a_desc = make_descriptor(a_ptr, M, K, lda, A_LAYOUT, BLOCK_M, BLOCK_K)
            b_desc = make_descriptor(b_ptr, K, N, ldb, B_LAYOUT, BLOCK_K, BLOCK_N)
            c_desc = a_desc
            if DESCRIBE_C:
                c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [stride_cm, 1], [BLOCK_M, BLOCK_N // STORE_PARTS])
            here = min(end, stop)
            if SCHEDULE == DYNAMIC:
                while tile < here:
                    compute_tile(
                        a_desc, b_desc, c_desc, c_ptr, log_ptr, tile, passed, M, N, K, tiles_m, tiles_n,
                        stride_cm, stride_cn,
                        A_LAYOUT, B_LAYOUT, DESCRIBE_C, STORE_PARTS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
                        PRECISION, RECORD,
                    )  # fmt: skip
                    tile = next_tile(tile, counter_ptr, total_tiles, SCHEDULE)
            else:
                # A loop whose trips are known beforehand can be flattened into the loop over K: while one tile is
                # being stored, the first blocks of the next are on their way. It pays where a program's tiles lie in
                # one problem (103 against 108 µs on four 2048³ with chunks; nothing with round-robin, where the step
                # to the next problem comes in between), and reading clocks inside would undo it.
                step = 1 if SCHEDULE == CHUNKS else tl.num_programs(0)
                for own in tl.range(tile, here, step, flatten=FLATTEN):
                    compute_tile(
                        a_desc, b_desc, c_desc, c_ptr, log_ptr, own, passed, M, N, K, tiles_m, tiles_n,
                        stride_cm, stride_cn,
                        A_LAYOUT, B_LAYOUT, DESCRIBE_C, STORE_PARTS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
                        PRECISION, RECORD,
                    )  # fmt: skip
                tile += tl.cdiv(here - tile, step) * step
        passed = end
