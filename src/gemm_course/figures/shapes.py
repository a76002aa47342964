"""Parts of the figures: canvases, rectangles, centred words, arrows, bare axes, named rows, chosen ticks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import FixedLocator, NullLocator

from gemm_course.figures.style import BLACK, WIDTH


def canvas(height: float) -> tuple[Figure, Axes]:
    """Make a figure as wide as a notebook, ``height`` inches high, with one axes."""
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.subplots()


def canvas_grid(height: float, rows: int, columns: int, **options) -> tuple[Figure, np.ndarray]:
    """Make a figure as wide as a notebook, ``height`` inches high, with a grid of axes, listed row by row."""
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options).ravel()


def rectangle(axes: Axes, x: float, y: float, width: float, height: float, **look) -> None:
    """Draw a rectangle with one corner at (x, y)."""
    axes.add_patch(Rectangle((x, y), width, height, **look))


def centred(axes: Axes, x: float, y: float, text: str, **look) -> None:
    """Write words with their middle at (x, y)."""
    axes.text(x, y, text, **{"ha": "center", "va": "center", **look})


def arrow(axes: Axes, start: Sequence[float], end: Sequence[float], color: str = BLACK, **look) -> None:
    """Draw an arrow with a filled head from one point to another."""
    look = {"arrowstyle": "-|>", "lw": 1.6, "shrinkA": 0, "shrinkB": 0, "color": color, **look}
    axes.add_patch(FancyArrowPatch(start, end, **look))


def bare(axes: Axes, x: tuple[float, float], y: tuple[float, float], *, equal: bool = False) -> None:
    """Hide an axes and set its limits; ``equal``: one unit is as long in both directions."""
    axes.set(xlim=x, ylim=y)
    axes.set_axis_off()
    if equal:
        axes.set_aspect("equal")


def name_rows(axes: Axes, names: Sequence[str], **look) -> None:
    """Write a name beside each row, row 0 at the top, without spine and ticks."""
    axes.set_yticks(range(len(names)), list(names), **{"color": BLACK, **look})
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)


def ticks_at(axis: Axis, values: Iterable[float], low: float, high: float, form: str = "{:g}") -> None:
    """Put ticks at the values from low to high, and nowhere else."""
    axis.set_major_locator(FixedLocator([value for value in values if low <= value <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: form.format(value))


def percent(axis: Axis) -> None:
    """Write tick labels in per cent."""
    axis.set_major_formatter(lambda value, _: f"{value:.0%}")


def spread_apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Places for labels close to those wanted, which ascend, in the same order and at least ``gap`` apart."""
    clusters: list[list[float]] = []  # of wanted places, each cluster centred on its mean
    for y in wanted:
        clusters.append([y])
        while len(clusters) > 1 and _start(clusters[-1], gap) < _start(clusters[-2], gap) + gap * len(clusters[-2]):
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    return [_start(cluster, gap) + gap * i for cluster in clusters for i in range(len(cluster))]


def _start(cluster: Sequence[float], gap: float) -> float:
    return sum(cluster) / len(cluster) - gap * (len(cluster) - 1) / 2
