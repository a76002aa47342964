"""A shuffled weight: which 16 bytes each lane of a warp or wave loads, in the matrix and in memory."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from gemm_course.figures.shapes import bare, canvas_grid, centred, rectangle
from gemm_course.figures.style import BLACK, CYCLE, FAINT, drawing, ink_on
from gemm_course.lessons.l12_decoding import pieces

CHUNK_BYTES = 16  # that one lane loads


@drawing
def lanes_of_a_load(order: Sequence[int], lines: int, lanes: int = 64) -> Figure:
    """Draw what the first load of a warp takes from a weight, and where that is in plain and in shuffled memory.

    Args:
        order: for each 16 bytes of the shuffled memory, their number in the plain one, row by row.
        lines: rows of the weight.
        lanes: of a warp or wave, each of which loads 16 bytes.
    """
    chunks = len(order) // lines
    if sorted(order) != list(range(lines * chunks)) or lanes > len(order):
        raise ValueError(f"order must be a permutation of at least {lanes} places in {lines} lines, got {order!r}")
    lane_of = {chunk: lane for lane, chunk in enumerate(order[:lanes])}
    figure, (matrix, memory) = canvas_grid(6.2, 1, 2, width_ratios=(1, 1.5))
    for chunk in range(len(order)):
        line, column = divmod(chunk, chunks)
        _cell(matrix, column, line, lane_of.get(chunk), "matrix")
    matrix.text(-0.25, 0.5, "row 0", ha="right", va="center", fontsize=9)
    matrix.text(-0.25, lines - 0.5, f"row {lines - 1}", ha="right", va="center", fontsize=9)
    matrix.set_title(f"the weight, in pieces of {CHUNK_BYTES} bytes;\nnumbers: lanes of one load", fontsize=10)
    bare(matrix, (-2.2, chunks + 0.2), (lines + 0.2, -0.2))

    width = 2 * chunks  # chunks of memory in one row of the picture
    height = -(-len(order) // width)
    gap = height + 4.2
    plain_places = [chunk for chunk in range(len(order)) if chunk in lane_of]
    shuffled_places = [place for place, chunk in enumerate(order) if chunk in lane_of]
    for at, contents, places, name in (
        (0, range(len(order)), plain_places, "plain"),
        (gap, order, shuffled_places, "shuffled"),
    ):
        for place, chunk in enumerate(contents):
            row, column = divmod(place, width)
            _cell(memory, column, at + row, lane_of.get(chunk), name)
        runs = pieces(places)
        sizes = sorted({run * CHUNK_BYTES for run in runs})
        text = f"{name} memory: one load takes {len(runs)} piece" + "s" * (len(runs) > 1)
        memory.text(0, at - 0.4, f"{text} of {', '.join(map(str, sizes))} bytes", va="bottom", fontsize=10, color=BLACK)
    bare(memory, (-0.3, width + 0.1), (gap + height + 0.3, -2.0))
    return figure


def _cell(axes, x: float, y: float, lane: int | None, gid: str) -> None:
    """One piece of 16 bytes; lanes of sixteen have a colour, and what is not loaded none."""
    color = "#F6F6F6" if lane is None else CYCLE[lane // 16 % len(CYCLE)]
    rectangle(axes, x, y, 1, 1, fc=color, ec=FAINT if lane is None else "white", lw=0.6,
              gid=gid if lane is None else f"{gid} {lane}")  # fmt: skip
    if lane is not None:
        centred(axes, x + 0.5, y + 0.5, str(lane), fontsize=9, color=ink_on(color))
