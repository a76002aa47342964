"""Exercise 13: the tiles of jagged groups to the workers of a persistent Helion kernel, by one index over all tiles."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, permutations
from typing import NamedTuple

from gemm_course.exercises.e13_persistent_helion.language import BLOCK_M, BLOCK_N
from gemm_course.exercises.tile_orders import about_strips, about_turns, in_strip
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.causes import Words
from gemm_course.judging.panels import MISSING, RIGHT, WRONG, table_panel
from gemm_course.judging.sentences import counted

HARD_CODED = 4  # never drawn as a number of workers where a check compares it with other numbers
NOT_COUNTED = "not counted, because not every tile is computed exactly once"

Tile = tuple[int, int, int]  # first row, end of its group, first column


def draw(rng: random.Random) -> list[Case]:
    """Groups with tails on a few workers; empty groups everywhere; one worker; more workers than tiles; no rows at all.

    A later group never begins with worker 0: otherwise a walk that starts anew in each group would be the same. Groups
    differ in their number of tile rows; one has more than a strip of 4 or 8, the usual `GROUP_SIZE_M`. One group, and
    one N, is a multiple of its block, where one more than the quotient would be one too many.
    """

    def size(count: int) -> int:
        return (count - 1) * BLOCK_M + rng.randint(1, BLOCK_M - 1)

    def columns(tiles: int) -> int:
        return (tiles - 1) * BLOCK_N + rng.randint(1, BLOCK_N - 1)

    def case(sizes, N, workers, *checks):
        label = f"groups of {', '.join(map(str, sizes))} rows, N = {N}; tiles of {BLOCK_M} × {BLOCK_N}; "
        inputs = {"sizes": list(sizes), "N": N, "workers": workers}
        return Case(inputs, checks, label=label + counted(workers, "worker"))

    def batch(workers: int, tiles_n: int) -> list[int]:
        while True:
            counts = [*rng.sample([1, 2, 3, 4, 5], 3), rng.randint(9, 11)]
            rng.shuffle(counts)
            begins = [sum(counts[:g]) * tiles_n for g in range(1, 5)]
            # The last one is the number of all tiles: more than one is left over, and a round is not one tile.
            if all(begin % workers for begin in begins) and begins[-1] % workers > 1 and min(counts[0], counts[-1]) > 1:
                whole = rng.randrange(3)
                return [count * BLOCK_M if g == whole else size(count) for g, count in enumerate(counts)]

    few, other = rng.sample([3, 5, 7], 2)
    wide = rng.choice([each for each in (2, 4) if each % few])
    holes = batch(other, 2)
    holes = [0, holes[0], 0, 0, *holes[1:], 0]
    tiny = [size(rng.randint(1, 2)) for _ in range(rng.randint(2, 3))]
    most = sum(-(-each // BLOCK_M) for each in tiny) * 2
    return [
        case(batch(few, wide), columns(wide), few, "once", "own", "place", "turn"),
        case(holes, columns(2), other, "empty"),
        case(batch(few, 2)[:3], 2 * BLOCK_N, 1, "workers"),
        case(tiny, columns(2), most + rng.randint(1, 6), "workers", "own"),
        case([0] * rng.randint(2, 4), columns(2), few, "empty"),
    ]


# ---- which walk gives a log: a numbering of the tiles of each group, and a way to deal them


def _tile_rows(size: int) -> int:
    return -(-size // BLOCK_M)


class _At(NamedTuple):
    """A tile's numbers, in its group and in all, and what its group has."""

    own: int
    tile: int
    tiles_m: int
    tiles_n: int
    start: int
    end: int


def _right_place(at: _At) -> Tile:
    return _tile(at.own % at.tiles_m, at.own // at.tiles_m, at.start, at.end)


def _groups(
    sizes: Sequence[int],
    N: int,
    tile_rows: Callable[[int], int] = _tile_rows,
    place: Callable[[_At], Tile] = _right_place,
) -> list[list[Tile]]:
    """The tiles of each group in order."""
    found, tile, tiles_n = [], 0, -(-N // BLOCK_N)
    for start, end in pairwise([0, *_ends(sizes)]):
        tiles_m = tile_rows(end - start)
        count = tiles_m * tiles_n
        found.append([place(_At(own, tile + own, tiles_m, tiles_n, start, end)) for own in range(count)])
        tile += count
    return found


def _placed(place: Callable[[_At], Tile]) -> Callable:
    return lambda sizes, N: _groups(sizes, N, place=place)


def _ends(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[: g + 1]) for g in range(len(sizes))]


def _tile(m: int, n: int, start: int, end: int) -> Tile:
    return start + m * BLOCK_M, end, n * BLOCK_N


def _after(sizes: Sequence[int], N: int) -> list[list[Tile]]:
    """Tiles of the right numbers, but a group's first one is taken for the group before (``<`` for ``<=``)."""
    tiles_n = -(-N // BLOCK_N)
    tile_ends = [sum(_tile_rows(size) for size in sizes[: g + 1]) * tiles_n for g in range(len(sizes))]
    found = []
    for tile in range(max(tile_ends, default=0)):
        passed = [g for g in range(len(sizes)) if tile_ends[g] < tile]
        first = max((tile_ends[g] for g in passed), default=0)
        start = max((_ends(sizes)[g] for g in passed), default=0)
        end = min((_ends(sizes)[g] for g in range(len(sizes)) if g not in passed), default=sum(sizes))
        tiles_m = max(_tile_rows(end - start), 1)
        found.append(_tile((tile - first) % tiles_m, (tile - first) // tiles_m, start, end))
    return [found]


def _up_to_empty(sizes: Sequence[int], N: int) -> list[list[Tile]]:
    groups = _groups(sizes, N)
    return groups[: next((g for g, size in enumerate(sizes) if not size), len(sizes))]


def _in_strips(height: int) -> Callable:
    """Column by column in strips of so many tile rows."""

    def place(at: _At) -> Tile:
        return _tile(*in_strip(at.own, at.tiles_m, at.tiles_n, height), at.start, at.end)

    return _placed(place)


def _with_its_own_end(at: _At, last: int) -> Tile:
    """The right tile, but with an end after its own rows, of which the last one is before ``last``."""
    row, _, col = _right_place(at)
    return row, min(row + BLOCK_M, last), col


_TOO_WIDE = "a column has as many tiles as the group has tile rows, tiles_m; this divides by tiles_n"
_ENDS_EARLY = "`end` is the row after the group's last one, not after the tile's"
# Check, what is wrong, and the groups' tiles that it gives; dealt in turn.
_NUMBERINGS: tuple[tuple[str, str, Callable], ...] = (
    (
        "once",
        "a group's last rows do not fill a tile, and still need one: round up, (rows + BLOCK_M - 1) // BLOCK_M",
        lambda sizes, N: _groups(sizes, N, tile_rows=lambda size: size // BLOCK_M),
    ),
    (
        "place",
        "this counts row by row; column by column, the row changes from tile to tile",
        _placed(lambda at: _tile(at.own // at.tiles_n, at.own % at.tiles_n, at.start, at.end)),
    ),
    (
        "place",
        _TOO_WIDE,
        _placed(lambda at: _tile(at.own % at.tiles_m, at.own // at.tiles_n, at.start, at.end)),
    ),
    (
        "place",
        _TOO_WIDE,
        _placed(lambda at: _tile(at.own % at.tiles_n, at.own // at.tiles_n, at.start, at.end)),
    ),
    (
        "place",
        "a tile's rows begin at its group's first row: `start` is missing",
        _placed(lambda at: _right_place(at._replace(start=0))),
    ),
    (
        "place",
        "the tile ends with the matrix, not with its group: with a B for each group, it would overwrite the next one",
        lambda sizes, N: _groups(sizes, N, place=lambda at: _right_place(at._replace(end=sum(sizes)))),
    ),
    ("place", _ENDS_EARLY, _placed(lambda at: _with_its_own_end(at, at.start + at.tiles_m * BLOCK_M))),
    ("place", _ENDS_EARLY, _placed(lambda at: _with_its_own_end(at, at.end))),
    (
        "place",
        "in its group a tile's number counts from the group's first tile: subtract `first`",
        _placed(lambda at: _right_place(at._replace(own=at.tile))),
    ),
    (
        "place",
        "the first tile of a group is counted in the group before. A group whose tiles end at n has passed for tile n, "
        "so compare with <=",
        _after,
    ),
    (
        "place",
        "BLOCK_M and BLOCK_N are exchanged: rows come in steps of BLOCK_M, columns in steps of BLOCK_N",
        _placed(lambda at: (at.start + at.own % at.tiles_m * BLOCK_N, at.end, at.own // at.tiles_m * BLOCK_M)),
    ),
    (
        "place",
        "`col` is the tile's first column, not the number of its tile column: times BLOCK_N",
        _placed(lambda at: (at.start + at.own % at.tiles_m * BLOCK_M, at.end, at.own // at.tiles_m)),
    ),
    (
        "empty",
        "a group without rows has no tile: do not round its tile rows up to one",
        lambda sizes, N: _groups(sizes, N, tile_rows=lambda size: max(_tile_rows(size), 1)),
    ),
    ("empty", "the walk ends at the first group without rows, but other groups follow", _up_to_empty),
    *(
        (
            "place",
            about_strips(height),
            _in_strips(height),
        )
        for height in (2, 3, 4, 6, 8)
    ),
)  # fmt: skip


def _flat(groups: list[list[Tile]]) -> list[Tile]:
    return [tile for group in groups for tile in group]


def _in_turn(groups: list[list[Tile]], workers: int) -> list[list[Tile]]:
    return [_flat(groups)[worker::workers] for worker in range(workers)]


def _anew(groups: list[list[Tile]], workers: int) -> list[list[Tile]]:
    return [[tile for group in groups for tile in group[worker::workers]] for worker in range(workers)]


def _in_runs(groups: list[list[Tile]], workers: int) -> list[list[Tile]]:
    every = _flat(groups)
    share = -(-len(every) // workers)
    return [every[worker * share : (worker + 1) * share] for worker in range(workers)]


# Check, what is wrong, and who then computes what.
_DEALINGS: tuple[tuple[str, str, Callable], ...] = (
    (
        "turn",
        "each group starts anew with worker 0, so the first workers get more than others: count through all groups",
        _anew,
    ),
    ("turn", "each worker computes neighbouring tiles: its next tile should be `workers` further on", _in_runs),
    (
        "once",
        "each worker computes all tiles from its own number on: hl.grid's third argument is the step",
        lambda groups, workers: [_flat(groups)[worker:] for worker in range(workers)],
    ),
    ("once", "every worker computes the same tiles: begin with the worker's own number",
     lambda groups, workers: [_flat(groups)[::workers] for _ in range(workers)]),
    ("once", "worker 0 begins with tile 1: workers count from 0, and so do tiles",
     lambda groups, workers: [_flat(groups)[worker + 1 :: workers] for worker in range(workers)]),
    ("once", "the last tile is missing: hl.grid ends before its second argument, which is the number of tiles",
     lambda groups, workers: [_flat(groups)[:-1][worker::workers] for worker in range(workers)]),
    (
        "once",
        "only whole rounds are computed: with tiles left over, some workers have one more than others",
        lambda groups, workers: [
            _flat(groups)[: len(_flat(groups)) // workers * workers][worker::workers] for worker in range(workers)
        ],
    ),
)  # fmt: skip


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Compare who computes what with the walk, then with walks that make one mistake."""
    sizes, N, workers = (case.inputs[name] for name in ("sizes", "N", "workers"))
    value = ran.value if isinstance(ran.value, dict) else {}
    log, skipped = value.get("tiles"), value.get("skipped")
    if not isinstance(log, list) or not isinstance(skipped, list) or any(len(line) != 4 for line in log):
        yield Finding("*", "the walk recorded no tiles")
        return
    if wrong := next((line for line in log if any(type(each) is not int for each in line)), None):
        name, bad = next((n, v) for n, v in zip(("row", "end", "col"), wrong[1:]) if type(v) is not int)
        yield Finding("*", f"COMPUTE_TILE needs whole numbers, and `{name}` is {bad}: / divides, // counts")
        return
    if unknown := next((line[0] for line in log if not 0 <= line[0] < workers), None):
        yield Finding("*", f"worker {unknown} computes a tile; there are workers 0 to {workers - 1}")
        return
    groups = _groups(sizes, N)
    want = _in_turn(groups, workers)
    got: list[list[Tile]] = [[] for _ in range(workers)]
    for worker, *tile in log:
        got[worker].append(tuple(tile))
    panels = _pictures(groups, got, want)
    if got != want:
        yield from _explain(case, groups, got, want, panels)
    if any(groups) and any(count for _, count in skipped):
        worker, count = max(skipped, key=lambda pair: pair[1])
        own = len(got[worker]) if 0 <= worker < workers else 0
        text = (
            f"worker {worker} looks at {counted(own + count, 'number')}, and {own} of them are tiles of its own; "
            f"in all, {counted(sum(each for _, each in skipped), 'look')} are wasted"
        )
        why = "let hl.grid step from one of its own tiles to the next"
        yield Finding("own", Words(text, because=why), panels)


def _explain(case: Case, groups, got, want, panels) -> Iterator[Finding]:
    """Findings for a walk that is not the right one: the mistake that gives it, or the first difference."""
    sizes, N, workers = (case.inputs[name] for name in ("sizes", "N", "workers"))
    for check, why, numbering in _NUMBERINGS:
        if got == _in_turn(numbering(sizes, N), workers):
            yield Finding(check, Words(_difference(got, want), because=why), panels)
            return
    for check, why, dealing in _DEALINGS:
        if got == dealing(groups, workers):
            yield Finding(check, Words(_difference(got, want), because=why), panels)
            return
    for order in permutations(range(3)):
        if [[tuple(tile[at] for at in order) for tile in line] for line in got] == want:
            why = "COMPUTE_TILE takes `row`, `end` and `col` in this order, and here they are exchanged"
            yield Finding("place", Words(_difference(got, want), because=why), panels)
            return
    every = _flat(groups)
    if not any(got):
        yield Finding("*", f"no worker computes a tile, but there are {len(every)}")
        return
    for step in range(1, len(every) + 1):
        if step != workers and got == [every[worker::step] for worker in range(workers)]:
            text = f"the workers step by {step}, and there are {workers}: the step is the argument `workers`"
            yield Finding("workers", text, panels)
            yield Finding("once", f"not every tile is computed once: {text}", panels)
            return
    times, known = Counter(_flat(got)), set(every)
    empty = " (groups without rows are between the others)" if 0 in sizes else ""
    if unknown_tile := next((tile for tile in _flat(got) if tile not in known), None):
        text = f"{_name(unknown_tile)} is computed, but there is no such tile{empty}"
        yield Finding("empty" if empty else "place", text, panels)
    lost, more = [t for t in every if not times[t]], [t for t in every if times[t] > 1]
    check = "empty" if empty else "once"
    if lost:
        yield Finding(check, f"{_name(lost[0])} is never computed; {counted(len(lost), 'tile')} missing in all", panels)
    if more:
        by = [str(worker) for worker, line in enumerate(got) if more[0] in line]
        text = f"{_name(more[0])} is computed {times[more[0]]} times, by worker{'s' * (len(by) > 1)} {', '.join(by)}"
        yield Finding(check, text, panels)
    if not lost and not more:
        yield Finding(*_about_order(got, want), panels)
    else:
        # These two can be judged only if every tile is computed once.
        yield from (Finding(each, NOT_COUNTED) for each in ("turn", "workers") if each in case.checks)


def _about_order(got, want) -> tuple[str, Words]:
    """(check, cause) if every tile is computed once, but not in its turn."""
    text, found = _difference(got, want), about_turns(got, want, lambda tile: tile[1], "group", "worker")
    return (found[0], Words(text, because=found[1])) if found else ("turn", Words(text))


def _difference(got, want) -> str:
    """The first tile that is computed out of turn, as a sentence."""
    for worker, (line, should) in enumerate(zip(got, want)):
        if line == should:
            continue
        at = next((i for i, pair in enumerate(zip(line, should)) if pair[0] != pair[1]), min(len(line), len(should)))
        if at >= len(line):
            return f"worker {worker} of {len(got)} never computes {_name(should[at])}, although it is its turn"
        turn = f"when it is the turn of {_name(should[at])}" if at < len(should) else "after its last turn"
        return f"worker {worker} of {len(got)} computes {_name(line[at])} {turn}"
    return ""


def _name(tile: Tile) -> str:
    row, end, col = tile
    return f"the tile at row {row}, column {col}, whose group ends at row {end}"


def _pictures(groups, got, want) -> list[dict]:
    """The tiles of each group, each with its worker."""
    turn = {tile: worker for worker, line in enumerate(want) for tile in line}
    by: dict[Tile, list[int]] = {tile: [] for tile in turn}
    for worker, line in enumerate(got):
        for tile in line:
            by.get(tile, []).append(worker)
    panels = []
    for g, tiles in enumerate(groups):
        rows, cols = (sorted({tile[axis] for tile in tiles}) for axis in (0, 2))
        grid = [[(row, tiles[0][1], col) for col in cols] for row in rows]
        states = [[RIGHT if by[t] == [turn[t]] else WRONG if by[t] else MISSING for t in line] for line in grid]
        labels = [[f"w{by[t][0]}" if len(by[t]) == 1 else f"{len(by[t])}×" for t in line] for line in grid]
        if tiles:
            panels.append(table_panel(f"group {g}", states, labels))
    return panels
