"""The key of a product's plan: everything that the plan depends on."""

from __future__ import annotations

from torch import Tensor, float32

from course_kernels import runtime
from course_kernels.contexts import PLAIN_TYPES
from course_kernels.engine.options import Options
from course_kernels.engine.product import Counts, Ends, Product, quarter_octave

WINDOW_ROWS = 2**30  # rows that a descriptor with a sliding bound can hold (triton.tools.ragged_tma)


def signature(product: Product, options: Options, out=None) -> tuple | None:
    """Make the key of a plan: everything that a launch depends on, except values, addresses, and the ragged total.

    Tensors without memory, whose storage was resized to 0, have a signature of their own.
    Only a size class of the total is in the key, so the same layer on another batch has the same key. In mode "n" the
    whole total counts: it is a stride of the result. The signature determines every check of an API, except those of
    values and of shared memory.

    Returns:
        A key, hashable if the options are; None for operands without a kept plan: non-tensors, tensors without strides,
        lazily negated views, ends with gaps between them, scales that kernels cannot read as they are.
    """
    a, b, rows, scaling, epilogue, shuffled = product
    try:
        shape_a, shape_b = a.shape, b.shape
        total = None
        if len(shape_a) == 2:
            if len(shape_b) == 3:
                mode, total, fixed_a, fixed_b = "m", shape_a[0], shape_a[1], shape_b
                if type(rows) is Ends and rows.index is not None:
                    total = rows.index.shape[0]
            else:
                mode, (fixed_a, total), (depth, fixed_b) = "k", shape_a, shape_b
                if type(rows) is Ends and rows.index is not None:
                    gathered = rows.index.shape[0]
                    total, depth = (gathered, depth) if rows.operand == "a" else (total, gathered)
                if depth != total:
                    return None
        elif len(shape_b) == 2:  # the total is the step between rows of a fresh result
            mode, total, fixed_a, fixed_b = "n", shape_b[1], shape_a, shape_b
        elif type(rows) is Ends or not len(shape_a) == len(shape_b) == 3:
            return None
        else:
            mode, fixed_a, fixed_b = "masked" if type(rows) is Counts else "batch", shape_a, shape_b
        if a.is_neg() or b.is_neg():
            return None
        found, ends = rows.key(), epilogue.key()
        if found is None or ends is None:
            return None
        groups = found[0][0] if type(rows) is Ends else 0
        key = (
            fixed_a, a.stride(), a.dtype, a.device, (at & 15 if (at := a.data_ptr()) else None),
            fixed_b, b.stride(), b.dtype, b.device, (at & 15 if (at := b.data_ptr()) else None),
            found, ends, options, shuffled, None if total is None else _size_class(total, groups),
        )  # fmt: skip
        if scaling:
            scales = scaling.key(mode, total, groups)
            if scales is None:
                return None
            key = (*key, scales)
        if out is not None:
            key = (*key, out.stride(), out.dtype, out.device, (at & 15 if (at := out.data_ptr()) else None), "out")
        if a.dtype == float32:
            key = (*key, runtime.allows_tf32())
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None  # not tensors, or options of wrong types: the checks raise
    return key


def forms_of(*tensors: Tensor | None) -> tuple | None:
    """Everything about tensors that launches depend on, except values and addresses: a part of a key for several
    products together. None if one is no ordinary tensor with memory, or is a lazily negated view.

    Raises:
        AttributeError, RuntimeError, TypeError: one is no tensor, or has no strides.
    """
    found = []
    for tensor in tensors:
        if tensor is None:
            found.append(None)
            continue
        address = tensor.data_ptr()
        if type(tensor) not in PLAIN_TYPES or not address or tensor.is_neg():
            return None
        found += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.layout, address & 15)
    return tuple(found)


def _size_class(total: int, groups: int) -> int:
    """The part of a total that a launch depends on."""
    if total < 2 or total > WINDOW_ROWS:  # a stride has no meaning, or no window has the extent
        return total
    return ~quarter_octave(total, groups)  # negative, so never equal to a total
