"""Products of 8-bit operands with a factor for each block of 128 along K: of each row of A, and of 128 columns of B.

As in ``mainloop.multiply_apart`` each block's products are summed from zero and added in float32. What is added is
multiplied with the block's factors on the way, in one instruction with the addition.

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
    of N) of B's columns."""

    rows: cute.Tensor
    cols: cute.Tensor


class StageFactors(NamedTuple):
    """The factors in shared memory. ``rows`` (2, pairs, stages): two rows eight apart, which one thread has, are a
    pair. ``cols`` (columns, stages): of as many columns as surely share one, ``CuteConfig.scale_cols``."""

    rows: cute.Tensor
    cols: cute.Tensor


def column_factors(config) -> int:
    """Factors that a stage has of B."""
    return max(-(-shape.tile_n // config.scale_cols) for shape in config.shapes)


def factors_of(config, first: cute.Pointer) -> StageFactors:
    """The factors of the stages, which begin at ``first``. Those of columns are read together: 1, 2 or 4 of them."""
    pitch, stages = config.stage_factors, config.stages
    width = {1: 1, 2: 2}.get(column_factors(config), 4)
    return StageFactors(
        cute.make_tensor(first, cute.make_layout((2, config.tile_m // 2, stages), stride=(1, 2, pitch))),
        cute.make_tensor(first + config.tile_m, cute.make_layout((width, stages), stride=(1, pitch))),
    )


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
            state = load_factors(config, tile, ring, state, scales, factors)
            number += cute.arch.grid_dim()[2]
            window, tile = find_tile(config, along, problem, window, number)
        # The threads outlive their copies.
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)


@cute.jit
def read_factors(cut: cutlass.Constexpr, factors: StageFactors, stage: Int32, rows: cute.Tensor, cols: cute.Tensor):
    """Read a stage's factors: of this thread's two ``rows`` of each 64, and of all blocks of columns."""
    thread = cute.arch.thread_idx()[0] % WARP_GROUP
    pair = thread // 32 * 8 + thread % 32 // 4
    if cutlass.const_expr(cut.sharing_groups > 1):
        pair += (cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1) * (MMA_ROWS // 2)
    for i in cutlass.range_constexpr(cute.size(rows, mode=[1])):
        first = i * cut.sharing_groups * (MMA_ROWS // 2)
        cute.autovec_copy(factors.rows[None, first + pair, stage], rows[None, i])
    cute.autovec_copy(factors.cols[None, stage], cols)


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
    apart: cute.Tensor, products: cute.Tensor,
):  # fmt: skip
    """Add a block's sums of the columns from ``first`` on, multiplied with their factors, to those of the tile."""
    # A thread holds pairs of columns, eight apart, of two rows, eight apart, of each slab: wgmma's layout.
    size, blocks = cute.size(apart) // slabs, cute.size(products) // (2 * slabs)
    for i in cutlass.range_constexpr(slabs):
        for j in cutlass.range_constexpr(size // 4):
            for half in cutlass.range_constexpr(2):
                factor = products[(2 * i + half) * blocks + (first + 8 * j) // config.scale_cols]
                for v in cutlass.range_constexpr(2):
                    at = i * size + 4 * j + 2 * half + v
                    acc[first // 2 + at] += apart[at] * factor


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
    rows, cols = cute.make_rmem_tensor((2, slabs), Float32), cute.make_rmem_tensor(factors.cols.shape[0], Float32)
    products = cute.make_rmem_tensor(2 * slabs * -(-cut.tile_n // config.scale_cols), Float32)
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
            if cutlass.const_expr(part == parts - 1):
                ring.consumer_release(state)
            add_apart(config, slabs, acc, part * (cut.tile_n // parts), apart, products)
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
) -> pipeline.PipelineState:
    """Issue the first products of the block after that of ``state``, read its factors, and wait for the last products
    of the block before, whose stage is given back."""
    done = state.clone()
    state.advance()
    ring.consumer_wait(state)
    multiply_stage(mma, apart, a, b[None, None, None, 0, None], state.index, True)
    read_factors(cut, factors, state.index, rows, cols)
    warpgroup.wait_group(1)
    ring.consumer_release(done)
    return state


@cute.jit
def multiply_rest(
    config: cutlass.Constexpr, slabs: cutlass.Constexpr[int], mma: cute.TiledMma, acc: cute.Tensor,
    apart: tuple[cute.Tensor, cute.Tensor], a: cute.Tensor, b: cute.Tensor, stage: Int32, products: cute.Tensor,
):  # fmt: skip
    """Issue the products of a block's parts after the first one; of each part but the last one, add the sums."""
    parts = cute.size(b, mode=[3])
    for part in cutlass.range_constexpr(1, parts):
        multiply_stage(mma, apart[part % 2], a, b[None, None, None, part, None], stage, True)
        warpgroup.wait_group(1)
        first = (part - 1) * cute.size(acc) // parts // slabs * 2
        add_apart(config, slabs, acc, first, apart[(part - 1) % 2], products)


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
    rows, cols = cute.make_rmem_tensor((2, slabs), Float32), cute.make_rmem_tensor(factors.cols.shape[0], Float32)
    products = cute.make_rmem_tensor(2 * slabs * -(-cut.tile_n // config.scale_cols), Float32)
    apart = tuple(cute.make_rmem_tensor((*acc.shape[:2], 1), Float32) for _ in range(2))
    first_of_last = cut.tile_n // parts * (parts - 1)
    acc.fill(0.0)
    ring.consumer_wait(state)
    multiply_stage(mma, apart[0], a, b[None, None, None, 0, None], state.index, True)
    read_factors(cut, factors, state.index, rows, cols)
    products_of(rows, cols, products)
    multiply_rest(config, slabs, mma, acc, apart, a, b, state.index, products)
    # Two blocks are a turn of the loop: where all of a block is one part, the other set of sums is next, and registers
    # have no index that changes. In any case, without the branch after the loop ptxas waits for every product.
    last = (parts - 1) % 2
    sets = ((last, 1 - last), (1 - last, last)) if parts == 1 else ((1, 0), (1, 0))
    for _ in cutlass.range((tile.blocks - 1) // 2, unroll=1):
        for i in cutlass.range_constexpr(2):
            full, fresh = sets[i]
            state = begin_block(cut, ring, state, mma, apart[fresh], a, b, factors, rows, cols)
            add_apart(config, slabs, acc, first_of_last, apart[full], products)
            products_of(rows, cols, products)
            multiply_rest(config, slabs, mma, acc, apart, a, b, state.index, products)
    if tile.blocks % 2 == 1:
        warpgroup.wait_group(0)
        ring.consumer_release(state)
        add_apart(config, slabs, acc, first_of_last, apart[sets[0][0]], products)
    else:
        state = begin_block(cut, ring, state, mma, apart[sets[0][1]], a, b, factors, rows, cols)
        add_apart(config, slabs, acc, first_of_last, apart[sets[0][0]], products)
        products_of(rows, cols, products)
        multiply_rest(config, slabs, mma, acc, apart, a, b, state.index, products)
        warpgroup.wait_group(0)
        ring.consumer_release(state)
        add_apart(config, slabs, acc, first_of_last, apart[sets[1][0]], products)
    state.advance()
    return state


def multiply(config, cut, *arguments) -> pipeline.PipelineState:
    """``multiply_overlapped`` or ``multiply_blocks``, as the configuration says."""
    return (multiply_overlapped if config.overlapped else multiply_blocks)(config, cut, *arguments)
