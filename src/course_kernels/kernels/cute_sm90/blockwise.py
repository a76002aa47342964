"""Products of 8-bit operands with a factor for each block of 128 along K: of each row of A, and of 128 columns of B,
or of each column where groups lie along K.

As in ``mainloop.multiply_apart`` each block's products are summed from zero and added in float32. What is added is
multiplied with the block's factors (``factors``) on the way, in one instruction with the addition. Factors of each
column are too many for registers: they are read where they are multiplied, and the stage is given back after that.
"""

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import warpgroup

from course_kernels.kernels.cute_sm90.config import MMA_ROWS
from course_kernels.kernels.cute_sm90.factors import StageFactors, of_each_column, read_factors
from course_kernels.kernels.cute_sm90.mainloop import multiply_stage
from course_kernels.kernels.cute_sm90.scheduler import Tile


@cute.jit
def make_products(config: cutlass.Constexpr, cut: cutlass.Constexpr, factors: StageFactors):
    """Registers for factors of rows and of columns, and for their products. Of factors of each column there are none:
    their products are those of the rows alone."""
    rows = cute.make_rmem_tensor((2, cut.tile_m // MMA_ROWS // cut.sharing_groups), Float32)
    if cutlass.const_expr(of_each_column(factors)):
        return rows, rows, rows
    cols = cute.make_rmem_tensor(factors.cols.shape[0], Float32)
    return rows, cols, cute.make_rmem_tensor(cute.size(rows) * -(-cut.tile_n // config.scale_cols), Float32)


@cute.jit
def products_of(rows: cute.Tensor, cols: cute.Tensor, products: cute.Tensor):
    """What a block's sums are multiplied with, for each row of the thread and block of columns."""
    blocks = cute.size(products) // cute.size(rows)
    for i in cutlass.range_constexpr(cute.size(rows)):
        for j in cutlass.range_constexpr(blocks):
            products[i * blocks + j] = rows[i] * cols[j]


@cute.jit
def next_products(
    cut: cutlass.Constexpr,
    factors: StageFactors,
    stage: Int32,
    rows: cute.Tensor,
    cols: cute.Tensor,
    products: cute.Tensor,
):
    """Once the last block's sums are added: ``products_of`` this one's factors, which were read meanwhile. Factors of
    each column leave no registers to read the rows' meanwhile, so these are read now."""
    if cutlass.const_expr(of_each_column(factors)):
        read_factors(cut, factors, stage, products, cols)
    else:
        products_of(rows, cols, products)


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
        cols = cute.make_rmem_tensor(4, Float32)
        for j in cutlass.range_constexpr(size // 8):
            cute.autovec_copy(factors.cols[None, cute.arch.lane_idx() % 4, first // 16 + j, stage], cols)
            for each in cutlass.range_constexpr(8 * slabs):
                i, eight, half, v = each // 8, each // 4 % 2, each // 2 % 2, each % 2
                at = i * size + 8 * j + 4 * eight + 2 * half + v
                acc[first // 2 * slabs + at] += apart[at] * (products[2 * i + half] * cols[2 * eight + v])
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
    rows, cols, products = make_products(config, cut, factors)
    apart = cute.make_rmem_tensor((*acc.shape[:2], 1), Float32)
    acc.fill(0.0)
    for _ in cutlass.range(tile.blocks, unroll=1):
        ring.consumer_wait(state)
        if cutlass.const_expr(not of_each_column(factors)):
            read_factors(cut, factors, state.index, rows, cols)
        for part in cutlass.range_constexpr(parts):
            multiply_stage(mma, apart, a, b[None, None, None, part, None], state.index, True)
            if cutlass.const_expr(part == 0):
                # Beside the products, and before the stage is given back.
                next_products(cut, factors, state.index, rows, cols, products)
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
    if cutlass.const_expr(not of_each_column(factors)):
        read_factors(cut, factors, state.index, rows, cols)
    warpgroup.wait_group(1)
    if cutlass.const_expr(of_each_column(factors)):
        # Counted back: kept from above, it keeps the stage's number, and with it the operands' addresses, out of
        # uniform registers, and others spill.
        done = state.clone()
        done.reverse()
    else:
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
    rows, cols, products = make_products(config, cut, factors)
    apart = tuple(cute.make_rmem_tensor((*acc.shape[:2], 1), Float32) for _ in range(2))
    first_of_last = cut.tile_n // parts * (parts - 1)
    acc.fill(0.0)
    ring.consumer_wait(state)
    multiply_stage(mma, apart[0], a, b[None, None, None, 0, None], state.index, True)
    if cutlass.const_expr(not of_each_column(factors)):
        read_factors(cut, factors, state.index, rows, cols)
    next_products(cut, factors, state.index, rows, cols, products)
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
            next_products(cut, factors, state.index, rows, cols, products)
            multiply_rest(config, slabs, mma, acc, apart, a, b, state.index, products, factors)
    if tile.blocks % 2 == 1:
        warpgroup.wait_group(0)
        if cutlass.const_expr(not of_each_column(factors)):
            ring.consumer_release(state)
        add_last(config, slabs, acc, first_of_last, apart[sets[0][0]], products, factors, ring, state)
    else:
        state, done = begin_block(cut, ring, state, mma, apart[sets[0][1]], a, b, factors, rows, cols)
        add_last(config, slabs, acc, first_of_last, apart[sets[0][0]], products, factors, ring, done)
        next_products(cut, factors, state.index, rows, cols, products)
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
