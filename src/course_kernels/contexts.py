"""torch's contexts around a call: autocast, and forward-mode differentiation."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.dtypes import OUT_DTYPES


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of the autocast context for a device; None where there is none."""
    kind = device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
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
