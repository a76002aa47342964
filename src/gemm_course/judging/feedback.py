"""From what came back to sentences: which tile, which row, which program, which line, and a likely reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import torch

from gemm_course.judging.case import Ran, Written

RIGHT, WRONG, MISSING = range(3)  # states of a tile, the three colours of the picture
_ACCESS = re.compile(r"line (\d+): program \d+ (?:reads|writes) (row|column)?")
_LINE, _LINE_ENDS = re.compile(r"(?:^|: )line (\d{1,6}): "), re.compile("\r\n|\r|\n")
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
            gives them no value; "atomic": an atomic update; "sync": a host sync, with "what"), "matrix", "line",
            "side" ("rows" or "columns", which of the two extents was left), "place" (row, column), "shape", "program",
            "count", "pitch" (elements between a block's rows, and between the matrix's, if these differ).
    """
    where = in_line(event["line"])
    if event["kind"] == "sync":
        return f"{where}{event['what']}, so the CPU has to wait for the GPU"
    if event["kind"] == "undefined":
        return f"{where}this load's mask leaves elements out and no `other=` says what they are: anything may be there"
    program = event["program"][0]
    if event["kind"] == "atomic":
        return f"{where}program {program} updates {event['matrix']} by an atomic operation"
    verb = _VERBS[event["kind"]]
    if event["matrix"] is None:
        return f"{where}program {program} {verb} an address that belongs to no matrix"
    stride = f"\n{_wrong_stride(event)}".rstrip()
    if event["side"] == "gap":
        return f"{where}program {program} {verb} between the elements of {event['matrix']}: is a stride wrong?{stride}"
    axis = 0 if event["side"] == "rows" else 1
    noun, extent, at = ("row", "column")[axis], event["shape"][axis], event["place"][axis]
    has = f"which has {noun}s 0 to {extent - 1}" if extent else f"which has no {noun}s"
    text = f"{where}program {program} {verb} {noun} {at} of {event['matrix']}, {has}"
    if not stride and event["far"][axis] == extent and at >= extent:
        text += ": one too many, as `<=` in place of `<` gives"
    return text + stride


def _wrong_stride(event: dict) -> str:
    if not event.get("pitch"):
        return ""
    pitch, stride = event["pitch"]
    return f"the rows of {event['matrix']} are {stride} elements apart, and those of the pointers {pitch}"


def wrong_stride(ran: Ran) -> str:
    """What is wrong with the stride of pointers that reach outside of a matrix; empty if it is right, and on a GPU."""
    return next(filter(None, map(_wrong_stride, ran.events)), "")


def explain_mask(message: str, masks: dict[str, str]) -> str:
    """A `sentence` on an access outside of a matrix, after what `masks` says of it; other messages stay as they are."""
    access = _ACCESS.match(message)
    problem = masks.get(f"{access[1]} {access[2] or ''}", "") if access else ""
    return f"{problem}\n{message}" if problem else message


def roundings(values: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Values rounded to a type, as float64. To bfloat16 also cut off, as Triton's interpreter does it."""
    found = [values.to(dtype).double()]
    if dtype == torch.bfloat16:
        found.append((values.float().view(torch.int32) & ~0xFFFF).view(torch.float32).double())
    return found


def quote_line(message: str, source: str) -> str:
    """A message with the answer's lines that it names by number, each below the sentence that names it first."""
    lines, told = _LINE_ENDS.split(source), []
    for text in message.split("\n"):
        told.append(text)
        found = _LINE.search(text)
        if found and 0 < int(found[1]) <= len(lines):
            code = lines[int(found[1]) - 1].strip()
            quoted = f"    {code[:160]}"
            if code and code not in message and quoted not in told:
                told.append(quoted)
    return "\n".join(told)


def tile_states(written: Written, want: torch.Tensor, block: Sequence[int], right=None) -> list[list[int]]:
    """RIGHT, WRONG or MISSING for each tile of `block` (rows, columns); MISSING if any element was never written.

    `right` is bool like `want`, where the matrix is right; by default where it equals `want`.
    """
    right = (written.values.double() == want.double()) if right is None else right

    def state(part) -> int:
        return MISSING if written.missing[part].any() else RIGHT if right[part].all() else WRONG

    return [[state(part) for part in line] for line in _parts(want.shape, block)]


def _parts(shape: Sequence[int], block: Sequence[int]) -> list[list[tuple[slice, slice]]]:
    """The tiles of a matrix, as pairs of slices, row by row."""
    rows, cols = ([slice(at, at + step) for at in range(0, extent, step)] for extent, step in zip(shape, block))
    return [[(row, col) for col in cols] for row in rows]


def right_as_written(written: Written, want: torch.Tensor, block: Sequence[int]) -> int:
    """How many of the tiles that were written at all are right as far as they were written. Arguments as `tile_states`.

    Unlike the number of right elements it does not depend on chance: no wrong tile is right in all of them.
    """
    fine = written.missing | (written.values.double() == want.double())
    parts = [part for line in _parts(want.shape, block) for part in line]
    return sum(bool(fine[part].all()) and not written.missing[part].all() for part in parts)


def tiles(written: Written, want: torch.Tensor, block: Sequence[int], right=None) -> str | None:
    """The first unwritten tile of a matrix, the first wrong one, and how many. None if all is right."""
    right = (written.values.double() == want.double()) if right is None else right
    states, parts = tile_states(written, want, block, right), _parts(want.shape, block)
    places = [(i, j) for i, line in enumerate(states) for j in range(len(line))]
    lines = []
    if unwritten := [(i, j) for i, j in places if states[i][j] == MISSING]:
        i, j = unwritten[0]
        whole = bool(written.missing[parts[i][j]].all())
        lines.append(
            f"tile ({i}, {j}) of {written.name} was {'never' if whole else 'only partly'} written"
            + (f", and {len(unwritten) - 1} more like it" if len(unwritten) > 1 else "")
        )
    if wrong := [(i, j) for i, j in places if states[i][j] == WRONG]:
        i, j = wrong[0]
        row, col = ((~right[parts[i][j]]).nonzero()[0] + torch.tensor([i * block[0], j * block[1]])).tolist()
        got, should = float(written.values[row, col]), float(want[row, col])
        by = int(written.writers[row, col])
        lines.append(
            f"tile ({i}, {j}) of {written.name} is wrong: at ({row}, {col}) there is {got:g}, not {should:g}"
            + (f"; program {by} wrote it" if by >= 0 else "")
            + (f"; {counted(len(wrong), 'tile')} of {len(places)} are wrong" if len(wrong) > 1 else "")
        )
    return "\n".join(lines) or None


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
    """The picture of a matrix: its tiles in three colours. Arguments as `tile_states`.

    Of its surroundings, what was written up to `reach` elements from it is shown, too.
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
    """The picture of a list of texts or numbers: a cell for each, wrong ones marked, missing ones as never written."""
    states = [RIGHT if i < len(want) and each == want[i] else WRONG for i, each in enumerate(got)]
    states += [MISSING] * (len(want) - len(got))
    labels = [*map(str, got), *["–"] * (len(want) - len(got))]
    return {"title": title, "shape": [1, len(states)], "block": [1, 1], "states": [states], "labels": [labels]}
