"""What the grouped walk costs: time against the number of programs, and against other ways to compute the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from .style import BLACK, BLUE, FAINT, GREY, ORANGE, WIDTH, color_of, styled

__all__ = ["program_counts", "time_ratios"]


@styled()
def program_counts(
    simulated_us: Mapping[int, float],
    recorded_us: Mapping[int, float],
    *,
    marks: Sequence[int] = (84, 128, 132),
    sms: int = 132,
) -> Figure:
    """Draw the time of one launch against its number of programs, as simulated and as recorded.

    Args:
        simulated_us: programs → µs.
        recorded_us: programs → µs.
        marks: numbers of programs to point out.
        sms: multiprocessors of the GPU: to the right of the grey line there are more programs than those.

    Returns:
        A figure; where the record has a mark, its time is written beside it.
    """
    fig = Figure(figsize=(WIDTH, 3.3))
    ax = fig.add_subplot()
    highest = max([*simulated_us.values(), *recorded_us.values()])
    for values, color, marker, name in (
        (simulated_us, ORANGE, "", "simulated"),
        (recorded_us, BLUE, "o", "recorded on an H200"),
    ):
        if values:
            xs = sorted(values)
            ax.plot(xs, [values[x] for x in xs], color=color, marker=marker, markersize=4, label=name)
    ax.axvline(sms, color=GREY, linewidth=0.8, linestyle=":")
    ax.text(sms, highest * 1.12, f" {sms} multiprocessors", ha="left", va="top", color=GREY, fontsize=9)
    for mark in marks:
        if mark in recorded_us:
            us = recorded_us[mark]
            near_end = mark == max(marks)
            ax.annotate(
                f"{mark}: {us:.0f} µs", (mark, us), xytext=(8 if near_end else -4, 12), textcoords="offset points",
                ha="left" if near_end else "right", va="bottom", color=BLUE, fontsize=9,
            )  # fmt: skip
            ax.plot([mark], [us], "o", color=BLUE, markersize=8)
    ax.set(xlabel="programs", ylabel="µs", ylim=(0, highest * 1.15))
    ax.legend(loc="upper left", bbox_to_anchor=(0.62, 0.85), labelcolor="linecolor")
    return fig


@styled()
def time_ratios(
    us: Mapping[str, Mapping[str, float]], providers: Mapping[str, str], *, base: str = "cublas loop"
) -> Figure:
    """Draw each provider's time over that of one of them, row by row: left of the line is faster.

    Args:
        us: row name → provider → µs.
        providers: provider → name in the figure; a row may lack some.
        base: the provider that is 1.

    Returns:
        A figure; beside each row's name stands the base's time.

    Raises:
        ValueError: a row lacks the base.
    """
    for row, times in us.items():
        if base not in times:
            raise ValueError(f"us must have {base!r} in every row, row {row!r} has {', '.join(map(repr, times))}")
    fig = Figure(figsize=(WIDTH, 0.42 * len(us) + 1.1))
    ax = fig.add_subplot()
    ratios = {row: {p: times[p] / times[base] for p in providers if p in times} for row, times in us.items()}
    names = list(us)
    for y, row in enumerate(names):
        ax.axhline(y, color=FAINT, linewidth=0.8, zorder=0)
        for index, provider in enumerate(providers):
            if provider in ratios[row] and provider != base:
                ax.plot([ratios[row][provider]], [y], "o", color=color_of(index), markersize=9)
    ax.axvline(1.0, color=BLACK, linewidth=1.2)
    shown = [name for provider, name in providers.items() if provider != base]
    for index, (provider, name) in enumerate(providers.items()):
        if provider != base:
            at = (shown.index(name) + 0.5) / len(shown)
            ax.text(at, 1.04, f"● {name}", color=color_of(index), transform=ax.transAxes, ha="center", va="bottom")
    every = [ratio for row in ratios.values() for ratio in row.values()]
    low, high = min(*every, 1.0) / 1.25, max(*every, 1.0) * 1.25
    ax.set_xscale("log")
    ax.set(xlim=(low, high), ylim=(len(names) - 0.5, -0.5))
    ticks = [x for x in (0.1, 0.2, 0.25, 0.33, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12) if low <= x <= high]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([f"{x:g}×" for x in ticks])
    base_name = providers.get(base, base)
    ax.set_yticks(range(len(names)), [f"{row}   ({us[row][base]:.0f} µs)" for row in names])
    ax.tick_params(axis="y", length=0, labelcolor=BLACK)
    ax.set_xlabel(f"time over that of the {base_name} (its µs in brackets); further left is faster")
    ax.spines["left"].set_visible(False)
    return fig
