"""The part of C that a cluster of CTAs computes, and its operands, drawn to scale from operators' metadata."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from gemm_course.figures.shapes import bare, canvas_grid, centred, rectangle
from gemm_course.figures.style import BLACK, FAINT, GREY, WIDTH, color_of, drawing
from gemm_course.lessons.l09_clusters import Cluster, cluster_of


@drawing
def clusters(designs: Mapping[str, object]) -> Figure:
    """Draw each design's part of C to one scale: its cluster's CTAs, and the strips of A and B that they fetch."""
    found = {title: cluster_of(design) for title, design in designs.items()}
    strip = 0.09 * max(max(each.rows, each.columns) for each in found.values())
    tallest = max(each.rows for each in found.values())
    widths = [max(each.columns + 3 * strip, 6.5 * strip) for each in found.values()]  # room for the words
    height = WIDTH / sum(widths) * (tallest + 4.6 * strip) + 0.75
    figure, panels = canvas_grid(height, 1, len(found), width_ratios=widths)
    for axes, width, (title, cluster) in zip(panels, widths, found.items()):
        _draw(axes, cluster, strip)
        axes.set_title(title, fontsize=9.5)
        bare(axes, (-2 * strip, width - 2 * strip), (tallest + 2.8 * strip, -1.8 * strip), equal=True)
    return figure


def _draw(axes, cluster: Cluster, strip: float) -> None:
    along_m, along_n = cluster.ctas
    height, width = cluster.rows / along_m, cluster.columns / along_n
    for i in range(along_m):
        for j in range(along_n):
            # A pair has one colour: it multiplies with one instruction.
            color = color_of(i // cluster.pair * along_n + j)
            rectangle(axes, j * width, i * height, width, height, fc=color, ec="white", lw=1, alpha=0.75, gid="CTA")
    sides = ((-1.4 * strip, 0, strip, cluster.rows, "A"), (0, -1.4 * strip, cluster.columns, strip, "B"))
    for x, y, wide, high, name in sides:
        rectangle(axes, x, y, wide, high, fc=FAINT, ec=GREY, lw=0.8, gid=name)
        centred(axes, x + wide / 2, y + high / 2, name, va="center_baseline", fontsize=9, color=BLACK)
    words = f"{cluster.rows} × {cluster.columns} of C\n{cluster.reuse:.0f} products\nper element"
    axes.text(0, cluster.rows + 0.4 * strip, words, va="top", fontsize=9, color=BLACK)
