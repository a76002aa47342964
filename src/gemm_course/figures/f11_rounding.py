"""Rounding of sums: bits that a format has no room for, and the error of a gradient summed over micro-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from gemm_course.figures.shapes import bare, canvas, canvas_grid, centred, rectangle, spread_apart
from gemm_course.figures.style import BLACK, BLUE, FAINT, WRONG, as_ink, color_of, drawing, ink_on


@drawing
def aligned_bits(panels: Mapping[str, Mapping[str, int]], kept: int) -> Figure:
    """Draw whole numbers in binary, bit below bit, with a frame around the bits that a format keeps of the largest.

    A one is red where it is too far from its own number's leading bit to be stored.

    Args:
        panels: title → text beside a row → its number; of a negative one, the bits of its magnitude.
        kept: bits of a number that the format stores, the leading one included: 11 in float16, 8 in bfloat16.
    """
    most = max(map(len, panels.values()))
    figure, axes_of = canvas_grid(0.36 * most + 0.9, 1, len(panels))
    for axes, (title, rows) in zip(axes_of, panels.items(), strict=True):
        width = max(abs(number).bit_length() for number in rows.values())
        for y, (text, number) in enumerate(rows.items()):
            axes.text(-0.4, y + 0.5, text, ha="right", va="center", fontsize=9)
            leading = width - abs(number).bit_length()
            for place in range(width):
                one = abs(number) >> (width - 1 - place) & 1
                lost = one and place - leading >= kept
                color = WRONG if lost else BLUE if one else FAINT
                gid = f"{y} lost" if lost else f"{y} {one}"
                rectangle(axes, place + 0.05, y + 0.12, 0.9, 0.76, fc=color, ec="none", gid=gid)
                centred(axes, place + 0.5, y + 0.5, str(one), fontsize=9, color=ink_on(color))
            axes.text(width + 0.4, y + 0.5, f"{number}".replace("-", "−"), va="center", fontsize=10, fontweight="bold")
        rectangle(axes, 0, 0, min(kept, width), len(rows), fill=False, ec=BLACK, lw=1.8, gid="kept")
        axes.text(0, len(rows) + 0.12, f"{kept} bits fit", va="top", fontsize=9)
        axes.set_title(title, fontsize=10)
        bare(axes, (-9.0, width + 3.2), (most + 0.75, -0.1))
    return figure


@drawing
def error_growth(errors: Mapping[str, Sequence[float]], *, what: str = "relative error of the sum") -> Figure:
    """Draw the error of each way to sum after 1, 2, 3, … micro-batches; the way's name is at its line's end.

    Raises:
        ValueError: an error is not positive, which a logarithmic axis cannot show.
    """
    if bad := [name for name, series in errors.items() if min(series) <= 0]:
        raise ValueError(f"errors must be positive, {', '.join(map(repr, bad))} has one that is not")
    figure, axes = canvas(3.6)
    count = max(map(len, errors.values()))
    ends = sorted((series[-1], name) for name, series in errors.items())
    for i, (name, series) in enumerate(errors.items()):
        axes.plot(range(1, len(series) + 1), series, color=color_of(i), lw=2, gid=name)
    axes.set(yscale="log", xlabel="micro-batches", ylabel=what, xlim=(1, count))
    low, high = axes.get_ylim()
    span = high / low

    def place(value):  # as a share of the axes' height
        return math.log(value / low) / math.log(span)

    names = list(errors)
    for y, (_, name) in zip(spread_apart([place(end) for end, _ in ends], 0.09), ends):
        axes.text(
            1.01, y, name, color=as_ink(color_of(names.index(name))), transform=axes.transAxes, va="center", fontsize=9
        )
    return figure
