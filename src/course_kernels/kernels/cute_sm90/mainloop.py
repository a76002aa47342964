"""From global memory to the accumulators: one warp fills a ring of stages through TMA, warp groups multiply from it.

A stage holds a block of A and a block of B. Its two barriers say that it is full, by counting the bytes that arrive,
and that it is free again, by counting the warps that are done with it: in a cluster those of both CTAs, because a CTA
loads only a part of the block that both use and writes it to both.
"""

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from course_kernels.kernels.cute_sm90.config import MMA_ROWS, WARP_GROUP
from course_kernels.kernels.cute_sm90.scheduler import Tile
from course_kernels.kernels.cute_sm90.window import open_at


def shared_layout(
    dtype: type[cutlass.Numeric], lines: int, depth: int, stages: int, across: bool = False
) -> cute.ComposedLayout:
    """Layout of ``stages`` blocks of (lines, depth), swizzled so that neither TMA nor wgmma meets a bank conflict.
    Depth is contiguous, or the lines are where ``across``."""
    order, contiguous = (LayoutEnum.COL_MAJOR, lines) if across else (LayoutEnum.ROW_MAJOR, depth)
    kind = hopper_helpers.get_smem_layout_atom(order, dtype, contiguous)
    return cute.tile_to_shape(
        warpgroup.make_smem_layout_atom(kind, dtype), (lines, depth, stages), order=(1, 0, 2) if across else (0, 1, 2)
    )


def make_mma(
    dtype: type[cutlass.Numeric], tile_n: int, groups: int, a_across: bool = False, b_across: bool = False
) -> cute.TiledMma:
    """wgmma of 64 x ``tile_n`` for each of ``groups`` warp groups, one below the other; both operands from shared
    memory, laid out as ``shared_layout`` says; accumulators in float32."""
    a_major, b_major = (OperandMajorMode.MN if across else OperandMajorMode.K for across in (a_across, b_across))
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, a_major, b_major, Float32, (groups, 1, 1), tiler_mn=(MMA_ROWS, tile_n)
    )


def make_load(operand: cute.Tensor, layout: cute.ComposedLayout, lines: int, depth: int, shared_by: int):
    """TMA descriptor of a whole operand, and the tensor of its coordinates. A block that ``shared_by`` CTAs use is
    loaded in as many parts."""
    op = cpasync.CopyBulkTensorTileG2SOp() if shared_by == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
    block = cute.slice_(layout, (None, None, 0))
    return cpasync.make_tiled_tma_atom(op, operand, block, (lines, depth), num_multicast=shared_by)


def make_ring(config, barriers: cute.Pointer, stage_bytes: int) -> pipeline.PipelineAsync:
    """The barriers of the ring of stages."""
    # A stage is read by the CTA's warps that share its tile, and by the same of the CTA that it shares blocks with.
    readers = config.sharing_groups * (WARP_GROUP // 32) * (config.cluster_m + config.cluster_n - 1)
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, readers),
        tx_count=stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, 1)),
        defer_sync=True,
    )


@cute.jit
def load_tile(
    config: cutlass.Constexpr,
    along: cutlass.Constexpr,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    a_atom: cute.CopyAtom,
    a: cute.Tensor,
    a_shared: cute.Tensor,
    b_atom: cute.CopyAtom,
    b: cute.Tensor,
    b_shared: cute.Tensor,
) -> pipeline.PipelineState:
    """Bring all blocks of a tile, one after the other, into stages as they become free. Called by one warp.

    ``a`` and ``b`` are coordinates: a tile may start at any line, and what lies outside the operand arrives as zeros.
    With groups along "m" they are those of (total_m, K) and (N, K, G). Rows of the next group make rows that are never
    stored: they may arrive as they are, or as zeros through a window. With groups along "k" both are windows: the next
    group's depth has to arrive as zeros, and so does a group's that has none.
    """
    cluster = cute.make_layout((config.cluster_m, config.cluster_n, 1))
    coord = cluster.get_flat_coord(cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()))
    # Which CTAs a part goes to: those beside this one for A, those below and above it for B.
    a_mask = cute.make_layout_image_mask(cluster, coord, mode=1) if config.cluster_n > 1 else None
    b_mask = cute.make_layout_image_mask(cluster, coord, mode=0) if config.cluster_m > 1 else None

    if cutlass.const_expr(along == "k"):
        a_lines = open_at(a, 1, tile.start, tile.end, tile.row)
        b_lines = open_at(b, 1, tile.start, tile.end, tile.col)
    else:
        if cutlass.const_expr(config.window):
            a_lines = open_at(a, 0, tile.row, tile.end, 0)
        else:
            a_lines = cute.domain_offset((tile.row, 0), a)
        b_lines = cute.domain_offset((tile.col, 0), b[None, None, tile.group])
    a_blocks = cute.local_tile(a_lines, (config.tile_m, config.tile_k), (0, None))
    b_blocks = cute.local_tile(b_lines, (config.tile_n, config.tile_k), (0, None))
    a_to, a_from = cpasync.tma_partition(
        a_atom, coord[1], cute.make_layout(config.cluster_n), cute.group_modes(a_shared, 0, 2),
        cute.group_modes(a_blocks, 0, 2),
    )  # fmt: skip
    b_to, b_from = cpasync.tma_partition(
        b_atom, coord[0], cute.make_layout(config.cluster_m), cute.group_modes(b_shared, 0, 2),
        cute.group_modes(b_blocks, 0, 2),
    )  # fmt: skip
    for k in cutlass.range(tile.blocks, unroll=1):
        ring.producer_acquire(state)
        full = ring.producer_get_barrier(state)
        cute.copy(a_atom, a_from[None, k], a_to[None, state.index], tma_bar_ptr=full, mcast_mask=a_mask)
        cute.copy(b_atom, b_from[None, k], b_to[None, state.index], tma_bar_ptr=full, mcast_mask=b_mask)
        ring.producer_commit(state)
        state.advance()
    return state


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
) -> pipeline.PipelineState:
    """Multiply a tile's ``blocks`` blocks into ``acc``. The last products and the last stage are left open: see
    ``finish_tile``. Called by the warp groups that share the tile."""
    ring.consumer_wait(state)
    multiply_stage(mma, acc, a, b, state.index, True)
    done = state.clone()
    state.advance()
    for _ in cutlass.range(1, blocks, unroll=1):
        ring.consumer_wait(state)
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
    for _ in cutlass.range(blocks, unroll=1):
        ring.consumer_wait(state)
        for part in cutlass.range_constexpr(parts):
            if cutlass.const_expr(parts > 1):
                # Overwritten at once: it ends the life of the last part's sums, whose registers would spill otherwise.
                apart.fill(0.0)
            multiply_stage(mma, apart, a, b[None, None, None, part, None], state.index, True)
            warpgroup.wait_group(0)
            if cutlass.const_expr(part == parts - 1):
                ring.consumer_release(state)
            # One by one: a sum of the two as tensors spills registers at 256 columns.
            for v in cutlass.range(cute.size(apart), unroll_full=True):
                acc[part * cute.size(apart) + v] += apart[v]
        state.advance()
    return state


@cute.jit
def finish_tile(ring: pipeline.PipelineAsync, done: pipeline.PipelineState):
    """Wait for the last products and give their stage back."""
    warpgroup.wait_group(0)
    ring.consumer_release(done)
