"""A program's work: tables that lead to its matrices, tiles by program, and writes past the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from course_kernels.schedule import tile_counts, tiles
from gemm_course.figures.shapes import arrow, bare, canvas, canvas_grid, centred, rectangle
from gemm_course.figures.style import (
    BLACK,
    BLUE,
    DIM,
    FAINT,
    GREY,
    RED,
    SKY,
    WIDTH,
    WRONG,
    as_ink,
    color_of,
    drawing,
    ink_on,
)
from gemm_course.lessons.canaries import count_canary, written_states

_SMALLEST_LABEL = 16  # pixels: a tile with a shorter side has no number
_SMALLEST_STRIP = 18  # pixels: a boundary tile's part that is thinner has its number beside it


def _cell(ax, x, y, width, height, text, face="white", edge=GREY, **options):
    rectangle(ax, x, y, width, height, fc=face, ec=edge, lw=0.8)
    centred(ax, x + width / 2, y + height / 2, text, color=ink_on(face), **options)


def _arrow(ax, start, end, color, bend=0.0) -> None:
    arrow(ax, start, end, color, mutation_scale=13, connectionstyle=f"arc3,rad={bend}", shrinkB=2)


@drawing
def pointer_tables(problems: Sequence[Sequence[int]], strides: Sequence[Sequence[int]]) -> Figure:
    """Draw how a kernel gets from one argument to the A of a problem: argument, table row, matrix.

    The matrices are to scale among themselves. Arrows 1 and 2 are the two loads of problem 1.

    Args:
        problems: (M, N, K) of each problem, at least two.
        strides: (row, column) strides of each A, in elements.
    """
    count, follow = len(problems), 1
    height = max(count, 4) + 1.6
    fig, ax = canvas(0.45 * height)
    bare(ax, (0, 20), (height, 0))
    row = 1.5 + follow

    _cell(ax, 0.1, row, 2.2, 0.8, "a_ptrs", face=FAINT, family="monospace")
    centred(ax, 1.2, row - 0.45, "kernel argument", color=DIM)
    columns = (("a_ptrs", 3.9, 2.5), ("sizes\nM, N, K", 14.5, 3.0), ("strides\nof A", 17.6, 2.3))
    for title, x, width in columns:
        ax.text(x + width / 2, 1.4, title, ha="center", va="bottom", family="monospace", fontsize=9)
    for g, ((m, n, k), (row_stride, col_stride)) in enumerate(zip(problems, strides, strict=True)):
        texts = (f"address of A{g}", f"{m}, {n}, {k}", f"{row_stride}, {col_stride}")
        for (_, x, width), text in zip(columns, texts, strict=True):
            _cell(ax, x, 1.5 + g, width, 0.8, text, face=SKY if g == follow else "white", fontsize=9)
        for x in (3.7, 14.3):
            ax.text(x, 1.9 + g, str(g), ha="right", va="center", color=DIM, fontsize=9)
    centred(ax, 10.2, 0.35, "the matrices, wherever they were allocated", color=DIM)

    # One shelf, to scale: as large as the space between the tables allows.
    inch = 20 / WIDTH * 0.45  # x units per y unit on the page, so that a square matrix is drawn square
    gap, top = 0.45, 1.9
    unit = min(
        (6.2 - gap * (count - 1)) / (inch * max(sum(k for _, _, k in problems), 1)),
        (height - top - 0.6) / max(*(m for m, _, _ in problems), 1),
    )
    x = 7.2
    for g, (m, _, k) in enumerate(problems):
        width, tall = max(k * unit * inch, 0.12), max(m * unit, 0.06)
        rectangle(ax, x, top, width, tall, fc=color_of(g), ec="none")
        ax.text(x, top + tall + 0.3, f"A{g}", ha="left", va="center", fontsize=9, color=BLACK)
        if g == follow:
            _arrow(ax, (6.4, row + 0.1), (x + 0.05, top), RED, bend=-0.35)
            centred(ax, (6.6 + x) / 2, 0.95, "2", color=as_ink(RED), weight="bold", fontsize=12)
        x += width + gap
    _arrow(ax, (2.35, row + 0.4), (3.4, row + 0.4), RED)
    centred(ax, 2.85, row + 0.05, "1", color=as_ink(RED), weight="bold", fontsize=12)
    return fig


@drawing
def tile_strip(problems: Sequence[Sequence[int]], block: Sequence[int], programs: int) -> Figure:
    """Draw the tiles of all problems as one strip in their global order, each with its round-robin program.

    Tile numbers are under the strip, positions (row, column) in their problem above it. Arcs are program 0's steps.

    Args:
        problems: (M, N, K) of each problem.
        block: (BLOCK_M, BLOCK_N) of a tile.
    """
    found = tiles(problems, block[0], block[1])
    fig, ax = canvas(2.3)
    for tile in found:
        x, program = tile.index, tile.index % programs
        face = color_of(program)
        _cell(ax, x + 0.04, 0, 0.92, 1, str(program), face=face, edge="none", weight="bold", fontsize=12)
        centred(ax, x + 0.5, -0.22, f"{tile.m},{tile.n}", fontsize=9)
        centred(ax, x + 0.5, 1.2, str(tile.index), color=DIM, fontsize=9)
    passed = 0
    for problem, count in enumerate(tile_counts(problems, block[0], block[1])):
        if count:
            ax.plot([passed + 0.08, passed + count - 0.08], [-0.5, -0.5], color=BLACK, lw=1.2)
            centred(ax, passed + count / 2, -0.72, f"problem {problem}: {count} tiles")
        passed += count
    for x in range(0, passed - programs, programs):
        _arrow(ax, (x + 0.5, 1.4), (x + programs + 0.5, 1.4), color_of(0), bend=0.22)
        middle = x + programs / 2 + 0.5
        centred(ax, middle, 2.25, f"+{programs}", color=as_ink(color_of(0)), weight="bold")
    ax.text(-0.15, -0.22, "row,column", ha="right", va="center", fontsize=9)
    ax.text(-0.15, 0.5, "program", ha="right", va="center", fontsize=9)
    ax.text(-0.15, 1.2, "tile", ha="right", va="center", color=DIM, fontsize=9)
    bare(ax, (-1.3, max(passed, 1) + 0.1), (2.45, -0.95))
    return fig


@drawing
def owners(
    problems: Sequence[Sequence[int]],
    block: Sequence[int],
    programs_of: Sequence[int],
    *,
    group_m: int = 1,
    title: str = "",
    gap: float = 0.12,
) -> Figure:
    """Draw every C to scale, its tiles coloured by program; a boundary tile's dashed outline is the whole tile.

    Args:
        problems: (M, N, K) of each problem.
        block: (BLOCK_M, BLOCK_N) of a tile.
        programs_of: program of each tile, in global order; below 0 for a tile that no program computed.
        group_m: tile rows in a strip of the order.
        gap: space between two matrices, as a share of the widest.
    """
    found = tiles(problems, block[0], block[1], group_m)
    programs_of = [int(program) for program in programs_of]
    if len(programs_of) != len(found):
        raise ValueError(f"programs_of must have one entry for each of {len(found)} tiles, got {len(programs_of)}")
    widths = [max(-(-n // block[1]) * block[1], block[1]) for _, n, _ in problems]
    deepest = max(max(-(-m // block[0]) * block[0] for m, _, _ in problems), block[0])
    step = gap * max(widths) + 0.3 * block[1]
    lefts = np.cumsum([0.0, *(width + step for width in widths[:-1])])
    total = float(lefts[-1] + widths[-1])
    scale = min((WIDTH - 0.2) / total, 3.6 / deepest)  # inches per element
    fig, ax = canvas(deepest * scale + 0.75)
    wide = (WIDTH - 0.1) / scale
    bare(ax, (-0.01 * wide, 0.99 * wide), (deepest + 0.12 / scale, -0.35 / scale), equal=True)
    if title:
        ax.set_title(title)
    labelled = min(block[0], block[1]) * scale * 100 >= _SMALLEST_LABEL
    for tile, program in zip(found, programs_of, strict=True):
        x, y = lefts[tile.problem] + tile.n * block[1], tile.m * block[0]
        if (tile.rows, tile.cols) != (block[0], block[1]):
            rectangle(ax, x, y, block[1], block[0], fill=False, ec=GREY, ls=":")
        face = color_of(program) if program >= 0 else "white"
        rectangle(ax, x, y, tile.cols, tile.rows, fc=face, ec="white" if program >= 0 else WRONG)
        if labelled:
            text = str(program) if program >= 0 else "–"
            left, top, ink = _label_place(tile, block, scale * 100)
            centred(ax, x + left, y + top, text, color=ink or ink_on(face), fontsize=9)
    for problem, (m, n, _) in enumerate(problems):
        ax.text(lefts[problem], -0.07 / scale, f"C{problem} {m}×{n}", ha="left", va="bottom", fontsize=9, color=BLACK)
        if not m or not n:
            ax.text(lefts[problem], 0.12 / scale, "no tiles", ha="left", va="center", fontsize=9, color=DIM)
    return fig


def _label_place(tile, block: Sequence[int], pixels: float) -> tuple[float, float, str | None]:
    """Where in its tile a label fits, and its ink: on the tile's elements, or, where these are a thin strip, beside."""
    x, y = tile.cols / 2, tile.rows / 2
    if tile.rows < block[0] and tile.rows * pixels < _SMALLEST_STRIP:
        return x, (tile.rows + block[0]) / 2, BLACK
    if tile.cols < block[1] and tile.cols * pixels < _SMALLEST_STRIP:
        return (tile.cols + block[1]) / 2, y, BLACK
    return x, y, None


@drawing
def canary(
    buffers: dict[str, object], shape: Sequence[int], block: Sequence[int], origin: Sequence[int] = (0, 0)
) -> Figure:
    """Draw what kernels wrote into NaN-filled buffers around C (the black frame), one panel per buffer.

    The buffers are those of `count_canary`, by title. The tiles of ``block`` = (BLOCK_M, BLOCK_N) are dotted.
    """
    fig, axes = canvas_grid(4.0, 1, len(buffers))
    colors = ListedColormap([FAINT, BLUE, BLUE, "white", WRONG])  # of `written_states`
    for ax, (title, buffer) in zip(axes, buffers.items(), strict=True):
        states = written_states(buffer, shape, origin)
        counts = count_canary(buffer, shape, origin)
        ax.imshow(states, cmap=colors, vmin=-0.5, vmax=4.5, interpolation="nearest")
        top, left = origin[0] - 0.5, origin[1] - 0.5
        down, across = (-(-extent // size) for extent, size in zip(shape, block, strict=True))
        bottom, right = top + down * block[0], left + across * block[1]
        edges = [([left, right], [top + i * block[0]] * 2) for i in range(down + 1)]
        edges += [([left + j * block[1]] * 2, [top, bottom]) for j in range(across + 1)]
        for xs, ys in edges:
            ax.plot(xs, ys, color=BLACK, ls=":", lw=0.8)
        rectangle(ax, left, top, shape[1], shape[0], fill=False, ec=BLACK, lw=2)
        middle = (origin[1] + shape[1] / 2, origin[0] + shape[0] / 2)
        centred(ax, *middle, f"C\n{counts['written']} written", color="white")
        past = counts["overwritten"]
        note = f"{past} overwritten past the end" if past else "canary intact"
        ax.set_title(f"{title}: {note}", color=as_ink(WRONG) if past else BLACK)
        bare(ax, (-0.5, states.shape[1] - 0.5), (states.shape[0] - 0.5, -0.5))
    return fig
