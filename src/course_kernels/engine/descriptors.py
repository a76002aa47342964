"""Through a TMA descriptor or through pointers: how the Triton kernels read or write a matrix; and the order of
shuffled weights."""

from __future__ import annotations

from typing import NamedTuple

import torch

from course_kernels.engine.signature import WINDOW_ROWS
from course_kernels.kernels.codes import Layout, Store

LINES, PACK_BYTES = 16, 16  # a shuffled weight stores 16 bytes of each of 16 lines together


class Access(NamedTuple):
    """How a kernel reads or writes one matrix or batch of matrices.

    Attributes:
        kind: the kernel's constant for it, a ``Layout`` or a ``Store``.
        shape, strides: of the descriptor, contiguous dimension last; None where pointers are used.
        ragged: the descriptor's first dimension is a bound that slides with the group.
    """

    kind: int
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    ragged: bool = False

    @property
    def has_descriptor(self) -> bool:
        """Whether the kernel goes through a descriptor."""
        return self.shape is not None

    def descriptor(self, base: torch.Tensor, block: tuple[int, int]):
        """The descriptor for blocks of two dimensions, or None."""
        if self.shape is None:
            return None
        from triton.tools.ragged_tma import create_ragged_descriptor
        from triton.tools.tensor_descriptor import TensorDescriptor

        if self.ragged:
            return create_ragged_descriptor(base.as_strided(self.shape, self.strides), list(block))
        leading = [1] * (len(self.shape) - 2)
        return TensorDescriptor(base, list(self.shape), list(self.strides), leading + list(block))


def load_access(operand: torch.Tensor, uses_tma: bool) -> Access:
    """The access by which ``contiguous.load_block`` reads an operand (..., rows, K)."""
    if uses_tma:
        for kind, view in ((Layout.ROW_MAJOR, operand), (Layout.COL_MAJOR, operand.mT)):
            if strides := strides_for_load(view):
                return Access(int(kind), tuple(view.shape), strides)
    return Access(int(Layout.ANY))


def ragged_access(matrix: torch.Tensor, uses_tma: bool, stored: bool = False) -> Access:
    """The access to a matrix whose first dimension the groups divide; pointers if no descriptor fits."""
    strides = (strides_for_store if stored else strides_for_load)(matrix)
    if uses_tma and matrix.shape[0] <= WINDOW_ROWS and strides:
        return Access(int(Store.WINDOW), tuple(matrix.shape), strides, ragged=True)
    return Access(int(Store.POINTERS))


def batch_access(batch: torch.Tensor, uses_tma: bool) -> Access:
    """The access to a result (G, M, N); pointers if no descriptor fits."""
    if uses_tma and (strides := strides_for_store(batch)):
        return Access(int(Store.GROUPED), tuple(batch.shape), strides)
    return Access(int(Store.POINTERS))


def strides_for_load(matrix: torch.Tensor) -> tuple[int, ...] | None:
    """Strides for a descriptor of a tensor as it is, last dimension contiguous; None if no descriptor fits.

    A stride along an extent of 1 is never used, so any that satisfies the hardware serves.
    """
    unit = 16 // matrix.element_size()
    if matrix.data_ptr() % 16 or not matrix.numel() or max(matrix.shape) >= 2**31:
        return None
    strides = [1]
    if matrix.stride(-1) != 1 and matrix.shape[-1] > 1:
        return None
    span = -(-matrix.shape[-1] // unit) * unit
    for extent, stride in reversed(list(zip(matrix.shape[:-1], matrix.stride()[:-1]))):
        if extent <= 1:
            stride = span
        if stride <= 0 or stride % unit or stride * matrix.element_size() >= 2**40:
            return None
        strides.append(stride)
        span = max(span, extent * stride)
    return tuple(reversed(strides))


def strides_for_store(matrix: torch.Tensor) -> tuple[int, ...] | None:
    """Strides for a descriptor of a result, as ``strides_for_load``. Rows must be multiples of 16 bytes: a store writes
    16 bytes at a time, so the last ones would pass the end of a shorter row."""
    if matrix.shape[-1] * matrix.element_size() % 16:
        return None
    return strides_for_load(matrix)


def flat_rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """A view of (G, max_M, columns) as (G * max_M, columns); None if the strides do not allow it."""
    groups, rows, columns = tensor.shape
    of_group, of_row, of_column = tensor.stride()
    if groups > 1 and rows > 1 and of_group != rows * of_row:
        return None
    return tensor.as_strided((groups * rows, columns), (of_row if rows > 1 else of_group, of_column))


def unshuffled(weight: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a weight (..., N, K), from the order of ``shuffle_weight`` to that of its indices."""
    *groups, lines, depth = weight.shape
    pack = PACK_BYTES // weight.element_size()
    parts = weight.reshape(*groups, lines // LINES, depth // pack, LINES, pack)
    return parts.transpose(-3, -2).contiguous().reshape(weight.shape)
