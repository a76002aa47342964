"""Exercise 11a: a tile of the weight gradient, a product that sums over the tokens of one group."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

import torch

from gemm_course.exercises import sum_mistakes
from gemm_course.exercises.e11a_weight_gradient.run import BLOCK_K, BLOCK_M, BLOCK_N
from gemm_course.exercises.inputs import bounds_of, whole_numbers
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran, Written
from gemm_course.judging.causes import ABOVE, BELOW, Causes, Observed, Words
from gemm_course.judging.panels import panel

TILE = BLOCK_K, BLOCK_N
CHECKS = ("tokens", "tail", "empty", "rounding", "once")


def draw(rng: random.Random) -> list[Case]:
    """First no empty groups; then some, first, in the middle and last; then no tokens at all."""

    def case(sizes, k, n, wide=None):
        ends = list(accumulate(sizes))
        total = ends[-1] + rng.randint(BLOCK_M, BLOCK_M + 8)
        # No zeros: every missing or additional token changes a sum. Most sums pass 2048, from where float16 holds no
        # odd numbers; none passes float16's largest number.
        a, b = (whole_numbers(rng, *shape, low=9, high=31) for shape in ((k, total), (total, n)))
        if wide:  # the only token of a group has numbers of 9 bits, where bfloat16 has 8
            alone = ends[sizes.index(1)] - 1
            numbers = {"a": a[:, alone], "b": b[alone]}[wide]
            numbers.copy_(torch.tensor([rng.randrange(257, 512, 2) for _ in numbers]))
        a[:, ends[-1] :], b[ends[-1] :] = torch.nan, torch.nan
        inputs = {"a": a, "b": b, "ends": ends}
        label = f"K = {k}, N = {n}, groups of {', '.join(map(str, sizes))} tokens, {total - ends[-1]} after the last"
        return Case(inputs, CHECKS, label=label)

    def part():
        return sum_mistakes.part(rng, BLOCK_M)

    first, second = rng.sample(range(3, BLOCK_M - 2), 2)  # as in `group_sizes`
    return [
        case([BLOCK_M + first, 2 * BLOCK_M + second, 1], part(), BLOCK_N, wide="a"),
        case(sum_mistakes.group_sizes(rng, BLOCK_M), BLOCK_K + part(), part(), wide="b"),
        case([0] * rng.randint(2, 3), part(), BLOCK_N + part()),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """The probes' events and repeated stores; then the empty groups; then the others, against likely mistakes."""
    a, b, bounds = case.inputs["a"].double(), case.inputs["b"].double(), bounds_of(case.inputs["ends"])
    parts = a.T[: bounds[-1][1], :, None] * b[: bounds[-1][1], None, :]  # what each token adds
    want = torch.stack([parts[slice(*each)].sum(0) for each in bounds])
    k, c = len(a), ran.outputs["C"]
    groups = [c.part(slice(g * k, (g + 1) * k), slice(None), f"C[{g}]") for g in range(len(bounds))]
    pictures = [
        panel(each, want[g].half(), TILE, f"C[{g}]") for g, each in enumerate(groups)
    ]  # fmt: skip
    filled = [g for g, (start, end) in enumerate(bounds) if start < end]
    if sum_mistakes.held_before(c).all() and filled:
        cause = Words("C is NaN everywhere. It held NaN before: store the result, do not add to C")
        if undefined := sum_mistakes.explain_undefined(ran, wrong=True):
            cause = Words("C is NaN everywhere", because=undefined[1])
        elif reads := diagnosis.loads_outside(ran):
            cause = Words("C is NaN everywhere, from what was read outside of A and B", because=reads)
        yield Finding("*", cause, pictures)
        return
    if c.missing.all() and filled:
        yield Finding("*", "nothing of C was written", pictures)
        return
    wrong = [g for g in filled if not torch.equal(groups[g].values, want[g].half())]
    check, why = _why(ran, a, b, groups, want, parts, bounds, wrong) if wrong else (None, "")
    undefined = sum_mistakes.explain_undefined(ran, bool(wrong))
    if undefined and undefined[0] == "ends":
        check, why = "tokens", undefined[1]
    if check == "*":
        yield Finding("*", why, pictures)
        return
    if undefined and undefined[0] != "ends":
        yield Finding("tail", undefined[1], pictures)
    yield from _touched(case, ran, pictures)
    in_loop = int(c.counts.max()) > 1
    empty = [g for g in range(len(bounds)) if g not in filled]
    texts = [sum_mistakes.explain_empty(groups[g], parts, bounds[g][0], BLOCK_M, f"group {g}", in_loop) for g in empty]
    too_far = _too_far(c, want) if wrong else ""
    if text := next(filter(None, texts), ""):
        yield Finding("empty", ABOVE if too_far else text, pictures)
    if too_far:
        g = sum_mistakes.most_telling_first(wrong, bounds)[0]
        yield Finding("tokens", (diagnosis.tiles(groups[g], want[g].half(), TILE), too_far), pictures)
    elif check:
        yield Finding(check, why, pictures)
        if check != "tokens" and len(wrong) == len(filled):
            yield Finding("tokens", BELOW)


def _touched(case: Case, ran: Ran, pictures: list[dict]) -> Iterator[Finding]:
    """Accesses outside of the matrices, elements stored twice."""
    for event in ran.events:
        if event.matrix == "ends" and event.kind != "undefined":
            yield Finding("tokens", sum_mistakes.explain_table(event), pictures)
        elif event.kind in ("load", "store"):
            yield Finding("once", Observed(event), pictures)
    c = ran.outputs["C"]
    if c.outside and not ran.events:
        yield Finding("once", diagnosis.stores_outside(ran), pictures)
    if (times := int(c.counts.max())) > 1:
        row, column = (c.counts == times).nonzero()[0].tolist()
        g, row = divmod(row, len(case.inputs["a"]))
        text = f"C[{g}] at ({row}, {column}) was stored {times} times"
        tiles = (tile for line in c.counts.split(len(case.inputs["a"])) for row in line.split(BLOCK_K)
                 for tile in row.split(BLOCK_N, 1))  # fmt: skip
        if any(tile.unique().numel() > 1 for tile in tiles):  # no loop stores a part of its tile
            why = "tiles overlap: rows come in steps of BLOCK_K, columns in steps of BLOCK_N"
            yield Finding("once", f"{text}, by several programs: {why}", pictures)
            return
        yield Finding("once", f"{text}. One store is enough: after the loop", pictures)


def _why(ran: Ran, a, b, groups: list[Written], want, parts, bounds: list, wrong: list[int]) -> tuple[str, Causes]:
    """The check that wrong sums break ("*": all), and the likely mistake."""
    order = sum_mistakes.most_telling_first(wrong, bounds)
    finite = [g for g in order if not torch.isnan(groups[g].values).any()]
    g = (finite or order)[0]
    got, tiles = groups[g].values, diagnosis.tiles(groups[g], want[g].half(), TILE)
    if stride := diagnosis.wrong_stride(ran):
        return "tokens", (tiles, stride)
    if why := _other_place(a, b, groups, bounds, order):
        return "tokens", (tiles, why)
    if not finite and (outside := sum_mistakes.explain_nan(ran, bounds, wrong, BLOCK_M)):
        return "tokens", (tiles, outside)
    if not finite and not groups[g].missing.any():
        return "tail", (tiles, "the rows after the last group hold NaN, and a block adds some of them")
    if groups[g].missing.any():
        return "tokens", (tiles, "is each tile of C stored, to its last row and column?")
    if why := sum_mistakes.explain_zeros([each.values for each in groups], bounds, wrong, "C"):
        return why[0] or "tokens", (tiles, why[1])
    part = parts[slice(*bounds[g])]
    if len(part) > 1 and torch.allclose(got.double(), want[g] / len(part), rtol=1e-3):
        return "tokens", (tiles, f"this is the average of group {g}'s {len(part)} tokens: the product is their sum")
    close = ((got.double() - want[g]).abs() <= want[g] / 128).all()
    for each in finite:
        if found := sum_mistakes.range_of_sum(groups[each].values, parts):
            tail, why = sum_mistakes.explain_range(found, bounds, each, BLOCK_M)
            tiles = diagnosis.tiles(groups[each], want[each].half(), TILE)
            return "tail" if tail else "tokens", (tiles, why)
        others = {"BLOCK_K": BLOCK_K, "BLOCK_N": BLOCK_N}
        if why := sum_mistakes.explain_step(groups[each].values, parts[slice(*bounds[each])], BLOCK_M, others):
            return "tokens", (diagnosis.tiles(groups[each], want[each].half(), TILE), why)
    if why := sum_mistakes.explain_rounding(got, [block.sum(0) for block in part.split(BLOCK_M)]):
        return "rounding", (tiles, why)
    if close:
        return "rounding", (
            tiles,
            "the numbers are nearly right: they were rounded on the way. Is `acc` float32, and converted only "
            "where it is stored?",
        )
    if why := _twice(got, part):
        return "tokens", (tiles, why)
    filled = [(part, right.half()) for part, right in zip(groups, want) if right.any()]
    return "tokens" if any(diagnosis.right_as_written(*each, TILE) for each in filled) else "*", tiles


def _other_place(a, b, groups: list[Written], bounds: list, wrong: list[int]) -> str:
    """A message if A or B is read at other places, such as those of its transpose; empty otherwise."""
    (k, total), n = a.shape, b.shape[1]
    for g in wrong:
        start, end = bounds[g]
        size = end - start
        for name, moved in (("A", a[:, :size] @ b[start:end]), ("B", a[:, start:end] @ b[:size])):
            if start and torch.equal(groups[g].values, moved.half()):
                return f"{name} was read from token 0 on, and its group begins at token {start}: is `start` subtracted?"
        if BLOCK_K < k and torch.equal(
            groups[g].values, (a[torch.arange(k) % BLOCK_K, start:end] @ b[start:end]).half()
        ):
            return "all tiles have the rows of A of the first tile: they begin at i * BLOCK_K, as `rows` does"
        if end <= n <= total:
            turned = (a[:, start:end] @ b[:n, start:end].T).half()
            if turned.isfinite().any() and groups[g].values.allclose(turned, rtol=0, atol=0, equal_nan=True):
                return "this is B's transpose: the row of token t begins at b_ptr + t * ldb, and its columns follow"
        for name, step in (("K", k), ("N", n)):
            at = torch.arange(k)[:, None] * step + torch.arange(start, end)
            if at.max() < total and torch.equal(groups[g].values, (a[0, at] @ b[start:end]).half()):
                return f"the rows of A are lda elements apart, and those of the pointers {name} = {step}"
    return ""


def _too_far(c: Written, want) -> str:
    """A message if each C[g] is where another g in the pointers puts it; empty otherwise."""
    groups, k, n = want.shape
    ldc = c.values.stride(0)
    places = torch.arange(groups)[:, None, None] * k * ldc + torch.arange(k)[:, None] * ldc + torch.arange(n)
    for what, step in (("g groups", k * ldc), ("g * K * N elements", k * n)):
        flat = torch.full((2 * groups * k * ldc,), torch.nan, dtype=torch.float16)
        for g, product in enumerate(want):
            flat[places[g] + g * step] = product.half()
        found = flat[: groups * k * ldc].view(-1, ldc)[:, :n]
        if torch.equal(torch.isnan(found), c.missing) and torch.equal(found[~c.missing], c.values[~c.missing]):
            return f"this is stored {what} too far: `c_ptr` is C[g]'s first element, with g in it already"
    return ""


def _twice(got, parts) -> str:
    """A message if blocks were added more than once; empty otherwise."""
    blocks = [block.sum(0) for block in parts.split(BLOCK_M)]
    again = torch.zeros_like(blocks[0])
    for block in blocks:
        again = 2 * again + block
    if torch.equal(got, again.half()):
        return (
            "each turn adds all earlier blocks again: tl.dot(a, b, acc) contains `acc`, so assign it and do not add it"
        )
    if torch.equal(got, (2 * sum(blocks)).half()):
        return "this is twice the sum: everything was added two times"
    return ""
