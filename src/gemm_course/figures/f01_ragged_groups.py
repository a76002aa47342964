"""Groups to scale: padding, five descriptions of the same rows, a misread description, arithmetic intensity."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from gemm_course.figures.shapes import bare, canvas, canvas_grid, centred, rectangle
from gemm_course.figures.style import BLACK, BLUE, DIM, FAINT, GREY, ORANGE, RED, color_of, drawing, ink_on

_LABEL = DIM


@drawing
def padded_batches(batches: Mapping[str, Sequence[int]]) -> Figure:
    """Draw each batch's groups side by side, to one scale; the padding up to the largest group is hatched."""
    figure, axes = canvas_grid(3.1, 1, len(batches), sharey=True)
    for ax, (name, sizes) in zip(axes, batches.items()):
        largest, real = max(sizes), sum(sizes)
        positions = range(len(sizes))
        added = [largest - size for size in sizes]
        ax.bar(positions, sizes, width=0.9, color=[color_of(g) for g in positions])
        ax.bar(positions, added, width=0.9, bottom=sizes, color="none", edgecolor=GREY, hatch="////", lw=0.5)
        share = sum(added) / real if real else 0.0
        ax.set_title(f"{name}\n{real} rows + {sum(added)} padding: +{share:.0%}", fontsize=10)
        ax.set_xlabel("expert")
        ax.set_xticks(positions)
        ax.tick_params(length=0)
    axes[0].set_ylabel("rows")
    return figure


@drawing
def waste_curve(exponents: Sequence[float], waste: Sequence[float], groups: int) -> Figure:
    """Draw the share of rows that padding adds as a router goes from uniform to one-hot.

    Args:
        exponents: Zipf's exponents, increasing; 0 is uniform.
        waste: added rows over real rows at each exponent.
        groups: number of groups; a one-hot batch wastes ``groups - 1``.
    """
    figure, ax = canvas(3.0)
    ax.plot(exponents, waste, color=BLUE, lw=2, gid="waste")
    ax.fill_between(exponents, waste, color=BLUE, alpha=0.12, lw=0)
    limit = groups - 1
    ax.axhline(limit, color=ORANGE, lw=1.5, ls="--", gid="one-hot")
    ax.text(exponents[0], limit * 0.985, f" one-hot: {limit} padding rows for each real one", va="top", color=BLACK)
    for position, shift in ((0, (8, 25)), (len(exponents) // 3, (9, -12))):
        at = (exponents[position], waste[position])
        ax.plot(*at, "o", color=BLUE, ms=6, clip_on=False)
        name = "uniform" if exponents[position] == 0 else f"Zipf, exponent {exponents[position]:g}"
        ax.annotate(f"{name}: {at[1]:.2f}", at, shift, textcoords="offset points", va="center")
    ax.set(xlabel="Zipf exponent of the router", ylabel="padding rows / real rows")
    ax.set(xlim=(exponents[0], exponents[-1]), ylim=(0, limit * 1.06))
    return figure


def _strip(ax, y: float, owners: Sequence[int], gid: str) -> None:
    """One cell for each packed row, in its group's colour; a row of no group is hatched."""
    for row, g in enumerate(owners):
        look = dict(fc="white", ec=FAINT, hatch="////") if g < 0 else dict(fc=color_of(g), ec="white")
        rectangle(ax, row, y, 1, 0.8, lw=1, gid=f"{gid}{row}", **look)


@drawing
def descriptions(sizes: Sequence[int], tail: int) -> Figure:
    """Draw one packed matrix and the five descriptions of its groups, each number under what it counts or marks.

    A row of the matrix is a column of the picture. ``sizes`` has the rows of each group, ``tail`` is their number after
    the last one.
    """
    ends = list(itertools.accumulate(sizes))
    starts = [0, *ends[:-1]]
    owners = [g for g, size in enumerate(sizes) for _ in range(size)] + [-1] * tail
    total = len(owners)
    figure, ax = canvas(3.9)
    bare(ax, (-total * 0.22, total + 0.6), (-6.2, 1.9))
    _strip(ax, 0.0, owners, "row")
    for g, (start, size) in enumerate(zip(starts, sizes)):
        note = f"group {g}" if size else f"group {g}: empty"
        ax.text(start + size / 2, 0.95 if size else 1.4, note, ha="center", va="bottom", fontsize=9, color=BLACK)
        if not size:
            ax.plot([start, start], [0, 1.4], color=GREY, lw=1)
    if tail:
        ax.text(total - tail / 2, 0.95, "tail", ha="center", va="bottom", fontsize=9, color=_LABEL)
    for boundary in {0, *ends}:
        ax.plot([boundary, boundary], [-4.05, 0], color=FAINT, lw=1, zorder=0)
    lines = {
        "row_groups": [(row + 0.5, g, g) for row, g in enumerate(owners)],
        "sizes": [(start + size / 2, size, g) for g, (start, size) in enumerate(zip(starts, sizes))],
        "ends": [(end, end, g) for g, end in enumerate(ends)],
        "offsets": [(0, 0, -1), *((end, end, g) for g, end in enumerate(ends))],
    }
    shapes = {"row_groups": "total_m", "sizes": "G", "ends": "G", "offsets": "G + 1", "masked": "G"}
    for y, name in zip((-0.6, -1.5, -2.4, -3.3), lines):
        ax.text(-0.7, y, f"{name} ({shapes[name]})", ha="right", va="center", fontweight="bold", color=BLACK)
        _numbers(ax, y, lines[name])
    _draw_masked(ax, sizes, total)
    return figure


def _numbers(ax, y: float, entries: Sequence[tuple[float, int, int]]) -> None:
    """Numbers of one description; those of the same place touch each other there, in order."""
    for x, same in itertools.groupby(entries, key=lambda entry: entry[0]):
        together = list(same)
        for position, (_, value, g) in enumerate(together):
            shift = (position - (len(together) - 1) / 2) * 0.4
            box = dict(boxstyle="round,pad=0.18", fc="white" if g < 0 else color_of(g), ec=FAINT if g < 0 else "none")
            ink = BLACK if g < 0 else ink_on(color_of(g))
            centred(ax, x + shift, y, str(value), fontsize=9, color=ink, bbox=box)


def _draw_masked(ax, sizes: Sequence[int], total: int) -> None:
    """The padded tensor of masked_m: as many slots a group as the largest has rows, the first of them used."""
    max_m = max(sizes)
    slots = max_m * len(sizes) + 0.6 * (len(sizes) - 1)
    scale = total / slots
    ax.text(-0.7, -5.4, "masked (G)", ha="right", va="center", fontweight="bold", color=BLACK)
    x, entries = 0.0, []
    for g, size in enumerate(sizes):
        for slot in range(max_m):
            look = dict(fc=color_of(g), ec="white") if slot < size else dict(fc="white", ec=GREY, hatch="////")
            rectangle(ax, x + slot * scale, -5.2, scale, 0.6, lw=0.7, gid=f"slot{g}.{slot}", **look)
        entries.append((x + max_m * scale / 2, size, g))
        x += (max_m + 0.6) * scale
    _numbers(ax, -5.75, entries)


@drawing
def misread(owners: Sequence[int], taken: Sequence[int]) -> Figure:
    """Draw each row's group above the group that a wrong description gives it to; wrong rows are framed.

    Args:
        owners, taken: the right group of each row, and the wrong one; -1 for none.
    """
    figure, ax = canvas(1.9)
    bare(ax, (-len(owners) * 0.2, len(owners) + 0.2), (-1.0, 2.2))
    for y, groups, label, gid in ((1.2, owners, "belongs to", "row"), (0.0, taken, "multiplied with", "taken")):
        ax.text(-0.3, y + 0.4, label, ha="right", va="center", fontweight="bold", color=BLACK)
        _strip(ax, y, groups, gid)
        start = 0
        for g, run in itertools.groupby(groups):
            length = len(list(run))
            text = "none" if g < 0 else str(g)
            ink = _LABEL if g < 0 else ink_on(color_of(g))
            # In front of the lines between cells, and large enough to cover the one that it is on.
            box = dict(boxstyle="square,pad=0.35", fc="white" if g < 0 else color_of(g), ec="none")
            centred(ax, start + length / 2, y + 0.4, text, color=ink, bbox=box, zorder=4)
            start += length
    wrong = [row for row, (right, got) in enumerate(zip(owners, taken)) if right != got]
    for row in wrong:
        rectangle(ax, row, 0, 1, 0.8, fc="none", ec=RED, lw=1.5, gid="wrong")
    note = f"{len(wrong)} of {len(owners)} rows with the wrong expert's weights, or with none"
    ax.text(0, -0.5, note, ha="left", va="center", color=BLACK)
    return figure


@drawing
def intensity_curve(rows: Sequence[int], intensity: Sequence[float], ridge: float, marks: Sequence[int]) -> Figure:
    """Draw the arithmetic intensity of one expert over its number of rows, and where arithmetic becomes the limit.

    Args:
        rows, intensity: increasing numbers of rows, and FLOP per byte at each.
        ridge: a GPU's peak FLOP per byte.
        marks: entries of ``rows`` to name.
    """
    figure, ax = canvas(3.2)
    ax.loglog(rows, intensity, color=BLUE, lw=2, base=2, gid="intensity")
    low, high = min(intensity) / 2.5, max(*intensity, ridge) * 2.2
    ax.axhspan(low, ridge, color=ORANGE, alpha=0.10, lw=0)
    ax.axhline(ridge, color=ORANGE, lw=1.5, ls="--", gid="ridge")
    ax.text(rows[0], ridge * 1.15, f"above {ridge:.0f} FLOP/byte: arithmetic is the limit", va="bottom", color=BLACK)
    ax.text(rows[0], ridge / 1.15, "below: memory is the limit", va="top", color=BLACK)
    for mark in marks:
        at = (mark, intensity[list(rows).index(mark)])
        ax.plot(*at, "o", color=BLUE, ms=6, gid="mark")
        text = f"{mark:,} row{'s' if mark != 1 else ''}: {at[1]:.0f}"
        shift, side = ((0, 9), "right") if mark == rows[-1] else ((9, -11), "left")
        ax.annotate(text, at, shift, textcoords="offset points", ha=side)
    ax.set_xticks(marks, [f"{tick:,}" for tick in marks])
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    ax.minorticks_off()
    ax.set(ylim=(low, high), xlabel="rows of the expert", ylabel="FLOP / byte")
    return figure
