"""torch's contexts around a call: autocast, differentiation, and modes and transforms that intercept operations."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.dtypes import OUT_DTYPES

_AUTOCAST_DEVICES = frozenset({"cpu", "cuda"})
_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})
# Bound once: every call asks them.
is_compiling = torch.compiler.is_compiling
functorch_level = torch._C._functorch.peek_interpreter_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state


def is_plain(*tensors) -> bool:
    """Whether these are ordinary tensors in memory, and no mode or transform of torch intercepts operations.

    Non-tensors count as plain: the checks of the plain way raise the TypeError.
    """
    if is_compiling() or _dispatch_modes() or functorch_level() is not None or _tracing_state() is not None:
        return False
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN_TYPES or tensor.is_meta):
            return not isinstance(tensor, Tensor)
    return True


def wants_grad(*tensors) -> bool:
    """Whether a gradient may be asked of a product of these."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                return True
    return False


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype of the autocast context for a type of device; None where there is none."""
    if device_type in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """An operand in autocast's dtype; one of another kind, such as float8, as it is."""
    return tensor.to(dtype) if tensor.dtype in OUT_DTYPES else tensor


def refuse_tangents(function: str, *tensors) -> None:
    """Raise on dual tensors: kernels compute primal values alone, and the tangent would be lost silently.

    Raises:
        RuntimeError: naming the function.
    """
    forward_ad = torch.autograd.forward_ad
    if getattr(forward_ad, "_current_level", -1) < 0:
        return
    if any(isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError(
            f"{function} has no forward-mode derivative, and an operand is a dual tensor: use reverse mode (backward, "
            "torch.func.grad), or unpack_dual it"
        )
