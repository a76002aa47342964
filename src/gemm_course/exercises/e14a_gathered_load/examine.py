"""Exercise 14a: a tile whose rows of x come by a row index, in place of a descriptor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

import msgspec
import torch
from torch import Tensor

from gemm_course.exercises.e14a_gathered_load.run import BLOCK_K, BLOCK_M, BLOCK_N
from gemm_course.exercises.inputs import bounds_of, whole_numbers
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.causes import ABOVE, Causes, Event, Observed
from gemm_course.judging.panels import panel

CHECKS = ("gather", "tail", "foreign", "bounds")
NEAR, FAR = 1 << 20, 1 << 24  # token numbers whose rows begin before the 2**31st element of x, and after it
_POSITIONS = ": out is in the order of positions, and its row r begins at r * ldo"
_NOWHERE = -(1 << 20)  # no row of x; so far away that no other matrix is there


def draw(rng: random.Random) -> list[Case]:
    """Whole tiles; then tails, empty experts and foreign positions, near and far; then no position of ours at all."""

    def part(block):
        return rng.randint(3, block - 3)  # at least three are missing: with one missing, no mask would look like `<=`

    def case(checks, sizes, n, h, first, foreign):
        ends = list(accumulate(sizes))
        owned = sorted(rng.sample(range(2 * max(sizes) + 8), max(sizes) + 4))
        tokens = [first + token for size in sizes for token in sorted(rng.sample(owned, size))]
        x = whole_numbers(rng, max(owned) + 1, h, low=9, high=31)
        if foreign:
            x[[row for row in range(len(x)) if first + row not in tokens]] = torch.nan
        w = whole_numbers(rng, len(sizes) * n, h, low=9, high=31).view(len(sizes), n, h)
        tokens += [_NOWHERE - rng.randrange(99) for _ in range(foreign)]
        label = f"N = {n}, H = {h}, experts of {', '.join(map(str, sizes))} rows, {foreign} positions after the last"
        inputs = {"x": x, "w": w, "tokens": tokens, "ends": ends, "first": first}
        return Case(inputs, checks, label=label)

    ragged = [0, 2 * BLOCK_M + part(BLOCK_M), 1, 0, BLOCK_M, 0]
    # The foreign positions end inside of the last expert's tile, or go on for another: the index has both ends.
    return [
        case(("gather",), [BLOCK_M, 3 * BLOCK_M], BLOCK_N, 2 * BLOCK_K, 0, 0),
        case(CHECKS, ragged, BLOCK_N + part(BLOCK_N), BLOCK_K + part(BLOCK_K), NEAR, part(BLOCK_M)),
        case((*CHECKS, "wide"), [BLOCK_M + part(BLOCK_M), 0, BLOCK_M + 2], part(BLOCK_N), part(BLOCK_K), FAR, 2),
        case(CHECKS, [0] * rng.randint(2, 3), part(BLOCK_N), part(BLOCK_K), NEAR, BLOCK_M + part(BLOCK_M)),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """First wrong rows, against likely mistakes; then rows that others have; then what the probes saw."""
    bounds, out = bounds_of(case.inputs["ends"]), ran.outputs["out"]
    last = case.inputs["ends"][-1]
    own = out.part(slice(0, last), slice(None), "out")
    want = _product(case, torch.tensor(case.inputs["tokens"][:last], dtype=torch.int64))
    pictures = [panel(own, want, (BLOCK_M, BLOCK_N), "your out")] if last else []
    wrong = not torch.equal(own.values.double(), want)
    loads = [_without_pitch(event) for event in ran.events if event.kind == "load"]
    if last and own.missing.all():
        stores = [Observed(event, _POSITIONS) for event in ran.events if event.kind == "store"]
        yield Finding("*", stores[:1] or "nothing of out was written", pictures)
        return
    if case.inputs["first"] == 0 and _scattered(case, ran):
        yield Finding("*", f"position r was stored to row tokens[r]{_POSITIONS}", pictures)
        return
    undefined = next((event for event in ran.events if event.kind == "undefined"), None)
    others_rows = list(_others_rows(case, ran, bounds))
    lost = [
        event for event in loads if event.matrix in ("x", None) and _has_whole_tile(case, event)
        and not _past_the_columns(event)
    ]  # fmt: skip
    if wrong and undefined:
        yield Finding("gather", Observed(undefined), pictures)
    elif wrong and not others_rows:
        check, why = _why(case, ran, own, want, bounds, lost, loads)
        yield Finding(check, why, pictures)
        if check == "*":
            return
        if check == "gather":
            yield Finding("wide", ABOVE)
    elif wrong and lost:
        yield Finding("gather", diagnosis.tiles(own, want, (BLOCK_M, BLOCK_N)), pictures)
    yield from (Finding(check, why, pictures) for check, why in others_rows)
    other_rows = wrong and not others_rows  # of x, so that no mask explains those outside
    yield from (Finding(check, why, pictures) for check, why in _touched(case, ran, loads, wrong, other_rows))


def _product(
    case: Case, tokens: Tensor, bounds: list | None = None, weight: int | None = None, columns: int | None = None
) -> Tensor:
    """out, float64, if position r has the row of x of `tokens[r]`; NaN where x has no such row.

    Each expert has its own weight, or all have that of expert `weight`. Only the first `columns` of x count, or all.
    """
    x, w = (case.inputs[name][..., :columns].double() for name in ("x", "w"))
    rows = tokens - case.inputs["first"]
    inside = (rows >= 0) & (rows < len(x))
    gathered = torch.where(inside[:, None], x[rows.clamp(0, len(x) - 1)], torch.nan)
    bounds = bounds_of(case.inputs["ends"]) if bounds is None else bounds
    weights = [w[g if weight is None else weight] for g in range(len(bounds))]
    return torch.cat([gathered[start:end] @ own.T for (start, end), own in zip(bounds, weights)])


def _other_stores(ran: Ran, want: Tensor, bounds: list) -> str:
    """A message if rows are stored a wrong distance apart, at wrong places, or only some of them; empty otherwise."""
    out = ran.outputs["out"]
    if pitch := out.wrong_pitch():
        return f"the rows of out are ldo = {out.values.stride(0)} elements apart, and they were stored {pitch} apart"
    filled = [(start, end) for start, end in bounds if start < end]
    moved = [(2 * start, min(start + end, len(out.values)), start) for start, end in filled if start]
    if any(first < stop for first, stop, _ in moved) and all(
        torch.equal(out.values[first:stop].double(), want[start : start + stop - first])
        for first, stop, start in moved
        if first < stop
    ):
        return "row r of out was stored `start` rows further on: `rows` contains `start`"
    position, stored = torch.arange(len(want)), ~out.missing[: len(want)].any(1)
    start, end = (torch.cat([torch.full((e - s,), (s, e)[i]) for s, e in filled]) for i in (0, 1))
    if torch.equal(stored, position < end - start):
        return (
            "a row was stored if it is below the expert's number of rows: `rows` counts over all experts, up to `end`"
        )
    if torch.equal(stored, (position - start) % BLOCK_N < BLOCK_M):
        return "tiles begin i * BLOCK_N rows further on: a tile has BLOCK_M rows"
    return ""


def _why(
    case: Case, ran: Ran, own, want: Tensor, bounds: list, lost: list[Event], loads: list[Event]
) -> tuple[str, Causes]:
    """The check that wrong rows break ("*": all), and the likely mistake."""
    tiles = diagnosis.tiles(own, want, (BLOCK_M, BLOCK_N))
    got, tokens = own.values.double(), torch.tensor(case.inputs["tokens"], dtype=torch.int64)
    last = case.inputs["ends"][-1]
    position = torch.arange(last)
    start = torch.cat([torch.full((end - start,), start) for start, end in bounds])

    def gave(index: Tensor) -> bool:
        product = _product(case, index)
        return bool(product.isfinite().any()) and torch.allclose(got, product, rtol=0, atol=0, equal_nan=True)

    if name := diagnosis.rounded_to(want, lambda rounded: torch.equal(got, rounded)):
        return "gather", (tiles, f"these are the right products, rounded to {name}: out is float32")
    if own.missing.any():
        text = "is each of an expert's rows stored, to its last column?"
        return "gather", (tiles, _other_stores(ran, want, bounds) or text)
    if case.inputs["first"] == 0 or not lost:
        within, later = (position - start) % BLOCK_M, "on: tile i begins i * BLOCK_M later"
        likely = {
            "row r of out has row r of x. Which row it needs is in the table: token `tokens[r]`'s": position,
            "these are the first entries of `tokens` for every expert: an expert's positions begin at `start`":
                tokens[position - start],
            f"every tile of an expert has the tokens from position `start` {later}": tokens[start + within],
            f"every tile of an expert has the tokens from position 0 {later}": tokens[within],
            "this is the row of token `tokens[r] + 1`: the row of token t begins at x_ptr + t * ldx":
                tokens[position] + 1,
            "this is the row of token `tokens[r] // 2`: the entries are tokens already": tokens[position] // 2,
            "all rows of an expert have the token of its first one: load BLOCK_M tokens": tokens[start],
        }  # fmt: skip
        if text := next((text for text, index in likely.items() if gave(index)), ""):
            return "gather", (tiles, text)
    elif case.inputs["first"] == FAR and torch.isnan(got).any():
        text = (
            f"the row of token {int(tokens[0])} begins past element 2**31, and a product of int32 numbers is int32: "
            "convert one of them first, `.to(tl.int64)`"
        )
        return "wide", (Observed(lost[0]), text)
    if stride := next(filter(None, (event.wrong_stride for event in loads)), None):
        return "gather", (tiles, stride)
    if lost:
        # Rows come from the table, so no `<=` in a mask has added one.
        return "gather", (Observed(lost[0], single=True), "the row of token t begins at x_ptr + t * ldx")
    masked = {"the positions' `end`": [end for start, end in bounds for _ in range(start, end)]}
    masked["the expert's number of rows"] = [end - start for start, end in bounds for _ in range(start, end)]
    for name, limit in masked.items():
        if torch.equal(got, torch.where(tokens[:last] < torch.tensor(limit), want.T, 0.0).T):
            return "*" if not got.any() else "gather", (
                tiles,
                f"rows of x are 0 unless the token's number is below {name}: the mask has to compare `rows` with `end`",
            )
    if torch.isnan(got).any():
        return "gather", (tiles, "NaN comes from elements that are not a token's own: mask the load along H, too")
    n, depth = case.inputs["w"].shape[1:]
    if n < depth and torch.equal(got, _product(case, tokens[:last], bounds, columns=n)):
        return "gather", (tiles, f"only the first N = {n} of {depth} columns are added: x has H columns")
    if h := case.inputs["w"].shape[2] // BLOCK_K * BLOCK_K:
        first = _product(case, tokens[:last], bounds, columns=BLOCK_K) * (h // BLOCK_K)
        if h == case.inputs["w"].shape[2] > BLOCK_K and torch.equal(got, first):
            return "gather", (tiles, f"columns 0 to {BLOCK_K - 1} are added in each turn: the columns begin at k")
    if ((got - want).abs() <= want.abs() / 128).all():
        return "gather", (
            tiles,
            "the numbers are nearly right: they were rounded on the way. `acc` and out are float32",
        )
    for g in range(len(bounds)):
        if torch.equal(got, _product(case, tokens[:last], bounds, weight=g)):
            return "gather", (tiles, f"every expert has the weight of expert {g}: W[g] begins at row g * N of W")
    right = diagnosis.right_as_written(own, want, (BLOCK_M, BLOCK_N))
    return ("gather" if right else "*"), tiles


def _others_rows(case: Case, ran: Ran, bounds: list) -> Iterator[tuple[str, Causes]]:
    """(check, cause) of rows that a tile stored and that its expert does not have, and of repeated stores."""
    out, last = ran.outputs["out"], case.inputs["ends"][-1]
    text = ": a tile's last rows may be another's, so mask the store with `rows < end`"
    past = (~out.missing[last:]).any(1)
    if out.missing[:last].any():  # what was stored there is missing elsewhere
        text = ""
    counts, own = out.counts[:last].amax(1), out.counts[:last]
    doubled = set((counts > 1).nonzero().flatten().tolist()) | set((last + past.nonzero().flatten()).tolist())
    if doubled and doubled <= {end for _, end in bounds}:
        yield "tail", f"row {min(doubled)} of out was stored by the expert that ends before it: `end` is exclusive"
        return
    if past.any():
        row = last + int(past.nonzero()[0])
        yield "tail", f"row {row} of out was written, and no expert has it: the last one ends before row {last}{text}"
        return
    if not last or int(counts.max()) < 2:
        return
    if int(own.min()) > 1:
        owners = [g for g, (start, end) in enumerate(bounds) for _ in range(start, end)]
        if [_tile_of(case, program)[0] for program in out.writers[:last].amax(1).tolist()] == owners:
            text = f"every element of out was stored {int(own.min())} times or more"
            yield "bounds", f"{text}: one store is enough, after the loop"
            return
        yield "bounds", ABOVE  # tiles of other experts stored them, and no loop
    row, never = int((counts > 1).nonzero()[0]), out.missing[:last].any(1)
    if (least := int(own[row].min())) < int(counts[row]):
        what = f"of row {row} of out, some columns were stored {least} times, and others {int(counts[row])} times"
        yield "gather", f"{what}: columns come in steps of BLOCK_N"
        return
    if never.any():
        what = (
            f"row {int(never.nonzero()[0])} of out was never stored, and row {row} was stored {int(counts[row])} times"
        )
        yield "gather", f"{what}: tile i of an expert has its rows from start + i * BLOCK_M on"
        return
    g = next(g for g, (start, end) in enumerate(bounds) if start <= row < end)
    writer = _tile_of(case, int(out.writers[row].max()))[0]
    if row < bounds[writer][0]:
        what = f"row {row} of out is expert {g}'s, and a tile of expert {writer} stored it"
        yield "gather", f"{what}: an expert's rows begin at `start`"
        return
    yield "tail", f"row {row} of out is expert {g}'s, and was stored by a tile of another expert, too{text}"


def _touched(case: Case, ran: Ran, loads: list[Event], wrong: bool, other_rows: bool) -> Iterator[tuple[str, Causes]]:
    """(check, cause) of accesses outside of the matrices, and of reads of rows that are not the expert's."""
    of_the_table = {event.line for event in loads if event.matrix == "tokens"} - {0}
    for event in loads:
        if event.matrix == "tokens" or (event.matrix is None and event.line in of_the_table):
            yield (
                "bounds",
                Observed(event, ": an expert's tile may reach past the table. Mask the load with `rows < end`"),
            )
        elif _past_the_columns(event) or event.matrix not in ("x", None):
            yield "bounds", Observed(event)
        elif not _has_whole_tile(case, event):
            note = (
                ". The tile reaches past its expert's last position, and a row there has no token: mask the load of x "
                "with `rows < end`, too"
            )
            yield "foreign", Observed(event, "" if other_rows else note, single=True)
        elif not wrong:
            yield "bounds", Observed(event)
    if outside := diagnosis.stores_outside(ran):
        yield "bounds", outside


def _tile_of(case: Case, program: int) -> tuple[int, int]:
    """The expert of a program, and the number of its tile along the rows."""
    tiles_n, positions = -(-case.inputs["w"].shape[1] // BLOCK_N), len(case.inputs["tokens"])
    g, tile = divmod(program, -(-positions // BLOCK_M) * tiles_n)
    return min(g, len(case.inputs["ends"]) - 1), tile // tiles_n


def _has_whole_tile(case: Case, event: Event) -> bool:
    """Whether all rows of the program's tile are its expert's, so that none of them needs a mask."""
    g, tile = _tile_of(case, event.program[0])
    start, end = bounds_of(case.inputs["ends"])[g]
    return start + (tile + 1) * BLOCK_M <= end


def _past_the_columns(event: Event) -> bool:
    """Whether the rows that are read are in x, and only the last block of columns reaches past its end."""
    inside = event.matrix == "x" and event.side == "columns" and 0 <= event.far[0] < event.shape[0]
    return inside and event.shape[1] <= event.place[1] and event.far[1] < -(-event.shape[1] // BLOCK_K) * BLOCK_K


def _scattered(case: Case, ran: Ran) -> bool:
    """Whether the rows were stored as often as there are positions with this token; never on a GPU."""
    counts = ran.outputs["out"].counts[:, 0]
    tokens = torch.tensor(case.inputs["tokens"])
    return torch.equal(counts, torch.bincount(tokens, minlength=len(counts))[: len(counts)].to(counts.dtype))


def _without_pitch(event: Event) -> Event:
    """The event without the distance between a tile's first two rows: here that depends on the tokens."""
    return msgspec.structs.replace(event, pitch=None) if event.matrix == "x" else event
