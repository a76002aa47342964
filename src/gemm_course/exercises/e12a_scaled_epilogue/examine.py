"""Exercise 12a: the epilogue of a masked FP8 product, with a scale for each token and one for each group."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from course_kernels import testing
from gemm_course.exercises.e12a_scaled_epilogue.run import BLOCK_K, BLOCK_M, BLOCK_N, FP8
from gemm_course.judging import diagnosis
from gemm_course.judging.case import Case, Finding, Ran
from gemm_course.judging.cause_sentences import counted
from gemm_course.judging.causes import BELOW, Causes, Observed
from gemm_course.judging.panels import panel, tile_slices

CHECKS = ("token", "group", "rounding", "rows")


def draw(rng: random.Random) -> list[Case]:
    """Three groups of one tile each; then one full, one empty, two others, and tiles that reach into the next group.

    The last case has scales of 12 significant bits in a group, and for a group: float16 has 11.
    """

    def case(sizes, max_m, n, long=False):
        groups, k = len(sizes), rng.randint(2 * BLOCK_K - 8, 2 * BLOCK_K - 1)
        seeds = iter([rng.getrandbits(31) for _ in range(2)])
        # Nearly all sums pass 2048, from where float16 holds no odd numbers. All stay below 8192: tensor cores keep no
        # more bits of an FP8 product's sum.
        a, b = (
            testing.integers((groups, rows, k), FP8, next(seeds), low=5, high=9) for rows in (max_m, n)
        )  # fmt: skip
        scale_a = _token_scale_table(rng, sizes, max_m)
        # One scale is below 1. If all were above it, a kernel that lowers them to 1 would give the same result as one
        # that leaves them out.
        scale_b = torch.tensor(rng.sample([1, *rng.sample([3, 5, 7], groups - 1)], groups)) / 2
        if long:  # sums stay below 4096, so they have 12 bits: times one such scale, they are exact in float32
            scale_a[0, : sizes[0]] = torch.tensor(rng.sample(range(2049, 4096, 2), sizes[0])) / 2048
            scale_a[1, : sizes[1]] = (1 + torch.arange(sizes[1]) % 2) / 4
            scale_b = torch.tensor([0.5, rng.randrange(2049, 4096, 2) / 1024])
        for g, size in enumerate(sizes):
            a.view(torch.uint8)[g, size:] = testing.CANARY[FP8][1]
        inputs = {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b, "sizes": sizes, "long": long}
        label = f"N = {n}, K = {k}, groups of {', '.join(map(str, sizes))} rows, max_m = {max_m}"
        return Case(inputs, CHECKS, label=label)

    def part():
        return rng.randint(3, BLOCK_M - 3)

    max_m = BLOCK_M + part()
    return [
        case([BLOCK_M, part(), part()], BLOCK_M, BLOCK_N),
        case([max_m, part(), 0, BLOCK_M + rng.randint(1, max_m - BLOCK_M - 1)], max_m, BLOCK_N + part()),
        case([BLOCK_M, part()], BLOCK_M, BLOCK_N, long=True),
    ]


def _token_scale_table(rng: random.Random, sizes: Sequence[int], max_m: int) -> Tensor:
    """(groups, max_m): a scale for each token, NaN past a group's tokens. The scales of a group stand nowhere else.

    They are small multiples of 1/4, so that scaled sums are exact in float32. None is 1, and no two neighbours are
    equal.
    """
    numbers = [3, 5, 6, 7, 9, 11]
    while True:
        table: list[float] = []
        for size in sizes:
            row = [rng.choice(numbers)]
            while len(row) < size:
                row.append(rng.choice([each for each in numbers if each != row[-1]]))
            table += [*row[:size], *[0] * (max_m - size)]
        places = range(len(table))
        owns = [(g * max_m, table[g * max_m : g * max_m + size]) for g, size in enumerate(sizes) if size]
        if all(table[at : at + len(own)] != own for first, own in owns for at in places if at != first):
            found = torch.tensor(table).view(len(sizes), max_m) / 4
            return torch.where(found > 0, found, torch.nan)


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """First rows that no group has; then the others, against the results of likely mistakes."""
    a, b, scale_a, scale_b = (case.inputs[name].double() for name in ("a", "b", "scale_a", "scale_b"))
    sizes, (groups, max_m, _), c = case.inputs["sizes"], a.shape, ran.outputs["C"]
    filled = [g for g in range(groups) if sizes[g]]
    sums = {g: a[g, : sizes[g]] @ b[g].T for g in filled}
    want = {g: (sums[g] * scale_a[g, : sizes[g], None] * scale_b[g]).half() for g in filled}
    parts = {g: c.part(slice(g * max_m, g * max_m + sizes[g]), slice(None), f"C[{g}]") for g in filled}
    pictures = [panel(parts[g], want[g], (BLOCK_M, BLOCK_N), f"C[{g}]") for g in filled]
    wrong = [g for g in filled if not torch.equal(parts[g].values, want[g])]
    if case.inputs["long"]:
        yield from _rounded_scales(parts, want, wrong, pictures)
        return
    undefined = any(event.kind == "undefined" for event in ran.events)
    found = _why(case, parts, sums, want, wrong, undefined) if wrong else []
    if wrong and any(event.matrix == "scale_b" and event.kind == "load" for event in ran.events):
        found = [("token", BELOW)]
    for check, why in found:
        yield Finding(check, why, pictures)
        if check == "*":
            return
    yield from _past_the_rows(case, ran, pictures)


def _rounded_scales(parts: dict, want: dict, wrong: list[int], pictures: list[dict]) -> Iterator[Finding]:
    """Say whether scales were rounded. The case with long scales checks this alone; other mistakes show in the other
    cases, too, and are named there."""
    if any(((parts[g].values.double() / want[g].double() - 1).abs() < 1 / 64).all() for g in wrong):
        tiles = diagnosis.tiles(parts[wrong[0]], want[wrong[0]], (BLOCK_M, BLOCK_N))
        why = "the scales, or their product, were rounded to fewer bits than float32 has: convert the result alone"
        yield Finding("rounding", (tiles, why), pictures)


def _past_the_rows(case: Case, ran: Ran, pictures: list[dict]) -> Iterator[Finding]:
    """Accesses outside of the matrices, and stored rows that belong to no token of the tile's group."""
    c, sizes = ran.outputs["C"], case.inputs["sizes"]
    max_m = len(c.values) // len(sizes)
    for g, size in enumerate(sizes):
        rows = slice(g * max_m, (g + 1) * max_m)
        written = ~c.missing[rows].all(1)
        written[:size] = (c.counts[rows][:size] > 1).any(1)
        if written.any():
            row = int(written.nonzero()[0])
            text = f"row {row} of C[{g}] was written, and group {g} has {counted(size, 'row')}"
            if row < size:
                text = f"row {row} of C[{g}] was written {int(c.counts[rows][row].max())} times"
            text += ": a tile's last rows may belong to the next group, so mask the store with `inside`"
            yield Finding("rows", text, pictures)
            break
    for event in ran.events:
        if event.kind in ("load", "store") and event.matrix == "scale_b":
            note = ": it has one number for each group, and scale_a one for each token"
            yield Finding("group", Observed(event, note), pictures)
        elif event.kind in ("load", "store"):
            yield Finding("rows", Observed(event), pictures)
    if c.outside and not ran.events:
        yield Finding("rows", diagnosis.stores_outside(ran), pictures)


def _why(
    case: Case, parts: dict, sums: dict, want: dict, wrong: list[int], undefined: bool
) -> list[tuple[str, Causes]]:
    """(check, cause) for each check that a wrong C breaks, with the likely mistake; "*": all of them."""
    tiles, scale_b = (
        diagnosis.tiles(parts[wrong[0]], want[wrong[0]], (BLOCK_M, BLOCK_N)),
        case.inputs["scale_b"].double(),
    )
    if all(part.missing.all() for part in parts.values()):
        return [("*", "nothing of C was written")]
    if lost := [g for g in wrong if parts[g].missing.any()]:
        g, max_m = lost[0], case.inputs["a"].shape[1]
        tiles = diagnosis.tiles(parts[g], want[g], (BLOCK_M, BLOCK_N))
        where = f"rows 0 to {case.inputs['sizes'][g] - 1} of it have to be stored, from row g * max_m = {g * max_m} on"
        return [("rows", (tiles, where))]

    def gave(results) -> bool:
        return all(parts[g].values.allclose(results(g).half(), rtol=0, atol=0, equal_nan=True) for g in parts)

    for checks, why, scales in _likely_scales(case, undefined):
        if gave(lambda g, scales=scales: sums[g] * scales(g)):
            return [(check, (tiles, why)) for check in checks]
    for check, name, added in (("group", "group's", scale_b), ("token", "tokens'", None)):
        if gave(lambda g, added=added: _with_one_added(case, sums[g], g, added)):
            return [(check, (tiles, f"the {name} scale was added to the result: scales are factors"))]
    for check, name in (("token", "tokens' scales were"), ("group", "group's scale was")):
        if gave(lambda g, check=check: _scaled_in_the_loop(case, g, check)):
            return [
                (check, (tiles, f"the {name} applied in the loop, to all blocks so far again: scale `acc` after it"))
            ]
    if other := _other_groups_scale(case, parts, sums, wrong):
        return [("group", (tiles, other))]
    if place := _other_place(case, parts, sums, wrong):
        return [("token", (tiles, place))]
    if cut := _cut_off(case, parts, sums, gave):
        return [(cut[0], (tiles, f"{cut[1]}"))]
    if gave(lambda g: sums[g].half().double() * _token_scales(case, g)[:, None] * scale_b[g]):
        return [("rounding", (tiles, "the sum was rounded to float16 before it was scaled: convert last"))]
    for operands, convert in itertools.product(("A", "B", "A and B"), (_nearest, _interpreted)):
        if gave(lambda g, of=operands, convert=convert: _scaled_before(case, g, of, convert)):
            why = f"{operands} was scaled and rounded to FP8 again, before the sum: FP8 has 4 significant bits"
            return [("rounding", (tiles, f"{why}. Scale `acc`"))]
    right = "token" if any(diagnosis.right_as_written(parts[g], want[g], (BLOCK_M, BLOCK_N)) for g in parts) else "*"
    if other := _other_rows(case, parts, wrong):
        return [(right, (tiles, other))]
    off = torch.cat([(parts[g].values.double() / want[g].double() - 1).abs().flatten() for g in wrong])
    if (off < 1 / 64).all():
        why = "the numbers are nearly right: they were rounded on the way. Multiply `acc` while it is float32"
        return [("rounding", (tiles, why))]
    if torch.isnan(parts[wrong[0]].values).any():
        why = "the tables of scales hold NaN past their ends and past a group's rows: some of it was loaded"
        return [("token", (tiles, why))]
    return [(right, tiles)]


def _token_scales(case: Case, g: int, first: int | None = None) -> Tensor:
    """The scales of a group's rows; from another place of the table on if `first` is given."""
    size, table = case.inputs["sizes"][g], case.inputs["scale_a"]
    first = g * table.shape[1] if first is None else first
    past_the_end = torch.full((size,), torch.nan)  # as `Watch` has it there
    return torch.cat([table.flatten()[first:], past_the_end])[:size].double()


def _with_one_added(case: Case, sums: Tensor, g: int, group: Tensor | None) -> Tensor:
    """A group's C if one scale is added: the group's, or the tokens' if ``group`` is None."""
    token = _token_scales(case, g)[:, None]
    return sums * case.inputs["scale_b"][g].double() + token if group is None else sums * token + group[g]


def _in_tiles(case: Case, g: int, chosen: Callable[[Tensor], Tensor]) -> Tensor:
    """The scales of a group's rows if those of each tile are `chosen` from the tile's own."""
    return torch.cat([chosen(tile).expand(len(tile)) for tile in _token_scales(case, g).split(BLOCK_M)])


def _below_size(case: Case, g: int, outside: float) -> Tensor:
    """The scales of a group's rows if those are masked off that are not below the group's size, counted over all."""
    rows = g * case.inputs["scale_a"].shape[1] + torch.arange(case.inputs["sizes"][g])
    return torch.where(rows < case.inputs["sizes"][g], _token_scales(case, g), outside)


def _likely_scales(case: Case, undefined: bool) -> Iterator[tuple]:
    """(checks that break, message, what each group's sums are multiplied by) of mistakes with scales."""
    table, sizes = case.inputs["scale_b"].double(), case.inputs["sizes"]
    both, of_tokens, of_group = ("token", "group"), ("token",), ("group",)
    divided = "multiply, stored number times scale is the real number"
    factors = (  # from the tokens' scales and the group's
        (both, "neither scale is in it: these are the unscaled sums", lambda token, group: 1.0),
        (of_tokens, "the tokens' scales are missing", lambda token, group: group),
        (of_group, "the group's scale is missing", lambda token, group: token),
        (of_tokens, "the tokens' scales were applied twice", lambda token, group: token**2 * group),
        (of_group, "the group's scale was applied twice", lambda token, group: token * group**2),
        (both, "both scales were applied twice", lambda token, group: (token * group) ** 2),
        (both, f"this was divided by the scales: {divided}", lambda token, group: 1 / (token * group)),
        (of_tokens, f"this was divided by the tokens' scales: {divided}", lambda token, group: group / token),
        (of_group, f"this was divided by the group's scale: {divided}", lambda token, group: token / group),
        (both, "the scales were added to each other: they are factors", lambda token, group: token + group),
    )
    for checks, why, factor in factors:
        yield checks, why, lambda g, factor=factor: factor(_token_scales(case, g)[:, None], table[g])
    for why, scales in _other_token_scales(case, undefined):
        yield of_tokens, why, lambda g, scales=scales: scales(g)[:, None] * table[g]
    firsts = {f"g * {name}": [g * step for g in range(len(sizes))]
              for name, step in zip(("N", "K"), case.inputs["b"].shape[1:])}  # fmt: skip
    firsts["g * size"] = [g * size for g, size in enumerate(sizes)]
    firsts["the sum of the sizes before"] = [sum(sizes[:g]) for g in range(len(sizes))]
    for name, first in firsts.items():
        why = f"the scales of group g begin at g * max_m in scale_a, and these begin at {name}"
        yield of_tokens, why, lambda g, first=first: _token_scales(case, g, first[g])[:, None] * table[g]


def _other_token_scales(case: Case, undefined: bool) -> Iterator[tuple[str, Callable]]:
    """(message, the scales of a group's rows) of mistakes that take other scales of tokens."""
    yield (
        "these are the scales from the beginning of scale_a, those of group 0: row `local` of group g is row `rows` of "
        "the table",
        lambda g: _token_scales(case, g, 0),
    )
    ones = {"of its first one: load BLOCK_M scales": lambda tile: tile[0], "that is the largest of them": torch.amax}
    for name, chosen in ones.items():
        yield f"all rows of a tile have the scale {name}", lambda g, chosen=chosen: _in_tiles(case, g, chosen)
    yield (
        "every tile of a group has the scales of its first BLOCK_M rows: those of tile i begin i * BLOCK_M later",
        lambda g: _token_scales(case, g)[torch.arange(case.inputs["sizes"][g]) % BLOCK_M],
    )
    # What a masked element counts as: NaN, if nothing says so.
    for outside in (0.0, *([torch.nan] if undefined else [])):
        yield (
            "the mask compares `rows`, counted over the room of all groups, with `size`, the rows of one: `local` "
            "counts in the group",
            lambda g, outside=outside: _below_size(case, g, outside),
        )


def _cut_off(case: Case, parts: dict, sums: dict, gave: Callable) -> tuple[str, str] | None:
    """(check, message) if scales, sums or results were clamped; else None."""
    group = case.inputs["scale_b"].double()
    scales = {g: (_token_scales(case, g)[:, None], group[g].expand(len(sums[g]), 1)) for g in parts}
    for which, check, name in ((0, "token", "tokens' scales"), (1, "group", "groups' scales")):
        used = torch.cat([(parts[g].values / (sums[g] * scales[g][1 - which])).flatten() for g in parts])
        ends = [(end * 64).round() / 64 for end in used.aminmax()]
        if ends[0] < ends[1] and gave(
            lambda g, w=which, ends=ends: sums[g] * scales[g][w].clamp(*ends) * scales[g][1 - w]
        ):
            right = torch.cat([each[which] for each in scales.values()])
            return check, f"the {name} were cut off, {_limits(ends, right)}: a scale is a factor of any size"
    top, want = torch.finfo(FP8).max, {g: sums[g] * scales[g][0] * scales[g][1] for g in parts}
    if gave(lambda g: sums[g].clamp(-top, top) * scales[g][0] * scales[g][1]):
        return "*", f"the sums were cut off, at most {top:g}, as FP8 is: `acc` and C hold larger numbers"
    ends = torch.cat([part.values.flatten() for part in parts.values()]).double().aminmax()
    if (ends[0] < ends[1] or ends[1] == top) and gave(lambda g: want[g].clamp(*ends)):
        right = torch.cat([each.half().flatten() for each in want.values()])
        why = f"the results were cut off, {_limits(ends, right)}: C is float16, and all of them fit"
        return ("rounding" if ends[0] < ends[1] else "*"), why
    return None


def _limits(ends: Sequence[Tensor], right: Tensor) -> str:
    """In words, the limits that some of the right numbers exceed."""
    low, high = (f"at least {ends[0]:g}" if ends[0] > right.min() else "", f"at most {ends[1]:g}")
    return " and ".join(filter(None, (low, high if ends[1] < right.max() else "")))


def _other_groups_scale(case: Case, parts: dict, sums: dict, wrong: list[int]) -> str:
    """A message if a group has another group's scale; empty otherwise."""
    for g in wrong:
        for other, scale in enumerate(case.inputs["scale_b"].double()):
            if torch.equal(parts[g].values, (sums[g] * _token_scales(case, g)[:, None] * scale).half()):
                return f"this has the scale of group {other}: group {g} has scale_b[{g}]"
        want = {
            other: (sums[g] * _token_scales(case, g)[:, None] * scale).half()
            for other, scale in enumerate(case.inputs["scale_b"].double())
        }
        lines = enumerate(tile_slices(sums[g].shape, (BLOCK_M, BLOCK_N)))
        tiles = {(i, j): tile for i, line in lines for j, tile in enumerate(line)}
        has = {
            at: [other for other, each in want.items() if torch.equal(parts[g].values[tile], each[tile])]
            for at, tile in tiles.items()
        }
        # A tile of few rows may have another group's scale by chance, but not all that are wrong.
        if all(has.values()):
            at, (got, *_) = next(each for each in has.items() if g not in each[1])
            return f"tile {at} of C[{g}] has the scale of group {got}: all tiles of it have scale_b[{g}]"
    return ""


def _other_place(case: Case, parts: dict, sums: dict, wrong: list[int]) -> str:
    """A message if a group's scales come from another place of scale_a; empty otherwise."""
    groups, max_m = case.inputs["scale_a"].shape
    for g, first in itertools.product(wrong, range(groups * max_m)):
        scales = _token_scales(case, g, first)[:, None] * case.inputs["scale_b"][g].double()
        if parts[g].values.allclose((sums[g] * scales).half(), rtol=0, atol=0, equal_nan=True):
            return f"the scales of group {g} begin at g * max_m = {g * max_m} in scale_a, and these begin at {first}"
    return ""


def _other_rows(case: Case, parts: dict, wrong: list[int]) -> str:
    """A message if the rows of A or B of a group come from another place; empty otherwise."""
    a, b = (case.inputs[name].double() for name in ("a", "b"))
    for g in wrong:
        scales = _token_scales(case, g)[:, None] * case.inputs["scale_b"][g].double()
        got = parts[g].values
        for name, step, rows in (("A", "max_m", a), ("B", "N", b)):
            size, right = (len(got), got.shape[1])[name == "B"], g * rows.shape[1]
            for first in range(rows.shape[0] * rows.shape[1] - size + 1):
                taken = rows.flatten(0, 1)[first : first + size]
                product = a[g, : len(got)] @ taken.T if name == "B" else taken @ b[g].T
                if first != right and torch.equal(got, (product * scales).half()):
                    return f"the rows of {name} of group {g} begin at g * {step} = {right}, and these begin at {first}"
    return ""


def _scaled_in_the_loop(case: Case, g: int, which: str) -> Tensor:
    """A group's C if the sum is multiplied by one of the scales after each block of K."""
    a, b = (case.inputs[name][g].double() for name in ("a", "b"))
    scales = {"token": _token_scales(case, g)[:, None], "group": case.inputs["scale_b"][g].double()}
    again, total = scales.pop(which), torch.zeros(case.inputs["sizes"][g], len(b), dtype=torch.float64)
    for k in range(0, a.shape[1], BLOCK_K):
        total = (total + a[: len(total), k : k + BLOCK_K] @ b[:, k : k + BLOCK_K].T) * again
    return total * next(iter(scales.values()))


def _scaled_before(case: Case, g: int, operands: str, convert: Callable[[Tensor], Tensor]) -> Tensor:
    """A group's C if an operand, or both, is scaled and converted to FP8 before the product."""
    a, b = (case.inputs[name][g].double() for name in ("a", "b"))
    a, token, group = a[: case.inputs["sizes"][g]], _token_scales(case, g)[:, None], case.inputs["scale_b"][g].double()
    a, token = (convert(a * token), 1.0) if "A" in operands else (a, token)
    b, group = (convert(b * group), 1.0) if "B" in operands else (b, group)
    return (a @ b.T) * token * group


def _nearest(values: Tensor) -> Tensor:
    """To FP8 and back, as a GPU converts."""
    return values.to(FP8).double()


def _interpreted(values: Tensor) -> Tensor:
    """To FP8 and back, as Triton's interpreter converts: halves up, and a carry is lost in every other octave."""
    fraction, exponent = torch.frexp(values)
    digits = torch.floor(fraction * 16 + 0.5)
    digits[(digits == 16) & (exponent % 2 == 1)] = 8
    return torch.ldexp(digits, exponent - 4)
