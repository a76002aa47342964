"""The picture of a failed check: tiles in three colours, as `panels.panel` and `row_panel` describe them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gemm_course.figures.style import BLACK, GREY, ORANGE, SKY, WIDTH, ink_on, styled
from gemm_course.figures.style import WRONG as RED
from gemm_course.judging.panels import MISSING, RIGHT, WRONG

_OUTSIDE = max(RIGHT, WRONG, MISSING) + 1  # of the legend only: no tile is in this state
_COLORS = {RIGHT: SKY, WRONG: ORANGE, MISSING: "white", _OUTSIDE: RED}
_NAMES = {RIGHT: "right", WRONG: "wrong", MISSING: "not written, or not all of it", _OUTSIDE: "written outside of it"}
_MAX_LABELS = 400
_LINE, _LETTER = 0.16, 0.07  # inches that a label needs


@styled()
def tiles(panels: Sequence[dict]) -> Figure:
    """Draw every panel: right tiles blue, wrong ones orange and crossed, unwritten ones white with a red edge. Elements
    written outside of the matrix are red, and the matrix then has a black edge. The panels are to scale, side by side.

    A panel has "title", "shape" (rows, columns), "block" of a tile, "states" per tile, and perhaps "labels" and
    "outside" (row, column, rows, columns of each piece).
    """
    panels = [panel for panel in panels if panel["states"] and panel["states"][0]]
    frames = [_frame(panel) for panel in panels]
    widths = [max(right - first, 1) for _, first, _, right in frames] or [1]
    top = min([frame[0] for frame in frames], default=0)
    height = max([frame[2] for frame in frames], default=1) - top
    gap = 0.08 * sum(widths) / len(widths)
    total = sum(widths) + gap * (len(widths) - 1)
    scale = min((WIDTH - 0.4) / total, 3.4 / height, 0.6 if height == 1 else 9.9)
    figure = Figure(figsize=(WIDTH, height * scale + 0.9))
    axes = figure.subplots()
    left, states = 0.0, set()
    for panel, (_, first, _, right) in zip(panels, frames):
        left -= first
        rows, cols = panel["shape"]
        down, across = panel["block"]
        labelled = sum(map(len, panel["states"])) <= _MAX_LABELS and min(down, across) * scale > 0.22
        axes.text(left + first, top - 0.12 / scale, panel["title"], ha="left", va="bottom", color=BLACK)
        for i, line in enumerate(panel["states"]):
            for j, state in enumerate(line):
                states.add(state)
                x, y = left + j * across, i * down
                size = min(across, cols - j * across), min(down, rows - i * down)
                edge, face = (RED, 1.6) if state != RIGHT else ("white", 0.8), _COLORS[state]
                axes.add_patch(
                    Rectangle((x, y), *size, facecolor=face, edgecolor=edge[0], linewidth=edge[1],
                              hatch="xx" if state == WRONG else None, zorder=1 + (state != RIGHT))
                )  # fmt: skip
                labels = panel.get("labels")
                text = labels[i][j] if labels else f"{i},{j}"
                if labelled and size[1] * scale > _LINE and size[0] * scale > _LETTER * len(text):
                    box = dict(facecolor=face, edgecolor="none", pad=1) if state == WRONG else None
                    axes.text(x + size[0] / 2, y + size[1] / 2, text, ha="center", va="center", fontsize=9,
                              color=ink_on(face), zorder=3, bbox=box)  # fmt: skip
        if panel.get("outside"):
            states.add(_OUTSIDE)
            for row, col, down, across in panel["outside"]:
                axes.add_patch(Rectangle((left + col, row), across, down, facecolor=RED, edgecolor="none", zorder=3))
            axes.add_patch(Rectangle((left, 0), cols, rows, fill=False, edgecolor=BLACK, linewidth=1.6, zorder=4))
        left += right + gap
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=_COLORS[s], edgecolor=GREY if s == RIGHT else RED,
                  hatch="xx" if s == WRONG else None)
        for s in sorted(states)
    ]  # fmt: skip
    axes.legend(handles, [_NAMES[s] for s in sorted(states)], loc="upper left", bbox_to_anchor=(0, -0.02), ncols=4)
    wide = (WIDTH - 0.2) / scale
    axes.set(xlim=(-0.05 / scale, wide), ylim=(top + height + 0.1 / scale, top - 0.4 / scale), aspect="equal")
    axes.set_axis_off()
    return figure


def _frame(panel: dict) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) of a panel with what was written outside; its matrix begins at (0, 0)."""
    pieces = [(0, 0, *panel["shape"]), *panel.get("outside", ())]
    top, left = min(row for row, *_ in pieces), min(col for _, col, *_ in pieces)
    return top, left, max(row + rows for row, _, rows, _ in pieces), max(col + cols for _, col, _, cols in pieces)
