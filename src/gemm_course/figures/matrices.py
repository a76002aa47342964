"""Matrices in memory: a tile with its offsets and masks, a tile's share of a product, errors, and what was written."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gemm_course.figures.shapes import bare, centred, rectangle
from gemm_course.figures.style import (
    BLACK,
    BLUE,
    DIM,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    WIDTH,
    WRONG,
    as_ink,
    drawing,
)
from gemm_course.lessons.canaries import OUTSIDE, STATES, numbers, write_states

# The colours of `lessons.canaries.STATES`.
STATE_COLORS = ("#F4F4F4", SKY, ORANGE, GREY, WRONG)
# An odd number of colours, so that the middle one, an error of 0, is pure white.
_ERROR_MAP = mpl.colors.LinearSegmentedColormap.from_list("error", [BLUE, "#9CCBE8", "#FFFFFF", "#F2C48D", RED], N=257)
_MAX_CELLS = 400
_OUTSIDE = "#F9DCC9"  # in a block, but outside of the matrix


@drawing
def tile_offsets(
    shape: Sequence[int],
    block: Sequence[int],
    at: Sequence[int] = (0, 0),
    strides: Sequence[int] | None = None,
    *,
    name: str = "A",
) -> Figure:
    """Draw every element of a small matrix with its offset in memory, and the tile that a program loads from it.

    The tile's elements are blue, those that its mask must switch off red, gaps between rows or columns pale.

    Args:
        shape, block: (rows, columns) of the matrix, at most 400 elements, and of the tile.
        at: (row, column) of the tile's first element.
        strides: elements from one row, and from one column, to the next. Default: row-major without gaps.
    """
    rows, cols = _pair("shape", shape)
    height, width = _pair("block", block)
    row, col = _pair("at", at, least=0)
    stride_row, stride_col = (cols, 1) if strides is None else _pair("strides", strides, least=0)
    down, across = max(rows, row + height), max(cols, col + width)
    if stride_col == 1:  # the gap after each row is memory, too
        across = max(across, min(stride_row, across + 8))
    if down * across > _MAX_CELLS:
        raise ValueError(f"shape must be small enough to label: at most {_MAX_CELLS} elements, got {down} x {across}")
    size = min(0.48, (WIDTH - 0.6) / (across + 1))
    figure = Figure(figsize=((across + 1.2) * size + 0.5, (down + 1.2) * size + 0.5))
    axes = figure.subplots()
    for i in range(down):
        for j in range(across):
            inside = i < rows and j < cols
            tiled = row <= i < row + height and col <= j < col + width
            color = SKY if inside and tiled else _OUTSIDE if tiled else "white" if inside else "#F4F4F4"
            rectangle(axes, j, i, 1, 1, fc=color, ec=FAINT)
            ink = BLACK if inside else as_ink(WRONG, _OUTSIDE) if tiled else DIM
            centred(axes, j + 0.5, i + 0.5, str(i * stride_row + j * stride_col), fontsize=9, color=ink)
    rectangle(axes, 0, 0, cols, rows, fill=False, ec=BLACK, lw=1.6, zorder=3)
    _step(axes, (col + 0.5, -0.15), (col + 1.5, -0.15))
    axes.text(col + 0.1, -0.43, f"next column: +{stride_col}", va="bottom", fontsize=9)
    _step(axes, (-0.15, row + 0.5), (-0.15, row + 1.5))
    axes.text(-0.45, row + 1.0, f"next row: +{stride_row}", rotation=90, ha="right", va="center", fontsize=9)
    bare(axes, (-1.0, across + 0.1), (down + 0.1, -0.9), equal=True)
    masked = height * width - max(0, min(rows, row + height) - row) * max(0, min(cols, col + width) - col)
    text = f"{name} ({rows} × {cols}): a {height} × {width} tile at ({row}, {col})"
    axes.set_title(text + (f", {masked} of its elements outside {name}" if masked else ""))
    return figure


def _step(axes, start, end) -> None:
    """An arrow from one element to the next."""
    axes.annotate("", end, start, arrowprops=dict(arrowstyle="->", color=BLACK, lw=1.4), annotation_clip=False)


@drawing
def tile_of_product(
    problem: Sequence[int], block: Sequence[int], tile: Sequence[int] = (0, 0), step: int | None = None
) -> Figure:
    """Draw C = A B to scale, B above C and A to its left, with one tile of C and the blocks of A and B for it.

    Parts outside the matrices are red and hatched.

    Args:
        problem, block: (M, N, K), and a block's extents along them.
        tile: (tile row, tile column) in C.
        step: the K block to emphasise. Default: the second, or the only one.
    """
    m, n, k = _positive("problem", problem, 3)
    block_m, block_n, block_k = _positive("block", block, 3)
    tiles_m, tiles_n, steps = -(-m // block_m), -(-n // block_n), -(-k // block_k)
    tile_m, tile_n = _pair("tile", tile, least=0)
    if tile_m >= tiles_m or tile_n >= tiles_n:
        raise ValueError(f"tile must be within the {tiles_m} x {tiles_n} tiles of C, got ({tile_m}, {tile_n})")
    step = min(1, steps - 1) if step is None else step
    if not 0 <= step < steps:
        raise ValueError(f"step must be from 0 to {steps - 1}, got {step}")
    row, col, depth = tile_m * block_m, tile_n * block_n, step * block_k
    gap = 0.09 * (k + max(m, n))
    # Origin of each matrix in the drawing: C at (0, 0), A to its left, B above.
    left, above = -(steps * block_k + gap), -(steps * block_k + gap)
    wide, high = tiles_n * block_n - left, tiles_m * block_m - above
    scale = min((WIDTH - 1.5) / wide, 4.6 / high)
    figure = Figure(figsize=(wide * scale + 1.2, high * scale + 0.9))
    axes = figure.subplots()
    _matrix(axes, (left, 0), (m, k), "A", (block_m, block_k), label=f"M = {m}")
    _matrix(axes, (0, above), (k, n), "B", (block_k, block_n), label=f"N = {n}")
    _matrix(axes, (0, 0), (m, n), "C", (block_m, block_n))
    axes.text(left + k / 2, m + 0.02 * high, f"K = {k}", ha="center", va="top", color=BLACK)
    for start in range(0, k, block_k):
        strong = start == depth
        _part(axes, (left + start, row), (block_m, block_k), (m - row, k - start), ORANGE, strong)
        _part(axes, (col, above + start), (block_k, block_n), (k - start, n - col), GREEN, strong)
    _part(axes, (col, row), (block_m, block_n), (m - row, n - col), SKY, True)
    centred(axes, col + min(block_n, n - col) / 2, row + min(block_m, m - row) / 2, f"tile\n({tile_m}, {tile_n})",
            fontsize=9)  # fmt: skip
    x, y = (left - 0.1 * wide, tiles_n * block_n + 0.02 * wide), (tiles_m * block_m + 0.02 * high, above - 0.07 * high)
    bare(axes, x, y, equal=True)
    axes.set_title(f"One program: tile ({tile_m}, {tile_n}), step {step + 1} of {steps} along K")
    return figure


def _matrix(axes, origin, shape, name, block, label=None) -> None:
    """An outline with faint tile boundaries, a name, and an extent beside it."""
    (x, y), (rows, cols) = origin, shape
    rectangle(axes, x, y, cols, rows, fc="#FAFAFA", ec=BLACK, lw=1.4)
    _tile_lines(axes, x, y, shape, block, color=FAINT, lw=0.8)
    axes.text(x + cols, y, f"{name} ", ha="right", va="bottom", fontsize=12, weight="bold", color=BLACK)
    if label and name == "A":
        axes.text(x, y + rows / 2, label + " ", ha="right", va="center", color=BLACK)
    elif label:
        axes.text(x, y, label, ha="left", va="bottom", color=BLACK)


def _part(axes, origin, block, room, color, strong) -> None:
    """One block: coloured inside its matrix, hatched in red outside."""
    (x, y), (rows, cols) = origin, block
    inside_rows, inside_cols = min(rows, room[0]), min(cols, room[1])
    alpha = 0.9 if strong else 0.3
    if strong and (inside_rows < rows or inside_cols < cols):
        rectangle(axes, x, y, cols, rows, fc=_OUTSIDE, ec=WRONG, hatch="////", zorder=1.5)
    rectangle(axes, x, y, inside_cols, inside_rows, fc=color, alpha=alpha, zorder=2)


@drawing
def error_map(got, want, block: Sequence[int] | None = None, *, title: str = "") -> Figure:
    """Draw the errors of a result: white is right, blue too small, red too large, black NaN or infinite.

    Args:
        got, want: (M, N) computed and true matrix; any dtype, on any device.
        block: (BLOCK_M, BLOCK_N), to draw the tiles' boundaries.
    """
    got, want = numbers(got), numbers(want)
    if got.ndim != 2 or got.shape != want.shape:
        raise ValueError(f"got and want must be matrices of one shape, got {got.shape} and {want.shape}")
    error = np.subtract(got, want, out=np.zeros_like(got), where=got != want)
    wrong = int(np.count_nonzero(error))  # NaN counts
    largest = float(np.abs(error[np.isfinite(error)]).max(initial=0.0))
    limit = largest or 1.0
    figure, axes = _canvas(got.shape)
    colormap = _ERROR_MAP.with_extremes(bad=BLACK)
    image = axes.imshow(np.ma.masked_invalid(error), cmap=colormap, vmin=-limit, vmax=limit, interpolation="nearest")
    _image_tiles(axes, got.shape, block, (0, 0))
    axes.set(xlabel="column", ylabel="row")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
    axes.spines[["top", "right"]].set_visible(True)
    axes.set_title(f"{title}: {wrong} of {error.size} wrong" if title else f"{wrong} of {error.size} elements wrong")
    black = "black: NaN" if np.isnan(error).any() else "black: infinite" if np.isinf(error).any() else ""
    if largest:
        bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=18, pad=0.02)
        bar.set_label("got − want" + (f", {black}" if black else ""), color=BLACK)
        bar.outline.set_visible(False)
    elif black:  # a scale without a finite error would show nothing
        axes.text(1.02, 0.5, black, transform=axes.transAxes, va="center")
    return figure


@drawing
def written_map(
    buffer,
    at: Sequence[int],
    want,
    canary: float,
    block: Sequence[int] | None = None,
    *,
    title: str = "",
    name: str = "C",
) -> Figure:
    """Draw what a kernel did to the elements in and around an output, which is outlined: right, wrong, or unwritten.

    The states are those of `write_states`; the legend counts the elements in each.
    The tiles have boundaries if ``block`` is given, as (BLOCK_M, BLOCK_N). ``name`` is the output's.
    """
    states = write_states(buffer, at, want, canary)
    (row, col), (rows, cols) = at, want.shape
    figure, axes = _canvas(states.shape, extra=1.9)
    colormap = mpl.colors.ListedColormap(STATE_COLORS)
    axes.imshow(states, cmap=colormap, vmin=-0.5, vmax=len(STATES) - 0.5, interpolation="nearest")
    rectangle(axes, col - 0.5, row - 0.5, cols, rows, fill=False, ec=BLACK, lw=1.6, zorder=3)
    _image_tiles(axes, (rows, cols), block, (row, col))
    counts = np.bincount(states.ravel(), minlength=len(STATES))
    present = [state for state in range(len(STATES)) if counts[state]]
    handles = [Patch(fc=STATE_COLORS[s], ec=GREY, lw=0.5, label=f"{STATES[s]}: {counts[s]}") for s in present]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=9)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    outside = (
        f"{counts[OUTSIDE]} elements written outside {name}" if counts[OUTSIDE] else f"nothing written outside {name}"
    )
    axes.set_title(f"{title}: {outside}" if title else outside)
    return figure


def _canvas(shape, extra: float = 1.4):
    """A figure whose axes have room for an image of this shape, and ``extra`` inches beside it."""
    rows, cols = shape
    scale = min(5.4 / cols, 3.2 / rows)
    figure = Figure(figsize=(max(cols * scale, 1.6) + extra, max(rows * scale, 1.0) + 0.9))
    return figure, figure.subplots()


def _image_tiles(axes, shape, block, origin) -> None:
    """Boundaries of the tiles of a matrix whose element (0, 0) is the image's pixel ``origin``."""
    if block is not None:
        _tile_lines(axes, origin[1] - 0.5, origin[0] - 0.5, shape, block, color=GREY, lw=0.7, ls=":")


def _tile_lines(axes, x, y, shape, block, **look) -> None:
    """Lines between the tiles of a matrix whose corner is at (x, y)."""
    rows, cols = shape
    for i in range(block[0], rows, block[0]):
        axes.plot([x, x + cols], [y + i, y + i], **look)
    for j in range(block[1], cols, block[1]):
        axes.plot([x + j, x + j], [y, y + rows], **look)


def _positive(name: str, value: Sequence[int], count: int, least: int = 1) -> tuple[int, ...]:
    found = tuple(int(v) for v in value)
    if len(found) != count or min(found) < least:
        raise ValueError(f"{name} must be {count} integers of at least {least}, got {tuple(value)}")
    return found


def _pair(name: str, value: Sequence[int], least: int = 1) -> tuple[int, ...]:
    return _positive(name, value, 2, least)
