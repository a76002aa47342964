"""Epilogues of a layer of experts: the activation of a tile's sums, and its gradient.

With a gate, a tile's columns are those of gate, then as many of up. wgmma's layout repeats every eight columns, so gate
and up of a column of C are in the same thread, half of its accumulators apart: no number changes threads.
"""

from typing import NamedTuple

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import cpasync, warp

from course_kernels.kernels.cute_sm90.config import MMA_ROWS, WARP_GROUP, CuteConfig
from course_kernels.kernels.cute_sm90.epilogues.activations import activate, activate_backward
from course_kernels.kernels.cute_sm90.epilogues.scaled import first_row
from course_kernels.kernels.cute_sm90.epilogues.store import Staging, Store
from course_kernels.kernels.cute_sm90.operands import Layer
from course_kernels.kernels.cute_sm90.ragged_descriptor import make_ragged, open_at
from course_kernels.kernels.cute_sm90.scheduler import Tile

# Columns of a dot product: those of a block of C.
DOT_COLS = 32


class Others(NamedTuple):
    """Descriptors of the activation's argument, and of the activation times the rows' factors, with the tensors of
    their coordinates; the factors; the dot products. None where the epilogue has no use for them."""

    pre_atom: cute.CopyAtom
    pre: cute.Tensor
    activated_atom: cute.CopyAtom | None = None
    activated: cute.Tensor | None = None
    weights: cute.Tensor | None = None
    dots: cute.Tensor | None = None


def describe(operation, tensor: cute.Tensor, layout: cute.ComposedLayout) -> tuple[cute.CopyAtom, cute.Tensor]:
    """Make a descriptor and coordinates for blocks with a layout of a matrix (rows, columns), or of matrices (rows, 1
    or 2, columns), the groups along the rows."""
    if cute.rank(tensor) == 3:
        tensor = cute.make_tensor(tensor.iterator, cute.select(tensor.layout, [0, 2, 1]))
    block = cute.slice_(layout, (None, None, 0))
    tiler = MMA_ROWS, cute.size(layout, mode=[1])
    return cpasync.make_tiled_tma_atom(operation, make_ragged(tensor, 0), block, tiler)


@cute.jit
def blocks_of(atom, coords: cute.Tensor, tile: Tile, row: Int32, col: Int32, shared: cute.Tensor):
    """The blocks of a matrix from a row and a column on; partitioned: in shared memory, and in the matrix."""
    blocks = cute.zipped_divide(open_at(coords, 0, row, tile.end, col), (MMA_ROWS, cute.size(shared, mode=[1])))
    return cpasync.tma_partition(atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), blocks)


def reading(staging: Staging, dtype: type[cutlass.Numeric]) -> cute.TiledCopy:
    """The copy of a thread's elements from a block of 16-bit numbers, the reverse of ``Staging.to_shared``."""
    atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), dtype)
    return cute.make_tiled_copy_S(atom, staging.to_shared).get_slice(staging.thread)


class Gated(Store):
    """The epilogue that stores an activation of the sums; with ``Form.epilogue`` "gated_pre", of the rounded sums, and
    these, too."""

    def columns(self, cols):
        """Columns of C for ``cols`` columns of the product; gate and up share one."""
        return cols // self.form.halves

    def describe_others(self, layer: Layer | None, layout: cute.ComposedLayout) -> Others | None:
        """Describe the activation's argument, if it is stored."""
        if self.form.stores == 1:
            return None
        return Others(*describe(cpasync.CopyBulkTensorTileS2GOp(), layer.pre, layout))

    @cute.jit
    def store_tile(
        self,
        shape: cutlass.Constexpr,
        tile: Tile,
        acc: cute.Tensor,
        c_atom: cute.CopyAtom,
        c: cute.Tensor,
        c_shared: cute.Tensor,
        others: Others | None,
    ):
        """Store the activation of a warp group's part of a tile of one shape. Called by whole warp groups."""
        form, dtype, cols = self.form, c_shared.element_type, cute.size(c_shared, mode=[1])
        staging = self.staging(shape, c_shared)
        written = staging.to_shared.partition_D(c_shared)
        part_shape = staging.to_shared.partition_S(c_shared)[None, None, 0, 0].shape
        halves = [cute.make_rmem_tensor(part_shape, Float32) for _ in range(form.halves)]
        rounded = cute.make_rmem_tensor(part_shape, dtype)
        from_shared = reading(staging, dtype)
        read = from_shared.partition_S(c_shared)
        size, parts, col = cute.size(rounded), cute.size(written, mode=[2]), self.columns(tile.col)

        wide = self.columns(shape.tile_n) // cols
        for i in cutlass.range_constexpr(shape.tile_m // MMA_ROWS // shape.sharing_groups):
            row = first_row(shape, tile, staging.group, i)
            source, target = blocks_of(c_atom, c, tile, row, col, c_shared)
            pre_targets = []
            if cutlass.const_expr(form.stores > 1):
                pre_targets = [
                    blocks_of(others.pre_atom, others.pre[None, None, half, None, None], tile, row, col, c_shared)[1]
                    for half in range(form.halves)
                ]
            for j in cutlass.range_constexpr(wide):
                number = i * wide + j
                buffer = staging.first + number % staging.sets * form.stores
                self.make_room(staging, number)
                if cutlass.const_expr(form.stores > 1):
                    for part in cutlass.range_constexpr(parts):
                        for half in cutlass.range_constexpr(form.halves):
                            for v in cutlass.range_constexpr(size):
                                halves[half][v] = acc[(((i * form.halves + half) * wide + j) * parts + part) * size + v]
                            rounded.store(halves[half].load().to(dtype))
                            cute.copy(staging.to_shared, rounded, written[None, None, part, buffer + half])
                    cute.arch.sync_warp()
                for part in cutlass.range_constexpr(parts):
                    for half in cutlass.range_constexpr(form.halves):
                        if cutlass.const_expr(form.stores > 1):
                            # Not from registers: the compiler would compute all of a tile before it stores anything,
                            # and run out of registers.
                            cute.copy(from_shared, read[None, None, part, buffer + half], rounded)
                            halves[half].store(rounded.load().to(Float32))
                        else:
                            for v in cutlass.range_constexpr(size):
                                halves[half][v] = acc[(((i * form.halves + half) * wide + j) * parts + part) * size + v]
                    for v in cutlass.range_constexpr(size):
                        halves[0][v] = activate(form.activation, halves[0][v], halves[-1][v])
                    rounded.store(halves[0].load().to(dtype))
                    cute.copy(staging.to_shared, rounded, written[None, None, part, buffer + form.stores - 1])
                copies = [
                    (others.pre_atom, source[None, buffer + half], pre_targets[half][None, (0, j)])
                    for half in range(len(pre_targets))
                ]
                copies += [(c_atom, source[None, buffer + form.stores - 1], target[None, (0, j)])]
                self.send(staging, tuple(copies))


class GatedBackward(Store):
    """The epilogue for sums that are the gradient of an activation, before the rows' factors: stores the gradient of
    its argument as C (rows, 1 or 2, columns), the activation times the rows' factors, and dot products.

    The argument comes through the blocks of C: a thread reads its elements, and writes their gradients over them. There
    are two sets of blocks. The first set of a tile is loaded while the tile is multiplied, each other one while the one
    before it is computed. A barrier serves two loads of a tile, so every tile finds it in the same phase.
    """

    def describe(self, c: cute.Tensor):
        """As ``Store.describe``, for ``c`` (rows, 1 or 2, columns)."""
        layout, *_ = super().describe(c[None, 0, None])
        return layout, *describe(self.operation(), c, layout)

    def describe_others(self, layer: Layer | None, layout: cute.ComposedLayout) -> Others | None:
        """Describe the argument, which is read, and the activation."""
        return Others(
            *describe(cpasync.CopyBulkTensorTileG2SOp(), layer.pre, layout),
            *describe(cpasync.CopyBulkTensorTileS2GOp(), layer.activated, layout),
            layer.weights,
            layer.dots,
        )

    def loads_of_tile(self, shape: CuteConfig) -> int:
        """Number of times that a warp group waits for loads of a tile; it is even."""
        return self.blocks_of(shape, self.config.store_row_bytes // 2)

    @cute.jit
    def set_up(self, barriers: cute.Pointer):
        """Set up the barriers of loads; the CTA has to be synchronized before they are used."""
        self.barriers = barriers
        if cute.arch.thread_idx()[0] == 0:
            for i in cutlass.range_constexpr(self.barrier_count):
                cute.arch.mbarrier_init(barriers + i, 1)

    @cute.jit
    def load(
        self,
        shape: cutlass.Constexpr,
        tile: Tile,
        number: cutlass.Constexpr[int],
        c_shared: cute.Tensor,
        others: Others,
    ):
        """Load the argument for the ``number``-th set of blocks of a warp group's part of a tile, when the stores of
        what was in these blocks have read it. Called by whole warp groups; the first warp loads."""
        form, cols, thread = self.form, cute.size(c_shared, mode=[1]), cute.arch.thread_idx()[0] % WARP_GROUP
        group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1
        if thread < 32:
            # The stores of the set that is loaded; between two tiles those of the latest set may go on.
            cute.arch.cp_async_bulk_wait_group(0 if number else 1, read=True)
            full = self.full(shape, group, number)
            buffer = (2 * group + number % 2) * form.stores
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(
                    full, form.pre_halves * MMA_ROWS * cols * c_shared.element_type.width // 8
                )
            i, j = number // (shape.tile_n // cols), number % (shape.tile_n // cols)
            row = first_row(shape, tile, group, i)
            for half in cutlass.range_constexpr(form.pre_halves):
                pre = others.pre[None, None, half, None, None]
                target, source = blocks_of(others.pre_atom, pre, tile, row, tile.col, c_shared)
                cute.copy(others.pre_atom, source[None, (0, j)], target[None, buffer + half], tma_bar_ptr=full)

    def full(self, shape: CuteConfig, group: Int32, number: int) -> cute.Pointer:
        """The barrier of a warp group's ``number``-th load of a tile."""
        return self.barriers + group * (self.barrier_count // 2) + number % (self.loads_of_tile(shape) // 2)

    @cute.jit
    def prepare(self, shape: cutlass.Constexpr, tile: Tile, c_shared: cute.Tensor, others: Others):
        """Begin to load a tile's first set of blocks."""
        self.load(shape, tile, 0, c_shared, others)

    @cute.jit
    def store_tile(
        self,
        shape: cutlass.Constexpr,
        tile: Tile,
        acc: cute.Tensor,
        c_atom: cute.CopyAtom,
        c: cute.Tensor,
        c_shared: cute.Tensor,
        others: Others,
    ):
        """Store a warp group's part of a tile of one shape. Called by whole warp groups."""
        form, cols = self.form, cute.size(c_shared, mode=[1])
        staging = self.staging(shape, c_shared)
        thread, group = staging.thread, staging.group
        wide = shape.tile_n // cols
        for i in cutlass.range_constexpr(shape.tile_m // MMA_ROWS // shape.sharing_groups):
            row = first_row(shape, tile, group, i)
            own_row = row + thread // 32 * 16 + thread % 32 // 4
            weights = [others.weights[cutlass.min(own_row + 8 * k, tile.end - 1)] for k in range(2)]
            source, target = blocks_of(others.activated_atom, others.activated, tile, row, tile.col, c_shared)
            targets = [
                blocks_of(c_atom, c[None, None, half, None, None], tile, row, tile.col, c_shared)[1]
                for half in range(form.pre_halves)
            ]
            for j in cutlass.range_constexpr(wide):
                number = i * wide + j
                if cutlass.const_expr(number + 1 < self.loads_of_tile(shape)):
                    self.load(shape, tile, number + 1, c_shared, others)
                phase = number // (self.loads_of_tile(shape) // 2)
                cute.arch.mbarrier_wait(self.full(shape, group, number), phase)
                buffer = (2 * group + number % 2) * form.stores
                sums = cute.make_tensor(
                    acc.iterator + number * (MMA_ROWS * cols // WARP_GROUP),
                    cute.make_layout(MMA_ROWS * cols // WARP_GROUP),
                )
                self.compute_set(staging, c_shared, buffer, sums, weights, own_row, tile, j, others.dots)
                copies = [
                    (c_atom, source[None, buffer + half], targets[half][None, (0, j)])
                    for half in range(form.pre_halves)
                ]
                copies += [(others.activated_atom, source[None, buffer + form.pre_halves], target[None, (0, j)])]
                self.send(staging, tuple(copies))

    @cute.jit
    def compute_set(
        self,
        staging: Staging,
        c_shared: cute.Tensor,
        buffer: Int32,
        sums: cute.Tensor,
        weights: list,
        own_row: Int32,
        tile: Tile,
        j: cutlass.Constexpr[int],
        dots: cute.Tensor,
    ):
        """Compute a set of blocks in its place, sixteen columns at a time, and write their part of the dot products."""
        form, dtype = self.form, c_shared.element_type
        from_shared = reading(staging, dtype)
        read, written = from_shared.partition_S(c_shared), staging.to_shared.partition_D(c_shared)
        shape = staging.to_shared.partition_S(c_shared)[None, None, 0, 0].shape
        values = [cute.make_rmem_tensor(shape, dtype) for _ in range(form.stores)]
        size, sums_of_rows = cute.size(shape), cute.make_rmem_tensor(2, Float32)
        sums_of_rows.fill(0.0)
        for part in cutlass.range_constexpr(cute.size(read, mode=[2])):
            for half in cutlass.range_constexpr(form.pre_halves):
                cute.copy(from_shared, read[None, None, part, buffer + half], values[half])
            for v in cutlass.range_constexpr(size):
                second = v // 2 % 2  # pairs of columns, in two rows, of eight columns after eight
                gradient = sums[part * size + v]
                pre = [values[half][v].to(Float32) for half in range(form.pre_halves)]
                value, of_gate, of_up = activate_backward(form.activation, pre[0], pre[-1], gradient * weights[second])
                sums_of_rows[second] += gradient * value
                for half in cutlass.range_constexpr(form.pre_halves):
                    values[half][v] = (of_gate, of_up)[half].to(dtype)
                values[form.pre_halves][v] = (value * weights[second]).to(dtype)
            for number in cutlass.range_constexpr(form.stores):
                cute.copy(staging.to_shared, values[number], written[None, None, part, buffer + number])
        col = tile.col // DOT_COLS + j
        for second in cutlass.range_constexpr(2):
            # The four threads of a row are neighbours.
            total = sums_of_rows[second]
            for distance in (1, 2):
                total += cute.arch.shuffle_sync_bfly(total, distance)
            row = own_row + 8 * second
            if staging.thread % 4 == 0 and row < tile.end and col < cute.size(dots, mode=[1]):
                dots[row, col] = total
