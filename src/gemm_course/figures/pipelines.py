"""The compiled loops over tiles and over K, and their effect on copies in flight."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from gemm_course.figures import ptx
from gemm_course.figures.shapes import bare, canvas_grid, centred, rectangle
from gemm_course.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, color_of, ink_on, styled

COPY, MULTIPLY, STORE = "copy", "multiply", "store"
_COLORS = {COPY: BLUE, MULTIPLY: GREEN, STORE: ORANGE}
_EVENTS = (
    (COPY, re.compile(r"cp\.async\.bulk\.tensor\.\dd\.shared")),
    (MULTIPLY, re.compile(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync")),
    (STORE, re.compile(r"cp\.async\.bulk\.tensor\.\dd\.global|st\.global")),
)
_LOOPS = ("loop over tiles", "loop over K")


class Run(NamedTuple):
    """Instructions of one kind with none of another between them."""

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
    for start, end in ptx.back_edges(lines):
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
    return sum(map(ptx.is_instruction, text.splitlines()))


@styled()
def structure(texts: Mapping[str, str]) -> Figure:
    """Draw the copies, multiplications and stores in each kernel's PTX in order, with its loops around them."""
    figure, panels = canvas_grid(1.25 * len(texts) + 0.2, len(texts), 1)
    found = {name: loops(text) for name, text in texts.items()}
    widest = max(len(runs) for runs, _ in found.values())
    for axes, (name, (runs, spans)) in zip(panels, found.items()):
        for i, run in enumerate(runs):
            color = _COLORS[run.kind]
            rectangle(axes, i + 0.08, 0, 0.84, 1, fc=color, gid=run.kind)
            words = {COPY: "copies", MULTIPLY: "multiplies", STORE: "stores"}[run.kind]
            text = f"{run.count} {words}" if run.count != 1 else f"1 {run.kind}"
            centred(axes, i + 0.5, 0.5, text, fontsize=9, color=ink_on(color))
        for depth, (start, end) in enumerate(spans):
            inside = [i for i, run in enumerate(runs) if start < run.first and run.last < end]
            if not inside:
                continue
            y, x0, x1 = 1.62 - 0.34 * depth, inside[0] + 0.03, inside[-1] + 0.97
            axes.plot([x0, x0, x1, x1], [y - 0.22, y, y, y - 0.22], color=BLACK, lw=1.5, gid="loop")
            words = _LOOPS[min(depth, 1)] if len(spans) > 1 else "one loop over tiles and K"
            box = dict(fc="white", ec="none", pad=1.5)
            centred(axes, (x0 + x1) / 2, y, words, fontsize=9, bbox=box)
        axes.set_title(name, fontsize=10)
        bare(axes, (0, widest), (-0.05, 1.8))
    return figure


class Span(NamedTuple):
    """A stretch of work of one unit, "copy", "multiply" or "store", for one tile."""

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
        blocks: of K in each tile.
        fused: the copies of the next tile may start before this one is stored.
        stages: blocks that shared memory holds.
        copy, multiply, store: time from a copy's start to its arrival, of a block's product, of a tile's store.

    Returns:
        Spans in the order of their starts, in the arguments' unit of time.
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
    """Draw copies in flight, products and stores over time, coloured by tile, with the end of the last store.

    ``runs`` has what `pipeline` returns; panels have one scale.
    """
    units = (COPY, MULTIPLY, STORE)
    last = max(span.end for spans in runs.values() for span in spans)
    figure, panels = canvas_grid(1.7 * len(runs) + 0.2, len(runs), 1, sharex=True)
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
            rectangle(axes, span.start, y, span.end - span.start, height, fc=color, ec="white", lw=0.8, gid=span.unit)
            if span.unit == STORE:
                centred(axes, (span.start + span.end) / 2, y + 0.5, f"tile {span.tile}", fontsize=9,
                        color=ink_on(color))  # fmt: skip
        end = max(span.end for span in spans)
        axes.axvline(end, color=BLACK, lw=1.2, ls="--")
        axes.set_title(f"{name}: done after {end:g}", fontsize=10)
        axes.set_yticks([0.5, 1.7, 2.9], ["copies in flight", "multiply", "store"], fontsize=9)
        axes.set(xlim=(0, last + 0.4), ylim=(3.5, -0.1))
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
    panels[-1].set_xlabel("time (the product of one block of K = 1)", fontsize=9, color=GREY)
    return figure
