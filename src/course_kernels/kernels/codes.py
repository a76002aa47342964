"""The numbers that launches pass to kernels, by name. No Triton here: host code reads them without loading it.

A kernel's module makes its own ``tl.constexpr`` of each, under the same name.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

SCALE_BLOCK = 128  # elements along K, and lines of a square block, that share a factor
# With more ends a thread holds more than eight or sixteen of them. Code then grows with the number of groups: at 8,192
# products take all 255 registers, and at 16,384 they spill.
MOST_COMPARED = 2048


def compared_groups(groups: int) -> int:
    """``GROUPS`` of a launch: how many groups' ends a kernel compares with at once, a power of two of 2 or more.

    0 for more than MOST_COMPARED groups: then kernels search, with the same code for any number.
    """
    return max(2, 1 << (groups - 1).bit_length()) if groups <= MOST_COMPARED else 0


@dataclasses.dataclass(frozen=True)
class FunctionName:
    """A compile-time argument that is a ``@triton.jit`` function of the kernel's module."""

    name: str


class Layout(enum.IntEnum):
    """How an operand is stored: which of its two strides is known to be 1."""

    ANY = 0
    ROW_MAJOR = 1
    COL_MAJOR = 2


class Schedule(enum.IntEnum):
    """How tiles are handed to programs; ``GemmConfig.schedule`` in lower case."""

    ROUND_ROBIN = 0
    CHUNKS = 1
    DYNAMIC = 2


class Store(enum.IntEnum):
    """How C is stored: through pointers and masks, a window, or a descriptor of (G, M, N)."""

    POINTERS = 0
    WINDOW = 1
    GROUPED = 2


class Scales(enum.IntEnum):
    """What factors float8 operands have: none, one for each line, or one for each block."""

    NONE = 0
    LINES = 1
    BLOCKS = 2


class Record(enum.IntEnum):
    """What a kernel writes to its log: nothing, each tile's program, or the SM and the times, too."""

    OFF = 0
    PROGRAM = 1
    TIME = 2


class Function(enum.IntEnum):
    """The function of an ``Activation``."""

    SILU = 0
    GELU = 1  # by the error function
    GELU_TANH = 2
    RELU = 3
    RELU2 = 4  # the square of relu


class Activation(NamedTuple):
    """The activation between a feed-forward layer's products: f(gate) * (up + shift), or f(x) where it is not gated.

    Attributes:
        function: f. SILU is x * sigmoid(alpha * x).
        gated: whether the first product has two halves, gate and up.
        alpha: of SILU alone; 1 for other functions.
        limit: gate is at most this, and up is between its negative and it; None for no limit.
        shift: added to up.
    """

    function: Function
    gated: bool = True
    alpha: float = 1.0
    limit: float | None = None
    shift: float = 0.0
