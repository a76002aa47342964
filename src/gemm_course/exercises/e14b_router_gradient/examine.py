"""Exercise 14b: the gradient of the routing weights, a dot product for each position, stored at its token and slot."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from gemm_course.exercises import sum_mistakes
from gemm_course.exercises.e14b_router_gradient.run import BLOCK_I, BLOCK_M
from gemm_course.exercises.inputs import whole_numbers
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.cause_sentences import counted
from gemm_course.judging.causes import BELOW, Causes, Event, Observed, Words
from gemm_course.judging.panels import panel

CHECKS = ("sums", "place", "foreign", "float32", "writer", "bounds")


def draw(rng: random.Random) -> list[Case]:
    """Whole blocks, all ours; then parts of blocks and others' positions; then no position of ours."""

    def case(checks, tokens, k, i, others):
        positions = tokens * k
        pre = whole_numbers(rng, positions, 2 * i, low=41, high=63)  # nearly all products pass 2048
        off = torch.tensor([[rng.random() < 0.4 for _ in range(i)] for _ in range(positions)])
        off[:, 0] = False  # one column at least adds something
        small = whole_numbers(rng, positions, i, low=-3, high=-1)
        pre[:, :i] = torch.where(off, small, pre[:, :i])
        pre[:, i:] = torch.where(off.roll(1, 1), small, pre[:, i:])  # gate and up are not always of one sign
        grad = whole_numbers(rng, positions, i, low=1, high=9)
        count = positions - others
        pre[count:], grad[count:] = torch.nan, torch.nan
        places = rng.sample(range(positions), positions)
        label = f"T = {tokens}, k = {k}, I = {i}, {count} of {positions} positions are ours"
        inputs = {"pre": pre, "grad": grad, "places": places, "count": [count], "shape": [tokens, k]}
        return Case(inputs, checks, label=label)

    def part(block):
        return rng.randint(3, block - 3)

    ours = BLOCK_M + part(BLOCK_M)  # its last block is partly the others', and the block after it wholly
    tokens = rng.choice([each for each in range(15, 24) if 3 * each - ours > BLOCK_M and -3 * each % BLOCK_M > 2])
    return [
        case(("sums", "place", "float32", "writer"), BLOCK_M, 2, 2 * BLOCK_I, 0),
        case(CHECKS, tokens, 3, 2 * BLOCK_I + part(BLOCK_I), 3 * tokens - ours),
        case(("foreign", "writer"), (others := BLOCK_M + part(BLOCK_M)), 1, part(BLOCK_I), others),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """First who stored what, and how often; then our positions, against likely mistakes; then the others'."""
    out, count, (tokens, k) = ran.outputs["out"], case.inputs["count"][0], case.inputs["shape"]
    places = torch.tensor(case.inputs["places"])
    by_position = places // k, places % k
    dots = _terms(case).sum(1)
    want = torch.zeros(tokens, k, dtype=torch.float64)
    want[by_position] = torch.cat([dots, dots.new_zeros(len(places) - count)])
    got, missing = out.values[by_position].double(), out.missing[by_position]
    pictures = [panel(out, want, (1, 1), "your out")]
    writers = _writers(ran, len(places))
    atomic = any(event.kind == "atomic" for event in ran.events)
    if (count or atomic) and (nothing := _nothing(case, ran, writers)):
        yield Finding("*", nothing, pictures)
        return
    if pitch := out.wrong_pitch():
        stride = out.values.stride(0)
        text = f"the rows of out are stride_out = {stride} elements apart, and they were stored {pitch} apart"
        if pitch == stride + k:  # place // k * stride_out + place
            text = f"each token is stored k = {k} columns further than the one before: a choice's slot is `place % k`"
        yield Finding("place", text, pictures)
        yield Finding("bounds", (diagnosis.stores_outside(ran), text), pictures)
        return
    wrong = not torch.equal(got[:count], dots)
    undefined = sum_mistakes.explain_undefined(ran, wrong or bool(got[count:].isnan().any()))
    check, why = (None, "") if writers or not wrong else _why(case, ran, got[:count], missing[:count], dots, want)
    if undefined and (wrong or writers):
        check, why = "sums", undefined[1]
    if check == "*":
        yield Finding("*", why, pictures)
        return
    for event in ran.events:
        if event.kind in ("load", "store"):
            # Where a gradient is stored is computed from its place, so no mask of columns has `<=`.
            yield Finding("bounds", Observed(event, single=event.matrix == "out"), pictures)
    if out.outside and not ran.events:
        yield Finding("bounds", diagnosis.stores_outside(ran), pictures)
    if writers:
        yield Finding("writer", writers, pictures)
        if wrong:
            yield Finding("sums", BELOW)
    elif idle := _idle(ran.value, -(-len(places) // BLOCK_M)):
        yield Finding("writer", idle, pictures)
    if check:
        yield Finding(check, why, pictures)
        if check != "sums":
            yield Finding("sums", BELOW)
    elif undefined:
        yield Finding("foreign", undefined[1], pictures)
    if check != "place" and (text := _others(case, ran, got, missing)):
        yield Finding("foreign", text, pictures)


def _terms(case: Case) -> Tensor:
    """What each column adds to the gradients of our positions, (count, I) float64."""
    gate, up, grad = _operands(case)
    return grad * gate.clamp(min=0) * up


def _operands(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Gate, up and gradient of our positions, float64."""
    count, i = case.inputs["count"][0], case.inputs["grad"].shape[1]
    pre, grad = (case.inputs[name][:count].double() for name in ("pre", "grad"))
    return pre[:, :i], pre[:, i:], grad


def _nothing(case: Case, ran: Ran, writers: Causes) -> Causes:
    """The reason if no gradient was stored, or none but NaN; empty otherwise."""
    out = ran.outputs["out"]
    outside = diagnosis.stores_outside(ran)
    if out.missing.all() and (writers or outside):
        return writers, outside
    if out.missing.all() and not out.counts.any():
        return "nothing of out was written"
    if sum_mistakes.held_before(out).all():
        if writers:
            return writers
        if undefined := sum_mistakes.explain_undefined(ran, wrong=True):
            return Words("out is NaN everywhere", because=undefined[1])
        if reads := [event for event in ran.events if event.kind == "load"]:
            text, columns = "out is NaN everywhere, from what was read outside of the matrices", _columns(case, reads)
            return Words(text, because=(Observed(reads[0]), columns if "up begins" in columns else ""))
        if out.missing.all():
            return "out is NaN everywhere. It held NaN before: store the sum, do not add to out"
        return "out is NaN everywhere. It held NaN before, and so do the others' rows: store sums of our rows"
    return ""


def _columns(case: Case, reads: list[Event]) -> str:
    """The reason for loads of columns that no row has."""
    i = case.inputs["grad"].shape[1]
    last = max((event.far[1] for event in reads if event.matrix == "pre" and event.side == "columns"), default=0)
    # Without a mask, up is read as far as its last block reaches.
    if last >= 2 * i and last + 1 != i - -i // BLOCK_I * -BLOCK_I:
        return f"up begins I = {i} columns after the gate, and this reads up to column {last} of pre, which has {2 * i}"
    return "NaN comes from columns that no row has: mask the loads with I"


def _idle(value, needed: int) -> str:
    """A message about more programs than are `needed`, of which some store nothing; "" if each stores, and on a GPU."""
    if not isinstance(value, list) or len(value) != 2 or not all(type(each) is int for each in value):
        return ""
    launched, stored = value
    if launched <= needed or stored >= launched:
        return ""
    text = f"{launched} programs are launched, and {stored} of them store gradients: a program has BLOCK_M positions"
    return f"{text}, so triton.cdiv(positions, BLOCK_M) programs are enough"


def _launched(value) -> int:
    """The number of programs that were launched; 0 on a GPU."""
    return value[0] if isinstance(value, list) and value and type(value[0]) is int else 0


def _writers(ran: Ran, positions: int) -> Causes:
    """Atomics, or elements stored several times; empty without any."""
    out = ran.outputs["out"]
    if atomic := sum_mistakes.explain_atomic(ran):
        return atomic
    if (times := int(out.counts.max())) < 2:
        return ""
    token, slot = (out.counts == times).nonzero()[0].tolist()
    if int((out.counts - 1).clamp(min=0).sum()) == int(out.missing.sum()):
        lost = counted(int(out.missing.sum()), "other place")
        return f"out[{token}, {slot}] was stored {times} times, and {lost} never: each position loads its own place"
    past = _launched(ran.value) * BLOCK_M - positions
    if past == times - 1 == int((out.counts - 1).clamp(min=0).sum()):
        text = f"out[{token}, {slot}] was stored {times} times, by its own position and by {counted(past, 'row')}"
        return f"{text} after the last one: mask the store with `rows < positions`"
    return (
        f"out[{token}, {slot}] was stored {times} times, and the last store wins: let one program own each sum, and "
        "store it once, after the loop"
    )


def _others(case: Case, ran: Ran, got: Tensor, missing: Tensor) -> Causes:
    """The mistake in the gradients of positions that are not ours; empty if they are 0."""
    count, k = case.inputs["count"][0], case.inputs["shape"][1]
    out = ran.outputs["out"]
    bad = missing[count:] | (got[count:] != 0)
    if not bad.any():
        return ""
    position = count + int(bad.nonzero()[0])
    token, slot = divmod(case.inputs["places"][position], k)
    text = f"position {position} is not ours, and out[{token}, {slot}], its place,"
    if missing[position] and out.counts[token, slot]:
        if any(event.kind == "atomic" for event in ran.events):
            return BELOW
        return f"{text} is NaN, as before the launch: store the sum, do not add to out"
    launched, times = _launched(ran.value), int(out.counts.max())
    if missing[position] and 0 < launched * BLOCK_M <= position:
        text = f"{text} was never written: {launched} programs are launched, each with BLOCK_M = {BLOCK_M} positions"
        return f"{text}, and there are {len(got)} positions"
    if missing[position] and diagnosis.stores_outside(ran):
        return f"{text} was never written, and something outside of out was"
    if missing[position] and times > 1:
        return f"{text} was never written, and another place {times} times: each position loads its own place"
    if missing[position]:
        return (
            f"{text} was never written: a weight that nobody here uses has gradient 0, and that has to be stored, too"
        )
    if torch.isnan(got[position]):
        return f"{text} is NaN: its rows hold NaN, and NaN times 0 is NaN. Mask their loads with `rows < count`"
    return f"{text} is {got[position]:g}, not 0"


def _why(case: Case, ran: Ran, got: Tensor, missing: Tensor, dots: Tensor, want: Tensor) -> tuple[str, Causes]:
    """The check that wrong gradients break ("*": all), and the likely mistake."""
    tiles = diagnosis.tiles(ran.outputs["out"], want, (1, 1))
    if stride := diagnosis.wrong_stride(ran):
        return "sums", (tiles, stride)
    if text := _wrong_place(case, ran, dots):
        return "place", (tiles, text)
    if missing.any():
        return "place", (tiles, "is each position's gradient stored, those of the last block included?")
    if (got == 0).all():
        return "*", (tiles, "out is 0 everywhere: nothing was added")
    for text, values in _likely_sums(case):
        if torch.equal(got, values):
            return "sums", (tiles, text)
    if got.isinf().any():
        return "float32", (tiles, "float16 ends at 65504, and products and sums pass it: convert to tl.float32 first")
    gate, up, grad = _operands(case)
    if torch.allclose(got, (grad * torch.nn.functional.silu(gate) * up).sum(1), rtol=1e-5):
        return "sums", (tiles, "this is SiLU's activation. Here it is max(gate, 0) · up")
    if name := diagnosis.rounded_to(gate.clamp(min=0) * up, lambda each: torch.equal(got, (grad * each).sum(1))):
        text = f"the activation was rounded to {name}: it stays float32 until it is multiplied and summed"
        return "float32", (tiles, text)
    if name := diagnosis.rounded_to(dots, lambda each: torch.equal(got, each)):
        return "float32", (tiles, f"these are the right sums, rounded to {name}: out is float32")
    if torch.isnan(got).all():
        return "sums", (tiles, _columns(case, [event for event in ran.events if event.kind == "load"]))
    if ((got - dots).abs() <= _terms(case).abs().sum(1) / 128).all():
        text = "the numbers are nearly right: they were rounded on the way. Convert each block to tl.float32 first"
        return "float32", (tiles, text)
    return ("sums" if diagnosis.right_as_written(ran.outputs["out"], want, (1, 1)) else "*"), tiles


def _wrong_place(case: Case, ran: Ran, dots: Tensor) -> str:
    """A message if the gradients are right, and stored elsewhere; empty otherwise."""
    out, (tokens, k) = ran.outputs["out"], case.inputs["shape"]
    places, r = torch.tensor(case.inputs["places"])[: len(dots)], torch.arange(len(dots))
    likely = {
        "row r of `pre` is not place r of out: position r's gradient goes to `places[r]`": (r // k, r % k),
        "a place is token · k + slot: its token is `place // k`, its slot `place % k`": (
            places % tokens, places // tokens
        ),
        "a slot is `place % k`, and this is one further on: slots count from 0": (places // k, places % k + 1),
        "a token is `place // k`, and this is one further on: tokens count from 0": (places // k + 1, places % k),
        "slot and token are exchanged, or the token's number is not divided by k": (places % k, places // k),
    }  # fmt: skip
    for text, (row, column) in likely.items():
        inside = (row < tokens) & (column < k)
        if inside.any() and torch.equal(out.values[row[inside], column[inside]].double(), dots[inside]):
            return text
    return ""


def _likely_sums(case: Case) -> Iterator[tuple[str, Tensor]]:
    """(message, our positions' gradients) of mistakes in what is summed."""
    (gate, up, grad), terms = _operands(case), _terms(case)
    i, active, both = terms.shape[1], gate.clamp(min=0), torch.cat([gate, up], 1)
    last, turn = (i - 1) // BLOCK_I * BLOCK_I, f"a turn adds BLOCK_I = {BLOCK_I} columns, and the next one begins"
    pairs = both.unflatten(1, (-1, 2))

    def in_turns(step: int) -> Tensor:
        return torch.cat([terms[:, at : at + BLOCK_I] for at in range(0, i, step)], 1)

    summed = {
        f"this is the sum over the first BLOCK_I = {BLOCK_I} of {i} columns: does the loop go on, and add to `acc`?":
            terms[:, :BLOCK_I],
        f"this is the sum over columns {last} to {i - 1} alone: is each block added to `acc`?": terms[:, last:],
        "the last block of columns is left out: it is not whole": terms[:, : i // BLOCK_I * BLOCK_I],
        f"{turn} BLOCK_M = {BLOCK_M} further on": in_turns(BLOCK_M),
        "a negative gate counts as 0: tl.maximum(gate, 0.0)": grad * gate * up,
        "a negative gate counts as 0, whatever up is: max(…, 0) is of the gate alone": grad * (gate * up).clamp(min=0),
        "this has the gate without its sign: a negative one counts as 0, tl.maximum(gate, 0.0)": grad * gate.abs() * up,
        "this has min(gate, 0): a positive gate counts, and a negative one is 0": grad * gate.clamp(max=0) * up,
        "gate and up were read in turn, from columns 2 c and 2 c + 1: they are columns c and I + c":
            grad * pairs[..., 0].clamp(min=0) * pairs[..., 1],
        f"{turn} one further on: `range` needs a step": in_turns(1),
        "gate and up are exchanged: max(…, 0) belongs to the first I columns of `pre`": grad * gate * up.clamp(min=0),
        "up is limited, too: max(…, 0) is of the gate alone": grad * active * up.clamp(min=0),
        "this is without up: the activation is max(gate, 0) · up": grad * active,
        "this is without the gate: the activation is max(gate, 0) · up": grad * up,
        "this has 1 for a positive gate: that is the activation's derivative, not the activation":
            grad * (gate > 0) * up,
        "this is the sum of the activation: multiply by `grad`": active * up,
        f"the first BLOCK_I = {BLOCK_I} columns of `grad` were read in each turn":
            grad[:, torch.arange(i) % BLOCK_I] * active * up,
    }  # fmt: skip
    for shift in (BLOCK_I, 1, 0):
        if shift < i:
            text = f"up was read {shift} columns after the gate: it begins I = {i} after it"
            summed[text] = grad * active * both[:, shift : shift + i]
    yield from ((text, columns.sum(1)) for text, columns in summed.items())
    yield "this is the average over the columns: the gradient is their sum", (terms.sum(1) / i).float().double()
