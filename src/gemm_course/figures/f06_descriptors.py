"""Tensor map descriptors: their fields, where they are made, where their bounds end, recorded times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.figure import Figure

from course_kernels.schedule import problem_starts
from gemm_course.figures.shapes import bare, canvas, canvas_grid, centred, name_rows, rectangle
from gemm_course.figures.style import (
    BLACK,
    BLUE,
    DIM,
    FAINT,
    GREY,
    ORANGE,
    SKY,
    WRONG,
    as_ink,
    color_of,
    drawing,
    ink_on,
)

DESCRIPTOR_BYTES = 128


@drawing
def descriptor(
    shape: tuple[int, int], leading: int, block: tuple[int, int], at: tuple[int, int], itemsize: int = 2
) -> Figure:
    """Draw a matrix in memory with one block fetched at its edge, and the fields of its descriptor.

    Args:
        shape, block: (rows, columns).
        leading: elements from one row to the next.
        at: (row, column) of the block's first element.
        itemsize: bytes of an element.
    """
    (rows, cols), (row, col), (height, width) = shape, at, block
    figure, (axes, card) = canvas_grid(3.6, 1, 2, width_ratios=(3, 2))
    rectangle(axes, 0, 0, leading, rows, fc="white", ec=FAINT, hatch="///", gid="gap")
    rectangle(axes, 0, 0, cols, rows, fc="#CDE8F7", ec=BLUE, gid="matrix")
    inside = (max(0, min(width, cols - col)), max(0, min(height, rows - row)))
    rectangle(axes, col, row, width, height, fc="white", ec=BLACK, lw=2, gid="block", zorder=3)
    rectangle(axes, col, row, *inside, fc=ORANGE, gid="inside", zorder=3)
    centred(axes, col + inside[0] / 2, row + inside[1] / 2, "copied", zorder=4)
    if inside[1] < height:
        centred(axes, col + width / 2, row + (height + inside[1]) / 2, "zeros", zorder=4)
    centred(axes, cols / 2, rows * 0.35, f"matrix, {rows} × {cols}")
    axes.text(0, -0.02 * rows, "base address", ha="left", va="bottom", color=BLUE)
    if leading > cols:
        axes.text(leading, -0.02 * rows, "gap", ha="right", va="bottom", color=DIM)
    bare(axes, (-1, max(leading, col + width) + 1), (max(rows, row + height) + 1, -0.1 * rows), equal=True)

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
    rectangle(card, 0, 0, 1, 1, fc="white", ec=BLACK, lw=1.5)
    card.set_title(f"one descriptor: {DESCRIPTOR_BYTES} bytes", color=BLACK)
    step = 1 / (len(lines) + 0.5)
    for i, (name, value, color) in enumerate(lines):
        y = 1 - (i + 0.75) * step
        rectangle(card, 0.03, y - 0.3 * step, 0.035, 0.6 * step, fc=color)
        card.text(0.1, y, name, va="center", weight="bold", fontsize=9)
        card.text(0.42, y, value, va="center", fontsize=9)
    row_note = f"and one instruction:  load block at ({row}, {col})"
    card.text(0.5, -0.06, row_note, ha="center", va="top", fontsize=9)
    bare(card, (-0.01, 1.01), (-0.12, 1.01))
    return figure


@drawing
def switches(walks: Mapping[str, Sequence[Sequence]], programs: int = 8) -> Figure:
    """Draw the first programs' tiles in order, coloured by problem, with a mark where descriptors are made.

    A walk has the tiles of each program, as `schedule.walk` returns them.
    """
    figure, panels = canvas_grid(0.3 * programs + 0.9, 1, len(walks), sharey=True)
    longest = max(len(own) for walk in walks.values() for own in walk[:programs])
    for axes, (name, walk) in zip(panels, walks.items()):
        for program, own in enumerate(walk[:programs]):
            for i, tile in enumerate(own):
                color = color_of(tile.problem)
                rectangle(axes, i + 0.06, program - 0.38, 0.88, 0.76, fc=color, gid=f"problem {tile.problem}")
                centred(axes, i + 0.55, program, f"{tile.problem}", color=ink_on(color), fontsize=9)
            for i in problem_starts(own):
                rectangle(axes, i - 0.05, program - 0.42, 0.13, 0.84, fc=BLACK, gid="made", zorder=3)
        axes.set_title(f"{name}: {sum(len(problem_starts(own)) for own in walk)} switches of all programs")
        axes.set(xlim=(-0.1, longest), ylim=(programs - 0.5, -0.5), xticks=[])
    figure.supxlabel(
        "tiles in the program's order; number and colour: problem; black bar: the program makes descriptors", fontsize=9
    )
    panels[0].set(ylabel="program", yticks=range(programs))
    return figure


@drawing
def reach(sizes: Sequence[int], block: int, wrong: Mapping[str, Iterable[bool]]) -> Figure:
    """Draw groups packed in one matrix, the tiles counted from each group's start, and the rows that became wrong.

    Args:
        sizes, block: rows of each group, and of a tile.
        wrong: name of an attempt → whether each of the packed rows is wrong.
    """
    figure, axes = canvas(3.8)
    total, start = sum(sizes), 0
    for group, size in enumerate(sizes):
        color = color_of(group)
        rectangle(axes, 0, start, 2, size, fc=color, gid=f"group {group}")
        centred(axes, 1, start + size / 2, f"group {group}", color=ink_on(color), fontsize=9)
        for tile in range(start, start + size, block):
            # Each group's tiles have a column of their own: those past its end would hide its neighbour's.
            x, end, past = 2.4 + 0.75 * group, min(tile + block, start + size), tile + block - start - size
            rectangle(axes, x, tile, 0.6, end - tile, fc=color, ec="white")
            if past > 0:
                rectangle(axes, x, end, 0.6, past, fc="white", ec=color, hatch="////", gid="past the end")
        start += size
    x = 2.4 + 0.75 * len(sizes) + 0.9
    heads = [(1, "packed rows"), (2.4 + 0.375 * len(sizes), "tiles of each group")]
    for name, rows in wrong.items():
        rows = list(rows)
        for row, bad in enumerate(rows):
            rectangle(axes, x, row, 2.4, 1, fc=WRONG if bad else FAINT, lw=0, gid="wrong" if bad else "right")
        heads.append((x + 1.2, f"{name}:\n{sum(rows)} wrong rows"))
        x += 3.2
    for place, text in heads:
        axes.text(place, -3, text, ha="center", va="bottom", fontsize=9)
    axes.axhline(total, color=BLACK, lw=1.5)
    axes.text(x - 0.8, total + 1, "end of the tensor, and of its descriptor", va="top", ha="right", fontsize=9)
    bare(axes, (-0.1, x), (total + block, -16))
    return figure


@drawing
def recorded_ratio(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Draw the time of the descriptor kernel over that of the pointer kernel, one bar per row of a record.

    A row maps the providers "tma" and "round_robin" to their "median_us", as in ``group_gemm.json``.
    """
    figure, axes = canvas(0.36 * len(rows) + 1.2)
    for y, us in enumerate(rows.values()):
        tma, pointer = us["tma"]["median_us"], us["round_robin"]["median_us"]
        change = tma / pointer - 1
        axes.barh(y, change, color=WRONG if change > 0 else BLUE, height=0.6)
        side, pad = ("left", 0.01) if change > 0 else ("right", -0.01)
        axes.text(change + pad, y, f"{tma:.1f} instead of {pointer:.1f} µs", ha=side, va="center", fontsize=9)
    axes.axvline(0, color=BLACK, lw=1)
    name_rows(axes, [name.replace(" x ", " × ").replace("^3", "³") for name in rows])
    axes.set_xlim(-0.65, 0.65)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.0%}")
    axes.set_xlabel("time of the descriptor kernel, compared with the pointer kernel")
    axes.set_title("descriptors are faster  ◂ │ ▸  slower", loc="center")
    return figure
