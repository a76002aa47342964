"""What several exercises share: whole numbers to multiply, bounds of packed groups, panels, a sentence."""

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


def made_on_cpu(device: str) -> str:
    """The feedback on a tensor that was made without a device; ``device`` is the source of the right one."""
    return f"torch makes a tensor on the CPU unless the call names a device: `device={device}`"


def table_panel(title: str, states: list[list[int]], labels: list[list[str]] | None = None, height: int = 1) -> dict:
    """A panel with a cell for each state; ``height`` is that of a cell, whose width is 1."""
    shape = [height * len(states), len(states[0])]
    panel = {"title": title, "shape": shape, "block": [height, 1], "states": states}
    return panel if labels is None else {**panel, "labels": labels}
