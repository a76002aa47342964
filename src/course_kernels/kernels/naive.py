"""One matrix product, one launch: a tiled GEMM whose every edge is masked.

Its arithmetic is ``common.accumulate_tile`` and ``common.store_tile``. The grouped kernel of ``round_robin`` calls the
same two functions and differs only in how a program finds its tiles.
"""

from __future__ import annotations

from course_kernels.kernels.common import accumulate_tile, store_tile, tile_position
from course_kernels.kernels.language import tl, triton
from course_kernels.kernels.record import record_tile, start_clock


@triton.jit
def naive_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, log_ptr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """C = A @ B for one problem; one program computes one tile. Grid: (tiles_m * tiles_n,)."""
    started = start_clock(RECORD)
    tile = tl.program_id(0)
    tile_m, tile_n = tile_position(tile, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = accumulate_tile(
        a_ptr, b_ptr, row, col, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip
    store_tile(c_ptr, acc, row, col, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)
    record_tile(log_ptr, tile, started, RECORD)
