"""The Hopper kernel's scheduler without a GPU: its own source, with a generator for each lane of a warp.

What that cannot show is how the compiler understands it: for that, ``test_scheduler_gpu``.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from course_kernels.kernels.cute_sm90.config import CONFIGS, CuteConfig
from cute_tiles import LANES, check_walk, groups_of

import plain_scheduler  # isort: skip
from plain_scheduler import Ends, WideEnds  # isort: skip

SMALL = CuteConfig(tile_m=4, tile_n=8, tile_k=16, cluster=2, swizzle_size=2)  # the scheduler does not mind the size
ALONE = replace(SMALL, cluster=1)
FITTED = replace(SMALL, tile_n=12, last_tile_n=8, tail_tile_n=16)
DYNAMIC = replace(SMALL, dynamic=True)
HALVED = {"halved": replace(SMALL, split_last_wave=True), "halved alone": replace(ALONE, split_last_wave=True)}
KINDS = {
    "pairs": SMALL, "alone": ALONE, "fitted": FITTED, "fitted alone": replace(FITTED, cluster=1),
    "narrow": replace(FITTED, tail_tile_n=0), "flat": replace(FITTED, last_tile_n=0),
}  # fmt: skip
# 1 to 5, 7, 9 and 11 rows of SMALL's tiles, the last of them of one to four rows; a strip of its pairs has four.
SIZES = (0, 1, 4, 5, 0, 0, 8, 9, 12, 13, 16, 17, 0, 3, 2, 6, 11, 25, 28, 33, 36, 44, 0)


EXCHANGES = frozenset({"shuffle_sync", "shuffle_sync_up", "vote_ballot_sync", "warp_redux_sync"})


class Warp:
    """32 lanes that go through a function in step: a warp of the CTA whose place in its cluster is ``rank``. The
    function is a generator, and so is all that it calls: it yields where lanes exchange values."""

    def __init__(self):
        self.rank = 0
        self.clusters = 1
        self._lane = 0

    def run(self, function, *arguments):
        """What every lane returns, which has to be the same."""
        lanes, answers = [function(*arguments) for _ in range(LANES)], [None] * LANES
        while True:
            asked, returned = [], []
            for self._lane, (lane, answer) in enumerate(zip(lanes, answers)):
                try:
                    asked.append(lane.send(answer))
                except StopIteration as end:
                    returned.append(end.value)
            assert not (asked and returned), "lanes went different ways"
            if returned:
                assert all(each == returned[0] for each in returned)
                return returned[0]
            assert len({what for what, _ in asked}) == 1, "lanes went different ways"
            answers = [[value for _, value in asked]] * LANES

    def shuffle(self, value, lane):
        values = yield "shuffle", value
        return values[lane]

    def shuffle_up(self, value, delta):
        values = yield "up", value
        return values[self._lane - delta] if self._lane >= delta else value

    def redux(self, value, kind):
        values = yield kind, value
        return {"max": max}[kind](values)

    def ballot(self, vote):
        votes = yield "vote", vote
        return sum(bool(each) << i for i, each in enumerate(votes))

    def arch(self):
        """What the scheduler asks of ``cute.arch``."""
        return SimpleNamespace(
            lane_idx=lambda: self._lane,
            shuffle_sync=self.shuffle,
            shuffle_sync_up=self.shuffle_up,
            vote_ballot_sync=self.ballot,
            warp_redux_sync=self.redux,
            popc=lambda bits: (bits % 2**32).bit_count(),
            block_in_cluster_idx=lambda: (self.rank, 0, 0),
            grid_dim=lambda: (None, None, self.clusters),
        )


@pytest.fixture(scope="module")
def warp():
    return Warp()


@pytest.fixture(scope="module")
def scheduler(warp):
    """The scheduler's source with Python's integers for the kernel's."""
    return plain_scheduler.load(warp.arch(), EXCHANGES)


def test_lanes_that_part_are_noticed(warp):
    def part(ask):
        if warp.arch().lane_idx() == 31:
            yield from ask()
        yield from warp.ballot(True)

    for ask in (lambda: warp.ballot(True), lambda: warp.shuffle(1, 0)):
        with pytest.raises(AssertionError, match="lanes went different ways"):
            warp.run(part, ask)


def walked(scheduler, warp, config, along, problem, clusters=1):
    """What each cluster's CTAs find: a list for each cluster, with the tiles of all of the cluster's CTAs in order."""

    def walk(number):
        window, tiles = (yield from scheduler.first_window(config, along, problem)), []
        while True:
            window, blocks = yield from scheduler.blocks_at(config, along, problem, window, number)
            window, tile = yield from scheduler.find_tile(config, along, problem, window, number)
            if not tile.found:
                return tiles
            assert blocks == tile.blocks
            assert len(tiles) < 1000, "it does not end"
            tiles.append(tile)
            number += clusters

    found, warp.clusters = [], clusters
    for cluster in range(clusters):
        ranks = []
        for warp.rank in range(config.cluster):
            ranks.append(warp.run(walk, cluster))
        assert len({len(tiles) for tiles in ranks}) == 1, "the CTAs of a cluster part ways"
        found.append(list(zip(*ranks)))
    return found


def problem_of(scheduler, along, sizes, N, M=0, K=40, tail=3):
    total = sum(sizes) + tail
    return scheduler.Problem(Ends(itertools.accumulate(sizes)), total, total if along == "m" else M, N, K)


@pytest.mark.parametrize("N", [1, 16, 24, 28, 33], ids=lambda N: f"N={N}")
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_every_tile_of_groups_along_m_once(scheduler, warp, config, N):
    problem = problem_of(scheduler, "m", SIZES, N)
    check_walk(config, "m", problem, walked(scheduler, warp, config, "m", problem, clusters=1 + N % 3))


@pytest.mark.parametrize("config", [*KINDS.values(), *HALVED.values()], ids=[*KINDS, *HALVED])
def test_every_tile_of_masked_groups_once(scheduler, warp, config):
    """Groups begin at equal distances, and have no more rows than those, whatever their sizes say."""
    sizes = (*SIZES, -1, 2**31 - 1, -(2**31), 0, 7, 0, 0, 44, 45, 3)
    assert len(sizes) > LANES
    pitch = 44
    problem = scheduler.Problem(Ends(sizes), len(sizes) * pitch, len(sizes) * pitch, 28, 40, pitch)
    assert [(g, end - start) for g, start, end, *_ in groups_of("m", problem)][:3] == [(1, 1), (2, 4), (3, 5)]
    check_walk(config, "m", problem, walked(scheduler, warp, config, "m", problem, clusters=5))


@pytest.mark.parametrize("M", [4, 5, 9, 17], ids=lambda M: f"M={M}")
@pytest.mark.parametrize(
    "config", [SMALL, ALONE, KINDS["narrow"], DYNAMIC], ids=["pairs", "alone", "narrow", "deepest first"]
)
def test_every_tile_of_groups_along_k_once(scheduler, warp, config, M):
    problem = problem_of(scheduler, "k", (0, 5, 0, 0, 16, 33, 0, 1, 0), N=M + 3, M=M)
    check_walk(config, "k", problem, walked(scheduler, warp, config, "k", problem, clusters=3))


def halves_of(scheduler, warp, config, sizes, clusters, N):
    """How many cluster tiles are halves, and of how many in all."""
    problem = problem_of(scheduler, "m", sizes, N)
    found = walked(scheduler, warp, config, "m", problem, clusters)
    return check_walk(config, "m", problem, found), sum(map(len, found))


@pytest.mark.parametrize("config", HALVED.values(), ids=HALVED)
def test_the_last_waves_tiles_are_halves_if_each_finds_a_cluster(scheduler, warp, config):
    cut = set()
    for clusters, N in ((2, 17), (3, 17), (7, 17), (7, 8), (16, 8)):
        halves, count = halves_of(scheduler, warp, config, (5, 0, 40, 31, 24, 9), clusters, N=N)
        assert halves in (0, 2 * ((count - halves // 2) % clusters))
        cut.add(halves > 0)
    assert cut == {True, False}


@pytest.mark.parametrize(
    ("sizes", "clusters", "halves"),
    [((8,) * 5, 4, 2), ((8,) * 6, 4, 4), ((8,) * 7, 4, 0), ((8,) * 4, 4, 0), ((8,), 4, 2), ((8,) * 33, 16, 2),
     ((8,) * 35, 15, 0), ((8,) * 5 + (0,) * 60, 4, 0)],
    ids=["one left", "half a wave left", "more left", "none left", "nothing but the last wave", "in the last 32 groups",
         "begins before them", "ends before them"],
)  # fmt: skip
def test_which_waves_are_cut_in_two(scheduler, warp, sizes, clusters, halves):
    found, count = halves_of(scheduler, warp, HALVED["halved"], sizes, clusters, N=8)
    assert (found, count) == (halves, sum(size > 0 for size in sizes) + halves // 2)


@pytest.mark.parametrize(("along", "config"), [("m", SMALL), ("k", SMALL), ("k", DYNAMIC)], ids=["m", "k", "k deepest"])
@pytest.mark.parametrize("groups", [1, 31, 32, 33, 65])
def test_more_groups_than_lanes(scheduler, warp, along, config, groups):
    sizes = tuple(i % 5 * (i % 3) for i in range(groups))
    problem = problem_of(scheduler, along, sizes, N=9, M=5)
    check_walk(config, along, problem, walked(scheduler, warp, config, along, problem, clusters=2))
    assert warp.run(scheduler.full_groups, problem) == sum(size > 0 for size in sizes)


@pytest.mark.parametrize(("along", "config"), [("m", SMALL), ("k", SMALL), ("k", DYNAMIC)], ids=["m", "k", "k deepest"])
@pytest.mark.parametrize("full", [None, 0, 31, 32, 99])
def test_empty_groups_have_no_tiles(scheduler, warp, along, config, full):
    sizes = tuple(9 * (i == full) for i in range(100))
    problem = problem_of(scheduler, along, sizes, N=9, M=9)
    clusters = walked(scheduler, warp, config, along, problem, clusters=2)
    check_walk(config, along, problem, clusters)
    assert sum(map(len, clusters)) == (0 if full is None else 3)
    assert warp.run(scheduler.full_groups, problem) == (full is not None)


@pytest.mark.parametrize(("along", "config"), [("m", SMALL), ("k", SMALL), ("k", DYNAMIC)], ids=["m", "k", "k deepest"])
@pytest.mark.parametrize("bits", [32, 64])
def test_ends_that_are_none_are_not_believed(scheduler, warp, along, config, bits):
    """Of 64 bits neither: the low 32 of some are ends like any other."""
    ends = Ends((-5, 30, 10, 2**31 - 1, 20, -(2**31)))
    if bits == 64:
        ends = WideEnds((20 - 2**40, 30, 10 - 2**32, 2**32 + 5, 20, -(2**63)))
    problem = scheduler.Problem(ends, 50, 50 if along == "m" else 9, 9, 16)
    assert [g for g, *_ in groups_of(along, problem)] == [1, 3]
    check_walk(config, along, problem, walked(scheduler, warp, config, along, problem, clusters=2))


@pytest.mark.parametrize("groups", [3, 32, 40, 96])
def test_deep_groups_come_first(scheduler, warp, groups):
    """In each of the windows, of which the first has what does not fill one."""
    sizes = tuple((7 * i * i) % 150 * (i % 4 > 0) for i in range(groups))
    problem = problem_of(scheduler, "k", sizes, N=8, M=8, tail=0)
    (tiles,) = walked(scheduler, warp, DYNAMIC, "k", problem)
    mean, short = sum(sizes) // groups, groups % LANES or LANES

    def place(group):
        """Window, class of depth, and number."""
        window = (group - short) // LANES
        return window, sum(sizes[group] < times * mean for times in (4, 2, 1)), group

    assert [pair[0].group for pair in tiles] == sorted((g for g in range(groups) if sizes[g]), key=place)


def places(config, clusters):
    """Rows and columns of tiles of each cluster tile: of both CTAs, in their order."""
    (tiles,) = clusters
    return [tuple((tile.row // config.tile_m, tile.col // config.tile_n) for tile in pair) for pair in tiles]


def test_the_order_within_a_group(scheduler, warp):
    def pair(row, col):
        return (row, col), (row + 1, col)

    def beside(row, col):
        return (row, col), (row, col + 1)

    problem = problem_of(scheduler, "m", (5 * 4,), N=3 * 8)
    one_strip, two_strips = (replace(SMALL, swizzle_size=strip) for strip in (8, 1))
    found = places(one_strip, walked(scheduler, warp, one_strip, "m", problem))
    assert found == [pair(0, 0), pair(2, 0), pair(0, 1), pair(2, 1), beside(4, 0), pair(0, 2), pair(2, 2), beside(4, 2)]
    found = places(two_strips, walked(scheduler, warp, two_strips, "m", problem))
    backwards = [beside(4, 2), pair(2, 2), beside(4, 0), pair(2, 1), pair(2, 0)]
    assert found == [pair(0, 0), pair(0, 1), pair(0, 2), *backwards]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_cluster_tiles_are_counted_as_they_are_handed_out(scheduler, warp, config):
    sizes, N = (1000, 0, 1, 2 * config.tile_m, 2 * config.tile_m + 1), 5 * config.tile_n - 72
    problem = problem_of(scheduler, "m", sizes, N)
    (tiles,) = walked(scheduler, warp, config, "m", problem)
    check_walk(config, "m", problem, [tiles])
    assert [sum(pair[0].group == g for pair in tiles) for g in range(5)] == [
        warp.run(scheduler.cluster_tiles, config, size, N) for size in sizes
    ]


@pytest.mark.parametrize("along", ["m", "k"])
def test_what_notes_tiles_on_a_gpu_compiles(along):
    pytest.importorskip("cutlass", reason="needs the cutlass extra")
    import cute_walk

    assert callable(cute_walk.compile_walk(SMALL, along))
