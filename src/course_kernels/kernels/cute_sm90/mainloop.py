"""From stages to accumulators: the warp groups that share a tile multiply its blocks as they arrive."""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.utils import hopper_helpers

from course_kernels.kernels.cute_sm90.config import MMA_ROWS
from course_kernels.kernels.cute_sm90.loads.tma import Load, make_load
from course_kernels.kernels.cute_sm90.stages import shared_layout, wait_full


def make_mma(
    dtype: type[cutlass.Numeric], tile_n: int, groups: int, a_across: bool = False, b_across: bool = False
) -> cute.TiledMma:
    """wgmma of 64 x ``tile_n`` for each of ``groups`` warp groups, one below the other; both operands from shared
    memory, laid out as ``shared_layout`` says; accumulators in float32."""
    a_major, b_major = (OperandMajorMode.MN if across else OperandMajorMode.K for across in (a_across, b_across))
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, a_major, b_major, Float32, (groups, 1, 1), tiler_mn=(MMA_ROWS, tile_n)
    )


class ShapeOps(NamedTuple):
    """The operations for tiles of one shape: the multiplication, the loads of blocks of A and of B, of each None where
    it does not come through TMA, and the blocks' layouts in stages."""

    mma: cute.TiledMma
    a: Load | None
    b: Load | None
    a_layout: cute.ComposedLayout
    b_layout: cute.ComposedLayout


def make_ops(
    shape,
    pitch: int,
    a: cute.Tensor,
    b: cute.Tensor,
    a_across: bool,
    b_across: bool,
    product_cols: int,
    gathered: str | None = None,
    halves: int = 1,
) -> ShapeOps:
    """Make the operations for one shape of ``CuteConfig.shapes``. A stage begins ``pitch`` elements after the one
    before it, and has a block of A and one of B. ``gathered``: the operand that is loaded without TMA, "a" or "b";
    ``halves`` as in ``make_load``, of B."""
    a_layout = shared_layout(a.element_type, shape.tile_m, shape.tile_k, shape.stages, a_across, pitch)
    b_layout = shared_layout(b.element_type, shape.tile_n, shape.tile_k, shape.stages, b_across, pitch)
    return ShapeOps(
        make_mma(a.element_type, product_cols, shape.sharing_groups, a_across, b_across),
        None if gathered == "a" else make_load(a, a_layout, shape.tile_m, shape.tile_k, shape.cluster),
        None if gathered == "b" else make_load(b, b_layout, shape.tile_n, shape.tile_k, shape.cluster, halves),
        a_layout,
        b_layout,
    )


def stages_of(ops: ShapeOps, stages: cute.Pointer) -> tuple[cute.Tensor, cute.Tensor]:
    """The blocks of A and of B in stages that begin at ``stages``."""
    a, b = ops.a_layout, ops.b_layout
    b_first = stages + cute.size(a, mode=[0]) * cute.size(a, mode=[1])
    return tuple(
        cute.make_tensor(cute.recast_ptr(first, layout.inner, dtype=stages.dtype), layout.outer)
        for first, layout in ((stages, a), (b_first, b))
    )


@cute.jit
def multiply_stage(
    mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, stage: Int32, fresh: cutlass.Constexpr[bool]
):
    """Issue the products of one stage; the first of them overwrites ``acc`` where ``fresh``."""
    atom = cute.make_mma_atom(mma.op)
    atom.set(warpgroup.Field.ACCUMULATE, not fresh)
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(a, mode=[2])):
        cute.gemm(atom, acc, a[None, None, k, stage], b[None, None, k, stage], acc)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


@cute.jit
def multiply_tile(
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    blocks: Int32,
    gathered: cutlass.Constexpr[bool] = False,
) -> tuple[pipeline.PipelineState, pipeline.PipelineState]:
    """Multiply a tile's ``blocks`` blocks into ``acc``. The last products and the last stage are left open: see
    ``finish_tile``. Returns the state after the tile, and that of the last stage. Called by the warp groups that share
    the tile. What was ``gathered``, threads wrote, not TMA: products read it after a fence."""
    ring.consumer_wait(state)
    if cutlass.const_expr(gathered):
        cute.arch.fence_proxy("async.shared", space="cta")
    multiply_stage(mma, acc, a, b, state.index, True)
    done = state.clone()
    state.advance()
    for _ in cutlass.range(1, blocks, unroll=1):
        ring.consumer_wait(state)
        if cutlass.const_expr(gathered):
            cute.arch.fence_proxy("async.shared", space="cta")
        multiply_stage(mma, acc, a, b, state.index, False)
        # One stage's products stay in flight while the ones before them give their stage back.
        warpgroup.wait_group(1)
        ring.consumer_release(done)
        done.advance()
        state.advance()
    return state, done


@cute.jit
def multiply_apart(
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    blocks: Int32,
) -> pipeline.PipelineState:
    """``multiply_tile`` for 8-bit operands, with nothing left open.

    wgmma keeps about 14 bits of a sum of such products, however long it is. So each block's products are summed apart,
    from zero, and added to ``acc`` in float32: what is lost is that of ``tile_k`` additions, whatever K is.
    """
    parts = cute.size(b, mode=[3])
    acc.fill(0.0)
    apart = cute.make_rmem_tensor((*acc.shape[:2], 1), Float32)
    # A one that the compiler does not know: of what is added as it is, it keeps copies at 256 columns, and they spill.
    one = cute.arch.shuffle_sync(Float32(1.0), 0)
    for _ in cutlass.range(blocks, unroll=1):
        wait_full(ring, state, Boolean(False))
        for part in cutlass.range_constexpr(parts):
            multiply_stage(mma, apart, a, b[None, None, None, part, None], state.index, True)
            warpgroup.wait_group(0)
            if cutlass.const_expr(part == parts - 1):
                ring.consumer_release(state)
            for v in cutlass.range(cute.size(apart), unroll_full=True):
                acc[part * cute.size(apart) + v] += apart[v] * one
        state.advance()
    return state


@cute.jit
def finish_tile(ring: pipeline.PipelineAsync, done: pipeline.PipelineState):
    """Wait for the last products and give their stage back."""
    warpgroup.wait_group(0)
    ring.consumer_release(done)
