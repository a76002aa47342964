"""Costs of a training step: operands read by dies with an L2 cache each, and a transposing copy of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from gemm_course.figures.shapes import bare, canvas, canvas_grid, centred, name_rows, rectangle
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREY, ORANGE, color_of, ink_on, styled


def strips_read(owners: Sequence[Sequence[int]]) -> dict[int, int]:
    """How many strips of both operands each die reads, for the die of each tile of a product, row by row."""
    found: dict[int, set] = {}
    for m, line in enumerate(owners):
        for n, die in enumerate(line):
            found.setdefault(die, set()).update((("row", m), ("column", n)))
    return {die: len(strips) for die, strips in sorted(found.items())}


@styled()
def dies(panels: Mapping[str, Sequence[Sequence[int]]], shown: int = 0) -> Figure:
    """Draw a product's tiles, a panel for each way to place them: the colour is the die that computes a tile.

    The strips of A and B that one die reads are drawn along the edges.

    Args:
        panels: title → (rows, columns) die of each tile.
        shown: the die whose strips are drawn.
    """
    figure, axes_of = canvas_grid(4.3, 1, len(panels))
    for axes, (title, owners) in zip(axes_of, panels.items(), strict=True):
        rows, columns = len(owners), len(owners[0])
        mine = [(m, n) for m, line in enumerate(owners) for n, die in enumerate(line) if die == shown]
        for m, line in enumerate(owners):
            for n, die in enumerate(line):
                color = color_of(die)
                rectangle(axes, n, m, 1, 1, fc=color, ec="white", lw=0.8, gid=f"die {die}")
                centred(axes, n + 0.5, m + 0.5, str(die), fontsize=7, color=ink_on(color))
        used = {m for m, _ in mine}, {n for _, n in mine}
        for m in range(rows):
            rectangle(axes, -1.7, m, 1.2, 1, fc=color_of(shown) if m in used[0] else FAINT, ec="white",
                      gid=f"A {m in used[0]}")  # fmt: skip
        for n in range(columns):
            rectangle(axes, n, -1.7, 1, 1.2, fc=color_of(shown) if n in used[1] else FAINT, ec="white",
                      gid=f"B {n in used[1]}")  # fmt: skip
        strips = strips_read(owners)[shown]
        centred(axes, -1.1, -1.1, "A↓ B→", fontsize=8, color=GREY)
        plural = "strip" if len(used[0]) == 1 else "strips"
        counted = f"die {shown} reads {len(used[0])} {plural} of A + {len(used[1])} of B = {strips}"
        axes.text(0, rows + 0.3, counted, va="top", fontsize=10)
        axes.set_title(title, fontsize=10)
        bare(axes, (-2.0, columns + 0.2), (rows + 1.4, -2.0), equal=True)
    return figure


@styled()
def copied_gradients(step_us: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the time of each row's products in a training step, and of a copy of its weight gradient after them.

    Args:
        step_us: row title → part → µs; the part "copy" is drawn in another colour and its share is written.
    """
    figure, axes = canvas(0.33 * len(step_us) + 1.3)
    looks = {"forward": FAINT, "dA": "#A6CEE3", "dB": BLUE, "copy": ORANGE}
    labels = {"forward": "forward", "dA": "gradient of x", "dB": "gradient of W", "copy": "a copy of it"}
    for y, parts in enumerate(step_us.values()):
        whole = sum(us for part, us in parts.items() if part != "copy")
        left = 0.0
        for part, us in parts.items():
            axes.barh(y, us / whole, left=left, height=0.7, color=looks[part], gid=part)
            left += us / whole
        axes.text(left + 0.01, y, f"+{parts['copy'] / whole:.0%}", va="center", fontsize=9, color=BLACK)
    name_rows(axes, list(step_us), fontsize=8)
    axes.axvline(1.0, color=BLACK, lw=1.0)
    axes.set_xlabel("time, over that of the three products")
    handles = [axes.barh([0], [0], color=color) for color in looks.values()]
    figure.legend(handles, list(labels.values()), loc="outside upper left", ncols=4, fontsize=9)
    return figure
