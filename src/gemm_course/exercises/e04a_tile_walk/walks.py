"""The walks over the tiles of many problems that learners write: the right one, and its mistakes by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gemm_course.exercises.e04a_tile_walk.run import BLOCK_M, BLOCK_N, grid_of
from gemm_course.exercises.tile_orders import about_strips, in_strip

MAX_STEP = 40  # larger wrong ones have no name
CHUNKS = "this program computes a run of neighbouring tiles; round-robin deals tiles one by one: p, p + P, p + 2P"

Tile = tuple[int, int, int]  # problem, row, column


def _quotient(a: int, b: int) -> int:
    return int(a / b)  # rounds towards zero, as integer division does on a GPU


def _rest(a: int, b: int) -> int:
    return int(math.fmod(a, b))


_ONE_DIVISION = (
    "one division by the number of tile rows gives both, the row as its remainder and the column as its quotient; "
)
_NOT_BOTH = "the tiles of the problems before are subtracted for the {}, and have to be for the {}, too"
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
# More of them, which are tried with the right step alone.
_HALVES: dict[str, Callable] = {
    f"{_ONE_DIVISION}here the column is the quotient by the number of columns": (
        lambda own, tile, rows, cols: (_rest(own, rows), _quotient(own, cols))
    ),
    f"{_ONE_DIVISION}here the row is the remainder by the number of columns": (
        lambda own, tile, rows, cols: (_rest(own, cols), _quotient(own, rows))
    ),
    f"{_ONE_DIVISION}here the row is the quotient, too": (
        lambda own, tile, rows, cols: (_quotient(own, rows), _quotient(own, rows))
    ),
    f"{_ONE_DIVISION}here the column is the remainder, too": (
        lambda own, tile, rows, cols: (_rest(own, rows), _rest(own, rows))
    ),
    f"{_ONE_DIVISION}here the row is the number itself": lambda own, tile, rows, cols: (own, _quotient(own, rows)),
    _NOT_BOTH.format("column", "row"): lambda own, tile, rows, cols: (_rest(tile, rows), _quotient(own, rows)),
    _NOT_BOTH.format("row", "column"): lambda own, tile, rows, cols: (_rest(own, rows), _quotient(tile, rows)),
}


class Walk(NamedTuple):
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
    mixes: bool = False  # compares a tile's number in all problems with the tiles of one
    strays: bool = False  # goes on to the next problem after each tile, and counts only a problem without one
    areas: Sequence[int] = ()  # of each problem: the tiles that it is taken to have, if not rows * columns
    why: str = ""

    def logs(self, programs: int) -> list[list[Tile]]:
        """Every program's tiles, in order."""
        return [self._log(program, programs) for program in range(programs)]

    def _log(self, program: int, programs: int) -> list[Tile]:
        tile, passed, found = program, 0, []
        place = (_PLACES | _HALVES)[self.place]
        for g, (rows, cols) in enumerate(self.grids):
            tile, before = program if self.returns else tile, len(found)
            tiles = self.areas[g] if self.areas else rows * cols
            while tile < (0 if self.mixes else passed) + tiles + self.late:
                found.append((g, *place(tile - passed, tile, rows, cols)))
                tile += self.step
                if self.leaves or self.strays:
                    break
            if self.wastes and len(found) == before:
                tile += self.step
            if len(found) > before and (self.strays or 0 < self.jumps * rows * cols <= programs):
                continue
            if self.drifts:
                passed = tile
            elif self.counts:
                passed = tiles if self.forgets else passed + tiles
            if self.short:
                passed = (passed + 128) % 256 - 128
        return found


# What a walk does otherwise, and why it is wrong.
_NOT_ADDED = "this goes on to the next problem after a tile, and does not add the last one's tiles to `passed`"
_MISTAKES = (
    (dict(short=True), "tiles are counted in 8 bits, whose largest number is 127"),
    (dict(wastes=True), "`tile` steps on also when no tile is computed, so a turn is lost"),
    (dict(late=-1), "the end of a problem is one too small: its last tile is the one before `passed` + its tiles"),
    (dict(late=1), "one too many, as `<=` in place of `<` gives"),
    (dict(forgets=True), "`passed` counts the tiles of all problems before, not of one"),
    (dict(counts=False), "`passed` stays 0: a problem's tiles are added to it when they are passed"),
    (dict(counts=False, returns=True), "this starts again at 0 in each problem; turns go on from one to the next"),
    (dict(returns=True), "this begins each problem with the program's first tile; keep `tile` from one to the next"),
    (dict(drifts=True), "`passed` grows by all tiles of a problem; `own` is another number in each program"),
    *((dict(jumps=jumps), _NOT_ADDED) for jumps in (1, 2, 3, 4)),
    (dict(leaves=True), "this moves on to the next problem after every tile"),
    (dict(strays=True), "the program goes on to the next problem after each tile: `g += 1` belongs to `else`"),
    (
        dict(mixes=True),
        "the condition compares `tile`, which counts through all problems, with the tiles of one problem: it takes "
        "`tile - passed`, as row and column do",
    ),
)


def _chunks(grids, programs: int, apart: bool) -> list[list[Tile]]:
    """Logs if every program gets neighbouring tiles: of all problems together, or of each ``apart``."""
    tiles = [[(g, *_PLACES[""](own, own, *grid)) for own in range(math.prod(grid))] for g, grid in enumerate(grids)]
    logs: list[list[Tile]] = [[] for _ in range(programs)]
    for part in tiles if apart else [list(itertools.chain(*tiles))]:
        share = -(-len(part) // programs)
        for program, line in enumerate(logs):
            line += part[program * share : (program + 1) * share]
    return logs


def explain(problems: Sequence[Sequence[int]], logs: list[list[Tile]]) -> Walk | None:
    """The known walk that computes the tiles of these logs; None without one."""
    grids, programs = [grid_of(size) for size in problems], len(logs)
    total = sum(rows * cols for rows, cols in grids)
    # No step larger than `total` is tried: from any tile, `total` already leads past the last one.
    steps = [step for step in (*range(1, min(total, MAX_STEP + 1)), total) if step != programs]
    whole = [(m // BLOCK_M, n // BLOCK_N) for m, n, _ in problems]
    low = [(m, cols) for (m, _), (_, cols) in zip(whole, grids)]
    narrow = [(rows, n) for (rows, _), (_, n) in zip(grids, whole)]
    turned = [(-(-m // BLOCK_N), -(-n // BLOCK_M)) for m, n, _ in problems]
    walks = [Walk(programs, place, grids) for place in (*_PLACES, *_HALVES)]
    right = walks[0]
    depths = [(rows, -(-size[2] // BLOCK_N)) for (rows, _), size in zip(grids, problems)]
    high = [(-(-size[2] // BLOCK_M), cols) for (_, cols), size in zip(grids, problems)]
    other_grids = (
        (depths, "a row of the table is M, N, K; this takes K for N"),
        (high, "a row of the table is M, N, K; this takes K for M"),
        *((each, "a boundary tile counts as a tile: round the number of tiles up") for each in (whole, low, narrow)),
        (turned, f"a tile has BLOCK_M = {BLOCK_M} rows and BLOCK_N = {BLOCK_N} columns"),
    )
    walks += [right._replace(grids=each, why=why) for each, why in other_grids]
    areas = [-(-m * n // (BLOCK_M * BLOCK_N)) for m, n, _ in problems]
    walks.append(right._replace(areas=areas, why="tiles are counted along M and along N, and multiplied: cdiv of each"))
    walks += [right._replace(**changes, why=why) for changes, why in _MISTAKES]
    # Last, because some of many steps may fit by chance what another mistake gives.
    walks += [Walk(step, place, grids) for place in _PLACES for step in steps]
    found = next((walk for walk in walks if walk.logs(programs) == logs), None)
    chunks = found is None and any(_chunks(grids, programs, apart) == logs for apart in (False, True))
    return right._replace(why=CHUNKS) if chunks else found
