"""Exercise 08: the store of a tile into a packed C whose columns are tokens; each group has a range of columns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import torch

from gemm_course.exercises.e08_boundary_store.run import BLOCK_M, BLOCK_N, DEPTH
from gemm_course.exercises.inputs import bounds_of, whole_numbers
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran, Written
from gemm_course.judging.causes import ABOVE, Cause, Causes, Observed
from gemm_course.judging.panels import MISSING, RIGHT, WRONG, table_panel

STRIP = 6  # height of a tile's row in the picture, in tokens


def draw(rng: random.Random) -> list[Case]:
    """Every second group, once without a tail; all of them; the empty ones alone; then a group that is larger than its
    start, which tells wrong starts apart."""

    def case(sizes, groups, n, tail, dtype="float16"):
        ends = list(accumulate(sizes))
        a, b = (whole_numbers(rng, rows, DEPTH, low=9, high=31) for rows in (ends[-1] + tail, len(sizes) * n))
        inputs = {"a": a, "b": b, "ends": ends, "groups": groups, "capacity": max(sizes), "dtype": dtype}
        some = "" if len(groups) == len(sizes) else f", of which {' and '.join(map(str, groups))} are written"
        label = f"N = {n}, groups of {', '.join(map(str, sizes))} tokens{some}, {tail} in the tail; C is {dtype}"
        return Case(inputs, ("tiles", "partial", "neighbours", "tail", "empty", "features"), label=label)

    def short(odd, but=0):
        return rng.choice([size for size in range(3, BLOCK_M - 2) if size % 2 == odd and size != but])

    def long(odd):
        return BLOCK_M + short(odd)

    features = BLOCK_N + rng.randint(15, 21)
    first, same = long(True), rng.random() < 0.5
    # Computed groups begin at odd columns: a start that is rounded down is never right by luck. Group 1 does not end at
    # a multiple of BLOCK_M: a tile rounded down and one moved back differ. Each case has tiles along N: i is not j.
    # Group 2 of the second case begins before column N and ends after it, and the last case has fewer columns than
    # rows: a mask with exchanged ends always shows.
    return [
        case([first, short(same, but=2 * BLOCK_M - first), short(same), long(same)], [3, 1], 2 * BLOCK_N, 0, "float32"),
        case(
            [2 * BLOCK_M, short(True), long(same), short(same), short(same)],
            [0, 4, 2], features, rng.randint(2 * BLOCK_M, 40),
        ),
        case(
            [long(True), 0, short(False), 2 * BLOCK_M, short(same)],
            [4, 3, 2, 1, 0], features, rng.randint(2 * BLOCK_M, 40),
        ),
        case([long(True), 0, long(False), 0], [3, 1], 2 * BLOCK_N, 2 * BLOCK_M),
        case([short(True), 2 * BLOCK_M + short(False), short(same)], [0, 1], 2 * BLOCK_N, 0, "float32"),
    ]  # fmt: skip


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """The findings of `_compared`, with the known mistakes that lead to them."""
    found = list(_compared(case, ran))
    seen = _about_stores(ran) if found else None
    leads = [] if not found else [seen] if seen else _known(case, ran)
    for finding, guess in found:
        yield replace(finding, cause=guess or finding.cause, leads=leads)


def _about_stores(ran: Ran) -> Cause | None:
    """A mistake that all stores share, as the probes saw them; None if there is none."""
    for event in ran.events:
        if event.kind == "atomic":
            return Observed(event, ", which combines a number with what C holds: tl.store replaces it")
    return diagnosis.wrong_stride(ran)


def _stores(j: int, i: int, start: int, end: int, n: int) -> dict[str, tuple[int, ...]]:
    """Mistake → what tile (j, i) of a group stores: first row and column, end of rows and of columns.

    A fifth number, where there is one, is the column before which nothing is stored.
    """
    row, column = j * BLOCK_N, start + i * BLOCK_M
    first = "the first column of a group's tile 0 is `start`"
    return {
        "i and j are exchanged: i counts tiles along the group, j along N": (i * BLOCK_N, start + j * BLOCK_M, n, end),
        "rows are counted by i: i counts tiles along the group, and j those along N": (i * BLOCK_N, column, n, end),
        "columns are counted by j: j counts tiles along N, and i those along the group":
            (row, start + j * BLOCK_M, n, end),
        "columns are not counted by i: every tile of a group begins at its start": (row, start, n, end),
        "BLOCK_M and BLOCK_N are exchanged: a tile has BLOCK_N rows of C, and BLOCK_M of its columns":
            (j * BLOCK_M, start + i * BLOCK_N, n, end),
        "rows of C come in steps of BLOCK_N, and here in steps of BLOCK_M": (j * BLOCK_M, column, n, end),
        "columns of C come in steps of BLOCK_M, and here in steps of BLOCK_N": (row, start + i * BLOCK_N, n, end),
        "the mask compares columns with N, which is where rows of C end: columns end at `end`": (row, column, n, n),
        "the ends are exchanged in the mask: rows of C end at N, and columns at `end`": (row, column, end, n),
        f"`start` is not added: {first}": (row, i * BLOCK_M, n, end),
        f"`start` is not added, and the mask leaves out what lies before: {first}": (row, i * BLOCK_M, n, end, start),
        "`start` counts columns, and here it is multiplied by BLOCK_M: a tile begins at start + i * BLOCK_M":
            (row, (start + i) * BLOCK_M, n, end),
        "`start` is added twice, once in the columns and once in the pointers":
            (row, 2 * start + i * BLOCK_M, n, start + end),
        "`start` is added to the rows of C: a group is a range of columns": (start + j * BLOCK_N, i * BLOCK_M, n, end),
        "`start` is added to the rows of C, too: a group is a range of columns alone":
            (start + j * BLOCK_N, column, n, end),
        "the mask compares with the number of the group's columns, `end` - `start`, and not with where they end":
            (row, column, n, end - start),
        "the mask subtracts `start` from the columns, and `end` counts from the first column of C, as they do":
            (row, column, n, end + start),
        "the last row of C is left out: rows end at N, exclusive": (row, column, n - 1, end),
        "i * BLOCK_M is left out of the mask: every tile is compared as if it were the group's first":
            (row, column, n, end + i * BLOCK_M),
        "a group's last tile is stored whole: each of its columns has to be compared with `end`":
            (row, column, n, start - (start - end) // BLOCK_M * BLOCK_M),
        f"every tile is stored one column further on: {first}": (row, column + 1, n, end + 1),
        f"every tile is stored one column too early: {first}": (row, column - 1, n, end - 1),
    }  # fmt: skip


_NO_END = "no column is masked: the mask has to compare them with `end`"
_CUT_OFF = "tiles are cut off where C ends, at `total_m`, and not where their group does, at `end`"
_TURNED = "C is stored transposed: a feature is a row of C, ldc elements after the one before, and a token a column"
_ROUNDED_DOWN = "the group's start is rounded down: `start` can be any number"


def _known(case: Case, ran: Ran) -> list[str]:
    """The known mistakes whose stores give exactly this C."""
    c, total = ran.outputs["C"], len(case.inputs["a"])
    capacity = -(-case.inputs["capacity"] // BLOCK_M) * BLOCK_M
    reaches = any(bounds_of(case.inputs["ends"])[g][0] + capacity > total for g in case.inputs["groups"])
    unmasked = [why for why, past in ((_NO_END, reaches), (_CUT_OFF, False)) if past == _past_c(ran)]

    def whole_tiles(j, i, start, end, n):
        return j * BLOCK_N, start + i * BLOCK_M, n, total

    stores = {why: lambda *tile, why=why: _stores(*tile)[why] for why in _stores(0, 0, 0, 0, 0)}
    stores |= dict.fromkeys(unmasked, whole_tiles)
    found = [why for why, place in stores.items() if _gives(case, c, place)]
    for unit in (2, 4, 8, 16):

        def rounded_down(j, i, start, end, n, unit=unit):
            return j * BLOCK_N, start - start % unit + i * BLOCK_M, n, end

        if _ROUNDED_DOWN not in found and _gives(case, c, rounded_down):
            found.append(_ROUNDED_DOWN)
    if not found and _gives(
        case, c, lambda j, i, start, end, n: (j * BLOCK_N, start + i * BLOCK_M, n, end), turned=True
    ):
        return [_TURNED]
    return found


def _gives(case: Case, c: Written, place, turned: bool = False) -> bool:
    a, (n, total) = case.inputs["a"].double(), c.values.shape
    bounds = bounds_of(case.inputs["ends"])
    b = case.inputs["b"].double().view(len(bounds), -1, DEPTH)
    # Room for stores past the end of C, which the probe leaves out.
    found = torch.full((n + _room(case), total + _room(case)), torch.nan, dtype=torch.float64)
    tiles_n, tiles_m = -(-n // BLOCK_N), -(-case.inputs["capacity"] // BLOCK_M)
    for g in case.inputs["groups"]:
        start, end = bounds[g]
        for i, j in itertools.product(range(tiles_m), range(tiles_n)):
            row, column, bottom, right, left = (*place(j, i, start, end, n), 0)[:5]
            acc = torch.zeros(BLOCK_N, BLOCK_M, dtype=torch.float64)
            part = b[g][j * BLOCK_N : (j + 1) * BLOCK_N] @ a[start + i * BLOCK_M : start + (i + 1) * BLOCK_M].T
            acc[: part.shape[0], : part.shape[1]] = part
            wide, high = min(BLOCK_M, max(right - column, 0)), min(BLOCK_N, max(bottom - row, 0))
            since = min(max(left - column, 0), wide)
            found[row : row + high, column + since : column + wide] = acc[:high, since:wide]
    found = (found.mT if turned else found)[:n, :total].to(c.values.dtype)
    return torch.equal(c.missing, torch.isnan(found)) and torch.equal(c.values[~c.missing], found[~c.missing])


def _room(case: Case) -> int:
    """More elements than any tile of a case reaches past C."""
    return 2 * max(case.inputs["capacity"], BLOCK_N) + BLOCK_N * BLOCK_M


def _compared(case: Case, ran: Ran) -> Iterator[tuple[Finding, Causes]]:
    """Find stores outside of the computed groups; then compare these groups, full and partial tiles separately.

    Each finding has a guess at its cause from its columns, for use if no known mistake fits.
    """
    c, groups = ran.outputs["C"], sorted(case.inputs["groups"])
    bounds = bounds_of(case.inputs["ends"])
    a = case.inputs["a"].double()
    b = case.inputs["b"].double().view(len(bounds), -1, DEPTH)
    exact, mine = torch.zeros(c.values.shape, dtype=torch.float64), torch.zeros(len(a), dtype=torch.bool)
    for g in groups:
        exact[:, slice(*bounds[g])], mine[slice(*bounds[g])] = b[g] @ a[slice(*bounds[g])].T, True
    want = exact.to(c.values.dtype).double()
    pictures = _pictures(c, want, bounds, groups)
    for finding in _outside(case, ran, pictures):
        yield finding, ""
    reported = set()
    for token in (~c.missing.all(0) & ~mine).nonzero().flatten().tolist():
        check = "tail" if token >= bounds[-1][1] else "neighbours" if mine.any() else "empty"
        if check not in reported:
            reported.add(check)
            text, guess = _damaged(case, ran, bounds, token)
            yield Finding(check, text, pictures), guess

    right = c.values.double() == want
    if not mine.any() or right[:, mine].all():
        return
    if (rounded := _rounded(c, exact, mine)) is not None:
        yield Finding("tiles", rounded, pictures), ""
        yield Finding("partial", ABOVE, pictures), ""
        return
    if not _pieces(c.values.double(), BLOCK_M) & _pieces(want[:, mine], BLOCK_N):
        g = groups[0]
        part = slice(None), slice(*bounds[g])
        wrong = diagnosis.tiles(c.part(*part, f"group {g}"), want[part], (BLOCK_N, BLOCK_M))
        yield Finding("*", wrong, pictures), ""
        return
    for g in groups:
        start, end = bounds[g]
        last = start + (end - start) // BLOCK_M * BLOCK_M
        for check, columns in (("tiles", range(start, last)), ("partial", range(last, end))):
            if columns and not right[:, columns].all():
                text, guess = _wrong(case, c, want, g, bounds[g], columns)
                yield Finding(check, text, pictures), guess


def _pieces(values, step: int) -> set[tuple[float, ...]]:
    """Three elements of each column at every multiple of `step` rows: so much of a tile is never right by chance."""
    rows = [values[row : row + 3] for row in range(0, len(values) - 2, step)]
    return {tuple(piece) for part in rows for piece in part.T.tolist()}


def _rounded(c: Written, exact, mine) -> str | None:
    """A message if the written elements of the computed groups are right except for their rounding."""
    holds = c.values.dtype
    name = diagnosis.rounded_to(exact, lambda each: torch.equal(c.values[:, mine], each[:, mine].to(holds)))
    if not name:
        return None
    holds = str(holds).removeprefix("torch.")
    return f"these are the right numbers, rounded to {name}; C is {holds}, as c_ptr.dtype.element_ty says"


def _outside(case: Case, ran: Ran, pictures: list[dict]) -> Iterator[Finding]:
    """Stores outside of C: along its rows, or along its columns."""
    c = ran.outputs["C"]
    for event in ran.events:
        if event.kind == "store":
            yield Finding("features" if event.side == "rows" else "tail", Observed(event), pictures)
    if c.outside and not ran.events:
        # The side is unknown here; where N is a multiple of a tile, it is not past row N.
        check = "tail" if len(c.values) % BLOCK_N == 0 else "features"
        yield Finding(check, diagnosis.stores_outside(ran), pictures)


def _writer(case: Case, program: int) -> tuple[int, str]:
    """The group of a program's tile, and that tile in words."""
    groups, n = case.inputs["groups"], len(case.inputs["b"]) // len(case.inputs["ends"])
    tiles_n, tiles_m = -(-n // BLOCK_N), -(-case.inputs["capacity"] // BLOCK_M)
    tile_column, j = divmod(program, tiles_n)
    g = groups[tile_column // tiles_m]
    return g, f"tile ({j}, {tile_column % tiles_m}) of group {g}, in program {program},"


def _damaged(case: Case, ran: Ran, bounds: list, token: int) -> tuple[str, str]:
    """The owner of a written column outside of the computed groups, and the tile that wrote it. Then the same text with
    a likely mistake, or ""."""
    c, groups = ran.outputs["C"], case.inputs["groups"]
    owner = next((g for g, (start, end) in enumerate(bounds) if start <= token < end), None)
    program = int(c.writers[:, token].max())
    if program >= 0:
        g, tile = _writer(case, program)
    else:
        # Without a probe: the last computed group before it, or else the next one.
        g = max((g for g in groups if bounds[g][0] <= token), default=min(groups))
        tile = f"a tile of group {g}"
    start, end = bounds[g]
    text = f"column {token} of C belongs to {'no group' if owner is None else f'group {owner}'}, and {tile} wrote it.\n"
    if start == end:
        return f"{text}Group {g} is empty: start and end are both {start}, so there is no column between them", ""
    text += f"Group {g} has columns {start} to {end - 1}"
    if token < start:
        if token + BLOCK_M == end:
            return text, f"{text}: a tile must not be moved back so as to end with its group"
        return text, f"{text}, and none of its tiles begins before {start}"
    if token == end and c.missing[:, end + 1 : end + 2].all():
        return text, f"{text}: one too many, as `<=` in place of `<` gives"
    if _past_c(ran):
        return text, f"{text}: the whole tile was written, whatever of it is the group's"
    return text, f"{text}: its tiles are cut off where C ends, not where the group does"


def _past_c(ran: Ran) -> bool:
    """True if a store went past the last column of C."""
    c = ran.outputs["C"]
    sides = [event.side for event in ran.events if event.kind == "store"]
    return "columns" in sides or (not ran.events and c.outside > 0)


def _wrong(case: Case, c: Written, want, g: int, bounds: tuple[int, int], columns: range) -> tuple[Causes, Causes]:
    """The wrong elements of a group's full tiles, or of its last tile. Then the same with a likely mistake, or ""."""
    first, stop, (start, end) = columns.start, columns.stop, bounds
    part = c.part(slice(None), slice(first, stop), f"group {g}")
    text = f"columns {first} to {stop - 1} of C, of group {g}, were never written"
    cause: Causes = text
    if not part.missing.all():
        wrong = diagnosis.tiles(part, want[:, columns], (BLOCK_N, BLOCK_M))
        cause = wrong, f"(tiles counted from column {first} of C)"
    left_out = c.missing.all(0)[start:end]
    if left_out.any():
        size, since = end - start, start + int(left_out.nonzero()[0])
        if since == first == start + size // BLOCK_M * BLOCK_M and left_out[since - start :].all():
            has = f"its last tile has {stop - first} of {BLOCK_M} columns"
            return cause, f"{text}: {has}, and they have to be stored, too"
        if since == end - 1:
            return cause, (cause, f"column {end - 1} is group {g}'s last, and the mask leaves it out: is it one short?")
        return cause, ""
    row, col = (part.values.double() != want[:, columns]).nonzero()[0].tolist()
    program = int(part.writers[row, col])
    if program < 0 or part.missing[row, col]:
        return cause, ""
    by, tile = _writer(case, program)
    if by != g:
        return cause, (cause, f"column {first + col} belongs to group {g}, and {tile} wrote it last")
    tiles_n = -(-len(c.values) // BLOCK_N)
    if (times := int(part.counts[row, col])) > 1 and program % tiles_n == row // BLOCK_N:
        moved = "elements past an end are left out, not moved"
        return cause, (cause, f"column {first + col} was written {times} times: {moved}")
    return cause, ""


def _pictures(c: Written, want, bounds: list, groups: list[int]) -> list[dict]:
    """C as a strip cut where groups end, a column for each token. Groups that must not be written are in brackets."""
    pieces = [*bounds, (bounds[-1][1], c.values.shape[1])]
    panels = []
    for g, (start, end) in enumerate(pieces):
        states = []
        for feature in range(0, len(want), BLOCK_N):
            part = slice(feature, feature + BLOCK_N), slice(start, end)
            missing = c.missing[part]
            if g in groups:
                good = (c.values[part].double() == want[part]).all(0).tolist()
                state = [MISSING if gone else RIGHT if fine else WRONG for gone, fine in zip(missing.any(0), good)]
            else:
                state = [RIGHT if alone else WRONG for alone in missing.all(0)]
            states.append(state)
        name = "tail" if g == len(bounds) else f"{g}" if g else f"group {g}"
        title = name if g in groups or name == "tail" else f"({name})"
        if end > start:
            panels.append(table_panel(title, states, height=STRIP))
    return panels
