"""What a cluster of CTAs computes and shares, drawn to scale from operators' metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gemm_course.figures.style import BLACK, FAINT, GREY, WIDTH, color_of, styled

__all__ = ["Cluster", "cluster_of", "clusters"]


class Cluster(NamedTuple):
    """The part of C that a cluster computes at a time.

    Attributes:
        rows, columns: of C.
        ctas: CTAs along M and along N.
        pair: CTAs along M that share an MMA instruction, 1 or 2.
        reuse: products per element that is fetched from outside of the cluster.
    """

    rows: int
    columns: int
    ctas: tuple[int, int]
    pair: int
    reuse: float


def cluster_of(design) -> Cluster:
    """Count what a cluster computes.

    Args:
        design: ``tile``, which one CTA has or a pair shares along M, ``cluster`` and ``ctas``, as
            ``cutlass_ops.Design``.
    """
    tile_m, tile_n, _ = design.tile
    along_m, along_n = design.cluster
    rows, columns = tile_m // design.ctas * along_m, tile_n * along_n
    return Cluster(rows, columns, (along_m, along_n), design.ctas, rows * columns / (rows + columns))


@styled()
def clusters(designs: Mapping[str, object]) -> Figure:
    """Draw what each operator's cluster computes: C's rows and columns, the CTAs in it, and the strips of A and B that
    they fetch together. All panels have one scale.

    Args:
        designs: by title, what ``cluster_of`` takes.

    Returns:
        A figure with a panel for each.
    """
    found = {title: cluster_of(design) for title, design in designs.items()}
    strip = 0.09 * max(max(each.rows, each.columns) for each in found.values())
    tallest = max(each.rows for each in found.values())
    widths = [max(each.columns + 3 * strip, 6.5 * strip) for each in found.values()]  # room for the words
    figure = Figure(figsize=(WIDTH, WIDTH / sum(widths) * (tallest + 4.6 * strip) + 0.75))
    panels = figure.subplots(1, len(found), squeeze=False, width_ratios=widths)[0]
    for axes, width, (title, cluster) in zip(panels, widths, found.items()):
        _draw(axes, cluster, strip)
        axes.set_title(title, fontsize=9)
        axes.set_xlim(-2 * strip, width - 2 * strip)
        axes.set_ylim(tallest + 2.8 * strip, -1.8 * strip)
        axes.set_aspect("equal")
        axes.set_axis_off()
    return figure


def _draw(axes, cluster: Cluster, strip: float) -> None:
    along_m, along_n = cluster.ctas
    height, width = cluster.rows / along_m, cluster.columns / along_n
    for i in range(along_m):
        for j in range(along_n):
            # A pair has one colour: it multiplies with one instruction.
            color = color_of(i // cluster.pair * along_n + j)
            box = Rectangle((j * width, i * height), width, height, fc=color, ec="white", lw=1, alpha=0.75, gid="CTA")
            axes.add_patch(box)
    sides = ((-1.4 * strip, 0, strip, cluster.rows, "A"), (0, -1.4 * strip, cluster.columns, strip, "B"))
    for x, y, wide, high, name in sides:
        axes.add_patch(Rectangle((x, y), wide, high, fc=FAINT, ec=GREY, lw=0.8, gid=name))
        axes.text(x + wide / 2, y + high / 2, name, ha="center", va="center_baseline", fontsize=8, color=BLACK)
    words = f"{cluster.rows} × {cluster.columns} of C\n{cluster.reuse:.0f} products\nper element"
    axes.text(0, cluster.rows + 0.4 * strip, words, va="top", fontsize=8.5, color=BLACK)
