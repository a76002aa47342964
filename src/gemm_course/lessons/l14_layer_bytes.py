"""Bytes that the operations of a layer move, and that autograd keeps of them; tensors need no memory for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NAMES = {"_grouped_mm": "product", "index": "gather", "mul": "multiply", "_to_copy": "convert",
          "floor_divide": "divide", "histc": "histogram", "cumsum": "running sum"}  # fmt: skip
_GATHERS = ("index", "index_select")


class Operation(NamedTuple):
    """One operation of torch that moves memory."""

    name: str
    read: int  # bytes
    written: int
    kept: int = 0  # bytes of its result that autograd keeps for backward

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def operations(function: Callable, *tensors: Tensor) -> list[Operation]:
    """The operations of a call that move memory, in order; views move none.

    A gather reads as much as it writes, and its index.
    """
    found: list[Operation] = []
    makers: dict[int, int] = {}  # storage → number of the operation that made it

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            result = operator(*args, **(kwargs or {}))
            inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
            outputs = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
            old = {_storage(each) for each in inputs}
            if new := [each for each in outputs if _storage(each) not in old]:
                makers.update((_storage(each), len(found)) for each in new)
                name, written = operator.overloadpacket.__name__, sum(map(_bytes, new))
                gathers = name in _GATHERS
                read = gathers * written + sum(map(_bytes, inputs[gathers:]))
                found.append(Operation(_NAMES.get(name, name), read, written))
            return result

    saved: dict[int, Tensor] = {}

    def pack(each: Tensor) -> Tensor:
        saved[_storage(each)] = each
        return each

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each), Recorder():
        result = function(*tensors)  # alive until the tensors are counted
    for storage, each in saved.items():
        if (maker := makers.get(storage)) is not None:
            found[maker] = found[maker]._replace(kept=found[maker].kept + each.untyped_storage().nbytes())
    del result
    return found


def kept(function: Callable, *tensors: Tensor) -> dict[str, int]:
    """Bytes that autograd keeps for the backward of a call, by the shape of the tensor; without ``tensors`` themselves.

    A tensor that is kept twice, or in part, counts once.
    """
    known = {_storage(each) for each in tensors}
    found: dict[int, Tensor] = {}

    def pack(each: Tensor) -> Tensor:
        if _storage(each) not in known:
            found[_storage(each)] = each
        return each

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
        result = function(*tensors)  # alive until the tensors are counted
    by_shape: dict[str, int] = {}
    for each in found.values():
        base = each if each._base is None else each._base
        shape = " × ".join(map(str, base.shape))
        by_shape[shape] = by_shape.get(shape, 0) + each.untyped_storage().nbytes()
    del result
    return by_shape


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
