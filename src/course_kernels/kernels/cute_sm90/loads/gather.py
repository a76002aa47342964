"""Loads of rows of A that an index names, by two warps: TMA cannot gather on Hopper.

Every copy (``cp.async``) is of 16 bytes. A row's block of 64 elements is 128 bytes, so eight lanes copy a row, and a
warp four of them at a time. The bytes go to where TMA would write them: in its layout, the eight pieces of row r of a
block are in the order of their numbers xor r % 8. Each lane keeps the addresses of a few rows, and the others ask for
them by a shuffle.

A thread arrives at a stage's barrier when its copies are complete; the warps that multiply then fence, because their
products read through another proxy. So many stages are filled at a time, and no loading warp waits for its copies.
"""

import cutlass
from cutlass import Int32, Int64, cute, pipeline

from course_kernels.kernels.cute_sm90 import dynamic_order
from course_kernels.kernels.cute_sm90.dynamic_order import Order, Place
from course_kernels.kernels.cute_sm90.form import GATHER
from course_kernels.kernels.cute_sm90.scheduler import LANES, Problem, Tile, Window, find_tile

PIECE = 16  # bytes of a copy
LINE = 128  # bytes of a row in a box, of which a block has one, or two side by side
PIECES = LINE // PIECE


@cute.jit
def row_addresses(rows: cutlass.Constexpr[int], tile: Tile, first: Int32, a: cute.Tensor, index: cute.Tensor) -> list:
    """Addresses of a warp's ``rows`` rows of a tile, from ``first`` on: lane l has rows l, l + 32 and so on. After the
    group's last row they are that of the last one: its products are not stored, and no index after it is read."""
    lane, pitch = cute.arch.lane_idx(), Int64(a.stride[0]) * (a.element_type.width // 8)
    found = []
    for i in cutlass.range_constexpr(rows // LANES or 1):
        row = cutlass.min(tile.row + first + i * LANES + lane, tile.end - 1)
        found += [a.iterator.toint() + Int64(index[row]) * pitch]
    return found


@cute.jit
def gather_tile(
    shape: cutlass.Constexpr,
    warps: cutlass.Constexpr[int],
    number: Int32,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    a: cute.Tensor,
    index: cute.Tensor,
    stages: cute.Pointer,
    pitch: cutlass.Constexpr[int],
) -> pipeline.PipelineState:
    """Bring this warp's rows of all blocks of a tile into stages as they become free; it is the ``number``-th of
    ``warps`` warps. ``stages``: of these the first, which begins with a block of A, as each does, ``pitch`` bytes after
    the one before it. Returns the state after the tile. Called by whole warps."""
    rows = shape.tile_m // warps
    first, lane = number * rows, cute.arch.lane_idx()
    addresses = row_addresses(rows, tile, first, a, index)
    # Four rows at a time: this lane's row of them, and its piece.
    of_four, piece = lane // PIECES, lane % PIECES
    element_bytes = a.element_type.width // 8
    depth_bytes = cute.size(a, mode=[1]) * element_bytes
    # Of rows 0 to 3 of eight; rows 4 to 7 are 4 lines further, and bit 2 of the piece's place is the other one.
    even = (first + of_four) * LINE + (piece ^ of_four) * PIECE
    for k in cutlass.range(tile.blocks, unroll=1):
        ring.sync_object_empty.wait(state.index, state.phase)
        target = stages.toint() + state.index * pitch + even
        for box in cutlass.range_constexpr(shape.tile_k * element_bytes // LINE):
            offset = k * (shape.tile_k * element_bytes) + box * LINE + piece * PIECE
            # Where K has ended the rest becomes zeros, and nothing is read.
            length = Int32(PIECE) if offset < depth_bytes else Int32(0)
            for i in cutlass.range_constexpr(rows * PIECES // LANES):
                source = cute.arch.shuffle_sync(addresses[4 * i // LANES], 4 * i % LANES + of_four) + Int64(offset)
                place = target + box * shape.tile_m * LINE + i * 4 * LINE
                if cutlass.const_expr(i % 2 == 1):
                    place = place ^ (4 * PIECE)
                copy_piece(place, source, length)
        cute.arch.cp_async_mbarrier_arrive_noinc(ring.producer_get_barrier(state))
        state.advance()
    return state


@cute.jit
def copy_piece(target: Int32, source: Int64, length: Int32):
    """Begin to copy 16 bytes, the first ``length`` of them from global memory, the others zeros."""
    cute.arch.inline_ptx(
        "cp.async.cg.shared.global.L2::128B [{$r0}], [{$r1}], 16, {$r2};", read_only_args=[target, source, length]
    )


@cute.jit
def gather_all(
    config: cutlass.Constexpr,
    form: cutlass.Constexpr,
    problem: Problem,
    order: Order,
    window: Window,
    place: Place,
    ring: pipeline.PipelineAsync,
    a: cute.Tensor,
    index: cute.Tensor,
    stages: cute.Pointer,
):
    """Bring the rows of all tiles of this CTA, from the cluster's tile at ``place`` on. Called by warps of the loading
    warp group; those of role ``GATHER`` gather."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    first, warps = form.loading_warps.index(GATHER), form.loading_warps.count(GATHER)
    pitch = config.stage_lines * config.tile_k * a.element_type.width // 8
    if warp >= first and warp < first + warps:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
        window, tile = find_tile(config, form.along, problem, window, place.number)
        while tile.found:
            for i in cutlass.range_constexpr(len(config.shapes)):
                if cutlass.const_expr(len(config.shapes) == 1) or tile.shape == i:
                    state = gather_tile(
                        config.shapes[i], warps, warp - first, tile, ring, state, a, index, stages, pitch
                    )
            place = dynamic_order.following(config, order, place)
            window, tile = find_tile(config, form.along, problem, window, place.number)
        dynamic_order.leave(config, order, place)
        # Threads must not end before their copies.
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
