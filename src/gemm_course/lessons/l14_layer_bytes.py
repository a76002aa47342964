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

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def operations(function: Callable, *tensors: Tensor) -> list[Operation]:
    """The operations of a call that move memory, in order; views move none.

    A gather reads as much as it writes, and its index.
    """
    found: list[Operation] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            result = operator(*args, **(kwargs or {}))
            inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
            outputs = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
            storages = {each.untyped_storage()._cdata for each in inputs}
            new = [each for each in outputs if each.untyped_storage()._cdata not in storages]
            if new:
                name = operator.overloadpacket.__name__
                written = sum(map(_bytes, new))
                if name in _GATHERS:
                    read = written + sum(_bytes(each) for each in inputs[1:])
                else:
                    read = sum(map(_bytes, inputs))
                found.append(Operation(_NAMES.get(name, name), read, written))
            return result

    with Recorder():
        function(*tensors)
    return found


def kept(function: Callable, *tensors: Tensor) -> dict[str, int]:
    """Bytes that autograd keeps for the backward of a call, by the shape of the tensor; without ``tensors`` themselves.

    A tensor that is kept twice, or in part, counts once.
    """
    known = {each.untyped_storage()._cdata for each in tensors}
    found: dict[int, Tensor] = {}

    def pack(each: Tensor) -> Tensor:
        storage = each.untyped_storage()
        if storage._cdata not in known and storage.nbytes() >= found.get(storage._cdata, each[:0]).nbytes:
            found[storage._cdata] = each
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


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
