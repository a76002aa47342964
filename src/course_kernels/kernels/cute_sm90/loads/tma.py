"""Loads of blocks of A and B from global memory into stages, through TMA, issued by one warp."""

from typing import NamedTuple

import cutlass
from cutlass import Int16, Int32, Int64, cute, pipeline
from cutlass.cute.nvgpu import cpasync

from course_kernels.kernels.cute_sm90.dynamic_order import Order, Place, announce, claim
from course_kernels.kernels.cute_sm90.ragged_descriptor import open_at
from course_kernels.kernels.cute_sm90.scheduler import Problem, Tile, Window
from course_kernels.kernels.cute_sm90.stages import filled_by, wait_free

# The multicast mask for a load to both CTAs of a cluster.
BOTH = 0b11
# The cache policy of PTX's createpolicy.fractional.L2::evict_first: L2 evicts these lines before others.
EVICT_FIRST = 0x12F0000000000000


class Load(NamedTuple):
    """TMA descriptors of an operand, with the tensors of their coordinates: for a block that a CTA loads for itself,
    and for the half block that it loads for both CTAs of a cluster. Without clusters both are the same."""

    atom: cute.CopyAtom
    lines: cute.Tensor
    half_atom: cute.CopyAtom
    half_lines: cute.Tensor


def make_load(
    operand: cute.Tensor, layout: cute.ComposedLayout, lines: int, depth: int, cluster: int, halves: int = 1
) -> Load:
    """Make the loads of blocks (lines, depth) of a whole operand to shared memory with a layout. With two ``halves`` a
    block has lines of gate, then as many of up, and the operand is (columns, K, 2, G)."""
    block, tiler = cute.slice_(layout, (None, None, 0)), (lines, depth)
    if halves == 2:
        block, tiler = by_halves(block, lines, depth), (lines // 2, depth, 2)
    own = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), operand, block, tiler)
    if cluster == 1:
        return Load(*own, *own)
    op = cpasync.CopyBulkTensorTileG2SMulticastOp()
    return Load(*own, *cpasync.make_tiled_tma_atom(op, operand, block, tiler, num_multicast=cluster))


def by_halves(block, lines: int, depth: int):
    """A block (lines, depth), or blocks (lines, depth, stage), as (lines / 2, depth, half[, stage])."""
    divided = cute.flat_divide(block, (lines // 2, depth))
    return cute.select(divided, [0, 1, 2, *range(4, cute.rank(divided))])


@cute.jit
def first_depth(shape: cutlass.Constexpr, tile: Tile) -> Int32:
    """The start of a tile's first block of 8-bit operands along K, the dimension of the groups. It is rounded down,
    because the hardware traps at a coordinate that is no multiple of 16 bytes, and wrong ends must not cause that."""
    return tile.start // shape.tile_k * shape.tile_k


@cute.jit
def a_blocks(shape: cutlass.Constexpr, along: cutlass.Constexpr, tile: Tile, a: cute.Tensor) -> cute.Tensor:
    """A tile's blocks of A, one after the other along K."""
    if cutlass.const_expr(along == "k" and cute.rank(a) == 2):
        lines = cute.domain_offset((tile.row, first_depth(shape, tile)), a)
    elif cutlass.const_expr(along == "k"):
        lines = open_at(a, 1, tile.start, tile.end, tile.row)
    else:
        lines = cute.domain_offset((tile.row, 0), a)
    return cute.local_tile(lines, (shape.tile_m, shape.tile_k), (0, None))


@cute.jit
def b_blocks(shape: cutlass.Constexpr, along: cutlass.Constexpr, tile: Tile, b: cute.Tensor) -> cute.Tensor:
    """A tile's blocks of B; of B in halves (columns, K, 2, G) those of gate and up."""
    if cutlass.const_expr(along == "k" and cute.rank(b) == 2):
        lines = cute.domain_offset((tile.col, first_depth(shape, tile)), b)
    elif cutlass.const_expr(along == "k"):
        lines = open_at(b, 1, tile.start, tile.end, tile.col)
    elif cutlass.const_expr(cute.rank(b) == 4):
        lines = cute.domain_offset((tile.col // 2, 0, 0), b[None, None, None, tile.group])
        return cute.local_tile(lines, (shape.tile_n // 2, shape.tile_k, 2), (0, None, 0))
    else:
        lines = cute.domain_offset((tile.col, 0), b[None, None, tile.group])
    return cute.local_tile(lines, (shape.tile_n, shape.tile_k), (0, None))


@cute.jit
def loads_of(atom: cute.CopyAtom, part: Int32, parts: cutlass.Constexpr[int], blocks: cute.Tensor, shared: cute.Tensor):
    """Partition the blocks that ``parts`` CTAs load together. Returns a CTA's part: its target in each stage, and its
    source in each block."""
    shared, blocks = (cute.group_modes(each, 0, cute.rank(each) - 1) for each in (shared, blocks))
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
    """Load block ``k`` of a part from ``loads_of`` into a stage; with ``ctas``, a bit mask, into that of several CTAs.
    If ``streamed``, L2 does not keep it."""
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
    loads: tuple[Load | None, Load | None],
    shared: tuple[cute.Tensor, cute.Tensor],
    problem: Problem,
    order: Order,
    window: Window,
    place: Place,
) -> tuple[pipeline.PipelineState, Window, Place]:
    """Bring all blocks of a tile, whose shape is ``config.shapes[number]``, into stages as they become free; meanwhile
    get the cluster's next number, if the order is dynamic. Returns the state after the tile, and what
    ``dynamic_order.announce`` returns. Called by one warp.

    A tile may start at any line, and lines outside the operand arrive as zeros. With groups along "m" the operands are
    (total_m, K) and (N, K, G). Rows of the next group are loaded, too, but their results are never stored. With groups
    along "k" both operands have ragged descriptors, so that the next group's depth arrives as zeros; but groups of
    8-bit operands are whole blocks, and the operands are (M, total_k) and (N, total_k). An operand without a load is
    brought by other warps (``loads.gather``).
    """
    claimed = claim(config, order)
    shape, (a_shared, b_shared) = config.shapes[number], shared
    element_bytes = a_shared.element_type.width // 8
    a, b = loads
    lines = shape.tile_m * (a is not None) + shape.tile_n * (b is not None)
    ring = filled_by(ring, lines * shape.tile_k * element_bytes)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if cutlass.const_expr(along == "m" and b is not None and cute.rank(b.lines) == 4):
        b_shared = cute.flat_divide(b_shared, (shape.tile_n // 2, shape.tile_k))[None, None, None, 0, None]
    if cutlass.const_expr(a is not None):
        a_own = loads_of(a.atom, 0, 1, a_blocks(shape, along, tile, a.lines), a_shared)
    if cutlass.const_expr(b is not None):
        b_own = loads_of(b.atom, 0, 1, b_blocks(shape, along, tile, b.lines), b_shared)
    if cutlass.const_expr(a is not None):
        a_half = loads_of(a.half_atom, rank, shape.cluster, a_blocks(shape, along, tile, a.half_lines), a_shared)
    if cutlass.const_expr(b is not None):
        b_half = loads_of(b.half_atom, rank, shape.cluster, b_blocks(shape, along, tile, b.half_lines), b_shared)
    for k in cutlass.range(tile.blocks, unroll=1):
        if cutlass.const_expr(element_bytes == 1):
            wait_free(ring, state)
            ring.sync_object_full.arrive(state.index, None)
        else:
            ring.producer_acquire(state)
        full = ring.producer_get_barrier(state)
        if cutlass.const_expr(shape.cluster == 1):
            if cutlass.const_expr(a is not None):
                load_block(a.atom, a_own, k, state.index, full)
            if cutlass.const_expr(b is not None):
                load_block(b.atom, b_own, k, state.index, full, streamed=shape.stream_b)
        elif tile.beside:
            if cutlass.const_expr(a is not None):
                load_block(a.half_atom, a_half, k, state.index, full, BOTH)
            if cutlass.const_expr(b is not None):
                load_block(b.atom, b_own, k, state.index, full, streamed=shape.stream_b)
        else:
            if cutlass.const_expr(a is not None):
                load_block(a.atom, a_own, k, state.index, full)
            if cutlass.const_expr(b is not None):
                load_block(b.half_atom, b_half, k, state.index, full, BOTH, streamed=shape.stream_b)
        ring.producer_commit(state)
        state.advance()
        if cutlass.const_expr(config.dynamic) and k == cutlass.min(1, tile.blocks - 1):
            window, place = announce(config, along, problem, order, window, place, claimed)
    return state, window, place
