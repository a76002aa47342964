"""The first check of the course, in lesson 00: a function that turns the sizes of groups into their ends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch

from course_kernels import runtime

CASES = ([3, 0, 5, 2], [7], [0, 0, 0])


def check_ends(ends_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Print whether a function returns the exclusive end of each group; if it does not, the first mistake.

    Args:
        ends_of: gets sizes, a (G,) int64 tensor on the GPU or, without one, the CPU; should return (G,) integers.
    """
    for sizes in CASES:
        want = list(accumulate(sizes))
        got = ends_of(torch.tensor(sizes, device=runtime.device()))
        if why := _mistake(got, sizes, want):
            shown = got.tolist() if isinstance(got, torch.Tensor) else got
            print(f"Not yet. For sizes {sizes} your function returned {shown}; the ends are {want}.\n{why}")
            return
    print("Pass: every end is right, also those of empty groups.")


def _mistake(got, sizes: list[int], want: list[int]) -> str | None:
    """The first mistake in these ends, in words; None if all are right."""
    if got is None:
        return "The function returned None: is there a `return`?"
    try:
        got = torch.as_tensor(got)
    except (TypeError, ValueError, RuntimeError):
        return f"The function must return a tensor of {len(want)} integers, not {type(got).__name__}."
    if got.dtype == torch.bool or got.is_floating_point() or got.is_complex():
        return f"An end is a row number, so it must be an integer; the type is {got.dtype}."
    if got.shape != (len(want),):
        return f"There must be one number for each of the {len(want)} groups; the shape is {tuple(got.shape)}."
    numbers = got.tolist()
    if numbers == want:
        return None
    known = {
        "These are the sizes. An end also counts the rows of all groups before.": sizes,
        "These are the rows at which groups start.": [end - size for end, size in zip(want, sizes)],
        "These are the last rows. An exclusive end is one row further.": [end - 1 for end in want],
    }
    return next((why for why, wrong in known.items() if numbers == wrong), "Some ends are wrong.")
