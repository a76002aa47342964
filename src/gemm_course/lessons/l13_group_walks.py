"""Two persistent walks over the tiles of groups: by one index over all of them, and group by group.

Helion's example walks group by group: every worker goes through every group, counts slots up to the number of the
group's tiles, and skips those of other workers. Both walks compute the same tiles. This module counts their extra work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from course_kernels.schedule import DEFAULT_BLOCK, CostModel, Span, Timeline, tile_counts, tiles

SLOT_US = 0.01
"""Time to skip a slot: some twenty clocks at 1.75 GHz. An assumption."""

GROUP_US = 0.7
"""Time to start a group: a trip to the L2 cache for its offsets, as ``CostModel.atomic_us``. An assumption."""


class Slots(NamedTuple):
    """The number of slots that all workers of a persistent kernel visit in each walk.

    Attributes:
        tiles: number of computed tiles.
        one_index: slots visited when one index counts the tiles of all groups: one per tile.
        group_by_group: slots visited when each worker goes through all groups: one per tile and worker.
        busiest, busiest_group_by_group: tiles of the worker with the most tiles, in each walk.
    """

    tiles: int
    one_index: int
    group_by_group: int
    busiest: int
    busiest_group_by_group: int


def scanned_slots(sizes: Sequence[int], N: int, workers: int = 132, block: Sequence[int] = DEFAULT_BLOCK) -> Slots:
    """Count the slots that the workers visit in both walks.

    Args:
        sizes: rows of each group.
        N: columns of the shared B.
        workers: programs of the launch.
        block: (BLOCK_M, BLOCK_N, ...).
    """
    counts = tile_counts([(size, N, 0) for size in sizes], block[0], block[1])
    total = sum(counts)
    # Every group begins with worker 0 again.
    restarted = sum(-(-count // workers) for count in counts)
    return Slots(total, total, workers * total, -(-total // workers), restarted)


def slots_of(
    sizes: Sequence[int], N: int, workers: int = 132, block: Sequence[int] = DEFAULT_BLOCK, *, one_index: bool
) -> list[list[int | None]]:
    """List each worker's slots in order: the group of a tile that it computes, or None for a slot that it skips.

    Args:
        sizes, N, workers, block: as for ``scanned_slots``.
        one_index: walk by one index over all tiles; otherwise group by group.
    """
    counts = tile_counts([(size, N, 0) for size in sizes], block[0], block[1])
    if one_index:
        groups = [g for g, count in enumerate(counts) for _ in range(count)]
        return [list(groups[worker::workers]) for worker in range(workers)]
    return [
        [g if slot * workers + worker < count else None for g, count in enumerate(counts) for slot in range(count)]
        for worker in range(workers)
    ]


def group_by_group(
    problems: Iterable[Sequence[int]],
    programs: int = 132,
    block: Sequence[int] = DEFAULT_BLOCK,
    cost: CostModel | None = None,
    slot_us: float = SLOT_US,
    group_us: float = GROUP_US,
) -> Timeline:
    """Simulate the walk group by group; ``course_kernels.schedule.simulate`` simulates the walk by one index.

    Args:
        problems: (M, N, K) of each group.
        programs, block, cost: as for ``simulate``.
        slot_us, group_us: time to skip a slot, and to start a group.

    Returns:
        A timeline, its order named "group_by_group". Its last span ends when the last tile is stored; later skipped
        slots are left out.
    """
    problems = [tuple(problem) for problem in problems]
    cost = CostModel() if cost is None else cost
    found = tiles(problems, block[0], block[1])
    us_of = {k: cost.tile_us(k, block) for _, _, k in problems}
    lines: list[list[Span]] = [[] for _ in range(programs)]
    now = [0.0] * programs
    first = 0
    for (m, _, _), count in zip(problems, tile_counts(problems, block[0], block[1])):
        tiles_m = -(-m // block[0])
        for program in range(programs):
            now[program] += group_us
            own = range(program, count, programs)
            for index in own:
                # Down the columns: neighbours share a block of B.
                row, column = index % tiles_m, index // tiles_m
                tile = found[first + row * (count // tiles_m) + column]
                end = now[program] + us_of[tile.k]
                lines[program].append(Span(tile, now[program], end))
                now[program] = end
            now[program] += (count - len(own)) * slot_us
        first += count
    timeline = Timeline("group_by_group", tuple(block), problems, lines, cost)
    if found:
        timeline.kernels.append((0.0, timeline.makespan))
    return timeline
