"""Exercise 13: the tiles of jagged groups to the workers of a persistent Helion kernel, by one index over all tiles."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import permutations

from gemm_course.exercises.e13_persistent_helion.language import BLOCK_M, BLOCK_N
from gemm_course.exercises.e13_persistent_helion.walks import DEALINGS, NUMBERINGS, Tile, flat, groups_of, in_turn
from gemm_course.exercises.tile_orders import about_turns, difference, pictures
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.cause_sentences import counted
from gemm_course.judging.causes import Words

HARD_CODED = 4  # never drawn as a number of workers where a check compares it with other numbers
NOT_COUNTED = "not counted, because not every tile is computed exactly once"


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
    # With two columns of tiles, rounding down would be the same as forgetting them.
    wide = rng.choice([each for each in (3, 4) if each % few])
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
    groups = groups_of(sizes, N)
    want = in_turn(groups, workers)
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
    for check, why, numbering in NUMBERINGS:
        if got == in_turn(numbering(sizes, N), workers):
            yield Finding(check, Words(_difference(got, want), because=why), panels)
            return
    for check, why, dealing in DEALINGS:
        if got == dealing(groups, workers):
            yield Finding(check, Words(_difference(got, want), because=why), panels)
            return
    for order in permutations(range(3)):
        if [[tuple(tile[at] for at in order) for tile in line] for line in got] == want:
            why = "COMPUTE_TILE takes `row`, `end` and `col` in this order, and here they are exchanged"
            yield Finding("place", Words(_difference(got, want), because=why), panels)
            return
    every = flat(groups)
    if not any(got):
        yield Finding("*", f"no worker computes a tile, but there are {len(every)}")
        return
    for step in range(1, len(every) + 1):
        if step != workers and got == [every[worker::step] for worker in range(workers)]:
            text = f"the workers step by {step}, and there are {workers}: the step is the argument `workers`"
            yield Finding("workers", text, panels)
            yield Finding("once", f"not every tile is computed once: {text}", panels)
            return
    times, known = Counter(flat(got)), set(every)
    empty = " (groups without rows are between the others)" if 0 in sizes else ""
    if unknown_tile := next((tile for tile in flat(got) if tile not in known), None):
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
    return difference(got, want, "worker", _name)


def _name(tile: Tile) -> str:
    row, end, col = tile
    return f"the tile at row {row}, column {col}, whose group ends at row {end}"


def _pictures(groups, got, want) -> list[dict]:
    """The tiles of each group, each with its worker."""
    tables = []
    for g, tiles in enumerate(groups):
        rows, cols = (sorted({tile[axis] for tile in tiles}) for axis in (0, 2))
        tables.append((f"group {g}", [[(row, tiles[0][1], col) for col in cols] for row in rows]))
    return pictures(tables, got, want, "w")
