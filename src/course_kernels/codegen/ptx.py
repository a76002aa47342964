"""Reads PTX: loops over tiles and over K, the purpose of their instructions, descriptor fields."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MULTIPLY, COPY, WAIT, MASK, ADDRESS, STORE = "multiply", "copy", "wait", "mask", "address", "store"
PURPOSES = {
    MULTIPLY: "multiply",
    COPY: "start a copy",
    WAIT: "wait, synchronise",
    MASK: "compare, select, branch",
    ADDRESS: "compute addresses",
}
"""Purposes of instructions in a loop over K, with words for them."""

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
# For kernels with tensor cores and descriptors.
_EVENTS = (
    (COPY, re.compile(r"cp\.async\.bulk\.tensor\.\dd\.shared")),
    (MULTIPLY, re.compile(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync")),
    (STORE, re.compile(r"cp\.async\.bulk\.tensor\.\dd\.global|st\.global")),
)
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
    """Whether a line of PTX is an instruction, not a label, a declaration or a directive of the debugger."""
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


class Run(NamedTuple):
    """Consecutive instructions of one kind, with no instruction of another kind between them."""

    kind: str
    count: int
    first: int
    last: int


def loops(text: str) -> tuple[list[Run], list[tuple[int, int]]]:
    """The copies, multiplications and stores of a kernel in their order, and the loops around them.

    ``text`` is the PTX of a kernel for tensor cores whose operands have descriptors.

    Returns:
        Runs of instructions, from the first copy on, and the loops that multiply as (first line, last line), the outer
        one first.

    Raises:
        ValueError: no loop multiplies.
    """
    lines = text.splitlines()
    events = [(i, kind) for i, line in enumerate(lines) for kind, pattern in _EVENTS if pattern.search(line)]
    multiplies = [i for i, kind in events if kind == MULTIPLY]
    found: dict[int, int] = {}
    for start, end in back_edges(lines):
        if any(start < at < end for at in multiplies):
            found[start] = max(found.get(start, 0), end)
    if not found:
        raise ValueError("ptx must have a loop with a multiplication in it, found none")
    spans: list[tuple[int, int]] = []
    for start, end in sorted(found.items()):
        if spans and start < spans[-1][1] < end:  # two ways back into one loop
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    first_copy = next(i for i, kind in events if kind == COPY)
    if spans[0][0] < first_copy:
        # The loop is entered in its middle: the instructions above the entrance come last.
        turned = [(i + len(lines), kind) for i, kind in events if spans[0][0] < i < first_copy]
        spans[0] = (spans[0][0], 2 * len(lines))
        events = [event for event in events if event[0] >= first_copy] + turned
    # Before the loops, only copies count: a kernel has stores for K = 0 as well, before or after them in the text.
    events = [
        (i, kind)
        for i, kind in events
        if (kind == COPY and i < spans[0][0]) or any(start < i < end for start, end in spans)
    ]
    edges = [edge for span in spans for edge in span]
    runs: list[Run] = []
    for i, kind in events:
        same = runs and runs[-1].kind == kind and not any(runs[-1].last < edge < i for edge in edges)
        if same:
            runs[-1] = runs[-1]._replace(count=runs[-1].count + 1, last=i)
        else:
            runs.append(Run(kind, 1, i, i))
    return runs, spans


def count_instructions(text: str) -> int:
    """Number of instructions of a whole kernel's PTX."""
    return sum(map(is_instruction, text.splitlines()))
