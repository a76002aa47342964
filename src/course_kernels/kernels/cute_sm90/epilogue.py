"""From the accumulators to C: each warp group stores its rows by itself, in blocks, through shared memory.

Where groups lie along M the store goes through a *window* on C (``window``): the hardware cuts off what lies past the
group's end, full tile or not.
"""

from typing import NamedTuple

import cutlass
from cutlass import Float16, Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync, warp
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from course_kernels.kernels.cute_sm90.config import MMA_ROWS, WARP_GROUP
from course_kernels.kernels.cute_sm90.mainloop import make_mma, shared_layout
from course_kernels.kernels.cute_sm90.scheduler import Problem, Tile, cluster_tiles, full_groups, group_end
from course_kernels.kernels.cute_sm90.window import make_window, open_at


class Scales(NamedTuple):
    """Factors, float32: ``rows`` (total_m,) of A's, along "k" (G, M); ``cols`` (G, N) of B's columns, or (G,) of all of
    a group's."""

    rows: cute.Tensor
    cols: cute.Tensor


def make_store(c: cute.Tensor, along: str, store_blocks: int, row_bytes: int, accumulate: bool = False):
    """Shared layout of the blocks of C, ``store_blocks`` for each warp group, with rows of ``row_bytes``, and C's
    descriptor and coordinates: a window on ``c`` (total_m, N) where groups lie along "m", and ``c`` (G, M, N) with the
    group last where they lie along "k". A store adds to C where ``accumulate``: L2 does, in float32 and without
    subnormal numbers."""
    dtype, cols = c.element_type, row_bytes * 8 // c.element_type.width
    if along == "m":
        c = make_window(c, 0)
    else:
        c = cute.make_tensor(c.iterator, cute.select(c.layout, [1, 2, 0]))
    layout = shared_layout(dtype, MMA_ROWS, cols, 2 * store_blocks)
    block = cute.slice_(layout, (None, None, 0))
    op = cpasync.CopyReduceBulkTensorTileS2GOp() if accumulate else cpasync.CopyBulkTensorTileS2GOp()
    atom, coords = cpasync.make_tiled_tma_atom(op, c, block, (MMA_ROWS, cols))
    return layout, atom, coords


def blocks_of(cut, cols: int) -> int:
    """Blocks of ``cols`` columns of C that each warp group stores of a tile."""
    return cut.tile_m // MMA_ROWS // cut.sharing_groups * (cut.tile_n // cols)


@cute.jit
def first_row(cut: cutlass.Constexpr, tile: Tile, group: Int32, i: cutlass.Constexpr[int]) -> Int32:
    """Where a warp group's ``i``-th 64 rows of a tile begin: those that share a tile take turns."""
    row = tile.row + i * MMA_ROWS * cut.sharing_groups
    if cutlass.const_expr(cut.sharing_groups > 1):
        row += group * MMA_ROWS
    return row


@cute.jit
def scale_tile(cut: cutlass.Constexpr, along: cutlass.Constexpr, tile: Tile, acc: cute.Tensor, scales: Scales):
    """Multiply a warp group's part of a tile with the factors of its rows and columns. Elements outside of the result
    are multiplied with the last factor inside, and not stored."""
    # A thread holds pairs of columns, eight apart, of two rows, eight apart: wgmma's layout.
    thread = cute.arch.thread_idx()[0] % WARP_GROUP
    group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1
    if cutlass.const_expr(cute.rank(scales.cols) == 1):
        of_group = scales.cols[tile.group]
    else:
        col, last_col = tile.col + thread % 4 * 2, cute.size(scales.cols, mode=[1]) - 2
        cols = cute.make_rmem_tensor((2, cut.tile_n // 8), Float32)
        for j in cutlass.range_constexpr(cut.tile_n // 8):
            pair = cutlass.min(col + 8 * j, last_col) // 2
            cute.autovec_copy(cute.local_tile(scales.cols, (1, 2), (tile.group, pair))[0, None], cols[None, j])
    for i in cutlass.range_constexpr(cut.tile_m // MMA_ROWS // cut.sharing_groups):
        part = cute.make_tensor(
            acc.iterator + i * (MMA_ROWS * cut.tile_n // WARP_GROUP), cute.make_layout((2, 2, cut.tile_n // 8))
        )
        row = first_row(cut, tile, group, i) + thread // 32 * 16 + thread % 32 // 4
        for half in cutlass.range_constexpr(2):
            if cutlass.const_expr(along == "k"):
                last_row = cute.size(scales.rows, mode=[1]) - 1
                factor = scales.rows[tile.group, cutlass.min(row + 8 * half, last_row)]
            else:
                factor = scales.rows[cutlass.min(row + 8 * half, tile.end - 1)]
            for j in cutlass.range_constexpr(cut.tile_n // 8):
                for v in cutlass.range_constexpr(2):
                    if cutlass.const_expr(cute.rank(scales.cols) == 1):
                        part[v, half, j] = part[v, half, j] * factor * of_group
                    else:
                        part[v, half, j] = part[v, half, j] * factor * cols[v, j]


@cute.jit
def store_tile(
    config: cutlass.Constexpr,
    cut: cutlass.Constexpr,
    along: cutlass.Constexpr,
    tile: Tile,
    acc: cute.Tensor,
    c_atom: cute.CopyAtom,
    c: cute.Tensor,
    c_shared: cute.Tensor,
):
    """Round a warp group's part of a tile, whose shape ``cut`` is, once and store what lies inside the group's result.
    Called by whole warp groups."""
    dtype, cols = c_shared.element_type, cute.size(c_shared, mode=[1])
    thread = cute.arch.thread_idx()[0] % WARP_GROUP
    group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1
    together = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=WARP_GROUP)
    store_blocks = cute.size(c_shared, mode=[2]) // 2
    # Stores that may still read when a block is overwritten. Every tile begins with the first block: if a tile, of any
    # shape, may have ended with it, that one's store has to be waited for. (No tile follows a half; it counts here all
    # the same.)
    reading = store_blocks - 1
    at_first = 0 if any(blocks_of(each, cols) % store_blocks for each in config.shapes) else reading

    # Where wgmma left a thread's accumulators of 64 x cols, and where they go. The layout is that of 16-bit values.
    to_shared = cute.make_tiled_copy_S(
        hopper_helpers.get_smem_store_op(LayoutEnum.ROW_MAJOR, dtype, Float32),
        cute.make_tiled_copy_C_atom(
            cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), Float16), make_mma(Float16, cut.tile_n, 1)
        ),
    ).get_slice(thread)
    shared = to_shared.partition_D(c_shared)
    part = cute.make_rmem_tensor(to_shared.partition_S(c_shared).shape[:3], Float32)
    rounded = cute.make_rmem_tensor(part.shape, dtype)

    for i in cutlass.range_constexpr(cut.tile_m // MMA_ROWS // cut.sharing_groups):
        row = first_row(cut, tile, group, i)
        if cutlass.const_expr(along == "m"):
            part_of_c = open_at(c, 0, row, tile.end, tile.col)
        else:
            part_of_c = cute.domain_offset((row, tile.col), c[None, None, tile.group])
        blocks = cute.zipped_divide(part_of_c, (MMA_ROWS, cols))
        source, target = cpasync.tma_partition(c_atom, 0, cute.make_layout(1), cute.group_modes(c_shared, 0, 2), blocks)
        for j in cutlass.range_constexpr(cut.tile_n // cols):
            number = i * (cut.tile_n // cols) + j
            for v in cutlass.range_constexpr(cute.size(part)):
                part[v] = acc[number * cute.size(part) + v]
            rounded.store(part.load().to(dtype))
            buffer = group * store_blocks + number % store_blocks
            if thread < 32:
                cute.arch.cp_async_bulk_wait_group(reading if number else at_first, read=True)
            together.arrive_and_wait()
            cute.copy(to_shared, rounded, shared[None, None, None, buffer])
            cute.arch.fence_proxy("async.shared", space="cta")
            together.arrive_and_wait()
            if thread < 32:
                cute.copy(c_atom, source[None, buffer], target[None, (0, j)])
                cute.arch.cp_async_bulk_commit_group()


@cute.jit
def zero_row(rows: cute.Tensor, row: Int32):
    """Write zeros to a row of a matrix. Called by whole warps."""
    width = 128 // rows.element_type.width
    zeros = cute.make_rmem_tensor((1, width), rows.element_type)
    zeros.fill(0)
    for piece in cutlass.range(cute.arch.lane_idx(), cute.size(rows, mode=[1]) // width, 32, unroll=1):
        cute.autovec_copy(zeros, cute.local_tile(rows, (1, width), (row, piece)))


@cute.jit
def write_zeros(
    config: cutlass.Constexpr,
    along: cutlass.Constexpr,
    writers: cutlass.Constexpr[int],
    c: cute.Tensor,
    problem: Problem,
    loaded: cute.Pointer,
):
    """Write what of C is no product: its tail along "m", the results of empty groups along "k". Called by warps of the
    first warp group; its last ``writers`` write."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    cta = cute.arch.block_idx()[2] * config.cluster + cute.arch.block_idx_in_cluster()
    worker, workers = cta * writers + 3 - warp, cute.arch.grid_dim()[2] * config.cluster * writers
    if warp > 3 - writers:
        if cutlass.const_expr(along == "m"):
            zero_tail(c, problem, worker, workers)
        else:
            zero_empty(config, c, problem, loaded, worker, workers)


@cute.jit
def zero_tail(c: cute.Tensor, problem: Problem, worker: Int32, workers: Int32):
    """Write zeros to the rows of C after the last group, a warp a row; this warp is ``worker`` of ``workers``."""
    used = group_end(problem.offs, cute.size(problem.offs) - 1, problem.total)
    for row in cutlass.range(used + worker, problem.total, workers, unroll=1):
        zero_row(c, row)


@cute.jit
def zero_empty(
    config: cutlass.Constexpr, c: cute.Tensor, problem: Problem, loaded: cute.Pointer, worker: Int32, workers: Int32
):
    """``zero_tail`` for groups along "k": to all rows of groups that have no depth, evenly over the tiles that the
    cluster takes: all at once they would keep the loads waiting. ``loaded`` counts the tiles so far; in a dynamic
    order a cluster may take fewer, and it ends above every count. What is wrong with it, or with how many rows came
    before, spoils the evenness and nothing else."""
    groups = cute.size(problem.offs)
    empty = groups - full_groups(problem)
    tiles = (groups - empty) * cluster_tiles(config, problem.M, problem.N)
    of_cluster = cute.ceil_div(tiles - cute.arch.block_idx()[2], cute.arch.grid_dim()[2])
    tiles_a_row = Float32(of_cluster) / Float32(cutlass.max(empty, 1)) / Float32(problem.M)
    # This warp's next row, counted from this empty group's first: what passes the last is carried to the next one.
    row, rows_before, start = worker, Int32(0), Int32(0)
    if empty == 0:
        groups = 0  # there is nothing to look for
    for g in cutlass.range(groups, unroll=1):
        end = group_end(problem.offs, g, problem.total)
        if end <= start:
            while row < problem.M:
                due = cutlass.min(Int32(Float32(rows_before + row) * tiles_a_row), of_cluster - 1)
                if cute.arch.lane_idx() == 0:
                    # Adds nothing: reads as atomically as the loading warp counts.
                    while cute.arch.atomic_add(loaded, Int32(0), sem="relaxed", scope="cta") < due:
                        pass
                cute.arch.sync_warp()
                zero_row(c[g, None, None], row)
                row += workers
            row -= problem.M
            rows_before += problem.M
        start = end
