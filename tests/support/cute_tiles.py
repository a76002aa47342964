"""What a walk over a product's tiles has to be, for tests of the Hopper kernel's scheduler."""

from __future__ import annotations

import itertools
from collections import Counter

LANES = 32


def groups_of(along, problem):
    """Group, first and last row in C, first and last line of what is divided, for each group with a tile."""
    pitch = getattr(problem, "pitch", None)
    if pitch is None:
        ends = [min(max(end, 0), problem.total) for end in problem.offs]
        starts = [0, *ends]
    else:
        starts = [g * pitch for g in range(len(problem.offs))]
        ends = [start + min(max(size, 0), pitch) for start, size in zip(starts, problem.offs)]
    for g, (start, end) in enumerate(zip(starts, ends)):
        if start < end:
            yield g, *((start, end) if along == "m" else (0, problem.M)), start, end


def columns_of(config, N):
    """Where the columns of tiles begin, and the shape of each: the last ones narrow, as many as leave nothing out."""
    count = -(-N // config.tile_n)
    narrow = 0
    while (
        config.last_tile_n
        and narrow < count
        and (count - narrow - 1) * config.tile_n + (narrow + 1) * config.last_tile_n >= N
    ):
        narrow += 1
    widths = [config.tile_n] * (count - narrow) + [config.last_tile_n] * narrow
    assert sum(widths) >= N
    return [(sum(widths[:i]), int(i >= count - narrow)) for i in range(count)]


def first_half(config, problem, clusters):
    """From which number on cluster tiles are cut in two; infinity where none are."""
    counts, cols = {}, -(-problem.N // config.tile_n)
    for g, first, last, *_ in groups_of("m", problem):
        high, odd = divmod(-(-(last - first) // config.tile_m), config.cluster)
        counts[g] = high * cols + odd * -(-cols // 2)
    of_last_groups = sum(count for g, count in counts.items() if g // LANES == (len(problem.offs) - 1) // LANES)
    total = sum(counts.values())
    left = total % clusters
    return total - left if 0 < left <= min(clusters // 2, of_last_groups) else float("inf")


def check_walk(config, along, problem, clusters):
    """Every tile of every group is some CTA's, and no other's; only a row that has no row below it, or one of flat
    tiles, is taken side by side, where the last tile of an odd number has nothing beside it. The last wave's tiles are
    halves, if there are clusters for them. Returns how many cluster tiles were."""
    seen, wanted, halves = Counter(), {}, 0
    first_cut = first_half(config, problem, len(clusters)) if config.split_last_wave else float("inf")
    for g, first, last, start, end in groups_of(along, problem):
        blocks = -(-(problem.K if along == "m" else end - start) // config.tile_k)
        rows = list(range(first, last, config.tile_m))
        if config.tail_tile_n and last - rows[-1] <= config.tile_m // 2:
            row = rows.pop()
            for col in range(0, problem.N, config.tail_tile_n):
                wanted[g, row, col] = (len(config.shapes) - 1, True, start, end, blocks)
        for row, (col, shape) in itertools.product(rows, columns_of(config, problem.N)):
            beside = config.cluster == 2 and len(rows) % 2 == 1 and row == rows[-1]
            wanted[g, row, col] = (shape, beside, start, end, blocks)
    low = config.tile_m // 2
    for cluster, taken in enumerate(clusters):
        for i, tiles in enumerate(taken):
            cut = cluster + i * len(clusters) >= first_cut
            halves += cut
            for tile in tiles:
                row = tile.row
                if cut:
                    assert tile.shape == len(config.shapes) - 1
                    first = next(first for g, first, *_ in groups_of(along, problem) if g == tile.group)
                    row -= (row - first) % config.tile_m
                at = (tile.group, row, tile.col)
                if at not in wanted:
                    outside = tile.beside and tile is tiles[1] and tile.col >= problem.N
                    assert outside, f"{tile} lies nowhere"
                    # Its CTA goes the same way as the other.
                    assert tile._replace(shape=0, col=0) == tiles[0]._replace(shape=0, col=0)
                    continue
                for upper in (row, row + low):
                    seen[at, upper] += not cut or upper == tile.row
                assert (0 if cut else tile.shape, tile.beside, tile.start, tile.end, tile.blocks) == wanted[at]
            if len(tiles) == 2:
                below, right = tiles[1].row - tiles[0].row, tiles[1].col - tiles[0].col
                shape = config.shapes[tiles[0].shape]
                assert (below, right) == ((0, shape.tile_n) if tiles[0].beside else (shape.tile_m, 0))
                assert tiles[0].group == tiles[1].group
    both = {(at, upper): seen[at, upper] for at in wanted for upper in (at[1], at[1] + low)}
    assert both == dict.fromkeys(both, 1)
    return halves
