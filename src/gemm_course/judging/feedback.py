"""From what came back to sentences: which tile, which row, which program, which line, and a likely reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from gemm_course.judging.case import Ran, Written

RIGHT, WRONG, MISSING = range(3)  # states of a tile, the three colours of the picture
_VERBS = {"load": "reads", "store": "writes"}


def counted(number: int, noun: str) -> str:
    """3 tiles, 1 tile."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def in_line(line: int) -> str:
    """The beginning of a sentence about a line of the learner's cell; empty for line 0, which is unknown."""
    return f"line {line}: " if line else ""


def sentence(event: dict) -> str:
    """What a probe saw, in words.

    Args:
        event: with "kind" ("load", "store": an access outside; "undefined": a load whose mask leaves out elements and
            gives them no value; "sync": a host sync, with "what"), "matrix", "line", "side" ("rows" or "columns", which
            of the two extents was left), "place" (row, column), "shape", "program", "count".
    """
    where = in_line(event["line"])
    if event["kind"] == "sync":
        return f"{where}{event['what']}, so the CPU has to wait for the GPU"
    if event["kind"] == "undefined":
        return f"{where}this load's mask leaves elements out and no `other=` says what they are: anything may be there"
    program = event["program"][0]
    verb = _VERBS[event["kind"]]
    if event["matrix"] is None:
        return f"{where}program {program} {verb} an address that belongs to no matrix"
    if event["side"] == "gap":
        return f"{where}program {program} {verb} between the elements of {event['matrix']}: is a stride wrong?"
    axis = 0 if event["side"] == "rows" else 1
    noun, extent, at = ("row", "column")[axis], event["shape"][axis], event["place"][axis]
    has = f"which has {noun}s 0 to {extent - 1}" if extent else f"which has no {noun}s"
    text = f"{where}program {program} {verb} {noun} {at} of {event['matrix']}, {has}"
    if event["far"][axis] == extent and at >= extent:
        text += ": one too many, as `<=` in place of `<` gives"
    return text


def tile_states(written: Written, want: torch.Tensor, block: Sequence[int], right=None) -> list[list[int]]:
    """RIGHT, WRONG or MISSING for each tile; missing means that at least one of its elements was never written.

    Args:
        written: a matrix that came back.
        want: what it should be.
        block: (rows, columns) of a tile.
        right: bool like `want`, where it is right; by default where it equals `want`.
    """
    right = (written.values.double() == want.double()) if right is None else right
    rows, cols = want.shape
    states = []
    for i in range(0, rows, block[0]):
        states.append([])
        for j in range(0, cols, block[1]):
            part = slice(i, i + block[0]), slice(j, j + block[1])
            missing, good = written.missing[part], right[part]
            states[-1].append(MISSING if missing.any() else RIGHT if good.all() else WRONG)
    return states


def right_as_written(written: Written, want: torch.Tensor, block: Sequence[int]) -> int:
    """How many of the tiles that were written at all are right as far as they were written. Arguments as `tile_states`.

    Unlike the number of right elements it does not depend on chance: no wrong tile is right in all of them.
    """
    fine = written.missing | (written.values.double() == want.double())
    count = 0
    for lines, left in zip(fine.split(block[0]), written.missing.split(block[0])):
        pairs = zip(lines.split(block[1], dim=1), left.split(block[1], dim=1))
        count += sum(bool(tile.all()) and not tile_left.all() for tile, tile_left in pairs)
    return count


def tiles(written: Written, want: torch.Tensor, block: Sequence[int], right=None) -> str | None:
    """What is wrong with a matrix, tile by tile: the first unwritten tile, the first wrong one, and how many. None if
    it is right. Arguments as `tile_states`.
    """
    right = (written.values.double() == want.double()) if right is None else right
    states = tile_states(written, want, block, right)
    flat = [(i, j, state) for i, line in enumerate(states) for j, state in enumerate(line)]
    lines = []
    unwritten = [(i, j) for i, j, state in flat if state == MISSING]
    if unwritten:
        i, j = unwritten[0]
        part = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
        whole = bool(written.missing[part].all())
        lines.append(
            f"tile ({i}, {j}) of {written.name} was {'never' if whole else 'only partly'} written"
            + (f", and {len(unwritten) - 1} more like it" if len(unwritten) > 1 else "")
        )
    wrong = [(i, j) for i, j, state in flat if state == WRONG]
    if wrong:
        i, j = wrong[0]
        part = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
        row, col = ((~right[part]).nonzero()[0] + torch.tensor([i * block[0], j * block[1]])).tolist()
        got, should = float(written.values[row, col]), float(want[row, col])
        by = int(written.writers[row, col])
        lines.append(
            f"tile ({i}, {j}) of {written.name} is wrong: at ({row}, {col}) there is {got:g}, not {should:g}"
            + (f"; program {by} wrote it" if by >= 0 else "")
            + (f"; {counted(len(wrong), 'tile')} of {len(flat)} are wrong" if len(wrong) > 1 else "")
        )
    return "\n".join(lines) or None


def written_twice(written: Written, block: Sequence[int]) -> str | None:
    """The first tile of which an element was written more than once; None without one, and on a GPU."""
    twice = (written.counts > 1).nonzero()
    if not len(twice):
        return None
    row, col = twice[0].tolist()
    times, by = int(written.counts[row, col]), int(written.writers[row, col])
    tile = row // block[0], col // block[1]
    return f"tile {tile} of {written.name} was written {times} times, the last time by program {by}"


def stores_outside(ran: Ran) -> str | None:
    """Writes past an output's end, seen by a probe or left in the surroundings; None without any."""
    lines = [sentence(event) for event in ran.events if event["kind"] == "store"]
    if not lines:
        lines = [
            f"{counted(written.outside, 'element')} around {written.name} changed: something was written outside of it"
            for written in ran.outputs.values()
            if written.outside
        ]
    return "\n".join(lines[:3]) or None


def loads_outside(ran: Ran) -> str | None:
    """Reads outside of the inputs; None without any, and on a GPU."""
    return "\n".join([sentence(event) for event in ran.events if event["kind"] == "load"][:3]) or None


def undefined(ran: Ran) -> str | None:
    """A masked load without `other=`; None without one, and on a GPU."""
    return next((sentence(event) for event in ran.events if event["kind"] == "undefined"), None)


def panel(
    written: Written, want: torch.Tensor, block: Sequence[int], title: str = "", right=None, reach: int = 0
) -> dict:
    """The picture of a matrix: its tiles in three colours. Arguments as `tile_states`, and

    Args:
        title: over the picture; by default the matrix's name.
        reach: up to how many elements from the matrix its surroundings are shown, if something was written there.
    """
    states = tile_states(written, want, block, right)
    found = {"title": title or written.name, "shape": list(want.shape), "block": list(block), "states": states}
    return {**found, "outside": _rectangles(written.around(reach), -reach)} if reach else found


def _rectangles(places: torch.Tensor, first: int) -> list[list[int]]:
    """Rectangles [row, column, rows, columns] that cover what is True; the first row and column have number `first`."""
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
    """The picture of a list of texts or numbers: each entry a cell, wrong ones marked. Entries that are missing count
    as never written.
    """
    count = max(len(got), len(want))
    states = [
        MISSING if i >= len(got) else RIGHT if i < len(want) and got[i] == want[i] else WRONG for i in range(count)
    ]
    labels = [str(got[i]) if i < len(got) else "–" for i in range(count)]
    return {"title": title, "shape": [1, count], "block": [1, 1], "states": [states], "labels": [labels]}
