"""Derivatives of an operator, in every context in which torch's own operators have them.

``torch.library.register_autograd`` makes derivatives that ``torch.func`` refuses, and none in forward mode.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._functorch.utils import enable_single_level_autograd_function


def register(library: torch.library.Library, name: str, setup: Callable, backward: Callable, jvp: Callable) -> None:
    """Give an operator with one result its derivatives.

    Args:
        library: that defined the operator.
        name: of the operator, without its namespace.
        setup: called with a context, the arguments, the result: it keeps what the derivatives need.
        backward: from a context and the result's gradient to those of the arguments, a tuple.
        jvp: from a context and the arguments' tangents to the result's. Both compute with operators and never with an
            ``autograd.Function``, which ``torch.func`` does not take inside of the dispatcher.
    """
    operator = getattr(getattr(torch.ops, library.ns), name).default

    def forward(ctx, *inputs):
        *arguments, keyset = inputs
        with torch._C._AutoDispatchBelowAutograd():
            result = operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)
        setup(ctx, arguments, result)
        return result

    functions = {
        "forward": forward,
        "backward": lambda ctx, grad: (*backward(ctx, grad), None),
        "jvp": lambda ctx, *tangents: jvp(ctx, *tangents[:-1]),
    }
    function = torch.autograd.Function
    # Made of its name, which a graph's nodes and a profile show.
    made = type(function)(name, (function,), {name: staticmethod(each) for name, each in functions.items()})

    def differentiable(keyset, *arguments):
        # Function.apply would ask torch.func, which has chosen the level by now.
        with enable_single_level_autograd_function():
            return super(function, made).apply(*arguments, keyset)

    library.impl(name, differentiable, "Autograd", with_keyset=True)
