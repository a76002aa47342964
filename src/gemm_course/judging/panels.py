"""Pictures of mistakes, as data: tiles, or the entries of a list, in three states. `picture` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from gemm_course.judging.case import Written

RIGHT, WRONG, MISSING = range(3)  # states of a tile, the three colours of the picture


def tile_states(written: Written, want: torch.Tensor, block: Sequence[int], right=None) -> list[list[int]]:
    """RIGHT, WRONG or MISSING for each tile of `block` (rows, columns); MISSING if any element was never written.

    `right` (bool, like `want`) marks the right elements; by default those equal to `want`.
    """
    right = (written.values.double() == want.double()) if right is None else right

    def state(part) -> int:
        return MISSING if written.missing[part].any() else RIGHT if right[part].all() else WRONG

    return [[state(part) for part in line] for line in tile_slices(want.shape, block)]


def tile_slices(shape: Sequence[int], block: Sequence[int]) -> list[list[tuple[slice, slice]]]:
    """The tiles of a matrix, as pairs of slices, row by row."""
    rows, cols = ([slice(at, at + step) for at in range(0, extent, step)] for extent, step in zip(shape, block))
    return [[(row, col) for col in cols] for row in rows]


def panel(
    written: Written, want: torch.Tensor, block: Sequence[int], title: str = "", right=None, reach: int = 0
) -> dict:
    """The picture of a matrix: its tiles in three colours. Arguments as `tile_states`.

    It also shows writes around the matrix, up to `reach` elements from it.
    """
    states = tile_states(written, want, block, right)
    found = {"title": title or written.name, "shape": list(want.shape), "block": list(block), "states": states}
    return {**found, "outside": _rectangles(written.around(reach), -reach)} if reach else found


def _rectangles(places: torch.Tensor, first: int) -> list[list[int]]:
    """Rectangles [row, column, rows, columns] that cover all True places. Rows and columns count from `first`."""
    found, open_ones = [], {}
    for row, line in enumerate(places.tolist(), first):
        edges = [at for at, (before, after) in enumerate(pairwise([False, *line, False]), first) if before != after]
        runs = set(zip(edges[::2], edges[1::2]))
        open_ones = {run: each for run, each in open_ones.items() if run in runs}
        for left, right in sorted(runs):
            if (left, right) not in open_ones:
                open_ones[left, right] = [row, left, 0, right - left]
                found.append(open_ones[left, right])
            open_ones[left, right][2] += 1
    return found


def row_panel(got: Sequence, want: Sequence, title: str) -> dict:
    """The picture of a list of texts or numbers: a cell for each, wrong ones marked, missing ones as never written."""
    states = [RIGHT if i < len(want) and each == want[i] else WRONG for i, each in enumerate(got)]
    states += [MISSING] * (len(want) - len(got))
    labels = [*map(str, got), *["–"] * (len(want) - len(got))]
    return table_panel(title, [states], [labels])


def table_panel(title: str, states: list[list[int]], labels: list[list[str]] | None = None, height: int = 1) -> dict:
    """The picture of a table: a cell for each state. `height` is that of a cell, whose width is 1."""
    shape = [height * len(states), len(states[0])]
    found = {"title": title, "shape": shape, "block": [height, 1], "states": states}
    return found if labels is None else {**found, "labels": labels}
