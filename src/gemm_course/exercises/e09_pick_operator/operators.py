"""Exercise 09: descriptions of operators, the rule for the best one, and likely wrong rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from gemm_course.exercises.e09_pick_operator.run import Operator

# For Blackwell all of NVIDIA's designs, as lesson 09 finds them. For Hopper the tiles of the course's own kernel, in
# clusters of one direction each: the kernel's own have both, so that they do not compute a single block.
HOPPER = [
    Operator(("90a",), torch.bfloat16, tile, cluster, 1, stages)
    for tile, stages in (((128, 256, 64), 4), ((128, 192, 64), 4), ((128, 128, 64), 6))
    for cluster in ((2, 1), (1, 2))
] + [Operator(("90a",), torch.bfloat16, tile, (1, 1), 1, 4) for tile in ((64, 256, 64), (64, 128, 128))]
BLACKWELL = [
    Operator(("100f", "110f"), torch.bfloat16, (*tile, 64), cluster, ctas, None)
    for ctas, tiles in ((2, ((128, 128), (256, 128), (256, 256))), (1, ((64, 128), (128, 128))))
    for tile in tiles
    for cluster in itertools.product((2, 4) if ctas == 2 else (1, 2, 4), (1, 2, 4))
]


def block(each: Operator) -> tuple[int, int]:
    """Rows and columns of C that a cluster works on at a time."""
    return each.tile[0] // each.ctas * each.cluster[0], each.tile[1] * each.cluster[1]


def rounded(extent: int, unit: int) -> int:
    """The extent, rounded up to a multiple of a unit."""
    return -(-extent // unit) * unit


def computed(each: Operator, sizes: Sequence[int], columns: int) -> tuple[int, int]:
    """Rows of all groups together, and columns, that are computed for C."""
    down, across = block(each)
    return down * sum([-(-size // down) for size in sizes]), rounded(columns, across)


def reuse(down: int, across: int) -> float:
    """Products per fetched element of a block."""
    return down * across / (down + across)


def score(each: Operator, sizes: Sequence[int], columns: int) -> tuple[int, float]:
    """The best operator has the least: computed elements; where these are equal, fetched ones."""
    rows, across = computed(each, sizes, columns)
    return rows * across, -reuse(*block(each))


def _by(block_of: Callable[[Operator], tuple[int, int]]) -> Callable:
    """The rule with another block."""

    def key(each, sizes, columns):
        down, across = block_of(each)
        area = sum(rounded(size, down) for size in sizes) * rounded(columns, across)
        return area, -reuse(down, across)

    return key


def _clusters(each, sizes, columns):
    down, across = block(each)
    return sum(-(-size // down) for size in sizes) * -(-columns // across), -reuse(down, across)


def _floored(each, sizes, columns):
    """As `score`, but with the quotient of a group's rows, or of the columns, rounded down."""
    down, across = block(each)
    area = sum(size // down for size in sizes) * -(-columns // across) * down * across
    return area, -reuse(down, across)


def _columns_floored(each, sizes, columns):
    down, across = block(each)
    return sum(-(-size // down) for size in sizes) * (columns // across) * down * across, -reuse(down, across)


# Likely wrong rules (the least is picked), and their description after "it would be the one if".
MISTAKES: dict[str, tuple[Callable, str]] = {
    # K is less than a block's columns in every draw, as 1 is.
    "depth": (lambda each, sizes, columns: score(each, sizes, 1), "K were N: mat_b is (G, K, N)"),
    "first": (lambda each, sizes, columns: 0, "the first that fits were taken, whatever it computes"),
    "floored": (_floored, "a group's rows were rounded down to whole blocks (`//`), and not up: a last block counts"),
    "columns floored": (
        _columns_floored,
        "columns were rounded down to whole blocks (`//`), and not up: a last block counts",
    ),
    "total": (
        lambda each, sizes, columns: score(each, [sum(sizes)], columns),
        "rows were rounded up all together, and not group by group",
    ),
    "fetched": (
        lambda each, sizes, columns: -reuse(*block(each)),
        "only products per element counted, and not what is computed",
    ),
    "tile": (
        _by(lambda each: each.tile[:2]),
        "rows and columns were rounded up to tiles: what is launched is a cluster, all of it",
    ),
    "pair": (
        _by(lambda each: (each.tile[0] * each.cluster[0], each.tile[1] * each.cluster[1])),
        "every CTA had a tile's rows; where two share a tile, each has half of them",
    ),
    "exchanged": (
        _by(lambda each: (each.tile[0] // each.ctas * each.cluster[1], each.tile[1] * each.cluster[0])),
        "a cluster's CTAs along M lay along N",
    ),
    "columns": (
        lambda each, sizes, columns: (computed(each, sizes, columns)[0], -reuse(*block(each))),
        "only rows were rounded up, and not columns",
    ),
    "clusters": (_clusters, "clusters were counted, and not what they compute: a larger one takes longer"),
    "empty": (
        lambda each, sizes, columns: score(each, [max(size, 1) for size in sizes], columns),
        "a group without rows had a cluster, too",
    ),
    "rest": (
        lambda each, sizes, columns: score(each, sizes[1:], columns),
        "the first group did not count: as the difference of two ends, it begins at 0",
    ),
    "area": (
        lambda each, sizes, columns: (score(each, sizes, columns)[0], -math.prod(block(each))),
        "a block's size decided: what it fetches is rows plus columns, so its shape counts",
    ),
    "small": (
        lambda each, sizes, columns: (score(each, sizes, columns)[0], reuse(*block(each))),
        "the smallest block were best",
    ),
    "alone": (
        lambda each, sizes, columns: (each.ctas, *score(each, sizes, columns)),
        "operators whose CTAs work in pairs were left out",
    ),
}

# More of them, which no draw has to tell apart.
MORE_MISTAKES: tuple[tuple[Callable, str], ...] = (
    (
        _by(lambda each: (each.tile[0] // each.ctas * each.cluster[0], each.tile[1] * each.cluster[0])),
        "a cluster had as many tiles along N as it has CTAs along M, `cluster[0]`",
    ),
    (
        _by(lambda each: (each.tile[0] // each.ctas * each.cluster[1], each.tile[1] * each.cluster[1])),
        "a cluster had as many tiles along M as it has CTAs along N, `cluster[1]`",
    ),
)


def best(found: Sequence[Operator], sizes: Sequence[int], columns: int) -> list[Operator]:
    """The operators that compute least, and of these those that fetch least."""
    least = min(score(each, sizes, columns) for each in found)
    return [each for each in found if score(each, sizes, columns) == least]
