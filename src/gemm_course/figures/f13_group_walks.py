"""The slots that each worker visits in two persistent walks: computed tiles, and skipped slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from gemm_course.figures.shapes import canvas_grid, name_rows, rectangle
from gemm_course.figures.style import GREY, color_of, drawing


@drawing
def slots(walks: Mapping[str, Sequence[Sequence[int | None]]]) -> Figure:
    """Draw what each worker looks at: a tile that it computes, in its group's colour, or a skipped slot, empty.

    Args:
        walks: title → the result of ``slots_of``. All panels have one scale.
    """
    fig, axes = canvas_grid(sum(0.32 * len(lines) + 0.85 for lines in walks.values()), len(walks), 1, sharex=True)
    longest = max((len(line) for lines in walks.values() for line in lines), default=1)
    for ax, (title, lines) in zip(axes, walks.items(), strict=True):
        for worker, line in enumerate(lines):
            for at, group in enumerate(line):
                skipped = group is None
                look = dict(fc="none", ec=GREY, ls=":") if skipped else dict(fc=color_of(group), ec="white")
                gid = "skipped" if skipped else f"group {group}"
                rectangle(ax, at + 0.06, worker - 0.36, 0.88, 0.72, lw=0.9, gid=gid, **look)
        name_rows(ax, [f"worker {worker}" for worker in range(len(lines))])
        ax.set(title=title, xlim=(0, longest))
        ax.spines["bottom"].set_visible(False)
        ax.set_xticks([])
    return fig
