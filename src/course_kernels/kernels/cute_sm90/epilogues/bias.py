"""A bias of the product's columns, added to the accumulators of a tile.

The lanes of a warp load different columns while the last products run, and shuffles bring each lane those that it has
accumulators of. So a warp loads no number twice, and few registers wait for the products: for 256 columns 4 of 16-bit
numbers or 8 of float32. Each lane's own columns would take 32 or 64.
"""

import cutlass
from cutlass import Float32, Int32, cute

from course_kernels.kernels.cute_sm90.config import MMA_ROWS
from course_kernels.kernels.cute_sm90.scheduler import LANES, Tile

# A shuffle's mask and clamp: the last two bits of the source lane are those of the lane that asks. Sources that are
# computed would take eight registers, and at 192 columns one spilled.
OF_COLUMNS = 0b11 << 8 | LANES - 1


@cute.jit
def load_bias(shape: cutlass.Constexpr, halves: cutlass.Constexpr[int], tile: Tile, bias: cute.Tensor) -> cute.Tensor:
    """Load a lane's pairs of columns of a tile, every 32nd: (2, tile_n / 64). Columns outside of the result get numbers
    from inside. With two ``halves``, of gate and of up, the bias is (G, 2, columns), else (G, columns)."""
    pairs = cute.make_rmem_tensor((2, shape.tile_n // (2 * LANES)), bias.element_type)
    lane, width = cute.arch.lane_idx(), shape.tile_n // halves
    last = cute.size(bias, mode=[halves]) - 2
    for i in cutlass.range_constexpr(cute.size(pairs, mode=[1])):
        col, of_part = 2 * (i * LANES + lane), bias
        if cutlass.const_expr(halves == 2):
            up = Int32(col >= width)
            col, of_part = col - up * width, bias[None, up, None]
        col = cutlass.min(tile.col // halves + col, last)
        for v in cutlass.range_constexpr(2):
            pairs[v, i] = of_part[tile.group, col + v]
    return pairs


@cute.jit
def add_bias(shape: cutlass.Constexpr, acc: cute.Tensor, pairs: cute.Tensor):
    """Add a bias from ``load_bias`` to a warp group's part of a tile. Called by whole warps."""
    # wgmma's layout: a thread has pairs of columns, eight apart, in two rows, eight apart.
    rows = shape.tile_m // MMA_ROWS // shape.sharing_groups
    parts = cute.make_tensor(
        acc.iterator, cute.make_layout((2, 2, shape.tile_n // 8, rows), stride=(1, 2, 4, shape.tile_n // 2))
    )
    words = cute.recast_tensor(pairs, Int32)  # a pair of 16-bit numbers is one
    found = cute.make_rmem_tensor(2, pairs.element_type)
    found_words = cute.recast_tensor(found, Int32)
    for j in cutlass.range_constexpr(shape.tile_n // 8):
        for word in cutlass.range_constexpr(cute.size(found_words)):
            found_words[word] = cute.arch.shuffle_sync(words[word, j // 8], j % 8 * 4, mask_and_clamp=OF_COLUMNS)
        for v in cutlass.range_constexpr(2):
            added = found[v].to(Float32)
            for i in cutlass.range_constexpr(rows):
                for half in cutlass.range_constexpr(2):
                    parts[v, half, j, i] += added
