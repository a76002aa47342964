"""Many GPUs: what ranks send, a token's journey, the wire and the products over time, loads, and larger clusters."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from gemm_course.figures.shapes import arrow, bare, canvas, canvas_grid, centred, name_rows, rectangle
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREEN, GREY, ORANGE, PINK, RED, SKY, color_of, drawing, ink_on

_STEPS = {"dispatch": ORANGE, "experts": BLUE, "combine": SKY}
_LINKS = {"NVLink": ORANGE, "network": PINK, "experts": BLUE}


@drawing
def splits(ids: Sequence[Sequence[Sequence[int]]], experts: int) -> Figure:
    """Draw the experts of each rank's tokens, and the rows that it sends to each rank: one for a token, or none.

    A colour belongs to the rank that has the expert. An id that is nobody's is grey.

    Args:
        ids: rank → token → the ids of its experts.
        experts: of all ranks together.
    """
    ranks, top_k = len(ids), len(ids[0][0])
    each = experts // ranks
    deepest = [max(1, len(line)) for line in ids]
    figure, axes = canvas(0.36 * sum(deepest) + 0.3 * ranks + 0.8)
    left = 1.1 + 0.55 * top_k + 0.9
    centred(axes, 1.1 + 0.275 * top_k, -0.55, "ids of each token's experts", fontsize=9)
    for r in range(ranks):
        x = left + 1.75 * r
        last = f"{r * each} to {(r + 1) * each - 1}" if each > 1 else f"{r}"
        centred(axes, x + 0.75, -0.55, f"to rank {r}\n(experts {last})", fontsize=9)
    y = 0.0
    for rank, line in enumerate(ids):
        height = 0.75 * deepest[rank]
        centred(axes, 0.35, y + height / 2, f"rank {rank}", fontsize=10, fontweight="bold")
        for t, choices in enumerate(line):
            axes.text(1.0, y + 0.75 * t + 0.36, f"{t}", ha="right", va="center", fontsize=9)
            for j, e in enumerate(choices):
                color = color_of(e // each) if 0 <= e < experts else FAINT
                rectangle(axes, 1.1 + 0.55 * j, y + 0.75 * t + 0.06, 0.5, 0.6, fc=color, gid=f"{rank} {t} {j}")
                centred(axes, 1.35 + 0.55 * j, y + 0.75 * t + 0.36, str(e), fontsize=9, color=ink_on(color))
        arrow(axes, (left - 0.75, y + height / 2), (left - 0.2, y + height / 2), GREY, mutation_scale=14)
        for r in range(ranks):
            x, row = left + 1.75 * r, 0
            rectangle(axes, x, y, 1.5, height - 0.03, fc="none", ec=FAINT)
            for t, choices in enumerate(line):
                here = [e for e in choices if 0 <= e < experts and e // each == r]
                if here:
                    color = color_of(r)
                    rectangle(axes, x + 0.08, y + 0.75 * row + 0.06, 1.34, 0.6, fc=color, gid=f"{rank} to {r}: {t}")
                    text = f"token {t}" + (f", {len(here)} experts" if len(here) > 1 else "")
                    centred(axes, x + 0.75, y + 0.75 * row + 0.36, text, fontsize=8, color=ink_on(color))
                    row += 1
        y += height + 0.35
    bare(axes, (-0.1, left + 1.75 * ranks), (y - 0.2, -1.1))
    return figure
