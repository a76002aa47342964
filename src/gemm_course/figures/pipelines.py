"""What a compiler made of the loops over tiles and over K, and what that does to copies in flight."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gemm_course.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, WIDTH, color_of, ink_on, styled

__all__ = ["Span", "count_instructions", "loops", "overlap", "pipeline", "structure"]

COPY, MULTIPLY, STORE = "copy", "multiply", "store"
_COLORS = {COPY: BLUE, MULTIPLY: GREEN, STORE: ORANGE}
_EVENTS = (
    (COPY, re.compile(r"cp\.async\.bulk\.tensor\.\dd\.shared")),
    (MULTIPLY, re.compile(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync")),
    (STORE, re.compile(r"cp\.async\.bulk\.tensor\.\dd\.global|st\.global")),
)
_LOOPS = ("loop over tiles", "loop over K")
_LABEL = re.compile(r"\s*(\$L__BB\w+):")
_INSTRUCTION = re.compile(r"\s*(?:@!?%?\w+\s+)?[a-z]\w*(?:\.[\w:]+)*(?:\s[^;]*)?;")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L__BB\w+)")


class Run(NamedTuple):
    """Instructions of one kind with none of another between them."""

    kind: str
    count: int
    first: int
    last: int


def loops(ptx: str) -> tuple[list[Run], list[tuple[int, int]]]:
    """The copies, multiplications and stores of a kernel in their order, and the loops around them.

    Args:
        ptx: of a kernel for tensor cores whose operands are described.

    Returns:
        Runs of instructions, from the first copy on, and loops as (first line, last line), the outer one first: those
        with a multiplication in them.

    Raises:
        ValueError: no loop multiplies.
    """
    lines = ptx.splitlines()
    labels = {match[1]: i for i, line in enumerate(lines) if (match := _LABEL.match(line))}
    events = [(i, kind) for i, line in enumerate(lines) for kind, pattern in _EVENTS if pattern.search(line)]
    multiplies = [i for i, kind in events if kind == MULTIPLY]
    found: dict[int, int] = {}
    for i, line in enumerate(lines):
        target = _BRANCH.search(line)
        start = labels.get(target[1], i) if target else i
        if any(start < at < i for at in multiplies):
            found[start] = max(found.get(start, 0), i)
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
        # A loop that is entered in its middle: what stands above the entrance is executed last.
        turned = [(i + len(lines), kind) for i, kind in events if spans[0][0] < i < first_copy]
        spans[0] = (spans[0][0], 2 * len(lines))
        events = [event for event in events if event[0] >= first_copy] + turned
    # Before the loops, copies alone: a kernel has stores for K = 0 as well, before or behind them in the text.
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


def count_instructions(ptx: str) -> int:
    """Instructions of a whole kernel's PTX, without labels, declarations and the debugger's directives."""
    return sum(bool(_INSTRUCTION.match(line)) for line in ptx.splitlines())


@styled()
def structure(texts: Mapping[str, str]) -> Figure:
    """Draw each kernel's copies, multiplications and stores in their order, with its loops around them.

    Args:
        texts: PTX by name.

    Returns:
        A figure with a line for each kernel; the numbers count instructions.
    """
    figure = Figure(figsize=(WIDTH, 1.25 * len(texts) + 0.2))
    panels = figure.subplots(len(texts), 1, squeeze=False)[:, 0]
    found = {name: loops(text) for name, text in texts.items()}
    widest = max(len(runs) for runs, _ in found.values())
    for axes, (name, (runs, spans)) in zip(panels, found.items()):
        for i, run in enumerate(runs):
            color = _COLORS[run.kind]
            axes.add_patch(Rectangle((i + 0.08, 0), 0.84, 1, fc=color, gid=run.kind))
            words = {COPY: "copies", MULTIPLY: "multiplies", STORE: "stores"}[run.kind]
            text = f"{run.count} {words}" if run.count != 1 else f"1 {run.kind}"
            axes.text(i + 0.5, 0.5, text, ha="center", va="center", fontsize=9, color=ink_on(color))
        for depth, (start, end) in enumerate(spans):
            inside = [i for i, run in enumerate(runs) if start < run.first and run.last < end]
            if not inside:
                continue
            y, x0, x1 = 1.62 - 0.34 * depth, inside[0] + 0.03, inside[-1] + 0.97
            axes.plot([x0, x0, x1, x1], [y - 0.22, y, y, y - 0.22], color=BLACK, lw=1.5, gid="loop")
            words = _LOOPS[min(depth, 1)] if len(spans) > 1 else "one loop over tiles and K"
            box = dict(fc="white", ec="none", pad=1.5)
            axes.text((x0 + x1) / 2, y, words, ha="center", va="center", fontsize=9, bbox=box)
        axes.set_title(name, fontsize=10)
        axes.set_xlim(0, widest)
        axes.set_ylim(-0.05, 1.8)
        axes.set_axis_off()
    return figure


class Span(NamedTuple):
    """A stretch of work: which of the three units, when, for which tile."""

    unit: str
    start: float
    end: float
    tile: int


def pipeline(
    tiles: int,
    blocks: int,
    *,
    fused: bool,
    stages: int = 3,
    copy: float = 2.0,
    multiply: float = 1.0,
    store: float = 3.0,
) -> list[Span]:
    """A simple model of one program: copies arrive after a while, blocks are multiplied in order, tiles are stored.

    Args:
        tiles: of the program, in order.
        blocks: of K in each tile.
        fused: the copies of the next tile may start before this one is stored.
        stages: blocks that shared memory holds.
        copy, multiply, store: time from a copy's start to its arrival, of a block's product, of a tile's store.

    Returns:
        Spans of "copy", "multiply" and "store" in the order of their starts, in the same unit of time as the arguments.
    """
    spans: list[Span] = []
    free = [0.0] * stages  # when each stage was last read
    ready = done = 0.0
    for tile in range(tiles):
        for block in range(blocks):
            slot = (tile * blocks + block) % stages
            issue = max(free[slot], 0.0 if fused else ready)
            spans.append(Span(COPY, issue, issue + copy, tile))
            begin = max(done, issue + copy)
            done = free[slot] = begin + multiply
            spans.append(Span(MULTIPLY, begin, done, tile))
        spans.append(Span(STORE, done, done + store, tile))
        ready = done = done + store
    return sorted(spans, key=lambda span: span.start)


@styled()
def overlap(runs: Mapping[str, Sequence[Span]]) -> Figure:
    """Draw what ``pipeline`` returned: copies in flight, products and stores over time, coloured by tile.

    Args:
        runs: spans by name.

    Returns:
        A figure with a panel for each, to one scale; its titles say when the last store is done.
    """
    units = (COPY, MULTIPLY, STORE)
    last = max(span.end for spans in runs.values() for span in spans)
    figure = Figure(figsize=(WIDTH, 1.7 * len(runs) + 0.2))
    panels = figure.subplots(len(runs), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, spans) in zip(panels, runs.items()):
        lanes = [0.0] * 8  # copies overlap: each takes the first free of the thin lines
        used = 0
        for span in spans:
            y, height = float(units.index(span.unit)) * 1.2, 1.0
            if span.unit == COPY:
                lane = next(i for i, free in enumerate(lanes) if free <= span.start + 1e-9)
                lanes[lane], used = span.end, max(used, lane + 1)
                y, height = lane * 0.34, 0.3
            color = color_of(span.tile)
            axes.add_patch(
                Rectangle((span.start, y), span.end - span.start, height, fc=color, ec="white", lw=0.8, gid=span.unit)
            )
            if span.unit == STORE:
                axes.text((span.start + span.end) / 2, y + 0.5, f"tile {span.tile}", ha="center", va="center",
                          fontsize=8, color=ink_on(color))  # fmt: skip
        end = max(span.end for span in spans)
        axes.axvline(end, color=BLACK, lw=1.2, ls="--")
        axes.set_title(f"{name}: done after {end:g}", fontsize=10)
        axes.set_yticks([0.5, 1.7, 2.9], ["copies in flight", "multiply", "store"], fontsize=9)
        axes.set_ylim(3.5, -0.1)
        axes.set_xlim(0, last + 0.4)
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
    panels[-1].set_xlabel("time (the product of one block of K = 1)", fontsize=9, color=GREY)
    return figure
