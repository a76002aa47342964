"""Activations, in float32: their values and slopes, element by element.

Powers of two and reciprocals are the hardware's approximations, good to about 2**-22. NaN stays NaN.
"""

import math

import cutlass
from cutlass import Float32, cute

from course_kernels.kernels.codes import Function

LOG2_E = 1 / math.log(2)
# gelu's approximation: x * sigmoid(2 * (ROOT * (x + CUBIC * x**3))), which is x / 2 * (1 + tanh(...)).
ROOT, CUBIC = math.sqrt(2 / math.pi), 0.044715


@cute.jit
def sigmoid(x: Float32) -> Float32:
    """1 / (1 + exp(-x))."""
    return cute.arch.rcp_approx(cute.math.exp2(x * -LOG2_E, fastmath=True) + 1.0)


@cute.jit
def function_and_slope(activation: cutlass.Constexpr, x: Float32) -> tuple[Float32, Float32]:
    """An activation's function of x, and its slope there."""
    function = activation.function
    if cutlass.const_expr(function == Function.SILU):
        share = sigmoid(x * activation.alpha)
        value = x * share
        slope = share + value * activation.alpha * (1.0 - share)
    elif cutlass.const_expr(function == Function.GELU):
        share = 0.5 + 0.5 * cute.math.erf(x * math.sqrt(0.5))
        value = x * share
        slope = share + x * cute.math.exp2(x * x * (-0.5 * LOG2_E), fastmath=True) * (1 / math.sqrt(2 * math.pi))
    elif cutlass.const_expr(function == Function.GELU_TANH):
        square = x * x
        share = sigmoid(x * (2 * ROOT + 2 * ROOT * CUBIC * square))
        value = x * share
        slope = share + value * (1.0 - share) * (2 * ROOT + 6 * ROOT * CUBIC * square)
    elif cutlass.const_expr(function in (Function.RELU, Function.RELU2)):
        positive = Float32(0.0) if x <= 0.0 else x
        slope = Float32(0.0) if x <= 0.0 else Float32(1.0)
        value = positive
        if cutlass.const_expr(function == Function.RELU2):
            value, slope = positive * positive, positive + positive
    else:
        raise ValueError(f"an unknown Function: {function}")
    return value, slope


@cute.jit
def limited(activation: cutlass.Constexpr, gate: Float32, up: Float32) -> tuple[Float32, Float32]:
    """Gate and up within an activation's limit."""
    if cutlass.const_expr(activation.limit is not None):
        limit = Float32(activation.limit)
        gate = limit if gate > limit else gate
        up = limit if up > limit else up
        up = -limit if up < -limit else up
    return gate, up


@cute.jit
def activate(activation: cutlass.Constexpr, gate: Float32, up: Float32) -> Float32:
    """f(gate) * (up + shift), or f(gate) without a gate, where ``up`` has no meaning."""
    gate, up = limited(activation, gate, up)
    value, _ = function_and_slope(activation, gate)
    if cutlass.const_expr(activation.gated):
        value = value * (up + activation.shift)
    return value


@cute.jit
def activate_backward(
    activation: cutlass.Constexpr, gate: Float32, up: Float32, gradient: Float32
) -> tuple[Float32, Float32, Float32]:
    """The activation, and its argument's gradients from ``gradient``, that of its value: of gate and of up. Where a
    limit holds, its argument has none."""
    bounded, bounded_up = limited(activation, gate, up)
    value, slope = function_and_slope(activation, bounded)
    of_gate, of_up = gradient * slope, gradient * value
    if cutlass.const_expr(activation.gated):
        factor = bounded_up + activation.shift
        value, of_gate = value * factor, of_gate * factor
    if cutlass.const_expr(activation.limit is not None):
        of_gate = Float32(0.0) if gate > activation.limit else of_gate
        of_up = Float32(0.0) if up > activation.limit else of_up
        of_up = Float32(0.0) if up < -activation.limit else of_up
    return value, of_gate, of_up
