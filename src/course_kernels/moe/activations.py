"""The activations of a layer of experts: their names, their checks, their encoding."""

from __future__ import annotations

import math

from course_kernels.kernels.codes import Activation, Function

ACTIVATIONS = {
    "swiglu": Activation(Function.SILU),
    "geglu": Activation(Function.GELU),
    "geglu_tanh": Activation(Function.GELU_TANH),
    "reglu": Activation(Function.RELU),
    "swiglu_oai": Activation(Function.SILU, alpha=1.702, limit=7.0, shift=1.0),
    "silu": Activation(Function.SILU, gated=False),
    "gelu": Activation(Function.GELU, gated=False),
    "gelu_tanh": Activation(Function.GELU_TANH, gated=False),
    "relu": Activation(Function.RELU, gated=False),
    "relu2": Activation(Function.RELU2, gated=False),
}
_FUNCTIONS = tuple(Function)  # torch 2.11 cannot trace the enumeration's making of it, nor what it makes of a number


def activation_of(given: str | Activation) -> Activation:
    """Return the activation of a name, or the given one.

    Raises:
        TypeError, ValueError: it is neither, or its numbers are none.
    """
    if isinstance(given, str):
        if given not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {tuple(ACTIVATIONS)} or an Activation, got {given!r}")
        return ACTIVATIONS[given]
    if not isinstance(given, Activation):
        raise TypeError(f"activation must be a name or an Activation, got {type(given).__name__}")
    function, gated, alpha, limit, shift = given
    if type(function) not in (Function, int) or function not in _FUNCTIONS or type(gated) is not bool:
        raise ValueError(f"activation must have a Function and a bool, gated, got {given}")
    for name, number in (("alpha", alpha), ("limit", limit), ("shift", shift)):
        if name == "limit" and number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError(f"activation must have a number for {name}, got {number!r}")
        if not -math.inf < number < math.inf:  # of symbols of a graph, too
            raise ValueError(f"activation must have a finite {name}, got {number}")
    if alpha != 1 and function != Function.SILU:
        raise ValueError(
            f"activation must have an alpha of 1 where its function is {Function(function).name}, got {alpha}: it is "
            "for SILU alone"
        )
    if limit is not None and not limit > 0:
        raise ValueError(f"activation must have a limit above 0, or None, got {limit}")
    if shift and not gated:
        raise ValueError(f"activation must have a shift of 0 where it is not gated, got {shift}: there is no up")
    if type(function) is int:
        function = Function(function)
    return Activation(function, gated, float(alpha), None if limit is None else float(limit), float(shift))


def describe(activation: Activation) -> str:
    """The name of an activation, or what it consists of."""
    return next((name for name, each in ACTIVATIONS.items() if each == activation), repr(activation))


def encode(activation: Activation) -> str:
    """Encode an activation as an operator's argument. ``hex`` is exact, and ``torch.compile`` can trace it."""
    numbers = ["None" if each is None else each.hex() for each in activation[2:]]
    return " ".join([str(int(activation.function)), str(int(activation.gated)), *numbers])


def decode(text: str) -> Activation:
    """Decode the text of ``encode``."""
    function, gated, *numbers = text.split()
    numbers = [None if each == "None" else float.fromhex(each) for each in numbers]
    return Activation(Function(int(function)), gated == "1", *numbers)
