"""Products of 8-bit operands with a factor for each block of 128 along K: of each row of A, and of 128 columns of B,
or of each column where groups lie along K.

As in ``mainloop.multiply_apart`` each block's products are summed from zero and added in float32. What is added is
multiplied with the block's factors on the way, in one instruction with the addition. Factors of each column are too
many for registers: they are read where they are multiplied, and the stage is given back after that.

The factors come through the ring of stages, as the block does: a warp of their own copies them, and counts at the same
barrier as the block's bytes. The copies take single numbers, so the factors may have any strides.
"""

from typing import NamedTuple

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup

from course_kernels.kernels.cute_sm90.config import MMA_ROWS, SCALE_BLOCK, WARP_GROUP
from course_kernels.kernels.cute_sm90.mainloop import multiply_stage
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
    (2, 4, columns / 8, stages): of eight columns, a pair for each of four neighbouring threads."""

    rows: cute.Tensor
    cols: cute.Tensor


def column_factors(config) -> int:
    """Factors that a stage has of B."""
    return max(-(-shape.tile_n // config.scale_cols) for shape in config.shapes)


def factors_of(config, along: str, first: cute.Pointer) -> StageFactors:
    """The factors of the stages, which begin at ``first``. Those of columns are read together: 1, 2 or 4 of them."""
    pitch, stages = config.stage_factors(along), config.stages
    width = {1: 1, 2: 2}.get(column_factors(config), 4)
    if along == "k":
        cols = cute.make_layout((2, 4, config.tile_n // 8, stages), stride=(1, 2, 8, pitch))
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
            pair = factors.cols[None, lane // 2 % 4, i * (LANES // 8) + lane // 8, state.index]
            cute.copy(
                copy, cute.local_tile(cols[i], (1,), (first_block + k,)), cute.local_tile(pair, (1,), (lane % 2,))
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


@cute.jit
def factors_of_block(config: cutlass.Constexpr, cut: cutlass.Constexpr, factors: StageFactors):
    """Registers for what ``read_factors`` reads, and for what ``products_of`` makes of it."""
    slabs = cut.tile_m // MMA_ROWS // cut.sharing_groups
    if cutlass.const_expr(of_each_column(factors)):
        cols = cute.make_rmem_tensor(1, Float32)
        cols[0] = 1.0
    else:
        cols = cute.make_rmem_tensor(factors.cols.shape[0], Float32)
    blocks = 1 if of_each_column(factors) else -(-cut.tile_n // config.scale_cols)
    return (cute.make_rmem_tensor((2, slabs), Float32), cols, cute.make_rmem_tensor(2 * slabs * blocks, Float32))


@cute.jit
def products_of(rows: cute.Tensor, cols: cute.Tensor, products: cute.Tensor):
    """What a block's sums are multiplied with, for each row of the thread and block of columns."""
    blocks = cute.size(products) // cute.size(rows)
    for i in cutlass.range_constexpr(cute.size(rows)):
        for j in cutlass.range_constexpr(blocks):
            products[i * blocks + j] = rows[i] * cols[j]


@cute.jit
def add_apart(
    config: cutlass.Constexpr, slabs: cutlass.Constexpr[int], acc: cute.Tensor, first: cutlass.Constexpr[int],
    apart: cute.Tensor, products: cute.Tensor, factors: StageFactors, stage: Int32,
):  # fmt: skip
    """Add a block's sums of the columns from ``first`` on, multiplied with their factors, to those of the tile. Factors
    of each column are read from ``stage``."""
    # A thread holds pairs of columns, eight apart, of two rows, eight apart, of each slab: wgmma's layout.
    size, blocks = cute.size(apart) // slabs, cute.size(products) // (2 * slabs)
    if cutlass.const_expr(of_each_column(factors)):
        pair = cute.make_rmem_tensor(2, Float32)
        for j in cutlass.range_constexpr(size // 4):
            cute.autovec_copy(factors.cols[None, cute.arch.lane_idx() % 4, first // 8 + j, stage], pair)
            for each in cutlass.range_constexpr(4 * slabs):
                i, half, v = each // 4, each // 2 % 2, each % 2
                at = i * size + 4 * j + 2 * half + v
                acc[first // 2 * slabs + at] += apart[at] * (products[2 * i + half] * pair[v])
        return
    for i in cutlass.range_constexpr(slabs):
        for j in cutlass.range_constexpr(size // 4):
            for half in cutlass.range_constexpr(2):
                factor = products[(2 * i + half) * blocks + (first + 8 * j) // config.scale_cols]
                for v in cutlass.range_constexpr(2):
                    at = i * size + 4 * j + 2 * half + v
                    acc[first // 2 + at] += apart[at] * factor


@cute.jit
def release_read(ring: pipeline.PipelineAsync, state: pipeline.PipelineState):
    """Give back a stage that all lanes have read by themselves."""
    cute.arch.sync_warp()
    ring.consumer_release(state)


@cute.jit
def multiply_blocks(
    config: cutlass.Constexpr,
    cut: cutlass.Constexpr,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    factors: StageFactors,
) -> pipeline.PipelineState:
    """``mainloop.multiply_apart`` with factors."""
    parts, slabs = cute.size(b, mode=[3]), cut.tile_m // MMA_ROWS // cut.sharing_groups
    rows, cols, products = factors_of_block(config, cut, factors)
    apart = cute.make_rmem_tensor((*acc.shape[:2], 1), Float32)
    acc.fill(0.0)
    for _ in cutlass.range(tile.blocks, unroll=1):
        ring.consumer_wait(state)
        read_factors(cut, factors, state.index, rows, cols)
        for part in cutlass.range_constexpr(parts):
            multiply_stage(mma, apart, a, b[None, None, None, part, None], state.index, True)
            if cutlass.const_expr(part == 0):
                # Beside the products, and before the stage is given back.
                products_of(rows, cols, products)
            warpgroup.wait_group(0)
            early = part == parts - 1 and not of_each_column(factors)
            if cutlass.const_expr(early):
                ring.consumer_release(state)
            add_apart(config, slabs, acc, part * (cut.tile_n // parts), apart, products, factors, state.index)
        if cutlass.const_expr(of_each_column(factors)):
            release_read(ring, state)
        state.advance()
    return state


@cute.jit
def begin_block(
    cut: cutlass.Constexpr,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    apart: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    factors: StageFactors,
    rows: cute.Tensor,
    cols: cute.Tensor,
) -> tuple[pipeline.PipelineState, pipeline.PipelineState]:
    """Issue the first products of the block after that of ``state``, read its factors, and wait for the last products
    of the block before. Returns the states of both. The stage of the block before is given back, but not where it has
    factors of each column, which are read when sums are added."""
    done = state.clone()
    state.advance()
    ring.consumer_wait(state)
    multiply_stage(mma, apart, a, b[None, None, None, 0, None], state.index, True)
    read_factors(cut, factors, state.index, rows, cols)
    warpgroup.wait_group(1)
    if cutlass.const_expr(not of_each_column(factors)):
        ring.consumer_release(done)
    return state, done


@cute.jit
def multiply_rest(
    config: cutlass.Constexpr, slabs: cutlass.Constexpr[int], mma: cute.TiledMma, acc: cute.Tensor,
    apart: tuple[cute.Tensor, cute.Tensor], a: cute.Tensor, b: cute.Tensor, stage: Int32, products: cute.Tensor,
    factors: StageFactors,
):  # fmt: skip
    """Issue the products of a block's parts after the first one; of each part but the last one, add the sums."""
    parts = cute.size(b, mode=[3])
    for part in cutlass.range_constexpr(1, parts):
        multiply_stage(mma, apart[part % 2], a, b[None, None, None, part, None], stage, True)
        warpgroup.wait_group(1)
        first = (part - 1) * cute.size(acc) // parts // slabs * 2
        add_apart(config, slabs, acc, first, apart[(part - 1) % 2], products, factors, stage)


@cute.jit
def add_last(
    config: cutlass.Constexpr, slabs: cutlass.Constexpr[int], acc: cute.Tensor, first: cutlass.Constexpr[int],
    apart: cute.Tensor, products: cute.Tensor, factors: StageFactors, ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
):  # fmt: skip
    """``add_apart`` for a block's last part; a stage whose factors it reads is given back then."""
    add_apart(config, slabs, acc, first, apart, products, factors, state.index)
    if cutlass.const_expr(of_each_column(factors)):
        release_read(ring, state)


@cute.jit
def multiply_overlapped(
    config: cutlass.Constexpr,
    cut: cutlass.Constexpr,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    factors: StageFactors,
) -> pipeline.PipelineState:
    """``multiply_blocks`` with two sets of sums, in turn: the products of one part of a tile's columns run while the
    part before is added, so that this warp group always has work for the tensor cores. Where there is one part, it
    is the next block's."""
    parts, slabs = cute.size(b, mode=[3]), cut.tile_m // MMA_ROWS // cut.sharing_groups
    rows, cols, products = factors_of_block(config, cut, factors)
    apart = tuple(cute.make_rmem_tensor((*acc.shape[:2], 1), Float32) for _ in range(2))
    first_of_last = cut.tile_n // parts * (parts - 1)
    acc.fill(0.0)
    ring.consumer_wait(state)
    multiply_stage(mma, apart[0], a, b[None, None, None, 0, None], state.index, True)
    read_factors(cut, factors, state.index, rows, cols)
    products_of(rows, cols, products)
    multiply_rest(config, slabs, mma, acc, apart, a, b, state.index, products, factors)
    # Two blocks are a turn of the loop: where all of a block is one part, the other set of sums is next, and registers
    # have no index that changes. In any case, without the branch after the loop ptxas waits for every product.
    last = (parts - 1) % 2
    sets = ((last, 1 - last), (1 - last, last)) if parts == 1 else ((1, 0), (1, 0))
    for _ in cutlass.range((tile.blocks - 1) // 2, unroll=1):
        for i in cutlass.range_constexpr(2):
            full, fresh = sets[i]
            state, done = begin_block(cut, ring, state, mma, apart[fresh], a, b, factors, rows, cols)
            add_last(config, slabs, acc, first_of_last, apart[full], products, factors, ring, done)
            products_of(rows, cols, products)
            multiply_rest(config, slabs, mma, acc, apart, a, b, state.index, products, factors)
    if tile.blocks % 2 == 1:
        warpgroup.wait_group(0)
        if cutlass.const_expr(not of_each_column(factors)):
            ring.consumer_release(state)
        add_last(config, slabs, acc, first_of_last, apart[sets[0][0]], products, factors, ring, state)
    else:
        state, done = begin_block(cut, ring, state, mma, apart[sets[0][1]], a, b, factors, rows, cols)
        add_last(config, slabs, acc, first_of_last, apart[sets[0][0]], products, factors, ring, done)
        products_of(rows, cols, products)
        multiply_rest(config, slabs, mma, acc, apart, a, b, state.index, products, factors)
        warpgroup.wait_group(0)
        if cutlass.const_expr(not of_each_column(factors)):
            ring.consumer_release(state)
        add_last(config, slabs, acc, first_of_last, apart[sets[1][0]], products, factors, ring, state)
    state.advance()
    return state


def multiply(config, cut, *arguments) -> pipeline.PipelineState:
    """``multiply_overlapped`` or ``multiply_blocks``, as the configuration says."""
    return (multiply_overlapped if config.overlapped else multiply_blocks)(config, cut, *arguments)
