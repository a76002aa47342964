"""Packed groups: one matrix instead of lists, boundary tiles, rows that a store overwrites, a sliding window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from gemm_course.figures.shapes import arrow, bare, canvas, canvas_grid, centred, rectangle
from gemm_course.figures.style import BLACK, DIM, FAINT, GREY, WRONG, color_of, drawing, ink_on
from gemm_course.lessons.canaries import numbers

_LEAST_LABELLED = 10  # rows of a group below which its name does not fit


def _bounds(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise([0, *accumulate(sizes)]))


def _last_tile(sizes: Sequence[int], group: int, block: int) -> tuple[int, int, int]:
    """Start and end of a group, and the first row of its last tile, which must cross the end."""
    start, end = _bounds(sizes)[group]
    if (end - start) % block == 0:
        raise ValueError(f"group must have a boundary tile, group {group} has {end - start} rows in tiles of {block}")
    return start, end, start + (end - start) // block * block


def _packed(axes, x: float, width: float, sizes: Sequence[int], tail: int, gid: str) -> None:
    """A packed matrix: a band of colour for each group, and the tail hatched."""
    for g, (start, end) in enumerate(_bounds(sizes)):
        rectangle(axes, x, start, width, end - start, fc=color_of(g), ec="white", gid=f"{gid} {g}")
        if end - start >= _LEAST_LABELLED:
            axes.text(x + width / 2, (start + end) / 2, f"group {g}", ha="center", va="center_baseline", fontsize=9,
                      color=ink_on(color_of(g)))  # fmt: skip
    if tail:
        used = sum(sizes)
        rectangle(axes, x, used, width, tail, fc="white", ec=GREY, hatch="////", gid=f"{gid} tail")
        centred(axes, x + width / 2, used + tail / 2, "tail", fontsize=9, bbox=dict(fc="white", ec="none", pad=1))


def _mark_descriptor(axes, x: float, y: float) -> None:
    rectangle(axes, x - 0.15, y, 0.5, 5, fc=BLACK, ec="white", lw=1.5, gid="descriptor", zorder=4)


@drawing
def lists_and_packed(sizes: Sequence[int], tail: int = 0) -> Figure:
    """Draw the operands of a list API beside packed ones, with a mark wherever a descriptor is needed.

    ``sizes`` has the rows of each group; ``tail`` rows follow the last group of the packed matrices.
    """
    figure, (left, right) = canvas_grid(4.0, 1, 2)
    groups, total, gap = len(sizes), sum(sizes) + tail, 6
    side = (total + gap) / groups - gap  # of a drawn weight: all weights are as high as A
    height = total + gap * groups
    at = 0.0
    for g, size in enumerate(sizes):
        color = color_of(g)
        for x, name in ((0, "A"), (7.4, "C")):
            rectangle(left, x, at, 2.6, size, fc=color, ec="white", gid=f"list {name} {g}")
            _mark_descriptor(left, x + 0.25, at + 1)
        y = g * (side + gap) * height / (total + gap)
        rectangle(left, 3.8, y, 2.4, side, fc=color, ec="white", gid=f"list B {g}")
        _mark_descriptor(left, 4.05, y + 1)
        at += size + gap
    left.set_title(f"lists: {3 * groups} descriptors (black)", fontsize=10)

    _packed(right, 0, 2.6, sizes, tail, "A")
    _packed(right, 7.4, 2.6, sizes, tail, "C")
    for g in reversed(range(groups)):
        x, y = 4.0 + 0.16 * g, total * 0.3 + 9 * (groups - 1 - g)
        rectangle(right, x, y, 1.5, 70, fc=color_of(g), ec="white", gid=f"B {g}")
    for x, y in ((0.3, 2), (4.3, total * 0.3 + 9 * (groups - 1) + 3), (7.7, 2)):
        _mark_descriptor(right, x, y)
    for end in accumulate(sizes):
        right.text(2.7, end, f"◂{end}", fontsize=9, va="center", color=BLACK, gid="end")
    right.set_title(f"packed: 3 descriptors and {groups} ends", fontsize=10)
    heads = {left: ((1.3, "A, a matrix\nper group"), (5.0, "B"), (8.7, "C")),
             right: ((1.3, f"A ({total}, K)"), (5.2, "B (G, K, N)"), (8.7, f"C ({total}, N)"))}  # fmt: skip
    for axes, names in heads.items():
        for x, name in names:
            axes.text(x, -6, name, ha="center", va="bottom", fontsize=9)
        bare(axes, (-0.2, 10.4), (height + 4, -34))
    return figure


@drawing
def boundary_tile(sizes: Sequence[int], tail: int, block: int, group: int) -> Figure:
    """Draw the last tile of a group: the rows of A that it reads, its own rows, the rows of C that it may store.

    Args:
        sizes, tail: rows of each group, and after the last one.
        block: rows of a tile, which must not divide the group's size.
        group: number of the group.
    """
    start, end, top = _last_tile(sizes, group, block)
    bottom, total = top + block, sum(sizes) + tail
    low, high = max(0, start - 10), min(total, bottom + 12)
    bands = [(g, *band) for g, band in enumerate(_bounds(sizes))] + [(-1, total - tail, total)]
    figure, axes = canvas(3.9)
    columns = {"A": 0.0, "tile": 4.2, "C": 8.4}
    for name in ("A", "C"):
        for g, first, last in bands:
            first, last = max(first, low), min(last, high)
            if last <= first:
                continue
            look = dict(fc=color_of(g), ec="white") if g >= 0 else dict(fc="white", ec=FAINT, hatch="////")
            rectangle(axes, columns[name], first, 2.6, last - first, gid=f"{name} {g}", **look)
            if last - first >= 3:
                axes.text(columns[name] + 1.3, (first + last) / 2, f"group {g}" if g >= 0 else "tail", ha="center",
                          va="center_baseline", fontsize=9,
                          color=ink_on(color_of(g)) if g >= 0 else BLACK)  # fmt: skip
    color = color_of(group)
    for first, last, look, gid in (
        (top, end, dict(fc=color, ec="white"), "kept"),
        (end, bottom, dict(fc="white", ec=color, hatch="////"), "wasted"),
    ):
        rectangle(axes, columns["tile"], first, 2.6, last - first, gid=gid, **look)
    rectangle(axes, columns["A"], top, 2.6, block, fill=False, ec=BLACK, lw=2.2, gid="read")
    rectangle(axes, columns["C"], top, 2.6, end - top, fill=False, ec=BLACK, lw=2.2, gid="stored")
    for x in (2.7, 6.9):
        middle = (top + end) / 2
        axes.annotate("", (x + 1.4, middle), (x, middle), arrowprops=dict(arrowstyle="-|>", color=BLACK, lw=1.5))
    centred(axes, columns["tile"] + 1.3, (end + bottom) / 2, f"{bottom - end} rows\nwasted", fontsize=9,
            bbox=dict(fc="white", ec="none", pad=1.5))  # fmt: skip
    centred(axes, columns["tile"] + 1.3, (top + end) / 2, f"{end - top} rows to keep", fontsize=9, color=ink_on(color))
    heads = {"A": f"A: {block} rows are read", "tile": f"one tile of group {group}", "C": f"C: {end - top} are stored"}
    for name, text in heads.items():
        axes.text(columns[name] + 1.3, low - 1.2, text, ha="center", va="bottom", fontsize=10)
    axes.plot([-0.1, 11.1], [end, end], color=BLACK, lw=1.2, ls="--", zorder=5)
    axes.text(11.15, end, f"end of\ngroup {group}", va="center", fontsize=9)
    axes.text(11.15, (end + bottom) / 2 + 2, "never written\nby this tile", va="center", fontsize=9, color=DIM)
    bare(axes, (-0.2, 13.0), (high + 0.5, low - 4))
    return figure


@drawing
def overwritten(sizes: Sequence[int], tail: int, attempts: Mapping[str, object], want) -> Figure:
    """Draw the errors of each attempt's result, beside the groups of its rows: the larger the error, the redder.

    Args:
        sizes, tail: rows of each group, and after the last one, which should be zeros.
        attempts: name → (total, N) result.
        want: (total, N), the right result.
    """
    want = numbers(want)
    figure, panels = canvas_grid(4.2, 1, len(attempts) + 1, width_ratios=[1] + [2.4] * len(attempts), sharey=True)
    _packed(panels[0], 0, 1, sizes, tail, "row")
    panels[0].set_title("rows of C", fontsize=10)
    bare(panels[0], (0, 1), (want.shape[0] + 0.5, -0.5))
    colors = mpl.colors.LinearSegmentedColormap.from_list("wrong", ["#FFFFFF", "#F2B48D", WRONG])
    for axes, (name, result) in zip(panels[1:], attempts.items()):
        result = numbers(result)
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
    figure.supxlabel("white: right; orange: wrong, and the darker the larger the error", fontsize=9)
    return figure


@drawing
def sliding_window(sizes: Sequence[int], group: int, block: int) -> Figure:
    """Draw how a fixed bound ends a store at a group's end: the packed matrix before and after it is moved there.

    Both are on one line of row coordinates, with the bound at the same place. ``block`` is the rows of a tile. It must
    not divide the group's size: the last tile is drawn.
    """
    bounds, total = _bounds(sizes), sum(sizes)
    start, end, top = _last_tile(sizes, group, block)
    bound = total + block + 30  # in the picture; 2^30 in the descriptor
    figure, axes = canvas(3.9)
    for y, shift in ((0.0, 0), (3.4, bound - end)):
        moved = shift > 0
        for g, (first, last) in enumerate(bounds):
            rectangle(
                axes,
                shift + first,
                y,
                last - first,
                0.9,
                fc=color_of(g),
                ec="white",
                gid=f"{'moved' if moved else 'memory'} {g}",
            )
            if last - first >= _LEAST_LABELLED:
                centred(axes, shift + (first + last) / 2, y + 0.45, f"{g}", color=ink_on(color_of(g)))
        cut = (
            dict(fc="white", ec=BLACK, hatch="////", gid="cut off") if moved else dict(fc=WRONG, ec=BLACK, gid="wrong")
        )
        rectangle(axes, shift + top, y + 1.0, end - top, 0.45, fc=color_of(group), ec=BLACK, gid="stored")
        rectangle(axes, shift + end, y + 1.0, top + block - end, 0.45, **cut)
        rest = f"{top + block - end} " + ("rows cut off" if moved else "of others")
        words = rest if moved else f"last tile of group {group}: {end - top} of its rows, {rest}"
        axes.text(shift + top + block + 2, y + 1.22, words, fontsize=9, va="center")
        marks = {start: f"$2^{{30}}\\!-{end - start}$", top: f"$2^{{30}}\\!-{end - top}$"} if moved else {
            0: "0", start: f"{start}", top: f"{top}", end: f"{end}", total: f"{total}"}  # fmt: skip
        for row, text in marks.items():
            axes.plot([shift + row] * 2, [y - 0.12, y], color=BLACK, lw=1)
            side = {top: "right", end: "left"}.get(row, "right" if moved else "center")
            axes.text(shift + row, y - 0.17, text, fontsize=9, ha=side, va="bottom")
    axes.plot([bound, bound], [-0.9, 5.2], color=BLACK, lw=2.2, zorder=5, gid="bound")
    axes.text(bound + 3, -0.45, "the bound: $2^{30}$, constant", fontsize=9, va="center")
    arrow(axes, (end, 2.35), (bound, 2.35), lw=1.2, mutation_scale=14)
    axes.plot([end, end], [1.45, 2.35], color=DIM, lw=1, ls=":")
    axes.text((end + bound) / 2, 2.28, f"moved by $2^{{30}} - {end}$", fontsize=9, ha="center", va="bottom")
    axes.text(-2, -0.75, "row coordinates of C in a plain descriptor", fontsize=9, va="bottom")
    axes.text(
        bound - end - 2, 3.85, "coordinates of the\nwindow of group " + str(group), fontsize=9, ha="right", va="center"
    )
    bare(axes, (-8, bound - end + total + 6), (5.3, -1.2))
    return figure


@drawing
def whole_units(sizes: Sequence[int], unit: int, group: int, block: int, what: str = "a tile") -> Figure:
    """Draw a ragged contiguous dimension: where a tile may start, and the elements that its store leaves out.

    Args:
        sizes, block: elements of each group along the dimension, and of a tile.
        unit: elements in 16 bytes.
        group: the group of the tile.
        what: name of the block that is drawn.
    """
    start, end = _bounds(sizes)[group]
    top = start // unit * unit
    shown = min(sum(sizes), top + block + unit)
    owners = [g for g, size in enumerate(sizes) for _ in range(size)]
    first = max(0, top - 2 * unit)
    figure, axes = canvas(1.9)
    for i in range(first, shown):
        rectangle(axes, i, 0, 1, 1, fc=color_of(owners[i]), ec="white", lw=0.6, gid=f"group {owners[i]}")
    for i in range(first, shown + 1, unit):
        axes.plot([i, i], [-0.28, 1.0], color=BLACK, lw=1.2)
        axes.text(i, -0.35, f"{i}", ha="center", va="bottom", fontsize=9)
    for i in range(top, top + block):
        mine = start <= i < end
        look = dict(fc=color_of(group), gid="stored") if mine else dict(fc="white", hatch="/////", gid="left out")
        rectangle(axes, i, 1.5, 1, 0.8, ec=color_of(group), lw=0.6, **look)
    if top < start:
        axes.text((top + start) / 2, 2.4, "left out", ha="center", va="top", fontsize=9)
    axes.text(top - 0.4, 1.9, f"{what} of group {group}\nstarts at {top}", ha="right", va="center", fontsize=9)
    if top < start:
        line = dict(arrowstyle="-", color=BLACK, lw=1)
        note = f"group {group} starts at {start}"
        axes.annotate(note, (start, 1.0), (start + 3, 2.75), fontsize=9, ha="left", va="center", arrowprops=line)
    bare(axes, (first - 8, shown + 1), (3.1, -0.9))
    return figure
