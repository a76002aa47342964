"""Exercise 04a: one walk over the tiles of problems of many sizes, some of them empty, counted column by column."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gemm_course.exercises.e04a_tile_walk.run import BARE, BLOCK_M, BLOCK_N, LOG, grid_of
from gemm_course.exercises.tile_orders import about_strips, about_turns, in_strip
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.causes import Causes, Words
from gemm_course.judging.panels import MISSING, RIGHT, WRONG, table_panel
from gemm_course.judging.sentences import counted

GRIDS = [(3, 2), (2, 3), (4, 2), (2, 4), (4, 3), (3, 4)]  # none is square: exchanged coordinates leave the grid
SHOWN = 4
MAX_STEP = 40  # larger wrong ones have no name
CHUNKS = "this program computes a run of neighbouring tiles; round-robin deals tiles one by one: p, p + P, p + 2P"

Tile = tuple[int, int, int]  # problem, row, column


def draw(rng: random.Random) -> list[Case]:
    """Few programs, more programs, one, and more than tiles; empty problems among others, and alone.

    With several programs, program 0 never computes the first tile of a later problem. Otherwise a walk that restarts in
    each problem would be right. And one problem has more tile rows than a strip of 4 or 8, the usual `GROUP_SIZE_M`.
    """

    def sizes(grid):
        # The last row and column of tiles are not whole.
        tails = rng.randint(1, BLOCK_M - 1), rng.randint(1, BLOCK_N - 1)
        return [(grid[0] - 1) * BLOCK_M + tails[0], (grid[1] - 1) * BLOCK_N + tails[1], rng.randint(1, 64)]

    def batch(programs):
        while True:
            grids = [*rng.sample(GRIDS, 2), (rng.randint(9, 11), rng.randint(2, 3))]
            rng.shuffle(grids)
            begins = itertools.accumulate(rows * cols for rows, cols in grids[:-1])
            if all(begin % programs for begin in begins):
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


# ---- which walk gives a log


def _quotient(a: int, b: int) -> int:
    return int(a / b)  # rounds towards zero, as integer division does on a GPU


def _rest(a: int, b: int) -> int:
    return int(math.fmod(a, b))


# Mistake ("": none) → (row, column) from a tile's number in its problem and in all, and the grid of the problem.
_PLACES: dict[str, Callable] = {
    "": lambda own, tile, rows, cols: (_rest(own, rows), _quotient(own, rows)),
    "this counts row by row; column by column means that the row changes from tile to tile": (
        lambda own, tile, rows, cols: (_quotient(own, cols), _rest(own, cols))
    ),
    "row and column are exchanged": lambda own, tile, rows, cols: (_quotient(own, rows), _rest(own, rows)),
    "a column has as many tiles as the problem has tile rows; this divides by the number of columns": (
        lambda own, tile, rows, cols: (_rest(own, cols), _quotient(own, cols))
    ),
    "the tiles of the problems before are not subtracted": (
        lambda own, tile, rows, cols: (_rest(tile, rows), _quotient(tile, rows))
    ),
    "the tiles of the problems before are not subtracted, and this counts row by row": (
        lambda own, tile, rows, cols: (_quotient(tile, cols), _rest(tile, cols))
    ),
    **{
        about_strips(height): (lambda own, tile, rows, cols, height=height: in_strip(own, rows, cols, height))
        for height in (2, 3, 4, 6, 8, 16, 32, 64)
    },
    "rows and columns are counted in tiles; these are multiplied by BLOCK_M and BLOCK_N": (
        lambda own, tile, rows, cols: (_rest(own, rows) * BLOCK_M, _quotient(own, rows) * BLOCK_N)
    ),
}


class _Walk(NamedTuple):
    """A way to walk; by default the right one."""

    step: int
    place: str = ""
    grids: Sequence[tuple[int, int]] = ()
    late: int = 0  # tiles by which a problem's end is missed
    forgets: bool = False  # counts only the tiles of the last problem as passed
    counts: bool = True  # counts tiles as passed at all
    returns: bool = False  # restarts at the program's first tile in each problem
    leaves: bool = False  # computes at most one tile in each problem
    wastes: bool = False  # steps on in a turn without a tile, too
    short: bool = False  # counts passed tiles in 8 bits
    jumps: int = 0  # goes on, without counting, from a problem whose tiles times this are not more than the programs
    drifts: bool = False  # counts the tiles of a problem up to the program's own as passed
    why: str = ""

    def logs(self, programs: int) -> list[list[Tile]]:
        """Every program's tiles, in order."""
        return [self._log(program, programs) for program in range(programs)]

    def _log(self, program: int, programs: int) -> list[Tile]:
        tile, passed, found = program, 0, []
        for g, (rows, cols) in enumerate(self.grids):
            tile, before = program if self.returns else tile, len(found)
            while tile < passed + rows * cols + self.late:
                found.append((g, *_PLACES[self.place](tile - passed, tile, rows, cols)))
                tile += self.step
                if self.leaves:
                    break
            if self.wastes and len(found) == before:
                tile += self.step
            if self.jumps and len(found) > before and self.jumps * rows * cols <= programs:
                continue
            if self.drifts:
                passed = tile
            elif self.counts:
                passed = rows * cols if self.forgets else passed + rows * cols
            if self.short:
                passed = (passed + 128) % 256 - 128
        return found


def _chunks(grids, programs: int, apart: bool) -> list[list[Tile]]:
    """Logs if every program gets neighbouring tiles: of all problems together, or of each ``apart``."""
    tiles = [[(g, *_PLACES[""](own, own, *grid)) for own in range(math.prod(grid))] for g, grid in enumerate(grids)]
    logs: list[list[Tile]] = [[] for _ in range(programs)]
    for part in tiles if apart else [list(itertools.chain(*tiles))]:
        share = -(-len(part) // programs)
        for program, line in enumerate(logs):
            line += part[program * share : (program + 1) * share]
    return logs


def _explain(problems: Sequence[Sequence[int]], logs: list[list[Tile]]) -> _Walk | None:
    """The known walk that computes the tiles of these logs; None without one."""
    grids, programs = [grid_of(size) for size in problems], len(logs)
    total = sum(rows * cols for rows, cols in grids)
    # No step larger than `total` is tried: from any tile, `total` already leads past the last one.
    steps = [programs, *(step for step in (*range(1, min(total, MAX_STEP + 1)), total) if step != programs)]
    whole = [(m // BLOCK_M, n // BLOCK_N) for m, n, _ in problems]
    turned = [(-(-m // BLOCK_N), -(-n // BLOCK_M)) for m, n, _ in problems]
    walks = [_Walk(step, place, grids) for place in _PLACES for step in steps]
    right = walks[0]
    depths = [(rows, -(-size[2] // BLOCK_N)) for (rows, _), size in zip(grids, problems)]
    high = [(-(-size[2] // BLOCK_M), cols) for (_, cols), size in zip(grids, problems)]
    walks += [
        right._replace(grids=depths, why="a row of the table is M, N, K; this takes K for N"),
        right._replace(grids=high, why="a row of the table is M, N, K; this takes K for M"),
        right._replace(short=True, why="tiles are counted in 8 bits, whose largest number is 127"),
        right._replace(wastes=True, why="`tile` steps on also when no tile is computed, so a turn is lost"),
        right._replace(grids=whole, why="a boundary tile counts as a tile: round the number of tiles up"),
        right._replace(grids=turned, why=f"a tile has BLOCK_M = {BLOCK_M} rows and BLOCK_N = {BLOCK_N} columns"),
        right._replace(
            late=-1, why="the end of a problem is one too small: its last tile is the one before `passed` + its tiles"
        ),
        right._replace(late=1, why="one too many, as `<=` in place of `<` gives"),
        right._replace(forgets=True, why="`passed` counts the tiles of all problems before, not of one"),
        right._replace(counts=False, why="`passed` stays 0: a problem's tiles are added to it when they are passed"),
        right._replace(
            counts=False,
            returns=True,
            why="this starts again at 0 in each problem; turns continue from problem to problem",
        ),
        right._replace(
            returns=True,
            why="this begins each problem with the program's very first tile; keep `tile` from problem to problem",
        ),
        right._replace(
            drifts=True, why="`passed` grows by all tiles of a problem; `own` is another number in each program"
        ),
        *(
            right._replace(
                jumps=jumps,
                why="this goes on to the next problem after a tile, and does not add the last one's tiles to `passed`",
            )
            for jumps in (1, 2, 3, 4)
        ),
        right._replace(leaves=True, why="this moves on to the next problem after every tile"),
    ]
    found = next((walk for walk in walks if walk.logs(programs) == logs), None)
    chunks = found is None and any(_chunks(grids, programs, apart) == logs for apart in (False, True))
    return right._replace(why=CHUNKS) if chunks else found


# ---- findings


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Compare every program's log with its turns; where they differ, look for a walk that explains the log."""
    problems, programs, check = case.inputs["problems"], case.inputs["programs"], case.checks[0]
    grids, logs = [grid_of(size) for size in problems], _read(ran, LOG)
    want = _Walk(programs, grids=grids).logs(programs)
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
        walk = _explain(problems, logs)
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


def _about_walk(walk: _Walk | None, grids, logs, want) -> Iterator[tuple[str, Causes]]:
    """(check, cause) of every property that a wrong walk breaks."""
    because = walk.why if walk else ""
    wrong_count = _about_count(grids, logs, want)
    if wrong_count:
        yield "once", Words(wrong_count, because=because)
    if walk is None and (found := _about_order(logs, want)):
        yield found
    elif walk is None:
        number = {tile: i for i, tile in enumerate(_Walk(1, grids=grids).logs(1)[0])}
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


def _about_step(walk: _Walk, logs, want) -> Words:
    """The cause for a step that differs from the number of programs."""
    program = next(p for p, (line, should) in enumerate(zip(logs, want)) if len(line) != len(should))
    does, turns = (_numbers(program, step, len(line[program]))
                   for step, line in ((walk.step, logs), (len(logs), want)))  # fmt: skip
    text = f"program {program} of {len(logs)} computes {does}; its turns are {turns}"
    rule = "; tl.num_programs(0) is the number of programs"
    if len(logs[program]) > 1:
        return Words(text, because=f"a step of {walk.step} leads to another program's tile{rule}")
    return Words(text + rule)


def _about_programs(walk: _Walk | None, logs, want) -> Iterator[tuple[str, Causes]]:
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
            at = _first_difference(line, should)
            got, want = (_tile(tiles[at]) if at < len(tiles) else "no further tile" for tiles in (line, should))
            text = f"program {program} computes {got}; without the empty problems it computes {want}"
            listed = ", ".join(str(g) for g in range(len(grids)) if g not in full)
            return Words(text, because=f"the empty problems are {listed}")
    return None


def _first_difference(line: list, should: list) -> int:
    return next((i for i, (a, b) in enumerate(zip(line, should)) if a != b), min(len(line), len(should)))


def _difference(logs, want) -> str:
    """The first tile out of turn."""
    for program, (line, should) in enumerate(zip(logs, want)):
        if line != should:
            at = _first_difference(line, should)
            if at >= len(line):
                return f"program {program} of {len(logs)} never computes {_tile(should[at])}, although it is its turn"
            turn = f"when it is the turn of {_tile(should[at])}" if at < len(should) else "after its last turn"
            return f"program {program} of {len(logs)} computes {_tile(line[at])} {turn}"
    return ""


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
    turn = {tile: program for program, line in enumerate(want) for tile in line}
    by: dict[Tile, list[int]] = {tile: [] for tile in turn}
    for program, line in enumerate(logs):
        for tile in line:
            by.get(tile, []).append(program)
    panels = []
    for g, (rows, cols) in enumerate(grids):
        places = [[(g, row, col) for col in range(cols)] for row in range(rows)]
        states = [[RIGHT if by[t] == [turn[t]] else WRONG if by[t] else MISSING for t in line] for line in places]
        labels = [[f"p{by[t][0]}" if len(by[t]) == 1 else f"{len(by[t])}×" for t in line] for line in places]
        if rows * cols:
            panels.append(table_panel(f"problem {g}", states, labels))
    return panels
