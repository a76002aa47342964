"""The pictures of the Hopper kernel's clusters follow from a configuration, their tiles from the kernel's own walk."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig
from course_kernels.viz import cute_clusters

import plain_scheduler  # isort: skip

WIDE = CuteConfig(128, 256, 64, 2, 4, COOPERATIVE)
LESS = CuteConfig(128, 192, 64, 2, 4, PINGPONG)


def boxes(axes, gid):
    return [
        tuple(round(v, 6) for v in (*each.get_xy(), each.get_width(), each.get_height()))
        for each in axes.patches
        if each.get_gid() == gid
    ]


def texts(axes):
    return [each.get_text() for each in axes.texts]


def title(axes):
    return axes.get_title(loc="left")


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
    assert cute_clusters.bytes_from_l2(config, 2, shared=False, beside=beside) == alone * 64 * 2
    assert cute_clusters.bytes_from_l2(config, 2, beside=beside) == shared * 64 * 2
    figure = cute_clusters.multicast(config, beside=beside)
    for axes, lines in zip(figure.axes, (alone, shared)):
        loads, receives = ([sum(box[2] for box in boxes(axes, f"{what} {cta}")) for cta in (0, 1)]
                           for what in ("loads", "receives"))  # fmt: skip
        assert loads == [lines / 2] * 2
        assert receives == [config.tile_m + config.tile_n] * 2
        assert f"{lines * 128 / 1024:g} KiB" in title(axes)
        words = [text for text in texts(axes) if text.startswith("CTA 1")]
        assert words == [f"CTA 1 asks for {lines / 16:g} KiB, receives {(config.tile_m + config.tile_n) / 8:g} KiB"]


def test_each_part_is_named_by_its_lines_and_a_shared_one_reaches_both():
    alone, shared = cute_clusters.multicast(WIDE).axes
    parts = [text.replace("\n", " ") for text in texts(shared) if "of" in text]
    both = ["columns 0–127 of B", "columns 128–255 of B"]
    assert parts == ["rows 0–127 of A", *both, "rows 128–255 of A", *both]
    arrows = [[patch for patch in axes.patches if patch.get_gid() == "arrow"] for axes in (alone, shared)]
    assert [len(each) for each in arrows] == [4, 6]
    assert texts(alone).count("columns\n0–255\nof B") == 2, "the same columns, asked for twice"
    # From its own block in L2, straight up to one CTA and across to the other.
    owned = {box[0] + box[2] / 2 for cta in (0, 1) for box in boxes(shared, f"loads {cta}")}
    assert {patch._posA_posB[0][0] for patch in arrows[1]} == owned
    ends = {box[0] + box[2] / 2 for cta in (0, 1) for box in boxes(shared, f"receives {cta}")}
    assert {patch._posA_posB[1][0] for patch in arrows[1]} == ends


def test_side_by_side_it_is_the_rows_of_a_that_both_use():
    alone, shared = cute_clusters.multicast(LESS, beside=True).axes
    parts = [text.replace("\n", " ") for text in texts(shared) if "of" in text]
    both = ["rows 0–63 of A", "rows 64–127 of A"]
    assert parts == [*both, "columns 0–191 of B", *both, "columns 192–383 of B"]
    assert texts(alone).count("rows\n0–127\nof A") == 2


def kernels_walk(config, tiles_m, tiles_n):
    """Tiles that the kernel's own scheduler finds for the CTAs of each cluster, with one group and one lane."""
    arch = SimpleNamespace(shuffle_sync=lambda value, lane: value)
    scheduler = plain_scheduler.load(arch)
    scheduler.find_group = lambda config, along, problem, window, number: (window, 0)
    start, rows = 1000, tiles_m * config.tile_m - 5
    # Others come before: their 7 cluster tiles have been handed out.
    count = scheduler.cluster_tiles(config, rows, tiles_n * config.tile_n - 8)
    window = scheduler.Window(0, start, start + rows, count, 7 + count)
    problem = SimpleNamespace(N=tiles_n * config.tile_n - 8, K=512)
    found = []
    for number in range(7, 7 + count):
        both = []
        for rank in range(2):
            arch.block_in_cluster_idx = lambda rank=rank: (rank, 0, 0)
            _, tile = scheduler.find_tile(config, "m", problem, window, number)
            (row, below), (col, right) = divmod(tile.row - start, config.tile_m), divmod(tile.col, config.tile_n)
            assert (tile.found, below, right) == (True, 0, 0)
            both.append((row, col))
        assert tile.beside == (both[0][0] == both[1][0]), "what tells the loads which operand is shared"
        found.append(tuple(both))
    return found


@pytest.mark.parametrize("strip", [1, 2, 8])
@pytest.mark.parametrize("tiles_m", [1, 2, 3, 4, 5, 16, 17, 33, 35])
@pytest.mark.parametrize("tiles_n", [1, 2, 3, 8])
def test_pairs_are_the_kernels_and_cover_every_tile_once(tiles_m, tiles_n, strip):
    config = replace(WIDE, strip=strip)
    found = cute_clusters.pairs(config, tiles_m, tiles_n)
    tiles = [tile for both in found for tile in both]
    wanted = {(row, col) for row in range(tiles_m) for col in range(tiles_n)}
    outside = {(tiles_m - 1, tiles_n)} if tiles_m % 2 and tiles_n % 2 else set()
    assert set(tiles) == wanted | outside
    assert len(tiles) == len(set(tiles))
    assert {(bottom - top, right - left) for (top, left), (bottom, right) in found} <= {(1, 0), (0, 1)}
    assert {both[0][0] for both in found if both[0][0] == both[1][0]} <= {tiles_m - 1}, "the last row alone"
    assert found == kernels_walk(config, tiles_m, tiles_n)


def test_an_odd_row_side_by_side_leaves_no_tile_below_it():
    below, kernels = cute_clusters.odd_row(WIDE, 300, 1024).axes  # 3 rows of 4 tiles
    assert boxes(below, "for nothing") == [(256 * col, 3 * 128, 256, 128) for col in range(4)]
    assert boxes(below, "cluster 1") == [(0, 256, 256, 128)], "what is below it is not there"
    assert title(below) == "always one below the other: 8 clusters, tiles for nothing: 4"
    assert boxes(kernels, "for nothing") == []
    assert boxes(kernels, "cluster 0") == [(0, 0, 256, 128), (0, 128, 256, 128)]
    assert boxes(kernels, "cluster 2") == [(0, 256, 256, 128), (256, 256, 256, 128)]
    assert title(kernels) == "the odd row side by side: 6 clusters, tiles for nothing: 0"
    for axes, count in ((below, 8), (kernels, 6)):
        assert texts(axes) == [str(number) for number in range(count)]
        assert boxes(axes, "group") == [(0, 0, 1024, 300)]
    assert below.axis() == kernels.axis(), "one scale"


def test_an_odd_row_of_odd_columns_leaves_one_tile_for_nothing_and_an_even_one_none():
    _, kernels = cute_clusters.odd_row(WIDE, 300, 700).axes  # 3 columns
    assert boxes(kernels, "for nothing") == [(768, 256, 256, 128)]
    assert kernels.get_xlim()[1] > 1024, "and it is in the picture"
    below, kernels = cute_clusters.odd_row(WIDE, 512, 1024).axes
    assert title(below).endswith("8 clusters, tiles for nothing: 0")
    assert title(kernels).endswith("8 clusters, tiles for nothing: 0")


@pytest.mark.parametrize("picture", [
    cute_clusters.multicast, lambda config: cute_clusters.odd_row(config, 300, 1024),
    lambda config: cute_clusters.pairs(config, 3, 4),
], ids=["multicast", "odd_row", "pairs"])  # fmt: skip
def test_a_cta_alone_shares_nothing(picture):
    with pytest.raises(ValueError, match="config must have a cluster of 2 CTAs, got 1"):
        picture(replace(WIDE, cluster=1))
