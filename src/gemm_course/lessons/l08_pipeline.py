"""A model of one program: copies in flight, products and stores over time, with one loop and with two."""

from __future__ import annotations

from typing import NamedTuple

from course_kernels.codegen.ptx import COPY, MULTIPLY, STORE


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
