"""Wrong rows of `local`, the experts that a rank is asked for, and the mistakes that give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A wrong row of `local`, and what its token's choices are."""

    number: int
    rank: int
    token: int
    got: list[int]
    want: list[int]
    ids: list[int]
    owners: list[int]

    @property
    def column(self) -> int:
        """The first wrong one; if it is wrong, one with an id that is nobody's, whose owner is -1."""
        wrong = [j for j, (one, other) in enumerate(zip(self.got, self.want)) if one != other]
        return min(wrong, key=lambda j: self.owners[j] >= 0)

    def in_place(self, numbers: Sequence[int]) -> bool:
        """Whether each column has its number, or -1."""
        return all(one in (-1, number) for one, number in zip(self.got, numbers))


def mistakes(each: int, ranks: int) -> Iterator[tuple[Callable[[Row], str], Callable[[Row], bool]]]:
    """Words about a wrong row, and whether a row has the mistake."""

    def kept(row: Row, number: Callable[[int], int], other: int = -1) -> list[int]:
        return [number(e) if owner == row.rank else other for e, owner in zip(row.ids, row.owners)]

    def anothers(row: Row) -> str:
        owner = row.owners[row.column]
        return f"choice {row.column} is rank {owner}'s, so rank {row.rank} must not compute it: -1"

    yield (
        lambda row: f"choice {row.column} is at rank {row.rank} as well: the row carries all of its choices there",
        lambda row: row.in_place(row.want),
    )
    yield anothers, lambda row: row.got == [e % each for e in row.ids]
    yield anothers, lambda row: row.got == [e - row.rank * each for e in row.ids]
    yield anothers, lambda row: row.rank == 0 and row.in_place(row.ids)
    yield (
        lambda row: (
            "the ids of all ranks' experts mean nothing there: "
            f"rank {row.rank} begins with expert {row.rank * each}, and calls it 0"
        ),
        lambda row: row.in_place(row.ids),
    )
    yield (
        lambda _: f"this is id % ranks: the rank's experts are {each} neighbours, so the number there is id % {each}",
        lambda row: row.got == kept(row, lambda e: e % ranks),
    )
    yield (
        lambda _: "a rank's experts count from 0",
        lambda row: row.got == kept(row, lambda e: e % each + 1),
    )
    yield (
        lambda _: "0 is an expert of this rank, too: a choice that is not its own is -1",
        lambda row: row.got == kept(row, lambda e: e % each, 0),
    )
    yield (
        lambda _: "column j belongs to choice j: its routing weight travels in the same column",
        lambda row: sorted(row.got) == sorted(row.want),
    )
