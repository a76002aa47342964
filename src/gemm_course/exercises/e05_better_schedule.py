"""Exercise 05: tiles with known costs to programs, so that the last program ends early."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator

from gemm_course.judging.case import Case, Finding, Ran, expect_value
from gemm_course.judging.feedback import counted, row_panel

SLACK = 1.03  # over longest first: other good schedules may be a little later
SHOWN = 24


def draw(rng: random.Random) -> list[Case]:
    """Costs that repeat with the number of programs; a long tile at the end; equal costs; fewer tiles than programs; no
    tiles; one program."""

    def case(costs, programs, *checks):
        text = ", ".join(map(str, costs[:SHOWN])) + (", ..." if len(costs) > SHOWN else "")
        label = f"costs [{text}], {counted(programs, 'program')}"
        return Case({"costs": costs, "programs": programs}, (*checks, "once", "same"), label=label)

    programs, rounds = rng.randint(3, 5), rng.randint(3, 4)
    paired = [rng.randint(40, 60) if tile % programs == 0 else rng.randint(5, 9) for tile in range(programs * rounds)]
    few = rng.randint(3, 4)
    late = [rng.randint(10, 14) for _ in range(3 * few)] + [rng.randint(32, 45)]
    equal = rng.randint(3, 5)
    cost = rng.randint(5, 20)
    return [
        case(paired, programs, "work"),
        case(late, few, "last"),
        case([cost] * equal * rng.randint(3, 4), equal, "uniform"),
        case([cost] * (equal * rng.randint(2, 3) + 1), equal, "uniform"),
        case([rng.randint(5, 20) for _ in range(rng.randint(2, 4))], rng.randint(5, 7), "idle"),
        case([], rng.randint(2, 4), "idle"),
        case([rng.randint(5, 20) for _ in range(rng.randint(3, 5))], 1, "last"),
    ]


def end_of(costs: list[int], order, programs: int) -> int:
    """When the last program ends if the first free program takes the next tile of an order."""
    free = [0] * programs
    for tile in order:
        heapq.heapreplace(free, free[0] + costs[tile])
    return max(free)


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Count tiles, add costs, and compare with the schedules of the lesson."""
    costs, programs, check = case.inputs["costs"], case.inputs["programs"], case.checks[0]
    value = ran.value if isinstance(ran.value, dict) else {}
    schedule = value.get("first")
    if wrong := expect_value(schedule, list) or _malformed(schedule):
        yield Finding("*", wrong)
        return
    if len(schedule) != programs:
        text = f"the schedule has {counted(len(schedule), 'list')} for {counted(programs, 'program')}"
        if check == "idle" and all(schedule):
            yield Finding("idle", f"{text}: a program without a tile needs a list, too, an empty one")
        else:
            yield Finding("*", f"{text}: there must be one for each")
        return

    if value.get("after") != costs:
        yield Finding("same", _changed(costs, value.get("after")))
    elif value.get("second") != schedule:
        yield Finding("same", _another(schedule, value.get("second")))

    times = [sum(line.count(tile) for line in schedule) for tile in range(len(costs))]
    unknown = [(p, tile) for p, line in enumerate(schedule) for tile in line if not 0 <= tile < len(costs)]
    panels = [row_panel(times[:SHOWN], [1] * len(times[:SHOWN]), "how often each tile is computed")] if times else []
    if unknown:
        p, tile = unknown[0]
        has = f"tiles 0 to {len(costs) - 1}" if costs else "no tiles"
        yield Finding("*", f"program {p} is given tile {tile}; there are {has}")
        return
    if times != [1] * len(costs):
        tile = next(t for t, count in enumerate(times) if count != 1)
        by = [p for p, line in enumerate(schedule) if tile in line]
        lost, more = sum(count == 0 for count in times), sum(count > 1 for count in times)
        text = f"tile {tile} of {len(costs)} is computed " + (
            f"{times[tile]} times, by program{'s' * (len(by) > 1)} {', '.join(map(str, by))}" if by else "by no program"
        )
        text += f"; in all, {counted(lost, 'tile')} lost and {counted(more, 'tile')} repeated"
        if more and len(set(costs)) < len(costs):
            text += "\ntiles may have equal costs, so a cost does not identify a tile"
        yield Finding("once", text, panels)
        if check in ("work", "last", "uniform"):
            yield Finding(check, "not compared, since not every tile is computed once", panels)
        return
    if check in ("work", "last", "uniform"):
        yield from _late(check, costs, programs, schedule)


def _malformed(schedule: list) -> str | None:
    """What is wrong with the form of a schedule."""
    for p, line in enumerate(schedule):
        if not isinstance(line, list):
            return f"the schedule must have a list of tiles for each program; that of program {p} is {_brief(line)}"
        for tile in line:
            if type(tile) is not int:
                return f"a program's list holds numbers of tiles, integers; that of program {p} has {_brief(tile)}"
    return None


def _brief(value) -> str:
    if isinstance(value, dict) and value.keys() == {"not"}:
        return f"a {value['not']}"
    return f"{str(value)[:20]} ({type(value).__name__})"


def _changed(costs: list[int], after) -> str:
    if not isinstance(after, list) or len(after) != len(costs):
        left = f"{len(after)} of {len(costs)} costs are left" if isinstance(after, list) else "it is no list any more"
        return (
            f"the list of costs was changed, and {left} after the call: .pop(), .remove() and del change the "
            "caller's\nlist. Work on a copy, such as list(costs)"
        )
    tile = next((t for t, (was, now) in enumerate(zip(costs, after)) if was != now or type(now) is not int), 0)
    now = f"{after[tile]} µs" if type(after[tile]) is int else str(after[tile])[:20]
    text = f"the list of costs was changed: tile {tile} took {costs[tile]} µs before the call, and {now} after."
    if Counter(map(str, after)) == Counter(map(str, costs)):
        return f"{text}\n.sort() changes the caller's list, so the tiles lose their numbers; sorted() makes a new list"
    return f"{text}\nThe caller keeps this list: mark assigned tiles in a list of your own, such as list(costs)"


def _another(schedule: list, second) -> str:
    place = next((p for p, (a, b) in enumerate(zip(schedule, second)) if a != b), 0) if isinstance(second, list) else 0
    got = second[place] if isinstance(second, list) and place < len(second) else second
    return (
        f"called again with the same costs, program {place} gets tiles {str(got)[:40]}, not {schedule[place]}:"
        "\ndoes the function keep anything from the first call, or use random numbers?"
    )


def _late(check: str, costs: list[int], programs: int, schedule: list[list[int]]) -> Iterator[Finding]:
    """Whether the last program ends late, and why."""
    tiles = range(len(costs))
    longest_first = end_of(costs, sorted(tiles, key=lambda tile: -costs[tile]), programs)
    work = [sum(costs[tile] for tile in line) for line in schedule]
    end, last = max(work), work.index(max(work))
    # Sharing by work is one idea, longest first another: the check of the first accepts the list's own order.
    as_listed = end_of(costs, tiles, programs) if check == "work" else 0
    allowed = max(longest_first * SLACK, as_listed)
    if end <= allowed:
        return
    panels = [row_panel(work, [min(busy, int(allowed)) for busy in work], "µs of work of each program")]
    if check != "uniform" and _has_places(costs, programs, schedule):
        text = (
            f"program {last} ends after {end} µs; up to {int(allowed)} µs are accepted\nthe lists hold places in the "
        )
        text += "sorted list of costs: sort the tiles' numbers by their costs, so that a tile keeps its number"
        yield Finding(check, text, panels)
        return
    if check == "uniform":
        fair = -(-len(costs) // programs)
        counts = [len(line) for line in schedule]
        yield Finding(
            check,
            f"program {last} has {counted(counts[last], 'tile')} of {len(costs)} equal ones, and program "
            f"{counts.index(min(counts))} has {min(counts)}; round-robin gives no program more than {fair}",
            panels,
        )
        return
    if check == "work":
        idle = work.index(min(work))
        text = f"program {last} has {end} µs of work, and program {idle} has {min(work)} µs"
        text += f"; up to {int(allowed)} µs are accepted"
        if all(program == tile % programs for program, line in enumerate(schedule) for tile in line):
            text += "\nevery tile went to program tile % programs: that is round-robin, which ignores costs"
        elif end == sum(costs):
            text += "\nall of it went to one program: do you add a tile's cost to its program's total?"
        yield Finding(check, text, panels)
        return
    tile = schedule[last][-1]
    text = f"program {last} ends after {end} µs, and longest-tile-first ends after {longest_first} µs"
    if costs[tile] == max(costs):
        text += f"\nthe longest tile, tile {tile}, takes {costs[tile]} µs and starts after {end - costs[tile]} µs"
    elif why := _dealt(costs, programs, schedule):
        text += f"\n{why}"
    yield Finding(check, text, panels)


def _has_places(costs: list[int], programs: int, schedule: list[list[int]]) -> bool:
    """Whether the lists are longest tile first, but with places in the sorted list in place of tiles' numbers."""
    ranked = sorted(costs, reverse=True)
    lines: list[list[int]] = [[] for _ in range(programs)]
    for cost in ranked:
        min(lines, key=sum).append(cost)
    has = Counter(tuple(sorted(ranked[place] for place in line)) for line in schedule)
    return costs != ranked and has == Counter(tuple(sorted(line)) for line in lines)


def _dealt(costs: list[int], programs: int, schedule: list[list[int]]) -> str:
    """The fixed order in which the longest tiles were dealt, in words; empty if it is none of the known ones."""
    has = Counter(tuple(sorted(costs[tile] for tile in line)) for line in schedule)
    longest = sorted(costs, reverse=True)
    there, back = range(programs), range(programs)[::-1]
    for name, second in (("back and forth", back), ("in turn", there)):
        lines: list[list[int]] = [[] for _ in there]
        for at, cost in enumerate(longest):
            turn, place = divmod(at, programs)
            lines[(second if turn % 2 else there)[place]].append(cost)
        if has == Counter(tuple(sorted(line)) for line in lines):
            return f"longest first, but dealt {name}: give the next tile to the program that is free first"
    return ""
