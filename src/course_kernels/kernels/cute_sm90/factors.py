"""Factors of blocks of 128 along K on their way to the accumulators: of each row of A, and of 128 columns of B, or of
each column where groups lie along K.

They come through the ring of stages, as the block does: a warp of their own copies them, and counts at the same barrier
as the block's bytes. The copies take single numbers, so the factors may have any strides.
"""

from typing import NamedTuple

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync

from course_kernels.kernels.cute_sm90.config import MMA_ROWS, SCALE_BLOCK, WARP_GROUP
from course_kernels.kernels.cute_sm90.scheduler import LANES, Problem, Tile, Window, find_tile

# The warp that copies factors, of the warp group that loads.
FACTORS_WARP = 1


class BlockScales(NamedTuple):
    """Factors, float32, with any strides: ``rows`` (total_m, blocks of K) of A's rows, ``cols`` (G, blocks of K, blocks
    of N) of B's columns. Along "k" (M, blocks of total_k) and (N, blocks of total_k)."""

    rows: cute.Tensor
    cols: cute.Tensor


class StageFactors(NamedTuple):
    """The factors in shared memory. ``rows`` (2, pairs, stages): two rows eight apart, which one thread has, are a
    pair. ``cols`` (columns, stages): of as many columns as surely share one, ``CuteConfig.scale_cols``. Along "k" it is
    (4, 4, columns / 16, stages): of sixteen columns those four that each of four neighbouring threads has."""

    rows: cute.Tensor
    cols: cute.Tensor


def column_factors(config) -> int:
    """Factors that a stage has of B."""
    return max(-(-shape.tile_n // config.scale_cols) for shape in config.shapes)


def factors_of(config, along: str, first: cute.Pointer) -> StageFactors:
    """The factors of the stages, which begin at ``first``. Those of columns are read together: 1, 2 or 4 of them, along
    "k" always 4."""
    pitch, stages = config.stage_factors(along), config.stages
    width = {1: 1, 2: 2}.get(column_factors(config), 4)
    if along == "k":
        cols = cute.make_layout((4, 4, config.tile_n // 16, stages), stride=(1, 4, 16, pitch))
    else:
        cols = cute.make_layout((width, stages), stride=(1, pitch))
    return StageFactors(
        cute.make_tensor(first, cute.make_layout((2, config.tile_m // 2, stages), stride=(1, 2, pitch))),
        cute.make_tensor(first + config.tile_m, cols),
    )


def of_each_column(factors: StageFactors) -> bool:
    """Whether every column has a factor of its own: groups lie along K."""
    return cute.rank(factors.cols) == 4


@cute.jit
def load_factors(
    config: cutlass.Constexpr,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    scales: BlockScales,
    factors: StageFactors,
) -> pipeline.PipelineState:
    """Bring the factors of all blocks of a tile into stages as they become free. What is outside of the group or of the
    result has the last factors inside. Called by one warp."""
    copy = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
    lane, last = cute.arch.lane_idx(), cute.size(scales.cols, mode=[2]) - 1
    rows = tuple(
        scales.rows[cutlass.min(tile.row + first + lane, tile.end - 1), None]
        for first in range(0, config.tile_m, LANES)
    )  # fmt: skip
    col = tile.col + cutlass.min(lane, column_factors(config) - 1) * config.scale_cols
    cols = scales.cols[tile.group, None, cutlass.min(col // SCALE_BLOCK, last)]
    for k in cutlass.range(tile.blocks, unroll=1):
        ring.sync_object_empty.wait(state.index, state.phase)
        for i in cutlass.range_constexpr(len(rows)):
            pair = factors.rows[None, i * (LANES // 2) + lane // 16 * 8 + lane % 8, state.index]
            cute.copy(copy, cute.local_tile(rows[i], (1,), (k,)), cute.local_tile(pair, (1,), (lane // 8 % 2,)))
        if lane < column_factors(config):
            of_stage = factors.cols[None, state.index]
            cute.copy(copy, cute.local_tile(cols, (1,), (k,)), cute.local_tile(of_stage, (1,), (lane,)))
        # Every lane counts, when its copies are there.
        cute.arch.cp_async_mbarrier_arrive_noinc(ring.producer_get_barrier(state))
        state.advance()
    return state


@cute.jit
def load_line_factors(
    config: cutlass.Constexpr,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    scales: BlockScales,
    factors: StageFactors,
) -> pipeline.PipelineState:
    """``load_factors`` where groups lie along K. The group's first factors are those of its first block of all."""
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
        ring.sync_object_empty.wait(state.index, state.phase)
        for i in cutlass.range_constexpr(len(rows)):
            pair = factors.rows[None, i * (LANES // 2) + lane // 16 * 8 + lane % 8, state.index]
            cute.copy(
                copy, cute.local_tile(rows[i], (1,), (first_block + k,)), cute.local_tile(pair, (1,), (lane // 8 % 2,))
            )
        for i in cutlass.range_constexpr(len(cols)):
            four, at = factors.cols[None, lane // 2 % 4, i * (LANES // 16) + lane // 16, state.index], lane // 8 % 2 * 2
            cute.copy(
                copy, cute.local_tile(cols[i], (1,), (first_block + k,)), cute.local_tile(four, (1,), (at + lane % 2,))
            )
        cute.arch.cp_async_mbarrier_arrive_noinc(ring.producer_get_barrier(state))
        state.advance()
    return state


@cute.jit
def load_all_factors(
    config: cutlass.Constexpr,
    along: cutlass.Constexpr,
    problem: Problem,
    window: Window,
    number: Int32,
    ring: pipeline.PipelineAsync,
    scales: BlockScales,
    factors: StageFactors,
):
    """Bring the factors of all tiles of this CTA, from the cluster's piece of work ``number`` on. ``FACTORS_WARP`` does
    it, others do nothing."""
    if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == FACTORS_WARP:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
        window, tile = find_tile(config, along, problem, window, number)
        while tile.found:
            if cutlass.const_expr(along == "k"):
                state = load_line_factors(config, tile, ring, state, scales, factors)
            else:
                state = load_factors(config, tile, ring, state, scales, factors)
            number += cute.arch.grid_dim()[2]
            window, tile = find_tile(config, along, problem, window, number)
        # The threads outlive their copies.
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)


@cute.jit
def read_factors(cut: cutlass.Constexpr, factors: StageFactors, stage: Int32, rows: cute.Tensor, cols: cute.Tensor):
    """Read a stage's factors: of this thread's two ``rows`` of each 64, and of all blocks of columns; not those of each
    column."""
    thread = cute.arch.thread_idx()[0] % WARP_GROUP
    pair = thread // 32 * 8 + thread % 32 // 4
    if cutlass.const_expr(cut.sharing_groups > 1):
        pair += (cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1) * (MMA_ROWS // 2)
    for i in cutlass.range_constexpr(cute.size(rows, mode=[1])):
        first = i * cut.sharing_groups * (MMA_ROWS // 2)
        cute.autovec_copy(factors.rows[None, first + pair, stage], rows[None, i])
    if cutlass.const_expr(not of_each_column(factors)):
        cute.autovec_copy(factors.cols[None, stage], cols)
