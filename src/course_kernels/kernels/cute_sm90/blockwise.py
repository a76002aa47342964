"""Products of 8-bit operands with a factor for each block of 128 along K: one for each row of A, and one for 128
columns of B, or for each column if groups lie along K.

As in ``mainloop.multiply_apart`` each block's products are summed from zero and added in float32. One instruction
multiplies a sum with the block's factors (``block_scales``) and adds it. While a warp group adds, its partner uses the
tensor cores; so nothing else may take long between two products of a group.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import warpgroup

from course_kernels.kernels.cute_sm90.block_scales import (
    BlockScales,
    Lines,
    StageScales,
    column_blocks,
    products_of,
    read_next,
    read_rows,
    scale_lines,
)
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, MMA_ROWS
from course_kernels.kernels.cute_sm90.mainloop import multiply_stage
from course_kernels.kernels.cute_sm90.scheduler import Tile
from course_kernels.kernels.cute_sm90.stages import wait_full


class Sums(NamedTuple):
    """A tile's sums, and those of a part of one block."""

    acc: cute.Tensor
    apart: cute.Tensor


class ThreadScales(NamedTuple):
    """Where a thread's next factors are; the last ones read, of rows and of blocks of columns; their products, with
    which a block's sums are multiplied."""

    lines: Lines
    rows: cute.Tensor
    cols: cute.Tensor
    products: cute.Tensor


def make_sums(acc: cute.Tensor) -> Sums:
    """Registers for sums of a part beside those of the tile."""
    return Sums(acc, cute.make_rmem_tensor((*acc.shape[:2], 1), Float32))


@cute.jit
def add_apart(
    config: cutlass.Constexpr, slabs: cutlass.Constexpr[int], sums: Sums, first: cutlass.Constexpr[int],
    products: cute.Tensor,
):  # fmt: skip
    """Add a block's sums of the columns from ``first`` on, multiplied with their factors, to those of the tile."""
    # A thread holds pairs of columns, eight apart, of two rows, eight apart, of each slab: wgmma's layout.
    size, blocks = cute.size(sums.apart) // slabs, cute.size(products) // (2 * slabs)
    for i in cutlass.range_constexpr(slabs):
        for j in cutlass.range_constexpr(size // 4):
            for half in cutlass.range_constexpr(2):
                factor = products[(2 * i + half) * blocks + (first + 8 * j) // config.scale_cols]
                for v in cutlass.range_constexpr(2):
                    at = i * size + 4 * j + 2 * half + v
                    sums.acc[first // 2 + at] += sums.apart[at] * factor


@cute.jit
def multiply_block(
    config: cutlass.Constexpr,
    shape: cutlass.Constexpr,
    follows: cutlass.Constexpr[bool],
    blocks: Int32,
    k: Int32,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    following: pipeline.PipelineState,
    full: Boolean,
    mma: cute.TiledMma,
    sums: Sums,
    a: cute.Tensor,
    b: cute.Tensor,
    factors: ThreadScales,
) -> Boolean:
    """Multiply block ``k`` of ``blocks``, whose factors are read, and add it. It is in the stage of ``state``; ``full``
    says that it was there when last asked for. Meanwhile begin to read the next block's factors, and ask for it, in
    the stage of ``following``: returns whether it is there. There surely is one where ``follows``."""
    parts, slabs = cute.size(b, mode=[3]), shape.tile_m // MMA_ROWS // shape.sharing_groups
    wait_full(ring, state, full)
    full = Boolean(False)
    for part in cutlass.range_constexpr(parts):
        multiply_stage(mma, sums.apart, a, b[None, None, None, part, None], state.index, True)
        if cutlass.const_expr(part == 0):
            products_of(config, factors.lines, factors.rows, factors.cols, factors.products)
            if cutlass.const_expr(follows):  # noqa: SIM114 - decided when compiling
                read_next(factors.lines, factors.rows, factors.cols)
            elif k + 1 < blocks:
                read_next(factors.lines, factors.rows, factors.cols)
        warpgroup.wait_group(0)
        if cutlass.const_expr(part == parts - 1):
            ring.consumer_release(state)
            if cutlass.const_expr(follows):  # noqa: SIM114
                full = ring.consumer_try_wait(following)
            elif k + 1 < blocks:
                full = ring.consumer_try_wait(following)
        add_apart(config, slabs, sums, part * (shape.tile_n // parts), factors.products)
    return full


@cute.jit
def multiply_blocks(
    config: cutlass.Constexpr,
    shape: cutlass.Constexpr,
    whole_rounds: cutlass.Constexpr[bool],
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    scales: BlockScales,
) -> pipeline.PipelineState:
    """Do what ``mainloop.multiply_apart`` does, with factors.

    An iteration of the cooperative loop is a round of all stages, so that their numbers and all addresses are known at
    compile time; so every tile begins with the first stage. Unless K surely is ``whole_rounds``, another loop
    multiplies the rest of its last round, and the stages after that stay empty (``stages.skip_stages``).
    """
    slabs, stages = shape.tile_m // MMA_ROWS // shape.sharing_groups, config.stages
    lines = scale_lines(config, shape, tile, scales)
    factors = ThreadScales(
        lines,
        cute.make_rmem_tensor((2, slabs), Float32),
        cute.make_rmem_tensor(column_blocks(config, shape), Float32),
        cute.make_rmem_tensor(2 * slabs * -(-shape.tile_n // config.scale_cols), Float32),
    )
    read_next(factors.lines, factors.rows, factors.cols)
    sums = make_sums(acc)
    acc.fill(0.0)
    full, k, rest = Boolean(False), Int32(0), tile.blocks
    if cutlass.const_expr(config.schedule == COOPERATIVE):
        phase = state.phase
        for _ in cutlass.range(tile.blocks // stages, unroll=1):
            for stage in cutlass.range_constexpr(stages):
                last = stage == stages - 1
                at = pipeline.PipelineState(stages, Int32(0), Int32(stage), phase)
                following = pipeline.PipelineState(
                    stages, Int32(0), Int32(0 if last else stage + 1), phase ^ 1 if last else phase
                )
                full = multiply_block(
                    config, shape, not last, tile.blocks, k, ring, at, following, full, mma, sums, a, b, factors
                )
                k += 1
            phase = phase ^ 1
        state = pipeline.PipelineState(stages, state.count, Int32(0), phase)
        rest = tile.blocks % stages
    if cutlass.const_expr(not (config.schedule == COOPERATIVE and whole_rounds)):
        for _ in cutlass.range(rest, unroll=1):
            at = state.clone()
            state.advance()
            full = multiply_block(config, shape, False, tile.blocks, k, ring, at, state, full, mma, sums, a, b, factors)
            k += 1
    if cutlass.const_expr(config.schedule == COOPERATIVE and not whole_rounds):
        while state.index != 0:
            wait_full(ring, state, Boolean(False))
            ring.consumer_release(state)
            state.advance()
    return state


@cute.jit
def add_lines(
    slabs: cutlass.Constexpr[int], sums: Sums, first: cutlass.Constexpr[int], rows: cute.Tensor, staged: StageScales,
    stage: Int32,
):  # fmt: skip
    """``add_apart`` with a factor for each column, read from ``stage``."""
    size, cols = cute.size(sums.apart) // slabs, cute.make_rmem_tensor(4, Float32)
    for j in cutlass.range_constexpr(size // 8):
        cute.autovec_copy(staged.cols[None, cute.arch.lane_idx() % 4, first // 16 + j, stage], cols)
        for each in cutlass.range_constexpr(8 * slabs):
            i, eight, half, v = each // 8, each // 4 % 2, each // 2 % 2, each % 2
            at = i * size + 8 * j + 4 * eight + 2 * half + v
            sums.acc[first // 2 * slabs + at] += sums.apart[at] * (rows[2 * i + half] * cols[2 * eight + v])


@cute.jit
def multiply_lines(
    shape: cutlass.Constexpr,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    staged: StageScales,
) -> pipeline.PipelineState:
    """``multiply_blocks`` with groups along K. Factors of each column are too many for registers: they are read where
    they are multiplied, and the stage is given back after that."""
    parts, slabs = cute.size(b, mode=[3]), shape.tile_m // MMA_ROWS // shape.sharing_groups
    rows, sums = cute.make_rmem_tensor((2, slabs), Float32), make_sums(acc)
    acc.fill(0.0)
    for _ in cutlass.range(tile.blocks, unroll=1):
        wait_full(ring, state, Boolean(False))
        for part in cutlass.range_constexpr(parts):
            multiply_stage(mma, sums.apart, a, b[None, None, None, part, None], state.index, True)
            if cutlass.const_expr(part == 0):
                read_rows(shape, staged, state.index, rows)
            warpgroup.wait_group(0)
            add_lines(slabs, sums, part * (shape.tile_n // parts), rows, staged, state.index)
        cute.arch.sync_warp()  # every lane has read for itself
        ring.consumer_release(state)
        state.advance()
    return state
