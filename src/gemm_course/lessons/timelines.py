"""Timelines as lists of `Bar`, made from the simulator or from two kinds of record, and their utilisation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from course_kernels.schedule import Timeline


class Bar(NamedTuple):
    """One tile on one line of a timeline."""

    row: int  # program or SM
    start: float  # µs
    end: float  # µs
    problem: int  # its position in the list decides the colour


class Usage(NamedTuple):
    """How well the rows of a timeline are used."""

    makespan: float  # µs from time 0 to the end of the last bar
    utilisation: float  # share of rows × makespan covered by at least one bar, 0 to 1; 1 without bars


def simulated_bars(simulated: Timeline) -> list[Bar]:
    """Turn the timeline of `course_kernels.schedule.simulate` into bars, one row per program."""
    return [
        Bar(program, span.start, span.end, span.tile.problem)
        for program, line in enumerate(simulated.programs)
        for span in line
    ]


def recorded_bars(recorded: Mapping, by: str = "sm") -> list[Bar]:
    """Turn one entry of `sm_timelines.json` into bars that begin at 0, one row per "sm" or "program".

    The entry's "tiles" are [tile, problem, m, n, program, sm, start_ns, end_ns].
    """
    if by not in ("sm", "program"):
        raise ValueError(f"by is {by!r}; want 'sm' or 'program'")
    column = 5 if by == "sm" else 4
    return _from_zero((tile[column], tile[6], tile[7], tile[1]) for tile in recorded["tiles"])


def tile_gaps(recorded: Mapping, same_problem: bool) -> list[float]:
    """Microseconds from each tile's end to the start of its program's next one, in an entry of `sm_timelines.json`.

    Only the gaps within a problem are listed, or, without ``same_problem``, those at a change of problem.
    """
    gaps, last = [], {}
    for _, problem, _, _, program, _, start, end in sorted(recorded["tiles"], key=lambda tile: tile[6]):
        if program in last and (last[program][0] == problem) == same_problem:
            gaps.append((start - last[program][1]) / 1e3)
        last[program] = problem, end
    return gaps


def tile_lengths(recorded: Mapping) -> list[tuple[int, float]]:
    """(steps of the K loop, microseconds) of each tile of an entry of `sm_timelines.json`."""
    steps = [-(-k // recorded["block"][2]) for _, _, k in recorded["problems"]]
    return [(steps[tile[1]], (tile[7] - tile[6]) / 1e3) for tile in recorded["tiles"]]


def step_times(recorded: Mapping) -> list[float]:
    """Median microseconds per step of the K loop, of the programs' first tiles, of their second ones, and so on."""
    places: dict[int, list[float]] = {}
    seen: dict[int, int] = {}
    for tile, (steps, us) in sorted(zip(recorded["tiles"], tile_lengths(recorded)), key=lambda pair: pair[0][6]):
        place = seen[tile[4]] = seen.get(tile[4], -1) + 1
        places.setdefault(place, []).append(us / steps)
    return [statistics.median(times) for times in places.values()]


def launch_bars(recorded: Mapping) -> list[Bar]:
    """Turn one entry of `launches.json` into bars that begin at 0, one row per SM.

    The entry's "tiles" are [problem, program, sm, start_ns, end_ns].
    """
    return _from_zero((tile[2], tile[3], tile[4], tile[0]) for tile in recorded["tiles"])


def launch_panels(recorded: Mapping, names: Sequence[str]) -> dict[str, list[Bar]]:
    """Bars of several entries of `launches.json`. The SMs of the first entry's first problem are the top rows."""
    used = {sm for problem, _, sm, *_ in recorded[names[0]]["tiles"] if problem == 0}
    every = {tile[2] for name in names for tile in recorded[name]["tiles"]}
    place = {sm: row for row, sm in enumerate(sorted(every, key=lambda sm: (sm not in used, sm)))}
    return {name: [bar._replace(row=place[bar.row]) for bar in launch_bars(recorded[name])] for name in names}


def _from_zero(tiles: Iterable[tuple[int, int, int, int]]) -> list[Bar]:
    """Bars from (row, start, end, problem) with times in nanoseconds."""
    listed = list(tiles)
    first = min((start for _, start, _, _ in listed), default=0)
    return [Bar(row, (start - first) / 1e3, (end - first) / 1e3, problem) for row, start, end, problem in listed]


def problem_spans(bars: Iterable[Sequence]) -> list[tuple[float, float, int]]:
    """(first start, last end, problem) of each problem, by start."""
    spans: dict[int, tuple[float, float]] = {}
    for _, start, end, problem in bars:
        low, high = spans.get(problem, (start, end))
        spans[problem] = (min(low, start), max(high, end))
    return sorted((low, high, problem) for problem, (low, high) in spans.items())


def time_to_pass(bars: Iterable[Sequence]) -> float:
    """Microseconds from a problem's first start to the next one's, on average: what it takes to walk past a problem.

    Raises:
        ValueError: ``bars`` are of fewer than two problems.
    """
    starts = [start for start, _, _ in problem_spans(bars)]
    if len(starts) < 2:
        raise ValueError(f"bars must be of two problems or more, got {len(starts)}")
    return (starts[-1] - starts[0]) / (len(starts) - 1)


def sorted_rows(bars: Iterable[Sequence]) -> list[Bar]:
    """The same bars with their rows in another order: those that go through the same problems are neighbours."""
    _, lines = lines_of(listed := list(bars), None)
    order = sorted(lines, key=lambda row: [problem for _, _, problem in lines[row]])
    place = {row: position for position, row in enumerate(order)}
    return [Bar(place[row], start, end, problem) for row, start, end, problem in listed]


def measure(bars: Iterable[Sequence], rows: int | None = None) -> Usage:
    """Measure a timeline. Two tiles that share a row at the same time count once.

    Args:
        bars: (row, start, end, problem) each; times in microseconds.
        rows: number of rows; by default as many as the highest row needs.
    """
    rows, lines = lines_of(bars, rows)
    makespan = max((end for line in lines.values() for _, end, _ in line), default=0.0)
    if not makespan:
        return Usage(0.0, 1.0)
    busy = 0.0
    for line in lines.values():
        reached = float("-inf")
        for start, end, _ in line:
            busy += max(0.0, end - max(start, reached))
            reached = max(reached, end)
    return Usage(makespan, busy / (rows * makespan))


def lines_of(bars: Iterable[Sequence], rows: int | None) -> tuple[int, dict[int, list[tuple[float, float, int]]]]:
    """Sort bars into rows, each by time, and count the rows."""
    lines: dict[int, list[tuple[float, float, int]]] = {}
    for row, start, end, problem in bars:
        if end < start:
            raise ValueError(f"bars has one on row {row} from {start} to {end}; want an end after the start")
        lines.setdefault(row, []).append((start, end, problem))
    needed = max(lines, default=0) + 1
    if rows is None:
        rows = needed
    if min(lines, default=0) < 0 or needed > rows:
        raise ValueError(f"bars lie on rows {min(lines)} to {max(lines)}; want 0 to {rows - 1}")
    for line in lines.values():
        line.sort()
    return rows, lines
