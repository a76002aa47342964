"""Choosing a configuration: times under a wrong key, stalls of tuning at call time, a lookup's choices and losses."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gemm_course.figures.shapes import canvas, canvas_grid, centred, rectangle, spread_apart, ticks_at
from gemm_course.figures.style import BLACK, BLUE, CYCLE, FAINT, GREEN, GREY, RED, as_ink, drawing, ink_on

_HEAT = ("#FFFFFF", "#FBE3D3", "#F4B78F", "#E98A4D", RED)


def _heat(ratio: float, most: float) -> str:
    """Colour of a time over the best one: green up to half a per cent, then ever redder until ``most``."""
    if ratio <= 1.005:
        return GREEN
    return _HEAT[min(int((ratio - 1) / (most - 1) * len(_HEAT)), len(_HEAT) - 1)]


@drawing
def stale_key(us: Mapping[str, Mapping[str, float]], base: str, own: str, key: str) -> Figure:
    """Draw the times of a kernel tuned for each shape, and of one that keeps its first shape's configuration.

    The gap between both lines is shaded. The ratio to the base is at each point of ``key``.

    Args:
        us: shape → provider → µs; ``key`` was tuned for the first shape.
        base, own, key: the provider that is 1, the one tuned for each shape, the one that keeps its configuration.
    """
    figure, axes = canvas(3.4)
    xs = range(len(us))
    ratio = {name: [times[name] / times[base] for times in us.values()] for name in (own, key)}
    axes.fill_between(xs, ratio[own], ratio[key], color=RED, alpha=0.12, lw=0)
    axes.plot([-0.4, len(us) - 0.92], [1.0, 1.0], color=BLACK, lw=1.2, gid=base)
    for name, color in ((own, BLUE), (key, RED)):
        axes.plot(xs, ratio[name], "o-", color=color, ms=7, lw=2, gid=name)
    for x, value in zip(xs, ratio[key]):
        axes.annotate(
            f"{value:.1f}×", (x, value), xytext=(0, 9), textcoords="offset points", ha="center", color=as_ink(RED)
        )
    axes.annotate("tuned here", (0, ratio[key][0]), xytext=(0, -14), textcoords="offset points", ha="center", va="top",
                  fontsize=9)  # fmt: skip
    every = [value for values in ratio.values() for value in values]
    low, high = min(*every, 1.0) / 1.5, max(*every, 1.0) * 1.5
    axes.set(yscale="log", ylim=(low, high), xlim=(-0.4, len(us) + 0.2), ylabel=f"time over that of the {base}")
    ends = sorted([(ratio[own][-1], own, BLUE), (ratio[key][-1], key, RED), (1.0, base, BLACK)])
    places = spread_apart([math.log(value) for value, _, _ in ends], math.log(high / low) / 12)
    for (_, name, color), place in zip(ends, places):
        axes.text(len(us) - 0.88, math.exp(place), name, color=as_ink(color), va="center", fontsize=9.5)
    ticks_at(axes.yaxis, (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32), low, high, "{:g}×")
    axes.set_xticks(xs, list(us))
    return figure


@drawing
def stalls(lanes: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw a row of calls for each way of choosing a configuration: tuning in orange, a tick per result.

    A call in ``lanes`` is (µs of tuning before it, µs of the call).
    """
    figure, axes = canvas(0.85 * len(lanes) + 0.75)
    longest = max(sum(map(sum, calls)) for calls in lanes.values()) / 1e6
    for y, (name, calls) in enumerate(lanes.items()):
        now, ticks = 0.0, []
        for tuning, call in calls:
            if tuning:
                rectangle(axes, now, y - 0.16, tuning / 1e6, 0.32, fc=RED, ec="white", lw=0.8, gid="tuning")
            now += (tuning + call) / 1e6
            ticks.append(now)
        axes.vlines(ticks, y - 0.24, y + 0.24, color=BLUE, lw=2, gid="results")
        tuned, work = (sum(call[i] for call in calls) for i in (0, 1))
        spent = f"{tuned / 1e6:.1f} s of tuning" if tuned else "no tuning"
        axes.text(0, y - 0.3, f"{name}: {spent}, {work / 1e3:.1f} ms of work for {len(calls)} calls", fontsize=9.5,
                  va="bottom", color=BLACK)  # fmt: skip
    axes.set(xlim=(-0.01 * longest, longest * 1.02), ylim=(len(lanes) - 0.65, -0.62),
             xlabel="seconds (orange: tuning; blue: a call returns)")  # fmt: skip
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    return figure


@drawing
def choices(
    panels: Mapping[str, Sequence[Sequence[str]]], xs: Sequence[float], ys: Sequence[float], labels: tuple[str, str]
) -> Figure:
    """Draw which choice is made over a logarithmic grid of shapes, a colour for each choice.

    Args:
        panels: title → for each y, the name of the choice for each x.
        xs, ys: the grid, ascending.
        labels: of the axes.
    """
    names = list(dict.fromkeys(name for grid in panels.values() for row in grid for name in row))
    # The palette, then its lighter half: neighbours in the legend never look alike.
    colors = [*CYCLE, "#8FC1E3", "#F5CE85", "#85CDB6", "#E3BFD0", "#FFFFFF"]
    color_of = {name: colors[i % len(colors)] for i, name in enumerate(names)}
    figure, axes = canvas_grid(3.6 + 0.2 * -(-len(names) // 3), 1, len(panels), sharey=True)
    for ax, (title, grid) in zip(axes, panels.items()):
        numbers = np.array([[names.index(name) for name in row] for row in grid])
        colormap = ListedColormap([color_of[name] for name in names])
        ax.pcolormesh(xs, ys, numbers, cmap=colormap, vmin=-0.5, vmax=len(names) - 0.5, shading="nearest")
        ax.set(xscale="log", yscale="log", title=title, xlabel=labels[0])
        for axis, values in ((ax.xaxis, xs), (ax.yaxis, ys)):
            powers = [2**i for i in range(0, 24) if values[0] <= 2**i <= values[-1]]
            ticks_at(axis, powers if len(powers) <= 8 else powers[::2], values[0], values[-1], "{:,.0f}")
    axes[0].set_ylabel(labels[1])
    figure.legend(handles=[Patch(fc=color_of[name], ec=GREY, lw=0.5, label=name) for name in names], ncols=3,
                  loc="outside lower center", fontsize=9, handlelength=1.2)  # fmt: skip
    return figure


@drawing
def slowdowns(
    panels: Mapping[str, Mapping[str, Mapping[str, float]]], chosen: Mapping[tuple[str, str], str], most: float = 2.0
) -> Figure:
    """Draw each candidate's time over the best one's, a row per bucket, with the chosen one in a frame.

    The candidate with the best mean is on the left.

    Args:
        panels: title → bucket → candidate → µs; a candidate may be missing.
        chosen: (title, bucket) → candidate.
        most: ratios from here on have the same colour.
    """
    each = {title: _by_mean(rows) for title, rows in panels.items()}
    heights = [len(rows) + 3.0 for rows in panels.values()]
    figure, axes = canvas_grid(0.235 * sum(heights) + 0.3, len(panels), 1, height_ratios=heights)
    for ax, (title, rows) in zip(axes, panels.items()):
        columns = each[title]
        for (y, (bucket, times)), x in itertools.product(enumerate(rows.items()), range(len(columns))):
            if columns[x] not in times:
                rectangle(ax, x - 0.5, y - 0.5, 1, 1, fc=FAINT, ec="white", lw=1, gid="missing")
                continue
            ratio = times[columns[x]] / min(times.values())
            _cell(ax, x, y, _heat(ratio, most), f"{ratio:.2f}", 9)
            if chosen.get((title, bucket)) == columns[x]:
                rectangle(ax, x - 0.47, y - 0.44, 0.94, 0.88, fc="none", ec=BLACK, lw=1.8, gid="chosen", zorder=3)
        ax.set(xlim=(-0.5, max(map(len, each.values())) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        ax.set_xticks(range(len(columns)), columns, fontsize=9)
        ax.set_yticks(range(len(rows)), list(rows), fontsize=9)
        ax.tick_params(length=0, labelcolor=BLACK)
        ax.set_title(title, fontsize=10)
        ax.spines[:].set_visible(False)
    handles = [Patch(fc=GREEN, label="best"), Patch(fc="none", ec=BLACK, lw=1.8, label="chosen")]
    figure.legend(handles=handles, loc="outside lower right", ncols=2, fontsize=9, handlelength=1.2)
    return figure


def _cell(ax, x: float, y: float, color: str, text: str, size: float) -> None:
    rectangle(ax, x - 0.5, y - 0.5, 1, 1, fc=color, ec="white", lw=1, gid="cell")
    centred(ax, x, y, text, fontsize=size, color=ink_on(color))


def _by_mean(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The candidates, by the geometric mean of their ratios to the best."""
    ratios: dict[str, list[float]] = {}
    for times in rows.values():
        for candidate, us in times.items():
            ratios.setdefault(candidate, []).append(us / min(times.values()))
    return sorted(ratios, key=lambda candidate: statistics.geometric_mean(ratios[candidate]))


@drawing
def regrets(
    panels: Mapping[str, Mapping[tuple[str, str], float | None]], labels: tuple[str, str], most: float = 1.25
) -> Figure:
    """Draw the time that each way of choosing loses against the best choice, in per cent, over a grid of shapes.

    Args:
        panels: title → (row, column) → time over that of the best candidate; None where that was not measured.
        labels: what rows and columns are.
        most: ratios from here on have the same colour.
    """
    cells = [cell for grid in panels.values() for cell in grid]
    rows, columns = (list(dict.fromkeys(cell[i] for cell in cells)) for i in (0, 1))
    figure, axes = canvas_grid(0.3 * len(rows) + 1.3, 1, len(panels), sharey=True)
    for ax, (title, grid) in zip(axes, panels.items()):
        for (row, column), ratio in grid.items():
            x, y = columns.index(column), rows.index(row)
            color = FAINT if ratio is None else _heat(ratio, most)
            _cell(ax, x, y, color, "–" if ratio is None else f"{(ratio - 1) * 100:.0f}", 9)
        known = [ratio for ratio in grid.values() if ratio is not None]
        losses = f"mean +{statistics.geometric_mean(known) - 1:.1%}, worst +{max(known) - 1:.0%}" if known else ""
        ax.set_title(f"{title}, {len(known)} buckets\n{losses}", fontsize=9)
        ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel=labels[1])
        ax.set_xticks(range(len(columns)), columns, fontsize=9)
        ax.tick_params(length=0, labelcolor=BLACK)
        ax.spines[:].set_visible(False)
    axes[0].set_yticks(range(len(rows)), rows, fontsize=9)
    axes[0].set_ylabel(labels[0])
    return figure
