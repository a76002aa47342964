"""Figures of lesson 06: what a descriptor holds, what it saves, where it is made anew, and where its bounds end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gemm_course.figures.ptx import ADDRESS, COPY, MASK, MULTIPLY, PURPOSES, WAIT, inner_loop, purpose
from gemm_course.figures.style import (
    BLACK,
    BLUE,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    WIDTH,
    WRONG,
    color_of,
    ink_on,
    styled,
)

PURPOSE_COLORS = {MULTIPLY: GREEN, COPY: BLUE, WAIT: GREY, MASK: ORANGE, ADDRESS: PINK}
_PER_ROW = 28
DESCRIPTOR_BYTES = 128


@styled()
def descriptor(
    shape: tuple[int, int], leading: int, block: tuple[int, int], at: tuple[int, int], itemsize: int = 2
) -> Figure:
    """A matrix in memory with one block fetched at its edge, and the descriptor that says all of it.

    Args:
        shape: rows and columns of the matrix.
        leading: elements from one row to the next.
        block: rows and columns of a block.
        at: row and column at which the block starts.
        itemsize: bytes of an element.
    """
    (rows, cols), (row, col), (height, width) = shape, at, block
    figure, (axes, card) = plt.subplots(1, 2, figsize=(WIDTH, 3.6), width_ratios=(3, 2))
    plt.close(figure)
    axes.add_patch(Rectangle((0, 0), leading, rows, fc="white", ec=FAINT, hatch="///", gid="gap"))
    axes.add_patch(Rectangle((0, 0), cols, rows, fc="#CDE8F7", ec=BLUE, gid="matrix"))
    inside = (max(0, min(width, cols - col)), max(0, min(height, rows - row)))
    axes.add_patch(Rectangle((col, row), width, height, fc="white", ec=BLACK, lw=2, gid="block", zorder=3))
    axes.add_patch(Rectangle((col, row), *inside, fc=ORANGE, gid="inside", zorder=3))
    axes.text(col + inside[0] / 2, row + inside[1] / 2, "copied", ha="center", va="center", zorder=4)
    if inside[1] < height:
        axes.text(col + width / 2, row + (height + inside[1]) / 2, "zeros", ha="center", va="center", zorder=4)
    axes.text(cols / 2, rows * 0.35, f"matrix, {rows} × {cols}", ha="center", va="center")
    axes.text(0, -0.02 * rows, "base address", ha="left", va="bottom", color=BLUE)
    if leading > cols:
        axes.text(leading, -0.02 * rows, "gap", ha="right", va="bottom", color=GREY)
    axes.set_xlim(-1, max(leading, col + width) + 1)
    axes.set_ylim(max(rows, row + height) + 1, -0.1 * rows)
    axes.set_aspect("equal")
    axes.set_axis_off()

    lines = [
        ("base address", "16-byte aligned", BLUE),
        ("extents", f"{rows} × {cols}", SKY),
        ("leading stride", f"{leading} × {itemsize} = {leading * itemsize} bytes", GREY),
        ("last stride", "1, always: not even stored", GREY),
        ("block", f"{height} × {width}", ORANGE),
        ("element type", f"{itemsize} bytes", FAINT),
        ("fill outside", "zeros", FAINT),
        ("swizzle", "how it lies in shared memory", FAINT),
    ]
    card.add_patch(Rectangle((0, 0), 1, 1, fc="white", ec=BLACK, lw=1.5))
    card.set_title(f"one descriptor: {DESCRIPTOR_BYTES} bytes", color=BLACK)
    step = 1 / (len(lines) + 0.5)
    for i, (name, value, color) in enumerate(lines):
        y = 1 - (i + 0.75) * step
        card.add_patch(Rectangle((0.03, y - 0.3 * step), 0.035, 0.6 * step, fc=color))
        card.text(0.1, y, name, va="center", weight="bold", fontsize=9)
        card.text(0.42, y, value, va="center", fontsize=9)
    row_note = f"and one instruction:  load block at ({row}, {col})"
    card.text(0.5, -0.06, row_note, ha="center", va="top", fontsize=9)
    card.set_xlim(-0.01, 1.01)
    card.set_ylim(-0.12, 1.01)
    card.set_axis_off()
    return figure


@styled()
def loop_instructions(texts: Mapping[str, str]) -> Figure:
    """The loop over K of each kernel, one square per instruction in the order of the text, coloured by purpose.

    Args:
        texts: PTX by the kernel's name.
    """
    loops = {name: [purpose(line) for line in inner_loop(ptx)] for name, ptx in texts.items()}
    heights = [max(5, -(-len(loop) // _PER_ROW)) + 0.8 for loop in loops.values()]
    figure, panels = plt.subplots(
        len(loops), 1, figsize=(WIDTH, 0.3 * sum(heights) + 0.5), height_ratios=heights, squeeze=False
    )
    plt.close(figure)
    for axes, (name, loop), height in zip(panels[:, 0], loops.items(), heights):
        for i, kind in enumerate(loop):
            place = (i % _PER_ROW, i // _PER_ROW)
            axes.add_patch(Rectangle(place, 0.9, 0.9, fc=PURPOSE_COLORS[kind], gid=kind))
        y = 0.45
        for kind, words in PURPOSES.items():
            axes.text(_PER_ROW + 1, y, f"{loop.count(kind)}", ha="right", va="center", weight="bold",
                      color=PURPOSE_COLORS[kind], fontsize=9)  # fmt: skip
            axes.text(_PER_ROW + 1.3, y, words, va="center", color=PURPOSE_COLORS[kind], fontsize=9)
            y += 0.95
        axes.set_title(f"{name}: {len(loop)} instructions for one block of K")
        axes.set_xlim(0, _PER_ROW + 9)
        axes.set_ylim(height, 0)
        axes.set_aspect("equal", anchor="W")
        axes.set_axis_off()
    return figure


def visits(walk: Sequence[Sequence]) -> list[int]:
    """How often each program comes to a problem that its last tile was not in: as often makes it descriptors.

    Args:
        walk: tiles of each program, as ``schedule.walk`` gives them.
    """
    return [sum(i == 0 or tile.problem != own[i - 1].problem for i, tile in enumerate(own)) for own in walk]


@styled()
def switches(walks: Mapping[str, Sequence[Sequence]], programs: int = 8) -> Figure:
    """The first programs' tiles in order, coloured by problem, with a mark where descriptors are made.

    Args:
        walks: for each schedule's name, tiles of each program, as ``schedule.walk`` gives them.
        programs: how many of them to draw.
    """
    figure, panels = plt.subplots(1, len(walks), figsize=(WIDTH, 0.3 * programs + 0.9), sharey=True, squeeze=False)
    plt.close(figure)
    longest = max(len(own) for walk in walks.values() for own in walk[:programs])
    for axes, (name, walk) in zip(panels[0], walks.items()):
        for program, own in enumerate(walk[:programs]):
            for i, tile in enumerate(own):
                color = color_of(tile.problem)
                axes.add_patch(
                    Rectangle((i + 0.06, program - 0.38), 0.88, 0.76, fc=color, gid=f"problem {tile.problem}")
                )
                axes.text(
                    i + 0.55, program, f"{tile.problem}", ha="center", va="center", color=ink_on(color), fontsize=9
                )
                if i == 0 or tile.problem != own[i - 1].problem:
                    axes.add_patch(Rectangle((i - 0.05, program - 0.42), 0.13, 0.84, fc=BLACK, gid="made", zorder=3))
        axes.set_title(f"{name}: made {sum(visits(walk))} times in all")
        axes.set_xlim(-0.1, longest)
        axes.set_ylim(programs - 0.5, -0.5)
        axes.set_xticks([])
    figure.supxlabel("tiles in order; number and colour: their problem; black bar: descriptors are made", fontsize=9)
    panels[0, 0].set_ylabel("program")
    panels[0, 0].set_yticks(range(programs))
    return figure


@styled()
def reach(sizes: Sequence[int], block: int, wrong: Mapping[str, Iterable[bool]]) -> Figure:
    """Groups packed in one matrix, the tiles counted from each group's start, and which rows ended up wrong.

    Args:
        sizes: rows of each group.
        block: rows of a tile.
        wrong: by the name of an attempt, whether each of the packed rows is wrong.
    """
    figure, axes = plt.subplots(figsize=(WIDTH, 3.8))
    plt.close(figure)
    total, start = sum(sizes), 0
    for group, size in enumerate(sizes):
        color = color_of(group)
        axes.add_patch(Rectangle((0, start), 2, size, fc=color, gid=f"group {group}"))
        axes.text(1, start + size / 2, f"group {group}", ha="center", va="center", color=ink_on(color), fontsize=9)
        for tile in range(start, start + size, block):
            # Tiles that reach past their group are drawn a column further, so that neighbours do not hide each other.
            x, end = 2.4 + 0.75 * group, min(tile + block, start + size)
            axes.add_patch(Rectangle((x, tile), 0.6, end - tile, fc=color, ec="white"))
            if tile + block > end:
                over = Rectangle(
                    (x, end), 0.6, tile + block - end, fc="white", ec=color, hatch="////", gid="past the end"
                )
                axes.add_patch(over)
        start += size
    x = 2.4 + 0.75 * len(sizes) + 0.9
    heads = [(1, "packed rows"), (2.4 + 0.375 * len(sizes), "tiles of each group")]
    for name, rows in wrong.items():
        rows = list(rows)
        for row, bad in enumerate(rows):
            axes.add_patch(
                Rectangle((x, row), 2.4, 1, fc=WRONG if bad else FAINT, lw=0, gid="wrong" if bad else "right")
            )
        heads.append((x + 1.2, f"{name}:\n{sum(rows)} wrong rows"))
        x += 3.2
    for place, text in heads:
        axes.text(place, -3, text, ha="center", va="bottom", fontsize=9)
    axes.axhline(total, color=BLACK, lw=1.5)
    axes.text(x - 0.8, total + 1, "end of the tensor, and of its descriptor", va="top", ha="right", fontsize=9)
    axes.set_xlim(-0.1, x)
    axes.set_ylim(total + block, -16)
    axes.set_axis_off()
    return figure


@styled()
def fp8_rounding(low: float = 0.0, high: float = 36.0) -> Figure:
    """What float8_e4m3fn keeps of a number: its values on a line, and the relative error that rounding to it makes.

    Args:
        low, high: the range to draw, at least 0 and at most 448, the type's largest value.
    """
    if not 0 <= low < high <= 448:
        raise ValueError(f"low and high must be in 0 ≤ low < high ≤ 448, got {low} and {high}")
    bits = torch.arange(0, 127, dtype=torch.uint8)  # all from 0 to 448; 127 is NaN
    values = bits.view(torch.float8_e4m3fn).float()
    values = values[(values >= low) & (values <= high)]
    figure, (line, error) = plt.subplots(2, 1, figsize=(WIDTH, 3.4), sharex=True, height_ratios=(1, 2.4))
    plt.close(figure)
    line.vlines(values.tolist(), 0, 1, color=BLUE, lw=1.2, gid="values")
    line.set_title(f"the {len(values)} numbers from {low:g} to {high:g} that float8_e4m3fn has")
    line.set_yticks([])
    line.spines["left"].set_visible(False)
    x = torch.linspace(max(low, 0.25), high, 4000)
    for dtype, color, label in ((torch.float8_e4m3fn, BLUE, "float8_e4m3fn"), (torch.bfloat16, ORANGE, "bfloat16")):
        relative = ((x.to(dtype).float() - x).abs() / x * 100).tolist()
        error.plot(x.tolist(), relative, color=color, lw=1, label=label)
        error.text(high, max(relative[-400:]), f" {label}", color=color, va="center", fontsize=9)
    error.set_xlim(low, high * 1.16)
    error.set_ylim(0)
    error.set_ylabel("rounding error, %")
    error.set_xlabel("number")
    return figure


@styled()
def recorded_ratio(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Time of the descriptor kernel as a share of the pointer kernel's, one bar per row of a record.

    Args:
        rows: for each row's name, providers "tma" and "round_robin" with their "median_us", as in ``group_gemm.json``.
    """
    figure, axes = plt.subplots(figsize=(WIDTH * 0.8, 0.36 * len(rows) + 0.9))
    plt.close(figure)
    for y, us in enumerate(rows.values()):
        tma, pointer = us["tma"]["median_us"], us["round_robin"]["median_us"]
        change = tma / pointer - 1
        axes.barh(y, change, color=WRONG if change > 0 else BLUE, height=0.6)
        side, pad = ("left", 0.01) if change > 0 else ("right", -0.01)
        axes.text(change + pad, y, f"{tma:.1f} against {pointer:.1f} µs", ha=side, va="center", fontsize=9)
    axes.axvline(0, color=BLACK, lw=1)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlim(-0.65, 0.65)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title("on an H200, descriptors are faster  ◂ │ ▸  slower than pointers", loc="center")
    return figure
