"""Columns of the factors of blocks in mode "k", where groups begin anywhere along K.

Either blocks restart at every group. Then group g's factors begin in column ``offs[g - 1] // 128 + g``: no two groups
share a column, whatever their ends, and a few columns between groups have no block. Or groups end at multiples of 128
and blocks run on; then there are none to spare. The number of columns says which. Kernels compute the same by
themselves.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from course_kernels.kernels.codes import SCALE_BLOCK

BLOCK = SCALE_BLOCK
Index = TypeVar("Index", int, Tensor)


def first_column(start: Index, group: Index) -> Index:
    """The column of the first block of a group that begins at ``start``, if blocks restart at every group."""
    return start // BLOCK + group


def padded_columns(total: int, groups: int) -> int:
    """The number of columns, if blocks restart at every group: where one more group would begin."""
    return first_column(total, groups)


def blocks_restart(scale_a: Tensor, total: int, groups: int) -> bool:
    """Whether the blocks of checked scales of mode "k" restart at every group, by the number of columns."""
    return scale_a.shape[1] == padded_columns(total, groups)
