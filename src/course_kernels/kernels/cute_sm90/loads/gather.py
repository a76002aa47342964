"""Loads of rows of an operand that an index names, by two warps: TMA cannot gather on Hopper.

Every copy (``cp.async``) is of 16 bytes. A row's block of 64 elements is 128 bytes, so eight lanes copy a row, and a
warp four of them at a time. The bytes go to where TMA would write them: in its layout, the eight pieces of row r of a
block are in the order of their numbers xor r % 8. Each lane keeps the addresses of a few rows, and the others ask for
them by a shuffle.

With groups along "m" these are rows of A, the same ones for all blocks of a tile. Along "k" they are lines along K, of
A or of B, so every block has new ones: 64, one a lane of both warps. A block's line has all columns of the tile, in
boxes of 64 that follow each other. Each lane reads the index of its line of the next block while it waits for a stage.

Rows may still be arriving from other GPUs, piece after piece: before the first tile of a piece, warps wait for it.

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
def named_line(line: Int32, end: Int32, index: cute.Tensor) -> Int32:
    """The row that an index names for a line along K; 0 from the group's end on, where nothing is read."""
    named = Int32(0)
    if line < end:
        named = index[line]
    return named


@cute.jit
def gather_lines(
    shape: cutlass.Constexpr,
    of_b: cutlass.Constexpr[bool],
    number: Int32,
    tile: Tile,
    ring: pipeline.PipelineAsync,
    state: pipeline.PipelineState,
    rows: cute.Tensor,
    index: cute.Tensor,
    stages: cute.Pointer,
    pitch: cutlass.Constexpr[int],
) -> pipeline.PipelineState:
    """``gather_tile`` for groups along "k": bring this warp's 32 lines of every block of a tile. ``rows``: (any number,
    columns), of A transposed or, where ``of_b``, of B."""
    element_bytes, lane = rows.element_type.width // 8, cute.arch.lane_idx()
    of_four, piece, first = lane // PIECES, lane % PIECES, number * LANES
    column = tile.col if cutlass.const_expr(of_b) else tile.row
    columns = shape.tile_n if cutlass.const_expr(of_b) else shape.tile_m
    before = shape.tile_m * shape.tile_k * element_bytes if cutlass.const_expr(of_b) else 0
    even = before + (first + of_four) * LINE + (piece ^ of_four) * PIECE
    own = rows.iterator.toint() + Int64(column * element_bytes + piece * PIECE)
    row_pitch = Int64(rows.stride[0]) * element_bytes
    # Bytes of a row from this lane's piece of the first box on. After them the rest becomes zeros.
    there = (cute.size(rows, mode=[1]) - column) * element_bytes - piece * PIECE
    line = tile.start + first + lane
    named = named_line(line, tile.end, index)
    for _ in cutlass.range(tile.blocks, unroll=1):
        source_line = Int64(named) * row_pitch
        left = tile.end - (line - lane) - of_four  # lines of the group from this lane's first one on
        line += shape.tile_k
        named = named_line(line, tile.end, index)
        ring.sync_object_empty.wait(state.index, state.phase)
        target = stages.toint() + state.index * pitch + even
        for i in cutlass.range_constexpr(LANES * PIECES // LANES):
            source = own + cute.arch.shuffle_sync(source_line, 4 * i + of_four)
            bytes_there = there if 4 * i < left else Int32(0)
            for box in cutlass.range_constexpr(columns * element_bytes // LINE):
                length = Int32(PIECE) if box * LINE < bytes_there else Int32(0)
                place = target + i * 4 * LINE + box * shape.tile_k * LINE
                if cutlass.const_expr(i % 2 == 1):
                    place = place ^ (4 * PIECE)
                copy_piece(place, source + box * LINE, length)
        cute.arch.cp_async_mbarrier_arrive_noinc(ring.producer_get_barrier(state))
        state.advance()
    return state


@cute.jit
def await_piece(arrived: cute.Tensor, milliseconds: Int32, piece: Int32, seen: Int32) -> Int32:
    """Wait until the rows of a piece are there, unless ``seen`` is no earlier one; after ``milliseconds`` trap. Returns
    the latest piece that is there. Tiles come in the order of their pieces."""
    if piece > seen:
        begun, limit = cute.arch.globaltimer(), Int64(milliseconds) * 1_000_000
        here = cute.arch.load(arrived.iterator + piece, Int32, sem="acquire", scope="sys")
        while here == 0:
            if Int64(cute.arch.globaltimer() - begun) > limit:
                cute.arch.inline_ptx("trap;")
            here = cute.arch.load(arrived.iterator + piece, Int32, sem="acquire", scope="sys")
        cute.arch.sync_warp()
        seen = piece
    return seen


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
    rows: cute.Tensor,
    index: cute.Tensor,
    stages: cute.Pointer,
    arrivals: tuple[cute.Tensor, Int32] | None,
):
    """Bring the rows of all tiles of this CTA, from the cluster's tile at ``place`` on. ``rows``: those of A, along "k"
    of A transposed or of B. ``arrivals``: ``Layer.arrived`` and ``milliseconds`` where rows may still be arriving.
    Called by warps of the loading warp group; those of role ``GATHER`` gather."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    first, warps = form.loading_warps.index(GATHER), form.loading_warps.count(GATHER)
    pitch = config.stage_lines * config.tile_k * rows.element_type.width // 8
    if warp >= first and warp < first + warps:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
        window, tile = find_tile(config, form.along, problem, window, place.number)
        seen = Int32(0)
        while tile.found:
            if cutlass.const_expr(arrivals is not None):
                seen = await_piece(*arrivals, tile.piece, seen)
            for i in cutlass.range_constexpr(len(config.shapes)):
                if cutlass.const_expr(len(config.shapes) == 1) or tile.shape == i:
                    if cutlass.const_expr(form.along == "k"):
                        of_b = form.gathered == "b"
                        state = gather_lines(
                            config.shapes[i], of_b, warp - first, tile, ring, state, rows, index, stages, pitch
                        )
                    else:
                        state = gather_tile(
                            config.shapes[i], warps, warp - first, tile, ring, state, rows, index, stages, pitch
                        )
            place = dynamic_order.following(config, order, place)
            window, tile = find_tile(config, form.along, problem, window, place.number)
        dynamic_order.leave(config, order, place)
        # Threads must not end before their copies.
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
