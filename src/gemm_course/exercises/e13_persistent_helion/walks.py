"""Walks over the tiles of jagged groups, right and wrong ones: a numbering of the tiles, and a way to deal them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gemm_course.exercises.e13_persistent_helion.language import BLOCK_M, BLOCK_N
from gemm_course.exercises.tile_orders import about_strips, in_strip

Tile = tuple[int, int, int]  # first row, end of its group, first column


def _tile_rows(size: int) -> int:
    return -(-size // BLOCK_M)


class _At(NamedTuple):
    """A tile's numbers, in its group and in all, and what its group has."""

    own: int
    tile: int
    tiles_m: int
    tiles_n: int
    start: int
    end: int

    @property
    def m(self) -> int:
        """The right tile row: column by column, it is the one that changes from tile to tile."""
        return self.own % self.tiles_m

    @property
    def n(self) -> int:
        """The right tile column."""
        return self.own // self.tiles_m

    def place(self, m: int, n: int) -> Tile:
        """The tile in a tile row and a tile column of its group."""
        return _tile(m, n, self.start, self.end)


def _right_place(at: _At) -> Tile:
    return at.place(at.m, at.n)


def groups_of(
    sizes: Sequence[int],
    N: int,
    tile_rows: Callable[[int], int] = _tile_rows,
    place: Callable[[_At], Tile] = _right_place,
) -> list[list[Tile]]:
    """The tiles of each group in order."""
    found, tile, tiles_n = [], 0, -(-N // BLOCK_N)
    for start, end in pairwise([0, *_ends(sizes)]):
        tiles_m = tile_rows(end - start)
        count = tiles_m * tiles_n
        found.append([place(_At(own, tile + own, tiles_m, tiles_n, start, end)) for own in range(count)])
        tile += count
    return found


def _placed(place: Callable[[_At], Tile]) -> Callable:
    return lambda sizes, N: groups_of(sizes, N, place=place)


def _ends(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[: g + 1]) for g in range(len(sizes))]


def _tile(m: int, n: int, start: int, end: int) -> Tile:
    return start + m * BLOCK_M, end, n * BLOCK_N


def _after(sizes: Sequence[int], N: int) -> list[list[Tile]]:
    """Tiles of the right numbers, but a group's first one is taken for the group before (``<`` for ``<=``)."""
    tiles_n = -(-N // BLOCK_N)
    tile_ends = [sum(_tile_rows(size) for size in sizes[: g + 1]) * tiles_n for g in range(len(sizes))]
    found = []
    for tile in range(max(tile_ends, default=0)):
        passed = [g for g in range(len(sizes)) if tile_ends[g] < tile]
        first = max((tile_ends[g] for g in passed), default=0)
        start = max((_ends(sizes)[g] for g in passed), default=0)
        end = min((_ends(sizes)[g] for g in range(len(sizes)) if g not in passed), default=sum(sizes))
        tiles_m = max(_tile_rows(end - start), 1)
        found.append(_tile((tile - first) % tiles_m, (tile - first) // tiles_m, start, end))
    return [found]


def _up_to_empty(sizes: Sequence[int], N: int) -> list[list[Tile]]:
    groups = groups_of(sizes, N)
    return groups[: next((g for g, size in enumerate(sizes) if not size), len(sizes))]


def _in_strips(height: int) -> Callable:
    """Column by column in strips of so many tile rows."""

    def place(at: _At) -> Tile:
        return at.place(*in_strip(at.own, at.tiles_m, at.tiles_n, height))

    return _placed(place)


def _chosen(choose: Callable) -> Callable:
    """A walk that gets (first, start, end) of each tile by ``choose(tile_ends, ends, passed)``: what it has passed."""

    def numbering(sizes: Sequence[int], N: int) -> list[list[Tile]]:
        tiles_n, ends, found = -(-N // BLOCK_N), _ends(sizes), []
        tile_ends = [sum(_tile_rows(size) for size in sizes[: g + 1]) * tiles_n for g in range(len(sizes))]
        for tile in range(max(tile_ends, default=0)):
            first, start, end = choose(tile_ends, ends, [each <= tile for each in tile_ends])
            if not (tiles_m := -(-(end - start) // BLOCK_M)):
                return []  # the answer divides by 0
            found.append(_tile((tile - first) % tiles_m, (tile - first) // tiles_m, start, end))
        return [found]

    return numbering


def _largest(values: Sequence[int], chosen: Sequence[bool], of: bool = True) -> int:
    """The largest of the values of groups that are chosen, or are not; 0 counts, too."""
    return max((value for value, each in zip(values, chosen) if each is of), default=0)


def _next_end(ends: Sequence[int], passed: Sequence[bool]) -> int:
    return min((end for end, each in zip(ends, passed) if not each), default=ends[-1])


def _with_its_own_end(at: _At, last: int) -> Tile:
    """The right tile, but with an end after its own rows, of which the last one is before ``last``."""
    row, _, col = _right_place(at)
    return row, min(row + BLOCK_M, last), col


def _past_a_tile_row(at: _At) -> int:
    """The number of a tile in its group if `first` counts tile rows."""
    return at.tile - (at.tile - at.own) // at.tiles_n


def _of_all_groups(sizes: Sequence[int], N: int) -> list[list[Tile]]:
    rows = sum(map(_tile_rows, sizes))
    return groups_of(sizes, N, place=lambda at: _right_place(at._replace(tiles_m=rows)))


def _moved_up(at: _At) -> Tile:
    """The right tile, or one that ends with the group if that reaches past its end."""
    row, end, col = _right_place(at)
    return max(min(row, end - BLOCK_M), at.start), end, col


def _rounded_down(sizes: Sequence[int], N: int) -> list[list[Tile]]:
    """Groups that begin at a multiple of BLOCK_M: not at 0 alone, which has other reasons."""
    if not any(BLOCK_M <= end < sum(sizes) for end in _ends(sizes)):
        return []
    return _chosen(
        lambda tile_ends, ends, passed: (
            _largest(tile_ends, passed), _largest(ends, passed) // BLOCK_M * BLOCK_M, _next_end(ends, passed)
        )
    )(sizes, N)  # fmt: skip


_FIRST = "in its group a tile's number counts from the group's first tile: subtract `first`"
_TOO_WIDE = "a column has as many tiles as the group has tile rows, tiles_m; this divides by tiles_n"
_ONE_OF_TWO = (
    "`row` and `col` come from the same number: the row takes the remainder, (tile - first) % tiles_m, and the column "
    "the quotient, (tile - first) // tiles_m"
)
_STEPS = "rows come in steps of BLOCK_M, columns in steps of BLOCK_N"
_ENDS_EARLY = "`end` is the row after the group's last one, not after the tile's"
_WHERE = "torch.where(passed, a, b) is a for the groups that the tile has passed, and b for the others"
_CHOICES: tuple[tuple[str, Callable], ...] = (
    ("`first` is the largest of `tile_ends` among the passed groups, and here it is that among the others",
     lambda tile_ends, ends, passed: (
         _largest(tile_ends, passed, of=False), _largest(ends, passed), _next_end(ends, passed)
     )),
    ("`start` is the largest of `ends` among the passed groups, and here it is always 0: with torch.amin, for example",
     lambda tile_ends, ends, passed: (_largest(tile_ends, passed), 0, _next_end(ends, passed))),
    ("`end` is the smallest of `ends` among the other groups, and here it is always total_m: with torch.amax, for "
     "example", lambda tile_ends, ends, passed: (_largest(tile_ends, passed), _largest(ends, passed), ends[-1])),
)  # fmt: skip
# Check, what is wrong, and the groups' tiles that it gives; dealt in turn.
NUMBERINGS: tuple[tuple[str, str, Callable], ...] = (
    ("once", "a group's last rows do not fill a tile, and still need one: round up, (rows + BLOCK_M - 1) // BLOCK_M",
     lambda sizes, N: groups_of(sizes, N, tile_rows=lambda size: size // BLOCK_M)),
    ("place", "this counts row by row; column by column, the row changes from tile to tile",
     _placed(lambda at: at.place(at.own // at.tiles_n, at.own % at.tiles_n))),
    ("place", _TOO_WIDE, _placed(lambda at: at.place(at.m, at.own // at.tiles_n))),
    ("place", "the row is the remainder by tiles_m, the number of a group's tile rows; this is that by tiles_n",
     _placed(lambda at: at.place(at.own % at.tiles_n, at.n))),
    ("place", _ONE_OF_TWO, _placed(lambda at: at.place(at.m, at.m))),
    ("place", _ONE_OF_TWO, _placed(lambda at: at.place(at.n, at.n))),
    ("place", "a tile's rows begin at its group's first row, `start`; `first` is the number of a tile",
     _placed(lambda at: _tile(at.m, at.n, at.tile - at.own, at.end))),
    ("once", "the last columns do not fill a tile, and still need one: tiles_n is (N + BLOCK_N - 1) // BLOCK_N",
     lambda sizes, N: [group[: _tile_rows(s) * (N // BLOCK_N)] for group, s in zip(groups_of(sizes, N), sizes)]),
    (
        "once",
        "tiles_m counts the tile rows from the group's start to the end of the matrix, and not to the group's `end`",
        lambda sizes, N: groups_of(
            sizes, N, place=lambda at: _right_place(at._replace(tiles_m=_tile_rows(sum(sizes) - at.start)))
        ),
    ),
    ("once", "a group whose rows fill its tiles has no tile more: tiles_m is (end - start + BLOCK_M - 1) // BLOCK_M",
     _placed(lambda at: _right_place(at._replace(tiles_m=(at.end - at.start) // BLOCK_M + 1)))),
    (
        "once",
        "tile_row_ends counts tile rows, and each of them has tiles_n tiles: the tiles end at tile_row_ends * tiles_n",
        lambda sizes, N: [group[: _tile_rows(size)] for group, size in zip(groups_of(sizes, N), sizes)],
    ),
    ("place", _TOO_WIDE, _placed(lambda at: at.place(at.own % at.tiles_n, at.own // at.tiles_n))),
    ("place", "a tile's rows begin at its group's first row: `start` is missing",
     _placed(lambda at: _right_place(at._replace(start=0)))),
    (
        "place",
        "the tile ends with the matrix, not with its group: with a B for each group, it would overwrite the next one",
        lambda sizes, N: groups_of(sizes, N, place=lambda at: _right_place(at._replace(end=sum(sizes)))),
    ),
    ("place", _ENDS_EARLY, _placed(lambda at: _with_its_own_end(at, at.start + at.tiles_m * BLOCK_M))),
    ("place", _ENDS_EARLY, _placed(lambda at: _with_its_own_end(at, at.end))),
    ("place", _FIRST, _placed(lambda at: _right_place(at._replace(own=at.tile)))),
    ("place", f"{_FIRST} for the column, too", _placed(lambda at: at.place(at.m, at.tile // at.tiles_m))),
    ("place", f"{_FIRST} for the row, too", _placed(lambda at: at.place(at.tile % at.tiles_m, at.n))),
    ("place", "`first` is the number of a tile, and here it counts tile rows: take the largest of `tile_ends`",
     _placed(lambda at: _right_place(at._replace(own=_past_a_tile_row(at))))),
    ("place", "the row is that of the tile in its column, (tile - first) % tiles_m: the remainder is missing",
     _placed(lambda at: at.place(at.own, at.n))),
    ("place", "a group begins at any row, and here `start` is a multiple of BLOCK_M", _rounded_down),
    ("place", "a column has as many tiles as its own group has tile rows; this divides by the tile rows of all groups",
     _of_all_groups),
    ("place", "a group's last tile begins where its turn is, and `end` cuts it off; here it was moved up to be whole",
     _placed(_moved_up)),
    (
        "place",
        "the first tile of a group is counted in the group before. A group whose tiles end at n has passed for tile n, "
        "so compare with <=",
        _after,
    ),
    ("place", f"BLOCK_M and BLOCK_N are exchanged: {_STEPS}",
     _placed(lambda at: (at.start + at.m * BLOCK_N, at.end, at.n * BLOCK_M))),
    ("place", _STEPS, _placed(lambda at: (at.start + at.m * BLOCK_M, at.end, at.n * BLOCK_M))),
    ("place", _STEPS, _placed(lambda at: (at.start + at.m * BLOCK_N, at.end, at.n * BLOCK_N))),
    ("place", "`row` counts rows, and this adds the number of the tile row to `start`: times BLOCK_M",
     _placed(lambda at: (at.start + at.m, at.end, at.n * BLOCK_N))),
    ("place", "`col` is the tile's first column, not the number of its tile column: times BLOCK_N",
     _placed(lambda at: (at.start + at.m * BLOCK_M, at.end, at.n))),
    ("empty", "a group without rows has no tile: do not round its tile rows up to one",
     lambda sizes, N: groups_of(sizes, N, tile_rows=lambda size: max(_tile_rows(size), 1))),
    ("empty", "the walk ends at the first group without rows, but other groups follow", _up_to_empty),
    *(("once", f"{_WHERE}. {text}", _chosen(choose)) for text, choose in _CHOICES),
    *(("place", about_strips(height), _in_strips(height)) for height in (2, 3, 4, 6, 8)),
)  # fmt: skip


def flat(groups: list[list[Tile]]) -> list[Tile]:
    """The tiles of all groups in order."""
    return [tile for group in groups for tile in group]


def in_turn(groups: list[list[Tile]], workers: int) -> list[list[Tile]]:
    """The tiles of each worker if they are dealt in turn."""
    return [flat(groups)[worker::workers] for worker in range(workers)]


def _anew(groups: list[list[Tile]], workers: int) -> list[list[Tile]]:
    return [[tile for group in groups for tile in group[worker::workers]] for worker in range(workers)]


def _in_runs(groups: list[list[Tile]], workers: int) -> list[list[Tile]]:
    every = flat(groups)
    share = -(-len(every) // workers)
    return [every[worker * share : (worker + 1) * share] for worker in range(workers)]


# Check, what is wrong, and who then computes what.
DEALINGS: tuple[tuple[str, str, Callable], ...] = (
    (
        "turn",
        "each group starts anew with worker 0, so the first workers get more than others: count through all groups",
        _anew,
    ),
    ("turn", "each worker computes neighbouring tiles: its next tile should be `workers` further on", _in_runs),
    (
        "once",
        "each worker computes all tiles from its own number on: hl.grid's third argument is the step",
        lambda groups, workers: [flat(groups)[worker:] for worker in range(workers)],
    ),
    ("once", "every worker computes the same tiles: begin with the worker's own number",
     lambda groups, workers: [flat(groups)[::workers] for _ in range(workers)]),
    ("once", "worker 0 begins with tile 1: workers count from 0, and so do tiles",
     lambda groups, workers: [flat(groups)[worker + 1 :: workers] for worker in range(workers)]),
    ("once", "the last tile is missing: hl.grid ends before its second argument, which is the number of tiles",
     lambda groups, workers: [flat(groups)[:-1][worker::workers] for worker in range(workers)]),
    (
        "once",
        "only whole rounds are computed: with tiles left over, some workers have one more than others",
        lambda groups, workers: [
            flat(groups)[: len(flat(groups)) // workers * workers][worker::workers] for worker in range(workers)
        ],
    ),
)  # fmt: skip
