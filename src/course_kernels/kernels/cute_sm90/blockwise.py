"""Products of 8-bit operands with a factor for each block of 128 along K: of each row of A, and of 128 columns of B.

As in ``mainloop.multiply_apart`` each block's products are summed from zero and added in float32. What is added is
multiplied with the block's factors on the way, in one instruction with the addition.
"""

from typing import NamedTuple

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import warpgroup

from course_kernels.kernels.cute_sm90.config import MMA_ROWS, SCALE_BLOCK, WARP_GROUP
from course_kernels.kernels.cute_sm90.epilogue import first_row
from course_kernels.kernels.cute_sm90.mainloop import multiply_stage
from course_kernels.kernels.cute_sm90.scheduler import Tile


class BlockScales(NamedTuple):
    """Factors, float32, with any strides: ``rows`` (total_m, blocks of K) of A's rows, ``cols`` (G, blocks of K, blocks
    of N) of B's columns."""

    rows: cute.Tensor
    cols: cute.Tensor


class Lines(NamedTuple):
    """Where the factors of one thread are: its rows, and the blocks of columns that its tile touches."""

    rows: tuple[cute.Tensor, ...]
    cols: tuple[cute.Tensor, ...]


@cute.jit
def lines_of(config: cutlass.Constexpr, cut: cutlass.Constexpr, tile: Tile, scales: BlockScales) -> Lines:
    """The factors of this thread in a tile of the shape ``cut``, each by blocks of K. What is outside of the group or
    of the result has the last factors inside."""
    thread = cute.arch.thread_idx()[0] % WARP_GROUP
    group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1
    rows, cols = [], []
    for i in cutlass.range_constexpr(cut.tile_m // MMA_ROWS // cut.sharing_groups):
        row = first_row(cut, tile, group, i) + thread // 32 * 16 + thread % 32 // 4
        for half in cutlass.range_constexpr(2):
            rows.append(scales.rows[cutlass.min(row + 8 * half, tile.end - 1), None])
    last = cute.size(scales.cols, mode=[2]) - 1
    for first in cutlass.range_constexpr(0, cut.tile_n, config.scale_cols):
        block = cutlass.min((tile.col + first) // SCALE_BLOCK, last)
        cols.append(scales.cols[tile.group, None, block])
    return Lines(tuple(rows), tuple(cols))


@cute.jit
def load_factors(lines: Lines, k: Int32, factors: cute.Tensor):
    """Load a block's factors, the rows' first."""
    for i in cutlass.range_constexpr(len(lines.rows)):
        factors[i] = lines.rows[i][k]
    for i in cutlass.range_constexpr(len(lines.cols)):
        factors[len(lines.rows) + i] = lines.cols[i][k]


@cute.jit
def products_of(slabs: cutlass.Constexpr[int], factors: cute.Tensor, products: cute.Tensor):
    """What a block's sums are multiplied with, for each row of the thread and block of columns."""
    blocks = cute.size(factors) - 2 * slabs
    for i in cutlass.range_constexpr(2 * slabs):
        for j in cutlass.range_constexpr(blocks):
            products[i * blocks + j] = factors[i] * factors[2 * slabs + j]


@cute.jit
def add_apart(
    config: cutlass.Constexpr, slabs: cutlass.Constexpr[int], acc: cute.Tensor, first: cutlass.Constexpr[int],
    apart: cute.Tensor, products: cute.Tensor,
):  # fmt: skip
    """Add a block's sums of the columns from ``first`` on, multiplied with their factors, to those of the tile."""
    # A thread holds pairs of columns, eight apart, of two rows, eight apart, of each slab: wgmma's layout.
    size, blocks = cute.size(apart) // slabs, cute.size(products) // (2 * slabs)
    for i in cutlass.range_constexpr(slabs):
        for start in cutlass.range_constexpr(0, 2 * size, config.scale_cols):
            for half in cutlass.range_constexpr(2):
                factor = products[(2 * i + half) * blocks + (first + start) // config.scale_cols]
                for j in cutlass.range_constexpr(start // 8, min(start + config.scale_cols, 2 * size) // 8):
                    for v in cutlass.range_constexpr(2):
                        at = i * size + 4 * j + 2 * half + v
                        acc[first // 2 + at] += apart[at] * factor


@cute.jit
def multiply_block(
    config: cutlass.Constexpr,
    cut: cutlass.Constexpr,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    lines: Lines,
    factors: cute.Tensor,
    following: Int32,
) -> pipeline.PipelineState:
    """Add one block's products to ``acc``, multiplied with the block's ``factors``, which make room for those of the
    block ``following``."""
    parts, slabs = cute.size(b, mode=[3]), cut.tile_m // MMA_ROWS // cut.sharing_groups
    products = cute.make_rmem_tensor(2 * slabs * (cute.size(factors) - 2 * slabs), Float32)
    apart = cute.make_rmem_tensor((*acc.shape[:2], 1), Float32)
    ring.consumer_wait(state)
    for part in cutlass.range_constexpr(parts):
        if cutlass.const_expr(parts > 1):
            # As in multiply_apart: it ends the life of the last part's sums.
            apart.fill(0.0)
        multiply_stage(mma, apart, a, b[None, None, None, part, None], state.index, True)
        warpgroup.wait_group(0)
        if cutlass.const_expr(part == parts - 1):
            ring.consumer_release(state)
        if cutlass.const_expr(part == 0):
            # After the wait: computing addresses between two wgmmas would keep the tensor cores waiting for the second.
            products_of(slabs, factors, products)
            load_factors(lines, following, factors)
        add_apart(config, slabs, acc, part * (cut.tile_n // parts), apart, products)
    state.advance()
    return state


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
    scales: BlockScales,
) -> pipeline.PipelineState:
    """``mainloop.multiply_apart`` with factors.

    A load from L2 may take longer than a block's products, so factors are loaded two blocks ahead. Those of even and of
    odd blocks have registers of their own: moving them from one to the other would wait for the load.
    """
    acc.fill(0.0)
    lines, last = lines_of(config, cut, tile, scales), tile.blocks - 1
    even, odd = (cute.make_rmem_tensor(len(lines.rows) + len(lines.cols), Float32) for _ in range(2))
    load_factors(lines, Int32(0), even)
    load_factors(lines, cutlass.min(1, last), odd)
    for pair in cutlass.range(tile.blocks // 2, unroll=1):
        for i in cutlass.range_constexpr(2):
            following = cutlass.min(2 * pair + 2 + i, last)
            state = multiply_block(config, cut, ring, state, mma, acc, a, b, lines, (even, odd)[i], following)
    if tile.blocks % 2 == 1:
        state = multiply_block(config, cut, ring, state, mma, acc, a, b, lines, even, last)
    return state
