"""Zeros for the parts of C without a product: its tail along "m", the results of empty groups along "k"."""

import cutlass
from cutlass import Float32, Int32, cute

from course_kernels.kernels.cute_sm90.scheduler import Problem, cluster_tiles, full_groups, group_end


@cute.jit
def zero_row(rows: cute.Tensor, row: Int32):
    """Write zeros to a row of a matrix. Called by whole warps."""
    width = 128 // rows.element_type.width
    zeros = cute.make_rmem_tensor((1, width), rows.element_type)
    zeros.fill(0)
    for piece in cutlass.range(cute.arch.lane_idx(), cute.size(rows, mode=[1]) // width, 32, unroll=1):
        cute.autovec_copy(zeros, cute.local_tile(rows, (1, width), (row, piece)))


@cute.jit
def write_zeros(
    config: cutlass.Constexpr,
    along: cutlass.Constexpr,
    writers: cutlass.Constexpr[int],
    c: cute.Tensor,
    problem: Problem,
    loaded: cute.Pointer,
):
    """Write zeros to the parts of C without a product. Called by warps of the first warp group; its last ``writers``
    warps write."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    cta = cute.arch.block_idx()[2] * config.cluster + cute.arch.block_idx_in_cluster()
    worker, workers = cta * writers + 3 - warp, cute.arch.grid_dim()[2] * config.cluster * writers
    if warp > 3 - writers:
        if cutlass.const_expr(along == "m"):
            zero_tail(c, problem, worker, workers)
        else:
            zero_empty(config, c, problem, loaded, worker, workers)


@cute.jit
def zero_tail(c: cute.Tensor, problem: Problem, worker: Int32, workers: Int32):
    """Write zeros to the rows of C after the last group, one warp per row; this warp is ``worker`` of ``workers``."""
    used = group_end(problem.offs, cute.size(problem.offs) - 1, problem.total)
    for row in cutlass.range(used + worker, problem.total, workers, unroll=1):
        zero_row(c, row)


@cute.jit
def zero_empty(
    config: cutlass.Constexpr, c: cute.Tensor, problem: Problem, loaded: cute.Pointer, worker: Int32, workers: Int32
):
    """Write zeros to all rows of groups without depth, along "k". The rows are spread over the time of the cluster's
    tiles: all at once they would delay the loads. ``loaded`` counts the tiles so far; in a dynamic order a cluster may
    take fewer, and the counter ends above every count. An error of it, or of the count of earlier rows, changes only
    the spread."""
    groups = cute.size(problem.offs)
    empty = groups - full_groups(problem)
    tiles = (groups - empty) * cluster_tiles(config, problem.M, problem.N)
    of_cluster = cute.ceil_div(tiles - cute.arch.block_idx()[2], cute.arch.grid_dim()[2])
    tiles_a_row = Float32(of_cluster) / Float32(cutlass.max(empty, 1)) / Float32(problem.M)
    # This warp's next row, counted from the first row of this empty group; an excess counts in the next empty group.
    row, rows_before, start = worker, Int32(0), Int32(0)
    if empty == 0:
        groups = 0  # no group is empty
    for g in cutlass.range(groups, unroll=1):
        end = group_end(problem.offs, g, problem.total)
        if end <= start:
            while row < problem.M:
                due = cutlass.min(Int32(Float32(rows_before + row) * tiles_a_row), of_cluster - 1)
                if cute.arch.lane_idx() == 0:
                    # Adding 0 is an atomic read; the loading warp counts atomically, too.
                    while cute.arch.atomic_add(loaded, Int32(0), sem="relaxed", scope="cta") < due:
                        pass
                cute.arch.sync_warp()
                zero_row(c[g, None, None], row)
                row += workers
            row -= problem.M
            rows_before += problem.M
        start = end
