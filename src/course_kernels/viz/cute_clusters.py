"""The Hopper kernel's clusters in two pictures: what two CTAs share, and which tiles they take together.

Both follow from the configuration; nothing in here was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.viz.style import BLACK, BLUE, FAINT, GREY, ORANGE, WIDTH, color_of, ink_on, styled

__all__ = ["bytes_from_l2", "multicast", "odd_row", "pairs"]


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


def pairs(config: CuteConfig, tiles_m: int, tiles_n: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """A group's tiles two by two, in the order in which clusters take them.

    Args:
        config: its strip is looked at.
        tiles_m, tiles_n: rows and columns of tiles.

    Returns:
        For each cluster the (row, column) of CTA 0's tile and of CTA 1's, which may lie behind the last column.

    Raises:
        ValueError: a cluster of one CTA.
    """
    _check_cluster(config)
    high, found = tiles_m // 2, []
    for first in range(0, max(high, 1), config.strip):
        strip = range(first, min(first + config.strip, high))
        for left in range(0, tiles_n, 2):  # two columns at a time
            for col in range(left, min(left + 2, tiles_n)):
                found += [((2 * row, col), (2 * row + 1, col)) for row in strip]
            if tiles_m % 2 and strip.stop == high:
                found.append(((tiles_m - 1, left), (tiles_m - 1, left + 1)))
    return found


@styled()
def odd_row(config: CuteConfig, rows: int, columns: int) -> Figure:
    """Draw which tiles of a group's C clusters take together: all one below the other, and as the kernel does.

    Args:
        config: tile and cluster.
        rows, columns: of the group's C, whose outline is black.

    Returns:
        A figure with two panels to one scale: a cluster has a colour, and its number in their order; tiles outside of
        the result are hatched.

    Raises:
        ValueError: a cluster of one CTA.
    """
    tiles_m, tiles_n = -(-rows // config.tile_m), -(-columns // config.tile_n)
    ways = {"always one below the other": tiles_m + tiles_m % 2, "the odd row side by side": tiles_m}
    height, width = (tiles_m + 1.2) * config.tile_m, (tiles_n + tiles_n % 2) * config.tile_n
    figure = Figure(figsize=(WIDTH, 0.5 + 0.48 * WIDTH * height / width))
    for axes, (how, down) in zip(figure.subplots(1, 2), ways.items()):
        found, idle = pairs(config, down, tiles_n), 0
        for number, tiles in enumerate(found):
            idle += _cluster(axes, config, number, tiles, (tiles_m, tiles_n))
        axes.add_patch(Rectangle((0, 0), columns, rows, fc="none", ec=BLACK, lw=1.5, gid="group"))
        axes.set_title(f"{how}: {len(found)} clusters, tiles for nothing: {idle}", fontsize=9.5)
        axes.set_xlim(-0.02 * width, 1.02 * width)
        axes.set_ylim(height, -0.1 * config.tile_m)
        axes.set_aspect("equal")
        axes.set_axis_off()
    return figure


def _cluster(axes, config: CuteConfig, number: int, tiles: Sequence[tuple[int, int]], inside: tuple[int, int]) -> int:
    """Draw a cluster's tiles; how many of them lie outside of the result, which has tiles up to ``inside``."""
    high, wide, color, idle = config.tile_m, config.tile_n, color_of(number), 0
    for row, col in tiles:
        used = row < inside[0] and col < inside[1]
        idle += not used
        look = dict(fc=color, ec="white", lw=0.6) if used else dict(fc="none", ec=color, lw=0, hatch="////")
        gid = f"cluster {number}" if used else "for nothing"
        axes.add_patch(Rectangle((col * wide, row * high), wide, high, **look, gid=gid))
    (top, left), (bottom, right) = tiles
    both = (right - left + 1) * wide, (bottom - top + 1) * high
    axes.add_patch(Rectangle((left * wide, top * high), *both, fc="none", ec="white", lw=2.5))
    middle = (left + 0.5) * wide, (top + 0.5) * high
    axes.text(*middle, str(number), ha="center", va="center", fontsize=8, color=ink_on(color))
    return idle
