"""Stores from the accumulators to C: each warp group stores its own rows, in blocks, through shared memory.

If groups lie along M the store uses a ragged descriptor of C: the hardware drops rows past the group's end, in full
tiles and in boundary tiles.
"""

from typing import NamedTuple

import cutlass
from cutlass import Float16, Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync, warp
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from course_kernels.kernels.cute_sm90.config import MMA_ROWS, WARP_GROUP, CuteConfig
from course_kernels.kernels.cute_sm90.epilogues.scaled import Scales, first_row, scale_tile
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.kernels.cute_sm90.mainloop import make_mma
from course_kernels.kernels.cute_sm90.operands import Layer
from course_kernels.kernels.cute_sm90.ragged_descriptor import make_ragged, open_at
from course_kernels.kernels.cute_sm90.scheduler import Tile
from course_kernels.kernels.cute_sm90.stages import shared_layout


class Staging(NamedTuple):
    """A thread's place in its warp group, and which one of the two that is; the group's first block of C, and its
    number of sets of blocks; how many stores may still read when a set is overwritten, and how many when a tile's first
    set is; the group's barrier; and the copy of a thread's accumulators to a block."""

    thread: Int32
    group: Int32
    first: Int32
    sets: int
    reading: int
    at_first: int
    together: pipeline.NamedBarrier
    to_shared: cute.TiledCopy


class Store:
    """The epilogue that multiplies with factors, if there are any, rounds once and stores.

    Another epilogue replaces a part: ``operation``, the hardware's store; ``columns``, the width of C; ``prepare``,
    before a tile is multiplied; ``begin``, for a whole tile; ``subtile``, from accumulators to the values of one block
    of C; ``store_tile``; ``end``, before a CTA ends.
    """

    operation = cpasync.CopyBulkTensorTileS2GOp

    def __init__(self, config: CuteConfig, form: Form):
        self.config, self.form = config, form

    def columns(self, cols):
        """Convert a number of product columns, or the index of one, to columns of C."""
        return cols

    def blocks_of(self, shape: CuteConfig, cols: int) -> int:
        """Number of blocks of ``cols`` columns of C that each warp group stores of a tile."""
        return shape.tile_m // MMA_ROWS // shape.sharing_groups * (self.columns(shape.tile_n) // cols)

    def describe(self, c: cute.Tensor):
        """Make the shared layout of the blocks of C, and C's descriptor and coordinates. Along "m" the descriptor of
        ``c`` (total_m, N) is ragged; along "k" it is that of ``c`` (G, M, N) with the group last."""
        row_bytes, blocks = self.config.store_row_bytes, 2 * self.config.store_blocks(self.form)
        dtype, cols = c.element_type, row_bytes * 8 // c.element_type.width
        if self.form.along == "m":
            c = make_ragged(c, 0)
        else:
            c = cute.make_tensor(c.iterator, cute.select(c.layout, [1, 2, 0]))
        layout = shared_layout(dtype, MMA_ROWS, cols, blocks)
        block = cute.slice_(layout, (None, None, 0))
        atom, coords = cpasync.make_tiled_tma_atom(self.operation(), c, block, (MMA_ROWS, cols))
        return layout, atom, coords

    def describe_others(self, layer: Layer | None, layout: cute.ComposedLayout) -> None:
        """Describe what else the epilogue reads and writes, through blocks with a layout; here nothing."""

    def loads_of_tile(self, shape: CuteConfig) -> int:
        """Number of times that a warp group waits for loads of a tile, an even number; here it has none."""
        return 0

    @property
    def barrier_count(self) -> int:
        """Number of barriers for these loads: of each of the two warp groups one for two loads of a tile."""
        return max(map(self.loads_of_tile, self.config.shapes))

    def set_up(self, barriers: cute.Pointer):
        """Set up the barriers; the CTA has to be synchronized before they are used."""

    @cute.jit
    def prepare(self, shape: cutlass.Constexpr, tile: Tile, c_shared: cute.Tensor, others: None):
        """Begin to load what the epilogue of a tile needs; here nothing."""

    @cute.jit
    def begin(self, shape: cutlass.Constexpr, tile: Tile, acc: cute.Tensor, scales: Scales | None):
        """Multiply the accumulators of a warp group's part of a tile with factors, if there are any."""
        if cutlass.const_expr(self.form.scaling in ("lines", "groups")):
            scale_tile(shape, self.form.along, tile, acc, scales)

    @cute.jit
    def subtile(self, acc: cute.Tensor, number: cutlass.Constexpr[int], part: cute.Tensor):
        """Write the values of block ``number`` of a warp group's part of a tile to ``part``."""
        for v in cutlass.range_constexpr(cute.size(part)):
            part[v] = acc[number * cute.size(part) + v]

    def staging(self, shape: CuteConfig, c_shared: cute.Tensor) -> Staging:
        """This thread's way from a warp group's accumulators of a tile of one shape to blocks of C."""
        dtype, cols = c_shared.element_type, cute.size(c_shared, mode=[1])
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1
        together = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=WARP_GROUP)
        blocks = cute.size(c_shared, mode=[2]) // 2
        sets = blocks // self.form.stores
        # The number of stores that may still read when a set of blocks is overwritten. Every tile begins with the first
        # set. If the tile before, of any shape, may have ended with that set, its store must be complete. (No tile
        # follows a half, but halves count here, too.)
        reading = sets - 1
        at_first = 0 if any(self.blocks_of(each, cols) % sets for each in self.config.shapes) else reading
        # The places of a thread's accumulators of 64 x cols, after wgmma and in C. The layout is for 16-bit values.
        to_shared = cute.make_tiled_copy_S(
            hopper_helpers.get_smem_store_op(LayoutEnum.ROW_MAJOR, dtype, Float32),
            cute.make_tiled_copy_C_atom(
                cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), Float16), make_mma(Float16, shape.tile_n, 1)
            ),
        ).get_slice(thread)
        return Staging(thread, group, group * blocks, sets, reading, at_first, together, to_shared)

    def blocks_at(self, coords: cute.Tensor, tile: Tile, row: Int32, cols: int) -> cute.Tensor:
        """The blocks of a result with coordinates from ``describe``, from a row and the tile's first column on."""
        if self.form.along == "m":
            part = open_at(coords, 0, row, tile.end, self.columns(tile.col))
        else:
            part = cute.domain_offset((row, self.columns(tile.col)), coords[None, None, tile.group])
        return cute.zipped_divide(part, (MMA_ROWS, cols))

    @cute.jit
    def make_room(self, staging: Staging, number: cutlass.Constexpr[int]):
        """Wait until a warp group may write to its ``number``-th set of blocks of a tile."""
        if staging.thread < 32:
            cute.arch.cp_async_bulk_wait_group(staging.reading if number else staging.at_first, read=True)
        staging.together.arrive_and_wait()

    @cute.jit
    def send(self, staging: Staging, copies: tuple):
        """Store what a warp group has written to a set of blocks; ``copies``: atom, source and target of each."""
        cute.arch.fence_proxy("async.shared", space="cta")
        staging.together.arrive_and_wait()
        if staging.thread < 32:
            for i in cutlass.range_constexpr(len(copies)):
                cute.copy(*copies[i])
            cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def store_tile(
        self,
        shape: cutlass.Constexpr,
        tile: Tile,
        acc: cute.Tensor,
        c_atom: cute.CopyAtom,
        c: cute.Tensor,
        c_shared: cute.Tensor,
        others: None,
    ):
        """Round a warp group's part of a tile of one shape once, and store what lies inside the group's result;
        ``others`` comes from ``describe_others``. Called by whole warp groups."""
        dtype, cols = c_shared.element_type, cute.size(c_shared, mode=[1])
        staging = self.staging(shape, c_shared)
        shared = staging.to_shared.partition_D(c_shared)
        part = cute.make_rmem_tensor(staging.to_shared.partition_S(c_shared).shape[:3], Float32)
        rounded = cute.make_rmem_tensor(part.shape, dtype)

        wide = self.columns(shape.tile_n) // cols
        for i in cutlass.range_constexpr(shape.tile_m // MMA_ROWS // shape.sharing_groups):
            blocks = self.blocks_at(c, tile, first_row(shape, tile, staging.group, i), cols)
            source, target = cpasync.tma_partition(
                c_atom, 0, cute.make_layout(1), cute.group_modes(c_shared, 0, 2), blocks
            )
            for j in cutlass.range_constexpr(wide):
                number = i * wide + j
                self.subtile(acc, number, part)
                rounded.store(part.load().to(dtype))
                buffer = staging.first + number % staging.sets
                self.make_room(staging, number)
                cute.copy(staging.to_shared, rounded, shared[None, None, None, buffer])
                self.send(staging, ((c_atom, source[None, buffer], target[None, (0, j)]),))

    @cute.jit
    def end(self):
        """Wait until no store reads the shared memory any more. Called by all threads that store."""
        cute.arch.cp_async_bulk_wait_group(0, read=True)


class Add(Store):
    """The epilogue that adds to C in place of storing: L2 adds, in float32 and without subnormal numbers."""

    operation = cpasync.CopyReduceBulkTensorTileS2GOp
