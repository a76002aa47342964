"""The pictures of the Hopper kernel's clusters follow from a configuration, their tiles from the kernel's own walk."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig
from drawn import boxes, texts, title
from gemm_course.figures import f10_clusters as cute_clusters
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


def kernels_walk(config, rows, columns):
    """Tiles that the kernel's own scheduler finds for the CTAs of each cluster, with one group and one lane."""
    arch = SimpleNamespace(shuffle_sync=lambda value, lane: value)
    scheduler = plain_scheduler.load(arch)
    scheduler.find_group = lambda config, along, problem, window, number: (window, 0, number, -1)
    start = 1000
    # Others come before: their 7 cluster tiles have been handed out.
    count = scheduler.cluster_tiles(config, rows, columns)
    window = scheduler.Window(0, start, start + rows, count, 7 + count)
    problem = SimpleNamespace(N=columns, K=512)
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


@pytest.mark.parametrize(("rows", "columns"), [(682, 2048), (600, 1984), (257, 1920), (40, 700), (127, 120)])
@pytest.mark.parametrize("config", CUTS.values(), ids=CUTS)
def test_cut_to_fit_shows_all_that_is_multiplied_and_what_of_it_is_c(config, rows, columns):
    figure = cute_clusters.cut_to_fit(config, rows, columns)
    for axes, each in zip(figure.axes, (config.shapes[0], config)):
        found = l10_clusters.pairs(each, rows, columns)
        assert texts(axes) == []
        areas = Counter()
        for patch in axes.patches:
            areas[patch.get_gid()] += patch.get_width() * patch.get_height()
        assert sum(areas[f"cluster {number}"] for number in range(len(found))) == rows * columns
        for number, both in enumerate(found):
            inside = sum(max(0, min(col + width, columns) - col) * (min(row + height, rows) - row)
                         for row, col, height, width in both)  # fmt: skip
            assert areas[f"cluster {number}"] == inside
        multiplied = sum(tile.height * tile.width for both in found for tile in both)
        assert areas["wasted"] == multiplied - rows * columns
        assert f": {1 - rows * columns / multiplied:.1%} of the products wasted; " in title(axes)
        assert boxes(axes, "group") == [(0, 0, columns, rows)]
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        for x, y, width, height in boxes(axes, "wasted"):
            assert left <= x < x + width <= right
            assert top <= y < y + height <= bottom
    assert figure.axes[0].axis() == figure.axes[1].axis(), "one scale"


def test_cut_to_fit_says_which_tiles_there_are():
    one, cut = cute_clusters.cut_to_fit(CUT, 682, 2048).axes
    assert title(one) == "one shape: 13.9% of the products wasted; 6 × 128 rows of 11 × 192 columns"
    rows = "5 × 128 rows of 10 × 192 + 1 × 128 columns, 64 rows of 8 × 256 columns"
    assert title(cut) == f"cut to fit: 4.2% of the products wasted; {rows}"
    assert boxes(cut, "wasted")[0] == (2048, 512, 128, 128), "left over: tile columns and tile rows are odd"
    assert boxes(cut, "wasted")[1:] == [(256 * each, 682, 256, 22) for each in range(8)]
    assert boxes(cut, "cluster 28") == [(0, 640, 256, 42), (256, 640, 256, 42)]
    flat_alone = cute_clusters.cut_to_fit(CUT, 40, 700).axes[1]
    assert title(flat_alone).endswith("wasted; 64 rows of 3 × 256 columns")
    assert title(cute_clusters.cut_to_fit(CUT, 640, 1920).axes[1]).endswith("0.0% of the products wasted; 5 × 128 rows "
                                                                            "of 10 × 192 columns")  # fmt: skip


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


def test_deep_groups_first_leave_no_cluster_to_end_alone():
    panels = cute_clusters.handed_out(WIDE, [64, 0, 128, 64, 1024], rows=256, columns=256, clusters=2).axes
    ends, shades = [], []
    for axes, how in zip(panels, ("groups as they are", "deep groups first")):
        (tiles,) = [each for each in axes.collections if each.get_label() == "tiles"]
        corners = [path.vertices[:, 0] for path in tiles.get_paths()]
        assert len(corners) == 4, "one of each group that has lines"
        ends.append(max(map(max, corners)))
        assert title(axes).startswith(f"{how}: {ends[-1]:.0f} µs")
        longest = max(range(4), key=lambda i: corners[i].max() - corners[i].min())
        shades.append([each.sum() for each in tiles.get_facecolors()])
        assert min(shades[-1]) == shades[-1][longest], "the deepest group is the darkest"
    assert ends[1] < ends[0]
    assert sorted(shades[0]) == sorted(shades[1]), "a group has the same colour in both"
    assert panels[0].get_xlim() == panels[1].get_xlim() == pytest.approx((0, 1.01 * ends[0]))


@pytest.mark.parametrize("picture", [
    cute_clusters.multicast, lambda config: cute_clusters.handed_out(config, [64], 128, 256, 2),
    lambda config: cute_clusters.order(config, 300, 1024, 3),
    lambda config: l10_clusters.pairs(config, 300, 1024), lambda config: cute_clusters.cut_to_fit(config, 300, 1024),
], ids=["multicast", "handed_out", "order", "pairs", "cut_to_fit"])  # fmt: skip
def test_a_cta_alone_shares_nothing(picture):
    with pytest.raises(ValueError, match="config must have a cluster of 2 CTAs, got 1"):
        picture(replace(WIDE, cluster=1))


def test_a_wave_in_strips_reads_fewer_lines_than_a_wave_row_by_row():
    config = replace(WIDE, swizzle_size=4)
    by_row, strips = cute_clusters.order(config, 2048, 4096, 16).axes  # 8 rows of clusters, 16 columns
    assert title(by_row) == f"row by row: a wave reads {2 * 128 + 16 * 256:,} lines"
    assert title(strips) == f"in strips of 4 rows of clusters: a wave reads {8 * 128 + 4 * 256:,} lines"
    for axes in (by_row, strips):
        assert texts(axes) == [str(number) for number in range(128)]
        colors = Counter(patch.get_facecolor() for patch in axes.patches if (patch.get_gid() or "").startswith("clust"))
        assert set(colors.values()) == {32}, "8 waves of 16 clusters of 2 tiles, each its own colour"


def test_cut_to_fit_has_a_colour_for_each_shape():
    _, cut = cute_clusters.cut_to_fit(CUT, 682, 2048).axes
    colors = {}
    for patch in cut.patches:
        if (patch.get_gid() or "").startswith("cluster"):
            colors.setdefault(patch.get_facecolor(), set()).add((patch.get_width(), patch.get_height()))
    assert list(map(sorted, colors.values())) == [[(192, 128)], [(128, 128)], [(256, 42)]]
