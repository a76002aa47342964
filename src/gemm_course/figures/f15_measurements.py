"""Mistakes in measuring: host and device side by side, rates from call to call, cached operands, repaired claims."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from gemm_course.figures.shapes import canvas, canvas_grid, centred, name_rows, rectangle, ticks_at
from gemm_course.figures.style import (
    BLACK,
    BLUE,
    CYCLE,
    DIM,
    FAINT,
    GREEN,
    ORANGE,
    RED,
    as_ink,
    color_of,
    drawing,
    ink_on,
)
from gemm_course.lessons.l15_simulated_gpu import Span

_LANES = ("host", "device")


@drawing
def lanes(spans: Sequence[Span], brackets: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw what host and device did, one above the other, from the first span on.

    Waiting is hatched. A kernel has the same colour in both lanes.

    Args:
        spans: of a `SimulatedGpu`.
        brackets: name of a measurement → (start, end) in microseconds, drawn below as arrows with their length.
    """
    if not spans:
        raise ValueError("spans must not be empty")
    zero = min(span.start for span in spans)
    last = max([span.end for span in spans] + [end for _, end in brackets.values()]) - zero
    names = list(dict.fromkeys(span.name for span in spans if span.name != "wait"))
    figure, axes = canvas(1.45 + 0.36 * len(brackets))
    for span in spans:
        row, start, length = _LANES.index(span.lane), span.start - zero, span.end - span.start
        waits = span.name == "wait"
        color = FAINT if waits else color_of(names.index(span.name))
        rectangle(axes, start, row - 0.38, length, 0.76, fc=color, ec="white", lw=0.8, hatch="////" if waits else None)
        if length > last * 0.012 * len(span.name):
            centred(axes, start + length / 2, row, span.name, fontsize=9, color=BLACK if waits else ink_on(color))
    for row, (name, (start, end)) in enumerate(brackets.items(), 2):
        axes.annotate("", (start - zero, row), (end - zero, row),
                      arrowprops={"arrowstyle": "<->", "color": BLACK, "shrinkA": 0, "shrinkB": 0})  # fmt: skip
        text, right = f"{name}: {end - start:.0f} µs", (start + end) / 2 - zero < last * 0.6
        axes.text(end - zero + last * 0.01 if right else start - zero - last * 0.01, row, text,
                  ha="left" if right else "right", va="center", fontsize=9, color=BLACK)  # fmt: skip
    name_rows(axes, _LANES)
    axes.set(xlim=(0, last * 1.01), ylim=(len(brackets) + 1.6, -0.6), xlabel="µs")
    return figure


@drawing
def call_by_call(series: Mapping[str, Sequence[float]], peak: float, unit: str = "TFLOP/s") -> Figure:
    """Draw a rate from call to call, a dot each; each series ends with its name and the median of its second half.

    A dashed line is the device's peak rate.
    """
    if not series or not all(series.values()):
        raise ValueError("series must each have at least one call")
    figure, axes = canvas(3.0)
    longest = max(map(len, series.values()))
    for color, (name, rates) in zip(CYCLE, series.items()):
        axes.plot(range(1, len(rates) + 1), rates, "o", ms=3, color=color)
        level = statistics.median(rates[len(rates) // 2 :])
        axes.text(longest * 1.015, level, f"{name}: {level:.0f}", color=as_ink(color), fontsize=10, va="center")
    axes.axhline(peak, color=BLACK, lw=1, ls="--")
    axes.text(longest, peak, f"peak: {peak:.0f}", fontsize=9, color=BLACK, ha="right", va="bottom")
    axes.set(xlim=(-longest * 0.01, longest * 1.22), ylim=(0, peak * 1.1), xlabel="call", ylabel=unit)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= longest])
    return figure


@drawing
def cache_curve(megabytes: Sequence[float], rates: Mapping[str, Sequence[float]], l2_mb: float, copy: float) -> Figure:
    """Draw the bandwidth that a kernel seems to have, over the size of its operands on a logarithmic axis.

    Args:
        rates: way of measuring → TB/s at each size.
        l2_mb: size of the cache in MB; the region that fits is shaded.
        copy: bandwidth of memory in TB/s, a dashed line.
    """
    if not megabytes or any(len(values) != len(megabytes) for values in rates.values()):
        raise ValueError(f"rates must have {len(megabytes)} values each, one per size, and at least one")
    figure, axes = canvas(3.0)
    axes.axvspan(min(megabytes), l2_mb, color=FAINT, alpha=0.5, lw=0)
    axes.axhline(copy, color=BLACK, lw=1, ls="--")
    top = max(max(values) for values in [*rates.values(), [copy]]) * 1.15
    axes.text(max(megabytes), copy, f"memory: {copy:g} TB/s", fontsize=9, color=BLACK, ha="right", va="bottom")
    axes.text(l2_mb / 1.03, top * 0.98, "fits into the L2 cache", fontsize=9, color=DIM, ha="right", va="top")
    for color, (name, values) in zip((RED, BLUE, GREEN), rates.items()):
        axes.plot(megabytes, values, "o-", ms=4, color=color, label=name)
    axes.set(xscale="log", xlim=(min(megabytes), max(megabytes) * 1.05), ylim=(0, top))
    ticks_at(axes.xaxis, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000), min(megabytes), max(megabytes))
    axes.set(xlabel="MB of operands", ylabel="TB/s")
    axes.legend(loc="lower left", fontsize=9)
    return figure


@drawing
def spread(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw every time as a dot, with a box from the first to the third quartile and a line at the median.

    Times of more than 1.2 times the largest median are only counted.

    Args:
        panels: way of measuring → contestant → its times in microseconds, at least two.
    """
    if not panels or not all(panels.values()) or any(len(t) < 2 for panel in panels.values() for t in panel.values()):
        raise ValueError("panels must have contestants with at least two times each")
    every = [times for panel in panels.values() for times in panel.values()]
    low = min(map(min, every))
    limit = 1.2 * max(map(statistics.median, every))
    high = max(time for times in every for time in times if time <= limit)
    room = (high - low) * 0.04
    height = 0.45 + sum(0.42 * len(panel) + 0.5 for panel in panels.values())
    ratios = [len(panel) + 0.3 for panel in panels.values()]
    figure, grid = canvas_grid(height, len(panels), 1, sharex=True, height_ratios=ratios)
    for axes, (title, panel) in zip(grid, panels.items()):
        for row, times in enumerate(panel.values()):
            color = color_of(row)
            first, median, third = statistics.quantiles(times, n=4)
            rectangle(axes, first, row - 0.33, third - first, 0.66, color=color, alpha=0.3, lw=0)
            near = [time for time in times if time <= limit]
            # Dots of one row beside each other, in the order of the calls.
            places = [row - 0.25 + 0.5 * i / max(1, len(near) - 1) for i in range(len(near))]
            axes.plot(near, places, ".", ms=3, color=color)
            axes.plot([median, median], [row - 0.38, row + 0.38], color=color, lw=2)
            text = f"{median:.1f} µs"
            if beyond := len(times) - len(near):
                text += f" ({beyond} off the scale)"
            axes.text(high + 2 * room, row, text, fontsize=9, va="center", color=BLACK)
        name_rows(axes, list(panel))
        axes.set_title(title, fontsize=10)
    grid[0].set_xlim(low - room, high + room)
    grid[-1].set_xlabel("µs; box: the middle half, line: median")
    return figure


@drawing
def claims(ratios: Mapping[str, float], mine: str, theirs: str) -> Figure:
    """Draw the ratio of rates that each version of a benchmark claims, as a bar from 1 on a logarithmic axis.

    The bar is orange where mine wins and blue where theirs wins.
    """
    if not ratios or min(ratios.values()) <= 0:
        raise ValueError(f"ratios must be positive, got {dict(ratios)}")
    figure, axes = canvas(0.36 * len(ratios) + 1.0)
    for row, ratio in enumerate(ratios.values()):
        color = ORANGE if ratio > 1 else BLUE
        axes.barh(row, ratio - 1, left=1.0, height=0.7, color=color)
        axes.annotate(f"{ratio:.2f} times", (ratio, row), (5 if ratio >= 1 else -5, 0), textcoords="offset points",
                      ha="left" if ratio >= 1 else "right", va="center", fontsize=9, color=BLACK)  # fmt: skip
    axes.axvline(1.0, color=BLACK, lw=1)
    low, high = min(1.0, *ratios.values()), max(1.0, *ratios.values())
    span = (high / low) ** 0.16
    axes.set(xscale="log", xlim=(low / span, high * span))
    name_rows(axes, list(ratios))
    near = (0.9, 0.95, 1.05, 1.1, 1.2) if high / low < 1.6 else (0.8, 1.25)  # close ticks only where there is room
    ticks_at(axes.xaxis, (0.1, 0.2, 0.5, *near, 1, 1.5, 2, 3, 5, 10, 20, 50), low / span, high * span)
    axes.set_xlabel(f"← {theirs} faster        rate of {mine} / rate of {theirs}        {mine} faster →")
    return figure
