"""Slots and times of the two persistent walks over groups."""

from __future__ import annotations

import itertools

import pytest

from course_kernels.schedule import CostModel, simulate
from gemm_course.lessons.l13_group_walks import group_by_group, scanned_slots, slots_of

BLOCK = (64, 64, 64)


def slots_by_hand(sizes, N, workers):
    """The loops of the walk group by group, as a worker runs them."""
    looked, own = 0, [0] * workers
    for worker in range(workers):
        for size in sizes:
            count = -(-size // 64) * -(-N // 64)
            for slot in range(count):
                looked += 1
                own[worker] += slot * workers + worker < count
    return looked, own


@pytest.mark.parametrize(
    "sizes", [(64, 128, 192, 256), (0, 65, 0), (), (1000, 1)], ids=["document", "empty", "none", "two"]
)
@pytest.mark.parametrize("workers", [1, 3, 132])
def test_slots_are_those_of_the_loops(sizes, workers):
    found = scanned_slots(sizes, 128, workers, BLOCK)
    looked, own = slots_by_hand(sizes, 128, workers)
    assert (found.group_by_group, found.busiest_group_by_group) == (looked, max(own))
    assert found.one_index == found.tiles == sum(own)
    assert found.busiest <= found.busiest_group_by_group


@pytest.mark.parametrize("workers", [1, 3, 132])
def test_what_each_worker_looks_at_adds_up_to_the_slots(workers):
    sizes = (64, 0, 192, 256)
    found = scanned_slots(sizes, 128, workers, BLOCK)
    scanning = slots_of(sizes, 128, workers, BLOCK, one_index=False)
    indexed = slots_of(sizes, 128, workers, BLOCK, one_index=True)
    assert sum(map(len, scanning)) == found.group_by_group
    assert sum(map(len, indexed)) == found.one_index
    for lines, busiest in ((scanning, found.busiest_group_by_group), (indexed, found.busiest)):
        own = [[group for group in line if group is not None] for line in lines]
        assert sorted(itertools.chain(*own)) == [0] * 2 + [2] * 6 + [3] * 8
        assert max(map(len, own)) == busiest


def test_walks_compute_the_same_tiles_and_one_index_balances_them():
    problems = [(64 * size, 128, 256) for size in (1, 0, 3, 2, 1)]
    timeline = group_by_group(problems, 4, BLOCK)
    balanced = simulate(problems, "round_robin", 4, BLOCK)

    def of(timeline):
        return sorted(span.tile for line in timeline.programs for span in line)

    assert of(timeline) == of(balanced)
    # Seven tile rows, two columns: groups of 2, 0, 6, 4 and 2 tiles each begin with worker 0.
    assert [len(line) for line in timeline.programs] == [5, 5, 2, 2]
    assert [len(line) for line in balanced.programs] == [4, 4, 3, 3]
    assert timeline.makespan > balanced.makespan
    assert timeline.kernels == [(0.0, timeline.makespan)]
    assert all(a.end <= b.start for line in timeline.programs for a, b in itertools.pairwise(line))


def test_times_of_slots_and_groups():
    cost = CostModel(startup_us=1.0)
    (line, idle) = group_by_group([(64, 64, 0), (0, 64, 0), (64, 64, 0)], 2, BLOCK, cost, 0.25, 2.0).programs
    tile = cost.tile_us(0, BLOCK)
    assert [(span.start, span.end) for span in line] == [(2.0, 2.0 + tile), (6.0 + tile, 6.0 + 2 * tile)]
    assert not idle
    assert group_by_group([], 2, BLOCK).kernels == []
