"""Packed groups: one matrix instead of lists, a tile that crosses its group's end, what a store destroys, a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gemm_course.figures.style import BLACK, FAINT, GREY, WIDTH, WRONG, color_of, ink_on, styled

__all__ = ["boundary_tile", "lists_and_packed", "overwritten", "sliding_window", "whole_units"]

_LEAST_LABELLED = 8  # rows of a group below which its name does not fit


def _bare(axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    axes.set_axis_off()


def _bounds(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise([0, *accumulate(sizes)]))


def _packed(axes, x: float, width: float, sizes: Sequence[int], tail: int, gid: str, labels: bool = True) -> None:
    """A packed matrix: a band of colour for each group, and the tail hatched."""
    for g, (start, end) in enumerate(_bounds(sizes)):
        axes.add_patch(Rectangle((x, start), width, end - start, fc=color_of(g), ec="white", gid=f"{gid} {g}"))
        if labels and end - start >= _LEAST_LABELLED:
            axes.text(x + width / 2, (start + end) / 2, f"group {g}", ha="center", va="center_baseline",
                      fontsize=8, color=ink_on(color_of(g)))  # fmt: skip
    if tail:
        used = sum(sizes)
        axes.add_patch(Rectangle((x, used), width, tail, fc="white", ec=GREY, hatch="////", gid=f"{gid} tail"))
        label = axes.text(x + width / 2, used + tail / 2, "tail", ha="center", va="center", fontsize=8)
        label.set_bbox(dict(fc="white", ec="none", pad=1))


def _mark(axes, x: float, y: float, unit: float) -> None:
    """The sign for a descriptor."""
    axes.add_patch(Rectangle((x - unit / 2, y), unit, unit * 7, fc=BLACK, ec="white", gid="descriptor", zorder=4))


@styled()
def lists_and_packed(sizes: Sequence[int], tail: int = 0) -> Figure:
    """Draw the operands of a list API beside packed ones, with a mark wherever a descriptor is needed.

    Args:
        sizes: rows of each group.
        tail: rows behind the last group of the packed matrices.

    Returns:
        A figure; its heads count descriptors.
    """
    figure = Figure(figsize=(WIDTH, 4.0))
    left, right = figure.subplots(1, 2)
    groups, total, gap = len(sizes), sum(sizes) + tail, 6
    side = (total + gap) / groups - gap  # of a drawn weight, so that eight of them take the height of A
    height = total + gap * groups
    at = 0.0
    for g, size in enumerate(sizes):
        color = color_of(g)
        for x, width, name in ((0, 2.6, "A"), (7.4, 2.6, "C")):
            axes_y = at
            left.add_patch(Rectangle((x, axes_y), width, size, fc=color, ec="white", gid=f"list {name} {g}"))
            _mark(left, x + 0.25, axes_y + 1, 0.3)
        y = g * (side + gap) * height / (total + gap)
        left.add_patch(Rectangle((3.8, y), 2.4, side, fc=color, ec="white", gid=f"list B {g}"))
        _mark(left, 4.05, y + 1, 0.3)
        at += size + gap
    for x, name in ((1.3, "A, a matrix\nper group"), (5.0, "B"), (8.7, "C")):
        left.text(x, -6, name, ha="center", va="bottom", fontsize=9)
    left.set_title(f"lists: {3 * groups} descriptors (black)", fontsize=10)
    _bare(left, (-0.2, 10.4), (height + 4, -34))

    _packed(right, 0, 2.6, sizes, tail, "A")
    _packed(right, 7.4, 2.6, sizes, tail, "C")
    for g in reversed(range(groups)):
        x, y = 4.0 + 0.16 * g, total * 0.3 + 9 * (groups - 1 - g)
        right.add_patch(Rectangle((x, y), 1.5, 70, fc=color_of(g), ec="white", gid=f"B {g}"))
    for x, y in ((0.3, 2), (4.3, total * 0.3 + 9 * (groups - 1) + 3), (7.7, 2)):
        _mark(right, x, y, 0.3)
    for end in accumulate(sizes):
        right.text(2.7, end, f"◂{end}", fontsize=8, va="center", color=BLACK, gid="end")
    for x, name in ((1.3, f"A ({total}, K)"), (5.2, "B (G, K, N)"), (8.7, f"C ({total}, N)")):
        right.text(x, -6, name, ha="center", va="bottom", fontsize=9)
    right.text(2.7, -6, "", fontsize=9)
    right.set_title(f"packed: 3 descriptors and {groups} ends", fontsize=10)
    _bare(right, (-0.2, 10.4), (height + 4, -34))
    return figure


@styled()
def boundary_tile(sizes: Sequence[int], tail: int, block: int, group: int) -> Figure:
    """Draw the last tile of a group: the rows of A that it reads, what it computes, the rows of C that it may store.

    Args:
        sizes: rows of each group.
        tail: rows behind the last group.
        block: rows of a tile.
        group: whose last tile; it must have one that crosses its end.

    Returns:
        A figure of the rows around that tile.

    Raises:
        ValueError: that group's last tile ends with the group.
    """
    start, end = _bounds(sizes)[group]
    if (end - start) % block == 0:
        raise ValueError(f"group must have a boundary tile, group {group} has {end - start} rows in tiles of {block}")
    top = start + (end - start) // block * block
    bottom, total = top + block, sum(sizes) + tail
    low, high = max(0, start - 10), min(total, bottom + 12)
    bands = [(g, *band) for g, band in enumerate(_bounds(sizes))] + [(-1, total - tail, total)]
    figure = Figure(figsize=(WIDTH, 3.9))
    axes = figure.subplots()
    columns = {"A": 0.0, "tile": 4.2, "C": 8.4}
    for name in ("A", "C"):
        for g, first, last in bands:
            first, last = max(first, low), min(last, high)
            if last <= first:
                continue
            look = dict(fc=color_of(g), ec="white") if g >= 0 else dict(fc="white", ec=FAINT, hatch="////")
            axes.add_patch(Rectangle((columns[name], first), 2.6, last - first, gid=f"{name} {g}", **look))
            if last - first >= 3:
                axes.text(columns[name] + 1.3, (first + last) / 2, f"group {g}" if g >= 0 else "tail", ha="center",
                          va="center_baseline", fontsize=9, color=ink_on(color_of(g)) if g >= 0 else BLACK)  # fmt: skip
    color = color_of(group)
    for first, last, look, gid in (
        (top, end, dict(fc=color, ec="white"), "kept"),
        (end, bottom, dict(fc="white", ec=color, hatch="////"), "for nothing"),
    ):
        axes.add_patch(Rectangle((columns["tile"], first), 2.6, last - first, gid=gid, **look))
    axes.add_patch(Rectangle((columns["A"], top), 2.6, block, fill=False, ec=BLACK, lw=2.2, gid="read"))
    axes.add_patch(Rectangle((columns["C"], top), 2.6, end - top, fill=False, ec=BLACK, lw=2.2, gid="stored"))
    for x0, x1, y in ((2.7, 4.1, (top + end) / 2), (6.9, 8.3, (top + end) / 2)):
        axes.annotate("", (x1, y), (x0, y), arrowprops=dict(arrowstyle="-|>", color=BLACK, lw=1.5))
    axes.text(columns["tile"] + 1.3, (end + bottom) / 2, f"{bottom - end} rows\ncomputed for nothing", ha="center",
              va="center", fontsize=9, bbox=dict(fc="white", ec="none", pad=1.5))  # fmt: skip
    axes.text(columns["tile"] + 1.3, (top + end) / 2, f"{end - top} rows to keep", ha="center", va="center",
              fontsize=9, color=ink_on(color))  # fmt: skip
    heads = {"A": f"A: {block} rows are read", "tile": f"one tile of group {group}", "C": f"C: {end - top} are stored"}
    for name, text in heads.items():
        axes.text(columns[name] + 1.3, low - 1.2, text, ha="center", va="bottom", fontsize=10)
    axes.plot([-0.1, 11.1], [end, end], color=BLACK, lw=1.2, ls="--", zorder=5)
    axes.text(11.15, end, f"end of\ngroup {group}", va="center", fontsize=9)
    axes.text(11.15, (end + bottom) / 2 + 2, "never written\nby this tile", va="center", fontsize=9, color=GREY)
    _bare(axes, (-0.2, 13.0), (high + 0.5, low - 4))
    return figure


@styled()
def overwritten(sizes: Sequence[int], tail: int, attempts: Mapping[str, object], want) -> Figure:
    """Draw where each attempt's result departs from the truth, beside the groups that its rows belong to.

    Args:
        sizes: rows of each group.
        tail: rows behind the last group, which should hold zeros.
        attempts: by name, (total, N) results.
        want: (total, N), the truth.

    Returns:
        A figure with a map of errors for each attempt: white is right, the stronger the red, the larger the error.

    Raises:
        ValueError: a result has another shape than ``want``.
    """
    want = _numbers(want)
    figure = Figure(figsize=(WIDTH, 4.2))
    panels = figure.subplots(1, len(attempts) + 1, width_ratios=[1] + [2.4] * len(attempts), sharey=True)
    _packed(panels[0], 0, 1, sizes, tail, "row")
    panels[0].set_title("rows of C", fontsize=10)
    _bare(panels[0], (0, 1), (want.shape[0] + 0.5, -0.5))
    colors = mpl.colors.LinearSegmentedColormap.from_list("wrong", ["#FFFFFF", "#F2B48D", WRONG])
    for axes, (name, result) in zip(panels[1:], attempts.items()):
        result = _numbers(result)
        if result.shape != want.shape:
            raise ValueError(f"attempts must have results of shape {want.shape}, {name!r} has {result.shape}")
        error = np.abs(result - want)
        extent = (0, want.shape[1], want.shape[0], 0)
        strength = mpl.colors.PowerNorm(0.4, vmin=0, vmax=max(error.max(), 1))  # small errors are errors, too
        axes.imshow(error, cmap=colors, norm=strength, aspect="auto", extent=extent, interpolation="nearest")
        for end in accumulate(sizes):
            axes.axhline(end, color=GREY, lw=0.7)
        rows = int((error > 0).any(1).sum())
        axes.set_title(f"{name}: {rows} of {len(error)} rows wrong", fontsize=10)
        axes.set_xlabel("column")
        axes.spines[["top", "right"]].set_visible(True)
        axes.tick_params(left=False)
    return figure


def _numbers(matrix) -> np.ndarray:
    """A tensor or array as float64."""
    return np.asarray(matrix.detach().cpu().double() if hasattr(matrix, "detach") else matrix, dtype=np.float64)


@styled()
def sliding_window(sizes: Sequence[int], group: int, block: int) -> Figure:
    """Draw how a window's fixed bound comes to lie at a group's end, for the last tile of a group.

    Args:
        sizes: rows of each group.
        group: whose window; its last tile must cross its end.
        block: rows of a tile.

    Returns:
        A figure: the packed rows in memory above, the descriptor's own row coordinate below; rows run to the right.

    Raises:
        ValueError: that group's last tile ends with the group.
    """
    bounds, total = _bounds(sizes), sum(sizes)
    start, end = bounds[group]
    if (end - start) % block == 0:
        raise ValueError(f"group must have a boundary tile, group {group} has {end - start} rows in tiles of {block}")
    top = start + (end - start) // block * block
    figure = Figure(figsize=(WIDTH, 3.5))
    axes = figure.subplots()
    for g, (first, last) in enumerate(bounds):
        axes.add_patch(Rectangle((first, 0), last - first, 1, fc=color_of(g), ec="white", gid=f"memory {g}"))
        if last - first >= _LEAST_LABELLED:
            axes.text((first + last) / 2, 0.5, f"{g}", ha="center", va="center", color=ink_on(color_of(g)))
        axes.text(last, 1.12, f"{last}", ha="right" if last == end else "center", va="top", fontsize=8.5)
    axes.text(0, -0.25, "rows of C in memory, and each group's end", fontsize=9, va="bottom")
    # The window is drawn where it comes to lie: its bound under the group's end.
    low = min(0, start - 20)
    axes.add_patch(Rectangle((low, 2.6), end - low, 1, fc=FAINT, ec="none", alpha=0.6, gid="window"))
    axes.add_patch(Rectangle((start, 2.6), end - start, 1, fc=color_of(group), ec="white", gid="group in window"))
    axes.text((start + end) / 2, 3.1, f"group {group}: the last {end - start} rows", ha="center", va="center",
              fontsize=9, color=ink_on(color_of(group)))  # fmt: skip
    axes.plot([end, end], [-0.1, 5.2], color=BLACK, lw=2.2, zorder=5, gid="bound")
    axes.text(end, 5.25, "$2^{30}$, the bound:\nconstant", ha="center", va="top", fontsize=9)
    if start - low > 16:
        axes.text((low + start) / 2, 3.1, "never used", ha="center", va="center", fontsize=9, color="#555555")
    axes.text(low, 2.4, "inside: row coordinate of the window", fontsize=9, va="bottom")
    axes.add_patch(Rectangle((top, 3.85), end - top, 0.55, fc=color_of(group), ec=BLACK, gid="stored"))
    axes.add_patch(Rectangle((end, 3.85), top + block - end, 0.55, fc="white", ec=BLACK, hatch="////", gid="cut off"))
    axes.text(top + block + 2, 4.12, f"last tile: {end - top} rows stored, {top + block - end} cut off", fontsize=9,
              va="center")  # fmt: skip
    axes.text(top, 4.5, f"$2^{{30}} - {end - top}$", fontsize=9, ha="center", va="top")
    axes.annotate("", (end, 1.95), (end - 34, 1.95), arrowprops=dict(arrowstyle="<|-|>", color=BLACK, lw=1.2))
    axes.annotate("", (end + 34, 1.95), (end, 1.95), arrowprops=dict(arrowstyle="<|-|>", color=BLACK, lw=1.2))
    axes.text(end + 37, 1.95, f"base = {end} brings the bound to row {end}", fontsize=9, va="center")
    _bare(axes, (min(low, 0) - 1, max(total, end + 90) + 2), (6.0, -0.8))
    return figure


@styled()
def whole_units(sizes: Sequence[int], unit: int, group: int, block: int) -> Figure:
    """Draw a ragged dimension whose elements lie side by side: where a tile may start, and what its store leaves out.

    Args:
        sizes: elements of each group along the dimension.
        unit: elements in 16 bytes.
        group: whose tile to draw.
        block: elements of a tile.

    Returns:
        A figure of the elements from the start to a little past the tile.
    """
    start, end = _bounds(sizes)[group]
    top = start // unit * unit
    shown = min(sum(sizes), top + block + unit)
    owners = [g for g, size in enumerate(sizes) for _ in range(size)]
    first = max(0, top - 2 * unit)
    figure = Figure(figsize=(WIDTH, 1.9))
    axes = figure.subplots()
    for i in range(first, shown):
        axes.add_patch(Rectangle((i, 0), 1, 1, fc=color_of(owners[i]), ec="white", lw=0.6, gid=f"group {owners[i]}"))
    for i in range(first, shown + 1, unit):
        axes.plot([i, i], [-0.28, 1.0], color=BLACK, lw=1.2)
        axes.text(i, -0.35, f"{i}", ha="center", va="bottom", fontsize=9)
    for i in range(top, top + block):
        mine = start <= i < end
        look = dict(fc=color_of(group), gid="stored") if mine else dict(fc="white", hatch="/////", gid="left out")
        axes.add_patch(Rectangle((i, 1.5), 1, 0.8, ec=color_of(group), lw=0.6, **look))
    if top < start:
        axes.text((top + start) / 2, 2.4, "left out", ha="center", va="top", fontsize=9)
    axes.text(top - 0.4, 1.9, f"a tile of group {group}\nstarts at {top}", ha="right", va="center", fontsize=9)
    line = dict(arrowstyle="-", color=BLACK, lw=1)
    note = f"group {group} starts at {start}"
    axes.annotate(note, (start, 1.0), (start + 3, 2.75), fontsize=9, ha="left", va="center", arrowprops=line)
    _bare(axes, (first - 8, shown + 1), (3.1, -0.9))
    return figure
