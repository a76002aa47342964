"""The Hopper kernel's clusters in four pictures: what two CTAs share, which tiles they take together, how these are cut
to fit, and what becomes of the last ones.

All follow from a configuration, or from numbers of tiles and clusters; nothing in here was measured.
"""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_kernels.kernels.cute_sm90.config import CuteConfig
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREY, ORANGE, WIDTH, color_of, ink_on, styled

__all__ = ["Box", "bytes_from_l2", "cut_to_fit", "last_wave", "multicast", "odd_row", "pairs"]


class Box(NamedTuple):
    """A CTA's tile within its group's C: first row, first column, and extents, in elements."""

    row: int
    col: int
    height: int
    width: int


def bytes_from_l2(config: CuteConfig, operand_bytes: int = 2, *, shared: bool = True, beside: bool = False) -> int:
    """What a cluster fetches from L2 for one step along K, in bytes.

    Args:
        config: tile and cluster.
        operand_bytes: of an element.
        shared: through multicast: a block that both CTAs use comes once. Else each CTA fetches all that it uses.
        beside: whether the CTAs' tiles lie side by side and share A's rows. Else they lie one below the other and share
            B's columns.
    """
    once = 1 if shared else config.cluster
    a, b = (once, config.cluster) if beside else (config.cluster, once)
    return (a * config.tile_m + b * config.tile_n) * config.tile_k * operand_bytes


@styled()
def multicast(config: CuteConfig, operand_bytes: int = 2, *, beside: bool = False) -> Figure:
    """Draw what the CTAs of a cluster fetch for one step along K and what they receive, without multicast and with it.

    Args:
        config: tile and cluster.
        operand_bytes: of an element.
        beside: whether the CTAs' tiles lie side by side, not one below the other.

    Returns:
        A figure with two panels to one scale: blocks in L2 have the colour of the CTA that asks for them.

    Raises:
        ValueError: a cluster of one CTA, which shares with nobody.
    """
    _check_cluster(config)
    figure = Figure(figsize=(WIDTH, 5.0))
    for axes, shared in zip(figure.subplots(2, 1), (False, True)):
        _exchange(axes, config, operand_bytes, shared, beside)
        fetched = bytes_from_l2(config, operand_bytes, shared=shared, beside=beside)
        how = "with multicast" if shared else "without multicast"
        axes.set_title(f"{how}: {_kib(fetched)} leave L2 for each step along K", fontsize=10)
    return figure


def _check_cluster(config: CuteConfig) -> None:
    if config.cluster != 2:
        raise ValueError(f"config must have a cluster of 2 CTAs, got {config.cluster}")


def _kib(count: int) -> str:
    return f"{count / 1024:g} KiB"


def _exchange(axes, config: CuteConfig, operand_bytes: int, shared: bool, beside: bool) -> None:
    lines = {"A": config.tile_m, "B": config.tile_n}
    common = "A" if beside else "B"
    depth, gap, l2 = config.tile_k, 16, -150  # where blocks in L2 begin; those in shared memory begin at 0
    width = sum(lines.values()) + 3 * gap
    end = 2 * width + gap
    axes.add_patch(Rectangle((0, l2 - 10), end, depth + 20, fc=FAINT, alpha=0.6, ec="none"))
    axes.text(-8, l2 + depth / 2, "L2", fontsize=9, ha="right", va="center", color=BLACK)
    axes.text(-8, depth / 2, "SMs", fontsize=9, ha="right", va="center", color=BLACK)
    for cta in range(2):
        left, loaded = cta * (width + gap), 0
        axes.add_patch(Rectangle((left, -10), width, depth + 20, fc="white", ec=GREY, lw=1.2))
        at = left + gap
        for name, count in lines.items():
            split = shared and name == common
            for part in range(2 if split else 1):
                owner, wide = (part, count // 2) if split else (cta, count)
                x, color = at + part * wide, (BLUE, ORANGE)[owner]
                box = dict(fc=color, ec="white", lw=1)
                axes.add_patch(Rectangle((x, 0), wide, depth, **box, gid=f"receives {cta}"))
                first = part * wide if split or name == common else cta * wide
                text = f"{'rows' if name == 'A' else 'columns'}\n{first}–{first + wide - 1}\nof {name}"
                axes.text(x + wide / 2, depth / 2, text, ha="center", va="center", fontsize=7.5, color=ink_on(color))
                _arrow(axes, owner, part if split else cta, x, wide, cta, width + gap, l2 + depth)
                if owner == cta:
                    axes.add_patch(Rectangle((x, l2), wide, depth, **box, gid=f"loads {cta}"))
                    loaded += wide * depth * operand_bytes
            at += count + gap
        received = (config.tile_m + config.tile_n) * depth * operand_bytes
        text = f"CTA {cta} asks for {_kib(loaded)}, receives {_kib(received)}"
        axes.text(left, depth + 16, text, fontsize=8.5, va="bottom", color=BLACK)
    axes.set_aspect("equal")
    axes.set_xlim(-45, end + 4)
    axes.set_ylim(l2 - 12, depth + 45)
    axes.set_axis_off()


def _arrow(axes, owner: int, source: int, x: float, wide: float, cta: int, pitch: float, bottom: float) -> None:
    """From the block in L2 that CTA ``source`` asks for to the place in CTA ``cta``'s shared memory, at ``x``."""
    start = x + (source - cta) * pitch + wide / 2
    color = (BLUE, ORANGE)[owner]
    axes.add_patch(
        FancyArrowPatch((start, bottom), (x + wide / 2, -2), arrowstyle="-|>", mutation_scale=11, color=color, lw=1.8,
                        shrinkA=0, shrinkB=0, gid="arrow")
    )  # fmt: skip


def pairs(config: CuteConfig, rows: int, columns: int) -> list[tuple[Box, Box]]:
    """A group's tiles two by two, in the order in which clusters take them.

    Args:
        config: tiles, swizzle_size.
        rows, columns: of the group's C.

    Returns:
        For each cluster CTA 0's tile and CTA 1's, which may lie behind the last column.

    Raises:
        ValueError: a cluster of one CTA.
    """
    _check_cluster(config)
    tiles_m, flat = _down(config, rows)
    across = _across(config, columns)
    # Where a column is left over, what lies beside it is as narrow as can be.
    behind = (sum(across), config.last_tile_n or config.tile_n)
    spans = [*((sum(across[:col]), width) for col, width in enumerate(across)), behind]

    def tile(row: int, col: int) -> Box:
        left, width = spans[col]
        return Box(row * config.tile_m, left, config.tile_m, width)

    high, found = tiles_m // 2, []
    for number, first in enumerate(range(0, max(high, 1), config.swizzle_size)):
        strip, of_strip = range(first, min(first + config.swizzle_size, high)), []
        for left in range(0, len(across), 2):  # two columns at a time
            for col in range(left, min(left + 2, len(across))):
                of_strip += [(tile(2 * row, col), tile(2 * row + 1, col)) for row in strip]
            if tiles_m % 2 and strip.stop == high:
                of_strip.append((tile(tiles_m - 1, left), tile(tiles_m - 1, left + 1)))
        found += of_strip[::-1] if number % 2 else of_strip
    for left in range(0, columns, 2 * config.tail_tile_n) if flat else ():
        row, width = tiles_m * config.tile_m, config.tail_tile_n
        found.append((Box(row, left, flat, width), Box(row, left + width, flat, width)))
    return found


def _down(config: CuteConfig, rows: int) -> tuple[int, int]:
    """Rows of tiles of full height, and the height of the flat ones below them, 0 where there are none."""
    full, left = divmod(rows, config.tile_m)
    if config.tail_tile_n and 0 < left <= config.tile_m // 2:
        return full, config.tile_m // 2
    return full + (left > 0), 0


def _across(config: CuteConfig, columns: int) -> list[int]:
    """Widths of the columns of tiles, from left to right."""
    count = -(-columns // config.tile_n)
    narrow = 0
    if config.last_tile_n:
        narrow = min((count * config.tile_n - columns) // (config.tile_n - config.last_tile_n), count)
    return [config.tile_n] * (count - narrow) + [config.last_tile_n] * narrow


@styled()
def odd_row(config: CuteConfig, rows: int, columns: int) -> Figure:
    """Draw which tiles of a group's C clusters take together: all one below the other, and as the kernel does.

    Args:
        config: tile and cluster; all tiles have the shape of most.
        rows, columns: of the group's C, whose outline is black.

    Returns:
        A figure with two panels to one scale: a cluster has a colour, and its number in their order; tiles outside of
        the result are hatched.

    Raises:
        ValueError: a cluster of one CTA.
    """
    config = config.shapes[0]
    tiles_m, tiles_n = -(-rows // config.tile_m), -(-columns // config.tile_n)
    inside = tiles_m * config.tile_m, tiles_n * config.tile_n
    ways = {"always one below the other": tiles_m + tiles_m % 2, "the odd row side by side": tiles_m}
    height, width = inside[0] + 1.2 * config.tile_m, (tiles_n + tiles_n % 2) * config.tile_n
    figure = Figure(figsize=(WIDTH, 0.5 + 0.48 * WIDTH * height / width))
    for axes, (how, down) in zip(figure.subplots(1, 2), ways.items()):
        found = pairs(config, down * config.tile_m, columns)
        idle = sum(_cluster(axes, number, tiles, inside, (rows, columns)) for number, tiles in enumerate(found))
        idle //= config.tile_m * config.tile_n
        _frame(axes, rows, columns, height, width)
        axes.set_title(f"{how}: {len(found)} clusters, tiles for nothing: {idle}", fontsize=9.5)
    return figure


@styled()
def cut_to_fit(config: CuteConfig, rows: int, columns: int) -> Figure:
    """Draw a group's tiles if all had one shape, and with the narrow and flat ones that a configuration has.

    Args:
        config: tiles and cluster.
        rows, columns: of the group's C, whose outline is black; at least 1.

    Returns:
        A figure with two panels to one scale: a cluster has a colour, and its number in their order; what is multiplied
        for nothing is hatched. The titles have its share of all that is multiplied, and the tiles' extents.

    Raises:
        ValueError: a cluster of one CTA.
    """
    ways = {"one shape": config.shapes[0], "cut to fit": config}
    found = {how: pairs(each, rows, columns) for how, each in ways.items()}
    tiles = [tile for each in found.values() for both in each for tile in both]
    height = max(tile.row + tile.height for tile in tiles)
    width = max(tile.col + tile.width for tile in tiles)
    # One above the other: side by side, flat tiles would be lower than their numbers.
    figure = Figure(figsize=(WIDTH, 1 + 2 * 0.93 * WIDTH * height / width))
    for axes, (how, each) in zip(figure.subplots(2, 1), ways.items()):
        idle = sum(_cluster(axes, number, both, (rows, columns)) for number, both in enumerate(found[how]))
        _frame(axes, rows, columns, height, width)
        share = f"{how}: {idle / (idle + rows * columns):.1%} multiplied for nothing"
        axes.set_title(f"{share}; {_extents(each, rows, columns)}", fontsize=9.5)
    return figure


@styled()
def last_wave(tiles: int, clusters: int) -> Figure:
    """Draw when clusters are at work: with the last wave's tiles whole, and cut in two. A cluster tile takes one unit
    of time, and half of one takes half.

    Args:
        tiles: cluster tiles of the product.
        clusters: that take them in turns.

    Returns:
        A figure with two panels to one scale: time runs to the right, clusters lie one below the other, and who has
        nothing left to do is hatched. The titles have the time, in that of a cluster tile. One panel, where halves do
        not find a cluster each, and tiles stay whole.

    Raises:
        ValueError: there are no tiles or no clusters.
    """
    if min(tiles, clusters) < 1:
        raise ValueError(f"tiles and clusters must be at least 1, got {tiles} and {clusters}")
    full, left = divmod(tiles, clusters)
    ways = {"whole": (1.0, left, "tiles"), "in halves": (0.5, 2 * left, "halves")}
    if 2 * left > clusters:
        ways = {f"stay whole, {2 * left} halves would take two turns": ways["whole"]}
    figure = Figure(figsize=(WIDTH, 2.3 * len(ways)))
    panels = figure.subplots(len(ways), 1, squeeze=False)[:, 0]
    for axes, (how, (time, taken, what)) in zip(panels, ways.items()):
        for wave in range(full):
            _part(axes, wave, 1, 0, clusters, f"{clusters} tiles", color_of(wave))
        if left:
            _part(axes, full, time, 0, taken, f"{taken} {what}", color_of(full))
            _part(axes, full, time, taken, clusters, "", None)
        axes.set_title(f"the last wave's tiles {how}: done after {full + time * bool(left):g}", fontsize=10)
        axes.set_xlim(-0.02, full + bool(left) + 0.02)
        axes.set_ylim(clusters, 0)
        axes.set_yticks([])
        axes.set_ylabel(f"{clusters} clusters", fontsize=9)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=8.5)
    axes.set_xlabel("time, in that of a cluster tile", fontsize=9)
    return figure


def _part(axes, start: float, time: float, first: int, behind: int, text: str, color: str | None) -> None:
    """Clusters ``first`` to before ``behind`` for some time: at work in a colour, or idle."""
    if first == behind:
        return
    idle = dict(fc=FAINT, ec=BLACK, lw=0, hatch="//////", gid="idle")
    look = idle if color is None else dict(fc=color, ec="white", lw=1, gid="at work")
    axes.add_patch(Rectangle((start, first), time, behind - first, **look))
    if text:
        at = start + time / 2, (first + behind) / 2
        axes.text(*at, text, ha="center", va="center", fontsize=8.5, color=ink_on(color))


def _extents(config: CuteConfig, rows: int, columns: int) -> str:
    """In words: which rows of tiles there are, of which columns."""
    (full, flat), across = _down(config, rows), _across(config, columns)
    widths = (f"{across.count(each)} × {each}" for each in dict.fromkeys(across))
    found = [f"{full} × {config.tile_m} rows of {' + '.join(widths)} columns"] if full else []
    if flat:
        found.append(f"{flat} rows of {-(-columns // config.tail_tile_n)} × {config.tail_tile_n} columns")
    return ", ".join(found)


def _frame(axes, rows: int, columns: int, height: float, width: float) -> None:
    """The outline of a group's C, in a panel that shows ``height`` by ``width``."""
    axes.add_patch(Rectangle((0, 0), columns, rows, fc="none", ec=BLACK, lw=1.5, gid="group"))
    axes.set_xlim(-0.02 * width, 1.02 * width)
    axes.set_ylim(height, -0.02 * height)
    axes.set_aspect("equal")
    axes.set_axis_off()


def _cluster(
    axes, number: int, tiles: tuple[Box, Box], inside: tuple[int, int], framed: tuple[int, int] | None = None
) -> int:
    """Draw a cluster's tiles; how many of their elements are not among the ``inside`` rows and columns. The number
    stands in what is framed of them, by default what is inside."""
    color, idle = color_of(number), 0
    for row, col, high, wide in tiles:
        used_wide = max(0, min(wide, inside[1] - col))
        used_high = max(0, min(high, inside[0] - row)) if used_wide else 0
        right = (row, col + used_wide, used_high, wide - used_wide)
        for y, x, part_high, part_wide in (right, (row + used_high, col, high - used_high, wide)):
            if part_high * part_wide:
                look = dict(fc=FAINT, ec=BLACK, lw=0, hatch="//////", gid="for nothing")
                axes.add_patch(Rectangle((x, y), part_wide, part_high, **look))
                idle += part_high * part_wide
        if used_high:
            look = dict(fc=color, ec="white", lw=0.6, gid=f"cluster {number}")
            axes.add_patch(Rectangle((col, row), used_wide, used_high, **look))
    first, last = tiles
    both = last.col + last.width - first.col, last.row + last.height - first.row
    axes.add_patch(Rectangle((first.col, first.row), *both, fc="none", ec="white", lw=2.5))
    # In the middle of what is used: the first tile lies inside, in part at least.
    y, x = (at + min(extent, end - at) / 2 for at, extent, end in zip(first[:2], first[2:], framed or inside))
    axes.text(x, y, str(number), ha="center", va="center", fontsize=8, color=ink_on(color))
    return idle
