"""The walk of exercise 13 as plain Python: a stand-in for Helion's language that notes what each worker looks at.

A Helion kernel is Python, and of the language a walk over tiles needs loops alone. So the judge runs it without Helion,
which would have to write files and import them: an answer's process may not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCKS = BLOCK_M, BLOCK_N = 16, 8
_INDEX = "Helion takes no single number out of a tensor by an index: torch.amax(…) gives the largest"
_NUMBER = "Helion compiles this for a GPU, where a tensor's value is no Python number: hl.grid takes the tensor itself"
MOST_TURNS = 20_000  # of all loops together


class Values(Tensor):
    """A tensor as it is while Helion reads a kernel: its values are not known, so nothing asks for one.

    Results that torch computes from it are ``Values``, too.
    """

    def _refuse(self, *_):
        raise TypeError(_NUMBER)

    __int__ = __index__ = __float__ = __complex__ = __bool__ = __iter__ = __array__ = item = tolist = numpy = _refuse

    def __getitem__(self, index):
        for each in index if isinstance(index, tuple) else (index,):
            if each is not None and each is not Ellipsis and not isinstance(each, (slice, Tensor)):
                raise TypeError(_INDEX)
        return super().__getitem__(index)


class Language:
    """Stands in for ``helion.language``: ``grid`` counts, and notes turns of a loop that computed nothing.

    Attributes:
        tiles: [worker, row, end, col] of each computed tile, in order; numbers, or the name of another type.
        skipped: worker → turns of its innermost loops in which it computed no tile. A loop is innermost if no turn of
            it had another loop: a walk may pass over a group.
    """

    def __init__(self):
        self.start()

    def start(self) -> None:
        """Forget everything."""
        self.tiles: list[list] = []
        self.skipped: dict[int, int] = {}
        self._turns = 0
        self._inside: list[list] = []  # of each open loop: its number, tiles of this turn, and whether it had loops

    def grid(self, begin_or_end, end=None, step=1) -> Iterator[int]:
        """Count from begin to before end; the outermost loop counts workers."""
        begin, end = (0, begin_or_end) if end is None else (begin_or_end, end)
        begin, end, step = (_whole("hl.grid", each) for each in (begin, end, 1 if step is None else step))
        if step < 1:
            raise ValueError(f"hl.grid counts upwards: its step must be at least 1, got {step}")
        if self._inside:
            self._inside[-1][2] = True
        loop, unused = [None, 0, False], 0
        try:
            for number in range(begin, end, step):
                self._turns += 1
                if self._turns > MOST_TURNS:
                    raise RuntimeError(
                        f"the loops of all workers have made {MOST_TURNS} turns, and there are fewer tiles"
                    )
                loop[:2] = number, 0
                self._inside.append(loop)
                try:
                    yield number
                finally:  # also where the loop is left by `break`
                    self._inside.pop()
                    unused += not loop[1]
        finally:
            if self._inside and not loop[2] and unused:
                worker = self._inside[0][0]
                self.skipped[worker] = self.skipped.get(worker, 0) + unused

    def compute(self, row, end, col) -> None:
        """Note a tile."""
        if not self._inside:
            raise RuntimeError("COMPUTE_TILE was called outside of hl.grid")
        self._inside[-1][1] += 1
        self.tiles.append([self._inside[0][0], *(_number(each) for each in (row, end, col))])


LANGUAGE = Language()


def _grid(*bounds, **more) -> Iterator[int]:
    return LANGUAGE.grid(*bounds, **more)


class Given:
    """What an answer has as ``hl``: it counts, and leads to nothing that was noted."""

    constexpr = int
    grid = staticmethod(_grid)  # a bound method would hold what was noted

    @staticmethod
    def arange(length: int) -> Tensor:
        """Numbers from 0, as of the entries of ``ends``."""
        return torch.arange(length).as_subclass(Values)

    def __getattr__(self, name: str):
        raise AttributeError(f"this walk needs nothing of hl but hl.grid and hl.arange: the check knows no hl.{name}")


def counting(*bounds):
    """``range``, which Helion takes for ``hl.grid`` where a bound is a tensor."""
    return LANGUAGE.grid(*bounds) if any(isinstance(each, Tensor) for each in bounds) else range(*bounds)


def COUNT_TILE_ROWS(group_offsets: Tensor, WIDTH: int, BLOCK_M: int) -> tuple[Tensor, Tensor]:
    """As the notebook's: the end of each group, and the tile rows up to there; both repeat after the last group."""
    groups, G = torch.arange(WIDTH), group_offsets.size(0) - 1
    starts, ends = (group_offsets[torch.clamp(groups + shift, 0, G)] for shift in (0, 1))
    tile_rows = torch.div(ends - starts + BLOCK_M - 1, BLOCK_M, rounding_mode="trunc")
    return ends.as_subclass(Values), tile_rows.cumsum(0).to(torch.int32).as_subclass(Values)


class Operand(Tensor):
    """A matrix that an answer only passes on; ``name`` is its parameter's."""

    name = ""


def operand(name: str, *shape: int) -> Operand:
    """A matrix of zeros with a name."""
    found = torch.zeros(shape).as_subclass(Operand)
    found.name = name
    return found


def COMPUTE_TILE(A_packed, B, out, row, end, col, BLOCK_M, BLOCK_N) -> None:
    """Note the tile. Learners see its name in Python's messages. Raises TypeError if arguments are exchanged."""
    given = [getattr(each, "name", None) or f"a {type(each).__name__}" for each in (A_packed, B, out)]
    if given != ["A_packed", "B", "out"]:
        raise TypeError(f"COMPUTE_TILE takes A_packed, B, out in this order, and was given {', '.join(given)}")
    if (BLOCK_M, BLOCK_N) != _BLOCKS:
        raise TypeError(f"COMPUTE_TILE takes BLOCK_M, BLOCK_N last, {_BLOCKS}, and was given {(BLOCK_M, BLOCK_N)}")
    LANGUAGE.compute(row, end, col)


def _number(value) -> int | str:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.as_subclass(Tensor).item()
    if type(value) is int and abs(value) < 2**31:
        return value
    return f"a {type(value).__name__}"


def _whole(name: str, value) -> int:
    found = _number(value)
    if isinstance(found, str):
        raise TypeError(f"{name} counts whole numbers, and was given {found}: / divides, // counts")
    return found
