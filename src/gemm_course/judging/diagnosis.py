"""Finds causes in the returned results: the tile, the element, the program, the access."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gemm_course.judging.case import Ran, Written
from gemm_course.judging.causes import Cause, ChangedAround, Observed, UnwrittenTile, WrongStride, WrongTile
from gemm_course.judging.panels import MISSING, WRONG, tile_slices, tile_states

MOST_ACCESSES = 3  # that are reported for one input


def tiles(written: Written, want: torch.Tensor, block: Sequence[int], right=None) -> tuple[Cause, ...]:
    """The first unwritten tile of a matrix, and the first wrong one; empty if all is right.

    Arguments as `panels.tile_states`.
    """
    right = (written.values.double() == want.double()) if right is None else right
    states, parts = tile_states(written, want, block, right), tile_slices(want.shape, block)
    places = [(i, j) for i, line in enumerate(states) for j in range(len(line))]
    found: list[Cause] = []
    if unwritten := [(i, j) for i, j in places if states[i][j] == MISSING]:
        i, j = unwritten[0]
        whole = bool(written.missing[parts[i][j]].all())
        found.append(UnwrittenTile(written.name, (i, j), whole, len(unwritten) - 1))
    if wrong := [(i, j) for i, j in places if states[i][j] == WRONG]:
        i, j = wrong[0]
        row, col = ((~right[parts[i][j]]).nonzero()[0] + torch.tensor([i * block[0], j * block[1]])).tolist()
        got, should, program = float(written.values[row, col]), float(want[row, col]), int(written.writers[row, col])
        found.append(WrongTile(written.name, (i, j), (row, col), got, should, program, len(wrong), len(places)))
    return tuple(found)


def right_as_written(written: Written, want: torch.Tensor, block: Sequence[int]) -> int:
    """Count the written tiles whose written elements are all right. Arguments as for `tiles`.

    Unlike the number of right elements it does not depend on chance: no wrong tile is right in all of them.
    """
    fine = written.missing | (written.values.double() == want.double())
    parts = [part for line in tile_slices(want.shape, block) for part in line]
    return sum(bool(fine[part].all()) and not written.missing[part].all() for part in parts)


def stores_outside(ran: Ran, note: str = "") -> tuple[Cause, ...]:
    """Writes past an output's end, seen by a probe or left in the surroundings; `note` ends the last sentence."""
    stores = [event for event in ran.events if event.kind == "store"][:MOST_ACCESSES]
    found: list[Cause] = [Observed(event, note * (event is stores[-1])) for event in stores]
    if not found:
        spilled = [written for written in ran.outputs.values() if written.outside][:MOST_ACCESSES]
        found = [ChangedAround(each.name, each.outside, note * (each is spilled[-1])) for each in spilled]
    return tuple(found)


def loads_outside(ran: Ran) -> tuple[Cause, ...]:
    """Reads outside of the inputs; none on a GPU."""
    return tuple(Observed(event) for event in ran.events if event.kind == "load")[:MOST_ACCESSES]


def wrong_stride(ran: Ran) -> WrongStride | None:
    """The stride of pointers that reach outside of a matrix; None if it is right, and on a GPU."""
    return next(filter(None, (event.wrong_stride for event in ran.events)), None)


def rounded_to(values: torch.Tensor, gave: Callable[[torch.Tensor], bool]) -> str:
    """The type of 16 bits to which right values were rounded, if `gave` says that the result is these; else empty."""
    for dtype in (torch.float16, torch.bfloat16):
        if any(map(gave, roundings(values, dtype))):
            return str(dtype).removeprefix("torch.")
    return ""


def roundings(values: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Round values to a type, as float64. For bfloat16 also truncate them, as Triton's interpreter does."""
    found = [values.to(dtype).double()]
    if dtype == torch.bfloat16:
        found.append((values.float().view(torch.int32) & ~0xFFFF).view(torch.float32).double())
    return found
