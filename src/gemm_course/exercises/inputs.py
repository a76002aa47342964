"""Inputs that several exercises draw: whole numbers to multiply, bounds of packed groups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import torch

from course_kernels import testing


def whole_numbers(rng: random.Random, *shape: int, low: int = 1, high: int = 3) -> torch.Tensor:
    """A float16 matrix of integers from low to high; sums of their products are exact, so that equal means equal."""
    return testing.integers(shape, generator=rng.getrandbits(31), low=low, high=high)


def bounds_of(ends: Sequence[int]) -> list[tuple[int, int]]:
    """(first row, end) of each packed group."""
    return list(pairwise([0, *ends]))
