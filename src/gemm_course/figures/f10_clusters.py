"""The Hopper kernel's clusters: blocks that two CTAs share, the order of tiles and of groups, tiles cut to fit.

All follow from a configuration; nothing in here was measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.schedule import Timeline
from gemm_course.figures import timeline
from gemm_course.figures.shapes import arrow, bare, canvas_grid, centred, rectangle
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREY, ORANGE, WIDTH, color_of, drawing, ink_on
from gemm_course.lessons.l10_clusters import (
    Box,
    bytes_from_l2,
    check_cluster,
    pairs,
    tile_columns,
    tile_rows,
)
from gemm_course.lessons.timelines import simulated_bars


@drawing
def multicast(config: CuteConfig, operand_bytes: int = 2, *, beside: bool = False) -> Figure:
    """Draw the blocks that two CTAs fetch and receive for one step along K, without and with multicast.

    Blocks in L2 have the colour of the CTA that asks for them. ``beside`` is that of `bytes_from_l2`.
    """
    check_cluster(config)
    figure, panels = canvas_grid(5.4, 2, 1)
    for axes, shared in zip(panels, (False, True)):
        _exchange(axes, config, operand_bytes, shared, beside)
        fetched = bytes_from_l2(config, operand_bytes, shared=shared, beside=beside)
        how = "with multicast" if shared else "without multicast"
        axes.set_title(f"{how}: {_kib(fetched)} leave L2 for each step along K", fontsize=10)
    return figure


def _kib(count: int) -> str:
    return f"{count / 1024:g} KiB"


def _exchange(axes, config: CuteConfig, operand_bytes: int, shared: bool, beside: bool) -> None:
    lines = {"A": config.tile_m, "B": config.tile_n}
    common = "A" if beside else "B"
    depth, gap, l2 = config.tile_k, 16, -150  # where blocks in L2 begin; those in shared memory begin at 0
    width = sum(lines.values()) + 3 * gap
    end = 2 * width + gap
    rectangle(axes, 0, l2 - 10, end, depth + 20, fc=FAINT, alpha=0.6, ec="none")
    axes.text(-8, l2 + depth / 2, "L2", fontsize=9, ha="right", va="center", color=BLACK)
    axes.text(-8, depth / 2, "SMs", fontsize=9, ha="right", va="center", color=BLACK)
    for cta in range(2):
        left, loaded = cta * (width + gap), 0
        rectangle(axes, left, -10, width, depth + 20, fc="white", ec=GREY, lw=1.2)
        at = left + gap
        for name, count in lines.items():
            split = shared and name == common
            for part in range(2 if split else 1):
                owner, wide = (part, count // 2) if split else (cta, count)
                x, color = at + part * wide, (BLUE, ORANGE)[owner]
                box = dict(fc=color, ec="white", lw=1)
                rectangle(axes, x, 0, wide, depth, **box, gid=f"receives {cta}")
                first = part * wide if split or name == common else cta * wide
                text = f"{'rows' if name == 'A' else 'columns'}\n{first}–{first + wide - 1}\nof {name}"
                centred(axes, x + wide / 2, depth / 2, text, fontsize=9, color=ink_on(color))
                _copy(axes, owner, part if split else cta, x, wide, cta, width + gap, l2 + depth)
                if owner == cta:
                    rectangle(axes, x, l2, wide, depth, **box, gid=f"loads {cta}")
                    loaded += wide * depth * operand_bytes
            at += count + gap
        received = (config.tile_m + config.tile_n) * depth * operand_bytes
        text = f"CTA {cta} asks for {_kib(loaded)}, receives {_kib(received)}"
        axes.text(left, depth + 16, text, fontsize=9, va="bottom", color=BLACK)
    axes.set_aspect("equal")
    bare(axes, (-45, end + 4), (l2 - 12, depth + 45))


def _copy(axes, owner: int, source: int, x: float, wide: float, cta: int, pitch: float, bottom: float) -> None:
    """From the block in L2 that CTA ``source`` asks for to its place ``x`` in CTA ``cta``'s shared memory."""
    start, color = x + (source - cta) * pitch + wide / 2, (BLUE, ORANGE)[owner]
    arrow(axes, (start, bottom), (x + wide / 2, -2), color, mutation_scale=11, lw=1.8, gid="arrow")


@drawing
def order(config: CuteConfig, rows: int, columns: int, clusters: int) -> Figure:
    """Draw the order in which clusters take a group's tiles: row by row, and in the kernel's strips.

    A colour is a wave: the tiles that ``clusters`` clusters compute at the same time. Titles say how many rows of A and
    columns of B the first wave reads, together.
    """
    config = config.shapes[0]
    found = pairs(config, rows, columns)
    by_row = sorted(found, key=lambda tiles: tiles[0][:2])
    ways = {"row by row": by_row, f"in strips of {config.swizzle_size} rows of clusters": found}
    height, width = (max(tile[i] + tile[i + 2] for both in found for tile in both) for i in (0, 1))
    figure, panels = canvas_grid(0.6 + 0.47 * WIDTH * height / width, 1, 2)
    for axes, (how, each) in zip(panels, ways.items()):
        for number, tiles in enumerate(each):
            _cluster(axes, number, tiles, (rows, columns), color=color_of(number // clusters))
        _frame(axes, rows, columns, height, width)
        first = [tile for both in each[:clusters] for tile in both]
        lines = (len({tile.row for tile in first}), config.tile_m), (len({tile.col for tile in first}), config.tile_n)
        read = sum(count * extent for count, extent in lines)
        axes.set_title(f"{how}: a wave reads {read:,} lines", fontsize=9.5)
    return figure


@drawing
def handed_out(runs: Mapping[str, Timeline]) -> Figure:
    """Draw dynamic orders along K, simulated: when which cluster computes a tile.

    Args:
        runs: name → what `l10_clusters.hand_out` returns for it. A group is the darker, the deeper it is.
    """
    figure, panels = canvas_grid(2.2 * len(runs), len(runs), 1, sharex=True)
    for axes, (how, run) in zip(panels, runs.items()):
        depths = {span.tile.problem: span.tile.k for line in run.programs for span in line}
        shade = {group: at for at, group in enumerate(sorted(depths, key=depths.get))}
        bars = [bar._replace(problem=shade[bar.problem]) for bar in simulated_bars(run)]
        clusters = len(run.programs)
        timeline.draw(axes, bars, rows=clusters, title=how, row_name="cluster", bound=run.lower_bounds.work,
                      shades=len(shade))  # fmt: skip
    panels[0].set_xlim(0, 1.01 * max(run.makespan for run in runs.values()))
    panels[-1].set_xlabel("µs, simulated (grey: idle)")
    return figure


@drawing
def cut_to_fit(config: CuteConfig, rows: int, columns: int) -> Figure:
    """Draw a group's tiles in one shape only, and with the narrow and flat shapes of a configuration.

    A colour is a shape. C has a black outline. Wasted products are hatched.
    """
    ways = {"one shape": config.shapes[0], "cut to fit": config}
    found = {how: pairs(each, rows, columns) for how, each in ways.items()}
    tiles = [tile for each in found.values() for both in each for tile in both]
    height = max(tile.row + tile.height for tile in tiles)
    width = max(tile.col + tile.width for tile in tiles)
    # One above the other: side by side, flat tiles would be lower than their numbers.
    figure, panels = canvas_grid(1 + 2 * 0.93 * WIDTH * height / width, 2, 1)
    for axes, (how, each) in zip(panels, ways.items()):
        shapes = [(shape.tile_m, shape.tile_n) for shape in each.shapes]
        idle = 0
        for number, both in enumerate(found[how]):
            color = color_of(shapes.index(both[0][2:]))
            idle += _cluster(axes, number, both, (rows, columns), color, numbered=False)
        _frame(axes, rows, columns, height, width)
        share = f"{how}: {idle / (idle + rows * columns):.1%} of the products wasted"
        axes.set_title(f"{share}; {_extents(each, rows, columns)}", fontsize=9.5)
    return figure


def _extents(config: CuteConfig, rows: int, columns: int) -> str:
    """The rows and columns of tiles, in words."""
    (full, flat), across = tile_rows(config, rows), tile_columns(config, columns)
    widths = (f"{across.count(each)} × {each}" for each in dict.fromkeys(across))
    found = [f"{full} × {config.tile_m} rows of {' + '.join(widths)} columns"] if full else []
    if flat:
        found.append(f"{flat} rows of {-(-columns // config.tail_tile_n)} × {config.tail_tile_n} columns")
    return ", ".join(found)


def _frame(axes, rows: int, columns: int, height: float, width: float) -> None:
    """The outline of a group's C, in a panel that shows ``height`` by ``width``."""
    rectangle(axes, 0, 0, columns, rows, fc="none", ec=BLACK, lw=1.5, gid="group")
    bare(axes, (-0.02 * width, 1.02 * width), (height, -0.02 * height), equal=True)


def _cluster(
    axes, number: int, tiles: tuple[Box, Box], inside: tuple[int, int], color: str, numbered: bool = True
) -> int:
    """Draw a cluster's tiles, with its number if asked; return the elements outside of ``inside``."""
    idle = 0
    for row, col, high, wide in tiles:
        used_wide = max(0, min(wide, inside[1] - col))
        used_high = max(0, min(high, inside[0] - row)) if used_wide else 0
        right = (row, col + used_wide, used_high, wide - used_wide)
        for y, x, part_high, part_wide in (right, (row + used_high, col, high - used_high, wide)):
            if part_high * part_wide:
                look = dict(fc=FAINT, ec=BLACK, lw=0, hatch="//////", gid="wasted")
                rectangle(axes, x, y, part_wide, part_high, **look)
                idle += part_high * part_wide
        if used_high:
            look = dict(fc=color, ec="white", lw=0.6, gid=f"cluster {number}")
            rectangle(axes, col, row, used_wide, used_high, **look)
    first, last = tiles
    both = last.col + last.width - first.col, last.row + last.height - first.row
    rectangle(axes, first.col, first.row, *both, fc="none", ec="white", lw=2.5)
    if numbered:
        # In the middle of the first tile's part of C.
        y, x = (at + min(extent, end - at) / 2 for at, extent, end in zip(first[:2], first[2:], inside))
        centred(axes, x, y, str(number), va="center_baseline", fontsize=9, color=ink_on(color))
    return idle
