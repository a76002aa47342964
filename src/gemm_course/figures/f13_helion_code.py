"""The lines of a Helion kernel, and how many lines of Triton are made from each."""

from __future__ import annotations

from matplotlib.figure import Figure

from gemm_course.figures.shapes import canvas, name_rows
from gemm_course.figures.style import BLACK, BLUE, drawing
from gemm_course.lessons.l13_helion_code import Generated, lines_from


@drawing
def expansion(kernel: Generated) -> Figure:
    """Draw beside each line of a Helion kernel how many lines of Triton are made from it."""
    counts = lines_from(kernel)
    fig, ax = canvas(0.2 * len(kernel.helion) + 0.9)
    ax.barh(range(len(kernel.helion)), [counts.get(at, 0) for at in range(len(kernel.helion))], 0.62, color=BLUE)
    for at, count in counts.items():
        ax.text(count + 0.1, at, str(count), va="center", ha="left", color=BLUE, fontsize=9)
    name_rows(ax, kernel.helion, ha="left", family="monospace", fontsize=9, color=BLACK)
    ax.tick_params(axis="y", pad=8 + 5.85 * max(map(len, kernel.helion)))
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
    title = f"Each line of Helion, and its number of lines in Triton ({sum(counts.values())} in all)"
    fig.suptitle(title, x=0.01, ha="left", fontsize=11)
    return fig
