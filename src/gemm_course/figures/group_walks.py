"""Two persistent walks over the tiles of groups: by one index over all of them, and group by group.

The second is that of Helion's example: every worker goes through every group, counts slots up to the number of the
group's tiles, and skips those whose tile is not in the group. Both compute the same tiles; this counts what else they
do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from course_kernels.bench.rows import title_of
from course_kernels.schedule import DEFAULT_BLOCK, CostModel, Span, Timeline, tile_counts, tiles
from gemm_course.figures.shapes import canvas_grid, name_rows, rectangle
from gemm_course.figures.style import GREY, color_of, styled

SLOT_US = 0.01
"""Time to skip a slot: some twenty clocks at 1.75 GHz. An assumption."""

GROUP_US = 0.7
"""Time to start a group: a trip to the L2 cache for its offsets, as ``CostModel.atomic_us``. An assumption."""


class Slots(NamedTuple):
    """What all workers of a persistent kernel look at.

    Attributes:
        tiles: that are computed.
        one_index: numbers that the workers look at when one index counts the tiles of all groups: as many as tiles.
        group_by_group: slots that they look at when each goes through all groups: each worker as many as tiles.
        busiest, busiest_group_by_group: tiles of the worker that has most, in either walk.
    """

    tiles: int
    one_index: int
    group_by_group: int
    busiest: int
    busiest_group_by_group: int


def scanned_slots(sizes: Sequence[int], N: int, workers: int = 132, block: Sequence[int] = DEFAULT_BLOCK) -> Slots:
    """Count what both walks look at.

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
    """What each worker looks at, in order: the group of a tile that it computes, or None for a slot that it skips.

    Args:
        sizes, N, workers, block: as for ``scanned_slots``.
        one_index: the walk by one index over all tiles; otherwise that group by group.
    """
    counts = tile_counts([(size, N, 0) for size in sizes], block[0], block[1])
    if one_index:
        groups = [g for g, count in enumerate(counts) for _ in range(count)]
        return [list(groups[worker::workers]) for worker in range(workers)]
    return [
        [g if slot * workers + worker < count else None for g, count in enumerate(counts) for slot in range(count)]
        for worker in range(workers)
    ]


def recorded_us(rows: Mapping) -> dict[str, dict[str, float]]:
    """Row title, on two lines → provider → microseconds of the product, for the rows of the record "jagged"."""
    return {
        title_of(row, lines=2): {name: time["median_us"] for name, time in row["us"]["forward"].items()}
        for row in rows.values()
    }


@styled()
def slots(walks: Mapping[str, Sequence[Sequence[int | None]]]) -> Figure:
    """Draw what each worker looks at: a tile that it computes, in its group's colour, or a skipped slot, empty.

    Args:
        walks: title → what ``slots_of`` returns. All panels have one scale.
    """
    fig, axes = canvas_grid(sum(0.32 * len(lines) + 0.85 for lines in walks.values()), len(walks), 1, sharex=True)
    longest = max((len(line) for lines in walks.values() for line in lines), default=1)
    for ax, (title, lines) in zip(axes, walks.items(), strict=True):
        for worker, line in enumerate(lines):
            for at, group in enumerate(line):
                skipped = group is None
                look = dict(fc="none", ec=GREY, ls=":") if skipped else dict(fc=color_of(group), ec="white")
                gid = "skipped" if skipped else f"group {group}"
                rectangle(ax, at + 0.06, worker - 0.36, 0.88, 0.72, lw=0.9, gid=gid, **look)
        name_rows(ax, [f"worker {worker}" for worker in range(len(lines))])
        ax.set(title=title, xlim=(0, longest))
        ax.spines["bottom"].set_visible(False)
        ax.set_xticks([])
    return fig


def group_by_group(
    problems: Iterable[Sequence[int]],
    programs: int = 132,
    block: Sequence[int] = DEFAULT_BLOCK,
    cost: CostModel | None = None,
    slot_us: float = SLOT_US,
    group_us: float = GROUP_US,
) -> Timeline:
    """Simulate the walk group by group; ``course_kernels.schedule.simulate`` is that by one index.

    Args:
        problems: (M, N, K) of each group.
        programs, block, cost: as for ``simulate``.
        slot_us, group_us: to skip a slot, and to start a group.

    Returns:
        A timeline, its order named "group_by_group". Its last span ends when the last tile is stored; what workers skip
        after that is left out.
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
