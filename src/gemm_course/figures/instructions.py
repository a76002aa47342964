"""The instructions of compiled loops over K, coloured by purpose."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from course_kernels.codegen.ptx import ADDRESS, COPY, MASK, MULTIPLY, PURPOSES, WAIT, inner_loop, purpose
from gemm_course.figures.shapes import bare, canvas_grid, rectangle
from gemm_course.figures.style import BLUE, GREEN, GREY, ORANGE, PINK, as_ink, drawing

PURPOSE_COLORS = {MULTIPLY: GREEN, COPY: BLUE, WAIT: GREY, MASK: ORANGE, ADDRESS: PINK}
_PER_ROW = 28


@drawing
def loop_instructions(texts: Mapping[str, str]) -> Figure:
    """Draw the loop over K in each kernel's PTX, one square per instruction in order, coloured by purpose."""
    loops = {name: [purpose(line) for line in inner_loop(ptx)] for name, ptx in texts.items()}
    heights = [max(5, -(-len(loop) // _PER_ROW)) + 0.8 for loop in loops.values()]
    figure, panels = canvas_grid(0.3 * sum(heights) + 0.5, len(loops), 1, height_ratios=heights)
    for axes, (name, loop), height in zip(panels, loops.items(), heights):
        for i, kind in enumerate(loop):
            rectangle(axes, i % _PER_ROW, i // _PER_ROW, 0.9, 0.9, fc=PURPOSE_COLORS[kind], gid=kind)
        for i, (kind, words) in enumerate(PURPOSES.items()):
            look = dict(va="center", color=as_ink(PURPOSE_COLORS[kind]), fontsize=9)
            axes.text(_PER_ROW + 1.6, 0.45 + 0.95 * i, f"{loop.count(kind)}", ha="right", weight="bold", **look)
            axes.text(_PER_ROW + 1.9, 0.45 + 0.95 * i, words, **look)
        axes.set_title(f"{name}: {len(loop)} instructions for one block of K")
        bare(axes, (0, _PER_ROW + 9), (height, 0), equal=True)
        axes.set_anchor("W")
    return figure
