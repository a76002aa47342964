"""Whether an argument is what it has to be: a tensor with strides and not too large, a flag; and a hint for a
transposed matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.dtypes import MAX_EXTENT


def check_dense(name: str, value) -> None:
    """Raise unless a value is a tensor with strides."""
    if not isinstance(value, Tensor):
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name} must be a torch.Tensor, got {got}")
    if torch.compiler.is_compiling():  # only strided tensors there; a backward cannot read a layout
        return
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(f"{name} must be a dense (strided) tensor, got layout {layout}")


def is_symbol(extent: int | torch.SymInt) -> bool:
    """Whether an extent is a symbol of a traced program. To code that Dynamo traces, symbols are of type int, too."""
    if not torch.compiler.is_dynamo_compiling():
        return isinstance(extent, torch.SymInt)
    from torch.fx.experimental.symbolic_shapes import has_static_value  # imports sympy

    return not has_static_value(extent)


def is_number(extent: int | torch.SymInt) -> bool:
    """Whether an extent is known now: no symbol, and no tensor, as for ``torch.jit.trace``."""
    return type(extent) is int and not is_symbol(extent)


def check_extents(name: str, shape) -> None:
    """Raise if a known extent is larger than kernels can count."""
    if any(is_number(extent) and extent > MAX_EXTENT for extent in shape):
        raise ValueError(f"{name} must have extents below 2**31 - 2**16, got shape {tuple(shape)}")


def check_flags(**flags) -> None:
    """Raise unless arguments are True or False: of other values, such as "no", nearly all would count as True."""
    for name, value in flags.items():
        if type(value) is not bool:
            raise TypeError(f"{name} must be True or False, got {value!r}")


def transposed_hint(name: str, matrix: Tensor, depth: int | torch.SymInt) -> str:
    """The end of an error message about an operand (..., K, N): if its last extent equals K, it is probably stored
    transposed, and the text says so. Otherwise empty."""
    columns = matrix.shape[-1]
    known = is_number(columns) and is_number(depth)
    return f". It has K columns: pass {name}.mT" if known and columns == depth else ""
