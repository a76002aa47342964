"""Exercise 12b: the inverse of the (16, 16) shuffle, which puts a weight's packs in the order of AMD's loads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import torch
from torch import Tensor

from course_kernels import testing
from gemm_course.judging.case import Case, Finding, Ran, expect_value
from gemm_course.judging.causes import Causes
from gemm_course.judging.panels import RIGHT, WRONG, table_panel

ROWS, COLUMNS, PACK_BYTES = 16, 32, 16  # of a block; of a pack
TWO_BYTES, ONE_BYTE = (torch.float16, torch.bfloat16), (torch.float8_e4m3fn, torch.int8)
NOT_COUNTED = "not counted, because the weight is wrong"


def shuffled(weight: Tensor) -> Tensor:
    """A weight (..., N, K) as the exercise's notebook shuffles it."""
    pack = PACK_BYTES // weight.element_size()
    n, k = weight.shape[-2:]
    parts = weight.view(-1, n // ROWS, ROWS, k // COLUMNS, COLUMNS // pack, pack)
    return parts.permute(0, 1, 3, 4, 2, 5).reshape(weight.shape)


def draw(rng: random.Random) -> list[Case]:
    """Square; wide and high; both types of one byte; several groups, with an odd number of blocks along N."""

    def case(check, dtype, *shape):
        weight = testing.integers(shape, dtype, rng.getrandbits(31), low=0, high=16 if dtype in ONE_BYTE else 250)
        label = f"{' × '.join(map(str, shape))}, {str(dtype).removeprefix('torch.')}"
        return Case({"weight": shuffled(weight)}, (check, "kept"), {"weight": weight}, label)

    two, other = rng.sample(TWO_BYTES, 2)
    return [
        case("undone", two, 64, 64),
        case("shapes", other, 64, COLUMNS * rng.choice([3, 5])),
        case("shapes", two, 32 * rng.choice([3, 5]), 64),
        *(case("bytes", dtype, 64, 64) for dtype in ONE_BYTE),
        case("groups", other, rng.randint(2, 4), ROWS * 3, 64),
        case("groups", rng.choice(ONE_BYTE), 3, 64, 64),
    ]


def examine(case: Case, ran: Ran) -> Iterator[Finding]:
    """Compare with the weight before the shuffle, and with the results of likely mistakes."""
    if not isinstance(ran.value, list) or len(ran.value) != 2:
        raise ValueError("not what `run` returns")
    (got, unchanged), want, check = ran.value, case.expected["weight"], case.checks[0]
    if wrong := expect_value(got, Tensor, "a tensor"):
        yield Finding("*", wrong)
        return
    if got.shape != want.shape:
        text = f"the result is {tuple(got.shape)}, and the weight {tuple(want.shape)}"
        yield Finding(check, text)
        yield Finding("kept", text)
        return
    if got.dtype != want.dtype:
        text = f"the result is {got.dtype}, and the weight {want.dtype}".replace("torch.", "")
        yield Finding("kept", f"{text}: elements move, and keep their type")
    if unchanged is not True:
        yield Finding("kept", "the argument was changed: return a new tensor, and leave the shuffled weight as it is")
    right = got.double() == want.double()
    if not right.all():
        yield Finding(check, _why(got.double(), case, right), _pictures(right))
        if check == "undone":
            yield Finding("kept", NOT_COUNTED)


def _why(got: Tensor, case: Case, right: Tensor) -> Causes:
    """The first wrong element, and a likely mistake."""
    given, want = case.inputs["weight"], case.expected["weight"]
    place = (~right).nonzero()[0].tolist()
    row, column = place[-2:]
    group = f" of group {place[0]}" if len(place) == 3 else ""
    text = (
        f"row {row}, column {column}{group} has {float(got[tuple(place)]):g}, not {float(want[tuple(place)]):g} "
        f"({float(right.double().mean()):.0%} of the elements are right)"
    )
    for why, result in _likely_results(given, want):
        if torch.equal(got, result.reshape(want.shape).double()):
            return text, why
    return text


def _likely_results(given: Tensor, want: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(message, result) of likely mistakes."""
    n, k = given.shape[-2:]
    own = PACK_BYTES // given.element_size()
    blocks = n // ROWS, k // COLUMNS

    yield "nothing moved: this is the shuffled weight", given
    yield (
        (
            "this is shuffled once more. The shuffle does not undo itself: view the weight in the shuffled order of "
            "dimensions, then permute them back"
        ),
        shuffled(given),
    )
    if want.dim() == 3:
        first = given.clone()
        first[0] = want[0]
        yield "only group 0 was undone", first
        yield "every group has the weight of group 0", want[:1].expand(want.shape)
    yield "this is the weight transposed: a row of the weight has all of its K elements", want.mT
    for pack in (4, 8, 16):
        if pack != own:
            parts = given.view(-1, *blocks, COLUMNS // pack, ROWS, pack)
            yield (
                (
                    f"packs of {pack} elements were moved: a pack has {PACK_BYTES} bytes, and these elements have "
                    f"{given.element_size()}"
                ),
                parts.permute(0, 1, 4, 2, 3, 5),
            )
    packs = COLUMNS // own
    yield (
        "blocks come in the wrong order: all blocks of the same 16 rows follow each other, then those of the next 16",
        given.view(-1, *blocks[::-1], packs, ROWS, own).permute(0, 2, 4, 1, 3, 5),
    )
    yield (
        "the order within a block is wrong: the first packs of its 16 rows come first, then the second ones",
        given.view(-1, *blocks, ROWS, packs, own).permute(0, 1, 3, 2, 4, 5),
    )
    yield (
        (
            "each block is right, and blocks still follow each other in memory: the rows of a block have to come "
            "before the blocks along K"
        ),
        given.view(-1, *blocks, packs, ROWS, own).transpose(3, 4),
    )
    yield (
        "each block is transposed: its rows are along N",
        given.view(-1, *blocks, packs, ROWS, own).permute(0, 1, 3, 5, 2, 4),
    )
    names = ("blocks along N", "blocks along K", "packs", "rows")
    parts = given.view(-1, *blocks, packs, ROWS, own)
    for order in itertools.permutations(range(4)):
        current = ", ".join(names[axis] for axis in order)
        yield (
            f"the dimensions are now {current}; in the weight they are blocks along N, rows, blocks along K, packs",
            parts.permute(0, *(1 + axis for axis in order), 5),
        )
    if n % COLUMNS == 0 and n != k:
        yield (
            (f"N and K changed places: the weight has {blocks[0]} × {blocks[1]} blocks"),
            given.view(-1, k // ROWS, n // COLUMNS, packs, ROWS, own).permute(0, 1, 4, 2, 3, 5),
        )


def _pictures(right: Tensor) -> list[dict]:
    """The blocks of each matrix, at most four, each right or wrong."""
    panels = []
    for g, matrix in enumerate(right.reshape(-1, *right.shape[-2:])[:4]):
        n, k = matrix.shape
        fine = matrix.view(n // ROWS, ROWS, k // COLUMNS, COLUMNS).all(3).all(1)
        states = [[RIGHT if each else WRONG for each in line] for line in fine.tolist()]
        panels.append(table_panel(f"group {g}" if right.dim() == 3 else "your weight, in blocks", states))
    return panels
