"""Loads of the factors of blocks of 128 along K: one for each row of A, and one for 128 columns of B, or for each
column if groups lie along K.

If 128 columns share a factor, a thread needs few: it reads them from global memory, a block ahead. If each column has
its own, they come through the ring of stages, like the block: another warp copies them, and arrives at the same barrier
as the block's bytes. In both cases single numbers are read, so the factors may have any strides.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute, pipeline
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.typing import AddressSpace

from course_kernels.kernels.cute_sm90.config import COOPERATIVE, MMA_ROWS, SCALE_BLOCK, WARP_GROUP
from course_kernels.kernels.cute_sm90.scheduler import LANES, Problem, Tile, Window, find_tile


class BlockScales(NamedTuple):
    """Factors, float32, with any strides: ``rows`` (total_m, blocks of K) of A's rows, ``cols`` (G, blocks of K, blocks
    of N) of B's columns. Along "k" (M, blocks of total_k) and (N, blocks of total_k)."""

    rows: cute.Tensor
    cols: cute.Tensor


class Lines(NamedTuple):
    """Addresses of this thread's next factors in global memory, for its rows and for the tile's blocks of columns; the
    steps in bytes to those of the next block; whether the tile begins in the middle of a block of columns."""

    rows: cute.Tensor
    cols: cute.Tensor
    row_step: Int64
    col_step: Int64
    odd: Boolean


def column_blocks(config, shape) -> int:
    """The most blocks of columns that a tile overlaps."""
    return -(-shape.tile_n // SCALE_BLOCK) + (config.scale_cols < SCALE_BLOCK and shape.tile_n % SCALE_BLOCK == 0)


@cute.jit
def scale_lines(config: cutlass.Constexpr, shape: cutlass.Constexpr, tile: Tile, scales: BlockScales) -> Lines:
    """Find a tile's first factors. Rows and columns outside of the group or the result use the last factors inside."""
    thread = cute.arch.thread_idx()[0] % WARP_GROUP
    row, slabs = tile.row + thread // 32 * 16 + thread % 32 // 4, shape.tile_m // MMA_ROWS // shape.sharing_groups
    if cutlass.const_expr(config.schedule == COOPERATIVE):
        row += (cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1) * MMA_ROWS
    rows = cute.make_rmem_tensor(2 * slabs, Int64)
    cols = cute.make_rmem_tensor(column_blocks(config, shape), Int64)
    for i in cutlass.range_constexpr(2 * slabs):
        line = cutlass.min(row + i // 2 * MMA_ROWS * shape.sharing_groups + i % 2 * 8, tile.end - 1)
        rows[i] = scales.rows[line, None].iterator.toint()
    for i in cutlass.range_constexpr(cute.size(cols)):
        block = cutlass.min(tile.col // SCALE_BLOCK + i, cute.size(scales.cols, mode=[2]) - 1)
        cols[i] = scales.cols[tile.group, None, block].iterator.toint()
    row_step, col_step = (Int64(each.stride[1]) * 4 for each in (scales.rows, scales.cols))
    return Lines(rows, cols, row_step, col_step, Boolean(tile.col % SCALE_BLOCK != 0))


@cute.jit
def read_numbers(addresses: cute.Tensor, step: Int64, to: cute.Tensor):
    """Begin to read a number from each address, and advance the addresses by ``step``."""
    for i in cutlass.range_constexpr(cute.size(addresses)):
        pointer = cute.make_ptr(Float32, addresses[i], AddressSpace.gmem, assumed_align=4)
        to[i] = cute.make_tensor(pointer, 1)[0]
        addresses[i] = addresses[i] + step


@cute.jit
def read_next(lines: Lines, rows: cute.Tensor, cols: cute.Tensor):
    """Begin to read the next block's factors."""
    read_numbers(lines.rows, lines.row_step, rows)
    read_numbers(lines.cols, lines.col_step, cols)


@cute.jit
def products_of(config: cutlass.Constexpr, lines: Lines, rows: cute.Tensor, cols: cute.Tensor, products: cute.Tensor):
    """Multiply the factors of A and B for each row of the thread and ``scale_cols`` columns."""
    blocks = cute.size(products) // cute.size(rows)
    for j in cutlass.range_constexpr(blocks):
        first = j * config.scale_cols // SCALE_BLOCK
        factor = cols[first]
        if cutlass.const_expr(config.scale_cols < SCALE_BLOCK and j % 2 == 1 and first + 1 < cute.size(cols)):
            # In a tile that begins in the middle of a block of columns, the next one begins here.
            factor = cols[first + 1] if lines.odd else cols[first]
        for i in cutlass.range_constexpr(cute.size(rows)):
            products[i * blocks + j] = rows[i] * factor


class StageScales(NamedTuple):
    """The factors in shared memory, with groups along "k". ``rows`` (2, pairs, stages): a pair is two rows
    eight apart, which one thread has. ``cols`` (4, 4, columns / 16, stages): of sixteen columns, the four of each of
    four neighbouring threads."""

    rows: cute.Tensor
    cols: cute.Tensor


def stage_scales_of(config, first: cute.Pointer) -> StageScales:
    """Views of the stages' factors, which begin at ``first``."""
    pitch, stages = config.stage_scales, config.stages
    rows = cute.make_layout((2, config.tile_m // 2, stages), stride=(1, 2, pitch))
    cols = cute.make_layout((4, 4, config.tile_n // 16, stages), stride=(1, 4, 16, pitch))
    return StageScales(cute.make_tensor(first, rows), cute.make_tensor(first + config.tile_m, cols))


@cute.jit
def load_scales(
    config: cutlass.Constexpr,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    scales: BlockScales,
    staged: StageScales,
) -> pipeline.PipelineState:
    """Bring the factors of all blocks of a tile into stages as they become free. The group's first factors are those of
    the block along K that it begins with. Called by one warp."""
    copy = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
    lane, first_block = cute.arch.lane_idx(), tile.start // SCALE_BLOCK
    rows, cols = (
        tuple(
            lines[cutlass.min(start + first + lane, cute.size(lines, mode=[0]) - 1), None]
            for first in range(0, extent, LANES)
        )
        for lines, start, extent in ((scales.rows, tile.row, config.tile_m), (scales.cols, tile.col, config.tile_n))
    )
    for k in cutlass.range(tile.blocks, unroll=1):
        # Not ``wait_free``: with it, addresses spill from the few registers of this warp group.
        ring.sync_object_empty.wait(state.index, state.phase)
        for i in cutlass.range_constexpr(len(rows)):
            pair = staged.rows[None, i * (LANES // 2) + lane // 16 * 8 + lane % 8, state.index]
            cute.copy(
                copy, cute.local_tile(rows[i], (1,), (first_block + k,)), cute.local_tile(pair, (1,), (lane // 8 % 2,))
            )
        for i in cutlass.range_constexpr(len(cols)):
            four, at = staged.cols[None, lane // 2 % 4, i * (LANES // 16) + lane // 16, state.index], lane // 8 % 2 * 2
            cute.copy(
                copy, cute.local_tile(cols[i], (1,), (first_block + k,)), cute.local_tile(four, (1,), (at + lane % 2,))
            )
        # Every lane arrives at the barrier when its copies are complete.
        cute.arch.cp_async_mbarrier_arrive_noinc(ring.producer_get_barrier(state))
        state.advance()
    return state


@cute.jit
def load_all_scales(
    config: cutlass.Constexpr,
    problem: Problem,
    window: Window,
    number: Int32,
    ring: pipeline.PipelineAsync,
    scales: BlockScales,
    staged: StageScales,
    warp: cutlass.Constexpr[int],
):
    """Bring the factors of all tiles of this CTA, from the cluster's tile ``number`` on. Only warp ``warp`` does
    this."""
    if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == warp:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
        window, tile = find_tile(config, "k", problem, window, number)
        while tile.found:
            state = load_scales(config, tile, ring, state, scales, staged)
            number += cute.arch.grid_dim()[2]
            window, tile = find_tile(config, "k", problem, window, number)
        # Threads must not end before their copies.
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)


@cute.jit
def read_rows(shape: cutlass.Constexpr, staged: StageScales, stage: Int32, rows: cute.Tensor):
    """Read a stage's factors of this thread's two rows of each 64."""
    thread = cute.arch.thread_idx()[0] % WARP_GROUP
    pair = thread // 32 * 8 + thread % 32 // 4
    if cutlass.const_expr(shape.sharing_groups > 1):
        pair += (cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1) * (MMA_ROWS // 2)
    for i in cutlass.range_constexpr(cute.size(rows, mode=[1])):
        first = i * shape.sharing_groups * (MMA_ROWS // 2)
        cute.autovec_copy(staged.rows[None, first + pair, stage], rows[None, i])
