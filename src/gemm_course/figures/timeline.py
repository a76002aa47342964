"""Timelines: one row per program or SM, one bar per tile, coloured by problem; idle time is grey.

A timeline is a list of `Bar`, which `lessons.timelines` makes from the simulator's timelines and from records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib as mpl
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gemm_course.figures.shapes import canvas_grid
from gemm_course.figures.style import BLACK, BLUE, FAINT, color_of, drawing
from gemm_course.lessons.timelines import Usage, lines_of, measure

_MANY = 40  # with more rows a bar is a few pixels high: no gap between rows, no row labels
_NAMED = 8  # up to so many problems have a colour of their own and are in the legend
_DARKER = mpl.colors.LinearSegmentedColormap.from_list("position", ["#BFE3F7", BLUE, "#001B2E"])


def _lanes(line: list[tuple[float, float, int]]) -> tuple[int, list[int]]:
    """Number of lanes, and the lane of each bar, so that bars in one lane do not overlap."""
    free: list[float] = []
    chosen = []
    for start, end, _ in line:
        lane = next((i for i, until in enumerate(free) if until <= start), len(free))
        if lane == len(free):
            free.append(end)
        else:
            free[lane] = end
        chosen.append(lane)
    return len(free), chosen


def _box(left: float, right: float, low: float, high: float) -> list[tuple[float, float]]:
    return [(left, low), (right, low), (right, high), (left, high)]


def draw(
    ax,
    bars: Iterable[Sequence],
    *,
    rows: int | None = None,
    title: str = "",
    row_name: str = "program",
    bound: float | None = None,
    shades: int | None = None,
) -> Usage:
    """Draw one timeline into matplotlib axes; return what `measure` returns.

    Args:
        bars, rows: as for `measure`. A row without bars is drawn idle.
        title: over the axes; makespan and utilisation are added.
        row_name: "program" or "SM".
        bound: a time that no schedule can beat, in microseconds, drawn as a dashed line.
        shades: number of problems, to colour them from light to dark by position; by default eight colours repeat.
    """
    rows, lines = lines_of(bars, rows)
    usage = measure([(row, *bar) for row, line in lines.items() for bar in line], rows)
    gap = 0.0 if rows > _MANY else 0.15
    idle = [_box(0, usage.makespan, row - 0.5 + gap / 2, row + 0.5 - gap / 2) for row in range(rows)]
    ax.add_collection(PolyCollection(idle, facecolors=FAINT, edgecolors="none", antialiaseds=False, label="idle"))
    corners, colors = [], []
    for row, line in sorted(lines.items()):
        count, lanes = _lanes(line)
        height = (1 - gap) / count
        for (start, end, problem), lane in zip(line, lanes, strict=True):
            low = row - 0.5 + gap / 2 + lane * height
            corners.append(_box(start, end, low, low + height))
            colors.append(_DARKER(problem / max(shades - 1, 1)) if shades else color_of(problem))
    # A white edge separates tiles; where rows are a pixel or two high it would hide them.
    edge = {"edgecolors": "face", "linewidths": 0.1} if rows > _MANY else {"edgecolors": "white", "linewidths": 0.6}
    ax.add_collection(PolyCollection(corners, facecolors=colors, antialiaseds=rows <= _MANY, label="tiles", **edge))
    if rows > _MANY:
        # A thin white tick between two tiles of a row: the only edge that stays readable.
        ends = [(bar[1], bar[2]) for bar in corners]
        ax.vlines([low[0] for low, _ in ends], [low[1] for low, _ in ends], [high[1] for _, high in ends],
                  colors="white", lw=0.7)  # fmt: skip
    ax.set_xlim(0, usage.makespan or 1)
    ax.set_ylim(rows - 0.5, -0.5)
    ax.set_yticks([0, rows - 1] if rows > 12 else range(rows))
    ax.tick_params(axis="y", length=0)
    ax.set_ylabel(row_name, labelpad=-8 if rows > 12 else 4)
    summary = f"{usage.makespan:.0f} µs, {usage.utilisation:.0%} busy"
    if bound is not None:
        summary += f" (dashed: no schedule ends before {bound:.0f} µs)"
    ax.set_title(f"{title}: {summary}" if title else summary)
    if bound is not None:
        ax.axvline(bound, color=BLACK, lw=1.2, ls="--")
    return usage


@drawing
def timeline(
    bars: Iterable[Sequence],
    *,
    rows: int | None = None,
    title: str = "",
    row_name: str = "program",
    bound: float | None = None,
) -> Figure:
    """Draw one timeline; the arguments are those of `draw`."""
    return compare({title: bars}, rows=rows, row_name=row_name, bounds=None if bound is None else {title: bound})


@drawing
def compare(
    panels: Mapping[str, Iterable[Sequence]],
    *,
    rows: int | Mapping[str, int] | None = None,
    row_name: str = "program",
    bounds: Mapping[str, float] | None = None,
    columns: int = 1,
    title: str = "",
    height: float | None = None,
    until: float | None = None,
    shades: int | None = None,
) -> Figure:
    """Draw timelines on one time axis, so that lengths compare across panels.

    Args:
        panels: title → bars, each (row, start, end, problem) with times in microseconds.
        rows: rows of every panel, or of each by its title; by default what the bars need.
        row_name: "program" or "SM".
        bounds: title → a time that no schedule can beat, in microseconds.
        columns: panels side by side; the rest go below.
        title: over all panels.
        height: inches per panel; by default what the rows need.
        until: end of the time axis in microseconds; the title of a panel that goes on says so. By default all is shown.
        shades: number of problems, to colour them from light to dark by position; by default eight colours repeat.
    """
    if not panels:
        raise ValueError("panels is empty; want at least one title with its bars")
    drawn = {name: list(bars) for name, bars in panels.items()}
    of = {name: rows.get(name) if isinstance(rows, Mapping) else rows for name in drawn}
    counted = {name: lines_of(bars, of[name])[0] for name, bars in drawn.items()}
    deep = -(-len(drawn) // columns)
    each = height or (min(2.4, 0.9 + 0.22 * max(counted.values())) if max(counted.values()) <= _MANY else 1.9)
    figure, axes = canvas_grid(deep * each + 0.5 + 0.3 * bool(title), deep, columns, sharex=True)
    longest = 0.0
    for ax, (name, bars) in zip(axes, drawn.items()):
        bound = (bounds or {}).get(name)
        usage = draw(ax, bars, rows=counted[name], title=name, row_name=row_name, bound=bound, shades=shades)
        longest = max(longest, usage.makespan, bound or 0.0)
        if until is not None and usage.makespan > until:
            ax.set_title(f"{ax.get_title('left')} (cut at {until:g} µs)")
    for ax in axes[len(drawn) :]:
        ax.set_visible(False)
    axes[0].set_xlim(0, min(longest * 1.01, until or longest * 1.01) or 1)
    problems = sorted({bar[3] for bars in drawn.values() for bar in bars})
    many = bool(problems) and problems[-1] >= _NAMED
    order = "from light to dark: the first problem to the last" if shades else "colours repeat every 8 problems"
    for ax in axes[-columns:]:
        ax.set_xlabel(f"µs (grey: idle; {order})" if many and columns == 1 else "µs")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    if problems and not many:
        handles = [Patch(color=color_of(p), label=f"problem {p}" if p == problems[0] else str(p)) for p in problems]
        handles.append(Patch(color=FAINT, label="idle"))
        figure.legend(handles=handles, loc="outside lower right", ncols=len(handles), fontsize=9, handlelength=1,
                      columnspacing=1)  # fmt: skip
    return figure
