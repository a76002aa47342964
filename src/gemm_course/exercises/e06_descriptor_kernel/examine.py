"""Exercise 06: descriptors of packed A and C and of each group's own B, which is stored (N, K)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

import torch

from gemm_course.exercises.e06_descriptor_kernel import products
from gemm_course.exercises.e06_descriptor_kernel.run import BLOCK_K, BLOCK_M, BLOCK_N, UNIT
from gemm_course.exercises.inputs import bounds_of, whole_numbers
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran, Written
from gemm_course.judging.causes import ABOVE, Causes, Observed, Words
from gemm_course.judging.panels import panel

AS_THE_MATRIX = "The descriptor's extents and strides must be those of this matrix"
NOT_JUDGED = "not judged, as nothing of C is right"
ZERO = "C is 0 everywhere"


def draw(rng: random.Random) -> list[Case]:
    """Every second group is computed, so no other group overwrites wrong rows; all groups; N equal to K; whole blocks.

    The last case has more blocks of K, a drawn number, and three tiles in each group. Its sums exceed 2,048, so float16
    rounds them.
    """

    def case(groups, n, k, programs, *checks, long=False):
        whole = [2] * 4 if long else [rng.randint(0, 1) for _ in range(4)]
        sizes = [BLOCK_M * tiles + rng.randint(5, BLOCK_M - 2) for tiles in whole]
        # The first group that is computed has a whole tile: so something is right of an answer that loses the others.
        sizes[groups[0]] = BLOCK_M + sizes[groups[0]] % BLOCK_M
        if len(groups) == 2 and not long:
            # A computed group has more rows than lie before it: with A's pointer moved to the group, it is not all 0,
            # as with an extent that is too small, or a sum of nothing.
            before = groups[0] or 2
            sizes[before - 1] %= BLOCK_M
            sizes[before] = BLOCK_M * (sum(sizes[:before]) // BLOCK_M + 1) + sizes[before] % BLOCK_M
        if len(groups) == 4:
            sizes[rng.randint(1, 2)] = 0
        ends = list(accumulate(sizes))
        total = ends[-1] + rng.randint(BLOCK_M, BLOCK_M + 9)
        low, high = (3, 8) if long else (1, 3)
        a, b = (whole_numbers(rng, rows, k, low=low, high=high) for rows in (total, 4 * n))
        inputs = {"a": a, "b": b, "ends": ends, "groups": groups, "programs": programs}
        some = "" if len(groups) == 4 else f", of which {' and '.join(map(str, groups))} are computed"
        label = f"N = {n}, K = {k}, groups of {', '.join(map(str, sizes))} rows{some}"
        return Case(inputs, ("tiles", "depth", "descriptors", "extents", "group", *checks), label=label)

    square = UNIT * rng.randint(5, 7)  # two tiles of columns, so that no mistake at b.load is right by chance
    n, k = BLOCK_N + UNIT * rng.randint(1, 3), BLOCK_K + UNIT * rng.randint(1, 7)
    return [
        case([0, 2], n, k, 2),
        case([0, 1, 2, 3], n, k, 3),
        case([0, 1, 2, 3], square, square, 2, "transposed"),
        case([1, 3], BLOCK_N, BLOCK_K, 2),
        case([0, 2], n, rng.randint(4, 7) * BLOCK_K, 2, long=True),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """The probes' events; written rows of no computed group; then C, group by group, against likely mistakes.

    A mistake's effect on C is not reported again. Errors of C that it does not explain are.
    """
    a, c = case.inputs["a"].double(), ran.outputs["C"]
    groups = case.inputs["groups"]
    bounds = bounds_of(case.inputs["ends"])
    b = case.inputs["b"].double().view(4, -1, a.shape[1])
    want, mine = torch.zeros(c.values.shape, dtype=torch.float64), torch.zeros(len(a), dtype=torch.bool)
    for g in groups:
        want[slice(*bounds[g])], mine[slice(*bounds[g])] = a[slice(*bounds[g])] @ b[g].T, True
    want = want.to(c.values.dtype).double()
    pictures = _pictures(c, want, bounds, groups)
    read = False
    for event in ran.events:
        if event.kind == "pointer":
            text = f"a pointer leads into {event.matrix}, not a descriptor"
            yield Finding("descriptors", Words(text, event.line))
        elif event.kind == "load":
            read = True
            yield Finding("extents", (Observed(event, "."), AS_THE_MATRIX), pictures)
    if shifted := next((g for g in groups if _at_row_zero(c, want, bounds[g])), None):
        why = f"group {shifted} is stored from row 0 of C on: its rows begin at `start`, so nothing is subtracted"
        yield Finding("group", why, pictures)
        yield Finding("tiles", ABOVE)
        yield from _not_judged(case, False)
        return
    past = _past_the_end(c, bounds, groups)
    outside: Causes = diagnosis.stores_outside(ran, ".")
    if written := (outside, AS_THE_MATRIX) if outside else past:
        yield Finding("group", written, pictures)

    right = c.values.double() == want
    if right[mine].all():
        if not written and int(c.counts[mine].max()) > 1:
            yield Finding(*_stored_again(c.counts[mine], c.writers[mine], a.shape[1]))
        if wasted := _past_k(ran, a.shape[1]):
            yield Finding("depth", wasted)
        return
    some = _some_line(right, bounds, groups)
    skip = _reached(bounds, groups, bool(past))
    kept = [row for g in groups for row in range(bounds[g][0] + skip[g], bounds[g][1])]
    explained = read and bool((torch.isnan(c.values) & (c.counts > 0))[mine].any())
    if explained or (past and right[kept].all()) or (written and _elsewhere(c, right, want[mine])):
        yield Finding("tiles", ABOVE)
        # Wrong reads and stores hide other mistakes.
        yield from _not_judged(case, some)
        return
    wrong = next(g for g in groups if not right[slice(*bounds[g])].all())
    rows = slice(*bounds[wrong]), slice(None)
    tiles = diagnosis.tiles(c.part(*rows, f"group {wrong}"), want[rows], (BLOCK_M, BLOCK_N))
    check, why = _why(a, b, c, bounds, groups, skip)
    if check == "tiles" or check is None:
        yield Finding(check or ("tiles" if some else "*"), (why, tiles), pictures)
        yield from _not_judged(case, some or why != ZERO)
    else:
        yield Finding(check, why, pictures)
        yield Finding("tiles", ABOVE)


def _stored_again(counts, writers, depth: int) -> tuple[str, str]:
    """(check, cause) of a right C that was stored several times: in the loop over K, or by several programs."""
    text, times = "every element of C is right, and", int(counts.max())
    # Where each program computes all tiles, the last one has written all of them.
    if (counts == -(-depth // BLOCK_K)).all() and len(writers.unique()) > 1:
        return "depth", f"{text} was stored {times} times: store after the loop"
    if any(tile.unique().numel() > 1 for row in counts for tile in row.split(BLOCK_N)):
        why = "tiles overlap: rows come in steps of BLOCK_M, columns in steps of BLOCK_N"
        return "tiles", f"{text} some were stored {times} times: {why}"
    why = "a program begins with `first`, and its next tile is tl.num_programs(0) further on"
    return "tiles", f"{text} some were stored {times} times, by several programs: {why}"


def _past_k(ran: Ran, depth: int) -> Words | None:
    """The loads of blocks that lie past K, where there is more than one to a tile: a loop may load one ahead."""
    for event in ran.events:
        if event.kind == "beyond" and event.side == "columns" and event.far[1] >= depth + BLOCK_K:
            has = f"{event.matrix}, which has columns 0 to {depth - 1}"
            text = f"blocks are loaded up to column {event.far[1]} of {has}: every element of C is right, and the loop "
            return Words(f"{text}goes on past K, over zeros", event.line)
    return None


def _at_row_zero(c: Written, want, bounds: tuple[int, int]) -> bool:
    """True if rows 0 and on of C hold a group that begins further on: its last row, which nothing overwrites."""
    start, end = bounds
    own = slice(end - start - 1, end - start)
    # Where that is a row of the group, A may be read further down instead; then the last row is written, too.
    if not 0 < start < end or (end - start > start and not c.missing[end - 1].all()):
        return False
    return torch.equal(c.values[own].double(), want[end - 1 : end])


def _not_judged(case: Case, some: bool) -> Iterator[Finding]:
    """Findings that the checks "transposed" and "depth" are not judged, because nothing of C is right."""
    unknown = [each for each in ("transposed", "depth") if each in case.checks and not some]
    yield from (Finding(each, NOT_JUDGED) for each in unknown)


def _some_line(right, bounds: list, groups: list[int]) -> bool:
    """Whether a row or a column of a tile is right: single elements may be right by chance."""
    for g in groups:
        for rows in right[slice(*bounds[g])].split(BLOCK_M):
            for tile in rows.split(BLOCK_N, dim=1):
                if tile.numel() and (tile.all(0).any() or tile.all(1).any()):
                    return True
    return False


def _elsewhere(c: Written, right, want) -> bool:
    """True if a piece of a row of ``want`` is at a wrong place of C."""
    places = c.values.double().masked_fill(right, torch.nan).unfold(1, UNIT, 1).reshape(-1, UNIT)
    pieces = want[:, : want.shape[1] // UNIT * UNIT].reshape(-1, UNIT)
    return not set(map(tuple, places.tolist())).isdisjoint(map(tuple, pieces.tolist()))


def _reached(bounds: list, groups: list[int], past: bool) -> dict[int, int]:
    """Number of each group's first rows that the last tile of another group may have overwritten."""
    found, reach = {}, 0
    for g in groups:
        start, end = bounds[g]
        found[g] = min(max(reach - start, 0), end - start) if past else 0
        reach = max(reach, start + -(-(end - start) // BLOCK_M) * BLOCK_M)
    return found


def _past_the_end(c: Written, bounds: list, groups: list[int]) -> str | None:
    """The first written row that belongs to no computed group, and the tile that wrote it."""
    owned = {row for g in groups for row in range(*bounds[g])}
    row = next((row for row in range(len(c.values)) if row not in owned and not c.missing[row].all()), None)
    if row is None:
        return None
    owner = next((g for g, (start, end) in enumerate(bounds) if start <= row < end), None)
    belongs_to = "the tail" if owner is None else f"group {owner}, which this launch does not compute"
    text = f"row {row} of C belongs to {belongs_to}, and was written"
    # Tiles begin at their group's first row, so only the last one of a group reaches past it.
    by = next((g for g in reversed(groups) if bounds[g][1] <= row), None)
    if by is None:
        return text
    start, end = bounds[by]
    last = (end - start - 1) // BLOCK_M
    program = int(c.writers[row].max())
    text += f" by tile ({last}, 0) of group {by}" + (f", in program {program}" if program >= 0 else "")
    return f"{text}.\nGroup {by} has rows {start} to {end - 1}: where does the descriptor of C end?"


def _why(a, b, c: Written, bounds: list, groups: list[int], skip: dict[int, int]) -> tuple[str | None, str]:
    """The broken check ("*": all; None: unknown), and the mistake that gives exactly this C.

    The first ``skip`` rows of each group are not compared.
    """
    depth = a.shape[1]
    last = (depth - 1) // BLOCK_K * BLOCK_K

    def same(group: int, expected) -> bool:
        """True if the written C of a group is as expected."""
        start, end = bounds[group]
        return torch.equal(c.values[start + skip[group] : end], expected.to(c.values.dtype)[skip[group] :])

    def gave(product) -> bool:
        """True if the written C is `product(rows of A, B)` in every group."""
        return all(same(g, product(a[slice(*bounds[g])], b[g])) for g in groups)

    def same_but_last(group: int) -> bool:
        """True if the C of a group is right, except that its last row was not written."""
        start, end = bounds[group]
        product = (a[start:end] @ b[group].T).to(c.values.dtype)
        missing = c.missing[start:end]
        others = torch.equal(c.values[start : end - 1], product[:-1]) and not missing[:-1].any()
        return others and bool(missing[-1].all())

    # With less than one block, a loop that leaves out the rest gives zeros, like an answer that computes nothing.
    if depth <= BLOCK_K and gave(lambda x, y: 0 * x @ y.T):
        return ("tiles", ZERO) if depth < BLOCK_K else (None, f"{ZERO}: is the first block of K summed?")
    for summed in range(1, depth):
        if gave(lambda x, y, n=summed: x[:, :n] @ y[:, :n].T):
            why = "where do the loop over K, and the descriptors of A and B, end?"
            if summed == depth // BLOCK_K * BLOCK_K:
                why = f"the loop over K leaves out the last block, of which {depth - summed} columns are left"
            return "depth", f"C is the sum over the first {summed} of {depth} columns of A and B: {why}"
    if last and gave(lambda x, y: x[:, last:] @ y[:, last:].T):
        text = f"C is the product of columns {last} to {depth - 1} alone"
        return "depth", f"{text}: is each block added to the sum, also the first?"
    if last and gave(lambda x, y: (last // BLOCK_K + 1) * x[:, :BLOCK_K] @ y[:, :BLOCK_K].T):
        return "depth", f"C is the product of columns 0 to {BLOCK_K - 1}, added again for each block: does k move?"
    if last and gave(products.each_added_again):
        return "depth", "each turn adds all earlier blocks again: tl.dot(…, acc) contains `acc`, so assign it"
    for name, step in (("BLOCK_N", BLOCK_N), ("BLOCK_M", BLOCK_M)):
        if gave(
            lambda x, y, step=step: sum(products.block(x, k) @ products.block(y, k).T for k in range(0, depth, step))
        ):
            return "depth", f"columns are summed more than once: k goes on by {name}, and a block has BLOCK_K columns"
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        if any(gave(lambda x, y, i=i, dtype=dtype: diagnosis.roundings(x @ y.T, dtype)[-i]) for i in (0, 1)):
            return "tiles", f"these are the right sums, rounded to {name}: C holds c.dtype, and a store converts to it"
        if any(gave(lambda x, y, i=i, dtype=dtype: products.summed_in(dtype, i, x, y)) for i in (0, 1)):
            return "depth", f"the sum was rounded to {name} after each block: `acc` has to stay float32 until the store"
    full = [g for g in groups if bounds[g][0] < bounds[g][1]]
    if full and all(same_but_last(g) for g in full):
        text = f"row {bounds[full[0]][1] - 1} of C, the last one of group {full[0]}, was not written"
        return "tiles", f"{text}: the descriptor of C ends a row too early"
    if b.shape[1] == depth and gave(lambda x, y: x @ y):
        return "transposed", f"C is A B, not A Bᵀ: a row of B holds the {depth} weights of one column of C"
    if gave(lambda x, y: x @ products.reshaped(y)):
        return "transposed", (
            "B's blocks have the right shape, and their elements the wrong order: .reshape() fills the new rows from "
            "the old ones as they come, .T makes rows of columns"
        )
    for check, why, places in products.LOADS:
        if all(same(g, products.loaded(a, b[g], bounds[g], places)) for g in groups):
            return check, why
    if early := _ends_early(a, b, c, bounds, groups, skip):
        return "tiles", early
    if all(same(g, products.moved(a, *bounds[g]) @ b[g].T) for g in groups):
        return "tiles", "A is read too far down: its pointer was moved to the group, and row counts from row 0 of A"
    if all(same(g, products.carried_over(a, b[g], c.writers, bounds[g])) for g in groups):
        return "tiles", "a program's later tiles contain its earlier ones: each tile's `acc` begins with zeros"
    return None, "NaN comes from elements outside of A and B" if torch.isnan(c.values[~c.missing]).any() else ""


def _ends_early(a, b, c: Written, bounds: list, groups: list[int], skip: dict[int, int]) -> str:
    """A message if a descriptor has as many rows as the group, counted from row 0 or, C's, from the group on.

    Arguments as `_why`.
    """
    others = torch.ones(len(a), dtype=torch.bool)
    for g in groups:
        others[slice(*bounds[g])] = False
    # Rows written elsewhere are not missing.
    read, written = True, bool(c.missing[others].all())
    moved = written
    for g in groups:
        (start, end), size = bounds[g], bounds[g][1] - bounds[g][0]
        start += skip[g]
        got, missing, whole = c.values[start:end].double(), c.missing[start:end], a[start:end] @ b[g].T
        before = (torch.arange(start, end) < size)[:, None].expand_as(whole)
        read &= torch.equal(got, whole * before)
        written &= torch.equal(missing, ~before) and torch.equal(got[before], whole[before])
        after = (torch.arange(start, end) >= 2 * bounds[g][0])[:, None].expand_as(whole)
        should = whole[: int(after[:, 0].sum())].flatten()
        moved &= not skip[g] and torch.equal(missing, ~after) and torch.equal(got[after], should)
    early = next((g for g in groups if 0 < bounds[g][0] < bounds[g][1]), None)
    if early is None or not (read or written or moved):
        return ""
    start, end = bounds[early]
    if not (read or written):
        early = next(g for g in groups if 0 < 2 * bounds[g][0] < bounds[g][1])
        text = f"group {early} begins at row {bounds[early][0]} of C, and is stored from row {2 * bounds[early][0]} on"
        return f"{text}: C's pointer was moved to the group, and coordinates count from it, so the row is `row - start`"
    what = "A is read as zero" if read else "C is not written"
    return (
        f"{what} in group {early} from row {max(start, end - start)} on: its descriptor ends at row {end - start}, "
        f"and the group's tiles start at row {start}. Coordinates count from the pointer: where it is at row 0, the "
        f"extent must be the group's end, {end}, and where it is at the group, the row is `row - start`"
    )


def _pictures(c: Written, want, bounds: list, groups: list[int]) -> list[dict]:
    """The tiles of each computed group, and of the other groups with damage, where unwritten is right."""
    panels = []
    for g, (start, end) in enumerate(bounds):
        rows = slice(start, end), slice(None)
        part = c.part(*rows, f"group {g}")
        if g not in groups:
            alone = part.missing
            if not alone.all():
                part.missing = torch.zeros_like(alone)
                title = f"group {g}, not yours"
                panels.append(panel(part, want[rows], (BLOCK_M, BLOCK_N), title, right=alone))
        elif end > start:
            panels.append(panel(part, want[rows], (BLOCK_M, BLOCK_N), f"group {g}"))
    return panels
