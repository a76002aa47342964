"""Who computes what: the tables that lead a program to its matrices, the walk over tiles, and writes past the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_kernels.schedule import tile_counts, tiles
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREY, RED, SKY, WIDTH, WRONG, color_of, ink_on, styled

__all__ = ["canary", "count_canary", "owners", "pointer_tables", "tile_strip"]

_SMALLEST_LABEL = 16  # pixels of a tile's side below which its number is left out


def _bare(ax, width: float, height: float) -> None:
    """An axis without frame whose y runs downwards, like the rows of a matrix."""
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()


def _cell(ax, x, y, width, height, text, face="white", edge=GREY, **options):
    ax.add_patch(Rectangle((x, y), width, height, facecolor=face, edgecolor=edge, linewidth=0.8))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=ink_on(face), **options)


def _arrow(ax, start, end, color, bend=0.0) -> None:
    style = f"arc3,rad={bend}"
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, color=color, linewidth=1.6,
                        connectionstyle=style, shrinkA=0, shrinkB=2)
    )  # fmt: skip


@styled()
def pointer_tables(
    problems: Sequence[Sequence[int]], strides: Sequence[Sequence[int]] | None = None, follow: int = 1
) -> Figure:
    """Draw how a kernel gets from one argument to the A of a problem: argument, table row, matrix.

    Args:
        problems: (M, N, K) of each problem, in elements.
        strides: (row, column) strides of each A, in elements; by default row-major without gaps.
        follow: the problem whose two loads are drawn as arrows 1 and 2.

    Returns:
        A figure; the matrices are to scale among themselves.

    Raises:
        ValueError: there is no problem `follow`.
    """
    problems = [tuple(problem) for problem in problems]
    if not 0 <= follow < len(problems):
        raise ValueError(f"follow must be from 0 to {len(problems) - 1}, got {follow}")
    strides = [(k, 1) for _, _, k in problems] if strides is None else [tuple(pair) for pair in strides]
    count = len(problems)
    height = max(count, 4) + 1.6
    fig = Figure(figsize=(WIDTH, 0.45 * height))
    ax = fig.add_subplot()
    _bare(ax, 20, height)
    row = 1.5 + follow

    _cell(ax, 0.1, row, 2.2, 0.8, "a_ptrs", face=FAINT, family="monospace")
    ax.text(1.2, row - 0.45, "kernel argument", ha="center", va="center", color=GREY)
    columns = (("a_ptrs", 3.9, 2.5), ("sizes\nM, N, K", 14.5, 3.0), ("strides\nof A", 17.6, 2.3))
    for title, x, width in columns:
        ax.text(x + width / 2, 1.4, title, ha="center", va="bottom", family="monospace", fontsize=9)
    for g, ((m, n, k), (row_stride, col_stride)) in enumerate(zip(problems, strides, strict=True)):
        texts = (f"address of A{g}", f"{m}, {n}, {k}", f"{row_stride}, {col_stride}")
        for (_, x, width), text in zip(columns, texts, strict=True):
            _cell(ax, x, 1.5 + g, width, 0.8, text, face=SKY if g == follow else "white", fontsize=9)
        for x in (3.7, 14.3):
            ax.text(x, 1.9 + g, str(g), ha="right", va="center", color=GREY, fontsize=9)
    ax.text(10.2, 0.35, "the matrices, wherever they were allocated", ha="center", va="center", color=GREY)

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
        ax.add_patch(Rectangle((x, top), width, tall, facecolor=color_of(g), edgecolor="none"))
        ax.text(x, top + tall + 0.3, f"A{g}", ha="left", va="center", fontsize=9, color=BLACK)
        if g == follow:
            _arrow(ax, (6.4, row + 0.1), (x + 0.05, top), RED, bend=-0.35)
            ax.text((6.6 + x) / 2, 0.95, "2", ha="center", va="center", color=RED, weight="bold", fontsize=12)
        x += width + gap
    _arrow(ax, (2.35, row + 0.4), (3.4, row + 0.4), RED)
    ax.text(2.85, row + 0.05, "1", ha="center", va="center", color=RED, weight="bold", fontsize=12)
    return fig


@styled()
def tile_strip(
    problems: Sequence[Sequence[int]], block: Sequence[int], programs: int, follow: int | None = 0
) -> Figure:
    """Draw the tiles of all problems as one strip in their global order, each with its round-robin program.

    Args:
        problems: (M, N, K) of each problem, in elements.
        block: (BLOCK_M, BLOCK_N) of a tile.
        programs: how many programs share the tiles.
        follow: the program whose steps are drawn as arcs; None draws none.

    Returns:
        A figure: tile numbers under the strip, positions (row, column) in their problem above it.
    """
    found = tiles(problems, block[0], block[1])
    fig = Figure(figsize=(WIDTH, 2.3))
    ax = fig.add_subplot()
    for tile in found:
        x, program = tile.index, tile.index % programs
        face = color_of(program)
        _cell(ax, x + 0.04, 0, 0.92, 1, str(program), face=face, edge="none", weight="bold", fontsize=12)
        ax.text(x + 0.5, -0.22, f"{tile.m},{tile.n}", ha="center", va="center", fontsize=9)
        ax.text(x + 0.5, 1.2, str(tile.index), ha="center", va="center", color=GREY, fontsize=9)
    passed = 0
    for problem, count in enumerate(tile_counts(problems, block[0], block[1])):
        if count:
            ax.plot([passed + 0.08, passed + count - 0.08], [-0.5, -0.5], color=BLACK, linewidth=1.2)
            ax.text(passed + count / 2, -0.72, f"problem {problem}: {count} tiles", ha="center", va="center")
        passed += count
    if follow is not None:
        for x in range(follow, passed - programs, programs):
            _arrow(ax, (x + 0.5, 1.4), (x + programs + 0.5, 1.4), color_of(follow), bend=0.22)
            middle = x + programs / 2 + 0.5
            ax.text(middle, 2.25, f"+{programs}", ha="center", va="center", color=color_of(follow), weight="bold")
    ax.text(-0.15, -0.22, "row,column", ha="right", va="center", fontsize=9)
    ax.text(-0.15, 0.5, "program", ha="right", va="center", fontsize=9)
    ax.text(-0.15, 1.2, "tile", ha="right", va="center", color=GREY, fontsize=9)
    ax.set(xlim=(-1.3, max(passed, 1) + 0.1), ylim=(2.45, -0.95))
    ax.set_axis_off()
    return fig


@styled()
def owners(
    problems: Sequence[Sequence[int]],
    block: Sequence[int],
    programs_of: Sequence[int],
    *,
    group_m: int = 1,
    title: str = "",
    gap: float = 0.12,
) -> Figure:
    """Draw every C to scale, its tiles coloured by the program that computed them.

    Args:
        problems: (M, N, K) of each problem, in elements.
        block: (BLOCK_M, BLOCK_N) of a tile.
        programs_of: program of each tile, in global order; below 0 for a tile that nobody computed.
        group_m: tile rows in a strip of the order.
        title: over the figure.
        gap: space between two matrices, as a share of the widest.

    Returns:
        A figure; a boundary tile's dashed outline is the whole tile of which only a part exists.

    Raises:
        ValueError: the number of programs given is not the number of tiles.
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
    fig = Figure(figsize=(WIDTH, deepest * scale + 0.75))
    ax = fig.add_subplot()
    wide = (WIDTH - 0.1) / scale
    ax.set(xlim=(-0.01 * wide, 0.99 * wide), ylim=(deepest + 0.12 / scale, -0.35 / scale), aspect="equal")
    ax.set_axis_off()
    if title:
        ax.set_title(title)
    labelled = min(block[0], block[1]) * scale * 100 >= _SMALLEST_LABEL
    for tile, program in zip(found, programs_of, strict=True):
        x, y = lefts[tile.problem] + tile.n * block[1], tile.m * block[0]
        if (tile.rows, tile.cols) != (block[0], block[1]):
            ax.add_patch(Rectangle((x, y), block[1], block[0], fill=False, edgecolor=GREY, linestyle=":"))
        face = color_of(program) if program >= 0 else "white"
        ax.add_patch(
            Rectangle((x, y), tile.cols, tile.rows, facecolor=face, edgecolor="white" if program >= 0 else WRONG)
        )
        if labelled and min(tile.rows, tile.cols) * scale * 100 >= _SMALLEST_LABEL / 2:
            text = str(program) if program >= 0 else "–"
            middle = (x + tile.cols / 2, y + tile.rows / 2)
            ax.text(*middle, text, ha="center", va="center", color=ink_on(face), fontsize=9)
    for problem, (m, n, _) in enumerate(problems):
        ax.text(lefts[problem], -0.07 / scale, f"C{problem} {m}×{n}", ha="left", va="bottom", fontsize=9, color=BLACK)
        if not m or not n:
            ax.text(lefts[problem], 0.12 / scale, "no tiles", ha="left", va="center", fontsize=9, color=GREY)
    return fig


def count_canary(buffer, shape: Sequence[int], origin: Sequence[int] = (0, 0)) -> dict[str, int]:
    """Count what happened to a NaN-filled buffer around a matrix C.

    Args:
        buffer: 2-D tensor or array, on the CPU, filled with NaN before the kernel ran.
        shape: (M, N) of C.
        origin: row and column of C's first element in the buffer.

    Returns:
        Elements by fate: "written" and "missing" inside C, "overwritten" and "intact" outside.
    """
    fate = _fates(buffer, shape, origin)
    return {name: int((fate == code).sum()) for name, code in _FATES.items()}


_FATES = {"intact": 0, "written": 1, "overwritten": 2, "missing": 3}


def _fates(buffer, shape, origin) -> np.ndarray:
    values = np.asarray(buffer, dtype=np.float64)
    rows, cols = (origin[0], origin[0] + shape[0]), (origin[1], origin[1] + shape[1])
    if values.ndim != 2 or min(origin) < 0 or rows[1] > values.shape[0] or cols[1] > values.shape[1]:
        raise ValueError(f"shape {tuple(shape)} at {tuple(origin)} must lie inside the buffer, which is {values.shape}")
    touched = ~np.isnan(values)
    fate = np.where(touched, _FATES["overwritten"], _FATES["intact"])
    inside = (slice(*rows), slice(*cols))
    fate[inside] = np.where(touched[inside], _FATES["written"], _FATES["missing"])
    return fate


@styled()
def canary(
    buffers: dict[str, object], shape: Sequence[int], block: Sequence[int], origin: Sequence[int] = (0, 0)
) -> Figure:
    """Draw what kernels wrote into NaN-filled buffers around C, one panel per buffer.

    Args:
        buffers: panel title → 2-D tensor or array on the CPU, filled with NaN before the kernel ran.
        shape: (M, N) of C.
        block: (BLOCK_M, BLOCK_N) of a tile.
        origin: row and column of C's first element in each buffer.

    Returns:
        A figure; the black frame is C, dotted lines are tile edges.

    Raises:
        ValueError: C does not lie inside a buffer.
    """
    fig = Figure(figsize=(WIDTH, 4.0))
    axes = fig.subplots(1, len(buffers), squeeze=False)[0]
    colors = ListedColormap([FAINT, BLUE, WRONG, "white"])
    for ax, (title, buffer) in zip(axes, buffers.items(), strict=True):
        fate = _fates(buffer, shape, origin)
        counts = count_canary(buffer, shape, origin)
        ax.imshow(fate, cmap=colors, vmin=-0.5, vmax=3.5, interpolation="nearest")
        top, left = origin[0] - 0.5, origin[1] - 0.5
        down, across = (-(-extent // size) for extent, size in zip(shape, block, strict=True))
        for i in range(down + 1):
            y = top + i * block[0]
            ax.plot([left, left + across * block[1]], [y, y], color=BLACK, linestyle=":", linewidth=0.8)
        for j in range(across + 1):
            x = left + j * block[1]
            ax.plot([x, x], [top, top + down * block[0]], color=BLACK, linestyle=":", linewidth=0.8)
        ax.add_patch(Rectangle((left, top), shape[1], shape[0], fill=False, edgecolor=BLACK, linewidth=2))
        ax.text(origin[1] + shape[1] / 2, origin[0] + shape[0] / 2, f"C\n{counts['written']} written",
                ha="center", va="center", color="white")  # fmt: skip
        past = counts["overwritten"]
        note = f"{past} overwritten past the end" if past else "canary intact"
        ax.set_title(f"{title}: {note}", color=WRONG if past else BLACK)
        ax.set_xlim(-0.5, fate.shape[1] - 0.5)
        ax.set_ylim(fate.shape[0] - 0.5, -0.5)
        ax.set_axis_off()
    return fig
