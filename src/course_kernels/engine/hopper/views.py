"""A product's tensors as the kernel in CuTe DSL takes them. Nothing is copied but factors of blocks, at times."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from course_kernels.engine.descriptors import flat_rows
from course_kernels.engine.product import Counts, Ends, Gated, GatedBackward, Product
from course_kernels.engine.scaling import Lines
from course_kernels.kernels.codes import Activation


class Views(NamedTuple):
    """The kernel's tensors, in its order. Counted groups follow each other along M, each with all the rows that it has
    room for."""

    a: Tensor
    b: Tensor
    c: Tensor
    offs: Tensor
    scale_a: Tensor | None
    scale_b: Tensor | None
    layer: tuple[Tensor | int | None, ...] | None = None

    @classmethod
    def of(cls, product: Product, out: Tensor) -> Views | None:
        """Make the views of a checked product. None for a batch, and if counted groups are not equally far apart. If
        only the groups of A's block factors are not, these factors are copied: they are small beside A. ``layer`` has
        the fields of the kernel's tuple of this name."""
        a, b, rows, scaling, epilogue, *_ = product
        if type(rows) is Ends:
            index, pre, others, bias = rows.index, None, (None, None, None), epilogue.bias
            if type(epilogue) is Gated:
                pre = epilogue.pre
                if epilogue.activation.gated:
                    b = _halves(b, epilogue.interleaved)
                    bias = None if bias is None else _halves(bias, epilogue.interleaved)
            elif type(epilogue) is GatedBackward:
                pre, others = epilogue.pre, (epilogue.weights, epilogue.activated, epilogue.dots)
                out = _of_argument(out, epilogue.activation)
            if pre is not None:
                pre = _of_argument(pre, epilogue.activation)
            starts, offs, *arrivals = rows.pieces or (None, rows.offs, None, None)
            layer = None
            if not (index is None and pre is None and bias is None):
                layer = index, pre, *others, starts, *arrivals, bias
            return cls(a, b, out, offs, scaling.a, scaling.b, layer)
        if type(rows) is not Counts:
            return None
        a, out = flat_rows(a), flat_rows(out)
        if a is None or out is None:
            return None
        scale_a, scale_b = scaling.a, scaling.b
        if type(scaling) is Lines:
            scale_a = scale_a.reshape(-1)
            scale_b = scale_b[:, 0] if is_of_groups(scale_b) else scale_b
        elif scale_a is not None:
            flat = flat_rows(scale_a)
            scale_a = flat_rows(scale_a.contiguous()) if flat is None else flat
        return cls(a, b, out, rows.sizes, scale_a, scale_b)


def _halves(tensor: Tensor, interleaved: bool) -> Tensor:
    """View columns of gate and up (..., 2 * N) as (..., 2, N), gate before up."""
    (*others, columns), (*strides, of_column) = tensor.shape, tensor.stride()
    half, column = (of_column, 2 * of_column) if interleaved else (columns // 2 * of_column, of_column)
    return tensor.as_strided((*others, 2, columns // 2), (*strides, half, column))


def _of_argument(tensor: Tensor, activation: Activation) -> Tensor:
    """View an activation's argument, or its gradient, (rows, 2 * N) or (rows, N), as (rows, 2, N) or (rows, 1, N)."""
    halves, (row, column) = 1 + activation.gated, tensor.stride()
    columns = tensor.shape[1] // halves
    return tensor.as_strided((tensor.shape[0], halves, columns), (row, columns * column, column))


def is_of_groups(scale_b: Tensor) -> bool:
    """Whether one factor serves all columns of a group."""
    return scale_b.stride(1) == 0
