"""Derivatives of an operator, in every context in which torch's own operators have them.

``torch.library.register_autograd`` makes derivatives that ``torch.func`` refuses, and none in forward mode.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad


def register(library: torch.library.Library, name: str, setup: Callable, backward: Callable, jvp: Callable) -> None:
    """Give an operator with one result its derivatives.

    Args:
        library: the library that defined the operator.
        name: the operator's name, without its namespace.
        setup: called with a context, the arguments and the result; keeps the tensors that the derivatives need.
        backward: takes a context and the result's gradient; returns a tuple, the gradients of the arguments.
        jvp: takes a context and the arguments' tangents; returns the result's tangent. Both must compute with
            operators: ``torch.func`` accepts no ``autograd.Function`` inside of the dispatcher.
    """
    operator = getattr(getattr(torch.ops, library.ns), name).default

    def forward(ctx, *inputs):
        *arguments, (keyset, backward_mode, forward_mode) = inputs
        # A Function's forward is not recorded, in any level of torch.func. The levels outside of this one must be.
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(backward_mode),
            forward_ad._set_fwd_grad_enabled(forward_mode),
        ):
            result = operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)
        setup(ctx, arguments, result)
        return result

    functions = {
        "forward": forward,
        "backward": lambda ctx, grad: (*backward(ctx, grad), None),
        "jvp": lambda ctx, *tangents: jvp(ctx, *tangents[:-1]),
    }
    # Not a Function, which would enter torch.func again; the dispatcher has chosen the level already. Named like the
    # operator, because graph nodes and profiles show this name.
    level = torch.autograd.function._SingleLevelFunction
    made = type(level)(name, (level,), {name: staticmethod(each) for name, each in functions.items()})

    def differentiable(keyset, *arguments):
        modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        with enable_single_level_autograd_function():
            return made.apply(*arguments, (keyset, *modes))

    library.impl(name, differentiable, "Autograd", with_keyset=True)
