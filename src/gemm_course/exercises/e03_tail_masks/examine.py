"""Exercise 03: the masks of a tiled product whose A is stored transposed, so that no mask can be copied."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import torch

from gemm_course.exercises.e03_tail_masks.run import BLOCK
from gemm_course.exercises.inputs import whole_numbers
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran, Written
from gemm_course.judging.cause_sentences import counted
from gemm_course.judging.causes import BELOW, Causes, Event, Observed
from gemm_course.judging.panels import panel

OUTSIDE = "NaN comes from elements outside of A and B: they must count as zero"


def draw(rng: random.Random) -> list[Case]:
    """Whole tiles; then tails along all three extents, once with M below N, and once with M above it and three blocks
    of K."""

    def tail(tiles):
        # At least two short of a tile: with one short, a missing mask reads as far as `<=` does.
        return BLOCK * tiles + rng.randint(1, BLOCK - 2)

    def apart(draw, *others):
        # At least two from the other extents: a mask that compares with one of these is no `<=`.
        while any(abs((found := draw()) - each) < 2 for each in others):
            pass
        return found

    (m, n), (high, low), (few, some) = (tail(1), tail(2)), (tail(2), tail(1)), (rng.randint(2, 9), rng.randint(10, 15))
    shapes = [
        ((BLOCK * 2, BLOCK * 2, BLOCK * 2), ("tiles",)),
        ((m, n, apart(lambda: tail(1), m, n)), ("tiles", "tail", "loads", "zeros", "store")),
        ((high, low, apart(lambda: tail(2), high, low)), ("tiles", "tail", "loads", "zeros", "store")),
        ((few, some, apart(lambda: rng.randint(2, 15), few, some)), ("tiles", "tail", "loads", "zeros", "store")),
    ]
    cases = []
    for (m, n, k), checks in shapes:
        # No zeros: every missing or additional element changes a sum. Most sums pass 2048, from where float16 holds no
        # odd numbers; none passes float16's largest number. A wrong sum is hardly ever right by chance.
        a, b = (whole_numbers(rng, k, extent, low=9, high=31) for extent in (m, n))
        cases.append(Case({"a": a, "b": b}, checks, label=f"M = {m}, N = {n}, K = {k}, tiles of {BLOCK} × {BLOCK}"))
    return cases


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Assign the probes' events to the masks; then compare C, also with the results of likely mistakes."""
    a, b = case.inputs["a"].double(), case.inputs["b"].double()
    want, c = a.T @ b, ran.outputs["C"]
    picture = [panel(c, want, (BLOCK, BLOCK), "your C", reach=BLOCK)]
    text = diagnosis.tiles(c, want, (BLOCK, BLOCK))
    check, why = _why(a, b, c, want, ran) if text else (None, "")
    if text and (moved := _added_twice(c, want)):
        check, why = "tiles", moved
    if check == "*":
        yield Finding("*", (text, why), picture)
        return
    if not text:  # what is undefined does not reach C: other code leaves it out
        ran.events = [event for event in ran.events if event.kind != "undefined"]
    loads = [(_check_of(event), _observed(event)) for event in ran.events if event.kind in ("load", "undefined")]
    if loads and check == "tiles" and (not why or why == OUTSIDE):
        yield Finding("tiles", (loads[0][1], text), picture)  # the mask is the reason, and comes first
    for name, cause in loads:
        yield Finding(name, cause, picture)
    if outside := diagnosis.stores_outside(ran):
        yield Finding("store", outside, picture)
    if not text and (times := int(c.counts.max())) > 1:
        stored = f"every element of C is right, and was stored {times} times: one store is enough, after the loop"
        yield Finding("tiles", stored, picture)
    if text and check == "tiles":
        yield Finding("tiles", (text, why), picture)
    elif text:
        yield Finding("tiles", (text, BELOW), picture)
        yield Finding(check, why, picture)


def _check_of(event: Event) -> str:
    """The check that a load outside breaks, or one without a value for what its mask leaves out."""
    return "zeros" if event.kind == "undefined" else "tail" if event.side == "rows" else "loads"


def _observed(event: Event) -> Observed:
    if event.kind != "load" or event.side not in ("rows", "columns"):
        return Observed(event)
    if event.shape[event.side == "columns"] % BLOCK == 0:
        return Observed(event, ". Its blocks are whole, so no mask is wrong here: the pointers are", single=True)
    along_k = event.side == "rows"
    return Observed(event, f". Rows of {event.matrix} run along K: look at the K mask" if along_k else "")


def _why(a, b, c: Written, want, ran: Ran) -> tuple[str, Causes]:
    """The check that a wrong C breaks ("*": all), and a likely mistake, if one is known."""
    depth, (rows, cols) = len(a), want.shape
    last = (depth - 1) // BLOCK * BLOCK
    got, stores = c.values.double(), [event.kind == "store" for event in ran.events]
    written = ~c.missing & ~torch.isnan(got)

    def gave(product) -> bool:
        return torch.equal(got[written], product[written])

    if written.any() and not gave(want):
        if name := diagnosis.rounded_to(want, gave):
            return "tiles", f"these are the right sums, rounded to {name}: the type of C is c_ptr.dtype.element_ty"
        if why := _rounded_or_doubled(a, b, gave):
            return "tiles", why
        for summed in range(depth):
            if gave(a[:summed].T @ b[:summed]) and (summed or not torch.isnan(got[~c.missing]).any()):
                return _sum_ends_early(summed, depth, c)
        if gave(a[last:].T @ b[last:]):
            return "tiles", f"this is the sum over rows {last} to {depth - 1} of A and B alone: is each block added?"
        for name, product in (("A", _blocks_twice(a, rows, cols, 0)), ("B", _blocks_twice(b, rows, cols, 1))):
            if gave(product):
                return "tiles", f"both operands of tl.dot are blocks of {name}: does each load take its own pointers?"
        for names, product in _turned(a, b):
            if gave(product[:rows, :cols]):
                why = f"every block of {names} was transposed in the load: load a and b as they are stored"
                return "tiles", why
        if gave(_blocks_turned(want)[1][:rows, :cols]):
            return "tiles", "each tile of C is stored transposed: `acc` has the tile's rows and columns already"
        alive = got != 0
        rows_alive, cols_alive = alive.any(1), alive.any(0)
        if gave(want * rows_alive[:, None] * cols_alive):
            noun, name, kept = ("row", "A", rows_alive) if not rows_alive.all() else ("column", "B", cols_alive)
            place = int((~kept).nonzero()[0])
            text = f"{noun} {place} of C is 0: does the mask of {name}'s load leave out column {place} of {name}?"
            return "loads", text
        beyond, off = last + BLOCK - depth, (got - want)[written]
        if beyond and (off == off[0]).all():
            return "zeros", (
                f"every sum is off by {off[0]:g}: the last block has {counted(beyond, 'row')} beyond K, and "
                f"each adds {off[0] / beyond:g}. A masked element counts as `other=`, so that must be 0"
            )
    nothing_right = all(stores) and not diagnosis.right_as_written(c, want, (BLOCK, BLOCK))
    check = "*" if nothing_right else "tiles"
    if torch.isnan(c.values[~c.missing]).any():
        return check, OUTSIDE
    if place := _moved(c, want):
        return check, place
    if c.missing.any() and any(stores):
        text = "the store's mask leaves out elements of C and accepts elements outside of it"
        exchanged = torch.ones_like(c.missing)
        exchanged[:cols, :rows] = False
        return check, text + ": are M and N exchanged?" * torch.equal(c.missing, exchanged)
    if c.missing.any() and not ran.events and not nothing_right:
        row, col = c.missing.nonzero()[0].tolist()
        return check, f"({row}, {col}) is inside C ({rows} × {cols}), and the store's mask leaves it out"
    return check, ""


def _moved(c: Written, want) -> str:
    """A message if all elements are stored a row or a column, or a block of them, away from their places."""
    (rows, cols), got = want.shape, c.values.double()
    for noun, step in itertools.product(("row", "column"), (1, -1, BLOCK, -BLOCK)):
        down, right = (step, 0) if noun == "row" else (0, step)
        if abs(down) >= rows or abs(right) >= cols:
            continue
        moved = torch.full_like(want, torch.nan)
        kept = want[max(-down, 0) : rows - max(down, 0), max(-right, 0) : cols - max(right, 0)]
        moved[max(down, 0) : rows + min(down, 0), max(right, 0) : cols + min(right, 0)] = kept
        if torch.equal(torch.isnan(moved), c.missing) and torch.equal(moved[~c.missing], got[~c.missing]):
            return f"C is stored {counted(abs(step), noun)} {'further on' if step > 0 else 'too early'}"
    return ""


def _added_twice(c: Written, want) -> str:
    """A message if each tile is stored as far from its place as that is from C's first row, or column, or both."""
    (rows, cols), ldc = want.shape, c.values.stride(0)
    for what, down, across in (("`row` and `col`", 1, 1), ("`row`", 1, 0), ("`col`", 0, 1)):
        flat = torch.full((2 * (rows + BLOCK) * ldc,), torch.nan, dtype=torch.float64)
        for i in range(0, rows, BLOCK):
            for j in range(0, cols, BLOCK):
                tile = want[i : i + BLOCK, j : j + BLOCK]
                places = torch.arange(tile.shape[0])[:, None] * ldc + torch.arange(tile.shape[1])
                flat[places + (1 + down) * i * ldc + (1 + across) * j] = tile
        found = flat[: rows * ldc].view(rows, ldc)[:, :cols]
        same = torch.equal(torch.isnan(found), c.missing)
        if same and c.missing.any() and torch.equal(found[~c.missing], c.values.double()[~c.missing]):
            return f"`c_ptrs` contains {what} already: nothing is added to it where C is stored"
    return ""


def _rounded_or_doubled(a, b, gave) -> str:
    """A mistake in the sum over blocks, if it gives what was written; else empty."""
    blocks = [(a[k : k + BLOCK], b[k : k + BLOCK]) for k in range(0, len(a), BLOCK)]
    products = [x.T @ y for x, y in blocks]
    if gave(sum(products) + products[-1]):
        return "the last block of K is added twice: is it added in the loop and once more after it?"
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        if gave(sum(each.to(dtype).double() for each in products)):
            return f"the product of each block was rounded to {name} before it was added: `acc` is float32"
        total = torch.zeros_like(products[0])
        for each in products:
            total = (total + each).to(dtype).double()
        if gave(total):
            return f"the sum was rounded to {name} after each block: `acc` has to stay float32 until the store"
    return ""


def _sum_ends_early(summed: int, depth: int, c: Written) -> tuple[str, str]:
    """As `_why`, for a C that is the sum over the first rows of A and B only."""
    text = f"this is the sum over the first {summed} of {depth} rows of A and B only"
    if (times := int(c.counts.max())) > 1:
        return "tiles", f"{text}, and each element was stored {times} times: is the store in the loop, before tl.dot?"
    if summed == 0:
        # With one block, a store before tl.dot gives this, too; with more, nothing was computed.
        return ("*" if depth > BLOCK else "tiles"), "C is 0 everywhere: nothing was added to `acc`"
    if summed == depth - 1:
        return "tail", f"{text}: is the mask along K one short?"
    return "tail", f"{text}: the masks along K leave out the rest. `depth` includes k * BLOCK: compare it with K"


def _blocks_twice(matrix, rows: int, cols: int, axis: int) -> torch.Tensor:
    """C if both operands are the same block: of A by the tile's rows (`axis` 0), or of B by its columns (1).

    Only where both have the same extent: elsewhere loads leave the matrix.
    """
    if rows != cols:
        return torch.full((rows, cols), torch.nan, dtype=torch.float64)
    found = torch.zeros(rows, cols, dtype=torch.float64)
    for i in range(0, rows, BLOCK):
        for j in range(0, cols, BLOCK):
            block = matrix[:, (i, j)[axis] :][:, :BLOCK]
            found[i : i + BLOCK, j : j + BLOCK] = block.T @ block
    return found


def _blocks_turned(matrix) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix padded to whole blocks; then each of them transposed."""
    down, across = (-(-extent // BLOCK) for extent in matrix.shape)
    padded = torch.zeros(down * BLOCK, across * BLOCK, dtype=matrix.dtype)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded, padded.view(down, BLOCK, across, BLOCK).transpose(1, 3).reshape(padded.shape)


def _turned(a, b) -> Iterator[tuple[str, torch.Tensor]]:
    """(names, product) with the blocks of one operand, or of both, transposed once too often."""
    (a, a_turned), (b, b_turned) = _blocks_turned(a), _blocks_turned(b)
    yield "A", a_turned.T @ b
    yield "B", a.T @ b_turned
    yield "A and of B", a_turned.T @ b_turned
