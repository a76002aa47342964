"""Which tile is next: every warp finds out for itself, from the groups' ends.

The tiles of a cluster belong to one group, so what is handed out are cluster tiles: ``cluster_m`` x ``cluster_n``
tiles. They are numbered through, group by group, and a cluster takes every ``clusters``-th of them.

Where groups lie along K, each has a result of the same size: a division finds a number's group. Where they lie along M,
the lanes of a warp look at 32 groups at a time, a *window of groups*: each counts its group's cluster tiles, a sum over
the lanes tells where each group's numbers end, and one vote finds the group. The numbers only rise, so groups that have
been passed are never looked at again.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, cute

LANES = 32


class Window(NamedTuple):
    """32 groups along M, one a lane: the first of them; this lane's first row and the row after its last, its cluster
    tiles, and the number after its last cluster tile."""

    first: Int32
    start: Int32
    end: Int32
    tiles: Int32
    passed: Int32


class Problem(NamedTuple):
    """Where the groups end, and extents: ``total`` of what the groups divide, M and N of the result, K where it is the
    same for all."""

    offs: cute.Tensor
    total: Int32
    M: Int32
    N: Int32
    K: Int32


class Tile(NamedTuple):
    """A CTA's tile: whether there is one, its group, its first row and column in C, its blocks along K. The group lies
    from ``start`` to before ``end`` along M or K. A cluster's last tiles may lie wholly outside of the result."""

    found: Boolean
    group: Int32
    row: Int32
    col: Int32
    start: Int32
    end: Int32
    blocks: Int32


@cute.jit
def group_end(offs: cute.Tensor, g: Int32, total: Int32) -> Int32:
    """The row after group g's last. What ``offs`` says outside of [0, total] is not believed."""
    return cutlass.min(cutlass.max(offs[g], 0), total)


@cute.jit
def open_window(
    offs: cute.Tensor, total: Int32, first: Int32, before: Int32, rows: cutlass.Constexpr[int], tiles_n: Int32
) -> Window:
    """The window of the groups from ``first`` on. ``before``: cluster tiles of all groups in front of it; ``rows``:
    rows of a cluster tile; ``tiles_n``: cluster tiles side by side."""
    lane = cute.arch.lane_idx()
    g = first + lane
    start, end = Int32(0), Int32(0)
    if g < cute.size(offs):
        end = group_end(offs, g, total)
        if g > 0:
            start = group_end(offs, g - 1, total)
    tiles = cute.ceil_div(cutlass.max(end - start, 0), rows) * tiles_n
    passed = tiles
    for step in cutlass.range_constexpr(5):
        lower = cute.arch.shuffle_sync_up(passed, 1 << step)
        if lane >= 1 << step:
            passed += lower
    return Window(first, start, end, tiles, passed + before)


@cute.jit
def first_window(config: cutlass.Constexpr, along: cutlass.Constexpr, problem: Problem) -> Window:
    """The window to begin with. Along "k" nobody looks at it."""
    if cutlass.const_expr(along == "k"):
        return Window(Int32(0), Int32(0), Int32(0), Int32(0), Int32(0))
    tiles_n = cute.ceil_div(problem.N, config.tile_n * config.cluster_n)
    rows = config.tile_m * config.cluster_m
    return open_window(problem.offs, problem.total, Int32(0), Int32(0), rows, tiles_n)


@cute.jit
def depth_of(config: cutlass.Constexpr, problem: Problem, group: Int32) -> tuple[Int32, Int32, Int32]:
    """Along "k": a group's first line, the line after its last, and its blocks. One that is empty has a block too, of
    zeros, which makes the zeros of its result."""
    start = Int32(0)
    if group > 0:
        start = group_end(problem.offs, group - 1, problem.total)
    end = group_end(problem.offs, group, problem.total)
    return start, end, cutlass.max(cute.ceil_div(end - start, config.tile_k), 1)


@cute.jit
def group_tiles(config: cutlass.Constexpr, problem: Problem) -> Int32:
    """Along "k": cluster tiles of a group."""
    tiles_m = cute.ceil_div(problem.M, config.tile_m * config.cluster_m)
    return tiles_m * cute.ceil_div(problem.N, config.tile_n * config.cluster_n)


@cute.jit
def blocks_at(config: cutlass.Constexpr, along: cutlass.Constexpr, problem: Problem, number: Int32) -> Int32:
    """Blocks of a tile of cluster tile ``number``; of any, where there is no such tile."""
    if cutlass.const_expr(along == "m"):
        return cute.ceil_div(problem.K, config.tile_k)
    each = group_tiles(config, problem)
    _, _, blocks = depth_of(config, problem, cutlass.min(number // each, cute.size(problem.offs) - 1))
    return blocks


@cute.jit
def find_tile(
    config: cutlass.Constexpr, along: cutlass.Constexpr, problem: Problem, window: Window, number: Int32
) -> tuple[Window, Tile]:
    """The window that holds cluster tile ``number``, and this CTA's tile of it. Called by whole warps."""
    rows = config.tile_m * config.cluster_m
    tiles_n = cute.ceil_div(problem.N, config.tile_n * config.cluster_n)
    if cutlass.const_expr(along == "k"):
        first_row, tiles_m = Int32(0), cute.ceil_div(problem.M, rows)
        each = group_tiles(config, problem)
        group = number // each
        found = group < cute.size(problem.offs)
        number -= group * each
        start, end, blocks = depth_of(config, problem, cutlass.min(group, cute.size(problem.offs) - 1))
    else:
        lane = cute.arch.popc(cute.arch.vote_ballot_sync(window.passed <= number))
        while lane == LANES and window.first + LANES < cute.size(problem.offs):
            before = cute.arch.shuffle_sync(window.passed, LANES - 1)
            window = open_window(problem.offs, problem.total, window.first + LANES, before, rows, tiles_n)
            lane = cute.arch.popc(cute.arch.vote_ballot_sync(window.passed <= number))
        found = lane < LANES
        lane = cutlass.min(lane, LANES - 1)
        group = window.first + lane
        start = cute.arch.shuffle_sync(window.start, lane)
        end = cute.arch.shuffle_sync(window.end, lane)
        number -= cute.arch.shuffle_sync(window.passed - window.tiles, lane)
        first_row, tiles_m = start, cute.ceil_div(end - start, rows)
        blocks = cute.ceil_div(problem.K, config.tile_k)

    # Within a group, strips of ``strip`` rows of cluster tiles, each walked column by column: what runs at one time is
    # about as high as wide, and shares the most rows of A and columns of B.
    in_strip = config.strip * tiles_n
    strip = number // in_strip
    high = cutlass.max(cutlass.min(tiles_m - strip * config.strip, config.strip), 1)
    number -= strip * in_strip
    col = number // high
    row = strip * config.strip + number - col * high

    cta_m, cta_n, _ = cute.arch.block_in_cluster_idx()
    row = first_row + (row * config.cluster_m + cta_m) * config.tile_m
    col = (col * config.cluster_n + cta_n) * config.tile_n
    return window, Tile(found, group, row, col, start, end, blocks)
