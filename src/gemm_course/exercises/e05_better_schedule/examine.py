"""Exercise 05: tiles with known costs to programs, so that the last program ends early."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator

from gemm_course.judging.case import Case, Finding, Ran, expect_value
from gemm_course.judging.cause_sentences import counted
from gemm_course.judging.panels import row_panel

SLACK = 1.03  # over longest first: other good schedules may be a little later
SHOWN = 24


def draw(rng: random.Random) -> list[Case]:
    """Costs that repeat with the number of programs; a long tile at the end; equal costs; fewer tiles than programs; no
    tiles; one program; one tile that takes longer than a fair share of all work."""

    def case(costs, programs, *checks):
        text = ", ".join(map(str, costs[:SHOWN])) + (", ..." if len(costs) > SHOWN else "")
        label = f"costs [{text}], {counted(programs, 'program')}"
        return Case({"costs": costs, "programs": programs}, (*checks, "once", "same"), label=label)

    # No two of these cases have equally many programs: what an answer keeps for a number of programs shows only where
    # it is asked twice.
    few = rng.choice([3, 4])
    programs, equal = rng.sample([count for count in (3, 4, 5) if count != few], 2)
    rounds, cost = rng.randint(3, 4), rng.randint(5, 20)

    def paired():
        return [rng.randint(40, 60) if tile % programs == 0 else rng.randint(5, 9) for tile in range(programs * rounds)]

    def late():
        return [rng.randint(10, 14) for _ in range(3 * few)] + [rng.randint(32, 45)]

    # With equally many of these tiles for each program, the one with the long tile would end late.
    much = [rng.randint(2, 4) for _ in range(8 * rng.randint(4, 5) - 1)]
    much.insert(rng.randint(3, 8), rng.randint(40, 50))

    return [
        case(_telling("work", paired, programs), programs, "work"),
        case(_telling("last", late, few), few, "last"),
        case([cost] * equal * rng.randint(3, 4), equal, "uniform"),
        case([cost] * (equal * rng.randint(2, 3) + 1), equal, "uniform"),
        case([rng.randint(5, 20) for _ in range(rng.randint(2, 4))], rng.randint(6, 7), "idle"),
        case([], rng.randint(2, 4), "idle"),
        case([rng.randint(5, 20) for _ in range(rng.randint(3, 5))], 1, "last"),
        case(much, 8, "last"),
    ]


def _first_free(costs, programs: int, order, adds: bool = True) -> list[list[int]]:
    """Tiles in an order, each to the program that is free first; its total is its last tile's cost if none is added."""
    lines: list[list[int]] = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for tile in order:
        busy, program = free[0]
        lines[program].append(tile)
        heapq.heapreplace(free, (busy * adds + costs[tile], program))
    return lines


def _dealt(programs: int, order, back: bool = False) -> list[list[int]]:
    """Tiles in an order, one to each program in turn; if `back`, every second turn is from the last to the first."""
    lines: list[list[int]] = [[] for _ in range(programs)]
    for at, tile in enumerate(order):
        turn, place = divmod(at, programs)
        lines[programs - 1 - place if back and turn % 2 else place].append(tile)
    return lines


def _in_rounds(costs, programs: int) -> list[list[int]]:
    """In each round one of the longest tiles to each program, the longest to the one with the least work."""
    lines: list[list[int]] = [[] for _ in range(programs)]
    order = _by_cost(costs)
    for at in range(0, len(order), programs):
        by_work = sorted(range(programs), key=lambda program: sum(costs[tile] for tile in lines[program]))
        for program, tile in zip(by_work, order[at : at + programs]):
            lines[program].append(tile)
    return lines


def _filled(costs, programs: int) -> list[list[int]]:
    """Tiles as listed to one program, until it has more than an equal share, then to the next."""
    lines: list[list[int]] = [[] for _ in range(programs)]
    program, work = 0, 0
    for tile, cost in enumerate(costs):
        lines[program].append(tile)
        work += cost
        if work > sum(costs) / programs and program < programs - 1:
            program, work = program + 1, 0
    return lines


def _by_cost(costs) -> list[int]:
    """The tiles, longest first."""
    return sorted(range(len(costs)), key=lambda tile: -costs[tile])


# Schedules of other ideas than the longest tile first. Those in `_SHARE` share the work. No draw lets one of these earn
# a point that it does not earn in every draw.
_OTHERS = {
    "listed": lambda costs, programs: _first_free(costs, programs, range(len(costs))),
    "from the end": lambda costs, programs: _first_free(costs, programs, reversed(range(len(costs)))),
    "shortest": lambda costs, programs: _first_free(costs, programs, _by_cost(costs)[::-1]),
    "roughly": lambda costs, programs: _first_free(
        costs, programs, sorted(range(len(costs)), key=lambda tile: -costs[tile] // programs)
    ),
    "rounds": _in_rounds,
    "back and forth": lambda costs, programs: _dealt(programs, _by_cost(costs), back=True),
    "in turn": lambda costs, programs: _dealt(programs, _by_cost(costs)),
    "round-robin": lambda costs, programs: _dealt(programs, range(len(costs))),
    "places": lambda costs, programs: _first_free(sorted(costs, reverse=True), programs, range(len(costs))),
    "filled": _filled,
    "last cost": lambda costs, programs: _first_free(costs, programs, _by_cost(costs), adds=False),
    "last cost, as listed": lambda costs, programs: _first_free(costs, programs, range(len(costs)), adds=False),
}
_SHARE = ("listed", "shortest", "roughly", "rounds", "back and forth", "in turn")


def _telling(check: str, costs_of, programs: int) -> list[int]:
    """Costs of which the schedules of `_OTHERS` pass a check or fail it as in every draw."""
    while True:
        costs = costs_of()
        allowed = _allowed(check, costs, programs)
        early = [name for name, rule in _OTHERS.items() if _end(costs, rule(costs, programs)) <= allowed]
        if early == [name for name in _OTHERS if check == "work" and name in _SHARE]:
            return costs


def _end(costs, schedule) -> int:
    """When the last program ends."""
    return max(sum(costs[tile] for tile in line) for line in schedule)


def _longest_first(costs, programs: int) -> int:
    """When the last program ends if each takes the longest tile that is left."""
    return _end(costs, _first_free(costs, programs, _by_cost(costs)))


def _allowed(check: str, costs, programs: int) -> int:
    """The latest end that passes.

    Sharing by work is one idea, longest first another: the check of the first accepts the list's own order.
    """
    as_listed = _end(costs, _OTHERS["listed"](costs, programs)) if check == "work" else 0
    return max(int(_longest_first(costs, programs) * SLACK), as_listed)


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
        cost = "; the lists hold numbers of tiles, not their costs" if tile in costs else ""
        yield Finding("*", f"program {p} is given tile {tile}; there are {has}{cost}")
        return
    if costs and not any(schedule):
        yield Finding("*", f"no program is given a tile: all {programs} lists are empty")
        return
    if times != [1] * len(costs):
        tile = next(t for t, count in enumerate(times) if count != 1)
        by = [p for p, line in enumerate(schedule) if tile in line]
        lost, more = sum(count == 0 for count in times), sum(count > 1 for count in times)
        text = f"tile {tile} of {len(costs)} is computed " + (
            f"{times[tile]} times, by program{'s' * (len(by) > 1)} {', '.join(map(str, by))}" if by else "by no program"
        )
        text += f"; in all, {counted(lost, 'tile')} lost and {counted(more, 'tile')} repeated"
        same = bool(schedule[0]) and len(schedule) > 1 and all(line == schedule[0] for line in schedule)
        if same:
            text += "\nall programs have the same list: [[]] * programs is one list under several names; "
            text += "[[] for _ in range(programs)] makes one for each"
        elif more and len(set(costs)) < len(costs):
            text += "\ntiles may have equal costs, so a cost does not identify a tile"
        yield Finding("once", text, panels)
        if check in ("work", "last", "uniform"):
            yield Finding(check, "not compared, since not every tile is computed once", panels)
        return
    if check in ("work", "last", "uniform"):
        yield from _late(check, costs, programs, schedule)


def _malformed(schedule: list) -> str | None:
    """The mistake in the form of a schedule."""
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
        remaining = (
            f"{len(after)} of {len(costs)} costs are left" if isinstance(after, list) else "it is no list any more"
        )
        return (
            f"the list of costs was changed, and {remaining} after the call: .pop(), .remove() and del change the "
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
    """A finding if the last program ends late, with the reason."""
    work = [sum(costs[tile] for tile in line) for line in schedule]
    end, last = max(work), work.index(max(work))
    allowed = _allowed(check, costs, programs)
    if end <= allowed:
        return
    panels = [row_panel(work, [min(busy, allowed) for busy in work], "µs of work of each program")]
    from_the_end = check != "uniform" and _lines(schedule) == _lines(_OTHERS["from the end"](costs, programs))
    if check != "uniform" and not from_the_end and _like("places", costs, programs, schedule):
        text = f"program {last} ends after {end} µs; up to {allowed} µs are accepted\nthe lists hold places in the "
        text += "sorted list of costs: sort the tiles' numbers by their costs, so that a tile keeps its number"
        yield Finding(check, text, panels)
        return
    why = _wrong_totals(costs, programs, schedule)
    if from_the_end:
        why = "\nthe tiles came by their numbers, the last one first: sort them by their costs"
    if check == "uniform":
        fair = -(-len(costs) // programs)
        counts = [len(line) for line in schedule]
        yield Finding(
            check,
            f"program {last} has {counted(counts[last], 'tile')} of {len(costs)} equal ones, and program "
            f"{counts.index(min(counts))} has {min(counts)}; round-robin gives no program more than {fair}{why}",
            panels,
        )
        return
    if check == "work":
        idle = work.index(min(work))
        text = f"program {last} has {end} µs of work, and program {idle} has {min(work)} µs"
        text += f"; up to {allowed} µs are accepted"
        if all(program == tile % programs for program, line in enumerate(schedule) for tile in line):
            text += "\nevery tile went to program tile % programs: that is round-robin, which ignores costs"
        yield Finding(check, text + why, panels)
        return
    tile = schedule[last][-1]
    text = f"program {last} ends after {end} µs, and longest-tile-first ends after {_longest_first(costs, programs)} µs"
    dealt = next((name for name in ("back and forth", "in turn") if _like(name, costs, programs, schedule)), "")
    if why:
        text += why
    elif costs[tile] == max(costs):
        text += f"\nthe longest tile, tile {tile}, takes {costs[tile]} µs and starts after {end - costs[tile]} µs"
    elif dealt:
        text += f"\nlongest first, but dealt {dealt}: give the next tile to the program that is free first"
    elif max(map(len, schedule)) - min(map(len, schedule)) < 2:
        text += "\nall programs have about equally many tiles: share the time, not the tiles"
    yield Finding(check, text, panels)


def _wrong_totals(costs: list[int], programs: int, schedule: list[list[int]]) -> str:
    """The mistake in the programs' totals; "" if none shows."""
    if programs > 1 and sum(map(bool, schedule)) == 1 and len(costs) > 1:
        if not schedule[0]:  # with equal totals the first program comes first, if the least is taken
            return "\neach tile went to the program with the most work: take the one with the least"
        return (
            "\nall of it went to one program, which always came first: add the tile's cost to its total, and let"
            "\nheapreplace put that in its place. An entry that is changed where it is stays first, and heappush alone "
            "leaves the old one"
        )
    if any(_like(name, costs, programs, schedule) for name in ("last cost", "last cost, as listed")):
        return "\na program's total is its last tile's cost here: add the cost to the total"
    return ""


def _lines(schedule: list[list[int]]) -> list[list[int]]:
    """The programs' tiles, without an order of programs or tiles."""
    return sorted(map(sorted, schedule))


def _like(name: str, costs: list[int], programs: int, schedule: list[list[int]]) -> bool:
    """True if a rule in `_OTHERS` gives this schedule, up to the order of programs and of tiles of equal cost."""
    costs_of = sorted(costs, reverse=True) if name == "places" else costs
    has, rule = (
        Counter(tuple(sorted(costs_of[tile] for tile in line)) for line in lines)
        for lines in (schedule, _OTHERS[name](costs, programs))
    )
    return has == rule and (name != "places" or costs != costs_of)
