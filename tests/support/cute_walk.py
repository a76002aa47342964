"""The Hopper kernel's scheduler by itself on a GPU: a kernel that notes the tiles it finds, for tests."""

import cutlass
from cutlass import Int32, cute

from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.kernels.cute_sm90.scheduler import Problem, blocks_at, find_tile, first_window

FIELDS = 9  # of a tile that are noted: shape, beside, group, row, col, start, end, blocks, and blocks by ``blocks_at``


class Walk:
    """A warp for each CTA that goes through all of its cluster's tiles."""

    def __init__(self, config: CuteConfig, along: str):
        self.config, self.along = config, along

    @cute.jit
    def __call__(self, offs: cute.Tensor, extents: cute.Tensor, tiles: cute.Tensor, stream):
        """Note each tile.

        Args:
            offs: (G,) int32, the groups' ends.
            extents: (4,) int32: total, M, N, K of the problem.
            tiles: (clusters, CTAs of a cluster, most tiles, FIELDS) int32; what has no tile is left as it is.
            stream: where to launch.
        """
        grid = (self.config.cluster, 1, cute.size(tiles, mode=[0]))
        self.kernel(offs, extents, tiles).launch(
            grid=grid, block=(32, 1, 1), cluster=(self.config.cluster, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, offs: cute.Tensor, extents: cute.Tensor, tiles: cute.Tensor):
        """What every block does."""
        config, along = self.config, self.along
        problem = Problem(offs, extents[0], extents[1], extents[2], extents[3])
        cluster, rank = cute.arch.block_idx()[2], cute.arch.block_in_cluster_idx()[0]
        number, i = cluster, Int32(0)
        window = first_window(config, along, problem)
        window, blocks = blocks_at(config, along, problem, window, number)
        window, tile = find_tile(config, along, problem, window, number)
        while tile.found:
            if cute.arch.lane_idx() == 0 and i < cute.size(tiles, mode=[2]):
                place = tile.group, tile.row, tile.col, tile.start, tile.end
                fields = (tile.shape, Int32(tile.beside), *place, tile.blocks, blocks)
                for field in cutlass.range_constexpr(FIELDS):
                    tiles[cluster, rank, i, field] = fields[field]
            i += 1
            number += cute.arch.grid_dim()[2]
            window, blocks = blocks_at(config, along, problem, window, number)
            window, tile = find_tile(config, along, problem, window, number)


def compile_walk(config: CuteConfig, along: str):
    """Compile for Hopper: a callable of torch tensors, see ``Walk.__call__``, on torch's current stream."""

    def fake(*shape):
        strides = (*(cute.sym_int() for _ in shape[1:]), 1)
        return cute.runtime.make_fake_tensor(Int32, shape, stride=strides, assumed_align=4)

    return cute.compile[(cute.GPUArch("sm_90a"), cute.EnableTVMFFI(True))](
        Walk(config, along),
        fake(cute.sym_int()),
        fake(4),
        fake(*(cute.sym_int() for _ in range(3)), FIELDS),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
    )
