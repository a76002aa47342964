"""A record of grouped GEMMs, analysed: speedups over the peers, the cost of a call, where the time goes.

``results`` is what `course_kernels.bench.grouped.measure` returns, or its record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_kernels.bench.rows import title_of
from gemm_course.figures.roofline import provider_colors
from gemm_course.figures.shapes import canvas, canvas_grid, centred, name_rows, percent, ticks_at
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREY, ORANGE, PINK, RED, SKY, WIDTH, drawing
from gemm_course.lessons.records import Share

_TITLES = {"forward": "forward", "called": "as called", "dA": "gradient of A", "dB": "gradient of B"}
_PARTS = {
    "the roof": BLUE,
    "rows past the end of their group": ORANGE,
    "the last wave": PINK,
    "the rest": FAINT,
}


def _title_rows(axes, results: Mapping, names: Sequence[str]) -> None:
    name_rows(axes, [title_of(results["rows"][name], lines=2) for name in names], fontsize=9)


@drawing
def speedups_over_peers(results: Mapping, ours: str, passes: Sequence[str] = ("forward", "dA", "dB")) -> Figure:
    """Draw how many times as fast one provider is as each peer, row by row, a panel for each pass.

    A dot right of 1 means that the provider is faster, one in the shaded half that the peer is.
    """
    colors = provider_colors(results)
    names, dots = list(results["rows"]), {}
    for of in passes:
        for row, name in enumerate(names):
            us = results["rows"][name]["us"].get(of, {})
            for peer in colors:
                if ours in us and peer in us and results["providers"][peer]["role"] == "peer":
                    dots.setdefault(of, []).append((row, peer, us[peer]["median_us"] / us[ours]["median_us"]))
        if of not in dots:
            raise ValueError(f"passes must have times of {ours!r} and of a peer, {of!r} has none")
    ratios = [ratio for found in dots.values() for _, _, ratio in found]
    low, high = min(0.8, *ratios) / 1.1, max(1.25, *ratios) * 1.1
    figure = Figure(figsize=(WIDTH, 0.38 * len(names) + 1.5))
    for axes, of in zip(figure.subplots(1, len(passes), sharey=True, squeeze=False)[0], passes):
        axes.axvspan(low, 1.0, color=FAINT, alpha=0.5, lw=0)
        for row in range(len(names)):
            axes.plot([low, high], [row, row], color=FAINT, lw=0.6, zorder=0)
        for row, peer, ratio in dots[of]:
            axes.plot(ratio, row, "o", color=colors[peer], ms=6)
        axes.set(xscale="log", xlim=(low, high), title=_TITLES[of])
        ticks_at(axes.xaxis, (0.25, 0.5, 0.8, 1, 1.5, 2, 3, 5, 10, 20), low, high)
        axes.tick_params(axis="x", labelsize=9)
        _title_rows(axes, results, names)
    present = {peer for found in dots.values() for _, peer, _ in found}
    peers = [peer for peer in colors if peer in present]
    handles = [figure.axes[0].plot([], [], "o", color=colors[peer], ms=6)[0] for peer in peers]
    labels = [results["providers"][peer]["label"] for peer in peers]
    figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=9, title="against", alignment="left")
    figure.supxlabel(f"{results['providers'][ours]['label']}: times as fast as the other", fontsize=9)
    return figure


@drawing
def as_called(results: Mapping, names: Sequence[str]) -> Figure:
    """Draw the device's time and the host's time of a call, in µs, a panel for each provider.

    A row has a circle at the device's time and a tick at the host's. Where the tick is to the right, the line between
    them is red: back-to-back calls wait for the host.
    """
    rows, colors = list(results["rows"]), provider_colors(results)
    found: dict[str, list[tuple]] = {}
    for provider in names:
        for row, entry in enumerate(results["rows"].values()):
            graph, call = (entry["us"].get(of, {}).get(provider) for of in ("forward", "called"))
            if graph and call:
                found.setdefault(provider, []).append((row, call["median_us"], entry["host_us"].get(provider)))
        if provider not in found or provider not in colors:
            raise ValueError(f"names must be of providers measured in a graph and as called, {provider!r} is not")
    every = [time for lines in found.values() for _, *times in lines for time in times if time]
    low, high = min(every) / 1.5, max(every) * 1.5
    figure, panels = canvas_grid(0.38 * len(rows) + 1.5, 1, len(names), sharey=True)
    for axes, (provider, lines) in zip(panels, found.items()):
        color = colors[provider]
        for row, device, host in lines:
            axes.plot([low, high], [row, row], color=FAINT, lw=0.6, zorder=0)
            if host:
                axes.plot([device, host], [row, row], color=RED if host > device else FAINT, lw=3, zorder=1)
                axes.plot([host, host], [row - 0.35, row + 0.35], color=BLACK, lw=2)
            axes.plot(device, row, "o", color=color, ms=7)
        axes.set(xscale="log", xlim=(low, high), title=results["providers"][provider]["label"])
        ticks_at(axes.xaxis, (1, 10, 100, 1_000, 10_000, 100_000), low, high, "{:,.0f}")
        _title_rows(axes, results, rows)
    circle = panels[0].plot([], [], "o", color=GREY, ms=7)[0]
    tick = panels[0].plot([], [], "|", color=BLACK, ms=11, mew=2)[0]
    wait = panels[0].plot([], [], color=RED, lw=3)[0]
    labels = ["the device's time", "the host's time", "the device waits for the host"]
    figure.legend([circle, tick, wait], labels, loc="outside upper left", ncols=3, fontsize=9)
    figure.supxlabel("µs for one call", fontsize=9)
    return figure


@drawing
def where_time_goes(results: Mapping, explained: Mapping[str, Share]) -> Figure:
    """Draw the parts of each row's time, a bar per row; the roof has another blue where memory is the limit."""
    figure, axes = canvas(0.38 * len(explained) + 1.4)
    for row, share in enumerate(explained.values()):
        left = 0.0
        for part, width in share.parts.items():
            color = SKY if part == "the roof" and share.bound == "memory" else _PARTS[part]
            axes.barh(row, width, left=left, height=0.72, color=color)
            if width > 0.045:
                ink = "white" if color == BLUE else BLACK
                centred(axes, left + width / 2, row, f"{width:.0%}", fontsize=9, color=ink)
            left += width
    _title_rows(axes, results, list(explained))
    axes.set_xlim(0, 1)
    percent(axes.xaxis)
    labels = {"arithmetic at the dense rate": BLUE, "bytes at a copy's rate": SKY, **_PARTS}
    del labels["the roof"]
    handles = [axes.barh([0], [0], color=color) for color in labels.values()]
    figure.legend(handles, list(labels), loc="outside upper left", ncols=3, fontsize=9)
    axes.set_xlabel("share of the forward time")
    return figure
