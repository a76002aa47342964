"""From global memory to the accumulators: one warp fills a ring of stages through TMA, warp groups multiply from it.

A stage holds a block of A and a block of B. Its two barriers say that it is full, by counting the bytes that arrive,
and that it is free again, by counting the warps that are done with it: in a cluster those of both CTAs, because a CTA
loads only half of the block that both use, of B or of A, and writes it to both.
"""

import copy
import dataclasses
from typing import NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int16, Int32, Int64, cute, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from course_kernels.kernels.cute_sm90.config import MMA_ROWS, WARP_GROUP
from course_kernels.kernels.cute_sm90.scheduler import Problem, Tile, Window
from course_kernels.kernels.cute_sm90.tickets import Place, Tickets, announce, claim
from course_kernels.kernels.cute_sm90.window import open_at

# Which CTAs of a cluster get what one of them loads for both.
BOTH = 0b11
# The cache policy of PTX's createpolicy.fractional.L2::evict_first: L2 evicts these lines before others.
EVICT_FIRST = 0x12F0000000000000


def shared_layout(
    dtype: type[cutlass.Numeric], lines: int, depth: int, count: int, across: bool = False, pitch: int | None = None
) -> cute.ComposedLayout:
    """Layout of ``count`` blocks of (lines, depth), swizzled so that neither TMA nor wgmma meets a bank conflict.
    Depth is contiguous, or the lines are where ``across``. A block begins ``pitch`` elements after the one before it,
    by default at once."""
    order, contiguous = (LayoutEnum.COL_MAJOR, lines) if across else (LayoutEnum.ROW_MAJOR, depth)
    kind = hopper_helpers.get_smem_layout_atom(order, dtype, contiguous)
    atom = warpgroup.make_smem_layout_atom(kind, dtype)
    block = cute.tile_to_shape(atom, (lines, depth), order=(1, 0) if across else (0, 1))
    return cute.append(block, cute.make_layout(count, stride=pitch or lines * depth))


def make_mma(
    dtype: type[cutlass.Numeric], tile_n: int, groups: int, a_across: bool = False, b_across: bool = False
) -> cute.TiledMma:
    """wgmma of 64 x ``tile_n`` for each of ``groups`` warp groups, one below the other; both operands from shared
    memory, laid out as ``shared_layout`` says; accumulators in float32."""
    a_major, b_major = (OperandMajorMode.MN if across else OperandMajorMode.K for across in (a_across, b_across))
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, a_major, b_major, Float32, (groups, 1, 1), tiler_mn=(MMA_ROWS, tile_n)
    )


class Load(NamedTuple):
    """TMA descriptors of an operand, and the tensors of their coordinates: of a block that a CTA loads for itself, and
    of the half block that it loads for both CTAs of a cluster. Without clusters the second is the first."""

    atom: cute.CopyAtom
    lines: cute.Tensor
    half_atom: cute.CopyAtom
    half_lines: cute.Tensor


def make_load(operand: cute.Tensor, layout: cute.ComposedLayout, lines: int, depth: int, cluster: int) -> Load:
    """The copy of blocks of (lines, depth) of a whole operand to shared memory of a layout."""
    block = cute.slice_(layout, (None, None, 0))
    own = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), operand, block, (lines, depth))
    if cluster == 1:
        return Load(*own, *own)
    op = cpasync.CopyBulkTensorTileG2SMulticastOp()
    return Load(*own, *cpasync.make_tiled_tma_atom(op, operand, block, (lines, depth), num_multicast=cluster))


class Shape(NamedTuple):
    """How tiles of one shape are multiplied: the products, where the blocks of A and B come from, and how they lie in
    stages."""

    mma: cute.TiledMma
    a: Load
    b: Load
    a_layout: cute.ComposedLayout
    b_layout: cute.ComposedLayout


def make_shape(
    cut, pitch: int, a: cute.Tensor, b: cute.Tensor, a_across: bool, b_across: bool, product_cols: int
) -> Shape:
    """Tiles of the shape ``cut``. A stage begins ``pitch`` elements after the one before it, and has a block
    of A and one of B."""
    a_layout = shared_layout(a.element_type, cut.tile_m, cut.tile_k, cut.stages, a_across, pitch)
    b_layout = shared_layout(b.element_type, cut.tile_n, cut.tile_k, cut.stages, b_across, pitch)
    return Shape(
        make_mma(a.element_type, product_cols, cut.sharing_groups, a_across, b_across),
        make_load(a, a_layout, cut.tile_m, cut.tile_k, cut.cluster),
        make_load(b, b_layout, cut.tile_n, cut.tile_k, cut.cluster),
        a_layout,
        b_layout,
    )


def stages_of(shape: Shape, stages: cute.Pointer) -> tuple[cute.Tensor, cute.Tensor]:
    """The blocks of A and of B in stages that begin at ``stages``."""
    a, b = shape.a_layout, shape.b_layout
    b_first = stages + cute.size(a, mode=[0]) * cute.size(a, mode=[1])
    return tuple(
        cute.make_tensor(cute.recast_ptr(first, layout.inner, dtype=stages.dtype), layout.outer)
        for first, layout in ((stages, a), (b_first, b))
    )


def make_ring(config, barriers: cute.Pointer, copying_threads: int = 0) -> pipeline.PipelineTmaAsync:
    """The barriers of the ring of stages; ``filled_by`` sets with how many bytes a stage is full. ``copying_threads``
    more fill a stage, and each of them arrives."""
    # A stage is read by the warps that share the CTA's tile; and the other CTA of the cluster writes to it, too.
    readers = config.sharing_groups * (WARP_GROUP // 32) * config.cluster
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1 + copying_threads),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, readers),
        tx_count=0,
        cta_layout_vmnk=cute.make_layout((1, config.cluster, 1, 1)),
        defer_sync=True,
    )


def filled_by(ring: pipeline.PipelineTmaAsync, stage_bytes: int) -> pipeline.PipelineTmaAsync:
    """The ring, with stages that are full when so many bytes have arrived."""
    full = copy.copy(ring.sync_object_full)
    full.tx_count = stage_bytes
    return dataclasses.replace(ring, sync_object_full=full)


@cute.jit
def wait_full(ring: pipeline.PipelineAsync, state: pipeline.PipelineState, full: Boolean):
    """Wait until a stage of 8-bit operands is full; ``full`` says that it was when last asked. CuTe's own wait lets the
    warp sleep, for longer than blocks of one byte an element have time: asking again is 4 to 6 % faster there."""
    while not full:
        full = ring.consumer_try_wait(state)


@cute.jit
def wait_free(ring: pipeline.PipelineAsync, state: pipeline.PipelineState):
    """``wait_full`` for a stage to be free."""
    free = ring.producer_try_acquire(state)
    while not free:
        free = ring.producer_try_acquire(state)


@cute.jit
def skip_stages(ring: pipeline.PipelineAsync, state: pipeline.PipelineState) -> pipeline.PipelineState:
    """Bring nothing into the stages that are left of a round: they are full as they are. Called by one warp."""
    while state.index != 0:
        wait_free(ring, state)
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive(ring.producer_get_barrier(state))
        state.advance()
    return state


@cute.jit
def first_depth(cut: cutlass.Constexpr, tile: Tile) -> Int32:
    """Where a tile's first block of 8-bit operands begins along K, the dimension of the groups. The hardware stops the
    kernel at a coordinate off 16 bytes in the contiguous dimension, so wrong ends must not make one."""
    return tile.start // cut.tile_k * cut.tile_k


@cute.jit
def a_blocks(cut: cutlass.Constexpr, along: cutlass.Constexpr, tile: Tile, a: cute.Tensor) -> cute.Tensor:
    """A tile's blocks of A, one after the other along K."""
    if cutlass.const_expr(along == "k" and cute.rank(a) == 2):
        lines = cute.domain_offset((tile.row, first_depth(cut, tile)), a)
    elif cutlass.const_expr(along == "k"):
        lines = open_at(a, 1, tile.start, tile.end, tile.row)
    elif cutlass.const_expr(cut.window):
        lines = open_at(a, 0, tile.row, tile.end, 0)
    else:
        lines = cute.domain_offset((tile.row, 0), a)
    return cute.local_tile(lines, (cut.tile_m, cut.tile_k), (0, None))


@cute.jit
def b_blocks(cut: cutlass.Constexpr, along: cutlass.Constexpr, tile: Tile, b: cute.Tensor) -> cute.Tensor:
    """A tile's blocks of B."""
    if cutlass.const_expr(along == "k" and cute.rank(b) == 2):
        lines = cute.domain_offset((tile.col, first_depth(cut, tile)), b)
    elif cutlass.const_expr(along == "k"):
        lines = open_at(b, 1, tile.start, tile.end, tile.col)
    else:
        lines = cute.domain_offset((tile.col, 0), b[None, None, tile.group])
    return cute.local_tile(lines, (cut.tile_n, cut.tile_k), (0, None))


@cute.jit
def loads_of(atom: cute.CopyAtom, part: Int32, parts: cutlass.Constexpr[int], blocks: cute.Tensor, shared: cute.Tensor):
    """A CTA's part of each block that ``parts`` of them load together: where it goes to in each stage, and from where
    it comes in each block."""
    shared, blocks = cute.group_modes(shared, 0, 2), cute.group_modes(blocks, 0, 2)
    return cpasync.tma_partition(atom, part, cute.make_layout(parts), shared, blocks)


@cute.jit
def load_block(
    atom: cute.CopyAtom,
    loads: tuple[cute.Tensor, cute.Tensor],
    k: Int32,
    stage: Int32,
    full: cute.Pointer,
    ctas: cutlass.Constexpr[int | None] = None,
    streamed: cutlass.Constexpr[bool] = False,
):
    """Load block ``k`` of a part from ``loads_of`` into a stage, also of ``ctas``, a bit for each of the cluster.
    Where ``streamed`` L2 does not keep it."""
    to, blocks = loads
    mask = None if cutlass.const_expr(ctas is None) else Int16(ctas)
    policy = Int64(EVICT_FIRST) if cutlass.const_expr(streamed) else None
    cute.copy(atom, blocks[None, k], to[None, stage], tma_bar_ptr=full, mcast_mask=mask, cache_policy=policy)


@cute.jit
def load_tile(
    config: cutlass.Constexpr,
    number: cutlass.Constexpr[int],
    along: cutlass.Constexpr,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    shape: Shape,
    shared: tuple[cute.Tensor, cute.Tensor],
    problem: Problem,
    order: Tickets,
    window: Window,
    place: Place,
) -> tuple[pipeline.PipelineState, Window, Place]:
    """Bring all blocks of a tile, whose shape is ``config.shapes[number]``, into stages as they become free; meanwhile
    get the cluster's next number, if the order is dynamic. Returns the state after the tile, and what
    ``tickets.announce`` returns. Called by one warp.

    A tile may start at any line, and what lies outside the operand arrives as zeros. With groups along "m" the operands
    are (total_m, K) and (N, K, G): rows of the next group make rows that are never stored, and may arrive as they are,
    or as zeros through a window. With groups along "k" both are windows: the next group's depth has to be zeros; but
    groups of 8-bit operands are whole blocks, and the operands (M, total_k) and (N, total_k).
    """
    claimed = claim(config, order)
    cut, (a_shared, b_shared) = config.shapes[number], shared
    element_bytes = a_shared.element_type.width // 8
    ring = filled_by(ring, (cut.tile_m + cut.tile_n) * cut.tile_k * element_bytes)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    a, b = shape.a, shape.b
    a_own = loads_of(a.atom, 0, 1, a_blocks(cut, along, tile, a.lines), a_shared)
    b_own = loads_of(b.atom, 0, 1, b_blocks(cut, along, tile, b.lines), b_shared)
    a_half = loads_of(a.half_atom, rank, cut.cluster, a_blocks(cut, along, tile, a.half_lines), a_shared)
    b_half = loads_of(b.half_atom, rank, cut.cluster, b_blocks(cut, along, tile, b.half_lines), b_shared)
    for k in cutlass.range(tile.blocks, unroll=1):
        if cutlass.const_expr(element_bytes == 1):
            wait_free(ring, state)
            ring.sync_object_full.arrive(state.index, None)
        else:
            ring.producer_acquire(state)
        full = ring.producer_get_barrier(state)
        if cutlass.const_expr(cut.cluster == 1):
            load_block(a.atom, a_own, k, state.index, full)
            load_block(b.atom, b_own, k, state.index, full, streamed=cut.stream_b)
        elif tile.beside:
            load_block(a.half_atom, a_half, k, state.index, full, BOTH)
            load_block(b.atom, b_own, k, state.index, full, streamed=cut.stream_b)
        else:
            load_block(a.atom, a_own, k, state.index, full)
            load_block(b.half_atom, b_half, k, state.index, full, BOTH, streamed=cut.stream_b)
        ring.producer_commit(state)
        state.advance()
        if cutlass.const_expr(config.dynamic) and k == cutlass.min(1, tile.blocks - 1):
            window, place = announce(config, along, problem, order, window, place, claimed)
    return state, window, place


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
) -> tuple[pipeline.PipelineState, pipeline.PipelineState]:
    """Multiply a tile's ``blocks`` blocks into ``acc``. The last products and the last stage are left open: see
    ``finish_tile``. Returns the state after the tile, and that of the last stage. Called by the warp groups that share
    the tile."""
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
