"""Float8: its numbers, what rounding loses under several scales, outliers, sums of few bits, recorded rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from course_kernels.bench.rows import title_of
from gemm_course.figures.shapes import bare, canvas, canvas_grid, centred, percent, rectangle, ticks_at
from gemm_course.figures.style import BLACK, BLUE, CYCLE, FAINT, GREY, ORANGE, PINK, SKY, WRONG, drawing, ink_on
from gemm_course.lessons.canaries import numbers

LARGEST, SMALLEST_NORMAL, SMALLEST = 448.0, 2.0**-6, 2.0**-9
_FIELDS = (("sign", 1, GREY), ("exponent", 4, ORANGE), ("mantissa", 3, BLUE))
_LOST = mpl.colors.LinearSegmentedColormap.from_list("lost", ["#FFFFFF", "#FBE3B5", ORANGE, WRONG, "#5A1E00"])


def positive_values() -> torch.Tensor:
    """The 126 positive numbers of float8_e4m3fn, ascending."""
    return torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()


@drawing
def number_line(example: float = 13.0) -> Figure:
    """Draw the bits of one number, all positive numbers of float8_e4m3fn, and what rounding to them loses.

    Raises:
        ValueError: ``example`` is not a positive number of the type.
    """
    values = positive_values()
    if example not in values.tolist():
        raise ValueError(f"example must be a positive number of float8_e4m3fn, got {example}")
    figure, (bits, line, loss) = canvas_grid(4.7, 3, 1, height_ratios=(1, 0.75, 2.3))
    _draw_bits(bits, example)
    low, high = SMALLEST / 2, LARGEST * 4
    normal = values >= SMALLEST_NORMAL
    line.vlines(values[normal].tolist(), 0, 1, color=BLUE, lw=0.8, gid="normal")
    line.vlines(values[~normal].tolist(), 0, 1, color=WRONG, lw=1.4, gid="subnormal")
    line.set_title(f"its {len(values)} positive numbers: 8 for each power of two, from $2^{{-6}}$ to {LARGEST:g}")
    line.set_yticks([])
    line.spines["left"].set_visible(False)
    x = torch.logspace(np.log10(low), np.log10(high), 6000, dtype=torch.float64)
    rounded = x.clamp(max=LARGEST).float().to(torch.float8_e4m3fn).double()
    loss.plot(x.tolist(), ((rounded - x).abs() / x).tolist(), color=BLUE, lw=1, gid="loss")
    loss.axhline(1 / 16, color=GREY, lw=1, ls="--")
    loss.text(1.0, 1 / 16 + 0.02, "1/16", color=BLACK, fontsize=9, ha="center", va="bottom")
    for left, right, text in (
        (low, SMALLEST_NORMAL, "too small:\nfew numbers, then 0"),
        (SMALLEST_NORMAL, LARGEST, "the same relative error\nfor large and small"),
        (LARGEST, high, f"too large:\n{LARGEST:g}"),
    ):
        centred(loss, (left * right) ** 0.5, 0.78, text, fontsize=9)
    for axes in (line, loss):
        axes.set(xscale="log", xlim=(low, high))
        for edge in (SMALLEST_NORMAL, LARGEST):
            axes.axvline(edge, color=GREY, lw=0.8)
        ticks_at(axes.xaxis, [2.0**i for i in range(-9, 12, 3)], low, high)
        axes.xaxis.set_major_formatter(lambda value, _: f"$2^{{{round(np.log2(value))}}}$")
    line.tick_params(labelbottom=False)
    loss.set(ylim=(0, 1.02), ylabel="lost", xlabel="number")
    percent(loss.yaxis)
    return figure


def _draw_bits(axes, example: float) -> None:
    code = int(torch.tensor(example).to(torch.float8_e4m3fn).view(torch.uint8))
    at, text = 0, format(code, "08b")
    for name, count, color in _FIELDS:
        for bit in text[at : at + count]:
            rectangle(axes, at, 0, 1, 1, fc=color, ec="white", lw=1.5, gid=name)
            centred(axes, at + 0.5, 0.46, bit, fontsize=11, fontweight="bold", color=ink_on(color))
            at += 1
        centred(axes, at - count / 2, 1.3, name if count > 1 else "±", fontsize=9)
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent:
        formula = f"$= (1 + {mantissa}/8) \\cdot 2^{{{exponent} - 7}} = {example:g}$"
    else:
        formula = f"$= {mantissa}/8 \\cdot 2^{{-6}} = {example:g}$"
    axes.text(8.3, 0.46, formula, fontsize=12, va="center")
    bare(axes, (-0.2, 22), (-0.1, 1.7))


@drawing
def lost(x, attempts: Mapping[str, object], sizes: Sequence[int], block: int = 128) -> Figure:
    """Draw how much of each number an attempt to store it loses: white nothing, brown all of it.

    Args:
        x: (rows, columns) what was to be stored.
        attempts: name → (rows, columns) what was stored.
        sizes: rows of each group, for lines between groups.
        block: columns of a block; lines are where blocks end.
    """
    x = numbers(x)
    rows, columns = x.shape
    figure, panels = canvas_grid(4.4, 2, -(-len(attempts) // 2), sharex=True, sharey=True)
    for axes, (name, stored) in zip(panels, attempts.items()):
        share = relative_error(x, stored)
        image = axes.imshow(share, cmap=_LOST, vmin=0, vmax=1, aspect="auto", interpolation="nearest",
                            extent=(0, columns, rows, 0))  # fmt: skip
        for end in list(accumulate(sizes))[:-1]:
            axes.axhline(end, color=GREY, lw=0.8)
        for column in range(block, columns, block):
            axes.axvline(column, color=GREY, lw=0.6, ls=":")
        axes.set_title(f"{name}: {share.mean():.1%} lost on average", fontsize=10)
        axes.spines[["top", "right"]].set_visible(True)
        axes.set_xticks(range(0, columns + 1, block))
        axes.set_yticks([])
    ends = [0, *accumulate(sizes)]
    for axes in panels[:: panels.size // 2]:
        axes.set_yticks([(a + b) / 2 for a, b in pairwise(ends)], [f"group {g}" for g in range(len(sizes))])
        axes.tick_params(left=False)
    for axes in panels[panels.size // 2 :]:
        axes.set_xlabel("column")
    bar = figure.colorbar(image, ax=list(panels), shrink=0.8, aspect=22, pad=0.02)
    bar.set_label("|stored − x| / |x|", color=BLACK)
    bar.outline.set_visible(False)
    percent(bar.ax.yaxis)
    return figure


def relative_error(x, stored) -> np.ndarray:
    """|stored − x| / |x|, at most 1, and 0 where both are 0."""
    x, stored = numbers(x), numbers(stored)
    if x.shape != stored.shape:
        raise ValueError(f"attempts must have the shape of x, {x.shape}, got {stored.shape}")
    error = np.abs(stored - x)
    return np.minimum(np.divide(error, np.abs(x), out=(error > 0).astype(float), where=x != 0), 1.0)


@drawing
def outlier_sweep(sizes: Sequence[float], errors: Mapping[str, Sequence[float]], marks: Mapping[str, float]) -> Figure:
    """Draw the error of ordinary numbers beside one outlier of growing size, one curve per type.

    Args:
        sizes: of the outlier, in multiples of the ordinary numbers' median, ascending.
        errors: type → relative error at each size.
        marks: label → size, drawn as vertical lines.
    """
    figure, axes = canvas(2.9)
    for (name, found), color, place in zip(errors.items(), (BLUE, ORANGE), (0.62, 0.35)):
        axes.plot(sizes, found, color=color, lw=2, gid=name)
        at = next(i for i, error in enumerate(found) if error > place)
        axes.annotate(name, (sizes[at], found[at]), (8, -4), textcoords="offset points", fontsize=10, va="top")
    for name, size in marks.items():
        axes.axvline(size, color=GREY, lw=1, ls="--")
        axes.text(size, 1.04, name, ha="center", va="bottom", fontsize=9)
    axes.set(xscale="log", xlim=(sizes[0], sizes[-1]), ylim=(0, 1.02))
    axes.set(xlabel="outlier / median of the other numbers under the same scale", ylabel="error of the others")
    ticks_at(axes.xaxis, [10.0**i for i in range(9)], sizes[0], sizes[-1], "{:,.0f}")
    percent(axes.yaxis)
    return figure


@drawing
def accumulators(
    depths: Sequence[int], errors: Mapping[str, Sequence[float]], measured: Sequence[tuple[int, float]] = ()
) -> Figure:
    """Draw the error of sums of products over their length, one curve for each way to add.

    Args:
        depths: numbers of products, ascending.
        errors: way → relative error at each depth.
        measured: (depth, error) on a GPU, drawn as crosses.
    """
    figure, axes = canvas(3.0)
    for (name, found), color in zip(errors.items(), (WRONG, BLUE)):
        axes.plot(depths, found, "o-", color=color, lw=2, ms=5, gid=name)
        axes.text(depths[-1] * 1.12, found[-1], name, va="center", fontsize=9.5)
    if measured:
        axes.plot(*zip(*measured), "x", color=BLACK, ms=10, mew=2, ls="none", zorder=4, gid="measured")
        axes.text(0.02, 0.97, "× measured on an H200", transform=axes.transAxes, fontsize=9.5, va="top")
    every = [error for found in errors.values() for error in found] + [error for _, error in measured]
    low, high = min(every) / 2, max(every) * 2
    axes.set(xscale="log", yscale="log", xlim=(depths[0] / 1.15, depths[-1] * 5), ylim=(low, high))
    axes.set(xlabel="K, products in a sum", ylabel="lost of the sum")
    ticks_at(axes.xaxis, depths, depths[0], depths[-1], "{:,.0f}")
    ticks_at(axes.yaxis, [10.0**i for i in range(-8, 1)], low, high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:g} %")
    return figure


@drawing
def scale_shapes(rows: int, sizes: Sequence[int], columns: int, block: int = 128) -> Figure:
    """Draw which numbers share a scale, per tensor, group, row and block: neighbours of another colour do not.

    Args:
        rows, columns: of the tensor; ``sizes`` are the rows of its groups.
        block: columns of a block.
    """
    figure, panels = canvas_grid(1.75, 1, 4)
    starts = [0, *accumulate(sizes)]
    blocks = columns // block
    cells = {
        "tensor": [(0, 0, columns, rows)],
        "group": [(0, start, columns, size) for start, size in zip(starts, sizes)],
        "row": [(0, row, columns, 1) for row in range(rows)],
        f"1 × {block} block": [(b * block, row, block, 1) for row in range(rows) for b in range(blocks)],
    }
    for axes, (name, boxes) in zip(panels, cells.items()):
        for i, (x, y, width, height) in enumerate(boxes):
            shade = CYCLE[(i + (y if name.startswith("1") else 0)) % 2 * 4] if len(boxes) > 1 else CYCLE[0]
            rectangle(axes, x, y, width, height, fc=shade, ec="white", lw=0.5, gid=name)
        axes.set_title(f"one per {name}: {len(boxes)}", fontsize=10)
        bare(axes, (0, columns), (rows, 0))
        axes.add_patch(Rectangle((0, 0), columns, rows, fill=False, ec=FAINT))
    return figure


# Rates of the record "block_scaled": label, colour, and which of its names: the fastest of them is drawn.
_RATES = {
    "blocks (cute)": (BLUE, lambda name: name == "cute"),
    "blocks (triton)": (SKY, lambda name: name == "triton"),
    "blocks, torch": (PINK, lambda name: name == "torch"),
    "rows and columns (cute)": (ORANGE, lambda name: name.startswith("row-wise cute")),
    "one dense product, rows and columns": (FAINT, lambda name: name.startswith("dense row-wise")),
}


@drawing
def block_rates(results: Mapping) -> Figure:
    """Draw the rates of products with scales of blocks, beside those with scales of rows and columns.

    ``results`` is the record "block_scaled". A row's title is over its bars, which carry TFLOP/s.
    """
    rows = list(results["rows"].values())
    found = []
    for row in rows:
        best = {label: max((rate for name, rate in row["rate"].items() if wanted(name)), default=None)
                for label, (_, wanted) in _RATES.items()}  # fmt: skip
        found.append({label: rate for label, rate in best.items() if rate is not None})
    height = max(map(len, found)) + 2
    half = -(-len(rows) // 2)
    figure, panels = canvas_grid(0.16 * height * half + 1.2, 1, 2, sharex=True)
    for at, (row, rates) in enumerate(zip(rows, found)):
        axes, top = panels[at // half], at % half * height
        axes.text(0, top, title_of(row), fontsize=9, va="center")
        for y, (label, rate) in enumerate(rates.items(), top + 1):
            color = _RATES[label][0]
            axes.barh(y, rate, height=0.88, color=color, gid=label)
            axes.text(rate, y, f"{rate:,.0f} ", fontsize=9, ha="right", va="center_baseline", color=ink_on(color))
    for axes in panels:
        axes.set_ylim(height * half - 1, -1)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    labels = [label for label in _RATES if any(label in rates for rates in found)]
    figure.legend(
        [Patch(fc=_RATES[label][0]) for label in labels], labels, loc="outside upper left", ncols=3, fontsize=9
    )
    figure.supxlabel("TFLOP/s", fontsize=9)
    return figure
