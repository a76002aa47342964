"""Buffers full of canaries show which elements a kernel wrote, also outside of its output, and which it left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# The states of an element of a buffer around a matrix.
UNTOUCHED, RIGHT, INCORRECT, MISSING, OUTSIDE = range(5)
STATES = ("canary, untouched", "right", "wrong value", "never written", "written outside")
_BAD_FIRST = (OUTSIDE, INCORRECT, MISSING, RIGHT, UNTOUCHED)  # the state of a row is the worst of its elements'


def numbers(matrix) -> np.ndarray:
    """A tensor or array as float64."""
    return np.asarray(matrix.detach().cpu().double() if hasattr(matrix, "detach") else matrix, dtype=np.float64)


def write_states(buffer, at: Sequence[int], want, canary: float) -> np.ndarray:
    """Find the state of each element of a buffer that was full of canaries, after a kernel ran.

    Args:
        buffer: (rows, columns) the whole buffer, after the kernel.
        at: (row, column) of the output's first element in the buffer.
        want: (M, N) the right output.
        canary: the number that the buffer was filled with; it may be NaN.

    Returns:
        (rows, columns) int array of UNTOUCHED, RIGHT, INCORRECT, MISSING and OUTSIDE.

    Raises:
        ValueError: the output is not inside the buffer.
    """
    buffer, want = numbers(buffer), numbers(want)
    inside = _inside(buffer, want.shape, at)
    written = ~np.isnan(buffer) if np.isnan(canary) else buffer != canary
    states = np.where(written, OUTSIDE, UNTOUCHED)
    found = np.where(buffer[inside] == want, RIGHT, INCORRECT)
    found[~written[inside]] = MISSING
    states[inside] = found
    return states


def written_states(buffer, shape: Sequence[int], origin: Sequence[int] = (0, 0)) -> np.ndarray:
    """`write_states` for a NaN-filled buffer around a matrix in which every written value counts as right.

    Args:
        shape, origin: (M, N) of the matrix, and (row, column) of its first element in the buffer.
    """
    return write_states(buffer, origin, numbers(buffer)[_inside(numbers(buffer), shape, origin)], float("nan"))


def count_canary(buffer, shape: Sequence[int], origin: Sequence[int] = (0, 0)) -> dict[str, int]:
    """Count the elements that a kernel wrote in a NaN-filled 2-D buffer around a matrix C.

    Args:
        shape, origin: as for `written_states`.

    Returns:
        The number of elements "written" and "missing" inside C, "overwritten" and "intact" outside.
    """
    states = written_states(buffer, shape, origin)
    fates = {"intact": UNTOUCHED, "written": RIGHT, "overwritten": OUTSIDE, "missing": MISSING}
    return {name: int((states == state).sum()) for name, state in fates.items()}


def row_states(result, want, sizes: Sequence[int], canary: float) -> np.ndarray:
    """Find the state of each row of a masked result: the worst state of its elements.

    Args:
        result: (G, max_M, N), full of canaries before the kernel.
        want: (G, max_M, N) the right result in each group's first rows; the other rows are ignored.
        sizes: rows of each group.

    Returns:
        (G, max_M) int array of UNTOUCHED, RIGHT, INCORRECT, MISSING and OUTSIDE.
    """
    found = np.empty(result.shape[:2], dtype=int)
    for g, size in enumerate(sizes):
        states = write_states(result[g], (0, 0), want[g][:size], canary)
        for state in reversed(_BAD_FIRST):
            found[g, (states == state).any(axis=1)] = state
    return found


def _inside(buffer: np.ndarray, shape: Sequence[int], at: Sequence[int]) -> tuple[slice, slice]:
    ends = [first + extent for first, extent in zip(at, shape)]
    if buffer.ndim != 2 or min(at) < 0 or ends[0] > buffer.shape[0] or ends[1] > buffer.shape[1]:
        raise ValueError(f"a matrix of {tuple(shape)} at {tuple(at)} must lie within the buffer of {buffer.shape}")
    return slice(at[0], ends[0]), slice(at[1], ends[1])
