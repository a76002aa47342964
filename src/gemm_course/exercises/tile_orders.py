"""Wrong orders of tiles in exercises 04a and 13: strips, and tiles that are all computed, but out of turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

Lines = Sequence[Sequence[tuple[int, int, int]]]  # each program's tiles in order


def in_strip(own: int, rows: int, cols: int, height: int) -> tuple[int, int]:
    """Row and column of a group's tile number ``own``, counted in strips of ``height`` tile rows, column by column."""
    strip, rest = divmod(own, height * cols)
    high = min(height, rows - strip * height) or 1
    return strip * height + rest % high, rest // high


def about_strips(height: int) -> str:
    """The message on such an order."""
    return (
        f"this goes through strips of {height} tile rows, as GROUP_SIZE_M = {height} does in Triton's tutorial; here a "
        "whole column comes first"
    )


def about_turns(
    got: Lines, want: Lines, group_of: Callable[[tuple[int, int, int]], int], group: str, program: str
) -> tuple[str, str] | None:
    """(check, reason) if every tile is computed once, and only a group's order or the programs are exchanged.

    Args:
        got, want: what each program computes, and should.
        group_of: what is equal for the tiles of one group alone.
        group, program: what the exercise calls them.
    """
    of_group = [[[group_of(tile) for tile in line] for line in lines] for lines in (got, want)]
    if of_group[0] == of_group[1] and sorted(itertools.chain(*got)) == sorted(itertools.chain(*want)):
        return "place", f"every turn goes to the right {group}, but a {group}'s tiles are in another order"
    if sorted(got) == sorted(want):
        number = next(number for number, line in enumerate(got) if line != want[number])
        return "turn", f"{program} {number} computes the tiles of {program} {want.index(got[number])}"
    return None
