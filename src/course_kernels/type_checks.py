"""Whether an argument is what it has to be: a tensor with strides, a flag; and a hint for a transposed matrix."""

from __future__ import annotations

import torch
from torch import Tensor


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


def check_flags(**flags) -> None:
    """Raise unless arguments are True or False: of other values, such as "no", nearly all would count as True."""
    for name, value in flags.items():
        if type(value) is not bool:
            raise TypeError(f"{name} must be True or False, got {value!r}")


def transposed_hint(name: str, matrix: Tensor, depth: int | torch.SymInt) -> str:
    """The end of an error message about an operand (..., K, N): if its last extent equals K, it is probably stored
    transposed, and the text says so. Otherwise empty."""
    columns = matrix.shape[-1]
    plain = not isinstance(columns, torch.SymInt) and not isinstance(depth, torch.SymInt)
    return f". It has K columns: pass {name}.mT" if plain and columns == depth else ""
