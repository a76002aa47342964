"""A record of grouped products, read further: who is ahead by how much, what a call adds, where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from gemm_course.figures.bench import _colors, ceiling
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREY, ORANGE, PINK, SKY, WIDTH, styled

__all__ = ["Share", "ahead", "as_called", "shares", "where_time_goes"]

_TITLES = {"forward": "forward", "called": "as called", "dA": "gradient of A", "dB": "gradient of B"}
_PARTS = {
    "the roof": BLUE,
    "rows of tiles that do not exist": ORANGE,
    "the last wave": PINK,
    "the rest": FAINT,
}


def _log_axis(axis, low: float, high: float, ticks: Sequence[float]) -> None:
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _title_rows(axes, results: Mapping, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [results["rows"][name]["title"] for name in names], fontsize=8, color=BLACK)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)


@styled()
def ahead(results: Mapping, ours: str, passes: Sequence[str] = ("forward", "dA", "dB")) -> Figure:
    """Draw how many times faster one provider is than each peer, row by row.

    Args:
        results: of `bench.grouped.measure`, or its record.
        ours: the provider.
        passes: a panel each.

    Returns:
        A dot per row and peer: right of 1 the provider is faster, in the shaded half the peer is.

    Raises:
        ValueError: a pass in which the provider has no times beside a peer's.
    """
    colors = _colors(results)
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
    figure = Figure(figsize=(WIDTH, 0.27 * len(names) + 1.5))
    for axes, of in zip(figure.subplots(1, len(passes), sharey=True, squeeze=False)[0], passes):
        axes.axvspan(low, 1.0, color=FAINT, alpha=0.5, linewidth=0)
        for row in range(len(names)):
            axes.plot([low, high], [row, row], color=FAINT, linewidth=0.6, zorder=0)
        for row, peer, ratio in dots[of]:
            axes.plot(ratio, row, "o", color=colors[peer], markersize=6)
        axes.set(xscale="log", xlim=(low, high), title=_TITLES[of])
        _log_axis(axes.xaxis, low, high, (0.25, 0.5, 0.8, 1, 1.5, 2, 3, 5, 10, 20))
        axes.tick_params(axis="x", labelsize=8)
        _title_rows(axes, results, names)
    present = {peer for found in dots.values() for _, peer, _ in found}
    peers = [peer for peer in colors if peer in present]
    handles = [figure.axes[0].plot([], [], "o", color=colors[peer], markersize=6)[0] for peer in peers]
    labels = [results["providers"][peer]["label"] for peer in peers]
    figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=9, title="against", alignment="left")
    figure.supxlabel(f"times faster: {results['providers'][ours]['label']}", fontsize=9)
    return figure


@styled()
def as_called(results: Mapping, names: Sequence[str]) -> Figure:
    """Draw what a call adds to the time of a graph, and how long the host takes for it.

    Args:
        results: of `bench.grouped.measure`, or its record.
        names: providers, a panel each.

    Returns:
        Per row a circle at the call's time and a tick at the host's, both as multiples of the graph's time. Where the
        tick is right of 1 (shaded), calls back to back would wait for the host.

    Raises:
        ValueError: a provider without times of both.
    """
    rows, colors = list(results["rows"]), _colors(results)
    found: dict[str, list[tuple]] = {}
    for provider in names:
        for row, entry in enumerate(results["rows"].values()):
            graph, call = (entry["us"].get(of, {}).get(provider) for of in ("forward", "called"))
            if graph and call:
                host, unit = entry["host_us"].get(provider), graph["median_us"]
                found.setdefault(provider, []).append((row, call["median_us"] / unit, host and host / unit))
        if provider not in found or provider not in colors:
            raise ValueError(f"names must be of providers measured in a graph and as called, {provider!r} is not")
    every = [time for lines in found.values() for _, *times in lines for time in times if time]
    low, high = min(0.5, *every) / 1.3, max(2.0, *every) * 1.3
    figure = Figure(figsize=(WIDTH, 0.25 * len(rows) + 1.5))
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, (provider, lines) in zip(panels, found.items()):
        color = colors[provider]
        axes.axvspan(1.0, high, color=FAINT, alpha=0.5, linewidth=0)
        for row, called, host in lines:
            axes.plot([1.0, called], [row, row], color=color, linewidth=2)
            axes.plot(called, row, "o", color=color, markersize=6)
            if host:
                axes.plot([host, host], [row - 0.35, row + 0.35], color=BLACK, linewidth=2)
        axes.set(xscale="log", xlim=(low, high), title=results["providers"][provider]["label"])
        _log_axis(axes.xaxis, low, high, (0.001, 0.01, 0.1, 1, 10, 100))
        _title_rows(axes, results, rows)
    circle = panels[0].plot([], [], "o", color=GREY, markersize=6)[0]
    tick = panels[0].plot([], [], "|", color=BLACK, markersize=11, markeredgewidth=2)[0]
    figure.legend(
        [circle, tick], ["device, as called", "host, per call"], loc="outside upper left", ncols=2, fontsize=9
    )
    figure.supxlabel("times the same row in a graph; shaded: the host would be the limit", fontsize=9)
    return figure


class Share(NamedTuple):
    """Where the time of one row goes, as shares of it that add up to 1."""

    bound: str
    """"arithmetic" or "memory": the part of the roof that is longer."""
    parts: dict[str, float]
    """Part → share, in the order of being drawn."""


def shares(results: Mapping, provider: str, block: tuple[int, int], sms: int) -> dict[str, Share]:
    """Explain the forward time of each row.

    The roof is arithmetic at the rate of the dense product of the row's size, or traffic at the bandwidth of a copy,
    whichever takes longer. Where it is arithmetic, tiles that hang over the end of their group, and the last wave of
    tiles on the SMs, are counted next, for a given tile.

    Args:
        results: of `bench.grouped.measure`, or its record.
        provider: whose times.
        block: rows and columns of its tiles.
        sms: how many tiles run at once.

    Returns:
        Row → shares. A part that the measured time leaves no room for is cut; what nothing explains is "the rest".

    Raises:
        ValueError: the provider was not measured, or the dense product of a compute-bound row was not.
    """
    rows = {name: entry for name, entry in results["rows"].items() if provider in entry["us"].get("forward", {})}
    if not rows:
        raise ValueError(f"provider must be one that was measured, {provider!r} was not")
    found = {}
    for name, entry in rows.items():
        total = entry["us"]["forward"][provider]["median_us"]
        # The row's own ceiling and not the highest of all: it was measured at the clock that the row's other times had.
        dense = ceiling(results, name) if entry["kind"] == "compute" else float("inf")
        if dense is None:
            raise ValueError(f"results must have the dense product of row {name!r}, as its ceiling")
        arithmetic = entry["flops"] / dense / 1e6
        traffic = entry["bytes"]["forward"] / results["copy_tb_s"] / 1e6
        used = dict.fromkeys(_PARTS, 0.0)
        used["the roof"] = max(arithmetic, traffic)
        if arithmetic >= traffic:
            row_tiles = sum(-(-size // block[0]) for size in entry["sizes"])
            columns = -(-entry["N"] // block[1])
            whole = row_tiles * block[0] * columns * block[1] / (sum(entry["sizes"]) * entry["N"])
            waves = -(-row_tiles * columns // sms) * sms / (row_tiles * columns)
            used["rows of tiles that do not exist"] = arithmetic * (whole - 1)
            used["the last wave"] = arithmetic * whole * (waves - 1)
        room = 1.0
        for part, time in used.items():
            used[part] = min(time / total, room)
            room -= used[part]
        used["the rest"] = room
        found[name] = Share("arithmetic" if arithmetic >= traffic else "memory", used)
    return found


@styled()
def where_time_goes(results: Mapping, explained: Mapping[str, Share]) -> Figure:
    """Draw the shares of `shares`.

    Args:
        results: of `bench.grouped.measure`, or its record.
        explained: row → shares.

    Returns:
        A bar per row; the roof has another blue where memory is the limit.
    """
    figure = Figure(figsize=(WIDTH, 0.32 * len(explained) + 1.2))
    axes = figure.subplots()
    for row, share in enumerate(explained.values()):
        left = 0.0
        for part, width in share.parts.items():
            color = SKY if part == "the roof" and share.bound == "memory" else _PARTS[part]
            axes.barh(row, width, left=left, height=0.72, color=color)
            if width > 0.045:
                white = color == BLUE
                axes.text(left + width / 2, row, f"{width:.0%}", ha="center", va="center", fontsize=8,
                          color="white" if white else BLACK)  # fmt: skip
            left += width
    _title_rows(axes, results, list(explained))
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    labels = {"arithmetic at the dense rate": BLUE, "bytes at a copy's rate": SKY, **_PARTS}
    del labels["the roof"]
    handles = [axes.barh([0], [0], color=color) for color in labels.values()]
    figure.legend(handles, list(labels), loc="outside upper left", ncols=5, fontsize=8)
    axes.set_xlabel("share of the forward time")
    return figure
