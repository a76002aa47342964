"""Reads PTX: the loop over K, the purpose of its instructions, descriptor fields, two texts in columns."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

MULTIPLY, COPY, WAIT, MASK, ADDRESS = "multiply", "copy", "wait", "mask", "address"
PURPOSES = {
    MULTIPLY: "multiply",
    COPY: "start a copy",
    WAIT: "wait, synchronise",
    MASK: "compare, select, branch",
    ADDRESS: "compute addresses",
}
"""Purposes of instructions, in the order of the figures' legends, with their words there."""

# Searched from the top. A multiplication's own fences and waits synchronise; they do not multiply.
_RULES = (
    (MULTIPLY, r"wgmma\.mma_async|tcgen05\.mma|mma\.sync|fma\.rn"),
    (WAIT, r"wgmma|tcgen05|bar(rier)?\.|mbarrier|fence|elect|nanosleep|cp\.async\.(bulk\.)?(commit|wait)"),
    (COPY, r"cp\.async|ld\.global|st\.global|ldmatrix|stmatrix|ld\.shared|st\.shared"),
    (MASK, r"setp|selp|bra\b|slct|\w+\.pred"),
    (ADDRESS, r"."),
)
_RULES = tuple((purpose, re.compile(pattern)) for purpose, pattern in _RULES)
_MULTIPLIES = _RULES[0][1]
_LABEL = re.compile(r"\s*(\$L__BB\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L__BB\w+)")
_STATEMENT = re.compile(r"\s*(?:@!?%?\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)[\s;]")
_TENSORMAP = re.compile(r"tensormap\.replace\.tile\.(\w+)")


def inner_loop(ptx: str) -> list[str]:
    """The instructions of the shortest loop that multiplies, in order: one round over a block of K.

    Raises:
        ValueError: no loop of this PTX multiplies.
    """
    lines = ptx.splitlines()
    bodies = ([line for line in lines[start : end + 1] if is_instruction(line)] for start, end in back_edges(lines))
    loops = [body for body in bodies if any(_MULTIPLIES.search(line) for line in body)]
    if not loops:
        raise ValueError("ptx must have a loop with a multiplication in it, found none")
    return [line.strip() for line in min(loops, key=len)]


def back_edges(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(line of the label, line of the branch) of every branch back to an earlier label."""
    labels = {match[1]: i for i, line in enumerate(lines) if (match := _LABEL.match(line))}
    for i, line in enumerate(lines):
        target = _BRANCH.search(line)
        if target and labels.get(target[1], i) < i:
            yield labels[target[1]], i


def is_instruction(line: str) -> bool:
    """Whether a line of PTX is an instruction: no label, no declaration, no directive of the debugger."""
    return bool(_STATEMENT.match(line)) and line.rstrip().endswith(";")


def purpose(instruction: str) -> str:
    """The purpose of an instruction, a key of ``PURPOSES``."""
    opcode = _STATEMENT.match(instruction + " ")
    if opcode is None:
        raise ValueError(f"instruction must be one of PTX, got {instruction!r}")
    return next(name for name, pattern in _RULES if pattern.match(opcode[1]))


def purposes(ptx: str) -> dict[str, int]:
    """Number of instructions in the loop over K for each of ``PURPOSES``."""
    counts = Counter(map(purpose, inner_loop(ptx)))
    return {name: counts[name] for name in PURPOSES}


def descriptor_fields(ptx: str) -> list[str]:
    """Names of the fields that a kernel fills in for its first descriptor, in order, each once."""
    names = _TENSORMAP.findall(ptx)
    first = names[: names.index(names[0], 1)] if names[:1] and names[0] in names[1:] else names
    return list(dict.fromkeys(first))


def side_by_side(left: str, right: str, titles: tuple[str, str] = ("", ""), width: int = 58) -> str:
    """Two texts in two columns of ``width`` characters, without their indentation and final semicolons.

    A longer line goes on in the next row, indented.
    """
    heads = [f"{title:<{width}.{width}}" for title in titles]
    rows = ["  ".join(heads).rstrip(), "  ".join(["─" * width] * 2)] if any(titles) else []
    for pair in zip_longest(_lines(left), _lines(right), fillvalue=""):
        for cells in zip_longest(*(_wrapped(line, width) for line in pair), fillvalue=""):
            rows.append(f"{cells[0]:<{width}}  {cells[1]}".rstrip())
    return "\n".join(rows)


def _lines(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", line).strip(" ;") for line in text.splitlines()]


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False) or [""]
