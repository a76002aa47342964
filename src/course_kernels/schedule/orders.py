"""Tiles, their global order, and the order in which static schemes hand them to programs.

All of it is plain integer arithmetic: the arithmetic of the device code, in a form that can be read, drawn and compared
with a kernel's record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from numbers import Real
from operator import index as as_int
from typing import NamedTuple

__all__ = ["DEFAULT_BLOCK", "ORDERS", "STATIC_ORDERS", "Tile", "tile_counts", "tiles", "walk", "xcd_tile"]

DEFAULT_BLOCK = (128, 256, 64)
"""(BLOCK_M, BLOCK_N, BLOCK_K) of the fastest plain Triton tile on an H200 for arithmetic-bound problems."""

DEFAULT_SWIZZLE = 8
"""Tile rows in one strip of the `swizzled` order: 132 programs then run a patch of about 8 by 16 tiles."""

ORDERS = {
    "round_robin": "program p takes tiles p, p + P, p + 2P, ... of the global order",
    "chunks": "program p takes one contiguous run of ceil(T / P) tiles",
    "swizzled": "round-robin over an order in which tiles that share operands are neighbours",
    "dynamic": "each program, when free, takes the next tile from one shared counter",
    "largest_first": "each program, when free, takes the most expensive tile left (costs known beforehand)",
}
"""Every scheme by name, with what it does in one sentence."""

STATIC_ORDERS = ("round_robin", "chunks", "swizzled")
"""The schemes in which a program's tiles follow from its number alone, whatever the tiles cost."""


class Tile(NamedTuple):
    """One BLOCK_M x BLOCK_N piece of one problem's output."""

    problem: int  # its position in the list
    m: int  # tile row inside the problem; its first matrix row is m * BLOCK_M
    n: int  # tile column inside the problem
    rows: int  # rows that exist: BLOCK_M, or fewer in a boundary tile
    cols: int  # columns that exist: BLOCK_N, or fewer
    k: int  # elements of each of its sums
    index: int  # position in the global order over all problems


def check_problems(problems: Iterable[Sequence[int]]) -> list[tuple[int, int, int]]:
    """The problems as a list of (M, N, K) ints; an error names the first wrong one."""
    checked = []
    for position, problem in enumerate(problems):
        try:
            m, n, k = (as_int(extent) for extent in problem)
        except (TypeError, ValueError):
            raise TypeError(f"problems[{position}] is {problem!r}; want three integers (M, N, K)") from None
        if min(m, n, k) < 0:
            raise ValueError(f"problems[{position}] is {(m, n, k)}; want M, N and K of at least 0")
        checked.append((m, n, k))
    return checked


def check_positive(name: str, value: int) -> int:
    """`value` as an int of at least 1."""
    try:
        number = as_int(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; want a positive integer") from None
    if number < 1:
        raise ValueError(f"{name} is {number}; want at least 1")
    return number


def check_number(name: str, value: float, least: float = 0.0, *, above: bool = False) -> float:
    """`value`, if it is a finite number of at least `least`, or with `above` greater."""
    if not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}; want a number")
    if not least <= value < inf or (above and value == least):
        raise ValueError(f"{name} is {value}; want a finite number {'above' if above else 'of at least'} {least:g}")
    return value


def check_block(block: Sequence[int]) -> tuple[int, ...]:
    """`block` as (BLOCK_M, BLOCK_N) or (BLOCK_M, BLOCK_N, BLOCK_K)."""
    if not hasattr(block, "__len__") or len(block) not in (2, 3):
        raise TypeError(f"block is {block!r}; want (BLOCK_M, BLOCK_N) or (BLOCK_M, BLOCK_N, BLOCK_K)")
    return tuple(check_positive(f"block[{i}]", extent) for i, extent in enumerate(block))


def check_order(order: str) -> str:
    """`order`, if it is one of `ORDERS`."""
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; want one of {', '.join(map(repr, ORDERS))}")
    return order


def strip_height(order: str, group_m: int | None) -> int:
    """Tile rows in a strip: as given, else 8 for `swizzled` and 1 (row-major) for the others."""
    if group_m is None:
        return DEFAULT_SWIZZLE if order == "swizzled" else 1
    return check_positive("group_m", group_m)


def tile_counts(problems: Iterable[Sequence[int]], block_m: int, block_n: int) -> list[int]:
    """Count the tiles of each problem.

    Args, Raises: as `tiles`.

    Returns:
        One count per problem. A problem with M = 0 or N = 0 has no tiles. One with K = 0 has its full number, because
        its output exists and must be filled with zeros.
    """
    block_m, block_n = check_positive("block_m", block_m), check_positive("block_n", block_n)
    return [-(-m // block_m) * -(-n // block_n) for m, n, _ in check_problems(problems)]


def tiles(problems: Iterable[Sequence[int]], block_m: int, block_n: int, group_m: int = 1) -> list[Tile]:
    """List the tiles of all problems in the global order, problem by problem: `result[i].index == i`.

    Args:
        problems: (M, N, K) of each problem, in elements.
        block_m, block_n: rows and columns of a tile.
        group_m: tile rows in a strip. A strip is walked column by column, so that tiles that run together share
            operand panels. With 1 the order is row-major: the column changes fastest.

    Raises:
        TypeError: a problem is not three integers.
        ValueError: a negative extent, or a block extent or `group_m` below 1.

    Notes:
        The strips are the program order of Triton's matrix multiplication tutorial, and the kernels' own.
        The last strip may hold fewer than `group_m` rows; its columns are then shorter, not padded.
    """
    block_m, block_n = check_positive("block_m", block_m), check_positive("block_n", block_n)
    group_m = check_positive("group_m", group_m)
    found: list[Tile] = []
    for problem, (size_m, size_n, size_k) in enumerate(check_problems(problems)):
        tiles_m, tiles_n = -(-size_m // block_m), -(-size_n // block_n)
        width = group_m * tiles_n
        for i in range(tiles_m * tiles_n):
            strip = i // width
            first_m = strip * group_m
            height = min(tiles_m - first_m, group_m)
            m = first_m + (i % width) % height
            n = (i % width) // height
            rows = min(block_m, size_m - m * block_m)
            cols = min(block_n, size_n - n * block_n)
            found.append(Tile(problem, m, n, rows, cols, size_k, len(found)))
    return found


def deal(found: list[Tile], order: str, programs: int) -> list[list[Tile]]:
    """Split tiles in global order over programs by a static order's rule."""
    if order == "chunks":
        chunk = -(-len(found) // programs)
        return [found[p * chunk : (p + 1) * chunk] for p in range(programs)]
    return [found[p::programs] for p in range(programs)]


def walk(
    problems: Iterable[Sequence[int]],
    order: str = "round_robin",
    programs: int = 132,
    block: Sequence[int] = DEFAULT_BLOCK,
    group_m: int | None = None,
) -> list[list[Tile]]:
    """List which tiles each program computes, in the order in which it computes them.

    Args:
        problems: (M, N, K) of each problem, in elements.
        order: one of `STATIC_ORDERS`.
        programs: how many programs share the tiles.
        block: (BLOCK_M, BLOCK_N) or (BLOCK_M, BLOCK_N, BLOCK_K); the third does not matter here.
        group_m: tile rows in a strip (see `tiles`); by default 8 for `swizzled`, else 1.

    Returns:
        One list of tiles per program, maybe empty; together they hold every tile once.

    Raises:
        TypeError: a problem or the block has the wrong form.
        ValueError: an extent out of range, or an order that is unknown or not static.
    """
    if check_order(order) not in STATIC_ORDERS:
        raise ValueError(
            f"order is {order!r}, which depends on how long tiles take: use simulate(); "
            f"walk() knows {', '.join(map(repr, STATIC_ORDERS))}"
        )
    programs = check_positive("programs", programs)
    block = check_block(block)
    return deal(tiles(problems, block[0], block[1], strip_height(order, group_m)), order, programs)


def problem_starts(own: Sequence[Tile]) -> list[int]:
    """Indices in one program's tiles where the problem changes, so that the program makes new descriptors."""
    return [i for i, tile in enumerate(own) if i == 0 or tile.problem != own[i - 1].problem]


def xcd_tile(tile: int, tiles: int, programs: int, num_xcds: int) -> int:
    """Return the tile that a kernel computes in a tile's place, so that a chiplet's programs share its L2 cache.

    A GPU of several chiplets (XCDs) deals programs out to them in turn: program p runs on chiplet p % num_xcds. Of the
    tiles computed at a time (tile i * programs to (i + 1) * programs - 1, for some i), a chiplet then has every
    num_xcds-th. This order gives it a run of them.

    Args:
        tile: in the round-robin order, from 0 to tiles - 1.
        tiles: how many there are.
        programs: how many programs share them.
        num_xcds: how many chiplets the GPU has.

    Returns:
        A tile of the same round. For any numbers, each tile comes once.

    Notes:
        The remapping of program ids in AITER's and Triton's kernels for MI300, for persistent programs too.
    """
    first = tile // programs * programs
    count, inside = min(tiles - first, programs), tile - first
    xcd = inside % num_xcds
    return first + xcd * (count // num_xcds) + min(xcd, count % num_xcds) + inside // num_xcds
