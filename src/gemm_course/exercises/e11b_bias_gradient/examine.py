"""Exercise 11b: the bias gradient, sums over each group's rows, every one of them with a single writer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

import torch

from gemm_course.exercises import sum_mistakes
from gemm_course.exercises.e11b_bias_gradient.run import BLOCK_M, BLOCK_N, KERNEL
from gemm_course.exercises.inputs import bounds_of, whole_numbers
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran, Written
from gemm_course.judging.causes import ABOVE, BELOW, Causes, Observed, Words
from gemm_course.judging.panels import panel

CHECKS = ("sums", "tail", "empty", "writer", "float32", "bounds")


def draw(rng: random.Random) -> list[Case]:
    """First no empty groups; then some, first, in the middle and last; then no tokens at all."""

    def case(sizes, n):
        ends = list(accumulate(sizes))
        total = ends[-1] + rng.randint(BLOCK_M, BLOCK_M + 8)
        # A block's sum passes 2048, from where float16 holds no odd numbers.
        grad = whole_numbers(rng, total, n, low=131, high=250)
        grad[ends[-1] :] = torch.nan
        label = f"N = {n}, groups of {', '.join(map(str, sizes))} tokens, {total - ends[-1]} after the last"
        return Case({"grad": grad, "ends": ends}, CHECKS, label=label)

    def part():
        return sum_mistakes.part(rng, BLOCK_M)

    return [
        case([BLOCK_M + part(), 2 * BLOCK_M + part(), 1], BLOCK_N),
        case(sum_mistakes.group_sizes(rng, BLOCK_M), BLOCK_N + part()),
        case([0] * rng.randint(2, 3), part()),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """First who stored what, and how often; then the empty groups; then the others, against likely mistakes."""
    bounds, out = bounds_of(case.inputs["ends"]), ran.outputs["out"]
    parts = case.inputs["grad"][: bounds[-1][1]].double()  # what each token adds
    want = torch.stack([parts[slice(*each)].sum(0) for each in bounds])
    rows = [out.part(slice(g, g + 1), slice(None), f"out[{g}]") for g in range(len(bounds))]
    pictures = [panel(out, want, (1, BLOCK_N), "your out")]
    filled = [g for g, (start, end) in enumerate(bounds) if start < end]
    wrong = [g for g in filled if not torch.equal(rows[g].values[0].double(), want[g])]
    writers = _writers(ran, bounds, not wrong)
    some = any(diagnosis.right_as_written(rows[g], want[g : g + 1], (1, BLOCK_N)) for g in filled)
    if pitch := out.wrong_pitch():
        stride = out.values.stride(0)
        text = f"the rows of out are stride_out = {stride} elements apart, and they were stored {pitch} apart"
        checks = {"sums" if g in filled else "empty" for g in range(len(bounds))}
        yield from (Finding(check, text, pictures) for check in checks)
        if outside := diagnosis.stores_outside(ran):
            yield Finding("bounds", (outside, text), pictures)
        return
    if filled and (text := _computed_elsewhere(ran) or (not some and (writers or _nothing(ran)))):
        yield Finding("*", text, pictures)
        return
    programs = _programs(ran.value)
    misplaced = "" if writers else _misplaced(rows, want, filled, programs)
    check, why = (None, "") if writers or not wrong else _why(ran, rows, want, parts, bounds, wrong, misplaced)
    undefined = sum_mistakes.explain_undefined(ran, bool(wrong))
    if undefined and undefined[0] == "ends":
        check, why = "sums", undefined[1]
    if check == "*" or (check and not (why or some)):
        yield Finding("*", why or diagnosis.tiles(out, want, (1, BLOCK_N)), pictures)
        return
    if undefined and undefined[0] != "ends":
        yield Finding("tail", undefined[1], pictures)
    for event in ran.events:
        if event.matrix == "ends" and event.kind != "undefined":
            yield Finding("sums", sum_mistakes.explain_table(event), pictures)
        elif event.kind in ("load", "store"):
            # A program has one row of `out`, and no mask along rows.
            yield Finding("bounds", Observed(event, single=event.matrix == "out" and event.side == "rows"), pictures)
    if out.outside and not ran.events:
        yield Finding("bounds", diagnosis.stores_outside(ran), pictures)
    if writers:
        yield Finding("writer", writers, pictures)
        if wrong:
            yield Finding("sums", BELOW)
    in_loop = int(out.counts.max()) > 1
    empty = [g for g in range(len(bounds)) if g not in filled]
    texts = [sum_mistakes.explain_empty(rows[g], parts, bounds[g][0], BLOCK_M, f"group {g}", in_loop) for g in empty]
    if text := next(filter(None, texts), ""):
        # What has no program is never written, whatever its group has.
        lost = next((g for g in empty if misplaced and rows[g].missing.any()), None)
        if lost is not None:
            text = ABOVE if wrong else f"group {lost} is empty, and out[{lost}] was not written: {misplaced}"
        yield Finding("empty", text, pictures)
    if programs and programs[1] < programs[0] and not writers:
        follows = programs[0] <= _needed(rows) and (wrong or text)
        yield Finding("writer", ABOVE if follows else _idle(*programs), pictures)
    if check:
        yield Finding(check, why or diagnosis.tiles(out, want, (1, BLOCK_N)), pictures)
        if check != "sums" and len(wrong) == len(filled):
            yield Finding("sums", BELOW)


def _computed_elsewhere(ran: Ran) -> str:
    """The reason if another than the exercise's kernel has to do with the numbers; empty otherwise, and on a GPU."""
    out = ran.outputs["out"]
    if out.missing.all():
        return ""
    if ran.unread and (out.values[~out.missing] != 0).any():
        return "no kernel reads anything of grad: a kernel has to compute the sums that it stores, from what it loads"
    value = ran.value if isinstance(ran.value, dict) else {}
    others, launches = value.get("others"), value.get("launches")
    if isinstance(others, list) and others:
        return f"the kernel `{str(others[0])[:60]}` is launched, too: {KERNEL} alone makes the sums, in one launch"
    if type(launches) is int and launches > 1:
        return f"{KERNEL} is launched {launches} times: the given line launches it once, for all sums"
    return ""


def _nothing(ran: Ran) -> Causes:
    """The reason if no sum was stored, or none but NaN; empty otherwise."""
    out = ran.outputs["out"]
    if sum_mistakes.held_before(out).all():
        if undefined := sum_mistakes.explain_undefined(ran, wrong=True):
            return Words("out is NaN everywhere", because=undefined[1])
        if reads := [event for event in ran.events if event.kind == "load" and event.matrix == "grad"]:
            return Words("out is NaN everywhere, from what was read outside of grad", because=Observed(reads[0]))
        return "out is NaN everywhere. It held NaN before: store the sum, do not add to out"
    return "nothing of out was written" if out.missing.all() else ""


def _programs(value) -> tuple[int, int] | None:
    """The number of programs that were launched, and of those that stored something; None on a GPU."""
    value = value.get("programs") if isinstance(value, dict) else None
    if not isinstance(value, list) or len(value) != 2 or not all(type(each) is int for each in value):
        return None
    return value[0], value[1]


def _blocks(rows: list[Written]) -> int:
    """The number of blocks of columns, as many as each group needs programs."""
    return -(-rows[0].missing.shape[1] // BLOCK_N)


def _needed(rows: list[Written]) -> int:
    """The number of programs that the sums need."""
    return len(rows) * _blocks(rows)


def _idle(launched: int, stored: int) -> str:
    """A message about programs that store nothing."""
    text = f"{launched} programs are launched, and {stored} of them store sums: a program has BLOCK_N columns"
    return f"{text}, so each group needs triton.cdiv(N, BLOCK_N) programs"


def _writers(ran: Ran, bounds: list, right: bool) -> Causes:
    """Atomics, or elements stored several times; empty without any."""
    out = ran.outputs["out"]
    if atomic := sum_mistakes.explain_atomic(ran):
        return atomic
    if (times := int(out.counts.max())) < 2:
        return ""
    g, column = (out.counts == times).nonzero()[0].tolist()
    text = f"out[{g}, {column}] was stored {times} times"
    blocks = torch.tensor([-(-(end - start) // BLOCK_M) for start, end in bounds])
    if right and (out.counts == blocks[:, None]).all():
        return f"{text}, once for each block of group {g}: the store belongs after the loop"
    for step in range(1, BLOCK_N):
        stored = torch.zeros_like(out.counts)
        for first in range(0, -(-out.counts.shape[1] // BLOCK_N) * step, step):
            stored[:, first : first + BLOCK_N] += 1
        if torch.equal(out.counts, stored):
            return f"{text}: blocks of columns begin {step} apart, and a program has BLOCK_N = {BLOCK_N} columns"
    return (
        f"{text}, by several programs or turns of a loop, and the last store wins: let one program own each sum, and "
        "store it once"
    )


def _misplaced(rows: list[Written], want, filled: list[int], programs: tuple[int, int] | None) -> str:
    """The reason if rows, or their last columns, have no program, or one that stored elsewhere; "" otherwise."""
    if _axes_exchanged(rows) and (programs is None or programs[0] == _needed(rows)):
        return (
            "the kernel has no program for it: are the grid's two numbers, and program_id(0) and program_id(1), in the "
            "same order?"
        )
    for step in (1, -1):
        moved = [g for g in filled if 0 <= g + step < len(rows)]
        if moved and all(torch.equal(rows[g + step].values[0].double(), want[g]) for g in moved):
            return f"the sums of group {moved[0]} are in out[{moved[0] + step}]: out[g] has group g's"
    lost = [bool(each.missing.all()) for each in rows]
    too_few = programs is None or programs[0] < _needed(rows)
    if filled and lost[-1] and lost == sorted(lost) and too_few:
        return f"no program computes it: the grid needs programs for each of {len(rows)} groups"
    half = torch.cat([each.missing for each in rows])
    if programs and too_few and torch.equal(half, half[:1].expand_as(half)) and half[0, -1] and not half[0, 0]:
        return (
            f"no program computes its last columns: each group needs triton.cdiv(N, BLOCK_N) = {_blocks(rows)} programs"
        )
    return ""


def _why(
    ran: Ran, rows: list[Written], want, parts, bounds: list, wrong: list[int], misplaced: str
) -> tuple[str, Causes]:
    """The check that wrong sums break ("*": all), and the likely mistake, "" where none is known."""
    order = sum_mistakes.most_telling_first(wrong, bounds)
    finite = [g for g in order if not torch.isnan(rows[g].values).any()]
    tiles = diagnosis.tiles(rows[(finite or order)[0]], want[(finite or order)[0]][None], (1, BLOCK_N))
    if stride := diagnosis.wrong_stride(ran):
        return "sums", (tiles, stride)
    if misplaced:
        return "sums", (tiles, misplaced)
    if any(rows[g].missing.any() for g in wrong):
        return "sums", (tiles, "is each sum stored, to the last column?")
    if not finite and (outside := sum_mistakes.explain_nan(ran, bounds, wrong, BLOCK_M)):
        return "sums", (tiles, outside)
    if not finite:
        return "tail", (tiles, "the rows after the last group hold NaN, and a block adds some of them")
    if why := sum_mistakes.explain_zeros([each.values for each in rows], bounds, wrong, "out"):
        return why[0] or "sums", (tiles, why[1])
    for g in finite:
        tiles = diagnosis.tiles(rows[g], want[g][None], (1, BLOCK_N))
        if found := sum_mistakes.range_of_sum(rows[g].values[0], parts):
            tail, why = sum_mistakes.explain_range(found, bounds, g, BLOCK_M)
            return "tail" if tail else "sums", (tiles, why)
        if why := sum_mistakes.explain_step(rows[g].values[0], parts[slice(*bounds[g])], BLOCK_M, {"BLOCK_N": BLOCK_N}):
            return "sums", (tiles, why)
    g = finite[0]
    tiles = diagnosis.tiles(rows[g], want[g][None], (1, BLOCK_N))
    got, size = rows[g].values[0].double(), bounds[g][1] - bounds[g][0]
    if size > 1 and torch.allclose(got, want[g] / size, rtol=1e-6):
        average = f"this is the average of group {g}'s {size} tokens: the gradient is their sum, undivided"
        return "sums", (tiles, average)
    blocks = [block.sum(0) for block in parts[slice(*bounds[g])].split(BLOCK_M)]
    if len(blocks) > 1 and torch.equal(got, len(blocks) * blocks[0]):
        return "sums", (tiles, f"the first block of group {g} is added in each turn: do the rows begin at `first`?")
    if why := sum_mistakes.explain_rounding(rows[g].values[0], blocks):
        return "float32", (tiles, why)
    if ((got - want[g]).abs() <= want[g] / 128).all():
        return "float32", (
            tiles,
            "the numbers are nearly right: they were rounded on the way. tl.sum keeps the type of what it "
            "sums, and that is float16 until you convert it",
        )
    return "sums", ""


def _axes_exchanged(rows: list[Written]) -> bool:
    """True if what was written is that of a grid whose axes are exchanged."""
    groups, n, blocks = len(rows), rows[0].missing.shape[1], _blocks(rows)
    written = torch.zeros(groups, n, dtype=torch.bool)
    written[:blocks, : groups * BLOCK_N] = True
    return groups != blocks and torch.equal(torch.cat([~each.missing for each in rows]), written)
