"""What a decoding step moves and multiplies, and the pieces of memory that a load of weights takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Step(NamedTuple):
    """One launch: what it computes and moves, and the least time for it."""

    rows: int
    """Rows of each group."""
    flops: float
    moved: float
    """Bytes, each operand and the result once."""
    us: float


class Work(NamedTuple):
    """What one way to compute a step moves and multiplies, and the part of it that somebody needs."""

    needed: float
    total: float


def pieces(places: Sequence[int]) -> list[int]:
    """Lengths of the runs of neighbouring places, in ascending order of the places."""
    places = sorted(places)
    lengths = [1]
    for before, place in pairwise(places):
        if place == before + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths
