"""Factors of the product's rows and columns, applied to the accumulators of a tile."""

from typing import NamedTuple

import cutlass
from cutlass import Float32, Int32, cute

from course_kernels.kernels.cute_sm90.config import MMA_ROWS, WARP_GROUP
from course_kernels.kernels.cute_sm90.scheduler import Tile


class Scales(NamedTuple):
    """Factors, float32: ``rows`` (total_m,) of A's rows, along "k" (G, M); ``cols`` (G, N) of B's columns, or (G,), one
    for all columns of a group."""

    rows: cute.Tensor
    cols: cute.Tensor


@cute.jit
def first_row(shape: cutlass.Constexpr, tile: Tile, group: Int32, i: cutlass.Constexpr[int]) -> Int32:
    """The first of a warp group's ``i``-th 64 rows of a tile; warp groups that share a tile alternate."""
    row = tile.row + i * MMA_ROWS * shape.sharing_groups
    if cutlass.const_expr(shape.sharing_groups > 1):
        row += group * MMA_ROWS
    return row


@cute.jit
def scale_tile(shape: cutlass.Constexpr, along: cutlass.Constexpr, tile: Tile, acc: cute.Tensor, scales: Scales):
    """Multiply a warp group's part of a tile with the factors of its rows and columns. Elements outside of the result
    are multiplied with the last factor inside, and not stored."""
    # wgmma's layout: a thread has pairs of columns, eight apart, in two rows, eight apart.
    thread = cute.arch.thread_idx()[0] % WARP_GROUP
    group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1
    if cutlass.const_expr(cute.rank(scales.cols) == 1):
        of_group = scales.cols[tile.group]
    else:
        col, last_col = tile.col + thread % 4 * 2, cute.size(scales.cols, mode=[1]) - 2
        cols = cute.make_rmem_tensor((2, shape.tile_n // 8), Float32)
        for j in cutlass.range_constexpr(shape.tile_n // 8):
            pair = cutlass.min(col + 8 * j, last_col) // 2
            cute.autovec_copy(cute.local_tile(scales.cols, (1, 2), (tile.group, pair))[0, None], cols[None, j])
    for i in cutlass.range_constexpr(shape.tile_m // MMA_ROWS // shape.sharing_groups):
        part = cute.make_tensor(
            acc.iterator + i * (MMA_ROWS * shape.tile_n // WARP_GROUP), cute.make_layout((2, 2, shape.tile_n // 8))
        )
        row = first_row(shape, tile, group, i) + thread // 32 * 16 + thread % 32 // 4
        for half in cutlass.range_constexpr(2):
            if cutlass.const_expr(along == "k"):
                last_row = cute.size(scales.rows, mode=[1]) - 1
                factor = scales.rows[tile.group, cutlass.min(row + 8 * half, last_row)]
            else:
                factor = scales.rows[cutlass.min(row + 8 * half, tile.end - 1)]
            for j in cutlass.range_constexpr(shape.tile_n // 8):
                for v in cutlass.range_constexpr(2):
                    if cutlass.const_expr(cute.rank(scales.cols) == 1):
                        part[v, half, j] = part[v, half, j] * factor * of_group
                    else:
                        part[v, half, j] = part[v, half, j] * factor * cols[v, j]
