"""Exercise 04a: one walk over the tiles of problems of many sizes, some of them empty, counted column by column."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

from gemm_course.exercises.e04a_tile_walk.run import BARE, BLOCK_M, BLOCK_N, LOG, grid_of
from gemm_course.exercises.e04a_tile_walk.walks import Tile, Walk, explain
from gemm_course.exercises.tile_orders import about_turns, difference, first_difference, pictures
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.cause_sentences import counted
from gemm_course.judging.causes import Causes, Words

GRIDS = [(3, 2), (2, 3), (4, 2), (2, 4), (4, 3), (3, 4)]  # none is square: exchanged coordinates leave the grid
SHOWN = 4


def draw(rng: random.Random) -> list[Case]:
    """Few programs, more programs, one, and more than tiles; empty problems among others, and alone.

    With several programs, program 0 never computes the first tile of a later problem. Otherwise a walk that restarts in
    each problem would be right. And one problem has more tile rows than a strip of 4 or 8, the usual `GROUP_SIZE_M`. It
    is not the first: after it a walk that compares `tile` with one problem's tiles finds none, like one whose `passed`
    stays 0.
    """

    def sizes(grid):
        # The last row and column of tiles are not whole.
        tails = rng.randint(1, BLOCK_M - 1), rng.randint(1, BLOCK_N - 1)
        # K in place of N gives another number of tiles than N, rounded up or down.
        depth = rng.choice([blocks for blocks in range(1, 6) if blocks not in (grid[1] - 1, grid[1])])
        size = depth * BLOCK_N - rng.randrange(BLOCK_N)
        return [(grid[0] - 1) * BLOCK_M + tails[0], (grid[1] - 1) * BLOCK_N + tails[1], size]

    def batch(programs):
        while True:
            grids = [*rng.sample(GRIDS, 2), (rng.randint(9, 11), rng.randint(2, 3))]
            rng.shuffle(grids)
            begins = itertools.accumulate(rows * cols for rows, cols in grids[:-1])
            if grids[0] in GRIDS and all(begin % programs for begin in begins):
                found, whole = [sizes(grid) for grid in grids], rng.randrange(3)
                # One has whole tiles alone: M // BLOCK_M + 1 rows of them would be one too many.
                found[whole][:2] = grids[whole][0] * BLOCK_M, grids[whole][1] * BLOCK_N
                return found

    def empty():
        """A problem of each kind that has no tiles, in any order; K is never 0."""
        kinds = [(0, rng.randint(1, 40)), (rng.randint(1, 40), 0), (0, 0)]
        return [[m, n, rng.randint(1, 64)] for m, n in rng.sample(kinds, 3)]

    def case(problems, programs, *checks):
        shown = ", ".join(f"{m} × {n}" for m, n, _ in problems)
        label = f"M × N: {shown}; tiles of {BLOCK_M} × {BLOCK_N}; {counted(programs, 'program')}"
        return Case({"problems": problems, "programs": programs}, checks, label=label)

    def mixed():
        """Problems of one to three tiles between others, and more programs than any of these has."""
        programs = rng.choice([7, 9])
        while True:
            small = rng.sample([(1, 1), (1, 2), (3, 1), (1, 1), (2, 1), (1, 3)], 6)
            grids = [(3, 2), *small[:3], (2, 4), *small[3:], (4, 2)]
            if all(begin % programs for begin in itertools.accumulate(rows * cols for rows, cols in grids[:-1])):
                return [sizes(grid) for grid in grids], programs

    few, more = rng.choice([3, 4, 5]), rng.choice([6, 7, 8])
    tiny = [sizes(grid) for grid in rng.sample(GRIDS[:2], 2)]
    first, between, last = empty(), empty(), empty()
    one, two, three = batch(few)
    holes = [first[0], one, *between, two, last[0], three, last[1]]
    # More tiles than int8 counts, before the last problem; and more tile rows than a strip of 64.
    many = [sizes((2, 3)), sizes((rng.randint(65, 67), 2)), sizes((3, 2))]
    return [
        case(batch(few), few, "once", "place", "turn"),
        case(batch(more), more, "programs"),
        case(tiny, sum(rows * cols for rows, cols in map(grid_of, tiny)) + rng.randint(2, 5), "programs"),
        case(holes, few, "empty"),
        case(empty(), few, "empty"),
        case(many, 1, "programs"),
        case(*mixed(), "once", "place", "turn"),
    ]


# ---- findings


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Compare every program's log with its turns; where they differ, look for a walk that explains the log."""
    problems, programs, check = case.inputs["problems"], case.inputs["programs"], case.checks[0]
    grids, logs = [grid_of(size) for size in problems], _read(ran, LOG)
    want = Walk(programs, grids=grids).logs(programs)
    picture = _pictures(grids, logs, want)
    bare = _read(ran, BARE) if BARE in ran.outputs else []
    if any(want) and not any(logs) and not any(bare):
        yield Finding("*", "no program computes any tile", picture)
        return
    if check == "once" and (reads := diagnosis.loads_outside(ran)):
        yield Finding(check, reads, picture)
    if check == "empty":
        if logs != want and (cause := _about_empty(problems, logs, bare)):
            yield Finding(check, cause, picture)
    elif logs != want:
        walk = explain(problems, logs)
        found = _about_programs(walk, logs, want) if check == "programs" else _about_walk(walk, grids, logs, want)
        for name, cause in found:
            yield Finding(name, cause, picture)


def _read(ran: Ran, name: str) -> list[list[Tile]]:
    """Every program's tiles, in the order in which it computed them."""
    log = ran.outputs[name]
    counts = (~log.missing).int().cummin(1).values.sum(1) // 3  # an unwritten entry ends a line
    return [
        [tuple(line[3 * i : 3 * i + 3]) for i in range(count)]
        for line, count in zip(log.values.tolist(), counts.tolist())
    ]


def _about_walk(walk: Walk | None, grids, logs, want) -> Iterator[tuple[str, Causes]]:
    """(check, cause) of every property that a wrong walk breaks."""
    because = walk.why if walk else ""
    wrong_count = _about_count(grids, logs, want)
    if wrong_count:
        step = _wrong_step(walk, logs) if walk and walk.step != len(logs) else ""
        yield "once", Words(wrong_count, because=because or (walk.place if walk else "") or step)
    if walk is None and (found := _about_order(logs, want)):
        yield found
    elif walk is None:
        number = {tile: i for i, tile in enumerate(Walk(1, grids=grids).logs(1)[0])}
        found = [[number.get(tile, -1) for tile in line] for line in logs]
        if any(line != sorted(set(line)) or line[:1] == [-1] for line in found):
            yield "place", "not judged, since the tiles are not in an order that counting could give"
        yield "turn", _difference(logs, want)
    elif walk.why:
        yield "turn", Words(_difference(logs, want), because=because)
    if walk and walk.place:
        should = walk._replace(place="").logs(len(logs))
        yield "place", Words(_difference(logs, should), because=walk.place)
    if walk and walk.step != len(logs):
        yield "turn", _about_step(walk, logs, want)


def _about_count(grids, logs, want) -> str | None:
    """The first tile that does not exist, is never computed, or is computed several times; None if there is none."""
    for program, line in enumerate(logs):
        if outside := next((tile for tile in line if _outside(tile, grids)), None):
            text, g = f"program {program} computes {_tile(outside)}", outside[0]
            if not 0 <= g < len(grids):
                return f"{text}; there are problems 0 to {len(grids) - 1}"
            return f"{text}, which has {grids[g][0]} × {grids[g][1]} tiles"
    times = Counter(tile for line in logs for tile in line)
    every = sorted(tile for line in want for tile in line)
    lost, more = [tile for tile in every if not times[tile]], [tile for tile in every if times[tile] > 1]
    rest = f"; in all, {counted(len(lost), 'tile')} of {len(every)} lost and {counted(len(more), 'tile')} repeated"
    if lost:
        return f"{_tile(lost[0])} is computed by no program{rest}"
    if more:
        by = [str(program) for program, line in enumerate(logs) if more[0] in line]
        programs = f"program{'s' * (len(by) > 1)} {', '.join(by)}"
        return f"{_tile(more[0])} is computed {times[more[0]]} times, by {programs}{rest}"
    return None


def _about_order(logs, want) -> tuple[str, Causes] | None:
    """(check, cause) if only the order of each problem's tiles is wrong, or their programs; else None."""
    found = about_turns(logs, want, lambda tile: tile[0], "problem", "program")
    if found is None:
        return None
    check, why = found
    rule = "; column by column is (0, 0), (1, 0), (2, 0), …" if check == "place" else ""
    return check, Words(_difference(logs, want), because=f"{why}{rule}")


def _about_step(walk: Walk, logs, want) -> Words:
    """The cause for a step that differs from the number of programs."""
    program = next(p for p, (line, should) in enumerate(zip(logs, want)) if len(line) != len(should))
    does, turns = (_numbers(program, step, len(line[program]))
                   for step, line in ((walk.step, logs), (len(logs), want)))  # fmt: skip
    text = f"program {program} of {len(logs)} computes {does}; its turns are {turns}"
    return Words(text, because=_wrong_step(walk, logs))


def _wrong_step(walk: Walk, logs) -> str:
    if max(map(len, logs)) > 1:
        return f"a step of {walk.step} leads to another program's tile; tl.num_programs(0) is the number of programs"
    return "each program computes one tile at most: does `tile` grow by tl.num_programs(0), the number of programs?"


def _about_programs(walk: Walk | None, logs, want) -> Iterator[tuple[str, Causes]]:
    """(check, cause): a step by another number of programs, a wrong share, or another mistake."""
    if walk is None and (found := _about_order(logs, want)):
        yield found
    elif walk is None:
        program = next((p for p, (line, should) in enumerate(zip(logs, want)) if len(line) != len(should)), None)
        if program is None:
            yield "turn", _difference(logs, want)
        else:
            has = counted(len(logs[program]), "tile")
            share = len(want[program])
            yield "programs", f"program {program} of {len(logs)} computes {has}; its share is {share}"
    elif walk.step != len(logs):
        yield "programs", _about_step(walk, logs, want)
    else:
        yield "place" if walk.place else "turn", Words(_difference(logs, want), because=walk.place or walk.why)


def _about_empty(problems, logs, bare) -> Causes:
    """Compare the same walk without the empty problems; empty if it computes the same."""
    grids = [grid_of(size) for size in problems]
    full = [g for g, (rows, cols) in enumerate(grids) if rows * cols]
    for program, line in enumerate(logs):
        if empty := next((tile for tile in line if 0 <= tile[0] < len(grids) and tile[0] not in full), None):
            m, n, _ = problems[empty[0]]
            return f"program {program} computes {_tile(empty)}, which is {m} × {n}, so it has no tiles"
    for program, (line, other) in enumerate(itertools.zip_longest(logs, bare, fillvalue=[])):
        should = [(full[g] if 0 <= g < len(full) else g, row, col) for g, row, col in other]
        if line != should:
            at = first_difference(line, should)
            got, want = (_tile(tiles[at]) if at < len(tiles) else "no further tile" for tiles in (line, should))
            text = f"program {program} computes {got}; without the empty problems it computes {want}"
            listed = ", ".join(str(g) for g in range(len(grids)) if g not in full)
            return Words(text, because=f"the empty problems are {listed}")
    return None


def _difference(logs, want) -> str:
    """The first tile out of turn."""
    return difference(logs, want, "program", _tile)


def _outside(tile: Tile, grids) -> bool:
    g, row, col = tile
    return not (0 <= g < len(grids) and 0 <= row < grids[g][0] and 0 <= col < grids[g][1])


def _tile(tile: Tile) -> str:
    return f"tile ({tile[1]}, {tile[2]}) of problem {tile[0]}"


def _numbers(first: int, step: int, count: int) -> str:
    shown = ", ".join(str(first + i * step) for i in range(min(count, SHOWN)))
    return f"tile{'s' * (count != 1)} {shown}{', …' if count > SHOWN else ''}" if count else "no tile"


def _pictures(grids, logs, want) -> list[dict]:
    """The tiles of every problem, each with its programs."""
    tables = (
        (f"problem {g}", [[(g, row, col) for col in range(cols)] for row in range(rows)])
        for g, (rows, cols) in enumerate(grids)
    )
    return pictures(tables, logs, want, "p")
