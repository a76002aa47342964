"""The bytes and operations of a decoding step, and the contiguous pieces of memory that a load of weights reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Step(NamedTuple):
    """One launch: its operations, its bytes, and the least time for them."""

    rows: int
    """Rows of each group."""
    flops: float
    moved: float
    """Bytes, each operand and the result once."""
    us: float


class Work(NamedTuple):
    """A quantity of one way to compute a step, such as bytes or operations: the needed part, and the total."""

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
