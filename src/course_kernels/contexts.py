"""torch's contexts around a call: autocast, differentiation, and modes and transforms that intercept operations."""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.nn import Parameter

from course_kernels.dtypes import OUT_DTYPES

_AUTOCAST_DEVICES = frozenset({"cpu", "cuda"})
PLAIN_TYPES = frozenset({Tensor, Parameter})
# Bound once: every call asks them.
is_compiling = torch.compiler.is_compiling
is_grad_enabled = torch.is_grad_enabled
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
functorch_level = torch._C._functorch.peek_interpreter_stack
is_batched_by_autograd = torch._C._functorch.is_legacy_batchedtensor  # for is_grads_batched
is_profiling = torch.autograd._profiler_enabled
has_overrides = torch.overrides.has_torch_function_variadic  # whether a tensor or a mode overrides functions
_FUNCTIONALIZE = torch._C._functorch.TransformType.Functionalize
_VMAP, _JVP = torch._C._functorch.TransformType.Vmap, torch._C._functorch.TransformType.Jvp
_forward_ad = torch.autograd.forward_ad
_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state


def is_plain(*tensors) -> bool:
    """Whether these are ordinary tensors in memory, and no mode or transform of torch intercepts operations.

    Non-tensors count as plain: the checks of the plain way raise the TypeError.
    """
    if is_intercepted():
        return False
    for tensor in tensors:
        if tensor is not None:
            kind = type(tensor)
            if (kind is not Tensor and kind is not Parameter) or tensor.is_meta:
                return not isinstance(tensor, Tensor)
    return True


def is_intercepted() -> bool:
    """Whether a mode or a transform of torch intercepts operations, or tensors may be dual ones."""
    if is_compiling() or _dispatch_modes() or functorch_level() is not None or _tracing_state() is not None:
        return True
    return getattr(_forward_ad, "_current_level", -1) >= 0 and is_forward_mode()


def has_memory(tensor: Tensor) -> bool:
    """Whether kernels can read a tensor: not a meta tensor, nor one whose class computes operations on its own."""
    kind = type(tensor)
    return not tensor.is_meta and (kind in PLAIN_TYPES or kind.__torch_dispatch__ is Tensor.__torch_dispatch__)


def in_memory(*tensors: Tensor | None) -> bool:
    """Whether the addresses of dense tensors can be compared: under a dispatch mode, too, where tensors are not plain.

    None counts as in memory, other non-tensors do not. Graphs, and transforms of ``torch.func``, have tensors without
    addresses.
    """
    if is_compiling() or functorch_level() is not None:
        return False
    return all(
        tensor is None or (isinstance(tensor, Tensor) and has_memory(tensor) and not is_batched_by_autograd(tensor))
        for tensor in tensors
    )


def is_traced() -> bool:
    """Whether ``make_fx`` or ``torch.jit.trace`` records operations."""
    proxies = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return proxies is not None or _tracing_state() is not None


def is_forward_mode() -> bool:
    """Whether tensors may be dual ones of forward-mode differentiation."""
    return getattr(_forward_ad, "_current_level", -1) >= 0 and torch._C._is_fwd_grad_enabled()


def wants_function() -> bool:
    """Whether a derivative has to be an ``autograd.Function``. ``torch.func`` and forward mode accept these, but
    ``functionalize`` accepts only operators, and forward mode in forward mode loses what a Function's ``jvp`` says."""
    levels = torch._C._functorch.get_interpreter_stack()
    if not levels:
        return is_forward_mode()
    kinds = [level.key() for level in levels]
    return _FUNCTIONALIZE not in kinds and kinds.count(_JVP) < 2


def is_batched_or_functional() -> bool:
    """Whether ``torch.func``'s ``vmap`` or ``functionalize`` is active. Both want a rule for each function."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() in (_VMAP, _FUNCTIONALIZE) for level in levels)


def is_functional() -> bool:
    """Whether ``torch.func.functionalize`` is active."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == _FUNCTIONALIZE for level in levels)


def has_modes() -> bool:
    """Whether a mode sees operators, such as a counter of FLOPs."""
    return _dispatch_modes() > 0


def unwrapped(tensor):
    """A tensor without the wrapper of a ``torch.func`` transform that has ended."""
    return torch._C._functorch.unwrap_if_dead(tensor) if isinstance(tensor, Tensor) else tensor


def wants_grad(*tensors) -> bool:
    """Whether a gradient may be asked of a product of these."""
    if is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and getattr(tensor, "requires_grad", False) is True:  # of a class it is a descriptor
                return True
    return False


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype of the autocast context for a type of device; None where there is none."""
    if is_any_autocast_enabled() and device_type in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """An operand in autocast's dtype; one of another kind, such as float8, as it is."""
    return tensor.to(dtype) if tensor.dtype in OUT_DTYPES else tensor


REVERSE = "use reverse mode (backward, torch.func.grad)"


def refuse_tangents(function: str, *tensors, instead: str | None) -> None:
    """Raise on dual tensors where there is no forward-mode derivative: the tangent would be lost silently.

    Args:
        instead: what to do, such as REVERSE; None for a function without derivatives.

    Raises:
        RuntimeError: naming the function.
    """
    if getattr(_forward_ad, "_current_level", -1) < 0:
        return
    if any(isinstance(t, Tensor) and _forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        lacks, advice = ("derivatives", "") if instead is None else ("forward-mode derivative", f"{instead}, or ")
        raise RuntimeError(
            f"{function} has no {lacks}, and an operand is a dual tensor of forward-mode differentiation: "
            f"{advice}unpack_dual it"
        )


def refuse_transforms(function: str, instead: str) -> None:
    """Raise under the transforms of ``torch.func``; ``instead`` says what to do.

    Raises:
        RuntimeError: naming the function.
    """
    if not is_compiling() and functorch_level() is not None:
        raise RuntimeError(f"{function} has no rules for torch.func: {instead}")


def refuse_jit_trace(function: str) -> None:
    """Raise where ``torch.jit.trace`` records operations: extents are tensors there, and counts are not.

    Raises:
        RuntimeError: naming the function.
    """
    if not is_compiling() and _tracing_state() is not None:
        raise RuntimeError(
            f"{function} cannot be recorded by torch.jit.trace, for which extents are tensors: use torch.export, "
            "torch.compile or make_fx"
        )


def refuse_beside_dtensors(name: str, *tensors) -> None:
    """Raise where a tensor is a DTensor: an operator that writes to an argument has no strategy for shards.

    Args:
        name: of the argument that is written to.

    Raises:
        ValueError: naming the argument.
    """
    if any(map(is_sharded, tensors)):
        raise ValueError(f"{name} must be None where tensors are DTensors: pass local tensors, from to_local()")


def refuse_dtensors(function: str, **tensors) -> None:
    """Raise where a tensor is a DTensor: the function takes none.

    Raises:
        TypeError: naming the argument.
    """
    for name, tensor in tensors.items():
        if is_sharded(tensor):
            raise TypeError(
                f"{name} must be a local tensor, from to_local(), got a DTensor: {function} has no shardings"
            )


def is_sharded(tensor) -> bool:
    """Whether something is a DTensor."""
    if type(tensor) in (Tensor, Parameter):  # while a graph is traced, the table of modules is costly to look at
        return False
    dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return dtensor is not None and isinstance(tensor, dtensor)
