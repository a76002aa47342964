"""Activations of a product's rows and their gradients, in torch: the CPU's way, and what kernels are compared with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from course_kernels.kernels.codes import Activation, Function


def activate(pre: Tensor, activation: Activation, interleaved: bool) -> Tensor:
    """Compute the activation of (rows, N) in float32."""
    function, gated, alpha, limit, shift = activation
    gate, up = pre.float(), None
    if gated:
        gate, up = (gate[:, ::2], gate[:, 1::2]) if interleaved else gate.chunk(2, dim=1)
    if limit is not None:
        gate = gate.clamp(max=limit)
    value = {
        Function.SILU: lambda x: x * torch.sigmoid(x * alpha),
        Function.GELU: functional.gelu,
        Function.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
        Function.RELU: functional.relu,
        Function.RELU2: lambda x: functional.relu(x).square(),
    }[function](gate)
    if up is None:
        return value
    return value * ((up if limit is None else up.clamp(-limit, limit)) + shift)


def activation_gradient(grad: Tensor, pre: Tensor, activation: Activation, interleaved: bool) -> Tensor:
    """Compute the gradient of the argument of ``activate``, float32 (rows, N), from that of its result."""
    function, gated, alpha, limit, shift = activation
    gate, up = pre.float(), None
    if gated:
        gate, up = (gate[:, ::2], gate[:, 1::2]) if interleaved else gate.chunk(2, dim=1)
    limited = gate if limit is None else gate.clamp(max=limit)
    if function is Function.SILU:
        share = torch.sigmoid(limited * alpha)
        value = limited * share
        slope = share + value * (1 - share) * alpha
    elif function in (Function.GELU, Function.GELU_TANH):
        kind = "tanh" if function is Function.GELU_TANH else "none"
        value = functional.gelu(limited, approximate=kind)
        slope = torch.ops.aten.gelu_backward(torch.ones_like(limited), limited, approximate=kind)
    elif function in (Function.RELU, Function.RELU2):
        value = functional.relu(limited)
        slope = (limited > 0).float()
        if function is Function.RELU2:
            value, slope = value.square(), 2 * value
    else:
        raise ValueError(f"an unknown Function: {function}")
    if limit is not None:
        slope = torch.where(gate <= limit, slope, 0.0)
    if up is None:
        return grad * slope
    other = (up if limit is None else up.clamp(-limit, limit)) + shift
    grad_up = grad * value
    if limit is not None:
        grad_up = torch.where(up.abs() <= limit, grad_up, 0.0)
    parts = [grad * slope * other, grad_up]
    return torch.stack(parts, dim=2).flatten(1) if interleaved else torch.cat(parts, dim=1)
