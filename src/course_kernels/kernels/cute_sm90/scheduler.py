"""Which tile is next: every warp computes it from the groups' ends.

The tiles of a cluster belong to one group, so clusters take cluster tiles: two tiles, one below the other (one tile,
where a cluster is one CTA). If a group has an odd number of rows of tiles, cluster tiles of the last row are two tiles
side by side. Flat tiles are side by side, too, and are the last of their group. Cluster tiles are numbered over all
groups, and a cluster takes every ``clusters``-th of them. All clusters together take a *wave*. The cluster tiles of the
last wave may be split in two, so that twice as many clusters get half the work each.

The lanes of a warp hold 32 groups at a time, a *window of groups*. Each lane counts its group's cluster tiles, a sum
over the lanes gives the end of each group's numbers, and one vote finds the group. The numbers only rise, so no earlier
window is visited again. Along K an empty group has no tiles: its zeros are no product.

A tile along K takes as long as its group is deep. In a dynamic order a deep one at the end would keep one cluster busy
when the others are done. So there the groups of a window are sorted into a few classes of depth, and numbered from the
deepest class on. The window that is not full comes first: as the last one, it might hold nothing but deep groups.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, cute

LANES = 32
# Classes of depth: from so many times the mean depth of all groups on; then the rest.
DEEP = 4, 2, 1


class Window(NamedTuple):
    """32 groups, one a lane: the first of them, less than 0 where the first lanes have none; this lane's first row, or
    line along K, and the one after its last; its cluster tiles, and the number after its last cluster tile."""

    first: Int32
    start: Int32
    end: Int32
    tiles: Int32
    passed: Int32


class Problem(NamedTuple):
    """The groups' ends, and extents: ``total`` of the dimension that the groups divide, M and N of the result, and K
    where it is the same for all. Masked groups begin every ``pitch`` rows, and ``offs`` holds how many of them count;
    else ``pitch`` is None. With ``starts``, what is called a group here is a piece of one, which begins anywhere: all
    first pieces of the ``groups`` groups, all second ones, and so on."""

    offs: cute.Tensor
    total: Int32
    M: Int32
    N: Int32
    K: Int32
    pitch: Int32 | None = None
    starts: cute.Tensor | None = None
    groups: Int32 | None = None


class Tile(NamedTuple):
    """A CTA's tile: whether there is one, its shape among ``CuteConfig.shapes``, whether the cluster's other tile is
    beside it and not above or below, its group, its first row and column in C, its blocks along K. The group is from
    ``start`` to before ``end`` along M or K. Where a column is left over, the second of two tiles side by side is
    outside of the result; a lower half may be after the group's last row; no other tile is outside. ``piece`` is which
    one of the group's, 0 where it is whole."""

    found: Boolean
    shape: Int32
    beside: Boolean
    group: Int32
    row: Int32
    col: Int32
    start: Int32
    end: Int32
    blocks: Int32
    piece: Int32


@cute.jit
def group_end(offs: cute.Tensor, g: Int32, total: Int32) -> Int32:
    """The row after group g's last, clamped to [0, total]; for a masked group its number of rows, with ``total`` the
    pitch of groups. A 64-bit end is clamped before it is converted to 32 bits."""
    if cutlass.const_expr(offs.element_type is Int64):
        return Int32(cutlass.min(cutlass.max(offs[g], Int64(0)), Int64(total)))
    return cutlass.min(cutlass.max(offs[g], 0), total)


@cute.jit
def tile_rows(config: cutlass.Constexpr, rows: Int32) -> Int32:
    """Rows of tiles of a result of ``rows``; one of flat tiles is not counted."""
    if cutlass.const_expr(config.tail_tile_n):
        return (rows + config.tile_m // 2 - 1) // config.tile_m
    return cute.ceil_div(rows, config.tile_m)


@cute.jit
def full_tiles(config: cutlass.Constexpr, rows: Int32, cols: Int32) -> Int32:
    """Cluster tiles of a result of ``rows`` and ``cols``; flat ones are not counted."""
    tiles_m, tiles_n = tile_rows(config, rows), cute.ceil_div(cols, config.tile_n)
    if cutlass.const_expr(config.cluster == 1):
        return tiles_m * tiles_n
    return tiles_m // 2 * tiles_n + tiles_m % 2 * cute.ceil_div(tiles_n, 2)


@cute.jit
def cluster_tiles(config: cutlass.Constexpr, rows: Int32, cols: Int32) -> Int32:
    """Cluster tiles of a result of ``rows`` and ``cols``."""
    tiles = full_tiles(config, rows, cols)
    if cutlass.const_expr(config.tail_tile_n):
        flat = cute.ceil_div(cols, config.cluster * config.tail_tile_n)
        tiles += flat * Int32(rows > tile_rows(config, rows) * config.tile_m)
    return tiles


@cute.jit
def group_span(problem: Problem, g: Int32, signed: cutlass.Constexpr[bool] = False) -> tuple[Int32, Int32]:
    """Group g's first row, or line along K, and the one after its last; 0 and 0 where there is no such group. g may be
    less than 0 where ``signed``."""
    start, end, there = Int32(0), Int32(0), g < cute.size(problem.offs)
    if cutlass.const_expr(signed):
        there = there and g >= 0
    if there:
        if cutlass.const_expr(problem.pitch is not None):
            end = g * problem.pitch + group_end(problem.offs, g, problem.pitch)
            start = g * problem.pitch
        else:
            end = group_end(problem.offs, g, problem.total)
            if cutlass.const_expr(problem.starts is not None):
                start = group_end(problem.starts, g, problem.total)
            elif g > 0:
                start = group_end(problem.offs, g - 1, problem.total)
    return start, end


def is_deepest_first(config, along) -> bool:
    """Whether a window's groups are numbered by depth."""
    return config.dynamic and along == "k"


@cute.jit
def number_by_depth(config: cutlass.Constexpr, problem: Problem, depth: Int32) -> tuple[Int32, Int32]:
    """The cluster tiles of this lane's group; and how many it and all groups before it have, if the deepest class comes
    first. Called by whole warps."""
    lane, mean = cute.arch.lane_idx(), problem.total // cute.size(problem.offs)
    deeper, earlier, groups_before = Int32(0), (Int32(1) << lane) - 1, Int32(0)  # lanes are bits
    for i in cutlass.range_constexpr(len(DEEP) + 1):
        least = cutlass.max((*DEEP, 0)[i] * mean, 1)
        found = Int32(cute.arch.vote_ballot_sync(depth >= least))
        if depth < least:
            groups_before = cute.arch.popc(found)
        elif (deeper >> lane) & 1 == 0:
            groups_before = cute.arch.popc(deeper | (found & earlier))
        deeper = found
    tiles = cluster_tiles(config, problem.M, problem.N)
    own = tiles * Int32(depth > 0)
    return own, groups_before * tiles + own


@cute.jit
def open_window(
    config: cutlass.Constexpr, along: cutlass.Constexpr, problem: Problem, first: Int32, before: Int32
) -> Window:
    """The window of the groups from ``first`` on. ``before``: cluster tiles of all earlier groups."""
    lane = cute.arch.lane_idx()
    start, end = group_span(problem, first + lane, is_deepest_first(config, along))
    if cutlass.const_expr(is_deepest_first(config, along)):
        tiles, passed = number_by_depth(config, problem, end - start)
        return Window(first, start, end, tiles, passed + before)
    tiles = Int32(0)
    if end > start:
        rows = problem.M if cutlass.const_expr(along == "k") else end - start
        tiles = cluster_tiles(config, rows, problem.N)
    passed = tiles
    for step in cutlass.range_constexpr(5):
        lower = cute.arch.shuffle_sync_up(passed, 1 << step)
        if lane >= 1 << step:
            passed += lower
    return Window(first, start, end, tiles, passed + before)


@cute.jit
def full_groups(problem: Problem) -> Int32:
    """Groups that are not empty. Called by whole warps."""
    groups, found = cute.size(problem.offs), Int32(0)
    for first in cutlass.range(0, groups, LANES, unroll=1):
        start, end = group_span(problem, first + cute.arch.lane_idx())
        found += cute.arch.popc(cute.arch.vote_ballot_sync(end > start))
    return found


@cute.jit
def first_window(config: cutlass.Constexpr, along: cutlass.Constexpr, problem: Problem) -> Window:
    """The window to begin with."""
    first = Int32(0)
    if cutlass.const_expr(is_deepest_first(config, along)):
        first = -((LANES - cute.size(problem.offs) % LANES) % LANES)
    return open_window(config, along, problem, Int32(first), Int32(0))


@cute.jit
def passed_by(config: cutlass.Constexpr, along: cutlass.Constexpr, window: Window) -> Int32:
    """Cluster tiles of all groups up to the last of a window. Called by whole warps."""
    if cutlass.const_expr(is_deepest_first(config, along)):
        return cute.arch.warp_redux_sync(window.passed, "max")
    return cute.arch.shuffle_sync(window.passed, LANES - 1)


@cute.jit
def next_window(config: cutlass.Constexpr, along: cutlass.Constexpr, problem: Problem, window: Window) -> Window:
    """The window after this one. Called by whole warps."""
    before = passed_by(config, along, window)
    return open_window(config, along, problem, window.first + LANES, before)


@cute.jit
def lane_of(config: cutlass.Constexpr, along: cutlass.Constexpr, window: Window, number: Int32) -> Int32:
    """The lane whose group has a cluster tile; ``LANES`` where it is of no group in the window. Called by whole
    warps."""
    if cutlass.const_expr(is_deepest_first(config, along)):
        lanes = Int32(cute.arch.vote_ballot_sync(window.passed - window.tiles <= number and number < window.passed))
        return cute.arch.popc((lanes & -lanes) - 1)
    return cute.arch.popc(cute.arch.vote_ballot_sync(window.passed <= number))


@cute.jit
def first_half(window: Window, total: Int32) -> Int32:
    """The last wave's first cluster tile where its tiles are split in two; else ``total``, the number of all. They are
    split where there is a cluster for each half, and all of them are of groups in this window, the last one: a warp
    still in an earlier window does not know ``total``. Called by whole warps."""
    clusters = cute.arch.grid_dim()[2]
    first = total // clusters * clusters
    if 2 * (total - first) > clusters or first < cute.arch.shuffle_sync(window.passed - window.tiles, 0):
        first = total
    return first


@cute.jit
def find_group(
    config: cutlass.Constexpr, along: cutlass.Constexpr, problem: Problem, window: Window, number: Int32
) -> tuple[Window, Int32, Int32, Int32]:
    """The window with a cluster's ``number``-th piece of work; the lane of its group, ``LANES`` where there is none;
    the number of the cluster tile; and which half of it, -1 for all. Called by whole warps."""
    lane = lane_of(config, along, window, number)
    while lane == LANES and window.first + LANES < cute.size(problem.offs):
        window = next_window(config, along, problem, window)
        lane = lane_of(config, along, window, number)
    half = Int32(-1)
    if cutlass.const_expr(config.split_last_wave):
        # How many there are is known in the window of the last groups, and needed in the last wave.
        total = cute.arch.shuffle_sync(window.passed, LANES - 1)
        if window.first + LANES >= cute.size(problem.offs) and number + cute.arch.grid_dim()[2] > total:
            first = first_half(window, total)
            if first < total and number >= first:
                half, number = (number - first) % 2, first + (number - first) // 2
                lane = cute.arch.popc(cute.arch.vote_ballot_sync(window.passed <= number))
    return window, lane, number, half


@cute.jit
def blocks_at(
    config: cutlass.Constexpr, along: cutlass.Constexpr, problem: Problem, window: Window, number: Int32
) -> tuple[Window, Int32]:
    """The window with a cluster's ``number``-th piece of work, or an earlier one, and the blocks along K of its tiles;
    any number where there is none. Called by whole warps."""
    if cutlass.const_expr(along == "m"):
        return window, cute.ceil_div(problem.K, config.tile_k)
    window, lane, _, _ = find_group(config, along, problem, window, number)
    depth = cute.arch.shuffle_sync(window.end - window.start, cutlass.min(lane, LANES - 1))
    return window, cute.ceil_div(depth, config.tile_k)


@cute.jit
def find_tile(
    config: cutlass.Constexpr, along: cutlass.Constexpr, problem: Problem, window: Window, number: Int32
) -> tuple[Window, Tile]:
    """The window with a cluster's ``number``-th piece of work, and this CTA's tile of it, maybe of half a cluster
    tile. Called by whole warps."""
    window, lane, number, half = find_group(config, along, problem, window, number)
    found = lane < LANES
    lane = cutlass.min(lane, LANES - 1)
    group = window.first + lane
    start = cute.arch.shuffle_sync(window.start, lane)
    end = cute.arch.shuffle_sync(window.end, lane)
    in_group = number - cute.arch.shuffle_sync(window.passed - window.tiles, lane)
    if cutlass.const_expr(along == "k"):
        first_row, tiles_m = Int32(0), cute.ceil_div(problem.M, config.tile_m)
        blocks = cute.ceil_div(end - start, config.tile_k)
    else:
        first_row, tiles_m = start, tile_rows(config, end - start)
        blocks = cute.ceil_div(problem.K, config.tile_k)
    tiles_n = cute.ceil_div(problem.N, config.tile_n)

    # Strips of ``swizzle_size`` rows of clusters, each walked two columns at a time: what runs at one time is about as
    # high as wide, and shares the most rows of A and columns of B. The last strip's columns end with the odd row. Every
    # other strip is walked backwards, from the columns with which the one above it ended.
    pairs = tiles_m // config.cluster
    last = cutlass.max(pairs - 1, 0) // config.swizzle_size
    strip = cutlass.min(in_group // (config.swizzle_size * tiles_n), last)
    in_strip = in_group - strip * config.swizzle_size * tiles_n
    high = cutlass.min(pairs - strip * config.swizzle_size, config.swizzle_size)
    odd = tiles_m - pairs * config.cluster
    if strip < last:
        odd = Int32(0)
    if strip % 2 == 1:
        in_strip = high * tiles_n + odd * cute.ceil_div(tiles_n, 2) - 1 - in_strip
    # Down the left one of two columns, down the right one, then the odd row's two tiles.
    col_pair = in_strip // cutlass.max(2 * high + odd, 1)
    in_cols = in_strip - col_pair * (2 * high + odd)
    right = Int32(in_cols >= high)
    row, col = strip * config.swizzle_size + in_cols - right * high, 2 * col_pair + right

    rank = cute.arch.block_in_cluster_idx()[0]
    beside = Boolean(odd == 1 and (in_cols == 2 * high or col == tiles_n))
    row = row * config.cluster + rank
    if beside:
        row, col = tiles_m - 1, 2 * col_pair + rank
    row, shape, first_col = first_row + row * config.tile_m, Int32(0), col * config.tile_n
    if cutlass.const_expr(config.last_tile_n):
        # The last columns; each takes back a part of what would lie outside.
        saved = config.tile_n - config.last_tile_n
        wide = cutlass.max(tiles_n - (tiles_n * config.tile_n - problem.N) // saved, 0)
        if col >= wide:
            shape, first_col = Int32(1), first_col - (col - wide) * saved
    if cutlass.const_expr(config.tail_tile_n):
        flat = in_group - full_tiles(config, end - start, problem.N)
        if flat >= 0:
            shape, beside = Int32(len(config.shapes) - 1), Boolean(True)
            row, first_col = first_row + tiles_m * config.tile_m, (config.cluster * flat + rank) * config.tail_tile_n
    if cutlass.const_expr(config.split_last_wave):
        # Of two tiles one below the other the upper half is the upper one: its own upper half, and its lower one.
        shape = Int32(half >= 0)
        low = shape * (config.tile_m // 2)
        row += half * low
        if not beside:
            row += (half * (config.cluster - 1) - rank) * low
    piece = Int32(0)
    if cutlass.const_expr(problem.starts is not None):
        piece, group = group // problem.groups, group % problem.groups
    return window, Tile(found, shape, beside, group, row, first_col, start, end, blocks, piece)
