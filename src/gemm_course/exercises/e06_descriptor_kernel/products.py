"""Exercise 06: what C is if an answer loads or adds something else than it should."""

from __future__ import annotations

import itertools

import torch

from gemm_course.exercises.e06_descriptor_kernel.run import BLOCK_K, BLOCK_M, BLOCK_N
from gemm_course.judging import diagnosis

_ORDER = "coordinates come in the order of the extents"
_NUMBER = "gives with the number of a tile: coordinates count elements"
# The broken check, the mistake, and (row of A, column of A, row of B, column of B) of what is loaded for a tile.
LOADS = (
    ("*", f"this is what a.load([k, row]) gives, not a.load([row, k]): {_ORDER}", lambda _, r, c, k: (k, r, c, k)),
    ("*", f"this is what b.load([k, col]) gives, not b.load([col, k]): {_ORDER}", lambda _, r, c, k: (r, k, k, c)),
    ("tiles", "this is what a.load([col, k]) gives: blocks of a begin at `row`", lambda _, r, c, k: (c, k, c, k)),
    ("tiles", "this is what b.load([row, k]) gives: blocks of b begin at `col`", lambda _, r, c, k: (r, k, r, k)),
    ("tiles", "this is what a.load([row - start, k]) gives: A is packed like C", lambda s, r, c, k: (r - s, k, c, k)),
    ("tiles", "A is read `start` rows too far down: `row` contains `start`", lambda s, r, c, k: (r + s, k, c, k)),
    ("depth", "this is what a.load([row, 0]) gives: does k move?", lambda _, r, c, k: (r, 0, c, k)),
    ("depth", "this is what b.load([col, 0]) gives: does k move?", lambda _, r, c, k: (r, k, c, 0)),
    ("tiles", f"this is what a.load {_NUMBER}", lambda s, r, c, k: (s + (r - s) // BLOCK_M, k, c, k)),
    ("tiles", f"this is what b.load {_NUMBER}", lambda _, r, c, k: (r, k, c // BLOCK_N, k)),
)  # fmt: skip


def loaded(a, b, bounds: tuple[int, int], places):
    """A group's C if the blocks are loaded at ``places(start, row, col, k)``."""
    (start, end), (n, depth) = bounds, b.shape
    # Beyond its extents a descriptor gives zeros.
    a, b = (torch.nn.functional.pad(each, (0, len(a) + BLOCK_K, 0, len(a) + n + depth)) for each in (a, b))
    found = torch.zeros(end - start, n, dtype=torch.float64)
    for i, j in itertools.product(range(0, end - start, BLOCK_M), range(0, n, BLOCK_N)):
        for k in range(0, depth, BLOCK_K):
            row, deep, col, down = places(start, start + i, j, k)
            x, y = a[row : row + BLOCK_M, deep : deep + BLOCK_K], b[col : col + BLOCK_N, down : down + BLOCK_K]
            part = found[i : i + BLOCK_M, j : j + BLOCK_N]
            part += (x @ y.T)[: part.shape[0], : part.shape[1]]
    return found


def moved(a, start: int, end: int):
    """A group's rows of A if A's pointer is moved by `start` and coordinates are counted from row 0."""
    return torch.cat([a[2 * start : end], torch.zeros_like(a[max(start, end - start) : end])])[: end - start]


def reshaped(b) -> torch.Tensor:
    """(K, N): B (N, K) with each of its blocks reshaped to (BLOCK_K, BLOCK_N) instead of transposed."""
    n, depth = b.shape
    rows, cols = -(-n // BLOCK_N) * BLOCK_N, -(-depth // BLOCK_K) * BLOCK_K
    found = torch.zeros(cols, rows, dtype=b.dtype)
    for i in range(0, rows, BLOCK_N):
        for j in range(0, cols, BLOCK_K):
            block = torch.zeros(BLOCK_N, BLOCK_K, dtype=b.dtype)
            inside = b[i : i + BLOCK_N, j : j + BLOCK_K]
            block[: inside.shape[0], : inside.shape[1]] = inside
            found[j : j + BLOCK_K, i : i + BLOCK_N] = block.reshape(BLOCK_K, BLOCK_N)
    return found[:depth, :n]


def carried_over(a, b, writers, bounds: tuple[int, int]):
    """A group's C if a program adds each of its tiles to the sum of those before."""
    sums: dict[int, torch.Tensor] = {}
    found = torch.zeros(bounds[1] - bounds[0], len(b), dtype=torch.float64)
    for row, col in itertools.product(range(*bounds, BLOCK_M), range(0, len(b), BLOCK_N)):
        part, program = a[row : row + BLOCK_M] @ b[col : col + BLOCK_N].T, int(writers[row, col])
        total = sums.setdefault(program, torch.zeros(BLOCK_M, BLOCK_N, dtype=torch.float64))
        total[: len(part), : part.shape[1]] += part
        place = found[row - bounds[0] :, col:][:BLOCK_M, :BLOCK_N]
        place.copy_(total[: len(place), : place.shape[1]])
    return found


def each_added_again(a, b):
    """The sum if each turn of the loop adds to `acc` what tl.dot has added to it already."""
    found = torch.zeros(len(a), len(b), dtype=torch.float64)
    for k in range(0, a.shape[1], BLOCK_K):
        found = 2 * found + block(a, k) @ block(b, k).T
    return found


def summed_in(dtype: torch.dtype, which: int, x, y):
    """The product if its sum is rounded to a type after each block of K, in one of the `roundings`."""
    found = torch.zeros(len(x), len(y), dtype=torch.float64)
    for k in range(0, x.shape[1], BLOCK_K):
        found = diagnosis.roundings(found + block(x, k) @ block(y, k).T, dtype)[-which]
    return found


def block(matrix, k: int):
    """The columns of a block of K."""
    return matrix[:, k : k + BLOCK_K]
