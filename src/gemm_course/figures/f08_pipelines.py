"""The compiled loops over tiles and over K, and their effect on copies in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_kernels.codegen.ptx import COPY, MULTIPLY, STORE, loops
from gemm_course.figures.shapes import bare, canvas_grid, centred, rectangle
from gemm_course.figures.style import BLACK, BLUE, DIM, GREEN, ORANGE, color_of, drawing, ink_on
from gemm_course.lessons.l08_pipeline import Span

# Kinds of instructions in `course_kernels.codegen.ptx`.
_COLORS = {COPY: BLUE, MULTIPLY: GREEN, STORE: ORANGE}
_LOOPS = ("loop over tiles", "loop over K")


@drawing
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


@drawing
def overlap(runs: Mapping[str, Sequence[Span]]) -> Figure:
    """Draw copies in flight, products and stores over time, coloured by tile, with the end of the last store.

    ``runs``: title → the result of `pipeline`. All panels have one scale.
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
    panels[-1].set_xlabel("time (the product of one block of K = 1)", fontsize=9, color=DIM)
    return figure
