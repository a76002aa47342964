"""Training an MoE layer: its products forward and backward, gradients of experts without tokens, who sums a bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from gemm_course.figures.shapes import arrow, bare, canvas, canvas_grid, centred, rectangle
from gemm_course.figures.style import BLACK, BLUE, DIM, FAINT, GREY, ORANGE, WRONG, as_ink, color_of, drawing, ink_on
from gemm_course.lessons.canaries import numbers

_MODES = {"m": BLUE, "k": ORANGE}
_RIGHT = "#CDE8F7"


def _bands(axes, x: float, y: float, width: float, height: float, sizes: Sequence[int], gid: str) -> None:
    """A packed matrix with (x, y) as its upper left corner: a band of colour for each expert, to scale."""
    unit, at = height / sum(sizes), 0.0
    for g, size in enumerate(sizes):
        if size:
            rectangle(axes, x, y + at * unit, width, size * unit, fc=color_of(g), ec="white", gid=f"{gid} {g}")
        at += size


def _columns(axes, x: float, y: float, width: float, height: float, sizes: Sequence[int], gid: str) -> None:
    """A transposed packed matrix: the experts' bands are columns."""
    unit, at = width / sum(sizes), 0.0
    for g, size in enumerate(sizes):
        if size:
            rectangle(axes, x + at * unit, y, size * unit, height, fc=color_of(g), ec="white", gid=f"{gid} {g}")
        at += size


def _stack(axes, x: float, y: float, width: float, height: float, experts, gid: str, step: float = 0.16) -> None:
    """A matrix for each of the listed experts, the first in front; those that `experts` maps to False are hatched."""
    count = len(experts)
    for i, g in reversed(list(enumerate(experts))):
        box = (x + i * step, y + (count - 1 - i) * step, width, height)
        look = dict(fc=color_of(g), ec="white") if experts[g] else dict(fc="white", ec=color_of(g), hatch="////")
        rectangle(axes, *box, gid=f"{gid} {g}", **look)


def _badge(axes, x: float, y: float, mode: str) -> None:
    centred(axes, x, y, f"mode {mode}", fontsize=9, fontweight="bold", color=ink_on(_MODES[mode]),
            bbox=dict(boxstyle="round,pad=0.25", fc=_MODES[mode], ec="none"), gid="mode")  # fmt: skip


@drawing
def layer(sizes: Sequence[int]) -> Figure:
    """Draw the six grouped products of a layer of two weights: two forward, and two gradients for each weight.

    Forward runs left to right in the upper row, backward right to left in the lower one. The matrices between two
    columns are gradients of weights: each is a product of the two matrices that its arrows come from.

    Args:
        sizes: rows of each expert; an expert of none has a hatched gradient.
    """
    figure, axes = canvas(4.7)
    upper, lower, high = 0.0, 4.4, 1.7
    columns = {"x": (0.3, 0.9), "z": (5.6, 1.2), "h": (8.6, 1.2), "y": (13.9, 0.9)}
    for name, (x, width) in columns.items():
        for prefix, top in (("", upper), ("d", lower)):
            _bands(axes, x, top, width, high, sizes, prefix + name)
            label = (x + width / 2, top - 0.15) if not prefix else (x + width / 2, top + high + 0.15)
            centred(axes, *label, prefix + name, fontsize=12, va="top" if prefix else "bottom")
    every = dict.fromkeys(range(len(sizes)), True)
    for number, left, right in ((1, "x", "z"), (2, "h", "y")):
        start, end = columns[left][0] + columns[left][1] + 0.15, columns[right][0] - 0.15
        middle = (start + end) / 2
        for top, (tail, head), name in ((upper, (start, end), f"W{number}"), (lower, (end, start), f"W{number}ᵀ")):
            y = top + high / 2
            arrow(axes, (tail, y), (head, y), BLACK, mutation_scale=16)
            _stack(axes, middle - 0.75, y - 0.6, 0.75, 0.55, every, name, 0.09)
            axes.text(middle + 0.72, y - 0.3, name, fontsize=10, va="center")
            _badge(axes, middle, y + 0.42, "m")
        top = (upper + high + lower) / 2
        arrow(axes, (start - 0.1, upper + high + 0.1), (middle - 0.85, top - 0.2), ORANGE, mutation_scale=16)
        arrow(axes, (end + 0.1, lower - 0.1), (middle + 0.7, top + 0.25), ORANGE, mutation_scale=16)
        _stack(axes, middle - 0.75, top - 0.55, 0.75, 0.55, {g: size > 0 for g, size in enumerate(sizes)},
               f"dW{number}", 0.16)  # fmt: skip
        axes.text(middle + 0.72, top - 0.42, f"dW{number}", fontsize=12, va="center")
        _badge(axes, middle, top + 0.9, "k")
    ends = [columns["z"][0] + 1.3, columns["h"][0] - 0.1]
    for top, (start, end), text in ((upper, ends, "relu"), (lower, ends[::-1], "where z > 0")):
        arrow(axes, (start, top + high / 2), (end, top + high / 2), GREY, mutation_scale=16)
        centred(axes, sum(ends) / 2, top + high / 2 + 0.3, text, fontsize=9, color=DIM)
    axes.text(-0.3, upper + high / 2, "forward", rotation=90, ha="center", va="center", fontsize=11)
    axes.text(-0.3, lower + high / 2, "backward", rotation=90, ha="center", va="center", fontsize=11)
    note = "a colour is an expert\nhatched: an expert without tokens"
    centred(
        axes, (columns["z"][0] + columns["h"][0] + 1.2) / 2, (upper + high + lower) / 2, note, fontsize=9, color=DIM
    )
    bare(axes, (-0.6, 15.0), (lower + high + 0.75, upper - 0.7))
    return figure


@drawing
def products(sizes: Sequence[int]) -> Figure:
    """Draw one linear layer's four products: its result, and the gradients of its input, its weight and its bias.

    ``sizes`` has the rows of each expert; the gradient of an expert without rows is hatched.
    """
    figure, panels = canvas_grid(4.3, 2, 2)
    total, narrow, wide, weight = 2.2, 0.9, 1.3, 0.8
    filled, every = {g: size > 0 for g, size in enumerate(sizes)}, dict.fromkeys(range(len(sizes)), True)
    step = 0.16
    spread = step * (len(sizes) - 1)

    def packed(axes, x, columns, name):
        _bands(axes, x, -total / 2, columns, total, sizes, name)
        return x + columns

    def turned(axes, x, rows, name):
        _columns(axes, x, -rows / 2, total, rows, sizes, name)
        return x + total

    def stack(axes, x, rows, columns, name, experts=every):
        _stack(axes, x, -(rows + spread) / 2, columns, rows, experts, name, step)
        return x + columns + spread

    def sums(axes, x, name):
        for g, used in filled.items():
            look = dict(fc=color_of(g), ec="white") if used else dict(fc="white", ec=color_of(g), hatch="////")
            rectangle(axes, x, -0.7 + 0.36 * g, wide, 0.28, gid=f"{name} {g}", **look)
        return x + wide

    plans = {
        ("y = x · W", "m", "(tokens, N)"): [
            (packed, narrow, "x"), "×", (stack, weight, wide, "W"), "=", (packed, wide, "y"),
        ],
        ("dx = dy · Wᵀ", "m", "(tokens, K)"): [
            (packed, wide, "dy"), "×", (stack, wide, weight, "Wᵀ"), "=", (packed, narrow, "dx"),
        ],
        ("dW = xᵀ · dy", "k", "(experts, K, N)"): [
            (turned, narrow, "xᵀ"), "×", (packed, wide, "dy"), "=", (stack, weight, wide, "dW", filled),
        ],
        ("db = column sums of dy", None, "(experts, N)"): [(packed, wide, "dy"), "→", (sums, "db")],
    }  # fmt: skip
    for axes, ((title, mode, shape), parts) in zip(panels, plans.items()):
        x = 0.0
        for part in parts:
            if isinstance(part, str):
                centred(axes, x + 0.4, 0, part, fontsize=15)
                x += 0.8
                continue
            draw, *arguments = part
            name = next(each for each in arguments if isinstance(each, str))
            right = draw(axes, x, *arguments)
            axes.text((x + right) / 2, 1.3, name, ha="center", va="top", fontsize=10)
            x = right
        axes.text(x + 0.25, 0, shape, fontsize=9, color=DIM, va="center")
        axes.set_title(title, fontsize=11)
        if mode:
            _badge(axes, 4.6, -1.72, mode)
        bare(axes, (-0.2, 8.4), (1.55, -1.55), equal=True)
    return figure


@drawing
def expert_matrices(attempts: Mapping[str, object], want, sizes: Sequence[int]) -> Figure:
    """Draw a matrix for each expert and attempt, coloured by what is in it.

    Blue is right, grey is right and all zeros, orange is a wrong number, red is NaN; the worst element decides.

    Args:
        attempts: name → (experts, K, N) result.
        want: (experts, K, N), the right result.
        sizes: rows of each expert.
    """
    want = numbers(want)
    colors = ("white", FAINT, _RIGHT, ORANGE, WRONG)
    figure, panels = canvas_grid(0.95 * len(attempts) + 0.8, len(attempts), len(sizes))
    rows = panels.reshape(len(attempts), len(sizes))
    for line, (name, result) in zip(rows, attempts.items()):
        values = numbers(result)
        if values.shape != want.shape:
            raise ValueError(f"attempts must have results of shape {want.shape}, {name!r} has {values.shape}")
        for g, axes in enumerate(line):
            zeros = not want[g].any()
            state = np.where(np.isnan(values[g]), 4, np.where(values[g] != want[g], 3, 1 if zeros else 2))
            worst = state.max()
            rectangle(axes, 0, 0, 1, 1, fc=colors[worst], ec="white", gid=f"{name} {g} {worst}")
            word = ("right", "0, right", "right", "wrong", "NaN")[worst]
            weight = "bold" if worst > 2 else "normal"
            centred(axes, 0.5, 0.5, word, fontsize=10, color=ink_on(colors[worst]), fontweight=weight)
            bare(axes, (0, 1), (1, 0))
        line[0].set_title(" ", fontsize=10)  # room for the name, which is wider than a panel
        line[0].text(0, -0.08, name, fontsize=10, ha="left", va="bottom", in_layout=False)
    for g, (axes, size) in enumerate(zip(rows[-1], sizes)):
        axes.text(0.5, 1.08, f"expert {g}\n{size} token{'' if size == 1 else 's'}", fontsize=9, ha="center", va="top",
                  color=BLACK if size else as_ink(WRONG))  # fmt: skip
    return figure


@drawing
def one_writer(tiles: tuple[int, int], results: Sequence[float], alone: float) -> Figure:
    """Draw which tiles of one expert's dW may sum dy's columns, beside sums of the same numbers in many orders.

    Args:
        tiles: (rows, columns) of tiles of dW.
        results: one column's sum, once for each order in which atomic additions may arrive.
        alone: the sum that one writer finds.
    """
    figure, (left, right) = canvas_grid(3.4, 1, 2, width_ratios=(1.25, 1))
    rows, columns = tiles
    top = 1.0
    rectangle(left, 0, -top - 0.5, columns, top, fc=color_of(0), ec="white", gid="dy")
    centred(left, columns / 2, -top / 2 - 0.5, "dy: this expert's rows", color="white", fontsize=10)
    for m in range(rows):
        for n in range(columns):
            writes = m == 0
            rectangle(left, n, m, 1, 1, fc=ORANGE if writes else FAINT, ec="white", gid=f"tile {writes}")
            text = "also sums" if writes else ""
            centred(left, n + 0.5, m + 0.5, text, fontsize=9)
    for n in range(columns):
        arrow(left, (n + 0.5, -0.5), (n + 0.5, 0.05), BLACK)
        rectangle(left, n + 0.03, rows + 0.55, 0.94, 0.3, fc=ORANGE, ec="white", gid="db")
    left.text(columns + 0.15, 0.5, "tile row 0:\none writer for each\ncolumn of db", va="center", fontsize=9)
    left.text(columns + 0.15, (1 + rows) / 2, "other tile rows read\nthe same dy and\nleave db alone", va="center",
              fontsize=9, color=DIM)  # fmt: skip
    left.text(columns + 0.15, rows + 0.7, "db", va="center", fontsize=10)
    left.set_title("tiles of one expert's dW", fontsize=10)
    bare(left, (-0.1, columns + 2.3), (rows + 1.0, -top - 0.7))

    right.plot(range(1, len(results) + 1), [each - alone for each in results], "o", ms=4, color=WRONG, gid="atomic")
    right.axhline(0, color=BLUE, lw=2, gid="alone")
    right.set(xlabel="run", xlim=(0, len(results) + 1), ylabel="difference from one writer")
    right.set_title(
        f"dots: atomics, {len(set(results))} answers in {len(results)} runs", fontsize=10, color=as_ink(WRONG), pad=20
    )
    right.text(1.0, 1.02, "line: one writer, every run", color=BLUE, fontsize=9, ha="right", va="bottom",
               transform=right.transAxes)  # fmt: skip
    return figure
