"""What the grouped walk costs: time against the number of programs, and against other ways to compute the batch."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gemm_course.figures.shapes import canvas, canvas_grid, name_rows, ticks_at
from gemm_course.figures.style import BLACK, BLUE, FAINT, ORANGE, color_of, drawing
from gemm_course.lessons.records import ProgramTimes

# Where a label may be, beside its point: its alignment, and the left and lower edge in units of its own size.
_SIDES = {("center", "bottom"): (-0.5, 0.3), ("left", "bottom"): (0.15, 0.3), ("right", "top"): (-1.15, -1.3)}


def _free_side(
    x: float, y: float, stairs: Mapping[int, float], size: tuple[float, float], before: float
) -> tuple[str, str]:
    """The first of ``_SIDES`` on which a label of this size covers neither the staircase nor the label that ends at
    ``before``, all in the units of the axes."""
    width, height = size
    for side, (right, up) in _SIDES.items():
        low, left = y + up * height, x + right * width
        met = [us for programs, us in stairs.items() if left - 1 <= programs <= left + width]
        if left > before and (not met or min(met) > low + height or max(met) < low):
            return side
    return next(iter(_SIDES))


@drawing
def program_counts(panels: Mapping[str, ProgramTimes], scaled_at: int) -> Figure:
    """Draw the time of one launch against its number of programs: simulated a staircase, recorded as points.

    ``scaled_at`` is the number of programs at which the staircase is scaled to meet the record: what is left to compare
    is then its form.
    """
    fig, axes = canvas_grid(3.4, 1, len(panels))
    for ax, (title, times) in zip(axes, panels.items(), strict=True):
        xs = sorted(times.simulated_us)
        scale = times.recorded_us[scaled_at] / times.simulated_us[scaled_at]
        simulated = [times.simulated_us[x] * scale for x in xs]
        label = f"simulated, times {scale:.1f} to meet the record at {scaled_at}"
        ax.step(xs, simulated, where="post", color=ORANGE, label=label)
        xs = sorted(times.recorded_us)
        ax.plot(xs, [times.recorded_us[x] for x in xs], "o", color=BLUE, ms=7, label="recorded on an H200")
        highest = max([*simulated, *times.recorded_us.values()])
        span = max(xs, default=0) - min(xs, default=0)
        stairs, before = dict(zip(sorted(times.simulated_us), simulated)), float("-inf")
        for i, x in enumerate(xs):
            y, near = times.recorded_us[x], 0.06 * span
            if i + 1 < len(xs) and xs[i + 1] - x < near:  # labels of close neighbours lean away from each other
                side = "right", "bottom"
            elif i and x - xs[i - 1] < near:
                side = "left", "bottom"
            else:
                size = 0.024 * span * len(str(x)), highest / 12
                side = _free_side(x, y, stairs, size, before)
                before = x + (_SIDES[side][0] + 1.1) * size[0]
            shift = {"center": 0, "left": 2, "right": -2}[side[0]], 7 if side[1] == "bottom" else -7
            ax.annotate(str(x), (x, y), xytext=shift, textcoords="offset points", ha=side[0], va=side[1], color=BLUE,
                        fontsize=9)  # fmt: skip
        ax.set(title=title, xlabel="programs", ylabel="µs", ylim=(0, highest * 1.3))
        ax.margins(x=0.09)
        ax.legend(loc="upper right", fontsize=9)
    return fig


@drawing
def time_ratios(
    us: Mapping[str, Mapping[str, float]], providers: Mapping[str, str], *, base: str = "cublas loop"
) -> Figure:
    """Draw each provider's time over that of a base, row by row: left of the line is faster.

    Args:
        us: row name → provider → µs; a row may lack any provider but the base.
        providers: provider → name in the figure.
        base: the provider that is 1; its time is beside each row's name.
    """
    for row, times in us.items():
        if base not in times:
            raise ValueError(f"us must have {base!r} in every row, row {row!r} has {', '.join(map(repr, times))}")
    fig, ax = canvas(0.5 * len(us) + 1.1)
    ratios = {row: {p: times[p] / times[base] for p in providers if p in times} for row, times in us.items()}
    names = list(us)
    shift = 0.6 / max(len(providers), 1)  # equal times are side by side
    for y, row in enumerate(names):
        ax.axhspan(y - 0.42, y + 0.42, color=FAINT, alpha=0.35, lw=0, zorder=0)
        for index, provider in enumerate(providers):
            if provider in ratios[row] and provider != base:
                at = y + (index - len(providers) / 2) * shift
                ax.plot([ratios[row][provider]], [at], "o", color=color_of(index), ms=8)
    ax.axvline(1.0, color=BLACK, lw=1.2)
    shown = {name: color_of(index) for index, (provider, name) in enumerate(providers.items()) if provider != base}
    dots = [Line2D([], [], color=color, marker="o", ms=8, lw=0) for color in shown.values()]
    ax.legend(dots, list(shown), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(shown), handletextpad=0.2)
    every = [ratio for row in ratios.values() for ratio in row.values()]
    low, high = min(*every, 1.0) / 1.25, max(*every, 1.0) * 1.25
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ticks_at(ax.xaxis, (0.1, 0.2, 0.25, 0.33, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12), low, high, "{:g}×")
    base_name = providers.get(base, base)
    name_rows(ax, [f"{row}   ({us[row][base]:.0f} µs)" for row in names])
    ax.set_xlabel(f"time over that of the {base_name} (its µs in brackets); further left is faster")
    return fig
