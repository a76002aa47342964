"""Clusters take their tiles as the kernel's own scheduler does, and fetch what they share once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig
from gemm_course.lessons import l10_clusters

import plain_scheduler  # isort: skip


WIDE = CuteConfig(128, 256, 64, 2, 4, COOPERATIVE)
LESS = CuteConfig(128, 192, 64, 2, 4, PINGPONG)
CUT = CuteConfig(128, 192, 64, 2, 5, PINGPONG, last_tile_n=128, tail_tile_n=256)
CUTS = {
    "one shape": LESS, "narrow": replace(CUT, tail_tile_n=0), "flat": replace(CUT, last_tile_n=0), "both": CUT,
    "64 narrow": replace(LESS, last_tile_n=64),
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "beside", "alone", "shared"),
    [
        (WIDE, False, 2 * (128 + 256), 2 * 128 + 256),
        (WIDE, True, 2 * (128 + 256), 128 + 2 * 256),
        (LESS, False, 2 * (128 + 192), 2 * 128 + 192),
        (LESS, True, 2 * (128 + 192), 128 + 2 * 192),
    ],
    ids=["256, below", "256, beside", "192, below", "192, beside"],
)
def test_a_cluster_fetches_what_it_shares_once(config, beside, alone, shared):
    assert l10_clusters.bytes_from_l2(config, 2, shared=False, beside=beside) == alone * 64 * 2
    assert l10_clusters.bytes_from_l2(config, 2, beside=beside) == shared * 64 * 2


def kernels_walk(config, rows, columns):
    """Tiles that the kernel's own scheduler finds for the CTAs of each cluster, with one group and one lane."""
    arch = SimpleNamespace(shuffle_sync=lambda value, lane: value)
    scheduler = plain_scheduler.load(arch)
    scheduler.find_group = lambda config, along, problem, window, number: (window, 0, number, -1)
    start = 1000
    # Others come before: their 7 cluster tiles have been handed out.
    count = scheduler.cluster_tiles(config, rows, columns)
    window = scheduler.Window(0, start, start + rows, count, 7 + count)
    problem = SimpleNamespace(N=columns, K=512, starts=None)
    found = []
    for number in range(7, 7 + count):
        both = []
        for rank in range(2):
            arch.block_in_cluster_idx = lambda rank=rank: (rank, 0, 0)
            _, tile = scheduler.find_tile(config, "m", problem, window, number)
            assert tile.found
            shape = config.shapes[tile.shape]
            both.append((tile.row - start, tile.col, shape.tile_m, shape.tile_n))
        assert tile.beside == (both[0][0] == both[1][0]), "what tells the loads which operand is shared"
        found.append(tuple(both))
    return found


def times_covered(config, found, rows, columns):
    """How often tiles cover each element of C, of a row and a column behind it, and how many tiles lie outside."""
    covered, outside = np.zeros((rows + 1, columns + 1), int), 0
    for row, col, height, width in (tile for both in found for tile in both):
        covered[row : row + height, col : col + width] += 1
        outside += row >= rows or col >= columns
    return covered, outside


@pytest.mark.parametrize("strip", [1, 2, 8])
@pytest.mark.parametrize("tiles_m", [1, 2, 3, 4, 5, 16, 17, 33, 35])
@pytest.mark.parametrize("tiles_n", [1, 2, 3, 8])
def test_pairs_are_the_kernels_and_cover_every_tile_once(tiles_m, tiles_n, strip):
    config = replace(WIDE, swizzle_size=strip)
    rows, columns = tiles_m * 128 - 5, tiles_n * 256 - 8
    found = l10_clusters.pairs(config, rows, columns)
    tiles = [tile for both in found for tile in both]
    wanted = {(row * 128, col * 256, 128, 256) for row in range(tiles_m) for col in range(tiles_n)}
    outside = {((tiles_m - 1) * 128, tiles_n * 256, 128, 256)} if tiles_m % 2 and tiles_n % 2 else set()
    assert set(tiles) == wanted | outside
    assert len(tiles) == len(set(tiles))
    assert {(second.row - first.row, second.col - first.col) for first, second in found} <= {(128, 0), (0, 256)}
    assert {first.row for first, second in found if first.row == second.row} <= {(tiles_m - 1) * 128}, "the last alone"
    assert found == kernels_walk(config, rows, columns)


@pytest.mark.parametrize("config", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("rows", [128 * full + left for full in (0, 1, 2, 5) for left in (0, 1, 64, 65, 127)][1:])
@pytest.mark.parametrize(("columns", "narrow"), [(1920, 0), (2048, 1), (1984, 2), (192, 0), (120, 1)])
def test_pairs_cut_to_fit_are_the_kernels_and_cover_c_once(config, rows, columns, narrow):
    full, left = divmod(rows, 128)
    found = l10_clusters.pairs(config, rows, columns)
    assert found == kernels_walk(config, rows, columns)
    covered, outside = times_covered(config, found, rows, columns)
    assert (covered[:rows, :columns] == 1).all()
    tiles = [tile for both in found for tile in both]
    high, flat = ([tile for tile in tiles if tile.height == height] for height in (128, 64))
    assert len(high) + len(flat) == len(tiles)
    assert bool(flat) == bool(config.tail_tile_n and 0 < left <= 64)
    assert tiles[len(high) :] == flat, "flat ones come last"
    assert {(tile.row, tile.width) for tile in flat} <= {(128 * full, 256)}
    assert all(second.col == first.col + 256 for first, second in found if first.height == 64)
    widths = [tile.width for tile in sorted(high, key=lambda tile: tile.col) if tile.row == 0 and tile.col < columns]
    assert widths == sorted(widths, reverse=True), "the last are narrow"
    if config.last_tile_n == 128 and high:
        assert widths.count(128) == narrow
    odd_corner = (full + (left > 0) - bool(flat)) % 2 and len(widths) % 2
    assert outside == bool(odd_corner) + bool(flat and -(-columns // 256) % 2), "one at most for each row side by side"


@pytest.mark.parametrize("groups", [3, 32, 40, 96])
def test_deep_groups_come_first_as_the_kernel_numbers_them(groups):
    """The warp's own walk is in the scheduler's tests; here its constants, and the order that they check it against."""
    scheduler = plain_scheduler.load(SimpleNamespace())
    sizes = [(7 * i * i) % 150 * (i % 4 > 0) for i in range(groups)]
    mean, short = sum(sizes) // groups, groups % scheduler.LANES or scheduler.LANES

    def place(group):
        classes = sum(sizes[group] < times * mean for times in scheduler.DEEP)
        return (group - short) // scheduler.LANES, classes, group

    assert l10_clusters.deepest_first(sizes) == sorted((g for g in range(groups) if sizes[g]), key=place)


def test_a_cta_alone_shares_nothing():
    with pytest.raises(ValueError, match="config must have a cluster of 2 CTAs, got 1"):
        l10_clusters.pairs(replace(WIDE, cluster=1), 300, 1024)


def test_deep_groups_first_end_earlier_with_the_same_tiles():
    config = CuteConfig(128, 256, 64, cluster=2, stages=4, schedule=COOPERATIVE, dynamic=True)
    runs = l10_clusters.hand_out(config, [64, 0, 64, 64, 64, 64, 4096], rows=256, columns=512, clusters=4)
    before, after = runs["groups as they are"], runs["deep groups first"]
    assert before.tile_count == after.tile_count == 6 * 2
    assert after.makespan < before.makespan
    assert after.lower_bounds == pytest.approx(before.lower_bounds)
