"""How many bytes a schedule reads from memory, given a cache that all programs share."""

from __future__ import annotations

from collections import OrderedDict
from operator import index as as_int
from typing import NamedTuple

from course_kernels.schedule.orders import check_positive
from course_kernels.schedule.simulate import Timeline

__all__ = ["H200_L2_BYTES", "Traffic", "bytes_moved"]

H200_L2_BYTES = 60 * 2**20
"""L2 cache of an H200, as its driver reports it (`l2_bytes` of every record); an H100 has 50 MiB."""


class Traffic(NamedTuple):
    """Bytes that a schedule moves."""

    requested: int  # operand bytes of all tiles: each needs its row panel of A and column panel of B
    from_memory: int  # of those, the bytes that are not in the cache when requested
    compulsory: int  # every operand byte that any tile needs, once, as with an unlimited cache
    written: int  # result bytes

    @property
    def hit_rate(self) -> float:
        """Share of the requested bytes that the cache has, 0 to 1; 1 if nothing was requested."""
        return 1.0 - self.from_memory / self.requested if self.requested else 1.0


def bytes_moved(timeline: Timeline, *, l2_bytes: int = H200_L2_BYTES, k_slab: int = 256) -> Traffic:
    """Count the bytes that a timeline's tiles request, and those that memory must deliver.

    Args:
        timeline: which tiles run, and when; its cost model has the bytes of an element.
        l2_bytes: size of the shared cache in bytes; 60 MiB on an H200. 0 means no cache.
        k_slab: elements of K in one cached piece. Smaller follows the programs more closely and takes longer.

    Raises:
        TypeError: `timeline` is not a Timeline, or a size is not an integer.
        ValueError: a negative cache size or a `k_slab` below 1.

    Notes:
        A model: the cache drops the piece that was used longest ago, and holds operands only. A piece is one tile row
        of A or one tile column of B over `k_slab` elements; a program asks for its pieces evenly over the tile's time.
        Programs that need one piece at the same moment share it, so the order of tiles matters. A real L2 is
        set-associative, has two halves and caches results: trust differences between schedules, not absolute figures.
    """
    if not isinstance(timeline, Timeline):
        raise TypeError(f"timeline is a {type(timeline).__name__}; want a Timeline (see simulate)")
    k_slab = check_positive("k_slab", k_slab)
    try:
        l2_bytes = as_int(l2_bytes)
    except TypeError:
        raise TypeError(f"l2_bytes is {l2_bytes!r}; want an integer") from None
    if l2_bytes < 0:
        raise ValueError(f"l2_bytes is {l2_bytes}; want at least 0")
    itemsize = timeline.cost.itemsize

    asks, written = [], 0
    for program, line in enumerate(timeline.programs):
        for tile, start, end in line:
            written += tile.rows * tile.cols * itemsize
            slabs = -(-tile.k // k_slab)
            step = (end - start) / slabs if slabs else 0.0
            asks.extend((start + slab * step, program, slab, tile) for slab in range(slabs))
    # A program asks for one piece at a time, so (time, program) orders the asks completely.
    asks.sort(key=lambda ask: ask[:2])

    cached: OrderedDict[tuple[str, int, int, int], int] = OrderedDict()
    seen: set[tuple[str, int, int, int]] = set()
    requested = from_memory = compulsory = held = 0
    for _, _, slab, tile in asks:
        depth = min(k_slab, tile.k - slab * k_slab) * itemsize
        for piece, size in (
            (("A", tile.problem, tile.m, slab), tile.rows * depth),
            (("B", tile.problem, tile.n, slab), tile.cols * depth),
        ):
            requested += size
            if piece in cached:
                cached.move_to_end(piece)
                continue
            from_memory += size
            if piece not in seen:
                seen.add(piece)
                compulsory += size
            cached[piece] = size
            held += size
            while held > l2_bytes:
                held -= cached.popitem(last=False)[1]
    return Traffic(requested, from_memory, compulsory, written)
