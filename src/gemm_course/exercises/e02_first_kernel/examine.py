"""Exercise 02: the softmax of rows, which asks for every mask and for `other=` to be chosen."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran, Written
from gemm_course.judging.causes import BELOW, Causes, Observed
from gemm_course.judging.panels import panel

# Relative. A float32 softmax of these rows is off by 2e-6 at most, the exponent's rounding times its size. With any
# float16 number in it, some element of every input of small numbers is off by 1e-4 or more.
TOLERANCE, OF_HALF, AT_LEAST_OF_HALF = 2e-5, 1e-2, 8e-5
# Relative, times a row's largest |x|. exp2(x * log2(e) - maximum * log2(e)) rounds two products in float32, each by at
# most 2^-24 of itself. So a numerator is off by |x| 2^-23, and so is the sum. exp(x - (maximum + log(sum))) rounds one
# such number.
OF_PRODUCTS = 2.0**-22
TINY = 1e-37  # smaller numbers may be 0 in float32
OVERFLOWS, VANISHES = 88.8, -104.0  # exp of more is infinite in float32, and of less 0


def draw(rng: random.Random) -> list[Case]:
    """Whole blocks; then tails along both extents, with two sizes of each block; then numbers that overflow.

    In the last case most rows lie far from zero and from the other rows of their block. One row has a number far above
    its others.
    """

    def logits(m, n, low=-4.0, high=4.0):
        # All 11 bits of float16: most differences need more, so a difference in float16 is another number.
        return torch.tensor([[rng.uniform(low, high) for _ in range(n)] for _ in range(m)], dtype=torch.float64).half()

    def case(x, block_m, *checks):
        (m, n), block_n = x.shape, 1 << (x.shape[1] - 1).bit_length()
        label = f"M = {m}, N = {n}, BLOCK_M = {block_m}, BLOCK_N = {block_n}"
        return Case({"x": x, "block_m": block_m}, checks, {"block_n": block_n}, label)

    tails = ("rows", "loads", "masked", "store")
    # At least two short of a block: with one short, a missing mask reads as far as `<=` does.
    wide = logits(8 + rng.randint(1, 2), 32 + rng.randint(3, 30))
    narrow = logits(8 + rng.randint(1, 6), 8 + rng.randint(1, 6))
    large = logits(10, 8 + rng.randint(1, 6))
    # The last but one lies below nearly every number that an `other` of the size of float16's may be: -65,504 is the
    # least, and the row before has it everywhere.
    for row, size in enumerate((120, -200, 300, -300, 100, -150, -2000, -65000, -65000, -70)):
        large[row] += size + rng.randint(0, 20)
    large[-3] = -65504
    large[-2] = -65504 + 32 * torch.tensor([rng.randint(0, 2) for _ in range(large.shape[1])])
    large[-1, rng.randrange(1, large.shape[1])] += 120
    return [
        case(logits(8, 16), 4, "rows"),
        case(wide, 4, *tails),
        case(narrow, 8, *tails),
        case(large, 4, "large"),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Assign the probes' events to the masks; then compare Y, also with the results of likely mistakes."""
    x, y = case.inputs["x"].double(), ran.outputs["Y"]
    want, block = torch.softmax(x, dim=1), (case.inputs["block_m"], case.expected["block_n"])
    right = _close(y.values.double(), want, tolerance(x))
    picture = [panel(y, want, block, "your Y", right=right, reach=8)]
    text = diagnosis.tiles(y, want, block, right)
    check, why = _why(x, y, want, block, ran) if text else (None, "")
    if check == "*":
        yield Finding("*", (text, why), picture)
        return
    for event in ran.events:
        if event.kind == "undefined":
            if text:  # otherwise nothing of it reaches Y: other code leaves it out
                yield Finding("masked", Observed(event), picture)
        elif event.kind == "load":
            yield Finding("loads", Observed(event), picture)
    if outside := diagnosis.stores_outside(ran):
        yield Finding("store", outside, picture)
    if check == "rows":
        yield Finding("rows", (text, why), picture)
    elif check:
        if "rows" in case.checks:
            yield Finding("rows", (text, BELOW), picture)
        yield Finding(check, why, picture)


def tolerance(x) -> torch.Tensor:
    """How far an element of each row may be off, relative to it; (rows, 1)."""
    return TOLERANCE + OF_PRODUCTS * x.abs().amax(1, keepdim=True)


def _close(got, want, relative: float | torch.Tensor = TOLERANCE, absolute: float = TINY) -> torch.Tensor:
    """True where two matrices agree; never at infinity or NaN."""
    return want.isfinite() & ((got - want).abs() <= relative * want.abs() + absolute)


def _why(x, y: Written, want, block, ran: Ran) -> tuple[str, Causes]:
    """The check that a wrong Y breaks ("*": all), and a likely mistake, if one is known."""
    got, written, most = y.values.double(), ~y.missing, tolerance(x)
    if not written.any():
        return "*", ""
    if stride := diagnosis.wrong_stride(ran):
        return "rows", stride
    if _close(got, want, most)[written].all() or (not ran.events and not written.any(0).all()):
        return "rows", _never_written(written, y.counts, block)
    loads = [event for event in ran.events if event.kind != "store"]
    if not loads:
        if got[written].isnan().all():
            return "masked", (
                "Y is NaN everywhere: do elements outside of X count as plus infinity? It wins the maximum, and "
                "infinity minus infinity is NaN. Minus infinity never wins, unless the maximum runs down a column that "
                "has nothing else"
            )
        for product, why in _likely(x, block):
            same = _close(got, product) | (got == product) | (got.isnan() & product.isnan())
            if same[written].all():
                return "rows", why
        if why := _overflow(x, got, written, block[0]):
            return "large", why
        if (value := _counted_outside(x, got, written, block)) is not None:
            if value < VANISHES:
                row = int((x.amax(1) - value).abs().argmin())
                return "large", (
                    f"no number in row {row} of X is above {x[row].max():g}. The `other` of elements outside of X is "
                    "as large, so they count in this row's sum. Minus infinity never does"
                )
            return "masked", (
                f"the sums are wrong: each element outside of X counts as {value:.3g} and adds exp({value:.3g}). "
                'With `other=float("-inf")` it adds exp(-inf) = 0'
            )
    coarse = _close(got, want, OF_HALF, 2e-7)[written].all()
    if coarse and not _close(got, want, most.clamp(min=AT_LEAST_OF_HALF))[written].all():
        return "rows", (
            "right to about three digits, so something here has 16 bits: convert what you load by .to(tl.float32), "
            "and keep it"
        )
    if torch.isnan(got[written]).any():
        if any(event.kind == "load" for event in loads):
            return "rows", "NaN comes from what was read outside of X"
        check = "rows" if loads else "masked"
        return check, "NaN comes from elements outside of X: they must lose the maximum and add 0 to the sum"
    nothing_right = not loads and not (_close(got, want, most) | ~written).all(1).any()
    return ("*" if nothing_right else "rows"), ""


def _likely(x, block) -> Iterator[tuple[torch.Tensor, str]]:
    """(Y, reason) of mistakes that compute something else, as a kernel of float32 would give it."""
    height, width = block
    (rows, cols), count = x.shape, -(-len(x) // height)
    padded = torch.full((count * height, width), float("-inf"))
    padded[:rows, :cols] = x
    blocks = padded.view(count, height, width)
    top = blocks.amax(2, keepdim=True)
    rest = blocks - top
    e, two = rest.exp(), rest.exp2()
    whole = "one sum for the whole block: tl.max and tl.sum need axis=1 to give one number for each row"
    down = "these sums run down the columns of a block: axis=1 runs along a row, if rows have [:, None]"
    highest = "the maximum runs down the columns of a block: axis=1 runs along a row, if rows have [:, None]"
    powers = "these are powers of 2 and not of e: tl.exp2 in place of tl.exp"
    negative = "this is exp(maximum - x): subtract the maximum from x, not x from the maximum"
    logarithms = "these are the logarithms of the softmax"
    coarse = (
        "x minus the row's maximum was computed in 16 bits, or rounded to 16 bits: with .to(tl.float32) right after "
        "the load, all that follows is float32"
    )
    numerators = "these are the numerators: divide each row by its sum"
    mixed = (
        "the numerators are of exp(x - maximum), and the sum of exp(x), or the other way round: with the same "
        "numbers in both, the maximum cancels"
    )
    likely = [(e, numerators), (blocks.exp(), numerators)]
    likely += [(part / cols, "divided by the number of columns, not by the row's sum") for part in (e, blocks.exp())]
    likely += [(e / part.sum(2, keepdim=True), "divided by the sum of x, not of exp(x)") for part in (blocks, rest)]
    likely += [(e / blocks.exp().sum(2, keepdim=True), mixed), (blocks.exp() / e.sum(2, keepdim=True), mixed)]
    likely += [(e / e.sum((1, 2), keepdim=True), whole), (blocks.flatten(1).softmax(1).view(blocks.shape), whole)]
    likely += [(e / e.sum(1, keepdim=True), down), (blocks.softmax(1), down)]
    fallen = (blocks - blocks.amax(1, keepdim=True)).exp()
    likely += [(fallen / fallen.sum(2, keepdim=True), highest), (two / two.sum(2, keepdim=True), powers)]
    linear = [blocks, rest, *(torch.where(blocks.isfinite(), part, 0.0) for part in (blocks, rest))]
    likely += [(part / part.sum(2, keepdim=True), "there is no exp in it") for part in linear]
    likely += [(part / part.sum(2, keepdim=True), coarse) for part in _coarse(rest)]
    likely += [((-rest).exp() / (-rest).exp().sum(2, keepdim=True), negative), (blocks.log_softmax(2), logarithms)]
    for product, why in likely:
        yield product.view(padded.shape)[:rows, :cols].double(), why


def _coarse(rest) -> Iterator[torch.Tensor]:
    """The numerators of x - maximum in 16 bits."""
    for dtype in (torch.float16, torch.bfloat16):
        for rounded in diagnosis.roundings(rest, dtype):
            yield rounded.exp()


def _overflow(x, got, written, height: int) -> str:
    """The mistake that makes rows of large numbers wrong; "" if no row over- or underflows, or another mistake shows.

    `height`: rows of a block.
    """
    top = x.amax(1)
    lost = (written & ~torch.isfinite(got)).any(1) | (written.all(1) & (got == 0).all(1))
    if not lost.any():
        return ""
    row = int(lost.nonzero()[0])
    highest = torch.cat([part.max().expand(len(part)) for part in x.split(height)])
    if torch.equal(lost, top - highest < VANISHES):
        return (
            f"one maximum for the whole block: row {row} of X has numbers up to {top[row]:g}, and its block up to "
            f"{highest[row]:g}, so in this row exp(x - maximum) is 0. tl.max needs axis=1 to give one number "
            "for each row"
        )
    if torch.equal(lost, top - x.amin(1) > OVERFLOWS):
        return (
            f"row {row} of X goes from {x[row].min():g} to {top[row]:g}, and exp of more than 88.7 is infinite in "
            "float32: subtract the largest number of the row, then none above 0 is left"
        )
    high, low = lost & (top > OVERFLOWS), lost & (top < -OVERFLOWS)
    if (lost & ~high & ~low).any():
        return ""
    if high.any():
        row = int(high.nonzero()[0])
        return (
            f"row {row} of X has numbers up to {top[row]:g}, and exp({top[row]:g}) is infinite in float32: subtract "
            "the row's maximum before tl.exp"
        )
    return (
        f"the largest number in row {row} of X is {top[row]:g}, and that is the row's maximum. Does the `other` of "
        "elements outside of X win instead? Minus infinity never does"
    )


def _counted_outside(x, got, written, block) -> float | None:
    """The number that each element outside of X seems to be, if that makes all of Y; else None."""
    pad, full = block[1] - x.shape[1], written.all(1)
    if not pad or not full.any():
        return None
    # With e = exp(x - maximum), Y is e / (sum + pad * exp(number - maximum)) then.
    top = x.amax(1, keepdim=True)
    e = (x - top).exp()
    total, highest = e.sum(1, keepdim=True), x.argmax(1, keepdim=True)
    added = ((1 / got.gather(1, highest) - total) / pad)[:, 0]
    row = int(added.where(full & added.isfinite(), 0.0).argmax())  # where it counts most
    if not 0 < added[row] < torch.inf:
        return None
    number = added[row].log() + top[row]
    like = e / (total + pad * (number - top).exp())
    return round(float(number), 2) + 0.0 if _close(got, like, 2 * tolerance(x))[written].all() else None


def _never_written(written, counts, block) -> str:
    """The rows or columns that a store left out."""
    if not written.any(0).all():
        first = int((~written.any(0)).nonzero()[0])
        return (
            f"columns from {first} on were never written: each program computes all columns, and BLOCK_N is "
            f"{block[1]} here. Use it in tl.arange"
        )
    missing, times = (~written).any(1).nonzero(), counts.amax(1)
    if not len(missing):
        return ""
    often = f", and row {int(times.argmax())} was written {int(times.max())} times" if times.max() > 1 else ""
    return (
        f"row {int(missing[0])} was not written{often}. Each program computes BLOCK_M = {block[0]} rows here, from "
        "row tl.program_id(0) * BLOCK_M on"
    )
