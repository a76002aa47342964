"""Measured rates of grouped GEMMs: every provider as a share of the ceiling, and every row under the roofline.

``results`` is what `course_kernels.bench.grouped.measure` returns, or its record; a pass, ``of``, is "forward",
"called", "dA" or "dB".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from course_kernels.bench.rows import title_of
from gemm_course.figures.shapes import canvas_grid, percent, ticks_at
from gemm_course.figures.style import BLACK, BLUE, CYCLE, FAINT, GREY, RED, as_ink, drawing, ink_on
from gemm_course.lessons.records import ceiling

_PASSES = {"forward": "forward", "called": "forward, as called", "dA": "gradient of A", "dB": "gradient of B"}
_PEERS = (CYCLE[1], CYCLE[2], CYCLE[3], CYCLE[4], GREY)  # ours has the first colour of the palette, or its reds


def provider_colors(results: Mapping) -> dict[str, str]:
    """Each provider's colour: the same in every figure of one record."""
    ours, peers = iter((BLUE, RED)), iter(_PEERS)
    return {
        name: next(ours if about["role"] == "ours" else peers, BLACK)
        for name, about in results["providers"].items()
        if about["role"] != "ceiling" and "absent" not in about
    }


def _with_times(results: Mapping, of: str) -> dict[str, Mapping]:
    if of not in _PASSES:
        raise ValueError(f"of must be one of {', '.join(_PASSES)}, got {of!r}")
    rows = {name: entry for name, entry in results["rows"].items() if entry["rate"].get(of)}
    if not rows:
        raise ValueError(f"results must have measured rows of the pass {of!r}, and have none")
    return rows


@drawing
def against_peers(results: Mapping, of: str = "forward") -> Figure:
    """Draw each row's rates as bars, as shares of the ceiling, with the rates written on them.

    100 % is `ceiling`; where that was not measured, it is the fastest provider of the row.
    """
    rows, colors = _with_times(results, of), provider_colors(results)
    shown = [p for p in colors if any(p in entry["rate"][of] for entry in rows.values())]
    # Two columns, filled like those of a newspaper.
    names = [name for name, entry in rows.items() if any(p in entry["rate"][of] for p in shown)]
    half = len(names) if len(names) < 5 else -(-len(names) // 2)
    columns = [names[:half], names[half:]] if half < len(names) else [names]
    slots = max(sum(len(_shares(results, name, of, shown)) + 3 for name in column) for column in columns)
    figure, panels = canvas_grid(0.17 * slots + 1.1, 1, len(columns), sharex=True)
    for axes, column in zip(panels, columns):
        at = 0.0
        for name in column:
            entry, shares = rows[name], _shares(results, name, of, shown)
            digits = 0 if entry["kind"] == "compute" else 2
            best = max(entry["rate"][of][p] for p in shares)
            text = f"{title_of(entry, lines=2)};  {_ceiling_text(entry, ceiling(results, name, of), best, digits)}"
            axes.text(0, at + 0.4, text, fontsize=9, color=BLACK, va="center", linespacing=1.1)
            at += 1
            for provider, share in shares.items():
                at += 1
                value, color = entry["rate"][of][provider], colors[provider]
                axes.barh(at, share, height=0.88, color=color)
                bold = "bold" if value == best else "normal"
                inside = share > 0.15  # a shorter bar has no room for its number
                axes.text(share - 0.01 if inside else share + 0.01, at, f"{value:.{digits}f}", fontsize=9,
                          ha="right" if inside else "left", va="center_baseline", fontweight=bold,
                          color=ink_on(color) if inside else BLACK)  # fmt: skip
            at += 2
        axes.axvline(1.0, color=BLACK, lw=1.0, zorder=0.5)
        axes.set_ylim(slots - 1, -1)
        percent(axes.xaxis)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    handles = [panels[0].barh([0], [0], color=colors[name]) for name in shown]
    labels = [results["providers"][name]["label"] for name in shown]
    figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=9)
    what = "share of the ceiling; on the bars TFLOP/s or TB/s, each row's fastest in bold"
    figure.supxlabel(f"{_PASSES[of]}: {what}", fontsize=9)
    return figure


def _shares(results: Mapping, row: str, of: str, names: Sequence[str]) -> dict[str, float]:
    rate = results["rows"][row]["rate"][of]
    rate = {name: rate[name] for name in names if name in rate}
    top = ceiling(results, row, of) or max(rate.values(), default=1.0)
    return {name: value / top for name, value in rate.items()}


def _ceiling_text(entry: Mapping, top: float | None, best: float, digits: int) -> str:
    if top is None:
        return f"no ceiling measured: 100% is {best:.{digits}f} {entry['unit']}"
    what = "dense" if entry["kind"] == "compute" else "copy"
    return f"{what} {top:.{digits}f} {entry['unit']}"


@drawing
def roofline(results: Mapping, of: str = "forward") -> Figure:
    """Draw every row at its arithmetic intensity, under what memory and arithmetic allow.

    The axes are logarithmic: FLOP per byte against TFLOP/s. The slope is the copy bandwidth; the flat part is the
    fastest dense GEMM, or the fastest of all where no dense GEMM was measured. The points of the first of our providers
    are rings with numbers. The others are dots to the right of their ring. Below, each number's row, and the share of
    the roof it reaches.
    """
    rows, colors = _with_times(results, of), provider_colors(results)
    ours = (name for name, about in results["providers"].items() if about["role"] == "ours" and name in colors)
    provider = next(ours, next(iter(colors)))
    points = {
        name: (entry["flops"] / entry["bytes"][of], {p: entry["flops"] / us["median_us"] / 1e6 for p, us in times})
        for name, entry in rows.items()
        if (times := [(p, us) for p, us in entry["us"][of].items() if p in colors])
    }
    if not any(provider in rates for _, rates in points.values()):
        raise ValueError(f"provider must have times of the pass {of!r}, {provider!r} has none")
    bandwidth = results["copy_tb_s"]
    peaks = [top for name in rows if rows[name]["kind"] == "compute" and (top := ceiling(results, name, of))]
    peak = max(peaks, default=max(max(rates.values()) for _, rates in points.values()))

    in_column = len(points) if len(points) < 5 else -(-len(points) // 2)
    list_height = 0.21 * in_column + 0.1
    figure, (axes, key) = canvas_grid(4.6 + list_height, 2, 1, height_ratios=(4.6, list_height))
    ridge = peak / bandwidth
    low = min(*(x for x, _ in points.values()), ridge / 20) / 2  # both parts of the roof are always seen
    high = max(*(x for x, _ in points.values()), ridge) * 2
    axes.plot([low, ridge, high], [low * bandwidth, peak, peak], color=BLACK, lw=1.4)
    axes.fill_between([low, ridge, high], [low * bandwidth, peak, peak], 0.01, color=FAINT, alpha=0.35, linewidth=0)
    above = {"fontsize": 9, "color": BLACK, "ha": "right", "va": "bottom", "zorder": 5}
    above["bbox"] = {"fc": "white", "ec": "none", "pad": 1.0, "alpha": 0.9}  # numbers' lines cross it
    axes.text(ridge / 8, ridge / 8 * bandwidth * 1.1, f"a copy: {bandwidth:.2f} TB/s", **above)
    axes.text(ridge / 1.1, peak * 1.03, f"{'dense' if peaks else 'fastest'}: {peak:.0f} TFLOP/s", **above)
    numbers_at = spread_left({name: x for name, (x, _) in points.items()}, (low, high))
    beside = axes.transData + ScaledTranslation(8 / 72, 0, figure.dpi_scale_trans)  # no peer is hidden by the ring
    lowest, listed = peak, []
    for number, (name, (x, rates)) in enumerate(points.items(), 1):
        for other, rate in rates.items():
            lowest = min(lowest, rate)
            if other != provider:
                axes.plot([x], [rate], "o", ms=4, color=colors[other], zorder=4, transform=beside)
        if provider in rates:
            axes.plot([x], [rates[provider]], "o", ms=9, mfc="none", mew=2, color=colors[provider], zorder=3)
            axes.annotate(str(number), (x, rates[provider]), xytext=(numbers_at[name], peak * 1.75), textcoords="data",
                          ha="center", va="center", fontsize=9, color=as_ink(colors[provider]), fontweight="bold",
                          arrowprops={"arrowstyle": "-", "color": colors[provider], "linewidth": 0.5,
                                      "alpha": 0.6})  # fmt: skip
        share = f"{rates[provider] / min(peak, x * bandwidth):.0%}" if provider in rates else "–"
        listed.append(f"{number}  {title_of(rows[name])}: {share}")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(lowest / 2, peak * 2.3))
    axes.set(
        xlabel="FLOP per byte that must move (below: the ring's share of the roof)", ylabel="TFLOP/s", title=_PASSES[of]
    )
    for axis, (first, last) in ((axes.xaxis, (low, high)), (axes.yaxis, (lowest / 2, peak * 2.3))):
        ticks_at(axis, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000), first, last)
    key.axis("off")
    across = blended_transform_factory(figure.transFigure, key.transAxes)
    for column, first in enumerate(range(0, len(listed), in_column)):
        key.text(0.01 + 0.5 * column, 1, "\n".join(listed[first : first + in_column]), va="top", fontsize=9,
                 color=BLACK, transform=across, linespacing=1.5, in_layout=False)  # fmt: skip
    drawn = [name for name in colors if any(name in rates for _, rates in points.values())]
    ring = {"ms": 9, "mfc": "none", "mew": 2}
    marks = [
        Line2D([], [], color=colors[name], marker="o", lw=0, **(ring if name == provider else {"ms": 4}))
        for name in drawn
    ]
    labels = [results["providers"][name]["label"] for name in drawn]
    axes.legend(marks, labels, loc="lower right", fontsize=9, handletextpad=0.2)
    return figure


def spread_left(at: Mapping[str, float], limits: tuple[float, float]) -> dict[str, float]:
    """Move numbers on a logarithmic axis apart, to the left, in the same order."""
    gap = (limits[1] / limits[0]) ** (1 / 28)  # 28 two-digit numbers fit beside each other
    places: dict[str, float] = {}
    free = limits[1] / gap
    for name in sorted(at, key=at.get, reverse=True):  # from the right, where rows crowd
        places[name] = free = min(at[name], free)
        free /= gap
    return places
