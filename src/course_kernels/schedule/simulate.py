"""When each program computes each tile, under a cost model of one line per effect."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from course_kernels.schedule.orders import (
    DEFAULT_BLOCK,
    STATIC_ORDERS,
    Tile,
    check_block,
    check_order,
    check_positive,
    check_problems,
    deal,
    strip_height,
    tiles,
)

__all__ = ["CostModel", "LowerBounds", "Span", "Timeline", "one_launch_per_problem", "simulate"]


@dataclass(frozen=True)
class CostModel:
    """What a tile costs one program that has a multiprocessor to itself; times in microseconds.

    A tile costs `startup_us`, then one step per BLOCK_K elements of K, then the store of the full block. A
    step takes as long as the slower of its arithmetic and its operand loads.

    Args:
        tflops_per_program: arithmetic of one program in TFLOP/s. A dense bfloat16 GEMM of 8192 x 2048 x 1024 runs at
            658 TFLOP/s on the 132 multiprocessors of an H200 (measured), so 5 each: 0.84 us for a 128 x 256 x 64 step.
        load_gb_per_s: operands that one program can read, in GB/s: 64 bytes a clock from the L2 cache at 1.75 GHz. It
            makes small tiles inefficient, as they are. An assumption.
        store_gb_per_s: results that one program writes, in GB/s. A copy on an H200 moves 4.27 TB/s (measured), 32 GB/s
            a multiprocessor: 2.0 us for a 128 x 256 block of 16-bit elements.
        startup_us: from knowing the tile to its first multiplication: one trip to memory. An assumption.
        atomic_us: to fetch each tile's number from a counter in the L2 cache, in the `dynamic` order. An assumption.
        launch_us: from the end of one kernel to the first tile of the next. Four problems of 128^3 took 16 us as four
            kernels in a CUDA graph on an H200 (measured): 4 us each, next to no arithmetic. Python adds to it.
        itemsize: bytes per operand and result element.

    Raises:
        ValueError: a rate or `itemsize` that is not positive, or a negative time.

    Notes:
        Simplifications: programs do not slow each other down (the rates are those of a busy chip), two programs on one
        multiprocessor do not overlap, a boundary tile costs as much as a full one (masked elements are multiplied,
        too), and a miss in the L2 cache costs no time (`bytes_moved` counts the misses).
    """

    tflops_per_program: float = 5.0
    load_gb_per_s: float = 112.0
    store_gb_per_s: float = 32.0
    startup_us: float = 1.0
    atomic_us: float = 0.7
    launch_us: float = 4.0
    itemsize: int = 2

    def __post_init__(self) -> None:
        for name in ("tflops_per_program", "load_gb_per_s", "store_gb_per_s", "itemsize"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; want more than 0")
        for name in ("startup_us", "atomic_us", "launch_us"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; want at least 0")

    def k_step_us(self, block: Sequence[int] = DEFAULT_BLOCK) -> float:
        """Time of one BLOCK_K step of the main loop, in microseconds."""
        block_m, block_n, block_k = block
        arithmetic = 2 * block_m * block_n * block_k / (self.tflops_per_program * 1e6)
        loads = (block_m + block_n) * block_k * self.itemsize / (self.load_gb_per_s * 1e3)
        return max(arithmetic, loads)

    def epilogue_us(self, block: Sequence[int] = DEFAULT_BLOCK) -> float:
        """Time of storing one full block, in microseconds."""
        return block[0] * block[1] * self.itemsize / (self.store_gb_per_s * 1e3)

    def tile_us(self, k: int, block: Sequence[int] = DEFAULT_BLOCK) -> float:
        """Time of one tile whose sums have `k` elements, in microseconds."""
        return self.startup_us + -(-k // block[2]) * self.k_step_us(block) + self.epilogue_us(block)


class Span(NamedTuple):
    """One tile on one program's line; times in microseconds."""

    tile: Tile
    start: float
    end: float


class LowerBounds(NamedTuple):
    """No schedule on the same programs finishes earlier than either; in microseconds."""

    work: float  # all tiles' time, divided by the number of programs
    longest: float  # the most expensive single tile


@dataclass(frozen=True)
class Timeline:
    """Which tile ran on which program from when to when.

    Args:
        order: the scheme that made it.
        block: (BLOCK_M, BLOCK_N, BLOCK_K).
        problems: (M, N, K) of each problem.
        programs: one list of spans per program, in time order. A gap between spans is time in which the
            program fetched its next tile's number or waited for a launch.
        kernels: (start, end) of each kernel in microseconds, the first at 0; empty without tiles.
    """

    order: str
    block: tuple[int, int, int]
    problems: list[tuple[int, int, int]]
    programs: list[list[Span]]
    cost: CostModel
    kernels: list[tuple[float, float]] = field(default_factory=list)

    @property
    def tile_count(self) -> int:
        """Tiles over all programs."""
        return sum(len(line) for line in self.programs)

    @property
    def finish(self) -> list[float]:
        """When each program ends its last tile, in microseconds; 0 for one that had none."""
        return [line[-1].end if line else 0.0 for line in self.programs]

    @property
    def busy(self) -> list[float]:
        """How long each program computes, in microseconds, gaps left out."""
        return [sum(span.end - span.start for span in line) for line in self.programs]

    @property
    def makespan(self) -> float:
        """When the last program ends, in microseconds."""
        return max(self.finish, default=0.0)

    @property
    def utilisation(self) -> float:
        """Share of programs x makespan spent computing, 0 to 1; 1 if there was nothing to do."""
        return sum(self.busy) / (len(self.programs) * self.makespan) if self.tile_count else 1.0

    @property
    def lower_bounds(self) -> LowerBounds:
        """Two times that no schedule of these tiles on as many programs beats, in microseconds."""
        longest = max((span.end - span.start for line in self.programs for span in line), default=0.0)
        return LowerBounds(sum(self.busy) / len(self.programs), longest)

    @property
    def waves(self) -> int:
        """Tiles that the busiest program must compute at least: ceil(tiles / programs)."""
        return -(-self.tile_count // len(self.programs))

    @property
    def wave_quantisation(self) -> float:
        """Share of the slots in whole waves that hold a tile: tiles / (waves x programs); 1 without tiles.

        It is the best utilisation that any schedule reaches when all tiles cost the same.
        """
        return self.tile_count / (self.waves * len(self.programs)) if self.tile_count else 1.0

    @property
    def imbalance(self) -> float:
        """The busiest program's computing time over the mean; 1 is perfect, and the value without tiles."""
        return max(self.busy) / self.lower_bounds.work if self.tile_count else 1.0

    @property
    def tail_us(self) -> float:
        """From the moment the first program has nothing left to do until the last ends, in microseconds."""
        return self.makespan - min(self.finish, default=0.0)

    @property
    def tail_share(self) -> float:
        """Share of programs x makespan lost between each program's end and the makespan, 0 to 1."""
        if not self.tile_count:
            return 0.0
        return 1.0 - sum(self.finish) / (len(self.programs) * self.makespan)


def _static(dealt: list[list[Tile]], us_of: dict[int, float]) -> list[list[Span]]:
    """Put each program's tiles end to end."""
    lines = []
    for share in dealt:
        now, line = 0.0, []
        for tile in share:
            end = now + us_of[tile.k]
            line.append(Span(tile, now, end))
            now = end
        lines.append(line)
    return lines


def _first_free(
    queue: list[Tile], us_of: dict[int, float], programs: int, start: float = 0.0, fetch_us: float = 0.0
) -> list[list[Span]]:
    """Give each tile in turn to the program that is free first; ties go to the lowest program."""
    lines: list[list[Span]] = [[] for _ in range(programs)]
    free = [(start, p) for p in range(programs)]
    for tile in queue:
        now, p = free[0]
        begin = now + fetch_us
        end = begin + us_of[tile.k]
        lines[p].append(Span(tile, begin, end))
        heapq.heapreplace(free, (end, p))
    return lines


def _prepare(problems, programs, block, cost, group_m):
    """Check the arguments of both simulators; return them with the tiles and the time of a tile by its K."""
    problems = check_problems(problems)
    programs = check_positive("programs", programs)
    block = check_block(block)
    if len(block) != 3:
        raise ValueError(f"block is {block}; want (BLOCK_M, BLOCK_N, BLOCK_K): times depend on BLOCK_K")
    cost = CostModel() if cost is None else cost
    if not isinstance(cost, CostModel):
        raise TypeError(f"cost is a {type(cost).__name__}; want a CostModel or None")
    found = tiles(problems, block[0], block[1], group_m)
    us_of = {k: cost.tile_us(k, block) for _, _, k in problems}
    return problems, programs, block, cost, found, us_of


def simulate(
    problems: Iterable[Sequence[int]],
    order: str = "round_robin",
    programs: int = 132,
    block: Sequence[int] = DEFAULT_BLOCK,
    cost: CostModel | None = None,
    group_m: int | None = None,
) -> Timeline:
    """Simulate one launch in which a fixed number of programs computes the tiles of all problems; deterministic.

    Args:
        problems: (M, N, K) of each problem, in elements.
        order: one of `ORDERS`.
        programs: how many programs share the tiles; 132 is one per multiprocessor of an H200.
        block: (BLOCK_M, BLOCK_N, BLOCK_K).
        cost: times of a tile; by default `CostModel()`.
        group_m: tile rows in a strip (see `tiles`); by default 8 for `swizzled`, else 1.

    Raises:
        TypeError: a problem, the block or the cost has the wrong form.
        ValueError: an extent out of range or an unknown order.

    Notes:
        `dynamic` and `largest_first` are list schedules: with free fetches they end within
        `work + longest` of `lower_bounds` (R. L. Graham, Bounds on multiprocessing timing anomalies, 1969).
    """
    height = strip_height(check_order(order), group_m)
    problems, programs, block, cost, found, us_of = _prepare(problems, programs, block, cost, height)
    if order in STATIC_ORDERS:
        lines = _static(deal(found, order, programs), us_of)
    elif order == "largest_first":
        lines = _first_free(sorted(found, key=lambda tile: -us_of[tile.k]), us_of, programs)
    else:
        lines = _first_free(found, us_of, programs, fetch_us=cost.atomic_us)
    timeline = Timeline(order, block, problems, lines, cost)
    if found:
        timeline.kernels.append((0.0, timeline.makespan))
    return timeline


def one_launch_per_problem(
    problems: Iterable[Sequence[int]],
    programs: int = 132,
    block: Sequence[int] = DEFAULT_BLOCK,
    cost: CostModel | None = None,
    group_m: int = 1,
) -> Timeline:
    """Simulate a loop that launches one kernel per problem, each waiting for the one before.

    Args, Raises: as `simulate`; `programs` is the number of tiles that the GPU runs at once.

    Returns:
        The timeline, its order named `one_launch_per_problem`. The first kernel starts at 0: its launch, which every
        method needs, is left out. A problem without tiles launches nothing.
    """
    problems, programs, block, cost, found, us_of = _prepare(problems, programs, block, cost, group_m)
    lines: list[list[Span]] = [[] for _ in range(programs)]
    timeline = Timeline("one_launch_per_problem", block, problems, lines, cost)
    of_problem: dict[int, list[Tile]] = {}
    for tile in found:
        of_problem.setdefault(tile.problem, []).append(tile)
    for queue in of_problem.values():
        start = timeline.kernels[-1][1] + cost.launch_us if timeline.kernels else 0.0
        added = _first_free(queue, us_of, programs, start)
        for line, more in zip(lines, added, strict=True):
            line.extend(more)
        timeline.kernels.append((start, max(line[-1].end for line in added if line)))
    return timeline
