"""The Hopper kernel's clusters: bytes that they fetch, the order in which they take tiles, the order of groups.

All of it is computed from a configuration; nothing here is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from course_kernels import schedule
from course_kernels.kernels.cute_sm90.config import CuteConfig


class Box(NamedTuple):
    """A CTA's tile within its group's C: first row, first column, and extents, in elements."""

    row: int
    col: int
    height: int
    width: int


def bytes_from_l2(config: CuteConfig, operand_bytes: int = 2, *, shared: bool = True, beside: bool = False) -> int:
    """Bytes that a cluster fetches from L2 for one step along K.

    Args:
        shared: a block that both CTAs use is fetched once, by multicast. Else each CTA fetches all its blocks.
        beside: the CTAs' tiles are side by side and share A's rows. Else they are stacked and share B's columns.
    """
    once = 1 if shared else config.cluster
    a, b = (once, config.cluster) if beside else (config.cluster, once)
    return (a * config.tile_m + b * config.tile_n) * config.tile_k * operand_bytes


def check_cluster(config: CuteConfig) -> None:
    """Refuse a configuration whose clusters are not of two CTAs."""
    if config.cluster != 2:
        raise ValueError(f"config must have a cluster of 2 CTAs, got {config.cluster}")


def pairs(config: CuteConfig, rows: int, columns: int) -> list[tuple[Box, Box]]:
    """A group's tiles two by two, in the order in which clusters take them.

    Returns:
        For each cluster the tiles of CTA 0 and CTA 1; that of CTA 1 may be after the last column.
    """
    check_cluster(config)
    tiles_m, flat = tile_rows(config, rows)
    across = tile_columns(config, columns)
    # The neighbour of an odd last column is outside of C, and as narrow as possible.
    after = (sum(across), config.last_tile_n or config.tile_n)
    spans = [*((sum(across[:col]), width) for col, width in enumerate(across)), after]

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


def tile_rows(config: CuteConfig, rows: int) -> tuple[int, int]:
    """Tile rows of full height, and the height of the flat ones below them, 0 where there are none."""
    full, left = divmod(rows, config.tile_m)
    if config.tail_tile_n and 0 < left <= config.tile_m // 2:
        return full, config.tile_m // 2
    return full + (left > 0), 0


def tile_columns(config: CuteConfig, columns: int) -> list[int]:
    """Widths of the columns of tiles, from left to right."""
    count = -(-columns // config.tile_n)
    narrow = 0
    if config.last_tile_n:
        narrow = min((count * config.tile_n - columns) // (config.tile_n - config.last_tile_n), count)
    return [config.tile_n] * (count - narrow) + [config.last_tile_n] * narrow


def deepest_first(sizes: Sequence[int]) -> list[int]:
    """The groups with rows, in the order in which the dynamic schedule along K numbers them."""
    mean, short = sum(sizes) // len(sizes), len(sizes) % 32
    windows = [range(short), *(range(first, first + 32) for first in range(short, len(sizes), 32))]

    def depth_class(group: int) -> int:
        return sum(sizes[group] < times * mean for times in (4, 2, 1))

    return [group for window in windows for group in sorted(window, key=depth_class) if sizes[group]]


def hand_out(
    config: CuteConfig, sizes: Sequence[int], rows: int, columns: int, clusters: int
) -> dict[str, schedule.Timeline]:
    """Simulate a dynamic order along K, with the groups as they are and with deep ones first.

    Args:
        config: of clusters of two CTAs.
        sizes: depth of each group.
        rows, columns: extents of each group's C.
        clusters: how many run at a time; a program of the timeline is a cluster.
    """
    check_cluster(config)
    block = config.cluster * config.tile_m, config.tile_n, config.tile_k
    one = schedule.CostModel()
    rates = {field.name: config.cluster * getattr(one, field.name) for field in fields(one) if "_per_" in field.name}
    orders = {
        "groups as they are": [g for g, size in enumerate(sizes) if size],
        "deep groups first": deepest_first(sizes),
    }
    return {
        how: schedule.simulate(
            [(rows, columns, sizes[g]) for g in groups], "dynamic", clusters, block, replace(one, **rates)
        )
        for how, groups in orders.items()
    }
