"""Wrong orders of tiles in exercises 04a and 13: strips, tiles out of turn, and a picture of who computes what."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from gemm_course.judging.panels import MISSING, RIGHT, WRONG, table_panel

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


def first_difference(line: Sequence, should: Sequence) -> int:
    """The place of the first tile of a line that is another than it should be."""
    return next((i for i, (a, b) in enumerate(zip(line, should)) if a != b), min(len(line), len(should)))


def difference(got: Lines, want: Lines, program: str, name: Callable[[tuple[int, int, int]], str]) -> str:
    """The first tile out of turn, as a sentence, with the exercise's names; "" if there is none."""
    for number, (line, should) in enumerate(zip(got, want)):
        if line != should:
            at = first_difference(line, should)
            if at >= len(line):
                return f"{program} {number} of {len(got)} never computes {name(should[at])}, although it is its turn"
            turn = f"when it is the turn of {name(should[at])}" if at < len(should) else "after its last turn"
            return f"{program} {number} of {len(got)} computes {name(line[at])} {turn}"
    return ""


def pictures(tables: Iterable[tuple[str, Sequence[Sequence]]], got: Lines, want: Lines, letter: str) -> list[dict]:
    """Tables of tiles, each with the program that computes it; several are counted.

    Args:
        tables: the title of each, and its tiles, row by row; one without tiles is left out.
        got, want: as in `about_turns`.
        letter: of a program.
    """
    turn = {tile: number for number, line in enumerate(want) for tile in line}
    by: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, line in enumerate(got):
        for tile in line:
            by[tile].append(number)
    panels = []
    for title, rows in tables:
        states = [[RIGHT if by[t] == [turn[t]] else WRONG if by[t] else MISSING for t in line] for line in rows]
        labels = [[f"{letter}{by[t][0]}" if len(by[t]) == 1 else f"{len(by[t])}×" for t in line] for line in rows]
        if any(rows):
            panels.append(table_panel(title, states, labels))
    return panels
