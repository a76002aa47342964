"""How the packed kernels read or write a matrix: through which descriptor, or through pointers."""

from __future__ import annotations

import dataclasses

import torch

WINDOW_ROWS = 2**30  # what a window can hold (triton.tools.ragged_tma)


@dataclasses.dataclass(frozen=True)
class Operand:
    """How a kernel reads or writes one matrix or batch of matrices.

    Attributes:
        kind: the kernel's constant for it.
        shape, strides: of the descriptor, contiguous dimension last; None where pointers are used.
        window: the descriptor's first dimension is ragged and slides.
    """

    kind: int
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    window: bool = False

    def descriptor(self, base: torch.Tensor, block: tuple[int, int]):
        """The descriptor for blocks of two dimensions, or None."""
        if self.shape is None:
            return None
        from triton.tools.ragged_tma import create_ragged_descriptor
        from triton.tools.tensor_descriptor import TensorDescriptor

        if self.window:
            return create_ragged_descriptor(base.as_strided(self.shape, self.strides), list(block))
        leading = [1] * (len(self.shape) - 2)
        return TensorDescriptor(base, list(self.shape), list(self.strides), leading + list(block))


def strides_for_load(matrix: torch.Tensor) -> tuple[int, ...] | None:
    """Strides under which a descriptor describes a tensor as it is, last dimension contiguous; None where it cannot.

    A stride along an extent of 1 is never used: any that satisfies the hardware serves."""
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


def lines(operand: torch.Tensor, described: bool) -> Operand:
    """How ``contiguous.load_block`` reads an operand (..., lines, K)."""
    from course_kernels.kernels.round_robin import ANY, COL_MAJOR, ROW_MAJOR

    if described:
        for kind, view in ((ROW_MAJOR, operand), (COL_MAJOR, operand.mT)):
            if strides := strides_for_load(view):
                return Operand(kind.value, tuple(view.shape), strides)
    return Operand(ANY.value)


def strides_for_store(matrix: torch.Tensor) -> tuple[int, ...] | None:
    """As ``strides_for_load``, for a result. A load stops at the bound to the element; a store writes whole 16
    bytes, of which the last would reach past the end of each row."""
    if matrix.shape[-1] * matrix.element_size() % 16:
        return None
    return strides_for_load(matrix)


def window(matrix: torch.Tensor, described: bool, stored: bool = False) -> Operand:
    """A matrix whose first dimension is ragged, as a window; pointers where that cannot be."""
    from course_kernels.kernels.contiguous import POINTERS, WINDOW

    strides = (strides_for_store if stored else strides_for_load)(matrix)
    if described and matrix.shape[0] <= WINDOW_ROWS and strides:
        return Operand(WINDOW.value, tuple(matrix.shape), strides, window=True)
    return Operand(POINTERS.value)


def grouped(batch: torch.Tensor, described: bool) -> Operand:
    """A result (G, M, N) as a descriptor; pointers where that cannot be."""
    from course_kernels.kernels.contiguous import GROUPED, POINTERS

    if described and (strides := strides_for_store(batch)):
        return Operand(GROUPED.value, tuple(batch.shape), strides)
    return Operand(POINTERS.value)
