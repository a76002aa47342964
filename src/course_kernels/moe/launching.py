"""Launches of the layer's small kernels: on a GPU again and again at little host time, on a CPU in the interpreter."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.dtypes import FP8
from course_kernels.engine.plans import PlanCache
from course_kernels.engine.relaunch import Relaunch

_known = PlanCache()
_launches = PlanCache()


def launch(
    module: str, name: str, programs: int, tokens: int | None, warps: int = 4, **arguments: Any
) -> Relaunch | None:  # fmt: skip
    """Launch a kernel of ``course_kernels.kernels`` on the current stream.

    Args:
        module, name: of the kernel. Its argument ``tokens`` alone may change without another plan.
        programs: how many.
        tokens: number of tokens; None for a kernel that has no such argument.
        warps: of a program.
        arguments: all others.

    Returns:
        What launches it again with the addresses of other tensors, in the arguments' order, that have the same dtypes
        and alignment; None in the interpreter.
    """
    device, addresses, form = None, [], [name, warps, *arguments]
    for value in arguments.values():
        if isinstance(value, Tensor):
            device = device or value.device
            addresses.append(value.data_ptr())
            form += value.dtype, addresses[-1] & 15
        else:
            form.append(value)
    key = device, *form
    known = _known.get(key)
    if known is not None:
        known(addresses, torch._C._cuda_getCurrentRawStream(device.index), programs, tokens)
        return known
    tensors = {key: value for key, value in arguments.items() if isinstance(value, Tensor)}
    if device.type != "cuda":
        _interpret(module, name, programs, tokens, arguments, tensors)
        return None
    with torch.cuda.device(device):
        known = _compile(module, name, programs, tokens, warps, arguments, tensors)
    _known.put(key, known)
    return known


class Launch:
    """Launches of one kernel, always with the same numbers and as many programs.

    Args:
        module, name, programs, tokens: as for ``launch``.
        tensors: the names of those arguments that are tensors or None.
        constants: all others.
    """

    def __init__(
        self, module: str, name: str, programs: int, tokens: int | None, tensors: tuple[str, ...], **constants: Any
    ):
        self._kernel, self._programs, self._tokens = (module, name), programs, tokens
        self._tensors, self._constants = tensors, constants
        self._known: Relaunch | None = None

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch on the current stream. ``tensors`` keep dtypes, alignment and device from one call to the next."""
        if self._known is None:
            given = dict(zip(self._tensors, tensors, strict=True)) | self._constants
            self._index = next(each for each in tensors if each is not None).device.index
            self._known = launch(*self._kernel, self._programs, self._tokens, **given)
            return
        addresses = [each.data_ptr() for each in tensors if each is not None]
        self._known(addresses, torch._C._cuda_getCurrentRawStream(self._index), self._programs, self._tokens)


def kept(key: Hashable, make: Callable[[], Launch]) -> Launch:
    """The launch of a key: of everything that ``make`` and the launch's tensors depend on, except addresses."""
    found = _launches.get(key)
    if found is None:
        _launches.put(key, found := make())
    return found


def aligned(*tensors: Tensor | None) -> list[int | None]:
    """How far addresses are from multiples of 16, which launches depend on."""
    return [None if each is None else each.data_ptr() & 15 for each in tensors]


@functools.cache
def _kernel(module: str, name: str):
    return getattr(importlib.import_module(f"course_kernels.kernels.{module}"), name)


def _compile(module, name, programs, tokens, warps, arguments, tensors) -> Relaunch:
    kernel = _kernel(module, name)
    totals = {} if tokens is None else {kernel.arg_names.index("tokens"): None}
    arguments = _with_tokens(arguments, tokens)
    compiled = kernel[(programs,)](**arguments, num_warps=warps)
    values = [0 if isinstance(arguments[each], Tensor) else arguments[each] for each in kernel.arg_names]
    order = list(tensors)
    sources = {i: order.index(each) for i, each in enumerate(kernel.arg_names) if each in tensors}
    return Relaunch(compiled, programs, values, sources, totals)


def _with_tokens(arguments: dict[str, Any], tokens: int | None) -> dict[str, Any]:
    return arguments if tokens is None else arguments | dict(tokens=tokens)


def _interpret(module, name, programs, tokens, arguments, tensors) -> None:
    """Interpret the kernel on float32 copies of bfloat16 tensors, whose bits the interpreter takes for integers, and of
    float8 ones that it reads, whose NaN it takes for 480; "q" is what it writes."""
    wide = {key: each for key, each in tensors.items() if each.dtype == torch.bfloat16}
    wide |= {key: each for key, each in tensors.items() if each.dtype == FP8 and key != "q_ptr"}
    copies = {key: _widened(each) for key, each in wide.items()}
    with runtime.interpreting():
        _kernel(module, name)[(programs,)](**_with_tokens(arguments | copies, tokens))
    for key, copy in copies.items():
        if any(word in key for word in ("grad", "out", "pre", "activated", "dots")):
            tensors[key].copy_(copy)


def _widened(tensor: Tensor) -> Tensor:
    """A float32 copy of the same strides, which kernels are told; what is between the elements comes along."""
    reach = 1 + sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape))
    return tensor.detach().as_strided((reach,), (1,)).float().as_strided(tensor.shape, tensor.stride(), 0)
