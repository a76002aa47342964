"""Derivatives for operators, in every context where torch's own operators have them.

``torch.library.register_autograd`` makes derivatives that ``torch.func`` refuses, and none in forward mode. An
``autograd.Function`` records one level of ``torch.func``, and loses tangents of tangents.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from course_kernels.contexts import functorch_level, is_forward_mode


def register(library: torch.library.Library, name: str, setup: Callable, backward: Callable, tangent: Callable) -> None:
    """Give an operator with one result its derivatives.

    Args:
        library: the library that defined the operator.
        name: the operator's name, without its namespace.
        setup: called with a context, the arguments and the result; keeps the tensors that the gradients need.
        backward: takes a context and the result's gradient; returns a tuple, the gradients of the arguments.
        tangent: takes the arguments, their tangents (None where there is none) and the result; returns the result's
            tangent. Both must compute with operators: ``torch.func`` accepts no ``autograd.Function`` inside of the
            dispatcher.
    """
    operator = getattr(getattr(torch.ops, library.ns), name).default

    def forward(ctx, *inputs):
        *arguments, (keyset, backward_mode, forward_mode) = inputs
        # No level of torch.func records a Function's forward. Here the levels outside of this one must be recorded.
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(backward_mode),
            forward_ad._set_fwd_grad_enabled(forward_mode),
        ):
            result = operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)
        setup(ctx, arguments, result)
        return result

    functions = {"forward": forward, "backward": lambda ctx, grad: (*backward(ctx, grad), None)}
    # Not a Function: that would enter torch.func again, although the dispatcher has already chosen the level. It has
    # the operator's name, because graph nodes and profiles show it.
    level = torch.autograd.function._SingleLevelFunction
    made = type(level)(name, (level,), {name: staticmethod(each) for name, each in functions.items()})

    def differentiable(keyset, *arguments):
        if torch._C._is_fwd_grad_enabled() and (functorch_level() is not None or is_forward_mode()):
            duals = [
                torch._VF._unpack_dual(each, level=0) if isinstance(each, Tensor) else (each, None)
                for each in arguments
            ]
            primals, tangents = zip(*duals)
            if any(each is not None for each in tangents):
                result = operator(*primals)
                return torch._VF._make_dual(result, tangent(primals, tangents, result), level=0)
        modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        with enable_single_level_autograd_function():
            return made.apply(*arguments, (keyset, *modes))

    library.impl(name, differentiable, "Autograd", with_keyset=True)
